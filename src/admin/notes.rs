//! What is slow and why, in sentences: what stands out in the numbers of the last seconds.
//!
//! Not here: the numbers (`live`).

use super::live::{Live, LiveNode, LivePool};
use crate::cluster::SLOTS;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Grade {
    Bad,
    Warn,
    Info,
}

impl Grade {
    pub fn name(self) -> &'static str {
        match self {
            Grade::Bad => "bad",
            Grade::Warn => "warn",
            Grade::Info => "info",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    pub grade: Grade,
    pub text: String,
}

/// A thread that uses so much of its CPU has no reserve.
const BUSY: f64 = 0.9;
/// A node is slow whose p99 is so many times that of the others, and so long.
const SLOWER: u64 = 4;
const SLOW_US: u64 = 1_000;
/// Timed requests that a judgement needs.
const SAMPLES_MIN: u64 = 20;
/// One key with such a part of the traffic is hot.
const HOT: f64 = 0.2;

/// The gravest first; one at least.
pub fn notes(live: &Live) -> Vec<Note> {
    let mut out = Vec::new();
    let mut add = |grade, text: String| out.push(Note { grade, text });
    if let Some(reason) = &live.not_ready {
        add(Grade::Bad, format!("Not ready: {reason}."));
    }
    for reactor in live.reactors.iter().filter(|reactor| reactor.cpu >= BUSY) {
        let percent = reactor.cpu * 100.0;
        let text = format!(
            "Reactor {} uses {percent:.0} % of its CPU: more reactors, or pipelines in clients.",
            reactor.index
        );
        add(Grade::Warn, text);
    }
    for reactor in live.reactors.iter().filter(|reactor| reactor.exhausted_per_s > 0.0) {
        let text = format!(
            "Reactor {} runs out of receive buffers: a higher receive_buffer_count.",
            reactor.index
        );
        add(Grade::Warn, text);
    }
    match live.memory.step {
        0 => (),
        1 => add(Grade::Info, "Memory is at 70 % of memory_limit.".to_string()),
        2 => add(Grade::Warn, "Memory is short: clients that hold much are not read.".to_string()),
        _ => add(Grade::Bad, "Memory is short: new clients are refused.".to_string()),
    }
    for pool in &live.pools {
        of_pool(pool, &mut add);
    }
    if live.waiting > 0 {
        let text = format!("Requests that wait for a node or a better map: {}.", live.waiting);
        add(Grade::Warn, text);
    }
    if let Some(share) = live.node_share.filter(|_| live.whole.count >= SAMPLES_MIN) {
        let (here, there) = ((1.0 - share) * 100.0, share * 100.0);
        let text = format!(
            "Of the time of a request {there:.0} % is spent at its node and on the way, {here:.0} % \
             in the proxy."
        );
        add(Grade::Info, text);
    }
    if out.iter().all(|note| note.grade == Grade::Info) {
        out.insert(0, Note { grade: Grade::Info, text: "Nothing stands out.".to_string() });
    }
    out.sort_by_key(|note| note.grade as u8);
    out
}

fn of_pool(pool: &LivePool, add: &mut impl FnMut(Grade, String)) {
    let missing = SLOTS - pool.covered;
    if missing > 0 && pool.covered > 0 {
        let text = format!("Pool {}: {missing} of {SLOTS} slots have no node.", pool.name);
        add(Grade::Bad, text);
    }
    for node in &pool.nodes {
        of_node(pool, node, add);
    }
    for error in &pool.errors {
        if error.kind.starts_with('(') && error.per_s > 0.0 {
            let text = format!("{:.1} failures a second {}.", error.per_s, error.kind);
            add(Grade::Warn, text);
        }
    }
    if let Some(share) = pool.hottest.filter(|&share| share >= HOT) {
        let text = format!(
            "One key has {:.0} % of the traffic that was looked at: PROXY HOTKEYS names it.",
            share * 100.0
        );
        add(Grade::Warn, text);
    }
}

fn of_node(pool: &LivePool, node: &LiveNode, add: &mut impl FnMut(Grade, String)) {
    let name = &node.name;
    if node.slots > 0 && !node.healthy {
        add(Grade::Bad, format!("The cluster says that {name} has failed."));
    } else if node.slots > 0 && node.connections == 0 && node.losses > 0.0 {
        add(Grade::Bad, format!("No connection to {name}."));
    } else if node.losses > 0.0 {
        add(Grade::Warn, format!("{:.1} connections a second to {name} are lost.", node.losses));
    }
    if node.fence_queued > 0 {
        let waiting = node.fence_queued;
        let text = format!("{waiting} scripts wait for a connection to {name}: more fence_lanes.");
        add(Grade::Warn, text);
    }
    let mut others: Vec<u64> = pool
        .nodes
        .iter()
        .filter(|other| other.name != node.name && other.spread.count >= SAMPLES_MIN)
        .filter_map(|other| other.spread.p99_us)
        .collect();
    others.sort_unstable();
    let Some(&usual) = others.get(others.len() / 2) else { return };
    let p99 = node.spread.p99_us.unwrap_or(0);
    if node.spread.count >= SAMPLES_MIN && p99 >= SLOW_US && p99 >= usual * SLOWER {
        let text = format!(
            "{name} is slower than the others: p99 {} against {}.",
            Duration(p99),
            Duration(usual)
        );
        add(Grade::Warn, text);
    }
}

/// Microseconds as people read them.
pub struct Duration(pub u64);

impl std::fmt::Display for Duration {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.0 {
            0..1_000 => write!(f, "{} µs", self.0),
            1_000..10_000 => write!(f, "{:.1} ms", self.0 as f64 / 1e3),
            10_000..1_000_000 => write!(f, "{:.0} ms", self.0 as f64 / 1e3),
            _ => write!(f, "{:.1} s", self.0 as f64 / 1e6),
        }
    }
}
