//! Bytes on their way out of one connection, and the pool that their buffers come from.
//!
//! A connection builds `tail` while the kernel sends what was taken before. Large pieces are queued
//! whole instead of being copied, and what many connections wait to send is there once. The last
//! bytes of `tail` may be *uncommitted*: the beginning of a reply that is taken back if its node is
//! lost before the end.
//!
//! Not here: who sends when (`proxy::flush`), the limits (`client`).

use std::collections::VecDeque;
use std::sync::Arc;

/// A piece of at least so many bytes is queued by itself rather than copied.
pub const LARGE: usize = 32 * 1024;

/// So many bytes are built in one buffer; more begin another. What a client does not take would
/// else be copied, all at once, each time that its buffer has to grow.
const TAIL_MAX: usize = 256 * 1024;

/// Shared pieces that follow each other are sent together, up to so many bytes.
const TOGETHER_MAX: usize = 64 * 1024;

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

/// Bytes before `Output::tail`.
#[derive(Debug)]
enum Piece {
    Own(Vec<u8>),
    /// Other connections have it as well.
    Shared(Arc<[u8]>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(bytes) => bytes,
        }
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
    queue: Option<Box<VecDeque<Piece>>>,
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
        self.push(Piece::Own(tail));
    }

    fn push(&mut self, piece: Piece) {
        self.queued_bytes += piece.bytes().len();
        self.queue.get_or_insert_default().push_back(piece);
    }

    /// Queues a whole piece behind everything written so far, without copying it.
    pub fn push_large(&mut self, piece: Vec<u8>) {
        debug_assert_eq!(self.uncommitted, 0);
        if !self.tail.is_empty() {
            let tail = std::mem::take(&mut self.tail);
            self.push(Piece::Own(tail));
        }
        self.push(Piece::Own(piece));
    }

    /// The same with what other connections are to send as well. It is copied when its turn comes.
    pub fn push_shared(&mut self, piece: Arc<[u8]>) {
        debug_assert_eq!(self.uncommitted, 0);
        if !self.tail.is_empty() {
            let mut tail = std::mem::take(&mut self.tail);
            // It may wait for long, and one like it before each piece.
            tail.shrink_to_fit();
            self.push(Piece::Own(tail));
        }
        self.push(Piece::Shared(piece));
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

    /// Bytes that `take` would give, about.
    pub fn next_len(&self) -> usize {
        let first = self.queue.as_ref().and_then(|queue| queue.front());
        first.map_or(self.tail.len(), |piece| piece.bytes().len())
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
        if self.queue.is_some() {
            return self.next_queued(pool);
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

    fn next_queued(&mut self, pool: &mut Pool) -> Vec<u8> {
        let bytes = match self.pop_queued() {
            Some(Piece::Shared(bytes)) => bytes,
            Some(Piece::Own(bytes)) => return bytes,
            None => return Vec::new(),
        };
        let mut together = pool.take();
        together.extend_from_slice(&bytes);
        while let Some(Piece::Shared(next)) = self.queue.as_ref().and_then(|queue| queue.front())
            && together.len() + next.len() <= TOGETHER_MAX
        {
            together.extend_from_slice(next);
            self.pop_queued();
        }
        together
    }

    fn pop_queued(&mut self) -> Option<Piece> {
        let queue = self.queue.as_mut()?;
        let piece = queue.pop_front()?;
        if queue.is_empty() {
            self.queue = None;
        }
        self.queued_bytes -= piece.bytes().len();
        Some(piece)
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
        let queued = self.queue.iter().flat_map(|queue| queue.iter().map(Piece::bytes));
        for piece in queued.chain([&self.tail[..]]) {
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
    fn shared_pieces_leave_in_order_and_together() {
        let mut pool = pool();
        let mut output = Output::default();
        let message: Arc<[u8]> = vec![b'm'; TOGETHER_MAX / 4].into();
        output.buffer(&mut pool).extend_from_slice(b"abc");
        for _ in 0..6 {
            output.push_shared(Arc::clone(&message));
        }
        output.buffer(&mut pool).extend_from_slice(b"xyz");
        assert_eq!(output.pending(), 6 + 6 * message.len());
        let mut sent = Vec::new();
        while output.has_to_send() {
            sent.push(output.take(&mut pool));
            output.sent();
        }
        let lens: Vec<usize> = sent.iter().map(Vec::len).collect();
        assert_eq!(lens, [3, TOGETHER_MAX, TOGETHER_MAX / 2, 3]);
        assert_eq!(sent.concat(), [b"abc", &message.repeat(6)[..], b"xyz"].concat());
        assert_eq!(output.pending(), 0);
        assert_eq!(Arc::strong_count(&message), 1);
    }

    #[test]
    fn little_before_a_shared_piece_does_not_keep_the_room_of_its_buffer() {
        let (mut pool, mut output) = (Pool::new(64 * 1024, 64 * 1024, 16), Output::default());
        output.buffer(&mut pool).extend_from_slice(b"abc");
        output.push_shared(vec![b'm'; 5000].into());
        assert!(output.take(&mut pool).capacity() < 64);
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
