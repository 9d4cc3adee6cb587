//! Many clients that do nothing, and a long time in which much happens: G13, G14, G19.
//!
//! Not here: memory under abuse (`tests/cases/memory`).

use std::time::{Duration, Instant};

use crate::bed::{self, Bed};
use crate::crowd::{Crowd, Style, usual_styles};
use crate::faults::{Fault, Faults};
use crate::host::{cpu_ticks, field};
use crate::mixed::{is_long, number, seed};
use crate::support::client::Client;
use crate::support::cluster::Flavour;
use crate::support::proxy::{Proxy, Settings};
use crate::support::{millis, seconds};

/// Each does one GET first and one last.
#[test]
fn g13_g14_idle_clients_cost_little_and_are_all_served_at_the_end() {
    let count = if is_long() { 15_000 } else { 3_000 };
    let cluster = bed::cluster(Flavour::Redis, 0);
    let most = (count + 100).to_string();
    let mut proxy = Proxy::start_with(&cluster, &Settings::args(&["--maxclients", &most]));
    let key = cluster.key_on(1, "idle");
    assert_eq!(proxy.client().run(&format!("SET {key} v")).text(), "OK");
    std::thread::sleep(millis(300));
    let before = proxy.process.resident_kib();
    let line = format!("GET {key}");
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..count {
        let mut client = proxy.client();
        assert_eq!(client.run(&line).text(), "\"v\"");
        clients.push(client);
    }
    let each = proxy.process.resident_kib().saturating_sub(before) * 1024 / count;
    let (ticks, start) = (cpu_ticks(proxy.process.id()), Instant::now());
    std::thread::sleep(seconds(if is_long() { 10 } else { 1 }));
    let idle = (cpu_ticks(proxy.process.id()) - ticks) as f64 / start.elapsed().as_secs_f64();
    let served = clients.iter_mut().filter_map(|client| client.try_call(&["GET", &key]).ok());
    let served = served.filter(|reply| reply.text() == "\"v\"").count();
    println!("G13: {count} idle clients, {served} served at the end");
    println!("G14: {each} bytes for each of them, {idle:.2} % CPU of all");
    assert_eq!(served as u64, count);
    assert!(each <= 1_024, "{each} bytes for each idle client");
    assert!(idle < 1.0, "{idle:.2} % CPU of all idle clients");
    proxy.expect_alive();
}

/// A moment of the proxy's process.
#[derive(Copy, Clone, Debug)]
struct Sample {
    at: f64,
    resident_kib: u64,
    /// What it has allocated.
    held_kib: u64,
    descriptors: usize,
}

fn sample(proxy: &Proxy, start: Instant) -> Sample {
    Sample {
        at: start.elapsed().as_secs_f64(),
        resident_kib: proxy.process.resident_kib(),
        held_kib: field(&proxy.client().run("INFO memory").string(), "used_memory") / 1024,
        descriptors: descriptors(proxy.process.id()),
    }
}

pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |folder| folder.count())
}

/// KiB per hour: least squares.
fn slope(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> f64 {
    let n = samples.len() as f64;
    let mean_x = samples.iter().map(|s| s.at).sum::<f64>() / n;
    let mean_y = samples.iter().map(|s| of(s) as f64).sum::<f64>() / n;
    let xy = |s: &Sample| (s.at - mean_x) * (of(s) as f64 - mean_y);
    let xx = |s: &Sample| (s.at - mean_x).powi(2);
    samples.iter().map(xy).sum::<f64>() / samples.iter().map(xx).sum::<f64>() * 3_600.0
}

/// Half load and a fault a minute (in CI: a short time, and one fault after the other). The first
/// third is for pools and kept scripts to reach their size.
#[test]
fn g19_memory_and_descriptors_stay_as_they_are_through_a_soak() {
    let usual = if is_long() { 600 } else { 5 };
    let budget = seconds(number("RINGWAY_SOAK_SECONDS").unwrap_or(usual));
    let between = seconds(if is_long() { 60 } else { 1 });
    let mut bed = Bed::start(Flavour::Redis);
    let mut styles = usual_styles(4);
    styles.iter_mut().for_each(|style: &mut Style| style.pause = millis(20));
    let crowd = Crowd::start(bed.proxy.port, seed(), &styles);
    let allowed = [
        Fault::KillConnections,
        Fault::KillClients,
        Fault::Failover,
        Fault::StopShort,
        Fault::KillReplica,
        Fault::KillPrimary,
        Fault::MaxClients,
        Fault::ReshardClassic,
    ];
    let mut faults = Faults::new(seed(), &allowed);
    let (start, mut next, mut samples) = (Instant::now(), between / 2, Vec::new());
    while start.elapsed() < budget {
        std::thread::sleep(millis(250));
        samples.push(sample(&bed.proxy, start));
        // None at the end, so that the last samples are of calm.
        if start.elapsed() > next && start.elapsed() + between / 2 < budget {
            next = start.elapsed() + between;
            faults.next(&mut bed, &crowd);
        }
    }
    let settled = &samples[samples.len() / 3..];
    let (first, last) = (settled[0], settled[settled.len() - 1]);
    let per_hour = slope(settled, |sample| sample.resident_kib);
    let held_per_hour = slope(settled, |sample| sample.held_kib);
    let tally = crowd.finish(&format!("G19: {:?}", start.elapsed()));
    println!(
        "G19: {} commands verified in {:.0} s, {} faults, {} wrong; resident memory {} KiB after a \
         third, {} KiB at the end, {per_hour:+.0} KiB an hour; allocated {held_per_hour:+.0} KiB an \
         hour; descriptors {} and {}",
        tally.verified,
        start.elapsed().as_secs_f64(),
        faults.total(),
        tally.wrong.len(),
        first.resident_kib,
        last.resident_kib,
        first.descriptors,
        last.descriptors,
    );
    tally.expect_right();
    // Connections for scripts are made when they are wanted, two at each of three nodes for both
    // versions: in a short time not all of them are there after a third.
    let to_come = if budget < Duration::from_secs(300) { 12 } else { 2 };
    assert!(last.descriptors <= first.descriptors + to_come, "{first:?} {last:?}");
    // Minutes say nothing of hours if they are few. Resident memory rises with the highest that was
    // allocated at once, and stays; what leaks makes both rise.
    let growth = per_hour.min(held_per_hour);
    assert!(budget < Duration::from_secs(300) || growth < 1_024.0, "{growth:.0} KiB an hour");
    bed.proxy.expect_alive();
}
