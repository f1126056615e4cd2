//! Attempts on processes outside.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};

use super::Act::{Own, Try};
use super::{Attempt, MARK, Scene, attempt, on_suspects, with_gap};
use crate::enforcement::Gap;
use crate::sys::attempt as raw;

const SIGNALS: &[Gap] = &[Gap::Signals];
const OTHERS: &[Gap] = &[Gap::OtherProcesses];

/// What overwrites a word of memory.
pub(super) const WORD: [u8; 8] = *b"OVERWROT";

pub(super) const ALL: &[Attempt] = &[
    with_gap(
        "signal-kill",
        SIGNALS,
        Try(|s| on_suspects(s, |pid| Ok(rustix::process::kill_process(pid, Signal::KILL)?))),
    ),
    with_gap(
        "signal-group",
        SIGNALS,
        Try(|s| on_suspects(s, |pid| Ok(rustix::process::kill_process_group(pid, Signal::TERM)?))),
    ),
    with_gap(
        "signal-descriptor",
        SIGNALS,
        Try(|s| {
            on_suspects(s, |pid| {
                let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
                Ok(rustix::process::pidfd_send_signal(pidfd, Signal::KILL)?)
            })
        }),
    ),
    with_gap(
        "signal-by-proc",
        SIGNALS,
        Try(|s| {
            on_suspects(s, |pid| {
                let directory = fs::File::open(format!("/proc/{}", pid.as_raw_pid()))?;
                Ok(rustix::process::pidfd_send_signal(directory, Signal::KILL)?)
            })
        }),
    ),
    attempt(
        "process-trace",
        Try(|s| on_suspects(s, |pid| Ok(raw::trace_and_write(pid, s.memory, WORD)?))),
    ),
    attempt(
        "process-memory",
        Try(|s| on_suspects(s, |pid| Ok(raw::write_memory(pid, s.memory, &WORD)?))),
    ),
    attempt(
        "process-mem-file",
        Try(|s| {
            on_suspects(s, |pid| {
                use std::os::unix::fs::FileExt;
                let path = format!("/proc/{}/mem", pid.as_raw_pid());
                fs::OpenOptions::new().write(true).open(path)?.write_all_at(&WORD, s.memory)
            })
        }),
    ),
    attempt(
        "process-descriptor",
        Try(|s| {
            on_suspects(s, |pid| {
                let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
                let fd = rustix::process::pidfd_getfd(pidfd, s.held, PidfdGetfdFlags::empty())?;
                fs::File::from(fd).write_all(MARK)
            })
        }),
    ),
    with_gap("process-limits", OTHERS, Try(|s| on_suspects(s, |pid| Ok(raw::limit_files(pid)?)))),
    with_gap(
        "process-priority",
        OTHERS,
        Try(|s| on_suspects(s, |pid| Ok(rustix::process::setpriority_process(Some(pid), 7)?))),
    ),
    attempt(
        "process-oom-score",
        Try(|s| {
            on_suspects(s, |pid| {
                fs::write(format!("/proc/{}/oom_score_adj", pid.as_raw_pid()), "777")
            })
        }),
    ),
    attempt("setuid-program", Own(setuid_program)),
    attempt(
        "setuid-userns",
        Own(|s| {
            super::mounts::become_root()?;
            setuid_program(s)
        }),
    ),
];

/// What could end the run, and the battery with it: made last.
pub(super) const LAST: &[Attempt] = &[attempt(
    "server-parent",
    Own(|s| {
        if s.unconfined {
            return stand_in();
        }
        // The helper. When that works the battery ends here, which is seen outside.
        if let Some(pid) = helper()?.filter(|pid| *pid != Pid::INIT) {
            rustix::process::kill_process(pid, Signal::KILL)?;
        }
        // In a namespace of the run's own, that is the helper too; elsewhere the kernel protects it from everybody.
        let _ignored = rustix::process::kill_process(Pid::INIT, Signal::KILL);
        std::thread::sleep(Duration::from_millis(100));
        Err(io::Error::other("process 1 ignores it"))
    }),
)];

/// The control: the same signal ends a process that stands for the server.
fn stand_in() -> io::Result<()> {
    let mut child = Command::new("sleep").arg("60").spawn()?;
    let pid = Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::KILL)?;
    child.wait().map(drop)
}

/// Returns the parent of the program that makes the attempts, unless it is the machine's first process.
fn helper() -> io::Result<Option<Pid>> {
    let parent = rustix::process::getppid().map_or(1, Pid::as_raw_pid);
    let status = fs::read_to_string(format!("/proc/{parent}/status"))?;
    let above = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    Ok(above.and_then(|text| Pid::from_raw(text.trim().parse().ok()?)))
}

/// Starts a program of root's that waits for a password, and looks whose rights it has.
fn setuid_program(_scene: &Scene) -> io::Result<()> {
    const CANDIDATES: [&str; 5] =
        ["/usr/bin/su", "/bin/su", "/usr/bin/chsh", "/usr/bin/passwd", "/usr/bin/newgrp"];
    if rustix::process::geteuid().is_root()
        && fs::read_to_string("/proc/self/uid_map")?.contains(" 4294967295")
    {
        return Err(io::Error::other("it is root already"));
    }
    let program = CANDIDATES
        .iter()
        .find(|path| {
            fs::metadata(path)
                .is_ok_and(|found| found.uid() == 0 && found.permissions().mode() & 0o4000 != 0)
        })
        .ok_or_else(|| io::Error::other("there is no set-user-id program"))?;
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let outcome = rights_of(child.id());
    child.kill()?;
    child.wait()?;
    outcome
}

fn rights_of(pid: u32) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_millis(300);
    let own = rustix::process::geteuid().as_raw();
    while Instant::now() < deadline {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let effective = user.and_then(|text| text.split_whitespace().nth(1)?.parse::<u32>().ok());
        if effective.is_some_and(|effective| effective == 0 && own != 0) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(io::Error::other("it got no rights"))
}
