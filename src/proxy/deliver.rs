//! From a backend's bytes to the client whose turn it is.
//!
//! A reply is paired with the oldest request of its backend. The head of a client's order gets
//! its bytes at once; others wait in their entries. A long reply to a head is passed on as it
//! comes, but not before its first bytes said that it is no error, and not sent before it is whole
//! or large.
//!
//! Not here: what an error reply leads to (`recover`), merging (`fanout`), the fence (`fence`).

use super::Proxy;
use super::backend::{Lane, Phase};
use super::client;
use super::connect::Why;
use super::hot_keys::BIG_BYTES;
use super::request::{Marks, State};
use super::types::NONE;
use crate::limits;
use crate::resp::reply::{ErrorKind, Scanned, classify_error};

/// So many bytes of an unfinished reply are sent although its end is not here.
const STREAM_FROM: usize = 64 * 1024;

/// An error line longer than this is no error line.
const ERROR_LINE_MAX: usize = 64 * 1024;

impl Proxy {
    pub(super) fn handle_backend_bytes(&mut self, b: u32, bytes: &[u8]) {
        self.tally.bytes_from_nodes += bytes.len() as u64;
        let mut at = 0;
        while at < bytes.len() {
            let backend = &mut self.backends[b as usize];
            if !backend.is_open() {
                return;
            }
            backend.progress_ms = self.now.ms;
            let rest = &bytes[at..];
            let started = backend.scanner.at_start();
            let (piece, ended) = match backend.scanner.scan(rest) {
                Ok(Scanned::Complete { len }) => (&rest[..len], true),
                Ok(Scanned::Partial) => {
                    backend.note_part(self.now.ms, started, rest.len());
                    (rest, false)
                }
                Err(_) => return self.lose_backend(b, Why::Surprise),
            };
            at += piece.len();
            if (started && piece.first() == Some(&b'>')) || backend.skipping {
                // A push is nobody's reply.
                backend.skipping = !ended;
                if backend.lane == Lane::Subscriber {
                    self.handle_push_piece(b, piece, started, ended);
                }
                continue;
            }
            if backend.phase != Phase::Ready {
                self.handle_handshake(b, piece, ended);
                continue;
            }
            // What was not sent yet cannot be answered: this frame is somebody else's.
            let asked = |&r: &u32| !backend.is_unwritten(self.requests[r].start);
            let Some(r) = backend.head().filter(asked) else {
                return self.lose_backend(b, Why::Surprise);
            };
            if started && ended && backend.lane == Lane::Shared {
                self.whole_reply(b, r, piece);
            } else {
                self.part_of_reply(b, r, piece, started, ended);
            }
        }
        let backend = &mut self.backends[b as usize];
        backend.retire(&mut self.backend_pool);
        if backend.lane == Lane::Private {
            self.end_sync_if_refused(b);
            self.private_has_answered(b);
        }
    }

    #[inline]
    fn whole_reply(&mut self, b: u32, r: u32, reply: &[u8]) {
        if reply[0] == b'-' {
            self.count_node_error(b);
            if classify_error(reply) != ErrorKind::Other {
                return self.handle_error_reply(b, r, reply);
            }
        }
        if reply.len() >= BIG_BYTES {
            self.note_big_reply(b, r, reply.len() as u64);
        }
        let backend = &mut self.backends[b as usize];
        backend.pop(&mut self.requests);
        if let Some(next) = backend.head() {
            self.requests.touch(next);
        }
        self.complete(r, reply);
    }

    /// A reply that comes in pieces, or through the fence.
    fn part_of_reply(&mut self, b: u32, r: u32, piece: &[u8], started: bool, ended: bool) {
        if started {
            self.requests.drop_reply(r);
        }
        let entry = &self.requests[r];
        let lane = self.backends[b as usize].lane;
        let fenced = lane == Lane::Fence;
        let one_by_one = fenced || lane == Lane::Subscriber || entry.marks.has(Marks::STEP);
        let orphan = entry.client == NONE && !one_by_one;
        let is_error =
            if started { piece[0] == b'-' } else { self.requests.reply(r).first() == Some(&b'-') };
        let streams = entry.marks.has(Marks::STREAMING)
            || (!is_error && lane == Lane::Shared && !orphan && self.is_heads_own(r));
        if streams {
            return self.stream(b, r, piece, started, ended);
        }
        let (client, is_ours) = (entry.client, entry.marks.has(Marks::INTERNAL));
        if client != NONE || (one_by_one && is_ours) {
            self.requests.add_to_reply(r, piece);
        }
        let kept = self.requests.reply(r).len();
        if (is_error || is_ours) && kept > ERROR_LINE_MAX {
            return self.lose_backend(b, Why::Surprise);
        }
        if client != NONE && kept > self.reply_bytes_max() {
            self.close_client_over_limit(client);
            if lane == Lane::Private {
                // Closed with its client.
                return;
            }
            drop(self.requests.take_reply(r));
        }
        if !ended {
            return;
        }
        if fenced {
            if is_error {
                self.count_node_error(b);
            }
            return self.handle_fenced_reply(b, r);
        }
        let reply = self.requests.take_reply(r);
        if lane == Lane::Subscriber {
            return self.handle_subscriber_reply(b, r, &reply);
        }
        if orphan {
            self.backends[b as usize].pop(&mut self.requests);
            self.complete(r, &reply);
        } else {
            if lane == Lane::Private {
                self.note_private_reply(b, r, &reply);
                self.note_refused_write(r, &reply);
            }
            self.whole_reply(b, r, &reply);
        }
    }

