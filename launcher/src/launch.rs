//! Carries out a plan: namespaces, mounts, the recorder, bubblewrap, the helper, the command, and back.
//!
//! Order of things, and why:
//! 1. What is needed is opened and written down before the fork (namespace I1).
//! 2. The child makes its mounts while the recorder starts here.
//! 3. Every mount is served before the child is told to go (namespace I4).
//! 4. The helper inside gets the specification and the streams over a socket that bubblewrap's own process only passes
//!    on, so nobody but the command holds the caller's streams.
//! 5. How it ended is what the helper said (contract L5). When the helper said nothing, we broke.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use stockade_fusefs::{Owner, Server, ServerConfig};
use stockade_observe::{
    Ending, OnRecordFailure, Recorder, RunId, RunInfo, RunOutcome, SessionId, Sink, Time,
};

use crate::error::{Code, Failure};
use crate::namespace::{Namespace, NamespaceError, Program, Region, Setup, Step};
use crate::plan::Plan;
use crate::result::RunResult;
use crate::spec::{self, Ask, Spec, Told};
use crate::sys::{self, Arrived, CStringArray, Child, SignalFd, SignalSet};
use crate::{init, probe};

/// How long a command that ran out of time has between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long the end of the processes and of the mounts is waited for.
const LAST: Duration = Duration::from_secs(10);

/// How often the recorder is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Signals that are passed on to the command when another process sends them here.
#[must_use]
pub fn forwarded() -> SignalSet {
    let classic = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGALRM,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGWINCH,
        libc::SIGURG,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGVTALRM,
        libc::SIGPROF,
    ];
    let real_time = 34..=sys::LAST_SIGNAL;
    classic.into_iter().chain(real_time).fold(SignalSet::default(), SignalSet::with)
}

/// What a run needs besides its plan.
#[derive(Debug)]
pub struct Context {
    /// The session's id.
    pub session: String,
    /// The session's directory.
    pub session_directory: PathBuf,
    /// The run's id.
    pub run: String,
    /// Standard input, output and error of the command.
    pub streams: [OwnedFd; 3],
    /// More descriptors, and the numbers they have in the command.
    pub keep: Vec<(OwnedFd, i32)>,
    /// The command's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Signals that the command starts with as ignored.
    pub ignored: SignalSet,
    /// Signals that the command starts with as blocked.
    pub blocked: SignalSet,
    /// Where signals for the command arrive; [`forwarded`] are blocked in every thread then.
    pub signals: Option<SignalFd>,
    /// How long the command may take.
    pub timeout: Option<Duration>,
}

/// Told about a run while it goes on.
pub trait Watcher {
    /// The command runs, in this process as the host numbers it, if that can be told.
    fn started(&mut self, _run: &str, _pid: Option<u32>) {}
    /// Something was refused.
    fn denied(&mut self, _denial: &stockade_observe::DenialRow) {}
    /// It is over.
    fn ended(&mut self, _outcome: &RunOutcome) {}
}

/// Watches nothing.
#[derive(Debug)]
pub struct Unwatched;

impl Watcher for Unwatched {}

/// Runs a plan to its end.
pub fn run(plan: &Plan, context: Context, watcher: &mut dyn Watcher) -> RunResult {
    let started = Time::now();
    let clock = Instant::now();
    let mut result = RunResult {
        session: context.session.clone(),
        run: context.run.clone(),
        argv: plan.argv.clone(),
        cwd: plan.cwd.clone(),
        policy: Some(plan.policy.clone()),
        backend: Some(plan.backend()),
        enforcement: Some(plan.enforcement.clone()),
        outcome: RunOutcome { ending: Ending::RunnerFailed, exit_code: None, signal: None },
        failure: None,
        summary: None,
        started,
        duration: Duration::ZERO,
    };
    let ended = attempt(plan, context, started, watcher);
    result.outcome = ended.outcome;
    result.failure = ended.failure;
    if let Some(recorder) = ended.recorder {
        match recorder.finish(ended.outcome) {
            Ok(summary) => result.summary = Some(summary),
            Err(error) => {
                result.failure.get_or_insert_with(|| {
                    Failure::new(Code::RunnerFailed, "the recorder died").because(error)
                });
            }
        }
    }
    result.duration = clock.elapsed();
    watcher.ended(&result.outcome);
    result
}

/// How an attempt ended, and what is to be closed.
struct Ended {
    outcome: RunOutcome,
    failure: Option<Failure>,
    recorder: Option<Recorder>,
}

