//! Faults of the network itself, in a network namespace of the test's own: nftables drops or resets
//! what goes to a node's ports, or cuts a primary off from its peers but not from us.
//!
//! Needs root, `ip` and `nft`; without them it says so and is skipped. Not here: relays
//! (`network`).

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Instant;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::bed::{Bed, is_primary};
use crate::crowd::{Crowd, usual_styles};
use crate::faults::rejoin;
use crate::mixed::{is_long, seed};
use crate::support::client::Client;
use crate::support::cluster::Flavour;
use crate::support::process::with_prefix;
use crate::support::{goal, millis, seconds, wait_until};

/// A network namespace in which this thread, and all that it starts, lives from now on.
struct Space {
    name: String,
}

impl Space {
    fn enter(what: &str) -> Option<Space> {
        let name = format!("ringway-{}-{what}", std::process::id());
        let missing = match rustix::process::geteuid().is_root() {
            false => Some("root".to_owned()),
            true => run("nft", &["--version"])
                .and_then(|()| run("ip", &["netns", "add", &name]))
                .and_then(|()| run("ip", &["-n", &name, "link", "set", "lo", "up"]))
                .err(),
        };
        if let Some(missing) = missing {
            println!("SKIPPED: a network namespace needs {missing}");
            return None;
        }
        let space = Space { name };
        let file = std::fs::File::open(format!("/run/netns/{}", space.name)).expect("namespace");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("this thread moves into the namespace");
        space.clear();
        Some(space)
    }

    /// What is in force from now on, in place of what was.
    fn rules(&self, rules: &[String]) {
        self.clear();
        for rule in rules {
            nft(&format!("add rule inet chaos cut {rule}"));
        }
    }

