//! F1 to F4 and F6: order in a pipeline, slow readers, clients that leave.
//!
//! Not here: subscribers that do not read (F5: `pubsub_faults`), all clients together (F7: `memory`).

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bench::{flavour, keys_on_each, shared, with};
use crate::load::{Load, latencies, p99};
use crate::support::client::{Client, Got, request};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{goal, millis, patience, seconds, wait_until};

#[test]
fn f1_replies_wait_behind_a_stopped_node_and_keep_their_order() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", "1000")]));
    let [a, b, _] = keys_on_each(&cluster, "f1");
    let mut client = proxy.client();
    assert_eq!(client.run(&format!("MSET {a} 1 {b} 2")).text(), "OK");
    cluster.nodes[0].process.stop();
    client.send(format!("GET {a}\r\nPING\r\nECHO x\r\nGET {b}\r\nSELECT 0\r\n").as_bytes());
    assert_eq!(client.read_within(millis(400)), Got::Nothing, "nothing overtakes the first");
    let first = client.read();
    assert!(first.is_error(), "GET on the stopped node answered {}", first.text());
    let rest = [0; 4].map(|_| client.read().text());
    assert_eq!(rest, ["PONG", "\"x\"", "\"2\"", "OK"]);
    cluster.nodes[0].process.resume();
    cluster.wait_whole();
    let get = format!("GET {a}");
    wait_until(seconds(10), "the node to be used again", || client.run(&get).text() == "\"1\"");
}

#[test]
fn f2_ping_and_get_are_never_confused_under_load() {
    let bench = shared();
    let end = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let (end, port) = (Arc::clone(&end), bench.proxy.port);
            std::thread::spawn(move || crowd(port, thread, &end))
        })
        .collect();
    let [a, b, _] = keys_on_each(&bench.cluster, "f2");
    let mut client = bench.proxy.client();
    assert_eq!(client.run(&format!("MSET {a} left {b} right")).text(), "OK");
    let lines = [
        "PING".to_owned(),
        format!("GET {a}"),
        "PING f2".to_owned(),
        format!("GET {b}"),
        "PING".to_owned(),
    ];
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < seconds(3) || (rounds <= 50 && start.elapsed() < patience(seconds(3))) {
        let texts: Vec<String> = client.pipeline(&lines).iter().map(|r| r.text()).collect();
        assert_eq!(texts, ["PONG", "\"left\"", "\"f2\"", "\"right\"", "PONG"]);
        for line in &lines[..2] {
            assert_eq!(client.run(line).text(), if line == "PING" { "PONG" } else { "\"left\"" });
        }
        rounds += 1;
    }
    end.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("the crowd saw only its own values");
    }
    assert!(rounds > 50, "only {rounds} rounds in 3 s");
}

/// 25 connections, each with a key of its own whose value names it.
fn crowd(port: u16, thread: usize, end: &AtomicBool) {
    let mut clients: Vec<Client> = (0..25).map(|_| Client::connect(port)).collect();
    while !end.load(Ordering::Relaxed) {
        for (i, client) in clients.iter_mut().enumerate() {
            let key = format!("crowd-{thread}-{i}");
            let set = request(&["SET", &key, &key]);
            let get = request(&["GET", &key]);
            client.send(&[set.as_slice(), &get, b"PING\r\n", &get].concat());
        }
        for (i, client) in clients.iter_mut().enumerate() {
            let value = format!("\"crowd-{thread}-{i}\"");
            let texts = [0; 4].map(|_| client.read().text());
            assert_eq!(texts, ["OK", &value, "PONG", &value]);
        }
    }
}

