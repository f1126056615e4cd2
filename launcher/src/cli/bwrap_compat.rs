//! `stockade bwrap-compat`: bubblewrap's arguments, with the writable binds served by the mount.
//!
//! Everything on the command line is bubblewrap's, so the environment says the rest: `STOCKADE_SESSION`, `STOCKADE_RESULT`,
//! `STOCKADE_PROFILE` (names with commas between them) and `STOCKADE_CONFIG`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stockade_policy::{Mode, Network, Policy, Withholding};

use crate::answer;
use crate::cli::{complain, show};
use crate::compat::args::{Arguments, Asked, help};
use crate::compat::view::View;
use crate::compat::{self, BACKEND, Call, Inherited, Refusal};
use crate::config::{Effective, Sources, own_directories, there};
use crate::error::{Code, Failure};
use crate::limits::{self, Limits};
use crate::resolve::{self, Places};
use crate::result::{self, RunResult};
use crate::session::{self, OpenRun, Session, Wanted};
use crate::sys::{self, SignalFd, SignalSet};
use crate::{backend, launch, state};

/// The name under which the arguments are bubblewrap's, too.
const OTHER_NAME: &str = "bwrap";

/// bubblewrap's status where it couldn't start the command.
const FAILED: u8 = 1;

/// Run a command with bubblewrap's arguments, its writable binds served by the mount.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// bubblewrap's arguments, the command and its own.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
    pub words: Vec<OsString>,
}

/// What the environment says.
struct Said {
    session: Option<OsString>,
    result: Option<PathBuf>,
    profiles: Vec<String>,
    config: Option<PathBuf>,
}

/// What of the environment is said to us and not to the command.
const VARIABLES: [&str; 4] =
    ["STOCKADE_SESSION", "STOCKADE_RESULT", "STOCKADE_PROFILE", "STOCKADE_CONFIG"];

impl Said {
    fn look() -> Self {
        let said = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let profiles = said("STOCKADE_PROFILE").unwrap_or_default();
        Self {
            session: said("STOCKADE_SESSION"),
            result: said("STOCKADE_RESULT").map(PathBuf::from),
            profiles: profiles
                .to_string_lossy()
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            config: said("STOCKADE_CONFIG").map(PathBuf::from),
        }
    }
}

/// Runs if the command line asks for it: as a subcommand, or by the name of this program.
pub fn main_if_asked() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let name = words.next()?;
    if Path::new(&name).file_name() != Some(OsStr::new(OTHER_NAME))
        && words.next().as_deref() != Some(OsStr::new("bwrap-compat"))
    {
        return None;
    }
    Some(run(words.collect()))
}

/// Runs with these arguments of bubblewrap's.
pub fn run(words: Vec<OsString>) -> ExitCode {
    let inherited = match compat::inherited() {
        Ok(inherited) => inherited,
        Err(error) => return refuse(&format!("/proc can't be read: {error}")),
    };
    let arguments = match Arguments::parse(words) {
        Ok(arguments) => arguments,
        Err(Refusal(why)) => return refuse(&why),
    };
    match arguments.asked {
        Some(Asked::Help) => {
            show(&help());
            return ExitCode::SUCCESS;
        }
        Some(Asked::Version) => return version(),
        None => {}
    }
    if arguments.command.is_empty() {
        return refuse("no command is named");
    }
    let said = Said::look();
    let file = said.result.clone();
    let named = said.result.iter().chain(&said.config).cloned();
    let paths = answer::of_the_environment().into_iter().chain(named).chain(arguments.sources());
    if let Err(failure) = answer::check(paths) {
        fatal(&failure);
        return ExitCode::from(FAILED);
    }
    if let Some(Err(error)) = file.as_deref().map(result::check_writable) {
        return refuse(&format!("STOCKADE_RESULT can't be written: {error}"));
    }
    // Before anything starts a thread: every thread inherits the mask.
    let blocked = sys::set_signal_mask(SignalSet(launch::forwarded().0));
    sys::set_signal_mask(SignalSet(launch::forwarded().0 | blocked.0));
    let argv = arguments.command.clone();
    let (result, status) = match attempt(arguments, &said, blocked, inherited) {
        Ok(done) => done,
        Err(failure) => (unstarted(argv, failure), None),
    };
    if let Some(failure) = &result.failure {
        fatal(failure);
    }
    if let Some(file) = file
        && let Err(error) = result.write(&file)
    {
        complain(&format!("stockade: can't write the result to `{}`: {error}", file.display()));
    }
    ExitCode::from(status.unwrap_or(FAILED))
}

