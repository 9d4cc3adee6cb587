//! The ring against real sockets on loopback.
//!
//! Not here: lack of descriptors, which needs a process of its own (`tests/ring_descriptors.rs`).

use std::collections::HashMap;
use std::io::ErrorKind;
use std::io::Read;
use std::io::Write;
use std::net::Shutdown;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use super::*;
use crate::limits::ACCEPTS_AT_ONCE;

const LOOPBACK: &str = "127.0.0.1:0";

fn small(entries: u32, cq_entries: u32, buffer_size: u32, buffer_count: u16) -> RingSettings {
    RingSettings { entries, cq_entries, buffer_size, buffer_count, huge_pages: false }
}

/// A ring and all that it has said.
struct Rig {
    ring: Ring,
    accepted: Vec<SocketId>,
    received: HashMap<SocketId, Vec<u8>>,
    ended: Vec<(SocketId, Option<i32>)>,
    sent: Vec<(SocketId, Vec<u8>, bool)>,
    connected: Vec<(SocketId, Result<(), i32>)>,
    gone: Vec<SocketId>,
    woken: usize,
    /// Buffers kept instead of given back.
    keep: bool,
    kept: Vec<BufferRef>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(&small(64, 256, 4096, 64))
    }

    fn with(settings: &RingSettings) -> Rig {
        Rig {
            ring: Ring::new(settings).unwrap(),
            accepted: Vec::new(),
            received: HashMap::new(),
            ended: Vec::new(),
            sent: Vec::new(),
            connected: Vec::new(),
            gone: Vec::new(),
            woken: 0,
            keep: false,
            kept: Vec::new(),
        }
    }

    fn turn(&mut self, timeout_ms: u64) {
        self.ring.enter(Some(Duration::from_millis(timeout_ms)), None).unwrap();
        while let Some(event) = self.ring.next_event() {
            self.take(event);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Accepted { id, .. } => self.accepted.push(id),
            Event::Received { id, buffer } => {
                assert!(!self.gone.contains(&id), "data of a socket that is gone");
                self.received.entry(id).or_default().extend_from_slice(self.ring.bytes(&buffer));
                if self.keep {
                    self.kept.push(buffer);
                } else {
                    self.ring.give_back(buffer);
                }
            }
            Event::End { id, error } => self.ended.push((id, error)),
            Event::Sent { id, buffer, ok } => self.sent.push((id, buffer, ok)),
            Event::Connected { id, result } => self.connected.push((id, result)),
            Event::Gone { id } => self.gone.push(id),
            Event::Woken => self.woken += 1,
            Event::AcceptFailed { errno, .. } => panic!("accept: {errno}"),
        }
    }

    /// Of what a node has said half.
    fn take_half(&mut self, event: Event) {
        match event {
            Event::Received { id, buffer }
                if buffer.len() > 1 && !self.ring.table.get(id).expect("it lives").fair =>
            {
                let half = buffer.len() / 2;
                let bytes = &self.ring.bytes(&buffer)[..half];
                self.received.entry(id).or_default().extend_from_slice(bytes);
                self.ring.keep_rest(id, buffer, half);
            }
            event => self.take(event),
        }
    }

    #[track_caller]
    fn until(&mut self, what: impl Fn(&Rig) -> bool) {
        for _ in 0..1000 {
            if what(self) {
                return;
            }
            self.turn(10);
        }
        panic!("did not happen; counters {:?}", self.ring.counters());
    }

    /// A connected pair: the peer's end, and ours.
    fn pair(&mut self) -> (TcpStream, SocketId) {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        (peer, self.ring.adopt(ours.into()))
    }

    fn bytes_of(&self, id: SocketId) -> &[u8] {
        self.received.get(&id).map_or(&[], Vec::as_slice)
    }

    fn all_received(&self) -> usize {
        self.received.values().map(Vec::len).sum()
    }

    fn is_gone(&self, id: SocketId) -> bool {
        self.gone.contains(&id)
    }

    /// Nothing is lost or stale when all is over.
    #[track_caller]
    fn check_clean(&mut self) {
        for id in self.ring.table.living() {
            self.ring.close(id);
        }
        self.until(|rig| rig.ring.sockets() == 0);
        self.turn(0);
        assert_eq!(self.ring.buffers.available(), self.ring.buffers.count());
        let heavy = &self.ring.heavy;
        assert_eq!(heavy.buffers.available(), heavy.buffers.count());
        assert_eq!((heavy.turning, heavy.clients, heavy.is_waiting()), (0, 0, false));
        assert_eq!(self.ring.counters().stale, 0);
    }
}

/// Bytes in which each place differs from its neighbourhood.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| ((at.wrapping_mul(0x9e37_79b9) ^ seed) >> 8) as u8).collect()
}

fn read_slowly(mut peer: TcpStream, len: usize) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        let mut some = vec![0; 200_000];
        while all.len() < len {
            let n = peer.read(&mut some).unwrap();
            assert!(n > 0, "ended after {}", all.len());
            all.extend_from_slice(&some[..n]);
            thread::sleep(Duration::from_millis(1));
        }
        all
    })
}

// --- sending ----------------------------------------------------------------------------------

#[test]
fn small_send_goes_out_at_once_and_gives_its_buffer_back() {
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.turn(0);
    let before = rig.ring.counters().completions;
    let buffer = Vec::from(*b"+PONG\r\n");
    let at = buffer.as_ptr();
    rig.ring.send(id, buffer);
    rig.turn(0);
    let (of, buffer, ok) = rig.sent.pop().unwrap();
    assert!(of == id && ok && buffer.as_ptr() == at && buffer == b"+PONG\r\n");
    assert_eq!(rig.ring.counters().completions, before, "a completion was posted");
    let mut got = [0; 7];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"+PONG\r\n");
    rig.check_clean();
}

