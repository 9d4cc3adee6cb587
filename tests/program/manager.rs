//! What a service manager (sd_notify(3)) is told: ready, alive, reading again, taken over, stopping.
//!
//! Not here: the units (`operations`), what a reload changes (`reload`).

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use rustix::process::Signal;

use crate::support::client::Client;
use crate::support::cluster::{Cluster, Flavour};
use crate::support::group::Group;
use crate::support::ports::free_port;
use crate::support::process::{Folder, Process};
use crate::support::proxy::program;
use crate::support::{patience, seconds};

/// The ear of a manager.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(folder: &Folder, name: &str) -> Manager {
        let path = folder.file(name);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(patience(seconds(15)))).unwrap();
        Manager { socket, path }
    }

    fn start(&self, args: &[&str], log: PathBuf) -> Process {
        let environment = [("NOTIFY_SOCKET", self.path.to_str().unwrap())];
        Process::start_with(&program(), args, &environment, &log)
    }

    fn hear(&self) -> String {
        let mut bytes = [0; 300];
        let len = self.socket.recv(&mut bytes).expect("the proxy says something");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    /// The next that is no sign of life.
    fn hear_news(&self) -> String {
        let news = |text: &String| !text.starts_with("WATCHDOG=1");
        std::iter::repeat_with(|| self.hear()).find(news).expect("it goes on for ever")
    }

    /// All that lies there.
    fn hear_rest(&self) -> Vec<String> {
        self.socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 300];
        let next = || Some(self.socket.recv(&mut bytes).ok()?).map(|len| (bytes, len));
        let all = std::iter::from_fn(next);
        all.map(|(bytes, len)| String::from_utf8_lossy(&bytes[..len]).into_owned()).collect()
    }
}

#[test]
fn manager_is_told_when_clients_are_accepted_how_it_is_and_when_it_drains() {
    let folder = Folder::new("manager");
    let manager = Manager::new(&folder, "socket");
    let port = free_port();
    let (listen, node) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", free_port()));
    let args = ["--listen", &listen, "--node", &node, "--reactors", "1"];
    let mut proxy = manager.start(&args, folder.file("log"));
    assert_eq!(manager.hear(), "READY=1\nSTATUS=accepting clients");
    // No waiting: that was promised.
    assert_eq!(Client::connect(port).run("PING").text(), "PONG");
    assert_eq!(manager.hear(), "WATCHDOG=1\nSTATUS=no slot is served");
    assert_eq!(manager.hear(), "WATCHDOG=1", "nothing has changed");
    proxy.terminate();
    assert_eq!(manager.hear_news(), "STOPPING=1\nSTATUS=draining");
    assert!(proxy.wait(seconds(10)).is_some_and(|status| status.success()));
}

/// CLOCK_MONOTONIC stands still while the host sleeps, uptime does not; else they are the same.
fn uptime_us() -> f64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() * 1e6
}

#[test]
fn manager_is_told_when_a_reload_begins_and_what_came_of_it() {
    let folder = Folder::new("manager");
    let manager = Manager::new(&folder, "socket");
    let file = folder.file("ringway.toml");
    let listen = format!("127.0.0.1:{}", free_port());
    let text = |top: &str| {
        format!("{top}\nreactors = 1\n[[pool]]\nlisten = {listen:?}\nnodes = \"127.0.0.1:1\"\n")
    };
    std::fs::write(&file, text("")).unwrap();
    let proxy = manager.start(&["--config", file.to_str().unwrap()], folder.file("log"));
    assert!(manager.hear().starts_with("READY=1"));
    assert_eq!(manager.hear(), "WATCHDOG=1\nSTATUS=no slot is served");
    for (top, outcome) in [
        ("maxclients = 77", "configuration read again"),
        ("maxclients = 0", "mistakes in the configuration: the old one stays in force"),
    ] {
        std::fs::write(&file, text(top)).unwrap();
        let before = uptime_us();
        proxy.send(Signal::HUP);
        let begins = manager.hear_news();
        let at = begins.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("it begins");
        let at: f64 = at.parse().unwrap();
        // The kernel shows hundredths of a second.
        assert!(at <= uptime_us() + 2e4 && at > before - 3.6e9, "{at} and {before}");
        assert_eq!(manager.hear_news(), format!("READY=1\nSTATUS={outcome}"));
        // That stays there to be read.
        assert_eq!(manager.hear(), "WATCHDOG=1");
    }
}

/// Two processes of one service; each has an ear of its own here, to tell who says what.
#[test]
fn process_that_takes_over_says_so_and_the_one_before_falls_silent() {
    let (cluster, folder) = (Cluster::three(Flavour::Redis), Folder::new("manager"));
    let (first, second) = (Manager::new(&folder, "first"), Manager::new(&folder, "second"));
    let listen = format!("127.0.0.1:{}", free_port());
    let (node, socket) = (cluster.nodes[0].address(), folder.file("handover"));
    let socket = socket.to_str().unwrap();
    let args = ["--listen", &listen, "--node", &node, "--handover-socket", socket];
    let mut old = first.start(&args, folder.file("old"));
    assert_eq!(first.hear(), "READY=1\nSTATUS=accepting clients");
    let new = second.start(&args, folder.file("new"));
    let says = format!("MAINPID={}\nREADY=1\nSTATUS=in the place of the process before", new.id());
    assert_eq!(second.hear(), says);
    assert!(old.wait(seconds(20)).is_some_and(|status| status.success()));
    let rest = first.hear_rest();
    // STOPPING=1 would be taken for the end of the whole service.
    assert!(rest.iter().all(|text| text.starts_with("WATCHDOG=1")), "{rest:?}");
    new.terminate();
    assert_eq!(second.hear_news(), "STOPPING=1\nSTATUS=draining");
}

#[test]
fn process_that_hands_over_to_another_service_says_that_its_own_ends() {
    // Its own control group is what makes it another service.
    let Some(group) = Group::with_limit(1 << 30) else { return };
    let (cluster, folder) = (Cluster::three(Flavour::Redis), Folder::new("manager"));
    let manager = Manager::new(&folder, "first");
    let listen = format!("127.0.0.1:{}", free_port());
    let (node, socket) = (cluster.nodes[0].address(), folder.file("handover"));
    let socket = socket.to_str().unwrap();
    let args = ["--listen", &listen, "--node", &node, "--handover-socket", socket];
    let mut old = manager.start(&args, folder.file("old"));
    assert!(manager.hear().starts_with("READY=1"));
    let _new = group.inside(|| Process::start(&program(), &args, &folder.file("new")));
    assert_eq!(manager.hear_news(), "STOPPING=1\nSTATUS=another service has taken over");
    assert!(old.wait(seconds(20)).is_some_and(|status| status.success()));
    assert_eq!(manager.hear_rest(), [""; 0]);
}
