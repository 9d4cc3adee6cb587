//! `/live` and `/topology`: what is known, as JSON.
//!
//! Not here: the numbers (`live`), the writer (`json`).

use super::json::Json;
use super::live::{Live, LiveNode, LivePool, LiveReactor, Spread};
use super::picture::{Picture, Pool};
use crate::cluster::Role;
use crate::proxy::facts::SlowFacts;

pub fn live(live: &Live) -> String {
    let mut json = Json::default();
    json.open("", '{');
    json.text("version", env!("CARGO_PKG_VERSION"));
    json.number("unix_s", live.unix_s);
    json.number("uptime_s", live.uptime_s);
    json.boolean("ready", live.not_ready.is_none());
    json.open("notes", '[');
    for note in &live.notes {
        json.open("", '{');
        json.text("grade", note.grade.name());
        json.text("text", &note.text);
        json.close('}');
    }
    json.close(']');
    for (name, value) in [
        ("ops", live.ops),
        ("errors_per_s", live.errors_per_s),
        ("bytes_in", live.bytes_in),
        ("bytes_out", live.bytes_out),
        ("accepts", live.accepts),
    ] {
        json.float(name, Some(value));
    }
    for (name, value) in [
        ("clients", live.clients),
        ("blocked", live.blocked),
        ("subscribers", live.subscribers),
        ("in_flight", live.in_flight),
        ("waiting", live.waiting),
        ("memory_held", live.memory.held),
        ("memory_limit", live.memory.limit),
        ("memory_resident", live.memory.resident),
        ("memory_step", u64::from(live.memory.step)),
    ] {
        json.number(name, value);
    }
    spread(&mut json, "whole", &live.whole);
    spread(&mut json, "here", &live.here);
    json.float("node_share", live.node_share);
    json.open("reactors", '[');
    live.reactors.iter().for_each(|one| reactor(&mut json, one));
    json.close(']');
    json.open("pools", '[');
    live.pools.iter().for_each(|one| live_pool(&mut json, one));
    json.close(']');
    json.open("points", '[');
    for point in &live.points {
        json.open("", '[');
        json.float("", Some(point.ops));
        json.maybe("", point.p50_us);
        json.maybe("", point.p99_us);
        json.float("", Some(point.errors));
        json.close(']');
    }
    json.close(']');
    json.close('}');
    json.finish()
}

fn spread(json: &mut Json, name: &str, spread: &Spread) {
    json.open(name, '{');
    json.number("count", spread.count);
    json.maybe("p50_us", spread.p50_us);
    json.maybe("p99_us", spread.p99_us);
    json.close('}');
}

fn reactor(json: &mut Json, one: &LiveReactor) {
    json.open("", '{');
    json.number("index", u64::from(one.index));
    json.boolean("turns", one.turns);
    json.number("clients", one.clients);
    json.float("ops", Some(one.ops));
    json.float("cpu", Some(one.cpu));
    json.float("commands_per_enter", one.commands_per_enter);
    json.float("completions_per_enter", one.completions_per_enter);
    json.close('}');
}

fn live_pool(json: &mut Json, pool: &LivePool) {
    json.open("", '{');
    json.text("name", &pool.name);
    json.number("covered", pool.covered as u64);
    json.number("version", pool.version);
    json.float("slow_per_s", Some(pool.slow_per_s));
    json.float("hottest", pool.hottest);
    slots(json, &pool.slots);
    json.open("nodes", '[');
    pool.nodes.iter().for_each(|one| node(json, one));
    json.close(']');
    json.open("commands", '[');
    for command in &pool.commands {
        json.open("", '{');
        json.text("name", &command.name);
        json.text("class", &command.class);
        json.float("per_s", Some(command.per_s));
        json.number("total", command.total);
        json.close('}');
    }
    json.close(']');
    json.open("errors", '[');
    for error in &pool.errors {
        json.open("", '{');
        json.text("kind", error.kind);
        json.float("per_s", Some(error.per_s));
        json.number("total", error.total);
        json.close('}');
    }
    json.close(']');
    json.open("crossslot", '[');
    for (name, count) in &pool.crossslot {
        json.open("", '{');
        json.text("name", name);
        json.number("total", *count);
        json.close('}');
    }
    json.close(']');
    json.open("slow", '[');
    pool.slow.iter().for_each(|one| slow(json, one));
    json.close(']');
    json.close('}');
}

fn slots(json: &mut Json, ranges: &[(u16, u16, usize)]) {
    json.open("slots", '[');
    for &(from, to, node) in ranges {
        json.open("", '[');
        json.number("", u64::from(from));
        json.number("", u64::from(to));
        json.number("", node as u64);
        json.close(']');
    }
    json.close(']');
}

fn node(json: &mut Json, node: &LiveNode) {
    json.open("", '{');
    json.text("name", &node.name);
    json.text("id", &node.id);
    json.boolean("primary", node.primary);
    json.boolean("healthy", node.healthy);
    json.number("slots", node.slots as u64);
    json.float("ops", Some(node.ops));
    spread(json, "spread", &node.spread);
    json.number("queued", node.queued);
    json.number("connections", node.connections);
    json.float("errors_per_s", Some(node.errors_per_s));
    json.float("losses", Some(node.losses));
    json.close('}');
}

fn slow(json: &mut Json, slow: &SlowFacts) {
    json.open("", '{');
    json.number("unix_s", slow.unix_s);
    json.number("us", slow.duration_us);
    json.number("node_us", slow.node_us);
    json.text("node", &slow.node.map_or(String::new(), |node| node.to_string()));
    json.text("command", &slow.command.replace('|', " "));
    json.close('}');
}

/// The map as the proxy has it, for programs.
pub fn topology(picture: &Picture) -> String {
    let mut json = Json::default();
    json.open("", '{');
    json.open("pools", '[');
    picture.pools.iter().for_each(|pool| map(&mut json, pool));
    json.close(']');
    json.close('}');
    json.finish()
}

fn map(json: &mut Json, pool: &Pool) {
    json.open("", '{');
    json.text("name", &pool.name);
    json.number("slots_served", pool.covered() as u64);
    if let Some(topology) = &pool.facts.topology {
        json.number("version", topology.version);
        json.number("epoch", topology.epoch);
        json.open("nodes", '[');
        for (node, slots) in topology.nodes.iter().zip(pool.slot_counts()) {
            json.open("", '{');
            json.text("id", &node.id);
            json.text("announced", &format!("{}:{}", node.endpoint.host, node.endpoint.port));
            json.text("address", &node.address.map_or(String::new(), |at| at.to_string()));
            json.text("role", if node.role == Role::Primary { "primary" } else { "replica" });
            json.number("shard", u64::from(node.shard));
            json.boolean("healthy", node.healthy);
            json.number("slots", slots as u64);
            json.close('}');
        }
        json.close(']');
    }
    slots(json, &super::live::ranges(pool));
    json.close('}');
}
