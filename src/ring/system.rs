//! The process: its limit of descriptors.
//!
//! Not here: signals (`signals`); reading limits for a report (`probe`).

use std::io;

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
