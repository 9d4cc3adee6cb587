//! What a proxy tells of itself: counts by command, by error and by node, times, slow requests.
//! Copied on request, so that counting costs additions and nothing else.
//!
//! Not here: plain counts of what happened (`Tally`), their text forms (`admin`).

use std::net::SocketAddr;
use std::sync::Arc;

use super::backend::Phase;
use super::hot_keys::KeyCounts;
use super::sample::Timing;
use super::{Proxy, Tally};
use crate::cluster::Topology;
use crate::command::{COMMANDS, Command};
use crate::metrics::Times;
use crate::resp::reply::first_word;

/// First words of error replies that are counted apart; the last stands for all others.
pub const ERROR_KINDS: [&str; 21] = [
    "ERR",
    "WRONGTYPE",
    "CROSSSLOT",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "LOADING",
    "MASTERDOWN",
    "READONLY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "NOSCRIPT",
    "BUSY",
    "BUSYGROUP",
    "NOGROUP",
    "EXECABORT",
    "UNBLOCKED",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "other",
];

/// Counted by one proxy. Commands by their ids.
#[derive(Clone, Debug)]
pub struct Counts {
    pub commands: Box<[u64]>,
    /// Requests refused with CROSSSLOT.
    pub crossslot: Box<[u64]>,
    pub error_kinds: [u64; ERROR_KINDS.len()],
    /// Of timed requests: from reading them to answering them, and what of it was spent here.
    pub whole: Times,
    pub here: Times,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            commands: vec![0; COMMANDS.len()].into(),
            crossslot: vec![0; COMMANDS.len()].into(),
            error_kinds: [0; ERROR_KINDS.len()],
            whole: Times::fine(),
            here: Times::fine(),
        }
    }
}

/// Counted for one node.
#[derive(Debug)]
pub struct NodeCounts {
    /// Given to backends that are no more; theirs are with them.
    pub asked: u64,
    pub error_replies: u64,
    pub losses: u64,
    pub times: Times,
}

impl Default for NodeCounts {
    fn default() -> NodeCounts {
        NodeCounts { asked: 0, error_replies: 0, losses: 0, times: Times::coarse() }
    }
}

/// One node as a reactor sees it.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub address: SocketAddr,
    /// Requests given to its backends, our own among them.
    pub requests: u64,
    pub error_replies: u64,
    /// Connections that failed or ended unasked.
    pub losses: u64,
    pub connections: u64,
    /// Requests without an answer yet, and bytes that wait to be sent.
    pub queued: u64,
    pub pending_bytes: u64,
    /// Requests that wait for a free fenced backend.
    pub fence_queued: u64,
    /// Of timed requests: how long the node took.
    pub times: Times,
}

/// A request that was slow. Without keys and addresses of clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlowFacts {
    pub unix_s: u64,
    pub duration_us: u64,
    /// Of it: since its bytes had left for the node.
    pub node_us: u64,
    pub node: Option<SocketAddr>,
    pub command: &'static str,
}

/// One proxy.
#[derive(Clone, Debug)]
pub struct Facts {
    pub tally: Tally,
    pub counts: Counts,
    pub nodes: Vec<NodeFacts>,
    /// The slowest of each second in which a request was slow.
    pub slow: Vec<SlowFacts>,
    pub slow_total: u64,
    pub keys: KeyCounts,
    pub topology: Option<Arc<Topology>>,
    pub slots_missing: usize,
    /// Requests that wait for time, or for another map.
    pub waiting: u64,
    /// 0 to 4: see `memory`.
    pub ladder_step: u8,
}

impl Proxy {
    /// Everything there is to tell. Some microseconds, and more with many backends.
    pub fn facts(&self) -> Facts {
        let present = |&node: &u16| {
            let entry = &self.nodes[node];
            entry.present || entry.backends().next().is_some()
        };
        Facts {
            tally: self.tally.clone(),
            counts: self.counts.clone(),
            nodes: self.nodes.indexes().filter(present).map(|node| self.node_facts(node)).collect(),
            slow: self.slow_log.recent(),
            slow_total: self.slow_log.total(),
            keys: self.key_watch.counts(),
            topology: self.topology.clone(),
            slots_missing: self.slots_missing(),
            waiting: self.waits.list.len() as u64,
            ladder_step: self.ladder.step(),
        }
    }

