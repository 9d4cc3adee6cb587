//! The commands that the proxy answers itself (routing-policy class K), and every reply text that
//! we originate. A table of small functions: request and session in, bytes out.
//!
//! Not here: which commands come here (`command`), looking a name up and checking its arity, the
//! tables of clients (CLIENT LIST, KILL and UNBLOCK are handed back to who holds them), and
//! everything that a node must be asked. No I/O, no clock: time is told.

pub mod client;
mod cluster;
mod config;
pub mod errors;
mod genpass;
pub mod glob;
mod help;
pub mod info;
mod login;
mod own_logs;
#[cfg(test)]
mod tests;

pub use client::{
    ClientFacts, ClientFilter, client_line, write_client_list, write_killed, write_moving,
};
pub use config::WORDS_MAX as CONFIG_WORDS_MAX;
pub use config::{all_known, is_own as is_own_option, pairs_of};
pub use glob::matches as glob_matches;
pub use help::proxy_help;
pub use own_logs::LogQuery;

use crate::cluster::{Endpoint, Topology};
use crate::command::{Args, Command, Flags};
use crate::limits::DATABASES_ANNOUNCED;
use crate::proxy::session::Session;
use crate::resp::Version;
use crate::resp::number::read_integer;
use crate::resp::write;

/// Who may log in. A secret: neither printed nor logged.
#[derive(Clone)]
pub struct User {
    pub name: Box<str>,
    /// None: any password is right (`nopass`).
    pub password: Option<Box<[u8]>>,
}

/// What this proxy is, the same for all reactors and as long as it runs.
#[derive(Clone)]
pub struct Identity {
    /// The server version that clients are told, e.g. `7.2.5`.
    pub version_announced: Box<str>,
    /// 40 lower-case hex digits; also the node id of the cluster face.
    pub run_id: [u8; 40],
    /// Empty: nobody needs to log in.
    pub users: Vec<User>,
    /// SELECT of any database is answered OK and changes nothing.
    pub ignore_select: bool,
    /// The user that may address single nodes and watch all clients; None: nobody.
    pub admin_user: Option<Box<str>>,
    /// SLOWLOG: from how many microseconds on, and how many entries.
    pub slowlog_log_slower_than: u64,
    pub slowlog_max_len: u32,
    pub maxclients: u32,
    pub listen_port: u16,
    /// What the cluster face names as its nodes; empty: the address that the client used.
    pub announce: Vec<Endpoint>,
    pub started_unix_s: u64,
    pub process_id: u32,
    pub reactors: u32,
    /// Seconds after which an idle client is closed; 0: never.
    pub idle_timeout_s: u32,
    /// As `uname` says it, e.g. `Linux 6.18.0 x86_64`.
    pub os: Box<str>,
    pub executable: Box<str>,
    /// Path of the configuration file; empty: none.
    pub config_file: Box<str>,
    /// The proxy's own options with what holds; no passwords.
    pub options: Vec<(&'static str, String)>,
    /// From the system's random source, drawn at start: the key of ACL GENPASS. A secret.
    pub secret: [u8; 32],
}

impl Identity {
    /// Of a proxy without a process. For unit tests only: its secret is none.
    #[cfg(test)]
    pub fn plain() -> Identity {
        Identity {
            version_announced: "7.2.5".into(),
            run_id: [b'0'; 40],
            users: Vec::new(),
            ignore_select: false,
            admin_user: None,
            slowlog_log_slower_than: 10_000,
            slowlog_max_len: 128,
            maxclients: 10_000,
            listen_port: 6379,
            announce: Vec::new(),
            started_unix_s: 0,
            process_id: 1,
            reactors: 1,
            idle_timeout_s: 0,
            os: "".into(),
            executable: "".into(),
            config_file: "".into(),
            options: Vec::new(),
            secret: [7; 32],
        }
    }

    /// Whether a client may run commands without logging in.
    pub fn open(&self) -> bool {
        self.users.is_empty()
            || self.users.iter().any(|user| &*user.name == "default" && user.password.is_none())
    }

