#!/bin/bash
# limit: 120
# Who may connect to what: a subsystem that is not there and a host that is not allowed are refused
# with the status that makes the kernel say so.
. "$(dirname "$0")/harness.sh"

allowed=nqn.2014-08.org.nvmexpress:uuid:33333333-3333-4333-8333-333333333333
other=nqn.2014-08.org.nvmexpress:uuid:44444444-4444-4444-8444-444444444444
serve mem:64M --allow-host "$allowed"

kernel_from_now
fails nvme connect -t tcp -a 127.0.0.1 -s "$PORT" -n nqn.2014-08.org.example:missing -q "$allowed"
expect_match "the kernel about a missing subsystem" "$(kernel_said)" 'Connect Invalid Data Parameter, subsysnqn'

kernel_from_now
fails connect -q "$other" -I 44444444-4444-4444-8444-444444444444
expect_match "the kernel about a host that is not allowed" "$(kernel_said)" 'is not allowed, hostnqn'
expect "controllers" "$(controllers)" ""

listed() { # listed HOST: how often the subsystem is in the discovery log
    nvme discover -t tcp -a 127.0.0.1 -s "$PORT" -q "$1" -o json >"$WORK/log.json"
    jq "[.records[]? | select(.subnqn == \"$NQN\")] | length" "$WORK/log.json"
}
expect "entries that the allowed host sees" "$(listed "$allowed")" 1
expect "entries that another host sees" "$(listed "$other")" 0

connect -q "$allowed" -I 33333333-3333-4333-8333-333333333333
namespace 1
disconnect
ctl host allow "$other"
connect -q "$other" -I 44444444-4444-4444-8444-444444444444
controller=$(controllers)
namespace 1
# No longer allowed: what it has connected is dropped, and it cannot come back.
ctl host disallow "$other"
not_live() { [[ $(controller_state "$controller" 2>/dev/null) != live ]]; }
await 20 not_live
disconnect
fails connect -q "$other" -I 44444444-4444-4444-8444-444444444444
stop
