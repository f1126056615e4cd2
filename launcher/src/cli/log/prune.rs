//! `stockade log prune`: gives up old logs.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use stockade_observe::{Keep, PruneReport, prune};

use super::{ago, failure, size};
use crate::cli::policy_args::{duration, size as bytes};
use crate::cli::show;
use crate::error::{Code, Failure};
use crate::state;

/// Give up old logs. [default: by `log_age` and `log_size` of the configuration]
///
/// The session of a lone run goes with its log. One that has a name, a mode of its own or several runs stays, with its
/// events, and loses the record of what its runs did, their histories, and what it has seen of files. A session with a run
/// that goes on, and one that is being exported, isn't touched.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Give up logs that weren't written for longer than this (such as 12h, 90d).
    #[arg(long, value_name = "AGE", value_parser = duration)]
    older_than: Option<Duration>,
    /// Give up the oldest logs until the others take no more than this (such as 500MB, 10GB).
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    max_size: Option<u64>,
    /// Only say what would be given up.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prunes, and says what went.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let keep = match (args.older_than, args.max_size) {
        (None, None) => crate::config::Sources::default()
            .resolve(stockade_policy::Mode::COMMAND_LINE_DEFAULT)?
            .keep_logs()
            .ok_or_else(|| {
                Failure::new(Code::ConfigInvalid, "nothing says which logs are old")
                    .help("give --older-than AGE or --max-size SIZE")
                    .help("or set `log_age` or `log_size` in the configuration")
            })?,
        (age, size) => Keep { age, size },
    };
    let report = prune(&state::directory()?, keep, args.dry_run).map_err(failure)?;
    show(&if args.json {
        format!("{}\n", object(&report, args.dry_run))
    } else {
        text(&report, args.dry_run)
    });
    Ok(ExitCode::SUCCESS)
}

fn object(report: &PruneReport, dry_run: bool) -> serde_json::Value {
    let pruned = report
        .pruned
        .iter()
        .map(|one| json!({ "session": one.session.0, "removed": one.removed, "bytes": one.bytes }));
    let busy = report.busy.iter().map(|(session, why)| json!({ "session": session.0, "why": why }));
    json!({
        "v": 1,
        "dry_run": dry_run,
        "pruned": pruned.collect::<Vec<_>>(),
        "busy": busy.collect::<Vec<_>>(),
        "kept": report.kept,
        "kept_bytes": report.kept_bytes,
    })
}

fn text(report: &PruneReport, dry_run: bool) -> String {
    let mut text = String::new();
    let will = if dry_run { "would be " } else { "" };
    for one in &report.pruned {
        let how = if one.removed { "removed" } else { "emptied, the session stays" };
        text.push_str(&format!(
            "{}  {will}{how}: {}, last written {}\n",
            one.session,
            size(one.bytes),
            ago(one.active)
        ));
    }
    for (session, why) in &report.busy {
        let why = stockade_policy::text::sanitise(why);
        text.push_str(&format!("{session}  left alone: {why}\n"));
    }
    let bytes = report.pruned.iter().map(|one| one.bytes).sum();
    text.push_str(&format!(
        "{} logs {will}given up ({}), {} kept ({})\n",
        report.pruned.len(),
        size(bytes),
        report.kept,
        size(report.kept_bytes)
    ));
    text
}
