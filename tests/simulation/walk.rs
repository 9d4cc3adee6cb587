//! SCAN in the model: what clients ask step by step, what nodes answer, and the checker *walk*:
//! every key that was there from the first step to the last was returned.
//!
//! Not here: errors of single steps (`checker`).

use std::collections::{BTreeMap, BTreeSet};

use ringway::cluster::{SLOTS, slot_of};
use ringway::resp::value::Value;

use crate::databases::is_of_first;
use crate::history::Violation;
use crate::item;
use crate::nodes::{Cluster, bulk};
use crate::plant::Plant;
use crate::world::World;

/// One walk of a client.
#[derive(Debug)]
pub struct Walk {
    cursor: u64,
    /// Only keys of this tag.
    tag: Option<Vec<u8>>,
    began: u64,
    began_us: u64,
    steps: u32,
    found: BTreeSet<Vec<u8>>,
    /// A step is under way.
    asked: bool,
}

/// A walk without end is a mistake; most end within a few steps.
const STEPS_MAX: u32 = 2_000;

impl World {
    /// The words of the client's next step, or `None` while the last is under way.
    pub fn walk_words(&mut self, client: usize) -> Option<Vec<Vec<u8>>> {
        let count = self.random.pick(&["1", "2", "10", "9999"]);
        if self.clients[client].walk.is_none() {
            // A walk over all slots is much work for the model.
            let whole = self.random.chance(30);
            let tag = format!("{{t{}}}", self.random.index(self.parameters.tags)).into_bytes();
            self.clients[client].walk = Some(Walk {
                cursor: 0,
                tag: (!whole).then_some(tag),
                began: self.history.tick,
                began_us: self.now_us,
                steps: 0,
                found: BTreeSet::new(),
                asked: false,
            });
        }
        let walk = self.clients[client].walk.as_mut()?;
        if std::mem::replace(&mut walk.asked, true) {
            return None;
        }
        let mut words = vec![b"SCAN".to_vec(), walk.cursor.to_string().into_bytes()];
        let count = if walk.tag.is_some() { count } else { "9999" };
        words.extend([b"COUNT".to_vec(), count.as_bytes().to_vec()]);
        if let Some(tag) = &walk.tag {
            words.extend([b"MATCH".to_vec(), [tag.as_slice(), b"*"].concat()]);
        }
        Some(words)
    }

    /// A step has its reply.
    pub fn walk_gets(&mut self, client: usize, value: &Value) {
        let Some(mut walk) = self.clients[client].walk.take() else { return };
        walk.asked = false;
        let Some([cursor, keys]) = value.as_array() else {
            // An error: the same step again, later.
            self.clients[client].walk = Some(walk);
            return;
        };
        let next = cursor.as_str().and_then(|text| text.parse().ok());
        let (Some(next), Some(keys)) = (next, keys.as_array()) else {
            return self.history.violate("walk", format!("no cursor or no keys: {value:?}"));
        };
        for key in keys {
            let key = key.as_bytes().unwrap_or_default();
            let known = self.history.states.contains_key(key);
            if !known || walk.tag.as_ref().is_some_and(|tag| !key.starts_with(tag)) {
                let key = String::from_utf8_lossy(key);
                self.history.violate("walk", format!("a key that is not asked for: {key:?}"));
            }
            walk.found.insert(key.to_vec());
        }
        walk.cursor = next;
        walk.steps += 1;
        if walk.steps > STEPS_MAX {
            self.history.violate("walk", format!("no end after {STEPS_MAX} steps: {walk:?}"));
        } else if next == 0 {
            self.check_walk(client, &walk);
        } else {
            self.clients[client].walk = Some(walk);
        }
    }

    fn check_walk(&mut self, client: usize, walk: &Walk) {
        self.history.walks += 1;
        for (key, states) in &self.history.states {
            if !is_of_first(key) {
                continue;
            }
            let asked = walk.tag.as_ref().is_none_or(|tag| key.starts_with(tag));
            let before = states.iter().rev().find(|state| state.0 <= walk.began);
            let throughout = before.is_some_and(|state| state.1 != 0)
                && states.iter().all(|state| state.0 <= walk.began || state.1 != 0);
            if asked && throughout && !walk.found.contains(key) && !self.came_back(key, walk) {
                let (key, began) = (String::from_utf8_lossy(key).into_owned(), walk.began);
                let text = format!("client {client} missed {key}, there since before tick {began}");
                self.history.violation.get_or_insert(Violation { checker: "walk", text });
                return;
            }
        }
    }
}

/// How keys went from node to node.
#[derive(Default)]
pub struct Journeys {
    departures: Vec<Departure>,
    /// When a key arrived where.
    arrivals: BTreeMap<Vec<u8>, Vec<(u64, usize)>>,
}

/// A slot begins to leave a node.
struct Departure {
    slot: u16,
    from: usize,
    began_us: u64,
    /// `u64::MAX` before it has left, or the migration was given up.
    ended_us: u64,
}

