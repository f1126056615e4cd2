//! Proving that a log is what was written (contract O4).
//!
//! The chain shows tampering to whoever holds a head from before: the newest head is kept beside the log, each run's
//! summary carries one, and `log verify --head` takes one from elsewhere. Who can write all of these can write history
//! anew; that takes a copy outside this machine to notice.

use std::fmt;

use rusqlite::Connection;

use crate::chain::{Encoder, Entry, RowHasher, TABLES, Table, tag};
use crate::error::{Error, Result};
use crate::live::{hex, read_head};
use crate::store::Store;

/// What is wrong with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It isn't what was written.
    Changed,
    /// It is gone.
    Deleted,
    /// Nobody wrote it.
    Inserted,
    /// It stands where another one was written.
    Reordered,
}

/// The first thing that is wrong with a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A row is wrong.
    Row {
        /// In this table.
        table: &'static str,
        /// With this id (an event's `seq`).
        id: i64,
        /// In this way.
        fault: Fault,
    },
    /// Some of a batch's rows are wrong, and so made that it can't be said which.
    Batch {
        /// The chain's entry.
        entry: i64,
    },
    /// An entry of the chain is missing or doesn't follow from the one before.
    Chain {
        /// The chain's entry.
        entry: i64,
    },
    /// The chain ends before an entry that is known to have been written. After a power failure this can be what the
    /// disk lost; otherwise the tail was cut off.
    Truncated {
        /// The last entry that is there.
        last: i64,
        /// The entry that is known of, if by its number.
        known: Option<i64>,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row { table, id, fault } => {
                let what = match fault {
                    Fault::Changed => "was changed",
                    Fault::Deleted => "was deleted",
                    Fault::Inserted => "was inserted",
                    Fault::Reordered => "stands in another row's place",
                };
                write!(f, "{table} {id} {what}")
            }
            Self::Batch { entry } => write!(f, "rows of batch {entry} were changed"),
            Self::Chain { entry } => {
                write!(f, "batch {entry} doesn't follow from the one before it")
            }
            Self::Truncated { last, known: Some(known) } => {
                write!(f, "the log ends with batch {last}, but batch {known} was written")
            }
            Self::Truncated { last, known: None } => {
                write!(f, "the log ends with batch {last} and doesn't hold the given head")
            }
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Batches checked.
    pub batches: i64,
    /// Rows checked.
    pub rows: u64,
    /// Events among them.
    pub events: i64,
    /// The head of the chain, in hexadecimal.
    pub head: String,
    /// The first thing that is wrong.
    pub problem: Option<Problem>,
    /// Runs whose recorder died, and the most events that each can have lost.
    pub interrupted: Vec<(String, u64)>,
    /// Events that were known to be lost when they couldn't be written.
    pub lost: u64,
}

impl VerifyReport {
    /// Returns whether the log is what was written.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.problem.is_none()
    }
}

impl Store {
    /// Checks the whole log against its chain, and against a head that the caller kept.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn verify(&self, head: Option<&str>) -> Result<VerifyReport> {
        // Before the snapshot, since the file may only be behind it.
        let remembered = read_head(&self.dir);
        let tx = self.conn.unchecked_transaction().map_err(Error::sql("read the log"))?;
        let report = verify(&tx, remembered, head).map_err(Error::sql("verify the log"))?;
        tx.rollback().map_err(Error::sql("end reading"))?;
        Ok(report)
    }
}

fn verify(
    conn: &Connection,
    remembered: Option<(i64, String)>,
    head: Option<&str>,
) -> rusqlite::Result<VerifyReport> {
    let mut check = Check { conn, before: Entry::origin(), rows: 0 };
    let mut problem = None;
    let mut known_head = head.is_none();
    let mut select = conn.prepare(
        "SELECT id, time, last_path, last_process, last_target, last_rule, last_run, last_run_end, \
         last_session_event, last_event, digest, hash, tags FROM chain ORDER BY id",
    )?;
    let mut entries = select.query([])?;
    while let Some(row) = entries.next()? {
        let entry = Entry::from_row(row)?;
        let tags: Vec<u8> = row.get(TABLES + 4)?;
        problem = check.entry(&entry, &tags)?;
        if problem.is_some() {
            break;
        }
        let hash = hex(&entry.hash);
        known_head |= head.is_some_and(|head| head.eq_ignore_ascii_case(&hash));
        if let Some((id, expected)) = &remembered
            && *id == entry.id
            && *expected != hash
        {
            problem = Some(Problem::Chain { entry: entry.id });
            break;
        }
        check.before = entry;
    }
    if problem.is_none() {
        problem = check.nothing_after()?;
    }
    let last = check.before.id;
    if problem.is_none() {
        problem = match remembered {
            Some((known, _)) if known > last => {
                Some(Problem::Truncated { last, known: Some(known) })
            }
            Some(_) | None if !known_head => Some(Problem::Truncated { last, known: None }),
            Some(_) | None => None,
        };
    }
    let interrupted = conn
        .prepare(
            "SELECT r.name, e.at_most FROM run_end e JOIN run r ON r.id = e.run \
             WHERE e.outcome = 'interrupted' ORDER BY e.id",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())))?
        .collect::<rusqlite::Result<_>>()?;
    let lost: i64 =
        conn.query_row("SELECT coalesce(sum(lost), 0) FROM run_end", [], |row| row.get(0))?;
    Ok(VerifyReport {
        batches: last,
        rows: check.rows,
        events: check.before.lasts[Table::Event.index()],
        head: hex(&check.before.hash),
        problem,
        interrupted,
        lost: lost.cast_unsigned(),
    })
}

