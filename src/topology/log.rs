//! One structured line to stderr, at most one a second of each kind.
//!
//! Not here: files, levels to choose from. A stand-in until the program has one log for all.

use ahash::AHashMap;
use std::io::Write;

const GAP_MS: u64 = 1000;

/// When each kind was last written, and how often it was not since.
#[derive(Default)]
pub(super) struct Log {
    kinds: AHashMap<(u16, &'static str), (u64, u64)>,
}

impl Log {
    pub(super) fn info(&mut self, now: u64, pool: u16, kind: &'static str, message: &str) {
        self.write("info", now, (pool, kind), message);
    }

    pub(super) fn warn(&mut self, now: u64, pool: u16, kind: &'static str, message: &str) {
        self.write("warn", now, (pool, kind), message);
    }

    fn write(&mut self, level: &str, now: u64, key: (u16, &'static str), message: &str) {
        let Some(suppressed) = self.admit(now, key) else { return };
        let (pool, kind) = key;
        // `{:?}` escapes quotes and control bytes of what nodes say. A full disk stops nobody.
        let _ = writeln!(
            std::io::stderr(),
            "level={level} part=topology pool={pool} kind={kind} msg={message:?} \
             suppressed={suppressed}"
        );
    }

    /// How many lines of this kind were left out before this one, if this one may be written.
    fn admit(&mut self, now: u64, key: (u16, &'static str)) -> Option<u64> {
        match self.kinds.get_mut(&key) {
            Some((last, suppressed)) if now < last.saturating_add(GAP_MS) => {
                *suppressed += 1;
                None
            }
            known => {
                let suppressed = known.map_or(0, |(_, suppressed)| *suppressed);
                self.kinds.insert(key, (now, 0));
                Some(suppressed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_written_once_a_second_and_counts_the_rest() {
        let mut log = Log::default();
        assert_eq!(log.admit(0, (0, "a")), Some(0));
        assert_eq!(log.admit(1, (0, "a")), None);
        assert_eq!(log.admit(2, (0, "b")), Some(0));
        assert_eq!(log.admit(999, (0, "a")), None);
        assert_eq!(log.admit(1000, (0, "a")), Some(2));
        assert_eq!(log.admit(2000, (0, "a")), Some(0));
    }
}
