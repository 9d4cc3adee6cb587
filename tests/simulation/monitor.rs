//! MONITOR in the model: clients that watch what others ask, and the checker *monitor*: whoever
//! watches gets answers to what it asked itself, and lines; each line is a request that a client of
//! this pool has made, shown once and in that client's order; nobody's lines take more memory than
//! `pubsub_output_limit`.
//!
//! Not here: that others get no lines (`checker`: they would be no answers to what they asked).

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use ringway::proxy::local::client::ClientFilter;
use ringway::proxy::peers::{Query, Told};
use ringway::proxy::{Now, Socket};

use crate::handover::addresses_of;
use crate::network::Peer;
use crate::plant::Plant;
use crate::serve::{parse, text_of};
use crate::workload::encode_words;
use crate::world::{FRONT_PASSWORD, World};

/// Who asks at another reactor of the same pool.
const SIBLING: &str = "10.9.1.1:1";

/// How often clients' outputs are looked at, in turns.
const LOOK_TURNS: u64 = 64;

/// What a client that watches may be owed beside lines.
const OWN_BYTES_MAX: usize = 200;

/// So many words of a request are shown, and so many bytes of each.
const WORDS_SHOWN: usize = 32;
const BYTES_SHOWN: usize = 256;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Ask {
    Login,
    Monitor,
    Ping,
    /// What it may not ask.
    Get,
    Reset,
}

/// A client that watches, and asks little beside.
#[derive(Debug, Default)]
pub struct Watcher {
    pending: VecDeque<Ask>,
    logged_in: bool,
    /// From the answer to MONITOR to that to RESET.
    watches: bool,
    /// How many requests of a client were before its last line.
    places: BTreeMap<usize, usize>,
    /// The last of another reactor's.
    sibling: u64,
}

/// What there is to be shown.
#[derive(Debug, Default)]
pub struct Shown {
    /// Requests of each client, as lines show them.
    asked: BTreeMap<usize, Vec<String>>,
    siblings: u64,
    /// Lines that were judged.
    pub lines: u64,
}

impl World {
    pub fn add_watchers(&mut self) {
        for _ in 0..self.parameters.watchers {
            let client = self.add_client(0, true);
            self.clients[client].watcher = Some(Box::default());
            if self.random.chance(400) {
                self.clients[client].read_nothing();
            }
        }
    }

    pub fn watcher_acts(&mut self, client: usize) {
        let Some(mut watcher) = self.clients[client].watcher.take() else { return };
        let mut bytes = Vec::new();
        if watcher.pending.is_empty() {
            for ask in self.next_asks(&mut watcher) {
                let words: &[&[u8]] = match ask {
                    Ask::Login => &[b"AUTH", FRONT_PASSWORD],
                    Ask::Monitor => &[b"MONITOR"],
                    Ask::Ping => &[b"PING"],
                    Ask::Get => &[b"GET", b"{t0}watched"],
                    Ask::Reset => &[b"RESET"],
                };
                let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
                bytes.extend(encode_words(&words));
                watcher.pending.push_back(ask);
            }
        }
        self.clients[client].watcher = Some(watcher);
        if let Some(socket) = self.clients[client].socket
            && !bytes.is_empty()
        {
            self.carry_to_proxy(socket, bytes);
        }
        let think = if self.healed { 200_000 } else { 20_000 };
        let at = self.now_us + 1 + self.random.below(think);
        self.at(at, crate::world::Event::Client { client });
    }

    fn next_asks(&mut self, watcher: &mut Watcher) -> Vec<Ask> {
        if !watcher.watches {
            let login = self.parameters.login && !std::mem::replace(&mut watcher.logged_in, true);
            return if login { vec![Ask::Login, Ask::Monitor] } else { vec![Ask::Monitor] };
        }
        match self.random.below(100) {
            0..5 => vec![Ask::Ping],
            5..8 => vec![Ask::Get],
            8..11 => vec![Ask::Reset],
            11..13 => vec![Ask::Ping, Ask::Reset],
            _ => Vec::new(),
        }
    }

    /// A client sends requests: they may be shown.
    pub fn note_asked(&mut self, client: usize, mut bytes: &[u8]) {
        if self.parameters.watchers == 0 {
            return;
        }
        while !bytes.is_empty() {
            let (words, len) = match bytes.first() {
                Some(b'*') => match parse(bytes) {
                    Ok(Some(found)) => found,
                    // What no server takes for a request.
                    _ => return,
                },
                _ => inline(bytes),
            };
            bytes = &bytes[len..];
            let secret =
                [&b"AUTH"[..], b"HELLO"].iter().any(|of| words[0].eq_ignore_ascii_case(of));
            if !secret {
                self.shown.asked.entry(client).or_default().push(as_shown(&words));
            }
        }
    }

    /// A client that watches gets something.
    pub fn watcher_hears(&mut self, client: usize, raw: &[u8]) {
        let Some(mut watcher) = self.clients[client].watcher.take() else { return };
        let verdict = match line_of(raw) {
            Some((peer, words)) => self.judge_line(&mut watcher, peer, words),
            None => watcher.take_answer(raw),
        };
        if let Err(why) = verdict {
            let text = format!("client {client} got {:?}: {why}", text_of(raw, 300));
            self.history.violate("monitor", text);
        }
        self.clients[client].watcher = Some(watcher);
    }

