//! Connections as the proxy's driver sees them: sockets with generations, bytes under way in
//! slices, sends that end late, closes that take a while.
//!
//! Not here: what is said over them (`serve`, `workload`), when they break (`chaos`).

use std::collections::VecDeque;

use ringway::proxy::{Conn, Socket};

use crate::plant::Plant;
use crate::world::{Event, World};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Peer {
    Nobody,
    Client(usize),
    /// An entry of `World::links`.
    Link(usize),
}

/// One socket of the driver.
#[derive(Debug)]
pub struct Entry {
    pub generation: u32,
    pub open: bool,
    pub closing: bool,
    pub owner: Option<Conn>,
    pub peer: Peer,
    /// The process that it belongs to.
    pub process: u32,
    /// On its way from one process to the next.
    pub in_transit: bool,
    /// The buffer of the send under way.
    pub sending: Option<Vec<u8>>,
    pub paused: bool,
    pub paused_us: u64,
    /// Came while reading was stopped.
    pub kept: VecDeque<Inbound>,
    /// Times before which nothing further arrives in this direction.
    pub in_us: u64,
    pub out_us: u64,
    /// The peer broke the connection: what is under way to us is lost.
    pub broken: bool,
    /// The peer's end has arrived.
    pub ended: bool,
}

#[derive(Clone, Debug)]
pub enum Inbound {
    Bytes(Vec<u8>),
    End { failed: bool },
}

/// What the ring reports to the driver.
#[derive(Debug)]
pub enum Completion {
    Accepted {
        socket: Socket,
        client: usize,
    },
    Received {
        socket: Socket,
        bytes: Vec<u8>,
    },
    End {
        socket: Socket,
        failed: bool,
    },
    Sent {
        socket: Socket,
        ok: bool,
    },
    Connected {
        socket: Socket,
        ok: bool,
    },
    Gone {
        socket: Socket,
    },
    /// Of the process before.
    Adopted {
        socket: Socket,
        parcel: Vec<u8>,
    },
}

impl Completion {
    pub fn socket(&self) -> Socket {
        match self {
            Completion::Accepted { socket, .. }
            | Completion::Received { socket, .. }
            | Completion::End { socket, .. }
            | Completion::Sent { socket, .. }
            | Completion::Connected { socket, .. }
            | Completion::Gone { socket }
            | Completion::Adopted { socket, .. } => *socket,
        }
    }

    /// Completions of one lane keep their order.
    fn lane(&self) -> (u32, bool) {
        match self {
            Completion::Accepted { socket, .. }
            | Completion::Received { socket, .. }
            | Completion::End { socket, .. }
            | Completion::Connected { socket, .. }
            | Completion::Adopted { socket, .. } => (socket.index, false),
            Completion::Sent { socket, .. } | Completion::Gone { socket } => (socket.index, true),
        }
    }

    pub fn mark(&self) -> u64 {
        let (index, late) = self.lane();
        let size = match self {
            Completion::Received { bytes, .. } | Completion::Adopted { parcel: bytes, .. } => {
                bytes.len() as u64
            }
            _ => 0,
        };
        u64::from(index) << 33 | u64::from(late) << 32 | size
    }
}

impl World {
    pub fn open_socket(&mut self, owner: Option<Conn>, peer: Peer) -> Socket {
        let process = self.process;
        let index = match self.free_sockets.pop() {
            Some(index) => index,
            None => {
                self.sockets.push(Entry {
                    generation: 0,
                    open: false,
                    closing: false,
                    owner: None,
                    peer: Peer::Nobody,
                    process,
                    in_transit: false,
                    sending: None,
                    paused: false,
                    paused_us: 0,
                    kept: VecDeque::new(),
                    in_us: 0,
                    out_us: 0,
                    broken: false,
                    ended: false,
                });
                self.sockets.len() as u32 - 1
            }
        };
        let entry = &mut self.sockets[index as usize];
        let generation = entry.generation.wrapping_add(1);
        *entry = Entry {
            generation,
            open: true,
            closing: false,
            owner,
            peer,
            process,
            in_transit: false,
            sending: None,
            paused: false,
            paused_us: 0,
            kept: VecDeque::new(),
            in_us: self.now_us,
            out_us: self.now_us,
            broken: false,
            ended: false,
        };
        Socket { index, generation }
    }

