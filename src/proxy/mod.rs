//! The state machines of one reactor: told bytes and time, they return actions.
//!
//! ```text
//!  handle_received(client)                                    handle_received(backend)
//!        │ intake, resp: frames                                      │ resp: where a reply ends
//!        ▼                                                           ▼
//!  dispatch ── local: answered here ─────────┐              deliver ── route: an error reply ─┐
//!        │ command: keys   cluster: slot     │                 │                              │
//!        ▼                                   ▼                 ▼                              ▼
//!  launch ──────────► backend FIFO      client order ◄── complete ◄── split: merge       recover:
//!   (hold, wait)           │                 │                                    again, ask, wait
//!        ▲                 ▼                 ▼                                                │
//!        │            Action::Send      Action::Send                                          │
//!        └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! This file holds the tables and the way in and out. The other files are parts of the same
//! machine, each with one job: `intake` (from bytes to requests), `dispatch` (from a request to
//! its class), `launch` (to a backend, now or later), `deliver` (from a reply to its client),
//! `recover` (errors, losses, time; `repeats`: not too often), `connect` (backends' lives),
//! `fence` (replies that may be composed), `fanout` (requests of several parts), `scan` and `walk`
//! (SCAN), `scripts` (bodies kept), `transaction` and `watch` (MULTI), `blocking`, `replicas`
//! (WAIT) and `synced` (WAITAOF), `private` (backends of single clients), `memory` (when it runs
//! short), `crowd` (who goes on when), `subscribe` and `subscriber` (messages: clients' side and
//! nodes'), `peers` and `receivers` (what all reactors answer together), `own` (PROXY),
//! `databases` (SELECT), `slowlog`, `monitor`, and what it tells of itself: `sample`, `hot_keys`,
//! `facts`, `tally`.
//!
//! Not here: sockets, the clock, threads (`reactor`); what is decided (`route`, `split`, `local`).

pub mod backend;
mod blocking;
pub mod client;
mod clients;
mod connect;
mod crowd;
mod databases;
mod deliver;
mod dispatch;
pub mod facts;
mod fanout;
mod fence;
mod hold;
pub mod hot_keys;
mod intake;
mod introspect;
mod irregular;
mod joins;
mod launch;
mod leaving;
pub mod local;
mod memory;
mod mode;
mod monitor;
pub mod node_facts;
pub mod node_info;
mod nodes;
mod output;
mod overtaken;
mod own;
mod parcel;
pub mod peers;
mod private;
mod pubsub;
mod receivers;
mod recover;
mod repeats;
mod replicas;
pub mod request;
mod route;
mod sample;
mod scan;
mod scripts;
pub mod session;
mod settings;
mod slowlog;
pub mod split;
mod subscribe;
mod subscriber;
pub mod synced;
mod tally;
#[cfg(test)]
mod tests_peers;
mod transaction;
pub mod types;
pub mod walk;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;

use ahash::RandomState;

use crate::cluster::{Endpoint, SLOTS, SlotMap, Topology, UNOWNED};
use crate::command::{Learned, Recent};
use crate::limits::MUCH_OUTPUT_TURN_BYTES;
use crate::resp::Span;
use crate::resp::request::RequestLimits;
use backend::Backend;
use client::{Clients, Partial, Phase};
use crowd::Crowd;
use databases::Databases;
use facts::Counts;
use fanout::Mapless;
use hold::Hold;
use hot_keys::KeyWatch;
use irregular::Irregular;
pub use leaving::Adopted;
use leaving::Leaving;
use local::{Identity, Totals};
use memory::Ladder;
use monitor::Monitors;
use nodes::Nodes;
use output::Pool;
use peers::Inquiries;
use pubsub::Topics;
use receivers::Receivers;
use recover::News;
use repeats::Repeats;
use request::Requests;
use sample::Rhythm;
use scripts::Scripts;
use session::Session;
use slowlog::SlowLog;
use split::{Cut, Splits};
pub use tally::Tally;
pub use types::UnderWay;
pub use types::{Action, Conn, Memory, NO_SLOT, NONE, Note, Now, Report, Settings, Socket};

