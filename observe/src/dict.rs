//! Reads back what the writer interned.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{Connection, Row};
use stockade_policy::{Denial, Rule};

use crate::bytes::path_from;
use crate::error::{Error, Result};
use crate::event::{Event, Key, Outcome, Process, Publication, RunId, Time};
use crate::recent::Recent;
use crate::store::op_from_code;
use crate::writer::versions_from_columns;

/// An event as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its number in the session's log; without gaps.
    pub seq: i64,
    /// The run it belongs to.
    pub run: RunId,
    /// What happened.
    pub event: Event,
}

/// The columns that [`Dict::event`] reads.
pub(crate) const EVENT_COLUMNS: &str = "e.seq, e.time, e.run, e.process, e.op, e.target, e.path2, e.outcome, e.errno, \
    e.rule, e.bytes_read, e.bytes_written, e.before_size, e.before_mtime, e.before_ctime, e.after_size, e.after_mtime, \
    e.after_ctime, e.publication, e.count";

/// Looks ids up, each but once while it stays in memory.
pub(crate) struct Dict<'c> {
    conn: &'c Connection,
    paths: Recent<i64, PathBuf>,
    targets: Recent<i64, (i64, Option<Key>)>,
    processes: Recent<i64, Arc<Process>>,
    rules: Recent<i64, Arc<Denial>>,
    runs: Recent<i64, RunId>,
}

impl<'c> Dict<'c> {
    pub(crate) fn new(conn: &'c Connection) -> Self {
        Self {
            conn,
            paths: Recent::new(50_000),
            targets: Recent::new(50_000),
            processes: Recent::new(10_000),
            rules: Recent::new(1000),
            runs: Recent::new(1000),
        }
    }

    fn look_up<T>(
        &self,
        sql: &str,
        id: i64,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.conn
            .prepare_cached(sql)
            .and_then(|mut select| select.query_row([id], read))
            .map_err(Error::sql("read the log"))
    }

    pub(crate) fn path(&mut self, id: i64) -> Result<PathBuf> {
        if let Some(path) = self.paths.get(&id) {
            return Ok(path);
        }
        let path = self
            .look_up("SELECT bytes FROM path WHERE id = ?", id, |row| row.get(0).map(path_from))?;
        self.paths.insert(id, path.clone());
        Ok(path)
    }

    fn target(&mut self, id: i64) -> Result<(i64, Option<Key>)> {
        if let Some(target) = self.targets.get(&id) {
            return Ok(target);
        }
        let target = self.look_up(
            "SELECT path, dev, ino, generation FROM target WHERE id = ?",
            id,
            |row| {
                let path = row.get(0)?;
                let key = match (row.get(1)?, row.get(2)?, row.get(3)?) {
                    (Some(dev), Some(ino), Some(generation)) => Some(Key {
                        dev: i64::cast_unsigned(dev),
                        ino: i64::cast_unsigned(ino),
                        generation: i64::cast_unsigned(generation),
                    }),
                    _ => None,
                };
                Ok((path, key))
            },
        )?;
        self.targets.insert(id, target);
        Ok(target)
    }

    pub(crate) fn process(&mut self, id: i64) -> Result<Arc<Process>> {
        if let Some(process) = self.processes.get(&id) {
            return Ok(process);
        }
        let (exe, process) = self.look_up(
            "SELECT exe, pid, start_time, ppid, comm, cmdline, uid FROM process WHERE id = ?",
            id,
            |row| {
                let process = Process {
                    pid: row.get(1)?,
                    start_time: row.get::<_, i64>(2)?.cast_unsigned(),
                    ppid: row.get(3)?,
                    exe: PathBuf::new(),
                    comm: row.get(4)?,
                    cmdline: row.get(5)?,
                    uid: row.get(6)?,
                };
                Ok((row.get(0)?, process))
            },
        )?;
        let process = Arc::new(Process { exe: self.path(exe)?, ..process });
        self.processes.insert(id, process.clone());
        Ok(process)
    }

