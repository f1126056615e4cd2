//! `stockade mount` and `stockade umount`: a directory served for as long as somebody wants.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode as FileMode, OFlags};
use stockade_fusefs::{HistoryConfig, Owner, Server, ServerConfig};
use stockade_observe::history::Bounds;
use stockade_observe::{OnRecordFailure, Recorder, RunId, RunInfo, RunOutcome, SessionId, Time};
use stockade_policy::{Mode, Policy, Rules};

use crate::cli::policy_args::PolicyArgs;
use crate::cli::{complain, report};
use crate::config::own_directories;
use crate::error::{Code, Failure};
use crate::guardian::Guardian;
use crate::launch::history_directory;
use crate::resolve::{self, Places};
use crate::session::{self, OpenRun, Session, Wanted};
use crate::sys::{self, SignalFd, SignalSet};
use crate::{answer, mount, probe, state};

/// Serve a directory at another place (or over itself), under a policy, until it is unmounted.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    policy: PolicyArgs,
    /// The session that the mount belongs to, by id or name. [default: a new one]
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Let other users see the mount.
    #[arg(long)]
    allow_other: bool,
    /// Return as soon as it is mounted, and serve in the background.
    #[arg(long)]
    daemon: bool,
    /// Say nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// The directory that is served.
    source: PathBuf,
    /// Where it is to be seen.
    mountpoint: PathBuf,
}

/// Take a mount of Stockade's away.
#[derive(Debug, clap::Args)]
pub struct UmountArgs {
    /// Also when it is in use: it goes when the last user does.
    #[arg(long)]
    lazy: bool,
    /// Where it is mounted.
    mountpoint: PathBuf,
}

/// Unmounts.
pub fn umount(args: &UmountArgs) -> Result<ExitCode, Failure> {
    mount::unmount(&args.mountpoint, args.lazy)?;
    Ok(ExitCode::SUCCESS)
}

/// Signals that end the mount.
fn ending() -> SignalSet {
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP]
        .into_iter()
        .fold(SignalSet::default(), SignalSet::with)
}

/// Mounts, and serves until the end.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.policy.observe_root.is_empty() {
        let what = "a mount serves its source and nothing else (--observe-root)";
        return Err(Failure::new(Code::PolicyInvalid, what)
            .help("mount the other directory as well: `stockade mount DIR DIR`"));
    }
    let own = [args.source.clone(), args.mountpoint.clone()];
    answer::check(args.policy.paths().into_iter().chain(own))?;
    let old = sys::set_signal_mask(ending());
    sys::set_signal_mask(SignalSet(old.0 | ending().0));
    if !args.daemon {
        return serve(args, || {});
    }
    // Threads don't survive a fork, so it comes first; the child says when it is ready.
    let (mut reader, writer) = io::pipe().map_err(system("can't make a pipe"))?;
    let mut writer = Some(writer);
    sys::fork_bare(|| {
        let detached = rustix::process::setsid().is_ok();
        let served = serve(args, || {
            if let Some(mut writer) = writer.take() {
                let _gone = writer.write_all(b"+");
            }
            let _kept = quiet_streams();
        });
        match served {
            Ok(_) => 0,
            Err(failure) => {
                // The parent prints, while it is there.
                match writer.take() {
                    Some(mut writer) => {
                        let _gone = writer.write_all(failure.lines().join("\n").as_bytes());
                    }
                    None => drop(report(&failure)),
                }
                if detached { 125 } else { 124 }
            }
        }
    })
    .map_err(system("can't start a process"))?;
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).map_err(system("the background process failed"))?;
    if said == "+" {
        return Ok(ExitCode::SUCCESS);
    }
    if said.is_empty() {
        return Err(Failure::new(Code::MountFailed, "the background process died"));
    }
    complain(&said);
    Ok(ExitCode::from(super::FAILED))
}

fn system(what: &str) -> impl FnOnce(io::Error) -> Failure {
    let what = what.to_owned();
    move |error| Failure::new(Code::MountFailed, what).because(error)
}

fn quiet_streams() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}

