//! S1 to S9: commands over several slots.
//!
//! Not here: merging of replies in general (`tests/conformance`, "split over slots").

use std::time::Instant;

use crate::bench::{answers, check_shared, flavour, keys_on_each, shared, with};
use crate::support::client::request;
use crate::support::cluster::Cluster;
use crate::support::keys;
use crate::support::proxy::Proxy;
use crate::support::reply::Reply;
use crate::support::{goal, seconds};

#[test]
fn s1_mget_keeps_the_callers_order() {
    let [a, b, c] = keys_on_each(&shared().cluster, "s1");
    check_shared(&[
        (&format!("MSET {a} 1 {b} 2"), "OK"),
        (&format!("LPUSH {c} x"), "1"),
        (
            &format!("MGET {b} {a} s1-absent {c} {b} {a} {a}"),
            "[\"2\", \"1\", nil, nil, \"2\", \"1\", \"1\"]",
        ),
    ]);
}

#[test]
fn s2_mget_over_two_nodes_holds_under_pipelining() {
    let [a, b, _] = keys_on_each(&shared().cluster, "s2");
    let mut client = shared().proxy.client();
    assert_eq!(client.run(&format!("MSET {a} left {b} right")).text(), "OK");
    let one = request(&["MGET", &a, &b]);
    for _ in 0..100 {
        client.send(&one.repeat(100));
        for _ in 0..100 {
            assert_eq!(client.read().text(), "[\"left\", \"right\"]");
        }
    }
}

#[test]
fn s3_counts_are_those_of_one_server() {
    let [a, b, _] = keys_on_each(&shared().cluster, "s3");
    check_shared(&[
        (&format!("SET {a} 1"), "OK"),
        (&format!("DEL {a} {a} {a}"), "1"),
        (&format!("SET {a} 1"), "OK"),
        (&format!("EXISTS {a} {a}"), "2"),
        (&format!("TOUCH {a} {a}"), "2"),
        (&format!("SET {b} 1"), "OK"),
        (&format!("UNLINK {a} {b} {a}"), "2"),
        (&format!("EXISTS {a} {b}"), "0"),
    ]);
}

#[test]
fn s4_last_value_of_a_key_wins_in_mset() {
    let [a, b, c] = keys_on_each(&shared().cluster, "s4");
    check_shared(&[
        (&format!("MSET {a} 1 {b} x {a} 2 {c} y {a} 3"), "OK"),
        (&format!("GET {a}"), "\"3\""),
        (&format!("MGET {b} {c}"), "[\"x\", \"y\"]"),
    ]);
}

/// S5 and S7: with one node stopped, a split command answers one error in time, and works again
/// afterwards.
#[test]
fn s5_s7_one_stopped_node_fails_the_whole_command_once() {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", "1500")]));
    let [a, b, c] = keys_on_each(&cluster, "s5");
    let mut client = proxy.client();
    assert_eq!(client.run(&format!("MSET {a} 1 {b} 1 {c} 1")).text(), "OK");
    cluster.nodes[1].process.stop();
    for line in [
        format!("MSET {a} 2 {b} 2 {c} 2"),
        format!("MGET {a} {b} {c}"),
        format!("DEL {a} {b} {c}"),
        format!("EXISTS {a} {b} {c}"),
    ] {
        let start = Instant::now();
        let reply = client.run(&line);
        assert!(reply.is_error(), "{line} answered {}", reply.text());
        assert!(start.elapsed() < goal(seconds(5)), "{line} took {:?}", start.elapsed());
        let alone = format!("SET {a} alone");
        assert_eq!(answers(&mut client, &[&alone, "PING"]), ["OK", "PONG"], "after {line}");
    }
    cluster.nodes[1].process.resume();
    cluster.wait_whole();
    let healed = || client.run(&format!("MSET {a} 3 {b} 3 {c} 3")).text() == "OK";
    crate::support::wait_until(seconds(10), "MSET to work again", healed);
    let values = client.run(&format!("MGET {a} {b} {c}")).text();
    assert_eq!(values, "[\"3\", \"3\", \"3\"]");
    proxy.expect_alive();
}

