//! What may be done at a path: the compiled form of a policy (contract P10, P11).
//!
//! The first row that applies decides:
//!
//! | | write | read |
//! |---|---|---|
//! | 1 | `read-only` mode: `read-only-mode` | `deny_read`: `read-denied` |
//! | 2 | outside the writable roots: `outside-writable-roots` | else allowed |
//! | 3 | Stockade's own files: `protected-path` | |
//! | 4 | `deny_write`: `write-denied` | |
//! | 5 | `deny_read`: `read-denied` | |
//! | 6 | protected and not lifted by `allow_write`: `protected-path` (not in `danger-full-access`) | |
//! | 7 | else allowed | |
//!
//! `allow_write` lifts row 6 and nothing else.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::pattern::{PathRules, Scopes, strip};
use crate::protection::{self, Class, ConfigKind};
use crate::{Denial, Mode, Policy, PolicyError, Rule, fold_roots};

/// Where a refusal comes from that is about Stockade's own files.
pub(crate) const OWN_FILES: &str = "stockade's own files";

/// What may be done to one target. Cheap to clone; kept with each node of the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Why it can't be read, or `None` if it can.
    pub read: Option<Arc<Denial>>,
    /// Why its content and attributes can't be changed, or `None` if they can. What may take the name, leave it or
    /// be linked to it is said by [`Rules::create_refused`] and its siblings.
    pub write: Option<Arc<Denial>>,
}

/// A policy compiled for asking, once per name that comes into view.
#[derive(Clone, Debug)]
pub struct Rules {
    pub(crate) mode: Mode,
    pub(crate) root: PathBuf,
    roots: Vec<PathBuf>,
    names: PathRules,
    pub(crate) scopes: Scopes,
    read_only_mode: Arc<Denial>,
    outside: Arc<Denial>,
    pub(crate) own: PathRules,
    pub(crate) deny_read: PathRules,
    pub(crate) deny_write: PathRules,
    pub(crate) allow_write: PathRules,
    publish_direct: PathRules,
}

impl Rules {
    /// Compiles a policy. Each glob is parsed once, here.
    ///
    /// # Errors
    /// A path that isn't absolute, or a pattern that can't be used.
    pub fn compile(policy: &Policy) -> Result<Self, PolicyError> {
        let roots = policy.writable_roots();
        let all: Vec<&PathBuf> =
            std::iter::once(&policy.root).chain(&policy.extra_roots).chain(&roots).collect();
        if let Some(relative) = all
            .iter()
            .copied()
            .chain(&policy.own_paths)
            .chain(&policy.hidden_paths)
            .find(|root| !root.is_absolute())
        {
            return Err(PolicyError::NotAbsolute(relative.clone()));
        }
        if let Some(relative) = policy.extra_names.iter().find(|name| !name.starts_with('/')) {
            return Err(PolicyError::NotAbsolute(relative.into()));
        }
        let list = |patterns: &[String], rule, option| {
            PathRules::compile(&policy.root, patterns, rule, option)
        };
        let own = |rule| Denial::new(rule, OWN_FILES);
        Ok(Self {
            mode: policy.mode,
            root: policy.root.clone(),
            scopes: Scopes::new(policy.root.clone(), fold_roots(all)),
            roots,
            names: list(policy.writable_names(), Rule::OutsideWritableRoots, "writable")?,
            read_only_mode: Arc::new(Denial::new(Rule::ReadOnlyMode, "mode read-only")),
            outside: Arc::new(Denial::new(Rule::OutsideWritableRoots, "mode workspace-write")),
            own: PathRules::exact(&policy.own_paths, own(Rule::ProtectedPath)),
            deny_read: list(&policy.deny_read, Rule::ReadDenied, "deny-read")?
                .and_exact(&policy.hidden_paths, own(Rule::ReadDenied)),
            deny_write: list(&policy.deny_write, Rule::WriteDenied, "deny-write")?,
            allow_write: list(&policy.allow_write, Rule::ProtectedPath, "allow-write")?,
            publish_direct: list(&policy.publish_direct, Rule::Reserved, "publish-direct")?,
        })
    }

    /// Returns the writable roots, folded (contract P6).
    #[must_use]
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Returns the glob, if a path may be written because of one (see [`Policy::writable_names`]).
    #[must_use]
    pub fn writable_name(&self, path: &Path) -> Option<&str> {
        let hit = self.names.hit(path.as_os_str().as_bytes(), &self.scopes)?;
        hit.source().strip_prefix("writable ")
    }

