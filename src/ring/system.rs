//! The process: its limit of descriptors, its allocator.
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

/// Bytes from which on an allocation has pages of its own, which go back when it is freed.
#[cfg(target_env = "gnu")]
const OWN_PAGES: libc::c_int = 256 << 10;
/// Bytes of free memory at the end of a heap over which it shrinks.
#[cfg(target_env = "gnu")]
const HEAP_SPARE: libc::c_int = 1 << 20;

/// Has memory of large values go back to the system. glibc would raise both marks by itself to 32
/// and 64 MB with the first large block freed (mallopt(3), M_MMAP_THRESHOLD) and then keep that
/// much per thread. Other allocators need nothing.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: numbers only; called before other threads are started.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_SPARE);
    }
}

/// Gives free pages amid used ones back to the system (malloc_trim(3)): what a storm of clients
/// leaves behind. Others that allocate meanwhile wait for some milliseconds.
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number; glibc locks what it works on.
    unsafe {
        libc::malloc_trim(0);
    }
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

/// CLOCK_MONOTONIC in microseconds, as a service manager wants to be told it; std's is opaque.
pub fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a pointer to a timespec of ours, which is written.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) } != 0 {
        return 0;
    }
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000 + nanos.unwrap_or(0) / 1_000
}

/// The user whom the process acts as.
pub fn user() -> u32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::geteuid() }
}

/// The words that the process was started with, as the system shows them to others: first the
/// arguments, then the variables, each word ended by NUL. What is changed there is what
/// `std::env` says from then on. To be called before other threads are started.
pub fn edit_start_words(edit: impl Fn(&mut [u8])) -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // proc_pid_stat(5): fields 48 to 51. The name, field 2, in parentheses, may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(45);
    let places: Vec<usize> = fields.take(4).filter_map(|field| field.parse().ok()).collect();
    let &[first_argument, arguments_end, first_variable, variables_end] = &places[..] else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    for (start, end) in [(first_argument, arguments_end), (first_variable, variables_end)] {
        if start == 0 || end <= start {
            continue;
        }
        let place = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: the kernel has put these words there, on the stack's far end, for the process to
        // use and to change; no other thread runs yet, and `std::env` hands out copies only.
        edit(unsafe { std::slice::from_raw_parts_mut(place, end - start) });
    }
    Ok(())
}

/// Columns and rows of the terminal that standard output is; `None`: it is none.
pub fn terminal_size() -> Option<(usize, usize)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize to where the pointer leads, which is ours and whole.
    let done = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (done == 0).then_some((usize::from(size.ws_col), usize::from(size.ws_row)))
}
