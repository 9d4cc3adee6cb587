//! `/metrics`: the picture in Prometheus' text format 0.0.4.
//!
//! Names end in their unit, counters in `_total`. Labels are bounded: reactors, pools, nodes,
//! commands of the table, kinds of error; never keys or clients.
//!
//! Not here: what is counted (`metrics`, `proxy/facts`).

use std::fmt::{Display, Write};

use super::picture::{Picture, Pool};
use crate::cluster::Role;
use crate::command::COMMANDS;
use crate::metrics::{Counter, Kind, Times};
use crate::proxy::facts::{ERROR_KINDS, NodeFacts};
use crate::ready::Readiness;

/// Upper ends of the buckets of all histograms, microseconds.
const BUCKETS_US: [u64; 17] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

type Row = (Counter, &'static str, &'static str);

/// What each reactor counts: the family without prefix and `_total`, and a label that tells rows
/// of one family apart. Rows of one family follow each other.
const REACTOR_ROWS: &[Row] = &[
    (Counter::ClientsConnected, "clients", ""),
    (Counter::ClientsBlocked, "clients_blocked", ""),
    (Counter::ClientsTotal, "clients_accepted", ""),
    (Counter::ClientsRejected, "clients_refused", ""),
    (Counter::ClientsClosedByLimit, "clients_closed_over_limit", ""),
    (Counter::ClientsSlowed, "clients_slowed", ""),
    (Counter::ClientsClosedForMemory, "clients_closed_for_memory", ""),
    (Counter::ClientBytesIn, "client_received_bytes", ""),
    (Counter::ClientBytesOut, "client_sent_bytes", ""),
    (Counter::BackendsConnected, "backends", ""),
    (Counter::BackendsPrivate, "backends_private", ""),
    (Counter::BackendsTotal, "backend_connects", ""),
    (Counter::BackendsLost, "backend_losses", ""),
    (Counter::BackendBytesIn, "backend_received_bytes", ""),
    (Counter::BackendBytesOut, "backend_sent_bytes", ""),
    (Counter::RequestsInFlight, "requests_in_flight", ""),
    (Counter::Commands, "requests", ""),
    (Counter::CommandsLocal, "requests_local", ""),
    (Counter::Splits, "requests_split", ""),
    (Counter::RedirectsMoved, "redirects", "moved"),
    (Counter::RedirectsAsk, "redirects", "ask"),
    (Counter::RetriesTryAgain, "retries", "tryagain"),
    (Counter::RetriesOther, "retries", "other"),
    (Counter::FenceBreaches, "fence_breaches", ""),
    (Counter::ErrorsProtocol, "errors", "client_protocol"),
    (Counter::ErrorsTimeout, "errors", "timeout"),
    (Counter::ErrorsLost, "errors", "connection_lost"),
    (Counter::ErrorsCrossSlot, "errors", "crossslot"),
    (Counter::ErrorsNodeProtocol, "errors", "node_protocol"),
    (Counter::ErrorsReplied, "error_replies", ""),
    (Counter::Messages, "pubsub_messages", ""),
    (Counter::PubsubClients, "pubsub_clients", ""),
    (Counter::PubsubChannels, "pubsub_channels", ""),
    (Counter::PubsubPatterns, "pubsub_patterns", ""),
    (Counter::PubsubShardChannels, "pubsub_shard_channels", ""),
    (Counter::SendsToClients, "sends", "clients"),
    (Counter::SendsToNodes, "sends", "nodes"),
    (Counter::Turns, "turns", ""),
    (Counter::Enters, "ring_enters", ""),
    (Counter::Completions, "ring_completions", ""),
    (Counter::CompletionsStale, "ring_stale_completions", ""),
    (Counter::BuffersExhausted, "ring_buffers_exhausted", ""),
    (Counter::ReceivesRearmed, "ring_receives_rearmed", ""),
    (Counter::BusyPollHits, "ring_spin_hits", ""),
    (Counter::QueueOverflows, "ring_queue_overflows", ""),
    (Counter::ShortSends, "ring_short_sends", ""),
    (Counter::SubmissionsFull, "ring_submissions_full", ""),
    (Counter::SlotsMissing, "slots_missing", ""),
    (Counter::PoolsReady, "pools_ready", ""),
    (Counter::ClientsGiven, "clients_given", ""),
    (Counter::ClientsTaken, "clients_taken", ""),
];

