//! One thread: reap what the ring has, feed the proxies, do what they ask, submit and wait. Once a
//! turn the clock is read.
//!
//! Not here: decisions (`proxy`), system calls (`ring`), asking nodes for the map (`topology`).

mod facts;
mod pace;
mod passing;
mod peers;
mod tell;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::cluster::Endpoint;
use crate::limits::{HEAVY_PIECE, HEAVY_REQUEST_BYTES, HEAVY_TURN_BYTES, TURN_BYTES_MAX};
use crate::log::Log;
use crate::metrics::{Board, Counters};
use crate::proxy::local::{Identity, Totals};
use crate::proxy::{self, Action, Conn, Memory, Now, Proxy, Socket, UnderWay};
use crate::ring::{
    self, BusyPoll, ConnectOptions, Event, Listener, Ring, RingSettings, SocketId, Waker,
};
use crate::topology::{Report, Update};
pub use facts::ReactorFacts;
use pace::Pace;
pub use passing::Arrival;
use passing::Passing;
pub use peers::{Fresh, HandOver, Message, Peer, Wish};

/// What one reactor is told at its start.
pub struct Settings {
    pub index: u16,
    /// The CPU that it is pinned to, as `core_affinity` names it.
    pub cpu: Option<core_affinity::CoreId>,
    pub ring: RingSettings,
    pub busy_poll: Duration,
    /// How long a wait may go on for more events to come; zero: not at all.
    pub gather: Duration,
    pub pools: Vec<Pool>,
    /// Its listening sockets, and the pool of each. Nothing is accepted before `Message::Listen`.
    pub listeners: Vec<(u16, Listener)>,
    /// A process before this one serves: nodes are connected to before its clients come.
    pub ahead: bool,
    /// Clients' ids are above.
    pub first_client_id: u64,
    /// Bytes that the whole process may hold; 0: no limit.
    pub memory_limit: u64,
    /// From the system's random source.
    pub seed: [u64; 4],
    pub reactors: u16,
    pub log: Log,
}

/// One cluster, as this reactor serves it.
#[derive(Clone)]
pub struct Pool {
    /// For the log.
    pub name: Arc<str>,
    pub proxy: proxy::Settings,
    pub identity: Arc<Identity>,
    /// Some reactors have no listening socket of it: who accepts gives to all in turn.
    pub shared: bool,
    pub connect: ConnectOptions,
}

/// How one reactor hears of the others and of the topology thread, and tells that one.
pub struct Channels {
    pub updates: Receiver<Update>,
    pub reports: Sender<Report>,
    /// From the other reactors.
    pub inbox: Receiver<Message>,
    /// To the main thread.
    pub wishes: Sender<Wish>,
}

/// A reactor that runs.
pub struct Reactor {
    pub thread: JoinHandle<()>,
    pub waker: Waker,
    /// The kernel's number of the thread; 0: not known.
    pub tid: u32,
}

/// Starts the thread and waits until it is ready to listen. Errors: cause and remedy in one line.
pub fn start(settings: Settings, channels: Channels, board: Board) -> Result<Reactor, String> {
    let (began, beginning) = bounded(1);
    let run = move || {
        let made = Worker::new(settings, channels, board);
        match made {
            Ok(mut worker) => {
                worker.read_clock();
                let _ = began.send(Ok((worker.ring.waker(), thread_number())));
                worker.run();
            }
            Err(text) => drop(began.send(Err(text))),
        }
    };
    let thread = std::thread::Builder::new()
        .name("reactor".into())
        .spawn(run)
        .map_err(|error| format!("cannot start a reactor thread: {error}"))?;
    match beginning.recv() {
        Ok(Ok((waker, tid))) => Ok(Reactor { thread, waker, tid }),
        Ok(Err(text)) => Err(text),
        Err(_) => Err("a reactor thread died while starting".into()),
    }
}

/// proc(5): a link to `PID/task/TID`.
fn thread_number() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").ok();
    link.and_then(|path| path.file_name()?.to_str()?.parse().ok()).unwrap_or(0)
}

