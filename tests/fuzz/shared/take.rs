//! An input is bytes; what has several parts is written and read here, so that mutation, shrinking
//! and libFuzzer know bytes alone.
//!
//! Not here: what the parts mean (`targets`).

/// Reads an input from its front. After its end everything is 0 or empty.
pub struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn number(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A part with its length in front (two bytes).
    pub fn piece(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()) << 8 | usize::from(self.byte());
        let (piece, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        piece
    }

    /// All parts that are left, so many at most.
    pub fn pieces(&mut self, most: usize) -> Vec<&'a [u8]> {
        let mut all = Vec::new();
        while !self.0.is_empty() && all.len() < most {
            all.push(self.piece());
        }
        all
    }
}

/// Appends a part as `Take::piece` reads it.
pub fn put_piece(out: &mut Vec<u8>, piece: &[u8]) {
    let piece = &piece[..piece.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(piece.len() as u16).to_be_bytes());
    out.extend_from_slice(piece);
}

/// Parts, one behind the other.
pub fn put_pieces<P: AsRef<[u8]>>(pieces: &[P]) -> Vec<u8> {
    let mut out = Vec::new();
    pieces.iter().for_each(|piece| put_piece(&mut out, piece.as_ref()));
    out
}

/// A line of a frame: what it is, and a length or a count.
pub fn put_line(kind: u8, number: usize, out: &mut Vec<u8>) {
    out.push(kind);
    put_number(number, out);
}

/// Digits and the line's end. Inputs are full of them, and formatting is slow.
pub fn put_number(number: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let mut left = number;
    loop {
        out.push(b'0' + (left % 10) as u8);
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out[start..].reverse();
    out.extend_from_slice(b"\r\n");
}
