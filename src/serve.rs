//! From a configuration to running threads: the reactors, then the topology thread that tells them
//! the map.
//!
//! Not here: what the threads do (`reactor`, `topology`), options and their ranges (`config`).

mod host;
mod slack;
mod sockets;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use core_affinity::CoreId;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::admin::{self, AdminSettings, cpu_us_of};
use crate::cluster::AddressMap;
use crate::config::{Config, Pool, Process};
use crate::handover::{self, IDS_SPARE, TakenOver};
use crate::limits::PEER_MESSAGES_MAX;
use crate::log::{Level, Log};
use crate::metrics::{self, Board, Counter, Counters};
use crate::proxy::local::{Identity, User};
pub use crate::reactor::Arrival;
use crate::reactor::{self, Channels, Fresh, HandOver, Message, Peer, Reactor, Wish};
use crate::ready::{self, Facts, Readiness};
use crate::ring::{self, ConnectOptions, Inherited, RingSettings, Waker};
use crate::topology::{self, PoolSettings, ReactorLink, Report, TopologySettings, Update};
use crate::watchdog::{Pace, Verdict, Watch};
use host::{cpu_times_us, executable, kib_in, memory_limit, memory_of_host, os, wanted_cpu_us};
use slack::Slack;

/// Updates that wait for one reactor. Maps that find no room are sent again.
const UPDATES_MAX: usize = 1024;

/// How long the main thread waits for room in a reactor's channel.
const MESSAGE_WAIT: Duration = Duration::from_secs(1);

/// How long after the drain time-out a thread counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// What there was before us.
#[derive(Debug, Default)]
pub struct Before {
    /// Listening sockets of the process before this one.
    pub inherited: Vec<Inherited>,
    /// Those that the service manager has opened, with the names it gave them.
    pub managed: Vec<(Inherited, Option<String>)>,
    /// Ids of clients are above.
    pub client_ids: u64,
    /// It serves, and gives its clients to us.
    pub serves: bool,
}

/// What runs.
pub struct Threads {
    peers: Arc<[Peer]>,
    /// Names of the pools, in order.
    pools: Vec<String>,
    /// Copies of the listening sockets, for the process after us.
    listeners: Vec<Inherited>,
    client_ids: u64,
    /// Whose turn it is to take a client of the process before.
    adopter: usize,
    reactors: Vec<JoinHandle<()>>,
    /// For each reactor.
    watches: Vec<(Watch, u32)>,
    pace: Pace,
    topology: Option<JoinHandle<()>>,
    updates: Vec<(Sender<Update>, Waker)>,
    reports: Sender<Report>,
    drain_timeout: Duration,
    identity: Identities,
    wishes: Receiver<Wish>,
    board: Board,
    slack: Slack,
    /// What the main thread counts: the process as a whole.
    process: Counters,
    draining: bool,
    /// Whether clients should be sent here, as of the last look, and as last written.
    readiness: ready::Shown,
    readiness_told: Readiness,
}

