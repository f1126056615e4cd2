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
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use stockade_observe::history::Bounds;
use stockade_observe::{
    Ending, OnRecordFailure, Recorder, RunId, RunInfo, RunOutcome, SessionId, Time,
};

use crate::error::{Code, Failure};
use crate::limits::{Groups, Used};
use crate::namespace::{Confine, Namespace, NamespaceError, Program, Setup, Step};
use crate::plan::{Kind, Plan};
use crate::result::RunResult;
use crate::serve::{Served, open_regions};
use crate::spec::{self, Spec};
use crate::supervise::{Supervisor, conclude, wait_for_servers};
use crate::sys::{self, CStringArray, SignalFd, SignalSet};
use crate::terminal::Relay;
use crate::{init, probe};

/// How long a command that ran out of time has between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);

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
    /// The names of variables that were taken out of it because of the policy.
    pub withheld: Vec<OsString>,
    /// Signals that the command starts with as ignored.
    pub ignored: SignalSet,
    /// Signals that the command starts with as blocked.
    pub blocked: SignalSet,
    /// The umask that the command starts with.
    pub umask: u32,
    /// The soft limit of the size of files that it starts with.
    pub file_size: Option<u64>,
    /// What to keep of what is changed, if anything.
    pub history: Option<Bounds>,
    /// Where signals for the command arrive; [`forwarded`] are blocked in every thread then.
    pub signals: Option<SignalFd>,
    /// How long the command may take.
    pub timeout: Option<Duration>,
    /// The terminal whose other end the streams are.
    pub terminal: Option<Relay>,
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
        withheld: context.withheld.clone(),
        used: None,
        outcome: RunOutcome { ending: Ending::RunnerFailed, exit_code: None, signal: None },
        failure: None,
        summary: None,
        started,
        duration: Duration::ZERO,
    };
    let ended = attempt(plan, context, started, watcher, &mut result.used);
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
        Self { outcome: failure.outcome(), failure: Some(failure), recorder }
    }
}

pub(crate) fn runner(what: &str) -> impl FnOnce(io::Error) -> Failure {
    let what = what.to_owned();
    move |error| Failure::new(Code::RunnerFailed, what).because(error)
}

fn attempt(
    plan: &Plan,
    context: Context,
    started: Time,
    watcher: &mut dyn Watcher,
    used: &mut Option<Used>,
) -> Ended {
    let prepared = match prepare(plan, &context.run) {
        Ok(prepared) => prepared,
        Err(failure) => return Ended::failed(failure, None),
    };
    let Prepared { sources, groups, mut namespace, control, errors } = prepared;
    let info = RunInfo {
        id: RunId(context.run.as_str().into()),
        argv: plan.argv.clone(),
        cwd: plan.cwd.clone(),
        mode: plan.policy.mode,
        source: plan.policy.source,
        root: plan.policy.root.clone(),
        writable_roots: plan.policy.writable(),
        backend: plan.backend().to_owned(),
        started,
    };
    let devices = namespace.devices().and_then(|devices| namespace.go().map(|()| devices));
    let guardian = match namespace.guardian().map_err(runner("the guardian of the mounts ended")) {
        Ok(guardian) => guardian,
        Err(failure) => return Ended::failed(failure, None),
    };
    // The sandbox is being set up from here on, while we get ready to serve it. Its helper runs nothing before it is told
    // what, and ends if it never is.
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
    let devices = match devices {
        Ok(devices) => devices,
        Err(error) => return Ended::failed(namespace_failure(error), Some(recorder)),
    };
    let served = served(plan, &context);
    let servers = match served.serve(sources, devices, &recorder) {
        Ok(servers) => servers,
        Err(failure) => return Ended::failed(failure, Some(recorder)),
    };
    let sent = send(plan, &context, control.as_fd());
    // Nobody but the command holds these from here on.
    let Context { streams, keep, run, signals, timeout, terminal, .. } = context;
    drop((streams, keep));
    if let Err(failure) = sent {
        return Ended::failed(failure, Some(recorder));
    }
    let child = match namespace.gone() {
        Ok(child) => child,
        Err(error) => return Ended::failed(namespace_failure(error), Some(recorder)),
    };
    let mut supervisor = Supervisor::new(child, control, signals, timeout, &recorder).on(terminal);
    let end = supervisor.supervise(&run, watcher);
    drop(supervisor);
    *used = groups.as_ref().map(Groups::used);
    drop((groups, guardian));
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
    // Dropped after what is in it.
    groups: Option<Groups>,
    control: OwnedFd,
    errors: io::PipeReader,
}

