//! The program: mistakes in its configuration, more than one pool, limits on clients, idle memory.
//!
//! Not here: what each option accepts (unit tests of `config`).

use std::collections::VecDeque;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::bench::{answers, flavour, shared, with};
use crate::load::{latencies, p99};
use crate::support::client::Client;
use crate::support::cluster::Cluster;
use crate::support::ports::free_port;
use crate::support::proxy::{Proxy, Settings, program};
use crate::support::{goal, millis, patience, seconds, wait_until};

/// Exit code, stdout and stderr.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new("timeout");
    command.args(["10"]).arg(program()).args(args).stdin(Stdio::null());
    let output = command.output().expect("the program");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn all_mistakes_are_told_at_once() {
    let (code, _, said) =
        run(&["--listen", "nowhere", "--reactors", "x", "--nonsense", "1", "--node", "portless"]);
    assert!(matches!(code, Some(1 | 2)), "exit code {code:?}");
    for part in ["nowhere", "--reactors", "nonsense", "portless"] {
        assert!(said.contains(part), "no word of {part:?} in:\n{said}");
    }
}

#[test]
fn help_and_version_are_answered() {
    let (code, text, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for part in ["--listen", "--node", "--reactors", "--config"] {
        assert!(text.contains(part), "no {part} in the help:\n{text}");
    }
    let (code, text, _) = run(&["--version"]);
    assert_eq!(code, Some(0));
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
}

#[test]
fn taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let (code, _, said) = run(&["--listen", &address, "--node", "127.0.0.1:1", "--reactors", "1"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&address), "{said}");
}

#[test]
fn unreachable_cluster_is_an_error_and_heals_when_it_comes() {
    let cluster = Cluster::three(flavour());
    let hidden = free_port();
    let addresses = [format!("127.0.0.1:{hidden}"), cluster.nodes[0].address()];
    cluster.nodes.iter().for_each(|node| node.process.stop());
    let mut proxy = Proxy::start_at(
        &addresses,
        &with(&[("request-timeout-ms", "1000"), ("connect-timeout-ms", "500")]),
    );
    let mut client = proxy.client();
    let texts = answers(&mut client, &["PING", "GET x", "PING"]);
    assert_eq!((texts[0].as_str(), texts[2].as_str()), ("PONG", "PONG"));
    assert!(texts[1].starts_with('-'), "{texts:?}");
    cluster.nodes.iter().for_each(|node| node.process.resume());
    cluster.wait_whole();
    wait_until(seconds(10), "the proxy to find the cluster", || {
        client.run("GET x").text() == "nil"
    });
    proxy.expect_alive();
}

#[test]
fn two_pools_serve_two_clusters() {
    let (one, two) = (&shared().cluster, Cluster::three(flavour()));
    let second = free_port();
    let text = format!(
        "[[pool]]\nname = \"one\"\n\n[[pool]]\nname = \"two\"\nlisten = \"127.0.0.1:{second}\"\nnodes = {:?}\n",
        [two.nodes[0].address()]
    );
    let proxy = Proxy::start_at(&[one.nodes[0].address()], &Settings::config(&text));
    let (mut first, mut other) = (proxy.client(), Client::connect(second));
    wait_until(seconds(10), "both pools", || {
        first.run("SET pools 1").text() == "OK" && other.run("SET pools 2").text() == "OK"
    });
    assert_eq!(first.run("GET pools").text(), "\"1\"");
    assert_eq!(other.run("GET pools").text(), "\"2\"");
    first.run("DEL pools");
}

#[test]
fn a21_client_over_the_limit_gets_one_error_and_a_close() {
    let proxy = Proxy::start_with(&shared().cluster, &with(&[("maxclients", "20")]));
    let mut clients = vec![proxy.only_client()];
    let mut refused = 0;
    for _ in 1..120 {
        let mut client = proxy.client();
        match client.try_call(&["PING"]) {
            Ok(reply) if reply.text() == "PONG" => clients.push(client),
            Ok(reply) => {
                assert_eq!(reply.text(), "-ERR max number of clients reached");
                refused += 1;
            }
            // A close may overtake the error when our PING arrives after it.
            Err(_) => refused += 1,
        }
    }
    assert_eq!((clients.len(), refused), (20, 100));
    assert_eq!(clients[0].run("GET limit").text(), "nil");
    clients.truncate(10);
    wait_until(seconds(5), "room for others again", || {
        proxy.client().try_call(&["PING"]).is_ok_and(|reply| reply.text() == "PONG")
    });
}

/// The figure of DESIGN 5: an idle client costs well under 1 KiB.
#[test]
fn ten_thousand_idle_clients_cost_under_a_kibibyte_each() {
    let mut proxy = Proxy::start_with(&shared().cluster, &with(&[("maxclients", "12000")]));
    let key = "idle";
    assert_eq!(proxy.client().run(&format!("GET {key}")).text(), "nil");
    std::thread::sleep(millis(200));
    let before = proxy.process.resident_kib();
    let mut clients = Vec::new();
    for i in 0..10_000 {
        let mut client = proxy.client();
        if i % 10 == 0 {
            assert_eq!(client.run(&format!("GET {key}")).text(), "nil");
        }
        clients.push(client);
    }
    assert_eq!(clients[9_999].run("PING").text(), "PONG");
    let each = proxy.process.resident_kib().saturating_sub(before) * 1024 / 10_000;
    println!("{each} bytes for each idle client");
    assert!(each <= 1024, "{each} bytes for each idle client");
    proxy.expect_alive();
}

#[test]
fn a21_flood_of_new_clients_leaves_a_steady_one_unharmed() {
    let proxy = Proxy::start_with(&shared().cluster, &with(&[("maxclients", "50")]));
    let port = proxy.port;
    let quiet = p99(&latencies(port, "a21", millis(500)));
    let (over, came) = (AtomicBool::new(false), AtomicU64::new(0));
    let (steady, flood) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let (mut count, mut kept) = (0_u64, VecDeque::new());
            let start = Instant::now();
            while !over.load(Ordering::Relaxed) {
                // 5,000 in a second.
                if u128::from(count) > start.elapsed().as_millis() * 5 {
                    std::thread::sleep(millis(1));
                    continue;
                }
                kept.extend(TcpStream::connect(("127.0.0.1", port)));
                count += 1;
                came.store(count, Ordering::Relaxed);
                // More are open than may be: the proxy refuses most of them.
                while kept.len() > 200 {
                    kept.pop_front();
                }
            }
            count
        });
        let mut steady = latencies(port, "a21", seconds(2));
        let late = Instant::now() + patience(seconds(2));
        while came.load(Ordering::Relaxed) <= 1_000 && Instant::now() < late {
            steady.extend(latencies(port, "a21", millis(500)));
        }
        steady.sort();
        let steady = p99(&steady);
        over.store(true, Ordering::Relaxed);
        (steady, flood.join().expect("the flood"))
    });
    println!("p99 {quiet:?}, beside {flood} new clients {steady:?}");
    assert!(flood > 1_000, "only {flood} clients came");
    assert!(steady < goal(millis(100)).max(quiet * 20), "p99 rose from {quiet:?} to {steady:?}");
}
