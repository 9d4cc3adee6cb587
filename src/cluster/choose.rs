//! Which of two maps to believe: never a worse one over a better.
//!
//! Not here: reading maps (`read`, `nodes_text`), whom to ask next (`topology`).

use super::{Node, Role, Topology, UNOWNED};
use ahash::AHashMap;

/// What to do with a candidate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// It says what is known already.
    Same,
    /// Use this instead; slots of which the current map knows a later claim keep their owner.
    Adopt(Topology),
    /// Keep the current map; the reason.
    Reject(&'static str),
}

const NOTHING_OWNED: &str = "it covers no slot";
const OTHER_CLUSTER: &str = "it shares no node with the current map: another cluster";
const OLDER: &str = "its epoch is older than the current map's";
const FEWER_SLOTS: &str = "it covers fewer slots than the current map";

/// Judges `candidate` against `current`, slot by slot where both know config epochs: of two claims
/// the one with the higher epoch is right, so a minority that was left behind changes nothing
/// (redis-server: `clusterUpdateSlotsConfigWith`, cluster.c, decides alike).
pub fn choose(current: Option<&Topology>, candidate: Topology) -> Choice {
    let covered = candidate.covered();
    if covered == 0 {
        return Choice::Reject(NOTHING_OWNED);
    }
    let Some(current) = current else { return adopt(candidate, 0) };
    let places = places_in(current, &candidate);
    if places.iter().all(|&place| place == UNOWNED) {
        return Choice::Reject(OTHER_CLUSTER);
    }
    if candidate.epoch != 0 && candidate.epoch < current.epoch {
        return Choice::Reject(OLDER);
    }
    let merged = keep_later_claims(current, candidate, &places);
    if merged.covered() < current.covered() {
        return Choice::Reject(FEWER_SLOTS);
    }
    if says_the_same(current, &merged) {
        return Choice::Same;
    }
    adopt(merged, current.version)
}

/// Keeps `choose` from being wrong for ever. What it turns down is the truth after all when more
/// than half as many nodes as the current map has primaries tell it alike, one after the other:
/// slots were taken away by hand, or the cluster was built anew.
#[derive(Clone, Default, Debug)]
pub struct Witnesses {
    told: Option<Topology>,
    tellers: Vec<Box<str>>,
    tellings: usize,
}

impl Witnesses {
    /// As `choose`, remembering what `teller` (id or place of the node that answered) told.
    pub fn choose(
        &mut self,
        current: Option<&Topology>,
        candidate: Topology,
        teller: &str,
    ) -> Choice {
        let choice = choose(current, candidate.clone());
        let Some(current) = current else { return choice };
        let believed = match &choice {
            Choice::Same => claims(current, &candidate),
            Choice::Adopt(merged) => claims(merged, &candidate),
            Choice::Reject(_) => false,
        };
        if believed {
            *self = Witnesses::default();
            return choice;
        }
        if candidate.covered() > 0 && self.hear(current, &candidate, teller) {
            *self = Witnesses::default();
            return adopt(candidate, current.version);
        }
        choice
    }

    /// True when enough have told the same.
    fn hear(&mut self, current: &Topology, candidate: &Topology, teller: &str) -> bool {
        /// One node alone must insist: a cluster with one primary has no majority to ask.
        const TELLINGS_MIN: usize = 3;
        if !self.told.as_ref().is_some_and(|told| claims(told, candidate)) {
            *self = Witnesses::default();
            self.told = Some(candidate.clone());
        }
        self.tellings += 1;
        if !self.tellers.iter().any(|known| &**known == teller) {
            self.tellers.push(teller.into());
        }
        let majority = if places_in(current, candidate).iter().all(|&place| place == UNOWNED) {
            // Another cluster: its own primaries are the ones to ask.
            candidate.primaries().count().min(current.primaries().count()) / 2 + 1
        } else {
            current.primaries().count() / 2 + 1
        };
        self.tellings >= TELLINGS_MIN && self.tellers.len() >= majority
    }
}

fn adopt(mut topology: Topology, version: u64) -> Choice {
    topology.version = version.saturating_add(1);
    Choice::Adopt(topology)
}

/// For each node of `from` its index in `to`: by id, or by place where the replies had no ids.
fn places_in(from: &Topology, to: &Topology) -> Vec<u16> {
    let places: AHashMap<Name, u16> = to.nodes.iter().map(name_of).zip(0..).collect();
    from.nodes.iter().map(|node| places.get(&name_of(node)).copied().unwrap_or(UNOWNED)).collect()
}

type Name<'a> = (&'a str, Option<&'a super::Endpoint>);

fn name_of(node: &Node) -> Name<'_> {
    if node.id.is_empty() { ("", Some(&node.endpoint)) } else { (&node.id, None) }
}