#[test]
fn large_sends_to_a_slow_reader_arrive_whole_and_in_order() {
    const LEN: usize = 8 * 1024 * 1024;
    let mut rig = Rig::new();
    let (peer, id) = rig.pair();
    let reader = read_slowly(peer, 3 * LEN + 3);
    let mut want = Vec::new();
    let mut buffer = Vec::new();
    for round in 0..3 {
        // The very same memory, as soon as it is given back: a send not really over would show.
        buffer.clear();
        buffer.extend_from_slice(&pattern(round, LEN));
        buffer.push(b'|');
        want.extend_from_slice(&buffer);
        rig.ring.send(id, buffer);
        rig.until(|rig| !rig.sent.is_empty());
        let (_, back, ok) = rig.sent.pop().unwrap();
        assert!(ok);
        buffer = back;
    }
    assert!(reader.join().unwrap() == want, "the stream is damaged");
    assert!(rig.ring.counters().short_sends >= 1);
    rig.check_clean();
}

#[test]
fn buffers_of_small_sends_may_be_reused_at_once() {
    let mut rig = Rig::with(&small(8, 32, 4096, 8));
    let mut pairs: Vec<_> = (0..20).map(|_| rig.pair()).collect();
    let mut free = Vec::new();
    for round in 0..200_u32 {
        for (at, (_, id)) in pairs.iter().enumerate() {
            let mut buffer: Vec<u8> = free.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(format!("{at}:{round};").as_bytes());
            rig.ring.send(*id, buffer);
        }
        rig.turn(0);
        assert_eq!(rig.sent.len(), 20);
        for (_, mut buffer, ok) in rig.sent.drain(..) {
            assert!(ok);
            buffer.fill(b'X');
            free.push(buffer);
        }
    }
    for (at, (peer, id)) in pairs.iter_mut().enumerate() {
        rig.ring.close_after_send(*id);
        let want: String = (0..200).map(|round| format!("{at}:{round};")).collect();
        let mut got = vec![0; want.len()];
        peer.read_exact(&mut got).unwrap();
        assert!(got == want.as_bytes());
    }
    rig.check_clean();
}

#[test]
#[should_panic = "two sends at once"]
fn second_send_before_the_first_is_over_panics() {
    let mut rig = Rig::new();
    let (_peer, id) = rig.pair();
    rig.ring.send(id, vec![1]);
    rig.ring.send(id, vec![2]);
}

#[test]
fn send_to_a_peer_that_is_gone_fails_and_gives_its_buffer_back() {
    let mut rig = Rig::new();
    let (peer, id) = rig.pair();
    drop(peer);
    for _ in 0..10 {
        rig.ring.send(id, vec![7; 100]);
        rig.turn(10);
        let (_, buffer, ok) = rig.sent.pop().unwrap();
        assert_eq!(buffer.len(), 100);
        if !ok {
            return rig.check_clean();
        }
    }
    panic!("ten sends to nobody went well");
}

#[test]
fn send_without_bytes_or_socket_is_answered() {
    let mut rig = Rig::new();
    let (_peer, id) = rig.pair();
    rig.ring.send(id, Vec::new());
    rig.turn(0);
    assert_eq!(rig.sent.pop(), Some((id, Vec::new(), true)));
    rig.ring.close(id);
    rig.ring.send(id, vec![1]);
    rig.turn(0);
    assert_eq!(rig.sent.pop(), Some((id, vec![1], false)));
    assert!(rig.is_gone(id));
    rig.ring.send(id, vec![2]);
    rig.turn(0);
    assert_eq!(rig.sent.pop(), Some((id, vec![2], false)));
    rig.check_clean();
}

#[test]
fn close_after_send_delivers_then_ends_without_waiting() {
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    rig.ring.send(id, b"-ERR bye\r\n".to_vec());
    rig.ring.close_after_send(id);
    // Would take a minute for each wait that nothing ends.
    while !rig.is_gone(id) {
        rig.turn(60_000);
    }
    let mut got = String::new();
    peer.read_to_string(&mut got).unwrap();
    assert_eq!(got, "-ERR bye\r\n");
    rig.check_clean();
}

#[test]
fn close_after_a_send_that_takes_long_sleeps_until_it_is_out() {
    const LEN: usize = 8 * 1024 * 1024;
    let mut rig = Rig::new();
    let (peer, id) = rig.pair();
    rig.ring.send(id, vec![5; LEN]);
    rig.turn(0);
    rig.ring.close_after_send(id);
    let reader = read_slowly(peer, LEN);
    while !rig.is_gone(id) {
        rig.turn(60_000);
    }
    assert!(rig.sent[0].2);
    assert_eq!(reader.join().unwrap().len(), LEN);
    assert!(rig.ring.counters().enters < 200, "{:?}", rig.ring.counters());
    rig.check_clean();
}

// --- receiving --------------------------------------------------------------------------------

#[test]
fn lack_of_buffers_delays_and_loses_nothing() {
    let mut rig = Rig::with(&small(64, 256, 256, 8));
    let mut pairs: Vec<_> = (0..50).map(|_| rig.pair()).collect();
    for (peer, id) in &mut pairs {
        rig.ring.receive(*id, true);
        peer.write_all(&pattern(u64::from(id.index), 10_000)).unwrap();
    }
    rig.until(|rig| rig.all_received() == 500_000);
    for (_, id) in &pairs {
        assert!(rig.bytes_of(*id) == pattern(u64::from(id.index), 10_000));
    }
    assert!(rig.ring.counters().enobufs > 0);
    assert!(rig.ended.is_empty());
    // All are armed again, also those that found no buffer last.
    for (peer, _) in &mut pairs {
        peer.write_all(b"more").unwrap();
    }
    rig.until(|rig| rig.all_received() == 500_200);
    rig.check_clean();
}

