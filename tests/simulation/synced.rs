//! WAITAOF in the model: when nodes and their replicas sync what they have written to their files, and
//! the checker *waitaof*: nodes have said as much as the client was told, and as many have synced all
//! that it was told to be done before.
//!
//! A node waits for the last write of the connection that asks: where none was, for nothing. Not
//! here: how far nodes have written (`replication`).

use ringway::resp::value::Value;

use crate::history::{Kind, Outcome};
use crate::item;
use crate::nodes::Cluster;
use crate::plant::Plant;
use crate::replication::Stream;
use crate::world::World;

/// How long a replica's word is on its way.
const TRAVEL_US: u64 = 100;

/// What nodes say of their roles.
const OF_REPLICA: &[u8] = b"-ERR WAITAOF cannot be used with replica instances.\r\n";
const DEMOTED: &[u8] =
    b"-UNBLOCKED force unblock from blocking operation, instance state changed\r\n";

impl Stream {
    /// How far its own file has it: that is synced at multiples of a time.
    fn synced(&self, now_us: u64, sync_us: u64) -> u64 {
        self.at(now_us - now_us % sync_us)
    }

    /// How far a replica's has.
    fn synced_at_replica(&self, now_us: u64, sync_us: u64, lag_us: u64) -> u64 {
        (now_us - now_us % sync_us).checked_sub(lag_us).map_or(0, |us| self.at(us))
    }
}

impl World {
    pub fn synced_words(&mut self, id: u32) -> Vec<Vec<u8>> {
        let local = self.random.below(2).to_string();
        // The node reads whose it is behind the number.
        let replicas = format!("{}!{id}", self.random.below(3));
        let most = if self.settled_us.is_some() { 2 } else { 4 };
        let timeout = ["1", "60", "400", "2000"][self.random.index(most)];
        self.history.set_keys(id, Vec::new());
        vec![b"WAITAOF".to_vec(), local.into(), replicas.into(), timeout.into()]
    }

    /// A node is at a WAITAOF. `None`: it waits; else what it says at once.
    pub fn begin_synced(&mut self, link: usize, args: &[Vec<u8>]) -> Option<Vec<u8>> {
        let node = self.links[link].node;
        if self.cluster.truth.members[node].primary.is_some() {
            return Some(OF_REPLICA.to_vec());
        }
        let number = |word: &[u8]| -> u64 {
            let digits = word.split(|&byte| byte == b'!').next().unwrap_or_default();
            std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
        };
        let (local, replicas, ms) = (number(&args[1]), number(&args[2]), number(&args[3]));
        if ms == 0 {
            self.history.violate("waitaof", format!("a node waits for ever: {args:?}"));
        }
        let (now_us, sync_us) = (self.now_us, self.cluster.sync_us);
        let wrote_us = self.links[link].wrote_us;
        let here_us = if local == 0 { 0 } else { wrote_us.next_multiple_of(sync_us) };
        let there_us = match replicas {
            0 => 0,
            _ if replicas > self.cluster.replicas_alive(node).len() as u64 => u64::MAX,
            _ => (wrote_us + self.cluster.lag_us).next_multiple_of(sync_us) + TRAVEL_US,
        };
        let enough_us = if wrote_us == 0 { 0 } else { here_us.max(there_us) };
        let until_us = enough_us.max(now_us).min(now_us + ms * 1_000);
        self.links[link].waits_until = Some(until_us);
        self.links[link].waits_by = args.to_vec();
        self.note(ms | 16 << 40, || format!("node {node} link {link} waits by {args:?}"));
        None
    }

    /// What it says when it has waited for long enough.
    pub fn end_synced(&mut self, link: usize) -> Vec<u8> {
        let args = std::mem::take(&mut self.links[link].waits_by);
        let node = self.links[link].node;
        if self.cluster.truth.members[node].primary.is_some() {
            return DEMOTED.to_vec();
        }
        let (now_us, sync_us) = (self.now_us, self.cluster.sync_us);
        let (far, stream) = (self.links[link].far, &self.cluster.nodes[node].stream);
        let alive = self.cluster.replicas_alive(node).len() as u64;
        let local = u64::from(stream.synced(now_us, sync_us) >= far);
        let heard_us = now_us.saturating_sub(TRAVEL_US);
        let has = stream.synced_at_replica(heard_us, sync_us, self.cluster.lag_us) >= far;
        let told = [local, if has { alive } else { 0 }];
        if let Some(id) = item::mark(&args[2]) {
            self.history.told_synced.entry(id).or_default().push(told);
        }
        let said = if self.plant == Plant::CountMore { [1, alive + 1] } else { told };
        format!("*2\r\n:{}\r\n:{}\r\n", said[0], said[1]).into_bytes()
    }

    /// WAITAOF has said two numbers.
    pub fn check_synced(&mut self, id: u32, value: &Value) {
        let request = &self.history.requests[id as usize];
        let Some([local, replicas]) = value.as_array().filter(|_| request.kind == Kind::WaitAof)
        else {
            return;
        };
        let count = |value: &Value| value.as_integer().and_then(|of| u64::try_from(of).ok());
        let (Some(local), Some(replicas)) = (count(local), count(replicas)) else { return };
        if local == 0 && replicas == 0 {
            return;
        }
        self.history.waits += 1;
        let told = self.history.told_synced.get(&id).map_or(&[][..], Vec::as_slice);
        let more = |of: &&[u64; 2]| local > of[0] || replicas > of[1];
        if told.is_empty() || told.iter().any(|of| more(&of)) {
            let text = format!("WAITAOF {id} said {local} and {replicas}, nodes said {told:?}");
            return self.history.violate("waitaof", text);
        }
        let requests = &self.history.requests[..id as usize];
        let own = requests.iter().filter(|of| of.client == request.client);
        let done = own.filter(|of| of.outcome == Outcome::Done).flat_map(|of| &of.runs);
        let done = done.filter(|run| item::mark(&run.key).is_none());
        let (now_us, sync_us, lag_us) = (self.now_us, self.cluster.sync_us, self.cluster.lag_us);
        let missing = done.into_iter().find(|run| {
            let (node, far) = run.written;
            let stream = &self.cluster.nodes[node].stream;
            let here = u64::from(stream.synced(now_us, sync_us) >= far);
            let has = stream.synced_at_replica(now_us, sync_us, lag_us) >= far;
            let there = if has { self.replicas_of(node) as u64 } else { 0 };
            self.is_still_the_same(run) && (here < local || there < replicas)
        });
        if let Some(run) = missing {
            let text = format!("WAITAOF {id} said {local} and {replicas}, not so of {run:?}");
            self.history.violate("waitaof", text);
        }
    }
}

impl Cluster {
    /// FUNCTION RESTORE of no library: a write that changes nothing.
    pub fn restore_functions(&self, node: usize, args: &[Vec<u8>]) -> Vec<u8> {
        if self.truth.members[node].primary.is_some() {
            return b"-READONLY You can't write against a read only replica.\r\n".to_vec();
        }
        match args.len() == 4 && args[1] == b"RESTORE" && args[3] == b"APPEND" {
            true => b"+OK\r\n".to_vec(),
            false => b"-ERR not the write before a WAITAOF\r\n".to_vec(),
        }
    }
}
