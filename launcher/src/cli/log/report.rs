//! `stockade log report`: a run as one page that needs nothing else, to look at in a browser.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use stockade_observe::{
    Ending, Event, Filter, Op, Outcome, ProcessTree, RunRow, Time, Touch, is_change,
};
use stockade_policy::Rule;
use stockade_policy::text::{sanitise, sanitise_bytes, show_command};

use super::summary::by_program;
use super::{Log, Which, command, failure, lasted, path};
use crate::cli::complain;
use crate::errno;
use crate::error::{Code, Failure};

const PAGE: &str = include_str!("report.html");

/// Events that a page holds; browsers stay quick with so many. The counts and the files are those of the whole run.
const EVENTS: usize = 200_000;
/// Paths that a page holds.
const FILES: u64 = 200_000;

/// Write a run as one HTML page that needs no network.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
}

/// Writes the page.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let log = Log::open(&args.which)?;
    let run = log.run(&args.which)?.ok_or_else(|| {
        Failure::new(Code::ConfigInvalid, "a report is about one run, not about all")
    })?;
    let data = data(&log, &run)?;
    // Nothing in a script element ends it but this character.
    let data = data.replace('<', "\\u003c");
    let fail = |error: std::io::Error| {
        Failure::new(Code::RunnerFailed, format!("can't write `{}`", path(&args.html)))
            .because(error)
    };
    let (before, after) = PAGE.split_once("/*DATA*/").unwrap_or((PAGE, ""));
    let directory = match args.html.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let mut file =
        tempfile::Builder::new().prefix(".stockade-report").tempfile_in(directory).map_err(fail)?;
    for part in [before, &data, after] {
        file.write_all(part.as_bytes()).map_err(fail)?;
    }
    // What a run did is its owner's business: the file stays readable for them alone.
    file.persist(&args.html).map_err(|error| fail(error.error))?;
    let size = fs::metadata(&args.html).map_or(0, |meta| meta.len());
    complain(&format!("stockade: wrote {} ({})", path(&args.html), super::size(size)));
    Ok(ExitCode::SUCCESS)
}

/// Gives each text a number, so that the page holds it once.
#[derive(Default)]
struct Strings {
    known: HashMap<String, usize>,
    all: Vec<String>,
}

impl Strings {
    fn add(&mut self, text: String) -> usize {
        if let Some(&at) = self.known.get(&text) {
            return at;
        }
        let at = self.all.len();
        self.all.push(text.clone());
        self.known.insert(text, at);
        at
    }

    fn path(&mut self, name: &Path) -> usize {
        self.add(path(name))
    }
}

