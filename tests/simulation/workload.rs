//! Model clients: what they ask, how they read, how they leave.
//!
//! Not here: whether what they get is right (`checker`).

use std::collections::VecDeque;
use std::sync::Arc;

use ringway::command::Learned;
use ringway::proxy::Socket;
use ringway::resp::Version;
use ringway::resp::value::{Value, parse_value};

use crate::checker::Circumstances;
use crate::databases;
use crate::history::{Kind, Outcome};
use crate::item::{item, mark};
use crate::messages::Ear;
use crate::monitor::Watcher;
use crate::network::{Completion, Peer};
use crate::nodes::bulk;
use crate::serve::text_of;
use crate::walk::Walk;
use crate::world::{Event, World};

/// The first three are harmless.
pub const SCRIPTS: [&str; 11] = [
    "append",
    "read",
    "nested",
    "split",
    "three",
    "forge-unknown",
    "forge-ask",
    "forge-known",
    "forge-slot",
    "write-tryagain",
    "write-loading",
];

#[derive(Debug, Default)]
pub struct Client {
    pub socket: Option<Socket>,
    version: Version,
    left: u64,
    outstanding: VecDeque<u32>,
    /// Where requests end in what it has sent, and whose end it is.
    pub ends: VecDeque<(u64, u32)>,
    written: u64,
    pub delivered: u64,
    received: Vec<u8>,
    pub under_way: usize,
    unread: usize,
    reading: bool,
    never_reads: bool,
    slow: bool,
    /// Sends that end when it reads again.
    pub blocked: Vec<Socket>,
    /// The one that it is in, and the one that it asked for.
    pub database: u32,
    selecting: bool,
    /// What it asked last, as it went out.
    pub last_asked: Vec<u8>,
    /// The next process would not have it.
    pub turned_away: bool,
    /// It has sent its last byte; it is gone; the proxy has closed.
    finished: bool,
    gone: bool,
    closed: bool,
    /// Told that there are too many clients.
    pub refused: bool,
    /// Has sent what makes the proxy close.
    said_last: bool,
    asked_large: bool,
    leaves: bool,
    pub logged_in: bool,
    /// Runs scripts that answer what they like.
    hostile: bool,
    pub half_closes: bool,
    pub walk: Option<Walk>,
    /// Scripts that it has loaded or run: which one, and the name.
    pub scripts: Vec<(u8, String)>,
    /// It listens or publishes, and does nothing else.
    pub ear: Option<Box<Ear>>,
    /// It watches what others ask.
    pub watcher: Option<Box<Watcher>>,
}

/// Bytes that a client's kernel takes while the client does not read.
const WINDOW: usize = 4_000;

impl Client {
    pub fn is_full(&self) -> bool {
        !self.gone && !self.closed && !self.reading && self.under_way + self.unread > WINDOW
    }

    pub fn is_over(&self) -> bool {
        self.gone || self.closed
    }

    pub fn waits(&self) -> bool {
        !self.is_over() && !self.never_reads && !self.outstanding.is_empty()
    }

    /// Asked everything and has all answers.
    pub fn has_all(&self) -> bool {
        self.is_over() || (self.left == 0 && self.outstanding.is_empty())
    }

    /// Nor will it ever have: it stays and is silent.
    fn has_nothing_to_do(&self) -> bool {
        let asks = self.left > 0 || !self.outstanding.is_empty() || self.leaves;
        !asks && !self.slow && self.ear.is_none()
    }

    pub fn waits_for_nothing(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// All that comes, as it comes.
    pub fn reads_all(&self) -> bool {
        !self.never_reads && !self.slow
    }

    pub fn read_nothing(&mut self) {
        (self.never_reads, self.reading) = (true, false);
    }

    pub fn ask_no_more(&mut self) {
        self.left = 0;
    }
}

impl World {
    pub fn add_client(&mut self, requests: u64, orderly: bool) -> usize {
        let (leaves, half) = (self.parameters.leaves, self.parameters.half_closes);
        let hostile = self.parameters.hostile;
        let (never, slow) = (self.parameters.never_reads, self.parameters.slow_reads);
        let never_reads = !orderly && self.random.chance(never);
        self.clients.push(Client {
            left: requests,
            reading: !never_reads,
            never_reads,
            slow: !orderly && self.random.chance(slow),
            hostile: !orderly && self.random.chance(hostile),
            leaves: !orderly && self.random.chance(leaves),
            half_closes: !orderly && self.random.chance(half),
            ..Client::default()
        });
        let client = self.clients.len() - 1;
        let at = self.now_us + self.random.below(self.parameters.starts_us + 1);
        self.at(at, Event::Client { client });
        client
    }

