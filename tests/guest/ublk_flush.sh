#!/bin/bash
# limit: 200
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# What is flushed, or written with FUA, on a block device is so on the devices below it: counted there by the kernel's
# tracepoint of requests, on every way of data, by a program in user space and by one in the kernel.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
bpf=$(realpath "$(dirname "$0")/../../bpf")
trace=/sys/kernel/tracing
[[ -e $trace/trace ]] || mount -t tracefs none "$trace"
event=$trace/events/block/block_rq_issue/enable

# Two devices with a cache.
modprobe null_blk nr_devices=0
below=()
for name in nullone nulltwo; do
    null=/sys/kernel/config/nullb/$name
    mkdir "$null"
    echo 16 >"$null/size"
    echo 1 >"$null/memory_backed"
    echo 4 >"$null/cache_size"
    echo 1 >"$null/power"
    device=/dev/nullb$(<"$null/index")
    [[ -b $device ]] || device=/dev/$name
    below+=("$device")
    expect "FUA of ${below[-1]}" "$(<"/sys/block/${below[-1]#/dev/}/queue/fua")" 1
done

# issued DEVICE KIND: requests of that kind since the last command: FF is a flush, WF... a write with FUA
issued() {
    local number
    number=$(<"/sys/block/${1#/dev/}/dev")
    grep -c "block_rq_issue: ${number/:/,} $2" "$trace/trace" || true
}

# Writes four blocks to the first of the devices below DEVICE with these options of dd.
writes() {
    echo >"$trace/trace"
    echo 1 >"$event"
    dd if=/dev/urandom of="$DEVICE" bs=4k count=4 oflag=direct status=none "$@"
    echo 0 >"$event"
    expect "writes to ${below[0]}" "$(issued "${below[0]}" W)" 4
}

# counted DEVICE...: what these devices below DEVICE are sent
counted() {
    local device
    writes
    for device; do expect "flushes of $device, not asked for" "$(issued "$device" FF)" 0; done
    expect "FUA not asked for" "$(issued "$1" WF)" 0
    writes conv=fsync
    for device; do (($(issued "$device" FF) > 0)) || die "$device is not flushed: $(<"$trace/trace")"; done
    expect "FUA where a flush was asked for" "$(issued "$1" WF)" 0
    writes oflag=direct,dsync
    expect "writes with FUA" "$(issued "$1" WF)" 4
    ublk_stop
}

ways=(--copy)
has_feature USER_COPY && ways+=(--user-copy)
has_feature AUTO_BUF_REG && ways+=(--zero-copy)
for way in "${ways[@]}"; do
    echo "${way#--}"
    ublk_add "${below[0]}" "$way"
    counted "${below[0]}"
done
volume="bpf:$bpf/linear.bpf.o(${below[0]},${below[1]})"
echo "program in user space"
ublk_add "$volume" --bpf user
counted "${below[@]}"
if [[ $'\n'$("$NVLANE" bpf check "$bpf/linear.bpf.o") == *$'\n''kernel: ok'* ]]; then
    echo "program in the kernel"
    in_kernel "$volume"
    counted "${below[@]}"
fi

# What the kernel could not write back, and has dropped, it tells once, whoever asks: the users of every queue are told by their
# next flush.
null=/sys/kernel/config/nullb/nullbad
mkdir "$null"
echo 16 >"$null/size"
echo 1 >"$null/memory_backed"
echo 1 >"$null/power"
bad=/dev/nullb$(<"$null/index")
[[ -b $bad ]] || bad=/dev/nullbad
flushes() { taskset -c "$1" sync -d "$DEVICE" 2>"$WORK/sync"; }
told() {
    local cpu
    for cpu in 0 1; do flushes "$cpu" || die "nothing is lost yet: $(<"$WORK/sync")"; done
    echo +0-8191 >"$null/badblocks"
    taskset -c 0 dd if=/dev/urandom of="$DEVICE" bs=4k count=1 oflag=direct status=none
    for cpu in 0 1; do flushes "$cpu" && die "the flush of processor $cpu says nothing of what is lost"; done
    echo -0-8191 >"$null/badblocks"
    for cpu in 0 1 0 1; do flushes "$cpu" || die "processor $cpu is told twice: $(<"$WORK/sync")"; done
}
volume="bpf:$bpf/linear.bpf.o($bad?buffered)"
echo "losses, by two queues"
ublk_add "$bad?buffered" -q 2
told
ublk_stop
ublk_add "$volume" -q 2 --bpf user
told
ublk_stop
if [[ $'\n'$("$NVLANE" bpf check "$bpf/linear.bpf.o") == *$'\n''kernel: ok'* ]]; then
    echo "losses, by a program in the kernel"
    in_kernel "$volume" -q 2
    told
    # Of what was lost before, the program that takes its place tells nobody again, and of nothing else less.
    "$NVLANE" bpf replace "$DEVICE" "$bpf/linear.bpf.o" >/dev/null
    told
    ublk_stop
fi
# A ring lets go of what it had some time after its process.
for name in nullone nulltwo nullbad; do await 20 rmdir "/sys/kernel/config/nullb/$name"; done
await 20 modprobe -r null_blk
await 20 modprobe -r ublk_drv
