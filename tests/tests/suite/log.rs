//! What a run leaves for people and programs to read: log, result file, notes (O1, CONTRACT 5).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::Value;
use stockade_tests::{World, as_root_and_user};

/// The fields of an event, version 1.
const EVENT: [&str; 23] = [
    "v",
    "seq",
    "time",
    "session",
    "run",
    "pid",
    "start_time",
    "exe",
    "comm",
    "uid",
    "op",
    "path",
    "path2",
    "key",
    "outcome",
    "errno",
    "rule",
    "bytes_read",
    "bytes_written",
    "version_before",
    "version_after",
    "publication",
    "count",
];

/// The fields of a result, version 1.
const RESULT: [&str; 18] = [
    "v",
    "session",
    "run",
    "argv",
    "cwd",
    "policy",
    "backend",
    "enforcement",
    "outcome",
    "exit_code",
    "signal",
    "denial_count",
    "denials",
    "conflicts",
    "changes",
    "reads",
    "started",
    "duration_ms",
];

/// Returns the events of the last run.
fn events(world: &World, options: &[&str]) -> Vec<Value> {
    let output = world.stockade().args(["log", "--json"]).args(options).run();
    output.assert_success();
    output
        .stdout()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn path(world: &World, name: &str) -> String {
    world.workspace().join(name).to_str().unwrap().to_owned()
}

fn find<'a>(events: &'a [Value], op: &str, path: &str) -> &'a Value {
    events
        .iter()
        .find(|event| event["op"] == op && event["path"] == path)
        .unwrap_or_else(|| panic!("no {op} of {path} in {events:#?}"))
}

