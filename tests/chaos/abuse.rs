//! Clients that misbehave, thousands in a thread: they write what they have as far as it is taken,
//! do not read, and come again when they are closed.
//!
//! Not here: which of them there are, and what must hold meanwhile (`storm`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::support::millis;

/// What one kind of them does.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Said once.
    pub opening: Vec<u8>,
    /// Said over and over afterwards; may be empty.
    pub piece: Arc<[u8]>,
    /// Takes its replies, so that only what it sends is abuse.
    pub reads: bool,
}

/// Counts of all of them.
#[derive(Default)]
pub struct Seen {
    pub opened: AtomicU64,
    pub closed: AtomicU64,
    pub written: AtomicU64,
}

/// What all of them are told.
#[derive(Default)]
struct Told {
    end: AtomicBool,
    /// To take their share of the processors, not only what is left over.
    insist: AtomicBool,
}

pub struct Abuse {
    told: Arc<Told>,
    pub seen: Arc<Seen>,
    threads: Vec<JoinHandle<()>>,
}

/// Bytes given to one socket before the next has its turn.
const AT_ONCE: usize = 64 * 1024;

/// Connections that one thread makes in a second once all have been made.
const AGAIN_PER_SECOND: u64 = 200;

impl Abuse {
    /// `crowds`: a thread each, with so many of each kind.
    pub fn start(port: u16, crowds: Vec<Vec<(usize, Kind)>>) -> Abuse {
        let told = Arc::new(Told::default());
        let seen = Arc::new(Seen::default());
        let start = |crowd: Vec<(usize, Kind)>| {
            let (told, seen) = (Arc::clone(&told), Arc::clone(&seen));
            std::thread::spawn(move || run(port, &crowd, &told, &seen))
        };
        Abuse { threads: crowds.into_iter().map(start).collect(), told, seen }
    }

    /// Where others keep all processors busy nothing is left over for them: from now on they stand
    /// in line with everybody else.
    pub fn insist(&self) {
        self.told.insist.store(true, Ordering::Relaxed);
    }

    pub fn insists(&self) -> bool {
        self.told.insist.load(Ordering::Relaxed)
    }

    /// Closes all their connections.
    pub fn finish(self) {
        self.told.end.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a crowd ends well"));
    }
}

fn run(port: u16, crowd: &[(usize, Kind)], told: &Told, seen: &Seen) {
    let mut aside = stand("--idle");
    assert!(aside, "chrt (util-linux) makes a thread idle");
    let mut all: Vec<One> = crowd
        .iter()
        .flat_map(|(count, kind)| std::iter::repeat_with(|| One::new(kind.clone())).take(*count))
        .collect();
    let began = Instant::now();
    let (mut again, first) = (0, all.len() as u64);
    while !told.end.load(Ordering::Relaxed) {
        let mut moved = false;
        for one in &mut all {
            let allowed = first + began.elapsed().as_millis() as u64 * AGAIN_PER_SECOND / 1000;
            if one.stream.is_none() && again < allowed {
                again += 1;
                one.connect(port, seen);
            }
            moved |= one.turn(seen);
            if told.end.load(Ordering::Relaxed) {
                return;
            }
            if aside && told.insist.load(Ordering::Relaxed) {
                aside = false;
                if !stand("--other") {
                    eprintln!("ABUSERS STAY ASIDE: only root lets them back in line");
                }
            }
        }
        if !moved {
            std::thread::sleep(millis(5));
        }
    }
}

/// These clients stand for other hosts. Here they share the processors with the proxy, the nodes
/// and the clients whom they disturb: what is tested is whom the proxy serves, not who gets a
/// processor, so they take only what is left over (`--idle`), as long as that is anything. Being
/// nice is not enough: a nice thread that runs is left its slice, some milliseconds, before the one
/// that wakes up; an idle one is not. Linux has this for each thread. `false`: it was refused.
fn stand(class: &str) -> bool {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut chrt = std::process::Command::new("chrt");
    let done = chrt.args([class, "--pid", "0", &thread]).status();
    done.is_ok_and(|status| status.success())
}

struct One {
    kind: Kind,
    stream: Option<TcpStream>,
    /// Bytes written of the opening and the pieces after it.
    at: usize,
}

impl One {
    fn new(kind: Kind) -> One {
        One { kind, stream: None, at: 0 }
    }

    fn connect(&mut self, port: u16, seen: &Seen) {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if let Ok(stream) = TcpStream::connect_timeout(&address, millis(200)) {
            stream.set_nonblocking(true).expect("a socket need not block");
            self.stream = Some(stream);
            self.at = 0;
            seen.opened.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether anything moved.
    fn turn(&mut self, seen: &Seen) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let opening = self.kind.opening.len();
        let rest = match self.at.checked_sub(opening) {
            None => &self.kind.opening[self.at..],
            Some(_) if self.kind.piece.is_empty() => &[],
            Some(past) => &self.kind.piece[past % self.kind.piece.len()..],
        };
        let written = match rest {
            [] => Err(ErrorKind::WouldBlock.into()),
            rest => stream.write(&rest[..rest.len().min(AT_ONCE)]),
        };
        let mut taken = [0; AT_ONCE];
        let read = match self.kind.reads {
            true => stream.read(&mut taken),
            // Whether it was closed shows at the next write, or here without one.
            false if rest.is_empty() => stream.peek(&mut taken[..1]).map(|n| n.min(1)),
            false => Err(ErrorKind::WouldBlock.into()),
        };
        let blocks = |result: &std::io::Result<usize>| matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock);
        let lost = (written.is_err() && !blocks(&written))
            || (read.is_err() && !blocks(&read))
            || matches!(read, Ok(0));
        if lost {
            self.stream = None;
            seen.closed.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let count = written.unwrap_or(0);
        self.at += count;
        seen.written.fetch_add(count as u64, Ordering::Relaxed);
        count > 0
    }
}
