//! CLIENT: a client's own names and modes, and what it may ask about other clients.
//!
//! Not here: the tables of clients. LIST, INFO, KILL and UNBLOCK become a filter that whoever holds
//! them runs; it writes lines and totals with the functions below. No passwords and no keys show.

use std::io::Write;
use std::net::SocketAddr;

use super::{Answer, World, errors};
use crate::command::{Args, COMMANDS};
use crate::limits::CLIENT_DETAIL_MAX;
use crate::proxy::session::{ReplyMode, Session};
use crate::resp::number::read_integer;
use crate::resp::{Version, write};

/// Answers `CLIENT <sub>`.
pub(super) fn answer(
    sub: &str,
    args: &Args,
    session: &mut Session,
    world: &World,
    out: &mut Vec<u8>,
) -> Answer {
    match sub {
        "ID" => write::integer(out, session.id as i64),
        "INFO" => return Answer::ListClients(Box::new(ClientFilter::only(session.id))),
        "LIST" => return list(args, out),
        "KILL" => return kill(args, session, world, out),
        "UNBLOCK" => return unblock(args, out),
        "GETNAME" => match session.name() {
            Some(name) => write::bulk(out, name.as_bytes()),
            None => write::null(out, session.version),
        },
        "SETNAME" => match validate_name(args.get(2).unwrap_or_default()) {
            Ok(name) => {
                set_name(session, name);
                write::simple(out, "OK");
            }
            Err(error) => error.write(out, "Client names"),
        },
        "SETINFO" => set_info(args, session, out),
        "REPLY" => reply_mode(args, session, out),
        "NO-EVICT" => switch(args, &mut session.no_evict, out),
        "NO-TOUCH" => switch(args, &mut session.no_touch, out),
        // Capabilities say what the client could bear; we need none of it.
        "CAPA" => write::simple(out, "OK"),
        "TRACKING" => tracking(args, out),
        "CACHING" => caching(out),
        "TRACKINGINFO" => tracking_info(session.version, out),
        "GETREDIR" => write::integer(out, -1),
        "PAUSE" | "UNPAUSE" => errors::refused(out, &format!("CLIENT {sub}")),
        _ => errors::not_supported(out, &format!("CLIENT {sub}")),
    }
    Answer::Replied
}

// --- names and modes -------------------------------------------------------------------------

/// Why a text is not taken as part of a client's description.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum NameError {
    Characters,
    TooLong,
}

impl NameError {
    /// `what` begins the server's sentence, e.g. `Client names`.
    pub(super) fn write(self, out: &mut Vec<u8>, what: &str) {
        let rest = match self {
            NameError::Characters => "cannot contain spaces, newlines or special characters.",
            NameError::TooLong => "cannot be that long through this proxy.",
        };
        errors::line(out, &[b"ERR ", what.as_bytes(), b" ", rest.as_bytes()]);
    }
}

/// Printable ASCII without spaces (networking.c `validateClientAttr`), so that a line of CLIENT
/// LIST stays one line; and short, so that an idle client stays small.
pub(super) fn validate_name(text: &[u8]) -> Result<&str, NameError> {
    if text.len() > CLIENT_DETAIL_MAX {
        return Err(NameError::TooLong);
    }
    let printable = text.iter().all(|byte| (b'!'..=b'~').contains(byte));
    std::str::from_utf8(text).ok().filter(|_| printable).ok_or(NameError::Characters)
}

/// An empty name removes it.
pub(super) fn set_name(session: &mut Session, name: &str) {
    session.set_name((!name.is_empty()).then_some(name));
}

