//! A client that only reads, deep in flight and fast: what the writers write must come back as it
//! was written, whoever asks. It brings the numbers, so it does nothing else.
//!
//! Not here: writing, and what a value may be after a fault (`writer`, `model`).

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::crowd::Shared;
use crate::link::{Inbox, connect, receive};
use crate::plan;
use crate::support::chance::SplitMix as Random;
use crate::tally::Tally;
use crate::words::{self, Frame, request};

/// Requests in flight.
const DEPTH: usize = 1_000;

/// A register of a writer, and how it is asked for.
struct Place {
    writer: u32,
    register: u32,
    request: Vec<u8>,
    head: plan::Head,
}

pub struct Reader {
    shared: Arc<Shared>,
    random: Random,
    places: Vec<Place>,
    stream: Option<TcpStream>,
    inbox: Inbox,
    out: Vec<u8>,
    /// Places, in the order in which they were asked for.
    awaited: VecDeque<u32>,
    quiet_since: Instant,
    tally: Tally,
}

impl Reader {
    pub fn new(id: u64, shared: Arc<Shared>) -> Reader {
        let writers = shared.numbers.len() as u32;
        let small = plan::REGISTERS - plan::LARGE;
        let places = (0..writers * small).map(|i| {
            let (writer, register) = (i / small, i % small);
            let key = plan::register_key(writer, register);
            let mut asks = Vec::new();
            request(&mut asks, &[b"GET", &key]);
            Place { writer, register, request: asks, head: plan::register_head(writer, register) }
        });
        Reader {
            places: places.collect(),
            random: Random(shared.seed ^ id << 52),
            shared,
            stream: None,
            inbox: Inbox::default(),
            out: Vec::new(),
            awaited: VecDeque::new(),
            quiet_since: Instant::now(),
            tally: Tally::default(),
        }
    }

    /// Until the crowd is told to end and all is answered.
    pub fn run(mut self) -> Tally {
        loop {
            let (end, held) = (self.shared.end.load(Ordering::Relaxed), self.shared.is_held());
            if end && self.awaited.is_empty() {
                return self.tally;
            }
            if held && self.awaited.is_empty() {
                self.shared.rest();
                continue;
            }
            let more = !end && !held;
            if self.stream.is_none() {
                self.connect();
            }
            while more && self.awaited.len() < DEPTH {
                let at = self.draw();
                self.out.extend_from_slice(&self.places[at].request);
                self.awaited.push_back(at as u32);
            }
            if let Err(why) = self.exchange(if more { DEPTH / 2 } else { 0 }) {
                self.tally.error(&format!("connection: {why}"), self.shared.now_ms());
                self.stream = None;
                self.inbox.clear();
                self.out.clear();
                self.awaited.clear();
            }
        }
    }

    /// A place. Without a division: there are hundreds of thousands a second.
    fn draw(&mut self) -> usize {
        (((self.random.next() >> 32) * self.places.len() as u64) >> 32) as usize
    }

    fn connect(&mut self) {
        match connect(self.shared.port) {
            Err(error) => {
                let told = format!("cannot connect: {:?}", error.kind());
                self.tally.error(&told, self.shared.now_ms());
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(stream) => {
                self.stream = Some(stream);
                self.tally.connections += 1;
            }
        }
    }

    /// Sends what is to be sent and reads until only so many are awaited.
    fn exchange(&mut self, left: usize) -> Result<(), String> {
        let Some(mut stream) = self.stream.take() else { return Ok(()) };
        self.quiet_since = Instant::now();
        stream.write_all(&self.out).map_err(|error| format!("{:?}", error.kind()))?;
        self.out.clear();
        while self.awaited.len() > left {
            if !receive(&mut stream, &mut self.inbox, self.quiet_since, &mut self.tally)? {
                continue;
            }
            let now = Instant::now();
            let stall = now - self.quiet_since;
            self.tally.stall(stall, self.shared.now_ms(), || "a reader's GET".to_owned());
            self.quiet_since = now;
            self.judge_all();
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn judge_all(&mut self) {
        let inbox = std::mem::take(&mut self.inbox);
        let bytes = inbox.unread();
        let (mut at, mut good) = (0, 0);
        loop {
            let from = at;
            let found = match words::frame(bytes, &mut at) {
                Ok(None) => break,
                Ok(Some(Frame::Error(line))) => {
                    self.tally.error_line(line, self.shared.now_ms());
                    self.awaited.pop_front();
                    continue;
                }
                Ok(Some(frame)) => self.judge(frame),
                Err(what) => Err(what),
            };
            match found {
                Ok(()) => good += 1,
                Err(what) => {
                    let told = words::text(&bytes[from..]);
                    self.tally.wrong(format!("a reader: {what}: {told}"));
                    at = at.max(from + 1);
                }
            }
        }
        self.tally.verified += good;
        self.shared.verified.fetch_add(good, Ordering::Relaxed);
        self.inbox = inbox;
        self.inbox.advance(at);
    }

    fn judge(&mut self, frame: Frame) -> Result<(), String> {
        let at = self.awaited.pop_front().ok_or("a reply that nobody asked for")?;
        let place = &self.places[at as usize];
        let text = match frame {
            Frame::Nil => return Ok(()),
            Frame::Bulk(text) => text,
            _ => return Err("of another kind".to_owned()),
        };
        let number = plan::number_in(text, &place.head, place.register);
        let number = number.ok_or("a value of somebody else's")?;
        match number <= self.shared.numbers[place.writer as usize].load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("a value that was not written yet".to_owned()),
        }
    }
}
