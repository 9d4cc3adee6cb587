//! Clients that send more than is taken in at once, so that nobody else waits behind their bytes.
//!
//! The kernel fills as many buffers of a multishot receive as there are, and its completions come
//! in one queue. A client that fills several in a row therefore loses its multishot: it is armed
//! for one buffer of a small group of their own, in turn with others like it, and only when all
//! before has been looked at. Its completions stand in a queue of their own, which is looked at
//! last. With the first buffer that it does not fill it is a client like any other again.
//!
//! A node that has much to say is never held up, for others wait for what it says next. But its
//! full buffers, and what it says behind them, are looked at last as well.
//!
//! What those with little to ask are owed need not wait until the others have been looked at: it
//! may be submitted before (`depart`).
//!
//! Not here: how much of that queue a turn looks at (`reactor`).

use std::collections::VecDeque;

use super::buffers::{BufferRef, Buffers};
use super::queue::{Completion, Op, Wait};
use super::table::{Receive, Table};
use super::token::{Kind, Token};
use super::{Event, Ring, SocketId};
use crate::limits::HEAVY_AFTER_BUFFERS;

pub(super) struct Heavy {
    pub buffers: Buffers,
    pub batch: VecDeque<Completion>,
    /// What is left of a node's buffer: before `batch`.
    pub rest: Option<(SocketId, BufferRef)>,
    /// So many of them came before all that is light and not looked at yet.
    pub ripe: usize,
    /// Multishots of heavy sockets that have not ended yet, and completions of nodes in `batch`:
    /// while there are any, more may belong here.
    pub turning: usize,
    /// Clients that are heavy.
    pub clients: usize,
    /// Sockets whose multishot is to be cancelled.
    grown: Vec<SocketId>,
    /// Sockets that want a buffer, in turn. Entries may be out of date.
    hungry: VecDeque<SocketId>,
}

impl Heavy {
    pub fn new(buffers: Buffers) -> Heavy {
        let (batch, hungry) = (VecDeque::new(), VecDeque::new());
        let grown = Vec::new();
        Heavy { buffers, batch, rest: None, ripe: 0, turning: 0, clients: 0, grown, hungry }
    }

    /// Whether the completion of a multishot is a heavy socket's, which it may become by this one.
    #[cold]
    pub fn takes(&mut self, table: &mut Table, user_data: u64, full: bool) -> bool {
        let Some(token) = Token::decode(user_data) else { return false };
        let id = SocketId { index: token.index, generation: token.generation };
        let Some(socket) = table.get(id) else { return false };
        if !socket.fair {
            let behind = full || socket.behind > 0;
            socket.behind += u16::from(behind);
            self.turning += usize::from(behind);
            return behind;
        }
        if !socket.heavy && full && !socket.closing {
            socket.full += 1;
            if socket.full >= HEAVY_AFTER_BUFFERS {
                socket.heavy = true;
                self.clients += 1;
                self.turning += 1;
                self.grown.push(id);
            }
        }
        socket.heavy
    }

    /// Whether anything is to be looked at.
    pub fn is_waiting(&self) -> bool {
        self.rest.is_some() || !self.batch.is_empty()
    }

    /// It waits until it is its turn.
    pub fn wait(&mut self, id: SocketId) {
        self.hungry.push_back(id);
    }
}

impl Ring {
    /// Whether there is anything of heavy clients, or of nodes beside them, to be looked at.
    #[inline]
    pub fn has_heavy(&self) -> bool {
        self.heavy.clients > 0 && self.heavy.is_waiting()
    }

    /// Of a node's `Received`, which `next_heavy` has told, no more was looked at than so many
    /// bytes: the rest is told again, before all else that is heavy, and what the node says later
    /// behind it.
    pub fn keep_rest(&mut self, id: SocketId, buffer: BufferRef, used: usize) {
        let rest = buffer.without(used);
        match self.table.open(id) {
            Some(socket) if !rest.is_empty() => {
                assert!(!socket.fair, "a client's bytes may come both ways");
                assert!(self.heavy.rest.is_none(), "bytes of a node would be lost");
                socket.behind += 1;
                self.heavy.turning += 1;
                self.heavy.rest = Some((id, rest));
            }
            _ => self.give_back(rest),
        }
    }

    fn take_rest(&mut self) -> Option<Event> {
        let (id, buffer) = self.heavy.rest.take()?;
        self.heavy.turning -= 1;
        let socket = self.table.get(id);
        let closing = socket.is_none_or(|socket| {
            socket.behind -= 1;
            socket.closing
        });
        if closing {
            self.give_back(buffer);
            return None;
        }
        Some(Event::Received { id, buffer })
    }

    /// Submits what was asked for so far, before anything of heavy clients is looked at. What is
    /// armed receives nothing meanwhile: the kernel does that work in `enter` only.
    pub fn depart(&mut self) {
        if self.kernel.sq.is_empty() || self.fatal.is_some() {
            return;
        }
        if let Err(error) = self.submit(Wait::Never) {
            self.fatal = Some(error);
        }
    }

    /// The next event of a heavy client, after those of `next_light`. Where these are not all
    /// looked at, none that may have older bytes among them.
    #[inline]
    pub fn next_heavy(&mut self) -> Option<Event> {
        if let Some(event) = self.take_rest() {
            return Some(event);
        }
        while let Some(&completion) = self.heavy.batch.front() {
            let later = (completion.user_data >> 32) as u8 == Kind::ReceiveOne as u8;
            if !later && self.heavy.ripe == 0 && self.batch_at < self.batch.len() {
                return None;
            }
            self.heavy.batch.pop_front();
            self.heavy.ripe = self.heavy.ripe.saturating_sub(1);
            if !later {
                self.note_nodes(completion);
            }
            if let Some(event) = self.take(completion) {
                return Some(event);
            }
        }
        None
    }

    /// The completion of a multishot is looked at now: a node's is not behind any more.
    #[inline]
    fn note_nodes(&mut self, completion: Completion) {
        let Some(token) = Token::decode(completion.user_data) else { return };
        let id = SocketId { index: token.index, generation: token.generation };
        if let Some(socket) = self.table.get(id)
            && socket.behind > 0
        {
            socket.behind -= 1;
            self.heavy.turning -= 1;
        }
    }

    /// Ends the multishots of sockets that have become heavy, and arms those whose turn it is, no
    /// more of them than there are buffers. True: some are left although there are buffers.
    pub(super) fn feed_heavy(&mut self) -> bool {
        while let Some(id) = self.heavy.grown.pop() {
            let Some(socket) = self.table.open(id) else { continue };
            if socket.receive == Receive::Armed && !socket.one {
                socket.receive = Receive::Restarting;
                self.cancel(id.token(Kind::Receive));
            }
        }
        if self.heavy.hungry.is_empty() {
            return false;
        }
        for _ in 0..self.heavy.buffers.available() {
            let Some(id) = self.heavy.hungry.pop_front() else { break };
            let Some(socket) = self.table.open(id) else { continue };
            if socket.receive == Receive::Starved && socket.heavy {
                (socket.receive, socket.one) = (Receive::Armed, true);
                self.push(Op::ReceiveOne(id.index));
            }
        }
        !self.heavy.hungry.is_empty() && self.heavy.buffers.available() > 0
    }
}
