//! What clients ask of the nodes through the proxy: INFO of all, and CONFIG where it is allowed.
//!
//! Not here: what the proxy says of itself (`session`).

use crate::bench::{answers, flavour, shared, with};
use crate::support::client::check;
use crate::support::cluster::{Cluster, Shape};
use crate::support::proxy::{Proxy, Settings};

/// A number of a line such as `cmdstat_get:calls=3,usec=5`.
fn number(text: &str, line: &str, field: &str) -> Option<u64> {
    let fields = text.lines().find_map(|found| found.strip_prefix(&format!("{line}:")))?;
    let value = fields.split(',').find_map(|found| found.strip_prefix(&format!("{field}=")))?;
    value.trim().parse().ok()
}

#[test]
fn info_of_the_nodes_is_added_up() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    for mut client in [proxy.client(), proxy.client_resp3()] {
        for node in cluster.primaries() {
            node.run("CONFIG RESETSTAT");
        }
        for n in 0..30 {
            client.run(&format!("GET info-{n}"));
        }
        client.run("HSET info-hash f x");
        client.run("INCR info-hash");
        let text = client.run("INFO commandstats").string();
        assert_eq!(number(&text, "cmdstat_get", "calls"), Some(30), "{text}");
        assert_eq!(number(&text, "cmdstat_incr", "failed_calls"), Some(1), "{text}");
        let text = client.run("INFO errorstats").string();
        assert_eq!(number(&text, "errorstat_WRONGTYPE", "count"), Some(1), "{text}");
        let text = client.run("INFO all").string();
        assert_eq!(number(&text, "cmdstat_get", "calls"), Some(30), "{text}");
        assert_eq!(number(&text, "db0", "keys"), Some(1), "{text}");
        assert!(text.contains("# Ringway\r\n") && text.contains("redis_mode:standalone\r\n"));
        let text = client.run("INFO").string();
        assert_eq!(number(&text, "cmdstat_get", "calls"), None, "not while clients connect");
        client.run("DEL info-hash");
    }
}

/// INFO all tells of the proxy also while the cluster cannot be asked.
#[test]
fn info_of_all_is_answered_without_a_cluster() {
    let nowhere = crate::support::ports::free_port();
    let proxy = Proxy::start_at(&[format!("127.0.0.1:{nowhere}")], &with(&[]));
    let mut client = proxy.client();
    assert!(client.run("INFO everything").string().contains("slots_served:0\r\n"));
    assert!(client.run("INFO keyspace").is_error());
}

#[test]
fn config_is_the_nodes_where_that_is_allowed() {
    let cluster =
        Cluster::start(Shape { flavour: flavour(), replicas_each: 1, ..Shape::default() });
    let proxy = Proxy::start_with(&cluster, &Settings::args(&["--allow-config"]));
    let mut client = proxy.client();
    check(
        &mut client,
        &[
            ("CONFIG SET hash-max-listpack-entries 77", "OK"),
            ("CONFIG GET hash-max-listpack-entries", "[\"hash-max-listpack-entries\", \"77\"]"),
            ("CONFIG RESETSTAT", "OK"),
            ("MULTI", "OK"),
            ("CONFIG SET maxmemory 0", "-ERR Command not allowed inside a transaction"),
            ("DISCARD", "OK"),
        ],
    );
    for node in &cluster.nodes {
        let told = node.run("CONFIG GET hash-max-listpack-entries").text();
        assert!(told.contains("\"77\""), "{told}");
    }
    let refused = answers(&mut client, &["CONFIG SET no-such-option 1", "CONFIG SET maxmemory x"]);
    assert!(refused.iter().all(|text| text.starts_with("-ERR ")), "{refused:?}");
    assert!(matches!(
        proxy.client_resp3().run("CONFIG GET maxmemory"),
        crate::support::reply::Reply::Map(_)
    ));
}

#[test]
fn config_of_the_nodes_is_untouched_where_it_is_not() {
    let bench = shared();
    let mut client = bench.proxy.client();
    let text = client.run("CONFIG SET hash-max-listpack-entries 77").text();
    assert!(text.starts_with("-ERR Unknown option"), "{text}");
    client.run("CONFIG RESETSTAT");
    for node in &bench.cluster.nodes {
        assert_eq!(node.calls("config|set") + node.calls("config|resetstat"), 0);
    }
}
