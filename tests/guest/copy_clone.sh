#!/bin/bash
# limit: 300
# A clone of a volume of 100 GiB with 4 GiB in a thousand extents (64 MiB in the everyday run), on XFS: references
# are made and nothing is moved, in under two seconds.
. "$(dirname "$0")/harness.sh"

extents=1024
extent=$((FULL ? 4096 : 64))
truncate -s 6G "$SCRATCH/xfs.img"
mkfs.xfs -q -m reflink=1 "$SCRATCH/xfs.img"
mount -o loop "$SCRATCH/xfs.img" /mnt/test
trap 'umount /mnt/test' EXIT
source=/mnt/test/source.img
clone=/mnt/test/clone.img
truncate -s 100G "$source"
for ((at = 0; at < extents; at++)); do echo "pwrite -q -b 4m -S $((at % 251 + 1)) $((at * 99))m ${extent}k"; done >"$WORK/writes"
xfs_io "$source" <"$WORK/writes" >/dev/null
sync -f /mnt/test

# map FILE: which bytes are where on the disk
map() { xfs_bmap "$1" | tail -n +2 | grep -v hole; }
used() { df --output=used -B1 /mnt/test | tail -n 1; }
[[ $(map "$source" | wc -l) -ge 1000 ]] || die "$(map "$source" | wc -l) extents"
[[ $(data_bytes "$source") -ge $((extents * extent << 10)) ]] || die "$(data_bytes "$source") bytes"

before=$(used)
begin=$(date +%s%N)
"$NVLANE" copy --create --fast-only "$source" "$clone" >"$WORK/said" || die "$(<"$WORK/said")"
took=$((($(date +%s%N) - begin) / 1000000))
echo "cloned in $took ms: $(<"$WORK/said")"
expect "the clone's size" "$(stat -c %s "$clone")" $((100 << 30))
diff <(map "$source") <(map "$clone") >"$WORK/diff" || die "the clone shares not all: $(head "$WORK/diff")"
# How long it takes on an emulated processor says nothing.
grep -q TCG /proc/cpuinfo || ((took < 2000)) || die "it took $took ms"
((($(used) - before) < 48 << 20)) || die "it took $(($(used) - before)) bytes"

# What is written to either from now on is not seen by the other.
xfs_io -c "pwrite -q -S 0xaa 0 ${extent}k" "$clone"
sync -f /mnt/test
cmp -n $((extent << 10)) "$source" <(head -c ${extent}K /dev/zero | tr '\0' '\1')
cmp -i $((99 << 20)) -n $((extent << 10)) "$source" "$clone"

# That it would was told.
expect "the means" "$(means "$source" "$clone")" "Copy: blocks are shared (FICLONERANGE), or copy_file_range"

# Into a volume that had something: its bytes are gone where the source has holes. (A small one: XFS makes no
# references in parts of the disk that are nearly full.)
truncate -s 256M /mnt/test/small.img /mnt/test/old.img
xfs_io -c "pwrite -q -S 1 0 4m" -c "pwrite -q -S 2 99m 4m" /mnt/test/small.img
xfs_io -c "pwrite -q -S 0xbb 50m 60m" /mnt/test/old.img
"$NVLANE" copy /mnt/test/small.img /mnt/test/old.img >/dev/null
cmp /mnt/test/small.img /mnt/test/old.img
diff <(map /mnt/test/small.img) <(map /mnt/test/old.img) || die "the old volume shares not all"

# Blocks larger than pages, from the middle of one on: XFS does not share those, and they are copied with their holes.
truncate -s 512M "$SCRATCH/large.img"
mkfs.xfs -q -b size=16k -m reflink=1 "$SCRATCH/large.img"
mkdir -p /mnt/large
if mount -o loop "$SCRATCH/large.img" /mnt/large 2>/dev/null; then
    truncate -s 64M /mnt/large/source.img
    xfs_io -c "pwrite -q -S 1 0 4m" -c "pwrite -q -S 2 40m 4m" /mnt/large/source.img
    xfs_io -f -c "pwrite -q -S 0xbb 0 64m" /mnt/large/target.img
    sync -f /mnt/large
    "$NVLANE" copy --no-extents --fast-only /mnt/large/source.img@4K /mnt/large/target.img@4K >/dev/null
    cmp -i 4096 /mnt/large/source.img /mnt/large/target.img
    kept=$(data_bytes /mnt/large/target.img)
    ((kept < 10 << 20)) || die "holes are filled: $kept bytes"
    umount /mnt/large
else
    echo "this kernel has no XFS with blocks of 16 KiB"
fi
