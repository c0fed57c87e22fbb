#!/bin/bash
# limit: 150
# round: 30
# One of two targets that serve the same files is killed, again and again, under a host of ours: behind
# an NBD door, fio checks what it wrote, and the ledger of acknowledged writes is checked block by
# block, also by reads meanwhile, so that neither a lost write nor an older one that comes late goes unnoticed. Then both
# targets are gone for good, and the door says which path failed and why.
#
# Moments, offsets and blocks are drawn from SEED, another one each time if none is given.
. "$(dirname "$0")/harness.sh"

SEED=${SEED:-$((SRANDOM % 32768))}
echo "SEED=$SEED"
modprobe nbd nbds_max=2
NQN=nqn.2026-11.io.nvlane:path-loss
declare -A TARGET
# Seconds: no answer for so long, and a path is lost; and so long commands may be at work behind an association that has ended.
KEEP_ALIVE=2
QUIESCE=1

# target PORT: one of the two
target() {
    local ids=$((($1 - 4420) * 100 + 1))
    "$NVLANE" serve "file:$SCRATCH/fio.img?size=64M&create" "file:$SCRATCH/ledger.img?size=64M&create" --shared \
        --nqn "$NQN" --uuid 11111111-1111-4111-8111-111111111111 --uuid 22222222-2222-4222-8222-222222222222 \
        --cntlid "$ids-$((ids + 99))" --listen "127.0.0.1:$1" --socket "$WORK/target-$1.sock" \
        --data-dir "$WORK/target-$1" >>"$WORK/target-$1.log" 2>&1 </dev/null &
    TARGET[$1]=$!
}

# served PORT COUNT: whether that target was started, and became ready, so often
served() { (($(grep -c ready "$WORK/target-$1.log") == $2)); }

# lives PORT: how often a path to that target was live
lives() { grep -c "path is live peer=127.0.0.1:$1" "$WORK/nbd.log" || true; }
# live PORT COUNT: whether the path of each of the two volumes to that target was live again since then
live() { (($(lives "$1") >= $2 + 2)); }

