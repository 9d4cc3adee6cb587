//! The lives of backends: connecting, the handshake, loss, backoff, time-outs.
//!
//! Not here: the FIFO itself (`backend`), what becomes of lost requests (`recover`).

use std::net::SocketAddr;

use ahash::AHashSet;

use super::backend::{Backend, Lane, Phase};
use super::nodes::face_of;
use super::request::Marks;
use super::types::{Action, Conn, NONE, Note, Now, Report, Socket};
use super::{Proxy, launch::Usable};
use crate::resp::Version;
use crate::resp::request::encode_request;
use crate::secret::Secret;

/// Why a backend is given up.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// Refused, reset, closed by the node.
    Ended,
    /// Nothing came in time.
    TimedOut,
    /// It sent what nobody asked for, or what is no frame.
    Surprise,
    /// Its node is not in the map any more.
    Retired,
}

/// Backoff between attempts: 50 ms, doubled up to this, plus a quarter of jitter: a node that is
/// there again is used within a second.
pub(super) const BACKOFF_MAX_MS: u64 = 500;

/// An error in a handshake is judged when it is whole, or so long.
const REFUSAL_MAX: usize = 1024;

/// A check of deadlines that is so late was not delayed by work.
const STALL_MS: u64 = 250;

impl Proxy {
    pub(super) fn open_backend(
        &mut self,
        node: u16,
        (version, seat): (Version, u8),
        lane: Lane,
    ) -> u32 {
        let mut backend = Backend::new(node, self.nodes[node].address, version, lane);
        backend.seat = seat;
        match self.backends_free.pop() {
            Some(b) => {
                self.backends[b as usize] = backend;
                b
            }
            None => {
                self.backends.push(backend);
                (self.backends.len() - 1) as u32
            }
        }
    }

    /// Asks the driver for a connection.
    pub(super) fn connect(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        backend.phase = Phase::Connecting;
        backend.since_ms = self.now.ms;
        backend.socket = Socket { index: NONE, generation: 0 };
        let address: SocketAddr = backend.address;
        self.actions.push(Action::Connect { backend: b, address });
    }

    /// The driver has begun to connect, on this socket.
    pub fn handle_connecting(&mut self, b: u32, socket: Socket) {
        let backend = &mut self.backends[b as usize];
        backend.socket = socket;
        if backend.phase != Phase::Connecting {
            // Given up in the very turn that asked for it.
            backend.phase = Phase::Closing;
            self.actions.push(Action::Close { conn: Conn::Backend(b), socket });
        }
    }

    /// The connection stands, or could not be made.
    pub fn handle_connected(&mut self, b: u32, ok: bool, now: Now) {
        self.now = now;
        if self.backends[b as usize].phase != Phase::Connecting {
            return;
        }
        if !ok {
            return self.lose_backend(b, Why::Ended);
        }
        self.tally.backend_connects += 1;
        let (bytes, replies) = self.handshake(b);
        let backend = &mut self.backends[b as usize];
        backend.phase = Phase::Handshake;
        backend.handshake_left = replies;
        // The handshake overtakes what was queued while connecting; it is no part of the stream.
        backend.output.sending = true;
        backend.handshake_sending = true;
        let socket = backend.socket;
        self.actions.push(Action::Send { conn: Conn::Backend(b), socket, bytes, last: false });
    }

    /// What is said first. There is always something, so that a greeting error (too many clients,
    /// protected mode) is taken for the handshake's answer and never for a client's.
    fn handshake(&self, b: u32) -> (Vec<u8>, u8) {
        let (mut out, mut replies) = self.login(self.backends[b as usize].version);
        let seat = self.backends[b as usize].seat;
        if seat > 0 {
            let number = self.databases.number(seat).to_string();
            encode_request([b"SELECT".as_slice(), number.as_bytes()].into_iter(), &mut out);
            replies += 1;
        }
        if self.backends[b as usize].lane == Lane::Fence {
            // Without it nothing may go through: better known before than after a script has run.
            encode_request([b"ECHO".as_slice(), b"fence"].into_iter(), &mut out);
            replies += 1;
        }
        (out, replies)
    }

    fn login(&self, version: Version) -> (Vec<u8>, u8) {
        let mut out = Vec::new();
        let password = self.settings.node_password.as_ref().map(Secret::reveal);
        let user = self.settings.node_user.as_deref().unwrap_or("default").as_bytes();
        let mut words: Vec<&[u8]> = Vec::new();
        if version == Version::Resp3 {
            words.extend([b"HELLO".as_slice(), b"3"]);
            if let Some(password) = password {
                words.extend([b"AUTH".as_slice(), user, password]);
            }
            encode_request(words.into_iter(), &mut out);
            return (out, 1);
        }
        let mut replies = 1;
        if let Some(password) = password {
            words.push(b"AUTH");
            if self.settings.node_user.is_some() {
                words.push(user);
            }
            words.push(password);
            encode_request(words.into_iter(), &mut out);
            replies += 1;
        }
        encode_request([b"PING".as_slice()].into_iter(), &mut out);
        (out, replies)
    }

