//! Keeping: the journal is written and images are made while the run goes on.
//!
//! Lock order: `images`, then `state`. An image is made under `images` alone, so that names go on changing meanwhile.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use stockade_policy::text::Bytes;

use super::image::{copy, digest, look, magic, reopen};
use super::record::{File, Id, Image, Left, Record, VERSION};

/// The name of the journal in a history's directory.
pub(crate) const JOURNAL: &str = "journal";
/// The name of one that couldn't be written to its end, while the run went on.
pub(crate) const BROKEN: &str = "journal-broken";

/// How much a history may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of images.
    pub size: u64,
}

/// Writes one history.
#[derive(Debug)]
pub struct Keeper {
    place: OwnedFd,
    bounds: Bounds,
    images: Mutex<Images>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct Images {
    /// The images that are links.
    links: HashMap<Id, Image>,
    kept: HashSet<Id>,
    next: u64,
    used: u64,
}

#[derive(Debug)]
struct State {
    place: OwnedFd,
    journal: fs::File,
    dirs: HashSet<Id>,
    files: HashSet<Id>,
    born: HashSet<Id>,
    entries: u64,
    gaps: u64,
    broken: bool,
}

impl State {
    fn write(&mut self, record: &Record) {
        if self.broken {
            return;
        }
        let written = serde_json::to_vec(record).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            // In one call, so that a killed process leaves whole lines but perhaps the last.
            self.journal.write_all(&line)
        });
        if let Err(error) = written {
            // From here on nothing is known, so nothing more is said: the history isn't whole (H2).
            tracing::warn!(%error, "the history ends here");
            self.broken = true;
            // Where there is no room for a word, there is for another name.
            if let Err(error) = rustix::fs::renameat(&self.place, JOURNAL, &self.place, BROKEN) {
                tracing::warn!(%error, "the history doesn't say that it isn't whole");
            }
        }
    }
}

