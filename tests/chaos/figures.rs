//! Figures of `research/reliability.md` that one kind of fault gives: G3, G4, G5, G17. Each is
//! printed.
//!
//! Not here: faults drawn at random (`mixed`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bed::{self, Bed, fail_over, is_primary};
use crate::crowd::{Crowd, Style, usual_styles};
use crate::faults::{kill_connections, rejoin};
use crate::mixed::{budget, is_long, number, seed};
use crate::plan::Mix;
use crate::relay::{Relay, What};
use crate::reshard;
use crate::support::chance::SplitMix as Random;
use crate::support::client::Client;
use crate::support::cluster::Flavour;
use crate::support::fake::{Answer, Fake, Map, say};
use crate::support::keys::slot;
use crate::support::proxy::{Proxy, Settings};
use crate::support::{goal, millis, seconds, wait_until};
use crate::tally::Tally;

/// Clients in a planned change wait no longer.
const STALL_MAX: Duration = Duration::from_secs(1);

/// Every shard fails over as planned, then every slot moves once.
fn planned_changes(flavour: Flavour, move_slots: impl Fn(&Bed) -> usize) {
    let mut bed = Bed::start_calm(flavour);
    for round in 0..if is_long() { 10 } else { 1 } {
        let crowd = Crowd::start(bed.proxy.port, seed() + round, &usual_styles(3));
        for shard in 0..3 {
            std::thread::sleep(millis(200));
            fail_over(&bed, shard);
            bed.wait_healed();
        }
        let tally = crowd.finish("three planned failovers");
        tell_g4(flavour, "three planned failovers", &tally);
        tally.expect_right();
        tally.expect_no_errors();
        assert_eq!(tally.lost, 0, "acknowledged writes lost");
        assert!(tally.longest_stall <= goal(STALL_MAX), "{:?}", tally.longest_stall);

        let crowd = Crowd::start(bed.proxy.port, seed() + 100 + round, &usual_styles(3));
        std::thread::sleep(millis(200));
        let start = Instant::now();
        let moved = move_slots(&bed);
        let took = start.elapsed();
        bed.wait_healed();
        let tally = crowd.finish("slots moved");
        tell_g4(flavour, &format!("{moved} slots moved in {took:?}"), &tally);
        assert_eq!(moved, 16_384);
        tally.expect_right();
        tally.expect_no_errors();
        assert_eq!(tally.lost, 0, "acknowledged writes lost");
        assert!(tally.longest_stall <= goal(STALL_MAX), "{:?}", tally.longest_stall);
    }
    bed.proxy.expect_alive();
}

fn tell_g4(flavour: Flavour, what: &str, tally: &Tally) {
    println!(
        "G4: {flavour:?}: {what}: {} commands verified, {} wrong, {} errors, longest stall {:?}",
        tally.verified,
        tally.wrong.len(),
        tally.errors_total(),
        tally.longest_stall
    );
}

#[test]
fn g4_planned_changes_of_redis_are_not_seen() {
    planned_changes(Flavour::Redis, |bed| reshard::classic(bed, usize::MAX));
}

#[test]
fn g4_planned_changes_of_valkey_are_not_seen() {
    planned_changes(Flavour::Valkey, |bed| reshard::atomic(bed, usize::MAX));
}

