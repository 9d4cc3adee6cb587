//! One client: a connection that is replaced when it breaks, operations in flight, and what it
//! knows of its keys. Judges each reply.
//!
//! Not here: how many there are (`crowd`), what is done to the cluster (`faults`).

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::crowd::{Shared, Style};
use crate::link::{Inbox, PATIENCE, connect, receive};
use crate::model::{Count, Entries, Outcome, Register, Verdict, When};
use crate::plan::{self, Asked, Kind};
use crate::support::chance::SplitMix as Random;
use crate::tally::Tally;
use crate::words::{self, Frame};

pub struct Writer {
    id: u32,
    style: Style,
    shared: Arc<Shared>,
    random: Random,
    stream: Option<TcpStream>,
    inbox: Inbox,
    out: Vec<u8>,
    scratch: Vec<u8>,
    /// What is awaited, and when it was asked for.
    awaited: VecDeque<(u64, Asked)>,
    last_number: u32,
    registers: Vec<Register>,
    counters: Vec<Count>,
    logs: Vec<Log>,
    pairs: Vec<Count>,
    when: When,
    /// Since when something is awaited and nothing came.
    quiet_since: Instant,
    pub tally: Tally,
}

#[derive(Clone, Default)]
struct Log {
    generation: u32,
    count: Count,
    entries: Entries,
    /// Its reading is in flight.
    reading: bool,
}

impl Writer {
    pub fn new(id: u32, style: Style, shared: Arc<Shared>) -> Writer {
        let seed = shared.seed ^ u64::from(id) << 40;
        Writer {
            id,
            style,
            shared,
            random: Random(seed),
            stream: None,
            inbox: Inbox::default(),
            out: Vec::new(),
            scratch: Vec::new(),
            awaited: VecDeque::new(),
            last_number: 0,
            registers: vec![Register::default(); plan::REGISTERS as usize],
            counters: vec![Count::default(); plan::COUNTERS as usize],
            logs: vec![Log::default(); plan::LOGS as usize],
            pairs: vec![Count::default(); plan::PAIRS as usize],
            when: When { now: 0, lossy_until: 0 },
            quiet_since: Instant::now(),
            tally: Tally::default(),
        }
    }

