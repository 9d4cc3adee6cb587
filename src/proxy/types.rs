//! The words between `proxy` and whoever drives it (`reactor`, the simulation): events in, actions
//! out.
//!
//! Not here: any behaviour.

use std::net::SocketAddr;
use std::sync::Arc;

use super::peers::Query;
use crate::cluster::{AddressMap, Endpoint};
use crate::limits::REQUEST_BULK_MAX;
use crate::resp::request::RequestLimits;
use crate::secret::Secret;

/// No index: the end of a list, an absent owner.
pub const NONE: u32 = u32::MAX;

/// No slot: a request that is not routed by key.
pub const NO_SLOT: u16 = u16::MAX;

/// The driver's name of a socket; opaque here. An index may be reused after `handle_gone` only.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Socket {
    pub index: u32,
    pub generation: u32,
}

/// The owner of a socket: an index into the clients or into the backends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Conn {
    Client(u32),
    Backend(u32),
}

/// The time, told once a turn.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Milliseconds of a monotonic clock that began before the proxy did.
    pub ms: u64,
    /// Microseconds since 1970, for TIME and for people; never for timers.
    pub unix_us: u64,
}

/// What the whole process holds and may hold, bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    pub held: u64,
    /// 0: no limit.
    pub limit: u64,
    /// How many proxies give back when it is too much, each its part.
    pub sharers: u64,
}

impl Memory {
    #[inline]
    pub(super) fn percent(&self) -> u64 {
        self.held.saturating_mul(100).checked_div(self.limit).unwrap_or(0)
    }

    /// One proxy's part of what is held beyond so many percent of the limit.
    pub(super) fn share_over(&self, percent: u64) -> u64 {
        self.held.saturating_sub(self.limit / 100 * percent).div_ceil(self.sharers.max(1))
    }
}

/// What the driver is asked to do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Send all of `bytes`; answered by `handle_sent`, which brings the buffer back. At most one
    /// is under way for a socket. `last`: `Close` follows as soon as it has come back.
    Send { conn: Conn, socket: Socket, bytes: Vec<u8>, last: bool },
    /// Open a connection for this backend; answered by `handle_connecting` at once and by
    /// `handle_connected` later.
    Connect { backend: u32, address: SocketAddr },
    /// Cancel what is under way on the socket and close it; answered by `handle_gone`.
    Close { conn: Conn, socket: Socket },
    /// To be given to the next process: once nothing of it is under way, `take_leaver` says what
    /// goes along.
    Offer { client: u32, socket: Socket },
    /// Stop receiving from a client. Bytes may still arrive for a while.
    StopReading { socket: Socket },
    /// Receive from a client again.
    StartReading { socket: Socket },
    /// Tell the topology thread.
    Report(Report),
    /// Ask all other reactors for their parts of an answer; each answers by `handle_told`.
    Ask { ticket: u64, query: Arc<Query> },
    /// Give these lines to those reactors' clients that watch; lines may be lost.
    Show { to: Vec<u16>, lines: Arc<[u8]> },
    /// Tell people. Rare, and nothing depends on it.
    Note(Note),
}

