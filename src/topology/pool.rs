//! One cluster as the topology thread knows it: what reports and answers change, and whom they are
//! told to. Pure: told time and values, returns updates.
//!
//! Not here: when to ask (`schedule`), asking and name resolution (`talk`, `resolve`).

use super::schedule::{Known, Outcome, Schedule, Target};
use super::settings::PoolSettings;
use super::{Report, RequestBounds, Update};
use crate::cluster::{AddressMap, Choice, Endpoint, Node, SLOTS, SlotMap, Topology, Witnesses};
use crate::command::Learned;
use crate::limits::{NODES_MAX, REFRESH_URGENT_MS, UNCONFIRMED_MAX};
use crate::log::Log;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The same slot is broadcast at most this often: two nodes that each name the other would have
/// every request reported.
const SLOT_GAP_MS: u64 = 100;

/// A MOVED that the next maps do not confirm is forgotten after this time.
const PATCH_TRUSTED_MS: u64 = 1000;

/// How soon after the last one a refresh for an unknown redirect target may be: less than the
/// request waits, not so little that forged redirects become a storm of refreshes.
const CONFIRM_GAP_MS: u64 = 500;

/// How long the map counts as in doubt after the owner of slots was lost: the nodes need
/// `cluster-node-timeout` (15 s by default) and an election to agree on a successor.
const LOST_MS: u64 = 30_000;
const LOST_MAX: usize = 64;
/// How long one report of a loss makes for haste. A reactor that wants the node and still does not
/// reach it reports again before: a connection's time-out and the longest backoff are shorter.
const HURRY_MS: u64 = 3_500;

/// What a node told, its names resolved.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) topology: Topology,
    /// The node says that the cluster is ok.
    pub(super) ok: bool,
    /// How large requests it takes.
    pub(super) bounds: RequestBounds,
    /// Who told it.
    pub(super) teller: Box<str>,
}

/// Why nothing was told.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// False: no connection came about.
    pub(super) connected: bool,
    pub(super) reason: String,
}

/// The log, and the time that stands before its lines.
pub(super) struct Say<'a> {
    pub(super) log: &'a mut Log,
    pub(super) unix_us: u64,
}

/// How long the same complaint about a node is not written again.
const COMPLAINT_MS: u64 = 30_000;
const COMPLAINTS_MAX: usize = 64;

struct Lost {
    address: SocketAddr,
    since: u64,
    /// Until when that counts; each loss prolongs it.
    until: u64,
}

pub(super) struct Pool {
    index: u16,
    /// For the log.
    name: String,
    address_map: AddressMap,
    schedule: Schedule,
    current: Option<Arc<Topology>>,
    witnesses: Witnesses,
    /// What reactors have been told to hold, patches included, and when each slot last changed.
    announced: SlotMap,
    announced_at: Box<[u64]>,
    /// The last MOVED that no adopted map has confirmed yet.
    patched_at: Option<u64>,
    /// Nodes that reactors lost.
    lost: Vec<Lost>,
    /// Nodes that could not be connected to since one could.
    unreached: Vec<SocketAddr>,
    learned: Option<Arc<Learned>>,
    /// What each node takes in, as it last said.
    bounds: BTreeMap<Box<str>, RequestBounds>,
    /// What reactors have been told of that.
    bounds_told: RequestBounds,
    /// Set when COMMAND is to be asked.
    to_learn: bool,
    /// Places that reactors were redirected to and that the map does not know: to be answered after
    /// the next refresh, after the one going on.
    unconfirmed: Vec<Endpoint>,
    confirming: Vec<Endpoint>,
    /// What was written of nodes that did not answer, and until when it is not written again.
    complaints: Vec<(String, u64)>,
    /// What was last written about the map.
    doubted: Option<&'static str>,
}

