//! Whatever index answers a filter, the answer is the one that reading everything gives.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use stockade_observe::{
    Event, Filter, Op, Outcome, Process, RunId, SqlValue, Store, Stored, Time, globs, is_change,
};

use crate::{denied, event, process, record, session};

const DIRS: [&str; 4] = ["/w/src", "/w/src/deep", "/w/target", "/tmp"];
const EXES: [&str; 3] = ["/bin/sh", "/usr/bin/cc", "/usr/lib/cc1"];

/// Some runs of some thousand events, so that several blocks are there.
fn big_log(dir: &Path) -> Vec<Stored> {
    let who: Vec<Arc<Process>> =
        (0..30).map(|at| process(100 + at, EXES[at as usize % EXES.len()])).collect();
    let mut all = Vec::new();
    let mut seed = 12345_u64;
    for run in ["r1", "r2", "r3"] {
        let events: Vec<Event> = (0..5000_u32)
            .map(|at| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let pick = usize::try_from(seed >> 40).unwrap();
                // Processes come and go, as they do.
                let who = &who[(at as usize / 600 * 3 + pick % 3) % who.len()];
                let path = format!("{}/{}.rs", DIRS[pick % DIRS.len()], pick / 7 % 300);
                let mut event = match pick % 40 {
                    0 => denied(who, Op::Write, &path),
                    1 => event(who, Op::Create, &path),
                    2 => event(who, Op::Rename, &path),
                    3 => event(who, Op::Write, &path),
                    4 => Event {
                        outcome: Outcome::Error { errno: 2 },
                        ..event(who, Op::Read, &path)
                    },
                    _ => event(who, Op::Read, &path),
                };
                if event.op == Op::Rename {
                    event.path2 = Some(format!("/w/moved/{}", pick % 50).into());
                }
                event.time = Time(1_700_000_000_000_000_000 + i64::from(at));
                event
            })
            .collect();
        record(dir, run, events.clone());
        let first = i64::try_from(all.len()).unwrap() + 1;
        all.extend((first..).zip(events).map(|(seq, event)| Stored {
            seq,
            run: RunId(run.into()),
            event,
        }));
    }
    all
}

fn naive(all: &[Stored], filter: &Filter) -> Vec<i64> {
    let (paths, exes) = (globs(&filter.paths).unwrap(), globs(&filter.exes).unwrap());
    let mut found: Vec<i64> = all
        .iter()
        .filter(|stored| {
            let event = &stored.event;
            filter.run.as_ref().is_none_or(|run| *run == stored.run)
                && (filter.paths.is_empty()
                    || paths.is_match(&event.path)
                    || event.path2.as_ref().is_some_and(|path| paths.is_match(path)))
                && (filter.ops.is_empty() || filter.ops.contains(&event.op))
                && (filter.exes.is_empty() || exes.is_match(&event.process.exe))
                && filter.pid.is_none_or(|pid| pid == event.process.pid)
                && (!filter.denied || matches!(event.outcome, Outcome::Denied { .. }))
                && (!filter.changed || is_change(event))
                && filter.since.is_none_or(|since| event.time >= since)
                && filter.after.is_none_or(|after| stored.seq > after)
        })
        .map(|stored| stored.seq)
        .collect();
    if let Some(last) = filter.last {
        found.drain(..found.len().saturating_sub(usize::try_from(last).unwrap()));
    }
    found
}

