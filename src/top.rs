//! `ringway top`: asks a running process what it does, and shows it in the terminal until somebody
//! presses Ctrl-C. Into a file or a pipe: once.
//!
//! Not here: what is shown (`admin/top`), which address (`config`).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::ring::terminal_size;

const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(3);

/// More than any screen holds.
const ANSWER_MAX: u64 = 1 << 20;

/// From the top left on; what is left of the screen is emptied.
const HOME: &str = "\x1b[H";
const LINE_END: &str = "\x1b[K\n";
const EMPTY_BELOW: &str = "\x1b[J";
const CLEAR: &str = "\x1b[2J";

/// Until the terminal is closed. Errors: cause and remedy in one line.
pub fn run(address: SocketAddr) -> Result<(), String> {
    let mut first = true;
    while let Some((columns, rows)) = terminal_size() {
        let query = format!("columns={columns}&rows={rows}&color=1");
        let text = match ask(address, &query) {
            Ok(text) => text,
            Err(error) if first => return Err(error),
            // It is restarted, perhaps.
            Err(error) => format!("{error}\n"),
        };
        let begin = if std::mem::take(&mut first) { CLEAR } else { "" };
        let text = text.replace('\n', LINE_END);
        if !print(&format!("{begin}{HOME}{text}{EMPTY_BELOW}")) {
            return Ok(());
        }
        std::thread::sleep(EVERY);
    }
    print(&ask(address, "columns=120")?);
    Ok(())
}

/// `false`: whoever read it has gone.
fn print(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

fn ask(address: SocketAddr, query: &str) -> Result<String, String> {
    let told = |error: io::Error| {
        format!("no answer at the admin address {address} ({error}); see --admin-listen")
    };
    let answer = fetch(address, query).map_err(told)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body.to_string()),
        Some("503") => Ok("The proxy is starting.\n".to_string()),
        _ => Err(format!("{address} does not answer as a ringway does: {status:.60}")),
    }
}

fn fetch(address: SocketAddr, query: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET /top?{query} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}
