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

/// Closed in one turn, at most, and the bytes after which no further one is: what each holds takes
/// long to be given back, and others wait meanwhile.
const CLOSE_AT_ONCE: usize = 4;
const CLOSE_BYTES_AT_ONCE: usize = 1 << 20;

/// So many percent of the limit over it there is no time for that.
const FAR_OVER: u64 = CLOSE + 5;

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
    /// The heavy ones, as far as the look has come, and as the last one found them.
    heavy: (Vec<u32>, Vec<u32>),
    /// Clients are let be read again, some each turn.
    easing: bool,
    /// When a look, or that, goes on.
    next_piece_ms: u64,
    /// When the heaviest are closed although memory suffices.
    patience_ms: u64,
    /// When it was last over, or the heaviest were closed.
    eased_ms: u64,
    doomed: Doomed,
}

/// Who is closed, some each turn.
#[derive(Debug, Default)]
struct Doomed {
    /// What each holds, its index and generation; the heaviest are last.
    clients: Vec<(usize, u32, u32)>,
    /// Until so many bytes are free...
    bytes: u64,
    /// ... or no more than so many percent of the limit are held.
    down_to: u64,
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

    /// Whoever is not read by now stays so for the time being.
    fn stop_easing(&mut self, now_ms: u64) {
        if std::mem::take(&mut self.easing) {
            self.stop_looking();
            self.patience_ms = now_ms + SLOWED_AGAIN_MS_MAX;
        }
    }

    fn stop_looking(&mut self) {
        self.next_client = 0;
        self.heavy = Default::default();
    }

    /// How many requests of one client may be under way, of `most`.
    #[inline]
    pub(super) fn requests_max(&self, most: u32) -> u32 {
        if self.percent >= TRIM { most.min(PRESSED_REQUESTS_MAX) } else { most }
    }

    /// When `handle_memory` wants to be called although nothing else happens, milliseconds.
    pub(super) fn deadline(&self) -> u64 {
        let patience = if self.slowed && !self.easing { self.patience_ms } else { u64::MAX };
        let goes_on = self.next_client > 0 || !self.doomed.clients.is_empty();
        if goes_on { patience.min(self.next_piece_ms) } else { patience }
    }
}

impl Proxy {
    /// What the process holds, told once a turn.
    #[inline]
    pub fn handle_memory(&mut self, memory: Memory, now: Now) {
        let percent = memory.percent();
        self.ladder.percent = percent;
        let ladder = &self.ladder;
        let goes_on = ladder.next_client > 0 || !ladder.doomed.clients.is_empty();
        if percent >= TRIM || ladder.slowed || goes_on {
            self.now = now;
            self.climb(memory, percent);
        }
    }

    #[cold]
    fn climb(&mut self, memory: Memory, percent: u64) {
        let now = self.now.ms;
        if !self.ladder.doomed.clients.is_empty() && self.close_doomed(memory) {
            return;
        }
        if percent < EASE && self.ladder.slowed {
            return self.ease();
        }
        self.ladder.stop_easing(now);
        if percent < TRIM && !self.ladder.slowed {
            self.ladder.stop_looking();
            return;
        }
        if self.ladder.next_client == 0 {
            if now < self.ladder.next_look_ms {
                return;
            }
            self.ladder.next_look_ms = now + LOOK_EVERY_MS;
            self.client_pool.clear();
            self.backend_pool.clear();
            self.partials.clear();
        }
        let slow_from = match percent {
            REFUSE.. => LIGHT,
            SLOW.. => HEAVY,
            _ => usize::MAX,
        };
        if (percent >= SLOW || self.ladder.slowed) && !self.look(slow_from) {
            return;
        }
        if percent >= CLOSE {
            self.close_heaviest(memory, REFUSE);
        } else if self.ladder.slowed && now >= self.ladder.patience_ms {
            self.ladder.eased_ms = now;
            self.ladder.patience_ms = now + SLOWED_AGAIN_MS_MAX;
            self.close_heaviest(memory, TRIM);
        }
    }

    /// Looks at some clients, and at the others in the next turns; true: all have been looked at.
    /// Those that hold so many bytes are read no more.
    fn look(&mut self, slow_from: usize) -> bool {
        let (from, count) = (self.ladder.next_client, self.clients.places());
        let to = count.min(from.saturating_add(LOOK_AT_ONCE));
        for c in from..to {
            let client = &self.clients[c];
            let kept = |r| self.bytes_kept(r);
            if self.sum_up_to(HEAVY, client, kept) >= HEAVY {
                self.ladder.heavy.0.push(c);
            }
            let is_read = client.phase == Phase::Open && !client.slowed;
            if is_read && self.weighs(client, slow_from) {
                self.clients[c].slowed = true;
                self.tally.clients_slowed += 1;
                self.read_or_not(c);
                if !self.ladder.slowed {
                    self.ladder.begin(self.now.ms);
                }
            }
        }
        let ladder = &mut self.ladder;
        ladder.next_client = if to < count { to } else { 0 };
        ladder.next_piece_ms = self.now.ms + 1;
        if to == count {
            ladder.heavy.1 = std::mem::take(&mut ladder.heavy.0);
        }
        to == count
    }