/// A leg that waits for time or for a new map.
#[derive(Copy, Clone, Debug)]
struct Wait {
    request: u32,
    /// Also in its entry, while it waits: what has ended otherwise is not looked for here.
    ticket: u32,
    until_ms: u64,
    on_topology: bool,
}

/// All legs that wait. Thousands may, for one node that is down.
#[derive(Debug)]
struct Waits {
    list: Vec<Wait>,
    /// The first time that one of them waits for, or earlier.
    next_ms: u64,
    tickets: u32,
}

impl Waits {
    /// No index of a request, and not `NONE`.
    fn ticket(&mut self) -> u32 {
        const NO_INDEX: u32 = 1 << 31;
        self.tickets = (self.tickets + 1) % (NO_INDEX - 1);
        NO_INDEX | self.tickets
    }
}

pub struct Proxy {
    settings: Settings,
    identity: Arc<Identity>,
    clients: Clients,
    backends: Vec<Backend>,
    backends_free: Vec<u32>,
    requests: Requests,
    irregular: Irregular,
    splits: Splits,
    topics: Topics,
    nodes: Nodes,
    map: SlotMap,
    topology: Option<Arc<Topology>>,
    mapless: Mapless,
    learned: Option<Arc<Learned>>,
    recent: Recent,
    scripts: Scripts,
    inquiries: Inquiries,
    receivers: Receivers,
    databases: Databases,
    slow_log: SlowLog,
    /// From so many milliseconds on a request is slow.
    slow_after_ms: u32,
    monitors: Monitors,
    /// Totals of the whole process, as last published; for INFO.
    totals: Totals,
    waits: Waits,
    repeats: Repeats,
    /// Until then slots are taken to be moving (`overtaken`).
    resharding_ms: u64,
    /// What of them is this proxy's, of the counts that INFO must not be late with.
    own_totals: [u64; 7],
    counts: Counts,
    /// Bytes of one word and of a request that the nodes take, as far as they say.
    node_bounds: (Option<u64>, Option<u64>),
    key_watch: KeyWatch,
    rhythm: Rhythm,
    client_pool: Pool,
    backend_pool: Pool,
    /// Boxed because idle clients hold a pointer, not the struct.
    #[allow(clippy::vec_box, reason = "the boxes themselves are what is kept for reuse")]
    partials: Vec<Box<Partial>>,
    dirty_clients: Vec<u32>,
    hold: Hold,
    dirty_backends: Vec<u32>,
    resuming: Vec<u32>,
    ladder: Ladder,
    crowd: Crowd,
    fence_turns: fence::Turns,
    actions: Vec<Action>,
    now: Now,
    next_check_ms: u64,
    next_tidy_ms: u64,
    /// What the driver was last told to sleep for at most.
    planned_ms: u64,
    /// Scratch space, reused.
    spans: Vec<Span>,
    keys: Vec<u32>,
    inline: Vec<u8>,
    scratch: Vec<u8>,
    merged: Vec<u8>,
    lost: Vec<(u32, bool, Option<Vec<u8>>)>,
    cut: Cut,
    random: RandomState,
    random_count: u64,
    limits: RequestLimits,
    limits_unauthenticated: RequestLimits,
    next_client_id: u64,
    client_id_step: u64,
    leaving: Leaving,
    blocked_clients: usize,
    /// Somebody waits for the end of a send that may be over as soon as it is submitted.
    urgent: bool,
    pub tally: Tally,
}

/// How often deadlines are looked at while something is under way.
const CHECK_EVERY_MS: u64 = 20;
/// How often pools are shrunk and idle clients looked for.
const TIDY_EVERY_MS: u64 = 1_000;

