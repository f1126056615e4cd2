//! A question on the terminal.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use rustix::termios::{QueueSelector, tcflush};
use stockade_policy::text::{sanitise, sanitise_bytes, shorten, show_command};
use stockade_policy::{ApprovalAnswer, ApprovalRequest, Mode, Verdict};

use super::{Approver, Wait, Woken, cancelled};

/// How much of a text is shown.
const SHOWN: usize = 2000;

/// How many earlier refusals are shown.
const REFUSALS: usize = 8;

/// Asks on `/dev/tty`, whatever the standard streams are.
#[derive(Debug)]
pub struct Terminal;

impl Approver for Terminal {
    fn ask(
        &mut self,
        request: &ApprovalRequest,
        wait: &Wait<'_>,
    ) -> Result<ApprovalAnswer, String> {
        let tty =
            File::options().read(true).write(true).open("/dev/tty").map_err(|error| {
                format!("there is no approver and no terminal to ask on ({error})")
            })?;
        converse(&tty, request, wait).map_err(|error| format!("the terminal: {error}"))?
    }
}

fn converse(
    mut tty: &File,
    request: &ApprovalRequest,
    wait: &Wait<'_>,
) -> io::Result<Result<ApprovalAnswer, String>> {
    // What was typed before the question is no answer to it.
    tcflush(tty, QueueSelector::IFlush)?;
    tty.write_all(question(request).as_bytes())?;
    let mut line = Vec::new();
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(tty.as_fd(), PollFlags::IN)];
        match wait.poll(&mut fds, None)? {
            Woken::Ready => {}
            Woken::Cancelled => {
                tty.write_all(b"\n")?;
                return Ok(Ok(cancelled()));
            }
            Woken::TimedOut => {
                tty.write_all(b"\n")?;
                return Ok(Err(wait.timed_out()));
            }
        }
        let mut part = [0; 256];
        let read = tty.read(&mut part)?;
        line.extend_from_slice(part.get(..read).unwrap_or_default());
        if read == 0 || line.len() > 4096 {
            return Ok(Ok(cancelled()));
        }
        if line.ends_with(b"\n") {
            break;
        }
    }
    let yes = matches!(line.trim_ascii().to_ascii_lowercase().as_slice(), b"y" | b"yes");
    let decision = if yes { Verdict::AllowedOnce } else { Verdict::Rejected };
    Ok(Ok(ApprovalAnswer { decision, id: None, reason: None }))
}

/// Returns what is asked, safe to show: a name and a value each.
#[must_use]
pub fn rows(request: &ApprovalRequest) -> Vec<(&'static str, String)> {
    let escalation = &request.escalation;
    let command = show_command(request.argv.iter().map(|word| word.as_slice()));
    let unprotected = if escalation.to() == Mode::DangerFullAccess { ", unprotected" } else { "" };
    let mut rows = Vec::new();
    let mut row = |name, value: &str| rows.push((name, shorten(value, SHOWN)));
    row("command", &command);
    row("in", &sanitise_bytes(request.cwd.as_slice()));
    if let Some(session) = &request.session {
        row("session", &sanitise(session));
    }
    row("mode now", escalation.from().as_str());
    row("mode wanted", &format!("{} (this run alone{unprotected})", escalation.to()));
    row("because", &sanitise(escalation.justification()));
    for refused in request.refused.iter().take(REFUSALS) {
        let path = sanitise_bytes(refused.path.as_slice());
        row(
            "refused before",
            &format!("{} {path} ({})", sanitise(&refused.op), sanitise(&refused.rule)),
        );
    }
    if request.refused.len() > REFUSALS {
        row("", &format!("and {} more", request.refused.len() - REFUSALS));
    }
    rows
}

/// Returns the question, safe to show.
fn question(request: &ApprovalRequest) -> String {
    let mut text = String::from("stockade: a command asks for a wider mode\n");
    for (name, value) in rows(request) {
        // Writing to a String can't fail.
        let _infallible = writeln!(text, "  {name:14} {value}");
    }
    text.push_str("Allow it once? [y/N] ");
    text
}

#[cfg(test)]
mod tests {
    use stockade_policy::text::Bytes;
    use stockade_policy::{Escalation, RefusedBefore};

    use super::*;

    #[test]
    fn nothing_that_is_shown_can_paint_over_the_question() {
        let evil = "x\r\x1b[2J\x1b[1;1HAllow it once? [y/N] y\n\u{202e}\u{9b}31m";
        let request = ApprovalRequest {
            v: 1,
            id: "e1".into(),
            session: Some(evil.into()),
            escalation: Escalation::new(Mode::ReadOnly, Mode::DangerFullAccess, evil).unwrap(),
            argv: vec![Bytes::from("sh"), Bytes::from(evil), Bytes::new(&b"\xff\x1b"[..])],
            cwd: Bytes::from(evil),
            refused: vec![
                RefusedBefore {
                    op: evil.into(),
                    path: Bytes::from(evil),
                    rule: evil.into()
                };
                20
            ],
        };
        let text = question(&request);
        let odd = |c: char| c != '\n' && (c.is_control() || "\u{202e}\u{9b}".contains(c));
        assert!(!text.contains(odd), "{text:?}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.iter().filter(|line| line.starts_with("Allow it once?")).count(), 1);
        assert!(
            lines[4].contains("read-only") && lines[5].contains("danger-full-access"),
            "{text}"
        );
        assert_eq!(lines.len(), 1 + 6 + REFUSALS + 1 + 1, "{text}");
        assert!(text.ends_with("Allow it once? [y/N] "));
    }
}
