//! A14, F5 and what else there is to publish and subscribe: confirmations, delivery, modes,
//! introspection, limits.
//!
//! Not here: nodes that fail and slots that move under subscribers (`pubsub_faults`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::bench::{check_shared, flavour, keys_on_each, shared, with};
use crate::support::client::{Client, Got, check, request};
use crate::support::cluster::{Cluster, Shape};
use crate::support::proxy::Proxy;
use crate::support::reply::Reply;
use crate::support::{goal, millis, seconds, wait_until};

fn next(client: &mut Client) -> String {
    client.next_text()
}

#[track_caller]
fn expect_silence(client: &mut Client) {
    assert_eq!(client.read_within(millis(300)), Got::Nothing);
}

#[test]
fn a14_subscribers_in_resp2() {
    let (proxy, node) = (&shared().proxy, &shared().cluster.nodes[2]);
    let mut client = proxy.client();
    client.send(b"SUBSCRIBE a14:one a14:two a14:one\r\n");
    assert_eq!(next(&mut client), "[\"subscribe\", \"a14:one\", 1]");
    assert_eq!(next(&mut client), "[\"subscribe\", \"a14:two\", 2]");
    assert_eq!(next(&mut client), "[\"subscribe\", \"a14:one\", 2]");
    check(
        &mut client,
        &[
            ("PSUBSCRIBE a14:*", "[\"psubscribe\", \"a14:*\", 3]"),
            ("SSUBSCRIBE a14:shard", "[\"ssubscribe\", \"a14:shard\", 1]"),
            ("PING", "[\"pong\", \"\"]"),
            ("PING x", "[\"pong\", \"x\"]"),
            (
                "GET x",
                "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
                 RESET are allowed in this context",
            ),
            (
                "CONFIG GET save",
                "-ERR Can't execute 'config|get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / \
                 QUIT / RESET are allowed in this context",
            ),
        ],
    );
    // By a node itself, not by the proxy; the pattern fits as well.
    node.run("PUBLISH a14:one hello");
    let mut got = [next(&mut client), next(&mut client)];
    got.sort();
    assert_eq!(
        got,
        [
            "[\"message\", \"a14:one\", \"hello\"]",
            "[\"pmessage\", \"a14:*\", \"a14:one\", \"hello\"]"
        ]
    );
    let mut other = proxy.client();
    assert_eq!(other.run("SPUBLISH a14:shard s").text(), "1");
    assert_eq!(next(&mut client), "[\"smessage\", \"a14:shard\", \"s\"]");
    expect_silence(&mut client);
    check(&mut client, &[("UNSUBSCRIBE a14:none", "[\"unsubscribe\", \"a14:none\", 3]")]);
    client.send(b"UNSUBSCRIBE\r\n");
    let mut got = [next(&mut client), next(&mut client)];
    assert!(got[0].ends_with(", 2]") && got[1].ends_with(", 1]"), "{got:?}");
    got.sort();
    assert!(got[0].contains("a14:one") || got[0].contains("a14:two"), "{got:?}");
    check(
        &mut client,
        &[
            ("UNSUBSCRIBE", "[\"unsubscribe\", nil, 1]"),
            ("PUNSUBSCRIBE", "[\"punsubscribe\", \"a14:*\", 0]"),
            ("PUNSUBSCRIBE", "[\"punsubscribe\", nil, 0]"),
            ("SUNSUBSCRIBE", "[\"sunsubscribe\", \"a14:shard\", 0]"),
            ("SUNSUBSCRIBE", "[\"sunsubscribe\", nil, 0]"),
            ("PING", "PONG"),
            ("GET a14:absent", "nil"),
        ],
    );
    other.run("PUBLISH a14:one late");
    expect_silence(&mut client);
}

