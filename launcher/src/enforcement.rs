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
    /// Unix sockets that the host makes after the start, outside of what is served, can be reached.
    LateSockets,
    /// Writes follow hard links out, as `--hardlinks follow` asks.
    HardLinks,
}

impl Gap {
    /// Tells whether it comes with the policy or the kernel of this one machine, so that a person must be told each time;
    /// what every run has is said in the result and in the manual.
    #[must_use]
    pub const fn is_particular(self) -> bool {
        match self {
            Self::AbstractSockets | Self::HardLinks => true,
            Self::LateSockets => false,
        }
    }

    /// Returns its stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AbstractSockets => "abstract-sockets",
            Self::LateSockets => "late-sockets",
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
        // Sockets that exist are covered when the run starts; a read-only mount lets later ones be connected to.
        let mut gaps = vec![Gap::LateSockets];
        if !scoped && policy.network == stockade_policy::Network::Host {
            gaps.push(Gap::AbstractSockets);
        }
        if policy.hardlinks == Hardlinks::Follow {
            gaps.push(Gap::HardLinks);
        }
        Self::Partial(gaps)
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
        let gaps = |policy: &Policy, scoped| Enforcement::of(policy, scoped).gaps().to_vec();
        assert_eq!(gaps(&policy, true), [Gap::LateSockets]);
        assert_eq!(gaps(&policy, false), [Gap::LateSockets, Gap::AbstractSockets]);
        policy.network = stockade_policy::Network::None;
        assert_eq!(gaps(&policy, false), [Gap::LateSockets]);
        policy.hardlinks = Hardlinks::Follow;
        assert_eq!(gaps(&policy, true), [Gap::LateSockets, Gap::HardLinks]);
        policy.mode = Mode::DangerFullAccess;
        assert_eq!(Enforcement::of(&policy, true), Enforcement::None);
    }
}
