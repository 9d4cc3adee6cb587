//! The admin endpoint: metrics, readiness, the slot map, the live state, and what it takes from
//! those who ask.
//!
//! Not here: how the page looks (`tests/page.rs`), each rule of readiness (the crate's own tests).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Instant;

use crate::bench::flavour;
use crate::support::client::request;
use crate::support::cluster::{Cluster, Flavour};
use crate::support::http::{Scrape, ask, get};
use crate::support::ports::free_port;
use crate::support::process::{Folder, Process};
use crate::support::proxy::{Proxy, Settings, program};
use crate::support::{goal, millis, seconds, wait_until};

struct Rig {
    cluster: Cluster,
    proxy: Proxy,
    port: u16,
}

fn start(more: &[&str]) -> Rig {
    let cluster = Cluster::three(flavour());
    let port = free_port();
    let listen = format!("--admin-listen=127.0.0.1:{port}");
    let args = [&[listen.as_str(), "--admin-user=default", "--reactors=2"], more].concat();
    let proxy = Proxy::start_with(&cluster, &Settings::args(&args));
    wait_ready(port);
    Rig { cluster, proxy, port }
}

/// One for the tests that count nothing exactly and break nothing.
fn shared() -> &'static Rig {
    static RIG: OnceLock<Rig> = OnceLock::new();
    RIG.get_or_init(|| start(&["--sample-keys"]))
}

#[track_caller]
fn wait_ready(port: u16) {
    wait_until(seconds(10), "readiness", || {
        ask(port, "GET /readyz HTTP/1.1\r\n\r\n").is_ok_and(|answer| answer.status == 200)
    });
}

fn scrape(port: u16) -> Scrape {
    let answer = get(port, "/metrics");
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert!(answer.head.contains("Content-Type: text/plain; version=0.0.4"), "{}", answer.head);
    Scrape::read(&answer.body)
}

/// Waits until the picture, a second old at most, has it.
#[track_caller]
fn wait_metric(port: u16, name: &str, labels: &[(&str, &str)], least: f64) -> Scrape {
    let mut last = scrape(port);
    wait_until(seconds(10), &format!("{name}{labels:?} of {least}"), || {
        last = scrape(port);
        last.sum(name, labels) >= least
    });
    last
}

#[test]
fn metrics_tell_of_commands_nodes_errors_and_times() {
    let rig = start(&[]);
    let mut client = rig.proxy.client();
    // A picture that has all that was asked before this: who waited for the map got errors.
    client.run("EXISTS m:mark");
    client.run("STRLEN m:mark");
    let mark = [("command", "strlen")];
    let before = wait_metric(rig.port, "ringway_commands_total", &mark, 1.0);
    for n in 0..3_000 {
        assert_eq!(client.run(&format!("SET m:{n} v")).text(), "OK");
    }
    // Its own time is counted for each of its nodes: none of those that are added up below.
    client.run("MGET {m:1}1 {m:1}2");
    for _ in 0..5 {
        assert!(client.run("SINTER m:1 m:2").is_error());
        assert!(client.run("LPUSH m:1 x").is_error());
        assert!(
            client.call(&["EVAL", "return redis.call('LPUSH', KEYS[1])", "1", "m:1"]).is_error()
        );
    }
    // The last one's: what is shown is of some moment of the last second.
    let after = wait_metric(rig.port, "ringway_error_replies_total", &[], 15.0);
    let grown =
        |name: &str, labels: &[(&str, &str)]| after.sum(name, labels) - before.sum(name, labels);
    assert_eq!(grown("ringway_commands_total", &[("command", "set"), ("class", "write")]), 3_000.0);
    assert_eq!(grown("ringway_commands_total", &[("class", "split_values")]), 1.0);
    assert_eq!(grown("ringway_redirects_total", &[("kind", "moved")]), 0.0);
    assert_eq!(grown("ringway_retries_total", &[]), 0.0);
    assert_eq!(grown("ringway_crossslot_refusals_total", &[("command", "sinter")]), 5.0);
    assert_eq!(grown("ringway_errors_total", &[("kind", "crossslot")]), 5.0);
    assert_eq!(grown("ringway_replied_errors_total", &[("error", "WRONGTYPE")]), 5.0);
    assert_eq!(grown("ringway_replied_errors_total", &[("error", "CROSSSLOT")]), 5.0);
    assert_eq!(grown("ringway_error_replies_total", &[]), 15.0);
    assert_eq!(grown("ringway_node_error_replies_total", &[]), 10.0);
    let mut nodes = 0.0;
    for node in &rig.cluster.nodes {
        let asked = grown("ringway_node_requests_total", &[("node", &node.address())]);
        assert!(asked > 500.0, "{} was asked {asked} times", node.address());
        let slots = after.sum("ringway_node_slots", &[("node", &node.address())]);
        assert!(slots > 5_000.0, "{slots}");
        nodes += asked;
    }
    assert!(nodes >= 3_005.0, "{nodes}");
    // One command in 64 on average.
    let timed = grown("ringway_request_duration_seconds_count", &[]);
    assert!((15.0..150.0).contains(&timed), "{timed}");
    assert_eq!(grown("ringway_proxy_duration_seconds_count", &[]), timed);
    let whole = grown("ringway_request_duration_seconds_sum", &[]);
    let here = grown("ringway_proxy_duration_seconds_sum", &[]);
    let there = grown("ringway_node_duration_seconds_sum", &[]);
    assert!(here > 0.0 && there > 0.0 && here + there <= whole * 1.001, "{here} {there} {whole}");
    assert_eq!(after.sum("ringway_slots_served", &[]), 16_384.0);
    assert!(grown("ringway_ring_enters_total", &[]) > 0.0);
    wait_until(seconds(10), "the others' end", || {
        scrape(rig.port).sum("ringway_clients", &[]) == 1.0
    });
}

