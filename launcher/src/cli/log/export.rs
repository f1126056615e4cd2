//! `stockade log export`: events to an OpenTelemetry receiver, to the journal, or to a syslog daemon.

use std::collections::HashMap;
use std::env;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::json;
use stockade_observe::{Filter, SessionDir, SessionId, Store, Stored, find_session, session_dirs};
use stockade_policy::text::sanitise;

use super::{failure, last_session, path};
use crate::cli::policy_args::duration;
use crate::cli::{complain, show};
use crate::error::{Code, Failure};
use crate::journal::{Daemon, Format, JOURNAL, SYSLOG};
use crate::otlp::{Cursor, Exporter, Protocol, Taken, Target};
use crate::state;

/// Send events to an OpenTelemetry receiver (OTLP logs), to the journal or to a syslog daemon, each one once.
///
/// What the receiver has taken is remembered beside the log, for each receiver: the next export goes on from there, and
/// a receiver that is away is waited for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session, by id or name. [default: the last active one]
    #[arg(value_name = "SESSION", conflicts_with = "all")]
    session: Option<String>,
    /// Every session, also those that begin later.
    #[arg(long)]
    all: bool,
    /// The receiver. Over HTTP, /v1/logs is added unless it's there.
    #[arg(
        long,
        value_name = "URL",
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        required_unless_present_any = ["journald", "syslog"]
    )]
    otlp: Option<String>,
    /// Send to systemd's journal instead, or to whoever listens at this socket as it does.
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true, default_missing_value = JOURNAL)]
    journald: Option<PathBuf>,
    /// Send to the syslog daemon instead, or to whoever listens at this socket as it does.
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true, default_missing_value = SYSLOG, conflicts_with = "journald")]
    syslog: Option<PathBuf>,
    /// How to speak to it. [default: grpc where the port is 4317, else http]
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    protocol: Option<Wire>,
    /// Sent with each request, such as `authorization=Bearer …`; also from $OTEL_EXPORTER_OTLP_HEADERS.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    header: Vec<(String, String)>,
    /// Go on with what comes, until interrupted.
    #[arg(short, long)]
    follow: bool,
    /// Give up on a receiver that is away for so long; with --follow it is waited for for ever.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    patience: Duration,
    /// Print how many were sent as one JSON object.
    #[arg(long)]
    json: bool,
    /// Say nothing but errors.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Wire {
    /// HTTP, with protocol buffers.
    #[value(alias = "http/protobuf")]
    Http,
    /// gRPC.
    Grpc,
}

/// Events in one request.
const BATCH: usize = 512;
/// How often new events and sessions are looked for.
const LOOK: Duration = Duration::from_millis(500);
/// How long a request may take.
const REQUEST: Duration = Duration::from_secs(10);

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        Some(_) | None => Err("expected NAME=VALUE".to_owned()),
    }
}

/// A session that is being exported.
struct Source {
    id: SessionId,
    dir: PathBuf,
    cursor: Cursor,
    /// When its log was last written, as far as it was looked at.
    seen: Option<SystemTime>,
}

#[derive(Default)]
struct Total {
    sent: u64,
    rejected: u64,
    message: String,
}

/// Who is sent to.
enum Receiver {
    Otlp(Box<Exporter>),
    Daemon(Daemon),
}

impl Receiver {
    /// Makes the receiver that is asked for, and what it is called.
    fn new(args: &Args) -> Result<(Self, String), Failure> {
        let daemon = |format, path: &PathBuf| {
            (Self::Daemon(Daemon::new(format, path)), path.to_string_lossy().into_owned())
        };
        if let Some(path) = &args.journald {
            return Ok(daemon(Format::Journal, path));
        }
        if let Some(path) = &args.syslog {
            return Ok(daemon(Format::Syslog, path));
        }
        let endpoint = args.otlp.clone().unwrap_or_default();
        let grpc = endpoint.trim_end_matches('/').ends_with(":4317");
        let protocol = match (args.protocol, grpc) {
            (Some(Wire::Grpc), _) | (None, true) => Protocol::Grpc,
            (Some(Wire::Http), _) | (None, false) => Protocol::Http,
        };
        let mut headers = listed("OTEL_EXPORTER_OTLP_HEADERS")?;
        headers.extend(args.header.iter().cloned());
        let target = Target { endpoint: endpoint.clone(), protocol, headers, timeout: REQUEST };
        let invalid = |why: String| Failure::new(Code::ConfigInvalid, sanitise(&why));
        let exporter = Exporter::new(&target, resource()?).map_err(invalid)?;
        Ok((Self::Otlp(Box::new(exporter)), endpoint))
    }

    /// Sends a batch. An error has the number of events that were taken before it.
    fn deliver(
        &mut self,
        session: &SessionId,
        batch: &[Stored],
        patience: Option<Duration>,
        waiting: impl FnMut(&str, Duration),
    ) -> Result<Taken, (usize, String)> {
        match self {
            Self::Otlp(exporter) => {
                exporter.deliver(session, batch, patience, waiting).map_err(|why| (0, why))
            }
            Self::Daemon(daemon) => {
                daemon.deliver(session, batch, patience, waiting).map(|()| Taken::default())
            }
        }
    }
}

