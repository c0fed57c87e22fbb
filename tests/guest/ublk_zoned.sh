#!/bin/bash
# limit: 300
# kernel: newest
# devices: usual
# A zoned NVMe namespace as a zoned ublk device: what blkzone shows of either is the same, zones are opened,
# closed, finished and reset through it, fio writes and verifies zone by zone, and what cannot be is said.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv
has_feature ZONED || lacks "this kernel's ublk has no zones"
zoned=$(device nvlane-zoned 1)
below=/dev/nvme${zoned#/dev/ng}
blkzone reset "$below"

said=$(fails "$NVLANE" ublk add "$zoned" --recover)
expect_match "a zoned device that is to be recovered" "$said" 'cannot be written a second time'
said=$(fails "$NVLANE" ublk add "$zoned" --copy)
expect_match "a zoned device by copy" "$said" 'user copy'

ublk_add "$zoned" -q 2 -d 32
expect_match "the way of data" "$(<"$WORK/ublk.log")" 'user copy'
queue=/sys/block/${DEVICE##*/}/queue
beside=/sys/block/${below##*/}/queue
for fact in zoned chunk_sectors nr_zones max_open_zones max_active_zones; do
    expect "$fact" "$(<"$queue/$fact")" "$(<"$beside/$fact")"
done

# same WHEN: both report the same zones; a device's own block layer may know a write pointer by sector only
same() {
    blkzone report "$DEVICE" >"$WORK/ours"
    blkzone report "$below" >"$WORK/theirs"
    cmp -s "$WORK/ours" "$WORK/theirs" || die "$1: $(diff "$WORK/ours" "$WORK/theirs")"
}
same "at first"
expect "zones" "$(wc -l <"$WORK/ours")" 16

zone=$(<"$queue/chunk_sectors")
dd if=/dev/urandom of="$WORK/data" bs=64k count=8 status=none
dd if="$WORK/data" of="$DEVICE" bs=64k oflag=direct conv=notrunc status=none
cmp -n $((8 * 65536)) "$WORK/data" "$below" || die "the zone has something else"
same "after writes to the first zone"
expect_match "the first zone" "$(head -n1 "$WORK/ours")" 'wptr 0x000400 .*zcond: ?2'
# Not where it is written next.
said=$(fails dd if="$WORK/data" of="$DEVICE" bs=64k seek=20 count=1 oflag=direct conv=notrunc status=none)
same "after a write that was refused"

blkzone open -o "$zone" -l "$zone" "$DEVICE"
expect_match "an open zone" "$(blkzone report -o "$zone" -c 1 "$below")" 'zcond: ?3'
blkzone close -o "$zone" -l "$zone" "$DEVICE"
blkzone finish -o $((2 * zone)) -l "$zone" "$DEVICE"
expect_match "a finished zone" "$(blkzone report -o $((2 * zone)) -c 1 "$below")" 'zcond:14'
same "after open, close and finish"
blkzone reset -o 0 -l "$zone" "$DEVICE"
expect_match "a zone after a reset" "$(blkzone report -c 1 "$below")" 'zcond: ?1'
blkzone reset "$DEVICE"
expect "zones that are not empty" "$(blkzone report "$below" | grep -vcE 'zcond: ?1')" 0
same "after all were reset"

for rw in write randwrite; do
    fio --name=zones --filename="$DEVICE" --direct=1 --zonemode=zbd --ioengine=libaio --iodepth=32 --rw=$rw --bssplit=4k/30:64k/50:256k/20 \
        --size=24M --verify=crc32c --do_verify=1 --verify_fatal=1 --max_open_zones=4 --randseed=4 \
        --output-format=json --output="$WORK/fio.json" || die "fio: $(tail -n 30 "$WORK/fio.json")"
    expect_json "$WORK/fio.json" '[.jobs[].error] | add' 0
    expect_json "$WORK/fio.json" '.jobs[0].write.total_ios > 100 and .jobs[0].read.total_ios > 100' true
    same "after fio, $rw"
    blkzone reset "$DEVICE"
done

# Zone Append: btrfs writes data by it.
if command -v mkfs.btrfs >/dev/null && modprobe btrfs 2>/dev/null; then
    mkfs.btrfs -q -f -m single -d single -O zoned "$DEVICE"
    mount "$DEVICE" /mnt/test
    tracing
    dd if=/dev/urandom of=/mnt/test/data bs=256k count=12 conv=fsync status=none
    sum=$(sha256sum </mnt/test/data)
    traced_enough
    grep -q nvme_cmd_zone_append "$TRACE/trace" || die "nothing was appended to a zone"
    umount /mnt/test
    mount -o ro "$DEVICE" /mnt/test
    expect "the file on btrfs" "$(sha256sum </mnt/test/data)" "$sum"
    umount /mnt/test
    same "after btrfs"
fi
ublk_stop
modprobe -r ublk_drv
