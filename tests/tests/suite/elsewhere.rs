//! `run --ask-elsewhere`: a run waits for an answer that another terminal gives (P8).

use rustix::process::Signal;
use serde_json::Value;
use stockade_tests::{Running, World, as_root_and_user};

use crate::config::configure;
use crate::program;
use crate::sessions::{events, new};

const WIDER: [&str; 4] =
    ["--sandbox-permissions", "workspace-write", "--justification", "to \u{1b}[2Jbuild"];

fn requests(world: &World) -> Vec<Value> {
    let output = world.stockade().args(["session", "requests", "--json"]).run();
    output.assert_success();
    output.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Starts a run that asks, and waits until it does. Returns also the request's id.
fn asking(world: &World, session: &str, options: &[&str], script: &str) -> (Running, String) {
    let options = [&["--session", session], &WIDER[..], options].concat();
    let mut running = world.run(&options).args(["sh", "-c", script]).spawn();
    running.wait_until("it asks", || !requests(world).is_empty());
    let request = requests(world).remove(0);
    assert_eq!(
        (&request["session"], &request["to"]),
        (&session.into(), &"workspace-write".into()),
        "{request}"
    );
    (running, request["id"].as_str().unwrap().to_owned())
}

fn answer(world: &World, words: &[&str]) -> i32 {
    world.stockade().arg("session").args(words).run().code
}

fn decided(world: &World, session: &str) -> Vec<String> {
    let events = events(world, session);
    let decided = events.iter().filter(|event| event["type"] == "escalation/decided");
    decided.map(|event| event["outcome"].as_str().unwrap().to_owned()).collect()
}

as_root_and_user! {
    /// An approval runs the command once; a rejection, a signal and silence never do, and nothing waits afterwards.
    fn only_an_approval_runs_the_command(world) {
        let id = new(world, &["--mode", "read-only"]);
        let elsewhere = ["--ask-elsewhere"];
        let (running, request) = asking(world, &id, &elsewhere, "echo x > one; echo $STOCKADE_MODE");
        assert!(!world.workspace().join("one").exists(), "nothing runs before the answer");
        let text = world.stockade().args(["session", "requests"]).run().stdout();
        assert!(text.contains("echo x > one") && !text.contains('\u{1b}'), "{text:?}");
        assert_eq!(answer(world, &["approve", &request]), 0);
        let output = running.wait();
        assert_eq!(output.stdout(), "workspace-write\n", "{}", output.stderr());
        assert!(output.stderr().contains(&format!("stockade session approve {request}")), "{}", output.stderr());
        assert_eq!(answer(world, &["approve", &request]), 125, "it is answered already");

        let (running, request) = asking(world, &id, &elsewhere, "echo x > two");
        assert_eq!(answer(world, &["reject", &request, "--reason", "not\u{1b}now"]), 0);
        let output = running.wait();
        output.assert_code(125);
        assert!(output.stderr().contains("APPROVAL_REJECTED") && output.stderr().contains("not\\x1bnow"), "{}", output.stderr());

        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let (running, request) = asking(world, &id, &elsewhere, "echo x > two");
            running.signal(signal);
            let output = running.wait();
            assert_eq!(output.code, if signal == Signal::KILL { 137 } else { 125 });
            if signal != Signal::KILL {
                assert!(output.stderr().contains("APPROVAL_CANCELED"), "{}", output.stderr());
            }
            assert!(requests(world).is_empty());
            assert_eq!(answer(world, &["approve", &request]), 125, "nobody waits");
        }
        configure(world, "approver_timeout = \"400ms\"\nask_elsewhere = true\n");
        let options = [&["--session", &id], &WIDER[..]].concat();
        let output = world.run(&options).args(["sh", "-c", "echo x > two"]).run();
        output.assert_code(125);
        assert!(output.stderr().contains("APPROVAL_UNAVAILABLE") && output.stderr().contains("nobody answered"), "{}", output.stderr());
        assert!(!world.workspace().join("two").exists());
        assert_eq!(decided(world, &id), ["allowed-once", "rejected", "cancelled", "cancelled", "unavailable"]);
        assert!(requests(world).is_empty());
        let left = std::fs::read_dir(world.state().join("stockade/asking")).unwrap().count();
        assert_eq!(left, 0);
    }

    /// Nothing inside a run can see a request or answer one, by the command or by its own files.
    fn nothing_inside_can_answer(world) {
        let id = new(world, &["--mode", "read-only"]);
        let (running, request) = asking(world, &id, &["--ask-elsewhere"], "echo x > one");
        let directory = world.state().join("stockade/asking");
        let script = format!(
            "cd '{dir}' 2>/dev/null && ls; ls -A '{dir}'; cat '{dir}/{request}.request'; \
             echo '{{\"decision\": \"allowed-once\", \"id\": \"{request}\"}}' > '{dir}/{request}.answer'; \
             '{stockade}' session approve {request}; '{stockade}' session requests; echo tried",
            dir = directory.display(),
            stockade = world.binary().display(),
        );
        for backend in ["bwrap", "landlock"] {
            let output = world.run(&["-q", "--backend", backend, "--writable", world.home().to_str().unwrap()]).args(["sh", "-c", &script]).run();
            assert_eq!(output.stdout(), "tried\n", "{backend}: {}", output.stderr());
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(requests(world).len(), 1, "it waits still");
        assert!(!world.workspace().join("one").exists());
        running.signal(Signal::TERM);
        running.wait().assert_code(125);
        assert_eq!(decided(world, &id), ["cancelled"]);
    }

    /// `top` shows that somebody waits, what for, and passes the answer on.
    fn top_answers(world) {
        let id = new(world, &["--mode", "read-only"]);
        let driver = program::install(world, "terminal.py", program::TERMINAL);
        for (key, code) in [("y", 0), ("n", 125)] {
            let (running, request) = asking(world, &id, &["--ask-elsewhere"], "echo x > one; rm one");
            let json = world.stockade().args(["top", "--json", "-n", "1"]).run().stdout();
            let line: Value = serde_json::from_str(json.trim()).unwrap();
            assert_eq!(line["asking"][0]["id"], request.as_str(), "{line}");
            let said = if key == "y" { "is allowed" } else { "is rejected" };
            let steps = serde_json::json!([["waiting for approval", "a"], ["allow once", key], [said, "q"]]).to_string();
            let output = world.native("/usr/bin/python3").arg(&driver).args(["100", "30", &steps]).arg(world.binary()).arg("top").run();
            assert_eq!(output.code, 0, "{}\n{}", output.stdout(), output.stderr());
            assert!(output.stdout().contains("steps left: 0"), "{}", output.stdout());
            assert_eq!(running.wait().code, code);
        }
        assert_eq!(decided(world, &id), ["allowed-once", "rejected"]);
    }
}
