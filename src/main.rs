//! The program: arguments to configuration, configuration to threads, signals to an exit code.
//!
//! Not here: what the threads do (`reactor`, `topology`), the options (`config`).
//!
//! Exit codes: 0 done, 1 failed while starting or running (or host not ready), 2 wrong usage.

use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ringway::config::{self, Config, Invocation, LogLevel};
use ringway::limits::CONFIG_BYTES_MAX;
use ringway::log::{self, Level, Log};
use ringway::notify::Notifier;
use ringway::ring::signals::{Signal, Signals};
use ringway::serve::Threads;
use ringway::{check, ring, top, watchdog};

/// How often the main thread looks whether the others still live.
const LOOK_EVERY: Duration = Duration::from_millis(watchdog::LOOK_EVERY_MS);
const LOOKS_PER_SECOND: u32 = 10;

/// Signals that come so soon after the first say the same. Microseconds.
const SAME_WISH_US: u64 = 200_000;

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Counted, for `memory_limit`.
#[global_allocator]
static ALLOCATOR: ring::Counted = ring::Counted;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    let invocation = config::load(arguments, std::env::vars_os(), &read_file);
    match invocation {
        Ok(Invocation::Help) => print(&config::help()),
        Ok(Invocation::Version) => print(&format!("ringway {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(Invocation::Check(config)) => {
            for warning in &config.warnings {
                say(warning);
            }
            let (report, ready) = check::report(&check::check(&config));
            print(&report);
            if ready { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
        }
        Ok(Invocation::Top(config)) => match config.process.admin_listen.0 {
            Some(address) => match top::run(address) {
                Ok(()) => ExitCode::SUCCESS,
                Err(text) => fail(&text),
            },
            None => fail("admin_listen is off: there is nothing to look at"),
        },
        Ok(Invocation::Run(config)) => run(config),
        Err(problems) => {
            say(&problems.to_string());
            ExitCode::from(USAGE)
        }
    }
}

/// Reads no more than a configuration may have: the file may be one that never ends.
fn read_file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(config::too_long());
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// To stdout; whoever closed it (`| head`) does not want the rest.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Serves until a signal ends it.
fn run(mut config: Config) -> ExitCode {
    ring::return_freed_memory();
    // Before any thread, so that all inherit the mask.
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot block signals: {error}")),
    };
    let (mut log, writer) = match log::start(level(config.process.log_level)) {
        Ok(started) => started,
        Err(error) => return fail(&format!("cannot start the log: {error}")),
    };
    for warning in &config.warnings {
        log.warn(unix_us(), "configuration", &[("warning", warning)]);
    }
    fit_descriptors(&mut config, &mut log);
    let code = match Threads::start(&config, &log, unix_us()) {
        Ok(mut threads) => {
            let manager = Notifier::new(std::env::var_os("NOTIFY_SOCKET").as_deref());
            manager.ready();
            wait(&signals, &mut threads, &mut log, &manager)
        }
        Err(text) => fail(&text),
    };
    drop(log);
    writer.finish(Duration::from_secs(1));
    code
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

/// The main thread's only work: signals, and a look at whether the threads still live.
fn wait(signals: &Signals, threads: &mut Threads, log: &mut Log, manager: &Notifier) -> ExitCode {
    let mut draining = false;
    let mut drain_us = 0;
    let mut patience = Duration::MAX;
    let mut looks = 0_u32;
    loop {
        if let Some(well) = threads.ended() {
            return if well { ExitCode::SUCCESS } else { ExitCode::from(FAILED) };
        }
        match signals.wait(LOOK_EVERY) {
            // timeout(1) and shells signal the process and then its group: that is one wish.
            Ok(Some(Signal::Terminate | Signal::Interrupt))
                if draining && unix_us().saturating_sub(drain_us) < SAME_WISH_US => {}
            Ok(Some(Signal::Terminate | Signal::Interrupt)) if draining => {
                log.warn(unix_us(), "second signal, stopping at once", &[]);
                return ExitCode::from(FAILED);
            }
            Ok(Some(Signal::Terminate | Signal::Interrupt)) => {
                log.info(unix_us(), "draining", &[]);
                manager.stopping();
                patience = threads.drain();
                draining = true;
                drain_us = unix_us();
            }
            Ok(Some(Signal::Hangup)) => {
                log.warn(unix_us(), "reload is not supported yet, nothing was changed", &[]);
            }
            Ok(None) if draining && patience.is_zero() => {
                log.error(unix_us(), "a thread is stuck, stopping at once", &[]);
                return ExitCode::from(FAILED);
            }
            Ok(None) => {
                if !threads.turn(log, unix_us()) {
                    return ExitCode::from(FAILED);
                }
                patience = patience.saturating_sub(LOOK_EVERY);
                looks = looks.wrapping_add(1);
                if looks % LOOKS_PER_SECOND == 0 {
                    log.handle_time(unix_us());
                    threads.publish_process();
                    manager.alive();
                }
            }
            Err(error) => return fail(&format!("cannot wait for signals: {error}")),
        }
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
