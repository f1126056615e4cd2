//! Asking for more, once: who is asked, what is answered, and what then runs (P8).

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use stockade_tests::{Output, World, as_root_and_user};

use crate::config::configure;
use crate::program::{self, PYTHON};
use crate::sessions::{events, kinds, new, state};

const WIDER: [&str; 4] =
    ["--sandbox-permissions", "workspace-write", "--justification", "to build"];

/// A shell that leaves a mark instead of being interactive.
fn marking_shell(world: &World) -> PathBuf {
    let shell = program::install(
        world,
        "shell",
        &format!("#!/bin/sh\ntouch {}\n", marker(world).display()),
    );
    std::os::unix::fs::chown(&shell, Some(world.ids().0), Some(world.ids().1)).unwrap();
    fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    shell
}

fn marker(world: &World) -> PathBuf {
    world.workspace().join("ran")
}

/// Runs `run` or `shell` in a session, with the options and an approver; tells whether the command ran.
fn ask(world: &World, command: &str, session: &str, approver: &str) -> (Output, Value, bool) {
    drop(fs::remove_file(marker(world)));
    let file = world.result_file();
    let mut invocation = world
        .stockade()
        .args([command, "-q", "--session", session, "--approver", approver, "--result"])
        .arg(&file)
        .args(WIDER)
        .env("SHELL", world.directory().join("shell"));
    if command == "run" {
        invocation = invocation.arg("--").arg("touch").arg(marker(world));
    }
    let output = invocation.run();
    let result = World::read_result(&file, &output);
    (output, result, marker(world).exists())
}

