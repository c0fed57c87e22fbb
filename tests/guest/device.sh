#!/bin/bash
# limit: 480
# kernel: newest
# devices: usual
# processors: 2
# NVMe character devices through our ring, in each way that it has: every command does what nvme-cli
# sees it do, and what nobody wraps reaches the device.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

plain=$(device nvlane-plain 1)
zoned=$(device nvlane-zoned 1)
block=/dev/nvme${plain#/dev/ng}
head -c 4096 /dev/urandom >"$WORK/a"
head -c 4096 /dev/urandom >"$WORK/b"

# block_commands URI LBA [FIELD=VALUE]...: eight blocks from LBA on
block_commands() {
    local uri=$1 lba=$2
    shift 2
    give "$uri" io 0x01 cdw10="$lba" cdw12=7 data="$WORK/a" "$@"
    nvme read "$block" -s "$lba" -c 7 -z 4096 -d "$WORK/out" >/dev/null
    cmp "$WORK/a" "$WORK/out"
    nvme write "$block" -s "$lba" -c 7 -z 4096 -d "$WORK/b" >/dev/null
    "$EXAMPLE" "$uri" io 0x02 cdw10="$lba" cdw12=7 read=4096 "$@" >"$WORK/out"
    cmp "$WORK/b" "$WORK/out"
    tracing
    give "$uri" io 0x00 "$@"
    traced_enough
    expect "flushes that $uri took to the device" "$(grep -c "$(controller_of "$plain"): .*nvme_cmd_flush" "$TRACE/trace")" 1
    give "$uri" io 0x05 cdw10="$lba" cdw12=7 data="$WORK/b" "$@"
    refused 'Compare Failure' "$uri" io 0x05 cdw10="$lba" cdw12=7 data="$WORK/a" "$@"
    give "$uri" io 0x08 cdw10="$lba" cdw12=3 "$@"
    nvme read "$block" -s "$lba" -c 7 -z 4096 -d "$WORK/out" >/dev/null
    cmp -n 2048 /dev/zero "$WORK/out"
    cmp -n 2048 -i 2048 "$WORK/b" "$WORK/out"
    give "$uri" io 0x0c cdw10="$lba" cdw12=7 "$@"
    # Copy, format 0h: the second four of the eight to the first four.
    {
        printf '\0\0\0\0\0\0\0\0'
        printf "\\x$(printf %02x $(((lba + 4) & 255)))\\x$(printf %02x $(((lba + 4) >> 8)))\\0\\0\\0\\0\\0\\0"
        printf '\3\0'
        head -c 14 /dev/zero
    } >"$WORK/ranges"
    give "$uri" io 0x19 cdw10="$lba" cdw12=0 data="$WORK/ranges" "$@"
    nvme read "$block" -s "$lba" -c 7 -z 4096 -d "$WORK/out" >/dev/null
    cmp -n 2048 -i 2048:0 "$WORK/b" "$WORK/out"
    cmp -n 2048 -i 2048 "$WORK/b" "$WORK/out"
    refused 'LBA Out of Range' "$uri" io 0x02 cdw10=0xfffffff cdw12=7 read=4096 "$@"
}

lba=0
for options in '' poll hybrid sqpoll 'sqpoll=1&sqpoll_idle=50ms' 'poll&sqpoll' timeout=10s; do
    uri="$plain?$options"
    uri=${uri%\?}
    for memory in pool vec; do
        block_commands "$uri" $lba memory=$memory >/dev/null
        lba=$((lba + 8))
    done
    "$EXAMPLE" "$uri" load 32 1 >"$WORK/load" 2>&1 || die "$uri: $(<"$WORK/load")"
    expect "errors of $uri" "$(grep -c times "$WORK/load" || true)" 0
    if [[ $options == *sqpoll* ]]; then
        expect_match "what carries $uri" "$(<"$WORK/load")" 'submitted by a kernel thread'
    fi
    echo "$uri: $(tr '\n' ' ' <"$WORK/load")"
done

# By a registered file, and by the kernel's thread where there is one: what the kernel says of each entry that it takes.
# submitted URI: registered or not, by the thread or not, for each kind that a read of it has: "1 0"
submitted() {
    local event=$TRACE/events/io_uring/io_uring_submit_req flags thread
    echo >"$TRACE/trace"
    echo 1 >"$event/enable"
    "$EXAMPLE" "$1" io 0x02 cdw10=4242 cdw12=7 read=4096 >/dev/null 2>"$WORK/said" || die "$1: $(<"$WORK/said")"
    echo 0 >"$event/enable"
    while read -r flags thread; do echo "$((flags & 1)) $thread"; done < <(
        sed -nE 's/.*opcode URING_CMD[0-9]*, flags (0x[0-9a-f]+), sq_thread ([01]).*/\1 \2/p' "$TRACE/trace"
    ) | sort -u
}
for options in timeout=10s poll; do expect "entries of ?$options" "$(submitted "$plain?$options")" '1 0'; done
for options in sqpoll 'poll&sqpoll'; do expect "entries of ?$options" "$(submitted "$plain?$options")" '1 1'; done

# The thread stays on the processor that it is given, and sleeps once it has been idle for long enough.
# thread_of PROCESS: the number of its submitting thread
thread_of() {
    local task
    for task in "/proc/$1/task"/*; do
        [[ $(<"$task/comm") == iou-sqp-* ]] && echo "${task##*/}" && return
    done
    return 1
}
# has_spun, has_slept: whether the thread has used its processor without work, and whether it does not
has_spun() { (($(time_of) - before > 100000000)); }
has_slept() {
    before=$(time_of)
    pause 1
    (($(time_of) == before))
}
time_of() {
    local used
    read -r used _ <"/proc/$process/task/$thread/schedstat"
    echo "$used"
}
# idles IDLE WHICH: one that is to sleep after that time without work has done that of the two
idles() {
    local process thread before
    rm -f "$WORK/go"
    : >"$WORK/said"
    "$EXAMPLE" "$plain?sqpoll=1&sqpoll_idle=$1" io 0x00 again="$WORK/go" >"$WORK/out" 2>"$WORK/said" &
    process=$!
    await 30 says "$WORK/said" 'waits for'
    thread=$(thread_of "$process") || die "nobody submits: $(<"$WORK/said")"
    expect "processors of the thread" "$(sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$process/task/$thread/status")" 1
    # The kernel's own time is a second: who was not told another sleeps by now.
    pause 2.5
    before=$(time_of)
    await 20 "$2"
    : >"$WORK/go"
    wait "$process" || die "a command after a pause: $(<"$WORK/said")"
}
idles 50ms has_slept
idles 30s has_spun

