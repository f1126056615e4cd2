//! What a journal adds up to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::{Error, Result};
use super::keeper::{BROKEN, JOURNAL, dropped};
use super::record::{File, Id, Image, Left, Record, VERSION};

/// A name in a directory.
pub(crate) type Place = (Id, Vec<u8>);

/// What a name led to before the run's first change, and what the run left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub before: Option<Id>,
    pub after: Option<Id>,
}

/// The history of one directory in one run.
#[derive(Debug)]
pub struct History {
    pub(crate) directory: PathBuf,
    /// Where programs saw it.
    pub(crate) base: PathBuf,
    /// Where it is on the host.
    pub(crate) source: PathBuf,
    pub(crate) root: Id,
    /// Where each directory is, or was last.
    parents: HashMap<Id, Place>,
    /// Where each directory was.
    former: HashMap<Id, Place>,
    pub(crate) files: HashMap<Id, (Place, File)>,
    pub(crate) images: HashMap<Id, Image>,
    pub(crate) entries: BTreeMap<Place, Entry>,
    pub(crate) born: HashSet<Id>,
    pub(crate) left: HashMap<Id, Option<Left>>,
    /// What was changed and can't be put back, and why.
    pub gaps: Vec<(PathBuf, String)>,
    /// Whether nothing is missing: neither was the run interrupted, nor did the journal end early.
    pub sealed: bool,
    /// When the journal was last written, in nanoseconds.
    pub(crate) written: i64,
    /// Places that changed and lead again to what they led to at first.
    steady: HashMap<Place, Option<Id>>,
    /// Other names of files that lost one.
    others: HashMap<Id, Vec<Place>>,
    /// The changed places that lead to a file now.
    named: HashMap<Id, Place>,
    /// What some name of the run's end leads to.
    alive: HashSet<Id>,
    /// What some name has lost.
    lost: HashSet<Id>,
}