fn serve(args: &Args, ready: impl FnOnce()) -> Result<ExitCode, Failure> {
    let mountpoint = mount::prepare_mountpoint(&args.mountpoint)?;
    let source_path = std::fs::canonicalize(&args.source)
        .map_err(system(&format!("can't serve `{}`", args.source.display())))?;
    let source = rustix::fs::open(
        &source_path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        FileMode::empty(),
    )
    .map_err(|error| system(&format!("can't serve `{}`", source_path.display()))(error.into()))?;
    let (run, policy, bounds) = begin(args, &source_path, &mountpoint)?;
    let history = bounds.map(|bounds| HistoryConfig {
        directory: history_directory(run.session().directory(), run.id()).join("0"),
        source: source_path.clone(),
        bounds,
    });
    let served =
        serve_run(args, (&source_path, source), &mountpoint, &run, (policy, history), ready);
    let outcome = match &served {
        Ok(()) => RunOutcome::exited(0),
        Err(failure) => failure.outcome(),
    };
    let finished = run.finish(&outcome);
    served.and(finished).map(|()| ExitCode::SUCCESS)
}

fn serve_run(
    args: &Args,
    (source_path, source): (&Path, OwnedFd),
    mountpoint: &Path,
    run: &OpenRun,
    (policy, history): (Policy, Option<HistoryConfig>),
    ready: impl FnOnce(),
) -> Result<(), Failure> {
    let rules = Rules::compile(&policy).map_err(|error| {
        Failure::new(Code::PolicyInvalid, "the policy can't be carried out").because(error)
    })?;
    let recorder = recorder(args, &policy, mountpoint, run)?;
    let owner = owner();
    let signals = SignalFd::new(ending()).map_err(system("can't prepare the mount"))?;
    let device = mount::mount(source_path, mountpoint, &owner, args.allow_other)?;
    let mounted = Mounted { path: mountpoint, gone: false };
    let config = ServerConfig {
        rules: Arc::new(rules),
        policy: policy.clone(),
        sink: recorder.sink(),
        source,
        path: mountpoint.to_owned(),
        passthrough: probe::can_mount(),
        state: state::staged_directory(),
        observed: recorder.observed(),
        kept: Some(run.session().directory().join("kept").join(run.id())),
        history,
        owner,
        threads: 0,
    };
    let server = stockade_fusefs::serve(device, config).map_err(|error| {
        Failure::new(Code::MountFailed, "the file system can't be served").because(error)
    })?;
    if let Ok(stat) = rustix::fs::stat(mountpoint) {
        server.set_mount_device(stat.st_dev);
    }
    let _guardian = Guardian::of_mount(mountpoint).map_err(system("can't start a process"))?;
    if !args.quiet {
        announce(&policy, source_path, mountpoint, run.session().id());
    }
    ready();
    let ended = until_the_end(server, &signals, mounted);
    let outcome = RunOutcome::exited(0);
    recorder
        .finish(outcome)
        .map_err(|error| Failure::new(Code::RunnerFailed, "the recorder died").because(error))?;
    ended
}

/// Starts the mount as a run of its session, and resolves its policy.
fn begin(
    args: &Args,
    source: &Path,
    mountpoint: &Path,
) -> Result<(OpenRun, Policy, Option<Bounds>), Failure> {
    if args.policy.workspace.is_some() {
        return Err(Failure::new(
            Code::PolicyInvalid,
            "--workspace has no meaning here: SOURCE is what is served",
        ));
    }
    let new_id = || state::new_id().map_err(system("can't make an id"));
    let argv = command(args);
    let run = new_id()?;
    let effective = args.policy.effective()?;
    let default = effective.mode();
    let history = effective.history();
    let wanted = Wanted { run: &run, argv: &argv, terminal: false, default };
    let state = state::directory()?;
    state::create(&state)?;
    super::history::recover_undos(&state);
    let own = own_directories(&std::fs::canonicalize(&state).unwrap_or_else(|_| state.clone()));
    if let Some(own) = own.iter().find(|own| source.starts_with(own)) {
        let what = format!(
            "`{}` is or lies in a directory of Stockade's own, `{}`",
            source.display(),
            own.display()
        );
        return Err(Failure::new(Code::PolicyInvalid, what).help("serve another directory"));
    }
    // What lies in the source is seen below the mount point.
    let shown = |path: &PathBuf| path.strip_prefix(source).ok().map(|below| mountpoint.join(below));
    let own: Vec<PathBuf> = own.iter().filter_map(shown).collect();
    if let Some((_, age)) = history {
        stockade_observe::history::prune(&state, age);
    }
    let run = match &args.session {
        Some(session) => {
            let session = Session::open(&state, session)?;
            args.policy.agree_with(&session)?;
            session.start(wanted, None)?
        }
        None => session::start_alone(&state, &new_id()?, mountpoint, wanted)?,
    };
    let mut request = effective.request(mountpoint.to_owned());
    request.mode = (run.resolution().mode, run.resolution().source);
    request.session = Some(run.session().id().to_owned());
    let files: Vec<PathBuf> =
        request.protected.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect();
    request.protected.extend(files.iter().filter_map(shown));
    match resolve::resolve(&request, &Places { temporary: Vec::new(), own }) {
        Ok(policy) => Ok((run, policy, history.map(|(bounds, _)| bounds))),
        Err(failure) => {
            run.finish(&failure.outcome())?;
            Err(failure)
        }
    }
}

