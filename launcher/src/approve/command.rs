//! The operator's command: the request as JSON on its input, the answer as JSON on its output.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use stockade_policy::text::{sanitise, shorten};
use stockade_policy::{ApprovalAnswer, ApprovalRequest};

use super::{Approver, Wait, Woken, cancelled};
use crate::sys;

/// No answer is longer.
const LONGEST: usize = 65_536;

/// How long an approver has between being told that it is over and being killed.
const GRACE: Duration = Duration::from_secs(2);

/// A command that decides.
#[derive(Debug)]
pub struct Command {
    argv: Vec<OsString>,
}

impl Command {
    /// Runs this program with these arguments.
    #[must_use]
    pub fn new(argv: Vec<OsString>) -> Self {
        Self { argv }
    }

    /// Has a shell run this command.
    #[must_use]
    pub fn shell(command: impl Into<OsString>) -> Self {
        Self { argv: vec!["/bin/sh".into(), "-c".into(), command.into()] }
    }
}

impl Approver for Command {
    fn ask(
        &mut self,
        request: &ApprovalRequest,
        wait: &Wait<'_>,
    ) -> Result<ApprovalAnswer, String> {
        let mut text =
            serde_json::to_vec(request).map_err(|error| format!("the request: {error}"))?;
        text.push(b'\n');
        let failed = |error: io::Error| {
            let program = self.argv.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            format!("the approver `{}`: {error}", sanitise(&program))
        };
        let mut running = Running::start(&self.argv).map_err(failed)?;
        let end = running.converse(&text, wait).map_err(failed)?;
        let said = match end {
            End::Exited(said) => said,
            End::Cancelled => return Ok(cancelled()),
            End::Silent(reason) => return Err(reason),
        };
        serde_json::from_slice(&said).map_err(|error| {
            let said = shorten(&sanitise(&String::from_utf8_lossy(&said)), 200);
            format!("the approver's answer `{said}` isn't understood: {error}")
        })
    }
}

enum End {
    /// It ended well, and said this.
    Exited(Vec<u8>),
    Cancelled,
    Silent(String),
}

/// The command, in a process group of its own that is gone when this is dropped. It has the terminal, if we had it.
struct Running {
    child: Child,
    group: Pid,
    pidfd: OwnedFd,
    terminal: Option<File>,
    ended: bool,
}

impl Running {
    fn start(argv: &[OsString]) -> io::Result<Self> {
        let (program, arguments) =
            argv.split_first().ok_or_else(|| io::Error::other("it is empty"))?;
        let child = std::process::Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let group = Pid::from_child(&child);
        let pidfd = pidfd_open(group, PidfdFlags::empty())?;
        Ok(Self { child, group, pidfd, terminal: hand_over(group), ended: false })
    }

    fn converse(&mut self, text: &[u8], wait: &Wait<'_>) -> io::Result<End> {
        let mut input = self.child.stdin.take();
        let mut output = self.child.stdout.take();
        let pipes = [input.as_ref().map(AsFd::as_fd), output.as_ref().map(AsFd::as_fd)];
        for pipe in pipes.into_iter().flatten() {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        let mut rest = text;
        let mut said = Vec::new();
        loop {
            let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            fds.extend(input.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
            fds.extend(output.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            let woken = wait.poll(&mut fds, None)?;
            let exited = fds.first().is_some_and(|fd| !fd.revents().is_empty());
            drop(fds);
            match woken {
                Woken::Ready => {}
                Woken::Cancelled => return Ok(End::Cancelled),
                Woken::TimedOut => return Ok(End::Silent(wait.timed_out())),
            }
            if let Some(pipe) = &mut input {
                match pipe.write(rest) {
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // It needn't read.
                    Err(_) => rest = &[],
                }
                if rest.is_empty() {
                    input = None;
                }
            }
            if let Some(pipe) = &mut output
                && !read_what_is_there(pipe, &mut said)?
            {
                output = None;
            }
            if said.len() > LONGEST {
                return Ok(End::Silent("the approver says too much".to_owned()));
            }
            if exited {
                break;
            }
        }
        // Looked at, but not reaped: its number must stay its own until its group is gone.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), look)?;
        self.ended = true;
        let ended = |how: String| End::Silent(format!("the approver ended with {how}"));
        Ok(match status.map(|status| (status.exit_status(), status.terminating_signal())) {
            Some((Some(0), _)) => End::Exited(said),
            // Ctrl-C went to whoever had the terminal.
            Some((_, Some(libc::SIGINT))) => End::Cancelled,
            Some((Some(code), _)) => ended(format!("status {code}")),
            Some((None, Some(signal))) => ended(format!("signal {signal}")),
            Some((None, None)) | None => ended("nothing".to_owned()),
        })
    }
}

/// Reads until nothing is left for now; tells whether more can come.
fn read_what_is_there(pipe: &mut impl Read, said: &mut Vec<u8>) -> io::Result<bool> {
    let mut part = [0; 4096];
    while said.len() <= LONGEST {
        match pipe.read(&mut part) {
            Ok(0) => return Ok(false),
            Ok(read) => said.extend_from_slice(part.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Gives the terminal to a process group, if it is ours to give.
fn hand_over(group: Pid) -> Option<File> {
    let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
    let ours = tcgetpgrp(&terminal).ok()? == rustix::process::getpgrp();
    if !ours || !give(&terminal, group) {
        return None;
    }
    // It may have asked for the terminal too early, and been stopped for that.
    let _gone = kill_process_group(group, Signal::CONT);
    Some(terminal)
}

fn give(terminal: &File, group: Pid) -> bool {
    let was_ignored = sys::is_ignored(libc::SIGTTOU);
    sys::set_ignored(libc::SIGTTOU, true);
    let given = tcsetpgrp(terminal, group).is_ok();
    sys::set_ignored(libc::SIGTTOU, was_ignored);
    given
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal {
            give(terminal, rustix::process::getpgrp());
        }
        if !self.ended {
            let _gone = kill_process_group(self.group, Signal::TERM);
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let timeout = rustix::event::Timespec::try_from(GRACE).ok();
            let _ended = rustix::event::poll(&mut fds, timeout.as_ref());
        }
        // Whatever it left running was for this one question.
        let _gone = kill_process_group(self.group, Signal::KILL);
        let _reaped = self.child.wait();
    }
}
