//! `stockade doctor`: what this machine can enforce.

use std::fmt::Write;
use std::process::ExitCode;

use crate::cli::show;
use crate::error::{Code, Failure};
use crate::probe::{self, Status};

/// Say what this machine can enforce, and how to fix what it can't.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Tries everything and prints it; fails when something needed doesn't work.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let checks = probe::all();
    let failed = checks.iter().any(|check| check.status == Status::Failed);
    let mut text = String::new();
    if args.json {
        let object = serde_json::json!({ "v": 1, "ok": !failed, "checks": checks });
        text = serde_json::to_string_pretty(&object)
            .map_err(|error| Failure::new(Code::RunnerFailed, "can't write JSON").because(error))?;
        text.push('\n');
    } else {
        for check in &checks {
            // Writing to a String can't fail.
            let _infallible = writeln!(text, "{:8} {:12} {}", check.status, check.id, check.detail);
            if let Some(remedy) = &check.remedy {
                let _infallible = writeln!(text, "{:21} help: {remedy}", "");
            }
        }
    }
    show(&text);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
