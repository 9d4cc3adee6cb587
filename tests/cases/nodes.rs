//! What clients ask of the nodes through the proxy: INFO of all, and CONFIG where it is allowed.
//!
//! Not here: what the proxy says of itself (`session`).

use crate::bench::{answers, flavour, shared, with};
use crate::support::client::{Client, Got, check};
use crate::support::cluster::{Cluster, Shape};
use crate::support::proxy::{Proxy, Settings};
use crate::support::{millis, seconds, wait_until};

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
    // The proxy's own counts are among those that it counts anew.
    for errors in [1, 2] {
        assert!(client.run("CONFIG SET no-such-option 1").is_error());
        assert_eq!(client.run("CONFIG RESETSTAT").text(), "OK");
        (0..errors).for_each(|_| assert!(client.run("HGET k").is_error()));
        let told = client.run("INFO stats").string();
        assert!(told.contains(&format!("total_error_replies:{errors}\r\n")), "{told}");
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
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    let text = client.run("CONFIG SET hash-max-listpack-entries 77").text();
    assert!(text.starts_with("-ERR Unknown option"), "{text}");
    client.run("CONFIG RESETSTAT");
    for node in &cluster.nodes {
        assert_eq!(node.calls("config|set") + node.calls("config|resetstat"), 0);
    }
}

/// The proxy's own counts, on all reactors; the nodes keep theirs.
#[test]
fn config_resetstat_counts_anew() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("reactors", "2")]));
    let counts = |client: &mut Client| {
        let text = client.run("INFO everything").string();
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim().parse::<u64>().expect("a count")
        };
        [
            "total_commands_processed:",
            "total_connections_received:",
            "total_net_input_bytes:",
            "total_net_output_bytes:",
            "total_error_replies:",
        ]
        .map(of)
    };
    let mut clients: Vec<Client> = (0..20).map(|_| proxy.client()).collect();
    for client in &mut clients {
        (0..10).for_each(|_| assert_eq!(client.run("SET resetstat 1").text(), "OK"));
        assert!(client.run("INCR resetstat x").is_error());
    }
    let client = &mut clients[0];
    // Counts of both reactors are added up once a second.
    wait_until(seconds(5), "all to be counted", || {
        let [commands, connections, bytes_in, bytes_out, errors] = counts(client);
        commands >= 220
            && connections >= 20
            && bytes_in > 6_000
            && bytes_out > 1_000
            && errors >= 20
    });
    assert_eq!(client.run("CONFIG RESETSTAT").text(), "OK");
    for _ in 0..30 {
        let [commands, connections, bytes_in, bytes_out, errors] = counts(client);
        assert!(
            commands < 60 && connections == 0 && errors == 0,
            "{commands} {connections} {errors}"
        );
        // INFO itself is some kilobytes.
        assert!(bytes_in < 6_000 && bytes_out < 500_000, "{bytes_in} {bytes_out}");
        std::thread::sleep(millis(50));
    }
    assert!(client.run("INCR resetstat x").is_error());
    wait_until(seconds(5), "it to count on", || counts(client)[4] == 1);
    check(client, &[("MULTI", "OK"), ("CONFIG RESETSTAT", "QUEUED")]);
    client.run("EXEC");
    assert_eq!(counts(client)[4], 0);
    assert!(cluster.calls("set") >= 200, "the nodes count on");
}

/// A node ends the connection on which it is sent more than it takes; many clients share it.
#[test]
fn word_larger_than_nodes_take_fails_its_own_client_alone() {
    let args = ["--proto-max-bulk-len", "1mb", "--client-query-buffer-limit", "3mb"];
    let args = args.map(Into::into).into();
    let cluster = Cluster::start(Shape { flavour: flavour(), args, ..Shape::default() });
    let proxy = Proxy::start(&cluster);
    let mut other = proxy.client();
    let before = lost(&mut other);
    let value = |bytes: usize| "v".repeat(bytes);
    // What nodes take is learned after the map.
    wait_until(seconds(10), "the nodes' limit to be known", || {
        let mut client = proxy.client();
        client.send(b"*2\r\n$3\r\nGET\r\n$1048577\r\n");
        matches!(client.read_within(millis(100)), Got::Reply(_))
    });
    let mut client = proxy.client();
    assert_eq!(client.call(&["SET", "{x}fits", &value(1 << 20)]).text(), "OK");
    let mib = || value(1 << 20);
    for (more, sent, error) in [
        // As a node says it.
        (vec![value((1 << 20) + 1)], 60, "-ERR Protocol error: invalid bulk length"),
        (
            vec![mib(), "{x}2".into(), mib(), "{x}3".into(), mib()],
            2_200_000,
            "-ERR Protocol error: too big request",
        ),
    ] {
        let mut client = proxy.client();
        let mut words = vec!["MSET".to_owned(), "{x}1".to_owned()];
        words.extend(more);
        // Before all of it has come.
        client.send(&crate::support::client::request(&words)[..sent]);
        assert_eq!(client.read().text(), error);
        other.run("GET {x}fits");
        client.send_what_is_taken(&vec![b'v'; 1_200_000]);
        client.expect_closed();
    }
    assert_eq!(other.run("GET {x}1").text(), "nil");
    assert_eq!(lost(&mut other), before, "no connection to a node was lost");
}

/// Where the nodes do not tell, the option says it.
#[test]
fn word_over_client_bulk_limit_is_refused() {
    let proxy = Proxy::start_with(&shared().cluster, &with(&[("client-bulk-limit", "100kb")]));
    let mut client = proxy.client();
    assert_eq!(client.call(&["SET", "bulk", &"v".repeat(100 * 1024)]).text(), "OK");
    client.send(b"*3\r\n$3\r\nSET\r\n$4\r\nbulk\r\n$102401\r\n");
    assert_eq!(client.read().text(), "-ERR Protocol error: invalid bulk length");
    client.expect_closed();
    proxy.client().run("DEL bulk");
}

/// How many connections to nodes were lost.
fn lost(client: &mut Client) -> u64 {
    std::thread::sleep(millis(1_500));
    let text = client.run("INFO ringway").string();
    let line = text.lines().find_map(|line| line.strip_prefix("backends_lost:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a count")
}
