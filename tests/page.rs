//! The live page in a real browser (Chromium, headless), at the width of a desk and of a phone.
//!
//! Pictures are left in `tests/.cache/page-*.png`, to be looked at. Without Chromium nothing is
//! done, unless `RINGWAY_PAGE` says that it must be there (`tests/run.sh page`, which installs it).
//!
//! Not here: the numbers (`cases/admin`).
#![allow(clippy::disallowed_methods)]

#[path = "support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use support::cluster::{Cluster, Flavour};
use support::http::get;
use support::ports::free_port;
use support::process::Folder;
use support::proxy::{Proxy, Settings};
use support::{millis, seconds, wait_until};

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("chromium")).find(|it| it.exists());
    let wanted = std::env::var_os("RINGWAY_PAGE").is_some();
    assert!(found.is_some() || !wanted, "chromium is not installed");
    found
}

/// Runs until the page has asked a few times; its clock runs ahead of ours.
fn browse(chromium: &Path, port: u16, folder: &Folder, more: &[String]) -> Output {
    let profile = format!("--user-data-dir={}", folder.file("profile").display());
    let mut command = Command::new("timeout");
    command.arg("60").arg(chromium).args(["--headless=new", "--no-sandbox", "--disable-gpu"]);
    command.args(["--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=5000"]);
    command.arg(profile).args(more).arg(format!("http://127.0.0.1:{port}/")).stdin(Stdio::null());
    let output = command.output().expect("chromium starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "the page complains: {complaints:#?}");
    output
}

#[test]
fn live_page_shows_the_cluster_at_a_desk_and_on_a_phone() {
    let Some(chromium) = chromium() else {
        return eprintln!("no chromium here: tests/run.sh page installs it");
    };
    let cluster = Cluster::three(Flavour::Redis);
    let port = free_port();
    let args = [format!("--admin-listen=127.0.0.1:{port}"), "--reactors=2".to_owned()];
    let proxy = Proxy::start_with(&cluster, &Settings::args(&args));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = proxy.client();
            for n in (0..).take_while(|_| !stop.load(Relaxed)) {
                client.run(&format!("SET page:{n} v"));
                client.run("SINTER page:1 page:2");
                std::thread::sleep(millis(2));
            }
        });
        look(&chromium, port, &cluster);
        stop.store(true, Relaxed);
    });
}

fn look(chromium: &Path, port: u16, cluster: &Cluster) {
    wait_until(seconds(10), "traffic to be seen", || {
        get(port, "/live").body.contains("\"kind\":\"CROSSSLOT\"")
    });
    let folder = Folder::new("page");
    let output = browse(chromium, port, &folder, &["--dump-dom".to_owned()]);
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for node in &cluster.nodes {
        assert!(page.contains(&node.address()), "{page}");
    }
    for text in
        ["\"pill good\"", ">ready<", "all 16,384 slots", "requests a second", "SINTER", "CROSSSLOT"]
    {
        assert!(page.contains(text), "no {text} in {page}");
    }
    assert!(!page.contains("No answer since"), "{page}");
    // A chart with a line in it.
    assert!(page.matches("<path d=\"M").count() >= 2, "{page}");
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/.cache");
    std::fs::create_dir_all(&cache).expect("tests/.cache");
    for (name, width, height) in [("desk", 1280, 1500), ("phone", 390, 2400)] {
        let picture = cache.join(format!("page-{name}.png"));
        let more = [
            format!("--window-size={width},{height}"),
            format!("--screenshot={}", picture.display()),
        ];
        browse(chromium, port, &folder, &more);
        let bytes = std::fs::read(&picture).expect("a picture");
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((number(16), number(20)), (width, height), "{name}");
        // An empty page of this size has a tenth of that.
        assert!(bytes.len() > 40_000, "{name}: {} bytes", bytes.len());
    }
}
