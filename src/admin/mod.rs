//! The admin endpoint: metrics, readiness, the slot map and a live page, by HTTP, read-only.
//!
//! Two threads. One asks the reactors once a second (`gather`); the other serves what that one has
//! seen last (`serve`), so that no reader reaches a reactor, however many there are and however
//! slow they read.
//!
//! ```text
//! reactors ──Facts──► gather ──► picture ──► prometheus ─┐
//!    ▲                  │            └─────► live ─ top ─┼─► serve ──► http
//!    └─────Message──────┘                  ready ────────┘
//! ```
//! Not here: what is counted (`proxy/facts`, `metrics`), who is told to start it (`serve` of the
//! crate).

mod gather;
mod http;
mod json;
mod live;
mod notes;
mod picture;
mod prometheus;
mod ready;
mod serve;
mod show;
#[cfg(test)]
mod tests_live;
mod top;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::log::Log;
use crate::metrics::Board;
use crate::reactor::Peer;
use gather::{Shared, Sources};

pub use gather::cpu_us_of;

/// What the endpoint is told at its start.
pub struct AdminSettings {
    pub listen: SocketAddr,
    /// Names of the pools, by index.
    pub pools: Vec<String>,
    pub started_unix_s: u64,
    pub peers: Vec<Peer>,
    /// The kernel's numbers of the reactors' threads.
    pub tids: Vec<u32>,
    pub board: Board,
}

/// The endpoint that runs. It ends with the process.
pub struct Admin {
    shared: Arc<Shared>,
}

/// Starts both threads. An address that cannot be had is waited for, and the log says so: it must
/// not keep the process from serving, and belongs to the process before it until that one has
/// ended.
pub fn start(settings: AdminSettings, log: Log) -> io::Result<Admin> {
    let shared = Arc::new(Shared::new(settings.pools));
    let sources = Sources {
        peers: settings.peers,
        tids: settings.tids,
        board: settings.board,
        started_unix_s: settings.started_unix_s,
    };
    let gathered = shared.clone();
    let gatherer = std::thread::Builder::new().name("admin-gather".into());
    gatherer.spawn(move || gather::run(sources, gathered))?;
    serve::start(settings.listen, shared.clone(), log)?;
    Ok(Admin { shared })
}

impl Admin {
    /// The process drains: `/readyz` says no from now on.
    pub fn note_drain(&self) {
        self.shared.note_drain();
    }
}
