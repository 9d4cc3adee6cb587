//! C3 to C7: redirects and maps in every form that real servers, clouds and old versions send; and
//! what a node must not be able to do. The nodes are of straw (`support::fake`).
//!
//! Not here: real nodes.

use std::net::{ToSocketAddrs, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use crate::bench::with;
use crate::support::client::Client;
use crate::support::fake::{Answer, Fake, Map, Request, say};
use crate::support::keys::key_of_slot;
use crate::support::ports::own_address;
use crate::support::process::Folder;
use crate::support::proxy::{Proxy, Settings, program};
use crate::support::{goal, millis, patience, seconds, wait_until};

/// Answers GET with `name`, everything else as usual.
fn named(node: &Fake, name: &'static str) {
    node.answer(move |request| match request.name.as_str() {
        "GET" => Answer::Bytes(format!("${}\r\n{name}\r\n", name.len()).into_bytes()),
        _ => Answer::Usual,
    });
}

fn local(fake: &Fake) -> String {
    format!("127.0.0.1:{}", fake.port())
}

/// A proxy that refreshes only when something happens.
fn start(seed: &str) -> Proxy {
    let settings = with(&[
        ("refresh-interval-ms", "3600000"),
        ("request-timeout-ms", "20000"),
        ("connect-timeout-ms", "5000"),
    ]);
    Proxy::start_at(&[seed], &settings)
}

#[track_caller]
fn wait_answer(client: &mut Client, line: &str, expected: &str) {
    let mut last = String::new();
    let (start, limit) = (Instant::now(), patience(seconds(8)));
    while start.elapsed() < limit {
        last = client.run(line).text();
        if last == expected {
            return;
        }
        std::thread::sleep(millis(20));
    }
    panic!("{line} answers {last}, not {expected}");
}

/// A owns everything; then `slot` is B's, as the map of A says from then on, and A answers
/// `redirect` for it. The value must be B's.
#[track_caller]
fn check_redirect(a: &Fake, b: &Fake, host_of_b: &str, slot: u16, redirect: &str) {
    let before = Map::all_at(Some("127.0.0.1"), a.port());
    let after = Map::default()
        .range(0, slot - 1, Some("127.0.0.1"), a.port())
        .range(slot, slot, Some(host_of_b), b.port())
        .range(slot + 1, 16_383, Some("127.0.0.1"), a.port());
    for node in [a, b] {
        node.set_map(&before);
    }
    named(a, "A");
    b.answer(|request: &Request| match request.name.as_str() {
        "GET" if request.asking => say("+B asked"),
        "GET" => say("$1\r\nB"),
        _ => Answer::Usual,
    });
    let proxy = start(&local(a));
    let mut client = proxy.client();
    let key = key_of_slot("c", slot);
    let get = format!("GET {key}");
    wait_answer(&mut client, &get, "\"A\"");
    for node in [a, b] {
        node.set_map(&after);
    }
    let line = redirect.to_owned();
    a.answer(move |request| match request.name.as_str() {
        "GET" if request.word(1) == key => say(&line),
        "GET" => say("$1\r\nA"),
        _ => Answer::Usual,
    });
    let expected = if redirect.starts_with("-ASK") { "B asked" } else { "\"B\"" };
    assert_eq!(client.run(&get).text(), expected, "after {redirect}");
    assert_eq!(client.run("GET elsewhere").text(), "\"A\"");
}

#[test]
fn c3_moved_without_host_means_the_answering_node() {
    let (a, b) = (Fake::start(), Fake::start());
    let redirect = format!("-MOVED 3999 :{}", b.port());
    check_redirect(&a, &b, "127.0.0.1", 3999, &redirect);
    let redirect = format!("-ASK 3999 :{}", b.port());
    check_redirect(&a, &b, "127.0.0.1", 3999, &redirect);
}

#[test]
fn c5_moved_and_ask_to_a_name_are_resolved() {
    // Hosts differ in which address is the first; a node at the second is found by the next map.
    let first = ("localhost", 1).to_socket_addrs().ok().and_then(|mut all| all.next());
    let ipv6 = first.is_some_and(|address| address.is_ipv6());
    for kind in ["MOVED", "ASK"] {
        let (a, b) = (Fake::start(), if ipv6 { Fake::start_ipv6() } else { Fake::start() });
        let redirect = format!("-{kind} 3999 localhost:{}", b.port());
        check_redirect(&a, &b, "localhost", 3999, &redirect);
    }
}

/// A resolver that is asked and never answers, for this proxy alone: in a mount namespace of its own.
#[test]
fn c5_name_service_that_is_slow_holds_nobody_up() {
    let alone = std::process::Command::new("unshare").args(["-m", "true"]).status();
    if !alone.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no mount namespace without root");
        return;
    }
    let at = own_address(253);
    let resolver = UdpSocket::bind((at, 53)).expect("port 53 of an address of our own");
    resolver.set_read_timeout(Some(patience(seconds(8)))).expect("a time-out is accepted");
    let folder = Folder::new("resolver");
    let (file, starter) = (folder.file("resolv.conf"), folder.file("starter"));
    let text = format!("nameserver {at}\noptions timeout:3 attempts:1\n");
    std::fs::write(&file, text).expect("file");
    let (file, ringway) = (file.display(), program());
    let inside =
        format!("mount --bind {file} /etc/resolv.conf && exec {} \"$@\"", ringway.display());
    let script = format!("#!/bin/sh\nexec unshare -m sh -c '{inside}' ringway \"$@\"\n");
    std::fs::write(&starter, script).expect("script");
    std::fs::set_permissions(&starter, std::fs::Permissions::from_mode(0o755)).expect("mode");

    let node = Fake::start();
    node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
    let key = key_of_slot("c", 3999);
    let moved = key.clone();
    node.answer(move |request| match request.name.as_str() {
        "GET" if request.word(1) == moved => say("-MOVED 3999 slow.ringway.test:7000"),
        "GET" => say("$1\r\nA"),
        _ => Answer::Usual,
    });
    let settings = with(&[("refresh-interval-ms", "3600000")]);
    let mut proxy = Proxy::launch_by(&starter, &[local(&node)], &settings);
    proxy.wait_listening();
    let (mut waiting, mut other) = (proxy.client(), proxy.client());
    wait_answer(&mut other, "GET elsewhere", "\"A\"");
    let here = Some("127.0.0.1");
    let moved = Map::default()
        .range(0, 3998, here, node.port())
        .range(3999, 3999, Some("slow.ringway.test"), 7000)
        .range(4000, 16_383, here, node.port());
    node.set_map(&moved);
    waiting.send(format!("GET {key}\r\n").as_bytes());
    resolver.recv(&mut [0; 512]).expect("the name is asked for");
    let asked = Instant::now();
    while asked.elapsed() < seconds(2) {
        let start = Instant::now();
        assert_eq!(other.run("GET elsewhere").text(), "\"A\"");
        // A resolver that is waited for takes three seconds.
        assert!(start.elapsed() < seconds(2), "another client waited {:?}", start.elapsed());
        std::thread::sleep(millis(5));
    }
    let text = waiting.read().text();
    assert!(text.starts_with('-'), "GET of the moved key: {text}");
    proxy.expect_alive();
}

