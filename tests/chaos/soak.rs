//! Many clients that do nothing, and a long time in which much happens: G13, G14, G19.
//!
//! Not here: memory under abuse (`tests/cases/memory`).

use std::time::Instant;

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
    /// Pages of its own: without those of the program's file, which come and go with the page cache.
    resident_kib: u64,
    /// What it has allocated.
    held_kib: u64,
    descriptors: usize,
}

fn sample(proxy: &Proxy, start: Instant) -> Sample {
    Sample {
        at: start.elapsed().as_secs_f64(),
        resident_kib: anonymous_kib(proxy.process.id()),
        held_kib: field(&proxy.client().run("INFO memory").string(), "used_memory") / 1024,
        descriptors: descriptors(proxy.process.id()),
    }
}

fn anonymous_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.expect("RssAnon")
}

pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |folder| folder.count())
}

/// The samples of one stretch of time. What requests in flight hold comes and goes, and free pages
/// go back once a minute: what stays is the least.
#[derive(Copy, Clone, Debug)]
struct Stretch {
    at: f64,
    resident: (u64, u64),
    held: (u64, u64),
    descriptors: (usize, usize),
}

impl Stretch {
    fn of(samples: &[Sample]) -> Stretch {
        let range = |of: fn(&Sample) -> u64| {
            let all = || samples.iter().map(of);
            (all().min().unwrap_or(0), all().max().unwrap_or(0))
        };
        let (least, most) = range(|sample| sample.descriptors as u64);
        Stretch {
            at: samples.iter().map(|sample| sample.at).sum::<f64>() / samples.len() as f64,
            resident: range(|sample| sample.resident_kib),
            held: range(|sample| sample.held_kib),
            descriptors: (least as usize, most as usize),
        }
    }
}

/// KiB per hour by least squares, and its standard error.
#[derive(Copy, Clone, Debug)]
struct Slope {
    kib: f64,
    error: f64,
}

impl Slope {
    fn of(points: impl Iterator<Item = (f64, u64)> + Clone) -> Slope {
        let n = points.clone().count() as f64;
        let mean_x = points.clone().map(|(x, _)| x).sum::<f64>() / n;
        let mean_y = points.clone().map(|(_, y)| y as f64).sum::<f64>() / n;
        let from_mean = points.map(|(x, y)| (x - mean_x, y as f64 - mean_y));
        let xx = from_mean.clone().map(|(x, _)| x * x).sum::<f64>();
        let each = from_mean.clone().map(|(x, y)| x * y).sum::<f64>() / xx;
        let off = from_mean.map(|(x, y)| (y - each * x).powi(2)).sum::<f64>();
        Slope { kib: each * 3_600.0, error: (off / (n - 2.0).max(1.0) / xx).sqrt() * 3_600.0 }
    }

    /// What it is at least, but for chance of some percent.
    fn sure(&self) -> f64 {
        self.kib - 2.0 * self.error
    }
}

impl std::fmt::Display for Slope {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{:+.0} (error {:.0})", self.kib, self.error)
    }
}

/// Of the least and of the most of each stretch: a leak lifts both, what comes and goes only one.
fn growth(stretches: &[Stretch], of: fn(&Stretch) -> (u64, u64)) -> [Slope; 2] {
    let points = || stretches.iter().map(move |stretch| (stretch.at, of(stretch)));
    [
        Slope::of(points().map(|(at, (least, _))| (at, least))),
        Slope::of(points().map(|(at, (_, most))| (at, most))),
    ]
}

fn surely_grows(slopes: &[Slope; 2]) -> bool {
    slopes.iter().all(|slope| slope.sure() > 1_024.0)
}

#[test]
fn slope_of_a_leak_is_seen_under_what_comes_and_goes() {
    let grows = |leak: f64| {
        let samples: Vec<Sample> = (0..2_400_u64)
            .map(|i| {
                // Free pages go back at other times than stretches end; each has its own luck.
                let (at, wave, luck) = (i as f64 / 4.0, i % 200 * 7, i / 240 * 7_919 % 13 * 30);
                let resident_kib = 13_000 + wave + luck + (leak * at / 3_600.0) as u64;
                Sample { at, resident_kib, held_kib: 13_000, descriptors: 40 }
            })
            .collect();
        let stretches: Vec<Stretch> = samples.chunks(240).map(Stretch::of).collect();
        surely_grows(&growth(&stretches[3..], |stretch| stretch.resident))
    };
    assert_eq!([0.0, 800.0, 8_000.0, 20_000.0].map(grows), [false, false, true, true]);
}

/// Half load and a fault a minute (in CI: a short time, and one fault after the other). The first
/// third is for pools, tables and kept scripts to reach their size.
#[test]
fn g19_memory_and_descriptors_stay_as_they_are_through_a_soak() {
    let usual = if is_long() { 600 } else { 5 };
    let budget = seconds(number("RINGWAY_SOAK_SECONDS").unwrap_or(usual));
    let is_long = budget >= seconds(300);
    let between = seconds(if is_long { 60 } else { 1 });
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
    let tally = crowd.finish(&format!("G19: {:?}", start.elapsed()));
    let count = if is_long { budget.as_secs() as usize / 60 } else { 3 };
    let stretches: Vec<Stretch> =
        samples.chunks(samples.len().div_ceil(count)).map(Stretch::of).collect();
    for Stretch { at, resident, held, descriptors } in &stretches {
        println!(
            "    around {at:.0} s: {} to {} KiB resident, {} to {} KiB allocated, {} to {} descriptors",
            resident.0, resident.1, held.0, held.1, descriptors.0, descriptors.1
        );
    }
    let settled = &stretches[stretches.len() / 3..];
    let resident = growth(settled, |stretch| stretch.resident);
    let held = growth(settled, |stretch| stretch.held);
    let (first, last) = (settled[0], settled[settled.len() - 1]);
    println!(
        "G19: {} commands verified in {:.0} s, {} faults, {} wrong; after the first third resident \
         memory grows by {} KiB an hour at the least and {} at the most, allocated by {} and {}; \
         descriptors {} and {}",
        tally.verified,
        start.elapsed().as_secs_f64(),
        faults.total(),
        tally.wrong.len(),
        resident[0],
        resident[1],
        held[0],
        held[1],
        first.descriptors.0,
        last.descriptors.0,
    );
    tally.expect_right();
    // Connections for scripts are made when they are wanted, two at each of three nodes for both
    // versions: in a short time not all of them are there after a third.
    let to_come = if is_long { 2 } else { 12 };
    assert!(last.descriptors.0 <= first.descriptors.0 + to_come, "{first:?} {last:?}");
    // Minutes say nothing of hours if they are few.
    assert!(!is_long || !surely_grows(&resident), "{resident:?}: {stretches:#?}");
    bed.proxy.expect_alive();
}
