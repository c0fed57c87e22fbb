# For sourcing after harness.sh: accidents to a server whose cache is volatile.
#
# `volatile:` keeps in the server's memory what was not flushed, so that kill -9 loses it, as a power
# cut would. The host must not reconnect by itself here: it would repeat what it has in flight, and
# a Flush sent to the new server says nothing of what the old one had lost.

# Native multipath stays off: with it, Linux 7.2 tells the writer that a Flush has succeeded when its
# path died under it (nvme_failover_req takes the bios of the request away and ends it without error,
# and the block layer's own flush request has none), so that the ledger would note promises that
# nobody made to the host.
single_path() {
    modprobe -r nvme-tcp nvme-fabrics nvme-core
    modprobe nvme-core multipath=N
    modprobe nvme-tcp
}

# accident SEED: writes to namespace 1 with Flush and to namespace 2 with FUA, kills the server under
# the writers, serves again, connects. Then verdict flush and verdict fua tell what became of it.
VOLUMES=()
accident() {
    local seed=$1
    VOLUMES=("volatile:(file:$SCRATCH/v1.img?size=64M&create)" "volatile:(file:$SCRATCH/v2.img?size=64M&create)")
    rm -f "$WORK/flush" "$WORK/fua"
    serve "${VOLUMES[@]}"
    connect -i 2
    local by writers=() nsid=1
    for by in flush fua; do
        "$XTASK" ledger write --device "$(namespace $nsid)" --ledger "$WORK/$by" --seconds 300 \
            --blocks 1024 --seed "$seed" --by $by --on-error stop >"$WORK/writer-$by.log" 2>&1 &
        writers+=($!)
        nsid=$((nsid + 1))
    done
    await 60 enough "$WORK/flush"
    await 60 enough "$WORK/fua"
    sleep "0.$((seed * 37 % 100))"
    kill_server
    drop
    wait "${writers[@]}" || true
    serve "${VOLUMES[@]}"
    connect -i 2
}

enough() { [[ -e $1 ]] && (($(wc -l <"$1") > 60)); }

# verdict flush|fua: as the ledger's checker ends
verdict() {
    local nsid=1
    [[ $1 == fua ]] && nsid=2
    "$XTASK" ledger verify --device "$(namespace $nsid)" --ledger "$WORK/$1" --at-least 60 2>&1
}
