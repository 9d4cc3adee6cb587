//! Behind the fence: requests that may compose their own reply.
//!
//! A script can make stock servers emit two reply frames for one request. So such requests run on
//! backends of their own, one client at a time, each followed by `ECHO` of a number that nobody can
//! foresee: one frame, then the number, or the backend is closed and the client gets an error. No
//! other client's request is ever in that FIFO (DESIGN 4, hostile neighbours).
//!
//! A node that is busy with a script refuses the ECHO too. What came before is then still the
//! request's own reply, as nothing had been out of step until then; but the backend is not trusted
//! with another client after it.
//!
//! Not here: which requests these are (`command::may_compose_reply`).

use super::Proxy;
use super::backend::Lane;
use super::connect::Why;
use super::launch::{ASKING, Bytes, Usable};
use super::local::errors;
use super::nodes::{face_of, version_of};
use super::request::{Marks, State};
use super::route::Next;
use super::scripts::is_no_script;
use super::types::{Action, NO_SLOT, NONE, Note};
use crate::resp::Version;
use crate::resp::reply::{ErrorKind, classify_error};
use crate::resp::request::encode_request;

/// A node that refuses ECHO may have been told better since.
const NO_FENCE_MS: u64 = 1_000;

/// Requests of one client in one fenced FIFO.
const FENCED_MAX: u32 = 64;

impl Proxy {
    /// Sends a leg on its way through the fence.
    pub(super) fn launch_fenced(&mut self, r: u32, node: u16, bytes: Bytes) {
        if self.must_hold(r, NONE) {
            return self.hold(r, bytes);
        }
        if self.now.ms < self.nodes[node].no_fence_until_ms {
            return self.fail(r, errors::echo_refused);
        }
        self.mark_irregular(r);
        let entry = &mut self.requests[r];
        entry.state = State::Queued;
        entry.node = node;
        let version = if entry.marks.has(Marks::RESP3) { Version::Resp3 } else { Version::Resp2 };
        let face = face_of(version, self.database_of(r));
        self.requests.set_own(r, bytes.into_vec());
        self.nodes[node].open_fence(face);
        self.nodes[node].fence_queue[face].push_back(r);
        self.requeue_younger(r, node, face);
        self.serve_fence_queue(node);
    }

    /// The node does not let our user ECHO: nothing that may compose its reply can be vouched for,
    /// so nothing of it is sent. Nothing was: this is the handshake.
    pub(super) fn close_fence(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        let node = backend.node;
        let mut refused = Vec::new();
        while let Some(r) = backend.head() {
            backend.pop(&mut self.requests);
            refused.push(r);
        }
        let entry = &mut self.nodes[node];
        entry.no_fence_until_ms = self.now.ms + NO_FENCE_MS;
        refused.extend(entry.fence_queue.iter_mut().flat_map(|queue| queue.drain(..)));
        for &r in &refused {
            // An earlier one's end may close its client: it stays a tombstone until its own.
            self.requests[r].state = State::InFlight;
        }
        self.lose_backend(b, Why::Retired);
        for r in refused {
            drop(self.requests.take_own(r));
            self.fail(r, errors::echo_refused);
        }
    }

    /// A leg that comes again goes before those of its client and slot that queue already.
    fn requeue_younger(&mut self, r: u32, node: u16, face: usize) {
        let slot = self.requests[r].slot;
        let mut at = self.requests[r].next_in_client;
        while at != NONE {
            let entry = &self.requests[at];
            let queue = &mut self.nodes[node].fence_queue[face];
            if entry.state == State::Queued
                && entry.slot == slot
                && let Some(place) = queue.iter().position(|&queued| queued == at)
            {
                queue.remove(place);
                queue.push_back(at);
            }
            at = entry.next_in_client;
        }
    }

