//! INFO keyspace of the whole cluster: what the primaries say, added up.
//!
//! Not here: the other sections, which are the proxy's own (`local`).

use std::collections::BTreeMap;
use std::fmt::Write;

use super::walk::found::bulk_text;
use crate::resp::{Version, write};

/// `db0:keys=2,expires=1,avg_ttl=900`, and more fields in newer servers.
#[derive(Default)]
struct Database {
    keys: u64,
    expires: u64,
    /// Milliseconds, times the keys that expire.
    ttl_sum: u128,
    /// Other counts, by name.
    others: BTreeMap<String, u64>,
}

/// Writes the section from the primaries' replies to INFO keyspace. `None`: one is no such reply.
pub fn merge(replies: &[&[u8]], version: Version, out: &mut Vec<u8>) -> Option<()> {
    let mut databases: BTreeMap<u32, Database> = BTreeMap::new();
    for reply in replies {
        let text = std::str::from_utf8(bulk_text(reply)?).ok()?;
        let text = text.strip_prefix("txt:").unwrap_or(text);
        for line in text.lines().filter_map(|line| line.strip_prefix("db")) {
            let (number, fields) = line.split_once(':')?;
            let database = databases.entry(number.parse().ok()?).or_default();
            add(database, fields.trim_end())?;
        }
    }
    let mut text = "# Keyspace\r\n".to_owned();
    for (number, Database { keys, expires, ttl_sum, others }) in databases {
        let ttl = ttl_sum.checked_div(u128::from(expires)).unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = write!(text, "db{number}:keys={keys},expires={expires},avg_ttl={ttl}");
        for (name, count) in others {
            let _ = write!(text, ",{name}={count}");
        }
        text.push_str("\r\n");
    }
    write::verbatim(out, version, b"txt", text.as_bytes());
    Some(())
}

fn add(database: &mut Database, fields: &str) -> Option<()> {
    let (mut expires, mut ttl) = (0, 0);
    for field in fields.split(',') {
        let (name, value) = field.split_once('=')?;
        let value: u64 = value.parse().ok()?;
        match name {
            "keys" => database.keys = database.keys.saturating_add(value),
            "expires" => expires = value,
            "avg_ttl" => ttl = value,
            _ => {
                let sum = database.others.entry(name.to_owned()).or_default();
                *sum = sum.saturating_add(value);
            }
        }
    }
    database.expires = database.expires.saturating_add(expires);
    database.ttl_sum += u128::from(expires) * u128::from(ttl);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(texts: &[&str], expected: Option<&str>) {
        let replies: Vec<String> =
            texts.iter().map(|text| format!("${}\r\n{text}\r\n", text.len())).collect();
        let replies: Vec<&[u8]> = replies.iter().map(|reply| reply.as_bytes()).collect();
        let mut out = Vec::new();
        let merged = merge(&replies, Version::Resp2, &mut out);
        assert_eq!(merged.is_some(), expected.is_some());
        if let Some(expected) = expected {
            assert_eq!(bulk_text(&out).map(String::from_utf8_lossy), Some(expected.into()));
        }
    }

    #[test]
    fn counts_are_added_and_ttl_is_weighed() {
        check(
            &[
                "# Keyspace\r\ndb0:keys=5,expires=1,avg_ttl=100\r\n",
                "# Keyspace\r\n",
                "# Keyspace\r\ndb0:keys=7,expires=3,avg_ttl=500,subexpiry=2\r\ndb1:keys=1,expires=0,avg_ttl=0\r\n",
            ],
            Some(
                "# Keyspace\r\ndb0:keys=12,expires=4,avg_ttl=400,subexpiry=2\r\ndb1:keys=1,expires=0,avg_ttl=0\r\n",
            ),
        );
        check(&["# Keyspace\r\n"], Some("# Keyspace\r\n"));
        check(&["# Keyspace\r\ndb0:keys=x\r\n"], None);
    }
}
