//! A process that ends: what becomes of its clients.
//!
//! ```text
//!            ┌── somebody has taken over ──► not read any more, answered what it asked, given away
//! a client ──┤                               with its session and the bytes that are not run yet
//!            └── nobody ──► served until it is silent for a moment, or patience is over; then
//!                           answered what it asked, and closed
//! ```
//! Given away are clients that are in the middle of nothing; those in a transaction, or blocked,
//! when that is over. Who watches or subscribes cannot be given away: it is closed. RESP3 clients
//! that wish to know (CLIENT MAINT_NOTIFICATIONS) are told before they are closed, and have time.
//!
//! Not here: sockets and deadlines (`reactor`), what goes over (`parcel`).

use std::net::SocketAddr;

use ahash::AHashMap;

use super::client::{Client, Phase};
use super::dispatch::Ran;
use super::local::errors;
use super::parcel::Parcel;
use super::session::Session;
use super::types::{Action, NONE, Now, Socket};
use super::{Proxy, local};
use crate::command::Args;
use crate::limits::{
    DRAIN_PATIENCE_MS, DRAIN_QUIET_MS, HANDOVER_FRAME_MAX, LEAVERS_MAX, MOVING_S,
    PARCEL_UNFINISHED_MAX,
};
use crate::resp::Version;

/// Between two looks at those who are still here.
const LOOK_EVERY_MS: u64 = 20;

/// The same for those whose turn has not come.
const LOOK_SOON_MS: u64 = 2;

/// A client that is on its way for so long waits for its node, and is in nobody's way.
const SLOW_US: u64 = 20_000;

#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// The process ends.
    pub active: bool,
    /// Another takes its clients.
    pub gives: bool,
    /// From then on nobody's silence is waited for; for as long again, the end of what it sends.
    patience_ms: u64,
    /// Until then those who were told to go elsewhere may do so.
    moving_ms: u64,
    next_look_ms: u64,
    /// Not read any more, and not given away yet. Thousands, if a node hangs.
    under_way: AHashMap<u32, Way>,
    /// Of these, who were found to be for long.
    slow: usize,
    /// Those whose turn has not come; the next one is at the end. They are served meanwhile.
    queue: Vec<u32>,
    /// The driver has more of them than the next process takes.
    held: bool,
    soon_ms: u64,
}

impl Leaving {
    pub fn next_deadline(&self) -> u64 {
        if self.active { self.next_look_ms.min(self.soon_ms) } else { u64::MAX }
    }

    fn has_room(&self) -> bool {
        !self.held && self.under_way.len() - self.slow < LEAVERS_MAX
    }

    /// It is on its way no more. Since when it was.
    fn end(&mut self, c: u32) -> Option<u64> {
        let way = self.under_way.remove(&c)?;
        self.slow -= usize::from(way.slow);
        Some(way.since_us)
    }

    fn count_slow(&mut self, now_us: u64) {
        let mut count = 0;
        for way in self.under_way.values_mut() {
            way.slow = now_us.saturating_sub(way.since_us) > SLOW_US;
            count += usize::from(way.slow);
        }
        self.slow = count;
    }
}

/// On its way since so many microseconds of the host's clock, and whether that was found to be
/// long.
#[derive(Debug)]
struct Way {
    since_us: u64,
    slow: bool,
}

/// A client that came from the process before.
#[derive(Debug)]
pub struct Adopted {
    pub client: u32,
    /// To be handled as if they had been received.
    pub bytes: Vec<u8>,
    /// Since when nobody has read what it sends, microseconds of the host's clock.
    pub stopped_us: u64,
}

impl Proxy {
    /// The process ends, and nobody takes its clients: they are answered what they asked, and
    /// closed.
    pub fn handle_drain(&mut self, now: Now) {
        self.begin_to_leave(false, now);
    }

    /// The process ends, and another takes its clients, each by `Action::Offer`.
    pub fn handle_hand_over(&mut self, now: Now) {
        self.begin_to_leave(true, now);
    }

