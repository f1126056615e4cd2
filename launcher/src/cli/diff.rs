//! `stockade diff`: what a run changed, as a unified diff.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::FileType;
use stockade_observe::history::{Change, Diff, History, Kind, changes, diff};

use super::complain;
use super::history::{Which, shown, to_json};
use super::log::output::{Colour, Look, Output};
use crate::error::{Code, Failure};

/// Show what a run changed. [default: the last run]
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Show how many lines came and went, file by file.
    #[arg(long)]
    stat: bool,
    /// Show the names alone.
    #[arg(long, conflicts_with = "stat")]
    name_only: bool,
    /// Print JSON: one object a line.
    #[arg(long, conflicts_with_all = ["stat", "name_only"])]
    json: bool,
    /// End with 1 if there are changes.
    #[arg(long)]
    exit_code: bool,
    /// Whether to use colours.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: Colour,
    /// Don't start a pager on a terminal.
    #[arg(long)]
    no_pager: bool,
}

/// Shows the changes.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let found = args.which.find()?;
    let histories = found.open()?;
    if History::undone(&found.place) {
        complain(&format!("stockade: run {} was undone", found.run.info.id));
        return Ok(ExitCode::SUCCESS);
    }
    let root = &found.run.info.root;
    let all: Vec<Change> = histories.iter().flat_map(changes).collect();
    let mut out = Output::new(args.color, !args.json && !args.no_pager);
    let written = write_all(args, root, &all, &mut out);
    out.finish();
    for (path, why) in histories
        .iter()
        .flat_map(|history| history.gaps.iter().map(|(path, why)| (history.shown(path), why)))
    {
        complain(&format!("stockade: not kept: {}: {why}", shown(&path)));
    }
    if histories.iter().any(|history| !history.sealed) && !found.run.live {
        complain(
            "stockade: the history isn't whole: the run was interrupted, or it couldn't be written",
        );
    }
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Code::RunnerFailed, "can't write the output").because(error))
        }
        Ok(()) | Err(_) => Ok(ExitCode::from(u8::from(args.exit_code && !all.is_empty()))),
    }
}

fn write_all(args: &Args, root: &Path, all: &[Change], out: &mut Output) -> io::Result<()> {
    if args.stat {
        return stat(root, all, out);
    }
    for change in all {
        if args.name_only {
            writeln!(out, "{}", name(root, change.path()))?;
        } else if args.json {
            json(change, out)?;
        } else {
            patch(root, change, out)?;
        }
    }
    Ok(())
}

/// Shows a path below the root as relative to it.
fn name(root: &Path, path: &Path) -> String {
    shown(path.strip_prefix(root).unwrap_or(path))
}