    /// The entry of a socket that is still the same.
    pub fn entry(&mut self, socket: Socket) -> Option<&mut Entry> {
        let entry = self.sockets.get_mut(socket.index as usize)?;
        (entry.open && entry.generation == socket.generation).then_some(entry)
    }

    fn delay(&mut self) -> u64 {
        1 + self.random.below(self.parameters.delay_us)
    }

    /// Cuts bytes at random places, or not at all.
    fn slices(&mut self, mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let mut slices = Vec::new();
        while bytes.len() > 16_000 {
            let at = self.random.range(1_000..=16_000) as usize;
            let rest = bytes.split_off(at);
            slices.push(std::mem::replace(&mut bytes, rest));
        }
        let most = slices.len() + 12;
        while bytes.len() > 1 && slices.len() < most && self.random.chance(self.parameters.slices) {
            let at = 1 + self.random.skewed(bytes.len() as u64 - 2) as usize;
            let rest = bytes.split_off(at);
            slices.push(std::mem::replace(&mut bytes, rest));
        }
        slices.push(bytes);
        slices
    }

    /// The proxy sends. Checks: one send at a time.
    pub fn send(&mut self, socket: Socket, bytes: Vec<u8>) {
        let Some(entry) = self.entry(socket) else {
            return self
                .history
                .violate("driver", format!("send to a socket that is gone {socket:?}"));
        };
        if entry.sending.is_some() {
            return self
                .history
                .violate("one send", format!("a second send at once on {socket:?}"));
        }
        let (peer, broken, closing) = (entry.peer, entry.broken, entry.closing);
        entry.sending = Some(bytes.clone());
        if closing || broken {
            let at = self.now_us + 1;
            return self.at(at, Event::Sent { socket, ok: false });
        }
        let mut last = self.now_us;
        for slice in self.slices(bytes) {
            let delay = self.delay();
            let now = self.now_us;
            let Some(entry) = self.entry(socket) else { return };
            entry.out_us = entry.out_us.max(now + delay);
            last = entry.out_us;
            self.carry_to_peer(peer, last, slice);
        }
        if let Peer::Client(client) = peer
            && self.clients[client].is_full()
        {
            self.clients[client].blocked.push(socket);
            return;
        }
        let done = if self.random.chance(self.parameters.late_sent) {
            let late = self.random.below(self.parameters.late_sent_us);
            if self.random.chance(500) { last + late } else { self.now_us + late }
        } else {
            self.now_us + 1 + self.random.below(20)
        };
        self.at(done, Event::Sent { socket, ok: true });
    }

    fn carry_to_peer(&mut self, peer: Peer, at: u64, bytes: Vec<u8>) {
        match peer {
            Peer::Client(client) => {
                self.clients[client].under_way += bytes.len();
                self.at(at, Event::ToClient { client, bytes });
            }
            Peer::Link(link) => self.at(at, Event::ToLink { link, bytes }),
            Peer::Nobody => (),
        }
    }

    /// A peer sends bytes to the proxy.
    pub fn carry_to_proxy(&mut self, socket: Socket, bytes: Vec<u8>) {
        for slice in self.slices(bytes) {
            let delay = self.delay();
            let now = self.now_us;
            let Some(entry) = self.entry(socket) else { return };
            entry.in_us = entry.in_us.max(now + delay);
            let at = entry.in_us;
            self.at(at, Event::ToProxy { socket, inbound: Inbound::Bytes(slice) });
        }
    }

    /// A peer ends its side. `failed`: what it sent before may be lost.
    pub fn end_to_proxy(&mut self, socket: Socket, failed: bool) {
        let delay = self.delay();
        let lose = failed && self.random.chance(600);
        let now = self.now_us;
        let Some(entry) = self.entry(socket) else { return };
        entry.broken |= failed;
        let at = if lose { now + delay } else { entry.in_us.max(now + delay) };
        self.at(at, Event::ToProxy { socket, inbound: Inbound::End { failed } });
    }

    /// Something has arrived in the proxy's kernel.
    pub fn arrived(&mut self, socket: Socket, inbound: Inbound) {
        let now = self.now_us;
        let lenient = self.random.chance(300);
        let Some(entry) = self.entry(socket) else {
            return self.plant_stale_bytes(socket, inbound);
        };
        if entry.closing || entry.ended {
            return;
        }
        entry.ended = matches!(inbound, Inbound::End { .. });
        let still_comes = lenient && entry.kept.is_empty() && now < entry.paused_us + 2_000;
        if entry.in_transit || (entry.paused && !still_comes) {
            entry.kept.push_back(inbound);
            return;
        }
        self.complete(completion_of(socket, inbound));
    }

