//! From one process to the next in the model: a second proxy takes over, and is given the clients of
//! the first as `reactor/passing` gives them: a socket that the ring holds nothing of, its parcel,
//! and what its client has sent and nobody has read.
//!
//! The checkers judge across both: whose reply, at most once, order, whole transactions, databases.
//! Checked here: who waits for nothing is given away in time. Not here: descriptors and listening
//! sockets (`tests/program`).

use std::collections::VecDeque;
use std::net::SocketAddr;

use ringway::proxy::{Adopted, Conn, Now, Proxy, Socket};

use crate::history::Violation;
use crate::network::{Completion, Inbound, Peer};
use crate::plant::Plant;
use crate::world::{Event, World, new_proxy};

/// A process that another has taken over from.
pub struct Former {
    pub number: u32,
    pub proxy: Proxy,
    /// Clients that go once the ring holds nothing of them, and not before this time.
    offered: Vec<(u32, Socket, u64)>,
    /// It ends with its last client, whatever is still under way to nodes.
    hasty: bool,
}

/// So many times in one run.
const HANDOVERS_MAX: u32 = 3;

/// Where in a parcel its database stands, and its flags.
const DATABASE_AT: usize = 56;
const FLAGS_AT: usize = 60;
const TEXTS_AT: usize = 62;

/// What says that a client speaks RESP3.
const RESP3: u8 = 2;

pub fn addresses_of(client: usize) -> (SocketAddr, SocketAddr) {
    let peer = SocketAddr::from(([10, 9, 0, 1], 1000 + client as u16));
    (peer, SocketAddr::from(([10, 9, 0, 2], 6379)))
}

impl World {
    /// Another process is ready to serve: it accepts from now on, and this one's clients go there.
    pub fn take_over_process(&mut self) {
        let Some(map) = self.topology.current() else { return };
        let busy = !self.former.is_empty() || self.in_transit > 0;
        if busy || self.newest >= HANDOVERS_MAX || self.first_map_us.is_none() {
            return;
        }
        let number = self.newest + 1;
        let seed = [(); 4].map(|()| self.random.next());
        let mut new =
            new_proxy(&self.parameters, self.plant, seed, 1 + u64::from(number) * 100_000);
        let now = self.now();
        self.named.extend(map.nodes.iter().filter_map(|node| node.address));
        new.handle_topology(map, now);
        if self.learned_us.is_some() {
            new.handle_learned(crate::workload::learned());
        }
        let mut old = std::mem::replace(&mut self.proxy, new);
        old.handle_hand_over(now);
        let hasty = self.random.chance(500);
        let former = Former { number: self.newest, proxy: old, offered: Vec::new(), hasty };
        self.former.push(former);
        (self.process, self.newest) = (number, number);
        self.history.taken_over = true;
        self.turn_before(self.now_us + 1);
    }

    /// Does something as one of the processes. `None`: it has ended.
    pub fn as_process<T>(&mut self, number: u32, what: impl FnOnce(&mut World) -> T) -> Option<T> {
        if number == self.process {
            return Some(what(self));
        }
        let place = self.former.iter().position(|former| former.number == number)?;
        std::mem::swap(&mut self.proxy, &mut self.former[place].proxy);
        let own = std::mem::replace(&mut self.process, number);
        let done = what(self);
        std::mem::swap(&mut self.proxy, &mut self.former[place].proxy);
        self.process = own;
        Some(done)
    }