    /// A piece of an answer to the handshake.
    pub(super) fn handle_handshake(&mut self, b: u32, piece: &[u8], ended: bool) {
        let backend = &mut self.backends[b as usize];
        let kind = backend.scanner.frame_type();
        let mut piece = piece;
        let whole;
        if kind == b'-' {
            // Its first word says what it means, and may come in two.
            backend.pushed.extend_from_slice(piece);
            if !ended && backend.pushed.len() <= REFUSAL_MAX {
                return;
            }
            whole = std::mem::take(&mut backend.pushed);
            piece = &whole;
        }
        let echoes = backend.lane == Lane::Fence && backend.handshake_left == 1;
        let last = 1 + u8::from(backend.lane == Lane::Fence);
        let selects = backend.seat > 0 && backend.handshake_left == last;
        let greets = backend.version == Version::Resp3 && !selects;
        let expected = match (echoes, greets) {
            (true, _) => b'$',
            (false, true) => b'%',
            (false, false) => b'+',
        };
        // A node that loads, or runs a long script, lets us in all the same; but the database must
        // be the one that is meant.
        let busy = piece.starts_with(b"-LOADING") || piece.starts_with(b"-BUSY ");
        let waits = busy && !selects;
        let refused = kind != expected && !(kind == b'-' && waits);
        if backend.phase != Phase::Handshake || backend.handshake_left == 0 || refused {
            if refused {
                let said = piece.split(|&byte| byte == b'\r').next().unwrap_or_default();
                let error = String::from_utf8_lossy(&said[..said.len().min(200)]).into();
                let address = backend.address;
                self.actions.push(Action::Note(Note::LoginRefused { address, error }));
                if echoes && piece.starts_with(b"-NOPERM") {
                    return self.close_fence(b);
                }
            }
            return self.lose_backend(b, Why::Surprise);
        }
        if !ended {
            return;
        }
        backend.handshake_left -= 1;
        if backend.handshake_left > 0 {
            return;
        }
        backend.phase = Phase::Ready;
        backend.failures = 0;
        backend.tripped = false;
        backend.progress_ms = self.now.ms;
        self.mark_backend_dirty(b);
        if self.backends[b as usize].lane == Lane::Fence {
            self.serve_fence_queue(self.backends[b as usize].node);
        }
    }

    pub(super) fn flush_backend(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        backend.dirty = false;
        if backend.phase != Phase::Ready || backend.output.sending || !backend.output.has_to_send()
        {
            return;
        }
        let bytes = backend.take_piece(&mut self.backend_pool, self.now.ms);
        self.urgent |= backend.output.has_to_send() || !backend.awaiting.is_empty();
        let socket = backend.socket;
        self.tally.sends_to_nodes += 1;
        self.actions.push(Action::Send { conn: Conn::Backend(b), socket, bytes, last: false });
    }

    pub(super) fn handle_backend_sent(&mut self, b: u32, buffer: Vec<u8>, ok: bool) {
        self.tally.bytes_to_nodes += buffer.len() as u64;
        let backend = &mut self.backends[b as usize];
        if !backend.is_open() {
            return;
        }
        if !ok {
            return self.lose_backend(b, Why::Ended);
        }
        if backend.handshake_sending {
            backend.handshake_sending = false;
            backend.output.sent();
            // The handshake may hold a password: not kept for reuse.
            drop(buffer);
        } else {
            backend.keep_sent(buffer);
            let open = backend.fence_open;
            if open != NONE && self.requests.own(open).is_empty() {
                self.keep_bytes_of_refused(b, open);
            }
            let backend = &self.backends[b as usize];
            if !backend.awaiting.is_empty() {
                self.revisit_awaiting(b);
            }
            self.backends[b as usize].retire(&mut self.backend_pool);
        }
        if self.backends[b as usize].output.has_to_send() {
            self.mark_backend_dirty(b);
        }
    }