/// The time from the first good answer of the new primary itself to the first through the proxy.
#[test]
fn g5_killed_primary_is_served_again_as_soon_as_the_cluster_does() {
    let mut bed = Bed::start(Flavour::Redis);
    let mut delays = Vec::new();
    for round in 0..if is_long() { 30 } else { 3 } {
        let shard = round % 3;
        let (primary, replica) = bed.pair(shard);
        let key = bed.cluster.key_on(shard, &format!("g5-{round}"));
        let crowd = Crowd::start(bed.proxy.port, seed() + round as u64, &usual_styles(0));
        std::thread::sleep(millis(300));
        crowd.may_lose();
        let (direct_port, proxy_port) = (bed.cluster.nodes[replica].port, bed.proxy.port);
        bed.cluster.nodes[primary].process.kill();
        let killed = Instant::now();
        let poll = |port: u16| {
            let key = key.clone();
            std::thread::spawn(move || first_good(port, &key))
        };
        let (direct, proxied) = (poll(direct_port), poll(proxy_port));
        let direct = direct.join().expect("poll of the node") - killed;
        let proxied = proxied.join().expect("poll of the proxy") - killed;
        let later = proxied.saturating_sub(direct);
        println!("G5: the cluster serves after {direct:?}, the proxy {later:?} later");
        delays.push(later);
        let served = crowd.shared.now_ms();
        let soon_ms = goal(millis(500)).as_millis() as u64;
        bed.cluster.nodes[primary].restart();
        rejoin(&bed, primary, replica);
        bed.wait_healed();
        crowd.calm();
        let tally = crowd.finish("G5: clients meanwhile");
        tally.expect_right();
        let late = tally.errors.iter().filter(|(_, (.., last))| *last > served + soon_ms).count();
        assert_eq!(late, 0, "errors {soon_ms} ms after the slot was served: {:?}", tally.errors);
    }
    delays.sort();
    let (median, worst) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    println!("G5: median {median:?}, worst {worst:?} of {} kills", delays.len());
    // A machine that is busy with other work delays single ones.
    let right = median <= goal(millis(250)) && worst <= goal(seconds(1));
    assert!(right, "median {median:?}, worst {worst:?}");
    bed.proxy.expect_alive();
}

fn first_good(port: u16, key: &str) -> Instant {
    let start = Instant::now();
    let mut client = None;
    while start.elapsed() < seconds(30) {
        let mut open = match client.take() {
            Some(open) => open,
            None => match Client::try_connect(port) {
                Ok(open) => open,
                Err(_) => continue,
            },
        };
        if let Ok(reply) = open.try_call(&["SET", key, "v"]) {
            if reply.text() == "OK" {
                return Instant::now();
            }
            client = Some(open);
        }
        std::thread::sleep(millis(2));
    }
    panic!("nothing good from {port}");
}

/// No increment is run twice and no acknowledged one is lost, however connections break.
#[test]
fn g3_cut_connections_double_no_write() {
    let cluster = bed::cluster(Flavour::Redis, 0);
    let relays: Vec<Relay> = cluster.nodes.iter().map(|node| Relay::start(node.port)).collect();
    let mut proxy = relayed(&cluster, &relays, "request_timeout_ms = 1000\n");
    let styles: Vec<Style> = [256, 256, 64, 1, 1, 500]
        .map(|depth| Style { depth, mix: Mix::COUNTING, resp3: depth == 64, ..Style::PLAIN })
        .into();
    let crowd = Crowd::start(proxy.port, seed(), &styles);
    let (start, budget) = (Instant::now(), budget(8));
    let mut random = Random(seed());
    let mut cuts = 0;
    let goal = number("RINGWAY_CHAOS_COMMANDS").unwrap_or(if is_long() { 1_000_000 } else { 0 });
    while start.elapsed() < budget || cuts < 50 || crowd.verified() < goal * 10 / 9 {
        let relay = &relays[random.below(3) as usize];
        match random.below(4) {
            // After the request was passed on and before its reply.
            0 | 1 => {
                let nth = random.below(400) as usize;
                relay.arm(nth, What::Cut { bytes: random.below(8) as usize });
                crate::bed::pause(seconds(2), || relay.has_fired());
            }
            2 => relay.cut_all(),
            _ => {
                let node = random.below(3) as usize;
                let bed_node = &cluster.nodes[node];
                bed_node.client().run("CLIENT KILL TYPE normal");
            }
        }
        cuts += 1;
        std::thread::sleep(millis(random.below(120)));
    }
    let tally = crowd.finish(&format!("{cuts} cuts"));
    println!(
        "G3: {} increments and appends acknowledged, {cuts} cuts, {} doubled, {} wrong, {} lost",
        tally.counted,
        tally.doubled.len(),
        tally.wrong.len(),
        tally.lost
    );
    assert!(cuts >= 50);
    tally.expect_right();
    assert_eq!(tally.lost, 0, "acknowledged increments lost");
    proxy.expect_alive();
}

