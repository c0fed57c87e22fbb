#!/bin/bash
# limit: 180
# kernel: newest
# Commands with a time-out of their own, to a device that takes longer: here the kernel's NVMe/TCP host, which gives a
# command up by resetting its controller.
. "$(dirname "$0")/harness.sh"

# Writes take eight seconds; reads, which the kernel sends itself when a device appears, none.
serve "delay:write=8s(mem:64M)"
connect -i 1 -c 1
block=$(namespace 1)
device=/dev/ng${block#/dev/nvme}
controller=$(controllers)
await 20 test -c "$device"
head -c 4096 /dev/urandom >"$WORK/a"

# write VOLUME OPTION...: one, of which it says in $WORK/said how long it took
write() {
    "$NVLANE" io "$1" --opcode 0x01 --write --cdw12 7 --data-len 4096 --input-file "$WORK/a" --latency "${@:2}" \
        >"$WORK/said" 2>&1
}
resets() { cat /sys/class/nvme/"$controller"/diag/reset_count /sys/class/nvme/"$controller"/diag/reconnect_count; }

# What is in time is not disturbed.
write "$device" --timeout 30000 || die "in time: $(<"$WORK/said")"
"$NVLANE" io "$device" --opcode 0x02 --read --cdw12 7 --data-len 4096 --raw-binary >"$WORK/b"
cmp "$WORK/a" "$WORK/b"
cat "$WORK/said"; resets

# What is not is given up, once, and long before its answer.
SECONDS=0
write "$device" --timeout 1000 && die "too late: $(<"$WORK/said")"
took=$SECONDS
cat "$WORK/said"; resets
echo "took $took"
await 20 is_live "$controller"

# A time-out for all commands of the volume.
SECONDS=0
write "$device?timeout=1s" && die "too late: $(<"$WORK/said")"
took=$SECONDS
cat "$WORK/said"; resets
echo "took $took"
await 20 is_live "$controller"

disconnect
stop
