//! Many writers at once, each on a thread of its own, ended and added up together.
//!
//! Not here: what one of them does (`writer`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::link::PATIENCE;
use crate::plan::Mix;
use crate::reader::Reader;
use crate::support::client::Client;
use crate::support::{millis, seconds, wait_until};
use crate::tally::Tally;
use crate::writer::Writer;

/// What all writers see.
pub struct Shared {
    pub port: u16,
    pub seed: u64,
    pub began: Instant,
    pub end: AtomicBool,
    /// Nobody asks for more until this ends; and how many have had all their answers.
    held: AtomicBool,
    resting: AtomicUsize,
    /// Replies judged good so far, of all.
    pub verified: AtomicU64,
    /// Until when (`now_ms`) the cluster may lose acknowledged writes.
    pub lossy_until: AtomicU64,
    /// The last number that each writer has used.
    pub numbers: Vec<AtomicU32>,
}

impl Shared {
    pub fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// One that has had all its answers waits until the crowd goes on.
    pub fn rest(&self) {
        self.resting.fetch_add(1, Ordering::Relaxed);
        while self.is_held() && !self.end.load(Ordering::Relaxed) {
            std::thread::sleep(millis(5));
        }
        self.resting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a writer behaves.
#[derive(Copy, Clone, Debug)]
pub struct Style {
    /// Requests in flight.
    pub depth: usize,
    pub resp3: bool,
    pub large: bool,
    pub mix: Mix,
    pub pause: Duration,
}

impl Style {
    pub const PLAIN: Style =
        Style { depth: 256, resp3: false, large: false, mix: Mix::USUAL, pause: Duration::ZERO };
}

/// Deep pipelines, which bring the numbers; and clients of every other kind.
pub fn usual_styles(deep: usize) -> Vec<Style> {
    let mut styles = vec![Style::PLAIN; deep];
    for (i, style) in styles.iter_mut().enumerate() {
        style.resp3 = i % 2 == 1;
    }
    styles.push(Style { depth: 1, ..Style::PLAIN });
    styles.push(Style { depth: 1, resp3: true, ..Style::PLAIN });
    styles.push(Style { depth: 16, large: true, ..Style::PLAIN });
    styles.push(Style { depth: 64, large: true, resp3: true, ..Style::PLAIN });
    styles.push(Style { depth: 2_000, ..Style::PLAIN });
    styles
}

pub struct Crowd {
    pub shared: Arc<Shared>,
    threads: Vec<JoinHandle<Tally>>,
}

impl Crowd {
    /// On a cluster that it empties first: what an earlier crowd wrote is not of this one.
    #[track_caller]
    pub fn start(port: u16, seed: u64, styles: &[Style]) -> Crowd {
        Self::start_with(port, seed, styles, 0)
    }

    /// The same with some that only read what these write.
    #[track_caller]
    pub fn start_with(port: u16, seed: u64, styles: &[Style], readers: u64) -> Crowd {
        let mut client = Client::connect(port);
        // With a short time-out it may be late, and a FLUSHALL must not be.
        let mut size = None;
        wait_until(seconds(10), "the number of keys", || {
            let told = client.run("DBSIZE").text();
            size = told.parse::<u64>().ok();
            size.is_some()
        });
        if size != Some(0) {
            assert_eq!(client.run("FLUSHALL").text(), "OK");
        }
        let shared = Arc::new(Shared {
            port,
            seed,
            began: Instant::now(),
            end: AtomicBool::new(false),
            held: AtomicBool::new(false),
            resting: AtomicUsize::new(0),
            verified: AtomicU64::new(0),
            lossy_until: AtomicU64::new(0),
            numbers: styles.iter().map(|_| AtomicU32::new(0)).collect(),
        });
        let start = |(id, style): (u32, &Style)| {
            let writer = Writer::new(id, *style, Arc::clone(&shared));
            std::thread::spawn(move || writer.run())
        };
        let mut threads: Vec<_> = (0..).zip(styles).map(start).collect();
        threads.extend((1..=readers).map(|id| {
            let reader = Reader::new(id, Arc::clone(&shared));
            std::thread::spawn(move || reader.run())
        }));
        Crowd { threads, shared }
    }

    /// Replies judged good so far.
    pub fn verified(&self) -> u64 {
        self.shared.verified.load(Ordering::Relaxed)
    }

    /// All of them ask no more, and have been answered, while `work` is done.
    pub fn at_rest<T>(&self, work: impl FnOnce() -> T) -> T {
        self.shared.held.store(true, Ordering::Relaxed);
        wait_until(PATIENCE, "all to be answered", || {
            self.shared.resting.load(Ordering::Relaxed) == self.threads.len()
        });
        let done = work();
        self.shared.held.store(false, Ordering::Relaxed);
        done
    }

    /// From now until `calm` the cluster may lose what it has acknowledged.
    pub fn may_lose(&self) {
        self.shared.lossy_until.store(u64::MAX, Ordering::Relaxed);
    }

    /// What was acknowledged before now may be lost, what comes later may not.
    pub fn calm(&self) {
        let _ =
            self.shared.lossy_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
                (until == u64::MAX).then(|| self.shared.now_ms())
            });
    }

    pub fn finish(self, title: &str) -> Tally {
        self.shared.end.store(true, Ordering::Relaxed);
        let took = self.shared.began.elapsed();
        let mut all = Tally::default();
        for thread in self.threads {
            all.add(thread.join().expect("a writer"));
        }
        all.print(title, took);
        all
    }
}
