//! Clients' sockets that come from elsewhere or go there: to the next process, from the one before,
//! and between reactors that share a listening socket.
//!
//! Not here: when a client may go (`proxy/leaving`), the way to the other process (`handover`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::{HandOver, Message, Owner, Worker, socket_of};
use crate::handover;
use crate::limits::{CONNECT_AHEAD_MS, HEIR_QUEUE_MAX};
use crate::metrics::Counter;
use crate::proxy::{Conn, Proxy};
use crate::ring::{Listener, SocketId};

/// What one reactor keeps for it.
pub(super) struct Passing {
    /// For the first line of the log.
    pub cpu: Option<core_affinity::CoreId>,
    /// Nodes are connected to before anybody asks, as clients are to come who wait already.
    pub ahead: bool,
    /// Something is looked for at the end of each turn: readiness, or how clients come.
    pub watches: bool,
    prepared: bool,
    /// Since when all pools have had their maps.
    mapped_ms: Option<u64>,
    arriving: Option<Arriving>,
    /// Not listened to yet.
    waiting: Vec<(u16, Listener)>,
    /// For each pool: some reactors have no listening socket of it.
    pub shared: Vec<bool>,
    /// Clients of the process before may still come.
    pub expecting: bool,
    /// Who gets the next client of a shared one.
    turn: usize,
    /// Clients that go to the next process once the ring holds nothing of them.
    pub offered: Vec<(u16, u32, SocketId)>,
    heir: Option<Heir>,
}

/// How the clients of the process before have come to one reactor. Microseconds of the host's
/// clock; 0: never.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    pub clients: u64,
    pub first_us: u64,
    pub last_us: u64,
    /// The first reply to any client.
    pub reply_us: u64,
    /// How long one of them was read by nobody, at most.
    pub pause_us: u64,
}

struct Arriving {
    so_far: Arrival,
    tell: Sender<Arrival>,
    /// Not before all have come: until then at most a reply is waited for.
    until_ms: Option<u64>,
}

/// How long a first reply is waited for: perhaps nobody asks.
const REPLY_WAIT_MS: u64 = 1_000;

/// Where they go: for each pool its index over there, and the way.
type Heir = (Arc<[Option<u16>]>, Sender<handover::Client>);

impl Passing {
    pub fn new(
        cpu: Option<core_affinity::CoreId>,
        ahead: bool,
        waiting: Vec<(u16, Listener)>,
    ) -> Passing {
        Passing {
            cpu,
            ahead,
            watches: true,
            prepared: false,
            mapped_ms: None,
            arriving: None,
            waiting,
            shared: Vec::new(),
            expecting: false,
            turn: 0,
            offered: Vec::new(),
            heir: None,
        }
    }
}

impl Worker {
    /// Accepts clients from now on.
    #[cold]
    pub(super) fn listen(&mut self, arrivals: Option<Sender<Arrival>>) {
        self.passing.expecting = arrivals.is_some();
        self.passing.ahead = false;
        self.passing.arriving =
            arrivals.map(|tell| Arriving { so_far: Arrival::default(), tell, until_ms: None });
        for (pool, mut listener) in std::mem::take(&mut self.passing.waiting) {
            if let Err(error) = listener.open(None) {
                let address = listener.address();
                let fields = [("address", &address as _), ("error", &error as _)];
                self.log.error(self.now.unix_us, "cannot listen", &fields);
                continue;
            }
            self.ring.listen(listener);
            self.listeners.push(pool);
        }
        self.passing.watches = true;
        self.tell_start();
    }

    /// Gives a client that has just been accepted to the reactor whose turn it is. `false`: that is
    /// this one, or the other cannot take it.
    #[cold]
    pub(super) fn share(&mut self, id: SocketId, pool: u16) -> bool {
        let passing = &mut self.passing;
        passing.turn = (passing.turn + 1) % self.peers.len().max(1);
        let turn = passing.turn;
        if turn == usize::from(self.index) || turn >= self.peers.len() {
            return false;
        }
        let Some(fd) = self.ring.release(id) else { return false };
        self.own(id, Owner::Nobody);
        let message = Message::Adopt { pool, fd, parcel: None };
        if let Err(Message::Adopt { fd, .. }) = self.peers[turn].give(message) {
            self.adopt(pool, fd, None);
        }
        true
    }

    /// A client's socket from elsewhere.
    #[cold]
    pub(super) fn adopt(&mut self, pool: u16, fd: OwnedFd, parcel: Option<Vec<u8>>) {
        let id = self.ring.adopt(fd);
        let Some(parcel) = parcel else { return self.welcome(id, pool) };
        let addresses = self.addresses_of(id);
        let (Ok(addresses), Some(proxy)) = (addresses, self.proxies.get_mut(usize::from(pool)))
        else {
            // It has left on the way.
            self.own(id, Owner::Refused);
            return self.ring.close(id);
        };
        match proxy.handle_adopted(socket_of(id), addresses, &parcel, self.now) {
            Ok(came) => {
                let conn = Conn::Client(came.client);
                self.own(id, Owner::Of { pool, conn });
                self.ring.receive_fairly(id);
                self.note_arrival(came.stopped_us);
                if !came.bytes.is_empty() {
                    self.proxies[usize::from(pool)].handle_received(conn, &came.bytes, self.now);
                }
            }
            Err(why) => {
                let pool = &self.names[usize::from(pool)];
                let fields =
                    [("pool", pool as _), ("client", &addresses.0 as _), ("why", &why as _)];
                let text = "a client of the process before was not taken";
                self.log.warn(self.now.unix_us, text, &fields);
                self.own(id, Owner::Refused);
                self.ring.close(id);
            }
        }
    }