fn any_filter() -> impl Strategy<Value = Filter> {
    use prop::sample::select;
    (
        prop::option::of(select(vec!["r1", "r2", "r3"])),
        prop::collection::vec(
            select(vec![
                "/w/src/**",
                "/w/src/*",
                "*.rs",
                "17.rs",
                "/w/target/4?.rs",
                "/w/moved/7",
                "/none",
                "**",
            ]),
            0..3,
        ),
        prop::collection::vec(select(vec![Op::Read, Op::Write, Op::Rename, Op::Mkdir]), 0..3),
        prop::collection::vec(select(vec!["cc*", "/bin/sh", "sh", "/usr/**", "nope"]), 0..2),
        (prop::option::weighted(0.2, 100..131_u32), any::<bool>(), any::<bool>()),
        prop::option::weighted(0.3, 0..6000_i64),
        (prop::option::weighted(0.3, 0..16_000_i64), prop::option::weighted(0.3, 0..200_u64)),
    )
        .prop_map(|(run, paths, ops, exes, (pid, denied, changed), since, (after, last))| {
            Filter {
                run: run.map(|run| RunId(run.into())),
                paths: paths.into_iter().map(str::to_owned).collect(),
                ops,
                exes: exes.into_iter().map(str::to_owned).collect(),
                pid,
                denied,
                changed,
                since: since.map(|since| Time(1_700_000_000_000_000_000 + since)),
                after,
                last,
            }
        })
}

#[test]
fn every_filter_gives_what_reading_everything_gives() {
    let dir = tempfile::tempdir().unwrap();
    let all = big_log(dir.path());
    let store = Store::open_read_only(dir.path()).unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let mut answers = 0;
    runner
        .run(&any_filter(), |filter| {
            let expected = naive(&all, &filter);
            let found = store.events(&filter).unwrap();
            let seqs: Vec<_> = found.iter().map(|stored| stored.seq).collect();
            prop_assert_eq!(&seqs, &expected, "{:?}", filter);
            for stored in &found {
                prop_assert_eq!(stored, &all[usize::try_from(stored.seq).unwrap() - 1]);
            }
            Ok(())
        })
        .unwrap();
    answers += store.events(&Filter::default()).unwrap().len();
    assert_eq!(answers, 15_000);
}

#[test]
fn an_unknown_run_and_a_broken_glob_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), "r1", [event(&process(7, "/bin/sh"), Op::Read, "/w/a")]);
    let store = Store::open_read_only(dir.path()).unwrap();
    let run = Filter { run: Some(RunId("nope".into())), ..Filter::default() };
    assert!(store.events(&run).unwrap_err().to_string().contains("`nope`"));
    let glob = Filter { paths: vec!["/a[".into()], ..Filter::default() };
    assert!(store.events(&glob).is_err());
}

#[test]
fn sql_reads_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), "r1", [event(&process(7, "/bin/sh"), Op::Read, "/w/a")]);
    let mut store = Store::open_read_only(dir.path()).unwrap();
    let mut names = Vec::new();
    let mut rows = Vec::new();
    let go = std::ops::ControlFlow::Continue(());
    store
        .sql(
            "SELECT op, path, exe, pid, outcome FROM events",
            |columns| names = columns,
            |row| {
                rows.push(row);
                go
            },
        )
        .unwrap();
    assert_eq!(names, ["op", "path", "exe", "pid", "outcome"]);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0][1], SqlValue::Text(b"/w/a".to_vec()));
    let other = dir.path().join("other.db");
    for bad in [
        "DELETE FROM event".to_owned(),
        "INSERT INTO meta VALUES ('a', 1)".to_owned(),
        "CREATE TEMP TABLE t (a)".to_owned(),
        "PRAGMA user_version = 7".to_owned(),
        "PRAGMA query_only = 0".to_owned(),
        format!("ATTACH '{}' AS o", other.display()),
        format!("VACUUM INTO '{}'", other.display()),
        "SELECT 1; DELETE FROM event".to_owned(),
    ] {
        assert!(store.sql(&bad, |_| (), |_| go).is_err(), "{bad}");
    }
    assert!(!other.exists());
    // Ordinary questions work again afterwards.
    assert_eq!(
        store.events(&Filter { paths: vec!["/w/a".into()], ..Filter::default() }).unwrap().len(),
        1
    );
    assert_eq!(store.session().unwrap(), Some(session()));
}