    /// Returns the mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Tells whether anything but the mode and the roots can refuse.
    #[must_use]
    pub fn has_path_rules(&self) -> bool {
        self.mode == Mode::WorkspaceWrite
            || ![&self.own, &self.deny_read, &self.deny_write].iter().all(|list| list.is_empty())
    }

    /// Tells whether the content of the file at `path` is written directly, whatever the policy says of the others.
    #[must_use]
    pub fn publishes_directly(&self, path: &Path) -> bool {
        !self.publish_direct.is_empty()
            && self.publish_direct.hit(path.as_os_str().as_bytes(), &self.scopes).is_some()
    }

    /// Tells whether any rule denies reading.
    #[must_use]
    pub fn denies_reading(&self) -> bool {
        !self.deny_read.is_empty()
    }

    /// Returns the exact paths whose reading is denied, for what isn't served by the file system and must be masked.
    /// Globs aren't among them.
    #[must_use]
    pub fn read_denied_paths(&self) -> Vec<(PathBuf, Arc<Denial>)> {
        self.deny_read.exact_paths()
    }

    /// Returns what may be done at `path`, which is absolute and canonical; the target need not exist.
    #[must_use]
    pub fn zone(&self, path: &Path) -> Zone {
        let bytes = path.as_os_str().as_bytes();
        let read = self.deny_read.hit(bytes, &self.scopes);
        let write = self.rooted(bytes).or_else(|| read.cloned()).or_else(|| self.guarded(bytes));
        Zone { read: read.cloned(), write }
    }

    /// Rows 1 to 4 of the table.
    pub(crate) fn rooted(&self, path: &[u8]) -> Option<Arc<Denial>> {
        match self.mode {
            Mode::ReadOnly => return Some(self.read_only_mode.clone()),
            Mode::WorkspaceWrite
                if !self
                    .roots
                    .iter()
                    .any(|root| strip(path, root.as_os_str().as_bytes()).is_some())
                    && self.names.hit(path, &self.scopes).is_none() =>
            {
                return Some(self.outside.clone());
            }
            Mode::WorkspaceWrite | Mode::DangerFullAccess => {}
        }
        self.own
            .hit(path, &self.scopes)
            .or_else(|| self.deny_write.hit(path, &self.scopes))
            .cloned()
    }

    /// Row 6 of the table.
    pub(crate) fn guarded(&self, path: &[u8]) -> Option<Arc<Denial>> {
        match self.class(path) {
            Class::Free | Class::GitDir { .. } | Class::Container(_) => None,
            Class::Judged(kind) => Some(protected(kind.label())),
            Class::Refused(label) => Some(protected(label)),
        }
    }

    /// Returns what the name is to the protection, after `allow_write` has lifted what it lifts.
    pub(crate) fn class(&self, path: &[u8]) -> Class {
        if self.mode != Mode::WorkspaceWrite {
            return Class::Free;
        }
        let class = protection::classify(path, self.scopes.below(path).unwrap_or_default());
        if class == Class::Free || self.lifted(path) { Class::Free } else { class }
    }

    pub(crate) fn lifted(&self, path: &[u8]) -> bool {
        self.allow_write.hit(path, &self.scopes).is_some()
    }

    /// Returns how a git file at `path` is judged by its content, or `None` if it isn't. For a name that is called
    /// `.git` this speaks of a regular file.
    ///
    /// A file of such a name may be created empty, replaced, moved or removed, and each new content must first pass
    /// [`Rules::judge`].
    #[must_use]
    pub fn config_kind(&self, path: &Path) -> Option<ConfigKind> {
        match self.class(path.as_os_str().as_bytes()) {
            Class::Judged(kind) => Some(kind),
            Class::GitDir { dot: true } => Some(ConfigKind::GitFile),
            Class::GitDir { dot: false }
            | Class::Free
            | Class::Container(_)
            | Class::Refused(_) => None,
        }
    }

    /// Judges the whole new content of a git file that [`Rules::config_kind`] told. A path that it doesn't speak of
    /// passes.
    ///
    /// # Errors
    /// The refusal, whose source names the key.
    pub fn judge(&self, path: &Path, old: Option<&[u8]>, new: &[u8]) -> Result<(), Arc<Denial>> {
        let Some(kind) = self.config_kind(path) else { return Ok(()) };
        let refused = |key: String| {
            Arc::new(Denial::new(
                Rule::ProtectedPath,
                format!("protection {}: {key}", kind.label()),
            ))
        };
        match kind {
            ConfigKind::Repository | ConfigKind::Worktree | ConfigKind::Modules => {
                protection::config_change_at(path.as_os_str().as_bytes(), old, new)
                    .map_err(|key| refused(key.to_string()))
            }
            ConfigKind::CommonDir => protection::common_dir_allowed(path, new)
                .then_some(())
                .ok_or_else(|| refused("a foreign directory".into())),
            ConfigKind::GitFile => {
                if old.is_some_and(|old| old == new) {
                    return Ok(());
                }
                protection::git_file_target(path, new)
                    .filter(|target| self.repository_is_guarded(target))
                    .map(|_| ())
                    .ok_or_else(|| refused("a directory whose hooks aren't protected".into()))
            }
        }
    }

