#!/usr/bin/env bash
# redis-rs's own suite against plain servers and through the proxy; what passes there must pass here, but for the rows
# of redis_rs.skip. Each test starts a server of its own: that is behind.sh, a proxy before a cluster of two primaries, which
# it takes from a pool of them.
#
#   redis_rs.sh [all|long]
#
#   all   RESP3, the synchronous client's test_basic
#   long  both clients, streams, scripts, geospatial, types; RESP3 and RESP2
#
# The crate comes from crates.io and is built in tests/.cache. Its published form lacks two of its own helpers: one is
# published apart (redis-test), one is redis_rs_macros here; that is all that is changed. Needs RINGWAY_BINARY,
# redis-server. Left out: TLS, modules, sentinel, ACL, caching (CLIENT TRACKING), hotkeys (Redis 8), what needs no
# server, and the cluster client's tests, which want the nodes themselves.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=$(cd "$HERE/.." && pwd)/.cache
VERSION=1.8.1
SUITE=$CACHE/redis-rs-$VERSION
AT_ONCE=4

main() {
    local mode=${1:-all} files protocols
    case $mode in
    all) files=(test_basic) protocols=(RESP3) least=86 ;;
    long)
        files=(test_basic test_async test_streams test_script test_geospatial test_types)
        protocols=(RESP3 RESP2) least=495
        ;;
    *) echo "redis_rs.sh [all|long]" >&2 && exit 2 ;;
    esac
    FOLDER=$(mktemp -d /tmp/ringway-redis-rs-XXXXXX)
    export FOLDER SUITE SUITE_FOLDER=$FOLDER SUITE_NODES=2 REDISRS_SERVER_TYPE=tcp
    trap 'kill "${POOL_PID-}" 2>/dev/null; wait; rm -rf "$FOLDER"' EXIT
    fetch
    build
    list >"$FOLDER/tests"
    export SUITE_POOL=$FOLDER/pool
    mkdir "$SUITE_POOL"
    "$HERE/behind.sh" --pool "$SUITE_POOL" "$AT_ONCE" &
    POOL_PID=$!
    for _ in {1..600}; do [[ -e $SUITE_POOL/ready ]] && break || sleep 0.1; done
    local runs=()
    for PROTOCOL in "${protocols[@]}"; do
        export PROTOCOL
        run direct "$(command -v redis-server)"
        run proxied "$HERE/behind.sh"
        runs+=("$FOLDER/direct-$PROTOCOL" "$FOLDER/proxied-$PROTOCOL")
    done
    local compare=("$HERE/compare.py" --skip "$HERE/redis_rs.skip" --least "$least")
    [[ $mode == long ]] && compare+=(--whole)
    "${compare[@]}" "${runs[@]}" && return
    rm -rf "$CACHE/logs/redis-rs" && mkdir -p "$CACHE/logs/redis-rs"
    cp "$FOLDER"/{direct,proxied}-* "$CACHE/logs/redis-rs"
    return 1
}

fetch() {
    [[ -f $SUITE/.done ]] && return
    local place
    rm -rf "$SUITE" && mkdir -p "$SUITE/get/src"
    printf '[workspace]\n[package]\nname = "get"\nversion = "0.0.0"\n[dependencies]\nredis = "=%s"\n' "$VERSION" \
        >"$SUITE/get/Cargo.toml"
    touch "$SUITE/get/src/lib.rs"
    place=$(cargo metadata --format-version 1 --manifest-path "$SUITE/get/Cargo.toml" 2>"$FOLDER/fetch.log" |
        sed 's/.*"manifest_path":"\([^"]*\/redis-'"$VERSION"'\)\/Cargo.toml".*/\1/')
    [[ -d $place ]] || { cat "$FOLDER/fetch.log" >&2 && return 1; }
    cp -r "$place" "$SUITE/crate" && cd "$SUITE/crate"
    cp -r "$HERE/redis_rs_macros" "$SUITE/macros"
    # Benches and examples are not run; what they need takes long to build.
    rm -rf Cargo.lock benches examples
    awk '/^\[/ { drop = /^\[\[(bench|example)\]\]|^\[dev-dependencies.criterion\]/ } !drop' Cargo.toml >Cargo.new
    mv Cargo.new Cargo.toml
    cat >>Cargo.toml <<'END'

[dev-dependencies.redis-test]
version = "=1.0.4"

[dev-dependencies.test-macros]
path = "../macros"

[patch.crates-io]
redis = { path = "." }

[workspace]
END
    touch "$SUITE/.done"
}

build() {
    local tests=() file
    for file in "${files[@]}"; do tests+=(--test "$file"); done
    (cd "$SUITE/crate" && CARGO_PROFILE_TEST_DEBUG=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$SUITE/target \
        cargo test --no-run --quiet --features cluster,tokio-comp "${tests[@]}" --message-format json \
        >"$FOLDER/build.json" 2>"$FOLDER/build.log") || { tail -40 "$FOLDER/build.log" >&2 && return 1; }
}

# FILE PROGRAM TEST, for each test that there is.
list() {
    local file program
    for file in "${files[@]}"; do
        program=$(sed -n 's/.*"executable":"\([^"]*\/'"$file"'-[0-9a-f]*\)".*/\1/p' "$FOLDER/build.json" | tail -1)
        "$program" --list --format terse 2>/dev/null | sed -n "s|^\(.*\): test$|$file $program \1|p"
    done
}

run() {
    export REDISRS_SERVER_BIN=$2 OUTCOMES=$FOLDER/$1-$PROTOCOL
    : >"$OUTCOMES"
    xargs -P "$AT_ONCE" -L 1 bash -c 'one "$@"' one <"$FOLDER/tests"
}

# One line, as compare.py wants it; two more tries for what fails, since the machine is busy.
one() {
    local outcome=failed try output start=$SECONDS
    for try in 1 2 3; do
        if output=$(cd "$SUITE/crate" && RUST_BACKTRACE=0 timeout 60 "$2" --exact "$3" --nocapture 2>&1); then
            outcome=passed
            [[ $output == *" 0 passed; 0 failed; 1 ignored"* ]] && outcome=skipped
            break
        elif [[ $? == 124 ]]; then
            output+=" did not end"
        fi
    done
    output=$(tail -c 3000 <<<"$output" | tr -s '[:space:]' ' ')
    printf '%s\t%s\t%s\t%s\n' "$outcome" "$1.rs::$3" $((SECONDS - start)) "$output" >>"$OUTCOMES"
}
export -f one

main "$@"
