//! Open-loop load: commands leave at a fixed rate, whether or not earlier ones were answered, and latency counts from
//! the moment at which each was meant to leave. A stall so shows in all commands that it delays, as it does to people;
//! a closed loop (redis-benchmark, memtier_benchmark) stops asking meanwhile and sees one slow command per client
//! ("coordinated omission").
//!
//!     cargo run --release --example open_loop -- --target 127.0.0.1:6379 --rate 50000
//!
//! Not here: when each leaves (`schedule`), sending and receiving (`load`), what comes of it (`figures`).
#![allow(clippy::disallowed_methods)]

mod figures;
mod load;
mod schedule;

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use load::Plan;

const HELP: &str = "\
open_loop: load at a fixed rate, latency from the moment at which each command was meant to leave.

  --target HOST:PORT   a proxy or a server (127.0.0.1:6379)
  --rate N             commands a second, over all connections (10000)
  --connections N      (50)
  --threads N          each with its share of connections and rate (1)
  --seconds N          how long is measured (10)
  --warmup N           seconds before that which do not count (1)
  --arrivals KIND      fixed: evenly spaced; poisson: as independent clients come (fixed)
  --set-share F        share of SET among GET, 0 to 1 (0)
  --keys N             key:000000000000 and on, as redis-benchmark names them (100000)
  --size N             bytes of a value (64)
  --spin N             microseconds before a command is due that are spent looking instead of sleeping (0):
                       sharper times, for a CPU that the load has for itself
  --seed N             chooses keys, commands and Poisson's gaps (1)
  --json FILE          the figures for machines

Exit code: 0; 1 if replies were missing or were errors, or the connection failed; 2 wrong usage.
";

/// What was asked for.
#[derive(Clone, Debug)]
struct Asked {
    target: String,
    json: Option<String>,
    plan: Plan,
}

fn main() -> ExitCode {
    let asked = match parse(std::env::args_os().skip(1)) {
        Ok(Some(asked)) => asked,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("open_loop: {text}; see --help");
            return ExitCode::from(2);
        }
    };
    let figures = match resolve(&asked.target).and_then(|to| load::run(to, &asked.plan)) {
        Ok(figures) => figures,
        Err(error) => {
            eprintln!("open_loop: {}: {error}", asked.target);
            return ExitCode::FAILURE;
        }
    };
    print!("{}", figures.table(&asked.plan));
    if let Some(path) = &asked.json
        && let Err(error) = std::fs::write(path, figures.json(&asked.plan))
    {
        eprintln!("open_loop: {path}: {error}");
        return ExitCode::FAILURE;
    }
    if figures.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn resolve(target: &str) -> std::io::Result<SocketAddr> {
    let first = target.to_socket_addrs()?.next();
    first.ok_or_else(|| std::io::Error::other("the name has no address"))
}

/// `None`: help was asked for.
fn parse<I>(args: I) -> Result<Option<Asked>, String>
where
    I: IntoIterator<Item = std::ffi::OsString>,
{
    let mut asked = Asked { target: "127.0.0.1:6379".into(), json: None, plan: Plan::default() };
    let plan = &mut asked.plan;
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let Long(name) = arg else { return Err(arg.unexpected().to_string()) };
        let name = name.to_owned();
        if name == "help" {
            return Ok(None);
        }
        let text = parser.value().and_then(|value| value.string());
        let text = text.map_err(|error| error.to_string())?;
        let number = |least: u64, most: u64| match text.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(format!("--{name} {text}: wanted a number from {least} to {most}")),
        };
        match name.as_str() {
            "target" => asked.target = text,
            "json" => asked.json = Some(text),
            "rate" => plan.rate = number(1, 10_000_000)?,
            "connections" => plan.connections = number(1, 100_000)? as usize,
            "threads" => plan.threads = number(1, 256)? as usize,
            "seconds" => plan.measured = Duration::from_secs(number(1, 86_400)?),
            "warmup" => plan.warmup = Duration::from_secs(number(0, 3_600)?),
            "keys" => plan.keys = number(1, 1_000_000_000_000)?,
            "size" => plan.size = number(0, 1 << 20)? as usize,
            "spin" => plan.spin = Duration::from_micros(number(0, 1_000_000)?),
            "seed" => plan.seed = number(0, u64::MAX)?,
            "arrivals" => {
                plan.poisson = match text.as_str() {
                    "fixed" => false,
                    "poisson" => true,
                    _ => return Err(format!("--arrivals {text}: wanted fixed or poisson")),
                }
            }
            "set-share" => {
                plan.set_share = match text.parse::<f64>() {
                    Ok(share) if (0.0..=1.0).contains(&share) => share,
                    _ => return Err(format!("--set-share {text}: wanted a number from 0 to 1")),
                }
            }
            _ => return Err(format!("there is no --{name}")),
        }
    }
    if plan.threads > plan.connections {
        return Err("--threads: more than --connections".into());
    }
    Ok(Some(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Asked>, String> {
        parse(text.split_whitespace().map(Into::into))
    }

    #[test]
    fn arguments_are_taken() {
        let asked = parsed("--target h:1 --rate 5 --set-share 0.5 --arrivals poisson").unwrap();
        let asked = asked.unwrap();
        assert_eq!((asked.target.as_str(), asked.plan.rate), ("h:1", 5));
        assert!(asked.plan.poisson && asked.plan.set_share == 0.5);
        assert!(parsed("--help").unwrap().is_none());
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (text, said) in [
            ("--rate 0", "--rate 0: wanted a number from 1"),
            ("--rate", "missing argument"),
            ("--what 1", "there is no --what"),
            ("--set-share 2", "from 0 to 1"),
            ("--arrivals soon", "fixed or poisson"),
            ("--threads 3 --connections 2", "more than --connections"),
            ("x", "unexpected argument"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
