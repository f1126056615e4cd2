//! bubblewrap's arguments, with every writable bind served by our file system (contract section 5, `stockade bwrap-compat`).
//!
//! bubblewrap itself is started with the caller's own arguments, streams, descriptors and signals, in a mount namespace in which
//! our file system stands over the sources of the binds. So what is seen inside is what bubblewrap shows, but for what Stockade
//! promises about the binds: they are observed, protected and published.
//!
//! Invariants:
//! - I1: no argument is left out or understood half: what isn't known is refused by name, and nothing runs.
//! - I2: what is served is named to bubblewrap by its canonical path; no bind is added.
//! - I3: how it ended is what bubblewrap says on its status descriptor, which the command doesn't have.
//! - I4: no process of the run outlives it, also without a PID namespace.

pub mod args;
mod supervise;
pub mod view;

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::process::Pid;
use stockade_observe::history::Bounds;
use stockade_observe::{
    Ending, OnRecordFailure, Recorder, RunId, RunInfo, RunOutcome, SessionId, Time,
};
use stockade_policy::{Policy, Rules};

use crate::enforcement::{Enforcement, Gap};
use crate::error::{Code, Failure};
use crate::init::children;
use crate::launch::{namespace_failure, runner};
use crate::limits::{Groups, Limit, Used};
use crate::namespace::{Kept, Namespace, Program, Setup};
use crate::result::RunResult;
use crate::serve::{Served, open_regions};
use crate::spec::c_string;
use crate::supervise::wait_for_servers;
use crate::sys::{self, CStringArray, SignalFd, SignalSet};

use args::Arguments;
use supervise::{End, Supervisor};
use view::View;

/// The name of the back end in results.
pub const BACKEND: &str = "bwrap-compat";

/// Why arguments can't be carried out, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// A run with bubblewrap's arguments.
#[derive(Debug)]
pub struct Call {
    /// The arguments.
    pub arguments: Arguments,
    /// What becomes of them.
    pub view: View,
    /// The rules for what is served.
    pub policy: Policy,
    /// bubblewrap.
    pub program: PathBuf,
    /// The caller's directory.
    pub cwd: PathBuf,
    /// The environment, as bubblewrap gets it.
    pub environment: Vec<(OsString, OsString)>,
    /// The session's id.
    pub session: String,
    /// The session's directory.
    pub session_directory: PathBuf,
    /// The run's id.
    pub run: String,
    /// What to keep of what is changed, if anything.
    pub history: Option<Bounds>,
    /// What everything inside is limited to.
    pub limits: Vec<Limit>,
    /// The limits that can't be kept.
    pub unlimited: Vec<Gap>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Signals that the caller blocks.
    pub blocked: SignalSet,
    /// Where signals for bubblewrap arrive.
    pub signals: SignalFd,
    /// What we were started with.
    pub inherited: Inherited,
}

/// What this process has from its caller.
#[derive(Debug)]
pub struct Inherited {
    /// The numbers of open descriptors above 2.
    descriptors: Vec<i32>,
    /// Children of whatever has executed us.
    children: Vec<Pid>,
}

impl Call {
    /// Returns how much of the contract is enforced.
    pub fn enforcement(&self) -> Enforcement {
        let mut gaps = self.view.gaps(&self.arguments);
        gaps.extend(&self.unlimited);
        Enforcement::from_gaps(gaps)
    }
}

/// Runs it to its end. Returns the result, and bubblewrap's exit status if bubblewrap was started.
pub fn run(call: Call) -> (RunResult, Option<u8>) {
    let clock = Instant::now();
    let mut result = RunResult {
        session: call.session.clone(),
        run: call.run.clone(),
        argv: call.arguments.command.clone(),
        cwd: call.cwd.clone(),
        policy: Some(call.policy.clone()),
        backend: Some(BACKEND),
        enforcement: Some(call.enforcement()),
        withheld: Vec::new(),
        used: None,
        outcome: RunOutcome { ending: Ending::RunnerFailed, exit_code: None, signal: None },
        failure: None,
        summary: None,
        started: Time::now(),
        duration: Duration::ZERO,
    };
    let mut recorder = None;
    let ended = attempt(call, result.started, &mut recorder, &mut result.used);
    let status = match ended {
        Ok(end) => {
            result.outcome = end.outcome;
            result.failure = end.failure;
            Some(end.status)
        }
        Err(failure) => {
            result.outcome = failure.outcome();
            result.failure = Some(failure);
            None
        }
    };
    if let Some(recorder) = recorder {
        match recorder.finish(result.outcome) {
            Ok(summary) => result.summary = Some(summary),
            Err(error) => {
                result.failure.get_or_insert_with(|| {
                    Failure::new(Code::RunnerFailed, "the recorder died").because(error)
                });
            }
        }
    }
    result.duration = clock.elapsed();
    (result, status)
}

