//! Publication: the host sees the old content or the whole new one, and what goes wrong below is said (F5, F7, F9).

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use stockade_tests::{Output, Running, World, as_root_and_user, skip};

const OLD: &str = "what was there\n";

/// Rewrites a file: the beginning, then waits for `go`, then the rest. Prints what an error is, and what it reads back.
const WRITER: &str = "import os, sys, time\n\
    name, how = sys.argv[1], sys.argv[2]\n\
    exec(sys.argv[3])\n\
    os.write(d, b'begin')\n\
    print(open(name).read(), os.path.getsize(name), name in os.listdir('.' if '/' not in name else os.path.dirname(name)))\n\
    sys.stdout.flush()\n\
    open('/tmp/ready-' + how, 'w').close()\n\
    while not os.path.exists('/tmp/go-' + how): time.sleep(0.005)\n\
    try:\n\
    \x20os.write(d, b' end')\n\
    \x20os.close(d)\n\
    except OSError as error: print(error.errno)\n";

const TRUNCATING: &str = "d = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)";

/// Ways to cut a file to nothing after it was opened, or before. Others have it open meanwhile, mapped even.
const CUTS: [&str; 5] = [
    "d = os.open(name, os.O_WRONLY); os.ftruncate(d, 0)",
    "d = os.open(name, os.O_RDWR); os.read(d, 3); os.ftruncate(d, 0); os.lseek(d, 0, 0)",
    "d = os.open(name, os.O_RDWR | os.O_APPEND); r = open(name); r.read(); os.ftruncate(d, 0)",
    "import mmap; d = os.open(name, os.O_RDWR); m = mmap.mmap(d, 0); r = os.open(name, os.O_RDONLY); i = os.stat(name).st_ino; \
     os.ftruncate(d, 0); assert os.fstat(r).st_ino == i == os.stat(name).st_ino and os.fstat(r).st_nlink == 1",
    "os.truncate(name, 0); d = os.open(name, os.O_WRONLY)",
];

/// A rewrite under way, and what lets it go on.
struct Rewrite {
    running: Running,
    go: PathBuf,
}

impl Rewrite {
    fn begin(world: &World, options: &[&str], name: &str) -> Self {
        Self::begin_by(world, options, name, TRUNCATING)
    }

    fn begin_by(world: &World, options: &[&str], name: &str, opening: &str) -> Self {
        let how = world.result_file().file_name().unwrap().to_str().unwrap().to_owned();
        let how = format!("{}-{how}", world.directory().file_name().unwrap().to_str().unwrap());
        let (ready, go) =
            (PathBuf::from(format!("/tmp/ready-{how}")), PathBuf::from(format!("/tmp/go-{how}")));
        let mut running = world
            .run(options)
            .args(["python3", "-c", WRITER, name, &how, opening])
            .deadline(Duration::from_secs(60))
            .spawn();
        running.wait_until("the rewrite is under way", || ready.exists());
        fs::remove_file(ready).unwrap();
        Self { running, go }
    }

    fn end(self) -> Output {
        fs::write(&self.go, "").unwrap();
        let output = self.running.wait();
        drop(fs::remove_file(&self.go));
        output
    }
}

/// A small file system of the test's own, over a directory of the workspace.
struct Small(PathBuf);

impl Small {
    fn mount(world: &World, name: &str, size: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(world.name(), "only root can mount a small file system");
            return None;
        }
        let place = world.workspace().join(name);
        fs::create_dir(&place).unwrap();
        let (uid, gid) = world.ids();
        let options = format!("size={size},uid={uid},gid={gid},mode=755");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "none"])
            .arg(&place)
            .status()
            .unwrap();
        assert!(status.success());
        Some(Self(place))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg("-l").arg(&self.0).status().unwrap().success());
    }
}

