//! Rewrites that begin by cutting the file to nothing, by `ftruncate(2)` or `truncate(2)` (contract F5).
//!
//! Only what a program cuts that has written nothing to the file since it opened it, and that nobody else has open for
//! writing: others work in place.
//!
//! Whoever has the file open has its inode, passed through by the kernel or mapped even, and goes on writing to that. So
//! here it isn't the writer who gets another inode, it's the host: its name leads to a copy of the old content for the
//! time being, and the inode waits under a hidden name, until the publication exchanges the two again. Inside nothing of
//! this shows: the node stands for the same inode throughout.
//!
//! What was cut by its path is nobody's to close: it is published a moment later, unless the program opens it for writing
//! until then.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use stockade_observe::Process;

use super::fresh::{copy_attributes, copy_content};
use super::stage::{Base, Hidden, Staged};
use crate::error::{FsError, FsResult};
use crate::fail::{self, Point};
use crate::fs::{Caller, Fs};
use crate::handle::FileHandle;
use crate::host::{self, SET_ID, Stat};
use crate::node::{Name, Node};

/// A file that is larger is cut in place: the copy would take too long.
const LARGEST: u64 = 64 << 20;
/// How long the host doesn't see what was cut by its path.
const MOMENT: Duration = Duration::from_millis(100);

/// Tells whether a file is SQLite's, beside a database (<https://sqlite.org/tempfiles.html>): a hot one is cut by whoever has
/// opened it just then.
fn is_journal(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    [&b"-journal"[..], b"-wal", b"-shm"].iter().any(|end| name.ends_with(end))
}

impl Fs {
    /// Cuts a file to nothing as the beginning of a rewrite, by `file` or by its path. `false` if it must be done in place.
    ///
    /// # Errors
    /// The host refuses to cut it.
    pub(super) fn cut(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        file: Option<&FileHandle>,
        who: &Arc<Process>,
    ) -> FsResult<bool> {
        let may = file.map_or_else(|| self.watches.can_wait(), |file| !file.judged);
        let path = self.path(node);
        // Who else writes to it relies on it as it is.
        let alone = node.writers.load(Ordering::Acquire) <= usize::from(file.is_some());
        if !may || !alone || is_journal(&path) || !self.stages(&path) {
            return Ok(false);
        }
        // The content of what was closed just now may still be on its way.
        if file.is_none()
            && let Err(error) = self.settle_node(node)
        {
            tracing::warn!(?error, "staged content wasn't published");
            return Err(FsError::Stale);
        }
        let slot = node.staged.lock();
        if slot.as_ref().is_some_and(Staged::is_cut) {
            // What was written since it was cut is whole to its program, which is done with it.
            drop(slot);
            if let Err(error) = self.publish(node) {
                tracing::debug!(?error, "what was cut before stays staged");
            }
            return Ok(false);
        }
        let mut slot = slot;
        let pin = self.table.pin(node)?;
        let stat = host::stat_fd(pin.as_fd())?;
        // A program that has written to it since it opened it works in place, as databases do with their journals: cutting
        // one is what commits a transaction, and must not be taken back with the program's death.
        if let Some(file) = file
            && !file
                .opened
                .is_some_and(|was| was.size == stat.size && was.mtime == stat.mtime.nanos())
        {
            return Ok(false);
        }
        // Whether a set-id bit stays depends on who writes, and the copy has the mode.
        let suits = stat.is_regular() && stat.nlink == 1 && stat.mode & SET_ID == 0;
        if slot.is_some() || !suits || stat.size > LARGEST {
            return Ok(false);
        }
        let place = node.names().into_iter().rev().find(|name| self.leads(node, name).is_some());
        let Some(place) = place else { return Ok(false) };
        match self.try_cut(caller, node, &place, &stat, who) {
            Ok(staged) => *slot = Some(staged),
            Err(error) => {
                tracing::debug!(?error, "a file is cut in place");
                return Ok(false);
            }
        }
        drop(slot);
        match file {
            Some(file) => file.staged.store(true, Ordering::Release),
            None => self.watches.publish_at(Instant::now() + MOMENT, node),
        }
        Ok(true)
    }

