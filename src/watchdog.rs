//! Whether a reactor still turns, judged by the main thread.
//!
//! A thread that panics ends the process at once (`panic = "abort"`). One that spins or hangs would
//! keep its share of new connections for ever: it is seen within a second and ends the process, so
//! that whoever supervises it starts another. Not here: where the numbers come from (`serve`).

/// Between two looks, milliseconds. A stopped process does not look, so that its pause is no
/// reactor's fault.
pub const LOOK_EVERY_MS: u64 = 100;

/// A reactor turns and says so at least once in this time, also without work: it sleeps half a
/// second at most, and shows its numbers a quarter of a second apart.
const TOLD_MS: u64 = 900;
/// CPU time, microseconds, without the end of a turn: it spins.
const SPIN_US: u64 = 1_500_000;
/// Time without CPU time: it waits for something that does not come. Longer, because a starved or
/// swapping host looks the same for a while.
const HANG_MS: u64 = 10_000;

/// What a look has found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Well,
    /// For the log, once for each time.
    Late,
    Stuck {
        spins: bool,
    },
}

/// What is remembered of one reactor.
#[derive(Debug, Default)]
pub struct Watch {
    turns: u64,
    waited_ms: u64,
    /// Its CPU time, microseconds, when it was first seen to be late.
    cpu_us: Option<u64>,
}

impl Watch {
    /// It has made no turn for too long. Not ready, whatever becomes of it.
    pub fn is_late(&self) -> bool {
        self.waited_ms >= TOLD_MS
    }

    /// `turns`: as it last said. `cpu_us`: the thread's CPU time, asked for only when it is late.
    pub fn look(&mut self, turns: u64, cpu_us: impl FnOnce() -> Option<u64>) -> Verdict {
        if turns != self.turns {
            *self = Watch { turns, ..Watch::default() };
            return Verdict::Well;
        }
        self.waited_ms += LOOK_EVERY_MS;
        if self.waited_ms < TOLD_MS {
            return Verdict::Well;
        }
        let Some(now_us) = cpu_us() else { return self.judge(false) };
        match self.cpu_us {
            Some(then_us) => self.judge(now_us.saturating_sub(then_us) >= SPIN_US),
            None => {
                self.cpu_us = Some(now_us);
                self.judge(false)
            }
        }
    }

    fn judge(&self, spins: bool) -> Verdict {
        match self.waited_ms {
            _ if spins => Verdict::Stuck { spins },
            HANG_MS.. => Verdict::Stuck { spins },
            TOLD_MS => Verdict::Late,
            _ => Verdict::Well,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until the verdict is another than `Well`; how many looks that took.
    fn until_told(watch: &mut Watch, mut cpu_us: impl FnMut(u64) -> Option<u64>) -> (u64, Verdict) {
        for look in 1..1_000 {
            let verdict = watch.look(7, || cpu_us(look));
            if verdict != Verdict::Well {
                return (look, verdict);
            }
        }
        (0, Verdict::Well)
    }

    fn watch() -> Watch {
        let mut watch = Watch::default();
        assert_eq!(watch.look(7, || panic!("it is not late")), Verdict::Well);
        watch
    }

    #[test]
    fn reactor_that_spins_is_seen_after_a_second_and_given_up_after_another_and_a_half() {
        let mut watch = watch();
        let spins = |look| Some(look * LOOK_EVERY_MS * 1_000);
        assert_eq!(until_told(&mut watch, spins), (9, Verdict::Late));
        assert!(watch.is_late());
        let later = |look| Some((9 + look) * LOOK_EVERY_MS * 1_000);
        assert_eq!(until_told(&mut watch, later), (15, Verdict::Stuck { spins: true }));
    }

    #[test]
    fn reactor_without_cpu_time_is_given_up_after_ten_seconds() {
        for known in [Some(5), None] {
            let mut watch = watch();
            assert_eq!(until_told(&mut watch, |_| known), (9, Verdict::Late));
            assert_eq!(until_told(&mut watch, |_| known), (91, Verdict::Stuck { spins: false }));
        }
    }

    #[test]
    fn turn_after_a_pause_makes_all_well_again() {
        let mut watch = watch();
        assert_eq!(until_told(&mut watch, |_| Some(0)), (9, Verdict::Late));
        assert_eq!(watch.look(8, || panic!("it is not late")), Verdict::Well);
        assert!(!watch.is_late());
        let mut cpu_us = 0;
        let busy = |_| {
            cpu_us += 400_000;
            Some(cpu_us)
        };
        watch.look(7, || None);
        assert_eq!(until_told(&mut watch, busy).1, Verdict::Late);
    }
}
