//! Names to nodes.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;

use crate::error::{FsError, FsResult};
use crate::fs::{Entry, Fs};
use crate::host;
use crate::node::Backing;
use crate::sys;

impl Fs {
    /// Looks one name up below a directory; an absent name is `Err` with how long its absence may be believed.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> FsResult<Result<Entry<'_>, Duration>> {
        let parent = self.node(parent)?;
        let name = host::component(name)?;
        let dir = self.table.pin(&parent)?;
        let watched = self.watches.ensure(&parent, &dir);
        match host::stat_at(dir.as_fd(), &name) {
            Ok(stat) => self.entry(&parent, dir.as_fd(), &name, stat).map(Ok),
            Err(FsError::Host(Errno::NOENT)) if watched => Ok(Err(self.lifetimes.watched)),
            Err(error) => Err(error),
        }
    }

    /// The kernel gives lookups back.
    pub fn forget(&self, id: u64, count: u64) {
        let Some(node) = self.table.forget(id, count) else { return };
        self.watches.forget(&node);
        let backing = std::mem::replace(&mut *node.backing.lock(), Backing::Refused);
        if let Backing::Id(id) = backing
            && let Err(error) = sys::backing_close(self.device.as_fd(), id)
        {
            tracing::debug!(%error, "a backing file can't be given back");
        }
    }

    /// Reads a symbolic link.
    pub fn readlink(&self, id: u64) -> FsResult<Vec<u8>> {
        let node = self.node(id)?;
        self.may_read(&node)?;
        let pin = self.table.pin(&node)?;
        Ok(rustix::fs::readlinkat(&*pin, c"", Vec::with_capacity(256))?.into_bytes())
    }
}
