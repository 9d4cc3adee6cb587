//! The topology thread: asks nodes for the map, broadcasts it to the reactors, hears their
//! reports.
//!
//! `start` begins it, `Report::Stop` ends it. Decisions are in `pool` and `schedule` (pure), talk
//! with nodes in `talk`. Not here: signals (`main`), data (`reactor`).

mod pool;
mod resolve;
mod schedule;
mod settings;
mod talk;
#[cfg(test)]
mod tests_pool;
#[cfg(test)]
mod tests_thread;

pub use settings::{PoolSettings, TopologySettings};

use crate::cluster::{Endpoint, Topology};
use crate::command::Learned;
use crate::log::{Level, Log};
use crossbeam_channel::{Receiver, Sender, TrySendError};
use pool::{Failure, Pool, Say, Told};
use resolve::Resolver;
use schedule::Target;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use talk::Place;
use tokio::sync::mpsc;

/// What reactors tell this thread. `pool`: index in the settings.
#[derive(Clone, Debug)]
pub enum Report {
    /// `from` answered MOVED, or ASK. `endpoint`: as announced, before the address map. `known`: it
    /// was MOVED, and the reactor found it in its map and has patched its own copy.
    Moved {
        pool: u16,
        slot: u16,
        endpoint: Endpoint,
        from: SocketAddr,
        known: bool,
    },
    /// A node does not answer, or cannot be connected to.
    NodeLost {
        pool: u16,
        address: SocketAddr,
    },
    /// Reason to doubt the map: CLUSTERDOWN, a slot without owner and the like.
    WantRefresh {
        pool: u16,
        avoid: Option<SocketAddr>,
    },
    /// A client of reactor `from` has loaded a script, or flushed all: for the other reactors.
    ScriptLoaded {
        pool: u16,
        from: u16,
        body: Arc<[u8]>,
    },
    ScriptsFlushed {
        pool: u16,
        from: u16,
    },
    ReactorStopped {
        reactor: u16,
    },
    /// From the main thread: other settings from now on, for the same pools.
    Configure {
        pools: Arc<[PoolSettings]>,
        level: Level,
    },
    /// End the thread.
    Stop,
}

/// How large requests nodes take in (a larger one would end the connection that many clients
/// share), and what else each has in a number of its own.
/// `None`: not known, because the node does not tell or does not tell us.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestBounds {
    /// Bytes of one word (`proto-max-bulk-len`).
    pub bulk_max: Option<u64>,
    /// Bytes of a request (`client-query-buffer-limit`).
    pub query_max: Option<u64>,
    /// Databases (`cluster-databases` of Valkey 9).
    pub databases: Option<u64>,
}

/// What this thread tells each reactor.
#[derive(Clone, Debug)]
pub enum Update {
    /// A whole map, addresses resolved where they could be.
    Map { pool: u16, topology: Arc<Topology> },
    /// One slot has moved to a node of the map.
    Slot { pool: u16, slot: u16, address: SocketAddr },
    /// The answer to a redirect that led out of the map. `endpoint` as it was reported; `address`
    /// is Some if the map has it now, and the map has been sent before.
    Confirmed { pool: u16, endpoint: Endpoint, address: Option<SocketAddr> },
    /// A refresh is over. `ok`: somebody answered.
    Refreshed { pool: u16, ok: bool },
    /// Commands that only the nodes know; once for each pool, after its first map.
    Learned { pool: u16, learned: Arc<Learned> },
    /// The least that nodes take in, as far as they have told, when that changes.
    Bounds { pool: u16, bounds: RequestBounds },
    /// A client of reactor `from` has loaded this script; `None`: flushed all. That reactor knows,
    /// and has perhaps gone on since.
    Script { pool: u16, from: u16, body: Option<Arc<[u8]>> },
    /// From `main`, by the same channel: finish until then.
    Drain { deadline_ms: u64 },
}

/// How to reach one reactor. If `updates` is bounded and full, the reactor is sent the whole maps
/// once there is room.
pub struct ReactorLink {
    pub updates: Sender<Update>,
    pub wake: Box<dyn Fn() + Send + Sync>,
}

