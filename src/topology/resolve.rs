//! Names to addresses, off the thread, with the last good answer when the resolver is slow.
//!
//! Not here: which of several addresses is the right one (`talk` tries them in turn).

use crate::cluster::{Endpoint, Topology};
use ahash::AHashMap;
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Resolver threads at a time, over all pools: a resolver that hangs holds no more.
const LOOKUPS_MAX: usize = 16;
/// How long anybody waits for the resolver before the last good answer is taken.
const LOOKUP_MS: u64 = 1000;
/// How long connecting to an address that is new for a name may take.
const PROBE_MS: u64 = 500;
/// How long an answer is taken as fresh.
const FRESH_MS: u64 = 5000;
/// The same while the address that it led to is lost.
const FRESH_LOST_MS: u64 = 500;
/// How long the answer for a name that nobody asks about any more is kept.
const KEPT_MS: u64 = 600_000;
/// Addresses kept of one name.
const ADDRESSES_MAX: usize = 8;

/// Cloning shares.
#[derive(Clone)]
pub(super) struct Resolver {
    names: Rc<RefCell<AHashMap<Box<str>, Entry>>>,
    permits: Rc<Semaphore>,
    clock: super::Clock,
}

#[derive(Clone, Default)]
struct Entry {
    addresses: Vec<IpAddr>,
    answered_at: Option<u64>,
    in_flight: bool,
    used_at: u64,
}

impl Resolver {
    pub(super) fn new(clock: super::Clock) -> Resolver {
        Resolver { names: Rc::default(), permits: Rc::new(Semaphore::new(LOOKUPS_MAX)), clock }
    }

    /// All addresses of a host; empty if there are none. Asks anew if the answer is older than
    /// `fresh_ms`.
    pub(super) async fn lookup(&self, host: &str, fresh_ms: u64) -> Vec<IpAddr> {
        if let Ok(ip) = host.parse() {
            return vec![ip];
        }
        let now = self.clock.now_ms();
        {
            let mut names = self.names.borrow_mut();
            let entry = names.entry(host.into()).or_default();
            entry.used_at = now;
            let young = entry.answered_at.is_some_and(|at| now < at.saturating_add(fresh_ms));
            if entry.in_flight || young {
                return entry.addresses.clone();
            }
            // Callers in the meantime take the last good answer.
            entry.in_flight = true;
        }
        let lookup = tokio_uring::spawn(self.clone().ask(host.into()));
        let _ = tokio::time::timeout(Duration::from_millis(LOOKUP_MS), lookup).await;
        self.names.borrow().get(host).map(|entry| entry.addresses.clone()).unwrap_or_default()
    }

    /// Gives each node its address. `last`: the map before, for names that do not resolve now.
    /// `lost`: addresses that reactors could not reach or keep, the last one at the end.
    pub(super) async fn resolve(
        &self,
        topology: &mut Topology,
        last: Option<&Topology>,
        lost: &[SocketAddr],
        fresh: bool,
    ) {
        let address_before = |endpoint: &Endpoint| {
            let index = last?.node_by_endpoint(endpoint)?;
            last?.nodes.get(usize::from(index))?.address
        };
        // What led to an address that was lost is asked for again; those come first.
        let mut hosts: Vec<(Box<str>, bool)> = (topology.nodes.iter())
            .map(|node| {
                let before = address_before(&node.endpoint);
                let is_lost = before.is_some_and(|before| lost.contains(&before));
                (node.endpoint.host.clone(), !is_lost)
            })
            .collect();
        hosts.sort_unstable();
        hosts.dedup_by(|a, b| a.0 == b.0);
        let lookups: Vec<_> = hosts
            .into_iter()
            .map(|(host, is_well)| {
                let resolver = self.clone();
                let fresh_ms = if is_well { FRESH_MS } else { FRESH_LOST_MS };
                let fresh_ms = if fresh { 0 } else { fresh_ms };
                tokio_uring::spawn(async move {
                    let addresses = resolver.lookup(&host, fresh_ms).await;
                    (host, addresses)
                })
            })
            .collect();
        let mut found = AHashMap::new();
        for lookup in lookups {
            if let Ok((host, addresses)) = lookup.await {
                found.insert(host, addresses);
            }
        }
        let mut changed = Vec::new();
        for (index, node) in topology.nodes.iter_mut().enumerate() {
            let before = address_before(&node.endpoint);
            let now = found.get(&node.endpoint.host).map(Vec::as_slice).unwrap_or_default();
            node.address = pick(now, &node.endpoint, before, lost);
            if let (Some(now), Some(before)) = (node.address, before)
                && now != before
                && !lost.contains(&before)
            {
                changed.push((index, before, tokio_uring::spawn(self.clone().listens(now))));
            }
        }
        for (index, before, listens) in changed {
            if let (false, Some(node)) =
                (listens.await.unwrap_or(false), topology.nodes.get_mut(index))
            {
                node.address = Some(before);
            }
        }
        let now = self.clock.now_ms();
        self.names
            .borrow_mut()
            .retain(|_, entry| entry.in_flight || now < entry.used_at.saturating_add(KEPT_MS));
    }

