//! Slots of keys, computed bit by bit from the definition, so that a mistake in the crate's tables
//! shows.
//!
//! Not here: speed.

pub const SLOTS: u16 = 16_384;

/// CRC16 XMODEM of the hash tag, modulo 16,384 (cluster specification, "Keys distribution model").
pub fn slot(key: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    for &byte in tag(key) {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
        }
    }
    crc % SLOTS
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&b| b == b'{') else { return key };
    match key[open + 1..].iter().position(|&b| b == b'}') {
        Some(length) if length > 0 => &key[open + 1..open + 1 + length],
        _ => key,
    }
}

/// A key beginning with `name` whose slot is in `range`.
pub fn key_in(name: &str, range: std::ops::RangeInclusive<u16>) -> String {
    (0..1_000_000)
        .map(|i| format!("{name}-{i}"))
        .find(|key| range.contains(&slot(key.as_bytes())))
        .expect("one of a million keys falls in the range")
}

/// A key with that very slot.
pub fn key_of_slot(name: &str, wanted: u16) -> String {
    key_in(name, wanted..=wanted)
}
