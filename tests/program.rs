//! The program as its user meets it: arguments, mistakes, refusals, signals, exit codes, logs, several clusters.
//!
//! Not here: what commands answer (`cases`, `conformance`), single options (`config`'s own tests).
#![allow(clippy::disallowed_methods)]

#[path = "program/crowd.rs"]
mod crowd;
#[path = "program/manager.rs"]
mod manager;
#[path = "program/reload.rs"]
mod reload;
#[path = "program/restart.rs"]
mod restart;
#[path = "support/mod.rs"]
mod support;

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::client::Client;
use support::cluster::{Cluster, Flavour};
use support::group::Group;
use support::ports::free_port;
use support::process::{Folder, Process, starved_here};
use support::proxy::{Proxy, Settings, program};
use support::{goal, millis, seconds, wait_until};

/// Runs the program to its end, which must come by itself.
fn run(args: &[&str]) -> Output {
    command(&program()).args(args).output().expect("the program starts")
}

fn command(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RINGWAY_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs it and compares the exit code and everything on stderr.
#[track_caller]
fn check(args: &[&str], code: i32, expected: &str) {
    let output = run(args);
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    assert_eq!(output.status.code(), Some(code));
}

/// Its stderr holds all of `parts`.
#[track_caller]
fn check_has(output: &Output, code: i32, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    for part in parts {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert_eq!(output.status.code(), Some(code), "{said}");
}

// --- arguments and mistakes -------------------------------------------------------------------------------------

#[test]
fn help_and_version_go_to_stdout() {
    let help = run(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(text.starts_with("Ringway: ") && text.contains("--listen IP:PORT"), "{text}");
    assert!(help.status.success() && help.stderr.is_empty());
    let version = run(&["--version"]);
    let expected = format!("ringway {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&version.stdout), expected);
    assert!(version.status.success());
}

#[test]
fn start_without_anything_says_what_is_missing() {
    check(
        &[],
        2,
        "ringway: 2 mistakes in the configuration:\n\
         \x20 listen: missing; give --listen IP:PORT, where clients connect\n\
         \x20 nodes: missing; give --node HOST:PORT, once or more: some nodes of the cluster\n\
         'ringway --help' lists every option with its range.\n",
    );
}

#[test]
fn mistakes_are_told_at_once_and_by_line() {
    let folder = Folder::new("mistakes");
    let file = folder.file("ringway.toml");
    let text = "maxclients = \"many\"\nreactor = 2\n\n[[pool]]\nlisten = \"0.0.0.0:6379\"\n\
                password = 5\nnodes = [\"redis://a:7000\"]\nfence_lanes = 0\n";
    std::fs::write(&file, text).unwrap();
    let at = file.display();
    check(
        &["--config", &at.to_string(), "--bussy-poll-us=1"],
        2,
        &format!(
            "ringway: 6 mistakes in the configuration:\n\
             \x20 --bussy-poll-us: no such option; did you mean --busy-poll-us?\n\
             \x20 {at}:1: maxclients = \"many\": wants a number from 1 to 1000000\n\
             \x20 {at}:2: reactor: no such option; did you mean reactors?\n\
             \x20 {at}:6: password: wants a text of 1 to 512 bytes (in quotes in the file)\n\
             \x20 {at}:7: nodes = \"redis://a:7000\": wants HOST:PORT (a name or an address, no URL); \
             several with commas\n\
             \x20 {at}:8: fence_lanes = \"0\": wants a number from 1 to 64\n\
             'ringway --help' lists every option with its range.\n"
        ),
    );
}

#[test]
fn check_ends_with_its_verdict() {
    let output = run(&["check"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ready = text.lines().last().unwrap_or_default().starts_with("Ready");
    assert_eq!(output.status.code(), Some(if ready { 0 } else { 1 }), "{text}");
    assert!(text.contains("io_uring") && text.contains("open files"), "{text}");
}

#[test]
fn port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["--listen", &address, "--node", "127.0.0.1:1", "--reactors", "1"]);
    check_has(&output, 1, &["ringway: cannot listen on", &address, "in use"]);
}

#[test]
fn cpu_that_is_not_ours_is_named() {
    let output = run(&["--listen", "127.0.0.1:9", "--node", "127.0.0.1:1", "--cpus", "1000"]);
    check_has(&output, 1, &["CPU 1000 is not among those that the process may use"]);
}

// --- io_uring refused -------------------------------------------------------------------------------------------

/// Installs a seccomp filter that answers io_uring_setup with an errno, and becomes the program.
const UNDER_SECCOMP: &str = "
import ctypes, os, sys
class Code(ctypes.Structure):
    _fields_ = [('code', ctypes.c_uint16), ('jt', ctypes.c_uint8),
                ('jf', ctypes.c_uint8), ('k', ctypes.c_uint32)]
class Filter(ctypes.Structure):
    _fields_ = [('len', ctypes.c_uint16), ('codes', ctypes.POINTER(Code))]
# Load the number of the call; if it is 425 (io_uring_setup) return the errno, else allow.
codes = (Code * 4)(Code(0x20, 0, 0, 0), Code(0x15, 0, 1, 425),
                   Code(0x06, 0, 0, 0x00050000 | int(sys.argv[1])), Code(0x06, 0, 0, 0x7fff0000))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(Filter(4, codes))) == 0
os.execv(sys.argv[2], sys.argv[2:])
";

fn run_under_seccomp(errno: &str, args: &[String]) -> Output {
    let mut command = command(Path::new("python3"));
    command.args(["-c", UNDER_SECCOMP, errno]).arg(program()).args(args);
    command.output().expect("python3 starts")
}

/// Enough to start; nobody gets as far as serving.
fn start() -> Vec<String> {
    let listen = format!("127.0.0.1:{}", free_port());
    let words = ["--listen", &listen, "--node", "127.0.0.1:1", "--reactors", "1"];
    words.map(str::to_owned).to_vec()
}

#[test]
fn seccomp_that_refuses_io_uring_is_named_with_its_remedy() {
    for (errno, name) in [("1", "EPERM"), ("38", "ENOSYS")] {
        let output = run_under_seccomp(errno, &start());
        check_has(&output, 1, &["cannot set up io_uring", "seccomp", name, "--security-opt"]);
        let checked = run_under_seccomp(errno, &["check".to_owned()]);
        let text = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(text.contains("FAIL  io_uring") && text.contains("Not ready: 1 fault"), "{text}");
        assert_eq!(checked.status.code(), Some(1));
    }
}

/// Root only: another user must be become.
#[test]
fn locked_memory_that_does_not_suffice_is_named_with_its_remedy() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not root");
        return;
    }
    // Where any user may read it.
    let folder = Folder::new("memlock");
    let copy = folder.file("ringway");
    std::fs::copy(program(), &copy).unwrap();
    let mut command = command(Path::new("setpriv"));
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    command.args(["prlimit", "--memlock=0:0"]).arg(copy).args(start());
    let output = command.output().expect("setpriv starts");
    check_has(&output, 1, &["locked memory is limited to 0 KiB", "LimitMEMLOCK", "each reactor"]);
}

// --- without a cluster ------------------------------------------------------------------------------------------

#[test]
fn seeds_that_do_not_answer_are_tried_again_and_clients_get_an_error() {
    let seed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = seed.local_addr().unwrap().to_string();
    let mut proxy = Proxy::start_at(&[&address], &Settings::default());
    let mut client = proxy.client();
    assert_eq!(client.run("PING").text(), "PONG");
    client.send(&support::client::request(&["GET", "a"]));
    for _ in 0..3 {
        // Each attempt is hung up on.
        drop(seed.accept().unwrap());
    }
    let start = Instant::now();
    let reply = client.read().text();
    assert!(reply.contains("CLUSTERDOWN"), "{reply}");
    assert!(start.elapsed() < goal(seconds(6)));
    proxy.expect_alive();
    proxy.wait_log("did not tell the slot map");
}

#[test]
fn one_cluster_found_late_is_served() {
    // Nobody listens at the first seed, ever; the second comes to life.
    let cluster = Cluster::three(Flavour::Redis);
    let seeds = [format!("127.0.0.1:{}", free_port()), cluster.nodes[1].address()];
    cluster.nodes[1].process.stop();
    let proxy = Proxy::start_at(&seeds, &Settings::default());
    std::thread::sleep(millis(300));
    cluster.nodes[1].process.resume();
    let key = cluster.key_on(0, "late");
    wait_until(seconds(10), "the cluster to be served", || {
        proxy.client().run(&format!("SET {key} v")).text() == "OK"
    });
}

// --- signals ----------------------------------------------------------------------------------------------------

#[test]
fn first_sigterm_answers_what_is_in_flight_and_ends_with_0() {
    let cluster = Cluster::three(Flavour::Redis);
    let mut proxy = Proxy::start_with(&cluster, &patient());
    let key = cluster.key_on(0, "drain");
    let (mut busy, mut idle) = (proxy.client(), proxy.client());
    assert_eq!(busy.run(&format!("SET {key} v")).text(), "OK");
    assert_eq!(idle.run("PING").text(), "PONG");
    cluster.nodes[0].process.stop();
    busy.send(&support::client::request(&["GET", &key]));
    wait_until(seconds(5), "the request to be on its way", || {
        idle.run("INFO ringway").text().contains("requests_in_flight:1")
    });
    proxy.process.terminate();
    idle.expect_closed();
    wait_until(seconds(1), "the door to be shut", || {
        support::client::Client::try_connect(proxy.port).is_err()
    });
    assert!(proxy.process.is_running());
    cluster.nodes[0].process.resume();
    assert_eq!(busy.read().text(), "\"v\"");
    busy.expect_closed();
    let status = proxy.process.wait(seconds(5)).expect("ends");
    assert_eq!(status.code(), Some(0), "{}", proxy.log());
    assert!(proxy.log().contains("drained clients_cut=0"), "{}", proxy.log());
}

/// A request at a node that stands still is answered when it goes on, however late that is.
fn patient() -> Settings {
    Settings::args(&["--request-timeout-ms", "120000", "--drain-timeout-ms", "120000"])
}

/// A proxy that was told to end while a client waits for a node that is stopped.
fn draining() -> (Cluster, Proxy, Client) {
    let cluster = Cluster::three(Flavour::Redis);
    let proxy = Proxy::start_with(&cluster, &patient());
    let key = cluster.key_on(0, "drain");
    let mut busy = proxy.client();
    assert_eq!(busy.run(&format!("SET {key} v")).text(), "OK");
    cluster.nodes[0].process.stop();
    busy.send(&support::client::request(&["GET", &key]));
    proxy.wait_in_flight();
    proxy.process.terminate();
    (cluster, proxy, busy)
}

#[test]
fn second_sigterm_ends_at_once_with_1() {
    let (cluster, mut proxy, _busy) = draining();
    assert!(proxy.process.outlives(millis(400)), "it waits for the answer");
    proxy.process.terminate();
    let status = proxy.process.wait(seconds(2)).expect("ends");
    assert_eq!(status.code(), Some(1), "{}", proxy.log());
    assert!(proxy.log().contains("second signal"), "{}", proxy.log());
    cluster.nodes[0].process.resume();
}

/// Where the machine is slow they may be too far apart for the proxy, but not five times.
#[test]
fn two_sigterms_at_once_are_one() {
    for _ in 0..5 {
        let (cluster, mut proxy, mut busy) = draining();
        // Not so soon that the kernel makes one signal of both.
        std::thread::sleep(millis(30));
        proxy.process.terminate();
        // It waits for the answer.
        if !proxy.process.outlives(millis(400)) {
            continue;
        }
        cluster.nodes[0].process.resume();
        assert_eq!(busy.read().text(), "\"v\"");
        let status = proxy.process.wait(seconds(5)).expect("ends");
        assert_eq!(status.code(), Some(0), "{}", proxy.log());
        return;
    }
    panic!("two signals at once ended it five times");
}

#[test]
fn drain_that_takes_too_long_is_cut() {
    let cluster = Cluster::three(Flavour::Redis);
    let mut proxy = Proxy::start_with(&cluster, &Settings::args(&["--drain-timeout-ms", "300"]));
    let key = cluster.key_on(0, "drain");
    let mut busy = proxy.client();
    cluster.nodes[0].process.stop();
    busy.send(&support::client::request(&["GET", &key]));
    proxy.wait_in_flight();
    proxy.process.terminate();
    let status = proxy.process.wait(seconds(3)).expect("ends");
    assert_eq!(status.code(), Some(0), "{}", proxy.log());
    assert!(proxy.log().contains("drain timed out clients_cut=1"), "{}", proxy.log());
    cluster.nodes[0].process.resume();
}

// --- several clusters, and the log ------------------------------------------------------------------------------

#[test]
fn two_pools_serve_two_clusters() {
    let clusters = [Cluster::three(Flavour::Redis), Cluster::three(Flavour::Redis)];
    let ports = [free_port(), free_port()];
    let folder = Folder::new("pools");
    let pool = |i: usize| {
        let node = clusters[i].nodes[i].address();
        format!(
            "[[pool]]\nname = \"p{i}\"\nlisten = \"127.0.0.1:{}\"\nnodes = {node:?}\n",
            ports[i]
        )
    };
    let file = folder.file("ringway.toml");
    std::fs::write(&file, format!("reactors = 1\n\n{}\n{}", pool(0), pool(1))).unwrap();
    let args = ["--config".to_string(), file.display().to_string()];
    let mut process = Process::start(&program(), &args, &folder.file("log"));
    for (i, &port) in ports.iter().enumerate() {
        let value = format!("\"of {i}\"");
        let served = || {
            let mut client = support::client::Client::try_connect(port).ok()?;
            client.try_call(&["SET", "who", &format!("of {i}")]).ok().map(|reply| reply.text())
        };
        wait_until(seconds(10), "a pool to serve", || served().as_deref() == Some("OK"));
        assert_eq!(support::client::Client::connect(port).run("GET who").text(), value);
    }
    for (i, &port) in ports.iter().enumerate() {
        let mut client = support::client::Client::connect(port);
        assert_eq!(client.run("GET who").text(), format!("\"of {i}\""));
        assert_eq!(client.run("DBSIZE").text(), "1");
    }
    process.terminate();
    assert_eq!(process.wait(seconds(5)).and_then(|status| status.code()), Some(0));
}

#[test]
fn log_says_where_it_listens_and_keeps_secrets() {
    let cluster = Cluster::three(Flavour::Redis);
    let settings = Settings::args(&["--password", "hunter2", "--maxclients", "1"]);
    let proxy = Proxy::start_at(&[cluster.nodes[0].address()], &settings);
    let mut client = proxy.client();
    // The one that looked whether it listens may not be gone yet.
    wait_until(seconds(5), "room for one", || {
        client = proxy.client();
        client.try_call(&["AUTH", "hunter2"]).is_ok_and(|reply| reply.text() == "OK")
    });
    wait_until(seconds(10), "the map", || client.run("SET secret-key private").text() == "OK");
    // One too many, then one that speaks no RESP.
    let mut refused = support::client::Client::connect(proxy.port);
    assert!(refused.read().text().contains("max number of clients"));
    client.send(b"*1\r\n+private\r\n");
    wait_until(seconds(5), "the log", || proxy.log().contains("not a request"));
    let log = proxy.log();
    let listening = format!("listening addresses=127.0.0.1:{}", proxy.port);
    for part in [listening.as_str(), "slot map taken", "client refused", "why=maxclients"] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    for secret in ["hunter2", "secret-key", "private"] {
        assert!(!log.contains(secret), "{secret:?} in {log}");
    }
}

#[test]
fn flood_of_one_kind_is_cut_short_in_the_log() {
    let port = free_port();
    let mut child = Command::new(program())
        .args(["--listen", &format!("127.0.0.1:{port}"), "--node", "127.0.0.1:1"])
        .args(["--reactors", "1", "--log-level", "debug"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(seconds(10), "it to listen", || support::client::Client::try_connect(port).is_ok());
    // A million in a long run.
    let errors = if std::env::var_os("RINGWAY_LONG").is_some() { 1_000_000 } else { 5_000 };
    let start = Instant::now();
    for _ in 0..errors {
        let mut client = support::client::Client::connect(port);
        client.send(b"*x\r\n");
        assert!(client.read().is_error());
    }
    assert_eq!(support::client::Client::connect(port).run("PING").text(), "PONG");
    child.kill().unwrap();
    child.wait().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let (lines, bound) = (said.lines().count(), if errors > 5_000 { 1_000 } else { 100 });
    println!("{errors} protocol errors are {lines} lines");
    // Some a second are let through, on a slow machine for longer.
    let bound = bound + 10 * start.elapsed().as_secs() as usize;
    assert!(lines < bound, "a flood is cut short:\n{said}");
}

// --- threads that hang ---------------------------------------------------------------------------------------------

#[test]
fn reactor_that_hangs_ends_the_process_for_its_supervisor() {
    let cluster = Cluster::three(Flavour::Redis);
    let mut proxy = Proxy::start(&cluster);
    let folder = Folder::new("holder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/hold_thread.py");
    let id = proxy.process.id().to_string();
    let said = folder.file("said");
    let holder = Process::start(Path::new("python3"), &[script, &id, "reactor"], &said);
    let held = || std::fs::read_to_string(&said).unwrap_or_default().contains("held");
    wait_until(seconds(5), "one reactor to be held", held);
    let (since, starved) = (Instant::now(), Failing::starved(&proxy)[0]);
    wait_until(seconds(15), "a line in the log", || {
        proxy.log().contains("made no turn for a second")
    });
    // It has no CPU time, as all have on a host that stands still: it is seen by looks alone, which
    // come as late as who looks is given a CPU.
    let (seen, starved) = (since.elapsed(), Failing::starved(&proxy)[0].saturating_sub(starved));
    assert!(seen < goal(seconds(3)) + starved, "seen after {seen:?}, {starved:?} without a CPU");
    let status = proxy.process.wait(seconds(60)).expect("it ends by itself");
    assert_eq!(status.code(), Some(1), "{}", proxy.log());
    assert!(proxy.log().contains("a reactor is stuck, stopping at once"), "{}", proxy.log());
    drop(holder);
}

/// A proxy, its clients, and when one of its reactors began to fail.
struct Failing {
    proxy: Proxy,
    /// Whoever made it fail, and, if there is another reactor, a client of that.
    asked: Client,
    elsewhere: Option<Client>,
    since: Instant,
    /// For how long those had waited for a CPU then who look, and write it down, and read that; and
    /// the reactors.
    starved: [Duration; 2],
}

impl Failing {
    fn starved(proxy: &Proxy) -> [Duration; 2] {
        let is_reactor = |name: &str| name == "reactor";
        let others = proxy.process.starved(|name| !is_reactor(name)) + starved_here();
        [others, proxy.process.starved(is_reactor)]
    }

    /// For how long the machine had no CPU since then: see `starved`.
    fn starved_since(&self) -> [Duration; 2] {
        let [now, before] = [Self::starved(&self.proxy), self.starved];
        [now[0].saturating_sub(before[0]), now[1].saturating_sub(before[1])]
    }
}

/// A debug build takes PROXY FAIL from its admin.
fn failing(reactors: u64, how: &str) -> Option<Failing> {
    let admin = ["--admin-user", "default", "--reactors", &reactors.to_string()];
    let proxy = Proxy::start_at(&["127.0.0.1:1"], &Settings::args(&admin));
    let mut asked = proxy.client();
    if asked.run("PROXY FAIL NOT").text().starts_with("-ERR unknown subcommand") {
        eprintln!("SKIPPED: a build without debug assertions has no PROXY FAIL");
        return None;
    }
    // Each reactor's ids leave a remainder of their own.
    let reactor = |client: &mut Client| client.run("CLIENT ID").integer() as u64 % reactors;
    let own = reactor(&mut asked);
    let mut clients = std::iter::repeat_with(|| proxy.client()).take(200);
    let elsewhere = clients.find_map(|mut client| (reactor(&mut client) != own).then_some(client));
    assert_eq!(elsewhere.is_some(), reactors > 1, "clients come to all reactors");
    let starved = Failing::starved(&proxy);
    asked.send(&support::client::request(&["PROXY", "FAIL", how]));
    Some(Failing { proxy, asked, elsewhere, since: Instant::now(), starved })
}

/// A supervisor starts the next one at once: how long until it serves.
fn next_serves(reactors: u64) -> Duration {
    let (start, starved) = (Instant::now(), starved_here());
    let args = ["--reactors", &reactors.to_string()];
    let next = Proxy::start_at(&["127.0.0.1:1"], &Settings::args(&args));
    assert_eq!(next.client().run("PING").text(), "PONG");
    let started = start.elapsed();
    let starved = starved_here() - starved + next.process.starved(|_| true);
    let most = goal(seconds(1)) + starved;
    assert!(started < most, "serving after {started:?}, {starved:?} of them without a CPU");
    started
}

/// G20: 100 times with RINGWAY_LONG. The watchdog gives a reactor up after 1.5 s of CPU time.
#[test]
fn reactor_that_spins_is_seen_within_a_second_and_ends_the_process() {
    let rounds = if std::env::var_os("RINGWAY_LONG").is_some() { 50 } else { 1 };
    let (mut all_seen, mut all_ended, mut slowest_start) = (Vec::new(), Vec::new(), millis(0));
    let (mut without_cpu, mut most_starved) = (0, millis(0));
    for reactors in [1, 2].into_iter().cycle().take(2 * rounds) {
        let Some(mut failing) = failing(reactors, "SPIN") else { return };
        // A reactor that waits for a CPU does not spin yet; once it does, it waits for nobody else.
        std::thread::sleep(millis(50));
        let [_, to_begin] = failing.starved_since();
        wait_until(seconds(10), "it to be seen", || {
            let log = failing.proxy.log();
            log.contains("made no turn") && log.contains("make no turns")
        });
        let (seen, starved) = (failing.since.elapsed(), failing.starved_since()[0] + to_begin);
        most_starved = most_starved.max(starved);
        let (proxy, since) = (&mut failing.proxy, failing.since);
        // Others are served meanwhile.
        if let Some(client) = &mut failing.elsewhere {
            let start = Instant::now();
            assert_eq!(client.run("PING").text(), "PONG");
            let took = start.elapsed();
            assert!(took < goal(millis(100)), "another reactor answered after {took:?}");
        }
        let status = proxy.process.wait(seconds(60)).expect("it ends by itself");
        assert_eq!(status.code(), Some(1), "{}", proxy.log());
        let ended = since.elapsed();
        // A host that gives it no 1.5 s of CPU time in ten seconds makes it look like one that hangs.
        let hangs = proxy.log().contains("it hangs") && ended > seconds(9);
        without_cpu += u32::from(hangs);
        let how = if hangs { "it hangs" } else { "it spins" };
        for part in ["not ready why=\"1 reactor(s) make no turns\"", "is stuck", how] {
            assert!(proxy.log().contains(part), "no {part:?} in {}", proxy.log());
        }
        // Who looks was given its CPU or not: that is told apart. The rest is a second, two looks,
        // and what a busy machine adds in other ways.
        let most = millis(1_600) + starved;
        assert!(seen < most, "seen after {seen:?}, {starved:?} of them without a CPU to look with");
        failing.asked.expect_closed();
        all_seen.push(seen);
        all_ended.push(ended);
        slowest_start = slowest_start.max(next_serves(reactors));
    }
    all_seen.sort();
    all_ended.sort();
    println!(
        "G20: {} times a reactor spun: seen after {:?} (half of them {:?}; who looks had to wait \
         for a CPU for {most_starved:?} at most), ended after {:?} (half of them {:?}; \
         {without_cpu} had no CPU time), the next process served {slowest_start:?} after its start \
         at most",
        2 * rounds,
        all_seen.last().expect("rounds"),
        all_seen[rounds],
        all_ended.last().expect("rounds"),
        all_ended[rounds],
    );
}

/// G20: 100 times with RINGWAY_LONG, and each time another process serves within a second.
#[test]
fn reactor_that_panics_ends_the_process_at_once_and_the_next_one_serves() {
    let rounds = if std::env::var_os("RINGWAY_LONG").is_some() { 50 } else { 1 };
    let (mut slowest, mut slowest_start) = (millis(0), millis(0));
    for reactors in [1, 3].into_iter().cycle().take(2 * rounds) {
        let Some(mut failing) = failing(reactors, "PANIC") else { return };
        let (proxy, since) = (&mut failing.proxy, failing.since);
        let status = proxy.process.wait(seconds(5)).expect("it ends by itself");
        let ended = since.elapsed();
        assert!(!status.success(), "{}", proxy.log());
        assert!(proxy.log().contains("asked to panic"), "{}", proxy.log());
        assert!(ended < goal(seconds(1)), "after {ended:?}");
        slowest_start = slowest_start.max(next_serves(reactors));
        slowest = slowest.max(ended);
    }
    println!(
        "G20: {} times a reactor panicked: ended after {slowest:?} at most, the next process \
         served {slowest_start:?} after its start at most",
        2 * rounds
    );
    // What is installed does not even unwind: no thread goes on beside a dead one.
    let manifest = include_str!("../Cargo.toml");
    let release = manifest.split("[profile.release]").nth(1).expect("a release profile");
    let release = release.split("\n[").next().unwrap_or_default();
    assert!(release.contains("panic = \"abort\""), "{release}");
}

/// What INFO says of the limit that holds.
fn memory_limit_told(proxy: &Proxy) -> u64 {
    let text = proxy.client().run("INFO memory").string();
    let line = text.lines().find_map(|line| line.strip_prefix("maxmemory:"));
    line.and_then(|number| number.trim().parse().ok()).expect("a number")
}

#[test]
fn memory_limit_is_three_quarters_of_the_host_or_of_the_control_group() {
    let told_by = |proxy: &Proxy| {
        // Shown once a second.
        wait_until(seconds(5), "the limit to be shown", || memory_limit_told(proxy) > 0);
        memory_limit_told(proxy)
    };
    let settings = Settings::default();
    let set = Settings::args(&["--memory-limit", "100mb"]);
    assert_eq!(told_by(&Proxy::start_at(&["127.0.0.1:1"], &set)), 100 << 20);
    let memory = std::fs::read_to_string("/proc/meminfo").expect("Linux");
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("a line");
    let host = total.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024;
    let free = told_by(&Proxy::start_at(&["127.0.0.1:1"], &settings));
    // This test may itself be in a group.
    assert!(free <= host / 4 * 3 && free > 0, "{free} of {host}");
    let Some(group) = Group::with_limit(400 << 20) else { return };
    let proxy = group.inside(|| Proxy::start_at(&["127.0.0.1:1"], &settings));
    assert_eq!(told_by(&proxy), (400 << 20) / 4 * 3);
    drop(proxy);
}

/// A log that cannot be written stops nobody: a full disk, and a pipe whose reader is gone.
#[test]
fn log_that_cannot_be_written_stops_nobody() {
    for full in [true, false] {
        let port = free_port();
        let mut command = command(&program());
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--node", "127.0.0.1:1"]);
        command.args(["--reactors", "1", "--log-level", "debug"]);
        let mut child = match full {
            // Every write to it answers that there is no space left.
            true => command.stderr(std::fs::File::create("/dev/full").expect("Linux")).spawn(),
            false => command.stderr(Stdio::piped()).spawn(),
        }
        .expect("the program starts");
        wait_until(seconds(10), "it to listen", || Client::try_connect(port).is_ok());
        drop(child.stderr.take());
        for _ in 0..300 {
            let mut client = Client::connect(port);
            client.send(b"*x\r\n");
            assert!(client.read().text().starts_with("-ERR Protocol error"));
        }
        assert_eq!(Client::connect(port).run("PING").text(), "PONG");
        assert!(child.try_wait().expect("its state").is_none(), "it runs on");
        let pid = rustix::process::Pid::from_child(&child);
        // `timeout` passes it on.
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        let status = child.wait().expect("its end");
        assert_eq!(status.code(), Some(0), "it drains as ever (full: {full})");
    }
}

#[test]
fn process_stopped_for_a_while_serves_on() {
    let cluster = Cluster::three(Flavour::Redis);
    let mut proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    proxy.process.stop();
    std::thread::sleep(seconds(4));
    proxy.process.resume();
    assert_eq!(client.run("SET after stop").text(), "OK");
    std::thread::sleep(seconds(3));
    proxy.expect_alive();
    assert!(!proxy.log().contains("stuck"), "{}", proxy.log());
}
