//! Appending rows under a hash chain (contract O4).
//!
//! - I1: rows are added by [`Append::row`] only; what is bound is what is hashed.
//! - I2: ids of each covered table are gapless: the id after the last one of the chain's last entry.
//! - I3: one transaction writes one entry of the chain, and sees the entry before it.

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Transaction, TransactionBehavior};
use sha2::{Digest, Sha256};

use crate::event::Time;

/// A table that the chain covers. The order is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Path,
    Process,
    Target,
    Rule,
    Run,
    RunEnd,
    SessionEvent,
    Event,
}

pub(crate) const TABLES: usize = 8;

impl Table {
    pub(crate) const ALL: [Self; TABLES] = [
        Self::Path,
        Self::Process,
        Self::Target,
        Self::Rule,
        Self::Run,
        Self::RunEnd,
        Self::SessionEvent,
        Self::Event,
    ];

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Path => 0,
            Self::Process => 1,
            Self::Target => 2,
            Self::Rule => 3,
            Self::Run => 4,
            Self::RunEnd => 5,
            Self::SessionEvent => 6,
            Self::Event => 7,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Process => "process",
            Self::Target => "target",
            Self::Rule => "rule",
            Self::Run => "run",
            Self::RunEnd => "run_end",
            Self::SessionEvent => "session_event",
            Self::Event => "event",
        }
    }

    const fn insert(self) -> &'static str {
        match self {
            Self::Path => "INSERT INTO path VALUES (?,?)",
            Self::Process => "INSERT INTO process VALUES (?,?,?,?,?,?,?,?)",
            Self::Target => "INSERT INTO target VALUES (?,?,?,?,?)",
            Self::Rule => "INSERT INTO rule VALUES (?,?,?)",
            Self::Run => "INSERT INTO run VALUES (?,?,?,?,?,?,?,?,?,?)",
            Self::RunEnd => "INSERT INTO run_end VALUES (?,?,?,?,?,?,?,?,?)",
            Self::SessionEvent => "INSERT INTO session_event VALUES (?,?,?,?)",
            Self::Event => "INSERT INTO event VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        }
    }

    /// Selects the rows after one id up to another, in order, with `id` first.
    pub(crate) const fn select(self) -> &'static str {
        match self {
            Self::Path => "SELECT * FROM path WHERE id > ? AND id <= ? ORDER BY id",
            Self::Process => "SELECT * FROM process WHERE id > ? AND id <= ? ORDER BY id",
            Self::Target => "SELECT * FROM target WHERE id > ? AND id <= ? ORDER BY id",
            Self::Rule => "SELECT * FROM rule WHERE id > ? AND id <= ? ORDER BY id",
            Self::Run => "SELECT * FROM run WHERE id > ? AND id <= ? ORDER BY id",
            Self::RunEnd => "SELECT * FROM run_end WHERE id > ? AND id <= ? ORDER BY id",
            Self::SessionEvent => {
                "SELECT * FROM session_event WHERE id > ? AND id <= ? ORDER BY id"
            }
            Self::Event => "SELECT * FROM event WHERE seq > ? AND seq <= ? ORDER BY seq",
        }
    }
}

/// The last ids of each table.
pub(crate) type Lasts = [i64; TABLES];

/// An entry of the chain, without what it covers.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub id: i64,
    pub time: i64,
    pub lasts: Lasts,
    pub digest: Vec<u8>,
    pub hash: Vec<u8>,
}

impl Entry {
    /// What comes before the first entry.
    pub(crate) fn origin() -> Self {
        Self { id: 0, time: 0, lasts: [0; TABLES], digest: Vec::new(), hash: vec![0; 32] }
    }

    pub(crate) fn last(conn: &Connection) -> rusqlite::Result<Self> {
        let found = conn
            .prepare_cached(
                "SELECT id, time, last_path, last_process, last_target, last_rule, last_run, last_run_end, \
                 last_session_event, last_event, digest, hash FROM chain ORDER BY id DESC LIMIT 1",
            )?
            .query_row([], Self::from_row)
            .optional()?;
        Ok(found.unwrap_or_else(Self::origin))
    }

