//! Numbers of one reactor, published now and then, added up by whoever reads them.
//!
//! Not here: their text form (INFO in `proxy`, `/metrics` in `topology`), the clock, the choice of
//! what is counted when.
//!
//! A reactor owns plain `u64`s and stores them into its own `Published` with relaxed stores: no
//! read-modify-write, no line of the cache written by two threads.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hdrhistogram::Histogram;

use crate::limits::LATENCY_US_MAX;

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
    ClientsTotal "clients_total" Counter "Clients accepted.";
    ClientsRejected "clients_rejected" Counter "Clients refused because of maxclients or memory.";
    ClientsClosedByLimit "clients_closed_by_limit" Counter "Clients closed over a limit of theirs.";
    ClientsPaused "clients_paused" Counter "Times that a client was not read for back-pressure.";
    ClientBytesIn "client_bytes_in" Counter "Bytes read from clients.";
    ClientBytesOut "client_bytes_out" Counter "Bytes sent to clients.";
    BackendsConnected "backends_connected" Gauge "Connections to nodes now.";
    BackendsTotal "backends_total" Counter "Connections to nodes made.";
    BackendConnectFailures "backend_connect_failures" Counter "Connections to nodes that failed.";
    BackendsLost "backends_lost" Counter "Connections to nodes that ended unasked.";
    BackendTimeouts "backend_timeouts" Counter "Connections closed over an overdue answer.";
    BackendBytesIn "backend_bytes_in" Counter "Bytes read from nodes.";
    BackendBytesOut "backend_bytes_out" Counter "Bytes sent to nodes.";
    RequestsInFlight "requests_in_flight" Gauge "Requests without an answer yet.";
    CommandsRead "commands_read" Counter "Commands of one slot that read.";
    CommandsWrite "commands_write" Counter "Commands of one slot that write.";
    CommandsSplit "commands_split" Counter "Commands that may span slots (MGET, DEL, ...).";
    CommandsScript "commands_script" Counter "Scripts and functions.";
    CommandsFan "commands_fan" Counter "Commands to several nodes (DBSIZE, KEYS, SCRIPT LOAD, ...).";
    CommandsAnyNode "commands_any_node" Counter "Commands that any node answers.";
    CommandsLocal "commands_local" Counter "Commands answered here.";
    CommandsTransaction "commands_transaction" Counter "MULTI, EXEC, WATCH and kin.";
    CommandsBlocking "commands_blocking" Counter "Commands that may wait at the node.";
    CommandsPubSub "commands_pubsub" Counter "Publish and subscribe.";
    CommandsRefused "commands_refused" Counter "Commands that this proxy does not let through.";
    Splits "splits" Counter "Requests cut by slot.";
    SplitParts "split_parts" Counter "The parts they were cut into.";
    RedirectsMoved "redirects_moved" Counter "MOVED followed.";
    RedirectsAsk "redirects_ask" Counter "ASK followed.";
    RedirectsUnconfirmed "redirects_unconfirmed" Counter "Redirects to unknown nodes not followed.";
    Retries "retries" Counter "Requests sent again for TRYAGAIN, CLUSTERDOWN, LOADING and kin.";
    RetriesLost "retries_lost" Counter "Requests sent again after a lost connection.";
    ErrorsProtocol "errors_protocol" Counter "Clients that broke the protocol.";
    ErrorsLogin "errors_login" Counter "Refused logins and commands before login.";
    ErrorsCommand "errors_command" Counter "Unknown commands, wrong arity, CROSSSLOT.";
    ErrorsTimeout "errors_timeout" Counter "Requests answered with a time-out.";
    ErrorsLost "errors_lost" Counter "Requests answered with a lost connection.";
    ErrorsCluster "errors_cluster" Counter "Requests without an owner of their slot.";
    ErrorsFromNodes "errors_from_nodes" Counter "Error replies of nodes passed on.";
    ErrorsNodeProtocol "errors_node_protocol" Counter "Nodes that sent what nobody asked for.";
    MapUpdates "map_updates" Counter "Slot maps taken.";
    MapPatches "map_patches" Counter "Single slots changed.";
    MemoryBytes "memory_bytes" Gauge "Bytes held for clients and nodes.";
    Turns "turns" Counter "Turns of the reactor.";
    Enters "enters" Counter "Calls of io_uring_enter.";
    Completions "completions" Counter "Completions handled.";
    CompletionsStale "completions_stale" Counter "Completions whose owner was gone.";
    BuffersExhausted "buffers_exhausted" Counter "Times that receive buffers ran out.";
    ReceivesRearmed "receives_rearmed" Counter "Multishot receives armed again.";
    BusyPollHits "busy_poll_hits" Counter "Turns in which looking before sleeping paid.";
    ParkedUs "parked_us" Counter "Microseconds asleep.";
}

const COUNT: usize = Counter::ALL.len();

/// Which time a histogram holds, in microseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Latency {
    /// From the request's last byte read to its reply handed to the client's socket.
    Request,
    /// The node's part of it.
    Node,
}

impl Latency {
    pub const ALL: [Latency; 2] = [Latency::Request, Latency::Node];
}

/// Requests between two samples. A power of two.
pub const SAMPLE_EVERY: u32 = 64;

/// One reactor's numbers. Owned by it alone.
pub struct Counters {
    values: [u64; COUNT],
    latencies: [Histogram<u64>; 2],
    bounds: Arc<[u64]>,
    requests: u32,
}

impl Default for Counters {
    fn default() -> Counters {
        let latencies = [empty_histogram(), empty_histogram()];
        Counters { values: [0; COUNT], latencies, bounds: bounds(), requests: 0 }
    }
}

