//! Requests in flight: one entry each, found by index, linked into their client's order and into
//! their backend's FIFO.
//!
//! ```text
//!            place                    reply read whole
//! Free ──► Held ──► InFlight ──────────────► Done ──► Free
//!            ▲         │ MOVED, ASK, lost     (or straight to Free when it is the client's turn)
//!            │         ▼
//!            └───── Waiting ──► Done (budget spent: an error)
//! ```
//! A `Parent` waits for its parts (`split`); a request whose client has left stays in its backend's
//! FIFO as a tombstone (`client == NONE`) until its reply has been read whole.
//!
//! Not here: where a request goes (`route`), what a part means (`split`).

use super::output::Pool;
use super::sample::{Sample, Timing};
use super::types::{NO_SLOT, NONE};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum State {
    Free,
    /// Waits for an elder of the same client and slot; owns its bytes.
    Held,
    /// Waits for time or for a new map; owns its bytes.
    Waiting,
    /// Waits for a free fenced backend; owns its bytes.
    Queued,
    /// In a backend's FIFO: written, or about to be.
    InFlight,
    /// Waits for its parts.
    Parent,
    /// Waits until nodes have confirmed its subscriptions.
    Subscribing,
    /// Waits for the other reactors' parts of the answer.
    Inquiring,
    /// Has its whole reply, waits for its turn.
    Done,
}

/// Facts that routing and recovery ask for, as bits.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks(pub u16);

impl Marks {
    /// Only reads: may be sent again although it may have run.
    pub const RETRY_SAFE: Marks = Marks(1);
    /// May compose its own reply: runs behind the fence, its errors are not believed.
    pub const FENCED: Marks = Marks(2);
    /// The client asked for no reply (CLIENT REPLY).
    pub const SILENT: Marks = Marks(4);
    /// Counted in its client's `irregular`.
    pub const IRREGULAR: Marks = Marks(8);
    /// The bytes of its unfinished reply lie in its client's output.
    pub const STREAMING: Marks = Marks(16);
    /// Was repeated after a lost connection; never twice.
    pub const REPEATED: Marks = Marks(32);
    /// Ours, not a client's: ASKING, the fence's nonce.
    pub const INTERNAL: Marks = Marks(64);
    /// Sent to `node` whatever the map says (SCRIPT LOAD to replicas).
    pub const BY_NODE: Marks = Marks(128);
    /// Its client speaks RESP3.
    pub const RESP3: Marks = Marks(256);
    /// Goes after ASKING to the node that was named.
    pub const ASKING: Marks = Marks(512);
    /// May be asked for key by key when TRYAGAIN stays (classes C, D, E).
    pub const DIVISIBLE: Marks = Marks(1024);
    /// Waits until the topology thread has looked whether the redirect's target is a node.
    pub const CONFIRMING: Marks = Marks(2048);
    /// An error of this part is none of the whole (SCRIPT LOAD at an unreachable replica).
    pub const OPTIONAL: Marks = Marks(4096);

    /// From MULTI to EXEC: so many replies as `part` says come before its own.
    pub const EXEC: Marks = Marks(8192);
    /// Ours: one of those replies. `part` is the EXEC's entry.
    pub const STEP: Marks = Marks(16384);
    /// Goes over a backend of its client's own.
    pub const PRIVATE: Marks = Marks(32768);

    #[inline]
    pub fn has(self, other: Marks) -> bool {
        self.0 & other.0 != 0
    }
    #[inline]
    pub fn set(&mut self, other: Marks) {
        self.0 |= other.0;
    }
    #[inline]
    pub fn unset(&mut self, other: Marks) {
        self.0 &= !other.0;
    }
    /// Whether an error that answers it may be a script's own words. EXEC's are the node's: what
    /// its scripts say stands inside an array.
    #[inline]
    pub fn speaks_for_itself(self) -> bool {
        self.has(Marks::FENCED) && !self.has(Marks::EXEC)
    }
    #[inline]
    pub const fn with(self, other: Marks) -> Marks {
        Marks(self.0 | other.0)
    }
}

