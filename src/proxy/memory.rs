//! What is done when memory runs short, step by step: spare buffers go, heavy clients are not
//! read, new ones are refused, the heaviest are closed.
//!
//! Not here: counting (the driver tells), the limits of single clients (`intake`, `deliver`).

use super::Proxy;
use super::client::{Client, Phase};
use super::request::State;
use super::types::{Memory, NONE, Now};
use crate::limits::MEMORY_REFUSE_PERCENT;

/// Percent of the limit from which on spare buffers are given back,
const TRIM: u64 = 70;
/// heavy clients are not read,
const SLOW: u64 = 80;
/// only light clients are read, and new ones are refused,
const REFUSE: u64 = MEMORY_REFUSE_PERCENT;
/// the heaviest clients are closed.
const CLOSE: u64 = 100;
/// Under it all goes on.
const EASE: u64 = 75;

/// Requests of one client under way from the first step on: what a pipeline of large values asks
/// for in one go would stand before everybody else's replies.
const PRESSED_REQUESTS_MAX: u32 = 8;

/// Bytes from which on a client is heavy, and up to which it is light. Light ones are always read:
/// `maxclients` bounds what they can hold.
const HEAVY: usize = 64 * 1024;
const LIGHT: usize = 4 * 1024;

/// Between two looks at all clients, and how many are looked at in one turn: thousands take long.
const LOOK_EVERY_MS: u64 = 10;
const LOOK_AT_ONCE: u32 = 512;

/// What is not read may be what would free memory, were it whole. After so long the heaviest are
/// closed until there is room again, sooner if it was short a moment ago: it is the same crowd.
const SLOWED_MS_MAX: u64 = 2_000;
const SLOWED_AGAIN_MS_MAX: u64 = 300;
const SAME_CROWD_MS: u64 = 5_000;

/// Where a proxy stands.
#[derive(Debug, Default)]
pub(super) struct Ladder {
    percent: u64,
    /// Some clients are not read.
    slowed: bool,
    next_look_ms: u64,
    /// The client that a look goes on with; 0: with the first, when it is time.
    next_client: u32,
    /// When the heaviest are closed although memory suffices.
    patience_ms: u64,
    /// When it was last over, or the heaviest were closed.
    eased_ms: u64,
}

impl Ladder {
    /// Whether a new client is refused.
    pub(super) fn refuses(&self) -> bool {
        self.percent >= REFUSE
    }

    /// 0: nothing is short; 1 to 4: `TRIM`, `SLOW`, `REFUSE`, `CLOSE`.
    pub(super) fn step(&self) -> u8 {
        let steps = [TRIM, SLOW, REFUSE, CLOSE];
        steps.iter().filter(|&&step| self.percent >= step).count() as u8
    }

    /// Some clients are not read from now on.
    fn begin(&mut self, now_ms: u64) {
        self.slowed = true;
        let again = self.eased_ms > 0 && now_ms < self.eased_ms + SAME_CROWD_MS;
        let patience = if again { SLOWED_AGAIN_MS_MAX } else { SLOWED_MS_MAX };
        self.patience_ms = now_ms + patience;
    }

    /// How many requests of one client may be under way, of `most`.
    #[inline]
    pub(super) fn requests_max(&self, most: u32) -> u32 {
        if self.percent >= TRIM { most.min(PRESSED_REQUESTS_MAX) } else { most }
    }

    /// When `handle_memory` wants to be called although nothing else happens, milliseconds.
    pub(super) fn deadline(&self) -> u64 {
        if self.slowed { self.patience_ms } else { u64::MAX }
    }
}

impl Proxy {
    /// What the process holds, told once a turn.
    #[inline]
    pub fn handle_memory(&mut self, memory: Memory, now: Now) {
        let percent = memory.percent();
        self.ladder.percent = percent;
        if percent >= TRIM || self.ladder.slowed {
            self.now = now;
            self.climb(memory, percent);
        }
    }

