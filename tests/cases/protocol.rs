//! P1 to P15: odd, broken and large requests.
//!
//! Not here: P8 (cut anywhere) and the comparison with a server (`tests/conformance/streams.rs`).

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::bench::{answers, flavour, keys_on_each, shared, with};
use crate::support::client::{Client, Got, PATIENCE, request};
use crate::support::cluster::{Cluster, Shape};
use crate::support::proxy::Proxy;
use crate::support::{millis, seconds};

/// Sends `bytes` on a fresh connection; exactly `expected` must come back, then a close if
/// `closes`.
#[track_caller]
fn check(bytes: &[u8], expected: &str, closes: bool) {
    let mut client = shared().proxy.client();
    client.send(bytes);
    client.read_at_least(expected.len());
    let quiet = if closes { PATIENCE } else { millis(50) };
    let (got, closed) = client.read_until_quiet(quiet);
    let sent = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]);
    assert_eq!(String::from_utf8_lossy(&got), expected, "reply to {sent:?}");
    assert_eq!(closed, closes, "closed after {sent:?}");
}

fn protocol_error(text: &str) -> String {
    format!("-ERR Protocol error: {text}\r\n")
}

#[test]
fn p1_empty_frames_answer_nothing() {
    for empty in ["*0\r\n", "*-1\r\n", "\r\n\r\n"] {
        check(format!("{empty}PING\r\n").as_bytes(), "+PONG\r\n", false);
    }
}

