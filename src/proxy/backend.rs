//! One backend: its life, the FIFO that pairs replies with requests, the bytes it may have to give
//! back for a repeat.
//!
//! ```text
//! Idle ──connect──► Connecting ──► Handshake ──► Ready
//!  ▲                    │              │           │   time-out, end, a frame nobody asked for
//!  └──(backoff)── Closing ◄────────────┴───────────┘
//! ```
//! The stream's bytes are counted (wrapping): `answered <= handed <= written`. A request knows
//! where its bytes are in that stream; they are kept until its reply has been read, in the very
//! buffers that were sent, so that a redirect costs no copy beforehand.
//!
//! Not here: clients, and what a reply means.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::output::{LARGE, Output, Pool};
use super::request::{Requests, State};
use super::types::{NONE, Socket};
use crate::limits;
use crate::resp::Version;
use crate::resp::reply::ReplyScanner;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Not connected; `retry_at_ms` says from when on it may be tried.
    Idle,
    Connecting,
    Handshake,
    Ready,
    /// Waits for the driver to say that its socket is gone.
    Closing,
}

/// Who uses the backend.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Every client that speaks this version.
    Shared,
    /// One client at a time, behind the fence.
    Fence,
    /// Nobody's: subscriptions, and the messages that come of them.
    Subscriber,
    /// One client for itself, for a while.
    Private,
}

/// Bytes of unanswered requests from which on no more are added. With one request more, positions
/// in the stream still compare as they should.
const UNANSWERED_MAX: u32 = 512 << 20;

const _: () = assert!(UNANSWERED_MAX as u64 + limits::REQUEST_TOTAL_MAX < i32::MAX as u64);

/// Sent buffers that keep their room for reuse. A node that stands still is sent thousands with one
/// request each, and each would hold the room for hundreds.
const SENT_ROOMY_MAX: usize = 256;

/// Bytes that were sent and are kept until everything in them is answered.
#[derive(Debug)]
struct Chunk {
    end: u32,
    /// When it was given to the kernel.
    handed_ms: u64,
    bytes: Vec<u8>,
}

/// A frame has so many times the time for an answer to become whole, and more the longer it is:
/// bytes a second that are no longer slow.
const FRAME_TIMEOUTS: u64 = 2;
const FRAME_RATE_MIN: u64 = 64 * 1024;

#[derive(Debug)]
pub struct Backend {
    pub phase: Phase,
    pub lane: Lane,
    pub version: Version,
    /// Of the database that its handshake selects (`databases`).
    pub seat: u8,
    /// In the list of those that have something to send.
    pub dirty: bool,
    /// Replies of the handshake still to come.
    pub handshake_left: u8,
    /// The send under way is the handshake's: no part of the stream.
    pub handshake_sending: bool,
    /// In the middle of a push frame.
    pub skipping: bool,
    pub node: u16,
    pub socket: Socket,
    head: u32,
    tail: u32,
    count: u32,
    /// Requests ever put into the FIFO and not yet counted for the node.
    pub asked: u64,
    /// Bytes of the reply that is being passed on in pieces.
    pub streamed: u64,
    written: u32,
    handed: u32,
    /// When the last piece was given to the kernel.
    handed_ms: u64,
    answered: u32,
    pub scanner: ReplyScanner,
    pub output: Output,
    sent: VecDeque<Chunk>,
    /// The beginning of a push frame whose end is still to come (subscriber).
    pub pushed: Vec<u8>,
    /// Requests refused before their send had come back.
    pub awaiting: Vec<u32>,
    /// Fenced: the request that is answered, but not vouched for yet.
    pub fence_open: u32,
    /// Fenced: whose requests are in the FIFO. Private: whose it is. Index and generation.
    pub owner: (u32, u32),
    /// Private: what is in flight may take as long as it likes.
    pub blocking: bool,
    /// Private: not to be lent again. Fenced: not to be lent to another client.
    pub spoilt: bool,
    /// When it last answered, or was last given work while it had none. Milliseconds.
    pub progress_ms: u64,
    /// When the frame began that is not whole yet, and how much of it has come.
    pub frame_since_ms: u64,
    pub frame_bytes: u64,
    /// When it entered its phase.
    pub since_ms: u64,
    pub retry_at_ms: u64,
    /// Attempts that failed in a row, and since when.
    pub failures: u32,
    pub failing_since_ms: u64,
    /// It fails for longer than a request may take: one probes it, the others are answered at once.
    pub tripped: bool,
    pub address: SocketAddr,
}

