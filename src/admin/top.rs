//! `/top`, which `ringway top` shows: the live page as text for a terminal.
//!
//! Not here: the numbers (`live`), the terminal (`top.rs` of the crate).

use std::fmt::Write;

use super::live::{Live, LiveNode, LivePool};
use super::notes::{Duration, Grade};
use crate::cluster::SLOTS;

/// What it is written for.
pub struct Screen {
    pub columns: usize,
    pub rows: usize,
    pub color: bool,
}

const COLUMNS_MIN: usize = 60;
const COLUMNS_MAX: usize = 400;
const ROWS_MIN: usize = 8;

const RED: u8 = 31;
const GREEN: u8 = 32;
const YELLOW: u8 = 33;
const DIM: u8 = 2;
const BOLD: u8 = 1;
/// Of the nodes in the slot map, in turn.
const COLORS: [u8; 6] = [36, 35, 33, 34, 32, 31];
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Lines within the screen, each ending with a line feed.
pub fn text(live: &Live, screen: &Screen) -> String {
    let columns = screen.columns.clamp(COLUMNS_MIN, COLUMNS_MAX);
    let mut page = Page { lines: Vec::new(), columns, color: screen.color };
    head(&mut page, live);
    for pool in &live.pools {
        pool_part(&mut page, pool);
    }
    reactors(&mut page, live);
    for pool in &live.pools {
        busy(&mut page, pool, live.unix_s);
    }
    page.lines.truncate(screen.rows.max(ROWS_MIN).saturating_sub(1));
    page.lines.concat()
}

struct Page {
    lines: Vec<String>,
    columns: usize,
    color: bool,
}

impl Page {
    fn line(&mut self, parts: &[(u8, String)]) {
        let mut line = String::new();
        let mut room = self.columns;
        for (style, part) in parts {
            // Names come from nodes: none of them is to steer the terminal.
            let shown = part.chars().filter(|letter| !letter.is_control());
            let part: String = shown.take(room).collect();
            room -= part.chars().count();
            // Writing to a String cannot fail.
            let _ = match *style {
                0 => write!(line, "{part}"),
                style if self.color => write!(line, "\x1b[{style}m{part}\x1b[0m"),
                _ => write!(line, "{part}"),
            };
        }
        line.push('\n');
        self.lines.push(line);
    }

    fn title(&mut self, text: String) {
        self.line(&[]);
        self.line(&[(BOLD, text)]);
    }
}

fn head(page: &mut Page, live: &Live) {
    let (style, state) =
        if live.not_ready.is_none() { (GREEN, "ready") } else { (RED, "not ready") };
    page.line(&[
        (BOLD, "ringway ".to_string()),
        (0, format!("{}  up {}  ", env!("CARGO_PKG_VERSION"), span(live.uptime_s))),
        (style, state.to_string()),
    ]);
    page.line(&[(
        0,
        format!(
            "{}/s  p50 {}  p99 {}  here p99 {}  errors {}/s  in {}/s  out {}/s",
            number(live.ops),
            time(live.whole.p50_us),
            time(live.whole.p99_us),
            time(live.here.p99_us),
            number(live.errors_per_s),
            bytes(live.bytes_in),
            bytes(live.bytes_out),
        ),
    )]);
    page.line(&[(
        0,
        format!(
            "clients {}  blocked {}  subscribers {}  in flight {}  waiting {}  memory {} of {}",
            live.clients,
            live.blocked,
            live.subscribers,
            live.in_flight,
            live.waiting,
            bytes(live.memory.held as f64),
            bytes(live.memory.limit as f64),
        ),
    )]);
    for note in &live.notes {
        let style = match note.grade {
            Grade::Bad => RED,
            Grade::Warn => YELLOW,
            Grade::Info => DIM,
        };
        page.line(&[(style, format!("· {}", note.text))]);
    }
}

fn pool_part(page: &mut Page, pool: &LivePool) {
    page.title(format!("pool {}  {} of {SLOTS} slots served", pool.name, pool.covered));
    slot_map(page, pool);
    let width = pool.nodes.iter().map(|node| node.name.chars().count()).max().unwrap_or(0).max(4);
    page.line(&[(
        DIM,
        format!(
            "  {:width$} {:>7} {:>6} {:>9} {:>8} {:>8} {:>6} {:>5} {:>8}",
            "node", "role", "slots", "req/s", "p50", "p99", "queue", "conns", "errors/s"
        ),
    )]);
    let mut letters = 0;
    for node in &pool.nodes {
        let mark = if node.slots > 0 { letter(&mut letters) } else { (0, ' ') };
        let style = if node.healthy { 0 } else { RED };
        page.line(&[(mark.0, format!("{} ", mark.1)), (style, node_line(node, width))]);
    }
}

