//! C10, C12, C13, C18: nodes that die, change places, lose their majority, or refuse connections.
//!
//! Not here: slots that move (`moves`), nodes that lie (`fakes`).

use std::time::Instant;

use crate::bench::{flavour, keys_on_each, with};
use crate::load::Load;
use crate::support::client::Client;
use crate::support::cluster::{Cluster, Shape};
use crate::support::proxy::Proxy;
use crate::support::{goal, millis, patience, seconds, wait_until};

#[test]
fn c10_killed_primary_costs_only_its_slots_and_only_until_promotion() {
    // With full coverage required, nodes refuse all slots while one shard is down.
    let mut cluster = Cluster::start(Shape {
        flavour: flavour(),
        replicas_each: 1,
        args: ["--cluster-require-full-coverage", "no"].map(Into::into).into(),
        ..Shape::default()
    });
    // On a slow machine no living node is to be late.
    let timeout = goal(seconds(1)).as_millis().to_string();
    let mut proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", &timeout)]));
    let keys: Vec<String> = keys_on_each(&cluster, "c10").to_vec();
    let load = Load::start(proxy.port, &keys);
    load.wait_more(500);
    cluster.nodes[1].process.kill();
    let killed = Instant::now();
    let replica = cluster.replica_of(1);
    cluster.wait_promoted(replica, seconds(20));
    let promoted = Instant::now();
    wait_until(seconds(20), "the new primary to be used", || {
        proxy.client().run(&format!("SET {{{}}}after 1", keys[1])).text() == "OK"
    });
    let served = Instant::now();
    std::thread::sleep(seconds(2));
    load.wait_more(500);
    let outcome = load.finish();
    let foreign: Vec<_> = outcome.errors.iter().filter(|(_, key, _)| *key != keys[1]).collect();
    assert!(foreign.is_empty(), "errors for slots of living nodes: {foreign:?}");
    assert!(served - promoted <= goal(seconds(1)), "served {:?} later", served - promoted);
    // By when they were asked.
    let late: Vec<_> = outcome.errors.iter().filter(|(at, ..)| *at > served).collect();
    assert!(late.is_empty(), "errors after the slot was served again: {late:?}");
    let leaked: Vec<_> =
        outcome.errors.iter().filter(|(_, _, text)| text.starts_with("-MOVED")).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
    // What the dead node had acknowledged and not passed on may be lost; nobody else's value may
    // appear.
    let others = outcome.wrong.iter().filter(|text| !text.starts_with(&keys[1])).count();
    assert_eq!(others, 0, "wrong replies: {:?}", outcome.wrong);
    println!("promoted after {:?}; {} errors", promoted - killed, outcome.errors.len());
    proxy.expect_alive();
}

#[test]
fn c12_planned_failover_shows_no_error_to_writers() {
    let cluster = Cluster::three_and_three(flavour());
    // What is not seen is the change; nodes that have no time are another matter.
    let timeout = patience(seconds(5)).as_millis().to_string();
    let mut proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", &timeout)]));
    let mut keys: Vec<String> = keys_on_each(&cluster, "c12").to_vec();
    keys.extend((0..3).map(|i| cluster.key_on(1, &format!("c12-more-{i}"))));
    let load = Load::start(proxy.port, &keys);
    load.wait_more(500);
    for node in [cluster.replica_of(1), 1, cluster.replica_of(1)] {
        cluster.failover(node);
        load.wait_more(300);
    }
    let outcome = load.finish();
    assert!(outcome.errors.is_empty(), "{} errors: {:?}", outcome.errors.len(), outcome.errors);
    assert!(outcome.wrong.is_empty(), "wrong replies: {:?}", outcome.wrong);
    println!("{} good answers, slowest {:?}", outcome.done, outcome.slowest);
    proxy.expect_alive();
}

#[test]
fn c13_lost_majority_is_told_briefly_and_heals_alone() {
    let args = ["--cluster-node-timeout", "2000"].map(Into::into).into();
    let cluster = Cluster::start(Shape { flavour: flavour(), args, ..Shape::default() });
    let settings = with(&[("request-timeout-ms", "1000"), ("connect-timeout-ms", "500")]);
    let mut proxy = Proxy::start_with(&cluster, &settings);
    let [a, ..] = keys_on_each(&cluster, "c13");
    let mut client = proxy.client();
    assert_eq!(client.run(&format!("SET {a} v")).text(), "OK");
    cluster.nodes[1].process.stop();
    cluster.nodes[2].process.stop();
    let survivor = &cluster.nodes[0];
    wait_until(seconds(15), "the survivor to see that it is alone", || {
        survivor.run("CLUSTER INFO").string().contains("cluster_state:fail")
    });
    let start = Instant::now();
    let reply = client.run(&format!("SET {a} w")).text();
    assert!(reply.starts_with("-CLUSTERDOWN"), "a write without majority answered {reply}");
    assert!(start.elapsed() < goal(seconds(6)), "and took {:?}", start.elapsed());

    let asked = || -> u64 {
        ["slots", "shards", "nodes"].iter().map(|s| survivor.calls(&format!("cluster|{s}"))).sum()
    };
    let (before, start) = (asked(), Instant::now());
    let load = Load::start(proxy.port, &vec![a.clone(); 20]);
    std::thread::sleep(seconds(3));
    let outcome = load.finish();
    let per_second = (asked() - before) as f64 / start.elapsed().as_secs_f64();
    assert!(per_second <= 12.0, "{per_second:.1} CLUSTER questions a second");
    assert!(!outcome.errors.is_empty(), "nothing was refused");

    cluster.nodes[1].process.resume();
    cluster.nodes[2].process.resume();
    cluster.wait_whole();
    let line = format!("SET {a} healed");
    wait_until(seconds(5), "writes to work again", || client.run(&line).text() == "OK");
    proxy.expect_alive();
}

