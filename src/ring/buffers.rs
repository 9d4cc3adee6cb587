//! The receive buffers that all sockets of a ring share, and the ring in which the kernel finds
//! them.
//!
//! Own memory, not the kernel's mapping (CVE-2024-0582); no incremental use, no bundles (their
//! record of faults: io-uring.md 7). Not here: what is done when buffers run out (`take`).

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering;

use io_uring::cqueue;

use super::memory;

/// Bytes received, in a buffer lent to the caller; to be handed to `Ring::give_back`.
///
/// Dropping it instead loses one buffer of the ring for good.
#[must_use = "hand it to Ring::give_back"]
#[derive(Debug)]
pub struct BufferRef {
    id: u16,
    /// Of the `Buffers`, each ring has two.
    ring: u16,
    /// Bytes that were looked at before (`Ring::keep_rest`).
    from: u32,
    len: u32,
    /// Of this thread's ring only.
    not_send: PhantomData<*const ()>,
}

impl BufferRef {
    /// Bytes received.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same without its first bytes.
    pub(super) fn without(self, used: usize) -> BufferRef {
        let used = (used as u32).min(self.len);
        BufferRef { from: self.from + used, len: self.len - used, ..self }
    }
}

/// `struct io_uring_buf`. The tail of the ring lies over `resv` of the first entry.
#[repr(C)]
struct Entry {
    addr: u64,
    len: u32,
    bid: u16,
    resv: u16,
}

/// Bytes between two buffers, beyond their size: three cache lines, so that the beginnings of
/// buffers, which is all that small requests touch, do not fall into the same few cache sets.
const STAGGER: usize = 3 * 64;

const HUGE_PAGE: usize = 2 * 1024 * 1024;
const PAGE: usize = 4096;

pub(super) struct Buffers {
    map: NonNull<u8>,
    map_len: usize,
    arena: NonNull<u8>,
    entries: NonNull<Entry>,
    size: u32,
    count: u16,
    ring: u16,
    tail: u16,
    published: u16,
    /// Out of the completion queue and not given back, and `spare`.
    lent: u16,
    /// Given back, and kept from the kernel.
    spare: Vec<u16>,
    /// So many the kernel may use.
    most: u16,
}

impl Buffers {
    /// `ring` tells buffers of this ring from those of another; `count` is a power of two.
    pub fn new(size: u32, count: u16, huge: bool, ring: u16) -> io::Result<Buffers> {
        let arena_len = (stride(size) * count as usize).next_multiple_of(PAGE);
        let entries_len = (count as usize * size_of::<Entry>()).next_multiple_of(PAGE);
        // One page more for `scratch`, and room to align the arena to a huge page.
        let map_len = HUGE_PAGE + arena_len + entries_len + PAGE;
        let map = map_memory(map_len)?;
        let skip = map.as_ptr().align_offset(HUGE_PAGE);
        let at = |offset: usize| {
            // SAFETY: skip < HUGE_PAGE and offset <= arena + entries, so it stays in the mapping.
            unsafe { map.add(skip + offset) }
        };
        let (arena, entries) = (at(0), at(arena_len).cast::<Entry>());
        if huge && arena_len >= HUGE_PAGE {
            // Only a wish: fewer TLB misses. A kernel without huge pages refuses, and all is well.
            advise(arena, arena_len, libc::MADV_HUGEPAGE);
        }
        // Touched now: no page faults later, and the memory is seen to be used from the start.
        advise(arena, arena_len, libc::MADV_POPULATE_WRITE);
        // A child must not share what the kernel writes for us.
        advise(map, map_len, libc::MADV_DONTFORK);
        let mut buffers = Buffers {
            map,
            map_len,
            arena,
            entries,
            size,
            count,
            ring,
            tail: 0,
            published: 0,
            lent: 0,
            spare: Vec::new(),
            most: count,
        };
        memory::note(map_len as i64);
        for id in 0..count {
            buffers.add(id);
        }
        buffers.publish(count);
        Ok(buffers)
    }

    /// Where the kernel looks for buffers.
    pub fn ring_address(&self) -> u64 {
        self.entries.as_ptr() as u64
    }

    pub fn count(&self) -> u16 {
        self.count
    }

