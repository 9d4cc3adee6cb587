//! Whether new clients should be sent here. Pure: facts in, reasons out.
//!
//! Not here: the facts (`gather`), how they are told (`http`).

/// What readiness depends on.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    pub draining: bool,
    /// For each reactor whether it has turned within the last second.
    pub turning: Vec<bool>,
    /// For each pool its name and the slots that somebody serves.
    pub covered: Vec<(String, usize)>,
    /// See `proxy/memory`: 3 and 4 refuse new clients.
    pub ladder_step: u8,
}

/// The step of the memory ladder from which on new clients are refused.
const REFUSES: u8 = 3;

impl Readiness {
    /// Why not; empty: it is ready. A part of a cluster that is down is no reason: every proxy in
    /// front of it sees the same, and the rest is served.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.draining {
            reasons.push("draining: the process is about to end".to_string());
        }
        for (index, _) in self.turning.iter().enumerate().filter(|(_, turns)| !**turns) {
            reasons.push(format!("reactor {index} has made no turn for a second"));
        }
        if self.turning.is_empty() {
            reasons.push("starting: no reactor has told of itself yet".to_string());
        }
        for (pool, _) in self.covered.iter().filter(|(_, slots)| *slots == 0) {
            reasons.push(format!("pool {pool}: no slot is served, or no node has told of any"));
        }
        if self.ladder_step >= REFUSES {
            reasons.push("memory_limit is nearly reached: new clients are refused".to_string());
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> Readiness {
        let covered = vec![("a".to_string(), 16_384), ("b".to_string(), 1)];
        Readiness { draining: false, turning: vec![true, true], covered, ladder_step: 2 }
    }

    #[track_caller]
    fn check(spoil: impl FnOnce(&mut Readiness), reason: &str) {
        let mut readiness = well();
        spoil(&mut readiness);
        let reasons = readiness.reasons();
        assert!(reasons.len() == 1 && reasons[0].contains(reason), "{reasons:?}");
    }

    #[test]
    fn each_reason_alone_makes_it_red() {
        assert_eq!(well().reasons(), Vec::<String>::new());
        check(|it| it.draining = true, "draining");
        check(|it| it.turning[1] = false, "reactor 1 has made no turn");
        check(|it| it.turning.clear(), "starting");
        check(|it| it.covered[1].1 = 0, "pool b: no slot");
        check(|it| it.ladder_step = 3, "memory_limit");
        check(|it| it.ladder_step = 4, "memory_limit");
    }
}
