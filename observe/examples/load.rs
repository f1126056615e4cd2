//! Records many events as runs would, and asks the log what people ask: the figures of DESIGN.md.
//!
//! `cargo run --release -p stockade-observe --example load -- [EVENTS [DIRECTORY]]`
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it measures, and prints what it measured"
)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_observe::{
    Event, Filter, Key, OnRecordFailure, Op, Outcome, Process, Recorder, RunId, RunInfo,
    RunOutcome, SessionId, Store, Time, Version,
};
use stockade_policy::{Denial, Mode, ModeSource, Rule};

const FILES: u64 = 200_000;
const PROCESSES: u32 = 2000;
const PAGE: usize = 1000;

/// A generator of numbers that is the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn file(number: u64) -> PathBuf {
    PathBuf::from(format!("/work/project/src/module-{}/file-{number}.rs", number % 500))
}

fn info(id: &str) -> RunInfo {
    RunInfo {
        id: RunId(id.into()),
        argv: vec!["make".into()],
        cwd: "/work/project".into(),
        mode: Mode::WorkspaceWrite,
        source: ModeSource::Default,
        root: "/work/project".into(),
        writable_roots: vec!["/work/project".into()],
        backend: "bwrap".to_owned(),
        started: Time::now(),
    }
}

/// Peak memory of this process, in MB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1000
}

fn record(dir: &Path, run: &str, events: u64, random: &mut Random) -> Duration {
    let recorder =
        Recorder::start(dir, SessionId("load".into()), info(run), OnRecordFailure::Stop).unwrap();
    let sink = recorder.sink();
    let programs = [
        "/usr/bin/cc",
        "/usr/bin/ld",
        "/usr/bin/make",
        "/usr/bin/git",
        "/bin/sh",
        "/usr/bin/python3",
    ];
    let processes: Vec<Arc<Process>> = (0..PROCESSES)
        .map(|number| {
            let exe = PathBuf::from(programs[usize::try_from(number).unwrap() % programs.len()]);
            let cmdline = format!("{}\0-c\0file-{number}.rs\0", exe.display()).into_bytes();
            let start_time = 1000 + u64::from(number);
            Arc::new(Process {
                pid: 5000 + number,
                start_time,
                ppid: 4999 + number / 40,
                exe,
                comm: b"cc".to_vec(),
                cmdline,
                uid: 1000,
            })
        })
        .collect();
    let denial = Arc::new(Denial::new(Rule::ProtectedPath, "protection .git/hooks"));
    let start = Instant::now();
    for number in 0..events {
        let target = random.below(FILES);
        // A quarter of the files is met all the time, as headers are.
        let target = if random.below(4) > 0 { target % (FILES / 4) } else { target };
        let writes = random.below(10) == 0;
        let now = Time::now();
        let version = |age: i64| {
            Some(Version { size: target % 100_000, mtime: now.0 - age, ctime: now.0 - age + 100 })
        };
        // Processes live for a while and are followed by others.
        let process =
            (number * u64::from(PROCESSES) / events + random.below(64)) % u64::from(PROCESSES);
        let refused = random.below(100_000) == 0;
        sink.record(Event {
            time: now,
            process: processes[usize::try_from(process).unwrap()].clone(),
            op: if writes { Op::Write } else { Op::Read },
            path: file(target),
            path2: None,
            key: Some(Key { dev: 2049, ino: 1_000_000 + target, generation: target * 7 }),
            outcome: if refused {
                Outcome::Denied { denial: denial.clone(), errno: 30 }
            } else {
                Outcome::Ok
            },
            bytes_read: Some(if writes { 0 } else { target % 100_000 }),
            bytes_written: Some(if writes { target % 100_000 } else { 0 }),
            version_before: version(1_000_000_000),
            version_after: if writes { version(0) } else { version(1_000_000_000) },
            publication: None,
            noted: None,
            count: 1,
        });
    }
    recorder.finish(RunOutcome::exited(0)).unwrap();
    start.elapsed()
}

