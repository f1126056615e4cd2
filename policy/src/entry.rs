//! What may be done with a name: coming into being, going away, moving (contract P11). Each answer includes the zone's.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::pattern::strip;
use crate::protection::{self, Class, ConfigKind};
use crate::zone::protected;
use crate::{Denial, Mode, Rules};

/// What is at a name, or is about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, a FIFO or a device.
    Special,
}

impl Rules {
    /// Returns why what is at `path` can't be changed in place: the zone's answer, which can't know that a `.git` is a
    /// regular file. Such a file may only be emptied, and each write to it must pass [`Rules::judge`].
    #[must_use]
    pub fn write_refused(&self, path: &Path, kind: EntryKind) -> Option<Arc<Denial>> {
        self.zone(path).write.or_else(|| {
            let git_file =
                kind == EntryKind::File && self.config_kind(path) == Some(ConfigKind::GitFile);
            git_file.then(|| protected(".git"))
        })
    }

    /// Returns why a fresh, empty entry can't be made at `path`.
    #[must_use]
    pub fn create_refused(&self, path: &Path, kind: EntryKind) -> Option<Arc<Denial>> {
        let bytes = path.as_os_str().as_bytes();
        let class = self.class(bytes);
        if let Class::Judged(_) | Class::Refused(_) = class {
            let basic = self.rooted(bytes).or_else(|| self.read_denied(bytes));
            return basic.or_else(|| match (class, kind) {
                (Class::Judged(_), EntryKind::File) => None,
                // The way to something whose protection is lifted.
                (Class::Refused(_), EntryKind::Directory)
                    if self.allow_write.exact_within(bytes) =>
                {
                    None
                }
                _ => self.guarded(bytes),
            });
        }
        self.zone(path).write.or_else(|| match (class, kind) {
            (_, EntryKind::File | EntryKind::Directory) => None,
            (Class::GitDir { .. }, _) => Some(protected(".git")),
            (Class::Container(label), _) => Some(protected(label)),
            // What is made under the link's target would have a denied name through the link.
            (Class::Free, EntryKind::Symlink) => self.anchored_within(bytes),
            (Class::Free | Class::Judged(_) | Class::Refused(_), _) => None,
        })
    }

    /// Returns why a symbolic link to `target` can't be made at `path`. Git tries out links in a submodule's repository,
    /// with a target that is a plain name; such a link can't lead to what isn't protected in the same way.
    #[must_use]
    pub fn symlink_refused(&self, path: &Path, target: &[u8]) -> Option<Arc<Denial>> {
        let bytes = path.as_os_str().as_bytes();
        if matches!(self.class(bytes), Class::Container(label) if protection::tries_links(label, target))
        {
            return self.zone(path).write;
        }
        self.create_refused(path, EntryKind::Symlink)
    }

    /// Returns why the entry at `path` can't be removed. A directory's removal is only asked for once it's empty.
    #[must_use]
    pub fn remove_refused(&self, path: &Path) -> Option<Arc<Denial>> {
        let bytes = path.as_os_str().as_bytes();
        if let Class::Judged(_) = self.class(bytes) {
            return self.rooted(bytes).or_else(|| self.read_denied(bytes));
        }
        self.zone(path).write
    }

    /// Returns why the entry at `from` can't be moved to `to`. An exchange asks for both directions.
    ///
    /// Where `to` is judged by content ([`Rules::config_kind`]), the moved file's content must pass too.
    #[must_use]
    pub fn rename_refused(&self, from: &Path, to: &Path, kind: EntryKind) -> Option<Arc<Denial>> {
        if let Some(denial) = self.move_refused(from).or_else(|| self.create_refused(to, kind)) {
            return Some(denial);
        }
        let (source, target) = (from.as_os_str().as_bytes(), to.as_os_str().as_bytes());
        if kind != EntryKind::Directory {
            return None;
        }
        if let Some(denial) = self.rename_dir_refused(from).or_else(|| self.rename_dir_refused(to))
        {
            return Some(denial);
        }
        // A directory may bring along what could be made where it was, but not where it goes.
        let protects = self.mode == Mode::WorkspaceWrite;
        let leaves = |free: &dyn Fn(&[u8]) -> bool| protects && free(source) && !free(target);
        if leaves(&|path| self.lifted(path)) {
            return Some(protected("allow-write, left by a directory"));
        }
        leaves(&|path| protection::in_dependencies(self.scopes.below(path).unwrap_or_default()))
            .then(|| protected("node_modules, left by a directory"))
    }

