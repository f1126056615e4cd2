//! The built binary, called as its users call it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod confine;
mod run;
