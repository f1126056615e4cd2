//! Exit status, standard streams, working directory, signals: as with `exec` (L6, CONTRACT 5).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stockade_tests::as_root_and_user;

as_root_and_user! {
    /// L6, L5: the command's own status, and what the result says of it.
    fn the_status_is_the_commands_own(world) {
        for code in [0, 1, 2, 42, 124, 125, 126, 127, 128, 130, 137, 255] {
            let (output, result) = world.run_with_result(&[], &["sh", "-c", &format!("exit {code}")]);
            output.assert_code(code);
            assert_eq!(output.stderr(), "", "exit {code}");
            assert_eq!(result["outcome"], "exited", "exit {code}");
            assert_eq!(result["exit_code"], code);
            assert!(result["signal"].is_null());
        }
    }

    /// L6: 128 plus the signal.
    fn a_signal_is_told_apart(world) {
        for (name, number) in [("HUP", 1), ("INT", 2), ("QUIT", 3), ("ABRT", 6), ("KILL", 9), ("USR1", 10), ("SEGV", 11), ("PIPE", 13), ("TERM", 15)] {
            let (output, result) = world.run_with_result(&[], &["sh", "-c", &format!("ulimit -c 0; kill -{name} $$")]);
            output.assert_code(128 + number);
            assert_eq!(result["outcome"], "signaled", "{name}");
            assert_eq!(result["signal"], number, "{name}");
        }
    }

    /// CONTRACT 5: what can't be started.
    fn a_command_that_cannot_be_started(world) {
        world.write("plain", "#!/bin/sh\n");
        world.write("bad-interpreter", "#!/no/such/interpreter\n");
        fs::set_permissions(world.workspace().join("bad-interpreter"), fs::Permissions::from_mode(0o755)).unwrap();
        for (command, code) in [("no-such-command-anywhere", 127), ("/no/such/path", 127), ("./plain", 126), ("/etc", 126), ("./bad-interpreter", 127)] {
            let (output, result) = world.run_with_result(&[], &[command]);
            output.assert_code(code);
            // Whether 127 came from the command itself or from the launcher can be told (L5).
            assert_eq!(result["outcome"], "runner_failed", "{command}: {result:#}");
            let stderr = output.stderr();
            assert!(stderr.contains(command) && stderr.starts_with("stockade: error["), "{command}: {stderr}");
        }
    }

    /// L6: arguments are bytes and arrive untouched.
    fn arguments_arrive_untouched(world) {
        let odd: [&[u8]; 7] = [b"", b"two words", b"--", b"-q", b"new\nline", b"\xff\xfe", "\u{fc}*?$HOME".as_bytes()];
        let output = world.run(&[]).args(["printf", "%s|"]).args(odd.map(OsStr::from_bytes)).run();
        output.assert_success();
        assert_eq!(output.stdout, b"|two words|--|-q|new\nline|\xff\xfe|\xc3\xbc*?$HOME|");
    }

    /// L6: the three streams are the caller's own.
    fn the_streams_are_the_callers(world) {
        let input = b"line\n".repeat(100_000);
        let output = world.run(&[]).args(["sh", "-c", "cat; echo done >&2; exit 3"]).input(input.clone()).run();
        output.assert_code(3);
        assert_eq!(output.stdout, input);
        assert_eq!(output.stderr(), "done\n");
        let closed = world.native("sh").args(["-c", "yes | \"$1\" run -- head -n 1; exec \"$1\" run -- sh -c 'readlink /proc/self/fd/0' <f", "sh"])
            .arg(world.binary());
        world.write("f", "x");
        assert_eq!(closed.run().stdout(), format!("y\n{}\n", world.workspace().join("f").display()));
    }

    /// L6, L8: the working directory, at the same spelling, below the workspace too.
    fn the_working_directory_is_kept(world) {
        world.write("a/b/f", "deep\n");
        let deep = world.workspace().join("a/b");
        let workspace = world.workspace();
        let output = world.run(&["--workspace", workspace.to_str().unwrap()]).args(["sh", "-c", "pwd; /bin/pwd; cat f; echo x > g"]).directory(&deep).run();
        output.assert_success();
        assert_eq!(output.stdout(), format!("{0}\n{0}\ndeep\n", deep.display()));
        assert_eq!(fs::read(deep.join("g")).unwrap(), b"x\n");
        // A workspace reached over a symlink has its canonical path inside (P5).
        let link = world.directory().join("link");
        symlink(world.workspace(), &link).unwrap();
        let output = world.run(&[]).args(["sh", "-c", "cd -P . && pwd; cat a/b/f"]).directory(&link).run();
        output.assert_success();
        assert_eq!(output.stdout(), format!("{}\ndeep\n", world.workspace().display()));
    }

    /// CONTRACT 5: the environment is the caller's, and three variables more.
    fn the_environment_is_kept(world) {
        let output = world.run(&["--mode", "read-only"]).args(["sh", "-c", "echo $A $STOCKADE_MODE $HOME; test -n \"$STOCKADE_SESSION\" && test -n \"$STOCKADE_RUN\""]).env("A", "b").run();
        output.assert_success();
        assert_eq!(output.stdout(), format!("b read-only {}\n", world.home().display()));
    }

    /// L6: a command that handles Ctrl-C decides itself.
    fn a_handled_interrupt_is_the_commands_affair(world) {
        let script = "import signal, sys, time\n\
                      def caught(*_):\n print('caught', flush=True); sys.exit(7)\n\
                      signal.signal(signal.SIGINT, caught)\n\
                      open('ready', 'w').close()\n\
                      time.sleep(60)";
        let mut running = world.run(&[]).args(["/usr/bin/python3", "-I", "-S", "-B", "-c", script]).spawn();
        let ready = world.workspace().join("ready");
        running.wait_until("it is ready", || ready.exists());
        running.signal_group(Signal::INT);
        let output = running.wait();
        output.assert_code(7);
        assert_eq!(output.stdout(), "caught\n");
    }

    /// L6: signals that are ignored at the start stay ignored, as over `exec`; the others have their default.
    fn signal_dispositions_are_as_with_exec(world) {
        let script = "trap '' HUP USR2; exec \"$@\"";
        let show = ["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"];
        let native = world.native("sh").args(["-c", script, "sh"]).args(show).run();
        let inside = world.native("sh").args(["-c", script, "sh"]).arg(world.binary()).args(["run", "--"]).args(show).run();
        native.assert_success();
        assert_eq!(inside.stdout(), native.stdout());
    }

    /// L6, L7: a command that leaves its process group, as a shell with job control does, is seen to end.
    fn a_command_in_a_process_group_of_its_own_ends(world) {
        let script = "import os, sys; os.setpgid(0, 0); sys.exit(5)";
        world.run(&[]).args(["/usr/bin/python3", "-I", "-S", "-c", script]).run().assert_code(5);
        let shell = world.stockade().arg("shell").env("SHELL", "/bin/bash").input("exit 5\n").run();
        shell.assert_code(5);
    }

    /// CONTRACT 5: the time is up.
    fn a_timeout_ends_it(world) {
        let started = Instant::now();
        let (output, result) = world.run_with_result(&["--timeout", "500ms"], &["sh", "-c", "sleep 60"]);
        output.assert_code(124);
        assert_eq!(result["outcome"], "timed_out");
        assert!(started.elapsed() < Duration::from_secs(15));
        // One that ignores the polite request ends too.
        let output = world.run(&["--timeout", "500ms"]).args(["sh", "-c", "trap '' TERM INT; while :; do sleep 1; done"]).deadline(Duration::from_secs(60)).run();
        output.assert_code(124);
        // One that is quick enough isn't touched.
        world.run(&["--timeout", "30s"]).args(["sh", "-c", "exit 5"]).run().assert_code(5);
    }

    /// L1, L2: without the backend nothing runs, and it says what to do.
    fn without_bubblewrap_nothing_runs(world) {
        let bin = world.directory().join("bin");
        fs::create_dir(&bin).unwrap();
        for program in ["sh", "touch", "true"] {
            symlink(format!("/usr/bin/{program}"), bin.join(program)).unwrap();
        }
        let file = world.result_file();
        let output = world.stockade().args(["run", "--result"]).arg(&file).args(["--backend", "bwrap", "--", "sh", "-c", "echo ran; touch ran"]).env("PATH", &bin).run();
        output.assert_code(125);
        assert_eq!(output.stdout(), "");
        let stderr = output.stderr();
        assert!(stderr.starts_with("stockade: error[SANDBOX_UNAVAILABLE]: "), "{stderr}");
        assert!(stderr.contains("help: ") && stderr.contains("bubblewrap"), "{stderr}");
        assert!(!world.workspace().join("ran").exists());
        assert_eq!(stockade_tests::World::read_result(&file, &output)["outcome"], "unavailable");
    }

    /// CONTRACT 5: mistakes on the command line run nothing and end with 125.
    fn a_mistake_runs_nothing(world) {
        let cases: [&[&str]; 5] = [
            &["run", "--mode", "no-such-mode", "--", "touch", "ran"],
            &["run", "--no-such-option", "--", "touch", "ran"],
            &["run", "--timeout", "soon", "--", "touch", "ran"],
            &["run", "--workspace", "/no/such/directory", "--", "touch", "ran"],
            &["run"],
        ];
        for arguments in cases {
            let output = world.stockade().args(arguments).run();
            assert_eq!(output.code, 125, "{arguments:?}: {}", output.stderr());
            assert!(!output.stderr.is_empty(), "{arguments:?}");
            assert!(!world.workspace().join("ran").exists(), "{arguments:?}");
        }
    }
}
