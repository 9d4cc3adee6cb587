//! One process takes over from another: sockets, clients, and what happens when it cannot.
//!
//! Not here: what the options mean, plain ends by signals (`program`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::crowd::{self, Tally};
use crate::support::client::{Client, Got};
use crate::support::cluster::{Cluster, Flavour};
use crate::support::ports::free_port;
use crate::support::process::{Folder, Process};
use crate::support::proxy::program;
use crate::support::{goal, is_strict, millis, seconds, wait_until};

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

    /// Until it serves, and can be taken over from.
    fn wait_serving(&self, process: &Process) {
        wait_until(seconds(10), "the proxy to serve", || {
            Client::try_connect(self.port)
                .is_ok_and(|mut client| client.try_call(&["GET", "x"]).is_ok_and(|r| !r.is_error()))
        });
        self.wait_door(process);
    }

    /// Until this very process listens at the handover socket: that is a moment after it serves.
    #[track_caller]
    fn wait_door(&self, process: &Process) {
        // It is bound beside its place, by the process' id, and then moved there.
        let beside = format!("{}.{}", self.socket(), process.id());
        wait_until(seconds(10), "the door for the next process", || {
            let sockets = std::fs::read_to_string("/proc/net/unix").expect("Linux");
            let is_bound = sockets.lines().any(|line| line.ends_with(&beside));
            is_bound && !std::path::Path::new(&beside).exists()
        });
    }

    /// The first one, on a socket that the service manager has opened.
    fn managed(&mut self) -> Process {
        self.started += 1;
        let (listen, socket) = (format!("127.0.0.1:{}", self.port), self.socket());
        let args = ["--listen", &listen, "--node", &self.node, "--handover-socket", &socket];
        let args = [&args[..], &["--reactors", "2"]].concat();
        let process = as_manager(self.port, "", &args, &self.log_file(self.started));
        self.wait_serving(&process);
        process
    }

    /// The line in which that process says how long the takeover took, once it does.
    #[track_caller]
    fn steps(&self, number: usize) -> String {
        let found = || {
            let log = self.log(number);
            log.lines().find(|line| line.contains("handover finished")).map(str::to_owned)
        };
        wait_until(seconds(5), "the steps of the takeover in the log", || found().is_some());
        found().expect("it was there")
    }

    /// Prints the steps of the last takeover, and of the one with the longest pause.
    #[track_caller]
    fn tell_steps(&self) {
        println!("G10: {}", self.steps(self.started));
        let all: Vec<String> = (2..=self.started).map(|number| self.steps(number)).collect();
        let pause = |line: &&String| (number_in(line, "longest_pause_ms=") * 10.0) as u64;
        println!("G10: longest pause: {}", all.iter().max_by_key(pause).expect("there was one"));
    }

    /// Replaces `old`, which must end well. The new one.
    #[track_caller]
    fn replace(&mut self, mut old: Process, more: &[&str]) -> Process {
        let number = self.started;
        let new = self.next(more);
        let status = old.wait(seconds(20));
        let code = status.and_then(|status| status.code());
        assert_eq!(code, Some(0), "{}\n--- new:\n{}", self.log(number), self.log(self.started));
        self.wait_door(&new);
        new
    }
}

