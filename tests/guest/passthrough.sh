#!/bin/bash
# limit: 90
# I/O commands one by one, through the kernel's passthrough: each does what it should, and fails with
# the specification's status where it should fail.
. "$(dirname "$0")/harness.sh"

serve mem:64M "file:$SCRATCH/p.img?size=64M&create" "fault:op=read,lba=64-71,status=0x281(mem:16M)"
connect
for nsid in 1 2; do
    device=$(namespace $nsid)
    block=$(blockdev --getss "$device")
    blocks=$((64 * 1024 * 1024 / block))
    size=$((8 * block))
    head -c $size /dev/urandom >"$WORK/a"
    head -c $size /dev/urandom >"$WORK/b"
    io() { nvme "$1" "$device" -s "$2" -c 7 -z $size -d "$3" "${@:4}"; }

    io write 16 "$WORK/a"
    io write 24 "$WORK/b" --force-unit-access
    io read 16 "$WORK/out"
    cmp "$WORK/a" "$WORK/out"
    io read 24 "$WORK/out"
    cmp "$WORK/b" "$WORK/out"
    io compare 16 "$WORK/a"
    expect_match "Compare with other bytes" "$(fails io compare 16 "$WORK/b")" '(C|c)ompare|COMPARE'
    nvme flush "$device" -n $nsid
    nvme verify "$device" -s 16 -c 7

    nvme write-zeroes "$device" -s 16 -c 3
    io read 16 "$WORK/out"
    cmp -n $((4 * block)) /dev/zero "$WORK/out"
    cmp -i $((4 * block)) "$WORK/a" "$WORK/out"
    nvme write-zeroes "$device" -s 20 -c 3 -d
    nvme dsm "$device" -n $nsid -b 8 -s 24 -d
    io read 24 "$WORK/out"
    cmp -n $size /dev/zero "$WORK/out"

    # Past the end, and just not.
    io write $((blocks - 8)) "$WORK/a"
    for command in read write compare; do
        expect_match "$command past the end" "$(fails io $command $((blocks - 7)) "$WORK/a")" \
            'LBA (O|o)ut (O|o)f (R|r)ange|LBA_RANGE'
    done
    fails nvme write-zeroes "$device" -s "$blocks" -c 0
    fails nvme io-passthru "$device" -o 0x7f -n $nsid
    # The failures above broke nothing.
    io read $((blocks - 8)) "$WORK/out"
    cmp "$WORK/a" "$WORK/out"
done
expect "controllers" "$(controllers | wc -l)" 1
# What a host did wrong is none of the controller's errors, and what a volume could not do is.
error_log() { nvme error-log "/dev/$(controllers)" -o json >"$WORK/errors.json"; }
is_counted() { error_log && [[ $(jq '.errors[0].error_count' "$WORK/errors.json") == "$1" ]]; }
is_counted 0 || die "a mistake of the host's is in the error log: $(head -c 400 "$WORK/errors.json")"
device=$(namespace 3)
for count in 1 2; do
    expect_match "a read that fails" "$(fails nvme read "$device" -s 64 -c 0 -z "$(blockdev --getss "$device")" -d "$WORK/out")" '(U|u)nrecovered|READ'
    await 20 is_counted "$count"
    expect_json "$WORK/errors.json" '.errors[0] | "\(.nsid) \(.lba) \(.status_field) \(.sqid > 0)"' '3 64 641 true'
done
expect_json "$WORK/errors.json" '.errors | length > 2 and .[2].error_count == 0' true
disconnect
stop
