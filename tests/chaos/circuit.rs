//! Nodes that refuse, or take connections and say nothing, while others serve: H11, H15, G16, and
//! the repeats of G17.
//!
//! Not here: connections that break in the middle (`network`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::bed;
use crate::figures::relayed;
use crate::mixed::is_long;
use crate::network::{Rig, p99_for, rig, short, short_timeout, timed};
use crate::relay::Relay;
use crate::support::client::Client;
use crate::support::cluster::Flavour;
use crate::support::fake::{Answer, Fake, Map, say};
use crate::support::proxy::{Proxy, Settings};
use crate::support::{goal, is_strict, millis, seconds, wait_until};

/// Clients in threads of their own that do the same again and again until they are told to end.
struct Many {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Duration>>>,
}

impl Many {
    /// `ask` is told the client and its number; what it returns is kept.
    fn start(
        count: usize,
        port: u16,
        ask: impl Fn(&mut Client, usize) -> Duration + Send + Sync + 'static,
    ) -> Many {
        let (end, ask) = (Arc::new(AtomicBool::new(false)), Arc::new(ask));
        let start = |number| {
            let (end, ask) = (Arc::clone(&end), Arc::clone(&ask));
            std::thread::spawn(move || {
                let (mut client, mut times) = (Client::connect(port), Vec::new());
                while !end.load(Ordering::Relaxed) {
                    times.push(ask(&mut client, number));
                }
                times
            })
        };
        let threads = (0..count).map(start).collect();
        Many { end, threads }
    }

    fn finish(self) -> Vec<Duration> {
        self.end.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    }
}

/// H11: refusals that say "not run, try again" and never end. What is tried again is less than a
/// tenth of what is asked, and everybody is answered.
#[test]
fn g17_node_that_refuses_for_ever_is_not_asked_much_more_than_clients_ask() {
    // In CI not those that are decided in the same place.
    let kinds = if is_long() { 5 } else { 2 };
    for refusal in [
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-CLUSTERDOWN Hash slot not served",
        "-LOADING Redis is loading the dataset in memory",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "-READONLY You can't write against a read only replica.",
    ]
    .into_iter()
    .take(kinds)
    {
        let node = Fake::start();
        node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
        let seed = format!("127.0.0.1:{}", node.port());
        let options = ["--request-timeout-ms", "2000"];
        let mut proxy = Proxy::start_at(&[seed], &Settings::args(&options));
        let mut client = proxy.client();
        wait_until(seconds(8), "the proxy to serve", || client.run("GET x").text() == "nil");
        node.answer(move |request| match request.name.as_str() {
            "SET" => say(refusal),
            _ => Answer::Usual,
        });
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let many = Many::start(40, proxy.port, move |client, number| {
            // Fewer than a client may have under way at first.
            let lines: Vec<String> = (0..50).map(|i| format!("SET k{number}-{i} v")).collect();
            let start = Instant::now();
            count.fetch_add(lines.len() as u64, Ordering::Relaxed);
            for reply in client.pipeline(&lines) {
                let text = reply.text();
                // On a slow machine some may be at the node when their time is over.
                assert!(
                    text == refusal || (!is_strict() && text.contains("may have run")),
                    "{text}"
                );
            }
            start.elapsed()
        });
        std::thread::sleep(seconds(if is_long() { 20 } else { 4 }));
        let slowest = many.finish().into_iter().max().unwrap_or_default();
        let (asked, sent) = (asked.load(Ordering::Relaxed), node.seen("SET"));
        let kind = refusal.split(' ').next().unwrap_or_default();
        println!(
            "G17: {kind}: {asked} asked by clients, {sent} by the proxy ({:.3} times), slowest \
             answer {slowest:?}",
            sent as f64 / asked as f64
        );
        assert!(sent <= asked + asked / 10, "{kind}: {asked} asked, {sent} sent");
        assert!(slowest <= goal(millis(3_500)), "{kind}: {slowest:?}");
        // And as soon as it serves, everything is served.
        let many = Many::start(40, proxy.port, |client, number| {
            // Fewer than a client may have under way at first.
            let lines: Vec<String> = (0..50).map(|i| format!("SET k{number}-{i} v")).collect();
            client
                .pipeline(&lines)
                .iter()
                .for_each(|reply| assert!(!reply.is_error() || reply.text().len() > 20));
            millis(0)
        });
        std::thread::sleep(millis(300));
        node.answer(|_| Answer::Usual);
        let healed = Instant::now();
        wait_until(seconds(5), "the node to be used again", || {
            client.run("SET mine v").text() == "OK"
        });
        many.finish();
        println!("     {kind}: all answered {:?} after the node was well", healed.elapsed());
        assert!(healed.elapsed() <= goal(seconds(1)), "{kind}: {:?}", healed.elapsed());
        proxy.expect_alive();
    }
}

