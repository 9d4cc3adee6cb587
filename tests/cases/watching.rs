//! SLOWLOG and MONITOR: the proxy's own, over all its reactors.
//!
//! Not here: LATENCY and HOTKEYS, of which it records nothing (`session`).

use std::time::Duration;

use crate::bench::{answers, flavour, shared, with};
use crate::support::client::{Client, Got, PATIENCE, check, request};
use crate::support::cluster::{Cluster, Shape};
use crate::support::proxy::{Proxy, Settings};
use crate::support::reply::Reply;
use crate::support::{millis, patience, seconds, wait_until};

fn start(settings: &Settings) -> (Cluster, Proxy) {
    let args = ["--enable-debug-command", "yes"].map(Into::into).into();
    let cluster = Cluster::start(Shape { flavour: flavour(), args, ..Shape::default() });
    let proxy = Proxy::start_with(&cluster, settings);
    (cluster, proxy)
}

/// What is slow here, and how long the node of what is to be slow stands still.
const SLOW_US: i64 = 500_000;
const OPTION: &str = "slowlog-log-slower-than";
const STILL: Duration = Duration::from_millis(700);

/// Asks with the second node standing still, so that what is asked of it is slow however long the
/// machine takes for anything else.
fn ask_slowly(cluster: &Cluster, proxy: &Proxy, client: &mut Client, requests: &[Vec<u8>]) {
    cluster.nodes[1].process.stop();
    client.send(&requests.concat());
    proxy.wait_in_flight();
    std::thread::sleep(STILL);
    cluster.nodes[1].process.resume();
    requests.iter().for_each(|_| drop(client.read()));
}

fn client_on(proxy: &Proxy, reactor: i64, reactors: i64) -> Client {
    for _ in 0..1_000 {
        let mut client = proxy.client();
        if (client.run("CLIENT ID").integer() - 1) % reactors == reactor {
            return client;
        }
    }
    panic!("no client on reactor {reactor}");
}

fn words(entry: &Reply) -> Vec<String> {
    entry.items()[3].items().iter().map(|word| word.string()).collect()
}

#[test]
fn slow_requests_of_all_reactors_are_in_the_log() {
    let slow_us = SLOW_US.to_string();
    let settings = with(&[
        ("reactors", "2"),
        ("slowlog-log-slower-than", &slow_us),
        ("request-timeout-ms", "60000"),
    ]);
    let (cluster, proxy) = start(&settings);
    let key = cluster.key_on(1, "slow");
    let quick = cluster.key_on(0, "quick");
    let mut asking = proxy.client();
    check(&mut asking, &[("SLOWLOG RESET", "OK"), ("SLOWLOG LEN", "0"), ("SLOWLOG GET", "[]")]);
    for reactor in 0..2 {
        let mut client = client_on(&proxy, reactor, 2);
        client.run(&format!("CLIENT SETNAME from{reactor}"));
        client.run(&format!("GET {key}"));
        let long = "x".repeat(200);
        ask_slowly(&cluster, &proxy, &mut client, &[request(&["SET", &key, &long])]);
        client.run(&format!("GET {quick}"));
        let entries = asking.run("SLOWLOG GET").items();
        assert_eq!(entries.len() as i64, reactor + 1, "{entries:?}");
        assert_eq!(entries[0].items().len(), 6);
        let clipped = format!("{}... (72 more bytes)", "x".repeat(128));
        assert_eq!(words(&entries[0]), ["SET", &key, &clipped]);
        let duration = entries[0].items()[2].integer();
        assert!(duration >= SLOW_US, "{duration}");
        let address = client.stream().local_addr().expect("an address").to_string();
        assert_eq!(entries[0].items()[4].string(), address);
        assert_eq!(entries[0].items()[5].string(), format!("from{reactor}"));
    }
    // What was cut is there by its slow part, a transaction and a script as they are.
    let mut client = proxy.client();
    ask_slowly(&cluster, &proxy, &mut client, &[request(&["MGET", &quick, &key])]);
    assert_eq!(words(&asking.run("SLOWLOG GET 1").items()[0]), ["MGET", &key]);
    let multi = [request(&["MULTI"]), request(&["GET", &key]), request(&["EXEC"])];
    ask_slowly(&cluster, &proxy, &mut client, &multi);
    assert_eq!(words(&asking.run("SLOWLOG GET 1").items()[0]), ["EXEC"]);
    // What waits because it was told to is not slow.
    assert_eq!(client.run(&format!("BLPOP {{{key}}}none 0.7")).text(), "nil-array");
    let ids: Vec<i64> =
        asking.run("SLOWLOG GET -1").items().iter().map(|slow| slow.items()[0].integer()).collect();
    assert_eq!(ids.len(), 4);
    let mut once = ids.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), 4, "{ids:?}");
    let latest = asking.run("LATENCY LATEST").items()[0].items();
    assert_eq!(latest[0].string(), "command");
    assert!(
        latest[2].integer() >= SLOW_US / 1_000 && latest[3].integer() >= latest[2].integer(),
        "{latest:?}"
    );
    assert!(asking.run("LATENCY HISTORY command").items().len() > 1);
    assert!(asking.run("LATENCY GRAPH command").string().starts_with("command - high "));
    assert_eq!(answers(&mut asking, &["LATENCY RESET", "LATENCY LATEST"]), ["1", "[]"]);
    check(
        &mut asking,
        &[
            ("SLOWLOG LEN", "4"),
            ("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1"),
            ("SLOWLOG GET 0", "[]"),
            ("COMMANDLOG LEN slow", "4"),
            ("LATENCY HISTORY nothing", "[]"),
            ("COMMANDLOG LEN large-reply", "0"),
            ("CONFIG GET slowlog-log-slower-than", &format!("[\"{OPTION}\", \"{SLOW_US}\"]")),
            ("SLOWLOG RESET", "OK"),
            ("SLOWLOG LEN", "0"),
        ],
    );
}

