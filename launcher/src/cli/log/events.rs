//! One event, one line.

use std::io::{self, Write};

use stockade_observe::{Event, Op, Outcome, Stored, is_change};

use crate::errno;

use super::output::{Look, Output};
use super::{clock, path, program, size};

/// Writes an event as a line; `several` runs are told apart.
pub(super) fn line(out: &mut Output, stored: &Stored, several: bool) -> io::Result<()> {
    let event = &stored.event;
    let time = out.paint(Look::Faint, clock(event.time));
    let run = if several { format!("{} ", stored.run) } else { String::new() };
    let who = format!("{}[{}]", program(&event.process.exe), event.process.pid);
    let who = out.paint(Look::Name, format_args!("{who:<20}"));
    let look = match &event.outcome {
        Outcome::Denied { .. } => Look::Bad,
        Outcome::Error { .. } => Look::Faint,
        Outcome::Ok if is_change(event) => Look::Change,
        Outcome::Ok => Look::Good,
    };
    let op = out.paint(look, format_args!("{:<9}", event.op));
    let mut text = format!("{time} {run}{who} {op} ");
    if event.op == Op::Gap {
        text.push_str(&out.paint(Look::Bad, format_args!("{} events were lost", event.count)));
    } else {
        text.push_str(&path(&event.path));
        if let Some(second) = &event.path2 {
            text.push_str(" -> ");
            text.push_str(&path(second));
        }
        let details = details(event);
        if !details.is_empty() {
            text.push_str("  ");
            text.push_str(&out.paint(Look::Faint, details.join(", ")));
        }
    }
    if let Outcome::Denied { denial, errno } = &event.outcome {
        let why =
            format!("refused: {} ({}), {}", denial.rule(), denial.source(), errno::name(*errno));
        text.push_str("  ");
        text.push_str(&out.paint(Look::Bad, stockade_policy::text::sanitise(&why)));
    }
    writeln!(out, "{text}")
}

fn details(event: &Event) -> Vec<String> {
    let mut details = Vec::new();
    match event.op {
        Op::Read if event.outcome == Outcome::Ok => {
            details.push(event.bytes_read.map_or_else(|| "bytes unknown".to_owned(), size));
        }
        Op::Write if event.outcome == Outcome::Ok => {
            details.push(event.bytes_written.map_or_else(|| "bytes unknown".to_owned(), size));
            if !is_change(event) {
                details.push("unchanged".to_owned());
            }
        }
        Op::Read
        | Op::Write
        | Op::Create
        | Op::Mkdir
        | Op::Mknod
        | Op::Symlink
        | Op::Link
        | Op::Rename
        | Op::Unlink
        | Op::Rmdir
        | Op::Truncate
        | Op::Chmod
        | Op::Chown
        | Op::Utimes
        | Op::Setxattr
        | Op::Removexattr
        | Op::Fallocate
        | Op::Copy
        | Op::Readdir
        | Op::Exec
        | Op::Publish
        | Op::Conflict
        | Op::HostChange
        | Op::Gap => {}
    }
    if let Some(publication) = event.publication
        && is_change(event)
    {
        details.push(publication.as_str().to_owned());
    }
    if let Outcome::Error { errno } = event.outcome {
        details.push(errno::name(errno));
    }
    if event.count > 1 {
        details.push(format!("{}×", event.count));
    }
    details
}
