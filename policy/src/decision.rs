//! A refusal and the rule that made it (contract F2).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The rule that refused an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The mode is `read-only`.
    ReadOnlyMode,
    /// The target lies outside every writable root.
    OutsideWritableRoots,
    /// The path is protected although it lies in a writable root (contract P11).
    ProtectedPath,
    /// A `deny_write` rule names the path.
    WriteDenied,
    /// A `deny_read` rule names the path.
    ReadDenied,
    /// The guard refused: this session never saw the content.
    NotObserved,
    /// The guard refused: the content changed since this session saw it.
    StaleVersion,
    /// The file has a name outside and `--hardlinks deny` is in force (contract F11).
    HardLink,
    /// Device nodes can't be made inside.
    DeviceNode,
    /// The name belongs to Stockade itself.
    Reserved,
}

/// How a refusal looks to the program: the class of errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `EROFS`
    ReadOnlyFileSystem,
    /// `EACCES`
    AccessDenied,
    /// `EPERM`
    NotPermitted,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 10] = [
        Self::ReadOnlyMode,
        Self::OutsideWritableRoots,
        Self::ProtectedPath,
        Self::WriteDenied,
        Self::ReadDenied,
        Self::NotObserved,
        Self::StaleVersion,
        Self::HardLink,
        Self::DeviceNode,
        Self::Reserved,
    ];

    /// Returns the rule's stable name, as the log and `stockade why` print it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnlyMode => "read-only-mode",
            Self::OutsideWritableRoots => "outside-writable-roots",
            Self::ProtectedPath => "protected-path",
            Self::WriteDenied => "write-denied",
            Self::ReadDenied => "read-denied",
            Self::NotObserved => "not-observed",
            Self::StaleVersion => "stale-version",
            Self::HardLink => "hard-link",
            Self::DeviceNode => "device-node",
            Self::Reserved => "reserved",
        }
    }

    /// Returns the rule with this stable name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == name)
    }

    /// Returns what the program sees when this rule refuses.
    #[must_use]
    pub const fn refusal(self) -> Refusal {
        match self {
            Self::ReadOnlyMode
            | Self::OutsideWritableRoots
            | Self::ProtectedPath
            | Self::WriteDenied => Refusal::ReadOnlyFileSystem,
            Self::ReadDenied | Self::NotObserved | Self::StaleVersion | Self::HardLink => {
                Refusal::AccessDenied
            }
            Self::DeviceNode | Self::Reserved => Refusal::NotPermitted,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The policy worked and said no.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Denial {
    rule: Rule,
    source: String,
}

impl Denial {
    /// Makes a refusal by `rule`; `source` names what stated it, such as `--deny-read **/.env` or `mode`.
    #[must_use]
    pub fn new(rule: Rule, source: impl Into<String>) -> Self {
        Self { rule, source: source.into() }
    }

    /// Returns the rule that refused.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.rule
    }

    /// Returns what stated the rule.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_names_round_trip() {
        for rule in Rule::ALL {
            assert_eq!(Rule::from_name(rule.as_str()), Some(rule));
        }
    }

    #[test]
    fn denied_writes_are_erofs_and_denied_reads_are_eacces() {
        let expected = [
            (Rule::ReadOnlyMode, Refusal::ReadOnlyFileSystem),
            (Rule::OutsideWritableRoots, Refusal::ReadOnlyFileSystem),
            (Rule::ProtectedPath, Refusal::ReadOnlyFileSystem),
            (Rule::ReadDenied, Refusal::AccessDenied),
            (Rule::NotObserved, Refusal::AccessDenied),
            (Rule::StaleVersion, Refusal::AccessDenied),
        ];
        for (rule, refusal) in expected {
            assert_eq!(rule.refusal(), refusal, "{rule}");
        }
    }
}
