//! Events for this machine's own journal (its native protocol) or syslog daemon (RFC 3164, as the C library writes it).
//!
//! Both are one datagram an event on a Unix socket. The crates for them send to the usual place alone, and through a
//! process-wide subscriber whose fields are fixed when it is compiled; here each event has its own fields, a batch is
//! acknowledged before the next, and the socket is chosen.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stockade_observe::{Op, Outcome, SessionId, Stored, Time};
use stockade_policy::text::sanitise_bytes;

use crate::errno;

/// Where the journal listens.
pub const JOURNAL: &str = "/run/systemd/journal/socket";
/// Where a syslog daemon listens.
pub const SYSLOG: &str = "/dev/log";

/// The longest message for a syslog daemon: most cut longer ones, and JSON that is cut says nothing.
const LONGEST: usize = 8000;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Fields, for journald.
    Journal,
    /// A line, for a syslog daemon.
    Syslog,
}

/// A daemon of this machine's.
#[derive(Debug)]
pub struct Daemon {
    format: Format,
    path: PathBuf,
    socket: Option<UnixDatagram>,
}

impl Daemon {
    /// Prepares to send to the socket at `path`; nothing is connected yet.
    #[must_use]
    pub fn new(format: Format, path: &Path) -> Self {
        Self { format, path: path.to_owned(), socket: None }
    }

    /// Sends events, again and again until they are taken, for at most `patience` (`None`: for ever). `waiting` hears of
    /// each attempt that failed, and how long is waited now. Returns how many were sent when patience ended.
    ///
    /// # Errors
    /// Patience is at its end: the number that were taken, and why the next wasn't.
    pub fn deliver(
        &mut self,
        session: &SessionId,
        events: &[Stored],
        patience: Option<Duration>,
        mut waiting: impl FnMut(&str, Duration),
    ) -> Result<(), (usize, String)> {
        for (sent, event) in events.iter().enumerate() {
            let message = match self.format {
                Format::Journal => fields(session, event),
                Format::Syslog => line(session, event),
            };
            let start = Instant::now();
            let mut pause = FIRST_PAUSE;
            while let Err(error) = self.send(&message) {
                let why = format!("{}: {error}", self.path.display());
                if patience.is_some_and(|patience| start.elapsed() + pause > patience) {
                    return Err((sent, why));
                }
                waiting(&why, pause);
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        Ok(())
    }

    /// Sends one message. A receiver that was started anew has another socket: it is connected to again.
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if self.socket.is_none() {
            let socket = UnixDatagram::unbound()?;
            socket.connect(&self.path)?;
            // A receiver that has stopped reading is waited for no longer than one that is away.
            socket.set_write_timeout(Some(LONGEST_PAUSE))?;
            self.socket = Some(socket);
        }
        let sent = match &self.socket {
            Some(socket) => socket.send(message),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        match sent {
            Ok(length) if length == message.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => {
                self.socket = None;
                Err(error)
            }
        }
    }
}

/// The priorities of syslog.
const fn priority(event: &stockade_observe::Event) -> u8 {
    match (&event.outcome, event.op) {
        (Outcome::Denied { .. }, _) | (_, Op::Conflict | Op::Gap) => 4,
        (Outcome::Ok | Outcome::Error { .. }, _) => 6,
    }
}

/// Says what happened in one line that acts on no terminal.
fn sentence(stored: &Stored) -> String {
    let event = &stored.event;
    let shown = |path: &Path| sanitise_bytes(path.as_os_str().as_bytes());
    let mut text = format!("{} {}", event.op, shown(&event.path));
    if let Some(second) = &event.path2 {
        text.push_str(&format!(" -> {}", shown(second)));
    }
    let program = event.process.exe.file_name().map(|name| sanitise_bytes(name.as_bytes()));
    let program = program.unwrap_or_else(|| "?".to_owned());
    text.push_str(&format!(" by {program}[{}]", event.process.pid));
    match &event.outcome {
        Outcome::Ok => {}
        Outcome::Error { errno } => text.push_str(&format!(": {}", errno::name(*errno))),
        Outcome::Denied { denial, errno } => {
            text.push_str(&format!(": refused, {} ({})", denial.rule(), errno::name(*errno)));
        }
    }
    text
}

/// Writes the journal's fields: `NAME=value`, or the name, the length and the bytes where the value has a line break.
fn fields(session: &SessionId, stored: &Stored) -> Vec<u8> {
    let event = &stored.event;
    let mut message = Vec::new();
    let mut field = |name: &str, value: &[u8]| {
        message.extend_from_slice(name.as_bytes());
        if value.contains(&b'\n') {
            message.push(b'\n');
            message.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            message.push(b'=');
        }
        message.extend_from_slice(value);
        message.push(b'\n');
    };
    field("MESSAGE", sentence(stored).as_bytes());
    field("PRIORITY", priority(event).to_string().as_bytes());
    field("SYSLOG_IDENTIFIER", b"stockade");
    field("STOCKADE_SESSION", session.0.as_bytes());
    field("STOCKADE_RUN", stored.run.0.as_bytes());
    field("STOCKADE_SEQ", stored.seq.to_string().as_bytes());
    field("STOCKADE_TIME", event.time.to_rfc3339().as_bytes());
    field("STOCKADE_OP", event.op.as_str().as_bytes());
    field("STOCKADE_PATH", event.path.as_os_str().as_bytes());
    if let Some(second) = &event.path2 {
        field("STOCKADE_PATH2", second.as_os_str().as_bytes());
    }
    let (outcome, number) = match &event.outcome {
        Outcome::Ok => ("ok", None),
        Outcome::Denied { errno, .. } => ("denied", Some(*errno)),
        Outcome::Error { errno } => ("error", Some(*errno)),
    };
    field("STOCKADE_OUTCOME", outcome.as_bytes());
    if let Some(number) = number {
        field("ERRNO", number.to_string().as_bytes());
    }
    if let Outcome::Denied { denial, .. } = &event.outcome {
        field("STOCKADE_RULE", denial.rule().as_str().as_bytes());
        field("STOCKADE_RULE_SOURCE", denial.source().as_bytes());
    }
    field("STOCKADE_PID", event.process.pid.to_string().as_bytes());
    field("STOCKADE_UID", event.process.uid.to_string().as_bytes());
    field("STOCKADE_EXE", event.process.exe.as_os_str().as_bytes());
    field(
        "STOCKADE_CMDLINE",
        &event
            .process
            .cmdline
            .iter()
            .map(|&byte| if byte == 0 { b' ' } else { byte })
            .collect::<Vec<_>>(),
    );
    if event.count > 1 {
        field("STOCKADE_COUNT", event.count.to_string().as_bytes());
    }
    message
}

/// Writes a line for a syslog daemon: facility `user`, the time here, and the event as `stockade log --json` has it.
fn line(session: &SessionId, stored: &Stored) -> Vec<u8> {
    let priority = 8 + priority(&stored.event);
    let head =
        format!("<{priority}>{} stockade[{}]: ", stamp(stored.event.time), std::process::id());
    let json = stockade_observe::to_json(session, stored);
    let text = if head.len() + json.len() <= LONGEST { json } else { sentence(stored) };
    let mut line = head.into_bytes();
    line.extend(text.into_bytes().into_iter().take(LONGEST));
    line
}

fn stamp(time: Time) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(time.0)) {
        Ok(stamp) => stamp
            .to_zoned_datetime(jiff::tz::TimeZone::system())
            .strftime("%b %e %H:%M:%S")
            .to_string(),
        Err(_) => "Jan  1 00:00:00".to_owned(),
    }
}
