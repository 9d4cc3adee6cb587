"""What is to be measured: targets, CPUs, points; all of it read from the command line.

Not here: running anything.
"""
import argparse
import os
import re
from collections import namedtuple

LOADS = ("redis-benchmark", "memtier", "open_loop")

# What each load program can ask for.
OPS = {
    "redis-benchmark": ("get", "set", "mget10", "mset10"),
    "memtier": ("get", "set", "mixed"),
    "open_loop": ("get", "set", "mixed"),
}
# Keys of several slots in one command: no node answers that.
NOT_DIRECT = ("mget10", "mset10")

# A point of the comparison. rate: commands a second, for open_loop only.
Point = namedtuple("Point", "load op clients pipeline rate")
# command: None for what runs already.
Target = namedtuple("Target", "name kind host port command")

MEMTIER_MISSING = """memtier_benchmark is not to be found. Debian 12 has no package of it. Its authors' packages are at
https://packages.redis.io (package memtier-benchmark; how to add that source: the README of
https://github.com/RedisLabs/memtier_benchmark), Homebrew has it as memtier_benchmark. A program that is there already is
named with --memtier PATH. To measure without it, say so: --loads redis-benchmark"""


class Wrong(Exception):
    """A mistake in what was asked for; the text is for people."""


def parse_target(text):
    """name=HOST:PORT runs already, name=PORT:COMMAND is to be started."""
    name, equals, rest = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9_.-]{1,24}", name):
        raise Wrong(f"--proxy {text!r}: wanted name=HOST:PORT or name=PORT:COMMAND, the name of letters and digits")
    if name in ("direct", "ringway"):
        raise Wrong(f"--proxy {text!r}: the name {name} is taken; use another, or --no-{name}")
    started = re.fullmatch(r"(\d+):(.+)", rest)
    if started:
        return Target(name, "proxy", "127.0.0.1", parse_port(started[1], text), started[2].strip())
    host, colon, port = rest.rpartition(":")
    if not colon or not host:
        raise Wrong(f"--proxy {text!r}: wanted name=HOST:PORT or name=PORT:COMMAND")
    return Target(name, "proxy", host.strip("[]"), parse_port(port, text), None)


def parse_port(text, whole):
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise Wrong(f"{whole!r}: {text!r} is no port")
    return int(text)


def parse_address(text):
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise Wrong(f"{text!r}: wanted HOST:PORT")
    return host.strip("[]"), parse_port(port, text)


def parse_cpu_list(text):
    """CPU numbers as the kernel writes them: 0,2-3."""
    cpus = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise Wrong(f"CPUs {text!r}: wanted numbers such as 0,2-3")
        cpus.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return cpus


def parse_cpus(text, available):
    """proxy=0,nodes=1-2,load=3 (or with blanks between): who runs where."""
    if not text:
        return default_cpus(available)
    roles = {}
    for match in re.finditer(r"([a-z]+)=([0-9,-]*[0-9])", text):
        roles[match[1]] = parse_cpu_list(match[2])
    left = re.sub(r"([a-z]+)=([0-9,-]*[0-9])", "", text).strip(" ,")
    if left or set(roles) != {"proxy", "nodes", "load"}:
        raise Wrong(f"--cpus {text!r}: wanted proxy=LIST,nodes=LIST,load=LIST")
    for role, cpus in roles.items():
        missing = [cpu for cpu in cpus if cpu not in available]
        if missing:
            raise Wrong(f"--cpus {role}: CPU {missing[0]} is not among those that may be used ({available})")
    return roles


def default_cpus(available):
    """The proxy has the first CPU to itself; nodes and load share the rest, or the second."""
    if len(available) == 1:
        raise Wrong("one CPU is too few: the proxy must not share its own. Figures would say nothing")
    rest = available[1:]
    if len(rest) == 1:
        return {"proxy": available[:1], "nodes": rest, "load": rest}
    half = len(rest) // 2
    return {"proxy": available[:1], "nodes": rest[:half], "load": rest[half:]}


def parse_numbers(text, name):
    if not re.fullmatch(r"\d+(,\d+)*", text) or any(int(part) < 1 for part in text.split(",")):
        raise Wrong(f"--{name} {text!r}: wanted numbers from 1 on, with commas")
    return sorted({int(part) for part in text.split(",")})


