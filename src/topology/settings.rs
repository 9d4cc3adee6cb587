//! What the topology thread is told at its start.
//!
//! Not here: where the values come from and their ranges (`config`).

use crate::cluster::{AddressMap, Endpoint};
use crate::secret::Secret;

/// All pools, and the seed of the jitter.
#[derive(Clone, Debug, Default)]
pub struct TopologySettings {
    pub pools: Vec<PoolSettings>,
    pub seed: u64,
}

/// One cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolSettings {
    /// For the log.
    pub name: String,
    /// Names, kept as names: they are resolved anew each time one is asked.
    pub seeds: Vec<Endpoint>,
    /// With which we log in to nodes. Without a password nobody logs in.
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub address_map: AddressMap,
    /// Between two refreshes when nothing happens, milliseconds.
    pub refresh_interval_ms: u64,
    /// Milliseconds.
    pub connect_timeout_ms: u64,
    /// For a whole conversation once connected, milliseconds; at most
    /// `limits::CONVERSATION_MS_MAX`.
    pub request_timeout_ms: u64,
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        PoolSettings {
            name: "default".to_string(),
            seeds: Vec::new(),
            user: None,
            password: None,
            address_map: AddressMap::default(),
            refresh_interval_ms: 10_000,
            connect_timeout_ms: 900,
            request_timeout_ms: 2_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_never_show_a_password() {
        let password = Some(Secret::new(*b"hunter2"));
        let shown = format!("{:?}", PoolSettings { password, ..PoolSettings::default() });
        assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
    }
}
