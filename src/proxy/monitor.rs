//! MONITOR: what clients of all reactors ask, shown to those who watch.
//!
//! Only `admin_user` may. Lines are gathered in a turn and handed out at its end, to the watchers
//! here and to the reactors that have some. It is a sample: of so many commands in a while the rest
//! is left out (`limits::MONITOR_LINES_MAX`), long words are cut. Logins and what administers are
//! not shown, so no password is. One who does not read is closed at `pubsub_output_limit`.
//!
//! Not here: how lines travel between reactors (`reactor/peers`).

use std::io::Write;
use std::sync::Arc;

use super::Proxy;
use super::client::Phase;
use super::dispatch::{Asked, Ran};
use super::local::{client::canonical, errors};
use super::peers::{NO_TICKET, Query};
use super::types::{Action, Now};
use crate::command::{Args, Command, Flags};
use crate::limits::{MONITOR_BYTES_MAX, MONITOR_LINES_MAX, MONITOR_WINDOW_MS};

/// Words of one command, and bytes of one word, that are shown.
const WORDS_MAX: usize = 32;
const WORD_MAX: usize = 256;

/// Never shown: they carry passwords.
const SECRET: [&str; 3] = ["AUTH", "HELLO", "MIGRATE"];

#[derive(Debug, Default)]
pub struct Monitors {
    /// Somebody watches, here or elsewhere.
    pub active: bool,
    /// Clients that watch: index and generation.
    clients: Vec<(u32, u32)>,
    /// Other reactors that have some.
    elsewhere: Vec<u16>,
    /// Those of this turn, and where the last of them begins.
    lines: Vec<u8>,
    last: usize,
    window_ms: u64,
    /// Shown since then: commands, and bytes of lines.
    shown: u32,
    bytes: usize,
}

impl Proxy {
    pub(super) fn run_monitor(&mut self, asked: Asked) -> Ran {
        let c = asked.client;
        if !self.is_admin(c) {
            return self.refuse_user(c, "monitor");
        }
        if self.waits_for_elders(c) {
            return Ran::HoldBack;
        }
        let client = &mut self.clients[c];
        if !client.session.monitors {
            client.session.monitors = true;
            client.refresh_plain();
            let watcher = (c, client.generation);
            // After RESET it may still be among them.
            if !self.monitors.clients.contains(&watcher) {
                self.monitors.clients.push(watcher);
                if self.monitors.clients.len() == 1 {
                    self.tell_peers(true);
                }
            }
        }
        self.monitors.active = true;
        self.answer_with(c, |out| out.extend_from_slice(b"+OK\r\n"))
    }

    /// What a client that watches may not ask. `None`: let it be run.
    pub(super) fn check_monitoring(&mut self, c: u32, command: &Command) -> Option<Ran> {
        let allowed = matches!(command.name, "PING" | "QUIT" | "RESET" | "MONITOR");
        let refused = self.clients[c].session.monitors && !allowed;
        refused.then(|| self.answer_with(c, errors::monitors_only))
    }

    /// A client asks something, and somebody watches.
    #[cold]
    pub(super) fn show(&mut self, c: u32, command: &Command, args: &Args) {
        let monitors = &mut self.monitors;
        monitors.last = monitors.lines.len();
        let session = &self.clients[c].session;
        // Neither what is refused nor what a watcher says itself.
        let unasked = !session.authenticated || session.monitors;
        if unasked || command.flags.has(Flags::ADMIN) || SECRET.contains(&command.name) {
            return;
        }
        if self.now.ms >= monitors.window_ms + MONITOR_WINDOW_MS {
            monitors.window_ms = self.now.ms;
            (monitors.shown, monitors.bytes) = (0, 0);
        }
        if monitors.shown >= MONITOR_LINES_MAX || monitors.bytes >= MONITOR_BYTES_MAX {
            return;
        }
        monitors.shown += 1;
        let (seconds, micros) = (self.now.unix_us / 1_000_000, self.now.unix_us % 1_000_000);
        let (database, peer) = (session.database, canonical(session.peer));
        // Writing to a Vec cannot fail.
        let _ = write!(monitors.lines, "+{seconds}.{micros:06} [{database} {peer}]");
        for word in args.iter().take(WORDS_MAX) {
            monitors.lines.push(b' ');
            quote(word, &mut monitors.lines);
        }
        if args.len() > WORDS_MAX {
            let more = args.len() - WORDS_MAX;
            let _ = write!(monitors.lines, " \"... ({more} more arguments)\"");
        }
        monitors.lines.extend_from_slice(b"\r\n");
        monitors.bytes += monitors.lines.len() - monitors.last;
    }

