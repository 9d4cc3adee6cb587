//! What a reactor tells whoever asks for all its numbers: the admin endpoint, once a second.
//!
//! Not here: the numbers that reactors show each other (`tell`), their text forms (`admin`).

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam_channel::Sender;

use super::Worker;
use crate::proxy::facts::Facts;

/// One reactor.
#[derive(Clone, Debug)]
pub struct ReactorFacts {
    pub index: u16,
    /// By `metrics::Counter`.
    pub values: Vec<u64>,
    /// Each pool, by index, with its name.
    pub pools: Vec<(Arc<str>, Facts)>,
}

impl Worker {
    /// Somebody asks. Who does not listen any more is not told.
    #[cold]
    pub(super) fn tell_facts(&mut self, to: &Sender<ReactorFacts>) {
        self.publish();
        let pools = self.names.iter().zip(&self.proxies);
        let facts = ReactorFacts {
            index: self.index,
            values: self.counters.values(),
            pools: pools.map(|(name, proxy)| (name.clone(), proxy.facts())).collect(),
        };
        let _ = to.try_send(facts);
    }

    /// Times the request that is being timed, if there is one: the second look at the clock in this
    /// turn, one turn in many.
    #[inline]
    #[allow(clippy::disallowed_methods, reason = "the reactor's clock, for the timed request")]
    pub(super) fn end_turn(&mut self) {
        if !self.proxies.iter().any(|proxy| proxy.wants_clock()) {
            return;
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for proxy in &mut self.proxies {
            if let Some(us) = proxy.handle_turn_end(unix.as_micros() as u64) {
                self.counters.record_us(us);
            }
        }
    }
}
