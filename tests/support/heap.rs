//! What a test takes from the heap: an allocator that counts by thread. Whoever names this file has
//! it.
//!
//! Not here: how much is too much.

#![allow(unsafe_code, reason = "an allocator that counts has to be one")]
#![allow(dead_code, reason = "not every user needs all of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
    static HIGHEST: Cell<i64> = const { Cell::new(0) };
}

/// How often this thread has taken memory, grown some included.
pub fn taken() -> u64 {
    TAKEN.get()
}

/// Runs `work`; also the most bytes that it held at a time.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    HIGHEST.set(before);
    let done = work();
    (done, usize::try_from(HIGHEST.get() - before).unwrap_or(0))
}

fn note(times: u64, bytes: i64) {
    // A thread may free after its own thread-locals are gone.
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + times));
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = HIGHEST.try_with(|highest| highest.set(highest.get().max(held.get())));
    });
}

// SAFETY: everything is passed on to the system's allocator; counters are all that is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller's promises are passed on as they are.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}
