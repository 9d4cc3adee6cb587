//! What nodes are asked for their messages, and what they send: one backend for each node that has
//! to, in RESP3, where pushes are told apart from answers.
//!
//! `settle_topic` compares what a topic needs with what it has and asks for the difference; it is
//! called whenever either may have changed, and again until all is confirmed. A node is asked for
//! one thing of a topic at a time.
//!
//! Not here: clients (`subscribe`), connecting (`connect`).

use super::Proxy;
use super::backend::{Lane, Phase};
use super::connect::Why;
use super::launch::Usable;
use super::pubsub::{Kind, LegState};
use super::types::{Action, NONE, Report};
use crate::cluster::UNOWNED;
use crate::resp::Version;
use crate::resp::number::read_integer;
use crate::resp::reply::{ErrorKind, aggregate_header, classify_error};
use crate::resp::request::encode_request;

/// A backend that is silent for so long is asked whether it lives.
const PING_AFTER_MS: u64 = 15_000;

/// A backend that nobody needs for so long is closed.
const UNUSED_MAX_MS: u64 = 10_000;

/// How often that is looked at.
const HEALTH_EVERY_MS: u64 = 1_000;

/// After a refusal a node is asked again.
const RETRY_MS: u64 = 100;
const RETRY_REFUSED_MS: u64 = 1_000;

/// For so long after a failure another node is preferred.
const SHUN_MS: u64 = 5_000;

/// Topics that are looked at in one go: a client may want a million of them, and others wait.
const SETTLED_MAX: usize = 8 * 1024;

/// Bytes of a frame beyond its message: names and lengths.
const FRAME_ROOM: usize = 64 * 1024;

impl Proxy {
    // --- what is needed ----------------------------------------------------------------------

    /// Makes the difference between what a topic needs and what it has as small as it can be now.
    pub(super) fn settle_topic(&mut self, t: u32) {
        let needed = self.needed_nodes(t);
        let legs = self.topics[t].legs.clone();
        for leg in legs.iter().filter(|leg| leg.state == LegState::Joined) {
            if !needed.contains(&leg.node) {
                self.ask_node(t, leg.node, LegState::Leaving);
            }
        }
        if self.now.ms >= self.topics[t].retry_at_ms {
            for &node in &needed {
                if self.topics[t].leg(node).is_none() {
                    self.ask_node(t, node, LegState::Joining);
                }
            }
        }
        let topic = &mut self.topics[t];
        if topic.subscribers.is_empty() {
            topic.whole = false;
            if topic.legs.is_empty() {
                self.topics.close(t);
            } else if topic.legs.iter().any(|leg| leg.state == LegState::Joined) {
                // Nothing more could be asked for now: its messages would go on for nobody.
                self.topics.list(t);
            }
            return;
        }
        let is_joined = |&node| topic.leg(node) == Some(LegState::Joined);
        if needed.is_empty() || !needed.iter().all(is_joined) {
            if std::mem::replace(&mut topic.whole, false) {
                topic.deaf_since_ms = self.now.ms;
            }
            return self.topics.list(t);
        }
        topic.whole = true;
        for r in self.topics.take_waiting(t) {
            self.advance_join(r);
        }
    }

    fn needed_nodes(&mut self, t: u32) -> Vec<u16> {
        let topic = &self.topics[t];
        if topic.subscribers.is_empty() {
            return Vec::new();
        }
        let home = match topic.kind {
            Kind::Shard => self.map.get(topic.slot),
            Kind::Channel | Kind::Pattern => match self.is_good_home(t) {
                true => topic.home,
                false => self.home_for(t),
            },
        };
        let topic = &mut self.topics[t];
        topic.home = home;
        if topic.everywhere {
            return self.topics.primaries.clone();
        }
        if home == UNOWNED { Vec::new() } else { vec![home] }
    }

    /// What is published comes to every member, whatever it owns: no reason to move then.
    fn is_good_home(&self, t: u32) -> bool {
        let topic = &self.topics[t];
        let asked = topic.leg(topic.home).is_some_and(|leg| leg != LegState::Leaving);
        asked && {
            let node = &self.nodes[topic.home];
            let is_primary = self.topics.primaries.contains(&topic.home);
            is_primary || (!topic.everywhere && node.present && node.healthy)
        }
    }

    /// Any node can send what is published; that of the slot does, so that they share the load,
    /// unless it cannot be reached.
    fn home_for(&self, t: u32) -> u16 {
        let topic = &self.topics[t];
        let owner = self.map.get(topic.slot);
        let primaries = &self.topics.primaries;
        if primaries.contains(&owner) && !self.is_shunned(owner) {
            return owner;
        }
        let others = (0..primaries.len())
            .map(|n| primaries[(usize::from(topic.slot) + n) % primaries.len()])
            .filter(|&node| !self.is_shunned(node));
        let (joined, others): (Vec<u16>, Vec<u16>) =
            others.partition(|&node| topic.leg(node) == Some(LegState::Joined));
        joined.first().or(others.first()).copied().unwrap_or(owner)
    }

