//! Tests of the tests: with a deliberate mistake in place the target that is to catch it does, the
//! input is made smaller, and what is told repeats it.
//!
//! Not here: the mistakes (`shared::plant`).

use crate::runner::{self, Failure};
use crate::shared::plant::{Plant, with};
use crate::shared::targets::find;

/// Executions within which a mistake must be caught.
const EXECUTIONS: u64 = 10_000;

#[track_caller]
fn caught(name: &str, plant: Plant) -> Failure {
    let target = find(name).expect("a target of that name");
    let failure = with(plant, || runner::run(target, crate::seed(), EXECUTIONS));
    let failure = failure.unwrap_or_else(|| panic!("{name} does not catch {plant:?}"));
    assert!(failure.small.len() <= failure.input.len());
    let again = with(plant, || runner::execute(target, &failure.small));
    assert_eq!(again.as_ref(), Err(&failure.why), "{plant:?} fails the same once more");
    let without = runner::execute(target, &failure.small);
    assert_eq!(without, Ok(()), "{plant:?} is what fails, not the target");
    println!("{name}: {plant:?} is caught by execution {}", failure.execution + 1);
    let report = failure.report(target, crate::seed());
    assert!(report.contains("RINGWAY_FUZZ_INPUT=") && report.contains(name), "{report}");
    failure
}

#[test]
fn mistakes_in_framing_of_requests_are_caught() {
    caught("request", Plant::ForgetPlace);
    caught("request", Plant::ShortArgument);
    caught("request", Plant::CallCanonical);
}

#[test]
fn memory_by_a_claimed_length_is_caught() {
    let failure = caught("request", Plant::ReserveClaimed);
    assert!(failure.why.contains("bytes held"), "{}", failure.why);
}

#[test]
fn panic_is_caught_and_its_input_made_smaller() {
    let failure = caught("request", Plant::Panic);
    assert!(failure.why.ends_with("planted"), "{}", failure.why);
    assert!(failure.small.len() <= 6, "{:?} could be smaller", failure.small);
}

#[test]
fn mistakes_in_framing_of_replies_are_caught() {
    caught("reply", Plant::CutReplyEarly);
    caught("reply", Plant::SkipNull);
    caught("frames", Plant::WrapNumber);
}

#[test]
fn mistakes_in_numbers_are_caught() {
    caught("number", Plant::TakePlus);
    caught("number", Plant::WrapNumber);
}

#[test]
fn mistakes_in_configuration_are_caught() {
    caught("config", Plant::SwallowMistake);
    caught("config", Plant::LosePlace);
    caught("config", Plant::TellPassword);
}

#[test]
fn mistakes_in_maps_of_the_cluster_are_caught() {
    caught("topology", Plant::DangleOwner);
    caught("topology", Plant::ShortRange);
}

#[test]
fn mistakes_in_keys_are_caught() {
    caught("keys", Plant::KeyBehindEnd);
    caught("learned", Plant::ShiftLearned);
    let words = ["MGET", "a", "b"].map(|word| word.as_bytes().to_vec());
    let keys = || crate::keys_in(&words);
    assert_ne!(with(Plant::MissKey, keys), keys());
}

#[test]
fn mistakes_in_cutting_and_merging_are_caught() {
    caught("split", Plant::SwapFragments);
    caught("split", Plant::LongMerge);
    caught("info", Plant::DropNode);
}

#[test]
fn mistakes_in_redirects_and_walks_are_caught() {
    caught("redirect", Plant::AnySlot);
    caught("scan", Plant::EndlessWalk);
    caught("scan", Plant::CropCursor);
}
