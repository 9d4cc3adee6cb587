//! When free memory goes back to the system, decided from what is resident and what is held.
//!
//! The allocator keeps what bursts have freed, and each burst that is larger than all before it
//! leaves more: without this, resident memory would creep upwards for hours. When work has just
//! ended nobody has to wait for a return: then what it left goes back soon. Not here: reading the
//! numbers, giving back (`serve`, `ring`).

/// Looks (one a second) between two returns: reactors that allocate wait for one, some tenths of a
/// millisecond while little is held.
const PAUSE: u32 = 60;

/// Bytes that may have come to be free since the last time, while no more than `SMALL` is held...
const FREE: i64 = 256 << 10;
/// ... and a quarter of what is held beyond: looking through much takes long.
const SMALL: i64 = 64 << 20;

/// Bytes for which a return is made once work has ended: there is nobody who would wait for it.
const FREE_AT_REST: i64 = 64 << 10;

/// Commands between two looks with which the process still rests: somebody looks how it is. And
/// looks in a row after which it does.
const RESTING_COMMANDS: u64 = 100;
const RESTING_LOOKS: u32 = 2;

/// With so many more, a storm is over: they are not waited with.
const STORM: i64 = 8 << 20;

/// Looks after a return of much, or when much that was held has gone: the storm before it may have
/// left more by then.
const SETTLED: u32 = 4;

/// What is known from the looks before.
#[derive(Debug)]
pub struct Slack {
    /// The least seen of what was resident and not held. Below 0 where memory that is mapped has
    /// not been touched yet.
    least: i64,
    /// The same, since the last return: what it could not give is not asked for again and again.
    left: i64,
    pause: u32,
    /// The last return gave little: what is resident is no free page.
    in_vain: bool,
    /// The most that was held since the last return.
    peak: i64,
    /// Commands so far, and looks between which there were few.
    commands: u64,
    quiet: u32,
}

impl Default for Slack {
    fn default() -> Slack {
        Slack {
            least: i64::MAX,
            left: i64::MAX,
            pause: 0,
            in_vain: false,
            peak: 0,
            commands: 0,
            quiet: 0,
        }
    }
}

impl Slack {
    /// Whether free memory should go back now. `resident`: without pages of files. `commands`: of
    /// clients so far. Asked once a second.
    pub fn is_due(&mut self, resident: u64, held: u64, commands: u64) -> bool {
        let is_quiet = commands.saturating_sub(self.commands) < RESTING_COMMANDS;
        self.commands = commands;
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        let (excess, held) = (resident as i64 - held as i64, held as i64);
        self.least = self.least.min(excess);
        self.left = self.left.min(excess);
        self.pause = self.pause.saturating_sub(1);
        self.peak = self.peak.max(held);
        if self.peak - held > STORM + self.peak / 4 {
            // Pages that lay between used ones in the midst of a storm are free after it.
            (self.left, self.in_vain, self.peak) = (self.least, false, held);
            self.pause = self.pause.min(SETTLED);
        }
        let grown = excess - self.left;
        let storm = grown > STORM + held / 4 && !self.in_vain;
        // Once for each time that it comes to rest: what is free then has been freed by work.
        let rests = self.quiet == RESTING_LOOKS && grown > FREE_AT_REST.max((held - SMALL) / 4);
        storm || rests || self.pause == 0 && grown > FREE.max((held - SMALL) / 4)
    }

