//! Opening and closing files, and how their data flows.
//!
//! A node's data goes one way for as long as the node lives: by kernel passthrough if its backing file could be
//! registered at the first open, else through us with the kernel's page cache. The kernel refuses to mix the two on
//! one inode.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use stockade_observe::{Op, Process, Publication, Version};
use stockade_policy::ConfigKind;

use super::guard::Noted;
use crate::error::{FsError, FsResult};
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
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        let op = if exec {
            Op::Exec
        } else if writes {
            Op::Write
        } else {
            Op::Read
        };
        // Nobody may start writing to a file that is being judged; see `ops/judge.rs`.
        let gate = writes.then(|| node.gate.lock());
        let inside = self.inside_stat(&node);
        let path = self.path(&node);
        let who = self.who(caller);
        // A `.git` file may be written again, as git does, if each write passes.
        let judged = writes && self.may_rewrite_judged(&node, &path);
        let result = (|| {
            let (_, mut before) = inside?;
            if before.nlink == 0
                && (writes || node.opens.load(Ordering::Acquire) == 0)
                && node.is_named()
                && node.staged.lock().is_none()
            {
                // The node may have been given another inode meanwhile: a publication that was waited for.
                before = self.inside_stat(&node)?.1;
                if before.nlink == 0 {
                    // The name leads elsewhere by the host's doing, and the kernel hasn't heard of it yet: it looks again.
                    return Err(FsError::Stale);
                }
            }
            if !flags.contains(OFlags::WRONLY) {
                self.may_read(&node)?;
            }
            if writes && !judged {
                self.may_write(&node)?;
            }
            if !flags.contains(OFlags::WRONLY) {
                self.may_read_shared(&node, &before)?;
            }
            let (author, noted) = self.known_to_writer(&node, flags, &before)?;
            if writes {
                self.make_sole(&node, &before, &who)?;
            }
            // The kernel would find out only after we had truncated it.
            if flags.contains(OFlags::TRUNC) && node.running.load(Ordering::Acquire) > 0 {
                return Err(Errno::TXTBSY.into());
            }
            let pin = self.table.pin(&node)?;
            let staged =
                flags.contains(OFlags::TRUNC) && flags.intersects(OFlags::WRONLY | OFlags::RDWR);
            let staged = if staged && !judged {
                self.stage_replace(caller, &node, &before, &who)?
            } else {
                None
            };
            let counted = staged.is_some();
            if writes && !counted {
                self.keeps_inode(&node, true);
            }
            let fd = if staged.is_some() {
                staged
            } else if writes || !self.passthrough.load(Ordering::Relaxed) {
                let readable = flags.difference(OFlags::ACCMODE) | OFlags::RDWR;
                let open = || self.open_host(&pin, if judged { readable } else { flags });
                Some(Arc::new(if flags.contains(OFlags::TRUNC) {
                    self.as_writer(caller, pin.as_fd(), open)
                } else {
                    open()
                }?))
            } else {
                None
            };
            if !flags.intersects(OFlags::WRONLY | OFlags::TRUNC) {
                self.saw_opened(&node, &before);
            }
            if !counted {
                node.opens.fetch_add(1, Ordering::AcqRel);
            }
            Ok((fd, before.version(), author, noted))
        })();
        match result {
            Ok((fd, version, author, noted)) => {
                let version = Some(version);
                let opened =
                    self.opened(&node, who, path, flags, fd, version, exec, (author, noted));
                drop(gate);
                Ok(opened)
            }
            Err(FsError::Stale) => Err(FsError::Stale),
            Err(error) => self.audited(Self::event(who, op, path, Some(node.key())), Err(error)),
        }
    }

    /// Tells whether an open for writing knows the content, and judges what is lost by it. What an open for reading and
    /// writing can write over it can have read. An open that only writes may append, or just set times: such writes come
    /// to us, and the first that loses something is judged.
    fn known_to_writer(
        &self,
        node: &Arc<Node>,
        flags: OFlags,
        before: &host::Stat,
    ) -> FsResult<(bool, Noted)> {
        if flags.contains(OFlags::TRUNC) {
            return Ok((flags.intersects(OFlags::WRONLY | OFlags::RDWR), self.loss(node, before)?));
        }
        if flags.contains(OFlags::RDWR) {
            return Ok((true, None));
        }
        if !flags.contains(OFlags::WRONLY) {
            return Ok((false, None));
        }
        Ok((self.knows(node, before), None))
    }

    /// Notes that a file's content was opened for reading.
    fn saw_opened(&self, node: &Arc<Node>, before: &host::Stat) {
        if node.kind != FileType::RegularFile {
            return;
        }
        if node.key().ino == before.ino {
            self.saw(node, before.version());
        } else if let Some(stat) = node.held_pin().and_then(|pin| host::stat_fd(pin.as_fd()).ok()) {
            // It was given an inode of its own just now.
            self.saw(node, stat.version());
        }
    }

    /// Tells whether an existing file is refused only because it is a git file that is judged at each write, and can be:
    /// nobody may have it open past us.
    fn may_rewrite_judged(&self, node: &Arc<Node>, path: &Path) -> bool {
        node.kind == FileType::RegularFile
            && self.rules.config_kind(path) == Some(ConfigKind::GitFile)
            && node.flow.lock().opens == 0
            && node.names().iter().all(|name| {
                self.rules.zone(&self.path_at(&name.parent, &name.name)).write.is_none()
            })
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

    /// Makes the handle of a file that may be opened, and is counted as open already.
    #[expect(clippy::too_many_arguments, reason = "the open and the create of a file meet here")]
    pub(crate) fn opened(
        &self,
        node: &Arc<Node>,
        who: Arc<Process>,
        path: PathBuf,
        flags: OFlags,
        fd: Option<Arc<OwnedFd>>,
        opened: Option<Version>,
        exec_or_new: bool,
        (author, noted): (bool, Noted),
    ) -> Opened {
        let exec = exec_or_new && opened.is_some();
        // A git file that can be opened for writing at all is judged at each write.
        let writable = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let judged = writable && self.rules.config_kind(&path).is_some();
        let data = if judged {
            let old = std::mem::replace(&mut node.flow.lock().backing, Backing::Refused);
            self.give_back(old);
            Data::Direct
        } else {
            // Who writes decides about set-id bits, so such writes come to us.
            let set_id = || fd.as_ref().is_some_and(|fd| host::has_set_id(fd.as_fd()));
            let ours = writable && (!author || set_id());
            self.flow(node, flags, ours).unwrap_or_else(|| {
                if node.parted.load(Ordering::Acquire) {
                    return Data::Direct;
                }
                let mut cached = node.cached.lock();
                let keep = opened.is_some() && *cached == opened && !flags.contains(OFlags::TRUNC);
                *cached = opened;
                Data::Cached { keep }
            })
        };
        if writable {
            node.writers.fetch_add(1, Ordering::AcqRel);
        }
        let maps = flags.contains(OFlags::RDWR) && matches!(data, Data::Passthrough(_));
        if maps {
            node.mappers.fetch_add(1, Ordering::AcqRel);
            if opened.is_some() {
                // What the kernel was told before may not last. It takes this from within an open: attributes alone need
                // no lock, and it waits for no inode that somebody opens.
                if let Some(notifier) = self.notifier.get() {
                    notifier.inode(node.id, false);
                }
            }
        }
        if exec {
            node.running.fetch_add(1, Ordering::AcqRel);
            self.record(Self::event(who.clone(), Op::Exec, path.clone(), Some(node.key())));
        }
        if author {
            node.authors.fetch_add(1, Ordering::AcqRel);
        }
        let slot = OnceLock::new();
        if let Some(fd) = fd {
            slot.get_or_init(|| fd);
        }
        let staged = writable && node.staged.lock().is_some();
        let may_be_cut = writable && !judged && self.stages(&path);
        let handle = self.handles.insert(Handle::File(Arc::new(FileHandle {
            node: node.clone(),
            flags,
            fd: slot,
            maps,
            passthrough: matches!(data, Data::Passthrough(_)),
            counted: matches!(data, Data::Passthrough(_) | Data::Detached(_)),
            judged,
            parted: AtomicBool::new(false),
            staged: AtomicBool::new(staged),
            who,
            path,
            opened,
            exec,
            author: AtomicBool::new(author),
            held: AtomicBool::new(false),
            noted: noted.map_or_else(OnceLock::new, OnceLock::from),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            operations: AtomicU64::new(0),
        })));
        // What it was left as is told at once then, not when the kernel comes to it.
        let told = writable && self.history.is_some();
        Opened { handle, data, flush: staged || told || may_be_cut }
    }

    /// Chooses how an open file's data flows when the kernel can pass it through; registers the file at first.
    ///
    /// The kernel opens the backing file with the flags of this open for good, though a program may take `O_APPEND` and
    /// `O_DIRECT` off again (`F_SETFL`): opens with one of them read and write through us, past the cache, and so do
    /// those that are to be `ours`.
    fn flow(&self, node: &Arc<Node>, flags: OFlags, ours: bool) -> Option<Data> {
        if !self.passthrough.load(Ordering::Relaxed) {
            return None;
        }
        let mut flow = node.flow.lock();
        if flow.backing == Backing::Unknown {
            // The pin, not an open file: that would count as a writer for as long as the registration lasts, and keep the
            // host from running the file.
            let Ok(pin) = self.table.pin(node) else { return None };
            flow.backing = match sys::backing_open(self.device.as_fd(), pin.as_fd()) {
                Ok(id) => Backing::Id(id),
                Err(error) => {
                    tracing::debug!(%error, "a file can't be passed through");
                    Backing::Refused
                }
            };
        }
        match flow.backing {
            Backing::Id(id) => {
                flow.opens += 1;
                let by_us =
                    ours || flow.outdated || flags.intersects(OFlags::APPEND | OFlags::DIRECT);
                Some(if by_us { Data::Detached(id) } else { Data::Passthrough(id) })
            }
            Backing::Unknown | Backing::Refused => None,
        }
    }

    /// Says that the node stands for another inode now: its registration ends, at once or with the last open file that
    /// goes by it.
    pub(crate) fn replaced(&self, node: &Arc<Node>) {
        let mut flow = node.flow.lock();
        if flow.opens > 0 {
            flow.outdated = true;
            return;
        }
        let old = std::mem::take(&mut flow.backing);
        drop(flow);
        self.give_back(old);
    }

    fn passed_by(&self, node: &Arc<Node>) {
        let mut flow = node.flow.lock();
        flow.opens = flow.opens.saturating_sub(1);
        if flow.opens == 0 && flow.outdated {
            let old = std::mem::take(&mut *flow).backing;
            drop(flow);
            self.give_back(old);
        }
    }

    /// Ends a registration.
    pub(crate) fn give_back(&self, backing: Backing) {
        if let Backing::Id(id) = backing
            && let Err(error) = sys::backing_close(self.device.as_fd(), id)
        {
            tracing::debug!(%error, "a backing file can't be given back");
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
        if file.counted {
            self.passed_by(&file.node);
        }
        if file.node.opens.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.settle(file);
        }
        self.keeps_closed(file);
        if file.exec {
            file.node.running.fetch_sub(1, Ordering::AcqRel);
        }
        if file.maps {
            file.node.mappers.fetch_sub(1, Ordering::AcqRel);
        }
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
        if file.writable() {
            self.left(file, after);
            file.node.writers.fetch_sub(1, Ordering::AcqRel);
        }
        // A file opened both ways is reported as read unless we know that nothing was.
        let was_read =
            if file.writable() { file.readable() && read != Some(0) } else { !file.exec };
        if was_read && !self.observe_full {
            let mut event =
                Self::event(file.who.clone(), Op::Read, file.path.clone(), Some(file.node.key()));
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
                Self::event(file.who.clone(), Op::Write, file.path.clone(), Some(file.node.key()));
            // Where each write has an event of its own, this one says what came of them.
            event.bytes_written = if self.observe_full { Some(0) } else { written };
            event.version_before = file.opened;
            event.version_after = after;
            let staged = file.staged.load(Ordering::Acquire);
            let atomic = staged && file.node.staged.lock().is_none();
            event.publication =
                Some(if atomic { Publication::Atomic } else { Publication::InPlace });
            event.noted = file.noted.get().cloned();
            event.count = if self.observe_full { 1 } else { operations };
            self.record(event);
        }
    }
}
