#!/usr/bin/env bash
# Reads, explains and (only when told) changes the settings of a host that Ringway runs on, and takes it all back.
#
#   tuning/apply.sh check              what is, what is wanted, why; changes nothing
#   tuning/apply.sh apply              what would be changed, with reason and risk; changes nothing
#   tuning/apply.sh apply --yes        changes it, after writing down what was there before
#   tuning/apply.sh undo [--yes]       what would be put back; puts it back
#   tuning/apply.sh fragment           the lines for /etc/sysctl.d, to be installed by other means
#
#   --profile P    small-vm, dedicated, numa, load-generator (guessed from the host if not given)
#   --cpus LIST    the CPUs of the reactors, as Ringway's option `cpus`: needed for interrupts, RPS and XPS
#   --nic NAME     the network card (that of the default route)
#   --rx-usecs N   how long the card collects packets before it interrupts (left alone if not given)
#   --only WORDS   only settings whose names begin with one of these, with commas: net.,irq
#   --no-persist   until the next boot only: no files under /etc
#   --user NAME    whose limits are raised in /etc/security/limits.d (ringway)
#   --root DIR     another root than /, for tests; --state DIR: where the former values are kept
#                  (/var/lib/ringway-tuning)
#
# Everything that it sets is a row of tuning/settings.tsv, which `ringway check` reads too; how each effect is measured
# stands there. Values that are better than wanted already are left alone. Exit code: 0 done, 1 something could not be
# read or written, 2 wrong usage.
set -uo pipefail
export LC_ALL=C

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROWS=$HERE/settings.tsv
PROFILE='' CPUS='' NIC='' ONLY='' USER_NAME=ringway ROOT='' STATE='' YES=no PERSIST=yes RX_USECS=''
FAILED=0 CHANGES=0

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }
wrong() { echo "apply.sh: $*; see --help" >&2 && exit 2; }
problem() { echo "apply.sh: $*" >&2 && FAILED=1; }

# --- the host ---------------------------------------------------------------------------------------------------

# A kernel file's value with single blanks; of `always [madvise] never` the word that holds.
value_of() {
    local text
    text=$(tr -s '[:space:]' ' ' <"$1" 2>/dev/null) || return 1
    text=${text% }
    [[ $text =~ \[([^]]*)\] ]] && text=${BASH_REMATCH[1]}
    printf '%s' "$text"
}

