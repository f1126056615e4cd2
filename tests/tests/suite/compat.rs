//! `stockade bwrap-compat`: bubblewrap's arguments as harnesses pass them, against bubblewrap itself.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use stockade_tests::{Digest, Facets, Invocation, Output, World, as_root_and_user};

use crate::program;

/// What harnesses pass, by who passes it; `@` stands for the workspace.
const LISTS: [(&str, &str); 5] = [
    ("read-only profile", "--ro-bind / / --dev /dev --unshare-pid --proc /proc --die-with-parent"),
    (
        "workspace profile",
        "--ro-bind / / --dev /dev --unshare-pid --proc /proc --die-with-parent --tmpfs /tmp --bind @ @",
    ),
    (
        "agent",
        "--new-session --die-with-parent --ro-bind / / --dev /dev --bind @ @ --bind /tmp /tmp --ro-bind @/.git @/.git --ro-bind @/kept @/kept \
         --ro-bind /dev/null @/.codex --unshare-user --unshare-pid --unshare-net --proc /proc --chdir @/dir",
    ),
    (
        "runtime",
        "--new-session --die-with-parent --unshare-net --setenv NOTE set --setenv HTTP_PROXY http://localhost:3128 --ro-bind / / --bind @ @ \
         --bind /tmp /tmp --ro-bind @/kept @/kept --tmpfs @/hidden --ro-bind /dev/null @/covered --dev /dev --unshare-pid --proc /proc",
    ),
    (
        "by hand",
        "--unshare-all --share-net --uid 0 --gid 0 --hostname inside --ro-bind / / --bind @ @ --bind-try @/missing /missing --perms 0755 --tmpfs @/hidden \
         --ro-bind @/file @/covered --remount-ro @/hidden --clearenv --dev /dev --proc /proc --cap-drop ALL",
    ),
];

fn arguments(world: &World, list: &str) -> Vec<OsString> {
    let workspace = world.workspace();
    list.split_whitespace()
        .map(|word| word.replace('@', workspace.to_str().unwrap()).into())
        .collect()
}

/// Makes the workspace anew, and what is outside of it.
fn prepare(world: &World) {
    for left in fs::read_dir(world.workspace()).unwrap() {
        let left = left.unwrap().path();
        if left.is_dir() {
            fs::remove_dir_all(left).unwrap()
        } else {
            fs::remove_file(left).unwrap()
        }
    }
    for (path, text) in [
        ("file", "text\n"),
        ("dir/inner", "inner\n"),
        ("hidden/secret", "secret\n"),
        ("covered", "covered\n"),
        ("kept/config", "config\n"),
        (".git/config", "[core]\n"),
    ] {
        world.write(path, text);
    }
    fs::write(world.outside().join("there"), "outside\n").unwrap();
    world.own_tree(&world.outside());
}

fn compat(world: &World) -> Invocation {
    world.stockade().arg("bwrap-compat")
}

/// Runs the hundred operations and returns what they said, and what they left.
fn operations(
    world: &World,
    sandbox: Invocation,
    list: &str,
    script: &PathBuf,
) -> (Output, Digest) {
    prepare(world);
    let output = sandbox
        .args(arguments(world, list))
        .arg("--")
        .args(program::PYTHON)
        .arg(script)
        .arg(world.workspace())
        .arg(world.outside())
        .run();
    let digest = Digest::of(&world.workspace());
    (output, digest)
}

