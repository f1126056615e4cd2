//! The session that a run belongs to (contract P4, P5, P7): found or made, its mode in force, its runs.
//!
//! Invariants:
//! - I1: `run/started` is written in the transaction that resolves the mode, so the mode a run has is the one that was
//!   in force then, whoever else switches at the same time.
//! - I2: nothing runs before `run/started` is written.
//! - I3: a permit is used up by the run that it widens. Where the session changed since it was asked for, nothing runs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stockade_observe::{
    Error, FILE_NAME, RunClaim, RunOutcome, SessionDir, Store, create_session, find_session,
};
use stockade_policy::text::Bytes;
use stockade_policy::{
    ApprovalRequest, Mode, ModeSource, OutcomeKind, Permit, Resolution, SessionEvent, SessionState,
};

use crate::error::{Code, Failure};

/// A session, open for appending.
#[derive(Debug)]
pub struct Session {
    id: String,
    directory: PathBuf,
    store: Store,
}

/// What somebody wants to run in a session.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The run's id.
    pub run: &'a str,
    /// The command.
    pub argv: &'a [OsString],
    /// Whether it is a terminal, so that the session's mode can't change while it lives (contract L7).
    pub terminal: bool,
    /// The deployment's mode, for a session that has none.
    pub default: Mode,
}

/// A run that was started in a session and has not finished. Dropped without [`OpenRun::finish`], it counts as
/// interrupted.
#[derive(Debug)]
#[must_use = "a run that isn't finished counts as interrupted"]
pub struct OpenRun {
    session: Session,
    run: String,
    resolution: Resolution,
    _claim: RunClaim,
}

/// Why nothing was appended.
enum Refused {
    Log(Error),
    Failure(Failure),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Log(error)
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Log(error) => failure(error),
            Refused::Failure(failure) => failure,
        }
    }
}

/// Makes the first event of a session.
#[must_use]
pub fn created(id: &str, name: Option<&str>, root: &Path) -> SessionEvent {
    SessionEvent::Created {
        id: id.to_owned(),
        name: name.map(str::to_owned),
        root: Bytes::from(root),
    }
}

impl Session {
    /// Opens the session with this id or name.
    ///
    /// # Errors
    /// There is none, or it can't be written.
    pub fn open(state: &Path, id_or_name: &str) -> Result<Self, Failure> {
        let SessionDir { id, dir, .. } = find_session(state, id_or_name).map_err(failure)?;
        let store = Store::create_or_open(&dir).map_err(failure)?;
        Ok(Self { id: id.to_string(), directory: dir, store })
    }

    /// Makes a session of these events, the first of which is its [`created`].
    ///
    /// # Errors
    /// Its id or its name is taken, or it can't be written.
    pub fn create(state: &Path, first: &[SessionEvent]) -> Result<Self, Failure> {
        let (SessionDir { id, dir, .. }, _) = create_session(state, first).map_err(failure)?;
        let store = Store::create_or_open(&dir).map_err(failure)?;
        Ok(Self { id: id.to_string(), directory: dir, store })
    }

    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns its directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns its log.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns what its events add up to.
    ///
    /// # Errors
    /// They can't be read.
    pub fn state(&self) -> Result<SessionState, Failure> {
        self.store.session_state(None).map_err(failure)
    }

    /// Appends events, all or none; `choose` sees the state that they will follow.
    ///
    /// # Errors
    /// An event can't follow (`SESSION_BUSY` while a terminal holds the mode), or the log can't be written.
    pub fn append(
        &self,
        choose: impl FnOnce(&SessionState) -> Result<Vec<SessionEvent>, Failure>,
    ) -> Result<SessionState, Failure> {
        self.store
            .append_session(|state| choose(state).map_err(Refused::Failure))
            .map_err(Failure::from)
    }

    /// Writes that a wider mode is asked for. The mode that the request speaks of must still be in force.
    ///
    /// # Errors
    /// The session's mode is another one by now, or the log can't be written.
    pub fn requested(&self, request: &ApprovalRequest, default: Mode) -> Result<(), Failure> {
        self.append(|state| {
            let mode = state.resolve(default, None).mode;
            if mode != request.escalation.from() {
                return Err(changed(mode));
            }
            Ok(vec![SessionEvent::Requested {
                request: request.id.clone(),
                escalation: request.escalation.clone(),
                argv: request.argv.clone(),
            }])
        })
        .map(drop)
    }

