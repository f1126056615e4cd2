//! What a person is told after a run.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stockade_observe::history::History;
use stockade_observe::{ConflictRow, DenialRow, Ending, Op};
use stockade_policy::text::{sanitise, sanitise_bytes, shorten, show_command};
use stockade_policy::{Access, Denial, Mode, Policy, Rule, Rules, help_for};

use crate::cli::{complain, report};
use crate::error::{Code, Failure};
use crate::limits::Used;
use crate::result::RunResult;
use crate::sys;

/// Tells the person and the result file, and returns the exit status. `asks` tells whether a wider mode can be asked for.
#[expect(clippy::unnecessary_wraps, reason = "every subcommand has this shape")]
pub(super) fn finish(
    result: &RunResult,
    file: Option<&Path>,
    quiet: bool,
    asks: bool,
) -> Result<ExitCode, Failure> {
    // A job in the background may write here without being stopped for it.
    sys::set_ignored(libc::SIGTTOU, true);
    if let Some(failure) = &result.failure {
        let _status = report(failure);
    }
    if !quiet {
        note(result, asks);
    }
    if let Some(file) = file
        && let Err(error) = result.write(file)
    {
        // The command has run: its status stays.
        let what = format!("can't write the result to `{}`", file.display());
        let _status = report(&Failure::new(Code::RunnerFailed, what).because(error));
    }
    Ok(ExitCode::from(result.exit_status()))
}

/// Says what couldn't be kept of what the run changed.
pub(super) fn history(directory: &Path, quiet: bool) {
    let histories = match History::open(directory) {
        Ok(histories) => histories,
        Err(error) => return complain(&format!("stockade: no history was kept: {error}")),
    };
    let gaps: Vec<_> = histories
        .iter()
        .flat_map(|history| history.gaps.iter().map(|(path, why)| (history.shown(path), why)))
        .collect();
    if !gaps.is_empty() && !quiet {
        complain(&format!(
            "stockade: the history lacks {} paths, so the run can't be undone:",
            gaps.len()
        ));
        for (path, why) in gaps.iter().take(NAMED) {
            complain(&format!("  {}: {why}", shown(path)));
        }
    }
    if histories.iter().any(|history| !history.sealed) {
        complain("stockade: the history isn't whole: it couldn't be written to its end");
    }
}

/// How many refused paths the note names.
const NAMED: usize = 8;

/// Says what was refused, and how to allow it.
fn note(result: &RunResult, asks: bool) {
    if result.outcome.ending == Ending::TimedOut {
        complain("stockade: the command ran out of time and was ended");
    }
    result
        .used
        .iter()
        .flat_map(Used::lines)
        .for_each(|line| complain(&format!("stockade: {line}")));
    let Some(summary) = &result.summary else { return };
    if summary.recording.lost > 0 {
        complain(&format!("stockade: {} events are missing in the log", summary.recording.lost));
    }
    // Most programs write what they haven't read: that is for the log.
    let told = |conflict: &&ConflictRow| conflict.rule != Some(Rule::NotObserved);
    for conflict in summary.conflicts.iter().filter(told).take(NAMED) {
        complain(&format!("stockade: conflict: `{}`", conflict.path.display()));
    }
    if summary.denials.is_empty() {
        return;
    }
    // One line for each target and rule: programs try things again, and from several processes.
    let rules = result.policy.as_ref().and_then(|policy| Rules::compile(policy).ok());
    let mut lines: BTreeMap<(Target<'_>, &str), (&DenialRow, u64)> = BTreeMap::new();
    for denial in &summary.denials {
        let target = (denial.path.as_path(), denial.path2.as_deref());
        let entry = lines.entry((target, denial.rule.as_str())).or_insert_with(|| (denial, 0));
        entry.1 += denial.count;
    }
    let count = summary.denial_count;
    let plural = if count == 1 { "" } else { "s" };
    complain(&format!("stockade: {count} refusal{plural}:"));
    for (denial, count) in lines.values().take(NAMED) {
        let program = denial
            .exe
            .file_name()
            .map_or_else(|| "?".into(), |name| name.to_string_lossy().into_owned());
        let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
        complain(&format!(
            "  {} {}{} by {} (pid {}){times}: {}",
            denial.op,
            shown(&denial.path),
            denial.path2.as_ref().map(|to| format!(" to {}", shown(to))).unwrap_or_default(),
            sanitise(&program),
            denial.pid,
            denial.rule
        ));
    }
    if lines.len() > NAMED {
        complain(&format!("  and {} more paths", lines.len() - NAMED));
    }
    if let (Some(policy), Some(rules)) = (&result.policy, &rules) {
        let mut helps: Vec<String> = lines
            .values()
            .map(|(row, _)| {
                let denial = Denial::new(row.rule, row.source.clone());
                let name = refused_name(row.op, &row.path, row.path2.as_deref(), &denial, rules);
                help_for(&denial, name, policy.mode)
            })
            .collect();
        helps.sort();
        helps.dedup();
        for help in helps.iter().take(NAMED) {
            complain(&format!("help: {help}"));
        }
        if asks && let Some(line) = escalation(result, policy, &summary.denials) {
            complain(&format!("help: or ask for more, for one run: `{line}`"));
        }
    }
    complain(&format!("help: `stockade log {} --denied` shows each", result.session));
}

/// What was refused: a name, and where it should have gone.
type Target<'a> = (&'a Path, Option<&'a Path>);

/// Shows a path without letting its name write to the terminal.
fn shown(path: &Path) -> String {
    format!("`{}`", sanitise_bytes(path.as_os_str().as_bytes()))
}

/// Returns which of the two names of a rename or a link the rule is about.
pub(in crate::cli) fn refused_name<'r>(
    op: Op,
    path: &'r Path,
    path2: Option<&'r Path>,
    denial: &Denial,
    rules: &Rules,
) -> &'r Path {
    let Some(to) = path2 else { return path };
    let leaves = if op == Op::Rename {
        // A directory that may not move stands in the way whatever kind the log means.
        rules.move_refused(path).or_else(|| rules.rename_dir_refused(path))
    } else {
        rules.zone(path).write
    };
    if leaves.is_some_and(|found| *found == *denial) { path } else { to }
}

/// Returns the command line that asks for the narrowest mode in which what was refused is allowed, if one allows it.
fn escalation(result: &RunResult, policy: &Policy, denials: &[DenialRow]) -> Option<String> {
    let wider = Mode::ALL.into_iter().filter(|mode| *mode > policy.mode);
    let compiled: Vec<(Mode, Rules)> = wider
        .filter_map(|mode| {
            let policy = Policy { mode, ..policy.clone() };
            Rules::compile(&policy).ok().map(|rules| (mode, rules))
        })
        .collect();
    let needed = |row: &DenialRow| {
        let access = Access::from_name(row.op.as_str())?;
        compiled.iter().find_map(|(mode, rules)| {
            let names = std::iter::once(&row.path).chain(&row.path2);
            let allowed = |name: &PathBuf| access.refused(rules, name).is_none();
            names.into_iter().all(allowed).then_some(*mode)
        })
    };
    let mode = denials.iter().filter_map(needed).max()?;
    let words = ["stockade", "run", "--session", &result.session, "--sandbox-permissions"];
    let words = words.into_iter().chain([mode.as_str(), "--justification"]).map(str::as_bytes);
    let command = result.argv.iter().map(|word| word.as_bytes());
    let head = show_command(words);
    let tail = show_command(std::iter::once(&b"--"[..]).chain(command));
    Some(format!("{head} TEXT {}", shorten(&tail, 1000)))
}
