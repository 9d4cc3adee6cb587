//! A process takes over from the one before it: first its listening sockets, then, when it can
//! serve, its clients. Until it says so the old one is in charge and knows no difference.
//!
//! ```text
//!      new                              old
//!       │ HELLO version, pid ──────────► │
//!       │ ◄─── LISTENER address + socket │  (each)
//!       │ ◄────────── OFFER pid, next id │
//!  start, ask for the map                │  serves on; if we leave, so be it
//!       │ TAKE OVER names of pools ────► │  stops accepting
//!       │ ◄─────── CLIENT parcel + socket│  (each, between two of its replies)
//!       │ ◄──────────────────────── DONE │  ends
//! ```
//! Only a process of the same user (or root) is spoken with.
//!
//! Not here: what is in a parcel (`proxy/parcel`), who listens where and when threads start
//! (`serve`), descriptors on a socket (`ring/pass`).

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::limits::{HANDOVER_ANSWER_MS, HANDOVER_READY_MS};
use crate::ring::{Channel, Inherited, Passed, peer_user, user};

/// Of this conversation and of what is in a parcel.
const VERSION: u8 = 2;

const HELLO: u8 = b'H';
const LISTENER: u8 = b'L';
const OFFER: u8 = b'O';
const TAKE_OVER: u8 = b'T';
const CLIENT: u8 = b'C';
const DONE: u8 = b'D';
/// Instead of an offer: this process ends already, and its sockets with it.
const ENDING: u8 = b'E';

const ANSWER: Duration = Duration::from_millis(HANDOVER_ANSWER_MS);
/// The new one starts its threads and asks for the map meanwhile.
const READY: Duration = Duration::from_millis(HANDOVER_READY_MS + HANDOVER_ANSWER_MS);

// --- the new process --------------------------------------------------------------------------

/// What the old process has offered. Dropped: it stays in charge.
#[derive(Debug)]
pub struct Offer {
    channel: Channel,
    pub listeners: Vec<Inherited>,
    pub pid: u32,
    /// Its clients' ids are below.
    pub next_client_id: u64,
}

/// Clients of the old process, as they come.
#[derive(Debug)]
pub struct Clients {
    channel: Channel,
}

/// One of them.
#[derive(Debug)]
pub struct Client {
    /// Index into the names that were said.
    pub pool: u16,
    pub parcel: Vec<u8>,
    pub fd: OwnedFd,
}

/// Asks the process that listens at `path`. `None`: there is none. Errors in one line.
pub fn ask(path: &Path) -> Result<Option<Offer>, String> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                // Nobody has ever been there, or who was there has died.
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(said(path, &error)),
            };
        }
    };
    let peer = peer_user(&stream).map_err(|error| said(path, &error))?;
    if !is_friend(peer) {
        return Err(format!(
            "handover_socket {}: a process of user {peer} listens there, not of ours ({}) or root",
            path.display(),
            user()
        ));
    }
    offered(stream).map_err(|error| said(path, &error))
}

fn said(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    let hint = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the process there does not answer",
        io::ErrorKind::UnexpectedEof => {
            "the process there does not hand over (it speaks another version, or has just ended)"
        }
        io::ErrorKind::PermissionDenied => "it belongs to another user",
        _ => "cannot ask the process there",
    };
    format!("handover_socket {shown}: {hint}: {error}")
}

