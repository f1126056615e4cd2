//! Publication: content that is written by creating or truncating reaches its name in one step (contract F5).
//!
//! A staged node stands for an unnamed inode in the target's directory. Inside, everybody sees that inode under the
//! name at every moment (the overlay); the host sees nothing, or the file as it was, until [`Fs::publish`]: at `fsync`,
//! when the process that opened it closes it after writing, or with the last open file at the latest.
//!
//! - `S1` Whoever changes the names of a staged node publishes it first, or takes the name away for good.
//! - `S2` A rewrite whose writer was killed is dropped: the file is what it was before (contract F7).
//! - `S3` What was staged from one inode replaces that inode alone; the displaced one is looked at after the exchange.
//! - `S4` A staging counts as an open file from its beginning: whoever closes another one meanwhile doesn't publish it.
//! - `S5` While others hold a file open, it is written in place: their view must stay the live one.
//!
//! Lock order: a node's `staged`, then the overlay, then the table.

use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use stockade_observe::{Key, Op, Outcome, Process, Publication, Version};
use stockade_policy::{Guard, Publish};

use super::fresh::{copy_attributes, staged_name};
use super::guard::same_content;
use crate::error::{FsError, FsResult};
use crate::fail::{self, Point};
use crate::fs::{Caller, Fs};
use crate::handle::FileHandle;
use crate::host::{self, Stat};
use crate::node::{Name, Node, UNSTAMPED};

/// A node's staged content.
#[derive(Debug)]
pub struct Staged {
    /// The unnamed inode.
    pub(super) fd: Arc<OwnedFd>,
    /// What it is to replace; `None` for a file that is being created.
    pub(super) base: Option<Base>,
    pub(super) place: Name,
    /// The process that opened it.
    pub(super) writer: Arc<Process>,
    /// The staged inode before anything was written.
    pub(super) initial: Version,
    /// The last process that closed it was dying of a signal that lets no program finish.
    pub(super) killed: bool,
    /// The name that a file has whose rewrite began by cutting it (`ops/cut.rs`).
    pub(super) hidden: Option<Hidden>,
    /// From where on something is missing that couldn't be written, and why (`ops/lack.rs`).
    pub(super) lacks: Option<(u64, Errno)>,
}

impl Staged {
    /// Tells whether a rewrite began by cutting the file.
    pub(super) fn is_cut(&self) -> bool {
        self.hidden.is_some()
    }
}

/// The file as it was when its rewrite began.
#[derive(Debug)]
pub struct Base {
    pub(super) pin: Arc<OwnedFd>,
    pub(super) key: Key,
    pub(super) stat: Stat,
}

impl Base {
    fn is_untouched(&self) -> bool {
        host::stat_fd(self.pin.as_fd()).is_ok_and(|stat| stat.version() == self.stat.version())
    }
}

/// What became of a publication.
enum Put {
    Clean,
    /// It took the place of something else than expected.
    Displaced {
        found: Version,
        kept: Option<PathBuf>,
    },
    /// Something else than expected was there, and is again.
    Refused {
        found: Option<Version>,
        kept: Option<PathBuf>,
    },
}

/// A hidden name, taken away with this value.
#[derive(Debug)]
pub struct Hidden {
    pub(super) dir: Arc<OwnedFd>,
    pub(super) name: CString,
    there: AtomicBool,
}

impl Hidden {
    /// A name for a staged file that isn't given yet.
    pub(super) fn new(dir: &Arc<OwnedFd>) -> FsResult<Self> {
        Ok(Self { dir: dir.clone(), name: staged_name()?, there: AtomicBool::new(false) })
    }

    pub(super) fn is_there(&self, there: bool) {
        self.there.store(there, Ordering::Release);
    }