/// Whose socket it is.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Owner {
    Nobody,
    /// Refused: closed when its error line is out.
    Refused,
    Of {
        pool: u16,
        conn: Conn,
    },
}

/// How often counters are shown to the others.
const PUBLISH_EVERY_MS: u64 = 250;

/// How often the sums over all reactors are taken.
const TOTALS_EVERY_MS: u64 = 1_000;

/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_PAUSE_MS: u64 = 100;

/// The longest sleep: time is looked at now and then even when nothing happens.
const SLEEP_MAX_MS: u64 = 500;

struct Worker {
    index: u16,
    ring: Ring,
    proxies: Vec<Proxy>,
    connect: Vec<ConnectOptions>,
    names: Vec<Arc<str>>,
    /// The pool of each listener.
    listeners: Vec<u16>,
    /// By socket index.
    owners: Vec<Owner>,
    actions: Vec<Action>,
    updates: Receiver<Update>,
    reports: Sender<Report>,
    inbox: Receiver<Message>,
    wishes: Sender<Wish>,
    /// All reactors, by index; empty until all have started.
    peers: Arc<[Peer]>,
    board: Board,
    /// As shown there.
    subscribed: bool,
    counters: Counters,
    busy_poll: Option<BusyPoll>,
    memory_limit: u64,
    /// Proxies of the process, all reactors'.
    memory_sharers: u64,
    start: Instant,
    now: Now,
    /// The same clock as `now.ms`, in microseconds.
    now_us: u64,
    next_publish_ms: u64,
    /// What all reactors did, and when that was added up.
    totals: Totals,
    totals_ms: u64,
    /// Listeners that pause, and until when.
    paused: Vec<(u32, u64)>,
    /// Before this time nothing more is written of clients that cannot be accepted, and how often
    /// that happened meanwhile.
    accept_told: (u64, u64),
    /// The same of clients that were refused.
    refusals_told: (u64, u64),
    drain_until_ms: Option<u64>,
    passing: Passing,
    turns: u64,
    pace: Pace,
    log: Log,
    /// `enobufs` when it was last told of.
    enobufs_told: u64,
}

impl Worker {
    #[allow(clippy::disallowed_methods, reason = "the reactor's clock, read once a turn")]
    fn new(settings: Settings, channels: Channels, board: Board) -> Result<Worker, String> {
        if let Some(cpu) = settings.cpu
            && !core_affinity::set_for_current(cpu)
        {
            return Err(format!("cannot pin a reactor to CPU {}: not ours to use", cpu.id));
        }
        let ring = Ring::new(&settings.ring).map_err(|error| error.to_string())?;
        let mut proxies = Vec::new();
        let mut connect = Vec::new();
        let mut names = Vec::new();
        let mut passing = Passing::new(settings.cpu, settings.ahead, settings.listeners);
        let memory_sharers = u64::from(settings.reactors) * settings.pools.len() as u64;
        for (number, pool) in settings.pools.into_iter().enumerate() {
            passing.shared.push(pool.shared);
            connect.push(pool.connect);
            names.push(pool.name);
            proxies.push(Proxy::new(
                pool.proxy,
                pool.identity,
                mix(settings.seed, number as u64),
                settings.first_client_id + u64::from(settings.index) + 1,
                u64::from(settings.reactors.max(1)),
            ));
        }
        Ok(Worker {
            index: settings.index,
            ring,
            proxies,
            connect,
            names,
            listeners: Vec::new(),
            owners: Vec::new(),
            actions: Vec::new(),
            updates: channels.updates,
            reports: channels.reports,
            inbox: channels.inbox,
            wishes: channels.wishes,
            peers: Vec::new().into(),
            board,
            subscribed: false,
            counters: Counters::default(),
            busy_poll: busy_poll(settings.busy_poll),
            memory_limit: settings.memory_limit,
            memory_sharers,
            start: Instant::now(),
            now: Now::default(),
            now_us: 0,
            next_publish_ms: 0,
            totals: Totals::default(),
            totals_ms: 0,
            paused: Vec::new(),
            accept_told: (0, 0),
            refusals_told: (0, 0),
            drain_until_ms: None,
            passing,
            turns: 0,
            pace: Pace::new(settings.gather),
            log: settings.log,
            enobufs_told: 0,
        })
    }

