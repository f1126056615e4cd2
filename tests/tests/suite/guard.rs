//! The guard: content that a session hasn't seen, or that changed since, isn't lost (O2, O3, F6).

use std::fs;
use std::time::Duration;

use serde_json::Value;
use stockade_tests::{World, as_root_and_user};

/// Ways to lose the content of `f`; each is run by a shell with `set -e`.
const LOSSES: [(&str, &str); 9] = [
    ("write", "echo x > f"),
    ("truncate", "truncate -s 1 f"),
    ("rename", "echo x > n; mv -f n f"),
    ("unlink", "rm -f f"),
    ("write", "dd if=/dev/zero of=f bs=1 count=1 conv=notrunc status=none"),
    ("write", "python3 -c 'import os; os.open(\"f\", os.O_RDWR | os.O_TRUNC)'"),
    ("truncate", "python3 -c 'import os; os.truncate(\"f\", 2)'"),
    (
        "truncate",
        "python3 -c 'import os; os.ftruncate(os.open(\"f\", os.O_WRONLY | os.O_APPEND), 0)'",
    ),
    (
        "write",
        "python3 -c 'import os, fcntl; d = os.open(\"f\", os.O_WRONLY | os.O_APPEND); \
         fcntl.fcntl(d, fcntl.F_SETFL, 0); os.pwrite(d, b\"x\", 0)'",
    ),
];

const OLD: &str = "what was there\n";

/// What the host does.
type Change = fn(&World);

fn shell(world: &World, options: &[&str], script: &str) -> (stockade_tests::Output, Value) {
    let script = format!("set -e; {script}");
    world.run_with_result(options, &["sh", "-c", &script])
}

fn rules(result: &Value, key: &str, field: &str) -> Vec<String> {
    let rows = result[key].as_array().unwrap();
    rows.iter().map(|row| row[field].as_str().unwrap_or("-").to_owned()).collect()
}

fn content(world: &World, name: &str) -> String {
    fs::read_to_string(world.workspace().join(name)).unwrap()
}

