//! Heap allocations per command in steady state: none, counted.
//!
//! The real `proxy` room (`rig`). Not here: the ring, whose buffers are taken at its start.

#[path = "support/heap.rs"]
mod heap;
#[path = "support/rig.rs"]
mod rig;

use heap::taken;
use rig::{Rig, command};

#[track_caller]
fn check(words: &[&str], pipeline: usize, reply: &str, expected: usize) {
    let mut rig = Rig::new(1);
    let mut request = Vec::new();
    for n in 0..pipeline {
        let words: Vec<String> =
            words.iter().map(|word| word.replace('#', &n.to_string())).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        command(&words, &mut request);
    }
    for _ in 0..2_000 {
        rig.round(&request, reply.as_bytes());
    }
    assert_eq!(rig.received, expected, "all replies came");
    let before = taken();
    for _ in 0..5_000 {
        rig.round(&request, reply.as_bytes());
    }
    let count = taken() - before;
    assert_eq!(count, 0, "allocations in {} commands", 5_000 * pipeline);
}

#[test]
fn get_in_steady_state_allocates_nothing() {
    check(&["GET", "key#"], 1, "$5\r\nhello\r\n", 11);
}

#[test]
fn pipelined_get_in_steady_state_allocates_nothing() {
    check(&["GET", "key#"], 64, "$5\r\nhello\r\n", 64 * 11);
}

#[test]
fn pipelined_set_in_steady_state_allocates_nothing() {
    check(&["SET", "key#", "value"], 16, "+OK\r\n", 16 * 5);
}

#[test]
fn local_command_in_steady_state_allocates_nothing() {
    check(&["PING"], 16, "", 16 * 7);
}

#[test]
fn counting_allocator_counts() {
    let before = taken();
    drop(std::hint::black_box(Vec::<u8>::with_capacity(10)));
    assert_eq!(taken() - before, 1);
}
