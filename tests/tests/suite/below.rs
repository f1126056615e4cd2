//! What goes wrong below: no room, I/O errors, permissions that are taken away, a source that moves (F5, F7). Nothing
//! that was published is lost or torn, the program is told, the log and the result say it, and the next start leaves
//! nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use stockade_tests::{Output, Running, World, as_root_and_user, skip};

const OLD: &str = "what was there\n";

/// Rewrites a file with so many bytes, and prints how each step ended. Waits before the last steps where it's told to.
const WRITER: &str = "import os, sys, time, errno\n\
    name, size, steps = sys.argv[1], int(sys.argv[2]), sys.argv[3].split()\n\
    def say(what, call):\n\
    \x20try: call(); print(what, 'ok')\n\
    \x20except OSError as error: print(what, errno.errorcode[error.errno])\n\
    \x20sys.stdout.flush()\n\
    def write():\n\
    \x20left = size\n\
    \x20while left: left -= os.write(d, b'x' * min(left, 65536))\n\
    def wait():\n\
    \x20open(steps[-1] + '.ready', 'w').close()\n\
    \x20while not os.path.exists(steps[-1] + '.go'): time.sleep(0.005)\n\
    def small(): os.ftruncate(d, 0); os.lseek(d, 0, 0); os.write(d, b'small')\n\
    if 'cut' in steps: d = os.open(name, os.O_RDWR); os.ftruncate(d, 0)\n\
    else: d = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\n\
    e = os.dup(d)\n\
    for step in steps:\n\
    \x20call = {'write': write, 'wait': wait, 'small': small, 'fsync': lambda: os.fsync(d), 'close': lambda: os.close(d), 'again': lambda: os.close(e)}\n\
    \x20if step in call: say(step, call[step])\n";

/// A file system of the test's own.
struct Mounted(PathBuf);

impl Mounted {
    fn new(world: &World, place: &Path, arguments: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(world.name(), "only root can mount a file system");
            return None;
        }
        fs::create_dir_all(place).unwrap();
        let output = Command::new("mount").args(arguments).arg(place).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        world.own(place);
        Some(Self(place.to_owned()))
    }

    fn tmpfs(world: &World, place: &Path, size: &str) -> Option<Self> {
        Self::new(world, place, &["-t", "tmpfs", "-o", &format!("size={size},mode=755"), "none"])
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg("-l").arg(&self.0).status().unwrap().success());
    }
}

fn rewrite(world: &World, options: &[&str], name: &str, size: u32, steps: &str) -> (Output, Value) {
    let argv = ["python3", "-c", WRITER, name, &size.to_string(), steps];
    world.run_with_result(&[&["-q"], options].concat(), &argv)
}

fn content(world: &World, name: &str) -> String {
    fs::read_to_string(world.workspace().join(name)).unwrap()
}

/// The errno of a conflict that the result names, and the content that was kept of it.
fn conflict(result: &Value) -> (Option<i64>, Option<String>) {
    let conflicts = result["conflicts"].as_array().unwrap();
    let told = conflicts.iter().find(|row| !row["errno"].is_null());
    let told = told.unwrap_or_else(|| panic!("no conflict with an errno: {result:#}"));
    let kept = conflicts.iter().find_map(|row| row["kept"].as_str());
    let kept = kept.map(|kept| fs::read_to_string(kept).unwrap());
    (told["errno"].as_i64(), kept)
}

fn assert_nothing_is_left(world: &World, place: &Path, names: &[&str]) {
    world.run(&["-q"]).args(["ls", "-la"]).run().assert_success();
    let mut left: Vec<String> = fs::read_dir(place)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, names);
    let notes = world.state().join("stockade/staged");
    let noted = fs::read_dir(&notes).map_or(0, |entries| entries.count());
    assert_eq!(noted, 0, "{}", notes.display());
}