    /// Writes how a request ended.
    ///
    /// # Errors
    /// The log can't be written.
    pub fn decided(
        &self,
        request: &str,
        outcome: OutcomeKind,
        reason: Option<String>,
    ) -> Result<(), Failure> {
        let request = request.to_owned();
        self.append(|_| Ok(vec![SessionEvent::Decided { request, outcome, reason }])).map(drop)
    }

    /// Starts a run: resolves its mode and writes that it begins, in one step (I1).
    ///
    /// # Errors
    /// The permit no longer fits the session, or the log can't be written.
    pub fn start(self, wanted: Wanted<'_>, permit: Option<Permit>) -> Result<OpenRun, Failure> {
        let claim = RunClaim::take(&self.directory, wanted.run).map_err(failure)?;
        if !self.directory.join(FILE_NAME).exists() {
            // It was removed after it had been opened; the claim has made the directory anew.
            drop(claim);
            drop(std::fs::remove_dir(self.directory.join("claims")));
            drop(std::fs::remove_dir(&self.directory));
            return Err(failure(Error::NoSession(self.id)));
        }
        let mut resolved = None;
        self.append(|state| {
            let request = permit.as_ref().map(|permit| permit.request().to_owned());
            let resolution = state.resolve(wanted.default, permit);
            if request.is_some() && resolution.source != ModeSource::Approved {
                return Err(changed(resolution.mode));
            }
            resolved = Some(resolution);
            Ok(vec![started(wanted, resolution, request)])
        })?;
        let resolution =
            resolved.ok_or_else(|| Failure::new(Code::RunnerFailed, "the session gave no mode"))?;
        let run = wanted.run.to_owned();
        Ok(OpenRun { session: self, run, resolution, _claim: claim })
    }
}

/// Makes a session for one run, which starts in the same step.
///
/// # Errors
/// The session can't be written.
pub fn start_alone(
    state: &Path,
    id: &str,
    root: &Path,
    wanted: Wanted<'_>,
) -> Result<OpenRun, Failure> {
    let directory = stockade_observe::session_dir(state, id).map_err(failure)?;
    let claim = RunClaim::take(&directory, wanted.run).map_err(failure)?;
    let resolution = Resolution::resolve(wanted.default, None, None);
    let first = [created(id, None, root), started(wanted, resolution, None)];
    let session = Session::create(state, &first)?;
    Ok(OpenRun { session, run: wanted.run.to_owned(), resolution, _claim: claim })
}

fn started(wanted: Wanted<'_>, resolution: Resolution, request: Option<String>) -> SessionEvent {
    SessionEvent::Started {
        run: wanted.run.to_owned(),
        mode: resolution.mode,
        source: resolution.source,
        request,
        argv: arguments(wanted.argv),
        terminal: wanted.terminal,
    }
}

/// Returns a command as events keep it.
#[must_use]
pub fn arguments(argv: &[OsString]) -> Vec<Bytes> {
    argv.iter().map(|word| Bytes::new(word.as_bytes())).collect()
}

fn changed(mode: Mode) -> Failure {
    let what = format!("the session's mode is `{mode}` by now, so the request no longer fits");
    Failure::new(Code::ApprovalCanceled, what).help("look at the session, and ask again")
}

impl OpenRun {
    /// Returns the mode that was in force, and where it came from.
    #[must_use]
    pub const fn resolution(&self) -> Resolution {
        self.resolution
    }

    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.run
    }

    /// Returns the session.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Writes how it ended.
    ///
    /// # Errors
    /// The log can't be written; the next who appends says that the run is over.
    pub fn finish(self, outcome: &RunOutcome) -> Result<(), Failure> {
        let event = SessionEvent::Finished {
            run: self.run.clone(),
            outcome: outcome.ending.as_str().to_owned(),
            exit_code: outcome.exit_code,
            signal: outcome.signal,
        };
        self.session.append(|_| Ok(vec![event])).map(drop)
    }
}