#[test]
fn s6_del_over_a_demoted_node_counts_right() {
    let cluster = Cluster::three_and_three(flavour());
    let proxy = Proxy::start(&cluster);
    let [a, b, c] = keys_on_each(&cluster, "s6");
    let mut client = proxy.client();
    for round in 0..2 {
        assert_eq!(client.run(&format!("MSET {a} 1 {b} 1 {c} 1")).text(), "OK");
        let replica = cluster.replica_of(1);
        cluster.failover(if round == 0 { replica } else { 1 });
        assert_eq!(client.run(&format!("DEL {a} {b} {c}")).text(), "3");
    }
}

#[test]
fn s8_commands_that_cannot_be_cut_answer_crossslot() {
    let [a, b, _] = keys_on_each(&shared().cluster, "s8");
    let error = "-CROSSSLOT Keys in request don't hash to the same slot";
    let mut client = shared().proxy.client();
    for line in [
        "SUNION A B",
        "RENAME A B",
        "RENAMENX A B",
        "MSETNX A 1 B 2",
        "BITOP AND A B",
        "LMOVE A B LEFT RIGHT",
        "RPOPLPUSH A B",
        "SMOVE A B m",
        "COPY A B",
        "XREAD STREAMS A B 0 0",
        "ZUNIONSTORE A 1 B",
        "ZUNION 2 A B",
        "SINTERCARD 2 A B",
        "PFMERGE A B",
        "PFCOUNT A B",
        "LCS A B",
        "SORT A STORE B",
        "GEOSEARCHSTORE A B FROMLONLAT 1 1 BYRADIUS 1 km",
        "GEORADIUS A 1 1 1 km STORE A STORE B",
        "ZRANGESTORE A B 0 1",
        "SDIFFSTORE A B",
        "LMPOP 2 A B LEFT",
        "EVAL return 2 A B",
    ] {
        let line = with_keys(line, &a, &b);
        assert_eq!(answers(&mut client, &[&line, "PING"]), [error, "PONG"], "{line}");
    }
}

/// `A` and `B` stand for the two keys.
fn with_keys(line: &str, a: &str, b: &str) -> String {
    let word = |word| match word {
        "A" => a,
        "B" => b,
        other => other,
    };
    line.split(' ').map(word).collect::<Vec<&str>>().join(" ")
}

#[test]
fn s9_every_hash_tag_goes_to_its_slot() {
    let bench = shared();
    // Its own proxy counts its redirects, whatever other tests do at these nodes.
    let proxy = Proxy::start(&bench.cluster);
    let mut client = proxy.client();
    for (key, slot) in [
        ("{}", 15257),
        ("{}x", 10595),
        ("a{b}{c}", 3300),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
        ("foo{bar}{zap}", 5061),
        ("}{abc", 15680),
        ("A}B{C", 7939),
        ("{", 4092),
        ("", 0),
    ] {
        assert_eq!(keys::slot(key.as_bytes()), slot, "the test's own slot of {key:?}");
        assert_eq!(client.call(&["CLUSTER", "KEYSLOT", key]), Reply::Integer(slot.into()));
        assert_eq!(client.call(&["SET", key, key]).text(), "OK");
        assert_eq!(client.call(&["GET", key]).string(), key);
        let owner = (0..3)
            .find(|&i| bench.cluster.range(i).is_some_and(|(a, z)| (a..=z).contains(&slot)))
            .expect("an owner");
        let there = bench.cluster.nodes[owner].client().call(&["EXISTS", key]);
        assert_eq!(there.text(), "1", "{key:?} at its owner");
        assert_eq!(client.call(&["DEL", key]).text(), "1");
    }
    // Numbers are shown some times a second.
    std::thread::sleep(seconds(1));
    let told = client.run("INFO ringway").string();
    assert!(told.contains("redirects_moved:0\r\n"), "no MOVED was needed: {told}");
}
