//! What programs did to files: events, the queue that carries them, the store that keeps them (contract O1–O4).
//!
//! [`Recorder`] takes events from the file system and writes them to the [`Store`] of a session.
#![forbid(unsafe_code)]

mod bytes;
mod chain;
mod changes;
mod dict;
mod error;
pub mod event;
mod export;
mod follow;
pub mod history;
mod live;
mod observed;
mod query;
mod recent;
mod recorder;
mod retention;
mod run;
mod runs;
mod sessions;
mod store;
mod summary;
mod tally;
mod template;
mod touch;
mod tree;
mod verify;
mod writer;

pub use dict::Stored;
pub use error::{Error, Result};
pub use event::{
    Event, Key, Op, Outcome, Process, Publication, RunId, SessionId, Sink, Time, Version,
};
pub use export::{from_json, to_json};
pub use follow::{Follow, SqlValue};
pub use live::is_id;
pub use observed::{Freshness, Observed};
pub use query::{Filter, globs};
pub use recorder::{Failure, OnRecordFailure, QUEUE, Recorder};
pub use retention::{Keep, PruneReport, Pruned, prune};
pub use run::{
    Changes, ConflictRow, DenialRow, Ending, Recording, RunInfo, RunOutcome, RunSummary,
};
pub use runs::{RunEnd, RunRow};
pub use sessions::{
    RunClaim, SessionDir, StoredSessionEvent, create_session, find_session, remove_session,
    run_is_live, session_dir, session_dirs,
};
pub use store::{FILE_NAME, FORMAT, Store};
pub use summary::{Stat, Touched};
pub use touch::{Touch, is_change};
pub use tree::{ProcessNode, ProcessTree};
pub use verify::{Fault, Problem, VerifyReport};
