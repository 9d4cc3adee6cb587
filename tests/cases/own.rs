//! PROXY: what is asked of the proxy itself, and of single nodes by the one user who may.
//!
//! Not here: what INFO and CONFIG say of the proxy (`session`).

use crate::bench::{answers, check_shared, flavour, keys_on_each, shared};
use crate::support::client::{Client, check};
use crate::support::cluster::Cluster;
use crate::support::proxy::{Proxy, Settings};
use crate::support::{seconds, wait_until};

/// Clients log in as `default`, and `root` is the admin.
const USERS: &str = "[[pool]]\nadmin_user = \"root\"\n[[pool.user]]\nname = \"root\"\npassword = \
                     \"r\"\n[[pool.user]]\nname = \"other\"\npassword = \"o\"\n";

fn start() -> (Cluster, Proxy) {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_at(&[cluster.nodes[0].address()], &Settings::config(USERS));
    (cluster, proxy)
}

fn logged_in(proxy: &Proxy, user: &str) -> Client {
    let mut client = proxy.client();
    let reply = client.run(&format!("AUTH {user} {}", &user[..1])).text();
    assert_eq!(reply, "OK");
    client
}

/// Waits until there is a map.
fn admin(proxy: &Proxy) -> Client {
    let mut client = logged_in(proxy, "root");
    wait_until(seconds(10), "all nodes to be known", || client.run("PROXY PING").text() == "PONG");
    client
}

#[test]
fn proxy_tells_of_itself_and_asks_every_primary() {
    check_shared(&[
        ("PROXY PING", "PONG"),
        ("proxy ping", "PONG"),
        ("PROXY", "-ERR wrong number of arguments for 'proxy' command"),
        ("PROXY PING x", "-ERR wrong number of arguments for 'proxy|ping' command"),
        ("PROXY NODE x", "-ERR wrong number of arguments for 'proxy|node' command"),
        ("PROXY NOPE", "-ERR unknown subcommand 'NOPE'. Try PROXY HELP."),
        ("PROXY NODES", "-NOPERM User default has no permissions to run the 'proxy|nodes' command"),
        (
            "PROXY NODE x PING",
            "-NOPERM User default has no permissions to run the 'proxy|node' command",
        ),
        ("MULTI", "OK"),
        ("PROXY PING", "-ERR Command not allowed inside a transaction"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
    ]);
    let help = shared().proxy.client().run("PROXY HELP").items();
    assert!(help.iter().any(|line| line.text().starts_with("NODE ")), "{help:?}");
    let got = answers(&mut shared().proxy.client(), &["SET own:x 1", "PROXY PING", "GET own:x"]);
    assert_eq!(got, ["OK", "PONG", "\"1\""]);
}

#[test]
fn ping_fails_when_a_primary_does() {
    let (mut cluster, proxy) = start();
    let mut client = admin(&proxy);
    cluster.nodes[1].process.kill();
    let said = client.run("PROXY PING").text();
    assert!(said.starts_with("-ERR") || said.starts_with("-CLUSTERDOWN"), "{said}");
}

#[test]
fn admin_addresses_one_node() {
    let (cluster, proxy) = start();
    let mut client = admin(&proxy);
    let lines = client.run("PROXY NODES").string();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    let keys = keys_on_each(&cluster, "own");
    for (node, key) in cluster.nodes.iter().zip(&keys) {
        let id = node.run("CLUSTER MYID").string();
        let line = lines.lines().find(|line| line.contains(&id)).expect("its line");
        assert!(line.contains(&node.address()) && line.contains("role=primary"), "{line}");
        for name in [&id, &node.address()] {
            let own = client.run(&format!("PROXY NODE {name} CLUSTER MYID")).string();
            assert_eq!(&own, &id);
        }
        // Whatever the proxy refuses else, and a write where it belongs.
        let set = format!("PROXY NODE {id} CONFIG SET slowlog-max-len 77");
        assert_eq!(client.run(&set).text(), "OK");
        assert_eq!(node.run("CONFIG GET slowlog-max-len").items()[1].string(), "77");
        assert_eq!(client.run(&format!("PROXY NODE {id} SET {key} v")).text(), "OK");
        assert_eq!(client.run(&format!("GET {key}")).string(), "v");
    }
    // A redirect is shown, not followed.
    let (first, second) = (cluster.nodes[0].address(), &keys[1]);
    let moved = client.run(&format!("PROXY NODE {first} GET {second}")).text();
    assert!(moved.starts_with("-MOVED "), "{moved}");
    check(
        &mut client,
        &[
            ("PROXY NODE 127.0.0.1:1 PING", "-ERR No such node, see PROXY NODES"),
            (&format!("PROXY NODE {first} ECHO x"), "\"x\""),
            (
                &format!("PROXY NODE {first} SUBSCRIBE x"),
                "-ERR SUBSCRIBE is not allowed through this proxy",
            ),
            (
                &format!("PROXY NODE {first} client reply off"),
                "-ERR CLIENT is not allowed through this proxy",
            ),
            (
                &format!("PROXY NODE {first} BLPOP x 0"),
                "-ERR BLPOP is not allowed through this proxy",
            ),
        ],
    );
    let in_order = [
        "SET own:a 1".to_owned(),
        format!("PROXY NODE {first} PING"),
        "GET own:a".to_owned(),
        format!("PROXY NODE {first} EVAL return{{1,2}} 0"),
    ];
    let got: Vec<String> = client.pipeline(&in_order).iter().map(|reply| reply.text()).collect();
    assert_eq!(got, ["OK", "PONG", "\"1\"", "[1, 2]"]);
}

/// Nothing of it is left in a connection that others use.
#[test]
fn state_of_an_admins_connection_ends_with_its_command() {
    let (cluster, proxy) = start();
    let mut client = admin(&proxy);
    let first = cluster.nodes[0].address();
    let before = client.run(&format!("PROXY NODE {first} CLIENT ID")).integer();
    assert_eq!(client.run(&format!("PROXY NODE {first} CLIENT SETNAME mine")).text(), "OK");
    // The node sees the end of that connection a moment later.
    wait_until(seconds(5), "the named connection to be gone", || {
        !cluster.nodes[0].run("CLIENT LIST").string().contains("name=mine")
    });
    let after = client.run(&format!("PROXY NODE {first} CLIENT ID")).integer();
    assert!(after > before);
    // One that ends the connection is not repeated, and nobody else notices.
    let killed = client.run(&format!("PROXY NODE {first} QUIT")).text();
    assert_eq!(killed, "OK");
    assert_eq!(client.run(&format!("PROXY NODE {first} PING")).text(), "PONG");
}

#[test]
fn other_users_are_turned_away() {
    let (cluster, proxy) = start();
    admin(&proxy);
    let mut client = logged_in(&proxy, "other");
    let line = format!("PROXY NODE {} FLUSHALL", cluster.nodes[0].address());
    let reply = client.run(&line).text();
    assert_eq!(reply, "-NOPERM User other has no permissions to run the 'proxy|node' command");
    let reply = proxy.client().run(&line).text();
    assert_eq!(reply, "-NOAUTH Authentication required.");
}

#[test]
fn nodes_tell_of_themselves_as_one() {
    // Of its own: what is told is of an earlier moment, and only here nothing has changed since.
    let (cluster, proxy) = start();
    let mut client = admin(&proxy);
    let mut told = String::new();
    wait_until(seconds(10), "all nodes to be told of", || {
        told = client.run("INFO nodes").string();
        told.starts_with("# Nodes\r\nnodes_primaries:3\r\n")
    });
    let sum = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(&format!("nodes_{name}:")));
        line.expect(name).parse::<u64>().expect("a number")
    };
    let least: u64 = cluster
        .nodes
        .iter()
        .map(|node| node.info("stats", "total_connections_received").expect("it").parse::<u64>())
        .map(|count| count.expect("a number"))
        .min()
        .unwrap_or_default();
    // All three have been connected to; the sum is of an earlier moment, and of more than one.
    assert!(sum("total_connections_received") > least, "{told}");
    assert!(sum("used_memory") > 1_000_000 && sum("connected_clients") >= 3, "{told}");
}

