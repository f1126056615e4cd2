//! Sessions: runs that share a root, a mode and a log, and the events that they are (P4, P5, P7).

use std::fs;

use serde_json::Value;
use stockade_tests::{World, as_root_and_user};

/// Makes a session and returns its id.
pub fn new(world: &World, options: &[&str]) -> String {
    let output = world.stockade().args(["session", "new"]).args(options).run();
    output.assert_success();
    let id = output.stdout().trim().to_owned();
    assert!(!id.is_empty() && output.stdout() == format!("{id}\n"), "{:?}", output.stdout());
    id
}

/// Returns the events of a session.
pub fn events(world: &World, session: &str) -> Vec<Value> {
    let output = world.stockade().args(["session", "events", session, "--json"]).run();
    output.assert_success();
    output.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the kinds of events, in order.
pub fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// Returns what a session's events add up to.
pub fn state(world: &World, session: &str, options: &[&str]) -> Value {
    let output = world.stockade().args(["session", "show", session, "--json"]).args(options).run();
    output.assert_success();
    serde_json::from_slice(&output.stdout).unwrap()
}

as_root_and_user! {
    /// P7: a run without a session makes one, and its beginning and its end are events of it.
    fn every_run_belongs_to_a_session(world) {
        let (output, result) = world.run_with_result(&["-q"], &["sh", "-c", "exit 3"]);
        output.assert_code(3);
        let session = result["session"].as_str().unwrap();
        let events = events(world, session);
        assert_eq!(kinds(&events), ["session/created", "run/started", "run/finished"]);
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["seq"], at + 1);
            assert!(event["time"].as_str().unwrap().ends_with('Z'), "{event}");
        }
        assert_eq!(events[0]["root"], world.workspace().to_str().unwrap());
        assert_eq!(events[1]["run"], result["run"]);
        assert_eq!(events[1]["argv"], serde_json::json!(["sh", "-c", "exit 3"]));
        assert_eq!((&events[2]["outcome"], &events[2]["exit_code"]), (&"exited".into(), &3.into()));
        let listed = world.stockade().args(["session", "list", "--json"]).run();
        let line: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(line["session"], session);
        // What can't be planned leaves no session behind.
        world.run(&["--deny-read", "a["]).arg("true").run().assert_code(125);
        assert_eq!(world.stockade().args(["session", "list", "--json"]).run().stdout, listed.stdout);
    }

    /// P4, P7: the mode is that of the last event, by name or id, and the result says so.
    fn the_mode_is_the_last_events(world) {
        let id = new(world, &["--name", "fix", "--mode", "read-only"]);
        let write = ["sh", "-c", "echo x > f"];
        let (output, result) = world.run_with_result(&["-q", "--session", "fix"], &write);
        assert_ne!(output.code, 0);
        assert_eq!(result["policy"]["mode"], "read-only");
        assert_eq!(result["policy"]["source"], "session");
        assert_eq!(result["session"], id.as_str());
        world.stockade().args(["session", "mode", "fix", "workspace-write"]).run().assert_success();
        let (output, result) = world.run_with_result(&["-q", "--session", &id], &write);
        output.assert_success();
        assert_eq!(result["policy"]["mode"], "workspace-write");
        let events = events(world, "fix");
        assert_eq!(kinds(&events), ["session/created", "sandbox/mode", "run/started", "run/finished", "sandbox/mode", "run/started", "run/finished"]);
        // As it was then.
        for (at, mode) in [("1", Value::Null), ("2", "read-only".into()), ("4", "read-only".into()), ("5", "workspace-write".into())] {
            assert_eq!(state(world, "fix", &["--at", at])["mode"], mode, "at {at}");
        }
        assert_eq!(state(world, "fix", &["--at", "3"])["active"][0]["mode"], "read-only");
        let none = world.stockade().args(["session", "show", "fix", "--at", "8"]).run();
        none.assert_code(125);
        assert!(none.stderr().contains("error[SESSION_NOT_FOUND]"), "{}", none.stderr());
        // A narrower `--mode` isn't overridden in silence.
        let output = world.run(&["--session", "fix", "--mode", "read-only"]).arg("true").run();
        output.assert_code(125);
        assert!(output.stderr().contains("error[POLICY_INVALID]"), "{}", output.stderr());
    }

    /// P5: the root is the one that the session was made with, wherever a run is started.
    fn the_root_stays(world) {
        let elsewhere = world.outside().join("link");
        std::os::unix::fs::symlink(world.workspace(), &elsewhere).unwrap();
        let id = new(world, &["--workspace", elsewhere.to_str().unwrap()]);
        let file = world.result_file();
        let output = world
            .run(&["-q", "--session", &id, "--result", file.to_str().unwrap()])
            .args(["sh", "-c", &format!("pwd; echo x > {}/f; echo y > g", world.workspace().display())])
            .directory(world.outside())
            .run();
        assert_ne!(output.code, 0, "the current directory is no root");
        assert_eq!(output.stdout(), format!("{}\n", world.outside().display()));
        assert_eq!(fs::read(world.workspace().join("f")).unwrap(), b"x\n");
        assert!(!world.outside().join("g").exists());
        let result = World::read_result(&file, &output);
        assert_eq!(result["policy"]["root"], world.workspace().to_str().unwrap());
        let other = world.run(&["--session", &id, "--workspace", world.home().to_str().unwrap()]).arg("true").run();
        other.assert_code(125);
        assert!(other.stderr().contains("error[POLICY_INVALID]"), "{}", other.stderr());
        let same = ["-q", "--session", &id, "--workspace", elsewhere.to_str().unwrap()];
        world.run(&same).arg("true").run().assert_success();
    }

    /// CONTRACT 5: a session that isn't there is an error everywhere, and nothing runs.
    fn a_session_that_is_not_there_is_an_error(world) {
        let id = new(world, &["--name", "here"]);
        for name in ["nope", "../state", ".names", ""] {
            let marker = format!("touch {}", world.workspace().join("ran").display());
            let run = world.run(&["--session", name]).args(["sh", "-c", &marker]).run();
            let session = |words: &[&str]| world.stockade().arg("session").args(words).run();
            for output in [run, session(&["show", name]), session(&["events", name]), session(&["rm", name]), session(&["mode", name, "read-only"])] {
                output.assert_code(125);
                assert!(output.stderr().contains("error[SESSION_NOT_FOUND]"), "{name}: {}", output.stderr());
            }
        }
        assert!(!world.workspace().join("ran").exists());
        let twice = world.stockade().args(["session", "new", "--name", "here"]).run();
        twice.assert_code(125);
        world.stockade().args(["session", "rm", "here"]).run().assert_success();
        world.stockade().args(["session", "show", &id]).run().assert_code(125);
        new(world, &["--name", "here"]);
    }

    /// P2, P7: somebody switches the mode while runs start: each run has the mode that was in force when it was resolved.
    fn switching_and_running_at_once(world) {
        const RUNS: usize = 5;
        let id = new(world, &["--mode", "read-only"]);
        let script = "for at in $(seq $2); do $0 session mode $1 workspace-write && $0 session mode $1 read-only || exit 1; done";
        let switching = world
            .native("sh")
            .arg("-c")
            .arg(script)
            .arg(world.binary())
            .args([&id, &(RUNS * 4).to_string()])
            .spawn();
        let results: Vec<Value> = (0..RUNS)
            .map(|_| {
                let (output, result) = world.run_with_result(&["-q", "--session", &id], &["sh", "-c", "echo $STOCKADE_MODE > f"]);
                // What it could do is what the result says.
                assert_eq!(result["policy"]["mode"] == "workspace-write", output.code == 0, "{result:#}");
                result
            })
            .collect();
        switching.wait().assert_success();
        let events = events(world, &id);
        let mut mode = Value::Null;
        let mut seen = 0;
        for event in &events {
            match event["type"].as_str().unwrap() {
                "sandbox/mode" => mode = event["mode"].clone(),
                "run/started" => {
                    assert_eq!(event["mode"], mode, "{events:#?}");
                    let result = results.iter().find(|result| result["run"] == event["run"]).unwrap();
                    assert_eq!(result["policy"]["mode"], mode);
                    assert_eq!(result["policy"]["source"], "session");
                    seen += 1;
                }
                _ => {}
            }
        }
        assert_eq!(seen, RUNS);
        assert_eq!(events.iter().filter(|event| event["type"] == "sandbox/mode").count(), RUNS * 8 + 1);
    }
}

