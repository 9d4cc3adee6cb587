#!/usr/bin/env bash
# redis-py's own suite, unmodified, against a plain redis-server and through the proxy; what passes there must pass
# here, but for the rows of redis_py.skip. The proxy stands before a cluster of three primaries.
#
#   redis_py.sh [all|long]
#
#   all   RESP3: what uses the synchronous client; RESP2: its commands, pipelines and subscriptions
#   long  both clients, RESP2 and RESP3
#
# The suite comes from PyPI, into tests/.cache. Needs RINGWAY_BINARY, redis-server, and tests/.cache/suites-py
# (tests/run.sh installs it). Left out by the suite's own marks: what wants cluster clients, modules, TLS, replicas, or
# no server at all; and whole files for: servers after 7.0 (hash, himport, vsets), modules (search, json, bloom,
# timeseries), sentinel, logging in with tokens (auth, credentials), several databases at once (multidb).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=$(cd "$HERE/.." && pwd)/.cache
VERSION=8.1.0
SUITE=$CACHE/redis-$VERSION
MARKS='not onlycluster and not fixed_client and not redismod and not ssl and not replica'
MARKS+=' and not cp_integration and not multidb_integration'

files() { printf "tests/$1test_%s.py " "${@:2}"; }
TALKING=$(files "" commands pipeline pubsub)
SYNC="$TALKING $(files "" lock scripting connection connection_pool encoding function monitor multiprocessing cache \
    command_parser keyspace_notifications client max_connections_error)"
ASYNC=$(files test_asyncio/ commands pipeline pubsub lock scripting connection connection_pool encoding monitor \
    command_parser keyspace_notifications client cwe_404 usage_counter)

main() {
    local mode=${1:-all}
    fetch
    FOLDER=$(mktemp -d /tmp/ringway-redis-py-XXXXXX)
    SERVERS=()
    trap 'kill "${SERVERS[@]}" 2>/dev/null; wait; rm -rf "$FOLDER"' EXIT
    local direct proxied
    direct=$(free_port) && proxied=$direct
    while [[ $proxied == "$direct" ]]; do proxied=$(free_port); done
    redis-server --port "$direct" --bind 127.0.0.1 --save '' --dir "$FOLDER" >"$FOLDER/redis.log" 2>&1 &
    SERVERS+=($!)
    SUITE_NODES=3 SUITE_FOLDER=$FOLDER \
        "$HERE/behind.sh" --port "$proxied" --bind 127.0.0.1 &
    SERVERS+=($!)
    wait_for "$direct" && wait_for "$proxied"

    case $mode in
    all)
        run_both 3 "$SYNC"
        run_both 2 "$TALKING"
        judge --least 1200
        ;;
    long)
        run_both 3 "$SYNC $ASYNC"
        run_both 2 "$SYNC $ASYNC"
        judge --whole --least 3300
        ;;
    *) echo "redis_py.sh [all|long]" >&2 && exit 2 ;;
    esac
}

fetch() {
    [[ -f $SUITE/.done ]] && return
    rm -rf "$SUITE"
    "$CACHE/suites-py/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary redis \
        --dest "$CACHE" "redis==$VERSION"
    tar -xzf "$CACHE/redis-$VERSION.tar.gz" -C "$CACHE"
    touch "$SUITE/.done"
}

free_port() {
    local port
    while port=$((10000 + RANDOM % 20000)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

wait_for() {
    for _ in {1..900}; do
        [[ $(redis-cli -p "$1" ping 2>/dev/null) == PONG ]] && return
        sleep 0.1
    done
    echo "nothing answers on port $1:" >&2
    tail -n 20 "$FOLDER"/*.log "$FOLDER"/*/*.log >&2 || true
    return 1
}

# pytest PORT PROTOCOL OUTCOMES TEST…
pytest() {
    local port=$1 protocol=$2 outcomes=$3
    shift 3
    local code=0
    (cd "$SUITE" && OUTCOMES=$outcomes PYTHONPATH=$HERE PYTHONDONTWRITEBYTECODE=1 timeout 900 \
        "$CACHE/suites-py/bin/python" -m pytest -q -p no:cacheprovider -p pytest_outcomes -o addopts= \
        --tb=native --timeout 20 --protocol="$protocol" --legacy-responses=true \
        --redis-url="redis://127.0.0.1:$port/0" --redis-mod-url=redis://127.0.0.1:1 \
        -m "$MARKS" "$@") >"$outcomes.log" 2>&1 || code=$?
    # 1 says that tests failed, which the comparison judges.
    [[ $code -le 1 ]] || { tail -n 20 "$outcomes.log" >&2 && return "$code"; }
}

run_both() {
    local protocol=$1 tests=$2
    # Words of $tests are file names.
    pytest "$direct" "$protocol" "$FOLDER/direct-$protocol" $tests &
    local other=$!
    pytest "$proxied" "$protocol" "$FOLDER/proxied-$protocol" $tests
    wait "$other"
    RUNS+=("$FOLDER/direct-$protocol" "$FOLDER/proxied-$protocol")
}

# Tests that wait for 0.2 seconds fail now and then on a busy machine: what fails is run again, twice at most.
judge() {
    local compare=("$HERE/compare.py" --skip "$HERE/redis_py.skip" "$@") protocol tests
    for _ in 1 2; do
        "${compare[@]}" --again "$FOLDER/again" "${RUNS[@]}" >"$FOLDER/verdict" && break
        for protocol in 2 3; do
            mapfile -t tests < <(sed -n "s/^.*\/proxied-$protocol\t//p" "$FOLDER/again")
            [[ ${#tests[@]} == 0 || ${#tests[@]} -gt 40 ]] && continue
            echo "again with RESP$protocol: ${tests[*]}"
            pytest "$proxied" "$protocol" "$FOLDER/again-$protocol" "${tests[@]}"
            cat "$FOLDER/again-$protocol" >>"$FOLDER/proxied-$protocol"
        done
    done
    "${compare[@]}" "${RUNS[@]}" && return
    rm -rf "$CACHE/logs/redis-py" && mkdir -p "$CACHE/logs/redis-py"
    cp "$FOLDER"/{direct,proxied}-* "$CACHE/logs/redis-py"
    return 1
}

RUNS=()
main "$@"