as_root_and_user! {
    /// O1: reads, changes and refusals, each with who did it.
    fn the_log_says_what_was_done_and_by_whom(world) {
        world.write("source", "12345");
        world.write("doomed", "x");
        world.write("old", "x");
        world.write("locked/kept", "x");
        // An earlier run isn't shown.
        world.run(&["-q"]).args(["sh", "-c", "echo x > earlier; rm earlier"]).run().assert_success();
        let script = "cat source; echo new > made; mkdir d; mv old d/new; rm doomed; chmod 600 source; ln -s source s; ln source h; rm locked/kept; true";
        let output = world.run(&["-q", "--deny-write", "locked"]).args(["sh", "-c", script]).run();
        output.assert_success();
        let events = events(world, &[]);
        assert!(!events.iter().any(|event| event["path"] == path(world, "earlier")), "{events:#?}");

        let read = find(&events, "read", &path(world, "source"));
        assert_eq!(read["outcome"], "ok");
        assert_eq!(read["comm"], "cat");
        let executable = fs::canonicalize("/usr/bin/cat").unwrap();
        assert_eq!(read["exe"], executable.to_str().unwrap());
        assert_eq!(read["uid"], world.ids().0);
        assert!(read["pid"].as_u64().unwrap() > 0);
        assert!(read["bytes_read"] == 5 || read["bytes_read"].is_null(), "{read:#}");
        assert_eq!(read["version_before"]["size"], 5);

        find(&events, "create", &path(world, "made"));
        find(&events, "mkdir", &path(world, "d"));
        find(&events, "unlink", &path(world, "doomed"));
        find(&events, "chmod", &path(world, "source"));
        find(&events, "symlink", &path(world, "s"));
        let rename = find(&events, "rename", &path(world, "old"));
        assert_eq!(rename["path2"], path(world, "d/new"));
        let link = events.iter().find(|event| event["op"] == "link").expect("a link");
        assert_eq!(link["path2"], path(world, "h"));

        let denied = find(&events, "unlink", &path(world, "locked/kept"));
        assert_eq!(denied["outcome"], "denied");
        assert_eq!(denied["errno"], 30);
        assert_eq!(denied["comm"], "rm");
        assert_eq!(denied["rule"], "write-denied");
        assert!(world.workspace().join("locked/kept").exists());

        let only = self::events(world, &["--denied"]);
        assert!(!only.is_empty() && only.iter().all(|event| event["outcome"] == "denied"), "{only:#?}");
        let glob = self::events(world, &["--path", "**/sou*"]);
        assert!(!glob.is_empty() && glob.iter().all(|event| event["path"] == path(world, "source")), "{glob:#?}");
        let op = self::events(world, &["--op", "mkdir"]);
        assert!(!op.is_empty() && op.iter().all(|event| event["op"] == "mkdir"), "{op:#?}");
    }

    /// CONTRACT 5: the fields of an event, and their order in time.
    fn events_have_the_written_schema(world) {
        world.write("source", "x");
        world.run(&["-q", "--mode", "read-only"]).args(["sh", "-c", "cat source; rm source; mkdir x; mv source y; ls"]).run();
        let events = events(world, &[]);
        assert!(events.len() >= 3);
        let wanted: BTreeSet<&str> = EVENT.into();
        let mut last = 0;
        for event in &events {
            let fields: BTreeSet<&str> = event.as_object().unwrap().keys().map(String::as_str).collect();
            // Two paths have those that move or share one; later versions add fields.
            let missing: Vec<_> = wanted.difference(&fields).filter(|field| **field != "path2").collect();
            assert!(missing.is_empty(), "no {missing:?} in {event:#}");
            let two = event["op"] == "rename" || event["op"] == "link";
            assert_eq!(two, event["path2"].is_string(), "{event:#}");
            assert_eq!(event["v"], 1);
            assert!(event["seq"].as_u64().unwrap() > last, "numbered upwards");
            last = event["seq"].as_u64().unwrap();
            assert!(event["path"].as_str().unwrap().starts_with('/'));
            let time = event["time"].as_str().unwrap();
            let (seconds, fraction) = time.split_once('.').unwrap_or_else(|| panic!("{time} has no fraction"));
            assert_eq!((seconds.len(), fraction.len(), fraction.ends_with('Z')), (19, 10, true), "{time}");
            assert!(["ok", "denied", "error"].contains(&event["outcome"].as_str().unwrap()));
            assert_eq!(event["outcome"] == "ok", event["errno"].is_null(), "{event:#}");
            assert_eq!(event["outcome"] == "denied", !event["rule"].is_null(), "{event:#}");
        }
    }

    /// CONTRACT 5: names are bytes.
    fn names_that_are_no_text_are_kept(world) {
        let name = OsStr::from_bytes(b"\xff\xfename");
        let output = world.run(&[]).args(["touch".as_ref(), name]).run();
        output.assert_success();
        assert!(world.workspace().join(name).exists());
        let events = events(world, &["--op", "create"]);
        let event = events.first().expect("an event");
        assert!(event["path"].as_str().unwrap().ends_with("\u{fffd}\u{fffd}name"), "{event:#}");
        let mut whole = world.workspace().into_os_string().into_encoded_bytes();
        whole.extend(b"/\xff\xfename");
        assert_eq!(event["path_b64"], base64(&whole));
    }

    /// CONTRACT 5: the result file is complete, and counts what happened.
    fn the_result_file(world) {
        world.write("a", "1");
        world.write("b", "2");
        world.write("c", "3");
        let script = "cat a >/dev/null; echo 22 > b; rm c; mv a d; echo n > n; echo t > t; rm t; echo x > /usr/stockade-suite; exit 4";
        let (output, result) = world.run_with_result(&["-q", "--deny-read", "secret"], &["sh", "-c", &format!("cat secret; {script}")]);
        output.assert_code(4);
        let fields: BTreeSet<&str> = result.as_object().unwrap().keys().map(String::as_str).collect();
        let missing: Vec<_> = BTreeSet::from(RESULT).difference(&fields).copied().collect();
        assert!(missing.is_empty(), "no {missing:?} in {result:#}");
        assert_eq!(result["v"], 1);
        assert_eq!(result["argv"][0], "sh");
        assert_eq!(result["cwd"], world.workspace().to_str().unwrap());
        assert_eq!(result["backend"], "bwrap");
        assert_eq!(result["enforcement"]["level"], "full", "{result:#}");
        assert_eq!(result["enforcement"]["gaps"], serde_json::json!([]), "{result:#}");
        assert_eq!((&result["outcome"], &result["exit_code"], &result["signal"]), (&"exited".into(), &4.into(), &Value::Null));
        let names = |kind: &str| result["changes"][kind].to_string();
        assert!(names("created").contains(&path(world, "n")), "{result:#}");
        assert!(names("modified").contains(&path(world, "b")), "{result:#}");
        assert!(names("deleted").contains(&path(world, "c")), "{result:#}");
        assert!(names("renamed").contains(&path(world, "d")), "{result:#}");
        assert!(!result["changes"].to_string().contains(&path(world, "t")), "made and gone again: no change. {result:#}");
        assert!(result["reads"].as_u64().unwrap() >= 1);
        assert!(result["duration_ms"].as_u64().is_some());
        assert_eq!(result["policy"]["writable_roots"][0], world.workspace().to_str().unwrap());
    }

    /// CONTRACT 5: refusals in the result are exact, and named at the end of the run with what would allow them.
    fn refusals_are_named(world) {
        world.write("locked/f", "x");
        let options = ["--deny-write", "locked"];
        let (output, result) = world.run_with_result(&options, &["sh", "-c", "rm locked/f; rm locked/f; mkdir locked/d; echo done"]);
        output.assert_success();
        assert_eq!(result["denial_count"], 3, "{result:#}");
        let denials = result["denials"].as_array().unwrap();
        let rm = denials.iter().find(|denial| denial["op"] == "unlink").unwrap_or_else(|| panic!("{result:#}"));
        assert_eq!(rm["path"], path(world, "locked/f"));
        assert_eq!(rm["errno"], 30);
        assert!(rm["pid"].as_u64().unwrap() > 0);
        assert!(rm["exe"].as_str().unwrap().ends_with("/rm"));
        assert!(denials.iter().any(|denial| denial["op"] == "mkdir" && denial["path"] == path(world, "locked/d")));
        let stderr = output.stderr();
        let note = stderr.split("stockade").nth(1).unwrap_or_default();
        assert!(note.contains("locked/f") && stderr.contains("--"), "{stderr}");
        let quiet = world.run(&[&options[..], &["-q"]].concat()).args(["sh", "-c", "rm locked/f 2>/dev/null; true"]).run();
        assert_eq!(quiet.stderr(), "");
        // What a program says changes nothing (L5).
        let (_, forged) = world.run_with_result(&[], &["sh", "-c", "echo 'rm: cannot remove: Read-only file system' >&2; echo 'stockade: error[SANDBOX_UNAVAILABLE]: x' >&2; exit 125"]);
        assert_eq!((&forged["denial_count"], &forged["outcome"]), (&0.into(), &"exited".into()));
    }

    /// The views for people.
    fn people_can_read_it(world) {
        world.write("source", "x");
        world.run(&["-q", "--deny-write", "locked"]).args(["sh", "-c", "cat source; echo x > made; mkdir locked; true"]).run().assert_success();
        for options in [&[][..], &["--summary"]] {
            let output = world.stockade().arg("log").args(options).run();
            output.assert_success();
            let text = output.stdout();
            for word in ["source", "made", "locked", "cat"] {
                assert!(text.contains(word), "no {word} with {options:?} in:\n{text}");
            }
            assert!(!text.contains('\x1b'), "no colours where there is no terminal");
        }
    }
    /// O1: the workspace is observed all the same.
    fn danger_mode_is_observed_too(world) {
        world.write("seen", "x");
        world.run(&["--mode", "danger-full-access", "-q"]).args(["sh", "-c", "cat seen; echo x > made; rm seen"]).run().assert_success();
        let events = self::events(world, &[]);
        for (op, name) in [("read", "seen"), ("create", "made"), ("unlink", "seen")] {
            let path = world.workspace().join(name);
            assert!(
                events.iter().any(|event| event["op"] == op && event["path"] == path.to_str().unwrap()),
                "no {op} of {name} in {events:#?}"
            );
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let value = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for index in 0..4 {
            if index <= chunk.len() {
                let digit = usize::try_from(value >> (18 - 6 * index) & 63).unwrap();
                text.push(char::from(ALPHABET[digit]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[test]
fn base64_is_right() {
    for (bytes, text) in
        [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
    {
        assert_eq!(base64(bytes.as_bytes()), text);
    }
}
