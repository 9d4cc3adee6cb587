//! What was asked, what nodes ran, in which order: the record that the checkers judge.
//!
//! Checked here while nodes run commands: *at most once* (a write runs never twice, and never after
//! it was answered with "has not run") and *order* (one client's writes to one slot run in its order).
//!
//! Inversions that are allowed, because nobody can prevent them: an elder A runs after a younger B
//! only if A was refused (MOVED, ASK, TRYAGAIN, CLUSTERDOWN, LOADING, ...) before B on the very
//! connection on which B then ran, and the proxy read that refusal in a turn not before the one in
//! which B was last launched (received from its client, or itself read as refused): B was behind A
//! on its way already, and they have no key in common. Or A's outcome is told as unknown: what was
//! written to a lost connection may run late.
//!
//! Not here: what replies may say (`checker`).

use std::collections::{BTreeMap, BTreeSet};

use ringway::cluster::slot_of;
use ringway::resp::Version;

use crate::item;

#[derive(Clone, Debug)]
pub struct Violation {
    pub checker: &'static str,
    pub text: String,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Set,
    Get,
    IncrBy,
    Incr,
    Append,
    Learned,
    MGet,
    MSet,
    Del,
    Exists,
    DbSize,
    Scan,
    /// RPUSH, BLPOP, WATCH.
    Push,
    BlPop,
    Watch,
    ScriptLoad,
    Reset,
    ReplyOn,
    Auth,
    Early,
    /// By index in `workload::SCRIPTS`.
    Eval(u8),
    /// The same by the script's name.
    EvalSha(u8),
    Wait,
    WaitAof,
    Ping,
    Echo,
    Hello(u8),
    ReplySkip,
    Unknown,
    CrossSlot,
    /// Into which database.
    Select(u8),
    /// MULTI, or a command behind it that is queued.
    Queued,
    /// EXEC: what it ran is in `History::transactions`.
    Exec,
    /// EXEC of a transaction in which something was refused.
    ExecAbort,
    BadProtocol,
    Quit,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Pending,
    Done,
    /// Answered with an error that says so.
    NotRun,
    Unknown,
    /// No reply is due.
    Silent,
    /// Its client left before.
    Left,
}

/// One command of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Answered OK, with the length, or with the sum.
    Set(Vec<u8>),
    Append(Vec<u8>),
    IncrBy(Vec<u8>),
    Get(Vec<u8>),
    /// Answered by the proxy with the request's token.
    Ping,
}

#[derive(Clone, Debug)]
pub struct Run {
    pub key: Vec<u8>,
    pub tick: u64,
    pub us: u64,
    pub result: i64,
    /// The node, and how far it had written then.
    pub written: (usize, u64),
}

#[derive(Clone, Debug)]
pub struct Request {
    pub client: usize,
    pub kind: Kind,
    pub version: Version,
    pub keys: Vec<Vec<u8>>,
    pub issued_us: u64,
    pub issued_tick: u64,
    /// The turn in which the proxy got its last byte.
    pub delivered: Option<u64>,
    pub outcome: Outcome,
    /// When its client left without the answer.
    pub left_us: Option<u64>,
    pub runs: Vec<Run>,
    pub refusals: Vec<Refusal>,
}

#[derive(Clone, Debug)]
pub struct Refusal {
    pub slot: u16,
    pub link: usize,
    pub tick: u64,
    /// The turn in which the proxy read it.
    pub read: Option<u64>,
}

impl Request {
    pub fn writes(&self) -> bool {
        !matches!(self.kind, Kind::Get | Kind::MGet | Kind::Exists)
    }

    /// The turn from which on it may have been on its way to where it ran.
    fn launched(&self, slot: u16) -> u64 {
        let again = self.refusals.iter().filter(|refusal| refusal.slot == slot);
        let again = again.filter_map(|refusal| refusal.read).max();
        again.unwrap_or(self.delivered.unwrap_or(0))
    }

