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

/// Polls `done` every few milliseconds; panics with `what` after `limit`, which is as long as
/// `patience` says: whoever waits for something says nothing of how long it may take. (`goal` does.)
#[track_caller]
pub fn wait_until(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let (start, limit) = (Instant::now(), patience(limit));
    while !done() {
        assert!(start.elapsed() < limit, "still waiting after {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// How many times slower a machine may be that others use as well.
const SLOWER: u32 = 10;

pub fn is_strict() -> bool {
    std::env::var_os("RINGWAY_STRICT").is_some()
}

/// A goal of time, as it stands where RINGWAY_STRICT is set (`tests/figures.sh`). Elsewhere ten
/// times as long: others may use the machine too, and what is late is not wrong.
pub fn goal(limit: Duration) -> Duration {
    if is_strict() { limit } else { SLOWER * limit }
}

/// How long to wait for what must come, on a machine that may be slow: a failure costs this time,
/// a success none of it.
pub fn patience(limit: Duration) -> Duration {
    match is_strict() {
        true => limit,
        false => (SLOWER * limit).clamp(seconds(30), seconds(120)).max(limit),
    }
}

pub fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
