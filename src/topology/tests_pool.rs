//! Tests of one pool with virtual time: what reports and answers lead to.

use super::pool::{Failure, Pool, Say, Told};
use super::schedule::Target;
use super::settings::PoolSettings;
use super::{Report, RequestBounds, Update};
use crate::cluster::{AddressMap, Endpoint, Node, Role, SLOTS, Topology};
use crate::command::Learned;
use crate::log::Log;
use std::net::SocketAddr;

/// What most nodes tell: nothing out of the ordinary.
const BOUNDS: RequestBounds = RequestBounds { bulk_max: None, query_max: None, databases: None };

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn place(port: u16) -> Endpoint {
    Endpoint { host: "10.0.0.1".into(), port }
}

/// Primaries at the given ports, slots cut evenly, all of one epoch each.
fn map(ports: &[u16]) -> Topology {
    let mut topology = Topology::empty();
    for (index, &port) in (0u16..).zip(ports) {
        topology.nodes.push(Node {
            id: format!("id{port}").into(),
            endpoint: place(port),
            address: Some(address(port)),
            role: Role::Primary,
            shard: index,
            healthy: true,
            epoch: 1 + u64::from(index),
        });
    }
    for slot in 0..SLOTS {
        topology.owners[slot] = (slot * ports.len() / SLOTS) as u16;
    }
    topology.epoch = 9;
    topology
}

struct Rig {
    pool: Pool,
    log: Log,
}

impl Rig {
    fn new() -> Rig {
        let address_map = AddressMap::new([("outer:*", "10.0.0.1:*")]).unwrap();
        let seeds = vec![place(1)];
        let settings = PoolSettings { seeds, address_map, ..PoolSettings::default() };
        Rig { pool: Pool::new(0, &settings, 1, 0), log: Log::silent() }
    }

    /// With a map of nodes 1, 2 and 3, known since time 0.
    fn with_map() -> Rig {
        let mut rig = Rig::new();
        assert_eq!(rig.pool.start(0), Some(Target::Seed(0)));
        rig.answer(map(&[1, 2, 3]), 0);
        rig
    }

    fn answer(&mut self, topology: Topology, now: u64) -> Vec<String> {
        self.finish(Ok(Told { topology, ok: true, bounds: BOUNDS, teller: "t".into() }), now)
    }

    fn finish(&mut self, told: Result<Told, Failure>, now: u64) -> Vec<String> {
        let mut out = Vec::new();
        let mut say = Say { log: &mut self.log, unix_us: 0 };
        self.pool.finish(told, now, &mut say, &mut out);
        out.iter().map(show).collect()
    }

    fn moved(&mut self, slot: u16, endpoint: Endpoint, now: u64) -> Vec<String> {
        let mut out = Vec::new();
        let report = Report::Moved { pool: 0, slot, endpoint, from: address(2), known: true };
        self.pool.handle_report(report, now, &mut out);
        out.iter().map(show).collect()
    }
}

fn show(update: &Update) -> String {
    match update {
        Update::Map { topology, .. } => format!("map {}", topology.version),
        Update::Slot { slot, address, .. } => format!("slot {slot} {}", address.port()),
        Update::Confirmed { endpoint, address, .. } => {
            format!("confirmed {endpoint} {:?}", address.map(|address| address.port()))
        }
        Update::Refreshed { ok, .. } => format!("refreshed {ok}"),
        Update::Learned { learned, .. } => format!("learned {}", learned.len()),
        Update::Script { body, .. } => format!("script {}", body.is_some()),
        Update::Bounds { bounds, .. } => format!("bounds {bounds:?}"),
        Update::Drain { .. } => "drain".into(),
    }
}

#[test]
fn a_move_to_a_known_node_is_broadcast_at_once_and_a_refresh_follows() {
    let mut rig = Rig::with_map();
    assert_eq!(rig.moved(0, place(3), 5000), ["slot 0 3"]);
    assert_eq!(rig.moved(0, place(3), 5000), [""; 0], "it is known by now");
    assert!(matches!(rig.pool.start(5000), Some(Target::Node(_))));
}

#[test]
fn two_nodes_that_name_each_other_do_not_flood_the_reactors() {
    let mut rig = Rig::with_map();
    let sent: usize = (5000..6000)
        .map(|now| rig.moved(0, place(if now % 2 == 0 { 2 } else { 3 }), now).len())
        .sum();
    assert!((5..=10).contains(&sent), "{sent}");
}