    /// Gives a backend up: what it had in flight is lost or goes elsewhere.
    pub(super) fn lose_backend(&mut self, b: u32, why: Why) {
        let backend = &mut self.backends[b as usize];
        if !backend.is_open() {
            return;
        }
        let was_ready = backend.phase == Phase::Ready;
        let mut lost = std::mem::take(&mut self.lost);
        while let Some(r) = backend.head() {
            let entry = &self.requests[r];
            let written = !backend.is_unwritten(entry.start);
            let bytes = backend.bytes_of(entry.start, entry.len);
            backend.pop(&mut self.requests);
            lost.push((r, written, bytes));
        }
        let awaiting = std::mem::take(&mut backend.awaiting);
        let fence_open = std::mem::replace(&mut backend.fence_open, NONE);
        backend.reset_connection(&mut self.backend_pool);
        if why != Why::Retired {
            self.note_failure(b, was_ready, why);
        }
        self.close_socket(b);
        if self.backends[b as usize].lane == Lane::Private {
            self.forget_private(b);
        }
        if fence_open != NONE {
            self.fail_fenced(fence_open, why);
        }
        for r in awaiting {
            self.fail_awaiting(r);
        }
        self.keep_order_of_lost(&mut lost);
        for (r, written, bytes) in lost.drain(..) {
            self.handle_lost(r, written, why == Why::TimedOut, bytes);
        }
        self.lost = lost;
        let (lane, node) = (self.backends[b as usize].lane, self.backends[b as usize].node);
        match lane {
            Lane::Shared => (),
            Lane::Fence => self.serve_fence_queue(node),
            Lane::Subscriber => self.lose_legs(node),
            Lane::Private => self.free_private(b),
        }
    }

    /// A read is not repeated when a later write of its client to its slot may have run: it would
    /// see what it came before. Without its bytes it is lost like the write.
    fn keep_order_of_lost(&self, lost: &mut [(u32, bool, Option<Vec<u8>>)]) {
        let mut written_to = AHashSet::new();
        for (r, written, bytes) in lost.iter_mut().rev() {
            let entry = &self.requests[*r];
            let place = (entry.client, entry.slot);
            if entry.client == NONE || !*written {
                continue;
            }
            if !entry.marks.has(Marks::RETRY_SAFE) {
                written_to.insert(place);
            } else if written_to.contains(&place) {
                *bytes = None;
            }
        }
    }

    fn close_socket(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        backend.since_ms = self.now.ms;
        if backend.socket.index == NONE {
            backend.phase = Phase::Idle;
            // What was asked for in this turn is not done any more: the entry may be another's by
            // the end of it.
            self.actions.retain(
                |action| !matches!(action, Action::Connect { backend, .. } if *backend == b),
            );
            return;
        }
        backend.phase = Phase::Closing;
        let socket = backend.socket;
        self.actions.push(Action::Close { conn: Conn::Backend(b), socket });
    }

    fn note_failure(&mut self, b: u32, was_ready: bool, why: Why) {
        let random = self.random();
        self.tally.backend_failures += 1;
        self.tally.backend_surprises += u64::from(why == Why::Surprise);
        let backend = &mut self.backends[b as usize];
        self.nodes[backend.node].counts.losses += 1;
        // What failed long ago, before anybody wanted it again, says nothing of now.
        let unwanted_ms = backend.since_ms.saturating_sub(backend.retry_at_ms);
        if backend.failures == 0 || unwanted_ms > BACKOFF_MAX_MS {
            backend.failures = 0;
            backend.failing_since_ms = self.now.ms;
        }
        backend.failures += 1;
        let failing_ms = self.now.ms.saturating_sub(backend.failing_since_ms);
        backend.tripped = failing_ms > self.settings.request_timeout_ms;
        // A connection that served is tried again at once, a node that refuses less and less often.
        let backoff = match backend.failures {
            1 if was_ready => 0,
            failures => (25 << failures.min(8)).min(BACKOFF_MAX_MS),
        };
        backend.retry_at_ms = self.now.ms + backoff + random % (backoff / 4 + 1);
        let address = backend.address;
        let why = match why {
            Why::Ended | Why::Retired if was_ready => "closed by the node",
            Why::Ended | Why::Retired => "cannot connect",
            Why::TimedOut if was_ready => "no answer in time",
            Why::TimedOut => "cannot connect or log in in time",
            Why::Surprise if was_ready => "an answer that nobody asked for",
            Why::Surprise => "login refused",
        };
        self.actions.push(Action::Note(Note::BackendLost { address, why }));
        self.actions.push(Action::Report(Report::NodeLost { address }));
    }

    /// It was refused, so it did not run; but its bytes are gone with the connection.
    fn fail_awaiting(&mut self, r: u32) {
        if self.requests[r].state == super::request::State::Waiting {
            drop(self.requests.take_reply(r));
            if self.requests[r].marks.speaks_for_itself() {
                // A script's word that it was not run is not believed.
                return self.fail(r, super::local::errors::connection_lost);
            }
            self.fail(r, super::local::errors::no_connection);
        }
    }

    pub(super) fn handle_backend_gone(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        if backend.phase != Phase::Closing {
            return;
        }
        backend.phase = Phase::Idle;
        backend.socket = Socket { index: NONE, generation: 0 };
        let node = backend.node;
        if backend.lane == Lane::Private {
            return self.free_private(b);
        }
        if !self.nodes[node].present {
            self.retire_absent_nodes();
        } else if backend.lane == Lane::Fence {
            self.serve_fence_queue(node);
        }
    }

