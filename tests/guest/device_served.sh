#!/bin/bash
# limit: 240
# kernel: newest
# devices: usual
# NVMe devices served to this kernel and to our own host: what nobody wraps reaches the device where the
# volume was opened with passthrough=, and nothing does where it was not.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

plain=$(device nvlane-plain 1)
zoned=$(device nvlane-zoned 1)
metadata=$(device nvlane-plain 2)
device_controller=$(controller_of "$plain")
head -c 4096 /dev/urandom >"$WORK/a"

# remote_device NSID: the character device of the connected namespace
remote_device() {
    local block
    block=$(namespace "$1")
    await 20 test -c "/dev/ng${block#/dev/nvme}"
    echo "/dev/ng${block#/dev/nvme}"
}

# --- Without passthrough: a volume like any other ---
serve "$plain" "$zoned" "$metadata"
connect
verified_io "$(namespace 1)" 16M
# Of blocks with protection information the device can check the reference tags afterwards.
nvme write "$(namespace 3)" -s 1000 -c 0 -z 4096 -d "$WORK/a" >/dev/null
nvme read "${metadata/ng/nvme}" -s 1000 -c 0 -z 4096 -y 8 -p 1 -r 1000 -d "$WORK/out" -M "$WORK/meta" >/dev/null
cmp "$WORK/a" "$WORK/out"
remote=$(remote_device 1)
controller=/dev/$(controllers)
tracing
expect_match "a vendor's command" "$(fails nvme io-passthru "$remote" -o 0x81 -n 1 -w -l 4096 -i "$WORK/a" --cdw10=0x5a5a)" \
    'INVALID_OPCODE|Invalid Command Opcode'
expect_match "a vendor's admin command" "$(fails nvme admin-passthru "$controller" -o 0xc0 -n 1 --cdw10=0x5a5a)" \
    'INVALID_OPCODE|Invalid Command Opcode'
expect_match "a zone append" "$(fails nvme io-passthru "$(remote_device 2)" -o 0x7d -n 2 -w -l 4096 -i "$WORK/a" --cdw12=7)" \
    'INVALID_OPCODE|Invalid Command Opcode'
# What may be passed is seen by the same pattern, so none is none.
nvme read "$(namespace 1)" -s 90 -c 7 -z 4096 -d "$WORK/out" >/dev/null
[[ $(traced "$device_controller" '[0-9]+' 'slba=90,') -gt 0 ]] || die "the trace shows no read: $(tail -n 5 "$TRACE/trace")"
expect "commands at the devices" "$(traced "$device_controller" '[0-9]+' '5a 5a 00 00')" 0
disconnect
stop

# --- With it ---
large=$(device nvlane-zoned 2)
serve "$plain?passthrough=io+admin" "$zoned?passthrough=io" "$large?passthrough=io"
connect
verified_io "$(namespace 1)" 16M
remote=$(remote_device 1)
controller=/dev/$(controllers)
tracing
# QEMU knows none of these: that it says so is the device's word, not ours.
unknown() { expect_match "$*" "$(fails nvme "$@")" 'INVALID_OPCODE|Invalid Command Opcode'; }
unknown io-passthru "$remote" -o 0x81 -n 1 -w -l 4096 -i "$WORK/a" --cdw10=0x5a01
unknown admin-passthru "$controller" -o 0xc0 -n 1 --cdw10=0x5a02
unknown admin-passthru "$controller" -o 0xc1 -n 1 -w -l 4096 -i "$WORK/a" --cdw10=0x5a03
unknown admin-passthru "$controller" -o 0xc2 -n 1 -r -l 8192 --cdw10=0x5a04
traced_enough
for word in '01 5a' '02 5a' '03 5a' '04 5a'; do
    [[ $word == '01 5a' ]] && queue='[1-9]' || queue=0
    expect "commands with cdw10=$word at the device" "$(traced "$device_controller" "$queue" "$word 00 00")" 1
