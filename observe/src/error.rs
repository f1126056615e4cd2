//! What can go wrong with a log.

use std::io;
use std::path::PathBuf;

/// The result of an operation on a log.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the log itself; never a refusal by the policy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("failed to {what} `{}`", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// SQLite refused.
    #[error("failed to {what}")]
    Sql {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// There is no log here.
    #[error("no log at `{}`", .0.display())]
    NoLog(PathBuf),
    /// The file is a database, but not a log of Stockade's.
    #[error("`{}` is not a log of Stockade's", .0.display())]
    NotALog(PathBuf),
    /// The log was written by a newer major version of the format.
    #[error("`{}` has format {}.{}; this version appends to {}.x at most", .path.display(), .found / 100, .found % 100, .supported / 100)]
    Newer {
        /// The log.
        path: PathBuf,
        /// Its format.
        found: i32,
        /// The format of this version.
        supported: i32,
    },
    /// The log holds something that no version of Stockade writes.
    #[error("the log is damaged: {0}")]
    Damaged(String),
    /// No session has this id or name.
    #[error("no session `{0}`")]
    NoSession(String),
    /// Another session has this id or name.
    #[error("there is a session `{0}` already")]
    SessionExists(String),
    /// A run of the session goes on.
    #[error("session `{session}` is busy with run `{run}`")]
    Busy {
        /// The session.
        session: String,
        /// The run.
        run: String,
    },
    /// An event can't be appended to a session.
    #[error("the session doesn't accept this now")]
    Session(#[source] stockade_policy::SessionError),
    /// The session has no such run, or none at all.
    #[error("no run `{0}` in this session")]
    NoRun(String),
    /// A name or an id that can't be used.
    #[error("`{0}` can't be a session's or a run's id")]
    BadId(String),
    /// The log belongs to another session.
    #[error("`{}` is the log of session `{found}`, not of `{wanted}`", .path.display())]
    OtherSession {
        /// The log.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
    /// What was recorded can't be written.
    #[error("failed to write the log: {0}")]
    Recording(String),
    /// A filter can't be understood.
    #[error("bad filter: {0}")]
    Filter(String),
    /// The recorder's thread ended before it was told to.
    #[error("the recorder has stopped")]
    Stopped,
}

impl Error {
    pub(crate) fn sql(what: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sql { what, source }
    }

    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// Returns the message and its causes, joined by colons.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}
