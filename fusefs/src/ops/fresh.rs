//! Files that are shared with names we don't know: a write to one must not carry out (contract F11), and reading one
//! must not be a way around a denial (contract P10).

use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RawDir, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use stockade_observe::{Freshness, Op, Process, Publication, Time};
use stockade_policy::{Denial, Hardlinks, Mode as Access, Rule};

use crate::error::{FsError, FsResult};
use crate::fs::Fs;
use crate::host::{self, Stat};
use crate::node::{Name, Node};

/// What a staged file is called for the two system calls between its link and its rename, and what nobody sees inside.
const PREFIX: &[u8] = b".stockade-";
const SUFFIX: &[u8] = b".tmp";

/// Tells whether a name is one of ours, and which process made it.
pub fn staged_by(name: &OsStr) -> Option<u32> {
    let middle = name.as_bytes().strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let (pid, count) = std::str::from_utf8(middle).ok()?.split_once('-')?;
    count.parse::<u64>().ok()?;
    pid.parse().ok()
}

/// Refuses names that are ours: nobody would see what is called so, and a listing takes it away.
pub fn not_staged(name: &OsStr) -> FsResult<()> {
    match staged_by(name) {
        None => Ok(()),
        Some(_) => {
            Err(FsError::Denied(Arc::new(Denial::new(Rule::ProtectedPath, "stockade's own files"))))
        }
    }
}

pub(super) fn staged_name() -> FsResult<CString> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = [PREFIX, format!("{}-{count}", std::process::id()).as_bytes(), SUFFIX].concat();
    CString::new(name).map_err(|_| Errno::INVAL.into())
}

impl Fs {
    /// Sees to it that a change of a regular file reaches no name that we don't know.
    pub(crate) fn make_sole(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
        who: &Arc<Process>,
    ) -> FsResult<()> {
        if self.mode == Access::DangerFullAccess
            || !self.is_shared(node, stat)
            || self.has_all_names_beside(node, stat)
        {
            return Ok(());
        }
        match self.hardlinks {
            Hardlinks::Follow => Ok(()),
            Hardlinks::Deny => {
                Err(FsError::Denied(Arc::new(Denial::new(Rule::HardLink, "hardlinks deny"))))
            }
            Hardlinks::Break => {
                let mut event =
                    Self::event(who.clone(), Op::Publish, self.path(node), Some(node.key()));
                event.version_before = Some(stat.version());
                event.publication = Some(Publication::Atomic);
                let result = self.freshen(node);
                if let Ok(fresh) = &result {
                    event.version_after = Some(fresh.version());
                }
                self.audited(event, result).map(|_| ())
            }
        }
    }

    /// Tells whether a file has more names than those that we know and that still lead to it.
    pub(crate) fn is_shared(&self, node: &Arc<Node>, stat: &Stat) -> bool {
        stat.is_regular() && stat.nlink > 1 && {
            let known = node.names().iter().filter(|name| self.leads_to(name, stat)).count();
            u64::try_from(known).unwrap_or(u64::MAX) < u64::from(stat.nlink)
        }
    }

    /// Looks for the names that we don't know in the directories of those that we do: a name beside them that may be
    /// written isn't outside.
    fn has_all_names_beside(&self, node: &Arc<Node>, stat: &Stat) -> bool {
        let known: Vec<Name> =
            node.names().into_iter().filter(|name| self.leads_to(name, stat)).collect();
        let mut found = known.len();
        let mut looked: Vec<u64> = Vec::new();
        for name in &known {
            if looked.contains(&name.parent.id) {
                continue;
            }
            looked.push(name.parent.id);
            let Ok(pin) = self.table.pin(&name.parent) else { continue };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let Ok(dir) = self.self_fd.open_pin(pin.as_fd(), flags) else { continue };
            let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
            let mut raw = RawDir::new(&dir, &mut buffer);
            while let Some(Ok(entry)) = raw.next() {
                let beside = OsStr::from_bytes(entry.file_name().to_bytes());
                let is_known = |one: &Name| one.parent.id == name.parent.id && one.name == beside;
                if entry.ino() != stat.ino || known.iter().any(is_known) {
                    continue;
                }
                let other = Name { parent: name.parent.clone(), name: beside.to_os_string() };
                let path = self.path_at(&name.parent, beside);
                if self.leads_to(&other, stat) && self.rules.zone(&path).write.is_none() {
                    found += 1;
                }
            }
        }
        u64::try_from(found).unwrap_or(u64::MAX) >= u64::from(stat.nlink)
    }

    fn leads_to(&self, name: &Name, stat: &Stat) -> bool {
        let found = self
            .table
            .pin(&name.parent)
            .and_then(|dir| host::stat_at(dir.as_fd(), &host::component(&name.name)?));
        found.is_ok_and(|found| (found.dev, found.ino) == (stat.dev, stat.ino))
    }

