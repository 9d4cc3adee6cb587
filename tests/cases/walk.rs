//! A15: SCAN over the whole cluster: every key that is there throughout comes at least once.
//!
//! Not here: what nodes do in between, in all ways (`tests/simulation`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::bench::{flavour, keys_on_each};
use crate::support::client::{Client, request};
use crate::support::cluster::Cluster;
use crate::support::keys::key_of_slot;
use crate::support::proxy::Proxy;
use crate::support::{seconds, wait_until};

/// Walks to the end with these options; what came, and in how many steps.
fn walk(client: &mut Client, options: &[&str]) -> (Vec<String>, usize) {
    let (mut cursor, mut keys, mut steps) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let mut words = vec!["SCAN", &cursor];
        words.extend(options);
        let reply = client.call(&words);
        assert!(!reply.is_error(), "{words:?} answered {}", reply.text());
        let parts = reply.items();
        let next = parts[0].string();
        assert!(next.parse::<i64>().is_ok_and(|next| next >= 0), "cursor {next}");
        keys.extend(parts[1].items().iter().map(|key| key.string()));
        steps += 1;
        assert!(steps < 20_000, "{options:?} does not end");
        if next == "0" {
            return (keys, steps);
        }
        cursor = next;
    }
}

fn fill(client: &mut Client, keys: &[String]) {
    for some in keys.chunks(1000) {
        let bytes: Vec<u8> = some.iter().flat_map(|key| request(&["SET", key, "v"])).collect();
        client.send(&bytes);
        some.iter().for_each(|key| assert_eq!(client.read().text(), "OK", "SET {key}"));
    }
}

fn set(keys: Vec<String>) -> BTreeSet<String> {
    keys.into_iter().collect()
}

#[test]
fn a15_every_key_is_walked_over() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    assert_eq!(walk(&mut client, &[]).0.len(), 0, "an empty cluster");
    let keys: Vec<String> = (0..3000).map(|n| format!("a15:{n}")).collect();
    fill(&mut client, &keys);
    let all: BTreeSet<String> = keys.iter().cloned().collect();
    for options in [&["COUNT", "1"][..], &[], &["COUNT", "1000"], &["count", "100000"]] {
        let (got, steps) = walk(&mut client, options);
        println!("{options:?}: {steps} steps");
        assert_eq!(got.len(), 3000, "{options:?} at rest: none twice");
        assert_eq!(set(got), all, "{options:?}");
    }
    assert_eq!(set(walk(&mut proxy.client_resp3(), &["COUNT", "500"]).0), all);
    let some: BTreeSet<String> = all.iter().filter(|key| key.ends_with('7')).cloned().collect();
    assert_eq!(set(walk(&mut client, &["MATCH", "*7", "COUNT", "200"]).0), some);
    client.run("RPUSH a15:list x");
    let (lists, _) = walk(&mut client, &["TYPE", "LIST", "COUNT", "300"]);
    assert_eq!(lists, ["a15:list"]);
    assert_eq!(walk(&mut client, &["MATCH", "*:1*", "TYPE", "string"]).0.len(), 1111);
}

#[test]
fn a15_bad_cursors_and_options_are_refused_as_by_one_server() {
    let bench = crate::bench::shared();
    let mut client = bench.proxy.client();
    for (line, expected) in [
        ("SCAN abc", "-ERR invalid cursor"),
        ("SCAN 99999999999999999999", "-ERR invalid cursor"),
        ("SCAN 1.5", "-ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("SCAN 0 COUNT abc", "-ERR value is not an integer or out of range"),
        ("SCAN 0 COUNT", "-ERR syntax error"),
        ("SCAN 0 NONSENSE 1", "-ERR syntax error"),
        ("SCAN", "-ERR wrong number of arguments for 'scan' command"),
    ] {
        assert_eq!(client.run(line).text(), expected, "{line}");
    }
    // One that somebody made up, or that another proxy gave, is a place like any other.
    for line in ["SCAN 17", "SCAN 9223372036854775807", "SCAN 18446744073709551615"] {
        assert_eq!(client.run(line).items().len(), 2, "{line}");
    }
}

/// Valkey 9.1 has it; elsewhere it is an unknown command, in the node's words.
#[test]
fn a15_clusterscan_goes_from_node_to_node() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    let keys: BTreeSet<String> = (0..300).map(|n| format!("a15:{n}")).collect();
    fill(&mut client, &keys.iter().cloned().collect::<Vec<_>>());
    let (mut cursor, mut got, mut steps) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let reply = client.call(&["CLUSTERSCAN", &cursor, "COUNT", "100"]);
        if reply.is_error() {
            let unknown = "-ERR unknown command 'CLUSTERSCAN'";
            assert!(reply.text().starts_with(unknown), "{}", reply.text());
            return;
        }
        let parts = reply.items();
        cursor = parts[0].string();
        got.extend(parts[1].items().iter().map(|key| key.string()));
        steps += 1;
        assert!(steps < 20_000, "it does not end");
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(got, keys);
}

