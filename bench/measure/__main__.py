"""bench/compare.sh: checks what is asked for, measures, writes table, JSON and plot.

Not here: the parts (spec, host, cluster, load, report, plot).
"""
import datetime
import json
import os
import shutil
import sys
import time
from types import SimpleNamespace

import cluster
import host
import load
import plot
import report
import spec
from spec import Target, Wrong

KEPT = ("size", "keys", "requests", "seconds", "rounds", "loads", "ops", "clients", "pipeline", "pipeline_clients",
        "rates", "ringway_arguments", "proxy", "cluster")


def main():
    given = spec.parser().parse_args()
    if given.plot:
        draw(given.plot)
        return
    settings = settle(given)
    running = cluster.Running()
    try:
        compare(given, settings, running)
    finally:
        running.end()


def settle(given):
    """What is asked for, checked before anything is started."""
    cpus = spec.parse_cpus(given.cpus, spec.available_cpus())
    loads = given.loads.split(",")
    for name in loads:
        if name not in spec.LOADS:
            raise Wrong(f"--loads {name!r}: there are {', '.join(spec.LOADS)}")
    ops = given.ops.split(",")
    known = {op for all_ops in spec.OPS.values() for op in all_ops}
    for op in ops:
        if op not in known:
            raise Wrong(f"--ops {op!r}: there are {', '.join(sorted(known))}")
    if min(given.rounds, given.size, given.keys, given.requests, given.seconds, given.pipeline_clients) < 1:
        raise Wrong("--rounds, --size, --keys, --requests, --seconds, --pipeline-clients: from 1 on")
    found, left_out = spec.points(loads, ops, spec.parse_numbers(given.clients, "clients"),
                                  spec.parse_numbers(given.pipeline, "pipeline"), given.pipeline_clients,
                                  spec.parse_numbers(given.rates, "rates"))
    proxies = [spec.parse_target(text) for text in given.proxy]
    if len({proxy.name for proxy in proxies}) < len(proxies):
        raise Wrong("two proxies have the same name")
    if not proxies and given.no_ringway and given.no_direct:
        raise Wrong("nothing to compare")
    if any(proxy.command is None for proxy in proxies) and not given.cluster:
        raise Wrong("a proxy that runs already (name=HOST:PORT) stands before a cluster that runs already: --cluster")
    names = [proxy.name for proxy in proxies]
    names += [] if given.no_direct else ["direct"]
    names += [] if given.no_ringway else ["ringway"]
    baseline = given.baseline or names[0]
    if baseline not in names:
        raise Wrong(f"--baseline {baseline!r}: there are {', '.join(names)}")
    need_programs(given, loads)
    return SimpleNamespace(cpus=cpus, loads=loads, points=found, left_out=left_out, proxies=proxies,
                           baseline=baseline, memtier=given.memtier, size=given.size, keys=given.keys,
                           requests=given.requests, seconds=given.seconds, rounds=given.rounds)


def need_programs(given, loads):
    wanted = {"redis-cli": "redis-tools", "taskset": "util-linux"}
    if not given.cluster:
        wanted["redis-server"] = "redis-server"
    if set(loads) & {"redis-benchmark", "open_loop"}:
        wanted["redis-benchmark"] = "redis-tools"
    for program, package in wanted.items():
        if shutil.which(program) is None:
            raise Wrong(f"{program} is missing: sudo apt-get install {package}")
    if "memtier" in loads and shutil.which(given.memtier) is None:
        raise Wrong(spec.MEMTIER_MISSING)
    if "open_loop" in loads and not os.access(load.OPEN_LOOP, os.X_OK):
        raise Wrong(f"{load.OPEN_LOOP} is missing: cargo build --release --example open_loop")
    if not given.no_ringway and shutil.which(given.ringway) is None:
        raise Wrong(f"{given.ringway} is missing: cargo build --release")


