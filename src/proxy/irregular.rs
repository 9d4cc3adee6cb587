//! Irregular legs, counted by client and slot: those that do not simply wait in the backend that
//! the map names. A later request of the same client and slot may have to wait for them; all others
//! learn here, without a look at their elders, that nothing is in their way. Clients go on with a
//! thousand requests in flight while a node is lost, and each would look at a thousand.
//!
//! Not here: which of the elders is in the way (`launch`).

use ahash::AHashMap;

use super::Proxy;
use super::request::{Marks, State};
use super::types::NONE;

/// Kept as large as it was once, so that scripts and transactions allocate nothing.
#[derive(Default)]
pub struct Irregular {
    counts: AHashMap<(u32, u16), u32>,
}

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
    /// of a look at them for each that follows.
    pub(super) fn mark_those_of_older_map(&mut self, c: u32) {
        self.clients[c].map_version = self.map.version();
        let mut legs = Vec::new();
        let mut at = self.clients[c].head;
        while at != NONE {
            self.add_legs(at, &mut legs);
            at = self.requests[at].next_in_client;
        }
        for leg in legs {
            if self.requests[leg].state == State::InFlight {
                self.mark_irregular(leg);
            }
        }
    }
}
