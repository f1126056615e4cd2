//! The one place that knows `fuser`: its requests become our calls, our answers become its replies.
//!
//! A panic in an operation ends as `EIO` for its caller; the thread goes on serving.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Config, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, Session, SessionACL,
    TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use crate::error::FsResult;
use crate::fs::{Caller, Data, Entry, Fs, Opened};
use crate::handle::Handle;
use crate::host::{Stamp, Stat};
use crate::node::{Node, ROOT};
use crate::ops::{Change, When, thread, xattr_fits};

/// The largest write and read that one request carries.
const LARGEST: u32 = 1024 * 1024;

/// A session that has answered INIT.
pub struct Connection(Session<Adapter>);

impl Connection {
    /// Answers INIT on a mounted `/dev/fuse` descriptor.
    pub fn open(
        fs: Arc<Fs>,
        device: OwnedFd,
        threads: usize,
        clone: bool,
        stack_depth: u32,
    ) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(threads.max(1));
        config.clone_fd = clone && threads > 1;
        // The kernel has decided who may come in (`allow_other` or not); there is nothing left to filter.
        let session =
            Session::from_fd(Adapter { fs, stack_depth }, device, SessionACL::All, config)?;
        Ok(Self(session))
    }

    /// Returns what tells the kernel about changes.
    pub fn notifier(&self) -> Notifier {
        Notifier(self.0.notifier())
    }

    /// Serves until the mount is gone.
    pub fn run(self) -> io::Result<()> {
        self.0.run()
    }
}

/// Tells the kernel that something it was told may not be so any more. What it doesn't know it ignores.
pub struct Notifier(fuser::Notifier);

impl Notifier {
    /// A name may lead elsewhere now, or nowhere.
    pub fn entry(&self, parent: u64, name: &OsStr) {
        if let Err(error) = self.0.inval_entry(INodeNo(parent), name) {
            tracing::debug!(%error, "the kernel didn't take a notification");
        }
    }

    /// A node's attributes, and its data if `data`, may be others now.
    pub fn inode(&self, id: u64, data: bool) {
        let (offset, length) = if data { (0, 0) } else { (-1, 0) };
        if let Err(error) = self.0.inval_inode(INodeNo(id), offset, length) {
            tracing::debug!(%error, "the kernel didn't take a notification");
        }
    }
}

struct Adapter {
    fs: Arc<Fs>,
    stack_depth: u32,
}

