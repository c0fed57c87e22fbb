#!/bin/bash
# limit: 240
# What nvme-cli asks a controller, read as JSON, with the values that we must give.
. "$(dirname "$0")/harness.sh"

serve mem:64M "file:$SCRATCH/b.img?size=128M&create"
connect
device=$(namespace 1)
second=$(namespace 2)
controller=/dev/$(controllers)
ask() { # ask FILE COMMAND...
    local file=$WORK/$1.json
    shift
    nvme "$@" -o json >"$file" || die "nvme $*"
    jq -e . <"$file" >/dev/null || die "nvme $*: not JSON: $(head -c 400 "$file")"
}

ask ctrl id-ctrl "$controller"
expect_json "$WORK/ctrl.json" '.subnqn' "$NQN"
expect_json "$WORK/ctrl.json" '.cntrltype' 1
expect_json "$WORK/ctrl.json" '.sqes' 102 # 64-byte commands: 66h
expect_json "$WORK/ctrl.json" '.cqes' 68  # 16-byte completions: 44h
expect_json "$WORK/ctrl.json" '.vwc % 2' 1
expect_json "$WORK/ctrl.json" '(.sgls % 4) > 0' true
expect_json "$WORK/ctrl.json" '.ioccsz >= 4' true
expect_json "$WORK/ctrl.json" '.nn >= 2' true
expect_json "$WORK/ctrl.json" '((.lpa / 2) | floor) % 2' 1 # the effects log is there
expect_json "$WORK/ctrl.json" '.kas > 0' true
expect_json "$WORK/ctrl.json" '((.oncs / 8) | floor) % 2' 1 # Write Zeroes
expect_json "$WORK/ctrl.json" '((.oncs / 4) | floor) % 2' 1 # Dataset Management
expect_json "$WORK/ctrl.json" '(.sn | length) > 0 and (.mn | length) > 0' true

ask ns1 id-ns "$device"
block=$(blockdev --getss "$device")
expect_json "$WORK/ns1.json" '.nsze' $(((64 << 20) / block))
expect_json "$WORK/ns1.json" '.ncap <= .nsze' true
expect_json "$WORK/ns1.json" "pow(2; .lbafs[.flbas % 16].ds) | floor" "$block"
ask ns2 id-ns "$second"
expect_json "$WORK/ns2.json" '.nsze' $(((128 << 20) / $(blockdev --getss "$second")))

ask descs ns-descs "$device"
uuid=$(<"/sys/block/${device#/dev/}/uuid")
expect_match "the namespace's UUID" "$uuid" '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
expect_match "ns-descs" "$(<"$WORK/descs.json")" "$uuid"
[[ $uuid != "$(<"/sys/block/${second#/dev/}/uuid")" ]] || die "two namespaces share a UUID"

ask nsids list-ns "$controller"
expect_json "$WORK/nsids.json" '[.nsid_list[].nsid] | join(",")' 1,2
ask list list
expect_json "$WORK/list.json" "[.Devices[] | select(.DevicePath == \"$device\")][0].PhysicalSize" $((64 << 20))
ask smart smart-log "$controller"
expect_json "$WORK/smart.json" '.critical_warning | if type == "object" then .value else . end' 0
expect_json "$WORK/smart.json" '.percent_used' 0
ask errors error-log "$controller"
expect_json "$WORK/errors.json" '.errors | length > 0' true
ask firmware fw-log "$controller"
# Told the command set: by itself nvme-cli 2.3 prints nothing for a controller on a fabric.
ask effects effects-log "$controller" --csi=0
nvme effects-log "$controller" --csi=0 -H >"$WORK/effects.txt"
for command in Read Write Flush "Write Zeroes" "Dataset Management"; do
    grep -qi "$command" "$WORK/effects.txt" || die "the effects log lacks $command: $(<"$WORK/effects.txt")"
done
ask ana ana-log "$controller"
expect_match "the ANA log" "$(<"$WORK/ana.json")" optimized
expect "ANA state" "$(cat /sys/block/nvme*c*n1/ana_state | sort -u)" optimized

# Features: the volatile write cache, which the file has; 128 queues of each direction, counted from zero, however many were
# asked for; notices of namespaces and of ANA, which this kernel turns on; the keep alive timeout that `connect` asked for, in ms.
for feature in 6=1 7=7f007f 0xb=900 0xf=7530; do
    nvme get-feature "$controller" -f "${feature%=*}" -H >"$WORK/feature" || die "get-feature ${feature%=*}"
    expect_match "get-feature ${feature%=*}" "$(<"$WORK/feature")" "value: ?(0x)?0*${feature#*=}([^0-9a-f]|\$)"
done

# What the block layer made of it.
queue=/sys/block/${second#/dev/}/queue
expect "write_cache of a file" "$(<"$queue/write_cache")" "write back"
expect "fua of a file" "$(<"$queue/fua")" 1
expect "discards" "$(($(<"$queue/discard_max_bytes") > 0))" 1
expect "write zeroes" "$(($(<"$queue/write_zeroes_max_bytes") > 0))" 1

# An ordinary user may read and write, since the effects log says these are harmless.
generic=${device/nvme/ng}
chmod 666 "$generic"
setpriv --reuid 65534 --clear-groups nvme read "$generic" -s 0 -c 0 -z "$block" -d /dev/null 2>&1 \
    || die "an unprivileged read is refused"

# Errors have the specification's status: out of range, a namespace that is not there.
fails nvme read "$device" -s $(((64 << 20) / block)) -c 0 -z "$block" -d /dev/null >"$WORK/out"
expect_match "reading past the end" "$(<"$WORK/out")" 'LBA (O|o)ut (O|o)f (R|r)ange|LBA_RANGE'
fails nvme id-ns "$controller" -n 4000000000 >"$WORK/out"
expect_match "a namespace that is not there" "$(<"$WORK/out")" '[nN]amespace'

# Reservations are absent, and the controller says so: status 0x1, whether or not with Do Not Retry.
expect_json "$WORK/ctrl.json" '((.oncs / 32) | floor) % 2' 0
expect_match "resv-report" "$(fails nvme resv-report "$device")" \
    'Invalid Command Opcode.*\(0x(400)?1\)'
disconnect
stop
