//! The kernel's edge: one ring per reactor, its sockets, the buffers that the kernel holds.
//!
//! A caller asks for operations on sockets and is told events; how they are armed, re-armed,
//! cancelled and counted is settled here (research/io-uring.md 8). The only `unsafe` of the crate.
//! Not here: RESP, connections' meaning, time (`reactor` reads the clock).

mod accept;
mod buffers;
mod heavy;
mod memory;
mod pass;
mod probe;
mod queue;
mod setup;
pub mod signals;
mod socket;
mod system;
mod table;
mod take;
mod token;
mod wake;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use buffers::BufferRef;
pub use memory::{Counted, held};
pub use pass::{Channel, Passed, passed_at_start, peer_user};
pub use probe::Facts;
pub use probe::Finding;
pub use probe::explain;
pub use probe::read_facts;
pub use probe::report;
pub use setup::Granted;
pub use setup::RingError;
pub use setup::RingSettings;
pub use socket::ConnectOptions;
pub use socket::Inherited;
pub use socket::Listener;
pub use socket::bind;
pub use socket::listen;
pub use socket::somaxconn;
pub use system::{edit_start_words, monotonic_us, raise_descriptor_limit, return_freed_memory};
pub use system::{terminal_size, trim_memory, user};
pub use table::SocketId;
pub use wake::Waker;

use accept::Accepting;
use buffers::Buffers;
use heavy::Heavy;
use queue::Completion;
use queue::Op;
use queue::Wait;
use setup::Kernel;
use table::Receive;
use table::Send;
use table::Table;
use token::Kind;
use token::Token;

use crate::limits::{ENDS_AT_ONCE, HEAVY_BUFFER_COUNT};

/// What has happened. After `close(id)`: at most one `Sent`, then `Gone`.
#[derive(Debug)]
pub enum Event {
    /// A client; nothing is read before `receive(id, ..)`.
    Accepted { id: SocketId, listener: u32 },
    /// Look at it with `bytes`, then `give_back` it: in this turn, unless it must be kept.
    Received { id: SocketId, buffer: BufferRef },
    /// No more will be received: end of the stream, or an errno. The socket is still to be closed.
    End { id: SocketId, error: Option<i32> },
    /// The send is over, its buffer comes back. `ok`: all of it is with the kernel.
    Sent { id: SocketId, buffer: Vec<u8>, ok: bool },
    /// Connected, or an errno; then the socket is still to be closed.
    Connected { id: SocketId, result: Result<(), i32> },
    /// The kernel holds nothing of it any more; its index may be used again from now on.
    Gone { id: SocketId },
    /// Somebody called `Waker::wake`.
    Woken,
    /// This listener accepts nothing until `accept_again`. EMFILE, ENFILE: wait 100 ms first.
    AcceptFailed { listener: u32, errno: i32 },
}

// A turn moves thousands of these.
const _: () = assert!(size_of::<Event>() <= 40);

/// A wait without sleeping, before the real one.
#[derive(Copy, Clone, Debug)]
pub struct BusyPoll {
    pub limit: Duration,
    /// Monotonic nanoseconds: this room reads no clock of its own.
    pub clock: fn() -> u64,
}

/// How many events a wait would like to bring, and how long it waits for more than one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Gather {
    pub events: u32,
    pub limit: Duration,
}

/// Counted since the start of the ring.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// io_uring_enter(2).
    pub enters: u64,
    pub completions: u64,
    /// Receives that found no buffer.
    pub enobufs: u64,
    /// Times that the completion queue was too small.
    pub overflows: u64,
    /// Times that the submission queue was full before the turn's end.
    pub full: u64,
    /// Multishots that ended by themselves and were armed anew.
    pub rearms: u64,
    /// Sends that did not go out at once.
    pub short_sends: u64,
    pub cancels: u64,
    /// Completions of sockets that are no more. Expected to stay 0.
    pub stale: u64,
    /// Waits that spinning made unnecessary.
    pub spin_hits: u64,
}

