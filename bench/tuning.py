#!/usr/bin/env python3
"""What settings of tuning/settings.tsv do, measured: each with the kernel's default or a bad value, and as it is wanted.

  bench/tuning.sh            all that can be measured on any machine, in about two minutes
  bench/tuning.sh NAME …     these rows only (net.core.somaxconn, memlock, …)
  bench/tuning.sh --list     their names

Nothing of the host is changed but transparent huge pages, for seconds, which are put back whatever happens: sysctls of the
network are set in a network namespace of our own, which ends with the process, and limits are those of child processes.
Needs root, python3, iproute2 and target/release/ringway (or --ringway PATH); redis-server for what needs a node.
"""
import argparse
import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

PORT = 6379
NODE = 7000
ROWS = {}


def row(name):
    def keep(function):
        ROWS[name] = function
        return function
    return keep


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("rows", nargs="*", metavar="NAME")
    options.add_argument("--list", action="store_true")
    options.add_argument("--ringway", default="target/release/ringway")
    options.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.list:
        print("\n".join(ROWS))
        return 0
    for name in given.rows:
        if name not in ROWS:
            sys.exit(f"tuning.sh: {name!r} is not measured here; there are: {' '.join(ROWS)}")
    if os.geteuid() != 0:
        sys.exit("tuning.sh: needs root, for network namespaces")
    if not os.access(given.ringway, os.X_OK):
        sys.exit(f"tuning.sh: {given.ringway} is missing: cargo build --release --locked --bin ringway")
    if given.inside:
        inside(given.rows[0], given.ringway)
        return 0
    # So that what is put back below is put back then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("tuning.sh: ended by a signal"))
    before = huge_pages()
    try:
        return measure(given)
    finally:
        if huge_pages() != before:
            huge_pages(before)


def measure(given):
    failed = 0
    for name in given.rows or ROWS:
        print(name, flush=True)
        # A namespace of its own for each: what is set in it ends with it.
        command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, __file__,
                   "--inside", "--ringway", given.ringway, name]
        failed += subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0
    return 1 if failed else 0


def huge_pages(value=None):
    """The host's setting; None where there is none. With a value: sets it."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", "w" if value else "r") as file:
            return file.write(value) if value else file.read().split("[")[1].split("]")[0]
    except OSError:
        return None


def inside(name, ringway):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="ringway-tuning-") as folder:
        bed = Bed(ringway, folder)
        try:
            ROWS[name](bed)
        finally:
            bed.end()


# --- what they are tried on ---------------------------------------------------------------------------------------------


class Bed:
    """Processes of one measurement, and words about it."""

    def __init__(self, ringway, folder):
        self.ringway, self.folder, self.processes, self.away = ringway, folder, [], None

    def start(self, command, name):
        log = open(os.path.join(self.folder, name), "ab")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        log.close()
        self.processes.append(process)
        return process

    def proxy(self, *more, by=(), node=False, wait=True):
        """Ringway at PORT of any address, one reactor unless told otherwise."""
        address = f"127.0.0.1:{NODE}" if node else "127.0.0.1:1"
        arguments = [] if "--reactors" in more else ["--reactors", "1"]
        process = self.start([*by, self.ringway, "--listen", f"0.0.0.0:{PORT}", "--node", address,
                              "--admin-listen", "off", *arguments, *more], "proxy")
        if wait:
            await_line(lambda: "listening addresses" in self.said("proxy"), "the proxy to listen")
        return process

    def node(self):
        self.start(["redis-server", "--port", str(NODE), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder,
                    "--cluster-enabled", "yes", "--client-query-buffer-limit", "1gb"], "node")
        await_line(lambda: ask(NODE, "CLUSTER ADDSLOTSRANGE 0 16383") == "+OK", "the node")
        await_line(lambda: "cluster_state:ok" in ask(NODE, "CLUSTER INFO", whole=True), "its slots")

    def said(self, name):
        try:
            with open(os.path.join(self.folder, name)) as file:
                return file.read()
        except OSError:
            return ""

    def nowhere(self, address):
        """The device `away`: what is sent there is lost. (Not every kernel has `dummy`.)"""
        if self.away is None:
            self.away = tun("away")
            subprocess.run(f"ip addr add {address} dev away && ip link set away up", shell=True, check=True)

    def end_all(self):
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.processes = []
        for name in os.listdir(self.folder):
            with contextlib.suppress(OSError):
                os.remove(os.path.join(self.folder, name))

    end = end_all


TUNSETIFF, IFF_TUN_NO_PI = 0x400454CA, 0x1001


def tun(name):
    """A network device whose other end is a descriptor of ours."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN_NO_PI))
    return end


