//! One connection of a client that judges what it is told: made, and read with patience.
//!
//! Not here: what is sent, what a reply may say (`writer`, `reader`).

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::tally::Tally;

/// Longer than any answer may take: the request time-out and all that is waited out before.
pub const PATIENCE: Duration = Duration::from_secs(45);

pub fn connect(port: u16) -> io::Result<TcpStream> {
    let address = ([127, 0, 0, 1], port).into();
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(20))?;
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    Ok(stream)
}

/// What has come and was not judged yet. Read into straight from the socket, and kept: the checker
/// shares its CPUs with what it checks.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Inbox {
    /// Bytes that one read may bring.
    const ROOM: usize = 64 * 1024;

    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// So many have been judged.
    pub fn advance(&mut self, count: usize) {
        self.from += count;
        if self.from >= self.to {
            (self.from, self.to) = (0, 0);
        }
    }

    pub fn clear(&mut self) {
        (self.from, self.to) = (0, 0);
    }

    fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.to < Self::ROOM {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            if self.bytes.len() - self.to < Self::ROOM {
                self.bytes.resize(2 * self.to + 2 * Self::ROOM, 0);
            }
        }
        &mut self.bytes[self.to..]
    }
}

/// What has come goes into `inbox`. `false`: nothing yet. Error: why the connection is over.
pub fn receive(
    stream: &mut TcpStream,
    inbox: &mut Inbox,
    quiet_since: Instant,
    tally: &mut Tally,
) -> Result<bool, String> {
    match stream.read(inbox.room()) {
        Ok(0) => Err("closed".to_owned()),
        Ok(count) => {
            inbox.to += count;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            if quiet_since.elapsed() > PATIENCE {
                tally.hung += 1;
                return Err("nothing came".to_owned());
            }
            Ok(false)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(format!("{:?}", error.kind())),
    }
}

#[test]
fn inbox_keeps_what_was_not_judged_however_it_comes() {
    let (mut inbox, mut sent, mut judged) = (Inbox::default(), 0_u64, 0_u64);
    for turn in 0..2_000_usize {
        // More than is judged in most turns, so that it grows and moves.
        for byte in inbox.room().iter_mut().take(turn * 37 % Inbox::ROOM) {
            *byte = sent as u8;
            sent += 1;
        }
        inbox.to += turn * 37 % Inbox::ROOM;
        let some = inbox.unread().len() * (turn % 7) / 6;
        for (i, byte) in inbox.unread()[..some].iter().enumerate() {
            assert_eq!(*byte, (judged + i as u64) as u8, "turn {turn}");
        }
        inbox.advance(some);
        judged += some as u64;
        assert_eq!(inbox.unread().len() as u64, sent - judged);
    }
    assert!(judged > 1 << 20 && inbox.bytes.len() < 1 << 22, "{judged} {}", inbox.bytes.len());
}
