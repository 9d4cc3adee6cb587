//! The life of the process: it takes over from the one before, serves, changes its settings, is
//! taken over from or told to end. The main thread's work.
//!
//! Not here: what the threads do (`serve` starts them), reading the configuration (`main` says
//! how).
//!
//! A service manager (sd_notify(3)) is told at the end of `begin` (READY; MAINPID by who has taken
//! over), around `reload` (RELOADING, READY), at `drain` (STOPPING), and once a second. One that is
//! taken over by a process of the same service falls silent: STOPPING would end them both.

mod steps;

use std::path::Path;
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use crate::config::{self, Config, LogLevel, Problems};
use crate::handover::{self, Door, Knock, Offer, TakenOver};
use crate::limits::HANDOVER_READY_MS;
use crate::log::{Level, Log};
use crate::notify::{self, Notifier};
use crate::ring::signals::{Signal, Signals};
use crate::ring::{self, Inherited};
use crate::serve::{Before, Threads};
use crate::{check, log, watchdog};
use steps::Steps;

/// How often the main thread looks whether the others still live.
const LOOK_EVERY: Duration = Duration::from_millis(watchdog::LOOK_EVERY_MS);
const LOOKS_PER_SECOND: u32 = 10;

/// The same while another process waits for us, or we for the map.
const LOOK_SOON: Duration = Duration::from_millis(10);

/// Signals that come so soon after the first say the same. Microseconds.
const SAME_WISH_US: u64 = 200_000;

/// Longer than any drain: clients of the process before may come until it ends.
const CLIENTS_PATIENCE: Duration = Duration::from_secs(2 * 3600);

const FAILED: u8 = 1;

/// Reads all sources of the configuration again.
pub type Sources<'a> = &'a dyn Fn() -> Result<Config, Problems>;

/// Serves until a signal ends it, or another process has taken over.
pub fn run(config: Config, sources: Sources) -> ExitCode {
    ring::return_freed_memory();
    // Before anything else is opened: they have numbers, and no owner yet.
    let managed = ring::passed_at_start(|name| std::env::var(name).ok());
    // Before any thread, so that all inherit the mask.
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot block signals: {error}")),
    };
    let (mut log, writer) = match log::start(level(config.process.log_level)) {
        Ok(started) => started,
        Err(error) => return fail(&format!("cannot start the log: {error}")),
    };
    tell_warnings(&config, &mut log);
    let managed = managed.and_then(|all| {
        all.into_iter().map(|(fd, name)| Ok((Inherited::new(fd)?, name))).collect()
    });
    let code = match managed {
        Ok(managed) => match begin(config, managed, (&signals, &mut log), sources) {
            Ok(life) => life.live(&signals, &mut log),
            Err(End::Failed(text)) => fail(&text),
            Err(End::Told) => ExitCode::SUCCESS,
        },
        Err(error) => fail(&format!(
            "the service manager (LISTEN_FDS) has passed what is no listener: {error}"
        )),
    };
    drop(log);
    writer.finish(Duration::from_secs(1));
    code
}

/// Why there is nothing to live on.
enum End {
    Failed(String),
    /// A signal, before anything was served.
    Told,
}

struct Life<'a> {
    config: Config,
    sources: Sources<'a>,
    threads: Threads,
    door: Option<Door>,
    ending: Option<Ending>,
    manager: Notifier,
    /// Of the takeover, until that is over.
    steps: Option<Steps>,
    /// Another process prepares to take over.
    visited: bool,
}

/// The process is on its way out.
struct Ending {
    patience: Duration,
    /// When a signal last said so.
    told_us: Option<u64>,
    /// Gives clients to the next process.
    giving: Option<JoinHandle<()>>,
    /// Whether the threads have ended well.
    ended: Option<bool>,
}

/// Up to where clients are served here.
fn begin<'a>(
    mut config: Config,
    managed: Vec<(Inherited, Option<String>)>,
    (signals, log): (&Signals, &mut Log),
    sources: Sources<'a>,
) -> Result<Life<'a>, End> {
    fit_descriptors(&mut config, log);
    let begun_us = unix_us();
    let path = config.process.handover_socket.clone();
    let mut offer = match &path {
        Some(path) => handover::ask(path).map_err(End::Failed)?,
        None => None,
    };
    let mut before = Before { managed, ..Before::default() };
    if let Some(offer) = &mut offer {
        let fields = [("process", &offer.pid as _), ("sockets", &offer.listeners.len() as _)];
        log.info(unix_us(), "preparing to take over", &fields);
        before.inherited = std::mem::take(&mut offer.listeners);
        before.client_ids = offer.next_client_id;
        before.serves = true;
    }
    let offered_us = unix_us();
    let mut threads =
        Threads::start(&config, log, unix_us(), before).map_err(|text| match &offer {
            Some(offer) => End::Failed(format!("{text}; process {} stays in charge", offer.pid)),
            None => End::Failed(text),
        })?;
    let listeners = threads.take_listeners();
    let took_over = offer.is_some();
    let mut steps = None;
    if let Some(offer) = offer {
        let mut course = Steps::new(offer.pid, [begun_us, offered_us, unix_us()]);
        wait_for_map(&mut threads, &offer, signals, log)?;
        course.taken_over(unix_us(), threads.listen(true));
        take_over(offer, &config, &threads, log);
        steps = Some(course);
    } else {
        threads.listen(false);
    }
    let door = path.and_then(|path| open_door(&path, listeners, &threads, log));
    let manager = Notifier::new(std::env::var_os("NOTIFY_SOCKET").as_deref());
    let status = if took_over { "in the place of the process before" } else { "accepting clients" };
    manager.ready(took_over, status);
    Ok(Life { config, sources, threads, door, ending: None, manager, steps, visited: false })
}

