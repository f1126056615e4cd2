//! Records many events and asks the commonest questions: `cargo run --release -p stockade-observe --example load -- 10000000`.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement, run by hand")]

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_observe::{
    Event, Filter, Key, OnRecordFailure, Op, Outcome, Process, Recorder, RunId, RunInfo,
    RunOutcome, SessionId, Store, Time, Touch, Version,
};
use stockade_policy::{Denial, Mode, ModeSource, Rule};

const PATHS: u64 = 200_000;
const PROCESSES: u32 = 2000;
const EXES: u32 = 40;

fn main() {
    let count: u64 = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let processes: Vec<Arc<Process>> = (0..PROCESSES).map(process).collect();
    let denial = Arc::new(Denial::new(Rule::ReadDenied, "deny-read **/.env"));
    for run in ["first", "last"] {
        let begun = Instant::now();
        let recorder =
            Recorder::start(dir.path(), SessionId("s".into()), info(run), OnRecordFailure::Stop)
                .unwrap();
        let started = begun.elapsed();
        let sink = recorder.sink();
        for at in 0..count / 2 {
            sink.record(event(at, count / 2, &processes, &denial));
        }
        let (sent, waits) = (begun.elapsed(), recorder.waits());
        let ending = Instant::now();
        let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
        assert_eq!((summary.events, summary.recording.lost), (count / 2, 0));
        println!(
            "run {run}: start {started:?}, sent in {sent:?} ({waits} waits), finish {:?}, {:.0} events/s",
            ending.elapsed(),
            ratio(count / 2, begun.elapsed())
        );
    }
    let size: u64 = ["log.db", "log.db-wal"]
        .iter()
        .filter_map(|name| fs::metadata(dir.path().join(name)).ok())
        .map(|meta| meta.len())
        .sum();
    println!("{} bytes/event, {}", size / count, peak());
    questions(dir.path());
    println!("{}", peak());
}

fn ratio(events: u64, time: Duration) -> f64 {
    f64::from(u32::try_from(events).unwrap_or(u32::MAX)) / time.as_secs_f64()
}

fn process(at: u32) -> Arc<Process> {
    let exe = format!("/usr/bin/program{}", at % EXES);
    Arc::new(Process {
        pid: 1000 + at,
        start_time: u64::from(at),
        ppid: 1000 + at / 10,
        comm: exe.rsplit('/').next().unwrap().into(),
        cmdline: format!("{exe}\0--option\0argument{at}\0").into_bytes(),
        exe: exe.into(),
        uid: 1000,
    })
}

fn info(run: &str) -> RunInfo {
    RunInfo {
        id: RunId(run.into()),
        argv: vec!["make".into()],
        cwd: "/home/user/project".into(),
        mode: Mode::WorkspaceWrite,
        source: ModeSource::Default,
        root: "/home/user/project".into(),
        writable_roots: vec!["/home/user/project".into()],
        backend: "bwrap".to_owned(),
        started: Time::now(),
    }
}

/// Nine in ten read one of many files, often the same ones; the rest changes something; one in a thousand is refused.
fn event(at: u64, all: u64, processes: &[Arc<Process>], denial: &Arc<Denial>) -> Event {
    let pick = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let hot = !pick.is_multiple_of(4);
    let file = if hot { pick / 4 % 2000 } else { pick / 4 % PATHS };
    // Processes come and go; a few are there at a time.
    let now = at * u64::from(PROCESSES) / all;
    let who = (now + pick / 7 % 8).min(u64::from(PROCESSES) - 1);
    let time = Time::now();
    let old = Version {
        size: file * 31 % 100_000,
        mtime: 1_700_000_000_000_000_000 + i64::try_from(file).unwrap(),
        ctime: 1_700_000_000_000_000_000 + i64::try_from(file).unwrap(),
    };
    let new = Version { size: old.size + 7, mtime: time.0 - 20_000, ctime: time.0 - 20_000 };
    let change = pick.is_multiple_of(10);
    let denied = pick % 1000 == 1;
    Event {
        time,
        process: processes[usize::try_from(who).unwrap()].clone(),
        op: if change { Op::Write } else { Op::Read },
        path: format!(
            "/home/user/project/crate{}/src/module{}/file{file}.rs",
            file % 40,
            file % 300
        )
        .into(),
        path2: None,
        key: Some(Key {
            dev: 65024,
            ino: 1_000_000 + file,
            generation: file.wrapping_mul(0x1234_5678_9abc_def1),
        }),
        outcome: if denied {
            Outcome::Denied { denial: denial.clone(), errno: 13 }
        } else {
            Outcome::Ok
        },
        bytes_read: (!change).then_some(old.size),
        bytes_written: change.then_some(new.size),
        version_before: Some(old),
        version_after: Some(if change { new } else { old }),
        publication: None,
        count: 3,
    }
}

fn questions(dir: &Path) {
    let run = Some(RunId("last".into()));
    let all = Filter { run: run.clone(), ..Filter::default() };
    let path = |glob: &str| Filter { paths: vec![glob.to_owned()], ..all.clone() };
    let filters = [
        ("the run's last 1000 events", Filter { last: Some(1000), ..all.clone() }),
        ("the run's first page", all.clone()),
        ("one file", path("/home/user/project/crate17/src/module217/file15217.rs")),
        ("one hot file", path("/home/user/project/crate17/src/module57/file57.rs")),
        ("a name anywhere", path("file100017.rs")),
        ("a directory's first page", path("/home/user/project/crate7/**")),
        ("one program's first page", Filter { exes: vec!["program17".to_owned()], ..all.clone() }),
        ("one process", Filter { pid: Some(2500), ..all.clone() }),
        ("refused, first page", Filter { denied: true, ..all.clone() }),
        ("changed, first page", Filter { changed: true, ..all.clone() }),
        (
            "the last minute's first page",
            Filter { since: Some(Time(Time::now().0 - 60_000_000_000)), ..all },
        ),
    ];
    for (name, filter) in filters {
        let store = Store::open_read_only(dir).unwrap();
        let begun = Instant::now();
        let mut found = 0;
        store
            .for_each(&filter, |_| {
                found += 1;
                if found < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .unwrap();
        println!("{:>9.1} ms  {name} ({found} events)", begun.elapsed().as_secs_f64() * 1000.0);
    }
    let store = Store::open_read_only(dir).unwrap();
    let begun = Instant::now();
    let last = store.last_run().unwrap().unwrap().info.id;
    let summary = store.run_summary(&last).unwrap();
    let (stats, counts) = (store.stats(&last).unwrap(), store.touch_counts(&last).unwrap());
    println!(
        "{:>9.1} ms  the last run's summary ({} programs, {} refusals, {} changes)",
        begun.elapsed().as_secs_f64() * 1000.0,
        stats.len(),
        summary.denial_count,
        summary.changes.modified.len(),
    );
    assert!(counts.iter().any(|(_, how, _)| how.intersects(Touch::READ)));
    let begun = Instant::now();
    let tree = store.process_tree(&last).unwrap();
    println!(
        "{:>9.1} ms  the process tree ({} processes)",
        begun.elapsed().as_secs_f64() * 1000.0,
        tree.nodes.len()
    );
    let begun = Instant::now();
    let report = store.verify(None).unwrap();
    assert!(report.is_sound());
    println!("{:>9.1} ms  verify ({} rows)", begun.elapsed().as_secs_f64() * 1000.0, report.rows);
}

fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    format!("peak memory {}", line.trim_start_matches("VmHWM:").trim())
}
