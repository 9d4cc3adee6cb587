//! What a command is: arity, flags, where its keys are, and its class (how it is handled).
//!
//! Facts: `shared/data/commands.tsv`. Classes: `research/routing-policy.md` 4.2.
//! Not here: what is done for a class, and every reply text but those of key counting (`proxy`).

mod find;
mod flags;
mod keys;
pub mod learned;
mod row;
mod split;
mod table;
mod walk;

#[cfg(test)]
mod keys_tests;
#[cfg(test)]
mod learned_tests;
#[cfg(test)]
mod table_tests;

pub use find::{COMMANDS, LookupError, Recent, find, find_sub, lookup};
pub use flags::Flags;
pub use keys::{Args, KeyError, KeyRule, Word, keys_of};
pub use learned::{Learned, LearnedCommand};
pub use split::{SplitShape, split_shape};
pub use walk::{Timeout, blocks, timeout_of};

/// How a request is handled. Letters: the rows of `research/routing-policy.md` 4.2.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Class {
    /// A: the slot of its keys; reads.
    Read,
    /// B: the slot of its keys; the primary.
    Write,
    /// C: cut by slot, values put back in order.
    SplitValues,
    /// D: cut by slot, counts added.
    SplitCount,
    /// E: cut by slot, OK only if every part is.
    SplitAll,
    /// F: EVAL and FCALL; may have no keys.
    Script,
    /// G: every primary that owns slots.
    AllPrimaries,
    /// H: primaries and replicas.
    EveryNode,
    /// I: SCAN, CLUSTERSCAN.
    Walk,
    /// J: one primary, not always the same.
    AnyNode,
    /// K: answered by the proxy. Also every container: a bare one is answered here.
    Local,
    /// L: MULTI and kin.
    Transaction,
    /// M: may block; ask `blocks` for XREAD and XREADGROUP, which are A and B when it says no.
    Blocking,
    /// N
    PubSub,
    /// O: state in the connection.
    ConnectionState,
    /// P
    Refused,
    /// Q: modules' commands without keys.
    Module,
}

/// How the replies of several nodes become one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ResponsePolicy {
    /// With keys: parts in the order of the keys. Without: joined in any order.
    Default,
    /// The first reply if none is an error, else the first error.
    AllSucceeded,
    /// The first reply that is no error.
    OneSucceeded,
    Sum,
    Min,
    /// Place by place over arrays of 0 and 1.
    LogicalAnd,
    /// The command's own rules.
    Special,
}

/// The projects' own grouping, as COMMAND DOCS names it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Group {
    Array,
    Bitmap,
    Bloom,
    Cluster,
    Connection,
    Generic,
    Geo,
    Hash,
    Hyperloglog,
    Json,
    List,
    Module,
    Pubsub,
    Scripting,
    Search,
    Server,
    Set,
    SortedSet,
    Stream,
    String,
    Transactions,
}

/// One command or subcommand, ready for use: one cache line.
#[derive(Copy, Clone, Debug)]
#[repr(align(64))]
pub struct Command {
    /// Upper case; a subcommand is `CONTAINER|SUB`.
    pub name: &'static str,
    pub keys: &'static [KeyRule],
    /// The name's part that is looked up (`SUB` of a subcommand), folded: see `find`.
    head: u64,
    tail: u64,
    pub flags: Flags,
    /// Number of words with the command's name; negative: that many or more.
    pub arity: i16,
    /// Index in `COMMANDS`; `u16::MAX` for the stand-ins of learned commands.
    pub id: u16,
    /// Id of the container, `find::NO_PARENT` if there is none.
    parent: u16,
    part_len: u8,
    /// Subcommands; they follow their container in `COMMANDS`.
    subs: u8,
    pub class: Class,
    pub policy: ResponsePolicy,
    /// 0 for none.
    plain_key: u8,
    fast_key: u8,
}

const _: () = assert!(size_of::<Command>() == 64);

impl Command {
    /// Reached through its subcommands only (COMMAND also bare).
    #[inline]
    pub const fn is_container(&self) -> bool {
        self.subs != 0
    }

