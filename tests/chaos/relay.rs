//! A TCP relay between the proxy and one node that does to replies and bytes what networks and
//! nodes do at their worst.
//!
//! Not here: which of it is done when. It reads frames and changes nothing by itself.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::ports::free_port;
use crate::words;

/// What becomes of one reply.
#[derive(Clone, Debug)]
pub enum What {
    /// It and all after it on this connection never arrive.
    Swallow,
    Delay(Duration),
    /// So many bytes of it arrive, then the connection breaks.
    Cut {
        bytes: usize,
    },
    /// It arrives twice.
    Double,
    /// This arrives instead.
    Forge(&'static [u8]),
    /// This arrives before it.
    Insert(&'static [u8]),
}

#[derive(Default)]
struct Shared {
    /// Replies until `what` is done.
    plan: Mutex<Option<(usize, What)>>,
    fired: AtomicBool,
    replies: AtomicU64,
    accepted: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
    /// Most bytes of one write; 0: no limit.
    slice: AtomicUsize,
    hold_requests: AtomicBool,
    hold_replies: AtomicBool,
    /// New connections are accepted and never served.
    mute: AtomicBool,
    /// New connections are not accepted.
    deaf: AtomicBool,
    ended: AtomicBool,
}

pub struct Relay {
    pub port: u16,
    shared: Arc<Shared>,
}

impl Relay {
    pub fn start(target: u16) -> Relay {
        Self::start_with(target, 128)
    }

    /// With room for so many connections that are not accepted yet.
    pub fn start_with(target: u16, backlog: i32) -> Relay {
        let port = free_port();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        socket.set_reuse_address(true).expect("the relay's socket");
        socket.bind(&address.into()).expect("the relay's port");
        socket.listen(backlog).expect("the relay listens");
        let listener = TcpListener::from(socket);
        let shared = Arc::new(Shared::default());
        let relay = Relay { port, shared: Arc::clone(&shared) };
        std::thread::spawn(move || accept(&listener, target, &shared));
        relay
    }

    /// Does `what` to the reply that comes after `nth` others from now.
    pub fn arm(&self, nth: usize, what: What) {
        self.shared.fired.store(false, Ordering::SeqCst);
        *self.shared.plan.lock().unwrap() = Some((nth, what));
    }

    pub fn has_fired(&self) -> bool {
        self.shared.fired.load(Ordering::SeqCst)
    }

    /// Breaks every connection.
    pub fn cut_all(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn slice(&self, bytes: usize) {
        self.shared.slice.store(bytes, Ordering::SeqCst);
    }

    /// Bytes of one direction, or of both, stay where they are until they are let go.
    pub fn hold(&self, requests: bool, replies: bool) {
        self.shared.hold_requests.store(requests, Ordering::SeqCst);
        self.shared.hold_replies.store(replies, Ordering::SeqCst);
    }

    pub fn mute(&self, mute: bool) {
        self.shared.mute.store(mute, Ordering::SeqCst);
    }

    /// From the next connection on, nothing is accepted any more.
    pub fn deafen(&self, deaf: bool) {
        self.shared.deaf.store(deaf, Ordering::SeqCst);
    }

    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.cut_all();
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn accept(listener: &TcpListener, target: u16, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = stream else { continue };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        if shared.mute.load(Ordering::SeqCst) || shared.deaf.load(Ordering::SeqCst) {
            shared.open.lock().unwrap().push(client);
            wait_while(&shared.deaf, shared);
            continue;
        }
        let Ok(node) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else { continue };
        let _ = (client.set_nodelay(true), node.set_nodelay(true));
        let twin = |stream: &TcpStream| stream.try_clone().expect("a second handle");
        let mut open = shared.open.lock().unwrap();
        open.retain(|stream| stream.peer_addr().is_ok());
        open.extend([twin(&client), twin(&node)]);
        drop(open);
        let (client_too, node_too) = (twin(&client), twin(&node));
        let (for_requests, for_replies) = (Arc::clone(shared), Arc::clone(shared));
        std::thread::spawn(move || carry_requests(client, node, &for_requests));
        std::thread::spawn(move || carry_replies(node_too, client_too, &for_replies));
    }
}

fn carry_requests(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut chunk = [0; 64 * 1024];
    while let Ok(count) = from.read(&mut chunk) {
        wait_while(&shared.hold_requests, shared);
        if count == 0 || write(&mut to, &chunk[..count], shared).is_err() {
            break;
        }
    }
    close(&from, &to);
}

fn carry_replies(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let (mut chunk, mut buffer) = ([0; 64 * 1024], Vec::new());
    while let Ok(count) = from.read(&mut chunk) {
        wait_while(&shared.hold_replies, shared);
        if count == 0 {
            break;
        }
        buffer.extend_from_slice(&chunk[..count]);
        if !pass_replies(&mut buffer, &mut to, shared) {
            break;
        }
    }
    close(&from, &to);
}

/// Passes whole replies on; what is unfinished stays in the buffer. False: the connection ends.
fn pass_replies(buffer: &mut Vec<u8>, to: &mut TcpStream, shared: &Shared) -> bool {
    let (mut at, mut passed) = (0, 0);
    while let Ok(Some(end)) = words::whole(buffer, at) {
        shared.replies.fetch_add(1, Ordering::Relaxed);
        if let Some(what) = due(shared) {
            let before = write(to, &buffer[passed..at], shared).is_ok();
            let goes_on = before && act(&what, &buffer[at..end], to, shared);
            shared.fired.store(true, Ordering::SeqCst);
            if !goes_on {
                return false;
            }
            passed = end;
        }
        at = end;
    }
    let good = write(to, &buffer[passed..at], shared).is_ok();
    buffer.drain(..at);
    good
}

/// What is to be done to the next reply.
fn due(shared: &Shared) -> Option<What> {
    let mut plan = shared.plan.lock().unwrap();
    match plan.as_mut() {
        None => None,
        Some((0, _)) => plan.take().map(|(_, what)| what),
        Some((left, _)) => {
            *left -= 1;
            None
        }
    }
}

fn act(what: &What, reply: &[u8], to: &mut TcpStream, shared: &Shared) -> bool {
    match what {
        What::Swallow => {
            shared.fired.store(true, Ordering::SeqCst);
            // Silent until the other side gives up.
            let _ = to.set_read_timeout(None);
            while to.peer_addr().is_ok() && !shared.ended.load(Ordering::SeqCst) && is_open(to) {
                std::thread::sleep(Duration::from_millis(5));
            }
            false
        }
        What::Delay(time) => {
            std::thread::sleep(*time);
            write(to, reply, shared).is_ok()
        }
        What::Cut { bytes } => {
            let _ = write(to, &reply[..(*bytes).min(reply.len())], shared);
            false
        }
        What::Double => write(to, &[reply, reply].concat(), shared).is_ok(),
        What::Forge(bytes) => write(to, bytes, shared).is_ok(),
        What::Insert(bytes) => write(to, &[*bytes, reply].concat(), shared).is_ok(),
    }
}

/// Whether the other side has not closed: its requests are read by the other thread, so only the
/// state of the connection can be asked for here.
fn is_open(stream: &TcpStream) -> bool {
    matches!(stream.take_error(), Ok(None)) && (&mut &*stream).write(&[]).is_ok()
}

fn write(to: &mut TcpStream, bytes: &[u8], shared: &Shared) -> std::io::Result<()> {
    match shared.slice.load(Ordering::Relaxed) {
        0 => to.write_all(bytes),
        most => bytes.chunks(most).try_for_each(|piece| to.write_all(piece)),
    }
}

fn wait_while(held: &AtomicBool, shared: &Shared) {
    while held.load(Ordering::SeqCst) && !shared.ended.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn close(a: &TcpStream, b: &TcpStream) {
    let _ = (a.shutdown(Shutdown::Both), b.shutdown(Shutdown::Both));
}
