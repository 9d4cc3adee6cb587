#!/usr/bin/env bash
# What settings of tuning/settings.tsv do, measured: with a bad value or the kernel's default, and as it is wanted.
#
#   bench/tuning.sh [--list] [NAME …]        as root, on a quiet machine; about two minutes for all
#
# It changes nothing of the host that it does not put back (bench/tuning.py says how).
set -euo pipefail
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo "tuning.sh: python3 is missing: sudo apt-get install python3" >&2 && exit 2; }
exec python3 -B bench/tuning.py "$@"