def compare(given, settings, running):
    cpus = settings.cpus
    if given.cluster:
        address, port = spec.parse_address(given.cluster)
        nodes = [pid for where, number in cluster.nodes_of(address, port) if host.is_local(where)
                 for pid in host.listeners(number)]
    else:
        address, port = "127.0.0.1", given.base_port
        nodes = cluster.start_nodes(running, range(port, port + 3), cpus["nodes"])
    targets = [*settings.proxies]
    if not given.no_direct:
        targets.append(Target("direct", "direct", address, port, None))
    if not given.no_ringway:
        ours = given.base_port + 99
        command = (f"{given.ringway} --listen 127.0.0.1:{ours} --node {address}:{port} "
                   f"--cpus {','.join(map(str, cpus['proxy']))} {given.ringway_arguments}")
        targets.append(Target("ringway", "proxy", "127.0.0.1", ours, command))
    pids = {}
    for target in targets:
        if target.command:
            pids[target.name] = [cluster.start_proxy(running, target, cpus["proxy"]).pid]
        elif target.kind == "proxy":
            if not host.wait_for(target.host, target.port, 3):
                raise Wrong(f"nobody listens at {target.host}:{target.port} ({target.name})")
            pids[target.name] = host.listeners(target.port) if host.is_local(target.host) else []
    load.fill(settings.loads, targets[0], settings)
    no_calls = "not asked for" if given.no_calls else host.CallCounter.problem()
    facts = facts_of(given, settings, targets, nodes, no_calls)
    text = heading(facts, settings, no_calls)
    print("\n".join(text), flush=True)
    done = []
    for point in settings.points:
        measured = measure(point, targets, pids, nodes, settings, no_calls is None)
        done.append((point, measured))
        lines = report.table(point, measured, settings.baseline)
        print("\n".join(lines), flush=True)
        text += lines
    finish(given, facts, done, text)


def measure(point, targets, pids, nodes, settings, count_calls):
    """All rounds of one point, each beginning with another target, and a run that counts system calls."""
    program = load.PROGRAMS[point.load]
    able = [target for target in targets if target.kind != "direct"
            or (point.op not in spec.NOT_DIRECT and point.load != "open_loop")]
    rounds = {target.name: [] for target in able}
    for turn in range(settings.rounds):
        start = turn % len(able)
        for target in able[start:] + able[:start]:
            mine = host.family(pids.get(target.name, []))
            before = host.cpu_ns(mine), host.cpu_ns(nodes), enters(target)
            result = program(point, target, settings)
            after = host.cpu_ns(mine), host.cpu_ns(nodes), enters(target)
            # Ringway shows its count now and then: after a very short run it may not have moved yet.
            used = [None if late is None or early is None or late == early else (late - early) / result.count
                    for early, late in zip(before, after)]
            rounds[target.name].append({
                **result._asdict(), "proxy_ns": used[0] if mine else None, "nodes_ns": used[1] if nodes else None,
                "enters": used[2]})
    told = {name: {"median": report.median_of(rows), "rounds": rows, "calls": None} for name, rows in rounds.items()}
    if count_calls:
        for target in able:
            told[target.name]["calls"] = calls_of(point, target, pids, nodes, settings, program)
    return told


def enters(target):
    return host.ring_enters(target.host, target.port) if target.name == "ringway" else None


