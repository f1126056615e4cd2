//! `stockade log`: what runs did, from the record of it.

mod events;
mod export;
pub(in crate::cli) mod output;
mod prune;
mod report;
mod summary;
mod tree;
mod verify;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use stockade_observe::{
    Error, Filter, Op, RunId, RunRow, SessionDir, SessionId, SqlValue, Store, Time, find_session,
    globs, session_dirs, to_json,
};
use stockade_policy::text::sanitise_bytes;

use crate::cli::policy_args::duration;
use crate::error::{Code, Failure};
use crate::session::failure;
use crate::state;

use output::{Colour, Output};

/// Show what a run read, changed and was refused, and by which programs. [default: the last run]
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    filter: FilterArgs,
    /// Show events as they happen, until interrupted.
    #[arg(short, long, conflicts_with_all = ["tree", "summary", "sql", "runs"])]
    follow: bool,
    /// Show the processes as a tree, with what each of them touched.
    #[arg(long, conflicts_with_all = ["summary", "sql", "runs"])]
    tree: bool,
    /// Show the summary alone.
    #[arg(long, conflicts_with_all = ["sql", "runs"])]
    summary: bool,
    /// List the session's runs.
    #[arg(long, conflicts_with = "sql")]
    runs: bool,
    /// Answer one SQL query on the log (views: events, runs, processes).
    #[arg(long, value_name = "QUERY")]
    sql: Option<String>,
    /// Print JSON: one object a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    style: Style,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Verify(verify::Args),
    Report(report::Args),
    Export(export::Args),
    Prune(prune::Args),
}

/// The session and the run.
#[derive(Debug, clap::Args)]
struct Which {
    /// The session, by id or name. [default: the last active one]
    #[arg(value_name = "SESSION")]
    session: Option<String>,
    /// The run; `all` for every run of the session. [default: the last one]
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Which events")]
struct FilterArgs {
    /// At this path or glob; without a slash it matches a name anywhere.
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    path: Vec<String>,
    /// Of this operation: read, write, create, rename, …
    #[arg(long, value_name = "OP", value_parser = op)]
    op: Vec<Op>,
    /// By this program: a path, a name or a glob.
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    exe: Vec<String>,
    /// By this process.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Refused.
    #[arg(long)]
    denied: bool,
    /// That changed something.
    #[arg(long)]
    changed: bool,
    /// Since a time (2026-11-30T12:00:00Z) or for so long (90s, 5m, 2h, 1d).
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Time>,
    /// The last so many.
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "follow")]
    last: Option<u64>,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Style {
    /// Whether to use colours.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: Colour,
    /// Don't start a pager on a terminal.
    #[arg(long)]
    no_pager: bool,
}

impl FilterArgs {
    fn is_given(&self) -> bool {
        !(self.path.is_empty() && self.op.is_empty() && self.exe.is_empty())
            || self.pid.is_some()
            || self.denied
            || self.changed
            || self.since.is_some()
            || self.last.is_some()
    }

    fn filter(&self, run: Option<RunId>) -> Filter {
        Filter {
            run,
            paths: self.path.clone(),
            ops: self.op.clone(),
            exes: self.exe.clone(),
            pid: self.pid,
            denied: self.denied,
            changed: self.changed,
            since: self.since,
            after: None,
            last: self.last,
        }
    }
}

fn glob(text: &str) -> Result<String, String> {
    let text = text.to_owned();
    match globs(std::slice::from_ref(&text)) {
        Ok(_) => Ok(text),
        Err(error) => Err(error.to_string()),
    }
}