#[test]
fn heavy_client_has_few_buffers_and_stands_behind_the_others_until_it_sends_less() {
    const LEN: usize = 4 << 20;
    let mut rig = Rig::with(&small(64, 256, 4096, 64));
    let (mut peer, heavy) = rig.pair();
    let (mut other, light) = rig.pair();
    rig.ring.receive_fairly(heavy);
    rig.ring.receive_fairly(light);
    let writer = thread::spawn(move || {
        peer.write_all(&pattern(1, LEN)).unwrap();
        peer
    });
    // Heavy ones are not looked at, for so many turns that all would have come.
    let turn_without = |rig: &mut Rig| {
        rig.ring.enter(Some(Duration::from_millis(1)), None).unwrap();
        while let Some(event) = rig.ring.next_light() {
            rig.take(event);
        }
    };
    for _ in 0..1_000 {
        turn_without(&mut rig);
    }
    let ahead = rig.ring.heavy.batch.len();
    assert!((1..=64 + usize::from(HEAVY_BUFFER_COUNT)).contains(&ahead), "{ahead} buffers");
    let before = rig.all_received();
    other.write_all(b"little").unwrap();
    for _ in 0..100 {
        turn_without(&mut rig);
    }
    assert_eq!(rig.bytes_of(light), b"little");
    assert_eq!(rig.all_received(), before + 6);

    rig.until(|rig| rig.all_received() == LEN + 6);
    assert!(rig.bytes_of(heavy) == pattern(1, LEN));
    let mut peer = writer.join().unwrap();
    for n in 1..=3 {
        peer.write_all(b"less").unwrap();
        rig.until(|rig| rig.all_received() == LEN + 6 + 4 * n);
    }
    assert!(!rig.ring.table.at(heavy.index).heavy);
    assert!(rig.ring.counters().cancels >= 1);
    rig.check_clean();
}

#[test]
fn beside_a_heavy_client_few_buffers_are_filled_at_once_and_all_of_them_later() {
    const LEN: usize = 150 * 1024;
    let mut rig = Rig::with(&small(64, 256, 256, 512));
    let few = usize::from(crate::limits::CROWDED_BUFFER_COUNT);
    let (mut peer, heavy) = rig.pair();
    rig.ring.receive_fairly(heavy);
    peer.write_all(&pattern(1, 64 * 1024)).unwrap();
    rig.until(|rig| rig.ring.heavy.clients == 1 && rig.all_received() == 64 * 1024);
    let (mut node_peer, node) = rig.pair();
    rig.ring.receive(node, false);
    node_peer.write_all(&pattern(2, LEN)).unwrap();
    // What the kernel knew before is used up.
    rig.until(|rig| rig.bytes_of(node).len() == LEN);
    node_peer.write_all(&pattern(2, LEN)).unwrap();
    rig.ring.enter(Some(Duration::from_millis(100)), None).unwrap();
    let ahead = rig.ring.heavy.batch.len();
    assert!((1..=few).contains(&ahead), "{ahead} buffers");
    rig.until(|rig| rig.all_received() == 64 * 1024 + 2 * LEN);
    assert!(usize::from(rig.ring.buffers.available()) <= few);
    peer.write_all(b"little").unwrap();
    rig.until(|rig| rig.all_received() == 64 * 1024 + 2 * LEN + 6);
    rig.turn(0);
    assert_eq!(rig.ring.buffers.available(), 512);
    rig.check_clean();
}

#[test]
fn much_that_a_node_says_stands_behind_the_others_in_its_order() {
    const LEN: usize = 200_000;
    let mut rig = Rig::with(&small(64, 256, 4096, 64));
    let (mut peer, node) = rig.pair();
    rig.ring.receive(node, false);
    peer.write_all(&pattern(1, LEN)).unwrap();
    rig.ring.enter(Some(Duration::from_millis(100)), None).unwrap();
    assert!(rig.ring.next_light().is_none());
    assert!(rig.ring.heavy.batch.len() > 8);
    rig.until(|rig| rig.all_received() == LEN);
    assert!(rig.bytes_of(node) == pattern(1, LEN));
    rig.check_clean();
}

#[test]
fn what_departs_is_sent_at_once_and_nothing_is_received_meanwhile() {
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    rig.turn(0);
    peer.write_all(b"asked").unwrap();
    rig.ring.send(id, b"said".to_vec());
    rig.ring.depart();
    let mut said = [0; 4];
    peer.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"said");
    let event = rig.ring.next_sent().expect("it is out");
    rig.take(event);
    assert_eq!(rig.sent, [(id, b"said".to_vec(), true)]);
    assert!(rig.ring.next_event().is_none(), "that is for `enter`");
    // Sent again before anything else, and not slept upon.
    rig.ring.send(id, b"more".to_vec());
    rig.ring.depart();
    rig.turn(60_000);
    assert_eq!(rig.sent.len(), 2);
    rig.until(|rig| rig.bytes_of(id) == b"asked");
    rig.check_clean();
}

#[test]
fn rest_of_what_a_node_has_said_comes_first_and_all_else_of_it_behind() {
    let mut rig = Rig::with(&small(64, 256, 4096, 64));
    let (mut peer, node) = rig.pair();
    rig.ring.receive(node, false);
    peer.write_all(&pattern(1, 5000)).unwrap();
    rig.ring.enter(Some(Duration::from_millis(100)), None).unwrap();
    assert!(rig.ring.next_light().is_none());
    let Some(Event::Received { buffer, .. }) = rig.ring.next_heavy() else { panic!("nothing") };
    assert_eq!(rig.ring.bytes(&buffer), &pattern(1, 5000)[..4096]);
    rig.received.insert(node, rig.ring.bytes(&buffer)[..1000].to_vec());
    rig.ring.keep_rest(node, buffer, 1000);
    peer.write_all(b"more").unwrap();
    // Not slept upon, and nothing of it is light.
    rig.ring.enter(Some(Duration::from_secs(60)), None).unwrap();
    assert!(rig.ring.next_light().is_none());
    rig.until(|rig| rig.all_received() == 5004);
    assert!(rig.bytes_of(node) == [&pattern(1, 5000)[..], b"more"].concat());
    // Of one that is closed meanwhile nothing comes, and the buffer goes back.
    peer.write_all(&pattern(1, 5000)).unwrap();
    rig.ring.enter(Some(Duration::from_millis(100)), None).unwrap();
    assert!(rig.ring.next_light().is_none());
    let Some(Event::Received { buffer, .. }) = rig.ring.next_heavy() else { panic!("nothing") };
    rig.ring.keep_rest(node, buffer, 1000);
    rig.check_clean();
    assert_eq!(rig.all_received(), 5004);
}

