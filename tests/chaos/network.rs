//! Connections to nodes at their worst, by way of relays: H1, H3, H14, H15 of
//! `research/reliability.md`. The nodes lose nothing, so no acknowledged write may be missing.
//!
//! Not here: the kernel's own black holes (`outside`).

use std::time::{Duration, Instant};

use crate::bed::{self, pause};
use crate::crowd::{Crowd, Style, usual_styles};
use crate::figures::relayed;
use crate::mixed::{is_long, seed};
use crate::plan::Mix;
use crate::relay::{Relay, What};
use crate::support::chance::SplitMix as Random;
use crate::support::client::{Client, Got};
use crate::support::cluster::{Cluster, Flavour};
use crate::support::proxy::Proxy;
use crate::support::{goal, is_strict, millis, seconds, wait_until};

pub struct Rig {
    pub proxy: Proxy,
    pub relays: Vec<Relay>,
    pub cluster: Cluster,
}

/// The time-out of requests where clients are to see it soon, and others' keys never: those of a
/// slow machine take longer.
pub fn short() -> Duration {
    millis(if is_strict() { 600 } else { 1_500 })
}

pub fn short_timeout() -> String {
    format!("request_timeout_ms = {}\n", short().as_millis())
}

pub fn rig(options: &str) -> Rig {
    let cluster = bed::cluster(Flavour::Redis, 0);
    let relays: Vec<Relay> = cluster.nodes.iter().map(|node| Relay::start(node.port)).collect();
    // Only by events: the topology thread's own connections would count as well.
    let options = format!("refresh_interval_ms = 3600000\nconnect_timeout_ms = 300\n{options}");
    let proxy = relayed(&cluster, &relays, &options);
    Rig { proxy, relays, cluster }
}

/// H1a: reply `n` comes too late, never, in part, or with a push before it, for every `n`.
#[test]
fn h1_replies_that_are_late_lost_or_cut_reach_nobody_else() {
    let mut rig = rig("request_timeout_ms = 60\n");
    let styles = [1, 1, 8, 64, 200].map(|depth| Style {
        depth,
        resp3: depth % 2 == 0,
        mix: if depth == 8 { Mix::COUNTING } else { Mix::USUAL },
        ..Style::PLAIN
    });
    let crowd = Crowd::start(rig.proxy.port, seed(), &styles);
    let mut random = Random(seed());
    let step = if is_long() { 1 } else { 8 };
    let mut fired = 0;
    for nth in (0..200).step_by(step) {
        let late = What::Delay(millis(80 + random.below(40)));
        let cut = What::Cut { bytes: random.below(30) as usize };
        let push = What::Insert(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nx\r\n");
        for what in [late, What::Swallow, cut, push] {
            let relay = &rig.relays[random.below(3) as usize];
            relay.arm(nth, what);
            fired += u32::from(pause(seconds(3), || relay.has_fired()));
        }
    }
    let tally = crowd.finish(&format!("H1: {fired} replies late, lost, cut or with a push"));
    assert!(fired as usize >= 200 / step * 3, "only {fired}");
    tally.expect_right();
    assert_eq!(tally.lost, 0);
    rig.proxy.expect_alive();
}

/// A reply twice while nothing else is awaited: the second is nobody's.
#[test]
fn h1_reply_that_comes_twice_is_given_once() {
    let mut rig = rig("request_timeout_ms = 20000\n");
    let mut client = rig.proxy.client();
    let keys = [0, 1, 2].map(|i| rig.cluster.key_on(i, "twice"));
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(client.run(&format!("SET {key} {key}")).text(), "OK");
        for round in 0..20 {
            rig.relays[i].arm(0, What::Double);
            let reply = client.run(&format!("GET {key}")).text();
            let right = reply == format!("\"{key}\"");
            assert!(right || reply.starts_with("-ERR"), "round {round}: {reply}");
            let echo = client.run("ECHO mine").text();
            assert_eq!(echo, "\"mine\"");
            wait_until(seconds(3), "the node to answer again", || {
                let reply = client.run(&format!("GET {key}x")).text();
                assert!(reply == "nil" || reply.starts_with("-ERR"), "round {round}: {reply}");
                reply == "nil"
            });
        }
    }
    rig.proxy.expect_alive();
}

