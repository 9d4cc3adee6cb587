//! Lines to stderr: `time level part message key=value ...`. A flood of one kind is cut short and
//! counted; a full pipe or disk stops nobody.
//!
//! Not here: reading the clock (callers are told the time), and secrets: neither passwords nor keys
//! nor values of clients may be handed to a line.
//!
//! Threads write into a bounded channel and never wait; one thread empties it into stderr.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::thread::JoinHandle;
use std::time::Duration;

use ahash::AHashMap;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};

use crate::limits::{LOG_BURST, LOG_QUEUE_MAX, LOG_REFILL_US};

/// How grave a line is.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

/// What stands behind the message. Values are escaped.
pub type Fields<'a> = &'a [(&'static str, &'a dyn Display)];

/// One part's way to the log. Each thread has its own, with its own buckets.
pub struct Log {
    level: Level,
    part: String,
    sender: Sender<String>,
    buckets: AHashMap<&'static str, Bucket>,
    /// Lines that did not fit into the channel since the last one that did.
    lost: u64,
}

/// The thread that writes. Keep it until the end and `finish` it.
pub struct Writer {
    thread: Option<JoinHandle<()>>,
    done: Receiver<()>,
    /// An empty text is the end.
    sender: Sender<String>,
}

/// Starts the writing thread. Lines graver than or equal to `level` are written.
pub fn start(level: Level) -> std::io::Result<(Log, Writer)> {
    let (sender, lines) = bounded::<String>(LOG_QUEUE_MAX);
    let (finished, done) = unbounded();
    let write = move || {
        for line in lines.iter().take_while(|line| !line.is_empty()) {
            // A log that cannot be written must not stop the proxy: the error has nowhere to go.
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
        let _ = finished.send(());
    };
    let thread = std::thread::Builder::new().name("log".to_string()).spawn(write)?;
    let writer = Writer { thread: Some(thread), done, sender: sender.clone() };
    let log = Log { level, part: "main".into(), sender, buckets: AHashMap::new(), lost: 0 };
    Ok((log, writer))
}

impl Writer {
    /// Waits until all lines so far are written, at most `patience`: stderr may be a pipe that
    /// nobody reads. Threads that still run may have a `Log`: nothing of theirs is waited for.
    pub fn finish(mut self, patience: Duration) {
        if self.sender.send_timeout(String::new(), patience).is_err() {
            return;
        }
        if self.done.recv_timeout(patience).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl Log {
    /// Writes nothing.
    #[cfg(test)]
    pub fn silent() -> Log {
        let (sender, _) = bounded(1);
        Log { level: Level::Error, part: String::new(), sender, buckets: AHashMap::new(), lost: 0 }
    }

    /// The same log for another part or thread.
    pub fn for_part(&self, part: impl Into<String>) -> Log {
        Log {
            level: self.level,
            part: part.into(),
            sender: self.sender.clone(),
            buckets: AHashMap::new(),
            lost: 0,
        }
    }

    /// From now on, for this part.
    pub fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    pub fn error(&mut self, unix_us: u64, message: &'static str, fields: Fields) {
        self.line(unix_us, Level::Error, message, fields);
    }

    pub fn warn(&mut self, unix_us: u64, message: &'static str, fields: Fields) {
        self.line(unix_us, Level::Warn, message, fields);
    }

    pub fn info(&mut self, unix_us: u64, message: &'static str, fields: Fields) {
        self.line(unix_us, Level::Info, message, fields);
    }

    pub fn debug(&mut self, unix_us: u64, message: &'static str, fields: Fields) {
        self.line(unix_us, Level::Debug, message, fields);
    }

    /// Writes how many lines were suppressed of kinds that have fallen silent. Call it now and then
    /// (once a second will do); it costs nothing when there is nothing to tell.
    pub fn handle_time(&mut self, unix_us: u64) {
        let mut due = Vec::new();
        for (message, bucket) in &mut self.buckets {
            if bucket.suppressed > 0 && bucket.take(unix_us) {
                due.push((*message, std::mem::take(&mut bucket.suppressed)));
            }
        }
        for (message, suppressed) in due {
            let fields: Fields = &[("message", &message), ("suppressed", &suppressed)];
            self.send(unix_us, Level::Warn, "lines suppressed", fields, 0);
        }
    }

    /// `message` says what happened and never varies: it is the kind that the bucket goes by.
    fn line(&mut self, unix_us: u64, level: Level, message: &'static str, fields: Fields) {
        if level > self.level {
            return;
        }
        let bucket = self.buckets.entry(message).or_insert_with(|| Bucket::full(unix_us));
        if !bucket.take(unix_us) {
            bucket.suppressed += 1;
            return;
        }
        let suppressed = std::mem::take(&mut bucket.suppressed);
        self.send(unix_us, level, message, fields, suppressed);
    }

    fn send(&mut self, unix_us: u64, level: Level, message: &str, fields: Fields, suppressed: u64) {
        let mut line = String::with_capacity(128);
        write_time(unix_us, &mut line);
        let _ = write!(line, " {} {} {message}", level.name(), self.part);
        for (key, value) in fields {
            let _ = write!(line, " {key}=");
            write_value(&value.to_string(), &mut line);
        }
        for (key, count) in [("suppressed", suppressed), ("lost", self.lost)] {
            if count > 0 {
                let _ = write!(line, " {key}={count}");
            }
        }
        line.push('\n');
        match self.sender.try_send(line) {
            Ok(()) => self.lost = 0,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.lost += 1,
        }
    }
}

/// A token bucket for one kind of line.
struct Bucket {
    tokens: u32,
    /// When the last token was put in. Wall clock: a jump back only delays the next one.
    filled_us: u64,
    suppressed: u64,
}

impl Bucket {
    fn full(now_us: u64) -> Bucket {
        Bucket { tokens: LOG_BURST, filled_us: now_us, suppressed: 0 }
    }

    fn take(&mut self, now_us: u64) -> bool {
        let earned = now_us.saturating_sub(self.filled_us) / LOG_REFILL_US;
        if earned >= u64::from(LOG_BURST - self.tokens) {
            self.tokens = LOG_BURST;
            self.filled_us = now_us.max(self.filled_us);
        } else {
            // Smaller than LOG_BURST here, so it fits.
            self.tokens += u32::try_from(earned).unwrap_or(0);
            self.filled_us += earned * LOG_REFILL_US;
        }
        if now_us.saturating_add(LOG_REFILL_US) < self.filled_us {
            self.filled_us = now_us;
        }
        self.tokens = match self.tokens.checked_sub(1) {
            Some(rest) => rest,
            None => return false,
        };
        true
    }
}

/// Plain when it is a word, quoted otherwise; nothing in it can end the line or the quotes.
fn write_value(value: &str, out: &mut String) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/,+[]*%@".contains(&b);
    if !value.is_empty() && value.bytes().all(plain) {
        out.push_str(value);
        return;
    }
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            // Terminals obey control characters, also those above ASCII.
            c if c.is_control() => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// RFC 3339 in UTC with milliseconds.
fn write_time(unix_us: u64, out: &mut String) {
    let (seconds, millis) = (unix_us / 1_000_000, unix_us / 1_000 % 1_000);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let _ =
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z");
}

/// Year, month, day of a day since 1970-01-01 (H. Hinnant, "chrono-compatible low-level date
/// algorithms", civil_from_days, for days that are not negative).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, january) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year_of_era + era * 400 + january, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_767_323_045_678_901;

    /// A log whose lines stay in its channel.
    fn log() -> (Log, Receiver<String>) {
        let (sender, lines) = bounded(LOG_QUEUE_MAX);
        let buckets = AHashMap::new();
        (Log { level: Level::Info, part: "reactor-0".into(), sender, buckets, lost: 0 }, lines)
    }

    #[test]
    fn line_shows_time_level_part_message_and_fields() {
        let (mut log, lines) = log();
        log.warn(
            NOW,
            "client refused",
            &[("peer", &"[::1]:9"), ("why", &"too \"many\"\r\n\x1b[0m")],
        );
        assert_eq!(
            lines.recv().unwrap(),
            "2026-01-02T03:04:05.678Z warn reactor-0 client refused peer=[::1]:9 \
             why=\"too \\\"many\\\"\\r\\n\\u{1b}[0m\"\n"
        );
    }

    #[test]
    fn line_below_the_level_is_not_written() {
        let (mut log, lines) = log();
        log.debug(NOW, "detail", &[]);
        assert!(lines.is_empty());
    }

    #[test]
    fn flood_of_one_kind_is_cut_and_counted() {
        let (mut log, lines) = log();
        // A million errors in ten seconds.
        for n in 0..1_000_000 {
            log.warn(NOW + n * 10, "protocol error", &[]);
        }
        log.warn(NOW, "another kind", &[]);
        log.handle_time(NOW + 60_000_000);
        let lines: Vec<String> = lines.try_iter().collect();
        assert!(lines.len() < 100, "{}", lines.len());
        let suppressed: u64 = lines
            .iter()
            .filter_map(|line| line.trim().rsplit_once("suppressed=")?.1.parse::<u64>().ok())
            .sum();
        let written = lines.iter().filter(|line| line.contains("0 protocol error")).count();
        assert_eq!(suppressed + written as u64, 1_000_000);
        assert!(lines.iter().any(|line| line.contains("another kind")));
    }

    #[test]
    fn full_channel_loses_lines_and_says_how_many() {
        let (sender, lines) = bounded(1);
        let buckets = AHashMap::new();
        let mut log = Log { level: Level::Info, part: "p".into(), sender, buckets, lost: 0 };
        for message in ["a", "b", "c"] {
            log.info(NOW, message, &[]);
        }
        lines.recv().unwrap();
        log.info(NOW, "d", &[]);
        assert!(lines.recv().unwrap().ends_with("d lost=2\n"));
    }

    #[test]
    fn clock_that_jumps_back_does_not_silence_the_log() {
        let mut bucket = Bucket::full(NOW);
        while bucket.take(NOW) {}
        assert!(!bucket.take(NOW - 86_400_000_000));
        assert!(bucket.take(NOW - 86_400_000_000 + LOG_REFILL_US));
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(20_454), (2026, 1, 1));
    }
}
