#!/usr/bin/env bash
# A redis-server to whoever starts it: takes its arguments, and is the proxy in front of a cluster of its own.
#
#   behind.sh --port N [--bind HOST] [other arguments of redis-server: each node gets them]
#   behind.sh --version
#   behind.sh --pool FOLDER COUNT    starts clusters and keeps them until it is ended; FOLDER/ready when all are
#
# SUITE_POOL      a pool's folder: instead of starting a cluster (seconds), one of it is emptied and taken
# SUITE_NODES     primaries (2)
# SUITE_REACTORS  reactors of the proxy (2)
# SUITE_FOLDER    where the nodes' folders and the logs go (/tmp); who sets it, removes it
# RINGWAY_BINARY  the proxy
# When the proxy ends, however it ends, the kernel ends the nodes.
set -euo pipefail

[[ " $* " == *" --version "* || ${1-} == -v ]] && exec redis-server --version
NODES=${SUITE_NODES:-2}

# A node's ports must be free and below those that the kernel hands out to clients.
free_port() {
    local candidate
    while :; do
        candidate=$((10000 + (RANDOM * 32768 + RANDOM) % 22000))
        # Not the proxy's own, either.
        [[ $candidate == "${port-}" ]] && continue
        (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null || break
    done
    echo "$candidate"
}

start_node() {
    local try node bus pid
    for try in 1 2 3 4 5; do
        node=$(free_port) bus=$(free_port)
        [[ $node != "$bus" ]] || continue
        mkdir -p "$folder/$node"
        setpriv --pdeathsig KILL redis-server "$@" --port "$node" --bind 127.0.0.1 \
            --cluster-enabled yes --cluster-port "$bus" --cluster-node-timeout 15000 --save '' \
            --dir "$folder/$node" --logfile "$folder/$node/log" >/dev/null 2>&1 &
        pid=$!
        for _ in {1..200}; do
            [[ $(redis-cli -p "$node" ping 2>/dev/null) == PONG ]] && ports+=("$node") && return 0
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
    echo "behind.sh: no node starts after $try tries" >&2
    exit 1
}

# start_cluster [ARGUMENT OF REDIS-SERVER…]: sets `ports`.
start_cluster() {
    local i node state
    ports=()
    for ((i = 0; i < NODES; i++)); do start_node "$@"; done
    for ((i = 0; i < NODES; i++)); do
        {
            redis-cli -p "${ports[i]}" cluster set-config-epoch $((i + 1))
            redis-cli -p "${ports[i]}" cluster addslotsrange \
                $((16384 * i / NODES)) $((16384 * (i + 1) / NODES - 1))
            [[ $i == 0 ]] || redis-cli -p "${ports[i]}" cluster meet 127.0.0.1 "${ports[0]}" \
                "$(redis-cli -p "${ports[0]}" config get cluster-port | tail -1)"
        } >/dev/null
    done
    for node in "${ports[@]}"; do
        for _ in {1..600}; do
            state=$(redis-cli -p "$node" cluster info | tr -d '\r')
            [[ $state == *cluster_state:ok* && $state == *cluster_size:$NODES* ]] && continue 2
            sleep 0.05
        done
        echo "behind.sh: no cluster: $state" >&2 && exit 1
    done
}

# Takes a cluster that nobody has; descriptor 9 holds it until the proxy has ended, however it ends.
take_cluster() {
    local lock node
    while :; do
        for lock in "$SUITE_POOL"/cluster-*; do
            exec 9<"$lock"
            flock --nonblock 9 && break 2
        done
        sleep 0.05
    done
    mapfile -t ports <"$lock"
    for node in "${ports[@]}"; do
        printf 'FLUSHALL\nFUNCTION FLUSH\nSCRIPT FLUSH\n' | redis-cli -p "$node" >/dev/null
    done
}

if [[ ${1-} == --pool ]]; then
    folder=$2
    for ((count = 0; count < $3; count++)); do
        start_cluster
        printf '%s\n' "${ports[@]}" >"$folder/cluster-$count"
    done
    touch "$folder/ready"
    wait
fi

port='' bind=127.0.0.1 rest=()
while [[ $# -gt 0 ]]; do
    case $1 in
    --port) port=$2 && shift 2 ;;
    --bind) bind=$2 && shift 2 ;;
    *) rest+=("$1") && shift ;;
    esac
done
[[ -n $port ]] || { echo "behind.sh: --port is missing" >&2 && exit 2; }
folder=$(mktemp -d "${SUITE_FOLDER:-/tmp}/behind-XXXXXX")
if [[ -n ${SUITE_POOL-} ]]; then take_cluster; else start_cluster "${rest[@]}"; fi
version=$(redis-server --version | sed 's/.* v=\([0-9.]*\).*/\1/')
seeds=()
for node in "${ports[@]}"; do seeds+=(--node "127.0.0.1:$node"); done
# A second: what a busy machine makes slow is not what the suites look for in SLOWLOG and LATENCY.
# Its own variable would be taken for an option.
program=$RINGWAY_BINARY
unset RINGWAY_BINARY
exec "$program" --listen "$bind:$port" --reactors "${SUITE_REACTORS:-2}" --announce-version "$version" --admin-user default \
    --slowlog-log-slower-than 1000000 \
    "${seeds[@]}" 2>"$folder/proxy.log"