    /// The word that is the one and only key, where every form of the command has it there:
    /// `Some(1)` for GET, SET, EXPIRE; `Some(2)` for OBJECT ENCODING. Modules' old commands state
    /// no arity: a legal request may lack the word.
    #[inline]
    pub const fn plain_first_key(&self) -> Option<u8> {
        match self.plain_key {
            0 => None,
            word => Some(word),
        }
    }

    /// As `plain_first_key`, and nothing else to think about: class Read or Write, and it may run
    /// on a shared backend (no fence). `None` says only: take the long way.
    #[inline]
    pub const fn route_fast(&self) -> Option<u8> {
        match self.fast_key {
            0 => None,
            word => Some(word),
        }
    }

    /// The word that states a slot where a key would be: CLUSTER COUNTKEYSINSLOT and GETKEYSINSLOT.
    pub fn slot_argument(&self) -> Option<u8> {
        let by_slot = matches!(self.name, "CLUSTER|COUNTKEYSINSLOT" | "CLUSTER|GETKEYSINSLOT");
        by_slot.then_some(2)
    }

    /// The subcommands of a container, sorted by name; empty for other commands.
    pub fn subcommands(&self) -> &'static [Command] {
        let start = usize::from(self.id) + 1;
        COMMANDS.get(start..start + usize::from(self.subs)).unwrap_or(&[])
    }

    /// The name as error texts have it: `config|get`.
    pub fn lowercase_name(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// `Group::Generic` for the stand-ins of learned commands.
    pub fn group(&self) -> Group {
        self.row().map_or(Group::Generic, |row| row.group)
    }

    /// First version, Redis's if it has the command, else Valkey's; empty if not stated.
    pub fn since(&self) -> &'static str {
        self.row().map_or("", |row| row.since)
    }

    /// First key, last key and step as a COMMAND reply states them: all 0 if no range says it.
    pub fn legacy_keys(&self) -> (i16, i16, i16) {
        let mut legacy = (0, 0, 0);
        for rule in self.keys {
            match *rule {
                KeyRule::Range { first, last, step, .. } if legacy == (0, 0, 0) => {
                    legacy = (first, last, step);
                }
                KeyRule::Range { first, last, step: 1, .. } if first == legacy.1 + 1 => {
                    legacy.1 = last;
                }
                KeyRule::Migrate => legacy = (3, 3, 1),
                _ => {}
            }
        }
        legacy
    }

    fn row(&self) -> Option<&'static row::Row> {
        table::ROWS.get(usize::from(self.id))
    }
}

/// Whether `argc` words (the command's name, and a subcommand's, included) are a legal number.
#[inline]
pub fn arity_ok(command: &Command, argc: usize) -> bool {
    let wanted = usize::from(command.arity.unsigned_abs());
    if command.arity >= 0 { argc == wanted } else { argc >= wanted }
}

/// Whether it may change data: by its flags, or because nobody can tell.
pub fn writes(command: &Command) -> bool {
    let unclear = matches!(command.class, Class::Write | Class::Script | Class::Module);
    command.flags.has(Flags::WRITE) || (unclear && !command.flags.has(Flags::READONLY))
}

/// Whether the node's reply can be of the client's making (scripts, functions, modules, commands
/// that only the nodes know), so that it must run behind the fence (DESIGN 4, hostile neighbours).
#[inline]
pub const fn may_compose_reply(command: &Command) -> bool {
    command.flags.has(find::COMPOSES)
}

/// Whether it may be sent again when nobody knows whether it ran: it only reads, and is no script.
pub fn retry_safe(command: &Command) -> bool {
    let reads = command.class == Class::Read || command.flags.has(Flags::READONLY);
    reads && !command.flags.has(Flags::WRITE) && !may_compose_reply(command)
}

/// Whether a replica may answer it, where the client's policy allows replicas: a read with keys.
/// PFCOUNT may rewrite its cache and goes to the primary.
pub fn may_use_replica(command: &Command) -> bool {
    let by_key = matches!(
        command.class,
        Class::Read | Class::SplitValues | Class::SplitCount | Class::Script | Class::Blocking
    );
    by_key && command.flags.has(Flags::READONLY) && !command.flags.has(Flags::MAY_REPLICATE)
}
