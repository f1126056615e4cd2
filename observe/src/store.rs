//! The file that keeps a session's log: making it, opening it, and its format's version.
//!
//! Not for: what is written (`writer`), what is asked (`query`).

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::error::{Error, Result};
use crate::event::{Op, SessionId};
use crate::template;

/// The format that this version writes: major × 100 + minor. A minor version adds tables, views and indices, never a
/// column of a table that the chain covers.
pub const FORMAT: i32 = 102;

/// `Stoc`: tells a log from any other SQLite database.
const APPLICATION_ID: i32 = 0x5374_6f63;

/// The tables of [`FORMAT`].
pub(crate) const SCHEMA: &str =
    concat!(include_str!("schema.sql"), include_str!("observed.sql"), include_str!("counted.sql"));

/// The database's name in a session's directory.
pub const FILE_NAME: &str = "log.db";

/// The log of one session.
#[derive(Debug)]
pub struct Store {
    pub(crate) conn: Connection,
    pub(crate) dir: PathBuf,
}

impl Store {
    /// Opens the log in a session's directory for appending, and makes both where they are missing (mode 0700).
    ///
    /// # Errors
    /// The directory can't be made, the file is no log, or its format is a newer major version.
    pub fn create_or_open(dir: &Path) -> Result<Self> {
        make_private_dir(dir)?;
        let file = dir.join(FILE_NAME);
        if !file.exists() {
            // Without a template it takes longer, that's all.
            drop(template::copy(dir, &file));
        }
        Self::open_or_create_file(dir, &file)
    }

    pub(crate) fn open_or_create_file(dir: &Path, file: &Path) -> Result<Self> {
        // SQLite gives the write-ahead log and the shared memory the mode of the database.
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(file)
            .map_err(Error::io("create", file))?;
        let conn = Connection::open_with_flags(
            file,
            OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_NOFOLLOW,
        )
        .map_err(Error::sql("open the log"))?;
        let store = Self { conn, dir: dir.to_owned() };
        store.configure().map_err(Error::sql("set up the log's connection"))?;
        store.migrate()?;
        Ok(store)
    }

