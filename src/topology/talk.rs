//! One conversation with one node: connect, log in, ask for the map.
//!
//! Not here: whom to ask and when (`schedule`), whether to believe the answer (`pool`).

use super::RequestBounds;
use super::pool::{Failure, Told};
use super::resolve::{Resolver, off_thread};
use super::settings::PoolSettings;
use crate::cluster::{
    Endpoint, Topology, TopologyError, read_cluster_info, read_nodes_text, read_shards, read_slots,
};
use crate::command::Learned;
use crate::limits::{CONVERSATION_BYTES_MAX, CONVERSATION_MS_MAX};
use crate::resp::reply::{ReplyScanner, Scanned};
use crate::resp::request::encode_request;
use crate::resp::value::{Value, parse_value};
use bytes::BytesMut;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio_uring::buf::BoundedBuf;
use tokio_uring::net::TcpStream;

const SHARDS: &[&[u8]] = &[b"CLUSTER", b"SHARDS"];
const SLOTS: &[&[u8]] = &[b"CLUSTER", b"SLOTS"];
const NODES: &[&[u8]] = &[b"CLUSTER", b"NODES"];
const COMMAND: &[&[u8]] = &[b"COMMAND"];
const INFO: &[&[u8]] = &[b"CLUSTER", b"INFO"];
const BULK_MAX: &[&[u8]] = &[b"CONFIG", b"GET", b"proto-max-bulk-len"];
const QUERY_MAX: &[&[u8]] = &[b"CONFIG", b"GET", b"client-query-buffer-limit"];
const DATABASES: &[&[u8]] = &[b"CONFIG", b"GET", b"cluster-databases"];

/// Addresses of one name that are tried.
const ADDRESSES_TRIED: usize = 4;
const CHUNK_BYTES: usize = 64 * 1024;

/// Whom to talk to.
pub(super) struct Place {
    pub(super) endpoint: Endpoint,
    /// None: `endpoint` is to be resolved.
    pub(super) address: Option<SocketAddr>,
}

/// Asks a node for the map. `last`: the map so far, `lost`: addresses to be chosen last. Names are
/// resolved anew if that of `place` is.
pub(super) async fn ask_map(
    place: Option<Place>,
    settings: &PoolSettings,
    resolver: &Resolver,
    last: Option<Arc<Topology>>,
    lost: &[SocketAddr],
) -> Result<Told, Failure> {
    let place = known(place)?;
    let (mut talk, asked) = connect(&place, settings, resolver).await?;
    let told = limited(settings, talk.map(settings, &asked)).await;
    talk.end();
    let (mut topology, ok, bounds) = told.map_err(|reason| failure(&place, true, &reason))?;
    for node in &mut topology.nodes {
        node.endpoint = settings.address_map.apply(&node.endpoint).into_owned();
    }
    resolver.resolve(&mut topology, last.as_deref(), lost, place.address.is_none()).await;
    Ok(Told { topology, ok, bounds, teller: place.endpoint.to_string().into() })
}

/// Asks a node which commands it knows.
pub(super) async fn ask_commands(
    place: Option<Place>,
    settings: &PoolSettings,
    resolver: &Resolver,
) -> Result<Learned, Failure> {
    let place = known(place)?;
    let (mut talk, _) = connect(&place, settings, resolver).await?;
    let learned = limited(settings, talk.commands(settings)).await;
    talk.end();
    learned.map_err(|reason| failure(&place, true, &reason))
}

async fn limited<T>(
    settings: &PoolSettings,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let limit = settings.request_timeout_ms.min(CONVERSATION_MS_MAX);
    let done = tokio::time::timeout(Duration::from_millis(limit), work).await;
    done.unwrap_or_else(|_| Err(format!("no answer within {limit} ms")))
}

fn known(place: Option<Place>) -> Result<Place, Failure> {
    place.ok_or_else(|| Failure { connected: false, reason: "no such seed".to_string() })
}

fn failure(place: &Place, connected: bool, reason: &str) -> Failure {
    Failure { connected, reason: format!("{}: {reason}", place.endpoint) }
}

/// A connection, and the place that it leads to as replies may refer to it: by name, or by address
/// where a name has several.
async fn connect(
    place: &Place,
    settings: &PoolSettings,
    resolver: &Resolver,
) -> Result<(Talk, Endpoint), Failure> {
    let Endpoint { host, port } = &place.endpoint;
    let addresses = match place.address {
        Some(address) => vec![address.ip()],
        None => resolver.lookup(host, 0).await,
    };
    let mut reason = "its name does not resolve".to_string();
    let timeout = Duration::from_millis(settings.connect_timeout_ms.max(1));
    for &ip in addresses.iter().take(ADDRESSES_TRIED) {
        let address = place.address.unwrap_or(SocketAddr::new(ip, *port));
        // In a thread, as io_uring's connect cannot be taken back: a black hole would keep the
        // descriptor for minutes.
        let attempt = off_thread(move || std::net::TcpStream::connect_timeout(&address, timeout));
        match attempt.await {
            Some(Ok(stream)) => {
                let host = match *addresses {
                    [_] => host.clone(),
                    _ => ip.to_string().into(),
                };
                let _ = stream.set_nodelay(true);
                let talk = Talk::new(TcpStream::from_std(stream));
                return Ok((talk, Endpoint { host, port: *port }));
            }
            Some(Err(error)) => reason = error.to_string(),
            None => reason = "no thread to connect in".to_string(),
        }
    }
    Err(failure(place, false, &reason))
}