/// What the process counts as a whole.
const PROCESS_ROWS: &[Row] = &[
    (Counter::MemoryRss, "process_resident_memory_bytes", ""),
    (Counter::MemoryHeld, "ringway_memory_held_bytes", ""),
    (Counter::MemoryLimit, "ringway_memory_limit_bytes", ""),
    (Counter::MemoryPeak, "ringway_memory_peak_bytes", ""),
    (Counter::MemorySystem, "ringway_memory_host_bytes", ""),
];

/// The name of the label that tells rows of a family apart, and the family's own help.
fn apart(family: &str) -> (&'static str, Option<&'static str>) {
    match family {
        "errors" => ("kind", Some("Failures by kind.")),
        "redirects" => ("kind", Some("Redirects followed.")),
        "retries" => ("kind", Some("Requests sent again.")),
        "sends" => ("to", Some("Sends to clients and to nodes.")),
        _ => ("", None),
    }
}

/// The whole answer.
pub fn text(picture: &Picture, readiness: Readiness, turning: &[bool]) -> String {
    let mut page = Page { out: String::with_capacity(64 * 1024) };
    process(&mut page, picture, readiness);
    reactors(&mut page, picture, turning);
    commands(&mut page, picture);
    times(&mut page, picture);
    pools(&mut page, picture);
    nodes(&mut page, picture);
    page.out
}

struct Page {
    out: String,
}

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: Labels, value: impl Display) {
        self.out.push_str(name);
        let mut open = '{';
        for (label, text) in labels.iter().filter(|(label, _)| !label.is_empty()) {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.out, "{open}{label}=\"{text}\"");
            open = ',';
        }
        let close = if open == ',' { "}" } else { "" };
        let _ = writeln!(self.out, "{close} {value}");
    }

    fn one(&mut self, (name, kind): (&str, &str), help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn histogram(&mut self, name: &str, labels: Labels, times: &Times) {
        let bucket = format!("{name}_bucket");
        for us in BUCKETS_US {
            let end = seconds(us);
            let labels = [labels, &[("le", end.as_str())]].concat();
            self.sample(&bucket, &labels, times.count_up_to(us));
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), times.count());
        self.sample(&format!("{name}_sum"), labels, seconds(times.sum_us()));
        self.sample(&format!("{name}_count"), labels, times.count());
    }
}