#[test]
fn heavy_events_that_came_before_light_ones_do_not_wait_for_them() {
    let mut rig = Rig::with(&small(64, 256, 4096, 64));
    let (mut much, node) = rig.pair();
    let (mut little, other) = rig.pair();
    rig.ring.receive(node, false);
    rig.turn(0);
    much.write_all(&pattern(1, 40_000)).unwrap();
    rig.ring.enter(Some(Duration::from_millis(100)), None).unwrap();
    assert!(rig.ring.next_light().is_none());
    // Arms it where bytes are there already.
    little.write_all(b"little").unwrap();
    rig.ring.receive(other, false);
    rig.ring.depart();
    let event = rig.ring.next_heavy().expect("it is older");
    rig.take(event);
    rig.until(|rig| rig.all_received() == 40_006);
    assert!(rig.bytes_of(node) == pattern(1, 40_000));
    rig.check_clean();
}

#[test]
fn caller_may_keep_all_buffers_for_a_while() {
    let mut rig = Rig::with(&small(64, 256, 256, 8));
    let (mut peer, id) = rig.pair();
    let (_idle, other) = rig.pair();
    rig.keep = true;
    rig.ring.receive(id, true);
    rig.ring.receive(other, true);
    peer.write_all(&pattern(1, 8 * 256 + 100)).unwrap();
    rig.until(|rig| rig.ring.counters().enobufs > 0);
    for _ in 0..5 {
        rig.turn(5);
    }
    assert_eq!(rig.all_received(), 8 * 256);
    rig.keep = false;
    for buffer in std::mem::take(&mut rig.kept) {
        rig.ring.give_back(buffer);
    }
    rig.until(|rig| rig.all_received() == 8 * 256 + 100);
    assert!(rig.bytes_of(id) == pattern(1, 8 * 256 + 100));
    rig.check_clean();
}

#[test]
fn end_of_stream_comes_after_the_last_bytes() {
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    peer.write_all(b"last words").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    rig.until(|rig| !rig.ended.is_empty());
    assert_eq!(rig.ended, [(id, None)]);
    assert_eq!(rig.bytes_of(id), b"last words");
    rig.check_clean();
}

#[test]
fn false_end_of_stream_is_armed_again() {
    const SOCK_NONEMPTY: u32 = 4;
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.ring.table.at(id.index).receive = Receive::Armed;
    let user_data = id.token(Kind::Receive).encode();
    rig.ring.batch.push(Completion { user_data, result: 0, flags: SOCK_NONEMPTY });
    rig.turn(0);
    assert!(rig.ended.is_empty());
    peer.write_all(b"goes on").unwrap();
    rig.until(|rig| rig.bytes_of(id) == b"goes on");
    rig.check_clean();
}

#[test]
fn completion_of_an_earlier_generation_is_counted_and_its_buffer_given_back() {
    let mut rig = Rig::new();
    let (_peer, id) = rig.pair();
    let old = SocketId { generation: id.generation + 1, ..id };
    let (user_data, flags) = (old.token(Kind::Receive).encode(), 1 | 3 << 16 | 2);
    rig.ring.buffers.note(flags);
    rig.ring.batch.push(Completion { user_data, result: 10, flags });
    let before = rig.ring.buffers.available();
    rig.turn(0);
    assert_eq!(rig.ring.counters().stale, 1);
    assert_eq!(rig.all_received(), 0);
    assert_eq!(rig.ring.buffers.available(), before + 1);
}

#[test]
fn reset_ends_with_its_errno() {
    let mut rig = Rig::new();
    let (peer, id) = rig.pair();
    rig.ring.receive(id, true);
    rig.turn(0);
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    rig.until(|rig| !rig.ended.is_empty());
    assert_eq!(rig.ended, [(id, Some(libc::ECONNRESET))]);
    rig.check_clean();
}

#[test]
fn paused_socket_receives_nothing_until_resumed() {
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    peer.write_all(b"one").unwrap();
    rig.until(|rig| rig.all_received() == 3);
    rig.ring.pause(id);
    rig.turn(0);
    peer.write_all(b"two").unwrap();
    for _ in 0..5 {
        rig.turn(5);
    }
    assert_eq!(rig.bytes_of(id), b"one");
    rig.ring.resume(id);
    rig.until(|rig| rig.all_received() == 6);
    // There and back within one turn, both ways, and more than once.
    for _ in 0..3 {
        rig.ring.pause(id);
        rig.ring.resume(id);
    }
    rig.turn(0);
    peer.write_all(b"three").unwrap();
    rig.until(|rig| rig.all_received() == 11);
    rig.ring.pause(id);
    rig.ring.resume(id);
    rig.ring.pause(id);
    rig.turn(0);
    peer.write_all(b"four").unwrap();
    for _ in 0..5 {
        rig.turn(5);
    }
    assert_eq!(rig.bytes_of(id), b"onetwothree");
    rig.ring.resume(id);
    rig.until(|rig| rig.all_received() == 15);
    assert!(rig.ended.is_empty());
    rig.check_clean();
}

