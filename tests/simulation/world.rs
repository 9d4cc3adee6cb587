//! One run: virtual time, the queue of events, and the driver that turns the real `proxy` as
//! `reactor` does: completions, updates, time, flush, actions.
//!
//! Not here: what the parts of the model do (`network`, `serve`, `chaos`, `topology`, `workload`).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use ringway::cluster::slot_of;
use ringway::proxy::local::User;
use ringway::proxy::{Action, Conn, Memory, Now, Proxy, Socket};

use crate::chaos::{Chaos, Migrations};
use crate::handover::{Former, addresses_of};
use crate::history::History;
use crate::identity::identity;
use crate::messages::Messages;
use crate::monitor::Shown;
use crate::network::{Completion, Entry, Inbound, Peer};
use crate::nodes::Cluster;
use crate::parameters::Parameters;
use crate::plant::Plant;
use crate::random::Random;
use crate::serve::Link;
use crate::topology::{Errand, TopologyThread};
use crate::walk::Journeys;
use crate::workload::Client;

#[derive(Debug)]
pub enum Event {
    Turn,
    ToProxy { socket: Socket, inbound: Inbound },
    ToClient { client: usize, bytes: Vec<u8> },
    ClientEnd { client: usize },
    ToLink { link: usize, bytes: Vec<u8> },
    LinkEnd { link: usize },
    Serve { link: usize },
    HangUp { link: usize },
    Look { link: usize },
    Bus { node: usize, channel: Vec<u8>, number: usize },
    Sent { socket: Socket, ok: bool },
    Connected { socket: Socket, ok: bool },
    Gone { socket: Socket },
    Adopt { socket: Socket, parcel: Vec<u8> },
    Client { client: usize },
    Chaos(Chaos),
    Errand(Errand),
}

/// What happens at a time; at the same time, what was planned first.
#[derive(Debug)]
struct Due {
    at_us: u64,
    number: u64,
    event: Event,
}

