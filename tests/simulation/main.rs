//! Deterministic simulation: the real `proxy` and `cluster` rooms in virtual time against a model
//! cluster, with faults; everything is drawn from one seed.
//!
//! `RINGWAY_SIMULATION_SEEDS` runs so many seeds from `RINGWAY_SIMULATION_FIRST` on (default 200 from
//! 1), on `RINGWAY_SIMULATION_THREADS` threads (default: as many as there are CPUs); with
//! `RINGWAY_SIMULATION_GO_ON` past failures, a line for each. `RINGWAY_SIMULATION_SEED=n … -- seeds
//! --nocapture` replays one with its events. Not here: sockets and threads of the proxy; real
//! processes are tested elsewhere.

mod blocking;
mod chaos;
mod checker;
mod databases;
mod handover;
mod history;
#[path = "../support/identity.rs"]
mod identity;
mod item;
mod messages;
mod monitor;
mod network;
mod nodes;
mod parameters;
mod plant;
mod random;
mod replication;
#[cfg(test)]
mod scenarios;
mod scripts;
mod serve;
mod synced;
mod topology;
mod transactions;
mod walk;
mod workload;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use history::Violation;
use parameters::Parameters;
use plant::Plant;
use topology::Errand;
use world::{Event, World};

/// What one run came to.
#[derive(Debug, Default)]
struct Report {
    hash: u64,
    virtual_ms: u64,
    events: u64,
    turns: u64,
    answered: u64,
    errors: u64,
    runs: u64,
    refusals: u64,
    inversions: u64,
    walks: u64,
    heard: u64,
    judged: u64,
    lines: u64,
    by_name: u64,
    unknown: u64,
    waits: u64,
    given: u64,
    selected: u64,
}

impl Report {
    fn add(&mut self, other: &Report) {
        self.virtual_ms += other.virtual_ms;
        self.events += other.events;
        self.turns += other.turns;
        self.answered += other.answered;
        self.errors += other.errors;
        self.runs += other.runs;
        self.refusals += other.refusals;
        self.inversions += other.inversions;
        self.walks += other.walks;
        self.heard += other.heard;
        self.judged += other.judged;
        self.lines += other.lines;
        self.by_name += other.by_name;
        self.unknown += other.unknown;
        self.waits += other.waits;
        self.given += other.given;
        self.selected += other.selected;
    }
}

fn run(world: &mut World) -> Result<Report, Violation> {
    let parameters = world.parameters.clone();
    for _ in 0..parameters.clients {
        let requests = 1 + world.random.below(parameters.requests);
        world.add_client(requests, false);
    }
    world.add_ears();
    world.add_watchers();
    world.at(parameters.map_first_us + 1, Event::Errand(Errand::Periodic));
    let learn_us = parameters.map_first_us + 10_000;
    world.at(learn_us, Event::Errand(Errand::Learn));
    world.turn_before(1);
    world.begin_chaos();
    world.run_until(parameters.chaos_ms * 1_000, |_| false);
    heal_and_answer(world, &parameters)?;
    after_heal(world)?;
    quiesce(world, &parameters)?;
    world.history.finish();
    take_violation(world)?;
    Ok(Report {
        hash: world.hash,
        virtual_ms: world.now_us / 1_000,
        events: world.events,
        turns: world.turns,
        answered: world.history.answered,
        errors: world.history.errors,
        runs: world.history.runs,
        refusals: world.redirects_seen,
        inversions: world.history.inversions_allowed,
        walks: world.history.walks,
        heard: world.messages.heard,
        judged: world.messages.judged,
        lines: world.shown.lines,
        by_name: world.history.by_name,
        unknown: world.history.unknown,
        waits: world.history.waits,
        given: world.given,
        selected: world.selected,
    })
}

fn take_violation(world: &mut World) -> Result<(), Violation> {
    world.history.violation.take().map_or(Ok(()), Err)
}

fn failed(checker: &'static str, text: String) -> Result<(), Violation> {
    Err(Violation { checker, text })
}

/// Liveness: when the faults have ended, what was asked is answered in time.
fn heal_and_answer(world: &mut World, parameters: &Parameters) -> Result<(), Violation> {
    world.heal();
    for client in &mut world.clients {
        client.ask_no_more();
    }
    let blocked_us = (0..world.clients.len()).map(|client| world.blocks_for_us(client)).max();
    let patience_us = parameters.patience_ms() * 1_000 + blocked_us.unwrap_or(0);
    let until = world.now_us + patience_us;
    let done = world.run_until(until, |world| !world.clients.iter().any(|client| client.waits()));
    take_violation(world)?;
    if !done {
        let waiting: Vec<String> = (0..world.clients.len())
            .filter(|&client| world.clients[client].waits())
            .map(|client| world.owed(client))
            .collect();
        return failed("liveness", format!("not answered in time: {}", waiting.join("; ")));
    }
    Ok(())
}