    /// Whether `younger` may have run before this.
    fn lets_pass(&self, slot: u16, younger: &Place) -> bool {
        self.refusals.iter().any(|refusal| {
            refusal.slot == slot
                && refusal.link == younger.link
                && refusal.tick < younger.tick
                && refusal.read.is_none_or(|read| read >= younger.launched)
        })
    }
}

/// Where and when a write ran.
#[derive(Copy, Clone, Debug)]
struct Place {
    id: u32,
    link: usize,
    tick: u64,
    launched: u64,
}

/// A state of a key: content (0: none) from this tick on.
pub type State = (u64, u64);

#[derive(Default)]
pub struct History {
    /// By number; 0 is nobody's.
    pub requests: Vec<Request>,
    /// Counts commands that nodes ran: the clock of states.
    pub tick: u64,
    pub states: BTreeMap<Vec<u8>, Vec<State>>,
    pub by_key: BTreeMap<(usize, Vec<u8>), Vec<u32>>,
    /// What each EXEC runs, in order.
    pub transactions: BTreeMap<u32, Vec<Step>>,
    /// The WATCH that guards an EXEC, and its key.
    pub guards: BTreeMap<u32, (u32, Vec<u8>)>,
    /// When nodes ran WATCH, last.
    pub watches: BTreeMap<u32, u64>,
    pub now_us: u64,
    /// What nodes said to WAITAOF.
    pub told_synced: BTreeMap<u32, Vec<[u64; 2]>>,
    /// The node that runs something now, and how far it has written.
    pub written: (usize, u64),
    /// EVALSHA of scripts that the proxy must know.
    pub known_scripts: BTreeSet<u32>,
    /// When a node lost its scripts.
    pub forgotten_us: Vec<u64>,
    /// Another process has taken over: it knows no scripts yet.
    pub taken_over: bool,
    /// Since when those had been blocked for whom something was popped at last.
    pub woken: BTreeMap<u32, u64>,
    /// How long after a client left something may still be popped for it.
    pub slack_us: u64,
    /// Runs of INCR, which carries no number.
    pub increments: BTreeMap<Vec<u8>, u64>,
    /// Ticks at which something was refused or a connection lost: reads may have been repeated.
    pub disturbances: Vec<u64>,
    /// Those at which a connection was lost.
    pub losses: Vec<u64>,
    /// Keys of which two nodes had a copy, or of which a node knew nothing while another had it: who
    /// follows ASK when that migration is over and another has begun makes this happen, and the
    /// cluster specification has no remedy.
    pub forked: BTreeSet<Vec<u8>>,
    /// Slots that changed hands, and the ticks.
    pub moves: Vec<(u16, u64)>,
    order: BTreeMap<(usize, u16), Vec<Place>>,
    key_order: BTreeMap<(usize, Vec<u8>), Vec<u32>>,
    /// Elder, younger, slot.
    inversions: Vec<(u32, u32, u16)>,
    pub violation: Option<Violation>,
    pub answered: u64,
    pub errors: u64,
    pub runs: u64,
    pub inversions_allowed: u64,
    /// SCANs that came to their end.
    pub walks: u64,
    /// Scripts that were run by name, nodes that had not got them, WAITs that were held to account.
    pub by_name: u64,
    pub unknown: u64,
    pub waits: u64,
}

impl History {
    pub fn new() -> History {
        let mut history = History::default();
        history.open(0, Kind::Ping, Version::Resp2, 0);
        history.requests[0].outcome = Outcome::Silent;
        history
    }

    pub fn open(&mut self, client: usize, kind: Kind, version: Version, now_us: u64) -> u32 {
        self.requests.push(Request {
            client,
            kind,
            version,
            keys: Vec::new(),
            issued_us: now_us,
            issued_tick: self.tick,
            delivered: None,
            outcome: Outcome::Pending,
            left_us: None,
            runs: Vec::new(),
            refusals: Vec::new(),
        });
        self.requests.len() as u32 - 1
    }

