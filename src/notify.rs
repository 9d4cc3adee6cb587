//! Tells the service manager how we are: sd_notify(3), `Type=notify` in a unit.
//!
//! A datagram to the socket that `NOTIFY_SOCKET` names; without it nothing is done. Failures are
//! ignored, as sd_notify's manual asks for: nobody must fail because nobody listens.
//! Not here: when what is said (`main`).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The way to the service manager, if there is one.
#[derive(Debug)]
pub struct Notifier(Option<(UnixDatagram, SocketAddr)>);

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
        Notifier(address.and_then(|address| Some((socket()?, address))))
    }

    /// Clients are accepted.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// No new clients; the process ends soon.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// For `WatchdogSec=`: the main thread lives and has seen all reactors turn.
    pub fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    fn say(&self, text: &str) {
        if let Some((socket, address)) = &self.0 {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
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
            let notifier = Notifier::new(Some(&text));
            notifier.ready();
            notifier.alive();
            notifier.stopping();
            assert_eq!(received(socket), "READY=1");
            assert_eq!(received(socket), "WATCHDOG=1");
            assert_eq!(received(socket), "STOPPING=1");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        for address in [None, Some("/nobody/here"), Some("vsock:2:1"), Some(""), Some("@")] {
            let notifier = Notifier::new(address.map(OsStr::new));
            notifier.ready();
            notifier.stopping();
        }
    }
}
