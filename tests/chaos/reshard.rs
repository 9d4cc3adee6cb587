//! Slots that move, all of them or some: the classic way (SETSLOT, MIGRATE), slot by slot as tools
//! do it, and Valkey 9's atomic way.
//!
//! Not here: what clients see of it.

use crate::bed::{Bed, SHARDS, ranges_of};
use crate::support::client::Client;
use crate::support::reply::Reply;
use crate::support::{seconds, wait_until};

/// Slots of one pair of nodes that are moved together, to save round trips.
const TOGETHER: usize = 16;

/// Moves `most` slots of each shard to the next shard, the classic way. Returns how many moved.
#[track_caller]
pub fn classic(bed: &Bed, most: usize) -> usize {
    let primaries = bed.primaries();
    let slots: Vec<Vec<u16>> = primaries.iter().map(|&node| slots_of(bed, node, most)).collect();
    let mut moved = 0;
    let mut mover = Mover::new(bed, primaries);
    // One pair after the other: a node that gives away slots while it gets others has a rising
    // epoch of its own, and the claims that it makes too late would then be believed.
    for (shard, slots) in slots.iter().enumerate() {
        for some in slots.chunks(TOGETHER) {
            mover.migrate(some, shard, (shard + 1) % SHARDS);
            moved += some.len();
        }
    }
    moved
}

fn slots_of(bed: &Bed, node: usize, most: usize) -> Vec<u16> {
    let ranges = ranges_of(&bed.cluster, node);
    ranges.into_iter().flat_map(|(first, last)| first..=last).take(most).collect()
}

/// Connections to the primaries, by shard.
struct Mover {
    clients: Vec<Client>,
    ids: Vec<String>,
    addresses: Vec<(String, String)>,
}

impl Mover {
    fn new(bed: &Bed, primaries: [usize; SHARDS]) -> Mover {
        let nodes = primaries.map(|index| &bed.cluster.nodes[index]);
        Mover {
            clients: nodes.iter().map(|node| node.client()).collect(),
            ids: nodes.iter().map(|node| node.id.clone()).collect(),
            addresses: nodes
                .iter()
                .map(|node| (node.host.to_string(), node.port.to_string()))
                .collect(),
        }
    }

    #[track_caller]
    fn migrate(&mut self, slots: &[u16], from: usize, to: usize) {
        let setslot = |what: &str, id: &str| -> Vec<String> {
            slots.iter().map(|slot| format!("CLUSTER SETSLOT {slot} {what} {id}")).collect()
        };
        let importing = setslot("IMPORTING", &self.ids[from]);
        let migrating = setslot("MIGRATING", &self.ids[to]);
        let owned = setslot("NODE", &self.ids[to]);
        expect_ok(&mut self.clients[to], &importing);
        expect_ok(&mut self.clients[from], &migrating);
        self.move_keys(slots, from, to);
        // The new owner first: until it knows, the old one must not send anybody there.
        expect_ok(&mut self.clients[to], &owned);
        expect_ok(&mut self.clients[from], &owned);
        let other = SHARDS - from - to;
        expect_ok(&mut self.clients[other], &owned);
    }

    #[track_caller]
    fn move_keys(&mut self, slots: &[u16], from: usize, to: usize) {
        let lines: Vec<String> =
            slots.iter().map(|slot| format!("CLUSTER GETKEYSINSLOT {slot} 100")).collect();
        let mut left = lines;
        while !left.is_empty() {
            let replies = self.clients[from].pipeline(&left);
            let mut again = Vec::new();
            for (reply, line) in replies.iter().zip(left) {
                let keys: Vec<String> = reply.items().iter().map(Reply::string).collect();
                if keys.is_empty() {
                    continue;
                }
                // REPLACE: what a failover lost of an earlier migration may have left the key.
                let (host, port) = &self.addresses[to];
                let head = ["MIGRATE", host, port, "", "0", "5000", "REPLACE", "KEYS"];
                let words: Vec<&str> =
                    head.into_iter().chain(keys.iter().map(String::as_str)).collect();
                let reply = self.clients[from].call(&words);
                assert!(!reply.is_error(), "MIGRATE answered {}", reply.text());
                again.push(line);
            }
            left = again;
        }
    }
}

#[track_caller]
fn expect_ok(client: &mut Client, lines: &[String]) {
    for (reply, line) in client.pipeline(lines).iter().zip(lines) {
        assert_eq!(reply.text(), "OK", "{line}");
    }
}

/// Moves up to `most` slots of each shard to the next, atomically (Valkey 9), one shard after the
/// other. Returns how many moved.
#[track_caller]
pub fn atomic(bed: &Bed, most: usize) -> usize {
    let primaries = bed.primaries();
    let before: Vec<Vec<(u16, u16)>> =
        primaries.iter().map(|&node| ranges_of(&bed.cluster, node)).collect();
    let mut moved = 0;
    for (shard, ranges) in before.iter().enumerate() {
        let (from, to) = (primaries[shard], primaries[(shard + 1) % SHARDS]);
        let mut left = most;
        for &(first, last) in ranges {
            let last = last.min(first.saturating_add(left.saturating_sub(1) as u16));
            if left > 0 {
                atomic_range(bed, (first, last), from, to);
                left -= usize::from(last - first) + 1;
                moved += usize::from(last - first) + 1;
            }
        }
    }
    moved
}

#[track_caller]
fn atomic_range(bed: &Bed, (first, last): (u16, u16), from: usize, to: usize) {
    let source = &bed.cluster.nodes[from];
    let target = &bed.cluster.nodes[to].id;
    let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {first} {last} NODE {target}");
    // A node that has just become a primary may refuse for a moment.
    wait_until(seconds(10), &line, || source.run(&line).text() == "OK");
    let mut last_seen = String::new();
    wait_until(seconds(60), "an atomic migration", || {
        last_seen = source.run("CLUSTER GETSLOTMIGRATIONS").text();
        let newest = last_seen.split("], [").next().unwrap_or_default();
        assert!(!newest.contains("failed") && !newest.contains("cancel"), "{newest}");
        newest.contains("success")
    });
}
