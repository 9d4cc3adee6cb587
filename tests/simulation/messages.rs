//! Publish and subscribe: what model nodes do with subscriptions, clients that listen or publish,
//! and the checker of what they hear.
//!
//! A message that was published after a subscription was confirmed, with no fault near enough to
//! have cost it, is heard exactly once, and those of one publisher on one channel in order. Faults
//! are what ends or moves a subscription at a node; after one there are `RECOVERY_US` to recover.
//!
//! Not here: other requests (`workload`), connections (`network`, `serve`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ringway::cluster::slot_of;
use ringway::resp::Version;
use ringway::resp::value::Value;

use crate::nodes::{NOBODY, bulk};
use crate::plant::Plant;
use crate::serve::text_of;
use crate::world::{Event, FRONT_PASSWORD, World};

/// Channel, pattern, shard channel, as in `VERBS`.
type Kind = usize;
type Topic = (Kind, Vec<u8>);

const VERBS: [(&str, &str, &str); 3] = [
    ("subscribe", "unsubscribe", "message"),
    ("psubscribe", "punsubscribe", "pmessage"),
    ("ssubscribe", "sunsubscribe", "smessage"),
];

/// Within this time a subscription is whole again after a fault.
const RECOVERY_US: u64 = 6_000_000;

/// So long a subscription that is new may still be moved for a fault that was before it: what one
/// reactor has told of a slot comes back to it late, and may be out of date by then.
const ECHO_US: u64 = 1_000_000;

/// Within this time a message has arrived.
const TRAVEL_US: u64 = 3_000_000;

/// No message: time to look at those that wait.
const DRAIN: usize = usize::MAX;

#[derive(Debug)]
enum Ask {
    Other,
    Join(Topic),
    Leave(Topic),
    Publish(usize),
}

#[derive(Debug)]
struct Subscription {
    asked_us: u64,
    since_us: u64,
    /// When it asked to end it.
    until_us: u64,
    topic: Topic,
}

/// A client that listens, or publishes.
#[derive(Debug, Default)]
pub struct Ear {
    publishes: bool,
    version: Version,
    greeted: bool,
    pending: VecDeque<Ask>,
    asked_us: u64,
    joined: BTreeSet<Topic>,
    /// All that it ever had.
    subscriptions: Vec<Subscription>,
    /// Topic, publication, when.
    heard: Vec<(Topic, usize, u64)>,
}

#[derive(Debug)]
struct Publication {
    channel: Vec<u8>,
    shard: bool,
    publisher: usize,
    issued_us: u64,
    ran_us: Option<u64>,
    ran_at: usize,
    /// Its publisher was told an error: it may run late, if it does.
    doubtful: bool,
}

#[derive(Default)]
pub struct Messages {
    published: Vec<Publication>,
    /// When something happened that may cost messages: to all, to shard channels.
    faults: Vec<u64>,
    shard_faults: Vec<u64>,
    /// The last arrival over the bus from one node to another.
    bus_us: BTreeMap<(usize, usize), u64>,
    /// What has come to a node that does not look at it yet.
    queues: BTreeMap<usize, VecDeque<(Vec<u8>, usize)>>,
    pub heard: u64,
    pub judged: u64,
}

impl World {
    // --- nodes -------------------------------------------------------------------------------

    /// Runs a command of pub/sub as a node does; `None`: it is none.
    pub fn run_pubsub(&mut self, link: usize, args: &[Vec<u8>]) -> Option<Vec<u8>> {
        let name = String::from_utf8_lossy(&args[0]).to_ascii_lowercase();
        let node = self.links[link].node;
        if name == "publish" || name == "spublish" {
            return Some(self.publish_at(node, &name, args));
        }
        let kind = VERBS.iter().position(|verbs| verbs.0 == name || verbs.1 == name)?;
        if !self.links[link].login.resp3 {
            self.history.violate("messages", "a subscription on a RESP2 backend".into());
        }
        let mut out = Vec::new();
        for channel in &args[1..] {
            if kind == 2
                && let Some(refusal) = self.shard_refusal(node, channel)
            {
                return Some(refusal);
            }
            let topic = (kind, channel.clone());
            let subscriptions = &mut self.links[link].subscriptions;
            match VERBS[kind].0 == name {
                true => subscriptions.insert(topic),
                false => subscriptions.remove(&topic),
            };
            out.extend(confirmation(&name, channel, subscriptions.len()));
        }
        Some(out)
    }

