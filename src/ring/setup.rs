//! Making a ring: flags by trying, the parts that live as long as its thread, the buffers.
//!
//! Not here: why a kernel refuses (`probe`), what is submitted (`queue`).

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::CompletionQueue;
use io_uring::IoUring;
use io_uring::SubmissionQueue;
use io_uring::Submitter;

use super::buffers::Buffers;
use super::probe;
use crate::limits::RECEIVE_BUFFER_COUNT;
use crate::limits::RECEIVE_BUFFER_COUNT_MAX;
use crate::limits::RECEIVE_BUFFER_SIZE;
use crate::limits::RING_COMPLETIONS;
use crate::limits::RING_SUBMISSIONS;

/// Sizes of one ring.
#[derive(Clone, Debug)]
pub struct RingSettings {
    /// Submission queue; a power of two.
    pub entries: u32,
    /// Completion queue; a power of two, larger than `entries`.
    pub cq_entries: u32,
    /// Bytes of one receive buffer.
    pub buffer_size: u32,
    /// Receive buffers; a power of two, at most 32768.
    pub buffer_count: u16,
    /// Ask for huge pages under the receive buffers.
    pub huge_pages: bool,
}

impl RingSettings {
    /// With four completions for each submission: a multishot posts several.
    pub fn new(entries: u32, buffer_size: u32, buffer_count: u16) -> RingSettings {
        let cq_entries = entries.saturating_mul(4);
        RingSettings { entries, cq_entries, buffer_size, buffer_count, huge_pages: true }
    }
}

impl Default for RingSettings {
    fn default() -> RingSettings {
        RingSettings {
            entries: RING_SUBMISSIONS,
            cq_entries: RING_COMPLETIONS,
            buffer_size: RECEIVE_BUFFER_SIZE,
            buffer_count: RECEIVE_BUFFER_COUNT,
            huge_pages: true,
        }
    }
}

/// Why there is no ring. Display: the cause, then the remedy.
#[derive(Debug)]
pub enum RingError {
    /// Settings out of range.
    Settings(&'static str),
    /// io_uring_setup(2) refused.
    Setup { errno: i32, text: String },
    /// The receive buffers or their registration were refused.
    Buffers { errno: i32, text: String },
    /// No descriptor for the wake-up or the spare.
    Descriptor { errno: i32, text: String },
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Settings(text) => write!(f, "ring settings: {text}"),
            RingError::Setup { text, .. } => write!(f, "cannot set up io_uring: {text}"),
            RingError::Buffers { text, .. } => {
                write!(f, "cannot register receive buffers with io_uring: {text}")
            }
            RingError::Descriptor { text, .. } => {
                write!(f, "cannot open a descriptor for the ring: {text}")
            }
        }
    }
}

impl std::error::Error for RingError {}

/// What the kernel granted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Granted {
    pub no_sqarray: bool,
    pub no_iowait: bool,
    /// A wait for several events ends after a shorter time if there is one (kernel 6.12).
    pub min_wait: bool,
    pub ring_fd_registered: bool,
    pub sq_entries: u32,
    pub cq_entries: u32,
}

/// The groups of provided buffers: for all sockets, and for heavy ones.
pub(super) const BUFFER_GROUP: u16 = 0;
pub(super) const HEAVY_GROUP: u16 = 1;

/// The kernel's ring, taken apart once: a `Submitter` remembers the registered descriptor, and a
/// new one for each call would not (io-uring.md 2).
pub(super) struct Kernel {
    // Dropped in this order: the queues write to the memory that `owner` frees.
    pub sq: SubmissionQueue<'static>,
    pub cq: CompletionQueue<'static>,
    pub submitter: Submitter<'static>,
    _owner: Owner,
    pub granted: Granted,
}

struct Owner(NonNull<IoUring>);

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw` in `Kernel::new`; the parts that borrow from it are fields
        // of `Kernel` declared, so dropped, before this one, and never leave it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Kernel {
    pub fn new(settings: &RingSettings) -> Result<Kernel, RingError> {
        check(settings).map_err(RingError::Settings)?;
        let (ring, no_sqarray) = build_patiently(settings).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            RingError::Setup { errno, text: probe::explain(errno, &probe::read_facts(settings)) }
        })?;
        let params = ring.params();
        let mut granted = Granted {
            no_sqarray,
            no_iowait: params.is_feature_no_iowait(),
            min_wait: params.is_feature_min_timeout(),
            ring_fd_registered: false,
            sq_entries: params.sq_entries(),
            cq_entries: params.cq_entries(),
        };
        let owner = Owner(NonNull::from(Box::leak(Box::new(ring))));
        // SAFETY: the box is never moved or touched again until `Owner` frees it, after the parts.
        let (mut submitter, sq, cq) = unsafe { &mut *owner.0.as_ptr() }.split();
        // Saves a descriptor look-up for each enter; a thread has only 16 such places.
        granted.ring_fd_registered = submitter.register_ring_fd().is_ok();
        Ok(Kernel { sq, cq, submitter, _owner: owner, granted })
    }

    pub fn register(
        &self,
        buffers: &Buffers,
        group: u16,
        settings: &RingSettings,
    ) -> Result<(), RingError> {
        // SAFETY: the mapping outlives the ring: `Ring` drops `Kernel` first, and leaks the
        // buffers if operations are left then.
        unsafe {
            self.submitter.register_buf_ring_with_flags(
                buffers.ring_address(),
                buffers.count(),
                group,
                0,
            )
        }
        .map_err(|error| buffers_error(&error, settings))
    }
}

pub(super) fn buffers_error(error: &io::Error, settings: &RingSettings) -> RingError {
    let errno = error.raw_os_error().unwrap_or(0);
    RingError::Buffers { errno, text: probe::explain(errno, &probe::read_facts(settings)) }
}

pub(super) fn descriptor_error(error: &io::Error, settings: &RingSettings) -> RingError {
    let errno = error.raw_os_error().unwrap_or(0);
    RingError::Descriptor { errno, text: probe::explain(errno, &probe::read_facts(settings)) }
}

fn check(settings: &RingSettings) -> Result<(), &'static str> {
    if !settings.buffer_count.is_power_of_two() || settings.buffer_count > RECEIVE_BUFFER_COUNT_MAX
    {
        return Err("the count of receive buffers is not a power of two up to 32768");
    }
    if settings.buffer_size == 0 || settings.buffer_size > 1 << 24 {
        return Err("the size of a receive buffer is not within 1 byte and 16 MiB");
    }
    if settings.entries == 0 || settings.cq_entries < settings.entries {
        return Err("the completion queue is smaller than the submission queue");
    }
    Ok(())
}

/// The kernel lets go of the locked memory of a process that has ended a moment late, and a
/// restart under a tight limit would fail for it.
fn build_patiently(settings: &RingSettings) -> io::Result<(IoUring, bool)> {
    for _ in 0..10 {
        match build(settings.entries, settings.cq_entries) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
    build(settings.entries, settings.cq_entries)
}

/// True with the ring: without the submission array (6.6+). 6.1 is the floor: DEFER_TASKRUN.
pub(super) fn build(entries: u32, cq_entries: u32) -> io::Result<(IoUring, bool)> {
    match try_build(entries, cq_entries, true) {
        Ok(ring) => Ok((ring, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((try_build(entries, cq_entries, false)?, false))
        }
        Err(error) => Err(error),
    }
}

fn try_build(entries: u32, cq_entries: u32, no_sqarray: bool) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder
        .dontfork()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_clamp()
        .setup_cqsize(cq_entries);
    if no_sqarray {
        builder.setup_no_sqarray();
    }
    builder.build(entries)
}
