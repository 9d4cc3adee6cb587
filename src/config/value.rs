//! From what was written to a typed value, or to the words that say what is wanted.
//!
//! Not here: which options there are (`options`), where the writing came from (`arguments`,
//! `file`).

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::cluster::Endpoint;

use crate::secret::Secret;

/// What somebody wrote, before we know what it means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Raw {
    /// A flag's or variable's value, or a text in the file.
    Text(String),
    /// A number in the file. Kept wide, so that no value is cut before it is judged.
    Integer(i128),
    Boolean(bool),
    List(Vec<String>),
    /// Something that no option takes: a table, a date, a fraction.
    Other(&'static str),
}

impl Raw {
    /// How a message shows it.
    pub fn show(&self) -> String {
        match self {
            Raw::Text(text) => without_login(text),
            Raw::Integer(number) => number.to_string(),
            Raw::Boolean(value) => value.to_string(),
            Raw::List(items) => {
                items.iter().map(|item| without_login(item)).collect::<Vec<_>>().join(",")
            }
            Raw::Other(kind) => (*kind).to_string(),
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Raw::Text(text) => Some(text),
            _ => None,
        }
    }

    fn items(&self) -> Option<Vec<&str>> {
        match self {
            Raw::Text(text) => Some(text.split(',').map(str::trim).collect()),
            Raw::List(items) => Some(items.iter().map(String::as_str).collect()),
            _ => None,
        }
    }
}

/// Somebody may write `redis://:password@host:6379` where an address belongs.
fn without_login(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}"),
        None => text.to_string(),
    }
}

/// What an option's values must satisfy beyond their type.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Range {
    /// From, to; both included.
    Number(u64, u64),
    /// The same, and a power of two.
    PowerOfTwo(u64, u64),
    /// Bytes, from, to; texts such as `64kb`, `1 MiB` are understood (steps of 1024).
    Bytes(u64, u64),
    /// Free text of at most so many bytes.
    Text(usize),
    /// A word of letters, digits, `-`, `_`, `.`.
    Word,
    /// Dotted numbers, as in `7.2.5`.
    Version,
    /// The type says it all.
    Any,
}

/// A type that an option can have.
pub trait Value: Sized {
    /// Stands for the value in `--help`.
    const PLACEHOLDER: &'static str;

    /// The value, or what is wanted instead.
    fn read(raw: &Raw, range: Range) -> Result<Self, String>;

    /// As `--help` and README.md show a default.
    fn show(&self, range: Range) -> String;

    /// The range in words.
    fn wanted(range: Range) -> String;
}

impl Value for u64 {
    const PLACEHOLDER: &'static str = "N";

