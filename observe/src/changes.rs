//! What a run changed, net: a fold over its events.
//!
//! - I1: `now` maps a name to what stands there, for every name whose state the fold knows; `was` holds every name that
//!   is known to have stood when the run began.
//! - I2: a name that no event spoke of is as it was.
//!
//! An event says what happened to its path; that the path existed before follows from what was done (only an existing
//! file can be deleted). A rename onto an existing file carries the displaced file's version as `version_before`; one
//! that exchanges two names counts as two operations.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use crate::event::{Event, Op};
use crate::run::Changes;
use crate::touch::is_change;

/// How many names the fold follows before it stops being complete.
const LIMIT: usize = 1_000_000;

/// The count of a rename that exchanges two names.
const EXCHANGE: u64 = 2;

/// Something that stands at a name.
#[derive(Clone, Debug)]
struct Thing {
    /// The name it had when the run began; none if the run made it.
    origin: Option<PathBuf>,
    modified: bool,
}

/// The fold.
#[derive(Debug, Default)]
pub(crate) struct NetChanges {
    now: BTreeMap<PathBuf, Option<Thing>>,
    was: BTreeSet<PathBuf>,
    cut: bool,
}

impl NetChanges {
    /// Takes the next event.
    pub(crate) fn add(&mut self, event: &Event) {
        if !is_change(event) {
            return;
        }
        if self.now.len() >= LIMIT {
            self.cut = true;
            return;
        }
        let path = event.path.as_path();
        match event.op {
            Op::Create | Op::Mkdir | Op::Mknod | Op::Symlink => self.make(path),
            Op::Link => {
                if let Some(name) = &event.path2 {
                    self.make(name);
                }
            }
            Op::Unlink | Op::Rmdir => {
                self.take(path);
            }
            Op::Rename => {
                if let Some(to) = &event.path2 {
                    if event.count == EXCHANGE {
                        self.exchange(path, to);
                    } else {
                        self.rename(path, to, event.version_before.is_some());
                    }
                }
            }
            Op::Copy => {
                if let Some(target) = &event.path2 {
                    self.existing(target).modified = true;
                }
            }
            Op::Publish if event.version_before.is_none() && !self.now.contains_key(path) => {
                // Published under a name where nothing stood.
                self.make(path);
            }
            Op::Write
            | Op::Truncate
            | Op::Fallocate
            | Op::Publish
            | Op::Chmod
            | Op::Chown
            | Op::Utimes
            | Op::Setxattr
            | Op::Removexattr => self.existing(path).modified = true,
            Op::Read | Op::Readdir | Op::Exec | Op::Conflict | Op::HostChange | Op::Gap => {}
        }
    }

    fn make(&mut self, path: &Path) {
        match self.now.get_mut(path) {
            // Made where something stands: its content was replaced.
            Some(Some(thing)) => thing.modified = true,
            Some(None) | None => {
                self.now.insert(path.to_owned(), Some(Thing { origin: None, modified: false }));
            }
        }
    }

    /// Returns what stands at a name; what the fold hasn't met was there from the start, perhaps below another name.
    fn existing(&mut self, path: &Path) -> &mut Thing {
        if !self.now.contains_key(path) {
            let origin = self.origin_of(path);
            if let Some(origin) = &origin {
                self.was.insert(origin.clone());
                if origin != path {
                    self.now.entry(origin.clone()).or_insert(None);
                }
            }
            self.now.insert(path.to_owned(), Some(Thing { origin, modified: false }));
        }
        // A name that the fold holds to be free was filled by something it wasn't told of.
        let place = self.now.entry(path.to_owned()).or_default();
        place.get_or_insert(Thing { origin: None, modified: false })
    }

    /// Returns the name that an unknown thing had when the run began, by the nearest directory whose story is known.
    fn origin_of(&self, path: &Path) -> Option<PathBuf> {
        for above in path.ancestors().skip(1) {
            if let Some(Some(directory)) = self.now.get(above) {
                let rest = path.strip_prefix(above).unwrap_or(path);
                return directory.origin.as_ref().map(|origin| origin.join(rest));
            }
        }
        Some(path.to_owned())
    }

    /// Removes what stands at a name.
    fn take(&mut self, path: &Path) -> Thing {
        let thing = self.existing(path).clone();
        self.now.insert(path.to_owned(), None);
        thing
    }

    fn rename(&mut self, from: &Path, to: &Path, displaced: bool) {
        if displaced {
            self.existing(to);
        }
        let mut moved = vec![(to.to_owned(), Some(self.take(from)))];
        // What the fold knows below a directory moves with it.
        let below: Vec<PathBuf> = self
            .now
            .range::<Path, _>((Bound::Excluded(from), Bound::Unbounded))
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(from))
            .cloned()
            .collect();
        for path in below {
            if let (Ok(rest), Some(Some(thing))) =
                (path.strip_prefix(from), self.now.get(&path).cloned())
            {
                moved.push((to.join(rest), Some(thing)));
            }
            self.now.insert(path, None);
        }
        self.now.extend(moved);
    }

    /// Swaps two names, through one that no program can have.
    fn exchange(&mut self, one: &Path, other: &Path) {
        let aside = Path::new("");
        self.existing(other);
        self.rename(one, aside, false);
        self.rename(other, one, false);
        self.rename(aside, other, false);
        self.now.remove(aside);
    }

    /// Returns the changes.
    pub(crate) fn finish(self) -> Changes {
        let mut changes = Changes { complete: !self.cut, ..Changes::default() };
        let mut alive: BTreeSet<&Path> = BTreeSet::new();
        let mut moves: BTreeMap<&Path, &Path> = BTreeMap::new();
        for (path, thing) in &self.now {
            let Some(Thing { origin: Some(origin), .. }) = thing else { continue };
            alive.insert(origin);
            let vacated = self.now.get(origin).is_some_and(Option::is_none);
            if origin != path && vacated {
                moves.insert(origin, path);
            }
        }
        for (path, thing) in &self.now {
            let was_here = self.was.contains(path);
            let Some(thing) = thing else {
                if was_here && !alive.contains(path.as_path()) {
                    changes.deleted.push(path.clone());
                }
                continue;
            };
            match &thing.origin {
                Some(origin) if origin == path => {
                    if thing.modified {
                        changes.modified.push(path.clone());
                    }
                }
                Some(origin) if moves.get(origin.as_path()) == Some(&path.as_path()) => {
                    if !carried(&moves, origin, path) {
                        changes.renamed.push((origin.clone(), path.clone()));
                    }
                    if thing.modified {
                        changes.modified.push(path.clone());
                    }
                }
                Some(_) | None if was_here => changes.modified.push(path.clone()),
                Some(_) | None => changes.created.push(path.clone()),
            }
        }
        changes
    }
}