impl Threads {
    /// Starts everything; `listen` opens the doors. Errors: cause and remedy in one line; what was
    /// started ends with the process.
    pub fn start(
        config: &Config,
        log: &Log,
        unix_us: u64,
        before: Before,
    ) -> Result<Threads, String> {
        let process = &config.process;
        let cpus = cpus(process)?;
        let seed = random_words()?;
        let identity = Identities::new(cpus.len(), unix_us)?;
        let memory_limit = memory_limit(process);
        let (client_ids, ahead) = (before.client_ids, before.serves);
        let sockets = sockets::open(&config.pools, cpus.len(), before)?;
        let pools = config.pools.iter().zip(&sockets.shared);
        let pools = pools.map(|(pool, &shared)| reactor_pool(pool, process, &identity, shared));
        let pools = pools.collect::<Result<Vec<reactor::Pool>, String>>()?;
        let (reports, inbox) = unbounded();
        let (wish, wishes) = unbounded();
        // The last is the main thread's.
        let board = metrics::board(cpus.len() + 1);
        let mut threads = Threads {
            peers: Vec::new().into(),
            pools: config.pools.iter().map(|pool| pool.name.clone()).collect(),
            listeners: sockets.shares,
            client_ids,
            adopter: 0,
            reactors: Vec::new(),
            watches: Vec::new(),
            pace: Pace::default(),
            topology: None,
            updates: Vec::new(),
            reports: reports.clone(),
            drain_timeout: Duration::from_millis(process.drain_timeout_ms),
            identity,
            wishes,
            board: board.clone(),
            slack: Slack::default(),
            process: Counters::default(),
            draining: false,
            readiness: ready::Shown::default(),
            readiness_told: Readiness::NotReady(ready::Reason::Starting),
        };
        threads.process.set(Counter::MemoryLimit, memory_limit);
        threads.publish_process();
        let mut peers = Vec::new();
        for (index, (cpu, listeners)) in cpus.iter().zip(sockets.of).enumerate() {
            let (updates, received) = bounded(UPDATES_MAX);
            let settings = reactor::Settings {
                index: index as u16,
                cpu: *cpu,
                ring: ring_settings(process),
                busy_poll: Duration::from_micros(u64::from(process.busy_poll_us)),
                gather: Duration::from_micros(u64::from(process.gather_us)),
                pools: split_limits(&pools, cpus.len()),
                listeners,
                ahead,
                first_client_id: client_ids,
                memory_limit,
                seed: seed.map(|word| word.wrapping_add(index as u64)),
                reactors: cpus.len() as u16,
                log: log.for_part(format!("reactor-{index}")),
            };
            let (messages, inbox) = bounded(PEER_MESSAGES_MAX);
            let (reports, wishes) = (reports.clone(), wish.clone());
            let channels = Channels { updates: received, reports, inbox, wishes };
            let Reactor { thread, waker, tid } = reactor::start(settings, channels, board.clone())?;
            threads.reactors.push(thread);
            peers.push(Peer { messages, waker: waker.clone() });
            threads.watches.push((Watch::default(), tid));
            threads.updates.push((updates, waker));
        }
        threads.peers = introduce(peers);
        threads.start_admin(config, unix_us / 1_000_000, log.for_part("admin"))?;
        threads.start_topology(config, inbox, seed[0], log.for_part("topology"))?;
        Ok(threads)
    }

    /// Accepts clients from now on. `expecting`: others come from the process before, until
    /// `adopter` is told `None`; how they have come each reactor tells then. Returns when all
    /// listen: who is told so may connect.
    pub fn listen(&self, expecting: bool) -> Receiver<Arrival> {
        let (tell, arrivals) = unbounded();
        let (done, listens) = bounded(self.peers.len());
        for peer in self.peers.iter() {
            let arrivals = expecting.then(|| tell.clone());
            let message = Message::Listen { arrivals, done: done.clone() };
            // A reactor that takes no message ends the process by itself.
            let _ = peer.messages.send_timeout(message, MESSAGE_WAIT);
            peer.waker.wake();
        }
        for _ in self.peers.iter() {
            let _ = listens.recv_timeout(MESSAGE_WAIT);
        }
        arrivals
    }

    /// Whether every reactor knows the map of every pool, and has connected to its nodes as far as
    /// they can be reached.
    pub fn ready(&self) -> bool {
        let wanted = self.pools.len() * self.peers.len();
        let ready = self.board.iter().map(|shown| shown.value(Counter::PoolsReady));
        ready.sum::<u64>() == wanted as u64
    }

    /// Copies of the listening sockets, once.
    pub fn take_listeners(&mut self) -> Vec<Inherited> {
        std::mem::take(&mut self.listeners)
    }

