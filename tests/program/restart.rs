//! One process takes over from another: sockets, clients, and what happens when it cannot.
//!
//! Not here: what the options mean, plain ends by signals (`program`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use crate::crowd::{self, Tally};
use crate::support::client::{Client, Got};
use crate::support::cluster::{Cluster, Flavour};
use crate::support::ports::free_port;
use crate::support::process::{Folder, Process};
use crate::support::proxy::program;
use crate::support::{millis, seconds, wait_until};

/// Processes one after the other at the same address.
struct Chain {
    port: u16,
    node: String,
    folder: Folder,
    started: usize,
}

impl Chain {
    fn new(node: String) -> Chain {
        Chain { port: free_port(), node, folder: Folder::new("chain"), started: 0 }
    }

    fn socket(&self) -> String {
        self.folder.file("handover").display().to_string()
    }

    /// Starts the next one.
    fn next(&mut self, more: &[&str]) -> Process {
        self.next_at(&self.node.clone(), more)
    }

    fn next_at(&mut self, node: &str, more: &[&str]) -> Process {
        self.started += 1;
        let (listen, socket) = (format!("127.0.0.1:{}", self.port), self.socket());
        let mut args = vec!["--listen", &listen, "--node", node, "--handover-socket", &socket];
        args.extend_from_slice(more);
        Process::start(&program(), &args, &self.log_file(self.started))
    }

    fn log_file(&self, number: usize) -> std::path::PathBuf {
        self.folder.file(&format!("log-{number}"))
    }

    fn log(&self, number: usize) -> String {
        std::fs::read_to_string(self.log_file(number)).unwrap_or_default()
    }

    fn wait_serving(&self) {
        wait_until(seconds(10), "the proxy to serve", || {
            Client::try_connect(self.port)
                .is_ok_and(|mut client| client.try_call(&["GET", "x"]).is_ok_and(|r| !r.is_error()))
        });
    }

    /// Replaces `old`, which must end well. The new one.
    #[track_caller]
    fn replace(&mut self, mut old: Process, more: &[&str]) -> Process {
        let number = self.started;
        let new = self.next(more);
        let status = old.wait(seconds(20));
        let code = status.and_then(|status| status.code());
        assert_eq!(code, Some(0), "{}\n--- new:\n{}", self.log(number), self.log(self.started));
        new
    }
}

/// G10: 100 restarts with RINGWAY_LONG.
#[test]
fn restarts_under_load_refuse_reset_and_lose_nothing() {
    let restarts = if std::env::var_os("RINGWAY_LONG").is_some() { 100 } else { 8 };
    let cluster = Cluster::three(Flavour::Redis);
    let mut chain = Chain::new(cluster.nodes[0].address());
    let mut process = Some(chain.next(&["--reactors", "2"]));
    chain.wait_serving();
    let (over, tally, port) = (AtomicBool::new(false), Tally::default(), chain.port);
    let (over, tally) = (&over, &tally);
    let start = Instant::now();
    let took = std::thread::scope(|scope| {
        for n in 0..4 {
            let name = format!("new-{n}");
            scope.spawn(move || crowd::newcomers(port, &name, 300, over, tally));
        }
        for (n, depth) in [1, 16, 200].into_iter().enumerate() {
            let name = format!("pipe-{n}");
            scope.spawn(move || crowd::pipeliner(port, &name, depth, over, tally));
        }
        for n in 0..2 {
            let name = format!("talk-{n}");
            let pause = std::time::Duration::from_micros(500 + 700 * n);
            scope.spawn(move || crowd::talker(port, &name, pause, over, tally));
        }
        for n in 0..8 {
            let name = format!("idle-{n}");
            scope.spawn(move || crowd::idler(port, &name, over, tally));
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 0..restarts {
                std::thread::sleep(millis(50));
                let reactors = ["1", "3", "2", "2"][n % 4];
                let old = process.take().expect("one runs");
                process = Some(chain.replace(old, &["--reactors", reactors]));
            }
        }));
        let took = start.elapsed();
        over.store(true, Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        took
    });
    let (made, commands) = (tally.connected.load(Relaxed), tally.commands.load(Relaxed));
    let rate = made * 1_000 / took.as_millis() as u64;
    println!(
        "{restarts} restarts in {took:.1?}: {rate} new connections/s, {commands} commands, slowest \
         reply {} ms, closed between replies {}, {:?}",
        tally.slowest.load(Relaxed),
        tally.closed_between.load(Relaxed),
        tally.faults()
    );
    let last = tally.last_error.lock().unwrap().clone();
    let told = format!("{tally:?}\n{last}\n{}", chain.log(chain.started));
    assert!(tally.faults().iter().all(|&(_, count)| count == 0), "{told}");
    assert_eq!(tally.closed_between.load(Relaxed), 0, "{told}");
    assert!(commands > 1_000, "{told}");
}
