//! Configuration: any flags, variables and file give a configuration or mistakes with their places.
//!
//! Not here: what single options mean (`src/config/tests.rs`).

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use ringway::config::{Invocation, Pool, Problems, Process, Row, Scope, Source, load, rows};
use ringway::limits;

use super::Target;
use crate::hold;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::{Take, put_piece};

pub const TARGET: Target = Target {
    name: "config",
    property: "any arguments, variables and file give a configuration or mistakes, each one line with \
               its place; an oversized file is refused; flags, variables and file that say the same \
               mean the same; no message shows a password",
    check,
    make,
    memory: (16 << 20, 2000),
    executions: 80_000,
};

const SECRET: &str = "c4n4ry-s3cr3t";

fn check(input: &[u8]) -> Result<(), String> {
    let mut take = Take(input);
    match take.byte() % 8 {
        0..3 => same_by_every_way(&mut Random::new(take.number())),
        3 if take.byte() < 4 => oversized(take.byte()),
        _ => anything(&mut take),
    }
}

type Loaded = Result<Invocation, Problems>;

fn read(file: &Option<String>, path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some("") | None => Err(io::Error::other("no such file")),
        Some("secret") => Ok(format!("{SECRET}\n")),
        Some(_) => file.clone().ok_or_else(|| io::Error::other("no such file")),
    }
}

fn loaded(
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    file: Option<String>,
) -> Loaded {
    match load(arguments, variables, &|path| read(&file, path)) {
        Err(mut problems) if plant::is(Plant::LosePlace) => {
            problems.0.iter_mut().for_each(|one| one.source = Source::Flag(String::new()));
            Err(problems)
        }
        Err(mut problems) if plant::is(Plant::TellPassword) => {
            problems.0.iter_mut().for_each(|one| one.text.push_str(SECRET));
            Err(problems)
        }
        other => other,
    }
}

fn anything(take: &mut Take) -> Result<(), String> {
    let word = |take: &mut Take| OsString::from_vec(take.piece().to_vec());
    let arguments: Vec<OsString> = (0..take.byte() % 9).map(|_| word(take)).collect();
    let variables: Vec<(OsString, OsString)> =
        (0..take.byte() % 5).map(|_| (word(take), word(take))).collect();
    let file = String::from_utf8(take.piece().to_vec()).ok();
    let lines =
        file.as_ref().map_or(0, |text| text.bytes().filter(|byte| *byte == b'\n').count() + 1);
    match loaded(arguments, variables, file) {
        Ok(Invocation::Run(config)) => {
            let complete = |pool: &Pool| !pool.listen.is_empty() && !pool.nodes.is_empty();
            hold!(
                !config.pools.is_empty() && config.pools.iter().all(complete),
                "{:?}",
                config.pools
            );
        }
        Ok(_) => {}
        Err(problems) => mistakes_are_told(&problems, lines)?,
    }
    Ok(())
}

fn mistakes_are_told(problems: &Problems, lines: usize) -> Result<(), String> {
    hold!(!problems.0.is_empty(), "refused without a mistake");
    for problem in &problems.0 {
        let placed = match &problem.source {
            Source::File { line, path } => (1..=lines.max(1)).contains(line) && !path.is_empty(),
            Source::Flag(flag) => !flag.is_empty(),
            Source::Environment(name) => name.starts_with("RINGWAY_"),
            Source::Nowhere => !problem.option.is_empty(),
        };
        hold!(placed, "{:?} of {lines} lines: {problem}", problem.source);
        let shown = problem.to_string();
        hold!(!shown.chars().any(char::is_control), "more than a line: {shown:?}");
        hold!(!problem.text.is_empty(), "nothing is said: {problem:?}");
    }
    hold!(problems.to_string().contains("--help"), "{problems}");
    Ok(())
}

fn oversized(more: u8) -> Result<(), String> {
    let most = limits::CONFIG_BYTES_MAX as usize;
    let text = "listen = \"127.0.0.1:1\"\n";
    // What just fits is always the same file, and long to read: seen once in so many times.
    let fitting = (more == 0).then_some((most, false));
    for (length, wanted) in fitting.into_iter().chain([(most + 1 + usize::from(more), true)]) {
        let file =
            format!("[[pool]]\nnodes = \"a:1\"\n{text}#{}", " ".repeat(length - text.len() - 24));
        hold!(file.len() == length, "a file of {} bytes", file.len());
        let got = loaded(vec!["--config=ringway.toml".into()], Vec::new(), Some(file));
        let refused = got.is_err() && !plant::is(Plant::SwallowMistake);
        hold!(refused == wanted, "a file of {length} bytes: {got:?}");
    }
    Ok(())
}

