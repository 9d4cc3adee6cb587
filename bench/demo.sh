#!/usr/bin/env bash
# Ringway in front of a real cluster on this machine, in a temporary folder.
#
#   bench/demo.sh          stays up until Ctrl-C
#   bench/demo.sh --once   ends by itself; exit code 0 only if everything worked (for CI)
#
# Variables: DEMO_BIN, a built program to use instead of building one.
#            DEMO_REQUESTS, requests of the unpipelined runs (default 100000; 20000 with --once).
# Changes nothing on the host, except that redis-server, and gcc to link with, are installed if they are missing.
set -euo pipefail

cd "$(dirname "$0")/.."
ONCE=no
case "${1:-}" in
    --once) ONCE=yes ;;
    "") ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
REQUESTS=${DEMO_REQUESTS:-$([ $ONCE = yes ] && echo 20000 || echo 100000)}

if [ -t 1 ]; then BOLD=$(printf '\033[1m') PLAIN=$(printf '\033[0m'); else BOLD='' PLAIN=''; fi
say()  { printf '\n%s%s%s\n' "$BOLD" "$*" "$PLAIN"; }
die()  { printf 'demo: %s\n' "$*" >&2; exit 1; }

# --- cleaning up ------------------------------------------------------------------------------------

FOLDER=
PROXY=
NODES=()
POLICY=    # the file that keeps services from starting, while it is there and ours
ROOT=()

stop() {    # stop PID: ask, wait up to 5 s, insist.
    kill "$1" 2>/dev/null || return 0
    for _ in $(seq 50); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -9 "$1" 2>/dev/null || true
}

clean_up() {
    local code=$?
    trap - EXIT INT TERM
    [ -z "$PROXY" ] || stop "$PROXY"
    for pid in "${NODES[@]:+${NODES[@]}}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${NODES[@]:+${NODES[@]}}"; do stop "$pid"; done
    wait 2>/dev/null || true
    [ -z "$FOLDER" ] || rm -rf "$FOLDER"
    [ -z "$POLICY" ] || "${ROOT[@]}" rm -f "$POLICY"
    exit "$code"
}
trap clean_up EXIT
trap 'echo; exit 130' INT
trap 'exit 143' TERM

# --- what it needs ----------------------------------------------------------------------------------

install() {    # install PACKAGE...
    local policy=/usr/sbin/policy-rc.d ok=yes
    [ "$(id -u)" = 0 ] || ROOT=(sudo)
    command -v apt-get >/dev/null || die "missing: $*, and there is no apt-get to install it with"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "missing: $*. As root: apt-get install $*"
    say "Installing $* (apt-get); no service is started or enabled"
    # Debian starts a service when it is installed; this file forbids it (invoke-rc.d(8)).
    if [ ! -e $policy ]; then
        POLICY=$policy
        printf '#!/bin/sh\nexit 101\n' | "${ROOT[@]}" tee $policy >/dev/null
        "${ROOT[@]}" chmod +x $policy
    fi
    "${ROOT[@]}" env DEBIAN_FRONTEND=noninteractive sh -c \
        'apt-get install -qq -y "$@" >/dev/null 2>&1 ||
         { apt-get update -qq && apt-get install -qq -y "$@" >/dev/null; }' sh "$@" || ok=no
    [ -z "$POLICY" ] || "${ROOT[@]}" rm -f "$POLICY"
    POLICY=
    if [[ -d /run/systemd/system && " $* " = *" redis-server "* ]]; then
        "${ROOT[@]}" systemctl disable --now --quiet redis-server 2>/dev/null || true
    fi
    [ $ok = yes ] || die "apt-get could not install $*"
}

if [ -z "${DEMO_BIN:-}" ]; then
    command -v cargo >/dev/null || die "cargo is missing: install Rust from https://rustup.rs"
fi
MISSING=()
for tool in redis-server redis-cli redis-benchmark; do
    command -v $tool >/dev/null || { MISSING+=(redis-server redis-tools); break; }
