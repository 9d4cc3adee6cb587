//! A1, and passwords on both sides.
//!
//! Not here: what happens when no password is set (`tests/conformance`).

use crate::bench::flavour;
use crate::support::client::{Client, check};
use crate::support::cluster::{Cluster, Shape};
use crate::support::proxy::{Proxy, Settings};
use crate::support::reply::Reply;

const NOAUTH: &str = "-NOAUTH Authentication required.";
const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.";

/// Nodes want `secret`, clients of the proxy want `front`, or log in as `app`.
fn guarded() -> (Cluster, Proxy) {
    let args = ["--requirepass", "secret", "--masterauth", "secret"].map(Into::into).into();
    let shape =
        Shape { flavour: flavour(), args, password: Some("secret".into()), ..Shape::default() };
    let cluster = Cluster::start(shape);
    let text = "[[pool]]\npassword = \"front\"\nnode_password = \"secret\"\n\
                [[pool.user]]\nname = \"app\"\npassword = \"pw\"\n";
    let nodes: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    let proxy = Proxy::start_at(&nodes, &Settings::config(text));
    (cluster, proxy)
}

#[test]
fn a1_nothing_runs_before_login_and_all_forms_of_it_work() {
    let (cluster, proxy) = guarded();
    let key = cluster.key_on(0, "a1");
    let mut client = proxy.client();
    check(
        &mut client,
        &[
            (&format!("GET {key}"), NOAUTH),
            ("PING", NOAUTH),
            ("CLIENT ID", NOAUTH),
            ("AUTH wrong", WRONGPASS),
            ("AUTH nobody pw", WRONGPASS),
            ("AUTH app wrong", WRONGPASS),
            (&format!("GET {key}"), NOAUTH),
        ],
    );
    let hello = client.run("HELLO 3").text();
    assert!(
        hello.starts_with("-NOAUTH HELLO must be called with the client already authenticated"),
        "{hello}"
    );
    check(
        &mut client,
        &[
            ("AUTH front", "OK"),
            (&format!("SET {key} v"), "OK"),
            ("AUTH default front", "OK"),
            ("AUTH app pw", "OK"),
            (&format!("GET {key}"), "\"v\""),
            ("AUTH app wrong", WRONGPASS),
            (&format!("GET {key}"), "\"v\""),
        ],
    );
    let mut client = proxy.client();
    let hello = client.run("HELLO 3 AUTH app pw SETNAME me");
    assert!(matches!(hello, Reply::Map(_)), "{}", hello.text());
    check(&mut client, &[("CLIENT GETNAME", "\"me\""), (&format!("GET {key}"), "\"v\"")]);
    let mut client = proxy.client();
    check(&mut client, &[("HELLO 3 AUTH app wrong", WRONGPASS), ("PING", NOAUTH)]);
    check(&mut client, &[("AUTH app pw", "OK"), ("RESET", "RESET"), ("PING", NOAUTH)]);
}

#[test]
fn stranger_cannot_send_large_requests() {
    let (_cluster, proxy) = guarded();
    for (bytes, text) in [
        ("*11\r\n", "unauthenticated multibulk length"),
        ("*2\r\n$3\r\nGET\r\n$16385\r\n", "unauthenticated bulk length"),
    ] {
        let mut client = proxy.client();
        client.send(bytes.as_bytes());
        assert_eq!(client.read().text(), format!("-ERR Protocol error: {text}"));
        client.expect_closed();
    }
    let mut client = proxy.client();
    check(&mut client, &[("QUIT", "OK")]);
}

#[test]
fn wrong_password_for_the_nodes_is_an_error_and_not_a_hang() {
    let (cluster, _) = guarded();
    let nodes: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    let text = "[[pool]]\nnode_password = \"canary-secret\"\nrequest_timeout_ms = 1000\n";
    let mut proxy = Proxy::start_at(&nodes, &Settings::config(text));
    let mut client: Client = proxy.client();
    assert_eq!(client.run("PING").text(), "PONG");
    let reply = client.run("GET x");
    assert!(reply.is_error(), "{}", reply.text());
    proxy.expect_alive();
    assert!(!proxy.log().contains("canary-secret"), "a secret was logged:\n{}", proxy.log());
}
