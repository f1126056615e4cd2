//! Publication: content that is written by creating or truncating reaches its name in one step (contract F5).
//!
//! A staged node stands for an unnamed inode in the target's directory. Inside, everybody sees that inode under the
//! name at every moment (the overlay); the host sees nothing, or the file as it was, until [`Fs::publish`]: at `fsync`,
//! when the process that opened it closes it after writing, or with the last open file at the latest.
//!
//! - `S1` Whoever changes the names of a staged node publishes it first, or takes the name away for good.
//! - `S2` A rewrite whose writer was killed is dropped: the file is what it was before (contract F7).
//! - `S3` What was staged from one inode replaces that inode alone; the displaced one is looked at after the exchange.
//! - `S4` While others hold a file open, it is written in place: their view must stay the live one.
//!
//! Lock order: a node's `staged`, then the overlay, then the table.

use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use stockade_observe::{Key, Op, Outcome, Process, Publication, Version};
use stockade_policy::{Guard, Publish};

use super::fresh::{copy_attributes, staged_name};
use crate::error::{FsError, FsResult};
use crate::fs::{Caller, Fs};
use crate::handle::FileHandle;
use crate::host::{self, Stat};
use crate::node::{Name, Node};

/// A node's staged content.
#[derive(Debug)]
pub struct Staged {
    /// The unnamed inode.
    fd: Arc<OwnedFd>,
    /// What it is to replace; `None` for a file that is being created.
    base: Option<Base>,
    place: Name,
    /// The process that opened it.
    writer: Arc<Process>,
    /// The staged inode before anything was written.
    initial: Version,
    /// The last process that closed it was dying of a signal that lets no program finish.
    killed: bool,
}

/// The file as it was when its rewrite began.
#[derive(Debug)]
struct Base {
    pin: Arc<OwnedFd>,
    key: Key,
    stat: Stat,
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

    fn insert(&self, parent: u64, name: &OsStr, node: &Arc<Node>) {
        let mut names = self.names.lock();
        names.insert((parent, name.to_os_string()), node.clone());
        self.count.store(names.len(), Ordering::Release);
    }

