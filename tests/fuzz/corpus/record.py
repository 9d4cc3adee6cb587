#!/usr/bin/env python3
"""Records requests, replies and COMMAND GETKEYS of a real redis-server into the files beside this one.

    tests/fuzz/corpus/record.py [PORT]      starts redis-server at PORT (23900), one node of a cluster, and ends it

What is recorded is small on purpose: many kinds of frames, few bytes. Run it again for a newer server and look at
the difference before you keep it.
"""
import os, shutil, socket, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 23900

# One reply of each kind, in RESP2 and RESP3.
COMMANDS = """
PING
ECHO hello
SET k v
GET k
GET absent
INCR n
APPEND k more
MSET {t}a 1 {t}b 2 {t}c 3
MGET {t}a {t}absent {t}b
HSET h f v g w
HGETALL h
HGET h f
HRANDFIELD h 2 WITHVALUES
SADD s x y
SMEMBERS s
ZADD z 1.5 m 2 o inf p
ZRANGE z 0 -1 WITHSCORES
ZSCORE z m
ZSCORE z absent
RPUSH l 1 2 3
LRANGE l 0 -1
LPOP empty
BLPOP empty 0.01
XADD stream 1-1 f v
XRANGE stream - +
XREAD COUNT 1 STREAMS stream 0
XINFO STREAM stream
GEOADD geo 13.361389 38.115556 Palermo
GEOPOS geo Palermo absent
EXISTS {t}a {t}b {t}absent
DEL {t}a
CONFIG RESETSTAT
TYPE z
OBJECT ENCODING n
EVAL return{1,'two',{3},false,{err='MINE\\sx'}} 0
EVAL redis.setresp(3)return{double=2.5} 0
EVAL redis.setresp(3)return{map={a=true}} 0
EVAL redis.setresp(3)return{big_number='12345678901234567890'} 0
SCAN 0 COUNT 2
COMMAND COUNT
COMMAND INFO get mset eval zunionstore xread object sort blmpop lcs georadius_ro sintercard
COMMAND INFO nosuchcommand
CLUSTER SLOTS
CLUSTER SHARDS
CLUSTER NODES
CLUSTER INFO
CLUSTER KEYSLOT k
INFO keyspace
INFO commandstats
INFO errorstats
INFO nosuchsection
MEMORY USAGE k
LATENCY HISTOGRAM get
PUBSUB NUMSUB a b
CONFIG GET maxmemory
CLIENT INFO
ACL GETUSER default
DEBUG PROTOCOL attrib
DEBUG PROTOCOL push
DEBUG PROTOCOL verbatim
DEBUG PROTOCOL true
DEBUG PROTOCOL null
DEBUG PROTOCOL map
DEBUG PROTOCOL set
GET
NOSUCH x
HGET k f
MULTI
EXEC
SUBSCRIBE news
UNSUBSCRIBE news
RESET
"""

# Streams as clients send them: arrays, inline lines, what is wrong with either.
STREAMS = [
    b"PING\r\n", b"SET k v\nGET k\n", b"  SET   k    v   \r\n", b"SET \"a\\x0d\\n\" 'x y'\r\n",
    b"ECHO \"\\n\\r\\t\\b\\a\\\\\\\"\\x41\\q\"\r\n", b"ECHO \"\"\r\nECHO ''\r\n", b"SET a \"b\r\nPING\r\n",
    b"*0\r\n\r\n*-1\r\nPING\r\n", b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n", b"*2147483648\r\n", b"*1\r\n$536870913\r\n",
    b"*1\n$4\r\nPING\r\n", b"*1\r\n$abc\r\n", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
    b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$3\r\n\x00\xff\n\r\n", b"*1\r\n+PING\r\n", b"*2\r\n$3\r\nGET\r\n*1\r\n$1\r\na\r\n",
]

