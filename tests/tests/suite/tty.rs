//! `stockade run --tty`: a terminal of the command's own (L6, L7).

use std::fs;

use serde_json::{Value, json};
use stockade_tests::{World, as_root_and_user};

use crate::program;

as_root_and_user! {
    /// The command has a terminal where its caller has none, and gets what is piped in as if it were typed; nothing that it writes is
    /// lost, its status and its result are those of any run.
    fn a_command_has_a_terminal_where_its_caller_has_none(world) {
        let script = "test -t 0 && test -t 1 && test -t 2 && stty size && tty && ps -o sid= -p $$ | tr -d ' ' && echo $$ && seq 20000; read x; echo got $x; \
            read y || echo no more; exit 7";
        for backend in ["bwrap", "landlock"].into_iter().filter(|backend| *backend == "landlock" || world.has("bwrap")) {
            let result = world.result_file();
            let output = world.stockade().args(["run", "-q", "--tty", "--backend", backend, "--result"]).arg(&result)
                .args(["--", "sh", "-c", script]).input("hello\n").run();
            output.assert_code(7);
            let lines: Vec<String> = (1..=20000).map(|number| number.to_string()).collect();
            let pid = output.stdout().lines().nth(3).unwrap_or_default().trim().to_owned();
            let expected = format!("24 80\n/dev/console\n{pid}\n{pid}\n{}\ngot hello\nno more\n", lines.join("\n")).replace('\n', "\r\n");
            // What is typed shows, whenever the terminal gets it.
            assert_eq!(output.stdout().replacen("hello\r\n", "", 1), expected, "{backend}: {}", output.stderr());
            let result: Value = World::read_result(&result, &output);
            assert_eq!((&result["outcome"], &result["exit_code"]), (&json!("exited"), &json!(7)));
        }
    }

    /// L7: the session's mode can't change while the terminal lives, as with `stockade shell`.
    fn the_mode_is_locked_while_the_terminal_lives(world) {
        let session = world.stockade().args(["session", "new"]).run().stdout().trim().to_owned();
        let script = "echo > started; until test -e go; do sleep 0.02; done; exit 3";
        let mut running = world.run(&["-q", "--session", &session, "--tty"]).args(["sh", "-c", script]).spawn();
        running.wait_until("it runs", || world.workspace().join("started").exists());
        let change = || world.stockade().args(["session", "mode", &session, "read-only"]).run();
        let refused = change();
        refused.assert_code(125);
        assert!(refused.stderr().contains("SESSION_BUSY"), "{}", refused.stderr());
        world.write("go", "");
        running.wait().assert_code(3);
        change().assert_success();
    }

    /// Full-screen programs and job control, on a terminal of a person's that changes its size; afterwards that is as it was.
    fn full_screen_programs_and_job_control(world) {
        if !["vim", "bwrap"].iter().all(|program| world.has(program)) {
            return;
        }
        let driver = program::install(world, "terminal.py", program::TERMINAL);
        for backend in ["bwrap", "landlock"] {
            let vim = format!("clear; vim -u NONE -i NONE -N -c 'set ls=2 stl=%t:%{{&columns}}x%{{&lines}}' {backend}.txt\n");
            let steps = json!([
                ["ready>", vim],
                [".txt:80x30", "ihello\u{1b}:w\n"],
                // Stopped in the middle, and brought back to a window of another size.
                ["written", "\u{1a}"],
                ["Stopped", "clear; echo ba''ck\n"],
                ["back\nready>", "fg\n"],
                [".txt:80x30", "", 100, 30],
                [".txt:100x30", ":q\n"],
                // What a program has left on the screen mustn't pass for the prompt.
                ["ready>", "clear; echo o''ne\n"],
                ["one\nready>", "clear; python3 -qic 'import os'\n"],
                [">>>", "print(os.get_terminal_size().columns * 1000)\n"],
                ["100000", "exit()\n"],
                // The trap is there before the text that is waited for.
                ["ready>", "clear; sh -c 'trap \"echo caught; exit\" INT; echo o\"\"k; while :; do sleep 0.05; done'\n"],
                ["ok", "\u{3}"],
                ["caught\nready>", "clear; stty size\n"],
                ["30 100\nready>", "exit 7\n"],
            ]);
            let result = world.result_file();
            let output = world.native("/usr/bin/python3").args(["-I"]).arg(&driver).args(["80", "30", &steps.to_string()])
                .arg(world.binary()).args(["run", "-q", "--tty", "--backend", backend, "--env", "PS1=ready> ", "--result"]).arg(&result)
                .args(["--", "/bin/bash", "--norc", "-i"]).run();
            let text = output.stdout();
            assert!(text.contains("terminal as before: True steps left: 0"), "{backend}: {text}\n{}", output.stderr());
            output.assert_code(7);
            let result: Value = World::read_result(&result, &output);
            assert_eq!((&result["outcome"], &result["exit_code"], &result["backend"]), (&json!("exited"), &json!(7), &json!(backend)));
            assert_eq!(fs::read_to_string(world.workspace().join(format!("{backend}.txt"))).unwrap(), "hello\n");
        }
    }
}
