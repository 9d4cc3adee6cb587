//! Every error reply that we originate. Texts are redis-server 7.0's where it has one.
//!
//! Not here: when they are said. Nothing here shows a password, a node's own error or an address
//! (but that of a node which PROXY NODE named).

use crate::command::{Args, LookupError};

/// Bytes of a client's own words that an error repeats, at most (redis-server: `%.128s`).
const QUOTE_MAX: usize = 128;

// --- commands that are not run ---------------------------------------------------------------

/// What `command::lookup` found wrong, in the server's words.
pub fn lookup_failed(out: &mut Vec<u8>, error: &LookupError, args: &Args) {
    match error {
        LookupError::UnknownCommand => unknown_command(out, args),
        LookupError::UnknownSubcommand(container) => {
            unknown_subcommand(out, container.name, args.get(1).unwrap_or_default());
        }
        LookupError::WrongArity(command) => wrong_arity(out, command.name),
    }
}

/// `ERR unknown command 'FOO', with args beginning with: 'a' 'b' `: the arguments in 128 bytes.
/// Clients look for its start to learn that we are too old for something (Lettuce).
pub fn unknown_command(out: &mut Vec<u8>, args: &Args) {
    let mut quoted = Vec::new();
    for argument in args.iter().skip(1) {
        if quoted.len() >= QUOTE_MAX {
            break;
        }
        let room = QUOTE_MAX - quoted.len();
        quoted.push(b'\'');
        quoted.extend_from_slice(clip(argument, room));
        quoted.extend_from_slice(b"' ");
    }
    let name = clip(args.get(0).unwrap_or_default(), QUOTE_MAX);
    line(out, &[b"ERR unknown command '", name, b"', with args beginning with: ", &quoted]);
}

/// `ERR unknown subcommand 'x'. Try CLIENT HELP.` `container` in any case.
pub fn unknown_subcommand(out: &mut Vec<u8>, container: &str, subcommand: &[u8]) {
    let container = container.to_ascii_uppercase();
    let quoted = clip(subcommand, QUOTE_MAX);
    let container = container.as_bytes();
    line(out, &[b"ERR unknown subcommand '", quoted, b"'. Try ", container, b" HELP."]);
}

/// `ERR wrong number of arguments for 'config|get' command`. `name` as in the command table.
pub fn wrong_arity(out: &mut Vec<u8>, name: &str) {
    let name = name.to_ascii_lowercase();
    line(out, &[b"ERR wrong number of arguments for '", name.as_bytes(), b"' command"]);
}

/// A command of class P. `name` as in the command table: `CONFIG|SET` is said as `CONFIG SET`.
pub fn refused(out: &mut Vec<u8>, name: &str) {
    let name = name.replace('|', " ");
    line(out, &[b"ERR ", name.as_bytes(), b" is not allowed through this proxy"]);
}

/// A command that a later version brings.
pub fn not_yet(out: &mut Vec<u8>, name: &str) {
    let name = name.replace('|', " ");
    line(out, &[b"ERR ", name.as_bytes(), b" is not supported by this proxy yet"]);
}

/// A command that only has a meaning on one server's own connection.
pub fn databases_max(out: &mut Vec<u8>) {
    fixed(out, "ERR too many databases are in use through this proxy (databases_max)");
}

pub fn not_supported(out: &mut Vec<u8>, name: &str) {
    let name = name.replace('|', " ");
    line(out, &[b"ERR ", name.as_bytes(), b" is not supported by this proxy"]);
}

pub fn syntax(out: &mut Vec<u8>) {
    fixed(out, "ERR syntax error");
}

pub fn timeout_not_integer(out: &mut Vec<u8>) {
    fixed(out, "ERR timeout is not an integer or out of range");
}

pub fn timeout_negative(out: &mut Vec<u8>) {
    fixed(out, "ERR timeout is negative");
}

pub fn not_integer(out: &mut Vec<u8>) {
    fixed(out, "ERR value is not an integer or out of range");
}

/// `text`: what `ProtocolError::text` says. The connection is closed after it.
pub fn protocol(out: &mut Vec<u8>, text: &str) {
    line(out, &[b"ERR ", text.as_bytes()]);
}

// --- login and limits ------------------------------------------------------------------------

/// `name` as in the command table.
pub fn noauth(out: &mut Vec<u8>, name: &str) {
    line(out, &[refused_exec(name), b"NOAUTH Authentication required."]);
}

pub fn wrongpass(out: &mut Vec<u8>) {
    fixed(out, "WRONGPASS invalid username-password pair or user is disabled.");
}

