//! From pictures to what people are told: rates, order, judgements.

use std::net::SocketAddr;
use std::sync::Arc;

use super::live::{History, Live};
use super::notes::Grade;
use super::picture::{Picture, Pool, Reactor};
use super::{prometheus, show, top};
use crate::cluster::{Endpoint, Node, Role, SLOTS, Topology, UNOWNED};
use crate::metrics::{Counter, Times};
use crate::proxy::Tally;
use crate::proxy::facts::{Counts, Facts, NodeFacts};
use crate::proxy::hot_keys::KeyCounts;
use crate::ready::Readiness;

fn address(index: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 7000 + index))
}

fn node_facts(index: u16) -> NodeFacts {
    NodeFacts {
        address: address(index),
        requests: 0,
        error_replies: 0,
        losses: 0,
        connections: 1,
        queued: 0,
        pending_bytes: 0,
        fence_queued: 0,
        times: Times::coarse(),
    }
}

/// Three primaries; the last in the list owns the first slots.
fn topology() -> Topology {
    let mut topology = Topology::empty();
    for index in 0..3_u16 {
        topology.nodes.push(Node {
            id: format!("{index}").into(),
            endpoint: Endpoint { host: "n".into(), port: 7000 + index },
            address: Some(address(index)),
            role: Role::Primary,
            shard: index,
            healthy: true,
            epoch: 1,
        });
    }
    for slot in 0..SLOTS {
        topology.owners[slot] = 2 - (slot * 3 / SLOTS) as u16;
    }
    topology.version = 1;
    topology
}

fn picture(at_ms: u64) -> Picture {
    let mut values = vec![0; Counter::ALL.len()];
    values[Counter::Commands as usize] = at_ms;
    values[Counter::Enters as usize] = at_ms / 4;
    Picture {
        at_ms,
        unix_s: 1_000 + at_ms / 1_000,
        started_unix_s: 900,
        draining: false,
        reactors: vec![Reactor { index: 0, values, cpu_us: at_ms * 500, turns: true }],
        process: vec![0; Counter::ALL.len()],
        pools: vec![Pool {
            name: "default".into(),
            facts: Facts {
                slots_missing: 0,
                tally: Tally::default(),
                counts: Counts::default(),
                nodes: (0..3).map(node_facts).collect(),
                slow: Vec::new(),
                slow_total: 0,
                keys: KeyCounts::default(),
                topology: Some(Arc::new(topology())),
                waiting: 0,
                ladder_step: 0,
            },
        }],
    }
}

/// What is shown of ten pictures a second apart, the last one spoilt.
fn live(spoil: impl FnOnce(&mut Picture)) -> Live {
    let mut history = History::default();
    for second in 0..9 {
        history.add(Arc::new(picture(second * 1_000)));
    }
    let mut last = picture(9_000);
    spoil(&mut last);
    history.add(Arc::new(last));
    history.live(Readiness::Ready).unwrap()
}

#[track_caller]
fn check_note(spoil: impl FnOnce(&mut Picture), grade: Grade, text: &str) {
    let notes = live(spoil).notes;
    let found = notes.iter().any(|note| note.grade == grade && note.text.contains(text));
    assert!(found, "no {text:?} in {notes:?}");
}

#[test]
fn rates_are_those_of_the_last_seconds() {
    let live = live(|last| {
        last.pools[0].facts.nodes[0].requests = 500;
        last.pools[0].facts.counts.whole.record(3_000);
        last.pools[0].facts.counts.here.record(1_000);
    });
    assert_eq!((live.ops, live.uptime_s), (1_000.0, 109));
    assert_eq!(live.reactors[0].cpu, 0.5);
    assert_eq!(live.reactors[0].commands_per_enter, Some(4.0));
    let node = live.pools[0].nodes.iter().find(|node| node.name == "n:7000").unwrap();
    assert_eq!(node.ops, 100.0, "of five seconds");
    assert_eq!(live.points.len(), 9);
    assert_eq!(live.points[0].ops, 1_000.0);
    let share = live.node_share.unwrap();
    assert!((0.66..0.67).contains(&share), "{share}");
}

#[test]
fn first_picture_alone_tells_states_and_no_rates() {
    let mut history = History::default();
    assert!(history.live(Readiness::Ready).is_none());
    history.add(Arc::new(picture(1_000)));
    let live = history.live(Readiness::Ready).unwrap();
    assert_eq!((live.ops, live.points.len()), (0.0, 0));
    assert_eq!(live.notes[0].text, "Nothing stands out.");
    let text = show::live(&live);
    assert!(text.starts_with('{') && text.ends_with('}'), "{text}");
}

