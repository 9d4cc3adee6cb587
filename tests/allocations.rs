//! Heap allocations per command in steady state: none, counted.
//!
//! The real `proxy` room (`rig`). Not here: the ring, whose buffers are taken at its start.

#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[path = "support/rig.rs"]
mod rig;

use rig::{Rig, command};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator; a counter is all that is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on as they are.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[track_caller]
fn check(words: &[&str], pipeline: usize, reply: &str, expected: usize) {
    let mut rig = Rig::new();
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
    let before = COUNT.with(Cell::get);
    for _ in 0..5_000 {
        rig.round(&request, reply.as_bytes());
    }
    let count = COUNT.with(Cell::get) - before;
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
    let before = COUNT.with(Cell::get);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(10)));
    assert_eq!(COUNT.with(Cell::get) - before, 1);
}
