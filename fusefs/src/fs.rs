//! The file system: shared state, the policy's questions, and what is told to the recorder. The operations
//! themselves are in `ops`, a family a file.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::FileType;
use stockade_observe::history::Keeper;
use stockade_observe::{Event, Key, Observed, Op, Outcome, Process, Sink, Time};
use stockade_policy::{
    Denial, EntryKind, Guard, Hardlinks, Mode, ObserveLevel, Policy, Publish, Rules, Zone,
};

use crate::adapter::Notifier;
use crate::error::{FsError, FsResult};
use crate::handle::Handles;
use crate::host::{self, SelfFd, Stat};
use crate::journal::Journal;
use crate::moves::Moves;
use crate::node::{Node, PendingLookup, Table};
use crate::ops::{DeniedInodes, Findings, Overlay, not_staged};
use crate::owner::Owner;
use crate::process::Processes;
use crate::server::HistoryConfig;
use crate::watch::Watches;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// How long the kernel may believe what it was told.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// What a watch covers: its changes are told.
    pub watched: Duration,
    /// Anything else.
    pub unwatched: Duration,
}

/// What a lookup answers: a node, its attributes, and the count that goes with it.
#[derive(Debug)]
pub struct Entry<'t> {
    pub pending: PendingLookup<'t>,
    pub stat: Stat,
    /// How long the name may be believed.
    pub name_life: Duration,
    /// How long the attributes may be believed.
    pub attr_life: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Reads and writes come to us; the kernel caches pages, and may keep those it has.
    Cached { keep: bool },
    /// The kernel uses the backing file with this id.
    Passthrough(u32),
    /// Reads and writes come to us, past the kernel's cache, while others may pass through to the backing file with
    /// this id.
    Detached(u32),
    /// Reads and writes come to us, past the kernel's cache.
    Direct,
}

/// What an open answers.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    pub handle: u64,
    pub data: Data,
    /// Each close must be heard of.
    pub flush: bool,
}

pub struct Fs {
    pub(crate) table: Table,
    pub(crate) handles: Handles,
    pub(crate) self_fd: SelfFd,
    pub(crate) owner: Owner,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) device: Arc<OwnedFd>,
    /// Tells the kernel of changes; see `watch.rs`.
    pub(crate) notifier: OnceLock<Notifier>,
    pub(crate) passthrough: AtomicBool,
    pub(crate) observe_full: bool,
    pub(crate) process_ids: (u32, u32),
    /// Device number of our own mount, or 0 while it isn't known: never entered (`DESIGN` 5).
    pub(crate) own_device: AtomicU64,
    pub(crate) watches: Watches,
    pub(crate) moves: Moves,
    pub(crate) mode: Mode,
    pub(crate) publish: Publish,
    pub(crate) durable: bool,
    pub(crate) guard: Guard,
    pub(crate) findings: Findings,
    /// What the session has seen.
    pub(crate) observed: Arc<Observed>,
    /// Where content goes that must not be lost and can't have its name.
    pub(crate) kept: Option<PathBuf>,
    pub(crate) kept_count: AtomicU64,
    /// What is kept before it changes.
    pub(crate) history: Option<Keeper>,
    /// Held by the thread that waits long for reports of closes.
    pub(crate) patient: Mutex<()>,
    pub(crate) overlay: Overlay,
    pub(crate) journal: Journal,
    pub(crate) hardlinks: Hardlinks,
    /// Files with several names that rules deny under one of them, found when first needed.
    pub(crate) denied_inodes: Mutex<Option<DeniedInodes>>,
    pub(crate) rules: Arc<Rules>,
    sink: Arc<dyn Sink>,
    processes: Processes,
    pub(crate) base: PathBuf,
    /// Moves on whenever a directory is renamed: zones computed before are void.
    epoch: AtomicU64,
}

/// What [`Fs::new`] needs.
pub struct Parts {
    pub rules: Arc<Rules>,
    pub policy: Policy,
    pub sink: Arc<dyn Sink>,
    pub source: OwnedFd,
    pub base: PathBuf,
    pub owner: Owner,
    pub device: Arc<OwnedFd>,
    pub passthrough: bool,
    pub pins: usize,
    pub state: Option<PathBuf>,
    pub observed: Arc<Observed>,
    pub kept: Option<PathBuf>,
    pub history: Option<HistoryConfig>,
    pub lifetimes: Lifetimes,
}

