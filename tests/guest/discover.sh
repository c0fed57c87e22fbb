#!/bin/bash
# limit: 120
# Discovery: the log names the subsystem with its address; IPv4 and IPv6; a persistent discovery
# controller stays live, and hears of what changes.
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
# Longer than its keep alive timeout. Again where the machine stood still for that long.
for attempt in 1 2 3; do
    await 60 is_live "$persistent"
    sleep 14
    if is_live "$persistent"; then break; fi
    ((attempt < 3)) || die "the discovery controller is $(controller_state "$persistent")"
done

# What changes is told to it: the kernel passes the event on to udev, whose rules connect what is new. Each is told once, until the
# log has been read.
uevents=$WORK/uevents
: >"$uevents"
perl -e 'my $s; socket($s, 16, 2, 15) && bind($s, pack("SSLL", 16, 0, 0, 1)) or die "netlink: $!"; $| = 1; print "ready\n";
    while (defined(recv($s, my $event, 16384, 0))) { print join(" ", split(/\0/, $event)), "\n" }' >>"$uevents" &
listener=$!
await 20 says "$uevents" '^ready'
logged() { nvme get-log "/dev/$persistent" --log-id=0x70 --log-len=8192 -b | grep -ac "$1" || true; }
# changes NAME COMMAND...: the command changes the log so that it has that name
changes() {
    expect "entries of $1 before" "$(logged "$1")" 0
    : >"$uevents"
    "${@:2}"
    await 20 says "$uevents" "^change@.*/$persistent .*NVME_AEN=0x70f002"
    [[ $(logged "$1") -gt 0 ]] || die "the discovery log has no $1"
}
changes nqn.2026-11.com.example:told ctl subsystem add nqn.2026-11.com.example:told
changes 127.0.0.2 ctl listener add 127.0.0.2:4434
kill $listener
wait $listener || true
disconnect

# connect-all goes by the log alone.
nvme connect-all -t tcp -a 127.0.0.1 -s "$PORT"
nvme list-subsys -o json >"$WORK/subsys.json"
expect_match "list-subsys" "$(<"$WORK/subsys.json")" '127.0.0.1'
nvme disconnect-all
stop
