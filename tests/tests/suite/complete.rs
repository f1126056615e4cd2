//! The log holds every operation of known programs, each once, and nothing else of theirs (O1); strace agrees.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stockade_tests::{World, as_root_and_user};

use crate::program;

const SOURCE: &str = include_str!("../../programs/operations.c");
const KINDS: [&str; 5] = ["static", "plain", "threads", "forks", "uring"];
const ROUNDS: usize = 5;

/// An operation, its name, its second name, and how it ended.
type Row = (String, String, String, String);

fn compile(world: &World) -> Option<[PathBuf; 2]> {
    if !world.has("cc") {
        return None;
    }
    let source = program::install(world, "operations.c", SOURCE);
    let build = |name: &str, options: &[&str]| {
        let program = world.directory().join(name);
        let out = std::process::Command::new("cc")
            .args(options)
            .args(["-O1", "-pthread", "-o"])
            .arg(&program)
            .arg(&source)
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        program
    };
    Some([build("operations", &[]), build("operations-static", &["-static"])])
}

/// What one program of `base` does, as operations.c has it.
fn expected(base: &str) -> BTreeMap<Row, usize> {
    let mut rows = BTreeMap::new();
    for round in 0..ROUNDS {
        let at = |name: &str| {
            if name.len() > 1 && !name.contains("locked") || name == "kept-locked" {
                name.to_owned()
            } else {
                format!("{base}-{round}-{name}")
            }
        };
        #[rustfmt::skip]
        let all = [
            ("create", "f", "", "ok"), ("write", "f", "", "ok"), ("read", "f", "", "ok"), ("write", "f", "", "ok"),
            ("chmod", "f", "", "ok"), ("truncate", "f", "", "ok"), ("utimes", "f", "", "ok"), ("rename", "f", "g", "ok"),
            ("link", "g", "l", "ok"), ("symlink", "s", "", "ok"), ("mkdir", "d", "", "ok"), ("rmdir", "d", "", "ok"),
            ("unlink", "l", "", "ok"), ("unlink", "s", "", "ok"), ("unlink", "g", "", "ok"),
            ("create", "locked", "", "denied"), ("mkdir", "locked", "", "denied"), ("read", "secret", "", "denied"),
            ("unlink", "kept-locked", "", "denied"), ("rename", "plain", "locked", "denied"),
        ];
        assert_eq!(all.len(), 20);
        for (op, name, second, outcome) in all {
            let second = if second.is_empty() { String::new() } else { at(second) };
            *rows.entry((op.to_owned(), at(name), second, outcome.to_owned())).or_insert(0) += 1;
        }
    }
    rows
}

/// What the last run's log says of the workspace's files, each event as many times as it stands for.
fn logged(world: &World) -> BTreeMap<Row, usize> {
    let log = world.stockade().args(["log", "--json"]).run();
    let log = log.assert_success().stdout();
    let mut rows = BTreeMap::new();
    let root = format!("{}/", world.workspace().display());
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let name = |key: &str| {
            event[key].as_str().unwrap_or_default().trim_start_matches(&root).to_owned()
        };
        let row = (name("op"), name("path"), name("path2"), name("outcome"));
        let count = usize::try_from(event["count"].as_u64().unwrap()).unwrap();
        *rows.entry(row).or_insert(0) += count;
    }
    rows
}

fn assert_same(got: &BTreeMap<Row, usize>, wanted: &BTreeMap<Row, usize>, what: &str) {
    let all = got.keys().chain(wanted.keys());
    let wrong: Vec<_> = all
        .filter(|row| got.get(*row) != wanted.get(*row))
        .map(|row| (row, got.get(row), wanted.get(row)))
        .collect();
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
}

fn prepare(world: &World) {
    for name in ["secret", "kept-locked", "plain"] {
        world.write(name, "x\n");
    }
}

const OPTIONS: [&str; 5] = ["-q", "--deny-read", "secret", "--deny-write", "*locked"];

