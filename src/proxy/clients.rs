//! What one client may ask about the others: CLIENT LIST, INFO and KILL.
//!
//! Not here: the words of those commands and their replies (`local::client`).

use super::client::{Client, Phase};
use super::local::{ClientFacts, ClientFilter, World, client_line};
use super::pubsub::Kind;
use super::{Proxy, Tally};

impl Proxy {
    /// CLIENT LIST and INFO: one line for each client that the filter matches, the eldest first.
    /// `asking`: one of ours and the bytes of its request itself, which a server counts among what
    /// it has sent.
    pub(super) fn client_lines(
        &self,
        filter: &ClientFilter,
        asking: Option<(u32, usize)>,
    ) -> Vec<u8> {
        let mut lines = Vec::new();
        let world = self.world(0);
        let is_meant = |index: &u32| filter.matches(&self.clients[*index].session, self.now.ms);
        let mut meant: Vec<u32> = self.clients.indexes().filter(is_meant).collect();
        meant.sort_unstable_by_key(|&index| self.clients[index].session.id);
        for index in meant {
            let client = &self.clients[index];
            let mut facts = facts(index, client);
            if let Some((_, bytes)) = asking.filter(|of| of.0 == index) {
                facts.query += bytes as u64;
            }
            client_line(&client.session, &facts, &world, &mut lines);
        }
        lines
    }

    /// CLIENT KILL: how many; whether `c`, the asking client, is itself to be closed after its
    /// reply.
    pub(super) fn kill_clients(&mut self, c: u32, filter: &ClientFilter) -> (u64, bool) {
        let is_meant = |index: &u32| {
            let client = &self.clients[*index];
            matches!(client.phase, Phase::Open | Phase::Last)
                && filter.matches(&client.session, self.now.ms)
        };
        let meant: Vec<u32> = self.clients.indexes().filter(is_meant).collect();
        for &index in &meant {
            if index != c {
                self.close_client(index);
            }
        }
        (meant.len() as u64, meant.contains(&c))
    }

    /// Brings the totals up to date where people and tests wait for a change: who is connected,
    /// blocked, subscribed here, and errors told to them. What other reactors count is as old as
    /// the last publication.
    pub(super) fn freshen_totals(&mut self) {
        let now = self.own_counts();
        let missing = self.slots_missing();
        let then = std::mem::replace(&mut self.own_totals, now);
        let totals = &mut self.totals;
        totals.scripts = self.scripts.len() as u64;
        totals.slots_missing = missing as u64;
        let counts = [
            &mut totals.clients,
            &mut totals.blocked_clients,
            &mut totals.pubsub_channels,
            &mut totals.pubsub_patterns,
            &mut totals.pubsub_shard_channels,
            &mut totals.pubsub_clients,
            &mut totals.error_replies,
        ];
        for ((count, now), then) in counts.into_iter().zip(now).zip(then) {
            *count = (*count + now).saturating_sub(then);
        }
    }

    /// Counts anew what only grows, as redis-server does at CONFIG RESETSTAT. What INFO shows is of
    /// all pools: those of others go on.
    pub(super) fn reset_counts(&mut self) {
        self.tally = Tally::default();
        if let Some(errors) = self.own_totals.last_mut() {
            *errors = 0;
        }
        self.counts = super::facts::Counts::default();
        self.rhythm.step(0);
        let totals = &mut self.totals;
        let counts = [
            &mut totals.connections_accepted,
            &mut totals.connections_rejected,
            &mut totals.commands,
            &mut totals.error_replies,
            &mut totals.protocol_errors,
            &mut totals.bytes_in,
            &mut totals.bytes_out,
            &mut totals.redirects_moved,
            &mut totals.redirects_ask,
            &mut totals.retries_tryagain,
            &mut totals.retries_other,
            &mut totals.timeouts,
            &mut totals.backends_lost,
            &mut totals.splits,
            &mut totals.fence_breaches,
            &mut totals.sends_to_nodes,
            &mut totals.sends_to_clients,
            &mut totals.clients_slowed,
            &mut totals.clients_closed_for_memory,
        ];
        counts.into_iter().for_each(|count| *count = 0);
    }

    /// The ids of all its clients so far are below.
    pub fn next_client_id(&self) -> u64 {
        self.next_client_id
    }

    pub(super) fn own_counts(&self) -> [u64; 7] {
        let [channels, patterns, shards, subscribed] = self.subscription_counts();
        let (clients, blocked) = (self.clients_open(), self.clients_blocked());
        let errors = self.tally.error_replies as usize;
        [clients, blocked, channels, patterns, shards, subscribed, errors].map(|count| count as u64)
    }

    /// What local answers may depend on.
    pub(super) fn world(&self, random: u64) -> World<'_> {
        World {
            identity: &self.identity,
            topology: self.topology.as_deref(),
            databases: self.databases.announced,
            totals: &self.totals,
            now_ms: self.now.ms,
            unix_us: self.now.unix_us,
            random,
        }
    }
}

fn facts(index: u32, client: &Client) -> ClientFacts {
    let subscribed = client.subscribed.as_deref();
    let [channels, patterns, shard_channels] = [Kind::Channel, Kind::Pattern, Kind::Shard]
        .map(|kind| subscribed.map_or(0, |of| of.of_kind(kind).len() as u32));
    let query = client.partial.as_ref().map_or(0, |partial| partial.waiting());
    ClientFacts {
        fd: index,
        closing: client.phase == Phase::Last,
        query: query as u64,
        replies: u64::from(client.in_flight),
        reply_bytes: client.stored as u64,
        blocked: client.mode.as_ref().is_some_and(|mode| mode.blocked.is_some()),
        multi: client.mode.as_ref().and_then(|mode| Some(mode.queue.as_ref()?.len() as u32)),
        unsent: client.output.pending() as u64,
        channels,
        patterns,
        shard_channels,
        memory: (size_of::<Client>() + query + client.output.pending() + client.stored) as u64,
        ..ClientFacts::default()
    }
}
