//! The process: its limit of descriptors, the signals sent to it.
//!
//! Not here: what a signal means to us; reading limits for a report (`probe`).

use std::fs::File;
use std::io;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;

/// A signal that we act on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGHUP.
    HangUp,
}

/// Those signals as something to read, instead of handlers that interrupt threads.
#[derive(Debug)]
pub struct Signals {
    file: File,
}

impl Signals {
    /// Before any thread is started: threads inherit that these signals are blocked.
    pub fn new() -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: fills the set it is given; it fails for no pointer that is valid.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: just filled.
        let mut set = unsafe { set.assume_init() };
        for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            // SAFETY: a valid set and valid numbers.
            unsafe { libc::sigaddset(&mut set, number) };
        }
        // SAFETY: a valid set, which is only read; the old one is not wanted.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        // SAFETY: a valid set, which is only read.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { file: File::from(fd) })
    }

    /// Waits for the next one.
    pub fn wait(&self) -> io::Result<Signal> {
        // `struct signalfd_siginfo`: 128 bytes, the number first.
        let mut info = [0; 128];
        (&self.file).read_exact(&mut info)?;
        let [a, b, c, d, ..] = info;
        match i32::from_ne_bytes([a, b, c, d]) {
            libc::SIGINT => Ok(Signal::Interrupt),
            libc::SIGHUP => Ok(Signal::HangUp),
            _ => Ok(Signal::Terminate),
        }
    }
}

impl AsFd for Signals {
    /// To be polled by a runtime; blocking.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Raises the soft limit of descriptors to the hard one. Returns the limit before and now.
pub fn raise_descriptor_limit() -> io::Result<(u64, u64)> {
    let mut limit = get_limit(libc::RLIMIT_NOFILE)?;
    let before = limit.rlim_cur;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: a pointer to a valid rlimit, which is only read.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok((before, limit.rlim_cur))
}

/// Soft and hard.
pub(super) fn limits(resource: libc::__rlimit_resource_t) -> Option<(u64, u64)> {
    get_limit(resource).ok().map(|limit| (limit.rlim_cur, limit.rlim_max))
}

fn get_limit(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a pointer to an rlimit of ours, which is written.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit)
}