#[test]
fn a14_subscribers_in_resp3_go_on_with_everything() {
    let (proxy, node) = (&shared().proxy, &shared().cluster.nodes[1]);
    let mut client = Client::connect_resp3(proxy.port);
    client.send(&request(&["SUBSCRIBE", "a14r:one", "a14r:two"]));
    assert_eq!(next(&mut client), ">[\"subscribe\", \"a14r:one\", 1]");
    assert_eq!(next(&mut client), ">[\"subscribe\", \"a14r:two\", 2]");
    check(
        &mut client,
        &[
            ("SET a14r:key v", "OK"),
            ("GET a14r:key", "\"v\""),
            ("PING", "PONG"),
            ("PSUBSCRIBE a14r:o*", ">[\"psubscribe\", \"a14r:o*\", 3]"),
            ("SSUBSCRIBE a14r:s", ">[\"ssubscribe\", \"a14r:s\", 1]"),
            ("DEL a14r:key", "1"),
        ],
    );
    node.run("PUBLISH a14r:two hello");
    assert_eq!(next(&mut client), ">[\"message\", \"a14r:two\", \"hello\"]");
    // Its own message: before or after the answer, as a push may be.
    client.send(&request(&["PUBLISH", "a14r:two", "own"]));
    let mut got = [next(&mut client), next(&mut client)];
    got.sort();
    assert_eq!(got, ["1", ">[\"message\", \"a14r:two\", \"own\"]"]);
    let info = client.run("CLIENT INFO").string();
    for part in ["sub=2 ", "psub=1 ", "ssub=1 ", "flags=P "] {
        assert!(info.contains(part), "{part:?} is not in {info}");
    }
    check(
        &mut client,
        &[
            ("UNSUBSCRIBE a14r:one", ">[\"unsubscribe\", \"a14r:one\", 2]"),
            ("PUNSUBSCRIBE nothing", ">[\"punsubscribe\", \"nothing\", 2]"),
            ("SUNSUBSCRIBE", ">[\"sunsubscribe\", \"a14r:s\", 0]"),
            ("SUNSUBSCRIBE", ">[\"sunsubscribe\", null, 0]"),
            ("RESET", "RESET"),
            ("PING", "PONG"),
        ],
    );
    node.run("PUBLISH a14r:two late");
    expect_silence(&mut client);
}

#[test]
fn subscriptions_keep_their_place_in_a_pipeline() {
    let mut client = Client::connect_resp3(shared().proxy.port);
    let lines = [
        "SET place:a 1",
        "INCR place:a",
        "SUBSCRIBE place:ch",
        "INCR place:a",
        "UNSUBSCRIBE place:ch",
        "INCR place:a",
        "DEL place:a",
    ];
    let texts: Vec<String> = client.pipeline(&lines).iter().map(Reply::text).collect();
    let expected = [
        "OK",
        "2",
        ">[\"subscribe\", \"place:ch\", 1]",
        "3",
        ">[\"unsubscribe\", \"place:ch\", 0]",
        "4",
        "1",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn confirmations_and_messages_come_although_replies_are_off() {
    let mut client = shared().proxy.client();
    client.send(b"CLIENT REPLY OFF\r\nSUBSCRIBE off:ch\r\n");
    assert_eq!(next(&mut client), "[\"subscribe\", \"off:ch\", 1]");
    shared().proxy.client().run("PUBLISH off:ch m");
    assert_eq!(next(&mut client), "[\"message\", \"off:ch\", \"m\"]");
}

/// Many channels in one request, which is too long to be copied.
#[test]
fn long_list_of_channels_waits_for_its_elders() {
    let mut client = Client::connect_resp3(shared().proxy.port);
    let names: Vec<String> = (0..3000).map(|n| format!("long:{n:020}")).collect();
    let mut words = vec!["SUBSCRIBE"];
    words.extend(names.iter().map(String::as_str));
    let mut bytes = request(&["GET", "long:absent"]);
    bytes.extend(request(&words));
    bytes.extend(request(&["PING"]));
    client.send(&bytes);
    assert_eq!(next(&mut client), "null");
    for (n, name) in names.iter().enumerate() {
        assert_eq!(next(&mut client), format!(">[\"subscribe\", \"{name}\", {}]", n + 1));
    }
    assert_eq!(next(&mut client), "PONG");
    let mut other = shared().proxy.client();
    for name in names.iter().step_by(100) {
        other.run(&format!("PUBLISH {name} x"));
        assert_eq!(next(&mut client), format!(">[\"message\", \"{name}\", \"x\"]"));
    }
}

#[test]
fn introspection_counts_clients_and_names_channels_once() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut clients: Vec<Client> = (0..5).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.run("SUBSCRIBE count:a");
        client.run("PSUBSCRIBE count:*");
        client.run("SSUBSCRIBE count:s");
    }
    clients[0].run("SUBSCRIBE other:b");
    let mut direct = cluster.nodes[0].client();
    direct.run("SUBSCRIBE count:a");
    direct.run("PSUBSCRIBE count:*");
    let mut asks = proxy.client();
    check(
        &mut asks,
        &[
            ("PUBSUB CHANNELS", "[\"count:a\", \"other:b\"]"),
            ("PUBSUB CHANNELS c*", "[\"count:a\"]"),
            ("PUBSUB CHANNELS none*", "[]"),
            ("PUBSUB SHARDCHANNELS", "[\"count:s\"]"),
            ("PUBSUB NUMSUB", "[]"),
            ("PUBSUB NUMSUB count:a other:b none", "[\"count:a\", 6, \"other:b\", 1, \"none\", 0]"),
            ("PUBSUB SHARDNUMSUB count:s count:a", "[\"count:s\", 5, \"count:a\", 0]"),
            // That of the node counts by itself.
            ("PUBSUB NUMPAT", "2"),
        ],
    );
    let info = asks.run("PUBSUB HELP").text();
    assert!(info.contains("NUMSUB"), "{info}");
    drop(clients);
    drop(direct);
    wait_until(seconds(5), "the channels to be given up", || {
        asks.run("PUBSUB CHANNELS").text() == "[]" && asks.run("PUBSUB NUMPAT").text() == "0"
    });
    check(&mut asks, &[("PUBSUB NUMSUB count:a", "[\"count:a\", 0]")]);
    assert_eq!(cluster.nodes[0].run("PUBSUB NUMPAT").text(), "0");
}

