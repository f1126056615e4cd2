//! The sessions below a state directory: one directory each, `sessions/ID`; and the events of each (contract P7), kept
//! in the session's log under the same chain.
//!
//! An event is appended in the transaction that folds the ones before it, so that several processes at once can't
//! append what doesn't follow.
//!
//! Invariants:
//! - I1: whoever starts a run holds its [`RunClaim`] from before `run/started` until after `run/finished`. A run without
//!   a claim is over, however its process ended: the next who appends says so first. So a terminal that was killed
//!   doesn't lock its session.
//! - I2: a name belongs to the session whose first event has it; the file that leads from one to the other is only a
//!   short cut, and believed only if the session agrees.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stockade_policy::{SessionEvent, SessionState};

use crate::chain::{Append, Table};
use crate::error::{Error, Result};
use crate::event::{SessionId, Time};
use crate::live::{HeadFile, is_id, is_live};
use crate::run::Ending;
use crate::store::{FILE_NAME, Store, make_private_dir};

/// A session's event as the log keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSessionEvent {
    /// Its number in the session; without gaps.
    pub seq: i64,
    /// When it was appended.
    pub time: Time,
    /// What happened.
    pub event: SessionEvent,
}

/// A session's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDir {
    /// Its id.
    pub id: SessionId,
    /// Its directory.
    pub dir: PathBuf,
    /// When its log was last written.
    pub active: SystemTime,
}

/// Returns the directory of a session.
///
/// # Errors
/// The id can't be a session's.
pub fn session_dir(state: &Path, id: &str) -> Result<PathBuf> {
    if is_id(id) { Ok(state.join("sessions").join(id)) } else { Err(Error::BadId(id.to_owned())) }
}

/// Returns the sessions that have a log, the last active one first.
///
/// # Errors
/// The directory can't be read.
pub fn session_dirs(state: &Path) -> Result<Vec<SessionDir>> {
    let all = state.join("sessions");
    let entries = match fs::read_dir(&all) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", all)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", &all))?;
        let name = entry.file_name();
        let Some(id) = name.to_str().filter(|id| is_id(id)) else { continue };
        let dir = entry.path();
        if let Some(active) = last_written(&dir) {
            found.push(SessionDir { id: SessionId(id.into()), dir, active });
        }
    }
    found.sort_by(|a, b| (b.active, &b.id).cmp(&(a.active, &a.id)));
    Ok(found)
}

/// Returns when the log in a directory was last written, if there is one.
fn last_written(dir: &Path) -> Option<SystemTime> {
    // The head is written with each batch, the database only now and then.
    [dir.join("log.head"), dir.join(FILE_NAME)]
        .iter()
        .filter_map(|file| fs::symlink_metadata(file).and_then(|meta| meta.modified()).ok())
        .max()
}

impl Store {
    /// Returns the session's events, in order.
    ///
    /// # Errors
    /// The log can't be read, or holds an event that no version wrote.
    pub fn session_events(&self) -> Result<Vec<StoredSessionEvent>> {
        let failed = "read the session's events";
        let mut select = self
            .conn
            .prepare_cached("SELECT id, time, body FROM session_event ORDER BY id")
            .map_err(Error::sql(failed))?;
        let rows = select
            .query_map([], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?))
            })
            .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
            .map_err(Error::sql(failed))?;
        rows.into_iter()
            .map(|(seq, time, body)| {
                let event = serde_json::from_str(&body)
                    .map_err(|error| Error::Damaged(format!("session event {seq}: {error}")))?;
                Ok(StoredSessionEvent { seq, time: Time(time), event })
            })
            .collect()
    }

    /// Returns what the session's events add up to, all of them or those up to a number.
    ///
    /// # Errors
    /// The log can't be read, or its events don't follow from each other.
    pub fn session_state(&self, up_to: Option<i64>) -> Result<SessionState> {
        let events = self.session_events()?;
        let wanted = events
            .iter()
            .filter(|stored| up_to.is_none_or(|last| stored.seq <= last))
            .map(|stored| &stored.event);
        SessionState::replay(wanted).map_err(|error| {
            let cause = error.source.to_string();
            Error::Damaged(format!("session {error}: {cause}"))
        })
    }

    /// Appends events in one step, all or none. `choose` sees the state that they will follow, and no other process can
    /// change it in between. Returns the state after them.
    ///
    /// # Errors
    /// `choose` fails, an event can't follow, or the log can't be written.
    pub fn append_session<E: From<Error>>(
        &self,
        choose: impl FnOnce(&SessionState) -> Result<Vec<SessionEvent>, E>,
    ) -> Result<SessionState, E> {
        let failed = "append to the session";
        let mut append = Append::begin(&self.conn).map_err(Error::sql(failed))?;
        let mut state = self.session_state(None)?;
        let mut push = |state: &mut SessionState, event: &SessionEvent| -> Result<()> {
            state.accepts(event).map_err(Error::Session)?;
            state.apply(event).map_err(Error::Session)?;
            let body = serde_json::to_string(event)
                .map_err(|error| Error::Damaged(format!("an event can't be written: {error}")))?;
            append
                .row(Table::SessionEvent, |row| {
                    row.int(Time::now().0)?.text(event.kind())?.text(&body)?;
                    Ok(())
                })
                .map(|_row| ())
                .map_err(Error::sql(failed))
        };
        let dead: Vec<String> =
            state.active().keys().filter(|run| !is_claimed(&self.dir, run)).cloned().collect();
        for run in dead {
            let outcome = Ending::Interrupted.as_str().to_owned();
            let over = SessionEvent::Finished { run, outcome, exit_code: None, signal: None };
            push(&mut state, &over)?;
        }
        for event in choose(&state)? {
            push(&mut state, &event)?;
        }
        let entry = append.commit().map_err(Error::sql(failed))?;
        if entry.id > 0 {
            HeadFile::open(&self.dir)?.set(&entry)?;
        }
        Ok(state)
    }
}

