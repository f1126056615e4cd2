//! What a person is told after a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stockade_observe::{ConflictRow, DenialRow, Ending};
use stockade_policy::Rule;

use crate::cli::{complain, report};
use crate::error::{Code, Failure};
use crate::result::RunResult;
use crate::sys;

/// Tells the person and the result file, and returns the exit status.
#[expect(clippy::unnecessary_wraps, reason = "every subcommand has this shape")]
pub(super) fn finish(
    result: &RunResult,
    file: Option<&Path>,
    quiet: bool,
) -> Result<ExitCode, Failure> {
    // A job in the background may write here without being stopped for it.
    sys::set_ignored(libc::SIGTTOU, true);
    if let Some(failure) = &result.failure {
        let _status = report(failure);
    }
    if !quiet {
        note(result);
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

/// How many refused paths the note names.
const NAMED: usize = 8;

/// Says what was refused, and how to allow it.
fn note(result: &RunResult) {
    if result.outcome.ending == Ending::TimedOut {
        complain("stockade: the command ran out of time and was ended");
    }
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
    // One line for each path and rule: programs try things again, and from several processes.
    let mut lines: BTreeMap<(PathBuf, &str), (&DenialRow, u64)> = BTreeMap::new();
    for denial in &summary.denials {
        let entry =
            lines.entry((denial.path.clone(), denial.rule.as_str())).or_insert_with(|| (denial, 0));
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
            "  {} {} by {program} (pid {}){times}: {}",
            denial.op,
            shown(&denial.path),
            denial.pid,
            denial.rule
        ));
    }
    if lines.len() > NAMED {
        complain(&format!("  and {} more paths", lines.len() - NAMED));
    }
    let mut helps: Vec<String> =
        lines.values().filter_map(|(denial, _)| help(denial, result)).collect();
    helps.sort();
    helps.dedup();
    for help in helps.iter().take(NAMED) {
        complain(&format!("help: {help}"));
    }
    complain(&format!("help: `stockade log {} --denied` shows each", result.session));
}

/// Shows a path without letting its name write to the terminal.
fn shown(path: &Path) -> String {
    let text: String = path
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    format!("`{text}`")
}

/// Returns the option that would allow what was refused.
fn help(denial: &DenialRow, result: &RunResult) -> Option<String> {
    let parent = denial.path.parent().unwrap_or(&denial.path);
    Some(match denial.rule {
        Rule::ReadOnlyMode => {
            "to allow writing in the workspace: --mode workspace-write".to_owned()
        }
        Rule::OutsideWritableRoots => format!("to allow it: --writable {}", shown(parent)),
        Rule::ProtectedPath => {
            format!("to lift the protection: --allow-write {}", shown(&denial.path))
        }
        Rule::WriteDenied | Rule::ReadDenied => format!("to allow it, leave out {}", denial.source),
        Rule::NotObserved | Rule::StaleVersion => {
            "read the file again first, or use --guard audit".to_owned()
        }
        Rule::HardLink => {
            "to give such a file a fresh inode on write: --hardlinks break".to_owned()
        }
        Rule::DeviceNode | Rule::Reserved => return None,
    })
    .filter(|_| result.policy.is_some())
}
