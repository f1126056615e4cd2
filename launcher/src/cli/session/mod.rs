//! `stockade session`: what runs share, and what they may do by it.

mod requests;
mod show;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use stockade_observe::{find_session, remove_session};
use stockade_policy::{ApprovalPolicy, Deployment, Mode, Preset, PresetError, SessionEvent};

use crate::answer;
use crate::cli::show as print;
use crate::config::Sources;
use crate::error::{Code, Failure};
use crate::session::{self, Session, failure};
use crate::{probe, resolve, state};

/// Make, show and change sessions: runs that share a workspace, a mode and a log.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    New(New),
    List(show::List),
    Show(show::Show),
    Mode(ModeArgs),
    Preset(PresetArgs),
    Events(show::Events),
    Rm(Rm),
    Requests(requests::Requests),
    Approve(requests::Approve),
    Reject(requests::Reject),
}

/// Make a session and print its id.
#[derive(Debug, clap::Args)]
struct New {
    /// A name that it can be called by.
    #[arg(long)]
    name: Option<String>,
    /// The directory to work in, for good. [default: the current directory]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// What its runs may do to files. [default: what the command line and the configuration say at each run]
    #[arg(long, value_name = "MODE", conflicts_with = "preset")]
    mode: Option<Mode>,
    /// Whether a wider mode may be asked for: ask or never.
    #[arg(long, value_name = "POLICY", value_parser = approval, conflicts_with = "preset")]
    approval: Option<ApprovalPolicy>,
    /// The mode and the approval policy by one name: workspace-write or danger-full-access.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    #[command(flatten)]
    asking: Asking,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Change what a session's runs may do to files, from the next one on.
#[derive(Debug, clap::Args)]
struct ModeArgs {
    /// The session, by id or name.
    session: String,
    /// read-only, workspace-write or danger-full-access.
    mode: Mode,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Change a session's mode and approval policy in one step.
#[derive(Debug, clap::Args)]
struct PresetArgs {
    /// The session, by id or name.
    session: String,
    /// workspace-write (asks for more) or danger-full-access (never asks).
    preset: String,
    #[command(flatten)]
    asking: Asking,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Where the approver is found that a preset needs.
#[derive(Debug, clap::Args)]
struct Asking {
    /// Look for the preset's approver in this configuration instead of the one in the configuration directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Look for it in a profile, shipped or of the configuration.
    #[arg(long, value_name = "NAME")]
    profile: Vec<String>,
}

/// Remove sessions with their logs.
#[derive(Debug, clap::Args)]
struct Rm {
    /// The sessions, by id or name.
    #[arg(required = true, value_name = "SESSION")]
    sessions: Vec<String>,
}

fn approval(text: &str) -> Result<ApprovalPolicy, String> {
    [ApprovalPolicy::Ask, ApprovalPolicy::Never]
        .into_iter()
        .find(|policy| policy.as_str() == text)
        .ok_or_else(|| "expected ask or never".to_owned())
}

/// Does what is asked.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let directory = state::directory()?;
    match &args.command {
        Command::New(args) => new(&directory, args),
        Command::List(args) => show::list(&directory, args),
        Command::Show(args) => show::show(&directory, args),
        Command::Mode(args) => change(&directory, &args.session, args.json, |_| {
            Ok(vec![SessionEvent::mode(args.mode)])
        }),
        Command::Preset(args) => {
            let events = preset(&args.preset, &args.asking)?;
            change(&directory, &args.session, args.json, move |_| Ok(events))
        }
        Command::Events(args) => show::events(&directory, args),
        Command::Rm(args) => rm(&directory, args),
        Command::Requests(args) => requests::list(&directory, args),
        Command::Approve(args) => requests::approve(&directory, args),
        Command::Reject(args) => requests::reject(&directory, args),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn new(directory: &Path, args: &New) -> Result<(), Failure> {
    if let Some(name) = &args.name
        && !state::is_session_name(name)
    {
        return Err(Failure::new(Code::ConfigInvalid, format!("`{name}` can't be a name"))
            .help("a session's name is made of letters, digits, `.`, `_` and `-`"));
    }
    let workspace = match &args.workspace {
        Some(workspace) => workspace.clone(),
        None => std::env::current_dir().map_err(|error| {
            Failure::new(Code::PolicyInvalid, "can't tell the current directory").because(error)
        })?,
    };
    answer::check([workspace.clone()])?;
    let root = resolve::workspace(&workspace)?;
    state::create(directory)?;
    let id = state::new_id()
        .map_err(|error| Failure::new(Code::RunnerFailed, "can't make an id").because(error))?;
    let mut first = vec![session::created(&id, args.name.as_deref(), &root)];
    first.extend(args.mode.map(SessionEvent::mode));
    first.extend(args.approval.map(SessionEvent::approval));
    if let Some(name) = &args.preset {
        first.extend(preset(name, &args.asking)?);
    }
    Session::create(directory, &first)?;
    print(&if args.json {
        format!("{}\n", json!({ "v": 1, "session": id, "name": args.name }))
    } else {
        format!("{id}\n")
    });
    Ok(())
}

/// Returns the events of a preset, if this machine has what it needs (contract P9).
fn preset(name: &str, asking: &Asking) -> Result<Vec<SessionEvent>, Failure> {
    let preset = Preset::find(name).map_err(invalid)?;
    let deployment = Deployment { confines: confines(), approves: approves(asking)? };
    preset.events(deployment).map(Vec::from).map_err(invalid)
}

/// Tells whether commands can be confined here, by trying it.
fn confines() -> bool {
    probe::all().iter().all(|check| check.status != probe::Status::Failed)
}

/// Tells whether somebody can approve: the configuration's approver, or whoever sits at the terminal.
fn approves(asking: &Asking) -> Result<bool, Failure> {
    let sources = Sources {
        file: asking.config.clone(),
        profiles: asking.profile.clone(),
        ..Sources::default()
    };
    let settings = sources.resolve(Mode::COMMAND_LINE_DEFAULT)?.settings;
    let elsewhere = settings.ask_elsewhere.is_some_and(|set| set.value);
    let terminal = || std::fs::File::options().read(true).write(true).open("/dev/tty").is_ok();
    Ok(elsewhere || settings.approver.is_some() || terminal())
}

fn invalid(error: PresetError) -> Failure {
    let (code, help) = match &error {
        PresetError::Unknown(_) | PresetError::Custom => (Code::PolicyInvalid, None),
        PresetError::NoLauncher(_) => {
            (Code::SandboxUnavailable, Some("`stockade doctor` shows what is missing"))
        }
        PresetError::NoApprover(_) => (
            Code::ApprovalUnavailable,
            Some("run it on a terminal, or name an `approver` in the configuration"),
        ),
    };
    help.into_iter().fold(Failure::new(code, error.to_string()), Failure::help)
}

fn change(
    directory: &Path,
    session: &str,
    as_json: bool,
    choose: impl FnOnce(&stockade_policy::SessionState) -> Result<Vec<SessionEvent>, Failure>,
) -> Result<(), Failure> {
    let session = Session::open(directory, session)?;
    let after = session.append(choose)?;
    if as_json {
        print(&format!("{}\n", show::state(session.id(), &after)));
    }
    Ok(())
}

fn rm(directory: &Path, args: &Rm) -> Result<(), Failure> {
    for name in &args.sessions {
        let session = find_session(directory, name).map_err(failure)?;
        remove_session(directory, &session).map_err(failure)?;
    }
    Ok(())
}