impl Backend {
    pub fn new(node: u16, address: SocketAddr, version: Version, lane: Lane) -> Backend {
        Backend {
            phase: Phase::Idle,
            lane,
            version,
            seat: 0,
            dirty: false,
            handshake_left: 0,
            handshake_sending: false,
            skipping: false,
            node,
            socket: Socket::default(),
            head: NONE,
            tail: NONE,
            count: 0,
            asked: 0,
            streamed: 0,
            written: 0,
            handed: 0,
            handed_ms: 0,
            answered: 0,
            scanner: ReplyScanner::default(),
            output: Output::default(),
            sent: VecDeque::new(),
            pushed: Vec::new(),
            awaiting: Vec::new(),
            fence_open: NONE,
            owner: (NONE, 0),
            blocking: false,
            spoilt: false,
            progress_ms: 0,
            frame_since_ms: 0,
            frame_bytes: 0,
            since_ms: 0,
            retry_at_ms: 0,
            failures: 0,
            failing_since_ms: 0,
            tripped: false,
            address,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Handshake | Phase::Ready)
    }

    /// HOT: whether the next byte is the first of an answer to its oldest request.
    #[inline]
    pub fn is_between_replies(&self) -> bool {
        let serves = self.phase == Phase::Ready && self.lane == Lane::Shared;
        serves && !self.skipping && self.scanner.at_start()
    }

    /// A piece of a frame that is not whole yet has come.
    pub fn note_part(&mut self, now_ms: u64, started: bool, len: usize) {
        if started {
            (self.frame_since_ms, self.frame_bytes) = (now_ms, 0);
        }
        self.frame_bytes += len as u64;
    }

    /// Whether the frame that has begun takes longer than anything honest: any byte of it counts as
    /// an answer, so that one could hold up all behind it for ever.
    pub fn drips(&self, now_ms: u64, timeout_ms: u64) -> bool {
        let allowed_ms = timeout_ms * FRAME_TIMEOUTS + self.frame_bytes * 1000 / FRAME_RATE_MIN;
        !self.scanner.at_start() && now_ms.saturating_sub(self.frame_since_ms) > allowed_ms
    }

