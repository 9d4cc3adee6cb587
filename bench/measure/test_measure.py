"""Tests of the pure parts: python3 -m unittest discover -s bench/measure."""
import json
import unittest
import xml.etree.ElementTree as xml

import host
import load
import plot
import report
import spec
from spec import Point, Wrong

# What redis-benchmark 7.0.15 and memtier_benchmark 2.3.0 print, shortened.
REDIS_BENCHMARK = """GET: rps=40000.0 (overall: 39000.0) avg_msec=0.2 (overall: 0.2)\r====== GET ======
  20000 requests completed in 0.36 seconds
  20 parallel clients

Latency by percentile distribution:
0.000% <= 0.079 milliseconds (cumulative count 9)
50.000% <= 0.223 milliseconds (cumulative count 10360)
99.805% <= 1.399 milliseconds (cumulative count 19961)
99.902% <= 2.247 milliseconds (cumulative count 19981)
100.000% <= 4.319 milliseconds (cumulative count 20000)

Cumulative distribution of latencies:
99.999% <= 0.103 milliseconds (cumulative count 19999)

Summary:
  throughput summary: 55555.55 requests per second
  latency summary (msec):
          avg       min       p50       p95       p99       max
        0.232     0.072     0.223     0.335     0.559     4.319
"""
MEMTIER = {"ALL STATS": {"Totals": {
    "Count": 5000, "Ops/sec": 78925.35, "Connection Errors": 0,
    "Percentile Latencies": {"p50.00": 0.167, "p99.00": 1.727, "p99.90": 2.191}}}}


class Loads(unittest.TestCase):
    def test_redis_benchmark_gives_its_summary_and_the_first_value_over_99_9_percent(self):
        self.assertEqual(load.read_redis_benchmark(REDIS_BENCHMARK), (55555.55, 0.223, 0.559, 2.247, 20000))

    def test_redis_benchmark_with_threads_gives_the_rate_that_it_showed_last(self):
        self.assertEqual(load.read_redis_benchmark(REDIS_BENCHMARK, threads=True).rate, 39000.0)

    def test_redis_benchmark_without_figures_or_with_errors_is_refused(self):
        for text, errors in (("", ""), ("", "Could not connect"), (REDIS_BENCHMARK, "Error from server: MOVED 1 x")):
            with self.assertRaises(Wrong):
                load.read_redis_benchmark(text, errors)

    def test_memtier_gives_its_totals(self):
        self.assertEqual(load.read_memtier(json.dumps(MEMTIER)), (78925.35, 0.167, 1.727, 2.191, 5000))

    def test_memtier_that_lost_connections_or_was_refused_brings_no_figures(self):
        lost = json.loads(json.dumps(MEMTIER))
        lost["ALL STATS"]["Totals"]["Connection Errors"] = 3
        for text, told in ((json.dumps(lost), ""), ("{}", ""), ("", ""), (json.dumps(MEMTIER), "error response: x")):
            with self.assertRaises(Wrong):
                load.read_memtier(text, told)


