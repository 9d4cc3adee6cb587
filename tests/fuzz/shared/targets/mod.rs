//! The targets: what each of them is fed, and what must hold.
//!
//! A check says what does not hold; a panic, a long time and much memory are seen by who runs it.
//! Not here: running them.

mod config;
mod frames;
mod info;
mod keys;
mod learned;
mod number;
mod redirect;
mod reply;
mod request;
mod scan;
mod split;
mod topology;

use super::random::Random;
pub use keys::{keys_in, words};
pub use request::one_request;

pub struct Target {
    pub name: &'static str,
    /// What must hold, for people.
    pub property: &'static str,
    pub check: fn(&[u8]) -> Result<(), String>,
    /// An input: structured, and then often damaged.
    pub make: fn(&mut Random) -> Vec<u8>,
    /// Bytes that an execution may hold: so many, and so many more for each byte of input.
    pub memory: (usize, usize),
    /// Executions in the seeded loop by default: more for those that are fast.
    pub executions: u64,
}

pub const TARGETS: [Target; 12] = [
    request::TARGET,
    reply::TARGET,
    number::TARGET,
    config::TARGET,
    topology::TARGET,
    keys::TARGET,
    learned::TARGET,
    split::TARGET,
    redirect::TARGET,
    scan::TARGET,
    info::TARGET,
    frames::TARGET,
];

pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