    /// Takes the name away.
    pub(super) fn remove(&self) {
        if self.there.swap(false, Ordering::AcqRel)
            && let Err(error) = rustix::fs::unlinkat(&*self.dir, &self.name, AtFlags::empty())
            && error != Errno::NOENT
        {
            tracing::warn!(%error, "a staged file stays behind");
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The staged names, by directory and name.
#[derive(Debug, Default)]
pub struct Overlay {
    names: Mutex<HashMap<(u64, OsString), Arc<Node>>>,
    count: AtomicUsize,
}

impl Overlay {
    pub fn get(&self, parent: u64, name: &OsStr) -> Option<Arc<Node>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.names.lock().get(&(parent, name.to_os_string())).cloned()
    }

    pub(super) fn insert(&self, parent: u64, name: &OsStr, node: &Arc<Node>) {
        let mut names = self.names.lock();
        names.insert((parent, name.to_os_string()), node.clone());
        self.count.store(names.len(), Ordering::Release);
    }

    pub(super) fn remove(&self, parent: u64, name: &OsStr) {
        let mut names = self.names.lock();
        names.remove(&(parent, name.to_os_string()));
        self.count.store(names.len(), Ordering::Release);
    }

    /// Returns all that is staged.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.names.lock().values().cloned().collect()
    }

    /// Returns what is staged in a directory.
    pub fn within(&self, parent: u64) -> Vec<(OsString, Arc<Node>)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let names = self.names.lock();
        names
            .iter()
            .filter(|((dir, _), _)| *dir == parent)
            .map(|((_, name), node)| (name.clone(), node.clone()))
            .collect()
    }
}

impl Fs {
    /// Tells whether what is written at a path is published in one step.
    pub(crate) fn stages(&self, path: &Path) -> bool {
        self.publish == Publish::Atomic && !self.rules.publishes_directly(path)
    }

    /// Makes an unnamed inode for a file that is being created.
    pub(crate) fn stage_create(&self, dir: &OwnedFd, mode: Mode) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(dir, c".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode)
    }

    /// Says that `node` is staged at `place`, with nothing on the host yet, and counts it as open.
    pub(crate) fn staged_create(
        &self,
        node: &Arc<Node>,
        fd: Arc<OwnedFd>,
        place: Name,
        who: &Arc<Process>,
        stat: &Stat,
    ) {
        place.parent.born.fetch_max(stat.ctime.nanos(), Ordering::AcqRel);
        place.parent.stamped.store(UNSTAMPED, Ordering::Release);
        node.opens.fetch_add(1, Ordering::AcqRel);
        self.keeps_born(node.key());
        self.overlay.insert(place.parent.id, &place.name, node);
        *node.staged.lock() = Some(Staged {
            fd,
            base: None,
            place,
            writer: who.clone(),
            initial: stat.version(),
            killed: false,
            hidden: None,
            lacks: None,
        });
    }

    /// Stages the rewrite of a file that is being opened with `O_TRUNC` and counts it as open, or says that it must be
    /// written in place.
    ///
    /// # Errors
    /// The name leads to another file meanwhile, which another mount may have put there: what stands here is nobody's
    /// any more, and writing to it would lose the rewrite.
    pub(crate) fn stage_replace(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        stat: &Stat,
        who: &Arc<Process>,
    ) -> FsResult<Option<Arc<OwnedFd>>> {
        if !stat.is_regular() || stat.nlink != 1 || !self.stages(&self.path(node)) {
            return Ok(None);
        }
        if !node.is_named() {
            return Ok(None);
        }
        if !self.is_let_go(node) {
            return Ok(None);
        }
        // The last writer's content may still be on its way.
        if let Err(error) = self.settle_node(node) {
            tracing::warn!(?error, "staged content wasn't published");
            // It couldn't have its name, where something else stands.
            return Err(FsError::Stale);
        }
        let mut slot = node.staged.lock();
        if slot.is_some() {
            return Ok(None);
        }
        let names = node.names();
        let place = names.into_iter().rev().find(|name| self.leads(node, name).is_some());
        let place = place.ok_or(FsError::Stale)?;
        let staged = self
            .table
            .pin(node)
            .and_then(|pin| host::stat_fd(pin.as_fd()))
            .and_then(|stat| self.try_stage(caller, node, place, &stat, who));
        match staged {
            Ok((staged, fd)) => {
                *slot = Some(staged);
                node.opens.fetch_add(1, Ordering::AcqRel);
                Ok(Some(fd))
            }
            Err(FsError::Stale) => Err(FsError::Stale),
            Err(error) => {
                tracing::debug!(?error, "a rewrite is written in place");
                Ok(None)
            }
        }
    }

