#!/bin/bash
# limit: 300
# kernel: newest
# devices: usual
# The library's examples, in Rust and C, and `nvlane io`, `admin` and `doctor`, on NVMe devices.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"
PROGRAMS=${LIBRARY_PROGRAMS:?folder of the examples: rust/NAME, c/NAME, libnvlane.so}
export LD_LIBRARY_PATH=$PROGRAMS

plain=$(device nvlane-plain 1)
zoned=$(device nvlane-zoned 1)
metadata=$(device nvlane-plain 2)
block=/dev/nvme${plain#/dev/ng}
controller=/dev/$(controller_of "$plain")
# nvme-cli writes the first 64 blocks: their bytes are all 1.
head -c $((64 * 512)) /dev/zero | tr '\0' '\1' >"$WORK/ones"
nvme write "$block" -s 0 -c 63 -z $((64 * 512)) -d "$WORK/ones" >/dev/null

next=0
# Whatever ran before may have appended to it.
nvme zns reset-zone "$zoned" -n 1 -a >/dev/null
for language in rust c; do
    run="$PROGRAMS/$language"
    for options in '' '?poll' '?sqpoll'; do
        expect "passthrough in $language of $plain$options" "$("$run/passthrough" "$plain$options")" \
            "read 64 blocks of 512 bytes, sum of their bytes 32768"
    done
    # In a loop of the program's own, which sleeps in poll(2) or epoll.
    expect "poll in $language of $plain" "$("$run/poll" "$plain" 2>/dev/null)" "read 64 blocks of 512 bytes, sum of their bytes 32768"
    # Where it went is what the device says, one after the other.
    for _ in 1 2 3; do
        expect "zone_append in $language" "$("$run/zone_append" "$zoned")" "appended at block $next"
        next=$((next + 1))
    done
    expect_match "a namespace without zones" "$(fails "$run/zone_append" "$plain")" \
        'Zone Append: Invalid Command Opcode'
    said=$(fails "$run/vendor" "$plain" 0x92 0xc2)
    expect_match "a vendor's I/O command" "$said" 'I/O command 0x92: Invalid Command Opcode'
    expect_match "a vendor's admin command" "$said" 'admin command 0xc2: Invalid Command Opcode'
    # Those that the device knows: Read, here of a block of 4096 bytes, and Abort, whose result 1 says that there is nothing to
    # be aborted.
    "$run/vendor" "$metadata" 0x02 0x08 >"$WORK/out" || die "vendor in $language failed"
    said=$(sort "$WORK/out")
    expect_match "results of both in $language" "$said" \
        $'^I/O command 0x02: result 0(x0)?\nadmin command 0x08: result 0x1$'
done
# By a C program that keeps an eye on memory: admin commands, metadata, and what the kernel does not take.
"$PROGRAMS/c/device" "$plain" "$metadata" "$WORK/identify" >"$WORK/out" 2>"$WORK/said" || die "$(<"$WORK/said")"
expect "the last word" "$(tail -n 1 "$WORK/out")" 'devices behave'
expect "refusals" "$(grep -c '^a read to' "$WORK/out")" 3
nvme id-ctrl "$controller" -b | cmp - "$WORK/identify"
nvme read "${metadata/ng/nvme}" -s 7 -c 0 -z 4096 -y 8 -d "$WORK/out" -M "$WORK/meta" >/dev/null
expect "the metadata that C wrote" "$(od -An -tx1 "$WORK/meta" | tr -d ' ')" 0908070605040302
# A zone that begins at block 2^32.
large=$(device nvlane-zoned 2)
nvme zns reset-zone "$large" -n 2 -a >/dev/null
for language in rust c; do
    expect "a large place in $language" "$("$PROGRAMS/$language/zone_append" "$large" $((1 << 32)))" \
        "appended at block $(((1 << 32) + ${appended:-0}))"
    appended=1
done

expect "the zone's write pointer" "$(nvme zns report-zones "${zoned/ng/nvme}" -d 1 -o json | jq '.zone_list[0].wp')" $next

# One command from the command line, beside nvme-cli.
head -c 4096 /dev/urandom >"$WORK/a"
"$NVLANE" io "$plain" -O 1 -l 4096 --cdw10 128 --cdw12 7 -w -i "$WORK/a" >/dev/null
nvme read "$block" -s 128 -c 7 -z 4096 -d "$WORK/out" >/dev/null
cmp "$WORK/a" "$WORK/out"
"$NVLANE" io "$plain" -O 2 -l 4096 --cdw10 128 --cdw12 7 -r -b 2>/dev/null | cmp - "$WORK/a"
expect_match "Zone Append by hand" "$("$NVLANE" io "$zoned" -O 0x7d -l 512 -i "$WORK/ones")" \
    "Zone Append is Success and result: 0x$(printf %08x $next)"
"$NVLANE" admin "$plain" -O 6 -l 4096 --cdw10 1 -b 2>/dev/null >"$WORK/out"
nvme id-ctrl "$controller" -b | cmp - "$WORK/out"
expect_match "a status in words" "$(fails "$NVLANE" io "$plain" -O 2 -l 4096 --cdw10 0xfffffff --cdw12 7)" \
    'IO command Read: LBA Out of Range'
expect_match "another namespace" "$(fails "$NVLANE" io "$plain" -n 9 -O 0)" 'is namespace 1'

# Metadata goes and comes in a buffer of its own.
"$NVLANE" io "$metadata" -O 1 -l 4096 --cdw10 5 --cdw14 5 -w -i "$WORK/a" >/dev/null
"$NVLANE" io "$metadata" -O 2 -l 4096 --cdw10 5 -m 8 -M "$WORK/meta" -r -i "$WORK/out" >/dev/null
cmp "$WORK/a" "$WORK/out"
nvme read "${metadata/ng/nvme}" -s 5 -c 0 -z 4096 -y 8 -d "$WORK/out" -M "$WORK/meta2" >/dev/null
cmp "$WORK/meta" "$WORK/meta2"
# Its last four bytes are the reference tag.
expect "the tag" "$(tail -c 4 "$WORK/meta" | od -An -tx1 | tr -d ' ')" 00000005
printf '\1\2\3\4\5\6\7\10' >"$WORK/tag"
"$NVLANE" io "$metadata" -O 1 -l 4096 --cdw10 6 -m 8 -M "$WORK/tag" -w -i "$WORK/a" >/dev/null
"$NVLANE" io "$metadata" -O 2 -l 4096 --cdw10 6 -m 8 -M "$WORK/meta" -r -i "$WORK/out" >/dev/null
cmp "$WORK/tag" "$WORK/meta"
"$NVLANE" io "$metadata" -O 1 -l 4096 --cdw10 1000 -w -i "$WORK/a" >/dev/null
"$NVLANE" io "$metadata" -O 2 -l 4096 --cdw10 1000 -m 8 -M "$WORK/meta" -r -i "$WORK/out" >/dev/null
expect "the tag of the address" "$(tail -c 4 "$WORK/meta" | od -An -tx1 | tr -d ' ')" 000003e8
# Whoever has it checked can read the block (PRINFO, bit 26), and not the one with a tag of its own.
checked() { "$NVLANE" io "$metadata" -O 2 -l 4096 --cdw10 "$1" --cdw12 0x4000000 --cdw14 "$1" -r -b; }
checked 1000 2>/dev/null | cmp - "$WORK/a"
expect_match "another tag" "$(fails checked 6)" 'End-to-end Reference Tag Check Error'
expect_match "too much metadata" "$(fails "$NVLANE" io "$metadata" -O 2 -l 4096 -m 16 -M "$WORK/meta")" \
    'Data SGL Length Invalid'

# What the doctor finds, as root with poll queues, and as nobody.
"$NVLANE" doctor "$plain" -o json >"$WORK/doctor"
for name in io_uring volume char_device char_device_write effects_log admin poll_queues big_entries; do
    expect_json "$WORK/doctor" ".checks[] | select(.name == \"$name\") | .state" ok
done
chmod 600 "$plain"
giving="sudo chown \$(id -un) $plain && sudo chmod u+rw $plain"
if command -v setfacl >/dev/null; then giving="sudo setfacl -m u:\$(id -un):rw $plain"; fi
if setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all \
    "$NVLANE" doctor "$plain" -o json >"$WORK/doctor" 2>/dev/null; then
    die "nobody may open $plain"
fi
expect_json "$WORK/doctor" '.healthy' false
expect_json "$WORK/doctor" '.checks[] | select(.name == "char_device") | .state' missing
expect_json "$WORK/doctor" '.checks[] | select(.name == "char_device") | .mend' "$giving"
expect_json "$WORK/doctor" '.checks[] | select(.name == "bpf") | .state' absent
# However the volume was named, the mend names the device.
for uri in "$plain?poll" "nvme:$plain?poll"; do
    setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all \
        "$NVLANE" doctor "$uri" -o json >"$WORK/doctor" 2>/dev/null || true
    expect_json "$WORK/doctor" '.checks[] | select(.name == "volume") | .mend' "$giving"
done
# Who may read it is told what else there is to be had.
chmod 604 "$plain"
setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all \
    "$NVLANE" doctor "$plain" -o json >"$WORK/doctor"
expect_json "$WORK/doctor" '.checks[] | select(.name == "char_device_write") | .state' absent
expect_json "$WORK/doctor" '.checks[] | select(.name == "effects_log") | .state' ok
expect_json "$WORK/doctor" '.checks[] | select(.name == "admin") | .state' absent
# io_uring that is switched off: the command that mends it, and a device cannot be had without.
sysctl -qw kernel.io_uring_disabled=2
"$NVLANE" doctor -o json >"$WORK/doctor"
expect_json "$WORK/doctor" '.checks[] | select(.name == "io_uring") | .state' absent
expect_json "$WORK/doctor" '.checks[] | select(.name == "io_uring") | .mend' \
    'sudo sysctl -w kernel.io_uring_disabled=0'
if "$NVLANE" doctor "$plain" -o json >"$WORK/doctor" 2>/dev/null; then
    die "a device cannot be had without io_uring"
fi
expect_json "$WORK/doctor" '.checks[] | select(.name == "volume") | .state' missing
expect_json "$WORK/doctor" '.checks[] | select(.name == "volume") | .mend' \
    'sudo sysctl -w kernel.io_uring_disabled=0'
expect_json "$WORK/doctor" '.checks[] | select(.name == "volume") | .found | split("was refused") | length' 2
sysctl -qw kernel.io_uring_disabled=0
"$NVLANE" doctor >/dev/null
