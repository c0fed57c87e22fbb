#!/bin/bash
# limit: 180
# kernel: newest
# devices: usual
# NVMe devices below layers: two controllers' devices of one namespace put together by our multipath
# instead of the kernel's, one of which goes under I/O; and two devices one after the other.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

# Without the kernel's multipath each controller has a device of its own.
plain=$(device nvlane-plain 1)
device nvlane-path 1 >/dev/null
two_paths() {
    local link path
    paths=()
    for link in /sys/class/nvme-generic/ng*; do
        path=$(readlink -f "$link")
        [[ $(tr -d ' ' <"${path%/*}/serial") == nvlane-path ]] && paths+=("/dev/${path##*/}")
    done
    [[ ${#paths[@]} == 2 ]]
}
await 20 two_paths
uri="multipath:(${paths[0]}?passthrough=io+admin,${paths[1]}?passthrough=io+admin)"
expect_match "who retries" "$("$NVLANE" info "$uri")" 'retries +by multipath'
give "$uri" io 0x0c cdw10=0 cdw12=7
"$EXAMPLE" "$uri" admin 0x06 cdw10=1 read=4096 2>/dev/null >"$WORK/out"
cmp -n 76 "$WORK/out" <(nvme id-ctrl "/dev/$(controller_of "${paths[0]}")" -b)

# Two others have the same paths: one has sent nothing yet when the first of them goes, and one has.
identify=(timeout 90 "$EXAMPLE" "$uri" admin 0x06 cdw10=1 read=4096)
"${identify[@]}" after="$WORK/go" >"$WORK/fresh" 2>"$WORK/fresh.said" &
fresh=$!
"${identify[@]}" again="$WORK/go" >"$WORK/used" 2>"$WORK/used.said" &
used=$!
for name in fresh used; do await 30 says "$WORK/$name.said" 'waits for'; done

slot=$(slot_of "$(controller_of "${paths[0]}")")
timeout 90 "$EXAMPLE" "$uri" load 32 8 >"$WORK/load" 2>"$WORK/load.said" &
load=$!
await 60 says "$WORK/load.said" 'commands go by'
pause 1
echo "$slot" >/sys/bus/pci/drivers/nvme/unbind
status=0
wait $load || status=$?
expect "the status of $(cat "$WORK/load" "$WORK/load.said")" $status 0
expect "errors in $(<"$WORK/load")" "$(grep -c times "$WORK/load" || true)" 0
cat "$WORK/load"
: >"$WORK/go"
for name in fresh used; do
    wait "${!name}" || die "Identify by what is left, $name: $(<"$WORK/$name.said")"
    cmp "$WORK/$name" <(nvme id-ctrl "/dev/$(controller_of "${paths[1]}")" -b)
done

# One after the other: a list of blocks that lies in both.
uri="linear:($plain,${paths[1]})"
expect_match "the sum" "$("$NVLANE" info "$uri")" '320 MiB'
last=$((256 * 1024 * 1024 / 512 - 4))
head -c 4096 /dev/urandom >"$WORK/a"
give "$uri" io 0x01 cdw10=$last cdw12=7 data="$WORK/a"
"$EXAMPLE" "$uri" io 0x02 cdw10=$last cdw12=7 read=4096 2>/dev/null | cmp - "$WORK/a"
"$EXAMPLE" "$plain" io 0x02 cdw10=$last cdw12=3 read=2048 2>/dev/null | cmp - <(head -c 2048 "$WORK/a")
"$EXAMPLE" "${paths[1]}" io 0x02 cdw10=0 cdw12=3 read=2048 2>/dev/null | cmp - <(tail -c 2048 "$WORK/a")
refused 'Invalid Command Opcode' "$uri" io 0x82 read=512
refused 'Invalid Command Opcode' "$uri" admin 0x06 cdw10=1 read=4096
