#!/bin/bash
# limit: 180
# Copy between namespaces of one subsystem (formats 2h and 3h), by kernels that let root enable these by hand. Newer ones, of
# which 7.3 is one, refuse Set Features for Host Behavior Support, and are asked for no more than that they say so.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_copy.sh"

serve "mem:40M?bs=512" "mem:40M?bs=4096" "file:$SCRATCH/a.img?size=24M&create&bs=512"
connect
controller=/dev/$(controllers)

nvme admin-passthru "$controller" -o 0x0a --cdw10=0x16 -r -l 512 -b >"$WORK/behavior"
expect "formats enabled at first" "$(od -An -tx1 -j 4 -N 1 "$WORK/behavior" | xargs)" 00
printf '\x0c' | dd of="$WORK/behavior" bs=1 seek=4 conv=notrunc status=none
enable() { nvme admin-passthru "$controller" -o 0x09 --cdw10=0x16 -w -l 512 -i "$WORK/behavior" 2>&1; }

for nsid in 1 3; do
    device=$(namespace $nsid)
    head -c 24M /dev/urandom | dd of="$device" bs=1M oflag=direct status=none iflag=fullblock
done
# Not before they are enabled.
nsid=1 device=$(namespace 1)
range 0 8 3 >"$WORK/one"
refused_list 2 "$WORK/one" $((0x200))
range 0 8 3 >"$WORK/one" && zeroes 8 >>"$WORK/one"
refused_list 2 "$WORK/one" $((0x300))

if ! said=$(enable); then
    read -r major minor < <(uname -r | tr . ' ' | cut -d' ' -f1,2)
    ((major >= 7)) || die "Linux $major.$minor does not let root enable formats 2h and 3h: $said"
    expect_match "Set Features, Host Behavior" "$said" "Permission denied"
    disconnect
    stop
    exit
fi
nvme admin-passthru "$controller" -o 0x0a --cdw10=0x16 -r -l 512 -b | cmp - "$WORK/behavior"
for nsid in 1 3; do
    device=$(namespace $nsid)
    other=$((4 - nsid))
    source=$(namespace $other)
    { range 4000 8 $other && range 16 8 $nsid && range 0 1000 $other; } >"$WORK/three"
    given "$WORK/three" $((0x202)) 20000
    blocks "$device" 20000 8 | cmp - <(blocks "$source" 4000 8)
    blocks "$device" 20008 8 | cmp - <(blocks "$device" 16 8)
    blocks "$device" 20016 1000 | cmp - <(blocks "$source" 0 1000)
    { range 0 8 $other && zeroes 8; } >"$WORK/one"
    given "$WORK/one" $((0x300)) 30000
    blocks "$device" 30000 8 | cmp - <(blocks "$source" 0 8)
    # Of other blocks.
    range 0 8 2 >"$WORK/one"
    refused_list 185 "$WORK/one" $((0x200)) 30000
    # One that could be there, and one that could not.
    range 0 8 9 >"$WORK/one"
    refused_list 2 "$WORK/one" $((0x200)) 30000
    range 0 8 8193 >"$WORK/one"
    refused_list b "$WORK/one" $((0x200)) 30000
    # Over itself.
    range 29999 2 $nsid >"$WORK/one"
    refused_list 187 "$WORK/one" $((0x200)) 30000
    blocks "$device" 30000 8 | cmp - <(blocks "$source" 0 8)
done
ctl stats -o json >"$WORK/stats.json"
expect_json "$WORK/stats.json" '[.namespaces[0, 2] | .copies == 2 and .copied_bytes == 1024 * 512] | all' true
disconnect
stop
