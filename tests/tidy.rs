//! The house rules (DESIGN 3) as tests: who may name whom, where `unsafe`, clocks and locks may be,
//! sizes, headers, the map, the options in README.md.
//!
//! Not here: what clippy holds already (functions of 70 lines, SAFETY next to its block). The
//! checker is text search over code without comments and strings; the tests at the bottom plant
//! an offence for each rule and see that it is found.

use std::fs;
use std::path::{Path, PathBuf};

/// A room and what it may name. Rooms below may name rooms above, never the other way.
const ROOMS: [(&str, &[&str]); 22] = [
    ("limits", &[]),
    ("secret", &[]),
    ("resp", &["limits"]),
    ("command", &["resp", "limits"]),
    ("cluster", &["resp", "limits"]),
    ("config", &["cluster", "limits", "secret"]),
    ("metrics", &["limits"]),
    ("log", &["limits"]),
    ("proxy", &["cluster", "command", "limits", "metrics", "resp", "secret"]),
    ("ring", &["limits"]),
    ("handover", &["limits", "ring"]),
    // `command`: learns the nodes' own table. `ring`: `Waker` only, to wake a reactor.
    ("topology", &["cluster", "command", "limits", "log", "metrics", "resp", "ring", "secret"]),
    (
        "reactor",
        &[
            "cluster", "command", "config", "handover", "limits", "log", "metrics", "proxy",
            "resp", "ring", "topology",
        ],
    ),
    ("watchdog", &[]),
    ("ready", &["limits"]),
    // Of `reactor` the way to one and what it tells; of `proxy` what it tells.
    ("admin", &["cluster", "command", "limits", "log", "metrics", "proxy", "reactor", "ready"]),
    ("notify", &[]),
    // From a configuration to threads: it hands each room's settings to that room.
    (
        "serve",
        &[
            "admin", "cluster", "config", "handover", "limits", "log", "metrics", "proxy",
            "reactor", "ready", "ring", "topology", "watchdog",
        ],
    ),
    ("check", &["config", "limits", "ring"]),
    ("top", &["ring"]),
    // The main thread's life.
    (
        "process",
        &["check", "config", "handover", "limits", "log", "notify", "ring", "serve", "watchdog"],
    ),
    ("main", &["check", "config", "limits", "process", "ring", "top"]),
];

/// Parts of `proxy` and the siblings that they may not name.
const STRANGERS: [(&str, &[&str]); 6] = [
    ("request", &["route", "split", "local", "client", "backend"]),
    ("route", &["request", "split", "local", "client", "backend"]),
    ("split", &["request", "route", "local", "client", "backend"]),
    ("local", &["request", "route", "split", "client", "backend"]),
    ("client", &["backend"]),
    ("backend", &["client"]),
];

/// Rooms that are told bytes and time and touch nothing.
const PURE: [&str; 5] = ["limits", "resp", "command", "cluster", "proxy"];

/// Words that a room may not use, and where they belong.
const SYSTEM: [&str; 11] = [
    "libc",
    "io_uring",
    "socket2",
    "tokio",
    "tokio_uring",
    "std::fs",
    "std::thread",
    "std::env",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
];
const CLOCKS: [&str; 4] = ["Instant::now", "SystemTime::now", "clock_gettime", "UNIX_EPOCH"];
const SHARED: [&str; 4] = ["Mutex", "RwLock", "RefCell", "Rc"];

/// Where a clock may be read. `process`: time stamps of its few log lines. `admin`: rates.
const WITH_CLOCK: [&str; 4] = ["reactor", "topology", "admin", "process"];

/// For `process`, which tells a service manager a time that std does not show: a system call.
const CLOCK_FILE: &str = "ring/system.rs";

const LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;
const MAP_LINES_MAX: usize = 200;

/// Rows of data, one per line: neither long files nor long lines are a fault there.
const DATA: [&str; 1] = ["command/table.rs"];

// --- the rules --------------------------------------------------------------------------------

