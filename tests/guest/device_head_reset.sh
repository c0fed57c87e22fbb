#!/bin/bash
# limit: 300
# kernel: newest
# A character device that stands for the ways of several controllers (that of the kernel's own NVMe/TCP host), while its
# only controller is reset again and again: what the kernel has no path for at that moment it calls invalid, and it
# is tried again.
. "$(dirname "$0")/harness.sh"
EXAMPLE=${NVME_EXAMPLE:?the example nvme of crates/volume}

serve "$SCRATCH/head.img?size=64M&create"
connect
device=/dev/ng$(basename "$(namespace 1)" | sed s/^nvme//)
controller=/sys/class/nvme/$(controllers)
await 20 test -c "$device"

# reset_while PROCESS SECONDS: resets its controller for so long, and at least three times, each time that it has worked for a
# while: a command is tried again six times and no more. Gives how often in RESETS.
reset_while() {
    local until=$((SECONDS + $2))
    RESETS=0
    while ((SECONDS < until || RESETS < 3)) && kill -0 "$1" 2>/dev/null; do
        if is_live "$(basename "$controller")"; then
            pause 1.5
            # It may be busy by now.
            { echo 1 >"$controller/reset_controller"; } 2>/dev/null && RESETS=$((RESETS + 1))
        fi
        pause 0.1
    done
}

# Until it has been done to it what is to be done.
timeout 240 "$EXAMPLE" "$device" load 16 1 "until=$WORK/enough" >"$WORK/load" 2>"$WORK/load.said" &
load=$!
await 30 says "$WORK/load.said" 'commands go by'
reset_while $load $((FULL ? 60 : 30))
: >"$WORK/enough"
status=0
wait $load || status=$?
expect "the status of $(cat "$WORK/load" "$WORK/load.said")" $status 0
((RESETS >= 3)) || die "only $RESETS resets"
expect "errors in $(<"$WORK/load")" "$(grep -c times "$WORK/load" || true)" 0

# An only controller that does not lead there for a while is the same, and is live all the time.
: >"$WORK/load.said"
rm "$WORK/enough"
timeout 240 "$EXAMPLE" "$device" load 16 1 "until=$WORK/enough" >"$WORK/load" 2>"$WORK/load.said" &
load=$!
await 30 says "$WORK/load.said" 'commands go by'
ctl ana set 1 inaccessible
ana_is() { [[ $(ana_state "${controller##*/}") == "$1" ]]; }
await 20 ana_is inaccessible
pause 1
expect_match "what opening it says" "$(fails "$EXAMPLE" "$device" io 0)" 'no controller of its subsystem leads to it now'
ctl ana set 1 optimized
await 20 ana_is optimized
pause 1
: >"$WORK/enough"
status=0
wait $load || status=$?
expect "the status of $(cat "$WORK/load" "$WORK/load.said")" $status 0
expect "errors in $(<"$WORK/load")" "$(grep -c times "$WORK/load" || true)" 0

# A copy goes back to what was flushed before, and ends.
head -c 8M /dev/urandom >"$WORK/from"
"$NVLANE" copy "$WORK/from" "$device" --throttle 1M --verify -o json >"$WORK/copied" 2>"$WORK/said" &
copy=$!
block=$(namespace 1)
# Past the block device's cache, which knows nothing of commands that pass it by.
begun() { cmp -s -n 65536 "$WORK/from" <(dd if="$block" bs=64k count=1 iflag=direct status=none 2>/dev/null); }
await 60 begun
resets=0
while ((resets < 3)) && kill -0 $copy 2>/dev/null; do
    pause 1
    await 30 is_live "${controller##*/}"
    # It may be busy by now.
    { echo 1 >"$controller/reset_controller"; } 2>/dev/null && resets=$((resets + 1))
done
wait $copy || die "copy: $(cat "$WORK/said")"
expect_json "$WORK/copied" '.setbacks >= 1' true
# Compared by a checksum that our target gives, by way of the kernel's host.
expect_json "$WORK/copied" '.checksummed_bytes == .total_bytes' true
dd if="$block" of="$WORK/to" iflag=direct bs=1M count=8 status=none
cmp "$WORK/from" "$WORK/to"

disconnect
stop
