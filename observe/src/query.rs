//! Asking the log: which events.
//!
//! A filter is answered from the narrowest index that it can use ([`Drive`]); whatever else it says is checked on the
//! rows that the index gives. Answers come in order of `seq`, one by one, so that a pager shows the first at once.

use std::ops::ControlFlow;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use crate::bytes::path_from;
use crate::dict::{Dict, EVENT_COLUMNS, Stored};
use crate::error::{Error, Result};
use crate::event::{Op, RunId, Time};
use crate::store::{Store, op_code};
use crate::writer::BLOCK;

/// An index is used for a path filter that it narrows to this many events; with more the log is read in order.
const FEW: i64 = 20_000;

/// Which events are wanted; an empty filter wants all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this run.
    pub run: Option<RunId>,
    /// At one of these paths, or globs (`*` stays within a name, `**` doesn't; one without `/` matches a name anywhere).
    pub paths: Vec<String>,
    /// One of these operations.
    pub ops: Vec<Op>,
    /// By one of these programs: a path, a name, or a glob as for paths.
    pub exes: Vec<String>,
    /// By this process.
    pub pid: Option<u32>,
    /// Refused.
    pub denied: bool,
    /// That changed something.
    pub changed: bool,
    /// That ended at this time or later.
    pub since: Option<Time>,
    /// With a greater number than this.
    pub after: Option<i64>,
    /// The last so many.
    pub last: Option<u64>,
}

/// What finds the rows.
enum Drive {
    /// Nothing matches.
    Nothing,
    /// Reading in order, in ranges of `seq` with both ends included.
    Ranges(Vec<(i64, i64)>),
    /// The index of refusals or of changes.
    Marked(&'static str),
    /// The indices of targets and second paths.
    Paths,
}

/// Compiles globs as this crate's filters mean them.
///
/// # Errors
/// One can't be parsed.
pub fn globs(patterns: &[String]) -> Result<GlobSet> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let anchored =
            if pattern.contains('/') { pattern.clone() } else { format!("**/{pattern}") };
        let anchored = if anchored.len() > 1 { anchored.trim_end_matches('/') } else { &anchored };
        let glob = GlobBuilder::new(anchored)
            .literal_separator(true)
            .build()
            .map_err(|error| Error::Filter(error.to_string()))?;
        set.add(glob);
    }
    set.build().map_err(|error| Error::Filter(error.to_string()))
}

/// Returns what every match of a glob begins with, if it is anchored.
fn literal_prefix(pattern: &str) -> Option<&str> {
    if !pattern.starts_with('/') {
        return None;
    }
    let end = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    let literal = &pattern[..end];
    Some(if end == pattern.len() && literal.len() > 1 {
        literal.trim_end_matches('/')
    } else {
        literal
    })
}

impl Store {
    /// Calls `each` with the events that a filter wants, in order, until it breaks off. All come from one state of the
    /// log, however much is written meanwhile.
    ///
    /// # Errors
    /// The filter can't be understood, names no run of this session, or the log can't be read.
    pub fn for_each(
        &self,
        filter: &Filter,
        mut each: impl FnMut(Stored) -> ControlFlow<()>,
    ) -> Result<()> {
        let tx = self.conn.unchecked_transaction().map_err(Error::sql("read the log"))?;
        let query = Query::plan(&tx, filter)?;
        let mut dict = Dict::new(&tx);
        query.run(&mut dict, &mut each)?;
        drop(dict);
        tx.rollback().map_err(Error::sql("end reading"))
    }

    /// Returns the events that a filter wants.
    ///
    /// # Errors
    /// As for [`Store::for_each`].
    pub fn events(&self, filter: &Filter) -> Result<Vec<Stored>> {
        let mut all = Vec::new();
        self.for_each(filter, |event| {
            all.push(event);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }
}

struct Query<'c> {
    conn: &'c Connection,
    drive: Drive,
    conditions: String,
    values: Vec<Value>,
    last: Option<u64>,
}

impl<'c> Query<'c> {
    fn plan(conn: &'c Connection, filter: &Filter) -> Result<Self> {
        let mut query = Self {
            conn,
            drive: Drive::Nothing,
            conditions: String::new(),
            values: Vec::new(),
            last: filter.last,
        };
        query.build(filter)?;
        Ok(query)
    }

    /// Adds a condition; the `+` before a column keeps SQLite from choosing its index instead of ours.
    fn and(&mut self, condition: &str, value: impl IntoIterator<Item = Value>) {
        self.conditions.push_str(" AND ");
        self.conditions.push_str(condition);
        self.values.extend(value);
    }