impl Counters {
    pub fn add(&mut self, counter: Counter, n: u64) {
        let value = &mut self.values[counter as usize];
        *value = value.wrapping_add(n);
    }

    pub fn increment(&mut self, counter: Counter) {
        self.add(counter, 1);
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

    /// Whether this request's times are to be taken: one in `SAMPLE_EVERY`.
    pub fn is_sample(&mut self) -> bool {
        self.requests = self.requests.wrapping_add(1);
        self.requests & (SAMPLE_EVERY - 1) == 0
    }

    /// A sample's time. Above a minute counts as a minute.
    pub fn record_us(&mut self, latency: Latency, us: u64) {
        self.latencies[latency as usize].saturating_record(us);
    }

    /// Shows the numbers to the other threads. About a microsecond; some times a second will do.
    pub fn publish(&self, published: &Published) {
        for (value, shown) in self.values.iter().zip(&published.values) {
            shown.store(*value, Relaxed);
        }
        for (histogram, shown) in self.latencies.iter().zip(&published.latencies) {
            for step in histogram.iter_recorded() {
                let lowest = histogram.lowest_equivalent(step.value_iterated_to());
                if let Ok(index) = self.bounds.binary_search(&lowest) {
                    shown[index].store(step.count_at_value(), Relaxed);
                }
            }
        }
    }
}

/// What one reactor shows of itself. On cache lines of its own.
#[repr(align(128))]
pub struct Published {
    values: [AtomicU64; COUNT],
    /// Per latency, one count per bucket of `bounds`.
    latencies: [Box<[AtomicU64]>; 2],
    bounds: Arc<[u64]>,
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
            latencies: [zeros(), zeros()],
            bounds: bounds.clone(),
        })
        .collect()
}

/// The counters alone, added up: cheap enough for every reactor, some times a second.
pub struct Sums([u64; COUNT]);

impl Sums {
    pub fn value(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }
}

/// Adds up the counters.
pub fn sums(board: &[Published]) -> Sums {
    let mut out = [0u64; COUNT];
    for published in board {
        for (sum, shown) in out.iter_mut().zip(&published.values) {
            *sum = sum.wrapping_add(shown.load(Relaxed));
        }
    }
    Sums(out)
}

/// The sums over some reactors at about one moment.
pub struct Totals {
    values: [u64; COUNT],
    latencies: [Histogram<u64>; 2],
}

/// Adds up. Counters of different reactors may be from slightly different moments.
pub fn totals(board: &[Published]) -> Totals {
    let mut out = Totals { values: [0; COUNT], latencies: [empty_histogram(), empty_histogram()] };
    for published in board {
        for (sum, shown) in out.values.iter_mut().zip(&published.values) {
            *sum = sum.wrapping_add(shown.load(Relaxed));
        }
        for (merged, shown) in out.latencies.iter_mut().zip(&published.latencies) {
            for (bound, count) in published.bounds.iter().zip(shown) {
                let count = count.load(Relaxed);
                if count > 0 {
                    merged.saturating_record_n(*bound, count);
                }
            }
        }
    }
    out
}

impl Totals {
    pub fn value(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// All commands, by the counters of their classes.
    pub fn commands(&self) -> u64 {
        let first = Counter::CommandsRead as usize;
        let last = Counter::CommandsRefused as usize;
        self.values[first..=last].iter().sum()
    }

    /// Microseconds that the fraction `quantile` (0.99 for p99) of the samples did not exceed, at
    /// most 1 % off; 0 without samples.
    pub fn latency_us(&self, latency: Latency, quantile: f64) -> u64 {
        self.latencies[latency as usize].value_at_quantile(quantile)
    }

    /// The merged samples themselves.
    pub fn histogram(&self, latency: Latency) -> &Histogram<u64> {
        &self.latencies[latency as usize]
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
            counters.add(Counter::CommandsRead, 10 * (index as u64 + 1));
            counters.increment(Counter::CommandsRefused);
            counters.set(Counter::ClientsConnected, 3);
            counters.subtract(Counter::ClientsConnected, 1);
            counters.publish(published);
            counters.publish(published);
        }
        let totals = totals(&board);
        assert_eq!(totals.value(Counter::CommandsRead), 30);
        assert_eq!(totals.value(Counter::ClientsConnected), 4);
        assert_eq!(totals.commands(), 32);
    }

    #[test]
    fn merged_percentiles_are_those_of_one_histogram() {
        let board = board(3);
        let mut whole = empty_histogram();
        let mut counters = [Counters::default(), Counters::default(), Counters::default()];
        for n in 0..30_000u64 {
            let us = (n * n) % 900_001;
            whole.record(us).unwrap();
            counters[n as usize % 3].record_us(Latency::Node, us);
        }
        for (counters, published) in counters.iter().zip(board.iter()) {
            counters.publish(published);
        }
        let totals = totals(&board);
        assert_eq!(totals.histogram(Latency::Node).len(), 30_000);
        for quantile in [0.5, 0.99, 0.999, 1.0] {
            let merged = totals.latency_us(Latency::Node, quantile);
            assert_eq!(merged, whole.value_at_quantile(quantile));
        }
        assert_eq!(totals.latency_us(Latency::Request, 0.99), 0);
    }

    #[test]
    fn time_above_the_longest_is_kept_as_the_longest() {
        let board = board(1);
        let mut counters = Counters::default();
        counters.record_us(Latency::Request, u64::MAX);
        counters.publish(&board[0]);
        assert!(totals(&board).latency_us(Latency::Request, 0.5) >= LATENCY_US_MAX);
    }

    #[test]
    fn one_request_in_many_is_a_sample() {
        let mut counters = Counters::default();
        let samples = (0..SAMPLE_EVERY * 10).filter(|_| counters.is_sample()).count();
        assert_eq!(samples, 10);
    }
}
