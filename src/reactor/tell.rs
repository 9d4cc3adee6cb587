//! What a reactor tells: lines for its log, counters for the others, sums for its proxies.
//!
//! Not here: what is counted when (`proxy`, `ring`), how lines are written (`log`).

use std::net::SocketAddr;

use super::{TOTALS_EVERY_MS, Worker};
use crate::metrics::{self, Board, Counter};
use crate::proxy::local::Totals;
use crate::proxy::{self, Note, Proxy};
use crate::ring;

/// How often it is written that clients are refused, or cannot be accepted.
const ACCEPT_TOLD_EVERY_MS: u64 = 10_000;

impl Worker {
    /// Where it listens, and what the kernel granted.
    pub(super) fn tell_start(&mut self) {
        let addresses: Vec<String> = (0..self.listeners.len() as u32)
            .filter_map(|listener| self.ring.listener_address(listener))
            .map(|address| address.to_string())
            .collect();
        let granted = self.ring.granted();
        let cpu = self.passing.cpu.map_or("any".to_string(), |cpu| cpu.id.to_string());
        let entries = format!("{}/{}", granted.sq_entries, granted.cq_entries);
        self.log.info(
            self.now.unix_us,
            "listening",
            &[
                ("addresses", &addresses.join(",")),
                ("cpu", &cpu),
                ("ring", &entries),
                ("min_wait", &granted.min_wait),
                ("no_sqarray", &granted.no_sqarray),
                ("no_iowait", &granted.no_iowait),
                ("registered", &granted.ring_fd_registered),
            ],
        );
    }

    /// No descriptor for a client, as at every attempt until there is one: a line now and then.
    #[cold]
    pub(super) fn tell_accept_failed(&mut self, errno: i32) {
        let (from_ms, times) = self.accept_told;
        if self.now.ms < from_ms {
            self.accept_told.1 += 1;
            return;
        }
        self.accept_told = (self.now.ms + ACCEPT_TOLD_EVERY_MS, 0);
        let error = std::io::Error::from_raw_os_error(errno);
        let fields = [("error", &error as _), ("attempts_since", &times as _)];
        self.log.warn(self.now.unix_us, "cannot accept a client", &fields);
    }

    /// One client too many, and as a rule not the last: a line now and then.
    #[cold]
    pub(super) fn tell_refused(&mut self, pool: u16, peer: &SocketAddr, why: &'static str) {
        let (from_ms, times) = self.refusals_told;
        if self.now.ms < from_ms {
            self.refusals_told.1 += 1;
            return;
        }
        self.refusals_told = (self.now.ms + ACCEPT_TOLD_EVERY_MS, 0);
        let pool = ("pool", &self.names[usize::from(pool)] as _);
        let fields = [pool, ("client", peer as _), ("why", &why as _), ("more", &times as _)];
        self.log.warn(self.now.unix_us, "client refused", &fields);
    }

    /// What the proxy has to say to people.
    #[cold]
    pub(super) fn tell(&mut self, pool: usize, note: &Note) {
        let now = self.now.unix_us;
        let pool = ("pool", &self.names[pool] as _);
        let log = &mut self.log;
        match note {
            Note::BackendLost { address, why } => {
                log.warn(now, "lost a node", &[pool, ("node", address), ("why", why)]);
            }
            Note::LoginRefused { address, error } => {
                log.error(now, "refused by a node", &[pool, ("node", address), ("said", error)]);
            }
            Note::FenceBreach { address } => {
                let why = "a script sent other frames than one reply";
                log.warn(now, "fence held", &[pool, ("node", address), ("why", &why)]);
            }
            Note::ProtocolError { peer, text } => {
                log.info(now, "not a request", &[pool, ("client", peer), ("why", text)]);
            }
            Note::ClientClosed { peer, why } => {
                log.info(now, "client closed", &[pool, ("client", peer), ("why", why)]);
            }
        }
    }

