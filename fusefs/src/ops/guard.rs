//! The guard: content that this session hasn't seen, or that changed since, is about to be lost (contract O3).
//!
//! Semantics in `DESIGN.md`. In short: opening a regular file for reading sees its content, and so does making it;
//! truncating it, writing over it in place, renaming something over it and deleting it lose it. `audit` notes such a
//! loss in the event of the operation itself, `enforce` refuses it with `EACCES`.
//!
//! - `G1` While a program of this mount that knew the content has the file open for writing, every change of it counts
//!   as the session's own.
//! - `G2` Between two writers that go through Stockade the check and the exchange of names are one step: both hold the
//!   directory's lock.
//! - `G3` Against the host, what an exchange displaced is looked at afterwards, and put back if it isn't what was
//!   expected.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use stockade_observe::{Freshness, Key, Version};
use stockade_policy::{Denial, Guard, Rule};

use super::fresh::copy_content;
use crate::error::{FsError, FsResult};
use crate::fail::{self, Point};
use crate::fs::Fs;
use crate::handle::FileHandle;
use crate::host::{self, Stat};
use crate::node::Node;

/// The guard's two refusals, made once.
#[derive(Debug)]
pub struct Findings {
    unseen: Arc<Denial>,
    stale: Arc<Denial>,
}

impl Findings {
    pub fn new(guard: Guard) -> Self {
        let source = match guard {
            Guard::Off | Guard::Audit => "--guard audit",
            Guard::Enforce => "--guard enforce",
        };
        Self {
            unseen: Arc::new(Denial::new(Rule::NotObserved, source)),
            stale: Arc::new(Denial::new(Rule::StaleVersion, source)),
        }
    }
}

/// What the guard found, and lets pass.
pub type Noted = Option<Arc<Denial>>;

/// Somebody who isn't one of us may hold a directory's lock (`flock DIR command`): it is waited for this long.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(200);
/// A file that is being closed is looked at again so often.
const LOOKS: usize = 8;

/// Tells whether two looks at a file saw the same content. An exchange of names moves the change time itself.
pub fn same_content(one: &Stat, other: &Stat) -> bool {
    (one.dev, one.ino, one.size, one.mtime) == (other.dev, other.ino, other.size, other.mtime)
}

impl Fs {
    /// Judges the loss of a node's content.
    pub(crate) fn loss(&self, node: &Arc<Node>, stat: &Stat) -> FsResult<Noted> {
        if self.guard == Guard::Off || !stat.is_regular() || stat.size == 0 {
            return Ok(None);
        }
        let name = node.name();
        let place = name.as_ref().map(|name| (name.parent.key(), name.name.as_os_str()));
        self.verdict(self.freshness(node, stat, place))
    }

    /// Judges the loss of what stands at a name, if anything does.
    pub(crate) fn loss_at(
        &self,
        parent: &Arc<Node>,
        dir: &OwnedFd,
        name: &OsStr,
        there: Option<&(Stat, Option<Arc<Node>>)>,
    ) -> FsResult<Noted> {
        let Some((stat, node)) = there else { return Ok(None) };
        if self.guard == Guard::Off || !stat.is_regular() || stat.size == 0 {
            return Ok(None);
        }
        let place = Some((parent.key(), name));
        let Some(node) = node else {
            let generation = host::generation(dir.as_fd(), &host::component(name)?);
            let key = Key { dev: stat.dev, ino: stat.ino, generation };
            return self.verdict(self.observed.look(key, stat.version(), place));
        };
        let mut freshness = self.freshness(node, stat, place);
        let mut stat = *stat;
        for _ in 0..LOOKS {
            // The close of its last writer may have been on its way here, and given it its name and a new change time.
            let now = self.table.pin(node).and_then(|pin| host::stat_fd(pin.as_fd()));
            match now {
                Ok(now) if freshness != Freshness::Fresh && now.version() != stat.version() => {
                    freshness = self.freshness(node, &now, place);
                    stat = now;
                }
                Ok(_) | Err(_) => break,
            }
        }
        self.verdict(freshness)
    }