/// A proxy that reaches each node through its relay.
pub fn relayed(
    cluster: &crate::support::cluster::Cluster,
    relays: &[Relay],
    options: &str,
) -> Proxy {
    let mut text = format!("[[pool]]\n{options}[pool.address_map]\n");
    for (node, relay) in cluster.nodes.iter().zip(relays) {
        text += &format!("\"{}\" = \"127.0.0.1:{}\"\n", node.address(), relay.port);
    }
    Proxy::start_with(cluster, &Settings::config(&text))
}

#[test]
fn g17_storm_of_redirects_asks_for_the_map_once_a_second() {
    let node = Fake::start();
    node.set_map(&Map::all_at(Some("127.0.0.1"), node.port()));
    let mut proxy = Proxy::start_at(&[format!("127.0.0.1:{}", node.port())], &Settings::default());
    let mut client = proxy.client();
    wait_until(seconds(8), "the proxy to serve", || client.run("GET x").text() == "nil");
    let back = format!("-MOVED {} 127.0.0.1:{}", slot(b"x"), node.port());
    node.answer(move |request| match request.name.as_str() {
        "GET" => say(&back),
        _ => Answer::Usual,
    });
    let asked = |node: &Fake| -> u64 {
        let names = ["SLOTS", "SHARDS", "NODES", "INFO"];
        names.iter().map(|name| node.seen(&format!("CLUSTER {name}"))).sum()
    };
    let end = Arc::new(AtomicBool::new(false));
    let storm = |_| {
        let (end, port) = (Arc::clone(&end), proxy.port);
        std::thread::spawn(move || {
            let mut client = Client::connect(port);
            while !end.load(Ordering::Relaxed) {
                for reply in client.pipeline(&vec!["GET x"; 200]) {
                    assert!(reply.is_error() && !reply.text().starts_with("-MOVED"));
                }
            }
        })
    };
    let clients: Vec<_> = (0..4).map(storm).collect();
    // The first ones come sooner, in case that they bring news.
    std::thread::sleep(seconds(3));
    let (before, sent, start) = (asked(&node), node.seen("GET"), Instant::now());
    std::thread::sleep(seconds(if is_long() { 60 } else { 9 }));
    let took = start.elapsed().as_secs_f64();
    let per_second = (asked(&node) - before) as f64 / took;
    let storm_per_second = (node.seen("GET") - sent) as f64 / took;
    end.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().expect("a client of the storm"));
    println!("G17: {storm_per_second:.0} MOVED a second, {per_second:.2} CLUSTER calls a second");
    // One conversation is three calls: its edges may add one to what is one call a second.
    assert!(per_second <= 1.0 + 3.0 / took, "{per_second:.2} CLUSTER calls a second");
    proxy.expect_alive();
}

/// What a storm of cut connections at one node does to the others: nothing.
#[test]
fn cut_connections_at_one_node_are_seen_by_its_keys_only() {
    let mut bed = Bed::start_calm(Flavour::Redis);
    let key = bed.cluster.key_on(0, "calm");
    let (port, end) = (bed.proxy.port, Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&end);
    let calm = std::thread::spawn(move || {
        let (mut client, mut count) = (Client::connect(port), 0_u64);
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(client.run(&format!("SET {key} {count}")).text(), "OK");
            assert_eq!(client.run(&format!("GET {key}")).text(), format!("\"{count}\""));
            count += 1;
        }
        count
    });
    for _ in 0..100 {
        kill_connections(&bed, 1);
        std::thread::sleep(millis(10));
    }
    end.store(true, Ordering::Relaxed);
    let count = calm.join().expect("a client of another node saw no error");
    assert!(count > 100, "only {count} rounds");
    assert!(is_primary(&bed.cluster, 1));
    bed.proxy.expect_alive();
}
