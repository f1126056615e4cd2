//! Names that move.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use stockade_observe::{Event, Key, Op};
use stockade_policy::{EntryKind, Guard};

use super::guard::Noted;
use super::history::Turn;
use crate::error::{FsError, FsResult};
use crate::fs::{Caller, Fs, allowed, entry_kind};
use crate::host::{self, Stat};
use crate::node::{Naming, Node};
use crate::ops::not_staged;

/// One end of a rename.
struct End<'a> {
    parent: Arc<Node>,
    dir: Arc<OwnedFd>,
    name: &'a OsStr,
    component: CString,
    path: PathBuf,
    _naming: Naming,
    /// What stands there, and its node if the kernel knows it.
    there: Option<(Stat, Option<Arc<Node>>)>,
}

impl End<'_> {
    fn kind(&self) -> EntryKind {
        self.there.as_ref().map_or(EntryKind::File, |(stat, _)| entry_kind(stat.file_type()))
    }

    /// Tells whether both are names of one file.
    fn is(&self, other: &Self) -> bool {
        let inode = |end: &Self| end.there.as_ref().map(|(stat, _)| (stat.dev, stat.ino));
        inode(self).is_some() && inode(self) == inode(other)
    }

    fn node(&self) -> Option<&Arc<Node>> {
        self.there.as_ref().and_then(|(_, node)| node.as_ref())
    }
}

