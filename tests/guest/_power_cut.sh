#!/bin/bash
# _power_cut.sh ROUND cut|last: one boot of `guest/power-cut` (xtask/src/guest/power_cut.rs).
# Checks what the round before was promised, then writes until the power is cut.
. "$(dirname "$0")/harness.sh"
round=$1
previous=$((round - 1))

mkdir -p /mnt/disk "$WORK"
if ((round == 0)); then
    mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 /dev/vda
fi
mount /dev/vda /mnt/disk
mount -t tmpfs tmpfs "$WORK"
serve "file:/mnt/disk/flush.img?size=64M&create" "file:/mnt/disk/fua.img?size=64M&create"
connect -i 2
if ((round > 0)); then
    "$XTASK" ledger verify --device "$(namespace 1)" --ledger "$SHARE/ledger-$previous" --at-least 50
    "$XTASK" ledger verify --device "$(namespace 2)" --ledger "$SHARE/ledger-$previous-fua" --at-least 1
fi
if [[ $2 == last ]]; then
    disconnect
    stop
    umount /mnt/disk
    e2fsck -fn /dev/vda
    exit 0
fi
"$XTASK" ledger write --device "$(namespace 2)" --ledger "$SHARE/ledger-$round-fua" --seconds 600 \
    --seed $((round + 1)) --by fua --threads 2 &
echo "@writing"
"$XTASK" ledger write --device "$(namespace 1)" --ledger "$SHARE/ledger-$round" --seconds 600 \
    --seed $((round + 1))
