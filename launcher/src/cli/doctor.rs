//! `stockade doctor`: what this machine can enforce.

use std::fmt::Write;
use std::process::ExitCode;

use stockade_policy::text::sanitise;

use crate::cli::{complain, show};
use crate::error::{Code, Failure};
use crate::escape;
use crate::escape::verify::{self, Outcome, Table};
use crate::probe::{self, Status};

/// Say what this machine can enforce, and how to fix what it can't.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Try to break out, under each back end, and show what held. Needs half a minute.
    #[arg(long)]
    verify: bool,
    /// The back ends to verify. [default: bwrap, landlock]
    #[arg(long, value_name = "NAME", value_parser = ["bwrap", "landlock"], requires = "verify")]
    backend: Vec<String>,
    /// Show each attempt, also those that held.
    #[arg(short, long, requires = "verify")]
    verbose: bool,
}

/// Tries everything and prints it; fails when something needed doesn't work.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.verify {
        return verify(args);
    }
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

/// Makes the battery of escapes; fails when something got out, or no back end works.
fn verify(args: &Args) -> Result<ExitCode, Failure> {
    let default = || vec!["bwrap".to_owned(), "landlock".to_owned()];
    let backends = if args.backend.is_empty() { default() } else { args.backend.clone() };
    let tables = verify::run(&backends, |what| {
        if !args.json {
            complain(&format!("stockade: trying {} escapes: {what}", escape::all().len()));
        }
    })?;
    let out: usize = tables.iter().map(|table| table.count(Outcome::Out)).sum();
    let works = tables.iter().any(|table| table.unavailable.is_none());
    let mut text = String::new();
    if args.json {
        let object = serde_json::json!({ "v": 1, "ok": works && out == 0, "backends": tables });
        text = serde_json::to_string_pretty(&object)
            .map_err(|error| Failure::new(Code::RunnerFailed, "can't write JSON").because(error))?;
        text.push('\n');
    } else {
        for table in &tables {
            show_table(table, args.verbose, &mut text);
        }
    }
    show(&text);
    Ok(if works && out == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show_table(table: &Table, verbose: bool, text: &mut String) {
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    if let Some(why) = &table.unavailable {
        return line(format!("{}: not available: {why}", table.backend));
    }
    let gaps = if table.gaps.is_empty() { "none".to_owned() } else { table.gaps.join(", ") };
    line(format!("{}: declared gaps: {gaps}", table.backend));
    for row in &table.rows {
        if verbose || row.outcome != Outcome::Held {
            let detail = sanitise(&row.detail);
            line(format!("  {:17} {:27} {detail}", row.outcome.as_str(), row.id));
        }
    }
    let count = |outcome| table.count(outcome);
    line(format!(
        "  {} attempts: {} held, {} out, {} through declared gaps, {} not possible on this machine",
        table.rows.len(),
        count(Outcome::Held),
        count(Outcome::Out),
        count(Outcome::DeclaredGap),
        count(Outcome::NotPossible)
    ));
}
