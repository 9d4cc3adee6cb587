//! How requests are told apart in bytes: each value, mark and amount carries the request's number.
//!
//! A value is a row of items `key#id#xx…x;`. Not here: who uses which key (`workload`).

/// One item: what a SET or APPEND of request `id` writes to `key`.
pub fn item(key: &[u8], id: u32, padding: usize) -> Vec<u8> {
    let mut out = key.to_vec();
    out.extend_from_slice(format!("#{id}#").as_bytes());
    out.resize(out.len() + padding, b'x');
    out.push(b';');
    out
}

/// The requests that wrote a value, oldest first. `None`: it is no value of this key.
pub fn writers(key: &[u8], value: &[u8]) -> Option<Vec<u32>> {
    let mut ids = Vec::new();
    for unit in value.split_inclusive(|&byte| byte == b';') {
        let rest = unit.strip_suffix(b";")?.strip_prefix(key)?.strip_prefix(b"#")?;
        let end = rest.iter().position(|&byte| byte == b'#')?;
        ids.push(std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?);
        if rest[end + 1..].iter().any(|&byte| byte != b'x') {
            return None;
        }
    }
    Some(ids)
}

/// A key that is never written and names a request: `{tag}!id`.
pub fn mark(key: &[u8]) -> Option<u32> {
    let at = key.iter().position(|&byte| byte == b'!')?;
    std::str::from_utf8(&key[at + 1..]).ok()?.parse().ok()
}

/// The request that a command at a node is a part of.
pub fn request_of(name: &[u8], args: &[Vec<u8>]) -> Option<u32> {
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u32>().ok();
    let of_item = |value: &[u8]| number(value.split(|&byte| byte == b'#').nth(1)?);
    match name {
        b"SET" | b"APPEND" | b"MSET" | b"MOD.APPEND" | b"RPUSH" => of_item(args.get(2)?),
        b"INCRBY" => number(args.get(2)?),
        b"MGET" | b"DEL" | b"EXISTS" | b"BLPOP" | b"WATCH" => {
            args[1..].iter().find_map(|key| mark(key))
        }
        b"EVAL" | b"EVALSHA" => mark(args.get(4)?),
        _ => None,
    }
}

/// Of a value's content, to compare states.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