# 0,2-3 → 0 2 3
cpu_list() {
    local part from to
    for part in ${1//,/ }; do
        [[ $part =~ ^([0-9]+)(-([0-9]+))?$ ]] || return 1
        from=${BASH_REMATCH[1]} to=${BASH_REMATCH[3]:-${BASH_REMATCH[1]}}
        seq "$from" "$to"
    done
}

# CPU numbers → the kernel's mask: groups of 32 bits, the highest first.
cpu_mask() {
    local -a groups=(0)
    local cpu group text=''
    for cpu in "$@"; do
        group=$((cpu / 32))
        groups[group]=$((${groups[group]:-0} | 1 << (cpu % 32)))
    done
    for ((group = $(printf '%s\n' "${!groups[@]}" | sort -n | tail -1); group >= 0; group--)); do
        text+=$(printf '%08x' "${groups[group]:-0}"),
    done
    printf '%s' "${text%,}"
}

# The CPUs that no reactor has.
other_cpus() {
    local cpu online
    online=$(value_of "$ROOT/sys/devices/system/cpu/online") || return 1
    for cpu in $(cpu_list "$online"); do
        [[ " ${REACTORS[*]} " == *" $cpu "* ]] || echo "$cpu"
    done
}

guess_profile() {
    local nodes cpus
    nodes=$(find "$ROOT/sys/devices/system/node" -maxdepth 1 -name 'node[0-9]*' 2>/dev/null | wc -l)
    cpus=$(grep -c '^processor' "$ROOT/proc/cpuinfo" 2>/dev/null)
    if [[ $nodes -gt 1 ]]; then
        echo numa
    elif [[ ${cpus:-1} -le 4 ]] || grep -q '^flags.* hypervisor' "$ROOT/proc/cpuinfo" 2>/dev/null; then
        echo small-vm
    else
        echo dedicated
    fi
}

guess_nic() { awk '$2 == "00000000" { print $1; exit }' "$ROOT/proc/net/route" 2>/dev/null; }

# --- judging: the same words as src/check/settings.rs -----------------------------------------------------------------

# is_met WANT VALUE: 0 yes, 1 no, 2 the value is of another form
is_met() {
    local kind=${1%% *} rest=${1#* } value=$2
    case $kind in
    at-least) [[ $value =~ ^[0-9]+$ ]] || return 2; [[ ${#value} -gt 18 ]] || ((value >= rest)) ;;
    is) [[ $value == "$rest" ]] ;;
    one-of) [[ " $rest " == *" $value "* ]] ;;
    not) [[ $value != "$rest" ]] ;;
    last-at-least) [[ ${value##* } =~ ^[0-9]+$ ]] || return 2; ((${value##* } >= rest)) ;;
    span-at-least) [[ $value =~ ^([0-9]+)\ ([0-9]+)$ ]] || return 2; ((BASH_REMATCH[2] - BASH_REMATCH[1] + 1 >= rest)) ;;
    *) return 2 ;;
    esac
}

# target_of WANT VALUE WISH: what a profile's wish makes of the value; nothing if it may stay
target_of() {
    local want=$1 value=$2 wish=$3 target
    case $wish in
    -) return ;;
    last\ *) target="${value% *} ${wish#last }"; ((${value##* } >= ${wish#last })) && return ;;
    *) target=$wish ;;
    esac
    # More than is wished for is left alone.
    if [[ $want == at-least* && $value =~ ^[0-9]+$ ]]; then
        [[ ${#value} -gt 18 ]] || ((value >= wish)) && return
    fi
    [[ $value == "$target" ]] || printf '%s' "$target"
}

# --- the plan ------------------------------------------------------------------------------------------------------

# each_row FUNCTION: calls it with kind name want wish why risk effect for every row of the profile
each_row() {
    local column function=$1 kind name want wish why risk measure fields word
    column=$(head -1 "$ROWS" | tr '\t' '\n' | grep -nx -- "$PROFILE" | cut -d: -f1)
    [[ -n $column ]] || wrong "--profile '$PROFILE': there are small-vm, dedicated, numa, load-generator"
    # A tab is white space to `read`, which would fold empty fields: there are none.
    while IFS=$'\t' read -r -a fields; do
        kind=${fields[0]} name=${fields[1]} want=${fields[2]} wish=${fields[column - 1]}
        why=${fields[-4]} risk=${fields[-3]}
        measure="${fields[-2]} (${fields[-1]})"
        if [[ -n $ONLY ]]; then
            for word in ${ONLY//,/ }; do [[ $name == "$word"* ]] && break; word=; done
            [[ -n $word ]] || continue
        fi
        "$function" "$kind" "$name" "$want" "$wish" "$why" "$risk" "$measure"
    done < <(tail -n +2 "$ROWS")
}

# The files of a row: one for a sysctl, one for each CPU of a governor.
files_of() {
    case $1 in
    sysctl) echo "$ROOT/proc/sys/${2//.//}" ;;
    file) compgen -G "$ROOT$2" ;;
    esac
}

check_row() {
    local kind=$1 name=$2 want=$3 wish=$4 why=$5 file value
    [[ $kind == sysctl || $kind == file ]] || { check_other "$@" && return; }
    [[ $want == - ]] && want="is $wish" && [[ $wish == - ]] && return
    while read -r file; do
        value=$(value_of "$file") || continue
        [[ -n $value ]] || continue
        is_met "$want" "$value"
        case $? in
        0) printf 'ok    %s  %s\n' "$name" "$value" ;;
        1)
            printf 'warn  %s  %s\n      wanted  %s\n      why     %s\n' "$name" "$value" "$want" "$why"
            CHANGES=$((CHANGES + 1))
            ;;
        esac
        break
    done < <(files_of "$kind" "$name")
}

# Rows of other kinds have no fixed value: whether they would change is what can be said.
check_other() {
    local before=$CHANGES told
    told=$(YES=no && apply_row "$@" && echo "$CHANGES") || return 0
    [[ ${told##*$'\n'} -gt $before ]] || return 0
    printf 'warn  %s\n      wanted  %s\n      why     %s\n' "$2" "$4" "$5"
    CHANGES=$((CHANGES + 1))
}

apply_row() {
    local kind=$1 name=$2 want=$3 wish=$4 file value target
    [[ $name == rx-usecs && -n $RX_USECS ]] && wish=$RX_USECS
    [[ $wish == - ]] && return
    case $kind in
    sysctl | file)
        while read -r file; do
            value=$(value_of "$file") || continue
            target=$(target_of "$want" "$value" "$wish")
            [[ -n $target ]] || is_remembered file "$file" || continue
            [[ $kind == sysctl ]] && FRAGMENT+="# $5"$'\n'"$name = ${target:-$value}"$'\n'
            [[ -z $target ]] || change "$file" "$target" "$5" "$6" "$7"
        done < <(files_of "$kind" "$name")
        ;;
    limit) LIMITS+="$USER_NAME - $name $wish"$'\n' ;;
    nic) "apply_${name//-/_}" "$wish" "$5" "$6" "$7" ;;
    esac
}

# --- network cards ---------------------------------------------------------------------------------------------------

# Whether interrupts and queues can be told apart for the reactors' sake.
nic_known() {
    [[ -n $NIC && -d $ROOT/sys/class/net/$NIC ]] || { note "$1 left alone: no network card (--nic)" && return 1; }
    [[ ${#REACTORS[@]} -gt 0 ]] || { note "$1 left alone: which CPUs are the reactors'? (--cpus)" && return 1; }
}

note() { NOTES+="note  $*"$'\n'; }

# irqs: number and queue of each interrupt of the card's queues, as /proc/interrupts names them.
irqs() {
    local device=$ROOT/sys/class/net/$NIC/device numbers virtio
    numbers=" $(ls "$device/msi_irqs" "$device/../msi_irqs" 2>/dev/null | tr '\n' ' ') "
    virtio=$(basename "$(readlink -f "$device" 2>/dev/null)")
    awk -v numbers="$numbers" -v nic="$NIC" -v virtio="$virtio" '
        $1 ~ /^[0-9]+:$/ {
            irq = $1; sub(":", "", irq); name = $NF
            if (name ~ /config|event|async|ctrl|mgmnt|control/) next
            if (!index(numbers, " " irq " ") && name !~ ("(^|[-@:])" nic "($|[-@:])") && name !~ ("^" virtio "-")) next
            kind = name; gsub(/[0-9]+(@.*)?$/, "", kind)
            queue = seen[kind]++
            if (match(name, /[0-9]+(@.*)?$/) && name !~ ("^" virtio "-(rx|tx|input|output)$"))
                queue = substr(name, RSTART, RLENGTH) + 0
            print irq, queue
        }' "$ROOT/proc/interrupts" 2>/dev/null
}

apply_irq() {
    nic_known irq || return
    local irq queue target others
    others=$(other_cpus | paste -sd,)
    if [[ $1 == others && -z $others ]]; then
        note "irq left alone: every CPU has a reactor" && return
    fi
    if grep -qsx irqbalance "$ROOT"/proc/[0-9]*/comm; then
        note "irqbalance runs and will move interrupts again: systemctl disable --now irqbalance"
    fi
    while read -r irq queue; do
        target=$others
        [[ $1 == same ]] && target=${REACTORS[queue % ${#REACTORS[@]}]}
        change_if_other "$ROOT/proc/irq/$irq/smp_affinity_list" "$target" "${@:2}"
    done < <(irqs)
}

apply_rps() {
    nic_known rps || return
    local others file
    mapfile -t others < <(other_cpus)
    [[ ${#others[@]} -gt 0 ]] || { note "rps left alone: every CPU has a reactor" && return; }
    for file in "$ROOT/sys/class/net/$NIC/queues"/rx-*/rps_cpus; do
        change_mask "$file" "$(cpu_mask "${others[@]}")" "${@:2}"
    done
}

apply_xps() {
    nic_known xps || return
    local file queue
    for file in "$ROOT/sys/class/net/$NIC/queues"/tx-*/xps_cpus; do
        queue=${file%/xps_cpus} && queue=${queue##*tx-}
        change_mask "$file" "$(cpu_mask "${REACTORS[queue % ${#REACTORS[@]}]}")" "${@:2}"
    done
}

# Leading zeros and the number of groups differ from kernel to kernel.
change_mask() {
    local value plain target
    [[ -w $1 || -r $1 ]] || return 0
    value=$(value_of "$1") || return 0
    plain=$(sed 's/,//g; s/^0*//' <<<"$value") target=$(sed 's/,//g; s/^0*//' <<<"$2")
    [[ $plain == "$target" ]] || change "$@"
}

change_if_other() {
    local value
    value=$(value_of "$1") || return 0
    [[ $value == "$2" ]] || change "$@"
}

# ethtool_now LETTER FIELD: what holds now (the last of the two sections of `ethtool -g`)
ethtool_now() { ${ETHTOOL:-ethtool} "-$1" "$NIC" 2>/dev/null | sed -n "s/^$2:[[:space:]]*\([0-9]*\)\$/\1/p" | tail -1; }

apply_rx_ring() {
    [[ -n $NIC ]] && command -v "${ETHTOOL:-ethtool}" >/dev/null || { note "rx-ring left alone: no ethtool or card" && return; }
    local now most wish=$1
    now=$(ethtool_now g RX) most=$(${ETHTOOL:-ethtool} -g "$NIC" 2>/dev/null | sed -n 's/^RX:[[:space:]]*\([0-9]*\)$/\1/p' | head -1)
    [[ -n $now && -n $most ]] || { note "rx-ring left alone: $NIC does not tell its rings" && return; }
    ((wish > most)) && wish=$most
    ((now >= wish)) || change_ethtool G g RX rx "$now" "$wish" "${@:2}"
}

apply_rx_usecs() {
    [[ -n $NIC ]] && command -v "${ETHTOOL:-ethtool}" >/dev/null || { note "rx-usecs left alone: no ethtool or card" && return; }
    local now
    now=$(ethtool_now c rx-usecs)
    [[ -n $now ]] || { note "rx-usecs left alone: $NIC does not tell it" && return; }
    [[ $now == "$1" ]] || change_ethtool C c rx-usecs rx-usecs "$now" "$1" "${@:2}"
}

# --- changing and putting back ----------------------------------------------------------------------------------------

explain() { printf '      why     %s\n      risk    %s\n      effect  %s\n' "$@"; }

is_remembered() { cut -f1,2 "$STATE/before" 2>/dev/null | grep -qxF -- "$1"$'\t'"$2"; }

# Former values are written down first. The first word counts: what an earlier run of ours set is no former value.
remember() {
    local kind=$1 target=$2
    mkdir -p "$STATE" || { problem "cannot make $STATE" && return 1; }
    if ! is_remembered "$kind" "$target"; then
        printf '%s\t%s\t%s\n' "$kind" "$target" "$3" >>"$STATE/before" || { problem "cannot write $STATE/before" && return 1; }
    fi
}

# change FILE VALUE WHY RISK MEASURE
change() {
    local file=$1 value=$2
    CHANGES=$((CHANGES + 1))
    printf '%s  %s -> %s\n' "${file#"$ROOT"}" "$(value_of "$file")" "$value"
    [[ $QUIET == yes ]] || explain "${@:3}"
    [[ $YES == yes ]] || return 0
    remember file "$file" "$(base64 -w0 <"$file")" || return 0
    printf '%s\n' "$value" 2>/dev/null >"$file" || problem "cannot write $value to $file"
}

# change_ethtool SETTER GETTER FIELD WORD NOW VALUE WHY RISK MEASURE
change_ethtool() {
    CHANGES=$((CHANGES + 1))
    printf 'ethtool -%s %s %s  %s -> %s\n' "$1" "$NIC" "$4" "$5" "$6"
    [[ $QUIET == yes ]] || explain "${@:7}"
    [[ $YES == yes ]] || return 0
    remember ethtool "-$1 $NIC $4" "$5" || return 0
    ${ETHTOOL:-ethtool} "-$1" "$NIC" "$4" "$6" || problem "ethtool -$1 $NIC $4 $6 failed"
}

# persist FILE TEXT: a file of ours under /etc, whose folder must be there
persist() {
    local file=$1 text=$2
    [[ -n $text && $PERSIST == yes ]] || return 0
    [[ -d ${file%/*} ]] || { note "$file left out: no such folder" && return; }
    text="# Written by tuning/apply.sh of Ringway, profile $PROFILE; 'apply.sh undo --yes' removes it."$'\n'$text
    [[ -f $file && $(<"$file") == "${text%$'\n'}" ]] && return 0
    CHANGES=$((CHANGES + 1))
    printf '%s\n' "${file#"$ROOT"}"
    # shellcheck disable=SC2001
    [[ $QUIET == yes ]] || sed 's/^/      /' <<<"${text%$'\n'}"
    [[ $YES == yes ]] || return 0
    if [[ -f $file ]]; then
        remember replaced "$file" "$(base64 -w0 <"$file")" || return 0
    else
        remember created "$file" - || return 0
    fi
    printf '%s' "$text" >"$file" || problem "cannot write $file"
}

# Everything in the opposite order; what could not be put back stays written down.
do_undo() {
    local kind target value left=''
    [[ -f $STATE/before ]] || { echo "Nothing to undo: $STATE/before does not exist." && return; }
    while IFS=$'\t' read -r kind target value; do
        if [[ $YES == no ]]; then
            [[ $kind == file ]] && value=$(base64 -d <<<"$value" | tr -s '[:space:]' ' ')
            [[ $kind == replaced ]] && value='its former text'
            [[ $kind == created ]] && value=removed
            printf '%s -> %s\n' "${target#"$ROOT"}" "$value"
        elif put_back "$kind" "$target" "$value"; then
            printf '%s put back\n' "${target#"$ROOT"}"
        else
            problem "cannot put back $target"
            left=$kind$'\t'$target$'\t'$value$'\n'$left
        fi
    done < <(tac "$STATE/before")
    [[ $YES == yes ]] || { printf '\nNothing was changed. With --yes it is put back.\n' && return; }
    if [[ -n $left ]]; then
        printf '%s' "$left" >"$STATE/before"
    else
        rm -f "$STATE/before" && rmdir "$STATE" 2>/dev/null
    fi
}

put_back() {
    local kind=$1 target=$2 value=$3 text words
    case $kind in
    file)
        [[ -e $target ]] || return 0
        text=$(base64 -d <<<"$value") || return 1
        # `always [madvise] never` is shown, but one word is taken.
        if [[ $text =~ \[([^]]*)\] ]]; then
            printf '%s\n' "${BASH_REMATCH[1]}" 2>/dev/null >"$target" || return 1
            # A plain file, as in a test, shows what was written.
            [[ $(<"$target") == "$text" ]] && return 0
        fi
        base64 -d <<<"$value" 2>/dev/null >"$target" || [[ $(<"$target") == "$text" ]]
        ;;
    replaced) base64 -d <<<"$value" >"$target" ;;
    created) rm -f "$target" ;;
    ethtool)
        # -G NIC rx
        read -r -a words <<<"$target"
        ${ETHTOOL:-ethtool} "${words[@]}" "$value"
        ;;
    *) return 1 ;;
    esac
}

# --- the command line ----------------------------------------------------------------------------------------------

main() {
    local verb=''
    while [[ $# -gt 0 ]]; do
        case $1 in
        -h | --help) usage && exit 0 ;;
        --yes) YES=yes ;;
        --no-persist) PERSIST=no ;;
        --profile | --cpus | --nic | --only | --user | --root | --state | --rx-usecs)
            [[ $# -gt 1 ]] || wrong "$1 wants a value"
            case $1 in
            --profile) PROFILE=$2 ;;
            --cpus) CPUS=$2 ;;
            --nic) NIC=$2 ;;
            --only) ONLY=$2 ;;
            --user) USER_NAME=$2 ;;
            --root) ROOT=${2%/} ;;
            --state) STATE=$2 ;;
            --rx-usecs) RX_USECS=$2 ;;
            esac
            shift
            ;;
        check | apply | undo | fragment) [[ -z $verb ]] || wrong "one of check, apply, undo, fragment" && verb=$1 ;;
        *) wrong "there is no '$1'" ;;
        esac
        shift
    done
    [[ -n $verb ]] || { usage && exit 2; }
    [[ -z $RX_USECS || $RX_USECS =~ ^[0-9]{1,6}$ ]] || wrong "--rx-usecs '$RX_USECS': wanted microseconds"
    [[ $USER_NAME =~ ^[a-z_][a-z0-9_-]*$ ]] || wrong "--user '$USER_NAME': wanted the name of a user"
    STATE=${STATE:-$ROOT/var/lib/ringway-tuning}
    PROFILE=${PROFILE:-$(guess_profile)} NIC=${NIC:-$(guess_nic)}
    if [[ -n $CPUS ]]; then
        mapfile -t REACTORS < <(cpu_list "$CPUS")
        cpu_list "$CPUS" >/dev/null || wrong "--cpus '$CPUS': wanted numbers such as 0,2-3"
    fi
    if [[ $YES == yes && -z $ROOT && $(id -u) != 0 && $verb != check ]]; then
        wrong "changing the host needs root"
    fi
    "do_$verb"
    exit "$FAILED"
}

REACTORS=() FRAGMENT='' LIMITS='' NOTES='' QUIET=no

do_check() {
    echo "profile $PROFILE${NIC:+, card $NIC}"
    each_row check_row
    printf '%s' "$NOTES"
    echo "note  io_uring, limits of descriptors and locked memory: ringway check, as the user and from where it will run"
    printf '\n%s remark(s). Nothing was changed.\n' "$CHANGES"
}

do_apply() {
    echo "profile $PROFILE${NIC:+, card $NIC}"
    each_row apply_row
    persist "$ROOT/etc/sysctl.d/90-ringway.conf" "$FRAGMENT"
    persist "$ROOT/etc/security/limits.d/90-ringway.conf" "$LIMITS"
    printf '%s' "$NOTES"
    if [[ $PROFILE == numa ]]; then check_numa; fi
    if [[ $YES == yes ]]; then
        printf '\n%s change(s). What was there before is in %s/before; undo --yes puts it back.\n' "$CHANGES" "$STATE"
    else
        printf '\n%s change(s) to make. Nothing was changed; with --yes they are made.\n' "$CHANGES"
    fi
}

# Reactors on another node than the card pay for the way across with every packet.
check_numa() {
    local node cpus cpu
    node=$(value_of "$ROOT/sys/class/net/$NIC/device/numa_node") || return 0
    cpus=$(value_of "$ROOT/sys/devices/system/node/node$node/cpulist") || return 0
    cpus=$(cpu_list "$cpus")
    for cpu in "${REACTORS[@]}"; do
        grep -qx "$cpu" <<<"$cpus" || echo "note  CPU $cpu is not on node $node, which $NIC is on: give the reactors that node's CPUs"
    done
}

# All that the profile wishes for, also what this host has already: it is for another host, or an image.
do_fragment() {
    echo "# Ringway, profile $PROFILE. From tuning/settings.tsv."
    each_row fragment_row
}

fragment_row() {
    [[ $1 == sysctl && $4 != - ]] || return 0
    local value=$4
    if [[ $value == last\ * ]]; then
        local now
        now=$(value_of "$(files_of sysctl "$2")") || return 0
        value="${now% *} ${value#last }"
    fi
    printf '# %s\n# Risk: %s\n%s = %s\n' "$5" "$6" "$2" "$value"
}

main "$@"
