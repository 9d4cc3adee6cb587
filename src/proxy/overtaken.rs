//! Requests that a node refused while younger ones of their client and slot were behind them on the
//! same connection: those may run, and then the elder would run after them.
//!
//! A refusal of the moment (LOADING and kin) may end between any two of a slot. TRYAGAIN, ASK and
//! MOVED are about keys, NOSCRIPT is about one script: only a younger one that names one of the
//! same keys must not run before. So the elder waits until such younger ones are answered. Refused
//! as well, they follow it; if one has run, the elder gets an error as its answer: it has not run,
//! and will not any more.
//!
//! That takes younger ones that were sent before anything said that slots move. Once something has,
//! a request that may name several keys is irregular from the start, and younger ones of its client
//! and slot are not sent before it is answered (`launch`): what is refused has nobody behind it.
//!
//! Not here: younger ones that are not sent yet; those are held (`launch`).

use super::Proxy;
use super::irregular::KeyMarks;
use super::local::errors;
use super::request::{Marks, State};
use super::types::NONE;
use crate::command::{self, Args, COMMANDS};
use crate::limits::RESHARDING_SEEN_MS;
use crate::resp::reply::{ErrorKind, classify_error};
use crate::resp::request::{Parsed, RequestLimits, RequestParser};

/// So many younger ones are looked at; if there are more, they are taken to be in the way.
const LOOKED_AT_MAX: usize = 64;

/// The keys of a request of so many bytes are read each time that they are asked for.
const MARKED_ANEW_MAX: usize = 1024;

/// Whether it says of the node as a whole, at this moment, that a request did not run.
fn is_of_the_moment(kind: ErrorKind) -> bool {
    use ErrorKind::{ClusterDown, Loading, MasterDown, ReadOnly};
    matches!(kind, ClusterDown | Loading | MasterDown | ReadOnly)
}

/// Whether it says so because of the keys that were asked for.
fn is_of_keys(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::TryAgain | ErrorKind::Ask | ErrorKind::Moved)
}

/// Whether it says nothing of others of its slot, as long as they name other keys.
fn is_of_its_own(kind: ErrorKind) -> bool {
    is_of_keys(kind) || kind == ErrorKind::NoScript
}

/// The keys of a request as it goes to nodes, or of all in a transaction. `None`: they cannot be
/// told.
fn keys_in(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    let (mut spans, mut places) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let parsed = RequestParser::default().parse(bytes, &RequestLimits::default(), &mut spans);
        let Ok(Parsed::Array { len, .. }) = parsed else { return None };
        let (one, rest) = bytes.split_at(len);
        let args = Args { bytes: one, spans: &spans };
        command::keys_of(command::lookup(&args).ok()?, &args, &mut places).ok()?;
        for &place in &places {
            let span = spans.get(place as usize)?;
            found.push(span.of(one));
        }
        bytes = rest;
    }
    (!found.is_empty()).then_some(found)
}

impl Proxy {
    /// A node has said something that is said while slots move.
    pub(super) fn note_resharding(&mut self, r: u32, line: &[u8]) {
        if is_of_keys(classify_error(line)) && !self.requests[r].marks.speaks_for_itself() {
            self.resharding_ms = self.now.ms + RESHARDING_SEEN_MS;
        }
    }

    /// Slots move, and a node may refuse `r` for its keys while others of its slot are run.
    pub(super) fn may_be_passed(&self, r: u32) -> bool {
        if self.now.ms >= self.resharding_ms {
            return false;
        }
        let row = COMMANDS.get(usize::from(self.requests[r].command));
        row.is_none_or(|row| row.plain_first_key().is_none())
    }

    fn both_read(&self, one: u32, other: u32) -> bool {
        let reads = |r: u32| self.requests[r].marks.has(Marks::RETRY_SAFE);
        reads(one) && reads(other)
    }

    /// Whether a younger one that is sent must not be before `elder`, in flight or not.
    pub(super) fn must_follow(&self, elder: u32, younger: u32) -> bool {
        let irregular = self.requests[elder].marks.has(Marks::IRREGULAR);
        irregular && self.may_be_passed(elder) && !self.both_read(elder, younger)
    }

    /// Whether leg `r`, of these bytes and refused with this line, must wait for younger ones that
    /// are at a node already.
    pub(super) fn has_younger_in_flight(&mut self, r: u32, bytes: &[u8], line: &[u8]) -> bool {
        let entry = &self.requests[r];
        let own = if entry.split == NONE { r } else { self.splits[entry.split].parent };
        let slot = entry.slot;
        let mut legs = Vec::new();
        let mut at = self.requests[own].next_in_client;
        while at != NONE && legs.len() <= LOOKED_AT_MAX {
            self.add_legs_of(at, slot, &mut legs);
            legs.retain(|&leg| {
                self.requests[leg].state == State::InFlight && !self.both_read(r, leg)
            });
            at = self.requests[at].next_in_client;
        }
        let all = is_of_the_moment(classify_error(line)) || legs.len() > LOOKED_AT_MAX;
        if legs.is_empty() || all {
            return !legs.is_empty();
        }
        let mine = self.key_marks(bytes);
        legs.iter().any(|&leg| self.shares_key(mine.as_ref(), leg))
    }