    /// Gives waiting legs to free fenced backends.
    pub(super) fn serve_fence_queue(&mut self, node: u16) {
        for index in 0..self.nodes[node].fence_queue.len() {
            while let Some(&r) = self.nodes[node].fence_queue[index].front() {
                if self.target(r) != Some(node) || !self.nodes[node].present {
                    // Its slot has another owner since, or this node is gone.
                    self.nodes[node].fence_queue[index].pop_front();
                    let bytes = self.requests.take_own(r);
                    self.launch(r, Bytes::Own(bytes));
                    continue;
                }
                if self.must_hold(r, NONE) {
                    // An elder has come back since, and waits.
                    self.nodes[node].fence_queue[index].pop_front();
                    let bytes = self.requests.take_own(r);
                    self.hold(r, Bytes::Own(bytes));
                    continue;
                }
                match self.fence_for(r, node, index) {
                    Some(Usable::Failing) => {
                        self.nodes[node].fence_queue[index].pop_front();
                        self.give_up(r);
                    }
                    Some(_) => (),
                    None => break,
                }
            }
        }
    }

    /// Finds a backend for the queue's first leg and puts it there. `None`: it must wait.
    fn fence_for(&mut self, r: u32, node: u16, index: usize) -> Option<Usable> {
        let entry = &self.requests[r];
        let owner = (entry.client, entry.client_generation);
        let fences = self.nodes[node].fences[index].clone();
        let is_owners = |&&b: &&u32| {
            let backend = &self.backends[b as usize];
            backend.owner == owner && backend.is_open() && backend.is_fence_busy()
        };
        if let Some(&b) = fences.iter().find(is_owners) {
            let backend = &self.backends[b as usize];
            let has_room = backend.queued() < 2 * FENCED_MAX && !backend.is_full();
            return has_room.then(|| self.enter_fence(r, b, node, index));
        }
        let mut failing = !fences.is_empty();
        for &b in &fences {
            let backend = &self.backends[b as usize];
            if backend.is_fence_busy() || backend.spoilt {
                failing = false;
                continue;
            }
            match self.usable(b) {
                Usable::Now => return Some(self.enter_fence(r, b, node, index)),
                Usable::From(_) => failing = false,
                Usable::Failing => (),
            }
        }
        if fences.len() < self.settings.fence_lanes.max(1) {
            let as_what = (version_of(index), self.database_of(r));
            let b = self.open_backend(node, as_what, Lane::Fence);
            self.nodes[node].fences[index].push(b);
            return self.is_usable_now(b).then(|| self.enter_fence(r, b, node, index));
        }
        failing.then_some(Usable::Failing)
    }

    fn enter_fence(&mut self, r: u32, b: u32, node: u16, index: usize) -> Usable {
        self.nodes[node].fence_queue[index].pop_front();
        let bytes = self.requests.take_own(r);
        let entry = &self.requests[r];
        self.backends[b as usize].owner = (entry.client, entry.client_generation);
        let healed = entry.waits > 0;
        if let Some(body) = healed.then(|| self.script_of(&bytes)).flatten() {
            self.enqueue_internal(b, |out| {
                encode_request([b"SCRIPT".as_slice(), b"LOAD", &body].into_iter(), out);
            });
        }
        let entry = &mut self.requests[r];
        if entry.marks.has(Marks::ASKING) {
            entry.marks.unset(Marks::ASKING);
            self.enqueue_internal(b, |out| out.extend_from_slice(ASKING));
        }
        // It was sent where a redirect said; should it have to go again, the map says where.
        if self.requests[r].marks.speaks_for_itself() && self.requests[r].slot != NO_SLOT {
            self.requests[r].marks.unset(Marks::BY_NODE);
        }
        self.enqueue(r, b, Bytes::Own(bytes));
        let nonce = format!("{:016x}{:016x}", self.random(), self.random());
        let echo = self.enqueue_internal(b, |out| {
            encode_request([b"ECHO".as_slice(), nonce.as_bytes()].into_iter(), out);
        });
        let answer = format!("${}\r\n{nonce}\r\n", nonce.len());
        self.requests.set_own(echo, answer.into_bytes());
        Usable::Now
    }