as_root_and_user! {
    /// F5: the host sees the old content until the program closes the file, and everybody inside the new.
    fn the_host_sees_the_old_content_until_the_close(world) {
        world.write("f", OLD);
        let rewrite = Rewrite::begin(world, &["-q"], "f");
        assert_eq!(fs::read_to_string(world.workspace().join("f")).unwrap(), OLD);
        let output = rewrite.end();
        assert_eq!(output.stdout(), "begin 5 True\n");
        assert_eq!(fs::read_to_string(world.workspace().join("f")).unwrap(), "begin end");
        // A file that is new has no name on the host before that.
        let rewrite = Rewrite::begin(world, &["-q"], "new");
        let names: Vec<_> = fs::read_dir(world.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["f"]);
        assert_eq!(rewrite.end().stdout(), "begin 5 True\n");
        assert_eq!(fs::read_to_string(world.workspace().join("new")).unwrap(), "begin end");
    }

    /// F5: the same where the file is cut after it was opened, or by its path: the host sees the old content, everybody
    /// inside the new, and the file keeps its number and its attributes.
    fn what_is_cut_and_written_anew_is_published_whole(world) {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        for cut in CUTS {
            let file = world.write("f", OLD);
            fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
            rustix::fs::setxattr(&file, "user.kept", b"value", rustix::fs::XattrFlags::empty()).unwrap();
            let before = fs::metadata(&file).unwrap();
            let rewrite = Rewrite::begin_by(world, &["-q"], "f", cut);
            let during = fs::metadata(&file).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), OLD, "{cut}");
            assert_eq!((during.mode(), during.uid(), during.mtime()), (before.mode(), before.uid(), before.mtime()), "{cut}");
            let output = rewrite.end();
            assert_eq!(output.stdout(), "begin 5 True\n", "{cut}: {}", output.stderr());
            assert_eq!(fs::read_to_string(&file).unwrap(), "begin end", "{cut}");
            let after = fs::metadata(&file).unwrap();
            assert_eq!((after.ino(), after.mode(), after.nlink()), (before.ino(), before.mode(), 1), "{cut}");
            let mut value = [0; 8];
            assert_eq!(rustix::fs::getxattr(&file, "user.kept", &mut value[..]), Ok(5));
            assert_eq!(fs::read_dir(world.workspace()).unwrap().count(), 1, "{cut}");
            let log = world.stockade().args(["log", "--json", "--op", "truncate"]).run().stdout();
            assert!(log.contains("\"publication\":\"atomic\""), "{cut}: {log}");
            // Its program is killed: as it was.
            let killing = format!("{cut}; os.write(d, b'torn'); os.kill(os.getpid(), 9)");
            let script = ["python3", "-c", "import os, sys; name = 'f'; exec(sys.argv[1])", &killing];
            world.run(&["-q"]).args(script).run().assert_code(137);
            assert_eq!(fs::read_to_string(&file).unwrap(), "begin end", "{cut}");
            assert_eq!(fs::read_dir(world.workspace()).unwrap().count(), 1, "{cut}");
            fs::remove_file(&file).unwrap();
        }
    }

    /// F1, F5: a database that cuts its journal has committed, and loses nothing when its program is killed, whoever wrote to the
    /// journal before; so for each file that is cut by who has written to it, and whose cuts come one after the other.
    fn what_was_committed_by_cutting_a_journal_stays(world) {
        let database = "import os, sqlite3, sys\n\
            c = sqlite3.connect('db', isolation_level=None)\n\
            if sys.argv[2] == 'exclusive': c.execute('pragma locking_mode=EXCLUSIVE')\n\
            c.execute('pragma journal_mode=TRUNCATE'); c.execute('pragma synchronous=' + sys.argv[1])\n\
            c.execute('create table if not exists t(i integer, b blob)')\n\
            for i in range(12):\n\
            \x20c.execute('begin')\n\
            \x20for k in range(20): c.execute('insert into t values(?, randomblob(900))', (i,))\n\
            \x20c.execute('update t set b = randomblob(900) where i = ?', (i // 2,))\n\
            \x20c.execute('commit')\n\
            os.kill(os.getpid(), 9)";
        let look = "import sqlite3; c = sqlite3.connect('db'); print(*c.execute('select count(*) from t').fetchone(), *c.execute('pragma integrity_check').fetchone())";
        for synchronous in ["OFF", "NORMAL", "FULL"] {
            for lock in ["exclusive", "normal"] {
                for run in 1..=3 {
                    world.run(&["-q"]).args(["python3", "-c", database, synchronous, lock]).run().assert_code(137);
                    let seen = world.native("python3").args(["-c", look]).run().stdout();
                    assert_eq!(seen, format!("{} ok\n", run * 240), "{synchronous} {lock}");
                }
                for name in ["db", "db-journal"] {
                    drop(fs::remove_file(world.workspace().join(name)));
                }
            }
        }
        let file = world.write("f", OLD);
        for (script, left) in [
            ("os.pwrite(d, b'J' * 50, 0); os.ftruncate(d, 0)", ""),
            ("os.ftruncate(d, 0); os.write(d, b'first'); os.ftruncate(d, 0); os.pwrite(d, b'second', 0)", "second"),
        ] {
            fs::write(&file, OLD).unwrap();
            let script = format!("import os; d = os.open('f', os.O_RDWR); {script}; os.kill(os.getpid(), 9)");
            world.run(&["-q"]).args(["python3", "-c", &script]).run().assert_code(137);
            assert_eq!(fs::read_to_string(&file).unwrap(), left, "{script}");
        }
    }

    /// F5: what is cut and not written is soon empty on the host, too; what can't be staged is cut in place, and the event
    /// says which.
    fn what_is_only_cut_is_cut(world) {
        let file = world.write("f", OLD);
        let other = world.write("g", OLD);
        fs::hard_link(&other, world.workspace().join("linked")).unwrap();
        let script = "import os, time; r = open('f'); os.truncate('f', 0); os.truncate('g', 0); assert os.path.getsize('f') == 0; \
            open('/tmp/cut-%d' % os.getuid(), 'w').close(); time.sleep(0.5); os.link('f', 'h'); \
            d = os.open('f', os.O_RDWR); os.write(d, b'x'); os.ftruncate(d, 0); os.write(d, b'y'); os.close(d)";
        let mut running = world.run(&["-q"]).args(["python3", "-c", script]).spawn();
        let token = PathBuf::from(format!("/tmp/cut-{}", world.ids().0));
        running.wait_until("it is cut", || token.exists());
        assert_eq!(fs::read(&other).unwrap(), b"");
        running.wait_until("the host sees it", || fs::read(&file).unwrap().is_empty());
        let output = running.wait();
        output.assert_success();
        fs::remove_file(token).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"\0y");
        let log = world.stockade().args(["log", "--json", "--op", "truncate"]).run().stdout();
        let of = |how: &str| log.matches(&format!("\"publication\":\"{how}\"")).count();
        assert_eq!((of("atomic"), of("in-place")), (1, 2), "{log}");
    }

    /// F5: a host process that reads all the time sees one whole version or another, however often a file is rewritten.
    fn a_host_reader_never_sees_a_part(world) {
        rewrites_seen_by_the_host(world, 600);
    }

    /// F5: `direct`, for all or for some files, is what the program does.
    fn direct_shows_what_is_written_at_once(world) {
        for (options, name, direct) in [
            (&["-q", "--publish", "direct"][..], "f", true),
            (&["-q", "--publish-direct", "*.log"], "f.log", true),
            (&["-q", "--publish-direct", "*.log"], "f", false),
        ] {
            world.write(name, OLD);
            let rewrite = Rewrite::begin(world, options, name);
            let expected = if direct { "begin" } else { OLD };
            assert_eq!(fs::read_to_string(world.workspace().join(name)).unwrap(), expected, "{options:?}");
            rewrite.end().assert_success();
            assert_eq!(fs::read_to_string(world.workspace().join(name)).unwrap(), "begin end");
        }
    }

    /// F5: `--durable` has the file and its directory on the disk when `close` returns.
    fn durable_waits_for_the_disk(world) {
        if !world.has("strace") {
            return;
        }
        // The first run of a machine makes other files durable.
        world.run(&["-q"]).arg("true").run().assert_success();
        for (options, synced) in [(&["-q", "--durable"][..], true), (&["-q"], false)] {
            world.write("f", OLD);
            let trace = world.home().join("trace");
            let script = "echo new > made; echo changed > f";
            world.native("strace").args(["-f", "-y", "-e", "trace=fsync,fdatasync", "-o"]).arg(&trace)
                .arg(world.binary()).arg("run").args(options).args(["--", "sh", "-c", script]).run().assert_success();
            let trace = fs::read_to_string(&trace).unwrap();
            let workspace = world.workspace();
            let calls: Vec<_> = trace.lines().filter(|line| line.contains(workspace.to_str().unwrap())).collect();
            let files = calls.iter().filter(|line| line.contains("/w/")).count();
            let directories = calls.iter().filter(|line| line.contains("/w>")).count();
            let expected = if synced { (2, 2) } else { (0, 0) };
            assert_eq!((files, directories), expected, "{trace}");
        }
    }

    /// F7, S2: a rewrite whose program is killed leaves the old file, and nothing beside it.
    fn a_killed_writer_leaves_the_old_content(world) {
        world.write("f", OLD);
        let script = "python3 -c 'import os, signal; d = os.open(\"f\", os.O_WRONLY | os.O_TRUNC); os.write(d, b\"torn\"); \
            os.kill(os.getpid(), signal.SIGKILL)'; cat f";
        let output = world.run(&["-q"]).args(["sh", "-c", script]).run();
        assert_eq!(output.stdout(), OLD);
        assert_eq!(fs::read_to_string(world.workspace().join("f")).unwrap(), OLD);
        assert_eq!(fs::read_dir(world.workspace()).unwrap().count(), 1);
    }

    /// F7: a disk that is full: the program is told, the old content stays, and there is room again afterwards.
    fn a_full_disk_loses_nothing(world) {
        let Some(small) = Small::mount(world, "small", "512k") else { return };
        world.write("small/f", OLD);
        let script = "head -c 2000000 /dev/zero > small/f; echo $?; cat small/f";
        let output = world.run(&["-q"]).args(["sh", "-c", script]).run();
        assert!(output.stderr().contains("No space left"), "{}", output.stderr());
        assert!(output.stdout().starts_with("1\n"), "{}", output.stdout());
        let output = world.run(&["-q"]).args(["sh", "-c", "echo new > small/f; cat small/f"]).run();
        assert_eq!((output.code, output.stdout()), (0, "new\n".to_owned()), "{}", output.stderr());
        assert_eq!(fs::read_to_string(world.workspace().join("small/f")).unwrap(), "new\n");
        assert_eq!(fs::read_dir(&small.0).unwrap().count(), 1);
    }

    /// F7: the directory is taken away, moved out or closed while a file in it is rewritten: `close` says so, the old
    /// file is as it was wherever it is now, and what was written is kept.
    fn what_can_not_be_published_is_kept(world) {
        let directory = world.workspace().join("d");
        let elsewhere = world.outside().join("d");
        for case in ["deleted", "moved out", "closed"] {
            // Root writes everywhere.
            if case == "closed" && world.ids().0 == 0 {
                continue;
            }
            world.write("d/f", OLD);
            let result = world.result_file();
            let rewrite = Rewrite::begin(world, &["-q", "--result", result.to_str().unwrap()], "d/f");
            match case {
                "deleted" => fs::remove_dir_all(&directory).unwrap(),
                "moved out" => fs::rename(&directory, &elsewhere).unwrap(),
                _ => fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap(),
            }
            let output = rewrite.end();
            output.assert_success();
            let said: Vec<_> = output.stdout().lines().skip(1).map(str::to_owned).collect();
            let errno: Vec<i32> = said.iter().map(|line| line.parse().unwrap()).collect();
            let expected = match case {
                "deleted" => vec![libc::ENOENT],
                "moved out" => vec![libc::ESTALE],
                _ => vec![libc::EACCES],
            };
            assert_eq!(errno, expected, "{case}");
            let result = World::read_result(&result, &output);
            let conflicts = result["conflicts"].as_array().unwrap();
            let kept = conflicts.iter().find_map(|row| row["kept"].as_str()).unwrap_or_else(|| panic!("{case}: nothing is kept: {result:#}"));
            assert_eq!(fs::read_to_string(kept).unwrap(), "begin end", "{case}");
            let place = if case == "moved out" { &elsewhere } else { &directory };
            if case != "deleted" {
                assert_eq!(fs::read_to_string(place.join("f")).unwrap(), OLD, "{case}");
                assert_eq!(fs::read_dir(place).unwrap().count(), 1, "{case}");
                fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
                fs::remove_dir_all(place).unwrap();
            }
        }
    }
}

