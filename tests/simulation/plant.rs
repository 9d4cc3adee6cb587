//! Planted mistakes: each makes the driver or the model do what a wrong proxy would do, so that it
//! can be seen that a checker finds it (`main`, tests of the tests).
//!
//! Not here: mistakes inside `src/proxy` itself, which no driver can imitate.

use ringway::proxy::{Conn, Socket};

use crate::network::{Inbound, completion_of};
use crate::nodes::Mood;
use crate::world::World;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Plant {
    Nothing,
    /// A reply comes once more: as if a tombstone had been skipped, all later ones are shifted.
    RepeatReply,
    /// A reply is swallowed: as if the FIFO had been popped twice.
    DropReply,
    /// Two neighbours change places.
    SwapReplies,
    /// Bytes of a socket's former owner go to the present one.
    StaleBytes,
    /// A write that was on a lost connection is sent again on the next.
    ResendLost,
    /// The end of a send is never reported.
    LoseSent,
    /// Two writes of one client to one slot run in the wrong order.
    SwapWrites,
    /// ASKING is not said.
    IgnoreAsking,
    /// An address that only a script has named is believed.
    BelieveForged,
    /// Time is never told.
    NoTime,
    /// A client is sent a reply twice.
    SendTwice,
    /// A node forgets what is watched.
    IgnoreWatch,
    /// A blocked connection stays blocked when the proxy closes it.
    KeepBlocked,
    /// A node keeps a message to itself.
    DropMessage,
    /// A node sends a message twice.
    RepeatMessage,
    /// The commands of a transaction run one by one: as if they had not gone from MULTI to EXEC.
    TearExec,
    /// EXEC has run, and nil is said.
    DenyExec,
    /// An element is popped, and one more for the same request.
    PopTwice,
    /// A walk leaves a key out.
    MissKeys,
    /// Replicas count that have not confirmed: as if WAIT did not look how far they have come.
    BelieveWritten,
    /// A script is not loaded before what failed for want of it is repeated.
    ForgetLoaded,
    /// What has run is taken for a script that was not there, and repeated.
    RunAndDeny,
    /// A script's second frame passes for its reply: as if there were no fence.
    PassSecond,
    /// Null of the other protocol: as if the wrong backend had been asked.
    WrongNull,
    /// A read sees the past: as if a replica had been asked.
    StaleRead,
    /// Two values of one MGET change places.
    SwapValues,
    /// A client is closed that did nothing wrong.
    CloseInnocent,
    /// What a client asked for last is run again by the process that it is given to.
    RunAgain,
    /// A reply is not sent any more by a process that another has taken over from: as if it had
    /// given its client away with a request in flight.
    GiveBusy,
    /// What a client had sent, and nobody run, does not go along.
    DropUnread,
    /// It goes along behind what was not even read.
    UnreadFirst,
    /// A client that is given away is in the first database again.
    LoseDatabase,
    /// It speaks RESP2 again.
    LoseVersion,
}

impl World {
    pub fn plant_stale_bytes(&mut self, socket: Socket, inbound: Inbound) {
        if self.plant != Plant::StaleBytes {
            return;
        }
        let Some(entry) = self.sockets.get(socket.index as usize) else { return };
        let is_client = matches!(entry.owner, Some(Conn::Client(_)));
        if entry.open && !entry.closing && is_client && matches!(inbound, Inbound::Bytes(_)) {
            let present = Socket { index: socket.index, generation: entry.generation };
            self.complete(completion_of(present, inbound));
        }
    }

    pub fn plant_lost_sent(&mut self) -> bool {
        self.plant == Plant::LoseSent && self.random.chance(20)
    }

    pub fn plant_give_busy(&mut self) -> bool {
        let former = self.plant == Plant::GiveBusy && self.process != self.newest;
        former && self.random.chance(300)
    }

    pub fn plant_close(&mut self) -> bool {
        self.plant == Plant::CloseInnocent && self.random.chance(5)
    }

    pub fn plant_resend(&mut self, link: usize) {
        if self.plant != Plant::ResendLost {
            return;
        }
        let node = self.links[link].node;
        let lost = (0..link).rev().find(|&old| self.links[old].node == node && !self.links[old].up);
        let Some(lost) = lost else { return };
        let args = std::mem::take(&mut self.links[lost].last_write);
        if args.is_empty() {
            return;
        }
        self.history.tick += 1;
        let mut login = crate::nodes::Login { authenticated: true, ..Default::default() };
        let answer = self.cluster.execute(node, &mut login, &args, Mood::Fine, self.now_us);
        for (key, value) in answer.changed {
            self.history.changed(key, value.as_deref());
        }
        for (id, key, result) in answer.ran {
            self.history.ran(id, key, result, link);
        }
    }

    pub fn plant_swap(&mut self, commands: &mut [Vec<Vec<u8>>]) -> Vec<usize> {
        let mut swapped = Vec::new();
        if self.plant != Plant::SwapWrites {
            return swapped;
        }
        let mut at = 0;
        while at + 1 < commands.len() {
            let name = |n: usize| commands[n][0].to_ascii_uppercase();
            let is_set = |n: usize| name(n) == b"SET" && !commands[n][1].contains(&b's');
            if is_set(at) && is_set(at + 1) && self.random.chance(300) {
                commands.swap(at, at + 1);
                swapped.push(at);
                at += 1;
            }
            at += 1;
        }
        swapped
    }

    pub fn plant_replies(&mut self, replies: &mut Vec<Vec<u8>>) {
        if replies.len() < 2 || !self.random.chance(50) {
            return;
        }
        let at = self.random.index(replies.len() - 1);
        match self.plant {
            Plant::RepeatReply => replies.insert(at, replies[at].clone()),
            Plant::DropReply => drop(replies.remove(at)),
            Plant::SwapReplies => replies.swap(at, at + 1),
            _ => (),
        }
    }

    /// Whole replies only, or it would be no more than garbage.
    pub fn plant_twice(&mut self, client: usize, bytes: &[u8]) {
        if self.plant == Plant::SendTwice && bytes.ends_with(b"\r\n") && self.random.chance(20) {
            self.client_again(client, bytes);
        }
    }
}