    /// Has some clients read again, and the others in the next turns: all at once would fill every
    /// buffer.
    fn ease(&mut self) {
        let ladder = &mut self.ladder;
        let from = if ladder.easing { ladder.next_client } else { 0 };
        let count = self.clients.places();
        let to = count.min(from.saturating_add(LOOK_AT_ONCE));
        (ladder.next_client, ladder.easing) = (to, true);
        ladder.next_piece_ms = self.now.ms + 1;
        if to == count {
            ladder.stop_easing(self.now.ms);
            ladder.slowed = false;
            ladder.eased_ms = self.now.ms;
        }
        for c in from..to {
            if std::mem::take(&mut self.clients[c].slowed) && self.clients[c].phase == Phase::Open {
                self.read_or_not(c);
            }
        }
    }

    /// Closes heavy clients, the heaviest first, until no more than so many percent of the limit
    /// are held: some now, the others in the next turns.
    fn close_heaviest(&mut self, memory: Memory, down_to: u64) {
        let found = std::mem::take(&mut self.ladder.heavy.1);
        let weighed = found.iter().map(|&c| {
            let client = &self.clients[c];
            (self.weight(client), c, client.generation)
        });
        let mut clients: Vec<_> = weighed.filter(|&(weight, ..)| weight >= HEAVY).collect();
        clients.sort_unstable();
        let bytes = memory.share_over(down_to);
        self.ladder.doomed = Doomed { clients, bytes, down_to };
        self.close_doomed(memory);
    }

    /// Closes some of those that are to be closed; true: there are more.
    fn close_doomed(&mut self, memory: Memory) -> bool {
        let doomed = &mut self.ladder.doomed;
        // Others may have given back meanwhile.
        doomed.bytes = doomed.bytes.min(memory.share_over(doomed.down_to));
        let at_once = if memory.percent() < FAR_OVER { CLOSE_BYTES_AT_ONCE } else { usize::MAX };
        let (mut closed, mut freed) = (0, 0);
        while closed < CLOSE_AT_ONCE && freed < at_once && self.ladder.doomed.bytes > 0 {
            let Some((weight, c, generation)) = self.ladder.doomed.clients.pop() else { break };
            let bytes = &mut self.ladder.doomed.bytes;
            *bytes = bytes.saturating_sub(weight as u64);
            let client = &self.clients[c];
            let is_there = matches!(client.phase, Phase::Open | Phase::Last);
            if client.generation != generation || !is_there {
                continue;
            }
            (closed, freed) = (closed + 1, freed + weight);
            self.tally.clients_closed_for_memory += 1;
            self.close_over_limit(c, "memory_limit is near and it holds the most");
        }
        let ladder = &mut self.ladder;
        ladder.next_piece_ms = self.now.ms + 1;
        if ladder.doomed.bytes == 0 {
            ladder.doomed = Doomed::default();
        }
        !ladder.doomed.clients.is_empty()
    }

    /// Bytes that go when a client is closed.
    fn weight(&self, client: &Client) -> usize {
        self.sum_up_to(usize::MAX, client, |r| self.bytes_kept(r))
    }

    /// Whether it holds so many bytes, those of its requests included that nodes have and have not
    /// answered.
    fn weighs(&self, client: &Client, most: usize) -> bool {
        let bytes_of = |r| self.bytes_kept(r) + self.bytes_at_node(r);
        self.sum_up_to(most, client, bytes_of) >= most
    }

    /// What it holds and what its requests do; no more are looked at when it is so much.
    fn sum_up_to(&self, most: usize, client: &Client, bytes_of: impl Fn(u32) -> usize) -> usize {
        let mut bytes = weight(client);
        let mut at = client.head;
        while at != NONE && bytes < most {
            let entry = &self.requests[at];
            bytes += match entry.state {
                State::Parent => {
                    let parts = self.splits[entry.split].parts.iter();
                    parts.map(|&part| bytes_of(part)).sum()
                }
                // `Client::stored` has them.
                State::Done => 0,
                _ => bytes_of(at),
            };
            at = entry.next_in_client;
        }
        bytes
    }

    /// What waits for a node, and what has come of a reply that is not whole.
    fn bytes_kept(&self, r: u32) -> usize {
        self.requests.own(r).len() + self.requests.reply(r).len()
    }

    /// Only what is in a FIFO has a length: others keep that of an earlier request.
    fn bytes_at_node(&self, r: u32) -> usize {
        let entry = &self.requests[r];
        if entry.state == State::InFlight { entry.len as usize } else { 0 }
    }
}

/// Bytes of a client itself that go when it is closed. Messages that others wait for as well count
/// in full: they may be the next to leave.
fn weight(client: &Client) -> usize {
    let partial = client.partial.as_ref().map_or(0, |partial| {
        partial.bytes.capacity() + partial.args.capacity() * size_of::<crate::resp::Span>()
    });
    let queued = client.mode.as_ref().map_or(0, |mode| mode.bytes());
    let subscribed = client.subscribed.as_ref().map_or(0, |subscribed| subscribed.bytes());
    client.output.pending() + client.stored + partial + queued + subscribed
}
