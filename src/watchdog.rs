//! Whether a reactor still turns, judged by the main thread.
//!
//! A thread that panics ends the process at once (`panic = "abort"`). One that spins or hangs would
//! keep its share of new connections for ever: it is seen within a second and ends the process, so
//! that whoever supervises it starts another. Not here: where the numbers come from (`serve`).

/// Between two looks, milliseconds.
pub const LOOK_EVERY_MS: u64 = 100;

/// A reactor turns and says so at least once in this time, also without work: it sleeps half a
/// second at most, and shows its numbers a quarter of a second apart.
const TOLD_US: u64 = 900_000;
/// The same in looks, of which each may come late.
const TOLD_LOOKS: u32 = 9;
/// CPU time, microseconds, with which a reactor would have ended its turn. By late looks it is late
/// only once it has had so much: where the whole host stands still for a second it has had none,
/// and turns as soon as it has.
const RAN_US: u64 = 5_000;
/// CPU time, microseconds, without the end of a turn: it spins.
const SPIN_US: u64 = 1_500_000;
/// Looks without CPU time: it waits for something that does not come. Longer, and by looks, because
/// a starved or swapping host looks the same for a while.
const HANG_LOOKS: u32 = 100;

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

/// How much of the time between two looks counts.
#[derive(Debug, Default)]
pub struct Pace {
    at_us: u64,
    wanted_us: u64,
}

impl Pace {
    /// Microseconds since the look before, as far as they count. On a host where many want the CPU
    /// a look comes late, and what the looking thread had to wait counts: a reactor is seen after a
    /// second, not after so many looks. What it neither slept as planned nor wanted to run in does
    /// not: a process that was stopped looks late, too, and that is no reactor's fault.
    /// `wanted_us`: how long the looking thread has run and waited for a CPU so far, both together.
    pub fn passed_us(&mut self, now_us: u64, wanted_us: u64) -> u64 {
        let passed = now_us.saturating_sub(self.at_us);
        let wanted = wanted_us.saturating_sub(self.wanted_us);
        let first = self.at_us == 0;
        (self.at_us, self.wanted_us) = (now_us, wanted_us);
        let planned = LOOK_EVERY_MS * 1_000;
        if first { planned } else { passed.min(planned + wanted) }
    }
}

/// What is remembered of one reactor.
#[derive(Debug, Default)]
pub struct Watch {
    turns: u64,
    waited_us: u64,
    looks: u32,
    told: bool,
    late: bool,
    /// Its CPU time, microseconds, when it first seemed to be late.
    cpu_us: Option<u64>,
}

impl Watch {
    /// It has made no turn for too long. Not ready, whatever becomes of it.
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// `turns`: as it last said. `passed_us`: since the look before, by `Pace`. `cpu_us`: the
    /// thread's CPU time, asked for only when it is late.
    pub fn look(
        &mut self,
        turns: u64,
        passed_us: u64,
        cpu_us: impl FnOnce() -> Option<u64>,
    ) -> Verdict {
        if turns != self.turns {
            *self = Watch { turns, ..Watch::default() };
            return Verdict::Well;
        }
        self.waited_us += passed_us;
        self.looks += 1;
        self.late |= self.looks >= TOLD_LOOKS;
        if !self.late && self.waited_us < TOLD_US {
            return Verdict::Well;
        }
        let now_us = cpu_us();
        let ran_us = now_us.map_or(0, |now| now.saturating_sub(*self.cpu_us.get_or_insert(now)));
        self.late |= ran_us >= RAN_US;
        if self.late { self.judge(ran_us >= SPIN_US) } else { Verdict::Well }
    }

    fn judge(&mut self, spins: bool) -> Verdict {
        if spins || self.looks >= HANG_LOOKS {
            return Verdict::Stuck { spins };
        }
        match std::mem::replace(&mut self.told, true) {
            true => Verdict::Well,
            false => Verdict::Late,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANNED_US: u64 = LOOK_EVERY_MS * 1_000;

    /// Looks until the verdict is another than `Well`; how many looks that took.
    fn until_told(watch: &mut Watch, mut cpu_us: impl FnMut(u64) -> Option<u64>) -> (u64, Verdict) {
        for look in 1..1_000 {
            let verdict = watch.look(7, PLANNED_US, || cpu_us(look));
            if verdict != Verdict::Well {
                return (look, verdict);
            }
        }
        (0, Verdict::Well)
    }

    fn watch() -> Watch {
        let mut watch = Watch::default();
        assert_eq!(watch.look(7, PLANNED_US, || panic!("it is not late")), Verdict::Well);
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
        assert_eq!(watch.look(8, PLANNED_US, || panic!("it is not late")), Verdict::Well);
        assert!(!watch.is_late());
        let mut cpu_us = 0;
        let busy = |_| {
            cpu_us += 400_000;
            Some(cpu_us)
        };
        watch.look(7, PLANNED_US, || None);
        assert_eq!(until_told(&mut watch, busy).1, Verdict::Late);
    }

    #[test]
    fn what_the_looking_thread_waits_for_a_cpu_counts_and_what_the_process_is_stopped_does_not() {
        let mut pace = Pace::default();
        // (now, wanted so far, counted): the first, as planned, held up, stopped for four seconds.
        let looks = [
            (5_000_000, 30_000, 100_000),
            (5_100_100, 30_100, 100_100),
            (5_450_000, 279_000, 348_900),
            (9_450_000, 280_000, 101_000),
            (9_550_000, 280_100, 100_000),
        ];
        for (now_us, wanted_us, counted) in looks {
            assert_eq!(pace.passed_us(now_us, wanted_us), counted, "at {now_us}");
        }
    }

    #[test]
    fn reactor_is_seen_after_a_second_also_by_looks_that_come_late() {
        let mut watch = watch();
        let spins = |look: u64| Some(look * 250_000);
        let verdicts: Vec<_> =
            (1..=11).map(|look| watch.look(7, 250_000, || spins(look))).collect();
        assert_eq!(verdicts[..4], [Verdict::Well; 4]);
        // It has had the CPU since.
        assert_eq!(verdicts[4], Verdict::Late);
        assert_eq!(verdicts[5..9], [Verdict::Well; 4]);
        assert_eq!(verdicts[9], Verdict::Stuck { spins: true });
        // One that had no CPU either is not late so soon, and does not hang any sooner.
        let mut watch = self::watch();
        let mut look = || watch.look(7, 250_000, || Some(1));
        let late = (1..=100).find(|_| look() == Verdict::Late);
        let stuck = (10..).find(|_| look() == Verdict::Stuck { spins: false });
        assert_eq!((late, stuck), (Some(9), Some(100)));
    }
}
