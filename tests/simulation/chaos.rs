//! Faults and changes: slots migrate, primaries fail over, nodes crash, stall, load, move to other
//! addresses; connections are cut or fall silent. All ends with `heal`.
//!
//! No data is lost: a fail-over takes over everything that was written, so that states can be
//! checked exactly. Not here: refusals drawn per command and connect faults (`serve`).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ringway::cluster::slot_of;

use crate::world::{Event, World};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Chaos {
    Migrate,
    Step(u16),
    Gossip(usize),
    Cut,
    BlackHole,
    Stall,
    Crash,
    Restart(usize, bool),
    TakeOver(usize),
    FailOver,
    Loading,
    Down,
    Move,
    Forget,
    FlushScripts,
    /// So many percent of `memory_limit`; none, and for how long, is drawn.
    Memory,
    MemoryIs(u64),
    /// Another process takes over.
    HandOver,
}

#[derive(Copy, Clone, Debug)]
pub struct Migration {
    from: usize,
    to: usize,
}

pub type Migrations = BTreeMap<u16, Migration>;

impl World {
    /// How often each kind strikes, ms.
    fn mean_ms(&self, chaos: Chaos) -> u64 {
        let parameters = &self.parameters;
        match chaos {
            Chaos::Migrate => parameters.migration_ms,
            Chaos::Cut => parameters.cut_ms,
            Chaos::BlackHole => parameters.black_hole_ms,
            Chaos::Stall => parameters.stall_ms,
            Chaos::Crash => parameters.crash_ms,
            Chaos::FailOver => parameters.failover_ms,
            Chaos::Loading => parameters.loading_ms,
            Chaos::Down => parameters.down_ms,
            Chaos::Move => parameters.moves_ms,
            Chaos::Forget => parameters.forget_ms,
            Chaos::FlushScripts => parameters.script_flush_ms,
            Chaos::Memory => parameters.memory_ms,
            Chaos::HandOver => parameters.handover_ms,
            Chaos::Step(_) | Chaos::Gossip(_) | Chaos::Restart(..) => 0,
            Chaos::TakeOver(_) | Chaos::MemoryIs(_) => 0,
        }
    }

    pub fn begin_chaos(&mut self) {
        let kinds = [
            Chaos::Migrate,
            Chaos::Cut,
            Chaos::BlackHole,
            Chaos::Stall,
            Chaos::Crash,
            Chaos::FailOver,
            Chaos::Loading,
            Chaos::Down,
            Chaos::Move,
            Chaos::Forget,
            Chaos::FlushScripts,
            Chaos::Memory,
            Chaos::HandOver,
        ];
        kinds.into_iter().for_each(|chaos| self.strike_again(chaos));
    }

    fn strike_again(&mut self, chaos: Chaos) {
        let mean = self.mean_ms(chaos);
        if mean > 0 {
            let at = self.now_us + self.random.around(mean * 1_000);
            self.at(at, Event::Chaos(chaos));
        }
    }

    pub fn strike(&mut self, chaos: Chaos) {
        let one_of_a_kind = self.mean_ms(chaos) == 0;
        if let Chaos::Gossip(node) = chaos {
            return self.gossip(node);
        }
        if self.healed {
            return;
        }
        self.note(9 << 40, || format!("{chaos:?}"));
        match chaos {
            Chaos::Migrate => self.begin_migration(),
            Chaos::Step(slot) => self.step_migration(slot),
            Chaos::Gossip(_) => (),
            Chaos::Cut => {
                if let Some(link) = self.some_link() {
                    let broken = self.random.chance(700);
                    self.hang_up(link, broken);
                }
            }
            Chaos::BlackHole => {
                if let Some(link) = self.some_link() {
                    self.links[link].mute = true;
                    self.message_fault();
                    // Of what was lost nothing comes later.
                    self.links[link].deaf |= self.random.chance(500);
                }
            }
            Chaos::Stall => {
                let until = self.now_us + self.random.range(1_000..=1_500_000);
                let node = self.some_node();
                self.cluster.nodes[node].stalled_until = until;
            }
            Chaos::Loading => {
                let until = self.now_us + self.random.range(1_000..=800_000);
                let node = self.some_node();
                self.cluster.nodes[node].loading_until = until;
            }
            Chaos::Down => {
                let until = self.now_us + self.random.range(1_000..=800_000);
                let node = self.some_node();
                self.cluster.nodes[node].down_until = until;
            }
            Chaos::Crash | Chaos::Move => {
                let node = self.some_node();
                self.crash(node, chaos == Chaos::Move);
            }
            Chaos::Forget => self.forget(),
            Chaos::FlushScripts => {
                let node = self.some_node();
                self.lose_scripts(node);
            }
            // Under the step at which clients are refused or closed, which the model takes for a
            // fault: what is held back, not read, and goes on again.
            Chaos::Memory => {
                let percent = self.random.range(65..=89);
                self.memory_is(percent);
                let over = self.now_us + self.random.range(1_000..=400_000);
                let then = if self.random.chance(300) { 72 } else { 10 };
                self.at(over, Event::Chaos(Chaos::MemoryIs(then)));
            }
            Chaos::MemoryIs(percent) => self.memory_is(percent),
            Chaos::HandOver => self.take_over_process(),
            Chaos::Restart(node, moves) => self.restart(node, moves),
            Chaos::TakeOver(node) => self.take_over(node),
            Chaos::FailOver => {
                let primaries = self.cluster.primaries();
                let node = self.random.pick(&primaries);
                self.take_over(node);
            }
        }
        if !one_of_a_kind {
            self.strike_again(chaos);
        }
    }

