# For sourcing by the tests in this directory: a server to test, a host to test it with, and checks.
#
#   serve VOLUME...     starts `nvlane serve` on 127.0.0.1:$PORT; sets NQN and SERVER
#   connect [OPTION]... connects this kernel to it; namespace N prints the device of namespace N
#   expect, expect_match, fails, await   check something, and stop the test with a clear line
#
# NVLANE is the program under test, XTASK the task runner (for `ledger`), FIO and JQ the ones that start quickly, SCRATCH a
# directory on ext4, WORK one on tmpfs. FULL is 1 in the full run, ROUNDS the rounds of repeated tests.
# With NVLANE_PEER=kernel the kernel's own target is served instead: a test that fails there as well
# is wrong about the protocol, not about us.
set -Eeuo pipefail
# What ends a test without a word of its own is named, as `die` names what it is told.
trap 'status=$?; ((BASH_SUBSHELL)) || echo "FAILED ${BASH_SOURCE[0]##*/}:$LINENO: exit status $status of: $BASH_COMMAND" >&2' ERR
shopt -s nullglob

PORT=${PORT:-4420}
WORK=/tmp/nvlane-test
CTL=$WORK/ctl.sock
# Whether all stated counts are wanted, and how often accidents are repeated: as the runner says.
: "${FULL:?}" "${ROUNDS:?}"
SERVER=
NQN=
[[ -z ${FIO:-} ]] || PATH=${FIO%/*}:$PATH
mkdir -p "$WORK" /mnt/test
modprobe -a nvme-tcp loop

# pause SECONDS: sleeps without a program, which takes an emulated processor a while to start
exec {NOTHING}<> <(:)
pause() { read -rt "$1" -u "$NOTHING" || true; }

# Ends the test, naming the line of the test that asked.
die() {
    local depth=1
    while [[ ${BASH_SOURCE[$depth]:-} == */harness.sh ]]; do depth=$((depth + 1)); done
    echo "FAILED ${BASH_SOURCE[$depth]##*/}:${BASH_LINENO[$((depth - 1))]}: $*" >&2
    exit 1
}

# lacks WORDS: leaves before the end, since this kernel lacks what comes next. Not in a subshell. The newest may lack nothing.
lacks() {
    echo "not checked: $*"
    exit 77
}

# expect WHAT GOT WANTED
expect() { [[ $2 == "$3" ]] || die "$1 is '$2', wanted '$3'"; }

# expect_match WHAT GOT REGEX
expect_match() { [[ $2 =~ $3 ]] || die "$1 is '$2', wanted a match of '$3'"; }

# expect_json FILE FILTER WANTED: what jq's FILTER makes of FILE
expect_json() {
    local got
    got=$(jq -r "$2" <"$1") || die "$1 is not the JSON expected: $(head -c 400 "$1")"
    [[ $got == "$3" ]] || die "$2 is '$got', wanted '$3', in $(head -c 2000 "$1")"
}

# means SOURCE TARGET: by which means the one is copied to the other, as `info` tells it and the plan of a copy does
means() {
    local told planned
    told=$("$NVLANE" info "$1" "$2" -o json | jq -r '[.copied_to.parts[].means] | unique | join("; ")')
    planned=$("$NVLANE" copy -n "$1@+32K" "$2@64K" -o json | jq -r '[.parts[].means] | unique | join("; ")')
    expect "what the plan for $1 and $2 names" "$planned" "$told"
    echo "$told"
}

# fails COMMAND...: it must fail, and say something
fails() {
    local said
    if said=$("$@" 2>&1); then die "succeeded, and should not have: $*: $said"; fi
    [[ -n $said ]] || die "failed without a word: $*"
    printf '%s\n' "$said"
}

# await SECONDS COMMAND...: until the command succeeds. Once more after that time: a machine that stood still has to look, too.
await() {
    local until=$((SECONDS + $1)) late=0
    shift
    until "$@"; do
        ((!late)) || die "did not come true: $*"
        ((SECONDS < until)) || late=1
        pause 0.1
    done
}

