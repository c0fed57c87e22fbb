#!/bin/bash
# limit: 240
# kernel: newest
# devices: usual
# Copy that the device carries out: by its character device, by the block device beside it, and for hosts
# of our target; what it cannot do is read and written. And a namespace that is formatted meanwhile.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

plain=$(device nvlane-plain 1)
block=/dev/nvme${plain#/dev/ng}
controller=$(controller_of "$plain")
head -c $((64 * 512)) /dev/urandom >"$WORK/source"

# le NUMBER BYTES: little-endian
le() {
    local number=$1 at
    for ((at = 0; at < $2; at++)); do
        printf "\\x$(printf %02x $((number & 255)))"
        number=$((number >> 8))
    done
}
# range SLBA BLOCKS: a source range of format 0h
range() { le 0 8; le "$1" 8; le $(($2 - 1)) 2; le 0 14; }
# blocks FIRST COUNT: what the device has there
blocks() { dd if="$block" bs=512 skip="$1" count="$2" iflag=direct status=none; }
# copies_at_device SDLBA: how many Copies to there it was given; words 10 and 11 follow each other
copies_at_device() {
    traced_enough
    grep -cE "$controller: .*qid=[1-9].*($(le "$1" 8 | od -An -v -t x1 | tr -d '\n' | sed 's/^ //')|sdlba=$1[, ])" \
        "$TRACE/trace" || true
}

# --- What is used, and what not, is told ---
said() { "$NVLANE" info "$1" | sed -nE 's/^ *copy +//p'; }
expect_match "the character device's" "$(said "$plain")" 'by the device.* 8 ranges of 64 blocks'
expect_match "the block device's" "$(said "$block")" 'by the device.*by ng'
expect_match "the block device's, read-only" "$(said "$block?ro")" 'read-only'
expect_match "the block device's, cached" "$(said "$block?buffered")" 'page cache'
expect_match "with metadata" "$(said "$(device nvlane-plain 2)")" 'metadata'
expect_match "the means within the namespace" "$(means "$plain" "$plain")" '^Copy: by the controller of nqn\..*nvlane-plain$'
expect_match "the same, by the block device" "$(means "$block" "$block")" '^Copy: by the controller of nqn\..*nvlane-plain$'

# --- The device copies, in each way that it has ---
dd if="$WORK/source" of="$block" bs=512 seek=0 oflag=direct conv=notrunc status=none
{ range 0 8 && range 40 24; } >"$WORK/two"
target=$((0x5a00))
for uri in "$plain" "$plain?poll" "$plain?sqpoll" "$block" "linear:($block)"; do
    tracing
    give "$uri" io 0x19 cdw10=$target cdw12=1 data="$WORK/two" >/dev/null
    count=$(copies_at_device $target)
    blocks $target 32 | cmp - <(head -c 4096 "$WORK/source" && tail -c $((24 * 512)) "$WORK/source")
    [[ $count -gt 0 ]] || die "$uri: the device was given no Copy: $(tail -n 20 "$TRACE/trace")"
    target=$((target + 64))
done

# Where io_uring is refused, the block device is there all the same: what is to be copied is read and written.
disabled=/proc/sys/kernel/io_uring_disabled
trap 'echo 0 >"$disabled"' EXIT
echo 2 >"$disabled"
expect_match "the block device's, without io_uring" "$(said "$block" 2>/dev/null)" 'io_uring_disabled is 2'
tracing
give "$block" io 0x19 cdw10=$target cdw12=1 data="$WORK/two" >/dev/null 2>&1
expect "Copies that the device was given without io_uring" "$(copies_at_device $target)" 0
blocks $target 32 | cmp - <(head -c 4096 "$WORK/source" && tail -c $((24 * 512)) "$WORK/source")
echo 0 >"$disabled"
trap - EXIT
target=$((target + 64))

# Where source and destination overlap, it is read and written.
range 0 32 >"$WORK/one"
tracing
give "$plain" io 0x19 cdw10=16 cdw12=0 data="$WORK/one" >/dev/null
expect "overlapping copies at the device" "$(copies_at_device 16)" 0
blocks 16 32 | cmp - <(head -c $((32 * 512)) "$WORK/source")
dd if="$WORK/source" of="$block" bs=512 seek=0 oflag=direct conv=notrunc status=none

# --- Others see it: what they have in the page cache of the block device is dropped ---
exec 3<"$block"
dd if="$block" bs=512 skip=$target count=32 status=none | cmp - <(head -c $((32 * 512)) /dev/zero)
give "$block" io 0x19 cdw10=$target cdw12=0 data="$WORK/one" >/dev/null
dd if="$block" bs=512 skip=$target count=32 status=none | cmp - <(head -c $((32 * 512)) "$WORK/source")
# Of a page as well that is copied to in part.
target=$((target + 64))
dd if="$block" bs=512 skip=$target count=8 status=none | cmp - <(head -c 4096 /dev/zero)
range 0 1 >"$WORK/block"
give "$block" io 0x19 cdw10=$((target + 1)) cdw12=0 data="$WORK/block" >/dev/null
dd if="$block" bs=512 skip=$((target + 1)) count=1 status=none | cmp - <(head -c 512 "$WORK/source")
exec 3<&-
target=$((target + 64))

# --- Hosts of our target ---
for volume in "$plain" "$block"; do
    serve "$volume"
    connect
    tracing
    nvme copy "$(namespace 1)" --sdlba=$target --blocks=31,7 --slbs=0,32
    [[ $(copies_at_device $target) -gt 0 ]] || die "$volume: the device was given no Copy"
    blocks $target 40 | cmp - <(head -c $((40 * 512)) "$WORK/source")
    target=$((target + 64))
    disconnect
    stop
done

# --- More than the device takes at a time (128 blocks in ranges of 64): split, by both formats, and all of it by the device ---
head -c $((512 * 512)) /dev/urandom >"$WORK/long"
dd if="$WORK/long" of="$block" bs=512 seek=40000 oflag=direct conv=notrunc status=none
serve "$plain"
connect
for format in 0 1; do
    target=$((50000 + format * 1000)) count=0
    tracing
    nvme copy "$(namespace 1)" --format=$format --sdlba=$target --blocks=499,11 --slbs=40000,40500
    for ((at = 0; at < 512; at += 64)); do count=$((count + $(copies_at_device $((target + at))))); done
    ((count >= 4)) || die "format $format: only $count Copies at the device: $(tail -n 20 "$TRACE/trace")"
    blocks $target 512 | cmp - "$WORK/long"
done
disconnect
stop

# --- Block devices without Copy: read and written, beside the data where a host asks for it ---
devices=()
for name in one two; do
    truncate -s 48M "$SCRATCH/$name.img"
    devices+=("$(losetup --show -f "$SCRATCH/$name.img")")
done
head -c 20M /dev/urandom >"$WORK/random"
dd if="$WORK/random" of="${devices[0]}" bs=1M oflag=direct status=none
expect_match "a block device's" "$(said "${devices[0]}")" 'read and written|reading and writing'
expect "the means of two" "$(means "${devices[@]}")" "Copy: read and written beside the target"
expect "the means to an NVMe device" "$(means "${devices[0]}" "$plain")" "Copy: read and written beside the target"
"$NVLANE" copy "${devices[0]}" "${devices[1]}" --verify -o json >"$WORK/copied"
cat "$WORK/copied"
cmp -n $((48 << 20)) "${devices[0]}" "${devices[1]}"
serve "${devices[@]}"
connect
nvme copy "$(namespace 1)" --sdlba=50000 --blocks=999,23 --slbs=100,20000
dd if="$(namespace 1)" bs=512 skip=50000 count=1024 iflag=direct status=none |
    cmp - <(dd if="$WORK/random" bs=512 skip=100 count=1000 status=none && dd if="$WORK/random" bs=512 skip=20000 count=24 status=none)
# By our own host, from one of them to the other: nothing comes here.
uri="tcp://127.0.0.1:$PORT/$NQN?ns="
"$NVLANE" copy "${uri}1" "${uri}2" --verify -o json >"$WORK/copied"
cat "$WORK/copied"
disconnect
stop
cmp -n $((48 << 20)) "${devices[0]}" "${devices[1]}"
losetup -d "${devices[@]}"

# --- Formatted by somebody else while it is served: refused until it is opened again ---
formats=$(nvme id-ns "$block" -o json)
other=$(jq '[.lbafs[] | .ds == 12 and .ms == 0] | index(true)' <<<"$formats")
[[ $other != null ]] || die "there is no format of 4096 bytes: $formats"
serve "$plain"
connect
remote=$(namespace 1)
# For whoever comes next.
trap 'nvme format "$block" --lbaf=0 --force' EXIT
nvme format "$block" --lbaf="$other" --force >/dev/null
expect "the block size now" "$(blockdev --getss "$block")" 4096
# It is seen within a second; what the device itself makes of commands until then is its own matter.
told() {
    dd if="$remote" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null
    grep -q 'formatted otherwise' "$WORK/serve.log"
}
await 30 told
fails dd if="$remote" of=/dev/null bs=4096 count=1 iflag=direct
disconnect
stop
serve "$plain"
connect
remote=$(namespace 1)
expect "the block size after it was opened again" "$(blockdev --getss "$remote")" 4096
verified_io "$remote" 16M
disconnect
stop

# --- Formatted by our own admin command: the kernel knows of it at once ---
give "$plain" admin 0x80 nsid=1 cdw10=0 >/dev/null
expect "the block size again" "$(blockdev --getss "$block")" 512
trap - EXIT
give "$plain" io 0x01 cdw10=0 cdw12=63 data="$WORK/source" >/dev/null
blocks 0 64 | cmp - "$WORK/source"