impl Due {
    fn key(&self) -> (u64, u64) {
        (self.at_us, self.number)
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

pub struct World {
    pub parameters: Parameters,
    pub plant: Plant,
    pub random: Random,
    pub now_us: u64,
    queue: BinaryHeap<Reverse<Due>>,
    queued: u64,
    /// Of the process that speaks: between two events, the one that accepts.
    pub proxy: Proxy,
    pub process: u32,
    pub newest: u32,
    pub former: Vec<Former>,
    /// Clients on their way from one process to the next, and all that ever were.
    pub in_transit: usize,
    pub given: u64,
    /// Databases that clients entered.
    pub selected: u64,
    pub sockets: Vec<Entry>,
    pub free_sockets: Vec<u32>,
    pub inbox: VecDeque<Completion>,
    pub links: Vec<Link>,
    pub clients: Vec<Client>,
    pub cluster: Cluster,
    pub topology: TopologyThread,
    pub history: History,
    pub messages: Messages,
    /// To those who watch by MONITOR.
    pub shown: Shown,
    /// Of keys, from node to node.
    pub journeys: Journeys,
    /// Addresses that a map given to the proxy has named.
    pub named: BTreeSet<SocketAddr>,
    pub first_map_us: Option<u64>,
    pub learned_us: Option<u64>,
    pub healed: bool,
    pub drained: bool,
    /// The reactor takes no turn before.
    pub stuck_until: u64,
    /// What it is told that the process holds, of its limit.
    pub memory_percent: u64,
    /// Since when nothing may fail any more.
    pub settled_us: Option<u64>,
    pub migrations: Migrations,
    /// Lists that somebody waited for and left.
    pub abandoned: Vec<Vec<u8>>,
    /// Connections to nodes that have watched something.
    pub watching: BTreeSet<usize>,
    /// The slots of all keys.
    pub slots: Vec<u16>,
    pub turns: u64,
    pub events: u64,
    turn_at: u64,
    turn_scheduled: bool,
    pub empty_turns: u32,
    actions: Vec<Action>,
    /// Every event as text, where somebody wants to read it.
    pub trace: Option<Vec<String>>,
    pub hash: u64,
    pub redirects_seen: u64,
}

/// More turns in a row than this without anything to do are a busy loop.
const EMPTY_TURNS_MAX: u32 = 400;

/// What clients log in with.
pub const FRONT_PASSWORD: &[u8] = b"front";

/// A process's proxy as it starts.
pub fn new_proxy(
    parameters: &Parameters,
    plant: Plant,
    seed: [u64; 4],
    first_client_id: u64,
) -> Proxy {
    let mut who = identity();
    who.admin_user = (parameters.watchers > 0).then(|| "default".into());
    if parameters.login {
        let (name, password) = ("default".into(), Some(FRONT_PASSWORD.into()));
        who.users = vec![User { name, password }];
    }
    let mut settings = parameters.settings();
    if plant == Plant::KeepLines {
        settings.pubsub_output_limit = 1 << 30;
    }
    Proxy::new(settings, Arc::new(who), seed, first_client_id, 1)
}

impl World {
    pub fn new(parameters: Parameters, plant: Plant, traced: bool) -> World {
        let mut random = Random::new(parameters.seed ^ 0xabcd_ef01_2345_6789);
        let seed = [(); 4].map(|()| random.next());
        let proxy = new_proxy(&parameters, plant, seed, 1);
        let mut cluster = Cluster::new(
            parameters.primaries,
            parameters.replicas,
            parameters.spares,
            parameters.nat,
        );
        cluster.slotted = parameters.slotted;
        (cluster.lag_us, cluster.plant) = (parameters.lag_us, plant);
        cluster.sync_us = parameters.sync_us;
        let tags = 0..parameters.tags;
        let slots = tags.map(|tag| slot_of(format!("t{tag}").as_bytes())).collect();
        let mut history = History::new();
        let hiccups_us = if parameters.hiccups > 0 { 4_000 * parameters.hiccup_ms } else { 0 };
        history.slack_us = 20_000 + 8 * (parameters.delay_us + parameters.turn_us) + hiccups_us;
        World {
            plant,
            random,
            now_us: 0,
            queue: BinaryHeap::new(),
            queued: 0,
            proxy,
            process: 0,
            newest: 0,
            former: Vec::new(),
            in_transit: 0,
            given: 0,
            selected: 0,
            sockets: Vec::new(),
            free_sockets: Vec::new(),
            inbox: VecDeque::new(),
            links: Vec::new(),
            clients: Vec::new(),
            cluster,
            topology: TopologyThread::default(),
            history,
            messages: Messages::default(),
            shown: Shown::default(),
            journeys: Journeys::default(),
            named: BTreeSet::new(),
            first_map_us: None,
            learned_us: None,
            healed: false,
            drained: false,
            stuck_until: 0,
            memory_percent: 0,
            settled_us: None,
            migrations: Migrations::new(),
            abandoned: Vec::new(),
            watching: BTreeSet::new(),
            slots,
            turns: 0,
            events: 0,
            turn_at: u64::MAX,
            turn_scheduled: false,
            empty_turns: 0,
            actions: Vec::new(),
            trace: traced.then(Vec::new),
            hash: parameters.seed,
            redirects_seen: 0,
            parameters,
        }
    }

    pub fn at(&mut self, at_us: u64, event: Event) {
        self.queued += 1;
        let at_us = at_us.max(self.now_us);
        self.queue.push(Reverse(Due { at_us, number: self.queued, event }));
    }

    /// Notes what happens: into the hash, and as text where somebody wants to read it.
    pub fn note(&mut self, number: u64, text: impl FnOnce() -> String) {
        self.hash = (self.hash ^ number ^ self.now_us << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash ^= self.hash >> 29;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9} µs turn {:>5}: {}", self.now_us, self.turns, text()));
        }
    }

    /// Runs until the time, or until `done` says so, or a checker has failed. False: time is up.
    pub fn run_until(&mut self, until_us: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        while self.history.violation.is_none() {
            if self.queue.peek().is_none_or(|next| next.0.at_us > until_us) {
                break;
            }
            let Some(Reverse(due)) = self.queue.pop() else { break };
            self.now_us = due.at_us;
            self.events += 1;
            self.handle(due.event);
            if self.events % 64 == 0 && done(self) {
                return true;
            }
        }
        if self.history.violation.is_none() && !done(self) {
            self.now_us = self.now_us.max(until_us);
            return done(self);
        }
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Turn => {
                if self.turn_scheduled && self.turn_at == self.now_us {
                    self.turn_scheduled = false;
                    if self.stuck_until > self.now_us {
                        self.turn_before(self.stuck_until);
                    } else {
                        self.turn();
                    }
                }
            }
            Event::ToProxy { socket, inbound } => self.arrived(socket, inbound),
            Event::ToClient { client, bytes } => self.client_gets(client, bytes),
            Event::ClientEnd { client } => self.client_sees_end(client),
            Event::ToLink { link, bytes } => self.link_gets(link, bytes),
            Event::LinkEnd { link } => self.link_sees_end(link),
            Event::Serve { link } => self.serve(link),
            Event::Look { link } => self.look_after(link),
            Event::HangUp { link } => self.hang_up(link, false),
            Event::Bus { node, channel, number } => self.bus(node, channel, number),
            Event::Sent { socket, ok } => self.send_ended(socket, ok),
            Event::Connected { socket, ok } => self.connected(socket, ok),
            Event::Gone { socket } => {
                if self.entry(socket).is_some() {
                    self.complete(Completion::Gone { socket });
                }
            }
            Event::Adopt { socket, parcel } => {
                self.complete(Completion::Adopted { socket, parcel });
            }
            Event::Client { client } => self.client_acts(client),
            Event::Chaos(chaos) => self.strike(chaos),
            Event::Errand(errand) => self.run_errand(errand),
        }
    }

