//! What a completion says about its operation: 64 bits of user data.
//!
//! Not here: what is done with a completion (`take`).

/// Which operation a completion belongs to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Accept = 1,
    Wake = 2,
    Receive = 3,
    /// The first attempt of a send: no completion when all went out.
    Send = 4,
    /// The rest of a send that did not go out at once.
    SendRest = 5,
    Connect = 6,
    Cancel = 7,
    /// Of a heavy client: one buffer.
    ReceiveOne = 8,
}

/// `generation(24) | kind(8) | index(32)`, highest bits first (io-uring.md 8.6).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Token {
    pub kind: Kind,
    /// 24 bits.
    pub generation: u32,
    /// A socket's index, or a listener's.
    pub index: u32,
}

/// Generations are counted modulo this.
pub const GENERATIONS: u32 = 1 << 24;

impl Token {
    #[inline]
    pub fn encode(self) -> u64 {
        debug_assert!(self.generation < GENERATIONS);
        u64::from(self.generation) << 40 | u64::from(self.kind as u8) << 32 | u64::from(self.index)
    }

    /// None: no operation of ours.
    #[inline]
    pub fn decode(user_data: u64) -> Option<Token> {
        let kind = match (user_data >> 32) as u8 {
            1 => Kind::Accept,
            2 => Kind::Wake,
            3 => Kind::Receive,
            4 => Kind::Send,
            5 => Kind::SendRest,
            6 => Kind::Connect,
            7 => Kind::Cancel,
            8 => Kind::ReceiveOne,
            _ => return None,
        };
        Some(Token { kind, generation: (user_data >> 40) as u32, index: user_data as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: Kind, generation: u32, index: u32) {
        let token = Token { kind, generation, index };
        assert_eq!(Token::decode(token.encode()), Some(token));
    }

    #[test]
    fn token_survives_the_kernel() {
        check(Kind::Accept, 0, 0);
        check(Kind::Receive, GENERATIONS - 1, u32::MAX);
        check(Kind::Send, 1, 7);
        check(Kind::SendRest, 0x00ab_cdef, 0x8000_0000);
        check(Kind::Cancel, 5, 1);
        check(Kind::ReceiveOne, 5, 1);
        assert_eq!(Token::decode(0), None);
        assert_eq!(Token::decode(u64::MAX), None);
    }
}