/// Asks anew a few times, each with the log opened anew, and prints the median.
fn ask(dir: &Path, what: &str, question: impl Fn(&Store) -> usize) {
    let mut times = Vec::new();
    let mut found = 0;
    for _ in 0..5 {
        let start = Instant::now();
        let store = Store::open_read_only(dir).unwrap();
        found = question(&store);
        times.push(start.elapsed());
    }
    times.sort();
    println!("{what:44} {:8.1} ms  ({found} found)", times[times.len() / 2].as_secs_f64() * 1000.0);
}

fn page(store: &Store, filter: &Filter) -> usize {
    let mut found = 0;
    store
        .for_each(filter, |_| {
            found += 1;
            if found < PAGE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    found
}

fn fill(dir: &Path, events: u64) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let half = events / 2;
    let mut took = record(dir, "r1", half, &mut random);
    took += record(dir, "r2", half, &mut random);
    println!(
        "{events} events: {:.0} a second, peak memory {} MB",
        events as f64 / took.as_secs_f64(),
        peak()
    );
    let bytes: u64 = std::fs::read_dir(dir)
        .unwrap()
        .flatten()
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    println!("{:.1} bytes an event, {:.0} MB", bytes as f64 / events as f64, bytes as f64 / 1e6);
}

fn main() {
    let mut words = std::env::args().skip(1);
    let events: u64 = words.next().map_or(1_000_000, |word| word.parse().unwrap());
    let scratch = tempfile::tempdir().unwrap();
    let dir =
        words.next().map_or_else(|| scratch.path().to_owned(), PathBuf::from).join("sessions/load");
    // A log that is there is only asked.
    if !dir.join("log.db").exists() {
        fill(&dir, events);
    }
    let runs = Store::open_read_only(&dir).unwrap().runs().unwrap();
    let middle = runs[1].info.started;

    let run = RunId("r2".into());
    let of = |filter: Filter| Filter { run: Some(run.clone()), ..filter };
    ask(&dir, "the run's summary", |store| {
        let summary = store.run_summary(&run).unwrap();
        store.stats(&run).unwrap().len()
            + store.touch_counts(&run).unwrap().len()
            + usize::try_from(summary.denial_count).unwrap()
    });
    ask(&dir, "the run's first page", |store| page(store, &of(Filter::default())));
    ask(&dir, "its last 1000 events", |store| {
        page(store, &of(Filter { last: Some(1000), ..Filter::default() }))
    });
    ask(&dir, "what was refused", |store| {
        page(store, &of(Filter { denied: true, ..Filter::default() }))
    });
    ask(&dir, "what was changed, first page", |store| {
        page(store, &of(Filter { changed: true, ..Filter::default() }))
    });
    let path = |pattern: &str| Filter { paths: vec![pattern.to_owned()], ..Filter::default() };
    ask(&dir, "one file's events", |store| page(store, &path(file(77).to_str().unwrap())));
    ask(&dir, "a name anywhere", |store| page(store, &path("file-150077.rs")));
    ask(&dir, "a directory's first page", |store| {
        page(store, &path("/work/project/src/module-7/**"))
    });
    ask(&dir, "a program's first page", |store| {
        page(store, &of(Filter { exes: vec!["cc".to_owned()], ..Filter::default() }))
    });
    ask(&dir, "one process", |store| {
        page(store, &of(Filter { pid: Some(5777), ..Filter::default() }))
    });
    ask(&dir, "since a time, first page", |store| {
        page(store, &of(Filter { since: Some(middle), ..Filter::default() }))
    });
    ask(&dir, "since a time, all runs, last 1000", |store| {
        page(store, &Filter { since: Some(middle), last: Some(1000), ..Filter::default() })
    });
    ask(&dir, "the process tree", |store| store.process_tree(&run).unwrap().nodes.len());
}
