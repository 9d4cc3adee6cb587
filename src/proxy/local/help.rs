//! HELP of every container command: the subcommands that this proxy takes.
//!
//! Not here: what they do.

use super::Answer;
use crate::resp::write;

/// Answers `<container> HELP`: status lines, as the server writes them.
pub(super) fn answer(container: &str, out: &mut Vec<u8>) -> Answer {
    let row = TEXTS.iter().find(|(name, _)| *name == container);
    let lines = row.map_or(NOTHING, |(_, lines)| lines);
    write::array_header(out, lines.len() + 3);
    let title = "<subcommand> [<arg> [value] [opt] ...]. Subcommands are:";
    write::simple(out, &format!("{container} {title}"));
    lines.iter().for_each(|line| write::simple(out, line));
    write::simple(out, "HELP");
    write::simple(out, "    Prints this help.");
    Answer::Replied
}

/// `PROXY HELP`: what only this proxy has.
pub fn proxy_help(out: &mut Vec<u8>) {
    answer("PROXY", out);
}

/// For a container that this proxy takes nothing of.
const NOTHING: &[&str] = &["    None of them is available through this proxy."];

static TEXTS: &[(&str, &[&str])] = &[
    ("ACL", &["CAT [<category>]", "GENPASS [<bits>]", "WHOAMI"]),
    (
        "CLIENT",
        &[
            "CACHING (YES|NO)",
            "CAPA <option> [<option> ...]",
            "GETNAME",
            "GETREDIR",
            "ID",
            "INFO",
            "KILL <ip:port>",
            "KILL <option> <value> [<option> <value> [...]]",
            "    Options are: ID, TYPE, ADDR, LADDR, USER, SKIPME, MAXAGE.",
            "LIST [TYPE (NORMAL|MASTER|REPLICA|PUBSUB)] [ID <id> [<id> ...]]",
            "NO-EVICT (ON|OFF)",
            "NO-TOUCH (ON|OFF)",
            "REPLY (ON|OFF|SKIP)",
            "SETINFO (LIB-NAME|LIB-VER) <value>",
            "SETNAME <name>",
            "TRACKINGINFO",
            "UNBLOCK <clientid> [TIMEOUT|ERROR]",
        ],
    ),
    (
        "CLUSTER",
        &[
            "COUNTKEYSINSLOT <slot>",
            "GETKEYSINSLOT <slot> <count>",
            "INFO",
            "KEYSLOT <key>",
            "MYID",
            "MYSHARDID",
            "NODES",
            "REPLICAS <node-id>",
            "SHARDS",
            "SLOTS",
            "    This proxy shows itself as the one node that owns all slots.",
        ],
    ),
    (
        "COMMAND",
        &[
            "(no subcommand)",
            "COUNT",
            "DOCS [<command-name> ...]",
            "GETKEYS <full-command>",
            "GETKEYSANDFLAGS <full-command>",
            "INFO [<command-name> ...]",
            "LIST",
        ],
    ),
    ("COMMANDLOG", &["GET <count> <type>", "LEN <type>", "RESET <type>"]),
    (
        "CONFIG",
        &[
            "GET <pattern> [<pattern> ...]",
            "    Return settings of this proxy, not of the servers behind it.",
            "RESETSTAT",
            "SET <directive> <value>",
            "    Nothing can be changed through this proxy.",
        ],
    ),
    (
        "FUNCTION",
        &[
            "DELETE <library-name>",
            "DUMP",
            "FLUSH [ASYNC|SYNC]",
            "KILL",
            "LIST [LIBRARYNAME <pattern>] [WITHCODE]",
            "LOAD [REPLACE] <code>",
            "RESTORE <payload> [FLUSH|APPEND|REPLACE]",
            "STATS",
        ],
    ),
    ("HOTKEYS", &["GET", "RESET", "STOP"]),
    (
        "LATENCY",
        &[
            "DOCTOR",
            "GRAPH <event>",
            "HISTOGRAM [<command> ...]",
            "HISTORY <event>",
            "LATEST",
            "RESET [<event> ...]",
        ],
    ),
    ("MEMORY", &["PURGE", "USAGE <key> [SAMPLES <count>]"]),
    ("MODULE", &["LIST"]),
    ("OBJECT", &["ENCODING <key>", "FREQ <key>", "IDLETIME <key>", "REFCOUNT <key>"]),
    (
        "PROXY",
        &[
            "NODE <id|host:port> <command> [<arg> ...]",
            "    Run a command at one node, as it is. For `admin_user` only.",
            "NODES",
            "    List the nodes, their addresses and slots. For `admin_user` only.",
            "HOTKEYS [RESET]",
            "    The keys asked for most: name, commands a second at most and for certain.",
            "    For `admin_user` only, and with the option `sample_keys`; so is BIGKEYS.",
            "BIGKEYS [RESET]",
            "    The largest values seen: key, bytes, command, how often.",
            "PING",
            "    Ask every primary; PONG if all answer.",
            "SLOWLOG [<count>]",
            "    As SLOWLOG GET, with the microseconds that the node took, and its address.",
            "    For `admin_user` only.",
        ],
    ),
    (
        "PUBSUB",
        &[
            "CHANNELS [<pattern>]",
            "NUMPAT",
            "NUMSUB [<channel> ...]",
            "SHARDCHANNELS [<pattern>]",
            "SHARDNUMSUB [<shardchannel> ...]",
        ],
    ),
    (
        "SCRIPT",
        &[
            "EXISTS <sha1> [<sha1> ...]",
            "FLUSH [ASYNC|SYNC]",
            "KILL",
            "LOAD <script>",
            "SHOW <sha1>",
        ],
    ),
    ("SLOWLOG", &["GET [<count>]", "LEN", "RESET"]),
    (
        "XGROUP",
        &[
            "CREATE <key> <groupname> <id|$> [option]",
            "CREATECONSUMER <key> <groupname> <consumer>",
            "DELCONSUMER <key> <groupname> <consumer>",
            "DESTROY <key> <groupname>",
            "SETID <key> <groupname> <id|$> [ENTRIESREAD <entries_read>]",
        ],
    ),
    (
        "XINFO",
        &["CONSUMERS <key> <groupname>", "GROUPS <key>", "STREAM <key> [FULL [COUNT <count>]]"],
    ),
];
