//! What clients ask of pub/sub and are given: subscribing, confirmations, messages.
//!
//! A SUBSCRIBE waits until all that its client asked before is answered, and what the client asks
//! after waits for it: so the confirmations stand where a server would put them. They are written
//! when the nodes have confirmed; from then on the client's messages follow. A message is never put
//! into the middle of a reply.
//!
//! Not here: the tables (`pubsub`), how a request about many channels goes on (`joins`), nodes
//! (`subscriber`), PUBSUB (`introspect`).

use std::sync::Arc;

use super::client::Phase;
use super::dispatch::{Asked, Ran, Source};
use super::joins::NAMES_AT_ONCE;
use super::launch::Bytes;
use super::local::errors;
use super::pubsub::{Join, Kind, Leaves, Names, Subscriptions};
use super::request::{Marks, State};
use super::split::Merge;
use super::types::NO_SLOT;
use super::{Action, Note, Proxy};
use crate::cluster::slot_of;
use crate::command::{Args, Command};
use crate::limits::DEAF_MS_MAX;
use crate::resp::{Version, write};

impl Proxy {
    pub(super) fn run_pubsub(&mut self, asked: Asked, args: &Args) -> Ran {
        match asked.command.name {
            "SUBSCRIBE" => self.run_subscribe(asked, args, Kind::Channel),
            "PSUBSCRIBE" => self.run_subscribe(asked, args, Kind::Pattern),
            "SSUBSCRIBE" => self.run_subscribe(asked, args, Kind::Shard),
            "UNSUBSCRIBE" => self.run_unsubscribe(asked, args, Kind::Channel),
            "PUNSUBSCRIBE" => self.run_unsubscribe(asked, args, Kind::Pattern),
            "SUNSUBSCRIBE" => self.run_unsubscribe(asked, args, Kind::Shard),
            "PUBLISH" | "SPUBLISH" => self.run_publish(asked, args),
            _ => self.run_introspection(asked, args),
        }
    }

    /// By the channel's slot, so that one channel's messages keep their order. The node counts each
    /// backend of ours that it sends the message to as one receiver: in their place the clients are
    /// counted, those of other reactors by asking them (`receivers`).
    fn run_publish(&mut self, asked: Asked, args: &Args) -> Ran {
        let channel = args.get(1).unwrap_or_default();
        let slot = slot_of(channel);
        let sharded = asked.command.name == "SPUBLISH";
        // Each pattern is compared with the channel.
        self.crowd.effort += self.topics.count(Kind::Pattern) as u64 / 8;
        let more = self.own_receivers(sharded, channel);
        let elsewhere = self.counts_elsewhere();
        if more == 0 && !elsewhere {
            self.launch_single(asked, slot, Source::Borrowed(args.bytes));
            return Ran::Yes;
        }
        let s = self.open_parent(asked, Merge::Sum);
        self.splits[s].adjust.push(more);
        self.open_part(asked, s, slot);
        if elsewhere {
            self.open_elsewhere(asked, s, sharded, channel);
        }
        self.launch_part(s, 0, Bytes::Copy(args.bytes));
        Ran::Yes
    }

    /// What a subscribed client may not ask, or not yet. `None`: let it be run.
    pub(super) fn check_subscribed(&mut self, c: u32, command: &Command) -> Option<Ran> {
        let session = &self.clients[c].session;
        if session.subscriptions == 0 {
            return None;
        }
        if session.version == Version::Resp2 && !allowed_while_subscribed(command.name) {
            return Some(self.answer_with(c, |out| errors::subscribed_only(out, command.name)));
        }
        if command.name == "RESET" && session.subscriptions as usize > NAMES_AT_ONCE {
            self.leave_all(c);
            return Some(Ran::HoldBack);
        }
        // Messages change their form where the answer to HELLO says so.
        let waits = command.name == "HELLO" && self.waits_for_elders(c);
        waits.then_some(Ran::HoldBack)
    }

    fn run_subscribe(&mut self, asked: Asked, args: &Args, kind: Kind) -> Ran {
        let c = asked.client;
        if self.waits_for_elders(c) {
            return Ran::HoldBack;
        }
        let r = self.open_subscribing(asked);
        let names = Some(Names::of(kind, args));
        let listed = args.len() > NAMES_AT_ONCE;
        self.topics.joins.insert(r, Join { names, listed, ..Join::new(c, self.now.ms) });
        if listed {
            self.topics.unfinished.push_back(r);
        } else {
            let mut all = usize::MAX;
            self.join_some(r, &mut all);
        }
        Ran::Yes
    }

    /// Opens an entry that is answered when subscriptions are what it wants.
    fn open_subscribing(&mut self, asked: Asked) -> u32 {
        let mut marks = asked.marks;
        // Confirmations are pushes: CLIENT REPLY does not touch them.
        marks.unset(Marks::SILENT);
        let r = self.open_for(Asked { marks, ..asked }, NO_SLOT);
        self.requests[r].state = State::Subscribing;
        self.clients[asked.client].push(r, &mut self.requests);
        self.clients[asked.client].barrier = true;
        r
    }

