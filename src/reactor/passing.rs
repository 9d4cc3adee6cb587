//! Clients' sockets that come from elsewhere or go there: to the next process, from the one before,
//! and between reactors that share a listening socket.
//!
//! Not here: when a client may go (`proxy/leaving`), the way to the other process (`handover`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::{HandOver, Message, Owner, Worker, socket_of};
use crate::handover;
use crate::metrics::Counter;
use crate::proxy::Conn;
use crate::ring::{Listener, SocketId};

/// What one reactor keeps for it.
pub(super) struct Passing {
    /// For the first line of the log.
    pub cpu: Option<core_affinity::CoreId>,
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

/// Where they go: for each pool its index over there, and the way.
type Heir = (Arc<[Option<u16>]>, Sender<handover::Client>);

impl Passing {
    pub fn new(cpu: Option<core_affinity::CoreId>, waiting: Vec<(u16, Listener)>) -> Passing {
        Passing {
            cpu,
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
    pub(super) fn listen(&mut self, expecting: bool) {
        self.passing.expecting = expecting;
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
            Ok((client, bytes)) => {
                let conn = Conn::Client(client);
                self.own(id, Owner::Of { pool, conn });
                self.ring.receive_fairly(id);
                if !bytes.is_empty() {
                    self.proxies[usize::from(pool)].handle_received(conn, &bytes, self.now);
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

    /// For those who watch, and for the process before: whether this one could serve.
    pub(super) fn count_passed(&mut self) {
        let (mut given, mut taken, mut ready) = (0, 0, 0);
        for proxy in &self.proxies {
            given += proxy.tally.clients_given;
            taken += proxy.tally.clients_taken;
            ready += u64::from(proxy.has_map());
        }
        self.counters.set(Counter::ClientsGiven, given);
        self.counters.set(Counter::ClientsTaken, taken);
        self.counters.set(Counter::PoolsReady, ready);
    }

    /// Once a turn: gives away what the ring has let go of.
    #[inline]
    pub(super) fn give_away(&mut self) {
        if !self.passing.offered.is_empty() {
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
    }
}