# heeds PROCESS: whether it is a program that has a handler of SIGINT, or has ended. In the background one ignores that until it
# has one; before it is that program, it has the shell's.
heeds() {
    local name mask
    [[ -e /proc/$1 ]] || return 0
    { read -r name <"/proc/$1/comm"; } 2>/dev/null && [[ $name != bash ]] || return 1
    while read -r name mask; do
        if [[ $name == SigCgt: ]] && ((16#${mask: -1} & 2)); then return; fi
    done 2>/dev/null <"/proc/$1/status"
    return 1
}

# says FILE REGEX: whether a line of it says so by now; without a program, as what is asked again and again has to be: it
# would take the processor from what it waits for. A file that an earlier command wrote, too, is to be emptied before the
# command begins: in the background, it may do that itself only after it was asked.
says() {
    local all='' line
    { IFS= read -rd '' all <"$1"; } 2>/dev/null || true
    [[ $'\n'$all =~ ${2/#^/$'\n'} ]] || return 1
    while IFS= read -r line; do
        [[ ! $line =~ $2 ]] || return 0
    done <<<"$all"
    return 1
}

# serve VOLUME... [OPTION]...: returns once it listens
serve() {
    if [[ ${NVLANE_PEER:-} == kernel ]]; then
        kernel_serve "$@"
        return
    fi
    local log=$WORK/serve.log
    : >"$log"
    "$NVLANE" serve --listen "127.0.0.1:$PORT" --socket "$CTL" --data-dir "$WORK/data" "$@" \
        >"$log" 2>&1 </dev/null &
    SERVER=$!
    local until=$((SECONDS + 90)) ready=$'nvme connect [^\n]*(-n|--nqn)[ =]([^[:space:]]+)'
    until [[ $(<"$log") =~ $ready ]]; do
        kill -0 "$SERVER" 2>/dev/null || die "the server ended: $(<"$log")"
        ((SECONDS < until)) || die "the server is not ready: $(<"$log")"
        pause 0.1
    done
    NQN=${BASH_REMATCH[2]}
}

# Stops the server as a person would, and wants a clean end.
stop() {
    if [[ ${NVLANE_PEER:-} == kernel ]]; then
        kernel_stop
        return
    fi
    kill -TERM "$SERVER"
    local status=0
    wait "$SERVER" || status=$?
    expect "the server's exit status after SIGTERM ($(tail -n 1 "$WORK/serve.log" 2>/dev/null))" $status 0
    SERVER=
}

# kernel_from_now; then kernel_said: what the kernel has said since. Its log is not cleared: whoever runs the test looks for
# complaints in it.
kernel_from_now() { KERNEL_LINES=$(dmesg | wc -l); }
kernel_said() { dmesg | tail -n +$((${KERNEL_LINES:-0} + 1)); }

# What an accident does: nothing is flushed, nothing is said.
kill_server() {
    kill -KILL "$SERVER"
    wait "$SERVER" 2>/dev/null || true
}

ctl() { "$NVLANE" ctl --socket "$CTL" "$@"; }

# connect [OPTION]...: as nvme connect, with a keep alive timeout that a machine which stands still for some seconds does
# not trip; tests of the timeout say theirs
connect() {
    # Linux's host sends in whichever program's context a request comes, without MSG_NOSIGNAL: one that writes in the moment
    # when a target closes gets SIGPIPE, which is not what a test is about.
    trap '' PIPE
    local patient=(--keep-alive-tmo=30)
    [[ " $*" == *" --keep-alive-tmo"* ]] && patient=()
    nvme connect -t tcp -a 127.0.0.1 -s "$PORT" -n "$NQN" "${patient[@]}" "$@"
}

disconnect() { nvme disconnect -n "$NQN" >/dev/null; }

# Takes the controllers of a dead server away; nvme-cli would first ask them what they are.
drop() {
    local controller
    for controller in $(controllers); do echo 1 >"/sys/class/nvme/$controller/delete_controller"; done
}

# is FILE WORD: its only line is that; without a program
is() {
    local line
    { read -r line <"$1"; } 2>/dev/null && [[ $line == "$2" ]]
}

# Names of the controllers (nvme0 ...) connected to NQN.
controllers() {
    local path
    for path in /sys/class/nvme/nvme*; do
        is "$path/subsysnqn" "$NQN" && echo "${path##*/}"
    done
    return 0
}

# The device of the namespace with that id, or nothing.
namespace_now() {
    local path
    for path in /sys/block/nvme*n*; do
        [[ ${path##*/} =~ ^nvme[0-9]+n[0-9]+$ ]] || continue
        if is "$path/nsid" "$1" && is "$path/device/subsysnqn" "$NQN"; then
            echo "/dev/${path##*/}"
            return
        fi
    done
    return 1
}

# ana_state CONTROLLER: how its only namespace is reached through it, as this kernel knows
ana_state() { cat "/sys/class/nvme/$1"/nvme*c*n*/ana_state; }

# The device of the namespace with that id; waits for it, since the kernel scans in the background.
namespace() {
    local until=$((SECONDS + 60))
    until namespace_now "$1"; do
        ((SECONDS < until)) || die "namespace $1 does not appear: $(nvme list -v 2>&1)"
        pause 0.1
    done
}

# controller_state NAME: live, connecting, ...
controller_state() { cat "/sys/class/nvme/$1/state"; }

is_live() { is "/sys/class/nvme/$1/state" live; }

# verified_io DEVICE SIZE [OPTION]...: fio writes and reads at random, then checks every block
verified_io() {
    local device=$1 size=$2 output=${FIO_OUTPUT:-$WORK/fio.json}
    shift 2
    local split=512/20:4k/30:16k/20:128k/20:1M/10
    (($(blockdev --getss "$device") > 512)) && split=4k/50:16k/20:128k/20:1M/10
    # What stands before the first name is every job's.
    [[ $* == *--name=* ]] || set -- "$@" --name=verify
    fio --filename="$device" --direct=1 --ioengine=libaio --iodepth=32 --rw=randrw \
        --bssplit=$split --size="$size" --verify=crc32c --verify_fatal=1 \
        --randseed=1 --output-format=json --output="$output" "$@" || die "fio: $(tail -n 40 "$output")"
    # One program where three would be easier to read: this is asked often.
    local said
    mapfile -t said < <(jq -r '([.jobs[].error] | add), (.jobs[0].write.total_ios > 100),
        "fio: \(.jobs[0].read.total_ios) reads, \(.jobs[0].write.total_ios) writes, all as written"' "$output")
    [[ ${said[*]:0:2} == "0 true" ]] || die "errors, and whether enough was written: ${said[*]}, in $(head -c 2000 "$output")"
    echo "${said[2]}"
}

# expect_joined DEVICE MIB COUNT FILE...: what the device reads from there on, in requests of 1 MiB, is what the files hold
# one after another. fio alone reads what it wrote as it wrote it, in the wrong place as well as in the right one.
expect_joined() {
    local device=$1 from=$2 count=$3
    shift 3
    cmp -n $((count << 20)) <(cat "$@" | tail -c +$(((from << 20) + 1))) \
        <(dd if="$device" bs=1M skip="$from" count="$count" iflag=direct status=none) || die "$device is not one file after another"
}

# data_bytes FILE: bytes that are not holes
data_bytes() { echo $(($(stat -c %b "$1") * 512)); }

# --- What doctor says -------------------------------------------------------------------------------
# state NAME [VOLUME]: of one thing; all of it is in $WORK/doctor.json
state() {
    "$NVLANE" doctor "${@:2}" -o json >"$WORK/doctor.json" || true
    jq -r --arg name "$1" '.checks[] | select(.name == $name) | .state' "$WORK/doctor.json"
}

# mend NAME STATE [COMMAND...]: it is not there; then that is done which is said to mend it. It is root who runs it here.
# The command says of which volume, each time anew: a driver that is loaded again may give its devices other names.
mend() {
    local how module until late=0 command=("${@:3}")
    # state_now: of the volume as it is called now
    state_now() {
        local volume=()
        if ((${#command[@]})); then volume=("$("${command[@]}" 2>/dev/null)") || return 0; fi
        state "$1" "${volume[@]}"
    }
    expect "$1 at first" "$(state_now "$1")" "$2"
    how=$(jq -r --arg name "$1" '.checks[] | select(.name == $name) | .mend' "$WORK/doctor.json")
    # What follows in parentheses is for people.
    how=${how%%   (*}
    # A ring lets go of its files some time after its process has ended.
    for module in null_blk nvme; do
        if [[ $how == *"$module"* && -e /sys/module/$module/refcnt ]]; then await 20 is "/sys/module/$module/refcnt" 0; fi
    done
    (
        sudo() { "$@"; }
        eval "$how"
    ) || die "the mend of $1 fails: $how"
    # Devices take a while to appear.
    until=$((SECONDS + 60))
    until [[ $(state_now "$1") == ok ]]; do
        ((!late)) || die "$1 after '$how': $(jq -c --arg name "$1" '.checks[] | select(.name == $name)' "$WORK/doctor.json")"
        ((SECONDS < until)) || late=1
        pause 0.5
    done
    echo "$1: $how"
}

# --- The kernel's own target, to try the tests on --------------------------------------------------
NVMET=/sys/kernel/config/nvmet

kernel_serve() {
    modprobe -a nvmet nvmet-tcp
    NQN=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001
    SERVER=kernel
    trap kernel_stop EXIT
    local subsystem=$NVMET/subsystems/$NQN nsid=0 volume
    mkdir "$subsystem"
    echo 1 >"$subsystem/attr_allow_any_host"
    for volume in "$@"; do
        [[ $volume == --* ]] && die "kernel peer: option $volume"
        nsid=$((nsid + 1))
        mkdir "$subsystem/namespaces/$nsid"
        kernel_backing "$volume" "$nsid" >"$subsystem/namespaces/$nsid/device_path"
        echo 1 >"$subsystem/namespaces/$nsid/enable"
    done
    mkdir "$NVMET/ports/1"
    echo tcp >"$NVMET/ports/1/addr_trtype"
    echo ipv4 >"$NVMET/ports/1/addr_adrfam"
    echo 127.0.0.1 >"$NVMET/ports/1/addr_traddr"
    echo "$PORT" >"$NVMET/ports/1/addr_trsvcid"
    ln -s "$subsystem" "$NVMET/ports/1/subsystems/$NQN"
}

# A path for what our URI names; nothing but the name goes to stdout.
kernel_backing() {
    local path=${1#file:}
    case $1 in
    mem:*)
        # Linux 6.1 has no direct I/O on tmpfs.
        path=$SCRATCH/mem$2
        truncate -s "${1#mem:}" "$path"
        ;;
    /dev/*) ;;
    *\?size=*)
        path=${path%%\?*}
        local size=${1##*size=}
        truncate -s "${size%%&*}" "$path"
        ;;
    esac
    printf %s "$path"
}

kernel_stop() {
    [[ -e $NVMET/ports/1 ]] || return 0
    local path
    rm -f "$NVMET"/ports/*/subsystems/*
    for path in "$NVMET"/ports/*; do rmdir "$path"; done
    for path in "$NVMET"/subsystems/*/namespaces/*; do
        echo 0 >"$path/enable"
        rmdir "$path"
    done
    rmdir "$NVMET"/subsystems/*
}
