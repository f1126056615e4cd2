//! Contract O4: readable while being written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stockade_observe::{Filter, Op, RunId, RunOutcome, Store};

use crate::{denied, event, process, recorder};

#[test]
fn readers_see_a_growing_log_without_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path(), "r1");
    let sink = recorder.sink();
    sink.record(event(&process(7, "/bin/sh"), Op::Read, "/w/a"));
    recorder.flush().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let store = Store::open_read_only(dir.path()).unwrap();
                    let (mut rounds, mut most) = (0, 0);
                    while !done.load(Ordering::Relaxed) {
                        let seqs: Vec<_> = store
                            .events(&Filter::default())
                            .unwrap()
                            .iter()
                            .map(|stored| stored.seq)
                            .collect();
                        assert!((1..).zip(&seqs).all(|(at, seq)| at == *seq), "a hole");
                        assert!(seqs.len() >= most, "the log shrank");
                        assert_eq!(store.verify(None).unwrap().problem, None);
                        most = seqs.len();
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let sh = process(7, "/bin/sh");
        for at in 0..6000 {
            sink.record(event(&sh, Op::Write, &format!("/w/{at}")));
            if at % 100 == 0 {
                thread::sleep(Duration::from_millis(5));
            }
        }
        recorder.flush().unwrap();
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 1, "nothing was read meanwhile");
        }
    });
    assert_eq!(recorder.finish(RunOutcome::exited(0)).unwrap().events, 6001);
}

#[test]
fn a_follower_gets_each_event_once_and_soon() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path(), "r1");
    let sink = recorder.sink();
    let sh = process(7, "/bin/sh");
    sink.record(event(&sh, Op::Read, "/w/before"));
    recorder.flush().unwrap();
    let store = Store::open_read_only(dir.path()).unwrap();
    let filter = Filter { run: Some(RunId("r1".into())), denied: true, ..Filter::default() };
    let mut follow = store.follow(filter, store.last_seq().unwrap());
    assert!(follow.wait(Duration::from_millis(100)).unwrap().is_empty());
    let mut got = Vec::new();
    let begun = Instant::now();
    for at in 0..20 {
        sink.record(event(&sh, Op::Read, "/w/other"));
        sink.record(denied(&sh, Op::Read, &format!("/w/{at}/.env")));
        got.extend(follow.wait(Duration::from_secs(10)).unwrap());
    }
    while got.len() < 20 && begun.elapsed() < Duration::from_secs(20) {
        got.extend(follow.wait(Duration::from_secs(1)).unwrap());
    }
    let paths: Vec<_> = got.iter().map(|stored| stored.event.path.display().to_string()).collect();
    let expected: Vec<_> = (0..20).map(|at| format!("/w/{at}/.env")).collect();
    assert_eq!(paths, expected);
    recorder.finish(RunOutcome::exited(0)).unwrap();
}