    /// What was shown last is not run yet: it will be shown again.
    pub(super) fn unshow(&mut self) {
        self.monitors.lines.truncate(self.monitors.last);
    }

    /// At the end of a turn.
    #[cold]
    pub(super) fn hand_out_lines(&mut self) {
        let lines = std::mem::take(&mut self.monitors.lines);
        self.monitors.last = 0;
        if !self.monitors.elsewhere.is_empty() {
            let (to, lines) = (self.monitors.elsewhere.clone(), Arc::from(lines.as_slice()));
            self.actions.push(Action::Show { to, lines });
        }
        self.give_lines(&lines);
        self.monitors.lines = lines;
        self.monitors.lines.clear();
        self.monitors.lines.shrink_to(64 * 1024);
    }

    pub(super) fn has_lines(&self) -> bool {
        self.monitors.active && !self.monitors.lines.is_empty()
    }

    /// Another reactor shows what its clients ask.
    pub fn handle_shown(&mut self, lines: &[u8], now: Now) {
        self.now = now;
        self.give_lines(lines);
    }

    fn give_lines(&mut self, lines: &[u8]) {
        for (c, generation) in self.monitors.clients.clone() {
            let client = &mut self.clients[c];
            let watches = client.phase == Phase::Open && client.session.monitors;
            if !watches || client.generation != generation {
                continue;
            }
            let pending = client.output.pending();
            if pending + lines.len() > self.settings.pubsub_output_limit {
                self.close_over_limit(c, "its lines of MONITOR are over pubsub_output_limit");
                continue;
            }
            if pending == 0 {
                client.progress_ms = self.now.ms;
            }
            client.output.buffer(&mut self.client_pool).extend_from_slice(lines);
            self.mark_client_dirty(c);
        }
    }

    /// Forgets those that have left or been reset.
    pub(super) fn tidy_monitors(&mut self) {
        if !self.monitors.active {
            return;
        }
        let before = self.monitors.clients.len();
        let clients = &self.clients;
        self.monitors.clients.retain(|&(c, generation)| {
            let client = &clients[c];
            client.generation == generation
                && client.session.monitors
                && matches!(client.phase, Phase::Open | Phase::Last)
        });
        if before > 0 && self.monitors.clients.is_empty() {
            self.tell_peers(false);
        }
        self.monitors.active =
            !self.monitors.clients.is_empty() || !self.monitors.elsewhere.is_empty();
    }

    fn tell_peers(&mut self, watched: bool) {
        if self.has_peers() {
            let query = Arc::new(Query::Monitor { watched });
            self.actions.push(Action::Ask { ticket: NO_TICKET, query });
        }
    }

    /// Another reactor has watchers now, or none any more.
    pub(super) fn note_watcher(&mut self, from: u16, watched: bool) {
        self.monitors.elsewhere.retain(|&peer| peer != from);
        if watched {
            self.monitors.elsewhere.push(from);
        }
        self.monitors.active =
            !self.monitors.clients.is_empty() || !self.monitors.elsewhere.is_empty();
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// As the server quotes (sds.c `sdscatrepr`).
fn quote(word: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let shown = &word[..word.len().min(WORD_MAX)];
    for &byte in shown {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => {
                let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
                out.extend_from_slice(&[b'\\', b'x', high, low]);
            }
        }
    }
    if word.len() > WORD_MAX {
        let _ = write!(out, "... ({} more bytes)", word.len() - WORD_MAX);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_the_server_does() {
        let mut out = Vec::new();
        quote(b"a \"b\"\\\r\n\x01\xff", &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), r#""a \"b\"\\\r\n\x01\xff""#);
        let mut out = Vec::new();
        quote(&[b'x'; 300], &mut out);
        assert!(out.ends_with(b"xx... (44 more bytes)\""));
    }
}