#[test]
fn c18_node_at_its_client_limit_fails_alone_and_is_not_believed() {
    let cluster = Cluster::three(flavour());
    let [a, b, c] = keys_on_each(&cluster, "c18");
    let full = &cluster.nodes[0];
    let mut operator = full.client();
    assert_eq!(operator.run("CONFIG SET maxclients 20").text(), "OK");
    let mut crowd: Vec<Client> = Vec::new();
    while let Ok(mut client) = Client::try_connect(full.port) {
        match client.try_call(&["PING"]) {
            Ok(reply) if !reply.is_error() => crowd.push(client),
            _ => break,
        }
    }
    let nodes: Vec<String> = cluster.nodes[1..].iter().map(|node| node.address()).collect();
    let mut proxy = Proxy::start_at(&nodes, &with(&[("request-timeout-ms", "5000")]));
    let mut client = proxy.client();
    wait_until(seconds(10), "the proxy to serve the others", || {
        client.run(&format!("SET {b} 1")).text() == "OK"
    });
    // By a connection that is there: a new one would be refused.
    let mut rejected = || -> u64 {
        let info = operator.run("INFO stats").string();
        let count = info.lines().find_map(|line| line.strip_prefix("rejected_connections:"));
        count.and_then(|count| count.parse().ok()).expect("the node counts")
    };
    // The crowd stays as it is: a place that were free for a moment might be the proxy's.
    let before = rejected();
    let start = Instant::now();
    for i in 0..50 {
        let reply = client.run(&format!("GET {a}")).text();
        assert!(reply.starts_with('-'), "a refused connection answered {reply}");
        let others = [format!("SET {b} {i}"), format!("SET {c} {i}"), format!("GET {c}")];
        let texts: Vec<String> = client.pipeline(&others).iter().map(|r| r.text()).collect();
        assert_eq!(texts, ["OK", "OK", &format!("\"{i}\"")], "the other nodes");
        std::thread::sleep(millis(20));
    }
    let (tries, took) = (rejected() - before, start.elapsed());
    crowd.truncate(10);
    println!("{tries} connections tried in {took:?}");
    // However long the machine takes for it.
    let most = 60 + 20 * took.as_secs();
    assert!((1..=most).contains(&tries), "{tries} connections tried in {took:?}: no backoff");
    let line = format!("GET {a}");
    wait_until(seconds(10), "the node to be used once it has room", || {
        client.run(&line).text() == "nil"
    });
    proxy.expect_alive();
}

#[test]
fn c18_many_clients_share_few_backend_connections() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let keys = keys_on_each(&cluster, "few");
    let mut clients: Vec<Client> =
        (0..100).map(|i| if i % 2 == 0 { proxy.client() } else { proxy.client_resp3() }).collect();
    for client in &mut clients {
        for key in &keys {
            assert_eq!(client.run(&format!("SET {key} 1")).text(), "OK");
        }
    }
    for node in &cluster.nodes {
        // RESP2, RESP3, the topology thread; and the test's own question. Earlier ones of the test's
        // may not be gone yet.
        wait_until(seconds(5), "few connections for 100 clients and one reactor", || {
            let text = node.info("clients", "connected_clients").unwrap_or_default();
            text.parse::<u32>().expect("a number") <= 6
        });
    }
}

#[test]
fn a20_command_cut_over_nodes_that_are_all_gone_is_an_error_and_may_be_logged() {
    let mut cluster = Cluster::three(flavour());
    let mut proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", "1000")]));
    let [a, b, c] = keys_on_each(&cluster, "a20");
    let mut client = proxy.client();
    client.run("CONFIG SET slowlog-log-slower-than 0");
    assert_eq!(client.run(&format!("MGET {a} {b} {c}")).text(), "[nil, nil, nil]");
    for node in &mut cluster.nodes {
        node.process.kill();
    }
    for _ in 0..5 {
        let start = Instant::now();
        let reply = client.run(&format!("MGET {a} {b} {c}"));
        assert!(reply.is_error(), "{} from no node", reply.text());
        assert!(start.elapsed() < goal(seconds(5)), "an error after {:?}", start.elapsed());
        client.run("SLOWLOG GET");
        assert_eq!(client.run("PING").text(), "PONG");
    }
    proxy.expect_alive();
}

#[test]
fn c14_primary_that_loads_its_data_is_waited_for_and_never_answers_nil() {
    let mut cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", "2000")]));
    let [a, b, _] = keys_on_each(&cluster, "c14");
    let mut client = proxy.client();
    let fill = "for i = 1, 200000 do redis.call('SET', '{' .. KEYS[1] .. '}' .. i, i) end";
    cluster.nodes[0].client().call(&["EVAL", fill, "1", &a]);
    let line = format!("GET {{{a}}}777");
    assert_eq!(client.run(&line).text(), "\"777\"");
    assert_eq!(cluster.nodes[0].run("SAVE").text(), "OK");
    cluster.nodes[0].restart();
    let (start, mut loading) = (Instant::now(), 0);
    loop {
        let text = client.run(&line).text();
        if text == "\"777\"" {
            break;
        }
        let why = ["-LOADING", "-CLUSTERDOWN", "-ERR"];
        assert!(why.iter().any(|kind| text.starts_with(kind)), "{line} answers {text}");
        assert!(start.elapsed() < patience(seconds(20)), "still {text}");
        loading += u32::from(text.starts_with("-LOADING"));
    }
    println!("right again after {:?}, LOADING was shown {loading} times", start.elapsed());
    wait_until(seconds(10), "the others", || client.run(&format!("GET {b}")).text() == "nil");
}
