//! Trees to work on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the source directories of the crates that cargo has unpacked on this machine, in order of their names.
#[must_use]
pub fn crate_sources() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let Some(home) = home else { return Vec::new() };
    let mut all: Vec<PathBuf> =
        list(&home.join("registry/src")).iter().flat_map(|index| list(index)).collect();
    all.sort();
    all
}

/// Returns the source directory of a crate in the version that this workspace is locked to, and its checksum.
#[must_use]
pub fn crate_source(name: &str) -> Option<(PathBuf, String)> {
    let lock =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock")).ok()?;
    let field = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let block =
        lock.split("[[package]]").find(|block| field(block, "name").as_deref() == Some(name))?;
    let directory = format!("{name}-{}", field(block, "version")?);
    let source = crate_sources().into_iter().find(|path| path.ends_with(&directory))?;
    Some((source, field(block, "checksum")?))
}

/// Fills `top` with at least `count` files of real source code, a few thousand being what a real repository has.
/// Returns how many there are, fewer where the machine has no more.
///
/// # Panics
/// When something can't be copied.
pub fn many_files(top: &Path, count: usize) -> usize {
    let mut files = 0;
    for source in crate_sources() {
        if files >= count {
            break;
        }
        let inside = count_files(&source);
        // Generated bindings are large and alike.
        if inside > 500 {
            continue;
        }
        copy_tree(&source, &top.join(source.file_name().expect("a crate has a name")));
        files += inside;
    }
    files
}

/// Copies a tree with everything that belongs to it.
///
/// # Panics
/// When something can't be copied.
pub fn copy_tree(from: &Path, to: &Path) {
    let status =
        Command::new("cp").arg("-a").arg("--").args([from, to]).status().expect("cp starts");
    assert!(status.success(), "cp -a {} {}", from.display(), to.display());
}

fn count_files(top: &Path) -> usize {
    list(top)
        .iter()
        .map(|path| if path.is_dir() && !path.is_symlink() { count_files(path) } else { 1 })
        .sum()
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
