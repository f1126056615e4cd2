//! What came of a run, and its JSON form (contract section 5).

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use stockade_observe::{DenialRow, Ending, RunOutcome, RunSummary, Time};
use stockade_policy::Policy;

use crate::enforcement::Enforcement;
use crate::error::Failure;
use crate::limits::Used;

/// What came of a run. The authority on it: the exit status only sums it up.
#[derive(Debug)]
pub struct RunResult {
    /// The session.
    pub session: String,
    /// The run.
    pub run: String,
    /// The command.
    pub argv: Vec<OsString>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// The policy, if it could be resolved.
    pub policy: Option<Policy>,
    /// What confined it, if it came to that.
    pub backend: Option<&'static str>,
    /// How much of the policy held.
    pub enforcement: Option<Enforcement>,
    /// The names of the caller's variables that it wasn't given.
    pub withheld: Vec<OsString>,
    /// What the kernel says about the limits it had.
    pub used: Option<Used>,
    /// How it ended.
    pub outcome: RunOutcome,
    /// Why it did not run, or why nothing can be said about it.
    pub failure: Option<Failure>,
    /// What it did.
    pub summary: Option<RunSummary>,
    /// When it began.
    pub started: Time,
    /// How long it took.
    pub duration: Duration,
}

/// The exit status of a run that ran out of time.
pub const TIMED_OUT: u8 = 124;
/// The exit status when the command did not run.
pub const NOT_RUN: u8 = 125;

impl RunResult {
    /// Returns the exit status that stands for it.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self.outcome.ending {
            Ending::Exited => {
                self.outcome.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_RUN)
            }
            Ending::Signaled => self
                .outcome
                .signal
                .and_then(|signal| u8::try_from(signal + 128).ok())
                .unwrap_or(NOT_RUN),
            Ending::TimedOut => TIMED_OUT,
            Ending::RunnerFailed => {
                self.outcome.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_RUN)
            }
            Ending::Canceled | Ending::Unavailable | Ending::Refused | Ending::Interrupted => {
                NOT_RUN
            }
        }
    }

    /// Returns the JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "v": 1,
            "session": self.session,
            "run": self.run,
            "argv": self.argv.iter().map(|word| name(Path::new(word))).collect::<Vec<_>>(),
            "cwd": name(&self.cwd),
            "policy": self.policy.as_ref().map(|policy| json!({
                "mode": policy.mode,
                "source": policy.source,
                "root": name(&policy.root),
                "writable_roots":
                    policy.writable().iter().map(|root| name(root)).collect::<Vec<_>>(),
            })),
            "backend": self.backend,
            "enforcement": self.enforcement.as_ref().map(|enforcement| json!({
                "level": enforcement.level(),
                "gaps": enforcement.gaps(),
            })),
            "withheld": self.withheld.iter().map(|word| name(Path::new(word))).collect::<Vec<_>>(),
            "outcome": self.outcome.ending.as_str(),
            "exit_code": self.outcome.exit_code,
            "signal": self.outcome.signal,
            "denial_count": self.summary.as_ref().map_or(0, |summary| summary.denial_count),
            "denials": [],
            "conflicts": [],
            "changes": { "created": [], "modified": [], "deleted": [], "renamed": [] },
            "reads": self.summary.as_ref().map_or(0, |summary| summary.reads),
            "started": self.started.to_rfc3339(),
            "duration_ms": u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
        });
        if let (Some(summary), Some(map)) = (&self.summary, object.as_object_mut()) {
            map.insert("denials".to_owned(), summary.denials.iter().map(denial).collect());
            map.insert("conflicts".to_owned(), json!(summary.conflicts));
            map.insert("changes".to_owned(), json!(summary.changes));
            map.insert("recording".to_owned(), json!(summary.recording));
        }
        if let (Some(used), Some(map)) = (&self.used, object.as_object_mut()) {
            map.insert("limits".to_owned(), used.to_json());
        }
        if let (Some(failure), Some(map)) = (&self.failure, object.as_object_mut()) {
            map.insert(
                "error".to_owned(),
                json!({
                    "code": failure.code().as_str(),
                    "message": failure.lines().first(),
                    "help": failure.help_lines(),
                }),
            );
        }
        object
    }

    /// Writes the result to a file in one step: it is whole or the old one.
    ///
    /// # Errors
    /// The directory can't be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let directory = directory_of(path);
        let mut text = serde_json::to_vec_pretty(&self.to_json())?;
        text.push(b'\n');
        // A device or a pipe can't be replaced, and shouldn't.
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return std::fs::OpenOptions::new().write(true).open(path)?.write_all(&text);
        }
        let mut file = tempfile::Builder::new().prefix(".stockade-").tempfile_in(directory)?;
        file.write_all(&text)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Tells early whether a result can be written to this path.
