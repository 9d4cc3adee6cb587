//! The proxy's process under test.
//!
//! Not here: what options mean. `RINGWAY_BINARY` names another build, or a stand-in that takes
//! `--listen` and `--node`; `RINGWAY_REACTORS` says how many reactors a proxy has where the test
//! does not.

use std::path::{Path, PathBuf};

use super::client::Client;
use super::cluster::Cluster;
use super::ports::free_port;
use super::process::{Folder, Process};
use super::{patience, seconds, wait_until};

pub struct Proxy {
    pub process: Process,
    pub port: u16,
    folder: Folder,
}

/// Options beyond `--listen`, `--node` and `--reactors`.
#[derive(Default)]
pub struct Settings {
    pub args: Vec<String>,
    /// A TOML file's text with one `[[pool]]`, to which `listen` and `nodes` are added.
    pub config: Option<String>,
    pub environment: Vec<(String, String)>,
}

impl Settings {
    pub fn args<S: AsRef<str>>(args: &[S]) -> Settings {
        let args = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
        Settings { args, ..Settings::default() }
    }

    pub fn config(text: &str) -> Settings {
        Settings { config: Some(text.to_owned()), ..Settings::default() }
    }
}

pub fn program() -> PathBuf {
    let built = env!("CARGO_BIN_EXE_ringway");
    std::env::var_os("RINGWAY_BINARY").map_or(PathBuf::from(built), PathBuf::from)
}

impl Proxy {
    /// In front of the first node of a cluster that serves; waits until every shard answers through
    /// it.
    #[track_caller]
    pub fn start(cluster: &Cluster) -> Proxy {
        Self::start_with(cluster, &Settings::default())
    }

    #[track_caller]
    pub fn start_with(cluster: &Cluster, settings: &Settings) -> Proxy {
        let addresses: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
        let mut proxy = Self::launch(&addresses, settings);
        proxy.wait_listening();
        for i in 0..cluster.shape.primaries {
            if cluster.range(i).is_some() {
                proxy.wait_serving(&cluster.key_on(i, "ready"));
            }
        }
        proxy
    }

    /// In front of whatever listens at `nodes` (`host:port`); waits only until the proxy accepts
    /// connections.
    #[track_caller]
    pub fn start_at<S: AsRef<str>>(nodes: &[S], settings: &Settings) -> Proxy {
        let mut proxy = Self::launch(nodes, settings);
        proxy.wait_listening();
        proxy
    }

    pub fn launch<S: AsRef<str>>(nodes: &[S], settings: &Settings) -> Proxy {
        Self::launch_by(&program(), nodes, settings)
    }

    /// Started by a program of the test's, which is to run `program()` with the same arguments.
    pub fn launch_by<S: AsRef<str>>(starter: &Path, nodes: &[S], settings: &Settings) -> Proxy {
        let folder = Folder::new("proxy");
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let nodes: Vec<String> = nodes.iter().map(|node| node.as_ref().to_owned()).collect();
        let reactors = std::env::var("RINGWAY_REACTORS").unwrap_or("1".to_owned());
        let mut args = vec!["--reactors".to_owned(), reactors];
        if let Some(text) = &settings.config {
            let pool = format!("[[pool]]\nlisten = {listen:?}\nnodes = {nodes:?}\n");
            let path = folder.file("ringway.toml");
            std::fs::write(&path, text.replacen("[[pool]]\n", &pool, 1))
                .expect("configuration file");
            args.extend(["--config".to_owned(), path.display().to_string()]);
        } else {
            args.extend(["--listen".to_owned(), listen]);
            args.extend(nodes.into_iter().flat_map(|node| ["--node".to_owned(), node]));
        }
        if !settings.args.iter().any(|arg| arg.starts_with("--admin-listen")) {
            // The tests' processes would quarrel for the one default address.
            args.extend(["--admin-listen".to_owned(), "off".to_owned()]);
        }
        args.extend_from_slice(&settings.args);
        let environment: Vec<(&str, &str)> =
            settings.environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let process = Process::start_with(starter, &args, &environment, &folder.file("log"));
        Proxy { process, port, folder }
    }

    #[track_caller]
    pub fn wait_listening(&mut self) {
        let (start, limit) = (std::time::Instant::now(), patience(seconds(10)));
        while Client::try_connect(self.port).is_err() {
            let late = start.elapsed() > limit;
            if late || !self.process.is_running() {
                panic!("the proxy does not listen on {}; it said:\n{}", self.port, self.log());
            }
            std::thread::sleep(super::millis(5));
        }
    }

    #[track_caller]
    fn wait_serving(&mut self, key: &str) {
        let mut last = String::new();
        let (start, limit) = (std::time::Instant::now(), patience(seconds(10)));
        while start.elapsed() < limit {
            last = match Client::connect(self.port).try_call(&["EXISTS", key]) {
                Ok(reply) if !reply.is_error() => return,
                Ok(reply) => reply.text(),
                Err(error) => error.to_string(),
            };
            std::thread::sleep(super::millis(20));
        }
        panic!("EXISTS {key} answered {last}; the proxy said:\n{}", self.log());
    }

    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.port)
    }

    #[track_caller]
    pub fn client_resp3(&self) -> Client {
        Client::connect_resp3(self.port)
    }

    /// Everything the proxy wrote to stdout and stderr.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.file("log")).unwrap_or_default()
    }

    /// Waits until a client's request is at a node.
    #[track_caller]
    pub fn wait_in_flight(&self) {
        let mut asking = self.client();
        wait_until(seconds(10), "a request to be on its way", || {
            let told = asking.run("INFO ringway").string();
            !told.contains("requests_in_flight:0\r\n") && told.contains("requests_in_flight:")
        });
    }

    /// A client, once no other is connected: those that looked whether it serves may not be gone yet.
    #[track_caller]
    pub fn only_client(&self) -> Client {
        let mut client = self.client();
        wait_until(seconds(10), "the others to be gone", || {
            client.run("INFO clients").string().contains("connected_clients:1\r\n")
        });
        client
    }

    /// Waits until the log has this: it has a thread of its own, and may come after what it tells of.
    #[track_caller]
    pub fn wait_log(&self, part: &str) {
        let (start, limit) = (std::time::Instant::now(), patience(seconds(10)));
        while !self.log().contains(part) {
            assert!(start.elapsed() < limit, "no {part:?} in {}", self.log());
            std::thread::sleep(super::millis(10));
        }
    }

    /// Waits until the proxy's resident memory is at most `kib`.
    #[track_caller]
    pub fn wait_resident_below(&self, kib: u64, limit: std::time::Duration) {
        let what = format!("memory under {kib} KiB (now {})", self.process.resident_kib());
        wait_until(limit, &what, || self.process.resident_kib() <= kib);
    }

    /// The process must be alive at the end of a test.
    #[track_caller]
    pub fn expect_alive(&mut self) {
        assert!(self.process.is_running(), "the proxy died; it said:\n{}", self.log());
    }
}
