//! An undo's own journal: each step is written, and on the disk, before it is done. So whoever finds one whose undo is
//! gone can take back what was done, or, once all of it was, finish it.
//!
//! Steps speak of paths below a directory that is put back, as they were at the moment of the step, and of inodes. Taken
//! back in the reverse order, each path leads where it did; whether a step was done is told by the inode.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags};
use serde::{Deserialize, Serialize};
use stockade_policy::text::Bytes;

use super::error::{Error, Result};
use super::image::{look, magic};
use super::put::{empty, restore, set_times, write_over};
use super::record::File as Attributes;
use super::select::Selected;

/// The name of an undo's journal in the directory of the run's histories.
const UNDOING: &str = "undoing";
/// Says that a run was undone.
pub(crate) const UNDONE: &str = "undone";

/// Device and inode.
pub(crate) type Inode = (u64, u64);

/// A directory that is put back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Where it is on the host.
    pub source: Bytes,
    /// Its inode.
    pub ino: u64,
    /// The name of the directory of ours in it.
    pub hold: Bytes,
    /// Its modification time.
    pub mtime: i64,
}

/// A name below a directory that is put back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct At {
    /// The directory, below the part's.
    pub dir: Bytes,
    pub name: Bytes,
}

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "s", rename_all = "kebab-case")]
pub(crate) enum Step {
    /// The first line.
    Begin { parts: Vec<Part>, some: Option<Vec<(Bytes, Selected)>>, images: Vec<Bytes> },
    /// A directory in which something is about to change.
    Directory { part: usize, at: At, ino: Inode, mtime: i64 },
    /// A name moves.
    Moved { part: usize, from: At, to: At, ino: Inode },
    /// Two names are exchanged; `ino` is what `one` leads to.
    Swapped { part: usize, one: At, other: At, ino: Inode },
    /// A file gets a further name.
    Linked { part: usize, at: At, ino: Inode },
    /// A file is written over; what was in it is in `backup`.
    Written { part: usize, at: At, ino: Inode, backup: At, mtime: i64 },
    /// A file's attributes change from these.
    Attributes { part: usize, at: At, ino: Inode, before: Attributes },
    /// Everything is put back; what is left to do is tidying up.
    Done,
    /// A step, by its number among the lines, was taken back, and all those after it: their paths lead nowhere any more.
    Back { step: usize },
}

/// The journal of an undo that goes on.
#[derive(Debug)]
pub(crate) struct Wal {
    path: PathBuf,
    /// Locked as long as the undo lives.
    file: File,
    steps: Vec<Step>,
}

/// What became of an undo that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// There was none.
    Nothing,
    /// What it had done was taken back: everything is as the run left it.
    TakenBack,
    /// It had done everything: the run is undone.
    Finished,
}