/// The same for writes: the second reply is nobody's and closes the connection, the write has run
/// once, and behind the fence a script's second reply is taken for nobody's either.
#[test]
fn h1_write_that_is_answered_twice_runs_once_and_closes_its_connection() {
    let mut rig = rig("request_timeout_ms = 20000\n");
    let (mut client, mut other) = (rig.proxy.client(), rig.proxy.client());
    let key = rig.cluster.key_on(0, "twice");
    let relay = &rig.relays[0];
    for line in ["INCR", "APPEND", "EVAL"] {
        let words: Vec<&str> = match line {
            "INCR" => vec!["INCR", &key],
            "APPEND" => vec!["APPEND", &key, "1"],
            _ => vec!["EVAL", "return redis.call('INCR', KEYS[1])", "1", &key],
        };
        client.run(&format!("DEL {key}"));
        let mut acknowledged = 0;
        for round in 0..20 {
            assert_eq!(client.call(&["GET", &format!("{key}absent")]).text(), "nil");
            let before = relay.accepted();
            relay.arm(0, What::Double);
            let reply = client.call(&words).text();
            let good = reply.parse::<u32>().is_ok();
            assert!(good || reply.starts_with("-ERR"), "{line} {round}: {reply}");
            acknowledged += u32::from(good);
            // Whoever asks next gets its own answer, or none.
            assert_eq!(other.run("ECHO mine").text(), "\"mine\"");
            wait_until(seconds(3), "the node to answer again", || {
                let reply = other.run(&format!("GET {key}absent")).text();
                assert!(reply == "nil" || reply.starts_with("-ERR"), "{line} {round}: {reply}");
                // Its own request makes the proxy connect again.
                let lines = format!("EVAL return(1) 1 {key}absent");
                reply == "nil" && other.run(&lines).text() == "1" && relay.accepted() > before
            });
        }
        let value = rig.cluster.nodes[0].run(&format!("GET {key}")).string();
        let ran = if line == "APPEND" { value.len() as u32 } else { value.parse().unwrap_or(0) };
        assert_eq!(ran, 20, "{line}: asked 20 times, {acknowledged} acknowledged");
        println!("H1: {line} answered twice: 20 asked, 20 run, {acknowledged} acknowledged");
    }
    rig.proxy.expect_alive();
}

/// What is no reply at all, in place of the reply to a write: it may have run, and is not repeated.
#[test]
fn h1_forged_answer_to_a_write_closes_its_connection_and_is_not_repeated() {
    let mut rig = rig("request_timeout_ms = 1000\n");
    let (mut client, mut other) = (rig.proxy.client(), rig.proxy.client_resp3());
    let key = rig.cluster.key_on(0, "forged");
    let forged: [&[u8]; 8] = [
        b"$-2\r\n",
        b"$3\r\nabcde\r\n",
        b"*-7\r\n",
        b"@what\r\n",
        b"+OK\n\n\n",
        b"$99999999999999999999\r\n",
        b">2\r\n+message\r\n+x\r\n",
        b"\0\0\0\0",
    ];
    for (count, bytes) in (1..).zip(forged) {
        let shown = String::from_utf8_lossy(bytes);
        let before = rig.relays[0].accepted();
        rig.relays[0].arm(0, What::Forge(bytes));
        let reply = client.run(&format!("INCR {key}")).text();
        assert!(reply.contains("may have run"), "{shown:?}: {reply}");
        assert_eq!(other.run(&format!("GET {key}")).text(), format!("\"{count}\""), "{shown:?}");
        assert_eq!(client.run(&format!("GET {key}")).text(), format!("\"{count}\""), "{shown:?}");
        assert!(rig.relays[0].accepted() > before, "{shown:?}: the connection is still in use");
    }
    rig.proxy.expect_alive();
}

