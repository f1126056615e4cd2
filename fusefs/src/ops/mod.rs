//! The operations, a family a file. Each decides first, then acts on the host, then records.

mod attr;
mod create;
mod dir;
mod fresh;
mod io;
mod judge;
mod lookup;
mod open;
mod remove;
mod rename;
pub mod thread;
mod xattr;

pub use attr::{Change, When};
pub use fresh::{DeniedInodes, not_staged};
pub use xattr::fits as xattr_fits;