    fn is_shunned(&self, node: u16) -> bool {
        let Some(backend) = self.backends.get(self.nodes[node].subscriber as usize) else {
            return false;
        };
        backend.failures > 0 && self.now.ms < backend.retry_at_ms + SHUN_MS
    }

    /// Looks which nodes are primaries, if that may have changed.
    pub(super) fn look_at_map(&mut self) {
        let version = self.map.version();
        if self.topics.map_version == Some(version) {
            return;
        }
        self.topics.map_version = Some(version);
        let mut is_primary: Vec<bool> = self
            .nodes
            .indexes()
            .map(|node| self.nodes[node].present && self.nodes[node].primary)
            .collect();
        for slot in 0..crate::cluster::SLOTS as u16 {
            if let Some(place) = is_primary.get_mut(usize::from(self.map.get(slot))) {
                *place = true;
            }
        }
        let primaries = (0..).zip(is_primary).filter_map(|(node, is)| is.then_some(node));
        self.topics.primaries = primaries.collect();
        for t in self.topics.indexes() {
            self.topics.list(t);
        }
    }

    // --- asking ------------------------------------------------------------------------------

    fn subscriber_backend(&mut self, node: u16) -> u32 {
        let known = self.nodes[node].subscriber;
        if known != NONE {
            return known;
        }
        let b = self.open_backend(node, (Version::Resp3, 0), Lane::Subscriber);
        self.nodes[node].subscriber = b;
        b
    }

    fn ask_node(&mut self, t: u32, node: u16, state: LegState) {
        let b = self.subscriber_backend(node);
        if self.usable(b) != Usable::Now {
            return;
        }
        let topic = &mut self.topics[t];
        topic.set_leg(node, state);
        let (slot, name) = (topic.slot, topic.name.clone());
        let verb = topic.kind.verb(state == LegState::Joining).to_ascii_uppercase();
        let r = self.ask_subscriber(b, &[verb.as_bytes(), &name]);
        self.requests[r].slot = slot;
        self.requests[r].part = t;
    }

    fn ask_subscriber(&mut self, b: u32, words: &[&[u8]]) -> u32 {
        let backend = &mut self.backends[b as usize];
        if backend.queued() == 0 {
            backend.progress_ms = self.now.ms;
        }
        let r = self.enqueue_internal(b, |out| encode_request(words.iter().copied(), out));
        self.requests[r].part = NONE;
        self.mark_backend_dirty(b);
        r
    }

    // --- what comes --------------------------------------------------------------------------

    /// A piece of a push frame.
    pub(super) fn handle_push_piece(&mut self, b: u32, piece: &[u8], started: bool, ended: bool) {
        if started && ended {
            return self.handle_push(b, piece);
        }
        let room = self.settings.pubsub_output_limit + FRAME_ROOM;
        let pushed = &mut self.backends[b as usize].pushed;
        pushed.extend_from_slice(&piece[..piece.len().min(room.saturating_sub(pushed.len()))]);
        if ended {
            let frame = std::mem::take(pushed);
            self.handle_push(b, &frame);
        }
    }

    fn handle_push(&mut self, b: u32, frame: &[u8]) {
        let node = self.backends[b as usize].node;
        let mut words = Words::of(frame);
        let (Some(verb), Some(name)) = (words.next(), words.next()) else { return };
        let (kind, channel) = match verb {
            b"message" => (Kind::Channel, Some(name)),
            b"pmessage" => (Kind::Pattern, words.next()),
            b"smessage" => (Kind::Shard, Some(name)),
            _ => return self.handle_confirmation(b, node, verb, name),
        };
        let (Some(t), Some(channel)) = (self.topics.find(kind, name), channel) else { return };
        if !self.topics[t].accepts(node, channel) {
            return;
        }
        match words.next() {
            Some(_) => self.deliver_message(t, frame),
            None => self.refuse_message(t),
        }
    }

    fn handle_confirmation(&mut self, b: u32, node: u16, verb: &[u8], name: &[u8]) {
        let expected = self.backends[b as usize].head().filter(|&r| {
            let t = self.requests[r].part;
            t != NONE && *self.topics[t].name == *name && {
                let joins = self.topics[t].leg(node) == Some(LegState::Joining);
                verb == self.topics[t].kind.verb(joins).as_bytes()
            }
        });
        let Some(r) = expected else {
            return self.handle_unasked(b, node, verb, name);
        };
        let t = self.requests[r].part;
        self.backends[b as usize].pop(&mut self.requests);
        self.requests.close(r);
        let topic = &mut self.topics[t];
        match topic.leg(node) {
            Some(LegState::Joining) => topic.set_leg(node, LegState::Joined),
            _ => drop(topic.drop_leg(node)),
        }
        self.settle_topic(t);
    }

    /// A node that has given a slot away ends the subscriptions to its shard channels.
    fn handle_unasked(&mut self, b: u32, node: u16, verb: &[u8], name: &[u8]) {
        let known = [Kind::Channel, Kind::Pattern, Kind::Shard]
            .into_iter()
            .find(|kind| verb == kind.verb(false).as_bytes());
        let Some(kind) = known else {
            let confirms = verb.ends_with(b"subscribe");
            return if confirms {
                self.lose_backend(b, Why::Surprise)
            };
        };
        let Some(t) = self.topics.find(kind, name) else { return };
        if self.topics[t].leg(node) == Some(LegState::Joined) {
            self.topics[t].drop_leg(node);
            self.actions.push(Action::Report(Report::WantRefresh));
            self.settle_topic(t);
        }
    }

