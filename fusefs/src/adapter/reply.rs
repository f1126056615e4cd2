//! Our answers as fuser's replies.

use std::time::Duration;

use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyXattr,
};
use rustix::fs::StatVfs;

use super::convert::{file_attr, generation, quiet};
use crate::fs::{Data, Entry, Opened};
use crate::host::Stat;
use crate::node::ROOT;
use crate::ops::xattr_fits;

pub fn entry(reply: ReplyEntry, result: Result<Entry<'_>, Errno>) {
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

pub fn empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

pub fn attr(reply: ReplyAttr, ino: INodeNo, result: Result<(Stat, Duration), Errno>) {
    match result {
        // The root's number in the protocol is 1; what it shows is the host's.
        Ok((stat, life)) => {
            let shown = if ino.0 == ROOT { stat.ino } else { ino.0 };
            reply.attr(&life, &file_attr(shown, &stat));
        }
        Err(errno) => reply.error(errno),
    }
}

pub fn opened(reply: ReplyOpen, opened: Opened) {
    match opened.data {
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
    }
}

pub fn created(reply: ReplyCreate, entry: Entry<'_>, opened: Opened) {
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
        // Without its backing file, a shared map of it would go through the kernel's cache, and nobody else could open
        // the file by passthrough any more.
        Data::Detached(id) => {
            let backing = lend(&reply, id);
            let how = quiet(opened) | FopenFlags::FOPEN_DIRECT_IO;
            reply.created_passthrough(&life, &attr, generation, handle, how, &backing);
            let _: u32 = backing.into_raw();
        }
        Data::Direct => {
            let how = quiet(opened) | FopenFlags::FOPEN_DIRECT_IO;
            reply.created(&life, &attr, generation, handle, how);
        }
    }
    entry.pending.sent();
}

pub fn statistics(reply: ReplyStatfs, s: &StatVfs) {
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

pub fn value(reply: ReplyXattr, value: Result<Vec<u8>, Errno>, size: u32) {
    match value {
        Ok(value) => match xattr_fits(&value, size) {
            Ok(None) => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
            Ok(Some(value)) => reply.data(value),
            Err(error) => reply.error(Errno::from_i32(error.errno().raw_os_error())),
        },
        Err(errno) => reply.error(errno),
    }
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