/// Only `admin_user` may. `command` as the server's errors have it: `proxy|node`.
pub fn no_permission(out: &mut Vec<u8>, user: &str, command: &str) {
    let (user, command) = (user.as_bytes(), command.as_bytes());
    line(out, &[b"NOPERM User ", user, b" has no permissions to run the '", command, b"' command"]);
}

/// Said once to a client over the limit; then its connection is closed.
pub fn maxclients(out: &mut Vec<u8>) {
    fixed(out, "ERR max number of clients reached");
}

/// The memory budget is nearly used up: new clients are refused, those who are here go on.
pub fn no_memory(out: &mut Vec<u8>) {
    fixed(out, "ERR the proxy's memory_limit is nearly reached, try again later");
}

/// The pool of private backends is empty (routing-policy class M).
pub fn blocking_cap(out: &mut Vec<u8>) {
    fixed(out, "ERR max blocking connections reached");
}

/// CONFIG SET of an option of ours that was refused, in the server's words.
pub fn not_configured(out: &mut Vec<u8>, option: &str, why: &str) {
    let text = b"ERR CONFIG SET failed (possibly related to argument '";
    line(out, &[text, option.as_bytes(), b"') - ", why.as_bytes()]);
}

/// Options of two kinds in one CONFIG SET.
pub fn mixed_options(out: &mut Vec<u8>) {
    fixed(out, "ERR CONFIG SET of options of the proxy and of the nodes at once");
}

/// The same for WATCH and other state that needs a private backend.
pub fn private_cap(out: &mut Vec<u8>) {
    fixed(out, "ERR max private connections reached");
}

// --- keys, slots and nodes -------------------------------------------------------------------

pub fn crossslot(out: &mut Vec<u8>) {
    fixed(out, "CROSSSLOT Keys in request don't hash to the same slot");
}

pub fn tryagain(out: &mut Vec<u8>) {
    fixed(out, "TRYAGAIN Multiple keys request during rehashing of slot");
}

/// No node owns the slot, as far as the map says.
pub fn no_node(out: &mut Vec<u8>) {
    fixed(out, "CLUSTERDOWN Hash slot not served");
}

/// PROXY NODE names what is no node of the map.
pub fn unknown_node(out: &mut Vec<u8>) {
    fixed(out, "ERR No such node, see PROXY NODES");
}

/// No map has been learnt yet.
pub fn no_map(out: &mut Vec<u8>) {
    fixed(out, "CLUSTERDOWN The cluster is down");
}

/// More redirects than `limits::REDIRECTS_MAX`. Never begins with MOVED: a cluster-aware client
/// would go round us.
pub fn too_many_redirects(out: &mut Vec<u8>) {
    fixed(out, "ERR too many redirects, the cluster is changing");
}

/// A redirect to an address that no known node lists: not followed.
pub fn untrusted_redirect(out: &mut Vec<u8>) {
    fixed(out, "ERR redirect to a node that is not in the cluster");
}

/// PROXY HOTKEYS, BIGKEYS without the option that has keys looked at.
pub fn keys_unseen(out: &mut Vec<u8>) {
    fixed(out, "ERR keys are not looked at, see the option sample_keys");
}

/// The request never left us: it may be repeated by anyone.
pub fn no_connection(out: &mut Vec<u8>) {
    fixed(out, "ERR no connection to server, the command has not run");
}

/// The request was written and its connection is gone (routing-policy 4.3).
pub fn connection_lost(out: &mut Vec<u8>) {
    fixed(out, "ERR connection to server lost, the command may have run");
}

/// The request was written and not answered in time.
pub fn timeout(out: &mut Vec<u8>) {
    fixed(out, "ERR no reply from server in time, the command may have run");
}

/// What it was to wait for before a redirect is followed took too long.
pub fn not_followed_in_time(out: &mut Vec<u8>) {
    fixed(out, "ERR no reply from server in time, the command has not run");
}

/// It was for one node, which has left the map before it could be sent. Only who may ask single
/// nodes is told which.
pub fn node_left(out: &mut Vec<u8>, place: Option<&str>) {
    let which = place.unwrap_or("that was to run it");
    line(out, &[b"ERR the node ", which.as_bytes(), b" has left, the command has not run"]);
}

/// Another reactor has not said its part in `limits::PEERS_MS_MAX`.
pub fn peers_late(out: &mut Vec<u8>) {
    fixed(out, "ERR a part of the proxy did not answer in time, the command may have run in part");
}

/// The node does not let our user ECHO, with which the fence vouches for replies.
pub fn echo_refused(out: &mut Vec<u8>) {
    let text = "NOPERM the proxy's user at the nodes must be allowed to ECHO (ACL SETUSER ... +echo); \
                the script was not run";
    fixed(out, text);
}

