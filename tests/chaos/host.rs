//! The host at its worst: no descriptors, the smallest rings, signals, a stopped proxy: H12, H13,
//! H18, H19 of `research/reliability.md`.
//!
//! Not here: networks (`network`, `outside`).

use std::time::Instant;

use rustix::process::Signal;

use crate::bed::{self, Bed};
use crate::crowd::{Crowd, usual_styles};
use crate::mixed::{is_long, seed};
use crate::support::client::{Client, Got};
use crate::support::cluster::Flavour;
use crate::support::process::{harmless_signals, with_prefix};
use crate::support::proxy::{Proxy, Settings};
use crate::support::{goal, is_strict, millis, patience, seconds, wait_until};

/// User and system time of a process in clock ticks (a hundredth of a second).
pub fn cpu_ticks(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field = |i: usize| fields.get(i).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    field(11) + field(12)
}

#[test]
fn g18_no_descriptors_left_costs_no_time_and_no_log_and_passes() {
    let cluster = bed::cluster(Flavour::Redis, 0);
    let limit = ["prlimit", "--nofile=64:64", "--"];
    let mut proxy = with_prefix(&limit, || Proxy::start_with(&cluster, &Settings::default()));
    let key = cluster.key_on(0, "h12");
    proxy.wait_log("maxclients is lowered");
    let mut kept = proxy.client();
    let told = kept.run("CONFIG GET maxclients").items()[1].string();
    assert_eq!(told, "32", "half of so few descriptors are for nodes and the rest");
    assert_eq!(kept.run(&format!("SET {key} v")).text(), "OK");
    let mut crowd: Vec<Client> =
        (0..200).filter_map(|_| Client::try_connect(proxy.port).ok()).collect();
    let lines = proxy.log().lines().count();
    std::thread::sleep(millis(300));
    let (ticks, start) = (cpu_ticks(proxy.process.id()), Instant::now());
    while start.elapsed() < seconds(3) {
        assert_eq!(kept.run(&format!("GET {key}")).text(), "\"v\"", "who was there is served");
        std::thread::sleep(millis(50));
    }
    // A node whose connections are lost is connected again, though clients take all they can get.
    for node in &cluster.nodes {
        node.run("CLIENT KILL TYPE normal SKIPME yes");
    }
    let again: Vec<String> = (0..3).map(|i| cluster.key_on(i, "h12-again")).collect();
    for key in &again {
        assert_eq!(kept.run(&format!("SET {key} v")).text(), "OK", "a lost node is there again");
    }
    let percent = (cpu_ticks(proxy.process.id()) - ticks) as f64 / start.elapsed().as_secs_f64();
    let lines = proxy.log().lines().count() - lines;
    // Nobody hangs: answered, refused, or not accepted yet.
    let mut is_served = |client: &mut Client| {
        client.send(b"PING\r\n");
        matches!(client.read_within(millis(10)), Got::Reply(reply) if reply.text() == "PONG")
    };
    let served = crowd.iter_mut().map(&mut is_served).filter(|served| *served).count();
    crowd.clear();
    let start = Instant::now();
    wait_until(seconds(5), "a new client to be served", || {
        let client = Client::try_connect(proxy.port);
        client.and_then(|mut c| c.try_call(&["GET", &key])).is_ok_and(|r| r.text() == "\"v\"")
    });
    let took = start.elapsed();
    println!(
        "G18: {percent:.1} % CPU, {lines} lines, {served} of 200 served, again after {took:?}"
    );
    // One that turns without need takes all that there is.
    let most = if is_strict() { 5.0 } else { 25.0 };
    assert!(percent < most, "{percent:.1} % CPU with nothing to do");
    assert!(lines < 10, "{lines} lines of log in three seconds");
    assert!(took <= goal(seconds(1)), "served again after {took:?}");
    proxy.expect_alive();
}