impl Fs {
    pub fn new(parts: Parts) -> FsResult<Self> {
        let stat = host::stat_fd(parts.source.as_fd())?;
        let key = host::key_of(parts.source.as_fd(), &stat);
        let base = parts.base.as_path();
        let history = parts.history.as_ref().map(|history| {
            let places = (base, history.source.as_path());
            Keeper::start(&history.directory, places, key.into(), history.bounds)
        });
        let history = history.transpose()?;
        let watches = Watches::new(&parts.source, stat.dev);
        let moves = Moves::new(stat.dev, watches.are_local());
        Ok(Self {
            table: Table::new(parts.source, &stat, key, parts.pins),
            handles: Handles::default(),
            self_fd: SelfFd::open()?,
            owner: parts.owner,
            lifetimes: parts.lifetimes,
            device: parts.device,
            notifier: OnceLock::new(),
            // What the kernel does by itself isn't seen.
            passthrough: AtomicBool::new(
                parts.passthrough && parts.policy.observe != ObserveLevel::Full,
            ),
            observe_full: parts.policy.observe == ObserveLevel::Full,
            process_ids: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            own_device: AtomicU64::new(0),
            watches,
            moves,
            mode: parts.policy.mode,
            publish: parts.policy.publish,
            durable: parts.policy.durable,
            guard: parts.policy.guard,
            findings: Findings::new(parts.policy.guard),
            observed: parts.observed,
            kept: parts.kept,
            kept_count: AtomicU64::new(0),
            history,
            patient: Mutex::new(()),
            overlay: Overlay::default(),
            journal: Journal::start(parts.state.as_deref(), key),
            hardlinks: parts.policy.hardlinks,
            denied_inodes: Mutex::new(None),
            rules: parts.rules,
            sink: parts.sink,
            processes: Processes::default(),
            base: parts.base,
            epoch: AtomicU64::new(0),
        })
    }

    /// Returns the node with this number.
    pub(crate) fn node(&self, id: u64) -> FsResult<Arc<Node>> {
        self.table.get(id)
    }

    pub(crate) fn path(&self, node: &Arc<Node>) -> PathBuf {
        node.path(&self.base)
    }

    pub(crate) fn path_at(&self, parent: &Arc<Node>, name: &OsStr) -> PathBuf {
        self.path(parent).join(name)
    }

    /// Returns a node's attributes as they are shown.
    pub(crate) fn show(&self, node: &Node, mut stat: Stat) -> Stat {
        self.named(node, &mut stat);
        self.owner.present(&mut stat);
        stat
    }

    /// Finds or makes the node of a host file that was just seen below `parent`.
    pub(crate) fn entry(
        &self,
        parent: &Arc<Node>,
        dir: BorrowedFd<'_>,
        name: &CString,
        stat: Stat,
    ) -> FsResult<Entry<'_>> {
        use std::os::unix::ffi::OsStrExt;
        if self.is_own_mount(&stat) {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let pending = self.table.lookup(&stat, || host::generation(dir, name));
        let name = OsStr::from_bytes(name.as_bytes());
        pending.node.add_name(parent, name);
        self.watches.filled(parent, name);
        Ok(self.answer(parent, pending, stat))
    }

    /// Tells whether a host file is one of ours, seen through our own mount.
    pub(crate) fn is_own_mount(&self, stat: &Stat) -> bool {
        stat.dev == self.own_device.load(Ordering::Relaxed) && stat.dev != 0
    }

