//! What programs did to files: events, the queue that carries them, the store that keeps them (contract O1–O4).
#![forbid(unsafe_code)]

pub mod event;

pub use event::{
    Event, Key, Op, Outcome, Process, Publication, RunId, SessionId, Sink, Time, Version,
};
