//! Every bound that is not an option, related to one another at compile time.
//!
//! Not here: bounds that a user may set (`config`).

// --- resp -------------------------------------------------------------------------------------

/// Arguments of one request, at most (redis-server up to 6.2: `1024*1024`; 7.0: `INT_MAX`).
pub const REQUEST_ARGUMENTS_MAX: u32 = 1024 * 1024;

/// Bytes of one bulk string, at most (redis-server: `proto-max-bulk-len` 512 MB).
pub const REQUEST_BULK_MAX: u64 = 512 * 1024 * 1024;

/// Bytes that a node may have read beyond the request that it takes up (redis-server reads 16 KiB
/// at a time, and a large word as a whole): what is so near its `client-query-buffer-limit` is not
/// sent.
pub const NODE_READ_AHEAD: u64 = 64 * 1024;

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

// --- cluster ----------------------------------------------------------------------------------

/// Bytes of a host name or address, at most (RFC 1035: a name has at most 255).
pub const HOST_BYTES_MAX: usize = 255;

/// Nodes of one cluster, at most. The cluster bus is made for about 1,000.
pub const NODES_MAX: usize = 4096;

// --- config -----------------------------------------------------------------------------------

/// Bytes of a configuration file, or of a file with a password, at most; and pools in it.
pub const CONFIG_BYTES_MAX: u64 = 1024 * 1024;
pub const POOLS_MAX: usize = 256;

// --- command ----------------------------------------------------------------------------------

/// Commands that only the nodes know, at most; what a COMMAND reply has beyond them is left out.
/// Stock servers have about 430 in all, with all their modules.
pub const LEARNED_COMMANDS_MAX: usize = 2048;

/// Subcommands of one learned command, key rules of one, bytes of its name, at most.
pub const LEARNED_SUBCOMMANDS_MAX: usize = 128;
pub const LEARNED_KEY_RULES_MAX: usize = 16;
pub const LEARNED_NAME_MAX: usize = 64;

// --- topology ---------------------------------------------------------------------------------

/// Bytes that one conversation about the map may read, in all. CLUSTER SLOTS of 1,000 nodes with
/// scattered slots has been seen at 6 MB (envoy#36764).
pub const CONVERSATION_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Milliseconds that one conversation may take once connected.
pub const CONVERSATION_MS_MAX: u64 = 2000;

/// Milliseconds between two conversations of one pool: least, at most when nobody complains, and
/// while complaints bring no news (a conversation is three CLUSTER calls).
pub const REFRESH_GAP_MS: u64 = 200;
pub const REFRESH_GAP_MS_MAX: u64 = 1000;
pub const REFRESH_GAP_MS_STORM: u64 = 3200;
/// The same while the owner of slots is lost, so that its successor is found soon.
pub const REFRESH_URGENT_MS: u64 = 160;

/// Redirects to unknown places that wait for one refresh, at most.
pub const UNCONFIRMED_MAX: usize = 64;

// --- proxy ------------------------------------------------------------------------------------

/// Redirects that one request may follow (routing-policy 4.3).
pub const REDIRECTS_MAX: u8 = 5;

/// For so many milliseconds slots are taken to be moving after a node has said so.
pub const RESHARDING_SEEN_MS: u64 = 10_000;

/// Requests that nodes which refuse may be sent again at once, earned by thirteen times as many
/// that came before, but for the first few; the milliseconds after which one always may; and how
/// many of these are paid for later.
pub const REPEATS_MAX: i64 = 256;
pub const REPEATS_FIRST: i64 = 10;
pub const REPEATS_ALWAYS_MS: u64 = 40;
pub const REPEATS_DEBT_MAX: i64 = 100;

/// Milliseconds for which a subscription that its node has lost is set up anew; then its clients
/// are closed, so that they know.
pub const DEAF_MS_MAX: u64 = 10_000;

/// Scripts whose bodies a reactor keeps, their bytes in all, bytes of one: the oldest go first.
pub const SCRIPTS_MAX: usize = 1024;
pub const SCRIPTS_BYTES_MAX: usize = 8 * 1024 * 1024;
pub const SCRIPT_BYTES_MAX: usize = 1024 * 1024;
const _: () = assert!(SCRIPT_BYTES_MAX < SCRIPTS_BYTES_MAX);

/// Commands of one transaction, at most. Each takes an entry of 128 bytes while EXEC is under way.
pub const TRANSACTION_COMMANDS_MAX: usize = 1 << 17;

/// Commands that MONITOR shows of one reactor in so many milliseconds, at most, and bytes of their
/// lines, at most a line more: each is written anew in a form to be read.
pub const MONITOR_LINES_MAX: u32 = 1_000;
pub const MONITOR_BYTES_MAX: usize = 1 << 20;
pub const MONITOR_WINDOW_MS: u64 = 100;

/// Milliseconds that the reactors have for one answer that they give together.
pub const PEERS_MS_MAX: u64 = 2_000;

/// Questions and answers that wait for one reactor, at most; one that finds no room counts as not
/// answered. Each client has one under way.
pub const PEER_MESSAGES_MAX: usize = 4 * 1024;

/// Slow requests that the admin endpoint shows, at most: the slowest of as many seconds.
pub const SLOW_SHOWN_MAX: usize = 12;

/// Addresses that cluster clients are told (`announce`).
pub const ANNOUNCED_MAX: usize = 1_000;

/// For how many databases it is remembered whether the nodes have them.
pub const DATABASES_KNOWN_MAX: usize = 1_024;

/// Databases that a client is told of (CONFIG GET databases) where the nodes do not tell how many
/// they have, as a server's default; whether they can be selected is up to the nodes.
pub const DATABASES_ANNOUNCED: u8 = 16;

