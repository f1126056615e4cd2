//! The table of nodes: numbers, lookup counts, and the descriptors that are held.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::FileType;
use stockade_observe::Key;

use super::recall::Forgotten;
use super::{Name, Node, ROOT};
use crate::error::{FsError, FsResult};
use crate::host::{self, Stat};

/// Node numbers from here on stand for files of other devices below the source.
const OTHER_DEVICE: u64 = 1 << 63;
/// Node numbers from here to [`OTHER_DEVICE`] stand in for host numbers that are taken.
const STAND_IN: u64 = 1 << 62;
/// This many forgotten nodes are kept before those that nobody needs any more are looked for.
const DORMANT: usize = 1024;

/// The nodes the kernel knows.
#[derive(Debug)]
pub struct Table {
    pub(super) inner: Mutex<Inner>,
    pins: Pins,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    by_id: HashMap<u64, Arc<Node>>,
    pub(super) by_inode: HashMap<(u64, u64), Arc<Node>>,
    devices: Vec<u64>,
    stand_ins: u64,
    /// The places in `by_inode` of nodes that the kernel has forgotten and that are still of use: a file with several
    /// names that we know (contract F11), and a directory in which such a file or an open one lies.
    dormant: Vec<(u64, u64)>,
    /// When to look for those that are of no use any more.
    sweep_at: usize,
    pub(super) forgotten: Forgotten,
}

#[derive(Debug)]
struct Pins {
    queue: Mutex<VecDeque<Weak<Node>>>,
    count: AtomicUsize,
    limit: usize,
}

/// A lookup that is counted for the kernel; dropping it before it is sent takes the count back (`I4`).
#[must_use = "dropping this undoes the lookup"]
#[derive(Debug)]
pub struct PendingLookup<'t> {
    table: &'t Table,
    pub node: Arc<Node>,
    sent: bool,
}

impl PendingLookup<'_> {
    /// Hands the count over to the kernel, which will forget it some day.
    pub fn sent(mut self) {
        self.sent = true;
    }
}

impl Drop for PendingLookup<'_> {
    fn drop(&mut self) {
        if !self.sent {
            drop(self.table.forget(self.node.id, 1));
        }
    }
}

impl Table {
    /// Makes a table with its root, which is pinned for good. At most about `limit` other pins are held.
    pub fn new(source: OwnedFd, stat: &Stat, key: Key, limit: usize) -> Self {
        let root = Arc::new(Node::new(ROOT, key, FileType::Directory, 0, Some(source)));
        let mut inner = Inner::default();
        inner.devices.push(stat.dev);
        inner.by_id.insert(ROOT, root.clone());
        inner.by_inode.insert((stat.dev, stat.ino), root);
        Self {
            inner: Mutex::new(inner),
            pins: Pins { queue: Mutex::default(), count: AtomicUsize::new(0), limit },
        }
    }

    /// Returns the node with this number.
    pub fn get(&self, id: u64) -> FsResult<Arc<Node>> {
        self.inner.lock().by_id.get(&id).cloned().ok_or(FsError::UnknownNode)
    }

