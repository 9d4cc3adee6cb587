//! COMMAND replies of several shapes, sound and hostile.

use super::keys_tests::with_args;
use super::*;
use crate::resp::value::Value;

fn text(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

fn texts(list: &str) -> Vec<Value> {
    list.split_whitespace().map(|word| Value::Simple(word.as_bytes().to_vec())).collect()
}

/// A row as servers before 7.0 send it.
fn old_row(name: &str, arity: i64, flags: &str, range: [i64; 3]) -> Vec<Value> {
    let mut row = vec![text(name), Value::Integer(arity), Value::Array(texts(flags))];
    row.extend(range.map(Value::Integer));
    row
}

fn map(resp3: bool, pairs: &[(&str, Value)]) -> Value {
    let pairs = pairs.iter().map(|(key, value)| (text(key), value.clone()));
    if resp3 {
        Value::Map(pairs.collect())
    } else {
        Value::Array(pairs.flat_map(|(key, value)| [key, value]).collect())
    }
}

/// Key specification of index or keyword, then range or keynum: three numbers each.
fn specification(resp3: bool, begin: &[(&str, Value)], find: &str, numbers: [i64; 3]) -> Value {
    let kind = begin.first().map_or("unknown", |(key, _)| *key);
    let names = match find {
        "range" => ["lastkey", "keystep", "limit"],
        _ => ["keynumidx", "firstkey", "keystep"],
    };
    let pairs: Vec<_> = names.into_iter().zip(numbers.map(Value::Integer)).collect();
    let step = |kind: &str, spec| map(resp3, &[("type", text(kind)), ("spec", spec)]);
    map(
        resp3,
        &[
            ("flags", Value::Array(texts("RW access"))),
            ("begin_search", step(kind, map(resp3, begin))),
            ("find_keys", step(find, map(resp3, &pairs))),
        ],
    )
}

fn new_row(row: Vec<Value>, specifications: Vec<Value>, subs: Vec<Value>) -> Value {
    let mut row = row;
    row.extend([Value::Array(texts("@all")), Value::Array(vec![])]);
    row.extend([Value::Array(specifications), Value::Array(subs)]);
    Value::Array(row)
}

#[track_caller]
fn check(row: Value, line: &str, class: Class, keys: &[u32]) {
    let learned = Learned::from_command_reply(&Value::Array(vec![row]));
    with_args(line, |args| {
        let command = learned.find(args.get(0).unwrap_or_default()).expect("learned");
        let command = args.get(1).and_then(|sub| command.find_sub(sub)).unwrap_or(command);
        let mut found = vec![99];
        assert_eq!(command.keys_of(args, &mut found), Ok(()), "{line}");
        assert_eq!((command.class(), &found[..]), (class, keys), "{line}");
        assert_eq!(command.stand_in().class, class);
        assert!(may_compose_reply(command.stand_in()) && !retry_safe(command.stand_in()));
        assert_eq!(writes(command.stand_in()), class != Class::Read);
        assert!(command.arity_ok(args.len()), "{line}");
    });
}

#[test]
fn old_rows_teach_by_first_last_and_step() {
    let row = |flags, range| Value::Array(old_row("my.cmd", -2, flags, range));
    check(row("readonly fast", [1, 1, 1]), "MY.CMD k", Class::Read, &[1]);
    check(row("write", [1, -1, 2]), "my.cmd a 1 b 2", Class::Write, &[1, 3]);
    check(row("fast", [1, 1, 1]), "my.cmd k", Class::Write, &[1]);
    check(row("readonly write", [1, 1, 1]), "my.cmd k", Class::Write, &[1]);
    check(row("readonly", [0, 0, 0]), "my.cmd k", Class::Module, &[]);
    check(row("write blocking", [1, 1, 1]), "my.cmd k", Class::Blocking, &[1]);
    check(row("admin", [1, 1, 1]), "my.cmd k", Class::Refused, &[1]);
    check(row("pubsub", [0, 0, 0]), "my.cmd k", Class::Refused, &[]);
}

#[test]
fn key_specifications_count_for_more() {
    let index = |at| [("index", Value::Integer(at))];
    let keyword = [("keyword", text("keys")), ("startfrom", Value::Integer(1))];
    for resp3 in [false, true] {
        let row = |specification| {
            new_row(old_row("my.cmd", -2, "readonly", [1, 1, 1]), vec![specification], vec![])
        };
        let spec = |begin: &[(&str, Value)], find, numbers| {
            row(specification(resp3, begin, find, numbers))
        };
        check(spec(&index(2), "range", [0, 1, 0]), "my.cmd x k", Class::Read, &[2]);
        check(spec(&index(2), "range", [1, 1, 0]), "my.cmd x a b c", Class::Read, &[2, 3]);
        check(spec(&index(1), "range", [-2, 1, 0]), "my.cmd a b x", Class::Read, &[1, 2]);
        check(spec(&index(1), "range", [-1, 1, 2]), "my.cmd a b 1 2", Class::Read, &[1, 2]);
        check(spec(&index(1), "keynum", [0, 1, 1]), "my.cmd 2 a b c", Class::Read, &[2, 3]);
        check(spec(&keyword, "range", [-1, 1, 0]), "my.cmd x KEYS a b", Class::Read, &[3, 4]);
        check(spec(&keyword, "range", [0, 1, 0]), "my.cmd x keys a b", Class::Read, &[3]);
        // Nothing usable: what the old fields say.
        check(spec(&index(0), "range", [0, 1, 0]), "my.cmd x k", Class::Read, &[1]);
        check(spec(&[], "range", [0, 1, 0]), "my.cmd x k", Class::Read, &[1]);
    }
}

#[test]
fn subcommands_are_learned_with_their_container() {
    let sub = new_row(old_row("mine|Sub", 3, "readonly", [2, 2, 1]), vec![], vec![]);
    let row = new_row(old_row("mine", -2, "", [0, 0, 0]), vec![], vec![sub]);
    check(row.clone(), "MINE sUB k", Class::Read, &[2]);
    let learned = Learned::from_command_reply(&Value::Array(vec![row]));
    let container = learned.find(b"mine").expect("learned");
    assert!(container.is_container() && container.find_sub(b"other").is_none());
    assert!(container.find_sub(b"sub").is_some_and(|sub| !sub.arity_ok(2) && sub.arity_ok(3)));
}

#[test]
fn known_names_are_not_learned_anew() {
    let row = |name| Value::Array(old_row(name, 2, "write", [1, 1, 1]));
    let reply = Value::Set(vec![row("get"), row("zzz"), row("ZZZ"), row("aaa"), row("Config")]);
    let learned = Learned::from_command_reply(&reply);
    assert_eq!(learned.len(), 2);
    assert_eq!(learned.find(b"Zzz").map(LearnedCommand::name), Some("ZZZ"));
    assert!(learned.find(b"get").is_none() && learned.find(b"").is_none());
}

#[test]
fn hostile_replies_teach_nothing_that_hurts() {
    let empty = |reply: &Value| assert!(Learned::from_command_reply(reply).is_empty());
    let array = |row| Value::Array(vec![Value::Array(row)]);
    empty(&Value::Null);
    empty(&Value::Error(b"NOPERM".to_vec()));
    empty(&Value::Array(vec![Value::Null, Value::Integer(1), Value::Array(vec![])]));
    empty(&array(vec![text("x")]));
    empty(&array(old_row("", 1, "", [0; 3])));
    empty(&array(old_row("a b", 1, "", [0; 3])));
    empty(&array(old_row("a\r\n-ERR", 1, "", [0; 3])));
    empty(&array(old_row("a|b", 1, "", [0; 3])));
    empty(&array(old_row(&"x".repeat(65), 1, "", [0; 3])));
    empty(&array(old_row("x", i64::MIN, "", [0; 3])));

    let extremes = [i64::MIN, -32768, -1, 0, 1, 2, 32767, i64::MAX];
    for first in extremes {
        for last in extremes {
            for step in extremes {
                let numbers = [first, last, step];
                let index = [("index", Value::Integer(first))];
                let keyword = [("keyword", text("k")), ("startfrom", Value::Integer(first))];
                let specifications = vec![
                    specification(true, &index, "range", [last, step, first]),
                    specification(true, &index, "keynum", [last, step, 1]),
                    specification(true, &keyword, "range", [last, step, last]),
                    Value::Null,
                ];
                let with_specifications =
                    new_row(old_row("y", -1, "", numbers), specifications, vec![Value::Null]);
                let old = Value::Array(old_row("x", -1, "readonly", numbers));
                let learned =
                    Learned::from_command_reply(&Value::Array(vec![old, with_specifications]));
                for line in ["x", "y k", "x a b", "y 3 k 9 9 9", "y k k k"] {
                    with_args(line, |args| {
                        let command = args.get(0).and_then(|name| learned.find(name));
                        let mut keys = Vec::new();
                        let _ = command.expect("learned").keys_of(args, &mut keys);
                        assert!(keys.iter().all(|key| (*key as usize) < args.len()));
                    });
                }
            }
        }
    }

    let many = (0..5000).map(|n| Value::Array(old_row(&format!("c{n}"), 1, "", [0; 3])));
    let learned = Learned::from_command_reply(&Value::Array(many.collect()));
    assert_eq!(learned.len(), crate::limits::LEARNED_COMMANDS_MAX);
}
