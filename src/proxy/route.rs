//! Decisions: what happens to a request after an error reply, and after its connection was lost.
//!
//! Values in, value out: routing-policy 4.3, one exhaustive match. Not here: who acts on them
//! (`recover`), where a key goes (`cluster`).

use crate::resp::reply::ErrorKind;

/// Waits that one request may spend on TRYAGAIN: 1 + 2 + 4 + … ms, about a second.
const TRYAGAIN_WAITS_MAX: u8 = 10;

/// After so many waits a request that can be asked for key by key is.
const DIVIDE_AFTER_WAITS: u8 = 3;

/// How long CLUSTERDOWN, LOADING and MASTERDOWN are waited out, at most.
const DOWN_BUDGET_MS: u64 = 2_000;

/// What is known when an error reply has been read.
#[derive(Copy, Clone, Debug)]
pub struct Facts {
    pub kind: ErrorKind,
    /// May have composed the reply itself: a script, a function, an unknown command.
    pub fenced: bool,
    /// NOSCRIPT is the node's own word, and nothing was done about it yet.
    pub healable: bool,
    /// A redirect's target is a node of the map. `None`: the reply names none that can be read.
    pub target_known: Option<bool>,
    /// The map was asked again since the target was first named.
    pub confirmed: bool,
    /// Whether TRYAGAIN may be answered by asking key by key.
    pub divisible: bool,
    pub redirects: u8,
    pub redirects_max: u8,
    pub waits: u8,
    /// Time since the request was first asked for, and how long it may take. Milliseconds.
    pub age_ms: u64,
    pub budget_ms: u64,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// The reply is the client's.
    Answer,
    /// To the node that MOVED names; the map is patched, unless a script may have named it.
    Follow,
    /// ASKING and the request to the node that ASK names; the map stays.
    Ask,
    /// The target is unknown: the topology thread must have seen it first.
    Confirm,
    /// The same again after so many milliseconds, by the map as it is then.
    Wait { ms: u64, refresh: bool },
    /// Key by key.
    Divide,
    /// With the script itself before it, if that is known.
    Heal,
    /// Too many redirects.
    Exhausted,
}

/// What to do after an error reply. It says that the request did not run, except behind the fence,
/// where nothing that it says can be relied on.
pub fn after_error(facts: &Facts) -> Next {
    match facts.kind {
        ErrorKind::Moved => redirect(facts, Next::Follow),
        ErrorKind::Ask => redirect(facts, Next::Ask),
        ErrorKind::NoScript if facts.healable => Next::Heal,
        // A script may have written, and then answer anything.
        _ if facts.fenced => Next::Answer,
        ErrorKind::TryAgain => try_again(facts),
        ErrorKind::ClusterDown
        | ErrorKind::Loading
        | ErrorKind::MasterDown
        | ErrorKind::Unblocked => wait_for_node(facts),
        ErrorKind::ReadOnly if facts.redirects < facts.redirects_max => wait_for_node(facts),
        ErrorKind::ReadOnly
        | ErrorKind::ExecAbort
        | ErrorKind::NoScript
        | ErrorKind::NoAuth
        | ErrorKind::NoPerm
        | ErrorKind::Other => Next::Answer,
    }
}

/// Whether an error says that the request did not run and may be sent again.
pub fn is_refusal(kind: ErrorKind) -> bool {
    use ErrorKind::{Ask, ClusterDown, Loading, MasterDown, Moved, ReadOnly, TryAgain};
    matches!(kind, TryAgain | ClusterDown | Loading | MasterDown | ReadOnly | Moved | Ask)
}

fn redirect(facts: &Facts, follow: Next) -> Next {
    match facts.target_known {
        None if facts.fenced => Next::Answer,
        // It says that the request is wrong here, and not where it is right.
        None => Next::Wait { ms: 20, refresh: true },
        Some(_) if facts.redirects >= facts.redirects_max => Next::Exhausted,
        Some(true) => follow,
        Some(false) if !facts.confirmed => Next::Confirm,
        // The map does not know the target even after a refresh: a forged redirect, or a node that
        // vanished again.
        Some(false) if facts.fenced => Next::Answer,
        Some(false) => Next::Wait { ms: 20, refresh: true },
    }
}

fn try_again(facts: &Facts) -> Next {
    if facts.divisible && facts.waits >= DIVIDE_AFTER_WAITS {
        return Next::Divide;
    }
    if facts.waits >= TRYAGAIN_WAITS_MAX || facts.age_ms >= facts.budget_ms {
        return Next::Answer;
    }
    Next::Wait { ms: 1 << facts.waits.min(9), refresh: false }
}

fn wait_for_node(facts: &Facts) -> Next {
    if facts.age_ms >= facts.budget_ms.min(DOWN_BUDGET_MS) {
        return Next::Answer;
    }
    Next::Wait { ms: (10 << facts.waits.min(4)).min(100), refresh: true }
}