/// New clients find everything in order: nothing may fail any more.
fn after_heal(world: &mut World) -> Result<(), Violation> {
    world.break_silent_links();
    let settle = world.now_us + 12_000_000;
    world.run_until(settle, |_| false);
    take_violation(world)?;
    world.check_given()?;
    for client in 0..world.clients.len() {
        if world.clients[client].ear.is_none() {
            world.dismiss(client);
        }
    }
    let settle = world.now_us + 2_000_000;
    world.run_until(settle, |_| false);
    take_violation(world)?;
    world.settled_us = Some(world.now_us);
    let fresh: Vec<usize> = (0..2).map(|_| world.add_client(20, true)).collect();
    // A SCAN of a cluster with few keys asks for thousands of slots: seconds, and each may draw some.
    let until = world.now_us + 60_000_000;
    let done =
        world.run_until(until, |world| fresh.iter().all(|&client| world.clients[client].has_all()));
    take_violation(world)?;
    if !done {
        let owed: Vec<String> = fresh.iter().map(|&client| world.owed(client)).collect();
        return failed("liveness", format!("after the faults: {}", owed.join("; ")));
    }
    Ok(())
}

/// Nobody is there any more: nothing may be left in the tables.
fn quiesce(world: &mut World, parameters: &Parameters) -> Result<(), Violation> {
    world.judge_messages();
    take_violation(world)?;
    if parameters.drains {
        world.drained = true;
        let now = world.now();
        world.proxy.handle_drain(now);
        world.turn_before(world.now_us + 1);
        let until = world.now_us + parameters.patience_ms() * 1_000;
        let gone = |world: &mut World| world.clients_open() == 0;
        if !world.run_until(until, gone) {
            let text = format!("{} clients are left by a drain", world.clients_open());
            return failed("tables", text);
        }
    }
    for client in 0..world.clients.len() {
        world.dismiss(client);
    }
    let until = world.now_us + parameters.patience_ms() * 1_000;
    let empty = |world: &mut World| world.requests_open() == 0 && world.clients_open() == 0;
    if !world.run_until(until, empty) {
        let (requests, clients) = (world.requests_open(), world.clients_open());
        return failed("tables", format!("{requests} requests and {clients} clients are left"));
    }
    let settle = world.now_us + 3_000_000;
    if !world.run_until(settle, |world| !world.subscriptions_left()) {
        let counts: Vec<_> = world.proxies().map(|proxy| proxy.subscription_counts()).collect();
        return failed("tables", format!("subscriptions are left: {counts:?}"));
    }
    take_violation(world)
}

/// One seed, panics turned into violations. `traced`: what happened, as text.
fn run_seed(seed: u64, plant: Plant, traced: bool) -> (Result<Report, Violation>, Vec<String>) {
    run_drawn(Parameters::draw(seed), plant, traced)
}

fn run_drawn(
    parameters: Parameters,
    plant: Plant,
    traced: bool,
) -> (Result<Report, Violation>, Vec<String>) {
    let mut world = World::new(parameters, plant, traced);
    let result = catch_unwind(AssertUnwindSafe(|| run(&mut world)));
    let result = result.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(Violation { checker: "assertion", text: text.unwrap_or_default() })
    });
    (result, world.trace.unwrap_or_default())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs `what` for each number below `count`, on all CPUs.
fn on_all_cpus<T: Send>(count: u64, what: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let threads = number("RINGWAY_SIMULATION_THREADS").unwrap_or(cpus);
    let next = AtomicU64::new(0);
    let work = || {
        let mine = std::iter::repeat_with(|| next.fetch_add(1, Relaxed));
        mine.take_while(|&n| n < count).map(&what).collect::<Vec<T>>()
    };
    std::thread::scope(|scope| {
        let hands: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        hands.into_iter().flat_map(|hand| hand.join().expect("no panic leaves a run")).collect()
    })
}

/// Shows a seed with its last events, and fails if it does. All its events are written to the file
/// that `RINGWAY_SIMULATION_TRACE` names.
fn show_seed(seed: u64, profile: &Profile) {
    let (result, trace) = run_drawn((profile.draw)(seed), Plant::Nothing, true);
    if let Some(file) = std::env::var_os("RINGWAY_SIMULATION_TRACE") {
        std::fs::write(file, trace.join("\n") + "\n").expect("a file to write");
    }
    println!("{:#?}", (profile.draw)(seed));
    match result {
        Ok(report) => println!("seed {seed}: {report:?}"),
        Err(violation) => panic!(
            "\n{}\n\nseed {seed}: {}: {}\nreplay: RINGWAY_SIMULATION_SEED={seed} cargo test \
             --profile simulation --test simulation -- --nocapture --exact {}",
            trace[trace.len().saturating_sub(TRACE_SHOWN)..].join("\n"),
            violation.checker,
            violation.text,
            profile.test
        ),
    }
}

