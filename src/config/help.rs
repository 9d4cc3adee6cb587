//! `--help`, and the rows of README.md's table of options.
//!
//! Not here: the facts (`options`).

use std::fmt::Write;

use super::options::{Group, Row, Scope, rows};

const WIDTH: usize = 96;
const INDENT: usize = 6;

/// The whole text of `ringway --help`.
pub fn help() -> String {
    let mut out = String::from(
        "Ringway: one address for a whole Redis or Valkey Cluster.\n\
         Any client that speaks to one server speaks to the cluster through it.\n\
         \n\
         Usage:\n\
         \x20 ringway --listen IP:PORT --node HOST:PORT [--node HOST:PORT ...] [option ...]\n\
         \x20 ringway --config FILE [option ...]\n\
         \x20 ringway check [option ...]      say whether this host is ready, and what to change\n\
         \x20 ringway top [option ...]        show what a running proxy of this host does, at its\n\
         \x20                                 admin_listen\n\
         \x20 ringway --version | --help\n\
         \n\
         Example:\n\
         \x20 ringway --listen 0.0.0.0:6379 --node 10.0.0.1:7000 --reactors 4\n\
         \n\
         Every option is a flag (below), a variable (--log-level: RINGWAY_LOG_LEVEL; --node:\n\
         RINGWAY_NODES) and a key of the TOML file (log_level). A flag beats a variable,\n\
         a variable beats the file. [pool] marks what stands in a [[pool]] of the file;\n\
         flags and variables for those describe the only pool. Switches: --split-reads=off.\n\
         Sizes may be written 64kb, 1 MiB, 2g. Lists: the flag again, or commas.\n\
         \n\
         \x20 --config FILE\n\
         \x20     The TOML file (RINGWAY_CONFIG). With [[pool]] several times, one process serves\n\
         \x20     several clusters.\n",
    );
    for (group, title) in Group::ALL {
        let _ = write!(out, "\n{title}:\n");
        for row in rows().iter().filter(|row| row.group == group) {
            option(row, &mut out);
        }
    }
    out.push_str(
        "\nSignals: SIGTERM or SIGINT drains (a second one stops at once), SIGHUP reads\n\
         the configuration again.\n\
         Exit code: 0 done, 1 failed while starting or running, or host not ready, 2 wrong usage\n\
         or configuration.\n",
    );
    out
}

fn option(row: &Row, out: &mut String) {
    let several = if row.is_list() { " (again for more)" } else { "" };
    let pool = if row.scope == Scope::Pool { "  [pool]" } else { "" };
    let value =
        if row.is_switch() { "[=on|off]".to_string() } else { format!(" {}", row.placeholder) };
    let _ = writeln!(out, "  {}{value}{several}{pool}", row.flag());
    let default = match row.default.as_str() {
        "none" => String::new(),
        default => format!("; default {default}"),
    };
    let range = if row.is_switch() { "on or off" } else { row.wanted.as_str() };
    wrap(&format!("{} ({range}{default})", row.reason), out);
}

fn wrap(text: &str, out: &mut String) {
    let mut column = WIDTH;
    for word in text.split_whitespace() {
        if column + 1 + word.chars().count() > WIDTH {
            if column < WIDTH || !out.ends_with('\n') {
                out.push('\n');
            }
            let _ = write!(out, "{:INDENT$}{word}", "");
            column = INDENT + word.chars().count();
        } else {
            let _ = write!(out, " {word}");
            column += 1 + word.chars().count();
        }
    }
    out.push('\n');
}

/// One line of README.md's table: name, flag, variable, default, range, reason.
pub fn markdown_row(row: &Row) -> String {
    format!(
        "| `{}` | `{}` | `{}` | {} | {} | {} |",
        row.name,
        row.flag(),
        row.variable(),
        row.default,
        row.wanted,
        row.reason
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_option_and_fits_the_terminal() {
        let help = help();
        for row in rows() {
            assert!(help.contains(&format!("  {}", row.flag())), "{}", row.name);
        }
        for line in help.lines() {
            assert!(line.chars().count() <= WIDTH + 4, "{line}");
            assert!(!line.ends_with(' '), "{line:?}");
        }
    }
}