    /// Whether a request is whole, wants its reply, and its client waits for nothing before it.
    fn is_heads_own(&self, r: u32) -> bool {
        let entry = &self.requests[r];
        entry.client != NONE
            && entry.split == NONE
            && !entry.marks.has(Marks::SILENT)
            && self.clients[entry.client].head == r
    }

    /// Passes a piece of the head's reply on to its client's output.
    fn stream(&mut self, b: u32, r: u32, piece: &[u8], started: bool, ended: bool) {
        let c = self.requests[r].client;
        if c != NONE
            && (started && self.is_over_limit(c)
                || self.clients[c].output.pending() > self.reply_bytes_max())
        {
            self.close_client_over_limit(c);
        }
        let c = self.requests[r].client;
        if c == NONE {
            // Its client left in the middle.
            if ended {
                self.backends[b as usize].pop(&mut self.requests);
                self.requests.close(r);
            }
            return;
        }
        let kept = self.requests.take_reply(r);
        self.requests[r].marks.set(Marks::STREAMING);
        let client = &mut self.clients[c];
        if !kept.is_empty() {
            client.output.append_uncommitted(&kept, &mut self.client_pool);
        }
        client.output.append_uncommitted(piece, &mut self.client_pool);
        let backend = &mut self.backends[b as usize];
        let before = if started { kept.len() as u64 } else { backend.streamed };
        backend.streamed = before + piece.len() as u64;
        if ended {
            let bytes = backend.streamed;
            client.output.commit();
            client.torn = false;
            if bytes >= BIG_BYTES as u64 {
                self.note_big_reply(b, r, bytes);
            }
            self.note_if_slow(r);
            self.backends[b as usize].pop(&mut self.requests);
            self.release_messages(c);
            return self.advance(c, r);
        }
        if client.torn || client.output.uncommitted() >= STREAM_FROM {
            client.torn = true;
            client.output.commit();
            self.mark_client_dirty(c);
        }
    }

    /// HOT: one comparison for each reply.
    #[inline]
    fn note_if_slow(&mut self, r: u32) {
        if self.age_ms(r) >= u64::from(self.slow_after_ms) {
            self.note_slow(r);
        }
    }

    /// A request has its final reply: to its client, to its split, or nowhere. It is in no FIFO.
    #[inline]
    pub(super) fn complete(&mut self, r: u32, reply: &[u8]) {
        let entry = &self.requests[r];
        if entry.client == NONE {
            return self.requests.close(r);
        }
        if entry.split != NONE && entry.state != State::Parent {
            return self.complete_part(r, reply);
        }
        let c = entry.client;
        self.note_if_slow(r);
        if reply.first() == Some(&b'-') {
            self.count_error(reply);
        }
        let entry = &self.requests[r];
        let client = &mut self.clients[c];
        assert_eq!(client.generation, entry.client_generation, "a reply is its own client's");
        if client.head != r {
            return self.store(r, reply);
        }
        if !entry.marks.has(Marks::SILENT) {
            let pending = client.output.pending() + client.stored;
            if pending > self.settings.client_output_limit {
                self.requests[r].state = State::Done;
                return self.close_client_over_limit(c);
            }
            client.output.buffer(&mut self.client_pool).extend_from_slice(reply);
        }
        self.advance(c, r);
    }

    /// Keeps a reply until its elders are answered.
    fn store(&mut self, r: u32, reply: &[u8]) {
        self.settle(r);
        let entry = &mut self.requests[r];
        let c = entry.client;
        entry.state = State::Done;
        let kept = if entry.marks.has(Marks::SILENT) { b"" } else { reply };
        self.requests.store_reply(r, kept);
        self.clients[c].stored += kept.len();
        if self.is_over_limit(c) {
            return self.close_client_over_limit(c);
        }
        if self.clients[c].held > 0 {
            self.after_answer(c);
        }
        if self.requests[r].state == State::Done && self.requests[r].client == c {
            self.answer_overtaken(r, reply);
        }
    }

