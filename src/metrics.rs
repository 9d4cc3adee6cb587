//! Numbers of one reactor, published now and then, added up by whoever reads them.
//!
//! Not here: their text form (INFO in `proxy`, `/metrics` in `topology`), the clock, the choice of
//! what is counted when.
//!
//! A reactor owns plain `u64`s and stores them into its own `Published` with relaxed stores: no
//! read-modify-write, no line of the cache written by two threads.

mod times;

use std::array;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use hdrhistogram::Histogram;

use crate::limits::LATENCY_US_MAX;
pub use times::Times;

/// How a number behaves.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// A state; summed over reactors.
    Gauge,
}

macro_rules! counters {
    ($( $name:ident $text:literal $kind:ident $help:literal; )*) => {
        /// What is counted, once each.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $( #[doc = $help] $name, )* }

        impl Counter {
            pub const ALL: &'static [Counter] = &[ $( Counter::$name, )* ];

            /// In snake case, with the unit, without a prefix.
            pub fn name(self) -> &'static str {
                match self { $( Counter::$name => $text, )* }
            }

            pub fn kind(self) -> Kind {
                match self { $( Counter::$name => Kind::$kind, )* }
            }

            pub fn help(self) -> &'static str {
                match self { $( Counter::$name => $help, )* }
            }
        }
    };
}

counters! {
    ClientsConnected "clients_connected" Gauge "Clients now.";
    ClientsBlocked "clients_blocked" Gauge "Clients that wait in a blocking command.";
    ClientsTotal "clients_total" Counter "Clients accepted.";
    ClientsRejected "clients_rejected" Counter "Clients refused because of maxclients.";
    ClientsClosedByLimit "clients_closed_by_limit" Counter "Clients closed over a limit of theirs.";
    ClientsSlowed "clients_slowed" Counter "Times that a client was not read because memory was short.";
    ClientsClosedForMemory "clients_closed_for_memory" Counter "Clients closed because memory was short.";
    ClientsGiven "clients_given" Counter "Clients given to the next process.";
    ClientsTaken "clients_taken" Counter "Clients taken from the process before.";
    PoolsReady "pools_ready" Gauge "Pools whose slot map is known, of each reactor.";
    ClientBytesIn "client_bytes_in" Counter "Bytes read from clients.";
    ClientBytesOut "client_bytes_out" Counter "Bytes sent to clients.";
    BackendsConnected "backends_connected" Gauge "Connections to nodes now.";
    BackendsPrivate "backends_private" Gauge "Connections that single clients have for themselves.";
    BackendsTotal "backends_total" Counter "Connections to nodes made.";
    BackendsLost "backends_lost" Counter "Connections to nodes that failed or ended unasked.";
    BackendBytesIn "backend_bytes_in" Counter "Bytes read from nodes.";
    BackendBytesOut "backend_bytes_out" Counter "Bytes sent to nodes.";
    RequestsInFlight "requests_in_flight" Gauge "Requests without an answer yet.";
    Commands "commands" Counter "Commands of clients, local ones included.";
    CommandsLocal "commands_local" Counter "Commands answered here.";
    Splits "splits" Counter "Requests cut by slot.";
    RedirectsMoved "redirects_moved" Counter "MOVED followed.";
    RedirectsAsk "redirects_ask" Counter "ASK followed.";
    RetriesTryAgain "retries_tryagain" Counter "Requests sent again after TRYAGAIN.";
    RetriesOther "retries_other" Counter "The same for another reason: a node that loads or is down, a read whose connection broke.";
    FenceBreaches "fence_breaches" Counter "Scripts that made a node send other frames than one.";
    ErrorsProtocol "errors_protocol" Counter "Clients that broke the protocol.";
    ErrorsTimeout "errors_timeout" Counter "Requests answered with a time-out.";
    ErrorsLost "errors_lost" Counter "Requests answered with a lost connection.";
    ErrorsReplied "errors_replied" Counter "Error replies, of nodes and ours.";
    ErrorsCrossSlot "errors_crossslot" Counter "Requests answered with CROSSSLOT.";
    ErrorsNodeProtocol "errors_node_protocol" Counter "Nodes that sent what nobody asked for.";
    Messages "messages" Counter "Messages given to subscribers.";
    PubsubClients "pubsub_clients" Gauge "Clients with subscriptions.";
    PubsubChannels "pubsub_channels" Gauge "Channels that a reactor is subscribed to.";
    PubsubPatterns "pubsub_patterns" Gauge "Patterns that a reactor is subscribed to.";
    PubsubShardChannels "pubsub_shard_channels" Gauge "The same for shard channels.";
    SendsToClients "sends_to_clients" Counter "Sends to clients.";
    SendsToNodes "sends_to_nodes" Counter "Sends to nodes.";
    SlotsMissing "slots_missing" Gauge "Slots that nobody serves, as each reactor sees it.";
    Turns "turns" Counter "Turns of the reactor.";
    Enters "enters" Counter "Calls of io_uring_enter.";
    Completions "completions" Counter "Completions handled.";
    CompletionsStale "completions_stale" Counter "Completions whose owner was gone.";
    BuffersExhausted "buffers_exhausted" Counter "Times that receive buffers ran out.";
    ReceivesRearmed "receives_rearmed" Counter "Multishot receives armed again.";
    BusyPollHits "busy_poll_hits" Counter "Turns in which looking before sleeping paid.";
    QueueOverflows "queue_overflows" Counter "Times that the completion queue was too small.";
    ShortSends "short_sends" Counter "Sends that did not go out at once.";
    SubmissionsFull "submissions_full" Counter "Times that the submission queue was full before the turn's end.";
    MemoryRss "memory_rss_bytes" Gauge "Resident memory of the process.";
    MemoryHeld "memory_held_bytes" Gauge "Memory that the process has allocated.";
    MemoryLimit "memory_limit_bytes" Gauge "What it may allocate; 0: no limit.";
    MemoryPeak "memory_peak_bytes" Gauge "Its highest so far.";
    MemorySystem "memory_system_bytes" Gauge "Memory of the host.";
    CpuUserUs "cpu_user_us" Counter "Microseconds of CPU time in the program.";
    CpuSystemUs "cpu_system_us" Counter "Microseconds of CPU time in the kernel.";
}