    fn try_stage(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        place: Name,
        stat: &Stat,
        who: &Arc<Process>,
    ) -> FsResult<(Staged, Arc<OwnedFd>)> {
        let component = host::component(&place.name)?;
        let dir = self.inside(&place.parent)?;
        let found = host::stat_at(dir.as_fd(), &component).map_err(host::vanished)?;
        if (found.dev, found.ino) != (stat.dev, stat.ino) {
            return Err(FsError::Stale);
        }
        let pin = self.table.pin(node)?;
        let old = self.self_fd.open_pin(pin.as_fd(), OFlags::RDWR | OFlags::NONBLOCK)?;
        let fd = self.stage_create(&dir, Mode::RUSR | Mode::WUSR)?;
        // Truncating takes set-id bits away, unless root does it (`setattr_should_drop_suidgid`).
        let mut shown = *stat;
        if caller.uid != 0 {
            let stays = stat.mode & 0o010 == 0 && self.keeps_set_gid(caller, stat.gid);
            let sgid = if stays { 0 } else { 0o2000 };
            shown.mode &= !(0o4000 | sgid);
        }
        copy_attributes(&old, &fd, &shown)?;
        let now = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        rustix::fs::futimens(&fd, &now)?;
        let fresh = host::stat_fd(fd.as_fd())?;
        let key = host::key_of(fd.as_fd(), &fresh);
        let base = Base { key: node.key(), pin, stat: *stat };
        self.keeps_born(key);
        let path = self.self_fd.open_path(fd.as_fd())?;
        self.overlay.insert(place.parent.id, &place.name, node);
        self.table.rebind(node, path, key, &place);
        self.replaced(node);
        let fd = Arc::new(fd);
        let staged = Staged {
            fd: fd.clone(),
            base: Some(base),
            place,
            writer: who.clone(),
            initial: fresh.version(),
            killed: false,
            hidden: None,
            lacks: None,
        };
        Ok((staged, fd))
    }

    /// Shows a staged inode as the named file that it is inside, and what that means for its directory.
    pub(crate) fn named(&self, node: &Node, stat: &mut Stat) {
        self.show_born(node, stat);
        stat.ctime = node.changed(stat.ctime);
        if stat.nlink == 0 && stat.is_regular() && node.is_named() {
            stat.nlink = 1;
        } else if stat.nlink > 0 && self.keeps_link(node) && !node.is_named() {
            stat.nlink -= 1;
        }
    }

    /// Shows a directory as changed by what was created in it, until the host's directory says so itself.
    fn show_born(&self, dir: &Node, stat: &mut Stat) {
        let born = dir.born.load(Ordering::Acquire);
        if !stat.is_dir() || born <= stat.mtime.nanos() {
            return;
        }
        // Whatever the host did to the directory since, setting its times back included, moved its change time.
        if born >= stat.ctime.nanos() || !self.overlay.within(dir.id).is_empty() {
            let nsec = u32::try_from(born.rem_euclid(1_000_000_000)).unwrap_or_default();
            stat.mtime = host::Stamp { sec: born.div_euclid(1_000_000_000), nsec };
            if born > stat.ctime.nanos() {
                stat.ctime = stat.mtime;
            }
        }
    }

    /// A program closes a file. Publishes it if this is the process that opened it and something was written; the
    /// error, if any, is the answer to its `close(2)`.
    pub fn flush(&self, caller: Caller, handle: u64) -> FsResult<()> {
        let file = self.handles.file(handle)?;
        let closing = crate::process::closing(caller.pid);
        let ready = {
            let mut slot = file.node.staged.lock();
            let Some(staged) = slot.as_mut() else {
                self.keeps_closed(&file);
                let staged = file.staged.load(Ordering::Acquire);
                let lost = file.node.lost.get().filter(|_| staged);
                return lost.map_or(Ok(()), |error| Err(error.clone()));
            };
            staged.killed = closing.abrupt;
            let dirty = || {
                staged.is_cut()
                    || host::stat_fd(staged.fd.as_fd()).is_ok_and(|stat| {
                        stat.size > 0 || stat.mtime.nanos() != staged.initial.mtime
                    })
            };
            !staged.killed && closing.group == staged.writer.pid && dirty()
        };
        if ready { self.publish(&file.node) } else { Ok(()) }
    }

    /// Tells whether what a staged node is to replace is still as it was; `None` if nothing is staged.
    pub(crate) fn base_is_untouched(&self, node: &Node) -> Option<bool> {
        let slot = node.staged.lock();
        let base = slot.as_ref()?.base.as_ref();
        Some(base.is_none_or(Base::is_untouched))
    }

    /// Returns the file that a staged node is to replace, if anything is staged.
    pub(crate) fn staged_base(&self, node: &Node) -> Option<Option<Stat>> {
        let slot = node.staged.lock();
        Some(slot.as_ref()?.base.as_ref().map(|base| base.stat))
    }

    /// The last open file of a node is closed.
    pub(crate) fn settle(&self, file: &FileHandle) {
        if let Err(error) = self.settle_node(&file.node) {
            tracing::warn!(?error, path = %file.path.display(), "staged content wasn't published");
        }
    }

