//! What can be done.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One step: who does what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The process.
    pub who: usize,
    /// What it does.
    pub what: Operation,
}

/// A sequence of steps in an empty directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The steps.
    pub steps: Vec<Step>,
    /// Whether the account says what everything looks like after each step, or its digest.
    pub verbose: bool,
    /// Everything is looked at after each so many steps.
    pub every: usize,
}

/// This many processes take part.
pub const PROCESSES: usize = 3;
/// Each holds so many open files.
pub const SLOTS: usize = 3;

/// The names that paths are made of.
const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d\xff", b"e e"];

/// A path below the directory of the case: indices of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.0
            .iter()
            .map(|index| OsString::from_vec(NAMES[usize::from(*index) % NAMES.len()].to_vec()))
            .collect()
    }
}

/// A time that is set: an index into a list, `None` for now or for leaving it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Set {
    /// This one.
    At(i64, u32),
    /// The current time.
    Now,
    /// As it is.
    Keep,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the system call of its name")]
pub enum Operation {
    Open { slot: usize, at: Name, flags: u32, mode: u32 },
    Close { slot: usize },
    Dup { from: usize, to: usize },
    Read { slot: usize, length: usize },
    PRead { slot: usize, offset: u64, length: usize },
    Write { slot: usize, length: usize, byte: u8 },
    PWrite { slot: usize, offset: u64, length: usize, byte: u8 },
    Seek { slot: usize, offset: i64, whence: i32 },
    FTruncate { slot: usize, length: u64 },
    Truncate { at: Name, length: u64 },
    Allocate { slot: usize, mode: u32, offset: u64, length: u64 },
    CopyRange { from: usize, from_at: u64, to: usize, to_at: u64, length: usize },
    Sync { slot: usize },
    FStat { slot: usize },
    FChmod { slot: usize, mode: u32 },
    FUtimes { slot: usize, access: Set, modification: Set },
    Map { slot: usize },
    MapWrite { offset: usize, length: usize, byte: u8 },
    MapRead { offset: usize, length: usize },
    Unmap,
    Rename { from: Name, to: Name, flags: u32 },
    Link { from: Name, to: Name, follow: bool },
    Symlink { target: Name, at: Name },
    Unlink { at: Name },
    RmDir { at: Name },
    MkDir { at: Name, mode: u32 },
    MkNod { at: Name, fifo: bool, mode: u32 },
    Chmod { at: Name, mode: u32 },
    Chown { at: Name, follow: bool },
    Utimes { at: Name, access: Set, modification: Set, follow: bool },
    SetXattr { at: Name, name: u8, value: u8, length: usize, flags: u32 },
    GetXattr { at: Name, name: u8 },
    RemoveXattr { at: Name, name: u8 },
    List { at: Name },
    Stat { at: Name, follow: bool },
    ReadLink { at: Name },
    Access { at: Name, mode: u32 },
    ChDir { at: Name },
}
