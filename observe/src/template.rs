//! A new log is a copy of an empty one that is kept beside the sessions: making its tables takes longer than all else
//! that a short run writes.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::store::{FORMAT, SCHEMA, Store};

/// Makes `file`, in a session's directory `dir`, as a copy of the template, in one step. It may be there already; so may
/// the template.
pub fn copy(dir: &Path, file: &Path) -> Result<()> {
    let Some(place) = place(dir) else { return Ok(()) };
    let mut from = match File::open(&place) {
        Err(error) if error.kind() == ErrorKind::NotFound => make(dir, &place)?,
        other => other?,
    };
    let mut to = tempfile::NamedTempFile::new_in(dir)?;
    std::io::copy(&mut from, &mut to)?;
    match to.persist_noclobber(file) {
        Err(error) if error.error.kind() != ErrorKind::AlreadyExists => Err(error.error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Returns where the template is kept: nowhere if others than us could have put it there.
fn place(dir: &Path) -> Option<PathBuf> {
    let sessions = dir.parent()?;
    let (session, meta) = (fs::metadata(dir).ok()?, fs::symlink_metadata(sessions).ok()?);
    let private = meta.is_dir() && meta.mode() & 0o077 == 0 && meta.uid() == session.uid();
    let digest = Sha256::new().chain_update(SCHEMA).chain_update(rusqlite::version()).finalize();
    let digest = u64::from_be_bytes(*digest.first_chunk()?);
    private.then(|| sessions.join(format!(".empty-{FORMAT}-{digest:016x}.db")))
}

/// Makes the template. It's on the disk before it has its name: a power failure must not leave half of one.
fn make(dir: &Path, place: &Path) -> Result<File> {
    let work = tempfile::Builder::new().prefix(".empty-").tempdir_in(dir)?;
    let file = work.path().join("log.db");
    let store = Store::open_or_create_file(work.path(), &file).map_err(Error::other)?;
    store
        .conn
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .map_err(Error::other)?;
    drop(store);
    let mut made = tempfile::NamedTempFile::new_in(dir)?;
    std::io::copy(&mut File::open(&file)?, &mut made)?;
    made.as_file().sync_all()?;
    let mut made = made.persist(place).map_err(|error| error.error)?;
    made.rewind()?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn templates(sessions: &Path) -> Vec<PathBuf> {
        let hidden =
            |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b".");
        fs::read_dir(sessions).unwrap().map(|entry| entry.unwrap().path()).filter(hidden).collect()
    }

    #[test]
    fn a_log_that_is_a_copy_is_like_one_made_from_scratch() {
        let state = tempfile::tempdir().unwrap();
        fs::set_permissions(state.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let tables = |store: &Store| -> Vec<String> {
            let mut all =
                store.conn.prepare("SELECT sql FROM sqlite_schema ORDER BY name").unwrap();
            let rows = all.query_map([], |row| row.get::<_, Option<String>>(0)).unwrap();
            rows.filter_map(|row| row.unwrap()).collect()
        };
        for name in ["made", "copied"] {
            drop(Store::create_or_open(&state.path().join(name)).unwrap());
        }
        let [kept] = &*templates(state.path()) else { panic!("one template") };
        assert_eq!(fs::metadata(kept).unwrap().mode() & 0o777, 0o600);
        let scratch = tempfile::tempdir().unwrap();
        let scratch =
            Store::open_or_create_file(scratch.path(), &scratch.path().join("log.db")).unwrap();
        for name in ["made", "copied"] {
            let dir = state.path().join(name);
            let store = Store::create_or_open(&dir).unwrap();
            assert!(tables(&store).len() > 20);
            assert_eq!(tables(&store), tables(&scratch));
            assert_eq!(fs::metadata(dir.join("log.db")).unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn no_template_is_taken_from_where_others_may_write() {
        let shared = tempfile::tempdir().unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o777)).unwrap();
        drop(Store::create_or_open(&shared.path().join("s")).unwrap());
        assert!(templates(shared.path()).is_empty());
    }
}
