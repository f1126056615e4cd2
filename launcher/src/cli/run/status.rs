//! `--status-fd`: what happens to a run, one JSON object a line.

use serde_json::json;
use stockade_observe::{DenialRow, RunOutcome};

use crate::error::{Code, Failure};
use crate::launch::Watcher;
use crate::result;
use crate::sys;

/// Writes what happens to the status descriptor.
pub(super) struct Status {
    file: Option<std::fs::File>,
    session: String,
}

impl Status {
    /// Takes the descriptor of this number.
    pub(super) fn new(number: Option<i32>, session: &str) -> Result<Self, Failure> {
        let file = number
            .map(|number| {
                sys::inherited(number).map_err(|error| {
                    Failure::new(Code::ConfigInvalid, format!("can't use descriptor {number}"))
                        .because(error)
                })
            })
            .transpose()?;
        if let Some(file) = &file {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC).map_err(|error| {
                Failure::new(Code::RunnerFailed, "can't prepare the run").because(error)
            })?;
        }
        Ok(Self { file: file.map(Into::into), session: session.to_owned() })
    }

    fn line(&mut self, value: &serde_json::Value) {
        use std::io::Write;
        if let Some(file) = &mut self.file {
            let mut text = value.to_string();
            text.push('\n');
            // A reader that went away wants no more lines.
            if file.write_all(text.as_bytes()).is_err() {
                self.file = None;
            }
        }
    }
}

impl Watcher for Status {
    fn started(&mut self, run: &str, pid: Option<u32>) {
        let session = self.session.clone();
        self.line(
            &json!({ "v": 1, "event": "started", "session": session, "run": run, "pid": pid }),
        );
    }

    fn denied(&mut self, denial: &DenialRow) {
        self.line(&json!({ "v": 1, "event": "denied", "denial": result::denial(denial) }));
    }

    fn ended(&mut self, outcome: &RunOutcome) {
        self.line(&json!({
            "v": 1,
            "event": "exited",
            "outcome": outcome.ending.as_str(),
            "exit_code": outcome.exit_code,
            "signal": outcome.signal,
        }));
    }
}
