//! Real client libraries and tools, as users have them, through the proxy.
//!
//! Not here: installing them (`tests/run.sh` does, into `tests/.cache`). `RINGWAY_CLIENTS=plain`
//! puts a plain server in the proxy's place, where all must pass as well: that tests the tests.

mod face;
#[path = "../support/mod.rs"]
mod support;
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use support::cluster::{Cluster, Flavour, Single, cache};
use support::ports::free_port;
use support::proxy::{Proxy, Settings};

struct Target {
    port: u16,
    _behind: Behind,
}

enum Behind {
    Plain { _server: Single },
    Proxied { _proxy: Box<Proxy>, _cluster: Cluster },
}

/// Each test has its own: clients empty the data set, and count on finding nothing of others.
fn target() -> Target {
    if std::env::var("RINGWAY_CLIENTS").is_ok_and(|value| value == "plain") {
        let server = Single::start(Flavour::Redis);
        return Target { port: server.node.port, _behind: Behind::Plain { _server: server } };
    }
    let cluster = Cluster::three(Flavour::Redis);
    let proxy = Proxy::start(&cluster);
    let port = proxy.port;
    Target { port, _behind: Behind::Proxied { _proxy: Box::new(proxy), _cluster: cluster } }
}

/// As `target`, with two addresses that cluster clients are told of.
fn target_of_two() -> (Target, [u16; 2]) {
    let cluster = Cluster::three(Flavour::Redis);
    let ports = [free_port(), free_port()];
    let places = ports.map(|port| format!("127.0.0.1:{port}"));
    let words = places.iter().flat_map(|place| ["--listen", place, "--announce", place]);
    let proxy = Proxy::start_with(&cluster, &Settings::args(&words.collect::<Vec<&str>>()));
    let port = proxy.port;
    (
        Target { port, _behind: Behind::Proxied { _proxy: Box::new(proxy), _cluster: cluster } },
        ports,
    )
}

fn here(file: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(file).display().to_string()
}

/// Where a client was installed: a variable, or the place that `tests/run.sh` uses.
#[track_caller]
fn installed(variable: &str, usual: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(|| cache().join(usual), PathBuf::from);
    assert!(path.exists(), "{} is not there: tests/run.sh installs it", path.display());
    path
}

/// Runs a client script to its end, for two minutes at most; it must end well.
#[track_caller]
fn check(command: &mut Command) -> String {
    static TIMEOUT: OnceLock<&str> = OnceLock::new();
    let limit = TIMEOUT.get_or_init(|| "120");
    let mut bounded = Command::new("timeout");
    bounded.args(["--kill-after", "5", limit]).arg(command.get_program());
    bounded.args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            bounded.env(name, value);
        }
    }
    if let Some(folder) = command.get_current_dir() {
        bounded.current_dir(folder);
    }
    let output = bounded.output().expect("timeout (coreutils)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}:\n{text}\n{error}", output.status);
    print!("{text}");
    text
}

#[test]
fn redis_py_8_works() {
    let (target, python) = (target(), installed("RINGWAY_PYTHON_8", "py8/bin/python"));
    check(Command::new(python).args([&here("redis_py.py"), &target.port.to_string(), "8"]));
}

#[test]
fn redis_py_4_6_works() {
    let (target, python) = (target(), installed("RINGWAY_PYTHON_46", "py46/bin/python"));
    check(Command::new(python).args([&here("redis_py.py"), &target.port.to_string(), "4"]));
}

#[test]
fn node_redis_6_works() {
    let (target, modules) = (target(), installed("RINGWAY_NODE_MODULES", "node/node_modules"));
    let mut node = Command::new("node");
    node.args([here("node_redis.mjs"), target.port.to_string()]).env("NODE_MODULES", modules);
    check(&mut node);
}

#[test]
fn ioredis_6_works() {
    let (target, modules) = (target(), installed("RINGWAY_NODE_MODULES", "node/node_modules"));
    let mut node = Command::new("node");
    node.args([here("ioredis.mjs"), target.port.to_string()]).env("NODE_MODULES", modules);
    check(&mut node);
}

#[test]
fn phpredis_works() {
    let target = target();
    check(Command::new("php").args([&here("phpredis.php"), &target.port.to_string()]));
}

#[test]
fn redis_rs_works() {
    let target = target();
    let build = cache().join("rust-client");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--manifest-path", &here("rust/Cargo.toml"), "--target-dir"]);
    cargo.arg(build).args(["--", &target.port.to_string()]);
    check(&mut cargo);
}