    pub fn pause(&mut self, socket: Socket) {
        let now = self.now_us;
        if let Some(entry) = self.entry(socket) {
            entry.paused = true;
            entry.paused_us = now;
        }
    }

    pub fn resume(&mut self, socket: Socket) {
        let Some(entry) = self.entry(socket) else { return };
        entry.paused = false;
        let kept: Vec<Inbound> = entry.kept.drain(..).collect();
        for inbound in kept {
            self.complete(completion_of(socket, inbound));
        }
    }

    /// The proxy closes: nothing more is received; the peer sees the end; `Gone` comes last.
    pub fn close(&mut self, socket: Socket) {
        let Some(entry) = self.entry(socket) else {
            return self
                .history
                .violate("driver", format!("close of a socket that is gone {socket:?}"));
        };
        if std::mem::replace(&mut entry.closing, true) {
            return self.history.violate("driver", format!("second close of {socket:?}"));
        }
        entry.kept.clear();
        let (peer, sending, out_us) = (entry.peer, entry.sending.is_some(), entry.out_us);
        self.inbox.retain(|completion| match completion {
            Completion::Received { socket: of, .. }
            | Completion::End { socket: of, .. }
            | Completion::Connected { socket: of, .. } => *of != socket,
            _ => true,
        });
        let mut gone = self.now_us + 1 + self.random.below(self.parameters.late_gone_us);
        if sending {
            let ok = self.random.chance(500);
            let at = self.now_us + 1 + self.random.below(self.parameters.late_gone_us);
            self.at(at, Event::Sent { socket, ok });
            gone = gone.max(at + 1);
        }
        let early = sending && self.random.chance(500);
        match peer {
            Peer::Client(client) => {
                let at = if early { self.now_us + 1 } else { out_us + 1 };
                self.at(at, Event::ClientEnd { client });
            }
            Peer::Link(link) => {
                let at = if self.random.chance(300) { self.now_us + 1 } else { out_us + 1 };
                self.at(at, Event::LinkEnd { link });
            }
            Peer::Nobody => (),
        }
        if self.plant == Plant::StaleBytes && !sending {
            gone = self.now_us + 1;
        }
        self.at(gone, Event::Gone { socket });
    }

    /// A send has ended in the kernel.
    pub fn send_ended(&mut self, socket: Socket, ok: bool) {
        let Some(entry) = self.entry(socket) else { return };
        if entry.sending.is_none() {
            return;
        }
        let ok = ok && !entry.broken;
        let pending = self.inbox.iter().any(
            |completion| matches!(completion, Completion::Sent { socket: of, .. } if *of == socket),
        );
        if !pending && !self.plant_lost_sent() {
            self.complete(Completion::Sent { socket, ok });
        }
    }

    /// Puts a completion where the next turn finds it.
    pub fn complete(&mut self, completion: Completion) {
        self.inbox.push_back(completion);
        let mut at = self.now_us + self.random.below(self.parameters.turn_us);
        if self.random.below(10_000) < u64::from(self.parameters.hiccups) && !self.healed {
            self.stuck_until = self.now_us + self.random.below(self.parameters.hiccup_ms * 1_000);
        }
        at = at.max(self.stuck_until);
        self.turn_before(at);
    }

    /// The completions of this turn, in an order that the kernel could have chosen.
    pub fn take_inbox(&mut self) -> Vec<Completion> {
        let mut taken = Vec::with_capacity(self.inbox.len());
        if !self.parameters.shuffle {
            taken.extend(self.inbox.drain(..));
            return taken;
        }
        while !self.inbox.is_empty() {
            let lane = self.inbox[self.random.index(self.inbox.len())].lane();
            let first = self.inbox.iter().position(|completion| completion.lane() == lane);
            taken.extend(first.and_then(|at| self.inbox.remove(at)));
        }
        taken
    }
}

pub fn completion_of(socket: Socket, inbound: Inbound) -> Completion {
    match inbound {
        Inbound::Bytes(bytes) => Completion::Received { socket, bytes },
        Inbound::End { failed } => Completion::End { socket, failed },
    }
}
