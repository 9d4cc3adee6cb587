//! The outside of Ringway for tests: real nodes, fake nodes, the proxy's process, and a client that
//! shows raw bytes.
//!
//! Not here: any part of the crate under test. What a test expects is never computed by the code it
//! judges.
#![allow(dead_code, clippy::disallowed_methods)]

pub mod chance;
pub mod client;
pub mod cluster;
pub mod fake;
pub mod group;
pub mod http;
pub mod keys;
pub mod operate;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod reply;

use std::time::{Duration, Instant};

/// Polls `done` every few milliseconds; panics with `what` after `limit`.
#[track_caller]
pub fn wait_until(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "still waiting after {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A goal of time, as it stands where RINGWAY_STRICT is set (`tests/figures.sh`). Elsewhere four
/// times as long: others may use the machine too, and what is late is not wrong.
pub fn goal(limit: Duration) -> Duration {
    if std::env::var_os("RINGWAY_STRICT").is_some() { limit } else { 4 * limit }
}

pub fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
