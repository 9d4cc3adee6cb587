//! A18: clients that speak cluster, pointed at the proxy, which shows one node with every slot.
//!
//! Not here: what that face says (`tests/cases`, session); redis-benchmark --cluster, which refuses
//! every cluster of one node ("Invalid cluster: 1 node(s)").

use std::process::Command;

use crate::{check, here, installed, target};

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