    fn rule(&mut self, id: i64) -> Result<Arc<Denial>> {
        if let Some(denial) = self.rules.get(&id) {
            return Ok(denial);
        }
        let (name, source) =
            self.look_up("SELECT name, source FROM rule WHERE id = ?", id, |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
            })?;
        let rule =
            Rule::from_name(&name).ok_or_else(|| Error::Damaged(format!("rule `{name}`")))?;
        let denial = Arc::new(Denial::new(rule, source));
        self.rules.insert(id, denial.clone());
        Ok(denial)
    }

    pub(crate) fn run(&mut self, id: i64) -> Result<RunId> {
        if let Some(run) = self.runs.get(&id) {
            return Ok(run);
        }
        let run = self.look_up("SELECT name FROM run WHERE id = ?", id, |row| {
            Ok(RunId(row.get::<_, String>(0)?.into()))
        })?;
        self.runs.insert(id, run.clone());
        Ok(run)
    }

    /// Reads an event from a row of [`EVENT_COLUMNS`].
    pub(crate) fn event(&mut self, row: &Row<'_>) -> Result<Stored> {
        let raw = Raw::read(row).map_err(Error::sql("read an event"))?;
        let time = Time(raw.time);
        let (path, key) = self.target(raw.target)?;
        let outcome = match (raw.outcome, raw.errno, raw.rule) {
            (0, _, _) => Outcome::Ok,
            (1, Some(errno), Some(rule)) => Outcome::Denied { denial: self.rule(rule)?, errno },
            (2, Some(errno), _) => Outcome::Error { errno },
            _ => return Err(Error::Damaged(format!("event {}: outcome {}", raw.seq, raw.outcome))),
        };
        let [b0, b1, b2, a0, a1, a2] = raw.versions;
        let (version_before, version_after) =
            versions_from_columns(time, [b0, b1, b2], [a0, a1, a2]);
        let event = Event {
            time,
            process: self.process(raw.process)?,
            op: op_from_code(raw.op)?,
            path: self.path(path)?,
            path2: raw.path2.map(|path| self.path(path)).transpose()?,
            key,
            outcome,
            bytes_read: raw.bytes[0].map(i64::cast_unsigned),
            bytes_written: raw.bytes[1].map(i64::cast_unsigned),
            version_before,
            version_after,
            publication: match raw.publication {
                None => None,
                Some(0) => Some(Publication::Atomic),
                Some(_) => Some(Publication::InPlace),
            },
            noted: match (raw.outcome, raw.rule) {
                (0 | 2, Some(rule)) => Some(self.rule(rule)?),
                _ => None,
            },
            count: raw.count.cast_unsigned(),
        };
        Ok(Stored { seq: raw.seq, run: self.run(raw.run)?, event })
    }
}

struct Raw {
    seq: i64,
    time: i64,
    run: i64,
    process: i64,
    op: i64,
    target: i64,
    path2: Option<i64>,
    outcome: i64,
    errno: Option<i32>,
    rule: Option<i64>,
    bytes: [Option<i64>; 2],
    versions: [Option<i64>; 6],
    publication: Option<i64>,
    count: i64,
}

impl Raw {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let mut versions = [None; 6];
        for (at, column) in versions.iter_mut().enumerate() {
            *column = row.get(at + 12)?;
        }
        Ok(Self {
            seq: row.get(0)?,
            time: row.get(1)?,
            run: row.get(2)?,
            process: row.get(3)?,
            op: row.get(4)?,
            target: row.get(5)?,
            path2: row.get(6)?,
            outcome: row.get(7)?,
            errno: row.get(8)?,
            rule: row.get(9)?,
            bytes: [row.get(10)?, row.get(11)?],
            versions,
            publication: row.get(18)?,
            count: row.get(19)?,
        })
    }
}