    fn try_cut(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        place: &Name,
        stat: &Stat,
        who: &Arc<Process>,
    ) -> FsResult<Staged> {
        let name = host::component(&place.name)?;
        let dir = self.inside(&place.parent)?;
        let pin = self.table.pin(node)?;
        let fd = Arc::new(self.self_fd.open_pin(pin.as_fd(), OFlags::RDWR | OFlags::NONBLOCK)?);
        let copy = self.stage_create(&dir, Mode::RUSR | Mode::WUSR)?;
        copy_content(&fd, &copy, stat.size)?;
        copy_attributes(&fd, &copy, stat)?;
        let key = host::key_of(copy.as_fd(), &host::stat_fd(copy.as_fd())?);
        self.keeps_directory(&place.parent);
        self.keeps_staged(&copy, false);
        self.journal.note(dir.as_fd());
        let hidden = Hidden::new(&dir)?;
        let _lock = self.lock_names(&dir);
        self.self_fd.link(copy.as_fd(), dir.as_fd(), &hidden.name)?;
        hidden.is_there(true);
        fail::reached(Point::Copied);
        self.overlay.insert(place.parent.id, &place.name, node);
        let exchange = || {
            Ok(rustix::fs::renameat_with(&*dir, &hidden.name, &*dir, &name, RenameFlags::EXCHANGE)?)
        };
        let turn = self.keeps_entry(&place.parent, &dir, &name, Some(key), false);
        let exchanged = self.unnoticed(&place.parent, &dir, exchange);
        self.keeps_turn(turn, exchanged.is_ok());
        let cut = exchanged.and_then(|()| {
            fail::reached(Point::Parted);
            let found = host::stat_at(dir.as_fd(), &hidden.name);
            let same = found.is_ok_and(|found| {
                let content = |stat: &Stat| (stat.dev, stat.ino, stat.size, stat.mtime);
                content(&found) == content(stat)
            });
            let cut = if same {
                self.as_writer(caller, fd.as_fd(), || rustix::fs::ftruncate(&fd, 0))
            } else {
                // It was written to since the copy was made.
                Err(Errno::AGAIN)
            };
            if let Err(errno) = cut {
                let turn = self.keeps_entry(&place.parent, &dir, &name, Some(node.key()), false);
                let back = self.unnoticed(&place.parent, &dir, exchange);
                self.keeps_turn(turn, back.is_ok());
                if let Err(error) = back {
                    // The old content has the name; the inode mustn't be lost with the hidden one.
                    tracing::error!(?error, "a file stands beside its place");
                    hidden.is_there(false);
                }
                return Err(errno.into());
            }
            Ok(())
        });
        let base = cut.and_then(|()| {
            let pin = self.self_fd.open_path(copy.as_fd())?;
            Ok(Base { key, stat: host::stat_fd(pin.as_fd())?, pin: Arc::new(pin) })
        });
        let base = base.inspect_err(|_| self.overlay.remove(place.parent.id, &place.name))?;
        let initial = host::stat_fd(fd.as_fd())?.version();
        Ok(Staged {
            fd,
            base: Some(base),
            place: place.clone(),
            writer: who.clone(),
            initial,
            killed: false,
            hidden: Some(hidden),
            lacks: None,
        })
    }

    /// Publishes what was cut by its path, unless the program that did so has it open for writing by now.
    pub(crate) fn publish_cut(&self, node: &Arc<Node>) {
        let writer = match node.staged.lock().as_ref() {
            Some(staged) => staged.writer.pid,
            None => return,
        };
        let is_open = node.opens.load(Ordering::Acquire) > 0;
        let published = if !is_open {
            self.settle_node(node)
        } else if self
            .handles
            .of(node.id)
            .iter()
            .any(|file| file.writable() && file.who.pid == writer)
        {
            return;
        } else {
            self.publish(node)
        };
        if let Err(error) = published {
            tracing::warn!(?error, "a file that was cut isn't published");
        }
    }

    /// Publishes what nobody has open, at the end of the mount.
    pub(crate) fn settle_all(&self) {
        for node in self.overlay.all() {
            if let Err(error) = self.settle_node(&node) {
                tracing::warn!(?error, "staged content wasn't published");
            }
        }
    }
}