#[test]
fn slow_log_keeps_to_its_length() {
    let pairs = [("slowlog-log-slower-than", "1000"), ("slowlog-max-len", "2"), ("reactors", "2")];
    let (cluster, proxy) = start(&with(&pairs));
    let key = cluster.key_on(1, "many");
    let mut client = proxy.client();
    let sets: Vec<Vec<u8>> = (0..9).map(|n| request(&["SET", &key, &n.to_string()])).collect();
    ask_slowly(&cluster, &proxy, &mut client, &sets);
    assert_eq!(client.run("SLOWLOG LEN").text(), "2");
    assert_eq!(words(&client.run("SLOWLOG GET").items()[0]), ["SET", &key, "8"]);
    let (_cluster, none) = start(&with(&[("slowlog-max-len", "0")]));
    assert_eq!(none.client().run("SLOWLOG LEN").text(), "0");
}

// --- MONITOR ---------------------------------------------------------------------------------

fn watched(settings: &[(&str, &str)]) -> (Cluster, Proxy) {
    let mut pairs = vec![("reactors", "2"), ("admin-user", "default")];
    pairs.extend_from_slice(settings);
    start(&with(&pairs))
}

fn line(client: &mut Client) -> String {
    match client.read_patiently() {
        // Not as `text`, which would quote it once more.
        Got::Reply(reply) => reply.string(),
        Got::Closed => "closed".into(),
        Got::Nothing => "nothing".into(),
    }
}

/// Waits until the monitor is shown what clients of all reactors ask, and was shown all so far.
fn wait_watched(monitor: &mut Client, of_each_reactor: &mut [Client]) {
    for (n, client) in of_each_reactor.iter_mut().enumerate() {
        wait_until(seconds(5), "its reactor to tell the monitor", || {
            client.run(&format!("ECHO known{n}"));
            matches!(monitor.read_within(millis(100)), Got::Reply(line)
                if line.string().contains(&format!("\"known{n}\"")))
        });
    }
    // Each reactor's lines come in their order.
    let mut ends: Vec<String> = (0..of_each_reactor.len()).map(|n| format!("\"end{n}\"")).collect();
    for (n, client) in of_each_reactor.iter_mut().enumerate() {
        client.run(&format!("ECHO end{n}"));
    }
    while !ends.is_empty() {
        let shown = line(monitor);
        assert!(shown.contains("\"ECHO\""), "{shown}");
        ends.retain(|end| !shown.contains(end));
    }
}

