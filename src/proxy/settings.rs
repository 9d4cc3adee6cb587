//! Settings that change while clients are served: by the main thread, by what nodes say of
//! themselves, and CONFIG of clients.
//!
//! A change of one's password ends one's connections, as ACL LOAD of a server does; those of
//! `default` go on, as after CONFIG SET requirepass. Connections to nodes keep the login and the
//! options that they were made with.
//!
//! Not here: what may change (`config`), the words of CONFIG (`local`).

use std::sync::Arc;

use super::Proxy;
use super::client::Phase;
use super::dispatch::{Asked, Ran};
use super::local::{self, Identity, errors};
use super::types::{Now, Settings};
use crate::command::{Args, Command};
use crate::limits::NODE_READ_AHEAD;

/// Whom a CONFIG is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum ConfigOf {
    /// Answered at once, of the proxy.
    Proxy,
    /// The proxy's options are to be set.
    Options,
    Nodes,
    /// Some of both.
    Both,
}

impl Proxy {
    /// Other settings hold from now on.
    pub fn handle_settings(&mut self, settings: Settings, identity: Arc<Identity>, now: Now) {
        self.now = now;
        self.slow_after_ms = settings.slow_after_ms();
        self.slow_log.set_max(settings.slowlog_max_len);
        let old = std::mem::replace(&mut self.identity, identity);
        self.settings = settings;
        let (bulk_max, query_max) = self.node_bounds;
        self.handle_request_bounds(bulk_max, query_max);
        self.key_watch.set(self.settings.sample_keys);
        let open: Vec<u32> = self.clients.indexes().collect();
        for c in open {
            let session = &self.clients[c].session;
            let user = session.user.as_deref();
            let another = user.is_some() && old.mark_of(user) != self.identity.mark_of(user);
            let watches = session.monitors && !self.is_admin(c);
            if self.clients[c].phase == Phase::Open && (another || watches) {
                // What it asked before is still answered.
                self.handle_client_end(c, false);
            }
        }
    }

    /// What the nodes take in, as far as they tell: a word, a request. A larger one is refused as a
    /// node would refuse it; sent, it would end the connection that all clients share.
    pub fn handle_request_bounds(&mut self, bulk_max: Option<u64>, query_max: Option<u64>) {
        self.node_bounds = (bulk_max, query_max);
        let own = self.settings.client_query_limit as u64;
        let whole = query_max.unwrap_or(u64::MAX).saturating_sub(NODE_READ_AHEAD);
        let bulk = bulk_max.unwrap_or(u64::MAX).min(self.settings.client_bulk_limit);
        for limits in [&mut self.limits, &mut self.limits_unauthenticated] {
            limits.total_max = own.min(whole);
        }
        self.limits.bulk_max = bulk;
    }

    /// How many databases each node has, if that is known.
    pub fn handle_databases(&mut self, count: Option<u64>) {
        self.databases.announced = count;
    }

    /// Whom a CONFIG GET, SET, RESETSTAT or REWRITE is for.
    pub(super) fn config_of(&self, command: &Command, args: &Args) -> ConfigOf {
        let nodes = self.settings.allow_config;
        let own = |name| local::is_own_option(name, &self.identity, nodes);
        let others = if nodes { ConfigOf::Nodes } else { ConfigOf::Proxy };
        match command.name {
            // Refused, without a look at each.
            "CONFIG|GET" | "CONFIG|SET" if args.len() > local::CONFIG_WORDS_MAX => ConfigOf::Proxy,
            "CONFIG|GET" if args.iter().skip(2).all(own) => ConfigOf::Proxy,
            "CONFIG|SET" if args.len() % 2 == 0 => {
                let names = || args.iter().skip(2).step_by(2);
                match (names().all(own), names().any(own)) {
                    (true, _) => ConfigOf::Options,
                    (false, true) if nodes => ConfigOf::Both,
                    _ => others,
                }
            }
            "CONFIG|GET" | "CONFIG|SET" | "CONFIG|RESETSTAT" | "CONFIG|REWRITE" => others,
            _ => ConfigOf::Proxy,
        }
    }

    /// A CONFIG that is not answered at once.
    pub(super) fn run_config(&mut self, whom: ConfigOf, asked: Asked, args: &Args) -> Ran {
        let c = asked.client;
        match whom {
            ConfigOf::Nodes if asked.command.name == "CONFIG|GET" => self.run_any_node(asked, args),
            ConfigOf::Nodes => {
                if asked.command.name == "CONFIG|RESETSTAT" {
                    // Ours are among what INFO shows beside theirs.
                    self.reset_all_counts();
                }
                self.run_every_node(asked, args)
            }
            ConfigOf::Both => self.answer_with(c, errors::mixed_options),
            ConfigOf::Options if self.is_admin(c) => self.run_together(asked, args),
            // Setting what already holds is answered OK where a server has the option, too.
            ConfigOf::Options if !self.settings.allow_config && local::all_known(args) => {
                self.run_local(asked, args)
            }
            ConfigOf::Options => self.refuse_user(c, "config|set"),
            // RESETSTAT: who is told OK sees no old count of another reactor.
            ConfigOf::Proxy if self.asks_peers(asked.command) => self.run_together(asked, args),
            ConfigOf::Proxy => self.run_local(asked, args),
        }
    }
}