/// All offences of one file under `src`. `path` is relative to `src`.
fn offences(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let code = code_of(text);
    let own = if is_test_file(path) { String::new() } else { without_tests(&code) };
    header(path, text, &mut found);
    edges(path, &own, &mut found);
    siblings(path, &own, &mut found);
    words(path, &own, &mut found);
    unsafe_blocks(path, text, &code, &mut found);
    leftovers(text, &code, &mut found);
    size(path, text, &own, &mut found);
    found.into_iter().map(|offence| format!("src/{path}: {offence}")).collect()
}

fn room_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    name == "tests"
        || name.starts_with("tests_")
        || name.ends_with("_tests")
        || path.contains("/tests/")
}

fn header(path: &str, text: &str, found: &mut Vec<String>) {
    if is_test_file(path) {
        return;
    }
    let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    if head.is_empty() {
        return found.push("has no `//!` header that says its job".into());
    }
    let says = head.join(" ").to_lowercase();
    if !["not here", "does not", " not "].iter().any(|no| says.contains(no)) {
        found.push("its header does not say what it leaves to others (`Not here: ...`)".into());
    }
}

fn edges(path: &str, code: &str, found: &mut Vec<String>) {
    let room = room_of(path);
    if room == "lib" {
        return;
    }
    let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        return found.push(format!("room `{room}` is not in the table of tests/tidy.rs"));
    };
    let root = if room == "main" { "ringway::" } else { "crate::" };
    for name in named_after(code, root) {
        let is_room = ROOMS.iter().any(|(other, _)| *other == name);
        if is_room && name != room && !allowed.contains(&name.as_str()) {
            found.push(format!("`{room}` may not name `{name}`"));
        }
    }
    if room == "reactor" {
        for name in named_after(code, "crate::topology::") {
            if name.starts_with(|c: char| c.is_ascii_lowercase()) {
                found.push(format!("`reactor` sees topology's types, not its inside: `{name}`"));
            }
        }
    }
}

fn siblings(path: &str, code: &str, found: &mut Vec<String>) {
    let Some(inside) = path.strip_prefix("proxy/") else { return };
    let part = inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs");
    let Some((_, strangers)) = STRANGERS.iter().find(|(name, _)| *name == part) else { return };
    // In `local/x.rs`, `super` is `local` and `super::super` is `proxy`; in `route.rs`, `super` is.
    let in_folder = inside.contains('/') && !inside.ends_with("/mod.rs");
    let up = if in_folder { "super::super::" } else { "super::" };
    for root in [up, "crate::proxy::"] {
        for name in named_after(code, root) {
            if strangers.contains(&name.as_str()) {
                found.push(format!("`{part}` may not name its sibling `{name}`"));
            }
        }
    }
}

fn words(path: &str, code: &str, found: &mut Vec<String>) {
    let room = room_of(path);
    let mut ban = |words: &[&str], why: &str| {
        for word in words.iter().filter(|word| has_word(code, word)) {
            found.push(format!("`{word}`: {why}"));
        }
    };
    if PURE.contains(&room) {
        ban(&SYSTEM, "this room is pure");
    }
    if !WITH_CLOCK.contains(&room) && path != CLOCK_FILE {
        ban(&CLOCKS, "time is told, only reactor and topology read the clock");
    }
    if room == "proxy" {
        ban(&SHARED, "nothing in proxy is shared");
    }
    if room != "ring" {
        ban(&["libc"], "system calls belong in ring");
    }
}

fn unsafe_blocks(path: &str, text: &str, code: &str, found: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in code.lines().enumerate() {
        if !has_word(line, "unsafe") {
            continue;
        }
        if room_of(path) != "ring" {
            found.push(format!("line {}: `unsafe` belongs in ring", index + 1));
        }
        if line.contains("pub unsafe fn") {
            found.push(format!("line {}: no unsafe function leaves ring", index + 1));
        }
        let above = lines.get(index.saturating_sub(8)..index).unwrap_or_default();
        if !above.iter().any(|line| line.contains("// SAFETY:")) {
            found.push(format!("line {}: `unsafe` without `// SAFETY:` above it", index + 1));
        }
    }
}