    fn verdict(&self, freshness: Freshness) -> FsResult<Noted> {
        let finding = match freshness {
            Freshness::Fresh => return Ok(None),
            Freshness::Unseen => &self.findings.unseen,
            Freshness::Stale => &self.findings.stale,
        };
        if self.guard == Guard::Enforce {
            Err(FsError::Denied(finding.clone()))
        } else {
            Ok(Some(finding.clone()))
        }
    }

    /// The refusal of content that changed since it was seen.
    pub(crate) fn stale(&self) -> Arc<Denial> {
        self.findings.stale.clone()
    }

    pub(crate) fn freshness(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
        place: Option<(Key, &OsStr)>,
    ) -> Freshness {
        if node.authors.load(Ordering::Acquire) > 0 {
            return Freshness::Fresh;
        }
        match self.base_is_untouched(node) {
            Some(true) => Freshness::Fresh,
            Some(false) => Freshness::Stale,
            None => self.observed.look(node.key(), stat.version(), place),
        }
    }

    /// Tells whether an open for writing knows the content that it may write over.
    pub(crate) fn knows(&self, node: &Arc<Node>, stat: &Stat) -> bool {
        self.guard == Guard::Off
            || stat.size == 0
            || self.freshness(node, stat, None) == Freshness::Fresh
    }

    /// Notes that the session knows a node's content.
    pub(crate) fn saw(&self, node: &Arc<Node>, version: Version) {
        let name = node.name();
        let place = name.as_ref().map(|name| (name.parent.key(), name.name.as_os_str()));
        self.observed.present(node.key(), version, place);
    }

    /// Notes that a change of a node's attributes was the session's own.
    pub(crate) fn touched(&self, node: &Arc<Node>, before: &Stat) {
        if !before.is_regular() {
            return;
        }
        if let Some(pin) = node.held_pin()
            && let Ok(after) = host::stat_fd(pin.as_fd())
        {
            if node.authors.load(Ordering::Acquire) > 0 {
                self.saw(node, after.version());
            } else {
                self.observed.carried(node.key(), before.version(), after.version());
            }
        }
    }

