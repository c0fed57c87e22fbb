#!/bin/bash
# limit: 600
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# Programs whose maps and variables say where data is: their devices' servers are killed and replaced, in user space, in
# the kernel, and from the one to the other, and every block is where it was.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
has_feature USER_RECOVERY_REISSUE || lacks "this kernel's ublk has no recovery"
bpf=$(realpath "$(dirname "$0")/../../bpf")
best=user
if [[ $("$NVLANE" ublk features -o json | jq .programs_in_kernel) == true ]]; then
    said=$("$NVLANE" bpf check "$bpf/tests/append.bpf.o" --backends 1)
    expect_match "a program with maps, where the kernel runs some" "$said" $'(^|\n)kernel: ok'
    best=kernel
fi

# next COMMAND [OPTION]...: another server for DEVICE
next() {
    : >"$WORK/next.log"
    "$NVLANE" ublk "$1" "$ID" "${@:2}" >>"$WORK/next.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    ublk_ready "$WORK/next.log"
}

kill_server() {
    kill -KILL "$UBLK_SERVER"
    wait "$UBLK_SERVER" 2>/dev/null || true
}

# Writes another 512 KiB at random, in requests of every size up to what programs take at once.
fill() {
    head -c 512K /dev/urandom >"$WORK/want"
    dd if="$WORK/want" of="$DEVICE" bs=16k oflag=direct status=none
    head -c 10000 /dev/urandom | dd of="$WORK/want" bs=512 seek=301 conv=notrunc status=none
    dd if="$WORK/want" of="$DEVICE" bs=1536 count=8 skip=100 seek=100 oflag=direct status=none
}

# What was written is there, and nothing behind it.
same() {
    dd if="$DEVICE" of="$WORK/got" bs=64k count=16 iflag=direct status=none
    cmp "$WORK/got" <(cat "$WORK/want"; head -c 512K /dev/zero) || die "$1: what was written is not there"
}

# has_maps PROCESS: whether it has found what is kept
has_maps() { [[ -n $(find "/proc/$1/fd" -lname '*bpf-map*' 2>/dev/null) ]]; }

in_place() { expect_match "where it runs" "$(<"$WORK/next.log")" "program in (the )?$1 ?"; }

truncate -s 64M "$SCRATCH/log.img"
truncate -s 16M "$SCRATCH/base.img"
over="$SCRATCH/over.img?size=16M&create"
snapshot="bpf:$bpf/snapshot.bpf.o($SCRATCH/base.img?ro,$over)"
maps=/sys/fs/bpf/nvlane/ublk-
volumes=("bpf:$bpf/tests/append.bpf.o($SCRATCH/log.img)")
((FULL)) && volumes+=("$snapshot")
for volume in "${volumes[@]}"; do
    ublk_add "$volume" -q 2 -d 16 --recover --bpf "$best"
    grep '^/dev' "$WORK/ublk.log"
    fill
    # Killed in the middle.
    fio --name=load --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k \
        --offset=512k --size=256K --verify=crc32c --verify_fatal=1 --verify_backlog=16 --randseed=3 --io_size=1M \
        >"$WORK/load" 2>&1 &
    writer=$!
    pause 0.3
    kill_server
    next recover
    in_place "$best"
    wait "$writer" || die "fio across a kill: $(<"$WORK/load")"
    blkdiscard -f -z -o 512K -l 256K "$DEVICE"
    same "after a kill in the middle"
    # To the other place and back, by one server that is killed and one that is asked to go.
    kill_server
    next recover --bpf user
    in_place user
    same "in the other place"
    if has_feature QUIESCE; then
        fill
        old=$UBLK_SERVER status=0
        next upgrade --bpf "$best"
        wait "$old" || status=$?
        expect "the old server's exit status after an upgrade" $status 0
        in_place "$best"
        same "after an upgrade"
    fi
    ublk_stop
    expect "what is left of the maps" "$(ls "$maps$ID" 2>/dev/null)" ""
done

# A device made anew begins anew, although its number is an old one's. What replaces its program in use keeps its maps.
ublk_add "$snapshot" --recover --bpf user
cmp "$SCRATCH/base.img" "$DEVICE" || die "a new snapshot is not its base"
fill
expect_match "the map" "$("$NVLANE" bpf replace "$DEVICE" "$bpf/snapshot.bpf.o")" 'map written stays as it is'
same "after a replacement"
fill
maps+=$ID
expect "who may open maps, and change names" "$(stat -c %U%a "$maps" "$maps/"* | paste -sd' ')" "root700 root600"

