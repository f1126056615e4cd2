//! Puts back. Whatever the run left goes to a directory of ours beside it first and is removed last, so that a step
//! that fails lets all the others be taken back.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::error::{Error, Result};
use super::image::{attributes, copy, look, magic, same};
use super::record::{File, Id};
use super::verify::Work;

/// A name in an open directory.
#[derive(Clone, Debug)]
struct Spot {
    dir: Rc<OwnedFd>,
    name: Vec<u8>,
}

/// What was done and how it is taken back.
enum Step {
    Moved { from: Spot, to: Spot },
    Swapped { one: Spot, other: Spot },
    Made { at: Spot, directory: bool },
    Written { file: OwnedFd, backup: OwnedFd, mtime: i64 },
}

impl Step {
    fn take_back(&self) -> io::Result<()> {
        match self {
            Self::Moved { from, to } => rename(to, from, RenameFlags::NOREPLACE),
            Self::Swapped { one, other } => rename(one, other, RenameFlags::EXCHANGE),
            Self::Made { at, directory } => {
                let flags = if *directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                Ok(rustix::fs::unlinkat(&*at.dir, &at.name, flags)?)
            }
            Self::Written { file, backup, mtime } => {
                write_over(backup.as_fd(), file.as_fd())?;
                set_times(file.as_fd(), None, *mtime)
            }
        }
    }
}

fn rename(from: &Spot, to: &Spot, flags: RenameFlags) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(&*from.dir, &from.name, &*to.dir, &to.name, flags)?)
}

fn write_over(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    rustix::fs::ftruncate(to, 0)?;
    copy(from, to)
}

struct Putting<'w, 'h> {
    work: &'w Work<'h>,
    hold: Rc<OwnedFd>,
    next: u64,
    steps: Vec<Step>,
    /// What the run left, by file, in the directory of ours.
    held: HashMap<Id, Vec<Spot>>,
    /// Where a file has its name again.
    placed: HashMap<Id, Spot>,
    /// Device and inode of those that are others than before.
    fresh: HashMap<Id, (u64, u64)>,
}

/// Puts one history back.
pub(crate) fn put(work: &Work<'_>) -> Result<()> {
    let name = format!(".stockade-undo-{}", std::process::id());
    let path = work.history.source.join(&name);
    let failed = || Error::io::<io::Error>("make", &path);
    let root = look(work.tree.root.as_fd(), b"").map_err(Error::io("use", &work.history.source))?;
    rustix::fs::mkdirat(&*work.tree.root, &name, Mode::RWXU)
        .map_err(|errno| failed()(errno.into()))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let hold = rustix::fs::openat(&*work.tree.root, &name, flags, Mode::empty())
        .map_err(|errno| failed()(errno.into()))?;
    let mut putting = Putting {
        work,
        hold: Rc::new(hold),
        next: 0,
        steps: Vec::new(),
        held: HashMap::new(),
        placed: HashMap::new(),
        fresh: HashMap::new(),
    };
    let done = putting.names().and_then(|()| putting.contents());
    if let Err((at, error)) = done {
        let mut kept = false;
        for step in putting.steps.iter().rev() {
            if let Err(error) = step.take_back() {
                tracing::warn!(%error, "a step of an undo couldn't be taken back");
                kept = true;
            }
        }
        if !kept {
            empty(&putting.hold);
            let _stays = rustix::fs::unlinkat(&*work.tree.root, &name, AtFlags::REMOVEDIR);
        }
        return Err(Error::io("put back", work.history.shown(&at))(error));
    }
    let attributes = putting.attributes();
    empty(&putting.hold);
    let removed = rustix::fs::unlinkat(&*work.tree.root, &name, AtFlags::REMOVEDIR);
    // Removing our directory has moved the time of the one that held it.
    if let Err(error) = set_times(work.tree.root.as_fd(), None, root.left.mtime) {
        tracing::debug!(%error, "the times of the directory stay");
    }
    putting.times();
    attributes.map_err(|(at, error)| {
        Error::io("restore the attributes of", work.history.shown(&at))(error)
    })?;
    removed.map_err(|errno| Error::io::<io::Error>("remove", &path)(errno.into()))
}

/// Where something failed, below the root.
type Failed = (PathBuf, io::Error);

impl Putting<'_, '_> {
    fn spare(&mut self) -> Spot {
        self.next += 1;
        Spot { dir: self.hold.clone(), name: self.next.to_string().into_bytes() }
    }

    fn spot(&self, (at, name): &(Id, Vec<u8>)) -> io::Result<Spot> {
        Ok(Spot { dir: self.work.tree.directory(*at)?, name: name.clone() })
    }