    pub fn set_keys(&mut self, id: u32, keys: Vec<Vec<u8>>) {
        let client = self.requests[id as usize].client;
        for key in &keys {
            self.by_key.entry((client, key.clone())).or_default().push(id);
        }
        self.requests[id as usize].keys = keys;
    }

    pub fn violate(&mut self, checker: &'static str, text: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { checker, text });
        }
    }

    /// A node has changed a key.
    pub fn changed(&mut self, key: Vec<u8>, value: Option<&[u8]>) {
        let state = value.map_or(0, item::hash);
        self.states.entry(key).or_default().push((self.tick, state));
    }

    /// A node has run a request, or its part for `key`.
    pub fn ran(&mut self, id: u32, key: Vec<u8>, result: i64, link: usize) {
        self.runs += 1;
        if id == 0 {
            *self.increments.entry(key).or_default() += 1;
            return;
        }
        let tick = self.tick;
        let Some(request) = self.requests.get_mut(id as usize) else {
            return self.violate("garbage", format!("a node got request {id}, never asked"));
        };
        let before = request.runs.iter().filter(|run| run.key == key).count();
        let most = if request.writes() { 1 } else { 2 };
        let (outcome, kind) = (request.outcome, request.kind);
        let (us, written) = (self.now_us, self.written);
        request.runs.push(Run { key: key.clone(), tick, us, result, written });
        if before >= most {
            let text = format!("request {id} {kind:?} ran {} times", before + 1);
            return self.violate("at most once", text);
        }
        if outcome == Outcome::NotRun && most == 1 {
            let text = format!("request {id} {kind:?} ran although its answer said it had not");
            return self.violate("at most once", text);
        }
        if most == 1 {
            self.check_order(id, slot_of(&key), link);
            self.check_key_order(id, key);
        }
    }

    fn check_order(&mut self, id: u32, slot: u16, link: usize) {
        let request = &self.requests[id as usize];
        let place = Place { id, link, tick: self.tick, launched: request.launched(slot) };
        let ran = self.order.entry((request.client, slot)).or_default();
        for younger in ran.iter().filter(|ran| ran.id > id) {
            if request.lets_pass(slot, younger) {
                self.inversions_allowed += 1;
            } else {
                self.inversions.push((id, younger.id, slot));
            }
        }
        ran.push(place);
    }

    /// Of two that write the same key the elder runs first, whatever was refused.
    fn check_key_order(&mut self, id: u32, key: Vec<u8>) {
        let request = &self.requests[id as usize];
        let (client, slot) = (request.client, slot_of(&key));
        let ran = self.key_order.entry((client, key)).or_default();
        let passed = ran.iter().filter(|&&younger| younger > id);
        self.inversions.extend(passed.map(|&younger| (id, younger, slot)));
        ran.push(id);
    }

    /// Whether a younger request of its client and slot was sent before the proxy knew that this one
    /// had been refused: one that may have run before it.
    pub fn may_be_overtaken(&self, id: u32) -> bool {
        self.may_be_overtaken_by(id, |_| true)
    }

    /// The same by one of some kinds.
    pub fn may_be_overtaken_by(&self, id: u32, may: impl Fn(Kind) -> bool) -> bool {
        let request = &self.requests[id as usize];
        // Nodes cannot tell whose it was that they refused.
        let nameless = request.refusals.is_empty() && !carries_number(request.kind);
        let mut younger = self.requests[id as usize + 1..].iter();
        younger.any(|other| {
            let has = |slot: u16| other.keys.iter().any(|key| slot_of(key) == slot);
            let ahead = |refusal: &Refusal| {
                let sent =
                    other.delivered.is_some_and(|turn| refusal.read.is_none_or(|at| turn <= at));
                sent && has(refusal.slot)
            };
            let shares = || request.keys.iter().any(|key| has(slot_of(key)));
            other.client == request.client
                && may(other.kind)
                && (other.writes() || request.writes())
                && (request.refusals.iter().any(ahead)
                    || (nameless && other.delivered.is_some() && shares()))
        })
    }

    /// A node has refused a request. Returns the number of the refusal.
    pub fn refused(&mut self, id: u32, slot: u16, link: usize) -> usize {
        let tick = self.tick;
        let Some(request) = self.requests.get_mut(id as usize) else { return 0 };
        request.refusals.push(Refusal { slot, link, tick, read: None });
        request.refusals.len() - 1
    }

    /// The proxy has read it.
    pub fn refusal_read(&mut self, id: u32, number: usize, turn: u64) {
        let Some(request) = self.requests.get_mut(id as usize) else { return };
        if let Some(refusal) = request.refusals.get_mut(number) {
            refusal.read = Some(turn);
        }
    }

    pub fn lost(&mut self) {
        self.losses.push(self.tick);
        self.disturbed();
    }

    pub fn disturbed(&mut self) {
        self.disturbances.push(self.tick);
    }

    /// At the end: what could not be judged before.
    pub fn finish(&mut self) {
        for (elder, younger, slot) in std::mem::take(&mut self.inversions) {
            if self.requests[elder as usize].outcome == Outcome::Done {
                let text = format!(
                    "slot {slot}: request {elder} ran after {younger} of the same client: {:?} {:?}",
                    self.requests[elder as usize], self.requests[younger as usize]
                );
                self.violate("order", text);
            }
        }
        for id in 1..self.requests.len() as u32 {
            self.check_count(id);
            self.check_atomic(id);
        }
        self.check_pops();
        self.check_increments();
    }

    fn check_count(&mut self, id: u32) {
        let request = &self.requests[id as usize];
        if request.outcome != Outcome::Done || !carries_number(request.kind) {
            return;
        }
        let ran = |key: &&Vec<u8>| request.runs.iter().any(|run| run.key == **key);
        if let Some(key) = request.keys.iter().find(|key| !ran(key)) {
            let key = String::from_utf8_lossy(key).into_owned();
            let text =
                format!("request {id} {:?} was answered and never ran on {key}", request.kind);
            self.violate("at most once", text);
        }
    }

    /// A transaction runs as a whole, at one moment, or not at all.
    fn check_atomic(&mut self, id: u32) {
        let request = &self.requests[id as usize];
        if !matches!(request.kind, Kind::Exec | Kind::ExecAbort) || request.runs.is_empty() {
            return;
        }
        let moment = request.runs[0].tick;
        let whole = request
            .keys
            .iter()
            .all(|key| request.runs.iter().any(|run| run.key == *key && run.tick == moment));
        if !whole || request.kind == Kind::ExecAbort {
            let text = format!("transaction {id} ran in part: {request:?}");
            self.violate("atomic", text);
        }
    }

    fn check_increments(&mut self) {
        let mut told: BTreeMap<Vec<u8>, (u64, u64)> = BTreeMap::new();
        for request in self.requests.iter().filter(|request| request.kind == Kind::Incr) {
            let (done, unknown) = told.entry(request.keys[0].clone()).or_default();
            match request.outcome {
                Outcome::Done => *done += 1,
                Outcome::NotRun => (),
                _ => *unknown += 1,
            }
        }
        for (key, (done, unknown)) in told {
            let ran = self.increments.get(&key).copied().unwrap_or(0);
            if ran < done || ran > done + unknown {
                let key = String::from_utf8_lossy(&key).into_owned();
                let text = format!("INCR {key}: ran {ran}, answered {done}, unknown {unknown}");
                self.violate("at most once", text);
            }
        }
    }
}

/// Whether each run of it names the request and the key.
fn carries_number(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Set
            | Kind::IncrBy
            | Kind::Append
            | Kind::Learned
            | Kind::MSet
            | Kind::Exec
            | Kind::Push
    )
}
