//! A channel to whoever decides in the same process: a harness, a control socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use stockade_policy::{ApprovalAnswer, ApprovalRequest};

use super::{Approver, Wait, Woken, cancelled};

/// How soon a cancellation is seen.
const LOOK: Duration = Duration::from_millis(20);

/// Hands requests to the other end of a channel.
#[derive(Debug)]
pub struct Channel(Sender<Asked>);

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Asked {
    /// What is asked.
    pub request: ApprovalRequest,
    answer: Sender<ApprovalAnswer>,
    over: Arc<AtomicBool>,
}

impl Channel {
    /// Makes a channel, and the end at which the requests arrive.
    #[must_use]
    pub fn new() -> (Self, Receiver<Asked>) {
        let (sender, receiver) = bounded(16);
        (Self(sender), receiver)
    }
}

impl Asked {
    /// Tells whether nobody waits for the answer any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Answers. One that comes too late goes nowhere.
    pub fn answer(self, answer: ApprovalAnswer) {
        // The asker may have gone in this moment.
        drop(self.answer.send(answer));
    }
}

/// Says that nobody waits any more, however the asking ends.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Approver for Channel {
    fn ask(
        &mut self,
        request: &ApprovalRequest,
        wait: &Wait<'_>,
    ) -> Result<ApprovalAnswer, String> {
        let gone = || "the approver is gone".to_owned();
        let over = Over(Arc::default());
        let (answer, answers) = bounded(1);
        let asked = Asked { request: request.clone(), answer, over: over.0.clone() };
        self.0.try_send(asked).map_err(|error| match error {
            crossbeam_channel::TrySendError::Full(_) => "the approver is busy".to_owned(),
            crossbeam_channel::TrySendError::Disconnected(_) => gone(),
        })?;
        loop {
            match answers.recv_timeout(Duration::ZERO) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            match wait.poll(&mut Vec::new(), Some(LOOK)).map_err(|error| error.to_string())? {
                Woken::Ready => {}
                Woken::Cancelled => return Ok(cancelled()),
                Woken::TimedOut => return Err(wait.timed_out()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;

    use stockade_policy::{Escalation, Mode, Verdict};

    use super::*;

    fn request() -> ApprovalRequest {
        ApprovalRequest {
            v: 1,
            id: "e1".into(),
            session: None,
            escalation: Escalation::new(Mode::ReadOnly, Mode::WorkspaceWrite, "x").unwrap(),
            argv: Vec::new(),
            cwd: Default::default(),
            refused: Vec::new(),
        }
    }

    fn answer(decision: Verdict) -> ApprovalAnswer {
        ApprovalAnswer { decision, id: None, reason: None }
    }

    #[test]
    fn a_channel_answers_dies_or_is_told_that_it_is_over() {
        let long = Wait::new(Duration::from_secs(60), None);
        let (mut channel, requests) = Channel::new();
        let answering = thread::spawn(move || {
            let asked = requests.recv().unwrap();
            assert!(!asked.is_over());
            asked.answer(answer(Verdict::AllowedOnce));
            // The next request is dropped without an answer.
            drop(requests.recv().unwrap());
            requests
        });
        assert_eq!(channel.ask(&request(), &long), Ok(answer(Verdict::AllowedOnce)));
        assert!(channel.ask(&request(), &long).is_err());
        let requests = answering.join().unwrap();
        let short = Wait::new(Duration::from_millis(1), None);
        assert!(channel.ask(&request(), &short).is_err());
        assert!(requests.recv().unwrap().is_over());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        let called_off = Wait::new(Duration::from_secs(60), Some(reader.as_fd()));
        assert_eq!(channel.ask(&request(), &called_off), Ok(cancelled()));
        assert!(requests.recv().unwrap().is_over());
        drop(requests);
        assert!(channel.ask(&request(), &long).is_err());
    }
}
