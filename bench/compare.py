#!/usr/bin/env python3
"""Compares cluster proxies in one run: CPU per command, throughput, latency; Ringway's system calls per command.

Three primaries and the load share CPU 1, each proxy has CPU 0 in its turn, one worker thread each. Rounds are
interleaved (A B A B ...); the median is printed, with the ratio to the first proxy named. CPU time is the scheduler's
own accounting over all threads of the proxy. Absolute times lie on a shared machine; ratios within one run hold better.

  bench/compare.py                                     Ringway alone
  bench/compare.py --peer 'NAME=PORT:COMMAND'          a peer first, then Ringway; may be given several times
  bench/compare.py --workloads get_p1_c50 --rounds 5

A peer's command is run as it is and must proxy 127.0.0.1:7300, 7301 and 7302 at PORT. Needs redis-server,
redis-cli and redis-benchmark, and target/release/ringway. Everything runs on 127.0.0.1 and ends by itself.
"""
import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "measure"))

import cluster
import host
from spec import Wrong

NODES = [7300, 7301, 7302]
OURS = 7399

# name: arguments of redis-benchmark, commands that it sends, commands for each that it counts
WORKLOADS = {
    "get_p1_c50": ("-c 50 -P 1 -r 100000 -d 64 -t get", 200_000, 1),
    "get_p1_c16": ("-c 16 -P 1 -r 100000 -d 64 -t get", 150_000, 1),
    "set_p1_c200": ("-c 200 -P 1 -r 100000 -d 64 -t set", 200_000, 1),
    "get_p1_c1000": ("-c 1000 -P 1 -r 100000 -d 64 -t get", 200_000, 1),
    "get_p16_c50": ("-c 50 -P 16 -r 100000 -d 64 -t get", 1_500_000, 1),
    "set_p64_c50": ("-c 50 -P 64 -r 100000 -d 64 -t set", 2_000_000, 1),
    "mget10_c50": ("-c 50 -P 1 -r 100000 MGET " + "key:__rand_int__ " * 10, 60_000, 1),
    "mset10_c50": ("-c 50 -P 1 -r 100000 -d 64 -t mset", 60_000, 1),
    "get_16k_c50": ("-c 50 -P 1 -r 1000 -d 16384 -t set,get", 40_000, 2),
    "get_p1_c1": ("-c 1 -P 1 -r 100000 -d 64 -t get", 40_000, 1),
}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--peer", action="append", default=[])
    options.add_argument("--workloads", default=",".join(WORKLOADS))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--ringway", default="target/release/ringway")
    options.add_argument("--arguments", default="", help="more arguments for Ringway")
    options.add_argument("--json", help="write the medians there")
    given = options.parse_args()
    proxies = [parse_peer(peer) for peer in given.peer]
    ours = f"{given.ringway} --listen 127.0.0.1:{OURS} --node 127.0.0.1:{NODES[0]} --reactors 1 {given.arguments}"
    proxies.append(("ringway", OURS, ours))
    started = cluster.Running()
    try:
        nodes = cluster.start_nodes(started, NODES, [1])
        running = []
        for name, port, command in proxies:
            process = started.start(name, shlex.split(command), [0])
            started.await_port(name, process, port)
            running.append((name, port, [process.pid]))
        time.sleep(1)
        run_load(running[0][1], "-c 20 -P 16 -r 100000 -d 64 -t set", 300_000)
        print(f"{platform.processor() or platform.machine()}, Linux {platform.release()}, {os.cpu_count()} CPUs")
        medians = {name: compare(name, running, nodes, given.rounds) for name in given.workloads.split(",")}
        if given.json:
            with open(given.json, "w") as out:
                json.dump(medians, out, indent=1)
    except Wrong as wrong:
        sys.exit(f"compare.py: {wrong}")
    finally:
        started.end()


def parse_peer(text):
    name, rest = text.split("=", 1)
    port, command = rest.split(":", 1)
    return name, int(port), command


def compare(workload, running, nodes, rounds):
    arguments, count, times = WORKLOADS[workload]
    rows = {name: [] for name, _, _ in running}
    for _ in range(rounds):
        for name, port, proxy in running:
            before = host.cpu_ns(proxy), host.cpu_ns(nodes), ring_calls(port)
            load = run_load(port, arguments, count)
            after = host.cpu_ns(proxy), host.cpu_ns(nodes), ring_calls(port)
            used = [(late - early) / (count * times) for early, late in zip(before, after)]
            rows[name].append([*used, load[0], load[3], load[5]])
    print(f"== {workload}")
    medians = {name: [statistics.median(column) for column in zip(*row)] for name, row in rows.items()}
    first = next(iter(medians.values()))
    for name, (proxy, node, calls, rate, p50, p99) in medians.items():
        entered = f"  {calls:.3f} io_uring_enter/cmd" if calls else ""
        print(f"  {name:12s} proxy {proxy:7.0f} ns/cmd (x{proxy / first[0]:.2f})  nodes {node:7.0f} ns/cmd "
              f"(x{node / first[1]:.2f})  {rate:9.0f}/s (x{rate / first[3]:.2f})  p50 {p50:.3f}  p99 {p99:.3f} ms"
              f"{entered}",
              flush=True)
    return medians


def run_load(port, arguments, count):
    """Requests per second, then latencies in ms: mean, least, p50, p95, p99, most."""
    done = subprocess.run(
        ["timeout", "120", "taskset", "-c", "1", "redis-benchmark", "-p", str(port), "-n", str(count), "--csv",
         *arguments.split()], capture_output=True, text=True)
    figures = None
    for line in done.stdout.splitlines():
        # The command may hold commas; the last seven fields are the figures.
        try:
            figures = [float(field) for field in line.replace('"', "").split(",")[-7:]]
        except ValueError:
            continue
    if figures is None:
        sys.exit(f"redis-benchmark {arguments} at port {port} brought no figures: {done.stderr.strip()}")
    return figures


def ring_calls(port):
    """Calls of io_uring_enter since the proxy's start, as Ringway tells them; 0 where nobody does."""
    return host.ring_enters("127.0.0.1", port) or 0


main()