    fn path(&self, place: &(Id, Vec<u8>)) -> PathBuf {
        let history = self.work.history;
        history.path_then(place).or_else(|| history.path_now(place)).unwrap_or_default()
    }

    fn names(&mut self) -> std::result::Result<(), Failed> {
        // Every directory is opened where it is now, before any of them moves.
        for (place, _, _) in &self.work.detach {
            self.spot(place).map_err(|error| (self.path(place), error))?;
        }
        for (place, _) in &self.work.attach {
            if !self.work.history.is_gone(place.0) {
                self.spot(place).map_err(|error| (self.path(place), error))?;
            }
        }
        for (place, id, seen) in &self.work.detach {
            let hold = self.spare();
            let mut away = || {
                let from = self.spot(place)?;
                rename(&from, &hold, RenameFlags::NOREPLACE)?;
                self.steps.push(Step::Moved { from, to: hold.clone() });
                let found = look(hold.dir.as_fd(), &hold.name)?;
                // What left a directory just now has moved its time.
                let directory = seen.kind() == FileType::Directory;
                let is_same = same(&found, seen.dev, seen.ino);
                if is_same && (directory || found.left == seen.left) {
                    Ok(())
                } else {
                    Err(io::Error::other("it changed just now"))
                }
            };
            away().map_err(|error| (self.path(place), error))?;
            self.held.entry(*id).or_default().push(hold);
        }
        // Directories that are gone come first: names go into them, wherever they are.
        let attach = &self.work.attach;
        for (place, id) in attach {
            if self.work.history.is_gone(*id)
                && let Some((_, file)) = self.work.history.files.get(id)
                && FileType::from_raw_mode(file.mode) == FileType::Directory
            {
                let hold = self.spare();
                let mut make = || {
                    rustix::fs::mkdirat(&*hold.dir, &hold.name, Mode::RWXU)?;
                    self.steps.push(Step::Made { at: hold.clone(), directory: true });
                    let flags =
                        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let fd = rustix::fs::openat(&*hold.dir, &hold.name, flags, Mode::empty())?;
                    self.work.tree.made(*id, fd);
                    Ok(())
                };
                make().map_err(|error| (self.path(place), error))?;
                self.know(*id, &hold).map_err(|error| (self.path(place), error))?;
                self.held.entry(*id).or_default().push(hold);
            }
        }
        for (place, id) in attach {
            self.attach(place, *id).map_err(|error| (self.path(place), error))?;
        }
        Ok(())
    }

    fn attach(&mut self, place: &(Id, Vec<u8>), id: Id) -> io::Result<()> {
        let to = self.spot(place)?;
        if let Some(held) = self.held.get_mut(&id).and_then(Vec::pop) {
            rename(&held, &to, RenameFlags::NOREPLACE)?;
            self.steps.push(Step::Moved { from: held, to: to.clone() });
            self.placed.entry(id).or_insert(to);
            return Ok(());
        }
        if let Some(first) = self.placed.get(&id) {
            rustix::fs::linkat(&*first.dir, &first.name, &*to.dir, &to.name, AtFlags::empty())?;
            self.steps.push(Step::Made { at: to, directory: false });
            return Ok(());
        }
        let same = self.work.history.same_place(id).and_then(|place| self.spot(&place).ok());
        if let Some(same) = same {
            rustix::fs::linkat(&*same.dir, &same.name, &*to.dir, &to.name, AtFlags::empty())?;
        } else if let Some((dir, name)) = self.work.elsewhere.get(&id) {
            rustix::fs::linkat(dir, name, &*to.dir, &to.name, AtFlags::empty())?;
        } else if let Some(image) = self.work.history.images.get(&id) {
            let image_path = self.work.history.directory.join(image.number.to_string());
            let linked = image.link
                && rustix::fs::linkat(CWD, &image_path, &*to.dir, &to.name, AtFlags::empty())
                    .is_ok();
            if !linked {
                let hold = self.copy_of(id)?;
                return self.place(id, hold, to);
            }
        } else {
            let (_, file) = self.work.history.files.get(&id).ok_or(io::ErrorKind::NotFound)?;
            let hold = self.spare();
            make(file, &hold)?;
            self.steps.push(Step::Made { at: hold.clone(), directory: false });
            return self.place(id, hold, to);
        }
        self.steps.push(Step::Made { at: to.clone(), directory: false });
        self.placed.insert(id, to);
        Ok(())
    }

