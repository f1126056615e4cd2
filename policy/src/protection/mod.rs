//! What stays protected inside a writable root (contract P11), told by name.
//!
//! Invariants:
//! - I1: whatever makes git run a program, or read its configuration from somewhere else, is refused or judged by its
//!   content; everything else that git writes is free.
//! - I2: names are compared without regard to ASCII case, since the file system below may fold it.
//! - I3: nothing here looks at the file system. A repository is known by the name of its directory (`.git`, or
//!   `NAME.git` for a bare one), so a directory can't take such a name together with a content.

pub mod git_config;
mod git_dir;
mod git_file;
mod git_keys;
mod names;

pub use git_config::{ConfigError, Entry as ConfigEntry, parse as parse_git_config};
pub use git_keys::{RefusedKey, git_config_change, hooks_path};

pub use git_file::{shared_repository, target as git_file_target};

pub(crate) use git_dir::tries_links;
pub(crate) use git_file::common_dir_allowed;
pub(crate) use git_keys::config_change_at;
pub(crate) use names::leads_to;

use crate::pattern::components;

/// A git file whose new content decides whether it may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConfigKind {
    /// The `config` of a repository, or of a submodule's repository below `.git/modules`.
    Repository,
    /// The `config.worktree` of a working tree.
    Worktree,
    /// A `.git` file that names the repository's directory.
    GitFile,
    /// A `.gitmodules` file, which `git submodule` takes settings from.
    Modules,
    /// A `commondir` file that names the directory which a linked working tree shares.
    CommonDir,
}

impl ConfigKind {
    /// Returns what the file is called in the source of a refusal.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Repository => ".git/config",
            Self::Worktree => ".git/config.worktree",
            Self::GitFile => ".git",
            Self::Modules => ".gitmodules",
            Self::CommonDir => ".git/commondir",
        }
    }
}