/// A shell that says that it is there, and waits.
fn waiting_shell(world: &World) -> (std::path::PathBuf, std::path::PathBuf, std::path::PathBuf) {
    let (ready, go) = (world.workspace().join("ready"), world.workspace().join("go"));
    let text = format!(
        "#!/bin/sh\nmkdir {}\nuntil test -e {}; do sleep 0.05; done\n",
        ready.display(),
        go.display()
    );
    let shell = crate::program::install(world, "shell", &text);
    fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    (shell, ready, go)
}

as_root_and_user! {
    /// L7: while a shell lives, its session's mode stays; once it ended, in whatever way, it can change.
    fn a_shell_holds_the_mode(world) {
        crate::config::configure(world, "approver = [\"true\"]\n");
        let id = new(world, &["--mode", "workspace-write"]);
        let (shell, ready, go) = waiting_shell(world);
        let start = || world.stockade().args(["shell", "-q", "--session", &id]).env("SHELL", &shell).spawn();
        let change = |words: &[&str]| world.stockade().arg("session").args(words).run();
        let mut running = start();
        running.wait_until("the shell is there", || ready.exists());
        for words in [["mode", &id, "read-only"], ["preset", &id, "danger-full-access"]] {
            let output = change(&words);
            output.assert_code(125);
            assert!(output.stderr().contains("error[SESSION_BUSY]"), "{}", output.stderr());
        }
        let rm = change(&["rm", &id]);
        assert!(rm.stderr().contains("error[SESSION_BUSY]"), "{}", rm.stderr());
        assert_eq!(state(world, &id, &[])["active"][0]["terminal"], true);
        // Other runs go on, under the same mode.
        let (output, result) = world.run_with_result(&["-q", "--session", &id], &["true"]);
        output.assert_success();
        assert_eq!(result["policy"]["mode"], "workspace-write");
        fs::write(&go, "").unwrap();
        running.wait().assert_success();
        change(&["mode", &id, "read-only"]).assert_success();
        change(&["mode", &id, "workspace-write"]).assert_success();
        // One that is killed holds nothing either.
        fs::remove_dir(&ready).unwrap();
        fs::remove_file(&go).unwrap();
        let mut running = start();
        running.wait_until("the shell is there", || ready.exists());
        running.signal(rustix::process::Signal::KILL);
        assert_eq!(running.wait().signal, Some(9));
        change(&["mode", &id, "read-only"]).assert_success();
        let events = events(world, &id);
        let ends: Vec<_> = events.iter().filter(|event| event["type"] == "run/finished").map(|event| event["outcome"].clone()).collect();
        assert_eq!(ends, ["exited", "exited", "interrupted"]);
    }

    /// P9: a preset is three events in one step; it needs somebody to ask, and `custom` can't be chosen.
    fn a_preset_is_one_step(world) {
        let id = new(world, &["--mode", "read-only"]);
        let preset = |name: &str| world.native("setsid").arg("-w").arg(world.binary()).args(["session", "preset", &id, name, "--json"]).run();
        let output = preset("danger-full-access");
        output.assert_code(125);
        assert!(output.stderr().contains("error[APPROVAL_UNAVAILABLE]"), "nobody to ask: {}", output.stderr());
        // Somebody whom the runs will name is enough; what can't be read isn't.
        let other = world.home().join("other.toml");
        std::fs::write(&other, "[profile.asks]\napprover = [\"true\"]\n").unwrap();
        let with = |options: &[&str]| {
            let preset = ["session", "preset", &id, "workspace-write", "--config", other.to_str().unwrap()];
            world.native("setsid").arg("-w").arg(world.binary()).args(preset).args(options).run()
        };
        with(&[]).assert_code(125);
        with(&["--profile", "nonsense"]).assert_code(125);
        with(&["--profile", "asks"]).assert_success();
        assert_eq!(events(world, &id).len(), 5);
        world.stockade().args(["session", "mode", &id, "read-only"]).run().assert_success();
        let id = new(world, &["--mode", "read-only"]);
        let preset = |name: &str| world.native("setsid").arg("-w").arg(world.binary()).args(["session", "preset", &id, name, "--json"]).run();
        crate::config::configure(world, "approver = [\"true\"]\n");
        for name in ["custom", "nonsense"] {
            let output = preset(name);
            output.assert_code(125);
            assert!(output.stderr().contains("error[POLICY_INVALID]"), "{}", output.stderr());
        }
        assert_eq!(state(world, &id, &[])["preset"], "custom");
        assert_eq!(events(world, &id).len(), 2);
        for (name, mode, approval) in [("danger-full-access", "danger-full-access", "never"), ("workspace-write", "workspace-write", "ask")] {
            let output = preset(name);
            output.assert_success();
            let now: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((&now["mode"], &now["approval"], &now["preset"]), (&mode.into(), &approval.into(), &name.into()));
            let (_, result) = world.run_with_result(&["-q", "--session", &id], &["true"]);
            assert_eq!((&result["policy"]["mode"], &result["policy"]["source"]), (&mode.into(), &"session".into()));
        }
        let events = events(world, &id);
        assert_eq!(kinds(&events[2..5]), ["permission/preset", "sandbox/mode", "approval/policy"]);
        let pinned = new(world, &["--preset", "danger-full-access"]);
        assert_eq!(state(world, &pinned, &[])["approval"], "never");
    }
}
