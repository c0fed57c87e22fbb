#!/bin/bash
# limit: 300
# Copies on btrfs: references are made, by `nvlane copy` and by a target between its files, and nothing is moved.
. "$(dirname "$0")/harness.sh"

truncate -s 3G "$SCRATCH/btrfs.img"
mkfs.btrfs -q "$SCRATCH/btrfs.img" >/dev/null
mount -o loop "$SCRATCH/btrfs.img" /mnt/test
trap 'umount /mnt/test' EXIT
source=/mnt/test/source.img
clone=/mnt/test/clone.img
truncate -s 256M "$source"
for ((at = 0; at < 64; at++)); do echo "pwrite -q -b 1m -S $((at + 1)) $((at * 4))m 1m"; done >"$WORK/writes"
xfs_io "$source" <"$WORK/writes" >/dev/null
sync -f /mnt/test

used() { sync -f /mnt/test && df --output=used -B1 /mnt/test | tail -n 1; }
[[ $(data_bytes "$source") -ge $((64 << 20)) ]] || die "$(data_bytes "$source") bytes"
before=$(used)
"$NVLANE" copy --create --fast-only "$source" "$clone" >"$WORK/said" || die "$(<"$WORK/said")"
expect_match "what was said" "$(<"$WORK/said")" "copied where it lies"
expect "the clone's size" "$(stat -c %s "$clone")" $((256 << 20))
cmp "$source" "$clone"
((($(used) - before) < 16 << 20)) || die "it took $(($(used) - before)) bytes"
kept=$(data_bytes "$clone")
((kept <= 80 << 20)) || die "holes are filled: $kept bytes"

# What it is going to be is told before. Another file system only copies, and between two of them nobody does.
shared='^Copy: blocks are shared \(FICLONERANGE\), or copy_file_range$'
truncate -s 1M "$SCRATCH/one.img" "$SCRATCH/two.img"
expect_match "the means of two files" "$(means "$source" "$clone")" "$shared"
expect_match "the means of one" "$(means "$source" "$source")" "$shared"
expect "the means on ext4" "$(means "$SCRATCH/one.img" "$SCRATCH/two.img")" "Copy: copy_file_range"
expect "the means between both" "$(means "$SCRATCH/one.img" "$clone")" "Copy: read and written beside the target"

# What is written to one is not seen by the other.
xfs_io -c "pwrite -q -S 0xaa 0 1m" "$clone"
cmp -n $((1 << 20)) "$source" <(head -c 1M /dev/zero | tr '\0' '\1')
cmp -i $((4 << 20)) -n $((1 << 20)) "$source" "$clone"

# Beside the data: a target copies from one of its files to another, and within one.
truncate -s 128M /mnt/test/far.img
serve "$source" /mnt/test/far.img
remote="tcp://127.0.0.1:$PORT/$NQN"
before=$(used)
"$NVLANE" copy --fast-only "$remote?ns=1@+128M" "$remote?ns=2" >"$WORK/said" || die "$(<"$WORK/said")"
"$NVLANE" copy --fast-only "$remote?ns=2@+4M" "$remote?ns=2@16M" >"$WORK/said" || die "$(<"$WORK/said")"
cmp -n $((16 << 20)) "$source" /mnt/test/far.img
cmp -i 0:$((16 << 20)) -n $((4 << 20)) "$source" /mnt/test/far.img
cmp -i $((20 << 20)) -n $((108 << 20)) "$source" /mnt/test/far.img
((($(used) - before) < 16 << 20)) || die "it took $(($(used) - before)) bytes"
stop