#[test]
fn small_completion_queue_loses_nothing() {
    let mut rig = Rig::with(&small(8, 16, 64, 128));
    let mut pairs: Vec<_> = (0..100).map(|_| rig.pair()).collect();
    for (_, id) in &pairs {
        rig.ring.receive(*id, true);
    }
    rig.turn(0);
    for round in 0..20_usize {
        for (peer, _) in &mut pairs {
            peer.write_all(&pattern(round as u64, 64)).unwrap();
        }
        // Sends that do not go out at once post completions among all these.
        for (_, id) in &pairs {
            if !rig.ring.is_sending(*id) {
                rig.ring.send(*id, vec![b'.'; 100]);
            }
        }
        rig.until(|rig| rig.all_received() == (round + 1) * 100 * 64);
    }
    assert!(rig.ring.counters().overflows > 0, "{:?}", rig.ring.counters());
    let want: Vec<u8> = (0..20).flat_map(|round| pattern(round, 64)).collect();
    for (_, id) in &pairs {
        assert!(rig.bytes_of(*id) == want);
    }
    rig.check_clean();
}

// --- closing ----------------------------------------------------------------------------------

#[test]
fn close_with_data_in_flight_tells_gone_only() {
    let mut rig = Rig::with(&small(64, 256, 64, 8));
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    rig.turn(0);
    peer.write_all(&pattern(3, 5000)).unwrap();
    // Completions are fetched, none is looked at before the close.
    rig.ring.enter(Some(Duration::from_millis(100)), None).unwrap();
    rig.ring.close(id);
    rig.until(|rig| rig.is_gone(id));
    assert_eq!(rig.all_received(), 0);
    assert!(rig.ended.is_empty());
    rig.check_clean();
}

/// How many of them have been told the end of their streams.
fn count_ended(peers: &mut [TcpStream]) -> usize {
    let has_ended = |peer: &&mut TcpStream| {
        peer.set_nonblocking(true).unwrap();
        let said = peer.peek(&mut [0]);
        !matches!(said, Ok(1)) && said.map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock)
    };
    peers.iter_mut().filter(has_ended).count()
}

#[test]
fn many_that_are_closed_soon_end_a_few_with_each_enter_and_tell_nothing_more() {
    const COUNT: usize = 5 * ENDS_AT_ONCE;
    let mut rig = Rig::new();
    let (mut peers, ids): (Vec<_>, Vec<_>) = (0..COUNT).map(|_| rig.pair()).unzip();
    ids.iter().for_each(|&id| rig.ring.receive_fairly(id));
    rig.turn(0);
    ids.iter().for_each(|&id| rig.ring.close_soon(id));
    peers.iter_mut().for_each(|peer| peer.write_all(b"too late").unwrap());
    for round in 1..=COUNT / ENDS_AT_ONCE {
        rig.turn(0);
        let so_far = round * ENDS_AT_ONCE;
        assert!(count_ended(&mut peers) <= so_far && rig.gone.len() <= so_far);
        // They are closing all the same.
        ids.iter().for_each(|&id| rig.ring.close(id));
    }
    assert!(rig.ring.ending.is_empty());
    rig.until(|rig| rig.gone.len() == COUNT);
    assert_eq!((rig.all_received(), rig.ended.len()), (0, 0));
    rig.check_clean();
}

#[test]
fn socket_closed_soon_with_bytes_to_send_ends_before_others_and_gives_them_back() {
    const LEN: usize = 16 * 1024 * 1024;
    let mut rig = Rig::new();
    let (peers, ids): (Vec<_>, Vec<_>) = (0..2 * ENDS_AT_ONCE).map(|_| rig.pair()).unzip();
    let last = ids[ids.len() - 1];
    rig.ring.send(last, pattern(9, LEN));
    rig.turn(0);
    ids.iter().for_each(|&id| rig.ring.close_soon(id));
    assert!(rig.sent.is_empty(), "went out at once: no test");
    rig.turn(0);
    assert!(!rig.ring.table.at(last.index).waits_to_end);
    assert_eq!(rig.ring.ending.len(), ENDS_AT_ONCE);
    rig.until(|rig| rig.is_gone(last));
    let (of, buffer, ok) = &rig.sent[0];
    assert!(*of == last && *buffer == pattern(9, LEN) && !ok);
    // What was given to be sent before may go out or not; it comes back once.
    let (mut peer, early) = rig.pair();
    rig.ring.send(early, b"bye".to_vec());
    rig.ring.close_soon(early);
    rig.until(|rig| rig.ring.sockets() == 0);
    let mut said = Vec::new();
    peer.read_to_end(&mut said).unwrap();
    assert!(said == b"bye" || said.is_empty(), "{said:?}");
    assert_eq!((rig.sent.len(), rig.gone.len()), (2, 2 * ENDS_AT_ONCE + 1));
    drop(peers);
    rig.check_clean();
}

#[derive(Copy, Clone, PartialEq)]
enum Step {
    Close,
    ReceiveEnds,
    SendEnds,
}

/// A large send under way and an armed receive; then these three in some order.
fn close_in_order(steps: [Step; 3]) {
    const LEN: usize = 16 * 1024 * 1024;
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    rig.ring.send(id, pattern(9, LEN));
    rig.turn(0);
    assert!(rig.sent.is_empty(), "went out at once: no test");
    let mut closed = false;
    for step in steps {
        match step {
            Step::Close => {
                rig.ring.close(id);
                closed = true;
            }
            Step::ReceiveEnds => {
                let _ = peer.shutdown(Shutdown::Write);
                if !closed {
                    rig.until(|rig| rig.ended == [(id, None)]);
                }
            }
            Step::SendEnds => {
                let reader = thread::spawn(move || {
                    let mut all = vec![0; LEN];
                    (peer.read_exact(&mut all).is_ok(), peer)
                });
                rig.until(|rig| !rig.sent.is_empty());
                let (whole, back) = reader.join().unwrap();
                assert_eq!(whole, !closed);
                peer = back;
            }
        }
    }
    rig.until(|rig| rig.is_gone(id));
    assert_eq!(rig.sent.len(), 1);
    let (of, buffer, _) = &rig.sent[0];
    assert!(*of == id && *buffer == pattern(9, LEN));
    let ends = steps.iter().take_while(|step| **step != Step::Close);
    assert_eq!(rig.ended.len(), ends.filter(|step| **step == Step::ReceiveEnds).count());
    rig.check_clean();
}

