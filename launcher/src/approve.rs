//! Who is asked for a wider mode, and how (contract P8): the terminal, the operator's command, somebody elsewhere, or a
//! channel.
//!
//! Invariants:
//! - I1: only an answer `allowed-once` to this very request widens anything, once (policy's `ApprovalRequest::settle`).
//!   Silence, a dead approver, one that fails, and an answer that isn't understood are no answer.
//! - I2: the request is in the session's log before anybody is asked, and its end before anything runs.
//! - I3: calling it off reaches whoever is asked: the prompt ends, the command is told and ended, the channel says so.
//! - I4: what is shown holds nothing that acts on a terminal.

mod channel;
mod command;
pub mod queue;
mod terminal;

pub use channel::{Asked, Channel};
pub use command::Command;
pub use queue::Queue;
pub use terminal::{Terminal, rows};

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use stockade_policy::{
    ApprovalAnswer, ApprovalOutcome, ApprovalPolicy, ApprovalRequest, Mode, Permit, Verdict,
};

use crate::error::{Code, Failure};
use crate::session::Session;

/// Somebody who decides about one request.
pub trait Approver {
    /// Asks and waits. An error says why there is no answer.
    ///
    /// # Errors
    /// Nobody is there, or the answer isn't understood.
    fn ask(&mut self, request: &ApprovalRequest, wait: &Wait<'_>)
    -> Result<ApprovalAnswer, String>;
}

/// How long an answer is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    cancel: Option<BorrowedFd<'a>>,
    deadline: Instant,
    limit: Duration,
}

/// What came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Ready,
    Cancelled,
    TimedOut,
}

impl<'a> Wait<'a> {
    /// Waits for at most `limit`, and until `cancel` can be read.
    #[must_use]
    pub fn new(limit: Duration, cancel: Option<BorrowedFd<'a>>) -> Self {
        let now = Instant::now();
        let deadline = now.checked_add(limit).unwrap_or(now + Duration::from_secs(86_400 * 365));
        Self { cancel, deadline, limit }
    }

    /// Waits until one of these is ready, it is called off, or time is over; at most `slice` at a time, if given.
    fn poll<'f>(&'f self, fds: &mut Vec<PollFd<'f>>, slice: Option<Duration>) -> io::Result<Woken> {
        let own = fds.len();
        if let Some(cancel) = &self.cancel {
            fds.push(PollFd::new(cancel, PollFlags::IN));
        }
        let woken = loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let pause = slice.map_or(left, |slice| slice.min(left)) + Duration::from_millis(1);
            let timeout = Timespec::try_from(pause).map_err(io::Error::other)?;
            match rustix::event::poll(fds, Some(&timeout)) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ready = |fds: &[PollFd<'_>]| fds.iter().any(|fd| !fd.revents().is_empty());
            let (theirs, cancel) = fds.split_at(own);
            // An answer that comes together with the cancellation is too late.
            if ready(cancel) {
                break Woken::Cancelled;
            }
            if ready(theirs) || (slice.is_some() && self.deadline > Instant::now()) {
                break Woken::Ready;
            }
            if self.deadline <= Instant::now() {
                break Woken::TimedOut;
            }
        };
        fds.truncate(own);
        Ok(woken)
    }

    fn timed_out(&self) -> String {
        format!("nobody answered within {}", stockade_policy::config::show_duration(self.limit))
    }
}

fn cancelled() -> ApprovalAnswer {
    ApprovalAnswer { decision: Verdict::Cancelled, id: None, reason: None }
}

/// Whether and whom to ask.
pub struct Asking<'a> {
    /// The approval policy in force.
    pub policy: ApprovalPolicy,
    /// Who decides.
    pub approver: &'a mut dyn Approver,
    /// How long it may take.
    pub wait: Wait<'a>,
    /// The deployment's mode, for a session that has none.
    pub default: Mode,
}

/// Asks for a wider mode, and writes the request and its end into the session.
///
/// # Errors
/// It wasn't allowed: `APPROVAL_REJECTED`, `APPROVAL_CANCELED` or `APPROVAL_UNAVAILABLE`.
pub fn escalate(
    session: &Session,
    request: ApprovalRequest,
    asking: Asking<'_>,
) -> Result<Permit, Failure> {
    session.requested(&request, asking.default)?;
    let answer = match asking.policy {
        ApprovalPolicy::Ask => asking.approver.ask(&request, &asking.wait),
        ApprovalPolicy::Never => Err("the approval policy is `never`".to_owned()),
    };
    let id = request.id.clone();
    let outcome = request.settle(answer);
    let reason = match &outcome {
        ApprovalOutcome::AllowedOnce(_) | ApprovalOutcome::Cancelled => None,
        ApprovalOutcome::Rejected { reason } => reason.clone(),
        ApprovalOutcome::Unavailable { reason } => Some(reason.clone()),
    };
    session.decided(&id, outcome.kind(), reason)?;
    let refused = |code, what: &str, reason: Option<String>| {
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        Err(Failure::new(code, format!("{what}{reason}")))
    };
    match outcome {
        ApprovalOutcome::AllowedOnce(permit) => Ok(permit),
        ApprovalOutcome::Rejected { reason } => {
            refused(Code::ApprovalRejected, "the wider mode was rejected", reason)
        }
        ApprovalOutcome::Cancelled => {
            refused(Code::ApprovalCanceled, "asking for the wider mode was called off", None)
        }
        ApprovalOutcome::Unavailable { reason } => {
            refused(Code::ApprovalUnavailable, "nobody approved the wider mode", Some(reason)).map_err(
                |failure| {
                    failure.help(
                        "run it on a terminal, or name an approver: `--approver COMMAND`, `approver` in the configuration",
                    )
                },
            )
        }
    }
}