as_root_and_user! {
    /// A rewrite for which there is no room leaves the old file, whoever ignores what `write` said.
    fn a_rewrite_that_has_no_room_leaves_the_old_file(world) {
        let small = world.workspace().join("small");
        let Some(_mounted) = Mounted::tmpfs(world, &small, "512k") else { return };
        for (steps, said) in [
            ("write fsync close again", "write ENOSPC\nfsync ENOSPC\nclose ENOSPC\nagain ENOSPC\n"),
            ("cut write close again", "write ENOSPC\nclose ENOSPC\nagain ENOSPC\n"),
        ] {
            world.write("small/f", OLD);
            let (output, result) = rewrite(world, &[], "small/f", 2_000_000, steps);
            assert_eq!(output.stdout(), said, "{steps}: {}", output.stderr());
            assert_eq!(content(world, "small/f"), OLD, "{steps}");
            assert_eq!(conflict(&result).0, Some(i64::from(libc::ENOSPC)), "{steps}");
            let log = world.stockade().args(["log", "--json", "--op", "conflict"]).run().stdout();
            assert!(log.contains(&format!("\"errno\":{}", libc::ENOSPC)), "{log}");
            assert_nothing_is_left(world, &small, &["f"]);
        }
        // Who makes room, or asks for less, and writes it all is published.
        let (output, result) = rewrite(world, &[], "small/f", 2_000_000, "write small close");
        assert_eq!(output.stdout(), "write ENOSPC\nsmall ok\nclose ok\n", "{}", output.stderr());
        assert_eq!((content(world, "small/f"), &result["conflicts"][0]["errno"]), ("small".to_owned(), &Value::Null));
        // What is new has no old content to lose.
        let (output, _) = rewrite(world, &[], "small/new", 2_000_000, "write close");
        assert_eq!(output.stdout(), "write ENOSPC\nclose ok\n");
        assert!(fs::metadata(small.join("new")).unwrap().len() > 100_000);
        assert_nothing_is_left(world, &small, &["f", "new"]);
    }

    /// A state directory without room: a run doesn't start in it, and one that goes on is stopped, since nothing of it would
    /// be in the log. What it published is whole, and isn't put back in part.
    fn a_full_state_directory_tears_nothing(world) {
        let state = world.state().join("stockade");
        let Some(_mounted) = Mounted::tmpfs(world, &state, "1500k") else { return };
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        world.write("f", OLD);
        let (result, ready) = (world.result_file(), world.workspace().join("ready"));
        let script = "echo > ready; while ! test -e go; do sleep 0.01; done; \
            i=0; while :; do i=$((i + 1)); seq $i $((i + 500)) > f; done";
        let mut running = world
            .run(&["--keep-history", "--result", result.to_str().unwrap()])
            .args(["sh", "-c", script])
            .deadline(Duration::from_secs(60))
            .spawn();
        running.wait_until("it is at work", || ready.exists());
        drop(fs::write(state.join("fill"), vec![0; 2_000_000]));
        world.write("go", "");
        let output = running.wait();
        output.assert_code(125);
        for said in ["so the run was stopped", "events are missing in the log", "the history isn't whole"] {
            assert!(output.stderr().contains(said), "{said}: {}", output.stderr());
        }
        assert_eq!(World::read_result(&result, &output)["outcome"], "runner_failed");
        let written = content(world, "f");
        let first: u32 = written.lines().next().unwrap().parse().unwrap();
        let version: String = (first..=first + 500).map(|number| format!("{number}\n")).collect();
        assert_eq!(written, version);
        let output = world.run(&[]).args(["sh", "-c", "echo again > f"]).run();
        output.assert_code(125);
        assert!(output.stderr().contains("full"), "{}", output.stderr());
        fs::remove_file(state.join("fill")).unwrap();
        let undone = world.stockade().arg("undo").run();
        undone.assert_code(125);
        assert!(undone.stderr().contains("couldn't be written to its end"), "{}", undone.stderr());
        assert_eq!(content(world, "f"), version);
        assert_nothing_is_left(world, &world.workspace(), &["f", "go", "ready"]);
    }

    /// A disk that fails: what can't be written to it isn't published, and `fsync` says so, or `close` with `--durable`.
    fn a_disk_that_fails_loses_nothing(world) {
        if !world.has("mkfs.ext4") {
            return;
        }
        // A disk whose own medium is full: what is written to it in the background fails.
        let (medium, disk) = (world.directory().join("medium"), world.workspace().join("disk"));
        let Some(_medium) = Mounted::tmpfs(world, &medium, "9m") else { return };
        let image = medium.join("image");
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let image_name = image.to_str().unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal", image_name]).status().unwrap();
        assert!(made.success());
        let Some(_disk) = Mounted::new(world, &disk, &["-o", "loop,errors=continue", image_name]) else { return };
        drop(fs::remove_dir(disk.join("lost+found")));
        for (options, steps, said) in [
            (&[][..], "write fsync close again", "write ok\nfsync E\nclose E\nagain E\n"),
            (&["--durable"], "write close again", "write ok\nclose E\nagain E\n"),
        ] {
            world.write("disk/f", OLD);
            rustix::fs::sync();
            let (output, result) = rewrite(world, options, "disk/f", 20_000_000, steps);
            // Which of the two the kernel says depends on its version.
            let (eio, enospc) = (said.replace('E', "EIO"), said.replace('E', "ENOSPC"));
            assert!([eio, enospc].contains(&output.stdout()), "{}: {}", output.stdout(), output.stderr());
            assert_eq!(content(world, "disk/f"), OLD, "{steps}");
            let errno = conflict(&result).0.and_then(|errno| i32::try_from(errno).ok());
            assert!([Some(libc::EIO), Some(libc::ENOSPC)].contains(&errno), "{steps}: {errno:?}");
            assert_nothing_is_left(world, &disk, &["f"]);
        }
    }

    /// Permissions that are taken away, and a source that is moved or removed as a whole, while a file is rewritten: every
    /// close says so, the old file is as it was wherever it is, what was written is kept.
    fn a_source_that_goes_away_takes_nothing_along(world) {
        let (source, elsewhere) = (world.directory().join("s"), world.directory().join("elsewhere"));
        for case in ["chmod", "chown", "moved", "removed"] {
            let (uid, _) = world.ids();
            // Root writes everywhere, and root alone gives files away.
            if (case == "chmod" && uid == 0) || (case == "chown" && (uid == 0 || !rustix::process::geteuid().is_root())) {
                continue;
            }
            for begin in ["write", "cut write"] {
                fs::create_dir(&source).unwrap();
                fs::write(source.join("f"), OLD).unwrap();
                world.own_tree(&source);
                let token = format!("/tmp/{}-{case}", world.directory().file_name().unwrap().to_str().unwrap());
                let (ready, go) = (PathBuf::from(format!("{token}.ready")), PathBuf::from(format!("{token}.go")));
                let result = world.result_file();
                let mut running: Running = world
                    .run(&["-q", "--workspace", source.to_str().unwrap(), "--result", result.to_str().unwrap()])
                    .args(["python3", "-c", WRITER, "f", "10", &format!("{begin} wait fsync close again {token}")])
                    .directory(&source)
                    .deadline(Duration::from_secs(60))
                    .spawn();
                running.wait_until("the rewrite is under way", || ready.exists());
                let own = |uid, gid| std::os::unix::fs::chown(&source, Some(uid), Some(gid)).unwrap();
                match case {
                    "chmod" => fs::set_permissions(&source, fs::Permissions::from_mode(0o555)).unwrap(),
                    "chown" => own(0, 0),
                    "moved" => fs::rename(&source, &elsewhere).unwrap(),
                    _ => fs::remove_dir_all(&source).unwrap(),
                }
                fs::write(&go, "").unwrap();
                let output = running.wait();
                for file in [ready, go] {
                    drop(fs::remove_file(file));
                }
                let place = if case == "moved" { &elsewhere } else { &source };
                let errno = match case {
                    "chmod" | "chown" => ("EACCES", libc::EACCES),
                    "removed" => ("ENOENT", libc::ENOENT),
                    // The mount's own directory goes with it.
                    _ => ("ok", 0),
                };
                let said = format!("write ok\nwait ok\nfsync {0}\nclose {0}\nagain {0}\n", errno.0);
                assert_eq!(output.stdout(), said, "{case}, {begin}: {}", output.stderr());
                if errno.1 == 0 {
                    assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "xxxxxxxxxx", "{case}");
                } else {
                    let told = conflict(&World::read_result(&result, &output));
                    assert_eq!(told, (Some(i64::from(errno.1)), Some("xxxxxxxxxx".to_owned())), "{case}, {begin}");
                }
                if place.exists() {
                    world.own(place);
                    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
                    if errno.1 != 0 {
                        assert_eq!(fs::read_to_string(place.join("f")).unwrap(), OLD, "{case}, {begin}");
                    }
                    let options = ["-q", "--workspace", place.to_str().unwrap()];
                    world.run(&options).arg("ls").directory(place).run().assert_success();
                    let left = fs::read_dir(place).unwrap().count();
                    assert_eq!(left, 1, "{case}, {begin}");
                    fs::remove_dir_all(place).unwrap();
                }
            }
        }
    }
}
