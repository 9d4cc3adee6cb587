//! Commands that block (routing-policy class M), each on a backend of its client's own.
//!
//! One begins when all that its client asked before is answered, and what the client asks after it
//! waits, as at a server. No time-out of ours runs meanwhile. If the client leaves, the backend is
//! closed in the same turn, so that nothing is popped for nobody. If its slot moves away or its
//! node stops being a primary, it is asked again with the time that is left.
//!
//! Not here: the backends (`private`), WAIT (`replicas`), WAITAOF (`synced`).

use super::Proxy;
use super::backend::{Backend, Phase};
use super::connect::Why;
use super::dispatch::{Asked, Ran, Source};
use super::launch::Bytes;
use super::local::errors;
use super::mode::Blocked;
use super::request::{Marks, State};
use super::split::Merge;
use super::synced::NONE_SYNCED;
use super::types::NONE;
use crate::command::{self, Args, Timeout};
use crate::resp::request::{Parsed, RequestLimits, RequestParser, encode_request};
use crate::resp::{Span, Version, write};

/// A leg that waited so long at its node was blocked there: what comes then is a new try, with
/// redirects and time of its own.
const WAS_BLOCKED_MS: u64 = 1_000;

/// Bytes of later requests that are read from a blocked client; beyond them it is not seen to leave
/// before it is answered.
pub(super) const READ_AHEAD_MAX: usize = 1 << 20;

impl Proxy {
    /// Whether a command of this client is blocked, or on its way to be.
    pub(super) fn is_blocked(&self, c: u32) -> bool {
        self.clients[c].mode.as_ref().is_some_and(|mode| mode.blocked.is_some())
    }

    pub(super) fn run_blocking(&mut self, asked: Asked, source: Source, spans: &[Span]) -> Ran {
        let c = asked.client;
        let args = Args { bytes: source.bytes(), spans };
        let slot = match self.slot_of_keys(asked.command, &args) {
            Ok(slot) => slot.unwrap_or_else(|| self.some_slot()),
            Err(error) => return self.answer_with(c, |out| out.extend_from_slice(&error)),
        };
        if let Some(ran) = self.may_not_block(c) {
            return ran;
        }
        self.begin_block(c, command::timeout_of(asked.command, &args).and_then(|of| of.ms), 1);
        let mut marks = asked.marks.with(Marks::PRIVATE);
        if args.iter().any(|word| word == b"$") {
            // XREAD of what comes from now on: asked again, it would miss what came meanwhile.
            marks.unset(Marks::RETRY_SAFE);
        }
        self.launch_single(Asked { marks, ..asked }, slot, source);
        self.clients[c].session.command_done();
        Ran::Yes
    }

    /// Why a client may not block now: what became of its request instead.
    fn may_not_block(&mut self, c: u32) -> Option<Ran> {
        if self.waits_for_elders(c) {
            return Some(Ran::HoldBack);
        }
        if self.clients[c].ended {
            // It has left already, and takes only what it asked for before.
            self.take_no_more(c);
            return Some(Ran::Yes);
        }
        None
    }

    /// A slot of each primary, for a command that waits at all of them; or what became of it.
    pub(super) fn primaries_to_wait_at(&mut self, asked: Asked) -> Result<Vec<u16>, Ran> {
        if let Some(ran) = self.may_not_block(asked.client) {
            return Err(ran);
        }
        let slots = self.slots_of_primaries();
        if slots.is_empty() { Err(self.no_map(asked)) } else { Ok(slots) }
    }

    /// A leg with these marks to each, on connections of the client's own. Whoever has the slot
    /// when it is asked again has written something else.
    pub(super) fn open_waiting_legs(
        &mut self,
        asked: Asked,
        marks: Marks,
        merge: Merge,
        slots: &[u16],
    ) -> u32 {
        let s = self.open_parent(asked, merge);
        let marks = marks.with(Marks::PRIVATE).with(Marks::BY_NODE);
        for &slot in slots {
            let r = self.open_part(Asked { marks, ..asked }, s, slot);
            self.requests[r].node = self.map.get(slot);
        }
        s
    }