/// One request, or one part of a split request: one cache line, all that the common path touches.
#[repr(align(64))]
#[derive(Debug)]
pub struct Request {
    /// The owner, or `NONE` for a tombstone or an internal request.
    pub client: u32,
    pub client_generation: u32,
    pub next_in_client: u32,
    pub next_in_backend: u32,
    pub backend: u32,
    /// Where its bytes are in the backend's stream.
    pub start: u32,
    pub len: u32,
    /// Parent: its split. Part: the split that it belongs to. Else `NONE`.
    pub split: u32,
    pub part: u32,
    /// Since when it is asked for: milliseconds, wrapping.
    pub since: u32,
    pub slot: u16,
    pub command: u16,
    /// The node that it must go to (`BY_NODE`, `ASKING`), or went to last.
    pub node: u16,
    pub marks: Marks,
    pub state: State,
    pub redirects: u8,
    pub waits: u8,
    /// Its `Kept` may hold something.
    has_kept: bool,
    /// A short reply that came before its turn.
    short_len: u8,
    short: [u8; SHORT_MAX],
}

const _: () = assert!(std::mem::size_of::<Request>() == 64);

/// `+OK`, `:1`, `$-1` and the like.
const SHORT_MAX: usize = 11;

/// What few requests have: bytes of their own. Beside the entries, so that those lie close.
#[derive(Debug, Default)]
struct Kept {
    /// The reply, when it came before its turn; the last error while waiting.
    reply: Vec<u8>,
    /// The request's own bytes while Held or Waiting.
    own: Vec<u8>,
}

/// Buffers for replies up to this size are used again, and so many of them: those that stayed with
/// their entries, as large as each had ever been, made memory grow for hours.
const REPLY_KEEP_MAX: usize = 256;
const REPLIES_KEPT_MAX: usize = 1024;

impl Kept {
    fn forget(&mut self, replies: &mut Pool) {
        replies.give(std::mem::take(&mut self.reply));
        self.own = Vec::new();
    }
}

/// What a new entry is told.
#[derive(Copy, Clone, Debug)]
pub struct NewRequest {
    pub client: u32,
    pub client_generation: u32,
    pub slot: u16,
    pub command: u16,
    pub marks: Marks,
    pub since: u32,
}

impl NewRequest {
    /// A request of ours that answers to nobody.
    pub fn internal(since: u32) -> NewRequest {
        NewRequest {
            client: NONE,
            client_generation: 0,
            slot: NO_SLOT,
            command: u16::MAX,
            marks: Marks::INTERNAL,
            since,
        }
    }
}

/// All requests of one reactor.
#[derive(Debug)]
pub struct Requests {
    entries: Vec<Request>,
    /// As long as `entries`.
    kept: Vec<Kept>,
    free: Vec<u32>,
    /// Buffers for replies.
    replies: Pool,
    pub sample: Sample,
    /// Clients that wait for an answer.
    pub clients_waiting: u32,
    /// Connections to nodes on which answers are due.
    pub nodes_asked: u32,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests {
            entries: Vec::new(),
            kept: Vec::new(),
            free: Vec::new(),
            replies: Pool::new(REPLY_KEEP_MAX, REPLY_KEEP_MAX, REPLIES_KEPT_MAX),
            sample: Sample::default(),
            clients_waiting: 0,
            nodes_asked: 0,
        }
    }
}

