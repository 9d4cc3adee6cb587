//! H16: nodes known by name, while the names' answers change, are wrong, or do not come: a hosts
//! file of the proxy's own, in a mount namespace, and a resolver that never answers.
//!
//! Needs root and `unshare`; without them it says so and is skipped. Not here: names whose service
//! is slow at the start (`tests/cases/fakes`).

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Instant;

use crate::bed;
use crate::crowd::{Crowd, usual_styles};
use crate::mixed::{is_long, seed};
use crate::support::cluster::{Cluster, Flavour, Shape};
use crate::support::ports::own_address;
use crate::support::process::{Folder, with_prefix};
use crate::support::proxy::{Proxy, Settings};
use crate::support::{goal, millis, seconds, wait_until};

/// What the proxy knows of names.
struct Names {
    folder: Folder,
    /// The resolver for all that is not in the hosts file: takes questions and says nothing.
    _resolver: UdpSocket,
}

impl Names {
    /// `last`: of the resolver's address, another for each test.
    fn new(last: u8) -> Option<Names> {
        let at = own_address(last);
        let resolver = UdpSocket::bind((at, 53));
        let unshare = std::process::Command::new("unshare").args(["-m", "true"]).output();
        let (Ok(resolver), true) = (resolver, unshare.is_ok_and(|done| done.status.success()))
        else {
            println!("SKIPPED: names need root, unshare and port 53 of {at}");
            return None;
        };
        let names = Names { folder: Folder::new("names"), _resolver: resolver };
        names.write("nsswitch.conf", "hosts: files dns\n");
        let options = "options timeout:5 attempts:2";
        names.write("resolv.conf", &format!("nameserver {at}\n{options}\n"));
        names.write("hosts", "");
        Some(names)
    }

    /// In place, since what is mounted is this file and no other of its name.
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.file(name), text).expect("a file of names");
    }

    /// `hosts[i]` is what node i is called at from now on; `None`: its name has no answer.
    fn set(&self, hosts: &[Option<Ipv4Addr>]) {
        let line = |(i, host): (usize, &Option<Ipv4Addr>)| {
            host.map(|host| format!("{host} {}\n", name_of(i))).unwrap_or_default()
        };
        self.write("hosts", &hosts.iter().enumerate().map(line).collect::<String>());
    }

    /// What `work` starts in this thread goes by these names.
    fn rule<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut script = String::new();
        for name in ["hosts", "nsswitch.conf", "resolv.conf"] {
            script += &format!("mount --bind {} /etc/{name} && ", self.folder.file(name).display());
        }
        script += "exec \"$@\"";
        with_prefix(&["unshare", "-m", "sh", "-c", &script, "sh"], work)
    }
}

fn name_of(node: usize) -> String {
    format!("node-{node}.ringway.test")
}

/// Three primaries that announce names, each at two addresses; and a proxy that knows only names.
fn named(names: &Names) -> (Cluster, Proxy) {
    let args = ["--cluster-preferred-endpoint-type", "hostname"].map(str::to_owned).into();
    let cluster = Cluster::start(Shape { flavour: Flavour::Redis, args, ..Shape::default() });
    for (i, node) in cluster.nodes.iter().enumerate() {
        let line = format!("CONFIG SET cluster-announce-hostname {}", name_of(i));
        assert_eq!(node.run(&line).text(), "OK", "{line}");
        let bind = node.client().call(&["CONFIG", "SET", "bind", "127.0.0.1 127.0.0.2"]);
        assert_eq!(bind.text(), "OK");
    }
    wait_until(seconds(10), "all names to be known", || {
        cluster.nodes.iter().all(|node| {
            let slots = node.run("CLUSTER SLOTS").text();
            (0..3).all(|i| slots.contains(&name_of(i)))
        })
    });
    names.set(&[Some(FIRST); 3]);
    let seeds: Vec<String> =
        (0..3).map(|i| format!("{}:{}", name_of(i), cluster.nodes[i].port)).collect();
    let options = ["--refresh-interval-ms", "500", "--request-timeout-ms", "20000"];
    let proxy = names.rule(|| Proxy::start_at(&seeds, &Settings::args(&options)));
    let mut client = proxy.client();
    for i in 0..3 {
        let key = cluster.key_on(i, "named");
        wait_until(seconds(10), "every node to be served", || {
            client.run(&format!("SET {key} v")).text() == "OK"
        });
    }
    (cluster, proxy)
}

