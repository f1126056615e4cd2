//! `stockade session list`, `show` and `events`.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value, json};
use stockade_observe::{SessionDir, Store, StoredSessionEvent, find_session, session_dirs};
use stockade_policy::text::{Bytes, sanitise, sanitise_bytes, show_command};
use stockade_policy::{Mode, SessionEvent, SessionState};

use crate::cli::log::ago;
use crate::cli::show as print;
use crate::error::{Code, Failure};
use crate::session::failure;

/// List the sessions, the last active one first.
#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// At most so many.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    last: usize,
    /// All of them.
    #[arg(short, long, conflicts_with = "last")]
    all: bool,
    /// Print JSON: one object a line, all sessions.
    #[arg(long)]
    json: bool,
}

/// Show what a session's events add up to.
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The session, by id or name. [default: the last active one]
    session: Option<String>,
    /// As it was after this event.
    #[arg(long, value_name = "EVENT", value_parser = clap::value_parser!(i64).range(1..))]
    at: Option<i64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Show a session's events.
#[derive(Debug, clap::Args)]
pub(super) struct Events {
    /// The session, by id or name. [default: the last active one]
    session: Option<String>,
    /// Print JSON: one event a line.
    #[arg(long)]
    json: bool,
}

/// Opens a session for reading.
fn open(state: &Path, session: Option<&String>) -> Result<(SessionDir, Store), Failure> {
    let session = match session {
        Some(session) => find_session(state, session).map_err(failure)?,
        None => session_dirs(state).map_err(failure)?.into_iter().next().ok_or_else(|| {
            Failure::new(Code::SessionNotFound, "there is no session")
                .help("`stockade session new` makes one")
        })?,
    };
    let store = Store::open_read_only(&session.dir).map_err(failure)?;
    Ok((session, store))
}

fn shown_root(state: &SessionState) -> String {
    sanitise_bytes(state.root().as_os_str().as_bytes())
}

/// Prints the sessions.
pub(super) fn list(state: &Path, args: &List) -> Result<(), Failure> {
    let sessions = session_dirs(state).map_err(failure)?;
    let limit = if args.all || args.json { sessions.len() } else { args.last };
    let mut text = String::new();
    for session in sessions.iter().take(limit) {
        let read = Store::open_read_only(&session.dir).and_then(|store| store.session_state(None));
        let active = jiff::Timestamp::try_from(session.active).ok();
        match read {
            Ok(found) if found.id().is_none() => {}
            Ok(found) if args.json => {
                let mut object = self::state(&session.id.0, &found);
                if let (Some(map), Some(active)) = (object.as_object_mut(), active) {
                    map.insert("active_at".to_owned(), Value::from(active.to_string()));
                }
                // Writing to a String can't fail.
                let _infallible = writeln!(text, "{object}");
            }
            Ok(found) => {
                let _infallible = writeln!(
                    text,
                    "{:13}  {:8}  {:18}  {:16}  {}",
                    session.id,
                    ago(session.active),
                    found.mode().map_or("default", Mode::as_str),
                    found.name().map_or_else(|| "-".to_owned(), sanitise),
                    shown_root(&found),
                );
            }
            Err(error) => {
                let _infallible = if args.json {
                    let object = json!({ "v": 1, "session": session.id.0, "error": error.chain() });
                    writeln!(text, "{object}")
                } else {
                    writeln!(text, "{:13}  can't be read: {}", session.id, sanitise(&error.chain()))
                };
            }
        }
    }
    if sessions.len() > limit {
        let _infallible = writeln!(text, "and {} more (--all)", sessions.len() - limit);
    }
    print(&text);
    Ok(())
}

/// Returns what a session's events add up to, as JSON.
pub(super) fn state(id: &str, state: &SessionState) -> Value {
    json!({
        "v": 1,
        "session": id,
        "name": state.name(),
        "root": Bytes::from(state.root()),
        "mode": state.mode(),
        "approval": state.approval_event(),
        "preset": state.preset(Mode::COMMAND_LINE_DEFAULT),
        "events": state.events(),
        "active": state.active().iter().map(|(run, active)| json!({
            "run": run,
            "mode": active.mode,
            "source": active.source,
            "terminal": active.terminal,
        })).collect::<Vec<_>>(),
        "pending": state.pending().keys().collect::<Vec<_>>(),
    })
}