impl Ended {
    fn failed(failure: Failure, recorder: Option<Recorder>) -> Self {
        let ending = match failure.code() {
            Code::SandboxUnavailable => Ending::Unavailable,
            Code::PolicyInvalid
            | Code::ConfigInvalid
            | Code::EscalationNotWider
            | Code::EscalationUnpaired
            | Code::ApprovalRejected
            | Code::ApprovalUnavailable
            | Code::SessionNotFound
            | Code::SessionBusy => Ending::Refused,
            Code::ApprovalCanceled => Ending::Canceled,
            Code::RunnerFailed | Code::MountFailed => Ending::RunnerFailed,
        };
        Self {
            outcome: RunOutcome { ending, exit_code: None, signal: None },
            failure: Some(failure),
            recorder,
        }
    }
}

fn runner(what: &str) -> impl FnOnce(io::Error) -> Failure {
    let what = what.to_owned();
    move |error| Failure::new(Code::RunnerFailed, what).because(error)
}

fn attempt(plan: &Plan, context: Context, started: Time, watcher: &mut dyn Watcher) -> Ended {
    let prepared = match prepare(plan) {
        Ok(prepared) => prepared,
        Err(failure) => return Ended::failed(failure, None),
    };
    let Prepared { sources, namespace, control, errors } = prepared;
    let info = RunInfo {
        id: RunId(context.run.as_str().into()),
        argv: plan.argv.clone(),
        cwd: plan.cwd.clone(),
        mode: plan.policy.mode,
        source: plan.policy.source,
        root: plan.policy.root.clone(),
        writable_roots: plan.policy.writable_roots(),
        backend: plan.backend().to_owned(),
        started,
    };
    let recorder = match Recorder::start(
        &context.session_directory,
        SessionId(context.session.as_str().into()),
        info,
        OnRecordFailure::Stop,
    ) {
        Ok(recorder) => recorder,
        Err(error) => {
            let failure =
                Failure::new(Code::RunnerFailed, "can't start the recorder").because(error);
            return Ended::failed(failure, None);
        }
    };
    let devices = match namespace.devices() {
        Ok(devices) => devices,
        Err(error) => return Ended::failed(namespace_failure(error), Some(recorder)),
    };
    let mut servers = Vec::new();
    for ((path, source), device) in plan.regions.iter().zip(sources).zip(devices) {
        match serve(plan, path.clone(), source, device, recorder.sink()) {
            Ok(server) => servers.push(server),
            Err(failure) => return Ended::failed(failure, Some(recorder)),
        }
    }
    let sent = send(plan, &context, control.as_fd());
    // Nobody but the command holds these from here on.
    let Context { streams, keep, run, signals, timeout, .. } = context;
    drop((streams, keep));
    if let Err(failure) = sent {
        return Ended::failed(failure, Some(recorder));
    }
    let child = match namespace.go() {
        Ok(child) => child,
        Err(error) => return Ended::failed(namespace_failure(error), Some(recorder)),
    };
    let mut supervisor = Supervisor {
        child,
        control,
        signals,
        deadline: timeout.map(|timeout| Instant::now() + timeout),
        kill_at: None,
        recorder: &recorder,
        denials: recorder.denials(),
        timed_out: false,
        phase: Phase::Starting,
        early: Vec::new(),
    };
    let end = supervisor.supervise(&run, watcher);
    drop(supervisor);
    let complete = wait_for_servers(servers);
    let (outcome, failure) = conclude(end, errors, plan);
    let failure = failure.or_else(|| {
        (!complete).then(|| {
            Failure::new(Code::RunnerFailed, "a mount did not end: the record may be incomplete")
        })
    });
    Ended { outcome, failure, recorder: Some(recorder) }
}

/// What is ready when the child begins.
struct Prepared {
    sources: Vec<OwnedFd>,
    namespace: Namespace,
    control: OwnedFd,
    errors: io::PipeReader,
}

