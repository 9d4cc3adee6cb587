//! How much memory the process holds: an allocator that counts, and what is mapped beside it.
//!
//! Not here: what is done when it is too much (`proxy::memory`), the limit (`serve`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

/// The system's allocator, counted. The program names it with `#[global_allocator]`; without it
/// only mapped memory is counted.
pub struct Counted;

/// Threads share these in turn; memory may be freed by another thread than had it, so that only
/// the sum means anything.
static SHARDS: [Shard; SHARD_COUNT] = [const { Shard(AtomicI64::new(0)) }; SHARD_COUNT];
const SHARD_COUNT: usize = 32;

/// Two cache lines, as processors fetch them: reactors do not disturb each other.
#[repr(align(128))]
struct Shard(AtomicI64);

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Bytes held now: what was asked for, without the allocator's own.
pub fn held() -> u64 {
    SHARDS.iter().map(|shard| shard.0.load(Relaxed)).sum::<i64>().max(0) as u64
}

/// Bytes more, or less, than before.
pub(super) fn note(bytes: i64) {
    let index = SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Relaxed) % SHARD_COUNT);
        }
        shard.get()
    });
    if let Some(shard) = SHARDS.get(index) {
        shard.0.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: all is handed on to `System` unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: the caller's promise about both is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_freed_by_another_thread_is_counted_once() {
        // No other test notes so much.
        const MUCH: i64 = 1 << 40;
        note(MUCH);
        assert!(held() >= MUCH as u64);
        std::thread::spawn(|| note(-MUCH)).join().unwrap();
        assert!(held() < MUCH as u64);
    }
}