    /// Returns why the entry at `path`, which isn't a directory, can't be moved away, wherever it would go.
    #[must_use]
    pub fn move_refused(&self, path: &Path) -> Option<Arc<Denial>> {
        self.remove_refused(path).or_else(|| {
            let git_file = Class::GitDir { dot: true };
            (self.class(path.as_os_str().as_bytes()) == git_file).then(|| protected(".git"))
        })
    }

    /// Returns why the directory at `path` can't be moved away, or another one to its place: it is a repository's
    /// directory, or rules that name exact places below it would no longer hold for what is there.
    #[must_use]
    pub fn rename_dir_refused(&self, path: &Path) -> Option<Arc<Denial>> {
        let bytes = path.as_os_str().as_bytes();
        match self.class(bytes) {
            Class::GitDir { .. } => return Some(protected(".git")),
            Class::Container(label) => return Some(protected(label)),
            Class::Free => {}
            Class::Judged(_) | Class::Refused(_) => return self.guarded(bytes),
        }
        if self.mode == Mode::WorkspaceWrite
            && !self.lifted(bytes)
            && let Some(label) = protection::leads_to(self.scopes.below(bytes).unwrap_or_default())
        {
            return Some(protected(label));
        }
        if self.mode == Mode::WorkspaceWrite
            && strip(self.root.as_os_str().as_bytes(), bytes).is_some()
        {
            return Some(protected("the session's root"));
        }
        self.anchored_within(bytes)
    }

    /// Returns the refusal of a rule that names an exact place below `path`.
    fn anchored_within(&self, path: &[u8]) -> Option<Arc<Denial>> {
        [&self.own, &self.deny_write, &self.deny_read]
            .iter()
            .find_map(|list| list.anchored_within(path, &self.scopes))
            .cloned()
    }

    /// Returns why what is at `from` can't get the further name `to`: one of the two names would be a way around
    /// the rules of the other.
    #[must_use]
    pub fn link_refused(&self, from: &Path, to: &Path, kind: EntryKind) -> Option<Arc<Denial>> {
        let judged = (self.config_kind(from), self.config_kind(to));
        if let Some(denial) = self.create_refused(to, kind) {
            return Some(denial);
        }
        match judged {
            (None, None) => self.zone(from).write,
            (Some(a), Some(b)) if a == b => self.remove_refused(from),
            (Some(kind), _) | (None, Some(kind)) => Some(protected(kind.label())),
        }
    }