/// See the module. Not `Send`: it belongs to the thread that made it.
pub struct Ring {
    // Dropped first: the kernel's side ends before the memory that it knows.
    kernel: Kernel,
    buffers: Buffers,
    heavy: Heavy,
    table: Table,
    listeners: Vec<Accepting>,
    /// An accept is over: see which are to be armed.
    accepts_due: bool,
    /// Sockets that are to be ended, some with each enter.
    ending: VecDeque<SocketId>,
    waker: Waker,
    wake_armed: bool,
    /// Held open so that there is one descriptor to accept and refuse with.
    spare: Option<OwnedFd>,
    /// Addresses of connects under way, by socket index.
    connecting: Vec<(u32, Box<socket2::SockAddr>)>,
    /// Sockets whose receive waits for buffers, oldest first. Entries may be out of date.
    starved: VecDeque<SocketId>,
    /// First attempts of sends: position in the submission queue, socket index.
    issued: Vec<(u32, u32)>,
    /// Entries ever pushed, modulo 2^32.
    pushed: u32,
    /// Sockets whose send went out at once, to be reported.
    finished: Vec<u32>,
    finished_at: usize,
    /// Completions fetched and not yet taken.
    batch: Vec<Completion>,
    batch_at: usize,
    gone: VecDeque<SocketId>,
    /// Accepted after the last completion of their listener, to be reported.
    late: VecDeque<(SocketId, u32)>,
    /// Sends that were refused at once.
    refused: VecDeque<(SocketId, Vec<u8>, bool)>,
    /// Somebody waits for the end of a send: the next enter does not sleep.
    urgent: bool,
    stopping: bool,
    fatal: Option<io::Error>,
    enter_flags: u32,
    gather: Option<Gather>,
    counters: Counters,
}

impl Ring {
    /// In the thread that will use it. The error names cause and remedy.
    pub fn new(settings: &RingSettings) -> Result<Ring, RingError> {
        static RINGS: AtomicU16 = AtomicU16::new(0);
        let number = RINGS.fetch_add(2, Ordering::Relaxed);
        let kernel = Kernel::new(settings)?;
        let buffers =
            Buffers::new(settings.buffer_size, settings.buffer_count, settings.huge_pages, number)
                .map_err(|error| setup::buffers_error(&error, settings))?;
        kernel.register(&buffers, setup::BUFFER_GROUP, settings)?;
        let heavy = Buffers::new(settings.buffer_size, HEAVY_BUFFER_COUNT, false, number + 1)
            .map_err(|error| setup::buffers_error(&error, settings))?;
        kernel.register(&heavy, setup::HEAVY_GROUP, settings)?;
        let waker = Waker::new().map_err(|error| setup::descriptor_error(&error, settings))?;
        let spare = socket::spare_descriptor()
            .map_err(|error| setup::descriptor_error(&error, settings))?;
        let enter_flags = Ring::flags_for(kernel.granted.no_iowait);
        let mut ring = Ring {
            kernel,
            buffers,
            heavy: Heavy::new(heavy),
            table: Table::default(),
            listeners: Vec::new(),
            accepts_due: false,
            ending: VecDeque::new(),
            waker,
            wake_armed: true,
            spare: Some(spare),
            connecting: Vec::new(),
            starved: VecDeque::new(),
            issued: Vec::new(),
            pushed: 0,
            finished: Vec::new(),
            finished_at: 0,
            batch: Vec::new(),
            batch_at: 0,
            gone: VecDeque::new(),
            late: VecDeque::new(),
            refused: VecDeque::new(),
            urgent: false,
            stopping: false,
            fatal: None,
            enter_flags,
            gather: None,
            counters: Counters::default(),
        };
        ring.push(Op::Wake);
        Ok(ring)
    }

