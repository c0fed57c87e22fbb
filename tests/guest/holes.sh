#!/bin/bash
# limit: 120
# Discard and zeroing reach the backing file: holes are made, what is beside them stays, and the
# file grows no further than its size. Through a block device as well, where that can; where it
# cannot, no host is told that it does.
. "$(dirname "$0")/harness.sh"

image=$SCRATCH/h.img
serve "file:$image?size=256M&create"
expect "data of a new sparse file" "$(($(data_bytes "$image") < (1 << 20)))" 1
connect
device=$(namespace 1)
fill() { dd if=/dev/urandom of="$device" bs=1M count=64 oflag=direct conv=fsync status=none; }
zeroes() { # zeroes OFFSET_MIB LENGTH_MIB
    cmp -n $(($2 << 20)) /dev/zero <(dd if="$device" bs=1M skip="$1" count="$2" iflag=direct status=none)
}

fill
full=$(data_bytes "$image")
expect "data after 64 MiB were written" $((full >= 64 << 20)) 1
sum=$(dd if="$device" bs=1M skip=48 count=16 iflag=direct status=none | sha256sum)

blkdiscard -o $((16 << 20)) -l $((16 << 20)) "$device"
zeroes 16 16 || die "discarded blocks are not zeroes"
expect "hole made by blkdiscard" $((full - $(data_bytes "$image") >= 15 << 20)) 1

# What is stored, as a host is told (Get LBA Status, action 02h): of each descriptor the first block, how many less one, and
# the status, 02h in the second of four bytes.
block=$(blockdev --getss "$device")
blocks() { echo $(($1 * (1 << 20) / block)); }
# nvme-cli 2.3 has a command for it that makes no room for the answer.
stored() {
    nvme admin-passthru "/dev/$(controllers)" -o 0x86 -n 1 --cdw12=255 --cdw13=0x02000000 -r -l 1024 -b >"$WORK/stored"
    od -An -v -tu4 -w4 -N $((8 + 16 * $1)) "$WORK/stored" | xargs
}
expect "blocks that are told to be stored" "$(stored 2)" \
    "2 2 0 0 $(($(blocks 16) - 1)) 512 $(blocks 32) 0 $(($(blocks 32) - 1)) 512"
nvme id-ctrl "/dev/$(controllers)" -o json >"$WORK/ctrl.json"
expect_json "$WORK/ctrl.json" '((.oacs / 512) | floor) % 2' 1

# Write Zeroes with deallocation: what fallocate's punch-hole sends.
before=$(data_bytes "$image")
fallocate -p -o $((32 << 20)) -l $((16 << 20)) "$device"
zeroes 32 16 || die "a punched range is not zeroes"
# Before Linux 6.2 the kernel's host did not ask for the deallocation.
read -r major minor < <(uname -r | tr . ' ' | cut -d' ' -f1,2)
((major * 100 + minor < 602)) || expect "hole made by fallocate -p" $((before - $(data_bytes "$image") >= 15 << 20)) 1

# Write Zeroes without deallocation must read as zeroes; how is the backend's affair.
blkdiscard -z -o 0 -l $((8 << 20)) "$device"
zeroes 0 8 || die "blkdiscard -z left something"
fallocate -z -o $((8 << 20)) -l $((4 << 20)) "$device"
zeroes 8 4 || die "fallocate -z left something"

expect "the blocks beside the holes" \
    "$(dd if="$device" bs=1M skip=48 count=16 iflag=direct status=none | sha256sum)" "$sum"
# A range that begins and ends inside the file system's blocks.
fill
sum=$(sha256sum <(dd if="$device" bs="$block" count=3 iflag=direct status=none) | cut -d' ' -f1)
blkdiscard -o $((3 * block)) -l $((5 * block)) "$device"
expect "the blocks before an unaligned discard" \
    "$(sha256sum <(dd if="$device" bs="$block" count=3 iflag=direct status=none) | cut -d' ' -f1)" "$sum"

# The whole device, as mkfs does it.
blkdiscard "$device"
zeroes 0 64 || die "the discarded device is not zeroes"
expect "data after everything was discarded" $(($(data_bytes "$image") < (1 << 20))) 1
expect "size of the file" "$(stat -c %s "$image")" $((256 << 20))
disconnect
stop

# A block device: the kernel carries discards further down, here into the file below a loop device.
truncate -s 64M "$SCRATCH/below.img"
loop=$(losetup -f --show "$SCRATCH/below.img")
serve "$loop"
connect
device=$(namespace 1)
expect "whether the loop device can be discarded" $(($(<"/sys/block/${device#/dev/}/queue/discard_max_bytes") > 0)) 1
dd if=/dev/urandom of="$device" bs=1M count=32 oflag=direct conv=fsync status=none
sync "$SCRATCH/below.img"
full=$(data_bytes "$SCRATCH/below.img")
expect "data after 32 MiB were written" $((full >= 32 << 20)) 1
sum=$(dd if="$device" bs=1M skip=16 count=16 iflag=direct status=none | sha256sum)
blkdiscard -o 0 -l $((16 << 20)) "$device"
zeroes 0 16 || die "discarded blocks of a block device are not zeroes"
expect "hole below the block device" $((full - $(data_bytes "$SCRATCH/below.img") >= 15 << 20)) 1
expect "the blocks behind the hole" "$(dd if="$device" bs=1M skip=16 count=16 iflag=direct status=none | sha256sum)" "$sum"
disconnect
stop
losetup -d "$loop"

# One that discards, but would not tell that the blocks are zeroes then: the host is not offered what could leave data.
modprobe null_blk nr_devices=0
null=/sys/kernel/config/nullb/nvlanediscards
mkdir "$null"
echo 64 >"$null/size"
echo 1 >"$null/memory_backed"
echo 1 >"$null/discard"
echo 1 >"$null/power"
below=/dev/nullb$(<"$null/index")
[[ -b $below ]] || below=/dev/nvlanediscards
queue=/sys/block/${below#/dev/}/queue
expect "whether $below discards" $(($(<"$queue/discard_max_bytes") > 0)) 1
expect "bytes that $below zeroes without data" "$(<"$queue/write_zeroes_max_bytes")" 0
serve "$below"
connect
device=$(namespace 1)
expect "bytes discarded at once, of what does not zero" "$(<"/sys/block/${device#/dev/}/queue/discard_max_bytes")" 0
nvme id-ctrl "/dev/$(controllers)" -o json >"$WORK/ctrl.json"
expect_json "$WORK/ctrl.json" '((.oncs / 4) | floor) % 2' 0
dd if=/dev/urandom of="$device" bs=1M count=16 oflag=direct conv=fsync status=none
fails blkdiscard "$device"
# Zeroes are written, then.
blkdiscard -z -o 0 -l $((8 << 20)) "$device"
zeroes 0 8 || die "blkdiscard -z left something on $below"
disconnect
stop
echo 0 >"$null/power"
rmdir "$null"
