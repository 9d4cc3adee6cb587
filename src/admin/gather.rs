//! The thread that asks the reactors, once a second, for all their numbers.
//!
//! It waits for none of them for long: who does not answer is shown as it last was. Whoever reads
//! the endpoint gets the last picture and reaches no reactor.
//!
//! Not here: joining what they tell (`picture`), what is shown of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::bounded;

use super::live::History;
use super::picture::{Picture, Reactor, join};
use crate::metrics::{Board, Counter};
use crate::reactor::{Message, Peer, ReactorFacts};
use crate::ready::{Readiness, Reason, Shown};

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long a reactor may take to answer.
const PATIENCE: Duration = Duration::from_millis(200);

/// What the gatherer is told at its start.
pub struct Sources {
    pub peers: Vec<Peer>,
    /// The kernel's numbers of their threads.
    pub tids: Vec<u32>,
    pub started_unix_s: u64,
}

/// What the endpoint shows.
pub struct Shared {
    state: Mutex<State>,
    readiness: Shown,
    board: Board,
}

#[derive(Default)]
struct State {
    latest: Option<Arc<Picture>>,
    history: History,
}

impl Shared {
    pub fn new(readiness: Shown, board: Board) -> Shared {
        Shared { state: Mutex::default(), readiness, board }
    }

    pub fn readiness(&self) -> Readiness {
        self.readiness.get()
    }

    /// For each reactor whether it has turned within the last second, by now.
    pub fn turning(&self) -> Vec<bool> {
        self.board.iter().map(|shown| !shown.is_late()).collect()
    }

    /// `None`: nothing is known yet.
    pub fn latest(&self) -> Option<Arc<Picture>> {
        self.with(|state| state.latest.clone())
    }

    /// Works on what was seen lately. Nobody who holds this waits for anything.
    pub fn with_history<T>(&self, work: impl FnOnce(&History) -> T) -> T {
        self.with(|state| work(&state.history))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // What is in it is whole between any two statements.
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Gatherer {
    sources: Sources,
    shared: Arc<Shared>,
    /// As each last told.
    told: Vec<Option<ReactorFacts>>,
    start: Instant,
}

/// Asks until the process ends.
#[allow(clippy::disallowed_methods, reason = "this thread's own clock")]
pub fn run(sources: Sources, shared: Arc<Shared>) {
    let reactors = sources.peers.len();
    let mut gatherer =
        Gatherer { sources, shared, told: vec![None; reactors], start: Instant::now() };
    loop {
        gatherer.ask();
        gatherer.show();
        std::thread::sleep(ASK_EVERY);
    }
}

impl Gatherer {
    #[allow(clippy::disallowed_methods, reason = "this thread's own clock")]
    fn ask(&mut self) {
        let (to, answers) = bounded(self.told.len());
        let mut missing = 0;
        for peer in &self.sources.peers {
            missing += usize::from(peer.tell(Message::Facts { to: to.clone() }));
        }
        drop(to);
        let until = Instant::now() + PATIENCE;
        while missing > 0 {
            // The last copy of the sender is gone when nobody is left to answer.
            let Ok(facts) = answers.recv_deadline(until) else { break };
            let index = usize::from(facts.index);
            if let Some(place) = self.told.get_mut(index) {
                *place = Some(facts);
                missing -= 1;
            }
        }
    }

    #[allow(clippy::disallowed_methods, reason = "this thread's own clock")]
    fn show(&mut self) {
        let told: Vec<ReactorFacts> = self.told.iter().flatten().cloned().collect();
        if told.is_empty() {
            return;
        }
        let turning = self.shared.turning();
        let reactors = told.iter().map(|facts| {
            let index = usize::from(facts.index);
            Reactor {
                index: facts.index,
                values: facts.values.clone(),
                cpu_us: self.sources.tids.get(index).and_then(|&tid| cpu_us_of(tid)).unwrap_or(0),
                turns: turning.get(index).copied().unwrap_or(false),
            }
        });
        let process = self.shared.board.last().map(|shown| {
            Counter::ALL.iter().map(|&counter| shown.value(counter)).collect::<Vec<u64>>()
        });
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let picture = Picture {
            at_ms: self.start.elapsed().as_millis() as u64,
            unix_s: unix.as_secs(),
            started_unix_s: self.sources.started_unix_s,
            draining: self.shared.readiness() == Readiness::NotReady(Reason::Draining),
            reactors: reactors.collect(),
            process: process.unwrap_or_default(),
            pools: join(&told),
        };
        let picture = Arc::new(picture);
        self.shared.with(|state| {
            state.history.add(picture.clone());
            state.latest = Some(picture);
        });
    }
}

/// CPU time of a thread of ours, microseconds (proc(5): schedstat, nanoseconds come first).
pub fn cpu_us_of(tid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? / 1_000)
}
