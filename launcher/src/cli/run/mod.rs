//! `stockade run` and `stockade shell`: a command, confined and observed.

mod approval;
pub(in crate::cli) mod note;
mod status;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use stockade_observe::{RunOutcome, Time};
use stockade_policy::config::{Backend, Setting, Settings, parse_thousandths};
use stockade_policy::text::sanitise;
use stockade_policy::{ApprovalPolicy, Mode, ModeSource, Policy, Resolution, Withholding};

use crate::answer;
use crate::cli::policy_args::{PolicyArgs, duration, size};
use crate::cli::{complain, show};
use crate::config::{Effective, own_directories};
use crate::error::{Code, Failure};
use crate::launch::{self, Context};
use crate::limits::{self, Limits};
use crate::plan::{self, Facts, Kind, Plan};
use crate::resolve;
use crate::result::{self, RunResult};
use crate::session::{self, OpenRun, Session, Wanted};
use crate::sys::{self, SignalFd};
use crate::terminal::Pty;
use crate::{enforcement::Enforcement, state};

use approval::ApprovalArgs;
use status::Status;

/// Run a command, confined and observed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Give the command a terminal of its own, whatever the standard streams are.
    #[arg(short, long)]
    tty: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Run an interactive shell, confined and observed.
#[derive(Debug, clap::Args)]
pub struct ShellArgs {
    #[command(flatten)]
    options: Options,
}

/// What `run` and `shell` share.
#[derive(Debug, clap::Args)]
struct Options {
    #[command(flatten)]
    policy: PolicyArgs,
    /// Set a variable in the command's environment.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Remove a variable from the command's environment.
    #[arg(long, value_name = "NAME")]
    unset_env: Vec<OsString>,
    /// Start with an empty environment.
    #[arg(long)]
    clear_env: bool,
    /// Don't pass on variables whose names match, such as '*_TOKEN'. --env sets one all the same.
    #[arg(long, value_name = "PATTERN")]
    withhold_env: Vec<String>,
    /// Pass on variables whose names match, whatever withholds them.
    #[arg(long, value_name = "PATTERN")]
    pass_env: Vec<String>,
    /// What confines the command: auto, bwrap, landlock or custom.
    #[arg(long, value_enum, value_name = "NAME")]
    backend: Option<BackendArg>,
    /// The custom back end's program, and each of its first arguments.
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    runner: Vec<OsString>,
    /// Let the command reach a Unix socket of the host's, by its path.
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    #[command(flatten)]
    approval: ApprovalArgs,
    /// The session that the run belongs to, by id or name. [default: a new one]
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// End the command after this time (such as 90s, 5m, 1.5h).
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// The most memory and swap that the command and all it starts may use together (such as 512MiB, 2GB).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// The most processes and threads that they may be.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pids: Option<u64>,
    /// The most processors that they may use (such as 2 or 0.5).
    #[arg(long, value_name = "N", value_parser = processors)]
    cpus: Option<u64>,
    /// Keep an open file descriptor for the command (0, 1 and 2 are always kept).
    #[arg(long, value_name = "N")]
    keep_fd: Vec<i32>,
    /// Fail when anything of the policy can't be enforced.
    #[arg(long)]
    require_full: bool,
    /// Write the run's result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,
    /// Write what happens to this file descriptor, one JSON object a line.
    #[arg(long, value_name = "N")]
    status_fd: Option<i32>,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Say nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Say more.
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum BackendArg {
    /// The first of the others that works here
    Auto,
    /// bubblewrap
    Bwrap,
    /// Landlock, in namespaces of our own where they can be made
    Landlock,
    /// A program of yours
    Custom,
}

impl BackendArg {
    fn backend(self) -> Backend {
        match self {
            Self::Auto => Backend::Auto,
            Self::Bwrap => Backend::Bwrap,
            Self::Landlock => Backend::Landlock,
            Self::Custom => Backend::Custom,
        }
    }
}

impl Options {
    /// Returns the paths that the start depends on, as far as they are known before the configuration is read.
    fn paths(&self, command: &[OsString]) -> Vec<PathBuf> {
        let named = self.policy.paths().into_iter().chain(self.socket.iter().cloned());
        let files = self.result.iter().chain(&self.runner_program()).cloned().collect::<Vec<_>>();
        let program = command.first().and_then(|name| answer::of_program(name));
        named.chain(files).chain(program).collect()
    }

