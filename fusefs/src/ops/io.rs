//! Data: what comes to us when the kernel doesn't pass it through.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use stockade_observe::Op;

use crate::error::FsResult;
use crate::fs::{Caller, Fs};
use crate::host::{self, SET_ID};

impl Fs {
    /// Reads up to `size` bytes at `offset`, as many as there are.
    pub fn read(&self, handle: u64, offset: u64, size: usize) -> FsResult<Vec<u8>> {
        let file = self.handles.file(handle)?;
        let fd = self.file_fd(&file)?;
        let mut buffer = Vec::with_capacity(size);
        while buffer.len() < size {
            let at = offset + u64::try_from(buffer.len()).unwrap_or(u64::MAX);
            match rustix::io::pread(&fd, rustix::buffer::spare_capacity(&mut buffer), at) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(errno) if buffer.is_empty() => return Err(errno.into()),
                Err(_) => break,
            }
        }
        let length = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        file.bytes_read.fetch_add(length, Ordering::Relaxed);
        file.operations.fetch_add(1, Ordering::Relaxed);
        if self.observe_full {
            let mut event =
                Self::event(file.who.clone(), Op::Read, file.path.clone(), Some(file.node.key()));
            event.bytes_read = Some(length);
            self.record(event);
        }
        Ok(buffer)
    }

    /// Writes `data` at `offset`, or at the end if `flags` say `O_APPEND`.
    pub fn write(
        &self,
        caller: Caller,
        handle: u64,
        offset: u64,
        data: &[u8],
        flags: OFlags,
        stored: bool,
    ) -> FsResult<usize> {
        let file = self.handles.file(handle)?;
        let fd = self.file_fd(&file)?;
        // A store to a map leaves the bits that a write(2) takes away.
        let set_id = || host::stat_fd(fd.as_fd()).ok().filter(|stat| stat.mode & SET_ID != 0);
        let kept = if stored { set_id() } else { None };
        let append = flags.contains(OFlags::APPEND);
        // What is judged is what stands there until it's written: pages of a mapping come beside other writes.
        let _gate = file.judged.then(|| file.node.gate.lock());
        if let Err(error) = self.is_parted(&file) {
            let path = self.path(&file.node);
            let event = Self::event(self.who(caller), Op::Write, path, Some(file.node.key()));
            return self.audited(event, Err(error));
        }
        if file.judged
            && let Err(error) = self.judge_write(&file, &file.path, offset, data)
        {
            let event =
                Self::event(self.who(caller), Op::Write, file.path.clone(), Some(file.node.key()));
            return self.audited(event, Err(error));
        }
        if !append && let Err(error) = self.overwrites(&file) {
            let event =
                Self::event(self.who(caller), Op::Write, file.path.clone(), Some(file.node.key()));
            return self.audited(event, Err(error));
        }
        let mut done = 0;
        while done < data.len() {
            let rest = [std::io::IoSlice::new(&data[done..])];
            let at = offset + u64::try_from(done).unwrap_or(u64::MAX);
            let how = if append { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
            let write = || rustix::io::pwritev2(&fd, &rest, at, how);
            match self.as_writer(caller, fd.as_fd(), write) {
                Ok(0) => break,
                Ok(length) => done += length,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    Self::lacked(&file.node, if append { u64::MAX } else { at }, errno);
                    if done == 0 {
                        return Err(errno.into());
                    }
                    break;
                }
            }
        }
        if let Some(kept) = kept
            && host::stat_fd(fd.as_fd()).is_ok_and(|stat| stat.mode != kept.mode)
            && let Err(error) = rustix::fs::fchmod(&fd, Mode::from_bits_truncate(kept.mode))
        {
            tracing::debug!(%error, "a store to a map takes set-id bits away");
        }
        let length = u64::try_from(done).unwrap_or(u64::MAX);
        if done == data.len() {
            Self::wrote(&file.node, if append { u64::MAX } else { offset }, length);
        }
        file.bytes_written.fetch_add(length, Ordering::Relaxed);
        file.operations.fetch_add(1, Ordering::Relaxed);
        if self.observe_full {
            let mut event =
                Self::event(self.who(caller), Op::Write, file.path.clone(), Some(file.node.key()));
            event.bytes_written = Some(length);
            self.record(event);
        }
        Ok(done)
    }

    pub fn fsync(&self, handle: u64, data_only: bool) -> FsResult<()> {
        let file = self.handles.file(handle)?;
        let fd = self.file_fd(&file)?;
        if let Err(error) = sync(fd.as_fd(), data_only) {
            // The kernel says so once, and forgets what it couldn't write.
            Self::lacked(&file.node, 0, error.errno());
            return Err(error);
        }
        if file.node.staged.lock().is_some() {
            self.publish(&file.node)?;
            if let Some(name) = file.node.name() {
                // The new name must be as durable as the content.
                let dir = self.table.pin(&name.parent)?;
                self.sync_directory(&dir, fd.as_fd())?;
            }
        }
        Ok(())
    }

    /// Makes the names in a directory durable. One that may not be read is synced along with everything else on the file
    /// system of `file`.
    pub(crate) fn sync_directory(&self, dir: &OwnedFd, file: BorrowedFd<'_>) -> FsResult<()> {
        match self.self_fd.open_pin(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(dir) => sync(dir.as_fd(), false),
            Err(error) if error.errno() == Errno::ACCESS => Ok(rustix::fs::syncfs(file)?),
            Err(error) => Err(error),
        }
    }

    pub fn fallocate(
        &self,
        caller: Caller,
        handle: u64,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> FsResult<()> {
        let file = self.handles.file(handle)?;
        let event =
            Self::event(self.who(caller), Op::Fallocate, file.path.clone(), Some(file.node.key()));
        let result = self.may_write(&file.node).and_then(|()| {
            let fd = self.file_fd(&file)?;
            let mode = FallocateFlags::from_bits_retain(mode);
            if !FallocateFlags::KEEP_SIZE.contains(mode) {
                self.overwrites(&file)?;
            }
            let allocate = || rustix::fs::fallocate(&fd, mode, offset, length);
            Ok(self.as_writer(caller, fd.as_fd(), allocate)?)
        });
        self.audited(event, result)
    }

    /// `SEEK_DATA` and `SEEK_HOLE`; the rest the kernel does itself.
    pub fn lseek(&self, handle: u64, offset: i64, whence: i32) -> FsResult<u64> {
        let file = self.handles.file(handle)?;
        let start = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let position = match whence {
            libc::SEEK_DATA => SeekFrom::Data(start),
            libc::SEEK_HOLE => SeekFrom::Hole(start),
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(rustix::fs::seek(&self.file_fd(&file)?, position)?)
    }

    pub fn copy_file_range(
        &self,
        caller: Caller,
        (from, mut from_at): (u64, u64),
        (to, mut to_at): (u64, u64),
        length: usize,
    ) -> FsResult<usize> {
        let (from, to) = (self.handles.file(from)?, self.handles.file(to)?);
        let mut event =
            Self::event(self.who(caller), Op::Copy, from.path.clone(), Some(to.node.key()));
        event.path2 = Some(to.path.clone());
        let result = self.may_write(&to.node).and_then(|()| self.overwrites(&to)).and_then(|()| {
            let (source, target) = (self.file_fd(&from)?, self.file_fd(&to)?);
            let (from_at, to_at) = (Some(&mut from_at), Some(&mut to_at));
            let copy = || rustix::fs::copy_file_range(&source, from_at, &target, to_at, length);
            Ok(self.as_writer(caller, target.as_fd(), copy)?)
        });
        if let Ok(copied) = &result {
            let copied = u64::try_from(*copied).unwrap_or(u64::MAX);
            event.bytes_read = Some(copied);
            event.bytes_written = Some(copied);
            from.bytes_read.fetch_add(copied, Ordering::Relaxed);
            to.bytes_written.fetch_add(copied, Ordering::Relaxed);
        }
        self.audited(event, result)
    }
}

/// `fsync(2)` or `fdatasync(2)`.
pub fn sync(fd: BorrowedFd<'_>, data_only: bool) -> FsResult<()> {
    Ok(if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }?)
}