/// The candidate, with the current owner left in place where its claim is the later one.
/// `places`: index in the candidate of each current node.
fn keep_later_claims(current: &Topology, mut candidate: Topology, places: &[u16]) -> Topology {
    for (slot, &old) in candidate.owners.iter_mut().zip(current.owners.iter()) {
        let Some(old_node) = current.nodes.get(usize::from(old)) else { continue };
        let place = places.get(usize::from(old)).copied().unwrap_or(UNOWNED);
        let Some(old_now) = candidate.nodes.get(usize::from(place)) else { continue };
        if *slot == place || old_now.role != Role::Primary {
            continue;
        }
        let later = match candidate.nodes.get(usize::from(*slot)) {
            // Nobody claims it there: no news, the owner itself will say if it has lost it.
            None => true,
            Some(new_node) => new_node.epoch != 0 && new_node.epoch < old_node.epoch,
        };
        if later {
            *slot = place;
        }
    }
    // What was known of a claim stays known, or the next stale map would win.
    for (node, &place) in current.nodes.iter().zip(places) {
        if let Some(now) = candidate.nodes.get_mut(usize::from(place)) {
            now.epoch = now.epoch.max(node.epoch);
        }
    }
    candidate.epoch = candidate.epoch.max(current.epoch);
    candidate
}

fn says_the_same(a: &Topology, b: &Topology) -> bool {
    a.owners == b.owners && a.nodes == b.nodes
}

