//! SELECT: databases beside the first, where the nodes have them (`cluster-databases` of Valkey 9).
//!
//! A database is a state of the connection, so each in use has backends of its own, whose
//! handshake selects it (`nodes::face_of`). A client enters one when every primary has agreed to
//! select it, on a connection of its own that is closed behind it, and when nothing of the client's
//! is in flight: where its requests go never changes under way. What the primaries said is
//! remembered for a while.
//!
//! Whatever its number, a database that clients are in has one of a few *seats*, so that nobody can
//! make us open connections for thousands. A seat is free again when no client is in it and none of
//! its backends is connected.
//!
//! Not here: other answers to SELECT (`local`).

use ahash::AHashMap;

use super::Proxy;
use super::backend::{Lane, Phase};
use super::connect::Why;
use super::dispatch::{Asked, Ran};
use super::local::errors;
use super::own::AT_NODE;
use super::private::NOBODY;
use super::request::Marks;
use super::split::Merge;
use super::types::NO_SLOT;
use crate::command::Args;
use crate::limits::DATABASES_KNOWN_MAX;
use crate::resp::number::read_integer;

/// For how long it is remembered what the primaries said.
const REMEMBERED_MS: u64 = 10_000;

/// After so long without work a backend of a database is closed.
const IDLE_MS: u64 = 60_000;

const OK: &[u8] = b"+OK\r\n";

/// What the primaries said of one database.
#[derive(Clone, Debug, Default)]
struct Said {
    until_ms: u64,
    /// OK, or an error.
    reply: Vec<u8>,
}

#[derive(Debug)]
pub struct Databases {
    /// By number.
    said: AHashMap<u32, Said>,
    /// By seat: the number of its database. That of the first is 0 for ever.
    seats: Vec<u32>,
    /// How many each node has; `None`: nobody tells.
    pub announced: Option<u64>,
}

impl Default for Databases {
    fn default() -> Databases {
        Databases { said: AHashMap::new(), seats: vec![0], announced: None }
    }
}

impl Databases {
    /// The database that has a seat.
    pub fn number(&self, seat: u8) -> u32 {
        self.seats.get(usize::from(seat)).copied().unwrap_or_default()
    }

    fn seat_of(&self, database: u32) -> Option<u8> {
        let seat = self.seats.iter().position(|&number| number == database)?;
        u8::try_from(seat).ok()
    }

    /// Gives a seat that is not in use, of at most `most` with the first.
    fn sit(&mut self, database: u32, used: &[bool], most: u8) -> Option<u8> {
        let most = usize::from(most);
        let free = (1..self.seats.len().min(most)).find(|&seat| used.get(seat) != Some(&true));
        let seat = free.or_else(|| (self.seats.len() < most).then_some(self.seats.len()))?;
        match self.seats.get_mut(seat) {
            Some(number) => *number = database,
            None => self.seats.push(database),
        }
        u8::try_from(seat).ok()
    }

    fn remember(&mut self, database: u32, said: Said) {
        if self.said.len() >= DATABASES_KNOWN_MAX {
            self.said.clear();
        }
        self.said.insert(database, said);
    }
}

impl Proxy {
    pub(super) fn run_select(&mut self, asked: Asked, args: &Args) -> Ran {
        let c = asked.client;
        let number = read_integer(args.get(1).unwrap_or_default());
        let number = number.and_then(|number| i32::try_from(number).ok());
        let Some(database) = number.and_then(|number| u32::try_from(number).ok()) else {
            return self.run_local(asked, args);
        };
        if self.identity.ignore_select || database == self.clients[c].session.database {
            return self.run_local(asked, args);
        }
        if self.waits_for_elders(c) {
            return Ran::HoldBack;
        }
        let said = self.databases.said.get(&database);
        let mut reply = match (database, said) {
            (0, _) => OK.to_vec(),
            (_, Some(said)) if self.now.ms < said.until_ms => said.reply.clone(),
            _ => return self.ask_database(asked, args, database),
        };
        self.enter_database(c, database, &mut reply);
        self.reply_local(c, &reply, !asked.marks.has(Marks::SILENT));
        Ran::Yes
    }