    /// Until the crowd is told to end; then everything is read once more.
    pub fn run(mut self) -> Tally {
        while !self.shared.end.load(Ordering::Relaxed) {
            let held = self.shared.is_held();
            if held && self.awaited.is_empty() {
                self.shared.rest();
                continue;
            }
            self.turn(!held);
            let pause = self.style.pause;
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.awaited.is_empty() && Instant::now() < deadline {
            self.turn(false);
        }
        self.read_all(deadline);
        self.tally
    }

    fn turn(&mut self, more: bool) {
        self.look_at_the_time();
        if self.stream.is_none() {
            self.connect();
        }
        if more {
            while self.awaited.len() < self.style.depth {
                self.ask();
            }
        }
        if let Err(why) = self.exchange() {
            self.lose(&why);
        }
    }

    fn look_at_the_time(&mut self) {
        let lossy_until = self.shared.lossy_until.load(Ordering::Relaxed);
        self.when = When { now: self.shared.now_ms(), lossy_until };
    }

    fn connect(&mut self) {
        match connect(self.shared.port) {
            Err(error) => {
                self.tally.error(&format!("cannot connect: {:?}", error.kind()), self.when.now);
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(stream) => {
                self.stream = Some(stream);
                self.tally.connections += 1;
                self.quiet_since = Instant::now();
                if self.style.resp3 {
                    // Before what was asked for while nobody could be connected to.
                    self.out.splice(0..0, *b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n");
                    self.awaited.push_front((self.when.now, Asked::Line(b"HELLO")));
                }
            }
        }
    }

    /// Everything in flight may have run, or may not.
    fn lose(&mut self, why: &str) {
        self.stream = None;
        self.inbox.clear();
        self.out.clear();
        self.tally.error(&format!("connection: {why}"), self.when.now);
        for (_, asked) in std::mem::take(&mut self.awaited) {
            self.note_failed(&asked, Outcome::Unknown);
        }
    }

    // --- out ---------------------------------------------------------------------------------

    fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.shared.numbers[self.id as usize].store(self.last_number, Ordering::Relaxed);
        self.last_number
    }

    fn ask(&mut self) {
        let registers = u64::from(plan::REGISTERS - plan::LARGE);
        let large = self.style.large && self.random.below(400) == 0;
        let from = if large { registers } else { 0 };
        let count = if large { u64::from(plan::LARGE) } else { registers };
        let mut register = || (from + self.random.below(count)) as u32;
        let (first, second) = (register(), register());
        match self.style.mix.draw(&mut self.random) {
            Kind::Get => self.send(Asked::Get { register: first }),
            Kind::Set => {
                let number = self.number();
                self.send(Asked::Set { register: first, number });
            }
            Kind::Other => {
                let writer = self.random.below(self.shared.numbers.len() as u64) as u32;
                self.send(Asked::Other { writer, register: first });
            }
            Kind::Increment => {
                let counter = self.random.below(plan::COUNTERS.into()) as u32;
                self.send(Asked::Increment { counter });
            }
            Kind::Append => self.append(),
            Kind::Echo => {
                let nonce = self.number();
                self.send(Asked::Echo { nonce });
            }
            Kind::Mget => {
                let registers = [first, second, (first + 1) % 22, (second + 7) % 22];
                self.send(Asked::Mget { registers });
            }
            Kind::Mset => {
                let registers = [first % 22, (first + 1) % 22, (first + 2) % 22];
                let numbers = [self.number(), self.number(), self.number()];
                self.send(Asked::Mset { registers, numbers });
            }
            Kind::Exec => self.transact(),
            Kind::Script => {
                let nonce = self.number();
                self.send(Asked::Script { nonce });
            }
        }
    }

    fn send(&mut self, asked: Asked) {
        plan::write(&mut self.out, self.id, &asked, &mut self.scratch);
        self.push(asked);
    }

    fn push(&mut self, asked: Asked) {
        if self.awaited.is_empty() {
            self.quiet_since = Instant::now();
        }
        self.awaited.push_back((self.when.now, asked));
    }

    fn append(&mut self) {
        let log = self.random.below(plan::LOGS.into()) as u32;
        let state = &self.logs[log as usize];
        if state.reading {
            return self.send(Asked::Get { register: 0 });
        }
        if state.entries.len() >= plan::LOG_MAX {
            let generation = state.generation;
            self.logs[log as usize].reading = true;
            return self.send(Asked::ReadLog { log, generation });
        }
        let (number, generation) = (self.number(), state_generation(&self.logs, log));
        self.scratch.clear();
        plan::entry(&mut self.scratch, self.id, log, number);
        let key = plan::log_key(self.id, log, generation);
        words::request(&mut self.out, &[b"APPEND", &key, &self.scratch]);
        // Until its reply is here nobody knows; the count is told when it is.
        self.logs[log as usize].entries.written(number, Outcome::Unknown, self.when);
        self.push(Asked::Append { log, number });
    }

    /// MULTI, INCR, APPEND, EXEC: both or neither.
    fn transact(&mut self) {
        let pair = self.random.below(plan::PAIRS.into()) as u32;
        let keys = plan::pair_keys(self.id, pair);
        let number = self.number();
        self.scratch.clear();
        plan::entry(&mut self.scratch, self.id, pair, number);
        words::request(&mut self.out, &[b"MULTI"]);
        words::request(&mut self.out, &[b"INCR", &keys[0]]);
        words::request(&mut self.out, &[b"APPEND", &keys[1], &self.scratch]);
        words::request(&mut self.out, &[b"EXEC"]);
        for line in [b"OK".as_slice(), b"QUEUED", b"QUEUED"] {
            self.push(Asked::Line(line));
        }
        self.push(Asked::Exec { pair });
    }

    // --- in ----------------------------------------------------------------------------------

    /// Sends what is to be sent, and judges what has come, at least until half is answered.
    fn exchange(&mut self) -> Result<(), String> {
        let Some(mut stream) = self.stream.take() else { return Ok(()) };
        let enough = self.awaited.len() / 2;
        while self.awaited.len() > enough || !self.out.is_empty() {
            if !self.out.is_empty() {
                stream.write_all(&self.out).map_err(|error| format!("{:?}", error.kind()))?;
                self.out.clear();
            }
            if !receive(&mut stream, &mut self.inbox, self.quiet_since, &mut self.tally)? {
                continue;
            }
            let now = Instant::now();
            self.look_at_the_time();
            let first = self.awaited.front();
            self.tally.stall(now - self.quiet_since, self.when.now, || format!("{first:?}"));
            self.quiet_since = now;
            let before = self.tally.verified;
            self.judge_all();
            self.shared.verified.fetch_add(self.tally.verified - before, Ordering::Relaxed);
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn judge_all(&mut self) {
        let inbox = std::mem::take(&mut self.inbox);
        let bytes = inbox.unread();
        let mut at = 0;
        while at < bytes.len() {
            let (frame, end) = match first_and_end(bytes, at) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(what) => {
                    self.tally.wrong(format!("writer {}: no reply: {what}", self.id));
                    break;
                }
            };
            match self.awaited.pop_front() {
                None => {
                    let told = words::text(&bytes[at..end]);
                    self.tally.wrong(format!("writer {}: {told} that nobody asked", self.id));
                }
                Some((asked_at, asked)) => {
                    // When it was answered is not known: it may have lain here for a while.
                    let lossy_until = self.when.lossy_until;
                    let when = When { now: asked_at, lossy_until };
                    let now = std::mem::replace(&mut self.when, when);
                    self.judge(asked, frame, &bytes[at..end]);
                    self.when = now;
                }
            }
            at = end;
        }
        self.inbox = inbox;
        self.inbox.advance(at);
    }

    /// `frame`: the first of `reply`.
    fn judge(&mut self, asked: Asked, frame: Frame, reply: &[u8]) {
        if let Frame::Error(line) = frame {
            return self.judge_error(&asked, line);
        }
        self.tally.verified += 1;
        let counts = matches!(asked, Asked::Increment { .. } | Asked::Append { .. });
        self.tally.counted += u64::from(counts || matches!(asked, Asked::Exec { .. }));
        let verdict = self.verdict(&asked, frame, reply);
        self.tally
            .verdict(verdict, || format!("writer {}, {asked:?}: {}", self.id, words::text(reply)));
    }

    fn judge_error(&mut self, asked: &Asked, line: &[u8]) {
        self.tally.error_line(line, self.shared.now_ms());
        // A part that was refused says nothing of the other parts.
        let in_parts = matches!(asked, Asked::Mset { .. });
        let unknown = in_parts || words::text(line).contains("may have run");
        self.note_failed(asked, if unknown { Outcome::Unknown } else { Outcome::Refused });
    }

    fn note_failed(&mut self, asked: &Asked, outcome: Outcome) {
        let (when, unknown) = (self.when, outcome == Outcome::Unknown);
        match asked {
            Asked::Set { register, number } => {
                self.registers[*register as usize].written(*number, outcome, when);
            }
            Asked::Mset { registers, numbers } => {
                for (register, number) in registers.iter().zip(numbers) {
                    self.registers[*register as usize].written(*number, outcome, when);
                }
            }
            Asked::Increment { counter } if unknown => self.counters[*counter as usize].unknown(),
            Asked::Append { log, number } => {
                let log = &mut self.logs[*log as usize];
                log.entries.written(*number, outcome, when);
                if unknown {
                    log.count.unknown();
                }
            }
            Asked::Exec { pair } if unknown => self.pairs[*pair as usize].unknown(),
            Asked::ReadLog { log, .. } => self.logs[*log as usize].reading = false,
            _ => (),
        }
    }

    fn verdict(&mut self, asked: &Asked, frame: Frame, reply: &[u8]) -> Verdict {
        let when = self.when;
        match (asked, frame) {
            (Asked::Set { register, number }, Frame::Simple(b"OK")) => {
                self.registers[*register as usize].written(*number, Outcome::Done, when);
                Verdict::Good
            }
            (Asked::Mset { registers, numbers }, Frame::Simple(b"OK")) => {
                for (register, number) in registers.iter().zip(numbers) {
                    self.registers[*register as usize].written(*number, Outcome::Done, when);
                }
                Verdict::Good
            }
            (Asked::Get { register }, frame) => self.own(*register, frame),
            (Asked::Other { writer, register }, frame) => {
                match number_of(frame, *writer, *register) {
                    Ok(n) if n <= self.shared.numbers[*writer as usize].load(Ordering::Relaxed) => {
                        Verdict::Good
                    }
                    Ok(_) => Verdict::Wrong("a value that was not written yet".to_owned()),
                    Err(what) => Verdict::Wrong(what),
                }
            }
            (Asked::Mget { registers }, Frame::Array(4)) => {
                let mut at = 0;
                let _ = words::frame(reply, &mut at);
                let mut worst = Verdict::Good;
                for register in registers {
                    let Ok(Some(frame)) = words::frame(reply, &mut at) else { break };
                    let verdict = self.own(*register, frame);
                    worst = if verdict == Verdict::Good { worst } else { verdict };
                }
                worst
            }
            (Asked::Increment { counter }, Frame::Integer(value)) => {
                self.counters[*counter as usize].grown_to(value as u64, when)
            }
            (Asked::ReadCounter { counter }, frame) => match frame {
                Frame::Nil => self.counters[*counter as usize].read(0, when),
                Frame::Bulk(digits) => match words::parse(digits) {
                    Some(value) => self.counters[*counter as usize].read(value.into(), when),
                    None => Verdict::Wrong("no number".to_owned()),
                },
                _ => Verdict::Wrong("of another kind".to_owned()),
            },
            (Asked::Append { log, number }, Frame::Integer(length)) => {
                let log = &mut self.logs[*log as usize];
                log.entries.written(*number, Outcome::Done, when);
                entries_of(length, |count| log.count.grown_to(count, when))
            }
            (Asked::ReadLog { log, generation }, frame) => self.read_log(*log, *generation, frame),
            (Asked::Forget, Frame::Integer(_)) => Verdict::Good,
            (Asked::Echo { nonce } | Asked::Script { nonce }, Frame::Bulk(text))
                if words::parse(text) == Some(*nonce) =>
            {
                Verdict::Good
            }
            (Asked::Line(b"HELLO"), Frame::Array(_)) => Verdict::Good,
            (Asked::Line(wanted), Frame::Simple(line)) if *wanted == line => Verdict::Good,
            (Asked::Exec { pair }, Frame::Array(2)) => self.executed(*pair, reply),
            _ => Verdict::Wrong("a reply to something else".to_owned()),
        }
    }

    fn own(&mut self, register: u32, frame: Frame) -> Verdict {
        match number_of(frame, self.id, register) {
            Ok(number) => self.registers[register as usize].read(number, self.when),
            Err(what) => Verdict::Wrong(what),
        }
    }

    fn executed(&mut self, pair: u32, reply: &[u8]) -> Verdict {
        let mut at = 0;
        let _ = words::frame(reply, &mut at);
        let first = words::frame(reply, &mut at);
        let second = words::frame(reply, &mut at);
        let (Ok(Some(Frame::Integer(value))), Ok(Some(Frame::Integer(length)))) = (first, second)
        else {
            return Verdict::Wrong("no two numbers".to_owned());
        };
        if length != value * plan::ENTRY as i64 {
            return Verdict::Wrong(format!("half of a transaction: {value}, {length} bytes"));
        }
        self.pairs[pair as usize].grown_to(value as u64, self.when)
    }

    fn read_log(&mut self, log: u32, generation: u32, frame: Frame) -> Verdict {
        let bytes = match frame {
            Frame::Bulk(bytes) => bytes,
            Frame::Nil => b"",
            _ => return Verdict::Wrong("of another kind".to_owned()),
        };
        let verdict = match plan::entries(bytes, self.id, log) {
            Ok(found) => self.logs[log as usize].entries.check(&found, self.when),
            Err(what) => Verdict::Wrong(what),
        };
        let state = &mut self.logs[log as usize];
        state.reading = false;
        state.generation += 1;
        state.count.restart();
        state.entries.restart();
        self.tally.logs_read += 1;
        words::request(&mut self.out, &[b"UNLINK", &plan::log_key(self.id, log, generation)]);
        self.push(Asked::Forget);
        verdict
    }

    /// At the end, with all faults healed: every key once more.
    fn read_all(&mut self, deadline: Instant) {
        let mut open: Vec<Asked> =
            (0..plan::REGISTERS).map(|register| Asked::Get { register }).collect();
        open.extend((0..plan::COUNTERS).map(|counter| Asked::ReadCounter { counter }));
        for (log, state) in (0..).zip(&self.logs) {
            open.push(Asked::ReadLog { log, generation: state.generation });
        }
        // Whatever fails is asked again: by then everything must work.
        for asked in open {
            loop {
                if self.stream.is_none() {
                    self.connect();
                }
                let errors = self.tally.errors_total();
                self.send(asked.clone());
                while !self.awaited.is_empty() {
                    self.turn(false);
                }
                if self.tally.errors_total() == errors {
                    break;
                }
                if Instant::now() > deadline {
                    self.tally.hung += 1;
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn state_generation(logs: &[Log], log: u32) -> u32 {
    logs[log as usize].generation
}

/// The first frame of the reply at `at`, and where the whole reply ends. `None`: not all is here.
fn first_and_end(bytes: &[u8], at: usize) -> Result<Option<(Frame<'_>, usize)>, String> {
    let mut end = at;
    let Some(frame) = words::frame(bytes, &mut end)? else { return Ok(None) };
    match frame {
        Frame::Array(_) => Ok(words::whole(bytes, at)?.map(|end| (frame, end))),
        _ => Ok(Some((frame, end))),
    }
}

/// The number in a register's value, which must be that very value. Nothing there: 0.
fn number_of(frame: Frame, writer: u32, register: u32) -> Result<u32, String> {
    let text = match frame {
        Frame::Nil => return Ok(0),
        Frame::Bulk(text) => text,
        _ => return Err("of another kind".to_owned()),
    };
    let number = plan::number_in(text, &plan::register_head(writer, register), register);
    number.ok_or_else(|| "a value of somebody else's".to_owned())
}

fn entries_of(length: i64, then: impl FnOnce(u64) -> Verdict) -> Verdict {
    match length % plan::ENTRY as i64 {
        0 => then(length as u64 / plan::ENTRY as u64),
        _ => Verdict::Wrong(format!("{length} bytes are no number of entries")),
    }
}
