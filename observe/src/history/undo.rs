//! Putting a run back: everything or nothing.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{Error, Result};
use super::fold::History;
use super::put::put;
use super::show::{Change, changes};
use super::verify::{Work, verify_all};

/// A path that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// As programs saw it.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// An undo, ready to be carried out.
#[derive(Debug)]
pub struct Plan<'h> {
    run: PathBuf,
    works: Vec<Work<'h>>,
    changes: Vec<Change>,
}

/// What an undo has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The changes that were taken back.
    pub changes: Vec<Change>,
}

impl<'h> Plan<'h> {
    /// Prepares it: `run` is the directory of the run's histories.
    ///
    /// # Errors
    /// Something isn't as the run left it, or can't be put back: all of it is named.
    pub fn new(run: &Path, histories: &'h [History]) -> Result<Self> {
        if History::undone(run) {
            return Err(Error::Undone);
        }
        let works = verify_all(histories)?;
        let changes = histories.iter().flat_map(changes).collect();
        Ok(Self { run: run.to_owned(), works, changes })
    }

    /// Returns the changes that it takes back.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Carries it out.
    ///
    /// # Errors
    /// The host refused something; what was done was taken back.
    pub fn carry_out(self) -> Result<Done> {
        for work in &self.works {
            put(work)?;
        }
        let marker = self.run.join(UNDONE);
        fs::write(&marker, "").map_err(Error::io("write", &marker))?;
        for work in &self.works {
            // They may be the very files that are in use again.
            for image in work.history.images.values() {
                let path = work.history.directory.join(image.number.to_string());
                if let Err(error) = fs::remove_file(&path) {
                    tracing::debug!(%error, "an image stays");
                }
            }
        }
        Ok(Done { changes: self.changes })
    }
}

const UNDONE: &str = "undone";

impl History {
    /// Tells whether a run was undone; `run` is the directory of its histories.
    #[must_use]
    pub fn undone(run: &Path) -> bool {
        run.join(UNDONE).exists()
    }
}
