//! Clients that write and read their own keys for as long as a test misbehaves, and tell what they
//! saw.
//!
//! Not here: what may go wrong. The test decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::client::Client;
use crate::support::millis;

pub struct Load {
    end: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Outcome>>,
}

/// What one client saw, or all of them together.
#[derive(Default)]
pub struct Outcome {
    /// Good answers.
    pub done: u64,
    /// When, on which key, what.
    pub errors: Vec<(Instant, String, String)>,
    /// Values of somebody else, or older than the one that was acknowledged.
    pub wrong: Vec<String>,
    pub slowest: Duration,
}

impl Load {
    /// One client for each key: SET key value, GET key, over and over. Values carry their key and a
    /// number.
    pub fn start(port: u16, keys: &[String]) -> Load {
        let end = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let start = |key: &String| {
            let (key, end, done) = (key.clone(), Arc::clone(&end), Arc::clone(&done));
            std::thread::spawn(move || run(port, &key, &end, &done))
        };
        Load { threads: keys.iter().map(start).collect(), end, done }
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until so many more commands were answered well.
    #[track_caller]
    pub fn wait_more(&self, count: u64) {
        let wanted = self.done() + count;
        crate::support::wait_until(Duration::from_secs(20), "the load to go on", || {
            self.done() >= wanted
        });
    }

    pub fn finish(self) -> Outcome {
        self.end.store(true, Ordering::Relaxed);
        let mut all = Outcome::default();
        for thread in self.threads {
            let one = thread.join().expect("a client of the load");
            all.done += one.done;
            all.errors.extend(one.errors);
            all.wrong.extend(one.wrong);
            all.slowest = all.slowest.max(one.slowest);
        }
        all.errors.sort();
        all
    }
}

fn run(port: u16, key: &str, end: &AtomicBool, done: &AtomicU64) -> Outcome {
    let mut outcome = Outcome::default();
    let mut client = Client::try_connect(port).ok();
    let mut number = 0_u64;
    let mut acknowledged: Option<u64> = None;
    while !end.load(Ordering::Relaxed) {
        number += 1;
        let value = format!("{key}={number}");
        let written = ask(&mut client, port, &["SET", key, &value], &mut outcome, key);
        acknowledged = written.is_some().then_some(number);
        let Some(got) = ask(&mut client, port, &["GET", key], &mut outcome, key) else { continue };
        done.fetch_add(2, Ordering::Relaxed);
        let foreign = !got.is_empty() && !got.starts_with(&format!("{key}="));
        let old = acknowledged.is_some() && got != value;
        if foreign || old {
            outcome.wrong.push(format!("{key}: wrote {value:?}, read {got:?}"));
        }
    }
    let _ = acknowledged;
    outcome
}

/// The text of a good answer; errors are noted, broken connections replaced.
fn ask(
    client: &mut Option<Client>,
    port: u16,
    args: &[&str],
    outcome: &mut Outcome,
    key: &str,
) -> Option<String> {
    let start = Instant::now();
    let result = match client {
        Some(open) => open.try_call(args).map_err(|error| format!("connection: {error}")),
        None => Err("cannot connect".to_owned()),
    };
    outcome.slowest = outcome.slowest.max(start.elapsed());
    match result {
        Ok(reply) if !reply.is_error() => {
            outcome.done += 1;
            Some(reply.string())
        }
        Ok(reply) => {
            outcome.errors.push((start, key.to_owned(), reply.text()));
            std::thread::sleep(millis(2));
            None
        }
        Err(error) => {
            outcome.errors.push((start, key.to_owned(), error));
            std::thread::sleep(millis(20));
            *client = Client::try_connect(port).ok();
            None
        }
    }
}

/// Latencies of a GET, one at a time, for a while; sorted.
pub fn latencies(port: u16, key: &str, time: Duration) -> Vec<Duration> {
    let mut client = Client::connect(port);
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < time {
        let before = Instant::now();
        let reply = client.run(&format!("GET {key}"));
        assert!(!reply.is_error(), "GET {key} answered {}", reply.text());
        times.push(before.elapsed());
    }
    times.sort();
    times
}

/// The value below which 99 of 100 lie.
pub fn p99(sorted: &[Duration]) -> Duration {
    sorted[(sorted.len() * 99 / 100).min(sorted.len() - 1)]
}
