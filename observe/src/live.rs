//! Which runs have a living recorder, and where the chain's head was last: two small files beside the log.
//!
//! A recorder holds a lock on `live/RUN` for as long as it lives; the kernel drops the lock however it dies, in whatever
//! namespace it ran. `log.head` holds the newest entry's number and hash, so that a cut tail shows.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::chain::{Append, Entry};
use crate::error::{Error, Result};
use crate::event::RunId;
use crate::recorder::{AT_MOST, AT_MOST_FAILING};
use crate::store::{Store, make_private_dir};
use crate::writer::insert_interrupted;

/// Returns whether text can be the id of a session or a run: it becomes a file name and a command-line word.
#[must_use]
pub fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn live_file(dir: &Path, run: &str) -> PathBuf {
    dir.join("live").join(run)
}

/// Says that a run's recorder lives, until it is dropped.
#[derive(Debug)]
pub(crate) struct Live {
    path: PathBuf,
    lock: File,
}

impl Live {
    pub(crate) fn claim(dir: &Path, run: &RunId) -> Result<Self> {
        if !is_id(&run.0) {
            return Err(Error::BadId(run.0.to_string()));
        }
        make_private_dir(&dir.join("live"))?;
        let path = live_file(dir, &run.0);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io("create", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, lock }),
            Err(error) => Err(Error::io("lock", &path)(error.into())),
        }
    }

    /// Says whether writing fails, so that more than usual is kept in memory and can be lost.
    pub(crate) fn set_failing(&self, failing: bool) -> Result<()> {
        self.lock.set_len(u64::from(failing)).map_err(Error::io("write", &self.path))
    }

    /// The run is over and says so in the log.
    pub(crate) fn release(self) {
        // One that stays behind does no harm: its run has an end.
        drop(fs::remove_file(&self.path));
    }
}

/// Returns whether the recorder of a run lives.
pub(crate) fn is_live(dir: &Path, run: &str) -> bool {
    match File::open(live_file(dir, run)) {
        Ok(file) => matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)),
        Err(_) => false,
    }
}

impl Store {
    /// Closes the runs whose recorders died, if there are any. Whoever shows a log does this first.
    ///
    /// # Errors
    /// There is no log, or it can't be written.
    pub fn settle(dir: &Path) -> Result<()> {
        let open = Self::open_read_only(dir)?.runs()?;
        if open.iter().any(|run| run.end.is_none() && !run.live) {
            let store = Self::create_or_open(dir)?;
            mark_interrupted(&store.conn, dir)?;
        }
        Ok(())
    }
}

/// Closes the runs whose recorders died, and bounds what each can have lost.
pub(crate) fn mark_interrupted(conn: &Connection, dir: &Path) -> Result<usize> {
    let open: Vec<(i64, String)> = {
        let mut select = conn
            .prepare_cached(
                "SELECT id, name FROM run WHERE id NOT IN (SELECT run FROM run_end) ORDER BY id",
            )
            .map_err(Error::sql("look for interrupted runs"))?;
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.and_then(Iterator::collect).map_err(Error::sql("look for interrupted runs"))?
    };
    let dead: Vec<_> = open.into_iter().filter(|(_, name)| !is_live(dir, name)).collect();
    if dead.is_empty() {
        return Ok(0);
    }
    let mark = || -> rusqlite::Result<Entry> {
        let mut append = Append::begin(conn)?;
        for (run, name) in &dead {
            // Another opener may have been quicker.
            let ended: bool = conn.query_row(
                "SELECT EXISTS (SELECT 1 FROM run_end WHERE run = ?)",
                [run],
                |row| row.get(0),
            )?;
            if !ended {
                let failing = fs::metadata(live_file(dir, name)).is_ok_and(|meta| meta.len() > 0);
                let at_most = if failing { AT_MOST_FAILING } else { AT_MOST };
                insert_interrupted(&mut append, *run, at_most)?;
            }
        }
        append.commit()
    };
    mark().map_err(Error::sql("mark interrupted runs"))?;
    for (_, name) in &dead {
        drop(fs::remove_file(live_file(dir, name)));
    }
    Ok(dead.len())
}

/// The file that remembers the chain's head.
#[derive(Debug)]
pub(crate) struct HeadFile(File);

const HEAD_LEN: usize = 20 + 1 + 64 + 1;

impl HeadFile {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("log.head");
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map(Self)
            .map_err(Error::io("create", path))
    }

    /// Remembers an entry. One write of a fixed length, so that a reader sees one entry or another.
    pub(crate) fn set(&self, entry: &Entry) -> Result<()> {
        let text = format!("{:020} {}\n", entry.id, hex(&entry.hash));
        self.0.write_all_at(text.as_bytes(), 0).map_err(Error::io("write", "log.head"))
    }
}

/// Returns the remembered head, if there is one that can be read.
pub(crate) fn read_head(dir: &Path) -> Option<(i64, String)> {
    let mut text = String::new();
    File::open(dir.join("log.head")).ok()?.take(HEAD_LEN as u64).read_to_string(&mut text).ok()?;
    let (id, hash) = text.trim_end().split_once(' ')?;
    (hash.len() == 64).then_some(())?;
    Some((id.parse().ok()?, hash.to_owned()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string can't fail.
        let _: std::fmt::Result = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_safe_file_names() {
        for good in ["a", "01J", "run-1.x_y"] {
            assert!(is_id(good), "{good}");
        }
        for bad in ["", ".", "..", ".a", "-a", "a/b", "a b", "é", "a\0", &"x".repeat(65)] {
            assert!(!is_id(bad), "{bad}");
        }
    }

    #[test]
    fn a_run_is_live_while_its_claim_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunId("r".into());
        assert!(!is_live(dir.path(), "r"));
        let live = Live::claim(dir.path(), &run).unwrap();
        assert!(is_live(dir.path(), "r"));
        assert!(Live::claim(dir.path(), &run).is_err());
        drop(live);
        assert!(!is_live(dir.path(), "r"));
        Live::claim(dir.path(), &run).unwrap().release();
        assert!(!live_file(dir.path(), "r").exists());
    }
}
