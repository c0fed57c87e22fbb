#!/bin/bash
# _power_cut.sh ROUND cut|last kept|lost: one boot of `guest/power-cut` (xtask/src/guest/power_cut.rs).
# Checks what the round before was promised, then writes until the power is cut. With `lost` the server ignores Flush
# and FUA, and durable writes must be missing: those to blocks that had no room in the file before, which the file
# system's journal is needed for. What overwrites blocks of a file is on its disk at once either way.
echo "round $1 begins"
. "$(dirname "$0")/harness.sh"
round=$1
previous=$((round - 1))
wanted=$3
if [[ $wanted == lost ]]; then
    NVLANE=$NVLANE_MUTANTS
    export NVLANE_MUTANT=ignore-flush,ignore-fua
fi

# Writes that are made durable by Flush go to one file system, those with FUA to another: the journal of a file system
# is written for all of its files at once. By itself it is written long after the power is gone.
mkdir -p "$WORK"
mount -t tmpfs tmpfs "$WORK"
for disk in /dev/vda:/mnt/flush /dev/vdb:/mnt/fua; do
    mkdir -p "${disk#*:}"
    if ((round == 0)); then
        mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 "${disk%:*}"
    fi
    mount -o commit=600 "${disk%:*}" "${disk#*:}"
done
serve "file:/mnt/flush/v.img?size=64M&create" "file:/mnt/fua/v.img?size=64M&create"
connect -i 2

# check NSID LEDGER AT_LEAST: whether what the ledger notes is on the namespace is as wanted
check() {
    local said got=kept
    said=$("$XTASK" ledger verify --device "$(namespace "$1")" --ledger "$SHARE/$2" --at-least "$3" 2>&1) || got=lost
    echo "$said"
    # Lost for the right reason: not because nothing was written, or nothing could be read.
    [[ $got == kept || $said == *"lost a durable write"* ]] || die "$2: $said"
    expect "what $2 notes is" "$got" "$wanted"
}
if ((round > 0)); then
    check 1 "ledger-$previous" 50
    check 2 "ledger-$previous-fua" 1
fi
if [[ $2 == last ]]; then
    disconnect
    stop
    umount /mnt/flush /mnt/fua
    e2fsck -fn /dev/vda
    e2fsck -fn /dev/vdb
    exit 0
fi
"$XTASK" ledger write --device "$(namespace 2)" --ledger "$SHARE/ledger-$round-fua" --seconds 600 \
    --seed $((round + 1)) --by fua --threads 2 &
writers=($!)
"$XTASK" ledger write --device "$(namespace 1)" --ledger "$SHARE/ledger-$round" --seconds 600 \
    --seed $((round + 1)) &
writers+=($!)
echo "@writing"
# Both write until the power is cut: the first to end has failed.
wait -n "${writers[@]}" || true
die "a writer has ended"