    /// Until drained. A broken ring ends the process: never a proxy with a silent dead core.
    fn run(&mut self) {
        loop {
            self.turn();
            if self.is_drained() {
                break;
            }
            let timeout = self.timeout();
            let mut under_way = UnderWay::default();
            self.proxies.iter().for_each(|proxy| proxy.add_under_way(&mut under_way));
            let gather = self.pace.gather(&under_way);
            let busy = self.pace.is_busy(&under_way);
            self.proxies.iter_mut().for_each(|proxy| proxy.set_busy(busy));
            self.ring.set_gather(gather);
            if let Err(error) = self.ring.enter(Some(timeout), self.busy_poll) {
                let mut stderr = std::io::stderr();
                let _ = writeln!(
                    stderr,
                    "ringway: reactor {}: the ring is broken: {error}",
                    self.index
                );
                std::process::exit(1);
            }
            self.read_clock();
        }
        self.publish();
        self.tell_end();
        self.leave_peers();
        let _ = self.reports.send(Report::ReactorStopped { reactor: self.index });
    }

    fn turn(&mut self) {
        self.turns += 1;
        // First, so that who asks for numbers after a silence is not told old ones.
        if self.now.ms >= self.next_publish_ms {
            self.next_publish_ms = self.now.ms + PUBLISH_EVERY_MS;
            self.count_passed();
            self.publish();
        }
        self.look_for_subscriptions();
        let mut woken = false;
        let events = self.take_events(&mut woken);
        let commands = self.proxies.iter().map(|proxy| proxy.tally.commands).sum();
        self.pace.count(events, commands, self.now_us);
        if woken {
            while let Ok(update) = self.updates.try_recv() {
                self.handle_update(update);
            }
            self.hear_peers();
        }
        self.handle_time();
        self.handle_memory();
        self.give_away();
        for pool in 0..self.proxies.len() {
            self.flush(pool, Proxy::flush);
        }
        if self.passing.watches {
            self.watch_passing();
        }
        self.end_turn();
    }

    /// How many were no sends. What is left is taken in the next turn, which comes at once.
    #[inline]
    fn take_events(&mut self, woken: &mut bool) -> u64 {
        let mut events = 0;
        let mut bytes = 0;
        while let Some(event) = self.ring.next_light() {
            events += u64::from(!matches!(event, Event::Sent { .. }));
            bytes += self.handle(event, woken);
            if bytes >= TURN_BYTES_MAX {
                while let Some(event) = self.ring.late_event() {
                    self.handle(event, woken);
                }
                break;
            }
        }
        let carefully = self.ring.has_heavy() && self.is_crowded();
        if carefully {
            self.let_light_ones_leave(woken);
        }
        // One at least: what is light may never end.
        let mut most = bytes + 1;
        while bytes < most
            && let Some(event) = self.ring.next_heavy()
        {
            events += 1;
            bytes += match carefully {
                true => self.handle_carefully(event, woken),
                false => self.handle(event, woken),
            };
            most = if self.is_crowded() { HEAVY_TURN_BYTES } else { TURN_BYTES_MAX };
        }
        events
    }

    /// Whether clients with little to ask are about.
    fn is_crowded(&self) -> bool {
        self.proxies.iter().any(|proxy| proxy.is_crowded(self.now))
    }

    /// What those with little to ask wait for does not wait for what others have sent.
    fn let_light_ones_leave(&mut self, woken: &mut bool) {
        for pool in 0..self.proxies.len() {
            self.flush(pool, Proxy::flush_light);
        }
        self.ring.depart();
        // Who has sent may send again in this turn.
        while let Some(event) = self.ring.next_sent() {
            self.handle(event, woken);
        }
    }

