#!/usr/bin/env bash
# Compares Ringway with direct access and with other proxies, in one run: throughput, p50, p99, p99.9, CPU time and
# system calls per command of the proxy and of the nodes. A table for people, JSON for machines, a plot.
#
#   bench/compare.sh                                          direct and Ringway
#   bench/compare.sh --proxy 'predixy=7601:PATH/predixy PATH/bench.conf' --proxy envoy=127.0.0.1:7602
#   bench/compare.sh --help                                   everything that can be chosen
#   bench/compare.sh --plot FILE.json                         draws the plot of an earlier run again
#
# It starts a cluster of three redis-server on loopback (or takes yours: --cluster), Ringway, and the proxies that are
# given as name=port:command. It changes nothing on the host and ends what it has started.
# The programs are bench/measure/; how to read what they print is in bench/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v python3 >/dev/null; then
    echo "compare.sh: python3 (3.9 or later) is missing: sudo apt-get install python3" >&2
    exit 2
fi
exec python3 bench/measure "$@"