/// `None`: that process ends by itself.
fn offered(stream: UnixStream) -> io::Result<Option<Offer>> {
    let mut channel = Channel::new(stream, ANSWER)?;
    let mut hello = vec![VERSION];
    hello.extend_from_slice(&std::process::id().to_le_bytes());
    channel.send(HELLO, &hello, None)?;
    let mut listeners = Vec::new();
    loop {
        let frame = channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match frame {
            Passed { kind: LISTENER, fd: Some(fd), .. } => listeners.push(Inherited::new(fd)?),
            Passed { kind: OFFER, bytes, .. } if bytes.len() == 12 => {
                let (pid, next) = bytes.split_at(4);
                let pid = u32::from_le_bytes(pid.try_into().unwrap_or_default());
                let next_client_id = u64::from_le_bytes(next.try_into().unwrap_or_default());
                return Ok(Some(Offer { channel, listeners, pid, next_client_id }));
            }
            Passed { kind: ENDING, .. } => return Ok(None),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Offer {
    /// From here on we are in charge: the old process stops accepting and gives its clients away.
    pub fn take_over<'a>(mut self, pools: impl Iterator<Item = &'a str>) -> io::Result<Clients> {
        let names: Vec<&str> = pools.collect();
        self.channel.send(TAKE_OVER, names.join("\n").as_bytes(), None)?;
        Ok(Clients { channel: self.channel })
    }
}

impl Clients {
    /// How long the next one may take to come: some are in the middle of something.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.channel.set_patience(patience)
    }

    /// The next client; `None`: that was all.
    pub fn receive(&mut self) -> io::Result<Option<Client>> {
        match self.channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)? {
            Passed { kind: CLIENT, mut bytes, fd: Some(fd) } if bytes.len() >= 2 => {
                let parcel = bytes.split_off(2);
                let pool = u16::from_le_bytes([bytes[0], bytes[1]]);
                Ok(Some(Client { pool, parcel, fd }))
            }
            Passed { kind: DONE, .. } => Ok(None),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

// --- the old process --------------------------------------------------------------------------

/// What the next process asked for.
#[derive(Debug)]
pub struct TakenOver {
    /// Its pools, in the order by which clients name them.
    pub pools: Vec<String>,
    pub pid: u32,
    pub heir: Heir,
}

/// What the door tells.
#[derive(Debug)]
pub enum Knock {
    /// Somebody prepares to take over: one of the others follows.
    Came,
    TakenOver(TakenOver),
    /// Somebody came and left, or was sent away, and why.
    Left {
        pid: u32,
        why: String,
    },
}

/// Where the next process will knock.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    pub knocks: Receiver<Knock>,
    /// Shared copies of our listening sockets. Empty: nothing is handed over any more.
    listeners: Arc<Mutex<Vec<Inherited>>>,
    /// Of our socket: at the path may be another's by now.
    inode: u64,
}

/// How many ids are kept free for clients that still come while another process starts.
pub const IDS_SPARE: u64 = 1 << 20;

impl Door {
    /// Listens at `path`, in the place of whoever was there. `next_client_id` is asked when one
    /// knocks.
    pub fn open(
        path: &Path,
        listeners: Vec<Inherited>,
        next_client_id: impl Fn() -> u64 + Send + 'static,
    ) -> Result<Door, String> {
        let failed = |error: io::Error| format!("handover_socket {}: {error}", path.display());
        // Bound beside it and moved, so that at any time one of us is there.
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside).map_err(failed)?;
        let inode = fs::metadata(&beside).map_or(0, |facts| facts.ino());
        let ready = fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&beside, path));
        if let Err(error) = ready {
            let _ = fs::remove_file(&beside);
            return Err(failed(error));
        }
        let (tell, knocks) = unbounded();
        let listeners = Arc::new(Mutex::new(listeners));
        let shared = listeners.clone();
        std::thread::Builder::new()
            .name("handover".into())
            .spawn(move || wait_at(&listener, &shared, &next_client_id, &tell))
            .map_err(failed)?;
        Ok(Door { path: path.to_owned(), knocks, listeners, inode })
    }

    /// Lets go of the listening sockets: who knocks from now on is sent away.
    pub fn shut(&self) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shut();
        if fs::metadata(&self.path).is_ok_and(|facts| facts.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// One after the other, until one has taken over.
fn wait_at(
    door: &UnixListener,
    listeners: &Mutex<Vec<Inherited>>,
    next_client_id: &dyn Fn() -> u64,
    tell: &Sender<Knock>,
) {
    for stream in door.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors, as a rule.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        match peer_user(&stream) {
            Ok(peer) if is_friend(peer) => (),
            Ok(peer) => {
                let why = format!("it is of user {peer}, not of ours or root");
                let _ = tell.send(Knock::Left { pid: 0, why });
                continue;
            }
            Err(_) => continue,
        }
        let mut pid = 0;
        let came = || drop(tell.send(Knock::Came));
        let knock = match hand_over(stream, listeners, next_client_id(), &mut pid, &came) {
            Ok(taken) => Knock::TakenOver(taken),
            Err(error) => Knock::Left { pid, why: reason(&error) },
        };
        let last = matches!(knock, Knock::TakenOver(_));
        if tell.send(knock).is_err() || last {
            return;
        }
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it has ended before it could serve".into(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "it could not serve in time, or says nothing".into()
        }
        io::ErrorKind::InvalidData => "it speaks another version".into(),
        io::ErrorKind::NotConnected => "this process ends already".into(),
        _ => error.to_string(),
    }
}

fn hand_over(
    stream: UnixStream,
    listeners: &Mutex<Vec<Inherited>>,
    next_client_id: u64,
    pid: &mut u32,
    came: &dyn Fn(),
) -> io::Result<TakenOver> {
    let mut channel = Channel::new(stream, ANSWER)?;
    let hello = channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let version = hello.bytes.first().copied();
    if hello.kind != HELLO || version != Some(VERSION) || hello.bytes.len() != 5 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    *pid = u32::from_le_bytes(hello.bytes[1..].try_into().unwrap_or_default());
    {
        let listeners = listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if listeners.is_empty() {
            channel.send(ENDING, &[], None)?;
            return Err(io::ErrorKind::NotConnected.into());
        }
        for listener in listeners.iter() {
            let address: SocketAddr = listener.address;
            let fd = Some(listener.fd.as_fd());
            channel.send(LISTENER, address.to_string().as_bytes(), fd)?;
        }
    }
    let mut offer = std::process::id().to_le_bytes().to_vec();
    offer.extend_from_slice(&next_client_id.to_le_bytes());
    channel.send(OFFER, &offer, None)?;
    came();
    channel.set_patience(READY)?;
    let taken = channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if taken.kind != TAKE_OVER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let names = String::from_utf8_lossy(&taken.bytes).into_owned();
    let pools = names.lines().map(str::to_owned).collect();
    channel.set_patience(ANSWER)?;
    Ok(TakenOver { pools, pid: *pid, heir: Heir { channel } })
}

