#!/bin/bash
# limit: 360
# The kernel's NBD client on `nvlane nbd`: verified I/O over a Unix socket and over TCP, two connections
# for one device, holes made by discard, a file system, and a server that stops in order. Before that
# libnbd's: nbdinfo, nbdcopy, nbdfuse and a script of its library.
. "$(dirname "$0")/harness.sh"

modprobe nbd nbds_max=4
image=$SCRATCH/nbd.img
"$NVLANE" nbd "disk=$image?size=256M&create" memory=mem:128M --socket "$WORK/nbd.sock" \
    --listen 127.0.0.1:10809 --cores 2 >"$WORK/nbd.log" 2>&1 </dev/null &
SERVER=$!
await 30 says "$WORK/nbd.log" ready

# attach DEVICE NAME [OPTION]...
attach() {
    local device=$1 name=$2
    shift 2
    nbd-client "$@" -N "$name" "$device" >/dev/null || die "nbd-client $*: $(<"$WORK/nbd.log")"
    await 20 has_size "$device"
}
has_size() { (($(blockdev --getsize64 "$1" 2>/dev/null || echo 0) > 0)); }

"$(dirname "$0")/../clients/libnbd.py" nbd://127.0.0.1:10809/memory "nbd+unix:///disk?socket=$WORK/nbd.sock"
expect "size that nbdinfo tells" "$(nbdinfo --size "nbd+unix:///disk?socket=$WORK/nbd.sock")" $((256 << 20))
head -c 8M /dev/urandom >"$WORK/source"
nbdcopy --connections=4 --flush "$WORK/source" nbd://127.0.0.1:10809/memory
cmp -n $((8 << 20)) <(nbdcopy "nbd+unix:///memory?socket=$WORK/nbd.sock" - 2>/dev/null) "$WORK/source" ||
    die "nbdcopy brought back something else"
# A file that is the export: written there, read at the export.
modprobe fuse
mkdir "$WORK/fuse"
nbdfuse "$WORK/fuse/memory" "nbd+unix:///memory?socket=$WORK/nbd.sock" &
fuse=$!
await 20 test -f "$WORK/fuse/memory"
expect "size of nbdfuse's file" "$(stat -c %s "$WORK/fuse/memory")" $((128 << 20))
cmp -n $((8 << 20)) "$WORK/fuse/memory" "$WORK/source" || die "nbdfuse's file is something else"
dd if="$WORK/source" of="$WORK/fuse/memory" bs=1M seek=16 conv=notrunc,fsync status=none
umount "$WORK/fuse"
wait "$fuse" || die "nbdfuse ended with $?"
cmp -n $((8 << 20)) <(nbdcopy nbd://127.0.0.1:10809/memory - 2>/dev/null | tail -c +$(((16 << 20) + 1))) "$WORK/source" ||
    die "what was written to nbdfuse's file did not arrive"
rmdir "$WORK/fuse"
rm "$WORK/source"

attach /dev/nbd0 disk -unix "$WORK/nbd.sock" -C 2
attach /dev/nbd1 memory 127.0.0.1 10809 -C 2
expect "size through the Unix socket" "$(blockdev --getsize64 /dev/nbd0)" $((256 << 20))
expect "size through TCP" "$(blockdev --getsize64 /dev/nbd1)" $((128 << 20))
verified_io /dev/nbd0 48M &
one=$!
FIO_OUTPUT=$WORK/fio-1.json verified_io /dev/nbd1 48M &
two=$!
wait "$one" || die "fio on the file"
wait "$two" || die "fio on memory"

dd if=/dev/urandom of=/dev/nbd0 bs=1M count=64 oflag=direct conv=fsync status=none
full=$(data_bytes "$image")
expect "data after 64 MiB were written" $((full >= 64 << 20)) 1
blkdiscard -o 0 -l $((32 << 20)) /dev/nbd0
expect "hole made by blkdiscard" $((full - $(data_bytes "$image") >= 31 << 20)) 1
cmp -n $((32 << 20)) /dev/zero <(dd if=/dev/nbd0 bs=1M count=32 iflag=direct status=none) ||
    die "discarded blocks are not zeroes"
blkdiscard -z -o $((32 << 20)) -l $((16 << 20)) /dev/nbd0
cmp -n $((16 << 20)) /dev/zero <(dd if=/dev/nbd0 bs=1M skip=32 count=16 iflag=direct status=none) ||
    die "zeroed blocks are not zeroes"

mkfs.ext4 -q /dev/nbd0
mount /dev/nbd0 /mnt/test
dd if=/dev/urandom of=/mnt/test/data bs=1M count=64 conv=fsync status=none
sum=$(sha256sum </mnt/test/data)
umount /mnt/test
nbd-client -d /dev/nbd0 >/dev/null
nbd-client -d /dev/nbd1 >/dev/null
fsck.ext4 -fn "$image" >"$WORK/fsck" 2>&1 || die "fsck of the image: $(<"$WORK/fsck")"

attach /dev/nbd2 disk 127.0.0.1 10809
mount -o ro /dev/nbd2 /mnt/test
expect "the file, through another device" "$(sha256sum </mnt/test/data)" "$sum"
umount /mnt/test
nbd-client -d /dev/nbd2 >/dev/null
stop
expect "the socket's file after the end" "$([[ -e $WORK/nbd.sock ]] && echo there || echo gone)" gone
