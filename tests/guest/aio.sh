#!/bin/bash
# limit: 420
# devices: usual
# Programs that use libaio, on our libaio: verified I/O on null_blk, the polled interface on null_blk and on NVMe with
# poll queues, and a device that goes away under I/O.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

# As installed: beside the program, or where a build puts it.
for library in "${NVLANE%/*}"/{libaio.so.1,libnvlane_aio.so,deps/libnvlane_aio.so} "${NVLANE%/*}/../lib/nvlane/libaio.so.1"; do
    [[ -e $library ]] && break
done
[[ -e $library ]] || die "our libaio is not beside $NVLANE"

modprobe null_blk nr_devices=0
null=/sys/kernel/config/nullb/aio
mkdir "$null"
for setting in size=256 memory_backed=1 submit_queues=2 poll_queues=1 queue_mode=2 irqmode=0; do
    echo "${setting#*=}" >"$null/${setting%=*}"
done
echo 1 >"$null/power"
device=/dev/$(cat "$null/index" | sed s/^/nullb/)
[[ -b $device ]] || device=/dev/aio
[[ -b $device ]] || die "null_blk has no device: $(ls /dev)"

# on_ours NAME OPTION...: verified random I/O, and how it went
on_ours() {
    local name=$1
    shift
    "$NVLANE" aio run --stat "$WORK/stat.json" -- fio --name="$name" --ioengine=libaio --verify=crc32c --verify_fatal=1 \
        --verify_state_save=0 --randseed=1 --rw=randrw --bssplit=4k/60:16k/30:64k/10 \
        --size=32M --thread --output-format=json --output="$WORK/$name.json" "$@" ||
        die "fio $name: $(tail -n 20 "$WORK/$name.json")"
    # fio's warnings come before the object.
    sed -i '/^{/,$!d' "$WORK/$name.json"
    expect_json "$WORK/$name.json" '[.jobs[].error] | add' 0
    jq -r "\"$name: \\(.total.ring) by io_uring, \\(.total.inline) at once, \\(.total.native) natively\"" "$WORK/stat.json"
}

# One by one, and in batches.
on_ours direct --filename="$device" --direct=1 --iodepth=16
expect_json "$WORK/stat.json" '.total.ring > 100 and .total.native > .total.ring' true
on_ours batches --filename="$device" --direct=1 --iodepth=32 --iodepth_batch=16 --iodepth_batch_complete_min=8
expect_json "$WORK/stat.json" '.total.ring > 10 * .total.native' true

# prioritized MODE CLASS WORD WAY: random reads with a priority of that class, level 3, went that way, and the block layer was told it of each
prioritized() {
    local events=$TRACE/events/block/block_rq_issue
    # Linux before 6.11 does not tell.
    grep -q ioprio "$events/format" || return 0
    echo >"$TRACE/trace"
    echo 1 >"$events/enable"
    "$NVLANE" aio run --mode "$1" --stat "$WORK/stat.json" -- fio --name=priority --ioengine=libaio --filename="$device" --direct=1 \
        --rw=randread --bs=4k --size=32M --number_ios=512 --iodepth=16 --thread --cmdprio_percentage=100 --cmdprio_class="$2" --cmdprio=3 \
        >"$WORK/priority" 2>&1 || die "fio with priorities, $1: $(<"$WORK/priority")"
    echo 0 >"$events/enable"
    expect_json "$WORK/stat.json" "$4" true
    expect "reads of which the block layer knows the priority, $1 $3" "$(grep -cE " R 4096 .* $3,[0-9]+,3 " "$TRACE/trace")" 512
}
# By io_uring as by the kernel's AIO; real time goes to that.
prioritized native 2 be '.total.native == 512'
prioritized ring 2 be '.total | .native == 1 and .ring == 511'
prioritized ring 1 rt '.total.native == 512'

# Polled contexts (io_setup2): what one writes another reads, in each way.
"$NVLANE" aio run -- "$AIO_DEVICE" "$device" >"$WORK/polled" 2>&1 || die "polled contexts on null_blk: $(<"$WORK/polled")"
# The same on NVMe, where the queues that were used can be seen: those without interrupts.
plain=$(device nvlane-plain 1)
controller=$(controller_of "$plain")
tracing
"$NVLANE" aio run -- "$AIO_DEVICE" "/dev/nvme${plain#/dev/ng}" >"$WORK/polled" 2>&1 || die "polled contexts on NVMe: $(<"$WORK/polled")"
traced_enough
read -r interrupted polled < <(by_interrupt "$controller" '\(nvme_cmd_(read|write) ')
wanted=$(sed -n 's/^polled for: //p' "$WORK/polled")
echo "$wanted requests: $polled commands by queues that are polled, $interrupted by others"
((wanted > 100)) || die "not enough was polled for: $(<"$WORK/polled")"
expect "commands by queues that are polled" "$polled" "$wanted"

