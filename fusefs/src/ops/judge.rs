//! Git's own files, which are judged by their content before it takes effect (contract P11).
//!
//! Git writes its configuration beside the name and renames it into place; that rename is where the new content is
//! judged. What is judged must stay what it was: a file that somebody still holds open for writing, or that has another
//! name, is first given an inode of its own, which nobody else has ever seen; whoever held it writes to it no more.
//! Files that git writes directly (`.git`
//! and `commondir` of a linked working tree) are judged at each write.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::{FsError, FsResult};
use crate::fs::Fs;
use crate::handle::FileHandle;
use crate::host::{self, Stat};
use crate::node::Node;

/// No configuration is larger than this; what is can't be judged.
const LARGEST: u64 = 1 << 20;

impl Fs {
    /// Judges a file that is about to be moved to `to`. The caller holds the node's gate, so that nobody opens it for
    /// writing meanwhile.
    pub(crate) fn judge_move(
        &self,
        node: Option<&Arc<Node>>,
        to: &Path,
        displaced: Option<&(Stat, Option<Arc<Node>>)>,
        to_dir: BorrowedFd<'_>,
        to_name: &std::ffi::CString,
    ) -> FsResult<()> {
        // The kernel looks a name up before it moves it; one that we don't know has changed since.
        let node = node.ok_or(FsError::Stale)?;
        let pin = self.table.pin(node)?;
        let stat = host::stat_fd(pin.as_fd())?;
        if !stat.is_regular() {
            return Ok(());
        }
        let old = match displaced {
            Some((stat, _)) if stat.is_regular() => {
                let pin = host::pin_at(to_dir, to_name)?;
                Some(self.content(&pin)?)
            }
            _ => None,
        };
        let judge = || {
            let new = self.content(&*self.table.pin(node)?)?;
            self.rules.judge(to, old.as_deref(), &new).map_err(FsError::Denied)
        };
        judge()?;
        if stat.nlink > 1 || node.writers.load(Ordering::Acquire) > 0 {
            let holders = self.handles.of(node.id);
            let part = |parted| {
                for file in holders.iter().filter(|file| file.writable()) {
                    file.parted.store(parted, Ordering::Release);
                }
            };
            part(true);
            node.parted.store(true, Ordering::Release);
            self.freshen(node).inspect_err(|_| part(false))?;
            // It may have been written to meanwhile, and those pages may be in the kernel's cache.
            self.watches.later_node(node.id);
            judge()?;
        }
        Ok(())
    }

    /// Refuses a write through a descriptor whose file was given an inode of its own when it became git's: it would go
    /// nowhere, but be seen inside in the kernel's cache.
    pub(crate) fn is_parted(&self, file: &FileHandle) -> FsResult<()> {
        if !file.parted.load(Ordering::Acquire) {
            return Ok(());
        }
        // A mapping's pages are in the cache already.
        self.watches.later_node(file.node.id);
        self.may_write(&file.node)?;
        Err(Errno::STALE.into())
    }

    /// Judges what a file would hold after a write.
    pub(crate) fn judge_write(
        &self,
        file: &FileHandle,
        path: &Path,
        offset: u64,
        data: &[u8],
    ) -> FsResult<()> {
        let fd = self.file_fd(file)?;
        let mut content = read_all(fd.as_fd())?;
        let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
        let end = start
            .checked_add(data.len())
            .filter(|end| *end as u64 <= LARGEST)
            .ok_or(Errno::FBIG)?;
        if content.len() < end {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(data);
        self.rules.judge(path, None, &content).map_err(FsError::Denied)
    }

    fn content(&self, pin: &OwnedFd) -> FsResult<Vec<u8>> {
        let fd = self.self_fd.open_pin(pin.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
        read_all(fd.as_fd())
    }
}

fn read_all(fd: BorrowedFd<'_>) -> FsResult<Vec<u8>> {
    if host::stat_fd(fd)?.size > LARGEST {
        return Err(Errno::FBIG.into());
    }
    let mut content = Vec::new();
    loop {
        content.reserve(64 * 1024);
        let at = content.len() as u64;
        if rustix::io::pread(fd, rustix::buffer::spare_capacity(&mut content), at)? == 0 {
            return Ok(content);
        }
        if content.len() as u64 > LARGEST {
            return Err(Errno::FBIG.into());
        }
    }
}
