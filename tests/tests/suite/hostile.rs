//! Hostile places: whatever state the caller is in, the command is confined as asked or a coded error says why not.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use stockade_tests::{World, as_root_and_user};

/// Runs `stockade` below a shell that first does something to itself.
fn after(world: &World, first: &str, rest: &str) -> stockade_tests::Invocation {
    let script = format!("{first}; exec {} {rest}", world.binary().display());
    world.native("bash").args(["-c", &script])
}

as_root_and_user! {
    /// L6: signals that the caller ignores are ignored by the command, and nobody waits for ever because of them.
    fn ignored_signals_are_the_commands_alone(world) {
        // A shell can't ignore SIGCHLD on behalf of others.
        let output = world
            .native("env")
            .arg("--ignore-signal=CHLD,PIPE,XFSZ")
            .arg(world.binary())
            .args(["run", "--", "sh", "-c", "grep SigIgn /proc/self/status; sleep 0.1 & wait; exit 7"])
            .run();
        output.assert_code(7);
        let (pipe, size) = (1_u64 << 12, 1 << 24);
        let ignored = output.stdout().split_whitespace().last().map(|text| u64::from_str_radix(text, 16).unwrap());
        assert_eq!(ignored.unwrap() & (pipe | size), pipe | size);
    }

    /// L6: a umask that takes the owner's rights away holds for the command, not for the log.
    fn a_umask_is_the_commands_alone(world) {
        let output = after(world, "umask 0777", "run -- sh -c 'umask; echo x > made'").run();
        output.assert_success();
        assert_eq!(output.stdout(), "0777\n");
        let mode = fs::metadata(world.workspace().join("made")).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0);
        world.stockade().args(["log", "--json"]).run().assert_success();
    }

    /// L6: a soft limit of the size of files holds for the command, not for the log.
    fn a_limit_of_files_is_the_commands_alone(world) {
        let output = after(
            world,
            "ulimit -S -f 20",
            "run -- bash -c 'ulimit -f; head -c 1000000 /dev/zero > big; exit 5'",
        )
        .run();
        output.assert_code(5);
        assert_eq!(output.stdout(), "20\n");
        assert_eq!(fs::metadata(world.workspace().join("big")).unwrap().len(), 20 << 10);
    }

    /// L10: limits that leave no room for a run are a coded error with a remedy, and nothing runs.
    fn limits_that_are_too_low_are_said(world) {
        for (limit, remedy) in [("-f 100", "ulimit -f 16384"), ("-v 500000", "ulimit -v 1048576")] {
            let output = after(world, &format!("ulimit {limit}"), "run -- touch ran").run();
            output.assert_code(125);
            assert!(output.stderr().contains("error[RUNNER_FAILED]"), "{}", output.stderr());
            assert!(output.stderr().contains(remedy), "{}", output.stderr());
            assert!(!world.workspace().join("ran").exists());
        }
    }

    /// P11: a run can't plant the operator's configuration, however the way to it is made.
    fn a_configuration_is_not_planted(world) {
        let base = world.workspace();
        for name in ["missing", "linked"] {
            let configuration = base.join(name);
            if name == "linked" {
                world.write("real/keep", "");
                std::os::unix::fs::symlink("real", &configuration).unwrap();
                world.own(&configuration);
            }
            let script = format!(
                "mkdir -p q/stockade && echo mode=1 > q/stockade/config.toml; \
                 mv -T q {name}; ln -s q {name}; ln -s q link; ln -P link {name}; \
                 test -L {name} || mkdir -p {name} && {{ mkdir {name}/stockade; ln -s ../q/stockade {name}/stockade; mv q/stockade {name}/; }}; \
                 test {name} = linked && rm {name} && mkdir -p {name}/stockade; echo x > {name}/stockade/config.toml; true"
            );
            world.run(&[]).args(["sh", "-c", &script]).env("XDG_CONFIG_HOME", &configuration).run().assert_success();
            let planted = configuration.join("stockade/config.toml");
            assert!(!planted.exists(), "{name}: {:?}", fs::read(&planted));
        }
    }

    /// L10: the state can't be read or exchanged from inside, whatever its name is made of and however it is reached.
    fn the_state_is_out_of_reach_under_every_spelling(world) {
        let odd = world.workspace().join(std::ffi::OsStr::from_bytes(b"state\xff"));
        fs::create_dir(&odd).unwrap();
        world.own(&odd);
        let link = world.workspace().join("link");
        std::os::unix::fs::symlink(&odd, &link).unwrap();
        world.own(&link);
        for state in [&link, &odd] {
            let output = world
                .run(&[])
                .args(["sh", "-c", "cat state*/sessions/*/log.db; ls state*; rm link && mkdir link; mv state* else"])
                .env("STOCKADE_STATE", state)
                .run();
            assert_ne!(output.code, 0);
            assert_eq!(output.stdout(), "");
            assert!(odd.is_dir() && (state == &odd || link.is_symlink()));
        }
    }

    /// P10: a link can't give a denied path, which doesn't exist yet, another file.
    fn a_denied_path_is_not_made_by_a_link(world) {
        let output = world
            .run(&["--deny-write", "a/key", "--deny-read", "b/key"])
            .args(["sh", "-c", "mkdir x; echo x > x/key; ln -s x a; ln -s x b; ln -s x c; cat c/key"])
            .run();
        output.assert_success();
        assert_eq!(output.stdout(), "x\n");
        for name in ["a", "b"] {
            assert!(!world.workspace().join(name).is_symlink(), "{name}");
        }
    }

    /// P10: what is denied and doesn't exist is no error; that the host could make it is a gap that is said.
    fn a_denied_path_need_not_exist(world) {
        let (output, result) = world.run_with_result(&["--deny-read", "/missing/top"], &["true"]);
        output.assert_success();
        let gaps = result["enforcement"]["gaps"].as_array().unwrap();
        assert!(gaps.iter().any(|gap| gap == "late-denied-paths"), "{result}");
        world.run(&["--require-full", "--deny-read", "/missing/top"]).arg("true").run().assert_code(125);
    }

    /// L10: Stockade's own directories are no workspace.
    fn the_state_is_no_workspace(world) {
        world.run(&[]).arg("true").run().assert_success();
        let state = world.state().join("stockade");
        for place in [state.clone(), state.join("sessions")] {
            let output = world.stockade().args(["run", "--workspace"]).arg(&place).args(["--", "true"]).run();
            output.assert_code(125);
            assert!(output.stderr().contains("error[POLICY_INVALID]"), "{}", output.stderr());
        }
    }

    /// L10: without `/proc` nothing runs, and the help is about `/proc`.
    fn a_missing_proc_is_named(world) {
        if !rustix::process::geteuid().is_root() {
            stockade_tests::skip(world.name(), "only root can take /proc away");
            return;
        }
        let (uid, gid) = world.ids();
        let hide = format!("umount -l /proc && exec setpriv --reuid {uid} --regid {gid} --clear-groups -- \"$@\"");
        for words in [&["run", "--", "touch", "ran"][..], &["run", "--backend", "landlock", "--", "touch", "ran"], &["doctor"]] {
            let output = std::process::Command::new("unshare")
                .args(["--mount", "sh", "-c", &hide, "sh"])
                .arg(world.binary())
                .args(words)
                .current_dir(world.workspace())
                .env("STOCKADE_STATE", world.state())
                .output()
                .unwrap();
            let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert_ne!(output.status.code(), Some(0), "{said}");
            assert!(said.contains("mount -t proc proc /proc") && !said.contains("boot a kernel") && !said.contains("container forbids"), "{said}");
        }
        assert!(!world.workspace().join("ran").exists());
    }

    /// L10: where whoever made this user namespace forbids further ones, that is what the help says.
    fn forbidden_namespaces_are_named(world) {
        if world.identity().is_root() || !world.has("bwrap") {
            return;
        }
        let output = world
            .native("bwrap")
            .args(["--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"])
            .arg(world.binary())
            .args(["run", "--backend", "bwrap", "--", "touch", "ran"])
            .run();
        output.assert_code(125);
        let said = output.stderr();
        assert!(said.contains("error[SANDBOX_UNAVAILABLE]") && said.contains("max_user_namespaces is") && !said.contains("this container"), "{said}");
        assert!(!world.workspace().join("ran").exists());
    }

    /// P6: a variable doesn't make a directory writable that isn't one for temporary files, `--writable` does.
    fn a_temporary_directory_is_one_for_temporary_files(world) {
        let home = world.home();
        let write = |place: &std::path::Path| format!("echo x > '{}/written'", place.display());
        for options in [&[][..], &["--mode", "read-only"]] {
            let output = world.run(options).args(["sh", "-c", &write(&home)]).env("TMPDIR", &home).run();
            assert_ne!(output.code, 0, "{}", output.stderr());
            assert!(output.stderr().contains("TMPDIR"), "{}", output.stderr());
        }
        if world.identity().is_root() {
            // Root could write there, and it is root's own.
            let place = std::path::Path::new("/etc");
            let output = world.run(&[]).args(["sh", "-c", &write(place)]).env("TMPDIR", place).run();
            assert_ne!(output.code, 0, "{}", output.stderr());
            assert!(!place.join("written").exists());
        }
        assert!(!home.join("written").exists());
        let named = home.to_str().unwrap();
        world.run(&["--writable", named]).args(["sh", "-c", &write(&home)]).env("TMPDIR", &home).run().assert_success();
        assert!(home.join("written").exists());
        let private = home.join("private");
        fs::create_dir(&private).unwrap();
        fs::set_permissions(&private, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        world.own(&private);
        for place in [world.tmp(), private] {
            let output = world.run(&[]).args(["sh", "-c", &write(&place)]).env("TMPDIR", &place).run();
            assert_eq!(output.assert_success().stderr(), "");
            assert!(place.join("written").exists());
        }
    }

    /// L10: a state directory that can't be written, or that nobody names, is an error with a remedy.
    fn a_home_that_cannot_be_written_is_said(world) {
        for name in ["HOME", "XDG_STATE_HOME"] {
            let output = world.run(&[]).args(["touch", "ran"]).env("XDG_STATE_HOME", "").env(name, "/proc/nowhere").run();
            output.assert_code(125);
            assert!(output.stderr().contains("help: set STOCKADE_STATE"), "{}", output.stderr());
        }
        let output = world.run(&[]).args(["touch", "ran"]).env("XDG_STATE_HOME", "").env("HOME", "").run();
        output.assert_code(125);
        assert!(output.stderr().contains("error[CONFIG_INVALID]") && output.stderr().contains("help: set STOCKADE_STATE"), "{}", output.stderr());
    }

    /// L6: a long command line and a large environment reach the command whole.
    fn long_arguments_arrive(world) {
        let word = "y".repeat(100_000);
        let output = world
            .run(&[])
            .args(["sh", "-c", "echo $# ${#9} ${#LARGE1} ${#LARGE5}", "sh"])
            .args(vec![&word; 10])
            .envs(&[("LARGE1", &word), ("LARGE2", &word), ("LARGE3", &word), ("LARGE4", &word), ("LARGE5", &word)])
            .run();
        assert_eq!(output.assert_success().stdout(), "10 100000 100000 100000\n");
    }

    /// L6: descriptors that the caller left open don't reach the command; where they leave no room, that is said.
    fn open_descriptors_stay_outside(world) {
        let open = "import os, resource, sys\n\
             hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n\
             resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n\
             left = int(sys.argv[1])\n\
             for n in range(min(100000, hard - left)): os.set_inheritable(os.open('/dev/null', 0), True)\n\
             os.execv(sys.argv[2], sys.argv[2:])";
        let run = |left: &str| {
            world.native("python3").args(["-c", open, left]).arg(world.binary()).args(["run", "--", "sh", "-c", "ls /proc/self/fd | wc -l"]).run()
        };
        assert_eq!(run("300").assert_success().stdout(), "4\n");
        // With a higher limit than the hundred thousand there is room.
        if rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.is_some_and(|most| most < 100_000) {
            let output = run("30");
            output.assert_code(125);
            assert!(output.stderr().contains("error[RUNNER_FAILED]") && output.stderr().contains("ulimit -H -n"), "{}", output.stderr());
        }
    }

    /// L10: the state in a mount's source can't be read or changed through the mount, and is no source itself.
    fn a_mount_keeps_the_state_out(world) {
        let state = world.workspace().join("state");
        let at = world.directory().join("at");
        fs::create_dir(&at).unwrap();
        world.own(&at);
        world.stockade().args(["session", "new", "--name", "s"]).env("STOCKADE_STATE", &state).run().assert_success();
        let (source, target) = (world.workspace(), at.to_str().unwrap().to_owned());
        if !world.identity().is_root() && !world.has("fusermount3") {
            return;
        }
        world.stockade().args(["mount", "--daemon", "-q", source.to_str().unwrap(), &target]).env("STOCKADE_STATE", &state).run().assert_success();
        let script = format!("cd '{target}'; echo x > plain; ls state; cat state/sessions/*/log.db; mv state other; rm -r state; echo x > state/x");
        let output = world.native("sh").args(["-c", &script]).run();
        world.stockade().args(["umount", &target]).env("STOCKADE_STATE", &state).run().assert_success();
        assert_eq!(output.stdout(), "", "{}", output.stderr());
        assert!(source.join("plain").exists() && state.join("sessions").is_dir() && !state.join("x").exists());
        let output = world.stockade().args(["mount", state.to_str().unwrap(), &target]).env("STOCKADE_STATE", &state).run();
        output.assert_code(125);
        assert!(output.stderr().contains("error[POLICY_INVALID]"), "{}", output.stderr());
    }
}
