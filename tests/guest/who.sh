#!/bin/bash
# limit: 120
# processors: 2
# Who is connected: a stock host as `ctl controller list` and the log tell of it, one that is refused, and the line of
# docs/serve.md by which a host connects when it boots.
. "$(dirname "$0")/harness.sh"

logged() { grep -q "$1" "$WORK/serve.log"; }

serve mem:64M
ctl controller list -o json >"$WORK/none.json"
expect_json "$WORK/none.json" length 0
connect -i 2 -Q 64 -g
controller=$(controllers)
device=$(namespace 1)
dd if=/dev/zero of="$device" bs=64k count=4 oflag=direct status=none
ctl controller list -o json >"$WORK/list.json"
expect_json "$WORK/list.json" length 1
expect_json "$WORK/list.json" ".[0].nqn" "$NQN"
expect_json "$WORK/list.json" ".[0].host_nqn" "$(<"/sys/class/nvme/$controller/hostnqn")"
expect_json "$WORK/list.json" ".[0].host_id" "$(<"/sys/class/nvme/$controller/hostid")"
expect_json "$WORK/list.json" ".[0].controller" "$(<"/sys/class/nvme/$controller/cntlid")"
expect_json "$WORK/list.json" '.[0] | "\(.state) \(.io_queues) \(.io_queue_entries)"' "enabled 2 [64]"
expect_json "$WORK/list.json" '.[0] | "\(.header_digest) \(.data_digest)"' "true false"
expect_json "$WORK/list.json" ".[0].listener" "127.0.0.1:$PORT"
expect_match "its address" "$(jq -r '.[0].address' "$WORK/list.json")" '^127\.0\.0\.1:[0-9]+$'
# The kernel asks for a little more than it was told to.
expect_json "$WORK/list.json" ".[0].keep_alive_ms >= 30000" true
ctl controller list
ctl metrics --file "$WORK/nvlane.prom"
grep -q "^nvlane_host_connections{nqn=\"$NQN\",host=\".*\"} 3$" "$WORK/nvlane.prom" \
    || die "other connections: $(grep host_ "$WORK/nvlane.prom")"
disconnect
await 30 logged 'host disconnected .* why=shut down by the host'

# A host that is not listed.
ctl host disallow '*'
fails connect -i 1
await 30 logged "host refused .*$NQN.* why=\"it is not on the subsystem's list\""
ctl host allow '*'

# At boot.
echo "--transport=tcp --traddr=127.0.0.1 --trsvcid=$PORT --ctrl-loss-tmo=-1" >"$WORK/discovery.conf"
touch /etc/nvme/discovery.conf
mount --bind "$WORK/discovery.conf" /etc/nvme/discovery.conf
nvme connect-all
umount /etc/nvme/discovery.conf
controller=$(controllers)
expect_match "the controller that it made" "$controller" '^nvme[0-9]+$'
expect_match "its time-out" "$(<"/sys/class/nvme/$controller/ctrl_loss_tmo")" '^(off|-1)$'
subsystem=$(echo /sys/class/nvme-subsystem/nvme-subsys*)
echo round-robin >"$subsystem/iopolicy"
disconnect
stop