/// A node that is well again between two requests of one pipeline: the first was refused and the
/// second ran, so the first must not run after it.
#[test]
fn refused_request_does_not_run_after_a_later_one_of_its_client() {
    for (line, refusal) in [
        ("APPEND k", "-LOADING Redis is loading the dataset in memory"),
        ("APPEND k", "-CLUSTERDOWN The cluster is down"),
        ("GET k", "-CLUSTERDOWN The cluster is down"),
    ] {
        let node = Fake::start();
        node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
        let seed = format!("127.0.0.1:{}", node.port());
        let proxy = Proxy::start_at(&[seed], &Settings::default());
        let mut client = proxy.client();
        wait_until(seconds(8), "the proxy to serve", || client.run("GET x").text() == "nil");
        let (first, sick) = (AtomicBool::new(true), refusal);
        node.answer(move |request| match request.word(1).as_str() {
            "k" if first.swap(false, Ordering::Relaxed) => say(sick),
            "k" => say("$4\r\nwell"),
            _ => Answer::Usual,
        });
        let lines: Vec<String> = ["a", "b", "c"]
            .iter()
            .map(|value| if line == "GET k" { line.to_owned() } else { format!("{line} {value}") })
            .collect();
        let replies: Vec<String> = client.pipeline(&lines).iter().map(|r| r.text()).collect();
        let name = line.split(' ').next().unwrap_or_default();
        std::thread::sleep(millis(100));
        // Only reads may be asked again: their order among themselves is nobody's to see.
        let (answer, asked) = if name == "GET" { ("\"well\"", 4) } else { (refusal, 3) };
        assert_eq!(replies, [answer, "\"well\"", "\"well\""], "{refusal}");
        assert_eq!(node.seen(name), asked + u64::from(name == "GET"), "{refusal}");
    }
}

/// H15: once a node is known to be dead, one request at a time finds out whether it still is; the
/// others are answered at once.
#[test]
fn h15_dead_node_is_probed_by_one_request_and_nobody_else_waits() {
    let mut rig = rig(&short_timeout());
    let key = rig.cluster.key_on(0, "probe");
    let mut client = rig.proxy.client();
    assert_eq!(client.run(&format!("SET {key} v")).text(), "OK");
    rig.relays[0].mute(true);
    rig.relays[0].cut_all();
    let start = Instant::now();
    while start.elapsed() < seconds(2) {
        timed(&mut client, &format!("SET {key} w"));
    }
    let (before, asked) = (rig.relays[0].accepted(), key.clone());
    let many = Many::start(30, rig.proxy.port, move |client, _| {
        let (text, took) = timed(client, &format!("SET {asked} w"));
        assert!(text.starts_with("-ERR"), "{text}");
        std::thread::sleep(millis(5));
        took
    });
    std::thread::sleep(seconds(3));
    let times = many.finish();
    let probes = rig.relays[0].accepted() - before;
    let slow = times.iter().filter(|took| **took > millis(150)).count() as u64;
    println!("H15: {} asked, {slow} waited for one of {probes} probes", times.len());
    // If all waited for each probe there would be some hundred in this time, and all were slow.
    let (least, late) = if is_strict() { (1_000, 0) } else { (300, times.len() as u64 / 4) };
    assert!(probes >= 2 && times.len() > least, "{probes} probes, {} asked", times.len());
    assert!(slow <= probes + 2 + late, "{slow} of {} waited, {probes} probes", times.len());
    rig.relays[0].mute(false);
    rig.relays[0].cut_all();
    let start = Instant::now();
    wait_until(seconds(5), "the node to be used again", || {
        client.run(&format!("GET {key}")).text() == "\"v\""
    });
    println!("H15: used again after {:?}", start.elapsed());
    assert!(start.elapsed() <= goal(seconds(2)), "{:?}", start.elapsed());
    rig.proxy.expect_alive();
}

/// H15: a listener that never accepts. The kernel takes the first connections, and then none.
#[test]
fn h15_listener_that_never_accepts_costs_its_own_keys_only() {
    let cluster = bed::cluster(Flavour::Redis, 0);
    let relays = vec![Relay::start_with(cluster.nodes[0].port, 1)];
    let options = format!("{}connect_timeout_ms = 300\n", short_timeout());
    let mut proxy = relayed(&cluster, &relays, &options);
    let [dead, well, _] = [0, 1, 2].map(|i| cluster.key_on(i, "backlog"));
    let mut client = proxy.client();
    assert_eq!(client.run(&format!("SET {dead} v")).text(), "OK");
    relays[0].deafen(true);
    relays[0].cut_all();
    let start = Instant::now();
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    while start.elapsed() < seconds(4) {
        let (text, took) = timed(&mut client, &format!("SET {dead} w"));
        assert!(text.starts_with("-ERR"), "{text}");
        slowest = slowest.max(took);
        let (text, took) = timed(&mut client, &format!("SET {well} w"));
        assert!(
            text == "OK" && took < goal(millis(250)),
            "another node's key: {text} after {took:?}"
        );
        asked += 1;
        std::thread::sleep(millis(5));
    }
    println!("H15: backlog only: {asked} asked, slowest answer {slowest:?}");
    assert!(slowest <= goal(millis(1_400)), "an answer after {slowest:?}");
    relays[0].deafen(false);
    relays[0].cut_all();
    let start = Instant::now();
    wait_until(seconds(5), "the node to be used again", || {
        client.run(&format!("SET {dead} x")).text() == "OK"
    });
    println!("H15: backlog only: used again after {:?}", start.elapsed());
    // SYNs that found no room are sent again after a second.
    assert!(start.elapsed() <= goal(seconds(3)), "{:?}", start.elapsed());
    proxy.expect_alive();
}

