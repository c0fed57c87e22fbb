#!/bin/bash
# limit: 360
# kernel: newest
# devices: usual
# An NVMe device under I/O whose controller is reset, or removed: what may be tried again is, the rest
# ends with a clear error, and nothing hangs.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

plain=$(device nvlane-plain 1)

# loads URI: in the background; joined NAME ends it, and waits for it. For as long as it takes: a load that ended before what
# is done to it would show nothing of it.
loads() {
    rm -f "$WORK/enough"
    : >"$WORK/load.said"
    timeout 300 "$EXAMPLE" "$1" load 32 1 "until=$WORK/enough" >"$WORK/load" 2>"$WORK/load.said" &
    LOAD=$!
    await 60 says "$WORK/load.said" 'commands go by'
    pause 0.5
}
joined() {
    local status=0
    pause 1
    : >"$WORK/enough"
    wait "$LOAD" || status=$?
    [[ $status == 0 ]] || die "$1: status $status: $(cat "$WORK/load" "$WORK/load.said")"
    echo "$1: $(tr '\n' ' ' <"$WORK/load")"
}
no_errors() { expect "errors, $1" "$(grep -c times "$WORK/load" || true)" 0; }
# tried_again NAME: some commands were
tried_again() {
    local count='([0-9]+) commands tried again'
    [[ $(<"$WORK/load") =~ $count ]] || die "$1: nothing was tried again: $(<"$WORK/load")"
}

# A reset cancels what is in flight; the kernel would repeat only what came by its block layer.
slow=$(device nvlane-path 1)
for options in '' '?poll'; do
    loads "$slow$options"
    echo 1 >"/sys/class/nvme/$(controller_of "$slow")/reset_controller"
    sleep 1
    echo 1 >"/sys/class/nvme/$(controller_of "$slow")/reset_controller"
    joined "a reset$options"
    no_errors "of a reset$options"
    tried_again "a reset$options"
done

# A device of one controller, in use by us and served to a host.
serve "$plain" mem:16M
connect --ctrl-loss-tmo=5 --reconnect-delay=1
remote=$(namespace 1)
# Beyond the blocks of `loads`, which knows only of its own writes.
fio --name=x --filename="$remote" --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bs=4k \
    --offset=128M --size=32M --time_based --runtime=300 --output="$WORK/fio.txt" &
FIO=$!
loads "$plain"
slot=$(slot_of "$(controller_of "$plain")")
unbind "$slot"
await 30 says "$WORK/load.said" 'the device was removed|is gone'
joined "a device"
expect_match "errors" "$(<"$WORK/load")" 'times Namespace Not Ready'
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
"$EXAMPLE" "$plain" load 8 1 >"$WORK/load" 2>&1 || die "after it is bound again: $(<"$WORK/load")"
expect "errors after it is bound again" "$(grep -c times "$WORK/load" || true)" 0

# The same in each way that commands go by.
for options in '?poll' '?hybrid' '?sqpoll' '?poll&sqpoll'; do
    loads "$plain$options"
    unbind "$slot"
    await 30 says "$WORK/load.said" 'the device was removed|is gone'
    joined "a device$options"
    expect_match "errors of $options" "$(<"$WORK/load")" 'times Namespace Not Ready'
    bind "$slot"
    plain=$(device nvlane-plain 1)
done

# Two controllers of one namespace go and come back in turn: each time the other carries on.
with_heads
shared=$(device nvlane-path 1)
expect_match "who retries" "$("$NVLANE" info "$shared")" 'retries +here, for 30 s: the kernel does not fail passed commands over'
head=/sys/class/nvme-generic/${shared##*/}/..
# ways COUNT: so many controllers lead to it now
ways() {
    local found=("$head"/nvme*/nvme*c*n1)
    [[ ${#found[@]} == "$1" ]]
}
await 30 ways 2
slots=()
for path in "$head"/nvme[0-9]*; do
    [[ ${path##*/} =~ ^nvme[0-9]+$ ]] && slots+=("$(slot_of "${path##*/}")")
done
expect "controllers" ${#slots[@]} 2
loads "$shared"
for slot in "${slots[@]}"; do
    # Nothing is in flight any more when a controller is taken away in order; a reset cancels what is.
    echo 1 >"/sys/bus/pci/devices/$slot/nvme/"nvme*/reset_controller
    sleep 1
    unbind "$slot"
    await 20 ways 1
    sleep 1
    bind "$slot"
    await 30 ways 2
done
joined "each of two controllers"
no_errors "of each of two controllers"
tried_again "each of two controllers"

# Admin commands leave the controller that they went to when it goes, and come back when another does.
used() {
    local by='admin commands go by +/dev/(nvme[0-9]+)'
    [[ $("$NVLANE" info "$shared?passthrough=admin") =~ $by ]] || die "no controller of $shared"
    echo "${BASH_REMATCH[1]}"
}
: >"$WORK/said"
timeout 90 "$EXAMPLE" "$shared" admin 0x06 cdw10=1 read=4096 again="$WORK/one,$WORK/two" >"$WORK/out" 2>"$WORK/said" &
IDENTIFY=$!
await 30 says "$WORK/said" "waits for $WORK/one"
slot=$(slot_of "$(used)")
unbind "$slot"
: >"$WORK/one"
await 30 says "$WORK/said" "waits for $WORK/two"
other=$(slot_of "$(used)")
bind "$slot"
await 30 ways 2
unbind "$other"
await 20 ways 1
: >"$WORK/two"
wait "$IDENTIFY" || die "Identify by a head: $(<"$WORK/said")"
cmp "$WORK/out" <(nvme id-ctrl "/dev/$(used)" -b)
bind "$other"
await 30 ways 2

# Both go: nothing is left.
loads "$shared"
for slot in "${slots[@]}"; do unbind "$slot"; done
await 60 says "$WORK/load.said" 'removed|gone|no controller'
joined "both controllers"
expect_match "errors" "$(<"$WORK/load")" 'Namespace Not Ready|Pathing Error'
