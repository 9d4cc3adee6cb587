//! HTTP for tests: one request, the whole answer. And a strict reader of Prometheus' text format.
//!
//! Not here: what is expected.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use super::{patience, seconds};

/// An answer, taken apart.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

pub fn get(port: u16, path: &str) -> Answer {
    ask(port, &format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"))
        .unwrap_or_else(|error| panic!("GET {path}: {error}"))
}

/// Sends `request` as it is. The server closes when it has answered.
pub fn ask(port: u16, request: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(patience(seconds(10))))?;
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let invalid = || std::io::Error::other(format!("no HTTP: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(invalid)?;
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.ok_or_else(invalid)?;
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

type Labels = BTreeMap<String, String>;

/// All samples of one scrape.
#[derive(Debug, Default)]
pub struct Scrape {
    /// Family: its type.
    pub families: BTreeMap<String, String>,
    pub samples: Vec<(String, Labels, f64)>,
}

impl Scrape {
    /// Reads the text format 0.0.4 as strictly as its description allows; panics at what is wrong.
    #[track_caller]
    pub fn read(text: &str) -> Scrape {
        let mut reader = Reader::default();
        assert!(text.ends_with('\n'), "the last line ends");
        text.lines().for_each(|line| reader.line(line));
        reader.end_family();
        reader.scrape
    }

    /// The sum of the samples with this name and these labels among theirs.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |own: &Labels| {
            labels.iter().all(|(label, value)| own.get(*label).map(String::as_str) == Some(value))
        };
        let samples = self.samples.iter().filter(|(own, of, _)| own == name && fits(of));
        samples.map(|(.., value)| value).sum()
    }

    /// All label values, by label.
    pub fn label_values(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut values = BTreeMap::<String, BTreeSet<String>>::new();
        for (label, value) in self.samples.iter().flat_map(|(_, labels, _)| labels) {
            values.entry(label.clone()).or_default().insert(value.clone());
        }
        values
    }
}

#[derive(Default)]
struct Reader {
    scrape: Scrape,
    family: String,
    helped: bool,
    /// Of the family: its samples' names and labels.
    seen: BTreeSet<(String, Labels)>,
    /// Of a histogram: by its other labels, the counts of its buckets.
    buckets: BTreeMap<Labels, Vec<(f64, f64)>>,
}

impl Reader {
    #[track_caller]
    fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            self.end_family();
            let (name, help) = rest.split_once(' ').expect("HELP name text");
            assert!(!self.scrape.families.contains_key(name), "{name} is one group");
            assert!(!help.is_empty(), "{line}");
            self.family = name.to_owned();
            self.helped = true;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("TYPE name type");
            assert!(self.helped && name == self.family, "HELP stands before TYPE: {line}");
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            check_name(name, true);
            self.scrape.families.insert(name.to_owned(), kind.to_owned());
            self.helped = false;
        } else {
            self.sample(line);
        }
    }

    #[track_caller]
    fn sample(&mut self, line: &str) {
        let end = line.find(['{', ' ']).expect("name and value");
        let name = &line[..end];
        check_name(name, true);
        let (labels, rest) = match line[end..].strip_prefix('{') {
            Some(rest) => read_labels(rest),
            None => (Labels::new(), &line[end..]),
        };
        let value = rest.strip_prefix(' ').expect("a blank before the value");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number in {line}"));
        let kind =
            self.scrape.families.get(&self.family).unwrap_or_else(|| panic!("no TYPE: {line}"));
        if kind == "histogram" {
            let part = name.strip_prefix(&*self.family).expect("a part of the family");
            assert!(matches!(part, "_bucket" | "_sum" | "_count"), "{line}");
            if part == "_bucket" {
                let mut others = labels.clone();
                let le = others.remove("le").expect("le");
                let le = if le == "+Inf" { f64::INFINITY } else { le.parse().expect("le") };
                self.buckets.entry(others).or_default().push((le, value));
            }
            if part == "_count" {
                let last = self.buckets.get(&labels).and_then(|buckets| buckets.last().copied());
                assert_eq!(last, Some((f64::INFINITY, value)), "{line}");
            }
        } else {
            assert_eq!(name, self.family, "{line}");
        }
        assert!(kind == "gauge" || value >= 0.0, "{line}");
        assert!(self.seen.insert((name.to_owned(), labels.clone())), "twice: {line}");
        self.scrape.samples.push((name.to_owned(), labels, value));
    }

    #[track_caller]
    fn end_family(&mut self) {
        for buckets in std::mem::take(&mut self.buckets).values() {
            let ascend = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
            assert!(buckets.windows(2).all(ascend), "{}: {buckets:?}", self.family);
        }
        self.seen.clear();
    }
}

#[track_caller]
fn check_name(name: &str, colons: bool) {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    let begins = name.starts_with(|c: char| !c.is_ascii_digit());
    assert!(begins && !name.is_empty() && name.chars().all(fits), "{name:?}");
}

/// Behind `{`: the labels, and what follows `}`.
#[track_caller]
fn read_labels(mut rest: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    loop {
        let (name, behind) = rest.split_once("=\"").expect("label=\"");
        check_name(name, false);
        let mut value = String::new();
        let mut chars = behind.char_indices();
        let end = loop {
            match chars.next().expect("the label's end") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('"' | '\\'))) => c,
                    other => panic!("{other:?} is no escape"),
                }),
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice");
        rest = &behind[end + 1..];
        match rest.as_bytes().first() {
            Some(b',') => rest = &rest[1..],
            Some(b'}') => return (labels, &rest[1..]),
            _ => panic!("a comma or a brace before {rest:?}"),
        }
    }
}
