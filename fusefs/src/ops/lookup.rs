//! Names to nodes.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::io::Errno;

use crate::error::{FsError, FsResult};
use crate::fs::{Entry, Fs};
use crate::host;

impl Fs {
    /// Looks one name up below a directory; an absent name is `Err` with how long its absence may be believed.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> FsResult<Result<Entry<'_>, Duration>> {
        if super::dir::is_dot(name) {
            return self.recall(parent, name == "..").map(Ok);
        }
        let parent = self.node(parent)?;
        if super::fresh::staged_by(name).is_some() {
            return Err(Errno::NOENT.into());
        }
        if let Some(node) = self.overlay.get(parent.id, name) {
            return self.staged_entry(&parent, &node).map(Ok);
        }
        let name = host::component(name)?;
        let dir = self.inside(&parent)?;
        let watched = self.watches.ensure(&parent, &dir);
        match host::stat_at(dir.as_fd(), &name) {
            Ok(stat) => self.entry(&parent, dir.as_fd(), &name, stat).map(Ok),
            Err(FsError::Host(Errno::NOENT)) => {
                self.observed.absent(parent.key(), OsStr::from_bytes(name.as_bytes()));
                if watched { Ok(Err(self.lifetimes.watched)) } else { Err(Errno::NOENT.into()) }
            }
            Err(error) => Err(error),
        }
    }

    /// What a file handle asks for: a node by number, or the directory above it.
    fn recall(&self, id: u64, above: bool) -> FsResult<Entry<'_>> {
        let mut pending = self.table.recall(id).or_else(|_| self.by_number(id))?;
        if above {
            let name = pending.node.names().pop().ok_or(FsError::Stale)?;
            pending = self.table.recall(name.parent.id)?;
        }
        let (_, stat) = self.inside_stat(&pending.node)?;
        let attr_life = self.tell(&pending.node, &stat);
        let stat = self.show(&pending.node, stat);
        Ok(Entry { pending, stat, name_life: Duration::ZERO, attr_life })
    }

    /// The kernel gives lookups back.
    pub fn forget(&self, id: u64, count: u64) {
        let Some(node) = self.table.forget(id, count) else { return };
        self.watches.forget(&node);
        self.moves.forget(&node);
        self.watches.forgot();
        let flow = std::mem::take(&mut *node.flow.lock());
        self.give_back(flow.backing);
    }

    /// Reads a symbolic link.
    pub fn readlink(&self, id: u64) -> FsResult<Vec<u8>> {
        let node = self.node(id)?;
        let pin = self.inside(&node)?;
        self.may_read(&node)?;
        Ok(rustix::fs::readlinkat(&*pin, c"", Vec::with_capacity(256))?.into_bytes())
    }
}
