//! Ports for the processes of a test: 11,000 to 20,999, so that the cluster bus (+10,000) stays
//! under the kernel's ephemeral range and under 55,000.
//!
//! A port is tried and not held, as whoever is given it is to listen there. What is held is its name:
//! a socket in the abstract namespace, by which other test processes know that it is taken. Not
//! here: programs of others.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 11_000;
const COUNT: u16 = 9_999;
const BUS: u16 = 10_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// The names of all ports that this process has given away.
static HELD: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A port on which nothing listens now, and whose bus port is free as well.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of so many such ports in a row; no other test of this process is given any of them.
pub fn free_ports(count: u16) -> u16 {
    let start = (std::process::id().wrapping_mul(2_654_435_761) >> 16) as u16;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(count, Ordering::Relaxed);
        let first = FIRST + start.wrapping_add(step) % COUNT;
        let all = first..first + count;
        if all.end > FIRST + COUNT {
            continue;
        }
        let held: Vec<UnixListener> = all.clone().map_while(hold).collect();
        let all_free = || all.clone().all(|port| is_free(port) && is_free(port + BUS));
        if held.len() == usize::from(count) && all_free() {
            HELD.lock().unwrap().extend(held);
            return first;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// An address of loopback that no other test process uses, whoever has what port there.
pub fn own_address(last: u8) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 63), low, last)
}

/// `None`: another process has it.
fn hold(port: u16) -> Option<UnixListener> {
    let name = format!("ringway-test-port-{port}");
    let name = SocketAddr::from_abstract_name(name).expect("a short name");
    UnixListener::bind_addr(&name).ok()
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}