def tell(setting, text):
    print(f"  {setting:<44}{text}", flush=True)


def await_line(holds, what, limit=15):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if holds():
                return
        time.sleep(0.02)
    sys.exit(f"tuning.sh: waited {limit} s in vain for {what}")


def ask(port, line, whole=False):
    with socket.create_connection(("127.0.0.1", port), 3) as connection:
        connection.sendall(line.encode() + b"\r\n")
        time.sleep(0.05 if whole else 0)
        return connection.recv(65536).decode(errors="replace").strip()


def sysctl(name, value):
    with open("/proc/sys/" + name.replace(".", "/"), "w") as file:
        file.write(str(value))


def counter(*names):
    """Sums of the namespace's counters (nstat's TcpExt… and Tcp…)."""
    found = {}
    for path in ("/proc/net/netstat", "/proc/net/snmp"):
        with open(path) as file:
            lines = file.read().splitlines()
        for heads, values in zip(lines[::2], lines[1::2]):
            found.update(zip(heads.split()[1:], map(int, values.split()[1:])))
    return sum(found[name] for name in names)


def count_served(sockets):
    """How many of these clients get an answer."""
    served = 0
    for connection in sockets:
        connection.setblocking(True)
        connection.settimeout(2)
        with contextlib.suppress(OSError):
            connection.sendall(b"PING\r\n")
            served += connection.recv(100) == b"+PONG\r\n"
    return served


def close_all(sockets):
    for connection in sockets:
        connection.close()


def burst(count, address=("127.0.0.1", PORT), seconds=1.0):
    """Connections that are asked for at once. Returns them all, and how many stood within the time."""
    sockets = []
    for _ in range(count):
        connection = socket.socket()
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.connect(address)
        sockets.append(connection)
    end, waiting, stood = time.monotonic() + seconds, set(sockets), 0
    poll = select.poll()
    by_fd = {connection.fileno(): connection for connection in sockets}
    for fd in by_fd:
        poll.register(fd, select.POLLOUT)
    while waiting and time.monotonic() < end:
        for fd, _ in poll.poll(50):
            poll.unregister(fd)
            waiting.discard(by_fd[fd])
            stood += by_fd[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    return sockets, stood


# --- rows: connections ----------------------------------------------------------------------------------------------------


@row("net.core.somaxconn")
def _(bed):
    """2,000 clients reconnect while the process does not get to accept (as after a stall of a second)."""
    for value in (128, 4096):
        sysctl("net.core.somaxconn", value)
        proxy = bed.proxy()
        before = counter("ListenOverflows")
        proxy.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        sockets, stood = burst(2000)
        proxy.send_signal(signal.SIGCONT)
        tell(f"somaxconn {value}", f"{stood} of 2000 connections stand within a second, "
             f"{counter('ListenOverflows') - before} times the queue was full")
        close_all(sockets)
        bed.end_all()


def flood(away, count):
    """SYNs from addresses that never answer, as if they came by the device `away`."""
    there = socket.inet_aton("10.8.0.1")
    for number in range(count):
        here = socket.inet_aton(f"10.9.{number >> 8 & 255}.{number & 255}")
        head = struct.pack("!HHIIBBHHH", 1024 + number % 60000, PORT, number, 0, 5 << 4, 2, 64240, 0, 0)
        check = checksum(here + there + struct.pack("!BBH", 0, 6, len(head)) + head)
        head = head[:16] + struct.pack("!H", check) + head[18:]
        outer = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(head), number & 0xFFFF, 0, 64, 6, 0, here, there)
        outer = outer[:10] + struct.pack("!H", checksum(outer)) + outer[12:]
        os.write(away, outer + head)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def half_open(bed, syncookies, backlog, strangers):
    """So many half-open connections, then 20 honest clients, who wait half a second."""
    # Answers to the strangers go nowhere.
    bed.nowhere("10.8.0.1/24")
    subprocess.run(["ip", "route", "replace", "10.9.0.0/16", "dev", "away"], check=True)
    sysctl("net.core.somaxconn", 4096)
    sysctl("net.ipv4.tcp_syncookies", syncookies)
    sysctl("net.ipv4.tcp_max_syn_backlog", backlog)
    bed.proxy()
    names = "ListenDrops", "SyncookiesSent"
    before = [counter(name) for name in names]
    flood(bed.away, strangers)
    sockets, stood = burst(20, ("10.8.0.1", PORT), 0.5)
    dropped, cookies = (counter(name) - then for name, then in zip(names, before))
    close_all(sockets)
    bed.end_all()
    return f"{stood} of 20 honest clients connect behind {strangers} that never answer; {dropped} dropped, {cookies} cookies"