    /// Publishes what is staged for a node that nobody has open, or drops it (`S2`).
    pub(super) fn settle_node(&self, node: &Arc<Node>) -> FsResult<()> {
        let slot = node.staged.lock();
        let Some(staged) = slot.as_ref() else { return Ok(()) };
        // What is staged by now may be another's, who opens it just then (`S4`).
        if node.opens.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        if staged.killed && staged.base.is_some() {
            self.unstage(node, slot, Errno::INTR, None)
        } else {
            self.publish_now(node, slot, true)
        }
    }

    /// Publishes what is staged in a directory, since its permissions may not let us do so later. What can't be published
    /// stays staged, and its writer hears of it.
    pub(crate) fn publishes_within(&self, dir: &Node) {
        for (_, node) in self.overlay.within(dir.id) {
            if let Err(error) = self.publish(&node) {
                tracing::debug!(
                    ?error,
                    "staged content wasn't published before its directory is closed"
                );
            }
        }
    }

    /// Gives staged content its name on the host, in one step.
    ///
    /// # Errors
    /// The name was taken or changed on the host and the guard is enforced: then the content is kept elsewhere. Or the
    /// host refused: then the content stays staged, since trying again may help.
    pub(crate) fn publish(&self, node: &Arc<Node>) -> FsResult<()> {
        self.publish_now(node, node.staged.lock(), false)
    }

    /// The same; `last` says that nobody will try again, so that what can't be published is kept elsewhere.
    fn publish_now(
        &self,
        node: &Arc<Node>,
        mut slot: MutexGuard<'_, Option<Staged>>,
        last: bool,
    ) -> FsResult<()> {
        let Some(staged) = slot.as_ref() else { return Ok(()) };
        let path = self.path_at(&staged.place.parent, &staged.place.name);
        if staged.base.is_some()
            && let Some(errno) = self.lacks(node, staged).or_else(|| self.sync_durable(staged))
        {
            if last {
                let kept = self.keep_part(staged, &path);
                self.unstage(node, slot, errno, kept)?;
            } else if let Some(staged) = slot.as_mut() {
                staged.lacks.get_or_insert((0, errno));
            }
            return Err(errno.into());
        }
        let mut event = Self::event(staged.writer.clone(), Op::Publish, path, Some(node.key()));
        event.version_before = staged.base.as_ref().map(|base| base.stat.version());
        event.publication = Some(Publication::Atomic);
        let mut result = Ok(());
        let before = host::stat_fd(staged.fd.as_fd())?.ctime;
        let told = node.told.load(Ordering::Acquire) == before.nanos();
        match self.put(staged, &event.path) {
            Ok(Put::Clean) => {}
            Ok(Put::Displaced { found, kept }) => {
                // The host changed it meanwhile; as without us, the last writer wins, and it is said.
                event.op = Op::Conflict;
                event.noted = Some(self.stale());
                event.version_after = Some(found);
                event.path2 = kept;
            }
            Ok(Put::Refused { found, kept }) => {
                let denial = self.stale();
                let refused = FsError::Denied(denial.clone());
                event.op = Op::Conflict;
                event.outcome = Outcome::Denied { denial, errno: refused.errno().raw_os_error() };
                event.version_after = found;
                event.path2 = kept;
                result = Err(refused);
            }
            Err(error) => {
                event.op = Op::Conflict;
                event.outcome = Outcome::Error { errno: error.errno().raw_os_error() };
                if last {
                    event.path2 = self.keep(&staged.fd, &event.path);
                }
                result = Err(error);
            }
        }
        let published = result.is_ok();
        if published {
            let after = host::stat_fd(staged.fd.as_fd())?;
            if node.published(before, after.ctime, told) {
                self.watches.later_node(node.id);
            }
            let after = after.version();
            let place = (staged.place.parent.key(), staged.place.name.as_os_str());
            self.observed.present(node.key(), after, Some(place));
            if event.op == Op::Publish {
                event.version_after = Some(after);
            }
        }
        // What was created is said by the create itself.
        if event.op == Op::Conflict || staged.base.is_some() {
            self.record(event);
        }
        if let Err(FsError::Host(_) | FsError::Stale) = &result
            && !last
        {
            return result;
        }
        if let Err(error) = &result {
            node.lost.get_or_init(|| error.clone());
        }
        let Some(Staged { place, hidden, .. }) = slot.take() else { return result };
        drop(hidden);
        // Before anybody sees that nothing is staged any more: the name may be taken away and made anew at once.
        self.overlay.remove(place.parent.id, &place.name);
        drop(slot);
        if !published {
            // Whoever holds it open goes on with a file that has no name; the name leads to the host's file.
            node.remove_name(&place.parent, &place.name);
            self.watches.later(vec![(place.parent.id, place.name)]);
        }
        result
    }

