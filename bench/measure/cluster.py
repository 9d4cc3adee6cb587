"""Processes of a run: a cluster of our own, proxies; all ended with it.

Not here: what is sent through them.
"""
import os
import shlex
import shutil
import subprocess
import tempfile
import time

import host
from spec import Wrong


class Running:
    """Everything that was started, and the folder that it lives in."""

    def __init__(self):
        # In memory where there is room: a node that waits for a slow disk is no part of this.
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="ringway-compare-", dir=shared)
        self.processes = []

    def start(self, name, command, cpus):
        """Runs a command on these CPUs; what it says is kept for when it fails."""
        log = open(os.path.join(self.folder, f"{name}.log"), "wb")
        pinned = ["taskset", "-c", ",".join(map(str, cpus)), *command]
        try:
            process = subprocess.Popen(pinned, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        except OSError as error:
            raise Wrong(f"cannot start {name}: {error}") from error
        finally:
            log.close()
        self.processes.append(process)
        return process

    def await_port(self, name, process, port):
        if host.wait_for("127.0.0.1", port) and process.poll() is None:
            return
        told = "\n".join(host.lines(os.path.join(self.folder, f"{name}.log"))[-10:])
        raise Wrong(f"{name} does not listen at 127.0.0.1:{port}. It said:\n{told}")

    def end(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_nodes(running, ports, cpus):
    """Three primaries without persistence. Returns their pids."""
    for port in ports:
        if host.listeners(port) or host.wait_for("127.0.0.1", port, 0.1):
            raise Wrong(f"port {port} is taken; choose another --base-port")
    processes = []
    for port in ports:
        folder = os.path.join(running.folder, str(port))
        os.mkdir(folder)
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                   "--dir", folder, "--cluster-enabled", "yes", "--maxclients", "20000"]
        processes.append(running.start(f"node-{port}", command, cpus))
    for port, process in zip(ports, processes):
        running.await_port(f"node-{port}", process, port)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    done = subprocess.run(["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"], capture_output=True,
                          text=True)
    if done.returncode:
        raise Wrong(f"redis-cli could not make a cluster: {done.stdout}{done.stderr}")
    for _ in range(200):
        if all("cluster_state:ok" in ask(port, "cluster", "info") for port in ports):
            return [process.pid for process in processes]
        time.sleep(0.1)
    raise Wrong("the cluster did not come up within 20 seconds")


def ask(port, *words, address="127.0.0.1"):
    done = subprocess.run(["redis-cli", "-h", address, "-p", str(port), *words], capture_output=True, text=True)
    return done.stdout


def nodes_of(address, port):
    """Host and port of every primary, as a node of a running cluster names them."""
    told = ask(port, "cluster", "nodes", address=address)
    found = []
    for line in told.splitlines():
        fields = line.split(" ")
        if len(fields) > 7 and "master" in fields[2] and "fail" not in fields[2]:
            where, _, number = fields[1].split("@")[0].rpartition(":")
            found.append((where or address, int(number)))
    if not found:
        raise Wrong(f"{address}:{port} tells no cluster nodes: {told.strip() or 'no answer'}")
    return found


def start_proxy(running, target, cpus):
    """Starts the proxy of a target; returns its process."""
    if host.wait_for("127.0.0.1", target.port, 0.1):
        raise Wrong(f"port {target.port} is taken; {target.name} cannot be started there")
    process = running.start(target.name, shlex.split(target.command), cpus)
    running.await_port(target.name, process, target.port)
    return process
