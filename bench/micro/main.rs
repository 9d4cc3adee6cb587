//! Micro-benchmarks of the pure rooms: what one command costs without the kernel.
//!
//!     bench/micro.sh                     instructions of each, counted by valgrind: the same on a busy machine
//!     cargo bench --bench micro          nanoseconds of each: for a quiet machine
//!     cargo test --bench micro           each a few times, its result checked
//!
//! No framework: an instruction count needs nothing but a program that runs one case `n` times (`--count`), so that the
//! difference between two runs is what the case costs; and the two well-kept frameworks bring thirty crates, or a second
//! program of exactly their version, into every build. Not here: the kernel's part, which `bench/compare.sh` measures.
#![allow(clippy::disallowed_methods)]

mod cases;
#[path = "../../tests/support/rig.rs"]
mod rig;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cases::{Case, all};

/// Of so many samples the quickest counts: what is slower was disturbed.
const SAMPLES: usize = 30;
const SAMPLE: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["--names"] => {
            for case in all() {
                println!("{}\t{}", case.name, case.commands);
            }
            ExitCode::SUCCESS
        }
        ["--count", name, times] => count(name, times),
        // Cargo's own: `cargo bench` says so.
        [.., "--bench"] => {
            time_all();
            ExitCode::SUCCESS
        }
        _ => test_all(),
    }
}

/// For callgrind: nothing but so many runs of one case.
fn count(name: &str, times: &str) -> ExitCode {
    let case = all().into_iter().find(|case| case.name == name);
    let (Some(mut case), Ok(times)) = (case, times.parse::<u64>()) else {
        eprintln!("micro: --count NAME TIMES; the names: micro --names");
        return ExitCode::from(2);
    };
    for _ in 0..times {
        std::hint::black_box((case.run)());
    }
    ExitCode::SUCCESS
}

/// Each case some times: it must go on giving what it should.
fn test_all() -> ExitCode {
    let cases = all();
    println!("\nrunning {} tests", cases.len());
    let mut failed = 0;
    for mut case in cases {
        let times = if case.commands > 500 { 10 } else { 100 };
        let wrong = (0..times).map(|_| (case.run)()).find(|found| *found != case.expected);
        match wrong {
            None => println!("test {} ... ok", case.name),
            Some(found) => {
                failed += 1;
                println!("test {} ... FAILED: {found} instead of {}", case.name, case.expected);
            }
        }
    }
    let (word, passed) = (if failed == 0 { "ok" } else { "FAILED" }, all().len() - failed);
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn time_all() {
    println!("{:<32} {:>12}", "quickest of 30 samples", "ns/command");
    for mut case in all() {
        let each = time(&mut case) / f64::from(case.commands);
        println!("{:<32} {each:>12.1}", case.name);
    }
}

/// Nanoseconds of one run.
fn time(case: &mut Case) -> f64 {
    let mut times = 1u32;
    let mut best = f64::MAX;
    for _ in 0..SAMPLES {
        loop {
            let start = Instant::now();
            for _ in 0..times {
                std::hint::black_box((case.run)());
            }
            let spent = start.elapsed();
            best = best.min(spent.as_nanos() as f64 / f64::from(times));
            if spent >= SAMPLE || times > u32::MAX / 2 {
                break;
            }
            times *= 2;
        }
    }
    best
}
