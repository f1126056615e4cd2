use std::fs;

use super::*;
use crate::event::RunId;
use crate::query::Filter;
use crate::store::FORMAT;
use stockade_policy::{Denial, Mode, ModeSource, Rule};

fn info(id: &str) -> RunInfo {
    RunInfo {
        id: RunId(id.into()),
        argv: vec!["sh".into()],
        cwd: "/w".into(),
        mode: Mode::WorkspaceWrite,
        source: ModeSource::Default,
        root: "/w".into(),
        writable_roots: vec!["/w".into(), "/tmp".into()],
        backend: "bwrap".to_owned(),
        started: Time::now(),
    }
}

fn event(op: Op, path: &str) -> Event {
    Event {
        time: Time::now(),
        process: Arc::new(Process { pid: 7, exe: "/bin/sh".into(), ..Process::default() }),
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

fn denied(path: &str, count: u64) -> Event {
    let denial = Arc::new(Denial::new(Rule::ReadDenied, "deny-read **/.env"));
    Event { outcome: Outcome::Denied { denial, errno: 13 }, count, ..event(Op::Read, path) }
}

fn count(dir: &Path, table: &str) -> u64 {
    let store = Store::open_read_only(dir).unwrap();
    store
        .conn
        .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
        .unwrap()
        .cast_unsigned()
}

fn session() -> SessionId {
    SessionId("s1".into())
}

#[test]
fn a_run_is_recorded_and_summed_up() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("sessions/s1");
    let recorder = Recorder::start(&dir, session(), info("r1"), OnRecordFailure::Stop).unwrap();
    let sink = recorder.sink();
    let denials = recorder.denials();
    sink.record(event(Op::Create, "/w/a"));
    sink.record(event(Op::Read, "/w/b"));
    sink.record(denied("/w/.env", 2));
    sink.record(denied("/w/.env", 1));
    assert_eq!(denials.recv_timeout(Duration::from_secs(10)).unwrap().count, 2);
    recorder.flush().unwrap();
    assert_eq!(count(&dir, "event"), 4);
    let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
    assert_eq!((summary.denial_count, summary.reads, summary.events), (3, 1, 4));
    assert_eq!(summary.denials.len(), 1);
    assert_eq!(summary.denials[0].count, 3);
    assert_eq!(summary.changes.created, [PathBuf::from("/w/a")]);
    assert_eq!(summary.recording, Recording::default());
    let store = Store::open_read_only(&dir).unwrap();
    let report = store.verify(summary.head.as_deref()).unwrap();
    assert_eq!((report.problem, report.events), (None, 4));
    assert_eq!(store.last_run().unwrap().unwrap().end.unwrap().summary.unwrap().denial_count, 3);
    assert_eq!(count(&dir, "run_end"), 1);
    assert_eq!(fs::read_dir(dir.join("live")).unwrap().count(), 0);
}

#[test]
fn many_events_from_many_threads_all_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let recorder =
        Recorder::start(dir.path(), session(), info("r1"), OnRecordFailure::Stop).unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let sink = recorder.sink();
            scope.spawn(move || {
                for at in 0..10_000 {
                    sink.record(event(Op::Write, &format!("/w/{thread}/{}", at % 100)));
                }
            });
        }
    });
    let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
    assert_eq!(summary.events, 40_000);
    assert_eq!(summary.changes.modified.len(), 400);
    assert_eq!(count(dir.path(), "event"), 40_000);
}

#[test]
fn two_recorders_share_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let recorders = ["r1", "r2"].map(|run| {
        Recorder::start(dir.path(), session(), info(run), OnRecordFailure::Stop).unwrap()
    });
    for _ in 0..50 {
        for recorder in &recorders {
            recorder.sink().record(event(Op::Write, "/w/a"));
            recorder.flush().unwrap();
        }
    }
    for recorder in recorders {
        assert_eq!(recorder.finish(RunOutcome::exited(0)).unwrap().recording.error, None);
    }
    assert_eq!(count(dir.path(), "event"), 100);
    let store = Store::open_read_only(dir.path()).unwrap();
    assert_eq!(store.verify(None).unwrap().problem, None);
    assert_eq!(store.runs().unwrap().len(), 2);
    for run in ["r1", "r2"] {
        let filter = Filter { run: Some(RunId(run.into())), ..Filter::default() };
        assert_eq!(store.events(&filter).unwrap().len(), 50);
    }
    assert_eq!(count(dir.path(), "path"), 2, "both use one row a path");
}

#[test]
fn a_log_that_cannot_be_made_stops_the_run_and_the_result_is_right_still() {
    let dir = tempfile::tempdir().unwrap();
    let taken = dir.path().join("s1");
    fs::write(&taken, "not a directory").unwrap();
    let recorder = Recorder::start(&taken, session(), info("r1"), OnRecordFailure::Stop).unwrap();
    recorder.sink().record(denied("/w/.env", 1));
    assert!(matches!(recorder.flush(), Err(Error::Recording(_))));
    let deadline = Instant::now() + Duration::from_secs(10);
    while recorder.failed().is_none() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(recorder.failed().unwrap().stop);
    let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
    assert_eq!((summary.denial_count, summary.recording.lost), (1, 1));
    assert!(summary.recording.error.is_some());
}