#[test]
fn close_receive_end_and_send_end_in_every_order() {
    use Step::{Close, ReceiveEnds, SendEnds};
    close_in_order([Close, ReceiveEnds, SendEnds]);
    close_in_order([Close, SendEnds, ReceiveEnds]);
    close_in_order([ReceiveEnds, Close, SendEnds]);
    close_in_order([ReceiveEnds, SendEnds, Close]);
    close_in_order([SendEnds, Close, ReceiveEnds]);
    close_in_order([SendEnds, ReceiveEnds, Close]);
}

#[test]
fn index_is_reused_after_gone_only() {
    let mut rig = Rig::new();
    let (peer, old) = rig.pair();
    rig.ring.receive(old, true);
    rig.ring.send(old, vec![1; 16 * 1024 * 1024]);
    rig.turn(0);
    rig.ring.close(old);
    let (_other, between) = rig.pair();
    assert_ne!(between.index, old.index);
    rig.until(|rig| rig.is_gone(old));
    let (mut third, new) = rig.pair();
    assert_eq!(new.index, old.index);
    assert_ne!(new.generation, old.generation);
    // The old name does nothing to the new socket.
    rig.ring.receive(new, true);
    rig.ring.pause(old);
    rig.ring.close(old);
    third.write_all(b"alive").unwrap();
    rig.until(|rig| rig.bytes_of(new) == b"alive");
    assert!(rig.ring.peer_address(old).is_err());
    drop(peer);
    rig.check_clean();
}

#[test]
fn ring_dropped_in_full_use_lets_go_of_everything() {
    let mut rig = Rig::new();
    let (mut soon, ids): (Vec<_>, Vec<_>) = (0..3 * ENDS_AT_ONCE).map(|_| rig.pair()).unzip();
    ids.iter().for_each(|&id| rig.ring.receive_fairly(id));
    let listener = rig.ring.listen(listen(LOOPBACK.parse().unwrap(), None).unwrap());
    let address = rig.ring.listener_address(listener);
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    rig.ring.send(id, vec![1; 16 * 1024 * 1024]);
    rig.turn(0);
    peer.write_all(b"unread").unwrap();
    ids.iter().for_each(|&id| rig.ring.close_soon(id));
    drop(rig);
    assert!(soon.iter_mut().all(|peer| matches!(peer.read(&mut [0]), Ok(0) | Err(_))));
    let mut rest = Vec::new();
    let _ = peer.read_to_end(&mut rest);
    assert!(rest.len() < 16 * 1024 * 1024);
    assert!(TcpStream::connect(address.unwrap()).is_err(), "still listening");
}

// --- connecting and accepting -----------------------------------------------------------------

#[test]
fn connect_then_talk() {
    let mut rig = Rig::new();
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let options = ConnectOptions { user_timeout: Some(Duration::from_secs(5)) };
    let id = rig.ring.connect(&address, &options).unwrap();
    rig.until(|rig| !rig.connected.is_empty());
    assert_eq!(rig.connected, [(id, Ok(()))]);
    assert_eq!(rig.ring.peer_address(id).unwrap(), address);
    let (mut peer, from) = listener.accept().unwrap();
    assert_eq!(rig.ring.local_address(id).unwrap(), from);
    rig.ring.receive(id, false);
    peer.write_all(b"hello").unwrap();
    rig.until(|rig| rig.bytes_of(id) == b"hello");
    rig.check_clean();
}

#[test]
fn connect_to_a_closed_port_is_refused() {
    let mut rig = Rig::new();
    let address = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let id = rig.ring.connect(&address, &ConnectOptions::default()).unwrap();
    rig.until(|rig| !rig.connected.is_empty());
    assert_eq!(rig.connected, [(id, Err(libc::ECONNREFUSED))]);
    rig.ring.close(id);
    rig.until(|rig| rig.is_gone(id));
    rig.check_clean();
}

#[test]
fn connect_that_hangs_is_given_up_by_close() {
    let mut rig = Rig::new();
    // A full backlog: the kernel drops what comes next.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&LOOPBACK.parse::<SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let _first = TcpStream::connect(address).unwrap();
    let id = rig.ring.connect(&address, &ConnectOptions::default()).unwrap();
    for _ in 0..5 {
        rig.turn(10);
    }
    assert!(rig.connected.is_empty());
    rig.ring.close(id);
    rig.until(|rig| rig.is_gone(id));
    assert!(rig.connected.is_empty());
    rig.check_clean();
}

