//! Nodes: what the kernel knows by number, and what each stands for on the host.
//!
//! A node is found by its host identity, so every alias of a file leads to one node (contract F3). Its descriptor (the
//! pin) is taken when first needed and may be given back under pressure; a node without a pin is reopened from a known
//! parent and name, and the identity compared.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::FileType;
use stockade_observe::{Key, Version};
use stockade_policy::Zone;

use crate::error::FsError;
use crate::host::Stamp;
use crate::ops::Staged;

mod recall;
mod table;

pub use table::{PendingLookup, Table};

/// No time: see [`Node::stamped`] and [`Node::born`].
pub const UNSTAMPED: i64 = i64::MIN;

/// The number of the root in the FUSE protocol.
pub const ROOT: u64 = 1;

/// One name of a node.
#[derive(Clone, Debug)]
pub struct Name {
    pub parent: Arc<Node>,
    pub name: OsString,
}

/// The names of a node that we have seen, the latest last.
#[derive(Debug, Default)]
pub struct Names {
    live: Vec<Name>,
    /// The last name it had, kept for events about files that are deleted and still open.
    last: Option<Name>,
}

/// More names than this of one file are not remembered; the first seen go first.
const MAX_NAMES: usize = 1024;

/// What the kernel knows by one number.
#[derive(Debug)]
pub struct Node {
    pub id: u64,
    /// The host file; another one once the node was given a fresh inode.
    key: Mutex<Key>,
    /// What the kernel is told as the generation; never changes for this node.
    pub generation: u64,
    pub kind: FileType,
    names: Mutex<Names>,
    pin: Mutex<Option<Arc<OwnedFd>>>,
    used: AtomicBool,
    lookups: AtomicU64,
    zone: Mutex<Option<(u64, Zone)>>,
    /// Passthrough registration of a regular file; see `ops/open.rs`.
    pub flow: Mutex<Flow>,
    /// Open files that may write.
    pub writers: AtomicUsize,
    /// Those of them whose content the session knew, or came to know; see `ops/guard.rs`.
    pub authors: AtomicUsize,
    /// Open files that the kernel passes through and by which a shared map can be written.
    pub mappers: AtomicUsize,
    /// Open files of any kind.
    pub opens: AtomicUsize,
    /// Open files that are programs being run.
    pub running: AtomicUsize,
    /// Content that the host doesn't see yet; see `ops/stage.rs`.
    pub staged: Mutex<Option<Staged>>,
    /// Why what was staged last didn't get its name, and never will.
    pub lost: OnceLock<FsError>,
    /// Who wrote to it before may write no more, but what they try stands in the kernel's cache until it's refused.
    pub parted: AtomicBool,
    /// Held while the file is judged and moved, and while it's opened for writing.
    pub gate: Mutex<()>,
    /// The version whose pages the kernel may still cache; of a directory, whose listing.
    pub cached: Mutex<Option<Version>>,
    /// When a staged file was last created or removed in a directory, in nanoseconds, or [`UNSTAMPED`]: the host's directory
    /// changes only when one is published.
    pub born: AtomicI64,
    /// The modification time that a program gave a directory, if no name was made in it since (nanoseconds; else
    /// [`UNSTAMPED`]). A publication leaves it at that.
    pub stamped: AtomicI64,
    /// The change time of the attributes that the kernel was told last, in nanoseconds.
    pub told: AtomicI64,
    /// What its last publication did to its change time.
    moved: Mutex<Option<Moved>>,
    /// Names that are being given in a directory: the host may have them before we know what they lead to.
    pub naming: AtomicUsize,
    /// How often a name was given in a directory, done or failed.
    pub named: AtomicU64,
    /// The watch on a directory, [`WATCH_UNKNOWN`] or [`WATCH_FAILED`].
    pub watch: AtomicI32,
    /// The watch on moves of a directory, likewise; see `moves.rs`.
    pub moves: AtomicI32,
    /// The number of moves at which the directory was found below the source; see `ops/inside.rs`.
    pub inside: AtomicU64,
}

