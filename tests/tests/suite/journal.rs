//! `stockade log export --journald` and `--syslog`: this machine's own logs (O4).

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use stockade_tests::{Output, World, as_root_and_user};

/// Listens as a daemon of the machine's does.
fn listen(path: &Path) -> UnixDatagram {
    drop(fs::remove_file(path));
    let socket = UnixDatagram::bind(path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket
}

/// Runs an export, and returns what it said and every message that came until it had ended.
fn export(world: &World, socket: &UnixDatagram, options: &[&str]) -> (Output, Vec<Vec<u8>>) {
    let invocation = world.stockade().args(["log", "export"]).args(options);
    let running = thread::spawn(move || invocation.run());
    let mut messages = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "it never ends");
        match socket.recv(&mut buffer) {
            Ok(length) => messages.push(buffer[..length].to_vec()),
            Err(_) if running.is_finished() => break,
            Err(_) => {}
        }
    }
    (running.join().unwrap(), messages)
}

/// Reads a message of the journal's native protocol.
fn fields(message: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut fields = BTreeMap::new();
    let mut rest = message;
    while !rest.is_empty() {
        let end = rest.iter().position(|&byte| byte == b'\n').unwrap();
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        let (name, value, after) = match line.iter().position(|&byte| byte == b'=') {
            Some(at) => (&line[..at], line[at + 1..].to_vec(), after),
            None => {
                let length =
                    usize::try_from(u64::from_le_bytes(after[..8].try_into().unwrap())).unwrap();
                assert_eq!(after[8 + length], b'\n');
                (line, after[8..8 + length].to_vec(), &after[9 + length..])
            }
        };
        let name = String::from_utf8(name.to_vec()).unwrap();
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'),
            "{name}"
        );
        assert!(fields.insert(name, value).is_none());
        rest = after;
    }
    fields
}

fn numbers(world: &World) -> Vec<i64> {
    let log = world.stockade().args(["log", "--run", "all", "--json"]).run();
    let log = log.assert_success().stdout();
    log.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_i64().unwrap())
        .collect()
}

as_root_and_user! {
    /// The journal gets each event once with exact names, also over its restart; what is refused is a warning.
    fn the_journal_gets_every_event_once(world) {
        world.write("secret", "x");
        let script = "echo a > 'odd\n=name'; cat secret; for n in 1 2 3; do echo x > f$n; done";
        world.run(&["-q", "--deny-read", "secret"]).args(["sh", "-c", script]).run();
        let path = world.outside().join("journal");
        let option = format!("--journald={}", path.display());
        // Nobody listens: it waits, gives up, and nothing counts as sent.
        let away = world.stockade().args(["log", "export", &option, "--patience", "200ms"]).run();
        away.assert_code(125);
        assert!(away.stderr().contains("0 events were sent"), "{}", away.stderr());
        let socket = listen(&path);
        let (output, messages) = export(world, &socket, &[&option]);
        output.assert_success();
        let records: Vec<_> = messages.iter().map(|message| fields(message)).collect();
        let seq = |record: &BTreeMap<String, Vec<u8>>| String::from_utf8(record["STOCKADE_SEQ"].clone()).unwrap().parse::<i64>().unwrap();
        let mut got: Vec<i64> = records.iter().map(seq).collect();
        assert_eq!(got, numbers(world));
        let odd = format!("{}/odd\n=name", world.workspace().display());
        assert!(records.iter().any(|record| record["STOCKADE_PATH"] == odd.as_bytes()), "{records:?}");
        let is_refused = |record: &&BTreeMap<String, Vec<u8>>| record["STOCKADE_OUTCOME"] == b"denied";
        let refused = records.iter().find(is_refused).unwrap();
        assert_eq!((&refused["PRIORITY"][..], &refused["STOCKADE_RULE"][..]), (&b"4"[..], &b"read-denied"[..]));
        assert_eq!(refused["SYSLOG_IDENTIFIER"], b"stockade");
        let said = String::from_utf8(refused["MESSAGE"].clone()).unwrap();
        assert!(said.contains("secret by cat[") && said.contains("refused, read-denied (EACCES)"), "{said}");
        let said = records.iter().all(|record| !record["MESSAGE"].iter().any(u8::is_ascii_control));
        assert!(said, "a message is one line");
        // Again: nothing. A receiver that was started anew gets what came since.
        assert!(export(world, &socket, &[&option]).1.is_empty());
        drop(socket);
        let socket = listen(&path);
        let session = String::from_utf8(records[0]["STOCKADE_SESSION"].clone()).unwrap();
        world.run(&["-q", "--session", &session]).args(["sh", "-c", "echo x > later"]).run().assert_success();
        let (_, messages) = export(world, &socket, &[&option, &session]);
        got.extend(messages.iter().map(|message| seq(&fields(message))));
        assert_eq!(got, numbers(world));
    }

    /// A syslog daemon gets a line each, with the event as JSON.
    fn a_syslog_daemon_gets_lines(world) {
        world.run(&["-q", "--deny-write", "kept"]).args(["sh", "-c", "echo x > made; echo x > kept"]).run();
        let path = world.outside().join("log");
        let socket = listen(&path);
        let (output, messages) = export(world, &socket, &["--all", &format!("--syslog={}", path.display())]);
        output.assert_success();
        assert_eq!(messages.len(), numbers(world).len());
        for message in &messages {
            let line = String::from_utf8(message.clone()).unwrap();
            let (head, json) = line.split_once(": ").unwrap();
            let event: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {line}"));
            let priority = if event["outcome"] == "denied" { "<12>" } else { "<14>" };
            let words: Vec<&str> = head.split_whitespace().collect();
            assert!(head.starts_with(priority) && words.len() == 4 && words[3].starts_with("stockade["), "{head}");
            assert!(!line.contains('\n') && line.len() <= 8000, "{line}");
        }
        assert!(messages.iter().any(|message| message.starts_with(b"<12>")), "the refusal is there");
        let none = world.stockade().args(["log", "export"]).run();
        none.assert_code(125);
        assert!(none.stderr().contains("--otlp"), "{}", none.stderr());
    }
}
