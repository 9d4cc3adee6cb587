//! PROXY: what a client asks of the proxy itself, and of single nodes.
//!
//! `PROXY NODE` runs one command at one node, whatever it is, over a backend that nobody else has
//! and that is closed behind it: no state that it leaves in the connection outlives it, and what it
//! answers reaches nobody but its client. Redirects are shown as they are. Only the user that the
//! configuration names (`admin_user`) may.
//!
//! Not here: the texts of HELP (`local`), private backends (`private`).

use std::fmt::Write;

use super::Proxy;
use super::dispatch::{Asked, Ran};
use super::hot_keys::KeyQuery;
use super::launch::Bytes;
use super::local::{self, LogQuery, errors};
use super::peers::Query;
use super::request::{Marks, State};
use super::split::Merge;
use super::types::NO_SLOT;
use crate::cluster::{Role, SLOTS};
use crate::command::{self, Args, Class};
use crate::resp::number::read_integer;
use crate::resp::request::encode_request;
use crate::resp::{Version, write};

/// In `Request::command`: run at one node for an admin.
pub(super) const AT_NODE: u16 = u16::MAX - 1;

/// They take the connection to where one reply for one command is not what comes.
const NEVER_AT_NODE: [&str; 8] =
    ["MULTI", "WATCH", "MONITOR", "SYNC", "PSYNC", "CLIENT|REPLY", "REPLCONF", "HELLO"];

/// Entries of PROXY SLOWLOG when no number is given.
const SLOW_SHOWN: i64 = 10;

impl Proxy {
    /// A command that begins with PROXY. Its name is no server's, so it stands in no table.
    pub(super) fn run_own(&mut self, c: u32, args: &Args) -> Ran {
        if !self.clients[c].session.authenticated {
            return self.answer_with(c, |out| errors::noauth(out, "PROXY"));
        }
        if self.is_queuing(c) {
            self.fail_transaction(c);
            return self.answer_with(c, errors::not_in_multi);
        }
        let Some(stand_in) = command::find(b"PING") else { return Ran::Yes };
        let session = &self.clients[c].session;
        if session.subscriptions > 0 && session.version == Version::Resp2 {
            return self.answer_with(c, |out| errors::subscribed_only(out, "PROXY"));
        }
        let asked = Asked { client: c, command: stand_in, marks: self.marks_of(c, stand_in) };
        let sub = args.get(1).unwrap_or_default().to_ascii_uppercase();
        let ran = match (sub.as_slice(), args.len()) {
            (b"HELP", 2) => return self.answer_with(c, local::proxy_help),
            (b"PING", 2) => self.ping_nodes(asked),
            (b"NODES", 2) if !self.is_admin(c) => return self.refuse_user(c, "proxy|nodes"),
            (b"NODES", 2) => return self.list_nodes(c),
            (b"NODE", 4..) if !self.is_admin(c) => return self.refuse_user(c, "proxy|node"),
            (b"NODE", 4..) => self.run_at_node(asked, args),
            (b"HOTKEYS" | b"BIGKEYS", 2..=3) if !self.is_admin(c) => {
                let name = if sub == b"HOTKEYS" { "proxy|hotkeys" } else { "proxy|bigkeys" };
                return self.refuse_user(c, name);
            }
            (b"HOTKEYS" | b"BIGKEYS", 2..=3) => match key_query(&sub, args.get(2)) {
                _ if !self.key_watch.is_on() => return self.answer_with(c, errors::keys_unseen),
                Some(_) if self.waits_for_elders(c) => Ran::HoldBack,
                Some(query) => self.inquire(asked, args, Query::Keys(query)),
                None => return self.answer_with(c, errors::syntax),
            },
            (b"SLOWLOG", 2..=3) if !self.is_admin(c) => {
                return self.refuse_user(c, "proxy|slowlog");
            }
            (b"SLOWLOG", 2..=3) => match args.get(2).map_or(Some(SLOW_SHOWN), read_integer) {
                Some(count @ 0..) if !self.waits_for_elders(c) => {
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    self.inquire(asked, args, Query::SlowLog(LogQuery::Shares(count)))
                }
                Some(0..) => Ran::HoldBack,
                _ => return self.answer_with(c, errors::not_integer),
            },
            #[cfg(debug_assertions)]
            (b"FAIL", 3) if self.is_admin(c) => {
                fail_on_purpose(args.get(2).unwrap_or_default());
                return self.answer_with(c, |out| out.extend_from_slice(b"+OK\r\n"));
            }
            (b"HELP" | b"PING" | b"NODES" | b"NODE" | b"HOTKEYS" | b"BIGKEYS" | b"SLOWLOG", _) => {
                let name = format!("PROXY|{}", String::from_utf8_lossy(&sub));
                return self.answer_with(c, |out| errors::wrong_arity(out, &name));
            }
            (b"", _) => return self.answer_with(c, |out| errors::wrong_arity(out, "PROXY")),
            _ => {
                let sub = args.get(1).unwrap_or_default();
                return self.answer_with(c, |out| errors::unknown_subcommand(out, "PROXY", sub));
            }
        };
        if ran == Ran::Yes {
            self.clients[c].session.command_done();
        }
        ran
    }

    /// Whether the client is logged in as the user that may see and do everything.
    pub(super) fn is_admin(&self, c: u32) -> bool {
        let session = &self.clients[c].session;
        session.authenticated && self.identity.admin_user.as_deref() == Some(session.user_name())
    }

    pub(super) fn refuse_user(&mut self, c: u32, command: &str) -> Ran {
        let user = self.clients[c].session.user_name().to_owned();
        self.answer_with(c, |out| errors::no_permission(out, &user, command))
    }

