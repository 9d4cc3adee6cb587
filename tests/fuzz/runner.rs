//! The seeded loop: executions one by one, each with its own chance, and what is told of a failure.
//!
//! Seen besides what a check says: a panic, memory beyond a target's bounds, an execution that takes
//! for ever. Not here: targets (`shared::targets`), cargo-fuzz.

#![allow(clippy::disallowed_methods, reason = "a test may read the clock")]

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::heap::measured;
use crate::shared::random::Random;
use crate::shared::targets::Target;

/// Seconds after which an execution counts as one that never ends; most take microseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Executions while an input is made smaller.
const SHRINKS_MAX: usize = 4000;

#[derive(Debug)]
pub struct Failure {
    pub execution: u64,
    pub input: Vec<u8>,
    pub small: Vec<u8>,
    /// Why the small one fails.
    pub why: String,
}

impl Failure {
    /// All that is needed to see it again.
    pub fn report(&self, target: &Target, seed: u64) -> String {
        let hex: String = self.small.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "target {}, seed {seed}, execution {}: what must hold is that {}.\n{}\n\
             input of {} bytes, made smaller to {}: \"{}\"\nto repeat:\n  \
             RINGWAY_FUZZ_INPUT={hex} cargo test --locked --profile simulation --test fuzz {}",
            target.name,
            self.execution,
            target.property,
            self.why,
            self.input.len(),
            self.small.len(),
            self.small.escape_ascii(),
            target.name,
        )
    }
}

/// Chance of one execution: it hangs on nothing but these.
fn chance(target: &Target, seed: u64, execution: u64) -> Random {
    let name = Random::of(target.name.as_bytes()).next();
    Random::new(seed ^ name ^ execution.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

pub fn input_of(target: &Target, seed: u64, execution: u64) -> Vec<u8> {
    (target.make)(&mut chance(target, seed, execution))
}

/// The first failure of so many executions.
pub fn run(target: &Target, seed: u64, executions: u64) -> Option<Failure> {
    let _watch = Watch::over(target.name, seed);
    for execution in 0..executions {
        EXECUTION.with(|at| at.store(execution, Relaxed));
        let input = input_of(target, seed, execution);
        if execute(target, &input).is_err() {
            let (small, why) = shrink(target, &input);
            return Some(Failure { execution, input, small, why });
        }
    }
    None
}

/// One execution; why it failed.
pub fn execute(target: &Target, input: &[u8]) -> Result<(), String> {
    quieten();
    EXECUTING.set(true);
    let done = execute_aloud(target, input);
    EXECUTING.set(false);
    done
}

fn execute_aloud(target: &Target, input: &[u8]) -> Result<(), String> {
    let (done, held) = measured(|| catch_unwind(AssertUnwindSafe(|| (target.check)(input))));
    match done {
        Ok(Ok(())) => {}
        Ok(Err(why)) => return Err(why),
        Err(_) => return Err(format!("panic: {}", PANICKED.take())),
    }
    let (base, each) = target.memory;
    let most = base + each * input.len();
    if held > most {
        return Err(format!("{held} bytes held for an input of {}; at most {most}", input.len()));
    }
    Ok(())
}

/// A panic within an execution is told by its failure, not as it happens: shrinking has hundreds.
fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let aloud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| match EXECUTING.get() {
            true => PANICKED.set(panic.to_string()),
            false => aloud(panic),
        }));
    });
}

/// Leaves out pieces, then makes bytes plain, as long as it still fails.
fn shrink(target: &Target, input: &[u8]) -> (Vec<u8>, String) {
    let mut small = input.to_vec();
    let mut why = execute(target, input).err().unwrap_or_default();
    let mut left = SHRINKS_MAX;
    let mut piece = small.len().div_ceil(2).max(1);
    loop {
        let before = small.len();
        let mut at = 0;
        while at < small.len() && left > 0 {
            left -= 1;
            let mut shorter = small.clone();
            shorter.drain(at..(at + piece).min(small.len()));
            match execute(target, &shorter) {
                Err(still) => (small, why) = (shorter, still),
                Ok(()) => at += piece,
            }
        }
        // What could not go before may go once something else has.
        let settled = piece == 1 && small.len() == before;
        if settled || left == 0 {
            break;
        }
        piece = piece.div_ceil(2);
    }
    for at in 0..small.len() {
        for plain in [0, b'0', b'a'] {
            if left == 0 || small[at] <= plain {
                break;
            }
            left -= 1;
            let mut simpler = small.clone();
            simpler[at] = plain;
            if let Err(still) = execute(target, &simpler) {
                (small, why) = (simpler, still);
                break;
            }
        }
    }
    (small, why)
}

thread_local! {
    static EXECUTING: Cell<bool> = const { Cell::new(false) };
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
    static EXECUTION: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
}

/// Ends the process, and says how to see it again, when one execution does not end.
struct Watch(&'static AtomicBool);

impl Watch {
    fn over(name: &'static str, seed: u64) -> Watch {
        let over: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let at = EXECUTION.with(|at| *at);
        std::thread::spawn(move || {
            let (mut last, mut since) = (u64::MAX, Instant::now());
            while !over.load(Relaxed) {
                let now = at.load(Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > PATIENCE {
                    eprintln!(
                        "target {name}, seed {seed}, execution {now}: no end after {PATIENCE:?}\nto repeat:\n  \
                         RINGWAY_FUZZ_SEED={seed} RINGWAY_FUZZ_EXECUTION={now} cargo test --locked \
                         --profile simulation --test fuzz {name}"
                    );
                    std::process::exit(101);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Watch(over)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
