#!/usr/bin/env bash
# Runs the tests behind the figures of trust (README.md, Working on it) and prints the figures at the end.
#
#   tests/figures.sh [short] [FIGURE …]
#
#   tests/figures.sh               all of them, at full size: about three hours and a half
#   tests/figures.sh G3 G19        these
#   tests/figures.sh short         all of them at the size that CI runs: about five minutes
#
# Figures: G1 G2 G3 G4 G5 G8 G9 G10 G13 G14 G15 G16 G17 G18 G19 G20 H6
#
#   G1   wrong replies while nodes are killed, stopped, moved, cut off: 30 M commands verified, 100 faults
#   G2   wrong replies while somebody splits replies by scripts: 1 M
#   G3   increments doubled or lost: 1 M, while connections are cut
#   G4   errors seen in planned failovers, and while all slots move; the longest stall
#   G5   time from the cluster's first good reply after a primary was killed to the first through the proxy
#   G8   executions of each fuzz target in which its property holds, without crash, hang or too much memory: 20 M
#        (an hour of CPU)
#   G9   streams of odd bytes answered otherwise than by the server
#   G10  100 restarts with clients of all kinds: what they lose (nothing), slowest reply, steps of the takeover
#   G13  idle clients that are served at the end; G14: bytes and CPU that they cost
#   G15  memory and p99 of others while everything that wastes memory happens at once (an hour; short: 8 s or until
#        it was large), and p99 past the proxy meanwhile
#   G16  p99 of other nodes while one is stopped, refuses, is black-holed, or accepts and says nothing, and while it is
#        well, beside the same clients of it
#   G17  CLUSTER calls a second in a storm of MOVED; requests sent for each asked while a node refuses
#   G18  CPU and log without free descriptors, and time until clients are served again
#   G19  ten minutes of load and faults: growth of memory, descriptors
#   G20  a reactor panics, or spins, 100 times each: when it is seen, when the process ends, when the next one serves
#   H6   broken requests, 1 M on as many connections: each is told and closed, others see nothing
#
# RINGWAY_CHAOS_SEED: what the faults are. Needs what tests/run.sh chaos has installed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

ALL="G1 G2 G3 G4 G5 G8 G9 G10 G13 G14 G15 G16 G17 G18 G19 G20 H6"

main() {
    case "${1-}" in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    short) shift && unset RINGWAY_LONG ;;
    *) export RINGWAY_LONG=1 ;;
    esac
    local figure log failed=0
    for figure in "$@"; do
        [[ " $ALL " == *" $figure "* ]] || { echo "no figure '$figure'; there are: $ALL" >&2 && exit 2; }
    done
    local wanted=${*:-$ALL} folder=${TMPDIR:-/tmp}
    [[ $wanted == "$ALL" ]] && wanted=${wanted/ G14/}
    # In memory where there is room, as tests/run.sh does.
    [[ -d /dev/shm && -w /dev/shm ]] && folder=/dev/shm
    mkdir -p tests/.cache/logs
    cargo build --locked --release || exit 1
    export RINGWAY_STRICT=1 RINGWAY_BINARY=${RINGWAY_BINARY:-$PWD/target/release/ringway} TMPDIR=$folder
    for figure in $wanted; do
        log=tests/.cache/logs/$figure.log
        echo "$figure: see $log"
        # Reactors fail on purpose in a build with assertions only.
        # shellcheck disable=SC2046
        ([[ $figure == G20 ]] && unset RINGWAY_BINARY
            cargo test --locked --profile simulation $(tests_of "$figure")) >"$log" 2>&1 </dev/null
        if [[ $? != 0 ]] || grep -qE 'running 0 tests|SKIPPED: ' "$log"; then
            failed=$((failed + 1)) && echo "$figure: FAILED" >>"$log"
        fi
    done
    echo
    for figure in $wanted; do
        grep -hE '(^|\.\.\. )([GH][0-9]+|     ): |FAILED' "tests/.cache/logs/$figure.log" | sed -E 's/^.*\.\.\. ([GH])/\1/'
    done
    [[ $failed == 0 ]]
}

# Which tests show a figure.
tests_of() {
    case $1 in
    G2) echo "--test cases -- --nocapture --test-threads 1 fence::" ;;
    G8) echo "--test fuzz -- --nocapture --test-threads 2 target::" ;;
    G9) echo "--test fuzz -- --nocapture --test-threads 1 differential::" ;;
    G10) echo "--test program -- --nocapture --test-threads 1 restarts_" ;;
    G14) echo "--test chaos -- --nocapture --test-threads 1 g13_g14_" ;;
    G20) echo "--test program -- --nocapture --test-threads 1 reactor_that_panics reactor_that_spins" ;;
    *) echo "--test chaos -- --nocapture --test-threads 1 ${1,,}_" ;;
    esac
}

main "$@"
