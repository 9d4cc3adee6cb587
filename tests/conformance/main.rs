//! The same bytes to one plain server and to the proxy in front of a cluster; the replies must be
//! the same.
//!
//! Not here: what only a cluster can show (`tests/cases`).

mod bench;
mod compare;
mod coverage;
mod modes;
mod rows;
mod script;
mod streams;
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::fmt::Write as _;

use bench::{Bench, Side};
use script::{Script, Step};
use support::client::{Client, Got, request};
use support::cluster::Flavour;
use support::reply::Reply;

const DATA: &str = include_str!("../data/conformance.txt");

#[test]
fn scripts_on_redis_answer_as_one_server() {
    check_scripts(Flavour::Redis);
}

#[test]
fn scripts_on_valkey_answer_as_one_server() {
    check_scripts(Flavour::Valkey);
}

fn check_scripts(flavour: Flavour) {
    if !Flavour::all().contains(&flavour) {
        eprintln!("no {flavour:?} server here: left out");
        return;
    }
    let bench = Bench::start(flavour);
    let mut differences = Differences::default();
    for script in script::read_all(DATA) {
        let name = format!("{flavour:?}").to_lowercase();
        if script.only.as_ref().is_some_and(|only| *only != name) || !is_wanted(&script.title) {
            continue;
        }
        for resp3 in [false, true] {
            run_line_by_line(&bench, &script, resp3, &mut differences);
            if script.fits_one_write() {
                run_in_one_write(&bench, &script, resp3, &mut differences);
            }
        }
    }
    differences.finish();
}

/// `RINGWAY_SCRIPT=text` runs only the scripts whose title holds the text.
fn is_wanted(title: &str) -> bool {
    std::env::var("RINGWAY_SCRIPT").map_or(true, |part| title.contains(&part))
}

/// Found differences, all shown at the end.
#[derive(Default)]
struct Differences {
    compared: usize,
    texts: Vec<String>,
}

const SHOWN_MAX: usize = 60;

impl Differences {
    fn compare(&mut self, place: &str, expected: &str, got: &str) {
        self.compared += 1;
        if expected != got {
            self.texts.push(format!("{place}\n    server {expected}\n    proxy  {got}"));
        }
    }

    fn finish(self) {
        println!("{} replies compared", self.compared);
        let mut report = String::new();
        for text in self.texts.iter().take(SHOWN_MAX) {
            let _ = writeln!(report, "{text}");
        }
        let count = self.texts.len();
        assert!(count == 0, "{count} of {} replies differ:\n{report}", self.compared);
        assert!(self.compared > 0, "nothing was compared");
    }
}

fn place(script: &Script, step: &Step, resp3: bool, how: &str) -> String {
    let version = if resp3 { "RESP3" } else { "RESP2" };
    format!("line {} ({}, {version}, {how}): {}", step.line, script.title, step.text)
}

fn run_line_by_line(bench: &Bench, script: &Script, resp3: bool, differences: &mut Differences) {
    bench.empty();
    let mut sides = [Side::Plain, Side::Judged].map(|side| bench.client(side, resp3));
    let mut kept: [HashMap<String, Vec<u8>>; 2] = Default::default();
    for step in &script.steps {
        if step.direct {
            bench.direct(&step.args);
            continue;
        }
        let mut texts = Vec::new();
        for (client, kept) in sides.iter_mut().zip(&mut kept) {
            client.send(&request(&fill_in(&step.args, kept)));
            let Some(reply) = next_reply(client) else {
                texts.push("no reply, or closed".to_owned());
                continue;
            };
            if let Some(name) = &step.keep {
                kept.insert(name.clone(), reply.bytes().to_vec());
            }
            texts.push(step.compare.reduce(&reply));
        }
        differences.compare(&place(script, step, resp3, "one by one"), &texts[0], &texts[1]);
        if texts.iter().any(|text| text == "no reply, or closed") {
            return;
        }
    }
}

fn run_in_one_write(bench: &Bench, script: &Script, resp3: bool, differences: &mut Differences) {
    bench.empty();
    script.steps.iter().filter(|step| step.direct).for_each(|step| bench.direct(&step.args));
    let mut sides = [Side::Plain, Side::Judged].map(|side| bench.client(side, resp3));
    let steps: Vec<&Step> = script.steps.iter().filter(|step| !step.direct).collect();
    let bytes: Vec<u8> = steps.iter().flat_map(|step| request(&step.args)).collect();
    for client in &mut sides {
        client.send(&bytes);
    }
    for step in steps {
        let texts = sides.each_mut().map(|client| match next_reply(client) {
            Some(reply) => step.compare.reduce(&reply),
            None => "no reply, or closed".to_owned(),
        });
        differences.compare(&place(script, step, resp3, "one write"), &texts[0], &texts[1]);
        if texts.iter().any(|text| text == "no reply, or closed") {
            return;
        }
    }
}

fn next_reply(client: &mut Client) -> Option<Reply> {
    match client.read_patiently() {
        Got::Reply(reply) => Some(reply),
        Got::Closed | Got::Nothing => None,
    }
}

fn fill_in(args: &[Vec<u8>], kept: &HashMap<String, Vec<u8>>) -> Vec<Vec<u8>> {
    let fill = |arg: &Vec<u8>| {
        let name = arg.strip_prefix(b"%").and_then(|name| std::str::from_utf8(name).ok());
        name.and_then(|name| kept.get(name)).unwrap_or(arg).clone()
    };
    args.iter().map(fill).collect()
}