impl Proxy {
    /// `seed` must not be guessable: the fence's nonces come from it. Client ids are
    /// `first_client_id`, `+ client_id_step`, …: unique in the process when each reactor has its
    /// own remainder.
    pub fn new(
        settings: Settings,
        identity: Arc<Identity>,
        seed: [u64; 4],
        first_client_id: u64,
        client_id_step: u64,
    ) -> Proxy {
        let random = RandomState::with_seeds(seed[0], seed[1], seed[2], seed[3]);
        Proxy {
            identity,
            clients: Clients::default(),
            backends: Vec::new(),
            backends_free: Vec::new(),
            requests: Requests::default(),
            irregular: Irregular::default(),
            splits: Splits::default(),
            topics: Topics::default(),
            nodes: Nodes::default(),
            map: SlotMap::new(),
            topology: None,
            mapless: Mapless::default(),
            learned: None,
            recent: Recent::default(),
            scripts: Scripts::default(),
            inquiries: Inquiries::default(),
            receivers: Receivers::default(),
            databases: Databases::default(),
            slow_log: SlowLog::new(settings.slowlog_max_len, first_client_id, client_id_step),
            slow_after_ms: settings.slow_after_ms(),
            monitors: Monitors::default(),
            totals: Totals::default(),
            waits: Waits { list: Vec::new(), next_ms: u64::MAX, tickets: 0 },
            repeats: Repeats::default(),
            resharding_ms: 0,
            own_totals: [0; 7],
            counts: Counts::default(),
            node_bounds: (None, None),
            key_watch: KeyWatch::new(settings.sample_keys, random.clone()),
            rhythm: Rhythm::new(seed[0]),
            client_pool: Pool::new(1024, 64 * 1024, 4096),
            backend_pool: Pool::new(16 * 1024, 256 * 1024, 1024),
            partials: Vec::new(),
            dirty_clients: Vec::new(),
            hold: Hold::default(),
            dirty_backends: Vec::new(),
            resuming: Vec::new(),
            ladder: Ladder::default(),
            crowd: Crowd::default(),
            fence_turns: fence::Turns::default(),
            actions: Vec::new(),
            now: Now::default(),
            next_check_ms: 0,
            next_tidy_ms: 0,
            planned_ms: 0,
            spans: Vec::new(),
            keys: Vec::new(),
            inline: Vec::new(),
            scratch: Vec::new(),
            merged: Vec::new(),
            lost: Vec::new(),
            cut: Cut::default(),
            random,
            random_count: 0,
            limits: settings.request_limits(),
            limits_unauthenticated: RequestLimits::unauthenticated(),
            next_client_id: first_client_id,
            client_id_step,
            leaving: Leaving::default(),
            blocked_clients: 0,
            urgent: false,
            tally: Tally::default(),
            settings,
        }
    }

    /// A client has connected. `None`: refused; `refusal` is what to send before closing.
    pub fn handle_accepted(
        &mut self,
        socket: Socket,
        peer: SocketAddr,
        local: SocketAddr,
        now: Now,
    ) -> Option<u32> {
        self.now = now;
        let full = self.clients.open_count() >= self.settings.clients_max as usize;
        // One that was accepted late by a process that ends is served, or given away, too.
        if full || self.ladder.refuses() {
            self.tally.clients_refused += 1;
            return None;
        }
        self.tally.clients_total += 1;
        let id = self.next_client_id;
        self.next_client_id += self.client_id_step;
        let session = Session::new(id, peer, local, now.ms, self.identity.users.is_empty());
        Some(self.clients.open(socket, session))
    }

    /// The line that a refused client is sent, and why it was refused, for the log.
    pub fn refusal(&self) -> (Vec<u8>, &'static str) {
        let mut out = Vec::new();
        if self.ladder.refuses() {
            local::errors::no_memory(&mut out);
            return (out, "memory_limit");
        }
        local::errors::maxclients(&mut out);
        (out, "maxclients")
    }

    /// Bytes have come.
    #[inline]
    pub fn handle_received(&mut self, conn: Conn, bytes: &[u8], now: Now) {
        self.now = now;
        match conn {
            Conn::Client(client) => self.handle_client_bytes(client, bytes),
            Conn::Backend(backend) => self.handle_backend_bytes(backend, bytes),
        }
    }

    /// The other side has sent its last byte (`failed`: the connection broke).
    pub fn handle_end(&mut self, conn: Conn, failed: bool, now: Now) {
        self.now = now;
        match conn {
            Conn::Client(client) => self.handle_client_end(client, failed),
            Conn::Backend(backend) => self.lose_backend(backend, connect::Why::Ended),
        }
    }