/// Sends them.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (mut receiver, called) = Receiver::new(args)?;
    let state = state::directory()?;
    let mut sources: HashMap<SessionId, Source> = HashMap::new();
    let mut total = Total::default();
    loop {
        let mut news = false;
        for session in sessions(args, &state)? {
            let source = match sources.remove(&session.id) {
                Some(source) => source,
                None => Source::open(&session, &called)?,
            };
            let source = sources.entry(session.id.clone()).or_insert(source);
            if source.seen != Some(session.active) {
                news |= source.send(args, &mut receiver, &called, &mut total)?;
                source.seen = Some(session.active);
            }
        }
        if !args.follow {
            break;
        }
        if !news {
            std::thread::sleep(LOOK);
        }
    }
    if args.json {
        show(&format!("{}\n", json!({ "v": 1, "sent": total.sent, "rejected": total.rejected })));
    } else if !args.quiet {
        complain(&format!("stockade: {} events sent to {}", total.sent, sanitise(&called)));
    }
    if total.rejected > 0 {
        let what = format!("the receiver turned {} events down", total.rejected);
        return Err(Failure::new(Code::RunnerFailed, what).because(sanitise(&total.message)));
    }
    Ok(ExitCode::SUCCESS)
}

fn sessions(args: &Args, state: &std::path::Path) -> Result<Vec<SessionDir>, Failure> {
    if args.all {
        return session_dirs(state).map_err(failure);
    }
    let session = match &args.session {
        Some(name) => find_session(state, name).map_err(failure)?,
        None => last_session(state)?,
    };
    Ok(vec![session])
}

impl Source {
    fn open(session: &SessionDir, endpoint: &str) -> Result<Self, Failure> {
        let cursor = Cursor::open(&session.dir, endpoint).map_err(|error| {
            let what = if error.kind() == io::ErrorKind::WouldBlock {
                format!("session `{}` is being exported to this receiver already", session.id)
            } else {
                format!("can't remember what of session `{}` was exported", session.id)
            };
            Failure::new(Code::SessionBusy, what).because(error)
        })?;
        Ok(Self { id: session.id.clone(), dir: session.dir.clone(), cursor, seen: None })
    }

    /// Sends what there is, and tells whether there was anything.
    fn send(
        &mut self,
        args: &Args,
        receiver: &mut Receiver,
        called: &str,
        total: &mut Total,
    ) -> Result<bool, Failure> {
        let store = Store::open_read_only(&self.dir).map_err(failure)?;
        let mut follow = store.follow(Filter::default(), self.cursor.seq());
        let patience = (!args.follow).then_some(args.patience);
        let mut any = false;
        loop {
            let events = follow.wait(Duration::ZERO).map_err(failure)?;
            if events.is_empty() {
                return Ok(any);
            }
            any = true;
            for batch in events.chunks(BATCH) {
                let waiting = |why: &str, pause: Duration| {
                    if !args.quiet {
                        let next = pause.as_secs_f32();
                        complain(&format!("stockade: {}; again in {next:.1} s", sanitise(why)));
                    }
                };
                let taken = receiver.deliver(&self.id, batch, patience, waiting);
                let (taken, count) = match taken {
                    Ok(taken) => (Ok(taken), batch.len()),
                    Err((count, why)) => (Err(why), count),
                };
                let last = batch.get(..count).and_then(<[Stored]>::last);
                let last = last.map_or(self.cursor.seq(), |event| event.seq);
                self.cursor.advance(last).map_err(|error| {
                    let file = path(&self.dir);
                    Failure::new(Code::RunnerFailed, format!("can't write in `{file}`"))
                        .because(error)
                })?;
                let count = u64::try_from(count).unwrap_or(u64::MAX);
                let taken = taken.map_err(|why| {
                    let sent = total.sent.saturating_add(count);
                    let what = format!("{} wasn't reached or didn't take it", sanitise(called));
                    Failure::new(Code::RunnerFailed, what).because(sanitise(&why)).help(format!(
                        "{sent} events were sent; the same command goes on after them"
                    ))
                })?;
                total.sent += count.saturating_sub(taken.rejected);
                total.rejected += taken.rejected;
                if !taken.message.is_empty() {
                    total.message = taken.message;
                }
            }
        }
    }
}

/// Who sends: `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` as everywhere, and this host.
fn resource() -> Result<Vec<(String, String)>, Failure> {
    let uname = rustix::system::uname();
    let mut all = vec![
        ("service.name".to_owned(), "stockade".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("host.name".to_owned(), uname.nodename().to_string_lossy().into_owned()),
        ("host.arch".to_owned(), arch(&uname.machine().to_string_lossy())),
        ("os.type".to_owned(), "linux".to_owned()),
        ("os.version".to_owned(), uname.release().to_string_lossy().into_owned()),
    ];
    let mut given = listed("OTEL_RESOURCE_ATTRIBUTES")?;
    given.extend(env::var("OTEL_SERVICE_NAME").ok().map(|name| ("service.name".to_owned(), name)));
    for (key, value) in given {
        all.retain(|(known, _)| *known != key);
        all.push((key, value));
    }
    Ok(all)
}

/// The convention's names of processors.
fn arch(machine: &str) -> String {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
    .to_owned()
}

/// Reads a variable of pairs, `a=b,c=d`, percent-encoded (W3C Baggage).
fn listed(variable: &str) -> Result<Vec<(String, String)>, Failure> {
    let Ok(text) = env::var(variable) else { return Ok(Vec::new()) };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| pair(part).map(|(name, value)| (name, decoded(&value))))
        .collect::<Result<_, _>>()
        .map_err(|why| Failure::new(Code::ConfigInvalid, format!("{variable}: {why}")))
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_decoded() {
        assert_eq!(pair("a = b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert!(pair("a").is_err() && pair("=b").is_err());
        assert_eq!(decoded("Bearer%20x%2"), "Bearer x%2");
        assert_eq!(decoded("%e4%B8%96%zz"), "\u{4e16}%zz");
    }
}
