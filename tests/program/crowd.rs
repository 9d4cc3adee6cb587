//! Clients that know what each reply must be, while the process that serves them is replaced.
//!
//! Each counts with INCR on a key of its own: a reply that is lost, doubled or another's is seen.
//! Not here: who replaces what (`restart`).

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::client::request;
use crate::support::reply::{self, Reply, Unread};
use crate::support::{millis, patience, seconds};

/// What has happened to all of them.
#[derive(Default, Debug)]
pub struct Tally {
    pub connected: AtomicU64,
    pub commands: AtomicU64,
    /// Connections that ended while nothing was owed.
    pub closed_between: AtomicU64,
    /// Those that ended as a request crossed the close of a client that had been silent for a while:
    /// a drain does that (`limits::DRAIN_QUIET_MS`), and clients of a slow machine are silent.
    pub crossed: AtomicU64,
    pub refused: AtomicU64,
    pub reset: AtomicU64,
    pub lost: AtomicU64,
    pub wrong: AtomicU64,
    pub errors: AtomicU64,
    /// Milliseconds that a reply took at most.
    pub slowest: AtomicU64,
    /// Milliseconds at most between two replies of one of the busy clients.
    pub gap: AtomicU64,
    pub last_error: std::sync::Mutex<String>,
}

impl Tally {
    /// Slowest reply and longest gap since this was last asked, milliseconds.
    pub fn take_times(&self) -> (u64, u64) {
        (self.slowest.swap(0, Relaxed), self.gap.swap(0, Relaxed))
    }

    pub fn faults(&self) -> [(&'static str, u64); 5] {
        [
            ("refused", self.refused.load(Relaxed)),
            ("reset", self.reset.load(Relaxed)),
            ("lost", self.lost.load(Relaxed)),
            ("wrong", self.wrong.load(Relaxed)),
            ("errors", self.errors.load(Relaxed)),
        ]
    }

    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}

/// A connection, and what it is owed.
struct Line<'a> {
    stream: TcpStream,
    buffer: Vec<u8>,
    owed: u64,
    tally: &'a Tally,
    /// When it last began to say something, and whether that was long after the time before.
    said: Instant,
    was_silent: bool,
}

/// Silence after which a drain closes a client.
const QUIET: Duration = Duration::from_millis(100);

impl<'a> Line<'a> {
    fn connect(port: u16, tally: &'a Tally) -> Option<Line<'a>> {
        let address = ([127, 0, 0, 1], port).into();
        let said = Instant::now();
        match TcpStream::connect_timeout(&address, patience(seconds(5))) {
            Ok(stream) => {
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(patience(seconds(10)))).unwrap();
                Tally::add(&tally.connected);
                Some(Line { stream, buffer: Vec::new(), owed: 0, tally, said, was_silent: false })
            }
            Err(error) => {
                Tally::add(&tally.refused);
                *tally.last_error.lock().unwrap() = format!("connect: {error}");
                None
            }
        }
    }

    /// `false`: the connection is over, and that is counted.
    /// As libraries do, it looks first whether the other side has ended.
    fn send(&mut self, bytes: &[u8], replies: u64) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let ended = matches!(self.stream.peek(&mut [0]), Ok(0));
        self.stream.set_nonblocking(false).unwrap();
        if ended {
            self.over("closed", false);
            return false;
        }
        self.owed += replies;
        let before = std::mem::replace(&mut self.said, Instant::now());
        let written = self.stream.write_all(bytes);
        self.was_silent = before.elapsed() >= QUIET;
        match written {
            Ok(()) => true,
            Err(error) => {
                // Not one byte may have left, but somebody waits for the answer.
                self.over(&error.to_string(), error.kind() == ErrorKind::ConnectionReset);
                false
            }
        }
    }

    fn over(&mut self, why: &str, reset: bool) {
        if self.owed == 0 {
            return Tally::add(&self.tally.closed_between);
        }
        if self.was_silent {
            return Tally::add(&self.tally.crossed);
        }
        Tally::add(if reset { &self.tally.reset } else { &self.tally.lost });
        *self.tally.last_error.lock().unwrap() = format!("{} owed: {why}", self.owed);
    }

    /// `None`: the connection is over, and that is counted.
    fn read(&mut self) -> Option<Reply> {
        let start = Instant::now();
        loop {
            match reply::read(&self.buffer) {
                Ok((reply, length)) => {
                    self.buffer.drain(..length);
                    self.owed -= 1;
                    Tally::add(&self.tally.commands);
                    let ms = start.elapsed().as_millis() as u64;
                    self.tally.slowest.fetch_max(ms, Relaxed);
                    return Some(reply);
                }
                Err(Unread::Malformed(_)) => {
                    Tally::add(&self.tally.wrong);
                    return None;
                }
                Err(Unread::Incomplete) => (),
            }
            let mut piece = [0; 16 * 1024];
            match self.stream.read(&mut piece) {
                Ok(0) => {
                    self.over("closed", false);
                    return None;
                }
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(error) => {
                    self.over(&error.to_string(), error.kind() == ErrorKind::ConnectionReset);
                    return None;
                }
            }
        }
    }

    /// The next count. `false`: over.
    fn count(&mut self, expected: &mut u64) -> bool {
        let Some(reply) = self.read() else { return false };
        *expected += 1;
        let said = reply.text();
        if said != expected.to_string() {
            let counter =
                if said.starts_with('-') { &self.tally.errors } else { &self.tally.wrong };
            Tally::add(counter);
            *self.tally.last_error.lock().unwrap() = format!("{said} instead of {expected}");
        }
        true
    }
}