/// Bytes of one text in a client's description of itself (CLIENT SETNAME, SETINFO), at most.
/// Ours: redis-server takes any length, but an idle client must stay small.
pub const CLIENT_DETAIL_MAX: usize = 512;

/// Bytes of an unfinished request with which a client is still given to the next process: one that
/// has sent more goes on here until it is whole.
pub const PARCEL_UNFINISHED_MAX: usize = 1 << 20;

/// Milliseconds of silence after which a client of a process that ends is closed, and for how long
/// that is waited for.
pub const DRAIN_QUIET_MS: u64 = 100;
pub const DRAIN_PATIENCE_MS: u64 = 1_000;

/// Seconds that clients are told to have for going elsewhere (MOVING): they go after the half.
pub const MOVING_S: u64 = 1;

// --- handover ---------------------------------------------------------------------------------

/// Bytes of one frame between two processes.
pub const HANDOVER_FRAME_MAX: u32 = 16 << 20;

/// Clients of one reactor and pool that are on their way to the next process at once: the fewer,
/// the shorter each one's pause. And how many may wait for the way between the two processes.
pub const LEAVERS_MAX: usize = 32;
pub const HEIR_QUEUE_MAX: usize = 256;

/// Milliseconds that the other process has for an answer, and the new one until it can serve.
pub const HANDOVER_ANSWER_MS: u64 = 5_000;
pub const HANDOVER_READY_MS: u64 = 10_000;

/// Milliseconds that a process which is to take over waits for its connections to nodes, once it
/// knows them: some may not answer.
pub const CONNECT_AHEAD_MS: u64 = 1_000;
const _: () = assert!(CONNECT_AHEAD_MS * 4 < HANDOVER_READY_MS);
const _: () = assert!(PARCEL_UNFINISHED_MAX * 4 <= HANDOVER_FRAME_MAX as usize);
/// Percent of `memory_limit` from which on new clients are refused.
pub const MEMORY_REFUSE_PERCENT: u64 = 90;

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
    assert!(REFRESH_GAP_MS < REFRESH_GAP_MS_MAX && REFRESH_GAP_MS_MAX < CONVERSATION_MS_MAX);
    assert!(REFRESH_URGENT_MS < REFRESH_GAP_MS && REFRESH_GAP_MS_MAX < REFRESH_GAP_MS_STORM);
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

// --- ring -------------------------------------------------------------------------------------

/// Submissions that fit one turn before the ring submits early (io-uring.md 8.2).
pub const RING_SUBMISSIONS: u32 = 4096;

/// Clients that one listener lets in with one enter, and sockets that are ended with it: each takes
/// the kernel, and us, some microseconds, in which nobody else is served.
pub const ACCEPTS_AT_ONCE: u32 = 16;
pub const ENDS_AT_ONCE: usize = 8;

/// Completions that the kernel may post before it falls back to its slow overflow list.
pub const RING_COMPLETIONS: u32 = 16384;

/// Bytes of one receive buffer, unless the configuration says otherwise. It bounds what one socket
/// gets in one turn (32 buffers).
pub const RECEIVE_BUFFER_SIZE: u32 = 16 * 1024;

/// Receive buffers of one reactor: 8 MiB in all. A power of two (the kernel's rule).
pub const RECEIVE_BUFFER_COUNT: u16 = 512;

/// The kernel's bound on a ring of provided buffers.
pub const RECEIVE_BUFFER_COUNT_MAX: u16 = 32768;

/// A client whose bytes fill so many receive buffers one after the other is heavy: what it sends is
/// taken in one buffer at a time, in turn with the other heavy ones and after everybody else's.
pub const HEAVY_AFTER_BUFFERS: u8 = 4;

/// Receive buffers of the heavy ones, all together: what they can have ahead of others.
pub const HEAVY_BUFFER_COUNT: u16 = 16;

/// Receive buffers of all the others together that one enter fills while there are heavy ones: each
/// takes the kernel some microseconds.
pub const CROWDED_BUFFER_COUNT: u16 = 64;

/// Bytes of heavy clients, and of nodes that have much to say, that one turn takes in, at most a
/// buffer more, while light clients are about.
pub const HEAVY_TURN_BYTES: usize = 64 * 1024;

/// Bytes of what a node has said that are looked at in one go then.
pub const HEAVY_PIECE: usize = 4 * 1024;

/// So many bytes each request counts that comes with them, or is answered by them: sixteen thousand
/// bytes may be one value, or three thousand times `+OK`.
pub const HEAVY_REQUEST_BYTES: usize = 32;

/// Bytes that one turn takes in, at most a buffer more: what it has to say leaves before the rest
/// is looked at. All receive buffers full of large requests take long.
pub const TURN_BYTES_MAX: usize = 256 * 1024;

/// Bytes of output from which on a client has much to take, and how many of such clients one turn
/// gives to the kernel, at most a piece more, while light clients are about.
pub const MUCH_OUTPUT: usize = 64 * 1024;
pub const MUCH_OUTPUT_TURN_BYTES: usize = 256 * 1024;

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
    assert!(RECEIVE_BUFFER_COUNT.is_power_of_two() && HEAVY_BUFFER_COUNT.is_power_of_two());
    assert!(HEAVY_TURN_BYTES <= TURN_BYTES_MAX);
    assert!(RECEIVE_BUFFER_COUNT <= RECEIVE_BUFFER_COUNT_MAX);
    // A completion's result is an i32.
    assert!(SEND_CHUNK_MAX < i32::MAX as usize);
};

/// Milliseconds that replies wait for others of the same pipeline, at most, by the clock of a turn:
/// one less may have passed. README.md names it (`gather_us`).
pub const HOLD_MS: u64 = 2;

/// Bytes of replies with which they wait no longer.
pub const HOLD_BYTES_MAX: usize = 16 * 1024;