    pub(super) fn clients_open(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.clients_open() as u64).sum()
    }

    /// The last line of its log.
    pub(super) fn tell_end(&mut self) {
        let commands: u64 = self.proxies.iter().map(|proxy| proxy.tally.commands).sum();
        let cut = self.clients_open();
        let fields = [("clients_cut", &cut as _), ("commands_served", &commands as _)];
        match cut {
            0 => self.log.info(self.now.unix_us, "drained", &fields),
            _ => self.log.warn(self.now.unix_us, "drain timed out", &fields),
        }
    }

    /// Shows this reactor's counters, and tells its proxies the sums of all.
    pub(super) fn publish(&mut self) {
        let ring = self.ring.counters();
        self.log.handle_time(self.now.unix_us);
        self.tell_exhaustion(ring.enobufs);
        let counters = &mut self.counters;
        let mut sums = proxy::Tally::default();
        let (mut clients, mut backends, mut requests) = (0, 0, 0);
        let (mut blocked, mut private) = (0, 0);
        let missing = self.proxies.iter().map(|proxy| proxy.slots_missing() as u64).sum();
        let mut subscribed = [0; 4];
        for proxy in &self.proxies {
            sums.add(&proxy.tally);
            clients += proxy.clients_open() as u64;
            blocked += proxy.clients_blocked() as u64;
            private += proxy.backends_private() as u64;
            backends += proxy.backends_connected() as u64;
            requests += proxy.requests_open() as u64;
            add_counts(&mut subscribed, proxy.subscription_counts());
        }
        let values = [
            (Counter::ClientsConnected, clients),
            (Counter::ClientsBlocked, blocked),
            (Counter::BackendsPrivate, private),
            (Counter::ClientsTotal, sums.clients_total),
            (Counter::ClientsRejected, sums.clients_refused),
            (Counter::ClientsClosedByLimit, sums.clients_over_limit),
            (Counter::ClientsSlowed, sums.clients_slowed),
            (Counter::ClientsClosedForMemory, sums.clients_closed_for_memory),
            (Counter::ClientBytesIn, sums.bytes_from_clients),
            (Counter::ClientBytesOut, sums.bytes_to_clients),
            (Counter::BackendsConnected, backends),
            (Counter::BackendsTotal, sums.backend_connects),
            (Counter::BackendsLost, sums.backend_failures),
            (Counter::BackendBytesIn, sums.bytes_from_nodes),
            (Counter::BackendBytesOut, sums.bytes_to_nodes),
            (Counter::RequestsInFlight, requests),
            (Counter::Commands, sums.commands),
            (Counter::CommandsLocal, sums.commands_local),
            (Counter::Splits, sums.splits),
            (Counter::RedirectsMoved, sums.redirects_moved),
            (Counter::RedirectsAsk, sums.redirects_ask),
            (Counter::RetriesTryAgain, sums.retries_tryagain),
            (Counter::RetriesOther, sums.retries_other),
            (Counter::FenceBreaches, sums.fence_breaches),
            (Counter::ErrorsProtocol, sums.protocol_errors),
            (Counter::ErrorsTimeout, sums.timeouts),
            (Counter::ErrorsLost, sums.lost),
            (Counter::ErrorsReplied, sums.error_replies),
            (Counter::ErrorsCrossSlot, sums.crossslot),
            (Counter::ErrorsNodeProtocol, sums.backend_surprises),
            (Counter::SendsToClients, sums.sends_to_clients),
            (Counter::SendsToNodes, sums.sends_to_nodes),
            (Counter::Messages, sums.messages),
            (Counter::PubsubChannels, subscribed[0]),
            (Counter::PubsubPatterns, subscribed[1]),
            (Counter::PubsubShardChannels, subscribed[2]),
            (Counter::PubsubClients, subscribed[3]),
            (Counter::SlotsMissing, missing),
            (Counter::Turns, self.turns),
        ];
        for (counter, value) in values.into_iter().chain(ring_values(&ring)) {
            counters.set(counter, value);
        }
        if let Some(published) = self.board.get(usize::from(self.index)) {
            counters.publish(published);
            let ids = self.proxies.iter().map(Proxy::next_client_id);
            published.show_next_client_id(ids.max().unwrap_or_default());
        }
        self.tell_totals();
    }

    fn tell_exhaustion(&mut self, enobufs: u64) {
        if enobufs > self.enobufs_told {
            let times = enobufs - self.enobufs_told;
            self.enobufs_told = enobufs;
            let remedy = "a higher receive_buffer_count";
            let fields = [("times", &times as _), ("remedy", &remedy as _)];
            self.log.debug(self.now.unix_us, "receive buffers ran out", &fields);
        }
    }

    fn tell_totals(&mut self) {
        if self.now.ms >= self.totals_ms + TOTALS_EVERY_MS {
            self.totals = totals_of(&self.board, &self.totals, self.now.ms - self.totals_ms);
            self.totals_ms = self.now.ms;
            for proxy in &mut self.proxies {
                proxy.handle_totals(self.totals);
            }
        }
    }
}