    /// As `handle`, while others are about: of much that a node says no more than a piece, and each
    /// request counts as well.
    fn handle_carefully(&mut self, event: Event, woken: &mut bool) -> usize {
        let work = |proxies: &[Proxy]| proxies.iter().map(Proxy::work).sum::<i64>();
        let before = work(&self.proxies);
        let bytes = match event {
            Event::Received { id, buffer } if buffer.len() > HEAVY_PIECE => {
                match owner_of(&self.owners, &mut self.proxies, id) {
                    Some((proxy, conn @ Conn::Backend(_))) => {
                        let piece = &self.ring.bytes(&buffer)[..HEAVY_PIECE];
                        proxy.handle_received(conn, piece, self.now);
                        self.ring.keep_rest(id, buffer, HEAVY_PIECE);
                        HEAVY_PIECE
                    }
                    _ => self.handle(Event::Received { id, buffer }, woken),
                }
            }
            event => self.handle(event, woken),
        };
        bytes + work(&self.proxies).abs_diff(before) as usize * HEAVY_REQUEST_BYTES
    }

    /// How many bytes have come with it.
    #[inline]
    fn handle(&mut self, event: Event, woken: &mut bool) -> usize {
        match event {
            Event::Received { id, buffer } => {
                let bytes = self.ring.bytes(&buffer).len();
                if let Some((proxy, conn)) = owner_of(&self.owners, &mut self.proxies, id) {
                    proxy.handle_received(conn, self.ring.bytes(&buffer), self.now);
                }
                self.ring.give_back(buffer);
                return bytes;
            }
            Event::Sent { id, buffer, ok } => {
                if let Some((proxy, conn)) = owner_of(&self.owners, &mut self.proxies, id) {
                    proxy.handle_sent(conn, buffer, ok, self.now);
                }
            }
            Event::Accepted { id, listener } => self.handle_accepted(id, listener),
            Event::End { id, error } => {
                if let Some((proxy, conn)) = owner_of(&self.owners, &mut self.proxies, id) {
                    proxy.handle_end(conn, error.is_some(), self.now);
                } else {
                    self.ring.close(id);
                }
            }
            Event::Connected { id, result } => self.handle_connected(id, result.is_ok()),
            Event::Gone { id } => {
                let owner = &mut self.owners[id.index as usize];
                if let Owner::Of { pool, conn } = std::mem::replace(owner, Owner::Nobody) {
                    self.proxies[usize::from(pool)].handle_gone(conn, self.now);
                }
            }
            Event::Woken => *woken = true,
            Event::AcceptFailed { listener, errno } => {
                self.tell_accept_failed(errno);
                // Somebody waits in the queue and there is no descriptor: one is told, in turn.
                let _ = self.ring.refuse_one(listener);
                self.paused.push((listener, self.now.ms + ACCEPT_PAUSE_MS));
            }
        }
        0
    }

    fn handle_accepted(&mut self, id: SocketId, listener: u32) {
        let pool = self.listeners.get(listener as usize).copied().unwrap_or(0);
        if !self.passing.shared[usize::from(pool)] || !self.share(id, pool) {
            self.welcome(id, pool);
        }
    }

    /// A client of ours from now on.
    fn welcome(&mut self, id: SocketId, pool: u16) {
        let Ok((peer, local)) = self.addresses_of(id) else {
            self.own(id, Owner::Refused);
            return self.ring.close(id);
        };
        let proxy = &mut self.proxies[usize::from(pool)];
        match proxy.handle_accepted(socket_of(id), peer, local, self.now) {
            Some(client) => {
                self.own(id, Owner::Of { pool, conn: Conn::Client(client) });
                self.ring.receive_fairly(id);
            }
            None => {
                let (line, why) = proxy.refusal();
                self.tell_refused(pool, &peer, why);
                self.own(id, Owner::Refused);
                self.ring.send(id, line);
                self.ring.close_after_send(id);
            }
        }
    }

    fn handle_connected(&mut self, id: SocketId, ok: bool) {
        let Owner::Of { pool, conn: Conn::Backend(backend) } = self.owners[id.index as usize]
        else {
            return;
        };
        if ok {
            self.ring.receive(id, false);
        }
        self.proxies[usize::from(pool)].handle_connected(backend, ok, self.now);
    }