#[test]
fn one_connection_carries_each_channel_once() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("reactors", "1")]));
    let mut clients: Vec<Client> = (0..50)
        .map(|n| if n % 2 == 0 { proxy.client() } else { Client::connect_resp3(proxy.port) })
        .collect();
    let channels: Vec<String> = (0..200).map(|n| format!("fan:{n}")).collect();
    let mut words = vec!["SUBSCRIBE"];
    words.extend(channels.iter().map(String::as_str));
    for client in &mut clients {
        client.send(&request(&words));
    }
    for client in &mut clients {
        channels.iter().for_each(|_| assert!(next(client).contains("subscribe")));
    }
    let subscribers = |node: usize| {
        let list = cluster.nodes[node].run("CLIENT LIST TYPE pubsub").string();
        list.lines().count()
    };
    assert_eq!([0, 1, 2].map(subscribers), [1; 3], "subscriber connections of each node");
    let mut publisher = proxy.client();
    let lines: Vec<String> =
        channels.iter().flat_map(|ch| (0..3).map(move |n| format!("PUBLISH {ch} {n}"))).collect();
    publisher.pipeline(&lines);
    for client in &mut clients {
        let mut last = vec![0; channels.len()];
        for _ in 0..lines.len() {
            let words = client.read().items();
            let channel = words[1].string();
            let place: usize = channel.strip_prefix("fan:").unwrap().parse().unwrap();
            assert_eq!(words[2].string(), last[place].to_string(), "in order on {channel}");
            last[place] += 1;
        }
    }
    expect_silence(&mut clients[7]);
}

#[test]
fn key_events_come_from_every_primary_once() {
    let shape = Shape {
        flavour: flavour(),
        args: ["--notify-keyspace-events", "KEA"].map(Into::into).into(),
        ..Shape::default()
    };
    let cluster = Cluster::start(shape);
    let proxy = Proxy::start(&cluster);
    let keys = keys_on_each(&cluster, "event");
    let (mut by_pattern, mut by_channel, mut all) =
        (proxy.client(), proxy.client(), proxy.client());
    by_pattern.run("PSUBSCRIBE __keyspace@0__:event*");
    by_channel.run("SUBSCRIBE __keyevent@0__:set");
    all.run("PSUBSCRIBE *");
    let mut client = proxy.client();
    for key in &keys {
        client.run(&format!("SET {key} v"));
        let message = next(&mut by_pattern);
        assert!(message.ends_with(&format!("\"__keyspace@0__:{key}\", \"set\"]")), "{message}");
        let message = next(&mut by_channel);
        assert!(message.ends_with(&format!("__:set\", \"{key}\"]")), "{message}");
        let both = [next(&mut all), next(&mut all)];
        assert!(both.iter().all(|text| text.contains("__key")), "{both:?}");
    }
    // What is published goes over all nodes and comes from one.
    client.run("PUBLISH news hello");
    assert_eq!(next(&mut all), "[\"pmessage\", \"*\", \"news\", \"hello\"]");
    for client in [&mut by_pattern, &mut by_channel, &mut all] {
        expect_silence(client);
    }
}