    /// A send has ended; `buffer` comes back.
    #[inline]
    pub fn handle_sent(&mut self, conn: Conn, buffer: Vec<u8>, ok: bool, now: Now) {
        self.now = now;
        match conn {
            Conn::Client(client) => self.handle_client_sent(client, buffer, ok),
            Conn::Backend(backend) => self.handle_backend_sent(backend, buffer, ok),
        }
    }

    /// The driver holds nothing of this connection any more.
    pub fn handle_gone(&mut self, conn: Conn, now: Now) {
        self.now = now;
        match conn {
            Conn::Client(client) => self.handle_client_gone(client),
            Conn::Backend(backend) => self.handle_backend_gone(backend),
        }
    }

    fn handle_client_sent(&mut self, c: u32, buffer: Vec<u8>, ok: bool) {
        let client = &mut self.clients[c];
        client.output.sent();
        client.progress_ms = self.now.ms;
        self.tally.bytes_to_clients += buffer.len() as u64;
        self.client_pool.give(buffer);
        match client.phase {
            Phase::Open | Phase::Last if !ok => self.close_client(c),
            Phase::Open | Phase::Last => {
                if client.output.has_to_send() {
                    self.mark_client_dirty(c);
                }
                self.after_progress(c);
            }
            Phase::Closing | Phase::Free => (),
        }
    }

    /// Something of the client's has been answered or sent: it may be allowed to go on, or be done.
    #[inline]
    fn after_progress(&mut self, c: u32) {
        let client = &mut self.clients[c];
        if client.head == NONE {
            client.barrier = false;
        }
        let interesting = client.waits_for_progress() || self.leaving.active;
        if interesting && !client.resuming {
            client.resuming = true;
            self.resuming.push(c);
        }
    }

    fn handle_client_end(&mut self, c: u32, failed: bool) {
        let gone = failed || self.is_blocked(c);
        let client = &mut self.clients[c];
        match client.phase {
            Phase::Closing | Phase::Free => (),
            // A server, too, drops a blocked client whose side is shut: nothing is popped for it.
            Phase::Open | Phase::Last if gone => self.close_client(c),
            Phase::Open if client.held_back => client.ended = true,
            Phase::Open | Phase::Last => self.take_no_more(c),
        }
    }

    /// Nothing further is run for the client, unless it has been closed meanwhile: its own reply
    /// may have been over a limit.
    fn hear_no_more(&mut self, c: u32) {
        let client = &mut self.clients[c];
        if client.phase == Phase::Open {
            client.phase = Phase::Last;
        }
        self.after_progress(c);
    }

    /// What a client asked for before it shut its side is still answered.
    fn take_no_more(&mut self, c: u32) {
        self.hear_no_more(c);
        if self.clients[c].is_done() || self.is_blocked(c) {
            self.close_client(c);
        }
    }

    /// A whole map from the topology thread.
    pub fn handle_topology(&mut self, topology: Arc<Topology>, now: Now) {
        self.now = now;
        let (requests, splits) = (&self.requests, &self.splits);
        let is_meant = |at| requests.any_means(at) || scan::walks_name(at, splits, requests);
        let translation = self.nodes.adopt(&topology, is_meant);
        for slot in 0..SLOTS as u16 {
            let owner = topology.owners[usize::from(slot)];
            let node = translation.get(usize::from(owner)).copied().unwrap_or(UNOWNED);
            if self.map.get(slot) != node {
                self.map.patch(slot, node);
            }
        }
        self.topology = Some(topology);
        self.topics.map_version = None;
        self.retire_absent_nodes();
        self.release_mapless(false);
        self.wake_waiting(News::Map);
    }

    /// One slot has moved; another reactor saw it.
    pub fn handle_slot_moved(&mut self, slot: u16, address: SocketAddr, now: Now) {
        self.now = now;
        if let Some(node) = self.nodes.by_address(&address)
            && self.map.get(slot) != node
        {
            self.map.patch(slot, node);
        }
    }

