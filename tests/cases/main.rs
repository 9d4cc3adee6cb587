//! The cases of `research/user-demand.md`, each against real nodes or fake ones.
#[path = "../support/mod.rs"]
mod support;

#[test]
fn cluster_starts() {
    let cluster = support::cluster::Cluster::three_and_three(support::cluster::Flavour::Redis);
    cluster.failover(3);
    cluster.migrate_slot(0, 3, 1);
    assert_eq!(cluster.owner_seen_by(1, 0), Some(1));
    if support::cluster::Flavour::Valkey.program().is_some() {
        let cluster = support::cluster::Cluster::three_and_three(support::cluster::Flavour::Valkey);
        cluster.failover(4);
    }
}
