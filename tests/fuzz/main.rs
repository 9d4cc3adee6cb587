//! Fuzz: any bytes from outside into every pure room, from a seed; and the same bytes to redis-server
//! and to the proxy.
//!
//! `RINGWAY_FUZZ_EXECUTIONS` (of each target; without it so many as its row says, in all about half a
//! minute, or with `RINGWAY_LONG` 20 million), `RINGWAY_FUZZ_SEED` (1), `RINGWAY_FUZZ_INPUT` (hex: that
//! one execution of the chosen target), `RINGWAY_FUZZ_EXECUTION` (that one of the seed),
//! `RINGWAY_FUZZ_SEEDS_TO` (a folder: writes inputs for cargo-fuzz instead of running). Not here: whole
//! runs with time and faults (`tests/simulation`).

mod differential;
#[path = "../support/heap.rs"]
mod heap;
mod live_keys;
mod plants;
mod runner;
mod shared;
mod streams;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::str::FromStr;

use shared::corpus;
use shared::targets::{self, Target, keys_in};

/// Inputs that are written for cargo-fuzz to begin with.
const SEEDS: u64 = 300;

/// Executions of each target in a long run: figure G8.
const LONG: u64 = 20_000_000;

pub fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is none")))
}

pub fn seed() -> u64 {
    variable("RINGWAY_FUZZ_SEED").unwrap_or(1)
}

fn holds(name: &str) {
    let target = targets::find(name).expect("a target of that name");
    if let Some(hex) = variable::<String>("RINGWAY_FUZZ_INPUT") {
        return one(target, &unhex(&hex));
    }
    if let Some(execution) = variable("RINGWAY_FUZZ_EXECUTION") {
        return one(target, &runner::input_of(target, seed(), execution));
    }
    if let Some(folder) = variable::<String>("RINGWAY_FUZZ_SEEDS_TO") {
        return write_seeds(target, Path::new(&folder));
    }
    let long = std::env::var_os("RINGWAY_LONG").is_some();
    let usual = if long { LONG } else { target.executions };
    let executions = variable("RINGWAY_FUZZ_EXECUTIONS").unwrap_or(usual);
    let start = processor_seconds();
    if let Some(failure) = runner::run(target, seed(), executions) {
        panic!("{}", failure.report(target, seed()));
    }
    let took = (processor_seconds() - start).max(0.001);
    let rate = executions as f64 / took;
    let minutes = LONG as f64 / rate / 60.0;
    println!(
        "G8: {name}: {executions} executions from seed {}, all hold; {rate:.0} a second of one CPU (20 \
         million: {minutes:.1} minutes)",
        seed()
    );
}

/// What this thread has had of a CPU: on a shared machine the clock says nothing.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    nanoseconds / 1e9
}

fn one(target: &Target, input: &[u8]) {
    println!("{}: \"{}\"", target.name, input.escape_ascii());
    if let Err(why) = runner::execute(target, input) {
        panic!("{why}");
    }
}

fn write_seeds(target: &Target, folder: &Path) {
    let folder = folder.join(target.name);
    std::fs::create_dir_all(&folder).expect("a folder for seeds");
    for execution in 0..SEEDS {
        let input = runner::input_of(target, seed(), execution);
        std::fs::write(folder.join(format!("seed-{execution:03}")), input).expect("a seed");
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

#[allow(clippy::disallowed_methods, reason = "a test may read the clock")]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// One test for each target, named as it is.
macro_rules! targets {
    ($($name:ident)*) => {
        mod target {
            $(#[test] fn $name() { super::holds(stringify!($name)); })*
        }

        #[test]
        fn every_target_has_its_test() {
            let named = [$(stringify!($name)),*];
            assert_eq!(named, targets::TARGETS.map(|target| target.name));
        }
    };
}

targets!(request reply number config topology keys learned split redirect scan info frames);

#[test]
fn recorded_keys_are_those_that_the_server_told() {
    let recorded = &*corpus::GETKEYS;
    assert!(recorded.len() > 30, "{} recorded", recorded.len());
    for (words, told) in recorded {
        let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        // The server lists no sharded channels, and takes no keys for an error of the request.
        let channels = words[0].starts_with(b"SPUBLISH") || words[0].starts_with(b"SSUBSCRIBE");
        if !channels {
            assert_eq!(keys_in(words).unwrap_or_default(), *told, "{shown:?}");
        }
    }
}
