#!/bin/bash
# limit: 180
# Two hosts on one namespace at once: each sees the other's writes, both work side by side, and
# reservations, which would keep them apart, are said to be absent.
. "$(dirname "$0")/harness.sh"

# With native multipath both would be two paths of one host's device.
modprobe -r nvme-tcp nvme-fabrics nvme-core
modprobe nvme-core multipath=N
modprobe nvme-tcp

serve "file:$SCRATCH/two.img?size=256M&create"
# Through the kernel's own interface: nvme-cli 2.3 says "already connected" of another host.
uuids=(11111111-1111-4111-8111-111111111111 22222222-2222-4222-8222-222222222222)
first=nqn.2014-08.org.nvmexpress:uuid:${uuids[0]}
second=nqn.2014-08.org.nvmexpress:uuid:${uuids[1]}
for uuid in "${uuids[@]}"; do
    printf %s "nqn=$NQN,transport=tcp,traddr=127.0.0.1,trsvcid=$PORT,nr_io_queues=1,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$uuid,hostid=$uuid" \
        >/dev/nvme-fabrics
done

# The block device of the host with that NQN.
device_of() {
    local controller path
    for controller in $(controllers); do
        [[ $(<"/sys/class/nvme/$controller/hostnqn") == "$1" ]] || continue
        for path in /sys/block/nvme*n1; do
            [[ $(basename "$(readlink "$path/device")") == "$controller" ]] && echo "/dev/${path##*/}" && return
        done
    done
    return 1
}
await 20 device_of "$first" >/dev/null
await 20 device_of "$second" >/dev/null
a=$(device_of "$first")
b=$(device_of "$second")
[[ $a != "$b" ]] || die "both hosts have $a"
expect "both hosts see one namespace" \
    "$(<"/sys/block/${a#/dev/}/uuid")" "$(<"/sys/block/${b#/dev/}/uuid")"
ids=$(for c in $(controllers); do cat "/sys/class/nvme/$c/cntlid"; done | sort -u | wc -l)
expect "controller ids" "$ids" 2

for pair in "$a $b" "$b $a"; do
    read -r from to <<<"$pair"
    head -c 4M /dev/urandom >"$WORK/sample"
    dd if="$WORK/sample" of="$from" bs=64k oflag=direct status=none
    cmp -n $((4 << 20)) "$WORK/sample" <(dd if="$to" bs=64k count=64 iflag=direct status=none) \
        || die "what one host wrote the other does not read"
done

FIO_OUTPUT=$WORK/a.json verified_io "$a" 32M --offset=0 &
one=$!
FIO_OUTPUT=$WORK/b.json verified_io "$b" 32M --offset=64M --randseed=7
wait $one || die "fio of the first host"

# Status 0x1, with or without Do Not Retry (0x4000).
INVALID_OPCODE='Invalid Command Opcode.*\(0x(400)?1\)'
for device in "$a" "$b"; do
    for command in "resv-report $device" "resv-register $device --nrkey=1 --rrega=0"; do
        # shellcheck disable=SC2086 # a command and its words
        expect_match "nvme $command" "$(fails nvme $command)" "$INVALID_OPCODE"
    done
done
disconnect
stop
