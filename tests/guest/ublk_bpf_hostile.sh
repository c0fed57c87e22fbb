#!/bin/bash
# limit: 300
# kernel: newest
# kernel says: WARNING: kernel/sched/core.c:[0-9]+ at set_task_cpu
# What hostile programs do, one thing after another: `bpf check` says of each what is wrong and where, for user space and in
# the verifier's words; and each kind of wrong list, which the kernel runs, fails its request with a message of its own.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv
bpf=$(realpath "$(dirname "$0")/../../bpf")
b=$SCRATCH/b.img
truncate -s 16M "$b"

# cases FILE: `at` has the line where each case of it begins
cases() {
    local lines number
    mapfile -t lines <"$1"
    at=()
    for number in "${!lines[@]}"; do
        [[ ! ${lines[number]} =~ case\ ([0-9]+): ]] || at[BASH_REMATCH[1]]=$((number + 1))
    done
}

# expect_line WHAT SAID REGEX NUMBER: the line of the source behind what matches is one of case NUMBER's
expect_line() {
    expect_match "$1" "$2" "$3([0-9]+)"
    local line=${BASH_REMATCH[-1]}
    ((line > at[$4] && line <= at[$4] + 3)) || die "$1 is said of line $line, and begins at ${at[$4]}"
}

# Wild programs are refused by the kernel before they run; in user space it is their requests that fail.
outside='an access outside of the stack, the request or the map' wild='an address that is neither the stack, nor the request, nor a map.s value'
unbounded='math between fp pointer and register with unbounded min value'
wilds=(
    "2|$wild|R1 invalid mem access 'scalar'"
    "3|$wild|R1 invalid mem access 'scalar'"
    "4|$wild|$unbounded"
    "5|$outside|$unbounded"
    "6|$outside|R[0-9] min value is outside of the allowed memory range"
    "7|$outside|R[0-9] min value is outside of the allowed memory range"
    "8|a store to constants|write into map forbidden"
    "26|a helper was given something that is no map|R1 type=fp expected=map_ptr"
    "27|$wild|R2 type=scalar expected=fp, "
)
cases "$bpf/tests/wild.bpf.c"
object=$WORK/wild.bpf.o
cp "$bpf/tests/wild.bpf.o" "$object"
place=$(grep -abo 'wild 00' "$object")
expect_match "the verdict on no wild case" "$("$NVLANE" bpf check "$object")" $'\nuser space: taken; .*\nkernel: ok\n'
for wanted in "${wilds[@]}"; do
    IFS='|' read -r number user kernel <<<"$wanted"
    printf %02d "$number" | dd of="$object" bs=1 seek=$((${place%%:*} + 5)) conv=notrunc status=none
    said=$(fails "$NVLANE" bpf check "$object")
    expect_match "wild case $number" "$said" "$object: requests would fail with an I/O error; the kernel does not take it"
    of_kernel=${said#*$'\n'kernel: refused} of_user=${said%$'\n'kernel: refused*}
    expect_match "wild case $number in user space" "$of_user" $'\nuser space: 52 of 52 requests tried on 2 volumes would fail:\n'
    expect_match "wild case $number in user space" "$of_user" "nvlane_route instruction [0-9]+ \(wild.bpf.c:[0-9]+\): $user"
    expect_line "wild case $number in user space" "$of_user" 'nvlane_route instruction [0-9]+ \(wild.bpf.c:' "$number"
    expect_match "wild case $number in the kernel" "$of_kernel" "$kernel"
    expect_line "wild case $number in the kernel" "$of_kernel" '.*@ wild.bpf.c:' "$number"
done
said=$(fails "$NVLANE" ublk add --bpf kernel "bpf:$object($b)")
expect_line "a wild program in the kernel" "$said" "the program cannot run in the kernel: the kernel's verifier refuses it: .*@ wild.bpf.c:" 27

# Lists that are wrong. Of a program the first mistake is told, the second, the fourth, and so on: so each kind has a program of
# its own, put in the place of the one before.
lists=(
    "10 no action was taken"
    "11 the request is completed more than once"
    "12 the request is completed although parts are queued"
    "13 part 0 is for a backend that is not there"
    "14 part 0 lies beyond the end of its backend"
    "15 part 0 is empty, or lies beyond the request"
    "16 part 0 has an operation that the request does not allow"
    "17 the parts leave blocks of the request out"
    "18 the parts read some block of the request more than once"
    "19 more than 32 parts"
    "20 more than 32 parts"
    "21 the request is completed with a status that is not in nvlane_bpf.h"
    "22 the request is delayed for more than 10 s"
    "23 the request is deferred, and there is no NVLANE_DEFERRED"
    "24 the program returned -5"
    "29 more than 8 phases"
    "40 the parts leave blocks of the request out"
    "48 parts 0 and 1 write to the same blocks of a backend"
    "64 part 0 lies beyond the end of its backend"
)
cases "$bpf/tests/hostile.bpf.c"
in_kernel "bpf:$bpf/tests/mild.bpf.o($b)" -d 8
for wanted in "${lists[@]}"; do
    number=${wanted%% *}
    "$NVLANE" bpf replace "$DEVICE" "$bpf/tests/mild.bpf.o" >"$WORK/replaced"
    way=("if=$DEVICE" of=/dev/null "skip=$((number * 512))" iflag=direct,skip_bytes)
    ((number < 40)) || way=(if=/dev/zero "of=$DEVICE" "seek=$((number * 512))" oflag=direct,seek_bytes conv=notrunc)
    said=$(fails dd bs=4k count=1 status=none "${way[@]}")
    expect_match "wrong list $number" "$said" 'Input/output error'
done
verified_io "$DEVICE" 2M --offset=8M --bssplit=512/40:4k/50:64k/10
ublk_stop
mapfile -t told < <(grep 'ERROR request failed: .* count=1$' "$WORK/ublk.log")
# The first program was asked for partitions, too.
told=("${told[@]: -${#lists[@]}}")
for index in "${!lists[@]}"; do
    read -r number words <<<"${lists[index]}"
    operation=0x02 entry=route line=
    ((number < 40)) || operation=0x01
    ((number != 29)) || entry=done
    expect_match "what is said of wrong list $number" "${told[index]}" \
        "request failed: nvlane_$entry instruction [0-9]+[^:]*(:[0-9]+\))?: $words[^:]* \(opcode $operation, 8 blocks at $number\) program=\"$bpf/tests/mild.bpf.o\""
    case $number in
    # Nothing was asked for at some line, or nothing within the case.
    10 | 20 | 24 | 29) ;;
    *) expect_line "wrong list $number" "${told[index]}" 'nvlane_route instruction [0-9]+ \(hostile.bpf.c:' "$number" ;;
    esac
done
modprobe -r ublk_drv