    #[cold]
    fn climb(&mut self, memory: Memory, percent: u64) {
        let now = self.now.ms;
        if percent < EASE && self.ladder.slowed {
            return self.ease();
        }
        if percent >= SLOW && self.ladder.next_client > 0 {
            self.slow_down(if percent >= REFUSE { LIGHT } else { HEAVY });
        }
        if now < self.ladder.next_look_ms {
            return;
        }
        self.ladder.next_look_ms = now + LOOK_EVERY_MS;
        self.client_pool.clear();
        self.backend_pool.clear();
        self.partials.clear();
        if percent >= SLOW && self.ladder.next_client == 0 {
            self.slow_down(if percent >= REFUSE { LIGHT } else { HEAVY });
        }
        if percent >= CLOSE {
            let excess = memory.held.saturating_sub(memory.limit / 100 * REFUSE);
            self.close_heaviest(excess / memory.sharers.max(1));
        } else if self.ladder.slowed && now >= self.ladder.patience_ms {
            self.ladder.eased_ms = now;
            self.ladder.patience_ms = now + SLOWED_AGAIN_MS_MAX;
            let excess = memory.held.saturating_sub(memory.limit / 100 * TRIM);
            self.close_heaviest((excess / memory.sharers.max(1)).max(1));
        }
    }

    /// Has clients read no more that hold so many bytes: looks at some, and goes on with the others
    /// in the next turn.
    fn slow_down(&mut self, bytes: usize) {
        let (from, count) = (self.ladder.next_client, self.clients.places());
        let to = count.min(from.saturating_add(LOOK_AT_ONCE));
        self.ladder.next_client = if to < count { to } else { 0 };
        for c in from..to {
            let client = &self.clients[c];
            let is_read = client.phase == Phase::Open && !client.slowed;
            if is_read && self.weighs(client, bytes) {
                self.clients[c].slowed = true;
                self.tally.clients_slowed += 1;
                self.read_or_not(c);
                if !self.ladder.slowed {
                    self.ladder.begin(self.now.ms);
                }
            }
        }
    }

    fn ease(&mut self) {
        self.ladder.slowed = false;
        self.ladder.eased_ms = self.now.ms;
        let slowed: Vec<u32> = self.clients.indexes().filter(|&c| self.clients[c].slowed).collect();
        for c in slowed {
            self.clients[c].slowed = false;
            if self.clients[c].phase == Phase::Open {
                self.read_or_not(c);
            }
        }
    }

    /// Closes heavy clients, the heaviest first, until so many bytes are free.
    fn close_heaviest(&mut self, bytes: u64) {
        let weighed = self.clients.indexes().map(|c| (weight(&self.clients[c]), c));
        let mut heavy: Vec<(usize, u32)> = weighed.filter(|&(weight, _)| weight >= HEAVY).collect();
        heavy.sort_unstable_by(|one, other| other.cmp(one));
        let mut freed = 0;
        for (weight, c) in heavy {
            if freed >= bytes {
                break;
            }
            freed += weight as u64;
            self.tally.clients_closed_for_memory += 1;
            self.close_over_limit(c, "memory_limit is near and it holds the most");
        }
    }

    /// Whether it holds so many bytes, those of its requests included that nodes have and have not
    /// answered.
    fn weighs(&self, client: &Client, most: usize) -> bool {
        let mut bytes = weight(client);
        let mut at = client.head;
        while at != NONE && bytes < most {
            let entry = &self.requests[at];
            bytes += match entry.state {
                State::Parent => {
                    let parts = self.splits[entry.split].parts.iter();
                    parts.map(|&part| self.bytes_at_node(part)).sum()
                }
                _ => self.bytes_at_node(at),
            };
            at = entry.next_in_client;
        }
        bytes >= most
    }

    /// Only what is in a FIFO has a length: others keep that of an earlier request.
    fn bytes_at_node(&self, r: u32) -> usize {
        let entry = &self.requests[r];
        if entry.state == State::InFlight { entry.len as usize } else { 0 }
    }
}

/// Bytes that go when a client is closed.
fn weight(client: &Client) -> usize {
    let partial = client.partial.as_ref().map_or(0, |partial| {
        partial.bytes.capacity() + partial.args.capacity() * size_of::<crate::resp::Span>()
    });
    let queued = client.mode.as_ref().map_or(0, |mode| mode.bytes());
    client.output.pending() + client.stored + partial + queued
}