    /// From here on the client waits for `legs` answers. `timeout_ms`: `None` for ever.
    pub(super) fn begin_block(&mut self, c: u32, timeout_ms: Option<u64>, legs: u32) {
        let since_ms = self.now.ms;
        self.clients[c].barrier = true;
        self.mode_of(c).blocked = Some(Blocked {
            since_ms,
            timeout_ms,
            legs,
            launched: false,
            unblocked: None,
            synced: false,
            wanted: 0,
            primaries: Vec::new(),
        });
        self.blocked_clients += 1;
    }

    pub(super) fn blocked_of(&mut self, c: u32) -> Option<&mut Blocked> {
        self.clients[c].mode.as_mut()?.blocked.as_mut()
    }

    /// One of the legs that the client was blocked by is answered.
    pub(super) fn end_block(&mut self, c: u32) {
        let Some(mode) = self.clients[c].mode.as_mut() else { return };
        let Some(blocked) = mode.blocked.as_mut() else { return };
        blocked.legs -= 1;
        if blocked.legs == 0 {
            mode.blocked = None;
            self.blocked_clients -= 1;
            self.drop_empty_mode(c);
        }
    }

    pub(super) fn launch_blocking(&mut self, r: u32, node: u16, version: Version, bytes: Bytes) {
        let c = self.requests[r].client;
        let now = self.now.ms;
        let Some(blocked) = self.clients[c].mode.as_mut().and_then(|mode| mode.blocked.as_mut())
        else {
            return self.fail(r, errors::no_connection);
        };
        if !blocked.primaries.is_empty() {
            return self.launch_question(r, node, version, bytes);
        }
        let left = blocked.left_ms(now);
        let (synced, timed) = (blocked.synced, blocked.timeout_ms.is_some());
        let again = blocked.launched && timed;
        if again && left == 0 {
            return self.fail(r, |out| match synced {
                true => out.extend_from_slice(NONE_SYNCED),
                false => write::null_array(out, version),
            });
        }
        let Some(b) = self.lend_private(c, node, version) else {
            return self.fail(r, errors::blocking_cap);
        };
        if let Some(blocked) = self.clients[c].mode.as_mut().and_then(|mode| mode.blocked.as_mut())
        {
            blocked.launched = true;
        }
        self.backends[b as usize].blocking = true;
        self.requests[r].since = now as u32;
        if synced {
            self.enqueue_empty_write(r, b);
        }
        if again {
            let bytes = with_timeout(&bytes.into_vec(), left);
            return self.enqueue(r, b, Bytes::Own(bytes));
        }
        self.enqueue(r, b, bytes);
    }

    /// Whether a node has not even answered when the time that the command itself gave was over.
    pub(super) fn block_is_overdue(&self, b: u32) -> bool {
        let (c, generation) = self.backends[b as usize].owner;
        if c == NONE || self.clients[c].generation != generation {
            return false;
        }
        let blocked = self.clients[c].mode.as_ref().and_then(|mode| mode.blocked.as_ref());
        blocked.is_some_and(|blocked| {
            let over_ms = self.now.ms.saturating_sub(blocked.since_ms);
            let timeout_ms = self.settings.request_timeout_ms;
            blocked.timeout_ms.is_some_and(|given_ms| over_ms > given_ms + timeout_ms)
        })
    }

    /// A private leg has an answer or lost its connection: if it was blocked until now, what it
    /// used up before does not count.
    pub(super) fn renew(&mut self, r: u32) {
        if self.age_ms(r) >= WAS_BLOCKED_MS {
            let entry = &mut self.requests[r];
            entry.since = self.now.ms as u32;
            entry.redirects = 0;
            entry.waits = 0;
            entry.marks.unset(Marks::REPEATED);
        }
    }

    /// The answer to a blocked leg whose backend was closed by CLIENT UNBLOCK.
    pub(super) fn unblocked_reply(&self, r: u32) -> Option<Vec<u8>> {
        let entry = &self.requests[r];
        let mode = self.clients[entry.client].mode.as_ref()?;
        let error = mode.blocked.as_ref()?.unblocked?;
        let blocked = mode.blocked.as_ref()?;
        let waits = !blocked.primaries.is_empty();
        let mut out = Vec::new();
        if error {
            errors::unblocked(&mut out);
        } else if waits {
            write::integer(&mut out, 0);
        } else if blocked.synced {
            out.extend_from_slice(NONE_SYNCED);
        } else if entry.marks.has(Marks::RESP3) {
            write::null_array(&mut out, Version::Resp3);
        } else {
            write::null_array(&mut out, Version::Resp2);
        }
        Some(out)
    }