#[test]
fn f3_pipeline_longer_than_all_buffers_does_not_lock_up() {
    let mut proxy = Proxy::start(&shared().cluster);
    let long = std::env::var("RINGWAY_LONG").is_ok();
    for count in if long { vec![10_000, 1_000_000] } else { vec![10_000, 100_000] } {
        let before = proxy.process.resident_kib();
        let mut client = proxy.client();
        let mut writer = client.stream().try_clone().expect("second handle");
        let value = "v".repeat(1024);
        let writing = std::thread::spawn(move || {
            for i in 0..count {
                let bytes = request(&["SET", &format!("f3-{}", i % 1000), &value]);
                writer.write_all(&bytes).expect("the proxy takes it in the end");
            }
        });
        std::thread::sleep(millis(1500));
        let grown = proxy.process.resident_kib().saturating_sub(before);
        assert!(grown < 96 * 1024, "memory grew by {grown} KiB before a reply was read");
        let mut other = proxy.client();
        assert_eq!(other.run("PING").text(), "PONG", "another client meanwhile");
        for i in 0..count {
            assert_eq!(client.read().text(), "OK", "reply {i} of {count}");
        }
        writing.join().expect("writer");
        proxy.wait_resident_below(before + 16 * 1024, seconds(10));
    }
    proxy.expect_alive();
}

#[test]
fn f4_client_that_does_not_read_costs_only_itself() {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start_with(&cluster, &with(&[("client-output-limit", "64mb")]));
    let [a, b, _] = keys_on_each(&cluster, "f4");
    let mut client = proxy.client();
    let value = vec![b'v'; 10 * 1024 * 1024];
    assert_eq!(client.call(&[b"SET".as_slice(), a.as_bytes(), &value]).text(), "OK");
    assert_eq!(client.run(&format!("SET {b} small")).text(), "OK");
    let quiet = p99(&latencies(proxy.port, &b, seconds(1)));
    let before = proxy.process.resident_kib();

    // The node itself makes all these replies at once: a thousand take 10 GB of *its* memory.
    let count = if std::env::var("RINGWAY_LONG").is_ok() { 1000 } else { 200 };
    let mut deaf = proxy.client();
    deaf.send(&request(&["GET", &a]).repeat(count));
    let busy = p99(&latencies(proxy.port, &b, seconds(3)));
    let grown = proxy.process.resident_kib().saturating_sub(before);
    assert!(grown < 160 * 1024, "memory grew by {grown} KiB for one deaf client");
    let bound = (quiet * 20).max(goal(millis(50)));
    assert!(busy < bound, "p99 of the others was {quiet:?}, and is {busy:?} beside a deaf client");
    // The same shard must serve others, too.
    let other = latencies(proxy.port, &b, millis(200));
    assert!(!other.is_empty());
    drop(deaf);
    proxy.wait_resident_below(before + 32 * 1024, seconds(10));
    assert_eq!(client.run(&format!("STRLEN {a}")).integer(), value.len() as i64);
    client.run(&format!("DEL {a}"));
    proxy.expect_alive();
}

#[test]
fn f6_clients_that_leave_in_mid_flight_harm_nobody() {
    let bench = shared();
    let mut proxy = Proxy::start(&bench.cluster);
    let keys: Vec<String> = keys_on_each(&bench.cluster, "f6").to_vec();
    let load = Load::start(proxy.port, &keys);
    let mut bytes = Vec::new();
    for i in 0..250 {
        let (key, other) = (format!("gone-{i}"), format!("gone-other-{i}"));
        bytes.extend(request(&["SET", &key, "mine"]));
        bytes.extend(request(&["GET", &key]));
        bytes.extend(request(&["MSET", &key, "mine", &other, "mine"]));
        bytes.extend(request(&["MGET", &key, &other]));
    }
    for round in 0..150_usize {
        let mut client = proxy.client();
        client.send(&bytes[..bytes.len() - round]);
        match round % 3 {
            0 => {}
            1 => std::thread::sleep(Duration::from_micros(300)),
            _ => {
                client.skip_bytes(round);
            }
        }
    }
    load.wait_more(200);
    let outcome = load.finish();
    assert!(outcome.wrong.is_empty(), "foreign replies: {:?}", outcome.wrong);
    assert!(outcome.errors.is_empty(), "errors of the others: {:?}", outcome.errors);
    proxy.expect_alive();
}
