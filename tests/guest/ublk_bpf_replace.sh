#!/bin/bash
# limit: 400
# kernel: newest
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# A program that the kernel runs is replaced while its device is written to and verified: nothing fails or is lost, what is
# in flight ends before the new one routes anything, its maps stay, what is refused changes nothing, and whoever serves the
# device next finds the new one.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv
bpf=$(realpath "$(dirname "$0")/../../bpf")
image=$SCRATCH/a.img
truncate -s 16M "$image"
cp "$bpf/statistics.bpf.o" "$WORK/new.bpf.o"
objects=("$WORK/new.bpf.o" "$bpf/statistics.bpf.o")
replace() { "$NVLANE" bpf replace "$DEVICE" "$@"; }
runs_in_kernel() { expect_match "where it runs" "$("$NVLANE" ublk list)" "$1.*program in the kernel"; }

in_kernel "bpf:$bpf/statistics.bpf.o($image)" -q 2 -d 32
begin_counted_load
rounds=$((FULL ? 50 : 5)) few=$((FULL ? 5 : 2))
for ((round = 0; round < rounds; round++)); do
    replace "${objects[round % 2]}" >"$WORK/replaced" || die "round $round"
    expect_match "what is kept" "$(<"$WORK/replaced")" 'map latencies stays as it is'
done
# Two at once: both end, one after the other.
for ((round = 0; round < few; round++)); do
    replace "${objects[0]}" >"$WORK/one" 2>&1 &
    one=$!
    replace "${objects[1]}" >"$WORK/other" 2>&1 || die "one of two: $(<"$WORK/other")"
    wait $one || die "one of two: $(<"$WORK/one")"
done
replace "${objects[1]}" >/dev/null
end_counted_load
echo "replaced $rounds times under $fio_count reads and writes"

# What is refused changes nothing.
said=$(fails replace "$bpf/mirror.bpf.o")
expect_match "another kind of program" "$said" 'does not promise NVLANE_ONE_PLACE'
said=$(fails replace "$bpf/tests/moved.bpf.o")
expect_match "a program of shorter requests" "$said" 'moved.*in the kernel: it takes 32 blocks at once'
said=$(fails replace "$bpf/thin.bpf.o")
expect_match "a program of another size" "$said" 'the volume would have'
runs_in_kernel 'statistics\.bpf\.o'
verified_io "$DEVICE" 6M

# Writes that the old program delays, by longer than it takes to load the new one, end before anything that the new one puts
# at their place, which is another block's then.
for name in old new; do printf "${name:0:1}%.0s" {1..4096} >"$WORK/$name"; done
holds() { cmp -s -n 4096 "$WORK/$1" <(dd if="$image" bs=4096 skip=1 count=1 status=none); }
replace "$bpf/tests/late.bpf.o" >/dev/null
fio --name=late --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --norandommap --bs=4k \
    --offset=4k --size=4k --buffer_pattern='"o"' --time_based --runtime=900 --output="$WORK/late" &
load=$!
await 60 holds old
# Where the machine stands still in between, they do not end within the 15 s that a replacement waits: the old one goes on.
for attempt in 1 2 3; do
    replace "$bpf/tests/swapped.bpf.o" >"$WORK/replaced" 2>&1 && break
    ((attempt < 3)) && grep -q 'have not ended within' "$WORK/replaced" || die "attempt $attempt: $(<"$WORK/replaced")"
done
dd if="$WORK/new" of="$DEVICE" bs=4096 seek=2049 count=1 oflag=direct status=none
for ((second = 0; second < 7; second++)); do
    holds new || die "after $second s: a write of the old program came after one of the new one"
    pause 1
done
kill -INT "$load"
status=0
wait "$load" || status=$?
((status == 0 || status == 128)) || die "fio: status $status: $(<"$WORK/late")"
! grep -iE 'error' "$WORK/late" || die "fio: $(<"$WORK/late")"
replace "$bpf/linear.bpf.o" >/dev/null
runs_in_kernel 'linear\.bpf\.o'
ublk_stop
each_queue >"$WORK/queues"
expect "queues that have ended" "$(wc -l <"$WORK/queues")" 2

