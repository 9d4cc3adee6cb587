//! Planted mistakes: each makes the driver or the model do what a wrong proxy would do, so that it
//! can be seen that a checker finds it (`main`, tests of the tests).
//!
//! Not here: mistakes inside `src/proxy` itself, which no driver can imitate.

use ringway::cluster::slot_of;
use ringway::proxy::{Conn, Socket};

use crate::item;
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
    /// WAITAOF is asked without a write before it: the node waits for nothing.
    SkipEmptyWrite,
    /// Its answer counts more than nodes have said.
    CountMore,
    /// Who watches by MONITOR is shown what clients of another pool ask.
    ForeignLines,
    /// It gets a reply of somebody else's between two lines.
    MixReplies,
    /// Lines are kept for it without a limit.
    KeepLines,
    /// A script is not loaded before what failed for want of it is repeated.
    ForgetLoaded,
    /// What has run is taken for a script that was not there, and repeated.
    RunAndDeny,
    /// A script that was not there runs after the younger one that was behind it: as if it had been
    /// loaded and repeated whatever has run meanwhile.
    PassUnknown,
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

    /// Returns the places whose replies are to be swapped again.
    pub fn plant_swap(
        &mut self,
        link: usize,
        commands: &mut [Vec<Vec<u8>>],
    ) -> Vec<(usize, usize)> {
        if self.plant == Plant::PassUnknown {
            return self.plant_pass_unknown(link, commands);
        }
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
                swapped.push((at, at + 1));
                at += 1;
            }
            at += 1;
        }
        swapped
    }

    /// The node refuses it, as the proxy is told; what the proxy makes of that is done here.
    fn plant_pass_unknown(
        &mut self,
        link: usize,
        commands: &mut [Vec<Vec<u8>>],
    ) -> Vec<(usize, usize)> {
        let (node, mut swapped) = (self.links[link].node, Vec::new());
        // Each is followed by the fence's number.
        for at in 0..commands.len().saturating_sub(3) {
            let [elder, _, younger, _] = &commands[at..at + 4] else { continue };
            let by_name = elder[0].eq_ignore_ascii_case(b"EVALSHA") && elder.len() > 4;
            let scripts = by_name && younger[0].to_ascii_uppercase().starts_with(b"EVAL");
            if !scripts || younger.len() < 5 || elder[3] != younger[3] {
                continue;
            }
            let name = String::from_utf8_lossy(&elder[1]).to_ascii_lowercase();
            let body = self.cluster.bodies.get(&name).cloned();
            let missing = !self.cluster.nodes[node].scripts.contains_key(&name);
            let (Some(body), Some(id)) = (body.filter(|_| missing), item::mark(&elder[4])) else {
                continue;
            };
            let number = self.history.refused(id, slot_of(&elder[3]), link);
            self.history.refusal_read(id, number, self.turns);
            self.cluster.nodes[node].scripts.insert(name, body);
            commands.swap(at, at + 2);
            swapped.push((at, at + 2));
            break;
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