impl Keeper {
    /// Begins a history in a directory that doesn't exist yet.
    ///
    /// # Errors
    /// It can't be made.
    pub fn start(
        directory: &Path,
        (base, source): (&Path, &Path),
        root: Id,
        bounds: Bounds,
    ) -> io::Result<Self> {
        if let Some(parent) = directory.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        DirBuilder::new().mode(0o700).create(directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(directory, flags, Mode::empty())?;
        let journal = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(directory.join(JOURNAL))?;
        let mut state = State {
            place: place.try_clone()?,
            journal,
            dirs: HashSet::from([root]),
            files: HashSet::new(),
            born: HashSet::new(),
            entries: 0,
            gaps: 0,
            broken: false,
        };
        let (base, source) = (Bytes::from(base), Bytes::from(source));
        state.write(&Record::Head { v: VERSION, base, source, root });
        if state.broken {
            return Err(io::Error::other("the journal can't be written"));
        }
        Ok(Self { place, bounds, images: Mutex::default(), state: Mutex::new(state) })
    }

    /// Tells whether a directory was mentioned.
    pub fn knows_directory(&self, id: Id) -> bool {
        self.state.lock().dirs.contains(&id)
    }

    /// Mentions a directory; the one that holds it was mentioned before.
    pub fn directory(&self, id: Id, parent: Id, name: &[u8]) {
        let mut state = self.state.lock();
        if state.dirs.insert(id) {
            state.write(&Record::Dir { id, parent, name: Bytes::new(name) });
        }
    }

    /// Tells whether a file's attributes are still to be kept.
    pub fn needs_file(&self, id: Id) -> bool {
        let state = self.state.lock();
        !state.born.contains(&id) && !state.files.contains(&id)
    }

    /// Keeps a file's attributes.
    pub fn file(&self, id: Id, at: Id, name: &[u8], file: File) {
        let mut state = self.state.lock();
        if state.files.insert(id) {
            state.write(&Record::File { id, at, name: Bytes::new(name), file });
        }
    }

    /// Tells whether a file was made by this run.
    pub fn is_born(&self, id: Id) -> bool {
        self.state.lock().born.contains(&id)
    }

    /// Keeps what is in a regular file, if that wasn't done yet: by a link to it if `lets_go`, which says that it is about
    /// to lose its last name, else by a copy. `path` is for what has to be said when it can't be kept. Returns whether it
    /// is held by a link.
    pub fn content(&self, id: Id, pin: BorrowedFd<'_>, lets_go: bool, path: &Path) -> bool {
        if self.is_born(id) {
            return false;
        }
        let mut images = self.images.lock();
        if images.kept.contains(&id) {
            return false;
        }
        // Tried once: what is there later isn't what was there at first.
        images.kept.insert(id);
        match self.keep(&mut images, pin, lets_go) {
            Ok(image) => {
                self.state.lock().write(&Record::Content { id, image });
                if image.link {
                    images.links.insert(id, image);
                }
                image.link
            }
            Err(why) => {
                drop(images);
                self.gap(path, &why);
                false
            }
        }
    }

    /// Tells whether a file is held by a link of ours.
    pub fn holds(&self, id: Id) -> bool {
        self.images.lock().links.contains_key(&id)
    }

    /// Gives up a link to a file: it isn't lost.
    pub fn release(&self, id: Id) {
        let mut images = self.images.lock();
        let Some(image) = images.links.remove(&id) else { return };
        images.kept.remove(&id);
        images.used = images.used.saturating_sub(image.size);
        let name = image.number.to_string();
        if let Err(error) = rustix::fs::unlinkat(&self.place, &name, AtFlags::empty()) {
            tracing::warn!(%error, "a link to a file stays");
        }
        self.state.lock().write(&Record::Released { id });
    }

    fn keep(
        &self,
        images: &mut Images,
        pin: BorrowedFd<'_>,
        lets_go: bool,
    ) -> Result<Image, String> {
        let failed = |error: io::Error| format!("its content couldn't be kept: {error}");
        let seen = look(pin, b"").map_err(failed)?;
        if images.used.saturating_add(seen.left.size) > self.bounds.size {
            return Err(format!(
                "its content wasn't kept: {} bytes are the bound (--history-size)",
                self.bounds.size
            ));
        }
        let number = images.next;
        images.next += 1;
        let name = number.to_string();
        let link = lets_go
            && rustix::fs::linkat(CWD, magic(pin), &self.place, &name, AtFlags::SYMLINK_FOLLOW)
                .is_ok();
        if !link {
            let made = (|| {
                let from = reopen(pin, OFlags::RDONLY)?;
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let to = rustix::fs::openat(&self.place, &name, flags, Mode::RUSR | Mode::WUSR)?;
                copy(from.as_fd(), to.as_fd())?;
                look(to.as_fd(), b"")
            })();
            let made = made.and_then(|made| {
                if made.left.size == seen.left.size {
                    Ok(made)
                } else {
                    Err(io::Error::other("it changed meanwhile"))
                }
            });
            match made {
                Ok(made) => {
                    images.used += seen.left.size;
                    let (size, mtime) = (made.left.size, made.left.mtime);
                    return Ok(Image { number, link, size, mtime });
                }
                Err(error) => {
                    let _stays = rustix::fs::unlinkat(&self.place, &name, AtFlags::empty());
                    return Err(failed(error));
                }
            }
        }
        images.used += seen.left.size;
        Ok(Image { number, link, size: seen.left.size, mtime: seen.left.mtime })
    }

    /// Notes that a name leads elsewhere from now on; [`Self::void`] takes it back.
    pub fn entry(&self, at: Id, name: &[u8], before: Option<Id>, after: Option<Id>) -> u64 {
        let mut state = self.state.lock();
        let n = state.entries;
        state.entries += 1;
        state.write(&Record::Entry { n, at, name: Bytes::new(name), before, after });
        n
    }

    /// Notes another name of a file that loses one.
    pub fn name(&self, id: Id, at: Id, name: &[u8]) {
        self.state.lock().write(&Record::Name { id, at, name: Bytes::new(name) });
    }

    /// Notes that a change of a name failed.
    pub fn void(&self, n: u64) {
        self.state.lock().write(&Record::Void { n });
    }

    /// Notes that the run made a file.
    pub fn born(&self, id: Id) {
        let mut state = self.state.lock();
        if state.born.insert(id) {
            state.write(&Record::Born { id });
        }
    }

    /// Notes what a file is now; `None` while that can't be told.
    pub fn left(&self, id: Id, left: Option<Left>) {
        self.state.lock().write(&Record::Left { id, left });
    }

    /// Notes what a file is now.
    pub fn left_as(&self, id: Id, fd: BorrowedFd<'_>) {
        // Looked at under the lock: whoever changes it meanwhile says so afterwards.
        let mut state = self.state.lock();
        if let Ok(seen) = look(fd, b"") {
            let left = Left { xattrs: digest(fd).ok(), ..seen.left };
            state.write(&Record::Left { id, left: Some(left) });
        }
    }

    /// Notes that something is changed and can't be put back.
    pub fn gap(&self, path: &Path, why: &str) {
        tracing::warn!(path = %path.display(), why, "the history has a gap");
        let mut state = self.state.lock();
        state.gaps += 1;
        state.write(&Record::Gap { path: Bytes::from(path), why: why.to_owned() });
    }

    /// Ends the history.
    pub fn finish(&self) {
        self.state.lock().write(&Record::Sealed);
    }
}

/// Removes the histories below `state` whose runs are over for longer than `age`, and says so in their place.
pub fn prune(state: &Path, age: Duration) {
    let Ok(sessions) = crate::session_dirs(state) else { return };
    for session in sessions {
        let Ok(runs) = fs::read_dir(session.dir.join("history")) else { continue };
        for run in runs.flatten() {
            let (path, name) = (run.path(), run.file_name());
            let old = last_change(&path)
                .and_then(|time| time.elapsed().ok())
                .is_some_and(|elapsed| elapsed > age);
            let live = name.to_str().is_none_or(|run| crate::run_is_live(&session.dir, run));
            if !old || live || !path.is_dir() {
                continue;
            }
            let said = fs::write(
                dropped(&path),
                format!("it was older than {} s (--history-age)", age.as_secs()),
            );
            if let Err(error) = said.and_then(|()| fs::remove_dir_all(&path)) {
                tracing::warn!(%error, path = %path.display(), "an old history stays");
            }
        }
    }
}

fn last_change(run: &Path) -> Option<std::time::SystemTime> {
    let parts = fs::read_dir(run).ok()?.flatten();
    let journals = parts.flat_map(|part| [JOURNAL, BROKEN].map(|name| part.path().join(name)));
    journals.filter_map(|journal| fs::metadata(journal).ok()?.modified().ok()).max()
}

/// The file that says why a history was removed.
pub(crate) fn dropped(run: &Path) -> PathBuf {
    let mut name = run.as_os_str().to_owned();
    name.push(".dropped");
    PathBuf::from(name)
}
