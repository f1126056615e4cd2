//! Host changes: seen through inotify, told to the kernel (contract F10).
//!
//! The kernel is given long lifetimes for what lies in a watched directory and short ones for everything else. A
//! directory is watched before the first answer about a name in it is prepared, so no change can fall between. Events
//! carry no process id, and our own operations cause events as well; so an event is only a hint to compare what the
//! host says now with what the kernel was told last, and the kernel hears of a difference alone.
//!
//! Notifications are sent from one thread of their own that holds no lock meanwhile: the kernel may make it wait for an
//! operation that one of the serving threads has yet to answer.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::adapter::Notifier;
use crate::fs::Fs;
use crate::host;
use crate::node::{Node, WATCH_FAILED, WATCH_UNKNOWN};

/// Events that come this close together are handled as one.
const GATHER: Duration = Duration::from_millis(5);
/// A difference is told a second time after this: an answer that was under way may have carried the old state.
const AGAIN: Duration = Duration::from_millis(40);

/// So many forgotten nodes are worth the time that it takes to give their memory back.
const MANY: usize = 16 * 1024;
/// And the kernel is let go on forgetting for so long before.
const REST: Duration = Duration::from_millis(500);

/// The watched directories.
#[derive(Debug)]
pub struct Watches {
    inotify: Option<OwnedFd>,
    wake: Option<OwnedFd>,
    stop: AtomicBool,
    local: bool,
    device: u64,
    known: Mutex<HashMap<i32, Weak<Node>>>,
    /// Names that we are taking away ourselves, by directory.
    removals: Mutex<HashSet<(u64, OsString)>>,
    /// Names that lead elsewhere by our own doing, to be told.
    later: Mutex<Vec<(u64, OsString)>>,
    /// Nodes that stand for something else by our own doing, to be told.
    later_nodes: Mutex<Vec<u64>>,
    /// Nodes that were forgotten since memory was last given back.
    forgotten: AtomicUsize,
    /// Nodes whose staged content nobody may come to close, and when to publish it; see `ops/cut.rs`.
    cuts: Mutex<Vec<(Instant, Weak<Node>)>>,
}