#[test]
fn a_place_that_only_the_reactor_did_not_know_is_confirmed_at_once_and_patches_nothing() {
    let mut rig = Rig::with_map();
    let (endpoint, mut out) = (Endpoint { host: "outer".into(), port: 3 }, Vec::new());
    let report = Report::Moved { pool: 0, slot: 0, endpoint, from: address(2), known: false };
    rig.pool.handle_report(report, 5000, &mut out);
    let shown: Vec<String> = out.iter().map(show).collect();
    assert_eq!(shown, ["confirmed outer:3 Some(3)"], "it may have been ASK that named it");
    assert!(rig.pool.start(5000).is_some(), "a refresh follows");
}

#[test]
fn places_are_found_through_the_address_map() {
    let mut rig = Rig::with_map();
    let outer = Endpoint { host: "outer".into(), port: 3 };
    assert_eq!(rig.moved(0, outer, 5000), ["slot 0 3"]);
}

#[test]
fn a_move_to_an_unknown_node_waits_for_a_refresh_of_the_node_that_said_it() {
    let mut rig = Rig::with_map();
    assert_eq!(rig.moved(0, place(4), 5000), [""; 0]);
    assert_eq!(rig.moved(1, place(4), 5000), [""; 0]);
    assert_eq!(rig.pool.start(5000), Some(Target::Node(address(2))));
    let mut grown = map(&[1, 2, 3, 4]);
    grown.nodes[3].epoch = 9;
    assert_eq!(
        rig.answer(grown, 5010),
        ["map 2", "confirmed 10.0.0.1:4 Some(4)", "refreshed true"]
    );
}

#[test]
fn a_forged_move_is_not_confirmed() {
    let mut rig = Rig::with_map();
    rig.moved(0, Endpoint { host: "evil".into(), port: 6379 }, 5000);
    rig.pool.start(5000);
    assert_eq!(rig.answer(map(&[1, 2, 3]), 5010), ["confirmed evil:6379 None", "refreshed true"]);
}

#[test]
fn a_move_during_a_refresh_is_answered_by_the_next() {
    let mut rig = Rig::with_map();
    rig.moved(0, place(3), 5000);
    rig.pool.start(5000);
    rig.moved(0, place(4), 5001);
    assert_eq!(rig.answer(map(&[1, 2, 3]), 5010), ["refreshed true"]);
    let next = rig.pool.next_deadline().unwrap();
    assert!(next <= 5000 + 600, "{next}");
    rig.pool.start(next);
    assert_eq!(rig.answer(map(&[1, 2, 3]), next)[0], "confirmed 10.0.0.1:4 None");
}

#[test]
fn unknown_places_beyond_the_bound_are_declined_at_once() {
    let mut rig = Rig::with_map();
    let declined: usize = (0..100).map(|port| rig.moved(0, place(1000 + port), 5000).len()).sum();
    assert_eq!(declined, 100 - crate::limits::UNCONFIRMED_MAX);
}

#[test]
fn a_patch_that_no_map_confirms_is_taken_back() {
    let mut rig = Rig::with_map();
    rig.moved(0, place(3), 5000);
    rig.pool.start(5000);
    assert_eq!(rig.answer(map(&[1, 2, 3]), 5010), ["refreshed true"], "it may not know yet");
    let next = rig.pool.next_deadline().unwrap();
    assert!((6000..6300).contains(&next), "asked again soon: {next}");
    rig.pool.start(next);
    assert_eq!(rig.answer(map(&[1, 2, 3]), next), ["map 2", "refreshed true"]);
}

#[test]
fn when_nobody_answers_the_map_stays_and_reactors_hear_of_it() {
    let mut rig = Rig::with_map();
    rig.moved(0, place(4), 5000);
    let mut now = 5000;
    let mut heard = Vec::new();
    while heard.is_empty() {
        now = rig.pool.next_deadline().unwrap().max(now);
        rig.pool.start(now).unwrap();
        heard = rig.finish(Err(Failure { connected: false, reason: "refused".into() }), now);
    }
    // Its nodes are all told to have failed, and who owns what is as it was.
    assert_eq!(heard, ["map 2"]);
    let owners = |rig: &Rig| rig.pool.current().unwrap().owners.clone();
    assert!(rig.pool.current().unwrap().nodes.iter().all(|node| !node.healthy));
    assert_eq!(owners(&rig), owners(&Rig::with_map()));
    heard.clear();
    while heard.is_empty() {
        now = rig.pool.next_deadline().unwrap().max(now);
        rig.pool.start(now).unwrap();
        heard = rig.finish(Err(Failure { connected: false, reason: "refused".into() }), now);
    }
    assert_eq!(heard, ["confirmed 10.0.0.1:4 None", "refreshed false"]);
}