    fn clear(&self) {
        nft("add table inet chaos");
        nft("delete table inet chaos");
        nft("add table inet chaos");
        // What leaves: on loopback that is all that comes, too, and its owner is known.
        nft("add chain inet chaos cut { type filter hook output priority 0; }");
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = run("ip", &["netns", "del", &self.name]);
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| format!("{program} ({error})"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or(format!("{program} {args:?} to work ({said})"))
}

fn nft(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    run("nft", &words).unwrap_or_else(|error| panic!("{error}"));
}

/// Everything to and from a port.
fn both_ways(port: u16, verdict: &str) -> Vec<String> {
    vec![format!("tcp dport {port} {verdict}"), format!("tcp sport {port} {verdict}")]
}

/// The user as whom the node runs that is to be cut off: all nodes have one address, so what it
/// sends to its peers is told apart by its owner.
const OUTCAST: &str = "4242";

/// Starts a node again as a user of its own.
fn own_user(space: &Space, bed: &mut Bed, node: usize) {
    let folder = bed.cluster.folder().display().to_string();
    run("chmod", &["-R", "a+rwX", &folder]).expect("the nodes' folder");
    let uid = format!("--reuid={OUTCAST}");
    let prefix = ["ip", "netns", "exec", &space.name, "setpriv", &uid, "--clear-groups", "--"];
    with_prefix(&prefix, || bed.cluster.nodes[node].restart());
    bed.wait_healed();
}

/// What cuts a node, which runs as `OUTCAST`, off from its peers.
fn alone(bed: &Bed, node: usize) -> Vec<String> {
    let mut rules = both_ways(bed.cluster.nodes[node].port + 10_000, "drop");
    for peer in &bed.cluster.nodes {
        rules.push(format!("meta skuid {OUTCAST} tcp dport {} drop", peer.port + 10_000));
    }
    rules
}

fn start(space: &Space) -> Bed {
    let prefix = ["ip", "netns", "exec", &space.name];
    let options = ["--request-timeout-ms", "800", "--connect-timeout-ms", "300"];
    with_prefix(&prefix, || Bed::start_with(Flavour::Redis, &options))
}

#[test]
fn black_holes_and_resets_at_a_nodes_port_fail_in_time_and_pass() {
    let Some(space) = Space::enter("holes") else { return };
    let mut bed = start(&space);
    for round in 0..if is_long() { 10 } else { 1 } {
        for verdict in ["drop", "reject with tcp reset"] {
            let (primary, _) = bed.pair(round % 3);
            let key = bed.cluster.key_on(round % 3, "hole");
            let crowd = Crowd::start(bed.proxy.port, seed(), &usual_styles(1));
            let mut client = bed.proxy.client();
            assert_eq!(client.run(&format!("SET {key} v")).text(), "OK");
            space.rules(&both_ways(bed.cluster.nodes[primary].port, verdict));
            let start = Instant::now();
            let reply = client.run(&format!("SET {key} w")).text();
            let took = start.elapsed();
            assert!(reply.starts_with("-ERR") && reply.contains("run"), "{verdict}: {reply}");
            assert!(took <= goal(millis(1_000)), "{verdict}: failed after {took:?}");
            std::thread::sleep(seconds(2));
            space.rules(&[]);
            let start = Instant::now();
            wait_until(seconds(10), "the node to be used again", || {
                client.run(&format!("SET {key} x")).text() == "OK"
            });
            let again = start.elapsed();
            println!("{verdict}: failed after {took:?}, used again after {again:?}");
            // The longest backoff, and the attempt that is under way.
            assert!(again <= goal(millis(1_000)), "{verdict}: used again after {again:?}");
            std::thread::sleep(millis(300));
            let tally = crowd.finish(verdict);
            tally.expect_right();
            assert_eq!(tally.lost, 0, "{verdict}: no node was lost, and so no write");
            bed.wait_healed();
        }
    }
    bed.proxy.expect_alive();
}

/// The same at the proxy's own port: clients are cut, or hear nothing for a while. Whoever comes
/// again is served, and nobody gets what was another's.
#[test]
fn resets_and_black_holes_at_the_proxys_own_port_cost_no_wrong_reply() {
    let Some(space) = Space::enter("clients") else { return };
    let mut bed = start(&space);
    let crowd = Crowd::start(bed.proxy.port, seed(), &usual_styles(4));
    for _ in 0..if is_long() { 50 } else { 4 } {
        for verdict in ["reject with tcp reset", "drop"] {
            std::thread::sleep(millis(200));
            space.rules(&both_ways(bed.proxy.port, verdict));
            std::thread::sleep(millis(150));
            space.rules(&[]);
        }
    }
    std::thread::sleep(millis(300));
    let tally = crowd.finish("resets and black holes at the proxy's port");
    tally.expect_right();
    assert_eq!(tally.lost, 0);
    assert!(tally.connections > 6, "{} connections", tally.connections);
    bed.proxy.expect_alive();
}

/// A whole node vanishes without a word: no RST, no FIN, its replica takes over.
#[test]
fn vanished_primary_is_replaced() {
    let Some(space) = Space::enter("gone") else { return };
    let mut bed = start(&space);
    let (primary, replica) = bed.pair(1);
    own_user(&space, &mut bed, primary);
    let crowd = Crowd::start(bed.proxy.port, seed(), &usual_styles(1));
    std::thread::sleep(millis(300));
    crowd.may_lose();
    let port = bed.cluster.nodes[primary].port;
    let gone: Vec<String> =
        [both_ways(port, "drop"), alone(&bed, primary)].into_iter().flatten().collect();
    space.rules(&gone);
    wait_until(seconds(20), "the replica to take over", || is_primary(&bed.cluster, replica));
    let promoted = Instant::now();
    let key = bed.cluster.key_on(1, "gone");
    let mut client = bed.proxy.client();
    wait_until(seconds(10), "the slot to be served", || {
        client.run(&format!("SET {key} v")).text() == "OK"
    });
    let took = promoted.elapsed();
    println!("vanished: served {took:?} after the promotion");
    assert!(took <= goal(millis(1_000)), "{took:?}");
    space.rules(&[]);
    rejoin(&bed, primary, replica);
    bed.wait_healed();
    crowd.calm();
    let tally = crowd.finish("vanished primary");
    tally.expect_right();
    bed.proxy.expect_alive();
}

/// H10: a primary that its peers cannot see, and we can. It goes on for a while and then refuses;
/// what it acknowledged meanwhile is lost, as for a client without a proxy. Then the new one serves.
#[test]
fn isolated_primary_is_left_when_it_refuses_and_its_successor_is_used() {
    let Some(space) = Space::enter("alone") else { return };
    let mut bed = start(&space);
    let (primary, replica) = bed.pair(0);
    own_user(&space, &mut bed, primary);
    let key = bed.cluster.key_on(0, "alone");
    let crowd = Crowd::start(bed.proxy.port, seed(), &usual_styles(1));
    std::thread::sleep(millis(300));
    crowd.may_lose();
    space.rules(&alone(&bed, primary));
    let cut = Instant::now();
    wait_until(seconds(20), "the replica to take over", || is_primary(&bed.cluster, replica));
    let promoted = Instant::now();
    let mut client = bed.proxy.client();
    let mut direct = Client::connect(bed.cluster.nodes[replica].port);
    wait_until(seconds(10), "a write to reach the new primary", || {
        let value = format!("{:?}", Instant::now()).replace(' ', "");
        client.call(&["SET", &key, &value]).text() == "OK"
            && direct.run(&format!("GET {key}")).string() == value
    });
    let took = promoted.elapsed();
    println!("isolated: promoted {:?} after the cut, used {took:?} later", promoted - cut);
    assert!(took <= goal(millis(1_500)), "{took:?}");
    space.rules(&[]);
    rejoin(&bed, primary, replica);
    bed.wait_healed();
    crowd.calm();
    let tally = crowd.finish("isolated primary");
    tally.expect_right();
    bed.proxy.expect_alive();
}