    /// Whether somebody takes connections at an address that a name leads to now, while nothing is
    /// wrong with the one before: a wrong answer must not cost the healthy connections there.
    async fn listens(self, address: SocketAddr) -> bool {
        let Ok(_permit) = self.permits.acquire().await else { return false };
        let limit = Duration::from_millis(PROBE_MS);
        let attempt = off_thread(move || TcpStream::connect_timeout(&address, limit).is_ok());
        attempt.await.unwrap_or(false)
    }

    async fn ask(self, host: Box<str>) {
        let addresses = match self.permits.acquire().await {
            Ok(_permit) => {
                let name = host.clone();
                off_thread(move || look_up(&name)).await.unwrap_or_default()
            }
            Err(_) => Vec::new(),
        };
        let mut names = self.names.borrow_mut();
        let entry = names.entry(host).or_default();
        entry.in_flight = false;
        if !addresses.is_empty() {
            entry.addresses = addresses;
            entry.answered_at = Some(self.clock.now_ms());
        }
    }
}

/// Runs `work` in a thread of its own. Not tokio's pool: its end would wait for a resolver that
/// hangs.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    let run = move || drop(sender.send(work()));
    std::thread::Builder::new().name("topology-wait".into()).spawn(run).ok()?;
    receiver.await.ok()
}

fn look_up(host: &str) -> Vec<IpAddr> {
    const ANY_PORT: u16 = 1;
    let Ok(found) = (host, ANY_PORT).to_socket_addrs() else { return Vec::new() };
    let mut addresses = Vec::new();
    for address in found {
        if !addresses.contains(&address.ip()) && addresses.len() < ADDRESSES_MAX {
            addresses.push(address.ip());
        }
    }
    addresses
}

/// The address before if it still is one, so that a name with several does not flap; else the
/// first; else, when the resolver knows none, the one before. One that was lost comes after all
/// others, the last one lost at the end: a node may listen on one address of several.
fn pick(
    now: &[IpAddr],
    endpoint: &Endpoint,
    before: Option<SocketAddr>,
    lost: &[SocketAddr],
) -> Option<SocketAddr> {
    let lost_at = |address: &SocketAddr| lost.iter().rposition(|one| one == address);
    let candidates = now.iter().map(|&ip| SocketAddr::new(ip, endpoint.port));
    let best = candidates.min_by_key(|one| (lost_at(one), Some(*one) != before));
    best.or(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(now: &[&str], before: Option<&str>, lost: &[&str], expected: Option<&str>) {
        let full = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 7000);
        let now: Vec<IpAddr> = now.iter().map(|ip| ip.parse().unwrap()).collect();
        let lost: Vec<SocketAddr> = lost.iter().map(|ip| full(ip)).collect();
        let endpoint = Endpoint { host: "name".into(), port: 7000 };
        let picked = pick(&now, &endpoint, before.map(full), &lost);
        assert_eq!(picked, expected.map(full), "{now:?} {before:?} {lost:?}");
    }

    #[test]
    fn address_of_a_name_stays_while_it_is_one() {
        let two = ["::1", "127.0.0.1"];
        check(&two, None, &[], Some("::1"));
        check(&two, Some("127.0.0.1"), &[], Some("127.0.0.1"));
        check(&two, Some("127.0.0.2"), &[], Some("::1"));
        check(&[], Some("127.0.0.2"), &[], Some("127.0.0.2"));
        check(&[], None, &[], None);
    }

    #[test]
    fn address_that_was_lost_gives_way_to_the_others_in_turn() {
        let two = ["::1", "127.0.0.1"];
        check(&two, Some("::1"), &["::1"], Some("127.0.0.1"));
        check(&two, Some("127.0.0.1"), &["::1", "127.0.0.1"], Some("::1"));
        check(&two, Some("::1"), &["127.0.0.1", "::1"], Some("127.0.0.1"));
        check(&["::1"], Some("::1"), &["::1"], Some("::1"));
    }
}