impl Journeys {
    pub fn departs(&mut self, slot: u16, from: usize, now_us: u64) {
        let ended_us = u64::MAX;
        self.departures.push(Departure { slot, from, began_us: now_us, ended_us });
    }

    pub fn is_gone(&mut self, slot: u16, now_us: u64) {
        if let Some(last) = self.departures.iter_mut().rev().find(|of| of.slot == slot) {
            last.ended_us = now_us;
        }
    }

    pub fn arrives(&mut self, key: &[u8], at: usize, now_us: u64) {
        self.arrivals.entry(key.to_vec()).or_default().push((now_us, at));
    }

    /// Whether a key, since then, has come to a node that its slot was leaving or had left since
    /// then, and its slot has begun to leave that node once more.
    fn came_back(&self, key: &[u8], since_us: u64) -> bool {
        let slot = slot_of(key);
        let arrivals = self.arrivals.get(key).into_iter().flatten();
        arrivals.filter(|arrival| arrival.0 >= since_us).any(|&(at_us, node)| {
            let of_node = || self.departures.iter().filter(|of| (of.slot, of.from) == (slot, node));
            of_node().any(|of| of.began_us <= at_us && of.ended_us >= since_us)
                && of_node().any(|of| of.began_us >= at_us)
        })
    }
}

impl World {
    /// A slot that is walked in pieces may leave, come back and leave again between two steps, and
    /// this key with it: nobody can see that from outside.
    fn came_back(&self, key: &[u8], walk: &Walk) -> bool {
        let in_pieces = self.parameters.proxy.walk_whole_max < 16_384;
        in_pieces && self.journeys.came_back(key, walk.began_us)
    }
}

impl Cluster {
    /// CLUSTER COUNTKEYSINSLOT, GETKEYSINSLOT and INFO, SCAN and INFO of one node.
    pub fn walked(&self, node: usize, args: &[Vec<u8>]) -> Option<Vec<u8>> {
        let data = &self.nodes[node].data;
        let keys = || data.keys().filter(|key| is_of_first(key));
        let number =
            |at: usize| -> Option<u64> { std::str::from_utf8(args.get(at)?).ok()?.parse().ok() };
        match args[0].to_ascii_uppercase().as_slice() {
            b"CLUSTER" if args[1] == b"INFO" => {
                let epoch = self.nodes[node].view.members[node].epoch;
                Some(bulk(format!("cluster_my_epoch:{epoch}\r\n").as_bytes()))
            }
            b"CLUSTER" => {
                let slot = number(2)? as u16;
                let of_slot = keys().filter(|key| slot_of(key) == slot);
                if args[1] == b"COUNTKEYSINSLOT" {
                    return Some(format!(":{}\r\n", of_slot.count()).into_bytes());
                }
                let missed = usize::from(self.errs(Plant::MissKeys));
                Some(array(of_slot.skip(missed).take(number(3)? as usize)))
            }
            b"INFO" if args[1] == b"replication" => Some(self.replication(node)),
            b"INFO" => {
                let version = if self.slotted { "7.4.0" } else { "7.0.15" };
                let process = self.nodes[node].process;
                let text =
                    format!("# Server\r\nredis_version:{version}\r\nrun_id:{process:040x}\r\n");
                Some(bulk(text.as_bytes()))
            }
            b"SCAN" => {
                let count = args.iter().position(|word| word == b"COUNT");
                let count = number(count.map_or(usize::MAX, |at| at + 1)).unwrap_or(10);
                Some(self.scan(node, number(1)?, count as usize))
            }
            _ => None,
        }
    }

    /// As a table that another process orders otherwise.
    fn scan(&self, node: usize, cursor: u64, count: usize) -> Vec<u8> {
        let this = &self.nodes[node];
        let mut order: BTreeMap<u64, Vec<&Vec<u8>>> = BTreeMap::new();
        for key in this.data.keys().filter(|key| is_of_first(key)) {
            let mut seeded = this.process.to_be_bytes().to_vec();
            seeded.extend_from_slice(key);
            let hash = item::hash(&seeded) >> 40 | 1;
            let slot = u64::from(slot_of(key));
            // A slot's keys are one behind the other, as by the cursor's low bits.
            let place = if self.slotted { slot << 24 | hash } else { hash };
            order.entry(place).or_default().push(key);
        }
        let begin = match self.slotted {
            true => (cursor % SLOTS as u64) << 24 | cursor >> 14,
            false => cursor,
        };
        let mut keys = Vec::new();
        let mut next = 0;
        for (place, some) in order.range(begin..) {
            if keys.len() >= count {
                next = if self.slotted { (place & 0xff_ffff) << 14 | place >> 24 } else { *place };
                break;
            }
            keys.extend(some.iter().copied());
        }
        let mut out = b"*2\r\n".to_vec();
        out.extend(bulk(next.to_string().as_bytes()));
        out.extend(array(keys.into_iter()));
        out
    }
}

fn array<'a>(keys: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let keys: Vec<Vec<u8>> = keys.map(|key| bulk(key)).collect();
    let mut out = format!("*{}\r\n", keys.len()).into_bytes();
    out.extend(keys.concat());
    out
}
