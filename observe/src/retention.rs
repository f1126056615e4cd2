//! Old logs are given up: by their age, or the oldest when all together are too large.
//!
//! The unit is a session's log, since its chain covers it as a whole. The session of a lone run goes with it. One that
//! has a name, a mode of its own or more runs stays, with its events, under a chain that begins anew; its record of files,
//! its histories and what it has seen of files go.
//!
//! Invariants:
//! - I1: a session with a run that goes on isn't touched. Whoever starts a run takes its claim first and writes
//!   `run/started` then; here the log's write lock is held from before claims are looked at until the rows are gone, and a
//!   directory that is moved away is looked at once more before it is removed.
//! - I2: what is left verifies, and a crash in between leaves the old log, the new one, or no session.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Transaction, TransactionBehavior};
use stockade_policy::SessionEvent;

use crate::chain::{Append, Entry, Table};
use crate::error::{Error, Result};
use crate::event::{SessionId, Time};
use crate::live::{HeadFile, hex};
use crate::sessions::{SessionDir, forget_name, is_busy, lock, session_dirs};
use crate::store::Store;

/// What is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Logs that were written within this time.
    pub age: Option<Duration>,
    /// The newest logs that take no more room than this together.
    pub size: Option<u64>,
}

/// What was done with one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// Whose it was.
    pub session: SessionId,
    /// When it was last written.
    pub active: SystemTime,
    /// How much room is won.
    pub bytes: u64,
    /// Whether the session is gone too, or stays without its log.
    pub removed: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// The logs that went, the oldest first.
    pub pruned: Vec<Pruned>,
    /// The sessions that should go and can't, with the reason.
    pub busy: Vec<(SessionId, String)>,
    /// How many logs are kept.
    pub kept: u64,
    /// How much room they take.
    pub kept_bytes: u64,
}

/// Gives up what isn't to be kept; `dry_run` only says what that would be.
///
/// # Errors
/// The sessions can't be listed.
pub fn prune(state: &Path, keep: Keep, dry_run: bool) -> Result<PruneReport> {
    let mut report = PruneReport::default();
    let mut room = keep.size;
    let mut wanted = Vec::new();
    // The newest first: the room is theirs.
    for session in session_dirs(state)? {
        let bytes = if keep.size.is_some() { size_of(&session.dir) } else { 0 };
        let old = keep.age.is_some_and(|age| session.active.elapsed().is_ok_and(|is| is > age));
        let fits = room.is_none_or(|left| bytes <= left);
        if old || !fits {
            wanted.push(session);
        } else {
            room = room.map(|left| left.saturating_sub(bytes));
            report.kept += 1;
            report.kept_bytes += if keep.size.is_some() { bytes } else { size_of(&session.dir) };
        }
    }
    for session in wanted.into_iter().rev() {
        match give_up(state, &session, dry_run) {
            Ok(Some(pruned)) => report.pruned.push(pruned),
            Ok(None) => {
                report.kept += 1;
                report.kept_bytes += size_of(&session.dir);
            }
            Err(error) => {
                report.kept += 1;
                report.kept_bytes += size_of(&session.dir);
                report.busy.push((session.id, error.chain()));
            }
        }
    }
    Ok(report)
}

