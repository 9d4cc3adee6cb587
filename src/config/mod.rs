//! Configuration: flags over variables over file over defaults, all mistakes told at once.
//!
//! Not here: touching the system (files are read through a function that `main` gives), defaults
//! that depend on the host (`check`), starting anything (`main`).
//!
//! ```text
//! arguments ─┐
//! variables ─┼─ Given (option, what was written, where) ─ assemble ─ Config | Problems
//! file ──────┘
//! ```

mod arguments;
mod assemble;
mod change;
mod file;
mod help;
mod hide;
mod options;
mod problem;
mod value;

use std::ffi::OsString;
use std::io;
use std::path::Path;

pub use change::{Refusal, change, reload, shown};
pub use help::{help, markdown_row};
pub use hide::hide_passwords;
pub use options::{Group, Pool, Process, Row, Scope, User, rows};
pub use problem::{Problem, Problems, Source, nearest};
pub use value::{Admin, Cpus, LogLevel};

use value::Raw;

/// Everything that the process was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    pub process: Process,
    /// At least one, each with at least one address and one node (`check` alone may have none).
    pub pools: Vec<Pool>,
    /// What is legal and still worth a line in the log.
    pub warnings: Vec<String>,
}

/// What the process is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invocation {
    Run(Config),
    /// `ringway check`: the pools may be missing.
    Check(Config),
    /// `ringway top`: the same.
    Top(Config),
    Version,
    Help,
}

/// Reads a file for us. Paths are as they were written, or relative to the configuration file.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// Of a file over `limits::CONFIG_BYTES_MAX`.
pub fn too_long() -> io::Error {
    io::Error::other("it is over 1 MiB")
}

/// From what the process was started with to what it is to do.
///
/// `arguments` without the program's name. Errors: every mistake there is, in one `Problems`.
pub fn load(
    arguments: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    read_file: ReadFile,
) -> Result<Invocation, Problems> {
    let arguments = arguments::read(arguments);
    match arguments.verb {
        arguments::Verb::Help => return Ok(Invocation::Help),
        arguments::Verb::Version => return Ok(Invocation::Version),
        arguments::Verb::Run | arguments::Verb::Check | arguments::Verb::Top => (),
    }
    let variables = arguments::read_variables(variables);
    assemble::assemble(arguments, variables, read_file)
}

/// One option as somebody wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Given {
    /// Name of a known option.
    name: &'static str,
    raw: Raw,
    source: Source,
}

impl Given {
    /// A mistake in this value.
    fn problem(&self, text: String) -> Problem {
        let secret = options::find(self.name).is_some_and(|row| row.secret);
        let value = (!secret).then(|| self.raw.show());
        Problem { source: self.source.clone(), option: self.name.to_string(), value, text }
    }
}

const _: () = assert!(crate::limits::CONFIG_BYTES_MAX == 1 << 20, "`too_long` says 1 MiB");

#[cfg(test)]
mod tests;
