//! The battery of escapes, `stockade doctor --verify`: nothing gets out, and what is declared open is open (L1, L11, L12).

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use stockade_tests::{Output, as_root_and_user};

/// Gaps that no attempt goes through: what is missing there is a record, or the end of a process.
const NOT_ATTEMPTED: [&str; 4] = ["unobserved", "whole-files", "stray-processes", "raw-devices"];

fn table<'v>(verdict: &'v Value, backend: &str) -> &'v Value {
    let tables = verdict["backends"].as_array().unwrap();
    tables.iter().find(|table| table["backend"] == backend).unwrap()
}

/// Returns what came of each attempt.
fn outcomes(table: &Value) -> BTreeMap<&str, &str> {
    let rows = table["rows"].as_array().unwrap();
    rows.iter().map(|row| (row["id"].as_str().unwrap(), row["outcome"].as_str().unwrap())).collect()
}

fn verdict(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", output.stdout(), output.stderr()))
}

as_root_and_user! {
    /// L1, L11, L12: no attempt gets out under a back end that says `full`, and none of its files is left.
    fn nothing_gets_out(world) {
        if !world.has("bwrap") {
            return;
        }
        let running = world.stockade().args(["doctor", "--verify", "--json"]).spawn();
        let left = format!("stockade-verify-{}-", running.pid().as_raw_nonzero());
        let output = running.wait();
        let verdict = verdict(&output);
        for backend in ["bwrap", "landlock"] {
            let table = table(&verdict, backend);
            let outcomes = outcomes(table);
            let with = |wanted: &str| outcomes.iter().filter(|(_, outcome)| **outcome == wanted).map(|(id, _)| *id).collect::<Vec<_>>();
            assert_eq!(with("out"), [""; 0], "{backend}: {table:#}");
            // Root's own namespaces show the host's `/dev`.
            let gaps = with("declared-gap");
            assert!(gaps.iter().all(|id| id.starts_with("device-")), "{backend}: {gaps:?}");
            assert!(outcomes.len() >= 60 && with("held").len() >= 60, "{backend}: {table:#}");
            for family in ["path", "metadata", "symlink", "hardlink", "proc", "descriptor", "exec", "hook", "secret", "state", "mount", "socket", "signal", "process", "terminal", "ipc", "server"] {
                let held = outcomes.iter().any(|(id, outcome)| id.split('-').next() == Some(family) && *outcome == "held");
                assert!(held, "{backend}: nothing of {family} would have an effect here: {table:#}");
            }
        }
        output.assert_success();
        for base in ["/var/tmp", "/tmp"] {
            for entry in fs::read_dir(base).unwrap() {
                let name = entry.unwrap().file_name();
                assert!(!name.to_string_lossy().starts_with(&left), "{name:?} is left");
            }
        }
    }

    /// What the battery once got out by: the path of the machine's core handler (root, bubblewrap), the user's keyring, and
    /// somebody else's terminal (namespaces of our own).
    fn what_once_got_out_stays_in(world) {
        if !world.has("bwrap") {
            return;
        }
        let output = world.stockade().args(["doctor", "--verify", "--json"]).run();
        let verdict = verdict(&output);
        for backend in ["bwrap", "landlock"] {
            let outcomes = outcomes(table(&verdict, backend));
            let once = ["proc-core-pattern", "proc-anything", "keyring-user", "terminal-other"];
            for id in once {
                let root_alone = id == "proc-core-pattern" && !world.identity().is_root();
                // A container's kernel may have no keyrings.
                let expected: &[&str] = if root_alone || id == "keyring-user" { &["held", "not-possible"] } else { &["held"] };
                assert!(expected.contains(&outcomes[id]), "{backend} {id}: {}", outcomes[id]);
            }
        }
    }

    /// L1: where Landlock is alone, what gets out is what the run declares, and each gap that it declares is one.
    fn each_declared_gap_is_real(world) {
        // Root makes namespaces whatever is forbidden to others.
        if world.identity().is_root() || !world.has("bwrap") {
            return;
        }
        let output = world
            .native("bwrap")
            .args(["--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"])
            .arg(world.binary())
            .args(["doctor", "--verify", "--json", "--backend", "landlock"])
            .run();
        let verdict = verdict(&output);
        let table = table(&verdict, "landlock");
        let outcomes = outcomes(table);
        assert!(!outcomes.values().any(|outcome| *outcome == "out"), "{table:#}");
        assert!(outcomes.values().filter(|outcome| **outcome == "held").count() >= 40, "{table:#}");
        let names = |key: &str| -> Vec<String> {
            let mut names: Vec<_> = table[key].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
            names.retain(|name| !NOT_ATTEMPTED.contains(&name.as_str()));
            names.sort();
            names
        };
        assert_eq!(names("shown"), names("gaps"), "{table:#}");
        output.assert_success();
    }

    /// L1: what no attempt goes through is real, too, where Landlock is alone: files aren't written whole, nothing is recorded, and a
    /// process outlives a launcher that is killed.
    fn gaps_without_an_attempt_are_real(world) {
        if world.identity().is_root() || !world.has("bwrap") {
            return;
        }
        let file = world.write("file", "old\n");
        let stray = world.workspace().join("stray");
        let script = "exec 3> file; echo part >&3; setsid sh -c 'echo $$ > stray; exec sleep 60' > /dev/null 2>&1 < /dev/null & exec sleep 60";
        let mut running = world
            .native("bwrap")
            .args(["--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"])
            .arg(world.binary())
            .args(["run", "--backend", "landlock", "--", "sh", "-c", script])
            .spawn();
        running.wait_until("the stray is there", || fs::read_to_string(&stray).is_ok_and(|text| text.ends_with('\n')));
        assert_eq!(fs::read_to_string(&file).unwrap(), "part\n");
        let outer = running.pid().as_raw_nonzero();
        let launcher = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
        let pid = |text: &str| rustix::process::Pid::from_raw(text.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid(&launcher), rustix::process::Signal::KILL).unwrap();
        let output = running.wait();
        for gap in ["unobserved", "whole-files", "stray-processes"] {
            assert!(output.stderr().contains(gap), "{}", output.stderr());
        }
        let stray = pid(&fs::read_to_string(&stray).unwrap());
        let command = fs::read(format!("/proc/{}/cmdline", stray.as_raw_nonzero())).unwrap_or_default();
        assert!(command.starts_with(b"sleep"), "{command:?}");
        rustix::process::kill_process(stray, rustix::process::Signal::KILL).unwrap();
        let log = world.stockade().args(["log", "--json"]).run().stdout();
        assert!(!log.contains(file.to_str().unwrap()), "{log}");
    }
}
