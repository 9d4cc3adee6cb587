//! SELECT: databases beside the first, where the nodes have them (`cluster-databases` of Valkey 9).
//!
//! A database is a state of the connection, so each in use has backends of its own, whose
//! handshake selects it (`nodes::face_of`). A client enters one when every primary has agreed to
//! select it, on a connection of its own that is closed behind it, and when nothing of the client's
//! is in flight: where its requests go never changes under way. What the primaries said is
//! remembered for a while.
//!
//! Not here: other answers to SELECT (`local`).

use super::Proxy;
use super::dispatch::{Asked, Ran};
use super::own::AT_NODE;
use super::request::Marks;
use super::split::Merge;
use super::types::NO_SLOT;
use crate::command::Args;
use crate::limits::DATABASES_ANNOUNCED;
use crate::resp::number::read_integer;
use crate::resp::write;

/// For how long it is remembered what the primaries said.
const REMEMBERED_MS: u64 = 10_000;

/// What the primaries said of one database.
#[derive(Clone, Debug, Default)]
struct Said {
    until_ms: u64,
    /// OK, or an error.
    reply: Vec<u8>,
}

/// By number.
#[derive(Debug, Default)]
pub struct Databases {
    said: [Said; DATABASES_ANNOUNCED as usize],
}

impl Proxy {
    pub(super) fn run_select(&mut self, asked: Asked, args: &Args) -> Ran {
        let c = asked.client;
        let number = read_integer(args.get(1).unwrap_or_default());
        let number = number.and_then(|number| u8::try_from(number).ok());
        let Some(database) = number.filter(|&number| number < DATABASES_ANNOUNCED) else {
            return self.run_local(asked, args);
        };
        if self.identity.ignore_select || database == self.clients[c].session.database {
            return self.run_local(asked, args);
        }
        if self.waits_for_elders(c) {
            return Ran::HoldBack;
        }
        let said = &self.databases.said[usize::from(database)];
        let reply = match database {
            0 => b"+OK\r\n".to_vec(),
            _ if self.now.ms < said.until_ms => said.reply.clone(),
            _ => return self.ask_database(asked, args, database),
        };
        self.enter_database(c, database, &reply);
        self.reply_local(c, &reply, !asked.marks.has(Marks::SILENT));
        Ran::Yes
    }

    /// Whether every primary has it.
    fn ask_database(&mut self, asked: Asked, args: &Args, database: u8) -> Ran {
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
    pub(super) fn finish_select(&mut self, s: u32, database: u8, reply: &[u8]) {
        // Not that a node could not be asked: that may be over in a moment.
        let says = [b"+OK".as_slice(), b"-ERR SELECT", b"-ERR DB index"];
        if says.iter().any(|begin| reply.starts_with(begin)) {
            let until_ms = self.now.ms + REMEMBERED_MS;
            let said = Said { until_ms, reply: reply.to_vec() };
            self.databases.said[usize::from(database)] = said;
        }
        let c = self.requests[self.splits[s].parent].client;
        self.enter_database(c, database, reply);
    }

    fn enter_database(&mut self, c: u32, database: u8, reply: &[u8]) {
        let mut ok = Vec::new();
        write::simple(&mut ok, "OK");
        if reply != ok {
            return;
        }
        let client = &mut self.clients[c];
        client.session.database = database;
        client.refresh_plain();
        // The guard holds keys of the other database: EXEC must not run there.
        if let Some(watch) = client.mode.as_mut().and_then(|mode| mode.watch.as_mut()) {
            watch.broken = true;
        }
    }
}