@row("net.ipv4.tcp_max_syn_backlog")
def _(bed):
    for backlog in (128, 4096):
        tell(f"tcp_max_syn_backlog {backlog}, no cookies", half_open(bed, 0, backlog, 2500))


@row("net.ipv4.tcp_syncookies")
def _(bed):
    for cookies in (0, 1):
        tell(f"tcp_syncookies {cookies}, backlog 4096", half_open(bed, cookies, 4096, 6000))


@row("net.ipv4.tcp_migrate_req")
def _(bed):
    """Two processes at one address; 400 clients come, and one of the two ends without having accepted its share."""
    for value in (0, 1):
        sysctl("net.ipv4.tcp_migrate_req", value)
        first = bed.proxy()
        second = bed.start([bed.ringway, "--listen", f"0.0.0.0:{PORT}", "--node", "127.0.0.1:1", "--admin-listen", "off",
                            "--reactors", "1"], "second")
        await_line(lambda: "listening addresses" in bed.said("second"), "the second proxy")
        first.send_signal(signal.SIGSTOP)
        sockets, stood = burst(400)
        first.kill()
        first.wait()
        served = count_served(sockets)
        close_all(sockets)
        assert second.poll() is None
        tell(f"tcp_migrate_req {value}", f"{served} of {stood} clients are served, {stood - served} are reset")
        bed.end_all()


@row("net.ipv4.ip_local_port_range")
def _(bed):
    """A load generator opens 1,500 connections to one address."""
    for ports in ("32768 33791", "10240 65535"):
        sysctl("net.ipv4.ip_local_port_range", ports)
        bed.proxy()
        opened, refused, sockets = 0, 0, []
        for _ in range(1500):
            try:
                sockets.append(socket.create_connection(("127.0.0.1", PORT), 2))
                opened += 1
            except OSError as error:
                refused += error.errno == errno.EADDRNOTAVAIL
        tell(f"ip_local_port_range {ports}", f"{opened} connections, {refused} times EADDRNOTAVAIL")
        close_all(sockets)
        bed.end_all()


@row("net.ipv4.tcp_tw_reuse")
def _(bed):
    """A load generator with 200 ports connects and ends 200 times, then once more a second later."""
    # From an address that is not loopback: 2, the default, reuses there and nowhere else.
    bed.nowhere("10.8.0.1/24")
    for value in (0, 1):
        # Other ports each time: those of the time before still wait.
        sysctl("net.ipv4.ip_local_port_range", f"{20000 + value * 1000} {20199 + value * 1000}")
        sysctl("net.ipv4.tcp_tw_reuse", value)
        bed.proxy()
        done = [0, 0]
        for turn in (0, 1):
            for _ in range(200):
                with contextlib.suppress(OSError):
                    with socket.create_connection(("10.8.0.1", PORT), 2) as connection:
                        connection.sendall(b"PING\r\n")
                        connection.recv(100)
                    done[turn] += 1
            time.sleep(1.2)
        tell(f"tcp_tw_reuse {value}", f"{done[0]} of the first 200 connections, {done[1]} of the next 200")
        bed.end_all()


# --- rows: large values over a link with a delay ----------------------------------------------------------------------------


