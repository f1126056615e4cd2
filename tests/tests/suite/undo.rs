//! `stockade undo` when things go wrong: it is killed, there is no room, there are few descriptors; and undoing a part.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use stockade_tests::{Digest, Facets, Output, World, as_root_and_user, skip};

use crate::history::{EVERYTHING, KEEP, empty, run, tree, undo};

/// What an undo that is gone leaves: nothing, but for the directory's own time while it lies there.
fn residue(world: &World) -> Vec<String> {
    let names = fs::read_dir(world.workspace()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".stockade")).collect()
}

/// Whatever an undo left that was killed, the next start takes back or finishes; says whether it had finished.
fn recovered(world: &World, id: &str, before: &Digest, after: &Digest, what: &str) -> bool {
    let next = world.run(&[]).arg("true").run();
    next.assert_success();
    assert_eq!(residue(world), Vec::<String>::new(), "{what}: {}", next.stderr());
    let now = Digest::of(&world.workspace());
    // It was killed between its end and its exit.
    let ended = || undo(world, &["--dry-run", id]).stderr().contains("was undone already");
    if next.stderr().contains("it is finished") || next.stderr().is_empty() && ended() {
        before.assert_same(&now, Facets::Content, what);
        return true;
    }
    after.assert_same(&now, Facets::Modified, &format!("{what}: {}", next.stderr()));
    false
}

fn last_run(world: &World) -> String {
    let runs = world.stockade().args(["log", "--runs", "--json"]).run().stdout();
    let run = runs.lines().rfind(|line| !line.contains("\"true\"") && !line.contains("undo"));
    let row: serde_json::Value = serde_json::from_str(run.unwrap()).unwrap();
    row["run"].as_str().unwrap_or_else(|| panic!("{row}")).to_owned()
}

