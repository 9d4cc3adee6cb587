//! A model of the topology thread: hears reports, asks one node at a time, judges what it tells with
//! the real `cluster::Witnesses`, and has the proxy told late.
//!
//! Not here: the real thread's schedule and conversations (their own tests).

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use ringway::cluster::{Choice, Endpoint, Topology, Witnesses};
use ringway::proxy::{Now, Proxy, Report};

use crate::plant::Plant;
use crate::world::{Event, World};

#[derive(Debug)]
pub enum Errand {
    Report(Report),
    Refresh,
    /// The answer of a node; `None`: it did not answer.
    Told(usize, Option<Box<Topology>>),
    Periodic,
    Learn,
}

#[derive(Debug)]
enum Update {
    Map(Arc<Topology>),
    Slot { slot: u16, address: SocketAddr },
    Confirmed { endpoint: Endpoint, address: Option<SocketAddr> },
    Refreshed,
    Learned,
}

#[derive(Default)]
pub struct TopologyThread {
    current: Option<Arc<Topology>>,
    witnesses: Witnesses,
    scheduled: bool,
    in_flight: bool,
    again: bool,
    failed: bool,
    last_start_us: u64,
    patched_us: Option<u64>,
    slot_us: BTreeMap<u16, u64>,
    updates: VecDeque<(u64, Update)>,
    /// Redirects out of the map: to be answered by the next refresh, by the one going on; and who
    /// said one last.
    unconfirmed: Vec<Endpoint>,
    confirming: Vec<Endpoint>,
    preferred: Option<SocketAddr>,
}

const GAP_US: u64 = 200_000;

impl TopologyThread {
    pub fn current(&self) -> Option<Arc<Topology>> {
        self.current.clone()
    }
}

impl World {
    pub fn hear_report(&mut self, report: Report) {
        let at = self.now_us + 1 + self.random.below(self.parameters.map_us);
        self.at(at, Event::Errand(Errand::Report(report)));
    }

    pub fn run_errand(&mut self, errand: Errand) {
        match errand {
            Errand::Report(Report::Moved { slot, endpoint, from, known }) => {
                self.hear_moved(slot, &endpoint, from, known);
                self.want_refresh();
            }
            Errand::Report(Report::ScriptLoaded { .. } | Report::ScriptsFlushed) => (),
            Errand::Report(Report::NodeLost { .. } | Report::WantRefresh) => self.want_refresh(),
            Errand::Refresh => self.ask_a_node(),
            Errand::Told(node, told) => self.judge(node, told),
            Errand::Periodic => {
                self.want_refresh();
                let unsettled = self.topology.patched_us.is_some();
                let every = if unsettled { 1_000 } else { self.parameters.refresh_ms };
                let at = self.now_us + every * 1_000;
                self.at(at, Event::Errand(Errand::Periodic));
            }
            Errand::Learn => self.tell(Update::Learned),
        }
    }

    fn hear_moved(&mut self, slot: u16, endpoint: &Endpoint, from: SocketAddr, known: bool) {
        let announced = SocketAddr::new(endpoint.host.parse().unwrap(), endpoint.port);
        let address = self.cluster.reachable(announced);
        let Some(current) = &self.topology.current else { return };
        if current.node_by_address(&address).is_none() {
            self.topology.preferred = Some(from);
            if !self.topology.unconfirmed.contains(endpoint) {
                self.topology.unconfirmed.push(endpoint.clone());
            }
            if self.plant == Plant::BelieveForged {
                let mut map = Topology::clone(current);
                let mut node = map.nodes[0].clone();
                (node.endpoint, node.address, node.id) =
                    (endpoint.clone(), Some(address), "f".into());
                map.nodes.push(node);
                map.owners[usize::from(slot)] = map.nodes.len() as u16 - 1;
                self.tell(Update::Map(Arc::new(map)));
            }
            return;
        }
        if !known {
            let (endpoint, address) = (endpoint.clone(), Some(address));
            return self.tell(Update::Confirmed { endpoint, address });
        }
        let last = self.topology.slot_us.get(&slot).copied();
        if last.is_some_and(|at| self.now_us < at + 100_000) {
            return;
        }
        self.topology.slot_us.insert(slot, self.now_us);
        self.topology.patched_us = Some(self.now_us);
        self.tell(Update::Slot { slot, address });
    }

    fn want_refresh(&mut self) {
        if self.topology.in_flight {
            self.topology.again = true;
        } else if !std::mem::replace(&mut self.topology.scheduled, true) {
            let jitter = self.random.below(GAP_US / 2);
            let gap = if self.topology.last_start_us == 0 { 0 } else { GAP_US + jitter };
            let at = (self.topology.last_start_us + gap).max(self.now_us + 1);
            self.at(at, Event::Errand(Errand::Refresh));
        }
    }