/// Says in one line why nothing runs.
fn refuse(why: &str) -> ExitCode {
    complain(&format!("stockade: {why}"));
    ExitCode::from(FAILED)
}

/// Says in one line what failed: callers look at lines.
fn fatal(failure: &Failure) {
    let lines = failure.lines();
    complain(&lines.join("; "));
}

fn version() -> ExitCode {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(program) = crate::probe::find_program("bwrap", &path) else {
        return refuse("`bwrap` is not on PATH");
    };
    match std::process::Command::new(program).arg("--version").status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FAILED),
        Err(error) => refuse(&format!("can't start bubblewrap: {error}")),
    }
}

fn unstarted(argv: Vec<OsString>, failure: Failure) -> RunResult {
    RunResult {
        session: String::new(),
        run: String::new(),
        argv,
        cwd: std::env::current_dir().unwrap_or_default(),
        policy: None,
        backend: Some(BACKEND),
        enforcement: None,
        withheld: Vec::new(),
        used: None,
        outcome: failure.outcome(),
        failure: Some(failure),
        summary: None,
        started: stockade_observe::Time::now(),
        duration: std::time::Duration::ZERO,
    }
}

fn attempt(
    arguments: Arguments,
    said: &Said,
    blocked: SignalSet,
    inherited: Inherited,
) -> Result<(RunResult, Option<u8>), Failure> {
    if std::env::var_os("STOCKADE_RUN").is_some() && !Path::new("/dev/fuse").exists() {
        return Err(Failure::new(Code::SandboxUnavailable, "this is inside another Stockade run")
            .help("use bubblewrap as it is: what it does is confined and recorded already"));
    }
    let cwd = std::env::current_dir().and_then(std::fs::canonicalize).map_err(|error| {
        Failure::new(Code::PolicyInvalid, "can't tell the current directory").because(error)
    })?;
    let state = state::directory()?;
    state::create(&state)?;
    limits::sweep(&state);
    let state = std::fs::canonicalize(&state).unwrap_or(state);
    // Inside a run, the variable is that run's.
    let nested = std::env::var_os("STOCKADE_RUN").is_some();
    let session = said.session.as_ref().filter(|_| !nested).map(|id| id.to_string_lossy());
    let session = session.map(|id| Session::open(&state, &id)).transpose()?;
    let sources = Sources {
        file: said.config.clone(),
        profiles: said.profiles.clone(),
        ..Sources::default()
    };
    let effective = sources.resolve(Mode::COMMAND_LINE_DEFAULT)?;
    let own = own_directories(&state);
    let view = View::new(&arguments, &cwd, &there(own.clone()));
    let mut policy = policy(&arguments, &view, &effective, &own)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = backend::bwrap::find(&policy, &path)?;
    let run = state::new_id()
        .map_err(|error| Failure::new(Code::RunnerFailed, "can't make an id").because(error))?;
    let wanted =
        Wanted { run: &run, argv: &arguments.command, terminal: false, default: view.mode() };
    let open = match session {
        Some(session) => {
            // A session keeps its root; what may be written there is what is bound, and no more.
            policy.extra_roots.push(policy.root.clone());
            session.state()?.root().clone_into(&mut policy.root);
            session.start(wanted, None)?
        }
        None => session::start_alone(&state, &run, &policy.root, wanted)?,
    };
    // The session can narrow what the arguments ask for, never widen it.
    policy.mode = policy.mode.min(open.resolution().mode);
    policy.source = open.resolution().source;
    policy.session = Some(open.session().id().to_owned());
    let (limits, unlimited) = limits::place(Limits::of(&effective.settings));
    let call = Call {
        limits,
        unlimited,
        policy,
        program,
        cwd,
        environment: environment(&effective, &open, view.mode()),
        session: open.session().id().to_owned(),
        session_directory: open.session().directory().to_owned(),
        run,
        history: effective.history().map(|(bounds, _)| bounds),
        timeout: effective.settings.timeout.as_ref().map(|timeout| timeout.value),
        blocked,
        signals: SignalFd::new(launch::forwarded()).map_err(|error| {
            Failure::new(Code::RunnerFailed, "can't prepare the run").because(error)
        })?,
        inherited,
        arguments,
        view,
    };
    let gaps = call.enforcement();
    if effective.settings.require_full.as_ref().is_some_and(|full| full.value)
        && !gaps.gaps().is_empty()
    {
        let gaps: Vec<_> = gaps.gaps().iter().map(|gap| gap.as_str()).collect();
        let what = format!("bubblewrap's arguments leave gaps: {}", gaps.join(", "));
        let failure = Failure::new(Code::SandboxUnavailable, what)
            .help("leave `require_full` out of the configuration to accept it");
        finish(open, &failure.outcome());
        return Err(failure);
    }
    let (result, status) = compat::run(call);
    finish(open, &result.outcome);
    Ok((result, status))
}