    /// A refresh has ended, whatever it found: those who waited for it look again.
    pub fn handle_refreshed(&mut self, now: Now) {
        self.now = now;
        self.wake_waiting(News::Refreshed);
    }

    /// The map was asked again because a redirect had named `endpoint`, as it is announced.
    /// `address`: it is that node of the map.
    pub fn handle_confirmed(&mut self, endpoint: &Endpoint, address: Option<SocketAddr>, now: Now) {
        self.now = now;
        if let Some(address) = address {
            self.nodes.note_alias(endpoint, address);
        }
        self.wake_waiting(News::Confirmed(endpoint));
    }

    pub fn handle_learned(&mut self, learned: Arc<Learned>) {
        self.learned = Some(learned);
    }

    pub fn handle_totals(&mut self, mut totals: Totals) {
        totals.slots_missing = self.slots_missing() as u64;
        self.totals = totals;
        self.own_totals = self.own_counts();
    }

    /// Looks at deadlines. Cheap when none is near.
    pub fn handle_time(&mut self, now: Now) {
        self.now = now;
        if now.ms >= self.next_check_ms {
            self.forgive_stall(now.ms.saturating_sub(self.next_check_ms.max(self.planned_ms)));
            self.next_check_ms = now.ms + CHECK_EVERY_MS;
            self.check_backends();
            self.check_topics();
            self.check_inquiries();
            self.check_mapless();
        }
        self.check_leaving();
        self.wake_waiting(News::Time);
        if now.ms >= self.next_tidy_ms {
            self.next_tidy_ms = now.ms + TIDY_EVERY_MS;
            self.tidy();
        }
    }

    /// When `handle_time` wants to be called next, milliseconds; `None`: nothing is under way.
    pub fn next_deadline(&self) -> u64 {
        let busy = self.topics.is_busy() || self.mapless.any_waits();
        let check = if busy || self.requests.open_count() > 0 || self.connecting() {
            self.next_check_ms
        } else {
            self.next_tidy_ms
        };
        let ending = self.leaving.next_deadline().min(self.hold.deadline());
        let check = check.min(self.go_deadline()).min(self.waits.next_ms);
        check.min(self.ladder.deadline()).min(ending)
    }

    /// The same, for a driver that now sleeps until then.
    pub fn plan(&mut self) -> u64 {
        self.planned_ms = self.next_deadline();
        self.planned_ms
    }

    /// Once a turn, after all events: hands out what is to be sent and done.
    pub fn flush(&mut self, actions: &mut Vec<Action>) {
        self.resume_some();
        self.go_on_with_topics();
        if self.has_lines() {
            self.hand_out_lines();
        }
        self.ask_receivers();
        if self.fence_turns.left {
            self.clear_fence_queues();
        }
        self.flush_backends();
        if self.leaving.active {
            self.offer_more();
        }
        let mixed = self.crowd.is_mixed(self.now);
        self.flush_clients(if mixed { MUCH_OUTPUT_TURN_BYTES } else { usize::MAX });
        self.urgent |= !self.dirty_clients.is_empty();
        self.crowd.end_turn();
        actions.append(&mut self.actions);
    }

