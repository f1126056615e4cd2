//! A run while it goes on: what the helper says, signals, time, the end of everything inside, and what to make of it.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use stockade_fusefs::Server;
use stockade_observe::{Ending, Recorder, RunOutcome};

use crate::error::{Code, Failure};
use crate::launch::{GRACE, Watcher};
use crate::plan::Plan;
use crate::spec::{self, Ask, Told};
use crate::sys::{Arrived, Child, SignalFd};
use crate::terminal::Relay;

/// How long the end of the processes and of the mounts is waited for.
const LAST: Duration = Duration::from_secs(10);

/// How often the recorder is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// How far the command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Running,
}

/// How it ended, as far as the helper and the kernel say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The command's wait status.
    Command { status: i32, timed_out: bool },
    /// The command couldn't be executed.
    NoExec(i32),
    /// The helper couldn't do what it must.
    Helper(spec::HelperStep, i32),
    /// The sandbox ended and nobody said why.
    Silent { phase: Phase, timed_out: bool },
    /// The log can't be written, so the run was stopped.
    NotRecorded,
}

pub(crate) struct Supervisor<'r> {
    child: Child,
    control: OwnedFd,
    signals: Option<SignalFd>,
    deadline: Option<Instant>,
    kill_at: Option<Instant>,
    recorder: &'r Recorder,
    denials: crossbeam_channel::Receiver<stockade_observe::DenialRow>,
    timed_out: bool,
    phase: Phase,
    /// Signals from the terminal that came before the command was there to get them.
    early: Vec<i32>,
    /// The command's own terminal.
    terminal: Option<Relay>,
}

impl<'r> Supervisor<'r> {
    /// Looks after `child`, which is told what to do over `control`, for at most `timeout`.
    pub(crate) fn new(
        child: Child,
        control: OwnedFd,
        signals: Option<SignalFd>,
        timeout: Option<Duration>,
        recorder: &'r Recorder,
    ) -> Self {
        Self {
            child,
            control,
            signals,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            kill_at: None,
            recorder,
            denials: recorder.denials(),
            timed_out: false,
            phase: Phase::Starting,
            early: Vec::new(),
            terminal: None,
        }
    }

    /// Looks after the command's own terminal, too.
    pub(crate) fn on(mut self, terminal: Option<Relay>) -> Self {
        self.terminal = terminal;
        self
    }

    /// Follows the run to its end and returns it.
    pub(crate) fn supervise(&mut self, run: &str, watcher: &mut dyn Watcher) -> End {
        let mut said = None;
        let mut dead = false;
        let end = loop {
            self.wait();
            while let Some(arrived) = self.signals.as_ref().and_then(SignalFd::take) {
                self.pass_on(arrived);
            }
            if let Some(end) = self.listen(run, watcher) {
                said = Some(end);
            }
            self.denials.try_iter().for_each(|denial| watcher.denied(&denial));
            if said.is_some() || dead {
                break said.unwrap_or(End::Silent { phase: self.phase, timed_out: self.timed_out });
            }
            // Look once more at the control channel after the sandbox is seen to be dead: its last word may be there.
            dead = is_readable(self.child.pidfd());
            self.keep_time();
            if self.recorder.failed().is_some_and(|failure| failure.stop) {
                break End::NotRecorded;
            }
        };
        self.finish(end == End::NotRecorded);
        // The last refusals may still be on their way to the log, and to whoever watches.
        if end != End::NotRecorded
            && let Err(error) = self.recorder.flush()
        {
            tracing::debug!(%error, "the record isn't complete");
        }
        self.denials.try_iter().for_each(|denial| watcher.denied(&denial));
        end
    }

