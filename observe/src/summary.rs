//! What a run did, in short: answered from the derived tables and the indices, whatever its length.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::dict::Dict;
use crate::error::{Error, Result};
use crate::event::{Op, Outcome, RunId};
use crate::query::{Filter, run_id};
use crate::run::{Recording, RunSummary};
use crate::store::{Store, op_from_code};
use crate::tally::Tally;
use crate::touch::Touch;

/// How often a program did something, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The program.
    pub exe: PathBuf,
    /// What it did.
    pub op: Op,
    /// `ok`, `denied` or `error`.
    pub outcome: &'static str,
    /// Events.
    pub events: u64,
    /// Operations that these stand for.
    pub count: u64,
    /// Bytes read, as far as they were seen.
    pub bytes_read: u64,
    /// Bytes written, as far as they were seen.
    pub bytes_written: u64,
    /// Events whose bytes the kernel's passthrough hid.
    pub hidden: u64,
}

/// A path and the ways in which a program touched it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The program.
    pub exe: PathBuf,
    /// The path.
    pub path: PathBuf,
    /// How.
    pub how: Touch,
}

impl Store {
    /// Returns what came of a run: what its recorder noted at its end, or else what the events say.
    ///
    /// # Errors
    /// There is no such run, or the log can't be read.
    pub fn run_summary(&self, run: &RunId) -> Result<RunSummary> {
        let row = self.run(run)?;
        let (lost, at_most) = row.end.as_ref().map_or((0, 0), |end| (end.lost, end.at_most));
        if let Some(summary) = row.end.and_then(|end| end.summary) {
            return Ok(summary);
        }
        let mut tally = Tally::default();
        for (denied, changed, ops) in [
            (true, false, Vec::new()),
            (false, true, Vec::new()),
            (false, false, vec![Op::Conflict]),
        ] {
            let filter =
                Filter { run: Some(run.clone()), denied, changed, ops, ..Filter::default() };
            self.for_each(&filter, |stored| {
                tally.add(&stored.event);
                ControlFlow::Continue(())
            })?;
        }
        let mut summary = tally.finish(0, Recording { lost, at_most, error: None });
        let stats = self.stats(run)?;
        summary.events = stats.iter().map(|stat| stat.events).sum();
        summary.reads = stats
            .iter()
            .filter(|stat| stat.op == Op::Read && stat.outcome == "ok")
            .map(|stat| stat.count)
            .sum();
        Ok(summary)
    }

    /// Returns how often each program did what, in a run.
    ///
    /// # Errors
    /// There is no such run, or the log can't be read.
    pub fn stats(&self, run: &RunId) -> Result<Vec<Stat>> {
        let failed = "read the statistics";
        let id = run_id(&self.conn, &run.0)?;
        let mut dict = Dict::new(&self.conn);
        let mut select = self
            .conn
            .prepare_cached(
                "SELECT p.exe, op, outcome, sum(events), sum(count), sum(bytes_read), sum(bytes_written), sum(hidden) \
                 FROM run_stat s JOIN process p ON p.id = s.process \
                 WHERE run = ? GROUP BY p.exe, op, outcome ORDER BY min(first)",
            )
            .map_err(Error::sql(failed))?;
        let mut rows = select.query([id]).map_err(Error::sql(failed))?;
        let mut stats = Vec::new();
        while let Some(row) = rows.next().map_err(Error::sql(failed))? {
            let mut columns = [0_i64; 8];
            for (at, column) in columns.iter_mut().enumerate() {
                *column = row.get(at).map_err(Error::sql(failed))?;
            }
            let [exe, op, outcome, events, count, bytes_read, bytes_written, hidden] = columns;
            stats.push(Stat {
                exe: dict.path(exe)?,
                op: op_from_code(op)?,
                outcome: outcome_name(outcome),
                events: events.cast_unsigned(),
                count: count.cast_unsigned(),
                bytes_read: bytes_read.cast_unsigned(),
                bytes_written: bytes_written.cast_unsigned(),
                hidden: hidden.cast_unsigned(),
            });
        }
        Ok(stats)
    }

    /// Returns how many paths each program touched in which ways, in a run.
    ///
    /// # Errors
    /// There is no such run, or the log can't be read.
    pub fn touch_counts(&self, run: &RunId) -> Result<Vec<(PathBuf, Touch, u64)>> {
        let failed = "read what was touched";
        let id = run_id(&self.conn, &run.0)?;
        let mut dict = Dict::new(&self.conn);
        let counted = Self::has_counts(&self.conn).map_err(Error::sql(failed))?;
        let sql = if counted {
            "SELECT exe, how, paths FROM touch_count WHERE run = ? AND paths > 0"
        } else {
            "SELECT exe, how, count(*) FROM touch WHERE run = ? GROUP BY exe, how"
        };
        let mut select = self.conn.prepare_cached(sql).map_err(Error::sql(failed))?;
        let mut rows = select.query([id]).map_err(Error::sql(failed))?;
        let mut counts: BTreeMap<(i64, u16), u64> = BTreeMap::new();
        while let Some(row) = rows.next().map_err(Error::sql(failed))? {
            let key =
                (row.get(0).map_err(Error::sql(failed))?, row.get(1).map_err(Error::sql(failed))?);
            let paths: i64 = row.get(2).map_err(Error::sql(failed))?;
            counts.insert(key, paths.cast_unsigned());
        }
        counts
            .into_iter()
            .map(|((exe, how), count)| Ok((dict.path(exe)?, Touch::from_bits(how), count)))
            .collect()
    }

    /// Returns the paths that a run touched in any of these ways, by program.
    ///
    /// # Errors
    /// There is no such run, or the log can't be read.
    pub fn touched(&self, run: &RunId, how: Touch, limit: u64) -> Result<Vec<Touched>> {
        let failed = "read what was touched";
        let id = run_id(&self.conn, &run.0)?;
        let mut dict = Dict::new(&self.conn);
        let mut select = self
            .conn
            .prepare_cached(
                "SELECT exe, path, how FROM touch WHERE run = ? AND how & ? <> 0 ORDER BY exe, path LIMIT ?",
            )
            .map_err(Error::sql(failed))?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = select.query([id, how.bits().into(), limit]).map_err(Error::sql(failed))?;
        let mut touched = Vec::new();
        while let Some(row) = rows.next().map_err(Error::sql(failed))? {
            let exe = row.get(0).map_err(Error::sql(failed))?;
            let path = row.get(1).map_err(Error::sql(failed))?;
            let how = row.get(2).map_err(Error::sql(failed))?;
            touched.push(Touched {
                exe: dict.path(exe)?,
                path: dict.path(path)?,
                how: Touch::from_bits(how),
            });
        }
        Ok(touched)
    }
}

impl Outcome {
    /// Returns the stable name, without the details.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        outcome_name(crate::writer::outcome_code(self))
    }
}

const fn outcome_name(code: i64) -> &'static str {
    match code {
        0 => "ok",
        1 => "denied",
        _ => "error",
    }
}
