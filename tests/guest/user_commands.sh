#!/bin/bash
# limit: 360
# Commands that programs send themselves: transfers of odd lengths up to the largest, lists of ranges,
# io_uring on the generic device, an ordinary user's rights. Of blktests' nvme group
# this stands for 019, 029, 046, 049 and 067.
. "$(dirname "$0")/harness.sh"

serve mem:64M "file:$SCRATCH/u.img?size=64M&create"
connect -i 1 -W 1 -P 1
for nsid in 1 2; do
    device=$(namespace $nsid)
    block=$(blockdev --getss "$device")
    # Around powers of two of blocks, from an odd start, most in several segments of the host's memory.
    for blocks in 1 2 7 511 512 513 1023 1024 1025; do
        size=$((blocks * block))
        head -c $size /dev/urandom >"$WORK/a"
        nvme write "$device" -s 511 -c $((blocks - 1)) -z $size -d "$WORK/a" >/dev/null
        rm -f "$WORK/out"
        nvme read "$device" -s 511 -c $((blocks - 1)) -z $size -d "$WORK/out" >/dev/null
        cmp "$WORK/a" "$WORK/out" || die "$blocks blocks were read back differently"
        # The same blocks by the other way in.
        dd if="$device" of="$WORK/out" bs="$block" skip=511 count=$blocks iflag=direct status=none
        cmp "$WORK/a" "$WORK/out" || die "$blocks blocks are read differently by the block layer"
    done

    # Ten ranges in one command: those are deallocated, what lies between them is not.
    size=$((2048 * block))
    head -c $size /dev/urandom >"$WORK/a"
    dd if="$WORK/a" of="$device" bs=64k oflag=direct status=none
    nvme dsm "$device" -n $nsid -d -s 100,200,300,400,500,600,700,800,900,1000 -b 10,10,10,10,10,10,10,10,10,10
    for start in 100 200 300 400 500 600 700 800 900 1000; do
        dd if=/dev/zero of="$WORK/a" bs="$block" seek=$start count=10 conv=notrunc status=none
    done
    dd if="$device" of="$WORK/out" bs=64k count=$((size >> 16)) iflag=direct status=none
    cmp -n $((size >> 16 << 16)) "$WORK/a" "$WORK/out" || die "not just the ten ranges are zero"
done

device=$(namespace 1)
generic=${device/nvme/ng}
io() { # io NAME OPTION...: fio reads and writes some hundred times, without an error
    fio --name="$1" --size=16M --bs=4k --rw=randrw --iodepth=16 --io_size=2M "${@:2}" \
        --output-format=json --output="$WORK/io.json" || die "fio $1: $(tail -n 40 "$WORK/io.json")"
    expect_json "$WORK/io.json" '[.jobs[].error] | add' 0
    expect_json "$WORK/io.json" '.jobs[0].write.total_ios > 50' true
}
# No --hipri on the polled queue: nvme-tcp of Linux 7.2 then takes the socket's lock, and may sleep
# for it, within the RCU read-side section of bio_poll ("Voluntary context switch within RCU"), and
# fio now and then waits for ever.
io generic --filename="$generic" --ioengine=io_uring_cmd --cmd_type=nvme
io generic-fixed --filename="$generic" --ioengine=io_uring_cmd --cmd_type=nvme --fixedbufs

# Admin commands by io_uring, on the namespace's generic device, are answered as those by ioctl are.
controller=/dev/$(controllers)
for what in "6 1 4096" "6 0 4096 -n 1" "2 0x007f0001 512" "2 0x007f0002 512 -n 0xffffffff"; do
    read -r opcode dword bytes namespace <<<"$what"
    # shellcheck disable=SC2086  # words of the command line
    "$NVLANE" admin "$generic" -O "$opcode" --cdw10 "$dword" -l "$bytes" $namespace -r -b >"$WORK/a" 2>/dev/null
    # shellcheck disable=SC2086
    nvme admin-passthru "$controller" --opcode="$opcode" --cdw10="$dword" -l "$bytes" $namespace -r -b >"$WORK/out" 2>/dev/null
    expect "bytes of opcode $opcode" "$(stat -c %s "$WORK/out")" "$bytes"
    cmp "$WORK/a" "$WORK/out" || die "opcode $opcode, dword 10 $dword: io_uring gives something else than ioctl"
done

# An ordinary user who may only read the device: reads and Identify, no writes, nothing else.
chmod 644 "$generic"
user() { setpriv --reuid 65534 --clear-groups "$@"; }
user nvme io-passthru "$generic" --opcode=2 --namespace-id=1 --data-len=4096 --cdw12=7 --read >/dev/null 2>&1 \
    || die "an ordinary user's read is refused"
user nvme id-ns "$generic" >/dev/null || die "an ordinary user's Identify Namespace is refused"
user nvme id-ctrl "$generic" >/dev/null || die "an ordinary user's Identify Controller is refused"
head -c 4096 /dev/urandom >"$WORK/a"
chmod 644 "$WORK/a"
fails user nvme io-passthru "$generic" --opcode=1 --namespace-id=1 --data-len=4096 --cdw12=7 --write --input-file="$WORK/a"
fails user nvme get-log "$generic" --log-id=2 --log-len=512
disconnect
stop
