//! `.git` files and `commondir` files: the other ways in which git is sent to another directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::pattern::components;

/// Returns the directory that a `.git` file at `path` names, or `None` if the content can't be read as git does, or
/// the directory can't be told from the name alone.
#[must_use]
pub fn target(path: &Path, content: &[u8]) -> Option<PathBuf> {
    let value = content.strip_prefix(b"gitdir: ")?;
    let end = value.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let value = value.get(..=end)?;
    if value.contains(&0) {
        return None;
    }
    resolve(path.parent()?, value)
}

/// Returns the repository that a linked working tree shares: the directory which must be writable, beside the tree, for
/// git to work there. `git_file` is the tree's `.git` file, `target` what [`target`] told of it, `common_dir` and
/// `back_link` the contents of the files `commondir` and `gitdir` in `target`.
///
/// A `.git` file can be written by whoever works in the tree, so it is believed only if the repository names it back.
#[must_use]
pub fn shared_repository(
    git_file: &Path,
    target: &Path,
    common_dir: &[u8],
    back_link: &[u8],
) -> Option<PathBuf> {
    let trim = |text: &[u8]| text.trim_ascii_end().to_vec();
    let worktrees = target.parent()?;
    let repository = worktrees.parent()?;
    let linked = worktrees.file_name()? == "worktrees"
        && trim(common_dir) == b"../.."
        && resolve(target, &trim(back_link))? == git_file;
    linked.then(|| repository.to_path_buf())
}

/// Joins `value` to the canonical directory `base`. `..` is followed only where it can't pass a symbolic link.
pub(super) fn resolve(base: &Path, value: &[u8]) -> Option<PathBuf> {
    let mut joined =
        if value.first() == Some(&b'/') { PathBuf::from("/") } else { base.to_path_buf() };
    let mut named = false;
    for part in components(value) {
        if part == b".." {
            // In an absolute path nothing before `..` is known to be canonical.
            if named || !joined.pop() {
                return None;
            }
        } else {
            named = true;
            joined.push(OsStr::from_bytes(part));
        }
    }
    Some(joined)
}

/// Tells whether a `commondir` file may have this content: git writes `../..` for a linked working tree, and nothing
/// else keeps the hooks and the configuration where they are protected.
pub(crate) fn common_dir_allowed(path: &Path, content: &[u8]) -> bool {
    let linked = path
        .parent()
        .and_then(Path::parent)
        .and_then(Path::file_name)
        .is_some_and(|name| name.eq_ignore_ascii_case("worktrees"));
    content.is_empty() || (linked && content.strip_suffix(b"\n").unwrap_or(content) == b"../..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_git_file_names_a_directory() {
        let path = Path::new("/w/sub/.git");
        for (content, expected) in [
            ("gitdir: ../.git/modules/sub\n", Some("/w/.git/modules/sub")),
            ("gitdir: /w/.git/worktrees/x", Some("/w/.git/worktrees/x")),
            ("gitdir: ../../../../x", None),
            ("gitdir: a/../x", None),
            ("gitdir:x", None),
            ("gitdir: \n", None),
            ("", None),
        ] {
            let target = target(path, content.as_bytes());
            assert_eq!(target.as_deref(), expected.map(Path::new), "{content:?}");
        }
    }

    #[test]
    fn a_repository_is_shared_only_if_it_names_the_working_tree() {
        let git_file = Path::new("/w/t/.git");
        let target = Path::new("/home/u/r/.git/worktrees/t");
        let shared = |common: &str, back: &str| {
            shared_repository(git_file, target, common.as_bytes(), back.as_bytes())
        };
        assert_eq!(shared("../..\n", "/w/t/.git\n"), Some("/home/u/r/.git".into()));
        assert_eq!(shared("../..\n", "/w/other/.git\n"), None);
        assert_eq!(shared("../../..\n", "/w/t/.git\n"), None);
        assert_eq!(shared("", ""), None);
        let relative = shared_repository(
            Path::new("/home/u/t/.git"),
            target,
            b"../..",
            b"../../../../t/.git\n",
        );
        assert_eq!(relative, Some("/home/u/r/.git".into()));
        let plain = Path::new("/home/u/r/.git");
        assert_eq!(shared_repository(git_file, plain, b"../..", b"/w/t/.git"), None);
    }

    #[test]
    fn only_a_linked_working_tree_has_a_common_directory_above() {
        for (path, content, expected) in [
            ("/w/.git/worktrees/t/commondir", "../..\n", true),
            ("/w/.git/worktrees/t/commondir", "../../../evil\n", false),
            ("/w/.git/commondir", "../..\n", false),
            ("/w/.git/commondir", "", true),
        ] {
            assert_eq!(common_dir_allowed(Path::new(path), content.as_bytes()), expected, "{path}");
        }
    }
}
