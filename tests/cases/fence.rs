//! Scripts that make a server send two replies for one request, or a forged redirect: nobody else
//! may notice.
//!
//! Not here: what scripts answer (`tests/conformance`). Background: `research/reliability.md` H1b.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::bench::{flavour, with};
use crate::support::client::{Client, Got, request};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{millis, seconds, wait_until};

/// Scripts whose error text carries a line end, after which a reply of the attacker's making
/// follows.
const SPLITTING: &[&[u8]] = &[
    b"#!lua flags=x\\r\\n$6\\r\\nforged\n return 1",
    b"#!lua name=\"x\\r\\n+forged\\r\\n\"\nreturn 1",
    b"#!\"x\\r\\n+forged\"\nreturn 1",
    b"#!lua \"a=b\\r\\n+forged\"\nreturn 1",
    b"#!lua \"flags=no-writes,x\\r\\n+forged\"\nreturn 1",
    b"return redis.error_reply('x\\r\\n+forged')",
    b"return {err='x\\r\\n+forged'}",
    b"return redis.status_reply('x\\r\\n+forged')",
    b"return {ok='x\\r\\n+forged'}",
    b"error('x\\r\\n+forged')",
    b"return redis.call('x\\r\\n+forged')",
];

/// Every way in which they, and other words that a server repeats, are sent: the bytes, and how
/// many replies they are to have.
fn attacks(key: &str) -> Vec<(Vec<u8>, usize)> {
    let mut all = Vec::new();
    for script in SPLITTING {
        for name in ["EVAL", "EVAL_RO"] {
            all.push((request(&[name.as_bytes(), script, b"1", key.as_bytes()]), 1));
        }
        all.push((request(&[b"SCRIPT".as_slice(), b"LOAD", script]), 1));
        let mut inside = request(&["MULTI"]);
        inside.extend(request(&[b"EVAL".as_slice(), script, b"1", key.as_bytes()]));
        inside.extend(request(&["EXEC"]));
        all.push((inside, 3));
    }
    let line = "x\r\n+forged";
    let library = "#!lua name=fence\nredis.register_function('f', function() return 1 end)";
    let words: [&[&str]; 9] = [
        &["FUNCTION", "LIST", line],
        &["FUNCTION", "LIST", "LIBRARYNAME", line],
        &["FUNCTION", "LOAD", "#!lua name=\"x\\r\\n+forged\"\n return 1"],
        &["FUNCTION", "LOAD", "#!lua \"a=x\\r\\n+forged\"\n return 1"],
        &["FUNCTION", "LOAD", "#!\"x\\r\\n+forged\" name=a\n return 1"],
        &["FUNCTION", "LOAD", "REPLACE", library],
        &["FCALL", line, "1", key],
        &["EVALSHA", line, "1", key],
        &[line, key],
    ];
    all.extend(words.iter().map(|words| (request(words), 1)));
    all
}

/// How many of the attacks make this server send more than it was asked for.
fn splitting_at(port: u16, key: &str) -> usize {
    let splits = |(bytes, replies): &(Vec<u8>, usize)| {
        let mut client = Client::connect(port);
        client.send(bytes);
        client.send(&request(&["ECHO", "the next"]));
        (0..*replies).for_each(|_| drop(client.read()));
        client.read().text() != "\"the next\""
    };
    attacks(key).iter().filter(|attack| splits(attack)).count()
}

#[test]
fn hostile_script_moves_nobodys_replies() {
    // G2 of research/reliability.md: none in a million, which takes a while.
    let replies = if std::env::var("RINGWAY_LONG").is_ok() { 1_000_000 } else { 100_000 };
    for reactors in ["1", "2"] {
        storm(reactors, replies);
    }
}

/// So many replies of eight victims in the attackers' slot are looked at while attackers attack.
fn storm(reactors: &str, replies: u64) {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start_with(&cluster, &with(&[("reactors", reactors)]));
    let key = cluster.key_on(0, "fence");
    let splitting = splitting_at(cluster.nodes[0].port, &key);
    let (port, end) = (proxy.port, AtomicBool::new(false));
    let (seen, sent) = (AtomicU64::new(0), AtomicU64::new(0));
    let wrong: Vec<String> = std::thread::scope(|scope| {
        // Attackers end after the victims: nothing is counted that nobody attacked.
        let attackers: Vec<_> =
            (0..2).map(|_| scope.spawn(|| attack(port, &key, &end, &sent))).collect();
        let (key, seen) = (&key, &seen);
        let victims: Vec<_> = (0..8)
            .map(|n| scope.spawn(move || victim(port, &format!("{{{key}}}-{n}"), n, seen, replies)))
            .collect();
        let wrong = victims.into_iter().flat_map(|victim| victim.join().expect("victim"));
        let wrong = wrong.collect();
        end.store(true, Ordering::Relaxed);
        attackers.into_iter().for_each(|attacker| attacker.join().expect("attacker"));
        wrong
    });
    let (seen, sent) = (seen.into_inner(), sent.into_inner());
    let mut breaches = info_number(&mut proxy.client(), "fence_breaches");
    if splitting > 0 {
        wait_until(seconds(5), "breaches to be told", || {
            breaches = info_number(&mut proxy.client(), "fence_breaches");
            breaches > 0
        });
    }
    println!(
        "{:?}, {reactors} reactors: {} wrong of {seen} replies to 8 victims beside {sent} attacks; \
         {splitting} of {} kinds split at this server, {breaches} connections were given up",
        flavour(),
        wrong.len(),
        attacks(&key).len(),
    );
    assert!(wrong.is_empty(), "{} wrong replies: {:?}", wrong.len(), wrong.first());
    assert!(seen >= replies, "only {seen} replies");
    assert!(sent > 50, "only {sent} attacks");
    assert_eq!(breaches > 0, splitting > 0, "{splitting} kinds split, {breaches} were seen");
    proxy.expect_alive();
}

