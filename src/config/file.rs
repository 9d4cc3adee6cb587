//! The TOML file, up to "this option was written so, on this line".
//!
//! Not here: opening it (`main` gives a function), whether a value is right (`value`).

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Given;
use super::options::{Scope, find, rows};
use super::problem::{Problem, Source, nearest};
use super::value::Raw;
use crate::limits::POOLS_MAX;

/// The file, taken apart.
#[derive(Debug, Default)]
pub struct File {
    pub given: Vec<Given>,
    pub pools: Vec<FilePool>,
    pub problems: Vec<Problem>,
}

/// One `[[pool]]`.
#[derive(Debug)]
pub struct FilePool {
    /// The line of its header.
    pub source: Source,
    pub given: Vec<Given>,
    pub users: Vec<FileUser>,
    /// Announced, reachable, line.
    pub address_map: Vec<(String, String, Source)>,
}

/// One `[[pool.user]]`.
#[derive(Debug)]
pub struct FileUser {
    pub source: Source,
    pub name: Option<String>,
    pub password: Option<String>,
    pub password_file: Option<String>,
}

/// `path` is for messages only.
pub fn read(path: &str, text: &str) -> File {
    let mut reader = Reader { path, text, out: File::default() };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        // Only its words: the line itself may hold a password.
        let source = reader.source(error.span().unwrap_or(0..0));
        let text = error.message().replace('\n', "; ");
        reader.complain(source, "", text);
    }
    // What is left of a file with broken syntax would give misleading mistakes.
    if reader.out.problems.is_empty() {
        reader.top(table.get_ref());
    }
    reader.out
}

struct Reader<'t> {
    path: &'t str,
    text: &'t str,
    out: File,
}

impl Reader<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let source = self.source(key.span());
            if name == "pool" {
                self.pools(value, source);
                continue;
            }
            match find(name) {
                Some(row) if row.scope == Scope::Process => {
                    self.out.given.push(Given { name: row.name, raw: raw(value), source });
                }
                Some(_) => self.complain(source, name, "belongs in a [[pool]]".to_string()),
                None => self.unknown(source, name, &with_others(Scope::Process, &["pool"])),
            }
        }
        // The parser sorts by name; people read by line.
        self.out.given.sort_by_key(|given| line_of(&given.source));
    }

    fn pools(&mut self, value: &Spanned<DeValue<'_>>, source: Source) {
        let Some(pools) = value.get_ref().as_array() else {
            return self.complain(source, "pool", "is a list: write [[pool]]".to_string());
        };
        if pools.len() > POOLS_MAX {
            return self.complain(source, "pool", format!("more than {POOLS_MAX} pools"));
        }
        for pool in pools {
            let source = self.source(pool.span());
            match pool.get_ref().as_table() {
                Some(table) => self.pool(table, source),
                None => self.complain(source, "pool", "wants a table: write [[pool]]".to_string()),
            }
        }
    }

    fn pool(&mut self, table: &DeTable<'_>, source: Source) {
        let mut pool =
            FilePool { source, given: Vec::new(), users: Vec::new(), address_map: Vec::new() };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let source = self.source(key.span());
            match (name, find(name)) {
                ("user", _) => self.users(value, source, &mut pool),
                ("address_map", _) => self.address_map(value, source, &mut pool),
                (_, Some(row)) if row.scope == Scope::Pool => {
                    pool.given.push(Given { name: row.name, raw: raw(value), source });
                }
                (_, Some(_)) => {
                    let text = "is one for the process: write it above the first [[pool]]";
                    self.complain(source, name, text.to_string());
                }
                (_, None) => {
                    let known = with_others(Scope::Pool, &["user", "address_map"]);
                    self.unknown(source, name, &known);
                }
            }
        }
        pool.given.sort_by_key(|given| line_of(&given.source));
        self.out.pools.push(pool);
    }

    fn users(&mut self, value: &Spanned<DeValue<'_>>, source: Source, pool: &mut FilePool) {
        let Some(users) = value.get_ref().as_array() else {
            return self.complain(source, "user", "is a list: write [[pool.user]]".to_string());
        };
        for user in users {
            let source = self.source(user.span());
            let Some(table) = user.get_ref().as_table() else {
                self.complain(source, "user", "wants a table: write [[pool.user]]".to_string());
                continue;
            };
            let mut out = FileUser { source, name: None, password: None, password_file: None };
            for (key, value) in table {
                let name = key.get_ref().as_ref();
                let field = match name {
                    "name" => &mut out.name,
                    "password" => &mut out.password,
                    "password_file" => &mut out.password_file,
                    _ => {
                        let known = ["name", "password", "password_file"];
                        let source = self.source(key.span());
                        self.unknown(source, name, &known);
                        continue;
                    }
                };
                match value.get_ref().as_str() {
                    Some(text) => *field = Some(text.to_string()),
                    None => {
                        let source = self.source(key.span());
                        self.complain(source, name, "wants a text in quotes".to_string());
                        // Not missing, only wrong: one mistake, one line.
                        *field = Some("?".to_string());
                    }
                }
            }
            pool.users.push(out);
        }
    }

    fn address_map(&mut self, value: &Spanned<DeValue<'_>>, source: Source, pool: &mut FilePool) {
        let Some(table) = value.get_ref().as_table() else {
            let text = "is a table: \"announced:port\" = \"reachable:port\"".to_string();
            return self.complain(source, "address_map", text);
        };
        for (key, value) in table {
            let source = self.source(key.span());
            let announced = key.get_ref().to_string();
            match value.get_ref().as_str() {
                Some(to) => pool.address_map.push((announced, to.to_string(), source)),
                None => {
                    let text = "wants \"HOST:PORT\" in quotes".to_string();
                    self.complain(source, &announced, text);
                }
            }
        }
    }

    fn unknown(&mut self, source: Source, name: &str, known: &[&str]) {
        let text = match nearest(name, known.iter().copied()) {
            Some(known) => format!("no such option; did you mean {known}?"),
            None => "no such option".to_string(),
        };
        self.complain(source, name, text);
    }

    fn complain(&mut self, source: Source, option: &str, text: String) {
        self.out.problems.push(Problem { source, option: option.to_string(), value: None, text });
    }

    fn source(&self, span: Range<usize>) -> Source {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        Source::File { path: self.path.to_string(), line }
    }
}

fn line_of(source: &Source) -> usize {
    if let Source::File { line, .. } = source { *line } else { 0 }
}

fn with_others(scope: Scope, others: &[&'static str]) -> Vec<&'static str> {
    let rows = rows().iter().filter(|row| row.scope == scope);
    rows.map(|row| row.name).chain(others.iter().copied()).collect()
}

fn raw(value: &Spanned<DeValue<'_>>) -> Raw {
    match value.get_ref() {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Boolean(value) => Raw::Boolean(*value),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix());
            parsed.map_or(Raw::Other("a number too large"), Raw::Integer)
        }
        DeValue::Array(items) => items
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::String(text) => Some(text.to_string()),
                DeValue::Integer(number) => Some(number.to_string()),
                _ => None,
            })
            .collect::<Option<Vec<String>>>()
            .map_or(Raw::Other("a list of other things"), Raw::List),
        DeValue::Float(_) => Raw::Other("a fraction"),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}
