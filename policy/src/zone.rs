//! What may be done at a path: the compiled form of a policy (contract P10).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::{Denial, Mode, Policy, PolicyError, Rule};

/// What may be done to one target. Cheap to clone; kept with each node of the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Why it can't be read, or `None` if it can.
    pub read: Option<Arc<Denial>>,
    /// Why it can't be changed, or `None` if it can.
    pub write: Option<Arc<Denial>>,
}

/// A policy compiled for asking, once per name that comes into view.
#[derive(Clone, Debug)]
pub struct Rules {
    mode: Mode,
    roots: Vec<PathBuf>,
    read_only_mode: Arc<Denial>,
    outside: Arc<Denial>,
    deny_read: PathRules,
    deny_write: PathRules,
}

impl Rules {
    /// Compiles a policy. Each glob is parsed once, here.
    ///
    /// # Errors
    /// A path that isn't absolute, or a glob that can't be parsed.
    pub fn compile(policy: &Policy) -> Result<Self, PolicyError> {
        let roots = policy.writable_roots();
        if let Some(relative) =
            std::iter::once(&policy.root).chain(&roots).find(|root| !root.is_absolute())
        {
            return Err(PolicyError::NotAbsolute(relative.clone()));
        }
        Ok(Self {
            mode: policy.mode,
            roots,
            read_only_mode: Arc::new(Denial::new(Rule::ReadOnlyMode, "mode read-only")),
            outside: Arc::new(Denial::new(Rule::OutsideWritableRoots, "mode workspace-write")),
            deny_read: PathRules::compile(
                &policy.root,
                &policy.deny_read,
                Rule::ReadDenied,
                "deny-read",
            )?,
            deny_write: PathRules::compile(
                &policy.root,
                &policy.deny_write,
                Rule::WriteDenied,
                "deny-write",
            )?,
        })
    }

    /// Returns what may be done at `path`, which is absolute and canonical; the target need not exist.
    #[must_use]
    pub fn zone(&self, path: &Path) -> Zone {
        let read = self.deny_read.hit(path);
        let write = match self.mode {
            Mode::ReadOnly => Some(self.read_only_mode.clone()),
            Mode::WorkspaceWrite if !self.roots.iter().any(|root| path.starts_with(root)) => {
                Some(self.outside.clone())
            }
            Mode::WorkspaceWrite | Mode::DangerFullAccess => {
                self.deny_write.hit(path).or_else(|| read.clone())
            }
        };
        Zone { read, write }
    }
}

/// A list of exact paths, directories and globs, each with the refusal it makes.
#[derive(Clone, Debug, Default)]
struct PathRules {
    set: GlobSet,
    denials: Vec<Arc<Denial>>,
}

impl PathRules {
    fn compile(
        root: &Path,
        patterns: &[String],
        rule: Rule,
        option: &str,
    ) -> Result<Self, PolicyError> {
        let mut set = GlobSetBuilder::new();
        let mut denials = Vec::new();
        for pattern in patterns {
            let absolute = if pattern.starts_with('/') {
                pattern.clone()
            } else {
                format!("{}/{pattern}", root.display())
            };
            let trimmed =
                if absolute.len() > 1 { absolute.trim_end_matches('/') } else { &absolute };
            let denial = Arc::new(Denial::new(rule, format!("{option} {pattern}")));
            for text in [trimmed.to_owned(), format!("{trimmed}/**")] {
                let glob = GlobBuilder::new(&text)
                    .literal_separator(true)
                    .build()
                    .map_err(|source| PolicyError::Glob { pattern: pattern.clone(), source })?;
                set.add(glob);
                denials.push(denial.clone());
            }
        }
        let set = set
            .build()
            .map_err(|source| PolicyError::Glob { pattern: patterns.join(", "), source })?;
        Ok(Self { set, denials })
    }

    fn hit(&self, path: &Path) -> Option<Arc<Denial>> {
        if self.denials.is_empty() {
            return None;
        }
        self.set.matches(path).first().and_then(|&index| self.denials.get(index)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(mode: Mode, change: impl FnOnce(&mut Policy)) -> Rules {
        let mut policy = Policy::new(mode, "/w".into());
        change(&mut policy);
        Rules::compile(&policy).unwrap()
    }

    #[test]
    fn the_table_of_zones() {
        let make = |mode| {
            rules(mode, |policy| {
                policy.extra_roots = vec!["/tmp".into()];
                policy.deny_read = vec!["**/.env".into(), "/w/secrets".into()];
                policy.deny_write = vec!["locked/".into()];
            })
        };
        let (ro, ww, full) =
            (make(Mode::ReadOnly), make(Mode::WorkspaceWrite), make(Mode::DangerFullAccess));
        let rows = [
            (&ro, "/w/a", None, Some(Rule::ReadOnlyMode)),
            (&ww, "/w/a", None, None),
            (&ww, "/tmp/x/y", None, None),
            (&ww, "/etc/passwd", None, Some(Rule::OutsideWritableRoots)),
            (&ww, "/ww/a", None, Some(Rule::OutsideWritableRoots)),
            (&ww, "/w/.env", Some(Rule::ReadDenied), Some(Rule::ReadDenied)),
            (&ww, "/w/a/b/.env", Some(Rule::ReadDenied), Some(Rule::ReadDenied)),
            (&ww, "/w/secrets/deep/er", Some(Rule::ReadDenied), Some(Rule::ReadDenied)),
            (&ww, "/w/locked", None, Some(Rule::WriteDenied)),
            (&ww, "/w/locked/x", None, Some(Rule::WriteDenied)),
            (&full, "/etc/passwd", None, None),
        ];
        for (rules, path, read, write) in rows {
            let zone = rules.zone(Path::new(path));
            assert_eq!(zone.read.as_ref().map(|denial| denial.rule()), read, "read {path}");
            assert_eq!(zone.write.as_ref().map(|denial| denial.rule()), write, "write {path}");
        }
    }

    #[test]
    fn a_broken_glob_is_an_error_that_names_it() {
        let mut policy = Policy::new(Mode::ReadOnly, "/w".into());
        policy.deny_read = vec!["a[".into()];
        assert!(Rules::compile(&policy).unwrap_err().to_string().contains("`a[`"));
    }
}