    /// Waits for something to do.
    fn wait(&self) {
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.child.pidfd(), PollFlags::IN),
            PollFd::new(&self.control, PollFlags::IN),
        ];
        if let Some(signals) = &self.signals {
            fds.push(PollFd::new(signals, PollFlags::IN));
        }
        let now = Instant::now();
        let until = [self.deadline, self.kill_at]
            .into_iter()
            .flatten()
            .map(|at| at.saturating_duration_since(now))
            .min()
            .unwrap_or(LOOK)
            .min(LOOK)
            // Rounded up, or the last millisecond would be spent spinning.
            + Duration::from_millis(1);
        let timeout = rustix::event::Timespec::try_from(until).ok();
        // A failure here is as good as a wake-up: everything is looked at anyway.
        let _woken = rustix::event::poll(&mut fds, timeout.as_ref());
    }

    fn ask(&self, ask: Ask) {
        // The helper being gone shows elsewhere.
        let _gone = ask.send(self.control.as_fd());
    }

    fn pass_on(&mut self, arrived: Arrived) {
        if let Some(terminal) = &self.terminal {
            if arrived.signal == libc::SIGWINCH {
                return terminal.resize();
            }
            // The caller's terminal isn't the command's, so what that sent went to nobody inside.
            if self.phase == Phase::Running {
                return self.ask(Ask::Signal(arrived.signal));
            }
        }
        match self.phase {
            Phase::Starting => self.early.push(arrived.signal),
            // What the terminal sent went to the whole foreground group, the command included.
            Phase::Running if arrived.sent_by_a_process() => self.ask(Ask::Signal(arrived.signal)),
            Phase::Running => {}
        }
    }

    /// Reads what the helper says; returns the end when it says one.
    fn listen(&mut self, run: &str, watcher: &mut dyn Watcher) -> Option<End> {
        loop {
            match Told::receive(self.control.as_fd()) {
                Ok(Some(Told::Started)) => {
                    self.phase = Phase::Running;
                    for signal in std::mem::take(&mut self.early) {
                        self.ask(Ask::Signal(signal));
                    }
                    watcher.started(run, command_pid(&self.child));
                }
                Ok(Some(Told::ExecFailed(errno))) => return Some(End::NoExec(errno)),
                Ok(Some(Told::Exited(status))) => {
                    return Some(End::Command { status, timed_out: self.timed_out });
                }
                Ok(Some(Told::Failed(step, errno))) => return Some(End::Helper(step, errno)),
                // Stopping with it makes a shell see the job as stopped. The notification may be old, so ask first.
                Ok(Some(Told::Stopped(_))) => self.ask(Ask::IsStopped),
                Ok(Some(Told::IsStopped(true))) => {
                    let own = rustix::process::getpid();
                    self.terminal.iter().for_each(Relay::pause);
                    let _continued = rustix::process::kill_process(own, Signal::STOP);
                    self.terminal.iter().for_each(Relay::resume);
                    self.ask(Ask::Continue);
                }
                Ok(Some(Told::IsStopped(false))) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|at| at <= now) {
            self.deadline = None;
            self.timed_out = true;
            self.kill_at = Some(now + GRACE);
            self.ask(Ask::Terminate);
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            // Its death takes everything inside along.
            let _dead = self.child.signal(Signal::KILL);
        }
    }

    /// Waits until every process of the sandbox is gone.
    fn finish(&mut self, at_once: bool) {
        if at_once {
            let _dead = self.child.signal(Signal::KILL);
        }
        let until = Instant::now() + LAST;
        while !is_readable(self.child.pidfd()) && Instant::now() < until {
            let mut fds = [PollFd::from_borrowed_fd(self.child.pidfd(), PollFlags::IN)];
            let timeout = rustix::event::Timespec::try_from(Duration::from_millis(100)).ok();
            let _woken = rustix::event::poll(&mut fds, timeout.as_ref());
        }
        // Dropping the child kills and reaps it in any case.
        self.drain();
    }

    /// Waits until the caller has taken what the command wrote on its terminal, or doesn't want to wait.
    fn drain(&self) {
        while self.terminal.as_ref().is_some_and(|terminal| !terminal.is_done()) {
            let given_up = |arrived: Arrived| {
                [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM].contains(&arrived.signal)
            };
            if self.signals.as_ref().and_then(SignalFd::take).is_some_and(given_up) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the host's number of the command's process: the only child of the only child of bubblewrap.
fn command_pid(bwrap: &Child) -> Option<u32> {
    let only_child = |pid: u32| -> Option<u32> {
        let path = format!("/proc/{pid}/task/{pid}/children");
        std::fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
    };
    only_child(bwrap.pid().as_raw_pid().unsigned_abs()).and_then(only_child)
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
}

/// Waits until the mounts are gone and everything they recorded is on its way; tells whether they are.
pub(crate) fn wait_for_servers(servers: Vec<Server>) -> bool {
    let until = Instant::now() + LAST;
    let mut pause = Duration::from_micros(100);
    while servers.iter().any(|server| !server.is_finished()) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
    for server in servers {
        if let Err(error) = server.wait() {
            tracing::warn!(%error, "a server ended with an error");
        }
    }
    true
}

/// Turns the end into an outcome, and into a failure where it is one.
pub(crate) fn conclude(
    end: End,
    errors: io::PipeReader,
    plan: &Plan,
) -> (RunOutcome, Option<Failure>) {
    let broke = |failure: Failure| {
        let outcome = RunOutcome { ending: Ending::RunnerFailed, exit_code: None, signal: None };
        (outcome, Some(failure))
    };
    match end {
        End::Command { status, timed_out } => {
            let exit_code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
            let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
            let ending = match (timed_out, signal) {
                (true, _) => Ending::TimedOut,
                (false, Some(_)) => Ending::Signaled,
                (false, None) => Ending::Exited,
            };
            (RunOutcome { ending, exit_code, signal }, None)
        }
        End::Silent { timed_out: true, .. } => {
            let signal = Some(Signal::KILL.as_raw());
            (RunOutcome { ending: Ending::TimedOut, exit_code: None, signal }, None)
        }
        End::NoExec(errno) => {
            let missing = errno == Errno::NOENT.raw_os_error();
            let command = plan.argv.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            let what = format!("can't run `{command}`");
            let failure =
                Failure::new(Code::RunnerFailed, what).because(io::Error::from_raw_os_error(errno));
            let outcome = RunOutcome {
                ending: Ending::RunnerFailed,
                exit_code: Some(if missing { 127 } else { 126 }),
                signal: None,
            };
            (outcome, Some(failure))
        }
        End::Helper(step, errno) => {
            let what = format!("{} failed", step.describe());
            let error = io::Error::from_raw_os_error(errno);
            let failure = Failure::new(Code::RunnerFailed, what).because(error);
            broke(match step {
                spec::HelperStep::Confined => {
                    failure.help("the sandbox does not confine here, so the command did not run")
                }
                spec::HelperStep::ChangeDirectory => {
                    failure.help("start it from a directory that the command may read")
                }
                spec::HelperStep::ReadSpec
                | spec::HelperStep::Hide
                | spec::HelperStep::Fork
                | spec::HelperStep::Restrict => failure,
            })
        }
        End::Silent { phase: Phase::Running, .. } => broke(Failure::new(
            Code::RunnerFailed,
            "the sandbox was killed from outside while the command ran",
        )),
        End::Silent { phase: Phase::Starting, .. } => {
            let text = last_words(errors);
            let failure = Failure::new(
                Code::RunnerFailed,
                format!(
                    "bubblewrap ended before the command ran{}{text}",
                    if text.is_empty() { "" } else { ": " }
                ),
            );
            broke(failure.help("`stockade doctor` shows what this machine can enforce"))
        }
        End::NotRecorded => broke(
            Failure::new(Code::RunnerFailed, "the log can't be written, so the run was stopped")
                .help("free space in the state directory, or name another with STOCKADE_STATE"),
        ),
    }
}

/// Returns what bubblewrap wrote before it died.
fn last_words(mut errors: io::PipeReader) -> String {
    let _blocking = rustix::io::ioctl_fionbio(&errors, true);
    let mut text = Vec::new();
    // EAGAIN ends the reading as an end of file does.
    let _done = errors.by_ref().take(4096).read_to_end(&mut text);
    String::from_utf8_lossy(&text).trim().replace('\n', "; ")
}
