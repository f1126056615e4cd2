//! Turns events into rows.
//!
//! Caches only speed up what the tables already hold; they are dropped whenever a batch fails, so an id of a row that
//! was rolled back is never used.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use stockade_policy::Denial;

use crate::bytes::{join_nul, path_bytes};
use crate::chain::{Append, Entry, Table};
use crate::error::{Error, Result};
use crate::event::{Event, Key, Op, Outcome, Process, Publication, Time, Version};
use crate::observed::Observed;
use crate::recent::Recent;
use crate::run::{Ending, RunInfo, RunOutcome};
use crate::store::{Store, op_code};
use crate::touch::{Touch, is_change};

/// Events in a block of the block tables.
pub(crate) const BLOCK: i64 = 4096;

/// Appends the events of one run.
#[derive(Debug)]
pub(crate) struct Writer {
    store: Store,
    run: i64,
    caches: Caches,
}

#[derive(Debug)]
struct Caches {
    paths: Recent<Box<[u8]>, i64>,
    processes: Recent<usize, (Arc<Process>, Ids)>,
    targets: Recent<(i64, Option<Key>), i64>,
    rules: Recent<Arc<Denial>, i64>,
    touches: Recent<(i64, i64), Touch>,
    block: i64,
    in_block: HashSet<i64>,
    exes_in_block: HashSet<i64>,
}

/// A process and its program.
#[derive(Clone, Copy, Debug)]
struct Ids {
    process: i64,
    exe: i64,
}

/// What a batch adds to the derived tables.
#[derive(Default)]
struct Batch {
    stats: HashMap<(i64, i64, i64), Stat>,
    /// How many paths more, or fewer, a program touched in just these ways.
    touched: HashMap<(i64, Touch), i64>,
}

#[derive(Default)]
struct Stat {
    events: i64,
    count: i64,
    bytes_read: i64,
    bytes_written: i64,
    hidden: i64,
    first: i64,
    last: i64,
}

impl Caches {
    fn new() -> Self {
        Self {
            paths: Recent::new(100_000),
            processes: Recent::new(10_000),
            targets: Recent::new(100_000),
            rules: Recent::new(1000),
            touches: Recent::new(200_000),
            block: -1,
            in_block: HashSet::new(),
            exes_in_block: HashSet::new(),
        }
    }

    fn clear(&mut self) {
        self.paths.clear();
        self.processes.clear();
        self.targets.clear();
        self.rules.clear();
        self.touches.clear();
        self.block = -1;
        self.in_block.clear();
        self.exes_in_block.clear();
    }

    fn path(&mut self, append: &mut Append<'_>, bytes: &[u8]) -> rusqlite::Result<i64> {
        if let Some(id) = self.paths.get(bytes) {
            return Ok(id);
        }
        let known = append
            .conn()
            .prepare_cached("SELECT id FROM path WHERE bytes = ?")?
            .query_row([bytes], |row| row.get(0))
            .optional()?;
        let id = match known {
            Some(id) => id,
            None => append.row(Table::Path, |row| row.blob(bytes).map(drop))?,
        };
        self.paths.insert(bytes.into(), id);
        Ok(id)
    }

    fn process(
        &mut self,
        append: &mut Append<'_>,
        process: &Arc<Process>,
    ) -> rusqlite::Result<Ids> {
        // The cache holds the process too, so its address can't be another's.
        let address = Arc::as_ptr(process).addr();
        if let Some((_, ids)) = self.processes.get(&address) {
            return Ok(ids);
        }
        let exe = self.path(append, path_bytes(&process.exe))?;
        let start_time = process.start_time.cast_signed();
        let known = append
            .conn()
            .prepare_cached(
                "SELECT id FROM process WHERE pid = ? AND start_time = ? AND ppid = ? AND exe = ? AND comm = ? \
                 AND cmdline = ? AND uid = ?",
            )?
            .query_row(
                params![
                    process.pid,
                    start_time,
                    process.ppid,
                    exe,
                    process.comm,
                    process.cmdline,
                    process.uid
                ],
                |row| row.get(0),
            )
            .optional()?;
        let id = match known {
            Some(id) => id,
            None => append.row(Table::Process, |row| {
                row.int(process.pid.into())?.int(start_time)?.int(process.ppid.into())?.int(exe)?;
                row.blob(&process.comm)?.blob(&process.cmdline)?.int(process.uid.into())?;
                Ok(())
            })?,
        };
        let ids = Ids { process: id, exe };
        self.processes.insert(address, (process.clone(), ids));
        Ok(ids)
    }