    /// Gives what was made in the directory of ours its name.
    fn place(&mut self, id: Id, hold: Spot, to: Spot) -> io::Result<()> {
        self.know(id, &hold)?;
        rename(&hold, &to, RenameFlags::NOREPLACE)?;
        self.steps.push(Step::Moved { from: hold, to: to.clone() });
        self.placed.insert(id, to);
        Ok(())
    }

    /// Remembers the inode that a file has from now on, while nobody else can reach it.
    fn know(&mut self, id: Id, hold: &Spot) -> io::Result<()> {
        let seen = look(hold.dir.as_fd(), &hold.name)?;
        self.fresh.insert(id, (seen.dev, seen.ino));
        Ok(())
    }

    /// Tells whether what is at a file's place is that file, and not something that was put there just now.
    fn is_it(&self, id: Id, pin: BorrowedFd<'_>) -> io::Result<bool> {
        let seen = look(pin, b"")?;
        Ok(match self.fresh.get(&id) {
            Some((dev, ino)) => same(&seen, *dev, *ino),
            None => self.work.tree.is(&seen, id),
        })
    }

    /// Makes a file with the content that was kept.
    fn copy_of(&mut self, id: Id) -> io::Result<Spot> {
        let image = self.work.history.images.get(&id).ok_or(io::ErrorKind::NotFound)?;
        let path = self.work.history.directory.join(image.number.to_string());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = rustix::fs::open(&path, flags, Mode::empty())?;
        let hold = self.spare();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let to = rustix::fs::openat(&*hold.dir, &hold.name, flags, Mode::RUSR | Mode::WUSR)?;
        self.steps.push(Step::Made { at: hold.clone(), directory: false });
        copy(from.as_fd(), to.as_fd())?;
        Ok(hold)
    }

    fn contents(&mut self) -> std::result::Result<(), Failed> {
        for id in &self.work.rewrite {
            let (at, spot) = self.found(*id)?;
            let mut rewrite = || {
                let copied = self.copy_of(*id)?;
                let seen = look(spot.dir.as_fd(), &spot.name)?;
                if seen.links == 1 {
                    self.know(*id, &copied)?;
                    rename(&copied, &spot, RenameFlags::EXCHANGE)?;
                    self.steps.push(Step::Swapped { one: copied, other: spot.clone() });
                    return Ok(());
                }
                // Its other names must go on leading to the same file.
                let open = |spot: &Spot| {
                    let flags =
                        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    rustix::fs::openat(&*spot.dir, &spot.name, flags, Mode::empty())
                };
                let (from, file) = (open(&copied)?, open(&spot)?);
                if !self.is_it(*id, file.as_fd())? {
                    return Err(io::Error::other("it changed just now"));
                }
                let hold = self.spare();
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let backup =
                    rustix::fs::openat(&*hold.dir, &hold.name, flags, Mode::RUSR | Mode::WUSR)?;
                copy(file.as_fd(), backup.as_fd())?;
                let mtime = look(file.as_fd(), b"")?.left.mtime;
                let again = file.try_clone()?;
                self.steps.push(Step::Written { file: again, backup, mtime });
                write_over(from.as_fd(), file.as_fd())
            };
            rewrite().map_err(|error| (at, error))?;
        }
        Ok(())
    }

    /// Returns where a file has its name now.
    fn found(&self, id: Id) -> std::result::Result<(PathBuf, Spot), Failed> {
        let history = self.work.history;
        if let Some(spot) = self.placed.get(&id) {
            let at = self.work.attach.iter().find(|(_, other)| *other == id);
            return Ok((at.map(|(place, _)| self.path(place)).unwrap_or_default(), spot.clone()));
        }
        let missing = || (PathBuf::new(), io::Error::from(io::ErrorKind::NotFound));
        let Some(place) = history.same_place(id) else {
            // The run gave it names beside one that isn't known: it is reached by those while they are here.
            let place = history.place_now(id).ok_or_else(missing)?;
            let held = self.held.get(&id).and_then(|held| held.last()).cloned();
            return Ok((self.path(&place), held.ok_or_else(missing)?));
        };
        let spot = self.spot(&place).map_err(|error| (self.path(&place), error))?;
        Ok((self.path(&place), spot))
    }