# Until there is the file `over`: the longest time that the machine stood still, in milliseconds, which is what a short pause
# took longer.
clock() {
    local before now most=0
    until [[ -e $WORK/over ]]; do
        before=${EPOCHREALTIME//[!0-9]/}
        pause 0.1
        now=${EPOCHREALTIME//[!0-9]/}
        ((now - before - 100000 <= most)) || most=$((now - before - 100000))
    done
    echo $((most / 1000))
}

# paths NSID CTRL_LOSS_TMO: the namespace through both
paths() { echo "tcp://127.0.0.1:4421,127.0.0.1:4422/$NQN?ns=$1&keep_alive_tmo=${KEEP_ALIVE}s&quiesce_time=${QUIESCE}s&reconnect_delay=200ms&ctrl_loss_tmo=$2"; }

target 4421
await 90 says "$WORK/target-4421.log" ready
target 4422
await 90 says "$WORK/target-4422.log" ready
: >"$WORK/nbd.log"
"$NVLANE" nbd "fio=$(paths 1 60s)" "ledger=$(paths 2 60s)" --socket "$WORK/nbd.sock" >"$WORK/nbd.log" 2>&1 </dev/null &
door=$!
await 90 says "$WORK/nbd.log" ready
nbd-client -unix "$WORK/nbd.sock" -N ledger -timeout 120 /dev/nbd0 >/dev/null
is_there() { [[ $(blockdev --getsize64 /dev/nbd0) == $((64 << 20)) ]]; }
await 20 is_there

((FULL)) && ROUNDS=50
# Both until all rounds are over, however long this machine takes for them: once for what they take at least, then a
# little more each time.
rm -f "$WORK/enough" "$WORK/over" "$WORK"/fio-*.json
load() {
    local seconds=$((FULL ? ROUNDS * 6 + 6 : ROUNDS * 4)) turn=0
    until [[ -e $WORK/enough ]]; do
        "$1" $seconds $((turn++)) || return
        seconds=$((FULL ? 10 : 5))
    done
}
blocks() {
    fio --name=paths --ioengine=nbd --uri="nbd+unix:///fio?socket=$WORK/nbd.sock" --rw=randrw --bssplit=4k/60:16k/30:128k/10 \
        --iodepth=16 --size=32M --time_based --runtime="$1" --verify=crc32c --verify_fatal=1 --verify_backlog=256 \
        --serialize_overlap=1 --randseed="$SEED" --output-format=json --output="$WORK/fio-$2.json"
}
promises() { "$XTASK" ledger write --device /dev/nbd0 --ledger "$WORK/ledger" --seconds "$1" --seed "$SEED" --read-back; }
load blocks &
fio=$!
load promises >"$WORK/ledger.log" &
ledger=$!
clock >"$WORK/stood-still" &
clock=$!
RANDOM=$SEED
for ((round = 0; round < ROUNDS; round++)); do
    # They end before that only with an error.
    { kill -0 "$fio" && kill -0 "$ledger"; } 2>/dev/null || break
    victim=$((4421 + round % 2))
    sleep $((1 + RANDOM % 2)).$((RANDOM % 10))
    # Taken just before: the machine may have stood still for longer than KEEP_ALIVE, and paths were live more often.
    before=$(lives "$victim")
    kill -KILL "${TARGET[$victim]}"
    wait "${TARGET[$victim]}" 2>/dev/null || true
    sleep 0.$((RANDOM % 10))
    target "$victim"
    # The other one is not killed before this one can carry commands again.
    await 90 served "$victim" $((round / 2 + 2))
    await 90 live "$victim" "$before"
done
touch "$WORK/enough"
wait "$fio" || die "fio: $(tail -n 40 "$WORK"/fio-*.json) $(tail -n 20 "$WORK/nbd.log")"
wait "$ledger" || die "a write was refused, or a block is stale: $(tail -n 20 "$WORK/nbd.log")"
touch "$WORK/over"
wait "$clock"
expect "rounds with I/O" "$round" "$ROUNDS"
jq -s . "$WORK"/fio-*.json >"$WORK/fio.json"
expect_json "$WORK/fio.json" '[.[].jobs[].error] | add' 0
expect_json "$WORK/fio.json" '[.[].jobs[0].write.total_ios] | add > 100' true
"$XTASK" ledger verify --device /dev/nbd0 --ledger "$WORK/ledger" --at-least 50
read_back=$(awk '/blocks read back/ { sum += $2 } END { print sum + 0 }' "$WORK/ledger.log")
expect "blocks read back while targets were killed" $((read_back >= 50)) 1
stall=$(jq '[.[].jobs[0] | .read.clat_ns.max, .write.clat_ns.max] | max / 1e6 | floor' "$WORK/fio.json")
waited=$(awk '/the longest call took/ && $6 > most { most = $6 } END { print most + 0 }' "$WORK/ledger.log")
# A killed target closes its connections, and the other path carries what was on its way at once: nothing waits for
# ctrl_loss_tmo. Were silence all that tells of its end, a write would wait until that is noticed, for two time-outs more
# in which the target may still hear, and until commands have ended; an emulated machine may take twice as long, and
# whatever stood still with it comes on top.
bound=$((2 * (3 * KEEP_ALIVE + QUIESCE) * 1000 + 2 * $(<"$WORK/stood-still")))
longest="$round of $ROUNDS rounds; the longest command took $stall ms of fio's, $waited ms of the ledger's, of $bound at most"
expect "a stall within the bound ($longest)" $((stall < bound && waited < bound)) 1

# Both gone: commands wait as long as they were told to, then fail, and the door says why.
nbd-client -d /dev/nbd0 >/dev/null
kill -TERM "$door"
wait "$door" || die "the door did not end well: $(tail -n 20 "$WORK/nbd.log")"
: >"$WORK/gone.log"
"$NVLANE" nbd "$(paths 1 5s)" --socket "$WORK/nbd.sock" >"$WORK/gone.log" 2>&1 </dev/null &
door=$!
await 30 says "$WORK/gone.log" ready
begun=$SECONDS
kill -KILL "${TARGET[4421]}" "${TARGET[4422]}"
wait "${TARGET[4421]}" "${TARGET[4422]}" 2>/dev/null || true
fails fio --name=gone --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/nbd.sock" --rw=read --bs=4k --size=4k >/dev/null
waited=$((SECONDS - begun))
expect "waited for ctrl_loss_tmo, and not much longer ($waited s)" $((waited >= 4 && waited < 30)) 1
expect_match "what the door says of its paths" "$(grep 'no path is left' "$WORK/gone.log")" \
    '127.0.0.1:4421: .*refused.*127.0.0.1:4422: .*refused'
kill -TERM "$door"
wait "$door" || true
# The last line, so that it is among those which are shown of a test that passed.
echo "$longest"