    /// Answers for a name that is staged.
    pub(crate) fn staged_entry(&self, parent: &Arc<Node>, node: &Arc<Node>) -> FsResult<Entry<'_>> {
        let pin = self.table.pin(node)?;
        let stat = host::stat_fd(pin.as_fd())?;
        Ok(self.answer(parent, self.table.again(node), stat))
    }

    pub(crate) fn answer<'s>(
        &'s self,
        parent: &Node,
        pending: PendingLookup<'s>,
        stat: Stat,
    ) -> Entry<'s> {
        let name_life = self.name_life(parent);
        let attr_life = self.tell(&pending.node, &stat);
        let stat = self.show(&pending.node, stat);
        Entry { pending, stat, name_life, attr_life }
    }

    /// Returns how long a name in a directory may be believed.
    pub(crate) fn name_life(&self, parent: &Node) -> Duration {
        if parent.watch.load(Ordering::Acquire) > 0 {
            self.lifetimes.watched
        } else {
            self.lifetimes.unwatched
        }
    }

    /// Notes what the kernel is about to be told of a node, and returns how long it may believe that.
    pub(crate) fn tell(&self, node: &Node, stat: &Stat) -> Duration {
        node.tell(stat.ctime);
        // A write or an allocation may take set-id bits away, and the kernel asks for size and times alone afterwards.
        if stat.is_regular() && stat.mode & host::SET_ID != 0 {
            return Duration::ZERO;
        }
        // A store to a shared map that passes through changes times, and nobody hears of it before the last close.
        if node.mappers.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        if node.is_watched(stat.nlink) { self.lifetimes.watched } else { self.lifetimes.unwatched }
    }

    // --- policy -----------------------------------------------------------------------------------------------

    pub(crate) fn zone(&self, node: &Arc<Node>) -> Zone {
        let kind = entry_kind(node.kind);
        node.zone(self.epoch.load(Ordering::Acquire), &self.base, |path| Zone {
            read: self.rules.zone(path).read,
            write: self.rules.write_refused(path, kind),
        })
    }

    /// Says that paths of known nodes have changed.
    pub(crate) fn paths_moved(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn may_read(&self, node: &Arc<Node>) -> FsResult<()> {
        self.zone(node).read.map_or(Ok(()), |denial| Err(FsError::Denied(denial)))
    }

    pub(crate) fn may_write(&self, node: &Arc<Node>) -> FsResult<()> {
        self.zone(node).write.map_or(Ok(()), |denial| Err(FsError::Denied(denial)))
    }

    /// Asks whether a fresh entry may be made at `path`.
    pub(crate) fn may_create(&self, path: &Path, kind: EntryKind) -> FsResult<()> {
        path.file_name().map_or(Ok(()), not_staged)?;
        allowed(self.rules.create_refused(path, kind))
    }

    /// Asks whether the entry at `path` may go.
    pub(crate) fn may_remove(&self, path: &Path) -> FsResult<()> {
        allowed(self.rules.remove_refused(path))
    }

    // --- observation ------------------------------------------------------------------------------------------

    pub(crate) fn who(&self, caller: Caller) -> Arc<Process> {
        self.processes.get(caller.pid, caller.uid)
    }

    /// Makes an event with nothing but its subject.
    pub(crate) fn event(who: Arc<Process>, op: Op, path: PathBuf, key: Option<Key>) -> Event {
        Event {
            time: Time::now(),
            process: who,
            op,
            path,
            path2: None,
            key,
            outcome: Outcome::Ok,
            bytes_read: Some(0),
            bytes_written: Some(0),
            version_before: None,
            version_after: None,
            publication: None,
            noted: None,
            count: 1,
        }
    }

    pub(crate) fn record(&self, event: Event) {
        self.sink.record(event);
    }

    /// Records how an operation ended, and hands its result on.
    pub(crate) fn audited<T>(&self, mut event: Event, result: FsResult<T>) -> FsResult<T> {
        if let Err(error) = &result {
            event.outcome = outcome(error);
        }
        self.record(event);
        result
    }
}

/// Makes a refusal an error.
pub fn allowed(refusal: Option<Arc<Denial>>) -> FsResult<()> {
    refusal.map_or(Ok(()), |denial| Err(FsError::Denied(denial)))
}

/// Returns what the policy calls this kind of file.
pub fn entry_kind(kind: FileType) -> EntryKind {
    match kind {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => EntryKind::Special,
    }
}

fn outcome(error: &FsError) -> Outcome {
    let errno = error.errno().raw_os_error();
    match error {
        FsError::Denied(denial) => Outcome::Denied { denial: denial.clone(), errno },
        FsError::Host(_) | FsError::UnknownNode | FsError::UnknownHandle | FsError::Stale => {
            Outcome::Error { errno }
        }
    }
}

impl std::fmt::Debug for Fs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fs")
            .field("base", &self.base)
            .field("nodes", &self.table.len())
            .finish_non_exhaustive()
    }
}
