//! What is sent again and what is not: table 4.3 of `research/routing-policy.md`, against a node of
//! straw.
//!
//! Not here: redirects (`fakes`, `moves`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::bench::with;
use crate::support::client::Client;
use crate::support::fake::{Answer, Fake, Map, say};
use crate::support::proxy::Proxy;
use crate::support::{goal, seconds, wait_until};

/// One fake node that owns all slots, and a proxy in front.
fn start() -> (Fake, Proxy, Client) {
    start_with("1500")
}

fn start_with(request_timeout_ms: &str) -> (Fake, Proxy, Client) {
    let node = Fake::start();
    node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
    let settings =
        with(&[("request-timeout-ms", request_timeout_ms), ("connect-timeout-ms", "500")]);
    let proxy = Proxy::start_at(&[format!("127.0.0.1:{}", node.port())], &settings);
    let mut client = proxy.client();
    wait_until(seconds(8), "the proxy to serve", || client.run("GET ready").text() == "nil");
    (node, proxy, client)
}

/// The node answers `error` to the first `count` requests named `name`, then `+fine`.
fn refuse(node: &Fake, name: &'static str, error: &'static str, count: u64) {
    let seen = Arc::new(AtomicU64::new(0));
    node.answer(move |request| match request.name.as_str() {
        found if found != name => Answer::Usual,
        _ if seen.fetch_add(1, Ordering::Relaxed) < count => say(error),
        _ => say("+fine"),
    });
}

#[test]
fn passing_refusals_are_waited_out() {
    // Longer than two refusals take on any machine.
    let (node, _proxy, mut client) = start_with("30000");
    for error in [
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-CLUSTERDOWN The cluster is down",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "-LOADING Redis is loading the dataset in memory",
    ] {
        for name in ["GET", "SET", "INCR"] {
            refuse(&node, name, error, 2);
            let line = if name == "SET" { "SET k v".to_owned() } else { format!("{name} k") };
            assert_eq!(client.run(&line).text(), "fine", "{name} after {error}");
        }
    }
}

#[test]
fn lasting_refusals_are_shown_in_the_end() {
    let (node, _proxy, mut client) = start();
    for error in [
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-CLUSTERDOWN The cluster is down",
        "-LOADING Redis is loading the dataset in memory",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    ] {
        refuse(&node, "SET", error, u64::MAX);
        let (start, before) = (Instant::now(), node.seen("SET"));
        assert_eq!(client.run("SET k v").text(), error);
        assert!(
            start.elapsed() < goal(seconds(6)),
            "{error} was shown after {:?}",
            start.elapsed()
        );
        let tries = node.seen("SET") - before;
        assert!((2..=60).contains(&tries), "{tries} tries against {error}");
    }
}

#[test]
fn other_errors_are_passed_on_untouched_and_at_once() {
    let (node, _proxy, mut client) = start();
    for error in [
        "-OOM command not allowed when used memory > 'maxmemory'.",
        "-MISCONF Redis is configured to save RDB snapshots",
        "-NOREPLICAS Not enough good replicas to write.",
        "-WRONGTYPE Operation against a key holding the wrong kind of value",
        "-BUSY Redis is busy running a script.",
        "-ERR something",
        "-NOPERM this user has no permissions",
        "-MOVEDISH not a redirect",
    ] {
        refuse(&node, "SET", error, u64::MAX);
        let before = node.seen("SET");
        assert_eq!(client.run("SET k v").text(), error);
        assert_eq!(node.seen("SET"), before + 1, "{error}");
    }
}

/// The connection breaks after the request was written: nobody knows whether it ran.
#[test]
fn write_whose_reply_is_lost_is_never_repeated() {
    let (node, mut proxy, mut client) = start();
    for (line, name) in [
        ("INCR k", "INCR"),
        ("SET k v", "SET"),
        ("LPUSH k v", "LPUSH"),
        ("DEL k", "DEL"),
        ("GETDEL k", "GETDEL"),
        ("MSET a 1 b 2", "MSET"),
        ("EVAL return(1) 1 k", "EVAL"),
    ] {
        node.answer(move |request| match request.name.as_str() {
            found if found == name => Answer::Close(Vec::new()),
            _ => Answer::Usual,
        });
        let before = node.seen(name);
        let reply = client.run(line).text();
        assert!(reply.starts_with("-ERR") && reply.contains("may have run"), "{line}: {reply}");
        // MSET of two slots is two requests.
        let most = if name == "MSET" { 2 } else { 1 };
        assert!(node.seen(name) - before <= most, "{line} was sent again");
        assert_eq!(client.run("PING").text(), "PONG", "the connection stays after {line}");
        wait_until(seconds(5), "the node to be reached again", || {
            client.run("GET ready").text() == "nil"
        });
    }
    proxy.expect_alive();
}

#[test]
fn read_whose_reply_is_lost_is_repeated_once() {
    let (node, _proxy, mut client) = start();
    let seen = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&seen);
    node.answer(move |request| match request.word(1).as_str() {
        "lost" if count.fetch_add(1, Ordering::Relaxed) == 0 => Answer::Close(Vec::new()),
        "lost" => say("$5\r\nfound"),
        "gone" => Answer::Close(Vec::new()),
        _ => Answer::Usual,
    });
    assert_eq!(client.run("GET lost").text(), "\"found\"");
    assert_eq!(seen.load(Ordering::Relaxed), 2);
    let before = node.seen("GET");
    let start = Instant::now();
    let reply = client.run("GET gone").text();
    assert!(reply.starts_with("-ERR"), "{reply}");
    assert!(node.seen("GET") - before <= 2, "GET was sent {} times", node.seen("GET") - before);
    assert!(start.elapsed() < goal(seconds(6)), "after {:?}", start.elapsed());
}

#[test]
fn silent_node_times_out_and_its_late_reply_reaches_nobody() {
    let (node, mut proxy, mut client) = start();
    node.answer(|request| match request.word(1).as_str() {
        "slow" => {
            std::thread::sleep(seconds(2));
            say("$4\r\nlate")
        }
        "never" => Answer::Silence,
        key if request.name == "GET" => {
            Answer::Bytes(format!("${}\r\n{key}\r\n", key.len()).into_bytes())
        }
        _ => Answer::Usual,
    });
    for key in ["slow", "never"] {
        let start = Instant::now();
        let reply = client.run(&format!("SET {key} v")).text();
        assert!(reply.starts_with("-ERR") && reply.contains("may have run"), "{key}: {reply}");
        let took = start.elapsed();
        assert!(took > seconds(1) && took < goal(seconds(4)), "{key}: answered after {took:?}");
        for i in 0..100 {
            let reply = client.run(&format!("GET other-{i}")).text();
            let right = reply == format!("\"other-{i}\"") || reply.starts_with("-ERR");
            assert!(right, "GET other-{i} answered {reply}");
        }
    }
    proxy.expect_alive();
}
