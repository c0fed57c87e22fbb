#!/bin/bash
# limit: 240
# A server on a machine that refuses io_uring (the sysctl, as some distributions set it): it says so, and file systems, random
# requests of all sizes, holes, and kills under writes are as they are with it.
. "$(dirname "$0")/harness.sh"

disabled=/proc/sys/kernel/io_uring_disabled
[[ -e $disabled ]] || lacks "kernel.io_uring_disabled (Linux 6.6)"
echo 2 >"$disabled"
restore() { echo 0 >"$disabled"; }
trap restore EXIT

volumes=("file:$SCRATCH/n1.img?size=512M&create" mem:128M "file:$SCRATCH/n2.img?size=64M&create")
serve "${volumes[@]}"
says "$WORK/serve.log" 'WARN io_uring is not used: .*kernel.io_uring_disabled is 2' || die "no word of it: $(<"$WORK/serve.log")"
# What nothing else can do says who is in the way.
if modprobe ublk_drv 2>/dev/null; then
    fails "$NVLANE" ublk add mem:1M >"$WORK/said"
    says "$WORK/said" 'kernel.io_uring_disabled is 2' || die "ublk add: $(<"$WORK/said")"
fi
connect -i 2 --reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=5
disk=$(namespace 1)
fails "$NVLANE" cat "/dev/ng${disk#/dev/nvme}" >"$WORK/said"
says "$WORK/said" 'kernel.io_uring_disabled is 2' || die "cat of a character device: $(<"$WORK/said")"
mkfs.xfs -q -f "$disk"
mount "$disk" /mnt/test
head -c 64M /dev/urandom >/mnt/test/big
sum=$(sha256sum </mnt/test/big)
umount /mnt/test
xfs_repair -n "$disk" 2>/dev/null || die "xfs is not clean"
mount "$disk" /mnt/test
expect "what was written" "$(sha256sum </mnt/test/big)" "$sum"
rm /mnt/test/big
umount /mnt/test
verified_io "$disk" 32M
verified_io "$(namespace 2)" 32M
before=$(data_bytes "$SCRATCH/n1.img")
blkdiscard "$disk"
expect "blkdiscard has made holes" $((before - $(data_bytes "$SCRATCH/n1.img") >= 16 << 20)) 1

# Killed under writes: what was acknowledged and flushed is there.
"$XTASK" ledger write --device "$(namespace 3)" --ledger "$WORK/flush" --seconds 3600 --blocks 1024 --read-back &
writer=$!
noted_since() { (($(cat "$WORK/flush" 2>/dev/null | wc -l) > $1)); }
for round in 1 2; do
    await 60 noted_since "$(($(cat "$WORK/flush" 2>/dev/null | wc -l) + 20))"
    kill_server
    serve "${volumes[@]}"
    await 60 is_live "$(controllers)"
    "$XTASK" ledger verify --device "$(namespace 3)" --ledger "$WORK/flush" --at-least 20 >"$WORK/verdict" \
        || die "round $round: $(<"$WORK/verdict")"
    kill -0 "$writer" || die "round $round: the writer saw an error"
done
kill "$writer"
wait "$writer" || true
disconnect
stop