#[test]
fn p2_redis_cli_pipe_counts_its_replies() {
    let key = format!("pipe-{}", std::process::id());
    let mut child = Command::new("redis-cli")
        .args(["-p", &shared().proxy.port.to_string(), "--pipe"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli (package redis-tools)");
    let mut input = child.stdin.take().expect("stdin");
    input.write_all(&request(&["SET", &key, "v"])).expect("payload");
    drop(input);
    let output = child.wait_with_output().expect("redis-cli ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("errors: 0, replies: 1"), "redis-cli --pipe said {text}");
    assert_eq!(shared().proxy.client().run(&format!("GET {key}")).text(), "\"v\"");
}

#[test]
fn p3_inline_requests_are_read_as_the_server_does() {
    check(b"SET p3 v\r\nGET p3\r\n", "+OK\r\n$1\r\nv\r\n", false);
    check(b"SET p3 w\nGET p3\n", "+OK\r\n$1\r\nw\r\n", false);
    check(b"SET \"p3\\x0d\\n\" 'x y'\r\n", "+OK\r\n", false);
    let got = shared().proxy.client().call(&[b"GET".as_slice(), b"p3\r\n"]);
    assert_eq!(got.text(), "\"x y\"");
    check(b"SET a \"b\r\nPING\r\n", &protocol_error("unbalanced quotes in request"), true);
}

#[test]
fn p4_endless_line_is_cut_off_and_its_memory_returns() {
    let proxy = Proxy::start(&shared().cluster);
    let before = proxy.process.resident_kib();
    for _ in 0..200 {
        let mut client = proxy.client();
        client.send(&vec![b'a'; 70_000]);
        let error = client.read();
        assert_eq!(error.text(), "-ERR Protocol error: too big inline request");
        client.expect_closed();
    }
    proxy.wait_resident_below(before + 8 * 1024, seconds(10));
}

#[test]
fn p5_negative_length_ends_the_connection_after_earlier_replies() {
    let bytes = b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$-1\r\n*1\r\n$4\r\nPING\r\n";
    check(bytes, &format!("+PONG\r\n{}", protocol_error("invalid bulk length")), true);
}

#[test]
fn p6_malformed_numbers_get_one_error_and_a_close() {
    let mut neighbour = shared().proxy.client();
    let (count, length) = ("invalid multibulk length", "invalid bulk length");
    for (bytes, text) in [
        ("*abc\r\n", count),
        ("*+1\r\n$4\r\nPING\r\n", count),
        ("*2147483648\r\n", count),
        ("*1\r\n$-5\r\n", length),
        ("*1\r\n$04\r\nPING\r\n", length),
        ("*1\r\n$536870913\r\n", length),
        ("*2\r\n$3\r\nGET\r\n*1\r\n$1\r\na\r\n", "expected '$', got '*'"),
        ("*2\r\n$3\r\nGET\r\n:1\r\n", "expected '$', got ':'"),
    ] {
        check(bytes.as_bytes(), &protocol_error(text), true);
        assert_eq!(neighbour.run("PING").text(), "PONG", "neighbour after {bytes:?}");
    }
}

#[test]
fn p7_length_headers_reserve_no_memory() {
    let mut proxy = Proxy::start(&shared().cluster);
    let before = proxy.process.resident_kib();
    let mut clients: Vec<Client> = (0..1000).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.send(b"*1048576\r\n$536870912\r\n");
    }
    assert_eq!(proxy.client().run("PING").text(), "PONG");
    std::thread::sleep(millis(300));
    let grown = proxy.process.resident_kib().saturating_sub(before);
    assert!(grown < 50 * 1024, "memory grew by {grown} KiB");
    drop(clients);
    proxy.expect_alive();
}

#[test]
fn p9_binary_and_empty_keys_and_values_pass_unchanged() {
    let bench = shared();
    let mut client = bench.proxy.client();
    let values: [&[u8]; 5] = [b"", b"\r\n", b"a\0b", b"\xff\xfe\r\n$5\r\n", b"*1\r\n"];
    let all: Vec<u8> = (0..=255).collect();
    for (i, value) in values.iter().chain([&all.as_slice()]).enumerate() {
        let key = [b"p9\r\n\0\xff".as_slice(), &[i as u8]].concat();
        assert_eq!(client.call(&[b"SET", key.as_slice(), value]).text(), "OK");
        assert_eq!(client.call(&[b"GET".as_slice(), &key]).bytes(), *value);
        let both = client.call(&[b"MGET".as_slice(), &key, b"p9 absent", &key]);
        assert_eq!(both.items()[0].bytes(), *value);
        assert_eq!(both.items()[2].bytes(), *value);
        assert_eq!(client.call(&[b"DEL".as_slice(), &key, b"p9 absent"]).text(), "1");
    }
    assert_eq!(client.call(&["SET", "", "empty"]).text(), "OK");
    assert_eq!(client.call(&["GET", ""]).text(), "\"empty\"");
    assert_eq!(client.call(&["MGET", "p9 absent", ""]).text(), "[nil, \"empty\"]");
    assert_eq!(client.call(&["DEL", "", "p9 absent"]).text(), "1");
    let unknown = client.call(&["", "a"]).text();
    assert_eq!(unknown, "-ERR unknown command '', with args beginning with: 'a' ");
}

#[test]
fn p10_huge_values_pass_and_their_memory_returns() {
    // Of its own: a node that copies half a gigabyte answers nobody else meanwhile.
    let cluster = Cluster::start(Shape { flavour: flavour(), primaries: 1, ..Shape::default() });
    // The default limit of 256 MB on a client's untaken replies would rightly close this one.
    let mut proxy = Proxy::start_with(&cluster, &with(&[("client-output-limit", "1gb")]));
    let before = proxy.process.resident_kib();
    let mib: usize = 1024 * 1024;
    let long = std::env::var("RINGWAY_LONG").is_ok();
    let sizes = if long { vec![64 * mib; 10] } else { vec![64 * mib; 3] };
    for (i, size) in sizes.into_iter().chain([512 * mib]).enumerate() {
        let key = format!("p10-{i}");
        let mut client = proxy.client();
        let value: Vec<u8> = (0..size).map(|at| ((at * 31) >> 8) as u8).collect();
        client
            .send(format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${size}\r\n", key.len()).as_bytes());
        client.send(&value);
        client.send(b"\r\n");
        assert_eq!(client.read().text(), "OK", "SET of {size} bytes");
        let got = client.call(&["GET", &key]);
        assert!(got.bytes() == value, "GET of {size} bytes gave {} others", got.bytes().len());
        assert_eq!(client.run(&format!("DEL {key}")).text(), "1");
    }
    proxy.expect_alive();
    proxy.wait_resident_below(before + 16 * 1024, seconds(15));
}

#[test]
fn p11_quit_answers_what_came_before_and_nothing_after() {
    check(b"PING\r\nQUIT\r\nPING\r\n", "+PONG\r\n+OK\r\n", true);
    // Of its own: the nodes' connections are this proxy's, and nobody else opens or closes any.
    let (cluster, settings) = (Cluster::three(flavour()), with(&[("reactors", "1")]));
    let proxy = Proxy::start_with(&cluster, &settings);
    let keys = keys_on_each(&cluster, "p11");
    let [a, b, c] = &keys;
    let mget = format!("MGET {a} {b} {c}");
    let mut other = proxy.client();
    assert_eq!(other.run(&mget).text(), "[nil, nil, nil]");
    // By number and address, so that one made anew in its place is seen.
    let shared = || [0, 1, 2].map(|i| connection_that_ran_mget(&cluster, i));
    let before = shared();
    for round in 0..20 {
        let mut client = proxy.client();
        client.send(format!("{mget}\r\nQUIT\r\nSET {a} 1\r\n").as_bytes());
        assert_eq!(client.read().text(), "[nil, nil, nil]");
        assert_eq!(client.read().text(), "OK");
        client.expect_closed();
        assert_eq!(other.run(&format!("EXISTS {a}")).text(), "0", "round {round}");
        assert_eq!(other.run(&mget).text(), "[nil, nil, nil]");
        assert_eq!(shared(), before, "round {round}: QUIT closed a connection to a node");
    }
    assert_eq!(cluster.calls("quit"), 0, "QUIT is for the proxy");
}

/// `id=… addr=…` of the one connection of this node whose last command was a MGET's.
#[track_caller]
fn connection_that_ran_mget(cluster: &Cluster, node: usize) -> String {
    let list = cluster.nodes[node].run("CLIENT LIST").string();
    let found: Vec<&str> = list.lines().filter(|line| is_mget(line)).collect();
    assert_eq!(found.len(), 1, "{list}");
    found[0].split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Of one key it may be sent as GET.
fn is_mget(line: &str) -> bool {
    line.contains(" cmd=mget ") || line.contains(" cmd=get ")
}

#[test]
fn p12_half_closed_client_gets_all_replies() {
    let bench = shared();
    let [a, b, c] = keys_on_each(&bench.cluster, "p12");
    let mut client = bench.proxy.client();
    client.send(format!("GET {a}\r\nGET {b}\r\nGET {c}\r\n").as_bytes());
    client.end_sending();
    for _ in 0..3 {
        assert_eq!(client.read().text(), "nil");
    }
    client.expect_closed();
}

#[test]
fn p13_http_is_closed_before_any_command_runs() {
    for bytes in [
        "POST / HTTP/1.1\r\nHost: x\r\nSET p13 1\r\n\r\n",
        "POST / HTTP/1.1\r\nSET p13 1\r\n",
        "Host: x\r\nSET p13 1\r\n",
    ] {
        let mut client = shared().proxy.client();
        client.send(bytes.as_bytes());
        match client.read_patiently() {
            Got::Closed => {}
            other => panic!("{bytes:?} was answered: {other:?}"),
        }
    }
    assert_eq!(shared().proxy.client().run("EXISTS p13").text(), "0");
}

#[test]
fn p14_unknown_command_is_named_and_the_connection_stays() {
    let unknown = "-ERR unknown command 'FOO', with args beginning with: 'a' 'b' ";
    let mut client = shared().proxy.client();
    assert_eq!(answers(&mut client, &["FOO a b", "PING"]), [unknown, "PONG"]);
}

#[test]
fn p15_too_few_words_are_told_with_the_lower_case_name() {
    let mut client = shared().proxy.client();
    for (line, name) in [
        ("MGET", "mget"),
        ("MSET a 1 b", "mset"),
        ("MSET a", "mset"),
        ("DEL", "del"),
        ("EXISTS", "exists"),
        ("mset", "mset"),
        ("GeT", "get"),
        ("UNLINK", "unlink"),
        ("TOUCH", "touch"),
    ] {
        let expected = format!("-ERR wrong number of arguments for '{name}' command");
        assert_eq!(answers(&mut client, &[line, "PING"]), [expected, "PONG".into()], "{line}");
    }
}

#[test]
fn a19_client_with_tls_is_told_and_closed_at_once() {
    // Cut after the record's header: the rest of the handshake never comes.
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    let bench = shared();
    let mut stalled = Vec::new();
    for i in 0..200 {
        let mut client = bench.proxy.client();
        client.send(&hello[..if i % 2 == 0 { hello.len() } else { 2 }]);
        stalled.push(client);
    }
    for client in &mut stalled {
        assert_eq!(client.read().text(), "-ERR Protocol error: TLS on a port without it");
        client.expect_closed();
    }
    assert_eq!(bench.proxy.client().run("PING").text(), "PONG");
    bench.proxy.wait_log("TLS on a port without it");
}