    /// Says above which ids clients of the next process are to be.
    pub fn id_source(&self) -> impl Fn() -> u64 + Send + 'static {
        let (board, base, reactors) = (self.board.clone(), self.client_ids, self.peers.len());
        move || next_client_ids(&board, base, reactors as u64)
    }

    /// Gives clients of the process before this one to each reactor in turn. `None`: that were all.
    pub fn adopter(
        &self,
    ) -> impl FnMut(Option<handover::Client>) -> Result<(), String> + Send + 'static {
        let (peers, mut turn, pools) = (self.peers.clone(), self.adopter, self.pools.len());
        move |client| {
            let Some(client) = client else {
                for peer in peers.iter() {
                    let _ = peer.messages.send_timeout(Message::AllCame, MESSAGE_WAIT);
                    peer.waker.wake();
                }
                return Ok(());
            };
            turn = (turn + 1) % peers.len().max(1);
            if usize::from(client.pool) >= pools {
                return Err("it is of no pool of ours".into());
            }
            let peer = peers.get(turn).ok_or("no reactor")?;
            let handover::Client { pool, parcel, fd } = client;
            let message = Message::Adopt { pool, fd, parcel: Some(parcel) };
            let sent = peer.messages.send_timeout(message, MESSAGE_WAIT);
            peer.waker.wake();
            sent.map_err(|_| "a reactor does not take it".into())
        }
    }

    /// Another process accepts from now on: our clients go there. How long that may take at most.
    pub fn hand_over(&mut self, taken: &TakenOver, heir: &Sender<handover::Client>) -> Duration {
        self.draining = true;
        self.note_readiness();
        let there = |name: &String| {
            taken.pools.iter().position(|other| other == name).map(|index| index as u16)
        };
        let pools: Arc<[Option<u16>]> = self.pools.iter().map(there).collect();
        for peer in self.peers.iter() {
            let how = HandOver {
                deadline_ms: self.drain_timeout.as_millis() as u64,
                pools: pools.clone(),
                heir: heir.clone(),
            };
            let _ = peer.messages.send_timeout(Message::HandOver(how), MESSAGE_WAIT);
            peer.waker.wake();
        }
        self.drain_timeout + STUCK_AFTER
    }

    /// Other settings hold from now on. Error: they cannot be used, and nothing has changed.
    pub fn configure(&mut self, config: &Config, level: Level) -> Result<(), String> {
        let process = &config.process;
        let memory_limit = memory_limit(process);
        let pools = config.pools.iter();
        let pools = pools.map(|pool| reactor_pool(pool, process, &self.identity, false));
        let pools = pools.collect::<Result<Vec<reactor::Pool>, String>>()?;
        let places = config.pools.iter().map(topology_pool).collect::<Result<Vec<_>, _>>()?;
        let fresh = Arc::new(Fresh {
            pools: split_limits(&pools, self.peers.len()),
            busy_poll: Duration::from_micros(u64::from(process.busy_poll_us)),
            gather: Duration::from_micros(u64::from(process.gather_us)),
            memory_limit,
            level,
        });
        for peer in self.peers.iter() {
            let message = Message::Configure(fresh.clone());
            let _ = peer.messages.send_timeout(message, MESSAGE_WAIT);
            peer.waker.wake();
        }
        let _ = self.reports.send(Report::Configure { pools: places.into(), level });
        self.drain_timeout = Duration::from_millis(process.drain_timeout_ms);
        self.process.set(Counter::MemoryLimit, memory_limit);
        Ok(())
    }

    /// What a client wants to be changed.
    pub fn next_wish(&self) -> Option<Wish> {
        self.wishes.try_recv().ok()
    }

    /// `refused`: an option, and why.
    pub fn answer_wish(&self, wish: &Wish, refused: Option<(String, String)>) {
        let Some(peer) = self.peers.get(usize::from(wish.reactor)) else { return };
        let message = Message::Granted { pool: wish.pool, ticket: wish.ticket, refused };
        let _ = peer.messages.send_timeout(message, MESSAGE_WAIT);
        peer.waker.wake();
    }

    fn start_admin(
        &mut self,
        config: &Config,
        started_unix_s: u64,
        log: Log,
    ) -> Result<(), String> {
        let Some(listen) = config.process.admin_listen.0 else { return Ok(()) };
        let settings = AdminSettings {
            listen,
            started_unix_s,
            peers: self.peers.to_vec(),
            tids: self.watches.iter().map(|(_, tid)| *tid).collect(),
            board: self.board.clone(),
            readiness: self.readiness.clone(),
        };
        admin::start(settings, log)
            .map_err(|error| format!("cannot start the admin threads: {error}"))
    }

    fn start_topology(
        &mut self,
        config: &Config,
        inbox: Receiver<Report>,
        seed: u64,
        log: Log,
    ) -> Result<(), String> {
        let pools = config.pools.iter().map(topology_pool).collect::<Result<_, _>>()?;
        let links = self.updates.iter().map(|(updates, waker)| {
            let waker = waker.clone();
            ReactorLink { updates: updates.clone(), wake: Box::new(move || waker.wake()) }
        });
        let settings = TopologySettings { pools, seed };
        let thread = topology::start(settings, inbox, links.collect(), log)
            .map_err(|error| format!("cannot start the topology thread: {error}"))?;
        self.topology = Some(thread);
        Ok(())
    }

    /// Stop accepting, answer what is in flight, close: within the drain time-out. Returns how long
    /// that may take; a thread that is still there then is stuck.
    pub fn drain(&mut self) -> Duration {
        self.draining = true;
        self.note_readiness();
        let deadline_ms = self.drain_timeout.as_millis() as u64;
        for (updates, waker) in &self.updates {
            // A reactor that takes no update is not going to drain either; it ends by itself.
            let _ = updates.send_timeout(Update::Drain { deadline_ms }, Duration::from_secs(1));
            waker.wake();
        }
        self.drain_timeout + STUCK_AFTER
    }

    /// Shows what the system says of the process to all reactors, for INFO. Once a second will do.
    pub fn publish_process(&mut self) {
        let counters = &mut self.process;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let (resident, held) = (kib_in(&status, "VmRSS:"), ring::held());
        let anonymous = kib_in(&status, "RssAnon:");
        let commands = self.board.iter().map(|shown| shown.value(Counter::Commands)).sum();
        if self.slack.is_due(anonymous, held, commands) {
            ring::trim_memory();
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            self.slack.note_return(anonymous, kib_in(&status, "RssAnon:"), ring::held());
        }
        counters.set(Counter::MemoryRss, resident);
        counters.set(Counter::MemoryHeld, held);
        counters.set(Counter::MemoryPeak, kib_in(&status, "VmHWM:"));
        counters.set(Counter::MemorySystem, memory_of_host());
        let (user_us, system_us) = cpu_times_us().unwrap_or_default();
        counters.set(Counter::CpuUserUs, user_us);
        counters.set(Counter::CpuSystemUs, system_us);
        if let Some(published) = self.board.last() {
            counters.publish(published);
        }
    }

    /// For threads that are asked whether all is well.
    pub fn readiness(&self) -> ready::Shown {
        self.readiness.clone()
    }

    fn note_readiness(&self) {
        let ended = |thread: &JoinHandle<()>| thread.is_finished();
        let mut reactors_late = 0;
        for (((watch, _), thread), shown) in
            self.watches.iter().zip(&self.reactors).zip(&*self.board)
        {
            let late = watch.is_late() || ended(thread);
            shown.show_late(late);
            reactors_late += u64::from(late);
        }
        let all = self.pools.len() as u64 * crate::cluster::SLOTS as u64;
        let without = self.board.iter().filter(|shown| shown.value(Counter::SlotsMissing) >= all);
        let limit = self.process.value(Counter::MemoryLimit);
        self.readiness.set(ready::judge(&Facts {
            started: self.topology.is_some(),
            draining: self.draining,
            reactors_late,
            reactors_without_slots: without.count() as u64,
            memory_percent: ring::held().saturating_mul(100).checked_div(limit).unwrap_or(0),
        }));
    }

    /// Says when it has changed; not how much of the same is wrong.
    fn tell_readiness(&mut self, log: &mut Log, unix_us: u64) {
        let now = self.readiness.get();
        let kind = |readiness: &Readiness| match readiness {
            Readiness::Ready => None,
            Readiness::NotReady(why) => Some(std::mem::discriminant(why)),
        };
        if kind(&now) != kind(&self.readiness_told) {
            match now {
                Readiness::Ready => log.info(unix_us, "ready", &[]),
                Readiness::NotReady(why) => log.warn(unix_us, "not ready", &[("why", &why)]),
            }
            self.readiness_told = now;
        }
    }

    /// Whether all reactors turn; to be asked every `watchdog::LOOK_EVERY_MS`. If not, the process
    /// should end: what hangs would keep its share of the clients for ever. `now_us`: of a clock
    /// that nobody sets.
    pub fn turn(&mut self, log: &mut Log, unix_us: u64, now_us: u64) -> bool {
        let passed_us = self.pace.passed_us(now_us, wanted_cpu_us());
        let well = self.watch(log, unix_us, passed_us);
        self.note_readiness();
        self.tell_readiness(log, unix_us);
        well
    }

    fn watch(&mut self, log: &mut Log, unix_us: u64, passed_us: u64) -> bool {
        let running = self.reactors.iter().map(|thread| !thread.is_finished());
        let seen = self.watches.iter_mut().zip(running).zip(self.board.iter());
        for (index, (((watch, tid), running), shown)) in seen.enumerate() {
            let reactor = ("reactor", &index as _);
            match watch.look(shown.value(Counter::Turns), passed_us, || cpu_us_of(*tid)) {
                Verdict::Late if running => {
                    log.warn(unix_us, "a reactor has made no turn for a second", &[reactor]);
                }
                Verdict::Stuck { spins } if running => {
                    let how = if spins { "it spins" } else { "it hangs" };
                    let why = ("why", &how as _);
                    log.error(unix_us, "a reactor is stuck, stopping at once", &[reactor, why]);
                    return false;
                }
                // Nothing of ours ends one but draining: it has panicked.
                _ if !running && !self.draining => {
                    log.error(unix_us, "a reactor has ended, stopping at once", &[reactor]);
                    return false;
                }
                _ => (),
            }
        }
        true
    }

    /// `None` while they run; then whether they ended well.
    pub fn ended(&mut self) -> Option<bool> {
        let lost_topology = self.topology.as_ref().is_some_and(JoinHandle::is_finished);
        if !lost_topology && !self.reactors.iter().all(JoinHandle::is_finished) {
            return None;
        }
        let well =
            self.reactors.drain(..).all(|thread| !thread.is_finished() || thread.join().is_ok());
        let _ = self.reports.send(Report::Stop);
        Some(well && !lost_topology)
    }
}

