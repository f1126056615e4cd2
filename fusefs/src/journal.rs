//! Where staged names may have been left by a server that was killed between two system calls (contract F7).
//!
//! Before the first publication in a directory, its path is added to a file of this server's in the state directory. A
//! server that ends removes its file. One that was killed leaves it, and the next server of the same source sweeps the
//! directories that it names. Nothing is synced: a killed process loses none of what it wrote, and a crash of the
//! machine leaves at most a hidden file in a directory, which the next listing removes.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use stockade_observe::Key;

use crate::host;
use crate::ops::staged_by;

#[derive(Debug)]
pub struct Journal {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    noted: HashSet<OsString>,
}

impl Journal {
    /// Sweeps what killed servers of the same source have left, and prepares this server's file below `directory`.
    pub fn start(directory: Option<&Path>, source: Key) -> Self {
        let prefix = format!("{:x}-{:x}-", source.dev, source.ino);
        let path = directory.map(|directory| {
            if let Err(error) = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
            {
                tracing::debug!(%error, "no journal of staged names");
            }
            sweep(directory, &prefix);
            directory.join(format!("{prefix}{}-{}", std::process::id(), source.generation))
        });
        Self { path, state: Mutex::default() }
    }

    /// Notes that a hidden name is about to be made in a directory.
    pub fn note(&self, dir: BorrowedFd<'_>) {
        let Some(path) = &self.path else { return };
        let Ok(place) = rustix::fs::readlinkat(CWD, host::magic_link(dir), Vec::new()) else {
            return;
        };
        let place = OsString::from_vec(place.into_bytes());
        let mut state = self.state.lock();
        if !state.noted.insert(place.clone()) {
            return;
        }
        if state.file.is_none() {
            state.file = OpenOptions::new().create(true).append(true).mode(0o600).open(path).ok();
        }
        // One line a directory; a name with a newline is noted as its hexadecimal digits would not be: NUL ends it.
        let line = [place.as_bytes(), b"\0"].concat();
        if let Some(file) = &mut state.file
            && let Err(error) = file.write_all(&line)
        {
            tracing::debug!(%error, "the journal of staged names is incomplete");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| self.state.lock().file.is_some())
            && let Err(error) = fs::remove_file(path)
        {
            tracing::debug!(%error, "the journal of staged names stays behind");
        }
    }
}

fn sweep(directory: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(prefix)) else { continue };
        let Some(pid) = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if is_alive(pid) {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        for place in BufReader::new(file).split(0).map_while(Result::ok) {
            sweep_directory(Path::new(&OsString::from_vec(place)));
        }
        if let Err(error) = fs::remove_file(entry.path()) {
            tracing::debug!(%error, "a journal of staged names stays behind");
        }
    }
}

fn sweep_directory(place: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::openat(CWD, place, flags, Mode::empty()) else { return };
    let Ok(entries) = rustix::fs::Dir::read_from(&dir) else { return };
    for entry in entries.flatten() {
        let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
        if staged_by(&name).is_some_and(|pid| !is_alive(pid)) {
            remove(&dir, &name);
        }
    }
}

fn remove(dir: &OwnedFd, name: &OsString) {
    if let Err(error) = rustix::fs::unlinkat(dir.as_fd(), name, AtFlags::empty()) {
        tracing::debug!(%error, "a staged file stays behind");
    }
}

/// Tells whether a process exists, whoever owns it.
pub fn is_alive(pid: u32) -> bool {
    rustix::process::Pid::from_raw(pid.cast_signed())
        .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_start_removes_what_a_killed_server_left() {
        let (state, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = Key { dev: 1, ino: 2, generation: 3 };
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        let pid = dead.id();
        dead.wait().unwrap();
        let left = source.path().join(format!(".stockade-{pid}-7.tmp"));
        let mine = source.path().join(format!(".stockade-{}-7.tmp", std::process::id()));
        let other = source.path().join(".stockade-x.tmp");
        for file in [&left, &mine, &other] {
            fs::write(file, "x").unwrap();
        }
        let line = [source.path().as_os_str().as_bytes(), b"\0"].concat();
        fs::write(state.path().join(format!("1-2-{pid}-3")), line).unwrap();
        let journal = Journal::start(Some(state.path()), key);
        assert!(!left.exists() && mine.exists() && other.exists());
        let dir = File::open(source.path()).unwrap();
        journal.note(dir.as_fd());
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1);
        drop(journal);
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
    }
}