    /// Sees to it that the next turn is not later than this.
    pub fn turn_before(&mut self, at_us: u64) {
        let at_us = at_us.max(self.stuck_until);
        if !self.turn_scheduled || self.turn_at > at_us {
            self.turn_scheduled = true;
            self.turn_at = at_us.max(self.now_us);
            self.at(self.turn_at, Event::Turn);
        }
    }

    pub fn now(&self) -> Now {
        Now {
            ms: 1 + self.parameters.clock_ms + self.now_us / 1000,
            unix_us: 1_700_000_000_000_000 + self.now_us,
        }
    }

    fn turn(&mut self) {
        self.turns += 1;
        let now = self.now();
        let completions = self.take_inbox();
        let mut busy = !completions.is_empty();
        let early = (self.turns + self.parameters.seed) % 3 == 0;
        let early = if early { completions.len() / 2 } else { usize::MAX };
        for (number, completion) in completions.into_iter().enumerate() {
            if number == early {
                for process in self.processes() {
                    self.as_process(process, World::let_light_ones_leave);
                }
            }
            let mark = match &completion {
                Completion::Received { bytes, .. } => completion.mark() ^ digest(bytes),
                _ => completion.mark(),
            };
            self.note(mark, || match &completion {
                Completion::Received { socket, bytes } => {
                    format!("received {socket:?} {:?}", shown(bytes))
                }
                other => format!("{other:?}"),
            });
            let socket = completion.socket();
            let present = self.process;
            let process = self.entry(socket).map_or(present, |entry| entry.process);
            if self.processes().contains(&process) {
                self.as_process(process, |world| world.hand_over(completion, now));
            } else {
                self.end_of_nobodys(&completion);
            }
        }
        busy |= self.hand_updates(now);
        self.look_after_watchers(now);
        let mut next = u64::MAX;
        for process in self.processes() {
            let ended = self.as_process(process, |world| world.end_turn(now));
            let Some((acted, at)) = ended else { continue };
            busy |= acted;
            next = next.min(at);
        }
        self.give_away(now);
        self.watch_for_busy_loop(busy);
        self.turn_before(next.max(self.now_us + 1));
    }