    /// Tells whether the hooks and the configuration of a repository at `directory` are protected by its name,
    /// wherever it lies.
    fn repository_is_guarded(&self, directory: &Path) -> bool {
        let class = |name: &str| {
            let path = directory.join(name);
            let bytes = path.as_os_str().as_bytes();
            protection::classify(bytes, self.scopes.below(bytes).unwrap_or(bytes))
        };
        matches!(class("hooks/x"), Class::Refused(_)) && matches!(class("config"), Class::Judged(_))
    }
}

pub(crate) fn protected(label: &str) -> Arc<Denial> {
    Arc::new(Denial::new(Rule::ProtectedPath, format!("protection {label}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn rules(mode: Mode, change: impl FnOnce(&mut Policy)) -> Rules {
        let mut policy = Policy::new(mode, "/w".into());
        policy.extra_roots = vec!["/tmp".into()];
        change(&mut policy);
        Rules::compile(&policy).unwrap()
    }

    fn rule(denial: Option<&Arc<Denial>>) -> Option<Rule> {
        denial.map(|denial| denial.rule())
    }

    #[test]
    fn the_table_of_zones() {
        let make = |mode| {
            rules(mode, |policy| {
                policy.deny_read = vec!["**/.env".into(), "/w/secrets".into()];
                policy.deny_write = vec!["locked/".into(), "/w/.git/config".into()];
                policy.allow_write = vec![
                    ".idea".into(),
                    ".vscode/settings.json".into(),
                    "/w/state".into(),
                    "locked/x".into(),
                    ".env".into(),
                    "/etc".into(),
                ];
                policy.own_paths = vec!["/w/state".into()];
            })
        };
        let (ro, ww, full) =
            (make(Mode::ReadOnly), make(Mode::WorkspaceWrite), make(Mode::DangerFullAccess));
        let rows = [
            (&ro, "/w/a", None, Some(Rule::ReadOnlyMode)),
            (&ro, "/w/.env", Some(Rule::ReadDenied), Some(Rule::ReadOnlyMode)),
            (&ww, "/w/a", None, None),
            (&ww, "/w", None, None),
            (&ww, "/tmp/x/y", None, None),
            (&ww, "/etc/passwd", None, Some(Rule::OutsideWritableRoots)),
            (&ww, "/ww/a", None, Some(Rule::OutsideWritableRoots)),
            (&ww, "/w/.env", Some(Rule::ReadDenied), Some(Rule::ReadDenied)),
            (&ww, "/w/a/b/.env", Some(Rule::ReadDenied), Some(Rule::ReadDenied)),
            (&ww, "/w/secrets/deep/er", Some(Rule::ReadDenied), Some(Rule::ReadDenied)),
            (&ww, "/w/locked", None, Some(Rule::WriteDenied)),
            (&ww, "/w/locked/x", None, Some(Rule::WriteDenied)),
            (&ww, "/w/.git/config", None, Some(Rule::WriteDenied)),
            (&ww, "/w/a/.git/config", None, Some(Rule::ProtectedPath)),
            (&ww, "/tmp/r/.git/hooks/x", None, Some(Rule::ProtectedPath)),
            (&ww, "/w/.vscode/tasks.json", None, Some(Rule::ProtectedPath)),
            (&ww, "/w/.vscode/settings.json", None, None),
            (&ww, "/w/q/.idea/x", None, None),
            (&ww, "/w/state/log.db", None, Some(Rule::ProtectedPath)),
            (&full, "/etc/passwd", None, None),
            (&full, "/w/.git/hooks/x", None, None),
            (&full, "/w/.env", Some(Rule::ReadDenied), Some(Rule::ReadDenied)),
            (&full, "/w/state/log.db", None, Some(Rule::ProtectedPath)),
        ];
        for (rules, path, read, write) in rows {
            let zone = rules.zone(Path::new(path));
            assert_eq!(rule(zone.read.as_ref()), read, "read {path} {}", rules.mode());
            assert_eq!(rule(zone.write.as_ref()), write, "write {path} {}", rules.mode());
        }
    }

    #[test]
    fn the_source_names_the_option_and_the_pattern() {
        let rules = rules(Mode::WorkspaceWrite, |policy| {
            policy.deny_read = vec!["*.key".into(), "*.pem".into()];
        });
        let source = |path| rules.zone(Path::new(path)).write.unwrap().source().to_owned();
        assert_eq!(source("/w/a.pem"), "deny-read *.pem");
        assert_eq!(source("/w/.git/hooks/x"), "protection .git/hooks");
        assert_eq!(source("/etc/x"), "mode workspace-write");
    }

    #[test]
    fn a_broken_glob_is_an_error_that_names_it() {
        let mut policy = Policy::new(Mode::ReadOnly, "/w".into());
        policy.deny_read = vec!["a[".into()];
        assert!(Rules::compile(&policy).unwrap_err().to_string().contains("`a[`"));
    }

    #[test]
    fn names_that_are_not_utf8_have_a_zone() {
        let rules = rules(Mode::WorkspaceWrite, |_| {});
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        assert_eq!(rules.zone(path(b"/w/\xff")).write, None);
        assert!(rules.zone(path(b"/w/\xff/.git/hooks/\xfe")).write.is_some());
        assert!(rules.zone(path(b"/\xff")).write.is_some());
    }

    #[test]
    fn git_files_are_judged_by_their_content() {
        let rules = rules(Mode::WorkspaceWrite, |policy| {
            policy.allow_write = vec!["/w/free/.git/config".into()];
        });
        let rows = [
            ("/w/.git/config", "[core]\n\tbare = false\n", true),
            ("/w/.git/config", "[core]\n\thooksPath = x\n", false),
            ("/w/free/.git/config", "[core]\n\thooksPath = x\n", true),
            ("/w/.git/modules/s/config", "[core]\n\tworktree = ../../../s\n", true),
            ("/w/.git/config", "[core]\n\tworktree = ../s\n", false),
            ("/w/t/.git", "gitdir: /w/.git/worktrees/t\n", true),
            ("/w/s/.git", "gitdir: ../.git/modules/s\n", true),
            ("/w/s/.git", "gitdir: /home/u/r/.git/worktrees/s\n", true),
            ("/w/s/.git", "gitdir: ../b.git\n", true),
            ("/w/s/.git", "gitdir: ../evil\n", false),
            ("/w/s/.git", "gitdir: ../.git/objects/evil\n", false),
            ("/w/s/.git", "gitdir: /proc/self/cwd/evil\n", false),
            ("/w/.git/worktrees/t/commondir", "../..\n", true),
            ("/w/.git/worktrees/t/commondir", "/w/evil\n", false),
            ("/w/.git/commondir", "evil\n", false),
            ("/w/plain", "anything", true),
        ];
        for (path, text, allowed) in rows {
            let judged = rules.judge(Path::new(path), None, text.as_bytes());
            assert_eq!(judged.is_ok(), allowed, "{path} {text:?} {judged:?}");
        }
        let denial = rules.judge(Path::new("/w/.git/config"), None, b"[core] pager=x").unwrap_err();
        assert_eq!(denial.source(), "protection .git/config: core.pager");
    }

    #[test]
    fn what_is_written_directly_is_told_by_path_name_and_glob() {
        let mut policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
        let none = Rules::compile(&policy).unwrap();
        policy.publish_direct = vec!["*.log".into(), "db".into(), "/tmp/x".into()];
        let rules = Rules::compile(&policy).unwrap();
        for (path, direct) in [
            ("/w/a.log", true),
            ("/w/d/e/a.log", true),
            ("/w/db/data", true),
            ("/w/src/main.rs", false),
            ("/tmp/x/y", true),
            ("/tmp/y", false),
        ] {
            assert_eq!(rules.publishes_directly(Path::new(path)), direct, "{path}");
            assert!(!none.publishes_directly(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn full_access_refuses_nothing_of_its_own() {
        use crate::EntryKind::{Directory, Symlink};
        let rules = rules(Mode::DangerFullAccess, |_| {});
        let path = Path::new("/w/.git/hooks");
        assert!(!rules.has_path_rules());
        assert_eq!(rules.create_refused(path, Symlink), None);
        assert_eq!(rules.rename_refused(Path::new("/w/.git"), path, Directory), None);
        assert_eq!(rules.config_kind(Path::new("/w/.git/config")), None);
    }
}