impl Wal {
    /// Begins one.
    ///
    /// `some` says what is put back, by history, where that isn't all of it; `images` are the files of the history that
    /// nobody needs then.
    pub fn begin(
        run: &Path,
        parts: Vec<Part>,
        some: Option<Vec<(Bytes, Selected)>>,
        images: Vec<Bytes>,
    ) -> Result<Self> {
        let path = run.join(UNDOING);
        if let Some(pointer) = pointer(run) {
            point(&pointer).map_err(Error::io("write", &pointer))?;
        }
        let mut options = OpenOptions::new();
        options.append(true).read(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists {
                Error::Busy
            } else {
                Error::io("write", &path)(error)
            }
        })?;
        let mut wal = Self { path, file, steps: Vec::new() };
        let begun = (|| {
            rustix::fs::flock(&wal.file, FlockOperation::NonBlockingLockExclusive)?;
            wal.write(Step::Begin { parts, some, images })?;
            // A start may have found no journal yet, and taken it away.
            pointer(run).map_or(Ok(()), |pointer| point(&pointer))?;
            File::open(run)?.sync_all()
        })();
        if let Err(error) = begun {
            let _stays = remove(run);
            return Err(Error::io("write", &wal.path)(error));
        }
        Ok(wal)
    }

    /// Notes what is about to be done.
    pub fn write(&mut self, step: Step) -> io::Result<()> {
        let mut line = serde_json::to_vec(&step)?;
        line.push(b'\n');
        reached();
        self.file.write_all(&line)?;
        if !matches!(step, Step::Directory { .. }) {
            self.file.sync_data()?;
        }
        self.steps.push(step);
        reached();
        Ok(())
    }

    /// Says that everything is put back; it stays so from now on.
    pub fn done(&mut self, roots: &[BorrowedFd<'_>]) -> io::Result<()> {
        for root in roots {
            // What was put back must be there before what it replaces is gone.
            rustix::fs::syncfs(super::image::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        }
        self.write(Step::Done)
    }

    /// Takes everything back.
    pub fn take_back(self, run: &Path) -> std::result::Result<(), io::Error> {
        take_back(&self.steps, self.file)?;
        remove(run)
    }

    /// Ends it, when everything is put back.
    pub fn end(self, run: &Path) -> io::Result<()> {
        mark(run, &self.steps)?;
        reached();
        discard(&self.steps);
        reached();
        remove(run)
    }
}

/// Takes back what an undo of a run had done when it was killed, or finishes it. `run` is the directory of its histories.
///
/// # Errors
/// One goes on just now, or something stands in the way.
pub fn recover(run: &Path) -> Result<Recovered> {
    let path = run.join(UNDOING);
    let file = match OpenOptions::new().read(true).append(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recovered::Nothing),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Error::Busy);
    }
    let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
    let (mut steps, mut whole) = (Vec::new(), 0);
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        match serde_json::from_slice(line) {
            Ok(step) if line.ends_with(b"\n") => {
                steps.push(step);
                whole += line.len() as u64;
            }
            Ok(_) => {}
            // Half a line: nothing came of it.
            Err(_) if lines.peek().is_none() => {}
            Err(_) => return Err(Error::Damaged(number + 1)),
        }
    }
    let failed = |error| Error::io("take back what an undo had done, as noted in", &path)(error);
    let recovered = if matches!(steps.last(), Some(Step::Done)) {
        tidy(&steps).map_err(failed)?;
        mark(run, &steps).map_err(Error::io("write", run))?;
        discard(&steps);
        Recovered::Finished
    } else {
        file.set_len(whole).map_err(Error::io("write", &path))?;
        take_back(&steps, file).map_err(failed)?;
        Recovered::TakenBack
    };
    remove(run).map_err(Error::io("remove", &path))?;
    Ok(recovered)
}

/// Recovers each run below `state` whose undo was killed, and says of which.
pub fn recover_all(state: &Path) -> Vec<(PathBuf, Result<Recovered>)> {
    // There may be thousands of sessions, and each start asks.
    let Ok(pointers) = fs::read_dir(state.join(POINTERS)) else { return Vec::new() };
    let mut recovered = Vec::new();
    for pointer in pointers.flatten() {
        let name = pointer.file_name();
        let Some((session, run)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let run = state.join("sessions").join(session).join("history").join(run);
        match recover(&run) {
            Err(Error::Busy) => {}
            Ok(Recovered::Nothing) => {
                // Its undo ended or was killed before it had begun; or it is just about to begin, and points to it again.
                let _gone = fs::remove_file(pointer.path());
            }
            result => recovered.push((run, result)),
        }
    }
    recovered
}

/// The directory, in the state directory, of a file for each run that is being undone.
const POINTERS: &str = "undoing";

/// Returns the file that says of a run that it is being undone.
fn pointer(run: &Path) -> Option<PathBuf> {
    let history = run.parent().filter(|path| path.ends_with("history"))?;
    let session = history.parent()?;
    let sessions = session.parent().filter(|path| path.ends_with("sessions"))?;
    let name = format!("{}.{}", session.file_name()?.to_str()?, run.file_name()?.to_str()?);
    Some(sessions.parent()?.join(POINTERS).join(name))
}

fn point(pointer: &Path) -> io::Result<()> {
    if let Some(directory) = pointer.parent() {
        let made = fs::DirBuilder::new().mode(0o700).create(directory);
        made.or_else(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
        })?;
    }
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(pointer).map(drop)
}

