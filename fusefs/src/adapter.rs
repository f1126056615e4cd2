//! The one place that knows `fuser`: its requests become our calls, our answers become its replies.
//!
//! A panic in an operation ends as `EIO` for its caller; the thread goes on serving.

use std::ffi::OsStr;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::error::FsResult;
use crate::fs::Fs;
use crate::handle::Handle;
use crate::host::Stat;
use crate::ops::{Change, Listing, thread};

mod convert;
mod reply;
mod session;

pub use session::{Connection, Notifier};

use convert::{caller, file_attr, file_type, flags, generation, when};

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
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        session::negotiate(&self.fs, config, self.stack_depth)
    }

    fn destroy(&mut self) {
        for handle in self.fs.handles.drain() {
            match handle {
                Handle::File(file) => self.fs.close_file(&file),
                Handle::Dir(dir) => self.fs.close_dir(&dir),
            }
        }
        self.fs.settle_all();
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.ask(|fs| fs.lookup(parent.0, name)) {
            Ok(Ok(entry)) => reply::entry(reply, Ok(entry)),
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
        reply::attr(reply, ino, result);
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
        reply::attr(reply, ino, result);
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
        reply::entry(
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
        reply::entry(reply, self.ask(|fs| fs.mkdir(caller(request), parent.0, name, mode, umask)));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply::empty(reply, self.ask(|fs| fs.unlink(caller(request), parent.0, name)));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply::empty(reply, self.ask(|fs| fs.rmdir(caller(request), parent.0, name)));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        reply::entry(reply, self.ask(|fs| fs.symlink(caller(request), parent.0, name, target)));
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
        reply::empty(reply, result);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        reply::entry(reply, self.ask(|fs| fs.link(caller(request), ino.0, newparent.0, newname)));
    }

    fn open(&self, request: &Request, ino: INodeNo, raw: OpenFlags, reply: ReplyOpen) {
        match self.ask(|fs| fs.open(caller(request), ino.0, raw.0.cast_unsigned())) {
            Ok(opened) => reply::opened(reply, opened),
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
            Ok((entry, opened)) => reply::created(reply, entry, opened),
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
        how: WriteFlags,
        raw: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let stored = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let write =
            |fs: &Fs| fs.write(caller(request), handle.0, offset, data, flags(raw.0), stored);
        match self.ask(write) {
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
        reply::empty(reply, self.ask(|fs| fs.flush(caller(request), handle.0)));
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
        reply::empty(reply, result);
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply::empty(reply, self.ask(|fs| fs.fsync(handle.0, data_only)));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, raw: OpenFlags, reply: ReplyOpen) {
        match self.ask(|fs| fs.opendir(caller(request), ino.0, flags(raw.0))) {
            Ok((handle, listing)) => {
                let fill = FopenFlags::FOPEN_CACHE_DIR;
                let flags = match listing {
                    Listing::Ask => FopenFlags::empty(),
                    Listing::Fill => fill,
                    Listing::Keep => fill | FopenFlags::FOPEN_KEEP_CACHE,
                };
                reply.opened(FileHandle(handle), flags);
            }
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
        reply::empty(reply, result);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply::empty(reply, self.ask(|fs| fs.fsyncdir(handle.0, data_only)));
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.ask(|fs| fs.statfs(ino.0)) {
            Ok(statistics) => reply::statistics(reply, &statistics),
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
        reply::empty(reply, result);
    }

    fn getxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        reply::value(reply, self.ask(|fs| fs.getxattr(ino.0, name)), size);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        reply::value(reply, self.ask(|fs| fs.listxattr(ino.0)), size);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply::empty(reply, self.ask(|fs| fs.removexattr(caller(request), ino.0, name)));
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
        reply::empty(reply, result);
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
