//! `stockade log verify`: is the log what was written?

use std::process::ExitCode;

use serde_json::json;
use stockade_policy::text::sanitise;

use super::{Log, Which, failure};
use crate::cli::show;
use crate::error::Failure;

/// Check a session's whole log against its hash chain.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session, by id or name. [default: the last active one]
    #[arg(value_name = "SESSION")]
    session: Option<String>,
    /// A head of the chain that was kept elsewhere: the log must hold it.
    #[arg(long, value_name = "HASH")]
    head: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Checks it; the status is 1 when something is wrong.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let log = Log::open(&Which { session: args.session.clone(), run: None })?;
    let report = log.store.verify(args.head.as_deref()).map_err(failure)?;
    let problem = report.problem.as_ref().map(ToString::to_string);
    if args.json {
        let object = json!({
            "v": 1,
            "session": log.id.0,
            "sound": report.is_sound(),
            "problem": problem,
            "batches": report.batches,
            "rows": report.rows,
            "events": report.events,
            "head": report.head,
            "lost": report.lost,
            "interrupted": report.interrupted.iter()
                .map(|(run, at_most)| json!({ "run": run, "at_most": at_most }))
                .collect::<Vec<_>>(),
        });
        show(&format!("{object}\n"));
    } else {
        let mut text = match &problem {
            None => format!(
                "session {}: the log is what was written ({} events, {} batches)\n",
                log.id, report.events, report.batches
            ),
            Some(problem) => {
                format!("session {}: the log was tampered with: {problem}\n", log.id)
            }
        };
        if report.is_sound() {
            text.push_str(&format!("head {}\n", report.head));
        }
        if report.lost > 0 {
            text.push_str(&format!(
                "{} events couldn't be written; each lot has its gap event\n",
                report.lost
            ));
        }
        for (run, at_most) in &report.interrupted {
            text.push_str(&format!(
                "run {} was interrupted: at most its last {at_most} events are missing\n",
                sanitise(run)
            ));
        }
        show(&text);
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
