//! One client: the order of its replies, what holds it back, what it has yet to receive.
//!
//! ```text
//! Open ──(QUIT, protocol error, end of its bytes)──► Last ──(all answered and sent)──► Closing
//!   └────────────(lost, over a limit, drained)──────────────────────────────────────────┘
//! Closing ──(the driver says gone)──► Free
//! ```
//! Its requests form a list in the order they came. Only the head may write to `output`; whatever
//! is answered before its turn waits in its request entry.
//!
//! Not here: where requests go, and everything about backends.

use super::mode::Mode;
use super::output::Output;
use super::pubsub::Subscriptions;
use super::request::{Requests, State};
use super::session::{ReplyMode, Session};
use super::types::{NONE, Socket};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    Free,
    Open,
    /// Takes no further request; closed when all is answered and sent.
    Last,
    /// Waits for the driver.
    Closing,
}

/// Request bytes that wait for their end, or for their client to be allowed to go on.
#[derive(Debug, Default)]
pub struct Partial {
    pub bytes: Vec<u8>,
    /// So many of the first bytes have been run; 0 unless the client is held back.
    pub start: usize,
    pub parser: crate::resp::request::RequestParser,
    pub args: Vec<crate::resp::Span>,
}

/// A buffer with more room than this is made smaller when most of it is not used.
const ROOM_MAX: usize = 64 * 1024;

impl Partial {
    /// Bytes that have not been run.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// So many bytes more have been run. What is left moves to the front when it is the smaller
    /// part: a long pipeline that goes on by a few requests is not copied each time.
    pub fn advance(&mut self, len: usize) {
        self.start += len;
        if self.start * 2 >= self.bytes.len() {
            self.compact();
        }
    }

    /// What has not been run.
    pub fn into_waiting(mut self) -> Vec<u8> {
        self.compact();
        self.bytes
    }

    /// Forgets what has been run.
    pub fn compact(&mut self) {
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.capacity() > ROOM_MAX.max(4 * self.bytes.len()) {
            self.bytes.shrink_to(2 * self.bytes.len());
        }
    }
}

/// How many requests a client may have in flight: few at first, more as its replies prove small.
///
/// A node must not be asked for a thousand large values at once by one who may never read them: all
/// that is asked for has to be read from the node, whatever becomes of its client.
#[derive(Copy, Clone, Debug)]
pub struct Window {
    requests: u32,
    /// Mean size of its latest replies, bytes.
    reply_mean: u32,
    /// Replies written since output was last handed over.
    answered: u32,
}

/// Requests in flight before anything is known of the replies.
const WINDOW_FIRST: u32 = 64;

/// Requests in flight while one of them is irregular: each that comes has to look at all its
/// elders, and what waits looks again whenever one is answered.
const IRREGULAR_WINDOW: u32 = 256;

/// Reply bytes that one client may have in flight at a node, by estimate.
const WINDOW_BYTES: u64 = 1 << 20;

impl Window {
    fn new() -> Window {
        Window { requests: WINDOW_FIRST, reply_mean: 0, answered: 0 }
    }

    /// So many bytes of replies go to the kernel.
    fn handed_over(&mut self, bytes: usize) {
        // A piece of one long reply counts as a reply of that size.
        let size = (bytes as u64 / u64::from(self.answered.max(1))).min(1 << 30);
        let mean = if self.answered == 0 {
            size.max(u64::from(self.reply_mean))
        } else {
            (3 * u64::from(self.reply_mean) + size) / 4
        };
        self.answered = 0;
        self.reply_mean = mean as u32;
        let room = (WINDOW_BYTES / mean.max(1)).clamp(2, 1 << 20) as u32;
        self.requests = room.min(self.requests.saturating_mul(2));
    }
}

