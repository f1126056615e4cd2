//! What the host changes is seen inside, soon, although the kernel is allowed to remember what it was told for long (F10).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::UNIX_EPOCH;

use stockade_tests::{World, as_root_and_user};

/// Looks at one thing again and again.
const WATCH: &str = include_str!("../../programs/watch.py");

/// Changes a directory in each way, and lists it before and after; prints how often.
const LISTINGS: &str = include_str!("../../programs/listings.py");

/// A change takes no longer than this to be seen.
const BOUND_MS: f64 = 2000.0;

type Change = fn(&Path);

/// Each kind of change: what is looked at, where, and what the host does.
const CHANGES: [(&str, &str, &str, Change); 19] = [
    ("append", "content", "d/f", |top| {
        fs::OpenOptions::new()
            .append(true)
            .open(top.join("d/f"))
            .unwrap()
            .write_all(b"more")
            .unwrap();
    }),
    ("overwrite in place", "content", "d/f", |top| {
        fs::OpenOptions::new()
            .write(true)
            .open(top.join("d/f"))
            .unwrap()
            .write_all(b"ONE")
            .unwrap();
    }),
    ("rewrite", "content", "d/f", |top| fs::write(top.join("d/f"), "rewritten").unwrap()),
    ("truncate", "stat", "d/f", |top| {
        fs::OpenOptions::new().write(true).open(top.join("d/f")).unwrap().set_len(1).unwrap();
    }),
    ("replace by rename", "content", "d/f", |top| {
        fs::write(top.join("d/t"), "replaced").unwrap();
        let owner = fs::metadata(top.join("d/f")).unwrap();
        std::os::unix::fs::chown(top.join("d/t"), Some(owner.uid()), Some(owner.gid())).unwrap();
        fs::rename(top.join("d/t"), top.join("d/f")).unwrap();
    }),
    ("create", "stat", "d/new", |top| fs::write(top.join("d/new"), "x").unwrap()),
    ("create, listed", "listing", "d", |top| fs::write(top.join("d/new2"), "x").unwrap()),
    ("mkdir", "stat", "d/sub", |top| fs::create_dir(top.join("d/sub")).unwrap()),
    ("mkdir, links of the parent", "stat", "d", |top| fs::create_dir(top.join("d/sub2")).unwrap()),
    ("delete", "stat", "d/gone", |top| fs::remove_file(top.join("d/gone")).unwrap()),
    ("delete, listed", "listing", "d", |top| fs::remove_file(top.join("d/gone2")).unwrap()),
    ("rmdir", "stat", "d/empty", |top| fs::remove_dir(top.join("d/empty")).unwrap()),
    ("rename, old name", "stat", "d/old", |top| {
        fs::rename(top.join("d/old"), top.join("d/renamed")).unwrap()
    }),
    ("rename, new name", "stat", "d/renamed2", |top| {
        fs::rename(top.join("d/old2"), top.join("d/renamed2")).unwrap()
    }),
    ("rename of the directory", "stat", "e/in/x", |top| {
        fs::rename(top.join("e/in"), top.join("e/out")).unwrap()
    }),
    ("chmod", "stat", "d/f", |top| {
        fs::set_permissions(top.join("d/f"), fs::Permissions::from_mode(0o640)).unwrap();
    }),
    ("chmod of a directory", "stat", "d", |top| {
        fs::set_permissions(top.join("d"), fs::Permissions::from_mode(0o750)).unwrap();
    }),
    ("symlink replaced", "target", "d/link", |top| {
        symlink("elsewhere", top.join("d/t2")).unwrap();
        fs::rename(top.join("d/t2"), top.join("d/link")).unwrap();
    }),
    ("xattr", "xattr", "d/f", |top| {
        rustix::fs::setxattr(top.join("d/f"), "user.x", b"2", rustix::fs::XattrFlags::empty())
            .unwrap();
    }),
];

