//! What this proxy counts. Not here: who shows it (`metrics`, `admin`, `local`).

/// Plain counts of what happened; read by whoever publishes them.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub commands: u64,
    pub commands_local: u64,
    pub error_replies: u64,
    pub redirects_moved: u64,
    pub redirects_ask: u64,
    pub retries_tryagain: u64,
    pub retries_other: u64,
    pub splits: u64,
    pub crossslot: u64,
    pub lost: u64,
    pub timeouts: u64,
    pub fence_breaches: u64,
    pub protocol_errors: u64,
    pub clients_total: u64,
    pub clients_refused: u64,
    pub clients_over_limit: u64,
    /// Not read for a while because memory was short.
    pub clients_slowed: u64,
    pub clients_closed_for_memory: u64,
    /// To the next process, and from the one before.
    pub clients_given: u64,
    pub clients_taken: u64,
    pub backend_connects: u64,
    pub backend_failures: u64,
    pub backend_surprises: u64,
    pub messages: u64,
    pub sends_to_clients: u64,
    pub sends_to_nodes: u64,
    pub bytes_from_clients: u64,
    pub bytes_to_clients: u64,
    pub bytes_from_nodes: u64,
    pub bytes_to_nodes: u64,
}

impl Tally {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Tally) {
        self.commands += other.commands;
        self.commands_local += other.commands_local;
        self.error_replies += other.error_replies;
        self.redirects_moved += other.redirects_moved;
        self.redirects_ask += other.redirects_ask;
        self.retries_tryagain += other.retries_tryagain;
        self.retries_other += other.retries_other;
        self.splits += other.splits;
        self.crossslot += other.crossslot;
        self.lost += other.lost;
        self.timeouts += other.timeouts;
        self.fence_breaches += other.fence_breaches;
        self.protocol_errors += other.protocol_errors;
        self.clients_total += other.clients_total;
        self.clients_refused += other.clients_refused;
        self.clients_over_limit += other.clients_over_limit;
        self.clients_slowed += other.clients_slowed;
        self.clients_closed_for_memory += other.clients_closed_for_memory;
        self.clients_given += other.clients_given;
        self.clients_taken += other.clients_taken;
        self.backend_connects += other.backend_connects;
        self.backend_failures += other.backend_failures;
        self.backend_surprises += other.backend_surprises;
        self.messages += other.messages;
        self.sends_to_clients += other.sends_to_clients;
        self.sends_to_nodes += other.sends_to_nodes;
        self.bytes_from_clients += other.bytes_from_clients;
        self.bytes_to_clients += other.bytes_to_clients;
        self.bytes_from_nodes += other.bytes_from_nodes;
        self.bytes_to_nodes += other.bytes_to_nodes;
    }
}
