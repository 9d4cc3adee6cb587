//! SELECT where the nodes have databases (`cluster-databases` of Valkey 9): each client's commands
//! go to its own, whatever way they take.
//!
//! Not here: nodes without databases (`session`).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::bench::{answers, keys_on_each, with};
use crate::support::client::{Client, Got, check};
use crate::support::cluster::{Cluster, Flavour, Node, Shape};
use crate::support::keys::slot;
use crate::support::proxy::Proxy;
use crate::support::{millis, seconds, wait_until};

/// Three primaries of Valkey 9 with eight databases; `None` where there is no such server.
fn start() -> Option<(Cluster, Proxy)> {
    start_with("8", &[])
}

fn start_with(databases: &str, options: &[(&str, &str)]) -> Option<(Cluster, Proxy)> {
    if Flavour::Valkey.program().is_none() {
        eprintln!("skipped: no valkey-server");
        return None;
    }
    let args = ["--cluster-databases", databases].map(Into::into).into();
    let cluster = Cluster::start(Shape { flavour: Flavour::Valkey, args, ..Shape::default() });
    let proxy = Proxy::start_with(&cluster, &with(options));
    Some((cluster, proxy))
}

fn in_database(proxy: &Proxy, number: u32) -> Client {
    let mut client = proxy.client();
    assert_eq!(client.run(&format!("SELECT {number}")).text(), "OK");
    client
}

/// All keys, sorted.
fn scan(client: &mut Client) -> Vec<String> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let step = client.run(&format!("SCAN {cursor} COUNT 1000")).items();
        cursor = step[0].string();
        keys.extend(step[1].items().iter().map(|key| key.string()));
        if cursor == "0" {
            keys.sort();
            return keys;
        }
    }
}

#[test]
fn clients_in_different_databases_do_not_meet() {
    let Some((cluster, proxy)) = start() else { return };
    let keys = keys_on_each(&cluster, "db");
    let mut clients: Vec<Client> = (0..4).map(|number| in_database(&proxy, number)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        for key in &keys {
            assert_eq!(client.run(&format!("SET {key} {number}")).text(), "OK");
        }
        let line = client.run("CLIENT INFO").string();
        assert!(line.contains(&format!(" db={number} ")), "{line}");
    }
    let all = keys.join(" ");
    for (number, client) in clients.iter_mut().enumerate() {
        let value = format!("\"{number}\"");
        let got = answers(client, &[&format!("GET {}", keys[0]), &format!("MGET {all}"), "DBSIZE"]);
        assert_eq!(got, [&value, &format!("[{value}, {value}, {value}]"), "3"]);
        let script = client.call(&["EVAL", "return redis.call('GET',KEYS[1])", "1", &keys[1]]);
        assert_eq!(script.string(), number.to_string());
        let scanned = scan(client);
        let mut sorted = keys.to_vec();
        sorted.sort();
        assert_eq!(scanned, sorted);
        let mut found: Vec<String> =
            client.run("KEYS *").items().iter().map(|key| key.string()).collect();
        found.sort();
        assert_eq!(found, sorted);
    }
    let info = clients[0].run("INFO keyspace").string();
    for number in 0..4 {
        assert!(info.contains(&format!("db{number}:keys=3,")), "{info}");
    }
    assert_eq!(clients[1].run("FLUSHDB").text(), "OK");
    let sizes: Vec<String> = clients.iter_mut().map(|client| client.run("DBSIZE").text()).collect();
    assert_eq!(sizes, ["3", "0", "3", "3"]);
    assert_eq!(clients[2].run(&format!("MOVE {} 1", keys[0])).text(), "1");
    assert_eq!(clients[1].run(&format!("GET {}", keys[0])).string(), "2");
    let copy = format!("COPY {0} {0} DB 5", keys[1]);
    assert_eq!(clients[2].run(&copy).text(), "1");
    assert_eq!(in_database(&proxy, 5).run(&format!("GET {}", keys[1])).string(), "2");
    assert_eq!(
        clients[2].run("SWAPDB 0 1").text(),
        "-ERR SWAPDB is not allowed through this proxy"
    );
}

