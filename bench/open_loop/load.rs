//! Sends what is due, takes what comes, notes how long each took.
//!
//! Not here: when commands are due (`schedule`), what the figures mean (`figures`).

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ringway::resp::reply::{ReplyScanner, Scanned};
use ringway::resp::request::encode_request;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::figures::Figures;
use crate::schedule::{Random, Schedule};

/// After the last command: how long replies may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest sleep, so that the end is seen.
const SLEEP_NS: u64 = 100_000_000;

#[derive(Clone, Debug)]
pub struct Plan {
    pub rate: u64,
    pub connections: usize,
    pub threads: usize,
    pub measured: Duration,
    pub warmup: Duration,
    pub poisson: bool,
    pub set_share: f64,
    pub keys: u64,
    pub size: usize,
    pub spin: Duration,
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            rate: 10_000,
            connections: 50,
            threads: 1,
            measured: Duration::from_secs(10),
            warmup: Duration::from_secs(1),
            poisson: false,
            set_share: 0.0,
            keys: 100_000,
            size: 64,
            spin: Duration::ZERO,
            seed: 1,
        }
    }
}

/// All threads' figures.
pub fn run(target: SocketAddr, plan: &Plan) -> io::Result<Figures> {
    // Everybody is connected before the clock starts.
    let workers: Vec<Worker> = (0..plan.threads)
        .map(|index| Worker::new(target, plan, index))
        .collect::<io::Result<_>>()?;
    let start = Instant::now();
    let ended: Vec<io::Result<Figures>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || worker.work(start))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a load thread panicked")).collect()
    });
    let mut all = Figures::new();
    for figures in ended {
        all.add(figures?);
    }
    Ok(all)
}

/// One thread's connections and its share of the commands.
struct Worker<'a> {
    plan: &'a Plan,
    schedule: Schedule,
    random: Random,
    connections: Vec<Connection>,
    poll: OwnedFd,
    value: Vec<u8>,
    figures: Figures,
    /// The connection whose turn is next.
    turn: usize,
    unanswered: u64,
}

struct Connection {
    stream: TcpStream,
    scanner: ReplyScanner,
    /// What could not be written yet.
    output: Vec<u8>,
    /// When each command without an answer was meant to leave.
    waiting: VecDeque<u64>,
    /// Of them, those whose bytes are still in `output`.
    unsent: VecDeque<u64>,
    /// The first bytes of the reply that is being read, until its line ends.
    head: Vec<u8>,
    asks_for_room: bool,
}

impl<'a> Worker<'a> {
    fn new(target: SocketAddr, plan: &'a Plan, index: usize) -> io::Result<Worker<'a>> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let mine = (index..plan.connections).step_by(plan.threads);
        let mut connections = Vec::new();
        for (number, _) in mine.enumerate() {
            let stream = TcpStream::connect(target)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&poll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
            connections.push(Connection::new(stream));
        }
        let seed = plan.seed.wrapping_mul(0x1_0000).wrapping_add(index as u64);
        let gaps = plan.poisson.then(|| Random::new(!seed));
        Ok(Worker {
            plan,
            schedule: Schedule::new(plan.rate, index, plan.threads, gaps),
            random: Random::new(seed),
            connections,
            poll,
            value: vec![b'x'; plan.size],
            figures: Figures::new(),
            turn: 0,
            unanswered: 0,
        })
    }

