//! What only all reactors together know: who is connected, killed or unblocked, who subscribes.
//!
//! ```text
//! run_together ──► Action::Ask ──► the reactor's channels ──► handle_asked at each peer
//!      │ our own part                                              │
//!      ▼                                                           ▼
//!   Inquiry ◄──────────────────── handle_told ◄────────────── its part
//!      └─ all parts are here, or it is too late ──► conclude: one reply in its client's order
//! ```
//! The client's later commands wait meanwhile, so each has at most one inquiry under way.
//!
//! Not here: how questions travel (`reactor/peers`), the words of the replies (`local`), a single
//! reactor's part (`clients`, `introspect`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Proxy;
use super::crowd::EFFORT_TOGETHER;
use super::dispatch::{Asked, Ran};
use super::hot_keys::{BigKey, HotKey, KeyQuery, write_big, write_hot};
use super::local::{self, Answer, ClientFilter, LogQuery, errors, write_client_list, write_killed};
use super::pubsub::Kind;
use super::receivers::Published;
use super::request::State;
use super::slowlog::{Slow, Spikes, write_entries};
use super::split::Merge;
use super::types::{Action, NO_SLOT, NONE, Now};
use crate::command::{Args, Command};
use crate::limits::PEERS_MS_MAX;
use crate::resp::request::{RequestLimits, RequestParser};
use crate::resp::{Version, write};

/// What a reactor is asked for its part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query {
    /// CLIENT LIST: the lines of its clients.
    List(ClientFilter),
    /// CLIENT KILL: how many it has closed.
    Kill(ClientFilter),
    /// CLIENT UNBLOCK: 1 if that client was its own and blocked.
    Unblock { id: u64, error: bool },
    /// INFO: its counts of clients.
    Counts,
    /// PUBSUB NUMSUB, SHARDNUMSUB: what its clients add to the nodes' counts.
    Shares { kind: Kind, names: Vec<Box<[u8]>> },
    /// PUBLISH, SPUBLISH: what its clients add to the node's count of receivers.
    Receivers(Vec<Published>),
    /// PUBSUB NUMPAT: its patterns.
    Patterns,
    /// SLOWLOG
    SlowLog(LogQuery),
    /// CONFIG SET of the proxy's own options: asked of the main thread alone.
    Configure(Vec<(String, String)>),
    /// PROXY HOTKEYS, BIGKEYS
    Keys(KeyQuery),
    /// CONFIG RESETSTAT: count anew.
    ResetCounts,
    /// The asking reactor has clients that watch by MONITOR, or none any more. Not waited for.
    Monitor { watched: bool },
}

/// One reactor's part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// It has ended, and its clients with it.
    Ended,
    Lines(Vec<u8>),
    Number(u64),
    Counts(ClientCounts),
    Shares(Vec<i64>),
    Patterns(Vec<PatternShare>),
    Slow(Vec<Slow>),
    Spikes(Spikes),
    /// What the main thread says: the option that it refused, and why.
    Granted(Option<(String, String)>),
    Keys(Vec<HotKey>, Vec<BigKey>),
}

/// The main thread, among those who are asked.
pub const MAIN: u16 = u16::MAX;

/// How many clients there are, and what they were told.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientCounts {
    pub connected: u64,
    pub blocked: u64,
    pub subscribed: u64,
    /// Error replies so far.
    pub errors: u64,
}

/// A pattern of one reactor: whether a client wants it, and the nodes that count it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatternShare {
    pub name: Arc<[u8]>,
    pub wanted: bool,
    pub nodes: Vec<SocketAddr>,
}

/// A question under way.
#[derive(Debug)]
struct Inquiry {
    request: u32,
    asked: Asked,
    /// The whole request.
    bytes: Vec<u8>,
    query: Arc<Query>,
    /// Peers that have not said their part.
    missing: Vec<u16>,
    until_ms: u64,
    told: Vec<Told>,
    /// Its own client is to be closed after the reply.
    close: bool,
}

/// All of one reactor and pool.
#[derive(Debug, Default)]
pub struct Inquiries {
    /// The other reactors.
    pub peers: Vec<u16>,
    next_ticket: u64,
    open: BTreeMap<u64, Inquiry>,
}

/// Of a question whose answer nobody waits for.
pub const NO_TICKET: u64 = u64::MAX;

impl Inquiries {
    /// Names a question, once.
    pub fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }
}

