//! The acceptance suite: the real binary, run by root and by an ordinary user, with an empty environment.
//!
//! One module a topic. A test's name is the promise it keeps; the ids in its comment are those of the contract.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attempts;
mod backends;
mod battery;
mod below;
mod coherence;
mod compat;
mod complete;
mod config;
mod crash;
mod danger;
mod editors;
mod elsewhere;
mod escalation;
mod everyday;
mod exit_status;
mod guard;
mod hangs;
mod hardlinks;
mod harness;
mod history;
mod hostile;
mod journal;
mod killed;
mod learn;
mod leftovers;
mod limits;
mod log;
mod messengers;
mod model;
mod moved;
mod observe_root;
mod otlp;
mod posix;
mod profiles;
mod program;
mod protect;
mod publish;
mod race;
mod read_only;
mod resources;
mod retention;
mod sessions;
mod sockets;
mod sources;
mod terminal;
mod top;
mod tty;
mod undo;
mod why;
mod workspace_write;
