//! Whether the process should be sent clients, decided from what its parts say of themselves.
//!
//! Not here: where the facts come from (`serve`), who is told (the log, the admin address).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::limits::MEMORY_REFUSE_PERCENT;

/// What is known at one moment.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// All reactors listen.
    pub started: bool,
    pub draining: bool,
    /// Reactors that have made no turn for about a second, or have ended.
    pub reactors_late: u64,
    /// Reactors that know of no slot that is served, in any pool: none has a map, or a map of nodes
    /// that are all down. Some slots missing is no fault of this process, and all proxies would
    /// have it at once: were they taken out of service for it, so would be all that still works.
    pub reactors_without_slots: u64,
    /// Of `memory_limit`; 0 if there is none.
    pub memory_percent: u64,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Readiness {
    Ready,
    NotReady(Reason),
}

/// The gravest of them is told.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    Starting,
    Draining,
    ReactorsLate(u64),
    /// No map has been learnt yet, or the whole cluster is down.
    NoSlots,
    /// New clients are refused.
    MemoryShort(u64),
}

/// Can be asked by anybody at any time.
pub fn judge(facts: &Facts) -> Readiness {
    let reason = match *facts {
        Facts { started: false, .. } => Reason::Starting,
        Facts { draining: true, .. } => Reason::Draining,
        Facts { reactors_late: late @ 1.., .. } => Reason::ReactorsLate(late),
        Facts { reactors_without_slots: 1.., .. } => Reason::NoSlots,
        Facts { memory_percent: percent @ MEMORY_REFUSE_PERCENT.., .. } => {
            Reason::MemoryShort(percent)
        }
        _ => return Readiness::Ready,
    };
    Readiness::NotReady(reason)
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Readiness::Ready => f.write_str("ready"),
            Readiness::NotReady(reason) => reason.fmt(f),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Starting => f.write_str("starting"),
            Reason::Draining => f.write_str("draining"),
            Reason::ReactorsLate(count) => write!(f, "{count} reactor(s) make no turns"),
            Reason::NoSlots => f.write_str("no slot is served"),
            Reason::MemoryShort(percent) => write!(f, "memory at {percent} % of its limit"),
        }
    }
}

/// The last verdict, for threads other than the one that judges. Before the first it is `Starting`.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<AtomicU64>);

/// Bits of a `Shown` for the number that belongs to a reason.
const NUMBER_BITS: u32 = 32;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

impl Shown {
    pub fn set(&self, readiness: Readiness) {
        let (kind, number) = match readiness {
            Readiness::NotReady(Reason::Starting) => (0, 0),
            Readiness::Ready => (1, 0),
            Readiness::NotReady(Reason::Draining) => (2, 0),
            Readiness::NotReady(Reason::ReactorsLate(count)) => (3, count),
            Readiness::NotReady(Reason::NoSlots) => (4, 0),
            Readiness::NotReady(Reason::MemoryShort(percent)) => (5, percent),
        };
        self.0.store(kind << NUMBER_BITS | number.min(NUMBER_MAX), Relaxed);
    }

    pub fn get(&self) -> Readiness {
        let value = self.0.load(Relaxed);
        let number = value & NUMBER_MAX;
        Readiness::NotReady(match value >> NUMBER_BITS {
            1 => return Readiness::Ready,
            2 => Reason::Draining,
            3 => Reason::ReactorsLate(number),
            4 => Reason::NoSlots,
            5 => Reason::MemoryShort(number),
            _ => Reason::Starting,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Facts = Facts {
        started: true,
        draining: false,
        reactors_late: 0,
        reactors_without_slots: 0,
        memory_percent: MEMORY_REFUSE_PERCENT - 1,
    };

    #[track_caller]
    fn check(facts: Facts, expected: &str) {
        let readiness = judge(&facts);
        assert_eq!(readiness.to_string(), expected);
        assert_eq!(readiness == Readiness::Ready, expected == "ready");
        let shown = Shown::default();
        shown.set(readiness);
        assert_eq!(shown.clone().get(), readiness, "other threads see the same");
    }

    #[test]
    fn process_is_ready_when_nothing_is_wrong() {
        check(WELL, "ready");
        assert_eq!(Shown::default().get(), Readiness::NotReady(Reason::Starting));
    }

    #[test]
    fn each_fault_makes_it_not_ready() {
        check(Facts::default(), "starting");
        check(Facts { draining: true, ..WELL }, "draining");
        check(Facts { reactors_late: 2, ..WELL }, "2 reactor(s) make no turns");
        check(Facts { reactors_without_slots: 1, ..WELL }, "no slot is served");
        let short = Facts { memory_percent: MEMORY_REFUSE_PERCENT, ..WELL };
        check(short, "memory at 90 % of its limit");
    }

    #[test]
    fn gravest_fault_is_told() {
        let all = Facts {
            started: true,
            draining: true,
            reactors_late: 1,
            reactors_without_slots: 1,
            memory_percent: 100,
        };
        check(all, "draining");
        check(Facts { draining: false, ..all }, "1 reactor(s) make no turns");
    }
}
