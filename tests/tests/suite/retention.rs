//! `stockade log prune`, and the configuration that does it by itself: old logs go, and nothing else.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use stockade_tests::{World, as_root_and_user};

use crate::config::configure;

fn directory(world: &World, session: &str) -> PathBuf {
    world.state().join("stockade/sessions").join(session)
}

/// Makes a session's log look as if it was last written so many days ago.
fn aged(world: &World, session: &str, days: u64) {
    let then = SystemTime::now() - Duration::from_secs(days * 86_400);
    for name in ["log.db", "log.head"] {
        let file = File::options().append(true).open(directory(world, session).join(name));
        file.unwrap().set_modified(then).unwrap();
    }
}

fn lone_run(world: &World) -> String {
    let (output, result) = world.run_with_result(&["-q"], &["sh", "-c", "echo x > made"]);
    output.assert_success();
    result["session"].as_str().unwrap().to_owned()
}

fn run_in(world: &World, session: &str) {
    world
        .run(&["-q", "--session", session])
        .args(["sh", "-c", "echo x > made; cat made"])
        .run()
        .assert_success();
}

fn sessions(world: &World) -> Vec<String> {
    let output = world.stockade().args(["session", "list", "--json"]).run();
    output.assert_success();
    let lines = output.stdout();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| line["session"].as_str().unwrap_or_default().to_owned()).collect()
}

fn prune(world: &World, options: &[&str]) -> Value {
    let output = world.stockade().args(["log", "prune", "--json"]).args(options).run();
    output.assert_success();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn pruned(report: &Value) -> Vec<(String, bool)> {
    let all = report["pruned"].as_array().unwrap().iter();
    all.map(|one| (one["session"].as_str().unwrap().to_owned(), one["removed"].as_bool().unwrap()))
        .collect()
}

as_root_and_user! {
    /// By age: lone runs go with their sessions, a named one stays with its events and its mode, verifies, and goes on; what runs isn't touched.
    fn what_is_old_goes_and_sessions_stay(world) {
        let old = lone_run(world);
        let new = lone_run(world);
        let output = world.stockade().args(["session", "new", "--name", "mine", "--mode", "workspace-write"]).run();
        let named = output.assert_success().stdout().trim().to_owned();
        run_in(world, "mine");
        run_in(world, "mine");
        let mut live = world.run(&["-q"]).args(["sh", "-c", "echo > here; sleep 100"]).spawn();
        live.wait_until("it runs", || world.workspace().join("here").exists());
        let is_live = |session: &String| ![&old, &new, &named].contains(&session);
        let running = sessions(world).into_iter().find(is_live).unwrap();
        // What is stored later would make it younger again.
        live.wait_until("it is stored", || {
            world.stockade().args(["log", "--json", &running]).run().stdout().contains("/here")
        });
        for session in [&old, &named, &running] {
            aged(world, session, 10);
        }
        let report = prune(world, &["--older-than", "9d", "--dry-run"]);
        let mut expected = vec![(old.clone(), true), (named.clone(), false)];
        let sorted = |mut list: Vec<(String, bool)>| { list.sort(); list };
        expected.sort();
        assert_eq!(sorted(pruned(&report)), expected, "{report}");
        assert!(directory(world, &old).exists(), "a dry run does nothing");
        let report = prune(world, &["--older-than", "9d"]);
        assert_eq!(sorted(pruned(&report)), expected, "{report}");
        assert_eq!(report["busy"][0]["session"], running.as_str(), "{report}");
        assert!(!directory(world, &old).exists() && directory(world, &new).exists());
        let left = sessions(world);
        assert!(left.contains(&named) && left.contains(&running) && !left.contains(&old), "{left:?}");
        let shown = world.stockade().args(["session", "show", "mine", "--json"]).run();
        let shown: Value = serde_json::from_slice(&shown.assert_success().stdout).unwrap();
        assert_eq!(shown["mode"], "workspace-write", "{shown}");
        let events = world.stockade().args(["session", "events", "mine", "--json"]).run().stdout();
        assert_eq!(events.matches("run/started").count(), 2, "{events}");
        let verify = |session: &str| world.stockade().args(["log", "verify", session]).run().assert_success().stdout();
        assert!(verify("mine").contains("(0 events, 1 batches)"), "{}", verify("mine"));
        assert!(prune(world, &["--older-than", "9d"])["pruned"].as_array().unwrap().is_empty(), "nothing is left to give up");
        run_in(world, "mine");
        verify("mine");
        let log = world.stockade().args(["log", "mine", "--json"]).run().assert_success().stdout();
        assert!(log.contains("\"seq\":1,"), "{log}");
        live.signal(rustix::process::Signal::TERM);
        drop(live.wait());
        let log = world.stockade().args(["log", "--json", &running]).run().assert_success().stdout();
        assert!(log.contains("/here"), "{log}");
        verify(&running);
    }

    /// By size, the oldest first; and by itself when a run starts, where the configuration says so, and only there.
    fn the_oldest_go_when_there_is_too_much(world) {
        let all: Vec<String> = (0..4).map(|_| lone_run(world)).collect();
        for (session, days) in all.iter().zip([40, 30, 20, 10]) {
            aged(world, session, days);
        }
        let size = prune(world, &["--max-size", "1TB"])["kept_bytes"].as_u64().unwrap();
        let room = format!("{}B", size * 5 / 8);
        assert_eq!(pruned(&prune(world, &["--max-size", &room])), [(all[0].clone(), true), (all[1].clone(), true)]);
        configure(world, "log_age = \"15d\"\n");
        let fresh = lone_run(world);
        let mut left = sessions(world);
        left.sort();
        let mut expected = vec![all[3].clone(), fresh];
        expected.sort();
        assert_eq!(left, expected);
        assert!(pruned(&prune(world, &[])).is_empty(), "the configuration's age is the default");
        configure(world, "");
        aged(world, &all[3], 1000);
        lone_run(world);
        assert_eq!(sessions(world).len(), 3, "nothing goes by itself without a word");
        let output = world.stockade().args(["log", "prune"]).run();
        output.assert_code(125);
        assert!(output.stderr().contains("--older-than AGE"), "{}", output.stderr());
    }
}