    /// Notes what a closed file was left as, if its writer knew what was in it.
    pub(crate) fn left(&self, file: &FileHandle, after: Option<Version>) {
        if file.author.load(Ordering::Acquire) {
            let mut seen = after;
            while let Some(version) = seen {
                self.saw(&file.node, version);
                // Another thread may just be changing its attributes, or its names.
                let now = file.fd.get().and_then(|fd| host::stat_fd(fd.as_fd()).ok());
                seen = now.map(|stat| stat.version()).filter(|now| *now != version);
            }
            file.node.authors.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// A file that was opened for writing by somebody who doesn't know the content is written over, or cut: judges that,
    /// once.
    pub(crate) fn overwrites(&self, file: &FileHandle) -> FsResult<()> {
        if file.author.load(Ordering::Acquire) || !file.writable() {
            return Ok(());
        }
        let fd = self.file_fd(file)?;
        let noted = self.loss(&file.node, &host::stat_fd(fd.as_fd())?)?;
        if !file.author.swap(true, Ordering::AcqRel) {
            file.node.authors.fetch_add(1, Ordering::AcqRel);
            if let Some(denial) = noted {
                file.noted.get_or_init(|| denial);
            }
        }
        Ok(())
    }

    /// Keeps other writers that go through Stockade from exchanging names in a directory, until this is dropped.
    pub(crate) fn lock_names(&self, dir: &OwnedFd) -> Option<OwnedFd> {
        if self.guard == Guard::Off {
            return None;
        }
        let lock = self.self_fd.open_pin(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(lock),
                Err(Errno::WOULDBLOCK | Errno::INTR) if std::time::Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => {
                    tracing::debug!(%error, "a directory's lock isn't to be had");
                    return None;
                }
            }
        }
    }

    /// Returns what the host must have at a name that was judged: what stands there, or what its rewrite is to replace.
    pub(crate) fn expected(&self, there: Option<&(Stat, Option<Arc<Node>>)>) -> Option<Stat> {
        let (stat, node) = there?;
        node.as_ref().and_then(|node| self.staged_base(node)).unwrap_or(Some(*stat))
    }

    /// Sees to it that what stands at a name is still what was judged. The caller holds the directory's lock.
    pub(crate) fn still_there(&self, dir: &OwnedFd, name: &CString, judged: &Stat) -> FsResult<()> {
        let found = host::stat_at(dir.as_fd(), name)?;
        let is_same = |found: &Stat| {
            (found.dev, found.ino, found.version()) == (judged.dev, judged.ino, judged.version())
        };
        // Whoever knows the content may be writing to it still, or have closed it just now.
        let is_known = |found: &Stat| {
            (found.dev, found.ino) == (judged.dev, judged.ino)
                && self
                    .table
                    .peek(found)
                    .is_some_and(|node| self.freshness(&node, found, None) == Freshness::Fresh)
        };
        if is_same(&found) || is_known(&found) {
            Ok(())
        } else {
            Err(FsError::Denied(self.stale()))
        }
    }

    /// Moves a file over what was judged, and only over that: a compare-and-swap between those that go through
    /// Stockade; against the host, what was displaced is looked at afterwards and put back if it is something else.
    pub(crate) fn move_over(
        &self,
        (from_dir, from): (&OwnedFd, &CString),
        (to_dir, to): (&OwnedFd, &CString),
        expected: Option<&Stat>,
    ) -> FsResult<()> {
        let _lock = self.lock_names(to_dir);
        let rename = |flags| rustix::fs::renameat_with(from_dir, from, to_dir, to, flags);
        let Some(expected) = expected else {
            return match rename(RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => Err(FsError::Denied(self.stale())),
                Err(Errno::INVAL | Errno::NOSYS) => Ok(rename(RenameFlags::empty())?),
                other => Ok(other?),
            };
        };
        self.still_there(to_dir, to, expected)?;
        let before = host::stat_at(to_dir.as_fd(), to)?;
        match rename(RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS) => return Ok(rename(RenameFlags::empty())?),
            other => other?,
        }
        fail::reached(Point::Moved);
        let displaced = host::stat_at(from_dir.as_fd(), from)?;
        if !same_content(&displaced, &before) {
            rename(RenameFlags::EXCHANGE)?;
            return Err(FsError::Denied(self.stale()));
        }
        Ok(rustix::fs::unlinkat(from_dir, from, AtFlags::empty())?)
    }

    /// Keeps content that can't have its name, or that was displaced without having been seen; says where.
    pub(crate) fn keep(&self, fd: &OwnedFd, path: &Path) -> Option<PathBuf> {
        match self.try_keep(fd, path) {
            Ok(kept) => Some(kept),
            Err(error) => {
                tracing::warn!(?error, path = %path.display(), "content can't be kept");
                None
            }
        }
    }

    fn try_keep(&self, fd: &OwnedFd, path: &Path) -> FsResult<PathBuf> {
        use std::os::unix::fs::DirBuilderExt;
        let place = self.kept.as_deref().ok_or(Errno::NOENT)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(place)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(place, flags, Mode::empty())?;
        let own = path.file_name().unwrap_or_default();
        let number = self.kept_count.fetch_add(1, Ordering::Relaxed);
        let mut name = std::ffi::OsString::from(format!("{}-{number}-", std::process::id()));
        name.push(own);
        let name = host::component(&name).or_else(|_| {
            // Too long with its prefix.
            Ok::<_, FsError>(
                CString::new(format!("{}-{number}", std::process::id())).unwrap_or_default(),
            )
        })?;
        if self.self_fd.link(fd.as_fd(), dir.as_fd(), &name).is_err() {
            // Another file system.
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let copy = rustix::fs::openat(&dir, &name, flags, Mode::RUSR | Mode::WUSR)?;
            let from = self.self_fd.open_pin(fd.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
            copy_content(&from, &copy, 0)?;
        }
        use std::os::unix::ffi::OsStrExt;
        Ok(place.join(OsStr::from_bytes(name.as_bytes())))
    }
}
