#!/usr/bin/env bash
# redis 7.0.15's own Tcl suite, unmodified, against the proxy in front of a cluster of three nodes.
#
#   tests/suites/tcl.sh [ci|long] [UNIT …]
#
#   ci    the units that matter most to a proxy (the default)
#   long  all units; then also: every line of tcl.skip must leave out something
#
# Naming units (unit/multi) runs only these, and then no number of passed tests is asked for.
# Tests that fail get a second try, with their whole unit: many of them send what blocks on one connection and what it
# is to be woken by on another, and do not wait in between.
# What is left out, and why: tests/suites/tcl.skip. The suite comes from Debian's source package and
# is kept in tests/.cache; its checksum is checked each time it is unpacked.
#
# RINGWAY_BINARY      the proxy (target/release/ringway)
# RINGWAY_TCL_SOURCE  the suite's source as a file, where Debian cannot be reached
# RINGWAY_TCL_PORTS   the first of 100 ports to look for free ones from (one between 11000 and 20900)
# RINGWAY_TCL_NODES   number of nodes (3)
# SUITE_REACTORS      reactors of the proxy (2)
# RINGWAY_TCL_SKIP    another list of what is left out (to see what passes by now)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

VERSION=7.0.15
SHA256=4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982
PLACES="http://deb.debian.org/debian/pool/main/r/redis
 http://deb.debian.org/debian-security/pool/updates/main/r/redis"
CACHE=$PWD/tests/.cache
SUITE=$CACHE/redis-$VERSION
SKIP=${RINGWAY_TCL_SKIP:-$PWD/tests/suites/tcl.skip}
BINARY=${RINGWAY_BINARY:-$PWD/target/release/ringway}
NODES=${RINGWAY_TCL_NODES:-3}
REACTORS=${SUITE_REACTORS:-2}

# The units of `ci`. Not among them, for their time: dump, sort, geo, hyperloglog, list-3.
UNITS="protocol keyspace scan info info-command type/string type/incr type/list type/list-2 type/set
 type/zset type/hash type/stream type/stream-cgroups expire other multi quit pubsub pubsubshard
 scripting functions introspection introspection-2 slowlog bitops bitfield lazyfree"

# Tests that passed when this was last changed, by mode and number of nodes: fewer are a failure.
declare -A PASSED=([ci-3]=1435 [long-3]=1629 [long-1]=1642)

