#!/bin/bash
# limit: 120
# The harness itself: the kernel's own target, served and used as the other tests use ours.
NVLANE_PEER=kernel
PORT=4499
. "$(dirname "$0")/harness.sh"

serve "file:$SCRATCH/peer.img?size=256M&create" mem:128M
connect -i 2
device=$(namespace 1)
expect "size" "$(blockdev --getsize64 "$device")" $((256 << 20))
verified_io "$device" 32M
# On a machine that stands still meanwhile, for longer.
for _ in 1 2 3 4 5 6; do
    "$XTASK" ledger write --device "$(namespace 2)" --ledger "$WORK/ledger" --seconds 10 --blocks 256
    (($(wc -l <"$WORK/ledger") < 60)) || break
done
"$XTASK" ledger verify --device "$(namespace 2)" --ledger "$WORK/ledger" --at-least 20
disconnect
expect "controllers left" "$(controllers)" ""
# A checker that cannot fail proves nothing: damage the file below and it must say so.
dd if=/dev/urandom of="$SCRATCH/mem2" bs=4096 seek=0 count=256 conv=notrunc status=none
expect_match "the checker's verdict on a damaged file" \
    "$(fails "$XTASK" ledger verify --device "$SCRATCH/mem2" --ledger "$WORK/ledger")" "lost a durable write"