/// Some options by flag, by variable and in the file.
fn same_by_every_way(random: &mut Random) -> Result<(), String> {
    let mut given: Vec<(&Row, String)> = Vec::new();
    for row in rows() {
        let needed = matches!(row.name, "listen" | "nodes");
        if (needed || random.one_in(6))
            && !matches!(row.name, "password_file" | "node_password_file")
        {
            given.push((row, value_for(row, random)));
        }
    }
    let by_flag: Vec<OsString> =
        given.iter().map(|(row, value)| format!("{}={value}", row.flag()).into()).collect();
    let by_variable: Vec<(OsString, OsString)> =
        given.iter().map(|(row, value)| (row.variable().into(), value.into())).collect();
    let mut file = String::new();
    for (scope, title) in [(Scope::Process, ""), (Scope::Pool, "[[pool]]\n")] {
        file.push_str(title);
        for (row, value) in given.iter().filter(|(row, _)| row.scope == scope) {
            file.push_str(&format!("{} = {value:?}\n", row.name));
        }
    }
    let plain = vec!["--config=ringway.toml".into()];
    let ways = [
        loaded(by_flag, Vec::new(), None),
        loaded(Vec::new(), by_variable, None),
        loaded(plain, Vec::new(), Some(file.clone())),
    ];
    let told = ways.each_ref().map(meaning);
    hold!(told[0] == told[1] && told[1] == told[2], "{told:#?}\nof {file}");
    // Nothing else knows the word.
    let secret = given.iter().any(|(row, _)| row.secret);
    for way in &ways {
        let shown = match way {
            Ok(_) if !secret => continue,
            Ok(taken) => format!("{taken:?}"),
            Err(problems) => problems.to_string(),
        };
        hold!(!shown.contains(SECRET), "a password is shown: {shown}");
    }
    if let Err(problems) = &ways[2] {
        mistakes_are_told(problems, file.lines().count())?;
    }
    Ok(())
}

type Meaning<'a> = Result<(&'a Process, &'a [Pool]), Vec<Cow<'a, str>>>;

/// All but the warnings (a flag warns of the password in it) and the places.
fn meaning(way: &Loaded) -> Meaning<'_> {
    match way {
        Ok(Invocation::Run(config)) => Ok((&config.process, &config.pools)),
        Ok(other) => Err(vec![format!("{other:?}").into()]),
        Err(problems) => {
            let mut texts: Vec<_> = problems.0.iter().map(|one| Cow::from(&one.text)).collect();
            texts.sort();
            Err(texts)
        }
    }
}

fn value_for(row: &Row, random: &mut Random) -> String {
    if row.secret {
        return SECRET.repeat(random.pick(&[1, 1, 1, 50]));
    }
    let odd = random.one_in(8);
    match row.placeholder {
        _ if odd => String::from_utf8_lossy(&random.number_text()).trim().to_string() + "x",
        "on|off" => random.pick(&["on", "off", "true", "no"]).to_string(),
        "IP:PORT" => random.pick(&["127.0.0.1:6379", "[::1]:1,0.0.0.0:2"]).to_string(),
        "HOST:PORT" => random.pick(&["a:7000", "a:1, b:2,c.svc:3", "::1:6379"]).to_string(),
        "N" | "SIZE" if random.one_in(3) => random.edge().to_string(),
        _ if row.default != "none" => row.default.clone(),
        _ => random.pick(&["word", "two words", "x.y-z"]).to_string(),
    }
}

// --- inputs ------------------------------------------------------------------------------------

const FILES: [&str; 4] = [
    "maxclients = 10\nlog_level = \"debug\"\ncpus = [0, 2]\n\n[[pool]]\nname = \"cache\"\n\
     listen = [\"127.0.0.1:6379\", \"[::1]:6379\"]\nnodes = [\"a:7000\"]\npassword = \"x\"\n\
     [[pool.user]]\nname = \"bob\"\npassword_file = \"secret\"\n[pool.address_map]\n\"a:1\" = \"b:2\"\n",
    "[[pool]]\nlisten = \"127.0.0.1:1\"\nnodes = \"a:1\"\n[[pool]]\nlisten = \"127.0.0.1:2\"\nnodes = \"a:1\"\n",
    "reactors = 99999\nmemory_limit = \"1 EiB\"\n[pool]\nnodes = 3\n",
    "[[[[[[[[[[[[[[[[[[[[[[[[a = {b = {c = {}}}}\n\"\\u0007\" = 1979-05-27\n",
];

fn make(random: &mut Random) -> Vec<u8> {
    let how = random.next() as u8;
    let mut out = vec![how];
    match how % 8 {
        0..3 => {
            out.extend_from_slice(&random.next().to_be_bytes());
            return out;
        }
        // Slow, so rare.
        3 if random.one_in(100) => return [out, vec![0, random.next() as u8]].concat(),
        3 => out.push(200),
        _ => {}
    }
    let rows = rows();
    let put_words = |out: &mut Vec<u8>, count: usize, random: &mut Random, variable: bool| {
        for _ in 0..count {
            let row = &rows[random.below(rows.len())];
            let value = value_for(row, random);
            let mut word = match (variable, random.below(8)) {
                (true, 0) => "RINGWAY_CONFIG".to_string(),
                (true, _) => row.variable().to_string(),
                (_, 0) => "check".to_string(),
                (_, 1) => "--config".to_string(),
                (_, 2) => "-h".to_string(),
                (_, 3) => row.flag().to_string(),
                (_, 4) => value.clone(),
                (_, 5) => "--config=ringway.toml".to_string(),
                _ => format!("{}={value}", row.flag()),
            }
            .into_bytes();
            if random.one_in(4) {
                random.mutate(&mut word, &[]);
            }
            put_piece(out, &word);
            if variable {
                put_piece(out, value.as_bytes());
            }
        }
    };
    let count = random.below(9);
    out.push(count as u8 + 1);
    put_piece(&mut out, b"--config=ringway.toml");
    put_words(&mut out, count, random, false);
    let count = random.below(5);
    out.push(count as u8);
    put_words(&mut out, count, random, true);
    let mut file = random.pick(&FILES).as_bytes().to_vec();
    for _ in 0..random.below(3) {
        random.mutate(&mut file, &FILES.map(str::as_bytes));
    }
    put_piece(&mut out, &file);
    out
}