#[test]
fn script_is_shown_from_what_is_kept() {
    let mut client = shared().proxy.client();
    let name = client.call(&["SCRIPT", "LOAD", "return 'shown'"]).string();
    assert_eq!(client.run(&format!("SCRIPT SHOW {name}")).string(), "return 'shown'");
    assert_eq!(
        client.run(&format!("script show {}", name.to_uppercase())).string(),
        "return 'shown'"
    );
    assert!(client.run(&format!("SCRIPT SHOW {}", "0".repeat(40))).is_error());
}

#[test]
fn looks_into_one_key_are_answered_and_into_a_server_refused() {
    let mut client = shared().proxy.client();
    client.run("SET own:key 12345");
    assert!(client.run("MEMORY USAGE own:key").integer() > 8);
    assert!(client.run("MEMORY USAGE own:key SAMPLES 0").integer() > 8);
    check(
        &mut client,
        &[
            ("OBJECT ENCODING own:key", "\"int\""),
            ("OBJECT REFCOUNT own:none", "nil"),
            ("MEMORY USAGE own:none", "nil"),
            ("MEMORY DOCTOR", "-ERR MEMORY DOCTOR is not allowed through this proxy"),
            ("DEBUG SLEEP 0", "-ERR DEBUG is not allowed through this proxy"),
            ("DEBUG OBJECT own:key", "-ERR DEBUG is not allowed through this proxy"),
        ],
    );
    assert!(client.run("OBJECT HELP").items().len() > 3);
    assert!(client.run("OBJECT IDLETIME own:key").integer() < 60);
}