    pub(crate) fn from_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let mut lasts = [0; TABLES];
        for (at, last) in lasts.iter_mut().enumerate() {
            *last = row.get(at + 2)?;
        }
        Ok(Self {
            id: row.get(0)?,
            time: row.get(1)?,
            lasts,
            digest: row.get(TABLES + 2)?,
            hash: row.get(TABLES + 3)?,
        })
    }

    /// Returns the hash that this entry must have after one with the hash `before`.
    pub(crate) fn expected_hash(&self, before: &[u8]) -> Vec<u8> {
        let mut hasher = Sha256::new();
        hasher.update(b"stockade log 1\0");
        hasher.update(before);
        hasher.update(self.id.to_le_bytes());
        hasher.update(self.time.to_le_bytes());
        for last in self.lasts {
            hasher.update(last.to_le_bytes());
        }
        hasher.update(&self.digest);
        hasher.finalize().to_vec()
    }
}

/// Hashes the rows of one entry, table by table.
pub(crate) struct RowHasher {
    tables: [(Sha256, Vec<u8>); TABLES],
}

impl RowHasher {
    pub(crate) fn new() -> Self {
        Self { tables: std::array::from_fn(|_| (Sha256::new(), Vec::new())) }
    }

    /// Takes one encoded row.
    pub(crate) fn add(&mut self, table: Table, row: &[u8]) {
        let (hasher, tags) = &mut self.tables[table.index()];
        hasher.update(row);
        tags.extend_from_slice(&tag(row));
    }

    /// Returns the digest and the tags.
    pub(crate) fn finish(self) -> (Vec<u8>, Vec<u8>) {
        let mut all = Sha256::new();
        let mut all_tags = Vec::new();
        for (hasher, tags) in self.tables {
            all.update(hasher.finalize());
            all_tags.extend_from_slice(&tags);
        }
        all.update(&all_tags);
        (all.finalize().to_vec(), all_tags)
    }
}

/// Tells rows of one entry apart, to name the wrong one; the digest is what makes forging hard.
pub(crate) fn tag(row: &[u8]) -> [u8; 4] {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for &byte in row {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let folded = (hash ^ (hash >> 32)) & 0xffff_ffff;
    u32::try_from(folded).unwrap_or(u32::MAX).to_le_bytes()
}

/// The encoding of a row's columns that is hashed.
#[derive(Debug, Default)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    pub(crate) fn start(&mut self, table: Table) {
        self.0.clear();
        self.0.extend_from_slice(table.name().as_bytes());
    }

    fn int(&mut self, value: i64) {
        self.0.push(1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, kind: u8, value: &[u8]) {
        self.0.push(kind);
        self.0.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(value);
    }

    /// Adds a column as it was read back.
    pub(crate) fn value(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Null => self.0.push(0),
            ValueRef::Integer(value) => self.int(value),
            ValueRef::Real(value) => self.bytes(2, &value.to_le_bytes()),
            ValueRef::Text(value) => self.bytes(3, value),
            ValueRef::Blob(value) => self.bytes(4, value),
        }
    }

    pub(crate) fn bytes_so_far(&self) -> &[u8] {
        &self.0
    }
}

/// One row being added: binds columns in order and encodes the same values.
pub(crate) struct Row<'a, 'c> {
    statement: &'a mut CachedStatement<'c>,
    encoder: &'a mut Encoder,
    column: usize,
}

impl Row<'_, '_> {
    pub(crate) fn int(&mut self, value: i64) -> rusqlite::Result<&mut Self> {
        self.column += 1;
        self.encoder.int(value);
        self.statement.raw_bind_parameter(self.column, value)?;
        Ok(self)
    }