#[test]
fn c6_ipv6_in_moved_and_in_the_map_is_split_at_the_last_colon() {
    let (a, b) = (Fake::start(), Fake::start_ipv6());
    let redirect = format!("-MOVED 4844 ::1:{}", b.port());
    check_redirect(&a, &b, "::1", 4844, &redirect);
    let seed = Fake::start_ipv6();
    seed.set_map(&Map::all_at(Some("::1"), seed.port()));
    named(&seed, "six");
    let proxy = start(&format!("[::1]:{}", seed.port()));
    wait_answer(&mut proxy.client(), "GET c6", "\"six\"");
}

#[test]
fn c4_every_form_of_host_in_the_map_is_read() {
    for only in ["SLOTS", "SHARDS"] {
        for (host, extra) in [
            (None, Vec::new()),
            (Some(""), Vec::new()),
            (Some("localhost"), Vec::new()),
            (Some("127.0.0.1"), vec![b"*0\r\n".to_vec()]),
            (Some("127.0.0.1"), vec![hostname_metadata()]),
            (
                Some("127.0.0.1"),
                vec![b"*0\r\n".to_vec(), b"$5\r\nextra\r\n".to_vec(), b":7\r\n".to_vec()],
            ),
        ] {
            let node = Fake::start();
            let mut map = Map::all_at(host, node.port());
            map.ranges[0].extra = extra;
            // The other question is refused, as by a server that does not know it.
            match only {
                "SLOTS" => node.set_cluster("SLOTS", map.slots()),
                _ => node.set_cluster("SHARDS", map.shards()),
            }
            node.set_cluster("NODES", map.nodes());
            named(&node, "here");
            let proxy = start(&local(&node));
            let mut client = proxy.client();
            let what = format!("{only} with host {host:?}");
            println!("{what}");
            wait_answer(&mut client, "GET c4", "\"here\"");
        }
    }
}