fn set_info(args: &Args, session: &mut Session, out: &mut Vec<u8>) {
    let attribute = args.get(2).unwrap_or_default();
    let is_name = attribute.eq_ignore_ascii_case(b"LIB-NAME");
    if !is_name && !attribute.eq_ignore_ascii_case(b"LIB-VER") {
        let quoted = errors::clip(attribute, usize::MAX);
        return errors::line(out, &[b"ERR Unrecognized option '", quoted, b"'"]);
    }
    // The server repeats the client's own spelling.
    let what = std::str::from_utf8(attribute).unwrap_or_default();
    let text = match validate_name(args.get(3).unwrap_or_default()) {
        Ok(text) => (!text.is_empty()).then_some(text),
        Err(error) => return error.write(out, what),
    };
    if is_name {
        session.set_lib_name(text);
    } else {
        session.set_lib_ver(text);
    }
    write::simple(out, "OK");
}

fn reply_mode(args: &Args, session: &mut Session, out: &mut Vec<u8>) {
    let mode = args.get(2).unwrap_or_default();
    if mode.eq_ignore_ascii_case(b"ON") {
        session.reply = ReplyMode::On;
        write::simple(out, "OK");
    } else if mode.eq_ignore_ascii_case(b"OFF") {
        session.reply = ReplyMode::Off;
    } else if mode.eq_ignore_ascii_case(b"SKIP") {
        if session.reply != ReplyMode::Off {
            session.reply = ReplyMode::SkipNext;
        }
    } else {
        errors::syntax(out);
    }
}

/// CLIENT MAINT_NOTIFICATIONS, which open servers do not know and the table has not:
/// `ON|OFF [moving-endpoint-type TYPE]`. Whatever the type, the endpoint that MOVING names is none:
/// "where you connected to" is true behind any address translation, and known to all libraries.
pub fn maint_notifications(args: &Args, session: &mut Session, out: &mut Vec<u8>) {
    const TYPES: [&str; 5] =
        ["internal-ip", "internal-fqdn", "external-ip", "external-fqdn", "none"];
    let known = |word: &[u8]| TYPES.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
    let right = match (args.get(3), args.get(4)) {
        (None, None) => true,
        (Some(option), Some(kind)) if args.len() == 5 => {
            option.eq_ignore_ascii_case(b"moving-endpoint-type") && known(kind)
        }
        _ => false,
    };
    if !right {
        return errors::syntax(out);
    }
    let on = args.get(2).is_some_and(|word| word.eq_ignore_ascii_case(b"ON"));
    if on && session.version == Version::Resp2 {
        return errors::fixed(out, "ERR CLIENT MAINT_NOTIFICATIONS needs RESP3: HELLO 3 first");
    }
    switch(args, &mut session.hears_moving, out);
}

/// The push that says: within so many seconds connect anew, to where you connected to.
pub fn write_moving(out: &mut Vec<u8>, sequence: u64, seconds: u64) {
    write::push_header(out, Version::Resp3, 4);
    write::bulk(out, b"MOVING");
    write::integer(out, sequence as i64);
    write::integer(out, seconds as i64);
    write::null(out, Version::Resp3);
}

fn switch(args: &Args, state: &mut bool, out: &mut Vec<u8>) {
    let word = args.get(2).unwrap_or_default();
    if word.eq_ignore_ascii_case(b"ON") {
        *state = true;
    } else if word.eq_ignore_ascii_case(b"OFF") {
        *state = false;
    } else {
        return errors::syntax(out);
    }
    write::simple(out, "OK");
}

fn tracking(args: &Args, out: &mut Vec<u8>) {
    let word = args.get(2).unwrap_or_default();
    if word.eq_ignore_ascii_case(b"OFF") {
        // It is off.
        write::simple(out, "OK");
    } else if word.eq_ignore_ascii_case(b"ON") {
        errors::not_supported(out, "CLIENT TRACKING");
    } else {
        errors::syntax(out);
    }
}

fn caching(out: &mut Vec<u8>) {
    let text = "ERR CLIENT CACHING can be called only when the client is in tracking mode with \
                OPTIN or OPTOUT mode enabled";
    errors::fixed(out, text);
}

fn tracking_info(version: Version, out: &mut Vec<u8>) {
    write::map_header(out, version, 3);
    write::bulk(out, b"flags");
    write::set_header(out, version, 1);
    write::bulk(out, b"off");
    write::bulk(out, b"redirect");
    write::integer(out, -1);
    write::bulk(out, b"prefixes");
    write::array_header(out, 0);
}

