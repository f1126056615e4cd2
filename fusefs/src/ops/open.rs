//! Opening and closing files, and how their data flows.
//!
//! A node's data goes one way for as long as the node lives: by kernel passthrough if its backing file could be
//! registered at the first open, else through us with the kernel's page cache. The kernel refuses to mix the two on
//! one inode.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::OFlags;
use rustix::io::Errno;
use stockade_observe::{Op, Process, Publication, Version};

use crate::error::FsResult;
use crate::fs::{Caller, Data, Fs, Opened};
use crate::handle::{FileHandle, Handle};
use crate::host;
use crate::node::{Backing, Node};
use crate::sys;

/// `__FMODE_EXEC`: the kernel sets it in an open for `execve(2)` (include/linux/fs.h).
const EXEC: u32 = 0x20;

impl Fs {
    /// Opens a regular file.
    pub fn open(&self, caller: Caller, id: u64, raw_flags: u32) -> FsResult<Opened> {
        let node = self.node(id)?;
        let flags = OFlags::from_bits_retain(raw_flags & !EXEC);
        let exec = raw_flags & EXEC != 0;
        let path = self.path(&node);
        let who = self.who(caller);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        let op = if exec {
            Op::Exec
        } else if writes {
            Op::Write
        } else {
            Op::Read
        };
        let result = (|| {
            if !flags.contains(OFlags::WRONLY) {
                self.may_read(&node)?;
            }
            if writes {
                self.may_write(&node)?;
            }
            let pin = self.table.pin(&node)?;
            let before = host::stat_fd(pin.as_fd())?;
            let fd = if writes || !self.passthrough.load(Ordering::Relaxed) {
                Some(self.open_host(&pin, flags)?)
            } else {
                None
            };
            Ok((fd, before.version()))
        })();
        match result {
            Ok((fd, version)) => Ok(self.opened(&node, who, path, flags, fd, Some(version), exec)),
            Err(error) => self.audited(Self::event(who, op, path, Some(node.key)), Err(error)),
        }
    }

    /// Opens the host's file as the program asked, which is where the host checks what only it knows (append-only and
    /// immutable files, running programs). `O_APPEND` is left out and applied to each write, since the program may
    /// change it later; `O_DIRECT` is left out since its buffers aren't ours to align.
    fn open_host(&self, pin: &OwnedFd, flags: OFlags) -> FsResult<OwnedFd> {
        let keep = OFlags::ACCMODE
            | OFlags::TRUNC
            | OFlags::SYNC
            | OFlags::DSYNC
            | OFlags::NOATIME
            | OFlags::NONBLOCK;
        match self.self_fd.open_pin(pin.as_fd(), flags & keep) {
            Err(error) if error.errno() == Errno::PERM && flags.contains(OFlags::APPEND) => {
                self.self_fd.open_pin(pin.as_fd(), (flags & keep) | OFlags::APPEND)
            }
            other => other,
        }
    }

    /// Makes the handle of a file that may be opened.
    #[expect(clippy::too_many_arguments, reason = "the open and the create of a file meet here")]
    pub(crate) fn opened(
        &self,
        node: &Arc<Node>,
        who: Arc<Process>,
        path: PathBuf,
        flags: OFlags,
        fd: Option<OwnedFd>,
        opened: Option<Version>,
        exec_or_new: bool,
    ) -> Opened {
        let exec = exec_or_new && opened.is_some();
        let data = match self.backing(node, fd.as_ref()) {
            Some(id) => Data::Passthrough(id),
            None => {
                let mut cached = node.cached.lock();
                let keep = opened.is_some() && *cached == opened && !flags.contains(OFlags::TRUNC);
                *cached = opened;
                Data::Cached { keep }
            }
        };
        if exec {
            self.record(Self::event(who.clone(), Op::Exec, path.clone(), Some(node.key)));
        }
        let slot = OnceLock::new();
        if let Some(fd) = fd {
            slot.get_or_init(|| Arc::new(fd));
        }
        let handle = self.handles.insert(Handle::File(Arc::new(FileHandle {
            node: node.clone(),
            flags,
            fd: slot,
            passthrough: matches!(data, Data::Passthrough(_)),
            who,
            path,
            opened,
            exec,
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            operations: AtomicU64::new(0),
        })));
        Opened { handle, data }
    }

    /// Returns the id under which the node's file is registered for passthrough; registers it at first.
    fn backing(&self, node: &Arc<Node>, fd: Option<&OwnedFd>) -> Option<u32> {
        if !self.passthrough.load(Ordering::Relaxed) {
            return None;
        }
        let mut backing = node.backing.lock();
        if *backing == Backing::Unknown {
            let id = match fd {
                Some(fd) => sys::backing_open(self.device.as_fd(), fd.as_fd()),
                None => match self.table.pin(node) {
                    Ok(pin) => sys::backing_open(self.device.as_fd(), pin.as_fd()),
                    Err(_) => return None,
                },
            };
            *backing = match id {
                Ok(id) => Backing::Id(id),
                Err(error) => {
                    tracing::debug!(%error, "a file can't be passed through");
                    Backing::Refused
                }
            };
        }
        match *backing {
            Backing::Id(id) => Some(id),
            Backing::Unknown | Backing::Refused => None,
        }
    }

    /// Returns our own descriptor of an open file, opening it if nothing needed one before.
    pub(crate) fn file_fd(&self, file: &FileHandle) -> FsResult<Arc<OwnedFd>> {
        if let Some(fd) = file.fd.get() {
            return Ok(fd.clone());
        }
        let pin = self.table.pin(&file.node)?;
        let fd = Arc::new(self.open_host(&pin, file.flags.difference(OFlags::TRUNC))?);
        Ok(file.fd.get_or_init(|| fd).clone())
    }

    pub fn release(&self, handle: u64) {
        if let Some(Handle::File(file)) = self.handles.remove(handle) {
            self.close_file(&file);
        }
    }

    /// Records what an open file was used for, now that it is closed.
    pub(crate) fn close_file(&self, file: &FileHandle) {
        let operations = file.operations.load(Ordering::Relaxed).max(1);
        let seen =
            |counter: &AtomicU64| (!file.passthrough).then(|| counter.load(Ordering::Relaxed));
        let (read, written) = (seen(&file.bytes_read), seen(&file.bytes_written));
        let after = file
            .fd
            .get()
            .and_then(|fd| host::stat_fd(fd.as_fd()).ok())
            .map(|stat| stat.version())
            .or(file.opened);
        // A file opened both ways is reported as read unless we know that nothing was.
        let was_read =
            if file.writable() { file.readable() && read != Some(0) } else { !file.exec };
        if was_read && !self.observe_full {
            let mut event =
                Self::event(file.who.clone(), Op::Read, file.path.clone(), Some(file.node.key));
            event.bytes_read = read;
            event.version_before = file.opened;
            event.version_after = if file.writable() { None } else { after };
            event.count = operations;
            self.record(event);
        }
        if file.writable() {
            if !file.passthrough {
                *file.node.cached.lock() = after;
            }
            let mut event =
                Self::event(file.who.clone(), Op::Write, file.path.clone(), Some(file.node.key));
            event.bytes_written = written;
            event.version_before = file.opened;
            event.version_after = after;
            event.publication = Some(Publication::InPlace);
            event.count = operations;
            self.record(event);
        }
    }
}