/// Clients of all kinds while `work` is done, which is told what happens to them; its result.
/// Nothing may happen to them. `name`: of the figure.
pub fn with_crowd<T>(name: &str, port: u16, work: impl FnOnce(&Tally) -> T) -> T {
    let (over, tally) = (&AtomicBool::new(false), &Tally::default());
    let done = std::thread::scope(|scope| {
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
            let pause = Duration::from_micros(500 + 700 * n);
            scope.spawn(move || crowd::talker(port, &name, pause, over, tally));
        }
        for n in 0..8 {
            let name = format!("idle-{n}");
            scope.spawn(move || crowd::idler(port, &name, over, tally));
        }
        // 200 in all.
        for n in 0..4 {
            let name = format!("busy-{n}");
            scope.spawn(move || crowd::busy(port, &name, 50, over, tally));
        }
        let work = std::panic::AssertUnwindSafe(|| work(tally));
        let done = std::panic::catch_unwind(work);
        over.store(true, Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert_eq!(tally.crossed.load(Relaxed), 0, "{tally:?}");
    println!(
        "{name}: {} commands, closed between replies {}, {:?}",
        tally.commands.load(Relaxed),
        tally.closed_between.load(Relaxed),
        tally.faults()
    );
    let told = format!("{tally:?}");
    assert!(tally.faults().iter().all(|&(_, count)| count == 0), "{told}");
    assert_eq!(tally.closed_between.load(Relaxed), 0, "{told}");
    assert!(tally.commands.load(Relaxed) > 1_000, "{told}");
    done
}

/// Slowest reply and longest gap, milliseconds, without anything else than the crowd.
pub fn calm(tally: &Tally) -> (u64, u64) {
    std::thread::sleep(millis(300));
    tally.take_times();
    std::thread::sleep(millis(1_000));
    tally.take_times()
}

/// Through which a client goes: reactor and thread of the old process, thread and reactor of the
/// new one; a node for its last reply there and its first here, and each reactor after that.
const HANDS: u64 = 8;

/// Nobody may be held up longer than `limit`.
pub fn expect_no_pause(what: &str, limit: Duration, calm: (u64, u64), times: (u64, u64)) {
    let ((calm_reply, calm_gap), (reply, gap)) = (calm, times);
    println!(
        "{what}: slowest reply {reply} ms, longest gap between replies {gap} ms (a second before: \
         {calm_reply} ms, {calm_gap} ms)"
    );
    // On a machine that others use each hand on the way may be as late as the latest was before.
    let late = if is_strict() { 0 } else { HANDS * calm_reply.max(calm_gap) };
    let most = goal(limit).as_millis() as u64 + late;
    assert!(reply.max(gap) <= most, "{what}: {reply} ms and {gap} ms, at most {most} ms");
}

/// Who takes part in a restart pauses no longer.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// G10: 100 restarts with RINGWAY_LONG.
#[test]
fn restarts_under_load_refuse_reset_and_lose_nothing() {
    let restarts = if std::env::var_os("RINGWAY_LONG").is_some() { 100 } else { 8 };
    let cluster = Cluster::three(Flavour::Redis);
    let mut chain = Chain::new(cluster.nodes[0].address());
    let first = chain.next(&["--reactors", "2"]);
    chain.wait_serving(&first);
    let mut process = Some(first);
    with_crowd("G10", chain.port, |tally| {
        let calm = calm(tally);
        let (start, before) = (Instant::now(), tally.connected.load(Relaxed));
        for n in 0..restarts {
            std::thread::sleep(millis(50));
            let reactors = ["1", "3", "2", "2"][n % 4];
            let old = process.take().expect("one runs");
            process = Some(chain.replace(old, &["--reactors", reactors]));
        }
        let took = start.elapsed();
        let made = tally.connected.load(Relaxed) - before;
        let rate = made * 1_000 / took.as_millis() as u64;
        println!("G10: {restarts} restarts in {took:.1?}: {rate} new connections/s");
        chain.tell_steps();
        expect_no_pause(&format!("G10: {restarts} restarts"), PAUSE_MAX, calm, tally.take_times());
    });
}

/// With one queue for all reactors, which the service manager has opened.
#[test]
fn restarts_on_a_socket_of_the_service_manager_hold_nobody_up() {
    let restarts = if std::env::var_os("RINGWAY_LONG").is_some() { 20 } else { 2 };
    let cluster = Cluster::three(Flavour::Redis);
    let mut chain = Chain::new(cluster.nodes[0].address());
    let mut process = Some(chain.managed());
    with_crowd("G10", chain.port, |tally| {
        let calm = calm(tally);
        for _ in 0..restarts {
            std::thread::sleep(millis(50));
            let old = process.take().expect("one runs");
            process = Some(chain.replace(old, &["--reactors", "2"]));
        }
        chain.tell_steps();
        expect_no_pause("G10: the manager's socket", PAUSE_MAX, calm, tally.take_times());
    });
}

/// It accepts connections and says nothing on them.
#[test]
fn node_that_hangs_does_not_keep_the_next_process_waiting() {
    let (cluster, mut chain, old) = chain();
    let mut client = Client::connect(chain.port);
    let incr = format!("INCR {}", cluster.key_on(0, "hangs"));
    assert_eq!(client.run(&incr).text(), "1");
    cluster.nodes[2].process.stop();
    let start = Instant::now();
    let _new = chain.replace(old, &["--connect-timeout-ms", "60000"]);
    assert_eq!(client.run(&incr).text(), "2");
    assert!(start.elapsed() < goal(seconds(8)).min(seconds(50)), "{:?}", start.elapsed());
    cluster.nodes[2].process.resume();
    let late = format!("INCR {}", cluster.key_on(2, "hangs"));
    wait_until(seconds(10), "the node to be used", || !client.run(&late).is_error());
}

/// Many clients do not wait for each other: each is read until shortly before it goes.
#[test]
fn idle_clients_in_great_number_go_over_one_by_one() {
    const CLIENTS: usize = 2_000;
    let (_cluster, mut chain, old) = chain();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(chain.port)).collect();
    let _new = chain.replace(old, &["--reactors", "2"]);
    clients.iter_mut().for_each(|client| client.send(b"PING\r\n"));
    clients.iter_mut().for_each(|client| assert_eq!(client.read().text(), "PONG"));
    chain.tell_steps();
    let steps = chain.steps(chain.started);
    assert_eq!(number_in(&steps, "clients="), CLIENTS as f64, "{steps}");
    let pause = number_in(&steps, "longest_pause_ms=");
    assert!(pause <= goal(PAUSE_MAX).as_millis() as f64, "{steps}");
}

/// The number behind `name` in a line of the log.
fn number_in(line: &str, name: &str) -> f64 {
    let rest = line.split(&format!(" {name}")).nth(1).unwrap_or_else(|| panic!("{name} in {line}"));
    rest.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

/// A chain with its first process, in front of a cluster that lives as long.
fn chain() -> (Cluster, Chain, Process) {
    let cluster = Cluster::three(Flavour::Redis);
    let mut chain = Chain::new(cluster.nodes[0].address());
    let process = chain.next(&[]);
    chain.wait_serving(&process);
    (cluster, chain, process)
}

#[test]
fn client_goes_over_with_all_it_has_said_and_half_a_request() {
    let (_cluster, mut chain, old) = chain();
    let mut client = Client::connect_resp3(chain.port);
    client.run("CLIENT SETNAME traveller");
    client.run("CLIENT SETINFO LIB-NAME library");
    let id = client.run("CLIENT ID").integer();
    let mut silent = Client::connect(chain.port);
    silent.send(b"CLIENT REPLY OFF\r\n");
    let mut transaction = Client::connect(chain.port);
    assert_eq!(transaction.run("MULTI").text(), "OK");
    assert_eq!(transaction.run("INCR restart:multi").text(), "QUEUED");
    let mut waiting = Client::connect(chain.port);
    waiting.send(b"BLPOP restart:list 1\r\n");
    client.send(b"*2\r\n$4\r\nECHO\r\n$9\r\nhel");
    let new = chain.next(&[]);
    wait_until(seconds(10), "the new process to take over", || {
        chain.log(2).contains("taken over process=")
    });
    client.send(b"lo wor\r\n");
    assert_eq!(client.read().text(), "\"hello wor\"");
    // What was in the middle of something ends it where it began, and follows then.
    assert_eq!(transaction.run("EXEC").text(), "[1]");
    assert_eq!(waiting.read().text(), "nil-array");
    let mut old = old;
    let status = old.wait(seconds(10)).and_then(|status| status.code());
    assert_eq!(status, Some(0), "{}", chain.log(1));
    assert!(chain.log(1).contains("drained clients_cut=0"), "{}", chain.log(1));
    assert_eq!(client.run("CLIENT ID").integer(), id);
    let info = client.run("CLIENT INFO").string();
    for part in ["name=traveller ", "resp=3", "lib-name=library"] {
        assert!(info.contains(part), "no {part:?} in {info}");
    }
    silent.send(b"INCR restart:silent\r\nCLIENT REPLY ON\r\n");
    assert_eq!(silent.read().text(), "OK");
    assert_eq!(transaction.run("INCR restart:multi").text(), "2");
    assert_eq!(waiting.run("PING").text(), "PONG");
    assert!(Client::connect(chain.port).run("CLIENT ID").integer() > id, "ids stay unique");
    drop(new);
}

#[test]
fn subscriber_is_told_to_move_and_closed_when_another_process_takes_over() {
    let (_cluster, mut chain, old) = chain();
    let mut subscriber = Client::connect_resp3(chain.port);
    let line = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none";
    assert_eq!(subscriber.run(line).text(), "OK");
    subscriber.run("SUBSCRIBE news");
    let start = Instant::now();
    let _new = chain.replace(old, &[]);
    let moving = subscriber.read().text();
    assert!(moving.starts_with(">[\"MOVING\", ") && moving.ends_with(", 1, null]"), "{moving}");
    subscriber.expect_closed();
    assert!(start.elapsed() < goal(seconds(5)), "{:?}", start.elapsed());
}

#[test]
fn process_that_cannot_serve_or_dies_leaves_the_old_one_in_charge() {
    let (_cluster, mut chain, mut old) = chain();
    let mut client = Client::connect(chain.port);
    let nobody = format!("127.0.0.1:{}", free_port());
    let mut dies = chain.next_at(&nobody, &[]);
    wait_until(seconds(10), "it to ask", || chain.log(2).contains("preparing to take over"));
    dies.kill();
    let left =
        |why: &str| chain.log(1).contains("has not taken over") && chain.log(1).contains(why);
    wait_until(seconds(5), "the old one to say so", || left("ended before it could serve"));
    // A listener that cannot be opened, and a cluster that does not answer.
    let mut second = chain.next(&["--listen", "203.0.113.1:6379"]);
    assert_eq!(second.wait(seconds(10)).and_then(|status| status.code()), Some(1));
    assert!(chain.log(3).contains("stays in charge"), "{}", chain.log(3));
    let mut third = chain.next_at(&nobody, &[]);
    assert_eq!(client.run("INCR restart:stays").text(), "1");
    assert_eq!(third.wait(seconds(20)).and_then(|status| status.code()), Some(1));
    let said = chain.log(4);
    assert!(said.contains("no slot map") && said.contains("stays in charge"), "{said}");
    assert!(old.is_running());
    assert_eq!(client.run("INCR restart:stays").text(), "2", "the same connection");
    assert_eq!(Client::connect(chain.port).run("PING").text(), "PONG");
    // And the next one that can serve takes over.
    let _new = chain.replace(old, &[]);
    assert_eq!(client.run("INCR restart:stays").text(), "3");
}

/// Root only: another user must be become.
#[test]
fn process_of_another_user_is_not_spoken_with() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let (_cluster, mut chain, mut old) = chain();
    let copy = chain.folder.file("ringway");
    std::fs::copy(program(), &copy).unwrap();
    let (listen, socket) = (format!("127.0.0.1:{}", free_port()), chain.socket());
    let said = chain.folder.file("stranger");
    // Even if the socket's mode let it in.
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut args: Vec<&str> = ids.to_vec();
    let copy = copy.display().to_string();
    args.extend([&copy, "--listen", &listen, "--node", &chain.node, "--handover-socket", &socket]);
    args.extend(["--reactors", "1"]);
    let mut stranger = Process::start(std::path::Path::new("setpriv"), &args, &said);
    assert_eq!(stranger.wait(seconds(10)).and_then(|status| status.code()), Some(1));
    wait_until(seconds(5), "the old one to say so", || chain.log(1).contains("user 65534"));
    assert!(old.is_running());
    chain.started += 1;
}

/// Opens sockets as a service manager does, and becomes the program.
const AS_MANAGER: &str = "
import os, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('127.0.0.1', int(sys.argv[1])))
listener.listen(100)
listener.setblocking(False)
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
";