fn attempt(
    call: Call,
    started: Time,
    recorded: &mut Option<Recorder>,
    used: &mut Option<Used>,
) -> Result<End, Failure> {
    let rules = Arc::new(Rules::compile(&call.policy).map_err(|error| {
        Failure::new(Code::PolicyInvalid, "the policy can't be carried out").because(error)
    })?);
    make_places(&call.arguments, &rules);
    let user_namespace = !crate::probe::can_mount();
    let (sources, regions) = open_regions(&call.view.regions, user_namespace)?;
    let kept = call.view.kept.iter().map(|path| Kept::new(path)).collect::<std::io::Result<_>>();
    // Ours alone from here on: bubblewrap gets another.
    let status = call.arguments.last("--json-status-fd").map(|number| {
        args::descriptor(number).ok_or_else(|| {
            let what = format!("`--json-status-fd {}` is not open", number.to_string_lossy());
            Failure::new(Code::ConfigInvalid, what)
        })
    });
    let status = status.transpose()?;
    if let Some(status) = &status {
        rustix::io::fcntl_setfd(status, rustix::io::FdFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .map_err(runner("can't prepare the run"))?;
    }
    let (said, says) = std::io::pipe().map_err(runner("can't make a pipe"))?;
    let words = memory_file(&call.view.words).map_err(runner("can't build a command line"))?;
    let argv = argv(&call.arguments.command, &words, says.as_raw_fd())
        .map_err(runner("can't build a command line"))?;
    let program = Program {
        path: c_string(call.program.as_os_str()).map_err(runner("can't build a command line"))?,
        argv,
        environment: environment(&call).map_err(runner("can't build an environment"))?,
        keep: vec![words, says.into()],
        stderr: None,
        signals: Some((call.blocked, sys::inherited_ignored())),
        lingers: false,
    };
    let user = user_namespace
        .then(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    let setup = Setup {
        user,
        mounts: true,
        regions,
        kept: kept.map_err(runner("can't prepare the run"))?,
        confine: None,
        program: Some(program),
    };
    // What loses its parent without a PID namespace comes to us (invariant I4).
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(std::io::Error::from)
        .map_err(runner("can't prepare the run"))?;
    // bubblewrap, and its first process in a namespace of processes.
    let groups = Groups::make(&call.limits, &call.run, 2, &crate::state::directory()?)?;
    let mut namespace = Namespace::start(setup).map_err(runner("can't start a process"))?;
    groups.iter().try_for_each(|groups| groups.add(namespace.pid()))?;
    forget(&call.inherited.descriptors, status.as_ref())
        .map_err(runner("can't prepare the run"))?;
    let devices = namespace.devices().and_then(|devices| namespace.go().map(|()| devices));
    let guardian = namespace.guardian().map_err(runner("the guardian of the mounts ended"))?;
    let info = RunInfo {
        id: RunId(call.run.as_str().into()),
        argv: call.arguments.command.clone(),
        cwd: call.cwd.clone(),
        mode: call.policy.mode,
        source: call.policy.source,
        root: call.policy.root.clone(),
        writable_roots: call.policy.writable(),
        backend: BACKEND.to_owned(),
        started,
    };
    let recorder = Recorder::start(
        &call.session_directory,
        SessionId(call.session.as_str().into()),
        info,
        OnRecordFailure::Stop,
    )
    .map_err(|error| Failure::new(Code::RunnerFailed, "can't start the recorder").because(error))?;
    let recorder = recorded.insert(recorder);
    let devices = devices.map_err(namespace_failure)?;
    let served = Served {
        policy: &call.policy,
        rules: &rules,
        regions: &call.view.regions,
        user_namespace,
        history: call.history,
        session_directory: call.session_directory.clone(),
        run: call.run.clone(),
    };
    let servers = served.serve(sources, devices, recorder)?;
    let child = namespace.gone().map_err(namespace_failure)?;
    let others = call.inherited.children;
    let supervisor =
        Supervisor::new(child, said, status, call.signals, call.timeout, others, recorder);
    let mut end = supervisor.supervise();
    *used = groups.as_ref().map(Groups::used);
    drop((groups, guardian));
    if !wait_for_servers(servers) {
        end.failure.get_or_insert_with(|| {
            Failure::new(Code::RunnerFailed, "a mount did not end: the record may be incomplete")
        });
    }
    Ok(end)
}

/// Makes what bubblewrap mounts on and couldn't make itself, because the rules refuse it to everybody: a caller that covers a protected
/// name does so with our protection, too. What can't be made here is bubblewrap's to complain of.
fn make_places(arguments: &Arguments, rules: &Rules) {
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    for (place, directory) in view::places_to_make(arguments) {
        let refused = rules.zone(&place).write.is_some();
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else { continue };
        if !refused || place.symlink_metadata().is_ok() {
            continue;
        }
        // No link leads the making elsewhere: the caller named this very place.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS;
        let opened = rustix::fs::openat2(rustix::fs::CWD, parent, flags, Mode::empty(), resolve);
        let Ok(parent) = opened else { continue };
        let made = if directory {
            rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))
        } else {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o444)).map(drop)
        };
        if let Err(error) = made {
            tracing::debug!(%error, "a place to mount on can't be made");
        }
    }
}