/// What was meant to be temporary. Taken apart here, so that this file passes.
fn leftovers(text: &str, code: &str, found: &mut Vec<String>) {
    for word in ["todo!", "unimplemented!", "dbg!", "#[ignore"] {
        if code.contains(word) {
            found.push(format!("`{word}`"));
        }
    }
    for word in [concat!("FIX", "ME"), concat!("XX", "X:"), concat!("TO", "DO")] {
        if text.lines().any(|line| line.contains("//") && line.contains(word)) {
            found.push(format!("`{word}`"));
        }
    }
}

fn size(path: &str, text: &str, own: &str, found: &mut Vec<String>) {
    if DATA.contains(&path) {
        return;
    }
    let lines = own.lines().filter(|line| !line.trim().is_empty()).count();
    if lines > LINES_MAX {
        found.push(format!("{lines} lines of code; at most {LINES_MAX}"));
    }
    for (index, line) in text.lines().enumerate() {
        // rustfmt cannot break a long text; a test's may well be long.
        let columns = line.chars().count();
        if columns > COLUMNS_MAX && !line.contains('"') {
            found.push(format!("line {}: {columns} columns; at most {COLUMNS_MAX}", index + 1));
        }
    }
}

// --- reading code -----------------------------------------------------------------------------

/// The code without comments and without what stands in quotes; line numbers stay.
fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let end = match byte {
            b'/' if rest.starts_with(b"//") => line_end(rest),
            b'/' if rest.starts_with(b"/*") => find(rest, b"*/").map_or(rest.len(), |n| n + 2),
            b'"' => quoted_end(rest),
            b'r' if !follows_word(bytes, at) => raw_string_end(rest).unwrap_or(0),
            b'\'' => char_end(rest),
            _ => 0,
        };
        if end == 0 {
            out.push(byte);
            at += 1;
        } else {
            out.extend(rest[..end].iter().filter(|&&byte| byte == b'\n'));
            at += end;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn line_end(rest: &[u8]) -> usize {
    rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
}

fn quoted_end(rest: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = rest.get(at) {
        at += match byte {
            b'\\' => 2,
            b'"' => return at + 1,
            _ => 1,
        };
    }
    rest.len()
}

/// `r"..."`, `r#"..."#`; None if it is no raw string.
fn raw_string_end(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().skip(1).take_while(|&&byte| byte == b'#').count();
    (rest.get(1 + hashes) == Some(&b'"')).then_some(())?;
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let start = 2 + hashes;
    Some(find(&rest[start..], &close).map_or(rest.len(), |n| start + n + close.len()))
}

/// A character in quotes; 0 for a lifetime.
fn char_end(rest: &[u8]) -> usize {
    match rest.get(1) {
        Some(b'\\') => rest.iter().skip(3).position(|&byte| byte == b'\'').map_or(0, |n| n + 4),
        Some(_) => rest.iter().take(6).skip(2).position(|&byte| byte == b'\'').map_or(0, |n| {
            // `'a, 'b` are lifetimes: between the quotes of a character is one character.
            let inside = std::str::from_utf8(&rest[1..n + 2]).unwrap_or_default();
            if inside.chars().count() == 1 { n + 3 } else { 0 }
        }),
        None => 0,
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && bytes.get(at - 1).is_some_and(|&byte| is_word(byte) && byte != b'b')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Up to the module of tests at the end of the file.
fn without_tests(code: &str) -> String {
    let lines: Vec<&str> = code.lines().collect();
    let starts = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].ends_with('{')
    };
    let end = lines.windows(2).position(starts).unwrap_or(lines.len());
    lines[..end].join("\n")
}

fn has_word(code: &str, word: &str) -> bool {
    places(code, word).next().is_some()
}

/// Where `word` stands by itself.
fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        let after = bytes.get(at + word.len());
        let open = word.ends_with(':') || !after.is_some_and(|&byte| is_word(byte));
        open && !before.is_some_and(|&byte| is_word(byte))
    })
}