#[derive(Debug)]
pub struct Client {
    pub phase: Phase,
    /// In the list of those that have something to send.
    pub dirty: bool,
    /// It has replies to send that wait for others (`hold`).
    pub waits_to_send: bool,
    /// `partial` begins with a request that may not be run yet.
    pub held_back: bool,
    /// The driver was told to stop reading.
    pub reading_stopped: bool,
    /// Not read because memory is short.
    pub slowed: bool,
    /// It has shut its side, and what it asked for before is not all run yet.
    pub ended: bool,
    /// Nothing further is run until all its requests are answered (whole-cluster commands).
    pub barrier: bool,
    /// Logged in, wants its replies, is in the first database and in the middle of nothing:
    /// requests take the short way.
    pub plain: bool,
    /// The process ends and it is to be given away: nothing further is run, nor read.
    pub leaving: bool,
    /// The driver was told of it, and will ask for what goes along.
    pub offered: bool,
    /// In the list of those to be run on at the end of the turn.
    pub resuming: bool,
    /// A part of a reply has been sent: if its node is lost, so is this client.
    pub torn: bool,
    pub generation: u32,
    pub socket: Socket,
    pub head: u32,
    pub tail: u32,
    /// Requests in its order, and parts of those that were cut.
    pub in_flight: u32,
    /// Requests that do not simply wait in the backend that the map names: held, waiting,
    /// redirected, fenced. While there is one, later requests look at their elders.
    pub irregular: u32,
    /// Requests in state Held.
    pub held: u32,
    /// The slot map's version by which all of it in flight was routed that is not irregular, or
    /// `ALL_IRREGULAR`.
    pub map_version: u32,
    /// Bytes of replies that came before their turn.
    pub stored: usize,
    pub output: Output,
    pub window: Window,
    pub partial: Option<Box<Partial>>,
    /// What it is in the middle of.
    pub mode: Option<Box<Mode>>,
    /// When its output last made progress, milliseconds.
    pub progress_ms: u64,
    pub session: Session,
    /// What it is subscribed to, if anything.
    pub subscribed: Option<Box<Subscriptions>>,
}

/// In the place of a slot map's version, and none: nothing in flight went simply by the map.
pub const ALL_IRREGULAR: u32 = u32::MAX;

impl Client {
    pub fn new(generation: u32, socket: Socket, session: Session) -> Client {
        Client {
            phase: Phase::Open,
            dirty: false,
            waits_to_send: false,
            held_back: false,
            reading_stopped: false,
            slowed: false,
            ended: false,
            barrier: false,
            plain: session.authenticated,
            leaving: false,
            offered: false,
            resuming: false,
            torn: false,
            generation,
            socket,
            head: NONE,
            tail: NONE,
            in_flight: 0,
            irregular: 0,
            held: 0,
            map_version: 0,
            stored: 0,
            output: Output::default(),
            window: Window::new(),
            partial: None,
            mode: None,
            progress_ms: 0,
            session,
            subscribed: None,
        }
    }

    /// Appends a request to the order of replies.
    #[inline]
    pub fn push(&mut self, request: u32, requests: &mut Requests) {
        if self.tail == NONE {
            self.head = request;
            requests.clients_waiting += 1;
        } else {
            requests[self.tail].next_in_client = request;
        }
        self.tail = request;
        self.in_flight += 1;
    }

    /// Takes the head off and closes it; its reply has been written.
    #[inline]
    pub fn pop(&mut self, requests: &mut Requests) {
        debug_assert_ne!(self.head, NONE);
        let head = self.head;
        self.head = requests[head].next_in_client;
        requests.close(head);
        if self.head == NONE {
            self.tail = NONE;
            requests.clients_waiting -= 1;
        }
        self.in_flight -= 1;
        self.window.answered += 1;
    }

    /// Whether an answer may let it go on, or be the last.
    #[inline]
    pub fn waits_for_progress(&self) -> bool {
        self.partial.is_some() || self.phase == Phase::Last
    }

    /// Takes what is to be sent next.
    #[inline]
    pub fn take_output(&mut self, pool: &mut super::output::Pool) -> Vec<u8> {
        let bytes = self.output.take(pool);
        self.window.handed_over(bytes.len());
        bytes
    }

    /// Looks again whether the short way is open: after whatever may have changed its session.
    #[inline]
    pub fn refresh_plain(&mut self) {
        let queuing = self.mode.as_ref().is_some_and(|mode| mode.queue.is_some());
        let session = &self.session;
        let first = session.database == 0;
        let idle = session.subscriptions == 0 && !session.monitors && !queuing && first;
        self.plain = session.authenticated && session.reply == ReplyMode::On && idle;
    }

    /// How many requests may be run now, if nothing but their number changes.
    #[inline]
    pub fn spare(&self, requests_max: u32, output_soft: usize) -> u32 {
        let room = self.room(requests_max);
        if self.has_room(room, output_soft) { room - self.in_flight } else { 0 }
    }

    /// Whether it goes, or is given away, when its last reply is out.
    pub fn ends_soon(&self) -> bool {
        self.phase == Phase::Last || self.leaving
    }

    /// Whether a client that was held back may go on: under the low marks, so that it does not
    /// stop and go at each request.
    pub fn may_resume(&self, requests_max: u32, output_soft: usize) -> bool {
        self.has_room(self.room(requests_max).div_ceil(2), output_soft.div_ceil(2))
    }