    /// Every primary that owns slots is asked, and answers.
    fn ping_nodes(&mut self, asked: Asked) -> Ran {
        let mut ping = Vec::new();
        encode_request([b"PING".as_slice()].into_iter(), &mut ping);
        let asked = Asked { marks: asked.marks.with(Marks::RETRY_SAFE), ..asked };
        let args = Args { bytes: &ping, spans: &[] };
        self.ask_primaries(asked, &args, Merge::AllSucceeded, &[])
    }

    /// One line for each node of the map: id, address, role, slots, state.
    fn list_nodes(&mut self, c: u32) -> Ran {
        let mut text = String::new();
        let Some(topology) = self.topology.clone() else {
            return self.answer_with(c, errors::no_map);
        };
        let mut counts = vec![0_u32; topology.nodes.len()];
        for slot in 0..SLOTS {
            if let Some(count) = counts.get_mut(usize::from(topology.owners[slot])) {
                *count += 1;
            }
        }
        for (node, slots) in topology.nodes.iter().zip(counts) {
            let role = if node.role == Role::Primary { "primary" } else { "replica" };
            let healthy = if node.healthy { "ok" } else { "failing" };
            let reached = node.address.map_or("unresolved".into(), |at| at.to_string());
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "id={} announced={}:{} address={reached} role={role} shard={} slots={slots} \
                 state={healthy}",
                node.id, node.endpoint.host, node.endpoint.port, node.shard,
            );
        }
        let version = self.clients[c].session.version;
        self.answer_with(c, |out| write::verbatim(out, version, b"txt", text.as_bytes()))
    }

    /// `PROXY NODE <id> <command…>`
    fn run_at_node(&mut self, asked: Asked, args: &Args) -> Ran {
        let c = asked.client;
        if self.waits_for_elders(c) {
            return Ran::HoldBack;
        }
        let words: Vec<&[u8]> = args.iter().skip(3).collect();
        let mut bytes = Vec::new();
        encode_request(words.iter().copied(), &mut bytes);
        if is_never_sent(&words) {
            let name = words.first().copied().unwrap_or_default();
            let name = String::from_utf8_lossy(name).to_ascii_uppercase();
            let mut out = Vec::new();
            errors::refused(&mut out, &name);
            self.reply_local(c, &out, !asked.marks.has(Marks::SILENT));
            return Ran::Yes;
        }
        let Some(node) = self.node_named(args.get(2).unwrap_or_default()) else {
            let mut out = Vec::new();
            errors::unknown_node(&mut out);
            self.reply_local(c, &out, !asked.marks.has(Marks::SILENT));
            return Ran::Yes;
        };
        let marks = asked.marks.with(Marks::PRIVATE).with(Marks::BY_NODE);
        let r = self.open_for(Asked { marks, ..asked }, NO_SLOT);
        let entry = &mut self.requests[r];
        entry.command = AT_NODE;
        entry.node = node;
        entry.state = State::Held;
        self.clients[c].push(r, &mut self.requests);
        self.clients[c].barrier = true;
        self.launch(r, Bytes::Own(bytes));
        Ran::Yes
    }

    /// Over a backend of its own that is closed behind it.
    pub(super) fn launch_at_node(&mut self, r: u32, node: u16, version: Version, bytes: Bytes) {
        let c = self.requests[r].client;
        let Some(b) = self.lend_private(c, node, version) else {
            return self.fail(r, errors::private_cap);
        };
        self.backends[b as usize].spoilt = true;
        self.enqueue(r, b, bytes);
    }

    /// Whether what a node says to this request is passed on as it is, whatever it is.
    pub(super) fn is_at_node(&self, r: u32) -> bool {
        self.requests[r].command == AT_NODE
    }

    /// By its id, or as it is announced or reached.
    fn node_named(&self, name: &[u8]) -> Option<u16> {
        let name = std::str::from_utf8(name).ok()?;
        let is_meant = |node: &&crate::cluster::Node| {
            let announced = format!("{}:{}", node.endpoint.host, node.endpoint.port);
            let reached = node.address.map(|address| address.to_string());
            *node.id == *name || announced == name || reached.as_deref() == Some(name)
        };
        let node = self.topology.as_ref()?.nodes.iter().find(is_meant)?;
        self.nodes.by_address(&node.address?)
    }
}

fn key_query(sub: &[u8], word: Option<&[u8]>) -> Option<KeyQuery> {
    let hot = sub == b"HOTKEYS";
    match word {
        None => Some(if hot { KeyQuery::Hot } else { KeyQuery::Big }),
        Some(word) if word.eq_ignore_ascii_case(b"RESET") => {
            Some(if hot { KeyQuery::ForgetHot } else { KeyQuery::ForgetBig })
        }
        Some(_) => None,
    }
}

fn is_never_sent(words: &[&[u8]]) -> bool {
    let mut bytes = Vec::new();
    let mut spans = Vec::new();
    for word in words {
        let start = bytes.len() as u32;
        bytes.extend_from_slice(word);
        spans.push(crate::resp::Span { start, end: bytes.len() as u32 });
    }
    let args = Args { bytes: &bytes, spans: &spans };
    match command::lookup(&args) {
        Ok(command) => {
            let subscribes = command.class == Class::PubSub && command.name.ends_with("SUBSCRIBE");
            let blocks = command.class == Class::Blocking && command::blocks(command, &args);
            subscribes || blocks || NEVER_AT_NODE.contains(&command.name)
        }
        Err(_) => false,
    }
}

/// For tests of what watches over reactors: no build for use has it.
#[cfg(debug_assertions)]
fn fail_on_purpose(how: &[u8]) {
    assert!(how != b"PANIC", "asked to panic");
    if how == b"SPIN" {
        loop {
            std::hint::spin_loop();
        }
    }
}