def points(loads, ops, clients, pipelines, middle, rates):
    """Number of clients without pipelines, then depth of pipelines with `middle` clients: each is a curve."""
    found = []
    left_out = []
    for load in loads:
        for op in ops:
            if op not in OPS[load]:
                left_out.append(f"{load} has no {op}")
                continue
            if load == "open_loop":
                found.extend(Point(load, op, middle, 1, rate) for rate in rates)
                continue
            pairs = [(count, 1) for count in clients] + [(middle, depth) for depth in pipelines]
            if op in NOT_DIRECT:
                pairs = [(count, 1) for count in clients]
            found.extend(Point(load, op, count, depth, 0) for count, depth in dict.fromkeys(pairs))
    if not found:
        raise Wrong("nothing to measure: " + ("; ".join(left_out) or "no points"))
    return found, left_out


def name_of(point):
    if point.load == "open_loop":
        return f"{point.load} {point.op}, {point.clients} connections, {point.rate}/s"
    clients = "1 client" if point.clients == 1 else f"{point.clients} clients"
    depth = "" if point.pipeline == 1 else f", pipeline {point.pipeline}"
    return f"{point.load} {point.op}, {clients}{depth}"


def commands_of(point, requests):
    """How many to send, so that a run of each point takes about as long."""
    if point.pipeline > 1:
        requests *= 5 if point.pipeline < 32 else 8
    if point.clients == 1:
        requests //= 5
    if point.op in NOT_DIRECT:
        requests //= 4
    # Each client sends whole pipelines, several of them.
    return max(requests, point.clients * point.pipeline * 4)


def parser():
    options = argparse.ArgumentParser(
        prog="bench/compare.sh", formatter_class=argparse.RawTextHelpFormatter,
        description="Compares Ringway with direct access and other proxies in one interleaved run.")
    add = options.add_argument
    add("--proxy", action="append", default=[], metavar="NAME=...",
        help="another proxy: name=HOST:PORT (runs already, in front of --cluster),\n"
             "or name=PORT:COMMAND (started here, pinned like Ringway); several times")
    add("--cluster", metavar="HOST:PORT", help="a node of a running cluster, instead of three of our own")
    add("--base-port", type=int, default=7300, help="first port of our own nodes; Ringway has base + 99 (7300)")
    add("--cpus", default="", metavar="proxy=L,nodes=L,load=L",
        help="who runs where (the first CPU for the proxy; nodes and load share the rest)")
    add("--loads", default="redis-benchmark,memtier", help=f"of {', '.join(LOADS)} (redis-benchmark,memtier)")
    add("--ops", default="get,set", help="of get, set, mixed (1 set to 10 gets), mget10, mset10 (get,set)")
    add("--clients", default="1,50,200,1000", help="numbers of clients, unpipelined (1,50,200,1000)")
    add("--pipeline", default="16,64", help="pipeline depths (16,64)")
    add("--pipeline-clients", type=int, default=50, help="clients of the pipelined runs and of open_loop (50)")
    add("--rates", default="20000,40000", help="commands a second for open_loop (20000,40000)")
    add("--size", type=int, default=64, help="bytes of a value (64)")
    add("--keys", type=int, default=100_000, help="different keys (100000)")
    add("--requests", type=int, default=200_000, help="commands of an unpipelined run (200000)")
    add("--seconds", type=int, default=10, help="length of an open_loop run (10)")
    add("--rounds", type=int, default=3, help="the median of so many is told (3)")
    add("--baseline", metavar="NAME", help="whose figures are 1.00 (the first --proxy, else direct)")
    add("--no-direct", action="store_true", help="without direct access")
    add("--no-ringway", action="store_true", help="without Ringway")
    add("--ringway", default="target/release/ringway", help="the program (target/release/ringway)")
    add("--ringway-arguments", default="", help="more arguments for it")
    add("--memtier", default="memtier_benchmark", metavar="PATH", help="memtier_benchmark, if it is not in PATH")
    add("--no-calls", action="store_true", help="do not count system calls (a run more for each point and target)")
    add("--out", metavar="PREFIX", help="write PREFIX.json, .txt and .svg (bench/runs/DATE-COMMIT)")
    add("--note", default="", help="a line about this run, kept with it")
    add("--plot", metavar="FILE.json", help="draw FILE.svg again, measure nothing")
    return options


def available_cpus():
    return sorted(os.sched_getaffinity(0))
