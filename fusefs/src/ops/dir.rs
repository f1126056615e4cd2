//! Listing directories.
//!
//! Offsets are the host's own cookies, so `seekdir` and concurrent removal behave as they do there.
//!
//! The kernel keeps the listing of a watched directory, and answers from it as long as each open finds the directory as it
//! was. Such a listing is seen by its open alone. So only what is opened as `opendir(3)` does it, to be listed, gets one
//! from the kernel.

use std::ffi::{CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use stockade_observe::{Op, Version};

use crate::error::FsResult;
use crate::fs::{Caller, Entry, Fs};
use crate::handle::{DirHandle, DirStream, Handle, Listed};
use crate::host;
use crate::node::Node;

/// Offsets with this bit count the names that the host doesn't list: no host's cookie has it, since it would be a
/// negative position.
const EXTRA: u64 = 1 << 63;

/// How old a directory's change must be for its time to tell it from the next one: the host's clock moves in ticks.
const TICK: Duration = Duration::from_millis(20);

/// What the kernel may do with the listing of a directory that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// Ask for it.
    Ask,
    /// Ask for it, and keep the answer.
    Fill,
    /// Use what it has kept.
    Keep,
}

/// How much is read from the host at once.
const CHUNK: usize = 32 * 1024;

impl Fs {
    pub fn opendir(&self, caller: Caller, id: u64, flags: OFlags) -> FsResult<(u64, Listing)> {
        let node = self.node(id)?;
        let pin = self.inside(&node);
        let path = self.path(&node);
        let who = self.who(caller);
        let opened = self.may_read(&node).and_then(|()| {
            let pin = pin?;
            let watched = self.watches.ensure(&node, &pin);
            let fd = self.self_fd.open_pin(pin.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
            let listing = if watched && flags.contains(OFlags::NONBLOCK) {
                kept_listing(&node, &fd)?
            } else {
                (Listing::Ask, None)
            };
            Ok((fd, listing))
        });
        let (fd, (listing, kept)) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let event = Self::event(who, Op::Readdir, path, Some(node.key()));
                return self.audited(event, Err(error));
            }
        };
        let stream = DirStream {
            fd: Arc::new(fd),
            ahead: std::collections::VecDeque::new(),
            extra: Vec::new(),
            at: 0,
            end: false,
        };
        let handle = DirHandle {
            node,
            who,
            path,
            stream: Mutex::new(stream),
            listed: AtomicBool::new(listing == Listing::Keep),
            kept,
        };
        Ok((self.handles.insert(Handle::Dir(Arc::new(handle))), listing))
    }

    /// Lists from `offset` on until `add` answers that there is no more room.
    pub fn readdir(
        &self,
        handle: u64,
        offset: u64,
        mut add: impl FnMut(&Listed, u64) -> bool,
    ) -> FsResult<()> {
        let dir = self.handles.dir(handle)?;
        dir.listed.store(true, Ordering::Relaxed);
        let mut stream = dir.stream.lock();
        self.start(&dir, &mut stream, offset)?;
        while let Some(listed) = stream.peek()? {
            if add(listed, self.number_shown(&dir.node, listed)) {
                break;
            }
            stream.advance();
        }
        dir.is_whole(&stream);
        Ok(())
    }

    /// Lists with attributes. An entry that can't be looked up is handed on without: no name is dropped.
    pub fn readdirplus<'fs>(
        &'fs self,
        handle: u64,
        offset: u64,
        mut add: impl FnMut(&Listed, u64, Option<Entry<'fs>>) -> bool,
    ) -> FsResult<()> {
        let dir = self.handles.dir(handle)?;
        dir.listed.store(true, Ordering::Relaxed);
        let mut stream = dir.stream.lock();
        self.start(&dir, &mut stream, offset)?;
        let fd = stream.fd.clone();
        while let Some(listed) = stream.peek()? {
            let shown = self.number_shown(&dir.node, listed);
            let entry = if is_dot(&listed.name) {
                None
            } else {
                match self.list_entry(&dir.node, fd.as_fd(), &listed.name) {
                    Ok(entry) => Some(entry),
                    // Deleted since the host listed it.
                    Err(crate::error::FsError::Host(Errno::NOENT)) => {
                        stream.advance();
                        continue;
                    }
                    Err(_) => self.held_entry(&dir.node, listed),
                }
            };
            if add(listed, shown, entry) {
                break;
            }
            stream.advance();
        }
        dir.is_whole(&stream);
        Ok(())
    }

    fn list_entry(
        &self,
        parent: &Arc<Node>,
        dir: std::os::fd::BorrowedFd<'_>,
        name: &OsStr,
    ) -> FsResult<Entry<'_>> {
        if let Some(node) = self.overlay.get(parent.id, name) {
            return self.staged_entry(parent, &node);
        }
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        let stat = host::stat_at(dir, &name)?;
        self.entry(parent, dir, &name, stat)
    }

    /// Returns what the kernel knows already and its name doesn't lead to any more, as in a directory that may not be
    /// searched: anything else would be taken for another file, and whoever has this one open gets errors.
    fn held_entry(&self, parent: &Arc<Node>, listed: &Listed) -> Option<Entry<'_>> {
        let found = host::Stat { dev: parent.key().dev, ino: listed.ino, ..host::Stat::default() };
        let node = self.table.peek(&found)?;
        if !node.is_called(parent, &listed.name) {
            return None;
        }
        let pinned = node.held_pin().and_then(|pin| host::stat_fd(pin.as_fd()).ok());
        let opened = || {
            let files = self.handles.of(node.id);
            files.iter().find_map(|file| host::stat_fd(file.fd.get()?.as_fd()).ok())
        };
        let stat = pinned.or_else(opened)?;
        Some(self.answer(parent, self.table.again(&node), stat))
    }

    /// Returns the inode number that a listing shows: the same that `stat` shows, never 0.
    fn number_shown(&self, dir: &Arc<Node>, listed: &Listed) -> u64 {
        if listed.name == "." {
            return if dir.id == crate::node::ROOT { listed.ino.max(1) } else { dir.id };
        }
        if listed.name == ".." {
            return listed.ino.max(1);
        }
        self.table.number(dir.key().dev, listed.ino).max(1)
    }

    /// Starts a listing at `offset`; at its start, with the names that the host doesn't list yet.
    fn start(&self, dir: &DirHandle, stream: &mut DirStream, offset: u64) -> FsResult<()> {
        if offset == 0 {
            stream.extra.clear();
            for (name, node) in self.overlay.within(dir.node.id) {
                let next = EXTRA | (stream.extra.len() as u64 + 1);
                stream.extra.push(Listed { ino: node.id, kind: node.kind, name, next });
            }
        }
        stream.seek(offset)
    }

    pub fn releasedir(&self, handle: u64) {
        if let Some(Handle::Dir(dir)) = self.handles.remove(handle) {
            self.close_dir(&dir);
        }
    }

    pub(crate) fn close_dir(&self, dir: &DirHandle) {
        if dir.listed.load(Ordering::Relaxed) {
            let event =
                Self::event(dir.who.clone(), Op::Readdir, dir.path.clone(), Some(dir.node.key()));
            self.record(event);
        }
    }

    pub fn fsyncdir(&self, handle: u64, data_only: bool) -> FsResult<()> {
        let dir = self.handles.dir(handle)?;
        let fd = dir.stream.lock().fd.clone();
        super::io::sync(fd.as_fd(), data_only)
    }
}