    /// Sends everything that is due until the end, then waits for the last replies.
    fn work(mut self, start: Instant) -> io::Result<Figures> {
        // A sleep may else be 50 us longer than asked for. Without it the figures `sent late` tell.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
        let from = nanoseconds(self.plan.warmup);
        let until = from + nanoseconds(self.plan.measured);
        let give_up = until + nanoseconds(PATIENCE);
        let spin = nanoseconds(self.plan.spin);
        let mut due = self.schedule.next().unwrap_or(u64::MAX);
        let mut events: Vec<Event> = Vec::with_capacity(1024);
        loop {
            let now = nanoseconds(start.elapsed());
            while due <= now && due < until {
                self.ask(due);
                due = self.schedule.next().unwrap_or(u64::MAX);
            }
            self.flush(start, from)?;
            let all_sent = due >= until;
            if (all_sent && self.unanswered == 0) || now >= give_up {
                break;
            }
            let next = if all_sent { now + SLEEP_NS } else { due };
            let pause = next.saturating_sub(nanoseconds(start.elapsed())).min(SLEEP_NS);
            let pause = pause.saturating_sub(spin);
            events.clear();
            wait(&self.poll, &mut events, pause)?;
            for event in &events {
                // Room to write is used by `flush`, in the next round.
                self.take(event.data.u64() as usize, start, from)?;
            }
        }
        self.figures.unanswered = self.unanswered;
        Ok(self.figures)
    }

    /// One command at the end of the next connection's output.
    fn ask(&mut self, due: u64) {
        let key = format!("key:{:012}", self.random.below(self.plan.keys));
        let turn = self.turn;
        self.turn = (turn + 1) % self.connections.len();
        let connection = &mut self.connections[turn];
        if self.plan.set_share > self.random.share() {
            let words: [&[u8]; 3] = [b"SET", key.as_bytes(), &self.value];
            encode_request(words.into_iter(), &mut connection.output);
        } else {
            encode_request([b"GET", key.as_bytes()].into_iter(), &mut connection.output);
        }
        connection.waiting.push_back(due);
        connection.unsent.push_back(due);
        self.unanswered += 1;
    }

