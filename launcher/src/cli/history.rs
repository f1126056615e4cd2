//! What `diff` and `undo` share: which run is meant, its history, and what a change is called.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stockade_observe::history::{Change, Error, History, Recovered, recover, recover_all};
use stockade_observe::{RunId, RunRow, SessionDir, Store, find_session, session_dirs};
use stockade_policy::text::Bytes;

use super::complain;
use crate::error::{Code, Failure};
use crate::launch::history_directory;
use crate::session::failure;
use crate::state;

/// The back end of an undo, as the log names it.
pub const UNDO: &str = "undo";

/// Which run.
#[derive(Debug, clap::Args)]
pub struct Which {
    /// The run, by its id. [default: the last one]
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// The session, by id or name. [default: the run's, or the last active one]
    #[arg(long, value_name = "ID")]
    session: Option<String>,
}

/// A run, and where its history is.
pub struct Found {
    /// Its session.
    pub session: SessionDir,
    /// What the log says of it.
    pub run: RunRow,
    /// The directory of its histories.
    pub place: PathBuf,
    /// The state directory.
    pub state: PathBuf,
}

impl Which {
    /// Finds the run.
    pub fn find(&self) -> Result<Found, Failure> {
        let state = state::directory()?;
        let sessions = match &self.session {
            Some(name) => vec![find_session(&state, name).map_err(failure)?],
            None => session_dirs(&state).map_err(failure)?,
        };
        for session in sessions {
            // Runs whose recorders died are over.
            drop(Store::settle(&session.dir));
            let Ok(store) = Store::open_read_only(&session.dir) else { continue };
            let run = match &self.run {
                Some(run) => store.run(&RunId(run.as_str().into())).ok(),
                None => {
                    let runs = store.runs().map_err(failure)?;
                    runs.into_iter().rev().find(|run| run.info.backend != UNDO)
                }
            };
            if let Some(run) = run {
                let place = history_directory(&session.dir, &run.info.id.0);
                return Ok(Found { session, run, place, state });
            }
        }
        let what = match &self.run {
            Some(run) => format!("there is no run `{run}`"),
            None => "no run is recorded".to_owned(),
        };
        Err(Failure::new(Code::SessionNotFound, what)
            .help("`stockade log --runs` lists the runs of a session"))
    }
}

impl Found {
    /// Takes back what an undo of the run had done when it was killed.
    pub fn recover(&self) -> Result<(), Failure> {
        match recover(&self.place) {
            Ok(recovered) => {
                tell_recovered(&self.run.info.id.0, recovered);
                Ok(())
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Reads the run's history.
    pub fn open(&self) -> Result<Vec<History>, Failure> {
        History::open(&self.place).map_err(|error| self.failure(error))
    }

    /// Says what went wrong with it.
    pub fn failure(&self, error: Error) -> Failure {
        let run = &self.run.info.id;
        match error {
            Error::None => Failure::new(Code::FsNotFound, format!("run `{run}` kept no history"))
                .help(
                    "run it with --keep-history, or set `keep_history = true` in the configuration",
                ),
            Error::Dropped(why) => Failure::new(
                Code::FsNotFound,
                format!("the history of run `{run}` was removed: {why}"),
            ),
            Error::Undone => {
                Failure::new(Code::FsNotFound, format!("run `{run}` was undone already"))
            }
            Error::Busy => {
                Failure::new(Code::SessionBusy, format!("run `{run}` is being undone just now"))
            }
            Error::Half { error, source } => {
                let what =
                    format!("run `{run}` was put back in part, and that couldn't be taken back");
                Failure::new(Code::FsIoError, what).because(format!("{error}; {source}")).help(
                    "make that possible, and run `stockade undo` again: it goes on from there",
                )
            }
            Error::Refused(refusals) => {
                let what = format!("run `{run}` can't be undone, and nothing was touched");
                let mut failure = Failure::new(Code::FsStaleVersion, what);
                for refusal in refusals.iter().take(NAMED) {
                    failure = failure.help(format!("{}: {}", shown(&refusal.path), refusal.why));
                }
                if refusals.len() > NAMED {
                    failure = failure.help(format!("and {} more paths", refusals.len() - NAMED));
                }
                failure.help(
                    "move these paths aside, or put them back as the run left them, and try again; \
                     `stockade diff` shows what the run did",
                )
            }
            error @ (Error::Io { .. } | Error::Damaged(_)) => {
                let mut failure = Failure::new(Code::FsIoError, error.to_string());
                if let Some(cause) = std::error::Error::source(&error) {
                    failure = failure.because(cause.to_string());
                }
                failure
            }
        }
    }
}

/// Says what became of an undo that was killed.
pub fn tell_recovered(run: &str, recovered: Recovered) {
    match recovered {
        Recovered::Nothing => {}
        Recovered::TakenBack => complain(&format!(
            "stockade: an undo of run `{run}` was interrupted: what it had done is taken back"
        )),
        Recovered::Finished => complain(&format!(
            "stockade: an undo of run `{run}` was interrupted when everything was put back: it is finished"
        )),
    }
}

/// Recovers every run of a state directory whose undo was killed.
pub fn recover_undos(state: &Path) {
    for (place, result) in recover_all(state) {
        let run = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match result {
            Ok(recovered) => tell_recovered(&run, recovered),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                complain(&format!(
                    "stockade: an undo of run `{run}` was interrupted, and what it had done can't be taken back: {error}{}",
                    cause.unwrap_or_default()
                ));
            }
        }
    }
}

/// How many paths an error names.
const NAMED: usize = 50;

/// Shows a path so that its name can't write to the terminal.
pub fn shown(path: &Path) -> String {
    super::log::path(path)
}

/// Writes a change for programs.
pub fn to_json(change: &Change) -> serde_json::Map<String, Value> {
    let mut object = serde_json::Map::new();
    object.insert("kind".to_owned(), change.kind.as_str().into());
    object.insert("directory".to_owned(), change.is_directory().into());
    for (name, path) in [("from", &change.from), ("to", &change.to)] {
        let Some(path) = path else { continue };
        object.insert(name.to_owned(), path.to_string_lossy().into());
        if path.to_str().is_none() {
            object.insert(format!("{name}_bytes"), json!(Bytes::new(path.as_os_str().as_bytes())));
        }
    }
    for (name, side) in [("old_mode", &change.old), ("new_mode", &change.new)] {
        if let Some(side) = side {
            object.insert(name.to_owned(), format!("{:06o}", side.mode).into());
        }
    }
    object
}
