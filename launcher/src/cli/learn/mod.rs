//! `stockade learn`: the smallest profile under which a command passes, found by running it.
//!
//! The command runs in `workspace-write` with the whole tree observed, as a run of its own; what it was refused becomes
//! grants ([`needs`]), and it runs again with them, since a program that is refused something stops early. It ends when
//! nothing is refused, nothing new can be granted, or the rounds are used up. No round ever runs unprotected.

mod needs;
mod profile;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::{Value, json};
use stockade_observe::{RunId, Store, find_session};
use stockade_policy::config::{Origin, Setting, Settings};
use stockade_policy::{Config, Mode, ModeSource, Policy, Resolution, Rules, config::expand};

use crate::cli::policy_args::duration;
use crate::cli::{FAILED, complain, log, show};
use crate::config::{Sources, own_directories};
use crate::error::{Code, Failure};
use crate::sys::{self, SignalFd, SignalSet};
use crate::{caller, session, state};

use needs::{Judge, Needs, Seen};
use profile::Learnt;

/// Run a command and print the smallest profile under which it passes.
///
/// The command runs in mode workspace-write with everything observed, and again with what it was refused, until nothing
/// is refused: up to --rounds times, each time for real and with more allowed. What is printed goes into the
/// configuration; its comments name what isn't granted, and what was read that looks secret.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How often the command may run. With 1 it never runs with more than workspace-write allows.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Write the profile to this file instead of printing it; then the command's output stays where it goes.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The profile's name.
    #[arg(long, value_name = "NAME", default_value = "learnt")]
    name: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Grant what reaches far too: the home directory, what is above it, a directory at the top such as /etc.
    #[arg(long)]
    wide: bool,
    /// Make directories that the command tried to make where only a far-reaching grant would let it.
    #[arg(long)]
    mkdir: bool,
    /// Grant a directory instead of the files in it that were changed, when they are more than this.
    #[arg(long, value_name = "N")]
    fold: Option<usize>,
    /// Run the command once more under the profile as it is printed.
    #[arg(long)]
    check: bool,
    /// The directory to work in. [default: the current directory]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// A path or glob that can't be read.
    #[arg(long, value_name = "PATH|GLOB")]
    deny_read: Vec<String>,
    /// A path or glob that can't be written.
    #[arg(long, value_name = "PATH|GLOB")]
    deny_write: Vec<String>,
    /// What the printed profile is to build on: a profile, shipped or of the configuration.
    #[arg(long, value_name = "NAME")]
    profile: Vec<String>,
    /// Read this configuration instead of the one in the configuration directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What confines the command: auto, bwrap, landlock or custom.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// End each run after this time (such as 90s, 5m, 1.5h).
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Say nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How one run of the command ended.
struct Round {
    status: ExitStatus,
    result: Value,
    seen: Seen,
    stopped: bool,
}

impl Round {
    fn passed(&self) -> bool {
        self.status.success() && self.seen.denials == 0
    }

    fn json(&self) -> Value {
        let result = &self.result;
        json!({
            "session": result["session"],
            "run": result["run"],
            "outcome": result["outcome"],
            "exit_code": result["exit_code"],
            "signal": result["signal"],
            "denial_count": self.seen.denials,
        })
    }
}