    pub fn client_acts(&mut self, client: usize) {
        if self.clients[client].is_over() {
            return;
        }
        if self.clients[client].socket.is_none() {
            let socket = self.open_socket(None, Peer::Client(client));
            self.clients[client].socket = Some(socket);
            self.complete(Completion::Accepted { socket, client });
        }
        if self.clients[client].ear.is_some() {
            return self.ear_acts(client);
        }
        if self.clients[client].watcher.is_some() {
            return self.watcher_acts(client);
        }
        if self.clients[client].slow {
            let reading = self.random.chance(400) || self.healed;
            self.set_reading(client, reading);
        }
        let this = &self.clients[client];
        let open = !this.finished && !this.said_last && !this.selecting;
        let room = self.parameters.pipeline.saturating_sub(this.outstanding.len() as u64);
        if open && this.left > 0 && room > 0 {
            self.ask_burst(client, room);
        }
        let this = &self.clients[client];
        if this.left == 0 && this.outstanding.is_empty() && this.leaves {
            return self.leave(client, false);
        }
        if self.is_fed_up(client) {
            let broken = self.random.chance(300);
            return self.leave(client, broken);
        }
        let this = &self.clients[client];
        if !this.is_over() && !this.has_nothing_to_do() {
            let idle = this.left == 0 && !this.slow;
            let think = match idle {
                true if self.healed => 500_000,
                true => 50_000,
                false => self.parameters.think_us + 500,
            };
            let at = self.now_us + 1 + self.random.below(think);
            self.at(at, Event::Client { client });
        }
    }

    /// Whether it leaves while it waits to be given an element. Others will push some.
    fn is_fed_up(&mut self, client: usize) -> bool {
        let Some(&id) = self.clients[client].outstanding.front() else { return false };
        let request = &self.history.requests[id as usize];
        if request.kind != Kind::BlPop || !self.clients[client].leaves || !self.random.chance(150) {
            return false;
        }
        self.abandoned.push(request.keys[0].clone());
        true
    }

    fn ask_burst(&mut self, client: usize, room: u64) {
        let count = self.random.range(1..=room).min(self.clients[client].left);
        let mut bytes = Vec::new();
        let select = self.selects_now(client);
        if let Some(kind) = select {
            let id = self.open(client, kind);
            let encoded = encode_words(&self.words(client, id, kind));
            self.put(client, id, encoded, &mut bytes, true);
            self.clients[client].selecting = true;
        }
        for _ in 0..if select.is_some() { 0 } else { count } {
            if self.clients[client].said_last {
                break;
            }
            self.clients[client].left -= 1;
            self.ask(client, &mut bytes);
        }
        self.note_asked(client, &bytes);
        let this = &mut self.clients[client];
        let Some(socket) = this.socket else { return };
        this.written += bytes.len() as u64;
        let last = this.left == 0 || self.random.chance(30);
        let this = &self.clients[client];
        if last && this.leaves && self.random.chance(700) {
            // In the middle of what it asks, or right behind it.
            let keep = self.random.index(bytes.len() + 1);
            bytes.truncate(keep);
            self.carry_to_proxy(socket, bytes);
            let broken = self.random.chance(500);
            return self.leave(client, broken);
        }
        self.carry_to_proxy(socket, bytes);
        if last && self.clients[client].half_closes {
            self.clients[client].finished = true;
            self.clients[client].left = 0;
            self.end_to_proxy(socket, false);
        }
    }