/// Returns whether a move is what the move of a directory above brought along.
fn carried(moves: &BTreeMap<&Path, &Path>, from: &Path, to: &Path) -> bool {
    from.ancestors().skip(1).any(|above| {
        moves.get(above).is_some_and(|target| {
            from.strip_prefix(above).is_ok_and(|rest| target.join(rest) == to)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Outcome, Process, Time, Version};
    use std::sync::Arc;

    const OLD: Version = Version { size: 1, mtime: 1, ctime: 1 };

    fn event(line: &str) -> Event {
        let mut words = line.split(' ');
        let op = Op::from_name(words.next().unwrap()).unwrap();
        let path = PathBuf::from(words.next().unwrap());
        let path2 = words.next().filter(|word| *word != "over").map(PathBuf::from);
        Event {
            time: Time(0),
            process: Arc::new(Process::default()),
            op,
            path,
            path2,
            key: None,
            outcome: Outcome::Ok,
            bytes_read: None,
            bytes_written: None,
            version_before: line.ends_with(" over").then_some(OLD),
            version_after: None,
            publication: None,
            noted: None,
            count: if line.ends_with(" swap") { EXCHANGE } else { 1 },
        }
    }

    fn show(changes: &Changes) -> String {
        let mut parts = Vec::new();
        for (mark, paths) in
            [("+", &changes.created), ("~", &changes.modified), ("-", &changes.deleted)]
        {
            parts.extend(paths.iter().map(|path| format!("{mark}{}", path.display())));
        }
        parts.extend(
            changes.renamed.iter().map(|(from, to)| format!("{}>{}", from.display(), to.display())),
        );
        parts.join(" ")
    }

    #[test]
    fn the_table_of_net_changes() {
        let rows: &[(&[&str], &str)] = &[
            (&[], ""),
            (&["create /a"], "+/a"),
            (&["create /a", "write /a", "chmod /a"], "+/a"),
            (&["create /a", "unlink /a"], ""),
            (&["create /a", "unlink /a", "create /a"], "+/a"),
            (&["write /a"], "~/a"),
            (&["read /a", "readdir /", "exec /a"], ""),
            (&["publish /a over"], "~/a"),
            (&["publish /a"], "+/a"),
            (&["create /a", "publish /a"], "+/a"),
            (&["unlink /a"], "-/a"),
            (&["unlink /a", "create /a"], "~/a"),
            (&["write /a", "unlink /a"], "-/a"),
            (&["rename /a /b"], "/a>/b"),
            (&["rename /a /b", "rename /b /a"], ""),
            (&["rename /a /b", "rename /b /c"], "/a>/c"),
            (&["write /a", "rename /a /b"], "~/b /a>/b"),
            (&["rename /a /b over"], "/a>/b"),
            (&["rename /a /b", "unlink /b"], "-/a"),
            // An editor that saves through a temporary file.
            (&["create /a.tmp", "write /a.tmp", "rename /a.tmp /a over"], "~/a"),
            (&["create /a.tmp", "rename /a.tmp /a"], "+/a"),
            (&["rename /a /a.bak", "create /a", "unlink /a.bak"], "~/a"),
            (&["rename /a /a.bak", "create /a"], "+/a.bak ~/a"),
            (&["rename /a /b swap"], "~/a ~/b"),
            (&["rename /a /b swap", "rename /a /b swap"], ""),
            (&["create /n", "rename /n /a swap", "unlink /n"], "~/a"),
            (&["write /d/x", "rename /d /e swap"], "~/d ~/e ~/e/x /d/x>/e/x"),
            (&["copy /a /b"], "~/b"),
            (&["link /a /b"], "+/b"),
            (&["mkdir /d", "create /d/a", "unlink /d/a", "rmdir /d"], ""),
            (&["mkdir /d", "create /d/a", "rename /d /e"], "+/e +/e/a"),
            (&["write /d/a", "rename /d /e"], "~/e/a /d>/e"),
            (&["rename /d /e", "write /e/a"], "~/e/a /d>/e"),
            (&["rename /d/a /d/b", "rename /d /e"], "/d>/e /d/a>/e/b"),
            (&["rename /d /e", "unlink /e/a"], "-/d/a /d>/e"),
            (&["mkdir /n", "rename /a /n/a", "unlink /n/a", "rmdir /n"], "-/a"),
            (&["rename /dx /x", "rename /d /e", "write /dx/y"], "~/dx/y /d>/e /dx>/x"),
        ];
        for (events, expected) in rows {
            let mut fold = NetChanges::default();
            for line in *events {
                fold.add(&event(line));
            }
            let changes = fold.finish();
            assert!(changes.complete);
            assert_eq!(show(&changes), *expected, "{events:?}");
        }
    }
}