    fn shard_refusal(&self, node: usize, channel: &[u8]) -> Option<Vec<u8>> {
        let slot = slot_of(channel);
        match self.cluster.nodes[node].view.owner[usize::from(slot)] {
            owner if owner == node as u8 => None,
            NOBODY => Some(b"-CLUSTERDOWN Hash slot not served\r\n".to_vec()),
            owner => self.cluster.redirect_as_seen(node, slot, owner),
        }
    }

    fn publish_at(&mut self, node: usize, name: &str, args: &[Vec<u8>]) -> Vec<u8> {
        let shard = name == "spublish";
        if shard && let Some(refusal) = self.shard_refusal(node, &args[1]) {
            return refusal;
        }
        let number: usize = String::from_utf8_lossy(&args[2]).parse().unwrap_or(usize::MAX);
        match self.messages.published.get_mut(number) {
            Some(of) if of.channel == args[1] && of.shard == shard && of.ran_us.is_none() => {
                (of.ran_us, of.ran_at) = (Some(self.now_us), node);
            }
            of => {
                let text = format!("published twice, or garbled: {args:?} of {of:?}");
                self.history.violate("messages", text);
            }
        }
        for other in 0..self.cluster.nodes.len() {
            if other == node {
                self.arrive_at(node, shard, args[1].clone(), number);
            } else if !shard {
                let delay = 1 + self.random.below(2 * self.parameters.delay_us);
                let at = self.messages.bus_us.entry((node, other)).or_default();
                *at = (*at).max(self.now_us + delay);
                let (at, channel) = (*at, args[1].clone());
                self.at(at, Event::Bus { node: other, channel, number });
            }
        }
        b":1\r\n".to_vec()
    }

    /// A message has come over the bus, or a node goes on with those that have (`DRAIN`).
    pub fn bus(&mut self, node: usize, channel: Vec<u8>, number: usize) {
        let stalled = self.cluster.nodes[node].stalled_until;
        let queue = self.messages.queues.entry(node).or_default();
        let waits = !queue.is_empty();
        if number != DRAIN {
            queue.push_back((channel, number));
            if waits {
                return;
            }
        }
        if stalled > self.now_us {
            return self.at(stalled, Event::Bus { node, channel: Vec::new(), number: DRAIN });
        }
        for (channel, number) in self.messages.queues.remove(&node).unwrap_or_default() {
            if self.cluster.nodes[node].alive {
                self.arrive_at(node, false, channel, number);
            }
        }
    }

    fn arrive_at(&mut self, node: usize, shard: bool, channel: Vec<u8>, number: usize) {
        for link in 0..self.links.len() {
            if self.links[link].node != node || !self.links[link].up {
                continue;
            }
            let matching = |topic: &&Topic| match topic.0 {
                2 => shard && topic.1 == channel,
                1 => !shard && channel.starts_with(topic.1.stem()),
                _ => !shard && topic.1 == channel,
            };
            let topics: Vec<Topic> =
                self.links[link].subscriptions.iter().filter(matching).cloned().collect();
            for topic in topics {
                let text = number.to_string();
                let verb = VERBS[topic.0].2;
                let mut words = vec![verb.as_bytes(), &topic.1];
                if topic.0 == 1 {
                    words.push(&channel);
                }
                words.push(text.as_bytes());
                let mut frame = format!(">{}\r\n", words.len()).into_bytes();
                words.iter().for_each(|word| frame.extend(bulk(word)));
                match self.plant {
                    Plant::DropMessage if self.random.chance(30) => continue,
                    Plant::RepeatMessage if self.random.chance(30) => {
                        self.push(link, frame.clone());
                    }
                    _ => (),
                }
                self.push(link, frame);
            }
        }
    }

    fn push(&mut self, link: usize, frame: Vec<u8>) {
        let this = &mut self.links[link];
        if this.mute {
            return self.message_fault();
        }
        this.written += frame.len() as u64;
        let socket = this.socket;
        self.carry_to_proxy(socket, frame);
    }

    /// A node learns how things are; shard channels of slots that it has lost end.
    pub fn gossip(&mut self, node: usize) {
        self.cluster.gossip(node);
        for link in 0..self.links.len() {
            if self.links[link].node != node || !self.links[link].up {
                continue;
            }
            let view = &self.cluster.nodes[node].view;
            let lost = |topic: &&Topic| {
                topic.0 == 2 && view.owner[usize::from(slot_of(&topic.1))] != node as u8
            };
            let lost: Vec<Topic> =
                self.links[link].subscriptions.iter().filter(lost).cloned().collect();
            for topic in lost {
                self.links[link].subscriptions.remove(&topic);
                let left = self.links[link].subscriptions.len();
                self.push(link, confirmation("sunsubscribe", &topic.1, left));
                self.shard_fault();
            }
        }
    }

