#!/bin/bash
# limit: 360
# kernel: newest
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# processors: 2
# A program that the kernel runs is being replaced, and waits for a write that the old one delays by nine seconds, when another
# replacement is asked for, the device is deleted, or its server is told to stop: each of them ends, what was being written and
# what was held back is written, and nothing is left. And a write takes longer than a replacement waits: the old program goes on, and
# another replacement is made in its time.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv
bpf=$(realpath "$(dirname "$0")/../../bpf")
image=$SCRATCH/a.img
for name in slow held; do printf "${name:0:1}%.0s" {1..4096} >"$WORK/$name"; done
# put FILE BLOCK: 4 KiB, to a place of 4 KiB
put() { dd if="$1" of="$DEVICE" bs=4096 seek="$2" count=1 oflag=direct conv=notrunc status=none; }
at() { dd if="$image" bs=4096 skip="$1" count=1 status=none; }

# try_to_begin: a device whose program is being replaced, with a write that it waits for and one, to block `place`, that is held
# back: those that come before the replacement has begun are not. Fails where the machine stood still for so long that none is, and
# takes the device away.
try_to_begin() {
    local turn
    rm -f "$image"
    truncate -s 16M "$image"
    in_kernel "bpf:$bpf/tests/late.bpf.o($image)" -q 2 -d 16
    put "$WORK/slow" 1 &
    slow=$!
    await 30 in_flight 1
    "$NVLANE" bpf replace "$DEVICE" "$bpf/linear.bpf.o" >"$WORK/first" 2>&1 &
    first=$!
    pause 1
    for ((place = 9; place < 64; place++)); do
        put "$WORK/held" $place &
        held=$!
        for ((turn = 0; turn < 30; turn++)); do
            if in_flight 2 || ! kill -0 $held 2>/dev/null; then break; fi
            pause 0.1
        done
        pause 0.5
        in_flight 2 && cmp -s /dev/zero <(at 1) -n 4096 && cmp -s /dev/zero <(at $place) -n 4096 && return
        wait $held || die "a write that was not held back failed"
        kill -0 $slow 2>/dev/null || break
    done
    echo "not held back: $(tr '\n' ' ' <"$WORK/first")"
    wait $slow || die "the slow write failed"
    wait $first || die "nothing but one slow write, and not replaced: $(<"$WORK/first")"
    ublk_stop
    return 1
}
begin() {
    local attempt
    for attempt in 1 2 3; do try_to_begin && return; done
    die "in $attempt attempts nothing was held back"
}

# written: both writes have ended without an error, and their bytes are there
written() {
    wait $slow || die "$1: the slow write failed"
    wait $held || die "$1: the write that was held back failed"
    cmp "$WORK/slow" <(at 1) || die "$1: other bytes"
    cmp "$WORK/held" <(at $place) || die "$1: other bytes"
}

# Another one takes its turn.
begin
"$NVLANE" bpf replace "$DEVICE" "$bpf/statistics.bpf.o" >"$WORK/second" 2>&1 || die "the second one: $(<"$WORK/second")"
wait $first || die "the first one: $(<"$WORK/first")"
written "two at once"
expect_match "the program" "$("$NVLANE" ublk list)" 'statistics\.bpf\.o.*program in the kernel'
verified_io "$DEVICE" 6M
ublk_stop

# ends WHAT COMMAND: that ends the server in order, in the middle of it
ends() {
    local what=$1 status=0
    shift
    begin
    "$@"
    wait "$UBLK_SERVER" || status=$?
    expect "the server's exit status after $what" $status 0
    wait $first && echo "replaced before $what" || echo "not replaced: $(<"$WORK/first")"
    written "$what"
    expect "devices after $what" "$(compgen -G '/dev/ublk[bc]*' || true)" ""
    expect "what is noted after $what" "$(compgen -G "/run/nvlane/ublk-$ID.*" || true)" ""
}
is_idle() { ! in_flight 1; }
# waited PLACE: a write to block 16 takes 25 s, of which a replacement waits for 15, and gives up: sets `said`. Fails where the
# machine stood still for so long that the write has ended, and takes the device away.
waited() {
    rm -f "$image"
    truncate -s 16M "$image"
    ublk_add "bpf:$bpf/tests/late.bpf.o($image)" -q 2 -d 16 --bpf "$1"
    put "$WORK/slow" 2 &
    slow=$!
    await 30 in_flight 1
    if said=$("$NVLANE" bpf replace "$DEVICE" "$bpf/linear.bpf.o" 2>&1) || ! kill -0 $slow 2>/dev/null; then
        # It is in place of the other once the write has ended, and not before.
        await 3 is_idle
        echo "the slow write has ended: $said"
        wait $slow || die "the slow write failed"
        ublk_stop
        return 1
    fi
}
too_long() {
    local said attempt
    for attempt in 1 2 3; do
        waited "$1" && break
        ((attempt < 3)) || die "in the $1, a replacement waited each time until the write had ended: $said"
    done
    expect_match "a replacement that waits too long, in the $1" "$said" 'requests in flight have not ended within 15 s'
    expect_match "the program then" "$("$NVLANE" ublk list)" 'late\.bpf\.o'
    put "$WORK/held" 9
    cmp "$WORK/held" <(at 9) || die "in the $1: other bytes after the pause was given up"
    # This one waits until the slow write has ended.
    "$NVLANE" bpf replace "$DEVICE" "$bpf/linear.bpf.o" >"$WORK/second" 2>&1 || die "in the $1: $(<"$WORK/second")"
    wait $slow || die "in the $1: the slow write failed"
    cmp "$WORK/slow" <(at 2) || die "in the $1: other bytes"
    expect_match "the program at last" "$("$NVLANE" ublk list)" 'linear\.bpf\.o'
    verified_io "$DEVICE" 6M
    ublk_stop
}
too_long kernel
too_long user

stop() { kill -TERM "$UBLK_SERVER"; }
delete() { "$NVLANE" ublk del --force "$ID"; }
ends SIGTERM stop
ends del delete
modprobe -r ublk_drv
