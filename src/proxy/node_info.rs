//! The sections of INFO that only the nodes know, added up over the primaries, and put into the
//! proxy's own text.
//!
//! Not here: the other sections (`local`), who is asked (`fanout`).

use std::collections::BTreeMap;
use std::fmt::Write;

use super::walk::found::bulk_text;
use crate::resp::{Version, write};

/// As INFO is asked for them; their titles begin with a capital.
pub const SECTIONS: [&str; 4] = ["commandstats", "errorstats", "latencystats", "keyspace"];

/// What one line counts: `keys=2,expires=1,avg_ttl=900`, `calls=1,usec=3,usec_per_call=3.00`. In
/// the order of the node that named it first.
#[derive(Default)]
struct Line {
    fields: Vec<(String, Field)>,
}

enum Field {
    Sum(u64),
    /// A mean: the sum of what it is the mean of, and of how many. Nodes say the mean alone.
    Mean {
        total: u128,
        of: u64,
        decimals: bool,
    },
    /// As the node wrote it for which it is highest.
    Highest(f64, String),
}

/// Lines by number, where they have one (databases), and name.
type Lines = BTreeMap<(u32, String), Line>;

/// Writes `own` with the lines of the primaries' replies behind the titles of `SECTIONS`. `None`:
/// one of them is no reply to INFO.
pub fn merge(own: &[u8], replies: &[&[u8]], version: Version, out: &mut Vec<u8>) -> Option<()> {
    let mut sections: BTreeMap<&str, Lines> = BTreeMap::new();
    for reply in replies {
        let text = std::str::from_utf8(bulk_text(reply)?).ok()?;
        let text = text.strip_prefix("txt:").unwrap_or(text);
        let mut current = None;
        for line in text.lines().map(str::trim_end) {
            if let Some(title) = line.strip_prefix("# ") {
                current = section_of(title);
            } else if let (Some(section), Some((name, fields))) = (current, line.split_once(':')) {
                let number = name.strip_prefix("db").and_then(|digits| digits.parse().ok());
                let key = (number.unwrap_or(0), name.to_owned());
                add(sections.entry(section).or_default().entry(key).or_default(), fields)?;
            }
        }
    }
    let mut text = String::new();
    for line in std::str::from_utf8(own).ok()?.split_inclusive("\r\n") {
        text.push_str(line);
        let section = line.strip_prefix("# ").and_then(|title| section_of(title.trim_end()));
        for ((_, name), line) in section.and_then(|name| sections.get(name)).into_iter().flatten() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{name}:{line}\r\n");
        }
    }
    write::verbatim(out, version, b"txt", text.as_bytes());
    Some(())
}

fn section_of(title: &str) -> Option<&'static str> {
    SECTIONS.into_iter().find(|name| name.eq_ignore_ascii_case(title))
}

fn add(line: &mut Line, fields: &str) -> Option<()> {
    let pairs: Option<Vec<(&str, &str)>> =
        fields.split(',').map(|field| field.split_once('=')).collect();
    let pairs = pairs?;
    let count = |wanted: &str| -> u64 {
        let found = pairs.iter().find(|(name, _)| *name == wanted);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    };
    for &(name, value) in &pairs {
        let new = match name {
            "avg_ttl" => {
                let of = count("expires");
                let total = u128::from(value.parse::<u64>().ok()?) * u128::from(of);
                Field::Mean { total, of, decimals: false }
            }
            "usec_per_call" => {
                let (total, of) = (u128::from(count("usec")), count("calls"));
                Field::Mean { total, of, decimals: true }
            }
            // Percentiles cannot be added up: the slowest node's.
            _ if value.contains('.') => Field::Highest(value.parse().ok()?, value.to_owned()),
            _ => Field::Sum(value.parse().ok()?),
        };
        match line.fields.iter_mut().find(|(known, _)| known == name) {
            None => line.fields.push((name.to_owned(), new)),
            Some((_, known)) => known.add(new),
        }
    }
    Some(())
}