impl History {
    /// Opens the histories of a run, one for each directory that it could change; `run` is their directory.
    ///
    /// # Errors
    /// There is none, or it can't be read.
    pub fn open(run: &Path) -> Result<Vec<Self>> {
        if let Ok(why) = fs::read_to_string(dropped(run)) {
            return Err(Error::Dropped(why));
        }
        let parts = match fs::read_dir(run) {
            Ok(parts) => parts,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Error::None),
            Err(error) => return Err(Error::io("read", run)(error)),
        };
        let mut parts: Vec<PathBuf> =
            parts.flatten().map(|part| part.path()).filter(|part| part.is_dir()).collect();
        parts.sort();
        parts.iter().map(|part| Self::read(part)).collect()
    }

    fn read(directory: &Path) -> Result<Self> {
        let mut journal = directory.join(JOURNAL);
        let broken = !journal.exists() && directory.join(BROKEN).exists();
        if broken {
            journal = directory.join(BROKEN);
        }
        let bytes = fs::read(&journal).map_err(Error::io("read", &journal))?;
        let written = fs::metadata(&journal)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
            .and_then(|time| i64::try_from(time.as_nanos()).ok())
            .unwrap_or(i64::MAX);
        let mut records = Vec::new();
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate().peekable();
        while let Some((number, line)) = lines.next() {
            match serde_json::from_slice(line) {
                Ok(record) => records.push(record),
                // A process that was killed may have left half a line; nothing came of it.
                Err(_) if lines.peek().is_none() && !line.ends_with(b"\n") => {}
                Err(_) => return Err(Error::Damaged(number + 1)),
            }
        }
        let mut history = Self::fold(directory, records, written)?;
        history.leave_out().map_err(Error::io("read", directory))?;
        if broken {
            let why = "the history couldn't be written to its end, and the run went on";
            history.gaps.push((PathBuf::new(), why.to_owned()));
        }
        Ok(history)
    }

    fn fold(directory: &Path, records: Vec<Record>, written: i64) -> Result<Self> {
        let void: HashSet<u64> = records
            .iter()
            .filter_map(|record| if let Record::Void { n } = record { Some(*n) } else { None })
            .collect();
        let mut records = records.into_iter();
        let Some(Record::Head { v: VERSION, base, source, root }) = records.next() else {
            return Err(Error::Damaged(1));
        };
        let mut history = Self {
            directory: directory.to_owned(),
            base: base.as_path().to_owned(),
            source: source.as_path().to_owned(),
            root,
            parents: HashMap::new(),
            former: HashMap::new(),
            files: HashMap::new(),
            images: HashMap::new(),
            entries: BTreeMap::new(),
            born: HashSet::new(),
            left: HashMap::new(),
            gaps: Vec::new(),
            sealed: false,
            written,
            steady: HashMap::new(),
            others: HashMap::new(),
            named: HashMap::new(),
            alive: HashSet::new(),
            lost: HashSet::new(),
        };
        for record in records {
            history.take(record, &void);
        }
        for (place, entry) in &history.entries {
            history.alive.extend(entry.after);
            if let Some(id) = entry.before {
                history.lost.insert(id);
                history.former.insert(id, place.clone());
            }
        }
        let (changed, steady) = std::mem::take(&mut history.entries)
            .into_iter()
            .partition(|(_, entry)| entry.before != entry.after);
        history.entries = changed;
        for (place, Entry { before, .. }) in BTreeMap::<Place, Entry>::into_iter(steady) {
            if let Some(id) = before {
                history.others.entry(id).or_default().push(place.clone());
            }
            history.steady.insert(place, before);
        }
        for (place, entry) in &history.entries {
            if let Some(id) = entry.after {
                history.named.entry(id).or_insert_with(|| place.clone());
            }
        }
        Ok(history)
    }

    fn take(&mut self, record: Record, void: &HashSet<u64>) {
        match record {
            Record::Head { .. } | Record::Void { .. } => {}
            Record::Dir { id, parent, name } => {
                self.parents.insert(id, (parent, name.as_slice().to_vec()));
            }
            Record::File { id, at, name, file } => {
                self.files.entry(id).or_insert_with(|| ((at, name.as_slice().to_vec()), file));
            }
            Record::Content { id, image } => {
                self.images.entry(id).or_insert(image);
            }
            Record::Released { id } => {
                self.images.remove(&id);
            }
            Record::Name { id, at, name } => {
                self.others.entry(id).or_default().push((at, name.as_slice().to_vec()));
            }
            Record::Entry { n, at, name, before, after } => {
                if void.contains(&n) {
                    return;
                }
                let place = (at, name.as_slice().to_vec());
                if let Some(id) = after {
                    self.parents.insert(id, place.clone());
                }
                self.entries.entry(place).or_insert(Entry { before, after }).after = after;
            }
            Record::Born { id } => {
                self.born.insert(id);
            }
            Record::Left { id, left } => {
                self.left.insert(id, left);
            }
            Record::Gap { path, why } => self.gaps.push((path.as_path().to_owned(), why)),
            Record::Sealed => self.sealed = true,
        }
    }

    /// Tells whether a file was gone when the run ended, as far as is known.
    pub(crate) fn is_gone(&self, id: Id) -> bool {
        id != self.root
            && (self.born.contains(&id) || self.lost.contains(&id))
            && !self.alive.contains(&id)
            && self.same_place(id).is_none()
    }

    /// Returns a name of a file that the run didn't change.
    pub(crate) fn same_place(&self, id: Id) -> Option<Place> {
        let others = self.others.get(&id).into_iter().flatten().rev();
        let places = others.chain(self.files.get(&id).map(|(place, _)| place));
        let same = |place: &&Place| {
            let leads = self.steady.get(*place).is_none_or(|leads| *leads == Some(id));
            leads && place.0 != id && !self.entries.contains_key(*place) && !self.is_gone(place.0)
        };
        places.into_iter().find(same).cloned()
    }

    /// Returns where a directory is, below the root, as the run left it.
    pub(crate) fn directory_now(&self, id: Id) -> Option<PathBuf> {
        self.climb(id, |id| self.parents.get(&id))
    }

    /// Returns where a directory was.
    fn directory_then(&self, id: Id) -> Option<PathBuf> {
        self.climb(id, |id| self.former.get(&id).or_else(|| self.parents.get(&id)))
    }

    fn climb<'a>(&self, id: Id, up: impl Fn(Id) -> Option<&'a Place>) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = id;
        while at != self.root {
            let (parent, name) = up(at)?;
            names.push(OsStr::from_bytes(name));
            at = *parent;
            if names.len() > 4096 {
                return None;
            }
        }
        Some(names.iter().rev().collect())
    }

    /// Returns the path that a place has now, below the root.
    pub(crate) fn path_now(&self, (at, name): &Place) -> Option<PathBuf> {
        Some(self.directory_now(*at)?.join(OsStr::from_bytes(name)))
    }

    /// Returns the path that a place had.
    pub(crate) fn path_then(&self, (at, name): &Place) -> Option<PathBuf> {
        if self.born.contains(at) {
            return None;
        }
        Some(self.directory_then(*at)?.join(OsStr::from_bytes(name)))
    }

    /// Returns the place of a file that was changed without its names changing.
    pub(crate) fn place_now(&self, id: Id) -> Option<Place> {
        if let Some(place) = self.named.get(&id) {
            return Some(place.clone());
        }
        if id == self.root { None } else { self.same_place(id) }
    }

    /// Returns a path as programs saw it.
    #[must_use]
    pub fn shown(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }
}
