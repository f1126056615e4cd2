//! From what a run was refused to the grants that would have allowed it.
//!
//! Invariants:
//! - I1: a grant is never wider than what was asked for: a file that was changed is granted itself; a directory is granted
//!   when an entry was made, removed or renamed directly in it, which nothing narrower allows.
//! - I2: what reaches far (the home directory, what lies above it, a directory at the top) is granted when the caller says
//!   so, and else named.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use stockade_observe::{Error, Filter, Op, Outcome, RunId, Store};
use stockade_policy::{Denial, Mode, Remedy, Rule, Rules, fold_roots};

use crate::cli::run::note::refused_name;
use crate::resolve::servable;

/// The first access that a grant is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Why {
    pub(super) op: Op,
    pub(super) path: PathBuf,
    pub(super) exe: PathBuf,
}

/// Grants, and what stands in their way.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// Directories and files to be writable.
    pub(super) roots: BTreeMap<PathBuf, Why>,
    /// Protections to lift, by the path that each stands for; the value has the pattern.
    pub(super) lifts: BTreeMap<PathBuf, (String, Why)>,
    /// Directories that aren't granted unless the caller says so (I2).
    pub(super) wide: BTreeMap<PathBuf, Why>,
    /// Directories that the command would make where nothing narrow can be granted: made before, they can be roots.
    pub(super) missing: BTreeMap<PathBuf, Why>,
    /// What no profile allows, and what would.
    pub(super) refused: BTreeMap<PathBuf, (String, Why)>,
}

/// What one run did.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) needs: Needs,
    /// How much was refused.
    pub(super) denials: u64,
    /// Every path that was changed, or would have been had it not failed.
    pub(super) changed: HashSet<PathBuf>,
    /// What was read although a profile of secrets would deny it: with which rule, by which program.
    pub(super) sensitive: BTreeMap<PathBuf, (String, PathBuf)>,
}

/// What the events are judged by.
pub(super) struct Judge<'a> {
    pub(super) mode: Mode,
    pub(super) roots: &'a [PathBuf],
    pub(super) rules: &'a Rules,
    pub(super) secrets: &'a Rules,
    pub(super) own: &'a [PathBuf],
    pub(super) home: Option<PathBuf>,
    pub(super) wide: bool,
}

fn is_change(op: Op) -> bool {
    !matches!(op, Op::Read | Op::Readdir | Op::Exec | Op::HostChange | Op::Gap | Op::Conflict)
}