#[test]
fn h13_smallest_rings_and_buffers_change_nothing() {
    let args = [
        "--ring-entries",
        "64",
        "--receive-buffer-count",
        "16",
        "--receive-buffer-size",
        "1024",
        "--request-timeout-ms",
        "60000",
    ];
    let cluster = bed::cluster(Flavour::Redis, 0);
    let mut proxy = Proxy::start_with(&cluster, &Settings::args(&args));
    let mut styles = usual_styles(4);
    styles.extend(vec![crate::crowd::Style { depth: 4, ..styles[0] }; 60]);
    let crowd = Crowd::start(proxy.port, seed(), &styles);
    let start = Instant::now();
    // More than either queue holds.
    let mut many: Vec<Client> = (0..600).map(|_| proxy.client()).collect();
    while start.elapsed() < if is_long() { seconds(60) } else { seconds(4) } {
        std::thread::sleep(millis(200));
        // What all of them send meanwhile comes at once.
        proxy.process.stop();
        many.iter_mut().for_each(|client| client.send(b"PING\r\n"));
        std::thread::sleep(millis(30));
        proxy.process.resume();
        many.iter_mut().for_each(|client| assert_eq!(client.read().text(), "PONG"));
    }
    let mut told = String::new();
    let all = ["buffers_exhausted", "submissions_full"];
    // Numbers are shown some times a second.
    wait_until(seconds(5), &format!("{all:?} to be told"), || {
        told = proxy.client().run("INFO").string();
        all.iter().all(|name| field(&told, name) > 0)
    });
    let [buffers, overflows, full] =
        ["buffers_exhausted", "queue_overflows", "submissions_full"].map(|name| field(&told, name));
    let title = format!(
        "H13: 64 entries, 16 buffers of 1 KiB; {buffers} times no buffer, {overflows} overflows of \
         the completion queue, {full} times the submission queue full"
    );
    let tally = crowd.finish(&title);
    tally.expect_right();
    tally.expect_no_errors();
    // The kernel hands out a few completions at a time, so that a queue of 256 does not overflow;
    // src/ring/tests.rs makes one that does.
    assert!(buffers > 0 && full > 0, "{title}");
    proxy.expect_alive();
}

/// A number of INFO.
pub fn field(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|digits| digits.trim().parse().ok()).unwrap_or(0)
}

/// Wall time is in the log only: a day ahead, a day back, and everybody is served as before.
#[test]
fn h19_wall_clock_of_the_proxy_that_jumps_a_day_changes_nothing() {
    let mut bed = Bed::start_calm_by_clock(Flavour::Redis);
    let Some(clock) = &bed.clock else { return };
    let crowd = Crowd::start(bed.proxy.port, seed(), &usual_styles(2));
    let mut idle: Vec<Client> = (0..20).map(|_| bed.proxy.client()).collect();
    let mut blocked = bed.proxy.client();
    for offset in ["+1d", "-1d", "+0"] {
        blocked.send(b"BLPOP h19:nothing 2\r\n");
        let start = Instant::now();
        clock.set(offset);
        assert!(blocked.read().text().starts_with("nil"));
        let took = start.elapsed();
        assert!(took >= millis(1_900) && took <= goal(millis(3_500)), "{offset}: waited {took:?}");
        println!("H19: {offset}: a wait of 2 s took {took:?}");
    }
    idle.iter_mut().for_each(|client| assert_eq!(client.run("PING").text(), "PONG"));
    let tally = crowd.finish("H19: the proxy's clock jumped");
    tally.expect_right();
    tally.expect_no_errors();
    assert_eq!(tally.lost, 0);
    assert!(bed.proxy.log().lines().count() < 200);
    bed.proxy.expect_alive();
}

/// A node whose clock jumps takes its peers for dead, or they it: it may refuse for a while, or be
/// replaced. Nobody gets a wrong reply of it, and all is well when the clock is.
#[test]
fn h19_wall_clock_of_a_node_that_jumps_a_day_costs_no_wrong_reply() {
    let Some(clock) = crate::clock::Clock::new() else { return };
    if Flavour::Valkey.program().is_none() {
        return println!("SKIPPED: no valkey-server, and redis-server cannot start under faketime");
    }
    let mut bed = Bed::start(Flavour::Valkey);
    let (primary, _) = bed.pair(0);
    clock.rule(|| bed.cluster.nodes[primary].restart());
    bed.wait_healed();
    let crowd = Crowd::start(bed.proxy.port, seed(), &usual_styles(2));
    std::thread::sleep(millis(300));
    crowd.may_lose();
    for offset in ["+1d", "-1d", "+0"] {
        clock.set(offset);
        std::thread::sleep(millis(1_800));
    }
    bed.wait_healed();
    crowd.calm();
    std::thread::sleep(millis(500));
    let tally = crowd.finish("H19: a node's clock jumped");
    tally.expect_right();
    bed.proxy.expect_alive();
}