    /// It goes; what it is still owed nobody will know.
    pub fn leave(&mut self, client: usize, broken: bool) {
        let successors = self.parameters.successors;
        if !self.healed && self.clients.len() < 60 && self.random.chance(successors) {
            let requests = 1 + self.random.below(self.parameters.requests);
            let next = self.add_client(requests, false);
            let at = self.now_us + self.random.below(5_000);
            self.at(at, Event::Client { client: next });
        }
        let this = &mut self.clients[client];
        this.gone = true;
        for id in this.outstanding.drain(..) {
            self.history.requests[id as usize].outcome = Outcome::Left;
            self.history.requests[id as usize].left_us = Some(self.now_us);
        }
        this.received = Vec::new();
        let (socket, finished) = (this.socket, this.finished);
        let blocked = std::mem::take(&mut this.blocked);
        for socket in blocked {
            self.send_ended(socket, false);
        }
        if let Some(socket) = socket {
            if !finished || broken {
                self.end_to_proxy(socket, broken);
            } else if let Some(entry) = self.entry(socket) {
                entry.broken = true;
            }
        }
    }

    /// What a client still waits for that blocks, one behind the other, takes so long at most.
    pub fn blocks_for_us(&self, client: usize) -> u64 {
        let kind = |&&id: &&u32| self.history.requests[id as usize].kind;
        let outstanding = self.clients[client].outstanding.iter();
        let blocks =
            outstanding.filter(|id| matches!(kind(id), Kind::BlPop | Kind::Wait | Kind::WaitAof));
        blocks.count() as u64 * 2_600_000
    }

    /// For a message: what a client waits for.
    pub fn owed(&self, client: usize) -> String {
        let this = &self.clients[client];
        let oldest = this.outstanding.front().map(|&id| (id, &self.history.requests[id as usize]));
        format!("client {client}: {} replies, the first for {oldest:?}", this.outstanding.len())
    }

    pub fn client_again(&mut self, client: usize, bytes: &[u8]) {
        self.clients[client].received.extend_from_slice(bytes);
    }

    /// Everybody leaves: the orderly at once when they have their answers.
    pub fn dismiss(&mut self, client: usize) {
        let this = &mut self.clients[client];
        if this.is_over() || this.socket.is_none() {
            this.gone = true;
            return;
        }
        self.leave(client, false);
    }

    fn set_reading(&mut self, client: usize, reading: bool) {
        let this = &mut self.clients[client];
        if this.never_reads || this.reading == reading {
            return;
        }
        this.reading = reading;
        if reading {
            this.unread = 0;
            let blocked = std::mem::take(&mut this.blocked);
            for socket in blocked {
                let at = self.now_us + 1 + self.random.below(1_000);
                self.at(at, Event::Sent { socket, ok: true });
            }
            self.read_replies(client);
        }
    }

    pub fn client_gets(&mut self, client: usize, bytes: Vec<u8>) {
        let this = &mut self.clients[client];
        this.under_way -= bytes.len();
        if this.is_over() {
            // A reset for bytes to somebody who has gone.
            if let Some(socket) = this.socket
                && this.gone
                && let Some(entry) = self.entry(socket)
            {
                entry.broken = true;
            }
            return;
        }
        this.received.extend_from_slice(&bytes);
        self.plant_twice(client, &bytes);
        let this = &mut self.clients[client];
        if this.reading {
            self.read_replies(client);
        } else {
            this.unread += bytes.len();
        }
    }

    fn read_replies(&mut self, client: usize) {
        let received = std::mem::take(&mut self.clients[client].received);
        let mut at = 0;
        while at < received.len() {
            match parse_value(&received[at..]) {
                Ok(Some((value, len))) => {
                    self.take_reply(client, &received[at..at + len], &value);
                    at += len;
                }
                Ok(None) => break,
                Err(error) => {
                    let text = text_of(&received[at..], 200);
                    let text = format!("client {client} got what is no reply ({error}): {text:?}");
                    return self.history.violate("one reply", text);
                }
            }
        }
        self.clients[client].received = received[at..].to_vec();
    }

