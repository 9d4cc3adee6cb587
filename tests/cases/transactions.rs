//! A6 to A8, C9: transactions.
//!
//! Not here: every reply text (`tests/conformance`).

use crate::bench::{answers, check_shared, flavour, keys_on_each, shared, with};
use crate::support::client::Client;
use crate::support::cluster::Cluster;
use crate::support::keys::key_of_slot;
use crate::support::proxy::Proxy;
use crate::support::reply::Reply;
use crate::support::{seconds, wait_until};

const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.";

#[test]
fn a6_commands_of_the_proxy_are_answered_at_exec_in_their_places() {
    let mut client = shared().proxy.client();
    check_shared(&[("DEL a6", "0")]);
    let lines = [
        "MULTI",
        "PING",
        "SET a6 1",
        "CLIENT SETNAME six",
        "CLIENT GETNAME",
        "SELECT 0",
        "INCR a6",
        "ECHO end",
        "EXEC",
        "CLIENT GETNAME",
        "DEL a6",
    ];
    let texts = answers(&mut client, &lines);
    assert_eq!(texts[0], "OK");
    assert!(texts[1..8].iter().all(|text| text == "QUEUED"), "{texts:?}");
    assert_eq!(texts[8], "[PONG, OK, OK, \"six\", OK, 2, \"end\"]");
    assert_eq!(&texts[9..], ["\"six\"", "1"]);
    let texts = answers(&mut client, &["MULTI", "PING", "CLIENT GETNAME", "EXEC"]);
    assert_eq!(texts[3], "[PONG, \"six\"]", "without a node");
}

#[test]
fn a6_exec_speaks_the_clients_protocol() {
    let mut client = shared().proxy.client_resp3();
    let lines = ["MULTI", "HSET {a6}h f v", "HGETALL {a6}h", "GET {a6}none", "DEL {a6}h", "EXEC"];
    let texts = answers(&mut client, &lines);
    assert_eq!(texts[5], "[1, {\"f\": \"v\"}, null, 1]");
}

#[test]
fn a7_wrong_uses_answer_what_the_server_answers() {
    check_shared(&[
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "OK"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("WATCH a7", "-ERR WATCH inside MULTI is not allowed"),
        ("EXEC", "[]"),
        ("MULTI", "OK"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("SET a7 1", "QUEUED"),
        ("EXEC", ABORTED),
        ("MULTI", "OK"),
        ("SET a7 1", "QUEUED"),
        ("DISCARD", "OK"),
        ("EXISTS a7", "0"),
        ("MULTI", "OK"),
        ("SHUTDOWN", "-ERR Command not allowed inside a transaction"),
        ("EXEC", ABORTED),
        ("MULTI", "OK"),
        ("SWAPDB 0 1", "-ERR SWAPDB is not allowed through this proxy"),
        ("EXEC", ABORTED),
        ("MULTI", "OK"),
        ("SET a7 1", "QUEUED"),
        ("RESET", "RESET"),
        ("EXEC", "-ERR EXEC without MULTI"),
        ("EXISTS a7", "0"),
    ]);
}

#[test]
fn a7_what_a_client_leaves_unfinished_is_nobody_elses() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    for _ in 0..5 {
        let mut leaving = proxy.client();
        answers(&mut leaving, &["MULTI", "SET a7-left 1", "INCR a7-left"]);
        drop(leaving);
        let mut next = proxy.client();
        assert_eq!(next.run("GET a7-left").text(), "nil");
        assert_eq!(next.run("EXEC").text(), "-ERR EXEC without MULTI");
    }
    assert_eq!(cluster.calls("multi"), 0, "nothing was sent before EXEC");
}

#[test]
fn a8_two_slots_are_refused_and_nothing_is_written() {
    let [one, two, _] = keys_on_each(&shared().cluster, "a8");
    let crossed = "-CROSSSLOT Keys in request don't hash to the same slot";
    check_shared(&[
        ("MULTI", "OK"),
        (&format!("SET {one} 1"), "QUEUED"),
        (&format!("SET {two} 1"), crossed),
        ("EXEC", ABORTED),
        ("MULTI", "OK"),
        (&format!("MSET {one} 1 {two} 1"), crossed),
        ("EXEC", ABORTED),
        (&format!("EXISTS {one} {two}"), "0"),
    ]);
}

#[test]
fn c9_transaction_on_a_slot_that_moved_is_done_at_its_new_owner() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("refresh-interval-ms", "3600000")]));
    let mut client = proxy.client();
    for round in 0..6 {
        let key = key_of_slot("c9", round);
        client.run(&format!("SET {key} 0"));
        cluster.migrate_slot(round, 0, 1 + usize::from(round % 2));
        let lines = ["MULTI", &format!("INCR {key}"), &format!("INCR {key}"), "EXEC"];
        let texts = answers(&mut client, &lines);
        assert_eq!(texts, ["OK", "QUEUED", "QUEUED", "[1, 2]"], "round {round}");
        let lines = ["MULTI", &format!("EVAL return(redis.call('incr',KEYS[1])) 1 {key}"), "EXEC"];
        assert_eq!(answers(&mut client, &lines)[2], "[3]");
    }
}

