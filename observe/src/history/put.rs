//! Puts back. Whatever the run left goes to a directory of ours beside it first and is removed last, so that a step
//! that fails lets all the others be taken back; each is noted before it is done (`wal.rs`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use stockade_policy::text::Bytes;

use super::error::{Error, Result};
use super::image::{attributes, copy, look, magic, same};
use super::record::{File, Id};
use super::verify::Work;
use super::wal::{At, Part, Step, Wal, below};

/// A name in an open directory.
#[derive(Clone, Debug)]
struct Spot {
    dir: Rc<OwnedFd>,
    name: Vec<u8>,
}

fn rename(from: &Spot, to: &Spot, flags: RenameFlags) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(&*from.dir, &from.name, &*to.dir, &to.name, flags)?)
}

pub(crate) fn write_over(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    rustix::fs::ftruncate(to, 0)?;
    copy(from, to)
}

struct Putting<'w, 'h> {
    work: &'w Work<'h>,
    part: usize,
    wal: &'w mut Wal,
    hold: Rc<OwnedFd>,
    next: u64,
    /// What the run left, by file, in the directory of ours.
    held: HashMap<Id, Vec<Spot>>,
    /// Where a file has its name again.
    placed: HashMap<Id, Spot>,
    /// Device and inode of those that are others than before.
    fresh: HashMap<Id, (u64, u64)>,
    /// Directories whose times are noted.
    noted: HashSet<(u64, u64)>,
}

/// Says where the directory of ours will be.
pub(crate) fn part(work: &Work<'_>) -> Result<Part> {
    let source = &work.history.source;
    let root = look(work.tree.root.as_fd(), b"").map_err(Error::io("use", source))?;
    let hold = format!(".stockade-undo-{}", std::process::id());
    Ok(Part {
        source: Bytes::from(source.as_path()),
        ino: root.ino,
        hold: Bytes::new(hold.as_bytes()),
        mtime: root.left.mtime,
    })
}

/// Puts one history back, but for what is tidied up at the end: returns what does that.
pub(crate) fn put<'w>(
    work: &'w Work<'_>,
    number: usize,
    part: &Part,
    wal: &'w mut Wal,
) -> Result<Tidy> {
    let root = &work.tree.root;
    let name = part.hold.as_slice();
    let path = work.history.source.join(part.hold.as_path());
    let failed = || Error::io::<io::Error>("make", &path);
    rustix::fs::mkdirat(&**root, name, Mode::RWXU).map_err(|errno| failed()(errno.into()))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let hold = rustix::fs::openat(&**root, name, flags, Mode::empty())
        .map_err(|errno| failed()(errno.into()))?;
    let mut putting = Putting {
        work,
        part: number,
        wal,
        hold: Rc::new(hold),
        next: 0,
        held: HashMap::new(),
        placed: HashMap::new(),
        fresh: HashMap::new(),
        // Its own time is put back when the directory of ours is gone.
        noted: HashSet::from([(work.tree.device(), part.ino)]),
    };
    let done =
        putting.names().and_then(|()| putting.contents()).and_then(|()| putting.attributes());
    done.map_err(|(at, error)| Error::io("put back", work.history.shown(&at))(error))?;
    Ok(Tidy { hold: putting.hold.clone(), times: putting.times() })
}

/// What is left to do once everything is put back.
pub(crate) struct Tidy {
    hold: Rc<OwnedFd>,
    times: Vec<(OwnedFd, i64, i64)>,
}

impl Tidy {
    pub(crate) fn carry_out(self, work: &Work<'_>, part: &Part) -> Result<()> {
        empty(&self.hold);
        let root = &work.tree.root;
        let removed = rustix::fs::unlinkat(&**root, part.hold.as_slice(), AtFlags::REMOVEDIR);
        // Removing our directory has moved the time of the one that held it.
        if let Err(error) = set_times(root.as_fd(), None, part.mtime) {
            tracing::debug!(%error, "the times of the directory stay");
        }
        for (directory, atime, mtime) in &self.times {
            if let Err(error) = set_times(directory.as_fd(), Some(*atime), *mtime) {
                tracing::debug!(%error, "a directory's times stay");
            }
        }
        let path = work.history.source.join(part.hold.as_path());
        removed.map_err(|errno| Error::io::<io::Error>("remove", &path)(errno.into()))
    }
}

/// Where something failed, below the root.
type Failed = (PathBuf, io::Error);

impl Putting<'_, '_> {
    fn spare(&mut self) -> Spot {
        self.next += 1;
        Spot { dir: self.hold.clone(), name: self.next.to_string().into_bytes() }
    }

    /// Says where a name is, for the journal.
    fn at(&self, spot: &Spot) -> io::Result<At> {
        let dir = below(self.work.tree.root.as_fd(), spot.dir.as_fd())?;
        Ok(At { dir, name: Bytes::new(&spot.name[..]) })
    }

    /// Notes the times of the directory in which a name is about to change.
    fn note(&mut self, spot: &Spot) -> io::Result<()> {
        let seen = look(spot.dir.as_fd(), b"")?;
        let ino = (seen.dev, seen.ino);
        if !Rc::ptr_eq(&spot.dir, &self.hold) && self.noted.insert(ino) {
            let at = At { name: Bytes::new(b""), ..self.at(spot)? };
            self.wal.write(Step::Directory { part: self.part, at, ino, mtime: seen.left.mtime })?;
        }
        Ok(())
    }

