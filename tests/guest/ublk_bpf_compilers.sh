#!/bin/bash
# limit: 300
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# Programs that other compilers made run in the kernel as well: the loop is nvlane's own. bpf/tests/clang-14 and -16 have the examples, as
# `make -C bpf others` made them.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
bpf=$(realpath "$(dirname "$0")/../../bpf")
[[ $'\n'$("$NVLANE" bpf check "$bpf/linear.bpf.o") == *$'\n''kernel: ok'* ]] || lacks "no programs in this kernel"
a=$SCRATCH/a.img b=$SCRATCH/b.img
truncate -s 16M "$a" "$b"
! cmp -s "$bpf/linear.bpf.o" "$bpf/tests/clang-14/linear.bpf.o" || die "it is the same compiler"

in_kernel "bpf:$bpf/tests/clang-14/linear.bpf.o($a,$b)" -q 2 -d 128
deep_io 10
expect_joined "$DEVICE" 10 12 "$a" "$b"
# One takes the other's place.
"$NVLANE" bpf replace "$DEVICE" "$bpf/linear.bpf.o" >"$WORK/replaced"
"$NVLANE" bpf replace "$DEVICE" "$bpf/tests/clang-14/linear.bpf.o" >"$WORK/replaced"
deep_io 0 --bssplit=4k/50:16k/50
expect_joined "$DEVICE" 0 22 "$a" "$b"
ublk_stop

# Maps, and an NVLANE_DONE.
in_kernel "bpf:$bpf/tests/clang-16/statistics.bpf.o($b)" -q 2 -d 128
dd if=/dev/zero of="$DEVICE" bs=4k count=300 oflag=direct status=none
"$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
written=0
while read -r value; do
    written=$((written + 16#$(tac -rs .. <<<"${value:0:16}" | tr -d '\n')))
done < <(jq -r '.. | objects | select(.name == "operations") | .entries[] | select(.key == "01000000") | .values[]' "$WORK/stat.json")
expect "the writes that were counted" "$written" 300
ublk_stop

# What is deferred, decided in user space on the same maps.
in_kernel "bpf:$bpf/tests/clang-14/thin.bpf.o($SCRATCH/c.img?size=16M&create)" -q 2 -d 64
verified_io "$DEVICE" 4M --offset=30M --bssplit=4k/60:64k/40
cmp -n $((1 << 20)) /dev/zero "$DEVICE" || die "what was not written is not zeroes"
ublk_stop
modprobe -r ublk_drv