/// Removes the journal of a run.
fn remove(run: &Path) -> io::Result<()> {
    fs::remove_file(run.join(UNDOING))?;
    if let Some(pointer) = pointer(run) {
        // Without it, the next start has to look.
        let _stays = fs::remove_file(pointer);
    }
    Ok(())
}

/// Says that the run was undone, or what of it.
fn mark(run: &Path, steps: &[Step]) -> io::Result<()> {
    match steps.first() {
        Some(Step::Begin { some: Some(some), .. }) => {
            some.iter().try_for_each(|(history, selected)| selected.note(history.as_path()))
        }
        _ => fs::write(run.join(UNDONE), ""),
    }
}

/// Removes the images: they may be the very files that are in use again.
fn discard(steps: &[Step]) {
    let Some(Step::Begin { images, .. }) = steps.first() else { return };
    for image in images {
        if let Err(error) = fs::remove_file(image.as_path())
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, "an image stays");
        }
    }
}

fn parts(steps: &[Step]) -> &[Part] {
    match steps.first() {
        Some(Step::Begin { parts, .. }) => parts,
        _ => &[],
    }
}

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_part(part: &Part) -> io::Result<OwnedFd> {
    let root = rustix::fs::openat(CWD, part.source.as_path(), DIRECTORY, Mode::empty())?;
    if look(root.as_fd(), b"")?.ino == part.ino {
        Ok(root)
    } else {
        Err(io::Error::other(format!(
            "`{}` is another directory now",
            part.source.as_path().display()
        )))
    }
}

/// A name, found by walking to it.
struct Place {
    dir: OwnedFd,
    name: Vec<u8>,
}

impl Place {
    fn open(root: &OwnedFd, at: &At) -> io::Result<Self> {
        let mut dir = root.try_clone()?;
        for part in at.dir.as_path().components() {
            let Component::Normal(name) = part else { continue };
            dir = rustix::fs::openat(&dir, name, DIRECTORY, Mode::empty())?;
        }
        Ok(Self { dir, name: at.name.as_slice().to_vec() })
    }

    fn leads_to(&self, ino: Inode) -> bool {
        look(self.dir.as_fd(), &self.name).is_ok_and(|seen| (seen.dev, seen.ino) == ino)
    }

    fn rename(&self, to: &Self, flags: RenameFlags) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(&self.dir, &self.name, &to.dir, &to.name, flags)?)
    }

    fn open_file(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())?)
    }
}

/// Takes the steps back, from the last one on, and notes each in the journal: it may be killed, too, and goes on from there.
fn take_back(steps: &[Step], journal: File) -> io::Result<()> {
    let roots = parts(steps).iter().map(open_part).collect::<io::Result<Vec<_>>>()?;
    let mut journal = Some(journal);
    let number = |step: &Step| if let Step::Back { step } = step { Some(*step) } else { None };
    let left = steps.iter().rev().find_map(number);
    for (number, step) in steps.iter().enumerate().take(left.unwrap_or(steps.len())).rev() {
        undo_step(step, &roots)?;
        reached();
        // Without room for it, what is left is to go on.
        let noted = journal.as_mut().map(|journal| {
            let mut line = serde_json::to_vec(&Step::Back { step: number })?;
            line.push(b'\n');
            journal.write_all(&line)?;
            journal.sync_data()
        });
        if let Some(Err(error)) = noted {
            tracing::debug!(%error, "what is taken back isn't noted");
            journal = None;
        }
        reached();
    }
    tidy(steps)
}