/// Has a program rewrite a file so often, in both ways, while this process reads it.
#[expect(clippy::print_stdout, reason = "figures of a long run")]
fn rewrites_seen_by_the_host(world: &World, times: u32) {
    let version = |number: u32| format!("{number}\n").repeat(50 + (number % 97) as usize);
    let file = world.write("f", version(0));
    let program = format!(
        "import os\n\
         for n in range(1, {times} + 1):\n\
         \x20name = 'f' if n % 2 else 'n'\n\
         \x20d = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\n\
         \x20t = ('%d\\n' % n).encode() * (50 + n % 97)\n\
         \x20os.write(d, t[:99]); os.write(d, t[99:]); os.close(d)\n\
         \x20if name == 'n': os.rename('n', 'f')\n"
    );
    let mut running = world
        .run(&["-q"])
        .args(["python3", "-c", &program])
        .deadline(Duration::from_secs(1200))
        .spawn();
    let (mut last, mut reads) = (0, 0_u64);
    running.wait_until("the last version is there", || {
        for _ in 0..50 {
            let text = fs::read_to_string(&file).unwrap();
            let number: u32 = text
                .lines()
                .next()
                .unwrap_or_else(|| panic!("empty after {last}"))
                .parse()
                .unwrap();
            assert_eq!(text, version(number), "after {last}");
            assert!(number >= last, "{number} after {last}");
            last = number;
            reads += 1;
        }
        last == times
    });
    running.wait().assert_success();
    println!("{times} rewrites, {reads} reads");
}

/// The same at length.
#[test]
#[ignore = "takes minutes"]
fn a_host_reader_never_sees_a_part_of_100_000() {
    stockade_tests::check("publish::at_length", stockade_tests::Identity::Root, |world| {
        rewrites_seen_by_the_host(world, 100_000);
    });
}