    /// Something may have cost messages.
    pub fn message_fault(&mut self) {
        self.messages.faults.push(self.now_us);
    }

    /// The same for shard channels only.
    pub fn shard_fault(&mut self) {
        self.messages.shard_faults.push(self.now_us);
    }

    /// A connection ends: a fault if it had subscriptions, or was to have some.
    pub fn link_fault(&mut self, link: usize) {
        if self.links[link].login.resp3 {
            self.message_fault();
        }
    }

    // --- clients -----------------------------------------------------------------------------

    pub fn add_ears(&mut self) {
        for n in 0..self.parameters.ears + self.parameters.ears.div_ceil(2) {
            let client = self.add_client(0, true);
            let publishes = n >= self.parameters.ears;
            let version = match publishes || self.random.chance(500) {
                true => Version::Resp2,
                false => Version::Resp3,
            };
            self.clients[client].ear = Some(Box::new(Ear { publishes, version, ..Ear::default() }));
        }
    }

    pub fn ear_acts(&mut self, client: usize) {
        let mut bytes = Vec::new();
        let Some(mut ear) = self.clients[client].ear.take() else { return };
        if !std::mem::replace(&mut ear.greeted, true) {
            self.greet(&mut ear, &mut bytes);
        }
        if ear.pending.is_empty() {
            ear.asked_us = self.now_us;
            match ear.publishes {
                true => self.publish(client, &mut ear, &mut bytes),
                false => self.change_topics(&mut ear, &mut bytes),
            }
        }
        self.clients[client].ear = Some(ear);
        self.note_asked(client, &bytes);
        if let Some(socket) = self.clients[client].socket
            && !bytes.is_empty()
        {
            self.carry_to_proxy(socket, bytes);
        }
        let think = if self.healed { 200_000 } else { 30_000 };
        let at = self.now_us + 1 + self.random.below(think);
        self.at(at, Event::Client { client });
    }

    fn greet(&mut self, ear: &mut Ear, bytes: &mut Vec<u8>) {
        if self.parameters.login {
            bytes.extend(encode(&[b"AUTH", FRONT_PASSWORD]));
            ear.pending.push_back(Ask::Other);
        }
        if ear.version == Version::Resp3 {
            bytes.extend(encode(&[b"HELLO", b"3"]));
            ear.pending.push_back(Ask::Other);
        }
    }

    fn publish(&mut self, client: usize, ear: &mut Ear, bytes: &mut Vec<u8>) {
        for _ in 0..=self.random.skewed(4) {
            let shard = self.random.chance(300);
            let channel = self.channel(shard);
            let place = self.messages.published.len();
            let number = place.to_string();
            let verb: &[u8] = if shard { b"SPUBLISH" } else { b"publish" };
            bytes.extend(encode(&[verb, &channel, number.as_bytes()]));
            ear.pending.push_back(Ask::Publish(place));
            self.messages.published.push(Publication {
                channel,
                shard,
                publisher: client,
                issued_us: self.now_us,
                ran_us: None,
                ran_at: 0,
                doubtful: false,
            });
        }
    }

    fn channel(&mut self, shard: bool) -> Vec<u8> {
        let (letter, tag) =
            (if shard { 's' } else { 'm' }, self.random.index(self.parameters.tags));
        format!("{letter}{{t{tag}}}").into_bytes()
    }

    fn change_topics(&mut self, ear: &mut Ear, bytes: &mut Vec<u8>) {
        if ear.joined.len() > 3 || (!ear.joined.is_empty() && !self.random.chance(50)) {
            if ear.joined.len() > 1 && self.random.chance(20) {
                let topics: Vec<Topic> = ear.joined.iter().cloned().collect();
                let topic = topics[self.random.index(topics.len())].clone();
                bytes.extend(encode(&[VERBS[topic.0].1.as_bytes(), &topic.1]));
                let until = self.now_us;
                ear.end_topic(&topic, until);
                ear.pending.push_back(Ask::Leave(topic));
            }
            return;
        }
        let kind = self.random.index(3);
        let count = 1 + self.random.skewed(2);
        let mut words = vec![VERBS[kind].0.as_bytes().to_vec()];
        for _ in 0..count {
            let name = if kind == 1 { b"m{t*".to_vec() } else { self.channel(kind == 2) };
            words.push(name.clone());
            ear.pending.push_back(Ask::Join((kind, name)));
        }
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        bytes.extend(encode(&words));
    }

