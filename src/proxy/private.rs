//! Backends that one client has for itself while it watches keys or blocks.
//!
//! Each is one connection: lent to a client, free again when nothing of it is in flight and its
//! client waits for nothing on it, kept connected for a while, never connected a second time. Where
//! its state is not clear it is closed instead. As many as `private_backends_max` for each node.
//!
//! Not here: what they are needed for (`blocking`, `watch`).

use super::Proxy;
use super::backend::{Lane, Phase};
use super::connect::Why;
use super::launch::{Bytes, Usable};
use super::request::Marks;
use super::types::NONE;
use crate::resp::Version;

/// How long a backend that nobody uses stays connected.
const SPARE_MS: u64 = 10_000;

/// Before a leg whose private backend was lost tries the next one.
pub(super) const PAUSE_MS: u64 = 50;

/// The owner of a backend that nobody uses.
pub(super) const NOBODY: (u32, u32) = (NONE, 0);

impl Proxy {
    /// Sends a leg over a backend of its client's own.
    pub(super) fn launch_private(&mut self, r: u32, node: u16, bytes: Bytes) {
        self.mark_irregular(r);
        let marks = self.requests[r].marks;
        let version = if marks.has(Marks::RESP3) { Version::Resp3 } else { Version::Resp2 };
        let c = self.requests[r].client;
        if self.holds_guard(c) && !self.is_at_node(r) {
            return self.launch_watching(r, node, version, bytes);
        }
        if self.wait_is_over(c) {
            return self.complete(r, b":0\r\n");
        }
        // The one that all share tells whether the node can be reached, and from when on.
        let shared = self.shared_backend(node, version, self.database_of(r));
        match self.usable(shared) {
            Usable::Now => (),
            Usable::From(until_ms) => return self.wait(r, bytes, until_ms, true),
            Usable::Failing => return self.give_up(r),
        }
        if self.is_at_node(r) {
            self.launch_at_node(r, node, version, bytes);
        } else if self.is_blocked(c) {
            self.launch_blocking(r, node, version, bytes);
        } else {
            self.launch_watching(r, node, version, bytes);
        }
    }

    /// A leg's private backend is gone.
    pub(super) fn handle_private_loss(
        &mut self,
        r: u32,
        written: bool,
        timed_out: bool,
        bytes: Option<Vec<u8>>,
    ) {
        if let Some(reply) = self.unblocked_reply(r) {
            return self.complete(r, &reply);
        }
        // What does not block has one time for all its attempts.
        if !self.is_at_node(r) {
            self.renew(r);
        }
        let speaks_of_writes = self.is_sync_leg(r) || self.is_wait_leg(r);
        if speaks_of_writes {
            // With its connection a node may have lost what it was asked about: who asks again may
            // be promised what is gone.
            self.requests[r].marks.unset(Marks::RETRY_SAFE);
        }
        self.recover_lost(r, written, timed_out, bytes);
    }

    /// A backend towards `node` for this client alone. `None`: all are in use.
    pub(super) fn lend_private(&mut self, c: u32, node: u16, version: Version) -> Option<u32> {
        let owner = (c, self.clients[c].generation);
        let seat = self.clients[c].session.seat;
        let is_spare = |&&b: &&u32| {
            let backend = &self.backends[b as usize];
            // One whose last owner awaits its own bytes must not be closed with the next.
            let is_idle = backend.queued() == 0 && backend.awaiting.is_empty();
            backend.owner == NOBODY && backend.phase == Phase::Ready && is_idle
        };
        let backends = &self.nodes[node].private;
        let is_fit = |b: &&u32| {
            let backend = &self.backends[**b as usize];
            backend.version == version && backend.seat == seat
        };
        let found = backends.iter().filter(is_spare).find(is_fit).copied();
        if let Some(b) = found {
            self.backends[b as usize].owner = owner;
            return Some(b);
        }
        if backends.len() >= self.settings.private_backends_max {
            // One of another version or database makes room.
            let spare = backends.iter().find(is_spare).copied()?;
            self.lose_backend(spare, Why::Retired);
        }
        let b = self.open_backend(node, (version, seat), Lane::Private);
        self.backends[b as usize].owner = owner;
        self.nodes[node].private.push(b);
        self.connect(b);
        Some(b)
    }

    /// A private backend has said something. If that was all, and its client does not watch keys
    /// with it, it is free again.
    pub(super) fn private_has_answered(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        if backend.queued() > 0 || backend.phase != Phase::Ready {
            return;
        }
        backend.blocking = false;
        let (c, generation) = backend.owner;
        if c != NONE && self.clients[c].generation == generation && self.watches_with(c, b) {
            return;
        }
        if self.backends[b as usize].spoilt {
            return self.lose_backend(b, Why::Retired);
        }
        let backend = &mut self.backends[b as usize];
        backend.owner = NOBODY;
        backend.since_ms = self.now.ms;
    }

    /// A private backend is closed, or about to be.
    pub(super) fn forget_private(&mut self, b: u32) {
        let backend = &mut self.backends[b as usize];
        let (c, generation) = std::mem::replace(&mut backend.owner, NOBODY);
        let node = backend.node;
        self.nodes[node].private.retain(|&private| private != b);
        if c != NONE && self.clients[c].generation == generation {
            self.watch_is_lost(c, b);
        }
    }

    /// Its place is free when no socket is left.
    pub(super) fn free_private(&mut self, b: u32) {
        if self.backends[b as usize].phase == Phase::Idle && !self.backends_free.contains(&b) {
            self.free_backend(b);
        }
    }

    /// Closes those that nobody has used for a while.
    pub(super) fn close_spare_backends(&mut self) {
        for b in 0..self.backends.len() as u32 {
            let backend = &self.backends[b as usize];
            let spare = backend.lane == Lane::Private
                && backend.owner == NOBODY
                && backend.phase == Phase::Ready;
            if spare && self.now.ms.saturating_sub(backend.since_ms) > SPARE_MS {
                self.lose_backend(b, Why::Retired);
            }
        }
    }

    /// Connections that single clients have for themselves, or had a moment ago.
    pub fn backends_private(&self) -> usize {
        let is_private =
            |backend: &&super::Backend| backend.lane == Lane::Private && backend.is_open();
        self.backends.iter().filter(is_private).count()
    }
}
