//! Acting for the caller: per-thread umask, file system ids and capabilities.
//!
//! Each serving thread gives up `CAP_FSETID`, so that the host clears set-user-id and set-group-id bits on writes as
//! the kernel expects of a server that negotiated `HANDLE_KILLPRIV_V2`; where the kernel already decided that such a
//! bit may stay (`chmod`, creation), it is taken back for one call.

use std::cell::Cell;
use std::os::fd::BorrowedFd;

use rustix::fs::Mode;
use rustix::process::umask;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::fs::{Caller, Fs};
use crate::owner::Owner;
use crate::{host, process, sys};

thread_local! {
    static READY: Cell<bool> = const { Cell::new(false) };
    static UMASK: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Prepares this thread for serving; cheap after the first time.
pub fn prepare() {
    READY.with(|ready| {
        if !ready.replace(true) {
            if let Err(error) = sys::unshare_thread_fs() {
                tracing::warn!(%error, "this thread shares its umask with the process");
            }
            set_effective(CapabilitySet::FSETID, false);
        }
    });
}

/// Raises or drops capabilities of this thread, as far as they are permitted.
fn set_effective(which: CapabilitySet, on: bool) {
    let Ok(mut sets) = capabilities(None) else { return };
    let wanted =
        if on { sets.effective | (which & sets.permitted) } else { sets.effective - which };
    if wanted != sets.effective {
        sets.effective = wanted;
        if let Err(error) = set_capabilities(None, sets)
            && !on
        {
            tracing::error!(%error, "capabilities can't be dropped");
            // Going on would leave this thread with more rights than its work needs.
            std::process::abort();
        }
    }
}

/// Keeps set-id bits for one call.
pub fn keeping_set_id<T>(call: impl FnOnce() -> T) -> T {
    set_effective(CapabilitySet::FSETID, true);
    let result = call();
    set_effective(CapabilitySet::FSETID, false);
    result
}

impl Fs {
    /// Runs `call`, which changes the content of the file `fd`. Whether a set-id bit survives that depends on who does
    /// it: root keeps it, and a set-group-id bit without execute permission goes unless the writer is in the group.
    pub(crate) fn as_writer<T>(
        &self,
        caller: Caller,
        fd: BorrowedFd<'_>,
        call: impl FnOnce() -> T,
    ) -> T {
        if self.owner != Owner::Root {
            return call();
        }
        let Ok(stat) = host::stat_fd(fd) else { return call() };
        if stat.mode & host::SET_ID == 0 {
            return call();
        }
        let mut writer = caller;
        if self.keeps_set_gid(caller, stat.gid) {
            // In the group by a supplementary one, perhaps, and this thread can take on a single group.
            writer.gid = stat.gid;
        }
        self.as_caller(writer, 0, caller.uid == 0, call)
    }

    /// Tells whether the kernel would let the caller keep a set-group-id bit of a file of this group.
    pub(crate) fn keeps_set_gid(&self, caller: Caller, gid: u32) -> bool {
        self.owner != Owner::Root
            || caller.uid == 0
            || caller.gid == gid
            || process::groups(caller.pid).contains(&gid)
    }

    /// Runs `call` so that what it creates belongs to the caller and has the caller's umask.
    pub(crate) fn as_caller<T>(
        &self,
        caller: Caller,
        mask: u32,
        set_id: bool,
        call: impl FnOnce() -> T,
    ) -> T {
        UMASK.with(|current| {
            if current.replace(mask) != mask {
                umask(Mode::from_raw_mode(mask & 0o777));
            }
        });
        let foreign = self.owner == Owner::Root && (caller.uid, caller.gid) != self.process_ids;
        if !foreign {
            return if set_id { keeping_set_id(call) } else { call() };
        }
        let restore = Restore { ids: self.process_ids };
        if sys::set_fs_ids(caller.uid, caller.gid) {
            // The kernel has checked the caller's permission, with the caller's groups; we only lend the ids.
            let mut lend = CapabilitySet::DAC_OVERRIDE
                | CapabilitySet::DAC_READ_SEARCH
                | CapabilitySet::FOWNER;
            lend.set(CapabilitySet::FSETID, set_id);
            set_effective(lend, true);
        }
        let result = call();
        drop(restore);
        result
    }
}

struct Restore {
    ids: (u32, u32),
}

impl Drop for Restore {
    fn drop(&mut self) {
        if !sys::set_fs_ids(self.ids.0, self.ids.1) {
            tracing::error!("file system ids can't be restored");
            std::process::abort();
        }
        set_effective(CapabilitySet::FSETID, false);
    }
}