/// Writes a path as git does: quoted if something in it is unusual.
fn quoted(prefix: &str, root: &Path, path: &Path) -> String {
    let bytes = path.strip_prefix(root).unwrap_or(path).as_os_str().as_bytes();
    // An absolute one follows the prefix all the same.
    let bytes = bytes.strip_prefix(b"/").unwrap_or(bytes);
    let usual = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
    if bytes.iter().all(usual) {
        return format!("{prefix}{}", String::from_utf8_lossy(bytes));
    }
    let mut text = format!("\"{prefix}");
    for byte in bytes {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            byte if usual(byte) => text.push(char::from(*byte)),
            byte => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}

/// Compares the contents of a change; none if one of them isn't known.
fn compare(change: &Change) -> Option<Diff> {
    if change.is_directory() {
        return Some(Diff::Same);
    }
    let content = |side: &Option<stockade_observe::history::Side>| match side {
        None => Some(Vec::new()),
        Some(side) => {
            let kind = FileType::from_raw_mode(side.mode);
            let has_content = matches!(kind, FileType::RegularFile | FileType::Symlink);
            if has_content { side.content.clone() } else { Some(Vec::new()) }
        }
    };
    if change.since {
        return None;
    }
    Some(diff(&content(&change.old)?, &content(&change.new)?))
}

fn json(change: &Change, out: &mut Output) -> io::Result<()> {
    let mut object = to_json(change);
    let compared = compare(change);
    let (added, removed) = match &compared {
        Some(Diff::Text { added, removed, .. }) => (*added, *removed),
        _ => (0, 0),
    };
    object.insert("added".to_owned(), added.into());
    object.insert("removed".to_owned(), removed.into());
    object.insert("binary".to_owned(), (compared == Some(Diff::Binary)).into());
    object.insert("changed_since".to_owned(), change.since.into());
    writeln!(out, "{}", serde_json::Value::Object(object))
}

fn stat(root: &Path, all: &[Change], out: &mut Output) -> io::Result<()> {
    let (mut added_all, mut removed_all) = (0, 0);
    for change in all {
        let shown = match (&change.from, &change.to) {
            (Some(from), Some(to)) if from != to => {
                format!("{} => {}", name(root, from), name(root, to))
            }
            _ => name(root, change.path()),
        };
        let what = match compare(change) {
            Some(Diff::Text { added, removed, .. }) => {
                added_all += added;
                removed_all += removed;
                format!(
                    "{} {}{}",
                    added + removed,
                    out.paint(Look::Good, "+".repeat(added.min(30))),
                    out.paint(Look::Bad, "-".repeat(removed.min(30)))
                )
            }
            Some(Diff::Binary) => "Bin".to_owned(),
            Some(Diff::Same) => "0".to_owned(),
            None => "?".to_owned(),
        };
        writeln!(out, " {shown} | {what}")?;
    }
    let files = all.len();
    let plural = if files == 1 { "" } else { "s" };
    writeln!(
        out,
        " {files} file{plural} changed, {added_all} insertions(+), {removed_all} deletions(-)"
    )
}

fn patch(root: &Path, change: &Change, out: &mut Output) -> io::Result<()> {
    let from = change.from.as_deref().or(change.to.as_deref()).unwrap_or(root);
    let to = change.to.as_deref().unwrap_or(from);
    let (a, b) = (quoted("a/", root, from), quoted("b/", root, to));
    let head = |out: &mut Output, text: String| {
        let text = out.paint(Look::Strong, text);
        writeln!(out, "{text}")
    };
    head(out, format!("diff --git {a} {b}"))?;
    let kind = if change.is_directory() { "directory" } else { "file" };
    match (&change.old, &change.new) {
        (None, Some(new)) if change.kind == Kind::Created => {
            head(out, format!("new {kind} mode {:06o}", new.mode))?;
        }
        (Some(old), None) if change.kind == Kind::Deleted => {
            head(out, format!("deleted {kind} mode {:06o}", old.mode))?;
        }
        (Some(old), Some(new)) => {
            if old.mode != new.mode {
                head(out, format!("old mode {:06o}", old.mode))?;
                head(out, format!("new mode {:06o}", new.mode))?;
            }
            if old.owner != new.owner {
                head(out, format!("old owner {}:{}", old.owner.0, old.owner.1))?;
                head(out, format!("new owner {}:{}", new.owner.0, new.owner.1))?;
            }
            if old.xattrs != new.xattrs {
                head(out, "extended attributes changed".to_owned())?;
            }
        }
        _ => {}
    }
    if change.from.is_some() && change.to.is_some() && from != to {
        head(out, format!("rename from {}", quoted("", root, from)))?;
        head(out, format!("rename to {}", quoted("", root, to)))?;
    }
    if change.since {
        return head(out, "changed since the run".to_owned());
    }
    let hunks = match compare(change) {
        Some(Diff::Same) => return Ok(()),
        Some(Diff::Text { hunks, .. }) => hunks,
        Some(Diff::Binary) => {
            let (a, b) = sides(change, &a, &b);
            return writeln!(out, "Binary files {a} and {b} differ");
        }
        None => return writeln!(out, "What was in it is too long, or wasn't kept"),
    };
    let (a, b) = sides(change, &a, &b);
    head(out, format!("--- {a}"))?;
    head(out, format!("+++ {b}"))?;
    for hunk in hunks {
        for line in hunk {
            let look = match line.first() {
                Some(b'@') => Some(Look::Name),
                Some(b'+') => Some(Look::Good),
                Some(b'-') => Some(Look::Bad),
                _ => None,
            };
            let (before, after) = look.map_or((String::new(), String::new()), |look| {
                let painted = out.paint(look, "\u{0}");
                let mut parts = painted.split('\u{0}').map(str::to_owned);
                (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
            });
            out.write_all(before.as_bytes())?;
            out.write_all(&line)?;
            out.write_all(after.as_bytes())?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

fn sides<'s>(change: &Change, a: &'s str, b: &'s str) -> (&'s str, &'s str) {
    match change.kind {
        Kind::Created => ("/dev/null", b),
        Kind::Deleted => (a, "/dev/null"),
        Kind::Modified | Kind::Renamed => (a, b),
    }
}