    fn build(&mut self, filter: &Filter) -> Result<()> {
        let conn = self.conn;
        let run = match &filter.run {
            Some(run) => Some(run_id(conn, &run.0)?),
            None => None,
        };
        let mut first = filter.after.map_or(1, |after| after.saturating_add(1));
        if let Some(since) = filter.since {
            self.and("+e.time >= ?", [since.0.into()]);
            first = first.max(first_after(conn, since)?);
        }
        if first > 1 {
            self.and("e.seq >= ?", [first.into()]);
        }
        if let Some(run) = run {
            self.and("e.run = ?", [run.into()]);
        }
        if !filter.ops.is_empty() {
            let marks = vec!["?"; filter.ops.len()].join(",");
            let codes: Vec<Value> = filter.ops.iter().map(|&op| op_code(op).into()).collect();
            self.and(&format!("+e.op IN ({marks})"), codes);
        }
        let by_process = !filter.exes.is_empty() || filter.pid.is_some();
        if by_process {
            if select_processes(conn, filter)? == 0 {
                return Ok(());
            }
            self.and("+e.process IN (SELECT id FROM temp.wanted_process)", []);
        }
        let by_path = !filter.paths.is_empty();
        if by_path && !select_paths(conn, &filter.paths)? {
            return Ok(());
        }
        if filter.denied {
            self.and("e.outcome = 1", []);
        }
        if filter.changed {
            self.and("e.change = 1", []);
        }
        let few = by_path && few_events(conn)?;
        if by_path && !few {
            self.and(
                "(+e.target IN (SELECT id FROM temp.wanted_target) \
                 OR +e.path2 IN (SELECT id FROM temp.wanted_path))",
                [],
            );
        }
        self.drive = if few {
            Drive::Paths
        } else if filter.denied {
            Drive::Marked("event_denied")
        } else if by_process {
            // A program has as many rows as blocks, its processes have many times as many.
            let by_program = filter.pid.is_none()
                && Store::has_counts(conn).map_err(Error::sql("look for blocks"))?;
            let sql = if by_program {
                "SELECT DISTINCT block FROM exe_block WHERE exe IN \
                 (SELECT exe FROM process WHERE id IN (SELECT id FROM temp.wanted_process)) ORDER BY block"
            } else {
                "SELECT DISTINCT block FROM process_block WHERE process IN (SELECT id FROM temp.wanted_process) \
                 ORDER BY block"
            };
            Drive::Ranges(blocks(conn, sql, [].as_slice())?)
        } else if filter.changed {
            Drive::Marked("event_changed")
        } else if let Some(run) = run {
            let sql = "SELECT block FROM run_block WHERE run = ? ORDER BY block";
            Drive::Ranges(blocks(conn, sql, &[run])?)
        } else {
            Drive::Ranges(vec![(first, i64::MAX)])
        };
        if let Drive::Ranges(ranges) = &mut self.drive {
            // What lies before isn't read to be left out.
            ranges.retain(|(_, last)| *last >= first);
            for range in ranges {
                range.0 = range.0.max(first);
            }
        }
        Ok(())
    }