    fn target(
        &mut self,
        append: &mut Append<'_>,
        path: i64,
        key: Option<Key>,
    ) -> rusqlite::Result<i64> {
        if let Some(id) = self.targets.get(&(path, key)) {
            return Ok(id);
        }
        let dev = key.map(|key| key.dev.cast_signed());
        let ino = key.map(|key| key.ino.cast_signed());
        let generation = key.map(|key| key.generation.cast_signed());
        let known = append
            .conn()
            .prepare_cached(
                "SELECT id FROM target WHERE path = ?1 AND ino IS ?2 AND dev IS ?3 AND generation IS ?4",
            )?
            .query_row(params![path, ino, dev, generation], |row| row.get(0))
            .optional()?;
        let id = match known {
            Some(id) => id,
            None => append.row(Table::Target, |row| {
                row.int(path)?.opt_int(dev)?.opt_int(ino)?.opt_int(generation).map(drop)
            })?,
        };
        self.targets.insert((path, key), id);
        Ok(id)
    }

    fn rule(&mut self, append: &mut Append<'_>, denial: &Arc<Denial>) -> rusqlite::Result<i64> {
        if let Some(id) = self.rules.get(denial) {
            return Ok(id);
        }
        let (name, source) = (denial.rule().as_str(), denial.source());
        let known = append
            .conn()
            .prepare_cached("SELECT id FROM rule WHERE name = ? AND source = ?")?
            .query_row([name, source], |row| row.get(0))
            .optional()?;
        let id = match known {
            Some(id) => id,
            None => append.row(Table::Rule, |row| row.text(name)?.text(source).map(drop))?,
        };
        self.rules.insert(denial.clone(), id);
        Ok(id)
    }
}

impl Writer {
    /// Enters a run into the log.
    pub(crate) fn begin_run(store: Store, info: &RunInfo) -> Result<Self> {
        let run = {
            let mut append = Append::begin(&store.conn).map_err(Error::sql("begin a batch"))?;
            let run = insert_run(&mut append, info).map_err(Error::sql("enter the run"))?;
            append.commit().map_err(Error::sql("enter the run"))?;
            run
        };
        Ok(Self { store, run, caches: Caches::new() })
    }

    /// Appends a batch, all of it or nothing.
    pub(crate) fn write(&mut self, events: &[Event]) -> Result<Entry> {
        let done = self.try_write(events);
        if done.is_err() {
            self.caches.clear();
        }
        done.map_err(Error::sql("append events"))
    }

    fn try_write(&mut self, events: &[Event]) -> rusqlite::Result<Entry> {
        let Self { store, run, caches } = self;
        let mut append = Append::begin(&store.conn)?;
        let mut batch = Batch::default();
        for event in events {
            insert_event(&mut append, caches, *run, event, &mut batch)?;
        }
        let Batch { stats, touched } = batch;
        let mut count = store.conn.prepare_cached(
            "INSERT INTO touch_count VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET paths = paths + excluded.paths",
        )?;
        for ((exe, how), paths) in touched.into_iter().filter(|(_, paths)| *paths != 0) {
            count.execute(params![*run, exe, how.bits(), paths])?;
        }
        drop(count);
        let mut upsert = store.conn.prepare_cached(
            "INSERT INTO run_stat VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET \
             events = events + excluded.events, count = count + excluded.count, \
             bytes_read = bytes_read + excluded.bytes_read, \
             bytes_written = bytes_written + excluded.bytes_written, hidden = hidden + excluded.hidden, \
             last = excluded.last",
        )?;
        for ((process, op, outcome), stat) in stats {
            upsert.execute(params![
                *run,
                process,
                op,
                outcome,
                stat.events,
                stat.count,
                stat.bytes_read,
                stat.bytes_written,
                stat.hidden,
                stat.first,
                stat.last
            ])?;
        }
        drop(upsert);
        append.commit()
    }

    /// Writes what the session has seen since the last time.
    pub(crate) fn observe(&self, observed: &Observed) -> Result<()> {
        let Some(fresh) = observed.take() else { return Ok(()) };
        match fresh.write(&self.store.conn) {
            Ok(()) => {
                observed.written(&fresh);
                Ok(())
            }
            Err(error) => {
                observed.put_back(fresh);
                Err(error)
            }
        }
    }

