//! Nodes that the kernel has forgotten and may ask for again by number, as a file handle does (`open_by_handle_at(2)`,
//! an NFS server above us).
//!
//! What is kept is names and identity, no descriptor: a recalled node is found by walking its names again, and only if
//! each step leads to the very file that the kernel knew. So a number leads nowhere that its names don't.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Node, PendingLookup, Table};
use crate::error::{FsError, FsResult};

/// This many are kept, the latest.
const KEPT: usize = 16 * 1024;

/// The nodes that were forgotten last.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    nodes: HashMap<u64, Arc<Node>>,
    order: VecDeque<u64>,
}

impl Forgotten {
    pub(super) fn keep(&mut self, node: &Arc<Node>) {
        // What has no name can't be found again.
        if node.is_named() && self.nodes.insert(node.id, node.clone()).is_none() {
            self.order.push_back(node.id);
        }
        if self.order.len() > KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.nodes.remove(&oldest);
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Node>> {
        self.nodes.get(&id).cloned()
    }
}

impl Table {
    /// Returns the node with this number, which the kernel may have forgotten, and counts a lookup.
    ///
    /// # Errors
    /// `Stale` if its names don't lead to it any more, or if it was forgotten too long ago.
    pub fn recall(&self, id: u64) -> FsResult<PendingLookup<'_>> {
        if let Ok(node) = self.get(id) {
            return Ok(self.again(&node));
        }
        let node = self.inner.lock().forgotten.get(id).ok_or(FsError::Stale)?;
        let found = self.pin(&node).and_then(|_| self.wake(&node));
        if found.is_err() && node.lookups.load(Ordering::Relaxed) == 0 {
            self.unpin(&node);
        }
        found
    }

    /// Makes a forgotten node known again, unless its file is known by another node now.
    fn wake(&self, node: &Arc<Node>) -> FsResult<PendingLookup<'_>> {
        let key = node.key();
        let mut inner = self.inner.lock();
        let known = inner.by_inode.entry((key.dev, key.ino)).or_insert_with(|| node.clone());
        if !Arc::ptr_eq(known, node) || !inner.count(node) {
            return Err(FsError::Stale);
        }
        drop(inner);
        Ok(self.pending(node.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::fd::AsFd;
    use std::path::Path;

    use rustix::fs::{CWD, Mode, OFlags};

    use super::super::ROOT;
    use super::*;
    use crate::host;

    fn table(dir: &Path) -> Table {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = rustix::fs::openat(CWD, dir, flags, Mode::empty()).unwrap();
        let stat = host::stat_fd(fd.as_fd()).unwrap();
        let key = host::key_of(fd.as_fd(), &stat);
        Table::new(fd, &stat, key, 100)
    }

    fn look(table: &Table, parent: &Arc<Node>, name: &str) -> Arc<Node> {
        let pin = table.pin(parent).unwrap();
        let c = host::component(OsStr::new(name)).unwrap();
        let stat = host::stat_at(pin.as_fd(), &c).unwrap();
        let pending = table.lookup(&stat, || host::generation(pin.as_fd(), &c));
        pending.node.add_name(parent, OsStr::new(name));
        let node = pending.node.clone();
        pending.sent();
        node
    }

    #[test]
    fn a_forgotten_node_is_found_again_by_number_while_its_names_lead_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("d")).unwrap();
        std::fs::write(path("d/a"), "a").unwrap();
        let table = table(dir.path());
        let root = table.get(ROOT).unwrap();
        let forget = |ids: &[u64]| ids.iter().for_each(|id| drop(table.forget(*id, 1)));
        let (d, a) = {
            let d = look(&table, &root, "d");
            (d.id, look(&table, &d, "a"))
        };
        forget(&[a.id, d]);
        assert_eq!(table.len(), 1);

        let again = table.recall(a.id).unwrap();
        assert_eq!(again.node.key(), a.key());
        assert_eq!(again.node.path(Path::new("/w")), Path::new("/w/d/a"));
        again.sent();
        forget(&[a.id]);

        // Renamed meanwhile, through us: the directory's later name counts.
        std::fs::rename(path("d"), path("e")).unwrap();
        assert_eq!(look(&table, &root, "e").id, d);
        forget(&[d]);
        let again = table.recall(a.id).unwrap();
        assert_eq!(again.node.path(Path::new("/w")), Path::new("/w/e/a"));
        again.sent();
        forget(&[a.id]);

        // Another file under the name isn't it, and a number that never was isn't anything.
        std::fs::rename(path("e/a"), path("kept")).unwrap();
        std::fs::write(path("e/a"), "b").unwrap();
        assert!(matches!(table.recall(a.id), Err(FsError::Stale)));
        assert!(matches!(table.recall(u64::MAX), Err(FsError::Stale)));
        assert_eq!(table.len(), 1);
    }
}