/// As Redis 7 with `cluster-announce-hostname`: `["hostname", name]`.
fn hostname_metadata() -> Vec<u8> {
    b"*2\r\n$8\r\nhostname\r\n$12\r\nnode.invalid\r\n".to_vec()
}

#[test]
fn c4_unknown_host_is_skipped_until_it_is_known() {
    let (a, b) = (Fake::start(), Fake::start());
    let half = |host: &str| {
        Map::default().range(0, 8191, Some("127.0.0.1"), a.port()).range(
            8192,
            16_383,
            Some(host),
            b.port(),
        )
    };
    a.set_map(&half("?"));
    b.set_map(&half("127.0.0.1"));
    named(&a, "A");
    named(&b, "B");
    let proxy = Proxy::start_at(
        &[local(&a)],
        &with(&[("refresh-interval-ms", "1000"), ("request-timeout-ms", "2000")]),
    );
    let mut client = proxy.client();
    let (low, high) = (key_of_slot("c4", 1), key_of_slot("c4", 16_000));
    wait_answer(&mut client, &format!("GET {low}"), "\"A\"");
    let start = Instant::now();
    let reply = client.run(&format!("GET {high}")).text();
    assert!(reply.starts_with('-'), "a slot of an unknown host answers {reply}");
    assert!(start.elapsed() < goal(seconds(6)), "after {:?}", start.elapsed());
    a.set_map(&half("127.0.0.1"));
    wait_answer(&mut client, &format!("GET {high}"), "\"B\"");
}

#[test]
fn c7_dead_and_half_known_nodes_are_not_used() {
    let (alive, dead) = (Fake::start(), Fake::start());
    named(&alive, "alive");
    named(&dead, "dead");
    let (port, gone) = (alive.port(), dead.port());
    let id = |digit: char| digit.to_string().repeat(40);
    let (a, b, c, d, e) = (id('a'), id('b'), id('c'), id('d'), id('e'));
    let lines = [
        format!(
            "{a} 127.0.0.1:{port}@{},host-a.invalid,,tls-port=0,shard-id={a} myself,master - 0 0 7 \
             connected 0-16383",
            port + 1
        ),
        format!("{b} 127.0.0.1:{gone}@{} master,fail - 1 1 3 disconnected", gone + 1),
        format!("{c} :0@0 master,noaddr - 1 1 2 disconnected"),
        format!("{d} 127.0.0.1:{gone}@{} handshake - 1 0 0 connected", gone + 1),
        format!("{e} 127.0.0.1:{gone}@{} slave,fail? {a} 1 1 7 connected", gone + 1),
    ];
    let text = lines.join("\n") + "\n";
    alive.set_cluster("NODES", format!("${}\r\n{text}\r\n", text.len()).into_bytes());
    alive.set_cluster("SLOTS", Map::all_at(Some("127.0.0.1"), port).slots());
    alive.set_cluster("SHARDS", shard_with_a_dead_master(port, gone, &a, &b));
    let proxy = start(&local(&alive));
    let mut client = proxy.client();
    wait_answer(&mut client, "GET c7", "\"alive\"");
    for i in 0..100 {
        assert_eq!(client.run(&format!("GET c7-{i}")).text(), "\"alive\"");
    }
    assert_eq!(dead.seen("GET"), 0, "a node flagged fail was asked");
}