/// Prints a session's state.
pub(super) fn show(state: &Path, args: &Show) -> Result<(), Failure> {
    let (session, store) = open(state, args.session.as_ref())?;
    let events = store.session_events().map_err(failure)?;
    if let Some(at) = args.at
        && !events.iter().any(|event| event.seq == at)
    {
        let what = format!("session `{}` has no event {at}", session.id);
        return Err(Failure::new(Code::SessionNotFound, what)
            .help(format!("`stockade session events {}` shows those it has", session.id)));
    }
    let found = store.session_state(args.at).map_err(failure)?;
    if args.json {
        print(&format!("{}\n", self::state(&session.id.0, &found)));
        return Ok(());
    }
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        // Writing to a String can't fail.
        let _infallible = writeln!(text, "{name:9} {value}");
    };
    row("session", session.id.to_string());
    row("name", found.name().map_or_else(|| "-".to_owned(), sanitise));
    row("root", shown_root(&found));
    let mode = found.mode().map_or("the deployment's default", Mode::as_str);
    row("mode", mode.to_owned());
    row("approval", found.approval().to_string());
    row("preset", found.preset(Mode::COMMAND_LINE_DEFAULT).to_owned());
    row("events", found.events().to_string());
    for (run, active) in found.active() {
        let what = if active.terminal { "terminal" } else { "run" };
        row("active", format!("{what} {run} ({})", active.mode));
    }
    for (request, escalation) in found.pending() {
        row("asked", format!("{request}: {} to {}", escalation.from(), escalation.to()));
    }
    print(&text);
    Ok(())
}

/// Prints a session's events.
pub(super) fn events(state: &Path, args: &Events) -> Result<(), Failure> {
    let (_, store) = open(state, args.session.as_ref())?;
    let mut text = String::new();
    for stored in store.session_events().map_err(failure)? {
        // Writing to a String can't fail.
        let _infallible = if args.json {
            writeln!(text, "{}", event(&stored)?)
        } else {
            let StoredSessionEvent { seq, time, event } = &stored;
            writeln!(text, "{seq:>5}  {}  {}", time.to_rfc3339(), line(event))
        };
    }
    print(&text);
    Ok(())
}

/// Returns an event as one object: its number, its time, its type, and what it says.
fn event(stored: &StoredSessionEvent) -> Result<Value, Failure> {
    let body = serde_json::to_value(&stored.event)
        .map_err(|error| Failure::new(Code::RunnerFailed, "can't write JSON").because(error))?;
    let mut object = Map::new();
    object.insert("v".to_owned(), Value::from(1));
    object.insert("seq".to_owned(), Value::from(stored.seq));
    object.insert("time".to_owned(), Value::from(stored.time.to_rfc3339()));
    if let Value::Object(body) = body {
        object.extend(body);
    }
    Ok(Value::Object(object))
}

/// Returns an event in words.
fn line(event: &SessionEvent) -> String {
    let command = |argv: &[Bytes]| show_command(argv.iter().map(Bytes::as_slice));
    let kind = sanitise(event.kind());
    let detail = match event {
        SessionEvent::Created { root, name, .. } => {
            let root = sanitise_bytes(root.as_slice());
            name.as_ref().map_or_else(|| root.clone(), |name| format!("{} {root}", sanitise(name)))
        }
        SessionEvent::Preset { preset } => sanitise(preset),
        SessionEvent::Mode { mode, .. } => mode.to_string(),
        SessionEvent::Approval { policy, .. } => policy.to_string(),
        SessionEvent::Requested { request, escalation, argv } => format!(
            "{} {} to {}, `{}`: {}",
            sanitise(request),
            escalation.from(),
            escalation.to(),
            command(argv),
            sanitise(escalation.justification())
        ),
        SessionEvent::Decided { request, outcome, reason } => {
            let reason = reason.as_deref().map(|reason| format!(": {}", sanitise(reason)));
            format!("{} {}{}", sanitise(request), outcome.as_str(), reason.unwrap_or_default())
        }
        SessionEvent::Started { run, mode, argv, terminal, .. } => format!(
            "{} {mode}{} {}",
            sanitise(run),
            if *terminal { " terminal" } else { "" },
            command(argv)
        ),
        SessionEvent::Finished { run, outcome, exit_code, signal } => {
            let code = exit_code.map(|code| format!(" {code}"));
            let signal = signal.map(|signal| format!(" signal {signal}"));
            format!(
                "{} {}{}{}",
                sanitise(run),
                sanitise(outcome),
                code.unwrap_or_default(),
                signal.unwrap_or_default()
            )
        }
        SessionEvent::Other(_) => String::new(),
    };
    format!("{kind:20}  {detail}").trim_end().to_owned()
}
