//! Names to nodes.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use crate::error::FsResult;
use crate::fs::{Entry, Fs};
use crate::host;
use crate::node::Backing;
use crate::sys;

impl Fs {
    /// Looks one name up below a directory.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> FsResult<Entry<'_>> {
        let parent = self.node(parent)?;
        let name = host::component(name)?;
        let dir = self.table.pin(&parent)?;
        let stat = host::stat_at(dir.as_fd(), &name)?;
        self.entry(&parent, dir.as_fd(), &name, stat)
    }

    /// The kernel gives lookups back.
    pub fn forget(&self, id: u64, count: u64) {
        let Some(node) = self.table.forget(id, count) else { return };
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