    fn runner_program(&self) -> Option<PathBuf> {
        self.runner.first().and_then(|name| answer::of_program(name))
    }

    fn wanted(&self, settings: &Settings) -> plan::Wanted {
        let configured = settings.backend.as_ref().map_or(Backend::Auto, |set| set.value);
        match self.backend.map_or(configured, BackendArg::backend) {
            Backend::Auto => plan::Wanted::Auto,
            Backend::Bwrap => plan::Wanted::Bubblewrap,
            Backend::Landlock => plan::Wanted::Landlock,
            Backend::Custom => {
                let configured = settings.runner_command.iter().flat_map(|set| &set.value);
                let words = configured.map(OsString::from).collect();
                plan::Wanted::Custom(if self.runner.is_empty() {
                    words
                } else {
                    self.runner.clone()
                })
            }
        }
    }
}

fn processors(text: &str) -> Result<u64, String> {
    parse_thousandths(text).ok_or_else(|| format!("`{text}` is no number such as 2 or 0.5"))
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Runs the command and returns its exit status.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    start(args.options, args.command, args.tty.then_some(Terminal::Command))
}

/// Runs the user's shell on the terminal that this process has.
pub fn shell(args: ShellArgs) -> Result<ExitCode, Failure> {
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    start(
        args.options,
        vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-i".into()],
        Some(Terminal::Shell),
    )
}

/// What a terminal is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Terminal {
    Command,
    Shell,
}

fn start(
    args: Options,
    command: Vec<OsString>,
    terminal: Option<Terminal>,
) -> Result<ExitCode, Failure> {
    // Before signals are held back: until here they end us.
    answer::check(args.paths(&command))?;
    if let Some(file) = &args.result {
        result::check_writable(file).map_err(|error| {
            let what = format!("can't write the result to `{}`", file.display());
            Failure::new(Code::ConfigInvalid, what)
                .because(error)
                .help("name a file in a directory that exists and that you can write")
        })?;
    }
    // Before anything starts a thread: every thread inherits the mask.
    let blocked = sys::set_signal_mask(sys::SignalSet(launch::forwarded().0));
    sys::set_signal_mask(sys::SignalSet(launch::forwarded().0 | blocked.0));
    let mut call = Call {
        argv: command,
        terminal,
        pty: None,
        cwd: PathBuf::new(),
        run: new_id()?,
        session: new_id()?,
        policy: None,
        asks: false,
    };
    let result_file = args.result.clone();
    let quiet = args.quiet;
    let attempted = attempt(args, &mut call, blocked);
    let asks = call.asks;
    let result = match attempted {
        Ok(Some(result)) => result,
        Ok(None) => return Ok(ExitCode::SUCCESS),
        Err(failure) => call.unstarted(failure),
    };
    note::finish(&result, result_file.as_deref(), quiet, asks)
}

fn new_id() -> Result<String, Failure> {
    state::new_id()
        .map_err(|error| Failure::new(Code::RunnerFailed, "can't make an id").because(error))
}

/// What is to run, and what is known of it so far.
struct Call {
    argv: Vec<OsString>,
    terminal: Option<Terminal>,
    pty: Option<Pty>,
    cwd: PathBuf,
    run: String,
    session: String,
    policy: Option<Policy>,
    asks: bool,
}

impl Call {
    /// Returns the result of a run that never began.
    fn unstarted(self, failure: Failure) -> RunResult {
        RunResult {
            session: self.session,
            run: self.run,
            argv: self.argv,
            cwd: self.cwd,
            policy: self.policy,
            backend: None,
            enforcement: None,
            withheld: Vec::new(),
            used: None,
            outcome: failure.outcome(),
            failure: Some(failure),
            summary: None,
            started: Time::now(),
            duration: Duration::ZERO,
        }
    }

    fn wanted(&self, default: Mode) -> Wanted<'_> {
        Wanted { run: &self.run, argv: &self.argv, terminal: self.terminal.is_some(), default }
    }
}

