//! bubblewrap while it runs: what it says, signals, time, and the end of everything it started.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions};
use stockade_observe::{Ending, Recorder, RunOutcome};

use crate::error::{Code, Failure};
use crate::init::{below, children};
use crate::sys::{self, Child, SignalFd};

/// How often the recorder is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// How it ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) outcome: RunOutcome,
    pub(super) failure: Option<Failure>,
    /// bubblewrap's exit status, as a shell shows it.
    pub(super) status: u8,
}

/// Looks after bubblewrap.
pub(super) struct Supervisor<'r> {
    child: Child,
    said: Option<File>,
    /// What bubblewrap has said, and the caller's descriptor that wants to know it.
    text: Vec<u8>,
    caller: Option<File>,
    signals: SignalFd,
    deadline: Option<Instant>,
    /// Children of this process that the caller gave it.
    others: Vec<Pid>,
    recorder: &'r Recorder,
}

impl<'r> Supervisor<'r> {
    pub(super) fn new(
        child: Child,
        said: PipeReader,
        caller: Option<OwnedFd>,
        signals: SignalFd,
        timeout: Option<Duration>,
        others: Vec<Pid>,
        recorder: &'r Recorder,
    ) -> Self {
        Self {
            child,
            said: Some(File::from(OwnedFd::from(said))),
            text: Vec::new(),
            caller: caller.map(File::from),
            signals,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            others,
            recorder,
        }
    }

    /// Follows it to its end.
    pub(super) fn supervise(mut self) -> End {
        let mut timed_out = false;
        let mut unrecorded = false;
        loop {
            let dead = self.wait();
            while let Some(arrived) = self.signals.take() {
                // What the terminal sent, bubblewrap has got as well.
                if arrived.sent_by_a_process() {
                    // It isn't reaped yet, so the number is still its own.
                    let _gone = sys::kill(self.child.pid(), arrived.signal);
                }
            }
            if dead {
                break;
            }
            unrecorded |= self.recorder.failed().is_some_and(|failure| failure.stop);
            timed_out |= self.deadline.is_some_and(|at| at <= Instant::now());
            if unrecorded || timed_out {
                let _gone = self.child.signal(Signal::KILL);
            }
        }
        let status = self.child.wait().unwrap_or(0);
        end_strays(&self.others);
        // Nobody holds the other end any more.
        while self.said.is_some() {
            self.listen();
        }
        self.caller = None;
        self.conclude(status, timed_out, unrecorded)
    }

    /// Waits for something to do; tells whether bubblewrap has ended.
    fn wait(&mut self) -> bool {
        let now = Instant::now();
        let until = self.deadline.map_or(LOOK, |at| at.saturating_duration_since(now).min(LOOK));
        let timeout = rustix::event::Timespec::try_from(until + Duration::from_millis(1)).ok();
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.child.pidfd(), PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        fds.extend(self.said.as_ref().map(|said| PollFd::new(said, PollFlags::IN)));
        // A failure here is as good as a wake-up.
        let _woken = rustix::event::poll(&mut fds, timeout.as_ref());
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready.get(2) == Some(&true) {
            self.listen();
        }
        ready.first() == Some(&true)
    }

    /// Reads what bubblewrap says, and passes it on.
    fn listen(&mut self) {
        let mut buffer = [0; 1024];
        let read = self.said.as_mut().map_or(Ok(0), |said| said.read(&mut buffer));
        let count = match read {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return,
            Ok(count) => count,
            Err(_) => 0,
        };
        let heard = buffer.get(..count).unwrap_or_default();
        if heard.is_empty() {
            self.said = None;
        }
        self.text.extend_from_slice(heard);
        if self.caller.as_mut().is_some_and(|caller| caller.write_all(heard).is_err()) {
            self.caller = None;
        }
    }

    fn conclude(&self, status: i32, timed_out: bool, unrecorded: bool) -> End {
        let exit_code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        let shown = exit_code.or(signal.map(|signal| 128 + signal));
        let shown = shown.and_then(|status| u8::try_from(status).ok()).unwrap_or(1);
        let ended = |ending, exit_code, signal| RunOutcome { ending, exit_code, signal };
        let failed = ended(Ending::RunnerFailed, None, None);
        if unrecorded {
            let failure = Failure::new(
                Code::RunnerFailed,
                "the log can't be written, so the run was stopped",
            )
            .help("free space in the state directory, or name another with STOCKADE_STATE");
            return End { outcome: failed, failure: Some(failure), status: 1 };
        }
        if timed_out {
            let outcome = ended(Ending::TimedOut, None, signal);
            return End { outcome, failure: None, status: crate::result::TIMED_OUT };
        }
        let ran = self.exit_code();
        let (outcome, failure) = match (ran, signal) {
            (Some(code), _) => (ended(Ending::Exited, Some(code), None), None),
            (None, Some(signal)) => (ended(Ending::Signaled, None, Some(signal)), None),
            (None, None) => {
                let what = "bubblewrap ended before the command ran";
                (failed, Some(Failure::new(Code::RunnerFailed, what)))
            }
        };
        End { outcome, failure, status: shown }
    }

    /// Returns the command's status, if bubblewrap has said one: it only does for a command that ran.
    fn exit_code(&self) -> Option<i32> {
        let objects = serde_json::Deserializer::from_slice(&self.text).into_iter();
        let codes = objects.map_while(Result::ok).filter_map(|object: serde_json::Value| {
            i32::try_from(object.get("exit-code")?.as_i64()?).ok()
        });
        codes.last()
    }
}

/// Ends what bubblewrap has left behind; it comes to this process where there is no PID namespace. `others` aren't ours to
/// end: a shell's `> >(tee log)` is a child of whatever it goes on to execute.
fn end_strays(others: &[Pid]) {
    // Whoever forks faster than this forks without end.
    for _ in 0..1000 {
        let mut strays = children(rustix::process::getpid());
        strays.retain(|pid| !others.contains(pid));
        if strays.is_empty() {
            return;
        }
        for pid in below(strays.clone()) {
            // It may have ended meanwhile.
            let _gone = sys::kill(pid, Signal::KILL.as_raw());
        }
        for pid in strays {
            let _ended = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        }
    }
}