fn data(log: &Log, run: &RunRow) -> Result<String, Failure> {
    let id = &run.info.id;
    let summary = log.store.run_summary(id).map_err(failure)?;
    let stats = log.store.stats(id).map_err(failure)?;
    let counts = log.store.touch_counts(id).map_err(failure)?;
    let tree = log.store.process_tree(id).map_err(failure)?;
    let mut strings = Strings::default();
    let mut files: HashMap<usize, Touch> = HashMap::new();
    let everything = Touch::from_bits(u16::MAX);
    for touched in log.store.touched(id, everything, FILES).map_err(failure)? {
        let how = files.entry(strings.path(&touched.path)).or_default();
        *how = *how | touched.how;
    }
    let mut errnos = serde_json::Map::new();
    let (events, seen) = events_json(log, run, &tree, &mut strings, &mut errnos)?;
    let programs: Vec<Value> = by_program(&stats, &counts)
        .into_iter()
        .map(|(exe, program)| {
            json!({
                "exe": strings.path(&exe),
                "read": program.read,
                "changed": program.changed,
                "refused": program.refused,
                "bytes_read": program.bytes_read,
                "bytes_written": program.bytes_written,
                "hidden": program.hidden,
            })
        })
        .collect();
    let mut denials = Vec::new();
    for denial in &summary.denials {
        denials.push(json!({
            "op": denial.op.as_str(),
            "path": strings.path(&denial.path),
            "path2": denial.path2.as_deref().map(|second| strings.path(second)),
            "exe": strings.path(&denial.exe),
            "pid": denial.pid,
            "rule": denial.rule,
            "source": sanitise(&denial.source),
            "count": denial.count,
            "help": allowing(denial.rule, &denial.path, &denial.source),
        }));
    }
    let mut numbers =
        |paths: &[PathBuf]| -> Vec<usize> { paths.iter().map(|name| strings.path(name)).collect() };
    let changes = json!({
        "created": numbers(&summary.changes.created),
        "modified": numbers(&summary.changes.modified),
        "deleted": numbers(&summary.changes.deleted),
        "renamed": summary.changes.renamed.iter()
            .map(|(from, to)| numbers(&[from.clone(), to.clone()]))
            .collect::<Vec<_>>(),
    });
    let read = files.values().filter(|how| how.intersects(Touch::READ)).count();
    let files: Vec<_> = files.into_iter().map(|(name, how)| (name, how.bits())).collect();
    let processes = processes_json(&tree, &mut strings);
    let mut warnings = Vec::new();
    if summary.recording.lost > 0 {
        warnings.push(format!("{} events are missing in the log.", summary.recording.lost));
    }
    if summary.recording.at_most > 0 {
        let most = summary.recording.at_most;
        warnings
            .push(format!("The recorder was killed: at most the last {most} events are missing."));
    }
    if seen > EVENTS {
        warnings.push(format!(
            "This page holds the first {EVENTS} of {seen} events; all counts are whole."
        ));
    }
    if !summary.changes.complete {
        warnings.push("More paths were changed than are listed.".to_owned());
    }
    let rest = json!({
        "run": run_json(log, run),
        "warnings": warnings,
        "counts": { "events": summary.events, "denied": summary.denial_count, "read": read },
        "cut": seen > EVENTS,
        "changes": changes,
        "denials": denials,
        "programs": programs,
        "processes": processes,
        "roots": tree.roots,
        "files": files,
        "ops": Op::ALL.map(Op::as_str),
        "errnos": errnos,
        "strings": strings.all,
    });
    let mut text = rest.to_string();
    // The object goes on with its longest part, which was written as text already.
    text.pop();
    text.push_str(",\"events\":");
    text.push_str(&events);
    text.push('}');
    Ok(text)
}

fn run_json(log: &Log, run: &RunRow) -> Value {
    let (outcome, end) = match &run.end {
        Some(end) => {
            let mut outcome = end.outcome.ending.as_str().replace('_', " ");
            for number in [end.outcome.exit_code, end.outcome.signal].into_iter().flatten() {
                outcome = format!("{outcome} {number}");
            }
            // An interrupted run ended before that was noticed; its last event is the best that is known.
            let time = (end.outcome.ending != Ending::Interrupted).then_some(end.time);
            (outcome, time)
        }
        None if run.live => ("running".to_owned(), Some(Time::now())),
        None => ("interrupted".to_owned(), None),
    };
    let last = Filter { run: Some(run.info.id.clone()), last: Some(1), ..Filter::default() };
    let last = log.store.events(&last).ok().and_then(|events| Some(events.first()?.event.time));
    let end = end.or(last).unwrap_or(run.info.started);
    json!({
        "id": run.info.id.0,
        "session": log.id.0,
        "argv": command(&run.info.argv),
        "outcome": outcome,
        "took": lasted(run.info.started, end),
        "took_ms": (end.0 - run.info.started.0).max(0) / 1_000_000,
        "started_ms": run.info.started.0 / 1_000_000,
        "mode": run.info.mode,
        "backend": sanitise(&run.info.backend),
        "root": path(&run.info.root),
    })
}

fn processes_json(tree: &ProcessTree, strings: &mut Strings) -> Vec<Value> {
    tree.nodes
        .iter()
        .map(|node| {
            let cmdline = node.process().map_or(&[][..], |process| &process.cmdline);
            let cmdline = cmdline.strip_suffix(&[0]).unwrap_or(cmdline);
            let mut exe: Vec<usize> =
                node.images.iter().map(|image| strings.path(&image.exe)).collect();
            exe.dedup();
            json!({
                "pid": node.process().map(|process| process.pid),
                "exe": exe,
                "argv": show_command(cmdline.split(|&byte| byte == 0)),
                "reads": node.reads,
                "writes": node.writes,
                "denied": node.denied,
                "failed": node.failed,
                "children": node.children,
            })
        })
        .collect()
}