/// Makes a session: `first` is its `session/created` event with the id and the name, and what pins its first state.
/// No two sessions share an id or a name.
///
/// # Errors
/// The id or the name is taken or can't be one, or the session can't be written. Nothing is left then.
pub fn create_session(state: &Path, first: &[SessionEvent]) -> Result<(SessionDir, SessionState)> {
    let Some(SessionEvent::Created { id, name, .. }) = first.first() else {
        return Err(Error::Damaged("a session begins with `session/created`".to_owned()));
    };
    let dir = session_dir(state, id)?;
    let _lock = lock(state)?;
    for wanted in name.iter().chain([id]) {
        if !is_id(wanted) {
            return Err(Error::BadId(wanted.clone()));
        }
        if find_session(state, wanted).is_ok() {
            return Err(Error::SessionExists(wanted.clone()));
        }
    }
    let make = || {
        if let Some(name) = name {
            write_name(state, name, id)?;
        }
        let store = Store::create_or_open(&dir)?;
        let id = SessionId(id.as_str().into());
        store.set_session(&id)?;
        let made = store.append_session(|_| Ok::<_, Error>(first.to_vec()))?;
        Ok((SessionDir { id, dir: dir.clone(), active: SystemTime::now() }, made))
    };
    make().inspect_err(|_| drop(fs::remove_dir_all(&dir)))
}

/// Returns the session with this id, or else with this name.
///
/// # Errors
/// There is none.
pub fn find_session(state: &Path, id_or_name: &str) -> Result<SessionDir> {
    let none = || Error::NoSession(id_or_name.to_owned());
    let dir = session_dir(state, id_or_name).map_err(|_| none())?;
    if let Some(active) = last_written(&dir) {
        return Ok(SessionDir { id: SessionId(id_or_name.into()), dir, active });
    }
    let id = fs::read_to_string(name_file(state, id_or_name)).map_err(|_| none())?;
    let dir = session_dir(state, &id).map_err(|_| none())?;
    let name = Store::open_read_only(&dir).and_then(|store| store.session_name());
    match (name, last_written(&dir)) {
        (Ok(Some(name)), Some(active)) if name == id_or_name => {
            Ok(SessionDir { id: SessionId(id.into()), dir, active })
        }
        _ => Err(none()),
    }
}

/// Returns the file that says whose a name is (I2).
fn name_file(state: &Path, name: &str) -> PathBuf {
    state.join("sessions").join(".names").join(name)
}

fn write_name(state: &Path, name: &str, id: &str) -> Result<()> {
    let file = name_file(state, name);
    make_private_dir(&state.join("sessions").join(".names"))?;
    // Whole or not at all; the lock keeps others from the same.
    let fresh = file.with_file_name(format!(".{name}"));
    fs::write(&fresh, id).map_err(Error::io("write", &fresh))?;
    fs::rename(&fresh, &file).map_err(Error::io("write", &file))
}

