//! Rewrites that lack something: a write failed, and the program goes on (contract F5, F7).
//!
//! Natively the old content is lost by then, and half of the new one stands there. Here the rewrite isn't published until
//! what is missing was written after all: `close` and `fsync` fail as the write did, and the last close drops it, as that
//! of a killed program does. What is created has no old content to lose, and is published as it is.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::stage::Staged;
use crate::fs::Fs;
use crate::host;
use crate::node::{Backing, Node};

/// Where so much is free, no write has failed for want of room.
const ROOM: u64 = 1 << 20;
/// A part that is larger isn't kept: it may be what fills the disk.
const KEPT: u64 = 16 << 20;

impl Fs {
    /// Notes that a write to a node at `offset` failed.
    pub(super) fn lacked(node: &Node, offset: u64, errno: Errno) {
        if let Some(staged) = node.staged.lock().as_mut()
            && matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::FBIG)
        {
            let from = staged.lacks.map_or(offset, |(from, _)| from.min(offset));
            staged.lacks = Some((from, errno));
        }
    }

    /// Notes that `length` bytes at `offset` were written, or, with the largest length, that the file ends there. What is
    /// appended has the largest offset.
    pub(super) fn wrote(node: &Node, offset: u64, length: u64) {
        if let Some(staged) = node.staged.lock().as_mut()
            && let Some((from, _)) = staged.lacks
            && offset <= from
            && (from == u64::MAX || offset.saturating_add(length) > from)
        {
            staged.lacks = None;
        }
    }

    /// Returns why a rewrite lacks something, if it does.
    pub(super) fn lacks(&self, node: &Arc<Node>, staged: &Staged) -> Option<Errno> {
        if let Some((_, errno)) = staged.lacks {
            return Some(errno);
        }
        // The server doesn't see that a write failed which the kernel passed through. Where there is no room at all, one did.
        if !matches!(node.flow.lock().backing, Backing::Id(_)) {
            return None;
        }
        let room = rustix::fs::fstatvfs(&staged.fd).ok()?;
        if room.f_bfree.saturating_mul(room.f_frsize) > ROOM {
            return None;
        }
        let end = host::stat_fd(staged.fd.as_fd()).ok()?.size;
        let end = end.next_multiple_of(room.f_frsize.max(1));
        let more = |flags| rustix::fs::fallocate(&staged.fd, flags, end, room.f_frsize);
        match more(FallocateFlags::KEEP_SIZE) {
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Some(errno),
            Ok(()) => {
                more(FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE).unwrap_or_default();
                None
            }
            Err(_) => None,
        }
    }

    /// Has staged content on the disk before its name, if that is asked for; returns why it isn't.
    pub(super) fn sync_durable(&self, staged: &Staged) -> Option<Errno> {
        if self.durable { rustix::fs::fsync(&staged.fd).err() } else { None }
    }

    /// Keeps what there is of a rewrite that lacks something, unless it is large.
    pub(super) fn keep_part(&self, staged: &Staged, path: &Path) -> Option<PathBuf> {
        let size = host::stat_fd(staged.fd.as_fd()).ok()?.size;
        if size == 0 || size > KEPT {
            return None;
        }
        self.keep(&staged.fd, path)
    }
}