/// What a node says instead of an answer. (To reads: the node has run what the relay forges.)
#[test]
fn h1_forged_refusals_are_waited_out_and_never_shown() {
    let mut rig = rig("request_timeout_ms = 20000\n");
    let mut client = rig.proxy.client();
    let key = rig.cluster.key_on(0, "forged");
    assert_eq!(client.run(&format!("SET {key} v")).text(), "OK");
    for refusal in [
        b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n".as_slice(),
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n",
        b"-MASTERDOWN Link with MASTER is down\r\n",
        b"-MOVED 1 127.0.0.1:1\r\n",
        b"-ASK 1 10.11.12.13:6379\r\n",
    ] {
        for nth in [0, 1, 5] {
            rig.relays[0].arm(nth, What::Forge(refusal));
            let lines = vec![format!("GET {key}"); 10];
            let start = Instant::now();
            for reply in client.pipeline(&lines) {
                assert_eq!(reply.text(), "\"v\"", "{}", String::from_utf8_lossy(refusal));
            }
            assert!(rig.relays[0].has_fired() && start.elapsed() < goal(seconds(2)));
        }
    }
    rig.proxy.expect_alive();
}

/// Clients that leave at every byte of a reply: what was theirs is read and dropped.
#[test]
fn h1_clients_that_leave_in_the_middle_leave_nothing_to_others() {
    let mut rig = rig("request_timeout_ms = 20000\n");
    let crowd = Crowd::start(rig.proxy.port, seed(), &usual_styles(1));
    let key = rig.cluster.key_on(0, "leaves");
    let mut owner = rig.proxy.client();
    assert_eq!(owner.run(&format!("SET {key} {}", "z".repeat(100_000))).text(), "OK");
    let rounds = if is_long() { 2_000 } else { 300 };
    for round in 0..rounds {
        let mut client = rig.proxy.client();
        client.send(format!("GET {key}\r\nINCR {key}n\r\nGET {key}\r\n").repeat(5).as_bytes());
        client.read_at_least(round * 97 % 90_000);
        if round % 3 == 0 {
            rig.relays[0].slice(if round % 2 == 0 { 0 } else { 1_000 });
        }
    }
    rig.relays[0].slice(0);
    let tally = crowd.finish(&format!("H1: {rounds} clients left"));
    tally.expect_right();
    tally.expect_no_errors();
    rig.proxy.expect_alive();
}

/// Bytes that come one by one, or in pieces that end anywhere.
#[test]
fn bytes_in_slices_change_nothing() {
    let mut rig = rig("request_timeout_ms = 20000\n");
    for slice in [1, 2, 3, 7, 61, 1_000] {
        rig.relays.iter().for_each(|relay| relay.slice(slice));
        let styles = [1, 16, 16].map(|depth| Style { depth, resp3: depth == 1, ..Style::PLAIN });
        let crowd = Crowd::start(rig.proxy.port, seed() + slice as u64, &styles);
        std::thread::sleep(if is_long() { seconds(20) } else { millis(500) });
        wait_until(seconds(20), "some to be verified", || crowd.verified() > 100);
        let tally = crowd.finish(&format!("slices of {slice}"));
        tally.expect_right();
        tally.expect_no_errors();
        assert!(tally.verified > 100);
    }
    rig.proxy.expect_alive();
}

/// The answer or error to one request, and how long it took.
pub fn timed(client: &mut Client, line: &str) -> (String, Duration) {
    let start = Instant::now();
    client.send(format!("{line}\r\n").as_bytes());
    let text = match client.read_patiently() {
        Got::Reply(reply) => reply.text(),
        other => format!("{other:?}"),
    };
    (text, start.elapsed())
}

