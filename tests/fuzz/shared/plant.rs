//! Deliberate mistakes: each makes a target's subject wrong in a way that its property must catch,
//! so that it can be seen that every target can fail.
//!
//! Not here: looking for them (`main`, tests of the tests).

use std::cell::Cell;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Plant {
    Nothing,
    /// The arguments that a piece of a request brought are forgotten when the next comes.
    ForgetPlace,
    /// A request's last argument is one byte short.
    ShortArgument,
    /// A request says that its bytes may be forwarded although they may not.
    CallCanonical,
    /// Memory is taken by the length that a client claims.
    ReserveClaimed,
    /// A reply that comes in pieces ends a byte early.
    CutReplyEarly,
    /// A null in an array is no element.
    SkipNull,
    /// A leading plus is taken in a number.
    TakePlus,
    /// A number wraps where it does not fit.
    WrapNumber,
    /// A configuration with a mistake passes.
    SwallowMistake,
    /// A mistake is told without the place where it stands.
    LosePlace,
    /// A password is shown in a mistake.
    TellPassword,
    /// Slots have owners that are not there.
    DangleOwner,
    /// The last slot of a range is left out.
    ShortRange,
    /// A key is found behind the last word.
    KeyBehindEnd,
    /// The second key of several is not seen.
    MissKey,
    /// A learned command's keys are a word further on.
    ShiftLearned,
    /// Two fragments of a request change places.
    SwapFragments,
    /// A merged reply is announced one element too long.
    LongMerge,
    /// A redirect's slot is not looked at.
    AnySlot,
    /// A walk never ends.
    EndlessWalk,
    /// A cursor loses its highest bits.
    CropCursor,
    /// A sum over nodes leaves the last one out.
    DropNode,
    /// A subject panics on some bytes.
    Panic,
}

thread_local! {
    static PLANTED: Cell<Plant> = const { Cell::new(Plant::Nothing) };
}

pub fn is(plant: Plant) -> bool {
    PLANTED.get() == plant
}

/// Runs `work` with a mistake in place.
pub fn with<T>(plant: Plant, work: impl FnOnce() -> T) -> T {
    PLANTED.set(plant);
    let done = work();
    PLANTED.set(Plant::Nothing);
    done
}
