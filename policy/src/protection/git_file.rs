//! `.git` files and `commondir` files: the other ways in which git is sent to another directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::pattern::components;

/// Returns the directory that a `.git` file at `path` names, or `None` if the content can't be read as git does, or
/// the directory can't be told from the name alone.
pub(crate) fn target(path: &Path, content: &[u8]) -> Option<PathBuf> {
    let value = content.strip_prefix(b"gitdir: ")?;
    let end = value.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let value = value.get(..=end)?;
    if value.contains(&0) {
        return None;
    }
    resolve(path.parent()?, value)
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