fn op(name: &str) -> Result<Op, String> {
    Op::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Op::ALL.iter().map(|op| op.as_str()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn since(text: &str) -> Result<Time, String> {
    if let Some(time) = Time::from_rfc3339(text) {
        return Ok(time);
    }
    let ago = duration(text)
        .map_err(|error| format!("{error}; or give a time such as 2026-11-30T12:00:00Z"))?;
    let nanos = i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX);
    Ok(Time(Time::now().0.saturating_sub(nanos)))
}

/// A session's log, opened for reading.
struct Log {
    id: SessionId,
    store: Store,
}

impl Log {
    /// Opens the log that is asked for, and closes runs whose recorders died.
    fn open(which: &Which) -> Result<Self, Failure> {
        let state = state::directory()?;
        let session = match &which.session {
            Some(name) => find_session(&state, name).map_err(failure)?,
            None => last_session(&state)?,
        };
        // A log that can't be written can be shown still.
        drop(Store::settle(&session.dir));
        let store = Store::open_read_only(&session.dir).map_err(failure)?;
        Ok(Self { id: session.id, store })
    }

    /// Returns the run that is asked for; none if all are.
    fn run(&self, which: &Which) -> Result<Option<RunRow>, Failure> {
        match which.run.as_deref() {
            Some("all") => Ok(None),
            Some(run) => self.store.run(&RunId(run.into())).map(Some).map_err(failure),
            None => self.store.last_run().map_err(failure)?.map(Some).ok_or_else(|| {
                Failure::new(Code::SessionNotFound, format!("session `{}` has no run", self.id))
            }),
        }
    }
}

fn last_session(state: &Path) -> Result<SessionDir, Failure> {
    let sessions = session_dirs(state).map_err(failure)?;
    let with_run = |session: &&SessionDir| {
        Store::open_read_only(&session.dir)
            .and_then(|store| store.last_run())
            .is_ok_and(|run| run.is_some())
    };
    sessions.iter().find(with_run).cloned().ok_or_else(|| {
        Failure::new(
            Code::SessionNotFound,
            format!("no run is recorded in `{}`", sanitise_bytes(state.as_os_str().as_bytes())),
        )
        .help("`stockade run -- COMMAND` records one")
    })
}

/// What can end a listing early: the reader is gone (no error), or the log can't be read.
enum Stop {
    Gone,
    Failed(Failure),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::Gone
        } else {
            Self::Failed(Failure::new(Code::RunnerFailed, "can't write the output").because(error))
        }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(failure(error))
    }
}

/// Shows the log.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.command {
        Some(Command::Verify(verify)) => verify::run(verify),
        Some(Command::Report(report)) => report::run(report),
        Some(Command::Export(export)) => export::run(export),
        Some(Command::Prune(prune)) => prune::run(prune),
        None => {
            let mut log = Log::open(&args.which)?;
            let interactive = !args.follow && !args.json;
            let mut out = Output::new(args.style.color, interactive && !args.style.no_pager);
            let done = show(args, &mut log, &mut out);
            out.finish();
            match done {
                Ok(()) | Err(Stop::Gone) => Ok(ExitCode::SUCCESS),
                Err(Stop::Failed(failure)) => Err(failure),
            }
        }
    }
}

fn show(args: &Args, log: &mut Log, out: &mut Output) -> Result<(), Stop> {
    if let Some(sql) = &args.sql {
        return show_sql(&mut log.store, sql, args.json, out);
    }
    if args.runs {
        return summary::runs(log, args.json, out);
    }
    let run = log.run(&args.which)?;
    if args.tree {
        let run = one_run(log, run)?;
        return tree::show(log, &run, args.json, out);
    }
    if args.summary {
        let run = one_run(log, run)?;
        return summary::show(log, &run, args.json, out);
    }
    let filter = args.filter.filter(run.as_ref().map(|run| run.info.id.clone()));
    if args.follow {
        return follow(log, &filter, args.json, out);
    }
    if let Some(run) = run.as_ref().filter(|_| !args.json && !args.filter.is_given()) {
        summary::show(log, run, false, out)?;
        writeln!(out)?;
    }
    let mut result = Ok(());
    let several = run.is_none();
    log.store.for_each(&filter, |stored| {
        let written = if args.json {
            writeln!(out, "{}", to_json(&log.id, &stored))
        } else {
            events::line(out, &stored, several)
        };
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                result = Err(error.into());
                ControlFlow::Break(())
            }
        }
    })?;
    result
}

fn one_run(log: &Log, run: Option<RunRow>) -> Result<RunRow, Failure> {
    match run {
        Some(run) => Ok(run),
        None => log.run(&Which { session: None, run: None }).and_then(|last| {
            last.ok_or_else(|| Failure::new(Code::SessionNotFound, "the session has no run"))
        }),
    }
}

/// Shows what is there and then what comes, until the run is over or the reader is gone.
fn follow(log: &Log, filter: &Filter, json: bool, out: &mut Output) -> Result<(), Stop> {
    let mut follow = log.store.follow(filter.clone(), 0);
    loop {
        let over = match &filter.run {
            Some(run) => {
                let run = log.store.run(run)?;
                run.end.is_some() || !run.live
            }
            None => false,
        };
        let events = follow.wait(Duration::from_millis(500))?;
        for stored in &events {
            if json {
                writeln!(out, "{}", to_json(&log.id, stored))?;
            } else {
                events::line(out, stored, filter.run.is_none())?;
            }
        }
        out.flush()?;
        // Whether it was over is asked before the last look, so that nothing is left unseen.
        if over && events.is_empty() {
            return Ok(());
        }
    }
}

