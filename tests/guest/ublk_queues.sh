#!/bin/bash
# limit: 420
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 4
# Four queues, each with a processor of its own, all under verified I/O at once: zero copy, copies, and programs in the
# kernel whose queues share a map, are all given another program, and have another server after a kill.
#
# Linux 7.2 now and then warns that its load balancer has moved a thread that a sleepable BPF program may not be
# moved with: ours, which the kernel keeps in its loop. That is the scheduler's own affair, and nothing came of it.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
QUEUES=4
expect "processors" "$(nproc)" $QUEUES
bpf=$(realpath "$(dirname "$0")/../../bpf")
a=$SCRATCH/a.img b=$SCRATCH/b.img
truncate -s $(((16 << 20) + 7 * 512)) "$a"
truncate -s 16M "$b"

# four_jobs OPTION...: each on a processor of its own, in 6 MiB of its own from the first MiB on
four_jobs() {
    local jobs=() number
    for ((number = 0; number < QUEUES; number++)); do
        jobs+=(--name="on$number" --offset="$((1 + 7 * number))M" --cpus_allowed=$number)
    done
    verified_io "$DEVICE" 6M --iodepth=64 --bssplit=512/40:4k/40:16k/10:128k/7:1M/3 "$@" "${jobs[@]}"
    expect_json "$WORK/fio.json" '[.jobs[].write.total_ios > 100] | length == 4 and all' true
}
has_four() { expect "queues of the device" "$(ls "/sys/block/${DEVICE##*/}/mq" | wc -l)" $QUEUES; }
# What each queue of the server that has ended had to do.
served_by() { sed -nE '/a queue has ended/s/.* requests=([0-9]+) .*/\1/p' "$WORK/ublk.log"; }
stop_served() {
    ublk_stop
    echo "$1: requests of each queue: $(served_by | paste -sd' ')"
    expect "queues that $1 had requests by" "$(served_by | grep -vcE '^.?$')" $QUEUES
}

ways=(--copy)
! has_feature AUTO_BUF_REG || ways+=(--zero-copy)
for way in "${ways[@]}"; do
    ublk_add "linear:($a,$b)" "$way" -q $QUEUES -d 128 --log debug
    has_four
    four_jobs
    # Each block is where it belongs, not only where it was looked for again.
    expect_joined "$DEVICE" 10 12 "$a" "$b"
    stop_served "$way"
done
[[ $("$NVLANE" ublk features -o json | jq .programs_in_kernel) == true ]] || lacks "this kernel runs no programs in rings"

# By default, and one by one.
for batch in "" --no-batch; do
    # shellcheck disable=SC2086 # an option or none
    ublk_add "bpf:$bpf/linear.bpf.o($a,$b)" -q $QUEUES -d 128 --log debug $batch
    expect_match "where it runs" "$(<"$WORK/ublk.log")" ', program in the kernel'
    has_four
    four_jobs
    expect_joined "$DEVICE" 10 12 "$a" "$b"
    stop_served "a program in the kernel${batch:+, $batch}"
done

# What was written, each queue notes in the same words of one map.
base=$SCRATCH/base.img
cat "$a" "$b" >"$base"
sum=$(sha256sum <"$base")
ublk_add "bpf:$bpf/snapshot.bpf.o(file:$base?ro,$SCRATCH/over.img?size=33M&create)" -q $QUEUES -d 128 --log debug
expect_match "where a snapshot runs" "$(<"$WORK/ublk.log")" ', program in the kernel'
four_jobs
stop_served snapshot
expect "the base of a snapshot" "$(sha256sum <"$base")" "$sum"

# All queues exchange the program at once, under load; then the server is killed, and the next one goes on with what was counted.
ublk_add "bpf:$bpf/statistics.bpf.o($b)" -q $QUEUES -d 64 --log debug --recover
expect_match "where it runs" "$(<"$WORK/ublk.log")" ', program in the kernel'
jobs=()
for ((number = 0; number < QUEUES; number++)); do
    jobs+=(--name="on$number" --offset="$((4 * number))M" --cpus_allowed=$number)
done
fio --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=512-128k --size=3M --verify=crc32c \
    --verify_fatal=1 --verify_backlog=64 --time_based --runtime=900 --output-format=json --output="$WORK/load.json" "${jobs[@]}" &
load=$!
requests() { awk '{ print $1 + $5 }' "/sys/block/${DEVICE##*/}/stat"; }
has_gone_on() { (($(requests) > before + 100)); }
go_on() {
    before=$(requests)
    await 60 has_gone_on
    kill -0 "$load" 2>/dev/null || die "fio: $(tail -n 30 "$WORK/load.json")"
}
go_on
for ((round = 1; round <= (FULL ? 20 : 3); round++)); do
    "$NVLANE" bpf replace "$DEVICE" "$bpf/statistics.bpf.o"
    go_on
done
for ((round = 1; round <= (FULL ? 20 : 2); round++)); do
    kill -KILL "$UBLK_SERVER"
    wait "$UBLK_SERVER" 2>/dev/null || true
    : >"$WORK/ublk.log"
    "$NVLANE" ublk recover "$ID" --log debug >"$WORK/ublk.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    ublk_ready "$WORK/ublk.log"
    expect_match "where a successor runs it" "$(<"$WORK/ublk.log")" ', program in the kernel'
    has_four
    go_on
done
kill -INT "$load"
wait "$load" || true
sed -i '/^{/,$!d' "$WORK/load.json"
expect_json "$WORK/load.json" '[.jobs[].error] | add' 0
expect_json "$WORK/load.json" '[.jobs[].write.total_ios > 20] | all' true
stop_served "the last server"
modprobe -r ublk_drv
