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

/// Bytes of one bulk string in a reply, at most. Twice what a node takes in (`proto-max-bulk-len`
/// may be raised there).
pub const REPLY_BULK_MAX: u64 = 1024 * 1024 * 1024;

/// Elements of one reply that may still be to come, over all its levels (hiredis: 2^32 - 1 an
/// aggregate).
pub const REPLY_ELEMENTS_MAX: u64 = u32::MAX as u64;

/// Depth to which `resp::value` builds a tree.
pub const VALUE_DEPTH_MAX: usize = 128;

// --- command ----------------------------------------------------------------------------------

/// Commands that only the nodes know, at most; what a COMMAND reply has beyond them is left out.
/// Stock servers have about 430 in all, with all their modules.
pub const LEARNED_COMMANDS_MAX: usize = 2048;

/// Subcommands of one learned command, key rules of one, bytes of its name, at most.
pub const LEARNED_SUBCOMMANDS_MAX: usize = 128;
pub const LEARNED_KEY_RULES_MAX: usize = 16;
pub const LEARNED_NAME_MAX: usize = 64;

// --- cluster ----------------------------------------------------------------------------------

/// Bytes of a host name or address, at most (RFC 1035: a name has at most 255).
pub const HOST_BYTES_MAX: usize = 255;

/// Nodes of one cluster, at most. The cluster bus is made for about 1,000.
pub const NODES_MAX: usize = 4096;

// --- proxy ------------------------------------------------------------------------------------

/// Redirects that one request may follow (routing-policy 4.3).
pub const REDIRECTS_MAX: u8 = 5;

const _: () = {
    // Spans are u32 offsets into one request.
    assert!(REQUEST_TOTAL_MAX < u32::MAX as u64);
    assert!(REQUEST_BULK_MAX <= REQUEST_TOTAL_MAX);
    // Node indexes are u16, and the highest value means "nobody".
    assert!(NODES_MAX < u16::MAX as usize);
    assert!(UNAUTHENTICATED_ARGUMENTS_MAX < REQUEST_ARGUMENTS_MAX);
    assert!(UNAUTHENTICATED_BULK_MAX < REQUEST_BULK_MAX);
    // What could be stored can be read back.
    assert!(REPLY_BULK_MAX >= REQUEST_BULK_MAX);
    // Adding a map's 2n to a counter within bounds never wraps; nor does ten times a length plus a
    // digit.
    assert!(REPLY_ELEMENTS_MAX <= u64::MAX / 4 && REPLY_BULK_MAX <= u64::MAX / 20);
    // A tree of this depth is built and freed by recursion: well within a small thread's stack.
    assert!(VALUE_DEPTH_MAX <= 1024);
};
