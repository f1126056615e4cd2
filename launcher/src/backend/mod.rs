//! Back ends: what turns a command and a policy into exactly what is spawned (contract L1).

pub mod bwrap;
pub mod landlock;
