//! What a run changed is shown and put back (`--keep-history`, `stockade diff`, `stockade undo`; issue 4, item 6).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use stockade_tests::{Digest, Facets, Output, World, as_root_and_user};

pub const KEEP: [&str; 2] = ["-q", "--keep-history"];

const RANDOM: &str = include_str!("history.py");

/// Empties the workspace.
pub fn empty(world: &World) {
    fs::remove_dir_all(world.workspace()).unwrap();
    fs::create_dir(world.workspace()).unwrap();
    world.own(&world.workspace());
}

/// A tree with one of everything, all of it old.
pub fn tree(world: &World) -> Digest {
    for name in
        ["edit", "rewrite", "delete", "mode", "move", "over", "cut", "store", "sed", "times"]
    {
        world.write(name, format!("{name}: one\ntwo\nthree\n"));
    }
    world.write("a/deep/er/file", "deep\n");
    world.write("a/deep/other", "other\n");
    world.write("d/in", "in\n");
    world.write(OsStr::from_bytes(b"n\xffme"), "not UTF-8\n");
    world.write("binary", b"\0\x01\x02");
    let at = |name: &str| world.workspace().join(name);
    fs::hard_link(at("d/in"), at("linked")).unwrap();
    fs::hard_link(at("edit"), at("edit-too")).unwrap();
    symlink("edit", at("link")).unwrap();
    symlink("/nowhere/at all", at("dangling")).unwrap();
    for link in ["link", "dangling"] {
        world.own(&at(link));
    }
    rustix::fs::setxattr(at("mode"), "user.kept", b"value", rustix::fs::XattrFlags::empty())
        .unwrap();
    let mut old = 1_000_000_000;
    age(&world.workspace(), &mut old);
    Digest::of(&world.workspace())
}

/// Gives everything an age of its own, the directories last.
fn age(directory: &Path, second: &mut u64) {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for path in names.into_iter().chain([directory.to_owned()]) {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() && path != directory {
            age(&path, second);
        } else if meta.is_file() || path == directory {
            *second += 1;
            let time = UNIX_EPOCH + Duration::new(*second, 123_456_789);
            fs::File::open(&path).unwrap().set_modified(time).unwrap();
        }
    }
}

pub fn run(world: &World, options: &[&str], script: &str) -> Output {
    world.run(options).args(["sh", "-c", &format!("set -e; {script}")]).run()
}

pub fn undo(world: &World, options: &[&str]) -> Output {
    world.stockade().arg("undo").args(options).run()
}

fn diff(world: &World, options: &[&str]) -> String {
    let output = world.stockade().arg("diff").args(options).run();
    output.assert_success();
    output.stdout()
}

fn back(world: &World, before: &Digest, what: &str) {
    undo(world, &[]).assert_success();
    before.assert_same(&Digest::of(&world.workspace()), Facets::Modified, what);
}

pub const EVERYTHING: &str = "echo new > new; mkdir -p n/e/w; echo x > n/e/w/file; ln -s ../x n/link; mkfifo n/fifo; \
    echo four >> edit; echo rewritten > rewrite; rm delete; chmod 600 mode; mv move moved; \
    echo temporary > t; mv t over; truncate -s 3 cut; touch times; sed -i s/two/2/ sed; \
    rm -r a; rm linked; ln store d/in2; rm link; ln -s elsewhere link; mv d e; echo more > e/more; \
    mv n?me 'an other'; rm dangling; cp binary b2; printf 'x\\0y' > binary; ln new new-too";