fn info_number(client: &mut Client, name: &str) -> u64 {
    // What reactors show of themselves is up to a second old.
    std::thread::sleep(millis(1_500));
    let text = client.run("INFO").string();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().expect("a number")
}

/// Writes, reads and counts in pipelines; every reply is known beforehand. The first wrong ones.
fn victim(port: u16, key: &str, n: u32, seen: &AtomicU64, replies: u64) -> Vec<String> {
    let mut client = if n % 2 == 0 { Client::connect(port) } else { Client::connect_resp3(port) };
    let (mut wrong, count) = (Vec::new(), format!("{key}-count"));
    let mut number = 0_u64;
    while seen.load(Ordering::Relaxed) < replies && wrong.len() < 10 {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..16 {
            number += 1;
            let value = format!("{key}={number}");
            for words in [&["SET", key, &value][..], &["GET", key], &["INCR", &count]] {
                bytes.extend(request(words));
            }
            expected.extend(["OK".to_owned(), format!("\"{value}\""), number.to_string()]);
        }
        client.send(&bytes);
        for expected in &expected {
            let got = client.read().text();
            if got != *expected {
                wrong.push(format!("{key}: {got} in place of {expected}"));
            }
        }
        seen.fetch_add(expected.len() as u64, Ordering::Relaxed);
    }
    wrong
}

fn attack(port: u16, key: &str, end: &AtomicBool, sent: &AtomicU64) {
    let attacks = attacks(key);
    let replies: usize = attacks.iter().map(|(_, replies)| replies).sum();
    while !end.load(Ordering::Relaxed) {
        let mut client = Client::connect(port);
        for (bytes, _) in &attacks {
            client.send(bytes);
        }
        client.send(b"ECHO done\r\n");
        sent.fetch_add(attacks.len() as u64, Ordering::Relaxed);
        // One reply to each, or a close: both are safe.
        for _ in 0..replies {
            match client.read_patiently() {
                Got::Reply(reply) => assert_ne!(reply.text(), "\"done\"", "a reply is missing"),
                Got::Closed => break,
                Got::Nothing => panic!("an attack was never answered"),
            }
        }
    }
}

#[test]
fn forged_redirect_connects_to_nobody() {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start(&cluster);
    let trap = TcpListener::bind("127.0.0.1:0").expect("trap");
    trap.set_nonblocking(true).expect("trap");
    let address = trap.local_addr().expect("trap's address");
    let key = cluster.key_on(0, "forged");
    let mut client = proxy.client();
    for kind in ["MOVED", "ASK"] {
        let script = format!("return redis.error_reply('{kind} 866 {address}')");
        for _ in 0..3 {
            let reply = client.call(&["EVAL", &script, "1", &key]);
            assert!(reply.is_error(), "the script's own error, or ours: {}", reply.text());
        }
    }
    std::thread::sleep(millis(300));
    assert!(trap.accept().is_err(), "the proxy went where a script sent it");
    assert_eq!(client.run(&format!("SET {key} v")).text(), "OK");
    let moved = cluster.errors("MOVED");
    assert_eq!(client.run(&format!("GET {key}")).text(), "\"v\"");
    assert_eq!(cluster.errors("MOVED"), moved, "the map is as it was");
    proxy.expect_alive();
    let _ = std::io::stdout().flush();
}

#[test]
fn script_that_writes_and_says_tryagain_runs_once() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let key = cluster.key_on(0, "once");
    let mut client = proxy.client();
    for word in ["TRYAGAIN", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOSCRIPT"] {
        client.run(&format!("DEL {key}"));
        let script = format!("redis.call('INCR', KEYS[1]); return redis.error_reply('{word} me')");
        let reply = client.call(&["EVAL", &script, "1", &key]).text();
        assert!(reply.starts_with(&format!("-{word} me")), "{word}: {reply}");
        assert_eq!(client.run(&format!("GET {key}")).text(), "\"1\"", "{word}");
    }
}
