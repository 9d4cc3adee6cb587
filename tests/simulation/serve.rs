//! Connections to nodes, and nodes reading requests from them and answering.
//!
//! Not here: what a command does (`nodes`), how bytes travel (`network`).

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use ringway::cluster::slot_of;
use ringway::proxy::{Conn, Socket};

use crate::databases::with_prefix;
use crate::network::Peer;
use crate::nodes::{Answer, Login, Mood};
use crate::plant::Plant;
use crate::workload::encode_words;
use crate::world::{Event, World};

/// One connection, as a node has it.
#[derive(Debug)]
pub struct Link {
    pub node: usize,
    pub socket: Socket,
    pub up: bool,
    pub login: Login,
    input: Vec<u8>,
    serving: bool,
    /// Nothing passes any more: to the node, to the proxy.
    pub deaf: bool,
    pub mute: bool,
    /// Bytes answered, and how many of them the proxy has read.
    pub written: u64,
    pub read: u64,
    /// Channels, patterns and shard channels.
    pub subscriptions: BTreeSet<(usize, Vec<u8>)>,
    /// Where refusals end in the stream (`None`: not before the next reply), and whose they are.
    pub refusals: VecDeque<(Option<u64>, u32, usize)>,
    /// The last write that it was asked for, for `Plant::ResendLost`.
    pub last_write: Vec<Vec<u8>>,
    pub blocked: Option<crate::blocking::Blocked>,
    /// When the WAIT or WAITAOF that it is at will be over.
    pub waits_until: Option<u64>,
    /// The words of that WAITAOF.
    pub waits_by: Vec<Vec<u8>>,
    /// Its last write: how far the node has written with it, and when.
    pub far: u64,
    pub wrote_us: u64,
    /// It has been asked to pop.
    pub pops: bool,
    /// The proxy has closed it.
    pub ended: bool,
}

impl World {
    /// Checks that the address is one that the proxy may know, and begins to connect.
    pub fn connect(&mut self, backend: u32, address: SocketAddr) {
        if !self.named.contains(&address) || !self.cluster.addresses.contains(&address) {
            let text = format!("connects to {address}, which no node has named");
            return self.history.violate("addresses", text);
        }
        let parameters = &self.parameters;
        let (at_once, refused, hangs) = (
            parameters.connect_fails_at_once,
            parameters.connect_refused,
            parameters.connect_hangs,
        );
        let faulty = !self.healed;
        if faulty && self.random.chance(at_once) {
            let now = self.now();
            return self.proxy.handle_connected(backend, false, now);
        }
        let node = self.cluster.by_address(&address);
        let alive = node.filter(|&node| self.cluster.nodes[node].alive);
        let link = self.links.len();
        let peer = if alive.is_some() { Peer::Link(link) } else { Peer::Nobody };
        let socket = self.open_socket(Some(Conn::Backend(backend)), peer);
        self.proxy.handle_connecting(backend, socket);
        let at = self.now_us + 1 + self.random.below(2 * self.parameters.delay_us);
        let Some(node) = alive else {
            // A dead host answers with a refusal, or not at all.
            if self.random.chance(600) {
                self.at(at, Event::Connected { socket, ok: false });
            }
            return;
        };
        self.links.push(Link {
            node,
            socket,
            up: false,
            login: Login { authenticated: !self.parameters.password, ..Login::default() },
            input: Vec::new(),
            serving: false,
            deaf: false,
            mute: false,
            written: 0,
            read: 0,
            subscriptions: BTreeSet::new(),
            refusals: VecDeque::new(),
            last_write: Vec::new(),
            blocked: None,
            waits_until: None,
            waits_by: Vec::new(),
            far: 0,
            wrote_us: 0,
            pops: false,
            ended: false,
        });
        if faulty && self.random.chance(hangs) {
            return;
        }
        let ok = !(faulty && self.random.chance(refused));
        self.at(at, Event::Connected { socket, ok });
    }

    pub fn connected(&mut self, socket: Socket, ok: bool) {
        let Some(entry) = self.entry(socket) else { return };
        if entry.closing {
            return;
        }
        let peer = entry.peer;
        let mut ok = ok;
        if let Peer::Link(link) = peer {
            ok &= self.cluster.nodes[self.links[link].node].alive;
            self.links[link].up = ok;
            if ok {
                self.plant_resend(link);
            }
        }
        self.complete(crate::network::Completion::Connected { socket, ok });
        if let Peer::Link(link) = peer
            && ok
            && !self.healed
            && self.random.chance(self.parameters.greeting)
        {
            self.carry_to_proxy(socket, b"-ERR max number of clients reached\r\n".to_vec());
            if self.random.chance(500) {
                self.hang_up(link, false);
            } else {
                // It may still answer what comes before it gets to closing.
                let at = self.now_us + self.random.below(5_000);
                self.at(at, Event::HangUp { link });
            }
        }
    }