# Without its maps a program is refused, and the device waits on; one that lives is not asked to go.
mv "$maps/0-written-262144x8" /sys/fs/bpf/nvlane/aside
if has_feature QUIESCE; then
    said=$(fails "$NVLANE" ublk upgrade "$ID")
    expect_match "an upgrade without the maps" "$said" 'the server before has left no written'
    kill -0 "$UBLK_SERVER" || die "the server is gone"
fi
kill_server
said=$(fails "$NVLANE" ublk recover "$ID")
expect_match "a successor without the maps" "$said" 'the server before has left no written'
mv /sys/fs/bpf/nvlane/aside "$maps/0-written-262144x8"
chmod 777 "$maps"
said=$(fails "$NVLANE" ublk recover "$ID")
expect_match "maps that others may have put there" "$said" 'only this user can write: it is user 0.s, mode 0777'
chmod 700 "$maps"
# One that finds its maps, and has the device when another successor was there in the meantime.
await 20 hold_node
: >"$WORK/next.log"
"$NVLANE" ublk recover "$ID" >"$WORK/next.log" 2>&1 </dev/null 9>&- &
waiting=$!
await 30 has_maps "$waiting"
mv "$maps/0-written-262144x8" /sys/fs/bpf/nvlane/aside
exec 9>&-
! wait "$waiting" || die "a successor without its maps served"
expect_match "maps that are gone in between" "$(<"$WORK/next.log")" 'another server has had the device'
mv /sys/fs/bpf/nvlane/aside "$maps/0-written-262144x8"
# A server may be killed before it has noted what it serves: the maps are there.
rm "/run/nvlane/ublk-$ID.json"
next recover "$snapshot"
same "with the maps again"
if has_feature QUIESCE; then
    # The program is another one by the time the server goes: until its file is read, nobody looks at the one there was.
    cp "$bpf/snapshot.bpf.o" "$WORK/one.bpf.o"
    cp "$bpf/snapshot.bpf.o" "$WORK/two.bpf.o"
    "$NVLANE" bpf replace "$DEVICE" "$WORK/one.bpf.o" >"$WORK/said"
    rm "$WORK/one.bpf.o"
    mkfifo "$WORK/one.bpf.o"
    : >"$WORK/next.log"
    old=$UBLK_SERVER
    "$NVLANE" ublk upgrade "$ID" >"$WORK/next.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    # It waits there: opened for writing when it is for reading.
    exec 8>"$WORK/one.bpf.o"
    "$NVLANE" bpf replace "$DEVICE" "$WORK/two.bpf.o" >"$WORK/said"
    rm "$WORK/one.bpf.o"
    cat "$bpf/snapshot.bpf.o" >"$WORK/one.bpf.o"
    cat "$bpf/snapshot.bpf.o" >&8
    exec 8>&-
    ublk_ready "$WORK/next.log"
    wait "$old" || die "the old server's exit status after an upgrade is $?"
    expect_match "what serves after a replacement during an upgrade" "$(<"$WORK/next.log")" 'two\.bpf\.o'
    same "after a replacement during an upgrade"
fi
# Maps that nobody keeps true are forgotten.
expect_match "the map under a program without" "$("$NVLANE" bpf replace "$DEVICE" "$bpf/null.bpf.o")" 'map written is gone'
expect "what is kept for it" "$(ls "$maps")" ""
ublk_stop

# Hash maps and arrays of each core cannot be kept.
said=$(fails "$NVLANE" ublk add --recover "bpf:$bpf/tests/maps.bpf.o(mem:16M)")
expect_match "what cannot be kept" "$said" 'map hash is neither an array nor a variable'
umount /sys/fs/bpf
said=$(fails "$NVLANE" ublk add --recover "bpf:$bpf/snapshot.bpf.o(mem:16M,mem:16M)")
expect_match "without a place for maps" "$said" 'mount -t bpf -o mode=0700 bpf /sys/fs/bpf'
mount -t bpf bpf /sys/fs/bpf
modprobe -r ublk_drv