fn add_counts(sums: &mut [u64; 4], counts: [usize; 4]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count as u64);
}

/// What INFO says of the whole process.
fn totals_of(board: &Board, before: &Totals, elapsed_ms: u64) -> Totals {
    let sums = metrics::totals(board);
    let value = |counter| sums.value(counter);
    let rate = |now: u64, before: u64| now.saturating_sub(before) * 1000 / elapsed_ms.max(1);
    Totals {
        // Each proxy has its own.
        slots_missing: 0,
        scripts: before.scripts,
        clients: value(Counter::ClientsConnected),
        pubsub_clients: value(Counter::PubsubClients),
        pubsub_channels: value(Counter::PubsubChannels),
        pubsub_patterns: value(Counter::PubsubPatterns),
        pubsub_shard_channels: value(Counter::PubsubShardChannels),
        blocked_clients: value(Counter::ClientsBlocked),
        backends_private: value(Counter::BackendsPrivate),
        connections_accepted: value(Counter::ClientsTotal),
        connections_rejected: value(Counter::ClientsRejected),
        commands: value(Counter::Commands),
        error_replies: value(Counter::ErrorsReplied),
        protocol_errors: value(Counter::ErrorsProtocol),
        bytes_in: value(Counter::ClientBytesIn),
        bytes_out: value(Counter::ClientBytesOut),
        backends: value(Counter::BackendsConnected),
        requests_in_flight: value(Counter::RequestsInFlight),
        redirects_moved: value(Counter::RedirectsMoved),
        redirects_ask: value(Counter::RedirectsAsk),
        retries_tryagain: value(Counter::RetriesTryAgain),
        retries_other: value(Counter::RetriesOther),
        timeouts: value(Counter::ErrorsTimeout),
        backends_lost: value(Counter::BackendsLost),
        splits: value(Counter::Splits),
        fence_breaches: value(Counter::FenceBreaches),
        sends_to_nodes: value(Counter::SendsToNodes),
        sends_to_clients: value(Counter::SendsToClients),
        ring_enters: value(Counter::Enters),
        ring_completions: value(Counter::Completions),
        commands_per_second: rate(value(Counter::Commands), before.commands),
        bytes_in_per_second: rate(value(Counter::ClientBytesIn), before.bytes_in),
        bytes_out_per_second: rate(value(Counter::ClientBytesOut), before.bytes_out),
        memory_used: value(Counter::MemoryHeld),
        memory_limit: value(Counter::MemoryLimit),
        clients_slowed: value(Counter::ClientsSlowed),
        buffers_exhausted: value(Counter::BuffersExhausted),
        queue_overflows: value(Counter::QueueOverflows),
        submissions_full: value(Counter::SubmissionsFull),
        clients_closed_for_memory: value(Counter::ClientsClosedForMemory),
        memory_peak: value(Counter::MemoryPeak),
        memory_rss: value(Counter::MemoryRss),
        memory_system: value(Counter::MemorySystem),
        cpu_user_us: value(Counter::CpuUserUs),
        cpu_system_us: value(Counter::CpuSystemUs),
        latency_p50_us: sums.latency_us(0.5),
        latency_p99_us: sums.latency_us(0.99),
        latency_p999_us: sums.latency_us(0.999),
    }
}

fn ring_values(ring: &ring::Counters) -> [(Counter, u64); 9] {
    [
        (Counter::Enters, ring.enters),
        (Counter::Completions, ring.completions),
        (Counter::CompletionsStale, ring.stale),
        (Counter::BuffersExhausted, ring.enobufs),
        (Counter::ReceivesRearmed, ring.rearms),
        (Counter::BusyPollHits, ring.spin_hits),
        (Counter::QueueOverflows, ring.overflows),
        (Counter::ShortSends, ring.short_sends),
        (Counter::SubmissionsFull, ring.full),
    ]
}
