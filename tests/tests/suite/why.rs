//! `stockade why`: what it says is what then happens (P10, P11, CONTRACT 5).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use stockade_tests::as_root_and_user;

use crate::program::{self, PYTHON};

/// Names of which paths are made: plain ones, and such as rules and protections speak of.
const NAMES: [&[u8]; 16] = [
    b"a",
    b"b",
    b"c",
    b".git",
    b"hooks",
    b"x.sample",
    b".vscode",
    b".env",
    b"k.pem",
    b"node_modules",
    b"worktrees",
    b"repo.git",
    b".ssh",
    b".claude",
    b"[x]",
    b"\xff\xfe",
];

const PATTERNS: [&str; 9] =
    [".env", "*.pem", "**/a/b", "b", ".vscode", "c/", ".git", "**/c/**/a", "node_modules"];

const OPS: [&str; 18] = [
    "read",
    "readdir",
    "write",
    "copy",
    "truncate",
    "chmod",
    "chown",
    "utimes",
    "setxattr",
    "fallocate",
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "link",
    "unlink",
    "rmdir",
    "rename",
];

/// A policy by its options, and what is tried under it.
type Case = (Vec<String>, Vec<(&'static str, usize, Vec<&'static [u8]>)>);

fn case(tries: usize) -> impl Strategy<Value = Case> {
    let patterns = |option: &'static str| {
        prop::collection::vec(prop::sample::select(PATTERNS.to_vec()), 0..3).prop_map(move |list| {
            list.into_iter()
                .flat_map(|pattern| [option.to_owned(), pattern.to_owned()])
                .collect::<Vec<_>>()
        })
    };
    let mode = prop::sample::select(vec![
        "workspace-write",
        "workspace-write",
        "workspace-write",
        "read-only",
        "danger-full-access",
    ]);
    let options =
        (mode, patterns("--deny-read"), patterns("--deny-write"), patterns("--allow-write"))
            .prop_map(|(mode, a, b, c)| {
                [vec!["--mode".to_owned(), mode.to_owned()], a, b, c].concat()
            });
    let names = prop::collection::vec(prop::sample::select(NAMES.to_vec()), 1..4);
    let tried = (prop::sample::select(OPS.to_vec()), 0..2_usize, names);
    (options, prop::collection::vec(tried, tries))
}

/// Makes what the access needs, and returns its path.
fn prepare(top: &Path, op: &str, names: &[&[u8]]) -> PathBuf {
    let (last, above) = names.split_last().unwrap();
    let parent = above.iter().fold(top.to_owned(), |path, name| path.join(OsStr::from_bytes(name)));
    fs::create_dir_all(&parent).unwrap();
    fs::write(top.join("plain"), "plain").unwrap();
    let path = parent.join(OsStr::from_bytes(last));
    match op {
        "create" | "mkdir" | "symlink" | "mknod" | "link" => {}
        "readdir" | "rmdir" => fs::create_dir(&path).unwrap(),
        _ => fs::write(&path, "content").unwrap(),
    }
    path
}

fn as_json(path: &Path) -> Value {
    path.to_str().map_or_else(|| json!(path.as_os_str().as_bytes()), Value::from)
}