    /// Gives a regular file an inode of its own, with the same content and attributes, at its latest name. Whoever
    /// holds the old inode open keeps it; every later open gets the new one.
    pub(crate) fn freshen(&self, node: &Arc<Node>) -> FsResult<Stat> {
        let name = node.name().ok_or(FsError::Stale)?;
        let component = host::component(&name.name)?;
        let dir = self.inside(&name.parent)?;
        self.keeps_directory(&name.parent);
        let pin = self.table.pin(node)?;
        let stat = host::stat_fd(pin.as_fd())?;
        let known = self.freshness(node, &stat, None) == Freshness::Fresh;
        let old = self.self_fd.open_pin(pin.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
        let staged = staged_name()?;
        let mut named = Residue { dir: &dir, name: &staged, there: false };
        let fresh = match rustix::fs::openat(
            &*dir,
            c".",
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        ) {
            Ok(fresh) => fresh,
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let fresh = rustix::fs::openat(&*dir, &staged, flags, Mode::RUSR | Mode::WUSR)?;
                named.there = true;
                fresh
            }
            Err(errno) => return Err(errno.into()),
        };
        copy_content(&old, &fresh, stat.size)?;
        copy_attributes(&old, &fresh, &stat)?;
        if !named.there {
            self.self_fd.link(fresh.as_fd(), dir.as_fd(), &staged)?;
            named.there = true;
        }
        // A swap on the host since: the kernel walks again.
        let found = host::stat_at(dir.as_fd(), &component)?;
        if (found.dev, found.ino) != (stat.dev, stat.ino) {
            return Err(FsError::Stale);
        }
        let fresh_stat = host::stat_fd(fresh.as_fd())?;
        let key = host::key_of(fresh.as_fd(), &fresh_stat);
        self.keeps_shared(&name, &pin, node.key());
        self.keeps_staged(&fresh, false);
        let turn = self.keeps_entry(&name.parent, &dir, &component, Some(key), false);
        let renamed = rustix::fs::renameat(&*dir, &staged, &*dir, &component);
        self.keeps_turn(turn, renamed.is_ok());
        renamed?;
        named.there = false;
        let fresh_stat = host::stat_fd(fresh.as_fd())?;
        let fresh_pin = host::pin_at(dir.as_fd(), &component)?;
        let others = self.table.rebind(node, fresh_pin, key, &name);
        self.watches.later(others);
        self.replaced(node);
        if known {
            self.saw(node, fresh_stat.version());
        }
        Ok(fresh_stat)
    }

    /// Refuses to read a file that a denied name shares.
    pub(crate) fn may_read_shared(&self, node: &Arc<Node>, stat: &Stat) -> FsResult<()> {
        if !self.rules.denies_reading() || !self.is_shared(node, stat) {
            return Ok(());
        }
        let mut known = self.denied_inodes.lock();
        // Whoever gave the file a name since the last search has moved its change time.
        let listed = match known.take() {
            Some(listed) if stat.ctime.nanos() < listed.since => listed,
            _ => self.find_denied_inodes(),
        };
        let denial = listed.inodes.get(&(stat.dev, stat.ino)).cloned();
        *known = Some(listed);
        denial.map_or(Ok(()), |denial| Err(FsError::Denied(denial)))
    }

    /// Lists the source, and what lies below exact paths outside it, when a file with unknown names is read under rules
    /// that deny reading: names are enough, only what a rule matches is looked at.
    fn find_denied_inodes(&self) -> DeniedInodes {
        let since = Time::now().0.saturating_sub(CLOCK_STEP);
        let mut inodes = HashMap::new();
        let Ok(root) = self.table.get(crate::node::ROOT).and_then(|root| self.table.pin(&root))
        else {
            return DeniedInodes { since, inodes };
        };
        let device = host::stat_fd(root.as_fd()).map_or(0, |stat| stat.dev);
        self.search(&root, &self.base, device, &mut inodes);
        for (path, denial) in self.rules.read_denied_paths() {
            if path.starts_with(&self.base) || self.base.starts_with(&path) {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(pin) = rustix::fs::open(&path, flags, Mode::empty()) else { continue };
            let Ok(stat) = host::stat_fd(pin.as_fd()) else { continue };
            if stat.is_dir() {
                self.search(&pin, &path, device, &mut inodes);
            } else if stat.dev == device && stat.is_regular() && stat.nlink > 1 {
                inodes.insert((stat.dev, stat.ino), denial);
            }
        }
        DeniedInodes { since, inodes }
    }

    /// Adds the denied files with several names at and below the directory `top`, which is seen at `path`.
    fn search(
        &self,
        top: &OwnedFd,
        path: &Path,
        device: u64,
        found: &mut HashMap<(u64, u64), Arc<Denial>>,
    ) {
        let mut todo: Vec<PathBuf> = vec![PathBuf::new()];
        while let Some(relative) = todo.pop() {
            let Ok(dir) = open_beneath(top, &relative) else { continue };
            if host::stat_fd(dir.as_fd()).is_ok_and(|stat| stat.dev != device) {
                continue;
            }
            let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
            let mut raw = RawDir::new(&dir, &mut buffer);
            while let Some(Ok(entry)) = raw.next() {
                let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
                if super::dir::is_dot(&name) {
                    continue;
                }
                let below = relative.join(&name);
                if entry.file_type() == rustix::fs::FileType::Directory {
                    todo.push(below);
                } else if let Some(denial) = self.rules.zone(&path.join(&below)).read
                    && let Ok(stat) = host::stat_at(dir.as_fd(), &entry.file_name().to_owned())
                    && stat.is_regular()
                    && stat.nlink > 1
                {
                    found.insert((stat.dev, stat.ino), denial);
                }
            }
        }
    }
}

/// Files with several names, one of which rules deny, as of a moment.
#[derive(Debug)]
pub struct DeniedInodes {
    /// A file whose change time is later may have got a name since (nanoseconds).
    since: i64,
    inodes: HashMap<(u64, u64), Arc<Denial>>,
}

/// Change times are taken from a clock that moves in steps; none is longer (nanoseconds).
const CLOCK_STEP: i64 = 20_000_000;

/// A staged file's name, taken away again unless it reached its place.
struct Residue<'a> {
    dir: &'a OwnedFd,
    name: &'a CString,
    there: bool,
}

