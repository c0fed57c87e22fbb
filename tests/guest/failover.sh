#!/bin/bash
# limit: 360
# Paths that come and go under I/O: ANA states that change, listeners that vanish, a network that
# falls silent, a server that stands still, rescans. Writers notice nothing. Of blktests' nvme group
# this stands for 053, 057, 060 and 068.
. "$(dirname "$0")/harness.sh"

serve "file:$SCRATCH/f.img?size=128M&create" --listen 127.0.0.1:4436
connect -i 2 --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=120
nvme connect -t tcp -a 127.0.0.1 -s 4436 -n "$NQN" -i 1 --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=120
device=$(namespace 1)
mapfile -t paths < <(controllers)
expect "paths" "${#paths[@]}" 2

# under_io COMMAND...: fio writes, reads and checks until the command has ended
under_io() {
    fio --name=io --filename="$device" --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw \
        --bs=4k --size=16M --verify=crc32c --verify_fatal=1 --time_based --runtime=600 \
        --output-format=json --output="$WORK/io.json" &
    local io=$! before
    moves() { (($(completed) > before + 50)); }
    before=$(completed)
    await 60 moves
    "$@"
    kill -0 $io 2>/dev/null || die "fio ended during $*: $(tail -n 40 "$WORK/io.json")"
    # Still moving, not only alive.
    before=$(completed)
    await 60 moves
    kill -INT $io
    # 128: by the signal.
    wait $io || (($? == 128)) || die "fio was stopped by an error during $*: $(tail -n 40 "$WORK/io.json")"
    # What it says of the signal is no JSON.
    sed -i '/^{/,$!d' "$WORK/io.json"
    expect_json "$WORK/io.json" '[.jobs[].error] | add' 0
    echo "$*: $(jq '.jobs[0].write.total_ios + .jobs[0].read.total_ios' "$WORK/io.json") of I/O, none failed"
}
completed() { awk '{ print $1 + $5 }' "/sys/block/${device#/dev/}/stat"; }
both_live() { is_live "${paths[0]}" && is_live "${paths[1]}"; }

swap_states() {
    local _
    for _ in 1 2 3; do
        ctl ana set 1 inaccessible --listener 127.0.0.1:4436
        ctl ana set 1 optimized --listener "127.0.0.1:$PORT"
        sleep 1
        ctl ana set 1 optimized --listener 127.0.0.1:4436
        ctl ana set 1 inaccessible --listener "127.0.0.1:$PORT"
        sleep 1
    done
    ctl ana set 1 optimized
}
under_io swap_states

lose_listeners() {
    local port
    for port in 4436 "$PORT" 4436; do
        ctl listener remove "127.0.0.1:$port"
        sleep 2
        ctl listener add "127.0.0.1:$port"
        await 60 both_live
    done
}
under_io lose_listeners

rescans() {
    local n
    for n in 0 1 0 1 0 1; do
        echo 1 >"/sys/class/nvme/${paths[n]}/rescan_controller"
        sleep 0.4
    done
}
under_io rescans

resets() {
    local n
    for n in 0 1 0 1; do
        await 30 is_live "${paths[n]}"
        { echo 1 >"/sys/class/nvme/${paths[n]}/reset_controller"; } 2>/dev/null || true
        sleep 0.5
    done
    await 60 both_live
}
under_io resets

# A server that stands still for longer than the keep alive timeout: the host gives the paths up,
# and comes back when the server does, which finds commands of connections that are no more.
stands_still() {
    kill -STOP "$SERVER"
    not_live() { ! is_live "${paths[0]}" && ! is_live "${paths[1]}"; }
    await 60 not_live
    kill -CONT "$SERVER"
    await 60 both_live
}
under_io stands_still

# A network that falls silent: the server hears no keep alive and drops the controllers by itself.
falls_silent() {
    ip link set lo down
    connections() { [[ $(ctl stats -o json | jq .connections) == 0 ]]; }
    await 60 connections
    ip link set lo up
    await 60 both_live
}
under_io falls_silent

# The host keeps a device without paths for a while, and so the I/O that waits, until one is there again.
disconnect
connect -i 1
device=$(namespace 1)
retry=/sys/block/${device#/dev/}/delayed_removal_secs
if [[ -e $retry ]]; then
    echo 60 >"$retry"
    disconnect
    dd if=/dev/urandom of="$device" bs=4k count=1 oflag=direct status=none &
    write=$!
    sleep 1
    kill -0 $write || die "a write did not wait for a path"
    connect -i 1
    wait $write || die "the write that waited for a path has failed"
    echo 0 >"$retry"
fi
disconnect
stop
