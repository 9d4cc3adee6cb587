//! Tells the service manager how we are: sd_notify(3), `Type=notify` in a unit.
//!
//! A datagram to the socket that `NOTIFY_SOCKET` names; without it nothing is done. Failures are
//! ignored, as sd_notify's manual asks for: nobody must fail because nobody listens.
//! Not here: when what is said (`process`).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The way to the service manager, if there is one.
#[derive(Debug)]
pub struct Notifier {
    way: Option<(UnixDatagram, SocketAddr)>,
    /// How the process was when it was last told.
    state: String,
}

impl Notifier {
    /// `address`: the value of `NOTIFY_SOCKET`. A path, or `@` and an abstract name.
    pub fn new(address: Option<&OsStr>) -> Notifier {
        let address = address.and_then(|text| match text.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(text).ok(),
            _ => None,
        });
        let socket = || {
            let socket = UnixDatagram::unbound().ok()?;
            // A manager that does not read must not hold the main thread up.
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        let way = address.and_then(|address| Some((socket()?, address)));
        Notifier { way, state: String::new() }
    }

    /// Clients are accepted. `took_over`: in the place of another process of this service, so the
    /// manager is told whom to watch from now on.
    pub fn ready(&self, took_over: bool, status: &str) {
        let main =
            if took_over { format!("MAINPID={}\n", std::process::id()) } else { String::new() };
        self.say_with_status(&format!("{main}READY=1"), status);
    }

    /// The configuration is being read again, since this moment of CLOCK_MONOTONIC: the manager
    /// waits for the READY after it (`Type=notify-reload` looks at the time, `notify` does not).
    pub fn reloading(&self, monotonic_us: u64) {
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={monotonic_us}"));
    }

    /// It has been read, or refused: `status` says which.
    pub fn reloaded(&self, status: &str) {
        self.say_with_status("READY=1", status);
    }

    /// No new clients; the process ends soon.
    pub fn stopping(&self, status: &str) {
        self.say_with_status("STOPPING=1", status);
    }

    /// For `WatchdogSec=`: the main thread lives and has seen all reactors turn. How the process
    /// is goes along when it has changed.
    pub fn alive(&mut self, state: &str) {
        if self.state == state {
            return self.say("WATCHDOG=1");
        }
        self.say_with_status("WATCHDOG=1", state);
        state.clone_into(&mut self.state);
    }

    /// Another process speaks for this service from now on: a word of ours would be taken for its.
    pub fn fall_silent(&mut self) {
        self.way = None;
    }

    fn say_with_status(&self, text: &str, status: &str) {
        self.say(&format!("{text}\nSTATUS={status}"));
    }

    fn say(&self, text: &str) {
        if let Some((socket, address)) = &self.way {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

/// Whether a process belongs to the same service as this one: the same control group. `cgroups`
/// reads `/proc/…/cgroup`. Where nothing is told, it is taken for another's: the manager then
/// hears that this one ends, which is true.
pub fn same_service(pid: u32, cgroups: impl Fn(&str) -> Option<String>) -> bool {
    let mine = cgroups("self");
    mine.is_some() && cgroups(&pid.to_string()) == mine
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 200];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[test]
    fn manager_at_a_path_or_an_abstract_name_is_told() {
        let path = std::env::temp_dir().join(format!("ringway-notify-{}", std::process::id()));
        let at_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("ringway-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let at_name = UnixDatagram::bind_addr(&abstract_name).unwrap();
        let texts = [path.clone().into_os_string(), format!("@{name}").into()];
        for (socket, text) in [at_path, at_name].iter().zip(texts) {
            let mut notifier = Notifier::new(Some(&text));
            notifier.ready(false, "serving");
            notifier.alive("not ready");
            notifier.alive("not ready");
            notifier.reloading(7);
            notifier.reloaded("mistakes");
            notifier.alive("not ready");
            notifier.alive("ready");
            notifier.stopping("draining");
            notifier.ready(true, "serving");
            let main = format!("MAINPID={}\nREADY=1\nSTATUS=serving", std::process::id());
            for expected in [
                "READY=1\nSTATUS=serving",
                "WATCHDOG=1\nSTATUS=not ready",
                "WATCHDOG=1",
                "RELOADING=1\nMONOTONIC_USEC=7",
                "READY=1\nSTATUS=mistakes",
                // Which stays to be read until something else is wrong.
                "WATCHDOG=1",
                "WATCHDOG=1\nSTATUS=ready",
                "STOPPING=1\nSTATUS=draining",
                &main,
            ] {
                assert_eq!(received(socket), expected);
            }
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn without_a_manager_or_after_another_has_its_ear_nothing_is_said() {
        for address in [None, Some("/nobody/here"), Some("vsock:2:1"), Some(""), Some("@")] {
            let notifier = Notifier::new(address.map(OsStr::new));
            notifier.ready(false, "serving");
            notifier.stopping("draining");
        }
        let name = format!("ringway-silent-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_nonblocking(true).unwrap();
        let mut notifier = Notifier::new(Some(OsStr::new(&format!("@{name}"))));
        notifier.fall_silent();
        notifier.alive("serving");
        notifier.stopping("draining");
        let said = manager.recv(&mut [0; 100]).unwrap_err();
        assert_eq!(said.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn process_of_another_control_group_or_an_unseen_one_is_another_service() {
        let told = |name: &str| match name {
            "self" | "1" => Some("0::/ringway.service\n".to_owned()),
            "2" => Some("0::/ringway-b.service\n".to_owned()),
            _ => None,
        };
        assert!(same_service(1, told));
        assert!(!same_service(2, told));
        assert!(!same_service(3, told));
        assert!(!same_service(1, |_| None));
    }
}
