//! What happens now: rates and times of the last seconds, and what stands out in them.
//!
//! Not here: how it looks (`page.html`, `top`), the notes' rules (`notes`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use super::notes::{Note, notes};
use super::picture::{Picture, Pool};
use crate::cluster::Role;
use crate::command::COMMANDS;
use crate::metrics::{Counter, Times};
use crate::proxy::facts::{ERROR_KINDS, SlowFacts};
use crate::ready::Readiness;

/// Rates are those of so many seconds.
const WINDOW_MS: u64 = 5_000;
/// Seconds whose throughput and times are remembered.
pub const POINTS_MAX: usize = 300;
/// Commands that are shown.
const COMMANDS_SHOWN: usize = 10;

/// One second.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Point {
    pub ops: f64,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub errors: f64,
}

/// What was seen lately.
#[derive(Default)]
pub struct History {
    pictures: VecDeque<Arc<Picture>>,
    points: VecDeque<Point>,
}

/// The state of the process for people.
#[derive(Clone, Debug)]
pub struct Live {
    pub unix_s: u64,
    pub uptime_s: u64,
    /// Why not; `None`: it is ready.
    pub not_ready: Option<String>,
    pub notes: Vec<Note>,
    pub ops: f64,
    pub errors_per_s: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    pub accepts: f64,
    pub clients: u64,
    pub blocked: u64,
    pub subscribers: u64,
    pub in_flight: u64,
    pub waiting: u64,
    pub whole: Spread,
    pub here: Spread,
    /// Of the time of timed requests, the part that was spent at nodes.
    pub node_share: Option<f64>,
    pub memory: Memory,
    pub reactors: Vec<LiveReactor>,
    pub pools: Vec<LivePool>,
    pub points: Vec<Point>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Spread {
    pub count: u64,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
}

#[derive(Copy, Clone, Debug)]
pub struct Memory {
    pub held: u64,
    pub limit: u64,
    pub resident: u64,
    pub step: u8,
}

#[derive(Clone, Debug)]
pub struct LiveReactor {
    pub index: u16,
    pub turns: bool,
    pub clients: u64,
    pub ops: f64,
    /// Part of a CPU, 0 to 1.
    pub cpu: f64,
    /// Commands for each call of the kernel.
    pub commands_per_enter: Option<f64>,
    pub completions_per_enter: Option<f64>,
    pub exhausted_per_s: f64,
}

#[derive(Clone, Debug)]
pub struct LivePool {
    pub name: Arc<str>,
    pub covered: usize,
    pub version: u64,
    /// Ranges of slots with the index of their owner in `nodes`.
    pub slots: Vec<(u16, u16, usize)>,
    pub nodes: Vec<LiveNode>,
    pub commands: Vec<LiveCommand>,
    pub errors: Vec<LiveError>,
    pub slow: Vec<SlowFacts>,
    pub slow_per_s: f64,
    pub crossslot: Vec<(String, u64)>,
    /// Of what is looked at, the part of the hottest key; `None`: nobody looks.
    pub hottest: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct LiveNode {
    pub name: String,
    pub address: Option<SocketAddr>,
    pub id: String,
    pub primary: bool,
    pub healthy: bool,
    pub slots: usize,
    pub ops: f64,
    pub spread: Spread,
    pub queued: u64,
    pub fence_queued: u64,
    pub connections: u64,
    pub errors_per_s: f64,
    pub losses: f64,
}

#[derive(Clone, Debug)]
pub struct LiveCommand {
    pub name: String,
    pub class: String,
    pub per_s: f64,
    pub total: u64,
}

#[derive(Clone, Debug)]
pub struct LiveError {
    pub kind: &'static str,
    pub per_s: f64,
    pub total: u64,
}

impl History {
    /// A new picture; the older ones that no rate needs any more go.
    pub fn add(&mut self, picture: Arc<Picture>) {
        if let Some(before) = self.pictures.back() {
            if self.points.len() == POINTS_MAX {
                self.points.pop_front();
            }
            self.points.push_back(point(before, &picture));
        }
        let oldest = picture.at_ms.saturating_sub(WINDOW_MS);
        while self.pictures.get(1).is_some_and(|second| second.at_ms <= oldest) {
            self.pictures.pop_front();
        }
        self.pictures.push_back(picture);
    }

