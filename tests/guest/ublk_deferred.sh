#!/bin/bash
# limit: 500
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# What a program in the kernel defers is decided on in user space and carried out in the kernel: verified I/O of which half
# is deferred, a file system on a thin volume whose server is woken for its new chunks alone, all that may be wrong, and
# servers that are killed.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
[[ $("$NVLANE" ublk features -o json | jq .programs_in_kernel) == true ]] || lacks "this kernel runs no programs"
bpf=$(realpath "$(dirname "$0")/../../bpf")
a=$SCRATCH/a.img b=$SCRATCH/b.img
truncate -s 8M "$a" "$b"

# number MAP KEY: the first word of a value that a program in the kernel has
number() {
    "$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
    local hex
    hex=$(jq -r --arg map "$1" --arg key "$2" \
        '[.. | objects | select(.name == $map) | .entries[] | select(.key == $key) | .values[0]][0] // "0000000000000000"' \
        "$WORK/stat.json")
    echo $((16#$(tac -rs .. <<<"${hex:0:16}" | tr -d '\n')))
}

# The kernel's own look for partitions is routed, too: counts are what is more.
in_kernel "bpf:$bpf/tests/deferred.bpf.o($a,$b)" -q 2 -d 32
verified_io "$DEVICE" 3M --offset=1M --bssplit=512/20:4k/40:16k/20:128k/20
deferred=$(number counts 01000000) again=$(number counts 03000000)
((deferred > 100 && again > 50)) || die "$deferred requests were deferred when they came, and $again when their parts had ended"
echo "$deferred requests deferred when they came, $again when their parts had ended"

# One at a time, to each kind of chunk: where it is, and who was asked.
for chunk in 0 1 2 3 4 5 6 7; do
    before=$(number counts 01000000)
    head -c 8192 /dev/urandom >"$WORK/data"
    dd if="$WORK/data" of="$DEVICE" bs=8k seek=$((chunk * 32768)) oflag=direct,seek_bytes status=none
    cmp -n 8192 "$WORK/data" <(dd if="$DEVICE" bs=8k count=1 skip=$((chunk * 32768)) iflag=direct,skip_bytes status=none) ||
        die "chunk $chunk is not as written"
    cmp -n 8192 -i 0:$((chunk * 32768)) "$WORK/data" "$a" || die "chunk $chunk is elsewhere"
    copies=1
    ! cmp -s -n 8192 -i 0:$((chunk * 32768)) "$WORK/data" "$b" || copies=2
    expect "places of chunk $chunk" $copies $((chunk % 4 == 3 ? 2 : 1))
    expect "deferred, of a write and a read of chunk $chunk" $(($(number counts 01000000) - before)) $((chunk % 2 * 2))
done

# Wrong decisions fail their requests, and say where; the device lives on.
for block in 1024 1032 1040 1048 1056; do
    said=$(fails dd if="$DEVICE" of=/dev/null bs=4k count=1 skip=$((block * 512)) iflag=direct,skip_bytes status=none)
    expect_match "a wrong decision on block $block" "$said" 'Input/output error'
done
# What the kernel found wrong is told a second later at most; the third mistake, of either kind, is not told.
at='nvlane_deferred instruction [0-9]+'
for what in "$at \(deferred.bpf.c:[0-9]+\): the request is deferred, and there is no NVLANE_DEFERRED" \
    "$at: the program returned 5" "$at \(deferred.bpf.c:[0-9]+\): an address that is neither the stack" \
    "$at \(deferred.bpf.c:[0-9]+\): more than 65536 instructions"; do
    await 30 says "$WORK/ublk.log" "$what"
done
"$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
expect_json "$WORK/stat.json" '[.. | .mistakes? // empty] | add' 5
dd if="$DEVICE" of=/dev/null bs=4k count=1 skip=$((1064 * 512)) iflag=direct,skip_bytes status=none
verified_io "$DEVICE" 2M --offset=4M --bssplit=512/20:4k/40:16k/40 --randseed=2
# Variables: one that is 1, and one with a bit for each thing that NVLANE_DEFERRED has not found as it should be.
"$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
expect_json "$WORK/stat.json" '[.. | objects | select(.name == ".data") | .entries[].values[0] | gsub("0"; "")] | join(",")' 1
ublk_stop

# A thin volume: more than is behind it, until that is full.
thin="bpf:$bpf/thin.bpf.o($SCRATCH/c.img?size=16M&create,$SCRATCH/d.img?size=24M&create)"
in_kernel "$thin" -q 2 -d 16
expect "its size" "$(blockdev --getsize64 "$DEVICE")" $((64 << 20))
mkfs.ext4 -q "$DEVICE"
mount "$DEVICE" /mnt/test
dd if=/dev/urandom of=/mnt/test/data bs=1M count=8 conv=fsync status=none
sum=$(sha256sum </mnt/test/data)
umount /mnt/test
fsck.ext4 -fn "$DEVICE" >"$WORK/fsck" 2>&1 || die "fsck: $(<"$WORK/fsck")"
chunks=$(($(number .bss 00000000)))
echo "chunks on the first volume: $chunks"
dd if="$DEVICE" of=/dev/null bs=4k count=4096 iflag=direct status=none
said=$(fails dd if=/dev/urandom of="$DEVICE" bs=1M seek=8 oflag=direct status=none)
expect_match "writing to a thin volume that is full" "$said" 'No space left on device'
ublk_stop
requests=0 returns=0
while read -r more back; do
    requests=$((requests + more)) returns=$((returns + back))
done < <(each_queue)
echo "thin: $requests requests, $returns returns to user space"
((requests > 4000 && returns <= 100)) || die "$returns returns to user space for $requests requests"

# What was decided is known to all that follow, there and here; and while half of what comes is deferred, servers are killed,
# upgraded and stopped.
load() {
    fio --name=load --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=32 --rw=randwrite --bs=4k "$@" \
        --verify=crc32c --verify_fatal=1 --verify_backlog=32 --time_based --runtime=2000 --randseed=3 >"$WORK/load" 2>&1 &
    load=$!
}

end_load() {
    await 60 heeds "$load"
    kill -INT "$load"
    local status=0
    wait "$load" || status=$?
    ((status == 0 || status == 128)) || die "fio: status $status: $(<"$WORK/load")"
    ! grep -iE 'verify.*(fail|bad)|error' "$WORK/load" || die "fio: $(<"$WORK/load")"
}

# next COMMAND [OPTION]...: another server
next() {
    rm -f "$WORK/ublk.log"
    : >"$WORK/ublk.log"
    "$NVLANE" ublk "$1" "$ID" "${@:2}" --log debug >"$WORK/ublk.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    ublk_ready "$WORK/ublk.log"
}

kill_server() {
    kill -KILL "$UBLK_SERVER"
    wait "$UBLK_SERVER" 2>/dev/null || true
}

defers() { (($(number counts 01000000) > ${1:-50})); }

if has_feature USER_RECOVERY_REISSUE; then
    rm "$SCRATCH/c.img" "$SCRATCH/d.img"
    in_kernel "$thin" -q 2 -d 16 --recover
    load --size=24M
    for place in kernel user kernel; do
        pause 1
        kill_server
        next recover --bpf $place
        expect_match "where a successor runs it" "$(<"$WORK/ublk.log")" "program in (the )?$place"
    done
    end_load
    ublk_stop

    # Its counts begin anew with each server.
    in_kernel "bpf:$bpf/tests/deferred.bpf.o($a,$b)" -q 2 -d 32 --recover
    load --offset=1M --size=4M
    for round in 1 2; do
        await 60 defers
        kill_server
        next recover --bpf kernel
    done
    await 60 defers
    if has_feature QUIESCE; then
        # All requests of a queue are with the server, now and then, and the driver does not tell it at once.
        for ((round = 0; round < (FULL ? 16 : 4); round++)); do
            old=$UBLK_SERVER status=0
            next upgrade --bpf kernel
            wait "$old" || status=$?
            expect "the old server's exit status after an upgrade" $status 0
            await 60 defers
        done
    fi
    end_load
    from=$(number counts 01000000)
    load --offset=1M --size=4M
    await 60 defers $((from + 450))
    ublk_stop
    ! wait "$load" || die "fio does not notice that its device is gone"
fi
modprobe -r ublk_drv
