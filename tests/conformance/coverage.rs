//! Every single-slot command of the table is in the data, or in the list of exceptions with its
//! reason.
//!
//! Not here: commands without keys. They are answered by the proxy, or by many nodes, and have
//! cases of their own.

use std::collections::{BTreeMap, BTreeSet};

use ringway::command::{COMMANDS, Flags};

use crate::Differences;
use crate::bench::{Bench, Side};
use crate::script;
use crate::support::cluster::Flavour;

const EXCEPTIONS: &str = include_str!("../data/uncovered.txt");

/// The rows of the crate's command table that have keys and are no module's.
fn commands_with_keys() -> Vec<String> {
    let rows = COMMANDS.iter().filter(|row| !row.keys.is_empty() && !row.flags.has(Flags::MODULE));
    let names: Vec<String> = rows.map(|row| row.name.to_owned()).collect();
    assert!(names.len() > 200, "only {} commands with keys in the table", names.len());
    names
}

fn exceptions() -> BTreeMap<String, String> {
    let lines = EXCEPTIONS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (name, reason) = line.split_once(' ').expect("a name and a reason");
        (name.to_owned(), reason.trim().to_owned())
    };
    lines.map(entry).collect()
}

/// Names used in the data for a flavour, with `CONTAINER|SUB` for each first pair of words as well.
fn covered(flavour: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for script in script::read_all(crate::DATA) {
        if script.only.as_ref().is_some_and(|only| only != flavour) {
            continue;
        }
        for step in script.steps.iter().filter(|step| !step.direct) {
            let word = |i: usize| {
                let word = step.args.get(i).map_or(b"".as_slice(), Vec::as_slice);
                String::from_utf8_lossy(word).to_uppercase()
            };
            names.insert(format!("{}|{}", word(0), word(1)));
            names.insert(word(0));
        }
    }
    names
}

#[test]
fn every_command_with_keys_is_compared_or_excused() {
    for flavour in Flavour::all() {
        let bench = Bench::start(flavour);
        let known: BTreeSet<String> = bench.command_names().into_iter().collect();
        let covered = covered(&format!("{flavour:?}").to_lowercase());
        let exceptions = exceptions();
        let table = commands_with_keys();
        let on_server: Vec<&String> = table.iter().filter(|name| known.contains(*name)).collect();
        let missing: Vec<_> = on_server
            .iter()
            .filter(|n| !covered.contains(**n) && !exceptions.contains_key(**n))
            .collect();
        let both: Vec<_> = exceptions
            .keys()
            .filter(|name| on_server.contains(name) && covered.contains(*name))
            .collect();
        let unknown: Vec<_> = exceptions.keys().filter(|name| !table.contains(name)).collect();
        println!(
            "{flavour:?}: {} commands with keys, {} excused; the table has {} more that this server lacks",
            on_server.len(),
            on_server.iter().filter(|name| exceptions.contains_key(**name)).count(),
            table.len() - on_server.len(),
        );
        assert!(missing.is_empty(), "{flavour:?}: neither compared nor excused: {missing:?}");
        assert!(both.is_empty(), "excused, but compared: {both:?}");
        assert!(unknown.is_empty(), "excused, but not in the table: {unknown:?}");
        check_too_few_words(&bench, &on_server);
    }
}

/// Each command alone, in upper and in lower case: the arity error must be the server's.
fn check_too_few_words(bench: &Bench, names: &[&String]) {
    let refused = exceptions();
    let mut differences = Differences::default();
    let mut sides = [Side::Plain, Side::Judged].map(|side| bench.client(side, false));
    for name in names {
        if refused.get(*name).is_some_and(|reason| reason.contains("refused")) {
            continue;
        }
        for written in [name.to_string(), name.to_lowercase()] {
            let line = written.replace('|', " ");
            let texts = sides.each_mut().map(|client| client.run(&line).text());
            // SUNSUBSCRIBE needs no words.
            if texts[0].starts_with('-') {
                differences.compare(&line, &texts[0], &texts[1]);
            }
        }
    }
    differences.finish();
}
