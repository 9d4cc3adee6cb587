//! Every option once: name, type, default, range, reason. Flags, variables, `--help` and the table
//! in README.md all come from these rows; `tests/tidy.rs` holds README.md to them.
//!
//! Not here: reading values (`value`), relations between options (`assemble`). A bound that nobody
//! should have to choose is a constant in `limits`, not a row.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use crate::cluster::Endpoint;
use crate::limits::{
    RECEIVE_BUFFER_COUNT, RECEIVE_BUFFER_COUNT_MAX, RECEIVE_BUFFER_SIZE, REDIRECTS_MAX,
    REQUEST_BULK_MAX, RING_SUBMISSIONS,
};

use super::value::{Admin, Cpus, LogLevel, Range, Raw, Value};
use crate::secret::Secret;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Where an option stands in the file.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// At the top: one value for the process.
    Process,
    /// In `[[pool]]`.
    Pool,
}

/// The headings of `--help`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Group {
    Addresses,
    Login,
    Threads,
    Time,
    Commands,
    Limits,
    Memory,
    Process,
}

impl Group {
    pub const ALL: [(Group, &'static str); 8] = [
        (Group::Addresses, "Addresses"),
        (Group::Login, "Login"),
        (Group::Threads, "Threads"),
        (Group::Time, "Time"),
        (Group::Commands, "Commands"),
        (Group::Limits, "Limits per client and per node"),
        (Group::Memory, "Memory and the ring"),
        (Group::Process, "Process"),
    ];
}

/// What there is to know about one option.
#[derive(Clone, Debug)]
pub struct Row {
    /// The key in the file.
    pub name: &'static str,
    /// With its dashes. Singular for lists: `--node` may be given several times.
    flag: String,
    variable: String,
    pub scope: Scope,
    pub group: Group,
    pub placeholder: &'static str,
    /// As written in help and README.md.
    pub default: String,
    /// The range in words.
    pub wanted: String,
    /// What it is for, and why one would change it.
    pub reason: &'static str,
    pub secret: bool,
}

impl Row {
    /// With its dashes: `--request-timeout-ms`.
    pub fn flag(&self) -> &str {
        &self.flag
    }

    /// `RINGWAY_REQUEST_TIMEOUT_MS`.
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// Whether a flag without a value means "on".
    pub fn is_switch(&self) -> bool {
        self.placeholder == <bool as Value>::PLACEHOLDER
    }

