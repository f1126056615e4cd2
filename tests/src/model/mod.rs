//! Random sequences of file operations, carried out by several processes, whose every answer and effect is written down.
//! The same sequence gives the same account on a plain directory and inside a mount, or the mount is wrong.
//!
//! Not compared, because a plain directory promises nothing either: the sizes of directories, block counts, change and
//! access times, and modification times that nobody set. `fallocate` modes that FUSE doesn't
//! carry are left out, and so are set-id bits for root.

mod execute;
mod observe;
mod operation;
mod strategy;
mod sys;
mod worker;

pub use execute::main;
pub use operation::{Case, Operation, Step};
pub use strategy::{cases, tree_of};