    /// Whether every primary has it.
    fn ask_database(&mut self, asked: Asked, args: &Args, database: u32) -> Ran {
        let slots = self.slots_of_primaries();
        if slots.is_empty() {
            return self.no_map(asked);
        }
        let s = self.open_parent(asked, Merge::AllSucceeded);
        self.splits[s].database = Some(database);
        let marks = asked.marks.with(Marks::PRIVATE).with(Marks::BY_NODE);
        for slot in slots {
            let r = self.open_part(Asked { marks, ..asked }, s, NO_SLOT);
            let entry = &mut self.requests[r];
            entry.node = self.map.get(slot);
            entry.command = AT_NODE;
        }
        self.launch_all(s, args.bytes);
        Ran::Yes
    }

    /// All primaries have answered.
    pub(super) fn finish_select(&mut self, s: u32, database: u32, reply: &mut Vec<u8>) {
        // Not that a node could not be asked: that may be over in a moment.
        let says = [b"+OK".as_slice(), b"-ERR SELECT", b"-ERR DB index"];
        if says.iter().any(|begin| reply.starts_with(begin)) {
            let until_ms = self.now.ms + REMEMBERED_MS;
            self.databases.remember(database, Said { until_ms, reply: reply.clone() });
        }
        let c = self.requests[self.splits[s].parent].client;
        self.enter_database(c, database, reply);
    }

    /// `reply`: what the client will be told; it may become an error of ours.
    fn enter_database(&mut self, c: u32, database: u32, reply: &mut Vec<u8>) {
        if reply != OK {
            return;
        }
        let Some(seat) = self.find_seat(c, database) else {
            reply.clear();
            return errors::databases_max(reply);
        };
        let client = &mut self.clients[c];
        client.session.database = database;
        client.session.seat = seat;
        client.refresh_plain();
        // The guard holds keys of the other database: EXEC must not run there.
        if let Some(watch) = client.mode.as_mut().and_then(|mode| mode.watch.as_mut()) {
            watch.broken = true;
        }
    }

    /// The seat of a database for client `c`; `None`: all are in use.
    pub(super) fn find_seat(&mut self, c: u32, database: u32) -> Option<u8> {
        self.databases.seat_of(database).or_else(|| self.seat_for(c, database))
    }

    /// A seat for a database that has none. It may be the one that client `c` leaves.
    fn seat_for(&mut self, c: u32, database: u32) -> Option<u8> {
        let mut used = vec![false; usize::from(u8::MAX) + 1];
        for other in self.clients.indexes() {
            used[usize::from(self.clients[other].session.seat)] |= other != c;
        }
        for b in 0..self.backends.len() as u32 {
            let backend = &self.backends[b as usize];
            let seat = usize::from(backend.seat);
            let lent = backend.lane == Lane::Private && backend.owner != NOBODY;
            let idle = backend.queued() == 0 && backend.awaiting.is_empty() && !lent;
            if seat > 0 && !used[seat] && idle {
                self.lose_backend(b, Why::Retired);
            }
            // One that answers a last question, such as SELECT itself, is lent to nobody again.
            let backend = &self.backends[b as usize];
            let ends = backend.lane == Lane::Private && backend.spoilt;
            used[seat] |= backend.is_open() && !ends;
        }
        self.databases.sit(database, &used, self.settings.databases_max)
    }

    /// Whether a backend of a database beside the first has had nothing to do for long. What needs
    /// it connects it again.
    pub(super) fn is_idle_database(&self, b: u32) -> bool {
        let backend = &self.backends[b as usize];
        let quiet_ms = self.now.ms.saturating_sub(backend.progress_ms.max(backend.since_ms));
        let idle = backend.queued() == 0 && backend.awaiting.is_empty() && quiet_ms > IDLE_MS;
        let is_shared = matches!(backend.lane, Lane::Shared | Lane::Fence);
        backend.phase == Phase::Ready && backend.seat > 0 && is_shared && idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_keeps_its_seat_and_a_free_one_is_given_again() {
        let mut databases = Databases::default();
        let nobody = [true, false, false];
        assert_eq!((databases.seat_of(0), databases.number(0)), (Some(0), 0));
        assert_eq!(databases.sit(700, &[true], 3), Some(1));
        assert_eq!(databases.sit(5, &[true, true], 3), Some(2));
        assert_eq!(databases.sit(6, &[true, true, true], 3), None, "all are in use");
        assert_eq!((databases.seat_of(700), databases.seat_of(5)), (Some(1), Some(2)));
        assert_eq!(databases.sit(6, &[true, true, false], 3), Some(2));
        assert_eq!((databases.number(2), databases.seat_of(5)), (6, None));
        assert_eq!(databases.sit(8, &nobody, 3), Some(1));
        assert_eq!(Databases::default().sit(1, &nobody, 1), None, "the first only");
    }
}