    /// What the kernel granted of what was wished.
    pub fn granted(&self) -> Granted {
        self.kernel.granted
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sockets between accept or connect and `Gone`.
    pub fn sockets(&self) -> usize {
        self.table.len()
    }

    /// For other threads to wake this ring.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    // --- sockets ----------------------------------------------------------------------------

    /// Starts to connect; `Connected` follows. To give up in time: `close`.
    pub fn connect(
        &mut self,
        address: &SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<SocketId> {
        let id = self.table.add(socket::node_socket(address, options)?);
        self.connecting.push((id.index, Box::new((*address).into())));
        self.table.at(id.index).connecting = true;
        self.push(Op::Connect(id.index));
        Ok(id)
    }

    /// Takes over a connected, blocking socket that was made elsewhere.
    pub fn adopt(&mut self, fd: OwnedFd) -> SocketId {
        self.table.add(fd)
    }

    /// Whether `release` would give the socket away, or has nothing to give.
    pub fn may_release(&mut self, id: SocketId) -> bool {
        self.table.open(id).is_none_or(|socket| !socket.is_busy())
    }

    /// Gives a socket away of which the kernel holds no operation; `Gone` follows. `None`: it does,
    /// or the socket is closing: `pause` it, wait for its send, and try again.
    pub fn release(&mut self, id: SocketId) -> Option<OwnedFd> {
        let socket = self.table.open(id).filter(|socket| !socket.is_busy())?;
        let fd = socket.fd.take()?;
        socket.receive = Receive::Off;
        self.gone.push_back(id);
        Some(fd)
    }

    /// Receives from now on. `poll_first`: nothing is expected to be there yet, as on a client
    /// just accepted; not for a node that was just written to. After `pause`: goes on.
    pub fn receive(&mut self, id: SocketId, poll_first: bool) {
        let Some(socket) = self.table.open(id) else { return };
        match socket.receive {
            Receive::Off if socket.heavy => {
                socket.receive = Receive::Starved;
                self.heavy.wait(id);
            }
            Receive::Off => {
                (socket.receive, socket.one) = (Receive::Armed, false);
                self.push(Op::Receive { index: id.index, poll_first });
            }
            Receive::Stopping => socket.receive = Receive::Restarting,
            Receive::Armed | Receive::Starved | Receive::Restarting | Receive::Ended => {}
        }
    }

    /// As `receive`, a client that may send much: not before others do (`heavy`).
    pub fn receive_fairly(&mut self, id: SocketId) {
        if let Some(socket) = self.table.open(id) {
            socket.fair = true;
        }
        self.receive(id, true);
    }

    /// Receives no more until `resume`. What has arrived by then is still told, its end as well.
    pub fn pause(&mut self, id: SocketId) {
        let Some(socket) = self.table.open(id) else { return };
        match socket.receive {
            Receive::Armed => {
                socket.receive = Receive::Stopping;
                let kind = socket.receive_kind();
                self.cancel(id.token(kind));
            }
            Receive::Starved => socket.receive = Receive::Off,
            Receive::Restarting => socket.receive = Receive::Stopping,
            Receive::Off | Receive::Stopping | Receive::Ended => {}
        }
    }

    pub fn resume(&mut self, id: SocketId) {
        self.receive(id, false);
    }

    /// Sends all of `buffer`; `Sent` gives it back. It leaves at the next `enter`; what goes out
    /// at once is reported when that returns.
    ///
    /// One send per socket at a time, else panics: two would be mixed up (io-uring.md 0.4). A
    /// socket that is closing or gone: `Sent` with `ok` false.
    pub fn send(&mut self, id: SocketId, buffer: Vec<u8>) {
        let Some(socket) = self.table.open(id) else {
            return self.refused.push_back((id, buffer, false));
        };
        assert!(socket.send == Send::None, "two sends at once on one socket");
        if buffer.is_empty() {
            return self.refused.push_back((id, buffer, true));
        }
        socket.send = Send::Fast;
        socket.buffer = buffer;
        socket.sent = 0;
        self.push(Op::Send(id.index));
    }

    /// As `send`, of the last bytes before `close`, which is to follow at once when they are
    /// reported: their end leaves in one packet with the end of the stream, so that whoever waits
    /// for them sees both before it can send anything more.
    pub fn send_last(&mut self, id: SocketId, buffer: Vec<u8>) {
        if let Some(socket) = self.table.open(id) {
            socket.last = true;
        }
        self.send(id, buffer);
    }

    /// Whether a send of this socket has not been reported yet.
    pub fn is_sending(&mut self, id: SocketId) -> bool {
        self.table.get(id).is_some_and(|socket| socket.send != Send::None)
    }

    /// Ends it now: nothing more is received or sent, also not what `send` was given after the
    /// last `enter`. `Gone` follows, and only then may the index be used again.
    pub fn close(&mut self, id: SocketId) {
        if let Some(socket) = self.table.open(id) {
            socket.closing = true;
            self.end(id);
        }
    }

    /// As `close`, in turn with others: an end is work of the kernel's, and everybody waits for it.
    /// Nothing more is told of it from now on, but what it was given to send may go out. First come
    /// those whose bytes go with them: memory may be short.
    pub fn close_soon(&mut self, id: SocketId) {
        let Some(socket) = self.table.open(id) else { return };
        (socket.closing, socket.waits_to_end) = (true, true);
        match socket.send {
            Send::None => self.ending.push_back(id),
            _ => self.ending.push_front(id),
        }
    }

    /// True: some are left.
    fn end_some(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(id) = self.ending.pop_front() else { break };
            self.table.at(id.index).waits_to_end = false;
            self.end(id);
        }
        !self.ending.is_empty()
    }

    fn end(&mut self, id: SocketId) {
        let Some(socket) = self.table.get(id) else { return };
        if let Some(fd) = &socket.fd {
            socket::shut_down(fd);
        }
        let (receive, send, connecting) = (socket.receive, socket.send, socket.connecting);
        let kind = socket.receive_kind();
        match receive {
            Receive::Armed | Receive::Restarting => socket.receive = Receive::Stopping,
            Receive::Starved => socket.receive = Receive::Off,
            Receive::Off | Receive::Stopping | Receive::Ended => {}
        }
        if receive == Receive::Armed {
            self.cancel(id.token(kind));
        }
        if send == Send::Rest {
            self.cancel(id.token(Kind::SendRest));
        }
        if connecting {
            self.cancel(id.token(Kind::Connect));
        }
        self.finish(id);
    }

    /// As `close`, once what is being sent is out or has failed.
    pub fn close_after_send(&mut self, id: SocketId) {
        let Some(socket) = self.table.open(id) else { return };
        if socket.send == Send::None {
            return self.close(id);
        }
        socket.close_after_send = true;
        // The end of any other send is a completion, which ends the wait.
        self.urgent |= socket.send == Send::Fast;
    }

    fn cancel(&mut self, target: Token) {
        self.counters.cancels += 1;
        self.push(Op::Cancel(target));
    }

    /// getpeername(2).
    pub fn peer_address(&mut self, id: SocketId) -> io::Result<SocketAddr> {
        socket::peer_address(self.descriptor(id)?)
    }

    /// getsockname(2).
    pub fn local_address(&mut self, id: SocketId) -> io::Result<SocketAddr> {
        socket::local_address(self.descriptor(id)?)
    }

    fn descriptor(&mut self, id: SocketId) -> io::Result<&OwnedFd> {
        self.table
            .get(id)
            .and_then(|socket| socket.fd.as_ref())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    // --- the turn ---------------------------------------------------------------------------

    /// Submits what was asked for and waits for an event, at most for `timeout` (None: for ever).
    /// Does not wait if events are there already. May return without any.
    ///
    /// A send that goes out at once ends no wait: whoever waits for such a `Sent` in order to act
    /// passes a `timeout` of zero (`close_after_send` needs no such care).
    /// An error is final: the ring is broken.
    pub fn enter(&mut self, timeout: Option<Duration>, busy: Option<BusyPoll>) -> io::Result<()> {
        if let Some(error) = self.fatal.take() {
            return Err(error);
        }
        let starving = self.feed_heavy() | self.feed_starved();
        let left = starving | (self.end_some(ENDS_AT_ONCE) || self.arm_accepts());
        let waits = !(self.urgent || left || self.has_events()) && timeout != Some(Duration::ZERO);
        if !waits {
            return self.submit(Wait::No);
        }
        if let Some(busy) = busy {
            self.submit(Wait::No)?;
            if self.batch_at < self.batch.len() || self.heavy.is_waiting() {
                return Ok(());
            }
            if self.spin(&busy, timeout) {
                self.counters.spin_hits += 1;
                return self.submit(Wait::No);
            }
        }
        self.submit(Wait::For(timeout))
    }

    /// From now on a wait goes on until so many events are there, or the time is up and there is
    /// one. `None`: it ends with the first. Without effect before kernel 6.12.
    pub fn set_gather(&mut self, gather: Option<Gather>) {
        self.gather = gather.filter(|gather| self.kernel.granted.min_wait && gather.events > 1);
    }

    /// The next event of this turn; None: `enter` again. What is left when `enter` is called all
    /// the same comes in the next turn, before anything newer.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        self.next_light().or_else(|| self.next_heavy())
    }

    /// The same without heavy clients' bytes.
    #[inline]
    pub fn next_light(&mut self) -> Option<Event> {
        // Sends first: their buffers and sockets are of use for the rest of the turn.
        if let Some(event) = self.next_sent() {
            return Some(event);
        }
        while let Some(&completion) = self.batch.get(self.batch_at) {
            self.batch_at += 1;
            if let Some(event) = self.take(completion) {
                return Some(event);
            }
        }
        self.late_event()
    }

    /// The next send that went out at once.
    #[inline]
    pub fn next_sent(&mut self) -> Option<Event> {
        while let Some(&index) = self.finished.get(self.finished_at) {
            self.finished_at += 1;
            if let Some(event) = self.take_finished(index) {
                return Some(event);
            }
        }
        if self.finished_at > 0 {
            self.finished.clear();
            self.finished_at = 0;
        }
        None
    }

    /// What comes last in a turn, also one that leaves events for the next.
    pub fn late_event(&mut self) -> Option<Event> {
        if let Some((id, buffer, ok)) = self.refused.pop_front() {
            return Some(Event::Sent { id, buffer, ok });
        }
        if let Some((id, listener)) = self.late.pop_front() {
            return Some(Event::Accepted { id, listener });
        }
        let id = self.gone.pop_front()?;
        self.heavy.clients -= usize::from(self.table.release(id));
        Some(Event::Gone { id })
    }

    fn has_events(&self) -> bool {
        self.finished_at < self.finished.len()
            || self.batch_at < self.batch.len()
            || self.heavy.is_waiting()
            || !self.gone.is_empty()
            || !self.late.is_empty()
            || !self.refused.is_empty()
    }

    /// The bytes of a `Received`.
    #[inline]
    pub fn bytes(&self, buffer: &BufferRef) -> &[u8] {
        let heavy = self.heavy.buffers.own(buffer);
        let buffers = if heavy { &self.heavy.buffers } else { &self.buffers };
        buffers.bytes(buffer)
    }

    /// The kernel may fill this buffer again.
    #[inline]
    pub fn give_back(&mut self, buffer: BufferRef) {
        let heavy = self.heavy.buffers.own(&buffer);
        let buffers = if heavy { &mut self.heavy.buffers } else { &mut self.buffers };
        buffers.give_back(buffer);
    }

    /// Arms sockets that had found no buffer, oldest first, no more of them than there are buffers
    /// now. True: some are left although there are buffers, so the ring must not sleep.
    fn feed_starved(&mut self) -> bool {
        if self.starved.is_empty() {
            return false;
        }
        for _ in 0..self.buffers.available() {
            let Some(id) = self.starved.pop_front() else { break };
            let Some(socket) = self.table.open(id) else { continue };
            if socket.receive == Receive::Starved && !socket.heavy {
                (socket.receive, socket.one) = (Receive::Armed, false);
                self.counters.rearms += 1;
                // Else it would fail at once if the others have taken all buffers (io-uring.md 4).
                self.push(Op::Receive { index: id.index, poll_first: true });
            }
        }
        !self.starved.is_empty() && self.buffers.available() > 0
    }
}

impl Drop for Ring {
    /// Takes every operation back, so that the kernel holds no memory of ours; what it does not
    /// let go of in time is leaked.
    fn drop(&mut self) {
        self.stopping = true;
        self.stop_listening();
        self.end_some(usize::MAX);
        if self.wake_armed {
            self.cancel(Token { kind: Kind::Wake, generation: 0, index: 0 });
        }
        for id in self.table.living() {
            self.close(id);
        }
        for _ in 0..100 {
            while let Some(event) = self.next_event() {
                match event {
                    Event::Received { buffer, .. } => self.give_back(buffer),
                    Event::Accepted { id, .. } => self.close(id),
                    _ => {}
                }
            }
            let armed = self.wake_armed || self.listeners.iter().any(Accepting::is_armed);
            if !armed && self.table.len() == 0 && self.kernel.sq.is_empty() {
                return;
            }
            if self.enter(Some(Duration::from_millis(20)), None).is_err() {
                break;
            }
        }
        self.buffers.leak();
        self.heavy.buffers.leak();
        std::mem::forget(std::mem::take(&mut self.table));
        std::mem::forget(std::mem::take(&mut self.connecting));
    }
}
