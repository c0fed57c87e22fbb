#!/bin/bash
# limit: 600
# processors: 2
# The program of a block device is replaced while it is written to and verified: nothing fails, what it counts is
# kept, and who serves the device next finds the new one, by `recover` and by the command line of the first.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
bpf=$(realpath "$(dirname "$0")/../../bpf")
image=$SCRATCH/a.img
truncate -s 16M "$image"
cp "$bpf/statistics.bpf.o" "$WORK/new.bpf.o"
objects=("$WORK/new.bpf.o" "$bpf/statistics.bpf.o")

recover=()
has_feature USER_RECOVERY_REISSUE && recover=(--recover)
ublk_add "bpf:$bpf/statistics.bpf.o($image)" -q 2 -d 32 --bpf user "${recover[@]}"
begin_counted_load
rounds=$((FULL ? 100 : 30))
for ((round = 0; round < rounds; round++)); do
    "$NVLANE" bpf replace "$DEVICE" "${objects[round % 2]}" >"$WORK/replaced" || die "round $round"
    expect_match "what is kept" "$(<"$WORK/replaced")" 'map operations stays as it is'
done
end_counted_load
said=$(fails "$NVLANE" bpf replace "$DEVICE" "$bpf/mirror.bpf.o")
expect_match "another kind of program" "$said" 'does not promise NVLANE_ONE_PLACE'
expect_match "what linear keeps" "$("$NVLANE" bpf replace "$DEVICE" "$bpf/linear.bpf.o")" 'map operations is gone'
expect_match "the list" "$("$NVLANE" ublk list)" 'linear\.bpf\.o'
if ((${#recover[@]})); then
    # Maps that say where data is live on with a device, if they can.
    said=$(fails "$NVLANE" attach "bpf:$bpf/tests/maps.bpf.o(mem:16M)")
    expect_match "what would lose its maps with its server" "$said" 'map hash is neither .* NVLANE_SETUP does not set NVLANE_MAPS_MAY_GO'
    attached=$("$NVLANE" attach "bpf:$bpf/snapshot.bpf.o(mem:16M,mem:16M)")
    [[ $attached =~ /dev/ublkb[0-9]+ ]] || die "attach says '$attached'"
    attached=${BASH_REMATCH[0]}
    expect "what is kept" "$(ls "/sys/fs/bpf/nvlane/ublk-${attached#/dev/ublkb}")" 0-written-262144x8
    "$NVLANE" detach "$attached"
    expect "what is kept of what is gone" "$(ls /sys/fs/bpf/nvlane)" ""
    kill -KILL "$UBLK_SERVER"
    wait "$UBLK_SERVER" 2>/dev/null || true
    # Nobody says --bpf user again.
    : >"$WORK/recover.log"
    "$NVLANE" ublk recover "$ID" >"$WORK/recover.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    ublk_ready "$WORK/recover.log"
    expect_match "where a successor runs it" "$(<"$WORK/recover.log")" 'program in user space: as asked for'
    expect_match "what a successor serves" "$(<"$WORK/recover.log")" 'linear\.bpf\.o'
    "$NVLANE" bpf replace "$DEVICE" "$bpf/statistics.bpf.o"
fi
ublk_stop
said=$(fails "$NVLANE" bpf stat "$DEVICE")
expect_match "a device that is gone" "$said" 'has no server that can be asked'

# What systemd does after a crash: the same command line as at first. By then the data is where another program put it.
if ((${#recover[@]})); then
    truncate -s 16M "$SCRATCH/b.img" "$SCRATCH/c.img"
    cd "$bpf"
    same=("bpf:linear.bpf.o($SCRATCH/b.img,$SCRATCH/c.img)" --id 5 --bpf user --recover)
    ublk_add "${same[@]}"
    cd - >/dev/null
    expect_match "the program's path" "$("$NVLANE" ublk list)" "bpf:$bpf/linear\.bpf\.o"
    "$NVLANE" bpf replace "$DEVICE" "$bpf/stripe.bpf.o"
    fio --name=data --filename="$DEVICE" --direct=1 --rw=write --bs=64k --size=24M --verify=crc32c --do_verify=0 >"$WORK/written"
    kill -KILL "$UBLK_SERVER"
    wait "$UBLK_SERVER" 2>/dev/null || true
    # A person is told what the device has; a service has it all the same.
    said=$(cd "$bpf" && fails "$NVLANE" ublk add "${same[@]}")
    expect_match "the volume of before, asked for by a person" "$said" 'waits for a server and has another volume, bpf:.*stripe.*nvlane ublk recover 5'
    export NOTIFY_SOCKET=$WORK/nobody
    ublk_add "${same[@]}"
    unset NOTIFY_SOCKET
    expect "the device" "$ID" 5
    expect_match "what is served" "$(grep '^/dev/' "$WORK/ublk.log")" "from bpf:$bpf/stripe\.bpf\.o"
    expect "lines that say so" "$(grep -c 'is served from bpf:.*stripe.* not from bpf:linear' "$WORK/ublk.log")" 1
    fio --name=data --filename="$DEVICE" --direct=1 --rw=write --bs=64k --size=24M --verify=crc32c --verify_only \
        >"$WORK/verified" || die "fio: $(<"$WORK/verified")"
    # Of the volume that is asked for nothing is said.
    kill -KILL "$UBLK_SERVER"
    wait "$UBLK_SERVER" 2>/dev/null || true
    same[0]=$("$NVLANE" ublk list -o json | jq -r '.devices[0].volume')
    ublk_add "${same[@]}"
    ! grep 'is served from' "$WORK/ublk.log" || die "it is what was asked for"
    ublk_stop
fi
