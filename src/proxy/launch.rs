//! From a request with a slot to a backend's FIFO: at once, after its elders, or later.
//!
//! One client's requests to one slot reach nodes in order (DESIGN 4). The common case costs two
//! comparisons: nothing irregular is under way, and the map is the one by which the elders went.
//!
//! Not here: which slot (`dispatch`), what happens to replies (`deliver`), the fence (`fence`).

use ahash::AHashMap;

use super::backend::Phase;
use super::client::{ALL_IRREGULAR, Client};
use super::connect::BACKOFF_MAX_MS;
use super::dispatch::{Asked, Source};
use super::nodes::face_of;
use super::request::{Marks, NewRequest, State};
use super::types::{NO_SLOT, NONE, Report};
use super::{Action, Proxy, Wait, local::errors};
use crate::cluster::UNOWNED;
use crate::resp::Version;
use crate::resp::reply::{ErrorKind, classify_error};

/// How long a slot that nobody serves is waited for.
pub(super) const UNSERVED_BUDGET_MS: u64 = 2_000;

/// How long a request waits that found its backend full.
const FULL_WAIT_MS: u64 = 10;

/// The bytes of a leg, however they are to be had.
pub(super) enum Bytes<'a> {
    Copy(&'a [u8]),
    Own(Vec<u8>),
    /// Written straight to where they belong.
    Build(&'a dyn Fn(&mut Vec<u8>)),
}

impl Bytes<'_> {
    pub(super) fn into_vec(self) -> Vec<u8> {
        match self {
            Bytes::Copy(bytes) => bytes.to_vec(),
            Bytes::Own(bytes) => bytes,
            Bytes::Build(build) => {
                let mut out = Vec::new();
                build(&mut out);
                out
            }
        }
    }
}

impl<'a> From<Source<'a>> for Bytes<'a> {
    fn from(source: Source<'a>) -> Bytes<'a> {
        match source {
            Source::Borrowed(bytes) => Bytes::Copy(bytes),
            Source::Owned(bytes) => Bytes::Own(bytes),
        }
    }
}

/// Where a leg is about to go.
struct Goes {
    r: u32,
    /// `NONE`: behind the fence.
    to: u32,
    node: Option<u16>,
}

/// A client's legs of one slot, of those that were asked for before.
#[derive(Default)]
struct Elders {
    /// At nodes, or about to be.
    sent: Vec<u32>,
    /// One is to be sent, now or again.
    wait: bool,
}

impl Proxy {
    /// The common path: one key, a ready backend, nothing irregular. `false`: nothing was done.
    #[inline]
    pub(super) fn launch_fast(
        &mut self,
        c: u32,
        command: u16,
        slot: u16,
        marks: Marks,
        bytes: &[u8],
    ) -> bool {
        let client = &self.clients[c];
        let Some(b) = self.free_way(client, slot, marks) else { return false };
        let map_version = self.map.version();
        if client.head != NONE && client.map_version != map_version {
            return false;
        }
        let client = &mut self.clients[c];
        client.map_version = map_version;
        let request = self.requests.open(NewRequest {
            client: c,
            client_generation: client.generation,
            slot,
            command,
            marks,
            since: self.now.ms as u32,
        });
        client.push(request, &mut self.requests);
        self.append_to(b, request, |out| out.extend_from_slice(bytes));
        true
    }

    /// The backend that a request of this client goes to at once: it is ready, and nothing is
    /// irregular. Not asked here: whether the client's elders went by the same map.
    #[inline]
    pub(super) fn free_way(&self, client: &Client, slot: u16, marks: Marks) -> Option<u32> {
        let node = self.map.get(slot);
        if node == UNOWNED {
            return None;
        }
        let version = usize::from(marks.has(Marks::RESP3));
        let b = self.nodes[node].shared[version];
        let backend = self.backends.get(b as usize)?;
        let free = backend.phase == Phase::Ready && client.irregular == 0 && !backend.is_full();
        free.then_some(b)
    }

