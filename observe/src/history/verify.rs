//! Finds everything as the run left it, and a source for all that is to come back, before anything is touched (H4).

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags};

use super::error::{Error, Result};
use super::fold::{Entry, History, Place};
use super::image::{Seen, digest, look, reopen};
use super::place::Tree;
use super::record::{Id, Left};
use super::undo::Refusal;

/// A directory's own times are left alone if it was changed this much later than the journal (nanoseconds).
const SLACK: i64 = 100_000_000;

/// What is to be done in one history, all of it possible.
#[derive(Debug)]
pub(crate) struct Work<'h> {
    pub history: &'h History,
    pub tree: Tree<'h>,
    /// Names that lead to what the run put there.
    pub detach: Vec<(Place, Id, Seen)>,
    /// Names that are to lead to what they led to.
    pub attach: Vec<(Place, Id)>,
    /// Files that are there and whose content goes back.
    pub rewrite: Vec<Id>,
    /// Files whose attributes go back.
    pub attributes: Vec<Id>,
    /// Directories of which only the times go back.
    pub times: Vec<Id>,
    /// Where files are that keep a name throughout.
    pub elsewhere: HashMap<Id, (OwnedFd, Vec<u8>)>,
    refusals: Vec<Refusal>,
}

pub(crate) fn verify(history: &History) -> std::result::Result<Work<'_>, Vec<Refusal>> {
    let refuse = |why: String| vec![Refusal { path: history.base.clone(), why }];
    let tree = Tree::open(history)
        .map_err(|error| refuse(format!("its directory can't be used: {error}")))?;
    let mut work = Work {
        history,
        tree,
        detach: Vec::new(),
        attach: Vec::new(),
        rewrite: Vec::new(),
        attributes: Vec::new(),
        times: Vec::new(),
        elsewhere: HashMap::new(),
        refusals: Vec::new(),
    };
    for (place, entry) in &history.entries {
        work.entry(place, *entry);
    }
    work.changed_in_place();
    work.sources();
    work.leftovers();
    if work.refusals.is_empty() { Ok(work) } else { Err(work.refusals) }
}

