//! How long each step took by which this process took over from the one before: one line of the
//! log, once all its clients are here.
//!
//! Not here: the steps themselves (`process`), how clients come (`reactor/passing`). Times are
//! microseconds of the host's clock: the other process tells some of them.

use crossbeam_channel::{Receiver, TryRecvError};

use crate::log::Log;
use crate::serve::Arrival;

pub(super) struct Steps {
    pid: u32,
    /// When we asked, were offered the sockets, had started our threads.
    begun_us: u64,
    offered_us: u64,
    started_us: u64,
    /// When we knew the nodes, were connected to them, and said that we are in charge.
    taken_us: u64,
    arrivals: Receiver<Arrival>,
    sum: Arrival,
}

impl Steps {
    pub fn new(pid: u32, [begun_us, offered_us, started_us]: [u64; 3]) -> Steps {
        let arrivals = crossbeam_channel::never();
        let sum = Arrival::default();
        Steps { pid, begun_us, offered_us, started_us, taken_us: 0, arrivals, sum }
    }

    pub fn taken_over(&mut self, now_us: u64, arrivals: Receiver<Arrival>) {
        self.taken_us = now_us;
        self.arrivals = arrivals;
    }

    /// Writes the line when all is over. `true`: it did.
    pub fn tell(&mut self, log: &mut Log, now_us: u64) -> bool {
        loop {
            match self.arrivals.try_recv() {
                Ok(arrival) => self.sum = joined(&self.sum, &arrival),
                Err(TryRecvError::Empty) => return false,
                // Each reactor has told.
                Err(TryRecvError::Disconnected) => break,
            }
        }
        let last_us = self.sum.last_us.max(self.taken_us);
        let sum = &self.sum;
        log.info(
            now_us,
            "handover finished",
            &[
                ("process", &self.pid),
                ("clients", &sum.clients),
                ("offer_ms", &Millis(self.begun_us, self.offered_us)),
                ("threads_ms", &Millis(self.offered_us, self.started_us)),
                ("nodes_ms", &Millis(self.started_us, self.taken_us)),
                ("first_client_ms", &Millis(self.taken_us, sum.first_us)),
                ("all_clients_ms", &Millis(self.taken_us, sum.last_us)),
                ("first_reply_ms", &Millis(self.taken_us, sum.reply_us)),
                ("longest_pause_ms", &Millis(0, sum.pause_us)),
                ("total_ms", &Millis(self.begun_us, last_us)),
            ],
        );
        true
    }
}

fn joined(one: &Arrival, other: &Arrival) -> Arrival {
    let first = |a: u64, b: u64| if a == 0 || b == 0 { a.max(b) } else { a.min(b) };
    Arrival {
        clients: one.clients + other.clients,
        first_us: first(one.first_us, other.first_us),
        last_us: one.last_us.max(other.last_us),
        reply_us: first(one.reply_us, other.reply_us),
        pause_us: one.pause_us.max(other.pause_us),
    }
}

/// From one time to another; `-` if there was no other.
struct Millis(u64, u64);

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Millis(from, to) = *self;
        if to == 0 && from > 0 {
            return f.write_str("-");
        }
        let us = to.saturating_sub(from);
        write!(f, "{}.{}", us / 1_000, us / 100 % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_of_all_reactors_are_one() {
        let none = Arrival::default();
        let one = Arrival { clients: 2, first_us: 30, last_us: 70, reply_us: 0, pause_us: 9 };
        let other = Arrival { clients: 1, first_us: 20, last_us: 20, reply_us: 50, pause_us: 4 };
        let all = [none, other].iter().fold(one, |sum, next| joined(&sum, next));
        let Arrival { clients, first_us, last_us, reply_us, pause_us } = all;
        assert_eq!([clients, first_us, last_us, reply_us, pause_us], [3, 20, 70, 50, 9]);
    }

    #[test]
    fn times_are_tenths_of_milliseconds() {
        let told = [Millis(1_000, 43_260), Millis(1_000, 0), Millis(0, 0), Millis(9, 3)];
        assert_eq!(told.map(|time| time.to_string()), ["42.2", "-", "0.0", "0.0"]);
    }
}