/// Learns, prints, and returns the command's last exit status.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let learner = Learner::new(args)?;
    let mut needs = Needs::default();
    let mut rounds = Vec::new();
    let mut made = Vec::new();
    let mut last = loop {
        let round = match learner.round(&needs, Mode::WorkspaceWrite)? {
            Ok(round) => round,
            Err(status) => return Ok(status),
        };
        rounds.push(round.json());
        let mut seen = round.seen.clone();
        if args.mkdir {
            learner.make(&mut seen.needs, &mut made)?;
        }
        let more = needs.add(std::mem::take(&mut seen.needs));
        learner.say(&round, rounds.len(), &needs);
        if !more || round.stopped || rounds.len() >= usize::try_from(args.rounds).unwrap_or(1) {
            break round;
        }
    };
    let mut mode = Mode::WorkspaceWrite;
    let mut passed = last.passed();
    let mut checked = passed;
    if passed {
        let unused = needs.keep_used(&last.seen.changed);
        if last.seen.changed.is_empty() && needs.is_empty() {
            mode = Mode::ReadOnly;
        }
        let joined = args.fold.is_some_and(|most| {
            let before = needs.roots.len();
            learner.judged(&needs, mode, |judge| needs_joined(&needs, most, judge)).is_ok_and(
                |folded| {
                    needs = folded;
                    needs.roots.len() != before
                },
            )
        });
        checked = !unused && !joined && mode == Mode::WorkspaceWrite;
        // A run that changes nothing does no harm when it runs again.
        let rounds_left = rounds.len() < usize::try_from(args.rounds).unwrap_or(1);
        if !checked && (args.check || (mode == Mode::ReadOnly && rounds_left)) {
            let again = match learner.round(&needs, mode)? {
                Ok(round) => round,
                Err(status) => return Ok(status),
            };
            rounds.push(again.json());
            learner.say(&again, rounds.len(), &needs);
            checked = again.passed();
            if !checked && mode == Mode::ReadOnly {
                // It isn't the same twice: the mode it passed in stays.
                mode = Mode::WorkspaceWrite;
            } else {
                passed = checked;
                last = again;
            }
        }
    }
    let learnt = Learnt {
        name: &args.name,
        command: log::command(&args.command),
        mode,
        needs: &needs,
        last: &last.seen,
        rounds,
        passed: passed && !needs.stays_refused(),
        checked,
    };
    let text = if args.json { format!("{}\n", learnt.json()) } else { learnt.toml() };
    learner.write(&text)?;
    let status = last.status;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)))
}

fn needs_joined(needs: &Needs, most: usize, judge: &Judge<'_>) -> Needs {
    let mut folded = needs.clone();
    folded.join_files(most, judge);
    folded
}

/// What stays the same from run to run.
struct Learner<'a> {
    args: &'a Args,
    program: PathBuf,
    state: PathBuf,
    own: Vec<PathBuf>,
    workspace: PathBuf,
    secrets: Rules,
    scratch: tempfile::TempDir,
    signals: SignalSet,
}

fn broken(what: &str) -> impl FnOnce(std::io::Error) -> Failure + use<> {
    let what = what.to_owned();
    move |error| Failure::new(Code::RunnerFailed, what).because(error)
}