    fn run(
        mut self,
        dict: &mut Dict<'_>,
        each: &mut dyn FnMut(Stored) -> ControlFlow<()>,
    ) -> Result<()> {
        let conditions = std::mem::take(&mut self.conditions);
        let order = if self.last.is_some() { "DESC" } else { "ASC" };
        let limit = self.last.map_or(-1, |last| i64::try_from(last).unwrap_or(i64::MAX));
        match std::mem::replace(&mut self.drive, Drive::Nothing) {
            Drive::Nothing => Ok(()),
            Drive::Marked(index) => {
                // The index begins with the run; without one, every run's part of it is read.
                let sql = format!(
                    "SELECT {EVENT_COLUMNS} FROM event e INDEXED BY {index} WHERE e.run IN (SELECT id FROM run) \
                     {conditions} ORDER BY e.seq {order} LIMIT {limit}"
                );
                self.answer(&sql, &[], dict, each).map(drop)
            }
            Drive::Paths => {
                let sql = format!(
                    "SELECT {EVENT_COLUMNS} FROM event e WHERE e.seq IN \
                     (SELECT seq FROM event WHERE target IN (SELECT id FROM temp.wanted_target) UNION \
                      SELECT seq FROM event WHERE path2 IN (SELECT id FROM temp.wanted_path)) \
                     {} ORDER BY e.seq {order} LIMIT {limit}",
                    conditions
                        .replace("e.run =", "+e.run =")
                        .replace("e.outcome =", "+e.outcome =")
                        .replace("e.change =", "+e.change =")
                );
                self.answer(&sql, &[], dict, each).map(drop)
            }
            Drive::Ranges(mut ranges) => {
                let sql = format!(
                    "SELECT {EVENT_COLUMNS} FROM event e NOT INDEXED WHERE e.seq BETWEEN ? AND ? {conditions} \
                     ORDER BY e.seq {order} LIMIT ?"
                );
                if self.last.is_none() {
                    for (first, last) in ranges {
                        if self.answer(&sql, &[first, last, -1], dict, each)?.is_none() {
                            break;
                        }
                    }
                    return Ok(());
                }
                // From the end, in pieces that grow until enough was found; then forwards.
                let mut left = limit;
                let mut found = Vec::new();
                while let Some((first, last)) = ranges.pop() {
                    let mut keep = |event| {
                        found.push(event);
                        ControlFlow::Continue(())
                    };
                    let got =
                        self.rows(&sql, &[first, last, left], dict, &mut keep)?.unwrap_or_default();
                    left -= got;
                    if left <= 0 {
                        break;
                    }
                }
                for event in found.into_iter().rev() {
                    if each(event).is_break() {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// Gives the answers in order of `seq`. Returns how many, or none if they were broken off.
    fn answer(
        &self,
        sql: &str,
        before: &[i64],
        dict: &mut Dict<'_>,
        each: &mut dyn FnMut(Stored) -> ControlFlow<()>,
    ) -> Result<Option<i64>> {
        if self.last.is_none() {
            return self.rows(sql, before, dict, each);
        }
        let mut found = Vec::new();
        let mut keep = |event| {
            found.push(event);
            ControlFlow::Continue(())
        };
        let count = self.rows(sql, before, dict, &mut keep)?;
        for event in found.into_iter().rev() {
            if each(event).is_break() {
                return Ok(None);
            }
        }
        Ok(count)
    }

    fn rows(
        &self,
        sql: &str,
        around: &[i64],
        dict: &mut Dict<'_>,
        each: &mut dyn FnMut(Stored) -> ControlFlow<()>,
    ) -> Result<Option<i64>> {
        let failed = "read events";
        let mut select = self.conn.prepare_cached(sql).map_err(Error::sql(failed))?;
        // A range comes first in the text and its limit last.
        let (range, limit) = around.split_at(around.len().min(2));
        let values = range
            .iter()
            .map(|&value| Value::from(value))
            .chain(self.values.iter().cloned())
            .chain(limit.iter().map(|&value| Value::from(value)));
        let mut rows = select.query(params_from_iter(values)).map_err(Error::sql(failed))?;
        let mut count = 0;
        while let Some(row) = rows.next().map_err(Error::sql(failed))? {
            count += 1;
            if each(dict.event(row)?).is_break() {
                return Ok(None);
            }
        }
        Ok(Some(count))
    }
}

pub(crate) fn run_id(conn: &Connection, name: &str) -> Result<i64> {
    conn.query_row("SELECT id FROM run WHERE name = ?", [name], |row| row.get(0))
        .optional()
        .map_err(Error::sql("look for the run"))?
        .ok_or_else(|| Error::NoRun(name.to_owned()))
}

/// Returns the first `seq` that can be of a time or later: an event is committed after it ended.
fn first_after(conn: &Connection, since: Time) -> Result<i64> {
    let search = || -> rusqlite::Result<i64> {
        let mut at = conn.prepare_cached("SELECT time, last_event FROM chain WHERE id = ?")?;
        let (mut low, mut high): (i64, i64) =
            (0, conn.query_row("SELECT coalesce(max(id), 0) FROM chain", [], |row| row.get(0))?);
        let mut seq = 0;
        while low < high {
            let middle = low + (high - low + 1) / 2;
            let (time, last): (i64, i64) =
                at.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?)))?;
            if time < since.0 {
                (low, seq) = (middle, last);
            } else {
                high = middle - 1;
            }
        }
        Ok(seq + 1)
    };
    search().map_err(Error::sql("look for a time"))
}

/// Turns block numbers into ranges of `seq`.
fn blocks(conn: &Connection, sql: &str, values: &[i64]) -> Result<Vec<(i64, i64)>> {
    let read = || -> rusqlite::Result<Vec<i64>> {
        conn.prepare_cached(sql)?.query_map(params_from_iter(values), |row| row.get(0))?.collect()
    };
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for block in read().map_err(Error::sql("look for blocks"))? {
        let (first, last) = (block * BLOCK, (block + 1) * BLOCK - 1);
        match ranges.last_mut() {
            Some(range) if range.1 + 1 == first && range.1 - range.0 < 64 * BLOCK => range.1 = last,
            Some(_) | None => ranges.push((first, last)),
        }
    }
    Ok(ranges)
}

fn select_processes(conn: &Connection, filter: &Filter) -> Result<usize> {
    let select = || -> Result<usize, rusqlite::Error> {
        conn.execute_batch(
            "CREATE TEMP TABLE IF NOT EXISTS wanted_process (id INTEGER PRIMARY KEY); \
             DELETE FROM temp.wanted_process;",
        )?;
        Ok(0)
    };
    select().map_err(Error::sql("set up a filter"))?;
    let set = globs(&filter.exes)?;
    let failed = "look for programs";
    let exes: Vec<i64> = {
        let mut select = conn
            .prepare_cached("SELECT id, bytes FROM path WHERE id IN (SELECT exe FROM process)")
            .map_err(Error::sql(failed))?;
        let rows = select
            .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))
            .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
            .map_err(Error::sql(failed))?;
        rows.into_iter()
            .filter(|(_, exe)| filter.exes.is_empty() || set.is_match(path_from(exe.clone())))
            .map(|(id, _)| id)
            .collect()
    };
    let mut found = 0;
    for exe in exes {
        found += conn
            .prepare_cached(
                "INSERT INTO temp.wanted_process SELECT id FROM process WHERE exe = ?1 AND (?2 IS NULL OR pid = ?2)",
            )
            .and_then(|mut insert| insert.execute(params![exe, filter.pid]))
            .map_err(Error::sql(failed))?;
    }
    Ok(found)
}

/// Fills the temporary tables of wanted paths and targets; returns whether there are any.
fn select_paths(conn: &Connection, patterns: &[String]) -> Result<bool> {
    let failed = "look for paths";
    conn.execute_batch(
        "CREATE TEMP TABLE IF NOT EXISTS wanted_path (id INTEGER PRIMARY KEY); DELETE FROM temp.wanted_path; \
         CREATE TEMP TABLE IF NOT EXISTS wanted_target (id INTEGER PRIMARY KEY); DELETE FROM temp.wanted_target;",
    )
    .map_err(Error::sql("set up a filter"))?;
    let mut any = false;
    for pattern in patterns {
        let set = globs(std::slice::from_ref(pattern))?;
        let prefix = literal_prefix(pattern).unwrap_or_default().as_bytes();
        let mut insert = conn
            .prepare_cached("INSERT OR IGNORE INTO temp.wanted_path VALUES (?)")
            .map_err(Error::sql(failed))?;
        let mut select = conn
            .prepare_cached("SELECT id, bytes FROM path WHERE bytes >= ? ORDER BY bytes")
            .map_err(Error::sql(failed))?;
        let mut rows = select.query([prefix]).map_err(Error::sql(failed))?;
        while let Some(row) = rows.next().map_err(Error::sql(failed))? {
            let bytes: Vec<u8> = row.get(1).map_err(Error::sql(failed))?;
            if !bytes.starts_with(prefix) {
                break;
            }
            if set.is_match(path_from(bytes)) {
                let id: i64 = row.get(0).map_err(Error::sql(failed))?;
                insert.execute([id]).map_err(Error::sql(failed))?;
                any = true;
            }
        }
    }
    conn.execute(
        "INSERT INTO temp.wanted_target SELECT id FROM target WHERE path IN (SELECT id FROM temp.wanted_path)",
        [],
    )
    .map_err(Error::sql(failed))?;
    Ok(any)
}

/// Returns whether the wanted paths have so few events that their indices are the way to them.
fn few_events(conn: &Connection) -> Result<bool> {
    let count: i64 = conn
        .query_row(
            "SELECT count(*) FROM (SELECT 1 FROM event WHERE target IN (SELECT id FROM temp.wanted_target) LIMIT ?)",
            [FEW + 1],
            |row| row.get(0),
        )
        .map_err(Error::sql("count events"))?;
    Ok(count <= FEW)
}