/// Connections of clients, cut by an operator or by the kernel while their requests are under way:
/// what was theirs is nobody's, and nothing of them is left.
#[test]
fn clients_that_are_cut_leave_nothing_behind() {
    let cluster = bed::cluster(Flavour::Redis, 0);
    let mut proxy = Proxy::start_with(&cluster, &Settings::default());
    let mut client = proxy.client();
    let listed = |client: &mut Client| client.run("CLIENT LIST").string().lines().count();
    let pid = proxy.process.id();
    // Every kind of connection to nodes is made before they are counted.
    let crowd = Crowd::start(proxy.port, seed(), &usual_styles(2));
    std::thread::sleep(millis(300));
    crowd.finish("before").expect_right();
    wait_until(seconds(5), "the crowd to be gone", || listed(&mut client) == 1);
    let before = crate::soak::descriptors(pid);
    let crowd = Crowd::start(proxy.port, seed(), &usual_styles(6));
    for _ in 0..if is_long() { 500 } else { 40 } {
        crate::faults::kill_clients(proxy.port);
        std::thread::sleep(millis(25));
    }
    let tally = crowd.finish("clients cut");
    tally.expect_right();
    assert_eq!(tally.lost, 0);
    assert!(tally.connections > 100, "{} connections", tally.connections);
    let mut client = proxy.client();
    // A script's lane is opened when it is wanted: two at three nodes for two versions.
    const LANES: usize = 12;
    let left = |client: &mut Client| (listed(client), crate::soak::descriptors(pid));
    crate::bed::pause(patience(seconds(5)), || left(&mut client) <= (1, before));
    let (clients, now) = left(&mut client);
    println!("clients cut: descriptors {before} before, {now} after");
    assert!(clients == 1 && now <= before + LANES, "{clients} clients, {before} then {now}");
    proxy.expect_alive();
}

/// Signals in a random order (a seed says which), stops of a moment among them, as many as there is
/// time for: in the end there must have been some thousand.
#[test]
fn h18_signals_under_load_change_nothing() {
    let cluster = bed::cluster(Flavour::Redis, 0);
    let mut proxy = Proxy::start_with(&cluster, &Settings::default());
    let crowd = Crowd::start(proxy.port, seed(), &usual_styles(2));
    let mut sent = 0;
    let most = if is_long() { 100_000 } else { 10_000 };
    let start = Instant::now();
    let mut random = seed();
    let signals: Vec<Signal> = harmless_signals()
        .into_iter()
        .chain([Signal::USR1, Signal::USR2, Signal::STOP, Signal::TTOU, Signal::TTIN, Signal::TSTP])
        .collect();
    let time = seconds(if is_long() { 120 } else { 8 });
    while sent < most && start.elapsed() < time {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let signal = signals[(random >> 33) as usize % signals.len()];
        proxy.process.send(signal);
        sent += 1;
        if [Signal::STOP, Signal::TTOU, Signal::TTIN, Signal::TSTP].contains(&signal) {
            std::thread::sleep(millis(random >> 62));
            proxy.process.send(Signal::CONT);
            sent += 1;
        }
        if sent % 700 == 0 {
            std::thread::sleep(millis(20));
        }
    }
    proxy.process.send(Signal::CONT);
    assert!(sent >= 1_000, "{sent} signals in {time:?}");
    let tally = crowd.finish(&format!("H18: {sent} signals in {:?}", start.elapsed()));
    tally.expect_right();
    tally.expect_no_errors();
    proxy.expect_alive();
}

/// After a pause of the whole process what has come meanwhile counts, not the time that passed.
#[test]
fn h19_stopped_proxy_goes_on_where_it_was() {
    // Longer than anything takes on a slow machine, and shorter than the stop.
    let timeout = if is_strict() { "1000" } else { "2500" };
    let mut bed = Bed::start_with(Flavour::Redis, &["--request-timeout-ms", timeout]);
    let crowd = Crowd::start(bed.proxy.port, seed(), &usual_styles(2));
    let mut idle: Vec<Client> = (0..20).map(|_| bed.proxy.client()).collect();
    for _ in 0..if is_long() { 3 } else { 2 } {
        std::thread::sleep(millis(500));
        bed.proxy.process.stop();
        std::thread::sleep(if is_long() { seconds(30) } else { seconds(4) });
        bed.proxy.process.resume();
    }
    std::thread::sleep(millis(500));
    for client in &mut idle {
        client.send(b"PING\r\n");
        let got = client.read_patiently();
        assert!(matches!(got, Got::Reply(_)), "an idle client got {got:?}");
    }
    let tally = crowd.finish("H19: the proxy stopped for longer than its time-outs");
    tally.expect_right();
    tally.expect_no_errors();
    assert_eq!(tally.lost, 0);
    bed.proxy.expect_alive();
}