class Specs(unittest.TestCase):
    def test_target_that_runs_is_told_from_one_to_start(self):
        running = spec.parse_target("envoy=10.0.0.1:7602")
        self.assertEqual((running.host, running.port, running.command), ("10.0.0.1", 7602, None))
        self.assertEqual(spec.parse_target("x=[::1]:7602").host, "::1")
        started = spec.parse_target("predixy=7601:/bin/predixy a.conf")
        self.assertEqual((started.port, started.command), (7601, "/bin/predixy a.conf"))

    def test_wrong_targets_are_refused(self):
        for text in ("x", "x=7601", "x=host:port", "x=h:99999", "=a:1", "ringway=a:1", "a b=h:1"):
            with self.assertRaises(Wrong, msg=text):
                spec.parse_target(text)

    def test_cpus_are_named_or_shared_out(self):
        named = spec.parse_cpus("proxy=0,nodes=1-2,load=3,5", list(range(6)))
        self.assertEqual(named, {"proxy": [0], "nodes": [1, 2], "load": [3, 5]})
        self.assertEqual(spec.parse_cpus("", [4, 5]), {"proxy": [4], "nodes": [5], "load": [5]})
        self.assertEqual(spec.parse_cpus("", [0, 1, 2, 3]), {"proxy": [0], "nodes": [1], "load": [2, 3]})
        for text in ("proxy=0", "proxy=0,nodes=9,load=1", "proxy=0,nodes=1,load=1,what=2", "0,1"):
            with self.assertRaises(Wrong, msg=text):
                spec.parse_cpus(text, [0, 1])
        with self.assertRaises(Wrong):
            spec.parse_cpus("", [0])

    def test_points_are_two_curves_that_meet(self):
        found, left_out = spec.points(["redis-benchmark"], ["get"], [1, 50], [16], 50, [])
        self.assertEqual([(point.clients, point.pipeline) for point in found], [(1, 1), (50, 1), (50, 16)])
        self.assertEqual(left_out, [])

    def test_what_a_load_cannot_send_is_named(self):
        found, left_out = spec.points(["redis-benchmark", "memtier"], ["mget10"], [50], [16], 50, [])
        self.assertEqual(len(found), 1)
        self.assertEqual(left_out, ["memtier has no mget10"])
        with self.assertRaises(Wrong):
            spec.points(["memtier"], ["mget10"], [50], [16], 50, [])


class Figures(unittest.TestCase):
    POINT = Point("redis-benchmark", "get", 50, 1, 0)

    def told(self, *rates):
        rounds = [{"rate": rate, "p50": 1.0, "p99": 2.0, "p999": 3.0, "proxy_ns": None, "nodes_ns": 500.0,
                   "enters": None} for rate in rates]
        return {"median": report.median_of(rounds), "rounds": rounds, "calls": {"nodes": 0.5}}

    def test_table_has_medians_ratios_and_a_dash_for_what_is_unknown(self):
        lines = report.table(self.POINT, {"a": self.told(100.0, 300.0, 200.0), "b": self.told(100.0)}, "a")
        self.assertIn("50 clients", lines[0])
        self.assertRegex(lines[2], r"a +200 \(1\.00\).* - .*100%$")
        self.assertRegex(lines[3], r"b +100 \(0\.50\).* 0\.500 ")

    def test_count_of_perf_is_read_and_its_absence_seen(self):
        self.assertEqual(host.CallCounter.read("3,,raw_syscalls:sys_enter,560676,100.00,,\n"), 3)
        self.assertIsNone(host.CallCounter.read("<not supported>,,raw_syscalls:sys_enter,0,100.00,,\n"))

    def test_cpu_time_of_this_process_grows(self):
        pids = host.family([__import__("os").getpid()])
        before = host.cpu_ns(pids)
        sum(range(2_000_000))
        self.assertGreater(host.cpu_ns(pids), before)

    def test_picture_is_well_formed_and_has_each_target_in_each_panel(self):
        targets = {"a": self.told(100.0), "b<": self.told(250.0)}
        points = [(self.POINT, targets), (self.POINT._replace(clients=1), targets),
                  (self.POINT._replace(pipeline=16), targets)]
        facts = {"date": "2026-11-30T00:00", "commit": "abc", "machine": {"cpu": "x", "cpus": 2, "kernel": "6"},
                 "targets": [{"name": "a"}, {"name": "b<"}]}
        picture = plot.picture(report.document(facts, points))
        tree = xml.fromstring(picture)
        lines = [line for line in tree.iter() if line.tag.endswith("polyline")]
        self.assertEqual(len(lines), 2 * 4)

    def test_ticks_hold_the_values(self):
        for most in (0.5, 1, 7, 12_345, 99_999, 1_000_001):
            ticks = plot.ticks_to(most)
            self.assertTrue(ticks[-1] >= most and 3 <= len(ticks) <= 12, (most, ticks))
        for least, most in ((0.1, 0.1), (0.03, 20), (1.5, 3)):
            ticks = plot.log_ticks(least, most)
            self.assertTrue(ticks[0] <= least and ticks[-1] >= most and len(ticks) > 1, ticks)


if __name__ == "__main__":
    unittest.main()
