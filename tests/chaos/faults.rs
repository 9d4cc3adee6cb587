//! What can be done to a bed, drawn from a seed, one thing after the other; each is healed before
//! the next.
//!
//! Not here: faults of the network (`outside`), what clients see of them.

use std::collections::BTreeMap;

use crate::bed::{Bed, fail_over, info, is_primary, pause};
use crate::crowd::Crowd;
use crate::reshard;
use crate::support::client::Client;
use crate::support::cluster::Flavour;
use crate::support::{millis, seconds, wait_until};
use crate::words::Random;

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// SIGKILL of a primary; its replica takes over, it comes back as a replica.
    KillPrimary,
    KillReplica,
    /// SIGSTOP for less than anybody's patience.
    StopShort,
    /// SIGSTOP until the replica has taken over.
    StopLong,
    Failover,
    ReshardClassic,
    /// Valkey 9.
    ReshardAtomic,
    /// CLIENT KILL of all connections at one node, some times in a row.
    KillConnections,
    /// No new connection at one node, and the old ones killed.
    MaxClients,
    /// SIGKILL and at once started again: it loads for a second and says so.
    Loading,
    /// Killed and started again at another port.
    NewAddress,
    /// SIGSTOP of the proxy for longer than its time-outs.
    StopProxy,
}

impl Fault {
    pub const ALL: [Fault; 12] = [
        Fault::KillPrimary,
        Fault::KillReplica,
        Fault::StopShort,
        Fault::StopLong,
        Fault::Failover,
        Fault::ReshardClassic,
        Fault::ReshardAtomic,
        Fault::KillConnections,
        Fault::MaxClients,
        Fault::Loading,
        Fault::NewAddress,
        Fault::StopProxy,
    ];

    fn may_lose_writes(self) -> bool {
        matches!(self, Fault::KillPrimary | Fault::StopLong | Fault::Loading | Fault::NewAddress)
    }
}

/// Draws faults, does them, counts them.
pub struct Faults {
    random: Random,
    allowed: Vec<Fault>,
    /// Drawn without putting back, so that each comes before one comes twice.
    left: Vec<Fault>,
    pub done: BTreeMap<Fault, u32>,
    pub slots_moved: usize,
}

impl Faults {
    pub fn new(seed: u64, allowed: &[Fault]) -> Faults {
        Faults {
            random: Random(seed),
            allowed: allowed.to_vec(),
            left: Vec::new(),
            done: BTreeMap::new(),
            slots_moved: 0,
        }
    }

    pub fn total(&self) -> u32 {
        self.done.values().sum()
    }

    /// The next one, from its beginning until it is healed.
    pub fn next(&mut self, bed: &mut Bed, crowd: &Crowd) {
        if self.left.is_empty() {
            self.left = self.allowed.clone();
        }
        let at = self.random.below(self.left.len() as u64) as usize;
        let fault = self.left.swap_remove(at);
        if fault == Fault::ReshardAtomic && bed.cluster.shape.flavour != Flavour::Valkey {
            return;
        }
        let began = crowd.shared.now_ms();
        if fault.may_lose_writes() {
            crowd.may_lose();
        }
        self.act(fault, bed);
        bed.wait_healed();
        crowd.calm();
        println!("    {fault:?} {began} to {} ms", crowd.shared.now_ms());
        *self.done.entry(fault).or_insert(0) += 1;
    }

