#!/bin/bash
# limit: 300
# Our host against the kernel's own target: data compared and verified, with digests and without, while
# the target's port goes away and comes back; namespaces that come and grow are noticed.
. "$(dirname "$0")/harness.sh"

kernel_serve "file:$SCRATCH/a.img?size=64M&create" "file:$SCRATCH/b.img?size=64M&create"
volume() { echo "tcp://127.0.0.1:$PORT/$NQN?ns=$1&reconnect_delay=200ms&keep_alive_tmo=2s&ctrl_loss_tmo=60s$2"; }

# From one to the other, by commands of up to the largest transfer.
head -c 20M /dev/urandom >"$WORK/data"
"$NVLANE" write "$(volume 1 "")" --input "$WORK/data"
"$NVLANE" cat "$(volume 1 "&hdr_digest&data_digest")" --length 20M >"$WORK/back"
cmp "$WORK/data" "$WORK/back" || die "what was written is read differently"
cmp -n $((20 << 20)) "$WORK/data" "$SCRATCH/a.img" || die "the target's file has something else"

"$NVLANE" nbd "plain=$(volume 1 "")" "digests=$(volume 2 "&hdr_digest&data_digest")" --socket "$WORK/nbd.sock" --log info \
    >"$WORK/nbd.log" 2>&1 </dev/null &
door=$!
await 60 says "$WORK/nbd.log" ready
verify() { # verify EXPORT: in the background, where a signal is fio's own
    exec fio --name="$1" --ioengine=nbd --uri="nbd+unix:///$1?socket=$WORK/nbd.sock" --rw=randrw \
        --bssplit=4k/60:16k/20:128k/15:1M/5 --iodepth=16 --size=32M --time_based --runtime=600 \
        --verify=crc32c --verify_fatal=1 --verify_backlog=128 --serialize_overlap=1 --randseed=1 \
        --output-format=json --output="$WORK/$1.json"
}
# Whether the file of either has been written to since that mark was made.
both_written() { [[ $SCRATCH/a.img -nt $WORK/mark && $SCRATCH/b.img -nt $WORK/mark ]] || one_ended; }
one_ended() { ! kill -0 "$plain" || ! kill -0 "$digests"; } 2>/dev/null
touch "$WORK/mark"
verify plain &
plain=$!
verify digests &
digests=$!
await 60 both_written
# lost COUNT: whether each of the two volumes has lost its path, and found it again, so often
lost() {
    (($(grep -c "path is lost" "$WORK/nbd.log") >= 2 * $1 && $(grep -c "path is live" "$WORK/nbd.log") >= 2 * ($1 + 1)))
}
# The port goes away twice: the kernel deletes the controllers that were reached through it.
for round in 1 2; do
    sleep 2
    rm "$NVMET/ports/1/subsystems/$NQN"
    sleep 1
    ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/$NQN"
    await 20 lost "$round"
done
# They go on after that.
for _ in 1 2 3; do
    touch "$WORK/mark"
    await 60 both_written
    pause 1
done
for name in plain digests; do
    status=0
    kill -INT "${!name}" 2>/dev/null || true
    # 128: by the signal, of which it says something before the JSON.
    wait "${!name}" || status=$?
    ((status == 0 || status == 128)) || die "fio on $name: $(grep -m20 -iE "fio|verify|error" "$WORK/$name.json") $(tail -n 20 "$WORK/nbd.log")"
    sed -i '/^{/,$!d' "$WORK/$name.json"
    expect_json "$WORK/$name.json" '[.jobs[].error] | add' 0
    # Some hundred on a quiet machine; more than a queue's worth in any case.
    expect_json "$WORK/$name.json" '.jobs[0].write.total_ios > 16' true
    jq -r '"fio: \(.jobs[0].read.total_ios) reads, \(.jobs[0].write.total_ios) writes, all as written; the longest took \([.jobs[0].read.clat_ns.max, .jobs[0].write.clat_ns.max] | map(. / 1e6 | floor)) ms"' "$WORK/$name.json"
done

