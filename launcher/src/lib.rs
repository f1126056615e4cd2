//! The launcher of Stockade: turns a policy and a command into a confined, observed run, and tells the truth about it.
//!
//! The library works without the command line; only [`cli`] parses arguments and prints.

pub mod answer;
pub mod approve;
pub mod backend;
pub mod caller;
pub mod cli;
pub mod compat;
pub mod config;
pub mod confine;
pub mod connect;
pub mod enforcement;
pub mod errno;
pub mod error;
pub mod escape;
pub mod filter;
pub mod guardian;
pub mod init;
pub mod journal;
pub mod launch;
pub mod limits;
pub mod mount;
pub mod namespace;
pub mod otlp;
pub mod plan;
pub mod probe;
pub mod resolve;
pub mod restrict;
pub mod result;
pub mod runner;
mod serve;
pub mod session;
pub mod spec;
pub mod state;
mod supervise;
pub mod sys;
pub mod terminal;
mod worktree;

pub use error::{Code, Failure};