as_root_and_user! {
    /// The acceptance: the tree's digest is back to what it was.
    fn everything_is_put_back(world) {
        let before = tree(world);
        run(world, &KEEP, EVERYTHING).assert_success();
        let after = Digest::of(&world.workspace());
        assert!(before.differences(&after, Facets::Content).len() > 20);
        let output = undo(world, &["--dry-run"]);
        output.assert_success();
        assert!(output.stdout().contains("brought back") && output.stdout().contains("removed"), "{}", output.stdout());
        after.assert_same(&Digest::of(&world.workspace()), Facets::Untouched, "a dry run");
        back(world, &before, "undo");
        // Once.
        let again = undo(world, &[]);
        assert_eq!(again.code, 125, "{}", again.stdout());
        assert!(again.stderr().contains("error[FS_NOT_FOUND]"), "{}", again.stderr());
        // The session says so.
        let log = world.stockade().args(["log", "--runs"]).run().stdout();
        assert!(log.contains("stockade undo"), "{log}");
    }

    /// Each kind of change alone, so that a failure names it.
    fn each_change_is_put_back(world) {
        let python = "python3 -c 'import os,mmap; d=os.open(\"store\",os.O_RDWR); m=mmap.mmap(d,0); m[0:3]=b\"XYZ\"; m.close(); os.close(d)'";
        for script in [
            "echo x > new", "mkdir -p x/y/z; echo 1 > x/y/z/f", "echo more >> rewrite", "echo all > rewrite",
            "echo x > store; echo y >> store; echo z > store", "rm delete", "rm -r a", "rm -r a; mkdir a; echo > a/deep",
            "mv move moved", "mv move over", "mv a b; echo x > b/deep/other", "mv a b; mv b a", "mv d/in a/in; rmdir d",
            "truncate -s 2 cut", "truncate -s 0 cut", "truncate -s 100 cut", ": > cut", "sed -i s/one/1/ sed",
            "chmod 700 mode", "chmod 700 a", "touch times", "touch -d @5 times", "touch -h -d @5 link",
            "echo x >> edit", "echo x > edit", "rm edit", "rm edit edit-too", "rm edit; echo x > edit-too", "ln edit third",
            "ln -f delete edit", "mv edit third; chmod 600 third", "rm link; ln -s x link", "ln -sfn y dangling",
            "mv delete t; mv move delete; mv t move", "rm delete; mkdir delete; echo > delete/x",
            "rm delete; ln -s rewrite delete", "cp -p rewrite t; mv t rewrite", "rm n?me", "echo x > new; rm new",
            "echo x > new; mv new delete; chmod 600 delete", "chmod 600 delete; rm delete", "echo x >> delete; rm delete",
            "exec 3>> delete; rm delete; echo x >&3", "exec 3>> delete; rm delete; echo x >&3; echo new > delete",
            python,
            "python3 -c 'import os; os.setxattr(\"mode\",\"user.kept\",b\"other\"); os.setxattr(\"edit\",\"user.x\",b\"1\")'",
            "python3 -c 'import os; os.removexattr(\"mode\",\"user.kept\")'",
            "python3 -c 'import ctypes; assert ctypes.CDLL(None).renameat2(-100,b\"move\",-100,b\"d\",2) == 0'",
            "python3 -c 'import os; d=os.open(\"delete\",os.O_RDONLY); os.unlink(\"delete\"); e=os.open(\"/proc/self/fd/%d\"%d,os.O_WRONLY); os.write(e,b\"xxx\"); assert os.fstat(d).st_nlink == 0'",
        ] {
            empty(world);
            let before = tree(world);
            run(world, &KEEP, script).assert_success();
            let output = undo(world, &[]);
            assert_eq!(output.code, 0, "`{script}`: {}", output.stderr());
            before.assert_same(&Digest::of(&world.workspace()), Facets::Modified, script);
        }
    }

    /// The same at random, where images are links and where they are copies. Each seed that failed once is among these.
    fn random_changes_are_put_back(world) {
        let script = world.write("../history.py", RANDOM);
        let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
        world.own(elsewhere.path());
        for seed in [0, 7, 19, 23, 34, 57, 201, 204, 412, 433] {
            empty(world);
            let python = |seed: u32, count: &str| [script.clone().into_os_string(), seed.to_string().into(), count.into()];
            world.native("python3").args(python(100_000 + seed, "60")).run().assert_success();
            age(&world.workspace(), &mut 1_000_000_000);
            let before = Digest::of(&world.workspace());
            let state = if seed % 2 == 0 { world.state() } else { elsewhere.path().to_owned() };
            let changed = world.run(&KEEP).env("STOCKADE_STATE", &state).arg("python3").args(python(seed, "50")).run();
            changed.assert_success();
            assert!(changed.stdout().trim().parse::<u32>().unwrap() > 5, "{}", changed.stdout());
            world.stockade().arg("diff").env("STOCKADE_STATE", &state).run().assert_success();
            let output = world.stockade().arg("undo").env("STOCKADE_STATE", &state).run();
            assert_eq!(output.code, 0, "seed {seed}: {}", output.stderr());
            before.assert_same(&Digest::of(&world.workspace()), Facets::Modified, &format!("seed {seed}"));
        }
    }

    /// Git's own work, with its locks, renames and packs.
    fn a_commit_is_put_back(world) {
        if !world.has("git") {
            return;
        }
        world.write("f", "one\n");
        let git = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; \
            git init -qb main .; git add f; git commit -qm one";
        world.native("sh").args(["-c", git]).run().assert_success();
        let before = Digest::of(&world.workspace());
        let script = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; \
            echo two >> f; git commit -qam two; git checkout -qb other; git rm -q f; echo g > g; git add g; git commit -qm three; git gc -q";
        run(world, &KEEP, script).assert_success();
        back(world, &before, "a commit");
    }

    /// What has changed since isn't touched, nor is anything else; all of it is named.
    fn what_changed_since_is_refused(world) {
        type Since = fn(&Path);
        let script = "echo x >> rewrite; echo y > new; rm delete; mv move moved; mkdir nd; chmod 600 mode";
        let rows: [(&str, &str, Since); 7] = [
            ("rewrite", "changed since", |at| fs::write(at.join("rewrite"), "mine").unwrap()),
            ("new", "changed since", |at| fs::write(at.join("new"), "mine").unwrap()),
            ("new", "replaced since", |at| {
                fs::write(at.join("n2"), "mine").unwrap();
                fs::rename(at.join("n2"), at.join("new")).unwrap();
            }),
            ("delete", "made since", |at| fs::write(at.join("delete"), "mine").unwrap()),
            ("moved", "removed since", |at| fs::remove_file(at.join("moved")).unwrap()),
            ("nd/mine", "made since", |at| fs::write(at.join("nd/mine"), "mine").unwrap()),
            ("mode", "has changed since", |at| {
                fs::set_permissions(at.join("mode"), fs::Permissions::from_mode(0o640)).unwrap();
            }),
        ];
        for (name, why, since) in rows {
            empty(world);
            tree(world);
            run(world, &KEEP, script).assert_success();
            since(&world.workspace());
            let before = Digest::of(&world.workspace());
            let output = undo(world, &[]);
            assert_eq!(output.code, 125, "{name}: {}", output.stdout());
            let path = world.workspace().join(name);
            let said = format!("{}: ", path.display());
            assert!(output.stderr().contains("error[FS_STALE_VERSION]"), "{}", output.stderr());
            let line = output.stderr().lines().find(|line| line.contains(&said)).unwrap_or_default().to_owned();
            assert!(line.contains(why), "{name}: {}", output.stderr());
            before.assert_same(&Digest::of(&world.workspace()), Facets::Untouched, name);
        }
    }

    /// The diff is one that `git apply` takes, and says what isn't text.
    fn the_diff_says_what_changed(world) {
        tree(world);
        run(world, &KEEP, EVERYTHING).assert_success();
        let patch = diff(world, &[]);
        for part in [
            "diff --git a/edit b/edit\n--- a/edit\n+++ b/edit\n@@ -1,3 +1,4 @@\n edit: one\n two\n three\n+four\n",
            "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n",
            "diff --git a/delete b/delete\ndeleted file mode 100644\n--- a/delete\n+++ /dev/null\n",
            "rename from move\nrename to moved\n",
            "diff --git a/d b/e\nrename from d\nrename to e\n",
            "diff --git a/mode b/mode\nold mode 100644\nnew mode 100600\n",
            "rename from \"n\\377me\"\nrename to an other\n",
            "Binary files a/binary and b/binary differ\n",
        ] {
            assert!(patch.contains(part), "{part}\n{patch}");
        }
        assert!(patch.contains("\n-edit\n\\ No newline at end of file\n+elsewhere\n\\ No newline"), "{patch}");
        let names = diff(world, &["--name-only"]);
        assert!(names.lines().any(|line| line == "rewrite"), "{names}");
        let stat = diff(world, &["--stat"]);
        assert!(stat.contains(" move => moved | 0\n") && stat.contains("files changed"), "{stat}");
        let rows: Vec<Value> = diff(world, &["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let edit = rows.iter().find(|row| row["to"] == world.workspace().join("edit").to_str().unwrap()).unwrap();
        assert_eq!((&edit["kind"], &edit["added"], &edit["removed"]), (&"modified".into(), &1.into(), &0.into()));
        assert!(!patch.contains('\x1b'));
        assert!(diff(world, &["--color", "always"]).contains("\x1b[32m+four\x1b[0m\n"));
    }

    /// A run without a history says how to have one.
    fn a_run_without_history_says_so(world) {
        run(world, &["-q"], "echo x > f").assert_success();
        for command in ["diff", "undo"] {
            let output = world.stockade().arg(command).run();
            assert_eq!(output.code, 125);
            assert!(output.stderr().contains("error[FS_NOT_FOUND]") && output.stderr().contains("--keep-history"), "{}", output.stderr());
        }
        assert!(world.workspace().join("f").exists());
        // The configuration can ask for it, too.
        let config = world.home().join(".config/stockade");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("config.toml"), "keep_history = true\n").unwrap();
        world.own_tree(&world.home());
        run(world, &["-q"], "echo y > f").assert_success();
        undo(world, &[]).assert_success();
        assert_eq!(fs::read_to_string(world.workspace().join("f")).unwrap(), "x\n");
    }

    /// What doesn't fit is said at once, and named when it's wanted back; nothing is put back then.
    fn the_bound_is_said_aloud(world) {
        world.write("big", vec![b'x'; 5000]);
        world.write("small", "small\n");
        let output = run(world, &["--keep-history", "--history-size", "4kB"], "rm small; rm big");
        output.assert_success();
        let big = world.workspace().join("big");
        assert!(output.stderr().contains(&format!("{}", big.display())) && output.stderr().contains("--history-size"), "{}", output.stderr());
        let output = undo(world, &[]);
        assert_eq!(output.code, 125);
        assert!(output.stderr().contains(big.to_str().unwrap()), "{}", output.stderr());
        assert!(!world.workspace().join("small").exists(), "a part was put back");
        // Too old: removed at the next run, and said so.
        run(world, &["-q", "--keep-history", "--history-age", "1ms"], "true").assert_success();
        let runs = world.stockade().args(["diff", "--session"]).arg(first_session(world)).run();
        assert!(runs.stderr().contains("--history-age"), "{}", runs.stderr());
    }

    /// Whoever swaps a directory for a link doesn't lead an undo out of the workspace.
    fn an_undo_follows_no_link(world) {
        world.write("d/f", "in\n");
        run(world, &KEEP, "echo x >> d/f; rm -f d/none; echo y > d/new").assert_success();
        let outside = world.outside().join("d");
        fs::rename(world.workspace().join("d"), &outside).unwrap();
        symlink(&outside, world.workspace().join("d")).unwrap();
        let before = Digest::of(&outside);
        let output = undo(world, &[]);
        assert_eq!(output.code, 125, "{}", output.stdout());
        before.assert_same(&Digest::of(&outside), Facets::Untouched, "outside");
    }

    /// A killed run can be undone as far as it got; a live one can't.
    fn a_killed_run_is_put_back(world) {
        let before = tree(world);
        let script = format!("set -e; {EVERYTHING}; sleep 1000");
        let mut running = world.run(&KEEP).args(["sh", "-c", &script]).deadline(Duration::from_secs(60)).spawn();
        let ready = world.workspace().join("new-too");
        running.wait_until("everything is changed", || ready.exists());
        let refused = undo(world, &[]);
        assert!(refused.stderr().contains("error[SESSION_BUSY]"), "{}", refused.stderr());
        running.signal(Signal::KILL);
        let output = running.wait();
        assert_ne!(output.code, 0);
        let output = undo(world, &[]);
        output.assert_success();
        assert!(output.stderr().contains("interrupted"), "{}", output.stderr());
        before.assert_same(&Digest::of(&world.workspace()), Facets::Modified, "a killed run");
    }

    /// A file that a hard link shares with one outside is shared again.
    fn a_broken_link_is_whole_again(world) {
        let outside = world.outside().join("shared");
        fs::write(&outside, "shared\n").unwrap();
        world.own(&outside);
        let inside = world.workspace().join("shared");
        fs::hard_link(&outside, &inside).unwrap();
        let number = fs::metadata(&outside).unwrap().ino();
        run(world, &KEEP, "echo mine >> shared").assert_success();
        assert_ne!(fs::metadata(&inside).unwrap().ino(), number);
        undo(world, &[]).assert_success();
        assert_eq!(fs::metadata(&inside).unwrap().ino(), number);
        assert_eq!(fs::read_to_string(&inside).unwrap(), "shared\n");
    }

    /// Nobody sees where it is kept, and only its owner can read it.
    fn what_is_kept_is_private(world) {
        world.write("f", "secret\n");
        run(world, &KEEP, "rm f").assert_success();
        let mut found = 0;
        let mut pending = vec![world.state()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    if path.components().any(|part| part.as_os_str() == "history") {
                        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700, "{}", path.display());
                        found += 1;
                    }
                    pending.push(path);
                }
            }
        }
        assert!(found >= 3, "no history");
    }
}

/// The session that was made first.
fn first_session(world: &World) -> String {
    let sessions = world.state().join("stockade/sessions");
    let mut names: Vec<_> = fs::read_dir(sessions)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names.swap_remove(0)
}
