//! What operators and misfortune do to a running cluster: move slots, fail over, and look who owns
//! what.
//!
//! Not here: starting clusters (`cluster`), killing and stopping processes (`process`).

use std::time::Instant;

use super::cluster::{Cluster, Node};
use super::reply::Reply;
use super::{millis, seconds, wait_until};

impl Cluster {
    /// The index of the node that owns `slot` in the eyes of node `asked`.
    pub fn owner_seen_by(&self, asked: usize, slot: u16) -> Option<usize> {
        for range in self.nodes[asked].run("CLUSTER SLOTS").items() {
            let range = range.items();
            let (first, last) = (range[0].integer(), range[1].integer());
            if (first..=last).contains(&i64::from(slot)) {
                let id = range[2].items()[2].string();
                return self.nodes.iter().position(|node| node.id == id);
            }
        }
        None
    }

    /// Marks `slot` as migrating from one node to the other; no key is moved.
    #[track_caller]
    pub fn open_migration(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", source.id);
        assert_eq!(target.run(&importing).text(), "OK", "{importing}");
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", target.id);
        assert_eq!(source.run(&migrating).text(), "OK", "{migrating}");
    }

    /// Moves these keys of an open migration.
    #[track_caller]
    pub fn move_keys<S: AsRef<str>>(&self, from: usize, to: usize, keys: &[S]) {
        let port = self.nodes[to].port.to_string();
        let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let args: Vec<&str> = head.into_iter().chain(keys.iter().map(AsRef::as_ref)).collect();
        let reply = self.nodes[from].client().call(&args);
        assert!(!reply.is_error(), "MIGRATE answered {}", reply.text());
    }

    /// Moves the keys that are left and gives the slot to its new owner everywhere.
    #[track_caller]
    pub fn close_migration(&self, slot: u16, from: usize, to: usize) {
        loop {
            let reply = self.nodes[from].run(&format!("CLUSTER GETKEYSINSLOT {slot} 100"));
            let keys: Vec<String> = reply.items().iter().map(Reply::string).collect();
            if keys.is_empty() {
                break;
            }
            self.move_keys(from, to, &keys);
        }
        let line = format!("CLUSTER SETSLOT {slot} NODE {}", self.nodes[to].id);
        for index in [to, from] {
            assert_eq!(self.nodes[index].run(&line).text(), "OK", "{line}");
        }
    }

    /// The whole dance for one slot.
    #[track_caller]
    pub fn migrate_slot(&self, slot: u16, from: usize, to: usize) {
        self.open_migration(slot, from, to);
        self.close_migration(slot, from, to);
    }

    /// The same for a slot that is passed on soon after: nodes that have not heard of each other's
    /// epochs give the same one twice, and the slot goes back by itself.
    #[track_caller]
    pub fn pass_slot(&self, slot: u16, from: usize, to: usize) {
        self.migrate_slot(slot, from, to);
        self.wait_agreed();
        let epoch = |node: &Node| {
            let info = node.run("CLUSTER INFO").string();
            info.lines().find(|line| line.starts_with("cluster_current_epoch")).map(str::to_owned)
        };
        wait_until(seconds(15), "all nodes to know the epoch", || {
            let first = epoch(&self.nodes[0]);
            self.nodes.iter().all(|node| epoch(node) == first)
        });
    }

    /// CLUSTER FAILOVER at a replica; waits until it is the primary for all.
    #[track_caller]
    pub fn failover(&self, replica: usize) {
        let node = &self.nodes[replica];
        let is_ready = || {
            let info = node.run("INFO replication").string();
            info.contains("role:slave") && info.contains("master_link_status:up")
        };
        // A primary ignores a replica that it does not know as its own yet; so ask again.
        for _ in 0..10 {
            wait_until(seconds(15), "the replica to be in step", is_ready);
            assert_eq!(node.run("CLUSTER FAILOVER").text(), "OK");
            let start = Instant::now();
            while start.elapsed() < seconds(6) {
                if self.is_promoted(replica) {
                    return self.wait_agreed();
                }
                std::thread::sleep(millis(10));
            }
        }
        panic!("node {replica} was not promoted");
    }

    /// Waits until all nodes name the same owner for each slot.
    pub fn wait_agreed(&self) {
        let owners = |node: &Node| -> Vec<String> {
            let ranges = node.run("CLUSTER SLOTS").items();
            let owner = |range: &Reply| {
                let range = range.items();
                format!("{} {} {}", range[0].text(), range[1].text(), range[2].items()[2].text())
            };
            let mut lines: Vec<String> = ranges.iter().map(owner).collect();
            lines.sort();
            lines
        };
        wait_until(seconds(15), "all nodes to agree on the owners", || {
            let first = owners(&self.nodes[0]);
            self.nodes.iter().all(|node| owners(node) == first)
        });
    }

    pub fn wait_promoted(&self, replica: usize, limit: std::time::Duration) {
        wait_until(limit, "the replica to be promoted", || self.is_promoted(replica));
    }

    fn is_promoted(&self, replica: usize) -> bool {
        let mut client = self.nodes[replica].client();
        client.run("INFO replication").string().contains("role:master")
            && client.run("CLUSTER INFO").string().contains("cluster_state:ok")
    }

    /// The index of the first replica of primary `i`, as started.
    pub fn replica_of(&self, i: usize) -> usize {
        self.shape.primaries + i * self.shape.replicas_each
    }
}