// --- other clients ---------------------------------------------------------------------------

/// The kinds of client that LIST and KILL know.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ClientKind {
    Normal,
    PubSub,
    /// Replication links: we have none, so nobody matches.
    Replication,
}

/// One of the two addresses of a client, as a filter names it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Side {
    Is(SocketAddr),
    /// A text that is nobody's address.
    Nobody,
}

/// Which clients LIST shows or KILL closes: those that every part given matches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientFilter {
    /// Sorted: a request may name a million of them. Empty: all.
    pub ids: Vec<u64>,
    pub kind: Option<ClientKind>,
    pub peer: Option<Side>,
    pub local: Option<Side>,
    pub user: Option<Box<str>>,
    /// Connected for at least so many seconds.
    pub age_min_s: Option<u64>,
    /// A client to leave out: the asking one.
    pub skip: Option<u64>,
    /// `CLIENT KILL addr:port`, which is answered OK or an error instead of a number.
    pub old_form: bool,
}

impl ClientFilter {
    /// CLIENT INFO: the asking client itself.
    pub fn only(id: u64) -> ClientFilter {
        ClientFilter { ids: vec![id], ..ClientFilter::default() }
    }

    pub fn matches(&self, session: &Session, now_ms: u64) -> bool {
        let kind = if session.subscriptions > 0 { ClientKind::PubSub } else { ClientKind::Normal };
        let age_s = now_ms.saturating_sub(session.connected_ms) / 1000;
        (self.ids.is_empty() || self.ids.binary_search(&session.id).is_ok())
            && self.kind.is_none_or(|wanted| wanted == kind)
            && self.peer.is_none_or(|side| side == Side::Is(canonical(session.peer)))
            && self.local.is_none_or(|side| side == Side::Is(canonical(session.local)))
            && self.user.as_deref().is_none_or(|user| user == session.user_name())
            && self.age_min_s.is_none_or(|least| age_s >= least)
            && self.skip != Some(session.id)
    }
}

fn list(args: &Args, out: &mut Vec<u8>) -> Answer {
    let mut filter = ClientFilter::default();
    let option = args.get(2).unwrap_or_default();
    if args.len() == 4 && option.eq_ignore_ascii_case(b"TYPE") {
        let name = args.get(3).unwrap_or_default();
        match client_kind(name) {
            Some(kind) => filter.kind = Some(kind),
            None => {
                unknown_kind(name, out);
                return Answer::Replied;
            }
        }
    } else if args.len() > 3 && option.eq_ignore_ascii_case(b"ID") {
        for id in args.iter().skip(3) {
            let Some(id) = read_integer(id) else {
                errors::fixed(out, "ERR Invalid client ID");
                return Answer::Replied;
            };
            // No client has id 0: a negative number finds nobody.
            filter.ids.push(u64::try_from(id).unwrap_or(0));
        }
        filter.ids.sort_unstable();
    } else if args.len() != 2 {
        errors::syntax(out);
        return Answer::Replied;
    }
    Answer::ListClients(Box::new(filter))
}

fn kill(args: &Args, session: &Session, world: &World, out: &mut Vec<u8>) -> Answer {
    if args.len() == 3 {
        let peer = Some(side(args.get(2).unwrap_or_default()));
        let filter = ClientFilter { peer, old_form: true, ..Default::default() };
        return Answer::KillClients(Box::new(filter));
    }
    let mut filter = ClientFilter { skip: Some(session.id), ..Default::default() };
    let mut at = 2;
    while let Some(option) = args.get(at) {
        let Some(value) = args.get(at + 1) else {
            errors::syntax(out);
            return Answer::Replied;
        };
        if kill_option(option, value, &mut filter, session, world, out).is_err() {
            return Answer::Replied;
        }
        at += 2;
    }
    Answer::KillClients(Box::new(filter))
}

/// The request is answered: the error is in `out`.
struct Refused;

