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

/// What is so large has pages of its own, which the kernel moves when it grows. glibc copies what
/// it has once found room for amid other memory, and std what is aligned to cache lines: both for
/// milliseconds, as each page written anew is a fault.
const PAGES_FROM: usize = 256 << 10;
const PAGE: usize = 4096;

#[inline]
fn has_pages(layout: Layout) -> bool {
    layout.size() >= PAGES_FROM && layout.align() <= PAGE
}

// SAFETY: all but what `has_pages` is handed on to `System` unchanged; pages are mapped for one
// allocation each, and its layout says the same of it as long as it lives.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        if has_pages(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        if has_pages(layout) {
            return map(layout.size());
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        if has_pages(layout) {
            // SAFETY: mapped with this size, and nobody's any more.
            unsafe { libc::munmap(pointer.cast(), layout.size()) };
            return;
        }
        // SAFETY: the caller's promise about both is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that such a layout may be.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (has_pages(layout), has_pages(new)) {
            (false, false) => {
                note(size as i64 - layout.size() as i64);
                // SAFETY: as above.
                unsafe { System.realloc(pointer, layout, size) }
            }
            (true, true) => {
                note(size as i64 - layout.size() as i64);
                let (from, may_move) = (layout.size(), libc::MREMAP_MAYMOVE);
                // SAFETY: mapped with this size; the caller knows it by the new place only.
                let moved = unsafe { libc::mremap(pointer.cast(), from, size, may_move) };
                if moved == libc::MAP_FAILED { std::ptr::null_mut() } else { moved.cast() }
            }
            _ => {
                // SAFETY: both layouts are as the caller promises, and the smaller of the two is
                // within both.
                unsafe {
                    let moved = self.alloc(new);
                    if !moved.is_null() {
                        moved.copy_from_nonoverlapping(pointer, size.min(layout.size()));
                        self.dealloc(pointer, layout);
                    }
                    moved
                }
            }
        }
    }
}

/// Zeroed pages; null: there are none.
fn map(len: usize) -> *mut u8 {
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches no memory of ours.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    if map == libc::MAP_FAILED { std::ptr::null_mut() } else { map.cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_into_pages_of_its_own_and_out_of_them_keeps_its_bytes() {
        let lines = |size| Layout::from_size_align(size, 64).unwrap();
        let sizes =
            [64, 4096, PAGES_FROM - 64, PAGES_FROM, 8 * PAGES_FROM, 3 * PAGES_FROM + 64, 640];
        // SAFETY: each layout is that of the allocation that it is said of, and all bytes of it
        // are written before they are read.
        unsafe {
            let mut at = Counted.alloc(lines(sizes[0]));
            at.write_bytes(7, sizes[0]);
            for pair in sizes.windows(2) {
                at = Counted.realloc(at, lines(pair[0]), pair[1]);
                assert!(!at.is_null() && at.addr() % 64 == 0);
                let kept = pair[0].min(pair[1]);
                assert!(std::slice::from_raw_parts(at, kept).iter().all(|&byte| byte == 7));
                at.write_bytes(7, pair[1]);
            }
            Counted.dealloc(at, lines(640));
            let zeroed = Counted.alloc_zeroed(lines(PAGES_FROM));
            assert!(std::slice::from_raw_parts(zeroed, PAGES_FROM).iter().all(|&byte| byte == 0));
            Counted.dealloc(zeroed, lines(PAGES_FROM));
        }
    }

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