    /// Closes the run.
    pub(crate) fn end_run(
        &mut self,
        outcome: RunOutcome,
        lost: u64,
        summary: Option<&str>,
    ) -> Result<Entry> {
        let conn = &self.store.conn;
        let mut append = Append::begin(conn).map_err(Error::sql("end the run"))?;
        insert_run_end(&mut append, self.run, outcome, lost, 0, summary)
            .map_err(Error::sql("end the run"))?;
        append.commit().map_err(Error::sql("end the run"))
    }
}

fn insert_run(append: &mut Append<'_>, info: &RunInfo) -> rusqlite::Result<i64> {
    append.row(Table::Run, |row| {
        row.text(&info.id.0)?.int(info.started.0)?;
        row.blob(&join_nul(info.argv.iter().map(AsRef::as_ref)))?.blob(path_bytes(&info.cwd))?;
        row.text(info.mode.as_str())?.text(source_name(info))?.blob(path_bytes(&info.root))?;
        row.blob(&join_nul(info.writable_roots.iter().map(AsRef::as_ref)))?.text(&info.backend)?;
        Ok(())
    })
}

fn source_name(info: &RunInfo) -> &'static str {
    use stockade_policy::ModeSource;
    match info.source {
        ModeSource::Default => "default",
        ModeSource::Session => "session",
        ModeSource::Approved => "approved",
    }
}

/// Closes a run in the log.
pub(crate) fn insert_run_end(
    append: &mut Append<'_>,
    run: i64,
    outcome: RunOutcome,
    lost: u64,
    at_most: u64,
    summary: Option<&str>,
) -> rusqlite::Result<i64> {
    append.row(Table::RunEnd, |row| {
        row.int(run)?.int(Time::now().0)?.text(outcome.ending.as_str())?;
        row.opt_int(outcome.exit_code.map(i64::from))?.opt_int(outcome.signal.map(i64::from))?;
        row.int(lost.cast_signed())?.int(at_most.cast_signed())?.opt_text(summary)?;
        Ok(())
    })
}

/// Closes a run whose recorder died.
pub(crate) fn insert_interrupted(
    append: &mut Append<'_>,
    run: i64,
    at_most: u64,
) -> rusqlite::Result<i64> {
    let outcome = RunOutcome { ending: Ending::Interrupted, exit_code: None, signal: None };
    insert_run_end(append, run, outcome, 0, at_most, None)
}

/// The outcome's number in the store.
pub(crate) const fn outcome_code(outcome: &Outcome) -> i64 {
    match outcome {
        Outcome::Ok => 0,
        Outcome::Denied { .. } => 1,
        Outcome::Error { .. } => 2,
    }
}