    fn run_unsubscribe(&mut self, asked: Asked, args: &Args, kind: Kind) -> Ran {
        let c = asked.client;
        let of_kind = |of: &Subscriptions| of.of_kind(kind).len();
        let count = match args.len() {
            1 => self.clients[c].subscribed.as_deref().map_or(0, of_kind),
            words => words - 1,
        };
        self.crowd.effort += count as u64;
        if count > NAMES_AT_ONCE {
            if self.waits_for_elders(c) {
                return Ran::HoldBack;
            }
            let r = self.open_subscribing(asked);
            let from = match args.len() {
                1 => Leaves::Kind(kind),
                _ => Leaves::Names(Names::of(kind, args)),
            };
            self.leave_in_pieces(c, r, from, Vec::new());
            return Ran::Yes;
        }
        let version = self.clients[c].session.version;
        let verb = kind.verb(false);
        let mut out = Vec::new();
        let named: Vec<(Option<u32>, std::sync::Arc<[u8]>)> = if args.len() > 1 {
            args.iter().skip(1).map(|name| (self.topics.find(kind, name), name.into())).collect()
        } else {
            let subscribed = self.clients[c].subscribed.as_deref();
            let all = subscribed.into_iter().flat_map(|of| of.of_kind(kind));
            all.map(|&t| (Some(t), self.topics[t].name.clone())).collect()
        };
        for (topic, name) in &named {
            if let Some(t) = topic {
                self.leave_topic(c, *t);
            }
            confirm(&mut out, version, verb, Some(name), self.count_of(c, kind));
        }
        if named.is_empty() {
            confirm(&mut out, version, verb, None, self.count_of(c, kind));
        }
        self.reply_local(c, &out, true);
        Ran::Yes
    }

    pub(super) fn count_of(&self, c: u32, kind: Kind) -> usize {
        self.clients[c].subscribed.as_ref().map_or(0, |subscribed| subscribed.count(kind))
    }

    pub(super) fn leave_topic(&mut self, c: u32, t: u32) {
        let (kind, name_len) = (self.topics[t].kind, self.topics[t].name.len());
        let client = &mut self.clients[c];
        let Some(subscribed) = client.subscribed.as_mut() else { return };
        if !subscribed.remove(kind, t, name_len) {
            return;
        }
        if subscribed.total() == 0 && subscribed.held.is_empty() {
            client.subscribed = None;
        }
        self.count_subscriptions(c);
        self.remove_subscriber(t, c);
    }

    /// Notes in its session how many subscriptions a client has.
    pub(super) fn count_subscriptions(&mut self, c: u32) {
        let client = &mut self.clients[c];
        let count = client.subscribed.as_ref().map_or(0, |subscribed| subscribed.total());
        let before = std::mem::replace(&mut client.session.subscriptions, count as u32);
        client.refresh_plain();
        self.topics.clients += usize::from(count > 0);
        self.topics.clients -= usize::from(before > 0);
    }

    fn remove_subscriber(&mut self, t: u32, c: u32) {
        let topic = &mut self.topics[t];
        topic.remove(c);
        if topic.subscribers.is_empty() {
            self.settle_topic(t);
        }
    }

    /// RESET, or the client is gone.
    pub(super) fn drop_subscriptions(&mut self, c: u32) {
        let many = |of: &Subscriptions| of.total() > NAMES_AT_ONCE;
        if self.clients[c].subscribed.as_deref().is_some_and(many) {
            return self.leave_all(c);
        }
        let Some(subscribed) = self.clients[c].subscribed.take() else { return };
        self.count_subscriptions(c);
        for t in subscribed.all() {
            self.remove_subscriber(t, c);
        }
        if !subscribed.held.is_empty() && self.clients[c].phase == Phase::Open {
            // They came before; a reply is still being passed on.
            let mut kept = Box::<Subscriptions>::default();
            kept.held = subscribed.held;
            self.clients[c].subscribed = Some(kept);
        }
    }

    /// Gives a message to all who want it. `frame` is as the node sent it, a push.
    pub(super) fn deliver_message(&mut self, t: u32, frame: &[u8]) {
        let subscribers = std::mem::take(&mut self.topics[t].subscribers);
        let mut over = Vec::new();
        let mut message = Message { frame, shared: [None, None] };
        let is_shared = frame.len() >= SHARED_MIN && subscribers.len() > 1;
        for subscriber in subscribers.iter().filter(|subscriber| subscriber.live) {
            if !self.give_message(subscriber.client, &mut message, is_shared) {
                over.push(subscriber.client);
            }
        }
        self.topics[t].subscribers = subscribers;
        for c in over {
            self.close_over_limit(c, OVER_LIMIT);
        }
    }

