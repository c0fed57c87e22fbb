#!/bin/bash
# limit: 200
# Snapshots of a file that is served, while a host writes: each is what the volume was at one moment, shares its blocks,
# and stays as it is.
. "$(dirname "$0")/harness.sh"

truncate -s 1G "$SCRATCH/xfs.img"
mkfs.xfs -q -m reflink=1 "$SCRATCH/xfs.img"
mount -o loop "$SCRATCH/xfs.img" /mnt/test
volume=/mnt/test/volume.img
truncate -s 256M "$volume"
xfs_io -c 'pwrite -q -S 7 64m 128m' "$volume"
for block in 0 5000; do printf 10000 | dd of="$volume" bs=4k seek=$block conv=sync,notrunc status=none; done
serve "$volume" mem:8M
connect
device=$(namespace 1)

# Writes a number to one block, then to another: a snapshot has the same number in both, or the next one in the first.
numbers() {
    local block
    for ((number = 10001; ; number++)); do
        for block in 0 5000; do
            printf %s "$number" | dd of="$device" bs=4k seek=$block conv=sync oflag=direct status=none || return
        done
    done
}
numbers &
WRITER=$!
at() { head -c 5 <(tail -c +$(($2 * 4096 + 1)) "$1"); }
has_begun() { (($(at "$volume" 5000) > 10002)); }
await 60 has_begun
used() { df --output=used -B1 /mnt/test | tail -n 1; }
before=$(used)
last=0
has_gone_on() { (($(at "$volume" 0) > last)); }
for round in 1 2 3 4 5; do
    snapshot=/mnt/test/$round.img
    said=$(ctl volume snapshot 1 "$snapshot")
    expect_match "what is said" "$said" "^$snapshot: 256 MiB at one moment"
    first=$(at "$snapshot" 0) second=$(at "$snapshot" 5000)
    ((first == second || first == second + 1)) || die "$first and $second are not of one moment"
    ((first > last)) || die "nothing was written between two snapshots: $last, $first"
    last=$first
    sums[round]=$(md5sum <"$snapshot")
    ((round == 5)) || await 60 has_gone_on
done
kill "$WRITER"
wait "$WRITER" 2>/dev/null || true
WRITER=
(($(used) - before < 16 << 20)) || die "snapshots take $(($(used) - before)) bytes"
cmp -n 1000 -i $((64 << 20)) "$volume" "$snapshot"

# They stay as they are, and are volumes.
dd if=/dev/zero of="$device" bs=1M count=128 oflag=direct status=none
for round in 1 2 3 4 5; do expect "snapshot $round" "$(md5sum </mnt/test/$round.img)" "${sums[round]}"; done
ctl volume add "file:/mnt/test/5.img?ro" >/dev/null
expect "a snapshot that is served" "$(await 30 namespace 3 >/dev/null; dd if="$(namespace 3)" bs=1M iflag=direct status=none | md5sum)" "${sums[5]}"

# What cannot be is told, and nothing is left behind.
expect_match "one that exists" "$(fails ctl volume snapshot 1 "$snapshot")" 'exists'
expect_match "another file system" "$(fails ctl volume snapshot 1 "$SCRATCH/s.img")" 'own file system'
[[ ! -e $SCRATCH/s.img ]] || die "something is left behind"
expect_match "memory" "$(fails ctl volume snapshot 2 /mnt/test/6.img)" 'only a file'

disconnect
stop
umount /mnt/test