/// Removes a session with everything that belongs to it.
///
/// # Errors
/// A run of it goes on, or it can't be removed.
pub fn remove_session(state: &Path, session: &SessionDir) -> Result<()> {
    let _lock = lock(state)?;
    let mut events = Vec::new();
    if let Ok(store) = Store::open_read_only(&session.dir) {
        if let Some(run) = is_busy(&store, &session.dir)? {
            return Err(Error::Busy { session: session.id.to_string(), run });
        }
        events =
            store.session_events().unwrap_or_default().into_iter().map(|one| one.event).collect();
    }
    // Out of the way in one step: what is left after a crash is no session any more.
    let aside = state.join("sessions").join(format!(".removed-{}", session.id));
    fs::rename(&session.dir, &aside).map_err(Error::io("remove", &session.dir))?;
    forget_name(state, &events, &session.id);
    fs::remove_dir_all(&aside).map_err(Error::io("remove", &aside))
}

/// Returns a run of the session that goes on, or is about to.
pub(crate) fn is_busy(store: &Store, dir: &Path) -> Result<Option<String>> {
    let goes_on = |name: &String| is_live(dir, name) || is_claimed(dir, name);
    let runs = store.runs()?.into_iter().filter(|run| run.end.is_none());
    if let Some(run) = runs.map(|run| run.info.id.to_string()).find(goes_on) {
        return Ok(Some(run));
    }
    // A claim comes before anything is in the log.
    let claims = fs::read_dir(dir.join("claims")).into_iter().flatten().flatten();
    Ok(claims.filter_map(|claim| claim.file_name().into_string().ok()).find(goes_on))
}

/// Forgets the name of a session that is gone.
pub(crate) fn forget_name(state: &Path, events: &[SessionEvent], id: &SessionId) {
    if let Some(SessionEvent::Created { name: Some(name), .. }) = events.first()
        && fs::read_to_string(name_file(state, name)).is_ok_and(|known| *id.0 == known)
    {
        // One that stays leads nowhere (I2).
        drop(fs::remove_file(name_file(state, name)));
    }
}

/// Says that whoever started a run of a session lives, until it is dropped (I1).
#[must_use = "a run without a claim is taken for dead"]
#[derive(Debug)]
pub struct RunClaim {
    path: PathBuf,
    _lock: File,
}

impl RunClaim {
    /// Claims a run in a session's directory. It comes before the run's `run/started`.
    ///
    /// # Errors
    /// Somebody has claimed it, or the directory can't be written.
    pub fn take(session_dir: &Path, run: &str) -> Result<Self> {
        if !is_id(run) {
            return Err(Error::BadId(run.to_owned()));
        }
        make_private_dir(&session_dir.join("claims"))?;
        let path = claim_file(session_dir, run);
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io("create", &path))?;
        lock.try_lock().map_err(|error| Error::io("lock", &path)(error.into()))?;
        // The session may have been removed in this moment; who removes it has seen the lock, or we see it gone.
        let (held, there) = (lock.metadata(), fs::symlink_metadata(&path));
        match (held, there) {
            (Ok(held), Ok(there)) if held.ino() == there.ino() && held.dev() == there.dev() => {
                Ok(Self { path, _lock: lock })
            }
            _ => Err(Error::NoSession(session_dir.display().to_string())),
        }
    }
}

impl Drop for RunClaim {
    fn drop(&mut self) {
        // One that stays behind does no harm: nobody holds its lock.
        drop(fs::remove_file(&self.path));
    }
}

fn claim_file(session_dir: &Path, run: &str) -> PathBuf {
    session_dir.join("claims").join(run)
}

fn is_claimed(session_dir: &Path, run: &str) -> bool {
    match File::open(claim_file(session_dir, run)) {
        Ok(file) => matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)),
        Err(_) => false,
    }
}

impl Store {
    fn session_name(&self) -> Result<Option<String>> {
        let first = self.session_events()?.into_iter().next();
        Ok(match first.map(|stored| stored.event) {
            Some(SessionEvent::Created { name, .. }) => name,
            Some(_) | None => None,
        })
    }
}

/// Keeps others from making or removing sessions; ends with the file, however we end.
pub(crate) fn lock(state: &Path) -> Result<File> {
    let sessions = state.join("sessions");
    make_private_dir(&sessions)?;
    let path = sessions.join(".lock");
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(Error::io("create", &path))?;
    file.lock().map_err(Error::io("lock", &path))?;
    Ok(file)
}

/// Returns whether a recorder of this run lives.
#[must_use]
pub fn run_is_live(session_dir: &Path, run: &str) -> bool {
    is_id(run) && is_live(session_dir, run)
}