done
# Not of a volume that does not pass admin commands on, nor of none.
expect_match "another namespace's" "$(fails nvme admin-passthru "$controller" -o 0xc0 -n 2)" 'INVALID_OPCODE|Invalid'
expect_match "no namespace's" "$(fails nvme admin-passthru "$controller" -o 0xc0)" 'INVALID_OPCODE|Invalid'

# Copy, by nvme-cli.
nvme write "$(namespace 1)" -s 0 -c 7 -z 4096 -d "$WORK/a" >/dev/null
nvme copy "$(namespace 1)" --sdlba=64 --blocks=7 --slbs=0
nvme read "$(namespace 1)" -s 64 -c 7 -z 4096 -d "$WORK/out" >/dev/null
cmp "$WORK/a" "$WORK/out"

# reads FILE URI io|admin OPCODE [FIELD=VALUE]...: what a command brings goes there
reads() {
    local file=$1
    shift
    "$EXAMPLE" "$@" 2>"$WORK/said" >"$file" || die "$*: $(<"$WORK/said")"
}

# Zone Append of this kernel's host, through our ring: the device tells where, in the 64-bit result.
remote=$(remote_device 2)
nvme zns reset-zone "$zoned" -n 1 -a >/dev/null
expect "the first append" "$(give "$remote" io 0x7d cdw10=0 cdw12=7 data="$WORK/a")" 0x0
expect "the second" "$(give "$remote" io 0x7d cdw10=0 cdw12=7 data="$WORK/a")" 0x8
# And of our own host; both saw the same device.
uri="tcp://127.0.0.1:$PORT/$NQN?ns=2"
expect "the third" "$(give "$uri" io 0x7d cdw10=0 cdw12=7 data="$WORK/a")" 0x10
reads "$WORK/out" "$uri" io 0x7a cdw10=0 cdw12=1023 read=4096
expect "the write pointer" "$(od -An -t u8 -j $((64 + 24)) -N 8 "$WORK/out" | tr -d ' ')" 24
reads "$WORK/local" "$zoned" io 0x7a cdw10=0 cdw12=1023 read=4096
cmp "$WORK/local" "$WORK/out"
# Reset, Zone Management Send.
give "$uri" io 0x79 cdw10=0 cdw13=4
head -c 512 "$WORK/a" >"$WORK/a.512"
expect "an append after a reset" "$(give "$uri" io 0x7d cdw10=0 cdw12=0 data="$WORK/a.512")" 0x0

# Places of more than 32 bits come back whole: zone 512 of 4 GiB each begins at block 2^32.
nvme zns reset-zone "$large" -n 2 -a >/dev/null
append=(io 0x7d cdw11=1 cdw12=7 data="$WORK/a")
expect "an append by this kernel's host" "$(give "$(remote_device 3)" "${append[@]}")" 0x100000000
expect "an append by ours" "$(give "tcp://127.0.0.1:$PORT/$NQN?ns=3" "${append[@]}")" 0x100000008
expect "an append here" "$(give "$large" "${append[@]}")" 0x100000010

# Admin commands of our host: what our target answers itself, and what it passes on.
uri="tcp://127.0.0.1:$PORT/$NQN?ns=1"
reads "$WORK/out" "$uri" admin 0x06 nsid=1 cdw10=0 read=4096
nvme id-ns "$(namespace 1)" -b | cmp - "$WORK/out"
tracing
refused 'Invalid Command Opcode' "$uri" admin 0xc1 nsid=1 cdw10=0x5a05 data="$WORK/a"
traced_enough
expect "commands at the device" "$(traced "$device_controller" 0 '05 5a 00 00')" 1
refused 'Operation Denied' "$uri" admin 0x18
refused 'Operation Denied' "$uri" admin 0x09 cdw10=0x0f cdw11=1000

# An unprivileged user of this kernel goes by what our effects log says.
chmod 666 "$remote"
chmod 755 "$WORK"
chmod 644 "$WORK/a"
setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all \
    "$EXAMPLE" "$remote" io 0x7d cdw10=0 cdw12=7 data="$WORK/a" 2>"$WORK/said" || die "$(<"$WORK/said")"
disconnect
stop