    fn read(raw: &Raw, range: Range) -> Result<u64, String> {
        let number = match raw {
            Raw::Integer(number) => u64::try_from(*number).ok(),
            Raw::Text(text) if matches!(range, Range::Bytes(..)) => parse_bytes(text),
            Raw::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        number.filter(|&number| in_range(number, range)).ok_or_else(|| Self::wanted(range))
    }

    fn show(&self, range: Range) -> String {
        if matches!(range, Range::Bytes(..)) { show_bytes(*self) } else { self.to_string() }
    }

    fn wanted(range: Range) -> String {
        match range {
            Range::Number(from, to) => format!("a number from {from} to {to}"),
            Range::PowerOfTwo(from, to) => format!("a power of two from {from} to {to}"),
            Range::Bytes(from, to) => {
                format!("a size from {} to {}", show_bytes(from), show_bytes(to))
            }
            _ => "a number".to_string(),
        }
    }
}

fn in_range(number: u64, range: Range) -> bool {
    match range {
        Range::Number(from, to) | Range::Bytes(from, to) => (from..=to).contains(&number),
        Range::PowerOfTwo(from, to) => number.is_power_of_two() && (from..=to).contains(&number),
        _ => true,
    }
}

/// The narrow numbers are read as `u64`; their ranges in `options` keep them inside the type.
macro_rules! narrow_number {
    ($($type:ty)*) => { $(
        impl Value for $type {
            const PLACEHOLDER: &'static str = "N";

            fn read(raw: &Raw, range: Range) -> Result<$type, String> {
                <$type>::try_from(u64::read(raw, range)?).map_err(|_| Self::wanted(range))
            }

            fn show(&self, range: Range) -> String {
                u64::from(*self).show(range)
            }

            fn wanted(range: Range) -> String {
                u64::wanted(range)
            }
        }
    )* };
}
narrow_number!(u8 u16 u32);

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

fn show_bytes(bytes: u64) -> String {
    for (name, unit) in UNITS {
        if bytes >= unit && bytes % unit == 0 {
            return format!("{} {name}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// `4096`, `64k`, `64kb`, `64 KiB`: all in steps of 1024, as redis.conf has it for `kb`.
fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

impl Value for bool {
    const PLACEHOLDER: &'static str = "on|off";

    fn read(raw: &Raw, range: Range) -> Result<bool, String> {
        match raw {
            Raw::Boolean(value) => Ok(*value),
            Raw::Text(text) => match text.trim() {
                "true" | "yes" | "on" => Ok(true),
                "false" | "no" | "off" => Ok(false),
                _ => Err(Self::wanted(range)),
            },
            _ => Err(Self::wanted(range)),
        }
    }

    fn show(&self, _: Range) -> String {
        if *self { "on" } else { "off" }.to_string()
    }

    fn wanted(_: Range) -> String {
        "on or off (in the file: true or false)".to_string()
    }
}

impl Value for String {
    const PLACEHOLDER: &'static str = "TEXT";

    fn read(raw: &Raw, range: Range) -> Result<String, String> {
        raw.text()
            .filter(|text| text_fits(text, range))
            .map(str::to_string)
            .ok_or_else(|| Self::wanted(range))
    }

    fn show(&self, _: Range) -> String {
        self.clone()
    }

    fn wanted(range: Range) -> String {
        match range {
            Range::Word => "1 to 64 letters, digits, '-', '_' or '.'".to_string(),
            Range::Version => "a version of two or three numbers such as 7.2.5".to_string(),
            Range::Text(max) => format!("a text of 1 to {max} bytes without control characters"),
            _ => "a text".to_string(),
        }
    }
}

fn text_fits(text: &str, range: Range) -> bool {
    match range {
        Range::Word => {
            let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            (1..=64).contains(&text.len()) && text.bytes().all(word)
        }
        Range::Version => {
            let number = |part: &str| {
                (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
            };
            (2..=3).contains(&text.split('.').count()) && text.split('.').all(number)
        }
        Range::Text(max) => (1..=max).contains(&text.len()) && !text.chars().any(char::is_control),
        _ => true,
    }
}

/// An option without a default: absent until somebody gives it.
impl<T: Value> Value for Option<T> {
    const PLACEHOLDER: &'static str = T::PLACEHOLDER;

    fn read(raw: &Raw, range: Range) -> Result<Option<T>, String> {
        T::read(raw, range).map(Some)
    }

    fn show(&self, range: Range) -> String {
        self.as_ref().map_or_else(|| "none".to_string(), |value| value.show(range))
    }

    fn wanted(range: Range) -> String {
        T::wanted(range)
    }
}

impl Value for Secret {
    const PLACEHOLDER: &'static str = "TEXT";

    fn read(raw: &Raw, range: Range) -> Result<Secret, String> {
        let text = raw.text().filter(|text| (1..=512).contains(&text.len()));
        text.map(|text| Secret::new(text.as_bytes())).ok_or_else(|| Self::wanted(range))
    }

    fn show(&self, _: Range) -> String {
        "***".to_string()
    }

    fn wanted(_: Range) -> String {
        "a text of 1 to 512 bytes (in quotes in the file)".to_string()
    }
}

impl Value for PathBuf {
    const PLACEHOLDER: &'static str = "FILE";

    fn read(raw: &Raw, range: Range) -> Result<PathBuf, String> {
        let text = raw.text().filter(|text| !text.is_empty());
        text.map(PathBuf::from).ok_or_else(|| Self::wanted(range))
    }

    fn show(&self, _: Range) -> String {
        self.display().to_string()
    }

    fn wanted(_: Range) -> String {
        "the path of a file".to_string()
    }
}

/// How much is logged: this level and those before it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

impl LogLevel {
    const ALL: [(LogLevel, &'static str); 4] = [
        (LogLevel::Error, "error"),
        (LogLevel::Warn, "warn"),
        (LogLevel::Info, "info"),
        (LogLevel::Debug, "debug"),
    ];
}

impl Value for LogLevel {
    const PLACEHOLDER: &'static str = "LEVEL";

    fn read(raw: &Raw, range: Range) -> Result<LogLevel, String> {
        let text = raw.text().unwrap_or_default();
        let found = LogLevel::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(level, _)| *level).ok_or_else(|| Self::wanted(range))
    }

    fn show(&self, _: Range) -> String {
        let found = LogLevel::ALL.iter().find(|(level, _)| level == self);
        found.map_or("", |(_, name)| name).to_string()
    }

    fn wanted(_: Range) -> String {
        "error, warn, info or debug".to_string()
    }
}

/// CPU numbers in the order given, each once. Empty: none chosen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cpus(pub Vec<usize>);

impl Cpus {
    /// Linux' own upper bound for a stock kernel (`CONFIG_NR_CPUS` 8192).
    const MAX: usize = 8191;

    fn parse(items: &[&str]) -> Option<Cpus> {
        let mut cpus = Vec::new();
        for item in items {
            let (from, to) = item.split_once('-').unwrap_or((item, item));
            let (from, to) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
            if from > to || to > Cpus::MAX {
                return None;
            }
            for cpu in from..=to {
                if cpus.contains(&cpu) {
                    return None;
                }
                cpus.push(cpu);
            }
        }
        (!cpus.is_empty()).then_some(Cpus(cpus))
    }
}

impl Value for Cpus {
    const PLACEHOLDER: &'static str = "LIST";

    fn read(raw: &Raw, range: Range) -> Result<Cpus, String> {
        let cpus = match raw {
            Raw::Integer(number) => Cpus::parse(&[&number.to_string()]),
            _ => raw.items().and_then(|items| Cpus::parse(&items)),
        };
        cpus.ok_or_else(|| Self::wanted(range))
    }

    fn show(&self, _: Range) -> String {
        if self.0.is_empty() {
            return "none".to_string();
        }
        self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    fn wanted(_: Range) -> String {
        "CPU numbers such as 0,2-3, each once".to_string()
    }
}

/// The address of the admin endpoint; none: it is off.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Admin(pub Option<SocketAddr>);

impl Default for Admin {
    fn default() -> Admin {
        Admin(Some(SocketAddr::from(([127, 0, 0, 1], 9421))))
    }
}

impl Value for Admin {
    const PLACEHOLDER: &'static str = "IP:PORT|off";

    fn read(raw: &Raw, range: Range) -> Result<Admin, String> {
        match raw {
            Raw::Boolean(false) => Ok(Admin(None)),
            Raw::Text(text) if matches!(text.trim(), "" | "off" | "none" | "no") => Ok(Admin(None)),
            Raw::Text(text) => {
                let address = text.trim().parse().ok();
                let address = address.filter(|address: &SocketAddr| address.port() > 0);
                address.map(|address| Admin(Some(address))).ok_or_else(|| Self::wanted(range))
            }
            _ => Err(Self::wanted(range)),
        }
    }

    fn show(&self, _: Range) -> String {
        self.0.map_or_else(|| "off".to_string(), |address| address.to_string())
    }

    fn wanted(_: Range) -> String {
        "IP:PORT, or off".to_string()
    }
}

/// Addresses to listen on.
impl Value for Vec<SocketAddr> {
    const PLACEHOLDER: &'static str = "IP:PORT";

    fn read(raw: &Raw, range: Range) -> Result<Vec<SocketAddr>, String> {
        let parse =
            |item: &&str| item.parse().ok().filter(|address: &SocketAddr| address.port() > 0);
        let items = raw.items().unwrap_or_default();
        let addresses: Vec<SocketAddr> = items.iter().filter_map(parse).collect();
        let complete = !items.is_empty() && addresses.len() == items.len();
        if complete { Ok(addresses) } else { Err(Self::wanted(range)) }
    }

    fn show(&self, _: Range) -> String {
        show_list(self)
    }

    fn wanted(_: Range) -> String {
        "IP:PORT, such as 0.0.0.0:6379 or [::]:6379; several with commas".to_string()
    }
}

/// Nodes, by name or address.
impl Value for Vec<Endpoint> {
    const PLACEHOLDER: &'static str = "HOST:PORT";

    fn read(raw: &Raw, range: Range) -> Result<Vec<Endpoint>, String> {
        let items = raw.items().unwrap_or_default();
        let endpoints: Vec<Endpoint> =
            items.iter().filter_map(|item| parse_endpoint(item)).collect();
        let complete = !items.is_empty() && endpoints.len() == items.len();
        if complete { Ok(endpoints) } else { Err(Self::wanted(range)) }
    }

    fn show(&self, _: Range) -> String {
        show_list(self)
    }

    fn wanted(_: Range) -> String {
        "HOST:PORT (a name or an address, no URL); several with commas".to_string()
    }
}

fn show_list<T: std::fmt::Display>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_string();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// HOST:PORT. Several colons are an IPv6 address; else a slip such as `host:1:6379`, or a URL.
pub fn parse_endpoint(text: &str) -> Option<Endpoint> {
    let endpoint = Endpoint::parse(text.trim().as_bytes())?;
    let host = &endpoint.host;
    let plausible = !host.contains(':') || host.parse::<std::net::Ipv6Addr>().is_ok();
    plausible.then_some(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: Value + PartialEq + std::fmt::Debug>(
        text: &str,
        range: Range,
        expected: Option<T>,
    ) {
        assert_eq!(T::read(&Raw::Text(text.to_string()), range).ok(), expected, "{text:?}");
    }

    #[test]
    fn size_with_unit_counts_in_steps_of_1024() {
        let range = Range::Bytes(0, u64::MAX);
        check("4096", range, Some(4096u64));
        check("64kb", range, Some(65536u64));
        check("1 MiB", range, Some(1u64 << 20));
        check("2g", range, Some(2u64 << 30));
        check::<u64>("99999999999t", range, None);
        check::<u64>("kb", range, None);
        check::<u64>("-1", range, None);
        check::<u64>("1.5m", range, None);
        assert_eq!(show_bytes(1 << 20), "1 MiB");
        assert_eq!(show_bytes(1500), "1500");
    }

    #[test]
    fn number_outside_its_range_is_refused() {
        check("5", Range::Number(1, 5), Some(5u8));
        check::<u8>("6", Range::Number(1, 5), None);
        check::<u32>("4294967296", Range::Number(0, u64::MAX), None);
        check::<u32>("+5", Range::PowerOfTwo(1, 8), None);
        check("8", Range::PowerOfTwo(1, 8), Some(8u32));
    }

    #[test]
    fn cpu_list_expands_and_refuses_doubles() {
        check("0,2-3", Range::Any, Some(Cpus(vec![0, 2, 3])));
        check::<Cpus>("0,0", Range::Any, None);
        check::<Cpus>("3-2", Range::Any, None);
        check::<Cpus>("", Range::Any, None);
        check::<Cpus>("0-99999999", Range::Any, None);
    }

    #[track_caller]
    fn check_endpoint(text: &str, expected: Option<(&str, u16)>) {
        let endpoint = parse_endpoint(text);
        assert_eq!(endpoint.as_ref().map(|e| (&*e.host, e.port)), expected, "{text:?}");
    }

    #[test]
    fn endpoint_takes_names_and_both_families() {
        check_endpoint("redis-0.prod:7000", Some(("redis-0.prod", 7000)));
        check_endpoint("10.0.0.1:6379", Some(("10.0.0.1", 6379)));
        check_endpoint("[::1]:6379", Some(("::1", 6379)));
        check_endpoint("::1:6379", Some(("::1", 6379)));
        check_endpoint("host", None);
        check_endpoint(":6379", None);
        check_endpoint("host:0", None);
        check_endpoint("host:70000", None);
        check_endpoint("host:1:6379", None);
    }

    #[test]
    fn endpoint_as_url_is_refused_without_its_password() {
        check_endpoint("redis://:canary@host:6379", None);
        let shown = Raw::Text("redis://:canary@host:6379".to_string()).show();
        assert_eq!(shown, "***@host:6379");
    }
}