    /// CLIENT UNBLOCK: whether that client was blocked.
    pub(super) fn unblock(&mut self, id: u64, error: bool) -> bool {
        let is_meant = |&c: &u32| self.clients[c].session.id == id && self.is_blocked(c);
        let Some(c) = self.clients.indexes().find(is_meant) else { return false };
        if let Some(blocked) = self.clients[c].mode.as_mut().and_then(|mode| mode.blocked.as_mut())
        {
            blocked.unblocked = Some(error);
        }
        self.break_off(self.clients[c].head);
        true
    }

    /// Ends a blocked leg, or all legs of its whole.
    pub(super) fn break_off(&mut self, r: u32) {
        if r == NONE {
            return;
        }
        match self.requests[r].state {
            State::InFlight => self.lose_backend(self.requests[r].backend, Why::Retired),
            State::Waiting => {
                self.forget_awaiting(r);
                if let Some(reply) = self.unblocked_reply(r) {
                    self.complete(r, &reply);
                }
            }
            State::Parent => {
                let parts = self.splits[self.requests[r].split].parts.clone();
                for part in parts {
                    if self.requests[part].state != State::Done {
                        self.break_off(part);
                    }
                }
            }
            State::Free
            | State::Held
            | State::Queued
            | State::Subscribing
            | State::Inquiring
            | State::Done => (),
        }
    }

    /// Clients that are blocked now. Those whose command has not left for its node are not yet:
    /// who waits for this number may go on to write what they are to be woken by.
    pub fn clients_blocked(&self) -> usize {
        let on_its_way = |backend: &&Backend| {
            let sent = backend.phase == Phase::Ready && backend.output.pending() == 0;
            backend.blocking && backend.is_open() && !sent
        };
        match self.blocked_clients {
            0 => 0,
            count => count.saturating_sub(self.backends.iter().filter(on_its_way).count()),
        }
    }
}

/// The same request with another time-out.
fn with_timeout(bytes: &[u8], left_ms: u64) -> Vec<u8> {
    let mut spans = Vec::new();
    let limits = RequestLimits::default();
    let parsed = RequestParser::default().parse(bytes, &limits, &mut spans);
    let args = Args { bytes, spans: &spans };
    let place = match (parsed, command::lookup(&args)) {
        (Ok(Parsed::Array { .. }), Ok(command)) => command::timeout_of(command, &args),
        _ => None,
    };
    let Some(Timeout { word, in_seconds, .. }) = place else { return bytes.to_vec() };
    let text = match in_seconds {
        true => format!("{}.{:03}", left_ms / 1_000, left_ms % 1_000),
        false => left_ms.to_string(),
    };
    let mut words: Vec<&[u8]> = args.iter().collect();
    words[word] = text.as_bytes();
    let mut out = Vec::new();
    encode_request(words.into_iter(), &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, left_ms: u64, expected: &str) {
        let encode = |line: &str| {
            let mut out = Vec::new();
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            encode_request(words.into_iter(), &mut out);
            out
        };
        let got = with_timeout(&encode(line), left_ms);
        assert_eq!(String::from_utf8(got), String::from_utf8(encode(expected)), "{line}");
    }

    #[test]
    fn command_that_is_asked_again_has_the_time_that_is_left() {
        check("BLPOP a b 10", 1_250, "BLPOP a b 1.250");
        check("WAITAOF 1 2 900", 17, "WAITAOF 1 2 17");
        check("blmpop 5 1 a LEFT", 40, "blmpop 0.040 1 a LEFT");
        check("BLMOVE a b LEFT RIGHT 2.5", 2_000, "BLMOVE a b LEFT RIGHT 2.000");
        check(
            "XREAD COUNT 2 BLOCK 900 STREAMS BLOCK $",
            17,
            "XREAD COUNT 2 BLOCK 17 STREAMS BLOCK $",
        );
    }
}
