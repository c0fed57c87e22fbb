#!/bin/bash
# limit: 240
# kernel: newest
# Commands with a time-out of their own, to a device that takes longer: here the kernel's NVMe/TCP host, which gives a
# command up by resetting its controller.
. "$(dirname "$0")/harness.sh"

# Writes take twelve seconds; reads, which the kernel sends itself when a device appears, none.
serve "delay:write=12s(mem:64M)"
connect -i 1 -c 1
block=$(namespace 1)
device=/dev/ng${block#/dev/nvme}
controller=$(controllers)
await 20 test -c "$device"
head -c 4096 /dev/urandom >"$WORK/a"

# write VOLUME OPTION...: one, of which it says in $WORK/said how it ended
write() {
    "$NVLANE" io "$1" --opcode 0x01 --write --cdw12 7 --data-len 4096 --input-file "$WORK/a" --latency "${@:2}" \
        >"$WORK/said" 2>&1
}
# How long that took.
milliseconds() { echo $(($(sed -n 's/.*latency: \([0-9]*\) us$/\1/p' "$WORK/said") / 1000)); }
# is_between VALUE LOW HIGH
is_between() { (($1 >= $2 && $1 < $3)) || die "$1 is not from $2 to $3: $(<"$WORK/said")"; }
resets() { cat /sys/class/nvme/"$controller"/diag/reset_count; }

# What is in time is not disturbed.
write "$device" --timeout 60000 || die "in time: $(<"$WORK/said")"
is_between "$(milliseconds)" 12000 60000
"$NVLANE" io "$device" --opcode 0x02 --read --cdw12 7 --data-len 4096 --raw-binary >"$WORK/b"
cmp "$WORK/a" "$WORK/b"
expect "resets" "$(resets)" 0

# What is not is given up: once, and before it could have been answered.
# Again where the machine stood still for as long as a write takes.
for attempt in 1 2 3; do
    before=$(resets)
    if ! write "$device" --timeout 1000 && (($(milliseconds) < 12000)); then break; fi
    ((attempt < 3)) || die "too late: $(<"$WORK/said")"
    # Of two that succeeded the one whose controller was reset should not have.
    (($(resets) == before || $(milliseconds) >= 12000)) || die "after a reset: $(<"$WORK/said")"
    await 60 is_live "$controller"
done
expect_match "too late" "$(<"$WORK/said")" 'Command Abort Requested'
is_between "$(milliseconds)" 1000 12000
expect "resets" "$(resets)" $((before + 1))
await 60 is_live "$controller"

# A time-out of the volume is that of all its commands, of which a reset cancels others too: they are tried again, a few times.
before=$(resets)
write "$device?timeout=1s" && die "too late: $(<"$WORK/said")"
expect_match "too late" "$(<"$WORK/said")" 'Host Pathing Error'
expect "whether it was tried again" $(($(resets) - before > 1 && $(resets) - before < 9)) 1
await 60 is_live "$controller"

# The device is as before.
"$NVLANE" io "$device" --opcode 0x02 --read --cdw12 7 --data-len 4096 --raw-binary >"$WORK/b"
cmp "$WORK/a" "$WORK/b"
disconnect
stop
