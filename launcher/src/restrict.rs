//! What the command's own process gives up just before it becomes the command.
//!
//! This is depth, and it closes what a mount namespace can't: signals and abstract sockets to outside (contract L11),
//! and input pushed into the terminal that the launcher shares with its caller.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

use crate::sys::seccomp::Filter;
use crate::sys::{self, seccomp};

/// First Landlock ABI that can keep signals and abstract sockets inside.
pub const SCOPE_ABI: i64 = 6;

/// Tells whether this kernel can keep signals and abstract sockets inside.
#[must_use]
pub fn can_scope() -> bool {
    sys::landlock_abi().is_ok_and(|abi| abi >= SCOPE_ABI)
}

/// Keeps signals and abstract Unix sockets of this process and its descendants inside.
///
/// Where Landlock restricts files too (`landlocked`), every layer must allow that something is linked or renamed from one
/// directory to another, this one included: landlock(7) denies it in each that doesn't say so. Where it doesn't, this
/// layer leaves files alone altogether, since one that speaks of them also forbids mounts in namespaces of the command's.
///
/// # Errors
/// The kernel can't, or the process may still gain privileges.
pub fn scope(landlocked: bool) -> Result<(), Errno> {
    sys::landlock_scope(landlocked)
}

/// What a root user's command keeps (contract L12).
pub const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Gives up every capability but [`KEPT`], for good: also those that an executable could give.
///
/// # Errors
/// Something of it is left.
pub fn drop_capabilities() -> Result<(), Errno> {
    let mut sets = rustix::thread::capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(sets.permitted & KEPT).iter() {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // An older kernel doesn't know the newest.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error),
            }
        }
    }
    sets.effective &= KEPT;
    sets.permitted &= KEPT;
    sets.inheritable &= KEPT;
    rustix::thread::set_capabilities(None, sets)?;
    let left = rustix::thread::capabilities(None)?;
    if (left.permitted | left.effective).difference(KEPT).is_empty() {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// Tells whether the kernel hands the memory of a program that crashes to a program outside, which acts on it.
#[must_use]
pub fn cores_leave() -> bool {
    std::fs::read("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| is_handler(&pattern))
}

fn is_handler(core_pattern: &[u8]) -> bool {
    matches!(core_pattern.first(), Some(b'|' | b'@'))
}

/// Keeps crashes inside, for good: with this very limit the kernel starts no handler.
///
/// # Errors
/// The limit can't be set.
pub fn keep_cores() -> Result<(), Errno> {
    let limit = Rlimit { current: Some(1), maximum: Some(1) };
    rustix::process::setrlimit(Resource::Core, limit)
}

/// Tells whether connections can be looked after here: a filter that asks can be installed, and a process can look at its
/// children.
#[must_use]
pub fn can_guard_connections() -> bool {
    // Yama's levels above 1 let nobody look at a process without a capability.
    let open = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .map_or(true, |text| matches!(text.trim(), "0" | "1"));
    open && seccomp::can_ask() && (!is_filtered() || can_ask_too())
}

/// Tells whether this process runs under filters; one of them may ask already, and there can be only one that does.
fn is_filtered() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    !status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "0"]))
}

/// Tries it in a child.
fn can_ask_too() -> bool {
    let filter = Filter::new(&[(0x06, 0, 0, 0x7FFF_0000)]);
    let tried = sys::fork(|| {
        let tried = rustix::thread::set_no_new_privs(true).and_then(|()| filter.install_asking());
        u8::from(tried.is_err())
    });
    tried.and_then(|mut child| child.wait()).is_ok_and(|status| status == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_handler_takes_cores_out() {
        let rows = [
            ("core\n", false),
            ("/var/core.%p", false),
            ("|/usr/bin/x %p", true),
            ("@/x", true),
            ("", false),
        ];
        for (pattern, expected) in rows {
            assert_eq!(is_handler(pattern.as_bytes()), expected, "{pattern}");
        }
    }
}