    fn ask_a_node(&mut self) {
        self.topology.scheduled = false;
        if self.topology.in_flight {
            return;
        }
        self.topology.in_flight = true;
        self.topology.last_start_us = self.now_us;
        let known: Vec<usize> = match &self.topology.current {
            Some(map) => {
                let addresses = map.nodes.iter().filter_map(|node| node.address);
                addresses.filter_map(|address| self.cluster.by_address(&address)).collect()
            }
            None => self.cluster.primaries(),
        };
        // The seeds' names lead to whoever is a member now.
        let members = &self.cluster.truth.members;
        let all: Vec<usize> = (0..members.len()).filter(|&node| members[node].known).collect();
        let by_seed = known.is_empty() || self.topology.failed || self.random.chance(200);
        let drawn = self.random.pick(if by_seed { &all } else { &known });
        let preferred = self.topology.preferred.take().filter(|_| !self.topology.failed);
        let node = preferred.and_then(|at| self.cluster.by_address(&at)).unwrap_or(drawn);
        let new = std::mem::take(&mut self.topology.unconfirmed);
        self.topology.confirming.extend(new);
        let this = &self.cluster.nodes[node];
        let deaf = !this.alive
            || this.stalled_until > self.now_us
            || this.loading_until > self.now_us
            || !this.view.members[node].known;
        let told = (!deaf).then(|| Box::new(self.cluster.told_by(node)));
        let late = self.random.below(self.parameters.map_us) + if deaf { 20_000 } else { 0 };
        self.at(self.now_us + 1 + late, Event::Errand(Errand::Told(node, told)));
    }

    fn judge(&mut self, node: usize, told: Option<Box<Topology>>) {
        self.topology.in_flight = false;
        // Who asks in vain asks the seeds next.
        self.topology.failed = told.is_none() && !self.topology.failed;
        let Some(told) = told else {
            self.tell(Update::Refreshed);
            return self.want_refresh();
        };
        let teller = self.cluster.nodes[node].id.clone();
        let topology = &mut self.topology;
        let choice = topology.witnesses.choose(topology.current.as_deref(), *told, &teller);
        match choice {
            Choice::Adopt(map) => {
                let map = Arc::new(map);
                topology.current = Some(Arc::clone(&map));
                topology.patched_us = None;
                topology.slot_us.clear();
                self.tell(Update::Map(map));
            }
            Choice::Same => {
                if topology.patched_us.is_some_and(|at| self.now_us > at + 1_000_000) {
                    topology.patched_us = None;
                    let map = topology.current.clone();
                    map.into_iter().for_each(|map| self.tell(Update::Map(map)));
                }
            }
            Choice::Reject(_) => self.topology.again = true,
        }
        for endpoint in std::mem::take(&mut self.topology.confirming) {
            let announced = SocketAddr::new(endpoint.host.parse().unwrap(), endpoint.port);
            let address = self.cluster.reachable(announced);
            let known = self.topology.current.as_ref().map(|map| map.node_by_address(&address));
            let address = known.flatten().map(|_| address);
            self.tell(Update::Confirmed { endpoint, address });
        }
        self.tell(Update::Refreshed);
        if std::mem::take(&mut self.topology.again) {
            self.want_refresh();
        }
    }

    fn tell(&mut self, update: Update) {
        let last = self.topology.updates.back().map_or(0, |update| update.0);
        let at = last.max(self.now_us + 1 + self.random.below(1 + self.parameters.map_us / 10));
        self.topology.updates.push_back((at, update));
        self.turn_before(at);
    }

    /// Every process has such a thread; that they are told the same is not the point here.
    fn each_proxy(&mut self, tell: impl Fn(&mut Proxy)) {
        tell(&mut self.proxy);
        self.former.iter_mut().for_each(|former| tell(&mut former.proxy));
    }

    /// Gives the proxy what the topology thread has sent. Whether there was anything.
    pub fn hand_updates(&mut self, now: Now) -> bool {
        let mut any = false;
        while self.topology.updates.front().is_some_and(|update| update.0 <= self.now_us) {
            let Some((_, update)) = self.topology.updates.pop_front() else { break };
            any = true;
            self.note(8 << 40, || match &update {
                Update::Map(map) => format!("map version {} epoch {}", map.version, map.epoch),
                other => format!("{other:?}"),
            });
            match update {
                Update::Map(map) => {
                    self.named.extend(map.nodes.iter().filter_map(|node| node.address));
                    self.first_map_us.get_or_insert(self.now_us);
                    self.each_proxy(|proxy| proxy.handle_topology(Arc::clone(&map), now));
                }
                Update::Slot { slot, address } => {
                    self.each_proxy(|proxy| proxy.handle_slot_moved(slot, address, now));
                }
                Update::Confirmed { endpoint, address } => {
                    self.each_proxy(|proxy| proxy.handle_confirmed(&endpoint, address, now));
                }
                Update::Refreshed => self.each_proxy(|proxy| proxy.handle_refreshed(now)),
                Update::Learned => {
                    self.learned_us = Some(self.now_us);
                    self.each_proxy(|proxy| proxy.handle_learned(crate::workload::learned()));
                }
            }
        }
        if let Some(&(at, _)) = self.topology.updates.front() {
            self.turn_before(at);
        }
        any
    }
}