/// Whether both have the same owners, by name.
fn claims(a: &Topology, b: &Topology) -> bool {
    let places = places_in(a, b);
    let place = |owner: u16| places.get(usize::from(owner)).copied().unwrap_or(UNOWNED);
    a.owners
        .iter()
        .zip(b.owners.iter())
        .all(|(&in_a, &in_b)| place(in_a) == in_b && (in_a == UNOWNED) == (in_b == UNOWNED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Endpoint, SLOTS};

    /// `"a5:0-99 b7:100-16383 c5/a"`: node `a` of epoch 5 owns slots 0..=99, `c` follows `a`.
    fn map(text: &str) -> Topology {
        let mut topology = Topology::empty();
        for (index, word) in (0u16..).zip(text.split(' ').filter(|word| !word.is_empty())) {
            let (name, slots) = word.split_once(':').unwrap_or((word, ""));
            let (name, leader) = name.split_once('/').unwrap_or((name, ""));
            let (id, epoch) = name.split_at(1);
            let epoch = epoch.parse().unwrap_or(0);
            let endpoint = Endpoint { host: id.into(), port: 6379 };
            let role = if leader.is_empty() { Role::Primary } else { Role::Replica };
            let shard = topology.node_by_id(leader).unwrap_or(index);
            let id = id.into();
            let healthy = true;
            topology.nodes.push(Node { id, endpoint, address: None, role, shard, healthy, epoch });
            topology.epoch = topology.epoch.max(epoch);
            for range in slots.split(',').filter(|range| !range.is_empty()) {
                let (first, last) = range.split_once('-').unwrap();
                topology.give_slots(first.parse().unwrap(), last.parse().unwrap(), index);
            }
        }
        topology
    }

    /// `expected`: "same", a reason of rejection, or the map adopted.
    #[track_caller]
    fn check(current: &str, candidate: &str, expected: &str) {
        let mut current = map(current);
        current.version = 7;
        match choose(Some(&current), map(candidate)) {
            Choice::Same => assert_eq!("same", expected),
            Choice::Reject(reason) => assert_eq!(reason, expected),
            Choice::Adopt(adopted) => {
                assert_eq!(adopted.version, 8);
                let mut wanted = map(expected);
                wanted.version = 8;
                wanted.epoch = adopted.epoch;
                assert_eq!(adopted.nodes, wanted.nodes);
                assert!(adopted.owners == wanted.owners, "owners differ");
            }
        }
    }

    const WHOLE: &str = "a5:0-8191 b6:8192-16383";

    #[test]
    fn an_equal_map_changes_nothing() {
        check(WHOLE, WHOLE, "same");
    }

    #[test]
    fn a_slot_moved_to_a_higher_epoch_is_adopted() {
        let moved = "a5:1-8191 b7:0-0,8192-16383";
        check(WHOLE, moved, moved);
    }

    #[test]
    fn a_failover_is_adopted_and_not_undone_by_the_side_left_behind() {
        let before = "a5:0-8191 b6:8192-16383 c5/a";
        let after = "a5/c b6:8192-16383 c7:0-8191";
        // As the reply orders them: `c` stands before `a` in the helper only.
        let after = after.replace("a5/c", "a5");
        check(before, &after, &after);
        check(&after, before, OLDER);
        // The same epoch, so some news, but not of this failover.
        let mut stale = map(before);
        stale.epoch = 9;
        let mut current = map(&after);
        current.epoch = 9;
        assert!(
            matches!(
                choose(Some(&current), stale),
                Choice::Adopt(merged) if merged.owner(0).is_some_and(|node| &*node.id == "a")
            ),
            "a replica in the candidate's own words cannot keep its slots"
        );
    }

    #[test]
    fn of_a_mixed_map_only_the_later_claims_are_taken() {
        // Slot 0: the candidate's claim (b4) is older than ours (a5). Slot 8192: c9 is news.
        check(
            "a5:0-8191 b6:8192-16383 c1",
            "a5:1-8191 b4:0-0,8193-16383 c9:8192-8192",
            "a5:0-8191 b6:8193-16383 c9:8192-8192",
        );
    }

    #[test]
    fn without_epochs_the_news_is_believed() {
        check("a:0-8191 b:8192-16383", "a:1-8191 b:0-0,8192-16383", "a:1-8191 b:0-0,8192-16383");
    }

    #[test]
    fn fewer_slots_are_not_believed() {
        check(WHOLE, "", NOTHING_OWNED);
        check(WHOLE, "a5", NOTHING_OWNED);
        check(WHOLE, "a5:0-8191", OLDER);
        check(WHOLE, "a6:0-8191", FEWER_SLOTS);
        check(WHOLE, "a5:0-8191 b6", "same");
        check("a5:0-8191 b6:8192-16000", "a5:0-8191 b6:8192-16383", WHOLE);
    }

    #[test]
    fn another_cluster_is_not_believed() {
        check(WHOLE, "x9:0-16383", OTHER_CLUSTER);
    }

    #[test]
    fn the_first_map_is_taken_as_it_is_unless_empty() {
        assert!(matches!(choose(None, map("a:0-5")), Choice::Adopt(map) if map.version == 1));
        assert_eq!(choose(None, map("a")), Choice::Reject(NOTHING_OWNED));
    }

    #[test]
    fn a_changed_place_is_adopted_under_the_same_id() {
        let current = map(WHOLE);
        let mut candidate = map(WHOLE);
        candidate.nodes[0].endpoint.host = "elsewhere".into();
        assert!(matches!(choose(Some(&current), candidate), Choice::Adopt(_)));
    }

    #[test]
    fn nodes_without_ids_are_known_by_place() {
        let without_ids = |text: &str| {
            let mut topology = map(text);
            topology.nodes.iter_mut().for_each(|node| node.id = "".into());
            topology
        };
        let current = without_ids("a:0-8191 b:8192-16383");
        assert_eq!(choose(Some(&current), current.clone()), Choice::Same);
        assert_eq!(choose(Some(&current), without_ids("x:0-16383")), Choice::Reject(OTHER_CLUSTER));
    }

    #[test]
    fn what_a_majority_insists_on_is_believed() {
        let current = map("a5:0-5000 b6:5001-10000 c7:10001-16383");
        // Taken from `c` and given to `a` by hand, without a new epoch.
        let by_hand = map("a5:0-5000,10001-10001 b6:5001-10000 c7:10002-16383");
        let mut witnesses = Witnesses::default();
        let mut hear = |teller| witnesses.choose(Some(&current), by_hand.clone(), teller);
        assert_eq!(hear("a"), Choice::Same);
        assert_eq!(hear("a"), Choice::Same);
        assert_eq!(hear("a"), Choice::Same);
        assert!(matches!(hear("b"), Choice::Adopt(map) if map.owners == by_hand.owners));
    }

    #[test]
    fn a_believed_map_in_between_silences_the_witnesses() {
        let current = map(WHOLE);
        let other = map("x9:0-16383");
        let mut witnesses = Witnesses::default();
        for _ in 0..10 {
            for (candidate, expected) in
                [(&other, Choice::Reject(OTHER_CLUSTER)), (&current, Choice::Same)]
            {
                assert_eq!(witnesses.choose(Some(&current), candidate.clone(), "t"), expected);
            }
        }
    }

    #[test]
    fn a_cluster_built_anew_is_believed_at_the_third_telling() {
        let current = map(WHOLE);
        let mut witnesses = Witnesses::default();
        let mut hear = || witnesses.choose(Some(&current), map("x1:0-16383"), "x");
        assert_eq!(hear(), Choice::Reject(OTHER_CLUSTER));
        assert_eq!(hear(), Choice::Reject(OTHER_CLUSTER));
        assert!(matches!(hear(), Choice::Adopt(_)));
    }

    #[test]
    fn every_slot_has_a_place_in_the_helper() {
        assert_eq!(map(WHOLE).covered(), SLOTS);
    }
}
