#!/bin/bash
# limit: 500
# Every example program in user space: over NVMe/TCP and NBD, and below a block device where this kernel has ublk; all
# written and verified, by one request at a time and by many, of odd numbers of sectors.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

bpf=$(realpath "$(dirname "$0")/../../bpf")
names=(linear stripe mirror statistics snapshot rate thin)
for name in "${names[@]}"; do
    truncate -s $(((8 << 20) + 7 * 512)) "$SCRATCH/$name.a"
    truncate -s 8M "$SCRATCH/$name.b"
done
# What is written over a snapshot has its size.
truncate -s $(((8 << 20) + 7 * 512)) "$SCRATCH/snapshot.b"
dd if=/dev/urandom of="$SCRATCH/snapshot.a" bs=1M count=8 conv=notrunc status=none
base=$(sha256sum <"$SCRATCH/snapshot.a")

# of NAME: the volume
of() {
    local a=$SCRATCH/$1.a b=$SCRATCH/$1.b
    case $1 in
    statistics | rate) echo "bpf:$bpf/$1.bpf.o($a)" ;;
    snapshot) echo "bpf:$bpf/$1.bpf.o(file:$a?ro,$b)" ;;
    *) echo "bpf:$bpf/$1.bpf.o($a,$b)" ;;
    esac
}
# from NAME KIB: where fio begins, in KiB, for the end of linear's first volume, in the middle of a page, to be in the middle
from() { [[ $1 == linear ]] && echo $(((8 << 10) - $2 / 2)) || echo 0; }
around() { echo "--offset=$(from "$@")k"; }
few=(--iodepth=1 --bssplit=512/40:1536/20:4k/40 --randseed=2)
many=(--iodepth=128 --bssplit=512/32:2560/32:4k/30:65k/5:1M/1)

# Each is one namespace of a target.
volumes=()
for name in "${names[@]}"; do volumes+=("$(of "$name")"); done
serve "${volumes[@]}"
connect --nr-io-queues=2 >/dev/null
for at in "${!names[@]}"; do
    echo "${names[at]}, over NVMe/TCP"
    verified_io "$(namespace $((at + 1)))" 3M "${many[@]}" "$(around "${names[at]}" 3072)"
done
expect_joined "$(namespace 1)" 7 3 "$SCRATCH/linear.a" "$SCRATCH/linear.b"
disconnect
stop
cmp "$SCRATCH/mirror.a" "$SCRATCH/mirror.b" -n $((8 << 20)) || die "the mirrors differ"
expect "the base of a snapshot" "$(sha256sum <"$SCRATCH/snapshot.a")" "$base"

# Another machine than the kernel: exports of NBD.
exports=()
for name in "${names[@]}"; do exports+=("$name=$(of "$name")"); done
: >"$WORK/nbd.log"
"$NVLANE" nbd "${exports[@]}" --socket "$WORK/nbd.sock" >"$WORK/nbd.log" 2>&1 </dev/null &
door=$!
await 60 says "$WORK/nbd.log" ready
for name in "${names[@]}"; do
    echo "$name, over NBD"
    fio --name="$name" --ioengine=nbd --uri="nbd+unix:///$name?socket=$WORK/nbd.sock" --rw=randrw --size=2M "$(around "$name" 2048)" --verify=crc32c \
        --verify_fatal=1 "${many[@]}" --iodepth=32 --randseed=3 >"$WORK/fio" 2>&1 || die "fio: $(tail -n 20 "$WORK/fio") $(<"$WORK/nbd.log")"
done
kill -TERM "$door"
wait "$door" || die "the door did not end well: $(<"$WORK/nbd.log")"

# By queues of a block device, each with a thread: as many as there are processors. On each way of data that this kernel
# has, the last one not asked for but chosen; everyday each program on one of them, and a third of the amount is written.
modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
ways=(--copy) words=(copy)
if has_feature USER_COPY; then ways+=(--user-copy) words+=("user copy"); fi
if has_feature AUTO_BUF_REG; then ways+=(--auto) words+=("zero copy"); fi
amount=$((FULL ? 3072 : 1024))
for number in "${!names[@]}"; do
    name=${names[number]}
    for at in "${!ways[@]}"; do
        ((FULL || at == number % ${#ways[@]})) || continue
        ublk_add "$(of "$name")" -q 2 -d 128 --bpf user "${ways[at]}"
        echo "$name, below a block device: ${words[at]}"
        # What the driver says, and where the program runs.
        "$NVLANE" ublk list -o json >"$WORK/list.json"
        expect_json "$WORK/list.json" '.devices[0] | "\(.data_path), \(.program_place)"' "${words[at]}, user"
        # A part for each block is what a snapshot may have to read: larger requests are cut for it.
        largest=1024
        [[ $name != snapshot ]] || largest=16
        expect "the largest request, in KiB" "$(<"/sys/block/${DEVICE#/dev/}/queue/max_sectors_kb")" $largest
        # By two processors where there are two, each with so many in flight; then the largest; then one at a time.
        from=$(from "$name" $((2 * amount)))
        verified_io "$DEVICE" ${amount}k "${many[@]}" --name=low --offset="${from}k" --cpus_allowed=0 \
            --name=high --offset="$((from + amount))k" --cpus_allowed="$(($(nproc) - 1))" \
            --name=large --stonewall --rw=write --bssplit=1M/100 --size=2M "$(around "$name" 2048)" \
            --name=alone --stonewall "${few[@]}" --size=512k "$(around "$name" 512)"
        [[ $name != linear ]] || expect_joined "$DEVICE" 5 6 "$SCRATCH/linear.a" "$SCRATCH/linear.b"
        ublk_stop
    done
done
cmp "$SCRATCH/mirror.a" "$SCRATCH/mirror.b" -n $((8 << 20)) || die "the mirrors differ"
expect "the base of a snapshot" "$(sha256sum <"$SCRATCH/snapshot.a")" "$base"
ublk_add "bpf:$bpf/null.bpf.o($SCRATCH/linear.a)" --bpf user
cmp -n $((1 << 20)) /dev/zero "$DEVICE" || die "null does not read zeroes"
ublk_stop
modprobe -r ublk_drv
