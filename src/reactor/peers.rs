//! How reactors ask one another: a channel to each, and its waker.
//!
//! Nobody waits in a channel: what finds it full is dropped, and who asked says that it is late.
//!
//! Not here: what is asked and how the parts are joined (`proxy/peers`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, TrySendError};

use super::{Arrival, Pace, Pool, ReactorFacts, Worker, busy_poll};
use crate::handover;
use crate::log::Level;
use crate::proxy::Proxy;
use crate::proxy::peers::{MAIN, Query, Told};
use crate::ring::Waker;

/// What one reactor says to another, or the main thread to one. `from`, `pool`: indexes.
pub enum Message {
    /// All reactors, by index: they have started.
    Peers(Arc<[Peer]>),
    Asked {
        pool: u16,
        from: u16,
        ticket: u64,
        query: Arc<Query>,
    },
    Told {
        pool: u16,
        from: u16,
        ticket: u64,
        told: Told,
    },
    /// Lines for those who watch by MONITOR.
    Shown {
        pool: u16,
        lines: Arc<[u8]>,
    },
    /// Somebody wants to know all its numbers.
    Facts {
        to: Sender<ReactorFacts>,
    },
    /// That reactor has ended: what it has not answered it never will.
    Left {
        from: u16,
    },
    /// From the main thread: accept from now on, and tell `done`. `arrivals`: clients of the
    /// process before come, until `AllCame`, and it is to be told how.
    Listen {
        arrivals: Option<Sender<Arrival>>,
        done: Sender<()>,
    },
    AllCame,
    /// A client's socket: of one that another reactor has accepted, or of the process before this
    /// one, with what came along.
    Adopt {
        pool: u16,
        fd: OwnedFd,
        parcel: Option<Vec<u8>>,
    },
    /// From the main thread: another process has taken over.
    HandOver(HandOver),
    /// From the main thread: other settings from now on.
    Configure(Arc<Fresh>),
    /// From the main thread: the answer to a `Wish`; which option was refused, and why.
    Granted {
        pool: u16,
        ticket: u64,
        refused: Option<(String, String)>,
    },
}

/// Settings that hold from now on, of one reactor.
pub struct Fresh {
    /// As many as there are, in their order.
    pub pools: Vec<Pool>,
    pub busy_poll: Duration,
    pub gather: Duration,
    pub memory_limit: u64,
    pub level: Level,
}

/// A client who may wants options changed.
#[derive(Debug)]
pub struct Wish {
    pub reactor: u16,
    pub pool: u16,
    pub ticket: u64,
    pub pairs: Vec<(String, String)>,
}

/// How clients go to the next process.
pub struct HandOver {
    pub deadline_ms: u64,
    /// For each pool, its index over there; `None`: it has none of that name.
    pub pools: Arc<[Option<u16>]>,
    pub heir: Sender<handover::Client>,
}

/// The way to one reactor.
#[derive(Clone)]
pub struct Peer {
    pub messages: Sender<Message>,
    pub waker: Waker,
}

impl Peer {
    /// What cannot be taken comes back.
    pub fn give(&self, message: Message) -> Result<(), Message> {
        self.send(message).map_err(TrySendError::into_inner)
    }

    /// `false`: it has ended.
    pub fn tell(&self, message: Message) -> bool {
        !matches!(self.send(message), Err(TrySendError::Disconnected(_)))
    }

    fn send(&self, message: Message) -> Result<(), TrySendError<Message>> {
        self.messages.try_send(message)?;
        self.waker.wake();
        Ok(())
    }
}

impl Worker {
    /// A proxy of ours asks all others.
    #[cold]
    pub(super) fn ask_peers(&mut self, pool: usize, ticket: u64, query: &Arc<Query>) {
        let (own, now) = (self.index, self.now);
        if let Query::Configure(pairs) = query.as_ref() {
            let wish = Wish { reactor: own, pool: pool as u16, ticket, pairs: pairs.clone() };
            // If nobody hears it any more the process ends.
            let _ = self.wishes.send(wish);
            return;
        }
        let peers = self.peers.clone();
        for (index, peer) in peers.iter().enumerate() {
            if index == usize::from(own) {
                continue;
            }
            let query = query.clone();
            if !peer.tell(Message::Asked { pool: pool as u16, from: own, ticket, query }) {
                self.proxies[pool].handle_peer_left(index as u16, now);
            }
        }
    }