/// Writes bubblewrap's options to a file in memory, for its `--args`.
fn memory_file(words: &[OsString]) -> std::io::Result<OwnedFd> {
    use std::io::{Seek, Write};
    use std::os::unix::ffi::OsStrExt;
    let file = rustix::fs::memfd_create("stockade-arguments", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    for word in words {
        file.write_all(c_string(word)?.as_bytes_with_nul())?;
    }
    debug_assert!(words.iter().all(|word| !word.as_bytes().contains(&0)), "checked above");
    file.rewind()?;
    Ok(file.into())
}

fn argv(command: &[OsString], words: &OwnedFd, status: i32) -> std::io::Result<CStringArray> {
    let own = ["bwrap".to_owned(), "--args".to_owned(), words.as_raw_fd().to_string()];
    let own =
        own.into_iter().chain(["--json-status-fd".to_owned(), status.to_string(), "--".to_owned()]);
    let words = own.map(OsString::from).chain(command.iter().cloned());
    Ok(CStringArray::new(words.map(|word| c_string(&word)).collect::<std::io::Result<_>>()?))
}

fn environment(call: &Call) -> std::io::Result<CStringArray> {
    let entry = |(name, value): &(OsString, OsString)| -> std::io::Result<CString> {
        let mut entry = name.clone();
        entry.push("=");
        entry.push(value);
        c_string(&entry)
    };
    Ok(CStringArray::new(call.environment.iter().map(entry).collect::<std::io::Result<_>>()?))
}

/// Closes what bubblewrap has by now: the caller's descriptors, so that whoever reads their other ends sees them close with the run.
fn forget(inherited: &[i32], status: Option<&OwnedFd>) -> std::io::Result<()> {
    for number in inherited {
        if status.is_none_or(|status| status.as_raw_fd() != *number) {
            // `--args` may have closed it already.
            drop(sys::inherited(*number));
        }
    }
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Returns what this process has inherited; to be called before anything is opened.
///
/// # Errors
/// `/proc` can't be read.
pub fn inherited() -> std::io::Result<Inherited> {
    let numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    // The descriptor of the directory itself is closed by now.
    let open = |number: &i32| Path::new(&format!("/proc/self/fd/{number}")).exists();
    let descriptors = numbers.into_iter().filter(open).collect();
    Ok(Inherited { descriptors, children: children(rustix::process::getpid()) })
}