    fn take_reply(&mut self, client: usize, raw: &[u8], value: &Value) {
        if self.clients[client].refused {
            if !raw.starts_with(b"-ERR max number of clients reached") {
                let text = format!("client {client} refused with {:?}", text_of(raw, 100));
                self.history.violate("one reply", text);
            }
            return;
        }
        if self.clients[client].ear.is_some() {
            return self.ear_hears(client, raw, value);
        }
        if self.clients[client].watcher.is_some() {
            return self.watcher_hears(client, raw);
        }
        let Some(id) = self.clients[client].outstanding.pop_front() else {
            let text = format!("client {client} got a reply too many: {:?}", text_of(raw, 200));
            return self.history.violate("one reply", text);
        };
        self.note(raw.len() as u64 | 11 << 40, || {
            format!("client {client} request {id} answered {:?}", text_of(raw, 100))
        });
        let issued_us = self.history.requests[id as usize].issued_us;
        let around = Circumstances {
            calm: self.parameters.calm || self.healed_before(issued_us),
            learned: self.learned_us.is_some_and(|at| at < issued_us),
            mapped: self.first_map_us.is_some_and(|at| at < issued_us),
            split: self.parameters.proxy.split,
            hostile: self.clients[client].hostile || self.parameters.forget_ms > 0,
            fails_over: self.parameters.failover_ms > 0 && !self.healed_before(issued_us),
        };
        self.history.judge(id, raw, value, &around);
        self.check_wait(id, value);
        self.check_synced(id, value);
        if let Kind::Select(database) = self.history.requests[id as usize].kind {
            self.clients[client].selecting = false;
            if raw == b"+OK\r\n" {
                self.clients[client].database = database.into();
                self.selected += 1;
            }
        }
        self.note_script(client, id);
        if self.history.requests[id as usize].kind == Kind::Scan {
            self.walk_gets(client, value);
        }
    }

    /// A while after all faults have ended nothing may fail either.
    fn healed_before(&self, issued_us: u64) -> bool {
        self.settled_us.is_some_and(|at| issued_us > at)
    }

    pub fn client_sees_end(&mut self, client: usize) {
        let this = &mut self.clients[client];
        if std::mem::replace(&mut this.closed, true) || this.gone {
            return;
        }
        let whole = self.must_get_all(client);
        let this = &mut self.clients[client];
        let owed: Vec<u32> = this.outstanding.drain(..).collect();
        if whole && (!owed.is_empty() || !this.received.is_empty()) {
            let text = format!("client {client} was closed and is owed replies to {owed:?}");
            self.history.violate("one reply", text);
        }
        for id in owed {
            self.history.requests[id as usize].outcome = Outcome::Left;
        }
    }

    /// The proxy closes for no other reason than that the client has said its last.
    fn must_get_all(&self, client: usize) -> bool {
        let this = &self.clients[client];
        if this.turned_away {
            return false;
        }
        let patient = !this.never_reads && !this.slow && !self.parameters.closes_innocents();
        (this.finished || this.said_last) && patient && !self.may_be_torn(client) && !this.refused
    }

    fn may_be_torn(&self, client: usize) -> bool {
        self.clients[client].asked_large && !self.history.disturbances.is_empty()
    }

    /// The proxy closes a client: for a reason?
    pub fn check_close(&mut self, client: usize) {
        let this = &self.clients[client];
        let reason = this.gone
            || this.finished
            || this.said_last
            || this.refused
            || this.turned_away
            || this.never_reads
            || this.slow
            || self.parameters.closes_innocents()
            || self.drained
            // Who subscribes cannot be given to the next process.
            || (this.ear.is_some() && (!self.parameters.calm || self.newest > 0))
            || (this.watcher.is_some() && (self.parameters.lines_are_many() || self.newest > 0))
            || self.may_be_torn(client);
        if !reason {
            self.history.violate("close", format!("client {client} was closed for no reason"));
        }
    }

    // --- what is asked -----------------------------------------------------------------------

