//! The operations, a family a file. Each decides first, then acts on the host, then records.

mod attr;
mod create;
mod cut;
mod dir;
mod fresh;
mod guard;
mod history;
mod hold;
mod inside;
mod io;
mod judge;
mod lack;
mod lookup;
mod open;
mod remove;
mod rename;
mod stage;
pub mod thread;
mod xattr;

pub use attr::{Change, When};
pub use dir::Listing;
pub use fresh::{DeniedInodes, not_staged, staged_by};
pub use guard::Findings;
pub use stage::{Overlay, Staged};
pub use xattr::fits as xattr_fits;
