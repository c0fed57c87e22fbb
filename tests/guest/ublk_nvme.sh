#!/bin/bash
# limit: 300
# kernel: newest
# devices: usual
# An NVMe character device below a ublk device: the pages of requests go to the device's driver as they are,
# alone, one of several children of linear, and by user copy where its commands are on another ring.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv
plain=$(device nvlane-plain 1)
block=/dev/nvme${plain#/dev/ng}

ublk_add "$plain" -q 2 -d 128
expect_match "the way of data" "$(<"$WORK/ublk.log")" 'zero copy'
deep_io 0
verified_io "$DEVICE" 3M --iodepth=1 --randseed=2
dd if=/dev/urandom of="$DEVICE" bs=1M count=8 oflag=direct status=none
cmp -n $((8 << 20)) "$DEVICE" "$block" || die "the device has something else"
blkdiscard -z -o 0 -l $((1 << 20)) "$DEVICE"
cmp -n $((1 << 20)) /dev/zero <(dd if="$block" bs=1M count=1 iflag=direct status=none) || die "zeroed blocks are not"
mkfs.ext4 -q "$DEVICE"
mount "$DEVICE" /mnt/test
dd if=/dev/urandom of=/mnt/test/data bs=1M count=48 conv=fsync status=none
sum=$(sha256sum </mnt/test/data)
umount /mnt/test
ublk_stop
fsck.ext4 -fn "$block" >"$WORK/fsck" 2>&1 || die "fsck of the device: $(<"$WORK/fsck")"
mount -o ro "$block" /mnt/test
expect "the file, without ublk" "$(sha256sum </mnt/test/data)" "$sum"
umount /mnt/test

ublk_add "$plain?poll"
expect_match "the way of data of a polled device" "$(<"$WORK/ublk.log")" 'user copy'
verified_io "$DEVICE" 8M
ublk_stop

# A head: either controller may take what is written.
with_heads
shared=$(device nvlane-path 1)
truncate -s $(((9 << 20) + 512)) "$SCRATCH/a.img"
ublk_add "linear:($SCRATCH/a.img,$shared)"
expect_match "the way of data" "$(<"$WORK/ublk.log")" 'zero copy'
verified_io "$DEVICE" 16M
ublk_stop
modprobe -r ublk_drv
