//! A linked working tree of git's as a workspace: the repository that it shares must be writable too, or nothing can be
//! committed in it. Its hooks and its configuration stay protected.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use stockade_policy::protection::{git_file_target, shared_repository};
use stockade_policy::{Mode as FileMode, Policy};

use crate::resolve::escape_glob;

/// A file of these that is longer says nothing that git writes.
const LONGEST: u64 = 8192;

/// Adds the repository that the root shares, if the root is a linked working tree and the repository says so too.
pub(crate) fn share(policy: &mut Policy) {
    if policy.mode != FileMode::WorkspaceWrite {
        return;
    }
    let Some(repository) = repository_of(&policy.root) else { return };
    if repository.file_name().is_none_or(|name| name != ".git") {
        // Told by no name: what runs code in it is named here.
        let Some(place) = repository.to_str().map(escape_glob) else { return };
        policy.deny_write.extend(
            [
                "hooks",
                "config",
                "config.worktree",
                "commondir",
                "modules",
                "worktrees/*/config",
                "worktrees/*/config.worktree",
                "worktrees/*/commondir",
                "worktrees/*/hooks",
                "worktrees/*/modules",
            ]
            .map(|name| format!("{place}/{name}")),
        );
    }
    policy.extra_roots.push(repository);
}

/// Returns the repository that a linked working tree shares with others.
fn repository_of(root: &Path) -> Option<PathBuf> {
    let git_file = root.join(".git");
    let named = git_file_target(&git_file, &small_file(&git_file).ok()?)?;
    let target = fs::canonicalize(named).ok()?;
    let common = small_file(&target.join("commondir")).ok()?;
    let back = small_file(&target.join("gitdir")).ok()?;
    let repository = shared_repository(&git_file, &target, &common, &back)?;
    repository.is_dir().then_some(repository)
}

/// Reads a regular file that isn't a link.
fn small_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = Vec::new();
    file.take(LONGEST).read_to_end(&mut content)?;
    Ok(content)
}
