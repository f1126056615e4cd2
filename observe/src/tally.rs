//! What the launcher needs to know of a run at its end, kept while it goes on and independent of the store.

use std::collections::HashMap;

use crate::changes::NetChanges;
use crate::event::{Event, Op, Outcome};
use stockade_policy::Rule;

use crate::run::{ConflictRow, DenialRow, Recording, RunSummary};

/// Losses of unseen content that are listed one by one; the log has them all.
const UNSEEN: usize = 1000;

/// The running account of a run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    denial_count: u64,
    denials: Vec<DenialRow>,
    known: HashMap<DenialRow, usize>,
    conflicts: Vec<ConflictRow>,
    changes: NetChanges,
    reads: u64,
    events: u64,
}

impl Tally {
    /// Takes the next event, and returns the refusal in it.
    pub(crate) fn add(&mut self, event: &Event) -> Option<DenialRow> {
        self.events += 1;
        match (&event.outcome, event.op) {
            (Outcome::Denied { denial, errno }, _) => {
                self.denial_count = self.denial_count.saturating_add(event.count);
                let row = DenialRow {
                    op: event.op,
                    path: event.path.clone(),
                    path2: event.path2.clone(),
                    rule: denial.rule(),
                    source: denial.source().to_owned(),
                    errno: *errno,
                    pid: event.process.pid,
                    exe: event.process.exe.clone(),
                    count: event.count,
                };
                self.keep(&row);
                if event.op == Op::Conflict {
                    self.conflict(event, Some(denial.rule()));
                }
                return Some(row);
            }
            (_, Op::Conflict) => {
                self.conflict(event, event.noted.as_ref().map(|denial| denial.rule()));
                return None;
            }
            (Outcome::Ok, Op::Read) => self.reads = self.reads.saturating_add(event.count),
            (Outcome::Ok | Outcome::Error { .. }, _) => {}
        }
        if let Some(denial) = &event.noted {
            self.conflict(event, Some(denial.rule()));
        }
        self.changes.add(event);
        None
    }

    fn conflict(&mut self, event: &Event, rule: Option<Rule>) {
        // A clean-up of many files that nobody looked at isn't worth more than a thousand lines.
        let most = if rule == Some(Rule::NotObserved) { UNSEEN } else { RunSummary::DENIALS };
        if self.conflicts.len() >= most {
            return;
        }
        let published = event.op == Op::Conflict;
        let (kept, expected, found) = if published {
            (event.path2.clone(), event.version_before, event.version_after)
        } else {
            (None, None, event.version_before)
        };
        // What a rename loses stood at the new name.
        let moved_over = event.path2.as_ref().filter(|_| event.op == Op::Rename);
        let path = moved_over.unwrap_or(&event.path);
        self.conflicts.push(ConflictRow {
            op: event.op,
            rule,
            path: path.clone(),
            kept,
            pid: event.process.pid,
            exe: event.process.exe.clone(),
            errno: match event.outcome {
                Outcome::Ok => None,
                Outcome::Denied { errno, .. } | Outcome::Error { errno } => Some(errno),
            },
            expected,
            found,
        });
    }

    fn keep(&mut self, row: &DenialRow) {
        let mut like = row.clone();
        like.count = 0;
        if let Some(&at) = self.known.get(&like) {
            let count = &mut self.denials[at].count;
            *count = count.saturating_add(row.count);
        } else if self.denials.len() < RunSummary::DENIALS {
            self.known.insert(like, self.denials.len());
            self.denials.push(row.clone());
        }
    }

    /// Closes the account.
    pub(crate) fn finish(self, waits: u64, recording: Recording) -> RunSummary {
        RunSummary {
            denial_count: self.denial_count,
            denials: self.denials,
            conflicts: self.conflicts,
            changes: self.changes.finish(),
            reads: self.reads,
            events: self.events,
            waits,
            recording,
            head: None,
        }
    }
}
