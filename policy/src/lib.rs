//! The pure half of Stockade: what is allowed, by which rule, and why.
//!
//! Nothing here touches the file system, the clock or the environment. Given the same [`Policy`] and the same
//! path, the answer is the same everywhere, so the FUSE layer, the bubblewrap arguments and the Landlock rules
//! can all be derived from one place (contract P6).
#![forbid(unsafe_code)]

mod decision;
mod mode;
mod pattern;
mod policy;
pub mod protection;
mod zone;

pub use decision::{Denial, Refusal, Rule};
pub use mode::{Mode, ParseModeError};
pub use policy::{
    Guard, Hardlinks, ModeSource, Network, ObserveLevel, Policy, PolicyError, Publish, fold_roots,
};
pub use protection::ConfigKind;
pub use zone::{EntryKind, Rules, Zone};