const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Nobody is here.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 99);

/// Connections that a node has at one of its addresses, other than its peers' and its operator's.
fn connections_at(cluster: &Cluster, node: usize, host: Ipv4Addr) -> usize {
    let list = cluster.nodes[node].run("CLIENT LIST").string();
    let here = format!(" laddr={host}:");
    list.lines().filter(|line| line.contains(&here) && !line.contains("cmd=client|list")).count()
}

#[test]
fn h16_changed_wrong_or_missing_answers_of_names_disturb_nobody() {
    let Some(names) = Names::new(253) else { return };
    let (cluster, mut proxy) = named(&names);
    let crowd = Crowd::start(proxy.port, seed(), &usual_styles(1));
    // Longer than an answer counts as fresh.
    let pause = if is_long() { seconds(30) } else { seconds(6) };
    names.set(&[Some(SECOND), Some(FIRST), Some(FIRST)]);
    let start = Instant::now();
    wait_until(seconds(20), "the new address to be used", || {
        connections_at(&cluster, 0, SECOND) > 0
    });
    println!("H16: a changed answer is used after {:?}", start.elapsed());
    names.set(&[Some(SECOND), Some(NOWHERE), Some(FIRST)]);
    std::thread::sleep(pause);
    assert!(connections_at(&cluster, 1, FIRST) > 0, "the healthy connections are kept");
    names.set(&[None, None, None]);
    std::thread::sleep(pause / 3);
    let tally = crowd.finish("H16: answers changed, were wrong, did not come");
    tally.expect_right();
    tally.expect_no_errors();
    assert_eq!(tally.lost, 0);
    // What is lost now comes back where it was: nobody has a better answer.
    let mut client = proxy.client();
    for i in 0..3 {
        cluster.nodes[i].run("CLIENT KILL TYPE normal");
        let key = cluster.key_on(i, "named");
        let start = Instant::now();
        wait_until(seconds(5), "the last good answer to be used", || {
            client.run(&format!("SET {key} w")).text() == "OK"
        });
        assert!(start.elapsed() <= goal(seconds(2)), "node {i}: {:?}", start.elapsed());
    }
    proxy.expect_alive();
}

#[test]
fn h16_node_that_moves_is_found_by_its_name() {
    let Some(names) = Names::new(254) else { return };
    let (mut cluster, mut proxy) = named(&names);
    cluster.nodes[0].add_args(&["--cluster-announce-hostname", &name_of(0)]);
    let crowd = Crowd::start(proxy.port, seed(), &usual_styles(1));
    std::thread::sleep(millis(300));
    for (round, host) in [[127, 0, 3, 1], [127, 0, 3, 2]].into_iter().enumerate() {
        let host = Ipv4Addr::from(host);
        crowd.may_lose();
        cluster.nodes[0].process.kill();
        cluster.nodes[0].restart_at(host);
        names.set(&[Some(host), Some(FIRST), Some(FIRST)]);
        let (start, key) = (Instant::now(), cluster.key_on(0, "named"));
        let mut client = proxy.client();
        wait_until(seconds(20), "the moved node to be served", || {
            client.run(&format!("SET {key} x")).text() == "OK"
        });
        println!("H16: move {round}: served {:?} after it was there", start.elapsed());
        assert!(start.elapsed() <= goal(seconds(3)), "{:?}", start.elapsed());
        crowd.calm();
        std::thread::sleep(millis(500));
    }
    let tally = crowd.finish("H16: a node moved twice");
    tally.expect_right();
    assert!(bed::info(&cluster, 0, "server").contains("redis_version"));
    proxy.expect_alive();
}