/// Commands whose answer is not one reactor's alone.
pub(super) fn is_shared(command: &Command) -> bool {
    matches!(
        command.name,
        "CLIENT|LIST"
            | "CLIENT|KILL"
            | "CLIENT|UNBLOCK"
            | "INFO"
            | "PUBSUB|NUMSUB"
            | "PUBSUB|SHARDNUMSUB"
            | "PUBSUB|NUMPAT"
    )
}

fn is_log(command: &Command) -> bool {
    let container = command.name.split('|').next().unwrap_or_default();
    let is_log = matches!(container, "SLOWLOG" | "COMMANDLOG" | "LATENCY");
    is_log && !command.name.ends_with("HELP") || command.name == "CONFIG|RESETSTAT"
}

impl Proxy {
    /// These are the other reactors.
    pub fn handle_peers(&mut self, peers: Vec<u16>) {
        self.inquiries.peers = peers;
    }

    pub(super) fn has_peers(&self) -> bool {
        !self.inquiries.peers.is_empty()
    }

    /// Whether others have to be asked; or all logs, were it only one.
    pub(super) fn asks_peers(&self, command: &Command) -> bool {
        (self.has_peers() && is_shared(command)) || is_log(command)
    }

    /// A command that all reactors answer together.
    pub(super) fn run_together(&mut self, asked: Asked, args: &Args) -> Ran {
        let c = asked.client;
        if self.waits_for_elders(c) {
            return Ran::HoldBack;
        }
        self.tally.commands_local += 1;
        let mut out = Vec::new();
        let Some(query) = self.query_of(asked, args, &mut out) else {
            self.reply_local(c, &out, self.clients[c].session.wants_reply());
            return Ran::Yes;
        };
        self.inquire(asked, args, query)
    }

    /// Asks all reactors, this one first.
    pub(super) fn inquire(&mut self, asked: Asked, args: &Args, query: Query) -> Ran {
        let c = asked.client;
        self.crowd.effort += self.effort_of(asked.command, args).max(EFFORT_TOGETHER);
        // First: the question itself is not among what its client waits for.
        let (own, close) = self.own_part(&query, Some((c, args.bytes.len())));
        let r = self.open_for(asked, NO_SLOT);
        self.requests[r].state = State::Inquiring;
        self.clients[c].push(r, &mut self.requests);
        self.clients[c].barrier = true;
        let query = Arc::new(query);
        let ticket = self.inquiries.ticket();
        let inquiry = Inquiry {
            request: r,
            asked,
            bytes: args.bytes.to_vec(),
            query: query.clone(),
            missing: match query.as_ref() {
                Query::Configure(_) => vec![MAIN],
                _ => self.inquiries.peers.clone(),
            },
            until_ms: self.now.ms + PEERS_MS_MAX,
            told: vec![own],
            close,
        };
        let known =
            matches!(query.as_ref(), Query::Unblock { .. }) && inquiry.told == [Told::Number(1)];
        self.inquiries.open.insert(ticket, inquiry);
        let asks_main = matches!(query.as_ref(), Query::Configure(_));
        if known || (self.inquiries.peers.is_empty() && !asks_main) {
            self.conclude(ticket);
        } else {
            self.actions.push(Action::Ask { ticket, query });
        }
        Ran::Yes
    }

    /// What to ask for a command. `None`: the reply is in `out`.
    fn query_of(&mut self, asked: Asked, args: &Args, out: &mut Vec<u8>) -> Option<Query> {
        match asked.command.name {
            "INFO" => Some(Query::Counts),
            "PUBSUB|NUMPAT" => Some(Query::Patterns),
            "CONFIG|SET" => Some(Query::Configure(local::pairs_of(args))),
            "PUBSUB|NUMSUB" | "PUBSUB|SHARDNUMSUB" => {
                let sharded = asked.command.name == "PUBSUB|SHARDNUMSUB";
                let kind = if sharded { Kind::Shard } else { Kind::Channel };
                Some(Query::Shares { kind, names: args.iter().skip(2).map(Into::into).collect() })
            }
            _ => match self.local_answer(asked.client, asked.command, args, out) {
                Answer::ListClients(filter) => Some(Query::List(*filter)),
                Answer::KillClients(filter) => Some(Query::Kill(*filter)),
                Answer::Unblock { id, error } => Some(Query::Unblock { id, error }),
                Answer::SlowLog(query) => Some(Query::SlowLog(query)),
                Answer::ResetCounts => Some(Query::ResetCounts),
                _ => None,
            },
        }
    }