/// Starts the thread. It ends at `Report::Stop`, or when all senders of `reports` are gone.
/// Fails if there is no thread to be had or the kernel refuses io_uring.
pub fn start(
    settings: TopologySettings,
    reports: Receiver<Report>,
    links: Vec<ReactorLink>,
    log: Log,
) -> io::Result<JoinHandle<()>> {
    let (forward, inbox) = mpsc::channel(INBOX);
    let (began, beginning) = crossbeam_channel::bounded(1);
    let run = move || match tokio_uring::Runtime::new(&tokio_uring::builder()) {
        Ok(runtime) => {
            let _ = began.send(Ok(()));
            runtime.block_on(Thread::new(settings, links, log).run(inbox));
        }
        Err(error) => drop(began.send(Err(error))),
    };
    let handle = std::thread::Builder::new().name("topology".into()).spawn(run)?;
    beginning.recv().unwrap_or_else(|_| Err(io::Error::other("the topology thread died")))?;
    // crossbeam's channel cannot wake this runtime: a thread that does nothing else waits on it.
    let carry = move || {
        while let Ok(report) = reports.recv() {
            let last = matches!(report, Report::Stop);
            if forward.blocking_send(report).is_err() || last {
                break;
            }
        }
    };
    std::thread::Builder::new().name("topology-inbox".into()).spawn(carry)?;
    Ok(handle)
}

const INBOX: usize = 1024;
/// How soon a reactor that had no room is tried again.
const RESEND_MS: u64 = 50;

