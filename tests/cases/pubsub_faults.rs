//! Nodes that fail and slots that move under subscribers, who must not notice.
//!
//! Not here: what subscribers are told on a good day (`pubsub`).

use std::time::{Duration, Instant};

use crate::bench::{flavour, with};
use crate::support::client::{Client, Got};
use crate::support::cluster::Cluster;
use crate::support::keys::key_of_slot;
use crate::support::proxy::Proxy;
use crate::support::{goal, millis, patience, seconds, wait_until};

/// Publishes again and again until it comes; fails at a message that is not the subscriber's.
#[track_caller]
fn expect_heard(subscriber: &mut Client, publisher: &mut Client, line: &str, limit: Duration) {
    let (start, limit) = (Instant::now(), patience(limit));
    let words: Vec<String> = line.split(' ').skip(1).map(|word| format!("\"{word}\"")).collect();
    while start.elapsed() < limit {
        publisher.run(line);
        match subscriber.read_within(millis(200)) {
            Got::Reply(reply) => {
                let message = reply.text();
                assert!(message.contains(&words[0]), "{line}: {message}");
                // One of those that were published before may come late.
                if !message.contains(&words[1]) {
                    continue;
                }
                while let Got::Reply(_) = subscriber.read_within(millis(300)) {}
                return println!("{line}: heard after {:?}", start.elapsed());
            }
            Got::Nothing => (),
            Got::Closed => panic!("{line}: the subscriber was closed"),
        }
    }
    panic!("{line}: not heard within {limit:?}");
}

/// One subscriber of each kind, on channels of the first primary.
struct Ears {
    channel: Client,
    pattern: Client,
    shard: Client,
    names: [String; 2],
}

impl Ears {
    fn open(cluster: &Cluster, proxy: &Proxy) -> Ears {
        let names = ["ch", "shard"].map(|name| cluster.key_on(0, name));
        let mut ears = Ears {
            channel: proxy.client(),
            pattern: Client::connect_resp3(proxy.port),
            shard: proxy.client(),
            names,
        };
        ears.channel.run(&format!("SUBSCRIBE {}", ears.names[0]));
        ears.pattern.run(&format!("PSUBSCRIBE {}*", &ears.names[0]));
        ears.shard.run(&format!("SSUBSCRIBE {}", ears.names[1]));
        ears
    }

    #[track_caller]
    fn expect_hearing(&mut self, proxy: &Proxy, text: &str, limit: Duration) {
        let mut publisher = proxy.client();
        let [channel, shard] = &self.names;
        let line = format!("PUBLISH {channel} {text}");
        expect_heard(&mut self.channel, &mut publisher, &line, limit);
        while let Got::Reply(_) = self.pattern.read_within(millis(100)) {}
        expect_heard(&mut self.pattern, &mut publisher, &line, limit);
        while let Got::Reply(_) = self.channel.read_within(millis(100)) {}
        expect_heard(&mut self.shard, &mut publisher, &format!("SPUBLISH {shard} {text}"), limit);
    }
}

#[test]
fn subscribers_live_through_a_failover_and_a_killed_primary() {
    let mut cluster = Cluster::three_and_three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut ears = Ears::open(&cluster, &proxy);
    ears.expect_hearing(&proxy, "before", seconds(5));
    let replica = cluster.replica_of(0);
    cluster.failover(replica);
    let voted = Instant::now();
    ears.expect_hearing(&proxy, "promoted", seconds(10));
    // The old primary follows: it may go, and then the new one dies.
    cluster.wait_whole();
    // Within twice the nodes' time-out they vote for no other replica of this primary, and the next
    // election is only after four times that: longer than the proxy keeps up with a lost shard.
    std::thread::sleep(seconds(5).saturating_sub(voted.elapsed()));
    cluster.nodes[replica].process.kill();
    cluster.wait_promoted(0, seconds(20));
    ears.expect_hearing(&proxy, "killed", seconds(15));
}

#[test]
fn subscribers_live_through_a_node_that_falls_silent() {
    let cluster = Cluster::three_and_three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", "1000")]));
    let mut ears = Ears::open(&cluster, &proxy);
    cluster.nodes[0].process.stop();
    cluster.wait_promoted(cluster.replica_of(0), seconds(20));
    ears.expect_hearing(&proxy, "silent", seconds(30));
    cluster.nodes[0].process.resume();
}

#[test]
fn lost_connections_are_made_again() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut ears = Ears::open(&cluster, &proxy);
    for round in 0..3 {
        for node in &cluster.nodes {
            node.run("CLIENT KILL TYPE pubsub");
        }
        ears.expect_hearing(&proxy, &format!("round{round}"), seconds(5));
    }
}

#[test]
fn shard_channel_follows_its_slot() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("refresh-interval-ms", "3600000")]));
    let name = key_of_slot("moving", 4242);
    let (mut subscriber, mut publisher) = (proxy.client(), proxy.client());
    subscriber.run(&format!("SSUBSCRIBE {name}"));
    let mut owner = 0;
    for round in 0..6 {
        let next = (owner + 1 + round % 2) % 3;
        cluster.pass_slot(4242, owner, next);
        owner = next;
        let line = format!("SPUBLISH {name} round{round}");
        expect_heard(&mut subscriber, &mut publisher, &line, seconds(5));
    }
    let list = publisher.run(&format!("PUBSUB SHARDNUMSUB {name}")).text();
    assert_eq!(list, format!("[\"{name}\", 1]"));
    assert_eq!(subscriber.run("SUNSUBSCRIBE").text(), format!("[\"sunsubscribe\", \"{name}\", 0]"));
}

/// Channels are not tied to slots: a reshard loses no message.
#[test]
fn plain_channel_loses_nothing_while_its_slot_moves() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let name = key_of_slot("staying", 4243);
    let (mut subscriber, mut publisher) = (proxy.client(), proxy.client());
    subscriber.run(&format!("SUBSCRIBE {name}"));
    let mut owner = 0;
    for round in 0..100 {
        if round % 10 == 5 {
            let next = (owner + 1) % 3;
            cluster.pass_slot(4243, owner, next);
            owner = next;
        }
        publisher.run(&format!("PUBLISH {name} {round}"));
        let message = subscriber.read().text();
        assert_eq!(message, format!("[\"message\", \"{name}\", \"{round}\"]"));
    }
}

/// Nobody can be reached: the subscriber is told, by a close, and a new one is told at once.
#[test]
fn deaf_subscriber_is_closed() {
    let mut cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start(&cluster);
    let mut ears = Ears::open(&cluster, &proxy);
    for node in &mut cluster.nodes {
        node.process.kill();
    }
    let start = Instant::now();
    let mut late = proxy.client();
    let reply = late.run("SUBSCRIBE late").text();
    assert!(reply.starts_with("-ERR"), "{reply}");
    assert_eq!(late.run("PING").text(), "PONG");
    for client in [&mut ears.channel, &mut ears.pattern, &mut ears.shard] {
        client.expect_closed();
    }
    assert!(start.elapsed() < goal(seconds(16)), "after {:?}", start.elapsed());
    proxy.expect_alive();
    wait_until(seconds(5), "the log to say so", || proxy.log().contains("cannot be kept up"));
}
