//! Landlock: the chain's second back end (contract L2, L3).
//!
//! Where namespaces can be made, our own take bubblewrap's place: the mounts are read-only but for the regions, which stand
//! at their own paths, processes have a namespace of their own, and the [runner] restricts on top of it.
//! Where they can't, there is the runner alone: nothing is served, so nothing is observed, and the result names each thing
//! that is missing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use stockade_policy::{Guard, Network, Policy, fold_roots};

use crate::backend::bwrap::Machine;
use crate::enforcement::Gap;
use crate::error::{Code, Failure};
use crate::{probe, runner, sys};

/// Devices that harmless programs write to.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// Returns the kernel's ABI, once a child was really confined.
///
/// # Errors
/// This kernel can't.
pub fn usable() -> Result<i64, Failure> {
    let unavailable = |why: String| {
        Failure::new(Code::SandboxUnavailable, format!("landlock: {why}"))
            .help("boot a kernel from 5.13 on with `landlock` in its `lsm=` list")
    };
    let abi = sys::landlock_abi().map_err(|error| unavailable(error.to_string()))?;
    probe::landlock_confines().map_err(unavailable)?;
    Ok(abi.min(7))
}

/// Returns the runner's options.
#[must_use]
pub fn options(policy: &Policy, regions: &[PathBuf], namespaces: bool) -> Vec<OsString> {
    let root = rustix::process::geteuid().is_root();
    let mut options = Vec::new();
    let mut writable: Vec<PathBuf> = if namespaces {
        // What may be written in a region is for the file system to say, and to record.
        regions.iter().cloned().chain(["/dev/shm".into()]).collect()
    } else {
        policy.writable_roots()
    };
    writable.extend(DEVICES.iter().map(PathBuf::from).filter(|path| path.exists()));
    if namespaces && !root {
        // Each process's own entries; what is root's there (`/proc/sys`) is not for others to write anyway.
        writable.push("/proc".into());
    }
    for path in writable {
        options.push("--writable".into());
        options.push(path.into());
    }
    if policy.network == Network::None && !namespaces {
        options.extend(["--network".into(), "none".into()]);
    }
    options
}

/// Returns what isn't enforced of a policy where namespaces can be made.
#[must_use]
pub fn gaps_with_namespaces(machine: &Machine, guarded: bool) -> Vec<Gap> {
    let mut gaps = Vec::new();
    if !guarded {
        gaps.push(Gap::HostSockets);
    }
    if machine.root {
        gaps.push(Gap::RawDevices);
    }
    gaps
}

/// Returns what isn't enforced of a policy by the runner alone.
#[must_use]
pub fn gaps_alone(policy: &Policy, abi: i64) -> Vec<Gap> {
    let mut gaps = vec![Gap::Unobserved, Gap::ProtectedPaths, Gap::WholeFiles, Gap::HardLinks];
    if !policy.deny_read.is_empty() || !policy.deny_write.is_empty() {
        gaps.push(Gap::DenyRules);
    }
    if policy.guard == Guard::Enforce {
        gaps.push(Gap::Guard);
    }
    gaps.extend(runner::gaps(abi, policy.network == Network::None));
    gaps.extend([
        Gap::SharedMemory,
        Gap::StrayProcesses,
        Gap::OwnState,
        Gap::OtherTerminals,
        Gap::OtherProcesses,
    ]);
    if rustix::process::geteuid().is_root() {
        gaps.push(Gap::RawDevices);
    }
    gaps
}

/// Refuses what the runner alone can't do and a person has asked for by name, unless the back end was asked for too.
///
/// # Errors
/// The policy has rules that only the file system keeps.
pub fn check_alone(policy: &Policy, own: &[PathBuf]) -> Result<(), Failure> {
    let asked = |rule: &String| !own.iter().any(|own| rule.starts_with(&*own.to_string_lossy()));
    let denied = policy.deny_read.iter().chain(&policy.deny_write).any(asked);
    if !denied && policy.guard != Guard::Enforce {
        return Ok(());
    }
    Err(Failure::new(
        Code::SandboxUnavailable,
        "landlock: without namespaces it can't keep --deny-read, --deny-write and --guard enforce",
    )
    .help("to run without them here: --backend landlock"))
}

/// Returns a directory where only Landlock refuses to make something: the caller's own, and not to be written inside.
#[must_use]
pub fn proving_ground(policy: &Policy, own: &[PathBuf]) -> Option<PathBuf> {
    let roots = policy.writable_roots();
    let outside = |path: &&PathBuf| !roots.iter().any(|root| path.starts_with(root));
    own.iter().find(outside).map(|path| path.join(".must-not-be-writable"))
}

/// Returns those of Stockade's own directories that neither a region's rules nor another cover hides.
#[must_use]
pub fn hidden(own: &[PathBuf], regions: &[PathBuf]) -> Vec<PathBuf> {
    let served = |path: &Path| regions.iter().any(|region| path.starts_with(region));
    // The run has shared memory of its own, in which these aren't.
    let shared = |path: &Path| path.starts_with("/dev/shm");
    fold_roots(own.iter().filter(|path| !served(path) && !shared(path)))
}

#[cfg(test)]
mod tests {
    use stockade_policy::Mode;

    use super::*;

    #[test]
    fn what_may_be_written_comes_from_the_policy() {
        let mut policy = Policy::new(Mode::ReadOnly, "/w".into());
        let has = |options: &[OsString], path: &str| options.iter().any(|option| option == path);
        assert!(!has(&options(&policy, &[], false), "/w"));
        assert!(has(&options(&policy, &["/w".into()], true), "/w"), "the file system refuses");
        policy.mode = Mode::WorkspaceWrite;
        policy.network = Network::None;
        let alone = options(&policy, &[], false);
        assert!(has(&alone, "/w") && has(&alone, "none") && !has(&alone, "/dev/shm"));
    }

    #[test]
    fn a_rule_that_cannot_be_kept_is_refused_or_named() {
        let mut policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
        assert!(check_alone(&policy, &[]).is_ok());
        policy.deny_read = vec!["/w/state".to_owned()];
        assert!(check_alone(&policy, &["/w/state".into()]).is_ok(), "a rule of our own");
        assert!(check_alone(&policy, &[]).is_err());
        assert!(gaps_alone(&policy, 7).contains(&Gap::DenyRules));
        policy.deny_read.clear();
        policy.guard = Guard::Enforce;
        assert!(check_alone(&policy, &[]).is_err());
    }

    #[test]
    fn nothing_is_covered_below_a_cover() {
        let own: Vec<PathBuf> =
            ["/w/state", "/h/state", "/h/state/config", "/dev/shm/state"].map(Into::into).into();
        assert_eq!(hidden(&own, &["/w".into()]), [PathBuf::from("/h/state")]);
    }

    #[test]
    fn it_is_proved_where_only_landlock_refuses() {
        let policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
        assert_eq!(proving_ground(&policy, &["/w/state".into()]), None);
        let ground = proving_ground(&policy, &["/w/state".into(), "/h".into()]).unwrap();
        assert_eq!(ground, Path::new("/h/.must-not-be-writable"));
    }
}