# With what is decided in user space, whose maps are in both places, and go on being changed while a program is replaced.
cp "$bpf/thin.bpf.o" "$WORK/thin.bpf.o"
in_kernel "bpf:$bpf/thin.bpf.o($SCRATCH/e.img?size=16M&create,$SCRATCH/f.img?size=24M&create)" -q 2 -d 16
fio --name=thin --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=12M --rate_iops=40 \
    --verify=crc32c --do_verify=0 --output="$WORK/thin" &
load=$!
for ((round = 0; round < (FULL ? 4 : 2); round++)); do
    objects=("$WORK/thin.bpf.o" "$bpf/thin.bpf.o")
    expect_match "what a thin volume keeps" "$(replace "${objects[round % 2]}")" 'stays as it is'
done
wait $load || die "fio: $(<"$WORK/thin")"
fio --name=thin --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=12M \
    --verify=crc32c --verify_only --output="$WORK/thin" || die "fio: $(<"$WORK/thin")"
ublk_stop

in_kernel "bpf:$bpf/thin.bpf.o($SCRATCH/c.img?size=16M&create,$SCRATCH/d.img?size=24M&create)" -q 2 -d 16 --recover
fio --name=thin --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=64k --size=12M \
    --verify=crc32c --do_verify=0 --output="$WORK/thin" &
load=$!
for object in "$WORK/thin.bpf.o" "$bpf/thin.bpf.o" "$WORK/thin.bpf.o"; do
    expect_match "what a thin volume keeps" "$(replace "$object")" 'stays as it is'
done
wait $load || die "fio: $(<"$WORK/thin")"
# The next server has the new program, and the maps as they are.
kill -KILL "$UBLK_SERVER"
wait "$UBLK_SERVER" 2>/dev/null || true
: >"$WORK/recover.log"
"$NVLANE" ublk recover "$ID" --bpf kernel >"$WORK/recover.log" 2>&1 </dev/null &
UBLK_SERVER=$!
ublk_ready "$WORK/recover.log"
expect_match "what a successor serves" "$(<"$WORK/recover.log")" "bpf:$WORK/thin\.bpf\.o.*program in the kernel"
fio --name=thin --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=64k --size=12M \
    --verify=crc32c --verify_only --output="$WORK/thin" || die "fio: $(<"$WORK/thin")"
ublk_stop

# What was made for a program that is refused goes with it: maps of thin's, which are memory of the server's, too.
mapped() { grep -c 'bpf-map' "/proc/$UBLK_SERVER/maps" || true; }
is_mapped() { (($(mapped) == $1)); }
for name in g h i j; do truncate -s 16M "$SCRATCH/$name.img"; done
for recover in "" --recover; do
    in_kernel "bpf:$bpf/linear.bpf.o($SCRATCH/g.img,$SCRATCH/h.img,$SCRATCH/i.img,$SCRATCH/j.img)" -q 2 -d 16 $recover
    before=$(mapped)
    mkdir "/run/nvlane/ublk-$ID.new"
    for ((round = 0; round < few; round++)); do
        said=$(fails replace "$bpf/thin.bpf.o")
    done
    expect_match "a program of which nobody could be told" "$said" 'could not be told of the program'
    rmdir "/run/nvlane/ublk-$ID.new"
    # The queues go on a moment later.
    await 30 is_mapped "$before"
    replace "$bpf/thin.bpf.o" >/dev/null
    (($(mapped) > before)) || die "the maps of a program are not seen there"
    runs_in_kernel 'thin\.bpf\.o'
    verified_io "$DEVICE" 6M
    replace "$bpf/linear.bpf.o" >/dev/null
    await 30 is_mapped "$before"
    ublk_stop
done
