//! The two sides of a comparison: one plain server, and the proxy in front of a cluster of the same
//! program.
//!
//! Not here: what is compared. `RINGWAY_CONFORMANCE=plain` puts a second plain server in the
//! proxy's place, which must show no difference: that tests the tests. `=node` puts a cluster of
//! one node there, which shows what the nodes themselves do differently.

use crate::support::client::Client;
use crate::support::cluster::{Cluster, Flavour, Node, Shape, Single};
use crate::support::proxy::Proxy;

pub struct Bench {
    pub flavour: Flavour,
    plain: Single,
    judged: Judged,
}

enum Judged {
    Proxied { proxy: Box<Proxy>, cluster: Cluster },
    Plain(Single),
    Node(Cluster),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Plain,
    Judged,
}

impl Bench {
    pub fn start(flavour: Flavour) -> Bench {
        let judged = match std::env::var("RINGWAY_CONFORMANCE").as_deref() {
            Ok("plain") => Judged::Plain(Single::start(flavour)),
            Ok("node") => {
                Judged::Node(Cluster::start(Shape { flavour, primaries: 1, ..Shape::default() }))
            }
            _ => {
                let cluster = Cluster::three(flavour);
                Judged::Proxied { proxy: Box::new(Proxy::start(&cluster)), cluster }
            }
        };
        Bench { flavour, plain: Single::start(flavour), judged }
    }

    pub fn port(&self, side: Side) -> u16 {
        match (side, &self.judged) {
            (Side::Plain, _) => self.plain.node.port,
            (Side::Judged, Judged::Proxied { proxy, .. }) => proxy.port,
            (Side::Judged, Judged::Plain(single)) => single.node.port,
            (Side::Judged, Judged::Node(cluster)) => cluster.nodes[0].port,
        }
    }

    #[track_caller]
    pub fn client(&self, side: Side, resp3: bool) -> Client {
        let port = self.port(side);
        if resp3 { Client::connect_resp3(port) } else { Client::connect(port) }
    }

    /// Runs a command at all servers themselves.
    pub fn direct(&self, args: &[Vec<u8>]) {
        for node in self.servers() {
            node.client().call(args);
        }
    }

    /// No keys, no scripts anywhere.
    pub fn empty(&self) {
        for node in self.servers() {
            node.client().pipeline(&["FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH"]);
        }
    }

    /// Upper-case names of all commands of the plain server, subcommands as `CONTAINER|SUB`.
    pub fn command_names(&self) -> Vec<String> {
        let reply = self.plain.node.run("COMMAND LIST");
        reply.items().iter().map(|item| item.string().to_uppercase()).collect()
    }

    /// How often nodes behind the proxy ran a row of the table.
    pub fn calls_at_nodes(&self, name: &str) -> u64 {
        match &self.judged {
            Judged::Proxied { cluster, .. } => cluster.calls(&name.to_lowercase()),
            Judged::Plain(_) | Judged::Node(_) => 0,
        }
    }

    fn servers(&self) -> Vec<&Node> {
        let judged = match &self.judged {
            Judged::Proxied { cluster, .. } | Judged::Node(cluster) => cluster.primaries(),
            Judged::Plain(single) => std::slice::from_ref(&single.node),
        };
        judged.iter().chain([&self.plain.node]).collect()
    }
}
