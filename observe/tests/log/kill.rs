//! Killing the recorder at any moment: the log opens, the chain holds, and the loss stays within what is said.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stockade_observe::{Ending, Op, Recorder, RunOutcome, Store};

use crate::{event, process, recorder};

const DIR: &str = "STOCKADE_TEST_KILL_DIR";
const RUN: &str = "STOCKADE_TEST_KILL_RUN";

/// The process that is killed: records as fast as it can, says how far it got and what is certain to be kept.
#[test]
#[ignore = "runs as the child of the other tests of this file"]
fn child_that_records() {
    let Ok(dir) = env::var(DIR) else { return };
    let run = env::var(RUN).unwrap();
    let dir = Path::new(&dir);
    let recorder: Recorder = recorder(&dir.join("s"), &run);
    let sink = recorder.sink();
    let sent = File::create(dir.join("sent")).unwrap();
    let kept = File::create(dir.join("kept")).unwrap();
    let sh = process(7, "/bin/sh");
    println!("recording");
    for at in 1_u64.. {
        sent.write_all_at(&at.to_le_bytes(), 0).unwrap();
        sink.record(event(&sh, Op::Write, &format!("/w/{}", at % 5000)));
        if at % 3000 == 0 {
            recorder.flush().unwrap();
            kept.write_all_at(&at.to_le_bytes(), 0).unwrap();
        }
        if at % 100 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

pub(crate) fn number(file: &Path) -> u64 {
    fs::read(file).unwrap().try_into().map_or(0, u64::from_le_bytes)
}

fn kill_at_random_points(rounds: u64) {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("s");
    let mut before = 0;
    let (mut lost_most, mut lost_some) = (0, 0);
    for round in 0..rounds {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "kill::child_that_records", "--ignored", "--nocapture"])
            .env(DIR, dir.path())
            .env(RUN, format!("r{round}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("recording")));
        // Spread over the first moments, where the log is being opened, and over batches and flushes, however slow the
        // machine is.
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_micros(round * 7919 % 120_000));
        } else {
            let enough = round * 7919 % 15_000;
            let start = Instant::now();
            while number(&dir.path().join("sent")) < enough {
                assert!(start.elapsed() < Duration::from_secs(60), "it records too slowly");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let (sent, kept) = (number(&dir.path().join("sent")), number(&dir.path().join("kept")));
        // The child can die before the log is there; then there's nothing to look at.
        let Ok(store) = Store::open_read_only(&session) else {
            assert_eq!((before, kept), (0, 0), "the log is lost");
            continue;
        };
        let report = store.verify(None).unwrap();
        assert_eq!(report.problem, None, "round {round}");
        let stored = u64::try_from(report.events).unwrap() - before;
        assert!(stored >= kept, "round {round}: {stored} events of {kept} that were flushed");
        assert!(stored <= sent, "round {round}: {stored} events of {sent}");
        // The next opener closes the run and bounds the loss.
        Store::settle(&session).unwrap();
        let store = Store::open_read_only(&session).unwrap();
        if let Some(last) =
            store.last_run().unwrap().filter(|last| *last.info.id.0 == *format!("r{round}"))
        {
            let end = last.end.expect("the run is closed");
            assert_eq!(end.outcome.ending, Ending::Interrupted, "round {round}");
            assert!(sent - stored <= end.at_most + 1, "round {round}: {} lost", sent - stored);
        } else {
            assert_eq!((stored, kept), (0, 0), "round {round}: events without a run");
        }
        lost_most = lost_most.max(sent - stored);
        lost_some += u64::from(sent > stored);
        before += stored;
    }
    let store = Store::open_read_only(&session).unwrap();
    assert_eq!(store.verify(None).unwrap().problem, None);
    println!(
        "{rounds} kills, {before} events kept, {lost_some} kills lost some, {lost_most} at most"
    );
    assert!(before > 0, "no kill met a log that held something: the test proves nothing");
    assert!(lost_some > 0, "no kill met an event that wasn't written yet: the test proves nothing");
    // The log goes on.
    let recorder = recorder(&session, "after");
    recorder.sink().record(event(&process(7, "/bin/sh"), Op::Read, "/w/a"));
    let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
    assert_eq!(summary.recording.error, None);
    assert_eq!(store.verify(summary.head.as_deref()).unwrap().problem, None);
}

#[test]
fn kill_9_loses_at_most_the_unflushed_tail() {
    kill_at_random_points(24);
}

#[test]
#[ignore = "takes minutes"]
fn kill_9_at_500_points() {
    kill_at_random_points(500);
}
