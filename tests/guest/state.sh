#!/bin/bash
# limit: 120
# Changes survive a restart, clean or not, and identifiers stay the same.
. "$(dirname "$0")/harness.sh"

volumes=("file:$SCRATCH/s.img?size=64M&create")
serve "${volumes[@]}"
ctl volume add "file:$SCRATCH/t.img?size=32M&create" --nsid 5
ctl listener add 127.0.0.1:4434
connect
namespace 5
identity() {
    local nsid path
    for nsid in 1 5; do
        path=$(namespace $nsid)
        echo "$nsid $(<"/sys/block/${path#/dev/}/uuid") $(<"/sys/block/${path#/dev/}/nguid")"
    done
    cat "/sys/class/nvme/$(controllers)/serial"
}
before=$(identity)
disconnect

stop
serve "${volumes[@]}"
connect
expect "identifiers after a clean restart" "$(identity)" "$before"
disconnect
nvme connect -t tcp -a 127.0.0.1 -s 4434 -n "$NQN"
disconnect

ctl volume remove 5
kill_server
serve "${volumes[@]}"
connect
namespace 1
sleep 1
namespace_now 5 && die "a removed volume is back after kill -9"
disconnect
stop

# No volume at all: the default one, kept in the data directory.
NVLANE_DATA=$WORK/default
"$NVLANE" serve --listen 127.0.0.1:4440 --socket "$WORK/default.sock" --data-dir "$NVLANE_DATA" >"$WORK/default.log" 2>&1 &
SERVER=$!
await 90 says "$WORK/default.log" 'nvme connect'
NQN=$(sed -nE '/nvme connect /{s/.*nvme connect .*-n ([^ ]+).*/\1/p;q}' "$WORK/default.log")
nvme connect -t tcp -a 127.0.0.1 -s 4440 -n "$NQN"
device=$(namespace 1)
head -c 1M /dev/urandom >"$WORK/sample"
dd if="$WORK/sample" of="$device" bs=64k oflag=direct conv=fsync status=none
disconnect
stop
"$NVLANE" serve --listen 127.0.0.1:4440 --socket "$WORK/default.sock" --data-dir "$NVLANE_DATA" >"$WORK/default2.log" 2>&1 &
SERVER=$!
await 90 says "$WORK/default2.log" 'nvme connect'
nvme connect -t tcp -a 127.0.0.1 -s 4440 -n "$NQN"
cmp -n $((1 << 20)) "$WORK/sample" "$(namespace 1)" || die "the default volume lost what was written"
disconnect
stop
