//! A18: clients that speak cluster, pointed at the proxy, which shows one node with every slot, or
//! two that share them where two addresses are announced.
//!
//! Not here: what that face says (`tests/cases`, session).

use std::process::Command;

use crate::{cache, check, here, installed, target, target_of_two};

#[test]
fn redis_py_cluster_client_works() {
    let (target, python) = (target(), installed("RINGWAY_PYTHON_8", "py8/bin/python"));
    check(Command::new(python).args([&here("redis_py_cluster.py"), &target.port.to_string()]));
}

#[test]
fn ioredis_cluster_client_works() {
    let (target, modules) = (target(), installed("RINGWAY_NODE_MODULES", "node/node_modules"));
    let mut node = Command::new("node");
    node.args([here("ioredis_cluster.mjs"), target.port.to_string()]).env("NODE_MODULES", modules);
    check(&mut node);
}

/// redis-cli -c follows redirects, of which there are none.
#[test]
fn redis_cli_with_cluster_works() {
    let target = target();
    let port = target.port.to_string();
    let cli = |args: &[&str]| check(Command::new("redis-cli").args(["-c", "-p", &port]).args(args));
    assert_eq!(cli(&["SET", "face:cli", "v"]), "OK\n");
    assert_eq!(cli(&["GET", "face:cli"]), "v\n");
    assert_eq!(cli(&["DEL", "face:cli"]), "1\n");
    let keys = cli(&["--scan", "--pattern", "face:none*"]);
    assert_eq!(keys, "");
}

/// Each sees both addresses and sends to both, whatever slot.
#[test]
fn cluster_clients_spread_over_two_announced_addresses() {
    let (_target, ports) = target_of_two();
    let ports = ports.map(|port| port.to_string());
    let python = installed("RINGWAY_PYTHON_8", "py8/bin/python");
    check(Command::new(python).arg(here("redis_py_cluster.py")).args(&ports));
    let modules = installed("RINGWAY_NODE_MODULES", "node/node_modules");
    let mut node = Command::new("node");
    node.arg(here("ioredis_cluster.mjs")).args(&ports).env("NODE_MODULES", modules);
    check(&mut node);
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--manifest-path", &here("rust/Cargo.toml"), "--target-dir"]);
    check(cargo.arg(cache().join("rust-client")).arg("--").args(&ports));
}

/// redis-benchmark refuses a cluster of one node; with two it works, and loads both.
#[test]
fn redis_benchmark_with_cluster_works_on_two_announced_addresses() {
    let (target, ports) = target_of_two();
    let mut command = Command::new("redis-benchmark");
    command.args(["--cluster", "-p", &ports[0].to_string(), "-n", "4000", "-c", "20", "-P", "4"]);
    command.args(["-t", "set,get,incr,lpush,mset", "-r", "1000", "--csv"]);
    let text = check(&mut command);
    assert!(!text.to_lowercase().contains("error"), "{text}");
    assert!(text.contains("Cluster has 2 master nodes"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with('"')).count(), 6, "{text}");
    let seen = check(Command::new("redis-cli").args(["-p", &target.port.to_string(), "DBSIZE"]));
    assert!(seen.trim().parse::<u64>().is_ok_and(|keys| keys > 1_000), "{seen}");
    for port in ports {
        let port = port.to_string();
        let id = check(Command::new("redis-cli").args(["-p", &port, "CLUSTER", "MYID"]));
        let nodes = check(Command::new("redis-cli").args(["-p", &port, "CLUSTER", "NODES"]));
        assert!(nodes.contains(&format!("{} 127.0.0.1:{port}@", id.trim())), "{nodes}");
    }
}
