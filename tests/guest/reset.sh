#!/bin/bash
# limit: 240
# round: 12
# Resets, deletions and idle connections, under I/O: what the blktests nvme group asks of a target.
. "$(dirname "$0")/harness.sh"

serve mem:256M "file:$SCRATCH/r.img?size=256M&create"
connect -i 2 --keep-alive-tmo=10
controller=$(controllers)
# Resets under verified I/O: nothing is lost, nobody notices.
FIO_OUTPUT=$WORK/reset.json verified_io "$(namespace 1)" 64M &
io=$!
for _ in 1 2 3; do
    sleep 0.7
    nvme reset "/dev/$controller"
    await 30 is_live "$controller"
done
wait $io || die "fio across resets"
rescan_ok() { nvme ns-rescan "/dev/$controller"; }
rescan_ok

# Idle for longer than the keep alive timeout: still live, by keep alives alone.
before=$(dmesg | wc -l)
sleep 14
is_live "$controller" || die "an idle controller is $(controller_state "$controller")"
[[ $(dmesg | tail -n +$((before + 1))) == *'error recovery'* ]] && die "an idle connection broke: $(dmesg | tail -n 5)"

# Deleted under I/O: the I/O fails, the server stays.
fio --name=doomed --filename="$(namespace 2)" --direct=1 --ioengine=libaio --iodepth=32 --rw=randrw \
    --bs=16k --time_based --runtime=60 >"$WORK/doomed.txt" 2>&1 &
io=$!
sleep 2
echo 1 >"/sys/class/nvme/$controller/delete_controller"
wait $io && die "fio survived the deletion of its device"
[[ $SERVER == kernel ]] || kill -0 "$SERVER" || die "the server died with its host's controller"

# Many short connections, then one that works. Linux 6.12.95 loses count of the pages that its host and its own target
# send commands from, and sends no more after some tens of connections, whoever serves.
short=$((FULL ? 100 : 10))
[[ $(uname -r) == 6.12.* ]] && short=10
for _ in $(seq $short); do
    connect -i 1
    disconnect >/dev/null
done
connect -i 2
verified_io "$(namespace 2)" 16M
disconnect
stop
