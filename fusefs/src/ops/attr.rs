//! Attributes.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{AtFlags, Gid, OFlags, StatVfs, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use stockade_observe::{Op, Process, Publication};
use stockade_policy::Rule;

use super::guard::Noted;
use crate::error::{FsError, FsResult};
use crate::fs::{Caller, Fs};
use crate::host::{self, Stamp, Stat};
use crate::node::{Node, UNSTAMPED};
use crate::ops::thread::keeping_set_id;

/// A time that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Now,
    At(Stamp),
}

/// What the owner of a directory needs to give a file its name there.
const OWNER_ENTERS: u32 = 0o300;

/// What `setattr` changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<When>,
    pub mtime: Option<When>,
}

impl Fs {
    /// Returns the attributes of a node as the host has them now.
    pub fn getattr(&self, id: u64, handle: Option<u64>) -> FsResult<(Stat, Duration)> {
        let stat = match handle.and_then(|number| self.handles.file(number).ok()) {
            Some(file) if file.fd.get().is_some() => match file.fd.get() {
                Some(fd) => host::stat_fd(fd.as_fd())?,
                None => return Err(FsError::UnknownHandle),
            },
            _ => self.stat(id)?,
        };
        let node = self.node(id)?;
        let life = self.tell(&node, &stat);
        Ok((self.show(&node, stat), life))
    }

    fn stat(&self, id: u64) -> FsResult<Stat> {
        let node = self.node(id)?;
        if let Some(pin) = node.held_pin() {
            return host::stat_fd(pin.as_fd());
        }
        // No pin yet: one stat by name is enough if it finds the same file; else the long way, which proves it.
        if let Some(name) = node.name()
            && let Some(parent) = name.parent.held_pin()
            && let Ok(stat) = host::stat_at(parent.as_fd(), &host::component(&name.name)?)
            && {
                let key = node.key();
                (stat.dev, stat.ino) == (key.dev, key.ino)
            }
            && stat.file_type() == node.kind
        {
            return Ok(stat);
        }
        host::stat_fd(self.table.pin(&node)?.as_fd())
    }

    /// Changes attributes; answers the new ones.
    pub fn setattr(
        &self,
        caller: Caller,
        id: u64,
        handle: Option<u64>,
        change: Change,
    ) -> FsResult<(Stat, Duration)> {
        let node = self.node(id)?;
        let (_, before) = self.inside_stat(&node)?;
        let path = self.path(&node);
        let who = self.who(caller);
        let mut noted = None;
        let allowed = self.may_change(&node, &path, &change).and_then(|()| {
            noted = self.truncation(&node, handle, change.size, &before)?;
            self.make_sole(&node, &before, &who)
        });
        if allowed.is_ok() {
            self.keeps_inode(&node, change.size.is_some());
        }
        // By now the node may stand for a fresh inode.
        let pin = self.table.pin(&node)?;
        let key = node.key();
        let is_same = (before.dev, before.ino) == (key.dev, key.ino);
        let before = if is_same { before } else { host::stat_fd(pin.as_fd())? };
        let publication = Cell::new(None);
        let step = |op: Op, act: &dyn Fn() -> FsResult<()>| {
            let mut event = Self::event(who.clone(), op, path.clone(), Some(node.key()));
            event.version_before = Some(before.version());
            event.noted = noted.clone().filter(|_| op == Op::Truncate);
            let result = allowed.clone().and_then(|()| act());
            event.publication = publication.take();
            event.version_after = host::stat_fd(pin.as_fd()).ok().map(|stat| stat.version());
            self.audited(event, result)
        };
        if let Some(mode) = change.mode {
            if mode & OWNER_ENTERS != OWNER_ENTERS && allowed.is_ok() {
                self.publishes_within(&node);
            }
            step(Op::Chmod, &|| keeping_set_id(|| self.self_fd.chmod(pin.as_fd(), mode)))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            // A set-group-id bit without execute permission stays for those in the group.
            let keeps = before.mode & host::SET_ID != 0 && self.keeps_set_gid(caller, before.gid);
            step(Op::Chown, &|| {
                let chown = || rustix::fs::chownat(&*pin, c"", uid, gid, AtFlags::EMPTY_PATH);
                Ok(if keeps { keeping_set_id(chown) } else { chown() }?)
            })?;
        }
        if let Some(size) = change.size {
            step(Op::Truncate, &|| {
                publication.set(Some(self.truncate(caller, &node, handle, size, &who)?));
                Ok(())
            })?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let times = stamps(change);
            node.born.store(UNSTAMPED, Ordering::Release);
            step(Op::Utimes, &|| {
                Ok(rustix::fs::utimensat(&*pin, c"", &times, AtFlags::EMPTY_PATH)?)
            })?;
        }
        let stat = host::stat_fd(pin.as_fd())?;
        if change.mtime.is_some() && stat.is_dir() {
            node.stamped.store(stat.mtime.nanos(), Ordering::Release);
        }
        self.keeps_left(pin.as_fd());
        // Who was let change the content knows what it is now; who changed attributes knows what was known before.
        if change.size.is_some_and(|size| size != before.size) {
            self.saw(&node, stat.version());
        } else {
            self.touched(&node, &before);
        }
        let life = self.tell(&node, &stat);
        Ok((self.show(&node, stat), life))
    }

