//! Faults that attacks found: bytes that came at the wrong moment, replies of the wrong size.
//!
//! Not here: the attacks themselves.

use std::sync::Mutex;

use crate::bench::{keys_on_each, shared, with};
use crate::support::client::{Client, request};
use crate::support::fake::{Answer, Fake, Map, say};
use crate::support::proxy::{Proxy, Settings};
use crate::support::{goal, millis, seconds, wait_until};

/// A fake node that owns everything, and a proxy in front of it.
fn fake_node(settings: &Settings) -> (Fake, Proxy) {
    let node = Fake::start();
    node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
    let proxy = Proxy::start_at(&[&format!("127.0.0.1:{}", node.port())], settings);
    (node, proxy)
}

#[test]
fn large_script_load_behind_a_pipeline_keeps_its_bytes() {
    let bench = shared();
    let [key, _, _] = keys_on_each(&bench.cluster, "script-load");
    let mut client = bench.proxy.client();
    let smuggled = format!("\r\nSET {key} smuggled\r\n");
    let script = format!("return 1 --[[ {}{} ]]", "x".repeat(60_000), smuggled.repeat(2_000));
    let mut bytes = Vec::new();
    for _ in 0..20 {
        bytes.extend(request(&["SET", &key, "right"]));
    }
    bytes.extend(request(&["SCRIPT", "LOAD", &script]));
    bytes.extend(request(&["GET", &key]));
    let (first, second) = bytes.split_at(70_000);
    client.send(first);
    client.send(second);
    for _ in 0..20 {
        assert_eq!(client.read().text(), "OK");
    }
    let sha = client.read().text();
    assert_eq!(sha.len(), 42, "SCRIPT LOAD answers {sha}");
    assert_eq!(client.read().text(), "\"right\"");
    assert_eq!(client.run("PING").text(), "PONG");
}

#[test]
fn push_in_a_login_moves_no_reply() {
    let (node, proxy) = fake_node(&with(&[("request-timeout-ms", "2000")]));
    node.answer(|request| match request.name.as_str() {
        "PING" => Answer::Bytes(b">1\r\n+news\r\n+PONG\r\n".to_vec()),
        "GET" => Answer::Bytes(format!("$1\r\n{}\r\n", request.word(1)).into_bytes()),
        _ => Answer::Usual,
    });
    let mut client = proxy.client();
    wait_until(seconds(5), "the map", || !client.run("GET a").is_error());
    for key in ["b", "c", "d"] {
        assert_eq!(client.run(&format!("GET {key}")).text(), format!("\"{key}\""));
    }
}

#[test]
fn second_frame_in_a_login_moves_no_reply() {
    let (node, proxy) = fake_node(&with(&[("request-timeout-ms", "1000")]));
    node.answer(|request| match request.name.as_str() {
        "PING" => Answer::Bytes(b"+PONG\r\n+PONG\r\n".to_vec()),
        "GET" => Answer::Bytes(format!("$1\r\n{}\r\n", request.word(1)).into_bytes()),
        _ => Answer::Usual,
    });
    let mut client = proxy.client();
    for key in ["a", "b", "c"] {
        let reply = client.run(&format!("GET {key}"));
        assert!(reply.is_error(), "GET {key} answers {}", reply.text());
    }
}

#[test]
fn redirect_to_an_unreadable_place_is_never_shown() {
    let (node, proxy) = fake_node(&with(&[("request-timeout-ms", "1000")]));
    let mut client = proxy.client();
    wait_until(seconds(5), "the map", || !client.run("GET a").is_error());
    for place in ["?:6379", "127.0.0.1:0", "127.0.0.1:99999", ":", ""] {
        for word in ["MOVED", "ASK"] {
            let line = format!("-{word} 15495 {place}");
            node.answer(move |request| match request.name.as_str() {
                "GET" => say(&line),
                _ => Answer::Usual,
            });
            let text = client.run("GET a").text();
            assert!(!text.contains("MOVED") && !text.contains("ASK"), "{place}: {text}");
        }
    }
}

#[test]
fn endless_reply_closes_its_client_alone() {
    // So that nothing but its length ends it, however long it takes.
    let settings = with(&[
        ("client-output-limit", "1mb"),
        ("client-output-soft", "64kb"),
        ("request-timeout-ms", "120000"),
    ]);
    let (node, proxy) = fake_node(&settings);
    let mut other = proxy.client();
    wait_until(seconds(5), "the map", || !other.run("GET a").is_error());
    // 700 MB in one reply: over the limit and the largest value together.
    let mut bytes = b"*700\r\n".to_vec();
    let piece = format!("${}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
    (0..700).for_each(|_| bytes.extend_from_slice(piece.as_bytes()));
    let bytes = Mutex::new(bytes);
    node.answer(move |request| match request.name.as_str() {
        "LRANGE" => Answer::Bytes(std::mem::take(&mut bytes.lock().unwrap())),
        _ => Answer::Usual,
    });
    let mut greedy: Client = proxy.client();
    let begin = format!("id={} ", greedy.run("CLIENT ID").integer());
    let mut is_listed =
        || other.run("CLIENT LIST").string().lines().any(|line| line.starts_with(&begin));
    assert!(is_listed());
    greedy.send(b"LRANGE a 0 -1\r\n");
    wait_until(seconds(30), "the client to be closed", || !is_listed());
    assert_eq!(other.run("PING").text(), "PONG");
}

#[test]
fn wide_requests_to_silent_nodes_stay_few() {
    let (node, proxy) = fake_node(&with(&[("request-timeout-ms", "2000")]));
    let mut client = proxy.client();
    wait_until(seconds(5), "the map", || !client.run("GET a").is_error());
    node.answer(|request| match request.name.as_str() {
        "EXISTS" => Answer::Silence,
        _ => Answer::Usual,
    });
    let mut words = vec!["EXISTS".to_owned()];
    words.extend((0..20_000).map(|key| format!("wide{key}")));
    let bytes = request(&words).repeat(100);
    let wide = proxy.client();
    let sender = std::thread::spawn(move || {
        // As far as it is read.
        let _ = wide.stream().set_write_timeout(Some(seconds(4)));
        let _ = std::io::Write::write_all(&mut wide.stream(), &bytes);
    });
    let mut slowest = millis(0);
    let start = std::time::Instant::now();
    while start.elapsed() < seconds(6) {
        let asked = std::time::Instant::now();
        assert_eq!(client.run("PING").text(), "PONG");
        slowest = slowest.max(asked.elapsed());
        std::thread::sleep(millis(5));
    }
    sender.join().expect("sender");
    assert!(slowest < goal(seconds(2)), "PING took {slowest:?}");
}
