//! What the host moved out of the source stays out (contract F4).
//!
//! A node goes on standing for its file wherever the host takes it. So before a node's file is used, it is made sure
//! that a known name below the source leads to it; what the host moved to another place below the source gets its new
//! name, with the rules that hold there, and anything else is stale. What was found out of a directory holds until the
//! next move of one (`moves.rs`).
//!
//! Between the check and the call that relies on it there is a moment that no system call closes: a directory that
//! moves then takes one operation along, as it does natively. An open file goes with its file, as it does natively.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Component;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, OFlags};

use crate::error::{FsError, FsResult};
use crate::fs::Fs;
use crate::host::{self, Stat};
use crate::node::{Name, Node, PendingLookup, ROOT};
use crate::sys;

impl Fs {
    /// Returns the descriptor of a node's file, which lies below the source or, removed, nowhere.
    ///
    /// # Errors
    /// `Stale` if it lies elsewhere.
    pub(crate) fn inside(&self, node: &Arc<Node>) -> FsResult<Arc<OwnedFd>> {
        let pin = self.table.pin(node)?;
        self.check_inside(node, &pin)?;
        Ok(pin)
    }

    /// [`Self::inside`] of a file of any kind, with its attributes.
    pub(crate) fn inside_stat(&self, node: &Arc<Node>) -> FsResult<(Arc<OwnedFd>, Stat)> {
        let pin = self.table.pin(node)?;
        let stat = match self.check_inside(node, &pin)? {
            Some(stat) => stat,
            None => host::stat_fd(pin.as_fd())?,
        };
        Ok((pin, stat))
    }

    fn check_inside(&self, node: &Arc<Node>, pin: &OwnedFd) -> FsResult<Option<Stat>> {
        if node.kind == FileType::Directory {
            return self.check_directory(node).map(|()| None);
        }
        for name in node.names().iter().rev() {
            if self.overlay.get(name.parent.id, &name.name).is_some_and(|at| at.id == node.id) {
                return self.check_directory(&name.parent).map(|()| None);
            }
            if self.check_directory(&name.parent).is_ok()
                && let Some(stat) = self.leads(node, name)
            {
                return Ok(Some(stat));
            }
        }
        let mut stat = host::stat_fd(pin.as_fd())?;
        if stat.nlink > 0 && self.keeps_link(node) {
            stat.nlink -= 1;
        }
        if stat.nlink > 0 && !self.relocate(node, pin)? {
            stat.nlink -= 1;
        }
        Ok(Some(stat))
    }

    /// Returns what a name leads to, if that is the node's file. A file that is held can't give its number away (`I2`).
    pub(crate) fn leads(&self, node: &Node, name: &Name) -> Option<Stat> {
        let dir = self.table.pin(&name.parent).ok()?;
        let stat = host::stat_at(dir.as_fd(), &host::component(&name.name).ok()?).ok()?;
        let key = node.key();
        ((stat.dev, stat.ino) == (key.dev, key.ino)).then_some(stat)
    }