/// Returns how much room a directory takes.
fn size_of(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Returns whether the session is that of a lone run.
fn is_lone(events: &[SessionEvent]) -> bool {
    let mut runs = 0;
    for event in events {
        match event {
            SessionEvent::Created { name: None, .. }
            | SessionEvent::Requested { .. }
            | SessionEvent::Decided { .. }
            | SessionEvent::Finished { .. } => {}
            SessionEvent::Started { .. } => runs += 1,
            SessionEvent::Created { .. }
            | SessionEvent::Preset { .. }
            | SessionEvent::Mode { .. }
            | SessionEvent::Approval { .. }
            | SessionEvent::Other(_) => return false,
        }
    }
    runs == 1
}

/// Removes a session, or its log; none where there is nothing to give up.
fn give_up(state: &Path, session: &SessionDir, dry_run: bool) -> Result<Option<Pruned>> {
    let _lock = lock(state)?;
    let dir = &session.dir;
    let store = if dry_run { Store::open_read_only(dir)? } else { Store::create_or_open(dir)? };
    let before = size_of(dir);
    let stored = store.session_events()?;
    let events: Vec<SessionEvent> = stored.iter().map(|stored| stored.event.clone()).collect();
    let lone = is_lone(&events);
    if store.runs()?.is_empty() && !lone {
        return Ok(None);
    }
    let _cursors = cursors(dir)?;
    let pruned = |bytes| Pruned {
        session: session.id.clone(),
        active: session.active,
        bytes,
        removed: lone,
    };
    if dry_run {
        not_busy(&store, dir, &session.id)?;
        return Ok(Some(pruned(before)));
    }
    let failed = "give up a log";
    let tx = Transaction::new_unchecked(&store.conn, TransactionBehavior::Immediate)
        .map_err(Error::sql(failed))?;
    not_busy(&store, dir, &session.id)?;
    if lone {
        let aside = state.join("sessions").join(format!(".removed-{}", session.id));
        fs::rename(dir, &aside).map_err(Error::io("remove", dir))?;
        // Whoever took a claim until now is seen here, and whoever takes one later sees that it leads nowhere (I1).
        if let Err(busy) = not_busy(&store, &aside, &session.id) {
            fs::rename(&aside, dir).map_err(Error::io("put back", dir))?;
            return Err(busy);
        }
        drop(tx);
        drop(store);
        forget_name(state, &events, &session.id);
        fs::remove_dir_all(&aside).map_err(Error::io("remove", &aside))?;
        return Ok(Some(pruned(before)));
    }
    let old = Entry::last(&tx).map_err(Error::sql(failed))?;
    empty(&tx, &old).map_err(Error::sql(failed))?;
    let mut append = Append::within(tx, &store.conn).map_err(Error::sql(failed))?;
    for stored in &stored {
        let body = serde_json::to_string(&stored.event)
            .map_err(|error| Error::Damaged(format!("an event can't be written: {error}")))?;
        append
            .row(Table::SessionEvent, |row| {
                row.int(stored.time.0)?.text(stored.event.kind())?.text(&body)?;
                Ok(())
            })
            .map_err(Error::sql(failed))?;
    }
    let entry = append.commit().map_err(Error::sql(failed))?;
    let active = session.active;
    HeadFile::open(dir)?.set(&entry)?;
    for leftover in ["history", "live"] {
        // What stays is of runs that nobody can name any more.
        drop(fs::remove_dir_all(dir.join(leftover)));
    }
    for cursor in cursor_files(dir) {
        drop(fs::remove_file(cursor));
    }
    // A reader that has the log open keeps its pages; the next time they go.
    drop(store.conn.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);"));
    // It hasn't been used, and stays where it was among the others.
    for file in [dir.join("log.head"), store.file()] {
        drop(File::options().append(true).open(file).and_then(|file| file.set_modified(active)));
    }
    Ok(Some(pruned(before.saturating_sub(size_of(dir)))))
}

fn not_busy(store: &Store, dir: &Path, session: &SessionId) -> Result<()> {
    match is_busy(store, dir)? {
        Some(run) => Err(Error::Busy { session: session.to_string(), run }),
        None => Ok(()),
    }
}

/// Empties every table, and remembers in whose place the new chain stands.
fn empty(tx: &Transaction<'_>, old: &Entry) -> rusqlite::Result<()> {
    let tables = tx
        .prepare(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
        )?
        .query_map([], |row| row.get::<_, String>(0))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    for table in tables.iter().filter(|table| !["meta", "op"].contains(&table.as_str())) {
        tx.execute(&format!("DELETE FROM \"{table}\""), [])?;
    }
    let facts = HashMap::from([
        ("pruned_time", Time::now().0.to_string()),
        ("pruned_head", hex(&old.hash)),
        ("pruned_batches", old.id.to_string()),
    ]);
    for (name, value) in facts {
        tx.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [name, &value])?;
    }
    Ok(())
}

/// The files in which exporters note how far they are.
fn cursor_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_cursor = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("otlp-") || name.starts_with("cursor-"))
    };
    entries.map(|entry| entry.path()).filter(is_cursor).collect()
}

/// Keeps exporters out; an error where one is at work.
fn cursors(dir: &Path) -> Result<Vec<File>> {
    let mut held = Vec::new();
    for path in cursor_files(dir) {
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        file.try_lock()
            .map_err(|error| Error::io("wait for the exporter that holds", &path)(error.into()))?;
        held.push(file);
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use stockade_policy::Mode;

    use super::*;
    use crate::sessions::{RunClaim, create_session, find_session};

    fn created(id: &str, name: Option<&str>) -> SessionEvent {
        SessionEvent::Created {
            id: id.to_owned(),
            name: name.map(str::to_owned),
            root: stockade_policy::text::Bytes::from("/w"),
        }
    }

    #[test]
    fn a_claim_that_comes_at_the_last_moment_keeps_the_session() {
        let state = tempfile::tempdir().unwrap();
        let first = [created("s", Some("named")), SessionEvent::mode(Mode::ReadOnly)];
        let (session, _) = create_session(state.path(), &first).unwrap();
        let store = Store::create_or_open(&session.dir).unwrap();
        let claim = RunClaim::take(&session.dir, "r1").unwrap();
        let busy = not_busy(&store, &session.dir, &session.id).unwrap_err();
        assert!(matches!(busy, Error::Busy { .. }), "{busy}");
        drop(claim);
        not_busy(&store, &session.dir, &session.id).unwrap();
        // Moved away between opening and locking: the claim leads nowhere, and says so.
        let aside = state.path().join("sessions/.removed-s");
        fs::rename(&session.dir, &aside).unwrap();
        assert!(find_session(state.path(), "named").is_err());
    }

    #[test]
    fn lone_sessions_are_told_from_those_that_somebody_made() {
        let run = SessionEvent::Started {
            run: "r".to_owned(),
            mode: Mode::ReadOnly,
            source: stockade_policy::ModeSource::Default,
            request: None,
            argv: Vec::new(),
            terminal: false,
        };
        let rows = [
            (vec![created("s", None), run.clone()], true),
            (vec![created("s", None)], false),
            (vec![created("s", Some("n")), run.clone()], false),
            (vec![created("s", None), run.clone(), run.clone()], false),
            (vec![created("s", None), SessionEvent::mode(Mode::ReadOnly), run], false),
        ];
        for (events, lone) in rows {
            assert_eq!(is_lone(&events), lone, "{events:?}");
        }
    }
}