# A namespace that grows is noticed by a door that is open: told so (an event), and when it comes back.
size_is() { [[ $(nbdinfo --size "nbd+unix:///digests?socket=$WORK/nbd.sock") == $(($1 << 20)) ]]; }
await 30 size_is 64
truncate -s 80M "$SCRATCH/b.img"
echo 1 >"$NVMET/subsystems/$NQN/namespaces/2/revalidate_size"
await 20 size_is 80
echo 0 >"$NVMET/subsystems/$NQN/namespaces/2/enable"
truncate -s 88M "$SCRATCH/b.img"
echo 1 >"$NVMET/subsystems/$NQN/namespaces/2/enable"
await 20 size_is 88
# All of it can be used.
fio --name=grown --ioengine=nbd --uri="nbd+unix:///digests?socket=$WORK/nbd.sock" --rw=randwrite --bs=64k --iodepth=8 \
    --offset=64M --size=24M --verify=crc32c --verify_fatal=1 --randseed=1 --output-format=json --output="$WORK/grown.json" ||
    die "the new part: $(tail -n 20 "$WORK/grown.json") $(tail -n 20 "$WORK/nbd.log")"
expect_json "$WORK/grown.json" '[.jobs[].error] | add' 0
kill -TERM "$door"
wait "$door" || die "the door did not end well: $(tail -n 20 "$WORK/nbd.log")"

# Two ports, one of which goes away under writes. The kernel shuts its sockets down before its requests
# have ended, so that the writes which were on their way wait for as long as they may last.
mkdir "$NVMET/ports/2"
for place in trtype:tcp adrfam:ipv4 traddr:127.0.0.1 trsvcid:$((PORT + 1)); do
    echo "${place#*:}" >"$NVMET/ports/2/addr_${place%%:*}"
done
ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/2/subsystems/$NQN"
two_live() { (($(grep -c "path is live" "$WORK/two.log") >= 2)); }
# lose_one QUIESCE_TIME: sets `longest` to how many milliseconds the longest write took
lose_one() {
    local quiesce=$1 door fio status=0
    : >"$WORK/two.log"
    "$NVLANE" nbd "tcp://127.0.0.1:$PORT,127.0.0.1:$((PORT + 1))/$NQN?ns=1&reconnect_delay=200ms&policy=round-robin&quiesce_time=$quiesce" \
        --socket "$WORK/two.sock" --log info >"$WORK/two.log" 2>&1 </dev/null &
    door=$!
    await 60 says "$WORK/two.log" ready
    await 60 two_live
    touch "$WORK/begun"
    fio --name=two --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/two.sock" --rw=randwrite --bs=64k --iodepth=32 --size=32M \
        --time_based --runtime=60 --randseed=1 --output-format=json --output="$WORK/two.json" &
    fio=$!
    await 30 test "$SCRATCH/a.img" -nt "$WORK/begun"
    sleep 2
    rm "$NVMET/ports/2/subsystems/$NQN"
    await 20 says "$WORK/two.log" "path is lost"
    pause 5
    kill -INT "$fio"
    # 128: by the signal, of which it says something before the JSON.
    wait "$fio" || status=$?
    ((status == 0 || status == 128)) || die "fio on two paths: $(tail -n 20 "$WORK/two.json") $(tail -n 20 "$WORK/two.log")"
    ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/2/subsystems/$NQN"
    sed -i '/^{/,$!d' "$WORK/two.json"
    expect_json "$WORK/two.json" '[.jobs[].error] | add' 0
    longest=$(jq '.jobs[0].write.clat_ns.max / 1e6 | floor' "$WORK/two.json")
    echo "quiesce_time=$quiesce: the longest write took $longest ms"
    kill -TERM "$door"
    wait "$door" || die "the door did not end well: $(tail -n 20 "$WORK/two.log")"
}
lose_one 1ms
# At times none of the writes is on its way at that moment.
for _ in 1 2 3 4 5; do
    lose_one 3s
    ((longest < 3000)) || break
done
expect "a lost write waits for quiesce_time, and not much longer ($longest ms)" $((longest >= 3000 && longest < 40000)) 1
rm "$NVMET/ports/2/subsystems/$NQN"

# A volume by the name of a discovery controller: the kernel's log names what its own port has, and refers to others.
# The second port comes and goes, as does the referral to it, and the paths follow, under a verify that sees no error.
referral=$NVMET/ports/1/referrals/second
mkdir "$referral"
for place in trtype:tcp adrfam:ipv4 traddr:127.0.0.1 trsvcid:$((PORT + 1)); do
    echo "${place#*:}" >"$referral/addr_${place%%:*}"