/// What people may want to read in the log. Never a key, a value or a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A connection to a node failed or ended, not by our will.
    BackendLost { address: SocketAddr, why: &'static str },
    /// A node does not let us in: the first bytes of what it said.
    LoginRefused { address: SocketAddr, error: Box<str> },
    /// A script made its node send other frames than one reply.
    FenceBreach { address: SocketAddr },
    /// A client sent what is no request.
    ProtocolError { peer: SocketAddr, text: &'static str },
    /// A client was closed because of a limit.
    ClientClosed { peer: SocketAddr, why: &'static str },
}

/// What a reactor tells the topology thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A node said MOVED and was followed; or, not `known`, it named by MOVED or ASK a place that
    /// the map does not have.
    Moved { slot: u16, endpoint: Endpoint, from: SocketAddr, known: bool },
    /// A node was lost, timed out or refused to connect.
    NodeLost { address: SocketAddr },
    /// The map looks wrong (CLUSTERDOWN, READONLY, an unowned slot).
    WantRefresh,
    /// A client has loaded a script: the other reactors want to know its body.
    ScriptLoaded { body: Arc<[u8]> },
    /// A client has flushed all scripts.
    ScriptsFlushed,
}

/// What the proxy must know of its configuration. Sizes in bytes, times in milliseconds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// User and password towards nodes.
    pub node_user: Option<Box<str>>,
    pub node_password: Option<Secret>,
    /// Clients at once in this pool on this reactor; more are refused with an error line.
    pub clients_max: u32,
    /// Requests of one client in flight; more are left unread.
    pub client_requests_max: u32,
    /// Unsent reply bytes of one client over which it is not read any more.
    pub client_output_soft: usize,
    /// Unsent reply bytes over which no further reply is begun: the client is closed.
    pub client_output_limit: usize,
    /// Unsent bytes of one client over which no further message is given to it: it is closed.
    pub pubsub_output_limit: usize,
    /// Bytes of one unfinished request.
    pub client_query_limit: usize,
    /// Bytes of one word of a request.
    pub client_bulk_limit: u64,
    /// A client that says nothing for so long is closed; 0: never.
    pub client_idle_ms: u64,
    /// A client over its soft output mark that takes nothing for so long is closed.
    pub client_stall_ms: u64,
    /// A backend that answers nothing for so long while requests wait is closed.
    pub request_timeout_ms: u64,
    pub connect_timeout_ms: u64,
    /// From what redirects name to how the map calls it.
    pub address_map: AddressMap,
    pub redirects_max: u8,
    pub split_reads: bool,
    pub split_writes: bool,
    pub allow_keys: bool,
    /// CONFIG is for the nodes, not for us.
    pub allow_config: bool,
    pub allow_flush: bool,
    /// Bytes of all parts of one KEYS answer.
    pub keys_max_bytes: usize,
    /// Fenced backends for one node (and protocol).
    pub fence_lanes: usize,
    /// Keys from which on SCAN walks a slot in pieces: where a node's cursor names the slot, and
    /// where a piece means walking all keys of the node.
    pub walk_whole_max: u32,
    pub walk_whole_max_old: u64,
    /// Requests that took at least so long are logged; in microseconds, counted in milliseconds.
    pub slowlog_log_slower_than: u64,
    /// Entries of that log; 0: none is kept.
    pub slowlog_max_len: usize,
    /// Keys are looked at: PROXY HOTKEYS, PROXY BIGKEYS.
    pub sample_keys: bool,
    /// Backends that single clients have for themselves, for one node.
    pub private_backends_max: usize,
    /// Databases that clients may be in at a time.
    pub databases_max: u8,
}

impl Settings {
    /// `slowlog_log_slower_than` by the clock of a turn; never, if no entry is kept.
    pub fn slow_after_ms(&self) -> u32 {
        let ms = self.slowlog_log_slower_than.div_ceil(1_000).max(1);
        if self.slowlog_max_len == 0 { u32::MAX } else { u32::try_from(ms).unwrap_or(u32::MAX) }
    }

    /// Of a client that is logged in, until nodes have told theirs.
    pub fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            bulk_max: self.client_bulk_limit,
            total_max: self.client_query_limit as u64,
            ..RequestLimits::default()
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            node_user: None,
            node_password: None,
            clients_max: 10_000,
            client_requests_max: 4_096,
            client_output_soft: 1 << 20,
            client_output_limit: 256 << 20,
            pubsub_output_limit: 32 << 20,
            client_query_limit: 1 << 30,
            client_bulk_limit: REQUEST_BULK_MAX,
            client_idle_ms: 0,
            client_stall_ms: 60_000,
            request_timeout_ms: 5_000,
            connect_timeout_ms: 900,
            address_map: AddressMap::default(),
            redirects_max: 5,
            split_reads: true,
            split_writes: true,
            allow_keys: true,
            allow_config: false,
            allow_flush: true,
            keys_max_bytes: 64 << 20,
            fence_lanes: 2,
            walk_whole_max: 16 * 1024,
            walk_whole_max_old: 1024 * 1024,
            slowlog_log_slower_than: 10_000,
            slowlog_max_len: 128,
            sample_keys: false,
            private_backends_max: 256,
            databases_max: 16,
        }
    }
}

/// How much a reactor has to do, for telling how long it may wait for more.
#[derive(Copy, Clone, Debug, Default)]
pub struct UnderWay {
    pub clients: u64,
    /// Requests in the tables, parts of those that were cut included.
    pub requests: u64,
    /// Some are parts.
    pub cut: bool,
    /// Clients that wait for an answer.
    pub waiting: u64,
    /// Nodes' connections on which answers are due.
    pub nodes: u64,
}