#[test]
fn time_of_a_cut_request_is_counted_for_each_node_that_took_part() {
    let rig = start(&[]);
    let mut client = rig.proxy.client();
    // One key at the first node, two at the second, three at the third.
    let keys = (0..3).flat_map(|i| (0..=i).map(move |n| (i, format!("cut:{n}"))));
    let keys: Vec<String> = keys.map(|(i, name)| rig.cluster.key_on(i, &name)).collect();
    let line = format!("MGET {}", keys.join(" "));
    for _ in 0..1_000 {
        client.run(&line);
    }
    let told = wait_metric(rig.port, "ringway_requests_split_total", &[], 1_000.0);
    let timed = told.sum("ringway_request_duration_seconds_count", &[]);
    assert!(timed > 4.0, "{timed}");
    let whole = told.sum("ringway_request_duration_seconds_sum", &[]);
    for (node, parts) in rig.cluster.nodes.iter().zip([1.0, 2.0, 3.0]) {
        let of = [("node", &*node.address())];
        let count = told.sum("ringway_node_duration_seconds_count", &of);
        let sum = told.sum("ringway_node_duration_seconds_sum", &of);
        // A node with several parts counts once for each; none takes longer than the whole.
        assert!(count >= timed * parts / 2.0, "{count} of {timed} with {parts} parts");
        assert!(sum > 0.0 && sum <= whole * parts * 1.01, "{sum} of {whole} with {parts} parts");
    }
}

#[test]
fn readiness_is_told_of_each_pool() {
    let (cluster, admin) = (Cluster::three(flavour()), free_port());
    let (folder, dead) = (Folder::new("pools"), free_port());
    let text = format!(
        "admin_listen = \"127.0.0.1:{admin}\"\n\
         [[pool]]\nname = \"good\"\nlisten = \"127.0.0.1:{}\"\nnodes = {:?}\n\
         [[pool]]\nname = \"dead\"\nlisten = \"127.0.0.1:{dead}\"\nnodes = \"127.0.0.1:1\"\n",
        free_port(),
        cluster.nodes[0].address(),
    );
    let file = folder.file("ringway.toml");
    std::fs::write(&file, text).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let _proxy = Process::start(&program(), &args, &folder.file("log"));
    // One good pool is enough for the process; which is bad stands below.
    let all = "ready\ngood: ready\ndead: no slot is served\n";
    wait_until(seconds(10), "a verdict on each pool", || {
        ask(admin, "GET /readyz HTTP/1.1\r\n\r\n")
            .is_ok_and(|answer| (answer.status, answer.body.as_str()) == (200, all))
    });
    for (pool, status, body) in [
        ("good", 200, "ready\n"),
        ("dead", 503, "no slot is served\n"),
        ("none", 404, "There is no such pool.\n"),
    ] {
        let answer = get(admin, &format!("/readyz?pool={pool}"));
        assert_eq!((answer.status, answer.body.as_str()), (status, body));
    }
}