impl Fs {
    fn end<'a>(&self, parent: u64, name: &'a OsStr) -> FsResult<End<'a>> {
        let parent = self.node(parent)?;
        let dir = self.inside(&parent)?;
        let path = self.path_at(&parent, name);
        let component = host::component(name)?;
        let naming = Naming::within(&parent);
        Ok(End { component, parent, dir, name, path, there: None, _naming: naming })
    }

    fn look(&self, end: &mut End<'_>) {
        end.there = self.victim(&end.parent, end.dir.as_fd(), end.name);
    }

    /// `renameat2(2)` with all its flags. Both ends must be ours to change.
    pub fn rename(
        &self,
        caller: Caller,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        flags: RenameFlags,
    ) -> FsResult<()> {
        let (mut from, mut to) = (self.end(from.0, from.1)?, self.end(to.0, to.1)?);
        let mut event = Self::event(self.who(caller), Op::Rename, from.path.clone(), None);
        event.path2 = Some(to.path.clone());
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        self.look(&mut from);
        self.look(&mut to);
        // Nobody may start writing to what is judged here until it has its new name.
        let moving = from.node().cloned();
        let gate = moving.as_ref().map(|node| node.gate.lock());
        let result = self.move_entry(&mut from, &mut to, exchange, flags);
        let result = result.map(|noted| event.noted = noted);
        describe(&mut event, &from, &to);
        if result.is_ok() {
            self.renamed(&from, &to, exchange);
            if exchange {
                // What tells an exchange from a replacement in the log.
                event.count = 2;
            }
        }
        if result.is_err() || from.is(&to) {
            self.watches.filled(&from.parent, from.name);
        }
        drop(gate);
        self.audited(event, result)
    }

    fn move_entry(
        &self,
        from: &mut End<'_>,
        to: &mut End<'_>,
        exchange: bool,
        flags: RenameFlags,
    ) -> FsResult<Noted> {
        not_staged(to.name)?;
        allowed(self.rules.rename_refused(&from.path, &to.path, from.kind()))?;
        if exchange {
            allowed(self.rules.rename_refused(&to.path, &from.path, to.kind()))?;
            // One step, two contents to judge: git never does that.
            for path in [&from.path, &to.path] {
                if self.rules.config_kind(path).is_some() {
                    allowed(self.rules.zone(path).write)?;
                }
            }
        }
        // The rules hold for each name that a file is known by; one with a denied alias stays where it is.
        self.settle_ends(from, to, exchange, flags)?;
        self.may_go(from.node())?;
        if exchange {
            self.may_go(to.node())?;
        }
        if self.rules.config_kind(&to.path).is_some() {
            self.judge_move(
                from.node(),
                &to.path,
                to.there.as_ref(),
                to.dir.as_fd(),
                &to.component,
            )?;
            self.look(from);
        }
        if !exchange {
            self.watches.removing(&from.parent, from.name);
        }
        let turns = self.keeps_move(from, to, exchange);
        let moved = if exchange || flags.contains(RenameFlags::NOREPLACE) || from.is(to) {
            // Nothing is lost.
            let rename = rustix::fs::renameat_with(
                &*from.dir,
                &from.component,
                &*to.dir,
                &to.component,
                flags,
            );
            rename.map(|()| None).map_err(FsError::from)
        } else {
            self.replace(from, to, flags)
        };
        for turn in turns {
            self.keeps_turn(turn, moved.is_ok());
        }
        let noted = moved?;
        if !exchange && let Some(node) = to.node() {
            // It is displaced: what was staged for it has no name any more.
            self.orphan(node);
        }
        Ok(noted)
    }

    /// Keeps what both ends lead to before they lead elsewhere.
    fn keeps_move(&self, from: &End<'_>, to: &End<'_>, exchange: bool) -> [Option<Turn>; 2] {
        if self.history.is_none() || from.is(to) {
            return [None, None];
        }
        let there = |end: &End<'_>| {
            let stat = host::stat_at(end.dir.as_fd(), &end.component).ok()?;
            let generation = host::generation(end.dir.as_fd(), &end.component);
            Some(Key { dev: stat.dev, ino: stat.ino, generation })
        };
        let (moving, other) = (there(from), there(to).filter(|_| exchange));
        let arrives = self.keeps_entry(&to.parent, &to.dir, &to.component, moving, !exchange);
        let leaves = self.keeps_entry(&from.parent, &from.dir, &from.component, other, false);
        [leaves, arrives]
    }

    /// Moves an entry to a name, over what may stand there.
    fn replace(&self, from: &End<'_>, to: &End<'_>, flags: RenameFlags) -> FsResult<Noted> {
        let noted = self.loss_at(&to.parent, &to.dir, to.name, to.there.as_ref())?;
        let file = |end: &End<'_>| end.there.as_ref().is_some_and(|(stat, _)| stat.is_regular());
        if self.guard == Guard::Enforce && file(from) && (file(to) || to.there.is_none()) {
            // Of what is being created under the name the host knows nothing; of a rewrite it has the old file.
            let expected = self.expected(to.there.as_ref());
            self.move_over(
                (&from.dir, &from.component),
                (&to.dir, &to.component),
                expected.as_ref(),
            )?;
        } else {
            rustix::fs::renameat_with(&*from.dir, &from.component, &*to.dir, &to.component, flags)?;
        }
        Ok(noted)
    }

    /// Publishes what the rename moves, and refuses what it would trample (`S1` of `ops/stage.rs`).
    fn settle_ends(
        &self,
        from: &mut End<'_>,
        to: &mut End<'_>,
        exchange: bool,
        flags: RenameFlags,
    ) -> FsResult<()> {
        let staged = |end: &End<'_>| self.overlay.get(end.parent.id, end.name);
        if let Some(node) = staged(from) {
            self.publish(&node)?;
            self.look(from);
        }
        if let Some(node) = staged(to) {
            if flags.contains(RenameFlags::NOREPLACE) {
                return Err(Errno::EXIST.into());
            }
            if exchange || from.kind() == EntryKind::Directory {
                self.publish(&node)?;
                self.look(to);
            }
        }
        if !exchange && to.kind() == EntryKind::Directory && self.holds_staged(to.node()) {
            return Err(Errno::NOTEMPTY.into());
        }
        Ok(())
    }

    fn may_go(&self, node: Option<&Arc<Node>>) -> FsResult<()> {
        let Some(node) = node else { return Ok(()) };
        let may = |path: &Path| self.may_remove(path);
        node.names().iter().try_for_each(|name| may(&self.path_at(&name.parent, &name.name)))
    }

    /// Keeps the nodes' names after a rename.
    fn renamed(&self, from: &End<'_>, to: &End<'_>, exchange: bool) {
        // Renaming a file onto another of its own names does nothing (rename(2)).
        if from.is(to) && !exchange {
            return;
        }
        if !exchange {
            self.observed.absent(from.parent.key(), from.name);
        }
        self.observed.filled(to.parent.key(), to.name);
        self.watches.filled(&to.parent, to.name);
        for end in [from, to] {
            // The move itself has moved the change time, also of what it displaced and has another name.
            if let Some((stat, Some(node))) = &end.there {
                self.touched(node, stat);
            }
        }
        if let Some(node) = to.node() {
            node.remove_name(&to.parent, to.name);
        }
        if let Some(node) = from.node() {
            node.remove_name(&from.parent, from.name);
            node.add_name(&to.parent, to.name);
        }
        if exchange && let Some(node) = to.node() {
            node.add_name(&from.parent, from.name);
        }
        if from.kind() == EntryKind::Directory || to.kind() == EntryKind::Directory {
            self.paths_moved();
        }
    }
}

fn describe(event: &mut Event, from: &End<'_>, to: &End<'_>) {
    event.key = from.node().or(to.node()).map(|node| node.key());
    event.version_before = to.there.as_ref().map(|(stat, _)| stat.version());
    event.version_after = from.there.as_ref().map(|(stat, _)| stat.version());
}
