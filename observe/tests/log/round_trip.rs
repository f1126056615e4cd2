//! STYLE 7: every variant survives the store and the export.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use stockade_observe::{
    Event, Filter, Key, Op, Outcome, Process, Publication, RunId, Store, Stored, Time, Version,
    from_json, to_json,
};
use stockade_policy::{Denial, Rule};

use crate::{record, session};

fn name() -> impl Strategy<Value = PathBuf> {
    prop_oneof![
        "/[a-z ./]{0,20}".prop_map(PathBuf::from),
        "/[\u{0}-\u{10ffff}]{0,8}".prop_map(PathBuf::from),
        vec(any::<u8>(), 0..30).prop_map(|bytes| OsString::from_vec(bytes).into()),
    ]
}

/// Times that RFC 3339 can carry and that are near what machines have, and the edges.
fn nanos() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), 1_500_000_000_000_000_000..2_000_000_000_000_000_000_i64, Just(0)]
}

prop_compose! {
    fn version()(size in any::<u64>(), mtime in nanos(), ctime in nanos()) -> Version {
        Version { size, mtime, ctime }
    }
}

prop_compose! {
    fn who()(
        pid in any::<u32>(), start_time in any::<u64>(), ppid in any::<u32>(), exe in name(),
        comm in vec(any::<u8>(), 0..16), cmdline in vec(any::<u8>(), 0..40), uid in any::<u32>(),
    ) -> Process {
        Process { pid, start_time, ppid, exe, comm, cmdline, uid }
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Ok),
        any::<i32>().prop_map(|errno| Outcome::Error { errno }),
        (prop::sample::select(Rule::ALL.to_vec()), ".{0,20}", any::<i32>()).prop_map(
            |(rule, source, errno)| Outcome::Denied {
                denial: Arc::new(Denial::new(rule, source)),
                errno
            }
        ),
    ]
}

prop_compose! {
    fn key()(dev in any::<u64>(), ino in any::<u64>(), generation in any::<u64>()) -> Key {
        Key { dev, ino, generation }
    }
}

fn any_event(processes: Vec<Process>) -> impl Strategy<Value = Event> {
    let processes: Vec<_> = processes.into_iter().map(Arc::new).collect();
    (
        (nanos(), prop::sample::select(processes), prop::sample::select(Op::ALL.to_vec())),
        (name(), option::of(name()), option::of(key()), outcome()),
        (option::of(any::<u64>()), option::of(any::<u64>())),
        (option::of(version()), option::of(version()), any::<bool>()),
        (
            option::of(prop::sample::select(vec![Publication::Atomic, Publication::InPlace])),
            any::<u64>(),
            option::of(name()),
        ),
    )
        .prop_map(
            |(
                (time, process, op),
                (path, path2, key, outcome),
                (bytes_read, bytes_written),
                (version_before, version_after, same),
                (publication, count, noted),
            )| Event {
                noted: noted
                    .filter(|_| !matches!(outcome, Outcome::Denied { .. }))
                    .map(|name| Arc::new(Denial::new(Rule::StaleVersion, name.to_string_lossy()))),
                time: Time(time),
                process,
                op,
                path,
                path2,
                key,
                outcome,
                bytes_read,
                bytes_written,
                version_before,
                version_after: if same { version_before } else { version_after },
                publication,
                count,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_event_comes_back_from_the_store_as_it_went_in(
        events in vec(who(), 1..5).prop_flat_map(|who| vec(any_event(who), 1..60)),
    ) {
        let dir = tempfile::tempdir().unwrap();
        record(dir.path(), "r1", events.clone());
        let store = Store::open_read_only(dir.path()).unwrap();
        let stored = store.events(&Filter::default()).unwrap();
        let expected: Vec<_> = (1..)
            .zip(events)
            .map(|(seq, event)| Stored { seq, run: RunId("r1".into()), event })
            .collect();
        prop_assert_eq!(stored, expected);
        prop_assert_eq!(store.verify(None).unwrap().problem, None);
        // The views hold for whatever is in the tables.
        let mut store = store;
        let mut rows = 0;
        store.sql("SELECT * FROM events, runs", |_| (), |_| { rows += 1; std::ops::ControlFlow::Continue(()) }).unwrap();
        prop_assert_eq!(rows, store.events(&Filter::default()).unwrap().len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_event_comes_back_from_json_as_it_went_in(
        event in who().prop_flat_map(|who| any_event(vec![who])),
        seq in 1..i64::MAX,
    ) {
        let stored = Stored { seq, run: RunId("r1".into()), event };
        let line = to_json(&session(), &stored);
        prop_assert!(!line.contains('\n'));
        let (whose, mut back) = from_json(&line).unwrap();
        prop_assert_eq!(whose, session());
        // The one thing that a line leaves out.
        let cmdline = stored.event.process.cmdline.clone();
        back.event.process = Arc::new(Process { cmdline, ..(*back.event.process).clone() });
        prop_assert_eq!(back, stored);
    }
}

#[test]
fn the_fields_of_a_line_are_the_contracts() {
    let event = crate::denied(&crate::process(7, "/bin/sh"), Op::Read, "/w/.env");
    let stored = Stored { seq: 3, run: RunId("r1".into()), event };
    let line: serde_json::Value = serde_json::from_str(&to_json(&session(), &stored)).unwrap();
    let fields: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
    for field in [
        "v",
        "seq",
        "time",
        "session",
        "run",
        "pid",
        "start_time",
        "exe",
        "comm",
        "uid",
        "op",
        "path",
        "key",
        "outcome",
        "errno",
        "rule",
        "bytes_read",
        "bytes_written",
        "version_before",
        "version_after",
        "publication",
        "count",
    ] {
        assert!(fields.contains(&field), "{field} is missing in {line}");
    }
    assert_eq!(line["v"], 1);
    assert_eq!(line["outcome"], "denied");
    assert_eq!(line["rule"], "read-denied");
    assert!(line["bytes_read"].is_null());
    let time = line["time"].as_str().unwrap();
    assert_eq!((time.len(), &time[19..20], &time[29..]), (30, ".", "Z"), "{time}");
}

#[test]
fn a_name_that_is_not_utf8_is_lossy_with_the_bytes_beside_it() {
    let mut event = crate::event(&crate::process(7, "/bin/sh"), Op::Create, "/w/a");
    event.path = OsString::from_vec(b"/w/\xff".to_vec()).into();
    let stored = Stored { seq: 3, run: RunId("r1".into()), event };
    let line: serde_json::Value = serde_json::from_str(&to_json(&session(), &stored)).unwrap();
    assert_eq!((&line["path"], &line["path_b64"]), (&"/w/\u{fffd}".into(), &"L3cv/w==".into()));
}
