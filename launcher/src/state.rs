//! Where Stockade keeps its state, and the ids of sessions and runs.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Code, Failure};

/// Returns the state directory that the environment names: `$STOCKADE_STATE`, else `$XDG_STATE_HOME/stockade`, else
/// `~/.local/state/stockade`. It need not exist.
///
/// # Errors
/// There is neither of the three variables.
pub fn directory() -> Result<PathBuf, Failure> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("STOCKADE_STATE")
        .or_else(|| absolute("XDG_STATE_HOME").map(|base| base.join("stockade")))
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state/stockade")))
        .ok_or_else(|| {
            Failure::new(Code::ConfigInvalid, "no directory for state: `HOME` is not set")
                .help("set STOCKADE_STATE to an absolute path of a directory that is yours alone")
        })
}

/// Returns where the file system notes the directories in which a killed server may have left something.
#[must_use]
pub fn staged_directory() -> Option<PathBuf> {
    directory().ok().map(|state| state.join("staged"))
}

/// Returns the directory of the operator's configuration: `$XDG_CONFIG_HOME/stockade`, else `~/.config/stockade`.
#[must_use]
pub fn configuration_directory() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CONFIG_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".config")))
        .map(|base| base.join("stockade"))
}

/// Makes the state directory and everything above it (mode 0700), and checks that nobody else can write there.
///
/// # Errors
/// It can't be made, or belongs to somebody else.
pub fn create(directory: &Path) -> Result<(), Failure> {
    let fail = |error: io::Error| {
        Failure::new(
            Code::RunnerFailed,
            format!("can't use the state directory `{}`", directory.display()),
        )
        .because(error)
        .help("set STOCKADE_STATE to an absolute path of a directory that you can write")
    };
    private_directory(directory).map_err(fail)
}

/// Makes a directory of mode 0700 with its parents, or narrows one of ours to it.
fn private_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let metadata = fs::metadata(directory)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it belongs to user {}", metadata.uid()),
        ));
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Makes an id of 13 characters that sorts by the time it was made: nine of milliseconds, four at random.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn new_id() -> io::Result<String> {
    let mut random = [0_u8; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut id = String::with_capacity(13);
    for position in (0..9).rev() {
        id.push(letter(usize::try_from((millis >> (5 * position)) & 31).unwrap_or(0)));
    }
    id.extend(random.iter().map(|&byte| letter(usize::from(byte & 31))));
    Ok(id)
}

fn letter(index: usize) -> char {
    ALPHABET.get(index).map_or('0', |&byte| char::from(byte))
}

/// Tells whether a text can be the name of a session: what an id or a plain file name is made of.
#[must_use]
pub fn is_session_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && !name.starts_with(['.', '-'])
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_differ() {
        let first = new_id().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(3));
        let second = new_id().unwrap();
        assert_eq!(first.len(), 13);
        assert!(first < second, "{first} {second}");
        assert!(is_session_name(&first));
    }

    #[test]
    fn a_session_name_is_never_a_way_out_of_the_directory() {
        for name in ["", ".", "..", "a/b", "-x", "a b", "a\n"] {
            assert!(!is_session_name(name), "{name:?}");
        }
        assert!(is_session_name("fix-login.2"));
    }

    #[test]
    fn state_directories_are_private_even_if_they_were_not() {
        let base = tempfile::tempdir().unwrap();
        let state = base.path().join("a/b");
        fs::create_dir_all(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
        create(&state.join("c")).unwrap();
        create(&state).unwrap();
        for path in [state.as_path(), &state.join("c")] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700, "{}", path.display());
        }
    }
}