    /// `false`: too much is waiting for this client already.
    fn give_message(&mut self, c: u32, message: &mut Message<'_>, is_shared: bool) -> bool {
        let frame = message.frame;
        let client = &mut self.clients[c];
        let Some(subscribed) = client.subscribed.as_mut() else { return true };
        if client.phase != Phase::Open {
            return true;
        }
        let pending = client.output.pending() + subscribed.held.len();
        if pending + frame.len() > self.settings.pubsub_output_limit {
            return false;
        }
        self.tally.messages += 1;
        let kind = if client.session.version == Version::Resp3 { b'>' } else { b'*' };
        if client.torn || client.output.uncommitted() > 0 || subscribed.joining {
            subscribed.held.push(kind);
            subscribed.held.extend_from_slice(&frame[1..]);
            return true;
        }
        if pending == 0 {
            client.progress_ms = self.now.ms;
        }
        if client.output.sending && is_shared {
            client.output.push_shared(message.shared_as(kind));
            return true;
        }
        let buffer = client.output.buffer(&mut self.client_pool);
        buffer.push(kind);
        buffer.extend_from_slice(&frame[1..]);
        self.mark_client_dirty(c);
        true
    }

    /// A message is too large for anybody.
    pub(super) fn refuse_message(&mut self, t: u32) {
        let live = self.topics[t].subscribers.iter().filter(|subscriber| subscriber.live);
        let clients: Vec<u32> = live.map(|subscriber| subscriber.client).collect();
        for c in clients {
            self.close_over_limit(c, OVER_LIMIT);
        }
    }

    /// A reply that was passed on in pieces has ended: what waited for that follows.
    pub(super) fn release_messages(&mut self, c: u32) {
        let client = &mut self.clients[c];
        let Some(subscribed) = client.subscribed.as_mut() else { return };
        if subscribed.held.is_empty() || subscribed.joining {
            return;
        }
        let held = std::mem::take(&mut subscribed.held);
        if subscribed.total() == 0 {
            client.subscribed = None;
        }
        client.output.buffer(&mut self.client_pool).extend_from_slice(&held);
        self.mark_client_dirty(c);
    }

    /// A topic that has been deaf for too long.
    pub(super) fn check_deafness(&mut self, t: u32) {
        let is_deaf = self.topics.contains(t) && {
            let topic = &self.topics[t];
            !topic.whole && self.now.ms.saturating_sub(topic.deaf_since_ms) >= DEAF_MS_MAX
        };
        if is_deaf {
            self.close_subscribers(t, "its subscription cannot be kept up");
        }
    }

    /// Requests that have waited for too long.
    pub(super) fn check_joins(&mut self) {
        let now = self.now.ms;
        let budget = self.settings.request_timeout_ms.min(DEAF_MS_MAX);
        let waits = |join: &Join| join.names.is_none() && join.live == 0;
        let joins = self.topics.joins.iter().filter(|(_, join)| waits(join));
        let late = joins.filter(|(_, join)| now.saturating_sub(join.since_ms) >= budget);
        let late: Vec<u32> = late.map(|(&r, _)| r).collect();
        for r in late {
            self.tally.timeouts += 1;
            self.fail_join(r, errors::no_connection);
        }
    }

    fn close_subscribers(&mut self, t: u32, why: &'static str) {
        let live = self.topics[t].subscribers.iter().filter(|subscriber| subscriber.live);
        let clients: Vec<u32> = live.map(|subscriber| subscriber.client).collect();
        for c in clients {
            let peer = self.clients[c].session.peer;
            self.actions.push(Action::Note(Note::ClientClosed { peer, why }));
            self.close_client(c);
        }
    }
}

/// A message of so many bytes is kept once for all who have not taken the ones before.
const SHARED_MIN: usize = 4 * 1024;

/// What is given to the subscribers of a topic, and the frame of those that wait for it: of RESP3,
/// and of RESP2.
struct Message<'a> {
    frame: &'a [u8],
    shared: [Option<Arc<[u8]>>; 2],
}

impl Message<'_> {
    fn shared_as(&mut self, kind: u8) -> Arc<[u8]> {
        let place = &mut self.shared[usize::from(kind != b'>')];
        let shared = place.get_or_insert_with(|| {
            let mut bytes = Arc::<[u8]>::from(self.frame);
            if let Some(first) = Arc::get_mut(&mut bytes).and_then(<[u8]>::first_mut) {
                *first = kind;
            }
            bytes
        });
        Arc::clone(shared)
    }
}

const OVER_LIMIT: &str = "its messages are over pubsub_output_limit";

fn allowed_while_subscribed(name: &str) -> bool {
    const ALLOWED: [&str; 9] = [
        "SUBSCRIBE",
        "PSUBSCRIBE",
        "SSUBSCRIBE",
        "UNSUBSCRIBE",
        "PUNSUBSCRIBE",
        "SUNSUBSCRIBE",
        "PING",
        "QUIT",
        "RESET",
    ];
    ALLOWED.contains(&name)
}

pub(super) fn confirm(
    out: &mut Vec<u8>,
    version: Version,
    verb: &str,
    name: Option<&[u8]>,
    count: usize,
) {
    write::push_header(out, version, 3);
    write::bulk(out, verb.as_bytes());
    match name {
        Some(name) => write::bulk(out, name),
        None => write::null(out, version),
    }
    write::integer(out, count as i64);
}