impl Watches {
    /// Prepares watching below a source on `device`; on a file system whose changes may come from other machines
    /// nothing is ever watched.
    pub fn new(source: &OwnedFd, device: u64) -> Self {
        let local = rustix::fs::fstatfs(source)
            .is_ok_and(|fs| u64::try_from(fs.f_type).is_ok_and(is_local));
        let made = || -> io::Result<(OwnedFd, OwnedFd)> {
            let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            Ok((inotify, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        };
        // Where nothing is watched, the descriptor stays quiet and names live for a short while.
        let (inotify, wake) = match made() {
            Ok((inotify, wake)) => (Some(inotify), Some(wake)),
            Err(error) => {
                tracing::warn!(%error, "host changes can't be watched; lifetimes stay short");
                (None, None)
            }
        };
        Self {
            inotify,
            wake,
            stop: AtomicBool::new(false),
            local,
            device,
            known: Mutex::default(),
            removals: Mutex::default(),
            later: Mutex::default(),
            later_nodes: Mutex::default(),
            cuts: Mutex::default(),
            forgotten: AtomicUsize::new(0),
        }
    }

    /// Tells whether all changes below the source go through this kernel.
    pub fn are_local(&self) -> bool {
        self.local
    }

    /// Watches a directory if it isn't watched yet, and says whether it is.
    pub fn ensure(&self, node: &Arc<Node>, pin: &OwnedFd) -> bool {
        let at = node.watch.load(Ordering::Acquire);
        if at != WATCH_UNKNOWN {
            return at != WATCH_FAILED;
        }
        let Some(inotify) = &self.inotify else { return false };
        if !self.local || node.key().dev != self.device {
            return false;
        }
        let mask = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        let mut known = self.known.lock();
        match inotify::add_watch(inotify, host::magic_link(pin.as_fd()), mask) {
            Ok(watch) => {
                known.insert(watch, Arc::downgrade(node));
                node.watch.store(watch, Ordering::Release);
                true
            }
            Err(error) => {
                // Out of watches, or a directory that we may not read: short lifetimes there.
                tracing::debug!(%error, "a directory isn't watched");
                node.watch.store(WATCH_FAILED, Ordering::Release);
                false
            }
        }
    }

    /// The kernel has forgotten a node.
    pub fn forget(&self, node: &Node) {
        let watch = node.watch.swap(WATCH_UNKNOWN, Ordering::AcqRel);
        if let Some(inotify) = &self.inotify
            && watch > 0
            && self.known.lock().remove(&watch).is_some()
            && let Err(error) = inotify::remove_watch(inotify, watch)
        {
            tracing::debug!(%error, "a watch had ended by itself");
        }
    }

    /// Counts a node that the kernel has forgotten: after many, memory is given back.
    pub fn forgot(&self) {
        if (self.forgotten.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(MANY) {
            self.wake();
        }
    }

    /// Says that we take this name away ourselves: that it is gone is nothing that the kernel must be told, until it has
    /// heard of the name again. Telling isn't free of danger: it waits for whatever is under way in the directory, and if
    /// the server is killed meanwhile, neither that nor the server can end.
    pub fn removing(&self, parent: &Node, name: &OsStr) {
        if parent.watch.load(Ordering::Relaxed) > 0 {
            let mut removals = self.removals.lock();
            // Entries leave with their events; should the host lose events, start afresh.
            if removals.len() > 100_000 {
                removals.clear();
            }
            removals.insert((parent.id, name.to_os_string()));
        }
    }

    /// Says that the kernel is about to hear of a name: the next disappearance is news again.
    pub fn filled(&self, parent: &Node, name: &OsStr) {
        if parent.watch.load(Ordering::Relaxed) > 0 {
            let mut removals = self.removals.lock();
            if !removals.is_empty() {
                removals.remove(&(parent.id, name.to_os_string()));
            }
        }
    }

    /// Has the kernel told, soon and from the right thread, that these names lead elsewhere.
    pub fn later(&self, names: Vec<(u64, OsString)>) {
        if !names.is_empty() {
            self.later.lock().extend(names);
            self.wake();
        }
    }

    /// Has the kernel told, soon and from the right thread, that a node has other attributes and content.
    pub fn later_node(&self, id: u64) {
        self.later_nodes.lock().push(id);
        self.wake();
    }

    /// Tells whether anything can be done later.
    pub fn can_wait(&self) -> bool {
        self.inotify.is_some() && self.wake.is_some()
    }

    /// Has what is staged for a node published at a time, if nobody does before.
    pub fn publish_at(&self, at: Instant, node: &Arc<Node>) {
        self.cuts.lock().push((at, Arc::downgrade(node)));
        self.wake();
    }

    /// Returns the nodes whose time has come.
    fn due(&self) -> Vec<Arc<Node>> {
        let now = Instant::now();
        let mut cuts = self.cuts.lock();
        let due = cuts.iter().take_while(|(at, _)| *at <= now).count();
        cuts.drain(..due).filter_map(|(_, node)| node.upgrade()).collect()
    }

    /// Ends the watching thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake
            && let Err(error) = rustix::io::write(wake, &1_u64.to_ne_bytes())
        {
            tracing::debug!(%error, "the watching thread is awake already");
        }
    }
}

/// File systems whose changes all go through this kernel (magic numbers from linux/magic.h and statfs(2)).
fn is_local(magic: u64) -> bool {
    const LOCAL: [u64; 9] = [
        0xef53,      // ext2, ext3, ext4
        0x5846_5342, // xfs
        0x9123_683e, // btrfs
        0x0102_1994, // tmpfs
        0x8584_58f6, // ramfs
        0x794c_7630, // overlayfs
        0xf2f5_2010, // f2fs
        0x2fc1_2fc1, // zfs
        0xca45_1a4e, // bcachefs
    ];
    LOCAL.contains(&magic)
}

/// A name in a watched directory, or the directory itself.
type Place = (i32, Option<CString>);

/// Tells the kernel about host changes until [`Watches::stop`].
pub fn run(fs: &Fs, notifier: &Notifier) {
    let watches = &fs.watches;
    let (Some(inotify), Some(wake)) = (&watches.inotify, &watches.wake) else { return };
    let mut again: Vec<(Instant, Place)> = Vec::new();
    let mut rest: Option<Instant> = None;
    loop {
        let cut = watches.cuts.lock().first().map(|(at, _)| *at);
        let next = again.first().map(|(at, _)| *at).into_iter().chain(cut).chain(rest).min();
        let wait = next.map(|at| at.saturating_duration_since(Instant::now()));
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut fds = [PollFd::new(inotify, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "host changes aren't seen any more");
                return;
            }
        }
        if watches.stop.load(Ordering::Acquire) {
            return;
        }
        if !fds[1].revents().is_empty() {
            let mut count = [0; 8];
            if let Err(error) = rustix::io::read(wake, &mut count) {
                tracing::debug!(%error, "woken by nothing");
            }
            // Telling waits for operations under way, and those may have more to be told: no lock is held by then.
            let names = std::mem::take(&mut *watches.later.lock());
            let nodes = std::mem::take(&mut *watches.later_nodes.lock());
            for (parent, name) in names {
                notifier.entry(parent, &name);
            }
            for id in nodes {
                notifier.inode(id, true);
            }
        }
        if watches.forgotten.load(Ordering::Relaxed) >= MANY && rest.is_none() {
            rest = Some(Instant::now() + REST);
        }
        if rest.is_some_and(|at| at <= Instant::now()) {
            rest = None;
            watches.forgotten.store(0, Ordering::Relaxed);
            fs.table.shrink();
            crate::sys::give_memory_back();
        }
        for node in watches.due() {
            fs.publish_cut(&node);
        }
        if !fds[0].revents().is_empty() {
            std::thread::sleep(GATHER);
        }
        let mut places = HashSet::new();
        if !drain(inotify, watches, &mut places) {
            everything(fs, notifier);
            again.clear();
            continue;
        }
        // Whatever happened to names in it happened to the directory; once is enough.
        let directories: HashSet<Place> = places.iter().map(|(watch, _)| (*watch, None)).collect();
        places.retain(|(_, name)| name.is_some());
        for place in places.into_iter().chain(directories) {
            if compare(fs, notifier, &place, false) != Next::Nothing {
                again.push((Instant::now() + AGAIN, place));
            }
        }
        let now = Instant::now();
        let due = again.iter().take_while(|(at, _)| *at <= now).count();
        for (_, place) in again.drain(..due).collect::<Vec<_>>() {
            if compare(fs, notifier, &place, true) == Next::Later {
                again.push((now + AGAIN, place));
            }
        }
    }
}

/// How many events are taken before they are dealt with.
const MOST: usize = 4096;

/// Reads what happened; false if the kernel lost some of it.
fn drain(inotify: &OwnedFd, watches: &Watches, places: &mut HashSet<Place>) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 64 * 1024];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut complete = true;
    let mut count = 0;
    // Bounded, and given up when the mount ends: a busy host directory must not keep this thread here for ever. What
    // was read from the kernel is dealt with in any case.
    while !watches.stop.load(Ordering::Acquire)
        && (count < MOST || !reader.is_buffer_empty())
        && let Ok(event) = reader.next()
    {
        count += 1;
        if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
            complete = false;
        } else if event.events().contains(ReadFlags::IGNORED) {
            watches.known.lock().remove(&event.wd());
        } else {
            places.insert((event.wd(), event.file_name().map(ToOwned::to_owned)));
        }
    }
    complete
}