fn undo_step(step: &Step, roots: &[OwnedFd]) -> io::Result<()> {
    let place = |part: usize, at: &At| {
        let root = roots.get(part).ok_or(io::ErrorKind::InvalidData)?;
        Place::open(root, at)
    };
    let missing = |at: &At| {
        io::Error::other(format!(
            "`{}` isn't where it was",
            Path::new(OsStr::from_bytes(at.name.as_slice())).display()
        ))
    };
    match step {
        Step::Begin { .. } | Step::Done | Step::Back { .. } => Ok(()),
        Step::Directory { part, at, ino, mtime } => {
            // It was noted before the first change, so all of them are taken back by now.
            let Ok(place) = place(*part, at) else { return Ok(()) };
            let seen = look(place.dir.as_fd(), b"");
            if seen.is_ok_and(|seen| (seen.dev, seen.ino) == *ino)
                && let Err(error) = set_times(place.dir.as_fd(), None, *mtime)
            {
                tracing::debug!(%error, "a directory's times stay");
            }
            Ok(())
        }
        Step::Moved { part, from, to, ino } => {
            let (one, other) = (place(*part, from)?, place(*part, to)?);
            if other.leads_to(*ino) {
                other.rename(&one, RenameFlags::NOREPLACE)
            } else if one.leads_to(*ino) {
                Ok(())
            } else {
                Err(missing(from))
            }
        }
        Step::Swapped { part, one, other, ino } => {
            let (first, second) = (place(*part, one)?, place(*part, other)?);
            if second.leads_to(*ino) {
                first.rename(&second, RenameFlags::EXCHANGE)
            } else if first.leads_to(*ino) {
                Ok(())
            } else {
                Err(missing(other))
            }
        }
        Step::Linked { part, at, ino } => {
            let place = place(*part, at)?;
            if place.leads_to(*ino) {
                rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::empty())?;
            }
            Ok(())
        }
        Step::Written { part, at, ino, backup, mtime } => {
            let place_of = place(*part, at)?;
            if !place_of.leads_to(*ino) {
                return Err(missing(at));
            }
            let file = place_of.open_file(OFlags::RDWR)?;
            write_over(place(*part, backup)?.open_file(OFlags::RDONLY)?.as_fd(), file.as_fd())?;
            set_times(file.as_fd(), None, *mtime)
        }
        Step::Attributes { part, at, ino, before } => {
            let place = place(*part, at)?;
            let pin =
                if place.name.is_empty() { place.dir } else { place.open_file(OFlags::PATH)? };
            let seen = look(pin.as_fd(), b"")?;
            if (seen.dev, seen.ino) != *ino {
                return Err(missing(at));
            }
            restore(pin.as_fd(), before)
        }
    }
}

/// Removes the directories of ours with what is in them.
fn tidy(steps: &[Step]) -> io::Result<()> {
    for part in parts(steps) {
        let root = open_part(part)?;
        let name = part.hold.as_slice();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&root, name, flags, Mode::empty()) {
            Ok(hold) => empty(&hold),
            Err(rustix::io::Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        }
        rustix::fs::unlinkat(&root, name, AtFlags::REMOVEDIR)?;
        // Removing it has moved the time of the one that held it.
        if let Err(error) = set_times(root.as_fd(), None, part.mtime) {
            tracing::debug!(%error, "the times of a directory stay");
        }
    }
    Ok(())
}

/// Returns the path of an open directory below an open root.
pub(crate) fn below(root: BorrowedFd<'_>, dir: BorrowedFd<'_>) -> io::Result<Bytes> {
    let (top, path) = (fs::read_link(magic(root))?, fs::read_link(magic(dir))?);
    match path.strip_prefix(&top) {
        Ok(below) => Ok(Bytes::from(below)),
        Err(_) => Err(io::Error::other("a directory was moved away just now")),
    }
}

/// Kills this process at the point that `STOCKADE_UNDO_FAILPOINT` counts: each line of the journal has one before it and
/// one after it, and each step that is taken back one. Release builds have none.
#[cfg(debug_assertions)]
fn reached() {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let wanted = std::env::var("STOCKADE_UNDO_FAILPOINT").ok().and_then(|at| at.parse().ok());
    if wanted == Some(COUNT.fetch_add(1, Ordering::Relaxed) + 1) {
        let own = rustix::process::getpid();
        if let Err(error) = rustix::process::kill_process(own, rustix::process::Signal::KILL) {
            tracing::error!(%error, "the undo can't be killed");
        }
        std::process::abort();
    }
}

#[cfg(not(debug_assertions))]
fn reached() {}