fn prepare(plan: &Plan, run: &str) -> Result<Prepared, Failure> {
    let (sources, regions) = open_regions(&plan.regions, plan.user_namespace)?;
    let (control, theirs) = spec::channel().map_err(runner("can't make a control channel"))?;
    let (errors, errors_writer) = io::pipe().map_err(runner("can't make a pipe"))?;
    let helper = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
        .map_err(runner("can't open `/proc/self/exe`"))?;
    let argv =
        sandbox_argv(plan, &helper, &theirs).map_err(runner("can't build a command line"))?;
    let program = Program {
        path: program_path(plan, &helper).map_err(runner("can't build a command line"))?,
        argv,
        // What the caller's environment holds is the command's business, not bubblewrap's.
        environment: CStringArray::new(vec![c"PATH=/usr/bin:/bin".to_owned()]),
        keep: vec![theirs, helper],
        stderr: Some(errors_writer.into()),
        signals: None,
        lingers: plan.kind == Kind::Bubblewrap,
    };
    let user = plan
        .user_namespace
        .then(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    let confine = match plan.kind {
        Kind::Namespaces => Some(Confine {
            read_only: plan.confined(),
            hidden: c_strings(&plan.hidden).map_err(runner("can't build a command line"))?,
            no_network: plan.policy.network == stockade_policy::Network::None,
            terminal: plan
                .terminal
                .as_ref()
                .map(|path| spec::c_string(path.as_os_str()))
                .transpose()
                .map_err(runner("can't build a command line"))?,
        }),
        Kind::Bubblewrap | Kind::Runner | Kind::Custom => None,
    };
    let mounts = plan.kind != Kind::Runner;
    let setup = Setup { user, mounts, regions, kept: Vec::new(), confine, program: Some(program) };
    let groups = Groups::make(&plan.limits, run, plan.overhead(), &crate::state::directory()?)?;
    let namespace = Namespace::start(setup).map_err(runner("can't start a process"))?;
    // It does nothing that counts before it is told to go.
    groups.iter().try_for_each(|groups| groups.add(namespace.pid()))?;
    Ok(Prepared { sources, namespace, groups, control, errors })
}

/// Returns the path of the program that the namespace child becomes; our own, where it is the runner or the helper.
fn program_path(plan: &Plan, helper: &OwnedFd) -> io::Result<CString> {
    match plan.kind {
        Kind::Bubblewrap | Kind::Custom => spec::c_string(plan.program.as_os_str()),
        Kind::Namespaces | Kind::Runner => {
            Ok(CString::new(format!("/proc/self/fd/{}", helper.as_raw_fd()))?)
        }
    }
}

fn sandbox_argv(plan: &Plan, helper: &OwnedFd, control: &OwnedFd) -> io::Result<CStringArray> {
    let runs = matches!(plan.kind, Kind::Namespaces | Kind::Runner);
    let mut words: Vec<OsString> = Vec::new();
    // In danger-full-access nothing is restricted: the helper comes at once.
    if !runs || plan.confined() {
        match plan.kind {
            Kind::Bubblewrap => words.push("bwrap".into()),
            Kind::Custom => words.push(plan.program.clone().into()),
            Kind::Namespaces | Kind::Runner => {
                words.extend([crate::runner::NAME.into(), crate::runner::FLAG.into()]);
            }
        }
        words.extend(plan.options.iter().cloned());
        if plan.kind != Kind::Custom {
            words.push("--".into());
        }
    }
    words.extend([
        format!("/proc/self/fd/{}", helper.as_raw_fd()).into(),
        init::FLAG.into(),
        control.as_raw_fd().to_string().into(),
    ]);
    let words = words.iter().map(|word| spec::c_string(word)).collect::<io::Result<_>>()?;
    Ok(CStringArray::new(words))
}

fn c_strings(paths: &[PathBuf]) -> io::Result<Vec<CString>> {
    paths.iter().map(|path| spec::c_string(path.as_os_str())).collect()
}

fn served<'p>(plan: &'p Plan, context: &Context) -> Served<'p> {
    Served {
        policy: &plan.policy,
        rules: &plan.rules,
        regions: &plan.regions,
        user_namespace: plan.user_namespace,
        history: context.history,
        session_directory: context.session_directory.clone(),
        run: context.run.clone(),
    }
}

/// Returns where a run's histories are.
#[must_use]
pub fn history_directory(session: &Path, run: &str) -> PathBuf {
    session.join("history").join(run)
}

pub(crate) fn namespace_failure(error: NamespaceError) -> Failure {
    let remedy = probe::namespace_remedy(&error);
    let (code, message) = match error.step {
        Step::UserNamespace
        | Step::DenySetgroups
        | Step::UidMap
        | Step::GidMap
        | Step::MountNamespace
        | Step::PrivateMounts
        | Step::OpenDevice
        | Step::ReadOnly
        | Step::Cover
        | Step::OtherNamespaces
        | Step::Proc
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
            umask: context.umask,
            file_size: context.file_size,
            check: plan.check.as_ref().map(|path| spec::c_string(path.as_os_str())).transpose()?,
            scoped: plan.scoped,
            landlocked: matches!(plan.kind, Kind::Namespaces | Kind::Runner),
            dies: plan.kind == Kind::Bubblewrap,
            guarded: plan.guarded,
            leads: context.terminal.is_some(),
            inside: c_strings(&plan.inside)?,
            sockets: c_strings(&plan.sockets)?,
            confined: plan.confined(),
            proof: if plan.kind == Kind::Runner {
                rustix::io::Errno::ACCESS
            } else {
                rustix::io::Errno::ROFS
            }
            .raw_os_error(),
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