    /// Puts a request that has nothing before it into a backend's FIFO.
    #[inline]
    pub(super) fn append_to(&mut self, b: u32, r: u32, append: impl FnOnce(&mut Vec<u8>)) {
        let backend = &mut self.backends[b as usize];
        if backend.queued() == 0 {
            backend.progress_ms = self.now.ms;
        }
        backend.enqueue(r, b, &mut self.requests, &mut self.backend_pool, append);
        self.mark_backend_dirty(b);
    }

    /// A request in one piece: takes its place in the client's order and goes on its way.
    pub(super) fn launch_single(&mut self, asked: Asked, slot: u16, source: Source) {
        let request = self.open_for(asked, slot);
        let client = &mut self.clients[asked.client];
        if client.head == NONE {
            client.map_version = self.map.version();
        }
        client.push(request, &mut self.requests);
        self.launch(request, source.into());
    }

    /// A new request of this client, in no list yet.
    pub(super) fn open_for(&mut self, asked: Asked, slot: u16) -> u32 {
        self.requests.open(NewRequest {
            client: asked.client,
            client_generation: self.clients[asked.client].generation,
            slot,
            command: asked.command.id,
            marks: asked.marks,
            since: self.now.ms as u32,
        })
    }

    /// Sends a leg (a request, or a part of one) on its way, for the first time or again.
    pub(super) fn launch(&mut self, r: u32, bytes: Bytes) {
        let Some(node) = self.target(r) else {
            return self.wait_unserved(r, bytes);
        };
        if !self.nodes[node].present && self.is_meant_for(r, node) {
            let is_told = self.is_at_node(r) && self.is_admin(self.requests[r].client);
            let place = is_told.then(|| self.nodes[node].endpoint.to_string());
            return self.fail(r, |out| errors::node_left(out, place.as_deref()));
        }
        let Some(node) = self.target(r) else {
            return self.wait_unserved(r, bytes);
        };
        let marks = self.requests[r].marks;
        if marks.has(Marks::FENCED.with(Marks::PRIVATE)) {
            return match marks.has(Marks::PRIVATE) {
                true => self.launch_private(r, node, bytes),
                false => self.launch_fenced(r, node, bytes),
            };
        }
        let version = if marks.has(Marks::RESP3) { Version::Resp3 } else { Version::Resp2 };
        let b = self.shared_backend(node, version, self.database_of(r));
        if self.must_hold(r, b) {
            return self.hold(r, bytes);
        }
        match self.usable(b) {
            Usable::Now => {
                if self.may_be_passed(r) {
                    self.mark_irregular(r);
                }
                self.enqueue(r, b, bytes);
            }
            Usable::From(until_ms) => self.wait(r, bytes, until_ms, true),
            Usable::Failing => self.give_up(r),
        }
    }

    /// Whether a leg is nobody's but this node's, which has left the map. One that a redirect led
    /// there goes by the map again; one with a connection to it already is told by that.
    fn is_meant_for(&mut self, r: u32, node: u16) -> bool {
        let at_node = self.is_at_node(r);
        let entry = &mut self.requests[r];
        let marks = entry.marks;
        let led = marks.has(Marks::ASKING) || (marks.speaks_for_itself() && entry.slot != NO_SLOT);
        if led {
            entry.marks.unset(Marks::ASKING);
        }
        if led && !marks.has(Marks::PRIVATE) {
            entry.marks.unset(Marks::BY_NODE);
        }
        let guarded = marks.has(Marks::PRIVATE) && !at_node;
        entry.node == node && entry.marks.has(Marks::BY_NODE) && !guarded
    }

    /// The node that a leg goes to; `None`: nobody serves its slot.
    pub(super) fn target(&self, r: u32) -> Option<u16> {
        let entry = &self.requests[r];
        let node = if entry.marks.has(Marks::BY_NODE.with(Marks::ASKING)) {
            entry.node
        } else {
            self.map.get(entry.slot)
        };
        (node != UNOWNED).then_some(node)
    }

