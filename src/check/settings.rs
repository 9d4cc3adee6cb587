//! The settings of a host that `tuning/settings.tsv` names: read, judged, never changed.
//!
//! `tuning/apply.sh` reads the same file: what is wanted here is what it sets. Not here: limits and
//! network cards, which the rows of other kinds are about.

use super::{Fact, Verdict};

const ROWS: &str = include_str!("../../tuning/settings.tsv");

/// How a value is judged. All of them only ever warn.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Want {
    AtLeast(u64),
    /// One of these words.
    OneOf(Vec<&'static str>),
    Not(&'static str),
    /// The last number: for `tcp_rmem` and its like.
    LastAtLeast(u64),
    /// From the first number to the second.
    SpanAtLeast(u64),
}

impl Want {
    fn read(text: &'static str) -> Option<Want> {
        let (kind, rest) = text.split_once(' ')?;
        Some(match kind {
            "at-least" => Want::AtLeast(rest.parse().ok()?),
            "is" => Want::OneOf(vec![rest]),
            "one-of" => Want::OneOf(rest.split(' ').collect()),
            "not" => Want::Not(rest),
            "last-at-least" => Want::LastAtLeast(rest.parse().ok()?),
            "span-at-least" => Want::SpanAtLeast(rest.parse().ok()?),
            _ => return None,
        })
    }

    /// `None`: the value is of another form.
    fn is_met(&self, value: &str) -> Option<bool> {
        let number = |text: &str| text.parse::<u64>().ok();
        Some(match self {
            Want::AtLeast(least) => number(value)? >= *least,
            Want::OneOf(words) => words.contains(&value),
            Want::Not(word) => value != *word,
            Want::LastAtLeast(least) => number(value.rsplit(' ').next()?)? >= *least,
            Want::SpanAtLeast(least) => {
                let (from, to) = value.split_once(' ')?;
                number(to)?.checked_sub(number(from)?)? + 1 >= *least
            }
        })
    }

    fn text(&self) -> String {
        match self {
            Want::AtLeast(least) => format!("{least} or more"),
            Want::OneOf(words) => words.join(" or "),
            Want::Not(word) => format!("anything but {word}"),
            Want::LastAtLeast(least) => format!("last number {least} or more"),
            Want::SpanAtLeast(least) => format!("{least} ports or more"),
        }
    }
}

/// One row: of kind `sysctl` or `file`.
#[derive(Debug)]
pub(super) struct Setting {
    name: &'static str,
    want: Want,
    /// What each profile sets, in the order of the header.
    values: Vec<&'static str>,
    why: &'static str,
}

/// The rows that can be judged by themselves. One that cannot be read is left out; a test holds
/// that there is none.
pub(super) fn settings() -> Vec<Setting> {
    ROWS.lines().skip(1).filter_map(read).collect()
}

fn read(row: &'static str) -> Option<Setting> {
    let fields: Vec<&str> = row.split('\t').collect();
    let [kind, name, want, values @ .., why, _risk, _measure, _measured] = fields.as_slice() else {
        return None;
    };
    let judged = matches!(*kind, "sysctl" | "file");
    let want = judged.then(|| Want::read(want)).flatten()?;
    Some(Setting { name, want, values: values.to_vec(), why })
}

impl Setting {
    /// Of several CPUs the first: they are set alike.
    pub(super) fn path(&self) -> String {
        match self.name.starts_with('/') {
            true => self.name.replace('*', "0"),
            false => format!("/proc/sys/{}", self.name.replace('.', "/")),
        }
    }

    /// None: this host does not have it.
    pub(super) fn judge(&self, text: &str) -> Option<Fact> {
        let value = chosen(text);
        let good = self.want.is_met(&value).filter(|_| !value.is_empty())?;
        Some(Fact {
            verdict: if good { Verdict::Ok } else { Verdict::Warn },
            name: self.name.to_string(),
            wanted: self.want.text(),
            why: self.why.to_string(),
            how: self.how(&value),
            value,
        })
    }

    fn how(&self, value: &str) -> String {
        let named = self.values.iter().find(|value| **value != "-").copied();
        let set = match (&self.want, named) {
            (Want::LastAtLeast(least), _) => match value.rsplit_once(' ') {
                Some((others, _)) => format!("'{others} {least}'"),
                None => least.to_string(),
            },
            (Want::AtLeast(least), _) => least.to_string(),
            (Want::OneOf(words), None) => words.first().copied().unwrap_or_default().to_string(),
            (_, Some(value)) if value.contains(' ') => format!("'{value}'"),
            (_, named) => named.unwrap_or_default().to_string(),
        };
        match self.name.starts_with('/') {
            true => format!("tuning/apply.sh, or: echo {set} | tee {}", self.name),
            false => format!("tuning/apply.sh, or: sysctl -w {}={set}", self.name),
        }
    }
}

/// What a file of the kernel's says: of `always [madvise] never` the word that holds, else all with
/// single blanks.
fn chosen(text: &str) -> String {
    match text.split(['[', ']']).nth(1) {
        Some(word) => word.to_string(),
        None => text.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(want: &'static str, text: &str, expected: Option<Verdict>) -> Option<Fact> {
        let row = Setting {
            name: "net.core.x",
            want: Want::read(want).unwrap(),
            values: vec!["-", "7"],
            why: "because",
        };
        let fact = row.judge(text);
        assert_eq!(fact.as_ref().map(|fact| fact.verdict), expected, "{text:?}");
        fact
    }

    #[test]
    fn setting_below_its_value_says_how_to_change_it() {
        let fact = check("at-least 4096", "128\n", Some(Verdict::Warn)).unwrap();
        assert_eq!(fact.how, "tuning/apply.sh, or: sysctl -w net.core.x=4096");
        let fact = check("last-at-least 4096", "1\t2\t3\n", Some(Verdict::Warn)).unwrap();
        assert_eq!(fact.how, "tuning/apply.sh, or: sysctl -w net.core.x='1 2 4096'");
        let fact = check("not always", "[always] madvise never\n", Some(Verdict::Warn)).unwrap();
        assert_eq!((fact.value.as_str(), fact.wanted.as_str()), ("always", "anything but always"));
        check("span-at-least 100", "10 50\n", Some(Verdict::Warn));
    }

    #[test]
    fn setting_that_fits_or_is_absent_is_no_remark() {
        check("at-least 4096", "4096\n", Some(Verdict::Ok));
        check("is 0", "0\n", Some(Verdict::Ok));
        check("one-of cubic bbr", "bbr\n", Some(Verdict::Ok));
        check("not always", "always [madvise] never\n", Some(Verdict::Ok));
        check("last-at-least 3", "1 2 3\n", Some(Verdict::Ok));
        check("span-at-least 41", "10 50\n", Some(Verdict::Ok));
        check("at-least 1", "", None);
        check("is 1", "", None);
    }

    #[test]
    fn every_row_can_be_read() {
        let header: Vec<&str> = ROWS.lines().next().unwrap().split('\t').collect();
        assert_eq!(header[..3], ["kind", "name", "want"]);
        assert_eq!(header[header.len() - 4..], ["why", "risk", "measure", "measured"]);
        for row in ROWS.lines().skip(1) {
            let fields: Vec<&str> = row.split('\t').collect();
            assert_eq!(fields.len(), header.len(), "{row}");
            assert!(fields.iter().all(|field| !field.trim().is_empty()), "{row}");
            assert!(["sysctl", "file", "limit", "nic"].contains(&fields[0]), "{row}");
            let judged = matches!(fields[0], "sysctl" | "file") && fields[2] != "-";
            assert_eq!(read(row).is_some(), judged, "{row}");
        }
    }

    /// What `tuning/apply.sh` would set contents `ringway check`.
    #[test]
    fn every_profile_sets_what_is_wanted() {
        for setting in settings() {
            for value in setting.values.iter().filter(|value| **value != "-") {
                let set = value.replace("last ", "4096 87380 ");
                assert_eq!(setting.want.is_met(&set), Some(true), "{}: {value}", setting.name);
            }
        }
    }
}
