//! `stockade shell` on a terminal, as a person uses it (L6, L7).

use std::fs;

use serde_json::{Value, json};
use stockade_tests::{World, as_root_and_user};

use crate::program;

as_root_and_user! {
    /// L7: a full-screen program works, also when its window changes its size; the terminal is as it was at the end, and the
    /// result is there.
    fn a_full_screen_program_works_in_a_shell(world) {
        if !["vim", "bwrap"].iter().all(|program| world.has(program)) {
            return;
        }
        let driver = program::install(world, "terminal.py", program::TERMINAL);
        fs::write(world.home().join(".bashrc"), "PS1='ready> '\n").unwrap();
        world.own_tree(&world.home());
        for backend in ["bwrap", "landlock"] {
            let vim = format!("clear; vim -u NONE -N -c 'set ls=2 stl=%t:%{{&columns}}x%{{&lines}}' {backend}.txt\n");
            let steps = json!([
                ["ready>", vim],
                [".txt:80x24", "ihello\u{1b}:w\n"],
                ["written", ":q\n"],
                // A window that grows while a full-screen program has it.
                ["ready>", "clear; echo o''ne\n"],
                ["one\nready>", vim],
                [".txt:80x24", "", 100, 30],
                [".txt:100x30", ":q\n"],
                ["ready>", "clear; stty size\n"],
                ["30 100\nready>", "exit 7\n"],
            ]);
            let result = world.result_file();
            let output = world.native("/usr/bin/python3").args(["-I"]).arg(&driver).args(["80", "24", &steps.to_string()])
                .arg(world.binary()).args(["shell", "-q", "--backend", backend, "--result"]).arg(&result)
                .env("SHELL", "/bin/bash").run();
            let text = output.stdout();
            assert!(text.contains("terminal as before: True steps left: 0"), "{backend}: {text}\n{}", output.stderr());
            output.assert_code(7);
            let result: Value = World::read_result(&result, &output);
            assert_eq!((&result["outcome"], &result["exit_code"], &result["backend"]), (&json!("exited"), &json!(7), &json!(backend)));
            assert_eq!(fs::read_to_string(world.workspace().join(format!("{backend}.txt"))).unwrap(), "hello\n");
        }
    }
}
