//! A run as the log knows it: how it began, how it ended, what came of it.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stockade_policy::{Mode, ModeSource, Rule};

use crate::bytes;
use crate::event::{Op, RunId, Time, Version};

/// How a run began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// Its id, unique in its session.
    pub id: RunId,
    /// The command.
    pub argv: Vec<OsString>,
    /// Where it was started.
    pub cwd: PathBuf,
    /// What it may do.
    pub mode: Mode,
    /// Where the mode came from.
    pub source: ModeSource,
    /// The session's root.
    pub root: PathBuf,
    /// Where it may write.
    pub writable_roots: Vec<PathBuf>,
    /// What confines it.
    pub backend: String,
    /// When it began.
    pub started: Time,
}

/// The way a run ended; the words of the contract's section 5, and `interrupted` for one whose recorder died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The command ended by itself.
    Exited,
    /// A signal ended it.
    Signaled,
    /// It ran out of time.
    TimedOut,
    /// The caller stopped it.
    Canceled,
    /// Stockade broke.
    RunnerFailed,
    /// Nothing here can confine it.
    Unavailable,
    /// It wasn't approved, or its policy can't be carried out.
    Refused,
    /// The recorder died before the run was over.
    Interrupted,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 8] = [
        Self::Exited,
        Self::Signaled,
        Self::TimedOut,
        Self::Canceled,
        Self::RunnerFailed,
        Self::Unavailable,
        Self::Refused,
        Self::Interrupted,
    ];

    /// Returns the stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signaled => "signaled",
            Self::TimedOut => "timed_out",
            Self::Canceled => "canceled",
            Self::RunnerFailed => "runner_failed",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::Interrupted => "interrupted",
        }
    }

    /// Returns the ending with this stable name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ending| ending.as_str() == name)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// In which way.
    pub ending: Ending,
    /// The command's exit status, if it had one.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl RunOutcome {
    /// Returns the outcome of a command that ended by itself.
    #[must_use]
    pub const fn exited(code: i32) -> Self {
        Self { ending: Ending::Exited, exit_code: Some(code), signal: None }
    }
}

/// Refusals that differ in nothing but their time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DenialRow {
    /// What was refused.
    #[serde(with = "as_name")]
    pub op: Op,
    /// The target, absolute, as the program saw it.
    #[serde(with = "bytes::path")]
    pub path: PathBuf,
    /// The other end of a rename or link.
    #[serde(with = "bytes::opt_path")]
    pub path2: Option<PathBuf>,
    /// The rule that refused.
    pub rule: Rule,
    /// What stated the rule.
    pub source: String,
    /// What the program saw.
    pub errno: i32,
    /// Who tried.
    pub pid: u32,
    /// With which program.
    #[serde(with = "bytes::path")]
    pub exe: PathBuf,
    /// How often.
    pub count: u64,
}

/// A loss of content that wasn't expected, or that the session hadn't seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictRow {
    /// What met it; `conflict` for a publication.
    #[serde(with = "as_name", default = "conflict")]
    pub op: Op,
    /// The guard's rule that speaks against it.
    #[serde(default)]
    pub rule: Option<Rule>,
    /// The target.
    #[serde(with = "bytes::path")]
    pub path: PathBuf,
    /// Where the content went that wasn't published, if it was kept.
    #[serde(with = "bytes::opt_path")]
    pub kept: Option<PathBuf>,
    /// Who wrote.
    pub pid: u32,
    /// With which program.
    #[serde(with = "bytes::path")]
    pub exe: PathBuf,
    /// What `close` or `fsync` answered, where it failed.
    #[serde(default)]
    pub errno: Option<i32>,
    /// The version that the writer had seen.
    pub expected: Option<Version>,
    /// The version that was there.
    pub found: Option<Version>,
}

/// What a run changed, net: what was made and deleted within it doesn't show. Sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Paths that are new.
    #[serde(with = "bytes::paths")]
    pub created: Vec<PathBuf>,
    /// Paths that were there and whose content or metadata changed.
    #[serde(with = "bytes::paths")]
    pub modified: Vec<PathBuf>,
    /// Paths that are gone.
    #[serde(with = "bytes::paths")]
    pub deleted: Vec<PathBuf>,
    /// Paths that moved, from and to.
    #[serde(with = "bytes::path_pairs")]
    pub renamed: Vec<(PathBuf, PathBuf)>,
    /// Whether every change is in these lists; a run that changes more than a million paths has its lists cut.
    pub complete: bool,
}

impl Changes {
    /// Returns whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.created.is_empty()
            && self.modified.is_empty()
            && self.deleted.is_empty()
            && self.renamed.is_empty()
    }
}

/// Whether everything that happened is in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// Events that couldn't be written; each lot has its `gap` event, if that could be written.
    pub lost: u64,
    /// Bounds what a recorder that was killed can have taken with it.
    pub at_most: u64,
    /// Why writing failed, the first time.
    pub error: Option<String>,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// How many operations were refused.
    pub denial_count: u64,
    /// The refusals, at most [`RunSummary::DENIALS`] different ones, in order of their first.
    pub denials: Vec<DenialRow>,
    /// Writes that met content they didn't expect.
    pub conflicts: Vec<ConflictRow>,
    /// What changed.
    pub changes: Changes,
    /// How often a file was opened for reading.
    pub reads: u64,
    /// How many events were recorded.
    pub events: u64,
    /// How often a system call had to wait because the queue was full.
    pub waits: u64,
    /// Whether everything is in the log.
    pub recording: Recording,
    /// The head of the hash chain after the run, in hexadecimal: keep it elsewhere and `log verify --head` proves that
    /// nothing up to here was changed since.
    pub head: Option<String>,
}

impl RunSummary {
    /// How many different refusals (and conflicts) a summary lists; they are counted beyond that.
    pub const DENIALS: usize = 10_000;
}

/// A version for JSON: times as in the event export.
impl Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        bytes::VersionText::from(*self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bytes::VersionText::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

fn conflict() -> Op {
    Op::Conflict
}

mod as_name {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::event::Op;

    pub(super) fn serialize<S: Serializer>(op: &Op, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(op.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Op, D::Error> {
        let name = String::deserialize(deserializer)?;
        Op::from_name(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown operation `{name}`")))
    }
}