    /// Of the other side, and of ours.
    fn addresses_of(&mut self, id: SocketId) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.ring.peer_address(id)?, self.ring.local_address(id)?))
    }

    fn own(&mut self, id: SocketId, owner: Owner) {
        let index = id.index as usize;
        if self.owners.len() <= index {
            self.owners.resize(index + 1, Owner::Nobody);
        }
        self.owners[index] = owner;
    }

    /// Takes what one proxy has to say and does it.
    fn flush(&mut self, pool: usize, flush: impl FnOnce(&mut Proxy, &mut Vec<Action>)) {
        let mut actions = std::mem::take(&mut self.actions);
        flush(&mut self.proxies[pool], &mut actions);
        self.show_subscriptions();
        for action in actions.drain(..) {
            self.act(pool, action);
        }
        self.actions = actions;
    }

    #[inline]
    fn act(&mut self, pool: usize, action: Action) {
        match action {
            Action::Send { socket, bytes, last: false, .. } => self.ring.send(id_of(socket), bytes),
            Action::Send { socket, bytes, .. } => self.ring.send_last(id_of(socket), bytes),
            Action::Offer { client, socket } => {
                self.passing.offered.push((pool as u16, client, id_of(socket)));
            }
            Action::StopReading { socket } => self.ring.pause(id_of(socket)),
            Action::StartReading { socket } => self.ring.resume(id_of(socket)),
            Action::Close { conn: Conn::Client(_), socket } => self.ring.close_soon(id_of(socket)),
            Action::Close { socket, .. } => self.ring.close(id_of(socket)),
            Action::Connect { backend, address } => self.connect(pool, backend, address),
            Action::Report(report) => {
                let _ = self.reports.send(to_topology(pool as u16, self.index, report));
            }
            Action::Ask { ticket, query } => self.ask_peers(pool, ticket, &query),
            Action::Show { to, lines } => self.show_peers(pool, &to, &lines),
            Action::Note(note) => self.tell(pool, &note),
        }
    }

    fn connect(&mut self, pool: usize, backend: u32, address: SocketAddr) {
        match self.ring.connect(&address, &self.connect[pool]) {
            Ok(id) => {
                let conn = Conn::Backend(backend);
                self.own(id, Owner::Of { pool: pool as u16, conn });
                self.proxies[pool].handle_connecting(backend, socket_of(id));
            }
            Err(_) => self.proxies[pool].handle_connected(backend, false, self.now),
        }
    }

    fn handle_update(&mut self, update: Update) {
        let now = self.now;
        match update {
            Update::Map { pool, topology } => {
                let ahead = self.passing.ahead;
                self.with(pool, |proxy| {
                    proxy.handle_topology(topology, now);
                    if ahead {
                        proxy.connect_ahead(now);
                    }
                });
            }
            Update::Slot { pool, slot, address } => {
                self.with(pool, |proxy| proxy.handle_slot_moved(slot, address, now));
            }
            Update::Confirmed { pool, endpoint, address } => {
                self.with(pool, |proxy| proxy.handle_confirmed(&endpoint, address, now));
            }
            Update::Refreshed { pool, .. } => {
                self.with(pool, |proxy| proxy.handle_refreshed(now));
            }
            Update::Learned { pool, learned } => {
                self.with(pool, |proxy| proxy.handle_learned(learned));
            }
            Update::Bounds { pool, bounds } => self.with(pool, |proxy| {
                proxy.handle_request_bounds(bounds.bulk_max, bounds.query_max);
                proxy.handle_databases(bounds.databases);
            }),
            Update::Script { from, .. } if from == self.index => (),
            Update::Script { pool, body, .. } => self.with(pool, |proxy| match &body {
                Some(body) => proxy.handle_script(body),
                None => proxy.handle_scripts_flushed(),
            }),
            Update::Drain { deadline_ms } => {
                self.ring.stop_listening();
                self.drain_until_ms = Some(now.ms + deadline_ms);
                let clients = self.clients_open();
                self.log.info(now.unix_us, "draining", &[("clients", &clients)]);
                for proxy in &mut self.proxies {
                    proxy.handle_drain(now);
                }
            }
        }
    }

    fn with(&mut self, pool: u16, act: impl FnOnce(&mut Proxy)) {
        if let Some(proxy) = self.proxies.get_mut(usize::from(pool)) {
            act(proxy);
        }
    }

    fn handle_time(&mut self) {
        for proxy in &mut self.proxies {
            if self.now.ms >= proxy.next_deadline() {
                proxy.handle_time(self.now);
            }
        }
        if !self.paused.is_empty() {
            let due = self.now.ms;
            let ring = &mut self.ring;
            self.paused.retain(|&(listener, until)| {
                if until <= due {
                    ring.accept_again(listener);
                }
                until > due
            });
        }
    }

    #[inline]
    fn handle_memory(&mut self) {
        let (limit, sharers) = (self.memory_limit, self.memory_sharers);
        if limit > 0 {
            let memory = Memory { held: ring::held(), limit, sharers };
            for proxy in &mut self.proxies {
                proxy.handle_memory(memory, self.now);
            }
        }
    }

    fn is_drained(&self) -> bool {
        self.drain_until_ms.is_some_and(|until| {
            let nobody = self.proxies.iter().all(|proxy| proxy.clients_open() == 0);
            let may_come = self.ring.is_listening() || self.passing.expecting;
            self.now.ms >= until || (nobody && !may_come)
        })
    }

    /// How long the ring may sleep.
    fn timeout(&mut self) -> Duration {
        let mut urgent = false;
        let mut next = self.now.ms + SLEEP_MAX_MS;
        for proxy in &mut self.proxies {
            urgent |= proxy.take_urgent();
            next = next.min(proxy.plan());
        }
        if let Some(until) = self.drain_until_ms {
            next = next.min(until);
        }
        if let Some(&(_, until)) = self.paused.first() {
            next = next.min(until);
        }
        if urgent {
            return Duration::ZERO;
        }
        Duration::from_millis(next.saturating_sub(self.now.ms).max(1))
    }

    #[allow(clippy::disallowed_methods, reason = "the reactor's clock, read once a turn")]
    fn read_clock(&mut self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.now_us = self.start.elapsed().as_micros() as u64;
        self.now = Now { ms: 1 + self.now_us / 1_000, unix_us: unix.as_micros() as u64 };
    }
}