fn as_manager(port: u16, name: &str, args: &[&str], log: &std::path::Path) -> Process {
    let (program, port) = (program().display().to_string(), port.to_string());
    let mut all = vec!["-c", AS_MANAGER, &port, name, &program];
    all.extend_from_slice(args);
    Process::start(std::path::Path::new("python3"), &all, log)
}

#[test]
fn socket_of_the_service_manager_is_served_by_all_reactors_and_handed_over() {
    let cluster = Cluster::three(Flavour::Redis);
    let mut chain = Chain::new(cluster.nodes[0].address());
    let old = chain.managed();
    // Ids tell the reactor: odd ones are the first's.
    let served = |chain: &Chain| {
        let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(chain.port)).collect();
        let ids = clients.iter_mut().map(|client| client.run("CLIENT ID").integer());
        let odd = ids.filter(|id| id % 2 == 1).count();
        assert_eq!(odd, 4, "half of the clients for each of two reactors");
        clients
    };
    let mut clients = served(&chain);
    let _new = chain.replace(old, &["--reactors", "2"]);
    clients.iter_mut().for_each(|client| assert_eq!(client.run("PING").text(), "PONG"));
    served(&chain);
}

#[test]
fn socket_of_the_service_manager_that_no_pool_wants_is_named() {
    let folder = Folder::new("manager");
    let (port, other) = (free_port(), format!("127.0.0.1:{}", free_port()));
    let args = ["--listen", &other, "--node", "127.0.0.1:1", "--reactors", "1"];
    let mut process = as_manager(port, "other", &args, &folder.file("log"));
    assert_eq!(process.wait(seconds(10)).and_then(|status| status.code()), Some(1));
    let said = std::fs::read_to_string(folder.file("log")).unwrap();
    assert!(said.contains(&format!("127.0.0.1:{port}")) && said.contains("no pool"), "{said}");
    // By its name it is that pool's.
    let process = as_manager(port, "default", &args, &folder.file("log"));
    wait_until(seconds(10), "it to answer", || {
        Client::try_connect(port).is_ok_and(|mut client| client.try_call(&["PING"]).is_ok())
    });
    drop(process);
}