    /// Eight bytes of this mapping for the eventfd's counter.
    pub fn scratch(&self) -> *mut u8 {
        let entries_len = (self.count as usize * size_of::<Entry>()).next_multiple_of(PAGE);
        // SAFETY: `new` mapped one page behind the entries.
        unsafe { self.entries.cast::<u8>().add(entries_len).as_ptr() }
    }

    /// Buffers that the kernel may use, after the next `publish`.
    #[inline]
    pub fn available(&self) -> u16 {
        self.count - self.lent
    }

    /// Whether a buffer of so many bytes is full.
    #[inline]
    pub fn fills(&self, result: i32) -> bool {
        result == self.size as i32
    }

    /// Whether it is one of these.
    #[inline]
    pub fn own(&self, buffer: &BufferRef) -> bool {
        buffer.ring == self.ring
    }

    /// A completion has left the queue, with a buffer or without.
    #[inline]
    pub fn note(&mut self, flags: u32) {
        if cqueue::buffer_select(flags).is_some() {
            self.lent += 1;
        }
    }

    /// The buffer of a completion that `note` has seen.
    #[inline]
    pub fn claim(&mut self, result: i32, flags: u32) -> Option<BufferRef> {
        let id = cqueue::buffer_select(flags)?;
        assert!(id < self.count, "the kernel named a buffer that we never gave");
        let len = (result.max(0) as u32).min(self.size);
        Some(BufferRef { id, ring: self.ring, from: 0, len, not_send: PhantomData })
    }

    #[inline]
    pub fn bytes(&self, buffer: &BufferRef) -> &[u8] {
        assert!(buffer.ring == self.ring && buffer.id < self.count, "a buffer of another ring");
        let start = buffer.id as usize * stride(self.size) + buffer.from as usize;
        // SAFETY: id < count and from + len <= size, so it is inside the arena, which is zeroed
        // memory from the start; a `BufferRef` is not Clone and made once for each completion, so
        // the kernel does not write here before `give_back` has consumed it.
        unsafe { std::slice::from_raw_parts(self.arena.as_ptr().add(start), buffer.len as usize) }
    }

    #[inline]
    pub fn give_back(&mut self, buffer: BufferRef) {
        assert!(buffer.ring == self.ring && buffer.id < self.count, "a buffer of another ring");
        if self.available() >= self.most {
            return self.spare.push(buffer.id);
        }
        self.lent -= 1;
        self.add(buffer.id);
    }

    /// Writes the whole entry: kernels have left changed lengths in it (io-uring.md 7).
    #[inline]
    fn add(&mut self, id: u16) {
        let slot = (self.tail & (self.count - 1)) as usize;
        let addr = self.arena.as_ptr() as u64 + u64::from(id) * stride(self.size) as u64;
        // SAFETY: slot < count, inside the mapping; at most `count` buffers exist, so this slot is
        // past the published tail and the kernel does not read it. `resv` is left alone.
        unsafe {
            let entry = self.entries.as_ptr().add(slot);
            (&raw mut (*entry).addr).write(addr);
            (&raw mut (*entry).len).write(self.size);
            (&raw mut (*entry).bid).write(id);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel what was given back, and has it use no more than so many from now on, but
    /// for those that it knows already. Once for each enter.
    #[inline]
    pub fn publish(&mut self, most: u16) {
        self.most = most;
        while self.available() < most
            && let Some(id) = self.spare.pop()
        {
            self.lent -= 1;
            self.add(id);
        }
        if self.tail == self.published {
            return;
        }
        self.published = self.tail;
        // SAFETY: the first entry is in the mapping and aligned, `resv` with it; the kernel only
        // reads it.
        let tail = unsafe { AtomicU16::from_ptr(&raw mut (*self.entries.as_ptr()).resv) };
        tail.store(self.tail, Ordering::Release);
    }

    /// The kernel may still write here, for ever.
    pub fn leak(&mut self) {
        self.map_len = 0;
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.map_len > 0 {
            // SAFETY: mapped by `new` with this length, and no reference into it is left: `bytes`
            // borrows self.
            unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
            memory::note(-(self.map_len as i64));
        }
    }
}

fn stride(size: u32) -> usize {
    size as usize + STAGGER
}

fn map_memory(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping touches no memory of ours.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(map.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

fn advise(at: NonNull<u8>, len: usize, advice: i32) {
    // SAFETY: inside a private mapping of ours; no advice used here changes its contents.
    unsafe { libc::madvise(at.as_ptr().cast(), len, advice) };
}
