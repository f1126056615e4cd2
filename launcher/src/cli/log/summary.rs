//! A run in short: how it went, what it changed, what it was refused, what it read, and by which programs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use stockade_observe::{Changes, DenialRow, Ending, RunRow, RunSummary, Stat, Time, Touch};
use stockade_policy::text::sanitise;

use crate::errno;

use super::output::{Look, Output};
use super::{Log, Stop, ago, command, day, lasted, path, program, size};

/// How many paths of a kind are named.
const NAMED: usize = 10;

/// Lists the session's runs.
pub(super) fn runs(log: &Log, as_json: bool, out: &mut Output) -> Result<(), Stop> {
    for run in log.store.runs()? {
        if as_json {
            writeln!(out, "{}", head_json(log, &run))?;
        } else {
            let (word, look) = ending(&run);
            writeln!(
                out,
                "{}  {}  {}  {}",
                out.paint(Look::Strong, &run.info.id),
                day(run.info.started),
                out.paint(look, format_args!("{word:<12}")),
                command(&run.info.argv)
            )?;
        }
    }
    Ok(())
}

/// Shows a run's summary.
pub(super) fn show(log: &Log, run: &RunRow, as_json: bool, out: &mut Output) -> Result<(), Stop> {
    let summary = log.store.run_summary(&run.info.id)?;
    let stats = log.store.stats(&run.info.id)?;
    let touched = log.store.touch_counts(&run.info.id)?;
    if as_json {
        let mut object = head_json(log, run);
        let object_mut = object.as_object_mut();
        if let (Some(object), Ok(serde_json::Value::Object(rest))) =
            (object_mut, serde_json::to_value(&summary))
        {
            object.extend(rest);
            object.insert("programs".to_owned(), programs_json(&stats, &touched));
        }
        writeln!(out, "{object}")?;
        return Ok(());
    }
    head(run, &summary, out)?;
    changes(&summary.changes, &run.info.root, out)?;
    denials(&summary, out)?;
    for conflict in summary.conflicts.iter().take(NAMED) {
        let kept = conflict.kept.as_deref().map(|kept| format!(", kept as {}", path(kept)));
        writeln!(
            out,
            "{} {}{}",
            out.paint(Look::Bad, "conflict"),
            path(&conflict.path),
            kept.unwrap_or_default()
        )?;
    }
    programs(&stats, &touched, out)?;
    Ok(())
}

fn head_json(log: &Log, run: &RunRow) -> serde_json::Value {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    json!({
        "v": 1,
        "session": log.id.0,
        "run": run.info.id.0,
        "argv": run.info.argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>(),
        "cwd": text(&run.info.cwd),
        "mode": run.info.mode,
        "source": run.info.source,
        "root": text(&run.info.root),
        "writable_roots": run.info.writable_roots.iter().map(|root| text(root)).collect::<Vec<_>>(),
        "backend": run.info.backend,
        "started": run.info.started.to_rfc3339(),
        "finished": run.end.as_ref().map(|end| end.time.to_rfc3339()),
        "outcome": run.end.as_ref().map(|end| end.outcome.ending),
        "exit_code": run.end.as_ref().and_then(|end| end.outcome.exit_code),
        "signal": run.end.as_ref().and_then(|end| end.outcome.signal),
        "live": run.live,
    })
}

fn ending(run: &RunRow) -> (String, Look) {
    let Some(end) = &run.end else {
        return if run.live {
            ("running".to_owned(), Look::Good)
        } else {
            ("interrupted".to_owned(), Look::Bad)
        };
    };
    match (end.outcome.ending, end.outcome.exit_code, end.outcome.signal) {
        (Ending::Exited, Some(0), _) => ("exited 0".to_owned(), Look::Good),
        (Ending::Exited, Some(code), _) => (format!("exited {code}"), Look::Change),
        (Ending::Signaled, _, Some(signal)) => (format!("signal {signal}"), Look::Bad),
        (ending, _, _) => (ending.as_str().replace('_', " "), Look::Bad),
    }
}