    /// The node ends a connection. `broken`: by a reset, so that bytes are lost. One that was
    /// killed between running and answering (mute) ends it as if nothing had been.
    pub fn hang_up(&mut self, link: usize, broken: bool) {
        let link = &mut self.links[link];
        if std::mem::replace(&mut link.up, false) {
            let socket = link.socket;
            link.subscriptions.clear();
            self.end_to_proxy(socket, broken);
            self.message_fault();
        }
    }

    pub fn link_gets(&mut self, link: usize, bytes: Vec<u8>) {
        let this = &mut self.links[link];
        if !this.up || this.deaf {
            return;
        }
        this.input.extend_from_slice(&bytes);
        self.serve_soon(link);
    }

    pub fn link_sees_end(&mut self, link: usize) {
        if self.end_blocked(link) {
            return;
        }
        self.links[link].ended = true;
        // What was read before the end is still run.
        if self.random.chance(500) {
            self.links[link].up = false;
        } else {
            self.links[link].mute = true;
        }
    }

    fn serve_soon(&mut self, link: usize) {
        let this = &mut self.links[link];
        if std::mem::replace(&mut this.serving, true) {
            return;
        }
        let stalled = self.cluster.nodes[this.node].stalled_until;
        let waits = this.waits_until.unwrap_or(0);
        let at = self.now_us + 1 + self.random.below(self.parameters.serve_us);
        let at = at.max(stalled).max(waits);
        self.at(at, Event::Serve { link });
    }

    /// The node runs what has come whole, or a part of it.
    pub fn serve(&mut self, link: usize) {
        self.links[link].serving = false;
        let node = self.links[link].node;
        if !self.links[link].up || !self.cluster.nodes[node].alive {
            return;
        }
        if self.cluster.nodes[node].stalled_until > self.now_us {
            return self.serve_soon(link);
        }
        let mut replies: Vec<Vec<u8>> = Vec::new();
        if let Some(until) = self.links[link].waits_until {
            if until > self.now_us {
                return self.serve_soon(link);
            }
            replies.push(self.end_wait(link));
        }
        let most = 1 + self.random.skewed(63) as usize;
        let mut commands = self.take_commands(link, most);
        let more = commands.len() == most;
        let swapped = self.plant_swap(link, &mut commands);
        let before = replies.len();
        let mut commands = commands.into_iter();
        for args in commands.by_ref() {
            if self.links[link].blocked.is_some() {
                self.history.violate("garbage", format!("behind what blocks came {args:?}"));
            }
            if args[0].starts_with(b"WAIT") {
                match self.begin_wait(link, &args) {
                    Some(reply) => replies.push(reply),
                    None => break,
                }
                continue;
            }
            let reply = self.run(link, &args);
            replies.push(reply);
        }
        // What is behind a WAIT is looked at later.
        let rest: Vec<u8> = commands.flat_map(|args| encode_words(&args)).collect();
        self.links[link].input.splice(..0, rest);
        for (one, other) in swapped {
            if before + other < replies.len() {
                replies.swap(before + one, before + other);
            }
        }
        self.plant_replies(&mut replies);
        let mut output: Vec<u8> = replies.concat();
        // A node that ends well has written what it had popped.
        let cut = !self.healed
            && self.random.chance(self.parameters.cut_in_reply)
            && !self.links[link].pops;
        if cut {
            output.truncate(self.random.index(output.len() + 1));
        }
        if more || self.links[link].waits_until.is_some() {
            self.serve_soon(link);
        }
        let this = &mut self.links[link];
        if !output.is_empty() && !this.mute && this.up {
            let socket = this.socket;
            self.carry_to_proxy(socket, output);
        }
        if cut {
            self.hang_up(link, false);
        }
    }

    fn take_commands(&mut self, link: usize, most: usize) -> Vec<Vec<Vec<u8>>> {
        let input = std::mem::take(&mut self.links[link].input);
        let mut at = 0;
        let mut commands = Vec::new();
        while at < input.len() && commands.len() < most {
            match parse(&input[at..]) {
                Ok(Some((args, len))) => {
                    commands.push(args);
                    at += len;
                }
                Ok(None) => break,
                Err(()) => {
                    let text = String::from_utf8_lossy(&input[at..]).into_owned();
                    let text: String = text.chars().take(200).collect();
                    self.history.violate("garbage", format!("a node was sent {text:?}"));
                    break;
                }
            }
        }
        self.links[link].input = input[at..].to_vec();
        commands
    }

    fn mood(&mut self) -> Mood {
        if self.healed || !self.random.chance(self.parameters.moody) {
            return Mood::Fine;
        }
        self.random.pick(&[
            Mood::TryAgain,
            Mood::ClusterDown,
            Mood::Loading,
            Mood::MasterDown,
            Mood::ReadOnly,
            Mood::Misconf,
        ])
    }

