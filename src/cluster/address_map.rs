//! From announced places to reachable ones, for NAT and port-forwards.
//!
//! Not here: where the table comes from (`config`), name resolution (`topology`).

use super::Endpoint;
use std::borrow::Cow;
use std::fmt;

/// Rules `announced -> reachable`. Three forms, the first that fits wins in this order:
/// `host:port -> host:port`; `host:* -> host:*` (that host, port kept); `*:* -> host:*` (any host,
/// port kept). One-to-one in the first form; the right side of `*` forms is always `host:*`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct AddressMap {
    exact: Vec<(Endpoint, Endpoint)>,
    hosts: Vec<(Box<str>, Box<str>)>,
    any: Option<Box<str>>,
}

/// A rule that is none: its two sides as they were given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressMapError {
    pub announced: String,
    pub reachable: String,
}

impl fmt::Display for AddressMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "address map rule {:?} -> {:?} is none of: host:port -> host:port, host:* -> host:*, \
             *:* -> host:*",
            self.announced, self.reachable
        )
    }
}

impl std::error::Error for AddressMapError {}

impl AddressMap {
    /// Reads rules as text. Fails with the first that is malformed.
    pub fn new<'a>(
        rules: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<AddressMap, AddressMapError> {
        let mut map = AddressMap::default();
        for (announced, reachable) in rules {
            map.add(announced, reachable).ok_or_else(|| AddressMapError {
                announced: announced.to_string(),
                reachable: reachable.to_string(),
            })?;
        }
        Ok(map)
    }

    /// Where an announced place is reached. Itself if no rule speaks of it.
    pub fn apply<'a>(&self, announced: &'a Endpoint) -> Cow<'a, Endpoint> {
        if let Some((_, reachable)) = self.exact.iter().find(|(from, _)| from == announced) {
            return Cow::Owned(reachable.clone());
        }
        let by_host = self.hosts.iter().find(|(from, _)| *from == announced.host);
        match by_host.map(|(_, host)| host).or(self.any.as_ref()) {
            Some(host) => Cow::Owned(Endpoint { host: host.clone(), port: announced.port }),
            None => Cow::Borrowed(announced),
        }
    }

    fn add(&mut self, announced: &str, reachable: &str) -> Option<()> {
        match (announced.strip_suffix(":*"), reachable.strip_suffix(":*")) {
            (None, None) => {
                let from = Endpoint::parse(announced.as_bytes())?;
                self.exact.push((from, Endpoint::parse(reachable.as_bytes())?));
            }
            (Some("*"), Some(host)) => self.any = Some(read_host(host)?),
            (Some(from), Some(host)) => self.hosts.push((read_host(from)?, read_host(host)?)),
            _ => return None,
        }
        Some(())
    }
}

fn read_host(host: &str) -> Option<Box<str>> {
    const ANY_PORT: u16 = 1;
    Endpoint::new(host.as_bytes(), ANY_PORT).map(|endpoint| endpoint.host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(announced: &str, reachable: &str) {
        let map = AddressMap::new([
            ("10.0.0.1:6379", "example.org:7001"),
            ("10.0.0.1:*", "gate-1:*"),
            ("fd00::1:*", "::1:*"),
            ("*:*", "gate:*"),
        ])
        .unwrap();
        let announced = Endpoint::parse(announced.as_bytes()).unwrap();
        assert_eq!(map.apply(&announced).to_string(), reachable);
    }

    #[test]
    fn the_narrowest_rule_wins() {
        check("10.0.0.1:6379", "example.org:7001");
        check("10.0.0.1:6380", "gate-1:6380");
        check("fd00::1:6380", "::1:6380");
        check("10.0.0.2:6379", "gate:6379");
    }

    #[test]
    fn without_rules_places_stay() {
        let place = Endpoint::parse(b"10.0.0.1:6379").unwrap();
        assert_eq!(*AddressMap::default().apply(&place), place);
    }

    #[test]
    fn malformed_rules_are_named() {
        for (announced, reachable) in [
            ("a", "b:1"),
            ("a:1", "b"),
            ("a:*", "b:1"),
            ("a:1", "b:*"),
            ("*:*", ":*"),
            ("?:*", "b:*"),
        ] {
            let error = AddressMap::new([("x:1", "y:1"), (announced, reachable)]).unwrap_err();
            assert_eq!((&*error.announced, &*error.reachable), (announced, reachable));
            assert!(error.to_string().contains(announced));
        }
    }
}
