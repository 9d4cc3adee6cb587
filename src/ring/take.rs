//! From completions to events: what the caller must know, and what the ring settles by itself.
//!
//! Settled here, unseen by the caller: re-arming, lack of buffers, the rest of a send, stale
//! completions, the end of a closed socket. Not here: submitting (`queue`).

use io_uring::cqueue;

use super::Event;
use super::Ring;
use super::SocketId;
use super::buffers::BufferRef;
use super::queue::Completion;
use super::queue::Op;
use super::socket;
use super::table::Receive;
use super::table::Send;
use super::token::Kind;
use super::token::Token;

impl Ring {
    /// None: nothing that the caller must know.
    #[inline]
    pub(super) fn take(&mut self, completion: Completion) -> Option<Event> {
        let Some(token) = Token::decode(completion.user_data) else {
            self.counters.stale += 1;
            return None;
        };
        let id = SocketId { index: token.index, generation: token.generation };
        match token.kind {
            Kind::Receive => self.take_receive(id, completion),
            Kind::ReceiveOne => self.take_receive_one(id, completion),
            Kind::Send | Kind::SendRest => self.take_send(id, completion.result),
            Kind::Accept => self.take_accept(token, completion.result),
            Kind::Connect => self.take_connect(id, completion.result),
            Kind::Wake => Some(self.take_wake()),
            // Only of cancels that found nothing: the operation was over already.
            Kind::Cancel => None,
        }
    }

    #[inline]
    fn take_receive(&mut self, id: SocketId, completion: Completion) -> Option<Event> {
        let Completion { result, flags, .. } = completion;
        let buffer = self.buffers.claim(result, flags);
        let more = cqueue::more(flags);
        match (self.table.get(id), buffer) {
            (Some(socket), Some(buffer)) if result > 0 && more && !socket.closing => {
                if !self.buffers.fills(result) {
                    socket.full = 0;
                }
                Some(Event::Received { id, buffer })
            }
            (Some(socket), buffer) => {
                if socket.heavy && !more {
                    self.heavy.turning = self.heavy.turning.saturating_sub(1);
                }
                self.take_receive_end(id, result, flags, buffer)
            }
            (None, buffer) => self.take_stale(buffer),
        }
    }

    /// Of a heavy client: with a buffer that is not full it is none any more.
    fn take_receive_one(&mut self, id: SocketId, completion: Completion) -> Option<Event> {
        let Completion { result, flags, .. } = completion;
        let buffer = self.heavy.buffers.claim(result, flags);
        let Some(socket) = self.table.get(id) else { return self.take_stale(buffer) };
        if result > 0 && !self.buffers.fills(result) {
            self.heavy.clients -= usize::from(socket.heavy);
            (socket.heavy, socket.full) = (false, 0);
        }
        self.take_receive_end(id, result, flags, buffer)
    }

    #[cold]
    fn take_stale(&mut self, buffer: Option<BufferRef>) -> Option<Event> {
        self.counters.stale += 1;
        if let Some(buffer) = buffer {
            self.give_back(buffer);
        }
        None
    }

    /// The seldom cases: last completion of a multishot, no data, a closing socket.
    #[cold]
    fn take_receive_end(
        &mut self,
        id: SocketId,
        result: i32,
        flags: u32,
        buffer: Option<BufferRef>,
    ) -> Option<Event> {
        let last = !cqueue::more(flags);
        let socket = self.table.get(id)?;
        let (closing, before) = (socket.closing, socket.receive);
        // No bytes, and yet something there: a TCP socket says so at its real end, too.
        let at_end = !cqueue::sock_nonempty(flags)
            || result != 0
            || closing
            || socket.fd.as_ref().is_none_or(socket::is_at_end);
        let verdict = if last { Verdict::of(result, at_end, before) } else { Verdict::GoesOn };
        match verdict {
            Verdict::GoesOn => {}
            Verdict::Off => socket.receive = Receive::Off,
            Verdict::End(_) => socket.receive = Receive::Ended,
            Verdict::Again { .. } if closing => socket.receive = Receive::Off,
            Verdict::Starved if closing => socket.receive = Receive::Off,
            Verdict::Again { .. } | Verdict::Starved if socket.heavy => {
                socket.receive = Receive::Starved;
                self.heavy.wait(id);
            }
            Verdict::Again { poll_first } => {
                (socket.receive, socket.one) = (Receive::Armed, false);
                self.counters.rearms += 1;
                self.push(Op::Receive { index: id.index, poll_first });
            }
            Verdict::Starved => {
                socket.receive = Receive::Starved;
                self.starved.push_back(id);
            }
        }
        if result == -libc::ENOBUFS {
            self.counters.enobufs += 1;
        }
        let buffer = match buffer {
            Some(buffer) if result > 0 && !closing => return Some(Event::Received { id, buffer }),
            buffer => buffer,
        };
        if let Some(buffer) = buffer {
            self.give_back(buffer);
        }
        if closing {
            self.finish(id);
            return None;
        }
        match verdict {
            Verdict::End(error) => Some(Event::End { id, error }),
            _ => None,
        }
    }