fn kill_option(
    option: &[u8],
    value: &[u8],
    filter: &mut ClientFilter,
    session: &Session,
    world: &World,
    out: &mut Vec<u8>,
) -> Result<(), Refused> {
    let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
    if is("ID") {
        match read_integer(value).and_then(|id| u64::try_from(id).ok()) {
            Some(id @ 1..) => filter.ids = vec![id],
            _ => return fail("ERR client-id should be greater than 0", out),
        }
    } else if is("MAXAGE") {
        match read_integer(value) {
            Some(age @ 1..) => filter.age_min_s = Some(age.unsigned_abs()),
            Some(_) => return fail("ERR maxage should be greater than 0", out),
            None => return fail("ERR maxage is not an integer or out of range", out),
        }
    } else if is("TYPE") {
        match client_kind(value) {
            Some(kind) => filter.kind = Some(kind),
            None => {
                unknown_kind(value, out);
                return Err(Refused);
            }
        }
    } else if is("ADDR") {
        filter.peer = Some(side(value));
    } else if is("LADDR") {
        filter.local = Some(side(value));
    } else if is("USER") {
        filter.user = Some(known_user(value, world, out)?);
    } else if is("SKIPME") && value.eq_ignore_ascii_case(b"YES") {
        filter.skip = Some(session.id);
    } else if is("SKIPME") && value.eq_ignore_ascii_case(b"NO") {
        filter.skip = None;
    } else {
        return fail("ERR syntax error", out);
    }
    Ok(())
}

fn fail<T>(text: &str, out: &mut Vec<u8>) -> Result<T, Refused> {
    errors::fixed(out, text);
    Err(Refused)
}

fn known_user(name: &[u8], world: &World, out: &mut Vec<u8>) -> Result<Box<str>, Refused> {
    let users = world.identity.users.iter().map(|user| &*user.name);
    match users.chain(["default"]).find(|user| user.as_bytes() == name) {
        Some(user) => Ok(user.into()),
        None => {
            let quoted = errors::clip(name, usize::MAX);
            errors::line(out, &[b"ERR No such user '", quoted, b"'"]);
            Err(Refused)
        }
    }
}

fn client_kind(name: &[u8]) -> Option<ClientKind> {
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if is("NORMAL") {
        Some(ClientKind::Normal)
    } else if is("PUBSUB") {
        Some(ClientKind::PubSub)
    } else if is("MASTER") || is("PRIMARY") || is("REPLICA") || is("SLAVE") {
        Some(ClientKind::Replication)
    } else {
        None
    }
}

fn unknown_kind(name: &[u8], out: &mut Vec<u8>) {
    let quoted = errors::clip(name, usize::MAX);
    errors::line(out, &[b"ERR Unknown client type '", quoted, b"'"]);
}

fn side(text: &[u8]) -> Side {
    let address = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    address.map_or(Side::Nobody, |address| Side::Is(canonical(address)))
}

