//! What a client is in the middle of: a transaction that is being queued, or that runs. Most
//! clients are in the middle of nothing.
//!
//! Not here: what is done about it (`transaction`).

use super::types::NO_SLOT;

/// One box for what most clients never need.
#[derive(Debug, Default)]
pub struct Mode {
    /// MULTI was sent: what has been queued since.
    pub queue: Option<Queue>,
    /// EXEC is under way for a transaction in which the proxy answers some commands itself; the
    /// request that is its part.
    pub running: Option<(u32, Queue)>,
}

impl Mode {
    /// Whether nothing of it is in use.
    pub fn is_empty(&self) -> bool {
        self.queue.is_none() && self.running.is_none()
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
}

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
            slot: NO_SLOT,
            hint: NO_SLOT,
            failed: false,
            fenced: false,
            reads_only: true,
        }
    }
}

impl Queue {
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

    /// Adds a command that is answered here.
    pub fn push_local(&mut self, bytes: &[u8]) {
        self.local.extend_from_slice(bytes);
        self.ends.push(self.local.len() as u32);
    }

    /// Takes a slot that a command's keys have. `false`: it is not that of the others.
    pub fn accept_slot(&mut self, slot: u16) -> bool {
        if self.slot == NO_SLOT {
            self.slot = slot;
        }
        self.slot == slot
    }

    /// Commands queued.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Commands of it that the node runs.
    pub fn len_at_node(&self) -> u32 {
        self.at_node
    }

    /// Bytes kept.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.local.len() + self.ends.len() * size_of::<u32>()
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
    fn transaction_has_one_slot() {
        let mut queue = Queue::default();
        assert!(queue.accept_slot(7) && queue.accept_slot(7));
        assert!(!queue.accept_slot(8));
    }
}
