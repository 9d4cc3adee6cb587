//! A11 to A13: commands that block.
//!
//! Not here: every reply text (`tests/conformance`).

use std::time::Instant;

use crate::bench::{answers, flavour, shared, with};
use crate::support::client::{Client, Got, PATIENCE, request};
use crate::support::cluster::{Cluster, Flavour, Node};
use crate::support::keys::key_of_slot;
use crate::support::proxy::Proxy;
use crate::support::{goal, is_strict, millis, seconds, wait_until};

fn block(client: &mut Client, line: &str) {
    client.send(&request(&line.split(' ').collect::<Vec<&str>>()));
}

fn wait_blocked(proxy: &Proxy, count: u64) {
    let mut asking = proxy.client();
    wait_until(seconds(10), "blocked_clients", || {
        asking.run("INFO clients").string().contains(&format!("blocked_clients:{count}\r\n"))
    });
}

/// At the nodes: one may look at a push before it looks at the end of a connection.
fn wait_nobody_blocked(cluster: &Cluster) {
    let blocked = |node: &Node| node.info("clients", "blocked_clients");
    wait_until(seconds(5), "the nodes to have nobody blocked", || {
        cluster.nodes.iter().all(|node| blocked(node).as_deref() == Some("0"))
    });
}

#[test]
fn a11_blocked_client_is_served_and_its_later_requests_wait() {
    let cluster = Cluster::three(flavour());
    let settings = with(&[("request-timeout-ms", "1000"), ("client-idle-timeout-s", "1")]);
    let mut proxy = Proxy::start_with(&cluster, &settings);
    let mut client = proxy.client();
    client.send(b"BLPOP a11 0\r\nPING\r\nGET a11-other\r\n");
    wait_blocked(&proxy, 1);
    assert_eq!(client.read_within(millis(2_500)), Got::Nothing, "no time-out of the proxy's");
    assert_eq!(proxy.client().run("RPUSH a11 x").integer(), 1);
    let texts = [0; 3].map(|_| client.read().text());
    assert_eq!(texts, ["[\"a11\", \"x\"]", "PONG", "nil"]);
    wait_blocked(&proxy, 0);
    proxy.expect_alive();
}

#[test]
fn a11_time_out_of_the_command_is_nil_in_the_clients_protocol() {
    let proxy = &shared().proxy;
    for (mut client, nil) in [(proxy.client(), "nil-array"), (proxy.client_resp3(), "null")] {
        let lines = [
            "BLPOP a11-t 0.05",
            "BRPOP a11-t 0.05",
            "BLMOVE {a11-t}a {a11-t}b LEFT LEFT 0.05",
            "BRPOPLPUSH {a11-t}a {a11-t}b 0.05",
            "BLMPOP 0.05 1 a11-t LEFT",
            "BZPOPMIN a11-t 0.05",
            "BZPOPMAX a11-t 0.05",
            "BZMPOP 0.05 1 a11-t MIN",
            "XREAD BLOCK 50 STREAMS a11-t $",
        ];
        for line in lines {
            assert_eq!(client.run(line).text(), nil, "{line}");
        }
        let texts =
            answers(&mut client, &["BLPOP a11-t -1", "BLPOP a11-t x", "BLPOP a11-t 0.01", "PING"]);
        assert_eq!(texts[0], "-ERR timeout is negative");
        assert_eq!(texts[1], "-ERR timeout is not a float or out of range");
        assert_eq!(&texts[2..], [nil, "PONG"]);
    }
}

/// `$` is what is there when the node has the command: who sees the client blocked and then adds
/// something wakes it.
#[test]
fn a11_who_sees_a_client_blocked_can_wake_it() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut other = proxy.client();
    for n in 0..30 {
        let key = format!("a11-seen-{n}");
        let mut client = proxy.client();
        block(&mut client, &format!("XREAD BLOCK 0 STREAMS {key} $"));
        wait_blocked(&proxy, 1);
        other.run(&format!("XADD {key} 1-1 f v"));
        assert!(client.read().text().contains("1-1"), "round {n}");
        assert!(other.run("INFO clients").string().contains("blocked_clients:0\r\n"));
    }
}

#[test]
fn a11_two_hundred_blocked_clients_hinder_nobody() {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start(&cluster);
    let mut blocked: Vec<Client> = (0..200)
        .map(|n| {
            let mut client = proxy.client();
            block(&mut client, &format!("BLPOP many-{n} 0"));
            client
        })
        .collect();
    wait_blocked(&proxy, 200);
    let mut other = proxy.client();
    for (n, client) in blocked.iter_mut().enumerate() {
        let start = Instant::now();
        assert_eq!(other.run(&format!("RPUSH many-{n} {n}")).integer(), 1);
        assert!(start.elapsed() < goal(millis(500)), "RPUSH took {:?}", start.elapsed());
        assert_eq!(client.read().items()[1].string(), n.to_string());
    }
    wait_blocked(&proxy, 0);
    proxy.expect_alive();
}

