#!/bin/bash
# limit: 300
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# Programs in the kernel over block devices, by a queue for each processor; what a device cannot free is not offered; and
# another server, with another program, takes such a device over while it is written to.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
bpf=$(realpath "$(dirname "$0")/../../bpf")
[[ $'\n'$("$NVLANE" bpf check "$bpf/linear.bpf.o") == *$'\n''kernel: ok'* ]] || lacks "no programs in this kernel"
expect_match "what is said of programs" "$("$NVLANE" ublk features)" 'programs \(bpf:\) can run in the kernel'
modprobe brd rd_nr=2 rd_size=16384

# Memory disks discard, but make no holes, which is what could be asked of them: only zeroes are offered, and written.
in_kernel "bpf:$bpf/tests/zeroing.bpf.o(/dev/ram0)" -d 16
dd if=/dev/urandom of="$DEVICE" bs=1M count=8 oflag=direct status=none
expect "bytes that may be discarded" "$(<"/sys/block/${DEVICE#/dev/}/queue/discard_max_bytes")" 0
blkdiscard -f -z -o 1M -l 2M "$DEVICE"
blkdiscard -f -z -o 4M -l 1M "$DEVICE"
ublk_stop
sync
cmp -n $((2 << 20)) -i $((1 << 20)):0 /dev/ram0 /dev/zero || die "what was zeroed first is not zeroes"
cmp -n $((1 << 20)) -i $((4 << 20)):0 /dev/ram0 /dev/zero || die "what was zeroed is not zeroes"
! cmp -s -n $((1 << 20)) -i $((3 << 20)):0 /dev/ram0 /dev/zero || die "what is beside it is zeroes, too"

volume="bpf:$bpf/linear.bpf.o(/dev/ram0,/dev/ram1)"
options=(-q 4 -d 32)
has_feature QUIESCE && options+=(--recover)
in_kernel "$volume" "${options[@]}"
queues=$(ls "/sys/block/${DEVICE#/dev/}/mq" | wc -l)
echo "$queues queues"
verified_io "$DEVICE" 4M --offset=14M --bssplit=512/40:4k/40:128k/17:1M/3
expect_joined "$DEVICE" 14 4 /dev/ram0 /dev/ram1
if has_feature QUIESCE; then
    fio --name=load --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k --size=12M --offset=10M \
        --verify=crc32c --verify_fatal=1 --verify_backlog=32 --time_based --runtime=300 --randseed=3 >"$WORK/load" 2>&1 &
    load=$!
    await 60 heeds "$load"
    sleep 1
    # One that does not fit changes nothing: the server stays.
    said=$(fails "$NVLANE" ublk upgrade "$ID" "bpf:$bpf/snapshot.bpf.o(/dev/ram0,/dev/ram1)")
    expect_match "a program that would need maps" "$said" 'the server before has left no written|would have'
    kill -0 "$UBLK_SERVER" || die "the server is gone"
    cp "$bpf/linear.bpf.o" "$WORK/new.bpf.o"
    for next in "bpf:$WORK/new.bpf.o(/dev/ram0,/dev/ram1)" ""; do
        old=$UBLK_SERVER status=0
        : >"$WORK/next.log"
        "$NVLANE" ublk upgrade "$ID" ${next:+"$next"} --log debug >"$WORK/next.log" 2>&1 </dev/null &
        UBLK_SERVER=$!
        ublk_ready "$WORK/next.log"
        wait "$old" || status=$?
        expect "the old server's exit status after an upgrade" $status 0
        expect_match "where the next one runs it" "$(<"$WORK/next.log")" ', program in the kernel'
        [[ -z $next ]] || expect_match "what it serves" "$(<"$WORK/next.log")" "from ${next%%.o(*}"
        sleep 1
    done
    kill -INT "$load"
    status=0
    wait "$load" || status=$?
    ((status == 0 || status == 128)) || die "fio: status $status: $(<"$WORK/load")"
    ! grep -iE 'verify.*(fail|bad)|error' "$WORK/load" || die "fio: $(<"$WORK/load")"
fi
ublk_stop
# A ring lets go of what it had some time after its process.
await 20 modprobe -r brd
await 20 modprobe -r ublk_drv