    /// As a driver does before it hands over what some have sent much of.
    fn let_light_ones_leave(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        self.proxy.flush_light(&mut actions);
        for action in actions.drain(..) {
            self.act(action);
        }
        self.actions = actions;
    }

    /// What one process does at the end of its turn: whether there was anything, and when it is to
    /// have the next one.
    fn end_turn(&mut self, now: Now) -> (bool, u64) {
        let due = now.ms >= self.proxy.next_deadline();
        if due && self.plant != Plant::NoTime {
            self.proxy.handle_time(now);
        }
        let memory = Memory { held: self.memory_percent << 20, limit: 100 << 20, sharers: 1 };
        self.proxy.handle_memory(memory, now);
        self.proxy.set_busy((now.ms / 16 + self.parameters.seed) % 2 == 0);
        let mut actions = std::mem::take(&mut self.actions);
        self.proxy.flush(&mut actions);
        let busy = !actions.is_empty();
        for action in actions.drain(..) {
            self.act(action);
        }
        self.actions = actions;
        let next = if self.proxy.take_urgent() {
            self.now_us + 1 + self.random.below(20)
        } else {
            let sleep = self.proxy.plan().saturating_sub(now.ms).clamp(1, 1_000);
            (self.now_us / 1_000 + sleep) * 1_000
        };
        (busy, next)
    }

    fn watch_for_busy_loop(&mut self, busy: bool) {
        let deadline = self.proxies().map(Proxy::next_deadline).min().unwrap_or(u64::MAX);
        self.empty_turns = if busy { 0 } else { self.empty_turns + 1 };
        if self.empty_turns > EMPTY_TURNS_MAX {
            let text = format!(
                "{EMPTY_TURNS_MAX} turns in a row had nothing to do; the next is wanted at {} ms, now {}",
                deadline,
                self.now().ms
            );
            self.history.violate("busy loop", text);
        }
        // A turn that waited its 20 ms or more is no part of a loop.
        if deadline > self.now().ms + 10 {
            self.empty_turns = 0;
        }
    }

    fn hand_over(&mut self, completion: Completion, now: Now) {
        match completion {
            Completion::Accepted { socket, client } => self.accept(socket, client, now),
            Completion::Received { socket, bytes } => {
                if let Some(owner) = self.owner(socket) {
                    self.count_received(owner, socket, bytes.len());
                    self.proxy.handle_received(owner, &bytes, now);
                }
            }
            Completion::End { socket, failed } => {
                if let Some(owner) = self.owner(socket) {
                    self.count_end(owner);
                    self.proxy.handle_end(owner, failed, now);
                }
            }
            Completion::Sent { socket, ok } => {
                let Some(entry) = self.entry(socket) else { return };
                let Some(buffer) = entry.sending.take() else { return };
                if let Some(owner) = self.owner(socket) {
                    self.proxy.handle_sent(owner, buffer, ok, now);
                }
            }
            Completion::Connected { socket, ok } => {
                if let Some(Conn::Backend(backend)) = self.owner(socket) {
                    self.proxy.handle_connected(backend, ok, now);
                }
            }
            Completion::Gone { socket } => self.gone(socket, now),
            Completion::Adopted { socket, parcel } => self.adopt(socket, &parcel, now),
        }
    }

    fn gone(&mut self, socket: Socket, now: Now) {
        let owner = self.owner(socket);
        if self.entry(socket).is_none() {
            return;
        }
        self.free_socket(socket);
        if let Some(owner) = owner {
            self.proxy.handle_gone(owner, now);
        }
    }

    fn free_socket(&mut self, socket: Socket) {
        if let Some(entry) = self.entry(socket) {
            entry.open = false;
            entry.owner = None;
            self.free_sockets.push(socket.index);
        }
    }

    /// Nobody is there any more to be told of a socket's end.
    fn end_of_nobodys(&mut self, completion: &Completion) {
        if let Completion::Gone { socket } = completion {
            self.free_socket(*socket);
        }
    }

    fn owner(&mut self, socket: Socket) -> Option<Conn> {
        self.entry(socket)?.owner
    }