impl<'a> Learner<'a> {
    fn new(args: &'a Args) -> Result<Self, Failure> {
        if let Some(file) = &args.output {
            crate::result::check_writable(file).map_err(|error| {
                let what = format!("can't write the profile to `{}`", file.display());
                Failure::new(Code::ConfigInvalid, what).because(error)
            })?;
        }
        let state = state::directory()?;
        state::create(&state)?;
        let state = std::fs::canonicalize(&state).unwrap_or(state);
        let workspace = match &args.workspace {
            Some(workspace) => workspace.clone(),
            None => std::env::current_dir().map_err(broken("can't tell the current directory"))?,
        };
        // In the state directory, which no run can see.
        let scratch = tempfile::Builder::new()
            .prefix(".learn-")
            .tempdir_in(&state)
            .map_err(broken("can't make a directory for results"))?;
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]
            .into_iter()
            .fold(SignalSet::default(), SignalSet::with);
        Ok(Self {
            args,
            program: PathBuf::from("/proc/self/exe"),
            own: own_directories(&state),
            secrets: secrets(&workspace)?,
            state,
            workspace,
            scratch,
            signals,
        })
    }

    /// Runs the command once. The inner error is the status of a run that never began, which has said why.
    fn round(&self, needs: &Needs, mode: Mode) -> Result<Result<Round, ExitCode>, Failure> {
        let result = self.scratch.path().join("result.json");
        drop(std::fs::remove_file(&result));
        let mut command = std::process::Command::new(&self.program);
        command.arg("run").arg("--quiet").arg("--result").arg(&result);
        command.args(["--mode", mode.as_str(), "--observe-root", "/"]);
        let args = self.args;
        if let Some(workspace) = &args.workspace {
            command.arg("--workspace").arg(workspace);
        }
        if let Some(config) = &args.config {
            command.arg("--config").arg(config);
        }
        if let Some(backend) = &args.backend {
            command.arg("--backend").arg(backend);
        }
        if let Some(timeout) = &args.timeout {
            command.arg("--timeout").arg(format!("{}s", timeout.as_secs_f64()));
        }
        let lists = [
            ("--profile", &args.profile),
            ("--deny-read", &args.deny_read),
            ("--deny-write", &args.deny_write),
        ];
        for (option, value) in
            lists.iter().flat_map(|(option, list)| list.iter().map(move |value| (option, value)))
        {
            command.arg(format!("{option}={value}"));
        }
        for root in needs.roots.keys() {
            command.arg("--writable").arg(root);
        }
        for (pattern, _) in needs.lifts.values() {
            command.arg(format!("--allow-write={pattern}"));
        }
        command.arg("--").args(&args.command);
        if args.output.is_none() {
            // The profile is what is read from the standard output.
            let errors = std::io::stderr().as_fd().try_clone_to_owned();
            command.stdout(Stdio::from(errors.map_err(broken("can't pass on a descriptor"))?));
        }
        let child = caller::as_it_was(|| command.spawn());
        let (status, stopped) = self.wait(child.map_err(broken("can't start `stockade run`"))?)?;
        let text = std::fs::read(&result).map_err(broken("the run has left no result"))?;
        let result: Value = serde_json::from_slice(&text)
            .map_err(|error| broken("the run's result can't be read")(error.into()))?;
        let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
        let (Some(session), Some(run)) = (result["session"].as_str(), result["run"].as_str())
        else {
            return Ok(Err(ExitCode::from(code)));
        };
        let Ok(found) = find_session(&self.state, session) else {
            return Ok(Err(ExitCode::from(code)));
        };
        let store = Store::open_read_only(&found.dir).map_err(session::failure)?;
        let run = RunId(run.into());
        if store.run(&run).is_err() || result["error"].is_object() {
            return Ok(Err(ExitCode::from(code)));
        }
        let seen =
            self.judged(needs, mode, |judge| judge.see(&store, &run))?.map_err(session::failure)?;
        let outcome = result["outcome"].as_str();
        let stopped = stopped || matches!(outcome, Some("timed_out" | "canceled"));
        Ok(Ok(Round { status, result, seen, stopped }))
    }

    /// Waits for the end, and passes on signals that a process sends to us alone. Returns also whether one came.
    fn wait(&self, mut child: Child) -> Result<(ExitStatus, bool), Failure> {
        let waiting = broken("can't wait for the run");
        let before = sys::set_signal_mask(self.signals);
        let arrivals = SignalFd::new(self.signals);
        let mut stopped = false;
        let mut each = || -> std::io::Result<ExitStatus> {
            let arrivals = arrivals.as_ref().map_err(|error| error.kind())?;
            let pid = rustix::process::Pid::from_child(&child);
            loop {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
                let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let mut fds = [PollFd::new(arrivals, PollFlags::IN)];
                // Whatever woke us, we look.
                let _woken = rustix::event::poll(&mut fds, Some(&pause));
                while let Some(arrived) = arrivals.take() {
                    stopped = true;
                    if arrived.sent_by_a_process() {
                        sys::kill(pid, arrived.signal)?;
                    }
                }
            }
        };
        let status = each();
        sys::set_signal_mask(before);
        Ok((status.map_err(waiting)?, stopped))
    }

    /// Calls `what` with the rules that a run with these grants has.
    fn judged<T>(
        &self,
        needs: &Needs,
        mode: Mode,
        what: impl FnOnce(&Judge<'_>) -> T,
    ) -> Result<T, Failure> {
        fn options(name: &str, values: impl Iterator<Item = String>) -> Vec<Setting<String>> {
            let origin = || Origin::Option(name.to_owned());
            values.map(|value| Setting::new(value, origin())).collect()
        }
        let patterns = needs.lifts.values().map(|(pattern, _)| pattern.clone());
        let sources = Sources {
            file: self.args.config.clone(),
            profiles: self.args.profile.clone(),
            options: Settings {
                mode: Some(Setting::new(mode, Origin::Option("--mode".to_owned()))),
                deny_read: options("--deny-read", self.args.deny_read.iter().cloned()),
                deny_write: options("--deny-write", self.args.deny_write.iter().cloned()),
                allow_write: options("--allow-write", patterns),
                ..Settings::default()
            },
            writable: needs.roots.keys().cloned().collect(),
        };
        let effective = sources.resolve(Mode::COMMAND_LINE_DEFAULT)?;
        let resolution = Resolution { mode, source: ModeSource::Default };
        let policy = effective.policy(&self.workspace, None, resolution, &self.own)?;
        let rules = compile(&policy)?;
        let roots = policy.writable_roots();
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Ok(what(&Judge {
            mode,
            roots: &roots,
            rules: &rules,
            secrets: &self.secrets,
            own: &self.own,
            home: home.map(|home| std::fs::canonicalize(&home).unwrap_or(home)),
            wide: self.args.wide,
        }))
    }

    /// Makes directories that the command couldn't (`--mkdir`); they are granted then.
    fn make(&self, needs: &mut Needs, made: &mut Vec<PathBuf>) -> Result<(), Failure> {
        for (directory, why) in std::mem::take(&mut needs.missing) {
            if made.contains(&directory) || directory.to_str().is_none() {
                needs.missing.insert(directory, why);
                continue;
            }
            match std::fs::create_dir(&directory) {
                Ok(()) => {
                    if !self.args.quiet {
                        complain(&format!("stockade: made `{}`", log::path(&directory)));
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let what = format!("can't make `{}`", log::path(&directory));
                    return Err(broken(&what)(error));
                }
            }
            made.push(directory.clone());
            needs.roots.insert(directory, why);
        }
        Ok(())
    }

    fn say(&self, round: &Round, number: usize, needs: &Needs) {
        if self.args.quiet {
            return;
        }
        let ended = match (round.status.code(), round.status.signal()) {
            (Some(code), _) => format!("ended with {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        let grants = needs.roots.len() + needs.lifts.len();
        let plural = if grants == 1 { "" } else { "s" };
        complain(&format!(
            "stockade: run {number} {ended}, {} refused; {grants} grant{plural} so far",
            round.seen.denials
        ));
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        let Some(file) = &self.args.output else {
            show(text);
            return Ok(());
        };
        let failed = || broken(&format!("can't write the profile to `{}`", file.display()));
        // A profile that is read meanwhile is the old or the new one.
        if std::fs::metadata(file).is_ok_and(|metadata| !metadata.is_file()) {
            let opened = std::fs::OpenOptions::new().write(true).open(file);
            return opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed());
        }
        let directory = match file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        let fresh = tempfile::Builder::new().prefix(".stockade-").tempfile_in(directory);
        let mut fresh = fresh.map_err(failed())?;
        fresh.write_all(text.as_bytes()).map_err(failed())?;
        fresh.persist(file).map_err(|error| failed()(error.error)).map(drop)
    }
}

fn compile(policy: &Policy) -> Result<Rules, Failure> {
    Rules::compile(policy).map_err(|error| {
        Failure::new(Code::PolicyInvalid, "the policy can't be carried out").because(error)
    })
}

/// Returns rules that deny reading what the shipped profile `secrets` denies.
fn secrets(workspace: &Path) -> Result<Rules, Failure> {
    let root = std::fs::canonicalize(workspace).unwrap_or_else(|_| workspace.to_owned());
    let mut policy = Policy::new(Mode::WorkspaceWrite, root);
    if let Some(profile) = Config::shipped().remove("secrets") {
        let variable = |name: &str| std::env::var(name).ok();
        let listed = profile.settings.deny_read.iter();
        policy.deny_read = listed.filter_map(|set| expand(&set.value, &variable).ok()).collect();
    }
    policy.add_aliases(&|path| std::fs::canonicalize(path).ok());
    compile(&policy)
}
