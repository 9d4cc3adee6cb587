//! A real cluster of three primaries and three replicas with the proxy in front, and who is who in
//! it after some faults.
//!
//! Not here: the faults (`faults`), the clients (`crowd`).

use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::support::cluster::{Cluster, Flavour, Shape};
use crate::support::keys::SLOTS;
use crate::support::proxy::{Proxy, Settings};
use crate::support::reply::Reply;
use crate::support::{goal, millis, patience, seconds, wait_until};

pub const SHARDS: usize = 3;

pub struct Bed {
    pub cluster: Cluster,
    pub proxy: Proxy,
    /// The proxy's wall clock, if it can be made to jump.
    pub clock: Option<Clock>,
}

/// How soon nodes whose replicas are to take over are taken for dead.
const SOON: [&str; 2] = ["--cluster-node-timeout", "1000"];
/// The same where nobody is killed, and one that only has no time is to be left alone.
const LATE: [&str; 2] = ["--cluster-node-timeout", "15000"];

/// What the nodes of every bed are told beyond the harness' own options.
const NODE_ARGS: &[&str] = &[
    "--cluster-require-full-coverage",
    "no",
    "--cluster-allow-replica-migration",
    "no",
    // A node that loads says so although its file is small.
    "--loading-process-events-interval-bytes",
    "1024",
];

impl Bed {
    pub fn start(flavour: Flavour) -> Bed {
        Self::start_with(flavour, &["--request-timeout-ms", "1500"])
    }

    pub fn start_with(flavour: Flavour, proxy: &[&str]) -> Bed {
        let cluster = cluster(flavour, 1);
        let proxy = Proxy::start_with(&cluster, &Settings::args(proxy));
        Bed { cluster, proxy, clock: None }
    }

    /// For what clients must not see at all, on whatever machine: no node is killed here, and
    /// nothing is late.
    pub fn start_calm(flavour: Flavour) -> Bed {
        let cluster = cluster_with(flavour, 1, LATE);
        let proxy = Proxy::start_with(&cluster, &Settings::args(&[TIMEOUT, &calm_timeout_ms()]));
        Bed { cluster, proxy, clock: None }
    }

    /// The same with a proxy whose wall clock can be set, where that is possible.
    pub fn start_calm_by_clock(flavour: Flavour) -> Bed {
        Self::by_clock(cluster_with(flavour, 1, LATE), &calm_timeout_ms())
    }

    /// As `start`, with such a clock.
    pub fn start_by_clock(flavour: Flavour) -> Bed {
        Self::by_clock(cluster(flavour, 1), "1500")
    }

    fn by_clock(cluster: Cluster, timeout_ms: &str) -> Bed {
        let clock = Clock::new();
        let settings = Settings::args(&[TIMEOUT, timeout_ms]);
        let start = || Proxy::start_with(&cluster, &settings);
        let proxy = clock.as_ref().map_or_else(start, |clock| clock.rule(start));
        Bed { cluster, proxy, clock }
    }

    /// The indexes of the primaries in office, by shard. Shard `i` began with nodes `i` and
    /// `SHARDS + i`.
    pub fn primaries(&self) -> [usize; SHARDS] {
        std::array::from_fn(|shard| self.pair(shard).0)
    }

    /// Primary and replica of a shard.
    pub fn pair(&self, shard: usize) -> (usize, usize) {
        let (a, b) = (shard, SHARDS + shard);
        if is_primary(&self.cluster, a) { (a, b) } else { (b, a) }
    }

    /// Waits until every node says that all is well and every replica follows.
    #[track_caller]
    pub fn wait_healed(&self) {
        let (start, mut mended) = (Instant::now(), false);
        while !self.is_healed() {
            assert!(start.elapsed() < patience(seconds(40)), "the cluster does not heal");
            if !mended && start.elapsed() > seconds(10) {
                mended = true;
                self.give_orphans_back();
            }
            std::thread::sleep(millis(50));
        }
    }

    /// A replica that was promoted soon after slots had moved may not claim one that all others say
    /// is its own (seen with redis 7.0.15). Nobody serves it until an operator adds it again, as
    /// `redis-cli --cluster fix` does.
    fn give_orphans_back(&self) {
        let has = |ranges: &[(i64, i64, String)], slot: i64, id: &str| {
            ranges.iter().any(|(first, last, owner)| {
                (*first..=*last).contains(&slot) && owner.as_str() == id
            })
        };
        let views: Vec<_> =
            (0..self.cluster.nodes.len()).map(|i| owners(&self.cluster, i)).collect();
        for (node, own) in self.cluster.nodes.iter().zip(&views) {
            for slot in 0..i64::from(SLOTS) {
                let claimed = views.iter().filter(|view| has(view, slot, &node.id)).count();
                if claimed > views.len() / 2 && !has(own, slot, &node.id) {
                    println!("    slot {slot} was lost by its owner, and is added again");
                    node.run(&format!("CLUSTER ADDSLOTS {slot}"));
                }
            }
        }
    }