fn letter(letters: &mut usize) -> (u8, char) {
    let at = *letters;
    *letters += 1;
    (COLORS[at % COLORS.len()], char::from(LETTERS[at % LETTERS.len()]))
}

fn node_line(node: &LiveNode, width: usize) -> String {
    let role = match (node.primary, node.healthy) {
        (_, false) => "failed",
        (true, _) => "primary",
        (false, _) => "replica",
    };
    format!(
        "{:width$} {role:>7} {:>6} {:>9} {:>8} {:>8} {:>6} {:>5} {:>8}",
        node.name,
        node.slots,
        number(node.ops),
        time(node.spread.p50_us),
        time(node.spread.p99_us),
        node.queued,
        node.connections,
        number(node.errors_per_s),
    )
}

/// One letter for each piece of the slots: that of the node which owns most of the piece.
fn slot_map(page: &mut Page, pool: &LivePool) {
    let cells = page.columns;
    let mut letters = 0;
    let owners = pool.nodes.iter().enumerate().filter(|(_, node)| node.slots > 0);
    let marks: Vec<(usize, (u8, char))> =
        owners.map(|(index, _)| (index, letter(&mut letters))).collect();
    let mut parts: Vec<(u8, String)> = Vec::new();
    for cell in 0..cells {
        let (from, to) = (cell * SLOTS / cells, (cell + 1) * SLOTS / cells);
        let mut most = (0, (DIM, '.'));
        for (index, mark) in &marks {
            let ranges = pool.slots.iter().filter(|(_, _, node)| node == index);
            let own: usize = ranges
                .map(|&(first, last, _)| {
                    (usize::from(last) + 1).min(to).saturating_sub(usize::from(first).max(from))
                })
                .sum();
            if own > most.0 {
                most = (own, *mark);
            }
        }
        let (_, (style, letter)) = most;
        match parts.last_mut() {
            Some((last, part)) if *last == style => part.push(letter),
            _ => parts.push((style, letter.to_string())),
        }
    }
    page.line(&parts);
}

fn reactors(page: &mut Page, live: &Live) {
    page.title("reactors".to_string());
    page.line(&[(DIM, "  reactor   cpu   clients      req/s  requests/enter".to_string())]);
    for reactor in &live.reactors {
        let style = if reactor.turns { 0 } else { RED };
        let each = reactor.commands_per_enter.map_or("-".to_string(), |each| format!("{each:.1}"));
        page.line(&[(
            style,
            format!(
                "  {:>7} {:>4.0}% {:>9} {:>10} {each:>15}",
                reactor.index,
                reactor.cpu * 100.0,
                reactor.clients,
                number(reactor.ops),
            ),
        )]);
    }
}

/// What the pool is busy with, and what went wrong or slowly.
fn busy(page: &mut Page, pool: &LivePool, now_s: u64) {
    page.title(format!("pool {}: commands, errors, slow requests", pool.name));
    let commands: Vec<String> =
        pool.commands.iter().map(|one| format!("{} {}/s", one.name, number(one.per_s))).collect();
    page.line(&[(0, format!("  {}", commands.join("  ")))]);
    let errors: Vec<String> = pool
        .errors
        .iter()
        .map(|one| format!("{} {}/s ({} in all)", one.kind, number(one.per_s), one.total))
        .collect();
    if !errors.is_empty() {
        page.line(&[(YELLOW, format!("  {}", errors.join("  ")))]);
    }
    for slow in &pool.slow {
        let place = slow.node.map_or("in the proxy".to_string(), |node| format!("at {node}"));
        page.line(&[(
            DIM,
            format!(
                "  {} ago  {} took {}, of it {} {place}",
                span(now_s.saturating_sub(slow.unix_s)),
                slow.command.replace('|', " "),
                Duration(slow.duration_us),
                Duration(slow.node_us),
            ),
        )]);
    }
}

fn time(us: Option<u64>) -> String {
    us.map_or("-".to_string(), |us| Duration(us).to_string())
}

/// 12345.6 is `12.3k`.
fn number(value: f64) -> String {
    match value {
        0.0..10.0 if value.fract() > 0.0 => format!("{value:.1}"),
        0.0..10_000.0 => format!("{value:.0}"),
        10_000.0..1e6 => format!("{:.1}k", value / 1e3),
        _ => format!("{:.2}M", value / 1e6),
    }
}

fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = value;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.5, 12.0, 9_999.0, 12_345.6, 2_500_000.0].map(number);
        assert_eq!(shown, ["0", "0.5", "12", "9999", "12.3k", "2.50M"]);
        assert_eq!([bytes(5.0), bytes(2048.0)], ["5 B", "2.0 KiB"]);
        assert_eq!([span(5), span(125), span(90_000)], ["5 s", "2 min", "1 d 1 h"]);
    }
}
