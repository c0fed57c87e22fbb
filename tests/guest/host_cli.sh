#!/bin/bash
# limit: 240
# The host's commands beside nvme-cli's: the same controller, of our target and of the kernel's, is
# described in the same words, by both in text and in JSON.
. "$(dirname "$0")/harness.sh"

# same WHAT FILTER: jq's FILTER makes the same of what nvme-cli and what nvlane wrote, in whatever order
sorted='def sorted: walk(if type == "object" then to_entries | sort_by(.key) | from_entries else . end);'
same() {
    local ours theirs
    theirs=$(jq "$sorted ($2) | sorted" <"$WORK/theirs.json") || die "$1: $(head -c 400 "$WORK/theirs.json")"
    ours=$(jq "$sorted ($2) | sorted" <"$WORK/ours.json") || die "$1: $(head -c 400 "$WORK/ours.json")"
    [[ $ours == "$theirs" ]] || die "$1 differs: $(diff <(echo "$theirs") <(echo "$ours"))"
}

# same_text WHAT THEIRS OURS DROPPED: but for spaces at the ends of lines and lines that match DROPPED
same_text() {
    diff <(sed -E "s/[[:space:]]+$//; /$4/d" "$2") <(sed -E "s/[[:space:]]+$//; /$4/d" "$3") \
        >"$WORK/diff" || die "$1 differs: $(<"$WORK/diff")"
}

# Whatever nvme-cli has must be there and the same. Text is trimmed: nvme-cli leaves the padding.
trimmed='with_entries(.value |= if type == "string" then sub("\\s+$"; "") else . end)'