/// So many looks at other nodes' p99 in a row, and how long each takes: their median is what
/// counts, as the machine may be busy with other work in some.
const LOOKS: usize = 5;
const LOOK: Duration = Duration::from_millis(160);

/// What clocks and the scheduler may add to twice the quiet p99.
const G16_SLACK: Duration = Duration::from_micros(300);

/// What 8 clients that want one node's key, each a hundred times a second, see and do.
struct Beside {
    /// p99 of another node's key, look by look.
    looks: Vec<Duration>,
    /// The slowest answer to them.
    slowest: Duration,
}

/// `sick`: errors are answers, too.
fn beside(rig: &Rig, key: &str, well: &str, sick: bool) -> Beside {
    let line = format!("SET {key} v");
    let many = Many::start(8, rig.proxy.port, move |client, _| {
        let (text, took) = timed(client, &line);
        assert!(sick || text == "OK", "{text}");
        std::thread::sleep(millis(10));
        took
    });
    // Until it is known that the node is sick, and as long where it is not.
    std::thread::sleep(short() + millis(400));
    let mut client = rig.proxy.client();
    let looks = (0..LOOKS).map(|_| p99_for(&mut client, well, LOOK)).collect();
    Beside { looks, slowest: many.finish().into_iter().max().unwrap_or_default() }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// G16: whatever ails one node, and however many want it, the others' keys are served as ever: as
/// beside the same clients while that node was well.
#[test]
fn g16_sick_node_does_not_slow_the_others() {
    let cluster = bed::cluster(Flavour::Redis, 0);
    let relays = vec![Relay::start(cluster.nodes[0].port)];
    let options = format!("{}connect_timeout_ms = 300\n", short_timeout());
    let proxy = relayed(&cluster, &relays, &options);
    let [behind_relay, plain, well] = [0, 1, 2].map(|i| cluster.key_on(i, "g16"));
    let mut rig = Rig { proxy, relays, cluster };
    type Act = fn(&mut Rig, bool);
    let ails: [(&str, &str, Act); 4] = [
        ("black-holed", &behind_relay, |rig, on| rig.relays[0].hold(on, on)),
        ("accepting, mute", &behind_relay, |rig, on| {
            rig.relays[0].mute(on);
            rig.relays[0].cut_all();
        }),
        ("stopped", &plain, |rig, on| match on {
            true => rig.cluster.nodes[1].process.stop(),
            false => rig.cluster.nodes[1].process.resume(),
        }),
        ("refusing", &plain, |rig, on| match on {
            true => rig.cluster.nodes[1].process.kill(),
            false => rig.cluster.nodes[1].restart(),
        }),
    ];
    let rounds = if is_long() { 7 } else { 1 };
    for (name, key, act) in ails {
        let (mut quiet, mut sick, mut slowest) = (Vec::new(), Vec::new(), Duration::ZERO);
        // In turn, so that what else the machine does falls on both.
        for _ in 0..rounds {
            quiet.extend(beside(&rig, key, &well, false).looks);
            act(&mut rig, true);
            let seen = beside(&rig, key, &well, true);
            sick.extend(seen.looks);
            slowest = slowest.max(seen.slowest);
            act(&mut rig, false);
            wait_until(seconds(8), "the node to be used again", || {
                rig.proxy.client().run(&format!("SET {key} w")).text() == "OK"
            });
        }
        let looks = quiet.len();
        let (quiet, others) = (median(quiet), median(sick));
        println!(
            "G16: {name}: p99 of another node {quiet:?} beside 8 clients of it while it is well, \
             {others:?} while it is sick ({:.2} times; medians of {looks}); slowest error \
             {slowest:?}",
            others.as_secs_f64() / quiet.as_secs_f64()
        );
        assert!(
            others <= goal(quiet * 2 + G16_SLACK),
            "{name}: p99 {quiet:?} quiet, {others:?} now"
        );
        assert!(slowest <= goal(millis(2_000)), "{name}: {slowest:?}");
    }
    rig.proxy.expect_alive();
}
