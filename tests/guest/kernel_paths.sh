#!/bin/bash
# limit: 500
# Two ports of the kernel's target under verified reads and writes: netem makes one link slow and then the other, and
# commands go by the link that is quick; each port goes away and comes back, twice, and nobody sees an error.
. "$(dirname "$0")/harness.sh"

modprobe -a sch_netem sch_prio cls_u32
FIRST=127.0.0.1 SECOND=127.0.0.2
kernel_serve "file:$SCRATCH/a.img?size=64M&create"
mkdir "$NVMET/ports/2"
for place in trtype:tcp adrfam:ipv4 traddr:$SECOND trsvcid:$PORT; do
    echo "${place#*:}" >"$NVMET/ports/2/addr_${place%%:*}"
done
ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/2/subsystems/$NQN"

# slow ADDRESS: what is sent to the port there waits, and nothing else does: answers of both come to 127.0.0.1. What waits already
# is not lost.
tc qdisc add dev lo root handle 1: prio bands 3 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
tc qdisc add dev lo parent 1:3 handle 30: netem delay 500ms limit 100000
slow() {
    tc filter del dev lo parent 1:
    tc filter add dev lo parent 1: protocol ip prio 1 u32 match ip dst "$1/32" \
        match ip dport "$PORT" 0xffff flowid 1:3
}

"$NVLANE" nbd "tcp://$FIRST:$PORT,$SECOND:$PORT/$NQN?ns=1&reconnect_delay=200ms&keep_alive_tmo=10s&ctrl_loss_tmo=60s" \
    --socket "$WORK/nbd.sock" --control "$WORK/nbd.ctl" --log info >"$WORK/nbd.log" 2>&1 </dev/null &
door=$!
await 60 says "$WORK/nbd.log" ready
fio --name=load --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/nbd.sock" --rw=randrw --bssplit=4k/60:16k/20:64k/20 --iodepth=8 \
    --size=48M --time_based --runtime=1000 --verify=crc32c --verify_fatal=1 --verify_backlog=128 --serialize_overlap=1 \
    --randseed=1 --output-format=json --output="$WORK/load.json" &
load=$!

# sent PATH: how many commands went by it so far
sent() { "$NVLANE" paths --socket "$WORK/nbd.ctl" -o json | jq ".volumes[0].paths[$1].selections"; }
# mostly PATH OTHER: whether nearly all of the last hundred commands or more went by one of them
mostly() {
    local one other
    one=$(sent "$1") other=$(sent "$2")
    local more=$((one - before[$1])) rest=$((other - before[$2]))
    ((more + rest > 100)) || return 1
    share="$more by path $1, $rest by path $2"
    before[$1]=$one before[$2]=$other
    ((more > 10 * rest))
}
before=(0 0)
has_found() { (($(grep -c "path is live" "$WORK/nbd.log") >= $1)); }
has_lost() { (($(grep -c "path is lost" "$WORK/nbd.log") >= $1)); }
await 20 has_found 2
for slower in 1 0; do
    address=$FIRST
    ((slower == 0)) || address=$SECOND
    slow "$address"
    await 120 mostly $((1 - slower)) "$slower"
    echo "500 ms more to $address: $share"
done
tc filter del dev lo parent 1:
pause 1
tc qdisc del dev lo root

lost=0
for round in 1 2; do
    for port in 1 2; do
        rm "$NVMET/ports/$port/subsystems/$NQN"
        lost=$((lost + 1))
        await 20 has_lost $lost
        # All of it goes by the other one.
        await 60 mostly $((2 - port)) $((port - 1))
        ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/$port/subsystems/$NQN"
        await 20 has_found $((2 + lost))
    done
    echo "round $round: each port was away once"
done
kill -0 "$load" || die "fio has ended: $(tail -n 20 "$WORK/load.json") $(tail -n 20 "$WORK/nbd.log")"
kill -INT "$load"
status=0
wait "$load" || status=$?
# 128: by the signal, of which it says something before the JSON.
((status == 0 || status == 128)) || die "fio: $(tail -n 20 "$WORK/load.json") $(tail -n 20 "$WORK/nbd.log")"
sed -i '/^{/,$!d' "$WORK/load.json"
expect_json "$WORK/load.json" '[.jobs[].error] | add' 0
expect_json "$WORK/load.json" '.jobs[0].read.total_ios > 128' true
jq -r '"fio: \(.jobs[0].read.total_ios) reads, \(.jobs[0].write.total_ios) writes, all as written"' "$WORK/load.json"
kill -TERM "$door"
wait "$door" || die "the door did not end well: $(tail -n 20 "$WORK/nbd.log")"
rm "$NVMET/ports/2/subsystems/$NQN"
rmdir "$NVMET/ports/2"
kernel_stop
