#!/bin/bash
# limit: 240
# Block devices that are removed while they are served: one of two paths goes and nobody notices; both go, and the target lives; one that
# is no path is not there for hosts, and not full.
. "$(dirname "$0")/harness.sh"

modprobe null_blk nr_devices=0
# made NAME: a device of 256 MiB
made() {
    local null=/sys/kernel/config/nullb/$1 setting
    mkdir "$null"
    for setting in size=256 memory_backed=0 queue_mode=2 irqmode=0; do
        echo "${setting#*=}" >"$null/${setting%=*}"
    done
    echo 1 >"$null/power"
    local device
    device=/dev/nullb$(cat "$null/index")
    [[ -b $device ]] || device=/dev/$1
    [[ -b $device ]] || die "null_blk has no device $1: $(ls /dev)"
    echo "$device"
}
removed() { echo 0 >"/sys/kernel/config/nullb/$1/power"; }

one=$(made one) two=$(made two)
serve "multipath:policy=round-robin($one,$two)" mem:16M
connect
remote=$(namespace 1)
fio --name=x --filename="$remote" --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bs=4k \
    --time_based --runtime=200 --output-format=json --output="$WORK/fio.json" &
FIO=$!
sleep 2
removed one
await 30 says "$WORK/serve.log" 'the device was removed'
sleep 4
await 60 heeds "$FIO"
kill -INT "$FIO" 2>/dev/null || true
# 128: by the signal, of which it says something before the JSON.
status=0
wait "$FIO" || status=$?
((status == 0 || status == 128)) || die "one of two paths was removed, and fio noticed: $(tail -n 20 "$WORK/fio.json")"
sed -i '/^{/,$!d' "$WORK/fio.json"
expect_json "$WORK/fio.json" '[.jobs[].error] | add' 0
# Its size is still that of the one that is left.
expect "bytes" "$(blockdev --getsize64 "$remote")" $((256 << 20))
dd if="$remote" of=/dev/null bs=64k count=16 iflag=direct status=none

# Both have gone. (What is asked for then ends as a lost path, which Linux with one way to us asks for again and again.)
removed two
sleep 2
"$NVLANE" ctl --socket "$CTL" volume list >"$WORK/list"
grep -q "256 MiB" "$WORK/list" || die "its size is not what it was: $(<"$WORK/list")"
# The target lives, and so does its other namespace.
verified_io "$(namespace 2)" 8M
disconnect

# A removed device has nothing to flush to, which is said.
kill -TERM "$SERVER"
wait "$SERVER" || true
SERVER=

# Alone, it is no path.
three=$(made three)
serve "$three"
remote="tcp://127.0.0.1:$PORT/$NQN?ns=1"
read=("$NVLANE" io -O 2 -l 512 -r "$remote")
"${read[@]}" >/dev/null
removed three
expect_match "a read of what was removed" "$(fails "${read[@]}")" 'Namespace Not Ready'
sleep 2
expect_match "a read, later" "$(fails "${read[@]}")" 'Namespace Not Ready'
kill -TERM "$SERVER"
wait "$SERVER" || true
SERVER=

# One that may be missing is taken away when it goes, and served again when it is back; hosts are told of both.
four=$(made four)
serve mem:16M "$four" --nofail
connect
# It keeps nothing, but answers.
answers() { dd if=/dev/zero of="$(namespace 2)" bs=64k count=16 oflag=direct status=none; }
answers
removed four
missing() { "$NVLANE" ctl --socket "$CTL" volume missing -o json | jq length; }
counts() { [[ $(missing) == "$1" && $(nvme list -o json | jq '[.. | .NameSpace? // empty] | length') == "$2" ]]; }
await 30 counts 1 1
verified_io "$(namespace 1)" 8M
echo 1 >/sys/kernel/config/nullb/four/power
await 30 counts 0 2
answers
expect_match "the log" "$(<"$WORK/serve.log")" "$four.* has gone, and is served when it comes back"
disconnect