    /// Another one when the user's password is another, or there is no such user any more. `None`:
    /// `default`.
    pub fn mark_of(&self, user: Option<&str>) -> [u8; 20] {
        let name = user.unwrap_or("default");
        let Some(known) = self.users.iter().find(|known| &*known.name == name) else {
            return [0; 20];
        };
        let mut sum = sha1_smol::Sha1::new();
        sum.update(name.as_bytes());
        sum.update(&[0, u8::from(known.password.is_some())]);
        sum.update(known.password.as_deref().unwrap_or_default());
        sum.digest().bytes()
    }
}

/// The counters that INFO shows: of the whole process, or of one reactor, as the caller has them.
#[derive(Copy, Clone, Default, Debug)]
pub struct Totals {
    pub clients: u64,
    /// Slots that nobody serves.
    pub slots_missing: u64,
    pub blocked_clients: u64,
    pub pubsub_clients: u64,
    pub connections_accepted: u64,
    pub connections_rejected: u64,
    /// Since the process started.
    pub commands: u64,
    pub error_replies: u64,
    pub protocol_errors: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub commands_per_second: u64,
    pub bytes_in_per_second: u64,
    pub bytes_out_per_second: u64,
    pub pubsub_channels: u64,
    pub pubsub_patterns: u64,
    pub pubsub_shard_channels: u64,
    /// Bytes.
    pub memory_used: u64,
    pub memory_limit: u64,
    pub memory_peak: u64,
    pub memory_rss: u64,
    pub memory_system: u64,
    /// Bodies of scripts that are kept.
    pub scripts: u64,
    /// CPU time in µs.
    pub cpu_system_us: u64,
    pub cpu_user_us: u64,
    /// Connections to nodes: shared ones, and those lent to single clients.
    pub backends: u64,
    pub backends_private: u64,
    pub requests_in_flight: u64,
    /// MOVED and ASK.
    pub redirects_moved: u64,
    pub redirects_ask: u64,
    pub retries_tryagain: u64,
    pub retries_other: u64,
    pub timeouts: u64,
    pub backends_lost: u64,
    /// Requests that were cut by slot.
    pub splits: u64,
    /// Sends to nodes and to clients: how well requests and replies are batched.
    pub sends_to_nodes: u64,
    pub sends_to_clients: u64,
    /// Calls of io_uring_enter, and what they brought.
    pub ring_enters: u64,
    pub ring_completions: u64,
    pub fence_breaches: u64,
    /// Because memory was short.
    pub clients_slowed: u64,
    pub buffers_exhausted: u64,
    pub queue_overflows: u64,
    pub submissions_full: u64,
    pub clients_closed_for_memory: u64,
    /// Of samples since the process started, µs.
    pub latency_p50_us: u64,
    pub latency_p99_us: u64,
    pub latency_p999_us: u64,
}

/// Whether this is an INFO with sections that only the nodes know.
pub fn info_needs_nodes(command: &Command, args: &Args) -> bool {
    command.name == "INFO" && info::needs_nodes(args)
}

/// What an answer may depend on besides the request and its client.
pub struct World<'a> {
    pub identity: &'a Identity,
    /// None: no map has been learnt yet.
    pub topology: Option<&'a Topology>,
    /// How many databases each node has; `None`: not known.
    pub databases: Option<u64>,
    pub totals: &'a Totals,
    /// Monotonic, ms.
    pub now_ms: u64,
    /// Wall clock, µs since 1970.
    pub unix_us: u64,
    /// A fresh random number.
    pub random: u64,
}

impl World<'_> {
    /// How many databases clients are told of.
    fn databases(&self) -> u64 {
        let known = self.databases.filter(|_| !self.identity.ignore_select);
        known.unwrap_or(DATABASES_ANNOUNCED.into())
    }
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The reply is in `out`; empty if the client asked for none (CLIENT REPLY).
    Replied,
    /// The reply is in `out`; close after it has been sent (QUIT).
    Close,
    /// Write a `client_line` of each client that the filter matches, then `write_client_list`.
    /// `out` is untouched.
    ListClients(Box<ClientFilter>),
    /// Close the clients that the filter matches, then `write_killed`; the asking client itself
    /// only after its reply has been sent. `out` is untouched.
    KillClients(Box<ClientFilter>),
    /// If that client is blocked: end its wait as by time-out, or with `errors::unblocked`. Then
    /// reply `:1`, else `:0`. `out` is untouched.
    Unblock { id: u64, error: bool },
    /// Ask the slow logs of all reactors. `out` is untouched.
    SlowLog(LogQuery),
    /// All reactors begin to count anew; then reply OK. `out` is untouched.
    ResetCounts,
    /// Not answered here after all: forward to any primary. `out` is untouched.
    AnyNode,
    /// RESET: the session is back at the start and the reply is in `out`. The caller drops what
    /// it holds itself: MULTI, WATCH, subscriptions, private backends.
    ResetAll,
}

/// Whether a client may send this before it has logged in.
pub fn allowed_before_auth(command: &Command) -> bool {
    command.flags.has(Flags::NO_AUTH)
}

/// Answers a command of class K (local), O (state in the connection) or P (refused) whose arity is
/// right. What has no answer here is refused by name.
/// `args` begins with the command's name. Appends to `out`.
pub fn answer(
    command: &Command,
    args: &Args,
    session: &mut Session,
    world: &World,
    out: &mut Vec<u8>,
) -> Answer {
    if command.name == "PING" {
        return ping(args, session, out);
    }
    match command.name.split_once('|') {
        None => plain(command, args, session, world, out),
        Some((container, "HELP")) => help::answer(container, out),
        Some(("CLIENT", sub)) => client::answer(sub, args, session, world, out),
        Some(("CLUSTER", sub)) => cluster::answer(sub, args, session, world, out),
        Some(("CONFIG", sub)) => config::answer(sub, args, session, world, out),
        Some(("ACL", sub)) => acl(sub, args, session, world, out),
        Some(("COMMAND", _)) => Answer::AnyNode,
        Some((container @ ("SLOWLOG" | "COMMANDLOG" | "LATENCY" | "HOTKEYS"), sub)) => {
            own_logs::answer(container, sub, args, session, out)
        }
        // Its field sets live in the connection (routing-policy class O).
        Some(("HIMPORT", _)) => {
            errors::not_yet(out, command.name);
            Answer::Replied
        }
        Some(_) => refuse(command.name, out),
    }
}