#[test]
fn storm_of_connections_is_accepted_whole() {
    let mut rig = Rig::with(&small(16, 32, 4096, 16));
    let listener = listen(LOOPBACK.parse().unwrap(), None).unwrap();
    let address = listener.address();
    rig.ring.listen(listener);
    let storm = thread::spawn(move || {
        (0..500).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()
    });
    rig.until(|rig| rig.accepted.len() == 500);
    let peers = storm.join().unwrap();
    let id = rig.accepted[250];
    let from = rig.ring.peer_address(id).unwrap();
    assert!(peers.iter().any(|peer| peer.local_addr().unwrap() == from));
    assert_eq!(rig.ring.local_address(id).unwrap(), address);
    let fd = rig.ring.table.at(id.index).fd.as_ref().unwrap().as_fd().try_clone_to_owned();
    let accepted = socket2::Socket::from(fd.unwrap());
    assert!(accepted.tcp_nodelay().unwrap(), "not inherited from the listener");
    assert!(accepted.keepalive().unwrap());
    assert_eq!(accepted.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
    rig.ring.stop_listening();
    rig.turn(0);
    rig.turn(0);
    assert!(TcpStream::connect(address).is_err());
    rig.check_clean();
}

#[test]
fn clients_that_have_piled_up_are_let_in_a_few_with_each_enter() {
    let mut rig = Rig::new();
    let listener = listen(LOOPBACK.parse().unwrap(), None).unwrap();
    let address = listener.address();
    let connect = |count| -> Vec<TcpStream> {
        (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
    };
    // Nobody looks meanwhile: before anything is accepted, and with accepts in the kernel's hands.
    let mut peers = connect(100);
    rig.ring.listen(listener);
    let few = |rig: &mut Rig, all: usize| {
        while rig.accepted.len() < all {
            let before = rig.accepted.len();
            // Would take a minute if it waited while somebody else does.
            rig.turn(60_000);
            let came = rig.accepted.len() - before;
            assert!(came <= ACCEPTS_AT_ONCE as usize, "{came} with one enter");
        }
        let enters = rig.ring.counters().enters;
        assert!(enters <= 2 * all as u64, "{enters} enters for {all}");
    };
    few(&mut rig, 100);
    rig.turn(10);
    peers.extend(connect(100));
    few(&mut rig, 200);
    rig.ring.stop_listening();
    rig.until(|rig| !rig.ring.is_listening());
    rig.check_clean();
}

#[test]
fn connections_that_wait_when_listening_stops_still_come_out() {
    let mut rig = Rig::new();
    let listener = listen(LOOPBACK.parse().unwrap(), None).unwrap();
    let address = listener.address();
    rig.ring.listen(listener);
    rig.turn(1);
    // Made while the ring does not look, and after it was told to stop.
    let mut peers: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    rig.ring.stop_listening();
    peers.extend((0..3).map(|_| TcpStream::connect(address).unwrap()));
    assert!(rig.ring.is_listening());
    rig.until(|rig| !rig.ring.is_listening());
    assert_eq!(rig.accepted.len(), 6);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    for (mut peer, id) in peers.into_iter().zip(rig.accepted.clone()) {
        rig.ring.send(id, b"served".to_vec());
        rig.turn(1);
        let mut said = [0; 6];
        peer.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"served");
    }
    rig.check_clean();
}

#[test]
fn shared_listener_outlives_the_ring_that_stops_and_one_only_bound_takes_nobody() {
    let (mut old, mut new) = (Rig::new(), Rig::new());
    let listener = listen(LOOPBACK.parse().unwrap(), None).unwrap();
    let address = listener.address();
    let shared = listener.share().unwrap();
    let mut beside = bind(address).unwrap();
    old.ring.listen(listener);
    let peers: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    old.until(|rig| rig.accepted.len() == 20);
    new.ring.listen(shared.adopt().unwrap());
    new.turn(1);
    old.ring.stop_listening();
    old.until(|rig| !rig.ring.is_listening());
    let later: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    new.until(|rig| rig.accepted.len() == 20);
    beside.open(None).unwrap();
    new.ring.listen(beside);
    let last: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    new.until(|rig| rig.accepted.len() == 40);
    drop((peers, later, last));
    old.check_clean();
    new.check_clean();
}

#[test]
fn released_socket_goes_on_elsewhere_with_all_that_was_not_read() {
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    peer.write_all(b"first").unwrap();
    rig.until(|rig| rig.bytes_of(id) == b"first");
    assert!(rig.ring.release(id).is_none(), "the kernel still receives");
    rig.ring.pause(id);
    while !rig.ring.may_release(id) {
        rig.turn(10);
    }
    peer.write_all(b"second").unwrap();
    let fd = rig.ring.release(id).unwrap();
    rig.until(|rig| rig.is_gone(id));
    assert!(rig.ring.release(id).is_none(), "once only");
    let mut other = Rig::new();
    let id = other.ring.adopt(fd);
    other.ring.receive(id, true);
    other.until(|rig| rig.bytes_of(id) == b"second");
    other.ring.send(id, b"answer".to_vec());
    other.turn(1);
    let mut said = [0; 6];
    peer.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"answer");
    rig.check_clean();
    other.check_clean();
}

#[test]
fn last_bytes_arrive_together_with_the_end() {
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    peer.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    rig.ring.send_last(id, b"goodbye".to_vec());
    rig.until(|rig| !rig.sent.is_empty());
    let early = peer.read(&mut [0; 16]).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::WouldBlock, "not without the end");
    rig.ring.close(id);
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"goodbye");
    rig.check_clean();
}

#[test]
fn two_rings_share_a_port() {
    let mut one = Rig::new();
    let mut two = Rig::new();
    let listener = listen(LOOPBACK.parse().unwrap(), None).unwrap();
    let address = listener.address();
    one.ring.listen(listener);
    two.ring.listen(listen(address, None).unwrap());
    let _peers: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
    for _ in 0..1000 {
        one.turn(1);
        two.turn(1);
        if one.accepted.len() + two.accepted.len() == 64 {
            break;
        }
    }
    assert!(one.accepted.len() > 8 && two.accepted.len() > 8);
}

#[test]
fn ipv6_listener_takes_ipv6_only() {
    let Ok(listener) = listen("[::1]:0".parse().unwrap(), Some(16)) else { return };
    let address = listener.address();
    let mut rig = Rig::new();
    rig.ring.listen(listener);
    let _peer = TcpStream::connect(address).unwrap();
    rig.until(|rig| rig.accepted.len() == 1);
    assert!(rig.ring.peer_address(rig.accepted[0]).unwrap().is_ipv6());
}

// --- waiting ----------------------------------------------------------------------------------

#[test]
fn waker_ends_the_wait_from_another_thread_each_time() {
    let mut rig = Rig::new();
    for round in 1..=3 {
        let waker = rig.ring.waker();
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        while rig.woken < round {
            // For ever: only the waker ends it.
            rig.ring.enter(None, None).unwrap();
            while let Some(event) = rig.ring.next_event() {
                rig.take(event);
            }
        }
        thread.join().unwrap();
    }
    assert_eq!(rig.woken, 3);
}

