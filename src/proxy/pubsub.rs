//! Who is subscribed to what, and at which nodes: the tables.
//!
//! A *topic* is a channel, a pattern or a shard channel that at least one client of this reactor
//! wants. Each node that has to send its messages is a *leg* of it; a topic is whole when all the
//! legs that it needs are confirmed.
//!
//! Not here: what clients ask and are answered (`subscribe`), what nodes are asked and send
//! (`subscriber`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ahash::{AHashMap, RandomState};

use super::local::glob;
use super::types::NONE;
use crate::cluster::{UNOWNED, slot_of};
use crate::command::Args;
use crate::resp::Span;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Channel,
    Pattern,
    Shard,
}

impl Kind {
    /// What is said to subscribe and, in lower case, in the confirmation.
    pub fn verb(self, join: bool) -> &'static str {
        match (self, join) {
            (Kind::Channel, true) => "subscribe",
            (Kind::Pattern, true) => "psubscribe",
            (Kind::Shard, true) => "ssubscribe",
            (Kind::Channel, false) => "unsubscribe",
            (Kind::Pattern, false) => "punsubscribe",
            (Kind::Shard, false) => "sunsubscribe",
        }
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LegState {
    /// Asked for.
    Joining,
    /// Confirmed: its messages come.
    Joined,
    /// Asked not to send any more.
    Leaving,
}

/// A topic at one node.
#[derive(Copy, Clone, Debug)]
pub struct Leg {
    pub node: u16,
    pub state: LegState,
}

#[derive(Copy, Clone, Debug)]
pub struct Subscriber {
    pub client: u32,
    /// Its confirmation has been written: messages may follow.
    pub live: bool,
}

#[derive(Debug)]
pub struct Topic {
    pub kind: Kind,
    pub name: Arc<[u8]>,
    pub slot: u16,
    /// Its messages come from any primary (keyspace notifications): each has a leg.
    pub everywhere: bool,
    /// The node from which what is published comes; `UNOWNED`: none yet.
    pub home: u16,
    pub subscribers: Vec<Subscriber>,
    pub legs: Vec<Leg>,
    /// Requests whose confirmation waits for this topic. May hold some that wait no more, and whose
    /// entries are others' by now: `Topics::take_waiting` leaves them out.
    waiting: Vec<u32>,
    pub whole: bool,
    /// The ticket of its place in `Topics::unsettled`; 0: it has none.
    listed: u64,
    /// Since when it is not whole.
    pub deaf_since_ms: u64,
    pub retry_at_ms: u64,
}

impl Topic {
    pub fn leg(&self, node: u16) -> Option<LegState> {
        self.legs.iter().find(|leg| leg.node == node).map(|leg| leg.state)
    }

    pub fn set_leg(&mut self, node: u16, state: LegState) {
        match self.legs.iter_mut().find(|leg| leg.node == node) {
            Some(leg) => leg.state = state,
            None => self.legs.push(Leg { node, state }),
        }
    }

    pub fn drop_leg(&mut self, node: u16) -> bool {
        let before = self.legs.len();
        self.legs.retain(|leg| leg.node != node);
        self.legs.len() < before
    }

    /// Whether a message on `channel` that `node` has sent is to be passed on: what is published
    /// comes from every node that we asked, what happens to keys from one of them.
    pub fn accepts(&self, node: u16, channel: &[u8]) -> bool {
        self.leg(node) == Some(LegState::Joined)
            && (self.home == node || (self.everywhere && channel.starts_with(KEY_EVENTS)))
    }

    /// One more client, whose confirmation is still to be written.
    pub fn add(&mut self, client: u32) {
        self.subscribers.push(Subscriber { client, live: false });
    }

    pub fn make_live(&mut self, client: u32) {
        let mut newest_first = self.subscribers.iter_mut().rev();
        if let Some(subscriber) = newest_first.find(|subscriber| subscriber.client == client) {
            subscriber.live = true;
        }
    }

    pub fn remove(&mut self, client: u32) {
        let mut newest_first = self.subscribers.iter().rev();
        if let Some(place) = newest_first.position(|subscriber| subscriber.client == client) {
            self.subscribers.swap_remove(self.subscribers.len() - 1 - place);
        }
    }

