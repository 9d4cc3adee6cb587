"""The load programs: how each is called for a point, and what it says.

Not here: who is measured meanwhile.
"""
import json
import os
import re
import subprocess
import tempfile
from collections import namedtuple

from spec import Wrong, commands_of

# rate: commands a second; percentiles in milliseconds; count: commands sent.
Result = namedtuple("Result", "rate p50 p99 p999 count")

OPEN_LOOP = "target/release/examples/open_loop"
# What a run may take before it counts as hung.
PATIENCE_S = 600


def redis_benchmark(point, target, settings):
    count = commands_of(point, settings.requests)
    threads = len(settings.cpus["load"])
    # 'save' and the like are asked for at the start; without an answer it only warns.
    command = ["redis-benchmark", "-h", target.host, "-p", str(target.port), "-n", str(count), "-c",
               str(point.clients), "-P", str(point.pipeline), "-r", str(settings.keys), "-d", str(settings.size)]
    if threads > 1:
        command += ["--threads", str(min(threads, point.clients))]
    if target.kind == "direct":
        command.append("--cluster")
    if point.op == "mget10":
        command += ["MGET", *["key:__rand_int__"] * 10]
    else:
        command += ["-t", {"mset10": "mset"}.get(point.op, point.op)]
    done = run(command, settings)
    return read_redis_benchmark(done.stdout, done.stderr, target.kind == "direct" or threads > 1)


def read_redis_benchmark(text, errors="", threads=False):
    if "rror from server" in text + errors or "rror from server" in errors:
        raise Wrong(f"redis-benchmark was answered with an error: {(errors or text).strip()[-300:]}")
    done = re.search(r"([0-9]+) requests completed in", text)
    rate = re.search(r"throughput summary: ([0-9.]+) requests per second", text)
    summary = re.search(r"latency summary \(msec\):\s+avg.*\n\s*([0-9. ]+)", text)
    spectrum = re.findall(r"^[0-9.]+% <= ([0-9.]+) milliseconds \(cumulative count ([0-9]+)\)$",
                          text.partition("Cumulative distribution")[0], re.M)
    if not (done and rate and summary and spectrum):
        raise Wrong(f"redis-benchmark brought no figures: {(errors or text).strip()[-300:]}")
    count = int(done[1])
    _, _, p50, _, p99, _ = (float(field) for field in summary[1].split())
    # Its summary has no p99.9; the spectrum names a value with at least so many below it.
    # With threads (and --cluster has them) it sees its own end up to 250 ms late; the rate that it showed last is right.
    shown = re.findall(r"\(overall: ([0-9.]+)\) avg_msec", text) if threads else []
    total = int(spectrum[-1][1])
    p999 = next(float(value) for value, below in spectrum if int(below) >= 0.999 * total)
    return Result(float(shown[-1] if shown else rate[1]), p50, p99, p999, count)


def memtier(point, target, settings):
    threads = min(len(settings.cpus["load"]), point.clients)
    while point.clients % threads:
        threads -= 1
    each = max(1, commands_of(point, settings.requests) // point.clients)
    ratio = {"get": "0:1", "set": "1:0", "mixed": "1:10"}[point.op]
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [settings.memtier, "-s", target.host, "-p", str(target.port), "-t", str(threads), "-c",
                   str(point.clients // threads), "-n", str(each), "--pipeline", str(point.pipeline), "--ratio", ratio,
                   "--data-size", str(settings.size), "--key-minimum", "1", "--key-maximum", str(settings.keys),
                   "--key-pattern", "R:R", "--distinct-client-seed", "--hide-histogram", "--print-percentiles",
                   "50,99,99.9", "--json-out-file", out.name]
        if target.kind == "direct":
            command.append("--cluster-mode")
        done = run(command, settings)
        with open(out.name) as file:
            return read_memtier(file.read(), done.stdout + done.stderr)


def read_memtier(text, told=""):
    if "error response" in told:
        raise Wrong(f"memtier_benchmark was answered with an error: {told.strip()[-300:]}")
    try:
        totals = json.loads(text)["ALL STATS"]["Totals"]
        percentiles = totals["Percentile Latencies"]
        result = Result(totals["Ops/sec"], percentiles["p50.00"], percentiles["p99.00"], percentiles["p99.90"],
                        totals["Count"])
    except (ValueError, KeyError) as error:
        raise Wrong(f"memtier_benchmark brought no figures ({error}): {told.strip()[-300:]}") from error
    if totals.get("Connection Errors", 0):
        raise Wrong(f"memtier_benchmark lost {totals['Connection Errors']} connections")
    return result


def open_loop(point, target, settings):
    ratio = {"get": "0", "set": "1", "mixed": "0.1"}[point.op]
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [OPEN_LOOP, "--target", f"{target.host}:{target.port}", "--rate", str(point.rate), "--connections",
                   str(point.clients), "--seconds", str(settings.seconds), "--set-share", ratio, "--size",
                   str(settings.size), "--keys", str(settings.keys), "--json", out.name]
        done = run(command, settings)
        with open(out.name) as file:
            return read_open_loop(file.read(), done.stdout + done.stderr)


def read_open_loop(text, told=""):
    try:
        figures = json.loads(text)
    except ValueError as error:
        raise Wrong(f"open_loop brought no figures ({error}): {told.strip()[-300:]}") from error
    latency = figures["latency_ms"]
    return Result(figures["rate_done"], latency["p50"], latency["p99"], latency["p99.9"],
                  figures["commands_and_warmup"])


PROGRAMS = {"redis-benchmark": redis_benchmark, "memtier": memtier, "open_loop": open_loop}


def run(command, settings):
    pinned = ["taskset", "-c", ",".join(map(str, settings.cpus["load"])), *command]
    try:
        done = subprocess.run(pinned, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise Wrong(f"{os.path.basename(command[0])} did not end within {PATIENCE_S} s") from error
    if done.returncode:
        told = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise Wrong(f"{' '.join(command)} ended with {done.returncode}: {told}")
    return done


def fill(loads, target, settings):
    """Every key that GET may ask for, with a value of the size. open_loop has redis-benchmark's names."""
    if "memtier" in loads:
        command = [settings.memtier, "-s", target.host, "-p", str(target.port), "-t", "1", "-c", "1", "-n",
                   "allkeys", "--pipeline", "64", "--ratio", "1:0", "--data-size", str(settings.size),
                   "--key-minimum", "1", "--key-maximum", str(settings.keys), "--key-pattern", "P:P",
                   "--hide-histogram"]
        run(command + (["--cluster-mode"] if target.kind == "direct" else []), settings)
    if set(loads) - {"memtier"}:
        # Random keys: three times their number leaves one in twenty out.
        command = ["redis-benchmark", "-h", target.host, "-p", str(target.port), "-c", "20", "-P", "16", "-r",
                   str(settings.keys), "-d", str(settings.size), "-t", "set", "-n", str(3 * settings.keys), "-q"]
        run(command + (["--cluster"] if target.kind == "direct" else []), settings)
