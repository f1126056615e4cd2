//! How much of a policy holds (contract L1).

use std::fmt;

use serde::Serialize;
use stockade_policy::{Hardlinks, Mode, Policy};

/// How much of the policy is enforced, said plainly.
#[must_use = "a sandbox that came up weaker than asked must be seen"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// All of it.
    Full,
    /// All but these.
    Partial(Vec<Gap>),
    /// Nothing is refused: the mode is `danger-full-access`. What was asked for besides and doesn't hold.
    None(Vec<Gap>),
}

/// Something that the policy asks for and that isn't enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gap {
    /// Abstract Unix sockets of the host can be reached.
    AbstractSockets,
    /// A path that can't be read, and that nothing of existed at the start, could be read once the host makes it.
    LateDeniedPaths,
    /// Unix sockets that the host makes after the start, outside of what is served, can be reached.
    LateSockets,
    /// Writes follow hard links out.
    HardLinks,
    /// Unix sockets of the host's can be reached by path.
    HostSockets,
    /// Signals reach processes outside.
    Signals,
    /// Modes, owners, times and extended attributes can be changed outside.
    Metadata,
    /// Files outside can be truncated by path.
    Truncate,
    /// Devices that can be opened take ioctls.
    DeviceIoctl,
    /// Devices that hold the host's data can be read.
    RawDevices,
    /// TCP isn't refused.
    NetworkTcp,
    /// UDP and everything else isn't refused.
    NetworkOtherThanTcp,
    /// What the command does isn't recorded.
    Unobserved,
    /// Protected paths can be written.
    ProtectedPaths,
    /// Rules that deny reading or writing don't hold.
    DenyRules,
    /// The guard doesn't refuse.
    Guard,
    /// Files are written as the command writes them, not whole.
    WholeFiles,
    /// System V objects of the host can be reached.
    SharedMemory,
    /// Processes can outlive the run when it is killed.
    StrayProcesses,
    /// Stockade's own files can be read.
    OwnState,
    /// Terminals other than the command's can be written and read, where the caller may.
    OtherTerminals,
    /// Limits and priorities of the caller's processes outside can be changed.
    OtherProcesses,
    /// Something may be written that the file system doesn't serve.
    UnservedBinds,
    /// What read-only mounts refuse isn't recorded.
    Refusals,
    /// Input can be pushed into the caller's terminal.
    TerminalInjection,
    /// The user's keyrings can be reached.
    Keyrings,
    /// Descriptors that the caller left open reach the command.
    Descriptors,
    /// The command keeps capabilities that can undo mounts.
    Capabilities,
    /// Memory isn't limited as asked.
    MemoryLimit,
    /// The number of processes isn't limited as asked.
    PidsLimit,
    /// Processor time isn't limited as asked.
    CpuLimit,
}

impl Gap {
    /// Returns its stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AbstractSockets => "abstract-sockets",
            Self::LateDeniedPaths => "late-denied-paths",
            Self::LateSockets => "late-sockets",
            Self::HardLinks => "hard-links",
            Self::HostSockets => "host-sockets",
            Self::Signals => "signals",
            Self::Metadata => "metadata",
            Self::Truncate => "truncate",
            Self::DeviceIoctl => "device-ioctl",
            Self::RawDevices => "raw-devices",
            Self::NetworkTcp => "network-tcp",
            Self::NetworkOtherThanTcp => "network-other-than-tcp",
            Self::Unobserved => "unobserved",
            Self::ProtectedPaths => "protected-paths",
            Self::DenyRules => "deny-rules",
            Self::Guard => "guard",
            Self::WholeFiles => "whole-files",
            Self::SharedMemory => "shared-memory",
            Self::StrayProcesses => "stray-processes",
            Self::OwnState => "own-state",
            Self::OtherTerminals => "other-terminals",
            Self::OtherProcesses => "other-processes",
            Self::UnservedBinds => "unserved-binds",
            Self::Refusals => "unrecorded-refusals",
            Self::TerminalInjection => "terminal-injection",
            Self::Keyrings => "keyrings",
            Self::Descriptors => "inherited-descriptors",
            Self::Capabilities => "capabilities",
            Self::MemoryLimit => "memory-limit",
            Self::PidsLimit => "pids-limit",
            Self::CpuLimit => "cpu-limit",
        }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Enforcement {
    /// Says what bubblewrap and the file system enforce together of a policy; `scoped` tells whether the kernel can
    /// keep abstract sockets inside, `guarded` whether the helper makes the command's connections.
    pub fn of(policy: &Policy, scoped: bool, guarded: bool) -> Self {
        if policy.mode == Mode::DangerFullAccess {
            return Self::None(Vec::new());
        }
        let mut gaps = Vec::new();
        // Sockets that exist are covered when the run starts; a read-only mount lets later ones be connected to.
        if !guarded {
            gaps.push(Gap::LateSockets);
        }
        if !scoped && policy.network == stockade_policy::Network::Host {
            gaps.push(Gap::AbstractSockets);
        }
        if policy.hardlinks == Hardlinks::Follow {
            gaps.push(Gap::HardLinks);
        }
        Self::from_gaps(gaps)
    }

    /// Says it of a list of gaps.
    pub fn from_gaps(gaps: Vec<Gap>) -> Self {
        if gaps.is_empty() { Self::Full } else { Self::Partial(gaps) }
    }

    /// Returns the level's stable name.
    #[must_use]
    pub const fn level(&self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partial(_) => "partial",
            Self::None(_) => "none",
        }
    }

    /// Returns what isn't enforced.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        match self {
            Self::Partial(gaps) | Self::None(gaps) => gaps,
            Self::Full => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_levels() {
        let mut policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
        let gaps = |policy: &Policy, scoped| Enforcement::of(policy, scoped, false).gaps().to_vec();
        assert_eq!(Enforcement::of(&policy, true, true), Enforcement::Full);
        assert_eq!(gaps(&policy, true), [Gap::LateSockets]);
        assert_eq!(gaps(&policy, false), [Gap::LateSockets, Gap::AbstractSockets]);
        policy.network = stockade_policy::Network::None;
        assert_eq!(gaps(&policy, false), [Gap::LateSockets]);
        policy.hardlinks = Hardlinks::Follow;
        assert_eq!(gaps(&policy, true), [Gap::LateSockets, Gap::HardLinks]);
        policy.mode = Mode::DangerFullAccess;
        assert_eq!(Enforcement::of(&policy, true, true), Enforcement::None(Vec::new()));
    }
}