    fn read_denied(&self, path: &[u8]) -> Option<Arc<Denial>> {
        self.deny_read.hit(path, &self.scopes).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    fn rules(mode: Mode, change: impl FnOnce(&mut Policy)) -> Rules {
        let mut policy = Policy::new(mode, "/w".into());
        policy.extra_roots = vec!["/tmp".into()];
        change(&mut policy);
        Rules::compile(&policy).unwrap()
    }

    #[test]
    fn the_table_of_fresh_entries() {
        use EntryKind::{Directory, File, Special, Symlink};
        let rules = rules(Mode::WorkspaceWrite, |policy| {
            policy.allow_write = vec![".vscode/settings.json".into()];
        });
        #[rustfmt::skip]
        let rows: &[(&str, EntryKind, bool)] = &[
            ("/w/a", Symlink, true),
            ("/w/.git", Directory, true),
            ("/w/.git", File, true),
            ("/w/.git", Symlink, false),
            ("/w/b.git", Directory, true),
            ("/w/b.git", File, true),
            ("/w/b.git", Symlink, false),
            ("/w/.git/hooks", Directory, true),
            ("/w/.git/hooks", Symlink, false),
            ("/w/.git/hooks/pre-commit.sample", File, true),
            ("/w/.git/hooks/pre-commit", File, false),
            ("/w/.git/hooks/pre-commit", Symlink, false),
            ("/w/.git/hooks/d", Directory, false),
            ("/w/.git/config", File, true),
            ("/w/.git/config", Symlink, false),
            ("/w/.git/config", Directory, false),
            ("/w/.git/config", Special, false),
            ("/w/.git/config.lock", File, true),
            ("/w/.git/modules", Directory, true),
            ("/w/.git/modules/a/HEAD", File, true),
            ("/w/.git/modules/a", Symlink, false),
            ("/w/.git/worktrees/t", Directory, true),
            ("/w/.git/worktrees/t", Symlink, false),
            ("/w/.vscode", Directory, true),
            ("/w/.vscode", Symlink, false),
            ("/w/q/.vscode", Directory, false),
            ("/w/.vscode/settings.json", File, true),
            ("/w/.vscode/tasks.json", File, false),
            ("/etc/x", File, false),
        ];
        for (path, kind, allowed) in rows {
            let refused = rules.create_refused(Path::new(path), *kind);
            assert_eq!(refused.is_none(), *allowed, "{kind:?} {path} {refused:?}");
        }
    }

    #[test]
    fn a_git_file_is_not_changed_in_place_but_a_git_directory_is() {
        let rules = rules(Mode::WorkspaceWrite, |_| {});
        for (path, kind, allowed) in [
            ("/w/.git", EntryKind::Directory, true),
            ("/w/.git", EntryKind::File, false),
            ("/w/a", EntryKind::File, true),
            ("/w/b.git", EntryKind::File, true),
            ("/etc/a", EntryKind::File, false),
        ] {
            let refused = rules.write_refused(Path::new(path), kind);
            assert_eq!(refused.is_none(), allowed, "{path} {kind:?}");
        }
    }

    #[test]
    fn git_may_try_out_links_in_a_submodules_repository() {
        let rules = rules(Mode::WorkspaceWrite, |_| {});
        for (path, target, allowed) in [
            ("/w/.git/modules/s/tabc", "testing", true),
            ("/w/.git/modules/s/tabc", "../../../evil", false),
            ("/w/.git/modules/s/tabc", "/w/evil", false),
            ("/w/.git/modules/s/tabc", "..", false),
            ("/w/.git/modules/s/tabc", ".", false),
            ("/w/.git/modules/s/tabc", "", false),
            ("/w/.git/modules/s/tabc", "objects", false),
            ("/w/.git/modules/s/tabc", "Refs", false),
            ("/w/.git/modules/s/hooks", "testing", false),
            ("/w/.git/modules", "testing", false),
            ("/w/.git/worktrees/t", "testing", false),
            ("/w/.git", "testing", false),
            ("/w/.git/tabc", "testing", true),
            ("/w/a", "/etc/passwd", true),
            ("/etc/a", "testing", false),
        ] {
            let refused = rules.symlink_refused(Path::new(path), target.as_bytes());
            assert_eq!(refused.is_none(), allowed, "{path} -> {target}");
        }
    }

    #[test]
    fn the_table_of_removals() {
        let rules = rules(Mode::WorkspaceWrite, |policy| policy.deny_write = vec!["x".into()]);
        for (path, allowed) in [
            ("/w/a", true),
            ("/w/.git", true),
            ("/w/.git/config", true),
            ("/w/.git/hooks", true),
            ("/w/.git/hooks/a.sample", true),
            ("/w/.git/hooks/a", false),
            ("/w/.vscode", false),
            ("/w/x", false),
            ("/etc/x", false),
        ] {
            assert_eq!(rules.remove_refused(Path::new(path)).is_none(), allowed, "{path}");
        }
    }

    #[test]
    fn the_table_of_moves() {
        use EntryKind::{Directory, File, Symlink};
        let rules = rules(Mode::WorkspaceWrite, |policy| {
            policy.root = "/tmp/p/w".into();
            policy.deny_write = vec!["/w/a/b/locked".into()];
            policy.deny_read = vec![".env".into(), "**/s/key".into()];
            policy.extra_roots.push("/w".into());
            policy.allow_write = vec!["/w/cache".into()];
        });
        #[rustfmt::skip]
        let rows: &[(&str, &str, EntryKind, bool)] = &[
            ("/w/x", "/w/y", File, true),
            ("/w/x", "/w/y", Directory, true),
            ("/w/x", "/etc/y", File, false),
            ("/w/.git", "/w/.git2", Directory, false),
            ("/w/.git", "/w/.git2", File, false),
            ("/w/x", "/w/.git", Directory, false),
            ("/w/x", "/w/.git", File, true),
            ("/w/x", "/w/.git", Symlink, false),
            ("/w/x", "/w/y.git", Directory, false),
            ("/w/y.git", "/w/x", Directory, false),
            ("/w/repo", "/w/repo2", Directory, true),
            ("/w/.git/hooks", "/w/.git/h", Directory, false),
            ("/w/x", "/w/.git/hooks", Directory, false),
            ("/w/x", "/w/.git/hooks/pre-commit", File, false),
            ("/w/.git/hooks/p.sample", "/w/.git/hooks/p", File, false),
            ("/w/.git/config.lock", "/w/.git/config", File, true),
            ("/w/x", "/w/.git/config", Directory, false),
            ("/w/.git/modules/a", "/w/x", Directory, false),
            ("/w/x", "/w/.git/modules/a", Directory, false),
            ("/w/.git/rebase-merge", "/w/.git/x", Directory, true),
            ("/w/x", "/w/.vscode", Directory, false),
            ("/w/.config", "/w/c", Directory, false),
            ("/w/c", "/w/.ssh", Directory, false),
            ("/w/a", "/w/c", Directory, false),
            ("/w/a/b", "/w/c", Directory, false),
            ("/w/a/b/locked", "/w/c", File, false),
            ("/w/c", "/w/a", Directory, false),
            ("/w/a/q", "/w/a/r", Directory, true),
            ("/w/.env", "/w/env", File, false),
            ("/w/env", "/w/.env", File, false),
            ("/w/s", "/w/t", Directory, false),
            ("/tmp/p", "/tmp/q", Directory, false),
            ("/tmp/p/w", "/tmp/p/v", Directory, false),
            ("/tmp/q", "/tmp/r", Directory, true),
            ("/w/cache/x", "/w/y", Directory, false),
            ("/w/cache/x", "/w/cache/y", Directory, true),
            ("/w/node_modules/x", "/w/y", Directory, false),
            ("/w/node_modules", "/w/y", Directory, false),
            ("/w/node_modules/.x-1", "/w/node_modules/x", Directory, true),
        ];
        for (from, to, kind, allowed) in rows {
            let refused = rules.rename_refused(Path::new(from), Path::new(to), *kind);
            assert_eq!(refused.is_none(), *allowed, "{kind:?} {from} -> {to} {refused:?}");
        }
    }

    #[test]
    fn the_table_of_links() {
        let rules = rules(Mode::WorkspaceWrite, |policy| policy.deny_read = vec![".env".into()]);
        for (from, to, allowed) in [
            ("/w/a", "/w/b", true),
            ("/w/a", "/w/.git/hooks/pre-commit", false),
            ("/w/.git/hooks/pre-commit", "/w/a", false),
            ("/w/.git/config", "/w/a", false),
            ("/w/a", "/w/.git/config", false),
            ("/w/.git/config", "/tmp/c/.git/config", true),
            ("/w/a", "/w/.git", false),
            ("/w/.env", "/w/b", false),
            ("/etc/passwd", "/w/b", false),
            ("/w/a", "/etc/b", false),
        ] {
            let refused = rules.link_refused(Path::new(from), Path::new(to), EntryKind::File);
            assert_eq!(refused.is_none(), allowed, "{from} -> {to} {refused:?}");
        }
    }
}
