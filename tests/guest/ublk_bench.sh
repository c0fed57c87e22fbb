#!/bin/bash
# limit: 300
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# kernel: newest
# processors: 2
# The form of `nvlane bench ublk`: every figure of the contract is there, as a number or named as missing, and
# nothing is left behind. How fast anything is, is not asked here.
#
# Linux 7.2 now and then warns that its load balancer has moved a thread that a sleepable BPF program may not be
# moved with: ours, which the kernel keeps in its loop. That is the scheduler's own affair, and nothing came of it.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

report=$WORK/bench.json
NVLANE_BENCH_IN_GUEST=1 "$NVLANE" bench ublk --quick --tiny --json --dir "$WORK" >"$report"
expect_json "$report" 'keys | join(" ")' 'figures machine rows scenario'
expect_json "$report" .scenario ublk
for figure in cpu_copy_over_bpf user_cpu_ns_per_request_bpf returns_per_request_bpf bandwidth_bpf_over_copy \
    zero_copy_over_copy_64k over_rublk_min recoverable_over_rublk_min recovery_ms recovery_ms_max user_space_bpf_ns user_space_layer_ns user_space_bpf_over_layer_ns; do
    expect_json "$report" ".figures | has(\"$figure\")" true
    expect_json "$report" ".figures.$figure as \$it | (\$it | type) == \"number\"
        or (\$it == null and (.machine.notes | map(select(startswith(\"$figure could not be\"))) | length) == 1)" true
done
ways=(copy user_copy zero_copy zero_copy_recover bpf_user)
# What holds on any machine: counts. Null is less than any number, to jq.
programs=$("$NVLANE" ublk features -o json | jq .programs_in_kernel)
if [[ $programs == true ]]; then
    ways+=(bpf_kernel)
    expect_json "$report" '.figures.bpf_kernel_memory_growth_kib | type == "number" and . < 1024' true
    expect_json "$report" '.figures.returns_per_request_bpf | type == "number" and . < 0.05' true
fi
expect_json "$report" '.machine.peers.rublk | length > 0' true
for way in "${ways[@]}"; do
    expect_json "$report" "[.rows[] | select(.server == \"$way\" and .row != \"recovery\")] | length" 6
done
expect_json "$report" '.rows[] | select(.row == "user_space") | .samples | length' 5
expect_json "$report" '.rows[] | select(.row == "recovery") | .samples | length' 2
expect_json "$report" '. as $all | [.rows[] | select(.row == "recovery") | .samples[].served_ms] | max - $all.figures.recovery_ms_max | . < 1 and . > -1' true
expect_json "$report" '[.rows[] | select(.server and .row != "memory" and .row != "recovery") | .samples[] | .iops > 0 and .cpu_ns >= 0] | all' true
expect "what is left of null block devices" "$(ls /sys/kernel/config/nullb | grep -v features || true)" ""
expect "devices that are left" "$("$NVLANE" ublk list)" ""
expect "files that are left" "$(ls -A "$WORK" | grep bench-)" ""
modprobe -r ublk_drv
