//! CONFIG: what clients ask for at start, and the proxy's own options by their own names; RESETSTAT
//! of its counts.
//!
//! Not here: who may set an option, and whom a CONFIG is for (`proxy/settings`); what options mean
//! (room `config`); the nodes' settings. No password is among the answers.

use std::borrow::Cow;

use super::{Answer, Identity, World, errors, glob};
use crate::command::Args;
use crate::limits::{REQUEST_BULK_MAX, REQUEST_TOTAL_MAX};
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
        "GET" | "SET" if args.len() > WORDS_MAX => errors::too_many_names(out),
        "GET" => get(args, session, world, out),
        "SET" => set(args, world, out),
        "RESETSTAT" => return Answer::ResetCounts,
        "REWRITE" => errors::fixed(out, "ERR The server is running without a config file"),
        _ => errors::refused(out, &format!("CONFIG {sub}")),
    }
    Answer::Replied
}

/// Words of one CONFIG GET or SET: each name is compared with all that there are.
pub const WORDS_MAX: usize = 1024;

/// One parameter.
struct Parameter {
    name: &'static str,
    value: Value,
}

enum Value {
    Fixed(&'static str),
    Of(fn(&World) -> String),
}

impl Value {
    fn text(&self, world: &World) -> Cow<'static, str> {
        match self {
            Value::Fixed(text) => Cow::Borrowed(text),
            Value::Of(read) => Cow::Owned(read(world)),
        }
    }
}

const fn fixed(name: &'static str, value: &'static str) -> Parameter {
    Parameter { name, value: Value::Fixed(value) }
}

const fn of(name: &'static str, read: fn(&World) -> String) -> Parameter {
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
    of("databases", |world| world.databases().to_string()),
    of("io-threads", |world| world.identity.reactors.to_string()),
    of("latency-monitor-threshold", |world| match world.identity.slowlog_max_len {
        0 => "0".to_owned(),
        _ => world.identity.slowlog_log_slower_than.div_ceil(1_000).to_string(),
    }),
    fixed("loglevel", "notice"),
    of("maxclients", |world| world.identity.maxclients.to_string()),
    fixed("maxmemory", "0"),
    fixed("maxmemory-policy", "noeviction"),
    fixed("min-replicas-to-write", "0"),
    fixed("notify-keyspace-events", ""),
    of("port", |world| world.identity.listen_port.to_string()),
    of("proto-max-bulk-len", |_| REQUEST_BULK_MAX.to_string()),
    fixed("protected-mode", "no"),
    fixed("replica-read-only", "yes"),
    fixed("replica-serve-stale-data", "yes"),
    fixed("replicaof", ""),
    fixed("save", ""),
    fixed("slave-read-only", "yes"),
    fixed("slave-serve-stale-data", "yes"),
    fixed("slaveof", ""),
    of("slowlog-log-slower-than", |world| world.identity.slowlog_log_slower_than.to_string()),
    of("slowlog-max-len", |world| world.identity.slowlog_max_len.to_string()),
    fixed("tcp-keepalive", "300"),
    of("timeout", |world| world.identity.idle_timeout_s.to_string()),
    fixed("tls-port", "0"),
    fixed("unixsocket", ""),
];

fn get(args: &Args, session: &Session, world: &World, out: &mut Vec<u8>) {
    // Each parameter once. One asked for by its plain name is answered in the client's spelling.
    let mut found: Vec<(&[u8], &Parameter)> = Vec::new();
    let mut steps = glob::STEPS_MAX;
    for pattern in args.iter().skip(2) {
        let plain = !pattern.iter().any(|byte| matches!(byte, b'[' | b'*' | b'?'));
        for parameter in PARAMETERS {
            let name = parameter.name.as_bytes();
            let wanted = if plain {
                pattern.eq_ignore_ascii_case(name)
            } else {
                // Names are short: a pattern that takes longer has none of them in mind.
                glob::matches_within(pattern, name, true, &mut steps) == Some(true)
            };
            if wanted && !found.iter().any(|(_, known)| known.name == parameter.name) {
                found.push((if plain { pattern } else { name }, parameter));
            }
        }
    }
    let own = own_options(args, world.identity, &mut steps);
    write::map_header(out, session.version, found.len() + own.len());
    for (name, parameter) in found {
        write::bulk(out, name);
        write::bulk(out, parameter.value.text(world).as_bytes());
    }
    for (name, value) in own {
        write::bulk(out, name);
        write::bulk(out, value.as_bytes());
    }
}

/// Those of ours that are asked for, each once, and by what name.
fn own_options<'a>(
    args: &Args<'a>,
    identity: &'a Identity,
    steps: &mut u64,
) -> Vec<(&'a [u8], &'a str)> {
    let mut found: Vec<(&[u8], &str, &str)> = Vec::new();
    let is_parameter = |name: &str| PARAMETERS.iter().any(|parameter| parameter.name == name);
    for pattern in args.iter().skip(2) {
        let plain = !pattern.iter().any(|byte| matches!(byte, b'[' | b'*' | b'?'));
        let own = if plain { own_name(pattern) } else { String::new() };
        let theirs = plain
            && pattern.len() <= NAME_MAX
            && std::str::from_utf8(pattern)
                .is_ok_and(|text| is_parameter(&text.to_ascii_lowercase()));
        for (name, value) in &identity.options {
            let wanted = match plain {
                true => own == *name,
                false => glob::matches_within(pattern, name.as_bytes(), true, steps) == Some(true),
            };
            // What a server has by the same spelling was answered as a server does.
            let answered = if plain { theirs } else { is_parameter(name) };
            if wanted && !answered && !found.iter().any(|(.., known)| known == name) {
                found.push((if plain { pattern } else { name.as_bytes() }, value, name));
            }
        }
    }
    found.into_iter().map(|(name, value, _)| (name, value)).collect()
}

/// No option has a longer name.
const NAME_MAX: usize = 64;

/// Flags are written with hyphens, options with underscores. Empty if it is too long for one.
fn own_name(name: &[u8]) -> String {
    if name.len() > NAME_MAX {
        return String::new();
    }
    String::from_utf8_lossy(name).to_ascii_lowercase().replace('-', "_")
}

/// Whether an option of the proxy has this name. `strict`: as it stands in the file, and no option
/// of a server has it, too.
pub fn is_own(name: &[u8], identity: &Identity, strict: bool) -> bool {
    /// Not among what is shown, but settable.
    const SECRET: [&str; 2] = ["password", "node_password"];
    let own = own_name(name);
    let known = identity.options.iter().any(|(known, _)| *known == own);
    let spelled = name.eq_ignore_ascii_case(own.as_bytes()) && own != "maxclients";
    (known || SECRET.contains(&own.as_str())) && (spelled || !strict)
}

/// Whether a server has all options of a CONFIG SET.
pub fn all_known(args: &Args) -> bool {
    let known = |name: &[u8]| {
        PARAMETERS.iter().any(|parameter| name.eq_ignore_ascii_case(parameter.name.as_bytes()))
    };
    args.iter().skip(2).step_by(2).all(known)
}

/// Names and values of CONFIG SET.
pub fn pairs_of(args: &Args) -> Vec<(String, String)> {
    let text = |at| String::from_utf8_lossy(args.get(at).unwrap_or_default()).into_owned();
    (2..args.len()).step_by(2).map(|at| (text(at), text(at + 1))).collect()
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
        if parameter.value.text(world).as_bytes() != value {
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