impl Field {
    fn add(&mut self, other: Field) {
        match (self, other) {
            (Field::Sum(sum), Field::Sum(more)) => *sum = sum.saturating_add(more),
            (Field::Mean { total, of, .. }, Field::Mean { total: more, of: again, .. }) => {
                *total = total.saturating_add(more);
                *of = of.saturating_add(again);
            }
            (Field::Highest(value, text), Field::Highest(other, instead)) if other > *value => {
                (*value, *text) = (other, instead);
            }
            // Or the nodes do not agree on what it is: the first one's.
            _ => (),
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        for (place, (name, field)) in self.fields.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{name}=")?;
            match field {
                Field::Sum(sum) => write!(f, "{sum}")?,
                Field::Highest(_, text) => f.write_str(text)?,
                Field::Mean { total, of, decimals: false } => {
                    write!(f, "{}", total.checked_div(u128::from(*of)).unwrap_or(0))?;
                }
                Field::Mean { total, of, .. } => {
                    let hundredths = (total * 100).checked_div(u128::from(*of)).unwrap_or(0);
                    write!(f, "{}.{:02}", hundredths / 100, hundredths % 100)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(own: &str, texts: &[&str], expected: Option<&str>) {
        let replies: Vec<String> =
            texts.iter().map(|text| format!("${}\r\n{text}\r\n", text.len())).collect();
        let replies: Vec<&[u8]> = replies.iter().map(|reply| reply.as_bytes()).collect();
        let mut out = Vec::new();
        let merged = merge(own.as_bytes(), &replies, Version::Resp2, &mut out);
        assert_eq!(merged.is_some(), expected.is_some());
        if let Some(expected) = expected {
            assert_eq!(bulk_text(&out).map(String::from_utf8_lossy), Some(expected.into()));
        }
    }

    #[test]
    fn counts_are_added_and_ttl_is_weighed() {
        check(
            "# Keyspace\r\n",
            &[
                "# Keyspace\r\ndb0:keys=5,expires=1,avg_ttl=100\r\n",
                "# Keyspace\r\n",
                "# Keyspace\r\ndb0:keys=7,expires=3,avg_ttl=500,subexpiry=2\r\ndb10:keys=1,expires=0,avg_ttl=0\r\ndb2:keys=1,expires=0,avg_ttl=0\r\n",
            ],
            Some(
                "# Keyspace\r\ndb0:keys=12,expires=4,avg_ttl=400,subexpiry=2\r\ndb2:keys=1,expires=0,avg_ttl=0\r\ndb10:keys=1,expires=0,avg_ttl=0\r\n",
            ),
        );
        check("# Keyspace\r\n", &["# Keyspace\r\n"], Some("# Keyspace\r\n"));
        check("# Keyspace\r\n", &["# Keyspace\r\ndb0:keys=x\r\n"], None);
    }

    #[test]
    fn sections_of_the_nodes_stand_behind_their_titles_in_the_own_text() {
        check(
            "# Server\r\na:1\r\n\r\n# Commandstats\r\n\r\n# Errorstats\r\n\r\n# Latencystats\r\n",
            &[
                "# Server\r\na:2\r\n\r\n# Commandstats\r\ncmdstat_get:calls=1,usec=2,usec_per_call=2.00,rejected_calls=0\r\n\r\n# Errorstats\r\nerrorstat_ERR:count=2\r\n# Latencystats\r\nlatency_percentiles_usec_get:p50=1.003,p99=9.023\r\n",
                "# Commandstats\r\ncmdstat_get:calls=2,usec=5,usec_per_call=2.50,rejected_calls=3\r\n# Errorstats\r\nerrorstat_ERR:count=1\r\n# Latencystats\r\nlatency_percentiles_usec_get:p50=2.003,p99=7.007\r\n",
            ],
            Some(
                "# Server\r\na:1\r\n\r\n# Commandstats\r\ncmdstat_get:calls=3,usec=7,usec_per_call=2.33,rejected_calls=3\r\n\r\n# Errorstats\r\nerrorstat_ERR:count=3\r\n\r\n# Latencystats\r\nlatency_percentiles_usec_get:p50=2.003,p99=9.023\r\n",
            ),
        );
    }
}