fn finish(open: OpenRun, outcome: &stockade_observe::RunOutcome) {
    if let Err(failure) = open.finish(outcome) {
        complain(&format!("stockade: the session doesn't say how the run ended: {failure}"));
    }
}

/// Returns the rules for what is served: the operator's, for exactly what is bound.
fn policy(
    arguments: &Arguments,
    view: &View,
    effective: &Effective,
    own: &[PathBuf],
) -> Result<Policy, Failure> {
    let mut request = effective.request(view.root.clone());
    request.mode.0 = view.mode();
    request.writable_if_there.clear();
    request.writable.clone_from(&view.writable);
    let places = Places { temporary: Vec::new(), own: own.to_vec() };
    let mut policy = if resolve::servable(&view.root) {
        resolve::resolve(&request, &places)?
    } else {
        // Nothing is served there, and so nothing is decided.
        Policy::new(request.mode.0, view.root.clone())
    };
    policy.extra_roots = view.writable.iter().filter(|path| **path != view.root).cloned().collect();
    let unshared = arguments.has(&["--unshare-net", "--unshare-all"]);
    policy.network =
        if unshared && !arguments.has(&["--share-net"]) { Network::None } else { Network::Host };
    Ok(policy)
}

/// Returns the environment as bubblewrap gets it.
fn environment(effective: &Effective, open: &OpenRun, mode: Mode) -> Vec<(OsString, OsString)> {
    let texts = |list: &[stockade_policy::config::Setting<String>]| {
        list.iter().map(|setting| setting.value.clone()).collect()
    };
    let withholding = Withholding {
        withhold: texts(&effective.settings.withhold_env),
        pass: texts(&effective.settings.pass_env),
    };
    let ours = |name: &OsString| VARIABLES.iter().any(|variable| name == variable);
    let own = [
        ("STOCKADE_SESSION", open.session().id()),
        ("STOCKADE_RUN", open.id()),
        ("STOCKADE_MODE", mode.as_str()),
    ];
    std::env::vars_os()
        .filter(|(name, _)| !ours(name) && !withholding.withholds(name.as_encoded_bytes()))
        .filter(|(name, _)| own.iter().all(|(own, _)| name != own))
        .chain(own.map(|(name, value)| (name.into(), value.into())))
        .collect()
}