    /// Links or exchanges.
    fn put(&self, staged: &Staged, path: &Path) -> FsResult<Put> {
        let dir = self.inside(&staged.place.parent)?;
        let name = host::component(&staged.place.name)?;
        fail::reached(Point::Begun);
        if staged.base.is_none()
            && let Some(errno) = self.sync_durable(staged)
        {
            return Err(errno.into());
        }
        let put =
            self.unnoticed(&staged.place.parent, &dir, || self.put_in(staged, path, &dir, &name))?;
        if self.durable && !matches!(put, Put::Refused { .. }) {
            self.sync_directory(&dir, staged.fd.as_fd())?;
        }
        Ok(put)
    }

    /// Exchanges names in a directory. To a program, nothing happens in it: it keeps the time that it was given.
    pub(super) fn unnoticed<T>(
        &self,
        parent: &Node,
        dir: &OwnedFd,
        exchange: impl FnOnce() -> FsResult<T>,
    ) -> FsResult<T> {
        let stamped = parent.stamped.load(Ordering::Acquire);
        let stamp = host::stat_fd(dir.as_fd())?.mtime;
        let done = exchange()?;
        if stamp.nanos() == stamped {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: stamp.sec, tv_nsec: stamp.nsec.into() },
            };
            if let Err(error) = rustix::fs::utimensat(dir, c"", &times, AtFlags::EMPTY_PATH) {
                tracing::debug!(%error, "a directory's time changes with a publication");
            }
        }
        Ok(done)
    }

    fn put_in(
        &self,
        staged: &Staged,
        path: &Path,
        dir: &Arc<OwnedFd>,
        name: &CString,
    ) -> FsResult<Put> {
        let enforced = self.guard == Guard::Enforce;
        let parent = &staged.place.parent;
        self.keeps_directory(parent);
        let key = self.keeps_staged(&staged.fd, staged.is_cut());
        if staged.base.is_none() {
            let turn = self.keeps_entry(parent, dir, name, key, false);
            let linked = self.self_fd.link(staged.fd.as_fd(), dir.as_fd(), name);
            self.keeps_turn(turn, linked.is_ok());
            match linked {
                Ok(()) => {
                    fail::reached(Point::Created);
                    return Ok(Put::Clean);
                }
                Err(FsError::Host(Errno::EXIST)) if !enforced => {}
                Err(FsError::Host(Errno::EXIST)) => {
                    let found = host::stat_at(dir.as_fd(), name).ok().map(|stat| stat.version());
                    return Ok(Put::Refused { found, kept: self.keep(&staged.fd, path) });
                }
                Err(error) => return Err(error),
            }
        }
        self.journal.note(dir.as_fd());
        let own;
        let hidden = match &staged.hidden {
            Some(hidden) => hidden,
            None => {
                own = Hidden::new(dir)?;
                &own
            }
        };
        let _lock = self.lock_names(dir);
        if let Some(base) = staged.base.as_ref().filter(|_| enforced) {
            // What is to be put back would be seen in its place for a moment, so others that hold this lock are asked for
            // first; only against the host it takes the look afterwards.
            let there = host::stat_at(dir.as_fd(), name).ok();
            if !there.is_some_and(|there| same_content(&there, &base.stat)) {
                let found = there.map(|stat| stat.version());
                return Ok(Put::Refused { found, kept: self.keep(&staged.fd, path) });
            }
        }
        if !staged.is_cut() {
            self.self_fd.link(staged.fd.as_fd(), dir.as_fd(), &hidden.name)?;
            hidden.is_there(true);
        }
        fail::reached(Point::Linked);
        // The exchange itself moves the change time of what it displaces, so that is looked at before.
        let untouched = staged.base.as_ref().is_some_and(Base::is_untouched);
        let rename = |flags| rustix::fs::renameat_with(&**dir, &hidden.name, &**dir, name, flags);
        let turn = self.keeps_entry(parent, dir, name, key, true);
        match rename(RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(Errno::NOENT) if enforced => {
                self.keeps_turn(turn, false);
                return Ok(Put::Refused { found: None, kept: self.keep(&staged.fd, path) });
            }
            Err(errno @ (Errno::NOENT | Errno::INVAL | Errno::NOSYS)) => {
                // The host took the name away, and the file is made anew; or nothing can be exchanged here.
                let flags = if errno == Errno::NOENT {
                    RenameFlags::NOREPLACE
                } else {
                    RenameFlags::empty()
                };
                let renamed = rename(flags);
                self.keeps_turn(turn, renamed.is_ok());
                renamed?;
                hidden.is_there(false);
                return Ok(Put::Clean);
            }
            Err(errno) => {
                self.keeps_turn(turn, false);
                return Err(errno.into());
            }
        }
        fail::reached(Point::Exchanged);
        let displaced = host::stat_at(dir.as_fd(), &hidden.name)?;
        let expected = untouched
            && staged.base.as_ref().is_some_and(|base| same_content(&displaced, &base.stat));
        self.keeps_turn(turn, expected || !enforced);
        if expected {
            hidden.remove();
            fail::reached(Point::Cleared);
            return Ok(Put::Clean);
        }
        let found = displaced.version();
        if enforced {
            if rename(RenameFlags::EXCHANGE).is_err() {
                // Taken away again in between: what was displaced must not be lost.
                let pin = host::pin_at(dir.as_fd(), &hidden.name)?;
                let kept = self.keep(&staged.fd, path);
                if rename(RenameFlags::NOREPLACE).is_ok() || self.keep(&pin, path).is_none() {
                    hidden.is_there(false);
                }
                return Ok(Put::Refused { found: Some(found), kept });
            }
            return Ok(Put::Refused { found: Some(found), kept: self.keep(&staged.fd, path) });
        }
        let pin = host::pin_at(dir.as_fd(), &hidden.name)?;
        let kept = if displaced.is_regular() { self.keep(&pin, path) } else { None };
        Ok(Put::Displaced { found, kept })
    }

    /// Drops a rewrite: the node stands for the file as it was.
    fn unstage(
        &self,
        node: &Arc<Node>,
        mut slot: MutexGuard<'_, Option<Staged>>,
        why: Errno,
        kept: Option<PathBuf>,
    ) -> FsResult<()> {
        let Some(staged) = slot.take() else { return Ok(()) };
        self.overlay.remove(staged.place.parent.id, &staged.place.name);
        let Some(base) = staged.base else { return Ok(()) };
        let path = self.path_at(&staged.place.parent, &staged.place.name);
        let mut event = Self::event(staged.writer, Op::Conflict, path, Some(base.key));
        event.version_before = Some(base.stat.version());
        event.outcome = Outcome::Error { errno: why.raw_os_error() };
        event.path2 = kept;
        self.record(event);
        let pin = self.self_fd.open_path(base.pin.as_fd())?;
        self.table.rebind(node, pin, base.key, &staged.place);
        self.replaced(node);
        *node.cached.lock() = None;
        self.watches.later_node(node.id);
        Ok(())
    }

    /// Takes a staged node's name away: it is never published. Says whether the host has a file at that name.
    pub(crate) fn orphan(&self, node: &Arc<Node>) -> bool {
        match node.staged.lock().take() {
            Some(staged) => {
                self.overlay.remove(staged.place.parent.id, &staged.place.name);
                if staged.base.is_none() {
                    self.unborn(&staged.place.parent);
                }
                staged.base.is_some()
            }
            None => true,
        }
    }

    /// Says that a file which the host hasn't seen is gone from a directory. The host's directory gets the time, since what
    /// else happens to it (a rename, a chmod) moves its change time, and then nothing would tell this change from one that
    /// the host took back.
    fn unborn(&self, dir: &Node) {
        dir.stamped.store(UNSTAMPED, Ordering::Release);
        *dir.cached.lock() = None;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        let stamp = |pin: Arc<OwnedFd>| {
            rustix::fs::utimensat(&*pin, c"", &times, AtFlags::EMPTY_PATH).is_ok()
        };
        if !dir.held_pin().is_some_and(stamp) {
            // Another user's directory: until something else happens to it, we know.
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            let now = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
            dir.born.fetch_max(now, Ordering::AcqRel);
        }
    }

    /// Tells whether something is staged in a directory that is to be empty.
    pub(crate) fn holds_staged(&self, dir: Option<&Arc<Node>>) -> bool {
        dir.is_some_and(|dir| !self.overlay.within(dir.id).is_empty())
    }
}