fn prepare(plan: &Plan) -> Result<Prepared, Failure> {
    let owner = owner(plan);
    let mut sources = Vec::new();
    let mut regions = Vec::new();
    for path in &plan.regions {
        let opened = rustix::fs::open(
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(io::Error::from);
        let what = format!("can't open `{}`", path.display());
        let source = opened.map_err(runner(&what))?;
        let region = Region::new(path, source.as_fd(), |device| {
            stockade_fusefs::mount_data(device, &owner, true)
        });
        regions.push(region.map_err(runner(&what))?);
        sources.push(source);
    }
    let (control, theirs) = spec::channel().map_err(runner("can't make a control channel"))?;
    let (errors, errors_writer) = io::pipe().map_err(runner("can't make a pipe"))?;
    let helper = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
        .map_err(runner("can't open `/proc/self/exe`"))?;
    let argv = bwrap_argv(plan, &helper, &theirs).map_err(runner("can't build a command line"))?;
    let program = Program {
        path: spec::c_string(plan.program.as_os_str())
            .map_err(runner("can't build a command line"))?,
        argv,
        // What the caller's environment holds is the command's business, not bubblewrap's.
        environment: CStringArray::new(vec![c"PATH=/usr/bin:/bin".to_owned()]),
        keep: vec![theirs, helper],
        stderr: Some(errors_writer.into()),
    };
    let user = plan
        .user_namespace
        .then(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    let namespace = Namespace::start(Setup { user, regions, program: Some(program) })
        .map_err(runner("can't start a process"))?;
    Ok(Prepared { sources, namespace, control, errors })
}

fn bwrap_argv(plan: &Plan, helper: &OwnedFd, control: &OwnedFd) -> io::Result<CStringArray> {
    let mut argv: Vec<CString> = vec![c"bwrap".to_owned()];
    for option in &plan.options {
        argv.push(spec::c_string(option)?);
    }
    let rest = [
        "--".to_owned(),
        format!("/proc/self/fd/{}", helper.as_raw_fd()),
        init::FLAG.to_owned(),
        control.as_raw_fd().to_string(),
    ];
    for word in rest {
        argv.push(CString::new(word)?);
    }
    Ok(CStringArray::new(argv))
}

fn owner(plan: &Plan) -> Owner {
    if plan.user_namespace {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Owner::User {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    } else {
        Owner::Root
    }
}

fn serve(
    plan: &Plan,
    path: PathBuf,
    source: OwnedFd,
    device: OwnedFd,
    sink: Arc<dyn Sink>,
) -> Result<Server, Failure> {
    let config = ServerConfig {
        rules: plan.rules.clone(),
        policy: plan.policy.clone(),
        sink,
        source,
        path,
        owner: owner(plan),
        passthrough: !plan.user_namespace,
        state: crate::state::staged_directory(),
        threads: 0,
    };
    stockade_fusefs::serve(device, config).map_err(|error| {
        Failure::new(Code::MountFailed, "the file system can't be served").because(error)
    })
}

fn namespace_failure(error: NamespaceError) -> Failure {
    let remedy = probe::namespace_remedy(&error);
    let (code, message) = match error.step {
        Step::UserNamespace
        | Step::DenySetgroups
        | Step::UidMap
        | Step::GidMap
        | Step::MountNamespace
        | Step::PrivateMounts
        | Step::OpenDevice
        | Step::Exec => (Code::SandboxUnavailable, "nothing here can confine the command"),
        Step::OpenRegion | Step::RegionMoved | Step::Mount => {
            (Code::MountFailed, "the file system can't be mounted")
        }
        Step::DieWithParent | Step::Send | Step::Ready => {
            (Code::RunnerFailed, "the sandbox can't be set up")
        }
    };
    Failure::new(code, message)
        .because(error)
        .help(remedy)
        .help("`stockade doctor` shows what this machine can enforce")
}

fn send(plan: &Plan, context: &Context, control: BorrowedFd<'_>) -> Result<(), Failure> {
    let build = || -> io::Result<Spec> {
        let argv = plan.argv.iter().map(|word| spec::c_string(word)).collect::<io::Result<_>>()?;
        let own: [(&OsStr, &OsStr); 3] = [
            ("STOCKADE_SESSION".as_ref(), context.session.as_ref()),
            ("STOCKADE_RUN".as_ref(), context.run.as_ref()),
            ("STOCKADE_MODE".as_ref(), plan.policy.mode.as_str().as_ref()),
        ];
        let environment = context
            .environment
            .iter()
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
            .filter(|(name, _)| own.iter().all(|(own, _)| own != name))
            .chain(own)
            .map(|(name, value)| {
                Ok(CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())?)
            })
            .collect::<io::Result<_>>()?;
        Ok(Spec {
            argv,
            environment,
            cwd: spec::c_string(plan.cwd.as_os_str())?,
            ignored: context.ignored,
            blocked: context.blocked,
            check: plan.check.as_ref().map(|path| spec::c_string(path.as_os_str())).transpose()?,
            scoped: plan.scoped,
            keep: context.keep.iter().map(|(_, number)| *number).collect(),
        })
    };
    let file = build()
        .and_then(|spec| spec.to_file())
        .map_err(runner("can't pass the command to the sandbox"))?;
    let mut fds = vec![file.as_fd()];
    fds.extend(context.streams.iter().map(AsFd::as_fd));
    fds.extend(context.keep.iter().map(|(fd, _)| fd.as_fd()));
    spec::send_descriptors(control, &fds)
        .map_err(io::Error::from)
        .map_err(runner("can't pass descriptors to the sandbox"))
}

/// How far the command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Running,
}

/// How it ended, as far as the helper and the kernel say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
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

struct Supervisor<'r> {
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
}

impl Supervisor<'_> {
    fn supervise(&mut self, run: &str, watcher: &mut dyn Watcher) -> End {
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
                    let _continued = rustix::process::kill_process(own, Signal::STOP);
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
fn wait_for_servers(servers: Vec<Server>) -> bool {
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
fn conclude(end: End, errors: io::PipeReader, plan: &Plan) -> (RunOutcome, Option<Failure>) {
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
