//! Whether the file systems that a start depends on answer at all (a dead network server, a FUSE server that hangs).
//!
//! A process that waits for such a file system can't always be ended, not even by SIGKILL. So none of this is done in
//! this process: a child looks at the paths, one after the other, and is left behind where one doesn't answer. It holds nothing
//! of the caller's open, and ends when the file system does.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions};

use crate::error::{Code, Failure};
use crate::sys;

/// How long a path may take.
pub const LIMIT: Duration = Duration::from_secs(5);

/// File systems whose answers come from a server.
const SERVED: [&str; 18] = [
    "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gpfs", "lustre",
    "nfs", "nfs4", "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf",
];

/// Checks that each of these paths can be looked at within [`LIMIT`]; whether it exists makes no difference.
///
/// # Errors
/// One can't, by name.
pub fn check(paths: impl IntoIterator<Item = PathBuf>) -> Result<(), Failure> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo");
    if mounts.is_ok_and(|mounts| !mounts.lines().any(is_served)) {
        return Ok(());
    }
    let mut all: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !all.contains(&path) {
            all.push(path);
        }
    }
    match look(&all, LIMIT) {
        Ok(None) => Ok(()),
        Ok(Some(path)) => {
            let shown = path.display();
            let what = format!("`{shown}` doesn't answer: its file system hangs");
            Err(Failure::new(Code::RunnerFailed, what)
                .help(format!("start its server again, or unmount it (`umount --lazy --force` on what `findmnt --target {shown}` shows)"))
                .help("or name another path"))
        }
        Err(error) => {
            Err(Failure::new(Code::RunnerFailed, "can't look at the paths that are needed")
                .because(error))
        }
    }
}

/// Returns the paths of the environment that every start depends on.
#[must_use]
pub fn of_the_environment() -> Vec<PathBuf> {
    const NAMES: [&str; 6] = [
        "HOME",
        "TMPDIR",
        "XDG_STATE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_RUNTIME_DIR",
        "STOCKADE_STATE",
    ];
    let mut paths = vec![PathBuf::from("/tmp")];
    paths.extend(NAMES.iter().filter_map(std::env::var_os).map(PathBuf::from));
    let search = std::env::var_os("PATH").unwrap_or_default();
    paths.extend(std::env::split_paths(&search));
    paths.retain(|path| !path.as_os_str().is_empty());
    // Asking for its name doesn't ask its server.
    paths.extend(std::env::current_dir().ok());
    paths
}

/// Returns the part of a pattern that names a path, below `root` where it is relative.
#[must_use]
pub fn of_pattern(pattern: &str, root: &Path) -> PathBuf {
    let plain = Path::new(pattern).components().take_while(|part| {
        !part.as_os_str().as_bytes().iter().any(|byte| b"*?[{\\".contains(byte))
    });
    root.join(plain.collect::<PathBuf>())
}

fn is_served(line: &str) -> bool {
    let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let kind = kind.split_once('.').map_or(kind, |(kind, _)| kind);
    SERVED.contains(&kind)
}

/// Looks at the paths in a child; returns the first that takes too long.
fn look(paths: &[PathBuf], limit: Duration) -> io::Result<Option<&PathBuf>> {
    let names: Vec<CString> = paths
        .iter()
        .map(|path| CString::new(path.as_os_str().as_bytes()).unwrap_or_default())
        .collect();
    let (mut answers, says) = io::pipe()?;
    let parent = rustix::process::getpid();
    let child = sys::fork_bare(|| {
        // Whoever waits for the caller's streams must not wait for this process.
        if sys::keep_two(says.as_fd(), says.as_fd()).is_err()
            || rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err()
            || rustix::process::getppid() != Some(parent)
        {
            return 1;
        }
        for name in &names {
            let asked = AtFlags::STATX_FORCE_SYNC;
            // Only that there is an answer counts.
            let _any = rustix::fs::statx(rustix::fs::CWD, &**name, asked, StatxFlags::BASIC_STATS);
            if rustix::io::write(rustix::stdio::stdin(), &[1]).is_err() {
                return 1;
            }
        }
        0
    })?;
    drop(says);
    let mut answered = 0;
    let slow = loop {
        if answered == paths.len() {
            break None;
        }
        let mut fds = [PollFd::new(&answers, PollFlags::IN)];
        let timeout = rustix::event::Timespec::try_from(limit).ok();
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => break paths.get(answered),
            Ok(_) => {}
        }
        let mut buffer = [0_u8; 64];
        match io::Read::read(&mut answers, &mut buffer)? {
            0 => return Err(io::Error::other("the process that looks at them ended")),
            count => answered += count,
        }
    };
    if slow.is_some() {
        // It may not die before the file system answers or is unmounted: nobody waits for it.
        let _left = rustix::process::kill_process(child, Signal::KILL);
    } else {
        let _status = rustix::process::waitpid(Some(child), WaitOptions::empty());
    }
    Ok(slow)
}

/// Returns the place of a program's name if it says one.
#[must_use]
pub fn of_program(name: &OsStr) -> Option<PathBuf> {
    name.as_bytes().contains(&b'/').then(|| PathBuf::from(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_file_systems_with_a_server_can_hang() {
        let line =
            |kind: &str| format!("36 25 0:31 / /mnt rw,relatime shared:5 - {kind} source rw");
        for (kind, served) in [
            ("ext4", false),
            ("fuse", true),
            ("fuse.sshfs", true),
            ("nfs4", true),
            ("fusectl", false),
        ] {
            assert_eq!(is_served(&line(kind)), served, "{kind}");
        }
    }

    #[test]
    fn a_pattern_names_the_path_before_its_first_sign() {
        let rows = [("/a/b*/c", "/a"), ("x/y", "/w/x/y"), ("*.pem", "/w"), ("/a/[b]", "/a")];
        for (pattern, path) in rows {
            assert_eq!(of_pattern(pattern, Path::new("/w")), Path::new(path), "{pattern}");
        }
    }

    #[test]
    fn what_answers_passes_whether_it_exists_or_not() {
        let paths = ["/", "/nonexistent/x", "/etc/passwd"].map(PathBuf::from);
        assert_eq!(look(&paths, Duration::from_secs(20)).unwrap(), None);
    }
}