    pub fn ear_hears(&mut self, client: usize, raw: &[u8], value: &Value) {
        let Some(mut ear) = self.clients[client].ear.take() else { return };
        if let Err(text) = self.take_in(&mut ear, value) {
            let text = format!("client {client} got {:?}: {text}; {ear:?}", text_of(raw, 200));
            self.history.violate("messages", text.chars().take(1500).collect());
        }
        self.clients[client].ear = Some(ear);
    }

    fn take_in(&mut self, ear: &mut Ear, value: &Value) -> Result<(), String> {
        let words: Vec<&[u8]> =
            value.as_array().unwrap_or_default().iter().filter_map(Value::as_bytes).collect();
        let verb = words.first().map(|verb| String::from_utf8_lossy(verb).into_owned());
        let verb = verb.unwrap_or_default();
        let is_push = matches!(value, Value::Push(_));
        if !verb.is_empty() && is_push != (ear.version == Version::Resp3) {
            return Err("in the other protocol's form".into());
        }
        if let Some(kind) = VERBS.iter().position(|verbs| verbs.2 == verb) {
            return self.hear(ear, kind, &words);
        }
        let ask = ear.pending.pop_front().ok_or("nothing was asked")?;
        if let Value::Error(_) = value {
            return self.take_error(ear, ask);
        }
        let number = value.as_array().and_then(|of| of.get(2)).and_then(Value::as_integer);
        match ask {
            Ask::Other => Ok(()),
            Ask::Publish(_) => value.as_integer().map(drop).ok_or("no count of receivers".into()),
            Ask::Join(topic) => {
                let new = ear.joined.insert(topic.clone());
                if new {
                    ear.subscriptions.push(Subscription {
                        asked_us: ear.asked_us,
                        since_us: self.now_us,
                        until_us: u64::MAX,
                        topic: topic.clone(),
                    });
                }
                ear.check(VERBS[topic.0].0, &topic, &verb, &words, number)
            }
            Ask::Leave(topic) => {
                ear.joined.remove(&topic);
                ear.check(VERBS[topic.0].1, &topic, &verb, &words, number)
            }
        }
    }

    /// One error for all that a request named.
    fn take_error(&mut self, ear: &mut Ear, ask: Ask) -> Result<(), String> {
        let mapped = self.first_map_us.is_some_and(|at| at < ear.asked_us);
        let calm = self.parameters.calm && mapped;
        match ask {
            Ask::Join(_) => {
                ear.pending.clear();
                if calm { Err("needless in a calm run".into()) } else { Ok(()) }
            }
            Ask::Publish(number) => {
                self.messages.published[number].doubtful = true;
                Ok(())
            }
            Ask::Other | Ask::Leave(_) => Err("an error to what cannot fail".into()),
        }
    }

    fn hear(&mut self, ear: &mut Ear, kind: Kind, words: &[&[u8]]) -> Result<(), String> {
        let topic = (kind, words.get(1).ok_or("no name")?.to_vec());
        let text = words.last().map(|text| String::from_utf8_lossy(text).into_owned());
        let number: usize = text.and_then(|text| text.parse().ok()).ok_or("no number")?;
        let of = self.messages.published.get(number).ok_or("never published")?;
        let channel = if kind == 1 { words[2].to_vec() } else { topic.1.clone() };
        if of.channel != channel || of.shard != (kind == 2) || of.ran_us.is_none() {
            return Err(format!("not what was published: {of:?}"));
        }
        if !ear.joined.contains(&topic) {
            return Err("it is not subscribed to that".into());
        }
        self.messages.heard += 1;
        ear.heard.push((topic, number, self.now_us));
        Ok(())
    }

    // --- the checker -------------------------------------------------------------------------

    /// Judges what all have heard; called when messages under way have arrived.
    pub fn judge_messages(&mut self) {
        self.messages.faults.sort_unstable();
        self.messages.shard_faults.sort_unstable();
        for client in 0..self.clients.len() {
            let Some(ear) = self.clients[client].ear.take() else { continue };
            let waits = !ear.pending.is_empty() && ear.asked_us + 10_000_000 < self.now_us;
            if waits && !self.clients[client].is_over() {
                self.history.violate("messages", format!("client {client} waits: {ear:?}"));
            }
            let over = self.clients[client].is_over();
            let mut times: Heard = BTreeMap::new();
            for (topic, number, at) in &ear.heard {
                *times.entry((ear.subscription_at(topic, *at), *number)).or_default() += 1;
            }
            for index in (0..ear.subscriptions.len()).filter(|_| !over) {
                self.judge_subscription(client, &times, index, &ear.subscriptions[index]);
            }
            self.judge_order(client, &ear);
            self.clients[client].ear = Some(ear);
        }
    }

