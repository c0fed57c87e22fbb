#!/bin/bash
# limit: 300
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# A queue in the kernel whose loop fails: the program that has it fail reaches into the loop, which only a build does not
# mind that is made to break promises.
#
# Linux 7.2 now and then warns that its load balancer has moved a thread that a sleepable BPF program may not be
# moved with: ours, which the kernel keeps in its loop. That is the scheduler's own affair, and nothing came of it.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
bpf=$(realpath "$(dirname "$0")/../../bpf")
NVLANE=$NVLANE_MUTANTS
"$NVLANE" ublk features -o json >"$WORK/features.json"
[[ $(jq .programs_in_kernel "$WORK/features.json") == true ]] || lacks "this kernel runs no programs in rings"

# It keeps this promise, too, unless it is told to break it.
said=$(fails "$NVLANE" ublk add --bpf kernel "bpf:$bpf/tests/failing.bpf.o($SCRATCH/g.img?size=16M&create)")
expect_match "a loop that is not ours" "$said" 'cannot run in the kernel: nvlane_kernel_[a-z]+ uses nvlane_queues'
export NVLANE_MUTANT=failing-loop

# A queue whose loop fails takes the device with it: nobody waits for it.
for recovery in "" --recover; do
    in_kernel "bpf:$bpf/tests/failing.bpf.o($SCRATCH/g.img?size=16M&create)" -q 2 -d 16 $recovery
    # It has queue 0 fail, whichever carries the write out.
    read -r core <"/sys/block/${DEVICE#/dev/}/mq/0/cpu_list"
    timeout 60 taskset -c "${core%%[,-]*}" dd if=/dev/zero of="$DEVICE" bs=4k count=4 oflag=direct status=none 2>"$WORK/dd" &
    writer=$!
    status=0
    wait "$UBLK_SERVER" || status=$?
    expect "the exit status of a server whose queue has failed" $status 1
    expect_match "what it says" "$(<"$WORK/ublk.log")" 'a queue has failed.*No data available'
    ! grep 'was taken away' "$WORK/ublk.log" || die "nobody has taken it away"
    if [[ -n $recovery ]]; then
        : >"$WORK/ublk.log"
        "$NVLANE" ublk recover "$ID" --bpf user >"$WORK/ublk.log" 2>&1 </dev/null &
        UBLK_SERVER=$!
        ublk_ready "$WORK/ublk.log"
        wait "$writer" || die "a successor does not carry the writes out"
        ublk_stop
    else
        ! wait "$writer" || die "a write succeeds without a server"
        expect_match "what the writer is told" "$(<"$WORK/dd")" 'Input/output error'
        "$NVLANE" ublk del "$ID" 2>/dev/null || true
        expect "what is left of the device" "$(ls "$DEVICE" "/dev/ublkc$ID" 2>/dev/null)" ""
    fi
done

# A list of results that the driver refuses: at its first, or at its second, which is the same to the loop. Nothing else is in flight by
# which the loop would come to see that.
if has_feature BATCH_IO; then
    in_kernel "bpf:$bpf/tests/failing.bpf.o($SCRATCH/g.img)" -d 2
    timeout 60 dd if=/dev/zero of="$DEVICE" bs=4k seek=2 count=1 oflag=direct status=none 2>"$WORK/dd" || true
    await 30 says "$WORK/ublk.log" 'a queue has failed.*errno=(16|5)\b'
    status=0
    wait "$UBLK_SERVER" || status=$?
    expect "the exit status of a server whose results were refused" $status 1
    "$NVLANE" ublk del "$ID" 2>/dev/null || true
    expect "what is left of the device" "$(ls "$DEVICE" "/dev/ublkc$ID" 2>/dev/null)" ""
fi
modprobe -r ublk_drv
