//! The processes of a run, as a tree.

use std::collections::HashMap;
use std::sync::Arc;

use crate::dict::Dict;
use crate::error::{Error, Result};
use crate::event::{Op, Process, RunId};
use crate::query::run_id;
use crate::store::{Store, op_from_code};

/// A process that did something with files. It can have run several programs, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessNode {
    /// What it was, in order: a new one for each program that it executed.
    pub images: Vec<Arc<Process>>,
    /// Number of its first event.
    pub first: i64,
    /// Number of its last event.
    pub last: i64,
    /// Reads that succeeded, listings and executions included.
    pub reads: u64,
    /// Operations that were meant to change something and succeeded.
    pub writes: u64,
    /// Refusals.
    pub denied: u64,
    /// Failures.
    pub failed: u64,
    /// The processes that it started, by index, in order of their first events.
    pub children: Vec<usize>,
}

/// The processes of a run. One whose parent did nothing with files is a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTree {
    /// Every process, in order of its first event.
    pub nodes: Vec<ProcessNode>,
    /// Those without a parent here, by index.
    pub roots: Vec<usize>,
}

impl Store {
    /// Returns the processes of a run.
    ///
    /// # Errors
    /// There is no such run, or the log can't be read.
    pub fn process_tree(&self, run: &RunId) -> Result<ProcessTree> {
        let failed = "read the processes";
        let id = run_id(&self.conn, &run.0)?;
        let mut dict = Dict::new(&self.conn);
        let mut select = self
            .conn
            .prepare_cached(
                "SELECT process, op, outcome, count, first, last, min(first) OVER (PARTITION BY process) AS begun \
                 FROM run_stat WHERE run = ? ORDER BY begun, process",
            )
            .map_err(Error::sql(failed))?;
        let mut rows = select.query([id]).map_err(Error::sql(failed))?;
        let mut tree = ProcessTree::default();
        let mut by_name: HashMap<(u32, u64), usize> = HashMap::new();
        while let Some(row) = rows.next().map_err(Error::sql(failed))? {
            let mut columns = [0_i64; 6];
            for (at, column) in columns.iter_mut().enumerate() {
                *column = row.get(at).map_err(Error::sql(failed))?;
            }
            let [process, op, outcome, count, first, last] = columns;
            let process = dict.process(process)?;
            let at = *by_name.entry((process.pid, process.start_time)).or_insert_with(|| {
                tree.nodes.push(ProcessNode::new(first));
                tree.nodes.len() - 1
            });
            tree.nodes[at].add(process, op_from_code(op)?, outcome, count.cast_unsigned());
            let node = &mut tree.nodes[at];
            node.first = node.first.min(first);
            node.last = node.last.max(last);
        }
        tree.link();
        Ok(tree)
    }
}

impl ProcessNode {
    fn new(first: i64) -> Self {
        Self {
            images: Vec::new(),
            first,
            last: first,
            reads: 0,
            writes: 0,
            denied: 0,
            failed: 0,
            children: Vec::new(),
        }
    }

    fn add(&mut self, process: Arc<Process>, op: Op, outcome: i64, count: u64) {
        if self.images.last() != Some(&process) {
            self.images.push(process);
        }
        let reading = matches!(op, Op::Read | Op::Readdir | Op::Exec);
        let sum = match outcome {
            0 if reading => &mut self.reads,
            0 => &mut self.writes,
            1 => &mut self.denied,
            _ => &mut self.failed,
        };
        *sum = sum.saturating_add(count);
    }

    /// Returns the process as it was at its last event.
    #[must_use]
    pub fn process(&self) -> Option<&Process> {
        self.images.last().map(|process| &**process)
    }
}

impl ProcessTree {
    /// Finds each process's parent: the one with that pid that was there when it began. Start times have few digits, so
    /// of two that began at once the lower pid counts as the older one; an order keeps circles out.
    fn link(&mut self) {
        let mut by_pid: HashMap<u32, Vec<(u64, usize)>> = HashMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(process) = node.process() {
                by_pid.entry(process.pid).or_default().push((process.start_time, at));
            }
        }
        for at in 0..self.nodes.len() {
            let parent = self.nodes[at].images.first().and_then(|process| {
                by_pid
                    .get(&process.ppid)?
                    .iter()
                    .filter(|(start, _)| (*start, process.ppid) < (process.start_time, process.pid))
                    .max()
                    .map(|(_, parent)| *parent)
            });
            match parent {
                Some(parent) => self.nodes[parent].children.push(at),
                None => self.roots.push(at),
            }
        }
    }

    /// Calls `each` with every process, its depth, and for each level whether more siblings follow there.
    pub fn walk(&self, mut each: impl FnMut(usize, &[bool])) {
        let mut stack: Vec<(usize, Vec<bool>)> = Vec::new();
        let push = |stack: &mut Vec<_>, siblings: &[usize], above: &[bool]| {
            for (place, &at) in siblings.iter().enumerate().rev() {
                let mut more = above.to_vec();
                more.push(place + 1 < siblings.len());
                stack.push((at, more));
            }
        };
        push(&mut stack, &self.roots, &[]);
        while let Some((at, more)) = stack.pop() {
            each(at, &more);
            push(&mut stack, &self.nodes[at].children, &more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found_by_pid_and_time() {
        let process = |pid, ppid, start_time| {
            Arc::new(Process { pid, ppid, start_time, ..Process::default() })
        };
        let mut tree = ProcessTree::default();
        for process in [
            process(10, 1, 100),
            process(12, 11, 100),
            process(11, 10, 100),
            // The pid of 11 used again, and a child of that one.
            process(11, 10, 200),
            process(13, 11, 250),
            // A parent that began later is none, and neither is oneself.
            process(14, 15, 300),
            process(15, 15, 400),
        ] {
            let mut node = ProcessNode::new(1);
            node.add(process, Op::Read, 0, 2);
            tree.nodes.push(node);
        }
        tree.link();
        assert_eq!(tree.roots, [0, 5, 6]);
        let mut seen = Vec::new();
        tree.walk(|at, more| seen.push((at, more.len(), *more.last().unwrap())));
        assert_eq!(
            seen,
            [
                (0, 1, true),
                (2, 2, true),
                (1, 3, false),
                (3, 2, false),
                (4, 3, false),
                (5, 1, true),
                (6, 1, false)
            ]
        );
        assert_eq!(tree.nodes[0].reads, 2);
    }
}