    /// Moves a name.
    fn shift(&mut self, from: &Spot, to: &Spot) -> io::Result<()> {
        self.note(from)?;
        self.note(to)?;
        let seen = look(from.dir.as_fd(), &from.name)?;
        let (part, ino) = (self.part, (seen.dev, seen.ino));
        if seen.kind() == FileType::Directory && self.noted.insert(ino) {
            // It holds the name of the one that holds it.
            let at = self.at(from)?;
            let dir = Bytes::from(at.dir.as_path().join(at.name.as_path()).as_path());
            let at = At { dir, name: Bytes::new(b"") };
            self.wal.write(Step::Directory { part, at, ino, mtime: seen.left.mtime })?;
        }
        self.wal.write(Step::Moved { part, from: self.at(from)?, to: self.at(to)?, ino })?;
        rename(from, to, RenameFlags::NOREPLACE)
    }

    /// Gives a file a further name.
    fn link(&mut self, dir: BorrowedFd<'_>, name: &[u8], to: &Spot) -> io::Result<()> {
        self.note(to)?;
        let seen = look(dir, name)?;
        let (part, at) = (self.part, self.at(to)?);
        self.wal.write(Step::Linked { part, at, ino: (seen.dev, seen.ino) })?;
        Ok(rustix::fs::linkat(dir, name, &*to.dir, &to.name, AtFlags::empty())?)
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
                self.shift(&from, &hold)?;
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
                let make = || {
                    rustix::fs::mkdirat(&*hold.dir, &hold.name, Mode::RWXU)?;
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
            self.shift(&held, &to)?;
            self.placed.entry(id).or_insert(to);
            return Ok(());
        }
        if let Some(first) = self.placed.get(&id).cloned() {
            return self.link(first.dir.as_fd(), &first.name, &to);
        }
        let same = self.work.history.same_place(id).and_then(|place| self.spot(&place).ok());
        if let Some(same) = same {
            self.link(same.dir.as_fd(), &same.name, &to)?;
        } else if let Some((dir, name)) = self.work.elsewhere.get(&id) {
            self.link(dir.as_fd(), name, &to)?;
        } else if let Some(image) = self.work.history.images.get(&id) {
            let image_path = self.work.history.directory.join(image.number.to_string());
            let linked =
                image.link && self.link(CWD, image_path.as_os_str().as_bytes(), &to).is_ok();
            if !linked {
                let hold = self.copy_of(id)?;
                return self.place(id, hold, to);
            }
        } else {
            let (_, file) = self.work.history.files.get(&id).ok_or(io::ErrorKind::NotFound)?;
            let hold = self.spare();
            make(file, &hold)?;
            return self.place(id, hold, to);
        }
        self.placed.insert(id, to);
        Ok(())
    }

    /// Gives what was made in the directory of ours its name.
    fn place(&mut self, id: Id, hold: Spot, to: Spot) -> io::Result<()> {
        self.know(id, &hold)?;
        self.shift(&hold, &to)?;
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
                    self.note(&spot)?;
                    let (one, other) = (self.at(&copied)?, self.at(&spot)?);
                    let seen = look(copied.dir.as_fd(), &copied.name)?;
                    let (part, ino) = (self.part, (seen.dev, seen.ino));
                    self.wal.write(Step::Swapped { part, one, other, ino })?;
                    return rename(&copied, &spot, RenameFlags::EXCHANGE);
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
                rustix::fs::fsync(&backup)?;
                let seen = look(file.as_fd(), b"")?;
                self.wal.write(Step::Written {
                    part: self.part,
                    at: self.at(&spot)?,
                    ino: (seen.dev, seen.ino),
                    backup: self.at(&hold)?,
                    mtime: seen.left.mtime,
                })?;
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

    fn attributes(&mut self) -> std::result::Result<(), Failed> {
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
        for id in ids {
            let Some((_, file)) = files.get(&id) else { continue };
            let (path, fd) = self.pin(id)?;
            self.give(fd.as_fd(), file).map_err(|error| (path, error))?;
        }
        Ok(())
    }

    /// Gives a file its attributes.
    fn give(&mut self, pin: BorrowedFd<'_>, file: &File) -> io::Result<()> {
        let seen = look(pin, b"")?;
        // A directory is found by itself, anything else by its name.
        let path = below(self.work.tree.root.as_fd(), pin)?;
        let at = if seen.kind() == FileType::Directory {
            At { dir: path, name: Bytes::new(b"") }
        } else {
            let path = path.as_path();
            let dir = path.parent().unwrap_or(Path::new(""));
            let name = path.file_name().unwrap_or_default();
            At { dir: Bytes::from(dir), name: Bytes::new(name.as_bytes()) }
        };
        let (part, before) = (self.part, attributes(pin)?);
        self.wal.write(Step::Attributes { part, at, ino: (seen.dev, seen.ino), before })?;
        restore(pin, file)
    }

    /// Returns the directories whose times are to be put back last.
    fn times(&self) -> Vec<(OwnedFd, i64, i64)> {
        let again = self.work.attributes.iter().chain(self.work.times.iter());
        let time = |id: &Id| {
            let (_, file) = self.work.history.files.get(id)?;
            let is_directory = FileType::from_raw_mode(file.mode) == FileType::Directory;
            let (_, fd) = self.pin(*id).ok().filter(|_| is_directory)?;
            Some((fd, file.atime, file.mtime))
        };
        again.filter_map(time).collect()
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
pub(crate) fn restore(pin: BorrowedFd<'_>, file: &File) -> io::Result<()> {
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

pub(crate) fn set_times(pin: BorrowedFd<'_>, atime: Option<i64>, mtime: i64) -> io::Result<()> {
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
pub(crate) fn empty(hold: &OwnedFd) {
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