/// Raises the limit of descriptors, and lowers what would not fit into it.
fn fit_descriptors(config: &mut Config, log: &mut Log) {
    let limit = match ring::raise_descriptor_limit() {
        Ok((_, limit)) => limit,
        Err(error) => {
            return log.warn(unix_us(), "descriptor limit not raised", &[("error", &error)]);
        }
    };
    let Some(room) = check::room_within(limit, config) else { return };
    let wanted = check::descriptors_wanted(config);
    let asked = config.process.maxclients;
    config.process.maxclients = room.clients.min(asked);
    for pool in &mut config.pools {
        pool.private_backends_max = pool.private_backends_max.min(room.private);
    }
    let text = "the limit on open files is too low, maxclients is lowered";
    let now = ("maxclients", &config.process.maxclients as _);
    log.warn(unix_us(), text, &[("limit", &limit), ("wanted", &wanted), ("asked", &asked), now]);
}

/// Who cannot serve does not take over.
fn wait_for_map(
    threads: &mut Threads,
    offer: &Offer,
    signals: &Signals,
    log: &mut Log,
) -> Result<(), End> {
    let mut left = Duration::from_millis(HANDOVER_READY_MS);
    while !threads.ready() {
        match signals.wait(LOOK_SOON) {
            Ok(Some(Signal::Terminate | Signal::Interrupt)) => return Err(End::Told),
            Ok(_) => (),
            Err(error) => return Err(End::Failed(format!("cannot wait for signals: {error}"))),
        }
        log.handle_time(unix_us());
        left = left.saturating_sub(LOOK_SOON);
        if left.is_zero() || threads.ended().is_some() {
            return Err(End::Failed(format!(
                "no slot map of every pool within {} s (the log says why); process {} stays in \
                 charge",
                HANDOVER_READY_MS / 1_000,
                offer.pid
            )));
        }
    }
    Ok(())
}

