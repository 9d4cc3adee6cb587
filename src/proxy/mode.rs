//! What a client is in the middle of: a transaction, a WATCH, a command that blocks. Most clients
//! are in the middle of nothing.
//!
//! Not here: what is done about it (`transaction`, `watch`, `blocking`).

use std::net::SocketAddr;

use super::scripts::Digest;
use super::types::{NO_SLOT, NONE};

/// One box for what most clients never need.
#[derive(Debug, Default)]
pub struct Mode {
    /// MULTI was sent: what has been queued since.
    pub queue: Option<Queue>,
    /// EXEC is under way for a transaction in which the proxy answers some commands itself; the
    /// request that is its part.
    pub running: Option<(u32, Queue)>,
    pub watch: Option<Watch>,
    pub blocked: Option<Blocked>,
}

impl Mode {
    /// Whether nothing of it is in use.
    pub fn is_empty(&self) -> bool {
        let queues = self.queue.is_some() || self.running.is_some();
        !queues && self.watch.is_none() && self.blocked.is_none()
    }

    /// Memory of what has been queued, bytes.
    pub fn bytes(&self) -> usize {
        let running = self.running.as_ref().map(|(_, queue)| queue);
        let queues = self.queue.iter().chain(running);
        let watched = self.watch.as_ref().map_or(0, |watch| watch.keys.capacity());
        watched + queues.map(|queue| queue.bytes.capacity() + queue.local.capacity()).sum::<usize>()
    }
}

/// What WATCH has begun.
#[derive(Debug)]
pub struct Watch {
    pub slot: u16,
    /// The backend that holds the guard; `NONE`: it is lost, or not chosen yet.
    pub backend: u32,
    /// A node has answered OK.
    pub granted: bool,
    /// The guard is gone: EXEC will answer nil.
    pub broken: bool,
    /// The slot is on its way to this backend's node, which wants to hear ASKING first.
    pub asking: bool,
    /// The keys, as bulk strings one behind the other, and how many.
    pub keys: Vec<u8>,
    pub key_count: u32,
}

impl Watch {
    pub fn new(slot: u16) -> Watch {
        Watch {
            slot,
            backend: NONE,
            granted: false,
            broken: false,
            asking: false,
            keys: Vec::new(),
            key_count: 0,
        }
    }
}

/// A command that blocks is under way.
#[derive(Debug)]
pub struct Blocked {
    pub since_ms: u64,
    /// `None`: for ever.
    pub timeout_ms: Option<u64>,
    /// Legs that are not answered yet.
    pub legs: u32,
    /// It was sent once.
    pub launched: bool,
    /// CLIENT UNBLOCK has ended it; whether with an error.
    pub unblocked: Option<bool>,
    /// It is WAITAOF.
    pub synced: bool,
    /// WAIT: replicas wanted, and one for each primary that is asked.
    pub wanted: i64,
    pub primaries: Vec<Leg>,
}

/// What WAIT knows of one primary.
#[derive(Copy, Clone, Debug)]
pub struct Leg {
    /// Which node it is, and how far that had written when it was first asked.
    pub target: Option<(SocketAddr, i64)>,
    /// Until it is asked again.
    pub pause_ms: u32,
}

impl Blocked {
    /// Milliseconds until its own time-out.
    pub fn left_ms(&self, now_ms: u64) -> u64 {
        let until_ms = self.since_ms + self.timeout_ms.unwrap_or(0);
        until_ms.saturating_sub(now_ms)
    }
}

/// Commands queued since MULTI.
#[derive(Debug)]
pub struct Queue {
    /// MULTI and the commands for the node, as they will be sent.
    bytes: Vec<u8>,
    /// The commands that are answered here, one behind the other.
    local: Vec<u8>,
    /// For each command in its order: where it ends in `local`, or `AT_NODE`.
    ends: Vec<u32>,
    at_node: u32,
    /// The last of the node's commands is ours: `push_probe`.
    probed: bool,
    /// The slot of its keys; `NO_SLOT` while it has none.
    pub slot: u16,
    /// Where to send it if no key says: by a script or a channel.
    pub hint: u16,
    /// Something was refused while queuing: EXEC will abort.
    pub failed: bool,
    /// Something in it may compose its own reply: the whole runs behind the fence.
    pub fenced: bool,
    /// Nothing in it writes.
    pub reads_only: bool,
    /// Of the commands that are answered here (`effort_of`).
    pub effort: u64,
    /// Scripts that have come with their bodies.
    given: Vec<Digest>,
    /// Those that are kept since: not for long if its node does not take them.
    pub new_scripts: Vec<Digest>,
}

