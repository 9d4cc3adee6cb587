//! The sockets of one ring: which operations of each the kernel holds, and when an index is free.
//!
//! Not here: the operations themselves (`queue`), what completions mean (`take`).

use std::os::fd::OwnedFd;

use super::token::GENERATIONS;
use super::token::Kind;
use super::token::Token;

/// One socket, from accept or connect until `Event::Gone`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct SocketId {
    /// Small and reused after `Gone`: fit to index the caller's own table.
    pub index: u32,
    /// 24 bits, another one at each reuse of the index.
    pub generation: u32,
}

impl SocketId {
    #[inline]
    pub(super) fn token(self, kind: Kind) -> Token {
        Token { kind, generation: self.generation, index: self.index }
    }
}

/// The receive operation of a socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Receive {
    /// Not armed, not wanted.
    Off,
    /// Armed.
    Armed,
    /// Wanted; waits in the FIFO for buffers, the kernel had none.
    Starved,
    /// Armed and being cancelled.
    Stopping,
    /// Armed and being cancelled, and wanted again: armed anew after the last completion.
    Restarting,
    /// Ended by the peer or an error; never armed again.
    Ended,
}

/// The send operation of a socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Send {
    None,
    /// First attempt, queued or issued: no completion means that all went out.
    Fast,
    /// The first attempt has a completion, not yet looked at.
    Answered,
    /// All of the first attempt went out; to be reported.
    Done,
    /// The rest is with the kernel.
    Rest,
}

pub(super) struct Socket {
    /// None: the index is free, or is being reported as gone.
    pub fd: Option<OwnedFd>,
    pub generation: u32,
    pub receive: Receive,
    pub send: Send,
    pub connecting: bool,
    pub closing: bool,
    /// Closing, and not begun to be.
    pub waits_to_end: bool,
    pub close_after_send: bool,
    /// What is being sent is the last, and leaves together with the end.
    pub last: bool,
    /// Becomes heavy when it sends much.
    pub fair: bool,
    /// Receives one buffer at a time (`heavy`).
    pub heavy: bool,
    /// Its receive is a `ReceiveOne`.
    pub one: bool,
    /// Full buffers that came one after the other.
    pub full: u8,
    /// Of a node: its completions among those of heavy clients.
    pub behind: u16,
    /// Being sent; the kernel reads it while `send` is not `None`.
    pub buffer: Vec<u8>,
    /// Bytes of `buffer` that are out.
    pub sent: usize,
}

// What a connection costs here while it is idle.
const _: () = assert!(std::mem::size_of::<Socket>() <= 64);

impl Socket {
    /// What its receive is called by.
    pub fn receive_kind(&self) -> Kind {
        if self.one { Kind::ReceiveOne } else { Kind::Receive }
    }

    /// Whether the kernel may still complete an operation of this socket.
    pub fn is_busy(&self) -> bool {
        self.send != Send::None
            || self.connecting
            || matches!(self.receive, Receive::Armed | Receive::Stopping | Receive::Restarting)
    }
}

#[derive(Default)]
pub(super) struct Table {
    sockets: Vec<Socket>,
    free: Vec<u32>,
}

impl Table {
    pub fn add(&mut self, fd: OwnedFd) -> SocketId {
        if let Some(index) = self.free.pop() {
            let socket = &mut self.sockets[index as usize];
            socket.generation = (socket.generation + 1) % GENERATIONS;
            socket.fd = Some(fd);
            socket.receive = Receive::Off;
            socket.closing = false;
            socket.close_after_send = false;
            socket.last = false;
            (socket.fair, socket.heavy, socket.one, socket.full) = (false, false, false, 0);
            socket.behind = 0;
            socket.sent = 0;
            return SocketId { index, generation: socket.generation };
        }
        let index = u32::try_from(self.sockets.len()).expect("more sockets than descriptors");
        self.sockets.push(Socket {
            fd: Some(fd),
            generation: 1,
            receive: Receive::Off,
            send: Send::None,
            connecting: false,
            closing: false,
            waits_to_end: false,
            close_after_send: false,
            last: false,
            fair: false,
            heavy: false,
            one: false,
            full: 0,
            behind: 0,
            buffer: Vec::new(),
            sent: 0,
        });
        SocketId { index, generation: 1 }
    }

    /// The living socket of this id, also while it is closing.
    #[inline]
    pub fn get(&mut self, id: SocketId) -> Option<&mut Socket> {
        let socket = self.sockets.get_mut(id.index as usize)?;
        (socket.generation == id.generation && socket.fd.is_some()).then_some(socket)
    }

    /// The living socket of this id that is not closing.
    #[inline]
    pub fn open(&mut self, id: SocketId) -> Option<&mut Socket> {
        self.get(id).filter(|socket| !socket.closing)
    }

    /// By index, of which the caller knows that it is in use.
    #[inline]
    pub fn at(&mut self, index: u32) -> &mut Socket {
        &mut self.sockets[index as usize]
    }

    #[inline]
    pub fn id_at(&self, index: u32) -> SocketId {
        SocketId { index, generation: self.sockets[index as usize].generation }
    }

    /// The index may be used again from now on. Whether it was a heavy client's.
    pub fn release(&mut self, id: SocketId) -> bool {
        let socket = &mut self.sockets[id.index as usize];
        debug_assert!(socket.fd.is_none());
        self.free.push(id.index);
        std::mem::take(&mut socket.heavy)
    }

    pub fn len(&self) -> usize {
        self.sockets.len() - self.free.len()
    }

    pub fn living(&self) -> Vec<SocketId> {
        (0u32..)
            .zip(&self.sockets)
            .filter(|(_, socket)| socket.fd.is_some())
            .map(|(index, socket)| SocketId { index, generation: socket.generation })
            .collect()
    }
}
