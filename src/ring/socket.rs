//! Sockets and their options: listeners, connections to nodes, addresses.
//!
//! Not here: operations on them (`queue`), when they are closed (`mod`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use socket2::Domain;
use socket2::Protocol;
use socket2::SockRef;
use socket2::Socket;
use socket2::TcpKeepalive;
use socket2::Type;

use crate::limits::KEEPALIVE_IDLE_S;
use crate::limits::KEEPALIVE_INTERVAL_S;
use crate::limits::KEEPALIVE_PROBES;
use crate::limits::LISTEN_BACKLOG_DEFAULT;

/// A listening socket, to be given to one ring.
#[derive(Debug)]
pub struct Listener {
    pub(super) fd: OwnedFd,
    address: SocketAddr,
    open: bool,
}

impl Listener {
    /// listen(2), if it was not called yet. `backlog` None: `net.core.somaxconn`.
    pub fn open(&mut self, backlog: Option<i32>) -> io::Result<()> {
        if !self.open {
            SockRef::from(&self.fd).listen(backlog.unwrap_or_else(somaxconn))?;
            self.open = true;
        }
        Ok(())
    }

    /// Where it listens; the port is the real one if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same socket once more: its queue is one, and it stays open as long as either.
    pub fn share(&self) -> io::Result<Inherited> {
        Ok(Inherited { fd: self.fd.try_clone()?, address: self.address })
    }
}

/// A listening socket that another process has opened: the one before us, or the service manager.
#[derive(Debug)]
pub struct Inherited {
    pub fd: OwnedFd,
    pub address: SocketAddr,
}

impl Inherited {
    /// Error: it is no listening TCP socket.
    pub fn new(fd: OwnedFd) -> io::Result<Inherited> {
        let socket = SockRef::from(&fd);
        if !socket.is_listener()? || socket.r#type()? != Type::STREAM {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let address = socket_address(socket.local_addr()?)?;
        Ok(Inherited { fd, address })
    }

    /// Whether further sockets may listen at its address.
    pub fn may_be_joined(&self) -> bool {
        SockRef::from(&self.fd).reuse_port().unwrap_or(false)
    }

    /// With what `listen` would have set; the address is as it was bound.
    pub fn adopt(self) -> io::Result<Listener> {
        let socket = SockRef::from(&self.fd);
        // As the ring wants it; service managers may have chosen otherwise.
        socket.set_nonblocking(false)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive())?;
        Ok(Listener { fd: self.fd, address: self.address, open: true })
    }
}

/// How a connection to a node is made.
#[derive(Copy, Clone, Debug, Default)]
pub struct ConnectOptions {
    /// TCP_USER_TIMEOUT: how long sent bytes may stay unacknowledged. None: the kernel's rule.
    pub user_timeout: Option<Duration>,
}

/// Listens on `address` with SO_REUSEPORT: each reactor has its own listener there, and the
/// kernel spreads connections by hash. (One listener shared by several rings gives all
/// connections to one of them: io-uring.md 0.5.)
///
/// TCP_NODELAY and keepalive are set here once: accepted sockets inherit them. An IPv6 address
/// takes IPv6 only. `backlog` None: `net.core.somaxconn`.
pub fn listen(address: SocketAddr, backlog: Option<i32>) -> io::Result<Listener> {
    let mut listener = bind(address)?;
    listener.open(backlog)?;
    Ok(listener)
}

/// As `listen`, but clients are taken in only from `Listener::open` on: until then the kernel gives
/// none to this socket.
pub fn bind(address: SocketAddr) -> io::Result<Listener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive())?;
    socket.bind(&address.into())?;
    let address = socket_address(socket.local_addr()?)?;
    Ok(Listener { fd: socket.into(), address, open: false })
}

/// An unconnected socket for a connection to `address`: blocking, as the ring wants it.
pub(super) fn node_socket(address: &SocketAddr, options: &ConnectOptions) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive())?;
    if options.user_timeout.is_some() {
        socket.set_tcp_user_timeout(options.user_timeout)?;
    }
    Ok(socket.into())
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(KEEPALIVE_IDLE_S))
        .with_interval(Duration::from_secs(KEEPALIVE_INTERVAL_S))
        .with_retries(KEEPALIVE_PROBES)
}

/// The longest backlog that the kernel grants.
pub fn somaxconn() -> i32 {
    std::fs::read_to_string("/proc/sys/net/core/somaxconn")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(LISTEN_BACKLOG_DEFAULT)
}

pub(super) fn peer_address(fd: &OwnedFd) -> io::Result<SocketAddr> {
    socket_address(SockRef::from(fd).peer_addr()?)
}

pub(super) fn local_address(fd: &OwnedFd) -> io::Result<SocketAddr> {
    socket_address(SockRef::from(fd).local_addr()?)
}

/// Whether the stream is over and everything of it was read. One recv(2), no wait.
pub(super) fn is_at_end(fd: &OwnedFd) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    matches!(SockRef::from(fd).recv_with_flags(&mut byte, flags), Ok(0))
}

/// Says goodbye in both directions; a peer that is already gone is no error.
pub(super) fn shut_down(fd: &OwnedFd) {
    let _ = SockRef::from(fd).shutdown(std::net::Shutdown::Both);
}

fn socket_address(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
}

/// A descriptor to give up when there is none else.
pub(super) fn spare_descriptor() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/dev/null")?.into())
}

/// Accepts without waiting.
pub(super) fn accept_now(fd: &OwnedFd) -> io::Result<Socket> {
    let listener = SockRef::from(fd);
    listener.set_nonblocking(true)?;
    let accepted = listener.accept();
    // The ring wants it blocking.
    listener.set_nonblocking(false)?;
    // `accept` sets close-on-exec.
    accepted.map(|(socket, _)| socket)
}