///
/// # Errors
/// It can't.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(metadata) if !metadata.is_file() => Ok(()),
        Ok(_) | Err(_) => {
            tempfile::Builder::new().prefix(".stockade-").tempfile_in(directory_of(path)).map(drop)
        }
    }
}

/// Returns one refusal as the contract has it.
#[must_use]
pub fn denial(row: &DenialRow) -> Value {
    let mut object = json!({
        "op": row.op.as_str(),
        "path": row.path.to_string_lossy(),
        "reason": row.rule,
        "source": row.source,
        "errno": row.errno,
        "pid": row.pid,
        "exe": name(&row.exe),
        "count": row.count,
    });
    if let Some(map) = object.as_object_mut() {
        if let Value::Object(mut exact) = name(&row.path)
            && let Some(b64) = exact.remove("b64")
        {
            map.insert("path_b64".to_owned(), b64);
        }
        if let Some(path2) = &row.path2 {
            map.insert("path2".to_owned(), name(path2));
        }
    }
    object
}

/// Returns a name as text, or as `{"text": lossy, "b64": exact}` where it isn't UTF-8.
fn name(path: &Path) -> Value {
    path.to_str().map_or_else(
        || {
            json!({
                "text": path.to_string_lossy(),
                "b64": base64(path.as_os_str().as_bytes()),
            })
        },
        Value::from,
    )
}

/// Base64 with the standard alphabet, padded.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let word = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for place in 0..4 {
            let index = usize::try_from((word >> (18 - 6 * place)) & 63).unwrap_or(0);
            let letter = ALPHABET.get(index).map_or('=', |&letter| char::from(letter));
            text.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use stockade_observe::Op;
    use stockade_policy::{Mode, Rule};

    use super::*;
    use crate::error::Code;

    fn result(outcome: RunOutcome) -> RunResult {
        RunResult {
            session: "s".to_owned(),
            run: "r".to_owned(),
            argv: vec!["true".into(), OsString::from_vec(b"\xff".to_vec())],
            cwd: "/w".into(),
            policy: Some(Policy::new(Mode::WorkspaceWrite, "/w".into())),
            backend: Some("bwrap"),
            enforcement: Some(Enforcement::Full),
            withheld: Vec::new(),
            used: None,
            outcome,
            failure: None,
            summary: None,
            started: Time(0),
            duration: Duration::from_millis(5),
        }
    }

    fn outcome(ending: Ending, exit_code: Option<i32>, signal: Option<i32>) -> RunOutcome {
        RunOutcome { ending, exit_code, signal }
    }

    #[test]
    fn the_table_of_exit_statuses() {
        let rows = [
            (outcome(Ending::Exited, Some(0), None), 0),
            (outcome(Ending::Exited, Some(125), None), 125),
            (outcome(Ending::Signaled, None, Some(15)), 143),
            (outcome(Ending::TimedOut, None, Some(9)), 124),
            (outcome(Ending::RunnerFailed, Some(127), None), 127),
            (outcome(Ending::RunnerFailed, None, None), 125),
            (outcome(Ending::Unavailable, None, None), 125),
            (outcome(Ending::Refused, None, None), 125),
        ];
        for (outcome, status) in rows {
            assert_eq!(result(outcome).exit_status(), status, "{outcome:?}");
        }
    }

    #[test]
    fn the_object_has_the_contracts_fields() {
        let mut result = result(outcome(Ending::Unavailable, None, None));
        result.failure = Some(Failure::new(Code::SandboxUnavailable, "no bwrap").help("install"));
        let object = result.to_json();
        for field in [
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
        ] {
            assert!(object.get(field).is_some(), "{field}");
        }
        assert_eq!(object["policy"]["mode"], "workspace-write");
        assert_eq!(object["argv"][1]["b64"], "/w==");
        assert_eq!(object["error"]["code"], "SANDBOX_UNAVAILABLE");
    }

    #[test]
    fn a_denial_keeps_a_name_that_is_no_text() {
        let row = DenialRow {
            op: Op::Read,
            path: PathBuf::from(OsString::from_vec(b"/w/\xff".to_vec())),
            path2: None,
            rule: Rule::ReadDenied,
            source: "--deny-read x".to_owned(),
            errno: 13,
            pid: 1,
            exe: "/bin/cat".into(),
            count: 1,
        };
        let object = denial(&row);
        assert_eq!(object["path"], "/w/\u{fffd}");
        assert_eq!(object["path_b64"], "L3cv/w==");
        assert_eq!(object["reason"], "read-denied");
    }

    #[test]
    fn the_file_is_replaced_whole_and_a_device_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("result.json");
        std::fs::write(&path, "old").unwrap();
        let result = result(outcome(Ending::Exited, Some(0), None));
        result.write(&path).unwrap();
        let object: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(object["exit_code"], 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        result.write(Path::new("/dev/null")).unwrap();
        assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
    }
}
