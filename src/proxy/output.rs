//! Bytes on their way out of one connection, and the pool that their buffers come from.
//!
//! A connection builds `tail` while the kernel sends what was taken before. Large pieces are queued
//! whole instead of being copied. The last bytes of `tail` may be *uncommitted*: the beginning of a
//! reply that is taken back if its node is lost before the end.
//!
//! Not here: who sends when (`proxy::flush`), the limits (`client`).

use std::collections::VecDeque;

/// A piece of at least so many bytes is queued by itself rather than copied.
pub const LARGE: usize = 32 * 1024;

/// So many bytes are built in one buffer; more begin another. What a client does not take would
/// else be copied, all at once, each time that its buffer has to grow.
const TAIL_MAX: usize = 256 * 1024;

/// Buffers kept for reuse, newest first so that they are warm in the cache.
#[derive(Debug)]
pub struct Pool {
    free: Vec<Vec<u8>>,
    /// Capacity of a new buffer in bytes.
    initial: usize,
    /// A buffer grown beyond this is given back to the system.
    keep_max: usize,
    /// Buffers kept at most.
    count_max: usize,
    /// The fewest that lay free since `shrink` was last called: those were not needed.
    low: usize,
}

impl Pool {
    pub fn new(initial: usize, keep_max: usize, count_max: usize) -> Pool {
        Pool { free: Vec::new(), initial, keep_max, count_max, low: 0 }
    }

    #[inline]
    pub fn take(&mut self) -> Vec<u8> {
        match self.free.pop() {
            Some(buffer) => {
                self.low = self.low.min(self.free.len());
                buffer
            }
            None => {
                self.low = 0;
                Vec::with_capacity(self.initial)
            }
        }
    }

    #[inline]
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let useful = self.initial..=self.keep_max;
        if !useful.contains(&buffer.capacity()) || self.free.len() >= self.count_max {
            return;
        }
        buffer.clear();
        self.free.push(buffer);
    }

    /// Bytes that lie here.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.free.iter().map(Vec::capacity).sum()
    }

    /// Gives back what was not needed since the last call, so that a burst's memory does not stay;
    /// called now and then. The oldest go: the newest are warm.
    pub fn shrink(&mut self) {
        let unneeded = self.low.min(self.free.len());
        self.free.drain(..unneeded);
        self.low = self.free.len();
    }

    /// Memory is short: nothing is kept.
    pub fn clear(&mut self) {
        self.free.clear();
        self.low = 0;
    }
}

/// HOT: appends a reply. `+OK` is so short that a call would cost more than the copy.
#[inline]
pub fn append(out: &mut Vec<u8>, reply: &[u8]) {
    match <&[u8; 5]>::try_from(reply) {
        Ok(short) => out.extend_from_slice(short),
        Err(_) => out.extend_from_slice(reply),
    }
}

/// The bytes that one connection has yet to send.
#[derive(Debug, Default)]
pub struct Output {
    tail: Vec<u8>,
    uncommitted: usize,
    /// Whole pieces before `tail`.
    #[allow(clippy::box_collection, reason = "an idle connection holds a pointer only")]
    queue: Option<Box<VecDeque<Vec<u8>>>>,
    queued_bytes: usize,
    /// Bytes that the kernel has.
    sending_bytes: usize,
    pub sending: bool,
}

impl Output {
    /// The buffer to append to.
    #[inline]
    pub fn buffer(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        if self.tail.capacity() == 0 {
            self.tail = pool.take();
        } else if self.tail.len() >= TAIL_MAX && self.uncommitted == 0 {
            self.queue_tail();
        }
        &mut self.tail
    }

    #[cold]
    fn queue_tail(&mut self) {
        let tail = std::mem::replace(&mut self.tail, Vec::with_capacity(TAIL_MAX));
        self.queued_bytes += tail.len();
        self.queue.get_or_insert_default().push_back(tail);
    }

    /// Queues a whole piece behind everything written so far, without copying it.
    pub fn push_large(&mut self, piece: Vec<u8>) {
        debug_assert_eq!(self.uncommitted, 0);
        let queue = self.queue.get_or_insert_default();
        if !self.tail.is_empty() {
            let tail = std::mem::take(&mut self.tail);
            self.queued_bytes += tail.len();
            queue.push_back(tail);
        }
        self.queued_bytes += piece.len();
        queue.push_back(piece);
    }

    /// Appends bytes of a reply whose end is not here yet.
    pub fn append_uncommitted(&mut self, bytes: &[u8], pool: &mut Pool) {
        self.buffer(pool).extend_from_slice(bytes);
        self.uncommitted += bytes.len();
    }

    pub fn commit(&mut self) {
        self.uncommitted = 0;
    }

    pub fn uncommitted(&self) -> usize {
        self.uncommitted
    }

    /// Takes back the unfinished reply.
    pub fn roll_back(&mut self) {
        let keep = self.tail.len().saturating_sub(self.uncommitted);
        self.tail.truncate(keep);
        self.uncommitted = 0;
    }

    /// All bytes not yet known to be sent.
    #[inline]
    pub fn pending(&self) -> usize {
        self.tail.len() + self.queued_bytes + self.sending_bytes
    }

    #[inline]
    pub fn has_to_send(&self) -> bool {
        self.queue.is_some() || self.tail.len() > self.uncommitted
    }