fn command(args: &Args) -> Vec<OsString> {
    let words = ["stockade", "mount"].iter().map(OsString::from);
    words.chain([args.source.clone().into(), args.mountpoint.clone().into()]).collect()
}

fn recorder(
    args: &Args,
    policy: &Policy,
    mountpoint: &Path,
    run: &OpenRun,
) -> Result<Recorder, Failure> {
    let info = RunInfo {
        id: RunId(run.id().into()),
        argv: command(args),
        cwd: std::env::current_dir().unwrap_or_default(),
        mode: policy.mode,
        source: policy.source,
        root: mountpoint.to_owned(),
        writable_roots: policy.writable(),
        backend: "mount".to_owned(),
        started: Time::now(),
    };
    let session = run.session();
    let id = SessionId(session.id().into());
    Recorder::start(session.directory(), id, info, OnRecordFailure::GapRecord).map_err(|error| {
        Failure::new(Code::RunnerFailed, "can't start the recorder").because(error)
    })
}

fn owner() -> Owner {
    if probe::can_mount() {
        return Owner::Root;
    }
    Owner::User {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: rustix::process::getgroups()
            .unwrap_or_default()
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect(),
    }
}

fn announce(policy: &Policy, source: &Path, mountpoint: &Path, session: &str) {
    let unprotected = if policy.mode == Mode::DangerFullAccess { ", unprotected" } else { "" };
    complain(&format!(
        "stockade: `{}` is served at `{}` ({}{unprotected}), session {session}",
        source.display(),
        mountpoint.display(),
        policy.mode
    ));
}

/// A mount that is taken away with this value, unless it is gone already.
struct Mounted<'p> {
    path: &'p Path,
    gone: bool,
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !self.gone {
            // Gone already is as good.
            let _gone = mount::unmount(self.path, true);
        }
    }
}

/// How long what is still in use may take after the mount was detached.
const LAST: Duration = Duration::from_secs(2);

/// Waits for the mount to be taken away by somebody, or for a signal, which takes it away.
fn until_the_end(
    server: Server,
    signals: &SignalFd,
    mut mounted: Mounted<'_>,
) -> Result<(), Failure> {
    let mut detached: Option<Instant> = None;
    while !server.is_finished() {
        let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        let pause = Duration::from_millis(if detached.is_some() { 10 } else { 200 });
        let timeout = rustix::event::Timespec::try_from(pause).ok();
        let _woken = rustix::event::poll(&mut fds, timeout.as_ref());
        if signals.take().is_some() && detached.is_none() {
            if mount::unmount(mounted.path, false).is_err() {
                mount::unmount(mounted.path, true)?;
            }
            mounted.gone = true;
            detached = Some(Instant::now());
        }
        if detached.is_some_and(|since| since.elapsed() >= LAST) {
            // What is still open fails from now on; the connection ends with this process.
            return Ok(());
        }
    }
    mounted.gone = true;
    server.wait().map_err(system("the server ended with an error"))
}