impl Adapter {
    fn ask<'s, T>(&'s self, call: impl FnOnce(&'s Fs) -> FsResult<T>) -> Result<T, Errno> {
        thread::prepare();
        match catch_unwind(AssertUnwindSafe(|| call(&self.fs))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Errno::from_i32(error.errno().raw_os_error())),
            Err(_) => {
                tracing::error!("an operation panicked");
                Err(Errno::EIO)
            }
        }
    }

    fn reply_entry(reply: ReplyEntry, result: Result<Entry<'_>, Errno>) {
        match result {
            Ok(entry) => {
                let attr = file_attr(entry.pending.node.id, &entry.stat);
                reply.entry_with_ttls(
                    &entry.attr_life,
                    &entry.name_life,
                    &attr,
                    generation(&entry.pending.node),
                );
                entry.pending.sent();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn reply_empty(reply: ReplyEmpty, result: Result<(), Errno>) {
        match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn reply_attr(reply: ReplyAttr, ino: INodeNo, result: Result<(Stat, Duration), Errno>) {
        match result {
            // The root's number in the protocol is 1; what it shows is the host's.
            Ok((stat, life)) => {
                let shown = if ino.0 == ROOT { stat.ino } else { ino.0 };
                reply.attr(&life, &file_attr(shown, &stat));
            }
            Err(errno) => reply.error(errno),
        }
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

fn generation(node: &Node) -> Generation {
    Generation(node.generation)
}

fn system_time(stamp: Stamp) -> SystemTime {
    let nanos = Duration::from_nanos(stamp.nsec.into());
    match u64::try_from(stamp.sec) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanos,
        Err(_) => UNIX_EPOCH - Duration::from_secs(stamp.sec.unsigned_abs()) + nanos,
    }
}

/// Undoes fuser's reading of a time. It takes `sec` seconds and `nsec` nanoseconds before 1970 both as a distance
/// backwards, though the kernel counts nanoseconds forwards; the pair itself is recovered unharmed.
fn when(time: TimeOrNow) -> When {
    match time {
        TimeOrNow::Now => When::Now,
        TimeOrNow::SpecificTime(time) => When::At(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Stamp {
                sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nsec: after.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let sec = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
                Stamp { sec, nsec: before.subsec_nanos() }
            }
        }),
    }
}

fn file_type(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Host;
    match kind {
        Host::Directory => FileType::Directory,
        Host::Symlink => FileType::Symlink,
        Host::Fifo => FileType::NamedPipe,
        Host::Socket => FileType::Socket,
        Host::CharacterDevice => FileType::CharDevice,
        Host::BlockDevice => FileType::BlockDevice,
        Host::RegularFile | Host::Unknown => FileType::RegularFile,
    }
}

fn file_attr(ino: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(stat.atime),
        mtime: system_time(stat.mtime),
        ctime: system_time(stat.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(stat.file_type()),
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or_default(),
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        blksize: stat.blksize,
        flags: 0,
    }
}

/// Spares the round trip of a `close(2)` that nobody needs to hear of.
fn quiet(opened: Opened) -> FopenFlags {
    if opened.flush { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH }
}

fn flags(raw: i32) -> OFlags {
    OFlags::from_bits_retain(raw.cast_unsigned())
}

/// Lends a registered backing file to a reply.
#[expect(unsafe_code, reason = "fuser marks taking an id over as unsafe; this is its only use")]
fn lend(reply: &impl Lender, id: u32) -> fuser::BackingId {
    // SAFETY: `id` was registered on this connection and stays registered as long as its node lives, which outlasts the
    // reply; the caller turns the value back into the raw id, so it isn't closed here.
    unsafe { reply.wrap(id) }
}

trait Lender {
    /// # Safety
    /// As for `wrap_backing`: the id is open, of this session, and not closed while the result lives.
    #[expect(unsafe_code, reason = "passes fuser's own condition on")]
    unsafe fn wrap(&self, id: u32) -> fuser::BackingId;
}

impl Lender for ReplyOpen {
    #[expect(unsafe_code, reason = "passes fuser's own condition on")]
    unsafe fn wrap(&self, id: u32) -> fuser::BackingId {
        // SAFETY: the caller's promise is the callee's condition.
        unsafe { self.wrap_backing(id) }
    }
}

impl Lender for ReplyCreate {
    #[expect(unsafe_code, reason = "passes fuser's own condition on")]
    unsafe fn wrap(&self, id: u32) -> fuser::BackingId {
        // SAFETY: the caller's promise is the callee's condition.
        unsafe { self.wrap_backing(id) }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel lacks a capability");
            }
        }
        config
            .set_max_write(LARGEST)
            .map_err(|nearest| io::Error::other(format!("max_write: {nearest}")))?;
        if let Err(nearest) = config.set_max_readahead(LARGEST) {
            config.set_max_readahead(nearest).map_err(|_| io::Error::other("max_readahead"))?;
        }
        config
            .set_max_background(64)
            .map_err(|nearest| io::Error::other(format!("max_background: {nearest}")))?;
        let passthrough = self.fs.passthrough.load(Ordering::Relaxed)
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(self.stack_depth).is_ok();
        self.fs.passthrough.store(passthrough, Ordering::Relaxed);
        Ok(())
    }

    fn destroy(&mut self) {
        for handle in self.fs.handles.drain() {
            match handle {
                Handle::File(file) => self.fs.close_file(&file),
                Handle::Dir(dir) => self.fs.close_dir(&dir),
            }
        }
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.ask(|fs| fs.lookup(parent.0, name)) {
            Ok(Ok(entry)) => Self::reply_entry(reply, Ok(entry)),
            Ok(Err(life)) => {
                // Number 0 with a lifetime: the kernel may believe that the name is absent.
                let nothing = file_attr(0, &Stat { mode: libc::S_IFREG, ..Stat::default() });
                reply.entry(&life, &nothing, Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        // There is no reply to a forget.
        self.ask(|fs| {
            fs.forget(ino.0, count);
            Ok(())
        })
        .unwrap_or_default();
    }

    fn getattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let result = self.ask(|fs| fs.getattr(ino.0, handle.map(|handle| handle.0)));
        Self::reply_attr(reply, ino, result);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change =
            Change { mode, uid, gid, size, atime: atime.map(when), mtime: mtime.map(when) };
        let result = self
            .ask(|fs| fs.setattr(caller(request), ino.0, handle.map(|handle| handle.0), change));
        Self::reply_attr(reply, ino, result);
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.ask(|fs| fs.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        Self::reply_entry(
            reply,
            self.ask(|fs| fs.mknod(caller(request), parent.0, name, mode, umask, rdev)),
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        Self::reply_entry(
            reply,
            self.ask(|fs| fs.mkdir(caller(request), parent.0, name, mode, umask)),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        Self::reply_empty(reply, self.ask(|fs| fs.unlink(caller(request), parent.0, name)));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        Self::reply_empty(reply, self.ask(|fs| fs.rmdir(caller(request), parent.0, name)));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        Self::reply_entry(
            reply,
            self.ask(|fs| fs.symlink(caller(request), parent.0, name, target)),
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let result = self
            .ask(|fs| fs.rename(caller(request), (parent.0, name), (newparent.0, newname), flags));
        Self::reply_empty(reply, result);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        Self::reply_entry(
            reply,
            self.ask(|fs| fs.link(caller(request), ino.0, newparent.0, newname)),
        );
    }

    fn open(&self, request: &Request, ino: INodeNo, raw: OpenFlags, reply: ReplyOpen) {
        match self.ask(|fs| fs.open(caller(request), ino.0, raw.0.cast_unsigned())) {
            Ok(opened) => match opened.data {
                Data::Passthrough(id) => {
                    let backing = lend(&reply, id);
                    reply.opened_passthrough(FileHandle(opened.handle), quiet(opened), &backing);
                    let _: u32 = backing.into_raw();
                }
                Data::Detached(id) => {
                    let backing = lend(&reply, id);
                    let how = quiet(opened) | FopenFlags::FOPEN_DIRECT_IO;
                    reply.opened_passthrough(FileHandle(opened.handle), how, &backing);
                    let _: u32 = backing.into_raw();
                }
                Data::Direct => {
                    let how = quiet(opened) | FopenFlags::FOPEN_DIRECT_IO;
                    reply.opened(FileHandle(opened.handle), how);
                }
                Data::Cached { keep } => {
                    let mut how = quiet(opened);
                    how.set(FopenFlags::FOPEN_KEEP_CACHE, keep);
                    reply.opened(FileHandle(opened.handle), how);
                }
            },
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        raw: i32,
        reply: ReplyCreate,
    ) {
        match self.ask(|fs| fs.create(caller(request), parent.0, name, mode, umask, flags(raw))) {
            Ok((entry, opened)) => {
                let attr = file_attr(entry.pending.node.id, &entry.stat);
                let life = entry.attr_life.min(entry.name_life);
                let generation = generation(&entry.pending.node);
                let handle = FileHandle(opened.handle);
                match opened.data {
                    Data::Passthrough(id) => {
                        let backing = lend(&reply, id);
                        let how = quiet(opened);
                        reply.created_passthrough(&life, &attr, generation, handle, how, &backing);
                        let _: u32 = backing.into_raw();
                    }
                    Data::Cached { .. } => {
                        reply.created(&life, &attr, generation, handle, quiet(opened));
                    }
                    // A fresh node has no earlier file to be detached from.
                    Data::Direct | Data::Detached(_) => {
                        let how = quiet(opened) | FopenFlags::FOPEN_DIRECT_IO;
                        reply.created(&life, &attr, generation, handle, how);
                    }
                }
                entry.pending.sent();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = usize::try_from(size).unwrap_or_default();
        match self.ask(|fs| fs.read(handle.0, offset, size)) {
            Ok(data) => reply.data(&data),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        raw: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.ask(|fs| fs.write(caller(request), handle.0, offset, data, flags(raw.0))) {
            Ok(length) => reply.written(u32::try_from(length).unwrap_or_default()),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        Self::reply_empty(reply, self.ask(|fs| fs.flush(caller(request), handle.0)));
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.ask(|fs| {
            fs.release(handle.0);
            Ok(())
        });
        Self::reply_empty(reply, result);
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        Self::reply_empty(reply, self.ask(|fs| fs.fsync(handle.0, data_only)));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.ask(|fs| fs.opendir(caller(request), ino.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let result = self.ask(|fs| {
            fs.readdir(handle.0, offset, |listed, ino| {
                reply.add(INodeNo(ino), listed.next, file_type(listed.kind), &listed.name)
            })
        });
        match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let result = self.ask(|fs| {
            fs.readdirplus(handle.0, offset, |listed, shown, entry| match entry {
                Some(entry) => {
                    let node = &entry.pending.node;
                    let attr = file_attr(node.id, &entry.stat);
                    let life = entry.attr_life.min(entry.name_life);
                    let full = reply.add(
                        attr.ino,
                        listed.next,
                        &listed.name,
                        &life,
                        &attr,
                        generation(node),
                    );
                    if !full {
                        entry.pending.sent();
                    }
                    full
                }
                None => {
                    // `.` and `..`, which the kernel doesn't enter, and names that can't be looked up.
                    let mode = listed.kind.as_raw_mode();
                    let attr = file_attr(shown, &Stat { mode, nlink: 1, ..Stat::default() });
                    let life = Duration::ZERO;
                    reply.add(attr.ino, listed.next, &listed.name, &life, &attr, Generation(0))
                }
            })
        });
        match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let result = self.ask(|fs| {
            fs.releasedir(handle.0);
            Ok(())
        });
        Self::reply_empty(reply, result);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        Self::reply_empty(reply, self.ask(|fs| fs.fsyncdir(handle.0, data_only)));
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.ask(|fs| fs.statfs(ino.0)) {
            Ok(s) => {
                let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
                reply.statfs(
                    s.f_blocks,
                    s.f_bfree,
                    s.f_bavail,
                    s.f_files,
                    s.f_ffree,
                    small(s.f_bsize),
                    small(s.f_namemax),
                    small(s.f_frsize),
                );
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let result =
            self.ask(|fs| fs.setxattr(caller(request), ino.0, name, value, flags.cast_unsigned()));
        Self::reply_empty(reply, result);
    }

    fn getxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        reply_value(reply, self.ask(|fs| fs.getxattr(ino.0, name)), size);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        reply_value(reply, self.ask(|fs| fs.listxattr(ino.0)), size);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        Self::reply_empty(reply, self.ask(|fs| fs.removexattr(caller(request), ino.0, name)));
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let result = self.ask(|fs| {
            fs.fallocate(caller(request), handle.0, mode.cast_unsigned(), offset, length)
        });
        Self::reply_empty(reply, result);
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.ask(|fs| fs.lseek(handle.0, offset, whence)) {
            Ok(at) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _ino_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // One request at most as large as its answer can say.
        let length = usize::try_from(length.min(1 << 30)).unwrap_or_default();
        let result = self.ask(|fs| {
            fs.copy_file_range(
                caller(request),
                (handle_in.0, offset_in),
                (handle_out.0, offset_out),
                length,
            )
        });
        match result {
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or_default()),
            Err(errno) => reply.error(errno),
        }
    }
}

fn reply_value(reply: ReplyXattr, value: Result<Vec<u8>, Errno>, size: u32) {
    match value {
        Ok(value) => match xattr_fits(&value, size) {
            Ok(None) => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
            Ok(Some(value)) => reply.data(value),
            Err(error) => reply.error(Errno::from_i32(error.errno().raw_os_error())),
        },
        Err(errno) => reply.error(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_both_ways() {
        // What fuser makes of (-1 s, 500,000,000 ns), which is half a second before the epoch.
        let read = UNIX_EPOCH - Duration::new(1, 500_000_000);
        assert_eq!(
            when(TimeOrNow::SpecificTime(read)),
            When::At(Stamp { sec: -1, nsec: 500_000_000 })
        );
        assert_eq!(
            system_time(Stamp { sec: -1, nsec: 500_000_000 }),
            UNIX_EPOCH - Duration::from_millis(500)
        );
        assert_eq!(system_time(Stamp { sec: 5, nsec: 7 }), UNIX_EPOCH + Duration::new(5, 7));
    }
}
