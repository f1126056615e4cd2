//! Contract P7: a session is its events, whoever appends them and however that ends.

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use stockade_observe::{
    Error, RunClaim, Store, create_session, find_session, remove_session, session_dirs,
};
use stockade_policy::{Mode, SessionEvent, SessionState};

use crate::kill::number;
use crate::{record, recorder};

fn created(id: &str, name: Option<&str>) -> SessionEvent {
    SessionEvent::Created {
        id: id.to_owned(),
        name: name.map(str::to_owned),
        root: stockade_policy::text::Bytes::new(b"/w/\xff".to_vec()),
    }
}

fn switch(store: &Store) -> SessionState {
    store
        .append_session(|state| {
            let next = match state.mode() {
                Some(Mode::ReadOnly) => Mode::WorkspaceWrite,
                Some(Mode::WorkspaceWrite | Mode::DangerFullAccess) | None => Mode::ReadOnly,
            };
            Ok::<_, Error>(vec![SessionEvent::mode(next)])
        })
        .unwrap()
}

#[test]
fn a_session_is_made_found_resumed_and_removed() {
    let state = tempfile::tempdir().unwrap();
    let state = state.path();
    let (one, _) = create_session(state, &[created("s1", Some("work"))]).unwrap();
    create_session(state, &[created("s2", None)]).unwrap();
    for (id, name) in [("s1", None), ("s3", Some("work")), ("work", None), ("s3", Some("s2"))] {
        let again = create_session(state, &[created(id, name)]);
        assert!(matches!(again, Err(Error::SessionExists(_))), "{id} {name:?}");
    }
    for bad in ["", "..", "a/b", ".x"] {
        assert!(matches!(create_session(state, &[created(bad, None)]), Err(Error::BadId(_))));
    }
    assert_eq!(session_dirs(state).unwrap().len(), 2);
    assert_eq!(find_session(state, "work").unwrap().id, one.id);
    assert!(matches!(find_session(state, "nope"), Err(Error::NoSession(_))));
    let store = Store::create_or_open(&one.dir).unwrap();
    assert_eq!(switch(&store).mode(), Some(Mode::ReadOnly));
    assert_eq!(switch(&store).mode(), Some(Mode::WorkspaceWrite));
    let reader = Store::open_read_only(&one.dir).unwrap();
    assert_eq!(reader.session_state(None).unwrap().mode(), Some(Mode::WorkspaceWrite));
    assert_eq!(reader.session_state(Some(2)).unwrap().mode(), Some(Mode::ReadOnly));
    assert_eq!(reader.session_state(Some(1)).unwrap().mode(), None);
    assert_eq!(reader.verify(None).unwrap().problem, None);
    // The log and the session share the directory.
    record(&one.dir, "r1", []);
    let live = recorder(&one.dir, "r2");
    live.flush().unwrap();
    assert!(matches!(remove_session(state, &one), Err(Error::Busy { .. })));
    live.finish(stockade_observe::RunOutcome::exited(0)).unwrap();
    remove_session(state, &one).unwrap();
    assert!(matches!(find_session(state, "s1"), Err(Error::NoSession(_))));
    assert!(!one.dir.exists());
}

#[test]
fn what_cannot_follow_is_refused_and_leaves_nothing() {
    let state = tempfile::tempdir().unwrap();
    let (one, _) = create_session(state.path(), &[created("s1", None)]).unwrap();
    let store = Store::create_or_open(&one.dir).unwrap();
    let twice = store.append_session(|_| {
        Ok::<_, Error>(vec![SessionEvent::mode(Mode::ReadOnly), created("s1", None)])
    });
    assert!(matches!(twice, Err(Error::Session(_))));
    assert!(store.append_session(|_| Err::<Vec<_>, _>(Error::Stopped)).is_err());
    assert_eq!(store.session_events().unwrap().len(), 1);
    assert!(create_session(state.path(), &[created("s2", None), created("s2", None)]).is_err());
    assert!(!state.path().join("sessions/s2").exists());
}

#[test]
fn several_processes_at_once_each_follow_the_one_before() {
    let state = tempfile::tempdir().unwrap();
    let (one, _) = create_session(state.path(), &[created("s1", None)]).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Its own connection, as another process would have.
                let store = Store::create_or_open(&one.dir).unwrap();
                for _ in 0..25 {
                    switch(&store);
                }
            });
        }
    });
    let store = Store::open_read_only(&one.dir).unwrap();
    let modes: Vec<_> =
        store.session_events().unwrap().into_iter().skip(1).map(|stored| stored.event).collect();
    assert_eq!(modes.len(), 100);
    for (at, event) in modes.iter().enumerate() {
        let expected = if at % 2 == 0 { Mode::ReadOnly } else { Mode::WorkspaceWrite };
        assert_eq!(*event, SessionEvent::mode(expected), "event {at} didn't see the one before");
    }
}