def calls_of(point, target, pids, nodes, settings, program):
    """System calls per command of proxy and nodes, in a run of a quarter of the length."""
    shorter = SimpleNamespace(**{**vars(settings), "requests": max(1000, settings.requests // 4),
                                 "seconds": max(1, settings.seconds // 4)})
    groups = {"proxy": host.family(pids.get(target.name, [])), "nodes": nodes}
    counters = {name: host.CallCounter(group) for name, group in groups.items() if group}
    # perf needs a moment to attach.
    time.sleep(0.5)
    result = program(point, target, shorter)
    counts = {name: counter.stop() for name, counter in counters.items()}
    return {name: count / result.count for name, count in counts.items() if count is not None}


def facts_of(given, settings, targets, nodes, no_calls):
    """What stands at the head of a run."""
    versions = {"redis-benchmark": host.first_line_of(["redis-benchmark", "--version"])}
    if not given.cluster:
        versions["redis-server"] = host.first_line_of(["redis-server", "--version"])
    if "memtier" in settings.loads:
        versions["memtier_benchmark"] = host.first_line_of([given.memtier, "--version"])
    if not given.no_ringway:
        versions["ringway"] = host.first_line_of([given.ringway, "--version"])
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": host.commit(),
        "command": ["bench/compare.sh", *sys.argv[1:]],
        "note": given.note,
        "machine": host.machine(),
        "versions": versions,
        "cpus": settings.cpus,
        "nodes": len(nodes),
        "targets": [target._asdict() for target in targets],
        "baseline": settings.baseline,
        "calls_counted_by": None if no_calls else "perf stat -e raw_syscalls:sys_enter",
        "left_out": settings.left_out,
        "settings": {name: getattr(given, name) for name in KEPT},
    }


def heading(facts, settings, no_calls):
    machine, cpus = facts["machine"], facts["cpus"]
    lines = [
        f"{facts['date']}, commit {facts['commit']}",
        f"{machine['cpu']}, {machine['cpus']} CPUs{', virtual' if machine['virtual'] else ''}, "
        f"{machine['memory_mib']} MiB, Linux {machine['kernel']}",
        "CPUs: " + ", ".join(f"{role} {','.join(map(str, numbers))}" for role, numbers in cpus.items()),
        "; ".join(f"{name}: {version}" for name, version in facts["versions"].items()),
        f"Median of {settings.rounds} interleaved rounds; in parentheses the ratio to {settings.baseline}. spread: "
        f"how far the rounds' commands/s lie apart.",
    ]
    if machine["load_before"] > 0.5:
        lines.append(f"WARNING: the load average was {machine['load_before']:.1f} before: this machine is not quiet.")
    if set(cpus["nodes"]) & set(cpus["load"]):
        lines.append("Nodes and load share CPUs: throughput tells of them as much as of the proxy.")
    if no_calls:
        lines.append(f"System calls are not counted: {no_calls}. Ringway's own count of io_uring_enter is there.")
    lines += [f"Left out: {text}." for text in settings.left_out]
    if any(point.load == "open_loop" for point in settings.points):
        lines.append("Left out: direct access with open_loop, which speaks to one address.")
    if "memtier" in settings.loads and any(target["kind"] == "direct" for target in facts["targets"]):
        lines.append("memtier's direct clients have a connection to each node and use all of them at once: with as many "
                     "nodes, so many times the requests in flight.")
    if any(point.op in spec.NOT_DIRECT for point in settings.points):
        lines.append("Left out: direct access with mget10 and mset10, whose keys are in several slots.")
    return lines


def finish(given, facts, done, text):
    prefix = given.out
    if prefix is None:
        os.makedirs("bench/runs", exist_ok=True)
        stamp = facts["date"][:16].replace(":", "").replace("T", "-")
        prefix = f"bench/runs/{stamp}-{facts['commit'].replace('+', '-changed')}"
    report.write(f"{prefix}.json", report.document(facts, done))
    with open(f"{prefix}.txt", "w") as file:
        file.write("\n".join(text) + "\n")
    draw(f"{prefix}.json")
    print(f"written: {prefix}.txt, .json, .svg")


def draw(path):
    try:
        with open(path) as file:
            content = json.load(file)
        picture = plot.picture(content)
    except (OSError, ValueError, KeyError) as error:
        raise Wrong(f"{path} is no result of compare.sh: {error!r}") from error
    with open(path.removesuffix(".json") + ".svg", "w") as file:
        file.write(picture)


try:
    main()
except Wrong as wrong:
    print(f"compare.sh: {wrong}", file=sys.stderr)
    sys.exit(2)
except KeyboardInterrupt:
    sys.exit(130)
