//! Scripts that make a server send two replies for one request, or a forged redirect: nobody else
//! may notice.
//!
//! Not here: what scripts answer (`tests/conformance`). Background: `research/reliability.md` H1b.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bench::{flavour, keys_on_each};
use crate::load::Load;
use crate::support::client::{Client, Got, request};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{millis, seconds};

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

#[test]
fn hostile_script_moves_nobodys_replies() {
    let cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start(&cluster);
    let key = cluster.key_on(0, "fence");
    let mut keys: Vec<String> = (0..8).map(|i| format!("{{{key}}}-{i}")).collect();
    keys.extend(keys_on_each(&cluster, "victim"));
    let load = Load::start(proxy.port, &keys);
    let end = Arc::new(AtomicBool::new(false));
    let attacker = {
        let (end, port, key) = (Arc::clone(&end), proxy.port, key.clone());
        std::thread::spawn(move || attack(port, &key, &end))
    };
    // G2 of research/reliability.md: none in a million, which takes a while.
    let rounds = if std::env::var("RINGWAY_LONG").is_ok() { 100 } else { 5 };
    (0..rounds).for_each(|_| load.wait_more(10_000));
    end.store(true, Ordering::Relaxed);
    let sent = attacker.join().expect("attacker");
    let outcome = load.finish();
    println!("{} good answers beside {sent} attacks", outcome.done);
    assert!(sent > 50, "only {sent} attacks");
    assert!(outcome.wrong.is_empty(), "{} wrong replies: {:?}", outcome.wrong.len(), outcome.wrong);
    assert!(outcome.errors.is_empty(), "errors of the victims: {:?}", outcome.errors.first());
    proxy.expect_alive();
}

fn attack(port: u16, key: &str, end: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !end.load(Ordering::Relaxed) {
        let mut client = Client::connect(port);
        for script in SPLITTING {
            for name in ["EVAL", "EVAL_RO"] {
                client.send(&request(&[name.as_bytes(), script, b"1", key.as_bytes()]));
                sent += 1;
            }
            client.send(&request(&[b"SCRIPT".as_slice(), b"LOAD", script]));
            sent += 1;
        }
        client.send(b"ECHO done\r\n");
        // One reply to each, or a close: both are safe.
        for _ in 0..SPLITTING.len() * 3 {
            match client.read_within(seconds(10)) {
                Got::Reply(reply) => assert_ne!(reply.text(), "\"done\"", "a reply is missing"),
                Got::Closed => break,
                Got::Nothing => panic!("an attack was never answered"),
            }
        }
    }
    sent
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
