#!/bin/bash
# limit: 180
# processors: 2
# Connecting: one and several I/O queues, write and poll queues, queue sizes, header and data digest
# each on and off; data goes out and comes back the same each time.
. "$(dirname "$0")/harness.sh"

serve mem:64M
head -c 8M /dev/urandom >"$WORK/sample"

# round OPTIONS QUEUES: QUEUES counts the admin queue
round() {
    # shellcheck disable=SC2086 # options are words
    connect $1
    local device controller
    device=$(namespace 1)
    controller=$(controllers)
    expect "queues with '$1'" "$(<"/sys/class/nvme/$controller/queue_count")" "$2"
    dd if="$WORK/sample" of="$device" bs=256k oflag=direct conv=fsync status=none
    cmp -n $((8 << 20)) "$WORK/sample" <(dd if="$device" bs=128k count=64 iflag=direct status=none) \
        || die "read other bytes than written, connected with '$1'"
    disconnect
    expect "controllers left" "$(controllers)" ""
}

round "-i 1" 2
round "-i 2" 3
round "-i 1 -W 1" 3
round "-i 1 -P 1" 3
round "-i 1 -Q 16" 2
round "-i 1 -Q 1024" 2
round "-i 2 -g" 3
round "-i 2 -G" 3
round "-i 2 -g -G" 3

# As many as the host asks for: it asks for no more than it has processors.
connect -i 128
namespace 1 >/dev/null
queues=$(<"/sys/class/nvme/$(controllers)/queue_count")
expect "queues when 128 are wanted" "$queues" $(($(nproc) + 1))
disconnect

# Connecting and disconnecting leaves nothing behind.
for _ in 1 2 3 4 5; do
    connect -i 2
    disconnect
done
stop