/// Does everything from the options to the end of the command; `None` for a dry run.
fn attempt(
    args: Options,
    call: &mut Call,
    blocked: sys::SignalSet,
) -> Result<Option<RunResult>, Failure> {
    call.cwd = std::env::current_dir().map_err(|error| {
        Failure::new(Code::PolicyInvalid, "can't tell the current directory")
            .because(error)
            .help("start it from a directory that exists")
    })?;
    if std::env::var_os("STOCKADE_RUN").is_some() && !Path::new("/dev/fuse").exists() {
        return Err(Failure::new(Code::SandboxUnavailable, "this is inside another Stockade run")
            .help("run the command as it is: what it does is confined and recorded already"));
    }
    let state = state::directory()?;
    state::create(&state)?;
    limits::sweep(&state);
    // Compared with canonical paths below, so it must be one.
    let state = std::fs::canonicalize(&state).unwrap_or(state);
    let session =
        args.session.as_deref().map(|session| Session::open(&state, session)).transpose()?;
    if let Some(session) = &session {
        session.id().clone_into(&mut call.session);
    }
    let effective = args.policy.effective()?;
    answer::check(effective.paths(&call.cwd))?;
    let default = effective.mode();
    let workspace = workspace(&args, session.as_ref(), &call.cwd)?;
    let in_force = match &session {
        Some(session) => session.state()?.resolve(default, None),
        None => Resolution::resolve(default, None, None),
    };
    let escalation = args.approval.escalation(in_force.mode)?;
    if call.terminal.is_some() {
        let pty = Pty::open().map_err(|error| {
            Failure::new(Code::RunnerFailed, "can't open a terminal for the command").because(error)
        })?;
        call.pty = Some(pty);
    }
    // What can't be carried out needn't be asked about, and leaves no session behind.
    let expected = escalation.as_ref().map_or(in_force, |escalation| Resolution {
        mode: escalation.to(),
        source: ModeSource::Approved,
    });
    let planned = plan(&args, &effective, call, &workspace, expected, &state)?;
    if args.dry_run {
        let steps: Vec<_> = planned.steps().iter().map(|step| format!("{step}\n")).collect();
        show(&steps.concat());
        return Ok(None);
    }
    let run = match (session, escalation) {
        (None, None) => {
            let root = &planned.policy.root;
            session::start_alone(&state, &call.session, root, call.wanted(default))?
        }
        (Some(session), None) => session.start(call.wanted(default), None)?,
        (session, Some(escalation)) => {
            call.policy = None;
            let session = match session {
                Some(session) => session,
                None => {
                    let first = session::created(&call.session, None, &planned.policy.root);
                    Session::create(&state, &[first])?
                }
            };
            let permit =
                args.approval.ask(escalation, &session, &effective, call, &state, args.quiet)?;
            session.start(call.wanted(default), Some(permit))?
        }
    };
    call.asks = approval::approval_policy(run.session(), &effective)? == ApprovalPolicy::Ask
        && call.terminal != Some(Terminal::Shell);
    // The mode may have been switched since the plan was made.
    let plan = if run.resolution() == expected {
        call.policy = Some(planned.policy.clone());
        planned
    } else {
        match plan(&args, &effective, call, &workspace, run.resolution(), &state) {
            Ok(plan) => plan,
            Err(failure) => return Err(give_up(run, failure)),
        }
    };
    announce(&plan, call, args.quiet, args.verbose);
    crate::cli::history::recover_undos(&state);
    if let Some((_, age)) = effective.history() {
        stockade_observe::history::prune(&state, age);
    }
    if let Some(keep) = effective.keep_logs()
        && let Err(error) = stockade_observe::prune(&state, keep, false)
        && !args.quiet
    {
        complain(&format!("stockade: old logs stay: {}", sanitise(&error.chain())));
    }
    let prepared = context(&args, &effective, call, &run, blocked)
        .and_then(|context| Ok((context, Status::new(args.status_fd, &call.session)?)));
    let (context, mut status) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return Err(give_up(run, failure)),
    };
    let result = launch::run(&plan, context, &mut status);
    if effective.history().is_some() {
        let directory = run.session().directory();
        note::history(&launch::history_directory(directory, run.id()), args.quiet);
    }
    finish(run, &result.outcome);
    // What was still dying when this run began.
    limits::sweep(&state);
    Ok(Some(result))
}

/// Writes that a run never began.
fn give_up(run: OpenRun, failure: Failure) -> Failure {
    finish(run, &failure.outcome());
    failure
}

fn finish(run: OpenRun, outcome: &RunOutcome) {
    if let Err(failure) = run.finish(outcome) {
        // The next who appends says that the run is over; its outcome is in the log and in the result.
        complain(&format!("stockade: the session doesn't say how the run ended: {failure}"));
    }
}

