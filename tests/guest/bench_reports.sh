#!/bin/bash
# limit: 300
# kernel: newest
# devices: usual
# processors: 2
# The form of `nvlane bench passthrough`, `aio` and `copy`: every figure of the contract is there as a plain number,
# rows have the samples that it follows from, and nothing is left behind. How fast anything is, is not asked here.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

# report SCENARIO [OPTION]...: runs it so briefly that only the form of its report means anything; sets REPORT
report() {
    REPORT=$WORK/report-$1.json
    "$NVLANE" bench "$@" --quick --tiny --json --dir "$SCRATCH" >"$REPORT"
    expect_json "$REPORT" 'keys | join(" ")' 'figures machine rows scenario'
    expect_json "$REPORT" .scenario "$1"
    expect_json "$REPORT" '.machine | .cores > 1 and (.kernel | length > 0)' true
    expect "files that $1 has left" "$(ls -A "$SCRATCH" | grep bench)" ""
    expect "null block devices that $1 has left" "$(ls /sys/kernel/config/nullb | grep -v features)" ""
}

# figures NAME...: what is not there as a plain number is none
figures() {
    local names
    names=$(printf ', "%s"' "$@")
    expect_json "$REPORT" "[${names:2}] - [.figures | to_entries[] | select(.value | type == \"number\") | .key] | join(\" \")" ''
}

# What each window of a lane of passthrough has.
LANES='[.rows[].samples | length > 0 and all(.kiops > 0 and .p50_us > 0 and .p99_us >= .p50_us and .cpu_us > 0)] | all'

modprobe null_blk nr_devices=0

report passthrough --only loop_library,loop_block_fixed_file,loop_command_fixed_file_qd,loop_fio,loop_200us_library_qd64,loop_200us_sync_qd64
for depth in 1 2 4 8 16 32 64 128; do
    figures uring_cmd_over_{fio,block}_qd$depth command_over_block_qd$depth
done
figures async_over_sync_qd64
expect_json "$REPORT" '.machine.peers.fio | startswith("fio-")' true
# Four lanes at eight depths, and with the delay two at one.
expect_json "$REPORT" '[.rows[] | select(.set_up == "loop")] | length' 32
expect_json "$REPORT" '[.rows[] | select(.set_up == "loop_200us")] | length' 2
expect_json "$REPORT" "$LANES" true
expect "subsystems that are left" "$(ls /sys/kernel/config/nvmet/subsystems)" ""

# Every lane that there is, on a device with poll queues, and as a drawing.
report passthrough --device "$(device nvlane-plain 1)" --only _qd64 --svg "$WORK/lanes.svg"
expect_json "$REPORT" '[.rows[] | select(.set_up == "device" and .polls and .depth == 64) | .lane] | sort | join(" ")' \
    "block block_fixed_file block_fixed_file_iopoll command command_fixed command_fixed_file command_fixed_file_iopoll \
command_fixed_file_iopoll_sqpoll command_fixed_file_sqpoll fio_fixed_file fio_fixed_file_iopoll library library_iopoll sync \
sync_threads"
expect_json "$REPORT" "$LANES" true
figures uring_cmd_over_{fio,block}_qd64 async_over_sync_qd64_without_delay
expect_match "the drawing" "$(<"$WORK/lanes.svg")" '^<svg .*device: library over others.*fio qd64.*block qd64.*</svg>'

report aio
for depth in 1 2 4 8 16 32 64; do
    figures {io_setup2,bare}_over_aio_qd$depth
done
figures aio_submit_ns io_setup2_submit_ns dropin_over_aio_min dropin_cpu_saving_single
expect_json "$REPORT" '.machine.peers.fio | length > 0' true
for subject in kernel drop-in polled io_setup2 io_setup2_sqthread io_setup2_rings bare fio_io_uring; do
    expect_json "$REPORT" "[.rows[] | select(.subject == \"$subject\" and (.row | startswith(\"direct_qd\")))] | length" 7
done
# Who submits one at a time, as programs are that are not changed.
for subject in kernel drop-in; do
    expect_json "$REPORT" "[.rows[] | select(.subject == \"$subject\") | .row | select(contains(\"_single_\"))] | sort | join(\" \")" \
        "$(printf '%s\n' {direct,file,cached}_single_qd{2,8,32} | LC_ALL=C sort | paste -sd ' ')"
done
for row in {direct,cached}_single_qd{2,8,32}; do figures dropin_over_aio_$row dropin_cpu_saving_$row; done
# null_blk has a poll queue, and whoever is to poll does.
expect_json "$REPORT" '[.rows[] | select(.row | startswith("direct_")) | .polled == (.subject != "kernel" and .subject != "drop-in")] | all' true
expect_json "$REPORT" '[.rows[] | (.iops, .cpu_ns, .p50_ns) | length > 0 and all(. > 0)] | all' true
# What submitting takes is told of those who do it in a call of its own.
expect_json "$REPORT" '[.rows[] | select(.submit_ns | all(. > 0)) | .subject] | unique | join(" ")' \
    "drop-in io_setup2 io_setup2_sqthread kernel polled"
expect_json "$REPORT" '[.rows[] | select(.subject | IN("io_setup2_rings", "bare", "fio_io_uring") | not) | .submit_ns | length > 0 and all(. > 0)] | all' true

report copy
figures copy_{8k,2m16}_over_read_write network_{8k,2m16}_percent file_over_local emulated_over_bound copy_8k_held_over_read_write network_8k_free_percent
expect_json "$REPORT" '[.rows[] | select(.copied) | .row] | sort | join(" ")' \
    'emulated_2m16_full file_2m16_full memory_2m16_1g memory_2m16_full memory_8k_1g memory_8k_full'
expect_json "$REPORT" '[.rows[] | select(.copied) | (.copied, .read_and_written) | length > 0 and all(.mib_s > 0)] | all' true
expect_json "$REPORT" '[.rows[] | select(.row | test("file|emulated")) | .bound_mib_s | length > 0 and all(. > 0)] | all' true
# Reads beside a throttled copy: on a busy machine that copy may not keep its rate.
expect_json "$REPORT" '.figures.p99_throttled_over_alone as $it | ($it | type) == "number"
    or ($it == null and (.machine.notes | any(startswith("p99_throttled_over_alone could not be"))))' true
expect_json "$REPORT" '.rows[] | select(.row == "throttled") | .p99_alone_us | length' 1
expect "network namespaces that are left" "$(ip netns list)" ""
