//! Contract O4: later tampering shows, and is named.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use stockade_observe::{FILE_NAME, Fault, Op, Problem, Store, VerifyReport};

use crate::{denied, event, process, record};

fn log(dir: &Path) -> Option<String> {
    let (sh, cc) = (process(7, "/bin/sh"), process(8, "/usr/bin/cc"));
    record(dir, "r1", (0..50).map(|at| event(&sh, Op::Read, &format!("/w/{at}"))));
    record(
        dir,
        "r2",
        (0..50).map(|at| match at % 5 {
            0 => denied(&cc, Op::Read, "/w/.env"),
            _ => event(&cc, Op::Write, &format!("/w/{at}.o")),
        }),
    )
}

fn tampered(sql: &str) -> VerifyReport {
    let dir = tempfile::tempdir().unwrap();
    log(dir.path());
    let conn = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    conn.execute_batch(sql).unwrap();
    drop(conn);
    Store::open_read_only(dir.path()).unwrap().verify(None).unwrap()
}

fn row(table: &'static str, id: i64, fault: Fault) -> Problem {
    Problem::Row { table, id, fault }
}

#[test]
fn an_untouched_log_is_sound() {
    let report = tampered("SELECT 1");
    assert_eq!((report.problem.clone(), report.events), (None, 100));
    assert!(report.is_sound());
}

#[test]
fn the_table_of_tampering() {
    use Fault::{Changed, Deleted, Inserted, Reordered};
    let copy = "INSERT INTO event SELECT seq + 1000, time, run, process, op, target, path2, outcome, errno, rule, \
                bytes_read, bytes_written, before_size, before_mtime, before_ctime, after_size, after_mtime, \
                after_ctime, publication, change, count FROM event WHERE seq = 100";
    let rows = [
        ("UPDATE event SET time = time + 1 WHERE seq = 17", row("event", 17, Changed)),
        (
            "UPDATE event SET outcome = 0, errno = NULL, rule = NULL WHERE outcome = 1",
            row("event", 51, Changed),
        ),
        (
            "UPDATE event SET count = NULL WHERE 0; UPDATE event SET bytes_read = 0 WHERE seq = 3",
            row("event", 3, Changed),
        ),
        (
            "UPDATE path SET bytes = CAST('/w/other' AS BLOB) WHERE bytes = CAST('/w/3' AS BLOB)",
            row("path", 5, Changed),
        ),
        ("UPDATE path SET bytes = CAST(bytes AS TEXT) WHERE id = 5", row("path", 5, Changed)),
        ("UPDATE process SET pid = 9 WHERE pid = 8", row("process", 2, Changed)),
        ("UPDATE rule SET source = 'mode'", row("rule", 1, Changed)),
        ("UPDATE run SET mode = 'read-only' WHERE name = 'r1'", row("run", 1, Changed)),
        ("UPDATE run_end SET exit_code = 1 WHERE run = 2", row("run_end", 2, Changed)),
        ("UPDATE run_end SET summary = NULL WHERE run = 1", row("run_end", 1, Changed)),
        ("DELETE FROM event WHERE seq = 60", row("event", 60, Deleted)),
        ("DELETE FROM event WHERE outcome = 1", row("event", 51, Deleted)),
        ("DELETE FROM event WHERE seq = 100", row("event", 100, Deleted)),
        (
            "DELETE FROM event WHERE seq = 60; UPDATE event SET seq = seq - 1 WHERE seq > 60",
            row("event", 60, Changed),
        ),
        ("DELETE FROM run_end WHERE run = 1", row("run_end", 1, Deleted)),
        (copy, row("event", 1100, Inserted)),
        (
            "UPDATE event SET seq = -1 WHERE seq = 20; UPDATE event SET seq = 20 WHERE seq = 21; \
          UPDATE event SET seq = 21 WHERE seq = -1",
            row("event", 20, Reordered),
        ),
        ("DELETE FROM chain WHERE id = 2", Problem::Chain { entry: 2 }),
        ("UPDATE chain SET time = time - 1 WHERE id = 3", Problem::Chain { entry: 3 }),
        ("UPDATE chain SET tags = x'' WHERE id = 2", Problem::Chain { entry: 2 }),
        ("UPDATE chain SET digest = zeroblob(32) WHERE id = 2", Problem::Chain { entry: 2 }),
    ];
    for (sql, expected) in rows {
        let report = tampered(sql);
        assert_eq!(report.problem, Some(expected), "{sql}");
        assert!(!report.is_sound());
    }
}

/// The tail cut off so that what is left is a sound log by itself.
const CUT: &str =
    "DELETE FROM run_end WHERE run = 2; DELETE FROM chain WHERE id = (SELECT max(id) FROM chain);";

#[test]
fn a_cut_tail_is_missed_by_the_head_beside_the_log() {
    let report = tampered(CUT);
    assert!(
        matches!(report.problem, Some(Problem::Truncated { known: Some(_), .. })),
        "{report:?}"
    );
}

#[test]
fn a_cut_tail_is_missed_by_a_head_kept_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let head = log(dir.path()).unwrap();
    let verify = || Store::open_read_only(dir.path()).unwrap().verify(Some(&head)).unwrap();
    assert_eq!(verify().problem, None);
    Connection::open(dir.path().join(FILE_NAME)).unwrap().execute_batch(CUT).unwrap();
    fs::remove_file(dir.path().join("log.head")).unwrap();
    assert!(matches!(verify().problem, Some(Problem::Truncated { known: None, .. })));
    // Without it the shorter log is all there is.
    let store = Store::open_read_only(dir.path()).unwrap();
    assert_eq!(store.verify(None).unwrap().problem, None);
}

#[test]
fn a_log_that_goes_on_still_holds_the_heads_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let head = log(dir.path()).unwrap();
    record(dir.path(), "r3", [event(&process(9, "/bin/ls"), Op::Readdir, "/w")]);
    let store = Store::open_read_only(dir.path()).unwrap();
    assert_eq!(store.verify(Some(&head)).unwrap().problem, None);
    assert!(store.verify(Some(&"0".repeat(64))).unwrap().problem.is_some());
}

#[test]
fn a_log_written_anew_is_not_the_one_whose_head_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let head = log(dir.path()).unwrap();
    fs::remove_dir_all(dir.path()).unwrap();
    log(dir.path());
    let store = Store::open_read_only(dir.path()).unwrap();
    assert_eq!(store.verify(None).unwrap().problem, None);
    assert!(!store.verify(Some(&head)).unwrap().is_sound());
}
