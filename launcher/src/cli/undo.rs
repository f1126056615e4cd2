//! `stockade undo`: puts back what a run changed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use stockade_observe::history::{Change, Kind, Plan};
use stockade_observe::{
    Event, OnRecordFailure, Op, Outcome, Process, Recorder, RunId, RunInfo, RunOutcome, SessionId,
    Time, run_is_live,
};

use super::history::{Found, UNDO, Which, shown, to_json};
use super::{complain, show};
use crate::error::{Code, Failure};
use crate::session::{OpenRun, Session, Wanted};
use crate::state;

/// Put back what a run changed: all of it, or nothing if something has changed since.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Put back only what the run did at and below PATH (repeatable); what moved goes back with it.
    #[arg(long, value_name = "PATH")]
    path: Vec<PathBuf>,
    /// Say what would be put back, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON: one object a line for each change that is taken back.
    #[arg(long)]
    json: bool,
}

/// Undoes a run.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let found = args.which.find()?;
    let id = &found.run.info.id;
    if found.run.live || run_is_live(&found.session.dir, &id.0) {
        let what = format!("run `{id}` goes on");
        return Err(Failure::new(Code::SessionBusy, what).help("wait for its end, or end it"));
    }
    found.recover()?;
    let mut histories = found.open()?;
    let partly = !args.path.is_empty();
    if partly {
        let paths = args.path.iter().map(std::path::absolute).collect::<Result<Vec<_>, _>>();
        let paths = paths.map_err(|error| {
            Failure::new(Code::FsNotFound, "the current directory is gone").because(error)
        })?;
        let mut any = false;
        for history in &mut histories {
            any |= history.select(&paths);
        }
        if !any {
            let what = format!("run `{id}` changed nothing there that isn't put back already");
            return Err(Failure::new(Code::FsNotFound, what)
                .help("`stockade diff --name-only` lists what it changed"));
        }
    }
    let plan = Plan::new(&found.place, &histories, partly).map_err(|error| found.failure(error))?;
    if histories.iter().any(|history| !history.sealed) {
        complain(
            "stockade: the run was interrupted, or its history couldn't be written to its end: \
             what was recorded until then is taken back",
        );
    }
    if args.dry_run {
        tell(plan.changes(), args.json);
        return Ok(ExitCode::SUCCESS);
    }
    let record = Record::start(&found)?;
    let changes = plan.changes().to_vec();
    match plan.carry_out() {
        Ok(done) => {
            tell(&done.changes, args.json);
            record.finish(&done.changes, RunOutcome::exited(0))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            let failure = found.failure(error);
            drop(changes);
            record.finish(&[], failure.outcome())?;
            Err(failure)
        }
    }
}

fn tell(changes: &[Change], json: bool) {
    let mut text = String::new();
    for change in changes {
        if json {
            text.push_str(&serde_json::Value::Object(to_json(change)).to_string());
        } else {
            let path = shown(change.path());
            match (change.kind, &change.from) {
                (Kind::Created, _) => text.push_str(&format!("removed {path}")),
                (Kind::Deleted, _) => text.push_str(&format!("brought back {path}")),
                (Kind::Renamed, Some(from)) => {
                    text.push_str(&format!("moved {path} back to {}", shown(from)));
                }
                (Kind::Modified | Kind::Renamed, _) => text.push_str(&format!("restored {path}")),
            }
        }
        text.push('\n');
    }
    show(&text);
}

/// The undo as a run of its session, so that the log has it.
struct Record {
    run: OpenRun,
    recorder: Recorder,
}

impl Record {
    fn start(found: &Found) -> Result<Self, Failure> {
        let broken = |error: std::io::Error| {
            Failure::new(Code::RunnerFailed, "the undo can't be recorded").because(error)
        };
        let undone = &found.run.info;
        let argv: Vec<OsString> =
            ["stockade", "undo", &undone.id.0].iter().map(OsString::from).collect();
        let id = state::new_id().map_err(broken)?;
        let session = Session::open(&found.state, &found.session.id.0)?;
        let wanted = Wanted { run: &id, argv: &argv, terminal: false, default: undone.mode };
        let run = session.start(wanted, None)?;
        let info = RunInfo {
            id: RunId(id.as_str().into()),
            argv,
            cwd: std::env::current_dir().unwrap_or_default(),
            mode: run.resolution().mode,
            source: run.resolution().source,
            root: undone.root.clone(),
            writable_roots: undone.writable_roots.clone(),
            backend: UNDO.to_owned(),
            started: Time::now(),
        };
        let session = SessionId(run.session().id().into());
        let directory = run.session().directory();
        let recorder = Recorder::start(directory, session, info, OnRecordFailure::GapRecord)
            .map_err(|error| {
                Failure::new(Code::RunnerFailed, "the undo can't be recorded").because(error)
            })?;
        Ok(Self { run, recorder })
    }

    fn finish(self, changes: &[Change], outcome: RunOutcome) -> Result<(), Failure> {
        let process = Arc::new(Process {
            pid: std::process::id(),
            exe: std::env::current_exe().unwrap_or_default(),
            uid: rustix::process::geteuid().as_raw(),
            ..Process::default()
        });
        let sink = self.recorder.sink();
        for change in changes {
            sink.record(event(&process, change));
        }
        let recorded = self
            .recorder
            .finish(outcome)
            .map_err(|error| Failure::new(Code::RunnerFailed, "the recorder died").because(error));
        self.run.finish(&outcome)?;
        recorded.map(drop)
    }
}

fn event(process: &Arc<Process>, change: &Change) -> Event {
    let directory = change.is_directory();
    let op = match change.kind {
        Kind::Created if directory => Op::Rmdir,
        Kind::Created => Op::Unlink,
        Kind::Deleted if directory => Op::Mkdir,
        Kind::Deleted => Op::Create,
        Kind::Modified => Op::Publish,
        Kind::Renamed => Op::Rename,
    };
    let moved = change.kind == Kind::Renamed;
    Event {
        time: Time::now(),
        process: process.clone(),
        op,
        path: change.path().to_owned(),
        path2: change.from.as_deref().filter(|_| moved).map(Path::to_owned),
        key: None,
        outcome: Outcome::Ok,
        bytes_read: Some(0),
        bytes_written: Some(0),
        version_before: None,
        version_after: None,
        publication: None,
        noted: None,
        count: 1,
    }
}
