//! G1: everything that can be done to a cluster, one after the other, under full load. No reply
//! may be somebody else's.
//!
//! Not here: figures of single faults (`figures`).

use std::time::{Duration, Instant};

use crate::bed::Bed;
use crate::crowd::{Crowd, usual_styles};
use crate::faults::{Fault, Faults};
use crate::support::cluster::Flavour;
use crate::support::seconds;

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

/// Until `budget` is spent and the goal is reached. A machine too slow for that is found out by the
/// time limit of whoever started it.
fn storm(flavour: Flavour, allowed: &[Fault], budget: Duration) {
    let mut bed = Bed::start_by_clock(flavour);
    let crowd = Crowd::start_with(bed.proxy.port, seed(), &usual_styles(6), 2);
    let mut faults = Faults::new(seed(), allowed);
    let (start, goal) = (Instant::now(), Goal::get());
    while start.elapsed() < budget || !goal.is_reached(&crowd, &faults) {
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

/// Mostly readers: as many verified replies a second as the machine gives, while nodes are killed,
/// stopped and replaced.
#[test]
fn g1_readers_in_depth_get_what_was_written_while_nodes_fail() {
    let mut bed = Bed::start(Flavour::Redis);
    let writers = usual_styles(1);
    let crowd = Crowd::start_with(bed.proxy.port, seed(), &writers, 4);
    let plain = [Fault::KillPrimary, Fault::StopShort, Fault::Failover, Fault::KillConnections];
    let mut faults = Faults::new(seed(), &plain);
    let (start, mut best) = (Instant::now(), 0.0_f64);
    let budget = if is_long() { seconds(60) } else { seconds(2) };
    while start.elapsed() < budget {
        let (before, from) = (crowd.verified(), Instant::now());
        faults.next(&mut bed, &crowd);
        std::thread::sleep(seconds(1));
        best = best.max((crowd.verified() - before) as f64 / from.elapsed().as_secs_f64());
    }
    let tally = crowd.finish("readers in depth");
    println!(
        "G1: {:.0} verified a second, at best {best:.0} from one fault to the next; {} faults, {} \
         wrong",
        tally.verified as f64 / start.elapsed().as_secs_f64(),
        faults.total(),
        tally.wrong.len()
    );
    tally.expect_right();
    bed.proxy.expect_alive();
}