    fn ask(&mut self, client: usize, bytes: &mut Vec<u8>) {
        let mut kind = self.draw_kind(client);
        if self.parameters.login && !self.clients[client].logged_in {
            let early = self.random.chance(300);
            kind = if early { Kind::Early } else { Kind::Auth };
            self.clients[client].logged_in = !early;
        }
        if kind == Kind::ReplySkip {
            bytes.extend(encode(&[b"CLIENT", b"REPLY", b"SKIP"]));
            let id = self.open(client, Kind::Set);
            self.history.requests[id as usize].outcome = Outcome::Silent;
            let words = self.words(client, id, Kind::Set);
            return self.put(client, id, self.encoded(client, &words), bytes, false);
        }
        if kind == Kind::ReplyOn {
            bytes.extend(encode(&[b"client", b"reply", b"OFF"]));
            for _ in 0..self.random.below(4) {
                let id = self.open(client, Kind::Append);
                self.history.requests[id as usize].outcome = Outcome::Silent;
                let words = self.words(client, id, Kind::Append);
                self.put(client, id, self.encoded(client, &words), bytes, false);
            }
        }
        if kind == Kind::Exec {
            return self.ask_transaction(client, bytes);
        }
        if matches!(kind, Kind::BlPop | Kind::Wait | Kind::WaitAof)
            && self.clients[client].half_closes
        {
            // What blocks ends with the client's side.
            kind = Kind::Ping;
        }
        kind = self.fit_for_database(client, kind);
        let walk = if kind == Kind::Scan { self.walk_words(client) } else { None };
        if kind == Kind::Scan && walk.is_none() {
            kind = Kind::Ping;
        }
        let kind = self.choose_script(client, kind);
        let id = self.open(client, kind);
        let encoded = match kind {
            Kind::Ping if self.random.chance(300) => format!("ping  token{id}\r\n").into_bytes(),
            Kind::BadProtocol => b"*2\r\n$3\r\nGET\r\n$-5\r\n".to_vec(),
            _ if walk.is_some() => encode_words(&walk.unwrap_or_default()),
            _ => {
                let words = self.words(client, id, kind);
                self.encoded(client, &words)
            }
        };
        self.clients[client].said_last |= matches!(kind, Kind::BadProtocol | Kind::Quit);
        self.put(client, id, encoded, bytes, true);
    }

    pub fn put(
        &mut self,
        client: usize,
        id: u32,
        encoded: Vec<u8>,
        bytes: &mut Vec<u8>,
        due: bool,
    ) {
        bytes.extend_from_slice(&encoded);
        let this = &mut self.clients[client];
        this.last_asked = encoded;
        this.ends.push_back((this.written + bytes.len() as u64, id));
        if due {
            this.outstanding.push_back(id);
        }
    }

    /// As its client writes it, whose database the nodes know.
    pub fn encoded(&self, client: usize, words: &[Vec<u8>]) -> Vec<u8> {
        encode_words(&databases::without_prefix(self.clients[client].database, words))
    }

    pub fn open(&mut self, client: usize, kind: Kind) -> u32 {
        if kind == Kind::Reset {
            self.clients[client].version = Version::Resp2;
            self.clients[client].database = 0;
        }
        if let Kind::Hello(version) = kind {
            let version = if version == 3 { Version::Resp3 } else { Version::Resp2 };
            self.clients[client].version = version;
        }
        let version = self.clients[client].version;
        self.history.open(client, kind, version, self.now_us)
    }

    fn draw_kind(&mut self, client: usize) -> Kind {
        let hello = if self.random.chance(self.parameters.resp3) { 3 } else { 2 };
        let last = if self.random.chance(500) { Kind::Quit } else { Kind::BadProtocol };
        let harmless = !self.clients[client].hostile || self.random.chance(400);
        let script = self.random.index(if harmless { 3 } else { SCRIPTS.len() }) as u8;
        let kinds = [
            (Kind::Set, 10),
            (Kind::Get, 10),
            (Kind::IncrBy, 10),
            (Kind::Incr, 5),
            (Kind::Append, 10),
            (Kind::Learned, 3),
            (Kind::MGet, 6),
            (Kind::MSet, 6),
            (Kind::Del, 4),
            (Kind::Exists, 3),
            (Kind::DbSize, 1),
            (Kind::Eval(script), 6),
            (Kind::Ping, 2),
            (Kind::Echo, 2),
            (Kind::Hello(hello), 2),
            (Kind::ReplySkip, 2),
            (Kind::Unknown, 1),
            (Kind::CrossSlot, 1),
            (Kind::Exec, 6),
            (Kind::Push, 6),
            (Kind::BlPop, 4),
            (Kind::ScriptLoad, 1),
            (Kind::Reset, if self.parameters.login { 0 } else { 1 }),
            (Kind::ReplyOn, 1),
            (Kind::Scan, 6),
            (Kind::EvalSha(script % 3), 4),
            (Kind::Wait, 2),
            (Kind::WaitAof, 2),
        ];
        if self.random.chance(3) {
            return last;
        }
        assert!(kinds[crate::parameters::SCAN].0 == Kind::Scan);
        let weigh = |n: usize, base: u32| u64::from(base * self.parameters.weights[n]);
        let total: u64 = kinds.iter().enumerate().map(|(n, kind)| weigh(n, kind.1)).sum();
        let mut at = self.random.below(total);
        for (n, (kind, base)) in kinds.into_iter().enumerate() {
            let weight = u64::from(base * self.parameters.weights[n]);
            if at < weight {
                return kind;
            }
            at -= weight;
        }
        Kind::Set
    }

