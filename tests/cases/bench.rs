//! One cluster of three primaries and one proxy, shared by the tests that leave them as they found
//! them.
//!
//! Not here: tests that stop, move or fail nodes. They start their own.

use std::sync::OnceLock;

use crate::support::client::{Client, check};
use crate::support::cluster::{Cluster, Flavour};
use crate::support::proxy::{Proxy, Settings};

pub struct Bench {
    pub cluster: Cluster,
    pub proxy: Proxy,
}

/// `RINGWAY_CASES_FLAVOUR=valkey` runs the cases on valkey-server.
pub fn flavour() -> Flavour {
    match std::env::var("RINGWAY_CASES_FLAVOUR").as_deref() {
        Ok("valkey") => Flavour::Valkey,
        _ => Flavour::Redis,
    }
}

pub fn shared() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let cluster = Cluster::three(flavour());
        let proxy = Proxy::start(&cluster);
        Bench { cluster, proxy }
    })
}

/// One step at a time on a fresh connection to the shared proxy.
#[track_caller]
pub fn check_shared(steps: &[(&str, &str)]) {
    check(&mut shared().proxy.client(), steps);
}

/// Settings as `--name value` pairs.
pub fn with(pairs: &[(&str, &str)]) -> Settings {
    let words = pairs.iter().flat_map(|(name, value)| [format!("--{name}"), value.to_string()]);
    Settings::args(&words.collect::<Vec<String>>())
}

/// Keys, one on each primary.
pub fn keys_on_each(cluster: &Cluster, name: &str) -> [String; 3] {
    [0, 1, 2].map(|i| cluster.key_on(i, name))
}

/// Replies to all commands sent in one write, as text.
#[track_caller]
pub fn answers(client: &mut Client, lines: &[&str]) -> Vec<String> {
    client.pipeline(lines).iter().map(|reply| reply.text()).collect()
}
