//! Replies of one pipeline leave together.
//!
//! The nodes that a pipeline is spread over answer at different times. What the first has answered
//! would leave by itself, and each send costs a system call and wakes the client up to wait for the
//! rest. While the reactor is busy, such replies wait for the others of their client: until all
//! are there, or there are many bytes of them, or a moment has passed.
//!
//! Not here: what is sent (`proxy::flush_client`), whether the reactor is busy (its driver knows).

use std::collections::VecDeque;

use super::Proxy;
use crate::limits::{HOLD_BYTES_MAX, HOLD_MS, MUCH_OUTPUT};

#[derive(Debug, Default)]
pub(super) struct Hold {
    /// The driver waits for more events to come together.
    busy: bool,
    /// Clients whose replies wait, and until when, in this order. Those that were sent
    /// meanwhile are still in it.
    until: VecDeque<(u64, u32, u32)>,
}

impl Hold {
    pub(super) fn deadline(&self) -> u64 {
        self.until.front().map_or(u64::MAX, |&(until, ..)| until)
    }
}

impl Proxy {
    /// Whether there is so much to do that a moment's wait makes it cheaper.
    pub fn set_busy(&mut self, busy: bool) {
        self.hold.busy = busy;
    }

    /// Sends what clients have got in this turn, or what has waited long enough. Of those that have
    /// much to take no more than so many bytes, at most a piece more: the others' wait for the next
    /// turn.
    pub(super) fn flush_clients(&mut self, mut much: usize) {
        let mut dirty = std::mem::take(&mut self.dirty_clients);
        dirty.retain(|&c| {
            if self.holds(c) {
                return false;
            }
            let output = &self.clients[c].output;
            if output.pending() >= MUCH_OUTPUT && !output.sending {
                if much == 0 {
                    return true;
                }
                much = much.saturating_sub(output.next_len());
            }
            self.flush_client(c);
            false
        });
        self.dirty_clients = dirty;
        self.flush_held();
    }

    /// Whether the replies of a client wait for those that it is still owed.
    #[inline]
    fn holds(&mut self, c: u32) -> bool {
        let client = &mut self.clients[c];
        let few = client.output.pending() <= HOLD_BYTES_MAX;
        if !self.hold.busy || client.in_flight == 0 || !few || self.leaving.active {
            return false;
        }
        if !client.waits_to_send {
            client.waits_to_send = true;
            self.hold.until.push_back((self.now.ms + HOLD_MS, c, client.generation));
        }
        client.dirty = false;
        true
    }

    #[inline]
    fn flush_held(&mut self) {
        while self.hold.deadline() <= self.now.ms {
            let Some((_, c, generation)) = self.hold.until.pop_front() else { break };
            let client = &self.clients[c];
            if client.generation == generation && client.waits_to_send {
                self.flush_client(c);
            }
        }
    }
}
