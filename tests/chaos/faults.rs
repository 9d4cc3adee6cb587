//! What can be done to a bed, drawn from a seed, one thing after the other; each is healed before
//! the next.
//!
//! Not here: faults of the network (`outside`), what clients see of them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::bed::{Bed, fail_over, info, is_primary, pause};
use crate::crowd::Crowd;
use crate::reshard;
use crate::support::chance::SplitMix as Random;
use crate::support::client::Client;
use crate::support::cluster::Flavour;
use crate::support::{millis, seconds, wait_until};

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
    /// Killed and started again under another IP address.
    NewIp,
    /// The connections of all clients, cut: by CLIENT KILL at the proxy, and by the kernel
    /// (`ss -K`) where it can.
    KillClients,
    /// The wall clock of the proxy a day ahead, a day back, and right again.
    ClockJump,
    /// SIGSTOP of the proxy for longer than its time-outs.
    StopProxy,
}

impl Fault {
    pub const ALL: [Fault; 15] = [
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
        Fault::NewIp,
        Fault::KillClients,
        Fault::ClockJump,
        Fault::StopProxy,
    ];

    fn may_lose_writes(self) -> bool {
        use Fault::{KillPrimary, Loading, NewAddress, NewIp, StopLong};
        matches!(self, KillPrimary | StopLong | Loading | NewAddress | NewIp)
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
    hosts: u32,
}

impl Faults {
    pub fn new(seed: u64, allowed: &[Fault]) -> Faults {
        Faults {
            random: Random(seed),
            allowed: allowed.to_vec(),
            left: Vec::new(),
            done: BTreeMap::new(),
            slots_moved: 0,
            hosts: 0,
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
        let possible = match fault {
            Fault::ReshardAtomic => bed.cluster.shape.flavour == Flavour::Valkey,
            Fault::ClockJump => bed.clock.is_some(),
            _ => true,
        };
        if !possible {
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
            Fault::NewAddress => move_away(bed, primary, replica, None),
            Fault::NewIp => {
                let host = self.new_host();
                move_away(bed, primary, replica, Some(host.into()));
            }
            Fault::KillClients => {
                for _ in 0..3 {
                    kill_clients(bed.proxy.port);
                    std::thread::sleep(millis(self.random.below(60)));
                }
            }
            Fault::ClockJump => jump(bed),
            Fault::StopProxy => {
                bed.proxy.process.stop();
                std::thread::sleep(millis(2_500));
                bed.proxy.process.resume();
            }
        }
    }
}

impl Faults {
    /// An address of loopback that no node has had.
    fn new_host(&mut self) -> [u8; 4] {
        self.hosts += 1;
        [127, 1, (self.hosts / 250) as u8, 1 + (self.hosts % 250) as u8]
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
    pause(seconds(20), || {
        let reply =
            bed.cluster.nodes[node].try_client().and_then(|mut c| c.try_call(&["GET", "x"]));
        reply.is_ok_and(|reply| !reply.text().starts_with("-LOADING"))
    });
    bed.cluster.nodes[node].run("CONFIG SET key-load-delay 0");
}

/// Cuts all clients' connections with the proxy. (The operator's own is one of them.)
pub fn kill_clients(port: u16) {
    let mut operator = Client::connect(port);
    let killed = operator.run("CLIENT KILL TYPE normal SKIPME yes");
    assert!(!killed.is_error(), "{}", killed.text());
    let _ = std::process::Command::new("ss")
        .args(["-K", "-t", "state", "established"])
        .arg(format!("sport = :{port}"))
        .output();
}

/// The proxy's log and nothing else goes by the wall clock.
fn jump(bed: &Bed) {
    let Some(clock) = &bed.clock else { return };
    for offset in ["+1d", "-1d", "+0"] {
        clock.set(offset);
        // The library looks into its file once a second.
        std::thread::sleep(millis(1_200));
    }
}

/// Kills a primary, and starts it at another port, or under another address, once its replica has
/// taken over.
pub fn move_away(bed: &mut Bed, primary: usize, replica: usize, host: Option<Ipv4Addr>) {
    bed.cluster.nodes[primary].process.kill();
    wait_promoted(bed, replica);
    match host {
        Some(host) => bed.cluster.nodes[primary].restart_at(host),
        None => bed.cluster.nodes[primary].restart_elsewhere(),
    }
    rejoin(bed, primary, replica);
    // And then it is the primary again, at its new address.
    let shard = primary % 3;
    bed.wait_healed();
    fail_over(bed, shard);
}
