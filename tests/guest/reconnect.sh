#!/bin/bash
# limit: 90
# round: 60
# kill -9 of the target under writes, restarted on the same port: the host reconnects by itself, its
# writers notice nothing, and no write that was acknowledged and flushed, or had FUA, is lost.
. "$(dirname "$0")/harness.sh"

volumes=("file:$SCRATCH/k1.img?size=64M&create" "file:$SCRATCH/k2.img?size=64M&create")
serve "${volumes[@]}"
connect -i 2 --reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=5
flushed=$(namespace 1)
fua=$(namespace 2)
controller=$(controllers)
"$XTASK" ledger write --device "$flushed" --ledger "$WORK/flush" --seconds 3600 --blocks 1024 --read-back &
writers=($!)
# A passthrough command fails with its path and is not repeated by the kernel: the writer does.
"$XTASK" ledger write --device "$fua" --ledger "$WORK/fua" --seconds 3600 --blocks 1024 \
    --by fua --on-error retry &
writers+=($!)
noted() { cat "$WORK/flush" "$WORK/fua" | wc -l; }
await 60 test -s "$WORK/flush"
await 60 test -s "$WORK/fua"
noted_since() { (($(wc -l <"$WORK/flush") > $1 && $(wc -l <"$WORK/fua") > $2)); }

for ((round = 1; round <= ROUNDS; round++)); do
    await 60 noted_since "$(($(wc -l <"$WORK/flush") + 20))" "$(($(wc -l <"$WORK/fua") + 20))"
    sleep "0.$((round * 37 % 100))"
    kill_server
    sleep "$((round % 3)).2"
    serve "${volumes[@]}"
    await 60 is_live "$controller"
    for writer in "${writers[@]}"; do kill -0 "$writer" || die "round $round: a writer saw an error"; done
    await 60 noted_since "$(wc -l <"$WORK/flush")" "$(wc -l <"$WORK/fua")"
    for by in flush fua; do
        device=$flushed
        [[ $by == fua ]] && device=$fua
        "$XTASK" ledger verify --device "$device" --ledger "$WORK/$by" --at-least 20 >"$WORK/verdict" \
            || die "round $round, $by: $(<"$WORK/verdict")"
    done
    echo "round $round: $(noted) durable writes so far, all there"
done
expect "the controller is the same" "$(controllers)" "$controller"
for writer in "${writers[@]}"; do kill "$writer" || die "in the end: a writer saw an error"; done
wait "${writers[@]}" || true
disconnect
stop
