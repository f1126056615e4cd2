//! Open files and directories.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{FileType, OFlags};
use stockade_observe::{Process, Version};
use stockade_policy::Denial;

use crate::error::{FsError, FsResult};
use crate::node::Node;

/// An open file, from open to last close.
#[derive(Debug)]
pub struct FileHandle {
    pub node: Arc<Node>,
    /// What the program asked for.
    pub flags: OFlags,
    /// Our own descriptor; under passthrough opened only when something asks for it.
    pub fd: OnceLock<Arc<OwnedFd>>,
    /// A shared map of it may change times and content without us; it is one of the node's `mappers`.
    pub maps: bool,
    /// The kernel reads and writes the backing file itself.
    pub passthrough: bool,
    /// It is one of the node's `flow.opens`.
    pub counted: bool,
    pub who: Arc<Process>,
    /// The path it was opened by.
    pub path: PathBuf,
    /// The content when it was opened (before an `O_TRUNC`); `None` if the open created it.
    pub opened: Option<Version>,
    pub exec: bool,
    /// Each write is judged as the content of the git file that this is.
    pub judged: bool,
    /// Its node stands for another inode since, which isn't to be written (`ops/judge.rs`).
    pub parted: AtomicBool,
    /// It was opened with staged content, or has staged some since.
    pub staged: AtomicBool,
    /// Whoever opened it for writing knew the content, or was let write over it unseen.
    pub author: AtomicBool,
    /// It stayed open when its close was waited for (`ops/hold.rs`).
    pub held: AtomicBool,
    /// What the guard would have refused.
    pub noted: OnceLock<Arc<Denial>>,
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub operations: AtomicU64,
}

impl FileHandle {
    pub fn readable(&self) -> bool {
        !self.flags.contains(OFlags::WRONLY)
    }

    pub fn writable(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }
}

/// One entry as the host listed it.
#[derive(Clone, Debug)]
pub struct Listed {
    pub ino: u64,
    pub kind: FileType,
    pub name: OsString,
    /// Where the listing goes on after this entry.
    pub next: u64,
}

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    pub node: Arc<Node>,
    pub who: Arc<Process>,
    pub path: PathBuf,
    pub stream: Mutex<DirStream>,
    pub listed: AtomicBool,
    /// The directory as it was opened, if the kernel keeps what it is told of it.
    pub kept: Option<Version>,
}

/// The host's listing, with what was read ahead of the kernel.
#[derive(Debug)]
pub struct DirStream {
    pub fd: Arc<OwnedFd>,
    pub ahead: VecDeque<Listed>,
    /// The offset that the first entry of `ahead` follows.
    pub at: u64,
    pub end: bool,
    /// What was staged here when the listing began.
    pub extra: Vec<Listed>,
}

/// Either kind of handle.
#[derive(Clone, Debug)]
pub enum Handle {
    File(Arc<FileHandle>),
    Dir(Arc<DirHandle>),
}

/// The handles the kernel knows, by number.
#[derive(Debug, Default)]
pub struct Handles {
    open: Mutex<HashMap<u64, Handle>>,
    last: AtomicU64,
}

impl Handles {
    pub fn insert(&self, handle: Handle) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(number, handle);
        number
    }

    pub fn file(&self, number: u64) -> FsResult<Arc<FileHandle>> {
        match self.open.lock().get(&number) {
            Some(Handle::File(file)) => Ok(file.clone()),
            Some(Handle::Dir(_)) | None => Err(FsError::UnknownHandle),
        }
    }

    pub fn dir(&self, number: u64) -> FsResult<Arc<DirHandle>> {
        match self.open.lock().get(&number) {
            Some(Handle::Dir(dir)) => Ok(dir.clone()),
            Some(Handle::File(_)) | None => Err(FsError::UnknownHandle),
        }
    }

    pub fn remove(&self, number: u64) -> Option<Handle> {
        self.open.lock().remove(&number)
    }

    /// Returns the open files of a node.
    pub fn of(&self, node: u64) -> Vec<Arc<FileHandle>> {
        let is_of = |handle: &Handle| match handle {
            Handle::File(file) if file.node.id == node => Some(file.clone()),
            Handle::File(_) | Handle::Dir(_) => None,
        };
        self.open.lock().values().filter_map(is_of).collect()
    }

    /// Takes every handle out, for the end of the mount.
    pub fn drain(&self) -> Vec<Handle> {
        self.open.lock().drain().map(|(_, handle)| handle).collect()
    }
}
