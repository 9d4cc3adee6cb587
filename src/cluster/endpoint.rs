//! A node's place by name: host and port, and every written form of it.
//!
//! Not here: name resolution (`topology`), announced against reachable places (`address_map`).

use crate::limits::HOST_BYTES_MAX;
use std::fmt;

/// Host (name or IP address, never empty) and port (never 0).
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Endpoint {
    pub host: Box<str>,
    pub port: u16,
}

impl Endpoint {
    /// Takes a host from outside. None if it cannot be one: empty, `?`, over 255 bytes, or with
    /// bytes that no name or address has. Brackets around an IPv6 address are taken off.
    pub fn new(host: &[u8], port: u16) -> Option<Endpoint> {
        let bare = host.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).unwrap_or(host);
        if bare.is_empty() || bare.len() > HOST_BYTES_MAX || port == 0 {
            return None;
        }
        // Printable ASCII that cannot be a separator of any text that a host is written into.
        let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._:%".contains(b);
        if !bare.iter().all(plain) {
            return None;
        }
        let host = std::str::from_utf8(bare).ok()?;
        Some(Endpoint { host: host.into(), port })
    }

    /// Reads `host:port`, split at the last colon, so that `fd01::85:6379` and `[fd01::85]:6379`
    /// are the same. None if either part is missing or wrong.
    pub fn parse(text: &[u8]) -> Option<Endpoint> {
        let (host, port) = split_port(text)?;
        Endpoint::new(host, port)
    }
}

/// `host:port`, an IPv6 host without brackets, as nodes write it.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Where a MOVED or ASK leads: `raw` is its `host:port` part, `asked_host` the host of the node
/// that said it, which an empty host stands for. None if it does not say (`?`) or is malformed.
pub fn redirect_endpoint(raw: &[u8], asked_host: &str) -> Option<Endpoint> {
    let (host, port) = split_port(raw)?;
    Endpoint::new(if host.is_empty() { asked_host.as_bytes() } else { host }, port)
}

fn split_port(text: &[u8]) -> Option<(&[u8], u16)> {
    let colon = memchr::memrchr(b':', text)?;
    let port = parse_port(text.get(colon + 1..)?)?;
    Some((text.get(..colon)?, port))
}

/// A port in decimal, 1..=65535, digits only.
pub(super) fn parse_port(digits: &[u8]) -> Option<u16> {
    if digits.is_empty() || digits.len() > 5 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let port = digits.iter().fold(0u32, |port, digit| port * 10 + u32::from(digit - b'0'));
    u16::try_from(port).ok().filter(|&port| port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &str, expected: Option<(&str, u16)>) {
        let found = redirect_endpoint(raw.as_bytes(), "10.0.0.9");
        let found = found.as_ref().map(|endpoint| (&*endpoint.host, endpoint.port));
        assert_eq!(found, expected, "{raw:?}");
    }

    #[test]
    fn redirects_in_every_host_form_lead_somewhere_or_nowhere() {
        check("127.0.0.1:7001", Some(("127.0.0.1", 7001)));
        check(":7001", Some(("10.0.0.9", 7001)));
        check("fd01::85:14:243:18:6379", Some(("fd01::85:14:243:18", 6379)));
        check("[fd01::85]:6379", Some(("fd01::85", 6379)));
        check("::1:6379", Some(("::1", 6379)));
        check("fe80::1%eth0:6379", Some(("fe80::1%eth0", 6379)));
        check(
            "redis-0.redis.svc.cluster.local:6379",
            Some(("redis-0.redis.svc.cluster.local", 6379)),
        );
        check("node_1:6379", Some(("node_1", 6379)));
        check("?:6379", None);
        check("", None);
        check(":", None);
        check("host", None);
        check("host:", None);
        check("host:0", None);
        check("host:65536", None);
        check("host:99999999999999999999", None);
        check("host:+1", None);
        check("host:-1", None);
        check("host: 1", None);
        check("ho st:1", None);
        check("host\r\nX:1", None);
        check("h\u{f6}st:1", None);
        check(&format!("{}:1", "x".repeat(256)), None);
    }

    #[test]
    fn an_endpoint_reads_back_as_written() {
        for text in ["a:1", "::1:6379", "1.2.3.4:65535"] {
            assert_eq!(Endpoint::parse(text.as_bytes()).unwrap().to_string(), text);
        }
    }
}