#[test]
fn monitor_shows_what_clients_of_all_reactors_ask() {
    let (_cluster, proxy) = watched(&[]);
    let mut monitor = client_on(&proxy, 0, 2);
    let mut known: Vec<Client> = (0..2).map(|reactor| client_on(&proxy, reactor, 2)).collect();
    assert_eq!(monitor.run("MONITOR").text(), "OK");
    wait_watched(&mut monitor, &mut known);
    for reactor in 0..2 {
        let mut client = proxy.client();
        let mut asked = 1;
        while (client.run("CLIENT ID").integer() - 1) % 2 != reactor {
            client = proxy.client();
            asked += 1;
        }
        for _ in 0..asked {
            let seen = line(&mut monitor);
            assert!(seen.contains("\"CLIENT\" \"ID\""), "{seen}");
        }
        let address = client.stream().local_addr().expect("an address");
        client.call(&["SET", "mon", "a \"b\"\r\n\u{1}"]);
        let seen = line(&mut monitor);
        let expected = format!(r#" [0 {address}] "SET" "mon" "a \"b\"\r\n\x01""#);
        assert!(seen.ends_with(&expected), "{seen}");
        // Logins and what administers are not shown; what waits for its elders is shown once.
        answers(
            &mut client,
            &["AUTH secret", "HELLO 3 AUTH default secret", "CLIENT LIST", "GET mon", "DBSIZE"],
        );
        assert!(line(&mut monitor).ends_with("\"GET\" \"mon\""));
        assert!(line(&mut monitor).ends_with("\"DBSIZE\""));
        assert_eq!(monitor.read_within(millis(200)), Got::Nothing);
    }
    let only = "-ERR only PING / QUIT / RESET are allowed after MONITOR";
    check(&mut monitor, &[("GET mon", only), ("PING", "PONG"), ("RESET", "RESET")]);
    proxy.client().run("GET mon");
    assert_eq!(monitor.read_within(millis(200)), Got::Nothing);
    assert_eq!(monitor.run("GET mon").string(), "a \"b\"\r\n\u{1}");
}

#[test]
fn monitor_is_the_admins_alone() {
    let denied = "-NOPERM User default has no permissions to run the 'monitor' command";
    check(&mut shared().proxy.client(), &[("MONITOR", denied)]);
}

/// One who does not read is closed, and memory comes back.
#[test]
fn monitor_that_does_not_read_is_closed_at_the_output_limit() {
    let (_cluster, mut proxy) = watched(&[("pubsub-output-limit", "64kb")]);
    let mut monitor = proxy.client();
    assert_eq!(monitor.run("MONITOR").text(), "OK");
    let mut client = proxy.client();
    let value = "v".repeat(200);
    let batch: Vec<u8> = (0..200).flat_map(|_| request(&["SET", "mon", &value])).collect();
    let start = std::time::Instant::now();
    while !proxy.log().contains("MONITOR") {
        assert!(start.elapsed() < patience(seconds(20)), "it is still open");
        client.send(&batch);
        (0..200).for_each(|_| assert_eq!(client.read().text(), "OK"));
    }
    assert_eq!(client.run("PING").text(), "PONG");
    assert!(proxy.process.is_running());
    // What was on its way may still come; how much of it is the kernel's affair.
    let (bytes, closed) = monitor.read_until_quiet(PATIENCE);
    assert!(closed, "still open after {} bytes", bytes.len());
}

/// At most 10,000 lines a second of each reactor, however many commands there are.
#[test]
fn monitor_shows_ten_thousand_lines_a_second_at_most() {
    let (_cluster, proxy) = watched(&[("reactors", "1"), ("pubsub-output-limit", "1gb")]);
    let mut monitor = proxy.client();
    assert_eq!(monitor.run("MONITOR").text(), "OK");
    let mut client = proxy.client();
    let (start, mut asked) = (std::time::Instant::now(), 0);
    // Many at once: more than a thousand in a tenth of a second also on a slow machine.
    let batch = request(&["CLIENT", "ID"]).repeat(20_000);
    while start.elapsed() < seconds(1) {
        client.send(&batch);
        (0..20_000).for_each(|_| drop(client.read()));
        asked += 20_000;
    }
    let took = start.elapsed();
    let (bytes, closed) = monitor.read_until_quiet(millis(300));
    let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
    // A thousand for each tenth of a second that has begun.
    let most = 1_000 * (took.as_millis() as usize / 100 + 2);
    println!("{asked} commands in {took:?}, {lines} lines, at most {most}");
    assert!(!closed && lines <= most, "{lines} lines of {asked} commands in {took:?}");
    assert!(lines >= 1_000, "{lines} lines");
    assert!(lines < asked, "something was left out");
}