    /// Legs that the node knows of: counted by it as one subscriber each.
    pub fn legs_counted(&self) -> usize {
        self.legs.iter().filter(|leg| leg.state != LegState::Joining).count()
    }
}

/// How channels begin on which nodes tell what happens to keys.
const KEY_EVENTS: &[u8] = b"__key";

/// Whether a topic can match channels of keyspace notifications.
pub fn is_everywhere(kind: Kind, name: &[u8]) -> bool {
    match kind {
        Kind::Channel => name.starts_with(b"__keyspace@") || name.starts_with(b"__keyevent@"),
        Kind::Pattern => {
            let wild = name.iter().position(|byte| b"*?[\\".contains(byte));
            let literal = &name[..wild.unwrap_or(name.len())];
            literal.starts_with(KEY_EVENTS) || KEY_EVENTS.starts_with(literal)
        }
        Kind::Shard => false,
    }
}

/// Names of a request that are still to be looked at.
#[derive(Debug)]
pub struct Names {
    pub kind: Kind,
    bytes: Vec<u8>,
    spans: Vec<Span>,
    at: usize,
}

impl Names {
    pub fn of(kind: Kind, args: &Args) -> Names {
        let spans = args.spans.get(1..).unwrap_or_default().to_vec();
        Names { kind, bytes: args.bytes.to_vec(), spans, at: 0 }
    }

    pub fn take_next(&mut self) -> Option<&[u8]> {
        let span = self.spans.get(self.at)?;
        self.at += 1;
        Some(span.of(&self.bytes))
    }

    pub fn is_done(&self) -> bool {
        self.at == self.spans.len()
    }
}

/// A client's request to subscribe, until all that it names is confirmed.
#[derive(Debug)]
pub struct Join {
    pub client: u32,
    /// What it names and is still to be subscribed to.
    pub names: Option<Names>,
    /// What it names, in order.
    pub topics: Vec<u32>,
    /// The first of them that is not known to be whole; once all are, how many are so still; and
    /// how many of `new` are live, which begins when that is all of them.
    pub at: usize,
    pub checked: usize,
    pub live: usize,
    /// Has a place in `Topics::unfinished`.
    pub listed: bool,
    /// Those that the client had not subscribed to before.
    pub new: Vec<u32>,
    pub since_ms: u64,
    /// The confirmations.
    pub reply: Vec<u8>,
}

/// A client that leaves more topics than one turn should see to.
#[derive(Debug)]
pub struct Leaver {
    pub client: u32,
    pub generation: u32,
    /// Its request, which is answered then; `NONE`: it is closed, or begins anew.
    pub request: u32,
    pub from: Leaves,
    pub reply: Vec<u8>,
    /// Its socket is gone: nothing else keeps its entry.
    pub gone: bool,
}

impl Leaver {
    /// Whether it is this client, closed or to begin anew, and no request of it.
    pub fn leaves_all_of(&self, client: u32, generation: u32) -> bool {
        (self.client, self.generation, self.request) == (client, generation, NONE)
    }
}

/// What is left.
#[derive(Debug)]
pub enum Leaves {
    All,
    Kind(Kind),
    Names(Names),
    /// What a request to subscribe had begun with, and is not carried out.
    Topics(Vec<u32>),
}

impl Join {
    pub fn new(client: u32, now_ms: u64) -> Join {
        Join {
            client,
            names: None,
            topics: Vec::new(),
            at: 0,
            checked: 0,
            live: 0,
            listed: false,
            new: Vec::new(),
            since_ms: now_ms,
            reply: Vec::new(),
        }
    }

    /// Whether this is what is waited for now.
    pub fn waits_for(&self, topic: u32) -> bool {
        self.topics.get(self.at) == Some(&topic)
    }
}

/// What one client is subscribed to.
#[derive(Debug, Default)]
pub struct Subscriptions {
    topics: [BTreeSet<u32>; 3],
    /// Of their names.
    name_bytes: usize,
    /// Messages that wait for the end of a reply.
    pub held: Vec<u8>,
    /// All messages do: a request to subscribe is half carried out.
    pub joining: bool,
}

impl Subscriptions {
    pub fn insert(&mut self, kind: Kind, topic: u32, name_len: usize) -> bool {
        let new = self.topics[kind as usize].insert(topic);
        self.name_bytes += if new { name_len } else { 0 };
        new
    }

