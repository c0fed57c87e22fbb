#!/bin/bash
# limit: 90
# round: 40
# processors: 2
# A server that loses what was not flushed when it is killed: what was flushed, or had FUA, is there.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_durability.sh"
single_path

# First that it does lose something, or the rest would prove nothing.
serve "volatile:(file:$SCRATCH/lost.img?size=64M&create)"
connect
device=$(namespace 1)
head -c 1M /dev/urandom | tee "$WORK/kept" | dd of="$device" bs=64k oflag=direct conv=fsync iflag=fullblock status=none
head -c 1M /dev/urandom | tee "$WORK/lost" | dd of="$device" bs=64k seek=16 oflag=direct iflag=fullblock status=none
read_mib() { dd if="$device" bs=1M skip="$1" count=1 iflag=direct status=none; }
cmp "$WORK/lost" <(read_mib 1) || die "an unflushed write is not read back before the accident"
kill_server
drop
serve "volatile:(file:$SCRATCH/lost.img)"
connect
device=$(namespace 1)
cmp "$WORK/kept" <(read_mib 0) || die "a flushed write is lost"
read_mib 1 >"$WORK/now"
cmp -s "$WORK/lost" "$WORK/now" && die "an unflushed write survived: the layer is not volatile"
disconnect
stop

for ((round = 1; round <= ROUNDS; round++)); do
    accident "$round"
    for by in flush fua; do
        said=$(verdict $by) || die "round $round, $by: $said"
        echo "round $round, $by: $said"
    done
    disconnect
    stop
done
