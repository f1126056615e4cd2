//! The FUSE passthrough file system of Stockade.
//!
//! A [`Server`] answers the kernel on a `/dev/fuse` descriptor that somebody else mounted, and carries each operation
//! out on a host directory it holds by descriptor, after asking the compiled policy and while telling the recorder
//! (contract F1–F4, O1). Mounting, unmounting and namespaces are the launcher's business.
//!
//! Invariants:
//! - `I1` No path string is re-opened after a check: every host call takes a directory descriptor and one component,
//!   or a descriptor's own magic link.
//! - `I2` A node's descriptor, once taken, pins its inode: its number can't be reused while we hold it.
//! - `I3` What the policy refuses is refused before the host is touched, and recorded.
//! - `I4` The kernel's lookup counts and ours agree: a count is taken only for an entry that is sent.
//!
//! Lock order: table, then a node's names, then a node's pin. Nothing is called on the host while the table is locked.

mod adapter;
mod error;
mod fail;
mod fs;
mod handle;
mod host;
mod journal;
mod moves;
mod node;
mod ops;
mod owner;
mod process;
mod server;
mod sys;
mod watch;

pub use owner::Owner;
pub use server::{HistoryConfig, ServeError, Server, ServerConfig, mount_data, serve};