as_root_and_user! {
    /// An undo that is killed at any of its steps: everything is as the run left it after the next start, or, once all of
    /// it was put back, as it was before the run.
    fn an_undo_that_is_killed_is_taken_back_or_finished(world) {
        let before = tree(world);
        run(world, &KEEP, EVERYTHING).assert_success();
        let (id, after) = (last_run(world), Digest::of(&world.workspace()));
        let (mut point, mut taken_back) = (1_u32, 0);
        loop {
            let at = point.to_string();
            let killed = world.stockade().args(["undo", &id]).env("STOCKADE_UNDO_FAILPOINT", &at).run();
            if killed.code == 0 {
                break;
            }
            assert_eq!(killed.code, 137, "{at}: {}", killed.stderr());
            if recovered(world, &id, &before, &after, &format!("killed at point {at}")) {
                break;
            }
            taken_back += 1;
            point += 7;
        }
        before.assert_same(&Digest::of(&world.workspace()), Facets::Content, "at last");
        assert!(taken_back > 15, "{taken_back} kills");
        // Each of the last points, too, where it was marked and the images go.
        let mut last = point.saturating_sub(7);
        loop {
            last += 1;
            empty(world);
            let before = tree(world);
            run(world, &KEEP, EVERYTHING).assert_success();
            let (id, after) = (last_run(world), Digest::of(&world.workspace()));
            let killed = world.stockade().args(["undo", &id]).env("STOCKADE_UNDO_FAILPOINT", last.to_string()).run();
            if killed.code == 0 {
                break;
            }
            recovered(world, &id, &before, &after, &format!("killed at point {last}"));
        }
        // Also when what takes it back is killed.
        empty(world);
        let before = tree(world);
        run(world, &KEEP, EVERYTHING).assert_success();
        let (id, after) = (last_run(world), Digest::of(&world.workspace()));
        for second in [1, 3, 9, 20, 60] {
            let killed = world.stockade().args(["undo", &id]).env("STOCKADE_UNDO_FAILPOINT", "90").run();
            assert_eq!(killed.code, 137, "{}", killed.stderr());
            let killed = world.stockade().args(["undo", &id]).env("STOCKADE_UNDO_FAILPOINT", second.to_string()).run();
            assert_eq!(killed.code, 137, "{}", killed.stderr());
            assert!(!recovered(world, &id, &before, &after, "killed twice"));
        }
        // An undo finds it, too.
        let killed = world.stockade().args(["undo", &id]).env("STOCKADE_UNDO_FAILPOINT", "50").run();
        assert_eq!(killed.code, 137);
        let output = undo(world, &[&id]);
        output.assert_success();
        assert!(output.stderr().contains("is taken back"), "{}", output.stderr());
        before.assert_same(&Digest::of(&world.workspace()), Facets::Modified, "after all");
    }

    /// The same at random moments.
    fn an_undo_that_is_killed_at_random_loses_nothing(world) {
        kill_at_random(world, 12);
    }

    /// No room where the run's files lie, or none in the state directory, or few descriptors: nothing is put back, nothing is
    /// left, and it works once there is room.
    fn an_undo_without_room_puts_nothing_back(world) {
        if !rustix::process::geteuid().is_root() {
            skip(world.name(), "only root can mount a small file system");
            return;
        }
        for place in ["files", "state"] {
            let (files, state) = (world.directory().join("files"), world.state().join("stockade"));
            let small = if place == "files" { &files } else { &state };
            fs::create_dir_all(&files).unwrap();
            fs::create_dir_all(small).unwrap();
            let options = if place == "files" { "size=600k,mode=755" } else { "size=4m,mode=700" };
            assert!(Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(small).status().unwrap().success());
            world.own(&files);
            world.own(small);
            for number in 0..20 {
                fs::write(files.join(format!("f{number}")), vec![b'x'; 9000]).unwrap();
            }
            fs::create_dir(files.join("d")).unwrap();
            fs::write(files.join("d/deep"), "deep").unwrap();
            world.own_tree(&files);
            let before = Digest::of(&files);
            let workspace = ["-q", "--keep-history", "--workspace", files.to_str().unwrap()];
            let script = "for i in $(seq 0 9); do echo $i > f$i; done; rm f1?; rm -r d; echo new > new";
            let output = world.run(&workspace).args(["sh", "-c", script]).directory(&files).run();
            output.assert_success();
            let after = Digest::of(&files);
            let fill = small.join("fill");
            drop(fs::write(&fill, vec![0; 8_000_000]));
            let output = undo(world, &[]);
            assert_eq!(output.code, 125, "{place}: {}", output.stdout());
            assert!(output.stderr().contains("No space left") || output.stderr().contains("full"), "{place}: {}", output.stderr());
            drop(fs::remove_file(fill));
            after.assert_same(&Digest::of(&files), Facets::Content, place);
            // Few descriptors alone are enough, or it says so.
            let output = world.native("prlimit").args(["--nofile=64:20000"]).arg(world.binary()).arg("undo").run();
            assert_eq!(output.code, 0, "{place}: {}", output.stderr());
            before.assert_same(&Digest::of(&files), Facets::Content, place);
            assert!(Command::new("umount").arg("-l").arg(small).status().unwrap().success());
            drop(fs::remove_dir_all(&files));
        }
    }

    /// With a hard limit below what it needs, it says so and has touched nothing.
    fn an_undo_with_too_few_descriptors_puts_nothing_back(world) {
        for number in 0..60 {
            world.write(format!("d{number}/f"), "old\n");
        }
        let before = Digest::of(&world.workspace());
        run(world, &KEEP, "for i in $(seq 0 59); do echo new > d$i/f; rm d$i/f; echo x > d$i/g; done").assert_success();
        let after = Digest::of(&world.workspace());
        let output = world.native("prlimit").args(["--nofile=50:50"]).arg(world.binary()).arg("undo").run();
        assert_eq!(output.code, 125, "{}", output.stdout());
        assert!(output.stderr().contains("Too many open files") || output.stderr().contains("can't be found"), "{}", output.stderr());
        after.assert_same(&Digest::of(&world.workspace()), Facets::Content, "few descriptors");
        undo(world, &[]).assert_success();
        before.assert_same(&Digest::of(&world.workspace()), Facets::Content, "enough descriptors");
    }

    /// A part is put back, then another, then the rest.
    fn a_part_is_put_back(world) {
        let before = tree(world);
        run(world, &KEEP, EVERYTHING).assert_success();
        let id = last_run(world);
        let at = |name: &str| world.workspace().join(name);
        let dry = undo(world, &["--dry-run", "--path", "a", "--path", "delete"]).stdout();
        assert!(dry.contains("brought back") && !dry.contains("rewrite") && !dry.contains("edit"), "{dry}");
        undo(world, &[&id, "--path", "a", "--path", "delete"]).assert_success();
        assert_eq!(fs::read_to_string(at("a/deep/er/file")).unwrap(), "deep\n");
        assert_eq!(fs::read_to_string(at("delete")).unwrap(), "delete: one\ntwo\nthree\n");
        assert_eq!(fs::read_to_string(at("rewrite")).unwrap(), "rewritten\n");
        // What moved goes back to where it was, with whichever of its names is meant.
        undo(world, &[&id, "--path", at("moved").to_str().unwrap()]).assert_success();
        assert!(at("move").exists() && !at("moved").exists());
        // Once.
        let again = undo(world, &[&id, "--path", "delete"]);
        again.assert_code(125);
        assert!(again.stderr().contains("changed nothing there"), "{}", again.stderr());
        let names = world.stockade().args(["diff", &id, "--name-only"]).run().stdout();
        assert!(names.contains("rewrite") && !names.lines().any(|line| line == "delete" || line.starts_with("a/")), "{names}");
        undo(world, &[&id]).assert_success();
        before.assert_same(&Digest::of(&world.workspace()), Facets::Content, "part by part");
    }

    /// What only the extended attributes of have changed since has changed since.
    fn changed_attributes_are_a_change(world) {
        tree(world);
        run(world, &KEEP, "echo new > rewrite; echo more >> edit; chmod 600 mode").assert_success();
        for name in ["rewrite", "edit", "mode"] {
            let file = world.workspace().join(name);
            rustix::fs::setxattr(&file, "user.since", b"1", rustix::fs::XattrFlags::empty()).unwrap();
            let output = undo(world, &[]);
            output.assert_code(125);
            let said = format!("{}: its extended attributes have changed since", file.display());
            assert!(output.stderr().contains(&said), "{name}: {}", output.stderr());
            rustix::fs::removexattr(&file, "user.since").unwrap();
        }
        undo(world, &[]).assert_success();
    }

    /// A long-lived mount keeps a history, too.
    fn what_was_done_in_a_mount_is_put_back(world) {
        let before = tree(world);
        let mountpoint = world.directory().join("mnt");
        fs::create_dir(&mountpoint).unwrap();
        world.own(&mountpoint);
        let (source, target) = (world.workspace(), mountpoint.to_str().unwrap().to_owned());
        let running = world.stockade().args(["mount", "-q", "--keep-history"]).arg(&source).arg(&mountpoint).spawn();
        // Root itself can't look into a user's mount.
        let there = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&target);
        for _ in 0..3000 {
            if there() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if !there() {
            running.signal(Signal::TERM);
            let output = running.wait();
            return skip(world.name(), &format!("no long-lived mounts here: {}", output.stderr()));
        }
        let script = format!("set -e; cd {target}; {EVERYTHING}");
        world.native("sh").args(["-c", &script]).run().assert_success();
        world.stockade().arg("umount").arg(&mountpoint).run().assert_success();
        running.wait().assert_success();
        let diff: Output = world.stockade().args(["diff", "--name-only"]).run();
        assert!(diff.stdout().contains("rewrite"), "{}", diff.stdout());
        undo(world, &[]).assert_success();
        before.assert_same(&Digest::of(&source), Facets::Modified, "a mount's history");
        fs::remove_dir(PathBuf::from(target)).unwrap();
    }
}