/// The names that follow `root` (such as `crate::`), also in groups: `crate::{a, b::c}`.
fn named_after(code: &str, root: &str) -> Vec<String> {
    let mut names = Vec::new();
    for at in places(code, root) {
        // `super::super::x` is not `super::x`.
        if at >= 2 && &code[at - 2..at] == "::" {
            continue;
        }
        let rest = &code[at + root.len()..];
        match rest.strip_prefix('{') {
            None => names.push(first_word(rest)),
            Some(group) => {
                let mut depth = 0;
                let mut expected = true;
                for (offset, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => expected = true,
                        c if expected && !c.is_whitespace() => {
                            names.push(first_word(&group[offset..]));
                            expected = false;
                        }
                        _ => (),
                    }
                }
            }
        }
    }
    names
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

// --- the tests --------------------------------------------------------------------------------

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file under `folder`, relative to it, with its text.
fn files(folder: &str) -> Vec<(String, String)> {
    let base = root().join(folder);
    let mut waiting = vec![base.clone()];
    let mut found = Vec::new();
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
            if path.is_dir() && !hidden {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let relative = path.strip_prefix(&base).unwrap().to_str().unwrap().to_string();
                found.push((relative, text));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_file_keeps_the_house_rules() {
    let found: Vec<String> =
        files("src").iter().flat_map(|(path, text)| offences(path, text)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn tests_and_benches_have_headers_and_no_leftovers() {
    let mut found = Vec::new();
    for folder in ["tests", "bench"].into_iter().filter(|folder| root().join(folder).exists()) {
        for (path, text) in files(folder) {
            let mut here = Vec::new();
            if !text.starts_with("//!") {
                here.push("has no `//!` header".to_string());
            }
            leftovers(&text, &code_of(&text), &mut here);
            found.extend(here.into_iter().map(|offence| format!("{folder}/{path}: {offence}")));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn rooms_form_no_circle() {
    for (index, (room, allowed)) in ROOMS.iter().enumerate() {
        for name in *allowed {
            let place = ROOMS.iter().position(|(other, _)| other == name);
            assert!(place.is_some_and(|place| place < index), "{room} names {name}");
        }
    }
}

#[test]
fn every_room_is_on_the_map() {
    let map = fs::read_to_string(root().join("src/README.md")).unwrap();
    assert!(map.lines().count() <= MAP_LINES_MAX, "the map is longer than {MAP_LINES_MAX} lines");
    for (path, _) in files("src") {
        let room = room_of(&path);
        let place = if path.contains('/') { format!("{room}/") } else { path.clone() };
        assert!(map.contains(&format!("`{place}`")), "src/README.md does not have `{place}`");
    }
}

#[test]
fn every_option_is_in_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let rows = ringway::config::rows();
    let lines: Vec<String> = rows.iter().map(ringway::config::markdown_row).collect();
    let missing: Vec<&String> =
        lines.iter().filter(|line| !readme.lines().any(|have| have == *line)).collect();
    assert!(missing.is_empty(), "README.md wants these lines:\n{}", join(&missing));
    let stale: Vec<&str> = readme
        .lines()
        .filter(|line| line.contains("`RINGWAY_") && line.starts_with("| `"))
        .filter(|have| !lines.iter().any(|line| line == have))
        .collect();
    assert!(stale.is_empty(), "README.md has options that are gone:\n{}", stale.join("\n"));
}

fn join(lines: &[&String]) -> String {
    lines.iter().map(|line| line.as_str()).collect::<Vec<_>>().join("\n")
}

// --- tests of the checker ---------------------------------------------------------------------

const HEADER: &str = "//! A job. Not here: others.\n";

/// Checks that `text`, planted at `path`, is found with exactly these words; none: it is clean.
#[track_caller]
fn planted(path: &str, text: &str, expected: &[&str]) {
    let found = offences(path, &format!("{HEADER}{text}"));
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (offence, words) in found.iter().zip(expected) {
        assert!(offence.contains(words), "{offence:?} has no {words:?}");
    }
}

#[test]
fn planted_edge_is_found() {
    planted("cluster/map.rs", "use crate::proxy::Proxy;\n", &["may not name `proxy`"]);
    planted("cluster/map.rs", "use crate::{limits, proxy::{self, x}};\n", &["name `proxy`"]);
    planted("resp/mod.rs", "fn f() { crate::cluster::slot() }\n", &["may not name `cluster`"]);
    planted("main.rs", "use ringway::{config, process};\n", &[]);
    planted("cluster/map.rs", "use crate::limits::X; // crate::proxy\n", &[]);
    planted("cluster/map.rs", "#[cfg(test)]\nmod tests {\nuse crate::proxy;\n}\n", &[]);
    planted("attic.rs", "", &["not in the table"]);
    planted("reactor.rs", "use crate::topology::{Update, ask::x};\n", &["not its inside: `ask`"]);
}

#[test]
fn planted_sibling_is_found() {
    planted("proxy/client.rs", "use super::backend::Backend;\n", &["sibling `backend`"]);
    planted("proxy/route.rs", "use crate::proxy::request::X;\n", &["sibling `request`"]);
    planted("proxy/local/info.rs", "use super::super::split::X;\n", &["sibling `split`"]);
    planted("proxy/local/info.rs", "use super::client::X;\n", &[]);
    planted("proxy/mod.rs", "use self::client::X; use crate::proxy::backend::Y;\n", &[]);
}

#[test]
fn planted_words_are_found() {
    planted("proxy/x.rs", "use std::sync::Mutex;\n", &["`Mutex`"]);
    planted("proxy/x.rs", "type T = Rc<RefCell<u8>>;\n", &["`RefCell`", "`Rc`"]);
    planted("cluster/x.rs", "let t = Instant::now();\n", &["`Instant::now`"]);
    planted("reactor.rs", "let t = Instant::now();\n", &[]);
    planted("resp/x.rs", "use std::fs;\n", &["`std::fs`"]);
    planted("topology/x.rs", "let x = libc::EPERM;\n", &["`libc`"]);
    planted("proxy/x.rs", "let rcvd = \"Mutex\"; let c = '\"'; let l: &'a str;\n", &[]);
}

#[test]
fn planted_unsafe_is_found() {
    let safe = "// SAFETY: nobody else holds it.\nunsafe { f() };\n";
    planted("ring/x.rs", safe, &[]);
    planted("proxy/x.rs", safe, &["belongs in ring"]);
    planted("ring/x.rs", "unsafe { f() };\n", &["without `// SAFETY:`"]);
    let leaves = "// SAFETY: x\npub unsafe fn f() {}\n";
    planted("ring/x.rs", leaves, &["no unsafe function leaves"]);
    planted("lib.rs", "#[allow(unsafe_code)]\npub mod ring;\n", &[]);
}

#[test]
fn planted_leftovers_are_found() {
    planted("resp/x.rs", "fn f() { todo!() }\n", &["todo!"]);
    planted(
        "resp/x.rs",
        "#[cfg(test)]\nmod t {\n#[ignore = \"slow\"]\nfn f() {}\n}\n",
        &["ignore"],
    );
    planted("resp/x.rs", concat!("// FIX", "ME later\n"), &["FIX"]);
    planted("resp/x.rs", "let text = \"dbg! todo!\";\n", &[]);
}

#[test]
fn planted_size_and_header_are_found() {
    let long = "let x = 1;\n".repeat(LINES_MAX);
    planted("resp/x.rs", &long, &[]);
    planted("resp/x.rs", &format!("{long}let x = 1;\n"), &["601 lines"]);
    planted("resp/tests.rs", &format!("{long}{long}"), &[]);
    planted("command/table.rs", &format!("{long}{long}"), &[]);
    planted("resp/x.rs", &format!("// {}\n", "x".repeat(98)), &["101 columns"]);
    assert!(offences("resp/x.rs", "fn f() {}\n")[0].contains("no `//!` header"));
    assert!(offences("resp/x.rs", "//! A job.\n")[0].contains("leaves to others"));
}

#[test]
fn code_is_told_from_comments_and_quotes() {
    let text = "a /* b\n */ 'c' \"d\\\"e\" r#\"f\"g\"# b\"h\" '\\'' 'l i 'm // n\nz";
    assert_eq!(code_of(text), "a \n    b  'l i 'm \nz");
}