/// Milliseconds since the thread began, monotonic.
#[derive(Copy, Clone)]
struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this thread reads its own clock")]
    fn start() -> Clock {
        Clock(Instant::now())
    }

    fn now_ms(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    #[expect(clippy::disallowed_methods, reason = "for the lines of this thread's log")]
    fn unix_us() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

struct Thread {
    settings: Vec<Rc<PoolSettings>>,
    pools: Vec<Pool>,
    links: Vec<Link>,
    resolver: Resolver,
    clock: Clock,
    log: Log,
    /// Updates of this turn.
    out: Vec<Update>,
}

struct Link {
    link: ReactorLink,
    /// It had no room for an update that it must have.
    missed: bool,
}

/// How a conversation of the pool at this index ended.
enum Answer {
    Map(usize, Result<Told, Failure>),
    Commands(usize, Result<Learned, Failure>),
}

impl Thread {
    fn new(settings: TopologySettings, links: Vec<ReactorLink>, log: Log) -> Thread {
        let clock = Clock::start();
        let now = clock.now_ms();
        let pools = (0u16..).zip(&settings.pools);
        Thread {
            pools: pools
                .map(|(index, pool)| {
                    Pool::new(index, pool, settings.seed.wrapping_add(u64::from(index)), now)
                })
                .collect(),
            settings: settings.pools.into_iter().map(Rc::new).collect(),
            links: links.into_iter().map(|link| Link { link, missed: false }).collect(),
            resolver: Resolver::new(clock),
            clock,
            log,
            out: Vec::new(),
        }
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<Report>) {
        let (answered, mut answers) = mpsc::channel::<Answer>(self.pools.len().max(1));
        loop {
            self.start_conversations(&answered);
            self.broadcast();
            self.log.handle_time(Clock::unix_us());
            let wait = self.next_deadline().saturating_sub(self.clock.now_ms());
            tokio::select! {
                report = inbox.recv() => match report {
                    None | Some(Report::Stop) => return,
                    Some(report) => {
                        self.handle_report(report);
                        // One turn for all that has come: one wake for each reactor.
                        while let Ok(report) = inbox.try_recv() {
                            if matches!(report, Report::Stop) {
                                return;
                            }
                            self.handle_report(report);
                        }
                    }
                },
                Some(answer) = answers.recv() => self.handle_answer(answer),
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
            }
        }
    }

    fn next_deadline(&self) -> u64 {
        /// Nothing is waited for longer: the clock is looked at now and then.
        const LONGEST_MS: u64 = 60_000;
        let now = self.clock.now_ms();
        let resend = self.links.iter().any(|link| link.missed).then_some(now + RESEND_MS);
        let pools = self.pools.iter().filter_map(Pool::next_deadline);
        pools.chain(resend).min().unwrap_or(u64::MAX).min(now.saturating_add(LONGEST_MS))
    }

    fn start_conversations(&mut self, answered: &mpsc::Sender<Answer>) {
        let now = self.clock.now_ms();
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let Some(settings) = self.settings.get(index) else { continue };
            let start = || (settings.clone(), self.resolver.clone(), answered.clone());
            if let Some(target) = pool.start(now) {
                let (last, lost) = (pool.current().cloned(), pool.lost(now));
                let place = place_of(target, settings, last.as_deref());
                let (settings, resolver, answered) = start();
                tokio_uring::spawn(async move {
                    let told = talk::ask_map(place, &settings, &resolver, last, &lost).await;
                    let _ = answered.send(Answer::Map(index, told)).await;
                });
            }
            if let Some(address) = pool.start_learning() {
                let map = pool.current().map(|map| &**map);
                let place = place_of(Target::Node(address), settings, map);
                let (settings, resolver, answered) = start();
                tokio_uring::spawn(async move {
                    let learned = talk::ask_commands(place, &settings, &resolver).await;
                    let _ = answered.send(Answer::Commands(index, learned)).await;
                });
            }
        }
    }

    fn handle_report(&mut self, report: Report) {
        let now = self.clock.now_ms();
        let pool = match &report {
            Report::Moved { pool, .. }
            | Report::NodeLost { pool, .. }
            | Report::ScriptLoaded { pool, .. }
            | Report::ScriptsFlushed { pool, .. }
            | Report::WantRefresh { pool, .. } => *pool,
            Report::ReactorStopped { reactor } => {
                self.log.debug(Clock::unix_us(), "a reactor has ended", &[("reactor", reactor)]);
                return;
            }
            Report::Configure { pools, level } => {
                self.log.set_level(*level);
                return self.configure(pools);
            }
            Report::Stop => return,
        };
        if let Some(pool) = self.pools.get_mut(usize::from(pool)) {
            pool.handle_report(report, now, &mut self.out);
        }
    }

    /// Conversations under way end as they began.
    fn configure(&mut self, pools: &[PoolSettings]) {
        let now = self.clock.now_ms();
        for ((pool, settings), known) in self.pools.iter_mut().zip(pools).zip(&mut self.settings) {
            if **known != *settings {
                pool.configure(settings, now);
                *known = Rc::new(settings.clone());
            }
        }
    }

    fn handle_answer(&mut self, answer: Answer) {
        let now = self.clock.now_ms();
        let (Answer::Map(index, _) | Answer::Commands(index, _)) = answer;
        let Some(pool) = self.pools.get_mut(index) else { return };
        let mut say = Say { log: &mut self.log, unix_us: Clock::unix_us() };
        match answer {
            Answer::Map(_, told) => pool.finish(told, now, &mut say, &mut self.out),
            Answer::Commands(_, learned) => {
                pool.finish_learning(learned, &mut say, &mut self.out);
            }
        }
    }

    /// Sends the updates of this turn to every reactor and wakes it once.
    fn broadcast(&mut self) {
        for link in &mut self.links {
            let missed = std::mem::take(&mut link.missed);
            if self.out.is_empty() && !missed {
                continue;
            }
            let whole = self.pools.iter().filter(|_| missed).flat_map(Pool::standing);
            for update in whole.chain(self.out.iter().cloned()) {
                if let Err(TrySendError::Full(_)) = link.link.updates.try_send(update) {
                    link.missed = true;
                }
            }
            (link.link.wake)();
        }
        self.out.clear();
    }
}

/// Where a target is. None: no such seed.
fn place_of(target: Target, settings: &PoolSettings, map: Option<&Topology>) -> Option<Place> {
    match target {
        Target::Seed(at) => {
            let endpoint = settings.seeds.get(at)?.clone();
            Some(Place { endpoint, address: None })
        }
        Target::Node(address) => {
            Some(Place { endpoint: name_of(address, map), address: Some(address) })
        }
    }
}

/// How the map calls the node at `address`.
fn name_of(address: SocketAddr, map: Option<&Topology>) -> Endpoint {
    let named = map.and_then(|map| {
        let index = map.node_by_address(&address)?;
        map.nodes.get(usize::from(index)).map(|node| node.endpoint.clone())
    });
    named
        .unwrap_or_else(|| Endpoint { host: address.ip().to_string().into(), port: address.port() })
}