    /// Another process accepts: ours go there.
    #[cold]
    pub(super) fn begin_to_hand_over(&mut self, how: HandOver) {
        let now = self.now;
        self.ring.stop_listening();
        self.passing.waiting.clear();
        self.drain_until_ms = Some(now.ms + how.deadline_ms);
        let clients = self.clients_open();
        self.log.info(now.unix_us, "handing over", &[("clients", &clients)]);
        for (proxy, index) in self.proxies.iter_mut().zip(how.pools.iter()) {
            match index {
                Some(_) => proxy.handle_hand_over(now),
                None => proxy.handle_drain(now),
            }
        }
        self.passing.heir = Some((how.pools, how.heir));
    }

    fn note_arrival(&mut self, stopped_us: u64) {
        let now_us = self.now.unix_us;
        let Some(Arriving { so_far, .. }) = &mut self.passing.arriving else { return };
        so_far.clients += 1;
        so_far.last_us = now_us;
        if so_far.first_us == 0 {
            so_far.first_us = now_us;
        }
        so_far.pause_us = so_far.pause_us.max(now_us.saturating_sub(stopped_us));
    }

    #[cold]
    pub(super) fn note_all_came(&mut self) {
        self.passing.expecting = false;
        if let Some(arriving) = &mut self.passing.arriving {
            arriving.until_ms = Some(self.now.ms + REPLY_WAIT_MS);
        }
    }

    /// At the end of a turn, until this process serves and the clients of the one before have come.
    #[cold]
    pub(super) fn watch_passing(&mut self) {
        if self.passing.mapped_ms.is_none() && self.proxies.iter().all(Proxy::has_map) {
            self.passing.mapped_ms = Some(self.now.ms);
        }
        if !self.passing.prepared && self.proxies.iter().all(|proxy| self.is_prepared(proxy)) {
            // Numbers are shown seldom, and somebody waits for this one.
            self.passing.prepared = true;
            self.count_passed();
            self.publish();
        }
        let now = self.now;
        if let Some(Arriving { so_far, tell, until_ms }) = &mut self.passing.arriving {
            let sends: u64 = self.proxies.iter().map(|proxy| proxy.tally.sends_to_clients).sum();
            if so_far.reply_us == 0 && sends > 0 {
                so_far.reply_us = now.unix_us;
            }
            let answered = so_far.clients == 0 || so_far.reply_us > 0;
            if until_ms.is_some_and(|until| answered || now.ms >= until) {
                let _ = tell.send(std::mem::take(so_far));
                self.passing.arriving = None;
            }
        }
        self.passing.watches = !self.passing.prepared || self.passing.arriving.is_some();
    }

    fn is_prepared(&self, proxy: &Proxy) -> bool {
        let mapped_ms = self.passing.mapped_ms.unwrap_or(self.now.ms);
        let waits = self.passing.ahead && self.now.ms < mapped_ms + CONNECT_AHEAD_MS;
        if waits { proxy.is_prepared() } else { proxy.has_map() }
    }

    /// For those who watch, and for the process before: whether this one could serve.
    pub(super) fn count_passed(&mut self) {
        let (mut given, mut taken, mut ready) = (0, 0, 0);
        for proxy in &self.proxies {
            given += proxy.tally.clients_given;
            taken += proxy.tally.clients_taken;
            ready += u64::from(self.is_prepared(proxy));
        }
        self.counters.set(Counter::ClientsGiven, given);
        self.counters.set(Counter::ClientsTaken, taken);
        self.counters.set(Counter::PoolsReady, ready);
    }

    /// Once a turn: gives away what the ring has let go of.
    #[inline]
    pub(super) fn give_away(&mut self) {
        if self.passing.heir.is_some() {
            self.give_offered();
        }
    }

    #[cold]
    fn give_offered(&mut self) {
        let offered = std::mem::take(&mut self.passing.offered);
        for (pool, client, id) in offered {
            if !self.ring.may_release(id) {
                self.passing.offered.push((pool, client, id));
                continue;
            }
            let proxy = &mut self.proxies[usize::from(pool)];
            let Some(parcel) = proxy.take_leaver(client, socket_of(id), self.now) else { continue };
            let Some(fd) = self.ring.release(id) else {
                self.ring.close(id);
                continue;
            };
            let Some((pools, heir)) = &self.passing.heir else { continue };
            let Some(pool) = pools.get(usize::from(pool)).copied().flatten() else { continue };
            // If the other has died, the client sees its connection end between two replies.
            let _ = heir.send(handover::Client { pool, parcel, fd });
        }
        if let Some((_, heir)) = &self.passing.heir {
            let held = heir.len() >= HEIR_QUEUE_MAX;
            self.proxies.iter_mut().for_each(|proxy| proxy.hold_offers(held));
        }
    }
}