    fn is_healed(&self) -> bool {
        let nodes = &self.cluster.nodes;
        let whole = nodes.iter().all(|node| {
            let Ok(mut client) = node.try_client() else { return false };
            let mut ask = |line: &str| {
                let words: Vec<&str> = line.split(' ').collect();
                client.try_call(&words).map(|reply| reply.string()).unwrap_or_default()
            };
            let info = ask("INFO replication");
            let replica_in_step = info.contains("master_link_status:up");
            let followed = info.contains("role:master") && info.contains("connected_slaves:1");
            ask("CLUSTER INFO").contains("cluster_state:ok")
                && (replica_in_step || followed)
                && !ask("CLUSTER NODES").contains("fail")
        });
        whole
            && (0..SHARDS).all(|i| is_primary(&self.cluster, self.pair(i).0))
            && owners(&self.cluster, 0).iter().map(|range| range.1 - range.0 + 1).sum::<i64>()
                == i64::from(SLOTS)
            && (1..nodes.len()).all(|i| owners(&self.cluster, i) == owners(&self.cluster, 0))
    }
}

/// First and last slot of each range and its owner, as one node sees them.
fn owners(cluster: &Cluster, index: usize) -> Vec<(i64, i64, String)> {
    let client = cluster.nodes[index].try_client();
    let reply = client.and_then(|mut client| client.try_call(&["CLUSTER", "SLOTS"]));
    let ranges = reply.map(|reply| reply.items()).unwrap_or_default();
    let owner = |range: &Reply| {
        let range = range.items();
        let id = range.get(2)?.items().get(2)?.string();
        Some((range[0].integer(), range[1].integer(), id))
    };
    let mut found: Vec<_> = ranges.iter().filter_map(owner).collect();
    found.sort();
    found
}

const TIMEOUT: &str = "--request-timeout-ms";

fn calm_timeout_ms() -> String {
    goal(millis(1_500)).as_millis().to_string()
}

/// Three primaries, each with so many replicas, that know each other.
pub fn cluster(flavour: Flavour, replicas_each: usize) -> Cluster {
    cluster_with(flavour, replicas_each, if replicas_each == 0 { LATE } else { SOON })
}

fn cluster_with(flavour: Flavour, replicas_each: usize, timeout: [&str; 2]) -> Cluster {
    let args = NODE_ARGS.iter().chain(&timeout).map(|arg| (*arg).to_owned()).collect();
    Cluster::start(Shape { flavour, replicas_each, args, ..Shape::default() })
}

/// Whether a node says that it is a primary.
pub fn is_primary(cluster: &Cluster, index: usize) -> bool {
    info(cluster, index, "replication").contains("role:master")
}

/// INFO of a node that may not answer.
pub fn info(cluster: &Cluster, index: usize, section: &str) -> String {
    let client = cluster.nodes[index].try_client();
    let reply = client.and_then(|mut client| client.try_call(&["INFO", section]));
    reply.map(|reply| reply.string()).unwrap_or_default()
}

/// Waits for a time in which nothing is done, or less if `done` says so.
pub fn pause(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if done() {
            return true;
        }
        std::thread::sleep(millis(5));
    }
    false
}

/// Asks for the failover until it has happened: a primary ignores a replica that it does not know
/// as its own yet.
#[track_caller]
pub fn fail_over(bed: &Bed, shard: usize) {
    let (primary, replica) = bed.pair(shard);
    wait_until(seconds(20), "a planned failover", || {
        let reply = bed.cluster.nodes[replica].run("CLUSTER FAILOVER").text();
        assert!(reply == "OK" || reply.starts_with("-ERR"), "{reply}");
        pause(seconds(3), || {
            is_primary(&bed.cluster, replica) && !is_primary(&bed.cluster, primary)
        })
    });
}

/// The ranges of slots that a node says it owns.
pub fn ranges_of(cluster: &Cluster, index: usize) -> Vec<(u16, u16)> {
    let node = &cluster.nodes[index];
    let mut found = Vec::new();
    for range in node.run("CLUSTER SLOTS").items() {
        let range = range.items();
        let id = range[2].items().get(2).map(Reply::string).unwrap_or_default();
        if id == node.id {
            found.push((range[0].integer() as u16, range[1].integer() as u16));
        }
    }
    found
}