fn show_sql(store: &mut Store, sql: &str, json: bool, out: &mut Output) -> Result<(), Stop> {
    let names = std::cell::RefCell::new(Vec::new());
    let out = std::cell::RefCell::new(out);
    let result = std::cell::RefCell::new(Ok(()));
    store.sql(
        sql,
        |columns| {
            if !json {
                *result.borrow_mut() = writeln!(out.borrow_mut(), "{}", columns.join("\t"));
            }
            *names.borrow_mut() = columns;
        },
        |row| {
            let line = if json {
                let names = names.borrow().clone();
                let object: serde_json::Map<_, _> =
                    names.into_iter().zip(row.iter().map(json_value)).collect();
                serde_json::Value::Object(object).to_string()
            } else {
                row.iter().map(text_value).collect::<Vec<_>>().join("\t")
            };
            let mut result = result.borrow_mut();
            if result.is_ok() {
                *result = writeln!(out.borrow_mut(), "{line}");
            }
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        },
    )?;
    Ok(result.into_inner()?)
}

fn json_value(value: &SqlValue) -> serde_json::Value {
    match value {
        SqlValue::Null => serde_json::Value::Null,
        SqlValue::Integer(value) => (*value).into(),
        SqlValue::Real(value) => (*value).into(),
        SqlValue::Text(bytes) | SqlValue::Blob(bytes) => String::from_utf8_lossy(bytes).into(),
    }
}

fn text_value(value: &SqlValue) -> String {
    match value {
        SqlValue::Null => String::new(),
        SqlValue::Integer(value) => value.to_string(),
        SqlValue::Real(value) => value.to_string(),
        SqlValue::Text(bytes) | SqlValue::Blob(bytes) => sanitise_bytes(bytes),
    }
}

/// Shows a path so that its name can't write to the terminal.
pub(in crate::cli) fn path(path: &Path) -> String {
    sanitise_bytes(path.as_os_str().as_bytes())
}

/// Shows a program by its name.
pub(in crate::cli) fn program(exe: &Path) -> String {
    match exe.file_name() {
        Some(name) => sanitise_bytes(name.as_bytes()),
        None => "?".to_owned(),
    }
}

pub(in crate::cli) fn command(argv: &[std::ffi::OsString]) -> String {
    stockade_policy::text::show_command(argv.iter().map(|arg| OsStr::as_bytes(arg)))
}

/// Shows bytes in units that people read.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut unit = 0;
    let mut whole = bytes;
    let mut tenths = 0;
    while whole >= 1000 && unit + 1 < UNITS.len() {
        tenths = whole % 1000 / 100;
        whole /= 1000;
        unit += 1;
    }
    if unit == 0 || whole >= 10 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole}.{tenths} {}", UNITS[unit])
    }
}

/// Returns the local time of day, or the day with it when that isn't today.
pub(in crate::cli) fn clock(time: Time) -> String {
    let Ok(stamp) = jiff::Timestamp::from_nanosecond(i128::from(time.0)) else {
        return "?".to_owned();
    };
    stamp.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%H:%M:%S.%3f").to_string()
}

fn day(time: Time) -> String {
    let Ok(stamp) = jiff::Timestamp::from_nanosecond(i128::from(time.0)) else {
        return "?".to_owned();
    };
    stamp.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Returns how long something took.
pub(in crate::cli) fn lasted(from: Time, to: Time) -> String {
    let nanos = u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0);
    let millis = nanos / 1_000_000;
    match millis {
        0..1000 => format!("{millis} ms"),
        1000..60_000 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        _ => format!("{} min {} s", millis / 60_000, millis / 1000 % 60),
    }
}

/// Returns how long ago something was.
pub(super) fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        let rows = [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1950, "1.9 kB")];
        for (bytes, text) in rows {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(12_345_678), "12 MB");
        assert_eq!(size(u64::MAX), "18446744 TB");
        let rows = [(5, "5 ms"), (1234, "1.2 s"), (83_000, "1 min 23 s")];
        for (millis, text) in rows {
            assert_eq!(lasted(Time(0), Time(millis * 1_000_000)), text);
        }
    }

    #[test]
    fn since_takes_times_and_lengths() {
        assert_eq!(since("1970-01-01T00:00:01Z").unwrap(), Time(1_000_000_000));
        let then = since("5m").unwrap();
        let ago = Time::now().0 - then.0;
        assert!((300_000_000_000..330_000_000_000).contains(&ago), "{ago}");
        assert!(since("yesterday").is_err());
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let name = Path::new(OsStr::from_bytes(b"/w/\x1b[2J\n\xff"));
        assert_eq!(path(name), "/w/\\x1b[2J\\n\\xff");
    }
}