impl std::ops::Index<u32> for Requests {
    type Output = Request;
    #[inline]
    fn index(&self, index: u32) -> &Request {
        &self.entries[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Requests {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Request {
        &mut self.entries[index as usize]
    }
}

impl Requests {
    #[inline]
    pub fn open(&mut self, new: NewRequest) -> u32 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let entry = &mut self.entries[index as usize];
        debug_assert_eq!(entry.state, State::Free);
        entry.client = new.client;
        entry.client_generation = new.client_generation;
        entry.next_in_client = NONE;
        entry.next_in_backend = NONE;
        entry.backend = NONE;
        entry.split = NONE;
        entry.slot = new.slot;
        entry.command = new.command;
        entry.marks = new.marks;
        entry.since = new.since;
        entry.state = State::Held;
        entry.redirects = 0;
        entry.waits = 0;
        self.sample.opened(index, new.client, new.marks);
        index
    }

    /// Whether the driver should read the clock at the end of this turn, for `end_turn`.
    #[inline]
    pub fn wants_clock(&self) -> bool {
        match self.sample {
            Sample::None | Sample::Taken { sent_us: 1.., .. } => false,
            Sample::Armed { .. } | Sample::Taken { .. } | Sample::Ended { .. } => true,
        }
    }

    /// The end of a turn that began at `turn_us`: what the timed request took, if it was answered.
    pub fn end_turn(&mut self, turn_us: u64, now_us: u64) -> Option<Timing> {
        let entry = self.sample.request().and_then(|index| self.entries.get(index as usize));
        self.sample.end_turn(entry, turn_us, now_us)
    }

    fn grow(&mut self) -> u32 {
        let index = self.entries.len() as u32;
        self.entries.push(Request {
            client: NONE,
            client_generation: 0,
            next_in_client: NONE,
            next_in_backend: NONE,
            backend: NONE,
            start: 0,
            len: 0,
            split: NONE,
            part: 0,
            since: 0,
            slot: NO_SLOT,
            command: u16::MAX,
            node: u16::MAX,
            marks: Marks::default(),
            state: State::Free,
            redirects: 0,
            waits: 0,
            has_kept: false,
            short_len: 0,
            short: [0; SHORT_MAX],
        });
        self.kept.push(Kept::default());
        index
    }

    #[inline]
    pub fn close(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        assert_ne!(entry.state, State::Free, "a request is closed once");
        entry.state = State::Free;
        if entry.has_kept {
            entry.has_kept = false;
            self.kept[index as usize].forget(&mut self.replies);
        }
        self.sample.closed(index, &self.entries[index as usize]);
        self.free.push(index);
    }

    /// Also for an index that may be none any more.
    pub fn get(&self, index: u32) -> Option<&Request> {
        self.entries.get(index as usize)
    }

    /// HOT: has the entry's cache line fetched while other work is done; nothing waits for the
    /// load. With pipelines, entries in flight do not fit into the nearest caches.
    #[inline]
    pub fn touch(&self, index: u32) {
        std::hint::black_box(self[index].state);
    }

    /// The reply as far as it has come, or the last error while waiting.
    #[inline]
    pub fn reply(&self, index: u32) -> &[u8] {
        match self[index].has_kept {
            true => &self.kept[index as usize].reply,
            false => b"",
        }
    }

    pub fn set_reply(&mut self, index: u32, reply: &[u8]) {
        self.drop_reply(index);
        self.add_to_reply(index, reply);
    }

    #[inline]
    pub fn add_to_reply(&mut self, index: u32, piece: &[u8]) {
        self[index].has_kept = true;
        let reply = &mut self.kept[index as usize].reply;
        if reply.capacity() == 0 && piece.len() <= REPLY_KEEP_MAX {
            *reply = self.replies.take();
        }
        reply.extend_from_slice(piece);
    }

    /// Keeps its memory.
    #[inline]
    pub fn drop_reply(&mut self, index: u32) {
        if self[index].has_kept {
            self.kept[index as usize].reply.clear();
        }
    }

    pub fn take_reply(&mut self, index: u32) -> Vec<u8> {
        match self[index].has_kept {
            true => std::mem::take(&mut self.kept[index as usize].reply),
            false => Vec::new(),
        }
    }

    /// Keeps the final reply until its turn.
    #[inline]
    pub fn store_reply(&mut self, index: u32, reply: &[u8]) {
        let entry = &mut self[index];
        entry.short_len = 0;
        if reply.is_empty() {
            self.drop_reply(index);
        } else if let Some(short) = entry.short.get_mut(..reply.len()) {
            short.copy_from_slice(reply);
            entry.short_len = reply.len() as u8;
        } else {
            self.set_reply(index, reply);
        }
    }

    /// What `store_reply` kept; empty for a client that wants no reply.
    #[inline]
    pub fn stored_reply(&self, index: u32) -> &[u8] {
        let entry = &self[index];
        match entry.short_len {
            0 => self.reply(index),
            len => entry.short.get(..usize::from(len)).unwrap_or_default(),
        }
    }

    /// The request's own bytes while Held or Waiting.
    pub fn own(&self, index: u32) -> &[u8] {
        match self[index].has_kept {
            true => &self.kept[index as usize].own,
            false => b"",
        }
    }

    pub fn set_own(&mut self, index: u32, own: Vec<u8>) {
        self.kept_mut(index).own = own;
    }

    pub fn take_own(&mut self, index: u32) -> Vec<u8> {
        match self[index].has_kept {
            true => std::mem::take(&mut self.kept[index as usize].own),
            false => Vec::new(),
        }
    }

    #[inline]
    fn kept_mut(&mut self, index: u32) -> &mut Kept {
        self[index].has_kept = true;
        &mut self.kept[index as usize]
    }

    /// Those that were open for so long already are taken to have begun so much later.
    pub fn postpone(&mut self, now: u32, late: u32) {
        let open = self.entries.iter_mut().filter(|entry| entry.state != State::Free);
        for entry in open.filter(|entry| now.wrapping_sub(entry.since) >= late) {
            entry.since = entry.since.wrapping_add(late);
        }
    }

    /// Whether one that is not sent yet, or is to be sent again, names a node.
    pub fn any_means(&self, node: u16) -> bool {
        let unsent = |entry: &&Request| matches!(entry.state, State::Held | State::Waiting);
        self.entries.iter().filter(unsent).any(|entry| entry.node == node)
    }

    /// Requests that are not free.
    pub fn open_count(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Gives memory back after a burst: all of it when nothing is open.
    pub fn shrink(&mut self) {
        self.replies.shrink();
        if self.open_count() == 0 && self.entries.len() > 1024 {
            self.entries = Vec::new();
            self.kept = Vec::new();
            self.free = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_entry_is_reused_clean() {
        let mut requests = Requests::default();
        let first = requests.open(NewRequest::internal(1));
        requests.set_reply(first, b"+OK\r\n");
        requests[first].redirects = 3;
        requests.close(first);
        let second = requests.open(NewRequest::internal(2));
        assert_eq!(first, second);
        assert!(requests.reply(second).is_empty());
        assert_eq!(requests[second].redirects, 0);
        assert_eq!(requests.open_count(), 1);
    }

    #[test]
    fn memory_for_replies_does_not_grow_with_what_each_entry_has_seen() {
        let mut requests = Requests::default();
        let all: Vec<u32> = (0..4_000).map(|i| requests.open(NewRequest::internal(i))).collect();
        let most = |requests: &Requests| {
            let kept = requests.kept.iter().map(|kept| kept.reply.capacity()).sum::<usize>();
            kept + requests.replies.capacity()
        };
        for round in 0..100 {
            for (i, &index) in all.iter().enumerate() {
                requests.close(index);
                assert_eq!(requests.open(NewRequest::internal(0)), index);
                let len = if (i + round) % 64 == 0 { 1_000 } else { 30 };
                requests.store_reply(index, &vec![b'x'; len]);
                assert_eq!(requests.stored_reply(index).len(), len);
            }
        }
        all.iter().for_each(|&index| requests.close(index));
        assert_eq!(most(&requests), REPLIES_KEPT_MAX * REPLY_KEEP_MAX);
        requests.shrink();
        requests.shrink();
        assert_eq!(most(&requests), 0, "nothing of it is wanted");
    }

    #[test]
    fn large_reply_buffer_is_given_back() {
        let mut requests = Requests::default();
        let index = requests.open(NewRequest::internal(1));
        requests.set_reply(index, &vec![0; 1 << 20]);
        requests.close(index);
        let again = requests.open(NewRequest::internal(1));
        assert_eq!(requests.kept[again as usize].reply.capacity(), 0);
    }
}
