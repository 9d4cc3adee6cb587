//! WAITAOF: it answers when everything that its client was told to be done is in the files of every
//! primary (and of the replicas asked for), not before.
//!
//! Not here: WAIT (`blocking`), but for nodes that break the connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ringway::proxy::synced::EMPTY_WRITE;

use crate::bench::{answers, flavour, shared, with};
use crate::support::client::{Client, request};
use crate::support::cluster::{Cluster, Flavour, Node, Shape};
use crate::support::fake::{Answer, Fake, Map, say};
use crate::support::keys::key_of_slot;
use crate::support::proxy::Proxy;
use crate::support::{goal, millis, seconds, wait_until};

/// Three primaries and three replicas with files that nobody syncs.
fn start() -> (Cluster, Proxy) {
    let args = ["--appendonly", "yes", "--appendfsync", "no"].map(Into::into).into();
    let cluster =
        Cluster::start(Shape { flavour: flavour(), replicas_each: 1, args, ..Shape::default() });
    let proxy = Proxy::start(&cluster);
    // A replica's file counts from when the first one has been written whole.
    for node in &cluster.nodes {
        wait_until(seconds(20), "the file", || {
            node.info("persistence", "aof_rewrite_in_progress").as_deref() == Some("0")
                && node.info("persistence", "aof_rewrite_scheduled").as_deref() == Some("0")
        });
    }
    (cluster, proxy)
}

fn sync(nodes: &[Node], how: &str) {
    for node in nodes {
        assert_eq!(node.run(&format!("CONFIG SET appendfsync {how}")).text(), "OK");
    }
}

fn ask(client: &mut Client, line: &str) {
    client.send(&request(&line.split(' ').collect::<Vec<&str>>()));
}

#[test]
fn waitaof_answers_when_all_primaries_have_synced_what_the_client_wrote() {
    if flavour() != Flavour::Valkey {
        return;
    }
    let (cluster, proxy) = start();
    let (primaries, replicas) = cluster.nodes.split_at(3);
    let (mut client, key) = (proxy.client(), cluster.key_on(1, "synced"));
    let begun = Instant::now();
    let texts = answers(&mut client, &[&format!("SET {key} 1"), "WAITAOF 1 0 300", "PING"]);
    assert_eq!(texts, ["OK", "[0, 0]", "PONG"], "no file is synced");
    assert!(begun.elapsed() >= millis(290));
    // Two of three primaries are not all.
    for node in [&primaries[0], &primaries[2]] {
        assert_eq!(node.run("CONFIG SET appendfsync everysec").text(), "OK");
    }
    assert_eq!(client.run("WAITAOF 1 0 1500").text(), "[0, 0]");
    ask(&mut client, "WAITAOF 1 0 0");
    let mut other = proxy.client();
    wait_until(seconds(5), "it is blocked", || {
        other.run("INFO clients").string().contains("blocked_clients:1\r\n")
    });
    sync(&primaries[1..2], "everysec");
    assert_eq!(client.read().items()[0].integer(), 1);
    assert_eq!(client.run("WAITAOF 1 1 400").text(), "[1, 0]", "no replica has synced");
    sync(replicas, "everysec");
    assert_eq!(client.run("WAITAOF 1 1 120000").text(), "[1, 1]");
    // It has changed nothing.
    assert_eq!(client.run("DBSIZE").integer(), 1);
    assert_eq!(client.run("FUNCTION LIST").text(), "[]");
}

#[test]
fn waitaof_can_be_ended_and_refused_as_by_a_node() {
    if flavour() != Flavour::Valkey {
        return;
    }
    let (cluster, proxy) = start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    let id = client.run("CLIENT ID").integer();
    for (word, answer) in [("", "[0, 0]"), (" TIMEOUT", "[0, 0]"), (" ERROR", "-UNBLOCKED client")]
    {
        assert_eq!(client.run("SET {s}k 1").text(), "OK");
        ask(&mut client, "WAITAOF 1 0 0");
        let line = format!("CLIENT UNBLOCK {id}{word}");
        wait_until(seconds(5), &line, || other.run(&line).integer() == 1);
        let text = client.read().text();
        assert!(text.starts_with(answer), "{text}");
    }
    ask(&mut client, "WAITAOF 1 0 0");
    let blocked = |other: &mut Client, count: u64| {
        let line = format!("blocked_clients:{count}\r\n");
        wait_until(seconds(5), &line, || other.run("INFO clients").string().contains(&line));
        // And at the node.
        let all = |node: &Node| node.info("clients", "blocked_clients").unwrap_or_default();
        let count = count.to_string();
        wait_until(seconds(5), "at the nodes", || {
            cluster.primaries().iter().all(|node| all(node) == count)
        });
    };
    blocked(&mut other, 1);
    drop(client);
    blocked(&mut other, 0);
    let errors = [
        ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1"),
        ("WAITAOF x 0 0", "-ERR value is not an integer or out of range"),
        ("WAITAOF 0 -1 0", "-ERR value is out of range, must be positive"),
        ("WAITAOF 0 0 x", "-ERR timeout is not an integer or out of range"),
        ("WAITAOF 0 0 -1", "-ERR timeout is negative"),
        ("WAITAOF 0 0", "-ERR wrong number of arguments for 'waitaof' command"),
        ("WAITAOF 0 0 0", "[0, 0]"),
    ];
    for (line, answer) in errors {
        assert_eq!(other.run(line).text(), answer, "{line}");
    }
    let texts = answers(&mut other, &["MULTI", "SET {s}k 2", "WAITAOF 1 1 0", "EXEC", "PING"]);
    assert_eq!(texts[3], "[OK, [0, 0]]");
    assert_eq!(texts[4], "PONG");
    // One that keeps no file speaks for all.
    assert_eq!(cluster.nodes[2].run("CONFIG SET appendonly no").text(), "OK");
    let text = other.run("WAITAOF 1 0 0").text();
    assert!(text.starts_with("-ERR WAITAOF cannot be used when numlocal is set"), "{text}");
    // Nor is anything promised of a write that the node has not taken.
    assert_eq!(cluster.nodes[2].run("CONFIG SET min-replicas-to-write 5").text(), "OK");
    let text = other.run("WAITAOF 0 5 0").text();
    assert!(text.starts_with("-NOREPLICAS"), "{text}");
}

