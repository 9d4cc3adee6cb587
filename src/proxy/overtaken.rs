//! Requests that a node refused while younger ones of their client and slot were behind them on the
//! same connection, and were run: a node may be well again between two. Sent again they would run
//! out of order, so they get the refusal as their answer: they have not run.
//!
//! Not here: younger ones that are not sent yet; those are held (`launch`).

use super::Proxy;
use super::request::{Marks, State};
use super::types::NONE;
use crate::resp::reply::{ErrorKind, classify_error};

/// Whether it says of the node as a whole, at this moment, that a request did not run. (TRYAGAIN is
/// about keys, and those who ask for others may go first.)
fn is_of_the_moment(line: &[u8]) -> bool {
    use ErrorKind::{ClusterDown, Loading, MasterDown, ReadOnly};
    matches!(classify_error(line), ClusterDown | Loading | MasterDown | ReadOnly)
}

impl Proxy {
    /// Whether a refused leg must wait for younger ones that are at a node already.
    pub(super) fn has_younger_in_flight(&self, r: u32) -> bool {
        let entry = &self.requests[r];
        let (slot, split) = (entry.slot, entry.split);
        let own = if split == NONE { r } else { self.splits[split].parent };
        let mut at = self.requests[own].next_in_client;
        while at != NONE {
            let entry = &self.requests[at];
            if entry.state == State::InFlight && entry.slot == slot {
                return true;
            }
            at = entry.next_in_client;
        }
        false
    }

    /// `r` is answered, and elders of its client are not.
    pub(super) fn answer_overtaken(&mut self, r: u32, reply: &[u8]) {
        let entry = &self.requests[r];
        let (c, generation, slot) = (entry.client, entry.client_generation, entry.slot);
        if self.clients[c].irregular == 0
            || self.irregular.count(c, slot) == 0
            || super::route::is_refusal(classify_error(reply))
        {
            return;
        }
        let mut found = Vec::new();
        let mut elder = self.clients[c].head;
        while elder != NONE && elder != r {
            let entry = &self.requests[elder];
            match entry.state {
                State::Parent => found.extend(self.splits[entry.split].parts.iter().copied()),
                _ => found.push(elder),
            }
            elder = entry.next_in_client;
        }
        found.retain(|&elder| self.is_overtaken(elder, r));
        for elder in found {
            let entry = &self.requests[elder];
            // An earlier one's end may have closed the client, or answered its split.
            let same = entry.client == c && entry.client_generation == generation;
            if !same || entry.state != State::Waiting {
                continue;
            }
            self.forget_awaiting(elder);
            drop(self.requests.take_own(elder));
            let line = self.requests.take_reply(elder);
            self.requests[elder].waits = 0;
            self.complete(elder, &line);
        }
    }

    fn is_overtaken(&self, elder: u32, r: u32) -> bool {
        let (old, new) = (&self.requests[elder], &self.requests[r]);
        let both_read = old.marks.has(Marks::RETRY_SAFE) && new.marks.has(Marks::RETRY_SAFE);
        old.state == State::Waiting
            && old.slot == new.slot
            && !both_read
            && is_of_the_moment(self.requests.reply(elder))
    }
}
