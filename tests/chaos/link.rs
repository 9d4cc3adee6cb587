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
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    Ok(stream)
}

/// What has come goes behind `buffer`. `false`: nothing yet. Error: why the connection is over.
pub fn receive(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    quiet_since: Instant,
    tally: &mut Tally,
) -> Result<bool, String> {
    let mut chunk = [0; 64 * 1024];
    match stream.read(&mut chunk) {
        Ok(0) => Err("closed".to_owned()),
        Ok(count) => {
            buffer.extend_from_slice(&chunk[..count]);
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
