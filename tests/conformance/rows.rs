//! Every row of the command table is sent through the proxy: what is refused is refused in the
//! documented words and reaches no node; everything else answers as one plain server does, or as
//! `tests/data/rows.txt` says.
//!
//! Not here: commands with keys and right arguments (`coverage` sees to them). Here each row gets
//! as many words as it needs, mostly wrong ones.

use std::collections::{BTreeMap, BTreeSet};

use ringway::command::{COMMANDS, Class, Command, Flags};

use crate::Differences;
use crate::bench::{Bench, Side};
use crate::compare::Compare;
use crate::support::client::{Client, Got, request};
use crate::support::cluster::Flavour;
use crate::support::reply::Reply;

/// `NAME start-of-the-reply`, one a line: where we do not answer as a plain server.
const DOCUMENTED: &str = include_str!("../data/rows.txt");

fn documented() -> BTreeMap<&'static str, &'static str> {
    let lines = DOCUMENTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once("  ").expect("a name, two blanks, a reply")).collect()
}

/// The words of a row, as few as its arity allows.
fn words(command: &Command) -> Vec<String> {
    let mut words: Vec<String> = command.name.split('|').map(str::to_owned).collect();
    let wanted = usize::from(command.arity.unsigned_abs());
    while words.len() < wanted {
        words.push("1".to_owned());
    }
    words
}

fn ask(client: &mut Client, words: &[String]) -> Option<Reply> {
    client.send(&request(words));
    match client.read_patiently() {
        Got::Reply(reply) => Some(reply),
        Got::Closed | Got::Nothing => None,
    }
}

/// Errors by their first word, other replies by their type.
pub fn kind(reply: &Reply) -> String {
    let text = reply.text();
    match text.strip_prefix('-').filter(|_| reply.is_error()) {
        Some(error) => format!("-{}", error.split(' ').next().unwrap_or_default()),
        None => Compare::Type.reduce(reply),
    }
}

#[test]
fn every_row_is_answered_as_by_one_server_or_as_documented() {
    for flavour in Flavour::all() {
        let bench = Bench::start(flavour);
        let known: BTreeSet<String> = bench.command_names().into_iter().collect();
        let documented = documented();
        let mut differences = Differences::default();
        let mut unused: BTreeSet<&str> = documented.keys().copied().collect();
        for command in COMMANDS.iter() {
            let words = words(command);
            let mut client = bench.client(Side::Judged, false);
            let Some(got) = ask(&mut client, &words) else {
                panic!("{flavour:?}: no reply to {words:?}");
            };
            let place = words.join(" ");
            let refused =
                matches!(command.class, Class::Refused | Class::Module) && !command.is_container();
            if let Some(start) = documented.get(command.name) {
                unused.remove(command.name);
                let text = got.text();
                let same = text.starts_with(start);
                differences.compare(&place, start, if same { start } else { &text });
            } else if refused {
                let expected = format!(
                    "-ERR {} is not allowed through this proxy",
                    command.name.replace('|', " ")
                );
                differences.compare(&place, &expected, &got.text());
            } else if command.class == Class::ConnectionState {
                let text = got.text();
                let clear =
                    text.starts_with("-ERR") && text.contains(" not supported by this proxy");
                differences.compare(
                    &place,
                    "a clear refusal",
                    if clear { "a clear refusal" } else { &text },
                );
            } else if known.contains(command.name) {
                let mut client = bench.client(Side::Plain, false);
                let Some(plain) = ask(&mut client, &words) else { continue };
                differences.compare(&place, &kind(&plain), &kind(&got));
            }
        }
        // Nothing that lives in a connection has reached a node.
        let states = COMMANDS.iter().filter(|command| command.class == Class::ConnectionState);
        for command in states.filter(|command| !command.flags.has(Flags::MODULE)) {
            differences.compare(command.name, "0", &bench.calls_at_nodes(command.name).to_string());
        }
        assert!(unused.is_empty(), "documented, but not in the table: {unused:?}");
        differences.finish();
    }
}