    /// Opens an existing log for reading; it may be being written at the same time.
    ///
    /// # Errors
    /// There is no log, it is something else, or its major version is newer.
    pub fn open_read_only(dir: &Path) -> Result<Self> {
        let file = dir.join(FILE_NAME);
        match fs::symlink_metadata(&file) {
            Ok(meta) if meta.is_file() && meta.len() > 0 => {}
            Ok(_) => return Err(Error::NoLog(file)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoLog(file));
            }
            Err(error) => return Err(Error::io("look at", file)(error)),
        }
        let conn = Connection::open_with_flags(
            &file,
            OpenFlags::SQLITE_OPEN_READ_ONLY
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_NOFOLLOW,
        )
        .map_err(Error::sql("open the log"))?;
        conn.busy_timeout(Duration::from_secs(5)).map_err(Error::sql("set a time limit"))?;
        conn.pragma_update(None, "cache_size", -65_536).map_err(Error::sql("size the cache"))?;
        conn.pragma_update(None, "temp_store", "memory").map_err(Error::sql("set up the log"))?;
        conn.set_prepared_statement_cache_capacity(64);
        let store = Self { conn, dir: dir.to_owned() };
        let (id, version) = store.identity().map_err(Error::sql("read the log's header"))?;
        if id == 0 && version == 0 {
            return Err(Error::NoLog(store.file()));
        }
        store.check(id, version)?;
        Ok(store)
    }

    /// Returns the session's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the id of the session whose log this is.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn session(&self) -> Result<Option<SessionId>> {
        self.conn
            .query_row("SELECT value FROM meta WHERE name = 'session'", [], |row| {
                row.get::<_, String>(0)
            })
            .optional()
            .map(|id| id.map(|id| SessionId(id.into())))
            .map_err(Error::sql("read the log's session"))
    }

    /// Says whose log this is, once.
    pub(crate) fn set_session(&self, wanted: &SessionId) -> Result<()> {
        if self.session()?.is_none() {
            let enter = || {
                // The first commit would wait for the disk, for the write-ahead log's header. If that is lost with the
                // power, so is what follows it, and the log is the empty one it was.
                self.conn.pragma_update(None, "synchronous", "off")?;
                let sql = "INSERT OR IGNORE INTO meta VALUES ('session', ?)";
                self.conn.execute(sql, [&*wanted.0])?;
                self.conn.pragma_update(None, "synchronous", "normal")
            };
            enter().map_err(Error::sql("enter the log's session"))?;
        }
        match self.session()? {
            Some(found) if found != *wanted => Err(Error::OtherSession {
                path: self.file(),
                found: found.to_string(),
                wanted: wanted.to_string(),
            }),
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(FILE_NAME)
    }

    fn configure(&self) -> rusqlite::Result<()> {
        let conn = &self.conn;
        conn.busy_timeout(Duration::from_secs(10))?;
        // The one who closes last would otherwise pay for copying the write-ahead log at the end of a run.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        if mode != "wal" {
            conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
        }
        conn.pragma_update(None, "synchronous", "normal")?;
        conn.pragma_update(None, "wal_autocheckpoint", 4000)?;
        conn.pragma_update(None, "cache_size", -32_768)?;
        conn.pragma_update(None, "temp_store", "memory")?;
        conn.pragma_update(None, "foreign_keys", false)?;
        conn.set_prepared_statement_cache_capacity(64);
        Ok(())
    }

    fn identity(&self) -> rusqlite::Result<(i32, i32)> {
        let id = self.conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let version = self.conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
        Ok((id, version))
    }

    fn check(&self, id: i32, version: i32) -> Result<()> {
        if id != APPLICATION_ID {
            return Err(Error::NotALog(self.file()));
        }
        if version / 100 > FORMAT / 100 {
            return Err(Error::Newer { path: self.file(), found: version, supported: FORMAT });
        }
        Ok(())
    }

    fn migrate(&self) -> Result<()> {
        let (id, version) = self.identity().map_err(Error::sql("read the log's header"))?;
        if (id, version) != (0, 0) {
            // Later formats bring the log up to date here, one `if version < …` a step.
            self.check(id, version)?;
            if version < 101 {
                self.add_observed().map_err(Error::sql("bring the log up to date"))?;
            }
            if version < 102 {
                self.add_counts().map_err(Error::sql("bring the log up to date"))?;
            }
            return Ok(());
        }
        self.create().map_err(Error::sql("create the log"))?;
        // Another process may have made it first.
        let (id, version) = self.identity().map_err(Error::sql("read the log's header"))?;
        self.check(id, version)
    }

    /// From 100 to 101: what the session has seen.
    fn add_observed(&self) -> rusqlite::Result<()> {
        let tx = rusqlite::Transaction::new_unchecked(
            &self.conn,
            rusqlite::TransactionBehavior::Immediate,
        )?;
        tx.execute_batch(include_str!("observed.sql"))?;
        tx.pragma_update(None, "user_version", 101)?;
        tx.commit()
    }

    /// From 101 to 102: counts of what is derived already.
    fn add_counts(&self) -> rusqlite::Result<()> {
        let tx = rusqlite::Transaction::new_unchecked(
            &self.conn,
            rusqlite::TransactionBehavior::Immediate,
        )?;
        tx.execute_batch(include_str!("counted.sql"))?;
        tx.execute_batch(
            "DELETE FROM touch_count; \
             INSERT INTO touch_count SELECT run, exe, how, count(*) FROM touch GROUP BY run, exe, how; \
             INSERT OR IGNORE INTO exe_block \
                SELECT p.exe, b.block FROM process_block b JOIN process p ON p.id = b.process;",
        )?;
        tx.pragma_update(None, "user_version", 102)?;
        tx.commit()
    }

    /// Tells whether the log has the tables of format 1.2: one that is read alone isn't brought up to date.
    pub(crate) fn has_counts(conn: &Connection) -> rusqlite::Result<bool> {
        let version: i32 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
        Ok(version >= 102)
    }

    fn create(&self) -> rusqlite::Result<()> {
        let tx = rusqlite::Transaction::new_unchecked(
            &self.conn,
            rusqlite::TransactionBehavior::Immediate,
        )?;
        let made: Option<i64> =
            tx.query_row("SELECT 1 FROM sqlite_schema LIMIT 1", [], |row| row.get(0)).optional()?;
        if made.is_some() {
            return Ok(());
        }
        tx.execute_batch(SCHEMA)?;
        for op in Op::ALL {
            tx.execute("INSERT INTO op VALUES (?1, ?2)", (op_code(op), op.as_str()))?;
        }
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", FORMAT)?;
        tx.commit()
    }
}

/// Makes a directory (and its parents) for the owner alone; one that is there already is narrowed to that.
pub(crate) fn make_private_dir(dir: &Path) -> Result<()> {
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        return Err(Error::io("create the directory", dir)(error));
    }
    let meta = fs::symlink_metadata(dir).map_err(Error::io("look at", dir))?;
    if !meta.is_dir() {
        return Err(Error::io("use", dir)(std::io::ErrorKind::NotADirectory.into()));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .map_err(Error::io("set the mode of", dir))?;
    }
    Ok(())
}

/// The number of an operation in the store. Only ever appended to.
pub(crate) fn op_code(op: Op) -> i64 {
    Op::ALL
        .iter()
        .position(|&known| known == op)
        .and_then(|at| i64::try_from(at).ok())
        .unwrap_or(-1)
}

pub(crate) fn op_from_code(code: i64) -> Result<Op> {
    usize::try_from(code)
        .ok()
        .and_then(|at| Op::ALL.get(at).copied())
        .ok_or_else(|| Error::Damaged(format!("operation {code}")))
}
