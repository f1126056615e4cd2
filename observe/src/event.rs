//! One thing that a program did, or was refused.
//!
//! File names are bytes: nothing here assumes UTF-8.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use stockade_policy::Denial;

/// Nanoseconds since the epoch (`CLOCK_REALTIME`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// Returns the current time.
    #[must_use]
    pub fn now() -> Self {
        let nanos = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => {
                i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos)
            }
        };
        Self(nanos)
    }
}

/// A session's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub Arc<str>);

/// A run's id, unique within its session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub Arc<str>);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The identity of an existing target: its device, inode and generation (contract F3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The host's device number.
    pub dev: u64,
    /// The host's inode number.
    pub ino: u64,
    /// What tells two uses of one inode number apart: a digest of the file handle.
    pub generation: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}:{:x}", self.dev, self.ino, self.generation)
    }
}

/// The version of a file's content (contract F6), without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime: i64,
    /// Change time, nanoseconds since the epoch.
    pub ctime: i64,
}

/// What was done. The names are those of the contract's section 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is named for the system call or the contract's word")]
pub enum Op {
    Read,
    Write,
    Create,
    Mkdir,
    Mknod,
    Symlink,
    Link,
    Rename,
    Unlink,
    Rmdir,
    Truncate,
    Chmod,
    Chown,
    Utimes,
    Setxattr,
    Removexattr,
    Fallocate,
    Copy,
    Readdir,
    Exec,
    Publish,
    Conflict,
    HostChange,
    Gap,
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 24] = [
        Self::Read,
        Self::Write,
        Self::Create,
        Self::Mkdir,
        Self::Mknod,
        Self::Symlink,
        Self::Link,
        Self::Rename,
        Self::Unlink,
        Self::Rmdir,
        Self::Truncate,
        Self::Chmod,
        Self::Chown,
        Self::Utimes,
        Self::Setxattr,
        Self::Removexattr,
        Self::Fallocate,
        Self::Copy,
        Self::Readdir,
        Self::Exec,
        Self::Publish,
        Self::Conflict,
        Self::HostChange,
        Self::Gap,
    ];

    /// Returns the operation's stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::Mkdir => "mkdir",
            Self::Mknod => "mknod",
            Self::Symlink => "symlink",
            Self::Link => "link",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Rmdir => "rmdir",
            Self::Truncate => "truncate",
            Self::Chmod => "chmod",
            Self::Chown => "chown",
            Self::Utimes => "utimes",
            Self::Setxattr => "setxattr",
            Self::Removexattr => "removexattr",
            Self::Fallocate => "fallocate",
            Self::Copy => "copy",
            Self::Readdir => "readdir",
            Self::Exec => "exec",
            Self::Publish => "publish",
            Self::Conflict => "conflict",
            Self::HostChange => "host-change",
            Self::Gap => "gap",
        }
    }

    /// Returns the operation with this stable name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.as_str() == name)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Ok,
    /// The policy refused it; the program saw `errno`.
    Denied {
        /// The refusal.
        denial: Arc<Denial>,
        /// What the program saw.
        errno: i32,
    },
    /// It was allowed and failed.
    Error {
        /// What the program saw.
        errno: i32,
    },
}

/// How changed content reached its name (contract F5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Publication {
    /// In one step.
    Atomic,
    /// As it was written.
    InPlace,
}

/// Who did it. Shared by all events of one process image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process id as the host sees it.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22); with `pid` it names a process for good.
    pub start_time: u64,
    /// Parent's process id at the time of first sight.
    pub ppid: u32,
    /// Path of the executable; empty if it couldn't be read.
    pub exe: PathBuf,
    /// `/proc/PID/comm`.
    pub comm: Vec<u8>,
    /// `/proc/PID/cmdline`, arguments separated by NUL.
    pub cmdline: Vec<u8>,
    /// User id the request was made with.
    pub uid: u32,
}

/// One event. The store adds the sequence number and the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it ended (for a coalesced event, when it was closed).
    pub time: Time,
    /// Who did it.
    pub process: Arc<Process>,
    /// What was done.
    pub op: Op,
    /// The target, absolute, as the program sees it.
    pub path: PathBuf,
    /// The other end: the new name of a rename or link, the target of a copy, where a conflict's content was kept.
    pub path2: Option<PathBuf>,
    /// The target's identity, where it exists.
    pub key: Option<Key>,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes read; `None` when the kernel's passthrough hid them.
    pub bytes_read: Option<u64>,
    /// Bytes written; `None` when the kernel's passthrough hid them.
    pub bytes_written: Option<u64>,
    /// The content before; for a rename, that of the file it displaced.
    pub version_before: Option<Version>,
    /// The content after.
    pub version_after: Option<Version>,
    /// How changed content reached its name.
    pub publication: Option<Publication>,
    /// What the guard would have refused, were it enforced (`--guard audit`).
    pub noted: Option<Arc<Denial>>,
    /// How many operations this event stands for; 2 for a rename that exchanges two names.
    pub count: u64,
}

/// Takes events. Called on the path of a system call: an implementation queues and returns, and only waits when its
/// bounded queue is full (nothing is dropped silently, contract O1).
pub trait Sink: Send + Sync + 'static {
    /// Takes one event.
    fn record(&self, event: Event);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_names_round_trip() {
        for op in Op::ALL {
            assert_eq!(Op::from_name(op.as_str()), Some(op));
        }
    }
}