    /// Requests written or about to be, and not answered.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.count
    }

    /// So much is unanswered that nothing further is taken.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.written.wrapping_sub(self.answered) >= UNANSWERED_MAX
    }

    #[inline]
    pub fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Puts a request at the end of the FIFO; `append` writes its bytes.
    #[inline]
    pub fn enqueue(
        &mut self,
        request: u32,
        index: u32,
        requests: &mut Requests,
        pool: &mut Pool,
        append: impl FnOnce(&mut Vec<u8>),
    ) {
        let buffer = self.output.buffer(pool);
        let before = buffer.len();
        append(buffer);
        let len = (buffer.len() - before) as u32;
        self.link(request, index, requests, len);
    }

    /// As `enqueue`, for a request whose bytes are owned: large ones are not copied.
    pub fn enqueue_owned(
        &mut self,
        request: u32,
        index: u32,
        requests: &mut Requests,
        pool: &mut Pool,
        bytes: Vec<u8>,
    ) {
        if bytes.len() < LARGE {
            self.enqueue(request, index, requests, pool, |out| out.extend_from_slice(&bytes));
            return;
        }
        let len = bytes.len() as u32;
        self.output.push_large(bytes);
        self.link(request, index, requests, len);
    }

    #[inline]
    fn link(&mut self, request: u32, index: u32, requests: &mut Requests, len: u32) {
        let entry = &mut requests[request];
        entry.state = State::InFlight;
        entry.backend = index;
        entry.node = self.node;
        entry.start = self.written;
        entry.len = len;
        entry.next_in_backend = NONE;
        self.written = self.written.wrapping_add(len);
        if self.tail == NONE {
            self.head = request;
            requests.nodes_asked += 1;
        } else {
            requests[self.tail].next_in_backend = request;
        }
        self.tail = request;
        self.count += 1;
        self.asked += 1;
    }

    /// Takes the oldest request off: its reply has been read whole. Its bytes are kept until
    /// `retire`.
    #[inline]
    pub fn pop(&mut self, requests: &mut Requests) -> u32 {
        let request = self.head;
        assert_ne!(request, NONE, "a reply has its request");
        let entry = &requests[request];
        self.head = entry.next_in_backend;
        self.answered = entry.start.wrapping_add(entry.len);
        if self.head == NONE {
            self.tail = NONE;
            requests.nodes_asked -= 1;
        }
        self.count -= 1;
        request
    }

    /// Gives back the buffers in which everything is answered.
    #[inline]
    pub fn retire(&mut self, pool: &mut Pool) {
        while let Some(chunk) = self.sent.front() {
            // Wrapping order: the chunk ends at or before the last answered byte.
            if (self.answered.wrapping_sub(chunk.end) as i32) < 0 {
                break;
            }
            if let Some(chunk) = self.sent.pop_front() {
                pool.give(chunk.bytes);
            }
        }
    }

    /// Takes the next piece to send.
    #[inline]
    pub fn take_piece(&mut self, pool: &mut Pool, now_ms: u64) -> Vec<u8> {
        self.handed_ms = now_ms;
        let piece = self.output.take(pool);
        self.handed = self.handed.wrapping_add(piece.len() as u32);
        piece
    }

    /// The piece taken last has been sent: kept until `retire` finds that all of it is answered.
    #[inline]
    pub fn keep_sent(&mut self, mut bytes: Vec<u8>) {
        self.output.sent();
        if self.sent.len() >= SENT_ROOMY_MAX {
            bytes.shrink_to_fit();
        }
        self.sent.push_back(Chunk { end: self.handed, handed_ms: self.handed_ms, bytes });
    }

    /// Fenced: something is in flight, so only its owner may add to it.
    pub fn is_fence_busy(&self) -> bool {
        self.count > 0 || self.fence_open != NONE
    }

    /// Whether no byte of the request was handed to the kernel.
    #[inline]
    pub fn is_unwritten(&self, start: u32) -> bool {
        (start.wrapping_sub(self.handed) as i32) >= 0
    }

    /// A copy of a request's bytes; `None` while the kernel is still sending them.
    pub fn bytes_of(&self, start: u32, len: u32) -> Option<Vec<u8>> {
        if self.is_unwritten(start) {
            return self.output.copy_unsent(start.wrapping_sub(self.handed) as usize, len as usize);
        }
        self.sent_bytes_of(start, len).map(<[u8]>::to_vec)
    }

    /// Those of one that is sent, as they lie.
    pub fn sent_bytes_of(&self, start: u32, len: u32) -> Option<&[u8]> {
        let (chunk, offset) = self.chunk_of(start)?;
        chunk.bytes.get(offset..offset + len as usize)
    }

    /// When a request's bytes were given to the kernel; `None`: not yet.
    pub fn handed_ms(&self, start: u32) -> Option<u64> {
        let being_sent = || (!self.is_unwritten(start)).then_some(self.handed_ms);
        self.chunk_of(start).map(|(chunk, _)| chunk.handed_ms).or_else(being_sent)
    }

    /// There may be a hundred thousand, and each request of a lost connection wants its own.
    fn chunk_of(&self, start: u32) -> Option<(&Chunk, usize)> {
        // Wrapping order: those before it end at its start or earlier.
        let before = |chunk: &Chunk| (start.wrapping_sub(chunk.end) as i32) >= 0;
        let chunk = self.sent.get(self.sent.partition_point(before))?;
        let begin = chunk.end.wrapping_sub(chunk.bytes.len() as u32);
        let offset = start.wrapping_sub(begin) as usize;
        (offset < chunk.bytes.len()).then_some((chunk, offset))
    }

    /// Empties everything that belonged to the old connection. The FIFO was taken before.
    pub fn reset_connection(&mut self, pool: &mut Pool) {
        assert_eq!(self.count, 0, "the FIFO is emptied before its connection is forgotten");
        self.output.clear(pool);
        self.output.sent();
        for chunk in self.sent.drain(..) {
            pool.give(chunk.bytes);
        }
        self.scanner = ReplyScanner::default();
        self.pushed = Vec::new();
        self.handshake_left = 0;
        self.handshake_sending = false;
        self.skipping = false;
        self.spoilt = false;
        self.answered = self.written;
        self.handed = self.written;
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::NewRequest;
    use super::*;

    #[test]
    fn thousands_of_short_sends_that_nobody_answers_hold_what_they_are_and_each_is_found() {
        let (mut requests, mut pool) = (Requests::default(), Pool::new(16 * 1024, 64 * 1024, 4));
        let mut backend = backend();
        // Over the wrap of the stream's counter.
        backend.written = u32::MAX - 5_000;
        (backend.handed, backend.answered) = (backend.written, backend.written);
        let mut add = |n: usize| {
            let request = requests.open(NewRequest::internal(0));
            let append = |out: &mut Vec<u8>| out.extend_from_slice(n.to_string().as_bytes());
            backend.enqueue(request, 0, &mut requests, &mut pool, append);
            let piece = backend.take_piece(&mut pool, n as u64);
            backend.keep_sent(piece);
            (requests[request].start, requests[request].len)
        };
        let places: Vec<(u32, u32)> = (0..10_000).map(&mut add).collect();
        for (n, &(start, len)) in places.iter().enumerate() {
            assert_eq!(backend.bytes_of(start, len), Some(n.to_string().into_bytes()));
            assert_eq!(backend.handed_ms(start), Some(n as u64));
        }
        let held: usize = backend.sent.iter().map(|chunk| chunk.bytes.capacity()).sum();
        assert!(held < SENT_ROOMY_MAX * 16 * 1024 + 10_000 * 8, "{held}");
        while backend.head().is_some() {
            backend.pop(&mut requests);
        }
        backend.retire(&mut pool);
        assert_eq!(backend.sent.len(), 0);
        assert!(pool.take().capacity() >= 16 * 1024, "a small one is not kept for reuse");
    }

    fn backend() -> Backend {
        Backend::new(0, ([127, 0, 0, 1], 1).into(), Version::Resp2, Lane::Shared)
    }

    #[test]
    fn full_backend_takes_more_when_it_has_answered() {
        let mut backend = backend();
        // Over the wrap of the stream's counter.
        backend.answered = u32::MAX - 100;
        backend.written = backend.answered.wrapping_add(UNANSWERED_MAX - 1);
        assert!(!backend.is_full());
        backend.written = backend.written.wrapping_add(1);
        assert!(backend.is_full());
        backend.answered = backend.written;
        assert!(!backend.is_full());
    }

    #[test]
    fn bytes_of_a_request_are_found_before_and_after_they_are_sent() {
        let (mut requests, mut pool) = (Requests::default(), Pool::new(64, 1024, 4));
        let mut backend = backend();
        // Near the wrap of the stream's counter.
        backend.written = u32::MAX - 2;
        backend.handed = backend.written;
        backend.answered = backend.written;
        let mut add = |backend: &mut Backend, requests: &mut Requests, bytes: &[u8]| {
            let request = requests.open(NewRequest::internal(0));
            let append = |out: &mut Vec<u8>| out.extend_from_slice(bytes);
            backend.enqueue(request, 0, requests, &mut pool, append);
            request
        };
        let first = add(&mut backend, &mut requests, b"first");
        let second = add(&mut backend, &mut requests, b"second");
        let place =
            |requests: &Requests, request: u32| (requests[request].start, requests[request].len);
        let (start, len) = place(&requests, second);
        assert!(backend.is_unwritten(start));
        assert_eq!(backend.handed_ms(start), None);
        assert_eq!(backend.bytes_of(start, len).as_deref(), Some(&b"second"[..]));
        let mut pool = Pool::new(64, 1024, 4);
        let piece = backend.take_piece(&mut pool, 7);
        assert_eq!(backend.bytes_of(start, len), None, "the kernel has them");
        assert_eq!(backend.handed_ms(start), Some(7));
        backend.keep_sent(piece);
        assert_eq!(backend.handed_ms(start), Some(7));
        backend.retire(&mut pool);
        assert!(!backend.is_unwritten(start));
        assert_eq!(backend.bytes_of(start, len).as_deref(), Some(&b"second"[..]));
        assert_eq!(backend.pop(&mut requests), first);
        backend.retire(&mut pool);
        assert_eq!(backend.sent.len(), 1, "the second is not answered");
        assert_eq!(backend.pop(&mut requests), second);
        backend.retire(&mut pool);
        assert_eq!(backend.sent.len(), 0);
        assert_eq!(backend.queued(), 0);
    }
}