as_root_and_user! {
    /// O3: what the session never saw can't be lost, in any way, and names why; what it saw can.
    fn unseen_content_is_not_lost(world) {
        for (op, loss) in LOSSES {
            world.write("f", OLD);
            // Its name and attributes aren't its content, and neither is its end.
            let script = format!("ls -l f; stat f; echo more >> f; {loss}");
            let (output, result) = shell(world, &["-q", "--guard", "enforce"], &script);
            assert_ne!(output.code, 0, "`{loss}` went through: {}", output.stderr());
            assert!(output.stderr().contains("ermission denied"), "`{loss}`: {}", output.stderr());
            assert_eq!(content(world, "f"), format!("{OLD}more\n"), "`{loss}`");
            let refused = result["denials"].as_array().unwrap();
            assert!(refused.iter().all(|row| row["reason"] == "not-observed" && row["errno"] == libc::EACCES), "`{loss}`: {refused:#?}");
            assert!(refused.iter().any(|row| row["op"] == op), "`{loss}`: {refused:#?}");
            drop(fs::remove_file(world.workspace().join("n")));
            let (output, result) = shell(world, &["-q", "--guard", "enforce"], &format!("cat f; {loss}"));
            output.assert_success();
            assert_eq!(result["denial_count"], 0, "`{loss}` after reading: {result:#}");
        }
    }

    /// O3: what loses nothing is free.
    fn what_loses_nothing_is_not_guarded(world) {
        world.write("f", OLD);
        world.write("g", OLD);
        world.write("empty", "");
        let script = "echo more >> f; chmod 600 f; touch f; ln f link; mv g h; echo x > empty; echo new > new; rm new; \
            python3 -c 'import os; d = os.open(\"h\", os.O_RDWR); os.pwrite(d, b\"W\", 0)'; mkdir d; rmdir d";
        let (output, result) = shell(world, &["-q", "--guard", "enforce"], script);
        output.assert_success();
        assert_eq!((result["denial_count"].clone(), result["conflicts"].clone()), (0.into(), Value::Array(vec![])));
        assert_eq!(content(world, "f"), format!("{OLD}more\n"));
        assert_eq!(content(world, "h"), OLD.replacen('w', "W", 1));
    }

    /// O2: a resumed session knows what it saw, through its own changes; another session doesn't. What changed since
    /// is said to have changed: in place, replaced, or made where nothing was.
    fn a_session_knows_what_it_saw(world) {
        for name in ["kept", "edited", "replaced", "foreign"] {
            world.write(name, OLD);
        }
        let id = |name: &str| {
            let output = world.stockade().args(["session", "new", "--name", name]).run();
            output.assert_success();
            output.stdout().trim().to_owned()
        };
        let (first, other) = (id("s1"), id("s2"));
        let session = ["-q", "--guard", "enforce", "--session", &first];
        let script = "cat kept edited replaced; chmod 640 kept; mv kept moved; touch moved; cat gap 2> /dev/null || echo own > own";
        shell(world, &session, script).0.assert_success();
        world.write("edited", "edited outside\n");
        world.write("new", "replaced outside\n");
        fs::rename(world.workspace().join("new"), world.workspace().join("replaced")).unwrap();
        world.write("gap", "made outside\n");
        for (file, reason) in [
            ("moved", None),
            ("own", None),
            ("edited", Some("stale-version")),
            ("replaced", Some("stale-version")),
            ("gap", Some("stale-version")),
            ("foreign", Some("not-observed")),
        ] {
            let before = content(world, file);
            let (output, result) = shell(world, &session, &format!("echo x > {file}"));
            assert_eq!(output.code == 0, reason.is_none(), "{file}: {}", output.stderr());
            assert_eq!(rules(&result, "denials", "reason"), Vec::from_iter(reason), "{file}");
            let expected = if reason.is_some() { before } else { "x\n".to_owned() };
            assert_eq!(content(world, file), expected, "{file}");
            let (output, result) = shell(world, &["-q", "--guard", "enforce", "--session", &other], &format!("echo y > {file}"));
            assert_ne!(output.code, 0, "{file} was overwritten by a session that never saw it");
            assert_eq!(rules(&result, "denials", "reason"), ["not-observed"], "{file}");
        }
    }

    /// O2: content that the session knows stays known when its link to an unknown name is broken (F11).
    fn what_is_known_stays_known_when_a_link_is_broken(world) {
        for change in ["chmod 600 f", "setfattr -n user.a -v 1 f", "touch f"] {
            drop(fs::remove_file(world.workspace().join("f")));
            drop(fs::remove_file(world.home().join("other")));
            world.write("f", OLD);
            fs::hard_link(world.workspace().join("f"), world.home().join("other")).unwrap();
            let script = format!("cat f; {change}; echo x > f; rm f");
            let (output, result) = shell(world, &["-q", "--guard", "enforce"], &script);
            output.assert_success();
            assert_eq!(result["conflicts"], Value::Array(vec![]), "{change}");
            assert_eq!(fs::read_to_string(world.home().join("other")).unwrap(), OLD, "{change}");
        }
    }

    /// O3: `audit`, the default, lets everything pass and says what was lost; `off` says nothing.
    fn audit_notes_what_is_lost(world) {
        for (op, loss) in LOSSES {
            world.write("f", OLD);
            let (output, result) = shell(world, &["-q"], loss);
            output.assert_success();
            assert_eq!(result["denial_count"], 0, "`{loss}`");
            assert_eq!(rules(&result, "conflicts", "rule"), ["not-observed"], "`{loss}`");
            assert_eq!(result["conflicts"][0]["path"], world.workspace().join("f").to_str().unwrap(), "`{loss}`");
            // A cut through a handle is said where the handle is closed.
            let said = &result["conflicts"][0]["op"];
            assert!(said == op || (op == "truncate" && said == "write"), "`{loss}`: {said}");
            let log = world.stockade().args(["log", "--json"]).run().stdout();
            let noted = log.lines().filter(|line| line.contains("\"rule\":\"not-observed\"") && line.contains("\"outcome\":\"ok\"")).count();
            assert_eq!(noted, 1, "`{loss}`: {log}");
            world.write("f", OLD);
            let (output, result) = shell(world, &["-q", "--guard", "off"], loss);
            output.assert_success();
            assert_eq!(result["conflicts"], Value::Array(vec![]), "`{loss}`");
        }
        // Nobody is told about unseen files on the terminal: most programs write without reading.
        world.write("f", OLD);
        let output = world.run(&[]).args(["sh", "-c", "echo x > f"]).run();
        assert_eq!((output.code, output.stderr()), (0, String::new()));
    }

    /// F6: the host changes a file while its rewrite is under way: the host's change stays, the program's close says
    /// so, and what it wrote is kept.
    fn a_rewrite_never_takes_the_place_of_what_the_host_wrote_meanwhile(world) {
        let changes: [(&str, Change); 4] = [
            ("edit", |world| drop(world.write("f", "of the host\n"))),
            ("replace", |world| {
                world.write("n", "of the host\n");
                fs::rename(world.workspace().join("n"), world.workspace().join("f")).unwrap();
            }),
            ("delete", |world| fs::remove_file(world.workspace().join("f")).unwrap()),
            ("create", |world| drop(world.write("g", "of the host\n"))),
        ];
        for (name, change) in changes {
            drop(fs::remove_file(world.workspace().join("g")));
            world.write("f", OLD);
            let target = if name == "create" { "g" } else { "f" };
            let program = format!(
                "import os, sys, time\n\
                 open('f').read()\n\
                 d = os.open('{target}', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\n\
                 os.write(d, b'of the program')\n\
                 open('ready', 'w').close()\n\
                 while not os.path.exists('go'): time.sleep(0.01)\n\
                 try: os.close(d)\n\
                 except OSError as error: print(error.errno)"
            );
            let result = world.result_file();
            let mut running = world.run(&["-q", "--guard", "enforce", "--result", result.to_str().unwrap()])
                .args(["python3", "-c", &program]).deadline(Duration::from_secs(60)).spawn();
            let ready = world.workspace().join("ready");
            running.wait_until("the rewrite is under way", || ready.exists());
            change(world);
            world.write("go", "");
            let output = running.wait();
            output.assert_success();
            assert_eq!(output.stdout(), format!("{}\n", libc::EACCES), "{name}: {}", output.stderr());
            if name == "delete" {
                assert!(!world.workspace().join("f").exists());
            } else {
                assert_eq!(content(world, target), "of the host\n", "{name}");
            }
            let result = World::read_result(&result, &output);
            let conflict = &result["conflicts"][0];
            assert_eq!(conflict["rule"], "stale-version", "{name}: {result:#}");
            assert_eq!(fs::read_to_string(conflict["kept"].as_str().unwrap()).unwrap(), "of the program", "{name}");
            for file in ["go", "ready"] {
                fs::remove_file(world.workspace().join(file)).unwrap();
            }
            let left: Vec<_> = fs::read_dir(world.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{name} left {left:?}");
        }
    }

    /// O3: what a session does itself is never refused: its own files, git's work in a repository of its own.
    fn own_work_is_not_refused(world) {
        let script = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; \
            for i in $(seq 30); do echo $i > f; done; sed -i s/30/31/ f; cp -p f g; cat f > g; echo x | tee g > h; \
            : > h; ln h i; echo both > h; cat i; rm i; echo one > h; mv h f; touch f; echo > f; chmod 600 f; echo y > f; \
            python3 -c 'import os; d = os.open(\"m\", os.O_RDWR | os.O_CREAT); os.write(d, b\"x\" * 9); os.ftruncate(d, 3); os.rename(\"m\", \"f\"); os.write(d, b\"y\")'; \
            mkdir d; echo a > d/a; mv d e; echo b > e/a; rm -r e; \
            git init -qb main r; cd r; for i in 1 2 3 4 5; do echo $i > $i; done; git add .; git commit -qm one; \
            git checkout -qb two; for i in 1 2 3; do echo two >> $i; done; rm 4; git commit -qam two; git checkout -q main; \
            git merge -q two; git rebase -q HEAD~1; git gc -q; git stash list; echo x >> 5; git stash -q; git stash pop -q; git status --porcelain";
        if !world.has("git") {
            return;
        }
        let (output, result) = shell(world, &["-q", "--guard", "enforce"], script);
        output.assert_success();
        assert_eq!((result["denial_count"].clone(), result["conflicts"].clone()), (0.into(), Value::Array(vec![])), "{result:#}");
    }
}

/// Adds to a counter so many times, by rewriting it or by renaming over it; tries again when it is refused.
const INCREMENT: &str = "import os, sys, errno\n\
    count, how, refused = int(sys.argv[1]), sys.argv[2], 0\n\
    while count:\n\
    \x20try:\n\
    \x20\x20value = int(open('counter').read())\n\
    \x20\x20name = 'counter' if how == 'rewrite' else 'counter.' + how\n\
    \x20\x20d = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\n\
    \x20\x20try: os.write(d, b'%d' % (value + 1))\n\
    \x20\x20finally: os.close(d)\n\
    \x20\x20if how != 'rewrite': os.rename(name, 'counter')\n\
    \x20\x20count -= 1\n\
    \x20except OSError as error:\n\
    \x20\x20if error.errno not in (errno.EACCES, errno.ESTALE): raise\n\
    \x20\x20refused += 1\n\
    print(refused)\n";

/// Lets writers of different sessions, each in a mount of its own, count together; the host saves in between.
#[expect(clippy::print_stdout, reason = "figures of a long run")]
fn count_together(world: &World, each: u32) {
    world.write("counter", "0");
    let running: Vec<_> = ["rewrite", "one", "rewrite"]
        .iter()
        .map(|how| {
            world
                .run(&["-q", "--guard", "enforce"])
                .args(["python3", "-c", INCREMENT, &each.to_string(), how])
                .deadline(Duration::from_secs(1200))
                .spawn()
        })
        .collect();
    let mut refused = 0;
    for running in running {
        let output = running.wait();
        output.assert_success();
        refused += output.stdout().trim().parse::<u64>().unwrap();
    }
    assert_eq!(content(world, "counter"), (3 * each).to_string(), "refused: {refused}");
    assert!(refused > 0, "they never met");
    println!("3 writers, {each} each, refused {refused}");
}

as_root_and_user! {
    /// F6: a compare-and-swap between writers in different processes and mounts: no update is lost.
    fn no_update_is_lost_between_two_mounts(world) {
        count_together(world, 200);
    }
}

/// The same at length: 10,002 times in all.
#[test]
#[ignore = "takes minutes"]
fn no_update_is_lost_at_length() {
    stockade_tests::check("guard::at_length", stockade_tests::Identity::Root, |world| {
        count_together(world, 3334);
    });
}