    /// Takes the next piece for the kernel. The caller has checked `has_to_send` and `!sending`.
    #[inline]
    pub fn take(&mut self, pool: &mut Pool) -> Vec<u8> {
        debug_assert!(!self.sending);
        self.sending = true;
        let piece = self.next_piece(pool);
        self.sending_bytes = piece.len();
        piece
    }

    fn next_piece(&mut self, pool: &mut Pool) -> Vec<u8> {
        if let Some(queue) = self.queue.as_mut() {
            let piece = queue.pop_front().unwrap_or_default();
            self.queued_bytes -= piece.len();
            if queue.is_empty() {
                self.queue = None;
            }
            return piece;
        }
        let mut piece = std::mem::take(&mut self.tail);
        if self.uncommitted > 0 {
            let keep = piece.len() - self.uncommitted;
            self.tail = pool.take();
            self.tail.extend_from_slice(&piece[keep..]);
            piece.truncate(keep);
        }
        piece
    }

    #[inline]
    pub fn sent(&mut self) {
        self.sending = false;
        self.sending_bytes = 0;
    }

    /// Everything that was not handed to the kernel, dropped.
    pub fn clear(&mut self, pool: &mut Pool) {
        pool.give(std::mem::take(&mut self.tail));
        self.queue = None;
        self.queued_bytes = 0;
        self.uncommitted = 0;
    }

    /// Copies `len` bytes that start `offset` bytes after the first one not yet handed out.
    pub fn copy_unsent(&self, mut offset: usize, len: usize) -> Option<Vec<u8>> {
        let pieces = self.queue.iter().flat_map(|queue| queue.iter()).chain([&self.tail]);
        for piece in pieces {
            if offset < piece.len() {
                return piece.get(offset..offset + len).map(<[u8]>::to_vec);
            }
            offset -= piece.len();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool::new(64, 1024, 16)
    }

    #[test]
    fn uncommitted_bytes_stay_behind_when_the_rest_is_sent() {
        let mut pool = pool();
        let mut output = Output::default();
        output.buffer(&mut pool).extend_from_slice(b"+OK\r\n");
        output.append_uncommitted(b"$5\r\nhe", &mut pool);
        assert_eq!(output.take(&mut pool), b"+OK\r\n");
        assert!(!output.has_to_send());
        output.sent();
        output.append_uncommitted(b"llo\r\n", &mut pool);
        output.commit();
        assert_eq!(output.take(&mut pool), b"$5\r\nhello\r\n");
    }

    #[test]
    fn long_output_is_built_in_pieces_and_an_unfinished_reply_stays_in_one() {
        let mut pool = pool();
        let mut output = Output::default();
        let reply = [b'x'; TAIL_MAX / 4];
        for _ in 0..6 {
            output.buffer(&mut pool).extend_from_slice(&reply);
        }
        for _ in 0..6 {
            output.append_uncommitted(&reply, &mut pool);
        }
        assert_eq!(output.pending(), TAIL_MAX * 3);
        output.roll_back();
        assert_eq!(output.pending(), TAIL_MAX * 3 / 2);
        assert_eq!(output.take(&mut pool).len(), TAIL_MAX);
        output.sent();
        assert_eq!(output.take(&mut pool).len(), TAIL_MAX / 2);
        output.sent();
        assert!(!output.has_to_send());
    }

    #[test]
    fn roll_back_takes_the_unfinished_reply_only() {
        let mut pool = pool();
        let mut output = Output::default();
        output.buffer(&mut pool).extend_from_slice(b":1\r\n");
        output.append_uncommitted(b"$5\r\nhe", &mut pool);
        output.roll_back();
        assert_eq!(output.take(&mut pool), b":1\r\n");
    }

    #[test]
    fn large_piece_leaves_in_order_and_is_found_unsent() {
        let mut pool = pool();
        let mut output = Output::default();
        output.buffer(&mut pool).extend_from_slice(b"abc");
        output.push_large(b"large".to_vec());
        output.buffer(&mut pool).extend_from_slice(b"xyz");
        assert_eq!(output.pending(), 11);
        assert_eq!(output.copy_unsent(3, 5).as_deref(), Some(&b"large"[..]));
        assert_eq!(output.copy_unsent(9, 2).as_deref(), Some(&b"yz"[..]));
        let mut sent = Vec::new();
        while output.has_to_send() {
            sent.extend(output.take(&mut pool));
            output.sent();
        }
        assert_eq!(sent, b"abclargexyz");
        assert_eq!(output.pending(), 0);
    }

    #[test]
    fn buffers_of_a_burst_are_given_back_and_those_in_use_are_kept() {
        let mut pool = pool();
        let burst: Vec<_> = (0..10).map(|_| pool.take()).collect();
        burst.into_iter().for_each(|buffer| pool.give(buffer));
        pool.shrink();
        assert_eq!(pool.free.len(), 10, "the burst was in this period");
        let used = [pool.take(), pool.take()];
        used.into_iter().for_each(|buffer| pool.give(buffer));
        pool.shrink();
        assert_eq!(pool.free.len(), 2);
    }

    #[test]
    fn grown_buffer_is_not_kept() {
        let mut pool = pool();
        pool.give(Vec::with_capacity(4096));
        assert_eq!(pool.take().capacity(), 64);
    }
}
