//! Many clients at once, some with little to ask and some with much: those with much go on in small
//! pieces, and no more of it is at the nodes than is answered soon, so that the others need not
//! wait behind it. Where nobody asks for little, nobody is held up. What is answered here and takes
//! long, such as a list of all clients, is answered a few at a time, whoever asks.
//!
//! Not here: what else holds a client back (`client`), who is read when (`ring`).

use super::{Action, Now, Proxy, UnderWay};
use crate::command::{Args, Command};

/// A client that has nothing under way and asks for so little.
const LIGHT_BYTES: usize = 1024;

/// For so long after it somebody with little to ask is about, and for so many turns: what takes
/// long may be a turn of ours, in which nobody could ask for anything.
const LIGHT_MS: u64 = 10;
const LIGHT_TURNS: u32 = 16;

/// Requests that one client may run in one go then.
pub(super) const GO_MAX: u32 = 64;

/// Requests under way with which those who wait for their next go wait on, but for one of them each
/// millisecond.
const UNDER_WAY_MAX: usize = 256;

/// Microseconds that one turn spends on what is answered here and looks at much, and again on those
/// who had to wait for that; about, by `effort_of`. So many of it fit into one transaction, too:
/// nobody is served while EXEC is answered.
pub(super) const EFFORT_MAX: u64 = 10_000;

/// What the answer of all reactors together takes at least.
pub(super) const EFFORT_TOGETHER: u64 = 50;

#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// What this turn has spent so far, of `EFFORT_MAX`.
    pub effort: u64,
    /// Until when somebody with little to ask is taken to be about.
    light_until_ms: u64,
    /// And for how many turns more.
    light_turns: u32,
    /// When one of those who wait was last let go in spite of `UNDER_WAY_MAX`.
    let_go_ms: u64,
    /// Those in the list of who may go on are there for their next go only.
    pub waits: bool,
}

impl Crowd {
    /// A client that had nothing under way has sent so many bytes.
    #[inline]
    pub(super) fn note(&mut self, bytes: usize, now: Now) {
        if bytes <= LIGHT_BYTES {
            self.light_until_ms = now.ms + LIGHT_MS;
            self.light_turns = LIGHT_TURNS;
        }
    }

    /// A turn is over.
    #[inline]
    pub(super) fn end_turn(&mut self) {
        self.light_turns = self.light_turns.saturating_sub(1);
    }

    #[inline]
    pub(super) fn is_mixed(&self, now: Now) -> bool {
        now.ms < self.light_until_ms || self.light_turns > 0
    }
}

impl Proxy {
    /// Whether clients with little to ask are about.
    pub fn is_crowded(&self, now: Now) -> bool {
        self.crowd.is_mixed(now)
    }

    /// About how many microseconds an answer from here takes that looks at much; the others' cost
    /// lies in their bytes.
    pub(super) fn effort_of(&self, command: &Command, args: &Args) -> u64 {
        let clients = u64::from(self.clients.places());
        match command.name {
            "INFO" => 50,
            "CLIENT|LIST" => 1 + clients,
            "CLIENT|INFO" | "CLIENT|KILL" | "CLIENT|UNBLOCK" => 1 + clients / 128,
            "ACL|GENPASS" => 5,
            "CONFIG|GET" | "CONFIG|SET" => 10 * args.len() as u64,
            name if name.starts_with("CLUSTER|") => self.identity.announce.len() as u64 / 2,
            _ => 0,
        }
    }

    /// For telling how long a wait for more may go on.
    #[inline]
    pub fn add_under_way(&self, to: &mut UnderWay) {
        to.clients += self.clients.open_count() as u64;
        to.requests += self.requests.open_count() as u64;
        to.cut |= self.splits.are_some_open();
        to.waiting += u64::from(self.requests.clients_waiting);
        to.nodes += u64::from(self.requests.nodes_asked);
    }

    /// A number that changes with each request that comes, with each that is over, and with each
    /// message to a client: by it a driver can tell how much it has handed over.
    pub fn work(&self) -> i64 {
        // Parts of what was cut are under way, and are no commands: there may be more of them.
        let open = self.requests.open_count() as i64;
        (2 * self.tally.commands + self.tally.messages) as i64 - open
    }

    /// Sends what those with little to ask wait for, before a driver hands over what others have
    /// sent. The rest is for `flush`.
    pub fn flush_light(&mut self, actions: &mut Vec<Action>) {
        self.flush_backends();
        self.flush_clients(0);
        actions.append(&mut self.actions);
    }

    /// When the next of those who may go on does.
    pub(super) fn go_deadline(&self) -> u64 {
        let wait = u64::from(self.crowd.waits);
        match self.resuming.is_empty() {
            _ if self.topics.has_more() => self.now.ms,
            true => u64::MAX,
            false => self.now.ms + wait,
        }
    }

    /// Whether a client that was held back waits on for its next go.
    pub(super) fn waits_for_go(&mut self, c: u32) -> bool {
        let mixed = self.crowd.is_mixed(self.now) && !self.leaving.active;
        if !self.clients[c].held_back || !mixed {
            return false;
        }
        let most = UNDER_WAY_MAX + self.blocked_clients;
        if self.requests.open_count() < most {
            return false;
        }
        let waits = self.crowd.let_go_ms == self.now.ms;
        self.crowd.let_go_ms = self.now.ms;
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_little_is_about_for_a_while_and_after_a_long_turn_all_the_same() {
        let (mut crowd, at) = (Crowd::default(), |ms| Now { ms, unix_us: 0 });
        crowd.note(LIGHT_BYTES + 1, at(5));
        assert!(!crowd.is_mixed(at(5)), "that was much");
        crowd.note(LIGHT_BYTES, at(5));
        // Many short turns, and then time passes.
        (0..100).for_each(|_| crowd.end_turn());
        assert!(crowd.is_mixed(at(4 + LIGHT_MS)));
        assert!(!crowd.is_mixed(at(5 + LIGHT_MS)));
        // One turn takes a second; nobody could ask meanwhile.
        crowd.note(1, at(20));
        crowd.end_turn();
        assert!(crowd.is_mixed(at(1_020)));
        (1..LIGHT_TURNS).for_each(|_| crowd.end_turn());
        assert!(!crowd.is_mixed(at(1_020)));
    }
}