/// After a fault nobody knows what has run.
fn resume_at(port: u16, key: &str, tally: &Tally) -> u64 {
    let Some(mut line) = Line::connect(port, tally) else { return 0 };
    line.send(&request(&["INCRBY", key, "0"]), 1);
    line.read().and_then(|reply| reply.text().parse().ok()).unwrap_or(0)
}

/// Connects, counts `commands` in one pipeline, leaves; `per_second` times a second.
pub fn newcomers(port: u16, name: &str, per_second: u64, over: &AtomicBool, tally: &Tally) {
    let key = format!("crowd:{name}");
    let commands = 3;
    let bytes = request(&["INCR", &key]).repeat(commands);
    let (start, mut done, mut expected) = (Instant::now(), 0, 0);
    while !over.load(Relaxed) {
        if done * 1_000_000 > start.elapsed().as_micros() as u64 * per_second {
            std::thread::sleep(Duration::from_micros(300));
            continue;
        }
        done += 1;
        let Some(mut line) = Line::connect(port, tally) else { continue };
        let well =
            line.send(&bytes, commands as u64) && (0..commands).all(|_| line.count(&mut expected));
        if !well {
            expected = resume_at(port, &key, tally);
        }
    }
}

/// Stays connected and sends one pipeline after the other, each once the last is answered.
pub fn pipeliner(port: u16, name: &str, depth: usize, over: &AtomicBool, tally: &Tally) {
    let key = format!("crowd:{name}");
    let bytes = request(&["INCR", &key]).repeat(depth);
    let mut expected = 0;
    while !over.load(Relaxed) {
        let Some(mut line) = Line::connect(port, tally) else { continue };
        let mut goes_on = true;
        while goes_on && !over.load(Relaxed) {
            goes_on =
                line.send(&bytes, depth as u64) && (0..depth).all(|_| line.count(&mut expected));
        }
        if !goes_on {
            expected = resume_at(port, &key, tally);
        }
    }
}

/// Many that stay connected and ask again as soon as they are answered. `count` of them, in turn.
pub fn busy(port: u16, name: &str, count: usize, over: &AtomicBool, tally: &Tally) {
    let keys: Vec<String> = (0..count).map(|n| format!("crowd:{name}:{n}")).collect();
    let requests: Vec<Vec<u8>> = keys.iter().map(|key| request(&["INCR", key])).collect();
    let mut expected = vec![0; count];
    let mut lines: Vec<Option<Line>> = keys.iter().map(|_| Line::connect(port, tally)).collect();
    let mut last: Vec<Option<Instant>> = vec![None; count];
    while !over.load(Relaxed) {
        for n in 0..count {
            if lines[n].as_mut().is_none_or(|line| !line.send(&requests[n], 1)) {
                expected[n] = resume_at(port, &keys[n], tally);
                lines[n] = Line::connect(port, tally);
                last[n] = None;
            }
        }
        for n in 0..count {
            let Some(line) = lines[n].as_mut().filter(|line| line.owed > 0) else { continue };
            if !line.count(&mut expected[n]) {
                lines[n] = None;
                continue;
            }
            let now = Instant::now();
            if let Some(last) = last[n].replace(now) {
                tally.gap.fetch_max((now - last).as_millis() as u64, Relaxed);
            }
        }
    }
}

/// Stays connected and sends when it likes, whatever has been answered: requests cross whatever
/// the other side does.
pub fn talker(port: u16, name: &str, pause: Duration, over: &AtomicBool, tally: &Tally) {
    let key = format!("crowd:{name}");
    let bytes = request(&["INCR", &key]);
    let mut expected = 0;
    while !over.load(Relaxed) {
        let Some(mut line) = Line::connect(port, tally) else { continue };
        let mut writer = line.stream.try_clone().unwrap();
        let sent = AtomicU64::new(0);
        let broken = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) && !broken.load(Relaxed) {
                    sent.fetch_add(1, Relaxed);
                    if writer.write_all(&bytes).is_err() {
                        return;
                    }
                    std::thread::sleep(pause);
                }
            });
            let mut read = 0;
            loop {
                line.owed = sent.load(Relaxed) - read;
                if line.owed == 0 {
                    if over.load(Relaxed) {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(50));
                    continue;
                }
                if !line.count(&mut expected) {
                    broken.store(true, Relaxed);
                    break;
                }
                read += 1;
            }
        });
        if broken.load(Relaxed) {
            expected = resume_at(port, &key, tally);
        }
    }
}

/// Stays connected and asks seldom: is idle whenever something happens.
pub fn idler(port: u16, name: &str, over: &AtomicBool, tally: &Tally) {
    pipeliner_with_pause(port, &format!("crowd:{name}"), millis(70), over, tally);
}

fn pipeliner_with_pause(port: u16, key: &str, pause: Duration, over: &AtomicBool, tally: &Tally) {
    let bytes = request(&["INCR", key]);
    let mut expected = 0;
    while !over.load(Relaxed) {
        let Some(mut line) = Line::connect(port, tally) else { continue };
        let mut goes_on = true;
        while goes_on && !over.load(Relaxed) {
            std::thread::sleep(pause);
            goes_on = line.send(&bytes, 1) && line.count(&mut expected);
        }
        if !goes_on {
            expected = resume_at(port, key, tally);
        }
    }
}
