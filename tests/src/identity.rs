//! Who runs a test's commands.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::FlockOperation;

/// The ordinary user that the suite runs as when it is started by root.
const USER: &str = "stockade-test";

/// Who runs a test's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The superuser.
    Root,
    /// An ordinary user: `stockade-test` when root runs the suite, else whoever runs it.
    User,
}

/// The ids that an identity has on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Identity {
    /// Returns the ids, or why this machine has none for it.
    pub(crate) fn ids(self) -> Result<Ids, String> {
        let harness = rustix::process::geteuid();
        match (self, harness.is_root()) {
            (Self::Root, true) => Ok(Ids { uid: 0, gid: 0 }),
            (Self::Root, false) => Err("the suite isn't run by root".into()),
            (Self::User, false) => {
                Ok(Ids { uid: harness.as_raw(), gid: rustix::process::getegid().as_raw() })
            }
            (Self::User, true) => {
                static IDS: OnceLock<Result<Ids, String>> = OnceLock::new();
                IDS.get_or_init(test_user).clone()
            }
        }
    }

    /// Returns whether the commands run as root.
    #[must_use]
    pub fn is_root(self) -> bool {
        self == Self::Root
    }
}

/// Finds the test user, and makes it where it is missing.
fn test_user() -> Result<Ids, String> {
    let lock: File = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open("/run/stockade-test.lock")
        .map_err(|error| format!("failed to open the lock of the test user: {error}"))?;
    rustix::fs::flock(lock.as_fd(), FlockOperation::LockExclusive)
        .map_err(|error| format!("failed to lock the test user: {error}"))?;
    if let Some(ids) = look_up() {
        return Ok(ids);
    }
    let made = Command::new("useradd")
        .args(["--create-home", "--shell", "/bin/bash", USER])
        .output()
        .map_err(|error| format!("failed to start `useradd`: {error}"))?;
    look_up().ok_or_else(|| format!("`useradd` failed: {}", String::from_utf8_lossy(&made.stderr)))
}

fn look_up() -> Option<Ids> {
    let id = |flag: &str| -> Option<u32> {
        let output = Command::new("id").args([flag, USER]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    Some(Ids { uid: id("-u")?, gid: id("-g")? })
}