#[inline]
fn owner_of<'a>(
    owners: &[Owner],
    proxies: &'a mut [Proxy],
    id: SocketId,
) -> Option<(&'a mut Proxy, Conn)> {
    match owners.get(id.index as usize) {
        Some(&Owner::Of { pool, conn }) => {
            proxies.get_mut(usize::from(pool)).map(|proxy| (proxy, conn))
        }
        _ => None,
    }
}

fn socket_of(id: SocketId) -> Socket {
    Socket { index: id.index, generation: id.generation }
}

fn id_of(socket: Socket) -> SocketId {
    SocketId { index: socket.index, generation: socket.generation }
}

fn to_topology(pool: u16, reactor: u16, report: proxy::Report) -> Report {
    match report {
        proxy::Report::Moved { slot, endpoint, from, known } => {
            let endpoint: Endpoint = endpoint;
            Report::Moved { pool, slot, endpoint, from, known }
        }
        proxy::Report::NodeLost { address } => Report::NodeLost { pool, address },
        proxy::Report::WantRefresh => Report::WantRefresh { pool, avoid: None },
        proxy::Report::ScriptLoaded { body } => Report::ScriptLoaded { pool, from: reactor, body },
        proxy::Report::ScriptsFlushed => Report::ScriptsFlushed { pool, from: reactor },
    }
}

fn busy_poll(limit: Duration) -> Option<BusyPoll> {
    (!limit.is_zero()).then_some(BusyPoll { limit, clock: monotonic_ns })
}

/// A seed of its own for each pool.
fn mix(seed: [u64; 4], number: u64) -> [u64; 4] {
    seed.map(|word| word ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// For `BusyPoll`: a clock that counts from its first call.
#[allow(clippy::disallowed_methods, reason = "the reactor's clock, for its spinning")]
fn monotonic_ns() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
