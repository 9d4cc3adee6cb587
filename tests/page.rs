//! The live page in a real browser (Chromium, headless), at the width of a desk and of a phone.
//!
//! Pictures are left in `tests/.cache/page-*.png`, to be looked at. Without Chromium nothing is
//! done, unless `RINGWAY_PAGE` says that it must be there (`tests/run.sh page`, which installs it).
//!
//! Not here: the numbers (`cases/admin`).
#![allow(clippy::disallowed_methods)]

#[path = "support/mod.rs"]
mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

/// Runs until the page has asked a few times; its clock runs ahead of ours. Returns what it printed.
///
/// Into files: helpers of the browser keep pipes open for a while after its end.
fn browse(chromium: &Path, port: u16, folder: &Folder, more: &[String]) -> String {
    let profile = format!("--user-data-dir={}", folder.file("profile").display());
    let (printed, said) = (folder.file("printed"), folder.file("said"));
    let file = |path: &Path| File::create(path).expect("a file");
    let mut command = Command::new("timeout");
    command.arg("60").arg(chromium).args(["--headless=new", "--no-sandbox", "--disable-gpu"]);
    command.args(["--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=5000"]);
    command.arg(profile).args(more).arg(format!("http://127.0.0.1:{port}/"));
    command.stdin(Stdio::null()).stdout(file(&printed)).stderr(file(&said));
    let status = command.status().expect("chromium starts");
    let said = std::fs::read(&said).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    assert!(status.success(), "{said}");
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "the page complains: {complaints:#?}");
    String::from_utf8_lossy(&std::fs::read(&printed).unwrap_or_default()).into_owned()
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
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
        // Also when `look` panics: the scope waits for its threads.
        let _stop = OnDrop(&stop);
        look(&chromium, port, &cluster);
    });
}

fn look(chromium: &Path, port: u16, cluster: &Cluster) {
    wait_until(seconds(10), "traffic to be seen", || {
        get(port, "/live").body.contains("\"kind\":\"CROSSSLOT\"")
    });
    let folder = Folder::new("page");
    let mut page = String::new();
    // On a host that is overloaded a reactor may indeed not have turned for a second.
    wait_until(seconds(60), "a page that says ready", || {
        page = browse(chromium, port, &folder, &["--dump-dom".to_owned()]);
        page.contains("pill good")
    });
    for node in &cluster.nodes {
        assert!(page.contains(&node.address()), "{page}");
    }
    for text in [">ready<", "all 16,384 slots", "requests a second", "SINTER", "CROSSSLOT"] {
        assert!(page.contains(text), "no {text} in {page}");
    }
    assert!(page.contains("<body class=\"\">") || page.contains("<body>"), "it is lost: {page}");
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