/// Events that are shown when a seed fails.
const TRACE_SHOWN: usize = 60;

/// The seeds of this run: the first, and how many.
fn range() -> (u64, u64) {
    let first = number("RINGWAY_SIMULATION_FIRST").unwrap_or(1);
    (first, number("RINGWAY_SIMULATION_SEEDS").unwrap_or(200))
}

/// What seeds mean.
struct Profile {
    draw: fn(u64) -> Parameters,
    /// Which test runs them.
    test: &'static str,
}

#[test]
fn seeds_pass() {
    let (first, count) = range();
    check_seeds(first, count, &Profile { draw: Parameters::draw, test: "seeds_pass" });
}

/// One in so many is run under pressure as well.
const PRESSED: u64 = 100;

#[test]
fn seeds_under_pressure_pass() {
    let (first, count) = range();
    let profile = Profile { draw: Parameters::draw_pressed, test: "seeds_under_pressure_pass" };
    check_seeds(first, count.div_ceil(PRESSED), &profile);
}

fn check_seeds(first: u64, count: u64, profile: &Profile) {
    if let Some(seed) = number("RINGWAY_SIMULATION_SEED") {
        return show_seed(seed, profile);
    }
    let go_on = std::env::var_os("RINGWAY_SIMULATION_GO_ON").is_some();
    let failed = AtomicU64::new(u64::MAX);
    let sum = Mutex::new((0, Report::default()));
    on_all_cpus(count, |n| {
        let seed = first + n;
        if !go_on && failed.load(Relaxed) < seed {
            return;
        }
        match run_drawn((profile.draw)(seed), Plant::Nothing, false).0 {
            Ok(report) => {
                let mut sum = sum.lock().expect("no panic holds it");
                sum.0 += 1;
                sum.1.add(&report);
            }
            Err(violation) => {
                failed.fetch_min(seed, Relaxed);
                let text: String = violation.text.chars().take(300).collect();
                println!("seed {seed}: {}: {text}", violation.checker);
            }
        }
    });
    let (passed, sum) = sum.into_inner().expect("no panic holds it");
    println!("{passed} of {count} seeds from {first} pass: {sum:?}");
    let failed = failed.into_inner();
    if failed != u64::MAX {
        show_seed(failed, profile);
        panic!("seed {failed} failed, and passes now");
    }
}

/// So many seeds of the range are run twice.
const TWICE: u64 = 200;

#[test]
fn same_seed_same_events() {
    let (first, count) = range();
    let differ = on_all_cpus(TWICE, |n| {
        let seed = first + n * count.div_ceil(TWICE);
        let end = || match run_seed(seed, Plant::Nothing, false).0 {
            Ok(report) => (report.hash, String::new()),
            Err(violation) => (0, violation.text),
        };
        (end() != end()).then_some(seed)
    });
    let differ: Vec<u64> = differ.into_iter().flatten().collect();
    assert!(differ.is_empty(), "seeds that do not run twice alike: {differ:?}");
}

// --- tests of the tests -----------------------------------------------------------------------

/// Runs seeds until one of these checkers has found the mistake. Others may find it before: what goes
/// wrong behind the fence the proxy itself notices, and then an error is needless.
#[track_caller]
fn check_found(plant: Plant, checkers: &[&str]) {
    for seed in 1..=3_000 {
        if let (Err(violation), _) = run_seed(seed, plant, false) {
            println!("{plant:?}: seed {seed}, {}: {}", violation.checker, violation.text);
            if checkers.contains(&violation.checker) {
                return;
            }
        }
    }
    panic!("{plant:?} was not found by {checkers:?}");
}

#[test]
fn planted_reply_come_twice_is_found() {
    check_found(Plant::RepeatReply, &["ownership", "order"]);
}

#[test]
fn planted_lost_reply_is_found() {
    check_found(Plant::DropReply, &["ownership", "order"]);
}

#[test]
fn planted_swap_of_replies_is_found() {
    check_found(Plant::SwapReplies, &["ownership", "order", "needless error"]);
}

#[test]
fn planted_bytes_for_a_former_owner_are_found() {
    check_found(Plant::StaleBytes, &["one reply", "ownership", "close", "at most once"]);
}

#[test]
fn planted_repeat_of_a_lost_write_is_found() {
    check_found(Plant::ResendLost, &["at most once"]);
}

#[test]
fn planted_loss_of_a_sends_end_is_found() {
    check_found(Plant::LoseSent, &["liveness", "tables", "needless error"]);
}

