//! The shape of one row of the table, and the names of the key rules that rows share.
//!
//! Not here: the rows (`table.rs`), the form in which they are used (`Command`).

use super::flags::Flags;
use super::keys::KeyRule;
use super::{Class, Group, ResponsePolicy};

/// One command or subcommand as the table states it.
pub(super) struct Row {
    /// Upper case; a subcommand is `CONTAINER|SUB`.
    pub name: &'static str,
    /// Number of words with the command's name; negative: that many or more.
    pub arity: i16,
    pub class: Class,
    pub keys: &'static [KeyRule],
    pub flags: Flags,
    pub group: Group,
    /// First version: Redis's if it has the command, else Valkey's; empty if not stated.
    pub since: &'static str,
    pub policy: ResponsePolicy,
}

/// Turns the columns of `table.rs` into `ROWS`.
macro_rules! rows {
    ($(
        $name:literal $arity:literal $class:ident $keys:ident [$($flag:ident)*] $group:ident
        $since:literal $(=> $policy:ident)?
    )*) => {
        pub(super) static ROWS: [super::row::Row; [$($name),*].len()] = [$(super::row::Row {
            name: $name,
            arity: $arity,
            class: super::Class::$class,
            keys: super::row::rules::$keys,
            flags: super::Flags(0 $(| super::Flags::$flag.0)*),
            group: super::Group::$group,
            since: $since,
            policy: super::row::rows!(@policy $($policy)?),
        }),*];
    };
    (@policy) => { super::ResponsePolicy::Default };
    (@policy $policy:ident) => { super::ResponsePolicy::$policy };
}
pub(super) use rows;

/// Where the keys are, by name. Words are counted from the command's name = 0; a subcommand is 1.
pub(super) mod rules {
    use super::KeyRule::{self, LastStore, Migrate, SortStore, Streams, Unknown};
    use crate::command::keys::Word;

    const fn range(first: i16, last: i16, step: i16) -> KeyRule {
        KeyRule::Range { first, last, step, limit: 0 }
    }

    const fn counted(at: u8, first: u8, step: u8) -> KeyRule {
        KeyRule::NumKeys { at, first, step }
    }

    pub const NONE: &[KeyRule] = &[];
    pub const FIRST: &[KeyRule] = &[range(1, 1, 1)];
    pub const SECOND: &[KeyRule] = &[range(2, 2, 1)];
    pub const FIRST_TWO: &[KeyRule] = &[range(1, 2, 1)];
    pub const BOTH: &[KeyRule] = &[range(1, 1, 1), range(2, 2, 1)];
    pub const ALL: &[KeyRule] = &[range(1, -1, 1)];
    /// BLPOP (a timeout is last), JSON.MGET (a path is last).
    pub const ALL_BUT_LAST: &[KeyRule] = &[range(1, -2, 1)];
    /// MSET: key, value, key, value.
    pub const PAIRS: &[KeyRule] = &[range(1, -1, 2)];
    /// TS.MADD: key, timestamp, value.
    pub const TRIPLES: &[KeyRule] = &[range(1, -1, 3)];
    pub const TARGET_AND_ALL: &[KeyRule] = &[range(1, 1, 1), range(2, -1, 1)];
    /// BITOP: operation, target, sources.
    pub const AFTER_OPERATION: &[KeyRule] = &[range(2, 2, 1), range(3, -1, 1)];
    /// ZUNION: count, keys.
    pub const COUNTED: &[KeyRule] = &[counted(1, 2, 1)];
    /// EVAL: script, count, keys.
    pub const COUNTED_LATER: &[KeyRule] = &[counted(2, 3, 1)];
    /// MSETEX: count, then key and value by turns.
    pub const COUNTED_PAIRS: &[KeyRule] = &[counted(1, 2, 2)];
    /// ZUNIONSTORE: target, count, keys.
    pub const TARGET_AND_COUNTED: &[KeyRule] = &[range(1, 1, 1), counted(2, 3, 1)];
    pub const STREAMS: &[KeyRule] = &[Streams];
    pub const SORT: &[KeyRule] = &[range(1, 1, 1), SortStore, Unknown];
    /// SORT_RO: what BY and GET read hangs on the data.
    pub const SORT_READ: &[KeyRule] = &[range(1, 1, 1), Unknown];
    pub const GEORADIUS: &[KeyRule] = &[range(1, 1, 1), LastStore { from: 6 }];
    pub const GEORADIUS_MEMBER: &[KeyRule] = &[range(1, 1, 1), LastStore { from: 5 }];
    pub const MIGRATE: &[KeyRule] = &[Migrate];
    /// JSON.DEBUG MEMORY key.
    pub const AFTER_MEMORY: &[KeyRule] =
        &[KeyRule::Keyword { word: Word::new("MEMORY"), from: 1, last: 0, step: 1, limit: 0 }];
}
