//! Who listens where: sockets that were there before us are used as they are, others are opened.
//!
//! Each reactor has its own socket of an address (SO_REUSEPORT). A queue that another process, or
//! the service manager, has opened is never closed by a change in the number of reactors: if there
//! are more queues than reactors some have several; if there are fewer and no further one may be
//! opened beside them, those who have one give clients to the others in turn (`reactor/passing`).
//!
//! Not here: accepting (`reactor`), handing sockets over (`handover`).

use std::io::ErrorKind;
use std::net::SocketAddr;

use super::Before;
use crate::config::Pool;
use crate::ring::{Inherited, Listener, bind};

/// The listening sockets of a process.
pub(super) struct Sockets {
    /// For each reactor: pool and socket.
    pub of: Vec<Vec<(u16, Listener)>>,
    /// For each pool: whether some reactors have none of an address.
    pub shared: Vec<bool>,
    /// Copies, for the next process.
    pub shares: Vec<Inherited>,
}

/// Errors: cause and remedy in one line.
pub(super) fn open(pools: &[Pool], reactors: usize, before: Before) -> Result<Sockets, String> {
    let mut sockets = Sockets {
        of: (0..reactors).map(|_| Vec::new()).collect(),
        shared: vec![false; pools.len()],
        shares: Vec::new(),
    };
    let (mut inherited, mut managed) = (before.inherited, before.managed);
    for (number, pool) in pools.iter().enumerate() {
        for &address in &pool.listen {
            let mut found = take_all(&mut managed, |(socket, _)| socket.address == address)
                .into_iter()
                .map(|(socket, _)| socket)
                .collect::<Vec<_>>();
            let is_managed = !found.is_empty();
            found.extend(take_all(&mut inherited, |socket| socket.address == address));
            // What the service manager keeps open would lose nothing of ours beside it; what we
            // would open beside it would be lost with us.
            let may_open = !is_managed && found.iter().all(Inherited::may_be_joined);
            sockets.add(number as u16, address, found, may_open)?;
        }
        let by_name = |(_, name): &(Inherited, Option<String>)| name.as_ref() == Some(&pool.name);
        for (socket, _) in take_all(&mut managed, by_name) {
            sockets.add(number as u16, socket.address, vec![socket], false)?;
        }
    }
    match managed.first() {
        None => Ok(sockets),
        Some((socket, _)) => Err(format!(
            "the service manager has opened {} for us, and no pool listens there: add it to \
             `listen`, or name the socket after a pool (FileDescriptorName=)",
            socket.address
        )),
    }
}

impl Sockets {
    fn add(
        &mut self,
        pool: u16,
        address: SocketAddr,
        found: Vec<Inherited>,
        may_open: bool,
    ) -> Result<(), String> {
        let reactors = self.of.len();
        let failed = |error: std::io::Error| {
            format!("cannot listen on {address}: {error}{}", remedy(error.kind()))
        };
        let mut listeners: Vec<Listener> =
            found.into_iter().map(Inherited::adopt).collect::<Result<_, _>>().map_err(failed)?;
        while may_open && listeners.len() < reactors {
            // Not to be given clients that nobody takes if we do not get as far as serving.
            listeners.push(bind(address).map_err(failed)?);
        }
        self.shared[usize::from(pool)] |= listeners.len() < reactors;
        for (index, listener) in listeners.into_iter().enumerate() {
            self.shares.push(listener.share().map_err(failed)?);
            self.of[index % reactors].push((pool, listener));
        }
        Ok(())
    }
}

/// Takes those out that are meant.
fn take_all<T>(from: &mut Vec<T>, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
    let (taken, left) = std::mem::take(from).into_iter().partition(is_meant);
    *from = left;
    taken
}

/// What to do when an address cannot be listened on.
fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AddrInUse => "; another program has this port: stop it, or choose another",
        ErrorKind::AddrNotAvailable => "; no interface of this host has this address",
        ErrorKind::PermissionDenied => {
            "; ports below 1024 need root, CAP_NET_BIND_SERVICE, or a lower \
             net.ipv4.ip_unprivileged_port_start"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::listen;

    fn pool(name: &str, listen: &[SocketAddr]) -> Pool {
        Pool { name: name.into(), listen: listen.to_vec(), ..Pool::default() }
    }

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// As many of one address as a process with so many reactors has.
    fn inherited(count: usize) -> (SocketAddr, Vec<Inherited>) {
        let first = listen(any(), None).unwrap();
        let address = first.address();
        let mut all = vec![first];
        all.extend((1..count).map(|_| listen(address, None).unwrap()));
        (address, all.iter().map(|listener| listener.share().unwrap()).collect())
    }

    #[track_caller]
    fn check(before: usize, reactors: usize, expected: &[usize]) {
        let (address, inherited) = inherited(before);
        let before = Before { inherited, ..Before::default() };
        let sockets = open(&[pool("a", &[address])], reactors, before).unwrap();
        let counts: Vec<usize> = sockets.of.iter().map(Vec::len).collect();
        assert_eq!(counts, expected);
        assert_eq!(sockets.shared, [false]);
        let all = sockets.of.iter().flatten().all(|(_, socket)| socket.address() == address);
        assert!(all && sockets.shares.len() == expected.iter().sum::<usize>());
    }

    #[test]
    fn no_queue_is_lost_when_the_number_of_reactors_changes() {
        check(2, 2, &[1, 1]);
        check(1, 3, &[1, 1, 1]);
        check(5, 2, &[3, 2]);
    }

    #[test]
    fn socket_of_the_service_manager_is_shared_and_nothing_opened_beside_it() {
        let (address, mut one) = inherited(1);
        let (_, mut other) = inherited(1);
        let managed = vec![(one.remove(0), None), (other.remove(0), Some("b".to_owned()))];
        let before = Before { managed, ..Before::default() };
        let pools = [pool("a", &[address]), pool("b", &[])];
        let sockets = open(&pools, 2, before).unwrap();
        let places: Vec<Vec<u16>> =
            sockets.of.iter().map(|of| of.iter().map(|&(pool, _)| pool).collect()).collect();
        assert_eq!(places, [vec![0, 1], vec![]]);
        assert_eq!(sockets.shared, [true, true]);
    }

    #[test]
    fn socket_that_nobody_wants_is_named() {
        let (address, mut one) = inherited(1);
        let managed = vec![(one.remove(0), Some("other".to_owned()))];
        let before = Before { managed, ..Before::default() };
        let error = open(&[pool("a", &[any()])], 1, before).err().unwrap();
        assert!(error.contains(&address.to_string()) && error.contains("`listen`"), "{error}");
    }
}
