//! `stockade session requests`, `approve` and `reject`: answers from elsewhere to runs that ask for a wider mode.

use std::path::Path;

use stockade_policy::{ApprovalAnswer, Verdict};

use crate::approve::{queue, rows};
use crate::cli::show;
use crate::error::{Code, Failure};

/// List the runs that wait for an answer (`stockade run --ask-elsewhere`).
#[derive(Debug, clap::Args)]
pub(super) struct Requests {
    /// Print JSON: the request as an approver command reads it, one a line.
    #[arg(long)]
    json: bool,
}

/// Allow a waiting run its wider mode, once.
#[derive(Debug, clap::Args)]
pub(super) struct Approve {
    /// The request's id.
    request: String,
}

/// Refuse a waiting run its wider mode; it doesn't run.
#[derive(Debug, clap::Args)]
pub(super) struct Reject {
    /// The request's id.
    request: String,
    /// What whoever asked is told.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) fn list(state: &Path, args: &Requests) -> Result<(), Failure> {
    let waiting = queue::waiting(state).map_err(|error| {
        Failure::new(Code::RunnerFailed, "can't read the requests").because(error)
    })?;
    let mut text = String::new();
    for request in &waiting {
        if args.json {
            let line = serde_json::to_string(request).map_err(|error| {
                Failure::new(Code::RunnerFailed, "can't write a request").because(error)
            })?;
            text.push_str(&line);
            text.push('\n');
            continue;
        }
        text.push_str(&format!("{}\n", request.id));
        for (name, value) in rows(request) {
            text.push_str(&format!("  {name:14} {value}\n"));
        }
    }
    show(&text);
    Ok(())
}

pub(super) fn approve(state: &Path, args: &Approve) -> Result<(), Failure> {
    answer(state, &args.request, Verdict::AllowedOnce, None)
}

pub(super) fn reject(state: &Path, args: &Reject) -> Result<(), Failure> {
    answer(state, &args.request, Verdict::Rejected, args.reason.clone())
}

fn answer(
    state: &Path,
    request: &str,
    decision: Verdict,
    reason: Option<String>,
) -> Result<(), Failure> {
    let answer = ApprovalAnswer { decision, id: None, reason };
    queue::answer(state, request, answer).map_err(|error| {
        let what = stockade_policy::text::sanitise(&error.to_string());
        let failure = Failure::new(Code::ApprovalUnavailable, what)
            .help("`stockade session requests` lists those that wait");
        match std::error::Error::source(&error) {
            Some(cause) => failure.because(cause.to_string()),
            None => failure,
        }
    })
}
