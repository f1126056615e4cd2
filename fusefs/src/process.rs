//! Who makes a request: from a process id to a program.
//!
//! A directory descriptor of `/proc/PID` belongs to one process for good: once that process is gone it answers `ESRCH`,
//! even if the number is used again. So what is kept can be told from what is stale with one `readlinkat`.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{self, CWD, Mode, OFlags};
use stockade_observe::Process;

/// This many processes are remembered.
const KEPT: usize = 512;

#[derive(Debug, Default)]
pub struct Processes {
    known: Mutex<HashMap<u32, Known>>,
}

#[derive(Debug)]
struct Known {
    dir: OwnedFd,
    exe: Vec<u8>,
    process: Arc<Process>,
}

impl Processes {
    /// Returns who has this process id now. What can't be read is left empty.
    pub fn get(&self, pid: u32, uid: u32) -> Arc<Process> {
        if pid == 0 {
            return Arc::new(Process { uid, ..Process::default() });
        }
        let mut known = self.known.lock();
        if let Some(one) = known.get(&pid) {
            match fs::readlinkat(&one.dir, c"exe", Vec::with_capacity(128)) {
                Ok(exe) if exe.as_bytes() == one.exe && one.process.uid == uid => {
                    return one.process.clone();
                }
                _ => {}
            }
        }
        let Some(fresh) = read(pid, uid) else {
            // It is gone, or it is in a process namespace that we don't see: say what was last known of it.
            return known.get(&pid).map_or_else(
                || Arc::new(Process { pid, uid, ..Process::default() }),
                |one| one.process.clone(),
            );
        };
        if known.len() >= KEPT {
            known.retain(|_, one| fs::readlinkat(&one.dir, c"exe", Vec::new()).is_ok());
            if known.len() >= KEPT {
                known.clear();
            }
        }
        let process = fresh.process.clone();
        known.insert(pid, fresh);
        process
    }
}

fn read(pid: u32, uid: u32) -> Option<Known> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = fs::openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).ok()?;
    let exe = fs::readlinkat(&dir, c"exe", Vec::with_capacity(128))
        .map(std::ffi::CString::into_bytes)
        .unwrap_or_default();
    let stat = slurp(&dir, "stat");
    // The second field is the name in parentheses, which may hold anything: what follows the last one is safe to split.
    let after = stat.iter().rposition(|byte| *byte == b')').map_or(&[][..], |at| &stat[at + 1..]);
    let fields: Vec<&str> =
        std::str::from_utf8(after).unwrap_or_default().split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let comm =
        stat.iter().position(|byte| *byte == b'(').zip(stat.iter().rposition(|byte| *byte == b')'));
    let comm = comm.map_or_else(Vec::new, |(open, close)| stat[open + 1..close].to_vec());
    let cmdline = slurp(&dir, "cmdline");
    // The kernel names the thread; the log names the process.
    let status = slurp(&dir, "status");
    let group = thread_group(&status);
    let process = Process {
        pid: group.unwrap_or(pid),
        start_time: number(19).unwrap_or(0),
        ppid: number(1).and_then(|ppid| u32::try_from(ppid).ok()).unwrap_or(0),
        exe: PathBuf::from(std::ffi::OsString::from_vec(exe.clone())),
        comm,
        cmdline,
        uid,
    };
    Some(Known { dir, exe, process: Arc::new(process) })
}

/// What is known of a process that closes a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Closing {
    /// The process, where the kernel named one of its threads.
    pub group: u32,
    /// It is dying of a signal that leaves a program no time to finish what it writes: `SIGKILL` and those of a crash.
    pub abrupt: bool,
}

/// Looks at a process that waits for us to answer its close.
///
/// It may be closing what an `execve(2)` closes, and then holds a lock (`exec_update_lock`) that a read of
/// `/proc/PID/stat` waits for, as it would for us. `/proc/PID/status` takes no such lock, and shows whether the process
/// still has memory; one that has none is exiting, has its exit code (`do_exit` in kernel/exit.c sets it before it
/// closes descriptors), and can be asked for it.
pub fn closing(pid: u32) -> Closing {
    const ABRUPT: [i32; 7] = [
        libc::SIGKILL,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGABRT,
        libc::SIGSYS,
    ];
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = fs::openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()) else {
        return Closing { group: pid, abrupt: false };
    };
    let status = slurp(&dir, "status");
    let group = thread_group(&status).unwrap_or(pid);
    let has_memory = status.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"VmSize:"));
    if has_memory {
        return Closing { group, abrupt: false };
    }
    let stat = slurp(&dir, "stat");
    let text = String::from_utf8_lossy(&stat);
    let code = text.split_ascii_whitespace().last().and_then(|field| field.parse::<i32>().ok());
    Closing { group, abrupt: code.is_some_and(|code| ABRUPT.contains(&(code & 0x7f))) }
}

fn thread_group(status: &[u8]) -> Option<u32> {
    let group = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(group).ok()?.trim().parse().ok()
}

/// Tells whether a process has a file with this inode number open; another file system's file with the same number
/// counts too. `false` if it can't be asked.
pub fn has_open(pid: u32, ino: u64) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = fs::openat(CWD, format!("/proc/{pid}/fdinfo"), flags, Mode::empty()) else {
        return false;
    };
    let mut buffer = [std::mem::MaybeUninit::uninit(); 8 * 1024];
    let mut raw = fs::RawDir::new(&dir, &mut buffer);
    let line = format!("ino:\t{ino}");
    while let Some(Ok(entry)) = raw.next() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        // `ino` is one of the first four lines (proc_pid_fdinfo(5)).
        if slurp(&dir, name).split(|byte| *byte == b'\n').any(|one| one == line.as_bytes()) {
            return true;
        }
    }
    false
}

/// Returns the supplementary groups of a process; none if it can't be asked.
pub fn groups(pid: u32) -> Vec<u32> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = fs::openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()) else {
        return Vec::new();
    };
    String::from_utf8_lossy(&slurp(&dir, "status"))
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .map(|groups| groups.split_whitespace().filter_map(|gid| gid.parse().ok()).collect())
        .unwrap_or_default()
}

/// Reads a small file below `/proc/PID`, at most 4 KiB of it.
fn slurp(dir: &OwnedFd, name: &str) -> Vec<u8> {
    let Ok(file) = fs::openat(dir.as_fd(), name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return Vec::new();
    };
    let mut buffer = vec![0; 4096];
    let length = rustix::io::read(&file, &mut buffer[..]).unwrap_or(0);
    buffer.truncate(length);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known_and_a_gone_one_is_not_confused_with_it() {
        let processes = Processes::default();
        let own = processes.get(std::process::id(), 7);
        assert_eq!(own.exe, std::env::current_exe().unwrap());
        assert!(own.start_time > 0 && own.ppid > 0 && !own.comm.is_empty());
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let sleeper = processes.get(child.id(), 7);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processes.get(child.id(), 7).start_time, sleeper.start_time);
    }
}