fn prepare(world: &World) {
    for file in ["d/f", "d/gone", "d/gone2", "d/old", "d/old2", "e/in/x"] {
        world.write(file, "one");
    }
    fs::create_dir(world.workspace().join("d/empty")).unwrap();
    symlink("somewhere", world.workspace().join("d/link")).unwrap();
    rustix::fs::setxattr(
        world.workspace().join("d/f"),
        "user.x",
        b"1",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    world.own_tree(&world.workspace());
}

as_root_and_user! {
    /// F10: each kind of host change shows within two seconds, in practice within milliseconds; the table says how long.
    fn host_changes_are_seen(world) {
        prepare(world);
        let program = world.directory().join("watch.py");
        fs::write(&program, WATCH).unwrap();
        // The talk goes over two FIFOs outside, since the harness's commands say what they said at their end.
        let (ask, answer) = (world.outside().join("ask"), world.outside().join("answer"));
        for fifo in [&ask, &answer] {
            let made = Command::new("mkfifo").arg(fifo).stdin(Stdio::null()).status().unwrap();
            assert!(made.success());
            world.own(fifo);
        }
        // Opened out here, both ways, so that neither side waits for the other.
        let script = "exec /usr/bin/python3 -I -S -B \"$0\" <&3 >&4";
        let starter = format!("exec 3<>{} 4<>{}; exec \"$@\"", ask.display(), answer.display());
        let binary = world.binary();
        let running = world
            .native("bash")
            .args(["-c", &starter, "bash"])
            .arg(&binary)
            .args(["run", "-q", "--keep-fd", "3", "--keep-fd", "4", "--", "bash", "-c", script])
            .arg(&program)
            .spawn();
        let mut orders = fs::OpenOptions::new().read(true).write(true).open(&ask).unwrap();
        let mut answers = BufReader::new(fs::OpenOptions::new().read(true).write(true).open(&answer).unwrap());
        let (sender, receiver) = std::sync::mpsc::channel();
        // A watchdog of its own: who reads a FIFO that is open both ways never sees its end.
        std::thread::spawn(move || loop {
            let mut line = String::new();
            if answers.read_line(&mut line).is_err() || sender.send(line).is_err() {
                return;
            }
        });
        let hear = || receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("an answer in time");
        let mut table = Vec::new();
        for (name, what, path, change) in CHANGES {
            writeln!(orders, "{what} {path}").unwrap();
            assert_eq!(hear().trim(), "ready", "{name}");
            let begun = UNIX_EPOCH.elapsed().unwrap().as_nanos();
            change(&world.workspace());
            let seen: u128 = hear().trim().parse().unwrap();
            let delay = seen.checked_sub(begun).map_or(f64::INFINITY, |nanos| std::time::Duration::from_nanos(u64::try_from(nanos).unwrap()).as_secs_f64() * 1000.0);
            table.push((name, delay));
        }
        running.signal_group(rustix::process::Signal::TERM);
        drop(running.wait());
        let who = if world.identity().is_root() { "root" } else { "user" };
        let lines: Vec<String> = table.iter().map(|(name, delay)| format!("| {name} | {who} | {delay:.1} ms |")).collect();
        crate::attempts::say(&lines.join("\n"));
        for (name, delay) in table {
            assert!(delay < BOUND_MS, "{name}: {delay} ms");
        }
    }

    /// F10, O1: a listing that the kernel has kept is never an old one, and each use of it is in the log.
    fn kept_listings_are_fresh_and_logged(world) {
        world.write("d/f", "one");
        world.own_tree(&world.workspace());
        let program = world.directory().join("listings.py");
        fs::write(&program, LISTINGS).unwrap();
        let output = world.run(&["-q"]).args(["/usr/bin/python3", "-I", "-S", "-B"]).arg(&program).arg(world.workspace().join("d")).run();
        let said = output.assert_success().stdout();
        let listings: u64 = said.trim().parse().unwrap_or_else(|_| panic!("{said}"));
        let directory = world.workspace().join("d");
        let log = world.stockade().args(["log", "--json"]).run().stdout();
        let counted: u64 = log
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|event| event["op"] == "readdir" && event["path"] == directory.to_str().unwrap())
            .map(|event| event["count"].as_u64().unwrap_or(1))
            .sum();
        assert_eq!(counted, listings, "{log}");
    }

    /// F10: what a run writes, the host sees at once, and own changes mixed with the host's never confuse either.
    fn changes_from_both_sides_mix(world) {
        let workspace = world.workspace();
        let mut running = world
            .run(&["-q"])
            .args(["bash", "-c", "
                for i in $(seq 150); do
                    echo $i > own; rm own; test ! -e own || echo own stays
                    echo $i > told; while test -e told; do :; done
                    test \"$(cat reply)\" = $i || echo $i: $(cat reply)
                done"])
            .spawn();
        for number in 1..=150 {
            running.wait_until("an answer", || fs::read_to_string(workspace.join("told")).is_ok_and(|text| text.trim() == number.to_string()));
            // Both ways to bring new content.
            if number % 2 == 0 {
                fs::write(workspace.join("reply"), format!("{number}\n")).unwrap();
            } else {
                fs::write(workspace.join("reply.new"), format!("{number}\n")).unwrap();
                fs::rename(workspace.join("reply.new"), workspace.join("reply")).unwrap();
            }
            world.own(&workspace.join("reply"));
            // The documented bound: after it, what was told is seen.
            std::thread::sleep(std::time::Duration::from_millis(50));
            fs::remove_file(workspace.join("told")).unwrap();
        }
        assert_eq!(running.wait().stdout(), "");
    }
}