/// Messages to somebody who is being sent a large value come before or after it.
#[test]
fn message_is_never_put_into_a_reply() {
    let proxy = &shared().proxy;
    let mut client = Client::connect_resp3(proxy.port);
    let mut writer = proxy.client();
    let value = "v".repeat(3 << 20);
    assert_eq!(writer.call(&["SET", "inside:key", &value]).text(), "OK");
    client.run("SUBSCRIBE inside:ch");
    let stop = AtomicBool::new(false);
    let mut messages = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut publisher = proxy.client();
            let lines = vec!["PUBLISH inside:ch message"; 20];
            while !stop.load(Ordering::Relaxed) {
                publisher.pipeline(&lines);
            }
        });
        // Twenty times, and on until enough of both have met.
        for round in 0..2_000 {
            if round >= 20 && messages > 20 {
                break;
            }
            client.send(&request(&["GET", "inside:key"]));
            loop {
                match client.read() {
                    Reply::Bulk(bytes) => {
                        assert!(bytes == value.as_bytes());
                        break;
                    }
                    push => {
                        assert_eq!(push.text(), ">[\"message\", \"inside:ch\", \"message\"]");
                        messages += 1;
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(messages > 20, "only {messages} messages came");
    writer.run("DEL inside:key");
}

#[test]
fn f5_subscriber_that_does_not_read_is_closed_alone() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("pubsub-output-limit", "16mb")]));
    let (mut reads, mut sleeps, mut receivers) = (proxy.client(), proxy.client(), 2);
    reads.run("SUBSCRIBE f5");
    sleeps.run("SUBSCRIBE f5");
    let before = proxy.process.resident_kib();
    let mut highest = 0;
    let payload = "x".repeat(64 * 1024);
    let mut publisher = proxy.client();
    let mut others = proxy.client();
    for n in 0..3_000 {
        let count = publisher.call(&["PUBLISH", "f5", &payload]).integer();
        assert!((1..=receivers).contains(&count), "{count} receivers, {receivers} before");
        receivers = count;
        let words = reads.read().items();
        assert_eq!(words[2].bytes().len(), payload.len(), "message {n}");
        if n % 100 == 0 {
            highest = highest.max(proxy.process.resident_kib());
            let start = Instant::now();
            assert_eq!(others.run("GET f5:absent").text(), "nil");
            assert!(start.elapsed() < goal(seconds(1)));
        }
    }
    assert_eq!(receivers, 1, "the one who reads is left");
    let limit = 16 << 10;
    println!("memory {before} before, {highest} at most");
    assert!(highest < before + 4 * limit, "{highest} KiB, {before} before");
    let mut seen = 0;
    while let Got::Reply(_) = sleeps.read_patiently() {
        seen += 1;
    }
    assert!(seen < 1_000, "{seen} messages for one who did not read");
    sleeps.expect_closed();
    wait_until(seconds(10), "memory to be given back", || {
        proxy.process.resident_kib() < before + limit
    });
    proxy.wait_log("pubsub_output_limit");
}

#[test]
fn idle_subscribers_are_not_closed() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("client-idle-timeout-s", "1")]));
    let (mut idle, mut subscribed) = (proxy.client(), proxy.client());
    idle.run("PING");
    subscribed.run("SUBSCRIBE idle:ch");
    idle.expect_closed();
    std::thread::sleep(seconds(3));
    proxy.client().run("PUBLISH idle:ch awake");
    assert_eq!(next(&mut subscribed), "[\"message\", \"idle:ch\", \"awake\"]");
    check(&mut subscribed, &[("UNSUBSCRIBE", "[\"unsubscribe\", \"idle:ch\", 0]")]);
    subscribed.expect_closed();
}

#[test]
fn wrong_numbers_of_words_are_the_servers_errors() {
    check_shared(&[
        ("SUBSCRIBE", "-ERR wrong number of arguments for 'subscribe' command"),
        ("PSUBSCRIBE", "-ERR wrong number of arguments for 'psubscribe' command"),
        ("SSUBSCRIBE", "-ERR wrong number of arguments for 'ssubscribe' command"),
        ("PUBLISH a", "-ERR wrong number of arguments for 'publish' command"),
        ("PING", "PONG"),
    ]);
}

/// The node counts us once; the clients behind us are what is answered.
#[test]
fn a14_publish_answers_how_many_clients_are_given_the_message() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut clients: Vec<Client> = (0..3).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.run("SUBSCRIBE count:a");
    }
    clients[0].run("SSUBSCRIBE count:a");
    clients[1].run("SSUBSCRIBE count:a");
    // Also where it is another node that sends the pattern's messages.
    clients[2].run("PSUBSCRIBE count:*");
    let mut other = proxy.client_resp3();
    check(
        &mut other,
        &[
            ("PUBLISH count:a m", "4"),
            ("SPUBLISH count:a m", "2"),
            ("PUBLISH count:b m", "1"),
            ("PUBLISH count:c m", "1"),
            ("PUBLISH other m", "0"),
            ("SPUBLISH other m", "0"),
        ],
    );
    let direct = cluster.nodes[0].run("PUBLISH count:none m").text();
    assert!(direct == "0" || direct == "1", "{direct}");
    clients.truncate(1);
    clients[0].run("UNSUBSCRIBE");
    wait_until(seconds(5), "the others' end", || {
        let left = other.run("PUBLISH count:a m").integer();
        assert!(left >= 0);
        left == 0
    });
    assert_eq!(other.run("SPUBLISH count:a m").text(), "1");
}