    fn memory_is(&mut self, percent: u64) {
        self.memory_percent = percent;
        self.turn_before(self.now_us + 1);
        // That turn is nobody's busy loop.
        self.empty_turns = self.empty_turns.saturating_sub(1);
    }

    fn some_node(&mut self) -> usize {
        self.random.index(self.cluster.nodes.len())
    }

    fn some_link(&mut self) -> Option<usize> {
        let up: Vec<usize> = (0..self.links.len()).filter(|&link| self.links[link].up).collect();
        (!up.is_empty()).then(|| self.random.pick(&up))
    }

    /// All nodes learn how things are, each in its time.
    fn gossip_soon(&mut self) {
        for node in 0..self.cluster.nodes.len() {
            let at = self.now_us + 1 + self.random.below(self.parameters.gossip_us);
            self.at(at, Event::Chaos(Chaos::Gossip(node)));
        }
    }

    fn begin_migration(&mut self) {
        let slots = self.slots.clone();
        let slot = self.random.pick(&slots);
        let from = usize::from(self.cluster.truth.owner[usize::from(slot)]);
        let members = &self.cluster.truth.members;
        let targets: Vec<usize> = (0..members.len())
            .filter(|&node| node != from && members[node].primary.is_none())
            .filter(|&node| self.cluster.nodes[node].alive)
            .collect();
        let busy = self.migrations.contains_key(&slot) || !self.cluster.nodes[from].alive;
        if busy || targets.is_empty() {
            return;
        }
        let to = self.random.pick(&targets);
        // Whoever moves slots waits until both ends have heard of the last move.
        let settled = |node: usize| {
            let this = &self.cluster.nodes[node];
            usize::from(this.view.owner[usize::from(slot)]) == from
                && !this.migrating.contains_key(&slot)
                && !this.importing.contains_key(&slot)
        };
        if !settled(from) || (self.cluster.truth.members[to].known && !settled(to)) {
            return;
        }
        if !std::mem::replace(&mut self.cluster.truth.members[to].known, true) {
            self.gossip(to);
            self.gossip_soon();
        }
        // Both must know of each other, or the command that begins a migration is refused.
        if !self.cluster.nodes[from].view.members[to].known {
            self.gossip(from);
        }
        self.cluster.nodes[to].importing.insert(slot, from);
        self.cluster.nodes[from].migrating.insert(slot, to);
        self.migrations.insert(slot, Migration { from, to });
        self.journeys.departs(slot, from, self.now_us);
        self.step_later(slot);
    }

    fn step_later(&mut self, slot: u16) {
        let at = self.now_us + self.random.around(self.parameters.migration_step_us);
        self.at(at, Event::Chaos(Chaos::Step(slot)));
    }

    fn step_migration(&mut self, slot: u16) {
        let Some(&Migration { from, to }) = self.migrations.get(&slot) else { return };
        if self.random.chance(self.parameters.migration_abort / 4) {
            return self.abort_migration(slot);
        }
        let key = self.cluster.nodes[from].data.keys().find(|key| slot_of(key) == slot).cloned();
        if let Some(key) = key {
            let value = self.cluster.nodes[from].data.remove(&key).unwrap_or_default();
            self.journeys.arrives(&key, to, self.now_us);
            self.cluster.nodes[to].data.insert(key, value);
            return self.step_later(slot);
        }
        if self.random.chance(300) {
            return self.step_later(slot);
        }
        self.migrations.remove(&slot);
        self.journeys.is_gone(slot, self.now_us);
        self.cluster.truth.owner[usize::from(slot)] = to as u8;
        self.shard_fault();
        self.cluster.truth.members[to].epoch = self.next_epoch();
        self.history.moves.push((slot, self.history.tick));
        self.gossip(to);
        // The target is told first, the source soon after, the others by and by.
        let at = self.now_us + self.random.below(2_000);
        self.at(at, Event::Chaos(Chaos::Gossip(from)));
        self.gossip_soon();
    }

    fn next_epoch(&self) -> u64 {
        self.cluster.truth.members.iter().map(|member| member.epoch).max().unwrap_or(0) + 1
    }