    /// Adds what of a request goes to nodes: its parts, if it was cut.
    pub(super) fn add_legs(&self, r: u32, legs: &mut Vec<u32>) {
        let entry = &self.requests[r];
        match entry.state {
            State::Parent => legs.extend_from_slice(&self.splits[entry.split].parts),
            _ => legs.push(r),
        }
    }

    /// As `add_legs`, those of one slot: of thousands of parts each may ask for its own.
    pub(super) fn add_legs_of(&mut self, r: u32, slot: u16, legs: &mut Vec<u32>) {
        let (entry, requests) = (&self.requests[r], &self.requests);
        let looked_at = match entry.state {
            State::Parent => {
                let slot_of = |part: u32| requests[part].slot;
                self.splits[entry.split].add_parts_of(slot, slot_of, legs)
            }
            _ if entry.slot == slot => {
                legs.push(r);
                0
            }
            _ => 0,
        };
        self.note_looked_at(1 + looked_at);
    }

    /// The keys of a request, as numbers that stand for them: two that are alike by chance make one
    /// wait, or be refused, that need not. `None`: they cannot be told.
    fn key_marks(&self, bytes: &[u8]) -> Option<KeyMarks> {
        let keys = keys_in(bytes)?;
        self.note_looked_at(keys.len());
        Some(keys.iter().map(|key| self.random.hash_one(key)).collect())
    }

    /// Whether a leg that is or was in flight names one of these keys, as far as can be told: while
    /// the kernel has its bytes nobody can.
    fn shares_key(&self, mine: Option<&KeyMarks>, leg: u32) -> bool {
        let entry = &self.requests[leg];
        let (Some(mine), Some(backend)) = (mine, self.backends.get(entry.backend as usize)) else {
            return true;
        };
        let unsent;
        let other = match backend.sent_bytes_of(entry.start, entry.len) {
            Some(bytes) => bytes,
            None => {
                unsent = backend.bytes_of(entry.start, entry.len).unwrap_or_default();
                &unsent
            }
        };
        let Some(theirs) = keys_in(other) else { return true };
        self.note_looked_at(theirs.len());
        theirs.iter().any(|key| mine.contains(&self.random.hash_one(key)))
    }

    /// Whether an elder that waits names a key of `r`. Thousands of younger ones may ask this of
    /// one that names thousands of keys, so its marks are kept while it waits.
    fn waits_for_key_of(&mut self, elder: u32, r: u32) -> bool {
        let (own, ticket) = (self.requests.own(elder), self.requests[elder].next_in_backend);
        if own.len() <= MARKED_ANEW_MAX {
            let mine = self.key_marks(own);
            return self.shares_key(mine.as_ref(), r);
        }
        if !self.irregular.knows_keys(elder, ticket) {
            let mine = self.key_marks(own);
            self.irregular.keep_keys(elder, ticket, mine);
        }
        self.shares_key(self.irregular.keys_of(elder), r)
    }

    /// `r` is answered, and elders of its client are not. A part of a split is answered by itself.
    pub(super) fn answer_overtaken(&mut self, r: u32, reply: &[u8]) {
        let entry = &self.requests[r];
        let (c, generation, slot) = (entry.client, entry.client_generation, entry.slot);
        // What a script says in a node's words it may say after it has written.
        let refused =
            !entry.marks.speaks_for_itself() && super::route::is_refusal(classify_error(reply));
        if self.clients[c].irregular == 0 || self.irregular.count(c, slot) == 0 || refused {
            return;
        }
        let own = if entry.split == NONE { r } else { self.splits[entry.split].parent };
        let mut found = Vec::new();
        // Those that wait are irregular: behind the last of these nobody is looked at.
        let mut left = self.irregular.count(c, slot) as usize;
        let mut elder = self.clients[c].head;
        while elder != NONE && elder != own && left > 0 {
            let before = found.len();
            self.add_legs_of(elder, slot, &mut found);
            let new = found.iter().skip(before);
            left -= new.filter(|&&leg| self.requests[leg].marks.has(Marks::IRREGULAR)).count();
            elder = self.requests[elder].next_in_client;
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
            match classify_error(&line) {
                // Not to be shown: nobody can follow it.
                ErrorKind::Moved | ErrorKind::Ask => self.fail(elder, errors::tryagain),
                _ => self.complete(elder, &line),
            }
        }
    }

    fn is_overtaken(&mut self, elder: u32, r: u32) -> bool {
        let old = &self.requests[elder];
        if old.state != State::Waiting
            || old.slot != self.requests[r].slot
            || self.both_read(elder, r)
        {
            return false;
        }
        let kind = classify_error(self.requests.reply(elder));
        let shared = !old.marks.has(Marks::PRIVATE);
        is_of_the_moment(kind) || (shared && is_of_its_own(kind) && self.waits_for_key_of(elder, r))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_all_commands_on_the_wire_are_found() {
        let mset = b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n".as_slice();
        assert_eq!(keys_in(mset), Some(vec![&b"a"[..], b"b"]));
        let exec = [b"*1\r\n$5\r\nMULTI\r\n", mset, b"*1\r\n$4\r\nEXEC\r\n"].concat();
        assert_eq!(keys_in(&exec), Some(vec![&b"a"[..], b"b"]));
        for unknown in
            [&b""[..], b"*1\r\n$4\r\nEXEC\r\n", b"*2\r\n$4\r\nNOPE\r\n$1\r\na\r\n", b"*1\r\n$"]
        {
            assert_eq!(keys_in(unknown), None);
        }
    }
}