/// Returns the directory to work in: the session's root, for good (contract P5), else what the options say.
fn workspace(args: &Options, session: Option<&Session>, cwd: &Path) -> Result<PathBuf, Failure> {
    let Some(session) = session else {
        return Ok(args.policy.workspace.clone().unwrap_or_else(|| cwd.to_owned()));
    };
    let state = session.state()?;
    let root = state.root();
    if let Some(workspace) = &args.policy.workspace
        && std::fs::canonicalize(workspace).ok().as_deref() != Some(root)
    {
        let what = format!("the session's root is `{}` and stays so", root.display());
        return Err(Failure::new(Code::PolicyInvalid, what)
            .help("leave out --workspace, or make another session with `stockade session new`"));
    }
    args.policy.agree_with(session)?;
    Ok(root.to_owned())
}

/// Decides everything about the run.
fn plan(
    args: &Options,
    effective: &Effective,
    call: &mut Call,
    workspace: &Path,
    resolution: Resolution,
    state: &Path,
) -> Result<Plan, Failure> {
    let own = own_directories(state);
    let session = Some(call.session.clone());
    let policy = effective.policy(workspace, session, resolution, &own)?;
    call.policy = Some(policy.clone());
    let mut facts = Facts::look(own);
    facts.wanted = args.wanted(&effective.settings);
    facts.limits = Limits {
        memory: args.memory.or(Limits::of(&effective.settings).memory),
        pids: args.pids.or(Limits::of(&effective.settings).pids),
        millicpus: args.cpus.or(Limits::of(&effective.settings).millicpus),
    };
    let listed = effective.settings.sockets.iter().map(|socket| PathBuf::from(&socket.value));
    let listed = listed.filter(|socket| socket.exists());
    let wanted: Vec<_> = args.socket.iter().cloned().chain(listed).collect();
    facts.machine.allowed = sockets(&wanted, &policy)?;
    if let Some(pty) = &call.pty {
        facts.machine.terminal = Some(pty.path().to_owned());
    }
    let plan = Plan::new(policy, call.argv.clone(), call.cwd.clone(), &facts)?;
    if effective.history().is_some() && plan.kind == Kind::Runner {
        let what = "no history can be kept where nothing can be mounted";
        return Err(Failure::new(Code::SandboxUnavailable, what)
            .help("run without --keep-history (or `keep_history` in the configuration)")
            .help("`stockade doctor` says what is missing"));
    }
    let full = effective.settings.require_full.as_ref().is_some_and(|full| full.value);
    if (args.require_full || full) && !plan.enforcement.gaps().is_empty() {
        let gaps: Vec<_> = plan.enforcement.gaps().iter().map(|gap| gap.as_str()).collect();
        return Err(Failure::new(
            Code::SandboxUnavailable,
            format!("the policy can't be enforced in full here: {}", gaps.join(", ")),
        )
        .help("run without --require-full (or `require_full` in the configuration) to accept it"));
    }
    Ok(plan)
}

/// Returns the command's environment, and the names of what is withheld from it.
fn environment(args: &Options, settings: &Settings) -> (Vec<(OsString, OsString)>, Vec<OsString>) {
    let together = |options: &[String], configured: &[Setting<String>]| {
        let configured = configured.iter().map(|setting| setting.value.clone());
        options.iter().cloned().chain(configured).collect()
    };
    let withholding = Withholding {
        withhold: together(&args.withhold_env, &settings.withhold_env),
        pass: together(&args.pass_env, &settings.pass_env),
    };
    let mut variables: BTreeMap<OsString, OsString> =
        if args.clear_env { BTreeMap::new() } else { std::env::vars_os().collect() };
    for name in &args.unset_env {
        variables.remove(name);
    }
    let mut withheld: Vec<OsString> = variables
        .keys()
        .filter(|name| withholding.withholds(name.as_encoded_bytes()))
        .cloned()
        .collect();
    for name in &withheld {
        variables.remove(name);
    }
    variables.extend(args.env.iter().map(|(name, value)| (name.into(), value.into())));
    withheld.retain(|name| !variables.contains_key(name));
    (variables.into_iter().collect(), withheld)
}

