//! What an event says about the path it names.

use std::ops::BitOr;

use crate::event::{Event, Op, Outcome};

/// The ways in which a program touched a path; a set of bits whose values are part of the store's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Touch(u16);

impl Touch {
    /// Its content was read.
    pub const READ: Self = Self(1);
    /// Its content was written.
    pub const WRITTEN: Self = Self(1 << 1);
    /// It was made.
    pub const CREATED: Self = Self(1 << 2);
    /// It was deleted.
    pub const DELETED: Self = Self(1 << 3);
    /// It was given another name.
    pub const MOVED_AWAY: Self = Self(1 << 4);
    /// Something else was given its name.
    pub const MOVED_HERE: Self = Self(1 << 5);
    /// Its mode, owner, times or attributes were changed.
    pub const METADATA: Self = Self(1 << 6);
    /// It was executed.
    pub const EXECUTED: Self = Self(1 << 7);
    /// It was listed.
    pub const LISTED: Self = Self(1 << 8);
    /// Something was refused.
    pub const DENIED: Self = Self(1 << 9);
    /// Something failed.
    pub const FAILED: Self = Self(1 << 10);
    /// It was changed from outside.
    pub const HOST: Self = Self(1 << 11);
    /// Every way of changing it.
    pub const CHANGED: Self = Self(
        Self::WRITTEN.0
            | Self::CREATED.0
            | Self::DELETED.0
            | Self::MOVED_AWAY.0
            | Self::MOVED_HERE.0
            | Self::METADATA.0,
    );

    /// Returns the bits as the store keeps them.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Makes a set of the store's bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns whether all of `other` is in here.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any of `other` is in here.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns what an event says about its path and about its second path.
    #[must_use]
    pub fn of(event: &Event) -> (Self, Self) {
        match event.outcome {
            Outcome::Denied { .. } => return (Self::DENIED, Self::DENIED),
            Outcome::Error { .. } => return (Self::FAILED, Self::FAILED),
            Outcome::Ok => {}
        }
        match event.op {
            Op::Read => (Self::READ, Self::READ),
            Op::Exec => (Self::EXECUTED, Self::EXECUTED),
            Op::Readdir => (Self::LISTED, Self::LISTED),
            Op::Write | Op::Truncate | Op::Fallocate | Op::Publish => {
                (if is_change(event) { Self::WRITTEN } else { Self::default() }, Self::default())
            }
            Op::Copy => {
                (Self::READ, if is_change(event) { Self::WRITTEN } else { Self::default() })
            }
            Op::Create | Op::Mkdir | Op::Mknod | Op::Symlink => (Self::CREATED, Self::default()),
            Op::Link => (Self::default(), Self::CREATED),
            Op::Rename => (Self::MOVED_AWAY, Self::MOVED_HERE),
            Op::Unlink | Op::Rmdir => (Self::DELETED, Self::default()),
            Op::Chmod | Op::Chown | Op::Utimes | Op::Setxattr | Op::Removexattr => {
                (Self::METADATA, Self::default())
            }
            Op::HostChange => (Self::HOST, Self::HOST),
            Op::Conflict | Op::Gap => (Self::FAILED, Self::default()),
        }
    }
}

impl BitOr for Touch {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Returns whether the event changed something. A file that was opened for writing and closed as it was, wasn't.
#[must_use]
pub fn is_change(event: &Event) -> bool {
    if event.outcome != Outcome::Ok {
        return false;
    }
    match event.op {
        Op::Create
        | Op::Mkdir
        | Op::Mknod
        | Op::Symlink
        | Op::Link
        | Op::Unlink
        | Op::Rmdir
        | Op::Chmod
        | Op::Chown
        | Op::Utimes
        | Op::Setxattr
        | Op::Removexattr => true,
        // A file renamed onto another of its own names stays as it is (rename(2)).
        Op::Rename => event.version_before.is_none() || event.version_before != event.version_after,
        Op::Write | Op::Truncate | Op::Fallocate | Op::Copy | Op::Publish => {
            match (event.version_before, event.version_after) {
                (Some(before), Some(after)) => before != after,
                (None, _) | (_, None) => event.bytes_written != Some(0),
            }
        }
        Op::Read | Op::Readdir | Op::Exec | Op::Conflict | Op::HostChange | Op::Gap => false,
    }
}