#[test]
fn database_follows_the_client_through_every_kind_of_backend() {
    let Some((cluster, proxy)) = start() else { return };
    let [key, ..] = keys_on_each(&cluster, "kind");
    let (mut third, mut first) = (in_database(&proxy, 3), proxy.client());
    // A transaction, and one with a guard.
    let lines = ["MULTI", &format!("SET {key} t"), &format!("GET {key}"), "EXEC"];
    assert_eq!(answers(&mut third, &lines)[3], "[OK, \"t\"]");
    assert_eq!(first.run(&format!("GET {key}")).text(), "nil");
    let watch = format!("WATCH {key}");
    assert_eq!(third.run(&watch).text(), "OK");
    first.run(&format!("SET {key} elsewhere"));
    assert_eq!(answers(&mut third, &lines)[3], "[OK, \"t\"]", "the other database's key");
    assert_eq!(third.run(&watch).text(), "OK");
    in_database(&proxy, 3).run(&format!("SET {key} changed"));
    assert_eq!(answers(&mut third, &lines)[3], "nil-array");
    // What is watched in one database does not guard another.
    assert_eq!(third.run(&watch).text(), "OK");
    assert_eq!(third.run("SELECT 4").text(), "OK");
    assert_eq!(answers(&mut third, &lines)[3], "nil-array");
    assert_eq!(third.run("SELECT 3").text(), "OK");
    // Blocked there, not served from here.
    let list = format!("{{{key}}}list");
    third.send(format!("BLPOP {list} 0\r\n").as_bytes());
    wait_until(seconds(5), "it to block", || {
        cluster.nodes.iter().any(|node| node.info("clients", "blocked_clients") == Some("1".into()))
    });
    assert_eq!(first.run(&format!("RPUSH {list} wrong")).text(), "1");
    assert_eq!(third.read_within(millis(200)), Got::Nothing);
    assert_eq!(in_database(&proxy, 3).run(&format!("RPUSH {list} right")).text(), "1");
    assert!(third.read().text().ends_with("\"right\"]"));
    // RESP3, an unknown number, RESET in the middle of a pipeline.
    assert!(third.run("HELLO 3").text().contains("proto"));
    let got = answers(
        &mut third,
        &[
            &format!("GET {key}"),
            "SELECT 8",
            "SELECT 16",
            "SELECT -1",
            &format!("GET {key}"),
            "RESET",
            &format!("GET {key}"),
        ],
    );
    let out_of_range = "-ERR DB index is out of range";
    assert_eq!(
        got,
        [
            "\"changed\"",
            out_of_range,
            out_of_range,
            out_of_range,
            "\"changed\"",
            "RESET",
            "\"elsewhere\""
        ]
    );
}

/// Key events of another database come to whoever asks for its channels.
#[test]
fn key_events_of_a_database_are_heard() {
    let Some((cluster, proxy)) = start() else { return };
    for node in &cluster.nodes {
        node.run("CONFIG SET notify-keyspace-events KEA");
    }
    let mut listener = proxy.client();
    listener.run("PSUBSCRIBE __keyspace@2__:*");
    let keys = keys_on_each(&cluster, "event");
    let (mut second, mut first) = (in_database(&proxy, 2), proxy.client());
    for key in &keys {
        first.run(&format!("SET {key} v"));
        second.run(&format!("SET {key} v"));
        let got = listener.read().text();
        assert!(got.contains(&format!("\"__keyspace@2__:{key}\", \"set\"")), "{got}");
    }
    assert_eq!(listener.read_within(millis(200)), Got::Nothing);
}

