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
    let told = std::env::var("RINGWAY_CHAOS_SECONDS").ok().and_then(|text| text.parse().ok());
    let long = std::env::var_os("RINGWAY_LONG").map(|_| 600);
    seconds(told.or(long).unwrap_or(usual))
}

pub fn is_long() -> bool {
    std::env::var_os("RINGWAY_LONG").is_some()
}

pub fn seed() -> u64 {
    let told = std::env::var("RINGWAY_CHAOS_SEED").ok().and_then(|text| text.parse().ok());
    told.unwrap_or(1)
}

fn storm(flavour: Flavour, allowed: &[Fault], budget: Duration) {
    let mut bed = Bed::start(flavour);
    let crowd = Crowd::start(bed.proxy.port, seed(), &usual_styles(8));
    let mut faults = Faults::new(seed(), allowed);
    let start = Instant::now();
    while start.elapsed() < budget {
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
    tally.expect_right();
    bed.proxy.expect_alive();
}

#[test]
fn nobody_gets_anothers_reply_whatever_happens_to_redis() {
    storm(Flavour::Redis, &Fault::ALL, budget(20));
}

#[test]
fn nobody_gets_anothers_reply_whatever_happens_to_valkey() {
    storm(Flavour::Valkey, &Fault::ALL, budget(15));
}
