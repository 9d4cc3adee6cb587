//! G1: everything that can be done to a cluster, one after the other, under full load. No reply
//! may be somebody else's.
//!
//! Not here: figures of single faults (`figures`).

use std::time::{Duration, Instant};

use crate::bed::Bed;
use crate::crowd::{Crowd, usual_styles};
use crate::faults::{Fault, Faults};
use crate::host::cpu_ticks;
use crate::support::cluster::Flavour;
use crate::support::{is_strict, millis, seconds};

/// `RINGWAY_CHAOS_SECONDS`, or ten minutes with `RINGWAY_LONG`, or what CI can afford.
pub fn budget(usual: u64) -> Duration {
    let long = is_long().then_some(600);
    seconds(number("RINGWAY_CHAOS_SECONDS").or(long).unwrap_or(usual))
}

pub fn is_long() -> bool {
    std::env::var_os("RINGWAY_LONG").is_some()
}

pub fn seed() -> u64 {
    number("RINGWAY_CHAOS_SEED").unwrap_or(1)
}

/// A number from the environment.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// What a run must reach before it may end: half of G1, for there are two kinds of servers.
struct Goal {
    verified: u64,
    faults: u32,
}

impl Goal {
    fn get() -> Goal {
        let usual = if is_long() { 15_000_000 } else { 1_500_000 };
        let verified = number("RINGWAY_CHAOS_COMMANDS").unwrap_or(usual);
        Goal { verified, faults: if is_long() { 50 } else { 0 } }
    }

    fn is_reached(&self, crowd: &Crowd, faults: &Faults) -> bool {
        crowd.verified() >= self.verified && faults.total() >= self.faults
    }
}

/// Until `budget` is spent and the goal is reached; on a machine too slow for that until the budget
/// is spent four times, unless figures are asked for.
fn storm(flavour: Flavour, allowed: &[Fault], budget: Duration) {
    let mut bed = Bed::start_by_clock(flavour);
    let crowd = Crowd::start_with(bed.proxy.port, seed(), &usual_styles(6), 2);
    let mut faults = Faults::new(seed(), allowed);
    let (start, goal) = (Instant::now(), Goal::get());
    let most = if is_long() || is_strict() { Duration::MAX } else { 4 * budget };
    while start.elapsed() < budget || (start.elapsed() < most && !goal.is_reached(&crowd, &faults))
    {
        faults.next(&mut bed, &crowd);
        std::thread::sleep(Duration::from_millis(100));
    }
    let tally = crowd.finish(&format!("{flavour:?}, seed {}", seed()));
    println!(
        "    {} faults: {:?}; {} slots moved",
        faults.total(),
        faults.done,
        faults.slots_moved
    );
    println!(
        "G1: {flavour:?}: {} commands verified, {} faults, {} wrong, {} doubled, {} hung",
        tally.verified,
        faults.total(),
        tally.wrong.len(),
        tally.doubled.len(),
        tally.hung
    );
    tally.expect_right();
    assert!(tally.verified >= goal.verified / 10, "only {} verified", tally.verified);
    bed.proxy.expect_alive();
}

#[test]
fn g1_nobody_gets_anothers_reply_whatever_happens_to_redis() {
    storm(Flavour::Redis, &Fault::ALL, budget(16));
}

#[test]
fn g1_nobody_gets_anothers_reply_whatever_happens_to_valkey() {
    storm(Flavour::Valkey, &Fault::ALL, budget(12));
}

/// What is served without faults, a second at a time, and CPU time by whose it is.
struct Meter {
    verified: u64,
    since: Instant,
    ticks: [u64; 3],
}

impl Meter {
    fn start(bed: &Bed, crowd: &Crowd) -> Meter {
        Meter { verified: crowd.verified(), since: Instant::now(), ticks: ticks(bed) }
    }

    /// Verified a second since then.
    fn rate(&self, crowd: &Crowd) -> f64 {
        (crowd.verified() - self.verified) as f64 / self.since.elapsed().as_secs_f64()
    }

    /// Nanoseconds for each verified command: the checker's, the proxy's, the nodes'.
    fn cpu_ns(&self, bed: &Bed, crowd: &Crowd) -> [u64; 3] {
        let (now, count) = (ticks(bed), (crowd.verified() - self.verified).max(1));
        std::array::from_fn(|i| now[i].saturating_sub(self.ticks[i]) * 10_000_000 / count)
    }
}

/// CPU time of this process, of the proxy, of the nodes that live, in hundredths of a second.
fn ticks(bed: &Bed) -> [u64; 3] {
    let nodes = bed.cluster.nodes.iter().map(|node| cpu_ticks(node.process.id())).sum();
    [cpu_ticks(std::process::id()), cpu_ticks(bed.proxy.process.id()), nodes]
}

/// Mostly readers: as many verified replies a second as the machine gives, while nodes are killed,
/// stopped and replaced.
#[test]
fn g1_readers_in_depth_get_what_was_written_while_nodes_fail() {
    let mut bed = Bed::start(Flavour::Redis);
    let mut writers = usual_styles(1);
    // They are for the values; the load is the readers'.
    writers.iter_mut().for_each(|style| style.pause = millis(2));
    let crowd = Crowd::start_with(bed.proxy.port, seed(), &writers, 4);
    let plain = [Fault::KillPrimary, Fault::StopShort, Fault::Failover, Fault::KillConnections];
    let mut faults = Faults::new(seed(), &plain);
    std::thread::sleep(millis(500));
    let (all, mut calm) = (Meter::start(&bed, &crowd), Vec::new());
    let budget = if is_long() { seconds(60) } else { seconds(2) };
    let mut cpu = [0; 3];
    while all.since.elapsed() < budget {
        let meter = Meter::start(&bed, &crowd);
        std::thread::sleep(seconds(1));
        calm.push(meter.rate(&crowd));
        if calm.len() == 1 {
            cpu = meter.cpu_ns(&bed, &crowd);
        }
        faults.next(&mut bed, &crowd);
    }
    let overall = all.rate(&crowd);
    let proxy_ns = all.cpu_ns(&bed, &crowd)[1];
    let tally = crowd.finish("readers in depth");
    calm.sort_by(f64::total_cmp);
    let median = calm[calm.len() / 2];
    println!(
        "G1: {median:.0} verified a second between faults (median of {}, best {:.0}), {overall:.0} \
         over all time; {} faults, {} wrong; CPU of one without faults: checker {} ns, proxy {} \
         ns, nodes {} ns; over all time the proxy's is {proxy_ns} ns",
        calm.len(),
        calm[calm.len() - 1],
        faults.total(),
        tally.wrong.len(),
        cpu[0],
        cpu[1],
        cpu[2],
    );
    tally.expect_right();
    bed.proxy.expect_alive();
    // A figure of the machine, for whoever asks for figures.
    let strict = is_long() && std::env::var_os("RINGWAY_STRICT").is_some();
    assert!(!strict || median >= 300_000.0, "{median:.0} verified a second");
}
