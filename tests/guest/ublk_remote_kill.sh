#!/bin/bash
# limit: 240
# The server of a device on a remote volume is killed while a write of its is under way at a slow target, which shares the
# volume with a quick one. Its successor reaches the quick one only, does that write again, and takes another to
# the same block: the first, which ends at last, must not be what is in the block then.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
has_feature USER_RECOVERY_REISSUE || lacks "this kernel's ublk has no recovery"
NQN=nqn.2026-11.io.nvlane:killed
image=$SCRATCH/killed.img
truncate -s 64M "$image"
# What the slow target needs for a write: more than a successor needs to start, less than the silence that it trusts: 31 s, twice
# keep_alive_tmo and quiesce_time.
SLOW=20

# target PORT VOLUME: one of the two
target() {
    local ids=$((($1 - 4420) * 100 + 1))
    : >"$WORK/target-$1.log"
    "$NVLANE" serve "$2" --shared --nqn "$NQN" --uuid 11111111-1111-4111-8111-111111111111 --cntlid "$ids-$((ids + 99))" \
        --listen "127.0.0.1:$1" --socket "$WORK/target-$1.sock" --data-dir "$WORK/target-$1" >"$WORK/target-$1.log" 2>&1 </dev/null &
    await 30 says "$WORK/target-$1.log" ready
}

# block BYTE: four KiB of it
block() { head -c 4096 /dev/zero | tr '\0' "$1"; }

# put BYTE: writes it to the block in question
put() { block "$1" | dd of="$DEVICE" bs=4096 seek=100 count=1 oflag=direct iflag=fullblock conv=notrunc status=none; }

# under_way: whether the server has a command with a target
under_way() {
    "$NVLANE" paths "$DEVICE" -o json >"$WORK/paths.json"
    [[ $(jq '[.volumes[0].paths[].in_flight] | add' "$WORK/paths.json") -gt 0 ]]
}

target 4421 "delay:write=${SLOW}s(file:$image)"
ublk_add "tcp://127.0.0.1:4421,127.0.0.1:4422/$NQN?ns=1&keep_alive_tmo=15s&reconnect_delay=200ms" --recover -d 4
put A &
writer=$!
await 30 under_way
kill -KILL "$UBLK_SERVER"
killed=$SECONDS
wait "$UBLK_SERVER" 2>/dev/null || true
target 4422 "file:$image"
((SECONDS < killed + SLOW - 4)) || die "this machine is too slow for this test: $((SECONDS - killed)) s"
: >"$WORK/recover.log"
"$NVLANE" ublk recover "$ID" >"$WORK/recover.log" 2>&1 </dev/null &
UBLK_SERVER=$!
ublk_ready "$WORK/recover.log"
wait "$writer" || die "the write that came again failed"
put B
echo "the second write was acknowledged $((SECONDS - killed)) s after the kill"
# By then the slow target is done, whatever has happened.
while ((SECONDS <= killed + SLOW + 2)); do sleep 1; done
expect "the block" "$(dd if="$DEVICE" bs=4096 skip=100 count=1 iflag=direct status=none | md5sum)" "$(block B | md5sum)"
expect "the block in the file" "$(dd if="$image" bs=4096 skip=100 count=1 iflag=direct status=none | md5sum)" "$(block B | md5sum)"
ublk_stop
modprobe -r ublk_drv
