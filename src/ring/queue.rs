//! Towards the kernel: building operations, submitting them, fetching completions.
//!
//! Not here: which operation is due (`mod`), what a completion means (`take`).

use std::io;
use std::ptr;
use std::time::Duration;

use io_uring::EnterFlags;
use io_uring::opcode;
use io_uring::squeue;
use io_uring::types::Fd;
use io_uring::types::SubmitArgs;
use io_uring::types::Timespec;

use super::BusyPoll;
use super::Ring;
use super::accept;
use super::setup::BUFFER_GROUP;
use super::setup::HEAVY_GROUP;
use super::table::Send;
use super::token::Kind;
use super::token::Token;
use crate::limits::{CROWDED_BUFFER_COUNT, SEND_CHUNK_MAX};

/// `sqe.ioprio` bits of receive; the crate keeps its own private.
const RECVSEND_POLL_FIRST: u16 = 1;
const RECV_MULTISHOT: u16 = 2;

/// Completions that were handled and are kept before others that were not.
const BATCH_DONE_MAX: usize = 4096;

/// An operation, by what it is about: every pointer that the kernel gets is derived in `entry`.
#[derive(Copy, Clone, Debug)]
pub(super) enum Op {
    /// One client of a listener.
    Accept {
        listener: u32,
        number: u32,
    },
    Wake,
    /// The rest by socket index.
    Receive {
        index: u32,
        poll_first: bool,
    },
    /// One buffer of a heavy client.
    ReceiveOne(u32),
    Send(u32),
    SendRest(u32),
    Connect(u32),
    Cancel(Token),
}

/// A completion, copied out of the queue.
#[derive(Copy, Clone, Debug)]
pub(super) struct Completion {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

#[derive(Copy, Clone, Debug)]
pub(super) enum Wait {
    /// And what has come is not even taken in.
    Never,
    No,
    /// For one completion (or as many as `set_gather` said), at most so long.
    For(Option<Duration>),
}

impl Ring {
    pub(super) fn push(&mut self, op: Op) {
        let entry = self.entry(op);
        if self.kernel.sq.is_full() && !self.make_room() {
            // `fatal` is set: the next `enter` says so, and nothing of this ring is used again.
            return;
        }
        if let Op::Send(index) = op {
            self.issued.push((self.pushed, index));
        }
        self.pushed = self.pushed.wrapping_add(1);
        // SAFETY: what the entry points at outlives the operation. Receive: the mapping of
        // `buffers`, leaked on drop if operations are left. Send: `Socket::buffer`, not touched
        // while `Socket::send` is not None, leaked likewise. Connect: `connecting`, kept until its
        // completion. Wake: the scratch of `buffers`. Accept, Cancel: no pointers.
        let pushed = unsafe { self.kernel.sq.push(&entry) };
        debug_assert!(pushed.is_ok(), "room was made");
    }