    /// It went; what is resident and held since.
    pub fn note_return(&mut self, before: u64, resident: u64, held: u64) {
        let gone = before.saturating_sub(resident);
        self.in_vain = gone < before / 16;
        self.left = resident as i64 - held as i64;
        self.least = self.least.min(self.left);
        self.peak = held as i64;
        self.pause = if gone > before / 4 { SETTLED } else { PAUSE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const KIB: u64 = 1 << 10;

    /// Of a process that has much to do.
    fn due(slack: &mut Slack, resident: u64, held: u64) -> bool {
        let commands = slack.commands + 1_000;
        slack.is_due(resident, held, commands)
    }

    #[test]
    fn creeping_is_undone_once_a_minute() {
        let mut slack = Slack::default();
        let (mut resident, mut returns) = (14 * MIB, Vec::new());
        for second in 0..600 {
            // A burst leaves 20 KiB more than the ones before.
            resident += 20 * KIB;
            if due(&mut slack, resident, 13 * MIB) {
                returns.push(second);
                slack.note_return(resident, 14 * MIB, 13 * MIB);
                resident = 14 * MIB;
            }
        }
        assert_eq!(returns, [13, 73, 133, 193, 253, 313, 373, 433, 493, 553]);
    }

    #[test]
    fn steady_process_is_left_alone() {
        let mut slack = Slack::default();
        for second in 0..600 {
            let wave = (second % 10) * 20 * KIB;
            assert!(!due(&mut slack, 20 * MIB + wave, 18 * MIB), "second {second}");
        }
        // Requests in flight are held and resident.
        for burst in [0, 100, 500] {
            assert!(!due(&mut slack, (20 + burst) * MIB, (18 + burst) * MIB));
        }
    }

    #[test]
    fn storm_that_is_over_is_not_waited_with() {
        let mut slack = Slack::default();
        assert!(!due(&mut slack, 20 * MIB, 18 * MIB));
        slack.note_return(20 * MIB, 20 * MIB, 18 * MIB);
        slack.in_vain = false;
        assert!(!due(&mut slack, 220 * MIB, 218 * MIB));
        assert!(due(&mut slack, 220 * MIB, 19 * MIB));
        // It gave nothing back: not again each second.
        slack.note_return(220 * MIB, 219 * MIB, 19 * MIB);
        let again = (0..180).filter(|_| due(&mut slack, 260 * MIB, 19 * MIB)).count();
        assert_eq!(again, 121, "after a minute, until it is done");
    }

    #[test]
    fn return_in_the_midst_of_a_storm_does_not_put_off_the_one_after_it() {
        // What the first return left: nearly all, as few free pages lay together; much of it.
        for (before, after) in [(300, 295), (300, 240)] {
            let mut slack = Slack::default();
            assert!(!due(&mut slack, 14 * MIB, 13 * MIB));
            assert!(due(&mut slack, before * MIB, 200 * MIB));
            slack.note_return(before * MIB, after * MIB, 200 * MIB);
            assert!(!due(&mut slack, after * MIB, 200 * MIB));
            assert!(due(&mut slack, (after - 180) * MIB, 13 * MIB), "left {after}");
            slack.note_return((after - 180) * MIB, 14 * MIB, 13 * MIB);
            assert!(!due(&mut slack, 14 * MIB, 13 * MIB));
        }
    }

    #[test]
    fn what_is_freed_after_the_return_at_a_storms_end_goes_back_within_seconds() {
        let mut slack = Slack::default();
        assert!(!due(&mut slack, 14 * MIB, 13 * MIB));
        assert!(!due(&mut slack, 200 * MIB, 200 * MIB));
        // Its last clients are still being closed.
        assert!(due(&mut slack, 85 * MIB, 26 * MIB));
        slack.note_return(85 * MIB, 28 * MIB, 26 * MIB);
        let looks = (1..=60).find(|_| due(&mut slack, 23 * MIB, 15 * MIB));
        assert_eq!(looks, Some(4));
    }

    #[test]
    fn much_that_is_held_is_looked_through_only_for_much() {
        let mut slack = Slack::default();
        assert!(!due(&mut slack, 1_100 * MIB, 1_024 * MIB));
        assert!(!due(&mut slack, 1_300 * MIB, 1_024 * MIB));
        assert!(due(&mut slack, 1_380 * MIB, 1_024 * MIB));
    }

    #[test]
    fn what_work_has_left_goes_back_when_it_has_ended_and_once() {
        let mut slack = Slack::default();
        let mut returns = Vec::new();
        let (mut commands, mut free) = (0, 40 * KIB);
        for second in 0..60 {
            // Ten seconds of work, which leaves 100 KiB, then ten seconds in which somebody looks.
            let works = second % 20 < 10;
            commands += if works { 5_000 } else { 3 };
            free += if works { 10 * KIB } else { KIB };
            if slack.is_due(13 * MIB + free, 13 * MIB, commands) {
                returns.push(second);
                slack.note_return(13 * MIB + free, 13 * MIB + 40 * KIB, 13 * MIB);
                free = 40 * KIB;
            }
        }
        assert_eq!(returns, [11, 31, 51]);
    }
}