    fn abort_migration(&mut self, slot: u16) {
        let Some(Migration { from, to }) = self.migrations.remove(&slot) else { return };
        self.history.moves.push((slot, self.history.tick));
        self.journeys.is_gone(slot, self.now_us);
        self.cluster.nodes[to].importing.remove(&slot);
        self.cluster.nodes[from].migrating.remove(&slot);
        let of_slot = self.cluster.nodes[to].data.keys().filter(|key| slot_of(key) == slot);
        let keys: Vec<_> = of_slot.cloned().collect();
        for key in keys {
            let value = self.cluster.nodes[to].data.remove(&key).unwrap_or_default();
            self.journeys.arrives(&key, from, self.now_us);
            self.cluster.nodes[from].data.insert(key, value);
        }
    }

    fn abort_migrations_of(&mut self, node: usize) {
        let of_node = self.migrations.iter().filter(|(_, of)| of.from == node || of.to == node);
        let slots: Vec<u16> = of_node.map(|(&slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.abort_migration(slot));
    }

    /// A node that owns nothing leaves the cluster; or one that has left is met again.
    fn forget(&mut self) {
        let node = self.some_node();
        let owns = self.cluster.truth.owner.contains(&(node as u8));
        let busy = self.migrations.values().any(|of| of.from == node || of.to == node);
        let followed = self.cluster.truth.members.iter().any(|of| of.primary == Some(node));
        if !owns && !busy && !followed {
            self.message_fault();
            let member = &mut self.cluster.truth.members[node];
            member.known = !member.known;
            self.gossip_soon();
        }
    }

    fn crash(&mut self, node: usize, moves: bool) {
        if !self.cluster.nodes[node].alive {
            return;
        }
        self.abort_migrations_of(node);
        self.message_fault();
        self.cluster.nodes[node].alive = false;
        self.cluster.truth.members[node].failed = true;
        for link in 0..self.links.len() {
            if self.links[link].node == node {
                self.hang_up(link, true);
            }
        }
        self.gossip_soon();
        let back = self.now_us + self.random.range(10_000..=1_200_000);
        self.at(back, Event::Chaos(Chaos::Restart(node, moves)));
        let over = self.now_us + self.random.range(10_000..=800_000);
        self.at(over, Event::Chaos(Chaos::TakeOver(node)));
    }

    fn restart(&mut self, node: usize, moves: bool) {
        if moves {
            let count = self.cluster.addresses.len() as u16;
            let address = SocketAddr::from(([10, 0, 1, node as u8 + 1], 8000 + count));
            self.cluster.truth.members[node].address = address;
            self.cluster.addresses.push(address);
        }
        self.cluster.truth.members[node].failed = false;
        let this = &mut self.cluster.nodes[node];
        this.alive = true;
        this.process += 1000;
        this.stream.begin(self.now_us);
        if self.parameters.loading_ms > 0 {
            this.loading_until = self.now_us + self.random.below(500_000);
        }
        self.lose_scripts(node);
        self.gossip(node);
        self.gossip_soon();
    }

    /// A replica becomes the primary of its shard, with all its data.
    fn take_over(&mut self, old: usize) {
        let members = &self.cluster.truth.members;
        let heir = (0..members.len())
            .filter(|&node| members[node].known && self.cluster.nodes[node].alive)
            .find(|&node| members[node].primary == Some(old));
        let Some(heir) = heir else { return };
        self.shard_fault();
        self.abort_migrations_of(old);
        let data = std::mem::take(&mut self.cluster.nodes[old].data);
        self.cluster.nodes[heir].data = data;
        let epoch = self.next_epoch();
        let truth = &mut self.cluster.truth;
        for member in &mut truth.members {
            if member.primary == Some(old) {
                member.primary = Some(heir);
            }
        }
        truth.members[heir].primary = None;
        truth.members[heir].epoch = epoch;
        truth.members[old].primary = Some(heir);
        self.cluster.nodes[heir].stream.begin(self.now_us);
        let truth = &mut self.cluster.truth;
        for owner in truth.owner.iter_mut().filter(|owner| **owner == old as u8) {
            *owner = heir as u8;
        }
        for &slot in &self.slots {
            if self.cluster.truth.owner[usize::from(slot)] == heir as u8 {
                self.history.moves.push((slot, self.history.tick));
            }
        }
        self.gossip(heir);
        self.gossip_soon();
    }

    /// Connections that are silent and that nobody uses: keepalive would find them in time.
    pub fn break_silent_links(&mut self) {
        for link in 0..self.links.len() {
            if self.links[link].deaf || self.links[link].mute {
                self.hang_up(link, true);
            }
        }
    }

    /// The faults end: every node is up and knows how things are. Connections that are
    /// silent stay so: what waits for them must be ended by the proxy's own time limits.
    pub fn heal(&mut self) {
        self.note(10 << 40, || "heal".into());
        let slots: Vec<u16> = self.migrations.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.abort_migration(slot));
        for node in 0..self.cluster.nodes.len() {
            if !self.cluster.nodes[node].alive {
                self.restart(node, false);
            }
            let this = &mut self.cluster.nodes[node];
            (this.loading_until, this.down_until) = (0, 0);
            this.stalled_until = 0;
        }
        for node in 0..self.cluster.nodes.len() {
            self.gossip(node);
        }
        self.memory_is(10);
        self.healed = true;
    }
}