#[test]
fn error_replies_are_exact_in_info_at_once_on_all_reactors() {
    let rig = start(&[]);
    let mut clients: Vec<_> = (0..6).map(|_| rig.proxy.client()).collect();
    for n in 1..=30 {
        assert!(clients[n % 6].run("HGET k").is_error());
        let text = clients[(n + 1) % 6].run("INFO stats").string();
        assert!(text.contains(&format!("total_error_replies:{n}\r\n")), "{n}: {text}");
    }
}

#[test]
fn labels_stay_the_same_over_many_keys_and_clients() {
    // Of its own: errors of other tests are labels, too.
    let rig = start(&["--sample-keys"]);
    let fill = |from: u32| {
        for batch in 0..50_u32 {
            let mut client = rig.proxy.client();
            let first = from + batch * 200;
            let texts: Vec<String> =
                (first..first + 200).map(|n| format!("SET secret:{n} value:{n}")).collect();
            texts.iter().for_each(|text| drop(client.run(text)));
        }
    };
    fill(0);
    let before = wait_metric(rig.port, "ringway_commands_total", &[("command", "set")], 10_000.0);
    fill(10_000);
    let after = wait_metric(rig.port, "ringway_commands_total", &[("command", "set")], 20_000.0);
    assert_eq!(before.label_values(), after.label_values());
    let shown = ["/metrics", "/live", "/topology", "/top"].map(|path| get(rig.port, path).body);
    for text in shown {
        assert!(!text.contains("secret:") && !text.contains("value:"), "{text}");
    }
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let rig = shared();
    let mut client = rig.proxy.client();
    for n in 0..2_000 {
        client.run(&format!("SET d:{n} v"));
    }
    client.run("SINTER d:1 d:2");
    let scrape = wait_metric(rig.port, "ringway_crossslot_refusals_total", &[], 1.0);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tuning/grafana-dashboard.json");
    let text = std::fs::read_to_string(path).expect("the dashboard");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_word(c));
    let named: std::collections::BTreeSet<&str> =
        words.filter(|word| word.starts_with("ringway_") || word.starts_with("process_")).collect();
    assert!(named.len() > 20, "{named:?}");
    for name in named {
        assert!(scrape.samples.iter().any(|(own, ..)| own == name), "{name} does not exist");
    }
    let output = std::process::Command::new("python3")
        .args(["-c", "import json, sys; json.load(open(sys.argv[1]))", path])
        .output()
        .expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn thousand_half_open_scrapers_stall_nobody() {
    // Of its own: others' scrapers would be among the oldest.
    let rig = start(&[]);
    let mut held = Vec::new();
    for n in 0..1_000 {
        let mut stream = TcpStream::connect(("127.0.0.1", rig.port)).expect("a connection");
        let begun: &[u8] = [b"".as_slice(), b"GET /metr", b"GET / HTTP/1.1\r\nHost:"][n % 3];
        // The oldest are closed while others come.
        let _ = stream.write_all(begun);
        held.push(stream);
    }
    let mut client = rig.proxy.client();
    let mut slowest = millis(0);
    for n in 0..200 {
        let since = Instant::now();
        assert_eq!(client.run(&format!("SET h:{n} v")).text(), "OK");
        slowest = slowest.max(since.elapsed());
    }
    assert!(slowest < goal(seconds(1)), "a client waited {slowest:?}");
    let since = Instant::now();
    assert_eq!(get(rig.port, "/healthz").status, 200);
    scrape(rig.port);
    assert!(since.elapsed() < goal(seconds(2)), "a scraper waited {:?}", since.elapsed());
    // Those that never finish are closed in the end, all of them.
    wait_until(seconds(12), "half-open scrapers to be closed", || {
        held.retain_mut(|stream| {
            stream.set_read_timeout(Some(millis(1))).unwrap();
            !matches!(stream.read(&mut [0; 64]), Ok(0))
                && !stream
                    .peek(&mut [0; 1])
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
        });
        held.is_empty()
    });
}

