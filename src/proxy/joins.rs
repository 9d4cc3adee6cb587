//! Requests to subscribe, and to unsubscribe, that name very many channels, and clients that leave
//! so many: piece by piece, some in each turn, so that others need not wait for all of it.
//!
//! What is half done is seen by nobody: confirmations are written when all of them can be, and
//! until then messages of what the client has just subscribed to wait with them.
//!
//! Not here: what clients may ask (`subscribe`), the tables (`pubsub`).

use super::Proxy;
use super::client::Phase;
use super::pubsub::{Join, Leaver, Leaves, Names};
use super::request::State;
use super::subscribe::confirm;
use super::types::NONE;

/// Names that one turn looks at, of all such requests together: each takes about a microsecond. A
/// request with fewer is carried out at once.
pub(super) const NAMES_AT_ONCE: usize = 4 * 1024;

impl Proxy {
    /// Once a turn.
    pub(super) fn go_on_with_topics(&mut self) {
        let mut left = NAMES_AT_ONCE;
        while left > 0
            && let Some(r) = self.topics.unfinished.pop_front()
        {
            self.join_some(r, &mut left);
        }
        while left > 0
            && let Some(leaver) = self.topics.leavers.pop_front()
        {
            self.leave_some(leaver, &mut left);
        }
        self.urgent |= self.topics.has_more();
    }

    // --- subscribing -------------------------------------------------------------------------

    /// A topic that a request to subscribe has waited for is whole.
    pub(super) fn advance_join(&mut self, r: u32) {
        let Some(join) = self.topics.joins.get_mut(&r) else { return };
        if join.names.is_some() {
            // It looks again when it has named all.
            return;
        }
        if join.topics.len() <= NAMES_AT_ONCE {
            let mut all = usize::MAX;
            return self.join_some(r, &mut all);
        }
        if !std::mem::replace(&mut join.listed, true) {
            self.topics.unfinished.push_back(r);
        }
    }

    /// Goes on with a request to subscribe by so many names, and answers it if all that it names is
    /// whole.
    pub(super) fn join_some(&mut self, r: u32, left: &mut usize) {
        let Some(mut join) = self.topics.joins.remove(&r) else { return };
        join.listed = false;
        if let Some(mut names) = join.names.take() {
            self.open_names(&mut join, &mut names, left);
            join.since_ms = self.now.ms;
            join.names = (!names.is_done()).then_some(names);
        }
        let lacks = join.names.is_none() && self.lacks_topic(&mut join, left);
        if lacks {
            join.checked = 0;
            self.topics.wait(join.topics[join.at], r);
        } else if join.names.is_none() && join.checked == join.topics.len() {
            self.make_live(&mut join, left);
            if join.live == join.new.len() {
                return self.answer_join(r, &join);
            }
        }
        if !lacks {
            join.listed = true;
            self.topics.unfinished.push_back(r);
        }
        self.topics.joins.insert(r, join);
    }

    fn open_names(&mut self, join: &mut Join, names: &mut Names, left: &mut usize) {
        self.look_at_map();
        let (c, kind) = (join.client, names.kind);
        let mut subscribed = self.clients[c].subscribed.take().unwrap_or_default();
        let version = self.clients[c].session.version;
        let (before, from) = (join.new.len(), *left);
        while *left > 0
            && let Some(name) = names.take_next()
        {
            *left -= 1;
            let t = self.topics.open(kind, name, self.now.ms);
            if subscribed.insert(kind, t, name.len()) {
                self.topics[t].add(c);
                join.new.push(t);
            }
            join.topics.push(t);
            let count = subscribed.count(kind);
            confirm(&mut join.reply, version, kind.verb(true), Some(name), count);
        }
        self.clients[c].subscribed = Some(subscribed);
        self.count_subscriptions(c);
        self.crowd.effort += (from - *left) as u64;
        for n in before..join.new.len() {
            self.settle_topic(join.new[n]);
        }
    }

    /// Whether one of its topics is known not to be whole: that `at`. All are looked at twice, as
    /// one may be lost while another is waited for.
    fn lacks_topic(&self, join: &mut Join, left: &mut usize) -> bool {
        let count = join.topics.len();
        while *left > 0 && join.checked < count {
            let first_time = join.at < count;
            let place = if first_time { &mut join.at } else { &mut join.checked };
            if !self.topics[join.topics[*place]].whole {
                join.at = *place;
                return true;
            }
            (*place, *left) = (*place + 1, *left - 1);
        }
        false
    }

    /// Its messages may come. If not all are at once, those that do wait for the confirmations.
    fn make_live(&mut self, join: &mut Join, left: &mut usize) {
        let to = join.new.len().min(join.live.saturating_add(*left));
        for &t in &join.new[join.live..to] {
            self.topics[t].make_live(join.client);
        }
        *left -= to - join.live;
        join.live = to;
        if let Some(subscribed) = self.clients[join.client].subscribed.as_mut() {
            subscribed.joining = to < join.new.len();
        }
    }