    fn check_directory(&self, dir: &Arc<Node>) -> FsResult<()> {
        if dir.id == ROOT {
            return Ok(());
        }
        let now = self.moves.now();
        if dir.inside.load(Ordering::Acquire) == now {
            return Ok(());
        }
        // From the nearest directory above of which it is known.
        let mut chain = vec![dir.clone()];
        while let Some(name) = chain.last().and_then(|child| child.names().pop())
            && name.parent.id != ROOT
            && name.parent.inside.load(Ordering::Acquire) != now
        {
            chain.push(name.parent);
        }
        let mut lasting = true;
        for node in chain.iter().rev() {
            let pin = self.table.pin(node)?;
            // First the watch, then the look: no move falls between.
            lasting &= self.moves.watch(node, &pin);
            let leads = node.names().last().is_some_and(|name| self.leads(node, name).is_some());
            if !leads {
                if host::stat_fd(pin.as_fd())?.nlink == 0 {
                    // Removed: the host refuses whatever is tried in it.
                    return Ok(());
                }
                if !self.relocate(node, &pin)? {
                    return Err(FsError::Stale);
                }
                lasting = false;
            }
            if lasting {
                node.inside.store(now, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Learns the name that the host gave a file which no known name leads to. `false` if that is the name under which a
    /// publication is about to remove it.
    fn relocate(&self, node: &Arc<Node>, pin: &OwnedFd) -> FsResult<bool> {
        let (name, _held) = self.way_to(pin)?;
        if super::staged_by(&name.name).is_some() {
            return Ok(false);
        }
        if self.leads(node, &name).is_none() && !self.is_shut(&name) {
            return Err(FsError::Stale);
        }
        node.add_name(&name.parent, &name.name);
        self.paths_moved();
        Ok(true)
    }

    /// Finds what the kernel of the host has by this number, as a file handle from before this server began has it. What it
    /// can say no path of is stale, as is what lies elsewhere.
    pub(crate) fn by_number(&self, id: u64) -> FsResult<PendingLookup<'_>> {
        let root = self.table.get(ROOT)?;
        let top = self
            .self_fd
            .open_pin(self.table.pin(&root)?.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let found = sys::open_by_number(top.as_fd(), id).map_err(|_| FsError::Stale)?;
        let (name, _held) = self.way_to(&found)?;
        if super::staged_by(&name.name).is_some() {
            return Err(FsError::Stale);
        }
        let (component, dir) = (host::component(&name.name)?, self.table.pin(&name.parent)?);
        let stat = host::stat_at(dir.as_fd(), &component).map_err(host::vanished)?;
        if (stat.dev, stat.ino) != (root.key().dev, id) {
            return Err(FsError::Stale);
        }
        let pending = self.table.lookup(&stat, || host::generation(dir.as_fd(), &component));
        pending.node.add_name(&name.parent, &name.name);
        // Another number stands for it, and the kernel would take that for another file.
        if pending.node.id == id { Ok(pending) } else { Err(FsError::Stale) }
    }

    /// Returns the name under which the kernel has a file now, and what holds the way there.
    fn way_to(&self, pin: &OwnedFd) -> FsResult<(Name, Vec<PendingLookup<'_>>)> {
        let root = self.table.get(ROOT)?;
        let top = self.self_fd.where_is(self.table.pin(&root)?.as_fd())?;
        let place = self.self_fd.where_is(pin.as_fd())?;
        let below = place.strip_prefix(&top).map_err(|_| FsError::Stale)?;
        let mut names: Vec<&OsStr> = Vec::new();
        for part in below.components() {
            let Component::Normal(name) = part else { return Err(FsError::Stale) };
            names.push(name);
        }
        let last = names.pop().ok_or(FsError::Stale)?;
        // Where the kernel says it is may have changed since: the way there is walked as every way is.
        let mut parent = root;
        let mut held = Vec::new();
        for name in names {
            let (component, dir) = (host::component(name)?, self.table.pin(&parent)?);
            let stat = host::stat_at(dir.as_fd(), &component).map_err(host::vanished)?;
            if !stat.is_dir() || self.is_own_mount(&stat) {
                return Err(FsError::Stale);
            }
            let pending = self.table.lookup(&stat, || host::generation(dir.as_fd(), &component));
            pending.node.add_name(&parent, name);
            parent = pending.node.clone();
            held.push(pending);
        }
        Ok((Name { parent, name: last.to_os_string() }, held))
    }

    /// Tells whether a name lies in a directory that we may not search: what is open there goes on where the kernel says it
    /// is.
    fn is_shut(&self, name: &Name) -> bool {
        let (Ok(dir), Ok(component)) = (self.table.pin(&name.parent), host::component(&name.name))
        else {
            return false;
        };
        host::stat_at(dir.as_fd(), &component)
            .is_err_and(|error| error.errno() == rustix::io::Errno::ACCESS)
    }
}
