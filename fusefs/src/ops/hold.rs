//! Whether somebody still has a file open. The kernel reports a close when the program that closed has gone on already,
//! so a file that counts as open may have been let go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::fs::Fs;
use crate::node::Node;
use crate::process;

/// Reports of closes are mostly there within this time; then it is looked who holds the file.
const SOON: Duration = Duration::from_millis(2);
/// Where no holder is found, one thread waits for a report this long: the threads that serve may be slow to run.
const PATIENCE: Duration = Duration::from_secs(1);
/// The others wait this long, since one must be left to take reports.
const IMPATIENCE: Duration = Duration::from_millis(20);

impl Fs {
    /// Tells whether nobody has a file open any more, after having waited for reports of closes.
    pub(crate) fn is_let_go(&self, node: &Arc<Node>) -> bool {
        let is_open = || node.opens.load(Ordering::Acquire) > 0;
        let begun = Instant::now();
        while is_open() && begun.elapsed() < SOON {
            std::thread::sleep(Duration::from_micros(50));
        }
        if !is_open() {
            return true;
        }
        let handles = self.handles.of(node.id);
        if handles.iter().any(|file| {
            file.held.load(Ordering::Relaxed) || process::has_open(file.who.pid, node.id)
        }) {
            return !is_open();
        }
        let patient = self.patient.try_lock();
        let patience = if patient.is_some() { PATIENCE } else { IMPATIENCE };
        while is_open() && begun.elapsed() < patience {
            std::thread::sleep(Duration::from_micros(500));
        }
        if is_open() && patient.is_some() {
            // Somebody inherited it, was sent it or has it mapped. It isn't waited for again.
            for file in handles {
                file.held.store(true, Ordering::Relaxed);
            }
        }
        !is_open()
    }
}
