//! Signals as values: blocked in every thread, taken by one that waits for them.
//!
//! Not here: what a signal means (`main`).

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The signals that the process listens to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Signal {
    Terminate,
    Interrupt,
    Hangup,
}

/// Proof that the signals are blocked, and the way to take them.
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks TERM, INT and HUP in this thread and those that it will start, and ignores PIPE, and
    /// USR1 and USR2, which by default kill: others' tools send them to have logs opened anew, and
    /// ours is stderr.
    /// Call it before any thread is started: in one started earlier they would still kill.
    pub fn block() -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a pointer to memory of ours of the right size, which is written whole.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: written by `sigemptyset`, which cannot fail with a valid pointer.
        let mut set = unsafe { set.assume_init() };
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            // SAFETY: a valid set; the numbers exist.
            unsafe { libc::sigaddset(&mut set, signal) };
        }
        // SAFETY: a valid set, which is only read; nobody wants the old one.
        let errno = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        for signal in [libc::SIGPIPE, libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: sets the disposition to "ignore", so no code of ours runs in a handler.
            if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Signals { set })
    }

    /// Waits for the next signal, at most `timeout`. None: there was none.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<Signal>> {
        // A timeout that does not fit is longer than anybody waits.
        let seconds = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
        let nanos = libc::c_long::from(timeout.subsec_nanos() as i32);
        let timeout = libc::timespec { tv_sec: seconds, tv_nsec: nanos };
        // SAFETY: a valid set and time, which are only read; no details are wanted.
        let taken = unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), &timeout) };
        match taken {
            libc::SIGTERM => Ok(Some(Signal::Terminate)),
            libc::SIGINT => Ok(Some(Signal::Interrupt)),
            libc::SIGHUP => Ok(Some(Signal::Hangup)),
            _ => {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                    _ => Err(error),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_signal_is_taken_and_kills_nobody() {
        let signals = Signals::block().unwrap();
        assert_eq!(signals.wait(Duration::ZERO).unwrap(), None);
        for (number, expected) in [
            (libc::SIGHUP, Signal::Hangup),
            (libc::SIGTERM, Signal::Terminate),
            (libc::SIGINT, Signal::Interrupt),
        ] {
            // SAFETY: sent to this thread, which blocks it.
            assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), number) }, 0);
            assert_eq!(signals.wait(Duration::from_secs(5)).unwrap(), Some(expected));
        }
    }
}
