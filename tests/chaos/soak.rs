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

/// The proxy's process while nobody asks for anything.
#[derive(Copy, Clone, Debug)]
struct Sample {
    at: f64,
    /// Pages of its own: without those of the program's file, which come and go with the page cache.
    resident_kib: u64,
    /// What it has allocated.
    held_kib: u64,
    descriptors: usize,
}

/// All that is free has gone back when for so long nothing did; and that is waited for at most. In
/// a short run nobody waits for it.
const SETTLED: Duration = Duration::from_secs(4);
const SETTLED_MAX: Duration = Duration::from_secs(30);

/// A proxy that takes longer for an answer has no CPU, and cannot have given anything back.
const PROMPT: Duration = Duration::from_millis(250);

/// `None`: it does not settle.
fn sample(proxy: &Proxy, start: Instant, settled: Duration) -> Option<Sample> {
    let (since, id, mut client) = (Instant::now(), proxy.process.id(), proxy.client());
    let (mut least, mut changed) = ([u64::MAX; 2], Instant::now());
    loop {
        let asked = Instant::now();
        let text = client.run("INFO memory").string();
        let now = [anonymous_kib(id), field(&text, "used_memory") / 1024];
        if now[0] < least[0] || now[1] < least[1] || asked.elapsed() > PROMPT {
            changed = Instant::now();
        }
        least = [least[0].min(now[0]), least[1].min(now[1])];
        if changed.elapsed() >= settled {
            let [resident_kib, held_kib] = now;
            let (at, descriptors) = (start.elapsed().as_secs_f64(), descriptors(id));
            return Some(Sample { at, resident_kib, held_kib, descriptors });
        }
        if since.elapsed() > SETTLED_MAX {
            return None;
        }
        std::thread::sleep(settled / 16);
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

    fn over(samples: &[Sample], of: fn(&Sample) -> u64) -> Slope {
        Slope::of(samples.iter().map(|sample| (sample.at, of(sample))))
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

/// What memory may grow by in an hour: KiB.
const GROWTH_MAX: f64 = 1_024.0;

#[test]
fn slope_of_a_leak_is_seen_beside_what_rests_have_left() {
    let grows = |leak: f64| {
        let samples: Vec<Sample> = (6..20_u64)
            .map(|i| {
                // Each rest leaves some free pages, by its own luck.
                let (at, luck) = (i as f64 * 30.0, i * 7_919 % 13 * 16);
                let resident_kib = 13_000 + luck + (leak * at / 3_600.0) as u64;
                Sample { at, resident_kib, held_kib: 13_000, descriptors: 40 }
            })
            .collect();
        let slope = Slope::over(&samples, |sample| sample.resident_kib);
        assert!(slope.error < GROWTH_MAX, "{slope}");
        slope.sure() > GROWTH_MAX
    };
    assert_eq!([0.0, 800.0, 4_000.0, 8_000.0].map(grows), [false, false, true, true]);
}

/// Half load and a fault a minute (in CI: a short time, and one fault after the other). Twice a
/// minute nobody asks for anything until what is free has gone back. The first third is for pools,
/// tables and kept scripts to reach their size.
#[test]
fn g19_memory_and_descriptors_stay_as_they_are_through_a_soak() {
    let usual = if is_long() { 600 } else { 5 };
    let budget = seconds(number("RINGWAY_SOAK_SECONDS").unwrap_or(usual));
    let is_long = budget >= seconds(300);
    let (each, settled) = if is_long { (seconds(30), SETTLED) } else { (millis(900), millis(0)) };
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
    let (start, mut samples, mut rests) = (Instant::now(), Vec::new(), 0);
    while start.elapsed() < budget {
        let begun = Instant::now();
        std::thread::sleep(each / 4);
        // None at the end, so that the last samples are of calm; nor at the begin, if it is short.
        let is_faults_turn = if is_long { rests % 2 == 0 } else { rests > 0 };
        if is_faults_turn && start.elapsed() + each < budget {
            faults.next(&mut bed, &crowd);
        }
        std::thread::sleep((each - settled - each / 20).saturating_sub(begun.elapsed()));
        samples.extend(crowd.at_rest(|| sample(&bed.proxy, start, settled)));
        rests += 1;
    }
    let tally = crowd.finish(&format!("G19: {:?}", start.elapsed()));
    for Sample { at, resident_kib, held_kib, descriptors } in &samples {
        println!(
            "    at {at:.0} s: {resident_kib} KiB resident, {held_kib} KiB allocated, {descriptors} \
             descriptors"
        );
    }
    assert!(samples.len() * 3 >= rests * 2, "the machine has no time: it does not settle");
    let settled = &samples[samples.len() / 3..];
    let resident = Slope::over(settled, |sample| sample.resident_kib);
    let held = Slope::over(settled, |sample| sample.held_kib);
    // One of them may be of a moment in which a connection is being made anew.
    let (first, last) = settled.split_at(settled.len().div_ceil(2));
    let early = first.iter().map(|sample| sample.descriptors).max().expect("samples");
    let late = last.iter().map(|sample| sample.descriptors).min().unwrap_or(early);
    println!(
        "G19: {} commands verified in {:.0} s, {} faults, {} wrong; {} of {rests} rests settled: \
         after the first third resident memory grows by {resident} KiB an hour, allocated by \
         {held}; descriptors {early} and {late}",
        tally.verified,
        start.elapsed().as_secs_f64(),
        faults.total(),
        tally.wrong.len(),
        samples.len(),
    );
    tally.expect_right();
    // Connections for scripts are made when they are wanted, two at each of three nodes for both
    // versions: in a short time not all of them are there after a third.
    let to_come = if is_long { 2 } else { 12 };
    assert!(late <= early + to_come, "{samples:#?}");
    // Minutes say nothing of hours if they are few.
    if is_long {
        assert!(held.sure() <= GROWTH_MAX && resident.sure() <= GROWTH_MAX, "{samples:#?}");
        assert!(held.error < GROWTH_MAX, "too much comes and goes to say: {held}");
    }
    bed.proxy.expect_alive();
}
