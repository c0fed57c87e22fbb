#!/bin/bash
# limit: 900
# round: 20
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# Programs that the kernel runs: every example under verified I/O without a return to user space per request, a
# file system, a full backend, a killed server and its successor, what the verifier refuses, a loop that is not ours, and
# what wrong lists of actions do.
#
# Linux 7.2 now and then warns that its load balancer has moved a thread that a sleepable BPF program may not be
# moved with: ours, which the kernel keeps in its loop. That is the scheduler's own affair, and nothing came of it.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
bpf=$(realpath "$(dirname "$0")/../../bpf")
a=$SCRATCH/a.img b=$SCRATCH/b.img
truncate -s $(((16 << 20) + 7 * 512)) "$a"
truncate -s 16M "$b"

# Elsewhere user space does it, and says why; who insists is told in a line.
checked=$("$NVLANE" bpf check "$bpf/linear.bpf.o" || true)
if ! grep -q '^kernel: ok' <<<"$checked"; then
    ! grep -q io_uring_bpf_ops /sys/kernel/btf/vmlinux || die "this kernel could: $checked"
    expect_match "why it is not asked" "$checked" $'\nkernel: not asked: this kernel has no BPF operations of io_uring; use Linux 7.1 or newer'
    ublk_add "bpf:$bpf/linear.bpf.o($a,$b)"
    expect_match "where it runs" "$(<"$WORK/ublk.log")" 'program in user space: '
    expect_match "where, for programs" "$("$NVLANE" ublk list -o json | jq -r '.devices[0] | "\(.program_place) \(.program_reason)"')" '^user .+'
    deep_io 10
    expect_joined "$DEVICE" 10 12 "$a" "$b"
    ublk_stop
    said=$(fails "$NVLANE" ublk add --bpf kernel "bpf:$bpf/linear.bpf.o($a,$b)")
    expect_match "insisting" "$said" 'cannot run in the kernel: '
    exit 0
fi

# One that may keep a block in several places is taken, and runs elsewhere unless somebody insists.
expect_match "what is said of a mirror" "$("$NVLANE" bpf check "$bpf/mirror.bpf.o")" $'\nkernel: ok\n.nvlane ublk add. runs it in user space unless --bpf kernel is given'
expect "where it would run" "$("$NVLANE" bpf check "$bpf/mirror.bpf.o" -o json | jq -r '"\(.kernel.verdict), \(.by_default)"')" 'ok, user'
expect "where linear would run" "$("$NVLANE" bpf check "$bpf/linear.bpf.o" -o json | jq -r '"\(.kernel.verdict), \(.by_default)"')" 'ok, kernel'

small=(--bssplit=512/40:4k/40:16k/10:128k/7:1M/3)