    /// Puts a leg into a backend's FIFO, after ASKING where that is needed.
    pub(super) fn enqueue(&mut self, r: u32, b: u32, bytes: Bytes) {
        let (c, marks) = (self.requests[r].client, self.requests[r].marks);
        if !marks.has(Marks::IRREGULAR) && c != NONE && self.clients[c].map_version == ALL_IRREGULAR
        {
            self.clients[c].map_version = self.map.version();
        }
        if marks.has(Marks::ASKING) {
            self.requests[r].marks.unset(Marks::ASKING);
            self.enqueue_internal(b, |out| out.extend_from_slice(ASKING));
        }
        if marks.has(Marks::EXEC) {
            self.enqueue_steps(r, b);
        }
        let backend = &mut self.backends[b as usize];
        if backend.queued() == 0 {
            backend.progress_ms = self.now.ms;
        }
        let (requests, pool) = (&mut self.requests, &mut self.backend_pool);
        match bytes {
            Bytes::Copy(bytes) => {
                backend.enqueue(r, b, requests, pool, |out| out.extend_from_slice(bytes));
            }
            Bytes::Build(build) => backend.enqueue(r, b, requests, pool, build),
            Bytes::Own(bytes) => backend.enqueue_owned(r, b, requests, pool, bytes),
        }
        self.mark_backend_dirty(b);
    }

    /// A request of ours, whose reply is read and dropped. Returns its index.
    pub(super) fn enqueue_internal(&mut self, b: u32, write: impl FnOnce(&mut Vec<u8>)) -> u32 {
        let request = self.requests.open(NewRequest::internal(self.now.ms as u32));
        let backend = &mut self.backends[b as usize];
        backend.enqueue(request, b, &mut self.requests, &mut self.backend_pool, write);
        request
    }

    /// Whether an elder of the same client and slot is still elsewhere than on backend `b`.
    pub(super) fn must_hold(&mut self, r: u32, b: u32) -> bool {
        let entry = &self.requests[r];
        let (c, slot, marks) = (entry.client, entry.slot, entry.marks);
        if c == NONE {
            return false;
        }
        if b == NONE || marks.has(Marks::BY_NODE.with(Marks::ASKING)) {
            return self.has_elder_in_the_way(r, b);
        }
        if self.clients[c].map_version != self.map.version() {
            self.mark_those_of_older_map(c);
        }
        // Regular ones are on `b`, and it is not in its own way.
        let own = u32::from(self.requests[r].marks.has(Marks::IRREGULAR));
        if self.clients[c].irregular <= own || self.irregular.count(c, slot) <= own {
            debug_assert!(!self.uncounted(|proxy| proxy.has_elder_in_the_way(r, b)));
            return false;
        }
        self.has_elder_in_the_way(r, b)
    }

    fn has_elder_in_the_way(&mut self, r: u32, b: u32) -> bool {
        let entry = &self.requests[r];
        let own = if entry.split == NONE { r } else { self.splits[entry.split].parent };
        let (slot, mut elder) = (entry.slot, self.clients[entry.client].head);
        let goes = Goes { r, to: b, node: self.target(r) };
        let mut legs = Vec::new();
        while elder != NONE && elder != own {
            self.add_legs_of(elder, slot, &mut legs);
            if legs.drain(..).any(|leg| self.stands_in_the_way(leg, &goes)) {
                return true;
            }
            elder = self.requests[elder].next_in_client;
        }
        false
    }

    /// `elder`: a leg.
    fn stands_in_the_way(&self, elder: u32, goes: &Goes) -> bool {
        let (old, new) = (&self.requests[elder], &self.requests[goes.r]);
        match old.state {
            // A parent is nowhere: its parts are.
            State::Parent | State::Done | State::Free | State::Subscribing | State::Inquiring => {
                false
            }
            _ if old.slot != new.slot => false,
            // Both go through one node's fence, which keeps the order of one client.
            State::Queued | State::InFlight
                if old.marks.has(Marks::FENCED)
                    && new.marks.has(Marks::FENCED)
                    && old.marks.has(Marks::RESP3) == new.marks.has(Marks::RESP3)
                    && goes.node == Some(old.node) =>
            {
                false
            }
            State::InFlight => old.backend != goes.to || self.must_follow(elder, goes.r),
            State::Held | State::Waiting | State::Queued => true,
        }
    }