    fn act(&mut self, fault: Fault, bed: &mut Bed) {
        let shard = self.random.below(3) as usize;
        let (primary, replica) = bed.pair(shard);
        match fault {
            Fault::KillPrimary => {
                bed.cluster.nodes[primary].process.kill();
                wait_promoted(bed, replica);
                bed.cluster.nodes[primary].restart();
                rejoin(bed, primary, replica);
            }
            Fault::KillReplica => {
                bed.cluster.nodes[replica].process.kill();
                std::thread::sleep(millis(100 + self.random.below(300)));
                bed.cluster.nodes[replica].restart();
            }
            Fault::StopShort => {
                bed.cluster.nodes[primary].process.stop();
                std::thread::sleep(millis(50 + self.random.below(350)));
                bed.cluster.nodes[primary].process.resume();
            }
            Fault::StopLong => {
                bed.cluster.nodes[primary].process.stop();
                wait_promoted(bed, replica);
                bed.cluster.nodes[primary].process.resume();
                rejoin(bed, primary, replica);
            }
            Fault::Failover => fail_over(bed, shard),
            Fault::ReshardClassic => {
                // Valkey lets each SETSLOT wait for the replicas.
                let slow = bed.cluster.shape.flavour == Flavour::Valkey;
                self.slots_moved += reshard::classic(bed, if slow { 40 } else { 200 });
            }
            Fault::ReshardAtomic => self.slots_moved += reshard::atomic(bed, 500),
            Fault::KillConnections => {
                for _ in 0..5 {
                    kill_connections(bed, primary);
                    std::thread::sleep(millis(self.random.below(60)));
                }
            }
            Fault::MaxClients => fill(bed, primary),
            Fault::Loading => load_again(bed, primary),
            Fault::NewAddress => move_away(bed, primary, replica),
            Fault::StopProxy => {
                bed.proxy.process.stop();
                std::thread::sleep(millis(2_500));
                bed.proxy.process.resume();
            }
        }
    }
}

fn wait_promoted(bed: &Bed, replica: usize) {
    wait_until(seconds(25), "the replica to take over", || is_primary(&bed.cluster, replica));
}

/// A primary that was replaced becomes a replica by itself, but not if slots had moved so shortly
/// before that its file does not say so.
pub fn rejoin(bed: &Bed, old: usize, new: usize) {
    let line = format!("CLUSTER REPLICATE {}", bed.cluster.nodes[new].id);
    let mut asked = std::time::Instant::now();
    wait_until(seconds(25), "the old primary to follow the new one", || {
        let replication = info(&bed.cluster, old, "replication");
        if replication.contains("role:master") && asked.elapsed() > seconds(2) {
            bed.cluster.nodes[old].run(&line);
            asked = std::time::Instant::now();
        }
        replication.contains("master_link_status:up")
    });
}

/// Cuts every connection of clients at a node, ours too.
pub fn kill_connections(bed: &Bed, node: usize) {
    bed.cluster.nodes[node].client().run("CLIENT KILL TYPE normal");
}

/// The node takes no new connections for a while, and the old ones are cut.
fn fill(bed: &Bed, node: usize) {
    let mut operator = bed.cluster.nodes[node].client();
    assert_eq!(operator.run("CONFIG SET maxclients 1").text(), "OK");
    operator.run("CLIENT KILL TYPE normal");
    std::thread::sleep(millis(400));
    assert_eq!(operator.run("CONFIG SET maxclients 10000").text(), "OK");
}

/// Restarts a primary from its file so quickly that nobody takes over, and makes it load slowly.
fn load_again(bed: &mut Bed, node: usize) {
    let mut operator = bed.cluster.nodes[node].client();
    let size = operator.run("DBSIZE").integer().max(1);
    assert_eq!(operator.run("SAVE").text(), "OK");
    let delay = (700_000 / size).to_string();
    bed.cluster.nodes[node].restart_with(&["--key-load-delay", &delay]);
    let port = bed.cluster.nodes[node].port;
    pause(seconds(20), || {
        let reply = Client::try_connect(port).and_then(|mut c| c.try_call(&["GET", "x"]));
        reply.is_ok_and(|reply| !reply.text().starts_with("-LOADING"))
    });
    bed.cluster.nodes[node].run("CONFIG SET key-load-delay 0");
}

/// Kills a primary, and starts it at another port once its replica has taken over.
fn move_away(bed: &mut Bed, primary: usize, replica: usize) {
    bed.cluster.nodes[primary].process.kill();
    wait_promoted(bed, replica);
    bed.cluster.nodes[primary].restart_elsewhere();
    rejoin(bed, primary, replica);
    // And then it is the primary again, at its new address.
    let shard = primary % 3;
    bed.wait_healed();
    fail_over(bed, shard);
}