/// Turns an error of the log into a failure with its code.
#[must_use]
pub fn failure(error: Error) -> Failure {
    let code = match &error {
        Error::NoSession(_) | Error::NoRun(_) | Error::NoLog(_) => Code::SessionNotFound,
        Error::Busy { .. } => Code::SessionBusy,
        Error::Session(error) if error.code() == Code::SessionBusy.as_str() => Code::SessionBusy,
        Error::Filter(_) | Error::BadId(_) | Error::SessionExists(_) => Code::ConfigInvalid,
        Error::Io { .. }
        | Error::Sql { .. }
        | Error::NotALog(_)
        | Error::Newer { .. }
        | Error::Damaged(_)
        | Error::OtherSession { .. }
        | Error::Session(_)
        | Error::Recording(_)
        | Error::Stopped => Code::RunnerFailed,
    };
    let busy = "end the terminal first; a single run can ask with `--sandbox-permissions`";
    let help = if matches!(error, Error::NoSession(_)) {
        Some("`stockade session list` shows those that exist")
    } else if matches!(error, Error::Session(_)) && code == Code::SessionBusy {
        Some(busy)
    } else if matches!(error, Error::Busy { .. }) {
        Some("wait for the run to end, or end it")
    } else if matches!(error, Error::Io { .. }) {
        Some("set STOCKADE_STATE to an absolute path of a directory that you can write")
    } else if matches!(error, Error::SessionExists(_)) {
        Some("choose another name")
    } else {
        None
    };
    let failure = Failure::new(code, error.to_string());
    let failure = match std::error::Error::source(&error) {
        Some(cause) => failure.because(cause.to_string()),
        None => failure,
    };
    help.into_iter().fold(failure, Failure::help)
}

#[cfg(test)]
mod tests {
    use stockade_policy::{ApprovalAnswer, ApprovalOutcome, Escalation, Verdict};

    use super::*;

    fn wanted(run: &str) -> Wanted<'_> {
        Wanted { run, argv: &[], terminal: false, default: Mode::ReadOnly }
    }

    fn request(to: Mode) -> ApprovalRequest {
        ApprovalRequest {
            v: 1,
            id: "e1".into(),
            session: Some("s1".into()),
            escalation: Escalation::new(Mode::ReadOnly, to, "because").unwrap(),
            argv: Vec::new(),
            cwd: Bytes::from("/w"),
            refused: Vec::new(),
        }
    }

    fn permit(request: ApprovalRequest) -> Permit {
        let answer = ApprovalAnswer { decision: Verdict::AllowedOnce, id: None, reason: None };
        let ApprovalOutcome::AllowedOnce(permit) = request.settle(Ok(answer)) else { panic!() };
        permit
    }

    #[test]
    fn a_run_has_the_mode_in_force_and_an_approval_serves_once() {
        let state = tempfile::tempdir().unwrap();
        let open = || Session::open(state.path(), "s1").unwrap();
        Session::create(state.path(), &[created("s1", None, Path::new("/w"))]).unwrap();
        let run = open().start(wanted("r1"), None).unwrap();
        assert_eq!(run.resolution().source, ModeSource::Default);
        run.finish(&RunOutcome::exited(0)).unwrap();
        let ask = request(Mode::WorkspaceWrite);
        open().requested(&ask, Mode::ReadOnly).unwrap();
        open().decided("e1", OutcomeKind::AllowedOnce, None).unwrap();
        let run = open().start(wanted("r2"), Some(permit(ask.clone()))).unwrap();
        assert_eq!(run.resolution().mode, Mode::WorkspaceWrite);
        assert_eq!(run.resolution().source, ModeSource::Approved);
        run.finish(&RunOutcome::exited(0)).unwrap();
        // The same request again: the log knows that it was used.
        let again = open().start(wanted("r3"), Some(permit(ask))).unwrap_err();
        assert_eq!(again.code(), Code::RunnerFailed);
        let run = open().start(wanted("r4"), None).unwrap();
        assert_eq!(run.resolution().mode, Mode::ReadOnly);
        drop(run);
        let after = open().append(|_| Ok(vec![SessionEvent::mode(Mode::WorkspaceWrite)])).unwrap();
        assert!(after.active().is_empty());
        assert_eq!(
            open().requested(&request(Mode::WorkspaceWrite), Mode::ReadOnly).unwrap_err().code(),
            Code::ApprovalCanceled
        );
    }

    #[test]
    fn an_approval_is_void_when_the_session_changed() {
        let state = tempfile::tempdir().unwrap();
        let first = [created("s1", None, Path::new("/w")), SessionEvent::mode(Mode::ReadOnly)];
        let session = Session::create(state.path(), &first).unwrap();
        let ask = request(Mode::WorkspaceWrite);
        session.requested(&ask, Mode::ReadOnly).unwrap();
        session.decided("e1", OutcomeKind::AllowedOnce, None).unwrap();
        session.append(|_| Ok(vec![SessionEvent::mode(Mode::DangerFullAccess)])).unwrap();
        let refused = session.start(wanted("r1"), Some(permit(ask))).unwrap_err();
        assert_eq!(refused.code(), Code::ApprovalCanceled);
        let events = Store::open_read_only(&state.path().join("sessions/s1")).unwrap();
        assert!(events.session_state(None).unwrap().active().is_empty());
    }
}
