#!/bin/bash
# limit: 300
# processors: 2
# Several threads per queue: one client's requests are served by all of them, verified on every way of data; what cannot be
# is refused in a line; the number of threads is noted, and another server may have another, also after kill -9.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
bpf=$(realpath "$(dirname "$0")/../../bpf")
image=$SCRATCH/threads.img
truncate -s 64M "$image"
if ! has_feature PER_IO_DAEMON; then
    said=$(fails "$NVLANE" ublk add "$image" --threads 2)
    expect_match "several threads on an older kernel" "$said" 'several threads per queue need Linux 6.16'
    exit 0
fi

# served_by: the requests that each thread of the server that has ended had
served_by() { sed -nE '/a queue has ended/s/.* requests=([0-9]+) .*/\1/p' "$WORK/ublk.log"; }
# threads_of: names of the server's threads that serve
threads_of() { cat /proc/"$UBLK_SERVER"/task/*/comm | grep '^ublk-' | sort | paste -sd' '; }

serve "$SCRATCH/remote.img?size=64M&create"
remote="tcp://127.0.0.1:$PORT/$NQN?ns=1"
shared() {
    local volume=$1 way=$2
    ublk_add "$volume" "$way" -d 64 --threads 3 --log debug
    expect_match "what it says" "$(<"$WORK/ublk.log")" ' with 3 threads each, '
    expect "its threads" "$(threads_of)" "ublk-0.0 ublk-0.1 ublk-0.2"
    verified_io "$DEVICE" 6M --iodepth=64 --cpus_allowed=1
    ublk_stop
    expect "$volume, $way: threads that had requests" "$(served_by | grep -vc '^0$')" 3
}
shared "$image" --zero-copy
shared "$image" --user-copy
shared "$image" --copy
shared mem:64M --user-copy
shared "$remote" --zero-copy

ublk_add "linear:($image,mem:32M)" -q 2 -d 16 --threads 2 --log debug
verified_io "$DEVICE" 6M --iodepth=32 --offset=60M --name=low --cpus_allowed=0 --name=high --offset=70M --cpus_allowed=1
"$NVLANE" ublk list -o json >"$WORK/list.json"
expect_json "$WORK/list.json" '.devices[0].threads' 2
ublk_stop
expect "two threads of each of two queues that had requests" "$(served_by | grep -vc '^0$')" 4

refused() {
    local what=$1
    shift
    said=$(fails "$NVLANE" ublk add "$@")
    expect "lines about $what" "$(wc -l <<<"$said")" 1
    expect_match "$what" "$said" "several threads per queue $REASON"
}
REASON='have their requests one by one' refused "batches" "$image" --threads 2 --batch
said=$(fails "$NVLANE" ublk add "bpf:$bpf/linear.bpf.o($image)" --bpf kernel --threads 2)
expect_match "a program in the kernel" "$said" 'cannot run in the kernel: several threads per queue are for user space'
REASON='are at least one, and at most as many' refused "more threads than requests" "$image" -d 2 --threads 3
expect "devices after that" "$(compgen -G "/dev/ublkb*" || true)" ""

# A device that outlives its servers: killed under load, taken over by more threads, and upgraded with what is noted.
ublk_add "$image" --recover -d 32 --threads 2
fio --name=load --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=32 --rw=randrw --bsrange=512-128k --size=16M \
    --verify=crc32c --verify_fatal=1 --verify_backlog=64 --time_based --runtime=900 >"$WORK/load" 2>&1 &
load=$!
await 60 heeds "$load"
pause 1
kill -KILL "$UBLK_SERVER"
wait "$UBLK_SERVER" 2>/dev/null || true
said=$(fails "$NVLANE" ublk recover "$ID" --threads 33)
expect_match "more threads than the device has requests" "$said" 'several threads per queue are at least one, and at most as many'
: >"$WORK/next.log"
"$NVLANE" ublk recover "$ID" --threads 4 >"$WORK/next.log" 2>&1 </dev/null &
UBLK_SERVER=$!
ublk_ready "$WORK/next.log"
expect "threads after recover" "$(threads_of)" "ublk-0.0 ublk-0.1 ublk-0.2 ublk-0.3"
pause 1
before=$UBLK_SERVER
: >"$WORK/upgrade.log"
"$NVLANE" ublk upgrade "$ID" >"$WORK/upgrade.log" 2>&1 </dev/null &
UBLK_SERVER=$!
ublk_ready "$WORK/upgrade.log"
status=0
wait "$before" || status=$?
expect "the exit status of the server that was upgraded" $status 0
expect "threads after upgrade" "$(threads_of)" "ublk-0.0 ublk-0.1 ublk-0.2 ublk-0.3"
pause 1
kill -INT "$load"
wait "$load" || true
grep -q 'err= 0' "$WORK/load" || die "I/O failed: $(<"$WORK/load")"
ublk_stop
modprobe -r ublk_drv
