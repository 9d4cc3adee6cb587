//! A small blocking client: sends what it is told byte for byte, reads whole replies, and never
//! waits for ever.
//!
//! Not here: reconnecting, pooling, opinions about replies.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::reply::{self, Reply, Unread};

/// Longer than any answer of a healthy or a failing cluster may take, and longer than nothing comes
/// of a long one.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// What a read found.
#[derive(Debug, PartialEq)]
pub enum Got {
    Reply(Reply),
    Closed,
    Nothing,
}

impl Client {
    #[track_caller]
    pub fn connect(port: u16) -> Client {
        Self::try_connect(port).unwrap_or_else(|error| panic!("cannot connect to {port}: {error}"))
    }

    pub fn try_connect(port: u16) -> std::io::Result<Client> {
        Self::try_connect_at(Ipv4Addr::LOCALHOST, port)
    }

    pub fn try_connect_at(host: Ipv4Addr, port: u16) -> std::io::Result<Client> {
        let address = (host, port).into();
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(20))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream, buffer: Vec::new() })
    }

    /// Connects and says HELLO 3.
    #[track_caller]
    pub fn connect_resp3(port: u16) -> Client {
        let mut client = Self::connect(port);
        let hello = client.run("HELLO 3");
        assert!(matches!(hello, Reply::Map(_)), "HELLO 3 answered {}", hello.text());
        client
    }

    /// Sends one command given as words parted by blanks, and reads its reply.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> Reply {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.call(&words)
    }

    #[track_caller]
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(&request(args));
        self.read()
    }

    /// As `call`, for a connection that may break.
    pub fn try_call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> std::io::Result<Reply> {
        self.stream.write_all(&request(args))?;
        match self.read_patiently() {
            Got::Reply(reply) => Ok(reply),
            Got::Closed => Err(ErrorKind::UnexpectedEof.into()),
            Got::Nothing => Err(ErrorKind::TimedOut.into()),
        }
    }

    /// Sends all lines in one write and reads one reply for each.
    #[track_caller]
    pub fn pipeline<S: AsRef<str>>(&mut self, lines: &[S]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        for line in lines {
            let words: Vec<&str> = line.as_ref().split_whitespace().collect();
            bytes.extend(request(&words));
        }
        self.send(&bytes);
        lines.iter().map(|_| self.read()).collect()
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap_or_else(|error| panic!("cannot send: {error}"));
    }

    /// The next reply; panics if the connection closes or nothing comes.
    #[track_caller]
    pub fn read(&mut self) -> Reply {
        match self.read_patiently() {
            Got::Reply(reply) => reply,
            Got::Closed => panic!("closed instead of a reply"),
            Got::Nothing => panic!("nothing for {PATIENCE:?}; so far {:?}", self.seen()),
        }
    }

    /// The text of what comes next: `closed` if it closes, `nothing` if nothing comes.
    pub fn next_text(&mut self) -> String {
        match self.read_patiently() {
            Got::Reply(reply) => reply.text(),
            Got::Closed => "closed".into(),
            Got::Nothing => "nothing".into(),
        }
    }

    /// For what must come. However long all of it takes, some of it comes all the time.
    pub fn read_patiently(&mut self) -> Got {
        self.read_until(|| Instant::now() + PATIENCE)
    }

    /// For what must not come, or may not.
    pub fn read_within(&mut self, limit: Duration) -> Got {
        let deadline = Instant::now() + limit;
        self.read_until(|| deadline)
    }

    fn read_until(&mut self, deadline: impl Fn() -> Instant) -> Got {
        loop {
            match reply::read(&self.buffer) {
                Ok((reply, length)) => {
                    self.buffer.drain(..length);
                    return Got::Reply(reply);
                }
                Err(Unread::Malformed(what)) => panic!("not a reply: {what} in {:?}", self.seen()),
                Err(Unread::Incomplete) => {}
            }
            match self.fill(deadline()) {
                Fill::Some => {}
                Fill::Closed => return Got::Closed,
                Fill::Late => return Got::Nothing,
            }
        }
    }

    /// All bytes until the other side closes (`true`) or is silent for `quiet`.
    pub fn read_until_quiet(&mut self, quiet: Duration) -> (Vec<u8>, bool) {
        loop {
            match self.fill(Instant::now() + quiet) {
                Fill::Some => {}
                Fill::Closed => return (std::mem::take(&mut self.buffer), true),
                Fill::Late => return (std::mem::take(&mut self.buffer), false),
            }
        }
    }

    /// At least `length` bytes, which must come: fewer if it closes, or nothing comes any more. The
    /// flag says closed.
    pub fn read_at_least(&mut self, length: usize) -> bool {
        while self.buffer.len() < length {
            match self.fill(Instant::now() + PATIENCE) {
                Fill::Some => {}
                Fill::Closed => return true,
                Fill::Late => return false,
            }
        }
        false
    }

    /// Reads and drops `count` bytes without keeping them: for replies larger than a test should
    /// hold.
    pub fn skip_bytes(&mut self, mut count: usize) -> bool {
        let kept = count.min(self.buffer.len());
        self.buffer.drain(..kept);
        count -= kept;
        let mut chunk = vec![0; 256 * 1024];
        while count > 0 {
            let want = count.min(chunk.len());
            match self.stream.read(&mut chunk[..want]) {
                Ok(0) | Err(_) => return false,
                Ok(n) => count -= n,
            }
        }
        true
    }

    #[track_caller]
    pub fn expect_closed(&mut self) {
        match self.read_patiently() {
            Got::Closed => {}
            Got::Reply(reply) => panic!("a reply instead of a close: {}", reply.text()),
            Got::Nothing => panic!("still open after {PATIENCE:?}"),
        }
    }

    /// To one who may have closed already.
    pub fn send_what_is_taken(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn end_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Bytes that came and are not read as replies yet.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.buffer[..self.buffer.len().min(400)]).into_owned()
    }

    fn fill(&mut self, deadline: Instant) -> Fill {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Fill::Late;
        }
        let _ = self.stream.set_read_timeout(Some(left));
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Fill::Closed,
            Ok(n) => {
                self.buffer.extend_from_slice(&chunk[..n]);
                Fill::Some
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Fill::Late,
            Err(e) if e.kind() == ErrorKind::Interrupted => Fill::Some,
            Err(_) => Fill::Closed,
        }
    }
}

enum Fill {
    Some,
    Closed,
    Late,
}

/// The array form of a request.
pub fn request<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend(format!("${}\r\n", arg.as_ref().len()).into_bytes());
        out.extend_from_slice(arg.as_ref());
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Sends each line and compares the text of its reply.
#[track_caller]
pub fn check(client: &mut Client, steps: &[(&str, &str)]) {
    for (line, expected) in steps {
        let got = client.run(line).text();
        assert_eq!(&got, expected, "reply to {line:?}");
    }
}