    pub(crate) fn opt_int(&mut self, value: Option<i64>) -> rusqlite::Result<&mut Self> {
        match value {
            Some(value) => self.int(value),
            None => {
                self.column += 1;
                self.encoder.value(ValueRef::Null);
                self.statement.raw_bind_parameter(self.column, rusqlite::types::Null)?;
                Ok(self)
            }
        }
    }

    pub(crate) fn blob(&mut self, value: &[u8]) -> rusqlite::Result<&mut Self> {
        self.column += 1;
        self.encoder.bytes(4, value);
        self.statement.raw_bind_parameter(self.column, value)?;
        Ok(self)
    }

    pub(crate) fn text(&mut self, value: &str) -> rusqlite::Result<&mut Self> {
        self.column += 1;
        self.encoder.bytes(3, value.as_bytes());
        self.statement.raw_bind_parameter(self.column, value)?;
        Ok(self)
    }

    pub(crate) fn opt_text(&mut self, value: Option<&str>) -> rusqlite::Result<&mut Self> {
        match value {
            Some(value) => self.text(value),
            None => self.opt_int(None),
        }
    }
}

/// A transaction that adds one entry to the chain. Dropping it adds nothing.
#[must_use = "dropping this rolls back"]
pub(crate) struct Append<'c> {
    tx: Transaction<'c>,
    conn: &'c Connection,
    before: Entry,
    lasts: Lasts,
    hasher: RowHasher,
    encoder: Encoder,
}

impl<'c> Append<'c> {
    pub(crate) fn begin(conn: &'c Connection) -> rusqlite::Result<Self> {
        Self::within(Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?, conn)
    }

    /// Goes on with a transaction on this connection that was begun before.
    pub(crate) fn within(tx: Transaction<'c>, conn: &'c Connection) -> rusqlite::Result<Self> {
        let before = Entry::last(&tx)?;
        let lasts = before.lasts;
        Ok(Self { tx, conn, before, lasts, hasher: RowHasher::new(), encoder: Encoder::default() })
    }

    pub(crate) fn conn(&self) -> &'c Connection {
        self.conn
    }

    /// Adds a row and returns its id; `fill` gives the columns after the id.
    pub(crate) fn row(
        &mut self,
        table: Table,
        fill: impl FnOnce(&mut Row<'_, '_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<i64> {
        let id = self.lasts[table.index()] + 1;
        let mut statement = self.conn.prepare_cached(table.insert())?;
        self.encoder.start(table);
        let mut row = Row { statement: &mut statement, encoder: &mut self.encoder, column: 0 };
        row.int(id)?;
        fill(&mut row)?;
        statement.raw_execute()?;
        self.hasher.add(table, self.encoder.bytes_so_far());
        self.lasts[table.index()] = id;
        Ok(id)
    }

    /// Writes the entry and commits. Nothing added: nothing written.
    pub(crate) fn commit(self) -> rusqlite::Result<Entry> {
        if self.lasts == self.before.lasts {
            self.tx.rollback()?;
            return Ok(self.before);
        }
        let (digest, tags) = self.hasher.finish();
        let mut entry = Entry {
            id: self.before.id + 1,
            time: Time::now().0,
            lasts: self.lasts,
            digest,
            hash: Vec::new(),
        };
        entry.hash = entry.expected_hash(&self.before.hash);
        {
            let mut insert =
                self.conn.prepare_cached("INSERT INTO chain VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)")?;
            insert.raw_bind_parameter(1, entry.id)?;
            insert.raw_bind_parameter(2, entry.time)?;
            for (at, last) in entry.lasts.iter().enumerate() {
                insert.raw_bind_parameter(at + 3, last)?;
            }
            insert.raw_bind_parameter(TABLES + 3, &entry.digest)?;
            insert.raw_bind_parameter(TABLES + 4, &tags)?;
            insert.raw_bind_parameter(TABLES + 5, &entry.hash)?;
            insert.raw_execute()?;
        }
        self.tx.commit()?;
        Ok(entry)
    }
}