    fn remove(&self, parent: u64, name: &OsStr) {
        let mut names = self.names.lock();
        names.remove(&(parent, name.to_os_string()));
        self.count.store(names.len(), Ordering::Release);
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

/// Others that hold a file open are waited for this long: the kernel reports a close after the program went on.
const LAG: Duration = Duration::from_micros(50);
const LAGS: u32 = 40;

impl Fs {
    /// Makes an unnamed inode for a file that is being created.
    pub(crate) fn stage_create(&self, dir: &OwnedFd, mode: Mode) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(dir, c".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode)
    }

    /// Says that `node` is staged at `place`, with nothing on the host yet.
    pub(crate) fn staged_create(
        &self,
        node: &Arc<Node>,
        fd: Arc<OwnedFd>,
        place: Name,
        who: &Arc<Process>,
        stat: &Stat,
    ) {
        place.parent.born.fetch_max(stat.ctime.nanos(), Ordering::AcqRel);
        self.overlay.insert(place.parent.id, &place.name, node);
        *node.staged.lock() = Some(Staged {
            fd,
            base: None,
            place,
            writer: who.clone(),
            initial: stat.version(),
            killed: false,
        });
    }

    /// Stages the rewrite of a file that is being opened with `O_TRUNC`, or says that it must be written in place.
    pub(crate) fn stage_replace(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        stat: &Stat,
        who: &Arc<Process>,
    ) -> Option<Arc<OwnedFd>> {
        if self.publish != Publish::Atomic || !stat.is_regular() || stat.nlink != 1 {
            return None;
        }
        for _ in 0..LAGS {
            if node.opens.load(Ordering::Acquire) == 0 {
                break;
            }
            std::thread::sleep(LAG);
        }
        if node.opens.load(Ordering::Acquire) > 0 {
            return None;
        }
        // The last writer's content may still be on its way.
        if let Err(error) = self.publish(node) {
            tracing::debug!(?error, "a rewrite is written in place");
            return None;
        }
        let mut slot = node.staged.lock();
        if slot.is_some() {
            return None;
        }
        let staged = self
            .table
            .pin(node)
            .and_then(|pin| host::stat_fd(pin.as_fd()))
            .and_then(|stat| self.try_stage(caller, node, &stat, who));
        match staged {
            Ok((staged, fd)) => {
                *slot = Some(staged);
                Some(fd)
            }
            Err(error) => {
                tracing::debug!(?error, "a rewrite is written in place");
                None
            }
        }
    }

    fn try_stage(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        stat: &Stat,
        who: &Arc<Process>,
    ) -> FsResult<(Staged, Arc<OwnedFd>)> {
        let place = node.name().ok_or(FsError::Stale)?;
        let component = host::component(&place.name)?;
        let dir = self.inside(&place.parent)?;
        let found = host::stat_at(dir.as_fd(), &component)?;
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
        let path = self.self_fd.open_path(fd.as_fd())?;
        self.table.rebind(node, path, key, &place);
        self.replaced(node);
        self.overlay.insert(place.parent.id, &place.name, node);
        let fd = Arc::new(fd);
        let staged = Staged {
            fd: fd.clone(),
            base: Some(base),
            place,
            writer: who.clone(),
            initial: fresh.version(),
            killed: false,
        };
        Ok((staged, fd))
    }

    /// Shows a staged inode as the named file that it is inside, and what that means for its directory.
    pub(crate) fn named(&self, node: &Node, stat: &mut Stat) {
        self.show_born(node, stat);
        if stat.nlink == 0 && stat.is_regular() && node.is_named() {
            stat.nlink = 1;
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
            let Some(staged) = slot.as_mut() else { return Ok(()) };
            staged.killed = closing.abrupt;
            let dirty = || {
                host::stat_fd(staged.fd.as_fd())
                    .is_ok_and(|stat| stat.size > 0 || stat.mtime.nanos() != staged.initial.mtime)
            };
            !staged.killed && closing.group == staged.writer.pid && dirty()
        };
        if ready { self.publish(&file.node) } else { Ok(()) }
    }

    /// The last open file of a node is closed.
    pub(crate) fn settle(&self, file: &FileHandle) {
        let drop_it = match &*file.node.staged.lock() {
            None => return,
            Some(staged) => staged.killed && staged.base.is_some(),
        };
        let result = if drop_it { self.unstage(&file.node) } else { self.publish(&file.node) };
        if let Err(error) = result {
            tracing::warn!(?error, path = %file.path.display(), "staged content wasn't published");
        }
    }

    /// Gives staged content its name on the host, in one step.
    ///
    /// # Errors
    /// The name was taken or changed on the host and the guard is enforced, or the host refused; the content stays
    /// staged if trying again may help.
    pub(crate) fn publish(&self, node: &Arc<Node>) -> FsResult<()> {
        let mut slot = node.staged.lock();
        let Some(staged) = slot.as_ref() else { return Ok(()) };
        let dir = self.inside(&staged.place.parent)?;
        let name = host::component(&staged.place.name)?;
        let after = host::stat_fd(staged.fd.as_fd())?;
        let path = self.path_at(&staged.place.parent, &staged.place.name);
        let mut event = Self::event(staged.writer.clone(), Op::Publish, path, Some(node.key()));
        event.version_before = staged.base.as_ref().map(|base| base.stat.version());
        event.version_after = Some(after.version());
        event.publication = Some(Publication::Atomic);
        let result = self.put(staged, &dir, &name);
        let replaces = staged.base.is_some();
        match result {
            Ok(None) => {
                if replaces {
                    self.record(event);
                }
            }
            Ok(Some(found)) => {
                // The host changed it meanwhile; as without us, the last writer wins, and it is said.
                event.op = Op::Conflict;
                event.version_before = Some(found);
                self.record(event);
            }
            Err(error) => {
                event.op = Op::Conflict;
                event.outcome = Outcome::Error { errno: error.errno().raw_os_error() };
                self.record(event);
                if matches!(error, FsError::Stale) {
                    // Not ours any more: what was staged stays readable for those who hold it open.
                    self.overlay.remove(staged.place.parent.id, &staged.place.name);
                    *slot = None;
                }
                return Err(error);
            }
        }
        self.overlay.remove(staged.place.parent.id, &staged.place.name);
        *slot = None;
        Ok(())
    }

    /// Links or exchanges; answers the version that was displaced if it wasn't the expected one.
    fn put(&self, staged: &Staged, dir: &OwnedFd, name: &CString) -> FsResult<Option<Version>> {
        let enforced = self.guard == Guard::Enforce;
        if staged.base.is_none() {
            match self.self_fd.link(staged.fd.as_fd(), dir.as_fd(), name) {
                Ok(()) => return Ok(None),
                Err(FsError::Host(Errno::EXIST)) if !enforced => {}
                Err(FsError::Host(Errno::EXIST)) => return Err(FsError::Stale),
                Err(error) => return Err(error),
            }
        }
        self.journal.note(dir.as_fd());
        let hidden = staged_name()?;
        self.self_fd.link(staged.fd.as_fd(), dir.as_fd(), &hidden)?;
        // The exchange itself moves the change time of what it displaces, so that is looked at before.
        let untouched = staged.base.as_ref().is_some_and(|base| {
            host::stat_fd(base.pin.as_fd()).is_ok_and(|stat| stat.version() == base.stat.version())
        });
        let away = || rustix::fs::unlinkat(dir, &hidden, AtFlags::empty());
        if let Err(errno) =
            rustix::fs::renameat_with(dir, &hidden, dir, name, RenameFlags::EXCHANGE)
        {
            let result = match errno {
                // The host took the name away; the file is made anew.
                Errno::NOENT if !enforced => {
                    rustix::fs::renameat_with(dir, &hidden, dir, name, RenameFlags::NOREPLACE)
                }
                Errno::INVAL | Errno::NOSYS => rustix::fs::renameat(dir, &hidden, dir, name),
                _ => Err(errno),
            };
            if let Err(errno) = result {
                away()?;
                return Err(if errno == Errno::NOENT { FsError::Stale } else { errno.into() });
            }
            return Ok(None);
        }
        let displaced = host::stat_at(dir.as_fd(), &hidden)?;
        let expected = untouched
            && staged.base.as_ref().is_some_and(|base| {
                (displaced.dev, displaced.ino, displaced.size, displaced.mtime)
                    == (base.stat.dev, base.stat.ino, base.stat.size, base.stat.mtime)
            });
        if !expected && enforced {
            rustix::fs::renameat_with(dir, &hidden, dir, name, RenameFlags::EXCHANGE)?;
            away()?;
            return Err(FsError::Stale);
        }
        away()?;
        Ok((!expected).then(|| displaced.version()))
    }

    /// Drops a rewrite: the node stands for the file as it was.
    fn unstage(&self, node: &Arc<Node>) -> FsResult<()> {
        let mut slot = node.staged.lock();
        let Some(staged) = slot.take() else { return Ok(()) };
        self.overlay.remove(staged.place.parent.id, &staged.place.name);
        let Some(base) = staged.base else { return Ok(()) };
        let path = self.path_at(&staged.place.parent, &staged.place.name);
        let mut event = Self::event(staged.writer, Op::Conflict, path, Some(base.key));
        event.version_before = Some(base.stat.version());
        event.outcome = Outcome::Error { errno: Errno::INTR.raw_os_error() };
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
                    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
                    let now = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
                    staged.place.parent.born.fetch_max(now, Ordering::AcqRel);
                }
                staged.base.is_some()
            }
            None => true,
        }
    }

    /// Tells whether something is staged in a directory that is to be empty.
    pub(crate) fn holds_staged(&self, dir: Option<&Arc<Node>>) -> bool {
        dir.is_some_and(|dir| !self.overlay.within(dir.id).is_empty())
    }
}
