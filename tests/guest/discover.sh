#!/bin/bash
# limit: 120
# Discovery: the log names the subsystem with its address; IPv4 and IPv6; a persistent discovery
# controller stays live.
. "$(dirname "$0")/harness.sh"

serve mem:64M --listen "[::1]:4421"
nvme discover -t tcp -a 127.0.0.1 -s "$PORT" -o json >"$WORK/log.json"
filter="[.records[] | select(.subnqn == \"$NQN\" and .trsvcid == \"$PORT\")]"
expect_json "$WORK/log.json" "$filter | length" 1
expect_json "$WORK/log.json" "$filter[0].trtype" tcp
expect_json "$WORK/log.json" "$filter[0].adrfam" ipv4
expect_json "$WORK/log.json" "$filter[0].traddr" 127.0.0.1
expect_json "$WORK/log.json" "$filter[0].subtype" "nvme subsystem"

nvme discover -t tcp -a ::1 -s 4421 -o json >"$WORK/log6.json"
expect_json "$WORK/log6.json" \
    "[.records[] | select(.subnqn == \"$NQN\" and .adrfam == \"ipv6\" and .trsvcid == \"4421\")] | length" 1
nvme connect -t tcp -a ::1 -s 4421 -n "$NQN"
device=$(namespace 1)
dd if="$device" of=/dev/null bs=64k count=16 iflag=direct status=none
disconnect

NQN=nqn.2014-08.org.nvmexpress.discovery
nvme discover -t tcp -a 127.0.0.1 -s "$PORT" -p -k 10 -o json >"$WORK/log.json"
persistent=$(controllers)
expect_match "the persistent discovery controller" "$persistent" '^nvme[0-9]+$'
# Longer than its keep alive timeout.
sleep 14
is_live "$persistent" || die "the discovery controller is $(controller_state "$persistent")"
disconnect

# connect-all goes by the log alone.
nvme connect-all -t tcp -a 127.0.0.1 -s "$PORT"
nvme list-subsys -o json >"$WORK/subsys.json"
expect_match "list-subsys" "$(<"$WORK/subsys.json")" '127.0.0.1'
nvme disconnect-all
stop
