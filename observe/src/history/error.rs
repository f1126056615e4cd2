//! What can go wrong with a history.

use std::io;
use std::path::{Path, PathBuf};

use super::undo::Refusal;

/// Why a history can't be read, shown or put back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run kept none.
    #[error("the run kept no history")]
    None,
    /// It was removed since.
    #[error("the run's history was removed: {0}")]
    Dropped(String),
    /// It was put back already.
    #[error("the run was undone already")]
    Undone,
    /// It is being put back just now.
    #[error("the run is being undone just now")]
    Busy,
    /// Putting it back failed, and so did taking back what was done until then.
    #[error("a part was put back, and couldn't be taken back: {source}")]
    Half {
        /// Why it wasn't put back.
        error: Box<Error>,
        /// Why that couldn't be taken back.
        source: io::Error,
    },
    /// Something isn't as the run left it, or can't be put back.
    #[error("nothing was put back: {} paths stand in the way", .0.len())]
    Refused(Vec<Refusal>),
    /// A file can't be used.
    #[error("can't {what} `{}`", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The journal isn't one.
    #[error("the journal is damaged at line {0}")]
    Damaged(usize),
}

/// The result of working with a history.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(
        what: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io { what, path, source: source.into() }
    }
}