    /// The head is answered, its reply written: it goes, and so do those behind it that are done.
    #[inline]
    fn advance(&mut self, c: u32, r: u32) {
        self.settle(r);
        let client = &mut self.clients[c];
        client.pop(&mut self.requests);
        self.requests.close(r);
        while let Some(next) = client.head_done(&self.requests) {
            let reply = self.requests.stored_reply(next);
            client.stored -= reply.len();
            client.output.buffer(&mut self.client_pool).extend_from_slice(reply);
            client.pop(&mut self.requests);
            self.requests.close(next);
        }
        self.mark_client_dirty(c);
        self.after_answer(c);
    }

    #[inline]
    pub(super) fn after_answer(&mut self, c: u32) {
        let client = &mut self.clients[c];
        if client.held > 0 && !client.resuming {
            client.resuming = true;
            self.resuming.push(c);
        }
        self.after_progress(c);
    }

    /// A request is not irregular any more.
    #[inline]
    pub(super) fn settle(&mut self, r: u32) {
        if self.unmark_irregular(r) {
            let entry = &self.requests[r];
            let c = entry.client;
            if c != NONE {
                if entry.waits > 0 {
                    self.repeats.reward();
                }
                if entry.marks.has(Marks::PRIVATE) {
                    self.end_block(c);
                }
            }
        }
    }

    /// Answers a request with one of our error texts.
    pub(super) fn fail(&mut self, r: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write(&mut out);
        // No answer of a node that is well again.
        self.requests[r].waits = 0;
        self.complete(r, &out);
    }

    /// Bytes of one reply that are kept for one client: over its limit by the largest value.
    pub(super) fn reply_bytes_max(&self) -> usize {
        self.settings.client_output_limit.saturating_add(limits::REQUEST_BULK_MAX as usize)
    }

    fn is_over_limit(&self, c: u32) -> bool {
        let client = &self.clients[c];
        client.output.pending() + client.stored > self.settings.client_output_limit
    }

    fn close_client_over_limit(&mut self, c: u32) {
        self.close_over_limit(c, "its replies are over client_output_limit");
    }

    pub(super) fn close_over_limit(&mut self, c: u32, why: &'static str) {
        self.tally.clients_over_limit += 1;
        let peer = self.clients[c].session.peer;
        self.actions.push(super::Action::Note(super::Note::ClientClosed { peer, why }));
        self.close_client(c);
    }

    /// Ends a client at once. What it has in flight becomes tombstones; the rest is dropped.
    pub(super) fn close_client(&mut self, c: u32) {
        if !matches!(self.clients[c].phase, client::Phase::Open | client::Phase::Last) {
            return;
        }
        self.leave_fence_queues(c);
        let client = &mut self.clients[c];
        client.phase = client::Phase::Closing;
        client.output.clear(&mut self.client_pool);
        let mut at = client.head;
        self.requests.clients_waiting -= u32::from(at != NONE);
        client.head = NONE;
        client.tail = NONE;
        client.in_flight = 0;
        client.held = 0;
        client.stored = 0;
        let partial = client.partial.take();
        let socket = client.socket;
        if let Some(partial) = partial {
            self.give_partial(partial);
        }
        while at != NONE {
            let next = self.requests[at].next_in_client;
            self.abandon(at);
            at = next;
        }
        self.drop_subscriptions(c);
        if let Some(mode) = self.clients[c].mode.take() {
            self.blocked_clients -= usize::from(mode.blocked.is_some());
            if let Some(watch) = mode.watch {
                self.end_watch(&watch);
            }
        }
        let conn = super::Conn::Client(c);
        self.actions.push(super::Action::Close { conn, socket });
    }

    /// A request whose client has left.
    fn abandon(&mut self, r: u32) {
        self.unmark_irregular(r);
        let entry = &mut self.requests[r];
        entry.client = NONE;
        match entry.state {
            // What blocks is not left to go on for nobody.
            State::InFlight if entry.marks.has(Marks::PRIVATE) => {
                entry.split = NONE;
                let b = entry.backend;
                self.lose_backend(b, Why::Retired);
            }
            // A tombstone: its reply is still to be read, and nobody's any more.
            State::InFlight => {
                entry.split = NONE;
                drop(self.requests.take_reply(r));
            }
            State::Waiting => {
                self.forget_awaiting(r);
                self.requests.close(r);
            }
            State::Parent => {
                let split = entry.split;
                let parts = std::mem::take(&mut self.splits[split].parts);
                for &part in &parts {
                    self.abandon(part);
                }
                self.splits[split].parts = parts;
                self.splits.close(split);
                self.requests.close(r);
            }
            State::Subscribing => {
                self.forget_join(r);
                self.requests.close(r);
            }
            State::Inquiring => {
                match self.requests[r].split {
                    NONE => self.forget_inquiry(r),
                    _ => self.forget_receivers(r),
                }
                self.requests.close(r);
            }
            // What was in a queue has left it (`leave_fence_queues`).
            State::Held | State::Queued | State::Done => self.requests.close(r),
            State::Free => (),
        }
    }
}