impl Drop for Residue<'_> {
    fn drop(&mut self) {
        if self.there
            && let Err(error) = rustix::fs::unlinkat(self.dir, self.name, AtFlags::empty())
        {
            tracing::warn!(%error, "a staged file stays behind");
        }
    }
}

fn open_beneath(root: &OwnedFd, relative: &Path) -> FsResult<OwnedFd> {
    use rustix::fs::ResolveFlags;
    let path = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)?)
}

/// Copies `size` bytes and whatever has been added since.
pub(super) fn copy_content(from: &OwnedFd, to: &OwnedFd, size: u64) -> FsResult<()> {
    let (mut read_at, mut write_at) = (0, 0);
    let mut in_kernel = true;
    let mut buffer = Vec::new();
    loop {
        let copied = if in_kernel {
            match rustix::fs::copy_file_range(
                from,
                Some(&mut read_at),
                to,
                Some(&mut write_at),
                1 << 30,
            ) {
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    in_kernel = false;
                    continue;
                }
                other => other?,
            }
        } else {
            buffer.clear();
            buffer.reserve(1 << 20);
            rustix::io::pread(from, rustix::buffer::spare_capacity(&mut buffer), read_at)?;
            let mut done = 0;
            while done < buffer.len() {
                done += rustix::io::pwrite(to, &buffer[done..], write_at + done as u64)?;
            }
            read_at += done as u64;
            write_at += done as u64;
            done
        };
        if copied == 0 {
            break;
        }
    }
    if write_at < size { Err(Errno::IO.into()) } else { Ok(()) }
}

/// Gives `to` the owner, extended attributes (ACLs among them), mode and times that `from` has.
pub(super) fn copy_attributes(from: &OwnedFd, to: &OwnedFd, stat: &Stat) -> FsResult<()> {
    let own = host::stat_fd(to.as_fd())?;
    if (own.uid, own.gid) != (stat.uid, stat.gid) {
        rustix::fs::fchown(to, Some(Uid::from_raw(stat.uid)), Some(Gid::from_raw(stat.gid)))?;
    }
    let mut names = vec![0_u8; 64 * 1024];
    let length = match rustix::fs::flistxattr(from, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // Writing takes file capabilities away, and what this copy is made for is a write.
        if name == b"security.capability" {
            continue;
        }
        let mut value = vec![0_u8; 64 * 1024];
        let length = rustix::fs::fgetxattr(from, name, &mut value[..])?;
        rustix::fs::fsetxattr(to, name, &value[..length], XattrFlags::empty())?;
    }
    super::thread::keeping_set_id(|| {
        rustix::fs::fchmod(to, Mode::from_raw_mode(stat.mode & 0o7777))
    })?;
    let spec = |stamp: host::Stamp| Timespec { tv_sec: stamp.sec, tv_nsec: stamp.nsec.into() };
    rustix::fs::futimens(
        to,
        &Timestamps { last_access: spec(stat.atime), last_modification: spec(stat.mtime) },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_names_are_told_from_others() {
        let own = staged_name().unwrap();
        assert_eq!(staged_by(OsStr::from_bytes(own.as_bytes())), Some(std::process::id()));
        for other in [
            ".stockade-",
            ".stockade-1.tmp",
            ".stockade-a-1.tmp",
            ".stockade-1-2",
            "x",
            ".stockade-1-2.tmpx",
        ] {
            assert_eq!(staged_by(OsStr::new(other)), None, "{other}");
        }
    }
}