    fn take_send(&mut self, id: SocketId, result: i32) -> Option<Event> {
        let Some(socket) = self.table.get(id) else {
            self.counters.stale += 1;
            return None;
        };
        let first = socket.send == Send::Answered;
        socket.sent += result.max(0) as usize;
        // No error, and no byte although some were left: not to be tried for ever.
        let failed = match -result {
            libc::EAGAIN | libc::EINTR => false,
            error => error > 0 || (result == 0 && !first),
        };
        if socket.sent >= socket.buffer.len() {
            return Some(self.sent(id, true));
        }
        if failed || socket.closing {
            return Some(self.sent(id, false));
        }
        socket.send = Send::Rest;
        self.counters.short_sends += 1;
        self.push(Op::SendRest(id.index));
        None
    }

    /// A first attempt without a completion: all of it went out.
    pub(super) fn take_finished(&mut self, index: u32) -> Option<Event> {
        let id = self.table.id_at(index);
        let socket = self.table.at(index);
        socket.sent += (socket.buffer.len() - socket.sent).min(crate::limits::SEND_CHUNK_MAX);
        if socket.sent < socket.buffer.len() && !socket.closing {
            socket.send = Send::Rest;
            self.push(Op::SendRest(index));
            return None;
        }
        let ok = socket.sent >= socket.buffer.len();
        Some(self.sent(id, ok))
    }

    #[inline]
    fn sent(&mut self, id: SocketId, ok: bool) -> Event {
        let socket = self.table.at(id.index);
        socket.send = Send::None;
        socket.sent = 0;
        let buffer = std::mem::take(&mut socket.buffer);
        if socket.closing {
            self.finish(id);
        } else if socket.close_after_send {
            self.close_soon(id);
        }
        Event::Sent { id, buffer, ok }
    }

    fn take_connect(&mut self, id: SocketId, result: i32) -> Option<Event> {
        let Some(socket) = self.table.get(id) else {
            self.counters.stale += 1;
            return None;
        };
        socket.connecting = false;
        let closing = socket.closing;
        if let Some(at) = self.connecting.iter().position(|(index, _)| *index == id.index) {
            self.connecting.swap_remove(at);
        }
        if closing {
            self.finish(id);
            return None;
        }
        let result = if result < 0 { Err(-result) } else { Ok(()) };
        Some(Event::Connected { id, result })
    }

    fn take_wake(&mut self) -> Event {
        self.wake_armed = false;
        if !self.stopping {
            self.wake_armed = true;
            self.push(Op::Wake);
        }
        Event::Woken
    }

    /// A closing socket: close(2) as soon as the kernel holds no operation of it.
    pub(super) fn finish(&mut self, id: SocketId) {
        let socket = self.table.at(id.index);
        if !socket.closing || socket.waits_to_end || socket.is_busy() {
            return;
        }
        socket.fd = None;
        self.gone.push_back(id);
    }
}

/// What the last completion of a multishot receive means.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Verdict {
    GoesOn,
    Again {
        poll_first: bool,
    },
    Starved,
    Off,
    /// End of the stream, or an error.
    End(Option<i32>),
}

impl Verdict {
    /// `at_end`: no bytes means the end of the stream.
    fn of(result: i32, at_end: bool, before: Receive) -> Verdict {
        let wanted = matches!(before, Receive::Armed | Receive::Restarting);
        let again = |poll_first| if wanted { Verdict::Again { poll_first } } else { Verdict::Off };
        match result {
            1.. => again(false),
            0 if at_end => Verdict::End(None),
            0 => again(false),
            _ => match -result {
                libc::ENOBUFS if wanted => Verdict::Starved,
                libc::ENOBUFS => Verdict::Off,
                libc::ECANCELED if before != Receive::Armed => again(false),
                libc::EAGAIN | libc::EINTR => again(true),
                errno => Verdict::End(Some(errno)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(result: i32, at_end: bool, before: Receive, want: Verdict) {
        assert_eq!(Verdict::of(result, at_end, before), want);
    }

    #[test]
    fn last_completion_of_a_receive() {
        let now = Verdict::Again { poll_first: false };
        check(5, true, Receive::Armed, now);
        check(5, true, Receive::Stopping, Verdict::Off);
        check(5, true, Receive::Restarting, now);
        check(0, true, Receive::Armed, Verdict::End(None));
        check(0, false, Receive::Armed, now);
        check(0, false, Receive::Stopping, Verdict::Off);
        check(0, true, Receive::Stopping, Verdict::End(None));
        check(-libc::ENOBUFS, true, Receive::Armed, Verdict::Starved);
        check(-libc::ENOBUFS, true, Receive::Stopping, Verdict::Off);
        check(-libc::ECANCELED, true, Receive::Stopping, Verdict::Off);
        check(-libc::ECANCELED, true, Receive::Restarting, now);
        check(-libc::ECANCELED, true, Receive::Armed, Verdict::End(Some(libc::ECANCELED)));
        check(-libc::EINTR, true, Receive::Armed, Verdict::Again { poll_first: true });
        check(-libc::ECONNRESET, true, Receive::Armed, Verdict::End(Some(libc::ECONNRESET)));
    }
}
