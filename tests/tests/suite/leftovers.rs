//! Nothing is left after a run, however it ends: no process, no mount, no file (L6, L10, F7).

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stockade_tests::{Digest, Facets, Invocation, Output, World, as_root_and_user};

/// A command that would go on for ever, with a descendant in a session of its own that ignores what it can, files held open
/// and one that is being written.
const STUBBORN: &str = "exec 7>>held; echo kept > kept; \
     setsid sh -c 'trap \"\" INT TERM HUP; while :; do echo x >> /tmp/by-child; sleep 0.05; done' & \
     exec 8> unfinished; echo part >&8; trap 'exit 77' INT TERM; echo ready > ready; while :; do sleep 0.05; done";

/// What is in the workspace before the run.
fn workspace(world: &World) -> Digest {
    world.write("source", "source\n");
    Digest::of(&world.workspace())
}

/// Starts the stubborn command and waits until it is at work.
fn start(world: &World, options: &[&str]) -> stockade_tests::Running {
    let ready = world.workspace().join("ready");
    let mut running =
        world.run(options).args(["sh", "-c", STUBBORN]).deadline(Duration::from_secs(60)).spawn();
    running.wait_until("the command is at work", || ready.exists());
    running
}

/// What is in the workspace after the run is what the command made, and nothing of Stockade's.
fn assert_only_what_was_made(world: &World, before: &Digest) {
    let known: [&[u8]; 5] = [b"", b"held", b"kept", b"ready", b"unfinished"];
    let after = Digest::of(&world.workspace()).without(|name| known.contains(&name));
    before.clone().without(<[u8]>::is_empty).assert_same(
        &after,
        Facets::Untouched,
        "the workspace has something new",
    );
    assert_eq!(fs::read(world.workspace().join("kept")).unwrap(), b"kept\n");
    let unfinished = fs::read(world.workspace().join("unfinished")).unwrap_or_default();
    assert!(unfinished.is_empty() || unfinished == b"part\n", "{unfinished:?}");
}

/// The next run works and leaves nothing either.
fn assert_the_next_run_works(world: &World) {
    world
        .run(&[])
        .args(["sh", "-c", "cat source; test -e kept && rm -f held kept ready unfinished"])
        .run()
        .assert_success();
}

fn ends_clean(
    world: &World,
    options: &[&str],
    end: impl FnOnce(&mut stockade_tests::Running),
) -> Output {
    let private = world.with_private_tmp();
    let before = workspace(world);
    let leaks = world.leaks();
    let mut running = start(world, options);
    end(&mut running);
    let ended = Instant::now();
    let output = running.wait();
    assert!(ended.elapsed() < Duration::from_secs(20), "it took {:?} to end", ended.elapsed());
    if private {
        drop(fs::remove_file(world.tmp().join("by-child")));
    } else {
        drop(fs::remove_file("/tmp/by-child"));
    }
    let found = leaks.found();
    assert!(found.is_empty(), "left: {found:#?}");
    assert_only_what_was_made(world, &before);
    assert_the_next_run_works(world);
    let found = leaks.found();
    assert!(found.is_empty(), "left after the next run: {found:#?}");
    output
}

fn git(world: &World, arguments: &str) -> Invocation {
    world.native("sh").args([
        "-c",
        &format!("git -c user.name=a -c user.email=a@b -c init.defaultBranch=main {arguments}"),
    ])
}

