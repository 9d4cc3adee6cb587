//! The admin endpoint: metrics, readiness, the slot map and a live page, by HTTP, read-only.
//!
//! Two threads. One asks the reactors once a second (`gather`); the other serves what that one has
//! seen last (`serve`), so that no reader reaches a reactor, however many there are and however
//! slow they read.
//!
//! ```text
//! reactors ──Facts──► gather ──► picture ──► prometheus ─┐
//!    ▲                  │            └─────► live ─ top ─┼─► serve ──► http
//!    └─────Message──────┘        (the verdict of `ready`) ┘
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
use crate::ready::Shown;
use gather::{Shared, Sources};

pub use gather::cpu_us_of;

/// What the endpoint is told at its start.
pub struct AdminSettings {
    pub listen: SocketAddr,
    pub started_unix_s: u64,
    pub peers: Vec<Peer>,
    /// The kernel's numbers of the reactors' threads.
    pub tids: Vec<u32>,
    pub board: Board,
    /// Whether the process should be sent clients, as the main thread judges.
    pub readiness: Shown,
}

/// Starts both threads, which end with the process. An address that cannot be had is waited for,
/// and the log says so: it must not keep the process from serving, and belongs to the process
/// before it until that one has ended.
pub fn start(settings: AdminSettings, log: Log) -> io::Result<()> {
    let shared = Arc::new(Shared::new(settings.readiness, settings.board));
    let sources = Sources {
        peers: settings.peers,
        tids: settings.tids,
        started_unix_s: settings.started_unix_s,
    };
    let gathered = shared.clone();
    let gatherer = std::thread::Builder::new().name("admin-gather".into());
    gatherer.spawn(move || gather::run(sources, gathered))?;
    serve::start(settings.listen, shared, log)
}