    /// All processes, the present one first.
    pub fn processes(&self) -> Vec<u32> {
        let former = self.former.iter().map(|former| former.number);
        std::iter::once(self.process).chain(former).collect()
    }

    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        std::iter::once(&self.proxy).chain(self.former.iter().map(|former| &former.proxy))
    }

    pub fn clients_open(&self) -> usize {
        self.proxies().map(Proxy::clients_open).sum()
    }

    pub fn requests_open(&self) -> usize {
        self.proxies().map(Proxy::requests_open).sum()
    }

    pub fn subscriptions_left(&self) -> bool {
        self.proxies().any(|proxy| proxy.subscription_counts() != [0; 4])
    }

    /// The proxy that speaks has offered a client.
    pub fn offer(&mut self, client: u32, socket: Socket) {
        // Receiving was told to stop; that takes a moment.
        let from_us = self.now_us + self.random.below(3_000);
        match self.former.iter_mut().find(|former| former.number == self.process) {
            Some(former) => former.offered.push((client, socket, from_us)),
            None => self.history.violate("driver", format!("{client} is offered to nobody")),
        }
    }

    /// Once a turn: gives away what the ring has let go of; processes without clients end.
    pub fn give_away(&mut self, now: Now) {
        for number in self.processes().split_off(1) {
            let place = self.former.iter().position(|former| former.number == number);
            let Some(place) = place else { continue };
            let offered = std::mem::take(&mut self.former[place].offered);
            for (client, socket, from_us) in offered {
                if from_us > self.now_us || !self.may_release(socket) {
                    self.former[place].offered.push((client, socket, from_us));
                    self.turn_before(self.now_us + 200);
                    continue;
                }
                self.give(place, client, socket, now);
            }
        }
        self.end_processes();
    }

    /// As `ring::may_release`: one that is gone may, too.
    fn may_release(&mut self, socket: Socket) -> bool {
        let told = self.inbox.iter().any(|completion| completion.socket() == socket);
        let Some(entry) = self.entry(socket) else { return true };
        let busy = entry.sending.is_some() || !entry.paused || told;
        !busy || entry.closing
    }

    fn give(&mut self, place: usize, client: u32, socket: Socket, now: Now) {
        let parcel = self.former[place].proxy.take_leaver(client, socket, now);
        let Some(mut parcel) = parcel else { return };
        let newest = self.newest;
        let Some(entry) = self.entry(socket).filter(|entry| !entry.closing) else {
            return self.history.violate("driver", format!("{socket:?} is given and gone"));
        };
        (entry.owner, entry.process, entry.in_transit) = (None, newest, true);
        let peer = entry.peer;
        self.former[place].proxy.handle_gone(Conn::Client(client), now);
        self.in_transit += 1;
        self.given += 1;
        if let Peer::Client(client) = peer {
            self.plant_in_parcel(client, socket, &mut parcel);
        }
        self.note(parcel.len() as u64 | 14 << 40, || {
            format!("given {socket:?} {:?}", String::from_utf8_lossy(&parcel[TEXTS_AT..]))
        });
        let at = self.now_us + 1 + self.random.below(2_000);
        self.at(at, Event::Adopt { socket, parcel });
    }

    /// A client of the process before, as `Worker::adopt` takes it.
    pub fn adopt(&mut self, socket: Socket, parcel: &[u8], now: Now) {
        self.in_transit -= 1;
        let Some(entry) = self.entry(socket) else { return };
        let Peer::Client(client) = entry.peer else { return };
        entry.in_transit = false;
        match self.proxy.handle_adopted(socket, addresses_of(client), parcel, now) {
            Ok(Adopted { client: index, bytes, .. }) => {
                let Some(entry) = self.entry(socket) else { return };
                let conn = Conn::Client(index);
                entry.owner = Some(conn);
                // Who reads behind a client's end is told of it again.
                let told = entry.kept.iter().any(|kept| matches!(kept, Inbound::End { .. }));
                if entry.ended && !told {
                    entry.kept.push_back(Inbound::End { failed: false });
                }
                if self.plant == Plant::UnreadFirst {
                    self.receive_kept(socket, conn, now);
                }
                self.resume(socket);
                if !bytes.is_empty() {
                    self.proxy.handle_received(conn, &bytes, now);
                }
            }
            Err(why) => {
                let allowed = self.parameters.proxy.clients_max < 10_000;
                if !allowed {
                    self.history.violate("handover", format!("client {client}: {why}"));
                }
                self.clients[client].turned_away = true;
                self.close(socket);
            }
        }
    }

    fn receive_kept(&mut self, socket: Socket, conn: Conn, now: Now) {
        let Some(entry) = self.entry(socket) else { return };
        let kept = std::mem::take(&mut entry.kept);
        let mut left = VecDeque::new();
        for inbound in kept {
            match inbound {
                Inbound::Bytes(bytes) => self.proxy.handle_received(conn, &bytes, now),
                end => left.push_back(end),
            }
        }
        if let Some(entry) = self.entry(socket) {
            entry.kept = left;
        }
    }

    /// A process without clients ends, and its connections to nodes with it.
    fn end_processes(&mut self) {
        let over = |former: &Former| {
            let idle = former.hasty || former.proxy.requests_open() == 0;
            former.proxy.clients_open() == 0 && idle
        };
        let Some(place) = self.former.iter().position(over) else { return };
        let number = self.former[place].number;
        // Somebody is accepted, and it has not been told yet.
        let awaited = self.inbox.iter().any(|completion| {
            matches!(completion, Completion::Accepted { socket, .. }
                if self.sockets[socket.index as usize].process == number)
        });
        if awaited {
            return;
        }
        let open = self.sockets.iter().enumerate().filter(|(_, entry)| {
            entry.process == number && entry.open && !entry.closing && !entry.in_transit
        });
        let open: Vec<Socket> = open
            .map(|(index, entry)| Socket { index: index as u32, generation: entry.generation })
            .collect();
        self.note(u64::from(number) | 15 << 40, || format!("process {number} ends"));
        for socket in open {
            self.history.lost();
            self.close(socket);
        }
        self.former.remove(place);
    }

    /// When all is well who waits for nothing has been given away.
    pub fn check_given(&self) -> Result<(), Violation> {
        let former = |client: usize| {
            let this = &self.clients[client];
            let socket = this.socket.map(|socket| &self.sockets[socket.index as usize]);
            socket.is_some_and(|entry| {
                entry.open && entry.peer == Peer::Client(client) && entry.process != self.newest
            })
        };
        let stays = (0..self.clients.len()).find(|&client| {
            let this = &self.clients[client];
            !this.is_over() && this.has_all() && this.reads_all() && former(client)
        });
        match stays {
            None => Ok(()),
            Some(client) => {
                let text = format!("client {client} waits for nothing and was not given away");
                Err(Violation { checker: "liveness", text })
            }
        }
    }

    // --- planted -----------------------------------------------------------------------------

    fn plant_in_parcel(&mut self, client: usize, socket: Socket, parcel: &mut Vec<u8>) {
        let bytes_at = bytes_at(parcel);
        match self.plant {
            Plant::RunAgain => {
                let last = self.clients[client].last_asked.clone();
                parcel.splice(bytes_at..bytes_at, last);
            }
            Plant::DropUnread => {
                parcel.truncate(bytes_at);
                if let Some(entry) = self.entry(socket) {
                    entry.kept.clear();
                }
            }
            Plant::LoseDatabase => parcel[DATABASE_AT..FLAGS_AT].fill(0),
            Plant::LoseVersion => parcel[FLAGS_AT] &= !RESP3,
            _ => (),
        }
    }
}

/// Where the bytes begin that are not run yet.
fn bytes_at(parcel: &[u8]) -> usize {
    (0..4).fold(TEXTS_AT, |at, _| {
        let len: [u8; 4] = parcel[at + 1..at + 5].try_into().expect("four bytes");
        at + 5 + u32::from_le_bytes(len) as usize
    })
}