    fn node_facts(&self, node: u16) -> NodeFacts {
        let entry = &self.nodes[node];
        let mut facts = NodeFacts {
            address: entry.address,
            requests: entry.counts.asked,
            error_replies: entry.counts.error_replies,
            losses: entry.counts.losses,
            connections: 0,
            queued: 0,
            pending_bytes: 0,
            fence_queued: entry.fence_queue.iter().map(|queue| queue.len() as u64).sum(),
            times: entry.counts.times.clone(),
        };
        for b in entry.backends() {
            let backend = &self.backends[b as usize];
            facts.requests += backend.asked;
            facts.connections += u64::from(backend.phase == Phase::Ready);
            facts.queued += u64::from(backend.queued());
            facts.pending_bytes += backend.output.pending() as u64;
        }
        facts
    }

    /// HOT: counts a command.
    #[inline]
    pub(super) fn count_command(&mut self, command: &Command) {
        self.tally.commands += 1;
        if let Some(count) = self.counts.commands.get_mut(usize::from(command.id)) {
            *count += 1;
        }
    }

    /// It was not run after all, and will be counted when it is.
    #[cold]
    pub(super) fn uncount_command(&mut self, command: &Command) {
        self.tally.commands = self.tally.commands.saturating_sub(1);
        if let Some(count) = self.counts.commands.get_mut(usize::from(command.id)) {
            *count = count.saturating_sub(1);
        }
    }

    pub(super) fn count_crossslot(&mut self, command: &Command) {
        self.tally.crossslot += 1;
        if let Some(count) = self.counts.crossslot.get_mut(usize::from(command.id)) {
            *count += 1;
        }
    }

    /// A client is answered with this error.
    #[cold]
    pub(super) fn count_error(&mut self, reply: &[u8]) {
        self.tally.error_replies += 1;
        let word = first_word(reply);
        let others = ERROR_KINDS.len() - 1;
        let kind = ERROR_KINDS.iter().position(|kind| kind.as_bytes() == word).unwrap_or(others);
        self.counts.error_kinds[kind] += 1;
    }

    /// A backend has answered with an error.
    #[cold]
    pub(super) fn count_node_error(&mut self, b: u32) {
        let node = self.backends[b as usize].node;
        self.nodes[node].counts.error_replies += 1;
    }

    /// A backend's place is free: what it was asked stays with its node.
    pub(super) fn free_backend(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        let asked = std::mem::take(&mut backend.asked);
        self.nodes[backend.node].counts.asked += asked;
        self.backends_free.push(b);
    }

    /// A part has its final reply: if the whole is the request that is timed, this was its node's
    /// time. A cut request so counts for each node that took part.
    #[inline]
    pub(super) fn time_part(&mut self, r: u32) {
        let Some((whole, sent_us)) = self.requests.sample.sent() else { return };
        let entry = &self.requests[r];
        if self.splits[entry.split].parent == whole && self.nodes.indexes().end > entry.node {
            let us = self.now.unix_us.saturating_sub(sent_us);
            self.nodes[entry.node].counts.times.record(us);
        }
    }

    /// Whether the driver should read the clock at the end of this turn, for `handle_turn_end`.
    #[inline]
    pub fn wants_clock(&self) -> bool {
        self.requests.wants_clock()
    }

    /// The turn has done everything, at `unix_us`: how long a timed request took, microseconds.
    pub fn handle_turn_end(&mut self, unix_us: u64) -> Option<u64> {
        let Timing { whole_us, node_us, node } =
            self.requests.end_turn(self.now.unix_us, unix_us)?;
        self.counts.whole.record(whole_us);
        self.counts.here.record(whole_us - node_us);
        if self.nodes.indexes().end > node {
            self.nodes[node].counts.times.record(node_us);
        }
        Some(whole_us)
    }
}