const COUNT: usize = Counter::ALL.len();

/// Commands between two that are looked at more closely, on average.
pub const SAMPLE_EVERY: u64 = 64;

/// One reactor's numbers. Owned by it alone.
pub struct Counters {
    values: [u64; COUNT],
    /// From the turn that read a request to the turn that gave its reply to the client's socket.
    latency: Histogram<u64>,
    bounds: Arc<[u64]>,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { values: [0; COUNT], latency: empty_histogram(), bounds: bounds() }
    }
}

impl Counters {
    pub fn add(&mut self, counter: Counter, n: u64) {
        let value = &mut self.values[counter as usize];
        *value = value.wrapping_add(n);
    }

    /// For gauges.
    pub fn subtract(&mut self, counter: Counter, n: u64) {
        let value = &mut self.values[counter as usize];
        *value = value.saturating_sub(n);
    }

    /// For gauges.
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.values[counter as usize] = value;
    }

    pub fn value(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// A copy of all, by `Counter`.
    pub fn values(&self) -> Vec<u64> {
        self.values.to_vec()
    }

    /// How long a sampled request took. Above a minute counts as a minute.
    pub fn record_us(&mut self, us: u64) {
        self.latency.saturating_record(us);
    }

    /// Shows the numbers to the other threads. About a microsecond; some times a second will do.
    pub fn publish(&self, published: &Published) {
        for (value, shown) in self.values.iter().zip(&published.values) {
            shown.store(*value, Relaxed);
        }
        for step in self.latency.iter_recorded() {
            let lowest = self.latency.lowest_equivalent(step.value_iterated_to());
            if let Ok(index) = self.bounds.binary_search(&lowest) {
                published.latency[index].store(step.count_at_value(), Relaxed);
            }
        }
    }
}

/// What one reactor shows of itself. On cache lines of its own.
#[repr(align(128))]
pub struct Published {
    values: [AtomicU64; COUNT],
    /// One count per bucket of `bounds`.
    latency: Box<[AtomicU64]>,
    bounds: Arc<[u64]>,
    subscribed: AtomicBool,
    late: AtomicBool,
    next_client_id: AtomicU64,
}

impl Published {
    /// Its clients' ids are below. Beside the counters: those are counted anew when somebody asks
    /// for it (CONFIG RESETSTAT), and an id is nobody's a second time.
    pub fn next_client_id(&self) -> u64 {
        self.next_client_id.load(Relaxed)
    }

    pub fn show_next_client_id(&self, id: u64) {
        self.next_client_id.store(id, Relaxed);
    }

