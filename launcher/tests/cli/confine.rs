//! `confine`: a harness gets words to spawn, and knows what happened (the example, built and run).

use std::path::PathBuf;
use std::process::Stdio;

use crate::common::{callers, copy_program, finish, text};

/// Cargo builds examples for the tests of their package.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples/harness")
}

#[test]
fn a_harness_spawns_what_it_is_given_and_knows_what_came_of_it() {
    let forged = "echo 'stockade: error[RUNNER_FAILED]: x' >&2; exit 125";
    let missing = "/usr/bin/no-such-command-here";
    let rows: [(&str, &[&str], &str); 5] = [
        (
            "workspace-write",
            &["sh", "-c", "echo x > made"],
            "it ran: Some(0), refusals: 0, exit status: 0",
        ),
        (
            "read-only",
            &["sh", "-c", "echo x > refused; exit 3"],
            "it ran: Some(3), refusals: 1, exit status: 3",
        ),
        (
            "workspace-write",
            &["sh", "-c", forged],
            "it ran: Some(125), refusals: 0, exit status: 125",
        ),
        (
            "workspace-write",
            &["sh", "-c", "kill -9 $$"],
            "it ran: None, refusals: 0, exit status: 137",
        ),
        ("workspace-write", &[missing], "it did not run: RUNNER_FAILED, exit status: 127"),
    ];
    for caller in callers() {
        let program = caller.path("harness");
        copy_program(&example(), &program);
        let stockade = caller.stockade([""; 0]).get_program().to_owned();
        for (mode, command, said) in rows {
            let result = caller.path("state/result.json");
            let _old = std::fs::remove_file(&result);
            let mut harness = caller.program(&program);
            harness
                .arg(&stockade)
                .arg(caller.workspace())
                .arg(mode)
                .arg(&result)
                .arg("--")
                .args(command);
            // The operator's configuration is wider than the policy, and doesn't count.
            let config = caller.path("home/.config/stockade");
            std::fs::create_dir_all(&config).unwrap();
            std::fs::write(
                config.join("config.toml"),
                "allow_write = [\".vscode\"]\nmode = \"danger-full-access\"\n",
            )
            .unwrap();
            let output = finish(harness.stdout(Stdio::piped()).stderr(Stdio::piped()));
            let printed = text(&output.stdout);
            let row = format!("{} {mode} {command:?} {output:?}", caller.name);
            assert!(printed.contains("before: full by "), "{row}");
            assert!(printed.contains(&format!("after: {said}")), "{row}");
        }
        assert!(caller.path("w/made").exists() && !caller.path("w/refused").exists());
    }
}