fn ping(args: &Args, session: &Session, out: &mut Vec<u8>) -> Answer {
    if args.len() > 2 {
        errors::wrong_arity(out, "PING");
    } else if session.subscriptions > 0 && session.version == Version::Resp2 {
        write::array_header(out, 2);
        write::bulk(out, b"pong");
        write::bulk(out, args.get(1).unwrap_or_default());
    } else if let Some(text) = args.get(1) {
        write::bulk(out, text);
    } else {
        write::simple(out, "PONG");
    }
    Answer::Replied
}

fn plain(
    command: &Command,
    args: &Args,
    session: &mut Session,
    world: &World,
    out: &mut Vec<u8>,
) -> Answer {
    match command.name {
        "ECHO" => write::bulk(out, args.get(1).unwrap_or_default()),
        "HELLO" => login::hello(args, session, world, out),
        "AUTH" => login::auth(args, session, world, out),
        "SELECT" => select(args, session, world, out),
        "INFO" => info::answer(args, session, world, out),
        "TIME" => time(world, out),
        "ROLE" => role(out),
        "READONLY" => {
            session.readonly = true;
            write::simple(out, "OK");
        }
        "READWRITE" => {
            session.readonly = false;
            write::simple(out, "OK");
        }
        // The client believes in a redirect, and we follow those ourselves.
        "ASKING" => write::simple(out, "OK"),
        // Begun by who holds the tables (`proxy/monitor`), and not inside MULTI.
        "MONITOR" => errors::not_in_multi(out),
        "QUIT" => {
            write::simple(out, "OK");
            return Answer::Close;
        }
        "RESET" => {
            session.reset(world.identity.open());
            write::simple(out, "RESET");
            return Answer::ResetAll;
        }
        "COMMAND" | "LOLWUT" => return Answer::AnyNode,
        name => return refuse(name, out),
    }
    Answer::Replied
}

/// As a node in cluster mode, but numbers that no server takes are out of range first. Databases
/// that nodes may have are entered elsewhere (`proxy/databases`); here nothing changes.
fn select(args: &Args, session: &Session, world: &World, out: &mut Vec<u8>) {
    let Some(index) = read_integer(args.get(1).unwrap_or_default()) else {
        return errors::not_integer(out);
    };
    if i32::try_from(index).is_err() {
        let (low, high) = (i32::MIN, i32::MAX);
        let text = format!("ERR value is out of range, value must between {low} and {high}");
        return errors::fixed(out, &text);
    }
    let known = (0..i64::from(DATABASES_ANNOUNCED)).contains(&index);
    match index {
        _ if index == i64::from(session.database) => write::simple(out, "OK"),
        1.. if world.identity.ignore_select => write::simple(out, "OK"),
        _ if known => errors::fixed(out, "ERR SELECT is not allowed in cluster mode"),
        _ => errors::fixed(out, "ERR DB index is out of range"),
    }
}

fn time(world: &World, out: &mut Vec<u8>) {
    write::array_header(out, 2);
    write::bulk(out, (world.unix_us / 1_000_000).to_string().as_bytes());
    write::bulk(out, (world.unix_us % 1_000_000).to_string().as_bytes());
}

/// A primary without replicas.
fn role(out: &mut Vec<u8>) {
    write::array_header(out, 3);
    write::bulk(out, b"master");
    write::integer(out, 0);
    write::array_header(out, 0);
}

/// The categories of redis-server 7.0 (acl.c).
const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

fn acl(sub: &str, args: &Args, session: &mut Session, world: &World, out: &mut Vec<u8>) -> Answer {
    match sub {
        "WHOAMI" => write::bulk(out, session.user_name().as_bytes()),
        "CAT" if args.len() == 2 => {
            write::array_header(out, CATEGORIES.len());
            CATEGORIES.iter().for_each(|category| write::bulk(out, category.as_bytes()));
        }
        // Which commands a category holds depends on the nodes' version.
        "CAT" if args.len() == 3 => return Answer::AnyNode,
        "CAT" => errors::wrong_arity(out, "ACL|CAT"),
        "GENPASS" => genpass::answer(args, session, world, out),
        _ => errors::refused(out, &format!("ACL {sub}")),
    }
    Answer::Replied
}

fn refuse(name: &str, out: &mut Vec<u8>) -> Answer {
    errors::refused(out, name);
    Answer::Replied
}