done
[ -n "${DEMO_BIN:-}" ] || command -v cc >/dev/null || MISSING+=(gcc libc6-dev)    # rustc links with cc
[ ${#MISSING[@]} = 0 ] || install "${MISSING[@]}"
if [ -z "${DEMO_BIN:-}" ]; then
    say "Building (cargo build --release; some minutes the first time)"
    cargo build --release --quiet
    DEMO_BIN=${CARGO_TARGET_DIR:-target}/release/ringway
fi

# --- the cluster ------------------------------------------------------------------------------------

NEXT_PORT=$((11000 + RANDOM % 9000))
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
take_port() {    # sets PORT: free, and free for the cluster bus 10000 above.
    while listens $NEXT_PORT || listens $((NEXT_PORT + 10000)); do NEXT_PORT=$((NEXT_PORT + 1)); done
    PORT=$NEXT_PORT
    NEXT_PORT=$((NEXT_PORT + 1))
}
cli() { redis-cli -h 127.0.0.1 -p "$@"; }
until_ok() {    # until_ok SECONDS WHAT COMMAND...
    local seconds=$1 what=$2
    shift 2
    for _ in $(seq $((seconds * 10))); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    die "$what: not within $seconds s"
}

FOLDER=$(mktemp -d "${TMPDIR:-/tmp}/ringway-demo.XXXXXX")
PORTS=()
say "Starting six nodes and making a cluster of them (three primaries, three replicas)"
for _ in 1 2 3 4 5 6; do
    take_port
    PORTS+=("$PORT")
    mkdir "$FOLDER/$PORT"
    redis-server --port "$PORT" --bind 127.0.0.1 --dir "$FOLDER/$PORT" --logfile node.log \
        --cluster-enabled yes --cluster-node-timeout 2000 --save '' --appendonly no \
        --repl-diskless-sync-delay 0 \
        >"$FOLDER/$PORT/out.log" 2>&1 </dev/null &
    NODES+=($!)
done
for port in "${PORTS[@]}"; do until_ok 60 "node $port answers" cli "$port" ping; done
redis-cli --cluster create "${PORTS[@]/#/127.0.0.1:}" --cluster-replicas 1 --cluster-yes \
    >"$FOLDER/create.log" 2>&1 || { cat "$FOLDER/create.log" >&2; die "the cluster could not be made"; }
knows_all() {
    [[ "$(cli "$1" cluster info)" = *cluster_state:ok* ]] &&
        [ "$(cli "$1" cluster nodes | awk '$3 ~ /slave/ && $8 == "connected"' | wc -l)" = 3 ] &&
        [[ "$(cli "$1" info replication)" =~ role:master|master_link_status:up ]]
}
for port in "${PORTS[@]}"; do until_ok 120 "node $port knows the cluster" knows_all "$port"; done
for port in "${PORTS[@]}"; do cli "$port" config resetstat >/dev/null; done

# --- the proxy --------------------------------------------------------------------------------------

take_port
FRONT=$PORT
START=("$DEMO_BIN" --listen "127.0.0.1:$FRONT" --node "127.0.0.1:${PORTS[0]}" --node "127.0.0.1:${PORTS[1]}" --reactors 1)
say "Starting the proxy"
echo "  ${START[*]}"
"${START[@]}" >"$FOLDER/ringway.log" 2>&1 </dev/null &
PROXY=$!
works() { [ "$(cli "$FRONT" set demo:hello world)" = OK ]; }
for _ in $(seq 600); do
    works >/dev/null 2>&1 && break
    kill -0 $PROXY 2>/dev/null || { cat "$FOLDER/ringway.log" >&2; PROXY=; die "the proxy did not start"; }
    sleep 0.1
done
works >/dev/null 2>&1 || { cat "$FOLDER/ringway.log" >&2; die "the proxy does not serve"; }

FAULTS=0
expect() {    # expect WANTED COMMAND...: through the proxy, as one plain server would answer.
    local wanted=$1 got
    shift
    got=$(cli "$FRONT" "$@" 2>&1 | tr '\n' ' ') || true
    if [ "$got" = "$wanted " ]; then
        printf '  ok    %-44s %s\n' "$*" "$got"
    else
        printf '  WRONG %-44s %s(wanted: %s)\n' "$*" "$got" "$wanted"
        FAULTS=$((FAULTS + 1))
    fi
}
say "One client, one address, keys on all nodes"
expect world get demo:hello
expect OK mset a 1 b 2 c 3 d 4
expect "1 2 3 4 " mget a b c d none
expect 4 exists a b c d none
expect 4 del a b c d

# --- traffic ----------------------------------------------------------------------------------------

MGET=(mget)
for _ in 1 2 3 4 5 6 7 8 9 10; do MGET+=(key:__rand_int__); done
run() {    # run NAME ARGUMENTS...: one line of the table.
    local name=$1 line
    shift
    if ! redis-benchmark -h 127.0.0.1 -p "$FRONT" -r 100000 --csv "$@" \
        >"$FOLDER/bench.csv" 2>"$FOLDER/bench.err"; then
        printf '  %-44s failed: %s\n' "$name" "$(tail -n 1 "$FOLDER/bench.err")"
        FAULTS=$((FAULTS + 1))
        return
    fi
    # test, requests per second, average, min, p50, p95, p99, max
    line=$(tail -n 1 "$FOLDER/bench.csv" | tr -d '"')
    awk -F, -v name="$name" -v line="$line" 'BEGIN {
        n = split(line, f, ","); printf "  %-44s %9.0f %9.3f %9.3f\n", name, f[n-6], f[n-3], f[n-1] }'
}
say "Traffic through the proxy (redis-benchmark; everything shares this machine, so look at the shape)"
printf '  %-44s %9s %9s %9s\n' "" "per s" "p50 ms" "p99 ms"
run "SET, 50 clients"                   -t set -c 50 -n "$REQUESTS"
run "GET, 50 clients"                   -t get -c 50 -n "$REQUESTS"
run "GET, 500 clients"                  -t get -c 500 -n "$REQUESTS"
run "SET, 50 clients, 16 in a pipeline" -t set -c 50 -P 16 -n $((REQUESTS * 5))
run "GET, 50 clients, 16 in a pipeline" -t get -c 50 -P 16 -n $((REQUESTS * 5))
run "MGET of 10 keys, 50 clients"       -c 50 -n $((REQUESTS / 2)) "${MGET[@]}"

# --- what happened ----------------------------------------------------------------------------------

calls() { cli "$1" info commandstats | tr -d '\r' | sed -n "s/^cmdstat_$2:calls=\([0-9]*\),.*/\1/p"; }
slots_of() {    # ADDRESS: how many slots the map gives it.
    cli "${PORTS[0]}" cluster nodes | awk -v address="$1@" 'index($2, address) == 1 {
        for (i = 9; i <= NF; i++) if ($i !~ /^\[/) { n = split($i, r, "-"); sum += r[n] - r[1] + 1 } }
        END { print sum + 0 }'
}
say "What the nodes saw"
printf '  %-16s %-8s %6s %8s %10s %10s %8s %8s\n' node role slots keys SET GET MGET clients
BUSY=0
for port in "${PORTS[@]}"; do
    role=$(cli "$port" role | head -n 1)
    set=$(calls "$port" set) get=$(calls "$port" get) mget=$(calls "$port" mget)
    [ "$role" = master ] && [ "${set:-0}" -gt 0 ] && BUSY=$((BUSY + 1))
    printf '  %-16s %-8s %6s %8s %10s %10s %8s %8s\n' "127.0.0.1:$port" \
        "$([ "$role" = master ] && echo primary || echo replica)" "$(slots_of "127.0.0.1:$port")" \
        "$(cli "$port" dbsize)" "${set:-0}" "${get:-0}" "${mget:-0}" \
        "$(cli "$port" info clients | tr -d '\r' | sed -n 's/^connected_clients://p')"
done
echo "  (SET at a replica is replication; a primary sees few clients: they share the proxy's connections)"
[ $BUSY = 3 ] || { echo "  WRONG: $BUSY of 3 primaries served SET"; FAULTS=$((FAULTS + 1)); }

say "What the proxy counted"
told() { cli "$FRONT" info "$1" | tr -d '\r' | sed -n "s/^$2:\(.*\)/\1/p"; }
sleep 1.5    # its numbers are up to a second old
printf '  %-44s %12s\n' \
    "commands of clients" "$(told stats total_commands_processed)" \
    "  of them cut by slot" "$(told ringway requests_split)" \
    "connections to nodes" "$(told ringway backends)" \
    "redirects followed" "$(told ringway redirects)" \
    "request read to reply sent, p50 (us)" "$(told ringway latency_p50_us)" \
    "request read to reply sent, p99 (us)" "$(told ringway latency_p99_us)"

if [ $ONCE = yes ]; then
    say "Ending the proxy (SIGTERM drains)"
    kill $PROXY
    code=0
    wait $PROXY || code=$?
    PROXY=
    [ $code = 0 ] || { echo "  WRONG: exit code $code"; FAULTS=$((FAULTS + 1)); }
    [ $FAULTS = 0 ] || { tail -n 20 "$FOLDER/ringway.log" >&2; die "$FAULTS fault(s)"; }
    echo "  done, all as expected"
    exit 0
fi

say "It is yours now. In another terminal:"
hint() { printf '  %-56s %s\n' "$@"; }
hint "redis-cli -p $FRONT" "any command of one server"
hint "redis-cli -p $FRONT info" "the proxy in a server's words"
hint "redis-benchmark -p $FRONT -q -t set,get -P 16" "more traffic"
hint "redis-cli -p ${PORTS[0]} cluster nodes" "the cluster behind it"
hint "kill ${NODES[0]}" "lose a primary; its replica takes over in some seconds"
hint "tail -f $FOLDER/ringway.log" "what the proxy says"
printf '\nCtrl-C ends everything and removes %s.\n' "$FOLDER"
code=0
wait $PROXY || code=$?
PROXY=
tail -n 20 "$FOLDER/ringway.log" >&2
die "the proxy ended by itself (exit code $code)"