    /// Returns every node.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.inner.lock().by_id.values().cloned().collect()
    }

    /// Gives up room that is far more than is needed.
    pub fn shrink(&self) {
        let mut inner = self.inner.lock();
        let Inner { by_id, by_inode, .. } = &mut *inner;
        if by_id.capacity() / 4 > by_id.len() {
            by_id.shrink_to(by_id.len() * 2);
        }
        if by_inode.capacity() / 4 > by_inode.len() {
            by_inode.shrink_to(by_inode.len() * 2);
        }
        drop(inner);
        self.pins.queue.lock().retain(|node| node.strong_count() > 0);
        self.pins.queue.lock().shrink_to_fit();
    }

    /// Returns how many nodes are known.
    pub fn len(&self) -> usize {
        self.inner.lock().by_id.len()
    }

    /// Finds or makes the node of a host file and counts one lookup. `generation` is asked only when it is needed:
    /// when the file is new here, or when the node that we know isn't pinned.
    pub fn lookup(&self, stat: &Stat, generation: impl FnOnce() -> u64) -> PendingLookup<'_> {
        if let Some(node) = self.known(stat, None) {
            return self.pending(node);
        }
        let generation = generation();
        if let Some(node) = self.known(stat, Some(generation)) {
            return self.pending(node);
        }
        let mut inner = self.inner.lock();
        let key = Key { dev: stat.dev, ino: stat.ino, generation };
        if let Some(node) = inner.by_inode.get(&(stat.dev, stat.ino))
            && node.key() == key
            && node.kind == stat.file_type()
        {
            let node = node.clone();
            if inner.count(&node) {
                return PendingLookup { table: self, node, sent: false };
            }
        }
        let id = inner.number(stat);
        let node = Arc::new(Node::new(id, key, stat.file_type(), generation, None));
        node.lookups.store(1, Ordering::Relaxed);
        inner.by_id.insert(id, node.clone());
        let displaced = inner.by_inode.insert((stat.dev, stat.ino), node.clone());
        drop(inner);
        // A forgotten node whose inode's number was used again.
        if let Some(old) = displaced.filter(|old| old.lookups.load(Ordering::Relaxed) == 0) {
            self.unpin(&old);
        }
        PendingLookup { table: self, node, sent: false }
    }

    /// Returns the known node of a host file, and counts a lookup. A pinned node needs no generation: its number can't
    /// have been reused (`I2`).
    fn known(&self, stat: &Stat, generation: Option<u64>) -> Option<Arc<Node>> {
        let mut inner = self.inner.lock();
        let node = inner.by_inode.get(&(stat.dev, stat.ino))?.clone();
        let same = match generation {
            Some(generation) => node.key().generation == generation,
            None => node.pin.lock().is_some(),
        };
        if !same || node.kind != stat.file_type() {
            return None;
        }
        inner.count(&node).then_some(node)
    }

    /// Returns the node of a host file if the kernel knows it, without counting.
    pub fn peek(&self, stat: &Stat) -> Option<Arc<Node>> {
        let inner = self.inner.lock();
        let node = inner.by_inode.get(&(stat.dev, stat.ino))?;
        (node.id == ROOT || node.lookups.load(Ordering::Relaxed) > 0).then(|| node.clone())
    }

    /// Returns the number that the kernel knows an inode of `device` by, which is its own unless a node with another
    /// number stands for it.
    pub fn number(&self, device: u64, inode: u64) -> u64 {
        self.inner.lock().by_inode.get(&(device, inode)).map_or(inode, |node| node.id)
    }

    /// Counts one more lookup of a node that is known anyway.
    pub fn again(&self, node: &Arc<Node>) -> PendingLookup<'_> {
        let mut inner = self.inner.lock();
        // The kernel may have forgotten it between its last close and now.
        inner.by_id.entry(node.id).or_insert_with(|| node.clone());
        node.lookups.fetch_add(1, Ordering::Relaxed);
        drop(inner);
        self.pending(node.clone())
    }

    pub(super) fn pending(&self, node: Arc<Node>) -> PendingLookup<'_> {
        PendingLookup { table: self, node, sent: false }
    }

    /// Takes `count` lookups back, and returns the node if that was the last of them.
    pub fn forget(&self, id: u64, count: u64) -> Option<Arc<Node>> {
        if id == ROOT {
            return None;
        }
        let mut inner = self.inner.lock();
        let node = inner.by_id.get(&id)?.clone();
        let left = node.lookups.load(Ordering::Relaxed).saturating_sub(count);
        node.lookups.store(left, Ordering::Relaxed);
        if left > 0 {
            return None;
        }
        inner.by_id.remove(&id);
        let gone = inner.rest(&node);
        inner.forgotten.keep(&node);
        drop(inner);
        gone.iter().for_each(|node| self.unpin(node));
        // No name leads to what is staged.
        if node.staged.try_lock().is_some_and(|staged| staged.is_none()) {
            self.unpin(&node);
        }
        Some(node)
    }

    pub(super) fn unpin(&self, node: &Node) {
        if node.pin.lock().take().is_some() {
            self.pins.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns a descriptor of the node, reopening it from a known name if need be.
    ///
    /// # Errors
    /// `Stale` if no known name leads to the node any more.
    pub fn pin(&self, node: &Arc<Node>) -> FsResult<Arc<OwnedFd>> {
        if let Some(pin) = node.held_pin() {
            return Ok(pin);
        }
        // Ancestors first, from the nearest that is pinned, without recursion: trees can be deeper than the stack.
        let mut missing = vec![node.clone()];
        loop {
            let Some(name) = missing.last().and_then(|child| child.name()) else {
                return Err(FsError::Stale);
            };
            if name.parent.held_pin().is_some() {
                break;
            }
            missing.push(name.parent);
        }
        let mut pin = Err(FsError::Stale);
        for child in missing.iter().rev() {
            pin = self.reopen(child);
            if pin.is_err() {
                break;
            }
        }
        pin
    }

    fn reopen(&self, node: &Arc<Node>) -> FsResult<Arc<OwnedFd>> {
        let mut failure = FsError::Stale;
        for name in node.names().iter().rev() {
            let Some(parent) = name.parent.held_pin() else { continue };
            match open_as(node, &parent, &name.name) {
                Ok(fd) => return Ok(self.adopt(node, fd)),
                Err(error) => failure = host::vanished(error),
            }
        }
        Err(failure)
    }

    /// Keeps `fd` as the node's pin, unless it has one by now.
    pub fn adopt(&self, node: &Arc<Node>, fd: OwnedFd) -> Arc<OwnedFd> {
        let mut slot = node.pin.lock();
        if let Some(pin) = &*slot {
            return pin.clone();
        }
        let pin = Arc::new(fd);
        *slot = Some(pin.clone());
        drop(slot);
        self.pins.count.fetch_add(1, Ordering::Relaxed);
        self.pins.queue.lock().push_back(Arc::downgrade(node));
        self.evict();
        pin
    }

    /// Makes the node stand for another host file, which is now called `name` alone. Returns the names that the node
    /// had beside it: the kernel must look those up again.
    pub fn rebind(
        &self,
        node: &Arc<Node>,
        fd: OwnedFd,
        key: Key,
        name: &Name,
    ) -> Vec<(u64, OsString)> {
        let mut inner = self.inner.lock();
        let old = std::mem::replace(&mut *node.key.lock(), key);
        if inner.by_inode.get(&(old.dev, old.ino)).is_some_and(|known| known.id == node.id) {
            inner.by_inode.remove(&(old.dev, old.ino));
        }
        if inner.by_id.contains_key(&node.id) {
            inner.by_inode.insert((key.dev, key.ino), node.clone());
        }
        drop(inner);
        let mut names = node.names.lock();
        let others = names
            .live
            .drain(..)
            .filter(|known| known.parent.id != name.parent.id || known.name != name.name)
            .map(|known| (known.parent.id, known.name))
            .collect();
        names.live.push(name.clone());
        drop(names);
        if node.pin.lock().replace(Arc::new(fd)).is_none() {
            self.pins.count.fetch_add(1, Ordering::Relaxed);
            self.pins.queue.lock().push_back(Arc::downgrade(node));
        }
        *node.zone.lock() = None;
        others
    }

    /// Gives pins back while more than the limit are held: the oldest that nobody used lately and nobody holds.
    fn evict(&self) {
        let mut looks = 64;
        while self.pins.count.load(Ordering::Relaxed) > self.pins.limit && looks > 0 {
            looks -= 1;
            let Some(weak) = self.pins.queue.lock().pop_front() else { return };
            let Some(node) = weak.upgrade() else { continue };
            let mut slot = node.pin.lock();
            let Some(pin) = &*slot else { continue };
            let busy = Arc::strong_count(pin) > 1 || node.used.swap(false, Ordering::Relaxed);
            let nameless = node.names.lock().live.is_empty();
            // No name leads to what is staged, either.
            let staged = node.staged.try_lock().is_none_or(|staged| staged.is_some());
            if busy || nameless || staged {
                drop(slot);
                self.pins.queue.lock().push_back(weak);
            } else {
                *slot = None;
                self.pins.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

fn open_as(node: &Node, parent: &OwnedFd, name: &OsStr) -> FsResult<OwnedFd> {
    let name = host::component(name)?;
    let fd = host::pin_at(parent.as_fd(), &name)?;
    let stat = host::stat_fd(fd.as_fd())?;
    let key = node.key();
    let same = (stat.dev, stat.ino) == (key.dev, key.ino)
        && stat.file_type() == node.kind
        && host::generation(fd.as_fd(), &CString::default()) == key.generation;
    if same { Ok(fd) } else { Err(FsError::Stale) }
}

impl Inner {
    /// Counts a lookup of a node that is found by its inode; false if its number is another node's by now.
    pub(super) fn count(&mut self, node: &Arc<Node>) -> bool {
        if node.lookups.load(Ordering::Relaxed) == 0 {
            if self.by_id.contains_key(&node.id) {
                return false;
            }
            self.by_id.insert(node.id, node.clone());
        }
        node.lookups.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes a node that the kernel has forgotten out of `by_inode`, unless it is of use still. Returns what is let go.
    fn rest(&mut self, node: &Arc<Node>) -> Vec<Arc<Node>> {
        let key = node.key();
        let place = (key.dev, key.ino);
        if !self.by_inode.get(&place).is_some_and(|known| Arc::ptr_eq(known, node)) {
            return Vec::new();
        }
        // Here and by inode: two. A directory's children refer to it, too.
        if node.is_of_use(2) {
            self.dormant.push(place);
            if self.dormant.len() >= self.sweep_at.max(DORMANT) {
                return self.sweep();
            }
        } else {
            self.by_inode.remove(&place);
        }
        Vec::new()
    }

    /// Lets the forgotten nodes go that have become of no use.
    fn sweep(&mut self) -> Vec<Arc<Node>> {
        let mut gone = Vec::new();
        for place in std::mem::take(&mut self.dormant) {
            let Some(node) = self.by_inode.get(&place) else { continue };
            if node.lookups.load(Ordering::Relaxed) > 0 {
                continue;
            }
            if node.is_of_use(1) {
                self.dormant.push(place);
            } else {
                gone.extend(self.by_inode.remove(&place));
            }
        }
        self.dormant.sort_unstable();
        self.dormant.dedup();
        self.sweep_at = self.dormant.len() * 2;
        gone
    }

    /// Chooses a number: the host's own on the source's device, where it is free.
    fn number(&mut self, stat: &Stat) -> u64 {
        let device = self.devices.iter().position(|dev| *dev == stat.dev).unwrap_or_else(|| {
            self.devices.push(stat.dev);
            self.devices.len() - 1
        });
        let wanted = if device == 0 {
            stat.ino
        } else {
            OTHER_DEVICE | ((device as u64 & 0x7fff) << 48) | (stat.ino & 0xffff_ffff_ffff)
        };
        let usable = wanted > ROOT && (device != 0 || wanted < STAND_IN);
        if usable && !self.by_id.contains_key(&wanted) {
            return wanted;
        }
        loop {
            self.stand_ins += 1;
            let id = STAND_IN | self.stand_ins;
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use rustix::fs::{CWD, Mode, OFlags};

    fn table(dir: &Path, limit: usize) -> Table {
        let fd =
            rustix::fs::openat(CWD, dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let stat = host::stat_fd(fd.as_fd()).unwrap();
        let key = host::key_of(fd.as_fd(), &stat);
        Table::new(fd, &stat, key, limit)
    }

    fn look<'t>(table: &'t Table, parent: &Arc<Node>, name: &str) -> PendingLookup<'t> {
        let pin = table.pin(parent).unwrap();
        let c = host::component(OsStr::new(name)).unwrap();
        let stat = host::stat_at(pin.as_fd(), &c).unwrap();
        let pending = table.lookup(&stat, || host::generation(pin.as_fd(), &c));
        pending.node.add_name(parent, OsStr::new(name));
        pending
    }

    #[test]
    fn a_lookup_that_is_not_sent_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        let table = table(dir.path(), 10);
        let root = table.get(ROOT).unwrap();
        drop(look(&table, &root, "a"));
        assert_eq!(table.len(), 1);
        look(&table, &root, "a").sent();
        look(&table, &root, "a").sent();
        assert_eq!(table.len(), 2);
        let id = look(&table, &root, "a").node.id;
        assert!(table.forget(id, 1).is_none());
        assert!(table.forget(id, 1).is_some());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn pins_are_given_back_and_reopened_by_identity() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(dir.path(), 4);
        let root = table.get(ROOT).unwrap();
        let mut nodes = Vec::new();
        for number in 0..40 {
            let name = format!("d{number}");
            std::fs::create_dir(dir.path().join(&name)).unwrap();
            let pending = look(&table, &root, &name);
            table.pin(&pending.node).unwrap();
            nodes.push(pending.node.clone());
            pending.sent();
        }
        let held = nodes.iter().filter(|node| node.pin.lock().is_some()).count();
        assert!(held <= 8, "{held} pins held");
        for node in &nodes {
            table.pin(node).unwrap();
        }
        let victim = nodes.iter().find(|node| node.pin.lock().is_none()).unwrap();
        let path = victim.path(dir.path());
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(table.pin(victim), Err(FsError::Stale)));
    }

    #[test]
    fn a_reused_inode_number_is_another_node() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        let table = table(dir.path(), 10);
        let root = table.get(ROOT).unwrap();
        let first = look(&table, &root, "a");
        let stat = Stat {
            dev: first.node.key().dev,
            ino: first.node.key().ino,
            mode: 0o100_644,
            ..Stat::default()
        };
        let second = table.lookup(&stat, || first.node.key().generation ^ 1);
        assert_ne!(second.node.id, first.node.id);
        assert!(second.node.id >= STAND_IN);
    }
}
