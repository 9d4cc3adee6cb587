//! C1, C2, C8, C16: slots that move and slots that find an owner.
//!
//! Not here: nodes that fail (`faults`), redirects in odd forms (`fakes`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::bench::{answers, flavour, with};
use crate::load::Load;
use crate::support::client::Client;
use crate::support::cluster::{Cluster, Shape};
use crate::support::keys::{SLOTS, key_in, key_of_slot};
use crate::support::proxy::Proxy;
use crate::support::{goal, millis, patience, seconds, wait_until};

/// Refreshes only when something happens, not by the timer.
const NO_TIMER: (&str, &str) = ("refresh-interval-ms", "3600000");

#[test]
fn c1_slots_of_a_new_node_are_found_and_then_reached_directly() {
    let mut cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[NO_TIMER]));
    let keys: Vec<String> = (0..8).map(|slot| key_of_slot("c1", slot)).collect();
    let mut client = proxy.client();
    for key in &keys {
        assert_eq!(client.run(&format!("SET {key} {key}")).text(), "OK");
    }
    let new = cluster.add_node();
    for slot in 0..8 {
        cluster.migrate_slot(slot, 0, new);
    }
    for round in 0..3 {
        for key in &keys {
            let got = client.run(&format!("GET {key}")).text();
            assert_eq!(got, format!("\"{key}\""), "round {round}");
        }
        if round == 0 {
            let moved = cluster.errors("MOVED");
            assert!((1..=8).contains(&moved), "{moved} MOVED for 8 slots");
        }
    }
    let mut moved_by_all = || {
        let before = cluster.errors("MOVED");
        keys.iter().for_each(|key| drop(client.run(&format!("GET {key}"))));
        cluster.errors("MOVED") - before
    };
    // The refresh that the first MOVED asked for may be under way still.
    wait_until(seconds(5), "all slots to be reached directly", || moved_by_all() == 0);
    assert_eq!(moved_by_all(), 0, "reached directly from then on");
    assert!(cluster.nodes[new].calls("get") >= 24, "the new node answers");
}

#[test]
fn c2_slots_without_owner_work_as_soon_as_they_have_one() {
    let shape = Shape {
        flavour: flavour(),
        slots: SLOTS / 5 * 4,
        args: ["--cluster-require-full-coverage", "no"].map(Into::into).into(),
        ..Shape::default()
    };
    let cluster = Cluster::start(shape);
    let proxy = Proxy::start_with(&cluster, &with(&[("refresh-interval-ms", "1000")]));
    let orphan = key_in("c2", SLOTS / 5 * 4..=SLOTS - 1);
    let owned = cluster.key_on(0, "c2");
    let mut client = proxy.client();
    let start = Instant::now();
    let reply = client.run(&format!("SET {orphan} v")).text();
    assert!(reply.starts_with("-CLUSTERDOWN"), "a slot without owner answers {reply}");
    assert!(start.elapsed() < goal(seconds(6)), "and not only after {:?}", start.elapsed());
    assert_eq!(client.run(&format!("SET {owned} v")).text(), "OK");
    let line = format!("CLUSTER ADDSLOTSRANGE {} {}", SLOTS / 5 * 4, SLOTS - 1);
    assert_eq!(cluster.nodes[2].run(&line).text(), "OK");
    let start = Instant::now();
    let mut reply = String::new();
    while reply != "OK" && start.elapsed() < patience(seconds(8)) {
        reply = client.run(&format!("SET {orphan} v")).text();
    }
    assert_eq!(reply, "OK", "after the slots have their owner");
}

#[test]
fn c8_half_moved_slot_serves_both_halves() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[NO_TIMER]));
    let mut client = proxy.client();
    let tag = key_of_slot("c8", 100);
    let [moved, unmoved, fresh] = ["moved", "unmoved", "new"].map(|n| format!("{{{tag}}}{n}"));
    assert_eq!(client.run(&format!("MSET {moved} 1 {unmoved} 2")).text(), "OK");
    cluster.open_migration(100, 0, 2);
    cluster.move_keys(0, 2, &[&moved]);

    let asked = cluster.errors("ASK");
    for _ in 0..3 {
        let lines = [format!("GET {moved}"), format!("GET {unmoved}"), format!("INCR {moved}")];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let texts = answers(&mut client, &lines);
        assert_eq!(texts[1], "\"2\"");
        assert!(!texts[0].starts_with('-') && !texts[2].starts_with('-'), "{texts:?}");
    }
    assert_eq!(client.run(&format!("GET {moved}")).text(), "\"4\"", "each INCR ran once");
    assert!(cluster.errors("ASK") > asked, "the map was left as it was: ASK each time");
    assert_eq!(client.run(&format!("SET {fresh} 3")).text(), "OK");
    assert_eq!(cluster.nodes[2].calls("set"), 1, "a new key is made at the target");

    let start = Instant::now();
    let both = client.run(&format!("MGET {moved} {unmoved}")).text();
    let whole = both == "[\"4\", \"2\"]" || both.starts_with("-TRYAGAIN");
    assert!(whole, "MGET of one moved and one unmoved key answered {both}");
    let sum = client.run(&format!("SUNION {moved} {unmoved}")).text();
    assert!(sum.starts_with("-TRYAGAIN"), "SUNION answered {sum}");
    assert!(start.elapsed() < goal(seconds(10)), "retries took {:?}", start.elapsed());

    cluster.close_migration(100, 0, 2);
    let all = client.run(&format!("MGET {moved} {unmoved} {fresh}")).text();
    assert_eq!(all, "[\"4\", \"2\", \"3\"]");

    // What was seen is told apart: ASK while it was half moved, MOVED after, TRYAGAIN for SUNION.
    wait_until(seconds(5), "INFO to count redirects by kind", || {
        let text = client.run("INFO ringway").string();
        let count = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
        };
        let (moved, ask) = (count("redirects_moved"), count("redirects_ask"));
        moved >= 1 && ask >= 7 && count("redirects") == moved + ask && count("retries_tryagain") > 2
    });
}