impl Pool {
    pub(super) fn new(index: u16, settings: &PoolSettings, seed: u64, now: u64) -> Pool {
        let (interval, seeds) = (settings.refresh_interval_ms, settings.seeds.len());
        Pool {
            index,
            name: settings.name.clone(),
            address_map: settings.address_map.clone(),
            schedule: Schedule::new(interval, seeds, seed, now),
            current: None,
            witnesses: Witnesses::default(),
            announced: SlotMap::new(),
            announced_at: vec![0; SLOTS].into(),
            patched_at: None,
            lost: Vec::new(),
            unreached: Vec::new(),
            learned: None,
            bounds: BTreeMap::new(),
            bounds_told: RequestBounds::default(),
            to_learn: false,
            unconfirmed: Vec::new(),
            confirming: Vec::new(),
            complaints: Vec::new(),
            doubted: None,
        }
    }

    /// Other settings from now on: the map is asked for anew.
    pub(super) fn configure(&mut self, settings: &PoolSettings, now: u64) {
        self.address_map = settings.address_map.clone();
        self.schedule.configure(settings.refresh_interval_ms, settings.seeds.len());
        self.schedule.want(now);
    }

    /// The map as it is, if there is one.
    pub(super) fn current(&self) -> Option<&Arc<Topology>> {
        self.current.as_ref()
    }

    /// Addresses that reactors lost a while ago at most, the last one at the end.
    pub(super) fn lost(&self, now: u64) -> Vec<SocketAddr> {
        let counts = self.lost.iter().filter(|lost| lost.until > now);
        counts.map(|lost| lost.address).collect()
    }