    fn begin_to_leave(&mut self, gives: bool, now: Now) {
        self.now = now;
        self.leaving = Leaving {
            active: true,
            gives,
            patience_ms: now.ms + DRAIN_PATIENCE_MS,
            moving_ms: now.ms + MOVING_S * 1_000,
            next_look_ms: now.ms + LOOK_EVERY_MS,
            soon_ms: u64::MAX,
            ..Leaving::default()
        };
        let open: Vec<u32> = self.clients.indexes().collect();
        for &c in &open {
            self.tell_moving(c);
            match gives && may_be_given(&self.clients[c]) {
                true => self.leaving.queue.push(c),
                false => self.let_go(c),
            }
        }
        self.offer_more();
    }

    /// Once a turn: the next ones, as others are gone. Were all offered at once, each would wait
    /// for all others to be passed on.
    pub(super) fn offer_more(&mut self) {
        while self.leaving.has_room()
            && let Some(c) = self.leaving.queue.pop()
        {
            self.let_go(c);
        }
        let waits = !self.leaving.queue.is_empty();
        self.leaving.soon_ms = if waits { self.now.ms + LOOK_SOON_MS } else { u64::MAX };
    }

    /// The driver has as many as the next process takes for now, or has no longer.
    pub fn hold_offers(&mut self, held: bool) {
        self.leaving.held = held;
    }

    /// Looks at all who are still here.
    pub(super) fn check_leaving(&mut self) {
        if !self.leaving.active || self.now.ms < self.leaving.next_look_ms {
            return;
        }
        self.leaving.next_look_ms = self.now.ms + LOOK_EVERY_MS;
        let clients = &self.clients;
        let is_here = |c: u32| clients[c].leaving && clients[c].phase == Phase::Open;
        self.leaving.under_way.retain(|&c, _| is_here(c));
        self.leaving.count_slow(self.now.unix_us);
        let open: Vec<u32> = self.clients.indexes().collect();
        for c in open {
            self.let_go(c);
        }
    }

    /// The process ends, and something about this client may have changed.
    pub(super) fn let_go(&mut self, c: u32) {
        if self.clients[c].phase != Phase::Open {
            return;
        }
        if self.leaving.gives && may_be_given(&self.clients[c]) {
            return self.offer(c);
        }
        if self.clients[c].leaving {
            // It began something with what was in flight: that is to be ended here.
            self.clients[c].leaving = false;
            self.clients[c].offered = false;
            self.leaving.end(c);
            self.read_or_not(c);
            return self.after_progress(c);
        }
        let now = self.now.ms;
        let client = &self.clients[c];
        let hears = client.session.hears_moving && now < self.leaving.moving_ms;
        let listens = client.subscribed.is_some() || client.session.monitors;
        let engaged = client.mode.as_ref().is_some_and(|mode| !mode.is_empty());
        let goes = match () {
            // It reads that, and goes by itself.
            () if hears => false,
            () if listens => true,
            // Until it has ended, so that it can be given away; at the latest when time is up.
            () if self.leaving.gives => false,
            () if self.is_blocked(c) => true,
            () if now >= self.leaving.patience_ms + DRAIN_PATIENCE_MS => true,
            () => {
                let last_ms = client.session.active_ms.max(client.progress_ms);
                let silent = now.saturating_sub(last_ms) >= DRAIN_QUIET_MS;
                let answered = client.head == NONE && client.partial.is_none();
                // Else between two pipelines, with the last reply: once that is out, more may be on
                // its way.
                let ends = now >= self.leaving.patience_ms && client.output.has_to_send();
                answered && (ends || (silent && client.is_done() && !engaged))
            }
        };
        if goes {
            self.handle_client_end(c, false);
        }
    }

    /// If there is room, has the client read no more, and the driver take it once all is answered.
    fn offer(&mut self, c: u32) {
        let client = &mut self.clients[c];
        if !client.leaving {
            if !self.leaving.has_room() {
                return;
            }
            client.leaving = true;
            let way = Way { since_us: self.now.unix_us, slow: false };
            // The place of one that was closed meanwhile may be another's.
            self.leaving.end(c);
            self.leaving.under_way.insert(c, way);
            self.read_or_not(c);
        }
        let client = &mut self.clients[c];
        if client.is_done() && !client.offered {
            client.offered = true;
            // It may be released at once, and nothing else wakes the driver for it.
            self.urgent = true;
            self.actions.push(Action::Offer { client: c, socket: client.socket });
        }
    }

