//! What a run changed, path by path.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags};

use super::fold::{History, Place};
use super::image::{look, xattrs};
use super::place::Tree;
use super::record::{File, Id, Left};

/// More than this of a file isn't shown.
pub(crate) const LARGEST: u64 = 32 << 20;

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is new.
    Created,
    /// It is gone.
    Deleted,
    /// It isn't what it was.
    Modified,
    /// It has another name, and perhaps other content.
    Renamed,
}

impl Kind {
    /// Returns the stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Deleted => "deleted",
            Self::Modified => "modified",
            Self::Renamed => "renamed",
        }
    }
}

/// One side of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// `st_mode`.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// What is in the file, or where the link leads; none if it isn't known or too long.
    pub content: Option<Vec<u8>>,
    /// Extended attributes, if they are known.
    pub xattrs: Option<usize>,
}

/// A path that a run changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: Kind,
    /// Where it was, as programs saw it; none if it is new.
    pub from: Option<PathBuf>,
    /// Where it is; none if it is gone.
    pub to: Option<PathBuf>,
    /// What it was.
    pub old: Option<Side>,
    /// What it is.
    pub new: Option<Side>,
    /// It isn't any more what the run left.
    pub since: bool,
}

impl Change {
    /// Returns the path that it is listed by.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        self.to.as_deref().or(self.from.as_deref()).unwrap_or_else(|| std::path::Path::new(""))
    }

    /// Tells whether it is about a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        let side = self.new.as_ref().or(self.old.as_ref());
        side.is_some_and(|side| FileType::from_raw_mode(side.mode) == FileType::Directory)
    }
}

/// Lists what a run changed in one directory, sorted by path.
#[must_use]
pub fn changes(history: &History) -> Vec<Change> {
    let mut list = List { history, tree: Tree::open(history).ok(), found: Vec::new() };
    list.names();
    list.in_place();
    let mut found = list.found;
    found.sort_by(|one, other| one.path().cmp(other.path()));
    found
}

struct List<'h> {
    history: &'h History,
    tree: Option<Tree<'h>>,
    found: Vec<Change>,
}

