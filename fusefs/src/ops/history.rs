//! What is kept before it changes (`--keep-history`; `stockade_observe::history` says what for). Without a history nothing here
//! costs more than a look at an `Option`.
//!
//! Each of these is called before the host is touched, but [`Fs::keeps_made`] and [`Fs::keeps_left`].

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use stockade_observe::Key;
use stockade_observe::history::{Id, Keeper};

use crate::fs::Fs;
use crate::handle::FileHandle;
use crate::host::{self, Stat};
use crate::node::{Name, Node};

/// A name that is about to lead elsewhere.
#[derive(Debug)]
#[must_use = "say how it ended"]
pub struct Turn {
    number: u64,
    /// Held by a link, in case it comes to nothing.
    held: Option<Id>,
}

impl Fs {
    fn below(&self, parent: &Arc<Node>, name: &[u8]) -> PathBuf {
        let path = self.path_at(parent, OsStr::from_bytes(name));
        path.strip_prefix(&self.base).map(PathBuf::from).unwrap_or(path)
    }

    /// Mentions a directory, and those above it.
    fn mention(&self, keeper: &Keeper, dir: &Arc<Node>) -> Id {
        let id = Id::from(dir.key());
        if !keeper.knows_directory(id)
            && let Some(name) = dir.name()
        {
            let parent = self.mention(keeper, &name.parent);
            keeper.directory(id, parent, name.name.as_bytes());
        }
        id
    }

    /// Keeps the attributes of what `pin` stands for, which is called `name` in `parent`.
    fn keep_file(
        &self,
        keeper: &Keeper,
        id: Id,
        parent: &Arc<Node>,
        name: &[u8],
        pin: BorrowedFd<'_>,
    ) {
        if !keeper.needs_file(id) {
            return;
        }
        match stockade_observe::history::attributes(pin) {
            Ok(file) => {
                let at = self.mention(keeper, parent);
                keeper.file(id, at, name, file);
            }
            Err(error) => {
                let why = format!("its attributes couldn't be kept: {error}");
                keeper.gap(&self.below(parent, name), &why);
            }
        }
    }

    /// Keeps the times of a directory in which something is about to change.
    pub(crate) fn keeps_directory(&self, dir: &Arc<Node>) {
        let Some(keeper) = &self.history else { return };
        let id = self.mention(keeper, dir);
        if keeper.needs_file(id)
            && let Ok(pin) = self.table.pin(dir)
        {
            match dir.name() {
                Some(name) => {
                    self.keep_file(keeper, id, &name.parent, name.name.as_bytes(), pin.as_fd());
                }
                None => self.keep_file(keeper, id, dir, b"", pin.as_fd()),
            }
        }
    }

    /// A name is about to lead to `after`; with `loses`, what it leads to loses it.
    pub(crate) fn keeps_entry(
        &self,
        parent: &Arc<Node>,
        dir: &OwnedFd,
        name: &CString,
        after: Option<Key>,
        loses: bool,
    ) -> Option<Turn> {
        let keeper = self.history.as_ref()?;
        self.keeps_directory(parent);
        let mut held = None;
        let found = host::stat_at(dir.as_fd(), name).ok();
        let before = found.map(|stat| {
            let generation = host::generation(dir.as_fd(), name);
            let id = Id(stat.dev, stat.ino, generation);
            if loses && self.keep_lost(keeper, id, parent, dir, name, &stat) {
                held = Some(id);
            }
            id
        });
        let at = self.mention(keeper, parent);
        let number = keeper.entry(at, name.as_bytes(), before, after.map(Id::from));
        Some(Turn { number, held })
    }

    /// Keeps what is about to lose a name; says whether it is held by a link now.
    fn keep_lost(
        &self,
        keeper: &Keeper,
        id: Id,
        parent: &Arc<Node>,
        dir: &OwnedFd,
        name: &CString,
        stat: &Stat,
    ) -> bool {
        let name_bytes = name.as_bytes();
        if !stat.is_dir() && stat.nlink > 1 {
            // It isn't lost with this name.
            let other =
                |one: &Name| one.parent.id != parent.id || one.name.as_bytes() != name_bytes;
            if let Some(node) = self.table.peek(stat)
                && let Some(other) = node.names().into_iter().rev().find(other)
            {
                let at = self.mention(keeper, &other.parent);
                keeper.name(id, at, other.name.as_bytes());
            }
            return false;
        }
        let Ok(pin) = host::pin_at(dir.as_fd(), name) else { return false };
        self.keep_file(keeper, id, parent, name_bytes, pin.as_fd());
        stat.is_regular() && keeper.content(id, pin.as_fd(), true, &self.below(parent, name_bytes))
    }