    pub fn tag(&mut self) -> usize {
        self.random.index(self.parameters.tags)
    }

    /// A key of this client's own, or one that all share.
    pub fn key(&mut self, client: usize, tag: usize, letter: char) -> Vec<u8> {
        let number = self.random.below(self.parameters.keys);
        let key = match self.random.chance(150) {
            true => format!("{{t{tag}}}s{letter}{number}"),
            false => format!("{{t{tag}}}c{client}{letter}{number}"),
        };
        self.placed(client, key.into_bytes())
    }

    /// A key, in the database that its client is in.
    pub fn placed(&self, client: usize, key: Vec<u8>) -> Vec<u8> {
        [databases::prefix(self.clients[client].database), key].concat()
    }

    fn words(&mut self, client: usize, id: u32, kind: Kind) -> Vec<Vec<u8>> {
        let tag = self.tag();
        let word = |text: &str| text.as_bytes().to_vec();
        let token = format!("token{id}").into_bytes();
        match kind {
            Kind::Set => {
                let padding = self.padding(client, 700);
                let key = self.key(client, tag, 'k');
                self.with_keys(
                    id,
                    vec![word("SET"), key.clone(), item(&key, id, padding)],
                    vec![key],
                )
            }
            Kind::Get => {
                let key = self.key(client, tag, 'k');
                self.clients[client].asked_large |= self.parameters.large > 0;
                self.with_keys(id, vec![word("GET"), key.clone()], vec![key])
            }
            Kind::IncrBy => {
                let key = self.key(client, tag, 'n');
                let amount = id.to_string().into_bytes();
                self.with_keys(id, vec![word("INCRBY"), key.clone(), amount], vec![key])
            }
            Kind::Incr => {
                let key = self.key(client, tag, 'i');
                self.with_keys(id, vec![word("INCR"), key.clone()], vec![key])
            }
            Kind::Append | Kind::Learned => {
                let name = if kind == Kind::Append { "append" } else { "mod.append" };
                let key = self.key(client, tag, 'k');
                self.with_keys(id, vec![word(name), key.clone(), item(&key, id, 0)], vec![key])
            }
            Kind::MGet | Kind::Del | Kind::Exists | Kind::MSet => self.many_keys(client, id, kind),
            Kind::Scan => Vec::new(),
            Kind::Push | Kind::BlPop => self.list_words(client, id, kind, tag),
            Kind::DbSize => vec![word("DBSIZE")],
            Kind::ScriptLoad => vec![word("SCRIPT"), word("LOAD"), crate::scripts::body(id)],
            Kind::EvalSha(_) => self.script_words(client, id, tag),
            Kind::Wait => self.wait_words(id),
            Kind::WaitAof => self.synced_words(id),
            Kind::Select(database) => vec![word("SELECT"), word(&database.to_string())],
            Kind::Reset => vec![word("RESET")],
            Kind::ReplyOn => ["client", "reply", "on"].map(word).to_vec(),
            Kind::Auth => vec![word("AUTH"), crate::world::FRONT_PASSWORD.to_vec()],
            Kind::Early => vec![word("GET"), word("{t0}early")],
            Kind::Eval(script) => {
                let key = self.key(client, tag, 'k');
                let mark = format!("!{id}").into_bytes();
                let script = word(SCRIPTS[usize::from(script)]);
                let words = vec![word("EVAL"), script, word("1"), key.clone(), mark];
                self.with_keys(id, words, vec![key])
            }
            Kind::CrossSlot => {
                let words = ["EVAL", "append", "2", "{a}x", "{b}x", "!0"].map(word);
                words.to_vec()
            }
            Kind::Ping => vec![word("PING"), token],
            Kind::Echo => vec![word("ECHO"), token],
            Kind::Hello(version) => vec![word("HELLO"), version.to_string().into_bytes()],
            Kind::Unknown => vec![format!("nope{id}").into_bytes(), word("x")],
            Kind::Quit => vec![word("QUIT")],
            Kind::ReplySkip | Kind::BadProtocol => Vec::new(),
            Kind::Queued | Kind::Exec | Kind::ExecAbort | Kind::Watch => Vec::new(),
        }
    }

