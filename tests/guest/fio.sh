#!/bin/bash
# limit: 420
# processors: 2
# Random reads and writes of 512 bytes to 1 MiB, 32 at once, each read back and checked: on memory,
# file and block device, with and without digests, with 4096-byte blocks.
. "$(dirname "$0")/harness.sh"

truncate -s 512M "$SCRATCH/loop.img"
loop=$(losetup --show -f --direct-io=on "$SCRATCH/loop.img" 2>/dev/null || losetup --show -f "$SCRATCH/loop.img")
serve mem:512M "file:$SCRATCH/f.img?size=512M&create" "$loop" "mem:512M?bs=4096" "file:$SCRATCH/large.img?size=512M&create&bs=4096"
size=48M
((FULL)) && size=256M
connect -i 2
for nsid in 4 5; do expect "block of namespace $nsid" "$(blockdev --getss "$(namespace $nsid)")" 4096; done
for nsid in 1 2 3 4 5; do verified_io "$(namespace $nsid)" $size; done
# All at once: they share queues.
for nsid in 1 2 3; do
    FIO_OUTPUT=$WORK/fio-$nsid.json verified_io "$(namespace $nsid)" 16M --randseed=2 &
    jobs[nsid]=$!
done
for nsid in 1 2 3; do wait "${jobs[nsid]}" || die "fio on namespace $nsid beside the others"; done
disconnect

connect -i 2 -g -G
for nsid in 1 2 5; do verified_io "$(namespace $nsid)" 16M; done
disconnect
stop