#[test]
fn events_lost_while_writing_failed_leave_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let taken = dir.path().join("s1");
    fs::write(&taken, "not a directory").unwrap();
    let recorder =
        Recorder::start(&taken, session(), info("r1"), OnRecordFailure::GapRecord).unwrap();
    let sink = recorder.sink();
    let all = PENDING + QUEUE;
    for _ in 0..all {
        sink.record(event(Op::Read, "/w/a"));
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while recorder.failed().is_none_or(|failure| failure.lost == 0) {
        assert!(Instant::now() < deadline, "{recorder:?}");
        sink.record(event(Op::Read, "/w/a"));
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!recorder.failed().unwrap().stop);
    fs::remove_file(&taken).unwrap();
    while recorder.flush().is_err() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(20));
    }
    sink.record(event(Op::Read, "/w/a"));
    let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
    let lost = summary.recording.lost;
    assert!(lost > 0);
    assert_eq!(count(&taken, "event"), summary.events - lost + 1, "and one gap");
    let store = Store::open_read_only(&taken).unwrap();
    let gaps: i64 = store
        .conn
        .query_row("SELECT sum(count) FROM events WHERE op = 'gap'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(gaps.cast_unsigned(), lost);
}

#[test]
fn a_newer_format_and_another_sessions_log_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let start = |session: &str, run: &str| {
        Recorder::start(dir.path(), SessionId(session.into()), info(run), OnRecordFailure::Stop)
            .unwrap()
    };
    let recorder = start("s1", "r1");
    recorder.finish(RunOutcome::exited(0)).unwrap();
    let other = start("s2", "r2").finish(RunOutcome::exited(0)).unwrap();
    assert!(other.recording.error.unwrap().contains("session `s1`"));
    let store = Store::create_or_open(dir.path()).unwrap();
    store.conn.pragma_update(None, "user_version", FORMAT + 100).unwrap();
    drop(store);
    let newer = start("s1", "r3").finish(RunOutcome::exited(0)).unwrap();
    assert!(newer.recording.error.unwrap().contains("format 2.2"));
    assert!(matches!(Store::open_read_only(dir.path()), Err(Error::Newer { .. })));
}

#[test]
fn a_recorder_that_died_leaves_an_interrupted_run() {
    let dir = tempfile::tempdir().unwrap();
    let recorder =
        Recorder::start(dir.path(), session(), info("r1"), OnRecordFailure::Stop).unwrap();
    recorder.sink().record(event(Op::Read, "/w/a"));
    recorder.flush().unwrap();
    // While it lives, another opener leaves it alone.
    let second = Recorder::start(dir.path(), session(), info("r2"), OnRecordFailure::Stop).unwrap();
    second.finish(RunOutcome::exited(0)).unwrap();
    assert_eq!(count(dir.path(), "run_end"), 1);
    drop(recorder);
    let third = Recorder::start(dir.path(), session(), info("r3"), OnRecordFailure::Stop).unwrap();
    third.finish(RunOutcome::exited(0)).unwrap();
    let store = Store::open_read_only(dir.path()).unwrap();
    let (outcome, at_most): (String, i64) = store
        .conn
        .query_row(
            "SELECT outcome, at_most FROM run_end e JOIN run r ON r.id = e.run WHERE r.name = 'r1'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!((outcome.as_str(), at_most > 0), ("interrupted", true));
}

#[test]
fn counts_are_those_of_what_they_count_also_in_a_log_of_before() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("sessions/s1");
    let recorder = Recorder::start(&dir, session(), info("r1"), OnRecordFailure::Stop).unwrap();
    let sink = recorder.sink();
    let by = |exe: &str, event: Event| Event {
        process: Arc::new(Process { pid: 8, exe: exe.into(), ..Process::default() }),
        ..event
    };
    for round in 0..3 {
        for file in 0..20 {
            sink.record(event(Op::Read, &format!("/w/{file}")));
            if file % (round + 2) == 0 {
                sink.record(by("/bin/cc", event(Op::Write, &format!("/w/{file}"))));
                sink.record(event(Op::Chmod, &format!("/w/{file}")));
            }
        }
        sink.record(Event {
            path2: Some(format!("/w/moved-{round}").into()),
            ..by("/bin/mv", event(Op::Rename, &format!("/w/{round}")))
        });
        recorder.flush().unwrap();
    }
    recorder.finish(RunOutcome::exited(0)).unwrap();
    let run = RunId("r1".into());
    let counted = |store: &Store| {
        let mut all = store.touch_counts(&run).unwrap();
        all.sort_by(|a, b| (&a.0, a.1.bits()).cmp(&(&b.0, b.1.bits())));
        all
    };
    let by_program = |store: &Store| {
        let filter = Filter { exes: vec!["cc".to_owned()], ..Filter::default() };
        store.events(&filter).unwrap().len()
    };
    let store = Store::create_or_open(&dir).unwrap();
    let (counts, events) = (counted(&store), by_program(&store));
    assert!(counts.len() > 4 && events > 20, "{counts:?} {events}");
    // As format 1.1 had it: counted when it is asked for, and entered when it is brought up to date.
    let older = "DROP TABLE touch_count; DROP TABLE exe_block; PRAGMA user_version = 101;";
    store.conn.execute_batch(older).unwrap();
    drop(store);
    let read = Store::open_read_only(&dir).unwrap();
    assert_eq!((counted(&read), by_program(&read)), (counts.clone(), events));
    drop(read);
    let store = Store::create_or_open(&dir).unwrap();
    assert_eq!((counted(&store), by_program(&store)), (counts, events));
    let blocks: i64 =
        store.conn.query_row("SELECT count(*) FROM exe_block", [], |row| row.get(0)).unwrap();
    assert_eq!(blocks, 3);
    assert!(store.verify(None).unwrap().is_sound());
}