    fn accept(&mut self, socket: Socket, client: usize, now: Now) {
        let (peer, local) = addresses_of(client);
        match self.proxy.handle_accepted(socket, peer, local, now) {
            Some(index) => {
                if let Some(entry) = self.entry(socket) {
                    entry.owner = Some(Conn::Client(index));
                }
            }
            None => {
                self.clients[client].refused = true;
                let (line, _) = self.proxy.refusal();
                self.send(socket, line);
                if let Some(entry) = self.entry(socket) {
                    entry.sending = None;
                }
                self.close(socket);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { conn: Conn::Client(_), socket, .. } if self.plant_give_busy() => {
                self.send(socket, Vec::new());
            }
            Action::Send { conn: Conn::Client(_), socket, .. } if self.plant_close() => {
                self.count_close(socket);
                self.close(socket);
            }
            Action::Send { conn, socket, mut bytes, .. } => {
                self.plant_mixed(socket, &mut bytes);
                self.note(digest(&bytes) ^ 1 << 40, || {
                    format!("send {conn:?} {socket:?} {:?}", shown(&bytes))
                });
                self.send(socket, bytes);
            }
            Action::Connect { backend, address } => {
                self.note(u64::from(backend) | 2 << 40, || format!("connect {backend} {address}"));
                self.connect(backend, address);
            }
            Action::Close { conn, socket } => {
                self.note(u64::from(socket.index) | 3 << 40, || {
                    format!("close {conn:?} {socket:?}")
                });
                self.count_close(socket);
                self.close(socket);
            }
            Action::StopReading { socket } => {
                self.note(u64::from(socket.index) | 4 << 40, || format!("stop reading {socket:?}"));
                self.pause(socket);
            }
            Action::StartReading { socket } => {
                self.note(u64::from(socket.index) | 5 << 40, || format!("read again {socket:?}"));
                self.resume(socket);
            }
            Action::Note(_) => (),
            // One reactor has nobody to ask.
            Action::Ask { .. } | Action::Show { .. } => unreachable!("there are no peers"),
            Action::Offer { client, socket } => self.offer(client, socket),
            Action::Report(report) => {
                self.note(6 << 40, || format!("report {report:?}"));
                self.hear_report(report);
            }
        }
    }

    /// The proxy has read so many bytes: requests and refusals in them count as known to it.
    fn count_received(&mut self, owner: Conn, socket: Socket, len: usize) {
        let turn = self.turns;
        let Some(entry) = self.entry(socket) else { return };
        match (owner, entry.peer) {
            (Conn::Client(_), Peer::Client(client)) => {
                let client = &mut self.clients[client];
                client.delivered += len as u64;
                while let Some(&(end, id)) = client.ends.front()
                    && end <= client.delivered
                {
                    client.ends.pop_front();
                    self.history.requests[id as usize].delivered = Some(turn);
                }
            }
            (Conn::Backend(_), Peer::Link(link)) => {
                let link = &mut self.links[link];
                link.read += len as u64;
                while let Some(&(Some(end), id, number)) = link.refusals.front()
                    && end <= link.read
                {
                    link.refusals.pop_front();
                    self.history.refusal_read(id, number, turn);
                }
            }
            _ => (),
        }
    }

    fn count_end(&mut self, owner: Conn) {
        if let Conn::Backend(_) = owner {
            self.history.lost();
        }
    }

    /// The proxy closes: a backend means trouble for reads, a client needs a reason.
    fn count_close(&mut self, socket: Socket) {
        let Some(entry) = self.entry(socket) else { return };
        match entry.peer {
            Peer::Client(client) => self.check_close(client),
            Peer::Link(link) => {
                self.history.lost();
                self.link_fault(link);
            }
            _ => self.history.lost(),
        }
    }
}

/// Of bytes, quickly: for the hash of what happened.
fn digest(bytes: &[u8]) -> u64 {
    let mut digest = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        digest = (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        digest ^= digest >> 32;
    }
    digest
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned();
    text.replace("\r\n", "␍")
}