/// H14: a node whose connections stay open and carry nothing any more, in one direction or both.
#[test]
fn h14_silent_connections_fail_in_time_and_alone_and_recover_at_once() {
    let mut rig = rig(&short_timeout());
    let [mute, well, _] = [0, 1, 2].map(|i| rig.cluster.key_on(i, "h14"));
    for (requests, replies) in [(true, true), (true, false), (false, true)] {
        let quiet = latencies(&rig.proxy, &well, millis(700));
        rig.relays[0].hold(requests, replies);
        let mut client = rig.proxy.client();
        let (text, took) = timed(&mut client, &format!("SET {mute} v"));
        assert!(text.contains("may have run"), "{text}");
        // The clock of deadlines ticks every 20 ms.
        let (least, most) = (short() - millis(60), short() + goal(millis(160)));
        assert!((least..=most).contains(&took), "failed after {took:?}");
        // Now it is known: others wait no longer than it takes to try again.
        let others = latencies(&rig.proxy, &well, millis(700));
        println!(
            "H14: failed after {took:?}; p99 of another node {quiet:?} before, {others:?} now"
        );
        assert!(others <= goal(quiet * 2 + millis(5)), "p99 {quiet:?} quiet, {others:?} beside it");
        rig.relays[0].hold(false, false);
        let start = Instant::now();
        wait_until(seconds(5), "the node to be used again", || {
            client.run(&format!("SET {mute} w")).text() == "OK"
        });
        println!("H14: used again after {:?}", start.elapsed());
        assert!(start.elapsed() <= goal(seconds(1)), "recovered after {:?}", start.elapsed());
    }
    rig.proxy.expect_alive();
}

/// The p99 of another node's key: the least of some slices of the time, since the machine may be
/// busy with other work in one of them.
fn latencies(proxy: &Proxy, key: &str, time: Duration) -> Duration {
    const SLICES: u32 = 4;
    let mut client = proxy.client();
    let slices = (0..SLICES).map(|_| p99_for(&mut client, key, time / SLICES));
    slices.min().unwrap_or_default()
}

/// The p99 of a key that is well, for so long.
pub fn p99_for(client: &mut Client, key: &str, time: Duration) -> Duration {
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let before = Instant::now();
        let reply = client.run(&format!("GET {key}"));
        assert!(!reply.is_error(), "another node's key answered {}", reply.text());
        times.push(before.elapsed());
    }
    times.sort();
    times[times.len() * 99 / 100]
}

/// H15: a node that takes connections and never says a word.
#[test]
fn h15_node_that_accepts_and_says_nothing_is_given_up_and_tried_sparingly() {
    let mut rig = rig(&short_timeout());
    let [mute, well, _] = [0, 1, 2].map(|i| rig.cluster.key_on(i, "h15"));
    let mut client = rig.proxy.client();
    assert_eq!(client.run(&format!("SET {mute} v")).text(), "OK");
    rig.relays[0].mute(true);
    rig.relays[0].cut_all();
    let (before, start) = (rig.relays[0].accepted(), Instant::now());
    let (mut slowest_late, mut asked) = (Duration::ZERO, 0);
    while start.elapsed() < seconds(5) {
        let (text, took) = timed(&mut client, &format!("SET {mute} w"));
        assert!(text.starts_with("-ERR"), "{text}");
        assert!(took <= goal(millis(1_400)), "an answer after {took:?}");
        if start.elapsed() > seconds(2) {
            slowest_late = slowest_late.max(took);
        }
        asked += 1;
        let (text, _) = timed(&mut client, &format!("SET {well} {asked}"));
        assert_eq!(text, "OK", "another node's key");
        std::thread::sleep(millis(5));
    }
    let tried = rig.relays[0].accepted() - before;
    println!(
        "H15: {asked} asked, {tried} connections tried in 5 s, slowest late answer {slowest_late:?}"
    );
    assert!(tried <= 40, "{tried} connections tried in 5 s");
    rig.relays[0].mute(false);
    rig.relays[0].cut_all();
    let start = Instant::now();
    wait_until(seconds(5), "the node to be used again", || {
        client.run(&format!("GET {mute}")).text() == "\"v\""
    });
    println!("H15: used again after {:?}", start.elapsed());
    assert!(start.elapsed() <= goal(seconds(3)), "recovered after {:?}", start.elapsed());
    rig.proxy.expect_alive();
}