#[test]
fn busy_poll_finds_events_and_gives_up_in_time() {
    use std::sync::atomic::AtomicU64;
    static NOW: AtomicU64 = AtomicU64::new(0);
    fn clock() -> u64 {
        NOW.fetch_add(1000, Ordering::Relaxed)
    }
    let busy = BusyPoll { limit: Duration::from_micros(500), clock };
    let mut rig = Rig::new();
    let (mut peer, id) = rig.pair();
    rig.ring.receive(id, true);
    rig.ring.enter(Some(Duration::from_millis(1)), Some(busy)).unwrap();
    assert_eq!(rig.ring.counters().spin_hits, 0);
    peer.write_all(b"x").unwrap();
    rig.ring.enter(Some(Duration::from_secs(10)), Some(busy)).unwrap();
    while let Some(event) = rig.ring.next_event() {
        rig.take(event);
    }
    assert_eq!(rig.bytes_of(id), b"x");
    rig.check_clean();
}

// --- everything at once -----------------------------------------------------------------------

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One connection of the random run, with what each side must have seen.
struct Talk {
    peer: TcpStream,
    id: SocketId,
    /// What the peer wrote, what it read, what we gave to `send` so far.
    wrote: Vec<u8>,
    read: Vec<u8>,
    given: Vec<u8>,
    paused: bool,
    seed: u64,
}

impl Talk {
    fn new(rig: &mut Rig, seed: u64) -> Talk {
        let (peer, id) = rig.pair();
        peer.set_nonblocking(true).unwrap();
        // As of a client, and as of a node.
        match seed % 2 {
            0 => rig.ring.receive_fairly(id),
            _ => rig.ring.receive(id, false),
        }
        let (wrote, read, given) = Default::default();
        Talk { peer, id, wrote, read, given, paused: false, seed }
    }

    fn peer_writes(&mut self, len: usize) {
        let bytes = pattern(self.seed ^ self.wrote.len() as u64, len);
        match self.peer.write(&bytes) {
            Ok(n) => self.wrote.extend_from_slice(&bytes[..n]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }

    fn peer_reads(&mut self, most: usize) {
        let mut some = vec![0; most];
        match self.peer.read(&mut some) {
            Ok(n) => self.read.extend_from_slice(&some[..n]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(self.given.starts_with(&self.read), "the peer read what was never sent");
    }
}

fn random_step(rig: &mut Rig, talks: &mut [Talk], random: &mut Random) {
    let at = random.below(talks.len() as u64) as usize;
    let talk = &mut talks[at];
    match random.below(100) {
        0..30 => talk.peer_writes(1 + random.below(3000) as usize),
        30..50 => talk.peer_reads(1 + random.below(300_000) as usize),
        50..80 if !rig.ring.is_sending(talk.id) => {
            let most = if random.below(20) == 0 { 3_000_000 } else { 2000 };
            let bytes = pattern(talk.given.len() as u64, 1 + random.below(most) as usize);
            talk.given.extend_from_slice(&bytes);
            rig.ring.send(talk.id, bytes);
        }
        80..86 => {
            rig.ring.pause(talk.id);
            talk.paused = true;
        }
        86..95 => {
            rig.ring.resume(talk.id);
            talk.paused = false;
        }
        95 => {
            match random.below(2) {
                0 => rig.ring.close(talk.id),
                _ => rig.ring.close_soon(talk.id),
            }
            let seed = random.below(1 << 40);
            *talk = Talk::new(rig, seed);
        }
        _ => {}
    }
}

fn random_run(seed: u64, settings: &RingSettings) -> Counters {
    let mut rig = Rig::with(settings);
    let mut random = Random(seed);
    let mut talks: Vec<_> = (0..24).map(|n| Talk::new(&mut rig, n)).collect();
    for _ in 0..3000 {
        for _ in 0..random.below(12) {
            random_step(&mut rig, &mut talks, &mut random);
        }
        rig.ring.enter(Some(Duration::ZERO), None).unwrap();
        if random.below(2) == 0 {
            while let Some(event) = rig.ring.next_light() {
                rig.take(event);
            }
            random_step(&mut rig, &mut talks, &mut random);
            rig.ring.depart();
        }
        while let Some(event) = rig.ring.next_heavy() {
            rig.take_half(event);
            if random.below(8) == 0 {
                break;
            }
        }
        if random.below(2) == 0 {
            while let Some(event) = rig.ring.next_event() {
                rig.take(event);
            }
        }
        assert!(rig.ended.is_empty(), "{:?}", rig.ended);
        rig.sent.clear();
        for talk in &talks {
            assert!(talk.wrote.starts_with(rig.bytes_of(talk.id)), "received what nobody wrote");
        }
    }
    for talk in &talks {
        rig.ring.resume(talk.id);
    }
    // Everything under way arrives, on both sides.
    for _ in 0..2000 {
        rig.turn(1);
        let mut left = 0;
        for talk in &mut talks {
            talk.peer_reads(1_000_000);
            left += talk.given.len() - talk.read.len();
            left += talk.wrote.len() - rig.bytes_of(talk.id).len();
        }
        if left == 0 {
            assert!(talks.iter().all(|talk| !rig.ring.is_sending(talk.id)));
            rig.check_clean();
            return rig.ring.counters();
        }
    }
    panic!("something is stuck: {:?}", rig.ring.counters());
}

#[test]
fn random_use_keeps_every_stream_whole() {
    let counters = random_run(0x1234_5678_9abc_def1, &small(64, 256, 1024, 64));
    assert!(counters.short_sends > 0 && counters.cancels > 0, "{counters:?}");
}

#[test]
fn random_use_with_every_queue_too_small() {
    let counters = random_run(0xfeed_0000_beef_0001, &small(4, 8, 128, 8));
    println!("{counters:?}");
    assert!(counters.overflows > 0 && counters.enobufs > 0, "{counters:?}");
    assert!(counters.short_sends > 0 && counters.cancels > 0, "{counters:?}");
}
