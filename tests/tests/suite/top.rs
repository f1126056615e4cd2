//! `stockade top`, on a terminal and for programs.

use serde_json::Value;
use stockade_tests::{World, as_root_and_user};

use crate::program;

fn live(world: &World) -> stockade_tests::Running {
    world.write("secret", "x");
    let script = "echo x > made; cat secret; sleep 100";
    let mut running =
        world.run(&["-q", "--deny-read", "secret"]).args(["sh", "-c", script]).spawn();
    // The log is written now and then; what was refused is in it once this says so.
    running.wait_until("the refusal is in the log", || {
        let log = world.stockade().args(["log", "--denied", "--json"]).run();
        log.code == 0 && log.stdout().contains("secret")
    });
    running
}

as_root_and_user! {
    /// A live run, its events and its refusal are seen; keys choose; the terminal is as it was afterwards.
    fn a_live_run_is_seen(world) {
        let running = live(world);
        let driver = program::install(world, "terminal.py", program::TERMINAL);
        for (columns, lines) in [("80", "24"), ("160", "50")] {
            let steps = serde_json::json!([
                ["1 live", "d"],
                ["refused only", "\r"],
                ["read-denied", "\u{1b}"],
                ["?  help", "3"],
                ["REFUSED  Files", "q"],
            ])
            .to_string()
            .replace("?  help", "? help");
            let output = world
                .native("/usr/bin/python3")
                .arg(&driver)
                .args([columns, lines, &steps])
                .arg(world.binary())
                .arg("top")
                .run();
            assert_eq!(output.code, 0, "{}\n{}", output.stdout(), output.stderr());
            let seen = output.stdout();
            for wanted in ["sh -c", "cat[", "terminal as before: True steps left: 0"] {
                assert!(seen.contains(wanted), "{wanted}:\n{seen}");
            }
        }
        running.signal(rustix::process::Signal::TERM);
        drop(running.wait());
    }

    /// The same as JSON; without a terminal the picture is refused, with what to use instead.
    fn programs_read_json(world) {
        let running = live(world);
        let output = world.stockade().args(["top", "--json", "-n", "1"]).run();
        output.assert_success();
        let line: Value = serde_json::from_str(output.stdout().trim()).unwrap();
        let run = &line["runs"][0];
        assert_eq!((&run["live"], &run["denied"]), (&Value::Bool(true), &Value::from(1)), "{line:#}");
        assert_eq!(run["argv"][0], "sh");
        assert_eq!(line["denied"], 1);
        let refused = world.stockade().arg("top").run();
        refused.assert_code(125);
        assert!(refused.stderr().contains("stockade log --follow"), "{}", refused.stderr());
        running.signal(rustix::process::Signal::TERM);
        drop(running.wait());
        let output = world.stockade().args(["top", "--json", "-n", "1"]).run();
        let line: Value = serde_json::from_str(output.stdout().trim()).unwrap();
        assert_eq!(line["runs"][0]["live"], false, "{line:#}");
        assert_eq!(line["runs"][0]["outcome"], "signaled");
    }
}