    fn list_words(&mut self, client: usize, id: u32, kind: Kind, tag: usize) -> Vec<Vec<u8>> {
        let word = |text: &str| text.as_bytes().to_vec();
        if kind == Kind::Push {
            let key = match self.abandoned.pop() {
                Some(key) => key,
                None => self.list(client, tag),
            };
            let words = vec![word("RPUSH"), key.clone(), item(&key, id, 0)];
            return self.with_keys(id, words, vec![key]);
        }
        let key = self.list(client, tag);
        let mark = format!("{{t{tag}}}!{id}").into_bytes();
        // At the end there is an end to patience, too.
        let most = if self.settled_us.is_some() { 1 } else { 4 };
        let seconds = ["0.05", "0.3", "1", "2.5"][self.random.index(most)];
        let words = vec![word("BLPOP"), key.clone(), mark.clone(), word(seconds)];
        self.with_keys(id, words, vec![key, mark])
    }

    /// A list, mostly one that all share.
    fn list(&mut self, client: usize, tag: usize) -> Vec<u8> {
        match self.random.chance(600) {
            true => format!("{{t{tag}}}sl{}", self.random.below(self.parameters.keys)).into_bytes(),
            false => self.key(client, tag, 'l'),
        }
    }

    fn padding(&mut self, client: usize, scale: u64) -> usize {
        if self.random.chance(self.parameters.large) {
            self.clients[client].asked_large = true;
            let most = 200 * scale;
            let size = if self.random.chance(300) { most / 2 } else { 0 };
            return (size + self.random.skewed(most)) as usize;
        }
        if self.random.chance(100) { self.random.skewed(2_000) as usize } else { 0 }
    }

    fn many_keys(&mut self, client: usize, id: u32, kind: Kind) -> Vec<Vec<u8>> {
        let slots = 1 + self.random.skewed(3);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for _ in 0..slots {
            let tag = self.tag();
            for _ in 0..=self.random.skewed(2) {
                keys.push(self.key(client, tag, 'k'));
            }
            let marked = kind == Kind::Del || (kind != Kind::MSet && self.random.chance(300));
            if marked {
                keys.push(self.placed(client, format!("{{t{tag}}}!{id}").into_bytes()));
            }
        }
        let name = match kind {
            Kind::MGet => "mget",
            Kind::Del => "DEL",
            Kind::Exists => "EXISTS",
            _ => "MSET",
        };
        // The same key twice, or the same mark in two slots of one tag, says nothing new.
        let mut seen = std::collections::BTreeSet::new();
        let repeats = kind == Kind::MGet;
        keys.retain(|key| seen.insert(key.clone()) || (repeats && mark(key).is_none()));
        self.clients[client].asked_large |= kind == Kind::MGet && self.parameters.large > 0;
        let mut words = vec![name.as_bytes().to_vec()];
        for key in &keys {
            words.push(key.clone());
            if kind == Kind::MSet {
                words.push(item(key, id, 0));
            }
        }
        self.with_keys(id, words, keys)
    }

    fn with_keys(&mut self, id: u32, words: Vec<Vec<u8>>, keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        self.history.set_keys(id, keys);
        words
    }
}

pub fn encode_words(words: &[Vec<u8>]) -> Vec<u8> {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    encode(&words)
}

fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    words.iter().for_each(|word| out.extend(bulk(word)));
    out
}

/// What the nodes say of `MOD.APPEND key value`.
pub fn learned() -> Arc<Learned> {
    let text = |text: &str| Value::Bulk(text.as_bytes().to_vec());
    let flags = Value::Array(vec![Value::Simple(b"write".to_vec())]);
    let mut row = vec![text("mod.append"), Value::Integer(3), flags];
    row.extend([1, 1, 1].map(Value::Integer));
    Arc::new(Learned::from_command_reply(&Value::Array(vec![Value::Array(row)])))
}