    /// Keeps a leg until its elders are answered.
    pub(super) fn hold(&mut self, r: u32, bytes: Bytes) {
        self.requests.set_own(r, bytes.into_vec());
        let entry = &mut self.requests[r];
        entry.state = State::Held;
        let c = entry.client;
        self.mark_irregular(r);
        self.clients[c].held += 1;
    }

    /// After something of the client's was answered: those held back look again, in order.
    pub(super) fn release_held(&mut self, c: u32) {
        if self.clients[c].held == 0 {
            return;
        }
        for r in self.free_to_go(c) {
            // An earlier one's launch may have closed the client.
            if self.requests[r].state == State::Held && self.requests[r].client == c {
                self.clients[c].held -= 1;
                let bytes = self.requests.take_own(r);
                self.requests[r].state = State::Waiting;
                self.launch(r, Bytes::Own(bytes));
            }
        }
    }

    /// Those held back that nothing stands in the way of, if all before them go, too. Found in one
    /// pass: each by itself would look at all its elders.
    fn free_to_go(&mut self, c: u32) -> Vec<u32> {
        let (mut free, mut stuck) = (Vec::new(), 0);
        let mut elders: AHashMap<u16, Elders> = AHashMap::new();
        let mut legs = Vec::new();
        let mut at = self.clients[c].head;
        while at != NONE && free.len() + stuck < self.clients[c].held as usize {
            legs.clear();
            self.add_legs(at, &mut legs);
            at = self.requests[at].next_in_client;
            // Parts of one request do not wait for each other.
            let before = free.len();
            for &leg in &legs {
                if self.requests[leg].state == State::Held
                    && !self.is_held_up(leg, elders.get(&self.requests[leg].slot))
                {
                    free.push(leg);
                }
            }
            let mut goes = free[before..].iter().peekable();
            for &leg in &legs {
                let (slot, state) = (self.requests[leg].slot, self.requests[leg].state);
                match state {
                    State::Held if goes.next_if_eq(&&leg).is_some() => (),
                    State::Held => {
                        stuck += 1;
                        elders.entry(slot).or_default().wait = true;
                    }
                    State::Waiting => elders.entry(slot).or_default().wait = true,
                    State::InFlight | State::Queued => {
                        elders.entry(slot).or_default().sent.push(leg);
                    }
                    _ => (),
                }
            }
        }
        free
    }

    /// Whether one of its elders, those of its slot, surely stands in the way of a leg.
    fn is_held_up(&self, r: u32, elders: Option<&Elders>) -> bool {
        let (Some(elders), Some(node)) = (elders, self.target(r)) else { return false };
        let marks = self.requests[r].marks;
        if marks.has(Marks::PRIVATE) {
            return false;
        }
        let version = if marks.has(Marks::RESP3) { Version::Resp3 } else { Version::Resp2 };
        let to = match marks.has(Marks::FENCED) {
            true => NONE,
            false => self.nodes[node].shared_of(face_of(version, self.database_of(r))),
        };
        let goes = Goes { r, to, node: Some(node) };
        elders.wait || elders.sent.iter().any(|&elder| self.stands_in_the_way(elder, &goes))
    }

    /// Keeps a leg until a time, or until the map is news if `on_topology`.
    pub(super) fn wait(&mut self, r: u32, bytes: Bytes, until_ms: u64, on_topology: bool) {
        if self.age_ms(r) >= self.settings.request_timeout_ms {
            return self.give_up(r);
        }
        self.requests.set_own(r, bytes.into_vec());
        let ticket = self.waits.ticket();
        let entry = &mut self.requests[r];
        entry.state = State::Waiting;
        // It is in no FIFO.
        entry.next_in_backend = ticket;
        self.mark_irregular(r);
        self.waits.next_ms = self.waits.next_ms.min(until_ms);
        self.waits.list.push(Wait { request: r, ticket, until_ms, on_topology });
    }

