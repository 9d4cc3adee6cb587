//! What all reactors told, joined: the one picture that every path of the endpoint shows.
//!
//! Not here: asking them (`gather`), rates and judgements (`live`, `ready`), text forms.

use std::sync::Arc;

use crate::cluster::{SLOTS, Topology};
use crate::limits::SLOW_SHOWN_MAX;
use crate::metrics::Counter;
use crate::proxy::facts::{Counts, Facts, NodeFacts};
use crate::reactor::ReactorFacts;

/// The process at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Milliseconds of the gatherer's clock.
    pub at_ms: u64,
    pub unix_s: u64,
    pub started_unix_s: u64,
    pub draining: bool,
    pub reactors: Vec<Reactor>,
    /// What the process counts as a whole, by `Counter`.
    pub process: Vec<u64>,
    pub pools: Vec<Pool>,
}

#[derive(Clone, Debug)]
pub struct Reactor {
    pub index: u16,
    /// By `Counter`.
    pub values: Vec<u64>,
    /// CPU time of its thread, microseconds.
    pub cpu_us: u64,
    /// It has turned within the last second.
    pub turns: bool,
}

/// One cluster, as all reactors serve it.
#[derive(Clone, Debug)]
pub struct Pool {
    pub name: Arc<str>,
    /// Added up; of the slow ones the slowest of each second, the newest first; the newest map.
    pub facts: Facts,
}

impl Picture {
    /// The sum over the reactors.
    pub fn total(&self, counter: Counter) -> u64 {
        self.reactors.iter().map(|reactor| reactor.value(counter)).sum()
    }

    pub fn of_process(&self, counter: Counter) -> u64 {
        self.process.get(counter as usize).copied().unwrap_or(0)
    }

    pub fn ladder_step(&self) -> u8 {
        self.pools.iter().map(|pool| pool.facts.ladder_step).max().unwrap_or(0)
    }
}

impl Reactor {
    pub fn value(&self, counter: Counter) -> u64 {
        self.values.get(counter as usize).copied().unwrap_or(0)
    }
}

impl Pool {
    pub fn covered(&self) -> usize {
        SLOTS - self.facts.slots_missing
    }

    /// Slots of each node of the topology.
    pub fn slot_counts(&self) -> Vec<usize> {
        let Some(topology) = &self.facts.topology else { return Vec::new() };
        let mut counts = vec![0; topology.nodes.len()];
        for slot in 0..SLOTS {
            if let Some(count) = counts.get_mut(usize::from(topology.owners[slot])) {
                *count += 1;
            }
        }
        counts
    }
}

/// Joins what the reactors told of their pools.
pub fn join(reactors: &[ReactorFacts]) -> Vec<Pool> {
    let mut pools: Vec<Pool> = Vec::new();
    for reactor in reactors {
        for (index, (name, facts)) in reactor.pools.iter().enumerate() {
            match pools.get_mut(index) {
                Some(pool) => add(&mut pool.facts, facts),
                None => pools.push(Pool { name: name.clone(), facts: facts.clone() }),
            }
        }
    }
    for Pool { facts, .. } in &mut pools {
        facts.slow.sort_by_key(|slow| std::cmp::Reverse((slow.unix_s, slow.duration_us)));
        // The slowest of each second comes first, and stays.
        facts.slow.dedup_by_key(|slow| slow.unix_s);
        facts.slow.truncate(SLOW_SHOWN_MAX);
        facts.nodes.sort_by_key(|node| node.address);
    }
    pools
}

fn add(sum: &mut Facts, facts: &Facts) {
    sum.tally.add(&facts.tally);
    add_counts(&mut sum.counts, &facts.counts);
    for node in &facts.nodes {
        match sum.nodes.iter_mut().find(|known| known.address == node.address) {
            Some(known) => add_node(known, node),
            None => sum.nodes.push(node.clone()),
        }
    }
    sum.slow.extend_from_slice(&facts.slow);
    sum.slow_total += facts.slow_total;
    sum.keys.sampled += facts.keys.sampled;
    sum.keys.big += facts.keys.big;
    sum.keys.recent += facts.keys.recent;
    sum.keys.hottest += facts.keys.hottest;
    let version = |topology: &Option<Arc<Topology>>| topology.as_ref().map_or(0, |map| map.version);
    if version(&facts.topology) > version(&sum.topology) {
        sum.topology = facts.topology.clone();
    }
    sum.slots_missing = sum.slots_missing.max(facts.slots_missing);
    sum.waiting += facts.waiting;
    sum.ladder_step = sum.ladder_step.max(facts.ladder_step);
}

fn add_counts(sum: &mut Counts, other: &Counts) {
    let add = |sum: &mut [u64], other: &[u64]| {
        sum.iter_mut().zip(other).for_each(|(sum, count)| *sum += count);
    };
    add(&mut sum.commands, &other.commands);
    add(&mut sum.crossslot, &other.crossslot);
    add(&mut sum.error_kinds, &other.error_kinds);
    sum.whole.add(&other.whole);
    sum.here.add(&other.here);
}

fn add_node(sum: &mut NodeFacts, other: &NodeFacts) {
    sum.requests += other.requests;
    sum.error_replies += other.error_replies;
    sum.losses += other.losses;
    sum.connections += other.connections;
    sum.queued += other.queued;
    sum.pending_bytes += other.pending_bytes;
    sum.fence_queued += other.fence_queued;
    sum.times.add(&other.times);
}