/// Returns the canonical paths of sockets that the command may reach.
fn sockets(paths: &[PathBuf], policy: &stockade_policy::Policy) -> Result<Vec<PathBuf>, Failure> {
    use std::os::unix::fs::FileTypeExt;
    let regions = resolve::regions(policy);
    let check = |path: &PathBuf| {
        let invalid = |why: std::io::Error| {
            let what = format!("can't let the command reach `{}`", path.display());
            Failure::new(Code::PolicyInvalid, what).because(why)
        };
        let path = std::fs::canonicalize(path).map_err(invalid)?;
        if !std::fs::metadata(&path).map_err(invalid)?.file_type().is_socket() {
            return Err(invalid(std::io::Error::other("it is no socket")));
        }
        if regions.iter().any(|region| path.starts_with(region)) {
            return Err(invalid(std::io::Error::other("it lies in what the file system serves"))
                .help("have the server listen outside of the workspace and of /tmp"));
        }
        Ok(path)
    };
    paths.iter().map(check).collect()
}

fn announce(plan: &Plan, call: &Call, quiet: bool, verbose: bool) {
    if quiet {
        return;
    }
    if plan.policy.mode == Mode::DangerFullAccess {
        complain("stockade: unprotected: nothing is refused in mode danger-full-access");
    }
    if let Enforcement::Partial(gaps) | Enforcement::None(gaps) = &plan.enforcement
        && !gaps.is_empty()
    {
        let gaps: Vec<_> = gaps.iter().map(|gap| gap.as_str()).collect();
        complain(&format!("stockade: not enforced: {}", gaps.join(", ")));
    }
    if let Some(directory) = resolve::other_temporary()
        && plan.confined()
        && !plan.policy.writable_roots().iter().any(|root| directory.starts_with(root))
    {
        complain(&format!(
            "stockade: TMPDIR (`{}`) can't be written: it doesn't look like a directory for temporary files (--writable names it all the same)",
            sanitise(&directory.to_string_lossy())
        ));
    }
    if verbose {
        complain(&format!("stockade: session {} run {}", call.session, call.run));
        for step in plan.steps() {
            complain(&format!("stockade: {step}"));
        }
    }
}

fn context(
    args: &Options,
    effective: &Effective,
    call: &mut Call,
    run: &OpenRun,
    blocked: sys::SignalSet,
) -> Result<Context, Failure> {
    let system = |error: std::io::Error| {
        Failure::new(Code::RunnerFailed, "can't prepare the run").because(error)
    };
    let mut keep = Vec::new();
    for &number in &args.keep_fd {
        let fd = sys::inherited(number).map_err(|error| {
            Failure::new(Code::ConfigInvalid, format!("can't keep descriptor {number}"))
                .because(error)
        })?;
        // Nothing else of ours inherits it.
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .map_err(system)?;
        keep.push((fd, number));
    }
    let (environment, withheld) = environment(args, &effective.settings);
    if !withheld.is_empty() && !args.quiet {
        let names: Vec<_> = withheld.iter().map(|name| sanitise(&name.to_string_lossy())).collect();
        complain(&format!("stockade: withheld from the environment: {}", names.join(", ")));
    }
    let streams = take_streams().map_err(system)?;
    let (terminal, streams) = match call.pty.take() {
        Some(pty) => {
            let (relay, streams) = pty.relay(streams).map_err(system)?;
            (Some(relay), streams)
        }
        None => (None, streams),
    };
    Ok(Context {
        session: call.session.clone(),
        session_directory: run.session().directory().to_owned(),
        run: call.run.clone(),
        streams,
        keep,
        environment,
        withheld,
        ignored: sys::inherited_ignored(),
        blocked,
        umask: sys::inherited_umask().bits(),
        file_size: crate::caller::file_size(),
        signals: Some(SignalFd::new(launch::forwarded()).map_err(system)?),
        history: effective.history().map(|(bounds, _)| bounds),
        timeout: args.timeout.or(effective.settings.timeout.as_ref().map(|timeout| timeout.value)),
        terminal,
    })
}

/// Takes the standard streams for the command. Our own input and output become `/dev/null`, so that a reader of the
/// command's output sees its end when the command closes it; errors stay, for our notes.
fn take_streams() -> std::io::Result<[OwnedFd; 3]> {
    use std::os::fd::AsFd;
    let copies = [
        std::io::stdin().as_fd().try_clone_to_owned()?,
        std::io::stdout().as_fd().try_clone_to_owned()?,
        std::io::stderr().as_fd().try_clone_to_owned()?,
    ];
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(copies)
}
