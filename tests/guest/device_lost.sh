#!/bin/bash
# limit: 240
# kernel: newest
# devices: usual
# An NVMe device under I/O whose controller is reset, or removed: what may be tried again is, the rest
# ends with a clear error, and nothing hangs.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

plain=$(device nvlane-plain 1)

# loads URI SECONDS: in the background; joined NAME waits for it
loads() {
    timeout 90 "$EXAMPLE" "$1" load 32 "$2" >"$WORK/load" 2>"$WORK/load.said" &
    LOAD=$!
    await 60 grep -qs 'commands go by' "$WORK/load.said"
    pause 0.5
}
joined() {
    local status=0
    wait "$LOAD" || status=$?
    [[ $status == 0 ]] || die "$1: status $status: $(cat "$WORK/load" "$WORK/load.said")"
    echo "$1: $(tr '\n' ' ' <"$WORK/load")"
}
no_errors() { expect "errors, $1" "$(grep -c times "$WORK/load" || true)" 0; }

# A reset cancels what is in flight; the kernel would repeat only what came by its block layer.
for options in '' '?poll'; do
    loads "$plain$options" 6
    echo 1 >"/sys/class/nvme/$(controller_of "$plain")/reset_controller"
    sleep 1
    echo 1 >"/sys/class/nvme/$(controller_of "$plain")/reset_controller"
    joined "a reset$options"
    no_errors "of a reset$options"
done

# A device of one controller, in use by us and served to a host.
serve "$plain" mem:16M
connect --ctrl-loss-tmo=5 --reconnect-delay=1
remote=$(namespace 1)
# Beyond the blocks of `loads`, which knows only of its own writes.
fio --name=x --filename="$remote" --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bs=4k \
    --offset=128M --size=32M --time_based --runtime=60 --output="$WORK/fio.txt" &
FIO=$!
loads "$plain" 6
slot=$(slot_of "$(controller_of "$plain")")
unbind "$slot"
joined "a device"
expect_match "errors" "$(<"$WORK/load")" 'times Namespace Not Ready'
expect_match "the log" "$(<"$WORK/load.said")" 'the device was removed|is gone'
wait "$FIO" && die "fio did not notice that the device has gone"
# The target lives, and so does its other namespace.
verified_io "$(namespace 2)" 8M
fails "$NVLANE" cat "$plain" >"$WORK/out"
disconnect
# What cannot be made durable any more is said, not passed over.
kill -TERM "$SERVER"
status=0
wait "$SERVER" || status=$?
expect "the server's exit status" $status 1
expect_match "its last words" "$(tail -n 1 "$WORK/serve.log")" "cannot flush nvme:$plain"
bind "$slot"
plain=$(device nvlane-plain 1)
"$EXAMPLE" "$plain" load 8 1

# One of two controllers goes: the other carries on.
with_heads
shared=$(device nvlane-path 1)
first=$(basename "$(find "/sys/class/nvme-generic/${shared##*/}/../" -maxdepth 1 -name 'nvme[0-9]*' -regex '.*/nvme[0-9]+' | sort | sed -n 1p)")
[[ -n $first ]] || die "no controllers of $shared"
slot=$(slot_of "$first")
loads "$shared" 8
unbind "$slot"
sleep 2
bind "$slot"
joined "one of two controllers"
no_errors "of one of two controllers"

# Both go: nothing is left.
slots=()
for path in /sys/class/nvme-generic/"${shared##*/}"/../nvme[0-9]*; do
    [[ ${path##*/} =~ ^nvme[0-9]+$ ]] && slots+=("$(slot_of "${path##*/}")")
done
expect "controllers" ${#slots[@]} 2
loads "$shared" 20
for slot in "${slots[@]}"; do unbind "$slot"; done
joined "both controllers"
expect_match "errors" "$(<"$WORK/load")" 'Namespace Not Ready|Pathing Error'
expect_match "the log" "$(<"$WORK/load.said")" 'removed|gone|no controller'
