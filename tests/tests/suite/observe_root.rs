//! `--observe-root`: what is read and refused outside of the workspace is in the log too (O1).

use serde_json::Value;
use stockade_tests::{World, as_root_and_user};

use crate::config::configure;

/// Returns operation, path and outcome of each event of the last run.
fn events(world: &World) -> Vec<(String, String, String)> {
    let log = world.stockade().args(["log", "--json"]).run();
    log.assert_success();
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    let events = log.stdout();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .map(|event| (text(&event, "op"), text(&event, "path"), text(&event, "outcome")))
        .collect()
}

as_root_and_user! {
    /// Nothing more may be done there, and Stockade's own files stay out of sight.
    fn what_happens_outside_is_recorded(world) {
        let home = world.home();
        for name in ["read", "kept"] {
            std::fs::write(home.join(name), "old\n").unwrap();
            world.own(&home.join(name));
        }
        let at = |name: &str| home.join(name).to_str().unwrap().to_owned();
        let script = format!(
            "cat {}; echo new > {}; mkdir {}; ls {}/*; echo x > inside",
            at("read"), at("kept"), at("made"), world.state().display()
        );
        let has = |op: &str, path: &str, outcome: &str| {
            events(world).contains(&(op.to_owned(), path.to_owned(), outcome.to_owned()))
        };
        let run = |options: &[&str]| {
            let output = world.run(&["-q"]).args(["sh", "-c", &script]);
            let output = if options.is_empty() { output } else { world.run(&[&["-q"], options].concat()).args(["sh", "-c", &script]) };
            let output = output.run();
            assert_eq!(output.stdout(), "old\n", "{}", output.stderr());
            assert_eq!(std::fs::read_to_string(home.join("kept")).unwrap(), "old\n");
            assert!(!home.join("made").exists());
            assert_eq!(std::fs::read_to_string(world.workspace().join("inside")).unwrap(), "x\n");
        };
        run(&[]);
        assert!(!has("read", &at("read"), "ok") && !has("mkdir", &at("made"), "denied"));
        let all = || {
            assert!(has("read", &at("read"), "ok"), "{:?}", events(world));
            assert!(has("mkdir", &at("made"), "denied"), "{:?}", events(world));
            assert!(events(world).iter().any(|(_, path, outcome)| *path == at("kept") && outcome == "denied"));
        };
        run(&["--observe-root", home.to_str().unwrap()]);
        all();
        run(&["--observe-root", "/"]);
        all();
        assert!(events(world).iter().any(|(op, path, _)| op == "exec" && path.starts_with("/usr/")), "programs are seen too");
        let mount = world.stockade().args(["mount", "--observe-root", "/", ".", "."]).run();
        assert_eq!(mount.code, 125);
        assert!(mount.stderr().contains("POLICY_INVALID"), "{}", mount.stderr());
        configure(world, &format!("observe_roots = [\"{}\", \"/nonexistent\"]\n", home.display()));
        run(&[]);
        all();
    }
}