/// What is known of a request whose connection is gone.
#[derive(Copy, Clone, Debug)]
pub struct Loss {
    /// At least one byte was handed to the kernel.
    pub written: bool,
    pub retry_safe: bool,
    /// It was repeated before.
    pub repeated: bool,
    /// The connection was closed because nothing came in time.
    pub timed_out: bool,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AfterLoss {
    /// It cannot have run: as if it had just come.
    Again,
    /// It only reads: once more.
    Repeat,
    /// Nobody can know whether it ran.
    Lost,
    /// The same, for want of an answer in time.
    TimedOut,
}

pub fn after_loss(loss: &Loss) -> AfterLoss {
    match loss {
        Loss { written: false, .. } => AfterLoss::Again,
        // Its time is spent.
        Loss { timed_out: true, .. } => AfterLoss::TimedOut,
        Loss { retry_safe: true, repeated: false, .. } => AfterLoss::Repeat,
        Loss { .. } => AfterLoss::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Facts = Facts {
        kind: ErrorKind::Other,
        fenced: false,
        healable: false,
        target_known: None,
        confirmed: false,
        divisible: false,
        redirects: 0,
        redirects_max: 5,
        waits: 0,
        age_ms: 0,
        budget_ms: 5_000,
    };

    #[track_caller]
    fn check(facts: Facts, expected: Next) {
        assert_eq!(after_error(&facts), expected, "{facts:?}");
    }

    #[test]
    fn redirect_to_known_node_is_followed_five_times() {
        let moved = Facts { kind: ErrorKind::Moved, target_known: Some(true), ..PLAIN };
        check(moved, Next::Follow);
        check(Facts { redirects: 4, ..moved }, Next::Follow);
        check(Facts { redirects: 5, ..moved }, Next::Exhausted);
        check(Facts { kind: ErrorKind::Ask, ..moved }, Next::Ask);
    }

    #[test]
    fn redirect_to_unknown_node_is_confirmed_first() {
        let moved = Facts { kind: ErrorKind::Moved, target_known: Some(false), ..PLAIN };
        check(moved, Next::Confirm);
        check(Facts { confirmed: true, ..moved }, Next::Wait { ms: 20, refresh: true });
        check(Facts { fenced: true, confirmed: true, ..moved }, Next::Answer);
        // One that cannot be read is waited for, too; a script's is what it says.
        check(Facts { target_known: None, ..moved }, Next::Wait { ms: 20, refresh: true });
        check(Facts { target_known: None, fenced: true, ..moved }, Next::Answer);
    }

    #[test]
    fn script_error_is_passed_on() {
        for kind in [
            ErrorKind::TryAgain,
            ErrorKind::Loading,
            ErrorKind::ClusterDown,
            ErrorKind::ReadOnly,
            ErrorKind::MasterDown,
        ] {
            check(Facts { kind, fenced: true, ..PLAIN }, Next::Answer);
        }
    }

    #[test]
    fn script_that_a_node_lacks_is_given_to_it_once() {
        let noscript = Facts { kind: ErrorKind::NoScript, fenced: true, ..PLAIN };
        check(noscript, Next::Answer);
        check(Facts { healable: true, ..noscript }, Next::Heal);
    }

    #[test]
    fn tryagain_waits_longer_each_time_and_ends() {
        let facts = Facts { kind: ErrorKind::TryAgain, ..PLAIN };
        check(facts, Next::Wait { ms: 1, refresh: false });
        check(Facts { waits: 3, ..facts }, Next::Wait { ms: 8, refresh: false });
        check(Facts { waits: 10, ..facts }, Next::Answer);
        check(Facts { waits: 3, divisible: true, ..facts }, Next::Divide);
    }

    #[test]
    fn node_that_is_down_is_waited_for_within_the_budget() {
        let facts = Facts { kind: ErrorKind::ClusterDown, ..PLAIN };
        check(facts, Next::Wait { ms: 10, refresh: true });
        check(Facts { age_ms: 2_000, ..facts }, Next::Answer);
        check(Facts { kind: ErrorKind::ReadOnly, redirects: 5, ..facts }, Next::Answer);
    }

    #[test]
    fn other_error_is_the_clients() {
        check(PLAIN, Next::Answer);
        check(Facts { kind: ErrorKind::NoScript, ..PLAIN }, Next::Answer);
    }

    #[test]
    fn lost_write_is_never_repeated() {
        let lost = Loss { written: true, retry_safe: false, repeated: false, timed_out: false };
        assert_eq!(after_loss(&lost), AfterLoss::Lost);
        assert_eq!(after_loss(&Loss { written: false, ..lost }), AfterLoss::Again);
        assert_eq!(after_loss(&Loss { timed_out: true, ..lost }), AfterLoss::TimedOut);
        assert_eq!(after_loss(&Loss { retry_safe: true, ..lost }), AfterLoss::Repeat);
        let again = Loss { retry_safe: true, repeated: true, ..lost };
        assert_eq!(after_loss(&again), AfterLoss::Lost);
    }
}