    /// Whether any of its clients is subscribed. Shown before the node is asked, so before the
    /// client is told: whoever publishes after that sees it.
    pub fn is_subscribed(&self) -> bool {
        self.subscribed.load(Acquire)
    }

    pub fn show_subscribed(&self, subscribed: bool) {
        self.subscribed.store(subscribed, Release);
    }

    /// Whether it has made no turn for about a second, or has ended, as the main thread judges.
    pub fn is_late(&self) -> bool {
        self.late.load(Relaxed)
    }

    pub fn show_late(&self, late: bool) {
        self.late.store(late, Relaxed);
    }

    /// As last shown.
    pub fn value(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Relaxed)
    }
}

/// All reactors' shown numbers, by reactor.
pub type Board = Arc<[Published]>;

/// A board for so many reactors.
pub fn board(reactors: usize) -> Board {
    let bounds = bounds();
    let zeros = || bounds.iter().map(|_| AtomicU64::new(0)).collect();
    (0..reactors)
        .map(|_| Published {
            values: array::from_fn(|_| AtomicU64::new(0)),
            latency: zeros(),
            bounds: bounds.clone(),
            subscribed: AtomicBool::new(false),
            late: AtomicBool::new(false),
            next_client_id: AtomicU64::new(0),
        })
        .collect()
}

/// The sums over some reactors at about one moment.
pub struct Totals {
    values: [u64; COUNT],
    latency: Histogram<u64>,
}

/// Adds up. Counters of different reactors may be from slightly different moments.
pub fn totals(board: &[Published]) -> Totals {
    let mut out = Totals { values: [0; COUNT], latency: empty_histogram() };
    for published in board {
        for (sum, shown) in out.values.iter_mut().zip(&published.values) {
            *sum = sum.wrapping_add(shown.load(Relaxed));
        }
        for (bound, count) in published.bounds.iter().zip(&published.latency) {
            let count = count.load(Relaxed);
            if count > 0 {
                out.latency.saturating_record_n(*bound, count);
            }
        }
    }
    out
}

impl Totals {
    pub fn value(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Microseconds that the fraction `quantile` (0.99 for p99) of the samples did not exceed, at
    /// most 1 % off; 0 without samples.
    pub fn latency_us(&self, quantile: f64) -> u64 {
        self.latency.value_at_quantile(quantile)
    }

    /// The merged samples themselves.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.latency
    }
}

/// Two digits: 1 % is finer than any decision that hangs on it.
fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).expect("constant bounds are in order")
}

/// The lowest value of every bucket, ascending. The same for all histograms here.
fn bounds() -> Arc<[u64]> {
    let histogram = empty_histogram();
    let next = |value: &u64| Some(histogram.next_non_equivalent(*value));
    std::iter::successors(Some(0), next).take(histogram.distinct_values()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_what_reactors_published() {
        let board = board(2);
        for (index, published) in board.iter().enumerate() {
            let mut counters = Counters::default();
            counters.add(Counter::Commands, 10 * (index as u64 + 1));
            counters.set(Counter::ClientsConnected, 3);
            counters.subtract(Counter::ClientsConnected, 1);
            counters.publish(published);
            counters.publish(published);
        }
        let totals = totals(&board);
        assert_eq!(totals.value(Counter::Commands), 30);
        assert_eq!(totals.value(Counter::ClientsConnected), 4);
    }

    #[test]
    fn merged_percentiles_are_those_of_one_histogram() {
        let board = board(3);
        let mut whole = empty_histogram();
        let mut counters = [Counters::default(), Counters::default(), Counters::default()];
        for n in 0..30_000u64 {
            let us = (n * n) % 900_001;
            whole.record(us).unwrap();
            counters[n as usize % 3].record_us(us);
        }
        for (counters, published) in counters.iter().zip(board.iter()) {
            counters.publish(published);
        }
        let totals = totals(&board);
        assert_eq!(totals.histogram().len(), 30_000);
        for quantile in [0.5, 0.99, 0.999, 1.0] {
            let merged = totals.latency_us(quantile);
            assert_eq!(merged, whole.value_at_quantile(quantile));
        }
    }

    #[test]
    fn time_above_the_longest_is_kept_as_the_longest() {
        let board = board(1);
        let mut counters = Counters::default();
        counters.record_us(u64::MAX);
        counters.publish(&board[0]);
        assert!(totals(&board).latency_us(0.5) >= LATENCY_US_MAX);
    }
}