/// One shard, two nodes that call themselves master, the first of them failed.
fn shard_with_a_dead_master(port: u16, gone: u16, alive_id: &str, dead_id: &str) -> Vec<u8> {
    let node = |id: &str, port: u16, health: &str| {
        format!(
            "*14\r\n$2\r\nid\r\n$40\r\n{id}\r\n$4\r\nport\r\n:{port}\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n\
             $8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
             $18\r\nreplication-offset\r\n:5\r\n$6\r\nhealth\r\n${}\r\n{health}\r\n",
            health.len()
        )
    };
    let nodes = node(dead_id, gone, "fail") + &node(alive_id, port, "online");
    format!("*1\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*2\r\n{nodes}")
        .into_bytes()
}

#[test]
fn address_map_is_applied_to_map_and_redirect() {
    let (a, b) = (Fake::start(), Fake::start());
    named(&a, "A");
    named(&b, "B");
    let map = |owner: u16| {
        Map::default().range(0, 99, Some("10.255.255.1"), owner).range(
            100,
            16_383,
            Some("10.255.255.1"),
            7001,
        )
    };
    a.set_map(&map(7001));
    b.set_map(&map(7002));
    let text = format!(
        "[[pool]]\nrefresh_interval_ms = 3600000\n[pool.address_map]\n\"10.255.255.1:7001\" = \"{}\"\n\"10.255.255.1:7002\" = \"{}\"\n",
        local(&a),
        local(&b)
    );
    let proxy = Proxy::start_at(&[local(&a)], &Settings::config(&text));
    let mut client = proxy.client();
    let get = format!("GET {}", key_of_slot("nat", 50));
    wait_answer(&mut client, &get, "\"A\"");
    a.set_map(&map(7002));
    a.answer(|request| match request.name.as_str() {
        "GET" => say("-MOVED 50 10.255.255.1:7002"),
        _ => Answer::Usual,
    });
    assert_eq!(client.run(&get).text(), "\"B\"");
}

#[test]
fn address_map_is_applied_to_ask() {
    let (a, b) = (Fake::start(), Fake::start());
    let map = Map::default().range(0, 99, Some("10.255.255.1"), 7001).range(
        100,
        16_383,
        Some("10.255.255.1"),
        7002,
    );
    a.set_map(&map);
    b.set_map(&map);
    a.answer(|request| match request.name.as_str() {
        "GET" => say("-ASK 50 10.255.255.1:7002"),
        _ => Answer::Usual,
    });
    b.answer(|request| match request.name.as_str() {
        "GET" if request.asking => say("$1\r\nB"),
        "GET" => say("-MOVED 50 10.255.255.1:7001"),
        _ => Answer::Usual,
    });
    let text = format!(
        "[[pool]]\n[pool.address_map]\n\"10.255.255.1:7001\" = \"{}\"\n\"10.255.255.1:7002\" = \"{}\"\n",
        local(&a),
        local(&b)
    );
    let proxy = Proxy::start_at(&[local(&a)], &Settings::config(&text));
    let get = format!("GET {}", key_of_slot("nat", 50));
    wait_answer(&mut proxy.client(), &get, "\"B\"");
}