/// Many clients go from database to database; each finds its own value, also while slots move.
#[test]
fn values_keep_to_their_database_under_load() {
    let Some((cluster, proxy)) = start() else { return };
    let keys = keys_on_each(&cluster, "load");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|worker: u8| {
                let (mut client, keys, stop) = (proxy.client(), &keys, &stop);
                scope.spawn(move || {
                    let mut rounds = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let number = (usize::from(worker) + rounds) % 8;
                        let key = format!("{{{}}}{worker}", keys[rounds % 3]);
                        let got = answers(
                            &mut client,
                            &[
                                &format!("SELECT {number}"),
                                &format!("SET {key} {number}"),
                                &format!("GET {key}"),
                                &format!("SELECT {}", (number + 1) % 8),
                                &format!("DEL {key}"),
                                &format!("SELECT {number}"),
                                &format!("GET {key}"),
                            ],
                        );
                        let value = format!("\"{number}\"");
                        assert_eq!((&got[2], &got[6]), (&value, &value), "{got:?}");
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        // Empty ones: what matters is that the map changes under way.
        let (first, _) = cluster.range(0).expect("slots");
        let used = slot(keys[0].as_bytes());
        for moved in (first..first + 20).filter(|&moved| moved != used) {
            cluster.migrate_slot(moved, 0, 1);
        }
        std::thread::sleep(seconds(1));
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().expect("no wrong value") > 10);
        }
    });
    // Connections stay few: one for each node, database in use and version, and those that asked.
    wait_until(seconds(5), "few connections", || {
        let connections = cluster.nodes[2].info("clients", "connected_clients").expect("it");
        connections.parse::<u32>().expect("a number") < 30
    });
    check(&mut proxy.client(), &[("PING", "PONG")]);
}

/// Any number that the nodes have; so many at a time as `databases_max` says.
#[test]
fn databases_of_any_number_have_their_own_data_and_as_many_as_allowed_are_in_use() {
    let Some((cluster, proxy)) = start_with("500", &[("databases-max", "3")]) else { return };
    let keys = keys_on_each(&cluster, "any");
    let mset = |value: &str| {
        keys.iter().fold("MSET".to_owned(), |line, key| format!("{line} {key} {value}"))
    };
    let mget = format!("MGET {}", keys.join(" "));
    let told = || answers(&mut proxy.client(), &["CONFIG GET databases"])[0].clone();
    wait_until(seconds(5), "their number", || told() == "[\"databases\", \"500\"]");
    assert!(proxy.client().run("INFO ringway").string().contains("databases:500\r\n"));
    let mut last = in_database(&proxy, 499);
    assert_eq!(last.run(&mset("last")).text(), "OK");
    assert!(last.run("CLIENT INFO").string().contains(" db=499 "));
    assert_eq!(last.run("SELECT 500").text(), "-ERR DB index is out of range");
    let mut moving = in_database(&proxy, 300);
    assert_eq!(moving.run(&mset("300")).text(), "OK");
    let full = "-ERR too many databases are in use through this proxy (databases_max)";
    let mut third = proxy.client();
    assert_eq!(third.run("SELECT 20").text(), full);
    assert_eq!(third.run(&mget).text(), "[nil, nil, nil]", "it stays where it was");
    // Who moves on takes nobody's place, and nothing of the old database with it.
    for number in [20, 21, 300, 20] {
        assert_eq!(moving.run(&format!("SELECT {number}")).text(), "OK");
        let value = if number == 300 { "[\"300\", \"300\", \"300\"]" } else { "[nil, nil, nil]" };
        assert_eq!(moving.run(&mget).text(), value, "in {number}");
        let script = moving.call(&["EVAL", "return redis.call('GET',KEYS[1])", "1", &keys[1]]);
        assert_eq!(script.text() == "nil", number != 300);
        assert_eq!(last.run(&mget).text(), "[\"last\", \"last\", \"last\"]");
    }
    assert_eq!(third.run("SELECT 20").text(), "OK", "it is in use already");
    assert_eq!(third.run("SELECT 21").text(), full);
    drop(moving);
    wait_until(seconds(5), "a free place", || third.run("SELECT 21").text() == "OK");
    drop(last);
    // Connections for so many databases, and no more.
    for number in 30..60 {
        assert_eq!(third.run(&format!("SELECT {number}")).text(), "OK");
        assert_eq!(third.run(&mset("x")).text(), "OK");
    }
    let few = |node: &Node| {
        let count = node.info("clients", "connected_clients").unwrap_or_default();
        count.parse::<u64>().is_ok_and(|count| count < 14)
    };
    wait_until(seconds(5), "few connections", || cluster.nodes.iter().all(few));
    if std::env::var("RINGWAY_LONG").is_err() {
        return;
    }
    // What has had nothing to do for a minute is closed, and made again when it is wanted.
    let none = |node: &Node| !node.run("CLIENT LIST").string().contains(" db=59 ");
    wait_until(seconds(75), "the unused to be closed", || cluster.nodes.iter().all(none));
    assert_eq!(third.run(&mget).text(), "[\"x\", \"x\", \"x\"]");
}