impl Work<'_> {
    fn refuse(&mut self, place: &Place, why: impl Into<String>) {
        let path = self.history.path_now(place).or_else(|| self.history.path_then(place));
        let path = path.unwrap_or_else(|| PathBuf::from(OsStr::from_bytes(&place.1)));
        self.refusals.push(Refusal { path: self.history.shown(&path), why: why.into() });
    }

    fn entry(&mut self, place: &Place, entry: Entry) {
        if self.history.is_gone(place.0) {
            // Its directory comes back empty, or was made and removed by the run.
            if let Some(id) = entry.before {
                self.attach.push((place.clone(), id));
            }
            return;
        }
        let found = match self.tree.look(place) {
            Ok(found) => found,
            Err(error) => {
                return self.refuse(place, format!("its directory can't be found: {error}"));
            }
        };
        match (entry.after, found) {
            (None, None) => {}
            (None, Some(_)) => return self.refuse(place, "it was made since"),
            (Some(id), None) if self.history.born.contains(&id) && entry.before.is_none() => return,
            (Some(_), None) => return self.refuse(place, "it was removed since"),
            (Some(id), Some(seen)) if self.tree.is(&seen, id) => {
                if let Some(why) = self.differs(id, Some(place), &seen) {
                    return self.refuse(place, why);
                }
                self.detach.push((place.clone(), id, seen));
            }
            (Some(_), Some(_)) => return self.refuse(place, "it was replaced since"),
        }
        if let Some(id) = entry.before {
            self.attach.push((place.clone(), id));
        }
    }

    /// Tells whether a file isn't as the run left it.
    fn differs(&self, id: Id, place: Option<&Place>, seen: &Seen) -> Option<String> {
        let left = match self.history.left.get(&id) {
            None => return None,
            Some(None) => {
                return Some(
                    "it was being written when the run ended, so whether it has changed \
                             since can't be told"
                        .to_owned(),
                );
            }
            Some(Some(left)) => *left,
        };
        let now = seen.left;
        let attributes = |left: Left| (left.mode, left.uid, left.gid);
        let content = |left: Left| (left.size, left.mtime);
        if attributes(left) != attributes(now) {
            Some("its mode or owner has changed since".to_owned())
        } else if seen.kind() != FileType::Directory && content(left) != content(now) {
            Some("it has changed since".to_owned())
        } else if left.xattrs.is_some() && left.xattrs != self.xattrs(place) {
            Some("its extended attributes have changed since".to_owned())
        } else {
            None
        }
    }

    fn xattrs(&self, place: Option<&Place>) -> Option<u64> {
        let Some(place) = place else { return digest(self.tree.root.as_fd()).ok() };
        let dir = self.tree.directory(place.0).ok()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = rustix::fs::openat(&*dir, &place.1, flags, Mode::empty()).ok()?;
        digest(pin.as_fd()).ok()
    }

    /// Files that were changed and are still there, under the same name or another.
    fn changed_in_place(&mut self) {
        let mut ids: Vec<Id> = self.history.files.keys().copied().collect();
        ids.sort();
        for id in ids {
            if self.history.born.contains(&id) {
                continue;
            }
            let place = if id == self.history.root {
                None
            } else {
                match self.history.place_now(id) {
                    Some(place) => Some(place),
                    None => continue,
                }
            };
            let seen = match &place {
                Some(place) => self.tree.look(place),
                None => look(self.tree.root.as_fd(), b"").map(Some),
            };
            let written = self.history.images.contains_key(&id);
            let marked = self.history.left.contains_key(&id);
            match (seen, place) {
                (Ok(Some(seen)), place) if self.tree.is(&seen, id) => {
                    if let Some(why) = self.differs(id, place.as_ref(), &seen) {
                        // What was moved is refused already.
                        let place = place.unwrap_or((id, Vec::new()));
                        if !self.history.entries.contains_key(&place) {
                            self.refuse(&place, why);
                        }
                        continue;
                    }
                    if written {
                        self.rewrite.push(id);
                    }
                    if marked {
                        self.attributes.push(id);
                    } else if seen.kind() == FileType::Directory
                        && seen.left.mtime <= self.history.written.saturating_add(SLACK)
                    {
                        self.times.push(id);
                    }
                }
                (_, Some(place))
                    if (written || marked) && !self.history.entries.contains_key(&place) =>
                {
                    self.refuse(&place, "it was moved, removed or replaced since");
                }
                _ => {}
            }
        }
    }

    /// Sees to it that all that is to come back can.
    fn sources(&mut self) {
        let detached: HashSet<Id> = self.detach.iter().map(|(_, id, _)| *id).collect();
        let mut wanted: Vec<(Place, Id)> = Vec::new();
        for (place, id) in self.attach.clone() {
            if detached.contains(&id) {
                continue;
            }
            if let Some(same) = self.history.same_place(id)
                && let Ok(Some(seen)) = self.tree.look(&same)
                && self.tree.is(&seen, id)
            {
                continue;
            }
            if let Some(image) = self.history.images.get(&id) {
                let path = self.history.directory.join(image.number.to_string());
                match kept(&path) {
                    Ok(left) if (left.size, left.mtime) == (image.size, image.mtime) => {}
                    Ok(_) => self.refuse(&place, "what was kept of it was changed"),
                    Err(error) => {
                        self.refuse(&place, format!("what was kept of it is gone: {error}"))
                    }
                }
                continue;
            }
            let makes_anew = self.history.files.get(&id).is_some_and(|(_, file)| {
                FileType::from_raw_mode(file.mode) != FileType::RegularFile
            });
            if !makes_anew {
                wanted.push((place, id));
            }
        }
        if wanted.is_empty() {
            return;
        }
        // They have names that the run didn't touch.
        let ids: HashSet<Id> = wanted.iter().map(|(_, id)| *id).collect();
        if let Ok(top) = reopen(&self.tree.root, OFlags::RDONLY | OFlags::DIRECTORY) {
            self.search(top, &ids);
        }
        for (place, id) in wanted {
            if self.elsewhere.contains_key(&id) {
                continue;
            }
            let path = self.history.path_then(&place).unwrap_or_default();
            let gap = self.history.gaps.iter().find(|(at, _)| *at == path);
            let why = gap.map_or_else(
                || "its other names can't be found".to_owned(),
                |(_, why)| why.clone(),
            );
            self.refuse(&place, why);
        }
        // What was changed in place without having been kept stands in the way as well.
    }

    fn search(&mut self, dir: OwnedFd, ids: &HashSet<Id>) {
        let Ok(entries) = Dir::read_from(&dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let Ok(seen) = look(dir.as_fd(), name) else { continue };
            if seen.kind() == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if seen.dev == self.device()
                    && let Ok(below) = rustix::fs::openat(&dir, name, flags, Mode::empty())
                {
                    self.search(below, ids);
                }
                continue;
            }
            let id = ids.iter().find(|id| self.tree.is(&seen, **id)).copied();
            if let Some(id) = id
                && !self.elsewhere.contains_key(&id)
                && let Ok(dir) = dir.try_clone()
            {
                self.elsewhere.insert(id, (dir, name.to_vec()));
            }
        }
    }

    fn device(&self) -> u64 {
        look(self.tree.root.as_fd(), b"").map_or(0, |seen| seen.dev)
    }

    /// A directory that the run made goes away, so it must hold nothing else; and what could not be kept is named.
    fn leftovers(&mut self) {
        let mut strangers = Vec::new();
        for (_, id, seen) in &self.detach {
            if seen.kind() != FileType::Directory || !self.history.born.contains(id) {
                continue;
            }
            let listed = self
                .tree
                .directory(*id)
                .and_then(|dir| reopen(&*dir, OFlags::RDONLY | OFlags::DIRECTORY))
                .and_then(|dir| Ok(Dir::read_from(&dir)?));
            let Ok(entries) = listed else {
                strangers.push(((*id, Vec::new()), "it can't be listed".to_owned()));
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name().to_bytes();
                let place = (*id, name.to_vec());
                let ours =
                    || self.history.entries.get(&place).is_some_and(|entry| entry.after.is_some());
                if name != b"." && name != b".." && !ours() {
                    strangers.push((place, "it was made since".to_owned()));
                }
            }
        }
        for (place, why) in strangers {
            self.refuse(&place, why);
        }
        let named: HashSet<PathBuf> =
            self.refusals.iter().map(|refusal| refusal.path.clone()).collect();
        for (path, why) in &self.history.gaps {
            let path = self.history.shown(path);
            if !named.contains(&path) {
                self.refusals.push(Refusal { path, why: why.clone() });
            }
        }
    }
}

fn kept(path: &Path) -> std::io::Result<Left> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(look(fd.as_fd(), b"")?.left)
}

/// Gathers the work of all the histories of a run, or everything that stands in its way.
pub(crate) fn verify_all(histories: &[History]) -> Result<Vec<Work<'_>>> {
    let (mut works, mut refusals) = (Vec::new(), Vec::new());
    for history in histories {
        match verify(history) {
            Ok(work) => works.push(work),
            Err(some) => refusals.extend(some),
        }
    }
    if refusals.is_empty() { Ok(works) } else { Err(Error::Refused(refusals)) }
}