    /// `None`: nothing is known yet.
    pub fn live(&self, readiness: Readiness) -> Option<Live> {
        let now = self.pictures.back()?;
        let before = self.pictures.front()?;
        let mut live = live(before, now);
        live.not_ready = match readiness {
            Readiness::Ready => None,
            Readiness::NotReady(why) => Some(why.to_string()),
        };
        live.points = self.points.iter().copied().collect();
        live.notes = notes(&live);
        Some(live)
    }
}

/// Between two pictures.
#[derive(Copy, Clone)]
struct Span {
    seconds: f64,
}

impl Span {
    fn of(before: &Picture, now: &Picture) -> Span {
        Span { seconds: now.at_ms.saturating_sub(before.at_ms) as f64 / 1_000.0 }
    }

    /// 0 where nothing lies between.
    fn rate(self, before: u64, now: u64) -> f64 {
        if self.seconds > 0.0 { now.saturating_sub(before) as f64 / self.seconds } else { 0.0 }
    }
}

fn point(before: &Picture, now: &Picture) -> Point {
    let span = Span::of(before, now);
    let rate = |counter| span.rate(before.total(counter), now.total(counter));
    let whole = joined(before, now, |pool| &pool.facts.counts.whole);
    let spread = spread(&whole);
    Point {
        ops: rate(Counter::Commands),
        p50_us: spread.p50_us,
        p99_us: spread.p99_us,
        errors: rate(Counter::ErrorsReplied),
    }
}

/// The times of all pools between two pictures.
fn joined(before: &Picture, now: &Picture, of: fn(&Pool) -> &Times) -> Times {
    let mut sum = Times::fine();
    for (index, pool) in now.pools.iter().enumerate() {
        match before.pools.get(index) {
            Some(old) if before.at_ms < now.at_ms => sum.add(&of(pool).since(of(old))),
            _ => sum.add(of(pool)),
        }
    }
    sum
}

fn spread(times: &Times) -> Spread {
    Spread { count: times.count(), p50_us: times.quantile_us(0.5), p99_us: times.quantile_us(0.99) }
}

fn live(before: &Picture, now: &Picture) -> Live {
    let span = Span::of(before, now);
    let rate = |counter| span.rate(before.total(counter), now.total(counter));
    let (whole, here) = (
        joined(before, now, |pool| &pool.facts.counts.whole),
        joined(before, now, |p| &p.facts.counts.here),
    );
    let at_nodes = whole.sum_us().saturating_sub(here.sum_us());
    let pools = now.pools.iter().enumerate();
    Live {
        unix_s: now.unix_s,
        uptime_s: now.unix_s.saturating_sub(now.started_unix_s),
        not_ready: None,
        notes: Vec::new(),
        ops: rate(Counter::Commands),
        errors_per_s: rate(Counter::ErrorsReplied),
        bytes_in: rate(Counter::ClientBytesIn),
        bytes_out: rate(Counter::ClientBytesOut),
        accepts: rate(Counter::ClientsTotal),
        clients: now.total(Counter::ClientsConnected),
        blocked: now.total(Counter::ClientsBlocked),
        subscribers: now.total(Counter::PubsubClients),
        in_flight: now.total(Counter::RequestsInFlight),
        waiting: now.pools.iter().map(|pool| pool.facts.waiting).sum(),
        node_share: (whole.sum_us() > 0).then(|| at_nodes as f64 / whole.sum_us() as f64),
        whole: spread(&whole),
        here: spread(&here),
        memory: Memory {
            held: now.of_process(Counter::MemoryHeld),
            limit: now.of_process(Counter::MemoryLimit),
            resident: now.of_process(Counter::MemoryRss),
            step: now.ladder_step(),
        },
        reactors: reactors(before, now, span),
        pools: pools.map(|(index, pool)| live_pool(before.pools.get(index), pool, span)).collect(),
        points: Vec::new(),
    }
}

fn reactors(before: &Picture, now: &Picture, span: Span) -> Vec<LiveReactor> {
    let mut out = Vec::new();
    for reactor in &now.reactors {
        let old = before.reactors.iter().find(|old| old.index == reactor.index);
        let old = old.unwrap_or(reactor);
        let rate = |counter| span.rate(old.value(counter), reactor.value(counter));
        let enters = rate(Counter::Enters);
        let each = |counter| (enters > 0.0).then(|| rate(counter) / enters);
        out.push(LiveReactor {
            index: reactor.index,
            turns: reactor.turns,
            clients: reactor.value(Counter::ClientsConnected),
            ops: rate(Counter::Commands),
            cpu: span.rate(old.cpu_us, reactor.cpu_us) / 1e6,
            commands_per_enter: each(Counter::Commands),
            completions_per_enter: each(Counter::Completions),
            exhausted_per_s: rate(Counter::BuffersExhausted),
        });
    }
    out
}

fn live_pool(before: Option<&Pool>, now: &Pool, span: Span) -> LivePool {
    let old = before.unwrap_or(now);
    let looked_at = now.facts.keys.on && now.facts.keys.recent > 0;
    let (nodes, slots) = in_order(nodes(old, now, span), ranges(now));
    LivePool {
        name: now.name.clone(),
        covered: now.covered(),
        version: now.facts.topology.as_ref().map_or(0, |topology| topology.version),
        slots,
        nodes,
        commands: commands(old, now, span),
        errors: errors(old, now, span),
        slow: now.facts.slow.clone(),
        slow_per_s: span.rate(old.facts.slow_total, now.facts.slow_total),
        crossslot: crossslot(now),
        hottest: looked_at.then(|| now.facts.keys.hottest as f64 / now.facts.keys.recent as f64),
    }
}

/// Nodes by their first slots, those without at the end.
fn in_order(
    nodes: Vec<LiveNode>,
    mut slots: Vec<(u16, u16, usize)>,
) -> (Vec<LiveNode>, Vec<(u16, u16, usize)>) {
    let first = |index: usize| slots.iter().find(|range| range.2 == index).map(|range| range.0);
    let mut order: Vec<(u16, String, usize)> = (0..nodes.len())
        .map(|index| (first(index).unwrap_or(u16::MAX), nodes[index].name.clone(), index))
        .collect();
    order.sort();
    for range in &mut slots {
        range.2 = order.iter().position(|(.., index)| *index == range.2).unwrap_or(range.2);
    }
    let nodes = order.iter().map(|(.., index)| nodes[*index].clone()).collect();
    (nodes, slots)
}

pub fn ranges(pool: &Pool) -> Vec<(u16, u16, usize)> {
    let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
    let Some(topology) = &pool.facts.topology else { return ranges };
    for (slot, &owner) in (0..).zip(topology.owners.iter()) {
        let owner = usize::from(owner);
        if owner >= topology.nodes.len() {
            continue;
        }
        match ranges.last_mut() {
            Some((_, last, node)) if *node == owner && *last + 1 == slot => *last = slot,
            _ => ranges.push((slot, slot, owner)),
        }
    }
    ranges
}

/// In the order of the topology, to which slots refer; then those that it names no more.
fn nodes(old: &Pool, now: &Pool, span: Span) -> Vec<LiveNode> {
    let mut out = Vec::new();
    if let Some(topology) = &now.facts.topology {
        for (node, slots) in topology.nodes.iter().zip(now.slot_counts()) {
            let mut live = numbers(node.address, old, now, span);
            live.name = format!("{}:{}", node.endpoint.host, node.endpoint.port);
            live.id = node.id.to_string();
            live.primary = node.role == Role::Primary;
            live.healthy = node.healthy;
            live.slots = slots;
            out.push(live);
        }
    }
    for facts in &now.facts.nodes {
        if out.iter().all(|live| live.address != Some(facts.address)) {
            out.push(numbers(Some(facts.address), old, now, span));
        }
    }
    out
}

fn numbers(address: Option<SocketAddr>, old: &Pool, now: &Pool, span: Span) -> LiveNode {
    let find =
        |pool: &Pool| pool.facts.nodes.iter().find(|node| Some(node.address) == address).cloned();
    let mut live = LiveNode {
        name: address.map_or("unresolved".to_string(), |address| address.to_string()),
        address,
        id: String::new(),
        primary: false,
        healthy: false,
        slots: 0,
        ops: 0.0,
        spread: Spread::default(),
        queued: 0,
        fence_queued: 0,
        connections: 0,
        errors_per_s: 0.0,
        losses: 0.0,
    };
    if let Some(facts) = find(now) {
        let before = find(old).unwrap_or_else(|| facts.clone());
        live.ops = span.rate(before.requests, facts.requests);
        let whole = span.seconds == 0.0;
        live.spread =
            spread(&if whole { facts.times.clone() } else { facts.times.since(&before.times) });
        live.queued = facts.queued;
        live.fence_queued = facts.fence_queued;
        live.connections = facts.connections;
        live.errors_per_s = span.rate(before.error_replies, facts.error_replies);
        live.losses = span.rate(before.losses, facts.losses);
    }
    live
}

/// Those that clients send most now.
fn commands(old: &Pool, now: &Pool, span: Span) -> Vec<LiveCommand> {
    let counts = now.facts.counts.commands.iter().zip(old.facts.counts.commands.iter()).enumerate();
    let mut out: Vec<LiveCommand> = counts
        .filter(|(_, (now, _))| **now > 0)
        .map(|(id, (now, old))| LiveCommand {
            name: COMMANDS[id].name.replace('|', " "),
            class: super::prometheus::class_name(id),
            per_s: span.rate(*old, *now),
            total: *now,
        })
        .collect();
    out.sort_by(|a, b| b.per_s.total_cmp(&a.per_s).then(b.total.cmp(&a.total)));
    out.truncate(COMMANDS_SHOWN);
    out
}

fn errors(old: &Pool, now: &Pool, span: Span) -> Vec<LiveError> {
    let replied =
        ERROR_KINDS.iter().zip(now.facts.counts.error_kinds).zip(old.facts.counts.error_kinds);
    let mut out: Vec<LiveError> = replied
        .map(|((kind, now), old)| LiveError { kind, per_s: span.rate(old, now), total: now })
        .collect();
    let (a, b) = (&old.facts.tally, &now.facts.tally);
    let ours = [
        ("(time-out)", a.timeouts, b.timeouts),
        ("(connection lost)", a.lost, b.lost),
        ("(client broke the protocol)", a.protocol_errors, b.protocol_errors),
        ("(node broke the protocol)", a.backend_surprises, b.backend_surprises),
    ];
    out.extend(ours.map(|(kind, old, now)| LiveError {
        kind,
        per_s: span.rate(old, now),
        total: now,
    }));
    out.retain(|error| error.total > 0);
    out.sort_by(|a, b| b.per_s.total_cmp(&a.per_s).then(b.total.cmp(&a.total)));
    out
}

fn crossslot(pool: &Pool) -> Vec<(String, u64)> {
    let counts = pool.facts.counts.crossslot.iter().enumerate().filter(|(_, count)| **count > 0);
    let mut out: Vec<(String, u64)> =
        counts.map(|(id, count)| (COMMANDS[id].name.replace('|', " "), *count)).collect();
    out.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    out.truncate(COMMANDS_SHOWN);
    out
}