    pub fn remove(&mut self, kind: Kind, topic: u32, name_len: usize) -> bool {
        let old = self.topics[kind as usize].remove(&topic);
        self.name_bytes -= if old { name_len } else { 0 };
        old
    }

    /// Memory of all this and of its topics, as if they were nobody else's.
    pub fn bytes(&self) -> usize {
        self.held.capacity() + self.name_bytes + self.total() * size_of::<Topic>()
    }

    pub fn of_kind(&self, kind: Kind) -> &BTreeSet<u32> {
        &self.topics[kind as usize]
    }

    pub fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.topics.iter().flatten().copied()
    }

    pub fn total(&self) -> usize {
        self.topics.iter().map(BTreeSet::len).sum()
    }

    /// The number in a confirmation: channels and patterns together, shard channels by themselves.
    pub fn count(&self, kind: Kind) -> usize {
        let [channels, patterns, shards] = &self.topics;
        match kind {
            Kind::Channel | Kind::Pattern => channels.len() + patterns.len(),
            Kind::Shard => shards.len(),
        }
    }
}

/// Topics by name, in several tables: one for a million would take a quarter of a second to grow.
#[derive(Debug, Default)]
struct ByName {
    /// None until there is a first one.
    tables: Vec<AHashMap<Arc<[u8]>, u32>>,
    /// By it a table is chosen, and within it.
    state: RandomState,
    len: usize,
}

impl ByName {
    /// A power of two.
    const TABLES: usize = 256;

    /// Which table: not by the lowest bits, which choose the place in it.
    fn place(&self, name: &[u8]) -> usize {
        (self.state.hash_one(name) >> 40) as usize % Self::TABLES
    }

    fn get(&self, name: &[u8]) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        self.tables.get(self.place(name))?.get(name).copied()
    }

    fn insert(&mut self, name: Arc<[u8]>, index: u32) {
        if self.tables.is_empty() {
            let empty = || AHashMap::with_hasher(self.state.clone());
            self.tables = std::iter::repeat_with(empty).take(Self::TABLES).collect();
        }
        let place = self.place(&name);
        self.len += usize::from(self.tables[place].insert(name, index).is_none());
    }

    fn remove(&mut self, name: &[u8]) {
        let place = self.place(name);
        let known = self.tables.get_mut(place).and_then(|table| table.remove(name));
        self.len -= usize::from(known.is_some());
    }

    fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        self.tables.iter().flat_map(|table| table.values().copied())
    }
}

/// All topics of one reactor and pool.
#[derive(Debug, Default)]
pub struct Topics {
    entries: Vec<Option<Topic>>,
    free: Vec<u32>,
    by_name: [ByName; 3],
    pub joins: BTreeMap<u32, Join>,
    /// Those that go on in the next turn, and who leaves in pieces.
    pub unfinished: VecDeque<u32>,
    pub leavers: VecDeque<Leaver>,
    /// Those that are not whole, or have legs to give up, each with its ticket, longest unseen
    /// first. Those that were closed meanwhile are still in it: to look for each of thousands among
    /// thousands would take minutes.
    unsettled: VecDeque<(u32, u64)>,
    tickets: u64,
    /// Nodes that own slots or may soon, and the version of the map that says so.
    pub primaries: Vec<u16>,
    pub map_version: Option<u32>,
    pub next_health_ms: u64,
    /// Clients that are subscribed to something.
    pub clients: usize,
}

impl std::ops::Index<u32> for Topics {
    type Output = Topic;
    fn index(&self, index: u32) -> &Topic {
        self.entries[index as usize].as_ref().expect("a topic is open while something names it")
    }
}

impl std::ops::IndexMut<u32> for Topics {
    fn index_mut(&mut self, index: u32) -> &mut Topic {
        self.entries[index as usize].as_mut().expect("a topic is open while something names it")
    }
}

impl Topics {
    pub fn contains(&self, index: u32) -> bool {
        self.entries.get(index as usize).is_some_and(Option::is_some)
    }

    pub fn find(&self, kind: Kind, name: &[u8]) -> Option<u32> {
        self.by_name[kind as usize].get(name)
    }

