//! What operators use beside the program, as they meet it: the scripts of `bench` and `tuning`, the service manager's
//! and the container's settings.
//!
//! Not here: figures (nothing here is measured), the program itself (`program`), the load program and the
//! micro-benchmarks (their own tests).
#![allow(clippy::disallowed_methods)]

#[path = "support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use support::client::Client;
use support::cluster::{Cluster, Flavour};
use support::ports::{free_port, free_ports};
use support::process::{Folder, Process, with_prefix};
use support::proxy::{Proxy, Settings, program};
use support::reply::Reply;
use support::{seconds, wait_until};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a program of the repository to its end, from its root.
fn run(script: &str, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["400", script]).args(args).current_dir(root()).stdin(Stdio::null());
    command.output().expect("timeout starts")
}

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Its exit code, and parts of what it says on either stream.
#[track_caller]
fn check(output: &Output, code: i32, parts: &[&str]) {
    let said = text(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
}

// --- bench ------------------------------------------------------------------------------------------------------

#[test]
fn parts_of_compare_keep_their_promises() {
    let args = ["-B", "-m", "unittest", "discover", "-s", "bench/measure"];
    check(&run("python3", &args), 0, &["OK"]);
}

#[test]
fn compare_says_what_is_wrong_before_it_starts_anything() {
    let wrong = |args: &[&str], part: &str| check(&run("bench/compare.sh", args), 2, &[part]);
    wrong(&["--memtier", "/nobody/memtier"], "--loads redis-benchmark");
    wrong(&["--loads", "wrk"], "there are redis-benchmark, memtier, open_loop");
    wrong(&["--loads", "redis-benchmark", "--proxy", "x"], "wanted name=HOST:PORT");
    wrong(&["--loads", "redis-benchmark", "--proxy", "x=127.0.0.1:1"], "--cluster");
    wrong(&["--loads", "redis-benchmark", "--cpus", "0"], "proxy=LIST,nodes=LIST,load=LIST");
    wrong(&["--loads", "redis-benchmark", "--baseline", "x"], "there are direct, ringway");
    wrong(&["--loads", "redis-benchmark", "--ringway", "/nobody/ringway"], "cargo build");
    wrong(&["--plot", "README.md"], "no result of compare.sh");
}

#[test]
fn compare_measures_direct_access_and_the_proxy_in_one_run() {
    let folder = Folder::new("compare");
    let (prefix, base) = (folder.file("run"), free_ports(100).to_string());
    let (prefix, ours) = (prefix.to_str().unwrap(), program());
    let output = run(
        "bench/compare.sh",
        &[
            "--loads=redis-benchmark",
            "--ops=get",
            "--clients=1,10",
            "--pipeline=4",
            "--pipeline-clients=10",
            "--requests=1000",
            "--keys=100",
            "--rounds=1",
            "--no-calls",
            "--base-port",
            &base,
            "--ringway",
            ours.to_str().unwrap(),
            "--out",
            prefix,
        ],
    );
    check(&output, 0, &["get, 1 client", "10 clients, pipeline 4", "direct", "ringway"]);
    let json = fs::read_to_string(format!("{prefix}.json")).unwrap();
    for part in ["\"format\": 1", "\"commit\"", "\"kernel\"", "\"proxy_ns\"", "\"p999\""] {
        assert!(json.contains(part), "no {part} in {json}");
    }
    let picture = fs::read_to_string(format!("{prefix}.svg")).unwrap();
    assert!(picture.matches("<polyline").count() >= 8, "{picture}");
    let redrawn = run("bench/compare.sh", &["--plot", &format!("{prefix}.json")]);
    check(&redrawn, 0, &[]);
}

/// The names of `bench/tuning.sh`.
fn measured_rows() -> BTreeSet<String> {
    text(&run("bench/tuning.sh", &["--list"])).lines().map(str::to_owned).collect()
}

#[test]
fn every_setting_says_how_its_effect_was_measured_or_what_that_would_need() {
    let mut listed = measured_rows();
    let rows = fs::read_to_string(root().join("tuning/settings.tsv")).unwrap();
    for row in rows.lines().skip(1) {
        let fields: Vec<&str> = row.split('\t').collect();
        let (name, last) = (fields[1], fields[fields.len() - 1]);
        match last.strip_prefix(&format!("bench/tuning.sh {name}: ")) {
            // And what was seen.
            Some(seen) => assert!(listed.remove(name) && seen.len() > 20, "{row}"),
            None => assert!(last.starts_with("not measured here: needs "), "{row}"),
        }
    }
    assert!(listed.is_empty(), "no row tells of {listed:?}");
}

/// One of them, which takes no time and depends on none: the rest is for a quiet machine.
#[test]
fn setting_is_measured_in_a_namespace_and_leaves_the_host_alone() {
    if !rustix::process::geteuid().is_root() {
        check(&run("bench/tuning.sh", &["memlock"]), 1, &["needs root"]);
        return;
    }
    let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let (before, ours) = (read(), program());
    let args = ["--ringway", ours.to_str().unwrap(), "net.ipv4.ip_local_port_range"];
    let parts = ["1024 connections, 476 times EADDRNOTAVAIL", "1500 connections, 0 times"];
    check(&run("bench/tuning.sh", &args), 0, &parts);
    assert_eq!(read(), before);
    check(&run("bench/tuning.sh", &["irq"]), 1, &["'irq' is not measured here"]);
}

// --- tuning: a copied root ------------------------------------------------------------------------------------------

/// A dedicated host with 8 CPUs, a card of two queues, and nothing tuned.
fn untuned_root(folder: &Path) {
    let net = "sys/class/net/eth7";
    let files = [
        (
            "proc/cpuinfo",
            "processor\t: 0\nprocessor\t: 1\nprocessor\t: 2\nprocessor\t: 3\nprocessor\t: 4\n",
        ),
        ("proc/net/route", "Iface\tDestination\tGateway\neth7\t00000000\t010200C0\n"),
        (
            "proc/interrupts",
            "      CPU0 CPU1\n 24: 1 0 PCI-MSIX 0-edge eth7\n 30: 5 5 PCI-MSIX 1-edge eth7-TxRx-0\n \
             31: 5 5 PCI-MSIX 2-edge eth7-TxRx-1\n 40: 1 1 PCI-MSIX 3-edge nvme0q1\nNMI: 0 0 x\n",
        ),
        ("proc/irq/30/smp_affinity_list", "0-7\n"),
        ("proc/irq/31/smp_affinity_list", "0-7\n"),
        ("proc/irq/40/smp_affinity_list", "0-7\n"),
        ("proc/7/comm", "irqbalance\n"),
        ("proc/sys/net/core/somaxconn", "128\n"),
        ("proc/sys/net/core/netdev_max_backlog", "300000\n"),
        ("proc/sys/net/core/busy_read", "0\n"),
        ("proc/sys/net/ipv4/tcp_max_syn_backlog", "128\n"),
        ("proc/sys/net/ipv4/tcp_syncookies", "1\n"),
        ("proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n"),
        ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t33554432\n"),
        ("proc/sys/net/ipv4/tcp_migrate_req", "0\n"),
        ("proc/sys/fs/file-max", "9223372036854775807\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
        ("sys/devices/system/cpu/online", "0-7\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
        ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
        (&format!("{net}/device/numa_node"), "1\n"),
        ("sys/devices/system/node/node1/cpulist", "3-7\n"),
        (&format!("{net}/queues/rx-0/rps_cpus"), "00000000,00000000\n"),
        (&format!("{net}/queues/tx-0/xps_cpus"), "00000000,00000000\n"),
        (&format!("{net}/queues/tx-1/xps_cpus"), "00000000,00000000\n"),
        ("etc/sysctl.d/90-ringway.conf", "# somebody else's\n"),
        ("etc/security/limits.d/README", "\n"),
        ("var/lib/README", "\n"),
    ];
    for (path, content) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// Every file below `folder`, with its content.
fn tree(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            if path.is_dir() {
                found.insert(format!("{name}/"), String::new());
                waiting.push(path);
            } else {
                found.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

fn tune(folder: &Path, args: &[&str]) -> Output {
    let mut all = vec!["--root", folder.to_str().unwrap(), "--profile", "dedicated"];
    all.extend(["--cpus", "2-3"]);
    all.extend(args);
    run("tuning/apply.sh", &all)
}

#[test]
fn tuning_without_yes_changes_nothing_and_says_why() {
    let folder = Folder::new("tuning");
    untuned_root(folder.path());
    let before = tree(folder.path());
    let said = tune(folder.path(), &["check"]);
    check(&said, 0, &["warn  net.core.somaxconn  128", "ok    net.core.busy_read  0", "warn  irq"]);
    let said = tune(folder.path(), &["apply"]);
    let parts = [
        "/proc/sys/net/core/somaxconn  128 -> 16384",
        "risk",
        "effect",
        "irqbalance",
        "Nothing was changed",
    ];
    check(&said, 0, &parts);
    check(&tune(folder.path(), &["undo"]), 0, &["Nothing to undo"]);
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn tuning_applies_its_profile_once_and_undo_restores_every_byte() {
    let folder = Folder::new("tuning");
    untuned_root(folder.path());
    let before = tree(folder.path());
    check(&tune(folder.path(), &["apply", "--yes"]), 0, &["change(s)"]);
    let after = tree(folder.path());
    let expected = [
        ("proc/sys/net/core/somaxconn", "16384\n"),
        // More than the profile wishes stays.
        ("proc/sys/net/core/netdev_max_backlog", "300000\n"),
        ("proc/sys/net/ipv4/tcp_rmem", "4096 131072 16777216\n"),
        ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t33554432\n"),
        ("proc/sys/net/ipv4/tcp_slow_start_after_idle", "0\n"),
        ("proc/sys/fs/file-max", "9223372036854775807\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "madvise\n"),
        ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
        // Queue by queue to the reactors; interrupts of others stay.
        ("proc/irq/30/smp_affinity_list", "2\n"),
        ("proc/irq/31/smp_affinity_list", "3\n"),
        ("proc/irq/40/smp_affinity_list", "0-7\n"),
        ("sys/class/net/eth7/queues/tx-0/xps_cpus", "00000004\n"),
        ("sys/class/net/eth7/queues/tx-1/xps_cpus", "00000008\n"),
        ("sys/class/net/eth7/queues/rx-0/rps_cpus", "00000000,00000000\n"),
    ];
    for (path, content) in expected {
        assert_eq!(after[path], content, "{path}");
    }
    let fragment = &after["etc/sysctl.d/90-ringway.conf"];
    assert!(fragment.contains("net.core.somaxconn = 16384\n"), "{fragment}");
    assert!(!fragment.contains("netdev_max_backlog"), "{fragment}");
    let limits = &after["etc/security/limits.d/90-ringway.conf"];
    assert!(limits.contains("ringway - nofile 1048576\n"), "{limits}");
    // Again, and with another profile: what was there first is still known.
    check(&tune(folder.path(), &["apply", "--yes"]), 0, &["0 change(s)"]);
    check(&tune(folder.path(), &["apply", "--yes", "--profile", "numa"]), 0, &[]);
    check(&tune(folder.path(), &["undo"]), 0, &["somaxconn -> 128", "Nothing was changed"]);
    check(&tune(folder.path(), &["undo", "--yes"]), 0, &["put back"]);
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn tuning_of_a_small_machine_keeps_interrupts_off_the_reactors() {
    let folder = Folder::new("tuning");
    untuned_root(folder.path());
    let before = tree(folder.path());
    let small = ["apply", "--yes", "--profile", "small-vm"];
    check(&tune(folder.path(), &small), 0, &[]);
    let after = tree(folder.path());
    assert_eq!(after["proc/irq/30/smp_affinity_list"], "0,1,4,5,6,7\n");
    assert_eq!(after["sys/class/net/eth7/queues/rx-0/rps_cpus"], "000000f3\n");
    check(&tune(folder.path(), &["undo", "--yes"]), 0, &[]);
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn tuning_guesses_the_profile_and_names_reactors_that_are_far_from_the_card() {
    let folder = Folder::new("tuning");
    untuned_root(folder.path());
    let root = folder.path().to_str().unwrap();
    let guess = || run("tuning/apply.sh", &["--root", root, "apply", "--cpus", "2-3"]);
    check(&guess(), 0, &["profile dedicated, card eth7"]);
    fs::write(folder.path().join("proc/cpuinfo"), "processor\t: 0\n").unwrap();
    check(&guess(), 0, &["profile small-vm"]);
    fs::create_dir_all(folder.path().join("sys/devices/system/node/node0")).unwrap();
    let said = guess();
    check(&said, 0, &["profile numa", "CPU 2 is not on node 1, which eth7 is on"]);
    assert!(!text(&said).contains("CPU 3 is not"), "{}", text(&said));
}

#[test]
fn tuning_sets_rings_of_the_card_within_what_it_can_and_puts_them_back() {
    let folder = Folder::new("tuning");
    untuned_root(folder.path());
    // A card with up to 2,048 entries; what it is told is kept in two files.
    let fake = folder.file("ethtool");
    let state = folder.file("card");
    let script = format!(
        "#!/bin/bash\ncase $1 in\n-g) printf 'Pre-set maximums:\\nRX:\\t\\t2048\\nCurrent hardware settings:\\nRX:\\t\\t%s\\n' \
         \"$(<{state}.rx)\" ;;\n-c) printf 'rx-usecs:\\t%s\\n' \"$(<{state}.usecs)\" ;;\n-G) echo \"$4\" >{state}.rx ;;\n\
         -C) echo \"$4\" >{state}.usecs ;;\nesac\n",
        state = state.display()
    );
    fs::write(&fake, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&fake, executable).unwrap();
    for (kind, value) in [("rx", "512\n"), ("usecs", "3\n")] {
        fs::write(format!("{}.{kind}", state.display()), value).unwrap();
    }
    let before = tree(folder.path());
    let ethtool = format!("ETHTOOL={}", fake.display());
    let tune = |args: &[&str]| {
        let root = folder.path().to_str().unwrap();
        let mut all = vec![ethtool.as_str(), "tuning/apply.sh", "--root", root];
        all.extend(["--profile", "dedicated", "--only", "rx-", "--rx-usecs", "20"]);
        all.extend(args);
        run("env", &all)
    };
    check(&tune(&["apply", "--yes"]), 0, &["rx  512 -> 2048", "rx-usecs  3 -> 20"]);
    assert_eq!(tree(folder.path())["card.rx"], "2048\n");
    check(&tune(&["undo", "--yes"]), 0, &[]);
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn tuning_with_wrong_words_is_refused() {
    for (args, part) in [
        (vec!["apply", "--profile", "huge"], "there are small-vm, dedicated, numa, load-generator"),
        (vec!["apply", "--cpus", "a-b"], "wanted numbers such as 0,2-3"),
        (vec!["apply", "--what"], "there is no '--what'"),
        (vec!["apply", "check"], "one of check, apply, undo, fragment"),
        (vec![], "tuning/apply.sh check"),
    ] {
        check(&run("tuning/apply.sh", &args), 2, &[part]);
    }
}

#[test]
fn tuning_that_cannot_write_says_so_and_goes_on() {
    let folder = Folder::new("tuning");
    untuned_root(folder.path());
    // Root, too, may not write this one.
    let stubborn = folder.path().join("proc/sys/net/core/somaxconn");
    fs::remove_file(&stubborn).unwrap();
    std::os::unix::fs::symlink("/proc/sys/kernel/random/entropy_avail", &stubborn).unwrap();
    let said = tune(folder.path(), &["apply", "--yes", "--only", "net."]);
    check(&said, 1, &["cannot write 16384 to", "tcp_slow_start_after_idle  1 -> 0"]);
    let written = folder.path().join("proc/sys/net/ipv4/tcp_slow_start_after_idle");
    assert_eq!(fs::read_to_string(written).unwrap(), "0\n");
}

// --- tuning: this host ----------------------------------------------------------------------------------------------

#[test]
fn program_and_script_judge_this_host_alike() {
    let ours = Command::new(program()).arg("check").output().unwrap();
    let verdicts = |output: &Output| -> BTreeMap<String, String> {
        let lines = text(output);
        let lines = lines.lines().filter_map(|line| {
            let (verdict, rest) = line.split_once("  ")?;
            let (name, value) = rest.trim_start().split_once("  ")?;
            let judged =
                name.starts_with("net.") || name.starts_with("fs.") || name.starts_with('/');
            judged.then(|| (name.to_string(), format!("{} {}", verdict.trim(), value.trim())))
        });
        lines.collect()
    };
    let ours = verdicts(&ours);
    assert!(ours.len() >= 8, "{ours:?}");
    // What only one profile wishes for is the script's alone.
    let theirs = verdicts(&run("tuning/apply.sh", &["check", "--profile", "small-vm"]));
    assert_eq!(ours, theirs);
}

#[test]
fn tuning_in_a_network_namespace_is_applied_by_the_kernel_and_taken_back() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: no network namespace, nothing tried");
        return;
    }
    let folder = Folder::new("tuning");
    let files = "core/somaxconn ipv4/tcp_migrate_req ipv4/tcp_wmem ipv4/tcp_slow_start_after_idle";
    let read = format!("(cd /proc/sys/net && grep -s . {files})");
    let tune = format!(
        "tuning/apply.sh --only net.ipv4.,net.core.somaxconn --profile dedicated --no-persist --state {} --yes",
        folder.file("state").display()
    );
    let script = format!("{read}; {tune} apply >/dev/null; {read}; {tune} undo >/dev/null; {read}");
    let output = run("unshare", &["-n", "bash", "-c", &script]);
    let said = text(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() % 3 == 0 && lines.len() >= 9, "{said}");
    let (before, rest) = lines.split_at(lines.len() / 3);
    let (applied, after) = rest.split_at(lines.len() / 3);
    assert!(applied.contains(&"core/somaxconn:16384"), "{said}");
    assert!(applied.contains(&"ipv4/tcp_slow_start_after_idle:0"), "{said}");
    assert_ne!(before, applied);
    assert_eq!(before, after);
    assert!(!folder.file("state").exists());
}

// --- service manager and containers -----------------------------------------------------------------------------------

#[test]
fn systemd_finds_no_mistake_in_the_units() {
    let folder = Folder::new("units");
    // Beside the unit it is read together with it.
    let more = folder.file("ringway.service.d");
    fs::create_dir(&more).unwrap();
    let handover = fs::read_to_string(root().join("tuning/ringway-handover.conf")).unwrap();
    fs::write(more.join("handover.conf"), handover.replace("/usr/local/bin/", "/bin/")).unwrap();
    for unit in ["ringway.service", "ringway-tuning.service"] {
        let text = fs::read_to_string(root().join("tuning").join(unit)).unwrap();
        // Programs that are not installed here would be the only complaint.
        let text = text
            .replace("/usr/local/bin/ringway", "/bin/true")
            .replace("/usr/local/share/ringway/apply.sh", "/bin/true");
        fs::write(folder.file(unit), text).unwrap();
        let output = Command::new("systemd-analyze").arg("verify").arg(folder.file(unit)).output();
        let Ok(output) = output else {
            eprintln!("no systemd-analyze here: the units were not verified");
            return;
        };
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{unit}: {}",
            self::text(&output)
        );
    }
}

/// Runs `work` with programs under the profile of `tuning/seccomp.json`, less what `without` names.
fn under_seccomp<T>(without: Option<&str>, work: impl FnOnce() -> T) -> T {
    let (loader, profile) =
        (root().join("tests/support/seccomp.py"), root().join("tuning/seccomp.json"));
    let mut prefix = vec!["python3", loader.to_str().unwrap()];
    prefix.extend(without.iter().flat_map(|names| ["--without", names]));
    prefix.push(profile.to_str().unwrap());
    with_prefix(&prefix, work)
}

#[test]
fn proxy_serves_and_drains_under_the_container_profile() {
    let cluster = Cluster::three(Flavour::Redis);
    let addresses: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    let mut proxy = under_seccomp(None, || Proxy::start_at(&addresses, &Settings::default()));
    let mut client = Client::connect(proxy.port);
    wait_until(seconds(10), "the map", || client.run("SET a 1") == Reply::Simple(b"OK".to_vec()));
    let values = client.run("MGET a b");
    assert_eq!(values, Reply::Array(vec![Reply::Bulk(b"1".to_vec()), Reply::NilBulk]));
    proxy.process.terminate();
    assert!(proxy.process.wait(seconds(15)).is_some_and(|status| status.success()));
}

/// Runs `work` with programs in an OCI container under our profile, less what `without` names.
/// `false`: there is no runtime here.
fn in_container(folder: &Folder, without: &str, work: impl FnOnce()) -> bool {
    if ["runc", "crun"].iter().all(|name| Command::new(name).arg("--version").output().is_err()) {
        eprintln!("NO CONTAINER RUNTIME here (Debian: runc): nothing tried");
        return false;
    }
    let script = root().join("tests/support/container.py");
    let (script, profile) = (script.to_str().unwrap(), root().join("tuning/seccomp.json"));
    let bundle = folder.file(if without.is_empty() { "ours" } else { "less" });
    let mut prefix = vec!["python3", script];
    prefix.extend(if without.is_empty() { vec![] } else { vec!["--without", without] });
    prefix.extend([bundle.to_str().unwrap(), profile.to_str().unwrap()]);
    with_prefix(&prefix, work);
    true
}

/// Its image read-only, a user who is not root, no capabilities: as the manifests have it.
#[test]
fn proxy_serves_and_drains_in_a_container_and_says_why_it_cannot_without_io_uring() {
    let folder = Folder::new("container");
    let cluster = Cluster::three(Flavour::Redis);
    let served = in_container(&folder, "", || {
        let mut proxy = Proxy::start_with(&cluster, &Settings::default());
        let mut client = proxy.client();
        assert_eq!(client.run("SET a 1").text(), "OK");
        assert_eq!(client.run("MGET a b").text(), "[\"1\", nil]");
        proxy.process.terminate();
        assert!(proxy.process.wait(seconds(15)).is_some_and(|status| status.success()));
    });
    if !served {
        return;
    }
    let calls = "io_uring_setup,io_uring_enter,io_uring_register";
    let listen = format!("127.0.0.1:{}", free_port());
    let args = ["--listen", &listen, "--node", "127.0.0.1:1", "--admin-listen", "off"];
    in_container(&folder, calls, || {
        let mut refused = Process::start(&program(), &args, &folder.file("log"));
        assert_eq!(refused.wait(seconds(20)).and_then(|status| status.code()), Some(1));
    });
    let said = fs::read_to_string(folder.file("log")).unwrap();
    assert!(said.contains("seccomp") && said.contains("--security-opt"), "{said}");
}

#[test]
fn container_profile_less_its_io_uring_calls_refuses_the_proxy() {
    let folder = Folder::new("seccomp");
    let calls = "io_uring_setup,io_uring_enter,io_uring_register";
    let mut refused =
        under_seccomp(Some(calls), || Process::start(&program(), &["check"], &folder.file("log")));
    assert_eq!(refused.wait(seconds(20)).and_then(|status| status.code()), Some(1));
    let said = fs::read_to_string(folder.file("log")).unwrap();
    assert!(said.contains("seccomp") && said.contains("--security-opt"), "{said}");
}
