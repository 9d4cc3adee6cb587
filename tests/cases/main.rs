//! The cases of `research/user-demand.md` section 2, as tests: P (protocol), S (splitting), F
//! (pipelines and slow readers), C (cluster faults), A (connection state). P8, and all of P against
//! a server, are in `tests/conformance`.
//!
//! Not here: single-slot commands (`tests/conformance`), client libraries (`tests/clients`).
#![allow(clippy::disallowed_methods)]

mod admin;
mod bench;
mod blocking;
mod breaking;
mod databases;
mod fakes;
mod faults;
mod fence;
mod flow;
mod load;
mod login;
mod memory;
mod moves;
mod nodes;
mod own;
mod program;
mod protocol;
mod pubsub;
mod pubsub_faults;
mod retries;
mod scripts;
mod secrets;
mod session;
mod splitting;
#[path = "../support/mod.rs"]
mod support;
mod synced;
mod together;
mod transactions;
mod walk;
mod watching;
