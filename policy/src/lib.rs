//! The pure half of Stockade: what is allowed, by which rule, and why.
//!
//! Nothing here touches the file system, the clock or the environment. Given the same [`Policy`] and the same
//! path, the answer is the same everywhere, so the FUSE layer, the bubblewrap arguments and the Landlock rules
//! can all be derived from one place (contract P6).
#![forbid(unsafe_code)]

pub mod config;
mod decision;
mod entry;
mod environment;
mod escalation;
mod mode;
mod pattern;
mod policy;
mod preset;
pub mod protection;
mod session;
pub mod text;
mod why;
mod zone;

pub use config::{Config, ConfigError};
pub use decision::{Denial, Refusal, Rule};
pub use entry::EntryKind;
pub use environment::Withholding;
pub use escalation::{
    ApprovalAnswer, ApprovalOutcome, ApprovalPolicy, ApprovalRequest, Escalation, EscalationError,
    OutcomeKind, Permit, RefusedBefore, Resolution, Verdict,
};
pub use mode::{Mode, ParseModeError};
pub use policy::{
    Guard, Hardlinks, ModeSource, Network, ObserveLevel, Policy, PolicyError, Publish, fold_roots,
};
pub use preset::{Deployment, Preset, PresetError};
pub use protection::ConfigKind;
pub use session::{
    ActiveRun, OtherEvent, OtherEventError, ReplayError, SessionError, SessionEvent, SessionState,
};
pub use why::{Access, Answer, Explanation, Remedy, explain, help_for};
pub use zone::{Rules, Zone};