/// A listener for both IP versions sees IPv4 clients as `::ffff:a.b.c.d`.
pub(in crate::proxy) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn unblock(args: &Args, out: &mut Vec<u8>) -> Answer {
    let error = match args.get(3) {
        _ if args.len() > 4 => {
            errors::wrong_arity(out, "CLIENT|UNBLOCK");
            return Answer::Replied;
        }
        None => false,
        Some(reason) if reason.eq_ignore_ascii_case(b"TIMEOUT") => false,
        Some(reason) if reason.eq_ignore_ascii_case(b"ERROR") => true,
        Some(_) => {
            errors::fixed(out, "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
            return Answer::Replied;
        }
    };
    match read_integer(args.get(2).unwrap_or_default()) {
        Some(id) => Answer::Unblock { id: u64::try_from(id).unwrap_or(0), error },
        None => {
            errors::not_integer(out);
            Answer::Replied
        }
    }
}

// --- what the holder of the tables writes ----------------------------------------------------

/// What CLIENT LIST shows of a client and its session does not know. Sizes in bytes.
#[derive(Copy, Clone, Default, Debug)]
pub struct ClientFacts {
    /// A number that stands for its connection, e.g. the index in the reactor's table.
    pub fd: u32,
    pub channels: u32,
    pub patterns: u32,
    pub shard_channels: u32,
    /// Commands queued since MULTI; None: not in MULTI.
    pub multi: Option<u32>,
    /// A watched key has changed or may have: EXEC will answer nil.
    pub dirty: bool,
    pub blocked: bool,
    /// It is closed once its replies have been sent.
    pub closing: bool,
    /// Request bytes received and not yet carried out.
    pub query: u64,
    /// Replies that wait for an elder one, and their bytes.
    pub replies: u64,
    pub reply_bytes: u64,
    /// Bytes of replies that wait for the socket.
    pub unsent: u64,
    /// All memory that the client costs us.
    pub memory: u64,
}

/// One line of CLIENT LIST and CLIENT INFO, with its line end: the fields of version 7.2 in the
/// server's order. What means nothing here is 0.
pub fn client_line(session: &Session, facts: &ClientFacts, world: &World, out: &mut Vec<u8>) {
    let age_s = world.now_ms.saturating_sub(session.connected_ms) / 1000;
    let idle_s = world.now_ms.saturating_sub(session.active_ms) / 1000;
    let multi = facts.multi.map_or(-1, i64::from);
    let command = COMMANDS.get(usize::from(session.last_command));
    let command = command.map_or_else(|| "NULL".into(), |row| row.name.to_ascii_lowercase());
    let resp = if session.version == Version::Resp3 { 3 } else { 2 };
    let events = if facts.unsent > 0 { "rw" } else { "r" };
    // Writing to a Vec cannot fail.
    let _ = write!(
        out,
        "id={} addr={} laddr={} fd={} name={} age={age_s} idle={idle_s} flags=",
        session.id,
        canonical(session.peer),
        canonical(session.local),
        facts.fd,
        session.name().unwrap_or_default(),
    );
    write_flags(session, facts, out);
    let _ = write!(
        out,
        " db={} sub={} psub={} ssub={} multi={multi} qbuf={} qbuf-free=0 argv-mem=0 multi-mem=0 \
         rbs=0 rbp=0 obl={} oll={} omem={} tot-mem={} events={events} cmd={command} user={} \
         redir=-1 resp={resp} lib-name={} lib-ver={}",
        session.database,
        facts.channels,
        facts.patterns,
        facts.shard_channels,
        facts.query,
        facts.unsent,
        facts.replies,
        facts.reply_bytes,
        facts.memory,
        session.user_name(),
        session.lib_name().unwrap_or_default(),
        session.lib_ver().unwrap_or_default(),
    );
    out.push(b'\n');
}

/// The letters of networking.c `catClientInfoString`, in its order.
fn write_flags(session: &Session, facts: &ClientFacts, out: &mut Vec<u8>) {
    let flags = [
        (session.monitors, b'O'),
        (session.subscriptions > 0, b'P'),
        (facts.multi.is_some(), b'x'),
        (facts.blocked, b'b'),
        (facts.dirty, b'd'),
        (facts.closing, b'c'),
        (session.readonly, b'r'),
        (session.no_evict, b'e'),
        (session.no_touch, b'T'),
    ];
    let before = out.len();
    out.extend(flags.iter().filter(|(set, _)| *set).map(|&(_, letter)| letter));
    if out.len() == before {
        out.push(b'N');
    }
}

/// The reply to CLIENT LIST and CLIENT INFO from the lines collected.
pub fn write_client_list(out: &mut Vec<u8>, version: Version, lines: &[u8]) {
    write::verbatim(out, version, b"txt", lines);
}

/// The reply to CLIENT KILL. `killed`: clients closed, over all reactors.
pub fn write_killed(out: &mut Vec<u8>, filter: &ClientFilter, killed: u64) {
    match (filter.old_form, killed) {
        (true, 0) => errors::fixed(out, "ERR No such client"),
        (true, _) => write::simple(out, "OK"),
        (false, _) => write::integer(out, killed as i64),
    }
}