    /// This reactor's part. `asking`: the client, if it is one of ours, and the bytes of what it
    /// asks; whether it is itself to be closed.
    fn own_part(&mut self, query: &Query, asking: Option<(u32, usize)>) -> (Told, bool) {
        match query {
            Query::List(filter) => (Told::Lines(self.client_lines(filter, asking)), false),
            Query::Kill(filter) => {
                let (killed, own) = self.kill_clients(asking.map_or(NONE, |of| of.0), filter);
                (Told::Number(killed), own)
            }
            Query::Unblock { id, error } => {
                (Told::Number(u64::from(self.unblock(*id, *error))), false)
            }
            Query::Counts => (Told::Counts(self.client_counts()), false),
            Query::Shares { kind, names } => (Told::Shares(self.own_shares(*kind, names)), false),
            Query::Receivers(all) => {
                let more = |of: &Published| self.own_receivers(of.sharded, &of.channel);
                (Told::Shares(all.iter().map(more).collect()), false)
            }
            Query::Patterns => (Told::Patterns(self.own_patterns()), false),
            Query::SlowLog(LogQuery::Get(count) | LogQuery::Shares(count)) => {
                (Told::Slow(self.slow_log.newest(*count)), false)
            }
            Query::SlowLog(LogQuery::Len) => (Told::Number(self.slow_log.len() as u64), false),
            Query::SlowLog(LogQuery::Reset) => {
                self.slow_log.clear();
                (Told::Number(0), false)
            }
            Query::SlowLog(LogQuery::Forget) => (Told::Spikes(self.slow_log.take_spikes()), false),
            Query::SlowLog(LogQuery::Latest | LogQuery::History | LogQuery::Graph) => {
                (Told::Spikes(self.slow_log.spikes().clone()), false)
            }
            Query::Keys(query) => {
                let (hot, big) = self.key_watch.told(*query);
                (Told::Keys(hot, big), false)
            }
            Query::ResetCounts => {
                self.reset_counts();
                (Told::Number(0), false)
            }
            Query::Monitor { .. } | Query::Configure(_) => (Told::Number(0), false),
        }
    }

    /// CONFIG RESETSTAT where the others are not waited for.
    pub(super) fn reset_all_counts(&mut self) {
        self.reset_counts();
        if self.has_peers() {
            let query = Arc::new(Query::ResetCounts);
            self.actions.push(Action::Ask { ticket: NO_TICKET, query });
        }
    }

    /// Another reactor asks.
    pub fn handle_asked(&mut self, from: u16, query: &Query, now: Now) -> Told {
        self.now = now;
        if let Query::Monitor { watched } = query {
            self.note_watcher(from, *watched);
        }
        self.own_part(query, None).0
    }

    /// Another reactor has said its part.
    pub fn handle_told(&mut self, ticket: u64, from: u16, told: Told, now: Now) {
        self.now = now;
        // Its client may have left, or been told that it is too late.
        let Some(inquiry) = self.inquiries.open.get_mut(&ticket) else {
            return self.count_receivers(ticket, from, &told);
        };
        let before = inquiry.missing.len();
        inquiry.missing.retain(|&peer| peer != from);
        if inquiry.missing.len() < before {
            inquiry.told.push(told);
        }
        if inquiry.missing.is_empty() {
            self.conclude(ticket);
        }
    }

    /// Another reactor has ended, and its clients with it.
    pub fn handle_peer_left(&mut self, from: u16, now: Now) {
        self.inquiries.peers.retain(|&peer| peer != from);
        self.note_watcher(from, false);
        let tickets: Vec<u64> = self.inquiries.open.keys().copied().collect();
        for ticket in tickets.into_iter().chain(self.receivers.ticket()) {
            self.handle_told(ticket, from, Told::Ended, now);
        }
        // Told in the middle of a flush, perhaps: the next turn is to come at once.
        self.urgent = true;
    }

    /// Those that a peer has kept waiting for too long.
    pub(super) fn check_inquiries(&mut self) {
        self.check_receivers();
        let now_ms = self.now.ms;
        let late = self.inquiries.open.iter().filter(|(_, inquiry)| now_ms >= inquiry.until_ms);
        let late: Vec<u64> = late.map(|(&ticket, _)| ticket).collect();
        for ticket in late {
            let Some(inquiry) = self.inquiries.open.remove(&ticket) else { continue };
            let mut out = Vec::new();
            match inquiry.query.as_ref() {
                // INFO is what tells whether all is well: then with what was last published.
                Query::Counts => self.write_info(&inquiry, &mut out),
                _ => errors::peers_late(&mut out),
            }
            self.complete(inquiry.request, &out);
            self.end_inquiry(&inquiry);
        }
    }

    /// The client of a question has left.
    pub(super) fn forget_inquiry(&mut self, r: u32) {
        self.inquiries.open.retain(|_, inquiry| inquiry.request != r);
    }