as_root_and_user! {
    /// P8: of everything that an approver can do, only `allowed-once` runs the command, and its wider mode ends with it.
    fn only_allowed_once_runs(world) {
        marking_shell(world);
        let id = new(world, &["--mode", "read-only"]);
        let replay = world.outside().join("replay");
        world.own(&world.outside());
        let replaying = format!("cat > /dev/null; cat {}", replay.display());
        // Keeps the id of the request that it allows.
        let keeping = format!(
            "{} -c 'import json, sys; a = json.dumps({{\"decision\": \"allowed-once\", \"id\": json.load(sys.stdin)[\"id\"]}}); open(sys.argv[1], \"w\").write(a); print(a)' {}",
            PYTHON.join(" "),
            replay.display()
        );
        let rows = [
            (keeping.as_str(), "allowed-once", ""),
            ("cat > /dev/null; echo '{\"decision\": \"allowed-once\"}'", "allowed-once", ""),
            (&replaying, "unavailable", "APPROVAL_UNAVAILABLE"),
            ("echo '{\"decision\": \"rejected\", \"reason\": \"n\\u001b[2Jo\"}'", "rejected", "APPROVAL_REJECTED"),
            ("echo '{\"decision\": \"cancelled\"}'", "cancelled", "APPROVAL_CANCELED"),
            ("echo '{\"decision\": \"allowed-once\"}'; exec sleep 60", "unavailable", "APPROVAL_UNAVAILABLE"),
            ("echo '{\"decision\": \"allowed-once\"}'; exit 1", "unavailable", "APPROVAL_UNAVAILABLE"),
            ("echo '{\"decision\": \"allowed-once\"}'; kill -9 $$", "unavailable", "APPROVAL_UNAVAILABLE"),
            ("echo '{\"decision\": \"allowed-once\"} yes'", "unavailable", "APPROVAL_UNAVAILABLE"),
            ("echo '{\"decision\": \"rejected\", \"decision\": \"allowed-once\"}'", "unavailable", "APPROVAL_UNAVAILABLE"),
            ("echo '{\"decision\": \"allowed-always\"}'", "unavailable", "APPROVAL_UNAVAILABLE"),
            ("yes", "unavailable", "APPROVAL_UNAVAILABLE"),
            ("true", "unavailable", "APPROVAL_UNAVAILABLE"),
            ("/nonexistent/approver", "unavailable", "APPROVAL_UNAVAILABLE"),
        ];
        for (approver, outcome, code) in rows {
            let limit = if approver.ends_with("sleep 60") { "300ms" } else { "100s" };
            configure(world, &format!("approver_timeout = \"{limit}\"\n"));
            for command in ["run", "shell"] {
                let allowed = outcome == "allowed-once";
                let (output, result, ran) = ask(world, command, &id, approver);
                let what = format!("{command} {approver}: {}", output.stderr());
                assert_eq!(ran, allowed, "{what}");
                assert_eq!(output.code, if allowed { 0 } else { 125 }, "{what}");
                if allowed {
                    assert_eq!(result["policy"]["source"], "approved", "{what}");
                    assert_eq!(result["policy"]["mode"], "workspace-write", "{what}");
                } else {
                    assert_eq!(result["error"]["code"], code, "{what}");
                    assert!(output.stderr().contains(&format!("error[{code}]")) && !output.stderr().contains('\u{1b}'), "{what}");
                    let ended = if outcome == "cancelled" { "canceled" } else { "refused" };
                    assert_eq!(result["outcome"], ended, "{what}");
                }
            }
        }
        let state = state(world, &id, &[]);
        assert_eq!((&state["mode"], state["active"].as_array().unwrap().len()), (&"read-only".into(), 0));
        let events = events(world, &id);
        let decided: Vec<_> = events.iter().filter(|event| event["type"] == "escalation/decided").map(|event| &event["outcome"]).collect();
        let expected: Vec<_> = rows.iter().flat_map(|(_, outcome, _)| [outcome; 2]).collect();
        assert_eq!(decided, expected);
        // It was for that run alone.
        drop(fs::remove_file(marker(world)));
        let (output, result) = world.run_with_result(&["-q", "--session", &id], &["touch", marker(world).to_str().unwrap()]);
        assert_ne!(output.code, 0);
        assert_eq!(result["policy"]["source"], "session");
        assert!(!marker(world).exists());
    }

    /// P8: both options or neither; strictly wider; never where the policy says so. Nothing is asked, nothing runs.
    fn what_cannot_be_asked_is_an_error(world) {
        let asked = world.outside().join("asked");
        world.own(&world.outside());
        let approver = format!("touch {}; echo '{{\"decision\": \"allowed-once\"}}'", asked.display());
        let ro = ["--mode", "read-only"];
        for (options, code) in [
            ([&ro[..], &["--sandbox-permissions", "workspace-write"]].concat(), "ESCALATION_UNPAIRED"),
            ([&ro[..], &["--justification", "x"]].concat(), "ESCALATION_UNPAIRED"),
            ([&ro[..], &["--sandbox-permissions", "workspace-write", "--justification", " "]].concat(), "ESCALATION_UNPAIRED"),
            (vec!["--sandbox-permissions", "workspace-write", "--justification", "x"], "ESCALATION_NOT_WIDER"),
            (vec!["--sandbox-permissions", "read-only", "--justification", "x"], "ESCALATION_NOT_WIDER"),
        ] {
            let output = world.run(&[&options[..], &["--approver", &approver]].concat()).args(["touch", "ran"]).run();
            output.assert_code(125);
            assert!(output.stderr().contains(&format!("error[{code}]")), "{options:?}: {}", output.stderr());
        }
        let listed = world.stockade().args(["session", "list", "--json"]).run();
        assert_eq!(listed.stdout(), "", "a wish that can't be had leaves no session");
        let id = new(world, &["--mode", "read-only", "--approval", "never"]);
        let (output, _, ran) = ask(world, "run", &id, &approver);
        assert!(!ran && output.stderr().contains("error[APPROVAL_UNAVAILABLE]"), "{}", output.stderr());
        configure(world, "approval_policy = \"never\"\n");
        let output = world.run(&[&ro[..], &WIDER, &["--approver", &approver]].concat()).args(["touch", "ran"]).run();
        output.assert_code(125);
        assert!(!asked.exists() && !marker(world).exists());
        // The session's own word goes before the deployment's.
        let id = new(world, &["--mode", "read-only", "--approval", "ask"]);
        assert!(ask(world, "run", &id, &approver).2);
    }

    /// P8: whoever approves is told the modes, the reason, the command, and what was refused to it before.
    fn the_request_says_what_it_is_about(world) {
        let id = new(world, &["--mode", "read-only"]);
        let request = world.outside().join("request");
        world.own(&world.outside());
        configure(world, &format!("approver = [\"/bin/sh\", \"-c\", \"cat > $0; echo '{{\\\"decision\\\": \\\"allowed-once\\\"}}'\", \"{}\"]\n", request.display()));
        let command = ["sh", "-c", "echo x > f"];
        assert_ne!(world.run(&["-q", "--session", &id]).args(command).run().code, 0);
        world.run(&[&["-q", "--session", &id], &WIDER[..]].concat()).args(command).run().assert_success();
        let request: Value = serde_json::from_slice(&fs::read(request).unwrap()).unwrap();
        for (field, value) in [
            ("v", Value::from(1)),
            ("session", id.as_str().into()),
            ("from", "read-only".into()),
            ("to", "workspace-write".into()),
            ("justification", "to build".into()),
            ("argv", serde_json::json!(command)),
            ("cwd", world.workspace().to_str().unwrap().into()),
        ] {
            assert_eq!(request[field], value, "{field}");
        }
        assert_eq!(request["refused"][0]["rule"], "read-only-mode");
        assert_eq!(request["refused"][0]["path"], world.workspace().join("f").to_str().unwrap());
        let events = events(world, &id);
        let kinds = kinds(&events);
        assert_eq!(kinds[kinds.len() - 4..], ["escalation/requested", "escalation/decided", "run/started", "run/finished"]);
    }

    /// P8: calling it off reaches the approver, and nothing it started stays.
    fn ctrl_c_reaches_the_approver(world) {
        let id = new(world, &["--mode", "read-only"]);
        let (asking, told) = (world.workspace().join("asking"), world.workspace().join("told"));
        let approver = format!("trap 'touch {}; exit 0' TERM; touch {}; while :; do sleep 0.05; done", told.display(), asking.display());
        let file = world.result_file();
        let mut running = world
            .run(&[&["-q", "--session", &id, "--approver", &approver, "--result", file.to_str().unwrap()], &WIDER[..]].concat())
            .args(["touch", "ran"])
            .spawn();
        running.wait_until("the approver was asked", || asking.exists());
        running.signal(Signal::INT);
        let output = running.wait();
        output.assert_code(125);
        assert!(told.exists() && !marker(world).exists());
        let result = World::read_result(&file, &output);
        assert_eq!((&result["outcome"], &result["error"]["code"]), (&"canceled".into(), &"APPROVAL_CANCELED".into()));
        assert_eq!(events(world, &id).last().unwrap()["outcome"], "cancelled");
    }

    /// P8: without an approver the terminal is asked; anything but yes is no.
    fn the_terminal_is_asked(world) {
        let script = program::install(world, "answer.py", include_str!("../../programs/answer.py"));
        let binary = world.binary();
        let id = new(world, &["--mode", "read-only"]);
        let on_terminal = |answer: &str| {
            drop(fs::remove_file(marker(world)));
            let output = world
                .native(PYTHON[0])
                .args(&PYTHON[1..])
                .arg(&script)
                .args(["[y/N]", answer])
                .arg(&binary)
                .args(["run", "-q", "--session", &id, "--sandbox-permissions", "workspace-write", "--justification", "a\u{1b}[2Jb"])
                .args(["--", "touch"])
                .arg(marker(world))
                .run();
            (output, marker(world).exists())
        };
        for (answer, runs, code) in [("y\\n", true, 0), ("YES\\n", true, 0), ("n\\n", false, 125), ("\\n", false, 125), ("yy\\n", false, 125), ("\\x03", false, 125), ("\\x04", false, 125)] {
            let (output, ran) = on_terminal(answer);
            let shown = output.stdout();
            assert_eq!((ran, output.code), (runs, code), "{answer}: {shown}");
            for part in ["mode now       read-only", "mode wanted    workspace-write", "because        a\\x1b[2Jb", "command        touch"] {
                assert!(shown.contains(part), "{part}: {shown}");
            }
            assert!(!shown.contains("\u{1b}[2J"), "{shown:?}");
        }
        let outcomes: Vec<_> = events(world, &id).iter().filter(|event| event["type"] == "escalation/decided").map(|event| event["outcome"].clone()).collect();
        assert_eq!(outcomes, ["allowed-once", "allowed-once", "rejected", "rejected", "rejected", "cancelled", "cancelled"]);
        // And without a terminal there is nobody.
        let output = world.native("setsid").args(["-w"]).arg(&binary).args(["run", "-q", "--session", &id]).args(WIDER).args(["--", "true"]).run();
        output.assert_code(125);
        assert!(output.stderr().contains("error[APPROVAL_UNAVAILABLE]"), "{}", output.stderr());
    }
}