    fn flush_backends(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty_backends);
        for b in dirty.drain(..) {
            self.flush_backend(b);
        }
        self.dirty_backends = dirty;
    }

    /// Whether the driver should look for ended sends right after submitting them, without sleep.
    pub fn take_urgent(&mut self) -> bool {
        std::mem::take(&mut self.urgent)
    }

    fn flush_client(&mut self, c: u32) {
        if self.leaving.active {
            self.let_go(c);
        }
        let client = &mut self.clients[c];
        client.dirty = false;
        client.waits_to_send = false;
        if !matches!(client.phase, Phase::Open | Phase::Last) || client.output.sending {
            return;
        }
        if client.output.has_to_send() {
            let bytes = client.take_output(&mut self.client_pool);
            self.urgent |= client.held_back || client.ends_soon() || client.output.has_to_send();
            let socket = client.socket;
            self.tally.sends_to_clients += 1;
            let rest = client.head != NONE || client.output.has_to_send();
            let last = client.phase == Phase::Last && !rest;
            self.actions.push(Action::Send { conn: Conn::Client(c), socket, bytes, last });
        } else if client.phase == Phase::Last && client.is_done() {
            self.close_client(c);
        }
    }

    #[inline]
    fn mark_client_dirty(&mut self, c: u32) {
        let client = &mut self.clients[c];
        if !client.dirty {
            client.dirty = true;
            self.dirty_clients.push(c);
        }
    }

    #[inline]
    fn mark_backend_dirty(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        if !backend.dirty {
            backend.dirty = true;
            self.dirty_backends.push(b);
        }
    }

    fn tidy(&mut self) {
        self.client_pool.shrink();
        self.backend_pool.shrink();
        self.requests.shrink();
        self.partials.truncate(self.partials.len() / 2);
        self.close_spare_backends();
        self.tidy_monitors();
        self.key_watch.pass(TIDY_EVERY_MS);
        let now = self.now.ms;
        let (idle, stall) = (self.settings.client_idle_ms, self.settings.client_stall_ms);
        let soft = self.settings.client_output_soft;
        let why_over = |client: &client::Client| {
            let idle_over = idle > 0
                && client.head == NONE
                && client.session.subscriptions == 0
                && !client.session.monitors
                && now.saturating_sub(client.session.active_ms) > idle;
            let stalled =
                client.output.pending() >= soft && now.saturating_sub(client.progress_ms) > stall;
            let why = "it does not take its replies";
            idle_over.then_some("idle").or(stalled.then_some(why))
        };
        let over: Vec<(u32, &str)> =
            self.clients.indexes().filter_map(|c| Some((c, why_over(&self.clients[c])?))).collect();
        for (c, why) in over {
            self.close_over_limit(c, why);
        }
    }

    /// A number that nobody outside can foresee.
    fn random(&mut self) -> u64 {
        self.random_count += 1;
        self.random.hash_one(self.random_count)
    }

    /// Whether it knows the slots' nodes.
    pub fn has_map(&self) -> bool {
        self.topology.is_some()
    }

    pub fn clients_open(&self) -> usize {
        self.clients.open_count()
    }

    /// Requests in the tables, tombstones and our own included.
    pub fn requests_open(&self) -> usize {
        let open = self.requests.open_count();
        debug_assert!(open > 0 || self.irregular.is_empty());
        let waits = |c: &u32| self.clients[*c].head != NONE;
        debug_assert_eq!(
            self.clients.indexes().filter(waits).count(),
            self.requests.clients_waiting as usize
        );
        let asked = self.backends.iter().filter(|backend| backend.queued() > 0);
        debug_assert_eq!(asked.count(), self.requests.nodes_asked as usize);
        open
    }

    /// Slots that nobody serves, as far as this proxy knows: those without an owner, and those
    /// whose owner has failed. Where no node can be asked about the others, what is connected
    /// serves.
    pub fn slots_missing(&self) -> usize {
        let Some(topology) = &self.topology else { return SLOTS };
        let all_failed = topology.nodes.iter().all(|node| !node.healthy);
        let is_served = |owner: u16| {
            let Some(node) = topology.nodes.get(usize::from(owner)) else { return false };
            let connected = || node.address.is_some_and(|address| self.is_connected_to(&address));
            node.healthy || all_failed && connected()
        };
        let mut missing = 0;
        // Owners come in ranges.
        let mut last = (UNOWNED, false);
        for &owner in topology.owners.iter() {
            if owner != last.0 {
                last = (owner, is_served(owner));
            }
            missing += usize::from(!last.1);
        }
        missing
    }

    fn is_connected_to(&self, address: &SocketAddr) -> bool {
        let Some(node) = self.nodes.by_address(address) else { return false };
        let is_ready = |&b: &u32| {
            self.backends
                .get(b as usize)
                .is_some_and(|backend| backend.phase == backend::Phase::Ready)
        };
        self.nodes[node].shared.iter().any(is_ready)
    }

    pub fn backends_connected(&self) -> usize {
        self.backends.iter().filter(|backend| backend.phase == backend::Phase::Ready).count()
    }
}