/// Above all ids that reactors with this base have given, and will give while another process
/// starts.
fn next_client_ids(board: &[metrics::Published], base: u64, reactors: u64) -> u64 {
    let shown = board.iter().map(metrics::Published::next_client_id);
    shown.fold(base, u64::max) + reactors * IDS_SPARE
}

/// Tells each reactor of all.
fn introduce(peers: Vec<Peer>) -> Arc<[Peer]> {
    let all: Arc<[Peer]> = peers.into();
    for peer in all.iter() {
        // There is room: nobody else knows the way yet.
        let _ = peer.messages.try_send(Message::Peers(all.clone()));
        peer.waker.wake();
    }
    all
}

/// The CPU of each reactor. `None`: not pinned, because the system does not tell.
fn cpus(process: &Process) -> Result<Vec<Option<CoreId>>, String> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    if !process.cpus.0.is_empty() {
        let missing = process.cpus.0.iter().find(|&&cpu| allowed.iter().all(|core| core.id != cpu));
        if let Some(cpu) = missing {
            return Err(format!(
                "cpus: CPU {cpu} is not among those that the process may use ({}); \
                 change `cpus`, or the affinity or cpuset that it was started with",
                allowed.iter().map(|core| core.id.to_string()).collect::<Vec<_>>().join(",")
            ));
        }
        return Ok(process.cpus.0.iter().map(|&cpu| Some(CoreId { id: cpu })).collect());
    }
    let count = match process.reactors {
        0 => allowed.len().max(1),
        count => count as usize,
    };
    // More reactors than CPUs share them in turn: legal, and said by the configuration.
    Ok((0..count).map(|index| allowed.get(index % allowed.len().max(1)).copied()).collect())
}