impl List<'_> {
    fn names(&mut self) {
        let history = self.history;
        let (mut then, mut now) = (BTreeMap::new(), BTreeMap::new());
        for (place, entry) in &history.entries {
            if let (Some(id), Some(path)) = (entry.before, history.path_then(place)) {
                then.insert(path, (id, place));
            }
            if let (Some(id), Some(path)) = (entry.after, history.path_now(place)) {
                now.insert(path, (id, place));
            }
        }
        // A file whose old name is gone and whose new one is new has moved.
        let mut arrived: BTreeMap<Id, Vec<&PathBuf>> = BTreeMap::new();
        for (path, (id, _)) in now.iter().filter(|(path, _)| !then.contains_key(*path)) {
            arrived.entry(*id).or_default().push(path);
        }
        let mut told: HashSet<PathBuf> = HashSet::new();
        for (path, (id, place)) in &then {
            let place = *place;
            match (now.get(path), arrived.get_mut(id).and_then(Vec::pop)) {
                (Some((new, at)), _) => {
                    told.insert(path.clone());
                    let (old, new) = (self.old(*id, place), self.at(*new, at));
                    let kinds = [&old, &new]
                        .map(|side| side.as_ref().map(|side| FileType::from_raw_mode(side.mode)));
                    if kinds[0] == kinds[1] || kinds.contains(&None) {
                        self.add(Kind::Modified, Some(path), Some(path), old, new);
                    } else {
                        self.add(Kind::Deleted, Some(path), None, old, None);
                        self.add(Kind::Created, None, Some(path), None, new);
                    }
                }
                (None, Some(to)) => {
                    told.insert(to.clone());
                    let at = now.get(to).map(|(_, at)| *at);
                    let (old, new) = (self.old(*id, place), at.and_then(|at| self.at(*id, at)));
                    self.add(Kind::Renamed, Some(path), Some(to), old, new);
                }
                (None, None) => {
                    let old = self.old(*id, place);
                    self.add(Kind::Deleted, Some(path), None, old, None);
                }
            }
        }
        for (path, (id, place)) in now.iter().filter(|(path, _)| !told.contains(*path)) {
            let new = self.at(*id, place);
            self.add(Kind::Created, None, Some(path), None, new);
        }
    }

    /// What was changed and has the name that it had.
    fn in_place(&mut self) {
        let history = self.history;
        let shown: HashSet<Id> = history
            .entries
            .values()
            .filter(|entry| entry.before.is_some())
            .filter_map(|entry| entry.before)
            .collect();
        for (id, (place, file)) in &history.files {
            let marked = history.images.contains_key(id) || history.left.contains_key(id);
            if shown.contains(id) || history.born.contains(id) || !marked {
                continue;
            }
            let Some(now) = history.place_now(*id) else { continue };
            let (Some(from), Some(to)) = (history.path_then(place), history.path_now(&now)) else {
                continue;
            };
            let (old, new) = (self.old(*id, place), self.at(*id, &now));
            let same_times = self.mtime(&now) == Some(file.mtime);
            if old == new
                && (same_times || FileType::from_raw_mode(file.mode) == FileType::Directory)
            {
                continue;
            }
            self.add(Kind::Modified, Some(&from), Some(&to), old, new);
        }
    }

    fn mtime(&self, place: &Place) -> Option<i64> {
        Some(self.tree.as_ref()?.look(place).ok()??.left.mtime)
    }

    fn add(
        &mut self,
        kind: Kind,
        from: Option<&PathBuf>,
        to: Option<&PathBuf>,
        old: Option<Side>,
        new: Option<Side>,
    ) {
        let shown = |path: &PathBuf| self.history.shown(path);
        let since = to.is_some() && new.is_none();
        let change = Change { kind, from: from.map(shown), to: to.map(shown), old, new, since };
        self.found.push(change);
    }

    /// What a file was before the run.
    fn old(&self, id: Id, place: &Place) -> Option<Side> {
        let history = self.history;
        let kept = history.files.get(&id).map(|(_, file)| file);
        let image = history.images.get(&id);
        let live = history.place_now(id).or_else(|| (!history.is_gone(id)).then(|| place.clone()));
        let mut side = match (kept, &live) {
            (Some(file), _) => from_file(file),
            (None, Some(live)) => self.at(id, live)?,
            (None, None) => return None,
        };
        if FileType::from_raw_mode(side.mode) == FileType::RegularFile {
            if let Some(image) = image {
                let path = history.directory.join(image.number.to_string());
                side.content = (image.size <= LARGEST).then(|| std::fs::read(path).ok()).flatten();
            } else if let Some(live) = &live {
                side.content = self.at(id, live).and_then(|live| live.content);
            }
        }
        Some(side)
    }

    /// What a file is now, if it is the one that the run left.
    fn at(&self, id: Id, place: &Place) -> Option<Side> {
        let tree = self.tree.as_ref()?;
        let seen = tree.look(place).ok()??;
        // A rewrite by the host is another file: that isn't what the run left.
        if !tree.is(&seen, id) {
            return None;
        }
        let dir = tree.directory(place.0).ok()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = rustix::fs::openat(&*dir, &place.1, flags, Mode::empty()).ok()?;
        if look(pin.as_fd(), b"").ok()? != seen {
            return None;
        }
        let Left { mode, uid, gid, size, .. } = seen.left;
        let content = if seen.kind() == FileType::RegularFile && size <= LARGEST {
            read(tree, place).ok()
        } else if seen.kind() == FileType::Symlink {
            rustix::fs::readlinkat(&pin, c"", Vec::new()).ok().map(std::ffi::CString::into_bytes)
        } else {
            None
        };
        let xattrs = xattrs(pin.as_fd()).ok().map(|all| digest(&all));
        Some(Side { mode, owner: (uid, gid), content, xattrs })
    }
}

fn read(tree: &Tree<'_>, place: &Place) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::from(tree.read(place)?).take(LARGEST).read_to_end(&mut content)?;
    Ok(content)
}

fn from_file(file: &File) -> Side {
    Side {
        mode: file.mode,
        owner: (file.uid, file.gid),
        content: file.target.as_ref().map(|target| target.as_slice().to_vec()),
        xattrs: Some(digest(&file.xattrs)),
    }
}

/// Tells sets of extended attributes apart, within one process.
fn digest(all: &[(stockade_policy::text::Bytes, stockade_policy::text::Bytes)]) -> usize {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    for (name, value) in all {
        (name.as_slice(), value.as_slice()).hash(&mut hasher);
    }
    usize::try_from(hasher.finish() >> 1).unwrap_or(usize::MAX)
}
