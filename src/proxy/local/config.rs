//! CONFIG: what clients ask for at start, answered for the proxy itself; RESETSTAT of its counts.
//!
//! Not here: the nodes' settings, which a client neither sees nor changes through us; our own
//! options (room `config`). No password is among the answers.

use std::borrow::Cow;

use super::{Answer, Identity, World, errors, glob};
use crate::command::Args;
use crate::limits::{DATABASES_ANNOUNCED, REQUEST_BULK_MAX, REQUEST_TOTAL_MAX};
use crate::proxy::session::Session;
use crate::resp::write;

/// Answers `CONFIG <sub>`.
pub(super) fn answer(
    sub: &str,
    args: &Args,
    session: &Session,
    world: &World,
    out: &mut Vec<u8>,
) -> Answer {
    match sub {
        "GET" => get(args, session, world, out),
        "SET" => set(args, world, out),
        "RESETSTAT" => return Answer::ResetCounts,
        "REWRITE" => errors::fixed(out, "ERR The server is running without a config file"),
        _ => errors::refused(out, &format!("CONFIG {sub}")),
    }
    Answer::Replied
}

/// One parameter.
struct Parameter {
    name: &'static str,
    value: Value,
}

enum Value {
    Fixed(&'static str),
    Of(fn(&Identity) -> String),
}

impl Value {
    fn text(&self, identity: &Identity) -> Cow<'static, str> {
        match self {
            Value::Fixed(text) => Cow::Borrowed(text),
            Value::Of(read) => Cow::Owned(read(identity)),
        }
    }
}

const fn fixed(name: &'static str, value: &'static str) -> Parameter {
    Parameter { name, value: Value::Fixed(value) }
}

const fn of(name: &'static str, read: fn(&Identity) -> String) -> Parameter {
    Parameter { name, value: Value::Of(read) }
}

/// Parameters that have a true answer for a proxy that stores nothing. Those of the data (formats,
/// eviction, persistence files) are left out: an unknown name gets an empty answer.
static PARAMETERS: &[Parameter] = &[
    fixed("appendfsync", "everysec"),
    fixed("appendonly", "no"),
    fixed("client-output-buffer-limit", "normal 0 0 0 slave 0 0 0 pubsub 0 0 0"),
    of("client-query-buffer-limit", |_| REQUEST_TOTAL_MAX.to_string()),
    fixed("cluster-enabled", "no"),
    fixed("daemonize", "no"),
    of("databases", |_| DATABASES_ANNOUNCED.to_string()),
    of("io-threads", |identity| identity.reactors.to_string()),
    of("latency-monitor-threshold", |identity| match identity.slowlog_max_len {
        0 => "0".to_owned(),
        _ => identity.slowlog_log_slower_than.div_ceil(1_000).to_string(),
    }),
    fixed("loglevel", "notice"),
    of("maxclients", |identity| identity.maxclients.to_string()),
    fixed("maxmemory", "0"),
    fixed("maxmemory-policy", "noeviction"),
    fixed("min-replicas-to-write", "0"),
    fixed("notify-keyspace-events", ""),
    of("port", |identity| identity.listen_port.to_string()),
    of("proto-max-bulk-len", |_| REQUEST_BULK_MAX.to_string()),
    fixed("protected-mode", "no"),
    fixed("replica-read-only", "yes"),
    fixed("replica-serve-stale-data", "yes"),
    fixed("replicaof", ""),
    fixed("save", ""),
    fixed("slave-read-only", "yes"),
    fixed("slave-serve-stale-data", "yes"),
    fixed("slaveof", ""),
    of("slowlog-log-slower-than", |identity| identity.slowlog_log_slower_than.to_string()),
    of("slowlog-max-len", |identity| identity.slowlog_max_len.to_string()),
    fixed("tcp-keepalive", "300"),
    of("timeout", |identity| identity.idle_timeout_s.to_string()),
    fixed("tls-port", "0"),
    fixed("unixsocket", ""),
];

fn get(args: &Args, session: &Session, world: &World, out: &mut Vec<u8>) {
    // Each parameter once. One asked for by its plain name is answered in the client's spelling.
    let mut found: Vec<(&[u8], &Parameter)> = Vec::new();
    for pattern in args.iter().skip(2) {
        let plain = !pattern.iter().any(|byte| matches!(byte, b'[' | b'*' | b'?'));
        for parameter in PARAMETERS {
            let name = parameter.name.as_bytes();
            let wanted = if plain {
                pattern.eq_ignore_ascii_case(name)
            } else {
                glob::matches(pattern, name, true)
            };
            if wanted && !found.iter().any(|(_, known)| known.name == parameter.name) {
                found.push((if plain { pattern } else { name }, parameter));
            }
        }
    }
    write::map_header(out, session.version, found.len());
    for (name, parameter) in found {
        write::bulk(out, name);
        write::bulk(out, parameter.value.text(world.identity).as_bytes());
    }
}

/// Nothing can be changed from here; setting what already holds is answered OK.
fn set(args: &Args, world: &World, out: &mut Vec<u8>) {
    if args.len() % 2 == 1 {
        return errors::wrong_arity(out, "CONFIG|SET");
    }
    let mut refused = None;
    let mut at = 2;
    while let (Some(name), Some(value)) = (args.get(at), args.get(at + 1)) {
        let known = |parameter: &&Parameter| name.eq_ignore_ascii_case(parameter.name.as_bytes());
        let Some(parameter) = PARAMETERS.iter().find(known) else {
            let quoted = errors::clip(name, usize::MAX);
            let text = b"ERR Unknown option or number of arguments for CONFIG SET - '";
            return errors::line(out, &[text, quoted, b"'"]);
        };
        if parameter.value.text(world.identity).as_bytes() != value {
            refused = refused.or(Some(parameter.name));
        }
        at += 2;
    }
    match refused {
        None => write::simple(out, "OK"),
        Some(name) => {
            let text = b"ERR CONFIG SET failed (possibly related to argument '";
            let rest = b"') - can't be changed through this proxy";
            errors::line(out, &[text, name.as_bytes(), rest]);
        }
    }
}