fn ring_settings(process: &Process) -> RingSettings {
    let (size, count) = (process.receive_buffer_size, process.receive_buffer_count);
    RingSettings::new(process.ring_entries, size, count)
}

/// The share of one reactor: connections spread evenly enough, and the sum is what was asked for.
fn split_limits(pools: &[reactor::Pool], reactors: usize) -> Vec<reactor::Pool> {
    let mut pools = pools.to_vec();
    for pool in &mut pools {
        pool.proxy.clients_max = pool.proxy.clients_max.div_ceil(reactors as u32);
    }
    pools
}

fn reactor_pool(
    pool: &Pool,
    process: &Process,
    identities: &Identities,
    shared: bool,
) -> Result<reactor::Pool, String> {
    let user_timeout = match pool.tcp_user_timeout_ms {
        0 => None,
        ms => Some(Duration::from_millis(u64::from(ms))),
    };
    Ok(reactor::Pool {
        name: pool.name.as_str().into(),
        proxy: proxy_settings(pool, process)?,
        identity: identities.of(pool, process),
        shared,
        connect: ConnectOptions { user_timeout },
    })
}

fn proxy_settings(pool: &Pool, process: &Process) -> Result<crate::proxy::Settings, String> {
    Ok(crate::proxy::Settings {
        node_user: pool.node_user.as_deref().map(Into::into),
        node_password: pool.node_password.clone(),
        clients_max: process.maxclients,
        client_requests_max: pool.client_requests_max,
        client_output_soft: pool.client_output_soft as usize,
        client_output_limit: pool.client_output_limit as usize,
        pubsub_output_limit: pool.pubsub_output_limit as usize,
        client_query_limit: pool.client_query_limit as usize,
        client_bulk_limit: pool.client_bulk_limit,
        client_idle_ms: u64::from(pool.client_idle_timeout_s) * 1000,
        request_timeout_ms: pool.request_timeout_ms,
        connect_timeout_ms: pool.connect_timeout_ms,
        address_map: address_map(pool)?,
        redirects_max: pool.redirects_max,
        split_reads: pool.split_reads,
        split_writes: pool.split_writes,
        allow_keys: pool.allow_keys,
        allow_config: pool.allow_config,
        allow_flush: pool.allow_flush,
        keys_max_bytes: pool.keys_max_bytes as usize,
        slowlog_log_slower_than: pool.slowlog_log_slower_than,
        slowlog_max_len: pool.slowlog_max_len as usize,
        sample_keys: pool.sample_keys,
        fence_lanes: usize::from(pool.fence_lanes),
        private_backends_max: pool.private_backends_max as usize,
        databases_max: pool.databases_max,
        ..crate::proxy::Settings::default()
    })
}