    fn flush(&mut self, start: Instant, from: u64) -> io::Result<()> {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            if connection.output.is_empty() {
                continue;
            }
            let done = connection.send()?;
            if done {
                let now = nanoseconds(start.elapsed());
                for due in connection.unsent.drain(..).filter(|due| *due >= from) {
                    self.figures.lag.saturating_record((now - due).max(1));
                }
            }
            if connection.asks_for_room == done {
                connection.asks_for_room = !done;
                let room = if done { EventFlags::empty() } else { EventFlags::OUT };
                let data = EventData::new_u64(number as u64);
                epoll::modify(&self.poll, &connection.stream, data, EventFlags::IN | room)?;
            }
        }
        Ok(())
    }

    /// Reads what has come at one connection.
    fn take(&mut self, number: usize, start: Instant, from: u64) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(number) else { return Ok(()) };
        let mut buffer = [0; 64 << 10];
        let got = match connection.stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed a connection")),
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let now = nanoseconds(start.elapsed());
        let mut rest = &buffer[..got];
        while !rest.is_empty() {
            let scanned = connection.scanner.scan(rest).map_err(io::Error::other)?;
            let (len, whole) = match scanned {
                Scanned::Complete { len } => (len, true),
                Scanned::Partial => (rest.len(), false),
            };
            connection.keep_error(&rest[..len]);
            rest = &rest[len..];
            if !whole {
                break;
            }
            let Some(due) = connection.waiting.pop_front() else {
                return Err(io::Error::other("a reply that nobody asked for"));
            };
            self.unanswered -= 1;
            self.figures.replies += 1;
            if connection.scanner.frame_type() == b'-' {
                self.figures.errors += 1;
                let text = String::from_utf8_lossy(&connection.head).trim().to_owned();
                self.figures.first_error.get_or_insert(text);
            }
            connection.head.clear();
            if due >= from {
                self.figures.latency.saturating_record(now.saturating_sub(due).max(1));
                self.figures.measured_ns = now.saturating_sub(from);
            }
        }
        Ok(())
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            scanner: ReplyScanner::default(),
            output: Vec::new(),
            waiting: VecDeque::new(),
            unsent: VecDeque::new(),
            head: Vec::new(),
            asks_for_room: false,
        }
    }

    /// Whether all went out.
    fn send(&mut self) -> io::Result<bool> {
        match self.stream.write(&self.output) {
            Ok(sent) => {
                self.output.drain(..sent);
                Ok(self.output.is_empty())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Keeps an error's text, of whatever pieces it comes in.
    fn keep_error(&mut self, bytes: &[u8]) {
        if self.scanner.frame_type() == b'-' && self.head.len() < 200 {
            self.head.extend_from_slice(&bytes[..bytes.len().min(200)]);
        }
    }
}

fn wait(poll: &OwnedFd, events: &mut Vec<Event>, pause_ns: u64) -> io::Result<()> {
    let pause = Timespec { tv_sec: 0, tv_nsec: pause_ns as i64 };
    match epoll::wait(poll, rustix::buffer::spare_capacity(events), Some(&pause)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Answers each GET with `reply`, and sleeps once for `stall` when it has answered `after`.
    fn server(reply: &'static [u8], after: usize, stall: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || answer(stream, reply, after, stall));
            }
        });
        address
    }

    fn answer(mut stream: TcpStream, reply: &[u8], after: usize, stall: Duration) {
        let mut buffer = [0; 4096];
        let mut answered = 0;
        while let Ok(got @ 1..) = stream.read(&mut buffer) {
            // A request begins with `*`, which no key holds.
            for _ in buffer[..got].iter().filter(|byte| **byte == b'*') {
                answered += 1;
                if answered == after {
                    std::thread::sleep(stall);
                }
                // Cut in the middle: replies come in pieces.
                let (head, tail) = reply.split_at(reply.len() / 2);
                let _ = stream.write_all(head).and_then(|()| stream.write_all(tail));
            }
        }
    }

    fn plan(rate: u64) -> Plan {
        let measured = Duration::from_millis(600);
        Plan { rate, connections: 1, measured, warmup: Duration::ZERO, ..Plan::default() }
    }

    #[test]
    fn stall_of_the_target_shows_in_all_commands_that_it_delays() {
        let target = server(b"$1\r\nx\r\n", 100, Duration::from_millis(300));
        let figures = run(target, &plan(1_000)).unwrap();
        assert_eq!(figures.latency.len(), 600);
        assert!(figures.is_sound());
        // 300 of 600 were due during the stall: a closed loop would have seen one slow command.
        let slow = figures.latency.count_between(50_000_000, u64::MAX);
        assert!(slow >= 230, "{slow}");
        let median = figures.latency.value_at_percentile(75.0);
        assert!(median > 50_000_000, "{median}");
    }

    #[test]
    fn every_connection_and_thread_has_its_share() {
        let target = server(b"$-1\r\n", usize::MAX, Duration::ZERO);
        let (connections, threads) = (5, 2);
        let few = Plan { poisson: true, set_share: 0.3, connections, threads, ..plan(500) };
        let figures = run(target, &Plan { spin: Duration::from_micros(200), ..few }).unwrap();
        assert!((220..380).contains(&figures.latency.len()), "{}", figures.latency.len());
        assert!(figures.lag.len() == figures.latency.len() && figures.rate() > 50.0);
    }

    #[test]
    fn errors_are_counted_and_one_is_kept() {
        let target = server(b"-CLUSTERDOWN Hash slot not served\r\n", usize::MAX, Duration::ZERO);
        let figures = run(target, &plan(100)).unwrap();
        assert_eq!((figures.errors, figures.replies), (60, 60));
        assert_eq!(figures.first_error.as_deref(), Some("-CLUSTERDOWN Hash slot not served"));
        assert!(!figures.is_sound());
    }

    #[test]
    fn target_that_closes_ends_the_run() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        std::thread::spawn(move || drop(listener.accept()));
        let error = run(target, &plan(100)).err().unwrap();
        assert!(
            error.to_string().contains("closed") || error.kind() != ErrorKind::Other,
            "{error}"
        );
    }
}