    pub fn open(&mut self, kind: Kind, name: &[u8], now_ms: u64) -> u32 {
        if let Some(known) = self.find(kind, name) {
            return known;
        }
        let name: Arc<[u8]> = name.into();
        let topic = Topic {
            kind,
            name: Arc::clone(&name),
            slot: slot_of(&name),
            everywhere: is_everywhere(kind, &name),
            home: UNOWNED,
            subscribers: Vec::new(),
            legs: Vec::new(),
            waiting: Vec::new(),
            whole: false,
            listed: 0,
            deaf_since_ms: now_ms,
            retry_at_ms: 0,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = Some(topic);
                index
            }
            None => {
                self.entries.push(Some(topic));
                (self.entries.len() - 1) as u32
            }
        };
        self.by_name[kind as usize].insert(name, index);
        index
    }

    /// A request's confirmation waits for this topic. Those that wait no more go now and then, each
    /// time after as many have come: clients may come and leave for as long as a node is lost.
    pub fn wait(&mut self, index: u32, request: u32) {
        let mut waiting = std::mem::take(&mut self[index].waiting);
        if waiting.len() == waiting.capacity() {
            waiting.retain(|&r| self.waits(r, index));
            waiting.reserve(waiting.len().max(4));
        }
        waiting.push(request);
        self[index].waiting = waiting;
    }

    fn waits(&self, request: u32, index: u32) -> bool {
        self.joins.get(&request).is_some_and(|join| join.waits_for(index))
    }

    /// Those that wait for this topic: they look again, or are told.
    pub fn take_waiting(&mut self, index: u32) -> Vec<u32> {
        let mut waiting = std::mem::take(&mut self[index].waiting);
        waiting.retain(|&r| self.waits(r, index));
        waiting
    }

    /// Forgets a topic that nobody wants and no node knows of.
    pub fn close(&mut self, index: u32) {
        let Some(topic) = self.entries[index as usize].take() else { return };
        assert!(topic.legs.is_empty() && topic.subscribers.is_empty(), "a topic is closed unused");
        self.by_name[topic.kind as usize].remove(&topic.name);
        self.free.push(index);
        if self.is_empty() && self.joins.is_empty() && self.leavers.is_empty() {
            let (next_health_ms, clients) = (self.next_health_ms, self.clients);
            *self = Topics { next_health_ms, clients, ..Topics::default() };
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    /// Whether there is more to be done in the next turn.
    pub fn has_more(&self) -> bool {
        !self.unfinished.is_empty() || !self.leavers.is_empty()
    }

    /// Whether time matters to it soon.
    pub fn is_busy(&self) -> bool {
        !self.unsettled.is_empty() || !self.joins.is_empty()
    }

    /// Whether a node is asked for anything.
    pub fn any_at(&self, node: u16) -> bool {
        self.entries.iter().flatten().any(|topic| topic.leg(node).is_some())
    }

    pub fn indexes(&self) -> Vec<u32> {
        (0..self.entries.len() as u32).filter(|&t| self.entries[t as usize].is_some()).collect()
    }

    /// To be looked at soon.
    pub fn list(&mut self, index: u32) {
        let ticket = self.tickets + 1;
        let topic = &mut self[index];
        if topic.listed == 0 {
            topic.listed = ticket;
            self.tickets = ticket;
            self.unsettled.push_back((index, ticket));
        }
    }

    fn is_listed(&self, (index, ticket): (u32, u64)) -> bool {
        let topic = self.entries.get(index as usize).and_then(Option::as_ref);
        topic.is_some_and(|topic| topic.listed == ticket)
    }

    /// How many are on the list.
    pub fn listed(&self) -> usize {
        self.unsettled.len()
    }

    /// Takes the first one off the list; `None`: it is closed.
    pub fn take_listed(&mut self) -> Option<u32> {
        let place = self.unsettled.pop_front()?;
        self.is_listed(place).then(|| {
            self[place.0].listed = 0;
            place.0
        })
    }

    pub fn count(&self, kind: Kind) -> usize {
        self.by_name[kind as usize].len
    }

    /// Clients that will be given a message on `channel`, less the legs at `node` that it counts in
    /// their place. One that matches several ways counts for each, as at a server.
    pub fn receivers(&self, kinds: &[Kind], channel: &[u8], node: u16) -> i64 {
        if self.is_empty() {
            return 0;
        }
        let of = |topic: &Topic| {
            // One that is leaving was told so before: the node has most likely left it out.
            let counted = topic.leg(node) == Some(LegState::Joined);
            topic.subscribers.len() as i64 - i64::from(counted)
        };
        let mut more = 0;
        for &kind in kinds {
            if kind == Kind::Pattern {
                // It is a number that is told, and not worth anybody's time.
                let mut steps = glob::STEPS_MAX;
                let matching = |topic: &&Topic| {
                    glob::matches_within(&topic.name, channel, false, &mut steps) == Some(true)
                };
                more += self.of_kind(kind).filter(matching).map(of).sum::<i64>();
            } else if let Some(t) = self.find(kind, channel) {
                more += of(&self[t]);
            }
        }
        more
    }

    /// Topics of one kind, those included that are being given up.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Topic> + '_ {
        self.by_name[kind as usize].indexes().map(|t| &self[t])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_may_match_key_events_go_everywhere() {
        for name in ["__keyspace@0__:x", "__key*", "__keyevent@*__:del", "*", "_?", "__k[e]y*"] {
            assert!(is_everywhere(Kind::Pattern, name.as_bytes()), "{name}");
        }
        for name in ["news.*", "__kez*", "_a*", "k*"] {
            assert!(!is_everywhere(Kind::Pattern, name.as_bytes()), "{name}");
        }
        assert!(is_everywhere(Kind::Channel, b"__keyevent@0__:expired"));
        assert!(!is_everywhere(Kind::Channel, b"__keys"));
        assert!(!is_everywhere(Kind::Shard, b"__keyspace@0__:x"));
    }

    #[test]
    fn message_is_taken_from_one_node_and_key_events_from_all() {
        let mut topics = Topics::default();
        let t = topics.open(Kind::Pattern, b"*", 0);
        let topic = &mut topics[t];
        topic.home = 1;
        topic.set_leg(1, LegState::Joined);
        topic.set_leg(2, LegState::Joined);
        topic.set_leg(3, LegState::Leaving);
        let accepted = |node, channel: &str| topic.accepts(node, channel.as_bytes());
        assert!(accepted(1, "news") && !accepted(2, "news"));
        assert!(accepted(1, "__keyevent@0__:set") && accepted(2, "__keyevent@0__:set"));
        assert!(!accepted(3, "__keyevent@0__:set") && !accepted(4, "__keyevent@0__:set"));
    }

    #[test]
    fn requests_that_wait_no_more_do_not_pile_up() {
        let mut topics = Topics::default();
        let t = topics.open(Kind::Channel, b"a", 0);
        let join = |topic| Join { topics: vec![topic], ..Join::new(0, 0) };
        // Ten stay, one after the other comes and leaves.
        for r in 0..10_000 {
            topics.wait(t, r);
            if r < 10 {
                topics.joins.insert(r, join(t));
            }
        }
        assert!(topics[t].waiting.len() <= 64, "{}", topics[t].waiting.len());
        // Another's by now.
        topics.joins.insert(9_999, join(t + 1));
        assert_eq!(topics.take_waiting(t), (0..10).collect::<Vec<_>>());
        assert_eq!(topics.take_waiting(t).len(), 0);
    }

    #[test]
    fn closed_topic_leaves_nothing_behind() {
        let mut topics = Topics::default();
        let first = topics.open(Kind::Channel, b"a", 0);
        assert_eq!(topics.open(Kind::Channel, b"a", 0), first);
        assert_ne!(topics.open(Kind::Pattern, b"a", 0), first);
        topics.list(first);
        topics.close(first);
        assert_eq!(topics.find(Kind::Channel, b"a"), None);
        assert!(!topics.is_empty());
        // Its place is another's: that one is listed by itself, once.
        let next = topics.open(Kind::Channel, b"b", 0);
        assert_eq!(next, first);
        topics.list(next);
        topics.list(next);
        assert_eq!([(); 2].map(|()| topics.take_listed()), [None, Some(next)]);
        assert!(!topics.is_busy());
    }
}