for kind in small big mixed; do
    block_commands "$plain" $lba kind=$kind >/dev/null
    lba=$((lba + 8))
    expect_match "the ring of kind $kind" "$("$EXAMPLE" "$plain" load 1 0 kind=$kind 2>&1)" \
        "$([[ $kind == small ]] && echo 'beside' || echo 'own ring')"
done

# Polling is polling only where there are queues for it: commands go to those.
# queues_of URI: queues with and without interrupts that a read of it goes to
queues_of() {
    tracing
    "$EXAMPLE" "$1" io 0x02 cdw10=4242 cdw12=7 read=4096 >/dev/null 2>"$WORK/said" || die "$1: $(<"$WORK/said")"
    traced_enough
    by_interrupt "$(controller_of "$plain")" 'slba=4242,'
}
expect_match "polling" "$("$NVLANE" info "$plain?poll")" 'completions +polled for'
for options in poll hybrid 'poll&sqpoll'; do
    expect "queues of ?$options" "$(queues_of "$plain?$options")" '0 1'
done
# sleeps_first URI: whether its ring sleeps before it polls
sleeps_first() { "$EXAMPLE" "$1" load 1 0 2>&1 | grep -c 'polled for after a sleep' || true; }
expect "sleeps before polling" "$(sleeps_first "$plain?poll") $(sleeps_first "$plain?hybrid")" '0 1'
expect "queues without polling" "$(queues_of "$plain")" '1 0'
await 20 modprobe -r nvme
modprobe nvme
plain=$(device nvlane-plain 1)
zoned=$(device nvlane-zoned 1)
block=/dev/nvme${plain#/dev/ng}
expect_match "polling in vain" "$("$NVLANE" info "$plain?poll" 2>&1)" 'no poll queues.*poll_queues='
"$NVLANE" io "$plain?poll" -O 0 2>"$WORK/said" >/dev/null
expect_match "the warning" "$(<"$WORK/said")" 'WARN.*no poll queues.*poll_queues='
block_commands "$plain?poll" 0 >/dev/null
expect "queues of polling in vain" "$(queues_of "$plain?poll")" '1 0'
mend poll_queues absent device_now nvlane-plain 1
plain=$(device nvlane-plain 1)
zoned=$(device nvlane-zoned 1)
block=/dev/nvme${plain#/dev/ng}
expect "queues of polling" "$(queues_of "$plain?poll")" '0 1'

# More data than came with a command is not moved: the driver does not check that.
refused 'Invalid Field' "$zoned" io 0x7d cdw10=0 cdw12=15 data="$WORK/a"
# Of Copy the list is read before, since the volume copies.
refused 'Data SGL Length Invalid' "$plain" io 0x19 cdw10=0 cdw12=3 data="$WORK/ranges"

# What the controller says, through our ring and by nvme-cli.
controller=/dev/$(controller_of "$plain")
"$EXAMPLE" "$plain" admin 0x06 cdw10=1 read=4096 >"$WORK/out" 2>/dev/null
nvme id-ctrl "$controller" -b | cmp - "$WORK/out"
"$EXAMPLE" "$plain" admin 0x06 nsid=1 cdw10=0 read=4096 memory=vec >"$WORK/out" 2>/dev/null
nvme id-ns "$block" -b | cmp - "$WORK/out"
"$EXAMPLE" "$plain?poll" admin 0x02 nsid=0xffffffff cdw10=0x03ff0005 read=4096 >"$WORK/out" 2>/dev/null
nvme get-log "$controller" -i 5 -l 4096 -b | cmp - "$WORK/out"
expect "number of queues" "$(give "$plain" admin 0x0a cdw10=7)" \
    "$(printf 0x%x "0x$(nvme get-feature "$controller" -f 7 | grep -oE 'value:0?x?[0-9a-f]+' | sed -E 's/value:(0x)?//')")"

# The same at the controller's own device, where no namespace is asked for.
admin() { "$NVLANE" admin "$controller" "$@"; }
admin -O 6 -l 4096 --cdw10 1 -r -b 2>/dev/null >"$WORK/out"
nvme id-ctrl "$controller" -b | cmp - "$WORK/out"
expect "the result" "$(admin -O 0x0a --cdw10 7 -o json | jq '.result | tostring')" \
    "$("$NVLANE" admin "$plain" -O 0x0a --cdw10 7 -o json | jq '.result | tostring')"
expect_match "a command that it does not have" "$(fails "$NVLANE" admin "$controller" -O 0xc7)" 'Invalid Command Opcode'
expect_match "more than came with it" "$(fails "$NVLANE" admin "$controller" -O 6 -l 512 --cdw10 1 -r)" 'Invalid Field'
expect_match "I/O to a controller" "$(fails "$NVLANE" io "$controller" -O 2 -l 512)" 'is a controller.*n1'
printf Foo >"$WORK/label"
expect_match "data that is sent" "$(fails "$NVLANE" admin "$controller" -O 0xc1 -l 4096 -w -i "$WORK/label")" 'Invalid Command Opcode'

# Data in vectors.
"$EXAMPLE" "$plain" io 0x01 cdw10=16 cdw12=7 data="$WORK/a" memory=pieces
nvme read "$block" -s 16 -c 7 -z 4096 -d "$WORK/out" >/dev/null
cmp "$WORK/a" "$WORK/out"
for options in "" "?poll" "?sqpoll"; do
    "$EXAMPLE" "$plain$options" io 0x02 cdw10=16 cdw12=7 read=4096 memory=pieces 2>/dev/null | cmp - "$WORK/a"
done
"$EXAMPLE" "$plain" admin 0x06 cdw10=1 read=4096 memory=pieces 2>/dev/null >"$WORK/out"
nvme id-ctrl "$controller" -b | cmp - "$WORK/out"

# Protection information of a namespace with metadata: the controller adds it and takes it off.
metadata=$(device nvlane-plain 2)
give "$metadata" io 0x01 cdw10=0 cdw12=0 data="$WORK/a"
"$EXAMPLE" "$metadata" io 0x02 cdw10=0 cdw12=0 read=4096 2>/dev/null | cmp - "$WORK/a"

# With the reference tags of their addresses, by which nvme-cli and we have them checked (PRINFO, bit 26).
give "$metadata" io 0x01 cdw10=1000 cdw12=0 data="$WORK/b"
"$EXAMPLE" "$metadata" io 0x02 cdw10=1000 cdw12=0x4000000 cdw14=1000 read=4096 2>/dev/null | cmp - "$WORK/b"
nvme read "${metadata/ng/nvme}" -s 1000 -c 0 -z 4096 -y 8 -p 1 -r 1000 -d "$WORK/out" -M "$WORK/meta" >/dev/null
cmp "$WORK/b" "$WORK/out"
give "$metadata" io 0x08 cdw10=1001 cdw12=3
"$EXAMPLE" "$metadata" io 0x02 cdw10=1002 cdw12=0x4000000 cdw14=1002 read=4096 >"$WORK/out" 2>/dev/null
head -c 4096 /dev/zero | cmp - "$WORK/out"
# The controller adds nothing to a Compare.
refused 'Invalid Field' "$metadata" io 0x05 cdw10=1000 cdw12=0 data="$WORK/b"

# Zones: appending tells where, and the report shows it.
nvme zns reset-zone "$zoned" -n 1 -a >/dev/null
expect "the first append" "$(give "$zoned" io 0x7d cdw10=0 cdw12=7 data="$WORK/a")" 0x0
expect "the second" "$(give "$zoned?poll" io 0x7d cdw10=0 cdw12=7 data="$WORK/b" memory=vec)" 0x8
zone=$((4 * 1024 * 1024 / 512))
expect "another zone's" "$(give "$zoned" io 0x7d cdw10=$zone cdw12=7 data="$WORK/b")" "$(printf 0x%x $zone)"
"$EXAMPLE" "$zoned" io 0x02 cdw10=8 cdw12=7 read=4096 2>/dev/null | cmp - "$WORK/b"
"$EXAMPLE" "$zoned" io 0x7a cdw10=0 cdw12=1023 read=4096 >"$WORK/out" 2>/dev/null
# Zone descriptors of 64 bytes behind a header of 64; the write pointer at 24.
pointer() { od -An -t u8 -j $((64 + 64 * $1 + 24)) -N 8 "$WORK/out" | tr -d ' '; }
expect "the first write pointer" "$(pointer 0)" 16
expect "the second" "$(pointer 1)" $((zone + 8))
nvme zns report-zones "/dev/nvme${zoned#/dev/ng}" -d 16 -o json >"$WORK/zones.json" 2>/dev/null
expect "nvme-cli's" "$(jq -r '.zone_list[0].wp' "$WORK/zones.json")" 16
give "$zoned" io 0x79 cdw10=0 cdw13=4
"$EXAMPLE" "$zoned" io 0x7a cdw10=0 cdw12=1023 read=4096 >"$WORK/out" 2>/dev/null
expect "the write pointer of a zone that was reset" "$(pointer 0)" 0

# Where the place has more than 32 bits: zone 512 of 4 GiB each begins at block 2^32.
large=$(device nvlane-zoned 2)
nvme zns reset-zone "$large" -n 2 -a >/dev/null
for memory in pool vec; do
    for options in timeout=10s poll sqpoll; do
        next=$(printf 0x%x $(((1 << 32) + ${appended:-0})))
        expect "an append at $next by ?$options" \
            "$(give "$large?$options" io 0x7d cdw11=1 cdw12=7 data="$WORK/a" memory=$memory)" "$next"
        appended=$((${appended:-0} + 8))
    done
done
"$EXAMPLE" "$large" io 0x02 cdw10=8 cdw11=1 cdw12=7 read=4096 2>/dev/null | cmp - "$WORK/a"

# Two controllers, one namespace.
with_heads
shared=$(device nvlane-path 1)
two_live() {
    local wanted='controllers +nvme[0-9]+ live, nvme[0-9]+ live.*any controller'
    [[ $("$NVLANE" info "$shared?passthrough=admin") =~ $wanted ]]
}
await 20 two_live
"$EXAMPLE" "$shared" load 16 1 >"$WORK/load" 2>&1 || die "$(<"$WORK/load")"
expect "errors of a head" "$(grep -c times "$WORK/load" || true)" 0