    /// Says how the change of a name ended.
    pub(crate) fn keeps_turn(&self, turn: Option<Turn>, done: bool) {
        if let (Some(keeper), Some(turn), false) = (&self.history, turn, done) {
            keeper.void(turn.number);
            if let Some(id) = turn.held {
                keeper.release(id);
            }
        }
    }

    /// A file gets an inode of its own in the place of one that has other names: `old` is the one that has them.
    pub(crate) fn keeps_shared(&self, name: &Name, old: &OwnedFd, key: Key) {
        let Some(keeper) = &self.history else { return };
        let (id, bytes) = (Id::from(key), name.name.as_bytes());
        self.keep_file(keeper, id, &name.parent, bytes, old.as_fd());
        // Without a link to it there would be no way back to the file that it shares.
        keeper.content(id, old.as_fd(), true, &self.below(&name.parent, bytes));
    }

    /// The run makes a file.
    pub(crate) fn keeps_born(&self, key: Key) {
        if let Some(keeper) = &self.history {
            keeper.born(key.into());
        }
    }

    /// A file that the run made is about to have its name, as it is now; one that was `cut` has it again.
    pub(crate) fn keeps_staged(&self, fd: &OwnedFd, cut: bool) -> Option<Key> {
        let keeper = self.history.as_ref()?;
        let key = host::key_of(fd.as_fd(), &host::stat_fd(fd.as_fd()).ok()?);
        if !cut {
            keeper.born(key.into());
        }
        keeper.left_as(key.into(), fd.as_fd());
        Some(key)
    }

    /// The run has made a name for a file of its own.
    pub(crate) fn keeps_made(&self, parent: &Arc<Node>, dir: &OwnedFd, name: &CString, key: Key) {
        let Some(keeper) = &self.history else { return };
        let id = Id::from(key);
        keeper.born(id);
        if let Ok(pin) = host::pin_at(dir.as_fd(), name) {
            keeper.left_as(id, pin.as_fd());
        }
        let at = self.mention(keeper, parent);
        keeper.entry(at, name.as_bytes(), None, Some(id));
    }

    /// A file's attributes are about to change, and its content where `writes` says so.
    pub(crate) fn keeps_inode(&self, node: &Arc<Node>, writes: bool) {
        let Some(keeper) = &self.history else { return };
        let id = Id::from(node.key());
        if !keeper.is_born(id) {
            let (Ok(pin), name) = (self.table.pin(node), node.name()) else { return };
            let (parent, bytes) = match &name {
                Some(name) => (&name.parent, name.name.as_bytes()),
                None => (node, &b""[..]),
            };
            self.keep_file(keeper, id, parent, bytes, pin.as_fd());
            if writes {
                // Putting it back will go through its directory.
                self.keeps_directory(parent);
                if keeper.holds(id) {
                    // It has no name any more, but is written to all the same: what is kept must not change.
                    keeper.release(id);
                }
                keeper.content(id, pin.as_fd(), false, &self.below(parent, bytes));
            }
        }
        if writes {
            keeper.left(id, None);
        }
    }

    /// A node's file is as the run leaves it, for now.
    pub(crate) fn keeps_left(&self, pin: BorrowedFd<'_>) {
        let Some(keeper) = &self.history else { return };
        if let Ok(stat) = host::stat_fd(pin) {
            keeper.left_as(host::key_of(pin, &stat).into(), pin);
        }
    }

    /// The same, by node.
    pub(crate) fn keeps_node_left(&self, node: &Arc<Node>) {
        if self.history.is_some()
            && let Ok(pin) = self.table.pin(node)
        {
            self.keeps_left(pin.as_fd());
        }
    }

    /// The same for an open file that may have been written.
    pub(crate) fn keeps_closed(&self, file: &FileHandle) {
        if self.history.is_some()
            && file.writable()
            && let Some(fd) = file.fd.get()
        {
            self.keeps_left(fd.as_fd());
        }
    }

    /// Tells whether the history holds a file by a link, which isn't a name of it.
    pub(crate) fn keeps_link(&self, node: &Node) -> bool {
        self.history.as_ref().is_some_and(|keeper| keeper.holds(node.key().into()))
    }
}
