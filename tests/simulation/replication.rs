//! WAIT in the model: how far nodes have written, how late their replicas are, and the checker *wait*:
//! as many replicas as WAIT said have all that its client was told to be done before.
//!
//! Not here: fail-overs (`chaos`), which lose nothing; WAITAOF (`synced`).

use crate::history::{Kind, Outcome, Run};
use crate::item;
use crate::nodes::{Cluster, bulk};
use crate::plant::Plant;
use crate::world::World;

/// Replicas confirm of themselves so often.
const CONFIRM_US: u64 = 1_000_000;

/// What a primary has written, and when.
#[derive(Debug, Default)]
pub struct Stream {
    /// Times and how far it was then, oldest first.
    log: Vec<(u64, u64)>,
    /// When it last asked its replicas for a confirmation.
    asked_us: Vec<u64>,
    /// Since when it is what it is now.
    since_us: u64,
}

impl Stream {
    /// Returns how far it has written, with this.
    pub fn write(&mut self, changes: bool, now_us: u64) -> u64 {
        let far = self.log.last().map_or(0, |last| last.1);
        if changes {
            self.log.push((now_us, far + 1));
        }
        far + u64::from(changes)
    }

    /// It has another role, or another process.
    pub fn begin(&mut self, now_us: u64) {
        self.since_us = now_us;
    }

    pub fn at(&self, us: u64) -> u64 {
        let later = self.log.partition_point(|of| of.0 <= us);
        later.checked_sub(1).map_or(0, |place| self.log[place].1)
    }

    /// How far a replica has come.
    fn applied(&self, now_us: u64, lag_us: u64) -> u64 {
        now_us.checked_sub(lag_us).map_or(0, |us| self.at(us))
    }

    /// How far it has told the primary that it has come.
    fn confirmed(&self, now_us: u64, lag_us: u64, travel_us: u64) -> u64 {
        let heard = now_us.saturating_sub(travel_us);
        let regular = self.applied(heard - heard % CONFIRM_US, lag_us);
        // The question travels behind what was written before.
        let asked = self.asked_us.iter().rev().find(|&&asked| asked + lag_us <= heard);
        regular.max(asked.map_or(0, |&asked| self.at(asked)))
    }
}

impl World {
    pub fn wait_words(&mut self, id: u32) -> Vec<Vec<u8>> {
        let replicas = self.random.below(3).to_string();
        // At the end there is an end to patience, too.
        let most = if self.settled_us.is_some() { 2 } else { 4 };
        let timeout = ["1", "60", "400", "2000"][self.random.index(most)];
        self.history.set_keys(id, Vec::new());
        vec![b"WAIT".to_vec(), replicas.into_bytes(), timeout.as_bytes().to_vec()]
    }

    /// A node is at a WAIT or a WAITAOF. `None`: it waits; else what it says at once.
    pub fn begin_wait(&mut self, link: usize, args: &[Vec<u8>]) -> Option<Vec<u8>> {
        match args[0].as_slice() {
            b"WAITAOF" => {
                let reply = self.begin_synced(link, args)?;
                self.links[link].written += reply.len() as u64;
                Some(reply)
            }
            _ => {
                self.begin_wait_for_replicas(link, args);
                None
            }
        }
    }

    /// It asks its replicas, and goes on when the time is over.
    fn begin_wait_for_replicas(&mut self, link: usize, args: &[Vec<u8>]) {
        let ms: u64 = String::from_utf8_lossy(&args[2]).parse().unwrap_or(0);
        if ms == 0 || args[1] == b"0" {
            self.history.violate("wait", format!("a node waits for ever, or for none: {args:?}"));
        }
        let now_us = self.now_us;
        self.links[link].waits_until = Some(now_us + ms * 1_000);
        let node = self.links[link].node;
        self.cluster.nodes[node].stream.asked_us.push(now_us);
        self.note(ms | 14 << 40, || format!("node {node} link {link} waits {ms} ms"));
    }

    pub fn end_wait(&mut self, link: usize) -> Vec<u8> {
        self.links[link].waits_until = None;
        let reply = match self.links[link].waits_by.is_empty() {
            true => b":0\r\n".to_vec(),
            false => self.end_synced(link),
        };
        self.links[link].written += reply.len() as u64;
        reply
    }

    /// WAIT has said a number: so many replicas have each write that was done before.
    pub fn check_wait(&mut self, id: u32, value: &ringway::resp::value::Value) {
        let request = &self.history.requests[id as usize];
        let Some(said) = value.as_integer().filter(|_| request.kind == Kind::Wait) else { return };
        self.history.waits += u64::from(said > 0);
        let requests = &self.history.requests[..id as usize];
        let own = requests.iter().filter(|of| of.client == request.client);
        let done = own.filter(|of| of.outcome == Outcome::Done).flat_map(|of| &of.runs);
        let done = done.filter(|run| item::mark(&run.key).is_none());
        let missing = done.into_iter().find(|run| {
            let (node, far) = run.written;
            let stream = &self.cluster.nodes[node].stream;
            let applied = stream.applied(self.now_us, self.cluster.lag_us);
            let have = if applied >= far { self.replicas_of(node) } else { 0 };
            self.is_still_the_same(run) && (have as i64) < said
        });
        if let Some(run) = missing {
            let text = format!("WAIT {id} said {said}, but the replicas lack {run:?}");
            self.history.violate("wait", text);
        }
    }

    /// Whether the node at which something ran is what it was. Nodes without slots are not asked;
    /// those that were something else have been given it whole.
    pub fn is_still_the_same(&self, run: &Run) -> bool {
        let first = self.parameters.primaries * (1 + self.parameters.replicas);
        let node = run.written.0;
        let is_primary = self.cluster.truth.members[node].primary.is_none();
        is_primary && node < first && self.cluster.nodes[node].stream.since_us <= run.us
    }

    /// One that has left the cluster since has what it has.
    pub fn replicas_of(&self, node: usize) -> usize {
        let members = &self.cluster.truth.members;
        members.iter().filter(|of| of.primary == Some(node)).count()
    }
}

impl Cluster {
    pub fn replicas_alive(&self, node: usize) -> Vec<usize> {
        let members = self.truth.members.iter().enumerate();
        let own = members.filter(|(_, of)| of.known && of.primary == Some(node));
        own.map(|(replica, _)| replica).filter(|&replica| self.nodes[replica].alive).collect()
    }

    /// INFO replication.
    pub fn replication(&self, node: usize) -> Vec<u8> {
        let stream = &self.nodes[node].stream;
        let written = stream.at(self.now_us);
        let confirmed = match self.plant {
            Plant::BelieveWritten => written,
            _ => stream.confirmed(self.now_us, self.lag_us, 100),
        };
        let is_replica = self.truth.members[node].primary.is_some();
        let role = if is_replica { "slave" } else { "master" };
        let mut text = format!("# Replication\r\nrole:{role}\r\n");
        for (place, replica) in self.replicas_alive(node).into_iter().enumerate() {
            let ip = self.truth.members[replica].address.ip();
            text += &format!(
                "slave{place}:ip={ip},port=7000,state=online,offset={confirmed},lag=0\r\n"
            );
        }
        text += &format!("master_repl_offset:{written}\r\n");
        bulk(text.as_bytes())
    }
}