    fn is_calm(&self, shard: bool, from_us: u64, to_us: u64) -> bool {
        let none = |faults: &[u64]| {
            let first = faults.partition_point(|&at| at < from_us);
            faults.get(first).is_none_or(|&at| at > to_us)
        };
        none(&self.messages.faults) && (!shard || none(&self.messages.shard_faults))
    }

    fn judge_subscription(
        &mut self,
        client: usize,
        heard: &Heard,
        index: usize,
        of: &Subscription,
    ) {
        let (kind, name) = &of.topic;
        let stem = name.stem();
        for (number, message) in self.messages.published.iter().enumerate() {
            let Some(ran_us) = message.ran_us else { continue };
            let fits = message.shard == (*kind == 2)
                && if *kind == 1 {
                    message.channel.starts_with(stem)
                } else {
                    message.channel == *name
                };
            let asked_us = of.asked_us.saturating_sub(ECHO_US);
            let from = message.issued_us.saturating_sub(RECOVERY_US).max(asked_us);
            let to = ran_us + TRAVEL_US;
            let in_time = of.since_us < message.issued_us && to < of.until_us && to < self.now_us;
            if !fits || !in_time || !self.is_calm(*kind == 2, from, to) {
                continue;
            }
            self.messages.judged += 1;
            let times = heard.get(&(Some(index), number)).copied().unwrap_or(0);
            if times != 1 {
                let text = format!(
                    "client {client} heard message {number} {times} times: {message:?} on {of:?}; \
                     now {}",
                    self.now_us
                );
                return self.history.violate("messages", text);
            }
        }
    }

    fn judge_order(&mut self, client: usize, ear: &Ear) {
        // Nodes do not wait for each other: after its slot has moved a channel's messages may pass
        // those that went over its former owner. And who subscribes anew, to a node that is behind,
        // may hear from it what he has heard before.
        let mut last: BTreeMap<Way, usize> = BTreeMap::new();
        for (topic, number, at) in &ear.heard {
            let message = &self.messages.published[*number];
            if message.doubtful {
                continue;
            }
            let subscription = ear.subscription_at(topic, *at);
            let key = (subscription, message.channel.as_slice(), message.publisher, message.ran_at);
            if let Some(before) = last.insert(key, *number)
                && before >= *number
            {
                let from = message.issued_us.saturating_sub(RECOVERY_US);
                if self.is_calm(topic.0 == 2, from, *at) {
                    let text = format!("client {client}: {number} after {before} on {topic:?}");
                    return self.history.violate("messages", text);
                }
            }
        }
    }
}

/// What keeps the order of messages: a subscription, a channel, a publisher, a node.
type Way<'a> = (Option<usize>, &'a [u8], usize, usize);

/// How often messages were heard, by subscription of one client.
type Heard = BTreeMap<(Option<usize>, usize), u32>;

impl Ear {
    /// The one by which something was heard then.
    fn subscription_at(&self, topic: &Topic, at_us: u64) -> Option<usize> {
        self.subscriptions.iter().rposition(|of| of.topic == *topic && of.since_us <= at_us)
    }

    fn end_topic(&mut self, topic: &Topic, now_us: u64) {
        let open = self.subscriptions.iter_mut().rev().find(|of| of.topic == *topic);
        if let Some(open) = open {
            open.until_us = now_us;
        }
    }

    fn check(
        &self,
        expected: &str,
        topic: &Topic,
        verb: &str,
        words: &[&[u8]],
        number: Option<i64>,
    ) -> Result<(), String> {
        let shard = topic.0 == 2;
        let count = self.joined.iter().filter(|of| (of.0 == 2) == shard).count() as i64;
        if verb != expected || words.get(1) != Some(&topic.1.as_slice()) || number != Some(count) {
            return Err(format!("expected {expected} {topic:?} {count}"));
        }
        Ok(())
    }
}

trait Stem {
    fn stem(&self) -> &[u8];
}

impl Stem for Vec<u8> {
    /// What stands before the star of a pattern.
    fn stem(&self) -> &[u8] {
        self.strip_suffix(b"*").unwrap_or(self)
    }
}

fn confirmation(verb: &str, channel: &[u8], count: usize) -> Vec<u8> {
    let mut out = b">3\r\n".to_vec();
    out.extend(bulk(verb.as_bytes()));
    out.extend(bulk(channel));
    out.extend_from_slice(format!(":{count}\r\n").as_bytes());
    out
}

fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    words.iter().for_each(|word| out.extend(bulk(word)));
    out
}