    /// All have said their parts.
    fn conclude(&mut self, ticket: u64) {
        let Some(inquiry) = self.inquiries.open.remove(&ticket) else { return };
        let (r, c, told) = (inquiry.request, inquiry.asked.client, inquiry.told.as_slice());
        let mut out = Vec::new();
        match inquiry.query.as_ref() {
            Query::List(_) => {
                let version = self.clients[c].session.version;
                write_client_list(&mut out, version, &joined_lines(told));
            }
            Query::Kill(filter) => write_killed(&mut out, filter, sum_of(told)),
            Query::Unblock { .. } => write::integer(&mut out, sum_of(told).min(1) as i64),
            Query::SlowLog(query) => {
                self.write_log(*query, told, self.clients[c].session.version, &mut out);
            }
            Query::Configure(_) => match told.last() {
                Some(Told::Granted(Some((option, why)))) => {
                    errors::not_configured(&mut out, option, why);
                }
                _ => write::simple(&mut out, "OK"),
            },
            Query::Keys(query) => write_keys(*query, told, &mut out),
            Query::ResetCounts => {
                // Others' old counts may have been added up since.
                self.reset_counts();
                write::simple(&mut out, "OK");
            }
            // Nobody asks these for a reply of its own.
            Query::Monitor { .. } | Query::Receivers(_) => write::simple(&mut out, "OK"),
            Query::Counts => {
                self.count_clients(&inquiry);
                self.write_info(&inquiry, &mut out);
            }
            Query::Shares { .. } => {
                let adjust = sums_by_place(told);
                let request = (inquiry.asked, inquiry.bytes.as_slice());
                return self.ask_primaries_for(r, request, Merge::Counts, &adjust);
            }
            Query::Patterns => {
                let adjust = [pattern_share(told)];
                let request = (inquiry.asked, inquiry.bytes.as_slice());
                return self.ask_primaries_for(r, request, Merge::Sum, &adjust);
            }
        }
        self.complete(r, &out);
        self.end_inquiry(&inquiry);
    }

    fn end_inquiry(&mut self, inquiry: &Inquiry) {
        if inquiry.close {
            self.hear_no_more(inquiry.asked.client);
        }
    }

    /// The counts of this moment: those published are up to a second old.
    fn count_clients(&mut self, inquiry: &Inquiry) {
        let mut sum = ClientCounts::default();
        for told in &inquiry.told {
            if let Told::Counts(counts) = told {
                sum.connected += counts.connected;
                sum.blocked += counts.blocked;
                sum.subscribed += counts.subscribed;
                sum.errors += counts.errors;
            }
        }
        self.freshen_totals();
        self.totals.error_replies = sum.errors;
        self.totals.clients = sum.connected;
        self.totals.blocked_clients = sum.blocked;
        self.totals.pubsub_clients = sum.subscribed;
    }

    fn write_info(&mut self, inquiry: &Inquiry, out: &mut Vec<u8>) {
        let mut spans = Vec::new();
        let limits = RequestLimits::default();
        // Of this reactor: its client has told it of those that it asks for.
        self.totals.scripts = self.scripts.len() as u64;
        if RequestParser::default().parse(&inquiry.bytes, &limits, &mut spans).is_ok() {
            let args = Args { bytes: &inquiry.bytes, spans: &spans };
            self.local_answer(inquiry.asked.client, inquiry.asked.command, &args, out);
        }
    }

    fn write_log(&self, query: LogQuery, told: &[Told], version: Version, out: &mut Vec<u8>) {
        let spikes = || {
            let spikes = |told: &Told| match told {
                Told::Spikes(spikes) => Some(spikes.clone()),
                _ => None,
            };
            Spikes::join(&told.iter().filter_map(spikes).collect::<Vec<_>>())
        };
        // Each reactor keeps as many as all may have together.
        let max = self.settings.slowlog_max_len;
        match query {
            LogQuery::Get(count) | LogQuery::Shares(count) => {
                let entries = |told: &Told| match told {
                    Told::Slow(entries) => entries.clone(),
                    _ => Vec::new(),
                };
                let shares = matches!(query, LogQuery::Shares(_));
                let entries = told.iter().flat_map(entries).collect();
                write_entries(entries, count.min(max), shares, out);
            }
            LogQuery::Len => write::integer(out, sum_of(told).min(max as u64) as i64),
            LogQuery::Reset => write::simple(out, "OK"),
            LogQuery::Forget => write::integer(out, i64::from(!spikes().is_empty())),
            LogQuery::Latest => spikes().write_latest(out),
            LogQuery::History => spikes().write_history(out),
            LogQuery::Graph => match spikes().draw() {
                Some(text) => write::verbatim(out, version, b"txt", text.as_bytes()),
                None => errors::no_samples(out),
            },
        }
    }

