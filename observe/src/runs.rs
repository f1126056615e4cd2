//! The runs that a log holds.

use std::path::PathBuf;

use rusqlite::{OptionalExtension, Row};
use stockade_policy::{Mode, ModeSource};

use crate::bytes::{path_from, split_nul};
use crate::error::{Error, Result};
use crate::event::{RunId, Time};
use crate::live::is_live;
use crate::run::{Ending, RunInfo, RunOutcome, RunSummary};
use crate::store::Store;

/// A run as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// How it began.
    pub info: RunInfo,
    /// How it ended; none while it goes on, or if nobody has opened the log since its recorder died.
    pub end: Option<RunEnd>,
    /// Whether its recorder lives.
    pub live: bool,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// When; for an interrupted run, when that was noticed.
    pub time: Time,
    /// In which way.
    pub outcome: RunOutcome,
    /// Events that are known to be missing.
    pub lost: u64,
    /// The most events that can be missing beyond that.
    pub at_most: u64,
    /// What came of it; none for an interrupted run, see [`Store::run_summary`].
    pub summary: Option<RunSummary>,
}

const SELECT: &str = "SELECT r.name, r.started, r.argv, r.cwd, r.mode, r.source, r.root, r.writable_roots, r.backend, \
    e.time, e.outcome, e.exit_code, e.signal, e.lost, e.at_most, e.summary \
    FROM run r LEFT JOIN run_end e ON e.run = r.id";

impl Store {
    /// Returns the session's runs, in the order in which they began.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn runs(&self) -> Result<Vec<RunRow>> {
        let failed = "read the runs";
        let mut select =
            self.conn.prepare(&format!("{SELECT} ORDER BY r.id")).map_err(Error::sql(failed))?;
        let mut rows = select.query([]).map_err(Error::sql(failed))?;
        let mut runs = Vec::new();
        while let Some(row) = rows.next().map_err(Error::sql(failed))? {
            runs.push(self.run_row(row)?);
        }
        Ok(runs)
    }

    /// Returns a run.
    ///
    /// # Errors
    /// The session has no such run, or the log can't be read.
    pub fn run(&self, run: &RunId) -> Result<RunRow> {
        self.one_run("WHERE r.name = ?", Some(&run.0))?.ok_or_else(|| Error::NoRun(run.to_string()))
    }

    /// Returns the run that began last, if there is one.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn last_run(&self) -> Result<Option<RunRow>> {
        self.one_run("ORDER BY r.id DESC LIMIT 1", None)
    }

    fn one_run(&self, which: &str, name: Option<&str>) -> Result<Option<RunRow>> {
        let failed = "read the run";
        let mut select =
            self.conn.prepare(&format!("{SELECT} {which}")).map_err(Error::sql(failed))?;
        let mut rows =
            select.query(rusqlite::params_from_iter(name.iter())).map_err(Error::sql(failed))?;
        rows.next().map_err(Error::sql(failed))?.map(|row| self.run_row(row)).transpose()
    }

    fn run_row(&self, row: &Row<'_>) -> Result<RunRow> {
        let failed = "read the run";
        let name: String = row.get(0).map_err(Error::sql(failed))?;
        let end = read_end(row).map_err(Error::sql(failed))?;
        let (info, mode, source) = read_info(row, &name).map_err(Error::sql(failed))?;
        let info = RunInfo {
            mode: mode.parse().map_err(|_| Error::Damaged(format!("mode `{mode}`")))?,
            source: match source.as_str() {
                "default" => ModeSource::Default,
                "session" => ModeSource::Session,
                "approved" => ModeSource::Approved,
                other => return Err(Error::Damaged(format!("source `{other}`"))),
            },
            ..info
        };
        let end = match end {
            None => None,
            Some((outcome, end, summary)) => Some(RunEnd {
                outcome: RunOutcome {
                    ending: Ending::from_name(&outcome)
                        .ok_or_else(|| Error::Damaged(format!("outcome `{outcome}`")))?,
                    ..end.outcome
                },
                // A summary of a later format is done without; it can be worked out anew.
                summary: summary.and_then(|text| serde_json::from_str(&text).ok()),
                ..end
            }),
        };
        let live = end.is_none() && is_live(&self.dir, &name);
        Ok(RunRow { info, end, live })
    }

    /// Returns the number of the log's last event, 0 if there is none.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn last_seq(&self) -> Result<i64> {
        self.conn
            .query_row("SELECT coalesce(max(seq), 0) FROM event", [], |row| row.get(0))
            .optional()
            .map(Option::unwrap_or_default)
            .map_err(Error::sql("read the log"))
    }
}

fn read_info(row: &Row<'_>, name: &str) -> rusqlite::Result<(RunInfo, String, String)> {
    let argv: Vec<u8> = row.get(2)?;
    let roots: Vec<u8> = row.get(7)?;
    let info = RunInfo {
        id: RunId(name.into()),
        started: Time(row.get(1)?),
        argv: split_nul(&argv).map(|arg| path_from(arg.to_vec()).into_os_string()).collect(),
        cwd: row.get(3).map(path_from)?,
        mode: Mode::ReadOnly,
        source: ModeSource::Default,
        root: row.get(6).map(path_from)?,
        writable_roots: split_nul(&roots)
            .map(|root| path_from(root.to_vec()))
            .collect::<Vec<PathBuf>>(),
        backend: row.get(8)?,
    };
    Ok((info, row.get(4)?, row.get(5)?))
}

fn read_end(row: &Row<'_>) -> rusqlite::Result<Option<(String, RunEnd, Option<String>)>> {
    let Some(time) = row.get::<_, Option<i64>>(9)? else { return Ok(None) };
    let end = RunEnd {
        time: Time(time),
        outcome: RunOutcome {
            ending: Ending::Interrupted,
            exit_code: row.get(11)?,
            signal: row.get(12)?,
        },
        lost: row.get::<_, i64>(13)?.cast_unsigned(),
        at_most: row.get::<_, i64>(14)?.cast_unsigned(),
        summary: None,
    };
    Ok(Some((row.get(10)?, end, row.get(15)?)))
}