/// What a name below a writable root is to the protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Nothing special.
    Free,
    /// A repository's directory by its name: `.git`, or `NAME.git`. A fresh directory may take the name; nothing may
    /// be moved onto it or away from it. A file called `.git` is judged by its content.
    GitDir {
        /// The name is `.git`, which git looks for everywhere.
        dot: bool,
    },
    /// A directory of a repository that holds what is protected (`hooks`, `modules`, `worktrees` and below). It may be
    /// made and removed, and that is all.
    Container(&'static str),
    /// Judged by content.
    Judged(ConfigKind),
    /// Refused, with what it's called.
    Refused(&'static str),
}

/// Classifies a name. `below` is what lies below the writable root; `path` is the whole path, of which git's
/// directories are told even above the root.
pub(crate) fn classify(path: &[u8], below: &[u8]) -> Class {
    let outer = path.len() - below.len().min(path.len());
    let mut offset = 0;
    for part in path.split(|&byte| byte == b'/') {
        let start = offset;
        let end = start + part.len();
        let inside = start >= outer;
        let rest = path.get(end + 1..).unwrap_or_default();
        offset = end + 1;
        let Some(first) = part.first() else { continue };
        if *first == b'.' && part.eq_ignore_ascii_case(b".git") {
            return git_dir::classify(components(rest), true);
        }
        if !inside {
            continue;
        }
        if rest.is_empty()
            && end == path.len()
            && part.eq_ignore_ascii_case(b".gitmodules")
            && !in_dependencies(path.get(outer..start).unwrap_or_default())
        {
            return Class::Judged(ConfigKind::Modules);
        }
        if let Some(label) = names::protected(part, rest) {
            // The git directories of installed packages are looked for further down.
            if in_dependencies(path.get(outer..start).unwrap_or_default()) {
                continue;
            }
            return Class::Refused(label);
        }
        if part.len() > 4 && ends_with_ignore_case(part, b".git") {
            match git_dir::classify(components(rest), false) {
                // `NAME.git` may be an ordinary directory: look further down.
                Class::Free => {}
                class @ (Class::GitDir { .. }
                | Class::Container(_)
                | Class::Judged(_)
                | Class::Refused(_)) => return class,
            }
        }
    }
    Class::Free
}

/// Tells whether a name lies in a tree of installed packages. Packages bring editor settings along by accident, and
/// no editor or agent is started there.
pub(crate) fn in_dependencies(below: &[u8]) -> bool {
    components(below).any(|part| part == b"node_modules")
}

pub(crate) fn ends_with_ignore_case(name: &[u8], suffix: &[u8]) -> bool {
    name.len()
        .checked_sub(suffix.len())
        .and_then(|start| name.get(start..))
        .is_some_and(|tail| tail.eq_ignore_ascii_case(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(path: &str) -> Class {
        let path = path.as_bytes();
        classify(path, crate::pattern::strip(path, b"/w").unwrap())
    }

    #[test]
    fn the_table_of_protected_names() {
        use Class::{Container, Free, GitDir, Judged, Refused};
        #[rustfmt::skip]
        let rows: &[(&str, Class)] = &[
            ("/w/a.c", Free),
            ("/w/.git", GitDir { dot: true }),
            ("/w/sub/.GIT", GitDir { dot: true }),
            ("/w/.git/HEAD", Free),
            ("/w/.git/refs/heads/hooks/config", Free),
            ("/w/.git/objects/ab/cd", Free),
            ("/w/.git/index.lock", Free),
            ("/w/.git/config.lock", Free),
            ("/w/.git/config", Judged(ConfigKind::Repository)),
            ("/w/a/b/.git/config", Judged(ConfigKind::Repository)),
            ("/w/.git/CONFIG", Judged(ConfigKind::Repository)),
            ("/w/.git/config.worktree", Judged(ConfigKind::Worktree)),
            ("/w/.git/commondir", Judged(ConfigKind::CommonDir)),
            ("/w/.git/hooks", Container(".git/hooks")),
            ("/w/.git/hooks/pre-commit", Refused(".git/hooks")),
            ("/w/.git/hooks/pre-commit.sample", Free),
            ("/w/.git/hooks/d.sample/x", Refused(".git/hooks")),
            ("/w/.git/hooks/d/x.sample", Refused(".git/hooks")),
            ("/w/.git/modules", Container(".git/modules")),
            ("/w/.git/modules/a", Container(".git/modules/*")),
            ("/w/.git/modules/a/b", Container(".git/modules/*")),
            ("/w/.git/modules/a/config", Judged(ConfigKind::Repository)),
            ("/w/.git/modules/a/b/config", Judged(ConfigKind::Repository)),
            ("/w/.git/modules/a/hooks/x", Refused(".git/hooks")),
            ("/w/.git/modules/a/hooks/x.sample", Free),
            ("/w/.git/modules/a/b/hooks", Container(".git/hooks")),
            ("/w/.git/modules/a/modules/c/hooks/x", Refused(".git/hooks")),
            ("/w/.git/modules/a/HEAD", Container(".git/modules/*")),
            ("/w/.git/modules/a/refs/heads/hooks/x", Free),
            ("/w/.git/worktrees", Container(".git/worktrees")),
            ("/w/.git/worktrees/t", Container(".git/worktrees")),
            ("/w/.git/worktrees/t/HEAD", Free),
            ("/w/.git/worktrees/t/commondir", Judged(ConfigKind::CommonDir)),
            ("/w/.git/worktrees/t/config.worktree", Judged(ConfigKind::Worktree)),
            ("/w/.git/worktrees/t/config", Judged(ConfigKind::Repository)),
            ("/w/.git/worktrees/t/hooks/x", Refused(".git/hooks")),
            ("/w/.git/worktrees/t/modules/s/config", Judged(ConfigKind::Repository)),
            ("/w/b.git", GitDir { dot: false }),
            ("/w/b.git/hooks/x", Refused(".git/hooks")),
            ("/w/b.git/config", Judged(ConfigKind::Repository)),
            ("/w/b.git/src/main.c", Free),
            ("/w/b.git/.vscode/tasks.json", Refused(".vscode")),
            ("/w/.gitignore", Free),
            ("/w/.gitmodules", Judged(ConfigKind::Modules)),
            ("/w/sub/.GitModules", Judged(ConfigKind::Modules)),
            ("/w/node_modules/p/.gitmodules", Free),
            ("/w/x/.vscode/settings.json", Refused(".vscode")),
            ("/w/.VSCode", Refused(".vscode")),
            ("/w/.idea", Refused(".idea")),
            ("/w/.claude/settings.json", Refused(".claude")),
            ("/w/.codex", Refused(".codex")),
            ("/w/.mcp.json", Refused(".mcp.json")),
            ("/w/.bashrc", Refused(".bashrc")),
            ("/w/h/.zshenv", Refused(".zshenv")),
            ("/w/.config/fish/config.fish", Refused(".config/fish")),
            ("/w/.config/other", Free),
            ("/w/.config", Free),
            ("/w/.ssh/authorized_keys", Refused(".ssh/authorized_keys")),
            ("/w/.ssh/known_hosts", Free),
            ("/w/a.code-workspace", Refused("*.code-workspace")),
            ("/w/node_modules/p/.vscode/settings.json", Free),
            ("/w/node_modules/p/.git/hooks/x", Refused(".git/hooks")),
            ("/w/.vscode/node_modules/x", Refused(".vscode")),
            ("/w/.envrc", Free),
        ];
        for (path, expected) in rows {
            assert_eq!(class(path), *expected, "{path}");
        }
    }

    #[test]
    fn a_root_inside_a_protected_name_is_an_ordinary_root_but_for_git() {
        let path = b"/h/.claude/worktrees/x/src/a.rs";
        assert_eq!(classify(path, b"src/a.rs"), Class::Free);
        let path = b"/h/x.git/hooks/use-it.js";
        assert_eq!(classify(path, b"hooks/use-it.js"), Class::Free);
        let path = b"/h/r/.git/hooks/x";
        assert_eq!(classify(path, b"hooks/x"), Class::Refused(".git/hooks"));
    }
}