fn head(run: &RunRow, summary: &RunSummary, out: &mut Output) -> io::Result<()> {
    writeln!(
        out,
        "{} {}",
        out.paint(Look::Strong, format_args!("run {}", run.info.id)),
        command(&run.info.argv)
    )?;
    let (word, look) = ending(run);
    let started = std::time::UNIX_EPOCH
        + std::time::Duration::from_nanos(u64::try_from(run.info.started.0).unwrap_or(0));
    let mut facts = vec![
        out.paint(look, word),
        format!("{} ({})", run.info.mode, source(run)),
        sanitise(&run.info.backend),
        path(&run.info.root),
        format!("{} ({})", day(run.info.started), ago(started)),
    ];
    match &run.end {
        Some(end) if end.outcome.ending != Ending::Interrupted => {
            facts.insert(1, lasted(run.info.started, end.time));
        }
        Some(_) => {}
        None if run.live => facts.insert(1, lasted(run.info.started, Time::now())),
        None => {}
    }
    writeln!(out, "  {}", facts.join(" · "))?;
    if summary.recording.lost > 0 {
        let error = summary.recording.error.clone().unwrap_or_default();
        let text = format!(
            "{} events are missing in this log: {}",
            summary.recording.lost,
            sanitise(&error)
        );
        writeln!(out, "  {}", out.paint(Look::Bad, text))?;
    }
    if summary.recording.at_most > 0 {
        let text = format!(
            "the recorder was killed: at most the last {} events are missing",
            summary.recording.at_most
        );
        writeln!(out, "  {}", out.paint(Look::Bad, text))?;
    }
    Ok(())
}

fn source(run: &RunRow) -> &'static str {
    use stockade_policy::ModeSource;
    match run.info.source {
        ModeSource::Default => "default",
        ModeSource::Session => "the session's",
        ModeSource::Approved => "approved for this run",
    }
}

/// Shows a path below the root without it.
fn near(root: &Path, whole: &Path) -> String {
    match whole.strip_prefix(root) {
        Ok(rest) if !rest.as_os_str().is_empty() => path(rest),
        Ok(_) | Err(_) => path(whole),
    }
}

fn changes(changes: &Changes, root: &Path, out: &mut Output) -> io::Result<()> {
    let Changes { created, modified, deleted, renamed, complete } = changes;
    if changes.is_empty() {
        return writeln!(out, "{}", out.paint(Look::Faint, "changed nothing"));
    }
    let mut counts = Vec::new();
    for (count, word) in [
        (created.len(), "created"),
        (modified.len(), "modified"),
        (deleted.len(), "deleted"),
        (renamed.len(), "renamed"),
    ] {
        if count > 0 {
            counts.push(format!("{count} {word}"));
        }
    }
    let cut = if *complete { "" } else { ", and more" };
    writeln!(out, "{} {}{cut}", out.paint(Look::Change, "changed"), counts.join(", "))?;
    for (mark, look, paths) in
        [("+", Look::Good, created), ("~", Look::Change, modified), ("-", Look::Bad, deleted)]
    {
        for one in paths.iter().take(NAMED) {
            writeln!(out, "  {} {}", out.paint(look, mark), near(root, one))?;
        }
        more(paths.len(), out)?;
    }
    for (from, to) in renamed.iter().take(NAMED) {
        let mark = out.paint(Look::Change, ">");
        writeln!(out, "  {mark} {} -> {}", near(root, from), near(root, to))?;
    }
    more(renamed.len(), out)
}

fn more(count: usize, out: &mut Output) -> io::Result<()> {
    if count > NAMED {
        writeln!(
            out,
            "    {}",
            out.paint(Look::Faint, format_args!("and {} more", count - NAMED))
        )?;
    }
    Ok(())
}

fn denials(summary: &RunSummary, out: &mut Output) -> io::Result<()> {
    if summary.denial_count == 0 {
        return Ok(());
    }
    let plural = if summary.denial_count == 1 { "" } else { "s" };
    let word = out.paint(Look::Bad, "refused");
    writeln!(out, "{word} {} time{plural}", summary.denial_count)?;
    // Programs try again, and from several processes: one line for each path and rule.
    let mut lines: Vec<(&DenialRow, u64)> = Vec::new();
    let mut at: BTreeMap<(&Path, &str, &str), usize> = BTreeMap::new();
    for denial in &summary.denials {
        let key = (denial.path.as_path(), denial.op.as_str(), denial.rule.as_str());
        let place = *at.entry(key).or_insert_with(|| {
            lines.push((denial, 0));
            lines.len() - 1
        });
        lines[place].1 += denial.count;
    }
    for (denial, count) in lines.iter().take(NAMED) {
        let times = if *count > 1 { format!(", {count} times") } else { String::new() };
        let second = denial.path2.as_deref().map(|second| format!(" -> {}", path(second)));
        writeln!(
            out,
            "  {} {}{} by {}[{}]: {} ({}), {}{times}",
            out.paint(Look::Bad, denial.op),
            path(&denial.path),
            second.unwrap_or_default(),
            program(&denial.exe),
            denial.pid,
            denial.rule,
            sanitise(&denial.source),
            errno::name(denial.errno),
        )?;
    }
    more(lines.len(), out)
}