    /// Whether several flags add up.
    pub fn is_list(&self) -> bool {
        matches!(self.placeholder, "IP:PORT" | "HOST:PORT")
    }
}

/// One struct with its rows, so that a field cannot be without a default, a range or a reason.
macro_rules! options {
    (
        $(#[$about:meta])*
        pub struct $Name:ident: $scope:ident {
            $( $group:ident $field:ident ($flag:ident) : $type:ty = $default:expr, $range:expr,
                $reason:literal; )*
        }
        also { $( $(#[$doc:meta])* pub $extra:ident: $extra_type:ty, )* }
    ) => {
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $Name {
            $( #[doc = $reason] pub $field: $type, )*
            $( $(#[$doc])* pub $extra: $extra_type, )*
        }

        impl Default for $Name {
            fn default() -> $Name {
                $Name { $( $field: $default, )* $( $extra: Default::default(), )* }
            }
        }

        impl $Name {
            fn rows() -> Vec<Row> {
                vec![ $( Row {
                    name: stringify!($field),
                    flag: format!("--{}", stringify!($flag).replace('_', "-")),
                    variable: format!("RINGWAY_{}", stringify!($field).to_ascii_uppercase()),
                    scope: Scope::$scope,
                    group: Group::$group,
                    placeholder: if matches!($range, Range::Bytes(..)) { "SIZE" } else {
                        <$type as Value>::PLACEHOLDER
                    },
                    default: { let default: $type = $default; default.show($range) },
                    wanted: <$type as Value>::wanted($range),
                    reason: $reason,
                    secret: stringify!($type).contains("Secret"),
                }, )* ]
            }

            /// Each option with its value, but no password.
            pub fn shown(&self) -> Vec<(&'static str, String)> {
                let all = vec![ $( (
                    stringify!($field),
                    self.$field.show($range),
                    stringify!($type).contains("Secret"),
                ), )* ];
                let open = all.into_iter().filter(|(.., secret)| !secret);
                open.map(|(name, value, _)| (name, value)).collect()
            }

            /// Takes the value, or says what is wanted. `None`: no such option here.
            pub(super) fn set(&mut self, name: &str, raw: &Raw) -> Option<Result<(), String>> {
                match name {
                    $( stringify!($field) => Some(
                        <$type as Value>::read(raw, $range).map(|value| self.$field = value)
                    ), )*
                    _ => None,
                }
            }
        }
    };
}

options! {
    /// What holds for the whole process.
    pub struct Process: Process {
        Threads reactors (reactors): u32 = 0, Range::Number(0, 1024),
            "Reactor threads, each pinned to its CPU; 0 is one per CPU that the process may use. \
             Leave CPUs to the nodes when they run on the same host.";
        Threads cpus (cpus): Cpus = Cpus::default(), Range::Any,
            "The CPUs to use, one reactor on each, instead of `reactors`. Choose those that serve \
             the network card's queues.";
        Threads busy_poll_us (busy_poll_us): u32 = 0, Range::Number(0, 1_000),
            "Microseconds that a reactor looks for work before it sleeps. Buys latency with CPU \
             time: only where its CPU has nothing else to do.";
        Threads gather_us (gather_us): u32 = 400, Range::Number(0, 1_000),
            "Microseconds that a busy reactor waits for more requests and replies to come, so that \
             many leave in one send: cheaper for it and for the nodes. Long pipelines (24 requests \
             for each client under way) are gathered for up to five times as long, but for no more \
             than a quarter of the time in which they are answered. Replies of one pipeline then \
             wait up to 2 ms for each other. Without load nothing waits. 0 is never. Needs \
             kernel 6.12.";
        Memory ring_entries (ring_entries): u32 = RING_SUBMISSIONS, Range::PowerOfTwo(64, 32_768),
            "Submission queue entries per reactor; the completion queue has four times as many. \
             Less where RLIMIT_MEMLOCK is tight.";
        Memory receive_buffer_size (receive_buffer_size): u32 = RECEIVE_BUFFER_SIZE,
            Range::Bytes(KIB, MIB),
            "Bytes of one receive buffer, lent to a connection only while its bytes are read. \
             Larger ones save calls for large values.";
        Memory receive_buffer_count (receive_buffer_count): u16 = RECEIVE_BUFFER_COUNT,
            Range::PowerOfTwo(16, RECEIVE_BUFFER_COUNT_MAX as u64),
            "Receive buffers per reactor, shared by all its connections. More only if the log (level \
             debug) says often that they ran out.";
        Memory memory_limit (memory_limit): u64 = 0, Range::Bytes(0, 1 << 50),
            "Bytes that the process may allocate. From 80 % on, clients that hold much are not read; \
             from 90 %, new clients are refused; at 100 %, those that hold most are closed. 0 is \
             three quarters of the memory of the host, or of its control group.";
        Process maxclients (maxclients): u32 = 10_000, Range::Number(1, 1_000_000),
            "Clients of one pool at a time, an equal share for each reactor; the next one gets an \
             error line and is closed, as redis-server does. Each needs a file descriptor.";
        Process drain_timeout_ms (drain_timeout_ms): u64 = 10_000, Range::Number(0, 3_600_000),
            "After SIGTERM: how long requests in flight may take before their connections are cut. \
             Keep it under the grace period of your service manager.";
        Process handover_socket (handover_socket): Option<PathBuf> = None, Range::Any,
            "A path at which the running process hands its listening sockets and its clients to the \
             next one that is started with the same path. In a folder that only this user may \
             write to.";
        Addresses admin_listen (admin_listen): Admin = Admin::default(), Range::Any,
            "Where the process tells of itself by HTTP: metrics, readiness, the slot map, a live page. \
             It changes nothing and asks for no password, so keep it on loopback or in a trusted \
             network.";
        Process log_level (log_level): LogLevel = LogLevel::Info, Range::Any,
            "What is logged to stderr: this level and the graver ones.";
    }
    also {}
}

options! {
    /// One cluster and the addresses at which clients reach it.
    pub struct Pool: Pool {
        Addresses name (name): String = "default".to_string(), Range::Word,
            "What the log calls the pool.";
        Addresses listen (listen): Vec<SocketAddr> = Vec::new(), Range::Any,
            "Where clients connect.";
        Addresses nodes (node): Vec<Endpoint> = Vec::new(), Range::Any,
            "Some nodes of the cluster, to ask for the others. Names are resolved again when no node \
             answers, so a headless service's name will do.";
        Addresses announce (announce): Vec<Endpoint> = Vec::new(), Range::Any,
            "The addresses that cluster clients are told (CLUSTER SLOTS, SHARDS, NODES): those of \
             all proxies of this cluster, in the same order at each, so that such clients spread \
             over them. Each gets an equal share of the slots, and serves any. Empty: the one \
             address that the client has reached.";
        Addresses announce_version (announce_version): String = "7.2.5".to_string(), Range::Version,
            "The server version told to clients (HELLO, INFO). Libraries choose commands by it: do \
             not promise more than the nodes have.";
        Login password (password): Option<Secret> = None, Range::Any,
            "What clients must send with AUTH, as user `default`. Prefer `password_file`: a command \
             line can be read by everyone on the host.";
        Login password_file (password_file): Option<PathBuf> = None, Range::Any,
            "A file whose first line is `password`.";
        Login admin_user (admin_user): Option<String> = None, Range::Text(128),
            "The user who may send any command to single nodes (PROXY NODE) and watch all clients \
             (MONITOR); `default` is whoever needs no other login. Without it nobody may.";
        Login node_user (node_user): Option<String> = None, Range::Text(128),
            "The user as whom we log in to the nodes; without it, only the password is sent.";
        Login node_password (node_password): Option<Secret> = None, Range::Any,
            "The password for the nodes. Prefer `node_password_file`.";
        Login node_password_file (node_password_file): Option<PathBuf> = None, Range::Any,
            "A file whose first line is `node_password`.";
        Time request_timeout_ms (request_timeout_ms): u64 = 5_000, Range::Number(1, 3_600_000),
            "How long a node may owe the oldest answer. Then its connection is closed and what was \
             sent on it fails: above the slowest command that you run. A reply that has begun must \
             be whole in twice the time, and a second more for each 64 KiB of it.";
        Time connect_timeout_ms (connect_timeout_ms): u64 = 900, Range::Number(1, 60_000),
            "How long connecting and logging in to a node may take. Under a second, so that one lost \
             packet (sent again after a second) counts as a failure.";
        Time refresh_interval_ms (refresh_interval_ms): u64 = 10_000, Range::Number(200, 3_600_000),
            "How often the slot map is asked for when nothing happens. Changes are learned at once \
             from redirects; this finds new replicas and idle shards.";
        Time tcp_user_timeout_ms (tcp_user_timeout_ms): u32 = 5_000, Range::Number(0, 3_600_000),
            "How long bytes sent to a node may stay unacknowledged before the kernel gives up; 0 is \
             the kernel's own, about 15 minutes.";
        Time client_idle_timeout_s (client_idle_timeout_s): u32 = 0, Range::Number(0, 31_536_000),
            "Seconds after which a silent client is closed; 0 is never, as redis-server's `timeout`.";
        Commands split_reads (split_reads): bool = true, Range::Any,
            "MGET, EXISTS, TOUCH and JSON.MGET over several slots are cut by slot and merged. Off: \
             they answer CROSSSLOT as a node would.";
        Commands split_writes (split_writes): bool = true, Range::Any,
            "The same for MSET, MSETEX, DEL, UNLINK. Each part is atomic, the whole is not: turn it off where \
             that matters.";
        Commands allow_flush (allow_flush): bool = true, Range::Any,
            "FLUSHALL and FLUSHDB, which empty every primary.";
        Commands allow_keys (allow_keys): bool = true, Range::Any,
            "KEYS, which stops every primary while it runs.";
        Commands allow_config (allow_config): bool = false, Range::Any,
            "CONFIG GET at one node, CONFIG SET, RESETSTAT and REWRITE at all, replicas too. Whoever \
             may send commands may then change the nodes. Off: CONFIG is about the proxy alone.";
        Commands keys_max_bytes (keys_max_bytes): u64 = 64 * MIB, Range::Bytes(KIB, GIB),
            "Size of a merged KEYS reply; a larger one is answered with an error.";
        Commands ignore_select (ignore_select): bool = false, Range::Any,
            "Answer OK to SELECT of any database though there is only 0. For programs that cannot be \
             changed; their databases then share one key space.";
        Commands redirects_max (redirects_max): u8 = REDIRECTS_MAX, Range::Number(0, 16),
            "Redirects that one request may follow; then it is answered with an error.";
        Commands slowlog_log_slower_than (slowlog_log_slower_than): u64 = 10_000,
            Range::Number(1, 3_600_000_000),
            "Microseconds from which on a request is in SLOWLOG, from its coming to its node's answer; \
             rounded up to a millisecond.";
        Commands slowlog_max_len (slowlog_max_len): u32 = 128, Range::Number(0, 100_000),
            "Entries that SLOWLOG keeps; 0 is no slow log.";
        Commands sample_keys (sample_keys): bool = false, Range::Any,
            "Look at the keys of one command in 64, and of each value of 16 KiB or more, for PROXY \
             HOTKEYS and PROXY BIGKEYS.";
        Limits fence_lanes (fence_lanes): u8 = 2, Range::Number(1, 64),
            "Connections per node and reactor for what can compose its own reply (EVAL, FCALL, \
             modules), kept apart from the others' traffic. More for script-heavy work.";
        Limits private_backends_max (private_backends_max): u32 = 256, Range::Number(1, 65_536),
            "Connections per node and reactor that single clients have for themselves while they \
             block (BLPOP, XREAD BLOCK, WAIT) or watch keys. At this number such a command answers \
             an error.";
        Limits databases_max (databases_max): u8 = 16, Range::Number(1, 255),
            "Databases that the clients of one reactor may be in at a time (SELECT, where the nodes \
             have them). Each is one more connection per node and reactor, closed after a minute \
             without use.";
        Limits client_requests_max (client_requests_max): u32 = 4096, Range::Number(1, 1_000_000),
            "Requests of one client under way (256 while a script is among them, or one that has to be \
             sent again); at this number it is not read until some are answered.";
        Limits client_output_soft (client_output_soft): u64 = MIB, Range::Bytes(16 * KIB, 16 * GIB),
            "Reply bytes that one client has not taken; above it the client is not read.";
        Limits client_output_limit (client_output_limit): u64 = 256 * MIB,
            Range::Bytes(64 * KIB, 64 * GIB),
            "The same; above it the client is closed. At least the largest reply you expect.";
        Limits pubsub_output_limit (pubsub_output_limit): u64 = 32 * MIB,
            Range::Bytes(64 * KIB, 64 * GIB),
            "Bytes that one subscriber has not taken; a message beyond it closes the subscriber, as \
             redis-server's `client-output-buffer-limit pubsub`.";
        Limits client_bulk_limit (client_bulk_limit): u64 = REQUEST_BULK_MAX,
            Range::Bytes(64 * KIB, REQUEST_BULK_MAX),
            "Bytes of one word of a request, as redis-server's `proto-max-bulk-len`: at most what the \
             nodes take, as a larger one ends the connection that many clients share. Where the \
             node user may CONFIG GET, less is learned from the nodes.";
        Limits client_query_limit (client_query_limit): u64 = GIB, Range::Bytes(64 * KIB, GIB),
            "Bytes of one client's unfinished request, as redis-server's `client-query-buffer-limit`.";
    }
    also {
        /// Users beside `default`, from `[[pool.user]]`.
        pub users: Vec<User>,
        /// What nodes announce → where we reach it, from `[pool.address_map]`.
        pub address_map: Vec<(Endpoint, Endpoint)>,
    }
}

/// A client's login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    pub name: String,
    pub password: Secret,
}

/// Every option, those of a pool first. Made once: a file asks for a row by each of its names.
pub fn rows() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| [Pool::rows(), Process::rows()].concat());
    &ROWS
}

/// For types that need no range.
pub(super) const fn no_range() -> Range {
    Range::Any
}

/// Finds an option by what stands in the file.
pub fn find(name: &str) -> Option<&'static Row> {
    rows().iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_flags_and_variables_are_unique() {
        for of in [Row::flag, Row::variable] {
            let mut names: Vec<&str> = rows().iter().map(of).collect();
            names.sort();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn every_default_is_inside_its_own_range() {
        for row in rows() {
            if matches!(row.default.as_str(), "none") {
                continue;
            }
            let raw = Raw::Text(row.default.clone());
            let taken = match row.scope {
                Scope::Process => Process::default().set(row.name, &raw),
                Scope::Pool => Pool::default().set(row.name, &raw),
            };
            assert_eq!(taken, Some(Ok(())), "{} = {}", row.name, row.default);
        }
    }

    #[test]
    fn reasons_are_sentences() {
        for row in rows() {
            assert!(row.reason.ends_with('.') && !row.reason.contains('|'), "{}", row.name);
        }
    }
}
