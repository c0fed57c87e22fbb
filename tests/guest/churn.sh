#!/bin/bash
# limit: 1800
# Subsystems and namespaces that come and go: what discovery says, what a connected host is left
# with. Of blktests' nvme group this stands for 002, 016, 017, 030, 031, 051, 052 and 058, most of
# which it can only ask of the kernel's own target. Namespaces are memory and files in turn, and a block device.
. "$(dirname "$0")/harness.sh"

count=$((FULL ? 1000 : 60))
volumes=()
mkdir -p "$SCRATCH/churn"
for ((nsid = 1; nsid <= count; nsid++)); do
    ((nsid % 2)) && volumes+=(mem:1M) || volumes+=("$SCRATCH/churn/$nsid.img?size=1M&create")
done
# What comes and goes.
truncate -s 2M "$SCRATCH/churn/spare.img" "$SCRATCH/churn/loop.img"
loop=$(losetup -f --show --direct-io=on "$SCRATCH/churn/loop.img")
spares=(mem:2M "$SCRATCH/churn/spare.img" "$loop" "file:$SCRATCH/churn/spare.img")
serve "${volumes[@]}"
log() { nvme discover -t tcp -a 127.0.0.1 -s "$PORT" -o json >"$WORK/log.json"; }
generation() { log && jq .genctr <"$WORK/log.json"; }
names() { jq -r '.records[].subnqn' <"$WORK/log.json" | sort -u; }

# Every change to what there is moves the generation counter; none does not.
before=$(generation)
expect "the generation of a log that did not change" "$(generation)" "$before"
other=nqn.2014-08.org.example:churn
subsystems=$((FULL ? 200 : 8))
for ((n = 0; n < subsystems; n++)); do ctl subsystem add "$other-$n"; done
after=$(generation)
((after > before)) || die "the generation is $after after $before and $subsystems subsystems more"
expect "subsystems in the log" "$(names | grep -c "^$other-")" "$subsystems"

# Connected to and removed at once: the host's controller goes, and the server does not mind.
main=$NQN
for ((n = 0; n < subsystems && n < 4; n++)); do
    NQN=$other-$n
    ctl volume add mem:1M --nqn "$NQN"
    connect -i 1 --ctrl-loss-tmo=1 --reconnect-delay=1
    ((n % 2)) && disconnect
    ctl subsystem remove "$NQN"
    ((n % 2)) || disconnect 2>/dev/null || true
    none() { [[ -z $(controllers) ]]; }
    await 30 none
done
for ((; n < subsystems; n++)); do ctl subsystem remove "$other-$n"; done
NQN=$main
last=$(generation)
((last > after)) || die "the generation is $last after $after and $subsystems subsystems less"
expect "subsystems left in the log" "$(names | grep -c "^$other-")" 0

# All namespaces at once, each once.
connect -i 2
# Looked up without a process per namespace: there are many, and this processor is emulated.
disks() { grep -l . /sys/block/nvme*n*/nsid | grep -cE '/nvme[0-9]+n[0-9]+/'; }
all_there() { (($(disks) == count)); }
await $((60 + count / 4)) all_there
controller=$(controllers)
expect "namespaces in the list" "$(nvme list-ns "/dev/$controller" -o json | jq '.nsid_list | length')" "$count"

# One that comes and goes under a host that hears of each. The last word is right: its UUID.
spare=$((count + 1))
uuid=
# The disk of the namespace with that UUID.
spare_disk() { grep -lxF "$uuid" /sys/block/nvme*n*/uuid | sed -nE 's,/sys/block/(nvme[0-9]+n[0-9]+)/uuid,/dev/\1,p' | grep .; }
for n in 1 2 3 4; do
    uuid=0000000$n-0000-4000-8000-000000000001
    ctl volume add "${spares[n - 1]}" --nsid "$spare" --uuid "$uuid" >/dev/null
    await $((30 + count / 10)) spare_disk
    dd if=/dev/urandom of="$(spare_disk)" bs=64k count=4 oflag=direct status=none
    # In the next round another namespace has the same id, before or after the host looks.
    ctl volume remove "$spare"
done
await $((30 + count / 10)) all_there

# Two who add and remove the same one at once: one of them is told no, nothing else happens.
fight() {
    local _
    for _ in 1 2 3 4 5; do
        ctl volume add "$SCRATCH/churn/spare.img" --nsid "$spare" --uuid "$uuid" || true
        ctl volume remove "$spare" || true
    done
}
fight >/dev/null 2>&1 &
fight >/dev/null 2>&1
wait $!
await $((30 + count / 10)) all_there
ctl volume add "$loop" --nsid "$spare" --uuid "$uuid" >/dev/null
await $((30 + count / 10)) spare_disk
verified_io "$(spare_disk)" 2M --bssplit=4k/100
is_live "$controller" || die "the controller is $(controller_state "$controller")"
expect "the controller is the same" "$(controllers)" "$controller"
disconnect
stop
losetup -d "$loop"