#[test]
fn a11_pool_of_private_connections_has_an_end() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("private-backends-max", "2")]));
    let mut clients: Vec<Client> = (0..3).map(|_| proxy.client()).collect();
    for client in &mut clients[..2] {
        block(client, "BLPOP end 0");
    }
    wait_blocked(&proxy, 2);
    let text = clients[2].run("BLPOP end 0").text();
    assert_eq!(text, "-ERR max blocking connections reached");
    drop(clients.remove(0));
    wait_blocked(&proxy, 1);
    block(&mut clients[1], "BLPOP end 0");
    wait_blocked(&proxy, 2);
    let mut pushing = proxy.client();
    pushing.run("RPUSH end a b");
    assert!(clients.iter_mut().all(|client| client.read().items().len() == 2));
}

#[test]
fn a12_nothing_is_popped_for_a_client_that_has_left() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    for (round, extra) in ["", "PING\r\nPING\r\n", "GET x\r\n"].iter().enumerate() {
        let key = format!("a12-{round}");
        let mut client = proxy.client();
        client.send(format!("BLPOP {key} 0\r\n{extra}").as_bytes());
        wait_blocked(&proxy, 1);
        if round == 1 {
            client.end_sending();
        }
        drop(client);
        wait_blocked(&proxy, 0);
        wait_nobody_blocked(&cluster);
        let mut other = proxy.client();
        other.run(&format!("RPUSH {key} kept"));
        assert_eq!(other.run(&format!("LRANGE {key} 0 -1")).text(), "[\"kept\"]", "{extra:?}");
    }
    // A client that shuts its side while its command waits for an elder.
    let mut client = proxy.client();
    client.send(b"SET a12-elder 1\r\nBLPOP a12-last 0\r\n");
    client.end_sending();
    let (bytes, closed) = client.read_until_quiet(PATIENCE);
    assert!(closed && (bytes.is_empty() || bytes.starts_with(b"+OK\r\n")));
    wait_nobody_blocked(&cluster);
    let mut other = proxy.client();
    other.run("RPUSH a12-last kept");
    assert_eq!(other.run("LLEN a12-last").integer(), 1);
}

#[test]
fn a13_stream_reader_misses_nothing_that_it_waits_for() {
    let proxy = &shared().proxy;
    let (mut reader, mut writer) = (proxy.client(), proxy.client());
    writer.run("DEL a13");
    let mut last = "0-0".to_owned();
    for round in 1..=200 {
        block(&mut reader, &format!("XREAD BLOCK 0 STREAMS a13 {last}"));
        let id = writer.run(&format!("XADD a13 {round}-1 n {round}")).string();
        let reply = reader.read();
        let entries = reply.items()[0].items()[1].items();
        assert_eq!(entries[0].items()[0].string(), id, "round {round}");
        last = id;
    }
    writer.run("DEL a13");
}

#[test]
fn blocked_command_follows_its_slot() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let key = key_of_slot("follow", 55);
    let mut client = proxy.client();
    block(&mut client, &format!("BLPOP {key} 0"));
    wait_blocked(&proxy, 1);
    cluster.migrate_slot(55, 0, 2);
    // The node looks after its blocked clients once in a while.
    std::thread::sleep(millis(1_500));
    assert_eq!(proxy.client().run(&format!("RPUSH {key} here")).integer(), 1);
    assert_eq!(client.read().items()[1].string(), "here");
}

#[test]
fn blocked_reader_outlives_its_connection_and_keeps_its_time_out() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let key = cluster.key_on(0, "cut");
    let start = Instant::now();
    let (mut timed, mut endless) = (proxy.client(), proxy.client());
    // Both are blocked when the connections are cut, also where that takes a while.
    let wait = if is_strict() { 2 } else { 5 };
    block(&mut timed, &format!("XREAD BLOCK {wait}000 STREAMS {key} 0"));
    block(&mut endless, &format!("XREAD BLOCK 0 STREAMS {key}2 0"));
    wait_blocked(&proxy, 2);
    cluster.nodes[0].run("CLIENT KILL TYPE normal SKIPME yes");
    assert_eq!(timed.read().text(), "nil-array");
    let (took, least) = (start.elapsed(), seconds(wait) - millis(100));
    assert!(took >= least && took < seconds(wait) + goal(seconds(2)), "{took:?}");
    wait_blocked(&proxy, 1);
    assert_eq!(proxy.client().run(&format!("XADD {key}2 1-1 n 1")).string(), "1-1");
    assert_eq!(endless.read().items()[0].items()[1].items()[0].items()[0].string(), "1-1");
}

