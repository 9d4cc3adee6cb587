//! A shard that is gone, and a cluster that is gone: what the admin endpoint, INFO, the log and
//! README.md say of it must agree, and must be over when they are back.
//!
//! Not here: each rule of readiness (the crate's own tests), reactors that hang (`tests/program`).

use std::time::{Duration, Instant};

use crate::bed::{self, SHARDS};
use crate::support::cluster::{Cluster, Flavour};
use crate::support::http::{Scrape, ask, get};
use crate::support::keys::SLOTS;
use crate::support::ports::free_port;
use crate::support::proxy::{Proxy, Settings};
use crate::support::{goal, millis, patience, seconds, wait_until};

/// What is said at one moment.
#[derive(PartialEq, Debug)]
struct Said {
    ready: bool,
    /// Why not, or "ready".
    why: String,
    alive: bool,
    /// INFO's, and the two of the metrics.
    served: [u64; 3],
}

struct Rig {
    cluster: Cluster,
    proxy: Proxy,
    port: u16,
}

impl Rig {
    fn said(&self) -> Said {
        let ready = get(self.port, "/readyz");
        let scrape = Scrape::read(&get(self.port, "/metrics").body);
        let sum = |name: &str| scrape.sum(name, &[]) as u64;
        let info = self.proxy.client().run("INFO ringway").string();
        let (told, missing) = (field(&info, "slots_served"), field(&info, "slots_not_served"));
        assert_eq!(told + missing, u64::from(SLOTS), "{info}");
        Said {
            ready: ready.status == 200,
            why: ready.body.trim().to_owned(),
            alive: get(self.port, "/healthz").status == 200,
            served: [
                told,
                sum("ringway_slots_served"),
                u64::from(SLOTS) - sum("ringway_slots_missing"),
            ],
        }
    }

    #[track_caller]
    fn wait_for(&self, limit: Duration, ready: bool, served: u64) {
        let (start, limit) = (Instant::now(), patience(limit));
        let wanted = |said: &Said| {
            said.ready == ready && said.alive && said.served.iter().all(|&told| told == served)
        };
        let mut said = self.said();
        while !wanted(&said) {
            assert!(start.elapsed() < limit, "{said:?}, not {served} slots\n{}", self.proxy.log());
            std::thread::sleep(millis(20));
            said = self.said();
        }
    }

    fn kill(&mut self, nodes: &[usize]) {
        nodes.iter().for_each(|&i| self.cluster.nodes[i].process.kill());
    }

    /// Starts them, and waits until one says that it serves a key. Since when.
    fn bring_back(&mut self, nodes: &[usize], key: &str) -> Instant {
        for &i in nodes {
            self.cluster.nodes[i].restart_with(&[]);
        }
        wait_until(seconds(30), "a node to serve the key", || {
            nodes.iter().any(|&i| {
                let client = self.cluster.nodes[i].try_client();
                client.is_ok_and(|mut client| {
                    client.try_call(&["GET", key]).is_ok_and(|reply| !reply.is_error())
                })
            })
        });
        Instant::now()
    }
}

fn field(info: &str, name: &str) -> u64 {
    crate::host::field(info, name)
}

#[test]
fn lost_shard_is_counted_and_a_lost_cluster_is_not_ready_until_it_is_back() {
    let cluster = bed::cluster(Flavour::Redis, 1);
    let port = free_port();
    let args = [&format!("--admin-listen=127.0.0.1:{port}"), "--request-timeout-ms=1000"];
    let proxy = Proxy::start_with(&cluster, &Settings::args(&args));
    let mut rig = Rig { cluster, proxy, port };
    rig.wait_for(seconds(10), true, SLOTS.into());
    let keys: Vec<String> = (0..SHARDS).map(|i| rig.cluster.key_on(i, "coverage")).collect();
    let mut client = rig.proxy.client();

    // A primary and its replica: their slots are missing, and the others are served.
    let (first, last) = rig.cluster.range(0).expect("slots");
    let lost = u64::from(last - first) + 1;
    rig.kill(&[0, SHARDS]);
    rig.wait_for(seconds(20), true, u64::from(SLOTS) - lost);
    assert_eq!(rig.said().why, "ready");
    assert!(client.run(&format!("GET {}", keys[0])).is_error());
    assert_eq!(client.run(&format!("GET {}", keys[1])).text(), "nil");
    let doubt = "an owner of slots that has failed";
    rig.proxy.wait_log(doubt);
    let readme = include_str!("../../README.md");
    assert!(readme.contains(doubt), "README.md names the line");

    // All of them.
    rig.kill(&[1, 2, SHARDS + 1, SHARDS + 2]);
    rig.wait_for(seconds(20), false, 0);
    assert_eq!(rig.said().why, "no slot is served");
    rig.proxy.wait_log("no node can be reached");
    assert!(readme.contains("`no node can be reached`"), "README.md names the line");
    std::thread::sleep(seconds(2));
    // A replica may have been promoted before it was its turn.
    let since = rig.bring_back(&[1, 2, SHARDS + 1, SHARDS + 2], &keys[1]);
    wait_until(seconds(10), "readiness", || {
        ask(rig.port, "GET /readyz HTTP/1.1\r\n\r\n").is_ok_and(|answer| answer.status == 200)
    });
    let took = since.elapsed();
    println!("/readyz is green {took:?} after the first node serves again");
    assert!(took < goal(seconds(1)), "{took:?}");

    // And the rest.
    rig.bring_back(&[0, SHARDS], &keys[0]);
    rig.wait_for(seconds(20), true, SLOTS.into());
    wait_until(seconds(5), "the lost key to be served", || {
        client.run(&format!("GET {}", keys[0])).text() == "nil"
    });
    rig.proxy.expect_alive();
}
