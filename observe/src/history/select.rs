//! A part of a history: what a run did at and below some paths.

use std::collections::{BTreeSet, HashSet};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stockade_policy::text::Bytes;

use super::fold::{History, Place};
use super::record::Id;

/// The name of the file that says which parts of a history were put back already.
const PUT_BACK: &str = "put-back";

/// What of a history is put back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Selected {
    places: Vec<(Id, Bytes)>,
    files: Vec<Id>,
}

impl History {
    /// Leaves what concerns `paths`, as programs saw them, and whatever can't be put back without: a file that moved goes back
    /// to its old name, a directory that is gone comes back for what lay in it. Returns whether there is anything.
    pub fn select(&mut self, paths: &[PathBuf]) -> bool {
        let below: Vec<&Path> =
            paths.iter().filter_map(|path| path.strip_prefix(&self.base).ok()).collect();
        let whole = paths.iter().any(|path| self.base.starts_with(path));
        let meant = |path: Option<PathBuf>| {
            path.is_some_and(|path| whole || below.iter().any(|top| path.starts_with(top)))
        };
        let mut places: BTreeSet<Place> = self
            .entries
            .keys()
            .filter(|place| meant(self.path_now(place)) || meant(self.path_then(place)))
            .cloned()
            .collect();
        let mut files: HashSet<Id> = self
            .files
            .iter()
            .filter(|(id, (place, _))| {
                let now = self.place_now(**id).and_then(|place| self.path_now(&place));
                **id != self.root && (meant(self.path_then(place)) || meant(now))
            })
            .map(|(id, _)| *id)
            .collect();
        loop {
            let before = (places.len(), files.len());
            for (place, entry) in &self.entries {
                let ids = [entry.before, entry.after];
                let concerned = ids.iter().flatten().any(|id| files.contains(id));
                // What the run made goes with all that the run put into it.
                let goes = self.born.contains(&place.0) && files.contains(&place.0);
                if concerned || goes || places.contains(place) {
                    places.insert(place.clone());
                    files.extend(ids.iter().flatten());
                    if self.is_gone(place.0) {
                        files.insert(place.0);
                    }
                }
            }
            if before == (places.len(), files.len()) {
                break;
            }
        }
        self.entries.retain(|place, _| places.contains(place));
        self.files.retain(|id, _| files.contains(id));
        self.images.retain(|id, _| files.contains(id));
        let gaps = std::mem::take(&mut self.gaps);
        self.gaps = gaps
            .into_iter()
            .filter(|(path, _)| path.as_os_str().is_empty() || meant(Some(path.clone())))
            .collect();
        !self.entries.is_empty() || !self.files.is_empty()
    }

    /// Returns what is left of it.
    pub(crate) fn selected(&self) -> Selected {
        Selected {
            places: self.entries.keys().map(|(id, name)| (*id, Bytes::new(&name[..]))).collect(),
            files: self.files.keys().chain(self.images.keys()).copied().collect(),
        }
    }

    /// Leaves out what was put back already.
    pub(crate) fn leave_out(&mut self) -> io::Result<()> {
        let bytes = match std::fs::read(self.directory.join(PUT_BACK)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let selected: Selected = serde_json::from_slice(line)?;
            for (id, name) in selected.places {
                self.entries.remove(&(id, name.as_slice().to_vec()));
            }
            for id in selected.files {
                self.files.remove(&id);
                self.images.remove(&id);
                self.left.remove(&id);
            }
        }
        Ok(())
    }
}

impl Selected {
    /// Notes that this was put back.
    pub(crate) fn note(&self, history: &Path) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let path = history.join(PUT_BACK);
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)?.write_all(&line)
    }
}
