//! Irregular legs, counted by client and slot: those that do not simply wait in the backend that
//! the map names. A later request of the same client and slot may have to wait for them; all others
//! learn here, without a look at their elders, that nothing is in their way. Clients go on with a
//! thousand requests in flight while a node is lost, and each would look at a thousand.
//!
//! Not here: which of the elders is in the way (`launch`).

use std::cell::Cell;

use ahash::{AHashMap, AHashSet};

use super::Proxy;
use super::client::ALL_IRREGULAR;
use super::request::{Marks, State};
use super::types::NONE;

/// Kept as large as it was once, so that scripts and transactions allocate nothing.
#[derive(Default)]
pub struct Irregular {
    counts: AHashMap<(u32, u16), u32>,
    /// Of some that wait, with their tickets: the keys that they name (`overtaken`).
    keys: AHashMap<u32, (u32, Option<KeyMarks>)>,
    looked_at: Cell<u64>,
}

/// Numbers that stand for keys.
pub type KeyMarks = AHashSet<u64>;

/// Of so many requests keys are kept; then they are read anew.
const KEYS_KEPT_MAX: usize = 16;

impl Irregular {
    fn add(&mut self, client: u32, slot: u16) {
        *self.counts.entry((client, slot)).or_default() += 1;
    }

    fn take(&mut self, client: u32, slot: u16) {
        if let Some(count) = self.counts.get_mut(&(client, slot)) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&(client, slot));
            }
        }
        if self.counts.is_empty() && !self.keys.is_empty() {
            self.keys = AHashMap::new();
        }
    }

    pub fn knows_keys(&self, leg: u32, ticket: u32) -> bool {
        self.keys.get(&leg).is_some_and(|of| of.0 == ticket)
    }

    pub fn keep_keys(&mut self, leg: u32, ticket: u32, keys: Option<KeyMarks>) {
        if self.keys.len() >= KEYS_KEPT_MAX {
            self.keys.clear();
        }
        self.keys.insert(leg, (ticket, keys));
    }

    pub fn keys_of(&self, leg: u32) -> Option<&KeyMarks> {
        self.keys.get(&leg)?.1.as_ref()
    }

    /// So many legs.
    pub fn count(&self, client: u32, slot: u16) -> u32 {
        self.counts.get(&(client, slot)).copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

impl Proxy {
    pub(super) fn mark_irregular(&mut self, r: u32) {
        let entry = &mut self.requests[r];
        if entry.client != NONE && !entry.marks.has(Marks::IRREGULAR) {
            entry.marks.set(Marks::IRREGULAR);
            self.clients[entry.client].irregular += 1;
            self.irregular.add(entry.client, entry.slot);
        }
    }

    /// Takes the mark off; whether it was there.
    #[inline]
    pub(super) fn unmark_irregular(&mut self, r: u32) -> bool {
        let entry = &mut self.requests[r];
        if !entry.marks.has(Marks::IRREGULAR) {
            return false;
        }
        entry.marks.unset(Marks::IRREGULAR);
        if entry.client != NONE {
            self.clients[entry.client].irregular -= 1;
            self.irregular.take(entry.client, entry.slot);
        }
        true
    }

    /// The map, or what its client speaks, is no longer what those in flight went by: once, instead
    /// of a look at them for each that follows. Nor is there one for each change of the map until
    /// some of its client goes by it again (`enqueue`): after a fail-over each part of a huge MGET
    /// is answered MOVED, and each of them changes the map.
    pub(super) fn mark_those_of_older_map(&mut self, c: u32) {
        if std::mem::replace(&mut self.clients[c].map_version, ALL_IRREGULAR) == ALL_IRREGULAR {
            return;
        }
        let mut legs = Vec::new();
        let mut at = self.clients[c].head;
        while at != NONE {
            self.add_legs(at, &mut legs);
            at = self.requests[at].next_in_client;
        }
        self.note_looked_at(legs.len());
        for leg in legs {
            if self.requests[leg].state == State::InFlight {
                self.mark_irregular(leg);
            }
        }
    }

    /// A search among what a client has under way has looked at so many entries.
    #[inline]
    pub(super) fn note_looked_at(&self, entries: usize) {
        if cfg!(debug_assertions) {
            let looked_at = &self.irregular.looked_at;
            looked_at.set(looked_at.get() + entries as u64);
        }
    }

    /// For what is looked at only to assert it.
    pub(super) fn uncounted<T>(&mut self, look: impl FnOnce(&mut Proxy) -> T) -> T {
        let before = self.looked_at();
        let found = look(self);
        self.irregular.looked_at.set(before);
        found
    }

    /// How many that were, where assertions are on: whether work grows as what is asked does, and
    /// not with its square, is tested by this number, which does not hang on the machine.
    pub fn looked_at(&self) -> u64 {
        self.irregular.looked_at.get()
    }
}