/// The way to the process that has taken over.
#[derive(Debug)]
pub struct Heir {
    channel: Channel,
}

impl Heir {
    /// Gives clients away as they come, until nobody sends any more. How many; and why not all, if
    /// the other process has died.
    pub fn give(mut self, clients: &Receiver<Client>) -> (u64, Option<io::Error>) {
        let mut given = 0;
        for client in clients {
            let mut bytes = client.pool.to_le_bytes().to_vec();
            bytes.extend_from_slice(&client.parcel);
            if let Err(error) = self.channel.send(CLIENT, &bytes, Some(client.fd.as_fd())) {
                return (given, Some(error));
            }
            given += 1;
        }
        (given, self.channel.send(DONE, &[], None).err())
    }
}

fn is_friend(peer: u32) -> bool {
    peer == user() || peer == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn path(what: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ringway-handover-{}-{what}", std::process::id()))
    }

    fn listening() -> (Inherited, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (Inherited::new(listener.into()).unwrap(), address)
    }

    #[test]
    fn sockets_and_clients_go_over_and_the_path_stays_with_the_new_one() {
        let path = path("over");
        let (listener, address) = listening();
        let door = Door::open(&path, vec![listener], || 77).unwrap();
        let offer = ask(&path).unwrap().expect("somebody is there");
        assert_eq!((offer.next_client_id, offer.pid), (77, std::process::id()));
        assert_eq!(offer.listeners[0].address, address);
        let waits = TcpStream::connect(address).unwrap();
        let mut clients = offer.take_over(["one", "two"].into_iter()).unwrap();
        assert!(matches!(door.knocks.recv(), Ok(Knock::Came)));
        let Ok(Knock::TakenOver(taken)) = door.knocks.recv() else { panic!("not taken over") };
        let next = Door::open(&path, vec![listening().0], || 78).unwrap();
        assert_eq!(taken.pools, ["one", "two"]);
        let (send, receive) = unbounded();
        let parcel = vec![7; 100_000];
        send.send(Client { pool: 1, parcel: parcel.clone(), fd: waits.into() }).unwrap();
        drop(send);
        let giving = std::thread::spawn(move || taken.heir.give(&receive).0);
        let came = clients.receive().unwrap().expect("a client");
        assert_eq!((came.pool, came.parcel), (1, parcel));
        let peer = TcpStream::from(came.fd).peer_addr().unwrap();
        assert_eq!(peer, address);
        assert!(clients.receive().unwrap().is_none());
        assert_eq!(giving.join().unwrap(), 1);
        drop(door);
        assert!(path.exists(), "it is another's now");
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn new_process_that_leaves_changes_nothing() {
        let path = path("leaves");
        let (listener, _) = listening();
        let door = Door::open(&path, vec![listener], || 1).unwrap();
        drop(ask(&path).unwrap().expect("somebody is there"));
        assert!(matches!(door.knocks.recv(), Ok(Knock::Came)));
        let Ok(Knock::Left { pid, why }) = door.knocks.recv() else { panic!("taken over") };
        assert_eq!(pid, std::process::id());
        assert!(why.contains("ended before it could serve"), "{why}");
        assert_eq!(ask(&path).unwrap().expect("still there").listeners.len(), 1);
        door.shut();
        assert!(ask(&path).unwrap().is_none(), "it ends");
        drop(door);
        assert!(!path.exists() && ask(&path).unwrap().is_none());
    }

    #[test]
    fn socket_is_for_its_owner_only_and_a_dead_one_is_replaced() {
        let path = path("mode");
        drop(UnixListener::bind(&path).unwrap());
        assert!(ask(&path).unwrap().is_none(), "nobody listens there");
        let door = Door::open(&path, vec![listening().0], || 1).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(door);
    }

    #[test]
    fn another_version_is_sent_away() {
        let path = path("version");
        let door = Door::open(&path, vec![listening().0], || 1).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        let mut channel = Channel::new(stream, ANSWER).unwrap();
        channel.send(HELLO, &[VERSION + 1, 0, 0, 0, 0], None).unwrap();
        assert!(channel.receive().unwrap().is_none());
        let Ok(Knock::Left { why, .. }) = door.knocks.recv() else { panic!("taken over") };
        assert!(why.contains("version"), "{why}");
    }
}
