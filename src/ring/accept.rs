//! Clients that want to come in: a few of them in each enter.
//!
//! A multishot accept takes all that wait, thousands after a moment in which nobody looked, and
//! whoever is served already waits meanwhile. So a listener has some accepts in the kernel's hands
//! that take one client each; those that are used up are armed anew by the next enter, behind all
//! else that it submits. While sockets wait for their end nobody is let in: each has a descriptor.
//!
//! Not here: what becomes of a client (`reactor`), options of listening sockets (`socket`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::queue::Op;
use super::token::{Kind, Token};
use super::{Event, Listener, Ring, socket};
use crate::limits::ACCEPTS_AT_ONCE;

/// A bit for each accept of a listener.
const ALL: u32 = (1 << ACCEPTS_AT_ONCE) - 1;

pub(super) struct Accepting {
    /// None: stopped.
    fd: Option<OwnedFd>,
    address: SocketAddr,
    /// Accepts that the kernel has.
    armed: u32,
    stopping: bool,
    /// One has failed, and none is armed until somebody says that the reason may be gone.
    failed: bool,
}

impl Accepting {
    fn new(listener: Listener) -> Accepting {
        let address = listener.address();
        let fd = Some(listener.fd);
        Accepting { fd, address, armed: 0, stopping: false, failed: false }
    }

    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub fn is_armed(&self) -> bool {
        self.armed != 0
    }

    /// Accepts that are to be armed.
    fn missing(&self) -> u32 {
        let wanted = self.fd.is_some() && !self.stopping && !self.failed;
        if wanted { ALL & !self.armed } else { 0 }
    }

    /// Whether an accept that has failed so is to be told of. Of those that fail together one is.
    fn fails(&mut self, errno: i32) -> bool {
        // Of the connection that was to be accepted, or of the moment.
        let passing = [libc::ECONNABORTED, libc::EINTR, libc::EAGAIN, libc::EPROTO];
        let tells = !passing.contains(&errno) && !self.stopping && !self.failed;
        self.failed |= tells;
        tells
    }
}

pub(super) fn token(index: u32, number: u32) -> Token {
    Token { kind: Kind::Accept, generation: number, index }
}

fn bits(of: u32) -> impl Iterator<Item = u32> {
    (0..ACCEPTS_AT_ONCE).filter(move |number| of & 1 << number != 0)
}

impl Ring {
    /// Accepts from now on. Returns the number that events call this listener by: 0, 1, …
    pub fn listen(&mut self, listener: Listener) -> u32 {
        let index = self.listeners.len() as u32;
        self.listeners.push(Accepting::new(listener));
        self.arm_accepts_of(index);
        index
    }

    /// The address that a listener of this ring is bound to.
    pub fn listener_address(&self, listener: u32) -> Option<SocketAddr> {
        self.listeners.get(listener as usize).map(|of| of.address)
    }

    /// After `AcceptFailed`, once the reason may be gone.
    pub fn accept_again(&mut self, listener: u32) {
        if let Some(of) = self.listeners.get_mut(listener as usize) {
            of.failed = false;
            self.arm_accepts_of(listener);
        }
    }

    /// After `AcceptFailed` with EMFILE or ENFILE: closes one waiting connection, with a
    /// descriptor kept for this, so that its client need not wait for nothing.
    /// WouldBlock: none waits.
    pub fn refuse_one(&mut self, listener: u32) -> io::Result<()> {
        let fd = self.listeners.get(listener as usize).and_then(|of| of.fd.as_ref());
        let Some(fd) = fd else { return Ok(()) };
        self.spare = None;
        let dropped = socket::accept_now(fd).map(drop);
        self.spare = socket::spare_descriptor().ok();
        dropped
    }

    /// Whether a listener may still bring a client, also after `stop_listening`.
    pub fn is_listening(&self) -> bool {
        !self.late.is_empty() || self.listeners.iter().any(Accepting::is_armed)
    }

    /// Accepts no more and closes the listeners. Connections that were made by then still come out
    /// as events, as long as `is_listening`.
    pub fn stop_listening(&mut self) {
        for index in 0..self.listeners.len() as u32 {
            let listener = &mut self.listeners[index as usize];
            if std::mem::replace(&mut listener.stopping, true) {
                continue;
            }
            match listener.armed {
                0 => self.close_listener(index),
                armed => bits(armed).for_each(|number| self.cancel(token(index, number))),
            }
        }
    }

    /// Once for each enter. True: every accept of some listener was used up, so that more clients
    /// may be waiting there than were taken.
    pub(super) fn arm_accepts(&mut self) -> bool {
        if !std::mem::take(&mut self.accepts_due) {
            return false;
        }
        (0..self.listeners.len() as u32)
            .fold(false, |more, index| more | self.arm_accepts_of(index))
    }

    fn arm_accepts_of(&mut self, index: u32) -> bool {
        let listener = &mut self.listeners[index as usize];
        let missing = listener.missing();
        listener.armed |= missing;
        bits(missing).for_each(|number| self.push(Op::Accept { listener: index, number }));
        missing == ALL
    }

    pub(super) fn take_accept(&mut self, token: Token, result: i32) -> Option<Event> {
        let Token { generation: number, index, .. } = token;
        self.accepts_due = true;
        let listener = &mut self.listeners[index as usize];
        listener.armed &= !(1 << number);
        let tells = result < 0 && listener.fails(-result);
        if listener.stopping && !listener.is_armed() {
            self.close_listener(index);
        }
        if result >= 0 {
            // SAFETY: a new descriptor from the kernel's accept, in no other hands.
            let fd = unsafe { OwnedFd::from_raw_fd(result) };
            return Some(Event::Accepted { id: self.table.add(fd), listener: index });
        }
        tells.then_some(Event::AcceptFailed { listener: index, errno: -result })
    }

    /// Closes a listener that accepts no more, and takes what waits there before: the kernel would
    /// reset it. Another process that has the same socket may take it as well.
    fn close_listener(&mut self, index: u32) {
        let Some(fd) = self.listeners.get_mut(index as usize).and_then(|of| of.fd.take()) else {
            return;
        };
        while let Ok(socket) = socket::accept_now(&fd) {
            let id = self.table.add(socket.into());
            self.late.push_back((id, index));
        }
    }
}