fn topology_pool(pool: &Pool) -> Result<PoolSettings, String> {
    Ok(PoolSettings {
        name: pool.name.clone(),
        seeds: pool.nodes.clone(),
        user: pool.node_user.clone(),
        password: pool.node_password.clone(),
        address_map: address_map(pool)?,
        refresh_interval_ms: pool.refresh_interval_ms,
        connect_timeout_ms: pool.connect_timeout_ms,
        ..PoolSettings::default()
    })
}

fn address_map(pool: &Pool) -> Result<AddressMap, String> {
    let rules: Vec<(String, String)> =
        pool.address_map.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect();
    AddressMap::new(rules.iter().map(|(from, to)| (&**from, &**to)))
        .map_err(|error| format!("address_map: {error}"))
}

/// What the whole process says of itself.
struct Identities {
    run_id: [u8; 40],
    secret: [u8; 32],
    reactors: u32,
    started_unix_s: u64,
}

impl Identities {
    fn new(reactors: usize, unix_us: u64) -> Result<Identities, String> {
        let mut run_id = [0; 40];
        let mut bytes = [0; 52];
        fill_random(&mut bytes)?;
        for (digits, byte) in run_id.chunks_exact_mut(2).zip(bytes) {
            digits[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            digits[1] = b"0123456789abcdef"[usize::from(byte & 15)];
        }
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[20..]);
        let started_unix_s = unix_us / 1_000_000;
        Ok(Identities { run_id, secret, reactors: reactors as u32, started_unix_s })
    }

    fn of(&self, pool: &Pool, process: &Process) -> Arc<Identity> {
        let named = pool.users.iter().map(|user| User {
            name: user.name.as_str().into(),
            password: Some(user.password.reveal().into()),
        });
        let default = pool.password.iter().map(|password| User {
            name: "default".into(),
            password: Some(password.reveal().into()),
        });
        Arc::new(Identity {
            version_announced: pool.announce_version.as_str().into(),
            run_id: self.run_id,
            users: default.chain(named).collect(),
            ignore_select: pool.ignore_select,
            slowlog_log_slower_than: pool.slowlog_log_slower_than,
            slowlog_max_len: pool.slowlog_max_len,
            admin_user: pool.admin_user.as_deref().map(Into::into),
            maxclients: process.maxclients,
            listen_port: pool.listen.first().map_or(0, SocketAddr::port),
            announce: pool.announce.clone(),
            started_unix_s: self.started_unix_s,
            process_id: std::process::id(),
            reactors: self.reactors,
            idle_timeout_s: pool.client_idle_timeout_s,
            os: os().into(),
            executable: executable().into(),
            config_file: "".into(),
            options: crate::config::shown(process, pool),
            secret: self.secret,
        })
    }
}

fn random_words() -> Result<[u64; 4], String> {
    let mut words = [0; 4];
    for word in &mut words {
        let mut bytes = [0; 8];
        fill_random(&mut bytes)?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}

/// From the system: what comes of it must not be guessable.
fn fill_random(bytes: &mut [u8]) -> Result<(), String> {
    use std::io::Read;
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(bytes))
        .map_err(|error| format!("cannot read /dev/urandom: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_process_gives_no_id_again_although_its_elder_has_counted_anew() {
        let board = metrics::board(3);
        assert_eq!(next_client_ids(&board, 7, 2), 7 + 2 * IDS_SPARE, "nobody has come yet");
        for (shown, id) in board.iter().zip([9_000_001, 9_000_004]) {
            shown.show_next_client_id(id);
            // All counters are zero, as after CONFIG RESETSTAT.
            Counters::default().publish(shown);
        }
        assert_eq!(next_client_ids(&board, 7, 2), 9_000_004 + 2 * IDS_SPARE);
        // A base above what is shown: a process that has just taken over, and shown nothing.
        assert_eq!(next_client_ids(&board, 10_000_000, 2), 10_000_000 + 2 * IDS_SPARE);
    }
}