# durable WAY [COMMAND...]: sets DURABLE to the flushes and the writes that the device was given where the program says what it took
durable() {
    tracing
    "${@:2}" "$AIO_DEVICE" durable "$1" "/dev/nvme${plain#/dev/ng}" >"$WORK/durable" 2>&1 || die "durable, $1: $(<"$WORK/durable")"
    traced_enough
    DURABLE="$(traced "$controller" '[0-9]+' '\(nvme_cmd_flush ') flushes"
    DURABLE+=", $(traced "$controller" '[0-9]+' '\(nvme_cmd_write .*ctrl=0x4000,') writes with FUA"
    DURABLE+=", $(traced "$controller" '[0-9]+' '\(nvme_cmd_write .*ctrl=0x0,') without"
    echo "durable, $1: $DURABLE"
    expect "what the device was given, $1" "$DURABLE" "$(sed -n 's/^durable: //p' "$WORK/durable")"
}
# What is to be durable is so when its event comes: the device has flushed, or written through, once for each, whoever was asked.
durable kernel "$NVLANE" aio run --mode native --
wanted=$DURABLE
expect "what it takes" "$wanted" "32 flushes, 44 writes with FUA, 20 without"
for way in ours indices; do
    durable $way "$NVLANE" aio run --mode ring --stat "$WORK/stat.json" --
    expect_json "$WORK/stat.json" '.total | .ring == 96 and .native == 0 and .inline == 0' true
done

# What is seen of a program while it runs.
"$NVLANE" aio run -- fio --name=live --ioengine=libaio --rw=randread --bs=4k --filename="$device" --direct=1 --iodepth=16 \
    --size=32M --thread --time_based --runtime=60 >"$WORK/live" 2>&1 &
pid=$!
is_seen() {
    "$NVLANE" aio stat "$pid" -o json >"$WORK/live.json" 2>/dev/null && [[ $(jq '.total.ring > 100' "$WORK/live.json") == true ]]
}
await 50 is_seen
kill -INT "$pid"
wait "$pid" || (($? == 128)) || die "fio live: $(<"$WORK/live")"

# The same in a container, where it has another number.
unshare -pf "$NVLANE" aio run -- fio --name=contained --ioengine=libaio --rw=randread --bs=4k --filename="$device" --direct=1 \
    --iodepth=16 --size=32M --thread --time_based --runtime=60 >"$WORK/live" 2>&1 &
outer=$!
contained() { pid=$(<"/proc/$outer/task/$outer/children") && pid=${pid%% *} && [[ -n $pid ]]; }
await 20 contained
await 50 is_seen
kill -INT "$pid"
wait "$outer" || (($? == 128)) || die "fio in a container: $(<"$WORK/live")"

on_ours one --filename="$device" --direct=1 --iodepth=1
on_ours threads --filename="$device" --direct=1 --iodepth=8 --numjobs=3 --offset_increment=64M
on_ours cached --filename="$SCRATCH/aio.img" --direct=0 --iodepth=8
expect_json "$WORK/stat.json" '.total.inline > 100' true
# Who reads the ring by himself is left to the kernel, and who waits for eventfds.
on_ours reader --filename="$device" --direct=1 --iodepth=16 --userspace_reap --iodepth_batch_complete_min=0
expect_json "$WORK/stat.json" '.total.ring' 0
truncate -s 64M "$SCRATCH/image"
"$NVLANE" aio run -- qemu-img bench -n -t none -f raw -c 2000 -d 16 -w "$SCRATCH/image" >"$WORK/qemu" \
    || die "qemu-img: $(<"$WORK/qemu")"

# Where io_uring would use its threads, all goes to the kernel's AIO, and is taken from there by one call each time.
modprobe overlay
mkdir "$SCRATCH"/{lower,upper,work,merged}
mount -t overlay -o "lowerdir=$SCRATCH/lower,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" overlay "$SCRATCH/merged"
on_ours punts --filename="$SCRATCH/merged/aio.img" --direct=1 --iodepth=1
expect_json "$WORK/stat.json" '.total | .ring == 0 and .native > 1000 and .native_reaps < .reaps + 100' true
umount "$SCRATCH/merged"

