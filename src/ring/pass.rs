//! Descriptors from one process to another over a socket of the host (unix(7), SCM_RIGHTS), in
//! frames: a kind, bytes, and with some of them one descriptor.
//!
//! Not here: what frames mean (`handover`).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::limits::HANDOVER_FRAME_MAX;

/// One frame.
#[derive(Debug)]
pub struct Passed {
    pub kind: u8,
    pub bytes: Vec<u8>,
    pub fd: Option<OwnedFd>,
}

/// One end of a conversation. Calls block, at most for its patience.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    /// Came with bytes that were read, and belong to the next frames that have one.
    fds: VecDeque<OwnedFd>,
}

/// Kind, length, whether a descriptor comes with it.
const HEADER: usize = 6;

/// Room for one descriptor with its header, aligned as the kernel wants it.
#[repr(C)]
union Control {
    header: libc::cmsghdr,
    bytes: [u8; 64],
}

impl Channel {
    pub fn new(stream: UnixStream, patience: Duration) -> io::Result<Channel> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Channel { stream, fds: VecDeque::new() })
    }

    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))?;
        self.stream.set_write_timeout(Some(patience))
    }

    /// The descriptor is copied to the other side, not moved: ours is still to be closed.
    pub fn send(&mut self, kind: u8, bytes: &[u8], fd: Option<BorrowedFd>) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).ok().filter(|&len| len <= HANDOVER_FRAME_MAX);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?;
        let mut frame = Vec::with_capacity(HEADER + bytes.len());
        frame.push(kind);
        frame.push(u8::from(fd.is_some()));
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(bytes);
        let sent = match fd {
            Some(fd) => self.send_with(&frame, fd)?,
            None => 0,
        };
        self.stream.write_all(&frame[sent..])
    }

    /// The next frame; `None`: the other side has ended in good order.
    pub fn receive(&mut self) -> io::Result<Option<Passed>> {
        let mut header = [0; HEADER];
        if self.fill(&mut header[..1])? == 0 {
            return Ok(None);
        }
        self.fill_whole(&mut header[1..])?;
        let [kind, with_fd, length @ ..] = header;
        let length = u32::from_le_bytes(length);
        if length > HANDOVER_FRAME_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length as usize];
        self.fill_whole(&mut bytes)?;
        let fd = match with_fd {
            0 => None,
            _ => Some(self.fds.pop_front().ok_or(io::ErrorKind::InvalidData)?),
        };
        Ok(Some(Passed { kind, bytes, fd }))
    }

    fn fill_whole(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.fill(into)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => into = &mut into[count..],
            }
        }
        Ok(())
    }

    /// As read(2), and keeps descriptors that come along.
    fn fill(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut control = Control { bytes: [0; 64] };
        let mut piece = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: a msghdr of zeros is valid: no name, no pieces, no control data.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>();
        let fd = self.stream.as_raw_fd();
        // SAFETY: the message names `into` and `control`, which outlive the call, with their sizes.
        let count = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if count < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                return self.fill(into);
            }
            return Err(error);
        }
        self.take_descriptors(&message)?;
        Ok(count as usize)
    }

    fn take_descriptors(&mut self, message: &libc::msghdr) -> io::Result<()> {
        // SAFETY: the kernel has filled the control data and set its length.
        let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
        while !header.is_null() {
            // SAFETY: not null, so a header within the control data.
            let found = unsafe { *header };
            if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
                // SAFETY: the length of an empty one; numbers only.
                let empty = unsafe { libc::CMSG_LEN(0) } as usize;
                let count = (found.cmsg_len - empty) / size_of::<i32>();
                for at in 0..count {
                    // SAFETY: the kernel has put `count` descriptors behind the header, new and in
                    // nobody else's hands.
                    let fd = unsafe {
                        let numbers = libc::CMSG_DATA(header).cast::<i32>();
                        OwnedFd::from_raw_fd(numbers.add(at).read_unaligned())
                    };
                    self.fds.push_back(fd);
                }
            }
            // SAFETY: both are the kernel's: the message it filled and a header in it.
            header = unsafe { libc::CMSG_NXTHDR(message, header) };
        }
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            // Some were lost: no room for them here, or none of our descriptors left.
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(())
    }

    /// Sends at least the first byte, and the descriptor with it. How many bytes.
    fn send_with(&mut self, frame: &[u8], fd: BorrowedFd) -> io::Result<usize> {
        let mut control = Control { bytes: [0; 64] };
        let mut piece =
            libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        // SAFETY: a msghdr of zeros is valid: no name, no pieces, no control data.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        // SAFETY: the sizes of one descriptor; numbers only. They fit `Control`.
        let (space, length) = unsafe {
            let size = size_of::<i32>() as u32;
            (libc::CMSG_SPACE(size) as usize, libc::CMSG_LEN(size) as usize)
        };
        message.msg_controllen = space;
        // SAFETY: the control data has room for a header and a descriptor, and is aligned for it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = length;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd.as_raw_fd());
        }
        // More of ours may be on the way than we may have open: the other side takes them off.
        for _ in 0..PATIENCE {
            let own = self.stream.as_raw_fd();
            // SAFETY: the message names `frame` and `control`, which outlive the call; read only.
            let sent = unsafe { libc::sendmsg(own, &raw const message, libc::MSG_NOSIGNAL) };
            if sent > 0 {
                return Ok(sent as usize);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ETOOMANYREFS) => std::thread::sleep(PAUSE),
                Some(libc::EINTR) => (),
                _ => return Err(error),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

const PAUSE: Duration = Duration::from_millis(2);
const PATIENCE: u32 = 1_000;

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The user whose process is at the other end; of a listening process, when it began to listen.
pub fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a pointer to a ucred of ours with its size, which is written.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if done == 0 { Ok(found.uid) } else { Err(io::Error::last_os_error()) }
}

/// What the service manager has opened for us (sd_listen_fds(3)): with the name of each, if it
/// said names. Once, before anything else is opened. `variable`: those of the environment. Error:
/// one of them is not open.
pub fn passed_at_start(
    variable: impl Fn(&str) -> Option<String>,
) -> io::Result<Vec<(OwnedFd, Option<String>)>> {
    let ours = variable("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
    let count = variable("LISTEN_FDS").and_then(|count| count.parse::<u16>().ok());
    let Some(count) = count.filter(|_| ours) else { return Ok(Vec::new()) };
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let first = 3;
    (first..first + i32::from(count))
        .map(|number| {
            let name = names.next().filter(|name| !name.is_empty());
            // SAFETY: numbers only.
            if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: it is open, ours by LISTEN_PID, and nobody else knows it yet.
            Ok((unsafe { OwnedFd::from_raw_fd(number) }, name))
        })
        .collect()
}