    /// How many requests may be in flight.
    #[inline]
    fn room(&self, requests_max: u32) -> u32 {
        let most = requests_max.min(self.window.requests);
        if self.irregular > 0 { most.min(IRREGULAR_WINDOW) } else { most }
    }

    #[inline]
    fn has_room(&self, requests: u32, output: usize) -> bool {
        self.phase == Phase::Open
            && !self.barrier
            && !self.leaving
            && self.in_flight < requests
            && self.output.pending() + self.stored < output
    }

    /// All answered and all sent.
    pub fn is_done(&self) -> bool {
        self.head == NONE && !self.output.sending && !self.output.has_to_send()
    }

    /// The head's index if it is answered already.
    #[inline]
    pub fn head_done(&self, requests: &Requests) -> Option<u32> {
        (self.head != NONE && requests[self.head].state == State::Done).then_some(self.head)
    }
}

/// All clients of one reactor and pool.
#[derive(Debug, Default)]
pub struct Clients {
    entries: Vec<Client>,
    free: Vec<u32>,
}

impl std::ops::Index<u32> for Clients {
    type Output = Client;
    #[inline]
    fn index(&self, index: u32) -> &Client {
        &self.entries[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Clients {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Client {
        &mut self.entries[index as usize]
    }
}

impl Clients {
    pub fn open(&mut self, socket: Socket, session: Session) -> u32 {
        match self.free.pop() {
            Some(index) => {
                let generation = self.entries[index as usize].generation.wrapping_add(1);
                self.entries[index as usize] = Client::new(generation, socket, session);
                index
            }
            None => {
                self.entries.push(Client::new(0, socket, session));
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// Frees the entry; the driver said that the kernel holds nothing of it any more.
    pub fn close(&mut self, index: u32) {
        let client = &mut self.entries[index as usize];
        assert_ne!(client.phase, Phase::Free, "a client is closed once");
        assert_eq!(client.head, NONE, "a closed client has no requests");
        client.phase = Phase::Free;
        client.output = Output::default();
        client.partial = None;
        client.mode = None;
        client.session.details = None;
        client.session.user = None;
        self.free.push(index);
    }

    /// Entries, those that are free included.
    pub fn places(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn open_count(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Indexes of all entries that are not free.
    pub fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        let entries = self.entries.iter().enumerate();
        entries.filter(|(_, client)| client.phase != Phase::Free).map(|(index, _)| index as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sizes: &[(u32, usize)], expected: u32) {
        let mut window = Window::new();
        for &(answered, bytes) in sizes {
            window.answered = answered;
            window.handed_over(bytes);
        }
        assert_eq!(window.requests, expected);
    }

    #[test]
    fn window_opens_while_replies_are_small() {
        check(&[], 64);
        check(&[(64, 320)], 128);
        check(&[(64, 320), (128, 640), (256, 1280)], 512);
    }

    #[test]
    fn window_closes_when_replies_are_large() {
        check(&[(1, 10 << 20)], 2);
        check(&[(0, 10 << 20)], 2);
    }

    #[test]
    fn window_opens_again_after_large_replies() {
        let mut sizes = vec![(1, 10 << 20)];
        sizes.extend([(2, 10); 60]);
        let mut window = Window::new();
        for (answered, bytes) in sizes {
            window.answered = answered;
            window.handed_over(bytes);
        }
        assert!(window.requests > 4096);
    }

    #[test]
    fn as_many_may_be_run_as_there_is_room_for_and_none_behind_a_barrier() {
        let address = ([127, 0, 0, 1], 6379).into();
        let session = Session::new(1, address, address, 0, true);
        let mut client = Client::new(0, Socket::default(), session);
        client.in_flight = 10;
        assert_eq!(client.spare(4096, 1), WINDOW_FIRST - 10);
        assert_eq!(client.spare(16, 1), 6);
        assert_eq!((client.spare(10, 1), client.spare(5, 1)), (0, 0));
        client.window.requests = 1 << 20;
        assert_eq!(client.spare(4096, 1), 4086);
        client.irregular = 1;
        assert_eq!(client.spare(4096, 1), IRREGULAR_WINDOW - 10);
        client.stored = 1;
        assert_eq!(client.spare(4096, 1), 0, "its replies are to be taken first");
        client.stored = 0;
        client.barrier = true;
        assert_eq!(client.spare(4096, 1), 0);
        client.barrier = false;
        client.phase = Phase::Last;
        assert_eq!(client.spare(4096, 1), 0);
    }
}
