//! Back ends: the chain, what each says that it enforces, and that none runs less confined than it says (L1–L4).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::{Value, json};
use stockade_tests::{Output, World, as_root_and_user};

/// A `PATH` with everything but bubblewrap.
fn path_without_bubblewrap(world: &World) -> PathBuf {
    let bin = world.directory().join("bin");
    fs::create_dir(&bin).unwrap();
    for entry in fs::read_dir("/usr/bin").unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "bwrap" {
            symlink(entry.path(), bin.join(entry.file_name())).unwrap();
        }
    }
    bin
}

/// Runs a command where no namespaces can be made. Needs bubblewrap to take them away.
fn without_namespaces(world: &World, options: &[&str], command: &[&str]) -> (Output, Value) {
    let file = world.result_file();
    let output = world
        .native("bwrap")
        .args(["--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"])
        .arg(world.binary())
        .args(["run", "--result"])
        .arg(&file)
        .args(options)
        .arg("--")
        .args(command)
        .run();
    (output.clone(), World::read_result(&file, &output))
}

as_root_and_user! {
    /// L2: without bubblewrap Landlock takes over, in namespaces of our own; the file system serves and records as ever.
    fn the_chain_goes_on_to_landlock(world) {
        let path = path_without_bubblewrap(world);
        let file = world.result_file();
        let script = format!(
            "echo in > in && cat in; echo out > {0}/x; rm -rf {0}/kept; mkdir .git; echo x > .git/hooks; \
             echo x > /dev/null && echo shm > /dev/shm/x && cat /dev/shm/x; ls /proc | grep -c '^[0-9]'; test -r {1} && ls -A {1}; kill -0 1",
            world.outside().display(), world.state().join("stockade").display()
        );
        fs::write(world.outside().join("kept"), "kept").unwrap();
        world.own(&world.outside().join("kept"));
        let output = world.stockade().args(["run", "-q", "--result"]).arg(&file)
            .args(["--deny-write", "never", "--", "sh", "-c", &format!("{script}; echo x > never")]).env("PATH", &path).run();
        let result = World::read_result(&file, &output);
        assert_eq!(result["backend"], "landlock", "{result:#}");
        let gaps = if world.identity().is_root() { json!(["raw-devices"]) } else { json!([]) };
        assert_eq!(result["enforcement"]["gaps"], gaps);
        assert!(output.stdout().starts_with("in\nshm\n"), "{} {}", output.stdout(), output.stderr());
        assert_eq!(output.stderr().matches("Read-only file system").count(), 3, "{}", output.stderr());
        assert!(!world.outside().join("x").exists() && world.outside().join("kept").exists());
        assert!(result["changes"]["created"].to_string().contains("/w/in"), "{result:#}");
        assert_eq!(result["denial_count"], 1, "{result:#}");
        // The processes are the run's own.
        let processes: u32 = output.stdout().lines().nth(2).unwrap().parse().unwrap();
        assert!(processes < 10, "{processes} processes are seen");
        assert_eq!(world.run(&["--backend", "landlock", "--mode", "danger-full-access", "-q"]).args(["sh", "-c", "echo f > d; cat d"]).run().stdout(), "f\n");
    }

    /// L2: a state directory in shared memory isn't seen under either back end, and keeps neither from starting.
    fn a_state_in_shared_memory_is_out_of_sight(world) {
        let state = tempfile::tempdir_in("/dev/shm").unwrap();
        world.own(state.path());
        for backend in ["auto", "landlock"] {
            let script = format!("ls -A {}; echo over", state.path().display());
            let output = world.run(&["-q", "--backend", backend]).env("STOCKADE_STATE", state.path()).args(["sh", "-c", &script]).run();
            assert_eq!(output.stdout(), "over\n", "{backend}: {}", output.stderr());
        }
    }

    /// L2, P9: a preset needs something that confines, which needn't be bubblewrap.
    fn a_preset_is_content_with_landlock(world) {
        let path = path_without_bubblewrap(world);
        let file = world.home().join("asks.toml");
        fs::write(&file, "approver = [\"true\"]\n").unwrap();
        let new = world.stockade().args(["session", "new", "--preset", "workspace-write", "--config"]).arg(&file).env("PATH", &path).run();
        new.assert_success();
    }

    /// L12: root's command keeps nine capabilities under this back end too, and no mount can be changed.
    fn landlock_leaves_no_rights_to_undo_it(world) {
        let script = "grep -h CapPrm /proc/self/status; mount -o remount,rw / ; umount /proc; mount -t tmpfs none /mnt; unshare -m true; unshare -Um true; echo over";
        let output = world.run(&["-q", "--backend", "landlock"]).args(["sh", "-c", script]).run();
        let capabilities = if world.identity().is_root() { "00000000800004fb" } else { "0000000000000000" };
        assert_eq!(output.stdout(), format!("CapPrm:\t{capabilities}\nover\n"));
        let script = "exec 2>&1; unshare -Urm mount -o remount,rw / ; unshare -Urm umount /proc; unshare -Urm mount -t tmpfs none /mnt; echo x > /opt/stockade-suite";
        let output = world.run(&["-q", "--backend", "landlock"]).args(["sh", "-c", script]).run();
        assert_ne!(output.code, 0, "{}", output.stdout());
    }

    /// L2, L3: where no namespaces can be made, Landlock alone confines writes, says all that is missing, and no process is
    /// left. What it can't keep at all isn't run unless it is asked for by name.
    fn landlock_alone_says_what_is_missing(world) {
        // Root makes namespaces whatever is forbidden to others.
        if world.identity().is_root() || !world.has("bwrap") {
            return;
        }
        let script = format!("echo in > in; cat in; echo out > {0}/x; mkdir {0}/d; setsid sleep 300 & echo x > /dev/null; exit 3", world.outside().display());
        let (output, result) = without_namespaces(world, &[], &["sh", "-c", &script]);
        output.assert_code(3);
        assert_eq!(output.stdout(), "in\n");
        assert!(output.stderr().contains("stockade: not enforced: unobserved, "), "{}", output.stderr());
        assert_eq!(output.stderr().matches("Permission denied").count(), 2, "{}", output.stderr());
        assert!(!world.outside().join("x").exists() && !world.outside().join("d").exists());
        assert_eq!((&result["backend"], &result["enforcement"]["level"]), (&json!("landlock"), &json!("partial")));
        let (output, _) = without_namespaces(world, &["--require-full"], &["touch", "ran"]);
        output.assert_code(125);
        for options in [&["--deny-read", "/etc/passwd"][..], &["--guard", "enforce"], &["--backend", "bwrap"]] {
            let (output, result) = without_namespaces(world, options, &["touch", "ran"]);
            output.assert_code(125);
            assert!(output.stderr().contains("SANDBOX_UNAVAILABLE") && output.stderr().contains("help: "), "{}", output.stderr());
            assert_eq!(result["outcome"], "unavailable", "{options:?}");
        }
        assert!(!world.workspace().join("ran").exists());
        let (output, result) = without_namespaces(world, &["-q", "--backend", "landlock", "--deny-read", "/etc/passwd"], &["true"]);
        output.assert_success();
        assert!(result["enforcement"]["gaps"].to_string().contains("deny-rules"), "{result:#}");
    }

    /// L3: the runner's contract, `LANDLOCK.md`, under each ABI that this kernel can play.
    fn the_runner_keeps_its_contract(world) {
        let runner = || world.stockade().arg("--stockade-landlock");
        let probed = runner().arg("--probe").run();
        probed.assert_success();
        assert!(probed.stdout().ends_with("probe ok\n"), "{}", probed.stdout());
        let newest: u32 = probed.stdout().lines().next().unwrap().strip_prefix("abi ").unwrap().parse().unwrap();
        let outside = world.outside();
        world.write("d/f", "");
        for abi in 1..=newest {
            let script = format!(
                "echo in > in || exit 1; for try in 'echo x > {0}/x' 'mkdir {0}/x' 'ln -s x {0}/x' 'mkfifo {0}/x' 'mv in {0}/x' 'ln in {0}/x' 'cp in {0}/x'; do \
                 if sh -c \"$try\" 2>/dev/null; then echo \"$try\"; fi; done; exit 7", outside.display());
            let output = world.native("bash").args(["-c", "exec \"$@\" 5>report", "bash"]).arg(world.binary()).arg("--stockade-landlock")
                .args(["--abi", &abi.to_string(), "--report-fd", "5", "--writable"]).arg(world.workspace())
                .args(["--writable", "/dev/null", "--", "sh", "-c", &script]).run();
            output.assert_code(7);
            assert_eq!(output.stdout(), "", "went through under ABI {abi}");
            let report = fs::read_to_string(world.workspace().join("report")).unwrap();
            assert!(report.starts_with(&format!("abi {abi}\ngap ")) && report.ends_with("\nenforced\n"), "{report}");
            assert_eq!(report.contains("gap truncate\n"), abi < 3, "{abi}: {report}");
            // A gap that is named is real, and one that isn't named isn't there.
            let victim = outside.join("victim");
            fs::write(&victim, "content").unwrap();
            world.own(&victim);
            drop(runner().args(["--abi", &abi.to_string(), "--", "/usr/bin/python3", "-I", "-c", "import os,sys; os.truncate(sys.argv[1], 0)"]).arg(&victim).run());
            assert_eq!(fs::read(&victim).unwrap().is_empty(), abi < 3, "truncate under ABI {abi}");
        }
        let metadata = outside.join("victim");
        runner().args(["--", "chmod", "600"]).arg(&metadata).run().assert_success();
        for wrong in [&["--abi", "99", "--", "touch", "ran"][..], &["touch", "ran"], &["--writable", "/no/such", "--", "touch", "ran"], &["--report-fd", "77", "--", "touch", "ran"], &["--"]] {
            let output = runner().args(wrong).run();
            output.assert_code(125);
            assert!(output.stderr().starts_with("stockade-landlock: fatal: ") && output.stderr().lines().count() == 1, "{}", output.stderr());
        }
        assert!(!world.workspace().join("ran").exists());
        runner().args(["--", "no-such-command"]).run().assert_code(127);
        runner().args(["--", "/etc/passwd"]).run().assert_code(126);
    }

    /// L4: the operator's own program confines, and the result says so; one that the command could replace isn't taken.
    fn a_custom_runner_is_the_operators_word(world) {
        if !world.has("bwrap") {
            return;
        }
        let runner = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--bind"];
        let workspace = world.workspace();
        let workspace = workspace.to_str().unwrap();
        let mut options = vec!["--backend", "custom"];
        for word in runner.iter().copied().chain([workspace, workspace]) {
            options.extend(["--runner", word]);
        }
        let script = format!("echo in > in; echo out > {}/x; mkdir .git; echo x > .git/config.lock; mv .git/config.lock .git/hooks", world.outside().display());
        let (output, result) = world.run_with_result(&options, &["sh", "-c", &script]);
        assert_eq!((&result["backend"], &result["enforcement"]["level"]), (&json!("custom"), &json!("full")), "{}", output.stderr());
        assert!(world.workspace().join("in").exists() && !world.outside().join("x").exists());
        assert!(result["changes"]["created"].to_string().contains("/w/in"));
        world.write("fake", "#!/bin/sh\n");
        fs::set_permissions(world.workspace().join("fake"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        for words in [&[][..], &["--runner", "no-such-program"], &["--runner", "/etc/passwd"], &["--runner", &format!("{workspace}/fake")]] {
            let options = [&["--backend", "custom"], words].concat();
            let (output, _) = world.run_with_result(&options, &["touch", "ran"]);
            output.assert_code(125);
            assert!(output.stderr().contains("error[CONFIG_INVALID]"), "{words:?} {}", output.stderr());
        }
        assert!(!world.workspace().join("ran").exists());
    }
}
