//! Putting a run back: everything or nothing.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::error::{Error, Result};
use super::fold::History;
use super::put::{part, put};
use super::show::{Change, changes};
use super::verify::{Work, verify_all};
use super::wal::{UNDONE, Wal};
use stockade_policy::text::Bytes;

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
    /// Other changes of the run stay.
    partly: bool,
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
    ///
    /// `partly` says that the histories were cut down by [`History::select`].
    pub fn new(run: &Path, histories: &'h [History], partly: bool) -> Result<Self> {
        if History::undone(run) {
            return Err(Error::Undone);
        }
        let works = verify_all(histories)?;
        let changes = histories.iter().flat_map(changes).collect();
        Ok(Self { run: run.to_owned(), works, changes, partly })
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
        raise_descriptor_limit();
        let parts = self.works.iter().map(part).collect::<Result<Vec<_>>>()?;
        let histories = self.works.iter().map(|work| work.history);
        let some =
            histories.map(|history| (Bytes::from(history.directory.as_path()), history.selected()));
        let some = self.partly.then(|| some.collect());
        let images = self.works.iter().flat_map(|work| {
            let directory = &work.history.directory;
            let images = work.history.images.values();
            images.map(move |image| Bytes::from(directory.join(image.number.to_string()).as_path()))
        });
        let mut wal = Wal::begin(&self.run, parts.clone(), some, images.collect())?;
        let mut tidying = Vec::new();
        for (number, work) in self.works.iter().enumerate() {
            match put(work, number, &parts[number], &mut wal) {
                Ok(tidy) => tidying.push(tidy),
                Err(error) => return Err(taken_back(wal, &self.run, error)),
            }
        }
        let roots: Vec<_> = self.works.iter().map(|work| work.tree.root.as_fd()).collect();
        if let Err(error) = wal.done(&roots) {
            return Err(taken_back(
                wal,
                &self.run,
                Error::io("write the journal in", &self.run)(error),
            ));
        }
        for ((work, part), tidy) in self.works.iter().zip(&parts).zip(tidying) {
            tidy.carry_out(work, part)?;
        }
        wal.end(&self.run).map_err(Error::io("end the journal in", &self.run))?;
        Ok(Done { changes: self.changes })
    }
}

/// Takes back what was done, and says which error led to that.
fn taken_back(wal: Wal, run: &Path, error: Error) -> Error {
    match wal.take_back(run) {
        Ok(()) => error,
        Err(source) => Error::Half { error: Box::new(error), source },
    }
}

/// A directory that is put back in is held open as long as the undo lasts.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open descriptors stays");
    }
}

impl History {
    /// Tells whether a run was undone; `run` is the directory of its histories.
    #[must_use]
    pub fn undone(run: &Path) -> bool {
        run.join(UNDONE).exists()
    }
}