/// What a node answered could not be read as one reply, or does not fit what was asked.
pub fn bad_reply(out: &mut Vec<u8>) {
    fixed(out, "ERR unreadable reply from server, the command may have run");
}

/// Each place of each key would be tried with all of the pattern.
pub fn pattern_takes_too_long(out: &mut Vec<u8>) {
    fixed(out, "ERR matching the keys with this pattern takes too long");
}

/// The merged reply of a whole-cluster command is larger than its limit.
pub fn reply_too_large(out: &mut Vec<u8>) {
    fixed(out, "ERR reply over all nodes is larger than the proxy's limit");
}

pub fn invalid_cursor(out: &mut Vec<u8>) {
    fixed(out, "ERR invalid cursor");
}

pub fn noscript(out: &mut Vec<u8>) {
    fixed(out, "NOSCRIPT No matching script. Please use EVAL.");
}

// --- transactions, blocking, subscriptions ---------------------------------------------------

pub fn nested_multi(out: &mut Vec<u8>) {
    fixed(out, "ERR MULTI calls can not be nested");
}

pub fn exec_without_multi(out: &mut Vec<u8>) {
    fixed(out, "ERR EXEC without MULTI");
}

pub fn discard_without_multi(out: &mut Vec<u8>) {
    fixed(out, "ERR DISCARD without MULTI");
}

pub fn watch_in_multi(out: &mut Vec<u8>) {
    fixed(out, "ERR WATCH inside MULTI is not allowed");
}

/// A command that the server flags `no_multi`.
pub fn not_in_multi(out: &mut Vec<u8>) {
    fixed(out, "ERR Command not allowed inside a transaction");
}

pub fn execabort(out: &mut Vec<u8>) {
    fixed(out, "EXECABORT Transaction discarded because of previous errors.");
}

/// EXEC has no arguments; saying so ends the transaction.
pub fn execabort_arity(out: &mut Vec<u8>) {
    let text = "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' \
                command";
    fixed(out, text);
}

/// Nobody else is served while they are answered.
pub fn transaction_too_dear(out: &mut Vec<u8>) {
    fixed(out, "ERR what the proxy answers itself would take too long in one transaction");
}

/// More names than there are options, many times over.
pub fn too_many_names(out: &mut Vec<u8>) {
    fixed(out, "ERR more names in one CONFIG than this proxy takes");
}

/// More commands than `limits::TRANSACTION_COMMANDS_MAX`.
pub fn transaction_too_long(out: &mut Vec<u8>) {
    fixed(out, "ERR more commands in one transaction than this proxy takes");
}

/// CLIENT UNBLOCK … ERROR: what the blocked client is told.
pub fn unblocked(out: &mut Vec<u8>) {
    fixed(out, "UNBLOCKED client unblocked via CLIENT UNBLOCK");
}

/// LATENCY GRAPH while nothing was slow.
pub fn no_samples(out: &mut Vec<u8>) {
    fixed(out, "ERR No samples available for event 'command'");
}

/// A client that watches others sent something else.
pub fn monitors_only(out: &mut Vec<u8>) {
    fixed(out, "ERR only PING / QUIT / RESET are allowed after MONITOR");
}

/// EXEC says in its own way why it is not run (redis-server: `execCommandAbort`, multi.c).
fn refused_exec(name: &str) -> &'static [u8] {
    if name == "EXEC" { b"EXECABORT Transaction discarded because of: " } else { b"" }
}

/// A RESP2 client that is subscribed sent something else. `name` as in the command table.
pub fn subscribed_only(out: &mut Vec<u8>, name: &str) {
    let kind = if name == "EXEC" { refused_exec(name) } else { b"ERR " };
    let name = name.to_ascii_lowercase();
    let rest = b"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
                 this context";
    line(out, &[kind, b"Can't execute '", name.as_bytes(), rest]);
}

// --- the line itself -------------------------------------------------------------------------

/// An error line from a fixed text.
pub(super) fn fixed(out: &mut Vec<u8>, text: &str) {
    line(out, &[text.as_bytes()]);
}

/// An error line from its parts. Line ends inside become spaces: they may come from a client, and
/// an error line that holds one is two replies.
pub(super) fn line(out: &mut Vec<u8>, parts: &[&[u8]]) {
    out.push(b'-');
    for part in parts {
        out.extend(
            part.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }),
        );
    }
    out.extend_from_slice(b"\r\n");
}

/// The server's `%.*s`: ends at a NUL byte or after `max` bytes.
pub(super) fn clip(text: &[u8], max: usize) -> &[u8] {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text.get(..end.min(max)).unwrap_or_default()
}