// --- an end without another process -------------------------------------------------------------------------------

/// How long a client may be silent before a drain closes it, and how long a drain waits for those
/// who never are (`limits`).
const QUIET: Duration = Duration::from_millis(100);
const DRAIN_PATIENCE: Duration = Duration::from_millis(1_000);

/// Who still asks must get to ask often enough, so on a slow machine it is tried some times.
#[test]
fn drain_tells_those_who_wish_to_know_and_serves_who_still_asks() {
    for _ in 0..20 {
        if drain_is_served() {
            return;
        }
    }
    println!("SKIPPED: this machine leaves a client no time to ask ten times a second");
}

/// `false`: this thread had no time, so that its clients were silent, too.
fn drain_is_served() -> bool {
    let (_cluster, chain, mut process) = chain();
    let mut told = Client::connect_resp3(chain.port);
    assert_eq!(told.run("CLIENT MAINT_NOTIFICATIONS ON").text(), "OK");
    let mut untold = Client::connect_resp3(chain.port);
    let mut resp2 = Client::connect(chain.port);
    let refused = resp2.run("CLIENT MAINT_NOTIFICATIONS ON").text();
    assert!(refused.starts_with("-ERR CLIENT MAINT_NOTIFICATIONS needs RESP3"), "{refused}");
    let off = untold.run("CLIENT MAINT_NOTIFICATIONS OFF").text();
    assert_eq!(off, "OK");
    let incr = ["INCR", "restart:busy"];
    let start = Instant::now();
    assert!(!resp2.call(&incr).is_error());
    process.terminate();
    let moving = told.read().text();
    assert!(moving.starts_with(">[\"MOVING\", ") && moving.ends_with(", 1, null]"), "{moving}");
    // Neither the one that has time to go nor one that never falls silent is cut.
    let mut asked = [start; 2];
    while start.elapsed() < millis(400) {
        for (client, asked) in [&mut resp2, &mut told].into_iter().zip(&mut asked) {
            let before = std::mem::replace(asked, Instant::now());
            match client.try_call(&incr) {
                Ok(reply) => assert!(!reply.is_error(), "{}", reply.text()),
                Err(_) if before.elapsed() >= QUIET || start.elapsed() >= DRAIN_PATIENCE => {
                    return false;
                }
                Err(error) => panic!("cut {:?} after it asked: {error}", before.elapsed()),
            }
        }
    }
    assert_eq!(untold.read_patiently(), Got::Closed, "silent for long enough");
    let status = process.wait(seconds(5)).and_then(|status| status.code());
    assert_eq!(status, Some(0), "{}", chain.log(1));
    assert!(chain.log(1).contains("drained clients_cut=0"), "{}", chain.log(1));
    assert!(!std::path::Path::new(&chain.socket()).exists(), "the handover socket is gone");
    true
}