# What servers say of where keys are. None of those of which the table says more than the server does
# (`src/command/keys_tests.rs`).
GETKEYS = """
GET k
SET k v EX 10 NX GET
MGET a b c
MSET a 1 b 2
MSETNX a 1 b 2
DEL a b
RENAME a b
BITOP AND d a b
BLPOP a b 0
BLMOVE a b LEFT RIGHT 0
BLMPOP 0 2 a b LEFT COUNT 1
LMPOP 1 a RIGHT
ZUNION 2 a b WEIGHTS 1 2
ZUNIONSTORE d 2 a b AGGREGATE MAX
ZINTERCARD 2 a b LIMIT 1
SINTERSTORE d a b
SORT k
SORT k BY w* GET # LIMIT 0 1 ALPHA STORE d
EVAL return1 2 a b x
EVAL return1 0
EVALSHA 0123456789012345678901234567890123456789 1 a
FCALL f 1 a x
XREAD COUNT 1 BLOCK 1 STREAMS a b 0 0
XREADGROUP GROUP g c NOACK STREAMS a >
XADD s * f v
XGROUP CREATE s g $
XINFO STREAM s FULL
OBJECT ENCODING k
MEMORY USAGE k SAMPLES 5
GEORADIUS k 1 1 1 m STORE d
GEOSEARCHSTORE d k FROMLONLAT 1 1 BYRADIUS 1 m
GEORADIUSBYMEMBER k m 1 m STOREDIST d
MIGRATE h 1 k 0 1
MIGRATE h 1 \\e 0 1 KEYS a b
PFCOUNT a b
PFMERGE d a b
LCS a b LEN
COPY a b REPLACE
RESTORE k 0 v
ZRANGESTORE d s 0 -1
SMOVE a b m
HSET h f v
SPUBLISH c m
SSUBSCRIBE c d
"""


def escape(data):
    out = []
    for byte in data:
        out.append({13: "\\r", 10: "\\n", 92: "\\\\"}.get(byte) or (chr(byte) if 32 <= byte < 127 else "\\x%02x" % byte))
    return "".join(out)


def words(line):
    return [w.replace("\\s", " ").replace("\\e", "").encode() for w in line.split(" ")]


def request(args):
    return b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args)


class Client:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT))
        self.file = self.socket.makefile("rb")

    def ask(self, args):
        self.socket.sendall(request(args))
        return self.frame()

    def frame(self):
        line = self.file.readline()
        kind, size = line[:1], line[1:-2]
        if kind in b"$=!" and size != b"-1":
            return line + self.file.read(int(size) + 2)
        if kind in b"*~>" and size != b"-1":
            return line + b"".join(self.frame() for _ in range(int(size)))
        if kind in b"%|":
            body = b"".join(self.frame() for _ in range(2 * int(size)))
            return line + body + (self.frame() if kind == b"|" else b"")
        return line


def bulks(frame):
    """The texts of an array of bulk strings."""
    if not frame.startswith(b"*"):
        return None
    found, rest = [], frame[frame.index(b"\n") + 1 :]
    while rest:
        end = rest.index(b"\n") + 1
        size = int(rest[1 : end - 2])
        found.append(rest[end : end + size])
        rest = rest[end + size + 2 :]
    return found


def main():
    folder = tempfile.mkdtemp(prefix="ringway-record-")
    server = subprocess.Popen(
        ["redis-server", "--port", str(PORT), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--cluster-enabled",
         "yes", "--enable-debug-command", "yes", "--logfile", "log"])
    try:
        for _ in range(100):
            try:
                first = Client()
                break
            except OSError:
                time.sleep(0.05)
        first.ask([b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"16383"])
        while b"cluster_state:ok" not in first.ask([b"CLUSTER", b"INFO"]):
            time.sleep(0.05)
        replies = ["# Made by record.py: protocol version, command, reply."]
        for version in b"2", b"3":
            first.ask([b"FLUSHALL"])
            client = Client()
            hello = client.ask([b"HELLO", version])
            replies.append("%s HELLO => %s" % (version.decode(), escape(hello)))
            for line in COMMANDS.split("\n"):
                if line:
                    reply = client.ask(words(line))
                    if line == "DEBUG PROTOCOL push" and reply.startswith(b">"):
                        reply += client.frame()
                    replies.append("%s %s => %s" % (version.decode(), line, escape(reply)))
        requests = ["# Made by record.py: streams of requests."] + [escape(stream) for stream in STREAMS]
        requests += [escape(request(words(line))) for line in COMMANDS.split("\n") if line]
        getkeys = ["# Made by record.py: words, and which of them are keys by COMMAND GETKEYS."]
        for line in GETKEYS.split("\n"):
            keys = line and bulks(first.ask([b"COMMAND", b"GETKEYS"] + words(line)))
            if line and keys is not None:
                getkeys.append("%s => %s" % (line, " ".join(escape(key) or "\\e" for key in keys)))
            elif line:
                getkeys.append("%s =>" % line)
        for name, lines in ("replies", replies), ("requests", requests), ("getkeys", getkeys):
            with open(os.path.join(HERE, name + ".txt"), "w") as out:
                out.write("\n".join(lines) + "\n")
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder)


main()