    fn entry(&mut self, op: Op) -> squeue::Entry {
        match op {
            Op::Accept { listener, number } => {
                let fd = Fd(self.listeners[listener as usize].raw_fd());
                opcode::Accept::new(fd, ptr::null_mut(), ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
                    .user_data(accept::token(listener, number).encode())
            }
            Op::Wake => {
                let token = Token { kind: Kind::Wake, generation: 0, index: 0 };
                opcode::Read::new(Fd(self.waker.fd()), self.buffers.scratch(), 8)
                    .build()
                    .user_data(token.encode())
            }
            Op::Receive { index, poll_first } => {
                let first = if poll_first { RECVSEND_POLL_FIRST } else { 0 };
                opcode::Recv::new(self.raw_fd(index), ptr::null_mut(), 0)
                    .ioprio(RECV_MULTISHOT | first)
                    .buf_group(BUFFER_GROUP)
                    .build()
                    .flags(squeue::Flags::BUFFER_SELECT)
                    .user_data(self.token(index, Kind::Receive))
            }
            Op::ReceiveOne(index) => opcode::Recv::new(self.raw_fd(index), ptr::null_mut(), 0)
                .buf_group(HEAVY_GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
                .user_data(self.token(index, Kind::ReceiveOne)),
            // MSG_DONTWAIT: never parked in the kernel, so over when enter returns; MSG_WAITALL:
            // a part that went out counts as failure, so that there is a completion for it.
            Op::Send(index) => self
                .send_entry(index, libc::MSG_DONTWAIT)
                .flags(squeue::Flags::SKIP_SUCCESS)
                .user_data(self.token(index, Kind::Send)),
            Op::SendRest(index) => {
                self.send_entry(index, 0).user_data(self.token(index, Kind::SendRest))
            }
            Op::Connect(index) => {
                let fd = self.raw_fd(index);
                let address = self
                    .connecting
                    .iter()
                    .find(|(of, _)| *of == index)
                    .map(|(_, address)| (address.as_ptr(), address.len()))
                    .unwrap_or((ptr::null(), 0));
                opcode::Connect::new(fd, address.0.cast(), address.1)
                    .build()
                    .user_data(self.token(index, Kind::Connect))
            }
            Op::Cancel(target) => opcode::AsyncCancel::new(target.encode())
                .build()
                .flags(squeue::Flags::SKIP_SUCCESS)
                .user_data(Token { kind: Kind::Cancel, ..target }.encode()),
        }
    }

    fn send_entry(&mut self, index: u32, flags: i32) -> squeue::Entry {
        let fd = self.raw_fd(index);
        let socket = self.table.at(index);
        let rest = socket.buffer.get(socket.sent..).unwrap_or_default();
        let len = rest.len().min(SEND_CHUNK_MAX) as u32;
        // The rest of a packet is kept back until the socket is shut.
        let flags = if socket.last { flags | libc::MSG_MORE } else { flags };
        opcode::Send::new(fd, rest.as_ptr(), len)
            .flags(flags | libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build()
    }

    fn raw_fd(&mut self, index: u32) -> Fd {
        use std::os::fd::AsRawFd;
        Fd(self.table.at(index).fd.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }

    fn token(&self, index: u32, kind: Kind) -> u64 {
        self.table.id_at(index).token(kind).encode()
    }

    /// Submits early because the queue is full. False: the ring is broken.
    #[cold]
    fn make_room(&mut self) -> bool {
        self.counters.full += 1;
        for _ in 0..8 {
            if let Err(error) = self.submit(Wait::No) {
                self.fatal = Some(error);
                return false;
            }
            if !self.kernel.sq.is_full() {
                return true;
            }
        }
        self.fatal = Some(io::Error::from_raw_os_error(libc::EAGAIN));
        false
    }

    /// One enter, and its completions into `batch`; then every first attempt of a send that was
    /// consumed and has no completion is over.
    pub(super) fn submit(&mut self, wait: Wait) -> io::Result<()> {
        let few = self.buffers.count().min(CROWDED_BUFFER_COUNT);
        self.buffers.publish(if self.heavy.clients > 0 { few } else { self.buffers.count() });
        self.heavy.buffers.publish(self.heavy.buffers.count());
        self.enter_kernel(wait)?;
        self.drain();
        while self.kernel.sq.cq_overflow() {
            // The completion of a send may be on the kernel's overflow list: fetch all of it
            // before deciding which sends have none.
            self.counters.overflows += 1;
            self.enter_kernel(Wait::No)?;
            self.drain();
        }
        self.settle();
        Ok(())
    }

    fn enter_kernel(&mut self, wait: Wait) -> io::Result<()> {
        self.kernel.sq.sync();
        let to_submit = self.kernel.sq.len() as u32;
        let timespec: Timespec;
        let mut args = SubmitArgs::new();
        let mut want = u32::from(matches!(wait, Wait::For(_)));
        if let Wait::For(Some(timeout)) = wait {
            timespec = Timespec::from(timeout);
            args = args.timespec(&timespec);
        }
        if let (Wait::For(_), Some(gather)) = (wait, self.gather) {
            args = args.min_wait_usec(gather.limit.as_micros() as u32);
            want = gather.events;
        }
        let events = EnterFlags::GETEVENTS.bits();
        let flags =
            if matches!(wait, Wait::Never) { self.enter_flags & !events } else { self.enter_flags };
        self.counters.enters += 1;
        // SAFETY: the flags fit the argument (EXT_ARG, SubmitArgs), which lives until the return;
        // the entries submitted were made by `push`.
        let result = unsafe { self.kernel.submitter.enter(to_submit, want, flags, Some(&args)) };
        self.kernel.sq.sync();
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Time is up; a signal; completions to be drained first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                // No memory for a request just now: it stays in the queue and is tried again.
                Some(libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Moves all completions to `batch`.
    pub(super) fn drain(&mut self) {
        if self.batch_at == self.batch.len() {
            self.batch.clear();
            self.batch_at = 0;
            self.heavy.ripe = self.heavy.batch.len();
        }
        if self.batch_at >= BATCH_DONE_MAX {
            // Turns that leave something may follow each other for long.
            self.batch.drain(..self.batch_at);
            self.batch_at = 0;
        }
        let before = self.batch.len() + self.heavy.batch.len();
        self.kernel.cq.sync();
        for entry in &mut self.kernel.cq {
            let (user_data, flags) = (entry.user_data(), entry.flags());
            let completion = Completion { user_data, result: entry.result(), flags };
            let kind = (user_data >> 32) as u8;
            if kind == Kind::ReceiveOne as u8 {
                self.heavy.buffers.note(flags);
                self.heavy.batch.push_back(completion);
                continue;
            }
            self.buffers.note(flags);
            if kind == Kind::Send as u8 {
                self.table.at(user_data as u32).send = Send::Answered;
            } else if kind == Kind::Receive as u8 {
                let full = self.buffers.fills(completion.result);
                if (full || self.heavy.turning > 0)
                    && self.heavy.takes(&mut self.table, user_data, full)
                {
                    self.heavy.batch.push_back(completion);
                    continue;
                }
            }
            self.batch.push(completion);
        }
        self.kernel.cq.sync();
        let after = self.batch.len() + self.heavy.batch.len();
        self.counters.completions += (after - before) as u64;
    }

    fn settle(&mut self) {
        self.urgent = false;
        if self.issued.is_empty() {
            return;
        }
        let consumed = self.pushed.wrapping_sub(self.kernel.sq.len() as u32);
        let mut over = 0;
        for &(position, index) in &self.issued {
            if position.wrapping_sub(consumed) as i32 >= 0 {
                break;
            }
            over += 1;
            let socket = self.table.at(index);
            if socket.send == Send::Fast {
                socket.send = Send::Done;
                self.finished.push(index);
            }
        }
        self.issued.drain(..over);
    }

    /// Waits without sleeping. True: there is something to fetch.
    pub(super) fn spin(&mut self, busy: &BusyPoll, timeout: Option<Duration>) -> bool {
        let limit = busy.limit.min(timeout.unwrap_or(busy.limit)).as_nanos() as u64;
        let start = (busy.clock)();
        loop {
            for _ in 0..32 {
                self.kernel.cq.sync();
                if !self.kernel.cq.is_empty() || self.kernel.sq.taskrun() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if (busy.clock)().wrapping_sub(start) >= limit {
                return false;
            }
        }
    }

    pub(super) fn flags_for(no_iowait: bool) -> u32 {
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if no_iowait {
            flags |= EnterFlags::NO_IOWAIT;
        }
        flags.bits()
    }
}
