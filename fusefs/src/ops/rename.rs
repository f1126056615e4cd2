//! Names that move.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::RenameFlags;
use stockade_observe::Op;

use crate::error::FsResult;
use crate::fs::{Caller, Fs};
use crate::host;

impl Fs {
    /// `renameat2(2)` with all its flags. Both ends must be ours to change.
    pub fn rename(
        &self,
        caller: Caller,
        (from, from_name): (u64, &OsStr),
        (to, to_name): (u64, &OsStr),
        flags: RenameFlags,
    ) -> FsResult<()> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        let (from_component, to_component) =
            (host::component(from_name)?, host::component(to_name)?);
        let (from_dir, to_dir) = (self.table.pin(&from)?, self.table.pin(&to)?);
        let (from_path, to_path) = (self.path_at(&from, from_name), self.path_at(&to, to_name));
        let mut event = Self::event(self.who(caller), Op::Rename, from_path.clone(), None);
        event.path2 = Some(to_path.clone());
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let (mut moved, mut displaced) = (None, None);
        let result =
            self.may_change(&from_path).and_then(|()| self.may_change(&to_path)).and_then(|()| {
                moved = self.victim(&from, from_dir.as_fd(), from_name);
                displaced = self.victim(&to, to_dir.as_fd(), to_name);
                // The zones of what moves hold wherever it is known; a file with a denied alias stays where it is.
                for (_, node) in moved.iter().chain(displaced.iter().filter(|_| exchange)) {
                    if let Some(node) = node {
                        self.may_write(node)?;
                    }
                }
                if !exchange {
                    self.watches.removing(&from, from_name);
                }
                Ok(rustix::fs::renameat_with(
                    &*from_dir,
                    &from_component,
                    &*to_dir,
                    &to_component,
                    flags,
                )?)
            });
        if let Some((stat, node)) = &displaced {
            event.version_before = Some(stat.version());
            if event.key.is_none() {
                event.key = node.as_ref().map(|node| node.key);
            }
        }
        if let Some((stat, node)) = &moved {
            event.version_after = Some(stat.version());
            event.key = node.as_ref().map(|node| node.key).or(event.key);
        }
        if result.is_ok() {
            let same = moved
                .as_ref()
                .zip(displaced.as_ref())
                .is_some_and(|((a, _), (b, _))| (a.dev, a.ino) == (b.dev, b.ino));
            // Renaming a file onto another of its own names does nothing (rename(2)).
            if !same || exchange {
                let directory =
                    [&moved, &displaced].into_iter().flatten().any(|(stat, _)| stat.is_dir());
                if let Some((_, Some(node))) = &displaced {
                    node.remove_name(&to, to_name);
                }
                if let Some((_, Some(node))) = &moved {
                    node.remove_name(&from, from_name);
                    node.add_name(&to, to_name);
                }
                if exchange && let Some((_, Some(node))) = &displaced {
                    node.add_name(&from, from_name);
                }
                if directory {
                    self.paths_moved();
                }
            }
        }
        self.audited(event, result)
    }
}