    fn client_counts(&self) -> ClientCounts {
        let [connected, blocked, .., subscribed, errors] = self.own_counts();
        ClientCounts { connected, blocked, subscribed, errors }
    }

    /// What `local` says to a command of this client.
    pub(super) fn local_answer(
        &mut self,
        c: u32,
        command: &Command,
        args: &Args,
        out: &mut Vec<u8>,
    ) -> Answer {
        let random = self.random();
        let session = &mut self.clients[c].session;
        let world = local::World {
            identity: &self.identity,
            topology: self.topology.as_deref(),
            databases: self.databases.announced,
            totals: &self.totals,
            now_ms: self.now.ms,
            unix_us: self.now.unix_us,
            random,
        };
        local::answer(command, args, session, &world, out)
    }
}

fn sum_of(told: &[Told]) -> u64 {
    let number = |told: &Told| if let Told::Number(number) = told { *number } else { 0 };
    told.iter().map(number).sum()
}

fn write_keys(query: KeyQuery, told: &[Told], out: &mut Vec<u8>) {
    let (mut hot, mut big) = (Vec::new(), Vec::new());
    for told in told {
        if let Told::Keys(hots, bigs) = told {
            hot.extend_from_slice(hots);
            big.extend_from_slice(bigs);
        }
    }
    match query {
        KeyQuery::Hot => write_hot(&hot, out),
        KeyQuery::Big => write_big(&big, out),
        KeyQuery::ForgetHot | KeyQuery::ForgetBig => write::simple(out, "OK"),
    }
}

/// In the order of their ids, which begin the lines.
fn joined_lines(told: &[Told]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = Vec::new();
    for told in told {
        if let Told::Lines(text) = told {
            lines.extend(text.split_inclusive(|&byte| byte == b'\n'));
        }
    }
    lines.sort_by_cached_key(|line| {
        let digits = line.iter().skip(3).take_while(|byte| byte.is_ascii_digit());
        digits.fold(0_u64, |id, byte| id.wrapping_mul(10) + u64::from(byte - b'0'))
    });
    lines.concat()
}

fn sums_by_place(told: &[Told]) -> Vec<i64> {
    let mut sums = Vec::new();
    for told in told {
        if let Told::Shares(shares) = told {
            sums.resize(sums.len().max(shares.len()), 0);
            sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        }
    }
    sums
}

/// What is added to the nodes' counts of patterns: each pattern counts once for all who want it,
/// and a node counts it once for all reactors.
fn pattern_share(told: &[Told]) -> i64 {
    let mut patterns: BTreeMap<&[u8], (bool, Vec<SocketAddr>)> = BTreeMap::new();
    for told in told {
        let Told::Patterns(shares) = told else { continue };
        for share in shares {
            let (wanted, nodes) = patterns.entry(&share.name).or_default();
            *wanted |= share.wanted;
            nodes.extend(&share.nodes);
        }
    }
    let share = |(wanted, mut nodes): (bool, Vec<SocketAddr>)| {
        nodes.sort_unstable();
        nodes.dedup();
        i64::from(wanted) - nodes.len() as i64
    };
    patterns.into_values().map(share).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_reactors_stand_in_the_order_of_ids() {
        let told = [
            Told::Lines(b"id=12 a\nid=2 b\n".to_vec()),
            Told::Ended,
            Told::Lines(b"id=3 c\n".to_vec()),
        ];
        assert_eq!(joined_lines(&told), b"id=2 b\nid=3 c\nid=12 a\n");
    }

    #[test]
    fn pattern_that_two_reactors_want_at_one_node_counts_once() {
        let node = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let share = |name: &[u8], wanted, ports: &[u16]| PatternShare {
            name: name.into(),
            wanted,
            nodes: ports.iter().map(|&port| node(port)).collect(),
        };
        // Nodes say: 1 has a and b, 2 has a: three in all.
        let told = [
            Told::Patterns(vec![share(b"a", true, &[1, 2]), share(b"b", false, &[1])]),
            Told::Patterns(vec![share(b"a", true, &[1])]),
        ];
        assert_eq!(3 + pattern_share(&told), 1);
    }

    #[test]
    fn shares_of_channels_are_added_place_by_place() {
        let told = [Told::Shares(vec![2, 0]), Told::Ended, Told::Shares(vec![1, -1])];
        assert_eq!(sums_by_place(&told), [3, -1]);
    }
}
