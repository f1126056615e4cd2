//! The three modes of file effects (contract P1).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a confined program may do to files, ordered by width.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nothing may be changed. What the library resolves to when told nothing (contract P3).
    #[default]
    ReadOnly,
    /// Files below the writable roots may be changed.
    WorkspaceWrite,
    /// Nothing is refused; what happens is still recorded.
    DangerFullAccess,
}

impl Mode {
    /// Every mode, from the narrowest to the widest.
    pub const ALL: [Self; 3] = [Self::ReadOnly, Self::WorkspaceWrite, Self::DangerFullAccess];

    /// The shipped command line's default (contract P3).
    pub const COMMAND_LINE_DEFAULT: Self = Self::WorkspaceWrite;

    /// Returns the mode's name as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::WorkspaceWrite => "workspace-write",
            Self::DangerFullAccess => "danger-full-access",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode `{0}` (expected read-only, workspace-write or danger-full-access)")]
pub struct ParseModeError(String);

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| ParseModeError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_ordered_by_width_and_round_trip() {
        for pair in Mode::ALL.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
        }
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        assert!("Read-Only".parse::<Mode>().is_err());
    }
}
