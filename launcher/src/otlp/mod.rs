//! Events as OpenTelemetry logs, sent over OTLP (contract O4).
//!
//! The session's log is the queue: what a receiver has acknowledged is kept as one number beside it ([`Cursor`]), so
//! nothing is lost while the receiver is away or this process dies, and nothing acknowledged is sent again.
//!
//! Sources: the OTLP specification 1.x (retryable answers, partial success) and the semantic conventions for `process.*`,
//! `file.*` and `error.type`.

mod grpc;
mod http;
mod record;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use stockade_observe::{SessionId, Stored};

pub use record::{attribute, request};

/// How the receiver is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `http/protobuf`, port 4318 by convention.
    Http,
    /// gRPC, port 4317 by convention.
    Grpc,
}

/// A receiver.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its base address, `http://` or `https://`; over HTTP `/v1/logs` is added unless it's there.
    pub endpoint: String,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Sent with each request.
    pub headers: Vec<(String, String)>,
    /// Each request is given so long.
    pub timeout: Duration,
}

/// Why a request wasn't taken.
#[derive(Debug)]
pub enum Trouble {
    /// It may be taken later; the receiver may have said when.
    Again {
        /// What went wrong.
        why: String,
        /// Wait so long first.
        after: Option<Duration>,
    },
    /// Sending it again wouldn't help.
    Never(String),
}

/// What came of the records of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// How many the receiver turned down for good.
    pub rejected: u64,
    /// What it said about that.
    pub message: String,
}

impl From<ExportLogsServiceResponse> for Taken {
    fn from(response: ExportLogsServiceResponse) -> Self {
        let partial = response.partial_success.unwrap_or_default();
        Self {
            rejected: u64::try_from(partial.rejected_log_records).unwrap_or(0),
            message: partial.error_message,
        }
    }
}

enum Client {
    Http(http::Client),
    Grpc(Box<grpc::Client>),
}

/// Sends events to a receiver.
pub struct Exporter {
    client: Client,
    resource: Vec<(String, String)>,
}

impl Exporter {
    /// Prepares to send to `target`; nothing is connected yet. `resource` says who sends.
    ///
    /// # Errors
    /// The address or a header can't be used.
    pub fn new(target: &Target, resource: Vec<(String, String)>) -> Result<Self, String> {
        let client = match target.protocol {
            Protocol::Http => Client::Http(http::Client::new(target)?),
            Protocol::Grpc => Client::Grpc(Box::new(grpc::Client::new(target)?)),
        };
        Ok(Self { client, resource })
    }

    /// Sends some events of a session, once.
    ///
    /// # Errors
    /// They weren't taken.
    pub fn send(&mut self, session: &SessionId, events: &[Stored]) -> Result<Taken, Trouble> {
        self.send_request(request(session, events, &self.resource))
    }

    fn send_request(&mut self, request: ExportLogsServiceRequest) -> Result<Taken, Trouble> {
        match &mut self.client {
            Client::Http(client) => client.send(&request),
            Client::Grpc(client) => client.send(request),
        }
    }

    /// Sends some events of a session, again and again until they are taken, for at most `patience` (`None`: for ever).
    /// `waiting` hears of each attempt that failed, and how long is waited now.
    ///
    /// # Errors
    /// The receiver doesn't want them, or patience is at its end.
    pub fn deliver(
        &mut self,
        session: &SessionId,
        events: &[Stored],
        patience: Option<Duration>,
        mut waiting: impl FnMut(&str, Duration),
    ) -> Result<Taken, String> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let (why, after) = match self.send(session, events) {
                Ok(taken) => return Ok(taken),
                Err(Trouble::Never(why)) => return Err(why),
                Err(Trouble::Again { why, after }) => (why, after),
            };
            let wait = after.unwrap_or(pause).min(LONGEST_PAUSE);
            if patience.is_some_and(|patience| start.elapsed() + wait > patience) {
                return Err(why);
            }
            waiting(&why, wait);
            std::thread::sleep(wait);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("resource", &self.resource).finish_non_exhaustive()
    }
}

/// How far a session's log has been taken by one receiver. One exporter at a time may hold it.
#[derive(Debug)]
pub struct Cursor {
    file: File,
    seq: i64,
}

/// Digits of the number; the file is written in one step of one size.
const DIGITS: usize = 20;

impl Cursor {
    /// Opens the cursor of `endpoint` in a session's directory.
    ///
    /// # Errors
    /// Another exporter holds it ([`io::ErrorKind::WouldBlock`]), it is damaged, or it can't be opened.
    pub fn open(dir: &Path, endpoint: &str) -> io::Result<Self> {
        let name = format!("otlp-{:016x}", digest(endpoint));
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let file = options.open(dir.join(name))?;
        file.try_lock()?;
        let mut text = [0; DIGITS];
        let seq = match file.read_at(&mut text, 0)? {
            0 => 0,
            _ => std::str::from_utf8(&text)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a number"))?,
        };
        Ok(Self { file, seq })
    }

    /// Returns the number of the last event that was taken, 0 at first.
    #[must_use]
    pub const fn seq(&self) -> i64 {
        self.seq
    }

    /// Says that everything up to event `seq` was taken.
    ///
    /// # Errors
    /// It can't be written.
    pub fn advance(&mut self, seq: i64) -> io::Result<()> {
        self.file.write_all_at(format!("{seq:0DIGITS$}").as_bytes(), 0)?;
        self.seq = seq;
        Ok(())
    }
}

/// FNV-1a: tells the cursors of different receivers apart.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_kept_and_held_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut cursor = Cursor::open(dir.path(), "http://a").unwrap();
        assert_eq!(cursor.seq(), 0);
        cursor.advance(1_234_567).unwrap();
        let held = Cursor::open(dir.path(), "http://a").unwrap_err();
        assert_eq!(held.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(Cursor::open(dir.path(), "http://b").unwrap().seq(), 0);
        drop(cursor);
        let mut cursor = Cursor::open(dir.path(), "http://a").unwrap();
        assert_eq!(cursor.seq(), 1_234_567);
        cursor.advance(i64::MAX).unwrap();
        drop(cursor);
        assert_eq!(Cursor::open(dir.path(), "http://a").unwrap().seq(), i64::MAX);
    }
}