struct Talk {
    stream: TcpStream,
    /// What has come and was not yet read as a reply.
    received: BytesMut,
    total: usize,
}

impl Talk {
    fn new(stream: TcpStream) -> Talk {
        Talk { stream, received: BytesMut::new(), total: 0 }
    }

    /// Ends a read that is still going on, which otherwise would keep the descriptor.
    fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The map as told, whether the node says that the cluster is ok, and what it takes in.
    async fn map(
        &mut self,
        settings: &PoolSettings,
        asked: &Endpoint,
    ) -> Result<(Topology, bool, RequestBounds), String> {
        let all = [SHARDS, NODES, INFO, BULK_MAX, QUERY_MAX, DATABASES];
        let refusal = self.begin(settings, &all).await?;
        let shards = self.reply().await?;
        let lines = self.reply().await?;
        let info = self.reply().await?;
        let bounds = RequestBounds {
            bulk_max: number_of(&self.reply().await?),
            query_max: number_of(&self.reply().await?),
            databases: number_of(&self.reply().await?),
        };
        let read = match read_shards(&shards, asked) {
            // Before 7.0 there is no SHARDS.
            Err(TopologyError::Refused(_)) => {
                self.write(&[SLOTS]).await?;
                read_slots(&self.reply().await?, asked)
            }
            read => read,
        };
        let mut topology = read.map_err(|error| format!("{refusal}{error}"))?;
        topology.take_lines(&read_nodes_text(lines.as_bytes().unwrap_or_default()));
        let Some(info) = info.as_bytes() else {
            // Not allowed to ask: the slots alone must do.
            return Ok((topology, true, bounds));
        };
        let info = read_cluster_info(info);
        topology.epoch = topology.epoch.max(info.epoch);
        Ok((topology, info.ok, bounds))
    }

    async fn commands(&mut self, settings: &PoolSettings) -> Result<Learned, String> {
        let refusal = self.begin(settings, &[COMMAND]).await?;
        match self.reply().await? {
            Value::Error(text) => Err(format!("{refusal}{}", String::from_utf8_lossy(&text))),
            reply => Ok(Learned::from_command_reply(&reply)),
        }
    }

    /// Logs in, if so configured, and sends the requests behind it in the same write. What the node
    /// said against the login is for the error message only: one without a password refuses every
    /// login and answers all else.
    async fn begin(
        &mut self,
        settings: &PoolSettings,
        requests: &[&[&[u8]]],
    ) -> Result<String, String> {
        let Some(login) = login(settings) else {
            self.write(requests).await?;
            return Ok(String::new());
        };
        let mut all = vec![&*login];
        all.extend_from_slice(requests);
        self.write(&all).await?;
        Ok(match self.reply().await? {
            Value::Error(text) => format!("AUTH: {}; ", String::from_utf8_lossy(&text)),
            _ => String::new(),
        })
    }

    async fn write(&mut self, requests: &[&[&[u8]]]) -> Result<(), String> {
        let mut bytes = Vec::new();
        for request in requests {
            encode_request(request.iter().copied(), &mut bytes);
        }
        let (result, _) = self.stream.write_all(bytes).await;
        result.map_err(|error| error.to_string())
    }

    async fn reply(&mut self) -> Result<Value, String> {
        let mut scanner = ReplyScanner::default();
        let mut scanned = 0;
        let end = loop {
            let news = self.received.get(scanned..).unwrap_or_default();
            if !news.is_empty() {
                match scanner.scan(news).map_err(|error| error.to_string())? {
                    Scanned::Complete { len } => break scanned + len,
                    Scanned::Partial => scanned = self.received.len(),
                }
            }
            self.receive().await?;
        };
        let frame = self.received.split_to(end.min(self.received.len()));
        match parse_value(&frame).map_err(|error| error.to_string())? {
            Some((value, _)) => Ok(value),
            None => Err("a reply without its end".to_string()),
        }
    }

    async fn receive(&mut self) -> Result<(), String> {
        let mut buffer = std::mem::take(&mut self.received);
        buffer.reserve(CHUNK_BYTES);
        let at = buffer.len();
        let (result, buffer) = self.stream.read(buffer.slice(at..)).await;
        self.received = buffer.into_inner();
        let len = result.map_err(|error| error.to_string())?;
        self.total += len;
        if len == 0 {
            return Err("the node closed the connection".to_string());
        }
        if self.total > CONVERSATION_BYTES_MAX {
            return Err(format!("more than {CONVERSATION_BYTES_MAX} bytes of replies"));
        }
        Ok(())
    }
}

/// The value of the one parameter in an answer to CONFIG GET. `None`: the node does not tell, or
/// not us.
fn number_of(reply: &Value) -> Option<u64> {
    let value = match reply {
        Value::Array(items) => items.get(1)?.as_bytes()?,
        _ => return None,
    };
    // 0 is "no limit" where there is such a thing.
    std::str::from_utf8(value).ok()?.parse().ok().filter(|&number| number > 0)
}

fn login(settings: &PoolSettings) -> Option<Vec<&[u8]>> {
    let password = settings.password.as_ref()?.reveal();
    Some(match &settings.user {
        Some(user) => vec![b"AUTH", user.as_bytes(), password],
        None => vec![b"AUTH", password],
    })
}
