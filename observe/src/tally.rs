//! What the launcher needs to know of a run at its end, kept while it goes on and independent of the store.

use std::collections::HashMap;

use crate::changes::NetChanges;
use crate::event::{Event, Op, Outcome};
use crate::run::{ConflictRow, DenialRow, Recording, RunSummary};

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
                return Some(row);
            }
            (_, Op::Conflict) if self.conflicts.len() < RunSummary::DENIALS => {
                self.conflicts.push(ConflictRow {
                    path: event.path.clone(),
                    kept: event.path2.clone(),
                    pid: event.process.pid,
                    exe: event.process.exe.clone(),
                    expected: event.version_before,
                    found: event.version_after,
                });
            }
            (Outcome::Ok, Op::Read) => self.reads = self.reads.saturating_add(event.count),
            (Outcome::Ok | Outcome::Error { .. }, _) => {}
        }
        self.changes.add(event);
        None
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