/// Without `handover_socket`: the second starts beside the first, which is told to end.
#[test]
fn restart_without_handover_loses_nothing_of_clients_that_wait_for_their_replies() {
    let restarts = if std::env::var_os("RINGWAY_LONG").is_some() { 20 } else { 2 };
    let cluster = Cluster::three(Flavour::Redis);
    let (port, folder) = (free_port(), Folder::new("beside"));
    let (listen, node) = (format!("127.0.0.1:{port}"), cluster.nodes[0].address());
    let start = |number: usize| {
        let args = ["--listen", &listen, "--node", &node, "--reactors", "1"];
        let log = folder.file(&format!("log-{number}"));
        let process = Process::start(&program(), &args, &log);
        wait_until(seconds(10), "the map", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("slot map taken"))
        });
        process
    };
    let mut process = Some(start(0));
    let (over, tally) = (AtomicBool::new(false), Tally::default());
    let (over, tally) = (&over, &tally);
    std::thread::scope(|scope| {
        for (n, depth) in [1, 16, 100].into_iter().enumerate() {
            let name = format!("pipe-{n}");
            scope.spawn(move || crowd::pipeliner(port, &name, depth, over, tally));
        }
        for n in 0..8 {
            let name = format!("idle-{n}");
            scope.spawn(move || crowd::idler(port, &name, over, tally));
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 1..=restarts {
                let new = start(n);
                let mut old = process.replace(new).expect("one runs");
                old.terminate();
                let status = old.wait(seconds(20)).and_then(|status| status.code());
                assert_eq!(status, Some(0));
            }
        }));
        over.store(true, Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    println!(
        "{restarts} restarts: {} commands, closed between replies {}, {:?}",
        tally.commands.load(Relaxed),
        tally.closed_between.load(Relaxed),
        tally.faults()
    );
    let last = tally.last_error.lock().unwrap().clone();
    let crossed = tally.crossed.load(Relaxed);
    println!("{crossed} clients were silent for so long that their requests crossed the close");
    assert!(crossed == 0 || !is_strict(), "{tally:?} {last}");
    assert!(tally.faults().iter().all(|&(_, count)| count == 0), "{tally:?} {last}");
    let closed = tally.closed_between.load(Relaxed) + crossed;
    assert!(closed >= 11, "all but the newest were closed");
}
