//! Every bound that is not an option, related to one another at compile time.
//!
//! Not here: bounds that a user may set (`config`).

// --- resp -------------------------------------------------------------------------------------

/// Arguments of one request, at most (redis-server: `1024*1024`, networking.c).
pub const REQUEST_ARGUMENTS_MAX: u32 = 1024 * 1024;

/// Bytes of one bulk string, at most (redis-server: `proto-max-bulk-len` 512 MB).
pub const REQUEST_BULK_MAX: u64 = 512 * 1024 * 1024;

/// Bytes of one inline line or length header, at most (redis-server: `PROTO_INLINE_MAX_SIZE`).
pub const REQUEST_INLINE_MAX: u32 = 64 * 1024;

/// Bytes of one whole request, at most (redis-server: `client-query-buffer-limit` 1 GB).
pub const REQUEST_TOTAL_MAX: u64 = 1024 * 1024 * 1024;

/// Arguments and bytes of a bulk string before a client has logged in (CVE-2021-32675).
pub const UNAUTHENTICATED_ARGUMENTS_MAX: u32 = 10;
pub const UNAUTHENTICATED_BULK_MAX: u64 = 16 * 1024;

/// Depth to which `resp::value` builds a tree.
pub const VALUE_DEPTH_MAX: usize = 128;

// --- cluster ----------------------------------------------------------------------------------

/// Bytes of a host name or address, at most (RFC 1035: a name has at most 255).
pub const HOST_BYTES_MAX: usize = 255;

/// Nodes of one cluster, at most. The cluster bus is made for about 1,000.
pub const NODES_MAX: usize = 4096;

// --- proxy ------------------------------------------------------------------------------------

/// Redirects that one request may follow (routing-policy 4.3).
pub const REDIRECTS_MAX: u8 = 5;

// --- log --------------------------------------------------------------------------------------

/// Lines that wait for stderr; more are counted and dropped.
pub const LOG_QUEUE_MAX: usize = 1024;

/// Lines of one kind and thread that may follow each other at once.
pub const LOG_BURST: u32 = 20;

/// Microseconds until one more is allowed.
pub const LOG_REFILL_US: u64 = 500_000;

// --- metrics ----------------------------------------------------------------------------------

/// The longest time that a histogram tells apart, in microseconds: a minute.
pub const LATENCY_US_MAX: u64 = 60_000_000;

const _: () = {
    // Spans are u32 offsets into one request.
    assert!(REQUEST_TOTAL_MAX < u32::MAX as u64);
    assert!(REQUEST_BULK_MAX <= REQUEST_TOTAL_MAX);
    // Node indexes are u16, and the highest value means "nobody".
    assert!(NODES_MAX < u16::MAX as usize);
};

// --- ring -------------------------------------------------------------------------------------

/// Submissions that fit one turn before the ring submits early (io-uring.md 8.2).
pub const RING_SUBMISSIONS: u32 = 4096;

/// Completions that the kernel may post before it falls back to its slow overflow list.
pub const RING_COMPLETIONS: u32 = 16384;

/// Bytes of one receive buffer. Small: it bounds what one socket gets in one turn (32 buffers).
pub const RECEIVE_BUFFER_SIZE: u32 = 4096;

/// Receive buffers of one reactor: 4 MiB in all. A power of two (the kernel's rule).
pub const RECEIVE_BUFFER_COUNT: u16 = 1024;

/// The kernel's bound on a ring of provided buffers.
pub const RECEIVE_BUFFER_COUNT_MAX: u16 = 32768;

/// Bytes that one send operation is asked to move; a longer buffer goes in several.
pub const SEND_CHUNK_MAX: usize = 1 << 30;

/// TCP keepalive: seconds of silence, seconds between probes, probes (io-uring.md 6).
pub const KEEPALIVE_IDLE_S: u64 = 60;
pub const KEEPALIVE_INTERVAL_S: u64 = 10;
pub const KEEPALIVE_PROBES: u32 = 3;

/// Connections waiting to be accepted where `net.core.somaxconn` cannot be read.
pub const LISTEN_BACKLOG_DEFAULT: i32 = 4096;

const _: () = {
    assert!(RING_COMPLETIONS > RING_SUBMISSIONS);
    assert!(RECEIVE_BUFFER_COUNT.is_power_of_two());
    assert!(RECEIVE_BUFFER_COUNT <= RECEIVE_BUFFER_COUNT_MAX);
    // A completion's result is an i32.
    assert!(SEND_CHUNK_MAX < i32::MAX as usize);
};