/// Decides whether the kernel still has the listing of a directory, which is open as `fd`; else returns the version that
/// the next one will be of.
fn kept_listing(node: &Node, fd: &OwnedFd) -> FsResult<(Listing, Option<Version>)> {
    let stat = host::stat_fd(fd.as_fd())?;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let now = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    let tick = i64::try_from(TICK.as_nanos()).unwrap_or(i64::MAX);
    let settled = stat.ctime.nanos().saturating_add(tick) < now;
    let version = settled.then(|| stat.version());
    let mut cached = node.cached.lock();
    if version.is_some() && *cached == version {
        return Ok((Listing::Keep, None));
    }
    *cached = None;
    Ok((Listing::Fill, version))
}

impl DirHandle {
    /// Says that the kernel has the whole listing now. One with staged names isn't used again: their offsets are good for the
    /// handle alone.
    fn is_whole(&self, stream: &DirStream) {
        if stream.end && stream.extra.is_empty() && self.kept.is_some() {
            *self.node.cached.lock() = self.kept;
        }
    }
}

pub fn is_dot(name: &OsStr) -> bool {
    name == "." || name == ".."
}

impl DirStream {
    fn seek(&mut self, offset: u64) -> FsResult<()> {
        if offset != self.at || offset == 0 {
            let skip = offset & !EXTRA;
            let host = if offset & EXTRA == 0 { offset } else { 0 };
            rustix::fs::seek(&self.fd, SeekFrom::Start(host))?;
            self.ahead.clear();
            if host == 0 {
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                self.ahead.extend(self.extra.iter().skip(skip).cloned());
            }
            self.at = offset;
            self.end = false;
        }
        Ok(())
    }

    fn peek(&mut self) -> FsResult<Option<&Listed>> {
        if self.ahead.is_empty() && !self.end {
            let mut buffer = [MaybeUninit::uninit(); CHUNK];
            let mut raw = RawDir::new(&self.fd, &mut buffer);
            while let Some(entry) = raw.next() {
                let entry = entry?;
                let mut kind = entry.file_type();
                if kind == FileType::Unknown {
                    // Some file systems don't say; then the listing asks.
                    kind = host::stat_at(self.fd.as_fd(), &entry.file_name().to_owned())
                        .map_or(FileType::RegularFile, |stat| stat.file_type());
                }
                let name = std::ffi::OsString::from_vec(entry.file_name().to_bytes().to_vec());
                if let Some(maker) = super::fresh::staged_by(&name) {
                    self.sweep(maker, &name);
                    continue;
                }
                if self.extra.iter().any(|extra| extra.name == name) {
                    continue;
                }
                self.ahead.push_back(Listed {
                    ino: entry.ino(),
                    kind,
                    name,
                    next: entry.next_entry_cookie(),
                });
                if raw.is_buffer_empty() {
                    break;
                }
            }
            self.end = self.ahead.is_empty();
        }
        Ok(self.ahead.front())
    }

    /// Removes a staged file whose maker died between its two system calls (contract F7).
    fn sweep(&self, maker: u32, name: &OsStr) {
        if !crate::journal::is_alive(maker)
            && let Err(error) = rustix::fs::unlinkat(&self.fd, name, rustix::fs::AtFlags::empty())
        {
            tracing::debug!(%error, "a staged file stays behind");
        }
    }

    fn advance(&mut self) {
        if let Some(gone) = self.ahead.pop_front() {
            self.at = gone.next;
        }
    }
}