/// Returns the events as JSON and how many the run has; see the page's script for the columns.
fn events_json(
    log: &Log,
    run: &RunRow,
    tree: &ProcessTree,
    strings: &mut Strings,
    errnos: &mut serde_json::Map<String, Value>,
) -> Result<(String, usize), Failure> {
    let by_process: HashMap<(u32, u64), usize> = tree
        .nodes
        .iter()
        .enumerate()
        .filter_map(|(at, node)| {
            node.process().map(|process| ((process.pid, process.start_time), at))
        })
        .collect();
    let mut text = String::from("[");
    let mut seen = 0;
    let filter = Filter { run: Some(run.info.id.clone()), ..Filter::default() };
    log.store
        .for_each(&filter, |stored| {
            seen += 1;
            if seen > EVENTS {
                return ControlFlow::Continue(());
            }
            let process = &stored.event.process;
            // A process of an event that came after the tree was read isn't in it.
            let Some(&at) = by_process.get(&(process.pid, process.start_time)) else {
                return ControlFlow::Continue(());
            };
            if text.len() > 1 {
                text.push(',');
            }
            row(&mut text, &stored.event, run.info.started, at, strings, errnos);
            ControlFlow::Continue(())
        })
        .map_err(failure)?;
    text.push(']');
    Ok((text, seen))
}

fn row(
    text: &mut String,
    event: &Event,
    started: Time,
    process: usize,
    strings: &mut Strings,
    errnos: &mut serde_json::Map<String, Value>,
) {
    let (kind, errno, rule) = match &event.outcome {
        Outcome::Ok => (usize::from(is_change(event)), 0, None),
        Outcome::Denied { denial, errno } => {
            let rule = format!("{} ({})", denial.rule(), sanitise(denial.source()));
            (2, *errno, Some(strings.add(rule)))
        }
        Outcome::Error { errno } => (3, *errno, None),
    };
    if errno != 0 {
        errnos.entry(errno.to_string()).or_insert_with(|| errno::name(errno).into());
    }
    let op = Op::ALL.iter().position(|op| *op == event.op).unwrap_or_default();
    let micros = event.time.0.saturating_sub(started.0) / 1000;
    let first = strings.path(&event.path);
    let second = event.path2.as_deref().map(|second| strings.path(second));
    let or_null = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
    // Writing to a String can't fail.
    let _infallible = write!(
        text,
        "[{}{}.{:03},{process},{op},{first},{},{kind},{errno},{},{},{},{}]",
        if micros < 0 { "-" } else { "" },
        micros.unsigned_abs() / 1000,
        micros.unsigned_abs() % 1000,
        or_null(second.map(|at| at.to_string())),
        or_null(rule.map(|at| at.to_string())),
        or_null(event.bytes_read.map(|bytes| bytes.to_string())),
        or_null(event.bytes_written.map(|bytes| bytes.to_string())),
        event.count,
    );
}

/// Returns the option that would have allowed what a rule refused.
fn allowing(rule: Rule, refused: &Path, source: &str) -> Option<String> {
    let quoted =
        |name: &Path| show_command([std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str())]);
    match rule {
        Rule::ReadOnlyMode => Some("--mode workspace-write".to_owned()),
        Rule::OutsideWritableRoots => {
            Some(format!("--writable {}", quoted(refused.parent().unwrap_or(refused))))
        }
        Rule::ProtectedPath => Some(format!("--allow-write {}", quoted(refused))),
        Rule::WriteDenied | Rule::ReadDenied => {
            Some(format!("leave out: {}", sanitise_bytes(source.as_bytes())))
        }
        Rule::NotObserved | Rule::StaleVersion => {
            Some("read the file again first, or --guard audit".to_owned())
        }
        Rule::HardLink => Some("--hardlinks break".to_owned()),
        Rule::DeviceNode | Rule::Reserved => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_place_for_its_data_and_reaches_no_network() {
        assert_eq!(PAGE.matches("/*DATA*/").count(), 1);
        for word in ["http:", "https:", "src=", "@import", "url(", "fetch("] {
            assert!(!PAGE.contains(word), "{word}");
        }
    }

    #[test]
    fn what_would_allow_is_quoted_for_the_shell() {
        let path = Path::new("/w/it's here/.env");
        let option = allowing(Rule::ProtectedPath, path, "");
        assert_eq!(option.as_deref(), Some("--allow-write '/w/it'\\''s here/.env'"));
        assert_eq!(allowing(Rule::Reserved, path, ""), None);
    }
}