    /// The head of a fenced FIFO has its whole reply, in its entry.
    pub(super) fn handle_fenced_reply(&mut self, b: u32, r: u32) {
        let open = self.backends[b as usize].fence_open;
        if !self.requests[r].marks.has(Marks::INTERNAL) {
            if open != NONE {
                return self.breach(b);
            }
            self.keep_bytes_of_refused(b, r);
            let backend = &mut self.backends[b as usize];
            backend.pop(&mut self.requests);
            backend.fence_open = r;
            return;
        }
        let expected = self.requests.take_own(r);
        let busy = self.requests.reply(r).starts_with(b"-BUSY ");
        if !expected.is_empty() && (open == NONE || !(busy || self.requests.reply(r) == expected)) {
            return self.breach(b);
        }
        if expected.is_empty() && self.requests.reply(r).first() == Some(&b'-') {
            let line = self.requests.take_reply(r);
            self.note_refused_step(r, &line);
        }
        let backend = &mut self.backends[b as usize];
        backend.pop(&mut self.requests);
        self.requests.close(r);
        if expected.is_empty() {
            // The OK of ASKING, a step of a transaction, or what SCRIPT LOAD said.
            return;
        }
        backend.fence_open = NONE;
        backend.spoilt = busy;
        let node = backend.node;
        self.release_fenced(b, open);
        let backend = &self.backends[b as usize];
        if backend.spoilt && !backend.is_fence_busy() {
            return self.lose_backend(b, Why::Retired);
        }
        self.serve_fence_queue(node);
    }

    /// A refused leg may have to be sent again after the buffer with its bytes is gone, and a body
    /// that is no script is to be forgotten. Called
    /// again when a send comes back: until then the kernel may have them.
    pub(super) fn keep_bytes_of_refused(&mut self, b: u32, r: u32) {
        let entry = &self.requests[r];
        let line = self.requests.reply(r);
        let is_error = line.first() == Some(&b'-');
        let refused = is_error && classify_error(line) != ErrorKind::Other;
        if (refused || is_no_script(line)) && entry.client != NONE {
            let bytes = self.backends[b as usize].bytes_of(entry.start, entry.len);
            self.requests.set_own(r, bytes.unwrap_or_default());
        }
    }

    /// The number came right after the one frame: the frame is the leg's reply.
    fn release_fenced(&mut self, b: u32, r: u32) {
        let reply = self.requests.take_reply(r);
        let bytes = self.requests.take_own(r);
        if self.requests[r].client == NONE {
            return self.complete(r, &reply);
        }
        let cause = self.cause_of_abort(r, &reply);
        let line = cause.as_deref().unwrap_or(&reply);
        match self.decide(r, line) {
            Next::Answer => {
                self.forget_if_no_script(r, &bytes, &reply);
                self.complete(r, &reply);
            }
            next if !bytes.is_empty() => self.act(r, next, line, bytes),
            _ => self.await_bytes(b, r, line),
        }
    }

    /// More or other frames than were asked for: nothing of this backend can be believed.
    fn breach(&mut self, b: u32) {
        self.tally.fence_breaches += 1;
        let address = self.backends[b as usize].address;
        self.actions.push(Action::Note(Note::FenceBreach { address }));
        self.lose_backend(b, Why::Surprise);
    }

    /// A leg that was answered, but not vouched for, when its backend was given up.
    pub(super) fn fail_fenced(&mut self, r: u32, why: Why) {
        drop(self.requests.take_own(r));
        match why {
            Why::Surprise => self.fail(r, errors::bad_reply),
            Why::TimedOut => self.fail(r, errors::timeout),
            Why::Ended | Why::Retired => self.fail(r, errors::connection_lost),
        }
    }

    /// A client is about to be closed: all that it has in queues leaves them, in one pass.
    pub(super) fn leave_fence_queues(&mut self, c: u32) {
        if self.clients[c].irregular == 0 {
            return;
        }
        for node in self.nodes.indexes() {
            for queue in &mut self.nodes[node].fence_queue {
                queue.retain(|&queued| self.requests[queued].client != c);
            }
        }
    }

    /// Legs that have queued for too long, and backends that may be tried again.
    pub(super) fn check_fence_queues(&mut self) {
        for node in self.nodes.indexes() {
            for index in 0..self.nodes[node].fence_queue.len() {
                while let Some(&r) = self.nodes[node].fence_queue[index].front() {
                    if self.age_ms(r) < self.settings.request_timeout_ms {
                        break;
                    }
                    self.nodes[node].fence_queue[index].pop_front();
                    self.give_up(r);
                }
            }
            if self.nodes[node].fence_queue.iter().any(|queue| !queue.is_empty()) {
                self.serve_fence_queue(node);
            }
        }
    }
}