#[test]
fn c9_transaction_on_a_half_moved_slot_follows_its_keys() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("refresh-interval-ms", "3600000")]));
    let mut client = proxy.client();
    let tag = key_of_slot("c9", 100);
    let [moved, unmoved] = ["moved", "unmoved"].map(|name| format!("{{{tag}}}{name}"));
    client.run(&format!("MSET {moved} 1 {unmoved} 1"));
    cluster.open_migration(100, 0, 2);
    cluster.move_keys(0, 2, &[&moved]);
    for key in [&moved, &unmoved] {
        for wanted in ["[2]", "[3]"] {
            let texts = answers(&mut client, &["MULTI", &format!("INCR {key}"), "EXEC"]);
            assert_eq!(texts[2], wanted, "{key}");
        }
    }
    let lines = ["MULTI", &format!("INCR {moved}"), &format!("INCR {unmoved}"), "EXEC"];
    let text = answers(&mut client, &lines).remove(3);
    assert!(text.starts_with("-TRYAGAIN") || text == "[4, 4]", "keys on both sides: {text}");
    cluster.close_migration(100, 0, 2);
    let text = answers(&mut client, &lines).remove(3);
    assert!(text.starts_with('['), "after the move: {text}");
}

#[test]
fn watched_key_that_comes_into_being_at_the_other_node_makes_exec_answer_nil() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("refresh-interval-ms", "3600000")]));
    let (mut client, mut other) = (proxy.client(), proxy.client());
    let tag = key_of_slot("c9w", 100);
    let [watched, written] = ["watched", "written"].map(|name| format!("{{{tag}}}{name}"));
    assert_eq!(client.run(&format!("SET {written} before")).text(), "OK");
    assert_eq!(client.run(&format!("WATCH {watched}")).text(), "OK");
    cluster.open_migration(100, 0, 2);
    // Absent here, so it is written there: the guard at this node sees nothing of it.
    assert_eq!(other.run(&format!("SET {watched} x")).text(), "OK");
    let lines = ["MULTI", &format!("SET {written} after"), "EXEC"];
    assert_eq!(answers(&mut client, &lines), ["OK", "QUEUED", "nil-array"]);
    assert_eq!(other.run(&format!("GET {written}")).text(), "\"before\"");
    cluster.close_migration(100, 0, 2);
    client.run(&format!("WATCH {watched}"));
    assert_eq!(answers(&mut client, &lines), ["OK", "QUEUED", "[OK]"]);
}

#[test]
fn transactions_need_no_connections_of_their_own() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let connections = || -> u64 {
        let of = |node: &crate::support::cluster::Node| {
            node.info("stats", "total_connections_received").and_then(|n| n.parse::<u64>().ok())
        };
        // Asking takes one itself.
        cluster.nodes.iter().filter_map(of).sum::<u64>()
    };
    let before = connections();
    let port = proxy.port;
    let threads: Vec<_> =
        (0..20).map(|n| std::thread::spawn(move || hundred_transactions(port, n))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no transaction failed"));
    let opened = connections() - before;
    println!("{opened} connections at the nodes for 2,000 transactions of 20 clients");
    assert!(opened < 50, "{opened} connections for 2,000 transactions");
}

fn hundred_transactions(port: u16, number: usize) {
    let mut client = Client::connect(port);
    for round in 0..100 {
        let key = format!("pipe-{number}-{}", round % 10);
        let lines = ["MULTI", &format!("INCR {key}"), &format!("GET {key}"), "EXEC"];
        let replies = client.pipeline(&lines);
        let Reply::Array(values) = &replies[3] else { panic!("{}", replies[3].text()) };
        assert_eq!(values[0].integer(), round / 10 + 1);
    }
}

#[test]
fn scripts_in_transactions_stay_behind_the_fence() {
    let split = "return redis.error_reply('x\r\n$8\r\nINJECTED')";
    let mut hostile = shared().proxy.client();
    let mut victim = shared().proxy.client();
    for _ in 0..20 {
        hostile.call(&["MULTI"]);
        hostile.call(&["EVAL", split, "1", "fence-multi"]);
        let _ = hostile.call(&["EXEC"]);
        assert_eq!(victim.run("ECHO mine").text(), "\"mine\"");
        let texts = answers(&mut victim, &["MULTI", "EVAL return(7) 1 fence-multi", "EXEC"]);
        assert_eq!(texts[2], "[7]");
    }
}