/// How often a place is looked at while names come into being beside it.
const LOOKS: usize = 8;

/// What becomes of a place that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The kernel knows what is there.
    Nothing,
    /// It was told, and is to be told once more.
    Again,
    /// It can't be said yet.
    Later,
}

/// Compares one place with what the kernel was told, and tells it if they differ. `surely` skips the comparison.
fn compare(fs: &Fs, notifier: &Notifier, (watch, name): &Place, surely: bool) -> Next {
    let Some(dir) = fs.watches.known.lock().get(watch).and_then(Weak::upgrade) else {
        return Next::Nothing;
    };
    let Some(pin) = dir.held_pin().or_else(|| fs.table.pin(&dir).ok()) else {
        return Next::Nothing;
    };
    let Some(name) = name else {
        let told =
            host::stat_fd(pin.as_fd()).is_ok_and(|stat| refresh(notifier, &dir, &stat, surely));
        return if told { Next::Again } else { Next::Nothing };
    };
    let os_name = OsStr::from_bytes(name.as_bytes());
    if crate::ops::staged_by(os_name).is_some() {
        // Nobody inside has heard of it. And telling would wait for whatever is under way in the directory: a server that
        // is killed meanwhile could not end, and its programs neither.
        return Next::Nothing;
    }
    if fs.overlay.get(dir.id, os_name).is_some() {
        // Inside, the staged content holds; what the host did comes out when it is published.
        return Next::Nothing;
    }
    let mut seen = Seen::Else;
    // A second look, since the kernel may have asked for the name during the first.
    let mut steady = 0;
    for _ in 0..LOOKS {
        let named = dir.named.load(Ordering::Acquire);
        seen = Seen::look(fs, &dir, &pin, name, os_name);
        if !matches!(seen, Seen::Else) {
            break;
        }
        // A name that we are giving ourselves: the kernel is about to hear what it leads to, and would take that answer
        // back. Whoever stands in a directory by then stands nowhere, and an overlay above us loses its file.
        if dir.naming.load(Ordering::Acquire) > 0 {
            return Next::Later;
        }
        steady = if dir.named.load(Ordering::Acquire) == named { steady + 1 } else { 0 };
        if steady == 2 {
            break;
        }
    }
    if matches!(seen, Seen::Else) && steady < 2 {
        return Next::Later;
    }
    let told = match seen {
        Seen::Known(node, stat) => refresh(notifier, &node, &stat, surely),
        Seen::Ours => false,
        Seen::Else => {
            notifier.entry(dir.id, os_name);
            true
        }
    };
    if told { Next::Again } else { Next::Nothing }
}

