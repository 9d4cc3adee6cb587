//! How many clients of the other reactors are given what is published.
//!
//! The node counts the connection of each reactor that it passes a message on to as one, and knows
//! nothing of those that listen at another node. So reactors with subscriptions are asked by how
//! much their clients are more. That is a part of the answer beside the node's (`fanout`). All
//! that a turn has published is asked for at once, and one question is under way at a time: what
//! it costs hangs on turns, not on messages.
//!
//! Not here: one reactor's receivers (`pubsub`), how questions travel (`reactor/peers`).

use std::sync::Arc;

use super::Proxy;
use super::dispatch::Asked;
use super::peers::{Query, Told};
use super::pubsub::Kind;
use super::request::State;
use super::types::{Action, NO_SLOT, NONE};
use crate::cluster::slot_of;
use crate::limits::PEERS_MS_MAX;
use crate::resp::write;

/// What is published: whose receivers are to be counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    pub sharded: bool,
    pub channel: Box<[u8]>,
}

#[derive(Debug, Default)]
pub struct Receivers {
    /// Other reactors have subscriptions.
    elsewhere: bool,
    /// Parts of answers, `NONE` where the client has left, and what each counts: still to be
    /// asked.
    parts: Vec<u32>,
    published: Vec<Published>,
    asked: Option<Question>,
}

/// The question under way.
#[derive(Debug)]
struct Question {
    ticket: u64,
    parts: Vec<u32>,
    /// For each part, so far.
    sums: Vec<i64>,
    /// Peers that have not said theirs.
    missing: Vec<u16>,
    until_ms: u64,
}

impl Receivers {
    /// Of the question under way.
    pub fn ticket(&self) -> Option<u64> {
        self.asked.as_ref().map(|question| question.ticket)
    }
}

impl Proxy {
    /// Whether any client of this reactor is subscribed, or nodes still believe so.
    pub fn has_subscriptions(&self) -> bool {
        !self.topics.is_empty()
    }

    /// Whether other reactors have subscriptions: told at the start of each turn.
    pub fn handle_subscriptions_elsewhere(&mut self, elsewhere: bool) {
        self.receivers.elsewhere = elsewhere;
    }

    pub(super) fn counts_elsewhere(&self) -> bool {
        self.receivers.elsewhere && self.has_peers()
    }

    /// By how much the clients of this reactor that are given a message are more than the receivers
    /// that the channel's node counts for it.
    pub(super) fn own_receivers(&self, sharded: bool, channel: &[u8]) -> i64 {
        let kinds: &[Kind] = if sharded { &[Kind::Shard] } else { &[Kind::Channel, Kind::Pattern] };
        self.topics.receivers(kinds, channel, self.map.get(slot_of(channel)))
    }

    /// Adds the part of the answer that the other reactors have to say.
    pub(super) fn open_elsewhere(&mut self, asked: Asked, s: u32, sharded: bool, channel: &[u8]) {
        let r = self.open_part(asked, s, NO_SLOT);
        let entry = &mut self.requests[r];
        entry.state = State::Inquiring;
        // It is in no backend's stream: its place here.
        entry.start = self.receivers.parts.len() as u32;
        self.receivers.parts.push(r);
        self.receivers.published.push(Published { sharded, channel: channel.into() });
    }

    /// Asks for all that waits, unless a question is under way.
    pub(super) fn ask_receivers(&mut self) {
        if self.receivers.parts.is_empty() || self.receivers.asked.is_some() {
            return;
        }
        let parts = std::mem::take(&mut self.receivers.parts);
        let published = std::mem::take(&mut self.receivers.published);
        let missing = self.inquiries.peers.clone();
        let ticket = self.inquiries.ticket();
        let (sums, until_ms) = (vec![0; parts.len()], self.now.ms + PEERS_MS_MAX);
        let nobody = missing.is_empty();
        self.receivers.asked = Some(Question { ticket, parts, sums, missing, until_ms });
        if nobody {
            return self.say_receivers();
        }
        let query = Arc::new(Query::Receivers(published));
        self.actions.push(Action::Ask { ticket, query });
    }

    /// Another reactor has said its part of something.
    pub(super) fn count_receivers(&mut self, ticket: u64, from: u16, told: &Told) {
        let Some(question) = self.receivers.asked.as_mut().filter(|of| of.ticket == ticket) else {
            return;
        };
        let before = question.missing.len();
        question.missing.retain(|&peer| peer != from);
        if let (Told::Shares(shares), true) = (told, question.missing.len() < before) {
            question.sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        }
        if question.missing.is_empty() {
            self.say_receivers();
        }
    }

    /// A reactor that says nothing is not waited for any longer: its clients are not counted.
    pub(super) fn check_receivers(&mut self) {
        if self.receivers.asked.as_ref().is_some_and(|asked| self.now.ms >= asked.until_ms) {
            self.say_receivers();
        }
    }

    /// The client of a part has left.
    pub(super) fn forget_receivers(&mut self, r: u32) {
        let place = self.requests[r].start as usize;
        let asked = self.receivers.asked.as_mut().map(|question| &mut question.parts);
        for parts in asked.into_iter().chain([&mut self.receivers.parts]) {
            if let Some(part) = parts.get_mut(place).filter(|part| **part == r) {
                *part = NONE;
            }
        }
    }

    /// Answers the parts that were asked for. The question stays open meanwhile: an answer may
    /// close its client, and with it other parts.
    fn say_receivers(&mut self) {
        let mut out = Vec::new();
        let mut place = 0;
        while let Some(question) = &mut self.receivers.asked {
            let Some(part) = question.parts.get_mut(place) else { break };
            let r = std::mem::replace(part, NONE);
            out.clear();
            write::integer(&mut out, question.sums[place]);
            if r != NONE {
                self.complete(r, &out);
            }
            place += 1;
        }
        self.receivers.asked = None;
    }
}