    /// Nobody serves the slot, as far as we know.
    fn wait_unserved(&mut self, r: u32, bytes: Bytes) {
        self.actions.push(Action::Report(Report::WantRefresh));
        let budget = UNSERVED_BUDGET_MS.min(self.settings.request_timeout_ms);
        if self.age_ms(r) >= budget {
            return self.fail(r, errors::no_node);
        }
        self.wait(r, bytes, self.now.ms + 100, true);
    }

    /// A leg's time is spent: the last error that a node gave, or one of ours.
    pub(super) fn give_up(&mut self, r: u32) {
        self.requests[r].waits = 0;
        let last = self.requests.take_reply(r);
        if last.is_empty() {
            self.tally.timeouts += 1;
            self.fail(r, errors::no_connection);
        } else if !self.requests[r].marks.speaks_for_itself() && is_redirect(&last) {
            // A client of ours speaks to one server: it must not be sent elsewhere.
            match self.requests[r].redirects > 0 && !self.requests[r].marks.has(Marks::CONFIRMING) {
                // It was to be followed, after younger ones that were at the node before it.
                true => self.fail(r, errors::not_followed_in_time),
                false => self.fail(r, errors::untrusted_redirect),
            }
        } else {
            self.complete(r, &last);
        }
    }

    pub(super) fn age_ms(&self, r: u32) -> u64 {
        u64::from((self.now.ms as u32).wrapping_sub(self.requests[r].since))
    }

    /// The backend that all clients of this version and database share towards a node.
    pub(super) fn shared_backend(&mut self, node: u16, version: Version, seat: u8) -> u32 {
        let face = face_of(version, seat);
        let known = self.nodes[node].shared_of(face);
        if known != NONE {
            return known;
        }
        let b = self.open_backend(node, (version, seat), super::backend::Lane::Shared);
        self.nodes[node].set_shared(face, b);
        b
    }

    /// The seat of the database that a request's client is in, until nothing of it is in flight.
    pub(super) fn database_of(&self, r: u32) -> u8 {
        self.clients[self.requests[r].client].session.seat
    }

    /// Whether requests may be queued on a backend; connects it when it is time.
    pub(super) fn usable(&mut self, b: u32) -> Usable {
        let backend = &self.backends[b as usize];
        match backend.phase {
            Phase::Connecting | Phase::Handshake if backend.tripped => Usable::Failing,
            Phase::Ready | Phase::Connecting | Phase::Handshake if backend.is_full() => {
                Usable::From(self.now.ms + FULL_WAIT_MS)
            }
            Phase::Ready | Phase::Connecting | Phase::Handshake => Usable::Now,
            Phase::Closing => Usable::From(self.now.ms + 10),
            Phase::Idle if self.now.ms >= backend.retry_at_ms => {
                // What failed long ago, before anybody wanted it again, says nothing of now.
                let unwanted_ms = self.now.ms - backend.retry_at_ms;
                self.backends[b as usize].tripped &= unwanted_ms <= BACKOFF_MAX_MS;
                self.connect(b);
                Usable::Now
            }
            Phase::Idle => {
                let failing_ms = self.now.ms.saturating_sub(backend.failing_since_ms);
                if backend.failures > 0 && failing_ms > self.settings.request_timeout_ms {
                    return Usable::Failing;
                }
                Usable::From(backend.retry_at_ms)
            }
        }
    }
}

pub(super) fn is_redirect(line: &[u8]) -> bool {
    matches!(classify_error(line), ErrorKind::Moved | ErrorKind::Ask)
}

/// Whether a backend takes requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Usable {
    Now,
    /// Not before this time.
    From(u64),
    /// It has failed for longer than a request may take: answer at once.
    Failing,
}

/// `ASKING`, as a node reads it.
pub(super) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";
