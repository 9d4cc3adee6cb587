//! PUBSUB: who is subscribed to what, over the whole cluster.
//!
//! Nodes count each of our backends as one subscriber; in its place the clients are counted, those
//! of the other reactors by asking them (`peers`). All clients behind another proxy count as one
//! for each of its reactors. Replicas are not asked.
//!
//! Not here: how the parts' replies are merged (`split`).

use super::Proxy;
use super::dispatch::{Asked, Ran};
use super::local::errors;
use super::peers::PatternShare;
use super::pubsub::{Kind, LegState, Topic};
use super::split::Merge;
use crate::command::Args;

impl Proxy {
    pub(super) fn run_introspection(&mut self, asked: Asked, args: &Args) -> Ran {
        let names: Vec<&[u8]> = args.iter().skip(2).collect();
        let (merge, adjust) = match asked.command.name {
            "PUBSUB|CHANNELS" | "PUBSUB|SHARDCHANNELS" => (Merge::Union, Vec::new()),
            "PUBSUB|NUMSUB" => (Merge::Counts, self.own_shares(Kind::Channel, &names)),
            "PUBSUB|SHARDNUMSUB" => (Merge::Counts, self.own_shares(Kind::Shard, &names)),
            "PUBSUB|NUMPAT" => {
                let share = |topic: &Topic| match topic.subscribers.is_empty() {
                    true => -(topic.legs_counted() as i64),
                    false => 1 - topic.legs_counted() as i64,
                };
                (Merge::Sum, self.topics.of_kind(Kind::Pattern).map(share).collect())
            }
            name => {
                return self.answer_with(asked.client, |out| errors::not_supported(out, name));
            }
        };
        self.ask_primaries(asked, args, merge, &adjust)
    }

    /// Channels, patterns, shard channels that this reactor is subscribed to, and for how many
    /// clients.
    pub fn subscription_counts(&self) -> [usize; 4] {
        let [channels, patterns, shards] =
            [Kind::Channel, Kind::Pattern, Kind::Shard].map(|kind| self.topics.count(kind));
        [channels, patterns, shards, self.topics.clients]
    }

    /// For each channel that is named: its clients here, less the backends that stand for them.
    pub(super) fn own_shares<N: AsRef<[u8]>>(&self, kind: Kind, names: &[N]) -> Vec<i64> {
        let share = |name: &N| {
            let Some(t) = self.topics.find(kind, name.as_ref()) else { return 0 };
            let topic = &self.topics[t];
            topic.subscribers.len() as i64 - topic.legs_counted() as i64
        };
        names.iter().map(share).collect()
    }

    /// The patterns of this reactor, as nodes count them.
    pub(super) fn own_patterns(&self) -> Vec<PatternShare> {
        let share = |topic: &Topic| {
            let counted = topic.legs.iter().filter(|leg| leg.state != LegState::Joining);
            PatternShare {
                name: topic.name.clone(),
                wanted: !topic.subscribers.is_empty(),
                nodes: counted.map(|leg| self.nodes[leg.node].address).collect(),
            }
        };
        self.topics.of_kind(Kind::Pattern).map(share).collect()
    }
}
