#!/bin/bash
# limit: 240
# kernel: newest
# devices: usual
# Random Copies against a model in memory (crates/namespace/tests/copy), where files share blocks, on XFS, and on NVMe
# namespaces: one with Copy, by its character device and by its block device, and one without.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"
MODEL=${COPY_MODEL:?the tests of Copy of crates/namespace}
operations=$((FULL ? 5000 : 200))
seed=$((FULL ? $(date +%s) : 3))

# model MEANS [VARIABLE=VALUE]...: passes only if Copies met all of those means
model() {
    env COPY_OPERATIONS=$operations COPY_SEED=$seed COPY_MEANS="$1" TMPDIR="$WORK" "${@:2}" \
        "$MODEL" --exact model::copies_leave_what_the_model_says --nocapture >"$WORK/said" 2>&1 ||
        die "seed $seed, $*: $(tail -n 40 "$WORK/said")"
    says "$WORK/said" '^test result: ok. 1 passed' || die "it did not run: $(<"$WORK/said")"
    grep 'operations from seed' "$WORK/said"
}

truncate -s 1G "$SCRATCH/xfs.img"
mkfs.xfs -q -m reflink=1 "$SCRATCH/xfs.img"
mount -o loop "$SCRATCH/xfs.img" /mnt/test
trap 'umount /mnt/test' EXIT
model memory,file,shared,moved,delay,rate COPY_DIRECTORY=/mnt/test
umount /mnt/test

# What is read and written on the one without goes by the kernel's own host to its own target. Blocks of all are of one size.
plain=$(device nvlane-plain 1)
truncate -s 64M "$SCRATCH/without.img"
loop=$(losetup --show -f "$SCRATCH/without.img")
trap 'losetup -d "$loop"' EXIT
kernel_serve "$loop"
trap 'disconnect; kernel_stop; losetup -d "$loop"' EXIT
connect
without=$(namespace 1)
without=/dev/ng${without#/dev/nvme}
await 20 test -c "$without"
model device,block,without,moved,delay,rate COPY_DEVICES="$plain,/dev/nvme${plain#/dev/ng},$without"