#[test]
fn planted_swap_of_writes_is_found() {
    check_found(Plant::SwapWrites, &["order"]);
}

#[test]
fn planted_silence_instead_of_asking_is_found() {
    check_found(Plant::IgnoreAsking, &["needless error"]);
}

#[test]
fn planted_belief_in_a_forged_redirect_is_found() {
    check_found(Plant::BelieveForged, &["addresses"]);
}

#[test]
fn planted_standstill_of_time_is_found() {
    check_found(Plant::NoTime, &["liveness", "messages", "tables", "busy loop"]);
}

#[test]
fn planted_exec_without_its_guard_is_found() {
    check_found(Plant::IgnoreWatch, &["watch"]);
}

#[test]
fn planted_pop_for_nobody_is_found() {
    check_found(Plant::KeepBlocked, &["lost element"]);
}

#[test]
fn planted_second_sending_of_a_reply_is_found() {
    check_found(Plant::SendTwice, &["one reply", "ownership"]);
}

#[test]
fn planted_loss_of_a_message_is_found() {
    check_found(Plant::DropMessage, &["messages"]);
}

#[test]
fn planted_message_come_twice_is_found() {
    check_found(Plant::RepeatMessage, &["messages"]);
}

#[test]
fn planted_transaction_in_pieces_is_found() {
    check_found(Plant::TearExec, &["atomic"]);
}

#[test]
fn planted_nil_of_a_transaction_that_ran_is_found() {
    check_found(Plant::DenyExec, &["at most once"]);
}

#[test]
fn planted_second_pop_is_found() {
    check_found(Plant::PopTwice, &["at most once"]);
}

#[test]
fn planted_key_left_out_of_a_walk_is_found() {
    check_found(Plant::MissKeys, &["walk"]);
}

#[test]
fn planted_replica_that_has_not_confirmed_is_found() {
    check_found(Plant::BelieveWritten, &["wait"]);
}

#[test]
fn planted_script_that_is_not_loaded_again_is_found() {
    check_found(Plant::ForgetLoaded, &["noscript"]);
}

#[test]
fn planted_repeat_of_a_script_that_ran_is_found() {
    check_found(Plant::RunAndDeny, &["at most once"]);
}

#[test]
fn planted_line_of_another_pool_is_found() {
    check_found(Plant::ForeignLines, &["monitor"]);
}

#[test]
fn planted_reply_between_lines_is_found() {
    check_found(Plant::MixReplies, &["monitor"]);
}

#[test]
fn planted_lines_without_limit_are_found() {
    check_found(Plant::KeepLines, &["monitor"]);
}

#[test]
fn planted_waitaof_without_a_write_before_it_is_found() {
    check_found(Plant::SkipEmptyWrite, &["waitaof"]);
}

#[test]
fn planted_count_of_more_synced_files_than_nodes_said_is_found() {
    check_found(Plant::CountMore, &["waitaof"]);
}

#[test]
fn planted_run_of_a_missing_script_after_a_younger_one_is_found() {
    check_found(Plant::PassUnknown, &["order"]);
}

#[test]
fn planted_way_around_the_fence_is_found() {
    check_found(Plant::PassSecond, &["fence"]);
}

#[test]
fn planted_null_of_the_other_protocol_is_found() {
    check_found(Plant::WrongNull, &["version"]);
}

#[test]
fn planted_read_of_the_past_is_found() {
    check_found(Plant::StaleRead, &["order"]);
}

#[test]
fn planted_swap_of_values_is_found() {
    check_found(Plant::SwapValues, &["ownership"]);
}

#[test]
fn planted_close_of_an_innocent_client_is_found() {
    check_found(Plant::CloseInnocent, &["close"]);
}

#[test]
fn planted_second_run_of_what_a_client_takes_along_is_found() {
    check_found(Plant::RunAgain, &["at most once", "one reply", "ownership"]);
}

#[test]
fn planted_reply_lost_with_the_old_process_is_found() {
    check_found(Plant::GiveBusy, &["ownership", "liveness", "order"]);
}

#[test]
fn planted_loss_of_unread_bytes_of_a_given_client_is_found() {
    check_found(Plant::DropUnread, &["liveness", "one reply", "ownership"]);
}

#[test]
fn planted_unread_bytes_before_those_in_the_parcel_are_found() {
    check_found(Plant::UnreadFirst, &["one reply", "ownership", "order", "close", "garbage"]);
}

#[test]
fn planted_loss_of_a_given_clients_database_is_found() {
    check_found(Plant::LoseDatabase, &["ownership", "order", "at most once"]);
}

#[test]
fn planted_loss_of_a_given_clients_version_is_found() {
    check_found(Plant::LoseVersion, &["version", "ownership"]);
}