DELAY = 0.02


class Link:
    """Two network devices in two namespaces, joined by a thread that holds each packet for DELAY: 40 ms there and back.

    The kernel's netem would do it better; not every kernel has it.
    """

    def __init__(self):
        # The far side: a process that holds a namespace open.
        self.far = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
        await_line(lambda: os.readlink(f"/proc/{self.far.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "a namespace")
        self.ends = [tun("near"), tun("far")]
        run = lambda text: subprocess.run(text, shell=True, check=True)
        run(f"ip link set far netns {self.far.pid}")
        run("ip addr add 10.7.0.1/24 dev near && ip link set near mtu 60000 up")
        run(f"nsenter -t {self.far.pid} -n sh -c 'ip link set lo up; ip addr add 10.7.0.2/24 dev far; "
            "ip link set far mtu 60000 up'")
        self.over = False
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()

    def carry(self):
        waiting = []
        while not self.over:
            patience = max(0, waiting[0][0] - time.monotonic()) if waiting else 0.1
            ready, _, _ = select.select(self.ends, [], [], patience)
            now = time.monotonic()
            for end in ready:
                with contextlib.suppress(BlockingIOError):
                    for _ in range(64):
                        packet = os.read(end, 65536)
                        waiting.append((now + DELAY, self.ends[1 - self.ends.index(end)], packet))
            while waiting and waiting[0][0] <= now:
                _, end, packet = waiting.pop(0)
                with contextlib.suppress(OSError):
                    os.write(end, packet)

    def far_sysctl(self, name, value):
        path = "/proc/sys/" + name.replace(".", "/")
        subprocess.run(["nsenter", "-t", str(self.far.pid), "-n", "sh", "-c", f"echo '{value}' >{path}"], check=True)

    def times(self, script):
        """Milliseconds that a client on the far side measures, as its script prints them."""
        client = CLIENT + script
        told = subprocess.run(["nsenter", "-t", str(self.far.pid), "-n", sys.executable, "-c", client], check=True,
                              capture_output=True, text=True).stdout
        return [float(line) for line in told.split()]

    def end(self):
        self.over = True
        self.thread.join()
        for end in self.ends:
            os.close(end)
        self.far.kill()
        self.far.wait()


CLIENT = f"""
import socket, time
c = socket.create_connection(("10.7.0.1", {PORT}), 20)
c.settimeout(60)
def head():
    text = b""
    while not text.endswith(b"\\r\\n"): text += c.recv(1)
    return text
def get(key):
    start = time.monotonic()
    c.sendall(b"GET " + key + b"\\r\\n")
    missing = int(head()[1:]) + 2
    while missing: missing -= len(c.recv(min(missing, 1 << 20)))
    return (time.monotonic() - start) * 1e3
def put(key, size):
    start = time.monotonic()
    c.sendall(b"*3\\r\\n$3\\r\\nSET\\r\\n$%d\\r\\n%s\\r\\n$%d\\r\\n" % (len(key), key, size) + b"x" * size + b"\\r\\n")
    assert head() == b"+OK\\r\\n"
    return (time.monotonic() - start) * 1e3
"""


def over_a_link(bed, settings, script):
    """Times of a far client, under settings of the proxy's side."""
    link = Link()
    try:
        for name, value in settings.items():
            sysctl(name, value)
        # The far side has room in any case: what is measured is ours.
        for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
            link.far_sysctl(name, "4096 131072 33554432")
        bed.node()
        bed.proxy(node=True)
        await_line(lambda: ask(PORT, "GET x") == "$-1", "the proxy to serve")
        return link.times(script)
    finally:
        link.end()
        bed.end_all()


@row("net.ipv4.tcp_slow_start_after_idle")
def _(bed):
    """A client 40 ms away gets 256 KiB, ten times in a row, then after each of three pauses of two seconds."""
    script = """put(b"k", 262144)
for _ in range(10): last = get(b"k")
print(last)
for _ in range(3):
    time.sleep(2)
    print(get(b"k"))
"""
    # Any namespace may have reno; bbr does not look at this setting.
    for value in (1, 0):
        settings = {"net.ipv4.tcp_slow_start_after_idle": value, "net.ipv4.tcp_congestion_control": "reno"}
        told = over_a_link(bed, settings, script)
        tell(f"tcp_slow_start_after_idle {value}", f"in a row {told[0]:.0f} ms, after a pause {median(told[1:]):.0f} ms")


@row("net.ipv4.tcp_rmem")
def _(bed):
    """A client 40 ms away sets 4 MiB: six times, the median."""
    for value in ("4096 65536 131072", "4096 131072 4194304", "4096 131072 16777216"):
        told = over_a_link(bed, {"net.ipv4.tcp_rmem": value}, 'for _ in range(6): print(put(b"k", 4 << 20))\n')
        tell(f"tcp_rmem {value}", f"SET of 4 MiB takes {median(told):.0f} ms")


@row("net.ipv4.tcp_wmem")
def _(bed):
    """A client 40 ms away gets 4 MiB: six times, the median."""
    script = 'put(b"k", 4 << 20)\nfor _ in range(6): print(get(b"k"))\n'
    for value in ("4096 16384 131072", "4096 16384 4194304", "4096 16384 16777216"):
        told = over_a_link(bed, {"net.ipv4.tcp_wmem": value}, script)
        tell(f"tcp_wmem {value}", f"GET of 4 MiB takes {median(told):.0f} ms")


def median(values):
    return sorted(values)[len(values) // 2]


# --- rows: memory and limits ------------------------------------------------------------------------------------------------


@row("/sys/kernel/mm/transparent_hugepage/enabled")
def _(bed):
    """Resident memory of a proxy that has just started, and with 2,000 idle clients."""
    before = huge_pages()
    try:
        for value in ("always", "madvise"):
            huge_pages(value)
            proxy = bed.proxy()
            started = resident(proxy)
            # On a busy machine they stand late; one that never does is not asked.
            sockets, stood = burst(2000, seconds=20)
            for connection in sockets:
                connection.setblocking(True)
                with contextlib.suppress(OSError):
                    connection.sendall(b"PING\r\n")
                    connection.recv(100)
            full = resident(proxy)
            tell(f"transparent_hugepage {value}", f"{started[0]} KiB at the start ({started[1]} in huge pages), "
                 f"{full[0]} KiB with {stood} clients ({full[1]})")
            close_all(sockets)
            bed.end_all()
    finally:
        huge_pages(before)


def resident(process):
    with open(f"/proc/{process.pid}/smaps_rollup") as file:
        facts = dict(line.split()[:2] for line in file.read().splitlines()[1:])
    return int(facts["Rss:"]), int(facts["AnonHugePages:"])


@row("nofile")
def _(bed):
    """1,500 clients."""
    for value in (1024, 4096):
        bed.proxy(by=["prlimit", f"--nofile={value}:{value}"])
        sockets, _ = burst(1500)
        served = count_served(sockets)
        lowered = "maxclients is lowered" in bed.said("proxy")
        tell(f"nofile {value}", f"{served} of 1500 clients are served{', the log says so' if lowered else ''}")
        close_all(sockets)
        bed.end_all()


@row("memlock")
def _(bed):
    """A user without rights (root is free of the limit) starts it."""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    # The program may lie where nobody else may go.
    program = os.path.join("/tmp", f"ringway-tuning-{os.getpid()}-{time.monotonic_ns()}")
    subprocess.run(["install", "-m", "755", bed.ringway, program], check=True)
    bed.ringway = program
    try:
        # As much as we may give.
        most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        for value in ("65536", "unlimited" if most < 0 else str(most)):
            process = bed.proxy(by=["prlimit", f"--memlock={value}:{value}", *user], wait=False)
            end = time.monotonic() + 5
            while time.monotonic() < end and process.poll() is None and "listening addresses" not in bed.said("proxy"):
                time.sleep(0.02)
            code = process.poll()
            last = bed.said("proxy").strip().splitlines()[-1:] or ["nothing"]
            tell(f"memlock {value}", "serves" if code is None else f"ends with {code}: {last[0][:160]}")
            bed.end_all()
    finally:
        os.remove(program)


if __name__ == "__main__":
    sys.exit(main())