#[test]
fn a_cluster_that_is_not_ok_is_asked_again_within_a_second() {
    let mut rig = Rig::new();
    rig.pool.start(0);
    rig.finish(Ok(Told { topology: map(&[1]), ok: false, bounds: BOUNDS, teller: "t".into() }), 0);
    assert!(rig.pool.next_deadline().unwrap() < 1300);
}

#[test]
fn while_a_lost_node_owns_slots_the_map_is_asked_for_often() {
    let mut rig = Rig::with_map();
    let lost = || Report::NodeLost { pool: 0, address: address(2) };
    rig.pool.handle_report(lost(), 5000, &mut Vec::new());
    let (mut now, mut asked) = (5000, 0);
    // The reactor goes on trying: a successor must be found within 200 ms, for half a minute.
    while now < 34_900 {
        assert_ne!(rig.pool.start(now), Some(Target::Node(address(2))));
        rig.answer(map(&[1, 2, 3]), now);
        let next = rig.pool.next_deadline().unwrap();
        assert!((now + 160..=now + 200).contains(&next), "{now} {next}");
        now = next;
        asked += 1;
        if asked % 10 == 0 {
            rig.pool.handle_report(lost(), now, &mut Vec::new());
        }
    }
    // Then no more often than when nobody complains.
    for _ in 0..5 {
        now = now.max(35_000);
        rig.pool.start(now);
        rig.answer(map(&[1, 2, 3]), now);
        let next = rig.pool.next_deadline().unwrap();
        assert!((now + 1000..now + 1300).contains(&next), "{now} {next}");
        now = next;
    }
    // A successor: the map is settled, though the lost node is still in it.
    let mut after = map(&[1, 2, 3]);
    after.nodes[2].epoch = 10;
    after.owners.iter_mut().filter(|owner| **owner == 1).for_each(|owner| *owner = 2);
    rig.pool.start(now);
    assert_eq!(rig.answer(after, now), ["map 2", "refreshed true"]);
    assert!(rig.pool.next_deadline().unwrap() >= now + 10_000);
}

#[test]
fn one_lost_connection_makes_for_haste_only_for_a_moment() {
    let mut rig = Rig::with_map();
    let lost = Report::NodeLost { pool: 0, address: address(2) };
    rig.pool.handle_report(lost, 5000, &mut Vec::new());
    let (mut now, mut asked) = (5000, 0);
    while now < 15_000 {
        rig.pool.start(now);
        rig.answer(map(&[1, 2, 3]), now);
        now = rig.pool.next_deadline().unwrap();
        asked += 1;
    }
    assert!((20..=34).contains(&asked), "asked {asked} times in ten seconds");
}

#[test]
fn commands_are_asked_for_once_and_again_only_if_that_failed() {
    let mut rig = Rig::new();
    assert_eq!(rig.pool.start_learning(), None);
    rig.pool.start(0);
    rig.answer(map(&[1, 2, 3]), 0);
    assert_eq!(rig.pool.start_learning(), Some(address(1)));
    assert_eq!(rig.pool.start_learning(), None);
    let refused = Err(Failure { connected: true, reason: "NOPERM".into() });
    let mut out = Vec::new();
    let mut say = Say { log: &mut rig.log, unix_us: 0 };
    rig.pool.finish_learning(refused, &mut say, &mut out);
    rig.pool.start(20_000);
    rig.answer(map(&[1, 2, 3]), 20_000);
    assert_eq!(rig.pool.start_learning(), Some(address(1)));
    let mut say = Say { log: &mut rig.log, unix_us: 0 };
    rig.pool.finish_learning(Ok(Learned::default()), &mut say, &mut out);
    assert_eq!(out.iter().map(show).collect::<Vec<_>>(), ["learned 0"]);
    rig.pool.start(40_000);
    rig.answer(map(&[1, 2, 3]), 40_000);
    assert_eq!(rig.pool.start_learning(), None);
    assert_eq!(rig.pool.standing().count(), 2);
}

#[test]
fn slots_out_of_range_in_a_report_change_nothing() {
    let mut rig = Rig::with_map();
    assert_eq!(rig.moved(u16::MAX, place(3), 5000), [""; 0]);
}