compare() {
    local peer=$1 device second controller block property
    local uri=tcp://127.0.0.1:$PORT/$NQN
    connect
    device=$(namespace 1)
    second=$(namespace 2)
    controller=/dev/$(controllers)

    nvme discover -t tcp -a 127.0.0.1 -s "$PORT" -o json >"$WORK/theirs.json"
    "$NVLANE" discover -t tcp -a 127.0.0.1 -s "$PORT" -o json >"$WORK/ours.json"
    same "$peer: the discovery log" '{genctr, records}'
    nvme discover -t tcp -a 127.0.0.1 -s "$PORT" >"$WORK/theirs"
    "$NVLANE" discover -t tcp -a 127.0.0.1 -s "$PORT" >"$WORK/ours"
    same_text "$peer: the discovery log's text" "$WORK/theirs" "$WORK/ours" '^$'

    # Another controller of the subsystem: its id differs.
    nvme id-ctrl "$controller" -o json | jq "$trimmed" >"$WORK/theirs.json"
    "$NVLANE" id-ctrl "$uri" -o json >"$WORK/ours.json"
    expect_json "$WORK/ours.json" '.subnqn' "$NQN"
    local keys
    keys=$(jq -r 'keys - ["cntlid"] | map("\"" + . + "\": .\"" + . + "\"") | join(", ")' <"$WORK/theirs.json")
    same "$peer: id-ctrl" "{$keys}"
    nvme id-ctrl "$controller" >"$WORK/theirs"
    "$NVLANE" id-ctrl "$uri" >"$WORK/ours"
    # Power states are written on one line here.
    same_text "$peer: id-ctrl's text" "$WORK/theirs" "$WORK/ours" '^(cntlid|ps  | {8,})'
    nvme id-ctrl "$controller" -b >"$WORK/theirs"
    "$NVLANE" id-ctrl "$uri" -b >"$WORK/ours"
    # All but CNTLID, bytes 78 and 79.
    cmp <(tail -c +81 "$WORK/theirs") <(tail -c +81 "$WORK/ours") || die "$peer: id-ctrl -b differs"

    nvme id-ns "$device" -o json >"$WORK/theirs.json"
    "$NVLANE" id-ns "$uri?ns=1" -o json >"$WORK/ours.json"
    keys=$(jq -r 'keys | map("\"" + . + "\": .\"" + . + "\"") | join(", ")' <"$WORK/theirs.json")
    same "$peer: id-ns" "{$keys}"
    nvme id-ns "$device" >"$WORK/theirs"
    "$NVLANE" id-ns "$uri" -n 1 >"$WORK/ours"
    same_text "$peer: id-ns's text" "$WORK/theirs" "$WORK/ours" '^nsattr'

    # nvme-cli 2.3 crashes in show-regs of a controller on a fabric; one property at a time it can.
    "$NVLANE" show-regs "$uri" >"$WORK/ours"
    local offset name
    for property in "0x0 cap" "0x8 version" "0x1c csts"; do
        read -r offset name <<<"$property"
        expect_match "$peer: property $name" "$(nvme get-property "$controller" --offset="$offset")" \
            "value: (0x)?$(sed -n "s/^$name *: //p" "$WORK/ours")$"
    done

    local log
    for log in "2 512" "5 4096" "0x0c 56"; do
        read -r lid bytes <<<"$log"
        nvme get-log "$controller" --log-id="$lid" --log-len="$bytes" -b >"$WORK/theirs"
        "$NVLANE" get-log "$uri" --log-id "$lid" --log-len "$bytes" -b >"$WORK/ours"
        expect "$peer: bytes of log $lid" "$(stat -c %s "$WORK/ours")" "$bytes"
        # SMART counts what it is asked meanwhile.
        [[ $lid == 2 ]] || cmp "$WORK/theirs" "$WORK/ours" || die "$peer: log $lid differs"
    done

    # What both tell of the two namespaces; nvme-cli names them by their devices.
    nvme list -o json >"$WORK/list.json"
    jq --arg one "$device" --arg two "$second" \
        '{Devices: [.Devices[] | select(.DevicePath == $one or .DevicePath == $two)]}' "$WORK/list.json" >"$WORK/theirs.json"
    "$NVLANE" list "$uri" -o json >"$WORK/ours.json"
    expect_json "$WORK/theirs.json" '.Devices | length' 2
    same "$peer: list" ".Devices | map({NameSpace, ModelNumber, SerialNumber, Firmware, UsedBytes, MaximumLBA, PhysicalSize, SectorSize}
        | $trimmed) | sort_by(.NameSpace)"
    block=$(blockdev --getss "$device")
    expect_json "$WORK/ours.json" '.Devices[0].PhysicalSize' "$(blockdev --getsize64 "$device")"
    expect_json "$WORK/ours.json" '.Devices[0].SectorSize' "$block"
    expect_json "$WORK/ours.json" '.Devices[0].UUID' "$(<"/sys/block/${device#/dev/}/uuid")"

    # The same apart: subsystem, controllers, namespaces.
    nvme list -v -o json >"$WORK/list.json"
    jq --arg nqn "$NQN" '{Subsystems: [.. | objects | select(.SubsystemNQN? == $nqn and .Controllers?)]}' "$WORK/list.json" >"$WORK/theirs.json"
    "$NVLANE" list -v "$uri" -o json >"$WORK/ours.json"
    expect_json "$WORK/theirs.json" '.Subsystems | length' 1
    same "$peer: list -v" ".Subsystems | map({SubsystemNQN,
        Controllers: [.Controllers[] | {SerialNumber, ModelNumber, Firmware, Transport, Paths: [.Paths[] | {ANAState}], Address: (.Address
            | capture(\"traddr=(?<traddr>[^, ]+)\") + capture(\"trsvcid=(?<trsvcid>[0-9]+)\"))} | $trimmed],
        Namespaces: ([.Namespaces[] | {NSID, UsedBytes, MaximumLBA, PhysicalSize, SectorSize}] | sort_by(.NSID))})"

    # nvme-cli has subsystems by host, and may know the address that the connection comes from.
    nvme list-subsys "$device" -o json >"$WORK/subsystems.json"
    jq --arg nqn "$NQN" '{Subsystems: [.. | objects | select(.NQN? == $nqn)]}' "$WORK/subsystems.json" >"$WORK/theirs.json"
    "$NVLANE" list-subsys "$uri?ns=1" -o json >"$WORK/ours.json"
    expect_json "$WORK/theirs.json" '.Subsystems | length' 1
    same "$peer: list-subsys" '.Subsystems | map({NQN, Paths: [.Paths[] | {Transport, State, ANAState, Address: (.Address
        | capture("traddr=(?<traddr>[^, ]+)") + capture("trsvcid=(?<trsvcid>[0-9]+)"))}]})'
    "$NVLANE" list-subsys "$uri" -o json >"$WORK/ours.json"
    expect_json "$WORK/ours.json" '.Subsystems[0].Paths[0] | .State + " " + .ANAState' "live optimized"
    "$NVLANE" list-subsys -a 127.0.0.1 -s "$PORT" -o json >"$WORK/ours.json"
    expect_json "$WORK/ours.json" ".Subsystems[] | select(.NQN == \"$NQN\").Paths | length" 1

    fails "$NVLANE" id-ctrl "tcp://127.0.0.1:$PORT/nqn.2026-11.com.example:nobody" >"$WORK/out"
    expect_match "$peer: a subsystem that is not there" "$(<"$WORK/out")" "127.0.0.1:$PORT"
    disconnect
}

serve mem:64M mem:32M
compare nvlane
stop
NVLANE_PEER=kernel
serve mem:64M mem:32M
compare kernel
stop
