//! Where keys are, against a real server: the same words to COMMAND GETKEYS and to our rules.
//!
//! Not here: recorded answers (`main`).

use crate::shared::random::Random;
use crate::shared::targets::{keys_in, words};
use crate::support::client::{Client, request};
use crate::support::cluster::{Flavour, Single};
use crate::support::reply::Reply;

/// Commands of which the table says more, or something else, than GETKEYS does, and why.
const ELSE: [(&str, &str); 9] = [
    ("SORT", "GETKEYS takes an option's value for STORE (keys_tests.rs)"),
    ("GEORADIUS", "of two STORE the last is written, GETKEYS says the first"),
    ("GEORADIUSBYMEMBER", "the same"),
    ("XREAD", "a stream may be called STREAMS, which GETKEYS looks for from the front"),
    ("XREADGROUP", "the same"),
    ("MIGRATE", "AUTH's password may be KEYS"),
    ("SPUBLISH", "GETKEYS lists no channels"),
    ("SSUBSCRIBE", "the same"),
    ("SUNSUBSCRIBE", "the same"),
];

const QUESTIONS: usize = 20_000;
const AT_ONCE: usize = 200;

#[test]
fn keys_are_where_the_server_says() {
    let questions =
        if std::env::var_os("RINGWAY_LONG").is_some() { QUESTIONS * 20 } else { QUESTIONS };
    let server = Single::start(Flavour::Redis);
    let mut client = server.node.client();
    let mut random = Random::new(crate::seed());
    let (mut compared, mut differences) = (0, Vec::new());
    for _ in 0..questions / AT_ONCE {
        let all: Vec<Vec<Vec<u8>>> = (0..AT_ONCE).map(|_| words(&mut random)).collect();
        for (words, told) in all.iter().zip(ask(&mut client, &all)) {
            let known = words[0].to_ascii_uppercase();
            if ELSE.iter().any(|(name, _)| name.as_bytes() == known) {
                continue;
            }
            // An error of the server's says that the words are no legal request, or have no keys.
            let Reply::Array(keys) = told else { continue };
            let told: Vec<Vec<u8>> = keys.iter().map(|key| key.bytes().to_vec()).collect();
            // Words that we doubt go where the node can judge them.
            let Some(found) = keys_in(words) else { continue };
            compared += 1;
            if found != told {
                let show = |list: &[Vec<u8>]| list.join(&b' ').escape_ascii().to_string();
                let (found, told) = (show(&found), show(&told));
                differences.push(format!("{}: ours {found:?}, theirs {told:?}", show(words)));
            }
        }
    }
    println!("{compared} of {questions} compared");
    assert!(compared > questions / 10, "only {compared} requests could be compared");
    let count = differences.len();
    differences.truncate(20);
    assert!(count == 0, "{count} differ:\n{}", differences.join("\n"));
}

fn ask(client: &mut Client, all: &[Vec<Vec<u8>>]) -> Vec<Reply> {
    let question = |words: &Vec<Vec<u8>>| {
        let mut question = vec![b"COMMAND".to_vec(), b"GETKEYS".to_vec()];
        question.extend_from_slice(words);
        request(&question)
    };
    client.send(&all.iter().flat_map(question).collect::<Vec<u8>>());
    all.iter().map(|_| client.read()).collect()
}