    fn pin(&self, id: Id) -> std::result::Result<(PathBuf, OwnedFd), Failed> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if id == self.work.history.root {
            let fd = self.work.tree.root.try_clone().map_err(|error| (PathBuf::new(), error))?;
            return Ok((PathBuf::new(), fd));
        }
        let (path, spot) = self.found(id)?;
        match rustix::fs::openat(&*spot.dir, &spot.name, flags, Mode::empty()) {
            Ok(fd) => match self.is_it(id, fd.as_fd()) {
                Ok(true) => Ok((path, fd)),
                Ok(false) => Err((path, io::Error::other("it changed just now"))),
                Err(error) => Err((path, error)),
            },
            Err(errno) => Err((path, errno.into())),
        }
    }

    fn attributes(&self) -> std::result::Result<(), Failed> {
        let files = &self.work.history.files;
        let mut ids: Vec<Id> = self.work.attributes.clone();
        ids.extend(
            self.work
                .attach
                .iter()
                .map(|(_, id)| *id)
                .filter(|id| self.work.history.is_gone(*id) && files.contains_key(id)),
        );
        ids.sort();
        ids.dedup();
        // Directories last: what is done in them moves their times, and their modes may forbid it.
        ids.sort_by_key(|id| {
            files
                .get(id)
                .is_some_and(|(_, file)| FileType::from_raw_mode(file.mode) == FileType::Directory)
        });
        let mut first = Ok(());
        for id in ids {
            let Some((_, file)) = files.get(&id) else { continue };
            let done = self
                .pin(id)
                .and_then(|(path, fd)| restore(fd.as_fd(), file).map_err(|error| (path, error)));
            if let Err(error) = done
                && first.is_ok()
            {
                first = Err(error);
            }
        }
        first
    }

    fn times(&self) {
        let again = self.work.attributes.iter().chain(self.work.times.iter());
        for id in again {
            let Some((_, file)) = self.work.history.files.get(id) else { continue };
            if FileType::from_raw_mode(file.mode) == FileType::Directory
                && let Ok((_, fd)) = self.pin(*id)
                && let Err(error) = set_times(fd.as_fd(), Some(file.atime), file.mtime)
            {
                tracing::debug!(%error, "a directory's times stay");
            }
        }
    }
}

/// Makes what has no content.
fn make(file: &File, to: &Spot) -> io::Result<()> {
    let kind = FileType::from_raw_mode(file.mode);
    if kind == FileType::Symlink {
        let target = file.target.as_ref().ok_or(io::ErrorKind::InvalidData)?;
        return Ok(rustix::fs::symlinkat(target.as_slice(), &*to.dir, &to.name)?);
    }
    Ok(rustix::fs::mknodat(&*to.dir, &to.name, kind, Mode::RUSR | Mode::WUSR, file.rdev)?)
}

/// Gives a file the attributes that it had.
fn restore(pin: BorrowedFd<'_>, file: &File) -> io::Result<()> {
    let now = attributes(pin)?;
    let link = magic(pin);
    if (now.uid, now.gid) != (file.uid, file.gid) {
        let (uid, gid) = (Uid::from_raw(file.uid), Gid::from_raw(file.gid));
        rustix::fs::chownat(pin, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    for (name, _) in
        now.xattrs.iter().filter(|(name, _)| !file.xattrs.iter().any(|(wanted, _)| wanted == name))
    {
        rustix::fs::removexattr(&link, name.as_slice())?;
    }
    for (name, value) in file.xattrs.iter().filter(|pair| !now.xattrs.contains(pair)) {
        rustix::fs::setxattr(&link, name.as_slice(), value.as_slice(), XattrFlags::empty())?;
    }
    if FileType::from_raw_mode(file.mode) != FileType::Symlink {
        let mode = Mode::from_raw_mode(file.mode & 0o7777);
        rustix::fs::chmodat(CWD, &link, mode, AtFlags::empty())?;
    }
    set_times(pin, Some(file.atime), file.mtime)
}

fn set_times(pin: BorrowedFd<'_>, atime: Option<i64>, mtime: i64) -> io::Result<()> {
    let spec = |nanos: i64| Timespec {
        tv_sec: nanos.div_euclid(1_000_000_000),
        tv_nsec: nanos.rem_euclid(1_000_000_000),
    };
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times =
        Timestamps { last_access: atime.map_or(omit, spec), last_modification: spec(mtime) };
    Ok(rustix::fs::utimensat(pin, c"", &times, AtFlags::EMPTY_PATH)?)
}

/// Removes what is in a directory of ours: files, and directories that are empty by now.
fn empty(hold: &OwnedFd) {
    let Ok(entries) = rustix::fs::Dir::read_from(hold) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let removed = match rustix::fs::unlinkat(hold, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(hold, name, AtFlags::REMOVEDIR),
            other => other,
        };
        if let Err(error) = removed {
            tracing::warn!(%error, "something that an undo took away stays behind");
        }
    }
}