#[test]
fn a15_pattern_with_a_tag_visits_one_node_once() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    let [a, b, c] = keys_on_each(&cluster, "tag");
    let keys: Vec<String> = (0..50).map(|n| format!("{{{a}}}{n}")).collect();
    fill(&mut client, &keys);
    fill(&mut client, &[b, c]);
    let before = cluster.nodes[1].calls("cluster|getkeysinslot");
    let pattern = format!("{{{a}}}*");
    let (got, steps) = walk(&mut client, &["MATCH", &pattern]);
    assert_eq!(set(got), keys.into_iter().collect());
    assert_eq!(steps, 1);
    assert_eq!(cluster.nodes[1].calls("cluster|getkeysinslot"), before);
}

#[test]
fn a15_large_slot_is_walked_in_pieces() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    let keys: Vec<String> = (0..30_000).map(|n| format!("{{a15}}{n}")).collect();
    fill(&mut client, &keys);
    fill(&mut client, &(0..500).map(|n| format!("a15:{n}")).collect::<Vec<_>>());
    let (got, steps) = walk(&mut client, &["COUNT", "500"]);
    println!("{} keys in {steps} steps", got.len());
    assert_eq!(set(got).len(), 30_500);
    let (got, _) = walk(&mut client, &["MATCH", "{a15}*7", "COUNT", "500"]);
    assert_eq!(set(got).len(), 3000);
}

#[test]
fn a15_keys_stay_found_while_slots_move() {
    let mut cluster = Cluster::three_and_three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    let keys = (0..60).flat_map(|slot| {
        let tag = key_of_slot("a15", slot);
        (0..30).map(move |n| format!("{{{tag}}}{n}"))
    });
    let keys: Vec<String> = keys.collect();
    fill(&mut client, &keys);
    let all: BTreeSet<String> = keys.into_iter().collect();
    let new = cluster.add_node();
    let end = Arc::new(AtomicBool::new(false));
    let walked = Arc::new(AtomicUsize::new(0));
    let walker = {
        let (end, port, walked) = (Arc::clone(&end), proxy.port, Arc::clone(&walked));
        std::thread::spawn(move || {
            let (mut client, mut walks) = (Client::connect(port), 0);
            while !end.load(Ordering::Relaxed) {
                let count = ["1", "10", "1000"][walks % 3];
                let got = set(walk(&mut client, &["COUNT", count]).0);
                let missed: Vec<&String> = all.difference(&got).collect();
                assert!(missed.is_empty(), "walk {walks} missed {missed:?}");
                walks += 1;
                walked.store(walks, Ordering::Relaxed);
            }
            walks
        })
    };
    // To and fro, half way and back, and the fail-over of their owner.
    for round in 0..2 {
        // A node that loses its last slot becomes a replica.
        for slot in 0..60 - round * 10 {
            let (from, to) = if round == 0 { (0, new) } else { (new, 0) };
            cluster.migrate_slot(slot, from, to);
        }
    }
    for slot in 0..20 {
        cluster.open_migration(slot, 0, new);
        let left = cluster.nodes[0].run(&format!("CLUSTER GETKEYSINSLOT {slot} 10"));
        let left: Vec<String> = left.items().iter().map(|key| key.string()).collect();
        cluster.move_keys(0, new, &left);
    }
    std::thread::sleep(crate::support::millis(500));
    for slot in 0..20 {
        cluster.close_migration(slot, 0, new);
    }
    cluster.failover(cluster.replica_of(0));
    // On a slow machine each of them takes a while; one that has failed is over.
    wait_until(seconds(10), "three walks", || {
        walked.load(Ordering::Relaxed) > 2 || walker.is_finished()
    });
    end.store(true, Ordering::Relaxed);
    let walks = walker.join().expect("walker");
    println!("{walks} walks meanwhile");
    assert!(walks > 2);
}
