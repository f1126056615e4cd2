//! Names that go away.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use stockade_observe::Op;
use stockade_policy::Guard;

use crate::error::FsResult;
use crate::fs::{Caller, Fs};
use crate::host::{self, Stat};
use crate::node::Node;

impl Fs {
    pub fn unlink(&self, caller: Caller, parent: u64, name: &OsStr) -> FsResult<()> {
        self.remove(caller, parent, name, Op::Unlink, AtFlags::empty())
    }

    pub fn rmdir(&self, caller: Caller, parent: u64, name: &OsStr) -> FsResult<()> {
        self.remove(caller, parent, name, Op::Rmdir, AtFlags::REMOVEDIR)
    }

    fn remove(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        op: Op,
        flags: AtFlags,
    ) -> FsResult<()> {
        let parent = self.node(parent)?;
        let component = host::component(name)?;
        let dir = self.inside(&parent)?;
        let path = self.path_at(&parent, name);
        let mut event = Self::event(self.who(caller), op, path.clone(), None);
        let mut victim = None;
        let mut expected = None;
        let result = self.may_remove(&path).and_then(|()| {
            victim = self.victim(&parent, dir.as_fd(), name);
            if let Some((stat, Some(node))) = &victim
                && stat.is_dir()
                && self.holds_staged(Some(node))
            {
                return Err(Errno::NOTEMPTY.into());
            }
            if op == Op::Unlink {
                event.noted = self.loss_at(&parent, &dir, name, victim.as_ref())?;
                expected = self.expected(victim.as_ref()).filter(Stat::is_regular);
            }
            self.watches.removing(&parent, name);
            if let Some((stat, Some(node))) = &victim {
                // What was being created has nothing to remove on the host.
                if !stat.is_dir() && op == Op::Unlink && !self.orphan(node) {
                    return Ok(());
                }
            }
            let _lock;
            if self.guard == Guard::Enforce
                && let Some(expected) = &expected
            {
                _lock = self.lock_names(&dir);
                self.still_there(&dir, &component, expected)?;
            }
            let turn = self.keeps_entry(&parent, &dir, &component, None, true);
            let removed = rustix::fs::unlinkat(&*dir, &component, flags);
            self.keeps_turn(turn, removed.is_ok());
            Ok(removed?)
        });
        if result.is_err() {
            self.watches.filled(&parent, name);
        } else {
            self.observed.absent(parent.key(), name);
        }
        if let Some((stat, node)) = victim {
            event.version_before = Some(stat.version());
            event.key = node.as_ref().map(|node| node.key());
            if let (Ok(()), Some(node)) = (&result, node) {
                node.remove_name(&parent, name);
                if stat.nlink > 1 {
                    self.touched(&node, &stat);
                }
            }
        }
        self.audited(event, result)
    }

    /// Finds what stands at a name that is about to go, and pins it if the kernel knows it: it may still be open, and
    /// afterwards no name leads to it any more.
    pub(crate) fn victim(
        &self,
        parent: &Arc<Node>,
        dir: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Option<(Stat, Option<Arc<Node>>)> {
        if let Some(node) = self.overlay.get(parent.id, name) {
            let pin = self.table.pin(&node).ok()?;
            let mut stat = host::stat_fd(pin.as_fd()).ok()?;
            self.named(&node, &mut stat);
            return Some((stat, Some(node)));
        }
        let component = host::component(name).ok()?;
        let stat = host::stat_at(dir, &component).ok()?;
        let Some(node) = self.table.peek(&stat) else { return Some((stat, None)) };
        node.add_name(parent, name);
        let pinned = self.table.pin(&node).is_ok();
        Some((stat, pinned.then_some(node)))
    }
}
