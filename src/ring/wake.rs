//! Waking a reactor from another thread.
//!
//! Not here: what there is to see once awake (a channel of the caller's).

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Wakes one ring; comes out there as `Event::Woken`, once for any number of calls before it.
#[derive(Clone, Debug)]
pub struct Waker {
    file: Arc<File>,
}

impl Waker {
    pub(super) fn new() -> io::Result<Waker> {
        // Blocking on purpose: a read of a non-blocking file would fail at once in the ring.
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Waker { file: Arc::new(File::from(fd)) })
    }

    /// Costs one write(2). Never blocks in practice: the counter holds 2^64 - 2 calls.
    pub fn wake(&self) {
        // The only error left is a full counter, and then the ring wakes anyway.
        let _ = (&*self.file).write(&1u64.to_ne_bytes());
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