as_root_and_user! {
    /// L6: an ordinary end. A repository is clean after it.
    fn an_ordinary_run_leaves_nothing(world) {
        if !world.has("git") {
            return;
        }
        let _private = world.with_private_tmp();
        world.write("source", "source\n");
        git(world, "init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm one").run().assert_success();
        let before = Digest::of(&world.workspace());
        let leaks = world.leaks();
        world.run(&[]).args(["sh", "-c", "cat source; ls -la /tmp; setsid sleep 300 & exit 0"]).run().assert_success();
        assert!(leaks.found().is_empty(), "left: {:#?}", leaks.found());
        Digest::of(&world.workspace()).assert_same(&before, Facets::Untouched, "the workspace was touched");
        assert_eq!(git(world, "status --porcelain --ignored").run().stdout(), "");
        let refused = world.run(&["--mode", "read-only"]).args(["sh", "-c", "echo x > y; mkdir z"]).run();
        assert_ne!(refused.code, 0);
        assert!(leaks.found().is_empty(), "left: {:#?}", leaks.found());
        assert_eq!(git(world, "status --porcelain --ignored").run().stdout(), "");
    }

    /// L6: Ctrl-C on the terminal's process group. The command handles it, its stubborn child doesn't, and dies.
    fn ctrl_c(world) {
        ends_clean(world, &[], |running| running.signal_group(Signal::INT)).assert_code(77);
    }

    /// L6: SIGTERM to the launcher alone reaches the command.
    fn sigterm(world) {
        ends_clean(world, &[], |running| running.signal(Signal::TERM)).assert_code(77);
    }

    /// L6: SIGHUP, as when the terminal goes away.
    fn sighup(world) {
        let output = ends_clean(world, &[], |running| running.signal_group(Signal::HUP));
        assert_ne!(output.code, 0);
    }

    /// L6: the time is up.
    fn timeout(world) {
        ends_clean(world, &["--timeout", "3s"], |_| {}).assert_code(124);
    }

    /// F7: `kill -9` of the launcher, which is the file system's server too.
    fn kill_9_of_the_launcher(world) {
        ends_clean(world, &[], |running| running.signal(Signal::KILL)).assert_code(137);
    }

    /// L6: the same in the other modes.
    fn kill_9_in_danger_mode(world) {
        ends_clean(world, &["--mode", "danger-full-access"], |running| running.signal(Signal::KILL)).assert_code(137);
    }

    /// L10: what fails to start leaves nothing.
    fn a_failed_start_leaves_nothing(world) {
        let private = world.with_private_tmp();
        let before = workspace(world);
        let leaks = world.leaks();
        world.run(&[]).arg("no-such-command").run().assert_code(127);
        world.run(&["--workspace", "/no/such"]).arg("true").run().assert_code(125);
        world.run(&[]).arg("true").directory("/proc").run().assert_code(125);
        assert!(leaks.found().is_empty(), "left: {:#?}", leaks.found());
        Digest::of(&world.workspace()).assert_same(&before, Facets::Untouched, "the workspace was touched");
        let _ = private;
    }

    /// L10: the state directory is the user's own alone.
    fn the_state_directory_is_private(world) {
        world.run(&[]).arg("true").run().assert_success();
        let mut pending: Vec<PathBuf> = vec![world.state().join("stockade")];
        let mut seen = 0;
        while let Some(path) = pending.pop() {
            let metadata = fs::symlink_metadata(&path).unwrap();
            let mode = std::os::unix::fs::MetadataExt::mode(&metadata);
            if metadata.is_dir() {
                assert_eq!(mode & 0o7777, 0o700, "{}", path.display());
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            seen += 1;
        }
        assert!(seen > 2, "there is a state to look at");
    }

    /// L6: many runs at once in one workspace, some of them killed.
    fn many_runs_at_once(world) {
        let _private = world.with_private_tmp();
        let before = workspace(world);
        let leaks = world.leaks();
        let running: Vec<_> = (0..8)
            .map(|number| {
                let script = format!("echo {number} > f{number}; cat source f{number}; rm f{number}; sleep {}; exit {number}", if number % 3 == 1 { "60" } else { "0.2" });
                world.run(&[]).args(["sh", "-c", &script]).spawn()
            })
            .collect();
        for (number, running) in running.into_iter().enumerate() {
            if number % 3 == 1 {
                std::thread::sleep(Duration::from_millis(100));
                running.signal(Signal::KILL);
                running.wait().assert_code(137);
            } else {
                let output = running.wait();
                output.assert_code(i32::try_from(number).unwrap());
                assert_eq!(output.stdout(), format!("source\n{number}\n"));
            }
        }
        assert!(leaks.found().is_empty(), "left: {:#?}", leaks.found());
        let killed = |name: &[u8]| name.is_empty() || [&b"f1"[..], b"f4", b"f7"].contains(&name);
        Digest::of(&world.workspace()).without(killed).assert_same(&before.without(killed), Facets::Untouched, "the workspace has something new");
    }
}
