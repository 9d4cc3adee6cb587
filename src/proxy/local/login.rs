//! AUTH and HELLO: who a client is, and in which protocol it is answered.
//!
//! Not here: keeping clients that have not logged in from other commands (`client`).

use std::hint::black_box;

use super::{Identity, World, errors};
use crate::command::Args;
use crate::proxy::local::client::{NameError, set_name, validate_name};
use crate::proxy::session::Session;
use crate::resp::number::read_integer;
use crate::resp::{Version, write};

const DEFAULT_USER: &[u8] = b"default";

/// `AUTH password` or `AUTH user password`. A failure leaves the session as it was.
pub(super) fn auth(args: &Args, session: &mut Session, world: &World, out: &mut Vec<u8>) {
    let (user, password) = match (args.get(1), args.get(2), args.len()) {
        (Some(password), None, 2) => (DEFAULT_USER, password),
        (Some(user), Some(password), 3) => (user, password),
        _ => return errors::syntax(out),
    };
    if args.len() == 2 && world.identity.open() {
        let text = "ERR AUTH <password> called without any password configured for the default \
                    user. Are you sure your configuration is correct?";
        return errors::fixed(out, text);
    }
    if log_in(session, world.identity, user, password) {
        write::simple(out, "OK");
    } else {
        errors::wrongpass(out);
    }
}

/// `HELLO [version] [AUTH user password] [SETNAME name]`: all of it, or nothing and an error.
pub(super) fn hello(args: &Args, session: &mut Session, world: &World, out: &mut Vec<u8>) {
    let options = match read_options(args) {
        Ok(options) => options,
        Err(refusal) => return refusal.write(out),
    };
    if let Some((user, password)) = options.login
        && !log_in(session, world.identity, user, password)
    {
        return errors::wrongpass(out);
    }
    if !session.authenticated {
        let text = "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                    the HELLO AUTH <user> <pass> option can be used to authenticate the \
                    client and select the RESP protocol version at the same time";
        return errors::fixed(out, text);
    }
    if let Some(name) = options.name {
        set_name(session, name);
    }
    session.version = options.version.unwrap_or(session.version);
    describe(session, world.identity, out);
}

struct Options<'a> {
    version: Option<Version>,
    login: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a str>,
}

enum Refusal<'a> {
    NotInteger,
    NoProto,
    Option(&'a [u8]),
    Name(NameError),
}

impl Refusal<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Refusal::NotInteger => {
                errors::fixed(out, "ERR Protocol version is not an integer or out of range");
            }
            Refusal::NoProto => errors::fixed(out, "NOPROTO unsupported protocol version"),
            Refusal::Option(option) => {
                let option = errors::clip(option, usize::MAX);
                errors::line(out, &[b"ERR Syntax error in HELLO option '", option, b"'"]);
            }
            Refusal::Name(error) => error.write(out, "Client names"),
        }
    }
}

fn read_options<'a>(args: &Args<'a>) -> Result<Options<'a>, Refusal<'a>> {
    let version = match args.get(1).map(read_integer) {
        None => None,
        Some(None) => return Err(Refusal::NotInteger),
        Some(Some(2)) => Some(Version::Resp2),
        Some(Some(3)) => Some(Version::Resp3),
        Some(Some(_)) => return Err(Refusal::NoProto),
    };
    let mut options = Options { version, login: None, name: None };
    let mut at = 2;
    while let Some(option) = args.get(at) {
        let (first, second) = (args.get(at + 1), args.get(at + 2));
        if let (true, Some(user), Some(password)) =
            (option.eq_ignore_ascii_case(b"AUTH"), first, second)
        {
            options.login = Some((user, password));
            at += 3;
        } else if let (true, Some(name)) = (option.eq_ignore_ascii_case(b"SETNAME"), first) {
            options.name = Some(validate_name(name).map_err(Refusal::Name)?);
            at += 2;
        } else {
            return Err(Refusal::Option(option));
        }
    }
    Ok(options)
}

/// Like one stand-alone primary: when told of a cluster, clients change their ways (SE.Redis#2345).
fn describe(session: &Session, identity: &Identity, out: &mut Vec<u8>) {
    let proto = match session.version {
        Version::Resp2 => 2,
        Version::Resp3 => 3,
    };
    write::map_header(out, session.version, 7);
    write::bulk(out, b"server");
    write::bulk(out, b"redis");
    write::bulk(out, b"version");
    write::bulk(out, identity.version_announced.as_bytes());
    write::bulk(out, b"proto");
    write::integer(out, proto);
    write::bulk(out, b"id");
    write::integer(out, session.id as i64);
    write::bulk(out, b"mode");
    write::bulk(out, b"standalone");
    write::bulk(out, b"role");
    write::bulk(out, b"master");
    write::bulk(out, b"modules");
    write::array_header(out, 0);
}

/// Takes the user's name over into the session if the password is right.
fn log_in(session: &mut Session, identity: &Identity, user: &[u8], password: &[u8]) -> bool {
    if !password_right(identity, user, password) {
        return false;
    }
    let name = std::str::from_utf8(user).ok().filter(|_| user != DEFAULT_USER);
    session.user = name.map(Box::from);
    session.authenticated = true;
    true
}

/// Takes the same time for a wrong user as for a wrong password, and tells nothing of where two
/// passwords differ.
fn password_right(identity: &Identity, user: &[u8], password: &[u8]) -> bool {
    if identity.users.is_empty() {
        return user == DEFAULT_USER;
    }
    let known = identity.users.iter().find(|known| known.name.as_bytes() == user);
    match known {
        Some(known) => match &known.password {
            Some(secret) => same_bytes(password, secret),
            None => true,
        },
        None => {
            same_bytes(password, b"nobody's password");
            false
        }
    }
}

/// Time depends on the length of `given` only, which the client knows.
fn same_bytes(given: &[u8], secret: &[u8]) -> bool {
    let mut different = u8::from(given.len() != secret.len());
    for (at, &byte) in given.iter().enumerate() {
        let other = secret.get(at % secret.len().max(1)).copied().unwrap_or(0);
        different |= black_box(byte ^ other);
    }
    black_box(different) == 0
}