struct Check<'c> {
    conn: &'c Connection,
    before: Entry,
    rows: u64,
}

impl Check<'_> {
    fn entry(&mut self, entry: &Entry, tags: &[u8]) -> rusqlite::Result<Option<Problem>> {
        let broken = Problem::Chain { entry: entry.id };
        if entry.id != self.before.id + 1 {
            return Ok(Some(Problem::Chain { entry: self.before.id + 1 }));
        }
        if entry.hash != entry.expected_hash(&self.before.hash) {
            return Ok(Some(broken));
        }
        let added: i64 =
            entry.lasts.iter().zip(&self.before.lasts).map(|(last, before)| last - before).sum();
        if i64::try_from(tags.len()) != Ok(added * 4) {
            return Ok(Some(broken));
        }
        let mut hasher = RowHasher::new();
        let mut tags_left = tags;
        for table in Table::ALL {
            let (first, last) = (self.before.lasts[table.index()], entry.lasts[table.index()]);
            let length = usize::try_from((last - first) * 4).unwrap_or(0).min(tags_left.len());
            let (these, rest) = tags_left.split_at(length);
            tags_left = rest;
            if let Some(problem) = self.table(table, first, last, these, &mut hasher)? {
                return Ok(Some(problem));
            }
        }
        let (digest, _) = hasher.finish();
        Ok((digest != entry.digest).then_some(Problem::Batch { entry: entry.id }))
    }

    fn table(
        &mut self,
        table: Table,
        first: i64,
        last: i64,
        tags: &[u8],
        hasher: &mut RowHasher,
    ) -> rusqlite::Result<Option<Problem>> {
        if first == last {
            return Ok(None);
        }
        let fault = |id, fault| Some(Problem::Row { table: table.name(), id, fault });
        let mut select = self.conn.prepare_cached(table.select())?;
        let columns = select.column_count();
        let mut rows = select.query([first, last])?;
        let mut encoder = Encoder::default();
        for (expected, wanted) in (first + 1..).zip(tags.chunks_exact(4)) {
            let Some(row) = rows.next()? else { return Ok(fault(expected, Fault::Deleted)) };
            let id: i64 = row.get(0)?;
            if id != expected {
                return Ok(fault(expected, Fault::Deleted));
            }
            encoder.start(table);
            for column in 0..columns {
                encoder.value(row.get_ref(column)?);
            }
            let found = tag(encoder.bytes_so_far());
            if found != *wanted {
                let moved = self.is_moved(table, first, last, id, wanted)?;
                return Ok(fault(id, if moved { Fault::Reordered } else { Fault::Changed }));
            }
            hasher.add(table, encoder.bytes_so_far());
            self.rows += 1;
        }
        Ok(None)
    }

    /// Returns whether the row that belongs at `id` stands elsewhere in its batch.
    fn is_moved(
        &self,
        table: Table,
        first: i64,
        last: i64,
        id: i64,
        wanted: &[u8],
    ) -> rusqlite::Result<bool> {
        let mut select = self.conn.prepare(table.select())?;
        let columns = select.column_count();
        let mut rows = select.query([first, last])?;
        let mut encoder = Encoder::default();
        while let Some(row) = rows.next()? {
            encoder.start(table);
            encoder.value(rusqlite::types::ValueRef::Integer(id));
            for column in 1..columns {
                encoder.value(row.get_ref(column)?);
            }
            if tag(encoder.bytes_so_far()) == *wanted {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finds a row that no entry of the chain speaks of.
    fn nothing_after(&self) -> rusqlite::Result<Option<Problem>> {
        for table in Table::ALL {
            let last = self.before.lasts[table.index()];
            let mut select = self.conn.prepare(table.select())?;
            for range in [(last, i64::MAX), (i64::MIN, 0)] {
                let mut rows = select.query([range.0, range.1])?;
                if let Some(row) = rows.next()? {
                    let id = row.get(0)?;
                    return Ok(Some(Problem::Row {
                        table: table.name(),
                        id,
                        fault: Fault::Inserted,
                    }));
                }
            }
        }
        Ok(None)
    }
}