    #[cold]
    fn configure(&mut self, fresh: &Fresh) {
        self.memory_limit = fresh.memory_limit;
        self.busy_poll = busy_poll(fresh.busy_poll);
        self.pace = Pace::new(fresh.gather);
        self.log.set_level(fresh.level);
        let now = self.now;
        for (index, (proxy, pool)) in self.proxies.iter_mut().zip(&fresh.pools).enumerate() {
            self.connect[index] = pool.connect;
            proxy.handle_settings(pool.proxy.clone(), pool.identity.clone(), now);
        }
    }

    /// What clients of ours ask, for reactors with clients that watch.
    #[cold]
    pub(super) fn show_peers(&mut self, pool: usize, to: &[u16], lines: &Arc<[u8]>) {
        for peer in to.iter().filter_map(|&index| self.peers.get(usize::from(index))) {
            // Where there is no room, or nobody any more, lines are missed.
            peer.tell(Message::Shown { pool: pool as u16, lines: lines.clone() });
        }
    }

    /// What is published in this turn has been waiting since before it: those who were told that
    /// they are subscribed before it was sent are on the board.
    pub(super) fn look_for_subscriptions(&mut self) {
        if self.peers.len() > 1 {
            let own = usize::from(self.index);
            let mut others = self.board.iter().enumerate().filter(|&(index, _)| index != own);
            let elsewhere = others.any(|(_, shown)| shown.is_subscribed());
            for proxy in &mut self.proxies {
                proxy.handle_subscriptions_elsewhere(elsewhere);
            }
        }
    }

    #[inline]
    pub(super) fn show_subscriptions(&mut self) {
        let subscribed = self.proxies.iter().any(Proxy::has_subscriptions);
        if subscribed != self.subscribed {
            self.subscribed = subscribed;
            self.board[usize::from(self.index)].show_subscribed(subscribed);
        }
    }

    /// Takes what the others have sent.
    pub(super) fn hear_peers(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            let now = self.now;
            match message {
                Message::Peers(peers) => {
                    let own = self.index;
                    let others: Vec<u16> =
                        (0..peers.len() as u16).filter(|&index| index != own).collect();
                    self.peers = peers;
                    for proxy in &mut self.proxies {
                        proxy.handle_peers(others.clone());
                    }
                }
                Message::Asked { pool, from, ticket, query } => {
                    let Some(proxy) = self.proxies.get_mut(usize::from(pool)) else { continue };
                    let told = proxy.handle_asked(from, &query, now);
                    if *query == Query::ResetCounts {
                        // Before it says so: who asked reads what is published.
                        self.publish();
                    }
                    if let Some(peer) = self.peers.get(usize::from(from)) {
                        peer.tell(Message::Told { pool, from: self.index, ticket, told });
                    }
                }
                Message::Told { pool, from, ticket, told } => {
                    self.with(pool, |proxy| proxy.handle_told(ticket, from, told, now));
                }
                Message::Shown { pool, lines } => {
                    self.with(pool, |proxy| proxy.handle_shown(&lines, now));
                }
                Message::Facts { to } => self.tell_facts(&to),
                Message::Left { from } => {
                    self.proxies.iter_mut().for_each(|proxy| proxy.handle_peer_left(from, now));
                }
                Message::Listen { arrivals, done } => {
                    self.listen(arrivals);
                    let _ = done.try_send(());
                }
                Message::AllCame => self.note_all_came(),
                Message::Adopt { pool, fd, parcel } => self.adopt(pool, fd, parcel),
                Message::HandOver(how) => self.begin_to_hand_over(how),
                Message::Configure(fresh) => self.configure(&fresh),
                Message::Granted { pool, ticket, refused } => {
                    let told = Told::Granted(refused);
                    self.with(pool, |proxy| proxy.handle_told(ticket, MAIN, told, now));
                }
            }
        }
    }

    /// This reactor ends. First its channel does, then it says so: what was asked in between is
    /// answered by one or the other.
    pub(super) fn leave_peers(&mut self) {
        self.inbox = crossbeam_channel::never();
        for peer in self.peers.iter() {
            peer.tell(Message::Left { from: self.index });
        }
    }
}
