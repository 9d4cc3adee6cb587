//! SELECT in the model: a key of database 2 is `d2:{tag}…` to the model and all its checkers, and
//! without what is before the tag on the wire: so whatever runs in a wrong database shows as
//! something done to another key.
//!
//! Not here: what is done to keys (`nodes`), whether it was right (`checker`, `history`).

use crate::history::Kind;
use crate::world::World;

/// How many the nodes have.
pub const DATABASES: u32 = 4;

/// What stands before the keys of a database.
pub fn prefix(database: u32) -> Vec<u8> {
    match database {
        0 => Vec::new(),
        _ => format!("d{database}:").into_bytes(),
    }
}

/// Whether it is a key of the first one.
pub fn is_of_first(key: &[u8]) -> bool {
    !key.starts_with(b"d")
}

/// Where keys stand in a command.
fn places(args: &[Vec<u8>]) -> Vec<usize> {
    let count = args.len();
    match args[0].to_ascii_uppercase().as_slice() {
        b"GET" | b"SET" | b"APPEND" | b"INCR" | b"INCRBY" | b"MOD.APPEND" if count > 1 => vec![1],
        b"MGET" | b"DEL" | b"EXISTS" | b"WATCH" => (1..count).collect(),
        b"MSET" => (1..count).step_by(2).collect(),
        b"EVAL" | b"EVALSHA" if count > 3 => vec![3],
        _ => Vec::new(),
    }
}

/// As a node in that database reads it.
pub fn with_prefix(database: u32, args: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut args = args.to_vec();
    if database > 0 {
        for place in places(&args) {
            args[place].splice(..0, prefix(database));
        }
    }
    args
}

/// As a client in that database writes it.
pub fn without_prefix(database: u32, args: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut args = args.to_vec();
    let before = prefix(database);
    if database > 0 {
        for place in places(&args) {
            args[place] =
                args[place].strip_prefix(&before[..]).map_or_else(Vec::new, <[u8]>::to_vec);
        }
    }
    args
}

/// The answer to SELECT, and the database if there is such.
pub fn select(args: &[Vec<u8>]) -> (Option<u32>, Vec<u8>) {
    let number = args.get(1).and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
    match number.filter(|&number| number < DATABASES) {
        Some(number) => (Some(number), b"+OK\r\n".to_vec()),
        None => (None, b"-ERR DB index is out of range\r\n".to_vec()),
    }
}

impl World {
    /// Now and then a client that waits for nothing enters another database: it asks nothing more
    /// before it knows whether it is there.
    pub fn selects_now(&mut self, client: usize) -> Option<Kind> {
        let this = &self.clients[client];
        let ready = this.waits_for_nothing() && (this.logged_in || !self.parameters.login);
        if !ready || this.half_closes || !self.random.chance(self.parameters.selects) {
            return None;
        }
        Some(Kind::Select(self.random.below(DATABASES.into()) as u8))
    }

    /// What can be asked in a database beside the first, in the model.
    pub fn fit_for_database(&self, client: usize, kind: Kind) -> Kind {
        match kind {
            Kind::Scan | Kind::Push | Kind::BlPop if self.clients[client].database > 0 => Kind::Set,
            kind => kind,
        }
    }
}
