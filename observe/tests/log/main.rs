//! The log as a whole: what goes in comes out, damage shows, and killing it loses no more than it says.
#![expect(clippy::print_stdout, reason = "the killed child reports so, and figures are printed")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod kill;
mod query;
mod readers;
mod round_trip;
mod sessions;
mod tamper;

use std::path::Path;
use std::sync::Arc;

use stockade_observe::{
    Event, OnRecordFailure, Op, Outcome, Process, Recorder, RunId, RunInfo, RunOutcome, SessionId,
    Time,
};
use stockade_policy::{Denial, Mode, ModeSource, Rule};

fn session() -> SessionId {
    SessionId("s1".into())
}

fn run(id: &str) -> RunInfo {
    RunInfo {
        id: RunId(id.into()),
        argv: vec!["make".into(), "all".into()],
        cwd: "/w".into(),
        mode: Mode::WorkspaceWrite,
        source: ModeSource::Session,
        root: "/w".into(),
        writable_roots: vec!["/w".into(), "/tmp".into()],
        backend: "bwrap".to_owned(),
        started: Time(1_700_000_000_000_000_000),
    }
}

fn recorder(dir: &Path, id: &str) -> Recorder {
    Recorder::start(dir, session(), run(id), OnRecordFailure::Stop).unwrap()
}

fn process(pid: u32, exe: &str) -> Arc<Process> {
    Arc::new(Process {
        pid,
        start_time: 1000 + u64::from(pid),
        ppid: 1,
        exe: exe.into(),
        comm: exe.rsplit('/').next().unwrap().into(),
        cmdline: format!("{exe}\0-x\0").into_bytes(),
        uid: 1000,
    })
}

fn event(process: &Arc<Process>, op: Op, path: &str) -> Event {
    Event {
        time: Time::now(),
        process: process.clone(),
        op,
        path: path.into(),
        path2: None,
        key: None,
        outcome: Outcome::Ok,
        bytes_read: None,
        bytes_written: None,
        version_before: None,
        version_after: None,
        publication: None,
        noted: None,
        count: 1,
    }
}

fn denied(process: &Arc<Process>, op: Op, path: &str) -> Event {
    let denial = Arc::new(Denial::new(Rule::ReadDenied, "deny-read **/.env"));
    Event { outcome: Outcome::Denied { denial, errno: 13 }, ..event(process, op, path) }
}

/// Records events as one finished run.
fn record(dir: &Path, id: &str, events: impl IntoIterator<Item = Event>) -> Option<String> {
    let recorder = recorder(dir, id);
    let sink = recorder.sink();
    for event in events {
        sink.record(event);
    }
    recorder.finish(RunOutcome::exited(0)).unwrap().head
}
