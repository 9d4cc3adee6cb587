//! Flags and environment variables, up to "this option was written so".
//!
//! Not here: whether a value is right (`value`), which of two wins (`assemble`).

use std::ffi::OsString;

use lexopt::{Arg, Parser};

use super::Given;
use super::options::{Row, rows};
use super::problem::{Problem, Source, nearest};
use super::value::Raw;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Verb {
    Run,
    Check,
    Top,
    Version,
    Help,
}

/// The command line, taken apart.
#[derive(Debug)]
pub struct Arguments {
    pub verb: Verb,
    pub config_file: Option<String>,
    pub given: Vec<Given>,
    pub problems: Vec<Problem>,
}

/// The environment, taken apart.
#[derive(Debug, Default)]
pub struct Variables {
    pub config_file: Option<String>,
    pub given: Vec<Given>,
    pub problems: Vec<Problem>,
    pub warnings: Vec<String>,
}

/// Flags that are no options of the file.
const OTHER_FLAGS: [&str; 3] = ["--config", "--help", "--version"];

/// `arguments` without the program's name.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Arguments {
    let mut reader = Reader {
        out: Arguments {
            verb: Verb::Run,
            config_file: None,
            given: Vec::new(),
            problems: Vec::new(),
        },
        after_unknown: false,
    };
    let mut parser = Parser::from_args(arguments);
    loop {
        match parser.next() {
            Ok(None) => return reader.out,
            Ok(Some(Arg::Value(value))) => reader.positional(&value.to_string_lossy()),
            Ok(Some(Arg::Short('h'))) => reader.out.verb = Verb::Help,
            Ok(Some(Arg::Short('V'))) => reader.out.verb = Verb::Version,
            Ok(Some(Arg::Short(short))) => reader.unknown(&format!("-{short}"), &mut parser),
            Ok(Some(Arg::Long(long))) => {
                let flag = format!("--{long}");
                reader.long(&flag, &mut parser);
            }
            // For instance `--help=x`: lexopt says it well, and nothing secret is in flags.
            Err(_) => reader.complain("arguments", "a flag has a value that it does not take"),
        }
    }
}

struct Reader {
    out: Arguments,
    /// The last flag was unknown, so a bare word may be its value.
    after_unknown: bool,
}

impl Reader {
    fn long(&mut self, flag: &str, parser: &mut Parser) {
        self.after_unknown = false;
        match flag {
            "--help" => self.out.verb = Verb::Help,
            "--version" => self.out.verb = Verb::Version,
            "--config" => match parser.value() {
                Ok(value) => self.out.config_file = Some(value.to_string_lossy().into_owned()),
                Err(_) => self.complain(flag, "wants the path of a TOML file"),
            },
            _ => match rows().iter().find(|row| row.flag() == flag) {
                Some(row) => self.option(row, parser),
                None => self.unknown(flag, parser),
            },
        }
    }

    fn option(&mut self, row: &Row, parser: &mut Parser) {
        let flag = row.flag();
        let value = match parser.optional_value() {
            Some(value) => value,
            None if row.is_switch() => "on".into(),
            None => match parser.value() {
                Ok(value) => value,
                Err(_) => return self.complain(flag, &format!("wants {}", row.wanted)),
            },
        };
        let Some(text) = value.to_str() else {
            return self.complain(flag, "is not UTF-8");
        };
        let earlier = self.out.given.iter_mut().find(|given| given.name == row.name);
        match earlier {
            Some(Given { raw: Raw::Text(all), .. }) if row.is_list() => {
                all.push(',');
                all.push_str(text);
            }
            // As everywhere: the last one counts, so that a script can append.
            Some(earlier) => earlier.raw = Raw::Text(text.to_string()),
            None => self.out.given.push(Given {
                name: row.name,
                raw: Raw::Text(text.to_string()),
                source: Source::Flag(flag.to_string()),
            }),
        }
    }

    fn positional(&mut self, word: &str) {
        match word {
            "check" => self.out.verb = Verb::Check,
            "top" => self.out.verb = Verb::Top,
            "help" => self.out.verb = Verb::Help,
            _ if self.after_unknown => (),
            "on" | "off" | "true" | "false" | "yes" | "no" => {
                self.complain(word, "a switch takes its value after '=', as in --split-reads=off");
            }
            _ => self.complain(word, "no such command; there are 'check' and 'top'"),
        }
        self.after_unknown = false;
    }

    fn unknown(&mut self, flag: &str, parser: &mut Parser) {
        // `--reactors=4` misspelt: its value is not a mistake of its own.
        let _ = parser.optional_value();
        self.after_unknown = true;
        let known = rows().iter().map(Row::flag).chain(OTHER_FLAGS);
        let text = match nearest(flag, known) {
            Some(known) => format!("no such option; did you mean {known}?"),
            None => "no such option".to_string(),
        };
        self.complain(flag, &text);
    }

    fn complain(&mut self, what: &str, text: &str) {
        // An empty word must be seen to be one.
        let what = if what.is_empty() { "''" } else { what };
        self.out.problems.push(Problem {
            source: Source::Flag(what.to_string()),
            option: String::new(),
            value: None,
            text: text.to_string(),
        });
    }
}

/// All variables of the process; those that do not begin with `RINGWAY_` are not looked at.
///
/// An empty one counts as not set. An unknown one is only a warning: Kubernetes sets
/// `RINGWAY_PORT`, `RINGWAY_SERVICE_HOST` and more for a service of our name.
pub fn read_variables(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Variables {
    let mut out = Variables::default();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with("RINGWAY_")) else {
            continue;
        };
        if value.is_empty() {
            continue;
        }
        let source = Source::Environment(name.to_string());
        let Some(value) = value.to_str() else {
            let text = "is not UTF-8".to_string();
            out.problems.push(Problem { source, option: String::new(), value: None, text });
            continue;
        };
        if name == "RINGWAY_CONFIG" {
            out.config_file = Some(value.to_string());
        } else if let Some(row) = rows().iter().find(|row| row.variable() == name) {
            let raw = Raw::Text(value.to_string());
            out.given.push(Given { name: row.name, raw, source });
        } else if !name.starts_with("RINGWAY_PORT") && !name.starts_with("RINGWAY_SERVICE_") {
            let hint = nearest(name, rows().iter().map(Row::variable));
            let hint = hint.map_or(String::new(), |known| format!("; did you mean {known}?"));
            out.warnings.push(format!("environment variable {name} is not an option{hint}"));
        }
    }
    // The order of the environment says nothing; messages should not change with it.
    out.given.sort_by_key(|given| given.source.to_string());
    out.warnings.sort();
    out
}