#[test]
fn nodes_stand_in_the_order_of_their_slots() {
    let live = live(|_| ());
    let pool = &live.pools[0];
    let names: Vec<&str> = pool.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["n:7002", "n:7001", "n:7000"]);
    assert_eq!(pool.slots, [(0, 5461, 0), (5462, 10922, 1), (10923, 16383, 2)]);
}

#[test]
fn what_stands_out_is_said() {
    check_note(|_| (), Grade::Info, "Nothing stands out.");
    check_note(|last| last.pools[0].facts.waiting = 7, Grade::Warn, "better map: 7");
    check_note(|last| last.pools[0].facts.ladder_step = 3, Grade::Bad, "new clients are refused");
    check_note(|last| last.reactors[0].cpu_us += 3_000_000, Grade::Warn, "of its CPU");
    check_note(|last| last.pools[0].facts.nodes[1].losses = 9, Grade::Warn, "to n:7001 are lost");
    check_note(
        |last| {
            last.pools[0].facts.nodes[1].losses = 9;
            last.pools[0].facts.nodes[1].connections = 0;
        },
        Grade::Bad,
        "No connection to n:7001",
    );
    check_note(
        |last| last.pools[0].facts.nodes[2].fence_queued = 4,
        Grade::Warn,
        "more fence_lanes",
    );
    check_note(
        |last| last.pools[0].facts.tally.timeouts = 10,
        Grade::Warn,
        "2.0 failures a second",
    );
    let half = |last: &mut Picture| {
        let mut map = topology();
        map.owners[..4].fill(UNOWNED);
        last.pools[0].facts.topology = Some(Arc::new(map));
        last.pools[0].facts.slots_missing = 4;
    };
    check_note(half, Grade::Bad, "4 of 16384 slots have no node");
    let hot = |last: &mut Picture| {
        last.pools[0].facts.keys =
            KeyCounts { on: true, sampled: 9, big: 0, recent: 100, hottest: 30 };
    };
    check_note(hot, Grade::Warn, "One key has 30 %");
}

#[test]
fn node_that_is_slower_than_the_others_is_named() {
    let slow = |last: &mut Picture| {
        for (index, node) in last.pools[0].facts.nodes.iter_mut().enumerate() {
            let us = if index == 1 { 9_000 } else { 300 };
            (0..50).for_each(|_| node.times.record(us));
        }
    };
    check_note(slow, Grade::Warn, "n:7001 is slower than the others: p99 9.");
    let notes = live(slow).notes;
    assert_eq!(notes.iter().filter(|note| note.text.contains("slower")).count(), 1, "{notes:?}");
}

#[test]
fn text_for_a_terminal_keeps_its_bounds() {
    let live = live(|last| {
        last.pools[0].facts.waiting = 7;
        let mut map = topology();
        map.nodes[0].endpoint.host = "evil\u{1b}[2J".into();
        last.pools[0].facts.topology = Some(Arc::new(map));
    });
    let screen = top::Screen { columns: 70, rows: 20, color: false };
    let text = top::text(&live, &screen);
    assert!(text.lines().count() <= 19 && text.lines().all(|line| line.chars().count() <= 70));
    assert!(text.contains("evil[2J:7000") && !text.contains('\u{1b}'), "{text}");
    assert!(text.contains("AAAA") && text.contains("\nA n:7002"), "{text}");
    let wide = top::text(&live, &top::Screen { columns: 9_999, rows: 0, color: true });
    assert!(wide.lines().count() <= 8);
}

#[test]
fn metrics_of_a_picture_are_shown_with_their_labels() {
    let mut last = picture(9_000);
    last.pools[0].facts.nodes[1].times.record(1_500);
    let text = prometheus::text(&last, Readiness::Ready, &[true]);
    for line in [
        "ringway_requests_total{reactor=\"0\"} 9000\n",
        "ringway_node_slots{pool=\"default\",node=\"10.0.0.1:7001\",role=\"primary\"} 5461\n",
        "ringway_node_duration_seconds_bucket{pool=\"default\",node=\"10.0.0.1:7001\",le=\"0.001\"} 0\n",
        "ringway_node_duration_seconds_bucket{pool=\"default\",node=\"10.0.0.1:7001\",le=\"0.002\"} 1\n",
        "ringway_node_duration_seconds_sum{pool=\"default\",node=\"10.0.0.1:7001\"} 0.0015\n",
        "ringway_slots_served{pool=\"default\"} 16384\n",
        "ringway_ready 1\n",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
}