#[test]
fn c16_reshard_under_load_causes_no_storm_and_no_error() {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start(&cluster);
    let mut keys: Vec<String> = (0..6).map(|i| cluster.key_on(0, &format!("c16-{i}"))).collect();
    keys.extend((0..4).map(|i| cluster.key_on(1, &format!("c16-{i}"))));
    let load = Load::start(proxy.port, &keys);
    load.wait_more(1000);
    let asked = || ["slots", "shards", "nodes"].map(|s| cluster.calls(&format!("cluster|{s}")));
    let (before, start) = (asked(), Instant::now());
    let slots = if std::env::var("RINGWAY_LONG").is_ok() { 4000 } else { 1500 };
    // Slots of the keys among them, and otherwise empty ones: what counts is that owners change all
    // the time.
    let mut chosen: Vec<u16> =
        keys.iter().map(|k| crate::support::keys::slot(k.as_bytes())).collect();
    chosen.retain(|slot| *slot <= cluster.range(0).expect("slots").1);
    chosen.extend((0..slots).filter(|slot| !chosen.contains(slot)).collect::<Vec<u16>>());
    for slot in chosen {
        cluster.migrate_slot(slot, 0, 2);
    }
    let seconds_taken = start.elapsed().as_secs_f64();
    let after = asked();
    load.wait_more(500);
    let outcome = load.finish();
    assert!(outcome.wrong.is_empty(), "wrong replies: {:?}", outcome.wrong);
    assert!(
        outcome.errors.is_empty(),
        "{} errors: {:?}",
        outcome.errors.len(),
        outcome.errors.first()
    );
    let calls: u64 = after.iter().zip(before).map(|(now, then)| now - then).sum();
    let per_second = calls as f64 / seconds_taken;
    println!("{calls} questions in {seconds_taken:.1} s; {} good answers", outcome.done);
    // One round of questions each 200 ms, of at most two commands (map and epochs).
    assert!(
        per_second <= 12.0,
        "{calls} CLUSTER questions in {seconds_taken:.1} s: {before:?} to {after:?}"
    );
    proxy.expect_alive();
}

/// One client's writes to one slot keep their order while the slot changes owners.
#[test]
fn pipelined_appends_keep_their_order_across_redirects() {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start_with(&cluster, &with(&[NO_TIMER]));
    let key = key_of_slot("order", 77);
    let (end, port) = (Arc::new(AtomicBool::new(false)), proxy.port);
    let writer = {
        let (end, key) = (Arc::clone(&end), key.clone());
        std::thread::spawn(move || {
            let mut client = Client::connect(port);
            let mut number = 0;
            while !end.load(Ordering::Relaxed) {
                let lines: Vec<String> =
                    (number..number + 50).map(|i| format!("APPEND {key} {i},")).collect();
                for reply in client.pipeline(&lines) {
                    assert!(!reply.is_error(), "APPEND answered {}", reply.text());
                }
                number += 50;
            }
            number
        })
    };
    let mut owner = 0;
    for round in 0..30 {
        let next = (owner + 1 + round % 2) % 3;
        cluster.pass_slot(77, owner, next);
        owner = next;
        std::thread::sleep(millis(20));
    }
    end.store(true, Ordering::Relaxed);
    let count = writer.join().expect("the writer saw no error");
    let expected: String = (0..count).map(|i| format!("{i},")).collect();
    assert!(count > 200, "only {count} writes");
    let got = proxy.client().run(&format!("GET {key}")).string();
    let wrong = got.split(',').zip(expected.split(',')).position(|(got, right)| got != right);
    assert!(got == expected, "order broken at write {wrong:?} of {count}");
    proxy.expect_alive();
}

#[test]
fn shutdown_answers_what_is_in_flight() {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start(&cluster);
    let key = cluster.key_on(0, "drain");
    let mut client = proxy.client();
    assert_eq!(client.run(&format!("SET {key} v")).text(), "OK");
    cluster.nodes[0].process.stop();
    client.send(format!("GET {key}\r\nPING\r\n").as_bytes());
    proxy.wait_in_flight();
    proxy.process.terminate();
    std::thread::sleep(millis(200));
    cluster.nodes[0].process.resume();
    assert_eq!(client.read().text(), "\"v\"");
    assert_eq!(client.read().text(), "PONG");
    client.expect_closed();
    let status = proxy.process.wait(seconds(10)).expect("the proxy ends");
    assert!(status.success(), "exit status {status}; it said:\n{}", proxy.log());
    wait_until(seconds(5), "the port to be free", || Client::try_connect(proxy.port).is_err());
}
