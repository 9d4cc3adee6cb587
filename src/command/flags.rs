//! Command flags: the node's own, as a set of bits, and their names in a COMMAND reply.
//!
//! Not here: what a flag makes the proxy do (`proxy`).

/// A set of command flags.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    pub const WRITE: Flags = Flags(1);
    pub const READONLY: Flags = Flags(1 << 1);
    /// Refused by a node that is out of memory.
    pub const DENYOOM: Flags = Flags(1 << 2);
    pub const MODULE: Flags = Flags(1 << 3);
    pub const ADMIN: Flags = Flags(1 << 4);
    pub const PUBSUB: Flags = Flags(1 << 5);
    /// Not callable from a script.
    pub const NOSCRIPT: Flags = Flags(1 << 6);
    pub const BLOCKING: Flags = Flags(1 << 7);
    /// Allowed while a node loads its data.
    pub const LOADING: Flags = Flags(1 << 8);
    /// Allowed on a replica that is cut off.
    pub const STALE: Flags = Flags(1 << 9);
    pub const ASKING: Flags = Flags(1 << 10);
    pub const FAST: Flags = Flags(1 << 11);
    /// Allowed before authentication.
    pub const NO_AUTH: Flags = Flags(1 << 12);
    /// Not a write by its flags, yet it may reach the replicas (PFCOUNT, EVAL, PUBLISH).
    pub const MAY_REPLICATE: Flags = Flags(1 << 13);
    /// Zero keys is legal.
    pub const NO_MANDATORY_KEYS: Flags = Flags(1 << 14);
    pub const NO_ASYNC_LOADING: Flags = Flags(1 << 15);
    /// Refused inside MULTI.
    pub const NO_MULTI: Flags = Flags(1 << 16);
    /// Allowed while a script hangs.
    pub const ALLOW_BUSY: Flags = Flags(1 << 17);
    /// First, last and step alone do not find all keys.
    pub const MOVABLEKEYS: Flags = Flags(1 << 18);
    pub const TOUCHES_ARBITRARY_KEYS: Flags = Flags(1 << 19);
    pub const ALL_DBS: Flags = Flags(1 << 20);

    /// Every flag with its name in a COMMAND reply, in the order in which redis-server lists them.
    pub const NAMES: &'static [(Flags, &'static str)] = &[
        (Flags::WRITE, "write"),
        (Flags::READONLY, "readonly"),
        (Flags::DENYOOM, "denyoom"),
        (Flags::MODULE, "module"),
        (Flags::ADMIN, "admin"),
        (Flags::PUBSUB, "pubsub"),
        (Flags::NOSCRIPT, "noscript"),
        (Flags::BLOCKING, "blocking"),
        (Flags::LOADING, "loading"),
        (Flags::STALE, "stale"),
        (Flags::ASKING, "asking"),
        (Flags::FAST, "fast"),
        (Flags::NO_AUTH, "no_auth"),
        (Flags::MAY_REPLICATE, "may_replicate"),
        (Flags::NO_MANDATORY_KEYS, "no_mandatory_keys"),
        (Flags::NO_ASYNC_LOADING, "no_async_loading"),
        (Flags::NO_MULTI, "no_multi"),
        (Flags::ALLOW_BUSY, "allow_busy"),
        (Flags::MOVABLEKEYS, "movablekeys"),
        (Flags::TOUCHES_ARBITRARY_KEYS, "touches_arbitrary_keys"),
        (Flags::ALL_DBS, "all_dbs"),
    ];

    /// Whether every flag of `other` is set.
    #[inline]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// The names of the flags that are set, as a COMMAND reply has them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Flags::NAMES.iter().filter(move |(flag, _)| self.has(*flag)).map(|(_, name)| *name)
    }

    /// The flag of that name, in any case; `None` for one that a proxy has no use for.
    pub fn named(name: &[u8]) -> Option<Flags> {
        let known =
            Flags::NAMES.iter().find(|(_, known)| name.eq_ignore_ascii_case(known.as_bytes()));
        known.map(|(flag, _)| *flag)
    }
}
