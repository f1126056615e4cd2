//! The state that the caller left this process in: what is changed of it for our own work, so that the command gets it
//! back, and what can't be worked with.

use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Code, Failure};
use crate::sys;

/// How much address space threads, buffers and the database need at least.
const MEMORY: u64 = 1 << 30;

/// How large the log's files must be able to become at least.
const FILE: u64 = 16 << 20;

/// The soft limit of the size of files, before it was raised.
static FILE_SIZE: OnceLock<Option<u64>> = OnceLock::new();

/// Puts the process into a state in which it can work. To be called before there is a second thread.
pub fn settle() {
    // With SIGCHLD ignored the kernel reaps children itself, and nobody learns how they ended.
    sys::set_ignored(libc::SIGCHLD, false);
    // The log may reach a limit of the caller's: that has to be an error, not the end.
    sys::set_ignored(libc::SIGXFSZ, true);
    // What we make is ours to use.
    rustix::process::umask(sys::inherited_umask() & (Mode::RWXG | Mode::RWXO));
    let limit = getrlimit(Resource::Fsize);
    FILE_SIZE.get_or_init(|| limit.current);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // It is still as it was then, and still checked.
    let _kept = setrlimit(Resource::Fsize, raised);
}

/// Does something, such as starting a program, in the state that the caller left this process in; [`settle`] comes before
/// and after it.
pub fn as_it_was<T>(what: impl FnOnce() -> T) -> T {
    sys::set_ignored(libc::SIGXFSZ, sys::inherited_ignored().contains(libc::SIGXFSZ));
    rustix::process::umask(sys::inherited_umask());
    limit_file_size(file_size());
    let done = what();
    settle();
    done
}

/// Returns the soft limit of the size of files that the command starts with.
#[must_use]
pub fn file_size() -> Option<u64> {
    FILE_SIZE.get().copied().unwrap_or_else(|| getrlimit(Resource::Fsize).current)
}

/// Sets the soft limit of the size of files.
pub fn limit_file_size(limit: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    // Lowering it can't fail, and it was the limit before.
    let _infallible = setrlimit(Resource::Fsize, Rlimit { current: limit, maximum });
}

/// How many more descriptors a run needs at least.
const DESCRIPTORS: u64 = 128;

/// Tells whether `/proc` is there and shows this process.
#[must_use]
pub fn has_proc() -> bool {
    std::path::Path::new("/proc/self/fd").exists()
}

/// What to do where there is no `/proc`.
pub const PROC_REMEDY: &str = "mount it, as root: `mount -t proc proc /proc` (a container gets it unless it is told otherwise)";

/// Checks that the caller's limits and surroundings leave room for a run.
///
/// # Errors
/// They don't.
pub fn check() -> Result<(), Failure> {
    if !has_proc() {
        return Err(
            Failure::new(Code::SandboxUnavailable, "`/proc` isn't mounted here").help(PROC_REMEDY)
        );
    }
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    // The soft limit is raised when a run starts.
    if getrlimit(Resource::Nofile).maximum.is_some_and(|limit| open + DESCRIPTORS > limit) {
        let what =
            format!("{open} descriptors are open, which leaves too few of the limit of open files");
        return Err(Failure::new(Code::RunnerFailed, what)
            .help("close some before the start, or raise the limit (`ulimit -H -n`)"));
    }
    enough(Resource::As, MEMORY, "the limit of memory addresses", "ulimit -v")?;
    enough(Resource::Fsize, FILE, "the limit of the size of files", "ulimit -f")
}

fn enough(resource: Resource, least: u64, what: &str, command: &str) -> Result<(), Failure> {
    match getrlimit(resource).current {
        Some(limit) if limit < least => {
            Err(Failure::new(Code::RunnerFailed, format!("{what} ({limit} bytes) is too low"))
                .help(format!("raise it to at least {least} bytes (`{command} {}`)", least >> 10)))
        }
        Some(_) | None => Ok(()),
    }
}
