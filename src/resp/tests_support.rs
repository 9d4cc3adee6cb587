//! What the tests of this room share: seeded randomness and ways to cut a stream.
//!
//! Not here: any expectation.

/// splitmix64: the same numbers from the same seed, on every machine.
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// Mostly short, sometimes over the short forms, with line ends and NUL among the bytes.
    pub(super) fn text(&mut self) -> Vec<u8> {
        let length = match self.below(20) {
            0 => 0,
            1 => self.below(12_000),
            2..5 => self.below(300),
            _ => self.below(20),
        };
        (0..length).map(|_| self.pick(b"abcXYZ019 \r\n\0\xff$*:-")).collect()
    }

    /// Changes, drops or doubles a few bytes.
    pub(super) fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            if bytes.is_empty() {
                return;
            }
            // Headers are what is worth damaging: most of them stand early.
            let reach = if self.below(2) == 0 { bytes.len().min(24) } else { bytes.len() };
            let at = self.below(reach);
            match self.below(3) {
                0 => bytes[at] = self.pick(b"0123456789-+$*%|>~\r\n:x\0"),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[at]),
            }
        }
    }

    /// Ends of pieces that make up `length` bytes.
    pub(super) fn cuts(&mut self, length: usize) -> Vec<usize> {
        let longest = self.pick(&[1, 3, 17, 400, 5000]);
        let mut ends = vec![];
        let mut at = 0;
        while at < length {
            at = length.min(at + 1 + self.below(longest));
            ends.push(at);
        }
        ends
    }
}

/// Ways to cut `length` bytes: not at all, into single bytes, in two at each place (of a long
/// stream: at some).
pub(super) fn all_cuts(length: usize) -> Vec<Vec<usize>> {
    let step = 1 + length / 2000;
    let mut ways = vec![vec![length], (1..=length).collect()];
    ways.extend((1..length).step_by(step).map(|cut| vec![cut, length]));
    ways
}