/// What a program did, in numbers.
#[derive(Default)]
pub(super) struct Program {
    first: usize,
    /// Paths it read.
    pub read: u64,
    /// Paths it changed.
    pub changed: u64,
    /// Its refusals.
    pub refused: u64,
    failed: u64,
    /// Bytes it read, as far as they were seen.
    pub bytes_read: u64,
    /// Bytes it wrote, as far as they were seen.
    pub bytes_written: u64,
    /// Whether some weren't seen.
    pub hidden: bool,
}

/// Sums up what each program did, in order of their first events.
pub(super) fn by_program(
    stats: &[Stat],
    touched: &[(PathBuf, Touch, u64)],
) -> Vec<(PathBuf, Program)> {
    let mut programs: BTreeMap<PathBuf, Program> = BTreeMap::new();
    for (at, stat) in stats.iter().enumerate() {
        let program = programs
            .entry(stat.exe.clone())
            .or_insert_with(|| Program { first: at, ..Program::default() });
        program.bytes_read += stat.bytes_read;
        program.bytes_written += stat.bytes_written;
        program.hidden |= stat.hidden > 0;
        match stat.outcome {
            "denied" => program.refused += stat.count,
            "error" => program.failed += stat.count,
            _ => {}
        }
    }
    for (exe, how, paths) in touched {
        let program = programs.entry(exe.clone()).or_default();
        if how.intersects(Touch::READ) {
            program.read += paths;
        }
        if how.intersects(Touch::CHANGED) {
            program.changed += paths;
        }
    }
    let mut sorted: Vec<_> = programs.into_iter().collect();
    sorted.sort_by_key(|(_, program)| program.first);
    sorted
}

fn programs_json(stats: &[Stat], touched: &[(PathBuf, Touch, u64)]) -> serde_json::Value {
    by_program(stats, touched)
        .into_iter()
        .map(|(exe, program)| {
            json!({
                "exe": exe.to_string_lossy(),
                "paths_read": program.read,
                "paths_changed": program.changed,
                "refused": program.refused,
                "failed": program.failed,
                "bytes_read": program.bytes_read,
                "bytes_written": program.bytes_written,
                "bytes_hidden": program.hidden,
            })
        })
        .collect()
}

fn programs(stats: &[Stat], touched: &[(PathBuf, Touch, u64)], out: &mut Output) -> io::Result<()> {
    let programs = by_program(stats, touched);
    if programs.is_empty() {
        return writeln!(out, "{}", out.paint(Look::Faint, "nothing was touched"));
    }
    let plural = if programs.len() == 1 { "" } else { "s" };
    writeln!(out, "{} program{plural}", out.paint(Look::Strong, programs.len()))?;
    let header = format!(
        "  {:<28} {:>8} {:>8} {:>8} {:>9} {:>9}",
        "", "read", "changed", "refused", "bytes in", "bytes out"
    );
    writeln!(out, "{}", out.paint(Look::Faint, header))?;
    for (exe, program) in programs.iter().take(3 * NAMED) {
        // Behind the kernel's passthrough the bytes aren't seen: a number would be a lie.
        let bytes =
            |count| if program.hidden { format!("≥{}", size(count)) } else { size(count) };
        let name = format!("{:<28}", path(exe));
        let refused = format!("{:>8}", program.refused);
        writeln!(
            out,
            "  {} {:>8} {:>8} {} {:>9} {:>9}",
            out.paint(Look::Name, name),
            program.read,
            program.changed,
            if program.refused > 0 { out.paint(Look::Bad, refused) } else { refused },
            bytes(program.bytes_read),
            bytes(program.bytes_written),
        )?;
    }
    if programs.len() > 3 * NAMED {
        writeln!(out, "    and {} more", programs.len() - 3 * NAMED)?;
    }
    Ok(())
}
