#!/bin/bash
# limit: 420
# kernel: newest
# Copy by this kernel's host: what it asks for lands where it should, on blocks of both sizes, and nothing
# else changes; what it may not ask for fails with the specification's status. Also of a volume that is on the
# kernel's own target, which has no Copy.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_copy.sh"

truncate -s 4M "$SCRATCH/ro.img"
serve "mem:40M?bs=512" "mem:40M?bs=4096" \
    "file:$SCRATCH/a.img?size=24M&create&bs=512" "file:$SCRATCH/b.img?size=24M&create&bs=4096" \
    "file:$SCRATCH/ro.img?ro&bs=512"
connect
controller=/dev/$(controllers)

# copies FORMAT SDLBA SLBA+BLOCKS...: has them copied, and notes them for the model
copies() {
    local format=$1 sdlba=$2 slbs='' counts='' one
    shift 2
    for one; do
        slbs+=,${one%+*}
        counts+=,$((${one#*+} - 1))
    done
    nvme copy "$device" --format="$format" --sdlba="$sdlba" --slbs="${slbs:1}" --blocks="${counts:1}" >/dev/null ||
        die "format $format, to $sdlba: $*"
    echo "$sdlba $*" >>"$WORK/copied"
}
cat >"$WORK/model.py" <<'END'
import sys
path, block = sys.argv[1], int(sys.argv[2])
with open(path, "r+b") as model:
    for line in sys.stdin:
        at, *sources = line.split()
        at = int(at)
        for one in sources:
            slba, blocks = map(int, one.split("+"))
            model.seek(slba * block)
            data = model.read(blocks * block)
            model.seek(at * block)
            model.write(data)
            at += blocks
END
# same WHAT: the device is as the model, which copies what was noted
same() {
    python3 "$WORK/model.py" "$WORK/model" "$block" <"$WORK/copied"
    : >"$WORK/copied"
    dd if="$device" bs=1M iflag=direct status=none | cmp - "$WORK/model" || die "$device is not as the model: $1"
}
# refused STATUS OPTION...: nvme copy must fail so
refused() {
    local status=$1
    shift
    expect_match "status of $*" "$(fails nvme copy "$device" "$@")" "\(0x(40{0,2})?$status\)"
}
# --- What is offered ---
nvme id-ctrl "$controller" -o json >"$WORK/ctrl.json"
expect_json "$WORK/ctrl.json" '((.oncs / 256) | floor) % 2' 1
# Copy Single Atomicity
expect_json "$WORK/ctrl.json" '((.oncs / 512) | floor) % 2' 1
expect_json "$WORK/ctrl.json" '.ocfs' 15
nvme effects-log "$controller" --csi=0 -H >"$WORK/effects.txt"
grep -qi copy "$WORK/effects.txt" || die "the effects log lacks Copy: $(<"$WORK/effects.txt")"

for ((at = 0; at < 129; at++)); do range 0 1; done >"$WORK/over"
{ cat "$WORK/over" && zeroes $((127 * 32)); } >"$WORK/long"

head -c 40M /dev/urandom >"$WORK/random"
for nsid in 1 2 3 4; do
    device=$(namespace $nsid)
    block=$(blockdev --getss "$device")
    last=$(($(blockdev --getsize64 "$device") / block))
    nvme id-ns "$device" -o json >"$WORK/ns.json"
    expect_json "$WORK/ns.json" '.mssrl' 65528
    expect_json "$WORK/ns.json" '.mcl' $(((128 << 20) / block))
    expect_json "$WORK/ns.json" '.msrc' 127
    head -c $((last * block)) "$WORK/random" >"$WORK/model"
    dd if="$WORK/model" of="$device" bs=1M oflag=direct status=none

    # --- What lands where it should ---
    formats=(0 1)
    ((nsid < 3)) || formats=(1)
    for format in "${formats[@]}"; do
        copies $format 500 0+1
        copies $format 600 8+33 5000+7 100+60
        # Over itself, in both directions.
        copies $format 1010 1000+50
        copies $format 2000 2010+50
        # The second source is what the first has written.
        copies $format 3000 40+8 3000+8
        # As many ranges as there may be (nvme-cli lays out 101 of format 1h), and to the last block.
        copies $format 3100 $(for ((at = 0; at < (format ? 101 : 128); at++)); do echo $((at * 17 + format))+$((at % 3 + 1)); done)
        copies $format $((last - 9)) 11+9
    done
    # 32 MiB in one range.
    longest=$((last * 3 / 4 < 65528 ? last * 3 / 4 : 65528))
    copies 0 $((last - longest)) 1+$longest
    nvme copy "$device" --force-unit-access --sdlba=700 --slbs=8 --blocks=7 >/dev/null
    echo "700 8+8" >>"$WORK/copied"
    # Refusals come from above the backends: looked at once for each size of blocks.
    ((nsid < 3)) || { same "namespace $nsid" && continue; }

    # --- What is refused, and changes nothing ---
    refused 183 --sdlba=0 --slbs=0 --blocks=65528
    refused_list 183 "$WORK/over" 128
    refused_list 183 "$WORK/long" 255
    # More together than MCL, though each is within MSSRL.
    slbs=0 counts=$((last - 1 < 65527 ? last - 1 : 65527))
    for ((at = 0; at < 5; at++)); do slbs+=,0 counts+=,${counts%%,*}; done
    refused 183 --sdlba=0 --slbs=$slbs --blocks=$counts
    # Out of range, as blktests' nvme/018 has it: one past the end, far past it, and where numbers end.
    refused 80 --sdlba="$last" --slbs=0 --blocks=0
    refused 80 --sdlba=$((last - 1)) --slbs=0 --blocks=1
    refused 80 --sdlba=0 --slbs="$last" --blocks=0
    refused 80 --sdlba=0 --slbs=$((last - 1)) --blocks=1
    refused 80 --sdlba=0 --slbs=0,$((last - 7)) --blocks=7,7
    range 0xffffffffffffffff 1 >"$WORK/one"
    refused_list 80 "$WORK/one" 0
    range 0 8 >"$WORK/one"
    refused_list 80 "$WORK/one" 0 0xffffffff
    # Lists of other lengths, and formats that there are not, or that nobody has enabled.
    refused_list f "$WORK/one" 1
    { range 0 8 && range 8 8; } >"$WORK/two"
    refused_list f "$WORK/two" 0
    refused_list f "$WORK/two" $((0x100))
    for format in 2 3 4 9 15; do
        zeroes $((format % 2 * 8 + 32)) >"$WORK/list"
        refused_list 2 "$WORK/list" $((format << 8))
    done
    same "after refusals, namespace $nsid"
done

nsid=5
device=$(namespace 5)
range 0 1 >"$WORK/one"
refused_list 20 "$WORK/one" 0 100

nvme error-log "$controller" -o json | jq -e '.errors | length > 0' >/dev/null
ctl stats -o json >"$WORK/stats.json"
expect_json "$WORK/stats.json" '[.namespaces[0:4][] | .copies > 5 and .copied_bytes > 10000000] | all' true
# In flight together.
device=$(namespace 1)
copying=()
for ((at = 0; at < 16; at++)); do
    nvme copy "$device" --sdlba=$((40000 + at * 1000)) --slbs=0 --blocks=999 >/dev/null &
    copying+=($!)
done
for one in "${copying[@]}"; do wait "$one" || die "a Copy beside others failed"; done
blocks "$device" 0 1000 >"$WORK/one"
blocks "$device" 40000 16000 | cmp - <(for ((at = 0; at < 16; at++)); do cat "$WORK/one"; done)
disconnect
stop

# --- Of a volume on a target without Copy: read and written by ours ---
kernel_serve "file:$SCRATCH/far.img?size=24M&create"
remote="tcp://127.0.0.1:$PORT/$NQN?ns=1"
PORT=$((PORT + 1))
SERVER=
serve "$remote"
connect
device=$(namespace 1)
block=$(blockdev --getss "$device")
head -c 24M "$WORK/random" >"$WORK/model"
dd if="$WORK/model" of="$device" bs=1M oflag=direct status=none
copies 0 600 8+33 5000+7 100+60
copies 1 1010 1000+50
copies 0 4000 0+2000
same "through the kernel's target"
disconnect
stop
