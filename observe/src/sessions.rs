//! The sessions below a state directory: one directory each, `sessions/ID`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::event::SessionId;
use crate::live::is_id;
use crate::store::FILE_NAME;

/// A session's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDir {
    /// Its id.
    pub id: SessionId,
    /// Its directory.
    pub dir: PathBuf,
    /// When its log was last written.
    pub active: SystemTime,
}

/// Returns the directory of a session.
///
/// # Errors
/// The id can't be a session's.
pub fn session_dir(state: &Path, id: &str) -> Result<PathBuf> {
    if is_id(id) { Ok(state.join("sessions").join(id)) } else { Err(Error::BadId(id.to_owned())) }
}

/// Returns the sessions that have a log, the last active one first.
///
/// # Errors
/// The directory can't be read.
pub fn session_dirs(state: &Path) -> Result<Vec<SessionDir>> {
    let all = state.join("sessions");
    let entries = match fs::read_dir(&all) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", all)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", &all))?;
        let name = entry.file_name();
        let Some(id) = name.to_str().filter(|id| is_id(id)) else { continue };
        let dir = entry.path();
        // The head is written with each batch, the database only now and then.
        let written = [dir.join("log.head"), dir.join(FILE_NAME)]
            .iter()
            .filter_map(|file| fs::symlink_metadata(file).and_then(|meta| meta.modified()).ok())
            .max();
        if let Some(active) = written {
            found.push(SessionDir { id: SessionId(id.into()), dir, active });
        }
    }
    found.sort_by(|a, b| (b.active, &b.id).cmp(&(a.active, &a.id)));
    Ok(found)
}