#[test]
fn reply_to_nothing_closes_that_backend_only() {
    let node = Fake::start();
    node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
    node.answer(|request| match (request.name.as_str(), request.word(1).as_str()) {
        ("GET", "twice") => say("$5\r\nfirst\r\n$6\r\nsecond"),
        ("GET", key) => Answer::Bytes(format!("${}\r\n{key}\r\n", key.len()).into_bytes()),
        _ => Answer::Usual,
    });
    let mut proxy = start(&local(&node));
    let mut client = proxy.client();
    wait_answer(&mut client, "GET x", "\"x\"");
    for i in 0..20 {
        let reply = client.run("GET twice").text();
        assert!(reply == "\"first\"" || reply.starts_with('-'), "round {i}: {reply}");
        wait_until(seconds(5), "the next reply to be the right one", || {
            let reply = client.run(&format!("GET key-{i}")).text();
            assert_ne!(
                reply, "\"second\"",
                "round {i}: a reply that nobody asked for was passed on"
            );
            reply == format!("\"key-{i}\"")
        });
    }
    proxy.expect_alive();
}

#[test]
fn redirect_storm_asks_for_the_map_a_few_times_a_second() {
    let node = Fake::start();
    node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
    let mut proxy = start(&local(&node));
    let mut client = proxy.client();
    wait_answer(&mut client, "GET x", "nil");
    let back = format!("-MOVED 1 127.0.0.1:{}", node.port());
    node.answer(move |request| match request.name.as_str() {
        "GET" => say(&back),
        _ => Answer::Usual,
    });
    let asked = |node: &Fake| -> u64 {
        ["CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER NODES"]
            .iter()
            .map(|name| node.seen(name))
            .sum()
    };
    let (before, start) = (asked(&node), Instant::now());
    let mut gets = 0;
    while start.elapsed() < seconds(3) {
        for reply in client.pipeline(&vec!["GET x"; 100]) {
            assert!(reply.is_error(), "answered {}", reply.text());
            assert!(!reply.text().starts_with("-MOVED"), "MOVED was shown");
            gets += 1;
        }
    }
    let per_second = (asked(&node) - before) as f64 / start.elapsed().as_secs_f64();
    println!("{gets} requests, {} sent, {per_second:.1} questions a second", node.seen("GET"));
    assert!(per_second <= 12.0, "{per_second:.1} questions a second");
    proxy.expect_alive();
}

#[test]
fn whole_cluster_commands_wait_for_the_first_map() {
    let node = Fake::start();
    node.set_map(&Map::default());
    node.answer(|request| match request.name.as_str() {
        "DBSIZE" => say(":7"),
        _ => Answer::Usual,
    });
    let proxy = start(&local(&node));
    let mut clients: Vec<Client> = (0..3).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.send(b"DBSIZE\r\nDBSIZE\r\nPING\r\n");
    }
    let mut early = [0; 1];
    clients[0].stream().set_read_timeout(Some(millis(300))).expect("a time-out");
    let early = std::io::Read::read(&mut clients[0].stream(), &mut early);
    assert!(early.is_err(), "answered without a map");
    node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
    for client in &mut clients {
        client.stream().set_read_timeout(Some(seconds(5))).expect("a time-out");
        let answers: Vec<String> = (0..3).map(|_| client.read().text()).collect();
        assert_eq!(answers, ["7", "7", "PONG"]);
    }
}

#[test]
fn whole_cluster_commands_without_any_map_are_refused_in_order() {
    let node = Fake::start();
    node.set_map(&Map::default());
    let proxy = start(&local(&node));
    let mut client = proxy.client();
    let begin = Instant::now();
    client.send(b"DBSIZE\r\nFLUSHALL\r\nSCAN 0\r\nPING\r\n");
    for _ in 0..3 {
        assert_eq!(client.read().text(), "-CLUSTERDOWN The cluster is down");
    }
    assert_eq!(client.read().text(), "PONG");
    assert!(begin.elapsed() > seconds(1), "the map was not waited for");
    assert_eq!(client.run("PING").text(), "PONG");
}