#[test]
fn waitaof_at_nodes_without_it_is_their_error_and_the_empty_write_is_theirs() {
    if flavour() != Flavour::Redis {
        return;
    }
    let mut client = shared().proxy.client();
    let text = client.run("WAITAOF 0 1 0").text();
    assert!(text.starts_with("-ERR unknown command 'WAITAOF'"), "{text}");
    let dump = shared().cluster.nodes[0].client().call(&["FUNCTION", "DUMP"]);
    assert_eq!(dump.bytes().len(), 10);
    assert!(EMPTY_WRITE.windows(10).any(|window| window == dump.bytes()), "{}", dump.text());
}

/// Two nodes, each with half of the slots, that have everything everywhere; the second breaks its
/// connection at the first request with that name, after these bytes. The answer is an error at
/// once, and it is not asked anew: with what it lost it may have lost what the client wrote.
#[track_caller]
fn check_break(line: &str, at: &'static str, bytes: &'static [u8]) {
    let (good, bad) = (Fake::start(), Fake::start());
    let here = Some("127.0.0.1");
    let halves = [(0, 8_191, good.port()), (8_192, 16_383, bad.port())];
    let map = halves
        .iter()
        .fold(Map::default(), |map, &(first, last, port)| map.range(first, last, here, port));
    let info = "# Replication\r\nrole:master\r\nconnected_slaves:1\r\n\
                slave0:ip=127.0.0.1,port=1,state=online,offset=100,lag=0\r\nmaster_repl_offset:100\r\n";
    let usual = move |name: &str, word: &str| match name {
        "WAITAOF" => say("*2\r\n:1\r\n:1"),
        "WAIT" => say(":1"),
        "INFO" if word == "replication" => say(&format!("${}\r\n{info}", info.len())),
        _ => Answer::Usual,
    };
    good.answer(move |request| usual(&request.name, &request.word(1)));
    let broken = AtomicU64::new(0);
    bad.answer(move |request| {
        let (name, word) = (&request.name, &request.word(1));
        let meant = name == at && (name != "INFO" || word == "replication");
        match meant && broken.fetch_add(1, Ordering::Relaxed) == 0 {
            true => Answer::Close(bytes.to_vec()),
            false => usual(name, word),
        }
    });
    for node in [&good, &bad] {
        node.set_map(&map);
    }
    let settings = with(&[("reactors", "1")]);
    let proxy = Proxy::start_at(&[&format!("127.0.0.1:{}", good.port())], &settings);
    let mut client = proxy.client();
    assert_eq!(client.run(&format!("SET {} 1", key_of_slot("a", 9_000))).text(), "OK");
    let begun = Instant::now();
    let text = client.run(line).text();
    assert!(text.starts_with("-ERR "), "{line}: {text} after {at} and {bytes:?}");
    assert!(begun.elapsed() < goal(seconds(3)), "after {:?}", begun.elapsed());
    assert_eq!(bad.seen(line.split(' ').next().unwrap()), u64::from(at == "WAITAOF"), "asked anew");
    // The next one is another matter.
    assert!(!client.run(line).is_error());
}

#[test]
fn waitaof_and_wait_promise_nothing_of_a_node_that_breaks_the_connection() {
    for bytes in [&b""[..], b"*2\r\n:1", b"*2\r\n:1\r\n:1\r"] {
        check_break("WAITAOF 1 1 5000", "WAITAOF", bytes);
        check_break("WAITAOF 1 1 0", "WAITAOF", bytes);
    }
    check_break("WAITAOF 1 1 0", "FUNCTION", b"");
    for bytes in [&b""[..], b"$10\r\n# Repl"] {
        check_break("WAIT 1 5000", "INFO", bytes);
        check_break("WAIT 1 0", "INFO", bytes);
    }
}