#[test]
fn requests_that_are_none_are_refused_and_others_served() {
    let rig = shared();
    let status = |request: &str| ask(rig.port, request).unwrap().status;
    assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), 405);
    assert_eq!(status("DELETE / HTTP/1.1\r\n\r\n"), 405);
    assert_eq!(status("GET /nothing HTTP/1.1\r\n\r\n"), 404);
    assert_eq!(status("nonsense\r\n\r\n"), 400);
    assert_eq!(status("GET /live HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
    assert_eq!(status(&format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(9_000))), 431);
    assert_eq!(status("GET /healthz HTTP/1.1\r\n\r\n"), 200);
    let head = ask(rig.port, "HEAD /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let page = get(rig.port, "/");
    assert!(page.head.contains("text/html") && page.body.contains("<title>Ringway</title>"));
    for word in ["http://www.w3.org", "data:image"] {
        assert!(page.body.contains(word));
    }
    let outside = page.body.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http:") && !outside.contains("https:"), "it needs no network");
    let live = get(rig.port, "/live");
    assert!(live.head.contains("application/json") && live.body.contains("\"ready\":"));
    let map = get(rig.port, "/topology").body;
    for node in &rig.cluster.nodes {
        assert!(map.contains(&format!("\"address\":\"{}\"", node.address())), "{map}");
    }
}

#[test]
fn readiness_is_red_while_draining_and_without_a_map() {
    let port = free_port();
    let listen = format!("--admin-listen=127.0.0.1:{port}");
    let nowhere = Proxy::start_at(&["127.0.0.1:1"], &Settings::args(&[&listen]));
    wait_until(seconds(5), "the endpoint", || {
        ask(port, "GET /readyz HTTP/1.1\r\n\r\n")
            .is_ok_and(|answer| answer.status == 503 && answer.body.contains("no slot is served"))
    });
    assert_eq!(get(port, "/healthz").status, 200);
    assert_eq!(scrape(port).sum("ringway_ready", &[]), 0.0);
    drop(nowhere);

    let rig = start(&["--drain-timeout-ms=120000", "--request-timeout-ms=120000"]);
    let mut client = rig.proxy.client();
    // A script without an end keeps the drain from ending.
    client.send(&request(&["EVAL", "while true do end", "1", "k"]));
    rig.proxy.wait_in_flight();
    rig.proxy.process.terminate();
    wait_until(seconds(2), "readiness to be red", || {
        ask(rig.port, "GET /readyz HTTP/1.1\r\n\r\n")
            .is_ok_and(|answer| answer.status == 503 && answer.body.contains("draining"))
    });
}

#[test]
fn readiness_is_red_when_a_reactor_hangs() {
    let rig = start(&[]);
    let folder = Folder::new("holder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/hold_thread.py");
    let id = rig.proxy.process.id().to_string();
    let said = folder.file("said");
    let holder = Process::start(std::path::Path::new("python3"), &[script, &id, "reactor"], &said);
    let since = Instant::now();
    wait_until(seconds(8), "readiness to be red", || {
        let answer = ask(rig.port, "GET /readyz HTTP/1.1\r\n\r\n");
        answer.is_ok_and(|it| it.status == 503 && it.body.contains("make no turns"))
    });
    assert!(since.elapsed() > millis(500), "at once: {:?}", since.elapsed());
    // The other numbers are still told.
    wait_until(seconds(5), "the metric to say which", || {
        scrape(rig.port).sum("ringway_reactor_turning", &[]) == 1.0
    });
    drop(holder);
}

#[test]
fn second_process_takes_the_address_over_when_the_first_ends() {
    let mut rig = start(&[]);
    let listen = format!("--admin-listen=127.0.0.1:{}", rig.port);
    let mut second = Proxy::start_with(&rig.cluster, &Settings::args(&[&listen]));
    second.wait_log("admin endpoint waits for its address");
    assert_eq!(second.client().run("SET k v").text(), "OK");
    rig.proxy.process.terminate();
    rig.proxy.process.wait(seconds(10)).expect("it ends");
    wait_ready(rig.port);
    second.wait_log("admin endpoint address=");
    second.expect_alive();
}

#[test]
fn top_shows_the_state_once_where_there_is_no_terminal() {
    let rig = shared();
    let listen = format!("--admin-listen=127.0.0.1:{}", rig.port);
    let run =
        |arg: &str| std::process::Command::new(program()).args(["top", arg]).output().unwrap();
    let mut text = String::new();
    // On a host that is overloaded a reactor may indeed not have turned for a second.
    wait_until(seconds(10), "a picture that says ready", || {
        let output = run(&listen);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.starts_with("ringway ") && text.contains("ready\n")
    });
    assert!(text.contains("16384 of 16384 slots served") && !text.contains('\u{1b}'), "{text}");
    for node in &rig.cluster.nodes {
        assert!(text.contains(&node.address()), "{text}");
    }
    let narrow = get(rig.port, "/top?columns=60&rows=10&color=1").body;
    assert_eq!(narrow.lines().count(), 9, "{narrow}");
    assert!(narrow.contains("\u{1b}[1mringway"), "{narrow}");
    let output = run(&format!("--admin-listen=127.0.0.1:{}", free_port()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no answer at the admin address"), "{said}");
    let off = run("--admin-listen=off");
    assert!(String::from_utf8_lossy(&off.stderr).contains("admin_listen is off"));
}

#[test]
fn hot_and_big_keys_are_named_to_the_admin_alone() {
    let rig = start(&["--sample-keys"]);
    let mut client = rig.proxy.client();
    let big = "x".repeat(200_000);
    assert_eq!(client.call(&["SET", "big:1", &big]).text(), "OK");
    assert_eq!(client.call(&["SET", "big:2", &big[..20_000]]).text(), "OK");
    assert_eq!(client.call(&["SET", "small", &big[..1_000]]).text(), "OK");
    client.call(&["APPEND", "big:2", &big[..15_000]]);
    client.call(&["GET", "big:2"]);
    for n in 0..20_000 {
        let key = if n % 2 == 0 { "hot".to_string() } else { format!("cold:{n}") };
        client.call(&["INCR", &key]);
    }
    let hot = client.run("PROXY HOTKEYS").items();
    let first = hot[0].items();
    assert_eq!(first[0].text(), "\"hot\"", "{hot:?}");
    assert!(first[2].integer() > 0, "how many depends on the host: {first:?}");
    let big: Vec<Vec<String>> = client
        .run("PROXY BIGKEYS")
        .items()
        .iter()
        .map(|row| row.items().iter().map(|cell| cell.text()).collect())
        .collect();
    assert_eq!(big.len(), 2, "{big:?}");
    assert_eq!((&*big[0][0], &*big[0][2]), ("\"big:1\"", "\"set\""), "{big:?}");
    assert_eq!((&*big[1][0], &*big[1][2], &*big[1][3]), ("\"big:2\"", "\"get\"", "2"), "{big:?}");
    // What is shown may be a second old: of a time at which the big values were there already, and
    // few of the others.
    let metrics = wait_metric(rig.port, "ringway_keys_sampled_total", &[], 101.0);
    assert!(metrics.sum("ringway_big_values_total", &[]) >= 3.0);
    assert!(metrics.sum("ringway_hottest_keys_ratio", &[]) > 0.3);
    assert_eq!(client.run("PROXY BIGKEYS RESET").text(), "OK");
    assert_eq!(client.run("PROXY BIGKEYS").items().len(), 0);
    assert!(client.run("PROXY HOTKEYS x").is_error());
}

#[test]
fn keys_are_not_told_without_the_option_or_to_others() {
    let cluster = Cluster::three(Flavour::Redis);
    let off = Proxy::start_with(&cluster, &Settings::args(&["--admin-user=default"]));
    let said = off.client().run("PROXY HOTKEYS").text();
    assert_eq!(said, "-ERR keys are not looked at, see the option sample_keys");
    let nobody = Proxy::start_with(&cluster, &Settings::args(&["--sample-keys"]));
    let said = nobody.client().run("PROXY BIGKEYS").text();
    let refused = "-NOPERM User default has no permissions to run the 'proxy|bigkeys' command";
    assert_eq!(said, refused);
}

#[test]
fn slow_requests_are_told_with_the_share_of_their_node() {
    let args = ["--admin-user=default", "--slowlog-log-slower-than=20000"];
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &Settings::args(&args));
    let mut client = proxy.client();
    let script = "local function now() local t = redis.call('TIME') return t[1] * 1000 + \
                  math.floor(t[2] / 1000) end local from = now() while now() - from < 60 do end \
                  return 1";
    assert_eq!(client.call(&["EVAL", script, "1", "slow:k"]).text(), "1");
    let rows = client.run("PROXY SLOWLOG 1").items();
    let row = rows[0].items();
    assert_eq!(row.len(), 8, "{row:?}");
    let (whole, at_node, node) = (row[2].integer(), row[6].integer(), row[7].string());
    assert!((55_000..=whole).contains(&at_node), "{at_node} of {whole}");
    assert!(cluster.nodes.iter().any(|of| of.address() == node), "{node}");
    let plain = client.run("SLOWLOG GET 1").items();
    assert_eq!(plain[0].items().len(), 6, "clients expect six");
    assert!(client.run("PROXY SLOWLOG x").is_error());
}

/// What redis_exporter reads of INFO ALL (its exporter/exporter.go, exporter/info.go).
#[test]
fn info_reads_as_an_exporter_reads_it() {
    let rig = shared();
    let mut client = rig.proxy.client();
    client.run("SET exp:1 v");
    client.run("LPUSH exp:1 v");
    let text = client.run("INFO ALL").string();
    let mut section = "";
    let mut seen = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(title) = line.strip_prefix("# ") {
            section = title;
            continue;
        }
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("no field: {line}"));
        assert!(!seen.contains(&key), "{key} twice");
        seen.push(key);
        let numbers = |value: &str| {
            value.split(',').all(|part| {
                part.split_once('=').is_some_and(|(_, number)| number.parse::<f64>().is_ok())
            })
        };
        match section {
            "Commandstats" => {
                assert!(key.starts_with("cmdstat_") && value.starts_with("calls="), "{line}");
                assert!(value.split(',').count() >= 5 && numbers(value), "{line}");
            }
            "Errorstats" => assert!(key.starts_with("errorstat_") && numbers(value), "{line}"),
            "Keyspace" => assert!(key.starts_with("db") && value.starts_with("keys="), "{line}"),
            "Latencystats" => assert!(numbers(value), "{line}"),
            _ => (),
        }
    }
    for key in [
        "uptime_in_seconds",
        "connected_clients",
        "blocked_clients",
        "used_memory",
        "used_memory_rss",
        "used_memory_peak",
        "maxmemory",
        "mem_fragmentation_ratio",
        "total_connections_received",
        "total_commands_processed",
        "instantaneous_ops_per_sec",
        "total_net_input_bytes",
        "total_net_output_bytes",
        "rejected_connections",
        "used_cpu_sys",
        "used_cpu_user",
        "pubsub_channels",
        "connected_slaves",
        "master_repl_offset",
        "total_error_replies",
    ] {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let value = line.unwrap_or_else(|| panic!("no {key}"));
        assert!(value.trim().parse::<f64>().is_ok(), "{key}:{value}");
    }
    assert!(text.contains("cmdstat_set:") && text.contains("errorstat_WRONGTYPE:"), "{text}");
}