    /// An answer that is no push: to PING, or an error to what was asked.
    pub(super) fn handle_subscriber_reply(&mut self, b: u32, r: u32, reply: &[u8]) {
        let t = self.requests[r].part;
        let is_error = reply.first() == Some(&b'-');
        if t == NONE || !is_error {
            if t != NONE {
                return self.lose_backend(b, Why::Surprise);
            }
            self.backends[b as usize].pop(&mut self.requests);
            return self.requests.close(r);
        }
        let node = self.backends[b as usize].node;
        self.backends[b as usize].pop(&mut self.requests);
        self.topics[t].drop_leg(node);
        self.topics[t].retry_at_ms = self.now.ms + RETRY_MS;
        match classify_error(reply) {
            ErrorKind::Moved if self.follow_subscriber(r, reply) => {
                self.topics[t].retry_at_ms = self.now.ms;
            }
            ErrorKind::NoPerm | ErrorKind::NoAuth | ErrorKind::Other => {
                self.topics[t].retry_at_ms = self.now.ms + RETRY_REFUSED_MS;
                for waiting in self.topics.take_waiting(t) {
                    self.fail_join(waiting, |out| out.extend_from_slice(reply));
                }
            }
            _ => self.actions.push(Action::Report(Report::WantRefresh)),
        }
        self.requests.close(r);
        if self.topics.contains(t) {
            self.settle_topic(t);
        }
    }

    // --- loss and health ---------------------------------------------------------------------

    /// The backend towards a node is lost, and with it all its subscriptions.
    pub(super) fn lose_legs(&mut self, node: u16) {
        for t in self.topics.indexes() {
            let topic = &mut self.topics[t];
            if topic.drop_leg(node) {
                // What it still needs is asked for when the loss has been dealt with.
                let was_whole = std::mem::replace(&mut topic.whole, false);
                topic.deaf_since_ms = if was_whole { self.now.ms } else { topic.deaf_since_ms };
                self.topics.list(t);
            }
        }
    }

    /// Topics that are not what they should be try again.
    pub(super) fn check_topics(&mut self) {
        if self.now.ms >= self.topics.next_health_ms {
            self.topics.next_health_ms = self.now.ms + HEALTH_EVERY_MS;
            self.check_subscriber_backends();
        }
        if self.topics.is_empty() {
            return;
        }
        self.look_at_map();
        for _ in 0..self.topics.listed().min(SETTLED_MAX) {
            if let Some(t) = self.topics.take_listed() {
                self.settle_topic(t);
                self.check_deafness(t);
            }
        }
        self.check_joins();
    }

    fn check_subscriber_backends(&mut self) {
        for node in self.nodes.indexes() {
            let b = self.nodes[node].subscriber;
            let Some(backend) = self.backends.get(b as usize) else { continue };
            let quiet_ms = self.now.ms.saturating_sub(backend.progress_ms);
            if backend.phase != Phase::Ready || backend.queued() > 0 {
                continue;
            }
            let unused = quiet_ms >= UNUSED_MAX_MS && !self.topics.any_at(node);
            if unused {
                self.lose_backend(b, Why::Retired);
            } else if quiet_ms >= PING_AFTER_MS {
                self.ask_subscriber(b, &[b"PING"]);
            }
        }
    }
}

/// The strings at the front of a push frame, one by one.
struct Words<'a> {
    rest: &'a [u8],
    left: i64,
}

impl<'a> Words<'a> {
    fn of(frame: &'a [u8]) -> Words<'a> {
        let header = aggregate_header(frame);
        let (left, len) = header.map_or((0, 0), |(_, count, len)| (count, len));
        Words { rest: frame.get(len..).unwrap_or_default(), left }
    }

    /// `None`: there is none, it is no string, or its end was cut off.
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 || self.rest.first() != Some(&b'$') {
            return None;
        }
        let line = memchr::memchr(b'\r', self.rest)?;
        let len = usize::try_from(read_integer(self.rest.get(1..line)?)?).ok()?;
        let word = self.rest.get(line + 2..line + 2 + len)?;
        self.rest = self.rest.get(line + 4 + len..)?;
        self.left -= 1;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_push_are_read_as_far_as_they_are_there() {
        let mut words = Words::of(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\na\r\nbc\r\n");
        assert_eq!(words.next(), Some(&b"message"[..]));
        assert_eq!(words.next(), Some(&b"c"[..]));
        assert_eq!(words.next(), Some(&b"a\r\nbc"[..]));
        assert_eq!(words.next(), None);
        let mut cut = Words::of(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$50\r\nabc");
        assert_eq!((cut.next(), cut.next()), (Some(&b"message"[..]), Some(&b"c"[..])));
        assert_eq!(cut.next(), None);
        assert_eq!(Words::of(b">1\r\n:1\r\n").next(), None);
    }
}