fn started(run: &str, terminal: bool) -> SessionEvent {
    SessionEvent::Started {
        run: run.to_owned(),
        mode: Mode::WorkspaceWrite,
        source: stockade_policy::ModeSource::Default,
        request: None,
        argv: Vec::new(),
        terminal,
    }
}

/// L7, I1: a terminal locks the mode while somebody holds its claim, and no longer.
#[test]
fn a_terminal_that_died_does_not_lock_its_session() {
    let state = tempfile::tempdir().unwrap();
    let (one, _) = create_session(state.path(), &[created("s1", None)]).unwrap();
    let store = Store::create_or_open(&one.dir).unwrap();
    let claim = RunClaim::take(&one.dir, "r1").unwrap();
    assert!(RunClaim::take(&one.dir, "r1").is_err());
    store.append_session(|_| Ok::<_, Error>(vec![started("r1", true)])).unwrap();
    let other = Store::create_or_open(&one.dir).unwrap();
    let change =
        || other.append_session(|_| Ok::<_, Error>(vec![SessionEvent::mode(Mode::ReadOnly)]));
    let busy = change().unwrap_err();
    assert!(busy.chain().contains("r1"), "{busy}");
    assert!(matches!(remove_session(state.path(), &one), Err(Error::Busy { .. })));
    drop(claim);
    let after = change().unwrap();
    assert_eq!((after.mode(), after.active().len()), (Some(Mode::ReadOnly), 0));
    let events = other.session_events().unwrap();
    let end = &events[2].event;
    assert!(
        matches!(end, SessionEvent::Finished { run, outcome, .. } if run == "r1" && outcome == "interrupted"),
        "{end:?}"
    );
    assert!(!one.dir.join("claims/r1").exists());
}

/// I2: a name that a crash left behind is free again, and never leads to another session.
#[test]
fn a_name_is_its_sessions_own() {
    let state = tempfile::tempdir().unwrap();
    let names = state.path().join("sessions/.names");
    std::fs::create_dir_all(&names).unwrap();
    std::fs::write(names.join("work"), "gone").unwrap();
    assert!(matches!(find_session(state.path(), "work"), Err(Error::NoSession(_))));
    let (one, _) = create_session(state.path(), &[created("s1", Some("work"))]).unwrap();
    std::fs::write(names.join("other"), "s1").unwrap();
    assert!(matches!(find_session(state.path(), "other"), Err(Error::NoSession(_))));
    assert_eq!(find_session(state.path(), "work").unwrap().id, one.id);
    remove_session(state.path(), &one).unwrap();
    create_session(state.path(), &[created("s2", Some("work"))]).unwrap();
    for bad in ["../s2", "s2/", "", ".names"] {
        assert!(matches!(find_session(state.path(), bad), Err(Error::NoSession(_))), "{bad}");
    }
}

const DIR: &str = "STOCKADE_TEST_SESSION_DIR";

#[test]
#[ignore = "runs as the child of the other tests of this file"]
fn child_that_appends() {
    let Ok(dir) = env::var(DIR) else { return };
    let store = Store::create_or_open(&Path::new(&dir).join("sessions/s1")).unwrap();
    let acknowledged = File::create(Path::new(&dir).join("acknowledged")).unwrap();
    let before = store.session_state(None).unwrap().events();
    println!("appending");
    for at in before + 1.. {
        switch(&store);
        acknowledged.write_all_at(&at.to_le_bytes(), 0).unwrap();
    }
}

fn kill_at_random_points(rounds: u64) {
    let dir = tempfile::tempdir().unwrap();
    let (one, _) = create_session(dir.path(), &[created("s1", None)]).unwrap();
    for round in 0..rounds {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "sessions::child_that_appends", "--ignored", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("appending")));
        thread::sleep(Duration::from_micros(round * 7919 % 30_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = number(&dir.path().join("acknowledged"));
        let store = Store::open_read_only(&one.dir).unwrap();
        let events = store.session_state(None).unwrap().events();
        assert!(
            (acknowledged..=acknowledged + 1).contains(&events) || acknowledged == 0,
            "round {round}: {events} events, {acknowledged} acknowledged"
        );
        assert_eq!(store.verify(None).unwrap().problem, None);
    }
}

#[test]
fn kill_9_keeps_what_was_acknowledged() {
    kill_at_random_points(20);
}

#[test]
#[ignore = "takes minutes"]
fn kill_9_a_thousand_times_keeps_what_was_acknowledged() {
    kill_at_random_points(1000);
}
