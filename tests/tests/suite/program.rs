//! The small programs that the tests run inside and outside.

use std::fs;
use std::path::PathBuf;

use stockade_tests::World;

/// Every operation that changes something (contract F1).
pub const REFUSED: &str = include_str!("../../programs/refused.py");
/// Every way around a path check.
pub const ESCAPE: &str = include_str!("../../programs/escape.py");
/// Using what the host moves meanwhile.
pub const MOVED: &str = include_str!("../../programs/moved.py");
/// Connections to sockets of its own and of the host's.
pub const SOCKETS: &str = include_str!("../../programs/sockets.py");
/// A terminal, with somebody who waits for texts and types.
pub const TERMINAL: &str = include_str!("../../programs/terminal.py");
/// A hundred operations on files, each with its answer.
pub const COMPAT: &str = include_str!("../../programs/compat.py");
/// Sequences of system calls whose every answer is printed.
pub const POSIX: &str = include_str!("../../programs/posix.py");

/// Comparing a source on some file system with what a run sees there.
pub const SOURCES: &str = include_str!("../../programs/sources.sh");

/// An overlay above a mount.
pub const ABOVE: &str = include_str!("../../programs/above.sh");

/// File handles over a remount.
pub const HANDLES: &str = include_str!("../../programs/handles.py");

/// An interpreter that neither the user's nor the site's files change.
pub const PYTHON: [&str; 4] = ["/usr/bin/python3", "-I", "-S", "-B"];

/// Puts a program where every identity can read it and no run can write it.
pub fn install(world: &World, name: &str, text: &str) -> PathBuf {
    let path = world.directory().join(name);
    fs::write(&path, text).unwrap();
    path
}

/// Reads lines of columns that are separated by tabs.
pub fn columns(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split('\t').collect()).collect()
}
