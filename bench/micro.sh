#!/usr/bin/env bash
# Instructions of each micro-benchmark per command, counted by valgrind: repeatable to the instruction for one binary,
# whatever else the machine does. What they leave out: the kernel, caches, branches.
#
#   bench/micro.sh [NAME …]            a table; all cases, or those whose names hold one of the words
#   bench/micro.sh --save FILE         also as name, tab, instructions
#   bench/micro.sh --against FILE      beside those of an earlier --save, with the ratio
#   bench/micro.sh --cache             also cache lines per command that are not in a first cache of 32 KiB (simulated,
#                                      so no prefetching; only the `busy` cases need more than that)
#
# Each case runs 1,000 times and 3,000 times (20 and 60 if it has many commands); the difference is divided by that of
# the runs, so that the program's start does not count. Needs valgrind (sudo apt-get install valgrind) and builds with
# `cargo bench --bench micro --no-run`.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

SAVE='' AGAINST='' CACHE=no WORDS=()
while [[ $# -gt 0 ]]; do
    case $1 in
    --save | --against)
        [[ $# -gt 1 ]] || { echo "micro.sh: $1 wants a file" >&2 && exit 2; }
        [[ $1 == --save ]] && SAVE=$2 || AGAINST=$2
        shift 2
        ;;
    --cache) CACHE=yes && shift ;;
    -*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 2 ;;
    *) WORDS+=("$1") && shift ;;
    esac
done
if ! command -v valgrind >/dev/null; then
    echo "micro.sh: valgrind is missing: sudo apt-get install valgrind" >&2
    exit 2
fi
[[ -z $AGAINST || -r $AGAINST ]] || { echo "micro.sh: cannot read $AGAINST" >&2 && exit 2; }

PROGRAM=${MICRO_PROGRAM:-}
if [[ -z $PROGRAM ]]; then
    told=$(cargo bench --locked --bench micro --no-run 2>&1) || { echo "$told" >&2 && exit 1; }
    PROGRAM=$(sed -n 's/.*Executable.*(\(.*\))$/\1/p' <<<"$told" | tail -1)
fi
[[ -x $PROGRAM ]] || { echo "micro.sh: no program at '$PROGRAM'" >&2 && exit 1; }

# Instructions and lines fetched of so many runs of a case. Callgrind's sums: Ir, and with a simulated cache Dr Dw I1mr
# D1mr D1mw and those of the last one.
counted() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --cache-sim="$CACHE" --D1=32768,8,64 \
        "$PROGRAM" --count "$1" "$2" 2>&1 >/dev/null | awk '/Collected :/ { print $4, $8 + $9 }'
}

chosen() {
    [[ ${#WORDS[@]} == 0 ]] && return 0
    local word
    for word in "${WORDS[@]}"; do [[ $1 == *"$word"* ]] && return 0; done
    return 1
}

[[ -n $SAVE ]] && : >"$SAVE"
printf '%-32s %12s' case instructions
[[ $CACHE == yes ]] && printf ' %12s' lines
[[ -n $AGAINST ]] && printf ' %12s %7s' before ratio
echo
while IFS=$'\t' read -r name commands; do
    chosen "$name" || continue
    few=$((commands > 500 ? 20 : 1000))
    read -r few_run few_lines < <(counted "$name" "$few")
    read -r many_run many_lines < <(counted "$name" $((3 * few)))
    [[ -n $few_run && -n $many_run ]] || { echo "micro.sh: valgrind counted nothing for $name" >&2 && exit 1; }
    each() { awk -v a="$1" -v b="$2" -v c=$((2 * few * commands)) 'BEGIN { printf "%.1f", (b - a) / c }'; }
    now=$(each "$few_run" "$many_run")
    printf '%-32s %12s' "$name" "$now"
    [[ $CACHE == yes ]] && printf ' %12s' "$(each "$few_lines" "$many_lines")"
    if [[ -n $AGAINST ]]; then
        awk -F'\t' -v name="$name" -v now="$now" \
            '$1 == name { printf " %12s %7.3f", $2, now / $2 }' "$AGAINST"
    fi
    echo
    [[ -n $SAVE ]] && printf '%s\t%s\n' "$name" "$now" >>"$SAVE"
done < <("$PROGRAM" --names)
exit 0
