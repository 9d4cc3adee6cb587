//! A ring in a process that has run out of descriptors: in a process of its own, one test only.
//!
//! Not here: everything else about the ring (`src/ring/tests.rs`).

use std::fs::File;
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use ringway::ring::Event;
use ringway::ring::Ring;
use ringway::ring::RingSettings;
use ringway::ring::listen;
use ringway::ring::raise_descriptor_limit;

/// EMFILE and ENFILE.
const NO_DESCRIPTORS: [i32; 2] = [24, 23];

fn events(ring: &mut Ring) -> Vec<Event> {
    ring.enter(Some(Duration::from_millis(100)), None).unwrap();
    std::iter::from_fn(|| ring.next_event()).collect()
}

/// Waits for the first event for which `what` has an answer.
#[track_caller]
fn wait_for<T>(ring: &mut Ring, what: impl Fn(&Event) -> Option<T>) -> T {
    for _ in 0..100 {
        if let Some(found) = events(ring).iter().find_map(&what) {
            return found;
        }
    }
    panic!("did not happen");
}

#[test]
fn accept_without_descriptors_is_told_and_one_client_refused_then_goes_on() {
    let (_, limit) = raise_descriptor_limit().unwrap();
    if limit > 200_000 {
        return; // Too many to use up.
    }
    let mut ring = Ring::new(&RingSettings::default()).unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let address = listener.address();
    let number = ring.listen(listener);
    events(&mut ring);

    let mut all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // One for each client, none for us.
    all.truncate(all.len() - 2);
    let mut refused = TcpStream::connect(address).unwrap();
    let waiting = TcpStream::connect(address).unwrap();
    let errno = wait_for(&mut ring, |event| match event {
        Event::AcceptFailed { listener, errno } if *listener == number => Some(*errno),
        _ => None,
    });
    assert!(NO_DESCRIPTORS.contains(&errno));
    ring.refuse_one(number).unwrap();
    assert!(matches!(refused.read(&mut [0]), Ok(0) | Err(_)), "not refused");

    all.truncate(all.len() - 2);
    ring.accept_again(number);
    let id = wait_for(&mut ring, |event| match event {
        Event::Accepted { id, .. } => Some(*id),
        _ => None,
    });
    assert_eq!(ring.peer_address(id).unwrap(), waiting.local_addr().unwrap());
    assert!(ring.refuse_one(number).is_err(), "nobody waits");
}