fn kill_at_random(world: &World, times: u32) {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let (mut taken_back, mut finished) = (0, 0);
    let mut state = None;
    for _ in 0..times {
        let (before, after, id) = state.take().unwrap_or_else(|| {
            empty(world);
            let before = tree(world);
            run(world, &KEEP, EVERYTHING).assert_success();
            (before, Digest::of(&world.workspace()), last_run(world))
        });
        let running = world.stockade().args(["undo", &id]).spawn();
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        std::thread::sleep(Duration::from_micros(10_000 + seed % 150_000));
        // It may be over.
        let _ = rustix::process::kill_process(running.pid(), Signal::KILL);
        let output = running.wait();
        if output.code == 0 {
            before.assert_same(&Digest::of(&world.workspace()), Facets::Content, "undone");
            finished += 1;
        } else if recovered(world, &id, &before, &after, "killed at random") {
            finished += 1;
        } else {
            taken_back += 1;
            state = Some((before, after, id));
        }
    }
    crate::attempts::say(&format!(
        "{}: taken back {taken_back}, finished {finished}",
        world.name()
    ));
}

/// The same at length.
#[test]
#[ignore = "takes minutes"]
fn an_undo_that_is_killed_at_random_300_times() {
    stockade_tests::check("undo::at_length", stockade_tests::Identity::Root, |world| {
        kill_at_random(world, 300);
    });
}
