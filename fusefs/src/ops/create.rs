//! Names that come into being: files, directories, special files, links.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use stockade_observe::{Event, Op, Process};
use stockade_policy::EntryKind;

use crate::error::{FsError, FsResult};
use crate::fs::{Caller, Entry, Fs, Opened, allowed, entry_kind};
use crate::host::{self, SET_ID, Stat};
use crate::node::{Name, Naming, Node};
use crate::ops::not_staged;

/// A new name, ready to be made.
struct Place {
    parent: Arc<Node>,
    dir: Arc<OwnedFd>,
    name: CString,
    path: PathBuf,
    _naming: Naming,
}

impl Fs {
    fn place(&self, parent: u64, name: &OsStr) -> FsResult<Place> {
        let parent = self.node(parent)?;
        let dir = self.inside(&parent)?;
        self.watches.ensure(&parent, &dir);
        let path = self.path_at(&parent, name);
        let name = host::component(name)?;
        self.keeps_directory(&parent);
        Ok(Place { _naming: Naming::within(&parent), dir, name, path, parent })
    }

    /// Makes one name by `make`, records it, and answers its entry.
    fn make(
        &self,
        caller: Caller,
        op: Op,
        may: FsResult<()>,
        place: &Place,
        make: impl FnOnce(&Place) -> FsResult<()>,
    ) -> FsResult<Entry<'_>> {
        let mut event = Self::event(self.who(caller), op, place.path.clone(), None);
        let result = may
            .and_then(|()| self.not_staged(place))
            .and_then(|()| make(place))
            .and_then(|()| self.found(place));
        if let Ok(entry) = &result {
            describe(&mut event, entry);
            self.keeps_made(&place.parent, &place.dir, &place.name, entry.pending.node.key());
        }
        self.audited(event, result)
    }

    /// What is staged under a name is there, though the host doesn't know.
    fn not_staged(&self, place: &Place) -> FsResult<()> {
        let name = OsStr::from_bytes(place.name.as_bytes());
        match self.overlay.get(place.parent.id, name) {
            Some(_) => Err(Errno::EXIST.into()),
            None => Ok(()),
        }
    }

    fn found(&self, place: &Place) -> FsResult<Entry<'_>> {
        let stat = host::stat_at(place.dir.as_fd(), &place.name)?;
        self.entry(&place.parent, place.dir.as_fd(), &place.name, stat)
    }

    pub fn mkdir(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
    ) -> FsResult<Entry<'_>> {
        let place = self.place(parent, name)?;
        let may = self.may_create(&place.path, EntryKind::Directory);
        self.make(caller, Op::Mkdir, may, &place, |place| {
            let mode_bits = Mode::from_raw_mode(mode & 0o7777);
            self.as_caller(caller, umask, mode & SET_ID != 0, || {
                Ok(rustix::fs::mkdirat(&*place.dir, &place.name, mode_bits)?)
            })
        })
    }

    pub fn mknod(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> FsResult<Entry<'_>> {
        let place = self.place(parent, name)?;
        let kind = FileType::from_raw_mode(mode);
        let op = if kind == FileType::RegularFile { Op::Create } else { Op::Mknod };
        let may = self.may_create(&place.path, entry_kind(kind));
        self.make(caller, op, may, &place, |place| {
            let bits = Mode::from_raw_mode(mode & 0o7777);
            self.as_caller(caller, umask, mode & SET_ID != 0, || {
                Ok(rustix::fs::mknodat(
                    &*place.dir,
                    &place.name,
                    kind,
                    bits,
                    host::unpack_dev(rdev),
                )?)
            })
        })
    }

    pub fn symlink(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        target: &Path,
    ) -> FsResult<Entry<'_>> {
        let place = self.place(parent, name)?;
        let may = allowed(self.rules.symlink_refused(&place.path, target.as_os_str().as_bytes()));
        self.make(caller, Op::Symlink, may, &place, |place| {
            self.as_caller(caller, 0, false, || {
                Ok(rustix::fs::symlinkat(target, &*place.dir, &place.name)?)
            })
        })
    }

    /// Gives a node another name.
    pub fn link(&self, caller: Caller, id: u64, parent: u64, name: &OsStr) -> FsResult<Entry<'_>> {
        let node = self.node(id)?;
        self.inside(&node)?;
        let old = self.path(&node);
        let place = self.place(parent, name)?;
        let mut event = Self::event(self.who(caller), Op::Link, old.clone(), Some(node.key()));
        event.path2 = Some(place.path.clone());
        let mut before = None;
        let result = not_staged(name)
            .and_then(|()| {
                let kind = entry_kind(node.kind);
                allowed(self.rules.link_refused(&old, &place.path, kind))
            })
            // A second name is a second way in: what holds for any other name of the file holds for this one.
            .and_then(|()| self.may_link(&node, &place.path))
            .and_then(|()| self.not_staged(&place))
            .and_then(|()| self.publish(&node))
            .and_then(|()| {
                let pin = self.table.pin(&node)?;
                before = host::stat_fd(pin.as_fd()).ok();
                let key = Some(node.key());
                let turn = self.keeps_entry(&place.parent, &place.dir, &place.name, key, false);
                let linked = self.self_fd.link(pin.as_fd(), place.dir.as_fd(), &place.name);
                self.keeps_turn(turn, linked.is_ok());
                linked
            })
            .and_then(|()| self.found(&place));
        if let Ok(entry) = &result {
            describe(&mut event, entry);
            if let Some(before) = before {
                self.touched(&node, &before);
            }
        }
        self.audited(event, result)
    }

    /// Makes the node of a file that the host doesn't see yet.
    fn new_staged(
        &self,
        place: &Place,
        name: &OsStr,
        fd: &Arc<OwnedFd>,
        stat: &Stat,
        who: &Arc<Process>,
    ) -> FsResult<Entry<'_>> {
        let pin = self.self_fd.open_path(fd.as_fd())?;
        let pending = self.table.lookup(stat, || host::generation(fd.as_fd(), &CString::default()));
        self.table.adopt(&pending.node, pin);
        pending.node.add_name(&place.parent, name);
        self.watches.filled(&place.parent, name);
        let at = Name { parent: place.parent.clone(), name: name.to_os_string() };
        self.staged_create(&pending.node, fd.clone(), at, who, stat);
        let entry = self.staged_entry(&place.parent, &pending.node);
        if entry.is_err() {
            self.orphan(&pending.node);
        }
        entry
    }

    /// Asks for a further name on behalf of the names that the file has beside the latest.
    fn may_link(&self, node: &Arc<Node>, to: &Path) -> FsResult<()> {
        for name in node.names() {
            let path = self.path_at(&name.parent, &name.name);
            allowed(self.rules.link_refused(&path, to, entry_kind(node.kind)))?;
        }
        self.may_read(node)
    }

    /// Creates a file and opens it.
    pub fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: OFlags,
    ) -> FsResult<(Entry<'_>, Opened)> {
        let place = self.place(parent, name)?;
        let who = self.who(caller);
        let mut event = Self::event(who.clone(), Op::Create, place.path.clone(), None);
        let keep = OFlags::ACCMODE | OFlags::SYNC | OFlags::DSYNC | OFlags::NOATIME;
        let mut host_flags = (flags & keep)
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY;
        let judged = self.rules.config_kind(&place.path).is_some();
        if judged {
            // What is judged at each write must be readable, too.
            host_flags = host_flags.difference(OFlags::ACCMODE) | OFlags::RDWR;
        }
        let made = self.may_create(&place.path, EntryKind::File).and_then(|()| {
            let bits = Mode::from_raw_mode(mode & 0o7777);
            let writable = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
            let stages = writable && !judged && self.stages(&place.path);
            let result = self.as_caller(caller, umask, mode & SET_ID != 0, || {
                if stages {
                    if self.not_staged(&place).is_err()
                        || host::stat_at(place.dir.as_fd(), &place.name).is_ok()
                    {
                        return Err(Errno::EXIST);
                    }
                    match self.stage_create(&place.dir, bits) {
                        // The file system has no unnamed files: this one is made under its name.
                        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
                        other => return other.map(|fd| (fd, true)),
                    }
                }
                rustix::fs::openat(&*place.dir, &place.name, host_flags, bits).map(|fd| (fd, false))
            });
            match result {
                Ok(made) => Ok(made),
                // It came into being on the host meanwhile: let the kernel walk again and open it.
                Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => Err(FsError::Stale),
                Err(errno) => Err(errno.into()),
            }
        });
        let opened = made.and_then(|(fd, staged)| {
            let stat = host::stat_fd(fd.as_fd())?;
            let fd = Arc::new(fd);
            let entry = if staged {
                self.new_staged(&place, name, &fd, &stat, &who)?
            } else {
                self.entry(&place.parent, place.dir.as_fd(), &place.name, stat)?
            };
            self.saw(&entry.pending.node, stat.version());
            if !staged {
                self.keeps_made(&place.parent, &place.dir, &place.name, entry.pending.node.key());
                entry.pending.node.opens.fetch_add(1, Ordering::AcqRel);
            }
            let writable = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
            let opened = self.opened(
                &entry.pending.node,
                who,
                place.path.clone(),
                flags,
                Some(fd),
                None,
                true,
                (writable, None),
            );
            Ok((entry, opened))
        });
        match &opened {
            // Not an outcome: the kernel asks again.
            Err(FsError::Stale) => return opened,
            Ok((entry, _)) => describe(&mut event, entry),
            Err(_) => {}
        }
        self.audited(event, opened)
    }
}

fn describe(event: &mut Event, entry: &Entry<'_>) {
    event.key = Some(entry.pending.node.key());
    event.version_after = Some(entry.stat.version());
}