/// Tells whether a name that isn't there is what the host calls a file without a name, such as those that we stage: `#`
/// and its number.
fn is_unnamed(fs: &Fs, dir: &Node, name: &CString) -> bool {
    let number = name.to_str().ok().and_then(|name| name.strip_prefix('#')?.parse().ok());
    let called = |node: &Arc<Node>| node.is_called(dir, OsStr::from_bytes(name.as_bytes()));
    number.is_some_and(|ino| {
        let stat = host::Stat { dev: dir.key().dev, ino, ..host::Stat::default() };
        match fs.table.peek(&stat) {
            Some(node) => !called(&node),
            None => !fs.table.all().iter().any(called),
        }
    })
}

/// Tells whether we took a name away, and the kernel hasn't heard of it since.
fn is_removed(fs: &Fs, dir: &Node, name: &OsStr) -> bool {
    fs.watches.removals.lock().contains(&(dir.id, name.to_os_string()))
}

/// What stands at a name.
enum Seen {
    /// What the kernel knows under it, with attributes.
    Known(Arc<Node>, host::Stat),
    /// Nothing, by our own doing.
    Ours,
    /// Something else, or nothing.
    Else,
}

impl Seen {
    fn look(fs: &Fs, dir: &Arc<Node>, pin: &OwnedFd, name: &CString, os_name: &OsStr) -> Self {
        match host::stat_at(pin.as_fd(), name) {
            Ok(stat) => match fs.table.peek(&stat) {
                Some(node) if node.is_called(dir, os_name) => Self::Known(node, stat),
                // Its rewrite began just now, and the node stands for that.
                _ if fs.overlay.get(dir.id, os_name).is_some() => Self::Ours,
                // We moved away what was there and had the host leave a whiteout.
                _ if stat.is_whiteout() && is_removed(fs, dir, os_name) => Self::Ours,
                _ => Self::Else,
            },
            Err(_) if fs.overlay.get(dir.id, os_name).is_some() => Self::Ours,
            Err(_) if is_unnamed(fs, dir, name) => Self::Ours,
            Err(_) if is_removed(fs, dir, os_name) => Self::Ours,
            Err(_) => Self::Else,
        }
    }
}

/// Has the kernel ask for a node's attributes again, if they are others than those it was told.
fn refresh(notifier: &Notifier, node: &Node, stat: &host::Stat, surely: bool) -> bool {
    let differs = node.told.load(Ordering::Acquire) != stat.ctime.nanos();
    if differs || surely {
        notifier.inode(node.id, stat.is_regular());
    }
    differs
}

/// Has the kernel ask for everything again.
fn everything(fs: &Fs, notifier: &Notifier) {
    tracing::warn!("host changes came faster than they could be read; asking for everything again");
    for node in fs.table.all() {
        for name in node.names() {
            notifier.entry(name.parent.id, &name.name);
        }
        notifier.inode(node.id, node.kind == rustix::fs::FileType::RegularFile);
    }
}
