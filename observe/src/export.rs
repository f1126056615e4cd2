//! An event as JSON, version 1 (contract section 5): one object a line.
//!
//! Beside the contract's fields there are `ppid`, `rule_source` where a rule refused (or, with the outcome `ok`, would
//! have refused under `--guard enforce`), and for bytes that aren't UTF-8
//! `path_b64`, `path2_b64`, `exe_b64` and `comm_b64` next to the lossy text. The command line isn't repeated in each
//! event; the log has it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stockade_policy::{Denial, Rule};

use crate::bytes::{from_b64, path_bytes, path_from, to_b64};
use crate::dict::Stored;
use crate::error::{Error, Result};
use crate::event::{
    Event, Key, Op, Outcome, Process, Publication, RunId, SessionId, Time, Version,
};

/// The version of the format; readers skip fields that they don't know.
const V: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Line {
    v: u32,
    seq: i64,
    time: String,
    session: String,
    run: String,
    pid: u32,
    start_time: u64,
    #[serde(default)]
    ppid: u32,
    exe: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exe_b64: Option<String>,
    comm: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comm_b64: Option<String>,
    uid: u32,
    op: String,
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path2: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path2_b64: Option<String>,
    key: Option<String>,
    outcome: String,
    errno: Option<i32>,
    rule: Option<Rule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rule_source: Option<String>,
    bytes_read: Option<u64>,
    bytes_written: Option<u64>,
    version_before: Option<Version>,
    version_after: Option<Version>,
    publication: Option<String>,
    count: u64,
}

/// Returns an event as one line of JSON, without the line's end.
#[must_use]
pub fn to_json(session: &SessionId, stored: &Stored) -> String {
    let Stored { seq, run, event } = stored;
    let process = &event.process;
    let (exe, exe_b64) = text(path_bytes(&process.exe));
    let (comm, comm_b64) = text(&process.comm);
    let (path, path_b64) = text(path_bytes(&event.path));
    let second = event.path2.as_deref().map(Path::new).map(path_bytes).map(text);
    let (path2, path2_b64) = second.map_or((None, None), |(text, b64)| (Some(text), b64));
    let (errno, denial) = match &event.outcome {
        Outcome::Ok => (None, event.noted.as_ref()),
        Outcome::Denied { denial, errno } => (Some(*errno), Some(denial)),
        Outcome::Error { errno } => (Some(*errno), event.noted.as_ref()),
    };
    let line = Line {
        v: V,
        seq: *seq,
        time: event.time.to_rfc3339(),
        session: session.to_string(),
        run: run.to_string(),
        pid: process.pid,
        start_time: process.start_time,
        ppid: process.ppid,
        exe,
        exe_b64,
        comm,
        comm_b64,
        uid: process.uid,
        op: event.op.to_string(),
        path,
        path_b64,
        path2,
        path2_b64,
        key: event.key.map(|key| key.to_string()),
        outcome: event.outcome.as_str().to_owned(),
        errno,
        rule: denial.map(|denial| denial.rule()),
        rule_source: denial.map(|denial| denial.source().to_owned()),
        bytes_read: event.bytes_read,
        bytes_written: event.bytes_written,
        version_before: event.version_before,
        version_after: event.version_after,
        publication: event.publication.map(|publication| publication.as_str().to_owned()),
        count: event.count,
    };
    // Every field is text, a number or a null: this can't fail.
    serde_json::to_string(&line).unwrap_or_default()
}

/// Reads an event back from [`to_json`]'s line. The command line comes back empty.
///
/// # Errors
/// It is no event of version 1.
pub fn from_json(line: &str) -> Result<(SessionId, Stored)> {
    let bad = |what: &str| Error::Damaged(format!("event line: {what}"));
    let line: Line = serde_json::from_str(line).map_err(|error| bad(&error.to_string()))?;
    if line.v != V {
        return Err(bad(&format!("version {}", line.v)));
    }
    let denial =
        line.rule.map(|rule| Arc::new(Denial::new(rule, line.rule_source.unwrap_or_default())));
    let (outcome, noted) = match (line.outcome.as_str(), line.errno, denial) {
        ("ok", None, noted) => (Outcome::Ok, noted),
        ("denied", Some(errno), Some(denial)) => (Outcome::Denied { denial, errno }, None),
        ("error", Some(errno), noted) => (Outcome::Error { errno }, noted),
        _ => return Err(bad("outcome")),
    };
    let event = Event {
        time: Time::from_rfc3339(&line.time).ok_or_else(|| bad("time"))?,
        process: Arc::new(Process {
            pid: line.pid,
            start_time: line.start_time,
            ppid: line.ppid,
            exe: path(line.exe, line.exe_b64).ok_or_else(|| bad("exe_b64"))?,
            comm: bytes(line.comm, line.comm_b64).ok_or_else(|| bad("comm_b64"))?,
            cmdline: Vec::new(),
            uid: line.uid,
        }),
        op: Op::from_name(&line.op).ok_or_else(|| bad("op"))?,
        path: path(line.path, line.path_b64).ok_or_else(|| bad("path_b64"))?,
        path2: match line.path2 {
            Some(text) => Some(path(text, line.path2_b64).ok_or_else(|| bad("path2_b64"))?),
            None => None,
        },
        key: match line.key {
            Some(key) => Some(parse_key(&key).ok_or_else(|| bad("key"))?),
            None => None,
        },
        outcome,
        bytes_read: line.bytes_read,
        bytes_written: line.bytes_written,
        version_before: line.version_before,
        version_after: line.version_after,
        publication: match line.publication.as_deref() {
            None => None,
            Some("atomic") => Some(Publication::Atomic),
            Some("in-place") => Some(Publication::InPlace),
            Some(_) => return Err(bad("publication")),
        },
        noted,
        count: line.count,
    };
    let stored = Stored { seq: line.seq, run: RunId(line.run.into()), event };
    Ok((SessionId(line.session.into()), stored))
}

fn text(bytes: &[u8]) -> (String, Option<String>) {
    std::str::from_utf8(bytes).map_or_else(
        |_| (String::from_utf8_lossy(bytes).into_owned(), Some(to_b64(bytes))),
        |text| (text.to_owned(), None),
    )
}

fn bytes(text: String, b64: Option<String>) -> Option<Vec<u8>> {
    match b64 {
        Some(b64) => from_b64(&b64),
        None => Some(text.into_bytes()),
    }
}

fn path(text: String, b64: Option<String>) -> Option<PathBuf> {
    bytes(text, b64).map(path_from)
}

fn parse_key(text: &str) -> Option<Key> {
    let mut parts = text.split(':');
    let key = Key {
        dev: u64::from_str_radix(parts.next()?, 16).ok()?,
        ino: parts.next()?.parse().ok()?,
        generation: u64::from_str_radix(parts.next()?, 16).ok()?,
    };
    parts.next().is_none().then_some(key)
}

impl Publication {
    /// Returns the stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::InPlace => "in-place",
        }
    }
}
