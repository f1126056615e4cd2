//! Requests that wait for an answer from elsewhere: another terminal, `stockade top`, a script.
//!
//! Whoever asks puts the request into `asking/` in the state directory and holds a lock on it for as long as it waits;
//! whoever answers puts the answer beside it.
//!
//! Invariants:
//! - Q1: the directory is the owner's alone (mode 0700), and no confined command can reach the state directory. A
//!   request and an answer count if they are the owner's own plain files.
//! - Q2: the first answer counts, and only to the request that it names; nobody can answer one that nobody waits for.
//! - Q3: a request is there whole or not at all, and gone when the asking ends. What a killed asker left is cleared away.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_policy::{ApprovalAnswer, ApprovalRequest};

use super::{Approver, Wait, Woken, cancelled};
use crate::state;

/// How soon an answer is seen.
const LOOK: Duration = Duration::from_millis(50);

/// No request and no answer is longer.
const LONGEST: u64 = 1 << 20;

/// Leaves requests in the state directory, for whoever answers them.
#[derive(Debug)]
pub struct Queue {
    directory: PathBuf,
}

/// Why a request wasn't answered.
#[derive(Debug, thiserror::Error)]
pub enum NotAnswered {
    /// It was never asked, is over, or its asker is gone.
    #[error("no request `{0}` waits for an answer")]
    NotWaiting(String),
    /// Somebody was quicker.
    #[error("request `{0}` is answered already")]
    Answered(String),
    /// The files can't be used.
    #[error("failed to use the requests in `{}`", .path.display())]
    Io {
        /// Where they are.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn directory(state: &Path) -> PathBuf {
    state.join("asking")
}

/// Tells whether an id can be a file's name; requests come from files, whose content may say anything.
fn is_id(id: &str) -> bool {
    state::is_session_name(id)
}

fn request_file(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.request"))
}

fn answer_file(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.answer"))
}

/// Opens one of our own plain files (Q1).
fn open_own(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if own && metadata.is_file() && metadata.len() <= LONGEST {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a small file of the owner's own"))
}

fn text_of(mut file: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// Tells whether somebody waits with this request.
fn is_awaited(request: &File) -> bool {
    matches!(request.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// A request in the directory, which is gone when this is dropped.
#[derive(Debug)]
struct Posted {
    request: PathBuf,
    answer: PathBuf,
    _lock: File,
}

impl Drop for Posted {
    fn drop(&mut self) {
        // Without a lock it counts for nothing, so one that stays does no harm.
        drop(fs::remove_file(&self.request));
        drop(fs::remove_file(&self.answer));
    }
}

impl Queue {
    /// Makes the directory for requests below a state directory.
    ///
    /// # Errors
    /// It can't be made, or isn't the caller's alone.
    pub fn new(state: &Path) -> Result<Self, crate::error::Failure> {
        let directory = directory(state);
        state::create(&directory)?;
        Ok(Self { directory })
    }

    fn post(&self, request: &ApprovalRequest) -> io::Result<Posted> {
        if !is_id(&request.id) {
            return Err(io::Error::other("the request's id can't be a file's name"));
        }
        let mut fresh =
            tempfile::Builder::new().prefix(".request-").tempfile_in(&self.directory)?;
        fresh.write_all(&serde_json::to_vec(request)?)?;
        let lock = fresh.as_file().try_clone()?;
        lock.try_lock()?;
        let posted = Posted {
            request: request_file(&self.directory, &request.id),
            answer: answer_file(&self.directory, &request.id),
            _lock: lock,
        };
        fresh.persist_noclobber(&posted.request).map_err(|error| error.error)?;
        Ok(posted)
    }
}

impl Approver for Queue {
    fn ask(
        &mut self,
        request: &ApprovalRequest,
        wait: &Wait<'_>,
    ) -> Result<ApprovalAnswer, String> {
        let failed = |error: io::Error| format!("the request can't be left: {error}");
        let posted = self.post(request).map_err(failed)?;
        loop {
            match wait.poll(&mut Vec::new(), Some(LOOK)).map_err(failed)? {
                Woken::Ready => {}
                Woken::Cancelled => return Ok(cancelled()),
                Woken::TimedOut => return Err(wait.timed_out()),
            }
            let said = match open_own(&posted.answer).and_then(|file| text_of(&file)) {
                Ok(said) => said,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(format!("the answer can't be read: {error}")),
            };
            let answer: ApprovalAnswer = serde_json::from_slice(&said)
                .map_err(|error| format!("the answer isn't understood: {error}"))?;
            // Here it must say which request it means.
            return if answer.id.as_deref() == Some(&request.id) {
                Ok(answer)
            } else {
                Err("the answer is to another request".to_owned())
            };
        }
    }
}

/// Returns the requests that wait for an answer, the oldest first.
///
/// # Errors
/// The directory can't be read.
pub fn waiting(state: &Path) -> io::Result<Vec<ApprovalRequest>> {
    let directory = directory(state);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        clear(&path);
        let name = path.file_stem().and_then(|name| name.to_str());
        let (Some(id), true) = (name, path.extension().is_some_and(|kind| kind == "request"))
        else {
            continue;
        };
        // One may go at any moment.
        let Ok(file) = open_own(&path) else { continue };
        if !is_awaited(&file) {
            drop(fs::remove_file(answer_file(&directory, id)));
            drop(fs::remove_file(&path));
            continue;
        }
        let read = text_of(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let answered = answer_file(&directory, id).symlink_metadata().is_ok();
        found.extend(read.filter(|request: &ApprovalRequest| request.id == *id && !answered));
    }
    // Ids sort by the time at which they were made.
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

/// Removes what somebody who was killed while writing it left long ago.
fn clear(path: &Path) {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let old = || {
        let written = path.symlink_metadata().and_then(|metadata| metadata.modified());
        written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > Duration::from_secs(3600)))
    };
    if (name.starts_with(".request-") || name.starts_with(".answer-")) && old() {
        // Another may have been quicker.
        drop(fs::remove_file(path));
    }
}

/// Answers the request that the answer names.
///
/// # Errors
/// Nobody waits for it, or somebody was quicker.
pub fn answer(state: &Path, id: &str, mut answer: ApprovalAnswer) -> Result<(), NotAnswered> {
    let directory = directory(state);
    let none = || NotAnswered::NotWaiting(id.to_owned());
    let failed = |source: io::Error| NotAnswered::Io { path: directory.clone(), source };
    if !is_id(id) {
        return Err(none());
    }
    let request = open_own(&request_file(&directory, id)).map_err(|_| none())?;
    if !is_awaited(&request) {
        return Err(none());
    }
    answer.id = Some(id.to_owned());
    let mut fresh =
        tempfile::Builder::new().prefix(".answer-").tempfile_in(&directory).map_err(failed)?;
    serde_json::to_vec(&answer)
        .map_err(io::Error::from)
        .and_then(|text| fresh.write_all(&text))
        .map_err(failed)?;
    match fresh.persist_noclobber(answer_file(&directory, id)) {
        Ok(_) if request_file(&directory, id).symlink_metadata().is_ok() => Ok(()),
        Ok(_) => {
            // It ended in this moment.
            drop(fs::remove_file(answer_file(&directory, id)));
            Err(none())
        }
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
            Err(NotAnswered::Answered(id.to_owned()))
        }
        Err(error) => Err(failed(error.error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::thread;
    use std::time::Instant;

    use stockade_policy::{Escalation, Mode, Verdict};

    use super::*;

    fn request(id: &str) -> ApprovalRequest {
        ApprovalRequest {
            v: 1,
            id: id.into(),
            session: None,
            escalation: Escalation::new(Mode::ReadOnly, Mode::WorkspaceWrite, "x").unwrap(),
            argv: Vec::new(),
            cwd: Default::default(),
            refused: Vec::new(),
        }
    }

    fn says(decision: Verdict) -> ApprovalAnswer {
        ApprovalAnswer { decision, id: None, reason: None }
    }

    fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it never came");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_first_answer_counts_and_none_comes_too_late() {
        let state = tempfile::tempdir().unwrap();
        let long = Wait::new(Duration::from_secs(60), None);
        let mut queue = Queue::new(state.path()).unwrap();
        let mode = fs::metadata(state.path().join("asking")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(waiting(state.path()).unwrap().is_empty());
        thread::scope(|scope| {
            let asking = scope.spawn(|| queue.ask(&request("e1"), &long));
            let seen = until(|| waiting(state.path()).unwrap().pop());
            assert_eq!(seen, request("e1"));
            let none = answer(state.path(), "e2", says(Verdict::AllowedOnce)).unwrap_err();
            assert!(matches!(none, NotAnswered::NotWaiting(_)), "{none}");
            assert!(answer(state.path(), "../e1", says(Verdict::AllowedOnce)).is_err());
            answer(state.path(), "e1", says(Verdict::Rejected)).unwrap();
            drop(answer(state.path(), "e1", says(Verdict::AllowedOnce)).unwrap_err());
            let given = asking.join().unwrap().unwrap();
            assert_eq!((given.decision, given.id.as_deref()), (Verdict::Rejected, Some("e1")));
        });
        assert!(waiting(state.path()).unwrap().is_empty());
        assert!(answer(state.path(), "e1", says(Verdict::AllowedOnce)).is_err());
        assert_eq!(fs::read_dir(state.path().join("asking")).unwrap().count(), 0);
    }

    #[test]
    fn silence_and_calling_off_leave_nothing() {
        let state = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(state.path()).unwrap();
        let short = Wait::new(Duration::from_millis(1), None);
        assert!(queue.ask(&request("e1"), &short).unwrap_err().contains("nobody answered"));
        let (reader, writer) = io::pipe().unwrap();
        drop(writer);
        let called_off = Wait::new(Duration::from_secs(60), Some(reader.as_fd()));
        assert_eq!(queue.ask(&request("e2"), &called_off), Ok(cancelled()));
        assert_eq!(fs::read_dir(state.path().join("asking")).unwrap().count(), 0);
    }

    #[test]
    fn what_nobody_waits_for_and_what_is_no_answer_allows_nothing() {
        let state = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(state.path()).unwrap();
        let asking = state.path().join("asking");
        // As a killed asker leaves it.
        fs::write(request_file(&asking, "dead"), serde_json::to_vec(&request("dead")).unwrap())
            .unwrap();
        fs::write(answer_file(&asking, "dead"), "{}").unwrap();
        assert!(answer(state.path(), "dead", says(Verdict::AllowedOnce)).is_err());
        assert!(waiting(state.path()).unwrap().is_empty());
        assert_eq!(fs::read_dir(&asking).unwrap().count(), 0, "it is cleared away");
        let long = Wait::new(Duration::from_secs(60), None);
        let allowing = |id: &str| format!("{{\"decision\":\"allowed-once\",\"id\":\"{id}\"}}");
        for said in
            [allowing("other"), "{\"decision\":\"allowed-once\"}".to_owned(), "yes".to_owned()]
        {
            fs::write(answer_file(&asking, "e1"), &said).unwrap();
            let answer = queue.ask(&request("e1"), &long);
            assert!(answer.is_err(), "{said}: {answer:?}");
        }
        let elsewhere = state.path().join("elsewhere");
        fs::write(&elsewhere, allowing("e1")).unwrap();
        symlink(&elsewhere, answer_file(&asking, "e1")).unwrap();
        let answer = queue.ask(&request("e1"), &long);
        assert!(answer.is_err(), "a link is no answer: {answer:?}");
    }
}
