//! The program: arguments to configuration, and what is to be done with it.
//!
//! Not here: the life of a process that serves (`process`), the options (`config`).
//!
//! Exit codes: 0 done, 1 failed while starting or running (or host not ready), 2 wrong usage.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

use ringway::config::{self, Config, Invocation, Problems};
use ringway::limits::CONFIG_BYTES_MAX;
use ringway::{check, process, ring, top};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Counted, for `memory_limit`.
#[global_allocator]
static ALLOCATOR: ring::Counted = ring::Counted;

/// What the process was started with: passwords are in here only, once it is taken.
struct Start {
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
}

static START: LazyLock<Start> = LazyLock::new(|| {
    let arguments = std::env::args_os().skip(1).collect();
    let start = Start { arguments, variables: std::env::vars_os().collect() };
    // Where the system does not say where the words are, they stay: README.md promises no more
    // than that this is tried.
    let _ = ring::edit_start_words(config::hide_passwords);
    start
});

/// From the arguments, the variables and the file as it is now.
fn load() -> Result<Invocation, Problems> {
    config::load(START.arguments.clone(), START.variables.clone(), &read_file)
}

/// What the running process was started with, as it is now.
fn read_again() -> Result<Config, Problems> {
    match load()? {
        Invocation::Run(config) => Ok(config),
        Invocation::Check(_) | Invocation::Top(_) | Invocation::Version | Invocation::Help => {
            unreachable!("arguments do not change, and they said `run`")
        }
    }
}

fn main() -> ExitCode {
    match load() {
        Ok(Invocation::Help) => print(&config::help()),
        Ok(Invocation::Version) => print(&format!("ringway {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(Invocation::Check(config)) => {
            for warning in &config.warnings {
                say(warning);
            }
            let (report, ready) = check::report(&check::check(&config));
            print(&report);
            if ready { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
        }
        Ok(Invocation::Top(config)) => match config.process.admin_listen.0 {
            Some(address) => match top::run(address) {
                Ok(()) => ExitCode::SUCCESS,
                Err(text) => fail(&text),
            },
            None => fail("admin_listen is off: there is nothing to look at"),
        },
        Ok(Invocation::Run(config)) => process::run(config, &read_again),
        Err(problems) => {
            say(&problems.to_string());
            ExitCode::from(USAGE)
        }
    }
}

/// Reads no more than a configuration may have: the file may be one that never ends.
fn read_file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(config::too_long());
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// To stdout; whoever closed it (`| head`) does not want the rest.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn fail(text: &str) -> ExitCode {
    say(text);
    ExitCode::from(FAILED)
}

/// To stderr; where that is closed or full there is nobody to tell, and `eprintln` would panic.
fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "ringway: {text}");
}
