//! WAITAOF: how many nodes have synced to their files what the client wrote.
//!
//! A node waits for the last write of the connection that asks, and the client's writes went over
//! connections that all share. So each primary is asked on a connection of the client's own, and
//! that first writes something that changes nothing: FUNCTION RESTORE of no library. It goes the
//! way of every write, into the file and to the replicas, behind all that was answered before; the
//! WAITAOF behind it waits for that. The answer is the least over all primaries, place by place.
//!
//! What a node says is final: a primary that is none any more, or a connection that broke, may have
//! lost what the client wrote, so it is not asked anew.
//!
//! Not here: WAIT (`replicas`), what all that blocks has in common (`blocking`).

use super::Proxy;
use super::dispatch::{Asked, Ran};
use super::request::{Marks, State};
use super::split::Merge;
use super::types::NONE;
use crate::command::{self, Args};

/// `FUNCTION RESTORE payload APPEND`. The payload is what FUNCTION DUMP of a node without
/// libraries says: the version of its form (10, of Redis 7.0, which all later ones take), and the
/// checksum of these two bytes.
pub const EMPTY_WRITE: &[u8] =
    b"*4\r\n$8\r\nFUNCTION\r\n$7\r\nRESTORE\r\n$10\r\n\x0a\x00\x5d\x9b\x5c\x40\x0f\x7f\xa2\xda\r\n\
      $6\r\nAPPEND\r\n";

/// Nobody has synced anything, as far as is known.
pub(super) const NONE_SYNCED: &[u8] = b"*2\r\n:0\r\n:0\r\n";

impl Proxy {
    pub(super) fn run_wait_synced(&mut self, asked: Asked, args: &Args) -> Ran {
        let c = asked.client;
        let slots = match self.primaries_to_wait_at(asked) {
            Ok(slots) => slots,
            Err(ran) => return ran,
        };
        let timeout_ms = command::timeout_of(asked.command, args).and_then(|of| of.ms);
        self.begin_block(c, timeout_ms, slots.len() as u32);
        if let Some(blocked) = self.blocked_of(c) {
            blocked.synced = true;
        }
        let s = self.open_waiting_legs(asked, asked.marks, Merge::Least, &slots);
        self.launch_all(s, args.bytes);
        Ran::Yes
    }

    /// Whether a leg is part of a WAITAOF.
    pub(super) fn is_sync_leg(&self, r: u32) -> bool {
        let entry = &self.requests[r];
        let s = entry.split;
        s != NONE && entry.marks.has(Marks::PRIVATE) && self.splits[s].merge == Merge::Least
    }

    /// The write that the WAITAOF of leg `r` will wait for.
    pub(super) fn enqueue_empty_write(&mut self, r: u32, b: u32) {
        let step = self.enqueue_internal(b, |out| out.extend_from_slice(EMPTY_WRITE));
        let entry = &mut self.requests[step];
        entry.marks.set(Marks::STEP);
        entry.part = r;
    }

    /// A node has answered on a private backend. If it refused the write, WAITAOF says nothing.
    pub(super) fn note_refused_write(&mut self, step: u32, reply: &[u8]) {
        let entry = &self.requests[step];
        if !entry.marks.has(Marks::STEP) || reply.first() != Some(&b'-') {
            return;
        }
        let leg = entry.part;
        if self.is_sync_leg(leg) {
            let split = &mut self.splits[self.requests[leg].split];
            if split.error.is_empty() {
                split.error.extend_from_slice(reply);
            }
        }
    }

    /// A leg of WAITAOF is answered. A node's own error counts more than that of the write, and is
    /// that of the whole: nothing that others may say would change it.
    pub(super) fn note_sync_reply(&mut self, r: u32, reply: &[u8]) {
        if reply.first() == Some(&b'-') {
            let split = &mut self.splits[self.requests[r].split];
            split.error.clear();
            split.error.extend_from_slice(reply);
            self.end_other_legs(r);
        }
    }

    /// A private backend has said something. If it was that the write is refused, the WAITAOF
    /// behind it would wait for something else.
    pub(super) fn end_sync_if_refused(&mut self, b: u32) {
        let Some(r) = self.backends[b as usize].head() else { return };
        if self.is_sync_leg(r) && !self.splits[self.requests[r].split].error.is_empty() {
            self.end_other_legs(r);
            self.break_off(r);
        }
    }

    /// The other legs' answers do not count any more.
    pub(super) fn end_other_legs(&mut self, r: u32) {
        let parts = self.splits[self.requests[r].split].parts.clone();
        if let Some(blocked) = self.blocked_of(self.requests[r].client) {
            blocked.unblocked = Some(false);
        }
        for part in parts.into_iter().filter(|&part| part != r) {
            if self.requests[part].state != State::Done {
                self.break_off(part);
            }
        }
    }
}
