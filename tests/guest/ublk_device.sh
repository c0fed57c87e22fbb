#!/bin/bash
# limit: 420
# processors: 2
# What block/003 to 012 of blktests ask of any block device, of /dev/ublkbN: discards of random ranges under
# direct I/O, the scheduler and the queue's settings changed under load, processors that go and come, a page cache that
# does not outlive what is discarded, read-only devices that refuse writes; and sysfs read while the device goes.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
seconds=$((FULL ? 30 : 3))

# load NAME OPTION...: fio in the background, whose process is LOAD
load() {
    local name=$1
    shift
    fio --name="$name" --filename="$DEVICE" --ioengine=libaio --iodepth=16 --bs=4k --size=64M --time_based \
        --runtime=$seconds --output-format=json --output="$WORK/$name.json" "$@" &
    LOAD=$!
}
loaded() {
    wait "$LOAD" || die "fio: $(tail -n 30 "$WORK/$1.json")"
    expect_json "$WORK/$1.json" '[.jobs[].error] | add' 0
    echo "$1: $(jq '[.jobs[0].read, .jobs[0].write, .jobs[0].trim | .total_ios] | add' "$WORK/$1.json") requests"
}

truncate -s 256M "$SCRATCH/device.img"
ublk_add "$SCRATCH/device.img" -q 2 -d 64
queue=/sys/block/${DEVICE##*/}/queue

# block/003: discards alone; block/004: many small writes, each made durable.
load discards --rw=randtrim --direct=1 --number_ios=4000
loaded discards
load synced --rw=randwrite --direct=1 --fdatasync=1
loaded synced
# Discards, reads and writes in the same place at once.
load mixed --rw=randtrimwrite --direct=1
loaded mixed

# block/005: the queue's settings change under load; the largest request, too.
load settings --rw=randrw --direct=1 --bssplit=4k/60:128k/40
largest=$(<"$queue/max_hw_sectors_kb")
while kill -0 "$LOAD" 2>/dev/null; do
    for scheduler in $(tr -d '[]' <"$queue/scheduler"); do
        echo "$scheduler" >"$queue/scheduler"
    done
    for nomerges in 0 1 2; do echo $nomerges >"$queue/nomerges"; done
    for most in 4 64 "$largest"; do echo "$most" >"$queue/max_sectors_kb"; done
    for count in 4 32; do echo $count >"$queue/nr_requests" 2>/dev/null || true; done
done
loaded settings
expect "the largest request" "$(<"$queue/max_sectors_kb")" "$largest"

# block/008: processors go and come under load.
if [[ -e /sys/devices/system/cpu/cpu1/online ]]; then
    load processors --rw=randread --direct=1
    while kill -0 "$LOAD" 2>/dev/null; do
        echo 0 >/sys/devices/system/cpu/cpu1/online
        sleep 0.2
        echo 1 >/sys/devices/system/cpu/cpu1/online
        sleep 0.2
    done
    loaded processors
fi

# Through the page cache, and what is read back.
load cached --rw=randwrite --fsync_on_close=1
loaded cached
verified_io "$DEVICE" 16M

# block/009: what is discarded is gone from the page cache, too, and nothing else. The last one to close a device empties
# that, so it is kept open.
part() { dd if="$DEVICE" bs=1M skip="$1" count=4 status=none "${@:2}" | sha256sum; }
random() { dd if="$WORK/random" bs=1M skip="$1" count=4 status=none | sha256sum; }
exec 8<>"$DEVICE"
dd if=/dev/urandom of="$WORK/random" bs=1M count=12 iflag=fullblock status=none
dd if="$WORK/random" of="$DEVICE" bs=1M conv=notrunc,fsync status=none
expect "what is cached before" "$(part 4)" "$(random 4)"
blkdiscard --offset 4M --length 4M "$DEVICE"
for first in 0 4 8; do
    expect "MiB $first on, cached beside direct" "$(part $first)" "$(part $first iflag=direct)"
done
expect "what was discarded" "$(part 4)" "$(head -c 4M /dev/zero | sha256sum)"
expect "what is before it" "$(part 0)" "$(random 0)"
expect "what is behind it" "$(part 8)" "$(random 8)"
exec 8>&-
ublk_stop

# block/012: nothing is written to what is read-only.
sum=$(sha256sum <"$SCRATCH/device.img")
ublk_add "$SCRATCH/device.img" --read-only
expect "read-only" "$(blockdev --getro "$DEVICE")" 1
said=$(fails dd if=/dev/zero of="$DEVICE" bs=4k count=1 oflag=direct conv=notrunc status=none)
expect_match "writing to it" "$said" 'not permitted|Read-only'
said=$(fails blkdiscard "$DEVICE")
said=$(fails mkfs.ext4 -q "$DEVICE")
ublk_stop
expect "the file" "$(sha256sum <"$SCRATCH/device.img")" "$sum"

# sysfs is read while devices come and go.
for ((round = 0; round < ROUNDS; round++)); do
    ublk_add mem:32M -q 2 -d 16
    # Somebody reads to the end of the device.
    (while :; do cat "$queue"/* "/sys/block/${DEVICE##*/}/stat" || true; done >/dev/null 2>&1) &
    reader=$!
    dd if="$DEVICE" of=/dev/null bs=64k status=none 2>/dev/null &
    copier=$!
    "$NVLANE" ublk del --force "$ID"
    wait "$UBLK_SERVER" || die "the server did not end well: $(<"$WORK/ublk.log")"
    wait "$copier" || true
    kill "$reader"
    wait "$reader" 2>/dev/null || true
    expect "the device after del" "$(ls "$DEVICE" 2>/dev/null)" ""
done
expect "what the kernel complains about" "$(dmesg | grep -E 'BUG:|WARNING:|hung_task|INFO: task' || true)" ""
modprobe -r ublk_drv
