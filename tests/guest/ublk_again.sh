#!/bin/bash
# limit: 240
# What a volume refuses for a moment (Command Interrupted) the server tries again, five times, on every way of data: it is
# carried out with the right bytes, and what is refused once more is an error, after which the device goes on.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
ways=(--copy --auto)
has_feature USER_COPY && ways+=(--user-copy)
image=$SCRATCH/again.img
head -c 64K /dev/urandom >"$WORK/one"
head -c 64K /dev/urandom >"$WORK/two"

# refusing OPERATION BLOCK COUNT CHILD: a volume that refuses so many of those that touch 64 KiB from a block on
refusing() { echo "fault:op=$1,lba=$2-$(($2 + 127)),count=$3,status=0x021($4)"; }
# put FILE BLOCK, fetch BLOCK: 64 KiB, in one request
put() { dd if="$1" of="$DEVICE" bs=64k seek=$(($2 / 128)) count=1 oflag=direct conv=notrunc status=none; }
fetch() { dd if="$DEVICE" bs=64k skip=$(($1 / 128)) count=1 iflag=direct status=none; }

for way in "${ways[@]}"; do
    volume="$image?size=32M&create"
    # Not where the kernel looks by itself.
    for operation in write read; do
        volume=$(refusing $operation 16384 5 "$volume")
        volume=$(refusing $operation 24576 6 "$volume")
    done
    ublk_add "$volume" "$way"
    grep '^/dev' "$WORK/ublk.log"
    put "$WORK/one" 16384
    cmp "$WORK/one" <(dd if="$image" bs=64k skip=128 count=1 status=none) || die "$way: other bytes were written"
    cmp "$WORK/one" <(fetch 16384) || die "$way: other bytes were read"

    # Once more than it tries.
    said=$(fails put "$WORK/one" 24576)
    expect_match "$way: a write that is refused six times" "$said" 'Input/output error'
    cmp -n 65536 /dev/zero <(dd if="$image" bs=64k skip=192 count=1 status=none) || die "$way: it was written"
    put "$WORK/two" 24576
    said=$(fails fetch 24576)
    expect_match "$way: a read that is refused six times" "$said" 'Input/output error'
    cmp "$WORK/two" <(fetch 24576) || die "$way: other bytes after an error"
    ublk_stop
    rm "$image"

    # Many at a time, each of which may wait: one in twenty is refused.
    ublk_add "fault:rate=0.05,op=read,op=write,status=0x021,seed=5($image?size=32M&create)" "$way" -q 2
    verified_io "$DEVICE" 16M
    ublk_stop
    rm "$image"
done
modprobe -r ublk_drv
