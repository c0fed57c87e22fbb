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
truncate -s 1G "$source"
for ((at = 0; at < 64; at++)); do echo "pwrite -q -b 1m -S $((at + 1)) $((at * 15))m 4m"; done >"$WORK/writes"
xfs_io "$source" <"$WORK/writes" >/dev/null
sync -f /mnt/test

used() { sync -f /mnt/test && df --output=used -B1 /mnt/test | tail -n 1; }
[[ $(data_bytes "$source") -ge $((256 << 20)) ]] || die "$(data_bytes "$source") bytes"
before=$(used)
"$NVLANE" copy --create --fast-only "$source" "$clone" >"$WORK/said" || die "$(cat "$WORK/said")"
expect_match "what was said" "$(cat "$WORK/said")" "copied where it lies"
expect "the clone's size" "$(stat -c %s "$clone")" $((1 << 30))
cmp "$source" "$clone"
((($(used) - before) < 32 << 20)) || die "it took $(($(used) - before)) bytes"
kept=$(data_bytes "$clone")
((kept <= 300 << 20)) || die "holes are filled: $kept bytes"

# What is written to one is not seen by the other.
xfs_io -c "pwrite -q -S 0xaa 0 4m" "$clone"
head -c 4M /dev/zero | tr '\0' '\1' | cmp -n $((4 << 20)) - "$source"
cmp -i $((15 << 20)) -n $((4 << 20)) "$source" "$clone"

# Beside the data: a target copies from one of its files to another, and within one.
truncate -s 512M /mnt/test/far.img
serve "$source" /mnt/test/far.img
remote="tcp://127.0.0.1:$PORT/$NQN"
before=$(used)
"$NVLANE" copy --fast-only "$remote?ns=1@+512M" "$remote?ns=2" >"$WORK/said" || die "$(cat "$WORK/said")"
"$NVLANE" copy --fast-only "$remote?ns=2@+4M" "$remote?ns=2@16M" >"$WORK/said" || die "$(cat "$WORK/said")"
cmp -n $((16 << 20)) "$source" /mnt/test/far.img
cmp -i 0:$((16 << 20)) -n $((4 << 20)) "$source" /mnt/test/far.img
cmp -i $((20 << 20)) -n $((492 << 20)) "$source" /mnt/test/far.img
((($(used) - before) < 32 << 20)) || die "it took $(($(used) - before)) bytes"
stop
