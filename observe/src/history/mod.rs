//! What a run changed: kept before it changes, shown as a diff, put back (contract 5: `--keep-history`, `diff`, `undo`).
//!
//! A run's history is a directory: a journal, and before-images beside it. It speaks of *entries* (a name in a directory,
//! which leads to a file) and of *files* (by identity: device, inode, generation). Of each the state before the run's
//! first change counts, and what the run left.
//!
//! Invariants:
//! - `H1` The journal's line comes before the change that it speaks of, but for what is made: that has no identity before.
//! - `H2` What couldn't be kept is a [`Record::Gap`]; a history that isn't whole has no [`Record::Sealed`].
//! - `H3` An image is never written to again: a link to an inode that the run has let go, or a copy.
//! - `H4` Nothing is put back before everything was found to be as the run left it.

mod error;
mod fold;
mod image;
mod keeper;
mod place;
mod put;
mod record;
mod select;
mod show;
mod text;
mod undo;
mod verify;
mod wal;

pub use error::{Error, Result};
pub use fold::History;
pub use image::{attributes, copy};
pub use keeper::{Bounds, Keeper, prune};
pub use record::{File, Id, Image, Left, Record};
pub use show::{Change, Kind, Side, changes};
pub use text::{Diff, diff};
pub use undo::{Done, Plan, Refusal};
pub use wal::{Recovered, recover, recover_all};
