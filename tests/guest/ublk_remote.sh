#!/bin/bash
# limit: 720
# A remote volume as a block device, its requests' pages sent and received as they are: requests of all sizes over
# one path that is lost and comes back, then a file system over two, which lives through the loss of either,
# and what it wrote is in the target's file.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
# connected PORT: whether the ublk server has a connection there
connected() { [[ $(ss -Htnp state established "dport = :$1") == *"pid=$UBLK_SERVER,"* ]]; }

# data_path: by which way the device's data goes
data_path() { "$NVLANE" ublk list -o json | jq -r '.devices[0].data_path'; }

best="user copy"
has_feature AUTO_BUF_REG && best="zero copy"
second=$((PORT + 1))
image=$SCRATCH/remote.img
serve "$image?size=192M&create" --listen "127.0.0.1:$second"

# Of all sizes by one path, which is lost meanwhile, and makes the requests wait.
ublk_add "tcp://127.0.0.1:$PORT/$NQN?ns=1" -d 16
expect "the way of data" "$(data_path)" "$best"
fio --name=sizes --filename="$DEVICE" --size=48M --rw=randwrite --bsrange=512-1M --direct=1 --ioengine=libaio --iodepth=16 \
    --verify=crc32c --verify_fatal=1 --loops=$((FULL ? 3 : 2)) --output-format=json --output="$WORK/sizes.json" &
load=$!
lost=0
for _ in 1 2 3; do
    sleep 1.5
    kill -0 "$load" 2>/dev/null || break
    lost=$((lost + 1))
    ctl listener remove "127.0.0.1:$PORT"
    sleep 0.5
    ctl listener add "127.0.0.1:$PORT"
    await 30 connected "$PORT"
done
wait "$load" || die "fio: $(tail -n 30 "$WORK/sizes.json")"
((lost > 0)) || die "it had ended before the path was lost"
expect_json "$WORK/sizes.json" '[.jobs[].error] | add' 0
ublk_stop
# Who wants the data checked by digests has it copied.
ublk_add "tcp://127.0.0.1:$PORT/$NQN?ns=1&data_digest" -d 4
expect "the way of data with digests" "$(data_path)" "$("$NVLANE" ublk features -o json | jq -r .data_path.others)"
dd if="$DEVICE" of=/dev/null bs=1M count=4 iflag=direct status=none
ublk_stop

ublk_add "tcp://127.0.0.1:$PORT,127.0.0.1:$second/$NQN?ns=1" -q 2 -d 32 --recover
expect "the way of data by two paths" "$(data_path)" "$best"
mkfs.ext4 -q "$DEVICE"
mount "$DEVICE" /mnt/test
fio --name=load --directory=/mnt/test --size=24M --rw=randwrite --bs=16k --direct=1 --ioengine=libaio --iodepth=16 \
    --verify=crc32c --verify_fatal=1 --verify_backlog=64 --time_based --runtime=900 --output-format=json --output="$WORK/load.json" &
load=$!
for port in "$PORT" "$second"; do
    sleep 1
    kill -0 "$load" 2>/dev/null || die "it has ended before the path by $port is lost: $(tail -n 30 "$WORK/load.json")"
    ctl listener remove "127.0.0.1:$port"
    sleep 1
    ctl listener add "127.0.0.1:$port"
    # The path is back before the other one goes.
    await 30 connected "$port"
done
await 60 heeds "$load"
kill -INT "$load"
# 128: by the signal, of which it says something before the JSON.
wait "$load" || (($? == 128)) || die "fio: $(tail -n 30 "$WORK/load.json")"
sed -i '/^{/,$!d' "$WORK/load.json"
# Both paths are seen by whoever asks the device, and another policy is taken at once.
"$NVLANE" paths "$DEVICE" -o json >"$WORK/paths.json"
expect_json "$WORK/paths.json" '.volumes | length' 1
expect_json "$WORK/paths.json" '.volumes[0] | [.nqn, .nsid, (.paths | length), ([.paths[] | .selections > 0] | all)] | @csv' "\"$DEVICE\",1,2,true"
"$NVLANE" ctl --socket "/run/nvlane/ublk-$ID.sock" volume tune 1 policy=round-robin >"$WORK/tuned"
"$NVLANE" paths "$DEVICE" -o json >"$WORK/paths.json"
expect_json "$WORK/paths.json" '.volumes[0].policy' round-robin
said=$(fails "$NVLANE" ctl --socket "/run/nvlane/ublk-$ID.sock" volume tune 2 policy=numa)
expect_match "another volume than the only one" "$said" 'has one volume, which is number 1'
expect_match "the volume that a successor takes" "$("$NVLANE" ublk list)" 'policy=round-robin'
expect_json "$WORK/load.json" '[.jobs[].error] | add' 0
dd if=/dev/urandom of=/mnt/test/data bs=1M count=32 conv=fsync status=none
sum=$(sha256sum </mnt/test/data)
kill -KILL "$UBLK_SERVER"
wait "$UBLK_SERVER" 2>/dev/null || true
: >"$WORK/recover.log"
"$NVLANE" ublk recover "$ID" >"$WORK/recover.log" 2>&1 </dev/null &
UBLK_SERVER=$!
ublk_ready "$WORK/recover.log"
echo 3 >/proc/sys/vm/drop_caches
expect "the file after a killed server" "$(sha256sum </mnt/test/data)" "$sum"
umount /mnt/test
ublk_stop

# In one step, in the background.
volume="tcp://127.0.0.1:$PORT,127.0.0.1:$second/$NQN?ns=1"
DEVICE=$("$NVLANE" attach "$volume" -q 2)
expect_match "what attach prints" "$DEVICE" '^/dev/ublkb[0-9]+$'
mount -o ro "$DEVICE" /mnt/test
expect "the file, attached" "$(sha256sum </mnt/test/data)" "$sum"
umount /mnt/test
"$NVLANE" detach "$volume"
await 30 test ! -e "$DEVICE"
said=$(fails "$NVLANE" attach "file:$SCRATCH/absent.img")
expect_match "attaching what is not there" "$said" 'absent.img'

# A device that is taken away has its number until its server has flushed, here to a target that is silent for a while: that
# server would take away another one that had it.
ublk_add "tcp://127.0.0.1:$PORT/$NQN?ns=1" -n 9
dd if="$DEVICE" of="$WORK/block" bs=4k count=1 skip=1000 iflag=direct status=none
dd if="$WORK/block" of="$DEVICE" bs=4k count=1 seek=1000 oflag=direct conv=notrunc status=none
kill -STOP "$SERVER"
"$NVLANE" ublk del 9 &
deleting=$!
await 30 test ! -e /dev/ublkc9
said=$(fails "$NVLANE" ublk add mem:16M -n 9 --background)
expect_match "a number whose server still flushes" "$said" 'ublkb9 is deleted, and its server has not ended'
kill -CONT "$SERVER"
wait $deleting || die "taking the device away"
wait "$UBLK_SERVER" || true
"$NVLANE" ublk add mem:16M -n 9 --background >"$WORK/next"
pause 1
dd if=/dev/ublkb9 of=/dev/null bs=4k count=1 iflag=direct status=none
"$NVLANE" ublk del 9
stop
fsck.ext4 -fn "$image" >"$WORK/fsck" 2>&1 || die "fsck of the target's file: $(<"$WORK/fsck")"
modprobe -r ublk_drv
