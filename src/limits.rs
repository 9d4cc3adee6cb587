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