/// Reads what strace saw of relative names since a program began, as events.
fn traced(text: &str, program: &Path) -> BTreeMap<Row, usize> {
    let mut open: BTreeMap<&str, &str> = BTreeMap::new();
    let mut rows = BTreeMap::new();
    let begun = format!("execve(\"{}\"", program.display());
    for line in text.lines().skip_while(|line| !line.contains(&begun)) {
        let Some((pid, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        let whole = if let Some((begun, _)) = call.split_once(" <unfinished ...>") {
            open.insert(pid, begun);
            continue;
        } else if let Some((_, rest)) = call.split_once(" resumed>") {
            let Some(begun) = open.remove(pid) else { continue };
            format!("{begun}{rest}")
        } else {
            call.to_owned()
        };
        let Some((name, rest)) = whole.split_once('(') else { continue };
        // The server's own calls have a directory's descriptor; the programs' are relative to their working directory.
        let rest = rest.strip_prefix("AT_FDCWD, ").unwrap_or(rest);
        if !rest.starts_with('"') {
            continue;
        }
        let names: Vec<&str> = rest.split('"').skip(1).step_by(2).collect();
        let (first, second) = (names[0], names.get(1).copied().unwrap_or_default());
        if first.starts_with('/') || first.is_empty() {
            continue;
        }
        let ended = whole.rsplit_once(" = ").unwrap().1;
        let outcome = if ended.starts_with("-1 EROFS") || ended.starts_with("-1 EACCES") {
            "denied"
        } else if ended.starts_with('-') {
            continue;
        } else {
            "ok"
        };
        let ops: &[&str] = match name {
            "openat" | "open" if rest.contains("O_CREAT") && outcome == "ok" => {
                &["create", "write"]
            }
            "openat" | "open" if rest.contains("O_CREAT") => &["create"],
            "openat" | "open" if rest.contains("O_WRONLY") => &["write"],
            "openat" | "open" => &["read"],
            "utimensat" | "utimes" => &["utimes"],
            "renameat" | "renameat2" | "rename" => &["rename"],
            "chmod" | "fchmodat" => &["chmod"],
            "truncate" | "link" | "mkdir" | "rmdir" | "unlink" => &[name],
            "symlink" => &["symlink"],
            _ => continue,
        };
        let (first, second) = if name == "symlink" { (second, "") } else { (first, second) };
        for op in ops {
            let row = ((*op).to_owned(), first.to_owned(), second.to_owned(), outcome.to_owned());
            *rows.entry(row).or_insert(0) += 1;
        }
    }
    rows
}

as_root_and_user! {
    /// 500 operations by five programs: static, dynamic, with threads, with children, and one that asks for io_uring, which isn't there.
    fn the_log_holds_just_what_was_done(world) {
        let Some([program, stat]) = compile(world) else { return };
        prepare(world);
        let mut total = 0;
        for kind in KINDS {
            let (program, arg) = if kind == "static" { (&stat, "plain") } else { (&program, kind) };
            let output = world.run(&OPTIONS).arg(program).args([arg, kind]).run();
            output.assert_success();
            assert_eq!(output.stderr().contains("io_uring: "), kind == "uring", "{}", output.stderr());
            let wanted = expected(kind);
            total += wanted.values().sum::<usize>();
            assert_same(&logged(world), &wanted, kind);
        }
        assert_eq!(total, 500);
    }

    /// What the kernel answered, seen from outside, is what the log says.
    fn strace_agrees(world) {
        if !world.has("strace") { return }
        let Some([program, _]) = compile(world) else { return };
        prepare(world);
        for kind in ["plain", "threads", "forks"] {
            let trace = world.outside().join(kind);
            let output = world.native("strace").args(["-f", "-e", "trace=%file", "-o"]).arg(&trace)
                .arg(world.binary()).arg("run").args(OPTIONS).arg("--").arg(&program).args([kind, kind]).run();
            output.assert_success();
            let seen = traced(&fs::read_to_string(&trace).unwrap(), &program);
            assert_eq!(seen.values().sum::<usize>(), 100, "{seen:#?}");
            assert_same(&logged(world), &seen, kind);
        }
    }
}
