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
    /// Nothing is refused: the mode is `danger-full-access`.
    None,
}

/// Something that the policy asks for and that isn't enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gap {
    /// Abstract Unix sockets of the host can be reached.
    AbstractSockets,
    /// Writes follow hard links out, as `--hardlinks follow` asks.
    HardLinks,
}

impl Gap {
    /// Returns its stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AbstractSockets => "abstract-sockets",
            Self::HardLinks => "hard-links",
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
    /// keep abstract sockets inside.
    pub fn of(policy: &Policy, scoped: bool) -> Self {
        if policy.mode == Mode::DangerFullAccess {
            return Self::None;
        }
        let mut gaps = Vec::new();
        if !scoped && policy.network == stockade_policy::Network::Host {
            gaps.push(Gap::AbstractSockets);
        }
        if policy.hardlinks == Hardlinks::Follow {
            gaps.push(Gap::HardLinks);
        }
        if gaps.is_empty() { Self::Full } else { Self::Partial(gaps) }
    }

    /// Returns the level's stable name.
    #[must_use]
    pub const fn level(&self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partial(_) => "partial",
            Self::None => "none",
        }
    }

    /// Returns what isn't enforced.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        match self {
            Self::Partial(gaps) => gaps,
            Self::Full | Self::None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_levels() {
        let mut policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
        assert_eq!(Enforcement::of(&policy, true), Enforcement::Full);
        assert_eq!(Enforcement::of(&policy, false).gaps(), [Gap::AbstractSockets]);
        policy.network = stockade_policy::Network::None;
        assert_eq!(Enforcement::of(&policy, false), Enforcement::Full);
        policy.hardlinks = Hardlinks::Follow;
        assert_eq!(Enforcement::of(&policy, true).gaps(), [Gap::HardLinks]);
        policy.mode = Mode::DangerFullAccess;
        assert_eq!(Enforcement::of(&policy, true), Enforcement::None);
    }
}