/// How a publication moved the change time of an inode (nanoseconds), which to a program is nothing that happened.
#[derive(Clone, Copy, Debug)]
struct Moved {
    from: Stamp,
    to: Stamp,
    /// Somebody inside was told the former, and must not see the file change by itself.
    told: bool,
}

/// Nobody has tried to watch the directory yet.
pub const WATCH_UNKNOWN: i32 = 0;
/// The directory can't be watched.
pub const WATCH_FAILED: i32 = -1;

/// How a node's data flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    pub backing: Backing,
    /// Open files that the kernel passes through to `backing`.
    pub opens: usize,
    /// The node stands for another inode now than `backing` does.
    pub outdated: bool,
}

/// A node's registration for kernel passthrough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Not tried yet.
    #[default]
    Unknown,
    /// Registered under this id.
    Id(u32),
    /// Can't be registered; opens are served by us for as long as the node lives.
    Refused,
}

/// Says that names are being given in a directory, until it is dropped.
#[must_use = "dropping this says that it is done"]
#[derive(Debug)]
pub struct Naming(Arc<Node>);

impl Naming {
    pub fn within(dir: &Arc<Node>) -> Self {
        dir.naming.fetch_add(1, Ordering::AcqRel);
        Self(dir.clone())
    }
}

impl Drop for Naming {
    fn drop(&mut self) {
        self.0.named.fetch_add(1, Ordering::AcqRel);
        self.0.naming.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Node {
    /// Notes what the kernel is about to be told: the host's change time.
    pub fn tell(&self, changed: Stamp) {
        let mut moved = self.moved.lock();
        self.told.store(changed.nanos(), Ordering::Release);
        if let Some(moved) = moved.as_mut() {
            moved.told |= moved.from == changed;
        }
    }

    /// Says that a publication moved the change time. `told` says that somebody had been told the former one when it
    /// began. Returns whether somebody was told the new one meanwhile as well.
    pub fn published(&self, from: Stamp, to: Stamp, told: bool) -> bool {
        let mut moved = self.moved.lock();
        let last = self.told.load(Ordering::Acquire);
        let told = told || last == from.nanos();
        // What changed a staged inode since the kernel was told of it came through the kernel, which believes nothing then.
        if last <= from.nanos() {
            self.told.store(to.nanos(), Ordering::Release);
        }
        *moved = Some(Moved { from, to, told });
        told && last == to.nanos()
    }

    /// Returns the change time that is shown for the host's.
    pub fn changed(&self, changed: Stamp) -> Stamp {
        match *self.moved.lock() {
            Some(Moved { from, to, told: true }) if to == changed => from,
            _ => changed,
        }
    }

    /// Returns the identity of the host file.
    pub fn key(&self) -> Key {
        *self.key.lock()
    }

    /// Returns the latest known name, or the last one it had.
    pub fn name(&self) -> Option<Name> {
        let names = self.names.lock();
        names.live.last().or(names.last.as_ref()).cloned()
    }

    /// Returns every known name.
    pub fn names(&self) -> Vec<Name> {
        self.names.lock().live.clone()
    }

    /// Returns the path at which programs see the node, below `base`.
    pub fn path(self: &Arc<Self>, base: &Path) -> PathBuf {
        let mut parts = Vec::new();
        let mut node = self.clone();
        while let Some(name) = node.name() {
            parts.push(name.name);
            node = name.parent;
        }
        let mut path = base.to_path_buf();
        path.extend(parts.iter().rev());
        path
    }

    /// Says that the node is called `name` below `parent`.
    pub fn add_name(self: &Arc<Self>, parent: &Arc<Self>, name: &OsStr) {
        if self.id == ROOT {
            return;
        }
        let mut names = self.names.lock();
        let is_it = |known: &Name| known.parent.id == parent.id && known.name == name;
        if names.live.last().is_some_and(is_it) {
            return;
        }
        if self.kind == FileType::Directory {
            names.live.clear();
        } else {
            names.live.retain(|known| !is_it(known));
            if names.live.len() >= MAX_NAMES {
                names.live.remove(0);
            }
        }
        names.live.push(Name { parent: parent.clone(), name: name.to_os_string() });
        drop(names);
        *self.zone.lock() = None;
    }

    /// Says that the node is no longer called `name` below `parent`.
    pub fn remove_name(&self, parent: &Self, name: &OsStr) {
        let mut names = self.names.lock();
        if let Some(at) =
            names.live.iter().position(|known| known.parent.id == parent.id && known.name == name)
        {
            let gone = names.live.remove(at);
            if names.live.is_empty() {
                names.last = Some(gone);
            }
        }
        drop(names);
        *self.zone.lock() = None;
    }

    /// Tells whether any name is known.
    pub fn is_named(&self) -> bool {
        !self.names.lock().live.is_empty()
    }

    /// Tells whether the node is known by this name.
    pub fn is_called(&self, parent: &Self, name: &OsStr) -> bool {
        self.names
            .lock()
            .live
            .iter()
            .any(|known| known.parent.id == parent.id && known.name == name)
    }

    /// Tells whether every change of the node's attributes would be seen: a directory is watched itself, a file with
    /// one name in the directory that holds it.
    pub fn is_watched(&self, links: u32) -> bool {
        if self.kind == FileType::Directory {
            return self.watch.load(Ordering::Acquire) > 0;
        }
        let names = self.names.lock();
        links == 1
            && names.live.len() == 1
            && names.live.iter().all(|name| name.parent.watch.load(Ordering::Acquire) > 0)
    }

    /// Returns the cached zone, or computes it: the refusals of all known names together, so that a denial holds under
    /// every alias (contract P10).
    pub fn zone(
        self: &Arc<Self>,
        epoch: u64,
        base: &Path,
        compute: impl Fn(&Path) -> Zone,
    ) -> Zone {
        if let Some((at, zone)) = &*self.zone.lock()
            && *at == epoch
        {
            return zone.clone();
        }
        let names = self.names();
        let mut zone = Zone::default();
        if names.is_empty() {
            zone = compute(&self.path(base));
        }
        for name in names {
            let one = compute(&name.parent.path(base).join(&name.name));
            zone.read = zone.read.or(one.read);
            zone.write = zone.write.or(one.write);
        }
        *self.zone.lock() = Some((epoch, zone.clone()));
        zone
    }

    /// Returns the pin if it is held right now.
    pub fn held_pin(&self) -> Option<Arc<OwnedFd>> {
        self.used.store(true, Ordering::Relaxed);
        self.pin.lock().clone()
    }
}

impl Node {
    /// Tells whether a node that the kernel has forgotten is of use still; `held` is how often its holders refer to it.
    fn is_of_use(self: &Arc<Self>, held: usize) -> bool {
        if self.kind == FileType::Directory {
            Arc::strong_count(self) > held
        } else {
            self.names.lock().live.len() > 1
        }
    }

    fn new(id: u64, key: Key, kind: FileType, generation: u64, pin: Option<OwnedFd>) -> Self {
        Self {
            id,
            key: Mutex::new(key),
            generation,
            kind,
            names: Mutex::default(),
            pin: Mutex::new(pin.map(Arc::new)),
            used: AtomicBool::new(false),
            lookups: AtomicU64::new(0),
            zone: Mutex::new(None),
            flow: Mutex::default(),
            writers: AtomicUsize::new(0),
            authors: AtomicUsize::new(0),
            mappers: AtomicUsize::new(0),
            opens: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            staged: Mutex::new(None),
            lost: OnceLock::new(),
            parted: AtomicBool::new(false),
            gate: Mutex::new(()),
            cached: Mutex::new(None),
            born: AtomicI64::new(UNSTAMPED),
            stamped: AtomicI64::new(UNSTAMPED),
            told: AtomicI64::new(0),
            moved: Mutex::new(None),
            naming: AtomicUsize::new(0),
            named: AtomicU64::new(0),
            watch: AtomicI32::new(WATCH_UNKNOWN),
            moves: AtomicI32::new(WATCH_UNKNOWN),
            inside: AtomicU64::new(0),
        }
    }
}