    /// What every reactor must have, for one that missed some of it.
    pub(super) fn standing(&self) -> impl Iterator<Item = Update> + '_ {
        let (map, learned) = (self.current.iter().cloned(), self.learned.iter().cloned());
        let map = map.map(|topology| Update::Map { pool: self.index, topology });
        let bounds = (self.bounds_told != RequestBounds::default())
            .then_some(Update::Bounds { pool: self.index, bounds: self.bounds_told });
        map.chain(learned.map(|learned| Update::Learned { pool: self.index, learned }))
            .chain(bounds)
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.schedule.next_deadline()
    }

    /// Whom to ask now, if anybody.
    pub(super) fn start(&mut self, now: u64) -> Option<Target> {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        let fresh_round = !self.schedule.in_round();
        let nodes = self.current.iter().flat_map(|map| &map.nodes);
        let known: Vec<Known> = nodes
            .filter_map(|node| Some(Known { address: node.address?, healthy: node.healthy }))
            .collect();
        let target = self.schedule.start(now, &known)?;
        if fresh_round {
            self.confirming.append(&mut self.unconfirmed);
        }
        Some(target)
    }

    pub(super) fn handle_report(&mut self, report: Report, now: u64, out: &mut Vec<Update>) {
        match report {
            Report::Moved { slot, endpoint, from, known, .. } => match self.find(&endpoint) {
                // Announced by another name (the address map), or learnt since. It may have been
                // ASK that named it: no patch before the reactor has followed it.
                Some((_, address)) if !known => {
                    let address = Some(address);
                    out.push(Update::Confirmed { pool: self.index, endpoint, address });
                    self.schedule.want(now);
                }
                _ => self.handle_moved(slot, endpoint, from, now, out),
            },
            Report::NodeLost { address, .. } => {
                self.lost.retain(|lost| lost.until > now);
                let known = self.lost.iter().position(|lost| lost.address == address);
                let since = known.map_or(now, |at| self.lost.swap_remove(at).since);
                self.lost.truncate(LOST_MAX - 1);
                self.lost.push(Lost { address, since, until: now.saturating_add(LOST_MS) });
                self.schedule.avoid(address, now);
                self.schedule.want(now);
                self.hurry(now);
            }
            Report::WantRefresh { avoid, .. } => {
                if let Some(address) = avoid {
                    self.schedule.avoid(address, now);
                }
                self.schedule.want(now);
            }
            Report::ScriptLoaded { pool, from, body } => {
                out.push(Update::Script { pool, from, body: Some(body) });
            }
            Report::ScriptsFlushed { pool, from } => {
                out.push(Update::Script { pool, from, body: None });
            }
            Report::Configure { .. } | Report::ReactorStopped { .. } | Report::Stop => {}
        }
    }

    /// A conversation is over.
    pub(super) fn finish(
        &mut self,
        told: Result<Told, Failure>,
        now: u64,
        say: &mut Say,
        out: &mut Vec<Update>,
    ) {
        let answered = told.is_ok();
        self.note_reached(told.as_ref().err().is_none_or(|failure| failure.connected), say, out);
        let (outcome, settled) = match told {
            Ok(told) => self.judge(told, now, say, out),
            Err(failure) => {
                self.complain(failure.reason, now, say);
                let outcome =
                    if failure.connected { Outcome::Failed } else { Outcome::Unreachable };
                (outcome, false)
            }
        };
        if !self.schedule.finish(now, outcome, settled) {
            return;
        }
        self.hurry(now);
        self.to_learn = answered && self.learned.is_none();
        for endpoint in std::mem::take(&mut self.confirming) {
            let address = self.find(&endpoint).map(|(_, address)| address);
            out.push(Update::Confirmed { pool: self.index, endpoint, address });
        }
        out.push(Update::Refreshed { pool: self.index, ok: answered });
    }

    /// When none of all nodes can be connected to, there is nobody to say that they have failed.
    fn note_reached(&mut self, reached: bool, say: &mut Say, out: &mut Vec<Update>) {
        if reached {
            return self.unreached.clear();
        }
        let Some(Target::Node(address)) = self.schedule.asked() else { return };
        let Some(current) = &self.current else { return };
        if !self.unreached.contains(&address) {
            self.unreached.push(address);
        }
        let addresses = || current.nodes.iter().filter_map(|node| node.address);
        self.unreached.retain(|&gone| addresses().any(|known| known == gone));
        let is_reached = |node: &Node| {
            node.healthy && node.address.is_none_or(|known| !self.unreached.contains(&known))
        };
        let told = current.nodes.iter().all(|node| !node.healthy);
        if told || current.nodes.iter().any(is_reached) {
            return;
        }
        let fields = [("pool", &self.name as _), ("nodes", &current.nodes.len() as _)];
        say.log.warn(say.unix_us, "no node can be reached", &fields);
        let mut all_failed = Topology::clone(current);
        all_failed.nodes.iter_mut().for_each(|node| node.healthy = false);
        all_failed.version += 1;
        self.announce(all_failed, out);
    }

    /// A request must not be larger than any node takes, as it may go to each of them.
    fn note_bounds(&mut self, teller: &str, bounds: RequestBounds, out: &mut Vec<Update>) {
        if self.bounds.len() >= NODES_MAX {
            self.bounds.clear();
        }
        self.bounds.insert(teller.into(), bounds);
        let least =
            |of: fn(&RequestBounds) -> Option<u64>| self.bounds.values().filter_map(of).min();
        let bounds = RequestBounds {
            bulk_max: least(|bounds| bounds.bulk_max),
            query_max: least(|bounds| bounds.query_max),
            databases: least(|bounds| bounds.databases),
        };
        if bounds != self.bounds_told {
            self.bounds_told = bounds;
            out.push(Update::Bounds { pool: self.index, bounds });
        }
    }

    /// Whom to ask for its commands now, if anybody: once, and again with each refresh while it
    /// fails. A healthy owner of slots, as it is the one to run them.
    pub(super) fn start_learning(&mut self) -> Option<SocketAddr> {
        if !std::mem::take(&mut self.to_learn) {
            return None;
        }
        let current = self.current.as_ref()?;
        let mut owners = current.primaries().filter_map(|at| current.nodes.get(usize::from(at)));
        owners.find(|node| node.healthy && node.address.is_some())?.address
    }

    /// The conversation about commands is over.
    pub(super) fn finish_learning(
        &mut self,
        learned: Result<Learned, Failure>,
        say: &mut Say,
        out: &mut Vec<Update>,
    ) {
        match learned {
            Ok(learned) => {
                let fields = [("pool", &self.name as _), ("commands", &learned.len() as _)];
                let message = "commands learned from the nodes";
                match learned.len() {
                    0 => say.log.debug(say.unix_us, message, &fields),
                    _ => say.log.info(say.unix_us, message, &fields),
                }
                let learned = Arc::new(learned);
                self.learned = Some(Arc::clone(&learned));
                out.push(Update::Learned { pool: self.index, learned });
            }
            Err(failure) => {
                let fields = [("pool", &self.name as _), ("why", &failure.reason as _)];
                say.log.warn(say.unix_us, "a node did not tell its commands", &fields);
            }
        }
    }

    /// A node did not answer. While nobody does, each complaint is written now and then.
    fn complain(&mut self, reason: String, now: u64, say: &mut Say) {
        self.complaints.retain(|&(_, until)| until > now);
        let fields = [("pool", &self.name as _), ("why", &reason as _)];
        let message = "a node did not tell the slot map";
        if self.complaints.iter().any(|(written, _)| *written == reason) {
            return say.log.debug(say.unix_us, message, &fields);
        }
        say.log.warn(say.unix_us, message, &fields);
        self.complaints.truncate(COMPLAINTS_MAX - 1);
        self.complaints.push((reason, now.saturating_add(COMPLAINT_MS)));
    }

    fn tell_map(&self, map: &Topology, teller: &str, say: &mut Say) {
        let sick = map.nodes.iter().filter(|node| !node.healthy).count();
        let unresolved = map.nodes.iter().filter(|node| node.address.is_none()).count();
        say.log.info(
            say.unix_us,
            "slot map taken",
            &[
                ("pool", &self.name),
                ("version", &map.version),
                ("told_by", &teller),
                ("nodes", &map.nodes.len()),
                ("primaries", &map.primaries().count()),
                ("slots", &map.covered()),
                ("epoch", &map.epoch),
                ("sick", &sick),
                ("unresolved", &unresolved),
            ],
        );
    }

    /// Writes what the map lacks, when that has changed.
    fn tell_doubt(&mut self, doubt: Option<&'static str>, say: &mut Say) {
        if std::mem::replace(&mut self.doubted, doubt) == doubt {
            return;
        }
        let why = doubt.unwrap_or("every slot has a healthy owner");
        let fields = [("pool", &self.name as _), ("why", &why as _)];
        match doubt {
            Some(_) => say.log.warn(say.unix_us, "the slot map is in doubt", &fields),
            None => say.log.info(say.unix_us, "the slot map is sound again", &fields),
        }
    }

    fn handle_moved(
        &mut self,
        slot: u16,
        endpoint: Endpoint,
        from: SocketAddr,
        now: u64,
        out: &mut Vec<Update>,
    ) {
        if let Some((node, address)) = self.find(&endpoint) {
            if self.announced.get(slot) == node {
                // Known since; whoever reported it has the update on its way.
                return self.schedule.want(now);
            }
            self.schedule.want(now);
            let Some(changed_at) = self.announced_at.get_mut(usize::from(slot)) else { return };
            if *changed_at != 0 && now < changed_at.saturating_add(SLOT_GAP_MS) {
                return;
            }
            *changed_at = now.max(1);
            self.announced.patch(slot, node);
            self.patched_at = Some(now);
            out.push(Update::Slot { pool: self.index, slot, address });
            return;
        }
        // Not believed before a node that we trust has listed it: a script can forge a redirect.
        let waits = self.unconfirmed.contains(&endpoint);
        if !waits && self.unconfirmed.len() < UNCONFIRMED_MAX {
            self.unconfirmed.push(endpoint);
        } else if !waits {
            out.push(Update::Confirmed { pool: self.index, endpoint, address: None });
            return;
        }
        self.schedule.prefer(from);
        self.schedule.want(now);
        // Somebody waits for the answer.
        self.schedule.want_within(CONFIRM_GAP_MS, now);
    }

    /// The node at an announced place, after the address map, by name or by address.
    fn find(&self, announced: &Endpoint) -> Option<(u16, SocketAddr)> {
        let current = self.current.as_ref()?;
        let mapped = self.address_map.apply(announced);
        let by_address = || {
            let ip: IpAddr = mapped.host.parse().ok()?;
            current.node_by_address(&SocketAddr::new(ip, mapped.port))
        };
        let node = current
            .node_by_endpoint(&mapped)
            .or_else(by_address)
            .or_else(|| current.node_by_endpoint(announced))?;
        let address = current.nodes.get(usize::from(node))?.address?;
        Some((node, address))
    }

    /// Takes what a node told, or not. Whether it was news, and whether all is well with the map.
    fn judge(
        &mut self,
        told: Told,
        now: u64,
        say: &mut Say,
        out: &mut Vec<Update>,
    ) -> (Outcome, bool) {
        let Told { topology, ok, bounds, teller } = told;
        self.note_bounds(&teller, bounds, out);
        let choice = self.witnesses.choose(self.current.as_deref(), topology, &teller);
        let outcome = match choice {
            Choice::Adopt(topology) => {
                self.patched_at = None;
                self.tell_map(&topology, &teller, say);
                self.announce(topology, out);
                Outcome::Changed
            }
            Choice::Same => {
                self.forget_patches(now, out);
                Outcome::Same
            }
            Choice::Reject(reason) => {
                let fields =
                    [("pool", &self.name as _), ("node", &teller as _), ("why", &reason as _)];
                say.log.warn(say.unix_us, "a slot map was not taken", &fields);
                return (Outcome::Failed, false);
            }
        };
        let doubt = if ok { self.doubt(now) } else { Some("the cluster's state is not ok") };
        self.tell_doubt(doubt, say);
        (outcome, doubt.is_none())
    }

    /// Why to ask again soon, if there is a reason.
    fn doubt(&self, now: u64) -> Option<&'static str> {
        let Some(current) = &self.current else { return Some("there is no map") };
        let owners = || current.primaries().filter_map(|at| current.nodes.get(usize::from(at)));
        let is_lost = |node: &Node| self.is_lost(node, |lost| lost.until > now);
        if self.patched_at.is_some() {
            Some("a MOVED is not in the map yet")
        } else if current.covered() < SLOTS {
            Some("slots without an owner")
        } else if owners().any(|node| node.address.is_none()) {
            Some("an owner of slots whose name does not resolve")
        } else if owners().any(|node| !node.healthy) {
            Some("an owner of slots that has failed")
        } else if owners().any(is_lost) {
            Some("an owner of slots that a reactor lost")
        } else {
            None
        }
    }

    fn is_lost(&self, node: &Node, counts: impl Fn(&Lost) -> bool) -> bool {
        self.lost.iter().any(|lost| node.address == Some(lost.address) && counts(lost))
    }

    /// While the nodes may be agreeing on the successor of a lost owner, it is looked for often.
    fn hurry(&mut self, now: u64) {
        let Some(current) = &self.current else { return };
        let mut owners = current.primaries().filter_map(|at| current.nodes.get(usize::from(at)));
        let is_fresh = |lost: &Lost| {
            let told = lost.until - LOST_MS;
            now < lost.since.saturating_add(LOST_MS) && now < told.saturating_add(HURRY_MS)
        };
        if owners.any(|node| self.is_lost(node, is_fresh)) {
            self.schedule.want_within(REFRESH_URGENT_MS, now);
        }
    }

    /// The map is as it was, so what MOVED said in between was wrong: or it is not known everywhere
    /// yet. After a while the reactors are set right.
    fn forget_patches(&mut self, now: u64, out: &mut Vec<Update>) {
        let Some(patched_at) = self.patched_at else { return };
        if now < patched_at.saturating_add(PATCH_TRUSTED_MS) {
            return;
        }
        self.patched_at = None;
        let Some(current) = &self.current else { return };
        let mut again = Topology::clone(current);
        again.version = again.version.saturating_add(1);
        self.announce(again, out);
    }

    fn announce(&mut self, topology: Topology, out: &mut Vec<Update>) {
        self.announced.replace(&topology);
        self.announced_at.fill(0);
        let topology = Arc::new(topology);
        self.current = Some(Arc::clone(&topology));
        out.push(Update::Map { pool: self.index, topology });
    }
}
