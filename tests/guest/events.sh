#!/bin/bash
# limit: 180
# Changes to a running target, through its control socket, and how the host hears of them.
. "$(dirname "$0")/harness.sh"

image=$SCRATCH/e.img
serve "file:$image?size=64M&create"
connect -i 2
device=$(namespace 1)
has_size() { [[ $(blockdev --getsize64 "$1") == "$2" ]]; }
gone() { ! namespace_now "$1" >/dev/null; }

ctl volume resize 1 128M
await 20 has_size "$device" $((128 << 20))
# The file itself grows, without a word to us.
truncate -s 192M "$image"
await 30 has_size "$device" $((192 << 20))
dd if=/dev/urandom of="$device" bs=1M seek=191 count=1 oflag=direct status=none

# A block device grows, and shrinks, as the kernel tells.
truncate -s 32M "$SCRATCH/loop.img"
modprobe loop
loop=$(losetup -f --show "$SCRATCH/loop.img")
ctl volume add "$loop" --nsid 5
grows=$(namespace 5)
expect "size of the block device" "$(blockdev --getsize64 "$grows")" $((32 << 20))
for size in 48M 40M; do
    truncate -s $size "$SCRATCH/loop.img"
    losetup -c "$loop"
    await 30 has_size "$grows" $((${size%M} << 20))
done
dd if=/dev/urandom of="$grows" bs=1M seek=39 count=1 oflag=direct status=none
ctl volume remove 5
await 20 gone 5
losetup -d "$loop"

ctl volume add mem:32M --nsid 7
added=$(namespace 7)
expect "size of the added volume" "$(blockdev --getsize64 "$added")" $((32 << 20))
dd if=/dev/urandom of="$added" bs=1M count=32 oflag=direct status=none
ctl volume list -o json >"$WORK/volumes.json"
expect_match "the list of volumes" "$(jq -c . <"$WORK/volumes.json")" '"nsid":7'
ctl volume remove 7
await 20 gone 7
fails ctl volume remove 7
fails ctl volume add /does/not/exist

# ANA: the state is in the log, an event announces it, I/O waits while the group is inaccessible.
ana_is() { [[ $(cat /sys/block/nvme*c*n1/ana_state) == "$1" ]]; }
await 30 ana_is optimized
ctl ana set 1 non-optimized
await 20 ana_is non-optimized
dd if="$device" of=/dev/null bs=64k count=16 iflag=direct status=none
ctl ana set 1 inaccessible
await 20 ana_is inaccessible
dd if=/dev/urandom of="$device" bs=4k count=1 oflag=direct status=none &
write=$!
sleep 2
kill -0 $write || die "a write to an inaccessible group did not wait"
ctl ana set 1 optimized
await 20 ana_is optimized
wait $write || die "the write that waited has failed"
nvme ana-log "/dev/$(controllers)" -o json >"$WORK/ana.json"
expect_match "the ANA log" "$(<"$WORK/ana.json")" optimized

# A listener more, and away again.
ctl listener add 127.0.0.1:4433
nvme connect -t tcp -a 127.0.0.1 -s 4433 -n "$NQN"
expect "paths" "$(controllers | wc -l)" 2
nvme disconnect -d "$(controllers | tail -n 1)"
ctl listener remove 127.0.0.1:4433
fails nvme connect -t tcp -a 127.0.0.1 -s 4433 -n "$NQN"

ctl stats -o json >"$WORK/stats.json"
jq -e . <"$WORK/stats.json" >/dev/null || die "stats are not JSON"
verified_io "$device" 16M
disconnect
stop
