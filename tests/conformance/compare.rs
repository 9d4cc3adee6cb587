//! When two replies count as the same.
//!
//! Not here: which rule holds for which command (`tests/data/conformance.txt` says).

use crate::support::reply::Reply;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// Byte by byte.
    Bytes,
    /// The members of the outermost aggregate in any order.
    Sorted,
    /// Everything but the values of integers and doubles.
    NoNumbers,
    /// Types and lengths of aggregates.
    Kinds,
    /// The outermost type.
    Type,
}

impl Compare {
    /// What is left of a reply for the comparison, as text.
    pub fn reduce(self, reply: &Reply) -> String {
        match self {
            Compare::Bytes => reply.text(),
            Compare::Sorted => sorted(reply.clone()).text(),
            Compare::NoNumbers => masked(reply, false).text(),
            Compare::Kinds => masked(reply, true).text(),
            Compare::Type => kind(reply).to_owned(),
        }
    }
}

fn sorted(reply: Reply) -> Reply {
    let order = |mut items: Vec<Reply>| {
        items.sort_by_key(Reply::text);
        items
    };
    match reply {
        Reply::Array(items) => Reply::Array(order(items)),
        Reply::Set(items) => Reply::Set(order(items)),
        Reply::Map(mut pairs) => {
            pairs.sort_by_key(|(key, _)| key.text());
            Reply::Map(pairs)
        }
        other => other,
    }
}

fn masked(reply: &Reply, strings: bool) -> Reply {
    let all = |items: &[Reply]| items.iter().map(|item| masked(item, strings)).collect();
    match reply {
        Reply::Integer(_) => Reply::Simple(b"<integer>".into()),
        Reply::Scalar(b',', _) => Reply::Simple(b"<double>".into()),
        Reply::Bulk(_) if strings => Reply::Simple(b"<bulk>".into()),
        Reply::Simple(_) if strings => Reply::Simple(b"<simple>".into()),
        Reply::Array(items) => Reply::Array(all(items)),
        Reply::Set(items) => Reply::Set(all(items)),
        Reply::Push(items) => Reply::Push(all(items)),
        Reply::Map(pairs) => Reply::Map(
            pairs.iter().map(|(k, v)| (masked(k, strings), masked(v, strings))).collect(),
        ),
        other => other.clone(),
    }
}

fn kind(reply: &Reply) -> &'static str {
    match reply {
        Reply::Simple(_) => "<simple>",
        Reply::Error(_) => "<error>",
        Reply::Integer(_) => "<integer>",
        Reply::Bulk(_) => "<bulk>",
        Reply::NilBulk => "<nil>",
        Reply::NilArray => "<nil array>",
        Reply::Null => "<null>",
        Reply::Array(_) => "<array>",
        Reply::Set(_) => "<set>",
        Reply::Push(_) => "<push>",
        Reply::Map(_) => "<map>",
        Reply::Scalar(..) => "<scalar>",
        Reply::Blob(..) => "<blob>",
        Reply::Attribute(..) => "<attribute>",
    }
}
