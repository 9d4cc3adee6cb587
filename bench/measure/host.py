"""What the host and its kernel say: the machine, processes, CPU time, system calls.

Not here: starting clusters and loads.
"""
import os
import platform
import shutil
import signal
import socket
import subprocess
import time


def machine():
    """What a reader must know to judge the figures."""
    cpu = next((line.split(":", 1)[1].strip() for line in lines("/proc/cpuinfo") if line.startswith("model name")),
               platform.machine())
    memory = next((int(line.split()[1]) // 1024 for line in lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    flags = next((line for line in lines("/proc/cpuinfo") if line.startswith("flags")), "")
    governor = "".join(lines("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "memory_mib": memory,
        "kernel": platform.release(),
        "virtual": " hypervisor" in flags,
        "governor": governor or "unknown",
        "load_before": os.getloadavg()[0],
    }


def lines(path):
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def first_line_of(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return next((line.strip() for line in (done.stdout or done.stderr).splitlines() if line.strip()), "unknown")


def commit():
    """The commit measured, with a + if the tree has changes."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if git("status", "--porcelain") else "")


def family(pids):
    """These processes and all their descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = "".join(lines(f"/proc/{entry}/stat"))
            fields = stat.rpartition(")")[2].split()
            if len(fields) > 1:
                parents.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = [], list(pids)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting.extend(parents.get(pid, []))
    return found


def cpu_ns(pids):
    """CPU time so far, over all threads: the scheduler's own accounting, or ticks where it tells nothing."""
    total = 0
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        spent = sum(int(text.split()[0]) for thread in threads
                    for text in lines(f"/proc/{pid}/task/{thread}/schedstat")[:1])
        if spent == 0:
            fields = "".join(lines(f"/proc/{pid}/stat")).rpartition(")")[2].split()
            if len(fields) > 12:
                spent = (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        total += spent
    return total


def listeners(port):
    """Processes on this host that listen at a port, as far as we may see them."""
    inodes = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in lines(path)[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            for descriptor in os.listdir(f"/proc/{entry}/fd"):
                if os.readlink(f"/proc/{entry}/fd/{descriptor}") in inodes:
                    found.append(int(entry))
                    break
        except OSError:
            continue
    return found


def is_local(host):
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
        return True
    except OSError:
        return False


def wait_for(host, port, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection((host, port), 1).close()
            return True
        except OSError:
            time.sleep(0.05)
    return False


class CallCounter:
    """Counts system calls of processes with perf's tracepoint. It costs them time: never in a measured round."""

    EVENT = "raw_syscalls:sys_enter"

    @classmethod
    def problem(cls):
        """Why it cannot be used here; None if it can."""
        if shutil.which("perf") is None:
            return "perf is not installed (Debian: linux-perf)"
        tried = subprocess.run(["perf", "stat", "-x,", "-e", cls.EVENT, "true"], capture_output=True, text=True)
        if tried.returncode == 0 and cls.read(tried.stderr) is not None:
            return None
        return "perf may not count raw_syscalls here (needs root, or kernel.perf_event_paranoid=-1 and a readable tracefs)"

    @staticmethod
    def read(text):
        """The count in what `perf stat -x,` says."""
        for line in text.splitlines():
            fields = line.split(",")
            if len(fields) > 2 and fields[2].startswith("raw_syscalls") and fields[0].isdigit():
                return int(fields[0])
        return None

    def __init__(self, pids):
        command = ["perf", "stat", "-x,", "-e", self.EVENT, "-p", ",".join(map(str, pids))]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            told = self.process.communicate(timeout=10)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return None
        return self.read(told)


def ring_enters(host, port):
    """Calls of io_uring_enter since Ringway's start, as it tells them itself; None where nobody does."""
    try:
        with socket.create_connection((host, port), 2) as connection:
            connection.settimeout(2)
            connection.sendall(b"INFO ringway\r\n")
            told = b""
            while not told.startswith(b"-") and b"ring_enters:" not in told:
                more = connection.recv(65536)
                if not more:
                    return None
                told += more
            while b"ring_enters:" in told and b"\n" not in told.partition(b"ring_enters:")[2]:
                told += connection.recv(65536)
            digits = told.partition(b"ring_enters:")[2].split(b"\r")[0]
            return int(digits) if digits.isdigit() else None
    except OSError:
        return None
