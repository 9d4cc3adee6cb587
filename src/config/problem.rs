//! A mistake in the configuration: which option, which value, what is wanted, where it stands.
//!
//! Not here: finding the mistakes (`value` for single options, `assemble` for their relations).

use std::borrow::Cow;
use std::fmt;

/// Where a value was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The flag as it was written, with its dashes.
    Flag(String),
    /// The name of the environment variable.
    Environment(String),
    /// File and line; lines count from 1.
    File { path: String, line: usize },
    /// Nowhere in particular: something is missing.
    Nowhere,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(flag) => f.write_str(flag),
            Source::Environment(name) => f.write_str(name),
            Source::File { path, line } => write!(f, "{path}:{line}"),
            Source::Nowhere => f.write_str("configuration"),
        }
    }
}

/// One mistake. `Display` is one line without the program's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub source: Source,
    /// Name of the option; empty when no single one is meant.
    pub option: String,
    /// The value as it was given, already without secrets; `None` when there is none to show.
    pub value: Option<String>,
    /// What is wrong, with the range: lowercase, no full stop.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (option, text) = (one_line(&self.option), one_line(&self.text));
        if self.source == Source::Nowhere {
            return write!(f, "{option}: {text}");
        }
        write!(f, "{}", one_line(&self.source.to_string()))?;
        let named_by_source = matches!(self.source, Source::Flag(_) | Source::Environment(_));
        match (&self.value, named_by_source || self.option.is_empty()) {
            (Some(value), true) => write!(f, " {value:?}: {text}"),
            (Some(value), false) => write!(f, ": {option} = {value:?}: {text}"),
            (None, true) => write!(f, ": {text}"),
            (None, false) => write!(f, ": {option}: {text}"),
        }
    }
}

/// As it is, but for what would move the cursor of a terminal or begin a line: names of options are
/// outside data too.
fn one_line(text: &str) -> Cow<'_, str> {
    match text.chars().any(char::is_control) {
        false => Cow::Borrowed(text),
        true => text.chars().flat_map(shown).collect::<String>().into(),
    }
}

fn shown(c: char) -> impl Iterator<Item = char> {
    let escaped = c.is_control().then(|| c.escape_default());
    let plain = (!c.is_control()).then_some(c);
    escaped.into_iter().flatten().chain(plain)
}

/// All mistakes of one configuration, in the order of their sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => writeln!(f, "1 mistake in the configuration:")?,
            n => writeln!(f, "{n} mistakes in the configuration:")?,
        }
        for problem in &self.0 {
            writeln!(f, "  {problem}")?;
        }
        f.write_str("'ringway --help' lists every option with its range.")
    }
}

/// The candidate that `name` most probably meant, if one is near enough.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let farthest = 1 + name.len() / 4;
    // A byte more or less is an edit, so most candidates need no closer look.
    let may_be_near = |candidate: &&str| {
        name.len().abs_diff(candidate.len()) <= farthest || candidate.contains(name)
    };
    candidates
        .filter(may_be_near)
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|&(distance, candidate)| {
            distance <= farthest || (name.len() >= 4 && candidate.contains(name))
        })
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance in bytes. Both are names, so short.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let substituted = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = substituted.min(*cell + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: Option<&str>) {
        let names = ["listen", "nodes", "reactors", "maxclients", "request_timeout_ms"];
        assert_eq!(nearest(name, names.into_iter()), expected);
    }

    #[test]
    fn misspelt_name_finds_its_neighbour() {
        check("listn", Some("listen"));
        check("reactor", Some("reactors"));
        check("max_clients", Some("maxclients"));
        check("request_timeout", Some("request_timeout_ms"));
        check("colour", None);
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
