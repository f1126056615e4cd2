//! The harness that the suite uses: a world for each test (directories, an identity, an environment), commands with a
//! watchdog, digests of trees, and the check that nothing is left.
//!
//! The suite runs the real binary. What the machine lacks skips a test by name here, and fails it where `CI` is set.
//!
//! 1. Every command has a deadline; what outlives it is killed by the ids that were found for it, never by name.
//! 2. The harness itself touches host directories only: nothing in its own process can hang on a mount.
//! 3. A world's directory, processes and mounts are gone when its test ends, also when it fails.

mod binary;
mod command;
mod digest;
mod fixture;
mod identity;
mod leak;
pub mod model;
mod receiver;
mod skip;
mod world;

pub use binary::stockade_binary;
pub use command::{Invocation, Output, Running};
pub use digest::{Digest, Entry, Facets};
pub use fixture::{copy_tree, crate_source, crate_sources, many_files};
pub use identity::Identity;
pub use leak::Leaks;
pub use receiver::{Got, Receiver};
pub use skip::skip;
pub use world::{World, check};

/// Makes two tests of one body, `root` and `user`, in a module of the given name.
#[macro_export]
macro_rules! as_root_and_user {
    ($($(#[$meta:meta])* fn $name:ident($world:ident) $body:block)+) => {
        $($(#[$meta])* mod $name {
            #[allow(unused_imports, reason = "not every body needs what its topic imports")]
            use super::*;

            fn body($world: &$crate::World) $body

            #[test]
            fn root() {
                $crate::check(concat!(module_path!(), "::root"), $crate::Identity::Root, body);
            }

            #[test]
            fn user() {
                $crate::check(concat!(module_path!(), "::user"), $crate::Identity::User, body);
            }
        })+
    };
}