# An unprivileged user may pin nothing: his I/O goes by whichever way there is.
mine=$SCRATCH/nobody
chmod 755 "$SCRATCH"
mkdir -m 777 "$mine"
# of_nobody PROGRAM...: runs fio by it, on a file of the user's own
of_nobody() {
    (
        ulimit -l 0
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@" fio --name=nobody --filename="$mine/file" --size=8M --thread \
            --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
            --randseed=1 --output-format=json --output="$mine/fio.json" >"$WORK/nobody" 2>&1
    )
}
by_ours=("$NVLANE" aio run --stat "$mine/stat.json" --)
of_nobody "${by_ours[@]}" || die "an unprivileged user: $(cat "$WORK/nobody" "$mine/fio.json")"
expect_json "$mine/stat.json" '.total | .ring + .native > 1000' true
echo "nobody: $(jq -r '"\(.total.ring) by io_uring, \(.total.native) natively"' "$mine/stat.json")"
# Where no more contexts can be had he gets the kernel's error, or none.
before=$(sysctl -n fs.aio-max-nr)
sysctl -qw fs.aio-max-nr=0
if of_nobody env; then die "a context was to be had natively: $(<"$WORK/nobody")"; fi
none='Resource temporarily unavailable|aio-max-nr'
expect_match "natively without contexts" "$(cat "$WORK/nobody" "$mine/fio.json")" "$none"
if ! of_nobody "${by_ours[@]}"; then expect_match "without contexts" "$(cat "$WORK/nobody" "$mine/fio.json")" "$none"; fi
sysctl -qw fs.aio-max-nr="$before"

# io_uring switched off (Linux 6.6): everything goes natively, and works.
if [[ -e /proc/sys/kernel/io_uring_disabled ]]; then
    echo 2 >/proc/sys/kernel/io_uring_disabled
    on_ours refused --filename="$device" --direct=1 --iodepth=16
    expect_json "$WORK/stat.json" '.total.ring' 0
    expect_json "$WORK/stat.json" '.total.native > 100' true
    echo 0 >/proc/sys/kernel/io_uring_disabled
fi

# ended PROCESS NAME: waits for it; what hangs is looked at
ended() {
    local task until=$((SECONDS + 90))
    while kill -0 "$1" 2>/dev/null; do
        if ((SECONDS > until)); then
            for task in "/proc/$1/task"/*; do cat "$task/comm" "$task/stack"; done
            die "$2 hangs on a device that is gone"
        fi
        pause 0.2
    done
}

# A device that goes away under I/O: each kind of request ends as by the kernel's own system calls, and so does the context.
slot=$(slot_of "$controller")
# gone WAY: sets GONE to how each kind ends
gone() {
    local block=/dev/nvme${plain#/dev/ng}
    : >"$WORK/gone"
    "$NVLANE" aio run -- "$AIO_DEVICE" "$1" "$block" >"$WORK/gone" 2>&1 &
    pid=$!
    await 30 says "$WORK/gone" '^begun'
    unbind "$slot"
    ended "$pid" "$1"
    wait "$pid" || die "$1: $(<"$WORK/gone")"
    GONE=$(grep '^gone' "$WORK/gone")
    echo "$1: ${GONE//$'\n'/, }"
    bind "$slot"
    plain=$(device nvlane-plain 1)
}
gone kernel
wanted=$GONE
gone ours
expect "how requests end" "$GONE" "$wanted"
for way in iopoll sqthread; do
    # These take no syncs.
    gone $way
    expect "how requests end by $way" "$GONE" "${wanted%$'\n'*}"
done

# The device goes away under fio: an end, whatever fio makes of it, and nothing left over.
"$NVLANE" aio run -- fio --name=gone --filename="$device" --ioengine=libaio --direct=1 --iodepth=16 \
    --rw=randread --time_based --runtime=15 --size=32M >"$WORK/gone" 2>&1 &
pid=$!
sleep 2
echo 0 >"$null/power"
ended "$pid" fio
wait "$pid" || true
rmdir "$null"
[[ $(</proc/sys/fs/aio-nr) == 0 ]] || die "contexts are left over"