as_root_and_user! {
    /// The same operations have the same answers and leave the same files as under bubblewrap, and are in the log.
    fn what_harnesses_pass_does_what_it_does_with_bubblewrap(world) {
        if !world.has("bwrap") {
            return;
        }
        let script = program::install(world, "compat.py", program::COMPAT);
        let _own = world.with_private_tmp();
        for (name, list) in &LISTS {
            let (native, left) = operations(world, world.native("bwrap"), list, &script);
            let result = world.result_file();
            let (ours, also_left) = operations(world, compat(world).env("STOCKADE_RESULT", &result), list, &script);
            let lines = |output: &Output| output.stdout().lines().map(str::to_owned).collect::<Vec<_>>();
            let (expected, got) = (lines(&native), lines(&ours));
            assert!(expected.last().is_some_and(|line| line.starts_with("operations\t 10")), "{name}: {}{}", native.stdout(), native.stderr());
            for (expected, got) in expected.iter().zip(&got) {
                // What is served is a file system of its own, also where nothing may be written.
                let apart = ["link outside", "move outside"].iter().any(|name| expected == &format!("{name}\t'EROFS'"));
                // Root's command has no CAP_MKNOD (contract L12).
                let device = world.identity().is_root() && (&**expected, &**got) == ("device\tNone", "device\t'EPERM'");
                assert!(got == expected || device || (apart && got == &expected.replace("EROFS", "EXDEV")), "{name}: {got} instead of {expected}");
            }
            assert_eq!((ours.code, got.len(), ours.stderr()), (native.code, expected.len(), native.stderr()), "{name}");
            left.assert_same(&also_left, Facets::Content, name);
            let result: Value = World::read_result(&result, &ours);
            assert_eq!((&result["outcome"], &result["backend"], &result["exit_code"]), (&json!("exited"), &json!("bwrap-compat"), &json!(0)), "{name}");
            assert_eq!(result["enforcement"]["level"], json!("partial"));
            let log = world.stockade().args(["log", "--json", result["session"].as_str().unwrap()]).run().stdout();
            let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let file = world.workspace().join("file");
            let seen = |op: &str, outcome: &str| {
                events.iter().any(|event| event["op"] == op && event["outcome"] == outcome && event["path"].as_str() == file.to_str())
            };
            assert!(seen("read", "ok"), "{name}: {log}");
            if *name != "read-only profile" {
                assert!(seen("write", "ok") && seen("chmod", "ok"), "{name}: {log}");
            }
        }
    }

    /// Where everything may be written, the directory of the call is served, and the result names the rest.
    fn a_bind_of_everything_serves_the_directory_and_names_the_gap(world) {
        if !world.has("bwrap") {
            return;
        }
        let list = arguments(world, "--new-session --die-with-parent --bind / / --dev /dev --unshare-pid --proc /proc --");
        let result = world.result_file();
        let script = "echo x > inside; echo y > \"$1/outside\"; mkdir -p .git/hooks && ! touch .git/hooks/pre-commit 2> /dev/null";
        let output = compat(world).env("STOCKADE_RESULT", &result).args(&list).args(["sh", "-c", script, "sh"]).arg(world.outside()).run();
        output.assert_success();
        assert_eq!(fs::read_to_string(world.outside().join("outside")).unwrap(), "y\n");
        let result: Value = World::read_result(&result, &output);
        assert_eq!(result["changes"]["created"].as_array().unwrap().len(), 3, "{result}");
        assert_eq!(result["denial_count"], 1);
        assert!(result["enforcement"]["gaps"].as_array().unwrap().contains(&json!("unserved-binds")), "{result}");
    }

    /// What Stockade promises about a writable bind holds, and the operator can lift it.
    fn binds_are_protected_and_a_configuration_lifts_it(world) {
        if !world.has("bwrap") {
            return;
        }
        prepare(world);
        let list = arguments(world, "--ro-bind / / --bind @ @ --dev /dev --unshare-pid --proc /proc --");
        let script = "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit";
        let refused = compat(world).args(&list).args(["sh", "-c", script]).run();
        assert_eq!(refused.code, 2, "{}", refused.stderr());
        assert!(refused.stderr().contains("Read-only file system"), "{}", refused.stderr());
        let config = world.directory().join("config.toml");
        fs::write(&config, "allow_write = [\".git/hooks/**\"]\n").unwrap();
        compat(world).env("STOCKADE_CONFIG", &config).args(&list).args(["sh", "-c", script]).run().assert_success();
    }

    /// Statuses and refusals are bubblewrap's, with one line that says `stockade: ` where nothing runs.
    fn statuses_are_bubblewraps_and_refusals_are_one_line(world) {
        if !world.has("bwrap") {
            return;
        }
        let list = arguments(world, "--ro-bind / / --dev /dev --unshare-pid --proc /proc --bind @ @");
        for script in ["exit 0", "exit 7", "exit 125", "kill -9 $$", "echo out; echo err >&2; exit 1"] {
            let native = world.native("bwrap").args(&list).args(["--", "sh", "-c", script]).run();
            let ours = compat(world).args(&list).args(["--", "sh", "-c", script]).run();
            assert_eq!((ours.code, ours.stdout(), ours.stderr()), (native.code, native.stdout(), native.stderr()), "{script}");
        }
        let never = world.workspace().join("never");
        let touch = |words: &[&str]| compat(world).args(words).args(&list).arg("--").arg("touch").arg(&never).run();
        for words in [&["--overlay-src", "/"][..], &["--userns", "9"], &["--frobnicate"], &["--args", "77"], &["--bind-fd", "3", "/"]] {
            let output = touch(words);
            assert_eq!(output.code, 1, "{words:?}");
            let stderr = output.stderr();
            assert!(stderr.starts_with("stockade: ") && stderr.contains(words[0]) && stderr.lines().count() == 1, "{words:?}: {stderr}");
            assert!(!never.exists(), "{words:?}");
        }
        let result = world.result_file();
        let missing = compat(world).env("STOCKADE_RESULT", &result).args(&list).args(["--", "/nonexistent"]).run();
        missing.assert_code(1);
        assert!(missing.stderr().lines().last().unwrap().starts_with("stockade: "), "{}", missing.stderr());
        assert_eq!(World::read_result(&result, &missing)["outcome"], json!("runner_failed"));
    }

    /// A harness that looks for `bwrap` finds a link to us, and we find bubblewrap behind it.
    fn a_link_called_bwrap_is_enough(world) {
        if !world.has("bwrap") {
            return;
        }
        let directory = world.directory().join("bin");
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink(world.binary(), directory.join("bwrap")).unwrap();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", directory.display());
        let list = arguments(world, "--ro-bind / / --dev /dev --bind @ @ --unshare-pid --proc /proc");
        let script = "bwrap \"$@\" sh -c 'echo x > made' && bwrap --version";
        let output = world.native("sh").env("PATH", &path).args(["-c", script, "sh"]).args(&list).run();
        output.assert_success();
        assert!(output.stdout().starts_with("bubblewrap "), "{}", output.stdout());
        let log = world.stockade().args(["log", "--json"]).run().stdout();
        assert!(log.contains("/made\""), "{log}");
        world.run(&["-q", "--backend", "bwrap"]).env("PATH", &path).arg("true").run().assert_success();
    }

    /// A socket that a bind names is the host's, also in what is served; no other is.
    fn a_socket_that_is_bound_is_the_hosts(world) {
        if !world.has("bwrap") {
            return;
        }
        let listen = |name: &str| {
            let path = world.workspace().join(name);
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            world.own(&path);
            listener
        };
        let _listeners = [listen("named"), listen("other")];
        let list = arguments(world, "--ro-bind / / --dev /dev --bind @ @ --bind @/named @/named --");
        let script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
        let connect = |name: &str| {
            compat(world).args(&list).args(program::PYTHON).args(["-c", script]).arg(world.workspace().join(name)).run()
        };
        connect("named").assert_success();
        let refused = connect("other");
        assert!(refused.code == 1 && refused.stderr().contains("refused"), "{}", refused.stderr());
    }

    /// Descriptors mean what they mean to bubblewrap: arguments, status and information.
    fn descriptors_are_passed_on(world) {
        if !world.has("bwrap") {
            return;
        }
        let binary = world.binary();
        let workspace = world.workspace();
        let script = "printf '%s\\0' --ro-bind / / --bind \"$2\" \"$2\" --dev /dev --unshare-pid --proc /proc > args; printf content > data; \
            exec \"$1\" ${3:+bwrap-compat} --args 5 --json-status-fd 6 --info-fd 7 --file 8 \"$2/made\" -- sh -c 'cat made; ls /proc/self/fd | wc -l; exit 3' \
            5< args 6> status 7> info 8< data";
        let run = |program: &std::ffi::OsStr, compat: &str| {
            drop(fs::remove_file(workspace.join("made")));
            let output = world.native("sh").args(["-c", script, "sh"]).arg(program).arg(&workspace).arg(compat).run();
            let read = |name: &str| fs::read_to_string(workspace.join(name)).unwrap();
            let shape = |text: String| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
            let exit = read("status").contains("\"exit-code\": 3");
            (output.code, output.stdout(), exit, shape(read("status")), shape(read("info")))
        };
        assert_eq!(run(binary.as_os_str(), "yes"), run("bwrap".as_ref(), ""));
    }

    /// A session goes before the arguments where it allows less, and what isn't in a PID namespace ends with the run, too.
    fn a_session_narrows_and_nothing_outlives_the_run(world) {
        if !world.has("bwrap") {
            return;
        }
        let list = arguments(world, "--ro-bind / / --dev /dev --bind @ @ --");
        let session = world.stockade().args(["session", "new", "--mode", "read-only"]).run().stdout().trim().to_owned();
        let output = compat(world).env("STOCKADE_SESSION", &session).args(&list).args(["sh", "-c", "echo x > y"]).run();
        assert!(output.code != 0 && output.stderr().contains("Read-only file system"), "{}", output.stderr());
        let runs = world.stockade().args(["log", "--runs", &session]).run().stdout();
        assert!(runs.contains("refused") || runs.contains("1"), "{runs}");
        // The world's own check for what is left sees it otherwise.
        compat(world).args(&list).args(["sh", "-c", "setsid sleep 1000 < /dev/null > /dev/null 2>&1 & exit 0"]).run().assert_success();
    }

    /// L12: root's command keeps what it keeps in a run, unless the caller adds to it; then that is a gap.
    fn root_keeps_few_capabilities(world) {
        if !world.identity().is_root() || !world.has("bwrap") {
            return;
        }
        let effective = |options: &[&str]| {
            let result = world.result_file();
            let base = ["--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc"];
            let output = compat(world).args(base).args(options).args(["--", "grep", "CapEff", "/proc/self/status"]).env("STOCKADE_RESULT", &result).run();
            let said = output.assert_success().stdout();
            let mask = u64::from_str_radix(said.split_whitespace().last().unwrap(), 16).unwrap();
            let gaps = World::read_result(&result, &output)["enforcement"]["gaps"].clone();
            (mask, gaps.as_array().unwrap().iter().any(|gap| gap == "capabilities"))
        };
        assert_eq!(effective(&[]), (0x8000_04fb, false));
        assert_eq!(effective(&["--cap-drop", "CAP_CHOWN"]), (0x8000_04fa, false));
        assert_eq!(effective(&["--cap-drop", "ALL"]), (0, false));
        assert_eq!(effective(&["--cap-add", "cap_kill"]), (0x8000_04fb, false));
        assert_eq!(effective(&["--cap-add", "CAP_SYS_ADMIN"]), (0x8020_04fb, true));
    }

    /// What is rarer: names, process 1, descriptors for a filter and for synchronisation do what bubblewrap does with them.
    fn rarer_options_do_what_they_do_with_bubblewrap(world) {
        if !world.has("bwrap") {
            return;
        }
        // Refuses mkdir and mkdirat with EPERM, on x86-64.
        let filter: Vec<u8> = [
            (0x20_u16, 0_u8, 0_u8, 0_u32),
            (0x15, 1, 0, 83),
            (0x15, 0, 1, 258),
            (0x06, 0, 0, 0x0005_0001),
            (0x06, 0, 0, 0x7fff_0000),
        ]
        .into_iter()
        .flat_map(|(code, yes, no, value)| [&code.to_ne_bytes()[..], &[yes, no], &value.to_ne_bytes()].concat())
        .collect();
        let filter = world.write("../out/filter", filter);
        let filter = filter.to_str().unwrap();
        let base = "--ro-bind / / --dev /dev --bind \"$PWD\" \"$PWD\" --unshare-pid --proc /proc";
        let rows = [
            format!("{base} --as-pid-1 -- sh -c 'echo $$'"),
            format!("{base} -- sh -c 'test $$ != 1 && echo other'"),
            format!("{base} --argv0 called -- sh -c 'echo $0; tr \"\\000\" \" \" < /proc/$$/cmdline | cut -d\" \" -f1'"),
            format!("{base} --seccomp 10 -- sh -c 'mkdir made; echo $?; echo x > made-file; cat made-file' 10< {filter}"),
            // It goes on when something can be read there.
            format!("{base} --block-fd 11 -- sh -c 'cat told' 11< <(sleep 0.3; echo yes > told; echo)"),
            // It is held open until all is over.
            format!("{base} --sync-fd 12 -- sh -c 'sleep 0.3; echo inside' 12> >(cat; echo closed)"),
            // A child that the shell gave us, which outlives the command.
            format!("{base} -- sh -c 'echo printed' > >(sleep 0.3; cat; echo read)"),
        ];
        // Bubblewrap has learnt some of them late.
        let known = world.native("bwrap").arg("--help").run().stdout();
        for row in rows.iter().filter(|row| known.contains("--argv0") || !row.contains("--argv0")) {
            let run = |sandbox: &str| {
                prepare(world);
                let script = format!("{sandbox} {row} 2>&1; sleep 0.6");
                let output = world.native("bash").args(["-c", &script]).run();
                (output.stdout(), output.stderr())
            };
            let binary = world.binary();
            let native = run("bwrap");
            assert_eq!(run(&format!("{} bwrap-compat", binary.display())), native, "{row}");
            assert!(!native.0.is_empty(), "{row}: {}", native.1);
        }
    }
}