# alone KIB [LARGEST]: verified I/O of one request at a time around there, on 512 KiB and then the largest ones on 2 MiB;
# LARGEST are the KiB of a request that the program takes whole
alone() {
    expect "the largest request, in KiB" "$(<"/sys/block/${DEVICE#/dev/}/queue/max_sectors_kb")" "${2:-1024}"
    verified_io "$DEVICE" 512k --iodepth=1 --bssplit=512/40:1536/20:4k/30:64k/10 --name=alone --offset=$(($1 - 256))k --randseed=2 \
        --name=large --stonewall --rw=write --bssplit=1M/100 --size=2M --offset=$(($1 - 1024))k
}

# Stops the device after COUNTED requests more, and wants of each queue that the kernel came back a few
# times at the end, not once per so many requests (everyday: per some dozen): where others compute as well, up to once for each tag that ends.
COUNTED=$((FULL ? 8192 : 1024))
stop_counted() {
    local requests returns lines=0 all=0 queues
    dd if="$DEVICE" of=/dev/null bs=512 count=$COUNTED skip=16384 iflag=direct status=none
    queues=$(ls "/sys/block/${DEVICE#/dev/}/mq" | wc -l)
    ublk_stop
    while read -r requests returns; do
        echo "$1: $requests requests, $returns returns to user space"
        ((returns <= 40 + 128)) || die "$returns returns to user space for $requests requests"
        lines=$((lines + 1)) all=$((all + requests))
    done < <(each_queue)
    expect "the queues that $1 tells of" $lines "$queues"
    ((all > COUNTED)) || die "only $all requests"
}

# Requests come many at a time where they can.
in_kernel "bpf:$bpf/linear.bpf.o($a,$b)" -q 2 -d 128
expect_match "the list" "$("$NVLANE" ublk list)" 'program in the kernel'
expect "the list for programs" "$("$NVLANE" ublk list -o json | jq -r '.devices[0] | "\(.program_place) \(.program_reason)"')" 'kernel null'
! has_feature BATCH_IO || expect_match "how requests come" "$(<"$WORK/ublk.log")" 'in batches'
# Where the one ends and the other begins is in the middle of a page.
deep_io 10
alone $((16 << 10))
expect_joined "$DEVICE" 10 12 "$a" "$b"
mkfs.ext4 -q "$DEVICE"
mount "$DEVICE" /mnt/test
dd if=/dev/urandom of=/mnt/test/data bs=1M count=8 conv=fsync status=none
sum=$(sha256sum </mnt/test/data)
umount /mnt/test
fsck.ext4 -fn "$DEVICE" >"$WORK/fsck" 2>&1 || die "fsck: $(<"$WORK/fsck")"
# The same in user space: the blocks are where they were.
stop_counted linear
ublk_add "bpf:$bpf/linear.bpf.o($a,$b)" --bpf user
mount -o ro "$DEVICE" /mnt/test
expect "the file, routed in user space" "$(sha256sum </mnt/test/data)" "$sum"
umount /mnt/test
ublk_stop

# And one by one.
in_kernel "bpf:$bpf/stripe.bpf.o($a,$b)" -q 2 -d 128 --no-batch
! grep -q 'in batches' "$WORK/ublk.log" || die "in batches: $(<"$WORK/ublk.log")"
deep_io 0 "${small[@]}"
alone 2048
blkdiscard -f -o 0 -l 1M "$DEVICE"
blkdiscard -f -z -o 1M -l 1M "$DEVICE"
cmp -n $((2 << 20)) /dev/zero "$DEVICE" || die "discarded and zeroed blocks are not zeroes"
stop_counted stripe

mirror="bpf:$bpf/mirror.bpf.o($SCRATCH/c.img?size=16M&create,$SCRATCH/d.img?size=16M&create)"
in_kernel "$mirror" -q 2 -d 128
deep_io 0 "${small[@]}"
alone 2048
stop_counted mirror
cmp "$SCRATCH/c.img" "$SCRATCH/d.img" || die "the mirrors differ"
ublk_add "$mirror"
expect_match "where a mirror runs" "$(<"$WORK/ublk.log")" 'in user space: .*NVLANE_ONE_PLACE'
ublk_stop

# Per-core maps: the sum over all cores is what has passed.
in_kernel "bpf:$bpf/statistics.bpf.o($b)" -q 2 -d 128
# counted OPERATION: its requests
counted() {
    local value sum=0
    "$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
    while read -r value; do
        sum=$((sum + 16#$(tac -rs .. <<<"${value:0:16}" | tr -d '\n')))
    done < <(jq -r --arg key "$1" '.. | objects | select(.name == "operations") | .entries[] | select(.key == $key) | .values[]' "$WORK/stat.json")
    echo $sum
}
before=("$(counted 01000000)" "$(counted 02000000)")
dd if=/dev/zero of="$DEVICE" bs=4k count=300 oflag=direct status=none
taskset -c 1 dd if="$DEVICE" of=/dev/null bs=4k count=200 iflag=direct status=none
taskset -c 0 dd if="$DEVICE" of=/dev/null bs=4k count=100 iflag=direct status=none
expect "the writes that were counted" $(($(counted 01000000) - before[0])) 300
expect "the reads that were counted" $(($(counted 02000000) - before[1])) 300
deep_io 0 "${small[@]}"
alone 2048
stop_counted statistics

sum=$(sha256sum <"$b")
# Without being told to: a block has one place at a time.
ublk_add "bpf:$bpf/snapshot.bpf.o(file:$b?ro,$SCRATCH/over.img?size=16M&create)" -q 2 -d 128 --log debug
expect_match "where a snapshot runs" "$(<"$WORK/ublk.log")" ', program in the kernel'
cmp -n $((1 << 20)) "$b" "$DEVICE" || die "what was not written is not the base"
deep_io 0 "${small[@]}"
# For each block there may be a part.
alone 2048 16
stop_counted snapshot
expect "the base of a snapshot" "$(sha256sum <"$b")" "$sum"

in_kernel "bpf:$bpf/rate.bpf.o($b)" -q 2 -d 128
begun=$(date +%s%N)
dd if="$DEVICE" of=/dev/null bs=1M iflag=direct status=none
dd if="$DEVICE" of=/dev/null bs=1M iflag=direct status=none
took=$((($(date +%s%N) - begun) / 1000000))
((took >= 400)) || die "32 MiB at 64 MiB/s took $took ms"
deep_io 0 "${small[@]}"
alone 2048
stop_counted rate

# What is written first is deferred, as deep as the queues are and alone; a request is as large as a chunk at most.
in_kernel "bpf:$bpf/thin.bpf.o($SCRATCH/f.img?size=16M&create,$SCRATCH/g.img?size=24M&create)" -q 2 -d 128
deep_io 0 "${small[@]}"
alone $((15 << 10))
stop_counted thin

sum=$(sha256sum <"$b")
in_kernel "bpf:$bpf/null.bpf.o($b)" -d 16
dd if=/dev/urandom of="$DEVICE" bs=1M count=4 oflag=direct status=none
cmp -n $((4 << 20)) /dev/zero <(dd if="$DEVICE" bs=1M count=4 iflag=direct status=none) || die "null does not read zeroes"
stop_counted null
# The driver makes no more queues than there are processors, and the kernel's memory would not do for what was asked for.
in_kernel "bpf:$bpf/null.bpf.o($b)" -q 4096 -d 1024
expect "queues" "$(ls "/sys/block/${DEVICE#/dev/}/mq" | wc -l)" "$(nproc)"
dd if="$DEVICE" of=/dev/null bs=4k count=16 iflag=direct status=none
ublk_stop
expect "what null was put over" "$(sha256sum <"$b")" "$sum"

# What a program makes of a discard frees blocks, and reads as zeroes.
e=$SCRATCH/e.img
dd if=/dev/urandom of="$e" bs=1M count=16 conv=fsync status=none
in_kernel "bpf:$bpf/tests/zeroing.bpf.o($e)" -d 16
blkdiscard -f -o 0 -l 8M "$DEVICE"
cmp -n $((8 << 20)) /dev/zero "$DEVICE" || die "what was discarded is not zeroes"
stop_counted zeroing
sync "$e"
(($(data_bytes "$e") <= 9 << 20)) || die "discarded blocks are not free: $(data_bytes "$e") bytes"
cmp -n $((8 << 20)) /dev/zero "$e" || die "what was discarded is not zeroes in the file"

# A backend that is full in the middle of a write: what the rest says is what the writer is told.
mkdir -p "$WORK/full"
mount -t tmpfs -o size=5500k none "$WORK/full"
truncate -s 16M "$WORK/full/f.img"
in_kernel "bpf:$bpf/tests/zeroing.bpf.o($WORK/full/f.img)" -d 16
said=$(fails dd if=/dev/urandom of="$DEVICE" bs=1M count=8 oflag=direct status=none)
expect_match "writing to a full backend" "$said" 'No space left on device'
ublk_stop
umount "$WORK/full"

# A server that is killed under verified I/O, whose requests come one by one, or many at a time: no error, and each write that
# was acknowledged is there.
ways=()
! has_feature USER_RECOVERY_REISSUE || ways+=(--no-batch)
! has_feature BATCH_IO || ways+=(--batch)
for way in "${ways[@]}"; do
    in_kernel "bpf:$bpf/linear.bpf.o($a,$b)" -q 2 -d 16 --recover "$way"
    fio --name=load --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k \
        --offset=10M --size=12M --verify=crc32c --verify_fatal=1 --verify_backlog=32 --time_based --runtime=1800 --randseed=3 \
        >"$WORK/load" 2>&1 &
    load=$!
    rm -f "$WORK/ledger"
    "$XTASK" ledger write --device "$DEVICE" --ledger "$WORK/ledger" --seconds 3600 --blocks 2048 --read-back >"$WORK/ledger.log" 2>&1 &
    ledger=$!
    for ((round = 1; round <= (FULL ? 50 : 2); round++)); do
        sleep "0.$((RANDOM % 9 + 1))"
        kill -KILL "$UBLK_SERVER"
        wait "$UBLK_SERVER" 2>/dev/null || true
        : >"$WORK/recover.log"
        "$NVLANE" ublk recover "$ID" --log debug >"$WORK/recover.log" 2>&1 </dev/null &
        UBLK_SERVER=$!
        ublk_ready "$WORK/recover.log"
        expect_match "where a successor runs it" "$(<"$WORK/recover.log")" 'program in the kernel'
        echo "$way, round $round: killed, and served again"
        kill -0 "$load" || die "fio: $(<"$WORK/load")"
        kill -0 "$ledger" || die "round $round: $(<"$WORK/ledger.log")"
    done
    await 60 heeds "$load"
    sleep 1
    kill "$ledger" || die "in the end: $(<"$WORK/ledger.log")"
    wait "$ledger" || true
    kill -INT "$load"
    status=0
    wait "$load" || status=$?
    ((status == 0 || status == 128)) || die "fio: status $status: $(<"$WORK/load")"
    ! grep -iE 'verify.*(fail|bad)|error' "$WORK/load" || die "fio: $(<"$WORK/load")"
    "$XTASK" ledger verify --device "$DEVICE" --ledger "$WORK/ledger" --at-least 10
    ublk_stop
done

# What the verifier refuses does not run, and user space takes it in.
said=$(fails "$NVLANE" bpf check "$bpf/tests/endless.bpf.o")
expect_match "the verdict on an endless loop in user space" "$said" \
    $'\nuser space: 52 of 52 requests tried on 2 volumes would fail:\n  opcode 0x02, 1 blocks at 0: nvlane_route instruction [0-9]+ \\(endless.bpf.c:9\\): more than 65536 instructions: an endless loop\\?\n'
expect_match "the verdict on an endless loop in the kernel" "$said" $'\nkernel: refused\n.*; while \\(forever\\) @ endless.bpf.c:9\n.*infinite loop detected at insn [0-9]+\n'
expect_match "the verdict on an endless loop" "$said" 'endless.bpf.o: requests would fail with an I/O error; the kernel does not take it'
# What is tried in user space is none of what it does wrong; the verifier looks at all of it.
said=$(fails "$NVLANE" bpf check "$bpf/tests/hostile.bpf.o")
expect_match "the verdict on a hostile program in user space" "$said" $'\nuser space: taken; 52 requests tried on 2 volumes; '
expect_match "the verdict on a hostile program in the kernel" "$said" $'\nkernel: refused\n.*recursive call from deeper\\(\\) to deeper\\(\\)\n'
expect_match "the verdict on a hostile program" "$said" 'hostile.bpf.o: the kernel does not take it'
# The one place is asked whatever the other says.
said=$(fails "$NVLANE" bpf check "$bpf/snapshot.bpf.o" --backends 3)
expect_match "the verdict on a snapshot of too many" "$said" $'user space: refused\n  NVLANE_SETUP returned 1 [^\n]*\nkernel: ok\n'
said=$(fails "$NVLANE" ublk add --bpf kernel "bpf:$bpf/tests/hostile.bpf.o($b)")
expect_match "a wild program in the kernel" "$said" "cannot run in the kernel: the kernel's verifier refuses it"
# Nor does one whose program reaches into the loop, whoever insists.
failing="bpf:$bpf/tests/failing.bpf.o($b)"
said=$(fails "$NVLANE" bpf check "$bpf/tests/failing.bpf.o")
expect_match "the verdict on a loop that is not ours" "$said" $'\nkernel: refused\n  nvlane_kernel_[a-z]+ uses nvlane_queues'
said=$(fails "$NVLANE" ublk add --bpf kernel "$failing")
expect_match "a loop that is not ours, insisting" "$said" 'cannot run in the kernel: nvlane_kernel_[a-z]+ uses nvlane_queues'
in_kernel "bpf:$bpf/linear.bpf.o($b)" -d 8
said=$(fails "$NVLANE" bpf replace "$DEVICE" "$bpf/tests/failing.bpf.o")
expect_match "a loop that is not ours instead of one that is" "$said" 'nvlane_kernel_[a-z]+ uses nvlane_queues'
dd if="$DEVICE" of=/dev/null bs=4k count=1 iflag=direct status=none
ublk_stop
ublk_add "$failing"
expect_match "where it runs" "$(<"$WORK/ublk.log")" 'program in user space: nvlane_kernel_[a-z]+ uses nvlane_queues'
ublk_stop
ublk_add "bpf:$bpf/tests/endless.bpf.o($b)"
expect_match "where an endless one runs" "$(<"$WORK/ublk.log")" 'program in user space: '
# Its requests fail, and another device beside it lives on.
: >"$WORK/beside.log"
"$NVLANE" ublk add mem:16M >"$WORK/beside.log" 2>&1 </dev/null &
beside=$!
await 90 says "$WORK/beside.log" '^ready'
other=$(sed -nE 's|^(/dev/ublkb[0-9]+): .*|\1|p' "$WORK/beside.log")
for _ in 1 2 3; do
    said=$(fails dd if="$DEVICE" of=/dev/null bs=4k count=1 iflag=direct status=none)
    expect_match "a read by an endless program" "$said" 'Input/output error'
    dd if="$other" of=/dev/null bs=64k count=4 iflag=direct status=none
done
expect_match "what is said of it" "$(<"$WORK/ublk.log")" 'request failed: nvlane_route instruction [0-9]+ \(endless\.bpf\.c:[0-9]+\): more than 65536 instructions'
kill -TERM "$beside"
wait "$beside" || die "the other server did not end well: $(<"$WORK/beside.log")"
ublk_stop

# Wrong lists fail their requests, with a message; the device lives on.
in_kernel "bpf:$bpf/tests/mild.bpf.o($b)" -d 8
for number in 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 29; do
    said=$(fails dd if="$DEVICE" of=/dev/null bs=4k count=1 skip="$((number * 512))" iflag=direct,skip_bytes status=none)
    expect_match "wrong list $number" "$said" 'Input/output error'
done
dd if="$DEVICE" of=/dev/null bs=4k count=1 skip="$((25 * 512))" iflag=direct,skip_bytes status=none
dd if="$DEVICE" of=/dev/null bs=4k count=1 skip=100 iflag=direct status=none
# More than fits into a map is turned away there, too.
dd if="$DEVICE" of=/dev/null bs=4k count=1 skip="$((28 * 512))" iflag=direct,skip_bytes status=none
"$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
expect_json "$WORK/stat.json" '[.. | objects | select(.name == "hash") | .entries[]] | length' 4
# Told for the 1st, 2nd, 4th, 8th and 16th; some come from the kernel's own look for partitions.
await 30 says "$WORK/ublk.log" 'count=16'
expect "mistakes told" "$(grep -c 'ERROR request failed: nvlane_route instruction' "$WORK/ublk.log")" 5
expect_match "where a mistake is" "$(<"$WORK/ublk.log")" '\(hostile.bpf.c:[0-9]+\): .* \(opcode 0x02, 8 blocks at 1[0-9]\)'
# Writes that leave a block out, write one twice, or go beyond the backend's end fail whole; parts in another order do not.
"$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
mistakes=$(jq '.programs[0].mistakes' "$WORK/stat.json")
sum=$(sha256sum <"$b")
head -c 4096 /dev/urandom >"$WORK/written"
put() { dd if="$WORK/written" of="$DEVICE" bs=4k count=1 seek="$(($1 * 512))" oflag=direct,seek_bytes conv=notrunc status=none; }
for number in 40 48 64; do
    said=$(fails put "$number")
    expect_match "wrong write $number" "$said" 'Input/output error'
done
expect "the file after wrong writes" "$(sha256sum <"$b")" "$sum"
"$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
expect_json "$WORK/stat.json" '.programs[0].mistakes' $((mistakes + 3))
put 56
cmp -n 4096 "$WORK/written" <(tail -c +$((56 * 512 + 1)) "$b") || die "a write in two parts is not where it was put"
verified_io "$DEVICE" 2M "${small[@]}" --offset=8M
stop_counted mild

# Maps, variables, atomic operations and helpers are there what they are in user space. `counter` and `failed`: of the
# steps only the one is wrong, bit 25, that wants the time that the program's other tests imagine.
in_kernel "bpf:$bpf/tests/maps.bpf.o($b)" -d 8
dd if="$DEVICE" of=/dev/null bs=4k count=10 iflag=direct status=none
"$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
variables=$(jq -r '.. | objects | select(.name == ".bss") | .entries[0].values[0]' "$WORK/stat.json")
expect_match "the variables of maps" "$variables" '^39000000000000000000000200000000'
ublk_stop

modprobe -r ublk_drv