    /// Connects to every primary before somebody asks for it: clients of the process before are not
    /// to wait for that.
    pub fn connect_ahead(&mut self, now: Now) {
        self.now = now;
        for node in self.nodes.indexes() {
            if !self.nodes[node].present || !self.nodes[node].primary || !self.nodes[node].healthy {
                continue;
            }
            for version in [Version::Resp2, Version::Resp3] {
                let b = self.shared_backend(node, version, 0);
                if self.backends[b as usize].phase == Phase::Idle {
                    self.usable(b);
                }
            }
        }
    }

    /// Whether it knows the slots' nodes, and has connected to them where that can be done.
    pub fn is_prepared(&self) -> bool {
        self.has_map() && !self.connecting()
    }

    pub(super) fn connecting(&self) -> bool {
        let busy = [Phase::Connecting, Phase::Handshake, Phase::Closing];
        self.backends.iter().any(|backend| busy.contains(&backend.phase))
    }

    /// The check is late: while something is under way that is because the whole process stood
    /// still. What came meanwhile is not read yet, so the time that was lost is nobody's fault.
    pub(super) fn forgive_stall(&mut self, late_ms: u64) {
        if late_ms < STALL_MS {
            return;
        }
        let before = self.now.ms - late_ms;
        for backend in self.backends.iter_mut().filter(|backend| backend.is_open()) {
            let begun = &mut backend.frame_since_ms;
            for since in [&mut backend.progress_ms, &mut backend.since_ms, begun] {
                // What began later did not wait.
                *since += if *since <= before { late_ms } else { 0 };
            }
        }
        self.requests.postpone(self.now.ms as u32, late_ms as u32);
    }

    /// Time-outs of connections and of answers.
    pub(super) fn check_backends(&mut self) {
        for b in 0..self.backends.len() as u32 {
            let backend = &self.backends[b as usize];
            let since_ms = self.now.ms.saturating_sub(backend.since_ms);
            match backend.phase {
                Phase::Connecting | Phase::Handshake => {
                    if since_ms > self.settings.connect_timeout_ms {
                        self.lose_backend(b, Why::TimedOut);
                    }
                }
                Phase::Ready if backend.blocking => {
                    if self.block_is_overdue(b) {
                        self.lose_backend(b, Why::TimedOut);
                    }
                }
                Phase::Ready if backend.drips(self.now.ms, self.settings.request_timeout_ms) => {
                    self.lose_backend(b, Why::TimedOut);
                }
                Phase::Ready if self.is_idle_database(b) => self.lose_backend(b, Why::Retired),
                Phase::Ready => {
                    // One that is answered while its bytes are not all taken waits for them.
                    let awaiting = backend.awaiting.first().copied();
                    if let Some(oldest) = backend.head().or(awaiting) {
                        let quiet_ms = self.now.ms.saturating_sub(backend.progress_ms);
                        let timeout_ms = self.settings.request_timeout_ms;
                        if quiet_ms > timeout_ms && self.age_ms(oldest) > timeout_ms {
                            self.lose_backend(b, Why::TimedOut);
                        }
                    }
                }
                Phase::Idle | Phase::Closing => (),
            }
        }
        self.check_fence_queues();
    }

    /// Backends of nodes that the map names no more: closed when they have nothing in flight.
    pub(super) fn retire_absent_nodes(&mut self) {
        for node in self.nodes.indexes() {
            if self.nodes[node].present {
                continue;
            }
            let backends: Vec<u32> = self.nodes[node].backends().collect();
            for b in backends {
                self.retire_backend(node, b);
            }
        }
    }

    fn retire_backend(&mut self, node: u16, b: u32) {
        let backend = &self.backends[b as usize];
        // Those that were refused and wait for their own bytes are to be sent elsewhere.
        if backend.is_open() && backend.queued() == 0 && backend.awaiting.is_empty() {
            self.lose_backend(b, Why::Retired);
        }
        let backend = &self.backends[b as usize];
        if backend.phase != Phase::Idle || backend.lane == Lane::Private {
            return;
        }
        let face = face_of(backend.version, backend.seat);
        let entry = &mut self.nodes[node];
        match backend.lane {
            Lane::Shared => entry.set_shared(face, NONE),
            Lane::Fence => entry.fences[face].retain(|&fence| fence != b),
            Lane::Subscriber => entry.subscriber = NONE,
            Lane::Private => (),
        }
        self.free_backend(b);
    }

    /// Whether a backend can be written to right now or soon.
    pub(super) fn is_usable_now(&mut self, b: u32) -> bool {
        self.usable(b) == Usable::Now
    }
}