impl Judge<'_> {
    /// Reads a run's events.
    pub(super) fn see(&self, store: &Store, run: &RunId) -> Result<Seen, Error> {
        let mut seen = Seen::default();
        let mut read = HashSet::new();
        let filter = Filter { run: Some(run.clone()), ..Filter::default() };
        store.for_each(&filter, |stored| {
            let event = stored.event;
            let why =
                || Why { op: event.op, path: event.path.clone(), exe: event.process.exe.clone() };
            match &event.outcome {
                Outcome::Denied { denial, .. } => {
                    seen.denials += event.count;
                    let second = event.path2.as_deref();
                    self.needed(event.op, &event.path, second, denial, &why(), &mut seen.needs);
                }
                Outcome::Ok | Outcome::Error { .. } if is_change(event.op) => {
                    seen.changed.extend(event.path2);
                    seen.changed.insert(event.path);
                }
                Outcome::Ok if read.insert(event.path.clone()) => {
                    if let Some(denial) = self.secrets.zone(&event.path).read {
                        let rule = denial.source().trim_start_matches("deny-read").trim_start();
                        let by = event.process.exe.clone();
                        seen.sensitive.insert(event.path, (rule.to_owned(), by));
                    }
                }
                Outcome::Ok | Outcome::Error { .. } => {}
            }
            ControlFlow::Continue(())
        })?;
        Ok(seen)
    }

    fn needed(
        &self,
        op: Op,
        path: &Path,
        second: Option<&Path>,
        denial: &Denial,
        why: &Why,
        needs: &mut Needs,
    ) {
        if denial.rule() == Rule::OutsideWritableRoots {
            let inside = |name: &&Path| self.roots.iter().any(|root| name.starts_with(root));
            let names: Vec<&Path> = match (op, second) {
                // What is copied from is only read.
                (Op::Copy, Some(to)) => vec![to],
                _ => std::iter::once(path).chain(second).collect(),
            };
            for name in names.into_iter().filter(|name| !inside(name)) {
                self.root(op, name, why, needs);
            }
            return;
        }
        let name = refused_name(op, path, second, denial, self.rules);
        // Granted already and refused all the same: it is about the other name.
        let name = match second {
            Some(to) if name == path && self.rules.zone(path).write.is_none() => to,
            Some(_) | None => name,
        };
        match Remedy::of(denial, name, self.mode) {
            Remedy::AllowWrite(pattern, path) => {
                needs.lifts.entry(path).or_insert_with(|| (pattern, why.clone()));
            }
            Remedy::Writable(root) => self.grant(root, why, needs),
            remedy @ (Remedy::Mode(_) | Remedy::LeaveOut { .. } | Remedy::Other(_)) => {
                let sentence = remedy.to_string();
                needs.refused.entry(name.to_owned()).or_insert_with(|| (sentence, why.clone()));
            }
        }
    }

    /// Finds the narrowest root that allows `op` on a name (I1).
    fn root(&self, op: Op, name: &Path, why: &Why, needs: &mut Needs) {
        let makes_or_removes = matches!(
            op,
            Op::Create
                | Op::Mkdir
                | Op::Mknod
                | Op::Symlink
                | Op::Link
                | Op::Unlink
                | Op::Rmdir
                | Op::Rename
        );
        let kind = name.symlink_metadata().ok();
        let itself = kind.is_some_and(|found| found.is_file() || found.is_dir());
        if !makes_or_removes && itself {
            return self.grant(name.to_owned(), why, needs);
        }
        let Some(parent) = name.parent() else { return };
        if op == Op::Mkdir && !self.wide && self.is_wide(parent) {
            needs.missing.entry(name.to_owned()).or_insert_with(|| why.clone());
            return;
        }
        self.grant(parent.to_owned(), why, needs);
    }

    fn grant(&self, root: PathBuf, why: &Why, needs: &mut Needs) {
        let own = self.own.iter().any(|own| root.starts_with(own));
        if own || !servable(&root) || root.to_str().is_none() {
            let sentence = if own {
                "no option allows it: it is Stockade's own"
            } else if root.to_str().is_none() {
                "a configuration can't name it: run with `--writable`, which takes any name"
            } else {
                "no option allows it: it can't be a writable root"
            };
            needs.refused.entry(root).or_insert_with(|| (sentence.to_owned(), why.clone()));
            return;
        }
        let list =
            if self.is_wide(&root) && !self.wide { &mut needs.wide } else { &mut needs.roots };
        list.entry(root).or_insert_with(|| why.clone());
    }

    fn is_wide(&self, root: &Path) -> bool {
        root.components().count() <= 2
            || self.home.as_deref().is_some_and(|home| home.starts_with(root))
    }
}

impl Needs {
    /// Adds what another run needed. Returns whether a grant came to it.
    pub(super) fn add(&mut self, other: Self) -> bool {
        fn more<V>(list: &mut BTreeMap<PathBuf, V>, other: BTreeMap<PathBuf, V>) -> bool {
            let before = list.len();
            for (path, value) in other {
                list.entry(path).or_insert(value);
            }
            list.len() > before
        }
        // What is in the way is what was in the way of the last run.
        self.wide = other.wide;
        self.missing = other.missing;
        self.refused = other.refused;
        let roots = more(&mut self.roots, other.roots);
        let lifts = more(&mut self.lifts, other.lifts);
        self.fold();
        roots || lifts
    }

    /// Drops roots that lie in another.
    fn fold(&mut self) {
        let kept = fold_roots(self.roots.keys());
        self.roots.retain(|root, _| kept.contains(root));
        self.missing.retain(|path, _| !kept.iter().any(|root| path.starts_with(root)));
    }

    /// Replaces the files of a directory by the directory where there are more than `most` of them.
    pub(super) fn join_files(&mut self, most: usize, judge: &Judge<'_>) {
        let mut files: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
        for root in self.roots.keys().filter(|root| root.is_file()) {
            let parent = root.parent().map(Path::to_owned).unwrap_or_default();
            files.entry(parent).or_default().push(root.clone());
        }
        for (parent, files) in files {
            let why = files.first().and_then(|file| self.roots.get(file)).cloned();
            if let (true, Some(why)) = (files.len() > most && !judge.is_wide(&parent), why) {
                self.roots.insert(parent, why);
            }
        }
        self.fold();
    }

    /// Leaves out the grants that a run which was refused nothing made no use of. Returns whether there were any.
    pub(super) fn keep_used(&mut self, changed: &HashSet<PathBuf>) -> bool {
        let before = self.roots.len() + self.lifts.len();
        self.roots.retain(|root, _| changed.iter().any(|path| path.starts_with(root)));
        self.lifts.retain(|lifted, _| changed.contains(lifted));
        self.roots.len() + self.lifts.len() < before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.roots.is_empty() && self.lifts.is_empty()
    }

    /// Tells whether something stays refused under these grants.
    pub(super) fn stays_refused(&self) -> bool {
        !(self.wide.is_empty() && self.missing.is_empty() && self.refused.is_empty())
    }
}