    fn answer_join(&mut self, r: u32, join: &Join) {
        self.complete(r, &join.reply);
        self.release_messages(join.client);
    }

    /// A request to subscribe cannot be carried out: as if it had never been made.
    pub(super) fn fail_join(&mut self, r: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(join) = self.topics.joins.remove(&r) else { return };
        if join.new.len() > NAMES_AT_ONCE {
            let mut reply = Vec::new();
            write(&mut reply);
            return self.leave_in_pieces(join.client, r, Leaves::Topics(join.new), reply);
        }
        for &t in &join.new {
            self.leave_topic(join.client, t);
        }
        self.fail(r, write);
    }

    /// The client of a request about subscriptions has left; these are dropped by themselves.
    pub(super) fn forget_join(&mut self, r: u32) {
        self.topics.joins.remove(&r);
    }

    // --- leaving -----------------------------------------------------------------------------

    /// A client is closed, or is to begin anew once nothing is left.
    pub(super) fn leave_all(&mut self, c: u32) {
        let client = &mut self.clients[c];
        let generation = client.generation;
        if client.phase == Phase::Closing
            && let Some(subscribed) = client.subscribed.as_mut()
        {
            subscribed.held = Vec::new();
        }
        if !self.topics.leavers.iter().any(|leaver| leaver.leaves_all_of(c, generation)) {
            self.leave_in_pieces(c, NONE, Leaves::All, Vec::new());
        }
    }

    pub(super) fn leave_in_pieces(&mut self, c: u32, r: u32, from: Leaves, reply: Vec<u8>) {
        let generation = self.clients[c].generation;
        let leaver = Leaver { client: c, generation, request: r, from, reply, gone: false };
        self.topics.leavers.push_back(leaver);
    }

    fn leave_some(&mut self, mut leaver: Leaver, left: &mut usize) {
        let (c, r) = (leaver.client, leaver.request);
        let client = &self.clients[c];
        let same = client.generation == leaver.generation && client.phase != Phase::Free;
        let asks = r == NONE || {
            let entry = &self.requests[r];
            (entry.client, entry.client_generation, entry.state)
                == (c, leaver.generation, State::Subscribing)
        };
        // Who is closed meanwhile leaves all, by another of these.
        if !same || !asks {
            return;
        }
        while *left > 0 {
            *left -= 1;
            if !self.leave_next(&mut leaver) {
                return self.end_leaving(leaver);
            }
        }
        self.topics.leavers.push_back(leaver);
    }

    /// `false`: there is none.
    fn leave_next(&mut self, leaver: &mut Leaver) -> bool {
        let c = leaver.client;
        let version = self.clients[c].session.version;
        let subscribed = self.clients[c].subscribed.as_deref();
        let (kind, topic, name) = match &mut leaver.from {
            Leaves::All => {
                let Some(t) = subscribed.and_then(|of| of.all().next()) else { return false };
                self.leave_topic(c, t);
                return true;
            }
            Leaves::Topics(topics) => {
                let Some(t) = topics.pop() else { return false };
                self.leave_topic(c, t);
                return true;
            }
            Leaves::Kind(kind) => {
                let first = subscribed.and_then(|of| of.of_kind(*kind).first().copied());
                let Some(t) = first else { return false };
                (*kind, Some(t), self.topics[t].name.clone())
            }
            Leaves::Names(names) => {
                let kind = names.kind;
                let Some(name) = names.take_next() else { return false };
                (kind, self.topics.find(kind, name), name.into())
            }
        };
        if let Some(t) = topic {
            self.leave_topic(c, t);
        }
        let count = self.count_of(c, kind);
        confirm(&mut leaver.reply, version, kind.verb(false), Some(&name), count);
        true
    }

    fn end_leaving(&mut self, leaver: Leaver) {
        let Leaver { client: c, request: r, from, reply, gone, .. } = leaver;
        match (from, self.clients[c].phase) {
            (Leaves::All, Phase::Closing) => {
                self.clients[c].subscribed = None;
                if gone {
                    self.clients.close(c);
                }
            }
            (Leaves::All, _) => self.queue_for_go(c),
            (Leaves::Topics(_), _) => self.fail(r, |out| out.extend_from_slice(&reply)),
            (Leaves::Kind(_) | Leaves::Names(_), _) => self.complete(r, &reply),
        }
    }

    /// A client's socket is gone. Its entry is kept as long as a topic has it.
    pub(super) fn handle_client_gone(&mut self, c: u32) {
        let generation = self.clients[c].generation;
        let mut leavers = self.topics.leavers.iter_mut();
        match leavers.find(|leaver| leaver.leaves_all_of(c, generation)) {
            Some(leaver) => leaver.gone = true,
            None => self.clients.close(c),
        }
    }
}