done
"$NVLANE" nbd "discovery://127.0.0.1:$PORT/$NQN?ns=1&reconnect_delay=200ms&policy=round-robin" \
    --socket "$WORK/followed.sock" --control "$WORK/followed.control" --log info >"$WORK/followed.log" 2>&1 </dev/null &
door=$!
await 60 says "$WORK/followed.log" ready
# leads_to PORTS: whether the paths are these, each with its state
leads_to() {
    local told
    told=$("$NVLANE" paths --socket "$WORK/followed.control" -o json) || return 1
    [[ $(jq -r '[.volumes[0].paths[] | (.name | split(":")[-1]) + " " + .access] | sort | join(" ")' <<<"$told") == "$1" ]]
}
first="$PORT optimized" second="$((PORT + 1)) optimized"
await 20 leads_to "$first"
follow() { # verifies in the background, and flushes now and then, until `followed`
    rm -f "$WORK/enough"
    : >"$WORK/turns"
    while [[ ! -e $WORK/enough ]]; do
        echo >>"$WORK/turns"
        fio --name=followed --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/followed.sock" --rw=randrw --bs=16k --iodepth=8 --size=16M \
            --time_based --runtime=6 --verify=crc32c --verify_fatal=1 --verify_backlog=64 --serialize_overlap=1 --randseed=1 \
            --end_fsync=1 --output-format=json --output="$WORK/followed.json" || exit
        expect_json "$WORK/followed.json" '[.jobs[].error] | add' 0
    done &
    fio=$!
}
turns() { wc -l <"$WORK/turns"; }
has_begun_anew() { (($(turns) > turns_before)) || ! kill -0 "$fio" 2>/dev/null; }
followed() {
    # One that begins after the last change, whose writes are verified and flushed as well.
    local turns_before
    turns_before=$(turns)
    await 60 has_begun_anew
    kill -0 "$fio" 2>/dev/null || die "it has ended before the last change: $(tail -n 20 "$WORK/followed.json")"
    touch "$WORK/enough"
    wait "$fio" || die "fio by the kernel's discovery: $(tail -n 20 "$WORK/followed.json") $(tail -n 20 "$WORK/followed.log")"
}
follow
for round in 1 2; do
    ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/2/subsystems/$NQN"
    echo 1 >"$referral/enable"
    await 20 leads_to "$first $second"
    sleep 1
    # The port goes first: what it has said stays until the referral goes, too.
    rm "$NVMET/ports/2/subsystems/$NQN"
    await 20 leads_to "$first $((PORT + 1)) lost"
    echo 0 >"$referral/enable"
    await 20 leads_to "$first"
done
followed
# The referral goes alone: a path that could go on is let go without an error, and with nothing left to flush there.
ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/2/subsystems/$NQN"
echo 1 >"$referral/enable"
await 20 leads_to "$first $second"
follow
sleep 3
echo 0 >"$referral/enable"
await 20 leads_to "$first"
followed
grep -q "path is let go.*$((PORT + 1))" "$WORK/followed.log" || die "it was not let go: $(tail -n 20 "$WORK/followed.log")"
rm "$NVMET/ports/2/subsystems/$NQN"
rmdir "$referral"
kill -TERM "$door"
wait "$door" || die "the door did not end well: $(tail -n 20 "$WORK/followed.log")"
rmdir "$NVMET/ports/2"

# What our commands say of it, and of what it gains.
"$NVLANE" list-subsys "$(volume 1 "")" -o json >"$WORK/subsystem.json"
"$NVLANE" id-ns "$(volume 2 "")" -o json >"$WORK/before.json"
echo 0 >"$NVMET/subsystems/$NQN/namespaces/2/enable"
truncate -s 96M "$SCRATCH/b.img"
echo 1 >"$NVMET/subsystems/$NQN/namespaces/2/enable"
"$NVLANE" id-ns "$(volume 2 "")" -o json >"$WORK/after.json"
[[ $(jq -c '.. | .nsze? // empty' "$WORK/before.json") != $(jq -c '.. | .nsze? // empty' "$WORK/after.json") ]] \
    || die "its size is still $(<"$WORK/after.json")"
kernel_stop
