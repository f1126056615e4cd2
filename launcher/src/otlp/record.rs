//! An event as a log record: the semantic conventions' names where there is one, `stockade.*` elsewhere.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use stockade_observe::{Event, Op, Outcome, SessionId, Stored, Time};

use stockade_policy::text::sanitise_bytes;

use crate::errno;

/// Makes one request of some events of a session.
#[must_use]
pub fn request(
    session: &SessionId,
    events: &[Stored],
    resource: &[(String, String)],
) -> ExportLogsServiceRequest {
    let resource = Resource {
        attributes: resource.iter().map(|(key, value)| attribute(key, value.as_str())).collect(),
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "stockade".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let log_records = events.iter().map(|event| record(session, event)).collect();
    let scope_logs = vec![ScopeLogs { scope: Some(scope), log_records, ..ScopeLogs::default() }];
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource),
            scope_logs,
            ..ResourceLogs::default()
        }],
    }
}

/// Makes one attribute.
#[must_use]
pub fn attribute(key: &str, value: impl Into<Attribute>) -> KeyValue {
    let value = AnyValue { value: Some(value.into().0) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// The value of an attribute.
#[derive(Debug)]
pub struct Attribute(Value);

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self(Value::StringValue(text.to_owned()))
    }
}

impl From<String> for Attribute {
    fn from(text: String) -> Self {
        Self(Value::StringValue(text))
    }
}

impl From<u32> for Attribute {
    fn from(number: u32) -> Self {
        Self(Value::IntValue(number.into()))
    }
}

impl From<i64> for Attribute {
    fn from(number: i64) -> Self {
        Self(Value::IntValue(number))
    }
}

impl From<u64> for Attribute {
    /// The protocol's numbers have a sign; a greater one is its greatest.
    fn from(number: u64) -> Self {
        Self(Value::IntValue(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

/// Bytes are text where they are UTF-8, and bytes elsewhere: nothing is lost.
impl From<&[u8]> for Attribute {
    fn from(bytes: &[u8]) -> Self {
        Self(match std::str::from_utf8(bytes) {
            Ok(text) => Value::StringValue(text.to_owned()),
            Err(_) => Value::BytesValue(bytes.to_vec()),
        })
    }
}

impl From<&Path> for Attribute {
    fn from(path: &Path) -> Self {
        path.as_os_str().as_bytes().into()
    }
}

impl FromIterator<Attribute> for Attribute {
    fn from_iter<I: IntoIterator<Item = Self>>(all: I) -> Self {
        let values = all.into_iter().map(|one| AnyValue { value: Some(one.0) }).collect();
        Self(Value::ArrayValue(ArrayValue { values }))
    }
}

fn record(session: &SessionId, stored: &Stored) -> LogRecord {
    let event = &stored.event;
    let (number, text) = severity(event);
    let time = u64::try_from(event.time.0).unwrap_or(0);
    LogRecord {
        time_unix_nano: time,
        observed_time_unix_nano: time,
        severity_number: number.into(),
        severity_text: text.to_owned(),
        event_name: format!("stockade.{}", event.op),
        body: Some(AnyValue { value: Some(Value::StringValue(body(event))) }),
        attributes: attributes(session, stored),
        ..LogRecord::default()
    }
}

/// A refusal, a conflict and a gap are what somebody must look at; an error is what programs try all day.
fn severity(event: &Event) -> (SeverityNumber, &'static str) {
    match (&event.outcome, event.op) {
        (Outcome::Denied { .. }, _) | (_, Op::Conflict | Op::Gap) => (SeverityNumber::Warn, "WARN"),
        (Outcome::Ok | Outcome::Error { .. }, _) => (SeverityNumber::Info, "INFO"),
    }
}

fn body(event: &Event) -> String {
    let outcome = match &event.outcome {
        Outcome::Ok => String::new(),
        Outcome::Denied { denial, .. } => format!(" refused: {}", denial.rule()),
        Outcome::Error { errno } => format!(" failed: {}", errno::name(*errno)),
    };
    format!("{} {}{outcome}", event.op, sanitise_bytes(event.path.as_os_str().as_bytes()))
}

fn attributes(session: &SessionId, stored: &Stored) -> Vec<KeyValue> {
    let Stored { seq, run, event } = stored;
    let process = &event.process;
    let mut all = vec![
        attribute("stockade.session", &*session.0),
        attribute("stockade.run", &*run.0),
        attribute("stockade.seq", *seq),
        attribute("stockade.operation", event.op.as_str()),
        attribute("stockade.outcome", event.outcome.as_str()),
        attribute("stockade.count", event.count),
        attribute("process.pid", process.pid),
        attribute("process.parent_pid", process.ppid),
        attribute("process.user.id", process.uid),
        attribute("process.executable.path", process.exe.as_path()),
        attribute("process.command", &*process.comm),
        attribute("stockade.process.start_ticks", process.start_time),
        attribute("file.path", event.path.as_path()),
    ];
    let mut add = |key: &str, value: Option<Attribute>| {
        all.extend(value.map(|value| attribute(key, value)));
    };
    let name = |path: &Path| path.file_name().map(|name| Attribute::from(name.as_bytes()));
    add("process.executable.name", name(&process.exe));
    let arguments = process.cmdline.strip_suffix(b"\0").unwrap_or(&process.cmdline);
    let arguments = (!arguments.is_empty())
        .then(|| arguments.split(|&byte| byte == 0).map(Attribute::from).collect());
    add("process.command_args", arguments);
    add("file.name", name(&event.path));
    add("file.directory", event.path.parent().map(Attribute::from));
    add("file.extension", event.path.extension().map(|part| part.as_bytes().into()));
    add("file.inode", event.key.map(|key| key.ino.to_string().into()));
    add("stockade.file.key", event.key.map(|key| key.to_string().into()));
    add("stockade.file.path2", event.path2.as_deref().map(Attribute::from));
    add("stockade.bytes_read", event.bytes_read.map(Attribute::from));
    add("stockade.bytes_written", event.bytes_written.map(Attribute::from));
    add("stockade.publication", event.publication.map(|kind| kind.as_str().into()));
    if let Some(version) = event.version_after.or(event.version_before) {
        add("file.size", Some(version.size.into()));
        add("file.modified", Some(Time(version.mtime).to_rfc3339().into()));
        add("file.changed", Some(Time(version.ctime).to_rfc3339().into()));
    }
    match &event.outcome {
        Outcome::Ok => {}
        Outcome::Error { errno } => add("error.type", Some(errno::name(*errno).into())),
        Outcome::Denied { denial, errno } => {
            add("error.type", Some(errno::name(*errno).into()));
            add("stockade.rule", Some(denial.rule().to_string().into()));
            add("stockade.rule_source", Some(denial.source().into()));
        }
    }
    all
}