#[test]
fn long_transaction_is_taken_whole() {
    let mut client = shared().proxy.client();
    let mut lines = vec!["MULTI".to_owned()];
    lines.extend((0..5_000).map(|i| format!("RPUSH long-multi {i}")));
    lines.extend(["EXEC", "LLEN long-multi", "DEL long-multi"].map(str::to_owned));
    let replies = client.pipeline(&lines);
    assert_eq!(replies[5_001].items().len(), 5_000);
    assert_eq!(replies[5_002].integer(), 5_000);
    wait_until(seconds(5), "the list to be gone", || {
        client.run("EXISTS long-multi").integer() == 0
    });
}

// --- WATCH -----------------------------------------------------------------------------------

#[test]
fn a7_watched_key_that_changes_makes_exec_answer_nil() {
    let proxy = &shared().proxy;
    for (mut client, nil) in [(proxy.client(), "nil-array"), (proxy.client_resp3(), "null")] {
        let mut other = proxy.client();
        other.run("SET watched 1");
        let lines = ["WATCH watched", "GET watched", "MULTI", "INCR watched", "EXEC"];
        assert_eq!(answers(&mut client, &lines)[4], "[2]", "nobody changed it");
        assert_eq!(answers(&mut client, &lines[..2]), ["OK", "\"2\""]);
        other.run("SET watched 10");
        assert_eq!(answers(&mut client, &lines[2..]), ["OK", "QUEUED", nil]);
        assert_eq!(answers(&mut client, &lines[2..]), ["OK", "QUEUED", "[11]"], "EXEC ends WATCH");
        for end in ["UNWATCH", "RESET"] {
            client.run("WATCH watched");
            other.run("SET watched 20");
            client.run(end);
            if end == "RESET" && nil == "null" {
                client.run("HELLO 3");
            }
            assert_eq!(answers(&mut client, &lines[2..])[2], "[21]", "after {end}");
        }
        client.run("WATCH watched");
        other.run("SET watched 30");
        assert_eq!(answers(&mut client, &["MULTI", "DISCARD"]), ["OK", "OK"]);
        assert_eq!(answers(&mut client, &lines[2..])[2], "[31]", "after DISCARD");
        other.run("DEL watched");
    }
}

#[test]
fn watched_keys_have_one_slot() {
    let [one, two, _] = keys_on_each(&shared().cluster, "watch");
    let crossed = "-CROSSSLOT Keys in request don't hash to the same slot";
    check_shared(&[
        (&format!("WATCH {one} {two}"), crossed),
        (&format!("WATCH {one}"), "OK"),
        (&format!("WATCH {two}"), crossed),
        (&format!("SET {two} 1"), "OK"),
        ("MULTI", "OK"),
        (&format!("INCR {two}"), crossed),
        ("EXEC", ABORTED),
        (&format!("DEL {two}"), "1"),
        (&format!("WATCH {one}"), "OK"),
        ("MULTI", "OK"),
        ("PING", "QUEUED"),
        ("EXEC", "[PONG]"),
    ]);
}

#[test]
fn exec_never_runs_without_its_guard() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    let key = key_of_slot("guard", 60);
    client.run(&format!("SET {key} 1"));
    let lines = ["MULTI", &format!("INCR {key}"), "EXEC"];
    // The connection that holds the guard is lost.
    client.run(&format!("WATCH {key}"));
    cluster.nodes[0].run("CLIENT KILL TYPE normal SKIPME yes");
    wait_until(seconds(5), "the node again", || !client.run(&format!("GET {key}")).is_error());
    assert_eq!(answers(&mut client, &lines)[2], "nil-array");
    assert_eq!(answers(&mut client, &lines)[2], "[2]", "without WATCH");
    // The slot moves.
    client.run(&format!("WATCH {key}"));
    cluster.migrate_slot(60, 0, 1);
    assert_eq!(answers(&mut client, &lines)[2], "nil-array");
    assert_eq!(client.run(&format!("GET {key}")).text(), "\"2\"");
    client.run(&format!("WATCH {key}"));
    assert_eq!(answers(&mut client, &lines)[2], "[3]", "at the new owner");
}

#[test]
fn watching_clients_take_turns_on_few_connections() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let of = |node: &crate::support::cluster::Node| {
        node.info("stats", "total_connections_received").and_then(|n| n.parse::<u64>().ok())
    };
    let connections = || cluster.nodes.iter().filter_map(of).sum::<u64>();
    let before = connections();
    let mut client = proxy.client();
    for round in 1..=200 {
        let lines = ["WATCH turns", "MULTI", "INCR turns", "EXEC"];
        assert_eq!(answers(&mut client, &lines)[3], format!("[{round}]"));
    }
    let opened = connections() - before;
    assert!(opened < 20, "{opened} connections for 200 watched transactions");
}