    fn judge_line(
        &mut self,
        watcher: &mut Watcher,
        peer: &str,
        words: &str,
    ) -> Result<(), &'static str> {
        self.shown.lines += 1;
        if !watcher.watches {
            return Err("a line, and it does not watch");
        }
        if peer == SIBLING {
            let number =
                words.strip_prefix("\"GET\" \"sibling").and_then(|of| of.strip_suffix('"'));
            let number = number.and_then(|text| text.parse().ok()).unwrap_or(0);
            let new = number > watcher.sibling && number <= self.shown.siblings;
            watcher.sibling = number;
            return if new { Ok(()) } else { Err("shown before, or by nobody") };
        }
        let address: SocketAddr = peer.parse().map_err(|_| "no address")?;
        let client = (0..self.clients.len()).find(|&client| addresses_of(client).0 == address);
        let client = client.ok_or("no client of this pool has this address")?;
        let asked = self.shown.asked.get(&client).map_or(&[][..], Vec::as_slice);
        let place = watcher.places.entry(client).or_default();
        let found = asked[*place..].iter().position(|request| request == words);
        *place += found.ok_or("not asked by that client, or shown before")? + 1;
        Ok(())
    }

    /// At the end of a turn: what other reactors show, and how much is held for those who watch.
    pub fn look_after_watchers(&mut self, now: Now) {
        if self.parameters.watchers == 0 {
            return;
        }
        if self.random.chance(20) {
            self.shown.siblings += 1;
            let words = format!("\"GET\" \"sibling{}\"", self.shown.siblings);
            let line = format!("+1700000000.000001 [0 {SIBLING}] {words}\r\n");
            self.proxy.handle_shown(line.as_bytes(), now);
        }
        if self.plant == Plant::ForeignLines && self.random.chance(20) {
            let line = b"+1700000000.000001 [0 10.8.0.1:1000] \"GET\" \"of another pool\"\r\n";
            self.proxy.handle_shown(line, now);
        }
        if self.turns % LOOK_TURNS == 0 {
            for process in self.processes() {
                self.as_process(process, |world| world.check_lines_held(now));
            }
        }
    }

    fn check_lines_held(&mut self, now: Now) {
        let query = Query::List(ClientFilter::default());
        let Told::Lines(lines) = self.proxy.handle_asked(1, &query, now) else { return };
        let lines = String::from_utf8_lossy(&lines).into_owned();
        let limit = self.parameters.proxy.line_limit + OWN_BYTES_MAX;
        for line in lines.lines() {
            let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name));
            let watches = field("flags=").is_some_and(|flags| flags.contains('O'));
            let held: usize = field("obl=").and_then(|text| text.parse().ok()).unwrap_or(0);
            if watches && held > limit {
                self.history.violate("monitor", format!("{held} bytes are held: {line}"));
            }
        }
    }

    /// A reply of somebody else's goes to a client that watches.
    pub fn plant_mixed(&mut self, socket: Socket, bytes: &mut Vec<u8>) {
        if self.plant != Plant::MixReplies || !bytes.ends_with(b"\r\n") {
            return;
        }
        let peer = self.entry(socket).map(|entry| entry.peer);
        if let Some(Peer::Client(client)) = peer
            && self.clients[client].watcher.is_some()
            && self.random.chance(50)
        {
            bytes.extend_from_slice(b":1\r\n");
        }
    }
}

impl Watcher {
    fn take_answer(&mut self, raw: &[u8]) -> Result<(), &'static str> {
        let ask = self.pending.pop_front().ok_or("nothing was asked, and it is no line")?;
        let expected: &[u8] = match ask {
            Ask::Login | Ask::Monitor => b"+OK\r\n",
            Ask::Ping => b"+PONG\r\n",
            Ask::Get => b"-ERR only PING / QUIT / RESET are allowed after MONITOR\r\n",
            Ask::Reset => b"+RESET\r\n",
        };
        self.watches |= ask == Ask::Monitor;
        if ask == Ask::Reset {
            (self.watches, self.logged_in) = (false, false);
        }
        if raw == expected { Ok(()) } else { Err("not the answer to what it asked") }
    }
}

/// `+seconds.micros [database peer] words`: the peer and the words.
fn line_of(raw: &[u8]) -> Option<(&str, &str)> {
    let text = std::str::from_utf8(raw).ok()?.strip_prefix('+')?.strip_suffix("\r\n")?;
    let (time, rest) = text.split_once(" [")?;
    let is_time = time.split_once('.').is_some_and(|(seconds, micros)| {
        micros.len() == 6
            && [seconds, micros].iter().all(|of| of.bytes().all(|b| b.is_ascii_digit()))
    });
    let (place, words) = rest.split_once("] ").filter(|_| is_time)?;
    Some((place.split_once(' ')?.1, words))
}

/// As a line shows them. No client of the model asks what would have to be quoted.
fn as_shown(words: &[Vec<u8>]) -> String {
    let one = |word: &Vec<u8>| {
        let text = String::from_utf8_lossy(&word[..word.len().min(BYTES_SHOWN)]);
        match word.len().checked_sub(BYTES_SHOWN + 1) {
            None => format!("\"{text}\""),
            Some(more) => format!("\"{text}... ({} more bytes)\"", more + 1),
        }
    };
    let mut shown: Vec<String> = words.iter().take(WORDS_SHOWN).map(one).collect();
    if words.len() > WORDS_SHOWN {
        shown.push(format!("\"... ({} more arguments)\"", words.len() - WORDS_SHOWN));
    }
    shown.join(" ")
}

/// An inline request, and its length.
fn inline(bytes: &[u8]) -> (Vec<Vec<u8>>, usize) {
    let len = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
    let words = bytes[..len].trim_ascii_end().split(|&byte| byte == b' ');
    (words.filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect(), len)
}
