//! Chance from a seed, the numbers at which parsers go wrong, and mutation of bytes.
//!
//! Not here: what a target's input looks like (`targets`).

#[allow(clippy::duplicate_mod, reason = "the cargo-fuzz crate has no tests/support")]
#[path = "../../support/chance.rs"]
mod chance;

use chance::SplitMix;

#[derive(Clone, Debug)]
pub struct Random(SplitMix);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(SplitMix::seeded(seed))
    }

    /// Chance that hangs on nothing but these bytes.
    pub fn of(bytes: &[u8]) -> Random {
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        Random::new(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// 0..bound; 0 for a bound of 0. By multiplication: most of what an input costs are draws.
    #[inline]
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// True once in so many cases.
    pub fn one_in(&mut self, cases: usize) -> bool {
        self.below(cases) == 0
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// 0, 1, 2^k - 1, 2^k, 2^k + 1, the largest.
    pub fn edge(&mut self) -> u64 {
        match self.below(12) {
            0 => 0,
            1 => u64::MAX,
            2 => i64::MAX as u64 + self.below(2) as u64,
            _ => (1u64 << self.below(64)).wrapping_add(self.below(3) as u64).wrapping_sub(1),
        }
    }

    /// A length: mostly small, sometimes 2^k - 1 to 2^k + 1, up to `max`.
    pub fn length(&mut self, max: usize) -> usize {
        let length = match self.below(8) {
            0 => 0,
            1 => (1usize << self.below(1 + max.max(1).ilog2() as usize)) + self.below(3),
            2 => self.below(200),
            _ => self.below(12),
        };
        length.saturating_sub(usize::from(length > max)).min(max)
    }

    /// A number as somebody might write it: sound, at an edge, or in a form that is none.
    pub fn number_text(&mut self) -> Vec<u8> {
        let number = self.edge();
        match self.below(12) {
            0 => format!("-{number}"),
            1 => format!("+{number}"),
            2 => format!("0{number}"),
            3 => format!(" {number}"),
            4 => format!("{number} "),
            5 => format!("{number}0"),
            6 => self.pick(&["", "-", "-0", "1e3", "0x1", "nan", "1.5", "--1", "-1"]).to_owned(),
            7 => (number as i64).to_string(),
            _ => number.to_string(),
        }
        .into_bytes()
    }

    /// A few bytes of those that mean something to somebody.
    pub fn text(&mut self, max: usize) -> Vec<u8> {
        let mut out = Vec::new();
        self.put_text(max, &mut out);
        out
    }

    /// The same, behind what is there. One draw makes eight of them.
    pub fn put_text(&mut self, max: usize, out: &mut Vec<u8>) {
        const BYTES: &[u8; 23] = b"abcXYZ019 \r\n\0\xff$*:-{}\"'\\";
        let end = out.len() + self.length(max);
        while out.len() < end {
            let eight = self.next().to_le_bytes();
            let some = &eight[..(end - out.len()).min(8)];
            out.extend(some.iter().map(|byte| BYTES[(usize::from(*byte) * BYTES.len()) >> 8]));
        }
    }

    /// Changes bytes here and there; `others` lends pieces.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, others: &[&[u8]]) {
        for _ in 0..=self.below(4) {
            self.mutate_once(bytes, others);
        }
    }

    fn mutate_once(&mut self, bytes: &mut Vec<u8>, others: &[&[u8]]) {
        let at = self.place(bytes.len());
        match self.below(10) {
            0 => bytes.insert(at, self.next() as u8),
            1 => bytes.insert(at, self.pick(b"0123456789-+$*%|>~=!_#,(\r\n:x\0 {}")),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            4 if at < bytes.len() => bytes[at] = self.pick(b"0123456789-+$*%|>~\r\n:x\0"),
            5 => bytes.truncate(at),
            // A piece once more, or gone.
            6 => {
                let end = (at + 1 + self.length(64)).min(bytes.len());
                let piece = bytes.get(at..end).unwrap_or_default().to_vec();
                bytes.splice(at..at, piece);
            }
            7 => {
                let end = (at + self.length(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            8 => self.replace_number(bytes),
            _ if !others.is_empty() => {
                let other = self.pick(others);
                let from = self.below(other.len() + 1);
                let to = (from + self.length(128)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            _ => {}
        }
    }

    /// Headers are what is worth changing: most of them stand early.
    fn place(&mut self, length: usize) -> usize {
        let reach = if self.one_in(2) { length.min(24) } else { length };
        self.below(reach + 1)
    }

    /// Some run of digits becomes another number.
    fn replace_number(&mut self, bytes: &mut Vec<u8>) {
        let from = self.below(bytes.len() + 1);
        let Some(start) = (from..bytes.len()).find(|&at| bytes[at].is_ascii_digit()) else {
            return;
        };
        let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = self.number_text();
        bytes.splice(start..start + digits, number);
    }

    /// Ends of pieces that make up `length` bytes.
    pub fn cuts(&mut self, length: usize) -> Vec<usize> {
        let longest = self.pick(&[1, 1, 2, 3, 17, 400, 5000]);
        let mut ends = Vec::new();
        let mut at = 0;
        while at < length {
            at = length.min(at + 1 + self.below(longest));
            ends.push(at);
        }
        ends
    }
}