    /// Judges what a change of size loses.
    fn truncation(
        &self,
        node: &Arc<Node>,
        handle: Option<u64>,
        size: Option<u64>,
        before: &Stat,
    ) -> FsResult<Noted> {
        if size.is_none_or(|size| size >= before.size) {
            return Ok(None);
        }
        match handle.and_then(|number| self.handles.file(number).ok()) {
            Some(file) if file.writable() => {
                self.overwrites(&file)?;
                Ok(None)
            }
            Some(_) | None => self.loss(node, before),
        }
    }

    /// Asks whether a node's attributes may change. A git file is protected for what it says: its permissions and times
    /// say nothing, and `git init` learns from a chmod of `.git/config` whether the file system keeps the executable
    /// bit.
    fn may_change(&self, node: &Arc<Node>, path: &Path, change: &Change) -> FsResult<()> {
        match self.may_write(node) {
            Err(FsError::Denied(denial))
                if denial.rule() == Rule::ProtectedPath
                    && change.size.is_none()
                    && self.rules.config_kind(path).is_some() =>
            {
                Ok(())
            }
            answer => answer,
        }
    }

    fn truncate(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        handle: Option<u64>,
        size: u64,
        who: &Arc<Process>,
    ) -> FsResult<Publication> {
        let file = handle.and_then(|number| self.handles.file(number).ok());
        let file = file.filter(|file| file.writable());
        if size == 0 && self.cut(caller, node, file.as_deref(), who)? {
            return Ok(Publication::Atomic);
        }
        let fd = match &file {
            Some(file) => self.file_fd(file)?,
            None => {
                let pin = self.table.pin(node)?;
                Arc::new(self.self_fd.open_pin(pin.as_fd(), OFlags::WRONLY | OFlags::NONBLOCK)?)
            }
        };
        self.as_writer(caller, fd.as_fd(), || rustix::fs::ftruncate(&fd, size))?;
        Self::wrote(node, size, u64::MAX);
        Ok(Publication::InPlace)
    }

    /// Statistics of the host's file system.
    pub fn statfs(&self, id: u64) -> FsResult<StatVfs> {
        let pin = self.table.pin(&self.node(id)?)?;
        Ok(rustix::fs::fstatvfs(&*pin)?)
    }
}

fn stamps(change: Change) -> Timestamps {
    let one = |when: Option<When>| match when {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(When::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(When::At(stamp)) => Timespec { tv_sec: stamp.sec, tv_nsec: stamp.nsec.into() },
    };
    Timestamps { last_access: one(change.atime), last_modification: one(change.mtime) }
}
