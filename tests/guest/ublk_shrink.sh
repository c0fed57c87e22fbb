#!/bin/bash
# limit: 300
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# A file that shrinks below a block device, under I/O: the device follows where the kernel can have it follow, what lies
# beyond the end fails and does not bring it back, and everything else goes on; then it grows again, and what comes back is empty.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
bpf=$(realpath "$(dirname "$0")/../../bpf")
image=$SCRATCH/shrink.img

bytes() { blockdev --getsize64 "$DEVICE"; }
is_large() { [[ $(bytes) == $(($1 << 20)) ]]; }
# read_at MIB, write_at MIB: 4 KiB there, past any cache
read_at() { dd if="$DEVICE" of=/dev/null bs=4k count=1 skip=$(($1 << 20)) iflag=direct,skip_bytes status=none; }
write_at() { dd if=/dev/zero of="$DEVICE" bs=4k count=1 seek=$(($1 << 20)) oflag=direct,seek_bytes conv=notrunc status=none; }
# few MIB: verified I/O on 2 MiB from there on
few() { verified_io "$DEVICE" 2M --offset="$1M" --bssplit=512/40:4k/50:64k/10; }
# What is noticed can be seen by a discard where there is nothing any more: until then it does nothing, and then it fails.
has_noticed() { ! blkdiscard -f -o $((48 << 20)) -l 65536 "$DEVICE" 2>/dev/null; }
expect_file() { expect "the file's size" "$(stat -c %s "$image")" $1; }

# Two loads, one where everything stays and one where nothing does; the file shrinks to its half.
begin() {
    dd if=/dev/urandom of="$image" bs=1M count=64 status=none
    kept=$(dd if="$image" bs=1M skip=16 count=15 status=none | sha256sum)
    ublk_add "$@" -q 2 -d 32
    grep '^/dev' "$WORK/ublk.log"
    expect "its size" "$(bytes)" $((64 << 20))
    fio --name=goes --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randread --bsrange=512-64k --offset=40M --size=8M \
        --time_based --runtime=900 >"$WORK/goes" 2>&1 &
    local goes=$! status=0 until
    await 30 has_done 0 100
    fio --name=stays --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bsrange=512-64k --size=16M \
        --verify=crc32c --verify_fatal=1 --verify_backlog=32 --time_based --runtime=900 --output="$WORK/stays" &
    stays=$!
    await 30 has_done 4 100
    truncate -s 32M "$image"
    until=$((SECONDS + 60))
    while kill -0 $goes 2>/dev/null; do
        ((SECONDS < until)) || die "reads where nothing is any more do not end; in flight:$(<"/sys/block/${DEVICE#/dev/}/inflight"), fio: $(<"$WORK/goes")"
        pause 0.1
    done
    wait $goes || status=$?
    ((status != 0)) || die "reads where nothing is any more did not fail: $(<"$WORK/goes")"
}

# has_done FIELD COUNT: whether DEVICE has carried out more reads (field 0) or writes (field 4) than that
has_done() {
    local fields
    read -ra fields <"/sys/block/${DEVICE#/dev/}/stat"
    ((fields[$1] > $2))
}

# The one that stays has seen nothing of it, nor has what lies between.
end() {
    kill -0 $stays || die "fio: $(<"$WORK/stays")"
    kill -INT $stays
    local status=0
    wait $stays || status=$?
    ((status == 0 || status == 128)) || die "fio: status $status: $(<"$WORK/stays")"
    ! grep -iE 'verify.*(fail|bad)|error' "$WORK/stays" || die "fio: $(<"$WORK/stays")"
    expect "what lies below the end" "$(dd if="$DEVICE" bs=1M skip=16 count=15 iflag=direct status=none | sha256sum)" "$kept"
    few 20
}

ways=(--copy --auto)
has_feature USER_COPY && ways+=(--user-copy)
has_feature UPDATE_SIZE || ways=()
for way in "${ways[@]}"; do
    begin "$image" "$way"
    await 30 is_large 32
    await 30 says "$WORK/ublk.log" 'the size has changed bytes=33554432'
    said=$(fails read_at 48)
    said=$(fails write_at 48)
    # What begins before the end is done until there.
    said=$(fails dd if=/dev/zero of="$DEVICE" bs=1M count=1 seek=$((63 << 19)) oflag=direct,seek_bytes conv=notrunc status=none)
    expect_match "a write across the end" "$said" 'No space left on device'
    cmp -n $((1 << 19)) /dev/zero <(tail -c $((1 << 19)) "$image") || die "what was written up to the end is not there"
    end
    expect_file $((32 << 20))
    # It may go to nothing, and comes back; of what was there nothing does.
    truncate -s 0 "$image"
    await 30 is_large 0
    said=$(fails write_at 0)
    expect_match "a write to nothing" "$said" 'No space left on device'
    truncate -s 64M "$image"
    await 30 is_large 64
    cmp /dev/zero "$DEVICE" -n $((64 << 20)) || die "what came back is not empty"
    few 47
    ublk_stop
done

# A device that cannot follow stays as large as it was, and so does that of a program: what lies beyond the end fails.
stays_large() {
    begin "$@"
    await 30 has_noticed
    said=$(fails read_at 48)
    expect_match "a read beyond the end" "$said" 'Input/output error'
    said=$(fails write_at 48)
    expect_match "a write beyond the end" "$said" 'Input/output error'
    end
    expect "its size" "$(bytes)" $((64 << 20))
    expect_file $((32 << 20))
    ublk_stop
}
has_feature UPDATE_SIZE || stays_large "$image"
stays_large "bpf:$bpf/linear.bpf.o($image)" --bpf user

# A program in the kernel writes to the file as it was opened: a write makes it larger again.
if [[ $("$NVLANE" ublk features -o json | jq .programs_in_kernel) == true ]]; then
    begin "bpf:$bpf/linear.bpf.o($image)" --bpf kernel
    said=$(fails read_at 48)
    expect_match "a read beyond the end" "$said" 'Input/output error'
    write_at 48
    read_at 48
    expect_file $(((48 << 20) + 4096))
    end
    ublk_stop
fi

# A successor serves a device that has followed, and none that is larger than the volume.
if has_feature UPDATE_SIZE; then
    truncate -s 64M "$image"
    ublk_add "$image" --recover
    for size in 32 16; do
        if ((size == 32)); then truncate -s 32M "$image" && await 30 is_large 32; fi
        kill -KILL "$UBLK_SERVER"
        wait "$UBLK_SERVER" 2>/dev/null || true
        truncate -s ${size}M "$image"
        if ((size == 16)); then
            said=$(fails "$NVLANE" ublk recover "$ID")
            expect_match "a successor of a volume that has shrunk" "$said" 'it had 33554432 bytes, not 16777216'
            truncate -s 32M "$image"
        fi
        : >"$WORK/recover.log"
        "$NVLANE" ublk recover "$ID" >"$WORK/recover.log" 2>&1 </dev/null &
        UBLK_SERVER=$!
        ublk_ready "$WORK/recover.log"
        expect "its size" "$(bytes)" $((32 << 20))
        few 30
    done
    ublk_stop
fi
modprobe -r ublk_drv