    fn run(&mut self, link: usize, args: &[Vec<u8>]) -> Vec<u8> {
        if self.links[link].login.authenticated
            && let Some(reply) = self.run_pubsub(link, args)
        {
            self.links[link].written += reply.len() as u64;
            return reply;
        }
        let mood = self.mood();
        let args = &with_prefix(self.links[link].login.database, args)[..];
        self.history.tick += 1;
        let now_us = self.now_us;
        let node = self.links[link].node;
        if self.plant == Plant::IgnoreAsking {
            self.links[link].login.asking = false;
        }
        if self.plant == Plant::IgnoreWatch {
            self.cluster.unwatch(&mut self.links[link].login);
        }
        self.history.now_us = now_us;
        let login = &mut self.links[link].login;
        let mut answer = self.cluster.execute(node, login, args, mood, now_us);
        self.count_write(link, args, &answer);
        let shown = || {
            let words: Vec<_> = args.iter().map(|word| text_of(word, 40)).collect();
            format!("node {node} link {link} runs {words:?} -> {}", text_of(&answer.reply, 80))
        };
        self.note(answer.reply.len() as u64 | 7 << 40, shown);
        if answer.reply.first() != Some(&b'-') {
            for key in self.cluster.forked(node, args) {
                if self.history.moves_since(slot_of(&key), 0) >= 1 {
                    self.history.forked.insert(key);
                }
            }
        }
        if !answer.ran.is_empty() {
            self.links[link].last_write = args.to_vec();
        }
        self.touch(node, &answer.changed);
        for (key, value) in std::mem::take(&mut answer.changed) {
            self.history.changed(key, value.as_deref());
        }
        if answer.reply.starts_with(b"-NOSCRIPT") {
            self.history.unknown += 1;
        }
        for (place, (id, key, result)) in std::mem::take(&mut answer.ran).into_iter().enumerate() {
            self.history.tick += u64::from(self.plant == Plant::TearExec && place > 0);
            self.history.ran(id, key, result, link);
        }
        if let Some(id) = answer.watched {
            self.history.watches.insert(id, self.history.tick);
            self.watching.insert(link);
        }
        if answer.blocks {
            self.block(link, args);
            return Vec::new();
        }
        self.links[link].pops |= args[0] == b"BLPOP";
        let pushed = args[0].eq_ignore_ascii_case(b"RPUSH") || args[0] == b"EXEC";
        self.count_reply(link, &answer);
        if pushed {
            self.wake_blocked(node);
        }
        let (stray, resp3) = (self.parameters.stray_frames, self.links[link].login.resp3);
        let mut reply = answer.reply;
        if resp3 && !self.healed && self.random.chance(stray) {
            let push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nx\r\n";
            reply.extend_from_slice(push);
            self.links[link].written += push.len() as u64;
        }
        reply
    }
}

impl World {
    /// How far the node has written with this.
    fn count_write(&mut self, link: usize, args: &[Vec<u8>], answer: &Answer) {
        let (node, now_us) = (self.links[link].node, self.now_us);
        let restored = args[0] == b"FUNCTION" && answer.reply.first() == Some(&b'+');
        let restored = restored && self.plant != Plant::SkipEmptyWrite;
        let writes = restored || !answer.changed.is_empty();
        let stream = &mut self.cluster.nodes[node].stream;
        self.history.written = (node, stream.write(writes, now_us));
        if writes {
            (self.links[link].far, self.links[link].wrote_us) = (self.history.written.1, now_us);
        }
    }

    /// Where in the stream a reply ends, and whose refusal it is.
    fn count_reply(&mut self, link: usize, answer: &Answer) {
        let this = &mut self.links[link];
        this.written += answer.reply.len() as u64;
        if let Some((None, _, _)) = this.refusals.back() {
            let written = this.written;
            this.refusals
                .iter_mut()
                .filter(|of| of.0.is_none())
                .for_each(|of| of.0 = Some(written));
        }
        if answer.reply.first() == Some(&b'-') {
            self.history.disturbed();
            self.redirects_seen += 1;
        }
        if let Some((id, slot)) = answer.refused {
            let end = (!answer.fenced).then_some(self.links[link].written);
            let number = self.history.refused(id, slot, link);
            self.links[link].refusals.push_back((end, id, number));
        }
    }
}

/// One whole request in canonical form, and its length.
#[allow(clippy::type_complexity, reason = "words and a length")]
pub fn parse(bytes: &[u8]) -> Result<Option<(Vec<Vec<u8>>, usize)>, ()> {
    let line = |at: usize, kind: u8| -> Result<Option<(usize, usize)>, ()> {
        let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) else { return Ok(None) };
        if rest[0] != kind {
            return Err(());
        }
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
        let digits = rest[1..end].strip_suffix(b"\r").ok_or(())?;
        let number = std::str::from_utf8(digits).map_err(drop)?.parse().map_err(drop)?;
        Ok(Some((number, at + end + 1)))
    };
    let Some((count, mut at)) = line(0, b'*')? else { return Ok(None) };
    let mut args = Vec::new();
    for _ in 0..count {
        let Some((len, start)) = line(at, b'$')? else { return Ok(None) };
        let Some(word) = bytes.get(start..start + len + 2) else { return Ok(None) };
        if !word.ends_with(b"\r\n") {
            return Err(());
        }
        args.push(word[..len].to_vec());
        at = start + len + 2;
    }
    if args.is_empty() { Err(()) } else { Ok(Some((args, at))) }
}

pub fn text_of(bytes: &[u8], most: usize) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).replace("\r\n", "␍")
}