/// The node may have popped, and was killed before it told.
#[test]
fn connection_of_a_blocked_pop_ends_answers_error() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let key = cluster.key_on(0, "cut");
    for command in [
        format!("BLPOP {key} 0"),
        format!("BRPOP {key} 5"),
        format!("BLMOVE {key} {{{key}}}2 LEFT RIGHT 0"),
        format!("BZPOPMIN {{{key}}}3 0"),
        format!("XREAD BLOCK 0 STREAMS {{{key}}}4 $"),
    ] {
        let mut client = proxy.client();
        block(&mut client, &command);
        wait_blocked(&proxy, 1);
        // Counted as blocked from the start; at the node it is there a moment later.
        wait_until(seconds(10), "the node to hold it", || {
            cluster.nodes[0].info("clients", "blocked_clients") == Some("1".into())
        });
        cluster.nodes[0].run("CLIENT KILL TYPE normal SKIPME yes");
        let told = client.read();
        assert!(told.is_error() && told.text().contains("may have run"), "{command}: {told:?}");
        assert_eq!(client.run("PING").text(), "PONG");
    }
}

#[test]
fn client_unblock_ends_a_wait() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let (mut blocked, mut other) = (proxy.client(), proxy.client());
    let id = blocked.run("CLIENT ID").integer();
    assert_eq!(other.run(&format!("CLIENT UNBLOCK {id}")).integer(), 0);
    for (how, reply) in [
        ("", "nil-array"),
        (" TIMEOUT", "nil-array"),
        (" ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK"),
    ] {
        block(&mut blocked, "BLPOP unblock 0");
        let line = format!("CLIENT UNBLOCK {id}{how}");
        wait_until(seconds(5), &line, || other.run(&line).integer() == 1);
        assert_eq!(blocked.read().text(), reply);
        assert_eq!(blocked.run("PING").text(), "PONG");
    }
    wait_nobody_blocked(&cluster);
    other.run("RPUSH unblock x");
    assert_eq!(other.run("LPOP unblock").string(), "x");
}

#[test]
fn fail_over_does_not_end_a_wait() {
    if flavour() != Flavour::Redis {
        return;
    }
    let cluster = Cluster::three_and_three(flavour());
    let proxy = Proxy::start(&cluster);
    let key = cluster.key_on(0, "failover");
    let mut client = proxy.client();
    block(&mut client, &format!("BLPOP {key} 300"));
    wait_blocked(&proxy, 1);
    cluster.failover(3);
    std::thread::sleep(millis(500));
    wait_until(seconds(10), "a push", || !proxy.client().run(&format!("RPUSH {key} x")).is_error());
    assert_eq!(client.read().items()[1].string(), "x");
}

#[test]
fn wait_counts_replicas_that_have_what_the_client_wrote() {
    let cluster = Cluster::three_and_three(flavour());
    let proxy = Proxy::start(&cluster);
    let (mut client, key) = (proxy.client(), cluster.key_on(1, "wait"));
    let lines = [&format!("SET {key} 1"), "WAIT 1 60000", "PING", "WAIT 0 0", "WAIT x 1"];
    let texts = answers(&mut client, &lines);
    assert_eq!(texts[..4], ["OK", "1", "PONG", "1"]);
    assert_eq!(texts[4], "-ERR value is not an integer or out of range");
    let texts = answers(&mut client, &["WAIT 1 -1", "WAIT 1 x"]);
    assert_eq!(texts[0], "-ERR timeout is negative");
    assert_eq!(texts[1], "-ERR timeout is not an integer or out of range");
    // The replica of the second primary stands still.
    cluster.nodes[4].process.stop();
    assert_eq!(client.run(&format!("SET {key} 2")).text(), "OK");
    let start = Instant::now();
    assert_eq!(client.run("WAIT 1 400").integer(), 0, "it cannot have the second write");
    let took = start.elapsed();
    assert!(took >= millis(390) && took < goal(seconds(2)), "{took:?}");
    block(&mut client, "WAIT 1 0");
    wait_blocked(&proxy, 1);
    cluster.nodes[4].process.resume();
    assert_eq!(client.read().integer(), 1);
    let start = Instant::now();
    assert_eq!(client.run("WAIT 2 300").integer(), 1, "there are no two");
    assert!(start.elapsed() >= millis(290));
    let id = client.run("CLIENT ID").integer();
    block(&mut client, "WAIT 2 0");
    let line = format!("CLIENT UNBLOCK {id}");
    let mut other = proxy.client();
    wait_until(seconds(5), &line, || other.run(&line).integer() == 1);
    assert_eq!(client.read().integer(), 0);
    block(&mut client, "WAIT 2 0");
    wait_blocked(&proxy, 1);
    drop(client);
    wait_blocked(&proxy, 0);
}