main() {
    local mode=ci units="" wanted=0
    case "${1-}" in
    ci | long) mode=$1 && shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    esac
    have_all && fetch || exit 1
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/ringway-tcl-XXXXXX")
    PIDS=() RUNNING=""
    trap stop_all EXIT
    trap 'exit 1' INT TERM
    if [[ $# -gt 0 ]]; then
        units=$*
    elif [[ $mode == ci ]]; then
        for unit in $UNITS; do units+=" unit/$unit"; done
    fi
    [[ $# -gt 0 ]] || wanted=${PASSED[$mode-$NODES]:-1}
    start_cluster && start_proxy && run_suite "$mode" output $units && try_again "$mode" && judge "$mode" "$wanted" $#
}

# --- what it needs ---------------------------------------------------------------------------------

have_all() {
    local missing=()
    command -v tclsh >/dev/null || missing+=(tcl)
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v redis-cli >/dev/null || missing+=(redis-tools)
    command -v curl >/dev/null || [[ -f $SUITE/.done ]] || missing+=(curl)
    if [[ ${#missing[@]} != 0 ]]; then
        echo "missing: ${missing[*]}. Install with: apt-get install --no-install-recommends ${missing[*]}" >&2
        return 1
    fi
    [[ -x $BINARY ]] || { echo "no $BINARY: cargo build --release" >&2 && return 1; }
}

# Puts the suite into the cache; the servers and tools that its tests call are the installed ones.
fetch() {
    [[ -f $SUITE/.done ]] && return 0
    local file=${RINGWAY_TCL_SOURCE:-$CACHE/redis_$VERSION.orig.tar.gz} place
    mkdir -p "$CACHE"
    for place in $PLACES; do
        sum_is_right "$file" && break
        [[ -n ${RINGWAY_TCL_SOURCE-} ]] && break
        echo "fetching $place/redis_$VERSION.orig.tar.gz"
        curl -fsSL --connect-timeout 10 --max-time 120 -o "$file" "$place/redis_$VERSION.orig.tar.gz"
    done
    if ! sum_is_right "$file"; then
        echo "no source of redis $VERSION with SHA-256 $SHA256: no network? Fetch redis_$VERSION.orig.tar.gz" \
            "(Debian's source package redis, or download.redis.io) and name it in RINGWAY_TCL_SOURCE" >&2
        return 1
    fi
    rm -rf "$SUITE" && tar xzf "$file" -C "$CACHE" "redis-$VERSION/runtest" "redis-$VERSION/tests" || return 1
    mkdir -p "$SUITE/src"
    for program in redis-server redis-cli redis-benchmark redis-check-aof redis-check-rdb; do
        ln -sf "$(command -v "$program" || echo "/usr/bin/$program")" "$SUITE/src/$program"
    done
    touch "$SUITE/.done"
}

sum_is_right() {
    [[ -f $1 ]] && echo "$SHA256  $1" | sha256sum --check --status
}

# --- cluster and proxy -----------------------------------------------------------------------------

# Sets PORT to a port on which nothing listens, nor on that of its cluster bus.
NEXT=0
take_port() {
    [[ $NEXT == 0 ]] && NEXT=${RINGWAY_TCL_PORTS:-$((11000 + RANDOM % 9900))}
    while is_taken "$NEXT" || is_taken $((NEXT + 10000)); do NEXT=$((NEXT + 1)); done
    PORT=$NEXT NEXT=$((NEXT + 1))
}

is_taken() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

start_cluster() {
    local n first last ports=()
    for ((n = 0; n < NODES; n++)); do
        take_port
        ports+=("$PORT")
        mkdir "$WORK/node-$n"
        redis-server --port "$PORT" --bind 127.0.0.1 --dir "$WORK/node-$n" --save "" --cluster-enabled yes \
            --enable-protected-configs yes --enable-debug-command yes --enable-module-command yes \
            >"$WORK/node-$n/log" 2>&1 &
        PIDS+=($!)
    done
    for ((n = 0; n < NODES; n++)); do
        PORT=${ports[n]}
        until_true 120 "node $n does not answer" ask ping || return 1
        first=$((16384 * n / NODES)) last=$((16384 * (n + 1) / NODES - 1))
        ask cluster addslotsrange $first $last >/dev/null
        [[ $n == 0 ]] || ask cluster meet 127.0.0.1 "${ports[0]}" >/dev/null
    done
    for PORT in "${ports[@]}"; do
        until_true 120 "the cluster does not form" is_whole || return 1
    done
    SEED=${ports[0]}
}

ask() { redis-cli -p "$PORT" "$@" 2>/dev/null; }

is_whole() {
    ask cluster info | grep -q '^cluster_state:ok' && [[ $(ask cluster nodes | grep -c connected) == "$NODES" ]]
}

start_proxy() {
    take_port
    local unset=() name
    for name in $(compgen -e RINGWAY_); do unset+=(-u "$name"); done
    # allow_config: the suite sets up the server with CONFIG SET. admin_user: for MONITOR.
    env "${unset[@]}" "$BINARY" --listen "127.0.0.1:$PORT" --node "127.0.0.1:$SEED" --reactors "$REACTORS" \
        --announce-version "$VERSION" --allow-config --admin-user default >"$WORK/proxy.log" 2>&1 &
    PROXY_PORT=$PORT PROXY=$! PIDS+=($!)
    until_true 120 "the proxy does not answer" ask dbsize
}

# until_true SECONDS WHAT COMMAND…
until_true() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null; do
        [[ $SECONDS -lt $end ]] || { echo "$what: see $WORK" >&2 && return 1; }
        sleep 0.1
    done
}

stop_all() {
    local status=$? pid
    # It ends what it has started.
    [[ -z $RUNNING ]] || kill -TERM "$RUNNING" 2>/dev/null
    for pid in "${PIDS[@]}"; do kill -KILL "$pid" 2>/dev/null; done
    wait 2>/dev/null
    if [[ $status == 0 ]]; then rm -rf "$WORK"; else echo "logs: $WORK"; fi
}

# --- the suite -------------------------------------------------------------------------------------

# run_suite MODE OUTPUT UNIT…: the suite as it is, in a copy of its own, because it writes into its folder.
run_suite() {
    local arguments=() kinds=tag tags unit patience=900 output=$WORK/$2
    [[ $1 == ci ]] && kinds='tag\|ci' patience=120
    shift 2
    sed -n 's/^name \(.*\) :: .*/\1/p' "$SKIP" >"$WORK/skipped"
    [[ $REACTORS == 1 ]] || sed -n 's/^reactors \(.*\) :: .*/\1/p' "$SKIP" >>"$WORK/skipped"
    [[ $NODES == 1 ]] || sed -n 's/^spread \(.*\) :: .*/\1/p' "$SKIP" >>"$WORK/skipped"
    tags=$(sed -n "s/^\($kinds\) \(.*\) :: .*/-\2/p" "$SKIP" | tr '\n' ' ')
    for unit in "$@"; do arguments+=(--single "$unit"); done
    rm -rf "$WORK/suite" && cp -r "$SUITE" "$WORK/suite" && mkdir -p "$WORK/suite/tests/tmp"
    take_port
    (
        cd "$WORK/suite" || exit 1
        # --durable: a test that goes wrong is counted, and the others are run.
        exec timeout --kill-after=10 2400 ./runtest --host 127.0.0.1 --port "$PROXY_PORT" \
            --baseport $((PORT + 40)) --portcount 40 --cluster-mode --ignore-encoding --ignore-digest \
            --durable --timeout $patience --tags "$tags" --skipfile "$WORK/skipped" "${arguments[@]}"
    ) >"$WORK/colours" 2>&1 &
    RUNNING=$!
    wait $RUNNING
    local status=$?
    RUNNING=""
    sed 's/\x1b\[[0-9;]*m//g' "$WORK/colours" >"$output"
    [[ $status -le 1 ]] || echo "the suite ended with $status" >>"$output"
    return 0
}

# The units of tests that failed, once more; a test that passes now has passed.
try_again() {
    local units name
    units=$(sed -n 's/^\[err\]: .* in tests\/\(unit\/.*\)\.tcl$/\1/p' "$WORK/output" | sort -u)
    # Where so many fail it was not chance.
    [[ -n $units && $(wc -l <<<"$units") -le 4 ]] || return 0
    run_suite "$1" again $units
    while read -r name; do
        grep -qF -- "[ok]: $name (" "$WORK/again" && ! grep -qF -- "[err]: $name in " "$WORK/again" || continue
        echo "passed at the second try: $name"
        awk -v bad="[err]: $name in " 'index($0, bad) == 1 { $0 = "[ok]: at the second try: " $0 } 1' \
            "$WORK/output" >"$WORK/judged" && mv "$WORK/judged" "$WORK/output"
    done < <(sed -n 's/^\[err\]: \(.*\) in tests\/unit\/.*\.tcl$/\1/p' "$WORK/output" | sort -u)
}

judge() {
    local mode=$1 wanted=$2 passed failed bad=0 line
    cp "$WORK/output" "$CACHE/tcl-$mode-$NODES.txt"
    passed=$(grep -c '^\[ok\]: ' "$WORK/output")
    failed=$(grep -c '^\[err\]: ' "$WORK/output")
    grep '^\[err\]: ' "$WORK/output" | sed 's/^.err.: \(.*\)/test \1 ... FAILED/'
    # With failed tests the end is written otherwise; all of them may have passed at the second try.
    if grep -q '^\[TIMEOUT\]' "$WORK/output" || { [[ $failed == 0 ]] &&
        ! grep -qE 'All tests passed without errors|The following tests failed' "$WORK/output"; }; then
        echo "error: the suite did not come to its end:"
        tail -20 "$WORK/output"
        bad=1
    fi
    if ! kill -0 "$PROXY" 2>/dev/null; then
        echo "error: the proxy has ended:"
        tail -5 "$WORK/proxy.log"
        bad=1
    fi
    if [[ $passed -lt $wanted || $passed == 0 ]]; then
        echo "error: only $passed tests passed; at least $((wanted > 0 ? wanted : 1)) should"
        bad=1
    fi
    if [[ $mode == long && $3 == 0 ]]; then
        while read -r line; do
            echo "error: nothing is left out by this line of tcl.skip: $line"
            bad=1
        done < <(stale_lines)
    fi
    [[ $failed == 0 && $bad == 0 ]] && line=ok || line=FAILED
    echo "test result: $line. $passed passed; $((failed + bad)) failed"
    [[ $line == ok ]]
}

# Lines of tcl.skip that have left out nothing in this run.
stale_lines() {
    local kind what rest
    while read -r kind rest; do
        what=${rest%% :: *}
        [[ $kind == spread && $NODES == 1 || $kind == reactors && $REACTORS == 1 ]] && continue
        case $kind in
        name | spread | reactors)
            if [[ $what == /* ]]; then
                sed -n 's/^\[skip\]: //p' "$WORK/output" | grep -qE -- "${what#/}" || echo "$what"
            else
                grep -qxF -- "[skip]: $what" "$WORK/output" || echo "$what"
            fi
            ;;
        tag) grep -q "^\[ignore\]: .*Tag: $what denied" "$WORK/output" || echo "$what" ;;
        esac
    done <"$SKIP"
}

main "$@"