fn insert_event(
    append: &mut Append<'_>,
    caches: &mut Caches,
    run: i64,
    event: &Event,
    batch: &mut Batch,
) -> rusqlite::Result<()> {
    let ids = caches.process(append, &event.process)?;
    let path = caches.path(append, path_bytes(&event.path))?;
    let target = caches.target(append, path, event.key)?;
    let path2 = match &event.path2 {
        Some(path2) => Some(caches.path(append, path_bytes(path2))?),
        None => None,
    };
    let (errno, rule) = match &event.outcome {
        Outcome::Ok => (None, &event.noted),
        Outcome::Denied { denial, errno } => (Some(*errno), &Some(denial.clone())),
        Outcome::Error { errno } => (Some(*errno), &event.noted),
    };
    let rule = match rule {
        Some(denial) => Some(caches.rule(append, denial)?),
        None => None,
    };
    let (op, outcome) = (op_code(event.op), outcome_code(&event.outcome));
    let seq = append.row(Table::Event, |row| {
        row.int(event.time.0)?.int(run)?.int(ids.process)?.int(op)?.int(target)?.opt_int(path2)?;
        row.int(outcome)?.opt_int(errno.map(i64::from))?.opt_int(rule)?;
        row.opt_int(event.bytes_read.map(u64::cast_signed))?;
        row.opt_int(event.bytes_written.map(u64::cast_signed))?;
        let before = version_columns(event.time, event.version_before);
        let after = match event.version_after {
            Some(after) if event.version_before == Some(after) => SAME,
            after => version_columns(event.time, after),
        };
        for column in before.into_iter().chain(after) {
            row.opt_int(column)?;
        }
        row.opt_int(event.publication.map(|publication| match publication {
            Publication::Atomic => 0,
            Publication::InPlace => 1,
        }))?;
        row.int(is_change(event).into())?.int(event.count.cast_signed())?;
        Ok(())
    })?;

    let (how, how2) = Touch::of(event);
    touch(append, caches, run, (ids.exe, path), how, &mut batch.touched)?;
    if let Some(path2) = path2 {
        touch(append, caches, run, (ids.exe, path2), how2, &mut batch.touched)?;
    }
    let block = seq / BLOCK;
    if block != caches.block {
        caches.block = block;
        caches.in_block.clear();
        caches.exes_in_block.clear();
        append
            .conn()
            .prepare_cached("INSERT OR IGNORE INTO run_block VALUES (?,?)")?
            .execute([run, block])?;
    }
    if caches.in_block.insert(ids.process) {
        append
            .conn()
            .prepare_cached("INSERT OR IGNORE INTO process_block VALUES (?,?)")?
            .execute([ids.process, block])?;
    }
    if caches.exes_in_block.insert(ids.exe) {
        append
            .conn()
            .prepare_cached("INSERT OR IGNORE INTO exe_block VALUES (?,?)")?
            .execute([ids.exe, block])?;
    }

    let stat = batch
        .stats
        .entry((ids.process, op, outcome))
        .or_insert_with(|| Stat { first: seq, ..Stat::default() });
    stat.last = seq;
    stat.events += 1;
    stat.count = stat.count.saturating_add(event.count.cast_signed());
    stat.bytes_read = stat.bytes_read.saturating_add(event.bytes_read.unwrap_or(0).cast_signed());
    stat.bytes_written =
        stat.bytes_written.saturating_add(event.bytes_written.unwrap_or(0).cast_signed());
    let hidden = matches!(
        (event.op, event.bytes_read, event.bytes_written, outcome),
        (Op::Read, None, _, 0) | (Op::Write, _, None, 0)
    );
    stat.hidden += i64::from(hidden);
    Ok(())
}

/// Adds a program's way of touching a path, unless it is known already.
fn touch(
    append: &Append<'_>,
    caches: &mut Caches,
    run: i64,
    (exe, path): (i64, i64),
    how: Touch,
    touched: &mut HashMap<(i64, Touch), i64>,
) -> rusqlite::Result<()> {
    let cached = caches.touches.get(&(exe, path));
    if cached.is_some_and(|known| known.contains(how)) || how == Touch::default() {
        return Ok(());
    }
    let conn = append.conn();
    let known = match cached {
        Some(known) => Some(known),
        // One that fell out of the cache may be in the table.
        None => conn
            .prepare_cached("SELECT how FROM touch WHERE run = ? AND exe = ? AND path = ?")?
            .query_row([run, exe, path], |row| row.get(0).map(Touch::from_bits))
            .optional()?,
    };
    let both = known.unwrap_or_default() | how;
    if known != Some(both) {
        conn.prepare_cached("INSERT OR REPLACE INTO touch VALUES (?,?,?,?)")?.execute(params![
            run,
            exe,
            path,
            both.bits()
        ])?;
        if let Some(known) = known {
            *touched.entry((exe, known)).or_default() -= 1;
        }
        *touched.entry((exe, both)).or_default() += 1;
    }
    caches.touches.insert((exe, path), both);
    Ok(())
}

/// The columns of a version after that is the one before.
const SAME: [Option<i64>; 3] = [Some(-1), None, None];

fn version_columns(time: Time, version: Option<Version>) -> [Option<i64>; 3] {
    version.map_or([None; 3], |version| {
        [
            Some(version.size.cast_signed()),
            Some(time.0.wrapping_sub(version.mtime)),
            Some(version.ctime.wrapping_sub(version.mtime)),
        ]
    })
}

/// Reads the versions before and after.
pub(crate) fn versions_from_columns(
    time: Time,
    before: [Option<i64>; 3],
    after: [Option<i64>; 3],
) -> (Option<Version>, Option<Version>) {
    let version = |columns: [Option<i64>; 3]| {
        let [Some(size), Some(mtime), Some(ctime)] = columns else { return None };
        let mtime = time.0.wrapping_sub(mtime);
        Some(Version { size: size.cast_unsigned(), mtime, ctime: mtime.wrapping_add(ctime) })
    };
    let first = version(before);
    (first, if after == SAME { first } else { version(after) })
}