as_root_and_user! {
    /// 1,000 random accesses under random policies: what `why` says is what happens, and what it refuses works without us.
    fn what_it_says_is_what_happens(world) {
        const CASES: usize = 10;
        const TRIES: usize = 50;
        let program = program::install(world, "accesses.py", include_str!("../../programs/accesses.py"));
        let seed = [7 + u8::from(world.identity().is_root()); 32];
        let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        let (mut allowed, mut refused) = (0, 0);
        let bases = [world.workspace(), world.outside()];
        for at in 0..CASES {
            let (options, tries) = case(TRIES).new_tree(&mut runner).unwrap().current();
            let tried: Vec<(&str, PathBuf)> = tries
                .iter()
                .enumerate()
                .map(|(index, (op, base, names))| {
                    let top = bases[*base].join(format!("p{at}")).join(index.to_string());
                    fs::create_dir_all(&top).unwrap();
                    (*op, prepare(&top, op, names))
                })
                .collect();
            for base in &bases {
                world.own_tree(base);
            }
            let questions: String = tried.iter().map(|(op, path)| format!("{}\n", json!({ "op": op, "path": as_json(path) }))).collect();
            let answers = world.stockade().args(["why", "--batch"]).args(&options).input(questions).run();
            answers.assert_success();
            let answers: Vec<Value> = answers.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(answers.len(), TRIES);
            let attempt = |list: &[&(&str, PathBuf)], run: &[String]| {
                let file = world.directory().join("list.json");
                let list: Vec<Value> = list.iter().map(|(op, path)| json!([op, as_json(path)])).collect();
                fs::write(&file, serde_json::to_vec(&list).unwrap()).unwrap();
                let mut words: Vec<String> = run.to_vec();
                words.extend(PYTHON.map(str::to_owned));
                words.extend([&program, &file, &world.directory().to_owned()].map(|path| path.to_str().unwrap().to_owned()));
                let output = world.native(&words[0]).args(&words[1..]).run();
                output.assert_success();
                let stdout = output.stdout();
                stdout.lines().map(str::to_owned).collect::<Vec<_>>()
            };
            let stockade = world.binary().to_str().unwrap().to_owned();
            let run = [vec![stockade, "run".into(), "-q".into()], options.clone(), vec!["--".into()]].concat();
            let all: Vec<_> = tried.iter().collect();
            let outcomes = attempt(&all, &run);
            let mut denied = Vec::new();
            for ((answer, outcome), item) in answers.iter().zip(&outcomes).zip(&all) {
                let says = answer["decision"] == "allow";
                let refusal = ["EROFS", "EACCES", "EPERM"].contains(&outcome.as_str());
                assert!(outcome == "0" || refusal, "{outcome}: {item:?} {options:?}");
                assert_eq!(says, outcome == "0", "{outcome}: {item:?} {options:?} {answer:#}");
                if says { allowed += 1 } else { refused += 1; denied.push(*item) }
                assert_eq!(says, answer["rule"].is_null(), "{answer:#}");
            }
            for (outcome, item) in attempt(&denied, &[]).iter().zip(&denied) {
                assert_eq!(outcome, "0", "natively: {item:?}");
            }
        }
        assert!(allowed > CASES * TRIES / 10 && refused > CASES * TRIES / 10, "{allowed} {refused}");
    }

    /// The note after a run says what would allow it, in the words of `why`, and it does; the line to ask with is one.
    fn the_note_says_what_would_allow_it(world) {
        if !world.has("git") { return }
        world.native("git").args(["init", "-q"]).run().assert_success();
        let config = world.workspace().join(".git/config");
        let git = ["git", "config", "core.pager", "evil"];
        let output = world.run(&[]).args(git).run();
        assert_ne!(output.code, 0);
        let help = format!("help: run with `--allow-write {}`", config.display());
        assert!(output.stderr().contains(&help) && !output.stderr().contains("config.lock`\n"), "{}", output.stderr());
        let why = world.stockade().args(["why", "--op", "write", "--path"]).arg(&config).run();
        assert!(why.stdout().contains(&help), "{}", why.stdout());
        world.run(&["-q", "--allow-write", config.to_str().unwrap()]).args(git).run().assert_success();

        let approver = "echo '{\"decision\": \"allowed-once\"}'";
        let output = world.run(&["--mode", "read-only", "--approver", approver]).args(["sh", "-c", "echo 'a b' > f"]).run();
        assert_ne!(output.code, 0);
        let text = output.stderr();
        let line = text.lines().find_map(|line| line.strip_prefix("help: or ask for more, for one run: `")?.strip_suffix('`'));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("--sandbox-permissions workspace-write"), "{line}");
        let line = line
            .replacen("stockade run", &format!("{} run -q --mode read-only --approver \"$APPROVER\"", world.binary().display()), 1)
            .replacen("TEXT", "because", 1);
        world.native("sh").args(["-c", &line]).env("APPROVER", approver).run().assert_success();
        assert_eq!(fs::read(world.workspace().join("f")).unwrap(), b"a b\n");
    }
}
