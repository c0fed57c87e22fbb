#!/bin/bash
# limit: 400
# kernel: newest
# devices: usual
# Rings of every kind on a kernel that has mixed ones, and NVMe commands through each of them, with
# poll queues and without.
. "$(dirname "$0")/harness.sh"

# program NAME [KIND]: the path of a test, or of an example
program() {
    local path
    for path in ${RING_PROGRAMS:?}; do
        [[ $path == */${2:-deps}/$1?(-+([0-9a-f])) ]] && echo "$path" && return
    done
    die "there is no $1 among $RING_PROGRAMS"
}

# plain: controller and character device of the plain device's namespace 1. Names do not tell:
# namespaces are numbered as they are found.
plain() {
    local link path
    for link in /sys/class/nvme-generic/ng*; do
        path=$(readlink -f "$link")
        [[ $(tr -d ' ' <"${path%/*}/serial") == nvlane-plain ]] || continue
        [[ $(<"${path%/*}/nvme${path##*/ng}/nsid") == 1 && -c /dev/${link##*/} ]] || continue
        path=${path%/*}
        echo "/dev/${path##*/} /dev/${link##*/}"
        return
    done 2>/dev/null
    return 1
}

# bounded PROGRAM [ARGUMENT]...: its output in $WORK/said; one that hangs is looked at before it is ended.
bounded() {
    local pid task until=$((SECONDS + 400))
    "$@" >"$WORK/said" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        if ((SECONDS > until)); then
            for task in /proc/$pid/task/*; do
                echo "$(<"$task/comm"): in $(<"$task/wchan"), call $(<"$task/syscall")"
                cat "$task/stack"
            done
            cat "$WORK/said"
            kill -KILL $pid
            die "$1 hangs"
        fi
        sleep 0.1
    done
    wait $pid || die "$1: $(<"$WORK/said")"
}

for name in kinds purposes commands allocations; do
    bounded "$(program $name)"
    grep '^test result' "$WORK/said"
done
for poll_queues in "$(nproc)" 0; do
    modprobe nvme poll_queues=$poll_queues
    ((poll_queues)) || export NO_HYBRID=1
    await 30 plain >/dev/null
    read -r controller namespace < <(plain)
    bounded "$(program identify examples)" "$controller" "$namespace"
    expect_match "kind of mixed rings" "$(<"$WORK/said")" 'Mixed \(is Mixed\)'
    bounded "$(program commands examples)" "$namespace"
    cat "$WORK/said"
    # A ring ends some time after its process.
    await 20 rmmod nvme
done