/// So many scripts of a transaction can be called again without their bodies: nodes keep at least
/// 500 of those that they were given by EVAL.
const GIVEN_MAX: usize = 64;

/// In `Queue::ends`: the command is the node's.
const AT_NODE: u32 = u32::MAX;

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            bytes: MULTI.to_vec(),
            local: Vec::new(),
            ends: Vec::new(),
            at_node: 0,
            probed: false,
            slot: NO_SLOT,
            hint: NO_SLOT,
            failed: false,
            fenced: false,
            reads_only: true,
            effort: 0,
            given: Vec::new(),
            new_scripts: Vec::new(),
        }
    }
}

impl Queue {
    /// For keys of this slot only; `NO_SLOT`: of any one slot.
    pub fn of_slot(slot: u16) -> Queue {
        Queue { slot, ..Queue::default() }
    }

    /// One whose EXEC will abort whatever comes.
    pub fn hopeless() -> Queue {
        Queue { failed: true, ..Queue::default() }
    }

    /// Adds a command for the node.
    pub fn push_at_node(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(AT_NODE);
        self.at_node += 1;
    }

    /// Whether a script must come with its body. The next time it need not.
    pub fn first_call(&mut self, script: Digest) -> bool {
        let first = !self.given.contains(&script);
        if first && self.given.len() < GIVEN_MAX {
            self.given.push(script);
        }
        first
    }

    /// Adds a command that is answered here.
    pub fn push_local(&mut self, bytes: &[u8]) {
        self.local.extend_from_slice(bytes);
        self.ends.push(self.local.len() as u32);
    }

    /// Adds EXISTS of the watched keys, as the last command. A key that is absent where its slot is
    /// leaving comes into being at the other node, unseen by the guard here: then this is answered
    /// with ASK or TRYAGAIN while queuing, and the node does not run the transaction.
    pub fn push_probe(&mut self, watch: &Watch) {
        let header = format!("*{}\r\n$6\r\nEXISTS\r\n", watch.key_count + 1);
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(&watch.keys);
        self.at_node += 1;
        self.probed = true;
    }

    /// Whether the node's reply is not the client's as it is, or has to be looked into.
    pub fn is_joined(&self) -> bool {
        self.probed || self.len() > self.at_node as usize || !self.new_scripts.is_empty()
    }

    /// Takes a slot that a command's keys have. `false`: it is not that of the others.
    pub fn accept_slot(&mut self, slot: u16) -> bool {
        if self.slot == NO_SLOT {
            self.slot = slot;
        }
        self.slot == slot
    }

    /// Commands queued by the client.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Commands of it that the node runs.
    pub fn len_at_node(&self) -> u32 {
        self.at_node
    }

    /// Bytes kept.
    pub fn size(&self) -> usize {
        let scripts = self.new_scripts.len() * size_of::<Digest>();
        self.bytes.len() + self.local.len() + self.ends.len() * size_of::<u32>() + scripts
    }

    /// MULTI, the node's commands and EXEC, once.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(EXEC);
        std::mem::take(&mut self.bytes)
    }

    /// All commands in order: the bytes of those that are answered here, `None` for the node's.
    pub fn commands(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            if end == AT_NODE {
                return None;
            }
            let from = std::mem::replace(&mut start, end as usize);
            self.local.get(from..end as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_keep_their_order_wherever_they_are_answered() {
        let mut queue = Queue::default();
        queue.push_local(b"first");
        queue.push_at_node(b"<second>");
        queue.push_local(b"third");
        let order: Vec<_> = queue.commands().collect();
        assert_eq!(order, [Some(&b"first"[..]), None, Some(&b"third"[..])]);
        assert_eq!((queue.len(), queue.len_at_node()), (3, 1));
        let sent = queue.take_bytes();
        assert_eq!(sent, b"*1\r\n$5\r\nMULTI\r\n<second>*1\r\n$4\r\nEXEC\r\n");
    }

    #[test]
    fn script_comes_with_its_body_the_first_time() {
        let mut queue = Queue::default();
        let script = |n: u8| [n; 20];
        assert!(queue.first_call(script(1)) && !queue.first_call(script(1)));
        assert!((2..=GIVEN_MAX as u8).all(|n| queue.first_call(script(n))));
        assert!(!queue.first_call(script(GIVEN_MAX as u8)));
        // Too many to be sure of: with the body each time.
        assert!(queue.first_call(script(200)) && queue.first_call(script(200)));
    }

    #[test]
    fn transaction_has_one_slot() {
        let mut queue = Queue::default();
        assert!(queue.accept_slot(7) && queue.accept_slot(7));
        assert!(!queue.accept_slot(8));
    }
}