/// We are in charge from now on. The clients come one by one, and the threads take them.
fn take_over(offer: Offer, config: &Config, threads: &Threads, log: &mut Log) {
    let pid = offer.pid;
    let clients = offer.take_over(config.pools.iter().map(|pool| pool.name.as_str()));
    let mut clients = match clients {
        Ok(clients) => clients,
        Err(error) => {
            // Its sockets are ours all the same.
            let fields = [("process", &pid as _), ("error", &error as _)];
            log.warn(unix_us(), "the process before has ended by itself", &fields);
            let _ = threads.adopter()(None);
            return;
        }
    };
    log.info(unix_us(), "taken over", &[("process", &pid)]);
    let (mut adopt, mut log) = (threads.adopter(), log.for_part("handover"));
    let receive = move || {
        let mut count = 0_u64;
        let _ = clients.set_patience(CLIENTS_PATIENCE);
        loop {
            match clients.receive() {
                Ok(Some(client)) => match adopt(Some(client)) {
                    Ok(()) => count += 1,
                    Err(why) => {
                        let text = "a client of the process before was not taken";
                        log.error(unix_us(), text, &[("why", &why)]);
                    }
                },
                Ok(None) => {
                    let _ = adopt(None);
                    return log.info(unix_us(), "all clients have come", &[("clients", &count)]);
                }
                Err(error) => {
                    let _ = adopt(None);
                    let text = "the process before ended before all clients had come";
                    let fields = [("clients", &count as _), ("error", &error as _)];
                    return log.error(unix_us(), text, &fields);
                }
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("handover".into()).spawn(receive) {
        say(&format!("cannot start a thread for the clients of the process before: {error}"));
        let _ = threads.adopter()(None);
    }
}

/// Without it we serve all the same.
fn open_door(
    path: &Path,
    listeners: Vec<Inherited>,
    threads: &Threads,
    log: &mut Log,
) -> Option<Door> {
    match Door::open(path, listeners, threads.id_source()) {
        Ok(door) => Some(door),
        Err(error) => {
            log.error(unix_us(), "nobody can take over from this process", &[("why", &error)]);
            None
        }
    }
}

impl Life<'_> {
    /// Signals, other processes, and a look at whether the threads still live.
    fn live(mut self, signals: &Signals, log: &mut Log) -> ExitCode {
        let mut looks = 0_u32;
        let mut waited = Duration::ZERO;
        loop {
            if let Some(code) = self.has_ended() {
                return code;
            }
            let pause = self.pause();
            match signals.wait(pause) {
                Ok(Some(Signal::Terminate | Signal::Interrupt)) => {
                    if !self.handle_end_signal(log) {
                        return ExitCode::from(FAILED);
                    }
                }
                Ok(Some(Signal::Hangup)) => self.reload(log),
                Ok(None) if waited + pause < LOOK_EVERY => waited += pause,
                Ok(None) => {
                    waited = Duration::ZERO;
                    if !self.look(log) {
                        return ExitCode::from(FAILED);
                    }
                    looks = looks.wrapping_add(1);
                    if looks % LOOKS_PER_SECOND == 0 {
                        log.handle_time(unix_us());
                        self.threads.publish_process();
                        self.manager.alive(&self.threads.readiness().get().to_string());
                    }
                }
                Err(error) => return fail(&format!("cannot wait for signals: {error}")),
            }
            self.handle_wishes(log);
            self.handle_knocks(log);
            if self.steps.as_mut().is_some_and(|steps| steps.tell(log, unix_us())) {
                self.steps = None;
            }
        }
    }

    /// How long the main thread sleeps: seldom something waits for it.
    fn pause(&self) -> Duration {
        let gives = self.ending.as_ref().is_some_and(|ending| ending.giving.is_some());
        if self.visited || gives { LOOK_SOON } else { LOOK_EVERY }
    }

    /// The threads have, and all clients are given away.
    fn has_ended(&mut self) -> Option<ExitCode> {
        let known = self.ending.as_ref().and_then(|ending| ending.ended);
        let well = match known {
            Some(well) => well,
            None => self.threads.ended()?,
        };
        if let Some(ending) = &mut self.ending {
            ending.ended = Some(well);
            if ending.giving.as_ref().is_some_and(|giving| !giving.is_finished()) {
                return None;
            }
        }
        Some(if well { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
    }

    /// `false`: end at once.
    fn handle_end_signal(&mut self, log: &mut Log) -> bool {
        let now = unix_us();
        match &mut self.ending {
            None => self.drain(log),
            Some(ending) => match ending.told_us {
                // timeout(1) and shells signal the process and then its group: that is one wish.
                Some(told) if now.saturating_sub(told) < SAME_WISH_US => (),
                Some(_) => {
                    log.warn(now, "second signal, stopping at once", &[]);
                    return false;
                }
                None => {
                    ending.told_us = Some(now);
                    log.info(now, "ending already, another process has taken over", &[]);
                }
            },
        }
        true
    }

    fn drain(&mut self, log: &mut Log) {
        log.info(unix_us(), "draining", &[]);
        self.manager.stopping("draining");
        if let Some(door) = &self.door {
            door.shut();
        }
        let patience = self.threads.drain();
        let told_us = Some(unix_us());
        self.ending = Some(Ending { patience, told_us, giving: None, ended: None });
    }

    /// `false`: a thread is stuck.
    fn look(&mut self, log: &mut Log) -> bool {
        let now_us = ring::monotonic_us();
        let Some(ending) = &mut self.ending else {
            return self.threads.turn(log, unix_us(), now_us);
        };
        if ending.patience.is_zero() {
            log.error(unix_us(), "a thread is stuck, stopping at once", &[]);
            return false;
        }
        ending.patience = ending.patience.saturating_sub(LOOK_EVERY);
        ending.ended.is_some() || self.threads.turn(log, unix_us(), now_us)
    }

    fn handle_knocks(&mut self, log: &mut Log) {
        let knocks: Vec<Knock> = self.door.iter().flat_map(|door| door.knocks.try_iter()).collect();
        for knock in knocks {
            self.visited = matches!(knock, Knock::Came);
            match knock {
                Knock::Came => (),
                Knock::TakenOver(taken) => self.be_taken_over(taken, log),
                Knock::Left { pid, why } => {
                    let text = "another process has not taken over, this one goes on";
                    log.warn(unix_us(), text, &[("process", &pid), ("why", &why)]);
                }
            }
        }
    }

    fn be_taken_over(&mut self, taken: TakenOver, log: &mut Log) {
        log.info(unix_us(), "another process has taken over", &[("process", &taken.pid)]);
        let cgroups = |name: &str| std::fs::read_to_string(format!("/proc/{name}/cgroup")).ok();
        if !notify::same_service(taken.pid, cgroups) {
            self.manager.stopping("another service has taken over");
        }
        self.manager.fall_silent();
        if let Some(door) = &self.door {
            door.shut();
        }
        let (send, receive) = unbounded();
        let patience = self.threads.hand_over(&taken, &send);
        drop(send);
        let giving = give(taken, receive, log.for_part("handover"));
        let told_us = self.ending.as_ref().and_then(|ending| ending.told_us);
        self.ending = Some(Ending { patience, told_us, giving, ended: None });
    }

    // --- settings ---------------------------------------------------------------------------

    /// The service manager hears of it, also that nothing came of it.
    fn reload(&mut self, log: &mut Log) {
        self.manager.reloading(ring::monotonic_us());
        let done = self.read_again(log);
        self.manager.reloaded(done.err().unwrap_or("configuration read again"));
    }

    fn read_again(&mut self, log: &mut Log) -> Result<(), &'static str> {
        let new = (self.sources)().map_err(|Problems(problems)| {
            let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let fields = [("count", &all.len() as _), ("mistakes", &all.join("; ") as _)];
            let text = "mistakes in the configuration: the old one stays in force";
            log.error(unix_us(), text, &fields);
            text
        })?;
        tell_warnings(&new, log);
        let (holds, restart) = config::reload(&self.config, new);
        self.apply(holds, log).map_err(|why| {
            let text = "the configuration cannot be used: the old one stays in force";
            log.error(unix_us(), text, &[("why", &why)]);
            text
        })?;
        log.info(unix_us(), "configuration read again", &[]);
        if !restart.is_empty() {
            let what = restart.join(", ");
            log.warn(unix_us(), "changes that need a restart", &[("what", &what)]);
        }
        Ok(())
    }

    fn apply(&mut self, mut config: Config, log: &mut Log) -> Result<(), String> {
        fit_descriptors(&mut config, log);
        let level = level(config.process.log_level);
        self.threads.configure(&config, level)?;
        log.set_level(level);
        self.config = config;
        Ok(())
    }

    /// CONFIG SET of clients who may.
    fn handle_wishes(&mut self, log: &mut Log) {
        while let Some(wish) = self.threads.next_wish() {
            let changed = config::change(&self.config, usize::from(wish.pool), &wish.pairs);
            let changed = changed.map_err(|refusal| (refusal.option, refusal.why));
            let done = changed.and_then(|config| {
                self.apply(config, log).map_err(|why| (wish.pairs[0].0.clone(), why))
            });
            if done.is_ok() {
                let names: Vec<&str> = wish.pairs.iter().map(|(name, _)| name.as_str()).collect();
                let fields = [("options", &names.join(",") as _)];
                log.info(unix_us(), "configuration changed by a client", &fields);
            }
            self.threads.answer_wish(&wish, done.err());
        }
    }
}

/// Gives clients to the process that has taken over, as the threads let go of them.
fn give(
    taken: TakenOver,
    clients: Receiver<handover::Client>,
    mut log: Log,
) -> Option<JoinHandle<()>> {
    let TakenOver { heir, pid, .. } = taken;
    let work = move || {
        let (count, failed) = heir.give(&clients);
        let (process, count) = (("process", &pid as _), ("clients", &count as _));
        match failed {
            None => log.info(unix_us(), "clients handed over", &[process, count]),
            Some(error) => {
                let text = "the process that took over has died: clients are lost";
                let fields = [process, count, ("error", &error as _)];
                log.error(unix_us(), text, &fields);
            }
        }
    };
    match std::thread::Builder::new().name("handover".into()).spawn(work) {
        Ok(thread) => Some(thread),
        Err(error) => {
            say(&format!("cannot start a thread to hand clients over: {error}"));
            None
        }
    }
}

fn tell_warnings(config: &Config, log: &mut Log) {
    for warning in &config.warnings {
        log.warn(unix_us(), "configuration", &[("warning", warning)]);
    }
}

/// For what ends the start: said plainly, also where nobody collects logs.
fn fail(text: &str) -> ExitCode {
    say(text);
    ExitCode::from(FAILED)
}

/// To stderr; where that is closed or full there is nobody to tell, and `eprintln` would panic.
fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "ringway: {text}");
}

fn level(level: LogLevel) -> Level {
    match level {
        LogLevel::Error => Level::Error,
        LogLevel::Warn => Level::Warn,
        LogLevel::Info => Level::Info,
        LogLevel::Debug => Level::Debug,
    }
}

/// For log lines only. Reactors and the topology thread have clocks of their own.
#[allow(clippy::disallowed_methods, reason = "the main thread has no turn that could tell it")]
fn unix_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