    /// The driver holds nothing of an offered client any more and gives it away: what goes along.
    /// Its socket is the driver's from now on; `handle_gone` follows. `None`: it has something to
    /// do here after all, or is gone.
    pub fn take_leaver(&mut self, c: u32, socket: Socket, now: Now) -> Option<Vec<u8>> {
        self.now = now;
        let client = &mut self.clients[c];
        if client.socket != socket || client.phase != Phase::Open || !client.offered {
            return None;
        }
        if !client.is_done() || !may_be_given(client) {
            client.offered = false;
            return None;
        }
        client.phase = Phase::Closing;
        let partial = client.partial.take();
        let bytes = partial.map_or_else(Vec::new, |partial| partial.into_waiting());
        let mark = self.identity.mark_of(client.session.user.as_deref());
        self.tally.clients_given += 1;
        let mut parcel = Parcel::of(&client.session, mark, now.ms, bytes);
        parcel.stopped_us = self.leaving.end(c).unwrap_or(now.unix_us);
        Some(parcel.encode())
    }

    /// A client of the process before this one. Error: it cannot be taken, and why.
    pub fn handle_adopted(
        &mut self,
        socket: Socket,
        (peer, local): (SocketAddr, SocketAddr),
        parcel: &[u8],
        now: Now,
    ) -> Result<Adopted, &'static str> {
        self.now = now;
        let parcel = Parcel::decode(parcel).ok_or("it came garbled")?;
        if self.clients.open_count() >= self.settings.clients_max as usize {
            self.tally.clients_refused += 1;
            return Err("maxclients");
        }
        let mark = self.identity.mark_of(parcel.user.as_deref());
        if parcel.user.is_some() && mark != parcel.mark {
            return Err("its user or password is another now");
        }
        let seat = self.find_seat(NONE, parcel.database);
        let seat = seat.ok_or("so many databases are in use (databases_max)")?;
        self.tally.clients_total += 1;
        self.tally.clients_taken += 1;
        let mut session = Session::new(parcel.id, peer, local, now.ms, false);
        parcel.unpack(&mut session, now.ms);
        session.seat = seat;
        let c = self.clients.open(socket, session);
        self.clients[c].refresh_plain();
        Ok(Adopted { client: c, bytes: parcel.bytes, stopped_us: parcel.stopped_us })
    }

    /// CLIENT MAINT_NOTIFICATIONS.
    pub(super) fn run_maint_notifications(&mut self, c: u32, args: &Args) -> Ran {
        if !self.clients[c].session.authenticated {
            return self.answer_with(c, |out| errors::noauth(out, "CLIENT"));
        }
        if self.is_queuing(c) {
            self.fail_transaction(c);
            return self.answer_with(c, errors::not_in_multi);
        }
        let mut out = Vec::new();
        local::client::maint_notifications(args, &mut self.clients[c].session, &mut out);
        self.answer_with(c, |reply| reply.extend_from_slice(&out))
    }

    /// `MOVING seq seconds null`: connect again to where you connected to, after half the time. As
    /// redis-py 8, go-redis 9 and lettuce 7 read it.
    fn tell_moving(&mut self, c: u32) {
        let client = &mut self.clients[c];
        let given = self.leaving.gives && may_be_given(client);
        let hears = client.session.hears_moving && client.session.version == Version::Resp3;
        // In the middle of a reply that is passed on in pieces there is no place for it.
        let torn = client.torn || client.output.uncommitted() > 0;
        if client.phase != Phase::Open || !hears || given || torn {
            return;
        }
        let buffer = client.output.buffer(&mut self.client_pool);
        // The same for all of them: one event.
        local::write_moving(buffer, self.now.unix_us / 1_000_000, MOVING_S);
        self.mark_client_dirty(c);
    }
}

/// Whether all there is of a client goes into a parcel, or soon will.
fn may_be_given(client: &Client) -> bool {
    let engaged = client.mode.as_ref().is_some_and(|mode| !mode.is_empty());
    let listens =
        client.subscribed.is_some() || client.session.subscriptions > 0 || client.session.monitors;
    let kept = client.partial.as_ref().map_or(0, |partial| partial.waiting());
    // One that sends a large request is read until it is whole.
    let most = match client.held_back {
        true => HANDOVER_FRAME_MAX as usize / 2,
        false => PARCEL_UNFINISHED_MAX,
    };
    client.phase == Phase::Open && !engaged && !listens && kept <= most
}
