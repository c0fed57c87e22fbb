#!/bin/bash
# limit: 900
# processors: 2
# Volumes as block devices of this kernel: verified I/O on every way of data over files, memory, linear and a
# remote volume, what a device says of itself, file systems, discard and zeroes in the backing file, and how
# devices are listed and taken away. Before that, a machine without the driver.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe -r ublk_drv 2>/dev/null || true
# What cannot be loaded is not advised.
advice='modprobe ublk_drv'
modprobe -n -q ublk_drv || advice='comes without the module ublk_drv; '
for command in "features" "list" "add mem:16M" "del 0"; do
    said=$(fails "$NVLANE" ublk $command)
    expect "lines about a missing driver" "$(wc -l <<<"$said")" 1
    expect_match "what is said of a missing driver" "$said" "$advice"
done

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
"$NVLANE" ublk features
ways=(--copy)
has_feature USER_COPY && ways+=(--user-copy)
batches=
has_feature BATCH_IO && batches=there
direct=()
has_feature AUTO_BUF_REG && direct=(--zero-copy)

# check VOLUME WAY [OPTION]...: verified I/O, as deep as the queues are and shallow, around MIDDLE (in MiB)
check() {
    local volume=$1 way=$2 middle=${MIDDLE:-6}
    shift 2
    ublk_add "$volume" "$way" -q "${QUEUES:-2}" -d 128 "$@"
    grep '^/dev' "$WORK/ublk.log"
    local words=${way#--}
    [[ -z $batches || $* == *--no-batch* ]] || words+=" in batches"
    expect_match "the way of data" "$(<"$WORK/ublk.log")" ", ${words//-/ }, from"
    deep_io $((middle - 6))
    verified_io "$DEVICE" 3M --offset=$((middle - 1))M --iodepth=1 --randseed=2
    [[ $volume != linear:* ]] || expect_joined "$DEVICE" $((middle - 6)) 12 "${parts[@]}"
    ublk_stop
}

parts=("$SCRATCH/a.img" "$SCRATCH/c.img")
truncate -s $(((33 << 20) + 7 * 512)) "$SCRATCH/a.img"
truncate -s 64M "$SCRATCH/b.img" "$SCRATCH/c.img"
serve "$SCRATCH/remote.img?size=128M&create"
remote="tcp://127.0.0.1:$PORT/$NQN?ns=1"
truncate -s 64M "$SCRATCH/loop.img"
modprobe loop
loop=$(losetup -f --show --direct-io=on "$SCRATCH/loop.img")
for way in "${ways[@]}" "${direct[@]}"; do
    check "$SCRATCH/b.img" "$way"
    # Both reads and writes are the ring's by themselves.
    check "$loop" "$way"
    MIDDLE=33 check "linear:($SCRATCH/a.img,$SCRATCH/c.img)" "$way"
    [[ -z $batches ]] || check "$SCRATCH/b.img" "$way" --no-batch
done
losetup -d "$loop"
if [[ -z $batches ]]; then
    said=$(fails "$NVLANE" ublk add mem:16M --batch)
    expect_match "batches on an older kernel" "$said" 'need Linux 7.0'
fi
# The driver gives no batches to queues of one request.
ublk_add "$SCRATCH/b.img" -q 1 -d 1
! grep -q 'in batches' "$WORK/ublk.log" || die "in batches: $(<"$WORK/ublk.log")"
verified_io "$DEVICE" 3M --iodepth=4
ublk_stop
if [[ -n $batches ]]; then
    said=$(fails "$NVLANE" ublk add mem:16M -d 1 --batch)
    expect_match "batches of one request" "$said" 'at least two requests'
fi
for way in "${ways[@]}"; do
    check mem:64M "$way"
    # One queue is lent what it reads.
    QUEUES=1 check mem:64M "$way"
    check "$remote" "$way"
done
for way in "${direct[@]}"; do check "$remote" "$way"; done
check "$SCRATCH/b.img?buffered" "${direct[0]:-${ways[-1]}}"
ublk_add "$SCRATCH/b.img?bs=4096" -q 2
expect "logical block" "$(blockdev --getss "$DEVICE")" 4096
verified_io "$DEVICE" 32M
ublk_stop
if ((${#direct[@]})); then
    said=$(fails "$NVLANE" ublk add mem:16M --zero-copy)
    expect_match "zero copy of memory" "$said" 'zero copy needs'
fi

# What the device says of itself is what the volume says.
image=$SCRATCH/d.img
ublk_add "$image?size=256M&create" -d 16 --max-io 256K
queue=/sys/block/${DEVICE##*/}/queue
expect "size" "$(blockdev --getsize64 "$DEVICE")" $((256 << 20))
expect "logical block" "$(<"$queue/logical_block_size")" 512
expect "physical block" "$(<"$queue/physical_block_size")" 4096
expect "largest request" "$(<"$queue/max_hw_sectors_kb")" 256
expect "write cache" "$(<"$queue/write_cache")" 'write back'
expect "FUA" "$(<"$queue/fua")" 1
expect "discard" "$(($(cat "$queue/discard_max_hw_bytes" 2>/dev/null || cat "$queue/discard_max_bytes") > 0))" 1
"$NVLANE" ublk list -o json >"$WORK/list.json"
expect_json "$WORK/list.json" ".devices[] | select(.id == $ID) | .state" live
expect_json "$WORK/list.json" ".devices[] | select(.id == $ID) | .server" "$UBLK_SERVER"
expect_match "the list" "$("$NVLANE" ublk list)" "$DEVICE +live .*$image"

# Discard and zeroes are seen in the backing file.
dd if=/dev/urandom of="$DEVICE" bs=1M count=64 oflag=direct conv=fsync status=none
full=$(data_bytes "$image")
expect "data after 64 MiB were written" $((full >= 64 << 20)) 1
blkdiscard -o 0 -l $((32 << 20)) "$DEVICE"
expect "hole made by blkdiscard" $((full - $(data_bytes "$image") >= 31 << 20)) 1
cmp -n $((32 << 20)) /dev/zero "$image" || die "discarded blocks are not zeroes"
blkdiscard -z -o $((32 << 20)) -l $((16 << 20)) "$DEVICE"
cmp -n $((16 << 20)) /dev/zero <(tail -c +$(((32 << 20) + 1)) "$image") || die "zeroed blocks are not zeroes"
cmp -n $((16 << 20)) <(tail -c +$(((48 << 20) + 1)) "$image") \
    <(dd if="$DEVICE" bs=1M skip=48 count=16 iflag=direct status=none) || die "the rest is not what the device reads"

# A file system; a device that is in use is left alone.
mkfs.ext4 -q "$DEVICE"
mount "$DEVICE" /mnt/test
dd if=/dev/urandom of=/mnt/test/data bs=1M count=64 conv=fsync status=none
sum=$(sha256sum </mnt/test/data)
if has_feature SAFE_STOP_DEV; then
    said=$(fails "$NVLANE" ublk del "$ID")
    expect_match "deleting what is mounted" "$said" 'unmount'
fi
umount /mnt/test
"$NVLANE" ublk del "$ID"
status=0
wait "$UBLK_SERVER" || status=$?
expect "the server's exit status after del" $status 0
expect "devices after del" "$("$NVLANE" ublk list)" ""
fsck.ext4 -fn "$image" >"$WORK/fsck" 2>&1 || die "fsck of the image: $(<"$WORK/fsck")"

# One over two files, of lengths that do not go together.
linear="linear:($SCRATCH/a.img,$SCRATCH/c.img)"
ublk_add "$linear" -q 2
mkfs.ext4 -q -F "$DEVICE"
mount "$DEVICE" /mnt/test
dd if=/dev/urandom of=/mnt/test/data bs=1M count=56 conv=fsync status=none
over_two=$(sha256sum </mnt/test/data)
umount /mnt/test
fsck.ext4 -fn "$DEVICE" >"$WORK/fsck" 2>&1 || die "fsck over two files: $(<"$WORK/fsck")"
ublk_stop
ublk_add "$linear" -q 2 -d 128
mount "$DEVICE" /mnt/test
expect "what the file holds after all" "$(sha256sum </mnt/test/data)" "$over_two"
umount /mnt/test
deep_io 27
expect_joined "$DEVICE" 27 12 "${parts[@]}"
ublk_stop

ublk_add "$image" --read-only
expect "read-only" "$(blockdev --getro "$DEVICE")" 1
mount -o ro "$DEVICE" /mnt/test
expect "the file, through another device" "$(sha256sum </mnt/test/data)" "$sum"
umount /mnt/test
ublk_stop

# Errors arrive as what they are, where they are, and the device goes on.
ublk_add 'fault:op=read,lba=8192-8199,status=0x281(mem:32M)'
said=$(fails dd if="$DEVICE" of=/dev/null bs=4k skip=1024 count=1 iflag=direct status=none)
expect_match "an unrecovered read" "$said" 'No data available'
expect_match "what the log tells of it" "$(<"$WORK/ublk.log")" "device=$ID command=Read lba=8192 blocks=8 status=Unrecovered Read"
dd if="$DEVICE" of=/dev/null bs=4k skip=1025 count=1 iflag=direct status=none
ublk_stop

# What cannot be is said in one line.
said=$(fails "$NVLANE" ublk add mem:16M -d 5000)
said=$(fails "$NVLANE" ublk recover 77)
expect_match "recovering what there is not" "$said" 'no ublk device 77'
stop
modprobe -r ublk_drv
