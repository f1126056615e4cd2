//! The lines of a journal: JSON, one object each.

use crate::Key;
use serde::{Deserialize, Serialize};
use stockade_policy::text::Bytes;

/// The version of the format that is written here.
pub const VERSION: u32 = 1;

/// A file, by identity: device, inode, generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id(pub u64, pub u64, pub u64);

impl From<Key> for Id {
    fn from(key: Key) -> Self {
        Self(key.dev, key.ino, key.generation)
    }
}

/// A file's attributes before its first change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// `st_mode`: kind and permissions.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its size.
    pub size: u64,
    /// Nanoseconds since the epoch.
    pub atime: i64,
    /// The same.
    pub mtime: i64,
    /// What a device node stands for.
    #[serde(default)]
    pub rdev: u64,
    /// Where a symbolic link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Bytes>,
    /// Its extended attributes, ACLs among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<(Bytes, Bytes)>,
}

/// A file's content before its first change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Its name in the history's directory.
    pub number: u64,
    /// Whether it is the very inode, and not a copy.
    pub link: bool,
    /// Its size.
    pub size: u64,
    /// Its modification time, in nanoseconds.
    pub mtime: i64,
}

/// What a run left a file as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// `st_mode`.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its size.
    pub size: u64,
    /// Nanoseconds since the epoch.
    pub mtime: i64,
    /// A digest of its extended attributes, where it's known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattrs: Option<u64>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "r", rename_all = "kebab-case")]
pub enum Record {
    /// The first line.
    Head {
        /// The format that is written.
        v: u32,
        /// Where programs saw it.
        base: Bytes,
        /// Where it is on the host.
        source: Bytes,
        /// The directory there.
        root: Id,
    },
    /// Where a directory is, when it is first mentioned.
    Dir {
        /// The directory.
        id: Id,
        /// The one that holds it.
        parent: Id,
        /// Its name there.
        name: Bytes,
    },
    /// What a file was before its first change.
    File {
        /// The file.
        id: Id,
        /// A directory that holds it.
        at: Id,
        /// Its name there.
        name: Bytes,
        /// Its attributes.
        file: File,
    },
    /// What was in it.
    Content {
        /// The file.
        id: Id,
        /// Where that is kept.
        image: Image,
    },
    /// Its content isn't kept any more, since it isn't lost.
    Released {
        /// The file.
        id: Id,
    },
    /// Another name of a file that loses one.
    Name {
        /// The file.
        id: Id,
        /// A directory that holds it.
        at: Id,
        /// Its name there.
        name: Bytes,
    },
    /// A name that leads elsewhere from now on.
    Entry {
        /// What a [`Record::Void`] refers to.
        n: u64,
        /// The directory.
        at: Id,
        /// The name.
        name: Bytes,
        /// What it led to.
        before: Option<Id>,
        /// What it leads to.
        after: Option<Id>,
    },
    /// The change of an entry failed.
    Void {
        /// Which one.
        n: u64,
    },
    /// The file was made by the run.
    Born {
        /// The file.
        id: Id,
    },
    /// What the file is now; unknown while a program may write to it.
    Left {
        /// The file.
        id: Id,
        /// What it is.
        left: Option<Left>,
    },
    /// Something that was changed and can't be put back.
    Gap {
        /// The path, below the root.
        path: Bytes,
        /// Why.
        why: String,
    },
    /// The last line of a history that is whole.
    Sealed,
}