/// Without a float's noise.
fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn process(page: &mut Page, picture: &Picture, readiness: Readiness) {
    page.family("ringway_build_info", "gauge", "The running version; always 1.");
    page.sample("ringway_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let started = ("process_start_time_seconds", "gauge");
    page.one(started, "When the process started, seconds since 1970.", picture.started_unix_s);
    let cpu = picture.of_process(Counter::CpuUserUs) + picture.of_process(Counter::CpuSystemUs);
    let help = "CPU time of the process, user and system.";
    page.one(("process_cpu_seconds_total", "counter"), help, seconds(cpu));
    for &(counter, name, _) in PROCESS_ROWS {
        page.one((name, "gauge"), counter.help(), picture.of_process(counter));
    }
    let help = "What is done because memory is short: 0 nothing, 1 spare buffers are given back, \
                2 heavy clients are not read, 3 new clients are refused, 4 the heaviest are closed.";
    page.one(("ringway_memory_ladder_step", "gauge"), help, picture.ladder_step());
    let ready = u8::from(readiness == Readiness::Ready);
    page.one(("ringway_ready", "gauge"), "Whether /readyz says yes.", ready);
    let help = "Whether the process is draining.";
    page.one(("ringway_draining", "gauge"), help, u8::from(picture.draining));
}

fn reactors(page: &mut Page, picture: &Picture, turning: &[bool]) {
    page.family("ringway_reactor_turning", "gauge", "Whether it has turned in the last second.");
    for reactor in &picture.reactors {
        let index = reactor.index.to_string();
        let turns = turning.get(usize::from(reactor.index)).copied().unwrap_or(false);
        let turns = u8::from(turns);
        page.sample("ringway_reactor_turning", &[("reactor", &index)], turns);
    }
    let name = "ringway_reactor_cpu_seconds_total";
    page.family(name, "counter", "CPU time of the reactor's thread.");
    for reactor in &picture.reactors {
        page.sample(name, &[("reactor", &reactor.index.to_string())], seconds(reactor.cpu_us));
    }
    let mut before = "";
    for &(counter, family, value) in REACTOR_ROWS {
        let name = family_name(family, counter.kind());
        let (label, help) = apart(family);
        if family != before {
            page.family(&name, kind_name(counter.kind()), help.unwrap_or(counter.help()));
            before = family;
        }
        for reactor in &picture.reactors {
            let index = reactor.index.to_string();
            let labels = [("reactor", index.as_str()), (label, value)];
            page.sample(&name, &labels, reactor.value(counter));
        }
    }
}

fn family_name(family: &str, kind: Kind) -> String {
    match kind {
        Kind::Counter => format!("ringway_{family}_total"),
        Kind::Gauge => format!("ringway_{family}"),
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    }
}

/// As the server writes it in INFO commandstats: `client|list`.
fn command_label(id: usize) -> String {
    COMMANDS[id].name.to_ascii_lowercase()
}

fn commands(page: &mut Page, picture: &Picture) {
    let name = "ringway_commands_total";
    page.family(name, "counter", "Commands of clients that were known, by command and class.");
    for pool in &picture.pools {
        for (id, count) in
            pool.facts.counts.commands.iter().enumerate().filter(|(_, count)| **count > 0)
        {
            let class = class_name(id);
            let labels =
                [("pool", &*pool.name), ("command", &command_label(id)), ("class", &class)];
            page.sample(name, &labels, count);
        }
    }
    let name = "ringway_crossslot_refusals_total";
    page.family(name, "counter", "Requests refused with CROSSSLOT, by command.");
    for pool in &picture.pools {
        for (id, count) in
            pool.facts.counts.crossslot.iter().enumerate().filter(|(_, count)| **count > 0)
        {
            page.sample(name, &[("pool", &pool.name), ("command", &command_label(id))], count);
        }
    }
    let name = "ringway_replied_errors_total";
    page.family(name, "counter", "Error replies to clients, by their first word.");
    for pool in &picture.pools {
        for (kind, count) in ERROR_KINDS.iter().zip(pool.facts.counts.error_kinds) {
            page.sample(name, &[("pool", &pool.name), ("error", kind)], count);
        }
    }
}

/// `split_values` of `Class::SplitValues`.
pub fn class_name(id: usize) -> String {
    let mut name = String::new();
    for letter in format!("{:?}", COMMANDS[id].class).chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

fn times(page: &mut Page, picture: &Picture) {
    let name = "ringway_request_duration_seconds";
    let help = "From reading a request to giving its reply to the client's socket, of one command \
                in 64 at most, without those that block.";
    page.family(name, "histogram", help);
    for pool in &picture.pools {
        page.histogram(name, &[("pool", &pool.name)], &pool.facts.counts.whole);
    }
    let name = "ringway_proxy_duration_seconds";
    page.family(name, "histogram", "Of these, the time spent in the proxy.");
    for pool in &picture.pools {
        page.histogram(name, &[("pool", &pool.name)], &pool.facts.counts.here);
    }
}

type PoolValue = fn(&Pool) -> f64;

const POOL_ROWS: &[(&str, &str, &str, PoolValue)] = &[
    ("slots_served", "gauge", "Slots that a node serves, of 16384.", |pool| pool.covered() as f64),
    ("topology_version", "gauge", "Slot maps taken over since the start.", |pool| {
        pool.facts.topology.as_ref().map_or(0, |topology| topology.version) as f64
    }),
    ("requests_waiting", "gauge", "Requests that wait for time, or for a better map.", |pool| {
        pool.facts.waiting as f64
    }),
    ("slow_requests_total", "counter", "Requests as slow as SLOWLOG wants them.", |pool| {
        pool.facts.slow_total as f64
    }),
    ("keys_sampled_total", "counter", "Keys looked at for PROXY HOTKEYS.", |pool| {
        pool.facts.keys.sampled as f64
    }),
    (
        "hottest_keys_ratio",
        "gauge",
        "Share of each reactor's hottest key in its traffic.",
        |pool| pool.facts.keys.hottest as f64 / pool.facts.keys.recent.max(1) as f64,
    ),
    (
        "big_values_total",
        "counter",
        "Requests and replies of 16 KiB and more (sample_keys).",
        |p| p.facts.keys.big as f64,
    ),
];

fn pools(page: &mut Page, picture: &Picture) {
    for (family, kind, help, value) in POOL_ROWS {
        let name = format!("ringway_{family}");
        page.family(&name, kind, help);
        for pool in &picture.pools {
            page.sample(&name, &[("pool", &pool.name)], value(pool));
        }
    }
}

type NodeValue = fn(&NodeFacts) -> u64;

const NODE_ROWS: &[(&str, &str, &str, NodeValue)] = &[
    ("node_requests_total", "counter", "Requests given to the node, our own among them.", |node| {
        node.requests
    }),
    ("node_error_replies_total", "counter", "Errors that the node answered, redirects too.", |n| {
        n.error_replies
    }),
    ("node_losses_total", "counter", "Connections to the node that failed or broke.", |node| {
        node.losses
    }),
    ("node_connections", "gauge", "Connections to the node that serve.", |node| node.connections),
    ("node_requests_queued", "gauge", "Requests that the node has not answered yet.", |node| {
        node.queued
    }),
    ("node_pending_bytes", "gauge", "Bytes that wait to be sent to the node.", |node| {
        node.pending_bytes
    }),
    ("node_fence_queued", "gauge", "Requests that wait for a free fenced connection.", |node| {
        node.fence_queued
    }),
];

fn nodes(page: &mut Page, picture: &Picture) {
    for (family, kind, help, value) in NODE_ROWS {
        let name = format!("ringway_{family}");
        page.family(&name, kind, help);
        for pool in &picture.pools {
            for node in &pool.facts.nodes {
                let address = node.address.to_string();
                page.sample(&name, &[("pool", &pool.name), ("node", &address)], value(node));
            }
        }
    }
    let name = "ringway_node_duration_seconds";
    let help = "From giving a request to the node to reading its reply, of the timed ones.";
    page.family(name, "histogram", help);
    for pool in &picture.pools {
        for node in pool.facts.nodes.iter().filter(|node| node.times.count() > 0) {
            let address = node.address.to_string();
            page.histogram(name, &[("pool", &pool.name), ("node", &address)], &node.times);
        }
    }
    map(page, picture);
}

/// What the cluster says of its nodes.
fn map(page: &mut Page, picture: &Picture) {
    let families = [
        ("ringway_node_slots", "Slots that the node owns."),
        ("ringway_node_healthy", "Whether the cluster takes the node for healthy."),
    ];
    for (index, (name, help)) in families.into_iter().enumerate() {
        page.family(name, "gauge", help);
        for pool in &picture.pools {
            let Some(topology) = &pool.facts.topology else { continue };
            let mut seen = Vec::new();
            for (node, slots) in topology.nodes.iter().zip(pool.slot_counts()) {
                let Some(address) = node.address.filter(|at| !seen.contains(at)) else { continue };
                seen.push(address);
                let address = address.to_string();
                let role = if node.role == Role::Primary { "primary" } else { "replica" };
                let labels = [("pool", &*pool.name), ("node", &address), ("role", role)];
                let value = if index == 0 { slots } else { usize::from(node.healthy) };
                page.sample(name, &labels, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_that_is_counted_is_shown_once() {
        let cpu = [Counter::CpuUserUs, Counter::CpuSystemUs];
        for counter in Counter::ALL {
            let rows = REACTOR_ROWS.iter().chain(PROCESS_ROWS).filter(|row| row.0 == *counter);
            let times = rows.count() + cpu.iter().filter(|other| *other == counter).count();
            assert_eq!(times, 1, "{counter:?}");
        }
    }

    #[test]
    fn rows_of_one_family_follow_each_other() {
        let mut seen: Vec<&str> = Vec::new();
        for (_, family, _) in REACTOR_ROWS {
            assert!(seen.last() == Some(family) || !seen.contains(family), "{family}");
            seen.push(family);
        }
    }

    #[test]
    fn texts_of_labels_are_escaped_and_seconds_are_exact() {
        let mut page = Page { out: String::new() };
        page.sample("a", &[("x", "q\"b\\n\n"), ("", "left out")], 1);
        page.sample("b", &[], seconds(1_500_000));
        assert_eq!(page.out, "a{x=\"q\\\"b\\\\n\\n\"} 1\nb 1.5\n");
        assert_eq!(
            (seconds(0), seconds(50), seconds(2_000_000)),
            ("0".into(), "0.00005".into(), "2".into())
        );
    }
}
