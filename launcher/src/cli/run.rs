//! `stockade run`: a command, confined and observed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use stockade_observe::{DenialRow, Ending, RunOutcome, Time};
use stockade_policy::{Mode, Rule};

use crate::cli::policy_args::{PolicyArgs, duration};
use crate::cli::{complain, report, show};
use crate::error::{Code, Failure};
use crate::launch::{self, Context, Watcher};
use crate::plan::{Facts, Plan};
use crate::resolve::{self, Places};
use crate::result::{self, RunResult};
use crate::sys::{self, SignalFd};
use crate::{enforcement::Enforcement, state};

/// Run a command, confined and observed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
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
    /// Let the command reach a Unix socket of the host's, by its path.
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// The session that the run belongs to; made if it doesn't exist. [default: a new one]
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// End the command after this time (such as 90s, 5m, 1.5h).
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
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

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Runs the command and returns its exit status.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    start(args.options, args.command)
}

/// Runs the user's shell on the terminal that this process has.
pub fn shell(args: ShellArgs) -> Result<ExitCode, Failure> {
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    start(args.options, vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-i".into()])
}

fn start(args: Options, command: Vec<OsString>) -> Result<ExitCode, Failure> {
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
    let session = args.session.clone().map_or_else(new_id, Ok)?;
    let ids = Ids { session, run: new_id()? };
    let result_file = args.result.clone();
    let quiet = args.quiet;
    let result = match attempt(args, command, &ids, blocked) {
        Ok(Some(result)) => result,
        Ok(None) => return Ok(ExitCode::SUCCESS),
        Err(unstarted) => unstarted.into_result(ids),
    };
    finish(&result, result_file.as_deref(), quiet)
}

struct Ids {
    session: String,
    run: String,
}

fn new_id() -> Result<String, Failure> {
    state::new_id()
        .map_err(|error| Failure::new(Code::RunnerFailed, "can't make an id").because(error))
}

/// A run that never began, and what is known of it.
struct Unstarted {
    failure: Failure,
    argv: Vec<OsString>,
    cwd: PathBuf,
    policy: Option<stockade_policy::Policy>,
}

impl Unstarted {
    fn into_result(self, ids: Ids) -> RunResult {
        let ending = if self.failure.code() == Code::SandboxUnavailable {
            Ending::Unavailable
        } else if self.failure.code() == Code::RunnerFailed {
            Ending::RunnerFailed
        } else {
            Ending::Refused
        };
        RunResult {
            session: ids.session,
            run: ids.run,
            argv: self.argv,
            cwd: self.cwd,
            policy: self.policy,
            backend: None,
            enforcement: None,
            outcome: RunOutcome { ending, exit_code: None, signal: None },
            failure: Some(self.failure),
            summary: None,
            started: Time::now(),
            duration: Duration::ZERO,
        }
    }
}

/// Does everything from the options to the end of the command; `None` for a dry run.
fn attempt(
    args: Options,
    argv: Vec<OsString>,
    ids: &Ids,
    blocked: sys::SignalSet,
) -> Result<Option<RunResult>, Box<Unstarted>> {
    let current = std::env::current_dir();
    let cwd = current.as_ref().cloned().unwrap_or_default();
    let unstarted = |policy: Option<&stockade_policy::Policy>| {
        let (argv, cwd, policy) = (argv.clone(), cwd.clone(), policy.cloned());
        move |failure: Failure| Box::new(Unstarted { failure, argv, cwd, policy })
    };
    current.map_err(|error| {
        unstarted(None)(
            Failure::new(Code::PolicyInvalid, "can't tell the current directory")
                .because(error)
                .help("start it from a directory that exists"),
        )
    })?;
    if !state::is_session_name(&ids.session) {
        let failure =
            Failure::new(Code::SessionNotFound, format!("`{}` can't be a session", ids.session))
                .help("a session's name is made of letters, digits, `.`, `_` and `-`");
        return Err(unstarted(None)(failure));
    }
    if std::env::var_os("STOCKADE_RUN").is_some() && !Path::new("/dev/fuse").exists() {
        let failure = Failure::new(Code::SandboxUnavailable, "this is inside another Stockade run")
            .help("run the command as it is: what it does is confined and recorded already");
        return Err(unstarted(None)(failure));
    }
    let state = state::directory().map_err(unstarted(None))?;
    state::create(&state).map_err(unstarted(None))?;
    // Compared with canonical paths below, so it must be one.
    let state = std::fs::canonicalize(&state).unwrap_or(state);
    let workspace = args.policy.workspace.clone().unwrap_or_else(|| cwd.clone());
    let mut request = args.policy.request(workspace);
    request.session = args.session.clone();
    let mut own = vec![state.clone()];
    own.extend(state::configuration_directory().and_then(|path| std::fs::canonicalize(path).ok()));
    let policy = resolve::resolve(&request, &Places::of_this_machine(own.clone()))
        .map_err(unstarted(None))?;
    let mut facts = Facts::look(own);
    facts.machine.allowed = sockets(&args.socket, &policy).map_err(unstarted(Some(&policy)))?;
    let plan = Plan::new(policy.clone(), argv.clone(), cwd.clone(), &facts)
        .map_err(unstarted(Some(&policy)))?;
    if args.require_full && !plan.enforcement.gaps().is_empty() {
        let gaps: Vec<_> = plan.enforcement.gaps().iter().map(|gap| gap.as_str()).collect();
        let failure = Failure::new(
            Code::SandboxUnavailable,
            format!("the policy can't be enforced in full here: {}", gaps.join(", ")),
        )
        .help("run without --require-full to accept it");
        return Err(unstarted(Some(&policy))(failure));
    }
    if args.dry_run {
        let steps: Vec<_> = plan.steps().iter().map(|step| format!("{step}\n")).collect();
        show(&steps.concat());
        return Ok(None);
    }
    announce(&plan, ids, args.quiet, args.verbose);
    let context = context(&args, ids, &state, blocked).map_err(unstarted(Some(&policy)))?;
    let mut status = Status::new(args.status_fd, ids).map_err(unstarted(Some(&policy)))?;
    Ok(Some(launch::run(&plan, context, &mut status)))
}

/// Returns the command's environment.
fn environment(args: &Options) -> Vec<(OsString, OsString)> {
    let mut variables: BTreeMap<OsString, OsString> =
        if args.clear_env { BTreeMap::new() } else { std::env::vars_os().collect() };
    for name in &args.unset_env {
        variables.remove(name);
    }
    variables.extend(args.env.iter().map(|(name, value)| (name.into(), value.into())));
    variables.into_iter().collect()
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

fn announce(plan: &Plan, ids: &Ids, quiet: bool, verbose: bool) {
    if quiet {
        return;
    }
    if plan.policy.mode == Mode::DangerFullAccess {
        complain("stockade: unprotected: nothing is refused in mode danger-full-access");
    }
    if let Enforcement::Partial(gaps) = &plan.enforcement {
        let gaps: Vec<_> = gaps
            .iter()
            .filter(|gap| verbose || gap.is_particular())
            .map(|gap| gap.as_str())
            .collect();
        if !gaps.is_empty() {
            complain(&format!("stockade: not enforced: {}", gaps.join(", ")));
        }
    }
    if verbose {
        complain(&format!("stockade: session {} run {}", ids.session, ids.run));
        for step in plan.steps() {
            complain(&format!("stockade: {step}"));
        }
    }
}

fn context(
    args: &Options,
    ids: &Ids,
    state: &Path,
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
    Ok(Context {
        session: ids.session.clone(),
        session_directory: state::session_directory(state, &ids.session)?,
        run: ids.run.clone(),
        streams: take_streams().map_err(system)?,
        keep,
        environment: environment(args),
        ignored: sys::inherited_ignored(),
        blocked,
        signals: Some(SignalFd::new(launch::forwarded()).map_err(system)?),
        timeout: args.timeout,
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

/// Writes what happens to the status descriptor.
struct Status {
    file: Option<std::fs::File>,
    session: String,
}

impl Status {
    fn new(number: Option<i32>, ids: &Ids) -> Result<Self, Failure> {
        let file = number
            .map(|number| {
                sys::inherited(number).map_err(|error| {
                    Failure::new(Code::ConfigInvalid, format!("can't use descriptor {number}"))
                        .because(error)
                })
            })
            .transpose()?;
        if let Some(file) = &file {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC).map_err(|error| {
                Failure::new(Code::RunnerFailed, "can't prepare the run").because(error)
            })?;
        }
        Ok(Self { file: file.map(Into::into), session: ids.session.clone() })
    }

    fn line(&mut self, value: &serde_json::Value) {
        use std::io::Write;
        if let Some(file) = &mut self.file {
            let mut text = value.to_string();
            text.push('\n');
            // A reader that went away wants no more lines.
            if file.write_all(text.as_bytes()).is_err() {
                self.file = None;
            }
        }
    }
}

impl Watcher for Status {
    fn started(&mut self, run: &str, pid: Option<u32>) {
        let session = self.session.clone();
        self.line(
            &json!({ "v": 1, "event": "started", "session": session, "run": run, "pid": pid }),
        );
    }

    fn denied(&mut self, denial: &DenialRow) {
        self.line(&json!({ "v": 1, "event": "denied", "denial": result::denial(denial) }));
    }

    fn ended(&mut self, outcome: &RunOutcome) {
        self.line(&json!({
            "v": 1,
            "event": "exited",
            "outcome": outcome.ending.as_str(),
            "exit_code": outcome.exit_code,
            "signal": outcome.signal,
        }));
    }
}

/// Tells the person and the result file, and returns the exit status.
#[expect(clippy::unnecessary_wraps, reason = "every subcommand has this shape")]
fn finish(result: &RunResult, file: Option<&Path>, quiet: bool) -> Result<ExitCode, Failure> {
    // A job in the background may write here without being stopped for it.
    sys::set_ignored(libc::SIGTTOU, true);
    if let Some(failure) = &result.failure {
        let _status = report(failure);
    }
    if !quiet {
        note(result);
    }
    if let Some(file) = file
        && let Err(error) = result.write(file)
    {
        // The command has run: its status stays.
        let what = format!("can't write the result to `{}`", file.display());
        let _status = report(&Failure::new(Code::RunnerFailed, what).because(error));
    }
    Ok(ExitCode::from(result.exit_status()))
}

/// How many refused paths the note names.
const NAMED: usize = 8;

/// Says what was refused, and how to allow it.
fn note(result: &RunResult) {
    if result.outcome.ending == Ending::TimedOut {
        complain("stockade: the command ran out of time and was ended");
    }
    let Some(summary) = &result.summary else { return };
    if summary.recording.lost > 0 {
        complain(&format!("stockade: {} events are missing in the log", summary.recording.lost));
    }
    for conflict in summary.conflicts.iter().take(NAMED) {
        complain(&format!("stockade: conflict: `{}`", conflict.path.display()));
    }
    if summary.denials.is_empty() {
        return;
    }
    // One line for each path and rule: programs try things again, and from several processes.
    let mut lines: BTreeMap<(PathBuf, &str), (&DenialRow, u64)> = BTreeMap::new();
    for denial in &summary.denials {
        let entry =
            lines.entry((denial.path.clone(), denial.rule.as_str())).or_insert_with(|| (denial, 0));
        entry.1 += denial.count;
    }
    let count = summary.denial_count;
    let plural = if count == 1 { "" } else { "s" };
    complain(&format!("stockade: {count} refusal{plural}:"));
    for (denial, count) in lines.values().take(NAMED) {
        let program = denial
            .exe
            .file_name()
            .map_or_else(|| "?".into(), |name| name.to_string_lossy().into_owned());
        let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
        complain(&format!(
            "  {} {} by {program} (pid {}){times}: {}",
            denial.op,
            shown(&denial.path),
            denial.pid,
            denial.rule
        ));
    }
    if lines.len() > NAMED {
        complain(&format!("  and {} more paths", lines.len() - NAMED));
    }
    let mut helps: Vec<String> =
        lines.values().filter_map(|(denial, _)| help(denial, result)).collect();
    helps.sort();
    helps.dedup();
    for help in helps.iter().take(NAMED) {
        complain(&format!("help: {help}"));
    }
    complain(&format!("help: `stockade log {} --denied` shows each", result.session));
}

/// Shows a path without letting its name write to the terminal.
fn shown(path: &Path) -> String {
    let text: String = path
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    format!("`{text}`")
}

/// Returns the option that would allow what was refused.
fn help(denial: &DenialRow, result: &RunResult) -> Option<String> {
    let parent = denial.path.parent().unwrap_or(&denial.path);
    Some(match denial.rule {
        Rule::ReadOnlyMode => {
            "to allow writing in the workspace: --mode workspace-write".to_owned()
        }
        Rule::OutsideWritableRoots => format!("to allow it: --writable {}", shown(parent)),
        Rule::ProtectedPath => {
            format!("to lift the protection: --allow-write {}", shown(&denial.path))
        }
        Rule::WriteDenied | Rule::ReadDenied => format!("to allow it, leave out {}", denial.source),
        Rule::NotObserved | Rule::StaleVersion => {
            "read the file again first, or use --guard audit".to_owned()
        }
        Rule::HardLink => {
            "to give such a file a fresh inode on write: --hardlinks break".to_owned()
        }
        Rule::DeviceNode | Rule::Reserved => return None,
    })
    .filter(|_| result.policy.is_some())
}
